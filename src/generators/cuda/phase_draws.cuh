/* phase_draws: the inputs of a phase's update, drawn on the GPU: the `fill` functions of
 * pdiff_net.c and sane_net.c, with their bits (flow/cuda/draw_parts.cuh). Thread blocks of one row
 * each; a thread makes the four deviates of a Philox block at a time. */
#pragma once

#include "flow/cuda/draw_parts.cuh"

extern "C" {
#include "generators/phase_fit.h"
}

namespace wf_phase_gpu {

/* What a phase says of its draws, with `rows` and `from` where the device reads them: in its
 * memory, `rows` perhaps in the host's. All else lies in device memory. */
struct draws : wf_phase_draw {
    const uint32_t *update; /* of the phase; streams go by first + *update */
    uint32_t first;         /* updates of the phases before */
    uint32_t places, count; /* networks of a batch, and of those that are fitted */
    uint64_t seed;
    const float *signal, *spread;        /* DIFFUSED: (steps) shares of signal and noise */
    const wf_batch_gpu::relabel *blocks; /* VIEWS */
    int n_blocks;
    float *in[WF_PHASE_INPUTS];
    uint32_t ld[WF_PHASE_INPUTS]; /* between their rows */
};

void draw(const draws &d, cudaStream_t stream);

} // namespace wf_phase_gpu
