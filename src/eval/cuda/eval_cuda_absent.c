/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "eval/cuda/eval_cuda.h"

ABSENT(wf_iou_max_cuda, const uint64_t *queries, size_t nq, const uint64_t *refs, size_t nr,
       size_t words, const int64_t *skip, float *best, uint32_t *which)
ABSENT(wf_error_masks_cuda, const wf_graph *graph, const float *weights, size_t n,
       const wf_dataset *data, uint8_t *errors)
