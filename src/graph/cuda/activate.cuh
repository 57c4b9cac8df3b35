/* activate: the activations of networks (graph/execute.h) in fp32. */
#pragma once

#include "base/vmath.h"
#include "weft/graph.h"

namespace {

__device__ inline float activate(wf_activation activation, float x) {
    switch (activation) {
    case WF_ACT_RELU: return x > 0 ? x : 0;
    case WF_ACT_TANH: return wf_tanhf(x);
    case WF_ACT_GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case WF_ACT_SILU: return x / (1 + wf_expf(-x));
    case WF_ACT_SIGMOID: return 1 / (1 + wf_expf(-x));
    default: return x;
    }
}

} // namespace
