/* update_graph: captures what a function enqueues on a device's stream as a graph to launch. */
#pragma once

#include "base/cuda/device.cuh"

namespace wf_gpu {

/* record returns a wf_status. */
template <class F>
wf_status capture_update(wf_ctx *ctx, const wf_cuda_device *device, F record,
                         cudaGraphExec_t *out) {
    WF_CUDA_TRY(ctx, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed));
    wf_status status = record();
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(device->stream, &graph);
    if (status == WF_OK && error == cudaSuccess) error = cudaGraphInstantiate(out, graph, 0);
    if (graph != NULL) cudaGraphDestroy(graph);
    if (status == WF_OK && error != cudaSuccess)
        status = wf_fail(ctx, WF_ERR_FAILED, "training on the GPU: capture: %s",
                         cudaGetErrorString(error));
    return status;
}

} // namespace wf_gpu
