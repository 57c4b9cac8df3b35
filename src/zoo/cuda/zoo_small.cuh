/* zoo_small: small networks with many inputs, trained on tensor cores; see zoo_small.cu. */
#pragma once

#include "zoo/cuda/zoo_large_input.cuh"

namespace zoo_gpu {

/* `large` is the plan of the first layer; the layers after it are laid out in tiles of 16
 * instead. */
struct small_plan {
    large_input_plan large; /* warps: all; x, partial, inbox, delta (d_1), shared_bytes */
    int owners;             /* warps that own columns */
    int shape;              /* of the kernels' table */
    int operands;           /* bf16 (2, 16 T, R + 8): d_2, d_3, h_1, h_2, one after the other */
    int state;  /* floats: weights, first, second moment of the later layers and of all biases */
    int halves; /* their weights again, bf16 hi and lo */
};

/* Chooses C and R; false: this kernel has no shape for the network. */
bool small_choose(small_plan *plan, bool clusters);

cudaError_t small_launch(const small_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream);

} // namespace zoo_gpu
