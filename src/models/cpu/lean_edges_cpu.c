/* lean_edges_cpu: the edges of a lean block, fused. Formulas: wf_lean_edges in tensor/tape.h.
 *
 *   eb (E, de)   x = [m | z] (E, M + 2de)   F = to_dst, R = to_src (N, M)
 * Multiply-adds an edge at equal widths d: forward 6 d^2; backward 4 (x again) + 2 (dz) + 2 (dw2) +
 * 4 (deb) + 4 (dw1). A last block, whose messages are not used, does without the m half. The gate's
 * gradient needs no second product with w2: with P_g = sum over a graph's edges of de' z',
 *   dw2 = sum_g (1 + gate_g) P_g (rows scaled)     dgate_g[k] = w2[k].P_g[k] + c2[k] sum de'[k] */
#include "models/cpu/edge_tile.h"

typedef struct lean {
    const wf_op *op;
    const wf_tensor *e, *modulation, *ad, *as, *w1, *w2, *c2, *vf, *vb;
    const wf_tensor *out, *mean, *to_dst, *to_src;
    int de, hidden, messages, ldx;
    int first; /* columns of x before it are not computed: messages that are not used */
    node_softmax softmax;
    edge_tile tile;
    real *x, *o; /* (tile, ldx), (tile, e->ld) */
} lean;

static bool lean_start(lean *l, const wf_op *op, bool backward, wf_arena *arena) {
    *l = (lean){.op = op,
                .e = op->in[0],
                .modulation = op->in[1],
                .ad = op->in[2],
                .as = op->in[3],
                .w1 = op->in[4],
                .w2 = op->in[5],
                .c2 = op->in[6],
                .vf = op->in[7],
                .vb = op->in[8],
                .out = op->out[0],
                .mean = op->out[1],
                .to_dst = op->out[2],
                .to_src = op->out[3]};
    l->de = l->e->cols;
    l->hidden = l->w1->rows;
    l->messages = l->hidden - 2 * l->de;
    /* z begins at column M; a product into it writes whole vectors, which must end inside the
     * row. */
    l->ldx = wf_pad(l->messages + wf_pad(2 * l->de));
    /* Whole panels can be left out, where what remains is padded as before. */
    if (l->to_dst == NULL && l->messages % gemm_panel == 0 && l->messages % WF_PAD == 0)
        l->first = l->messages;
    if (l->to_dst != NULL) l->softmax = softmax_view(op);
    l->x = scratch(arena, (size_t)tile_rows * (size_t)l->ldx);
    l->o = scratch(arena, (size_t)tile_rows * (size_t)l->e->ld);
    return l->x != NULL && l->o != NULL && tile_start(&l->tile, op, true, backward, arena);
}

/* x = [m | z] of the tile; slope: its derivative, or NULL. */
static void lean_hidden(lean *l, real *slope) {
    const edge_tile *tile = &l->tile;
    gemm_packed(l->x + l->first, l->ldx, tile->eb, l->e->ld,
                (const real *)l->w1->panels_t + (size_t)l->first * (size_t)l->de, tile->rows, l->de,
                l->hidden - l->first, false);
    tile_act(l->op->act, &(tile_act_args){.in = l->x,
                                          .out = l->x,
                                          .slope = slope,
                                          .ld = l->ldx,
                                          .rows = tile->rows,
                                          .first = l->first,
                                          .cols = l->hidden,
                                          .a = l->ad,
                                          .index_a = l->op->part->edge_dst + tile->first,
                                          .b = l->as,
                                          .index_b = l->op->part->edge_src + tile->first});
}

static void lean_attend(lean *l, uint32_t node, const wf_tensor *v, const wf_tensor *to,
                        const real *m) {
    real rescale,
        weight = softmax_add(l->softmax, node, row_dot(v->data, m, l->messages), &rescale);
    if (rescale != 1) {
        row_scale(row_of(l->to_dst, node), rescale, l->messages);
        row_scale(row_of(l->to_src, node), rescale, l->messages);
    }
    row_add_scaled(row_of(to, node), weight, m, l->messages);
}

static void lean_sums(lean *l) {
    const uint32_t *dst = l->op->part->edge_dst + l->tile.first;
    const uint32_t *src = l->op->part->edge_src + l->tile.first;
    for (int r = 0; r < l->tile.rows; r++) {
        const real *m = l->x + (size_t)r * l->ldx;
        if (l->op->mode == WF_SUM_ATTENTION) {
            lean_attend(l, dst[r], l->vf, l->to_dst, m);
            lean_attend(l, src[r], l->vb, l->to_src, m);
        } else {
            row_add_both(row_of(l->to_dst, dst[r]), row_of(l->to_src, src[r]), m, l->messages);
        }
    }
}

