/* lstar_back: common parts of the backward kernels of an lstar block: slopes stored aside,
 * activations that leave as images. */
#pragma once

#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_edges/warp_tile.cuh"
#include "models/cuda/gmn_edges/edge_weight_gradients.cuh"

namespace wf_gpu {

inline float *wanted_grad(const wf_tensor *tensor) {
    return wanted(tensor) ? grad_of(tensor) : NULL;
}

/* Sums of the segments (segments, cols) to the gradient of scale and shift, where it is wanted. */
inline void add_modulation_sums(const wf_op *op, const float *segments, int cols) {
    const wf_tensor *modulation = op->in[1];
    if (!wanted(modulation)) return;
    graph_segment_sums(partial_sum_args{op->part, segments, cols, cols, 0, NULL, false,
                                        grad_of(modulation) + op->column, modulation->ld, false});
}

__device__ inline uint4 bits_of(const mma::fragment &f) {
    return uint4{f.r[0], f.r[1], f.r[2], f.r[3]};
}
/* acc[2j], acc[2j+1] *= a fragment */
__device__ inline void scale_by(bundle::piece_acc &acc, int j, const uint4 &f) {
    float2 x = bundle::halves(f.x), y = bundle::halves(f.y), z = bundle::halves(f.z),
           w = bundle::halves(f.w);
    acc[2 * j][0] *= x.x;
    acc[2 * j][1] *= x.y;
    acc[2 * j][2] *= y.x;
    acc[2 * j][3] *= y.y;
    acc[2 * j + 1][0] *= z.x;
    acc[2 * j + 1][1] *= z.y;
    acc[2 * j + 1][2] *= w.x;
    acc[2 * j + 1][3] *= w.y;
}
__device__ inline uint32_t add_pairs(uint32_t x, uint32_t y) {
    float2 a = bundle::halves(x), b = bundle::halves(y);
    return mma::pack(a.x + b.x, a.y + b.y);
}
__device__ inline void add_fragment(mma::fragment &x, const uint4 &y) {
    x = mma::fragment{{add_pairs(x.r[0], y.x), add_pairs(x.r[1], y.y), add_pairs(x.r[2], y.z),
                       add_pairs(x.r[3], y.w)}};
}

/* Slopes of SiLU lie in (-0.1, 1.1): a byte each, round(212.5 s) + 21, is as good as bf16 there and
 * half as long. */
__device__ inline uint32_t slope_bytes(const float (&s)[4]) {
    uint32_t q[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] =
            __float_as_uint(fmaf(s[i], 212.5f, 8388629.0f)); /* the mantissa's end is the number */
    return __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
}
__device__ inline void scale_by_bytes(float (&acc)[4], uint32_t bytes) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float q = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 | i));
        acc[i] *= (q - 8388629.0f) * (1 / 212.5f);
    }
}

/* y = s(acc) to fragments and the image, s' of piece k to two places of the lane's slopes. */
__device__ inline void units_and_slopes(bundle::piece_acc &acc, int k,
                                        mma::fragment (&y)[bundle::piece_groups],
                                        unsigned char *image, uint4 *slopes) {
    uint32_t bytes[bundle::piece_tiles];
#pragma unroll
    for (int t = 0; t < bundle::piece_tiles; t++) {
        float slope[4];
#pragma unroll
        for (int i = 0; i < 4; i++) acc[t][i] = mma::fast_activation<false>(acc[t][i], &slope[i]);
        bytes[t] = slope_bytes(slope);
    }
    slopes[2 * k * bundle::group_threads] = uint4{bytes[0], bytes[1], bytes[2], bytes[3]};
    slopes[(2 * k + 1) * bundle::group_threads] = uint4{bytes[4], bytes[5], bytes[6], bytes[7]};
#pragma unroll
    for (int j = 0; j < bundle::piece_groups; j++)
        y[j] = mma::fragment_of(acc[2 * j], acc[2 * j + 1]);
#pragma unroll
    for (int j = 0; j < bundle::piece_groups; j += 2)
        store_image(image, (bundle::piece_groups * k + j) / 2, y[j], y[j + 1]);
}
__device__ inline void scale_by_slopes(bundle::piece_acc &acc, const uint4 (&slope)[2]) {
    uint32_t bytes[bundle::piece_tiles] = {slope[0].x, slope[0].y, slope[0].z, slope[0].w,
                                           slope[1].x, slope[1].y, slope[1].z, slope[1].w};
#pragma unroll
    for (int t = 0; t < bundle::piece_tiles; t++) scale_by_bytes(acc[t], bytes[t]);
}

/* A lane's stash: fragments that only this lane reads again, in shared memory where it has room,
 * else in memory that stays in L2. */
template <int Fragments>
__device__ inline void load_stash(const uint4 *stash, mma::fragment (&to)[Fragments]) {
#pragma unroll
    for (int i = 0; i < Fragments; i++) {
        uint4 x = stash[i * bundle::group_threads];
        to[i] = mma::fragment{{x.x, x.y, x.z, x.w}};
    }
}
template <int Fragments>
__device__ inline void store_stash(uint4 *stash, const mma::fragment (&from)[Fragments]) {
#pragma unroll
    for (int i = 0; i < Fragments; i++) stash[i * bundle::group_threads] = bits_of(from[i]);
}
/* Whether `fragments` of every lane fit after `bytes` of weights. */
template <int D> __host__ __device__ constexpr bool stash_is_shared(size_t bytes, int fragments) {
    return bytes + back_groups<D>() * fragments * bundle::group_threads * sizeof(uint4) <=
           226 * 1024;
}
template <int D> __host__ __device__ constexpr size_t stash_bytes(size_t bytes, int fragments) {
    return stash_is_shared<D>(bytes, fragments)
               ? back_groups<D>() * fragments * bundle::group_threads * sizeof(uint4)
               : 0;
}
/* The lane's own; `shared`: where shared memory is left, 16-byte aligned. */
template <int D>
__device__ inline uint4 *own_stash(bool is_shared, void *shared, uint4 *global, int fragments) {
    int group = (int)threadIdx.x / bundle::group_threads;
    uint4 *all = is_shared ? (uint4 *)shared
                           : global + (size_t)blockIdx.x * back_groups<D>() * fragments *
                                          bundle::group_threads;
    return all + (size_t)group * fragments * bundle::group_threads +
           threadIdx.x % bundle::group_threads;
}

/* The stash in memory of all warpgroups; NULL: no scratch left. */
template <int D> inline uint4 *take_stash(int tasks, int fragments, wf_arena *arena) {
    size_t groups = (size_t)most_blocks(tasks, back_groups<D>()) * back_groups<D>();
    return (uint4 *)wf_arena_alloc(arena,
                                   groups * fragments * bundle::group_threads * sizeof(uint4));
}

/* All columns of a tile's image. */
template <int Fragments>
__device__ inline void store_tile(unsigned char *image, const mma::fragment (&from)[Fragments]) {
#pragma unroll
    for (int i = 0; i < Fragments / 2; i++) store_image(image, i, from[2 * i], from[2 * i + 1]);
}

} // namespace wf_gpu
