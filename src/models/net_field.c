#include "models/net_field.h"

#include "base/comm.h"
#include "models/cuda/net_cuda.h"

#include <stdlib.h>
#include <string.h>

typedef struct net_field {
    wf_field base;
    wf_net_model model;
    wf_net_run run;
    uint32_t update; /* of the last forward: dropout's key points here */
    bool ready;      /* a forward with keep stands */
    bool shared;     /* it had some parts of the batch ... */
    size_t first;    /* ... from this parameter of all networks on */
} net_field;

static net_field *own(wf_field *field) { return (net_field *)field; }

/* The parameters of the model for networks of `width`. A file may lie about widths: nothing of
 * their size is allocated. */
static wf_status declare(wf_ctx *ctx, net_field *field) {
    wf_tape *tape = &field->run.tape;
    wf_net_model *model = &field->model;
    wf_net_declare(&field->run.net, tape, &model->list);
    wf_net_inputs in = {
        .networks = 1, .params = model->width, .weights_first = model->weights_first};
    in.w = wf_tape_view(tape, NULL, NULL, 1, model->width);
    in.t = wf_tape_view(tape, NULL, NULL, 1, 1);
    in.v = wf_tape_view(tape, NULL, NULL, 1, model->width);
    model->walk(&field->run.net, model->options, &in);
    if (tape->failed || model->list.failed)
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
    wf_net_model *model = &field->model;
    WF_TRY_GOTO(wf_alloc(ctx, 1, kind->options_size, "a field's settings", &model->options), bad);
    memcpy(model->options, options, kind->options_size);
    model->walk = walk;
    model->width = (int)graph->n_params;
    WF_TRY_GOTO(wf_alloc(ctx, graph->n_params, sizeof *model->weights_first,
                         "the order of the parameters", &model->weights_first),
                bad);
    order_weights_first(graph, model->weights_first);
    WF_TRY_GOTO(declare(ctx, field), bad);
    for (int i = 0; i < model->list.count; i++) model->list.tensors[i].decay |= decay_all;
    if (params != 0 && params != model->list.total) {
        status = wf_fail(ctx, WF_ERR_INPUT,
                         "the field it describes has %zu parameters, the file stores %zu",
                         model->list.total, params);
        goto bad;
    }
    field->base = (wf_field){.kind = kind,
                             .dtype = dtype,
                             .params = model->list.total,
                             .tensors = model->list.tensors,
                             .n_tensors = model->list.count,
                             .seed = seed};
    *out = &field->base;
    return WF_OK;
bad:
    wf__net_field_free(&field->base);
    return status;
}

