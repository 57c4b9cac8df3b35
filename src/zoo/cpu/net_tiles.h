/* net_tiles: the products of convolutions, examples in the lanes of a vector.
 *
 * Values of a group are stored (place, unit, example): NET_TILE examples side by side, units of a
 * place one after another. A convolution is a sum over taps t, each a pair of a source place and a
 * matrix:
 *   gather     out[o] = init[o] + sum_t sum_u w_t[u][o] x_t[u]  forward, and the gradient of inputs
 *   weights    dw[o][u] += sum_p sum_e d_p[o] x_p[u]            of one tap, over places p
 * so no patches are copied. A weight enters as a broadcast memory operand, and a tile keeps its
 * sums in registers. Every sum runs in one order, whatever the tile. */
#pragma once

#include "base/variant.h"

#include <stdbool.h>
#include <stddef.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* 32 registers hold 24 sums, 16 hold 12. */
enum {
    NET_TILE = 16,                           /* examples of a tile */
    net_vectors = NET_TILE / WF_LANES,       /* of a row of examples */
    gather_vectors = WF_LANES == 16 ? 1 : 2, /* of these in one tile */
    gather_tall = WF_LANES == 16 ? 24 : 6,
    weights_tall = 4,
    weights_wide = WF_LANES == 16 ? 6 : 2
};

ALWAYS_INLINE vreal load(const real *from) { return *(const vreal *)from; }
ALWAYS_INLINE void store(real *to, vreal value) { *(vreal *)to = value; }

/* A tap: where its source units lie, and its matrix (depth, out). */
typedef struct net_tap {
    const real *x, *w;
} net_tap;

typedef struct gather {
    const net_tap *taps;
    int n_taps, depth; /* source units */
    int n_out;         /* units that are made: row length of the matrices */
    const real *init;  /* [n_out]; NULL: zero */
    bool add;          /* to what is in out */
    real *out;         /* (n_out, NET_TILE) */
} gather;

ALWAYS_INLINE void gather_tile(const gather *g, int first, int column, const int R) {
    vreal sum[gather_tall][gather_vectors];
    real *out = g->out + (size_t)first * NET_TILE + column * WF_LANES;
    const size_t stride = (size_t)g->n_out;
#pragma GCC unroll 24
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < gather_vectors; v++) {
            const vreal start = {0};
            sum[r][v] = g->add ? load(out + r * NET_TILE + v * WF_LANES)
                               : start + (g->init == NULL ? 0 : g->init[first + r]);
        }
    for (int t = 0; t < g->n_taps; t++) {
        const real *x = g->taps[t].x + column * WF_LANES, *w = g->taps[t].w + first;
        for (int u = 0; u < g->depth; u++, x += NET_TILE, w += stride) {
            vreal value[gather_vectors];
#pragma GCC unroll 2
            for (int v = 0; v < gather_vectors; v++) value[v] = load(x + v * WF_LANES);
#pragma GCC unroll 24
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int v = 0; v < gather_vectors; v++) sum[r][v] += w[r] * value[v];
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < gather_vectors; v++)
            store(out + r * NET_TILE + v * WF_LANES, sum[r][v]);
}

/* Units that the next tile takes of those left; 16 of 32 rather than 24 and 8. */
ALWAYS_INLINE int gather_height(int left) {
    if (gather_tall == 24) {
        if (left >= 24 && left != 32) return 24;
        return left >= 16 ? 16 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    }
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void gather_run(const gather *g) {
    for (int column = 0; column < net_vectors; column += gather_vectors)
        for (int first = 0, height; first < g->n_out; first += height) {
            height = gather_height(g->n_out - first);
            switch (height) {
#if WF_LANES == 16
            case 24: gather_tile(g, first, column, 24); break;
            case 16: gather_tile(g, first, column, 16); break;
            case 8: gather_tile(g, first, column, 8); break;
#else
            case 6: gather_tile(g, first, column, 6); break;
#endif
            case 4: gather_tile(g, first, column, 4); break;
            case 2: gather_tile(g, first, column, 2); break;
            default: gather_tile(g, first, column, 1); break;
            }
        }
}

/* The places over which one tap's weight gradient is summed: rows of `columns`, each step apart. */
typedef struct weight_sums {
    const real *x, *d; /* at the first place */
    int rows, columns;
    size_t x_row, x_step, d_row, d_step; /* reals from row to row, from place to place */
    int n_src, n_dst;
    real *gradient; /* of this tap: entry (o, u) lies at (o * n_src + u) * coef */
    size_t coef;
} weight_sums;

ALWAYS_INLINE real lane_sum(vreal value) {
    real sum = 0;
    for (int i = 0; i < WF_LANES; i++) sum += value[i];
    return sum;
}

ALWAYS_INLINE void weights_tile(const weight_sums *s, int u, int o, const int U, const int O) {
    vreal sum[weights_tall][weights_wide] = {{{0}}};
    for (int row = 0; row < s->rows; row++) {
        const real *x = s->x + (size_t)row * s->x_row + (size_t)u * NET_TILE;
        const real *d = s->d + (size_t)row * s->d_row + (size_t)o * NET_TILE;
        for (int c = 0; c < s->columns; c++, x += s->x_step, d += s->d_step)
            for (int v = 0; v < NET_TILE; v += WF_LANES) {
                vreal value[weights_tall];
#pragma GCC unroll 4
                for (int i = 0; i < U; i++) value[i] = load(x + i * NET_TILE + v);
#pragma GCC unroll 6
                for (int j = 0; j < O; j++) {
                    vreal slope = load(d + j * NET_TILE + v);
#pragma GCC unroll 4
                    for (int i = 0; i < U; i++) sum[i][j] += value[i] * slope;
                }
            }
    }
    for (int j = 0; j < O; j++)
        for (int i = 0; i < U; i++)
            s->gradient[((size_t)(o + j) * (size_t)s->n_src + (size_t)(u + i)) * s->coef] +=
                lane_sum(sum[i][j]);
}

ALWAYS_INLINE void weights_panel(const weight_sums *s, int u, const int U) {
    int o = 0;
    for (; o + weights_wide <= s->n_dst; o += weights_wide) weights_tile(s, u, o, U, weights_wide);
    for (; o + 2 <= s->n_dst; o += 2) weights_tile(s, u, o, U, 2);
    if (o < s->n_dst) weights_tile(s, u, o, U, 1);
}

static void weights_run(const weight_sums *s) {
    int u = 0;
    for (; u + weights_tall <= s->n_src; u += weights_tall) weights_panel(s, u, weights_tall);
    if (s->n_src - u == 3) weights_panel(s, u, 3);
    else if (s->n_src - u == 2) weights_panel(s, u, 2);
    else if (s->n_src - u == 1) weights_panel(s, u, 1);
}
