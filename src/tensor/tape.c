/* tape: memory and tensors, running and recording an operation, the backward pass. Data types and
 * backends appear only as sizes and tables. The operations are in tape_ops.c. */
#include "tensor/tape.h"

#include "base/pool.h"

#include <string.h>

void wf_tape_start(wf_tape *tape, const wf_backend *backend, wf_dtype dtype, bool keep) {
    wf_arena_reset(&tape->arena);
    wf_arena_reset(&tape->uploads);
    wf_arena_reset(&tape->records);
    tape->arena.source = tape->uploads.source = backend->memory;
    tape->backend = backend;
    tape->size = dtype == WF_F64 ? sizeof(double) : sizeof(float);
    tape->keep = keep;
    tape->failed = tape->shapes = tape->keep_gradients = false;
    tape->ctx = NULL;
    tape->watched = NULL;
    tape->last = NULL;
    tape->spares = 0;
}

void wf_tape_free(wf_tape *tape) {
    wf_arena_free(&tape->arena);
    wf_arena_free(&tape->uploads);
    wf_arena_free(&tape->records);
}

void wf_tape_tighten(wf_tape *tape) {
    wf_arena_tighten(&tape->arena);
    wf_arena_tighten(&tape->uploads);
}

size_t wf_tape_bytes(const wf_tape *tape) {
    return wf_arena_capacity(&tape->arena) + wf_arena_capacity(&tape->uploads);
}

static void *take(wf_tape *tape, wf_arena *arena, size_t bytes) {
    void *memory = tape->failed ? NULL : wf_arena_alloc(arena, bytes);
    if (memory == NULL) tape->failed = true;
    return memory;
}

void *wf_tape_alloc(wf_tape *tape, size_t bytes) {
    static char nothing; /* where the data of shapes points */
    return tape->shapes ? &nothing : take(tape, &tape->arena, bytes);
}

void *wf_tape_host(wf_tape *tape, size_t bytes) { return take(tape, &tape->records, bytes); }

void *wf_tape_upload(wf_tape *tape, const void *host, size_t bytes) {
    if (tape->backend->upload == NULL || tape->failed) return (void *)host;
    void *memory = take(tape, &tape->uploads, bytes);
    if (memory != NULL) tape->backend->upload(tape->backend, memory, host, bytes);
    return memory;
}

void wf_tape_zero(const wf_tape *tape, void *data, size_t bytes) {
    if (tape->backend->zero != NULL) tape->backend->zero(tape->backend, data, bytes);
    else memset(data, 0, bytes);
}

wf_tape_mark wf_tape_here(const wf_tape *tape) {
    return (wf_tape_mark){wf_arena_here(&tape->arena), wf_arena_here(&tape->records)};
}

void wf_tape_rewind(wf_tape *tape, wf_tape_mark mark) {
    wf_arena_rewind(&tape->arena, mark.data);
    wf_arena_rewind(&tape->records, mark.records);
}

static wf_tensor *tensor_shell(wf_tape *tape, int rows, int cols, int ld, bool wants) {
    wf_tensor *tensor = wf_tape_host(tape, sizeof *tensor);
    if (tensor == NULL) return NULL;
    *tensor = (wf_tensor){.rows = rows, .cols = cols, .ld = ld, .wants = wants && tape->keep};
    return tensor;
}

/* Kernels read and write whole vectors, so there is room for one vector after the last row. */
static size_t tensor_bytes(const wf_tape *tape, const wf_tensor *tensor) {
    return ((size_t)tensor->rows * (size_t)tensor->ld + WF_PAD) * tape->size;
}

wf_tensor *wf_tape_tensor(wf_tape *tape, int rows, int cols, bool wants) {
    wf_tensor *tensor = tensor_shell(tape, rows, cols, wf_pad(cols), wants);
    if (tensor == NULL) return NULL;
    tensor->data = wf_tape_alloc(tape, tensor_bytes(tape, tensor));
    return tensor->data == NULL ? NULL : tensor;
}

wf_tensor *wf_tape_blank(wf_tape *tape, int rows, int cols) {
    wf_tensor *tensor = tensor_shell(tape, rows, cols, wf_pad(cols), false);
    if (tensor == NULL) return NULL;
    tensor->data = wf_tape_host(tape, tensor_bytes(tape, tensor));
    if (tensor->data == NULL) return NULL;
    memset(tensor->data, 0, tensor_bytes(tape, tensor));
    return tensor;
}

wf_tensor *wf_tape_filled(wf_tape *tape, wf_tensor *tensor) {
    if (tensor != NULL)
        tensor->data = wf_tape_upload(tape, tensor->data, tensor_bytes(tape, tensor));
    return tensor;
}

