#include "nn/layers.h"

#include "weft/text.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void wf_net_declare(wf_net *net, wf_tape *tape, wf_params *list) {
    *net = (wf_net){.tape = tape, .list = list, .declares = true};
    wf_tape_start(tape, wf_backend_cpu(WF_F32), WF_F32, false);
    tape->shapes = true;
}

void wf_net_start(wf_net *net, wf_tape *tape, const wf_params *list, const void *params,
                  const wf_dropout_key *key) {
    *net = (wf_net){.tape = tape, .list = (wf_params *)list, .params = params};
    net->training = key != NULL;
    if (key != NULL) net->key = *key;
    net->views = wf_tape_host(tape, (size_t)(list->count + 1) * sizeof *net->views);
}

bool wf_net_backward(wf_net *net, void *grad) {
    wf_tape *tape = net->tape;
    assert(tape->keep && net->next == net->list->count);
    wf_tape_zero(tape, grad, net->list->total * tape->size);
    for (int i = 0; i < net->list->count; i++) {
        net->views[i]->grad = (char *)grad + net->list->tensors[i].offset * tape->size;
        net->views[i]->grad_set = true;
    }
    return wf_tape_backward(tape);
}

bool wf_net_backward_activations(wf_net *net) {
    wf_tape *tape = net->tape;
    assert(tape->keep && net->next == net->list->count);
    for (int i = 0; i < net->list->count; i++) net->views[i]->wants = false;
    tape->keep_gradients = true;
    bool done = wf_tape_backward(tape);
    tape->watched = NULL; /* work that other processes wait for is not interrupted */
    return done;
}

/* Rows first .. first+rows-1 of a table. */
static void add_table_rows(const wf_op *op, size_t first, size_t rows, float *running) {
    const wf_tensor *table = op->in[1], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) {
        size_t row = op->map[r] - first;
        if (op->map[r] < first || row >= rows) continue;
        const float *dy = (const float *)y->grad + (size_t)r * (size_t)y->ld + op->column;
        for (int c = 0; c < table->cols; c++) running[row * (size_t)table->cols + c] += dy[c];
    }
}

/* Rows of input `which` of an operation. Those of a linear layer's weight and bias are columns of
 * its result; of other operations all rows are added together. */
static bool add_rows(wf_tape *tape, const wf_op *op, int which, size_t first, size_t rows,
                     float *running) {
    wf_tensor in[WF_OP_INPUTS], out = *op->out[0];
    if (out.grad == NULL) return true; /* the result is not read */
    if (op->kind == WF_OP_add_table) {
        add_table_rows(op, first, rows, running);
        return true;
    }
    wf_op some = *op;
    for (int k = 0; k < WF_OP_INPUTS; k++) {
        if (op->in[k] == NULL) continue;
        in[k] = *op->in[k];
        in[k].wants = k == which;
        some.in[k] = &in[k];
    }
    assert(op->kind == WF_OP_linear || rows == (size_t)in[which].rows);
    if (op->kind == WF_OP_linear) {
        out.grad = (float *)out.grad + first;
        out.cols = in[which].rows = (int)rows;
    }
    in[which].grad = running;
    some.out[0] = &out;
    return wf_tape_backward_of(tape, &some);
}

static bool add_tensor_rows(wf_net *net, int tensor, size_t first, size_t rows, float *running) {
    for (const wf_op *op = net->tape->last; op != NULL; op = op->previous)
        for (int k = 0; k < WF_OP_INPUTS; k++)
            if (op->in[k] == net->views[tensor])
                return add_rows(net->tape, op, k, first, rows, running);
    return true;
}

bool wf_net_add_gradient(wf_net *net, size_t first, size_t n, float *running) {
    for (int i = 0; i < net->list->count; i++) {
        const wf_field_tensor *tensor = &net->list->tensors[i];
        size_t start = tensor->offset, cols = (size_t)tensor->cols;
        size_t end = start + (size_t)tensor->rows * cols;
        size_t from = first > start ? first : start, to = first + n < end ? first + n : end;
        if (from >= to) continue;
        if (!add_tensor_rows(net, i, (from - start) / cols, (to - from) / cols,
                             running + (from - first)))
            return false;
    }
    return true;
}

void wf_net_scope(wf_net *net, const char *format, ...) {
    net->scope[0] = '\0';
    if (format == NULL) return;
    va_list args;
    va_start(args, format);
    vsnprintf(net->scope, sizeof net->scope, format, args);
    va_end(args);
}

wf_net_place wf_net_here(const wf_net *net) {
    if (!net->declares) return (wf_net_place){net->next, net->next_buffer};
    return (wf_net_place){net->list->count, net->buffers != NULL ? net->buffers->count : 0};
}

void wf_net_go(wf_net *net, wf_net_place place) {
    assert(!net->declares && !net->tape->keep);
    net->next = place.tensor;
    net->next_buffer = place.buffer;
}

