/* edge_tile: what the fused edge kernels share.
 *
 * A kernel takes its part's edges in tiles of 96 rows, in edge order, through the whole layer while
 * they lie in the caches. Invariants
 *   E1  sums towards nodes and graphs are added row by row in edge order: their bits do not
 *       depend on where tiles begin, so not on the other graphs of the batch
 *   E2  backward recomputes a tile from e; nothing but e and the sums is kept */
#pragma once

#include "tensor/cpu/kernels.h"

enum { tile_rows = 96 };

typedef struct edge_tile {
    const wf_part *part;
    const wf_tensor *e;
    int first, rows; /* edges first .. first+rows-1 */
    real *hat, *eb;  /* (tile_rows, e->ld) */
    real rho[tile_rows];
    /* Modulation of the edges, (graphs, e->ld) each with padding zero: shift, 1 + scale, and lean's
     * 1 + gate */
    real *shift, *scale, *gate;
    real *dshift, *dscale; /* its gradient so far; NULL in forward */
    real *share;           /* [graphs] 1 / edges */
} edge_tile;

/* Columns of the modulation as padded rows, plus `add`. */
static inline real *padded_columns(const wf_op *op, int column, real add, wf_arena *arena) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1];
    real *out = zeroed_scratch(arena, (size_t)modulation->rows * (size_t)e->ld);
    for (int g = 0; out != NULL && g < modulation->rows; g++)
        for (int c = 0; c < e->cols; c++)
            out[(size_t)g * e->ld + c] = add + row_of(modulation, g)[op->column + column + c];
    return out;
}

static inline bool tile_start(edge_tile *tile, const wf_op *op, bool gated, bool backward,
                              wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_tensor *e = op->in[0];
    size_t count = (size_t)tile_rows * (size_t)e->ld, all = (size_t)part->n_graphs * (size_t)e->ld;
    *tile = (edge_tile){.part = part, .e = e, .first = -tile_rows};
    tile->hat = scratch(arena, count);
    tile->eb = scratch(arena, count);
    tile->share = scratch(arena, (size_t)part->n_graphs);
    tile->shift = padded_columns(op, 0, 0, arena);
    tile->scale = padded_columns(op, e->cols, 1, arena);
    if (gated) tile->gate = padded_columns(op, 2 * e->cols, 1, arena);
    if (backward) {
        tile->dshift = zeroed_scratch(arena, all);
        tile->dscale = zeroed_scratch(arena, all);
    }
    if (!tile->hat || !tile->eb || !tile->share || !tile->shift || !tile->scale ||
        (gated && !tile->gate) || (backward && (!tile->dshift || !tile->dscale)))
        return false;
    for (int g = 0; g < part->n_graphs; g++) {
        uint32_t edges = part->edge_start[g + 1] - part->edge_start[g];
        tile->share[g] = edges > 0 ? 1 / (real)edges : 0;
    }
    return true;
}

static inline size_t tile_graph_row(const edge_tile *tile, int row) {
    return (size_t)tile->part->edge_graph[tile->first + row] * (size_t)tile->e->ld;
}

/* eb = LN(e) * (1 + scale) + shift of the next tile; false after the last. */
static inline bool tile_next(edge_tile *tile) {
    tile->first += tile_rows;
    int left = tile->part->n_edges - tile->first;
    if (left <= 0) return false;
    tile->rows = left < tile_rows ? left : tile_rows;
    int ld = tile->e->ld;
    for (int r = 0; r < tile->rows; r++) {
        real *hat = tile->hat + (size_t)r * ld, *eb = tile->eb + (size_t)r * ld;
        const real *shift = tile->shift + tile_graph_row(tile, r);
        const real *scale = tile->scale + tile_graph_row(tile, r);
        tile->rho[r] = norm_row(row_of(tile->e, tile->first + r), tile->e->cols, ld, hat);
        each_vector(c, ld) store(eb + c, load(hat + c) * load(scale + c) + load(shift + c));
    }
    return true;
}

/* mean (B, de) += eb / edges of the graph. */
static inline void tile_mean(const edge_tile *tile, const wf_tensor *mean) {
    const uint32_t *graph = tile->part->edge_graph + tile->first;
    for (int r = 0; r < tile->rows; r++)
        row_add_scaled(row_of(mean, graph[r]), tile->share[graph[r]],
                       tile->eb + (size_t)r * tile->e->ld, mean->ld);
}

/* deb (tile) is complete but for the mean's share: adds to the gradients of modulation and of e (de
 * NULL: not wanted). */
