/* edge_tile: what the fused edge kernels share.
 *
 * A kernel takes its part's edges in tiles of 96 rows, in edge order, through the whole layer while they lie in the
 * caches. Invariants
 *   E1  sums towards nodes and graphs are added row by row in edge order: their bits do not depend on where tiles
 *       begin, so not on the other graphs of the batch
 *   E2  backward recomputes a tile from e; nothing but e and the sums is kept */
#ifndef WF_TENSOR_CPU_EDGE_TILE_H
#define WF_TENSOR_CPU_EDGE_TILE_H

#include "tensor/cpu/kernels.h"

enum { tile_rows = 96 };

typedef struct edge_tile {
    const wf_part *part;
    const wf_tensor *e, *modulation;
    int column;
    int first, rows; /* edges first .. first+rows-1 */
    real *hat, *eb;  /* (tile_rows, e->ld) */
    real rho[tile_rows];
} edge_tile;

static inline bool tile_start(edge_tile *tile, const wf_op *op, wf_arena *arena) {
    tile->part = op->part;
    tile->e = op->in[0];
    tile->modulation = op->in[1];
    tile->column = op->column;
    size_t count = (size_t)tile_rows * (size_t)tile->e->ld;
    tile->hat = scratch(arena, count);
    tile->eb = scratch(arena, count);
    tile->first = -tile_rows;
    tile->rows = 0;
    return tile->hat != NULL && tile->eb != NULL;
}

/* eb = LN(e) * (1 + scale) + shift of the next tile; false behind the last. */
static inline bool tile_next(edge_tile *tile) {
    tile->first += tile_rows;
    int left = tile->part->n_edges - tile->first;
    if (left <= 0) return false;
    tile->rows = left < tile_rows ? left : tile_rows;
    int cols = tile->e->cols, ld = tile->e->ld;
    for (int r = 0; r < tile->rows; r++) {
        int edge = tile->first + r;
        real *restrict hat = tile->hat + (size_t)r * ld, *restrict eb = tile->eb + (size_t)r * ld;
        tile->rho[r] = norm_row(row_of(tile->e, edge), cols, ld, hat);
        const real *shift = row_of(tile->modulation, tile->part->edge_graph[edge]) + tile->column;
        const real *scale = shift + cols;
        for (int c = 0; c < cols; c++) eb[c] = hat[c] * (1 + scale[c]) + shift[c];
        for (int c = cols; c < ld; c++) eb[c] = 0;
    }
    return true;
}

/* mean (B, de) += eb / edges of the graph. */
static inline void tile_mean(const edge_tile *tile, const wf_tensor *mean) {
    const uint32_t *graph = tile->part->edge_graph + tile->first;
    const uint32_t *start = tile->part->edge_start;
    for (int r = 0; r < tile->rows; r++) {
        real share = 1 / (real)(start[graph[r] + 1] - start[graph[r]]);
        row_add_scaled(row_of(mean, graph[r]), share, tile->eb + (size_t)r * tile->e->ld, mean->ld);
    }
}

/* deb (tile) is complete but for the mean's share: adds the gradients of modulation and of
 * e (de NULL: not wanted). */
static inline void tile_norm_backward(const edge_tile *tile, const wf_tensor *mean, real *deb,
                                      real *de) {
    const wf_tensor *modulation = tile->modulation;
    const uint32_t *graph = tile->part->edge_graph + tile->first;
    const uint32_t *start = tile->part->edge_start;
    int cols = tile->e->cols, ld = tile->e->ld;
    for (int r = 0; r < tile->rows; r++) {
        real *restrict g = deb + (size_t)r * ld;
        const real *restrict hat = tile->hat + (size_t)r * ld;
        if (mean != NULL)
            row_add_scaled(g, 1 / (real)(start[graph[r] + 1] - start[graph[r]]),
                           grad_row(mean, graph[r]), cols);
        if (wanted(modulation)) {
            real *restrict dshift = grad_row(modulation, graph[r]) + tile->column;
            for (int c = 0; c < cols; c++) dshift[c] += g[c];
            for (int c = 0; c < cols; c++) dshift[cols + c] += g[c] * hat[c];
        }
        const real *restrict scale = row_of(modulation, graph[r]) + tile->column + cols;
        for (int c = 0; c < cols; c++) g[c] *= 1 + scale[c];
        if (de != NULL)
            norm_row_backward(de + (size_t)(tile->first + r) * ld, g, hat, tile->rho[r], cols);
    }
}

