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

/* Networks of this rank. */
static wf_range networks_of(const wf_flow_batch *batch) {
    if (batch->split == NULL) return (wf_range){0, (size_t)batch->shape->n_graphs};
    return wf_split_networks(batch->split, batch->split->rank);
}

static void interpolate_own(void *arg, size_t chunk, int worker) {
    const interpolation *call = arg;
    interpolate_network(arg, networks_of(call->batch).first + chunk, worker);
}

void wf_flow_interpolate(wf_ctx *ctx, const wf_path *path, uint64_t seed, uint32_t update,
                         wf_flow_batch *batch) {
    batch->path = path;
    batch->seed = seed;
    batch->update = update;
    interpolation call = {seed, update, batch};
    wf_range own = networks_of(batch);
    wf_parallel(ctx, own.last - own.first, interpolate_own, &call);
}

static void compare_own(void *arg, size_t chunk, int worker) {
    const wf_flow_batch *batch = arg;
    compare_network(arg, networks_of(batch).first + chunk, worker);
}

static void compare_here(wf_ctx *ctx, wf_flow_batch *batch) {
    wf_range own = networks_of(batch);
    wf_parallel(ctx, own.last - own.first, compare_own, batch);
}

/* The loss, once the ranks' networks and statuses have come together. */
static wf_status mean_loss(wf_ctx *ctx, wf_status mine, wf_flow_batch *batch, double *loss) {
    int n = batch->shape->n_graphs;
    if (batch->split == NULL) WF_TRY(mine);
    else WF_TRY(wf_split_meet(ctx, batch->split, mine, &batch->flags, batch->loss));
    double sum = 0;
    for (int b = 0; b < n; b++) sum += batch->loss[b];
    *loss = sum / n;
    return WF_OK;
}

wf_status wf_flow_compare(wf_ctx *ctx, wf_status forward, wf_flow_batch *batch, double *loss) {
    if (forward == WF_OK) compare_here(ctx, batch);
    return mean_loss(ctx, forward, batch, loss);
}

wf_status wf_flow_forward(wf_ctx *ctx, wf_field *field, const float *params,
                          const wf_flow_batch *batch, bool training) {
    wf_range parts = {0, 0};
    if (batch->split != NULL) parts = wf_split_parts(batch->split, batch->split->rank);
    wf_field_input input = {.batch = batch->shape,
                            .w = batch->x,
                            .t = batch->t,
                            .cond = batch->cond,
                            .drop = batch->drop,
                            .first_part = (int)parts.first,
                            .last_part = (int)parts.last,
                            .keep = training,
                            .training = training,
                            .seed = batch->seed,
                            .update = batch->update};
    bool idle = batch->split != NULL && parts.first == parts.last;
    return idle ? wf__field_result(ctx, WF_OK)
                : wf_field_forward(ctx, field, params, &input, batch->f);
}

wf_status wf_flow_loss(wf_ctx *ctx, wf_field *field, const float *params, wf_flow_batch *batch,
                       double *loss, float *grad) {
    const wf_split *split = batch->split;
    wf_status status = batch->drawn, summed = WF_OK;
    if (status == WF_OK) status = wf_flow_forward(ctx, field, params, batch, grad != NULL);
    if (status == WF_OK) compare_here(ctx, batch);
    if (grad != NULL && split != NULL)
        status = wf_split_backward(ctx, split, status, batch->wt, grad, &summed);
    else if (grad != NULL && status == WF_OK)
        status = wf_field_backward(ctx, field, batch->wt, grad, NULL);
    WF_TRY(summed);
    return mean_loss(ctx, status, batch, loss);
}
