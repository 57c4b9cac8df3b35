/* device: the GPU of this process, if there is one. */
#ifndef WF_BASE_CUDA_DEVICE_H
#define WF_BASE_CUDA_DEVICE_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

bool wf_cuda_available(void);
/* "NVIDIA H200, 132 SMs, 139 GiB", or why there is none. */
const char *wf_cuda_description(void);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
#define WF_CUDA_TRY(ctx, call)                                                                     \
    do {                                                                                           \
        cudaError_t wf_cuda_error_ = (call);                                                       \
        if (wf_cuda_error_ == cudaErrorMemoryAllocation)                                           \
            return wf_fail(ctx, WF_ERR_MEMORY, "GPU: out of memory (%s)", #call);                  \
        if (wf_cuda_error_ != cudaSuccess)                                                         \
            return wf_fail(ctx, WF_ERR_FAILED, "GPU: %s: %s", #call,                               \
                           cudaGetErrorString(wf_cuda_error_));                                    \
    } while (0)
#endif
#endif
