/* zoo_start: the initial state of networks, drawn on the device from the same addresses as in
 * zoo_init.c. */
#pragma once

#include "zoo/cuda/zoo_layers.cuh"

namespace zoo_gpu {

enum { max_blocks = 2 * max_layers };

/* Initial weights of block b: +- bound, uniform, at offset of the flat vector. */
struct start_block {
    int offset, count;
    float bound;
};

struct start_plan {
    uint64_t seed;
    int n_blocks, n_params;
    start_block blocks[max_blocks];
    int n_train, epochs_max;
};

/* (count, n_params), the bits of wf_zoo_init. */
cudaError_t start_weights(const start_plan &plan, const gpu_task *tasks, size_t count, float *flat,
                          cudaStream_t stream);

/* (count, epochs_max, n_train), the order of wf_rng_shuffle; one of the two types. */
cudaError_t start_orders(const start_plan &plan, const gpu_task *tasks, size_t count,
                         uint16_t *order16, uint32_t *order32, cudaStream_t stream);

} // namespace zoo_gpu
