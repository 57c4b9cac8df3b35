/* execute_cuda: the forward pass of many described networks on a GPU; host memory in, host memory
 * out. */
#pragma once

#include "base/status.h"
#include "weft/graph.h"

WF_BEGIN_C

/* n networks of one description on the same examples x (examples, inputs).
 * labels, errors  error masks (n, ceil(examples / 8)): bit r is set where example r is wrong
 * logits          (n, examples, outputs)
 * errors or logits may be NULL. Sums run in the order of graph/execute.h. */
wf_status wf__execute_cuda(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                           const float *x, const int32_t *labels, size_t examples, uint8_t *errors,
                           float *logits);

WF_END_C
