/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "models/cuda/gmn_cuda.h"
#include "models/cuda/net_cuda.h"

wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *own,
                              const wf_field_program_desc *desc, wf_field_program **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__gmn_cuda_free(wf_field_program *program) {}
size_t wf__gmn_cuda_bytes(const wf_field_program *program) { return 0; }
wf_status wf__gmn_cuda_forward(wf_ctx *ctx, wf_field_program *program) {
    return wf_cuda_absent(ctx);
}
wf_status wf__gmn_cuda_backward(wf_ctx *ctx, wf_field_program *program) {
    return wf_cuda_absent(ctx);
}
void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) {}
double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) { return 0; }
wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache, const gmn_cuda_desc *own,
                                     const float *params, const wf_field_input *input, float *v) {
    return wf_cuda_absent(ctx);
}
wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache, const float *dv,
                                      float *grad, float *dw) {
    return wf_cuda_absent(ctx);
}

wf_status wf__net_cuda_create(wf_ctx *ctx, const wf_field *field, const wf_net_model *model,
                              const wf_field_program_desc *desc, wf_field_program **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__net_cuda_free(wf_field_program *program) {}
size_t wf__net_cuda_bytes(const wf_field_program *program) { return 0; }
wf_status wf__net_cuda_forward(wf_ctx *ctx, wf_field_program *program) {
    return wf_cuda_absent(ctx);
}
wf_status wf__net_cuda_backward(wf_ctx *ctx, wf_field_program *program) {
    return wf_cuda_absent(ctx);
}
