/* zoo_tiles: the two matrix products of a dense layer, units in the lanes of a vector.
 *
 *   rows product    out[e][u] = finish(init[u] + sum_k a[e][k] * b[k][u])
 *                   forward, and the gradient of inputs
 *   outer product   sum[i][u] (+)= sum_e a[e][i] * d[e][u]    the gradient of weights
 *
 * a is a table of row pointers, so that examples are read where they lie, in any order, without a
 * copy. b, d, out and sum are row-major with rows of `stride` reals, a multiple of tile_grain. A
 * tile keeps its sums in registers: R rows x V vectors, and an entry of `a` enters as a broadcast
 * memory operand. Every sum runs over k (or e) in increasing order in one register: its bits do not
 * depend on the tile that holds it.
 *
 * With 16 lanes a last panel of 8 units or fewer takes half vectors, which cost half on CPUs that
 * run wide ones in two passes: 64-16-8-10 spends 173 instead of 194 wide multiply-adds an example,
 * 167 being the least. */
#pragma once

#include "base/variant.h"

#include <stdbool.h>
#include <stddef.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* 32 registers hold 24 sums, 16 hold 12. */
enum {
    tile_vectors = 3,
    tile_rows = WF_LANES == 16 ? 8 : 4,
    tile_tall = 2 * tile_rows,                            /* of an outer product one vector wide */
    tile_grain = WF_LANES == 16 ? WF_LANES / 2 : WF_LANES /* strides are multiples of this */
};

typedef enum finish_kind {
    finish_plain,
    finish_relu,     /* max(sum, 0) */
    finish_gate,     /* sum where gate > 0, else 0: backward through relu */
    finish_multiply, /* sum * gate */
} finish_kind;

typedef struct rows_product {
    const real *const *a; /* [rows], each of `depth` reals */
    int rows, depth;
    const real *b; /* (depth, stride) */
    size_t stride;
    const real *init; /* [stride] */
    const real *gate; /* (rows, stride); may be `out`; not read by finish_plain and finish_relu */
    real *out;        /* (rows, stride) */
    finish_kind finish;
} rows_product;

typedef struct outer_product {
    const real *const *a; /* [rows], each of `height` reals */
    int rows, height;
    const real *d; /* (rows, stride) */
    size_t stride;
    real *sum; /* (height, stride) */
    bool add;  /* to what is there */
} outer_product;

#define TILE_LANES WF_LANES
#define TILE_FN(name) name##_full
#include "zoo/cpu/zoo_tile.h"
#if WF_LANES == 16
#define TILE_LANES (WF_LANES / 2)
#define TILE_FN(name) name##_half
#include "zoo/cpu/zoo_tile.h"
#define HALF_PANEL(call) call
#else
#define HALF_PANEL(call) ((void)0)
#endif

/* How many vectors the next panel takes of those left: 4 go as 2 and 2. */
ALWAYS_INLINE int panel_width(size_t left) {
    if (left == 4) return 2;
    return left < tile_vectors ? (int)left : tile_vectors;
}

static void rows_product_run(const rows_product *p) {
    size_t vectors = p->stride / WF_LANES;
    for (size_t v = 0, width; v < vectors; v += width) {
        width = (size_t)panel_width(vectors - v);
        if (width == 1) rows_panel_full(p, v * WF_LANES, 1);
        else if (width == 2) rows_panel_full(p, v * WF_LANES, 2);
        else rows_panel_full(p, v * WF_LANES, 3);
    }
    if (vectors * WF_LANES < p->stride) HALF_PANEL(rows_panel_half(p, vectors * WF_LANES, 1));
}

static void outer_product_run(const outer_product *p) {
    size_t vectors = p->stride / WF_LANES;
    for (size_t v = 0, width; v < vectors; v += width) {
        width = (size_t)panel_width(vectors - v);
        if (width == 1) outer_panel_full(p, v * WF_LANES, 1);
        else if (width == 2) outer_panel_full(p, v * WF_LANES, 2);
        else outer_panel_full(p, v * WF_LANES, 3);
    }
    if (vectors * WF_LANES < p->stride) HALF_PANEL(outer_panel_half(p, vectors * WF_LANES, 1));
}

/* sum[u] (+)= sum over rows of d[e][u], d (rows, stride). */
static void column_sums(const real *d, int rows, size_t stride, real *sum, bool add) {
    size_t column = 0;
    for (; column + WF_LANES <= stride; column += WF_LANES)
        column_sum_full(d + column, rows, stride, sum + column, add);
    if (column < stride) HALF_PANEL(column_sum_half(d + column, rows, stride, sum + column, add));
}

/* --- examples in the lanes -------------------------------------------------------------------- */

ALWAYS_INLINE vreal load(const real *from) { return *(const vreal *)from; }
ALWAYS_INLINE void store(real *to, vreal value) { *(vreal *)to = value; }

ALWAYS_INLINE vreal larger(vreal a, vreal b) {
    typedef __typeof__(a > b) mask;
    mask greater = a > b;
    return (vreal)((greater & (mask)a) | (~greater & (mask)b));
}

/* to[c][r] = from[r][c] for a square of WF_LANES. */
#ifdef __AVX512F__
ALWAYS_INLINE void transpose(const real *from, size_t from_stride, real *to, size_t to_stride) {
    __m512 row[WF_LANES];
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 16
    for (int r = 0; r < WF_LANES; r++) row[r] = _mm512_loadu_ps(from + (size_t)r * from_stride);
        /* Step d swaps the off-diagonal quarters of every square of 2d; lane + 16 names the second
         * operand. */
#pragma GCC unroll 4
    for (int d = 1; d < WF_LANES; d *= 2) {
        const __mmask16 odd = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(d));
        const __m512i upper = _mm512_mask_add_epi32(lane, odd, lane, _mm512_set1_epi32(16 - d));
        const __m512i lower = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(d)),
                                                    odd, lane, _mm512_set1_epi32(16));
#pragma GCC unroll 16
        for (int r = 0; r < WF_LANES; r++) {
            if (r & d) continue;
            __m512 a = row[r], b = row[r + d];
            row[r] = _mm512_permutex2var_ps(a, upper, b);
            row[r + d] = _mm512_permutex2var_ps(a, lower, b);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < WF_LANES; r++) _mm512_storeu_ps(to + (size_t)r * to_stride, row[r]);
}
#else
ALWAYS_INLINE void transpose(const real *from, size_t from_stride, real *to, size_t to_stride) {
    for (size_t c = 0; c < WF_LANES; c++)
        for (size_t r = 0; r < WF_LANES; r++) to[c * to_stride + r] = from[r * from_stride + c];
}
#endif
