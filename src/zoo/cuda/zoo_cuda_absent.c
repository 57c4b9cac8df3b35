/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "zoo/cuda/zoo_cuda.h"

wf_status wf_zoo_cuda_run(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_piece *piece) {
    (void)plan, (void)piece;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}
