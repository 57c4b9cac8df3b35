/* phase_draws: the inputs of a phase's update, drawn on the GPU: the `fill` functions of
 * pdiff_net.c and sane_net.c, with their bits (flow/cuda/draw_parts.cuh). Thread blocks of one row
 * each; a thread makes the four deviates of a Philox block at a time. */
#pragma once

#include "flow/cuda/draw_parts.cuh"

extern "C" {
#include "generators/phase_fit.h"
}

namespace wf_phase_gpu {

/* Everything lies in device memory, `rows` perhaps in host memory that the device reads. */
struct draws {
    wf_phase_law law;
    const uint32_t *update; /* of the phase; streams go by first + *update */
    uint32_t first;         /* updates of the phases before */
    uint32_t places, count; /* networks of a batch, and of those that are fitted */
    uint64_t seed;
    const float *rows; /* (count, width) */
    uint32_t width;
    uint32_t padded, latent; /* NOISY: of a row, and of the noise of latents */
    float noise, latent_noise;
    uint32_t steps; /* DIFFUSED, and the shares (steps) of signal and noise at each */
    const float *signal, *spread;
    const wf_batch_gpu::relabel *blocks; /* VIEWS */
    int n_blocks;
    uint32_t copies, relabellings, units;
    const uint32_t *from; /* (relabellings, units) */
    uint64_t view_seed;
    float *in[WF_PHASE_INPUTS];
    uint32_t ld[WF_PHASE_INPUTS]; /* between their rows */
};

void draw(const draws &d, cudaStream_t stream);

} // namespace wf_phase_gpu
