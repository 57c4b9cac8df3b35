/* tape: constructors of all operations, and the backward pass. Data types and backends appear only
 * as sizes and tables. */
#include "tensor/tape.h"

#include <assert.h>
#include <string.h>

void wf_tape_start(wf_tape *tape, const wf_backend *backend, wf_dtype dtype, bool keep) {
    wf_arena_reset(&tape->arena);
    wf_arena_reset(&tape->uploads);
    wf_arena_reset(&tape->records);
    tape->arena.source = tape->uploads.source = backend->memory;
    tape->backend = backend;
    tape->size = dtype == WF_F64 ? sizeof(double) : sizeof(float);
    tape->keep = keep;
    tape->failed = tape->shapes = false;
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
    static char nothing; /* behind shapes */
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

/* Kernels read and write whole vectors, so there is room for one vector behind the last row. */
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
    if (tensor->shares != NULL || !tensor->grad_own || tape->spares == WF_TAPE_SPARES) return;
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

bool wf_tape_backward(wf_tape *tape) {
    for (wf_op *op = tape->last; op != NULL && !tape->failed; op = op->previous) {
        if (wf_interrupted(tape->watched)) return false;
        bool reached = false;
        for (int i = 0; i < WF_OP_OUTPUTS; i++)
            if (op->out[i] != NULL) reached |= gradient_root(op->out[i])->grad_set;
        if (!reached) continue;
        for (int i = 0; i < WF_OP_OUTPUTS; i++)
            if (op->out[i] != NULL && !gradient_ready(tape, op->out[i])) return false;
        for (int i = 0; i < WF_OP_INPUTS; i++)
            if (op->in[i] != NULL && op->in[i]->wants && !gradient_ready(tape, op->in[i]))
                return false;
        wf_arena_mark mark = wf_arena_here(&tape->arena);
        if (!tape->backend->backward[op->kind](op, &tape->arena)) tape->failed = true;
        wf_arena_rewind(&tape->arena, mark);
        for (int i = 0; i < WF_OP_OUTPUTS; i++)
            if (op->out[i] != NULL) spare_gradient(tape, op->out[i]);
    }
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

/* Runs an operation whose outputs are allocated, and records it for backward. */
static void run(wf_tape *tape, wf_op *op) {
    if (wf_interrupted(tape->watched)) tape->failed = true;
    if (tape->failed || tape->shapes) return;
    op->ctx = tape->ctx;
    op->backend = tape->backend;
    wf_arena_mark mark = wf_arena_here(&tape->arena);
    if (!tape->backend->forward[op->kind](op, &tape->arena)) tape->failed = true;
    wf_arena_rewind(&tape->arena, mark);
    if (!tape->keep || tape->failed) return;
    wf_op *record = wf_tape_host(tape, sizeof *record);
    if (record == NULL) return;
    *record = *op;
    record->previous = tape->last;
    tape->last = record;
}

static bool any_wants(const wf_op *op) {
    for (int i = 0; i < WF_OP_INPUTS; i++)
        if (op->in[i] != NULL && op->in[i]->wants) return true;
    return false;
}

static wf_tensor *output(wf_tape *tape, const wf_op *op, int rows, int cols) {
    return wf_tape_tensor(tape, rows, cols, any_wants(op));
}

/* The output of a residual operation: without keep in place, else new data with the gradient of the
 * stream that it continues. */
static wf_tensor *continued(wf_tape *tape, const wf_op *op, wf_tensor *stream) {
    if (!tape->keep) return stream;
    wf_tensor *tensor = output(tape, op, stream->rows, stream->cols);
    if (tensor != NULL) tensor->shares = gradient_root(stream);
    return tensor;
}

wf_tensor *wf_linear(wf_tape *tape, const wf_linear_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_linear, .scale = desc->scale, .map = desc->map};
    for (int k = 0; k < 4; k++) {
        op.in[2 * k] = desc->x[k];
        op.in[2 * k + 1] = desc->weight[k];
        assert(desc->x[k] == NULL ||
               (desc->x[k]->cols == desc->weight[k]->cols && desc->x[k]->rows == desc->x[0]->rows &&
                desc->weight[k]->rows == desc->weight[0]->rows));
    }
    op.in[8] = desc->bias;
    op.in[9] = desc->table;
    op.out[0] = output(tape, &op, desc->x[0]->rows, desc->weight[0]->rows);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_activation_op(wf_tape *tape, wf_tensor *x, wf_tape_act act) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_activation, .in = {x}, .act = (int)act};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_norm_op(wf_tape *tape, wf_tensor *x, wf_tensor *modulation, int column,
                      const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(modulation == NULL || column + 2 * x->cols <= modulation->cols);
    wf_op op = {.kind = WF_OP_norm, .in = {x, modulation}, .column = column, .map = map};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation, int column,
                       const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->rows == r->rows && x->cols == r->cols);
    wf_op op = {.kind = WF_OP_residual, .in = {x, r, modulation}, .column = column, .map = map};
    op.out[0] = continued(tape, &op, x);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_mean_op(wf_tape *tape, wf_tensor *x, int graphs, const uint32_t *start) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_mean, .in = {x}, .start = start};
    op.out[0] = output(tape, &op, graphs, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_gather(wf_tape *tape, wf_tensor *table, int rows, const uint32_t *map) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_gather, .in = {table}, .map = map};
    op.out[0] = output(tape, &op, rows, table->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_insert(wf_tape *tape, wf_tensor *x, wf_tensor *rows, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->cols == rows->cols);
    wf_op op = {.kind = WF_OP_insert, .in = {x, rows}, .map = map};
    op.out[0] = continued(tape, &op, x);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_time_features(wf_tape *tape, wf_tensor *t, int width, double frequency) {
    if (tape->failed) return NULL;
    assert(width % 2 == 0);
    wf_op op = {.kind = WF_OP_time_features, .in = {t}, .value = frequency};
    op.out[0] = output(tape, &op, t->rows, width);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_null_rows(wf_tape *tape, wf_tensor *x, wf_tensor *null, const uint8_t *flags) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_null_rows, .in = {x, null}, .flags = flags};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_logit(wf_tape *tape, wf_tensor *a, wf_tensor *m) {
    if (tape->failed) return NULL;
    assert(a->cols == m->rows);
    wf_op op = {.kind = WF_OP_logit, .in = {a, m}};
    op.out[0] = output(tape, &op, 1, m->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_edge_features(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_features,
                .in = {desc->w, desc->a, desc->b},
                .mode = (int)desc->code,
                .part = part};
    for (int k = 0; k < WF_KERNELS; k++) {
        op.in[3 + 2 * k] = desc->kernel_a[k];
        op.in[4 + 2 * k] = desc->kernel_b[k];
    }
    op.out[0] = output(tape, &op, part->n_edges, desc->width);
    run(tape, &op);
    return op.out[0];
}

static bool fuses(const wf_tape *tape, wf_op *op) {
    op->backend = tape->backend;
    return tape->backend->fuses != NULL && tape->backend->fuses(op);
}

wf_tensor *wf_edge_encoder(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc,
                           wf_tensor *weight, wf_tensor *table, const uint32_t *map) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_encoder,
                .in = {desc->w, desc->a, desc->b, weight, table},
                .mode = (int)desc->code,
                .map = map,
                .part = part};
    if (desc->kernel_a[0] != NULL || !fuses(tape, &op)) {
        wf_tensor *code = wf_edge_features(tape, part, desc);
        return wf_linear(
            tape, &(wf_linear_desc){.x = {code}, .weight = {weight}, .table = table, .map = map});
    }
    op.out[0] = output(tape, &op, part->n_edges, weight->rows);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_edge_readout(wf_tape *tape, const wf_edge_readout_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_readout,
                .in = {desc->e, desc->weight, desc->bias, desc->last_weight, desc->last_bias},
                .act = (int)desc->act};
    if (!fuses(tape, &op)) {
        wf_tensor *x = wf_norm_op(tape, desc->e, NULL, 0, NULL);
        x = wf_linear(tape,
                      &(wf_linear_desc){.x = {x}, .weight = {desc->weight}, .bias = desc->bias});
        x = wf_activation_op(tape, x, desc->act);
        return wf_linear(
            tape,
            &(wf_linear_desc){.x = {x}, .weight = {desc->last_weight}, .bias = desc->last_bias});
    }
    op.out[0] = output(tape, &op, desc->e->rows, desc->last_weight->rows);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_fold_pack(wf_tape *tape, const wf_part *part, wf_tensor *w, int columns) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_fold_pack, .in = {w}, .part = part};
    op.out[0] = output(tape, &op, part->n_fold_rows, columns);
    run(tape, &op);
    return op.out[0];
}

