/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "models/cuda/gmn_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *own,
                              const wf_field_program_desc *desc, wf_field_program **out) {
    (void)own, (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__gmn_cuda_free(wf_field_program *program) { (void)program; }

size_t wf__gmn_cuda_bytes(const wf_field_program *program) {
    (void)program;
    return 0;
}

wf_status wf__gmn_cuda_forward(wf_ctx *ctx, wf_field_program *program) {
    (void)program;
    return absent(ctx);
}

wf_status wf__gmn_cuda_backward(wf_ctx *ctx, wf_field_program *program) {
    (void)program;
    return absent(ctx);
}

void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) { (void)cache; }

double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) {
    (void)cache;
    return 0;
}

wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache, const gmn_cuda_desc *own,
                                     const float *params, const wf_field_input *input, float *v) {
    (void)cache, (void)own, (void)params, (void)input, (void)v;
    return absent(ctx);
}

wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache, const float *dv,
                                      float *grad, float *dw) {
    (void)cache, (void)dv, (void)grad, (void)dw;
    return absent(ctx);
}