bool WF_FN(wf_lean_edges_forward)(const wf_op *op, wf_arena *arena) {
    lean l;
    if (!lean_start(&l, op, false, arena)) return false;
    memset(l.mean->data, 0, (size_t)l.mean->rows * (size_t)l.mean->ld * sizeof(real));
    if (l.to_dst != NULL) {
        size_t bytes = (size_t)l.to_dst->rows * (size_t)l.to_dst->ld * sizeof(real);
        memset(l.to_dst->data, 0, bytes);
        memset(l.to_src->data, 0, bytes);
        if (op->mode == WF_SUM_ATTENTION) softmax_start(l.softmax, op->part->n_nodes);
    }
    real *c2 = zeroed_scratch(arena, (size_t)l.e->ld);
    if (c2 == NULL) return false;
    memcpy(c2, l.c2->data, (size_t)l.de * sizeof(real));
    while (tile_next(&l.tile)) {
        tile_mean(&l.tile, l.mean);
        lean_hidden(&l, NULL);
        if (l.to_dst != NULL) lean_sums(&l);
        gemm_packed(l.o, l.e->ld, l.x + l.messages, l.ldx, l.w2->panels_t, l.tile.rows, 2 * l.de,
                    l.de, false);
        for (int r = 0; r < l.tile.rows; r++) {
            const real *in = row_of(l.e, l.tile.first + r), *o = l.o + (size_t)r * l.e->ld;
            const real *gate = l.tile.gate + tile_graph_row(&l.tile, r);
            real *out = row_of(l.out, l.tile.first + r);
            each_vector(c, l.e->ld)
                store(out + c, load(in + c) + load(gate + c) * (load(o + c) + load(c2 + c)));
        }
    }
    for (int n = 0; l.to_dst != NULL && op->mode != WF_SUM_PLAIN && n < l.to_dst->rows; n++) {
        row_scale(row_of(l.to_dst, n), sum_factor(op, l.softmax, n), l.messages);
        row_scale(row_of(l.to_src, n), sum_factor(op, l.softmax, n), l.messages);
    }
    return true;
}

/* What backward carries from tile to tile. */
typedef struct lean_gradient {
    real *slope, *dx, *outer, *de_sum; /* (tile, ldx) twice, P_g (de, ldp), (de) */
    real *factor, *along;              /* [N] of sum_factor, of dF.F + dR.R */
    real *dad, *das;                   /* gradients of the tables */
    int ldp;
} lean_gradient;

/* A graph's edges are all in `outer`: its share of dw2, dc2 and the gate's gradient. */
static void lean_flush(const lean *l, lean_gradient *b, uint32_t graph) {
    const real *gate = l->tile.gate + (size_t)graph * l->e->ld;
    for (int k = 0; k < l->de; k++) {
        const real *outer = b->outer + (size_t)k * b->ldp;
        if (wanted(l->w2)) row_add_scaled(grad_row(l->w2, k), gate[k], outer, 2 * l->de);
        if (wanted(l->c2)) ((real *)l->c2->grad)[k] += gate[k] * b->de_sum[k];
        if (wanted(l->modulation))
            grad_row(l->modulation, graph)[l->op->column + 2 * l->de + k] +=
                row_dot(row_of(l->w2, k), outer, 2 * l->de) +
                ((const real *)l->c2->data)[k] * b->de_sum[k];
    }
    memset(b->outer, 0, (size_t)l->de * (size_t)b->ldp * sizeof(real));
    memset(b->de_sum, 0, (size_t)l->de * sizeof(real));
}

static void lean_outer(const lean *l, lean_gradient *b) {
    const uint32_t *graph = l->op->part->edge_graph + l->tile.first;
    const uint32_t *edge_start = l->op->part->edge_start;
    for (int r = 0; r < l->tile.rows;) {
        int end = (int)edge_start[graph[r] + 1] - l->tile.first;
        int stop = end < l->tile.rows ? end : l->tile.rows;
        const real *de = grad_row(l->out, (size_t)(l->tile.first + r));
        gemm_transposed(b->outer, b->ldp, de, l->e->ld, l->x + (size_t)r * l->ldx + l->messages,
                        l->ldx, l->de, stop - r, 2 * l->de);
        column_sums(b->de_sum, de, stop - r, l->de, l->e->ld);
        if (stop == end) lean_flush(l, b, graph[r]);
        r = stop;
    }
}

/* dm += this direction's share of the gradient of a message, through its softmax weight. */
static void lean_attend_backward(const lean *l, const lean_gradient *b, uint32_t node,
                                 const wf_tensor *v, const wf_tensor *to, const real *m, real *dm) {
    const real *dto = grad_row(to, node);
    real weight = softmax_weight(l->softmax, node, row_dot(v->data, m, l->messages));
    real dlogit = weight * (row_dot(dto, m, l->messages) - b->along[node]);
    row_add_scaled(dm, weight, dto, l->messages);
    row_add_scaled(dm, dlogit, v->data, l->messages);
    if (wanted(v)) row_add_scaled(v->grad, dlogit, m, l->messages);
}

