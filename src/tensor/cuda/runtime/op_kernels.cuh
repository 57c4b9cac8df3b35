/* op_kernels: what every file with kernels of operations needs: their declarations, tensors as
 * pointers, scratch, and launches of a function for every element or row.
 *
 * each_kernel runs a thread for an element and warps_kernel a warp for a row. Both are bound by
 * bandwidth or, when small, by the launch. */
#pragma once

extern "C" {
#include "tensor/cuda/backend_cuda.h"
#include "tensor/tensor.h"
}
#include "tensor/cuda/runtime/launch.cuh"

namespace wf_gpu {

#define X(name, tolerance)                                                                         \
    bool name##_forward(const wf_op *op, wf_arena *arena);                                         \
    bool name##_backward(const wf_op *op, wf_arena *arena);
#include "tensor/ops.def"
#undef X

/* True when nothing has gone wrong so far. */
inline bool launched() { return cudaPeekAtLastError() == cudaSuccess; }

inline float *data_of(const wf_tensor *tensor) { return (float *)tensor->data; }
inline float *grad_of(const wf_tensor *tensor) { return (float *)tensor->grad; }
inline bool wanted(const wf_tensor *tensor) { return tensor != NULL && tensor->wants; }
inline float *scratch(wf_arena *arena, size_t count) {
    return (float *)wf_arena_alloc(arena, count * sizeof(float));
}
/* (rows, pad(cols)) of scratch. */
inline float *scratch_rows(wf_arena *arena, int rows, int cols) {
    return scratch(arena, (size_t)rows * (size_t)wf_pad(cols));
}

/* --- inside kernels --------------------------------------------------------------------------- */
#ifdef __CUDACC__
enum { threads_each = 256 };

inline unsigned blocks_for(size_t count, size_t each) {
    return (unsigned)((count + each - 1) / each);
}

/* f(row, col) for all of (rows, cols), neighbouring threads along a row. */
template <class F> __global__ void each_kernel(F f, int rows, int cols) {
    wait_for_previous();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (row < rows && col < cols) f(row, col);
}
template <class F> void each(F f, int rows, int cols) {
    if (rows <= 0 || cols <= 0) return;
    unsigned across = 1;
    while (across < (unsigned)cols && across < threads_each) across *= 2;
    dim3 block(across, threads_each / across);
    dim3 grid(blocks_for((size_t)rows, block.y), blocks_for((size_t)cols, across));
    start_kernel(each_kernel<F>, grid, block, 0, f, rows, cols);
}

/* f(row, lane) with a warp for every row. */
template <class F> __global__ void warps_kernel(F f, int rows) {
    wait_for_previous();
    int row = (int)((size_t)blockIdx.x * (threads_each / 32) + threadIdx.x / 32);
    if (row < rows) f(row, (int)(threadIdx.x % 32));
}
template <class F> void each_warp(F f, int rows) {
    if (rows > 0)
        start_kernel(warps_kernel<F>, blocks_for((size_t)rows, threads_each / 32), threads_each, 0,
                     f, rows);
}

/* The same tree in every lane: all have the sum. */
__device__ inline float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ inline float warp_dot(const float *x, const float *y, int cols, int lane) {
    float sum = 0;
    for (int c = lane; c < cols; c += 32) sum += x[c] * y[c];
    return warp_sum(sum);
}

/* tanh-GELU is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), SiLU x * sigmoid(x). */
__device__ inline float accurate_activation(int act, float x, float *slope) {
    const float linear = 1.5957691216057308f, cubic = 0.07135481627260025f;
    float square = x * x;
    bool gelu = act == WF_TAPE_ACT_GELU;
    float inner = gelu ? x * (linear + cubic * square) : x;
    float inner_slope = gelu ? linear + 3 * cubic * square : 1;
    float s = __fdividef(1, 1 + expf(-inner)); /* within 2 ulp; 0 after overflow */
    *slope = s + x * s * (1 - s) * inner_slope;
    return x * s;
}
#endif

} // namespace wf_gpu
