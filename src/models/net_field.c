#include "models/net_field.h"

#include <stdlib.h>
#include <string.h>

typedef struct net_field {
    wf_field base;
    wf_net_walk *walk;
    void *options;
    wf_params list;
    int width; /* parameters of a network */
    uint32_t *weights_first;
    uint32_t update; /* of the last forward: dropout's key points here */
    wf_tape tape;
    wf_net net;
    wf_tensor *w, *v;
    bool ready; /* a forward with keep stands */
} net_field;

static net_field *own(wf_field *field) { return (net_field *)field; }

/* The parameters of the model for networks of `width`. A file may lie about widths: nothing of their size is allocated. */
static wf_status declare(wf_ctx *ctx, net_field *field) {
    wf_tape *tape = &field->tape;
    wf_net_declare(&field->net, tape, &field->list);
    wf_net_inputs in = {
        .networks = 1, .params = field->width, .weights_first = field->weights_first};
    in.w = wf_tape_view(tape, NULL, NULL, 1, field->width);
    in.t = wf_tape_view(tape, NULL, NULL, 1, 1);
    in.v = wf_tape_view(tape, NULL, NULL, 1, field->width);
    field->walk(&field->net, field->options, &in);
    if (tape->failed || field->list.failed)
        return wf_fail(ctx, WF_ERR_MEMORY, "no memory for the list of the field's parameters");
    return WF_OK;
}

static void order_weights_first(const wf_graph *graph, uint32_t *places) {
    for (int weights = 1; weights >= 0; weights--)
        for (int i = 0; i < graph->n_blocks; i++) {
            const wf_block *block = &graph->blocks[i];
            if ((block->kind == WF_BLOCK_WEIGHT) != weights) continue;
            for (size_t k = 0; k < block->count; k++) *places++ = (uint32_t)(block->offset + k);
        }
}

wf_status wf__net_field_create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                               const wf_graph *graph, wf_dtype dtype, size_t params, uint64_t seed,
                               bool decay_all, wf_net_walk *walk, wf_field **out) {
    *out = NULL;
    if (graph == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: it is made for networks of one architecture",
                       kind->name);
    if (graph->n_params > INT32_MAX)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: networks of %zu parameters are too large",
                       kind->name, graph->n_params);
    net_field *field;
    wf_status status;
    WF_TRY(wf_alloc(ctx, 1, sizeof *field, "a velocity field", &field));
    field->base.kind = kind;
    WF_TRY_GOTO(wf_alloc(ctx, 1, kind->options_size, "a field's settings", &field->options), bad);
    memcpy(field->options, options, kind->options_size);
    field->walk = walk;
    field->width = (int)graph->n_params;
    WF_TRY_GOTO(wf_alloc(ctx, graph->n_params, sizeof *field->weights_first,
                         "the order of the parameters", &field->weights_first),
                bad);
    order_weights_first(graph, field->weights_first);
    WF_TRY_GOTO(declare(ctx, field), bad);
    for (int i = 0; i < field->list.count; i++) field->list.tensors[i].decay |= decay_all;
    if (params != 0 && params != field->list.total) {
        status = wf_fail(ctx, WF_ERR_INPUT,
                         "the field it describes has %zu parameters, the file stores %zu",
                         field->list.total, params);
        goto bad;
    }
    field->base = (wf_field){.kind = kind,
                             .dtype = dtype,
                             .params = field->list.total,
                             .tensors = field->list.tensors,
                             .n_tensors = field->list.count,
                             .seed = seed};
    *out = &field->base;
    return WF_OK;
bad:
    wf__net_field_free(&field->base);
    return status;
}

void wf__net_field_free(wf_field *base) {
    net_field *field = own(base);
    wf_tape_free(&field->tape);
    wf_params_free(&field->list);
    free(field->weights_first);
    free(field->options);
    free(field);
}

void wf__net_field_init(const wf_field *field, uint64_t seed, void *params) {
    wf_params_init(field->tensors, field->n_tensors, field->dtype, seed, params);
}

static wf_status no_memory(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_MEMORY,
                   "field: no memory for the activations of the batch; use smaller batches or a "
                   "smaller field");
}

/* t as a tensor whose rows are padded. */
static wf_tensor *times(wf_tape *tape, wf_dtype dtype, const void *t, int count) {
    wf_tensor *out = wf_tape_blank(tape, count, 1);
    for (int i = 0; out != NULL && i < count; i++) {
        size_t at = (size_t)i * (size_t)out->ld;
        if (dtype == WF_F64) ((double *)out->data)[at] = ((const double *)t)[i];
        else ((float *)out->data)[at] = ((const float *)t)[i];
    }
    return wf_tape_filled(tape, out);
}

wf_status wf__net_field_forward(wf_ctx *ctx, wf_field *base, const void *params,
                                const wf_field_input *input, void *v) {
    net_field *field = own(base);
    const wf_batch *batch = input->batch;
    field->ready = false;
    if (batch->n_graphs < 1) return wf_fail(ctx, WF_ERR_SHAPE, "field: a batch without networks");
    if (batch->n_params != (size_t)batch->n_graphs * (size_t)field->width)
        return wf_fail(ctx, WF_ERR_SHAPE,
                       "%s: it is made for networks of %d parameters; the batch has others",
                       base->kind->name, field->width);
    wf_tape *tape = &field->tape;
    wf_tape_start(tape, wf_backend_cpu(base->dtype), base->dtype, input->keep);
    tape->ctx = ctx;
    tape->watched = ctx;
    field->update = input->update;
    wf_dropout_key key = {.seed = input->seed, .update = &field->update};
    wf_net_start(&field->net, tape, &field->list, params, input->training ? &key : NULL);
    wf_net_inputs in = {.networks = batch->n_graphs, .params = field->width};
    in.weights_first = wf_tape_upload(tape, field->weights_first,
                                      (size_t)in.params * sizeof *field->weights_first);
    in.w = field->w = wf_tape_view(tape, (void *)input->w, NULL, in.networks, in.params);
    in.v = field->v = wf_tape_view(tape, v, NULL, in.networks, in.params);
    in.t = times(tape, base->dtype, input->t, in.networks);
    if (tape->failed) return no_memory(ctx);
    in.w->wants = input->keep; /* whether it is really wanted is known when backward is called */
    field->walk(&field->net, field->options, &in);
    if (tape->failed) return no_memory(ctx);
    field->ready = input->keep;
    return WF_OK;
}

wf_status wf__net_field_backward(wf_ctx *ctx, wf_field *base, const void *dv, void *grad,
                                 void *dw) {
    net_field *field = own(base);
    if (!field->ready)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "field: backward without a forward that keeps activations");
    field->ready = false;
    wf_tape *tape = &field->tape;
    wf_tensor *w = field->w, *v = field->v;
    w->wants = w->grad_set = dw != NULL;
    w->grad = dw;
    if (dw != NULL) wf_tape_zero(tape, dw, (size_t)w->rows * (size_t)w->cols * tape->size);
    v->grad = (void *)dv; /* read only */
    v->grad_set = true;
    return wf_net_backward(&field->net, grad) ? WF_OK : no_memory(ctx);
}

double wf__net_field_flops(const wf_field *field) {
    return wf_tape_flops(&((const net_field *)field)->tape);
}
