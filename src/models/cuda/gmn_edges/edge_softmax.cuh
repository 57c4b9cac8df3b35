/* edge_softmax: softmax weights of a pair of bundles (models/edge_bundles.h) in the layout of
 * mma.cuh, where lane 4g + c has row g of both bundles. For kernels that sum messages with these
 * weights. A weight is relative to the largest logit so far, in fp16, and an operand of the product
 * that sums the rows (rows 0 .. 7 of it: towards nodes a0 + g; row 8: the first bundle, towards its
 * b; row 9: the second). Beside each partial sum are the largest logit and the sum of weights;
 * node_softmax_sums combines them. */
#pragma once

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "models/cuda/gmn_edges/partial_sums.cuh"

namespace wf_gpu::softmax {

const float lowest = -1e30f; /* below any logit, and finite */

__device__ inline float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ inline float shuffle_xor(float x, int bits) {
    return __shfl_xor_sync(0xffffffffu, x, bits);
}

/* acc += a b in fp16. */
__device__ inline void half_mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The weights towards node a0 + g over a segment. */
struct segment_weights {
    float top = lowest, total = 0;

    /* Adds the lane's rows; returns the factor by which the segment's sums so far must be scaled.
     * The total adds the rounded weights, so that the weights of an average add up to one. */
    __device__ float join(bool begins, const bool (&there)[2], const float (&logit)[2],
                          uint32_t *upper, uint32_t *lower) {
        int g = (int)(threadIdx.x % 32 / 4), c = (int)(threadIdx.x % 4);
        float before = begins ? lowest : top;
        top = fmaxf(before, fmaxf(there[0] ? logit[0] : lowest, there[1] ? logit[1] : lowest));
        float rescale = __expf(before - top);
        uint32_t words = mma::pack_half(there[0] ? __expf(logit[0] - top) : 0,
                                        there[1] ? __expf(logit[1] - top) : 0);
        float2 rounded = mma::unpack_half(words);
        total = (begins ? 0 : total * rescale) + (rounded.x + rounded.y);
        bool odd = g % 2 != 0, diagonal = g / 2 == c;
        *upper = !diagonal ? 0u : odd ? words << 16 : words & 0xffffu;
        *lower = !diagonal ? 0u : odd ? words & 0xffff0000u : words >> 16;
        return rescale;
    }
    /* After the last pair of a segment: stores its largest logit and total. */
    __device__ void leave(float2 *tops, int n_bundles, int segment) const {
        int lane = (int)(threadIdx.x % 32);
        if (lane % 4 == 0)
            tops[n_bundles + WF_BUNDLE * segment + lane / 4] = make_float2(top, total);
    }
};

/* The weights towards the b of either bundle: of the first in rows of g = 0, of the second in rows
 * of g = 1 (first, second: operands of row g + 8). Stores the tops of bundles that have edges. */
__device__ inline void bundle_weights(const bool (&there)[2], const float (&logit)[2], int pair,
                                      const int (&count)[2], float2 *tops, uint32_t *first,
                                      uint32_t *second) {
    /* Lanes with c < 2 look at the first bundle, the others at the second. */
    int lane = (int)(threadIdx.x % 32), g = lane / 4, c = lane % 4;
    bool mine = c >= 2 ? there[1] : there[0];
    float own = c >= 2 ? logit[1] : logit[0], top = mine ? own : lowest;
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2) top = fmaxf(top, shuffle_xor(top, bits));
    float weight = mma::unpack_half(mma::pack_half(mine ? __expf(own - top) : 0, 0)).x;
    float total = weight;
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2) total += shuffle_xor(total, bits);
    if ((lane == 0 && count[0] > 0) || (lane == 6 && count[1] > 0))
        tops[2 * pair + lane / 4] = make_float2(top, total);
    int from = 8 * c + g % 2 * 2;
    uint32_t both = mma::pack_half(shuffle(weight, from), shuffle(weight, from + 4));
    *first = g == 0 ? both : 0u;
    *second = g == 1 ? both : 0u;
}

/* The largest power of two not above a positive number with these bits, and its inverse. */
__device__ inline float power_below(uint32_t bits) { return __uint_as_float(bits & 0x7f800000u); }
__device__ inline float power_over(uint32_t bits) {
    return __uint_as_float(0x7f000000u - (bits & 0x7f800000u));
}

/* --- gradients of the vectors ----------------------------------------------------------------- */
/* A lane's dl of its two rows as rows of an fp16 operand (first bundle, second bundle), divided by
 * `times`, a power of two, because gradients may be small. */
__device__ inline void vector_rows(const float (&dl)[2], uint32_t *first, uint32_t *second,
                                   float *times) {
    float most = fmaxf(fabsf(dl[0]), fabsf(dl[1]));
    uint32_t bits = (uint32_t)__reduce_max_sync(0xffffffffu, (int)__float_as_uint(most));
    float by = power_over(bits);
    uint32_t word = mma::pack_half(by * dl[0], by * dl[1]);
    int from = 8 * (int)(threadIdx.x % 4);
    uint32_t even = __shfl_sync(0xffffffffu, word, from);
    uint32_t odd = __shfl_sync(0xffffffffu, word, from + 4);
    *first = __byte_perm(even, odd, 0x5410);
    *second = __byte_perm(even, odd, 0x7632);
    *times = power_below(bits);
}
/* `to` (split columns) and `behind` (the rest of ld) += rows of partials (rows, ld), in order;
 * NULL: not wanted. Runs on the side stream for_partial_sums. */
void add_vector_partials(const float *partials, int rows, int ld, int split, const wf_tensor *to,
                         const wf_tensor *behind);

} // namespace wf_gpu::softmax
