#include "flow/objective.h"

#include "base/pool.h"
#include "base/random.h"

/* Of parameter i of network b. */
static inline wf_path_scales scales_of(const wf_flow_batch *batch, size_t b, size_t i) {
    if (batch->axes == NULL) return batch->scale[b];
    return wf_axes_at(&batch->axes[b], batch->path, batch->scale[b], (double)batch->t[b],
                      (uint32_t)i);
}

typedef struct interpolation {
    uint64_t seed;
    uint32_t update;
    wf_flow_batch *batch;
} interpolation;

static void interpolate_network(void *arg, size_t b, int worker) {
    const interpolation *call = arg;
    (void)worker;
    wf_flow_batch *batch = call->batch;
    size_t start = batch->shape->param_start[b], n = batch->shape->param_start[b + 1] - start;
    const float *w0 = batch->w0 + start, *w1 = batch->w1 + start;
    float *wt = batch->wt + start, *x = batch->x + start;
    float t = batch->t[b], q = (float)batch->path->path_noise;
    for (size_t i = 0; i < n; i++) wt[i] = (1 - t) * w0[i] + t * w1[i];
    if (q > 0) {
        wf_rng rng = wf_rng_at(call->seed, (uint32_t)b, WF_RNG_NOISE, call->update);
        wf_rng_normals_from(&rng, n, x, n);
        for (size_t i = 0; i < n; i++) wt[i] += q * x[i];
    }
    batch->scale[b] = wf_path_at(batch->path, 1, (double)t);
    for (size_t i = 0; i < n; i++) x[i] = scales_of(batch, b, i).in * wt[i];
}

void wf_flow_interpolate(wf_ctx *ctx, const wf_path *path, uint64_t seed, uint32_t update,
                         wf_flow_batch *batch) {
    batch->path = path;
    batch->seed = seed;
    batch->update = update;
    interpolation call = {seed, update, batch};
    wf_parallel(ctx, (size_t)batch->shape->n_graphs, interpolate_network, &call);
}

/* f becomes v, wt becomes dloss/dF. x stays: the field's backward reads its forward's input. */
static void compare_network(void *arg, size_t b, int worker) {
    wf_flow_batch *batch = arg;
    (void)worker;
    size_t start = batch->shape->param_start[b], n = batch->shape->param_start[b + 1] - start;
    const float *w0 = batch->w0 + start, *w1 = batch->w1 + start;
    float *wt = batch->wt + start, *f = batch->f + start;
    float slope = (float)(2.0 / ((double)n * batch->shape->n_graphs));
    const wf_loss_weight all = {(uint32_t)n, 1},
                         *entry = batch->loss_weights ? batch->loss_weights[b] : &all;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        wf_path_scales scale = scales_of(batch, b, i);
        if (i == entry->end) entry++;
        f[i] = scale.skip * wt[i] + scale.out * f[i];
        float difference = f[i] - (w1[i] - w0[i]);
        wt[i] = slope * entry->weight * scale.out * difference;
        sum += (double)entry->weight * (double)difference * (double)difference;
    }
    batch->loss[b] = sum / (double)n;
}

double wf_flow_compare(wf_ctx *ctx, wf_flow_batch *batch) {
    int n = batch->shape->n_graphs;
    wf_parallel(ctx, (size_t)n, compare_network, batch);
    double sum = 0;
    for (int b = 0; b < n; b++) sum += batch->loss[b];
    return sum / n;
}

wf_status wf_flow_loss(wf_ctx *ctx, wf_field *field, const float *params, wf_flow_batch *batch,
                       double *loss, float *grad) {
    wf_field_input input = {.batch = batch->shape,
                            .w = batch->x,
                            .t = batch->t,
                            .cond = batch->cond,
                            .drop = batch->drop,
                            .keep = grad != NULL,
                            .training = grad != NULL,
                            .seed = batch->seed,
                            .update = batch->update};
    WF_TRY(wf_field_forward(ctx, field, params, &input, batch->f));
    *loss = wf_flow_compare(ctx, batch);
    if (grad == NULL) return WF_OK;
    return wf_field_backward(ctx, field, batch->wt, grad, NULL);
}
