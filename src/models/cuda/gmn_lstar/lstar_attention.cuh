/* lstar_attention: the messages of an lstar block, weighted by a softmax over all that enter a
 * node.
 *
 *   l = v.y2     alpha = exp(l - max) / total     S = sum alpha y2     along = dS.S
 *   dl = alpha (dS.y2 - along)     dy2 = alpha dS + dl v     dv = sum dl y2
 * y2 is rounded to fp16 where it is summed, and also here, so that along and dS.y2 use the same
 * numbers. */
#pragma once

#include "models/cuda/gmn_edges/edge_softmax.cuh"
#include "models/cuda/gmn_edges/warp_tile.cuh"

namespace wf_gpu {

__device__ inline mma::fragment halves_of(const bundle::piece_acc &acc, int j) {
    mma::fragment y;
#pragma unroll
    for (int k = 0; k < 4; k++)
        y.r[k] = mma::pack_half(acc[2 * j + k / 2][k % 2 * 2], acc[2 * j + k / 2][k % 2 * 2 + 1]);
    return y;
}
/* y = SiLU(acc) in fp16. */
__device__ inline void into_halves(bundle::piece_acc &acc,
                                   mma::fragment (&y)[bundle::piece_groups]) {
    bundle::apply_silu(acc);
#pragma unroll
    for (int j = 0; j < bundle::piece_groups; j++) y[j] = halves_of(acc, j);
}
/* A lane's share of the products of its two rows of y with a row each. */
__device__ inline void add_dots(const mma::fragment &y, const float4 &upper, const float4 &lower,
                                float (&dot)[2]) {
    float2 x = mma::unpack_half(y.r[0]), z = mma::unpack_half(y.r[2]);
    dot[0] += x.x * upper.x + x.y * upper.y + (z.x * upper.z + z.y * upper.w);
    x = mma::unpack_half(y.r[1]), z = mma::unpack_half(y.r[3]);
    dot[1] += x.x * lower.x + x.y * lower.y + (z.x * lower.z + z.y * lower.w);
}
/* The same of a whole piece with v, which lies in shared memory from the piece's first column
 * on. */
__device__ inline void add_logits(const mma::fragment (&y)[bundle::piece_groups], const float *v,
                                  float (&logit)[2]) {
#pragma unroll
    for (int j = 0; j < bundle::piece_groups; j++) {
        float4 x = *(const float4 *)(v + 16 * j + 4 * (threadIdx.x % 4));
        add_dots(y[j], x, x, logit);
    }
}

/* A pair's y2, piece after piece: in the lane's places of shared memory (`at`, a warp's lie side by
 * side), or in registers. */
template <int H, bool Shared> struct kept_units {
    static constexpr int sixteens = H / 16;
    mma::fragment held[Shared ? 1 : sixteens];
    uint4 *at;
    __device__ void put(const mma::fragment (&y)[bundle::piece_groups], int k) {
        if constexpr (Shared) {
#pragma unroll
            for (int j = 0; j < bundle::piece_groups; j++)
                at[(bundle::piece_groups * k + j) * 32] =
                    uint4{y[j].r[0], y[j].r[1], y[j].r[2], y[j].r[3]};
        } else {
            bundle::push(held, y);
        }
    }
    __device__ mma::fragment get(int j) const {
        if constexpr (!Shared) return held[j];
        uint4 x = at[j * 32];
        return mma::fragment{{x.x, x.y, x.z, x.w}};
    }
};

} // namespace wf_gpu
