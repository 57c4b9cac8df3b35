/* zoo_large_input: networks whose first layer holds most of the parameters, on tensor cores; see
 * zoo_large_input.cu. */
#pragma once

#include "zoo/cuda/zoo_layers.cuh"

#include <cuda_bf16.h>

namespace zoo_gpu {

/* C blocks train a network; each has W warps, a warp owns 8 NT columns of the first layer. */
struct large_input_plan {
    gpu_plan rest;        /* the layers after the first, and its bias; rest.rows = R / C */
    int tiles_m, tiles_n; /* MT (units / 16), NT */
    int ranks, warps;     /* C, W */
    int rows;             /* R: examples at once */
    int columns;          /* of a block: 8 NT W */
    /* of an example in shared memory, in bf16: columns, or 8 more to spread the banks */
    int stride;
    int planes; /* of the inputs: 1 if they are exact in bf16 up to `scale`, 2: hi + lo */
    float scale;
    /* in shared memory, bytes */
    int x, partial, inbox, delta, state, gradients, work, shared_bytes;
    divisor pieces;  /* planes columns / 8 */
    divisor of_rank; /* R / C */
    /* (n, C, planes, columns) */
    const __nv_bfloat16 *x_train, *x_test;
};

/* Chooses tiles, C and R; false: this kernel has no shape for the network. clusters: C > 1 is
 * possible. */
/* Whether the code that runs here was compiled for clusters: on a later GPU it may be that of
 * sm_80. */
bool can_cluster();
bool large_input_choose(large_input_plan *plan, bool clusters);

cudaError_t large_input_launch(const large_input_plan &plan, const gpu_networks &networks,
                               size_t count, cudaStream_t stream);

/* (n, inputs) floats to (n, C, planes, columns). */
cudaError_t split_into_planes(const large_input_plan &plan, const float *x, size_t n,
                              __nv_bfloat16 *out);

} // namespace zoo_gpu
