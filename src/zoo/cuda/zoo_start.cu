/* zoo_start: initial weights and shuffles of many networks.
 *
 * Weights: a thread draws one Philox block, four weights.
 * Shuffles: a Fisher-Yates shuffle is one long dependent chain, so a thread has a whole (network, epoch) and many run side
 * by side. Orders of up to 1,600 examples are shuffled in shared memory, 64 chains a block, element i of chain t at
 * (i, t), and written out together; longer ones in place in device memory.
 * Measured on an H200: 50,000 x 25 shuffles of 1,600 in 0.04 s (in device memory 0.27 s); 660 or 2,096 x 5 shuffles of
 * 60,000 in 0.05 or 0.07 s: latency, not bandwidth. */
#include "zoo/cuda/zoo_start.cuh"

extern "C" {
#include "weft/rng.h"
}

namespace zoo_gpu {
namespace {

enum { chains = 64, chain_pitch = chains + 2, longest_chain = 1600 };

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

__global__ void __launch_bounds__(chains)
    shuffle_short(const __grid_constant__ start_plan plan, const gpu_task *tasks, size_t count,
                  uint16_t *out) {
    extern __shared__ uint16_t columns[]; /* (n_train, chain_pitch) */
    size_t total = count * (size_t)plan.epochs_max, base = (size_t)blockIdx.x * chains;
    size_t chain = base + threadIdx.x;
    if (chain < total) {
        size_t network = chain / plan.epochs_max;
        uint32_t epoch = (uint32_t)(chain % plan.epochs_max);
        if ((int)epoch < tasks[network].epochs)
            shuffle(columns + threadIdx.x, chain_pitch, (uint32_t)plan.n_train,
                    wf_rng_at(plan.seed, tasks[network].index, WF_RNG_SHUFFLE, epoch));
    }
    __syncthreads();
    for (int t = 0; t < chains && base + t < total; t++)
        for (int i = threadIdx.x; i < plan.n_train; i += chains)
            out[(base + t) * plan.n_train + i] = columns[i * chain_pitch + t];
}

template <typename T>
__global__ void shuffle_long(const __grid_constant__ start_plan plan, const gpu_task *tasks,
                             size_t count, T *out) {
    size_t chain = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    size_t network = chain / plan.epochs_max;
    uint32_t epoch = (uint32_t)(chain % plan.epochs_max);
    if (network >= count || (int)epoch >= tasks[network].epochs) return;
    shuffle(out + chain * plan.n_train, 1, (uint32_t)plan.n_train,
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
    if (order16 != NULL && plan.n_train <= longest_chain) {
        size_t bytes = sizeof(uint16_t) * (size_t)plan.n_train * chain_pitch;
        cudaError_t error = cudaFuncSetAttribute(
            shuffle_short, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return error;
        shuffle_short<<<(unsigned)((total + chains - 1) / chains), chains, bytes, stream>>>(
            plan, tasks, count, order16);
    } else if (order16 != NULL)
        shuffle_long<<<(unsigned)((total + 31) / 32), 32, 0, stream>>>(plan, tasks, count, order16);
    else
        shuffle_long<<<(unsigned)((total + 31) / 32), 32, 0, stream>>>(plan, tasks, count, order32);
    return cudaGetLastError();
}

} // namespace zoo_gpu
