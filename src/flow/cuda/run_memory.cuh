/* run_memory: device memory of a fit, and host memory pinned for it, given back together. */
#pragma once

#include "base/cuda/device.cuh"

#include <vector>

namespace wf_gpu {

struct run_memory {
    std::vector<void *> memory;     /* on the device */
    std::vector<void *> registered; /* the host's */

    /* Room for `bytes`, copied from the host's `from` where that is not NULL; *place points to it.
     * The stream has passed the copy. */
    wf_status take(wf_ctx *ctx, cudaStream_t stream, size_t bytes, const void *from, void *place);
    template <class T>
    wf_status take_table(wf_ctx *ctx, cudaStream_t stream, const std::vector<T> &from,
                         void *place) {
        return take(ctx, stream, from.size() * sizeof(T), from.data(), place);
    }
    /* Host memory that copies and kernels can reach. */
    wf_status pin(wf_ctx *ctx, void *host, size_t bytes);
    void give_back();
};

/* May a fit keep its networks, so many bytes, on the device? Where they take no more than half of
 * its free memory. WEFT_STREAM_COLLECTION=1 leaves them in host memory, for tests. */
bool networks_fit(size_t bytes);

} // namespace wf_gpu