/* The next parameter, as a view without padding: a matrix (rows, cols), or a vector (length, 1).
 * Only name, rows, cols, matrix, decay, start and spread are read; the scope is put before the
 * name. */
static wf_tensor *next_param(wf_net *net, const wf_field_tensor *tensor) {
    wf_tape *tape = net->tape;
    if (net->declares) {
        wf_field_tensor named = *tensor;
        wf_text full = wf_text_start(named.name, sizeof named.name);
        wf_text_add(&full, "%s%s", net->scope, tensor->name);
        assert(!full.cut);
        wf_params_add(net->list, &named);
        return wf_tape_view(tape, NULL, NULL, tensor->rows, tensor->cols);
    }
    const wf_field_tensor *own = &net->list->tensors[net->next];
    assert(net->next < net->list->count && own->rows == tensor->rows && own->cols == tensor->cols);
    char *data = (char *)net->params + own->offset * tape->size;
    wf_tensor *view = wf_tape_view(tape, data, NULL, own->rows, own->cols);
    if (view == NULL) return NULL;
    view->wants = tape->keep; /* wf_net_backward says where the gradient goes */
    return net->views[net->next++] = view;
}

static const uint32_t *row_map(wf_net *net, int sequences, int tokens, bool places) {
    size_t count = (size_t)sequences * (size_t)tokens;
    uint32_t *map = wf_tape_host(net->tape, (count + 1) * sizeof *map);
    for (size_t r = 0; map != NULL && r < count; r++)
        map[r] = (uint32_t)(places ? r % (size_t)tokens : r / (size_t)tokens);
    return map == NULL ? NULL : wf_tape_upload(net->tape, map, count * sizeof *map);
}
const uint32_t *wf_net_sequences(wf_net *net, int sequences, int tokens) {
    return row_map(net, sequences, tokens, false);
}
const uint32_t *wf_net_places(wf_net *net, int sequences, int tokens) {
    return row_map(net, sequences, tokens, true);
}

static wf_tensor *named_param(wf_net *net, const char *name, const char *part, int rows, int cols,
                              wf_start start, double spread, bool decay, bool matrix) {
    wf_field_tensor tensor = {.rows = rows,
                              .cols = cols,
                              .start = start,
                              .spread = spread,
                              .decay = decay,
                              .matrix = matrix};
    wf_text full = wf_text_start(tensor.name, sizeof tensor.name);
    wf_text_add(&full, "%s%s", name, part);
    return next_param(net, &tensor);
}

/* How a weight of so many inputs and outputs starts, and its bias. */
typedef struct start_pair {
    wf_start weight, bias;
    double spread;
} start_pair;
static start_pair starts(wf_layer_options o, int in, int out) {
    switch (o.init) {
    case WF_INIT_TORCH:
        return (start_pair){WF_START_UNIFORM, WF_START_UNIFORM, 1 / sqrt((double)in)};
    case WF_INIT_XAVIER:
        return (start_pair){WF_START_UNIFORM, WF_START_ZERO, sqrt(6 / ((double)in + out))};
    case WF_INIT_NORMAL: return (start_pair){WF_START_NORMAL, WF_START_ZERO, o.std};
    default: return (start_pair){WF_START_ZERO, WF_START_ZERO, 0};
    }
}

/* NAME.weight (rows, cols) and NAME.bias of a layer with so many inputs and outputs; false: no
 * memory. */
static bool affine_params(wf_net *net, const char *name, int rows, int cols, int in, int out,
                          wf_layer_options o, wf_tensor **weight, wf_tensor **bias) {
    start_pair s = starts(o, in, out);
    *weight = named_param(net, name, ".weight", rows, cols, s.weight, s.spread, true, o.matrix);
    *bias = NULL;
    if (!o.no_bias) *bias = named_param(net, name, ".bias", out, 1, s.bias, s.spread, false, false);
    return !net->tape->failed;
}

wf_tensor *wf_layer_linear(wf_net *net, const char *name, wf_tensor *x, int out,
                           wf_layer_options o) {
    wf_tensor *weight, *bias;
    if (net->tape->failed) return NULL;
    if (!affine_params(net, name, out, x->cols, x->cols, out, o, &weight, &bias)) return NULL;
    return wf_linear(net->tape, &(wf_linear_desc){.x = {x}, .weight = {weight}, .bias = bias});
}

static const char *joined(char *out, size_t size, const char *name, const char *part) {
    wf_text full = wf_text_start(out, size);
    wf_text_add(&full, "%s%s", name, part);
    return out;
}

wf_tensor *wf_layer_mlp(wf_net *net, const char *name, wf_tensor *x, int hidden, int out,
                        wf_tape_act act, wf_layer_options o) {
    char full[40];
    x = wf_layer_linear(net, joined(full, sizeof full, name, ".0"), x, hidden, o);
    x = wf_activation_op(net->tape, x, act);
    return wf_layer_linear(net, joined(full, sizeof full, name, ".2"), x, out, o);
}

