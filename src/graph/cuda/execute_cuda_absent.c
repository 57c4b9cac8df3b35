/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "graph/cuda/execute_cuda.h"

ABSENT(wf__execute_cuda, const wf_graph *graph, const float *weights, size_t n, const float *x,
       const int32_t *labels, size_t examples, uint8_t *errors, float *logits)
