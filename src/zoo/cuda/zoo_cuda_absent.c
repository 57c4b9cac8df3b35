/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "zoo/cuda/zoo_cuda.h"

wf_status wf_zoo_cuda_run(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_piece *piece) {
    return wf_cuda_absent(ctx);
}
