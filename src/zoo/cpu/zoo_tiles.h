/* zoo_tiles: the two matrix products of a dense layer, units in the lanes of a vector.
 *
 *   rows product    out[e][u] = finish(init[u] + sum_k a[e][k] * b[k][u])    forward, and the gradient of inputs
 *   outer product   sum[i][u] (+)= sum_e a[e][i] * d[e][u]                   the gradient of weights
 *
 * a is a table of row pointers, so that examples are read where they lie, in any order, without a
 * copy. b, d, out and sum are row-major with rows of `stride` reals, a multiple of WF_LANES.
 * A tile keeps its sums in registers: R rows x V vectors, and an entry of `a` enters as a broadcast memory
 * operand. Every sum runs over k (or e) in increasing order in one register: its bits
 * do not depend on the tile that holds it. */
#ifndef WF_ZOO_TILES_H
#define WF_ZOO_TILES_H

#include "base/variant.h"

#include <stddef.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* 32 registers hold 24 sums, 16 hold 12. */
enum {
    tile_vectors = 3,
    tile_rows = WF_LANES == 16 ? 8 : 4,
    tile_tall = 2 * tile_rows /* of an outer product one vector wide */
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
    const real *gate; /* (rows, stride), or NULL; may be `out` */
    real *out;        /* (rows, stride) */
    finish_kind finish;
} rows_product;

ALWAYS_INLINE vreal load(const real *from) { return *(const vreal *)from; }
ALWAYS_INLINE void store(real *to, vreal value) { *(vreal *)to = value; }

/* What a comparison of vectors gives: all ones or all zeros in each lane. */
typedef __typeof__((vreal){0} > (vreal){0}) vmask;
ALWAYS_INLINE vreal only_where(vmask mask, vreal value) { return (vreal)(mask & (vmask)value); }
ALWAYS_INLINE vreal larger(vreal a, vreal b) {
    vmask mask = a > b;
    return (vreal)((mask & (vmask)a) | (~mask & (vmask)b));
}

ALWAYS_INLINE vreal finish_sum(finish_kind finish, vreal sum, const real *gate) {
    const vreal zero = {0};
    switch (finish) {
    case finish_relu: return only_where(sum > zero, sum);
    case finish_gate: return only_where(load(gate) > zero, sum);
    case finish_multiply: return sum * load(gate);
    default: return sum;
    }
}

ALWAYS_INLINE void rows_tile(const rows_product *p, int row, size_t column, const int R,
                             const int V) {
    vreal sum[tile_rows][tile_vectors];
    const real *a[tile_rows];
    const real *b = p->b + column;
    const int depth = p->depth;
    const size_t stride = p->stride;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        a[r] = p->a[row + r];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) sum[r][v] = load(p->init + column + v * WF_LANES);
    }
    for (int k = 0; k < depth; k++, b += stride) {
        vreal bk[tile_vectors];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) bk[v] = load(b + v * WF_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[r][v] += a[r][k] * bk[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        size_t at = (size_t)(row + r) * stride + column;
#pragma GCC unroll 3
        for (int v = 0; v < V; v++, at += WF_LANES)
            store(p->out + at, finish_sum(p->finish, sum[r][v], p->gate + at));
    }
}

ALWAYS_INLINE void rows_panel(const rows_product *p, size_t column, const int V) {
    int row = 0;
    for (; row + tile_rows <= p->rows; row += tile_rows) rows_tile(p, row, column, tile_rows, V);
    for (; row + 2 <= p->rows; row += 2) rows_tile(p, row, column, 2, V);
    if (row < p->rows) rows_tile(p, row, column, 1, V);
}

/* How many vectors the next panel takes of those left: 4 go as 2 and 2. */
ALWAYS_INLINE int panel_width(size_t left) {
    if (left == 4) return 2;
    return left < tile_vectors ? (int)left : tile_vectors;
}

static void rows_product_run(const rows_product *p) {
    size_t vectors = p->stride / WF_LANES;
    for (size_t v = 0, width; v < vectors; v += width) {
        width = (size_t)panel_width(vectors - v);
        if (width == 1) rows_panel(p, v * WF_LANES, 1);
        else if (width == 2) rows_panel(p, v * WF_LANES, 2);
        else rows_panel(p, v * WF_LANES, 3);
    }
}

typedef struct outer_product {
    const real *const *a; /* [rows], each of `height` reals */
    int rows, height;
    const real *d; /* (rows, stride) */
    size_t stride;
    real *sum; /* (height, stride) */
    bool add;  /* to what is there */
} outer_product;

ALWAYS_INLINE void outer_tile(const outer_product *p, int first, size_t column, const int R,
                              const int V) {
    vreal sum[tile_tall][tile_vectors];
    real *out = p->sum + (size_t)first * p->stride + column;
    const real *d = p->d + column;
    const size_t stride = p->stride;
    const vreal zero = {0};
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++)
            sum[r][v] = p->add ? load(out + (size_t)r * stride + v * WF_LANES) : zero;
    for (int e = 0; e < p->rows; e++, d += stride) {
        const real *a = p->a[e] + first;
        vreal de[tile_vectors];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) de[v] = load(d + v * WF_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[r][v] += a[r] * de[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) store(out + (size_t)r * stride + v * WF_LANES, sum[r][v]);
}

ALWAYS_INLINE void outer_panel(const outer_product *p, size_t column, const int V) {
    int i = 0;
    if (V == 1)
        for (; i + tile_tall <= p->height; i += tile_tall) outer_tile(p, i, column, tile_tall, 1);
    for (; i + tile_rows <= p->height; i += tile_rows) outer_tile(p, i, column, tile_rows, V);
    for (; i + 2 <= p->height; i += 2) outer_tile(p, i, column, 2, V);
    if (i < p->height) outer_tile(p, i, column, 1, V);
}

static void outer_product_run(const outer_product *p) {
    size_t vectors = p->stride / WF_LANES;
    for (size_t v = 0, width; v < vectors; v += width) {
        width = (size_t)panel_width(vectors - v);
        if (width == 1) outer_panel(p, v * WF_LANES, 1);
        else if (width == 2) outer_panel(p, v * WF_LANES, 2);
        else outer_panel(p, v * WF_LANES, 3);
    }
}

#endif
