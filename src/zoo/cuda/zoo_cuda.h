/* zoo_cuda: the zoo engine on a GPU. */
#pragma once

#include "zoo/zoo_engine.h"

WF_BEGIN_C

/* wf_zoo_piece_run on the GPU: the same networks as the CPU kernels' up to rounding. A network that
 * does not fit on chip with its optimiser's state is WF_ERR_UNSUPPORTED. */
wf_status wf_zoo_cuda_run(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_piece *piece);

WF_END_C
