/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "nn/cuda/optim_cuda.h"

wf_status wf__optim_cuda_create(wf_ctx *ctx, const wf_optim_cuda_desc *desc, wf_optim_cuda **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__optim_cuda_free(wf_optim_cuda *optim) {}
wf_optim_cuda_arrays wf__optim_cuda_arrays(const wf_optim_cuda *optim) {
    return (wf_optim_cuda_arrays){0};
}
wf_status wf__optim_cuda_start(wf_ctx *ctx, wf_optim_cuda *optim, size_t update, double best_loss) {
    return wf_cuda_absent(ctx);
}
wf_status wf__optim_cuda_pace(wf_ctx *ctx, wf_optim_cuda *optim, const wf_pace *pace) {
    return wf_cuda_absent(ctx);
}
const uint32_t *wf__optim_cuda_update(const wf_optim_cuda *optim) { return NULL; }
wf_status wf__optim_cuda_step(wf_ctx *ctx, wf_optim_cuda *optim, const double *terms, int n_terms) {
    return wf_cuda_absent(ctx);
}
const volatile wf_update_record *wf__optim_cuda_records(const wf_optim_cuda *optim, size_t *ring) {
    *ring = 0;
    return NULL;
}
