#include "flow/objective.h"

#include "base/pool.h"
#include "base/random.h"

#include <math.h>

wf_path_scales wf_path_at(const wf_path *path, double t) {
    if (!path->precondition) return (wf_path_scales){1, 0, 1};
    double s2 = path->source_std * path->source_std, q2 = path->path_noise * path->path_noise;
    double a = t * t + s2 * (1 - t) * (1 - t) + q2;
    return (wf_path_scales){(float)(1 / sqrt(a)), (float)((t - s2 * (1 - t)) / a),
                            (float)sqrt((s2 + (1 + s2) * q2) / a)};
}

typedef struct interpolation {
    const wf_path *path;
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
    float t = batch->t[b], q = (float)call->path->path_noise;
    for (size_t i = 0; i < n; i++) wt[i] = (1 - t) * w0[i] + t * w1[i];
    if (q > 0) {
        wf_rng rng = wf_rng_at(call->seed, (uint32_t)b, WF_RNG_NOISE, call->update);
        wf_rng_normals_from(&rng, n, x, n);
        for (size_t i = 0; i < n; i++) wt[i] += q * x[i];
    }
    wf_path_scales scale = batch->scale[b] = wf_path_at(call->path, t);
    for (size_t i = 0; i < n; i++) x[i] = scale.in * wt[i];
}

void wf_flow_interpolate(wf_ctx *ctx, const wf_path *path, uint64_t seed, uint32_t update,
                         wf_flow_batch *batch) {
    interpolation call = {path, seed, update, batch};
    wf_parallel(ctx, (size_t)batch->shape->n_graphs, interpolate_network, &call);
}

/* f becomes v, wt becomes dloss/dF. x stays: the field's backward reads what its forward was given. */
static void compare_network(void *arg, size_t b, int worker) {
    wf_flow_batch *batch = arg;
    (void)worker;
    size_t start = batch->shape->param_start[b], n = batch->shape->param_start[b + 1] - start;
    const float *w0 = batch->w0 + start, *w1 = batch->w1 + start;
    float *wt = batch->wt + start, *f = batch->f + start;
    wf_path_scales scale = batch->scale[b];
    float slope = (float)(2.0 / ((double)n * batch->shape->n_graphs)) * scale.out;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        f[i] = scale.skip * wt[i] + scale.out * f[i];
        float difference = f[i] - (w1[i] - w0[i]);
        wt[i] = slope * difference;
        sum += (double)difference * (double)difference;
    }
    batch->loss[b] = sum / (double)n;
}

wf_status wf_flow_loss(wf_ctx *ctx, const wf_velocity *velocity, const float *params,
                       wf_flow_batch *batch, double *loss, float *grad) {
    int n = batch->shape->n_graphs;
    WF_TRY(velocity->forward(ctx, velocity->self, params, batch->shape, batch->x, batch->t,
                             batch->cond, batch->drop, grad != NULL, batch->f));
    wf_parallel(ctx, (size_t)n, compare_network, batch);
    double sum = 0;
    for (int b = 0; b < n; b++) sum += batch->loss[b];
    *loss = sum / n;
    if (grad == NULL) return WF_OK;
    return velocity->backward(ctx, velocity->self, batch->wt, grad);
}
