/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "flow/cuda/fit_cuda.h"
#include "flow/cuda/ode_cuda.h"
#include "flow/cuda/sample_cuda.h"

wf_status wf__fit_cuda_create(wf_ctx *ctx, const wf_fit_cuda_desc *desc, wf_fit_cuda **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__fit_cuda_free(wf_fit_cuda *fit) {}
wf_status wf__fit_cuda_enqueue(wf_ctx *ctx, wf_fit_cuda *fit) { return wf_cuda_absent(ctx); }
wf_status wf__fit_cuda_renew(wf_ctx *ctx, wf_fit_cuda *fit, int family, size_t first,
                             size_t count) {
    return wf_cuda_absent(ctx);
}
wf_status wf__fit_cuda_match_until(wf_ctx *ctx, wf_fit_cuda *fit, size_t end) {
    return wf_cuda_absent(ctx);
}
wf_status wf__fit_cuda_pace(wf_ctx *ctx, wf_fit_cuda *fit, const wf_pace *pace) {
    return wf_cuda_absent(ctx);
}
wf_status wf__fit_cuda_record(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, wf_update_record *out) {
    return wf_cuda_absent(ctx);
}
wf_updates_cuda *wf__fit_cuda_updates(const wf_fit_cuda *fit) { return NULL; }
wf_status wf__fit_cuda_forward(wf_ctx *ctx, wf_fit_cuda *fit, int which,
                               const wf_flow_batch *batch) {
    return wf_cuda_absent(ctx);
}
wf_status wf__fit_cuda_batch(wf_ctx *ctx, wf_fit_cuda *fit, float *x, float *target, float *t) {
    return wf_cuda_absent(ctx);
}

wf_status wf__updates_cuda_record(wf_ctx *ctx, wf_updates_cuda *updates, size_t update,
                                  wf_update_record *out) {
    return wf_cuda_absent(ctx);
}
wf_status wf__updates_cuda_copy(wf_ctx *ctx, wf_updates_cuda *updates) {
    return wf_cuda_absent(ctx);
}
wf_status wf__updates_cuda_copied(wf_ctx *ctx, wf_updates_cuda *updates, bool wait, bool *out) {
    return wf_cuda_absent(ctx);
}

wf_status wf__sample_cuda_create(wf_ctx *ctx, const wf_sample_cuda_desc *desc,
                                 wf_sample_cuda **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__sample_cuda_free(wf_sample_cuda *sample) {}
bool wf__sample_cuda_serves(const wf_sample_cuda *sample, const wf_graph *graph, int batch,
                            bool fast) {
    return false;
}
wf_status wf__sample_cuda_begin(wf_ctx *ctx, wf_sample_cuda *sample,
                                const wf_sample_cuda_call *call) {
    return wf_cuda_absent(ctx);
}
double *wf__sample_cuda_states(wf_sample_cuda *sample) { return NULL; }
const wf_ode_ops *wf__sample_cuda_ops(const wf_sample_cuda *sample) { return NULL; }
wf_status wf__sample_cuda_velocity(void *arg, int n, const int *which, const double *t,
                                   const double *y, double *dy) {
    return WF_ERR_UNSUPPORTED;
}
wf_status wf__sample_cuda_noise(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n) {
    return wf_cuda_absent(ctx);
}
wf_status wf__sample_cuda_corrupt(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n,
                                  uint32_t cycle, double t, const wf_match_desc *match) {
    return wf_cuda_absent(ctx);
}
wf_status wf__sample_cuda_fetch(wf_ctx *ctx, wf_sample_cuda *sample, int n, float *out) {
    return wf_cuda_absent(ctx);
}

wf_status wf__row_ring_open(wf_ctx *ctx, size_t bytes, wf_row_ring *out) {
    return wf_cuda_absent(ctx);
}
void wf__row_ring_close(wf_row_ring *ring) {}
wf_status wf__row_ring_up(wf_ctx *ctx, wf_row_ring *ring, const void *data, size_t bytes,
                          void *out) {
    return wf_cuda_absent(ctx);
}
wf_ode_ops wf__ode_cuda_ops(wf_arena *memory, wf_row_ring *ring) {
    return (wf_ode_ops){.memory = memory, .self = ring};
}
