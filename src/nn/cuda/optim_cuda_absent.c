/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "nn/cuda/optim_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf__optim_cuda_create(wf_ctx *ctx, const wf_optim_cuda_desc *desc, wf_optim_cuda **out) {
    (void)desc;
    *out = NULL;
    return absent(ctx);
}

void wf__optim_cuda_free(wf_optim_cuda *optim) { (void)optim; }

wf_optim_cuda_arrays wf__optim_cuda_arrays(const wf_optim_cuda *optim) {
    (void)optim;
    return (wf_optim_cuda_arrays){0};
}

wf_status wf__optim_cuda_start(wf_ctx *ctx, wf_optim_cuda *optim, size_t update, double best_loss) {
    (void)optim, (void)update, (void)best_loss;
    return absent(ctx);
}

const uint32_t *wf__optim_cuda_update(const wf_optim_cuda *optim) {
    (void)optim;
    return NULL;
}

wf_status wf__optim_cuda_step(wf_ctx *ctx, wf_optim_cuda *optim, const double *terms, int n_terms) {
    (void)optim, (void)terms, (void)n_terms;
    return absent(ctx);
}

const volatile wf_update_record *wf__optim_cuda_records(const wf_optim_cuda *optim, size_t *ring) {
    (void)optim;
    *ring = 0;
    return NULL;
}
