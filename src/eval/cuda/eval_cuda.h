/* eval_cuda: error masks of networks and their overlaps on the GPU; host memory in, host memory
 * out. */
#pragma once

#include "base/status.h"
#include "weft/eval.h"

WF_BEGIN_C

/* wf__iou_max on the GPU: the same values and neighbours, whatever the masks. */
wf_status wf_iou_max_cuda(wf_ctx *ctx, const uint64_t *queries, size_t nq, const uint64_t *refs,
                          size_t nr, size_t words, const int64_t *skip, float *best,
                          uint32_t *which);

/* Error masks (n, (n_test+7)/8) of networks that fit the data. Sums run in the CPU kernels' order,
 * so masks are theirs but for examples on a decision border. WF_ERR_UNSUPPORTED for layers too wide
 * for the chip. */
wf_status wf_error_masks_cuda(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                              const wf_dataset *data, uint8_t *errors);

WF_END_C