/* dm of a row, into dx. */
static void lean_dm(const lean *l, const lean_gradient *b, int r, real *dx) {
    uint32_t dst = l->op->part->edge_dst[l->tile.first + r];
    uint32_t src = l->op->part->edge_src[l->tile.first + r];
    if (l->to_dst == NULL) {
        memset(dx + l->first, 0, (size_t)(l->messages - l->first) * sizeof(real));
    } else if (l->op->mode == WF_SUM_ATTENTION) {
        const real *m = l->x + (size_t)r * l->ldx;
        memset(dx, 0, (size_t)l->messages * sizeof(real));
        lean_attend_backward(l, b, dst, l->vf, l->to_dst, m, dx);
        lean_attend_backward(l, b, src, l->vb, l->to_src, m, dx);
    } else {
        const real *df = grad_row(l->to_dst, dst), *dr = grad_row(l->to_src, src);
        real ff = b->factor[dst], fr = b->factor[src];
        each_vector(c, l->messages) store(dx + c, ff * load(df + c) + fr * load(dr + c));
        each_rest(c, l->messages) dx[c] = ff * df[c] + fr * dr[c];
    }
}

/* dx = [dm | dz] * slope, also added to the gradients of both tables; dz stands in dx already. */
static void lean_dx(const lean *l, const lean_gradient *b) {
    const uint32_t *dst = l->op->part->edge_dst + l->tile.first;
    const uint32_t *src = l->op->part->edge_src + l->tile.first;
    int count = l->hidden - l->first;
    for (int r = 0; r < l->tile.rows; r++) {
        real *row = b->dx + (size_t)r * l->ldx, *dx = row + l->first;
        const real *slope = b->slope + (size_t)r * l->ldx + l->first;
        lean_dm(l, b, r, row);
        each_vector(c, count) store(dx + c, load(dx + c) * load(slope + c));
        each_rest(c, count) dx[c] *= slope[c];
        real *to_dst = b->dad + (size_t)dst[r] * l->ad->ld + l->first;
        real *to_src = b->das + (size_t)src[r] * l->as->ld + l->first;
        row_add_both(to_dst, to_src, dx, count);
    }
}

static bool lean_gradient_start(const lean *l, lean_gradient *b, wf_arena *arena) {
    int nodes = l->op->part->n_nodes;
    size_t table = (size_t)nodes * (size_t)l->ad->ld;
    b->dad = wanted(l->ad) ? l->ad->grad : scratch(arena, table);
    b->das = wanted(l->as) ? l->as->grad : scratch(arena, table);
    b->ldp = wf_pad(2 * l->de);
    b->slope = scratch(arena, (size_t)tile_rows * (size_t)l->ldx);
    b->dx = scratch(arena, (size_t)tile_rows * (size_t)l->ldx);
    b->outer = zeroed_scratch(arena, (size_t)l->de * (size_t)b->ldp);
    b->de_sum = zeroed_scratch(arena, (size_t)l->de);
    b->factor = scratch(arena, (size_t)nodes);
    b->along = scratch(arena, (size_t)nodes);
    if (!b->slope || !b->dx || !b->outer || !b->de_sum || !b->factor || !b->along || !b->dad ||
        !b->das)
        return false;
    for (int n = 0; n < nodes && l->to_dst != NULL; n++) {
        b->factor[n] = sum_factor(l->op, l->softmax, n);
        b->along[n] = row_dot(grad_row(l->to_dst, n), row_of(l->to_dst, n), l->messages) +
                      row_dot(grad_row(l->to_src, n), row_of(l->to_src, n), l->messages);
    }
    return true;
}

bool WF_FN(wf_lean_edges_backward)(const wf_op *op, wf_arena *arena) {
    lean l;
    lean_gradient b;
    if (!lean_start(&l, op, true, arena) || !lean_gradient_start(&l, &b, arena)) return false;
    while (tile_next(&l.tile)) {
        int rows = l.tile.rows, first = l.tile.first;
        lean_hidden(&l, b.slope);
        lean_outer(&l, &b);
        for (int r = 0; r < rows; r++) {
            const real *de = grad_row(l.out, first + r);
            const real *gate = l.tile.gate + tile_graph_row(&l.tile, r);
            real *o = l.o + (size_t)r * l.e->ld;
            each_vector(c, l.e->ld) store(o + c, load(gate + c) * load(de + c));
        }
        gemm_packed(b.dx + l.messages, l.ldx, l.o, l.e->ld, l.w2->panels, rows, l.de, 2 * l.de,
                    false);
        lean_dx(&l, &b);
        if (wanted(l.w1) && !weight_gradient_from(l.w1, l.first, b.dx + l.first, l.ldx, l.tile.eb,
                                                  l.e->ld, rows, arena))
            return false;
        gemm_packed_from(l.o, l.e->ld, b.dx + l.first, l.ldx, l.w1->panels, l.first, rows, l.hidden,
                         l.de);
        tile_norm_backward(&l.tile, l.mean, l.o, l.out->grad);
    }
    tile_finish_backward(&l.tile, op);
    return true;
}