wf_tensor *wf_tape_rows(wf_tape *tape, const void *rows, int count, int cols) {
    if (tape->backend->memory != NULL) return wf_tape_view(tape, (void *)rows, NULL, count, cols);
    wf_tensor *x = wf_tape_blank(tape, count, cols);
    size_t row = (size_t)cols * tape->size;
    for (int r = 0; x != NULL && r < count; r++)
        memcpy((char *)x->data + (size_t)r * (size_t)x->ld * tape->size,
               (const char *)rows + (size_t)r * row, row);
    return x;
}

wf_tensor *wf_tape_view(wf_tape *tape, void *data, void *grad, int rows, int cols) {
    wf_tensor *tensor = tensor_shell(tape, rows, cols, cols, grad != NULL);
    if (tensor == NULL) return NULL;
    tensor->data = data;
    tensor->grad = grad;
    tensor->grad_set = grad != NULL;
    return tensor;
}

wf_tensor *wf_tape_weight(wf_tape *tape, const void *data, void *grad, int rows, int cols,
                          const void *panels, const void *panels_t) {
    wf_tensor *tensor = wf_tape_view(tape, (void *)data, grad, rows, cols);
    if (tensor == NULL) return NULL;
    if (panels == NULL) {
        void *own = wf_tape_alloc(tape, wf_panel_size(rows, cols) * tape->size);
        void *own_t = wf_tape_alloc(tape, wf_panel_size(cols, rows) * tape->size);
        if (own == NULL || own_t == NULL) return NULL;
        tape->backend->pack(tape->backend, data, rows, cols, own, own_t);
        panels = own;
        panels_t = own_t;
    }
    tensor->panels = panels;
    tensor->panels_t = panels_t;
    return tensor;
}

static wf_tensor *gradient_root(wf_tensor *tensor) {
    return tensor->shares != NULL ? tensor->shares : tensor;
}

static void *take_spare(wf_tape *tape, size_t bytes) {
    for (int k = 0; k < tape->spares - tape->backend->spare_late; k++) {
        if (tape->spare[k].bytes != bytes) continue;
        void *data = tape->spare[k].data;
        tape->spares--;
        memmove(&tape->spare[k], &tape->spare[k + 1],
                (size_t)(tape->spares - k) * sizeof tape->spare[0]);
        return data;
    }
    return NULL;
}

/* A tensor's gradient is read by the operation that made the tensor. That one is done, so its
 * memory may be used again. */
static void spare_gradient(wf_tape *tape, wf_tensor *tensor) {
    if (tape->keep_gradients || tape->spares == WF_TAPE_SPARES) return;
    if (tensor->shares != NULL || !tensor->grad_own) return;
    if (tensor->rows <= tape->backend->spare_rows) return;
    tape->spare[tape->spares++] = (wf_tape_spare){tensor->grad, tensor_bytes(tape, tensor)};
    tensor->grad_own = false;
}

/* Makes sure that the gradient buffer exists and holds zeros or what was added so far. */
static bool gradient_ready(wf_tape *tape, wf_tensor *tensor) {
    wf_tensor *root = gradient_root(tensor);
    if (root->grad == NULL) {
        size_t bytes = tensor_bytes(tape, root);
        root->grad = take_spare(tape, bytes);
        if (root->grad == NULL) root->grad = wf_tape_alloc(tape, bytes);
        root->grad_own = root->grad != NULL;
    }
    if (root->grad == NULL) return false;
    if (!root->grad_set) wf_tape_zero(tape, root->grad, tensor_bytes(tape, root));
    root->grad_set = true;
    tensor->grad = root->grad;
    return true;
}

void *wf_tape_grad(wf_tape *tape, wf_tensor *tensor) {
    return gradient_ready(tape, tensor) ? tensor->grad : NULL;
}

/* One direction of an operation. One on long rows may take seconds: where an interruption is
 * watched for, its rounds stop too. */
static void run_op(wf_tape *tape, bool (*direction)(const wf_op *op, wf_arena *arena),
                   const wf_op *op) {
    wf_arena_mark mark = wf_arena_here(&tape->arena);
    bool before = wf_stop_rounds(tape->ctx, tape->ctx == tape->watched);
    if (!direction(op, &tape->arena) || wf_interrupted(tape->watched)) tape->failed = true;
    wf_stop_rounds(tape->ctx, before);
    wf_arena_rewind(&tape->arena, mark);
}

/* Counts what an operation adds to gradients of each stage. */
static void count_stages(const wf_tape *tape, const wf_op *op, int by, int left[WF_TAPE_STAGES]) {
    for (int i = 0; i < WF_OP_INPUTS && tape->stages.count > 0; i++) {
        if (op->in[i] == NULL || !op->in[i]->wants) continue;
        int stage = tape->stages.of(tape->stages.user, gradient_root(op->in[i])->grad);
        if (stage >= 0) left[stage] += by;
    }
}

