#include "generators/cuda/phase_draws.cuh"

namespace wf_phase_gpu {
namespace {

using wf_batch_gpu::four_deviates;

enum { threads = 128 };

/* The network of a place of the batch. */
__device__ uint32_t network_of(const draws &d, uint32_t place, uint32_t number) {
    return wf_epoch_network(d.seed, d.count, d.places, number, place);
}

/* Noisy rows, rows, noise of latents. Deviates of latents follow those of the padded row. */
__global__ void __launch_bounds__(threads) noisy_kernel(draws d) {
    uint32_t place = blockIdx.y, number = d.first + *d.update;
    uint32_t block = blockIdx.x * threads + threadIdx.x;
    __shared__ uint32_t network;
    if (threadIdx.x == 0) network = network_of(d, place, number);
    __syncthreads();
    if (4 * block >= d.padded + d.latent) return;
    float four[4];
    four_deviates(d.seed, place, WF_RNG_NOISE, number, block, four);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t i = 4 * block + k;
        if (i < d.padded) {
            float clean = i < d.width ? d.rows[(size_t)network * d.width + i] : 0;
            d.in[1][(size_t)place * d.ld[1] + i] = clean;
            d.in[0][(size_t)place * d.ld[0] + i] = clean + d.noise * four[k];
        } else if (i < d.padded + d.latent)
            d.in[2][(size_t)place * d.ld[2] + i - d.padded] = four[k] * d.latent_noise;
    }
}

/* Noisy latents, steps, noise. */
__global__ void __launch_bounds__(threads) diffused_kernel(draws d) {
    uint32_t place = blockIdx.y, number = d.first + *d.update;
    uint32_t block = blockIdx.x * threads + threadIdx.x;
    __shared__ uint32_t network, step;
    if (threadIdx.x == 0) {
        wf_rng time = wf_rng_at(d.seed, place, WF_RNG_TIME, number);
        network = network_of(d, place, number);
        step = wf_rng_below(&time, d.steps);
        if (blockIdx.x == 0) d.in[1][(size_t)place * d.ld[1]] = (float)step / (float)d.steps;
    }
    __syncthreads();
    if (4 * block >= d.width) return;
    float four[4];
    four_deviates(d.seed, place, WF_RNG_NOISE, number, block, four);
    for (uint32_t k = 0; k < 4 && 4 * block + k < d.width; k++) {
        uint32_t i = 4 * block + k;
        float z = d.rows[(size_t)network * d.width + i];
        d.in[2][(size_t)place * d.ld[2] + i] = four[k];
        d.in[0][(size_t)place * d.ld[0] + i] = d.signal[step] * z + d.spread[step] * four[k];
    }
}

/* The relabelling of the second view of a network. */
__device__ uint32_t relabelling_of(const draws &d, uint32_t view, uint32_t network,
                                   uint32_t number) {
    wf_rng choice = wf_rng_at(d.seed, view, WF_RNG_BATCH, number);
    uint32_t copy = wf_rng_below(&choice, min(d.copies, d.relabellings));
    wf_rng own = wf_rng_at(d.view_seed, network, WF_RNG_VIEW, UINT32_MAX);
    return wf_rng_permuted(&own, d.relabellings, copy);
}

/* First views, then second ones, which are relabelled. */
__global__ void __launch_bounds__(threads) views_kernel(draws d) {
    uint32_t view = blockIdx.y, number = d.first + *d.update;
    uint32_t block = blockIdx.x * threads + threadIdx.x;
    bool second = view >= d.places;
    __shared__ uint32_t network, chosen;
    if (threadIdx.x == 0) {
        network = network_of(d, view % d.places, number);
        chosen = second ? relabelling_of(d, view, network, number) : 0;
    }
    __syncthreads();
    if (4 * block >= d.width) return;
    float four[4];
    four_deviates(d.seed, view, WF_RNG_NOISE, number, block, four);
    const uint32_t *from = d.from + (size_t)chosen * d.units;
    for (uint32_t k = 0; k < 4 && 4 * block + k < d.width; k++) {
        uint32_t i = 4 * block + k;
        uint32_t at = second ? wf_batch_gpu::relabelled(d.blocks, d.n_blocks, from, i) : i;
        float w = d.rows[(size_t)network * d.width + at];
        d.in[0][(size_t)view * d.ld[0] + i] = w * (1 + d.noise * four[k]);
    }
}

dim3 grid(uint32_t values, uint32_t rows) {
    return dim3((values + 4 * threads - 1) / (4 * threads), rows);
}

} // namespace

void draw(const draws &d, cudaStream_t stream) {
    switch (d.law) {
    case WF_PHASE_NOISY:
        noisy_kernel<<<grid(d.padded + d.latent, d.places), threads, 0, stream>>>(d);
        break;
    case WF_PHASE_DIFFUSED:
        diffused_kernel<<<grid(d.width, d.places), threads, 0, stream>>>(d);
        break;
    case WF_PHASE_VIEWS:
        views_kernel<<<grid(d.width, 2 * d.places), threads, 0, stream>>>(d);
        break;
    }
}

} // namespace wf_phase_gpu
