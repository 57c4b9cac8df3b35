/* A build without CUDA. */
#include "flow/cuda/ode_cuda.h"

#include "base/status.h"

wf_status wf__row_ring_open(wf_ctx *ctx, size_t bytes, wf_row_ring *out) {
    (void)bytes, (void)out;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

void wf__row_ring_close(wf_row_ring *ring) { (void)ring; }

wf_status wf__row_ring_up(wf_ctx *ctx, wf_row_ring *ring, const void *data, size_t bytes,
                          void *out) {
    (void)ring, (void)data, (void)bytes, (void)out;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_ode_ops wf__ode_cuda_ops(wf_arena *memory, wf_row_ring *ring) {
    return (wf_ode_ops){.memory = memory, .self = ring};
}
