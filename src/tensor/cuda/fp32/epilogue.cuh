/* epilogue: what float and bf16 products have in common: how a thread fetches its part of a tile,
 * and what happens to the sums in registers. A thread passes on four neighbouring sums of a row at
 * a time, from a column that is a multiple of 4. */
#pragma once

#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {

/* Four neighbours, of which `left` exist. whole: all four exist and are aligned, or none exists. */
template <bool whole> __device__ inline void fetch4(const float *from, int left, float (&v)[4]) {
    if (whole) {
        float4 x = make_float4(0, 0, 0, 0);
        if (left > 0) x = *(const float4 *)from;
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = i < left ? from[i] : 0;
    }
}

/* This thread's part of a tile: rows first .. first + width - 1 below `count`, and BK of k from k
 * below k_end. k runs along the rows of `from` (inner) or down its columns. Elements outside are
 * zero. */
template <int width, int BK, int threads, bool inner, bool whole, int loads>
__device__ inline void fetch_tile(float (&held)[loads][4], const float *from, int ld, int first,
                                  int count, int k, int k_end) {
#pragma unroll
    for (int i = 0; i < loads; i++) {
        int at = (int)threadIdx.x + i * threads;
        int row, left;
        const float *source;
        if (inner) {
            int kk = k + at % (BK / 4) * 4;
            row = first + at / (BK / 4);
            left = row < count ? k_end - kk : 0;
            source = from + (size_t)row * ld + kk;
        } else {
            int kk = k + at / (width / 4);
            row = first + at % (width / 4) * 4;
            left = kk < k_end ? count - row : 0;
            source = from + (size_t)kk * ld + row;
        }
        fetch4<whole>(source, left, held[i]);
    }
}

/* Four elements of an output, which is aligned and padded. */
__device__ inline void take4(const float *from, float (&v)[4]) {
    float4 x = *(const float4 *)from;
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
__device__ inline void put4(float *to, const float (&v)[4]) {
    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
}
/* Four elements of a table: one load if they are aligned. */
__device__ inline void look4(const float *from, int left, float (&v)[4]) {
    if (((uintptr_t)from & 15) == 0 && left >= 4) fetch4<true>(from, left, v);
    else fetch4<false>(from, left, v);
}

/* --- results of four neighbouring sums; columns from n on are zero ---------------------------- */
__device__ inline void finish(const into_linear &to, int row, int col, int n, float (&x)[4]) {
    float *c = to.c + (size_t)row * to.ldc + col;
    float more[4];
    if (to.add) {
        take4(c, more);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] += more[i];
    }
    if (to.bias != NULL) {
        float scale = to.scale == NULL ? 1 : __ldg(to.scale + row);
        look4(to.bias + col, n - col, more);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] += scale * more[i];
    }
    if (to.table != NULL) {
        look4(to.table + (size_t)__ldg(to.map + row) * to.ld_table + col, n - col, more);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] += more[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = col + i < n ? x[i] : 0;
    put4(c, x);
}

__device__ inline void finish(const into_activation &to, int row, int col, int n, float (&x)[4]) {
    size_t at = (size_t)row * to.ld + col;
    float a[4], b[4] = {}, slope[4];
    look4(to.a + (to.index_a == NULL ? 0 : (size_t)__ldg(to.index_a + row) * to.lda) + col, n - col,
          a);
    if (to.b != NULL) look4(to.b + (size_t)__ldg(to.index_b + row) * to.ldb + col, n - col, b);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = accurate_activation(to.act, x[i] + a[i] + b[i], &slope[i]);
        if (col + i >= n) x[i] = slope[i] = 0;
    }
    put4(to.y + at, x);
    if (to.slope != NULL) put4(to.slope + at, slope);
}

__device__ inline void finish(const into_residual &to, int row, int col, int n, float (&x)[4]) {
    size_t at = (size_t)row * to.ld + col;
    float in[4], bias[4], gate[4] = {};
    take4(to.in + at, in);
    look4(to.bias + col, n - col, bias);
    if (to.gate != NULL)
        look4(to.gate + (size_t)__ldg(to.graph + row) * to.ld_gate + col, n - col, gate);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = col + i < n ? in[i] + (1 + gate[i]) * (x[i] + bias[i]) : 0;
    put4(to.out + at, x);
}

__device__ inline void finish(const into_product &to, int row, int col, int n, float (&x)[4]) {
    float *c = to.c + (size_t)row * to.ldc + col;
    float before[4];
    take4(c, before);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = col + i < n ? x[i] * before[i] : 0;
    put4(c, x);
}

/* The partial sums of a slice of rows, (slice, m, ld). */
struct into_slice {
    float *c;
    int ld, m;
};
__device__ inline void finish(const into_slice &to, int row, int col, int, float (&x)[4]) {
    put4(to.c + ((size_t)blockIdx.z * to.m + row) * to.ld + col, x);
}

/* Whether every group of four neighbours of an operand is aligned and exists as a whole or not at
 * all. */
inline bool in_fours(const float *data, int ld, int along) {
    return (uintptr_t)data % 16 == 0 && ld % 4 == 0 && along % 4 == 0;
}

} // namespace wf_gpu