void wf__net_field_free(wf_field *base) {
    net_field *field = own(base);
    wf_tape_free(&field->run.tape);
    wf_params_free(&field->model.list);
    free(field->model.weights_first);
    free(field->model.options);
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

static wf_status check_batch(wf_ctx *ctx, const net_field *field, const wf_batch *batch) {
    if (batch->n_graphs < 1) return wf_fail(ctx, WF_ERR_SHAPE, "field: a batch without networks");
    if (batch->n_params != (size_t)batch->n_graphs * (size_t)field->model.width)
        return wf_fail(ctx, WF_ERR_SHAPE,
                       "%s: it is made for networks of %d parameters; the batch has others",
                       field->base.kind->name, field->model.width);
    return WF_OK;
}

bool wf__net_run_forward(wf_net_run *run, const wf_net_model *model, int networks,
                         const void *params, const void *w, const void *t,
                         const wf_dropout_key *key, void *v) {
    wf_tape *tape = &run->tape;
    wf_net_start(&run->net, tape, &model->list, params, key);
    wf_net_inputs in = {.networks = networks, .params = model->width};
    in.weights_first = wf_tape_upload(tape, model->weights_first,
                                      (size_t)in.params * sizeof *model->weights_first);
    in.w = run->w = wf_tape_view(tape, (void *)w, NULL, in.networks, in.params);
    in.v = run->v = wf_tape_view(tape, v, NULL, in.networks, in.params);
    in.t = wf_tape_view(tape, (void *)t, NULL, in.networks, 1);
    if (tape->failed) return false;
    in.w->wants = tape->keep; /* whether it is really wanted is known when backward is called */
    model->walk(&run->net, model->options, &in);
    return !tape->failed;
}

bool wf__net_run_backward(wf_net_run *run, const void *dv, void *grad, void *dw) {
    wf_tape *tape = &run->tape;
    wf_tensor *w = run->w, *v = run->v;
    w->wants = w->grad_set = dw != NULL;
    w->grad = dw;
    if (dw != NULL) wf_tape_zero(tape, dw, (size_t)w->rows * (size_t)w->cols * tape->size);
    v->grad = (void *)dv; /* read only */
    v->grad_set = true;
    return grad != NULL ? wf_net_backward(&run->net, grad) : wf_net_backward_activations(&run->net);
}

wf_status wf__net_field_forward(wf_ctx *ctx, wf_field *base, const void *params,
                                const wf_field_input *input, void *v) {
    net_field *field = own(base);
    field->ready = false;
    WF_TRY(check_batch(ctx, field, input->batch));
    wf_tape *tape = &field->run.tape;
    wf_tape_start(tape, wf_backend_cpu(base->dtype), base->dtype, input->keep);
    tape->ctx = ctx;
    tape->watched = ctx;
    field->update = input->update;
    field->shared = input->last_part > 0;
    int start[WF_FIELD_PARTS + 1], first = 0, last = input->batch->n_graphs;
    if (field->shared) {
        wf__net_field_parts(base, input->batch, start);
        first = start[input->first_part];
        last = start[input->last_part];
    }
    size_t size = tape->size;
    field->first = (size_t)first * (size_t)field->model.width;
    /* Fields with dropout have one row a network. */
    wf_dropout_key key = {.seed = input->seed, .update = &field->update, .row = (uint32_t)first};
    if (!wf__net_run_forward(&field->run, &field->model, last - first, params,
                             (const char *)input->w + field->first * size,
                             (const char *)input->t + (size_t)first * size,
                             input->training ? &key : NULL, (char *)v + field->first * size))
        return no_memory(ctx);
    field->ready = input->keep;
    return WF_OK;
}

int wf__net_field_parts(wf_field *field, const wf_batch *batch, int start[WF_FIELD_PARTS + 1]) {
    (void)field;
    int n = batch->n_graphs, parts = n < WF_FIELD_PARTS ? n : WF_FIELD_PARTS;
    for (int p = 0; p <= parts; p++) start[p] = (int)wf_share_start((size_t)n, p, parts);
    return parts;
}

wf_status wf__net_field_backward(wf_ctx *ctx, wf_field *base, const void *dv, void *grad,
                                 void *dw) {
    net_field *field = own(base);
    if (!field->ready)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "field: backward without a forward that keeps activations");
    field->ready = false;
    size_t first = field->first * field->run.tape.size;
    bool done =
        wf__net_run_backward(&field->run, (const char *)dv + first, field->shared ? NULL : grad,
                             dw != NULL ? (char *)dw + first : NULL);
    return done ? WF_OK : no_memory(ctx);
}

bool wf__net_field_add(wf_field *base, size_t first, size_t n, float *running, bool fresh) {
    if (fresh) memset(running, 0, n * sizeof *running);
    return wf_net_add_gradient(&own(base)->run.net, first, n, running);
}

double wf__net_field_flops(const wf_field *field) {
    return wf_tape_flops(&((const net_field *)field)->run.tape);
}

wf_status wf__net_field_record(wf_ctx *ctx, const wf_field *base, const wf_field_program_desc *desc,
                               wf_field_program **out) {
    const net_field *field = (const net_field *)base;
    *out = NULL;
    WF_TRY(check_batch(ctx, field, desc->batch));
    return wf__net_cuda_create(ctx, base, &field->model, desc, out);
}
