/* zoo_start: initial weights and shuffles of many networks.
 *
 * Weights: a thread draws one Philox block, four weights. Shuffles: in a Fisher-Yates shuffle every
 * swap depends on the last, so a thread makes a whole order (one network, one epoch) and many
 * threads work side by side. Orders of up to 1,600 examples are shuffled in shared memory, 64
 * orders a block, element i of order t at (i, t), and written out together; longer ones in place in
 * device memory, which takes seven times as long. Bound by latency. */
#include "zoo/cuda/zoo_start.cuh"

#include "weft/rng.h"

namespace zoo_gpu {
namespace {

enum { orders_each = 64, order_pitch = orders_each + 2, longest_order = 1600 };

__global__ void draw_weights(const __grid_constant__ start_plan plan, const gpu_task *tasks,
                             size_t count, float *flat) {
    size_t network = blockIdx.x;
    float *w = flat + network * (size_t)plan.n_params;
    for (int b = 0; b < plan.n_blocks; b++) {
        start_block block = plan.blocks[b];
        for (int i = threadIdx.x; 4 * i < block.count; i += blockDim.x) {
            const uint32_t counter[4] = {(uint32_t)i, (uint32_t)b, tasks[network].index,
                                         WF_RNG_INIT};
            uint32_t word[4];
            wf_philox(counter, plan.seed, word);
            for (int c = 0; c < 4 && 4 * i + c < block.count; c++) {
                float uniform = (float)(word[c] >> 8) * (1.0f / 16777216); /* 2^-24 */
                /* no fused multiply-add: the host has none here */
                w[block.offset + 4 * i + c] = __fmul_rn(block.bound, __fadd_rn(2 * uniform, -1.0f));
            }
        }
    }
}

/* Draws below n as wf_rng_below does, without its division where that cannot matter. */
__device__ inline uint32_t below(wf_rng *rng, uint32_t n) {
    uint32_t high, low;
    wf_philox_mul(wf_rng_u32(rng), n, &high, &low);
    if (low < n) {
        uint32_t floor = (0u - n) % n;
        while (low < floor) wf_philox_mul(wf_rng_u32(rng), n, &high, &low);
    }
    return high;
}

template <typename T> __device__ inline void shuffle(T *order, int pitch, uint32_t n, wf_rng rng) {
    for (uint32_t i = 0; i < n; i++) order[i * pitch] = (T)i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = below(&rng, i);
        T kept = order[(i - 1) * pitch];
        order[(i - 1) * pitch] = order[j * pitch];
        order[j * pitch] = kept;
    }
}

__global__ void __launch_bounds__(orders_each)
    shuffle_short(const __grid_constant__ start_plan plan, const gpu_task *tasks, size_t count,
                  uint16_t *out) {
    extern __shared__ uint16_t columns[]; /* (n_train, order_pitch) */
    size_t total = count * (size_t)plan.epochs_max, base = (size_t)blockIdx.x * orders_each;
    size_t order = base + threadIdx.x;
    if (order < total) {
        size_t network = order / plan.epochs_max;
        uint32_t epoch = (uint32_t)(order % plan.epochs_max);
        if ((int)epoch < tasks[network].epochs)
            shuffle(columns + threadIdx.x, order_pitch, (uint32_t)plan.n_train,
                    wf_rng_at(plan.seed, tasks[network].index, WF_RNG_SHUFFLE, epoch));
    }
    __syncthreads();
    for (int t = 0; t < orders_each && base + t < total; t++)
        for (int i = threadIdx.x; i < plan.n_train; i += orders_each)
            out[(base + t) * plan.n_train + i] = columns[i * order_pitch + t];
}

template <typename T>
__global__ void shuffle_long(const __grid_constant__ start_plan plan, const gpu_task *tasks,
                             size_t count, T *out) {
    size_t order = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    size_t network = order / plan.epochs_max;
    uint32_t epoch = (uint32_t)(order % plan.epochs_max);
    if (network >= count || (int)epoch >= tasks[network].epochs) return;
    shuffle(out + order * plan.n_train, 1, (uint32_t)plan.n_train,
            wf_rng_at(plan.seed, tasks[network].index, WF_RNG_SHUFFLE, epoch));
}

} // namespace

cudaError_t start_weights(const start_plan &plan, const gpu_task *tasks, size_t count, float *flat,
                          cudaStream_t stream) {
    draw_weights<<<(unsigned)count, 256, 0, stream>>>(plan, tasks, count, flat);
    return cudaGetLastError();
}

cudaError_t start_orders(const start_plan &plan, const gpu_task *tasks, size_t count,
                         uint16_t *order16, uint32_t *order32, cudaStream_t stream) {
    size_t total = count * (size_t)plan.epochs_max;
    if (order16 != NULL && plan.n_train <= longest_order) {
        size_t bytes = sizeof(uint16_t) * (size_t)plan.n_train * order_pitch;
        cudaError_t error = cudaFuncSetAttribute(
            shuffle_short, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return error;
        shuffle_short<<<(unsigned)((total + orders_each - 1) / orders_each), orders_each, bytes,
                        stream>>>(plan, tasks, count, order16);
    } else if (order16 != NULL)
        shuffle_long<uint16_t>
            <<<(unsigned)((total + 31) / 32), 32, 0, stream>>>(plan, tasks, count, order16);
    else
        shuffle_long<uint32_t>
            <<<(unsigned)((total + 31) / 32), 32, 0, stream>>>(plan, tasks, count, order32);
    return cudaGetLastError();
}

} // namespace zoo_gpu
