/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "models/cuda/gmn_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *desc, gmn_cuda **out) {
    (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__gmn_cuda_free(gmn_cuda *program) { (void)program; }

const gmn_cuda_buffers *wf__gmn_cuda_buffers(const gmn_cuda *program) {
    (void)program;
    return NULL;
}

size_t wf__gmn_cuda_bytes(const gmn_cuda *program) {
    (void)program;
    return 0;
}

wf_status wf__gmn_cuda_forward(wf_ctx *ctx, gmn_cuda *program) {
    (void)program;
    return absent(ctx);
}

wf_status wf__gmn_cuda_backward(wf_ctx *ctx, gmn_cuda *program) {
    (void)program;
    return absent(ctx);
}

void *wf__gmn_cuda_graph(const gmn_cuda *program, bool backward) {
    (void)program, (void)backward;
    return NULL;
}

wf_status wf__gmn_cuda_wait(wf_ctx *ctx) { return absent(ctx); }

void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) { (void)cache; }

double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) {
    (void)cache;
    return 0;
}

wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache, const gmn_cuda_desc *desc,
                                     const gmn_cuda_arrays *arrays) {
    (void)cache, (void)desc, (void)arrays;
    return absent(ctx);
}

wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache, const float *dv,
                                      float *grad, float *dw) {
    (void)cache, (void)dv, (void)grad, (void)dw;
    return absent(ctx);
}
