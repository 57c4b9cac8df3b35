/* cta_sum: the sum of a value over the threads of a block, in fixed order; every thread gets it. A
 * kernel may call it once: no barrier protects its shared memory from a second call. */
#pragma once

template <int threads> __device__ inline double cta_sum(double value) {
    __shared__ double warp_sum[threads / 32];
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(~0u, value, lane);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (int k = 0; k < threads / 32; k++) sum += warp_sum[k];
    return sum;
}
