/* zoo_block: any MLP, one block a network, in fp32; see zoo_block.cu. */
#pragma once

#include "zoo/cuda/zoo_layers.cuh"

namespace zoo_gpu {

struct block_plan {
    gpu_plan net;
    int threads;
    /* of weights, gradient, first and second moment, so many lie in shared memory, the others in
     * `spill` */
    int arrays_shared;
    int shared_bytes;
    float *spill; /* (count, 4 - arrays_shared, n_padded) */
};

/* Chooses rows and places; false: not even the activations of 32 examples fit. */
bool block_choose(block_plan *plan);

/* Floats of spill memory for each network. */
size_t block_spill(const block_plan &plan);

cudaError_t block_launch(const block_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream);

} // namespace zoo_gpu
