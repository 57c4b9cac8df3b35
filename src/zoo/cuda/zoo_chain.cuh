/* zoo_chain: small networks whole on tensor cores; see zoo_chain.cu. */
#ifndef WF_ZOO_CHAIN_CUH
#define WF_ZOO_CHAIN_CUH

#include "zoo/cuda/zoo_wide.cuh"

namespace zoo_gpu {

/* What the first layer needs is `wide`, whose layers behind are laid out by tiles of 16 instead. */
struct chain_plan {
    wide_plan wide; /* warps: all; x, partial, slots, delta (d_1), shared_bytes */
    int owners;     /* warps that own columns */
    int shape;      /* of the kernels' table */
    int operands;   /* bf16 (2, 16 T, R + 8): d_2, d_3, h_1, h_2, one behind the other */
    int state;  /* floats: weights, first, second moment of the layers behind and of all biases */
    int halves; /* their weights again, bf16 hi and lo */
};

/* Chooses C and R; false: no shape of this kernel is that of the network. */
bool chain_choose(chain_plan *plan, bool clusters);

cudaError_t chain_launch(const chain_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream);

} // namespace zoo_gpu
#endif