static bool run_backward(wf_tape *tape, const wf_op *op) {
    bool reached = false;
    if (wf_interrupted(tape->watched)) return false;
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (op->out[i] != NULL) reached |= gradient_root(op->out[i])->grad_set;
    if (!reached) return true;
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (op->out[i] != NULL && !gradient_ready(tape, op->out[i])) return false;
    for (int i = 0; i < WF_OP_INPUTS; i++)
        if (op->in[i] != NULL && op->in[i]->wants && !gradient_ready(tape, op->in[i])) return false;
    run_op(tape, tape->backend->backward[op->kind], op);
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (op->out[i] != NULL) spare_gradient(tape, op->out[i]);
    return true;
}

bool wf_tape_backward(wf_tape *tape) {
    int left[WF_TAPE_STAGES] = {0}, stage = 0;
    const wf_tape_stages *stages = &tape->stages;
    for (const wf_op *op = tape->last; op != NULL; op = op->previous)
        count_stages(tape, op, 1, left);
    for (const wf_op *op = tape->last; op != NULL && !tape->failed; op = op->previous) {
        if (!run_backward(tape, op)) return false;
        count_stages(tape, op, -1, left);
        while (stage < stages->count - 1 && left[stage] == 0) stages->over(stages->user, stage++);
    }
    while (stage < stages->count && !tape->failed) stages->over(stages->user, stage++);
    return !tape->failed;
}

bool wf_tape_backward_of(wf_tape *tape, const wf_op *op) {
    if (!tape->failed) run_op(tape, tape->backend->backward[op->kind], op);
    return !tape->failed;
}

/* Multiply-adds of the products of an operation. A product counts once forward and twice backward,
 * and once more if backward computes it again. */
static double op_products(const wf_op *op) {
    double sum = 0, edges = op->part != NULL ? (double)op->part->n_edges : 0;
    wf_tensor *const *in = op->in;
    switch (op->kind) {
    case WF_OP_linear:
        for (int k = 0; k < 4 && in[2 * k] != NULL; k++)
            sum += (in[2 * k]->wants ? 3.0 : 2.0) * in[2 * k]->cols * in[2 * k + 1]->rows;
        return sum * op->out[0]->rows;
    case WF_OP_conv1d:
    case WF_OP_conv1d_transposed: {
        double windows = op->kind == WF_OP_conv1d ? op->out[0]->rows : in[0]->rows;
        return windows * (in[0]->wants ? 3.0 : 2.0) * in[1]->rows * in[1]->cols;
    }
    case WF_OP_attention: /* two products, once more the first backward, and four of gradients */
        return (double)in[0]->rows * op->tokens * op->out[0]->cols * 7;
    case WF_OP_node_tables: return 6.0 * in[0]->rows * in[0]->cols * in[2]->rows;
    case WF_OP_lean_nodes: /* two products of messages, three of their width, one back */
        return 3.0 * in[0]->rows * in[0]->cols * (2.0 * in[2]->cols + 4.0 * in[6]->rows);
    case WF_OP_edge_encoder: return edges * 3.0 * in[3]->rows * in[3]->cols;
    case WF_OP_edge_readout:
        return in[0]->rows * (4.0 * in[1]->rows * in[1]->cols + 3.0 * in[3]->cols);
    case WF_OP_lean_edges: {
        double messages = op->out[2] != NULL ? in[4]->rows : 2.0 * in[0]->cols;
        return edges * (4.0 * messages * in[0]->cols + 3.0 * in[5]->rows * in[5]->cols);
    }
    case WF_OP_lstar_messages:
        return edges * 4.0 * (in[4]->rows * (double)in[4]->cols + 2.0 * in[5]->rows * in[5]->cols);
    case WF_OP_lstar_edges:
        return edges * (4.0 * in[4]->rows * in[4]->cols + 4.0 * in[5]->rows * in[5]->cols +
                        3.0 * in[7]->rows * in[7]->cols);
    default: return 0;
    }
}

double wf_tape_flops(const wf_tape *tape) {
    double sum = 0;
    for (const wf_op *op = tape->last; op != NULL; op = op->previous) sum += 2 * op_products(op);
    return sum;
}

void wf_tape_run(wf_tape *tape, wf_op *op) {
    if (wf_interrupted(tape->watched)) tape->failed = true;
    if (tape->failed || tape->shapes) return;
    op->ctx = tape->ctx;
    op->backend = tape->backend;
    run_op(tape, tape->backend->forward[op->kind], op);
    if (!tape->keep || tape->failed) return;
    wf_op *record = wf_tape_host(tape, sizeof *record);
    if (record == NULL) return;
    *record = *op;
    record->previous = tape->last;
    tape->last = record;
}