wf_status wf_layer_check_time(wf_ctx *ctx, int width) {
    if (width % 2 == 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE, "model.time is %d; it must be even (cosines, then sines)",
                   width);
}

wf_status wf_layer_check_heads(wf_ctx *ctx, int width, int heads) {
    if (width % heads == 0) return WF_OK;
    return wf_fail(
        ctx, WF_ERR_USAGE,
        "model.width is %d; model.heads, %d, must divide it: each head has an equal part", width,
        heads);
}

wf_tensor *wf_layer_time(wf_net *net, const char *name, wf_tensor *t, int width,
                         wf_layer_options o) {
    return wf_layer_mlp(net, name, wf_time_features(net->tape, t, width, WF_TIME_FREQUENCY), width,
                        width, WF_TAPE_ACT_SILU, o);
}

wf_tensor *wf_layer_layer_norm(wf_net *net, const char *name, wf_tensor *x, bool with_bias,
                               double eps) {
    if (net->tape->failed) return NULL;
    wf_tensor *weight =
        named_param(net, name, ".weight", x->cols, 1, WF_START_ONE, 0, false, false);
    wf_tensor *bias =
        with_bias ? named_param(net, name, ".bias", x->cols, 1, WF_START_ZERO, 0, false, false)
                  : NULL;
    return wf_layer_norm(net->tape, x, weight, bias, eps);
}

wf_tensor *wf_layer_attention(wf_net *net, const char *name, wf_tensor *x, int heads, int tokens,
                              wf_layer_options o, wf_layer_options last) {
    if (net->tape->failed) return NULL;
    char full[40];
    int width = x->cols;
    x = wf_layer_linear(net, joined(full, sizeof full, name, ".qkv"), x, 3 * width, o);
    x = wf_attention(net->tape, x, heads, tokens);
    return wf_layer_linear(net, joined(full, sizeof full, name, ".proj"), x, width, last);
}

wf_tensor *wf_layer_table(wf_net *net, const char *name, int rows, int cols, double std) {
    return named_param(net, name, "", rows, cols, WF_START_NORMAL, std, false, false);
}

wf_tensor *wf_layer_dropout(wf_net *net, wf_tensor *x, double p) {
    return wf_dropout(net->tape, x, p, net->sites++, net->training ? &net->key : NULL);
}

/* Means start at 0, variances at 1. */
static wf_tensor *running_statistics(wf_net *net, const char *name, int columns) {
    wf_tape *tape = net->tape;
    if (!net->declares) {
        const wf_field_tensor *mean = &net->buffers->tensors[net->next_buffer];
        assert(net->next_buffer + 1 < net->buffers->count && mean->rows == columns);
        net->next_buffer += 2;
        return wf_tape_view(tape, (char *)net->statistics + mean->offset * tape->size, NULL, 2,
                            columns);
    }
    for (int part = 0; part < 2; part++) {
        wf_field_tensor tensor = {.rows = columns, .cols = 1};
        tensor.start = part ? WF_START_ONE : WF_START_ZERO;
        wf_text full = wf_text_start(tensor.name, sizeof tensor.name);
        wf_text_add(&full, "%s%s.%s", net->scope, name, part ? "running_var" : "running_mean");
        wf_params_add(net->buffers, &tensor);
    }
    return wf_tape_view(tape, NULL, NULL, 2, columns);
}

wf_tensor *wf_layer_batch_norm(wf_net *net, const char *name, wf_tensor *x) {
    if (net->tape->failed) return NULL;
    wf_tensor *weight =
        named_param(net, name, ".weight", x->cols, 1, WF_START_ONE, 0, false, false);
    wf_tensor *bias = named_param(net, name, ".bias", x->cols, 1, WF_START_ZERO, 0, false, false);
    wf_tensor *running = running_statistics(net, name, x->cols);
    if (net->tape->failed) return NULL;
    return wf_batch_norm(net->tape, x, weight, bias, running, net->training, 1e-5);
}

wf_tensor *wf_layer_conv1d(wf_net *net, const char *name, wf_tensor *x, int out,
                           const wf_conv1d_desc *desc, wf_layer_options o) {
    wf_tensor *weight, *bias;
    if (net->tape->failed) return NULL;
    int width = desc->kernel * x->cols;
    if (!affine_params(net, name, out, width, width, out, o, &weight, &bias)) return NULL;
    return wf_conv1d(net->tape, x, weight, bias, desc);
}

wf_tensor *wf_layer_conv1d_transposed(wf_net *net, const char *name, wf_tensor *x, int out,
                                      const wf_conv1d_desc *desc, wf_layer_options o) {
    wf_tensor *weight, *bias;
    if (net->tape->failed) return NULL;
    int width = desc->kernel * out; /* what PyTorch takes for the inputs of a result, too */
    if (!affine_params(net, name, x->cols, width, width, out, o, &weight, &bias)) return NULL;
    return wf_conv1d_transposed(net->tape, x, weight, bias, desc);
}