/* out = unit(in + a + b) over cols, b NULL: none; slope = unit'(in + a + b), NULL: not wanted. in may be out. */
static inline __attribute__((always_inline)) void unit_row(const int unit, const real *in,
                                                           real *out, real *restrict slope,
                                                           const real *restrict a,
                                                           const real *restrict b, int cols) {
    if (slope == NULL && b == NULL) {
        for (int c = 0; c < cols; c++) out[c] = unit_value(unit, in[c] + a[c]);
    } else if (slope == NULL) {
        for (int c = 0; c < cols; c++) out[c] = unit_value(unit, in[c] + a[c] + b[c]);
    } else {
        for (int c = 0; c < cols; c++) {
            real x = in[c] + a[c] + (b == NULL ? 0 : b[c]);
            slope[c] = unit_slope(unit, x, &out[c]);
        }
    }
}

/* A hidden layer's unit over a tile of rows `ld` apart: tables a and b by index, index NULL: row 0 (a bias). */
typedef struct tile_unit_args {
    const real *in;
    real *out, *slope;
    int ld, rows, first, cols; /* columns first .. cols-1 */
    const wf_tensor *a, *b;
    const uint32_t *index_a, *index_b;
} tile_unit_args;

static inline __attribute__((always_inline)) void tile_unit_of(const int unit,
                                                               const tile_unit_args *t) {
    for (int r = 0; r < t->rows; r++) {
        size_t at = (size_t)r * (size_t)t->ld + (size_t)t->first;
        const real *a = row_of(t->a, t->index_a == NULL ? 0 : t->index_a[r]) + t->first;
        const real *b = t->b == NULL ? NULL : row_of(t->b, t->index_b[r]) + t->first;
        unit_row(unit, t->in + at, t->out + at, t->slope == NULL ? NULL : t->slope + at, a, b,
                 t->cols - t->first);
    }
}
static inline void tile_unit(int unit, const tile_unit_args *args) {
    if (unit == WF_UNIT_SILU) tile_unit_of(WF_UNIT_SILU, args);
    else tile_unit_of(WF_UNIT_GELU, args);
}

/* Softmax weights over all messages entering a node, in one pass: running maximum and sum of exponentials per node.
 * `sums` are the unnormalised weighted sums that a new maximum rescales. */
typedef struct node_softmax {
    real *max, *total; /* [N] */
} node_softmax;

static inline node_softmax softmax_view(const wf_op *op) {
    real *memory = op->saved;
    return (node_softmax){memory, memory + op->part->n_nodes};
}
static inline void softmax_start(node_softmax softmax, int nodes) {
    for (int n = 0; n < nodes; n++) {
        softmax.max[n] = -(real)INFINITY;
        softmax.total[n] = 0;
    }
}
/* Weight of a message with this logit; *rescale is the factor for what the node has so far. */
static inline real softmax_add(node_softmax softmax, uint32_t node, real logit, real *rescale) {
    real weight = 1;
    *rescale = 1;
    if (logit > softmax.max[node]) {
        *rescale = softmax.total[node] > 0 ? r_exp(softmax.max[node] - logit) : 0;
        softmax.max[node] = logit;
        softmax.total[node] *= *rescale;
    } else {
        weight = r_exp(logit - softmax.max[node]);
    }
    softmax.total[node] += weight;
    return weight;
}
static inline real softmax_weight(node_softmax softmax, uint32_t node, real logit) {
    return r_exp(logit - softmax.max[node]) / softmax.total[node];
}
static inline void row_scale(real *x, real factor, int n) {
    for (int i = 0; i < n; i++) x[i] *= factor;
}

#endif
