/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "flow/cuda/sample_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__sample_cuda_create(wf_ctx *ctx, const wf_sample_cuda_desc *desc,
                                 wf_sample_cuda **out) {
    (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__sample_cuda_free(wf_sample_cuda *sample) { (void)sample; }

bool wf__sample_cuda_serves(const wf_sample_cuda *sample, const wf_graph *graph, int batch,
                            bool fast) {
    (void)sample, (void)graph, (void)batch, (void)fast;
    return false;
}

wf_status wf__sample_cuda_begin(wf_ctx *ctx, wf_sample_cuda *sample,
                                const wf_sample_cuda_call *call) {
    (void)sample, (void)call;
    return absent(ctx);
}

double *wf__sample_cuda_states(wf_sample_cuda *sample) {
    (void)sample;
    return NULL;
}

const wf_ode_ops *wf__sample_cuda_ops(const wf_sample_cuda *sample) {
    (void)sample;
    return NULL;
}

wf_status wf__sample_cuda_velocity(void *arg, int n, const int *which, const double *t,
                                   const double *y, double *dy) {
    (void)arg, (void)n, (void)which, (void)t, (void)y, (void)dy;
    return WF_ERR_UNSUPPORTED;
}

wf_status wf__sample_cuda_noise(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n) {
    (void)sample, (void)first, (void)n;
    return absent(ctx);
}

wf_status wf__sample_cuda_corrupt(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n,
                                  uint32_t cycle, double t, const wf_match_desc *match) {
    (void)sample, (void)first, (void)n, (void)cycle, (void)t, (void)match;
    return absent(ctx);
}

wf_status wf__sample_cuda_fetch(wf_ctx *ctx, wf_sample_cuda *sample, int n, float *out) {
    (void)sample, (void)n, (void)out;
    return absent(ctx);
}