void wf_velocity(wf_tape *tape, const wf_part *part, wf_tensor *single,
                 wf_tensor *const kernel[WF_KERNELS], wf_tensor *fold, wf_tensor *v) {
    if (tape->failed) return;
    wf_op op = {.kind = WF_OP_velocity, .in = {fold, single}, .out = {v}, .part = part};
    for (int k = 0; k < WF_KERNELS; k++) op.in[2 + k] = kernel[k];
    run(tape, &op);
}

wf_lean_out wf_lean_edges(wf_tape *tape, const wf_part *part, const wf_lean_desc *desc) {
    wf_lean_out out = {NULL, NULL, NULL, NULL};
    if (tape->failed) return out;
    wf_op op = {.kind = WF_OP_lean_edges,
                .in = {desc->e, desc->modulation, desc->ad, desc->as, desc->w1, desc->w2, desc->c2,
                       desc->vf, desc->vb},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    assert(desc->w1->rows == desc->messages + 2 * desc->e->cols);
    out.e = op.out[0] = continued(tape, &op, desc->e);
    out.mean = op.out[1] = output(tape, &op, part->n_graphs, desc->e->cols);
    if (desc->sums) {
        out.to_dst = op.out[2] = output(tape, &op, part->n_nodes, desc->messages);
        out.to_src = op.out[3] = output(tape, &op, part->n_nodes, desc->messages);
        op.saved = wf_tape_alloc(tape, 2 * (size_t)part->n_nodes * tape->size);
    }
    run(tape, &op);
    return out;
}

wf_lstar_messages_out wf_lstar_messages(wf_tape *tape, const wf_part *part,
                                        const wf_lstar_messages_desc *desc) {
    wf_lstar_messages_out out = {NULL, NULL};
    if (tape->failed) return out;
    wf_op op = {.kind = WF_OP_lstar_messages,
                .in = {desc->e, desc->modulation, desc->ai, desc->aj, desc->me, desc->m2, desc->b2,
                       desc->v},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    out.sum = op.out[0] = output(tape, &op, part->n_nodes, desc->m2->rows);
    out.mean = op.out[1] = output(tape, &op, part->n_graphs, desc->e->cols);
    op.saved = wf_tape_alloc(tape, 2 * (size_t)part->n_nodes * tape->size);
    run(tape, &op);
    return out;
}

wf_tensor *wf_lstar_edges(wf_tape *tape, const wf_part *part, const wf_lstar_edges_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_lstar_edges,
                .in = {desc->e, desc->modulation, desc->ci, desc->cj, desc->ee, desc->e2, desc->c2,
                       desc->e3, desc->c3},
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    op.out[0] = continued(tape, &op, desc->e);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_layer_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         double eps) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_layer_norm, .in = {x, weight, bias}, .value = eps};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_gated_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation,
                             int column, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->rows == r->rows && x->cols == r->cols && column + x->cols <= modulation->cols);
    wf_op op = {
        .kind = WF_OP_gated_residual, .in = {x, r, modulation}, .column = column, .map = map};
    op.out[0] = continued(tape, &op, x);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_attention(wf_tape *tape, wf_tensor *qkv, int heads, int tokens) {
    if (tape->failed) return NULL;
    assert(qkv->cols % (3 * heads) == 0 && qkv->rows % tokens == 0);
    wf_op op = {.kind = WF_OP_attention, .in = {qkv}, .heads = heads, .tokens = tokens};
    op.out[0] = output(tape, &op, qkv->rows, qkv->cols / 3);
    /* the logarithm of each row's sum of exponentials */
    op.saved = wf_tape_alloc(tape, (size_t)qkv->rows * (size_t)heads * tape->size);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_dropout(wf_tape *tape, wf_tensor *x, double p, int site, const wf_dropout_key *key) {
    if (tape->failed || key == NULL) return tape->failed ? NULL : x;
    assert(p >= 0 && p < 1 && site >= 0 && site < 256);
    wf_op op = {.kind = WF_OP_dropout, .in = {x}, .value = p, .mode = site, .key = *key};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_add_table(wf_tape *tape, wf_tensor *x, wf_tensor *table, int column,
                        const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(column + table->cols <= x->cols);
    wf_op op = {.kind = WF_OP_add_table, .in = {x, table}, .column = column, .map = map};
    op.out[0] = continued(tape, &op, x);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_add_column(wf_tape *tape, wf_tensor *x, wf_tensor *s) {
    if (tape->failed) return NULL;
    assert(s->cols == 1 && s->rows == x->rows);
    wf_op op = {.kind = WF_OP_add_column, .in = {x, s}};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_concat(wf_tape *tape, wf_tensor *const *x, int count) {
    if (tape->failed) return NULL;
    assert(count > 0 && count <= WF_OP_INPUTS);
    wf_op op = {.kind = WF_OP_concat};
    int cols = 0;
    for (int k = 0; k < count; k++) {
        assert(x[k]->rows == x[0]->rows);
        op.in[k] = x[k];
        cols += x[k]->cols;
    }
    op.out[0] = output(tape, &op, x[0]->rows, cols);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_to_tokens(wf_tape *tape, wf_tensor *x, int tokens, int width, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(map != NULL || (size_t)tokens * (size_t)width >= (size_t)x->cols);
    wf_op op = {.kind = WF_OP_to_tokens, .in = {x}, .tokens = tokens, .map = map};
    op.out[0] = output(tape, &op, x->rows * tokens, width);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_from_tokens(wf_tape *tape, wf_tensor *x, int tokens, int columns, const uint32_t *map,
                          wf_tensor *out) {
    if (tape->failed) return NULL;
    assert(x->rows % tokens == 0);
    assert(out == NULL || (out->rows == x->rows / tokens && out->cols == columns));
    wf_op op = {.kind = WF_OP_from_tokens, .in = {x}, .tokens = tokens, .map = map};
    op.out[0] = out != NULL ? out : output(tape, &op, x->rows / tokens, columns);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_batch_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         wf_tensor *running, bool training, double eps) {
    if (tape->failed) return NULL;
    assert(running->rows * running->cols == 2 * x->cols);
    wf_op op = {
        .kind = WF_OP_batch_norm, .in = {x, weight, bias, running}, .mode = training, .value = eps};
    op.out[0] = output(tape, &op, x->rows, x->cols);
    op.saved = wf_tape_alloc(tape, 2 * (size_t)x->cols * tape->size);
    run(tape, &op);
    return op.out[0];
}

static wf_tensor *convolve(wf_tape *tape, wf_op *op, int length, int columns) {
    const wf_conv1d_desc *d = &op->conv;
    assert(op->in[0]->rows % d->length == 0 && d->stride > 0 && d->padding < d->kernel);
    op->out[0] = output(tape, op, op->in[0]->rows / d->length * length, columns);
    run(tape, op);
    return op->out[0];
}

wf_tensor *wf_conv1d(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                     const wf_conv1d_desc *d) {
    if (tape->failed) return NULL;
    assert(weight->cols == d->kernel * x->cols && d->length + 2 * d->padding >= d->kernel);
    wf_op op = {.kind = WF_OP_conv1d, .in = {x, weight, bias}, .conv = *d};
    int windows = (d->length + 2 * d->padding - d->kernel) / d->stride + 1;
    return convolve(tape, &op, windows, weight->rows);
}

wf_tensor *wf_conv1d_transposed(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                                const wf_conv1d_desc *d) {
    if (tape->failed) return NULL;
    assert(weight->rows == x->cols && weight->cols % d->kernel == 0);
    wf_op op = {.kind = WF_OP_conv1d_transposed, .in = {x, weight, bias}, .conv = *d};
    int positions = (d->length - 1) * d->stride - 2 * d->padding + d->kernel + d->output_padding;
    return convolve(tape, &op, positions, weight->cols / d->kernel);
}

wf_tensor *wf_mse(wf_tape *tape, wf_tensor *x, wf_tensor *target, wf_tensor *mask) {
    if (tape->failed) return NULL;
    assert(x->rows == target->rows && x->cols == target->cols);
    assert(mask == NULL || (x->rows == mask->rows && x->cols == mask->cols));
    wf_op op = {.kind = WF_OP_mse, .in = {x, target, mask}};
    op.out[0] = output(tape, &op, 1, 1);
    run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_nt_xent(wf_tape *tape, wf_tensor *z, double temperature) {
    if (tape->failed) return NULL;
    assert(z->rows >= 2 && z->rows % 2 == 0);
    wf_op op = {.kind = WF_OP_nt_xent, .in = {z}, .value = temperature};
    op.out[0] = output(tape, &op, 1, 1);
    run(tape, &op);
    return op.out[0];
}
