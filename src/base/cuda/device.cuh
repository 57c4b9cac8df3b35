/* device: the inside of a device object, and how CUDA's and C++'s failures become a status. For .cu
 * files. */
#pragma once

#include "base/cuda/device.h"

#include <atomic>
#include <cuda_runtime.h>
#include <new>

namespace wf_gpu {
/* State that a later module keeps with a device. */
struct device_state {
    virtual ~device_state() {}
};
} // namespace wf_gpu

struct wf_cuda_device {
    int number;       /* as CUDA counts them */
    int processors;   /* multiprocessors */
    int shared_bytes; /* of shared memory that a block may have */
    cudaStream_t stream;
    wf_gpu::device_state *runtime; /* of tensor/cuda/runtime; NULL: not yet used */
    std::atomic<int> holders;
};

namespace wf_gpu {
/* Priority of a stream's blocks, lowest first: work that nothing waits for yet, the main stream,
 * short work that other work waits for. */
enum stream_priority { stream_may_wait, stream_is_main, stream_is_short };
bool make_stream(cudaStream_t *stream, stream_priority priority);

/* C++ exceptions stop here: calls f, which returns a wf_status, from a function that C calls. */
template <class F> wf_status without_exceptions(wf_ctx *ctx, const char *what, F f) {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", what);
    } catch (...) {
        return wf_fail(ctx, WF_ERR_FAILED, "%s: an unexpected C++ exception", what);
    }
}
/* *out: a new T that build(T *) has filled; NULL, and what there was freed, when build fails. */
template <class T, class Build>
wf_status create(wf_ctx *ctx, const char *what, void (*free)(T *), T **out, Build build) {
    *out = NULL;
    T *made = new (std::nothrow) T();
    if (made == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", what);
    wf_status status = without_exceptions(ctx, what, [&] { return build(made); });
    if (status == WF_OK) *out = made;
    else free(made);
    return status;
}
} // namespace wf_gpu

#define WF_CUDA_TRY(ctx, call)                                                                     \
    do {                                                                                           \
        cudaError_t wf_cuda_error_ = (call);                                                       \
        if (wf_cuda_error_ == cudaErrorMemoryAllocation)                                           \
            return wf_fail(ctx, WF_ERR_MEMORY, "GPU: out of memory (%s)", #call);                  \
        if (wf_cuda_error_ != cudaSuccess)                                                         \
            return wf_fail(ctx, WF_ERR_FAILED, "GPU: %s: %s", #call,                               \
                           cudaGetErrorString(wf_cuda_error_));                                    \
    } while (0)
