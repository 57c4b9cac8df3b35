/* launch: which launches may begin early; zeros and copies. */
#include "tensor/cuda/runtime/op_kernels.cuh"
#include "tensor/cuda/runtime/runtime.cuh"

#include <algorithm>
#include <assert.h>

namespace wf_gpu {
namespace {

/* to = from, or zeros where there is none; 16 bytes a thread. */
__global__ void fill_kernel(float *to, const float *from, size_t count, bool whole) {
    wait_for_previous();
    size_t at = 4 * ((size_t)blockIdx.x * threads_each + threadIdx.x);
    if (whole && at + 4 <= count) {
        *(float4 *)(to + at) =
            from == NULL ? make_float4(0, 0, 0, 0) : *(const float4 *)(from + at);
        return;
    }
    for (size_t k = at; k < count && k < at + 4; k++) to[k] = from == NULL ? 0 : from[k];
}

void fill(void *to, const void *from, size_t bytes) {
    size_t count = bytes / sizeof(float);
    bool whole = ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
    if (count > 0)
        start_kernel(fill_kernel, blocks_for(count, 4 * threads_each), threads_each, 0, (float *)to,
                     (const float *)from, count, whole);
}

} // namespace

cudaStream_t stream() { return here().side != NULL ? here().side : here().device->stream; }
void use_stream(cudaStream_t side) { here().side = side; }

bool kernels_wait() {
    cudaFuncAttributes made;
    return cudaFuncGetAttributes(&made, (const void *)fill_kernel) == cudaSuccess &&
           made.ptxVersion >= 90;
}

void plain_next(cudaStream_t stream) {
    overlapping &list = here().overlap;
    list.count = (int)(std::remove(list.stream, list.stream + list.count, stream) - list.stream);
}
void plain_next() { here().overlap.count = 0; }

bool begins_early(cudaStream_t stream) {
    overlapping &list = here().overlap;
    cudaStream_t *end = list.stream + list.count;
    if (std::find(list.stream, end, stream) != end) return here().kernels_wait;
    assert(list.count < overlapping::most);
    list.stream[list.count++] = stream;
    return false;
}

void allow_shared(const void *kernel, size_t bytes) {
    cudaFuncAttributes now;
    if (cudaFuncGetAttributes(&now, kernel) == cudaSuccess &&
        (size_t)now.maxDynamicSharedSizeBytes < bytes)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

int processor_count() { return here().device->processors; }
int most_shared_bytes() { return here().device->shared_bytes; }

void start_zero(void *to, size_t bytes) { fill(to, NULL, bytes); }
void start_copy(void *to, const void *from, size_t bytes) { fill(to, from, bytes); }

} // namespace wf_gpu