static inline void tile_norm_backward(const edge_tile *tile, const wf_tensor *mean, real *deb,
                                      real *de) {
    const uint32_t *graph = tile->part->edge_graph + tile->first;
    int cols = tile->e->cols, ld = tile->e->ld;
    for (int r = 0; r < tile->rows; r++) {
        real *g = deb + (size_t)r * ld;
        const real *hat = tile->hat + (size_t)r * ld;
        size_t row = tile_graph_row(tile, r);
        if (mean != NULL) row_add_scaled(g, tile->share[graph[r]], grad_row(mean, graph[r]), ld);
        each_vector(c, ld) {
            vreal v = load(g + c);
            store(tile->dshift + row + c, load(tile->dshift + row + c) + v);
            store(tile->dscale + row + c, load(tile->dscale + row + c) + v * load(hat + c));
            store(g + c, v * load(tile->scale + row + c));
        }
        if (de != NULL)
            norm_row_backward(de + (size_t)(tile->first + r) * ld, g, hat, tile->rho[r], cols);
    }
}

/* After the last tile: the gradients of shift and scale. */
static inline void tile_finish_backward(const edge_tile *tile, const wf_op *op) {
    const wf_tensor *modulation = op->in[1];
    int cols = tile->e->cols;
    for (int g = 0; wanted(modulation) && g < modulation->rows; g++) {
        real *grad = grad_row(modulation, g) + op->column;
        row_add(grad, tile->dshift + (size_t)g * tile->e->ld, cols);
        row_add(grad + cols, tile->dscale + (size_t)g * tile->e->ld, cols);
    }
}

/* out = act(in + a + b) over cols, b NULL: none; slope = act'(in + a + b), NULL: not wanted. in may
 * be out. */
static inline __attribute__((always_inline)) void act_row(const int act, const bool sloped,
                                                          const bool two, const real *in, real *out,
                                                          real *slope, const real *a, const real *b,
                                                          int cols) {
    vreal change = {0};
    each_vector(c, cols) {
        vreal x = load(in + c) + load(a + c);
        if (two) x += load(b + c);
        store(out + c, act_vector(act, sloped, x, &change));
        if (sloped) store(slope + c, change);
    }
    int done = cols / WF_LANES * WF_LANES, rest = cols - done;
    if (rest == 0) return;
    vreal x = load_some(in + done, rest) + load_some(a + done, rest);
    if (two) x += load_some(b + done, rest);
    store_some(out + done, act_vector(act, sloped, x, &change), rest);
    if (sloped) store_some(slope + done, change, rest);
}

/* A hidden layer's activation over a tile of rows `ld` apart: tables a and b by index, index NULL:
 * row 0 (a bias). */
typedef struct tile_act_args {
    const real *in;
    real *out, *slope;
    int ld, rows, first, cols; /* columns first .. cols-1 */
    const wf_tensor *a, *b;
    const uint32_t *index_a, *index_b;
} tile_act_args;

static inline __attribute__((always_inline)) void
tile_act_of(const int act, const bool sloped, const bool two, const tile_act_args *t) {
    for (int r = 0; r < t->rows; r++) {
        size_t at = (size_t)r * (size_t)t->ld + (size_t)t->first;
        const real *a = row_of(t->a, t->index_a == NULL ? 0 : t->index_a[r]) + t->first;
        const real *b = two ? row_of(t->b, t->index_b[r]) + t->first : NULL;
        act_row(act, sloped, two, t->in + at, t->out + at, sloped ? t->slope + at : NULL, a, b,
                t->cols - t->first);
    }
}
static inline __attribute__((always_inline)) void tile_act_kind(const int act,
                                                                const tile_act_args *t) {
    if (t->slope == NULL && t->b == NULL) tile_act_of(act, false, false, t);
    else if (t->slope == NULL) tile_act_of(act, false, true, t);
    else if (t->b == NULL) tile_act_of(act, true, false, t);
    else tile_act_of(act, true, true, t);
}
static inline void tile_act(int act, const tile_act_args *args) {
    if (act == WF_TAPE_ACT_SILU) tile_act_kind(WF_TAPE_ACT_SILU, args);
    else tile_act_kind(WF_TAPE_ACT_GELU, args);
}

/* Softmax weights over all messages entering a node, in one pass: running maximum and sum of
 * exponentials per node. `sums` are the unnormalised weighted sums that a new maximum rescales. */
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
/* What turns a node's sum into a mean or a softmax average: the factor of the sum and, for plain
 * sums and means, of its gradient. */
static inline real sum_factor(const wf_op *op, node_softmax softmax, int node) {
    real divisor = 1;
    if (op->mode == WF_SUM_ATTENTION) divisor = softmax.total[node];
    if (op->mode == WF_SUM_MEAN) divisor = ((const real *)op->part->degree)[node];
    return divisor > 0 ? 1 / divisor : 0;
}
static inline void row_scale(real *x, real factor, int n) {
    each_vector(i, n) store(x + i, load(x + i) * factor);
    each_rest(i, n) x[i] *= factor;
}
