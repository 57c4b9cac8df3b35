/* zoo_wide: networks whose first layer holds most of the parameters, on tensor cores; see zoo_wide.cu. */
#ifndef WF_ZOO_WIDE_CUH
#define WF_ZOO_WIDE_CUH

#include "zoo/cuda/zoo_layers.cuh"

#include <cuda_bf16.h>

namespace zoo_gpu {

/* C blocks train a network; each has W warps, a warp owns 8 NT columns of the first layer. */
struct wide_plan {
    gpu_plan rest;        /* the layers behind the first, and its bias; rest.rows = R / C */
    int tiles_m, tiles_n; /* MT (units / 16), NT */
    int ranks, warps;     /* C, W */
    int rows;             /* R: examples at once */
    int columns;          /* of a block: 8 NT W */
    int stride; /* of an example in shared memory, in bf16: columns, or 8 more to spread the banks */
    int planes; /* of the inputs: 1 where they are exact in bf16 but for `scale`, 2: hi + lo */
    float scale;
    /* in shared memory, bytes */
    int x, partial, slots, delta, state, gradients, work, shared_bytes;
    divisor pieces;  /* planes columns / 8 */
    divisor of_rank; /* R / C */
    /* (n, C, planes, columns) */
    const __nv_bfloat16 *x_train, *x_test;
};

/* Chooses tiles, C and R; false: no shape of this kernel holds such a network. clusters: C > 1 is possible. */
/* Whether the code that runs here was made for clusters: on a later card it may be that of sm_80. */
bool can_cluster();
bool wide_choose(wide_plan *plan, bool clusters);

cudaError_t wide_launch(const wide_plan &plan, const gpu_networks &networks, size_t count,
                        cudaStream_t stream);

/* (n, inputs) floats to (n, C, planes, columns). */
cudaError_t wide_inputs(const wide_plan &plan, const float *x, size_t n, __nv_bfloat16 *out);

} // namespace zoo_gpu
#endif
