/* lstar_messages_cpu: the messages of an lstar block in both directions, fused. Formula:
 * wf_lstar_messages in tape.h.
 *
 *   p = me eb, shared by both directions
 *   x1 = p + ai[dst] + aj[src] towards dst, p + ai[src] + aj[dst] towards src
 *   y1 = s(x1)   x2 = m2 y1 + b2   y2 = s(x2)   S[receiver] += y2
 * Multiply-adds an edge at equal widths d: forward 10 d^2, backward 10 (again) + 20. */
#include "models/cpu/edge_tile.h"

typedef struct message_mlp {
    const wf_op *op;
    const wf_tensor *e, *ai, *aj, *me, *m2, *b2, *v, *sum, *mean;
    int de, hidden, ldh;
    node_softmax softmax;
    edge_tile tile;
    real *p, *y1, *y2; /* (tile, ldh) */
} message_mlp;

static bool messages_start(message_mlp *l, const wf_op *op, bool backward, wf_arena *arena) {
    *l = (message_mlp){.op = op,
                       .e = op->in[0],
                       .ai = op->in[2],
                       .aj = op->in[3],
                       .me = op->in[4],
                       .m2 = op->in[5],
                       .b2 = op->in[6],
                       .v = op->in[7],
                       .sum = op->out[0],
                       .mean = op->out[1],
                       .softmax = softmax_view(op)};
    l->de = l->e->cols;
    l->hidden = l->me->rows;
    l->ldh = wf_pad(l->hidden);
    size_t count = (size_t)tile_rows * (size_t)l->ldh;
    l->p = scratch(arena, count);
    l->y1 = scratch(arena, count);
    l->y2 = scratch(arena, count);
    return l->p != NULL && l->y1 != NULL && l->y2 != NULL &&
           tile_start(&l->tile, op, false, backward, arena);
}

/* Receivers and senders of the tile's messages in one of the two directions. */
static const uint32_t *receivers(const message_mlp *l, bool to_dst) {
    return (to_dst ? l->op->part->edge_dst : l->op->part->edge_src) + l->tile.first;
}

/* y2 of the tile in one direction, from p. */
static void message_hidden(message_mlp *l, bool to_dst, real *slope1, real *slope2) {
    tile_act_args args = {.in = l->p,
                          .out = l->y1,
                          .slope = slope1,
                          .ld = l->ldh,
                          .rows = l->tile.rows,
                          .cols = l->hidden,
                          .a = l->ai,
                          .index_a = receivers(l, to_dst),
                          .b = l->aj,
                          .index_b = receivers(l, !to_dst)};
    tile_act(l->op->act, &args);
    gemm_packed(l->y2, l->ldh, l->y1, l->ldh, l->m2->panels_t, l->tile.rows, l->hidden, l->hidden,
                false);
    args.in = args.out = l->y2;
    args.slope = slope2;
    args.a = l->b2;
    args.b = NULL;
    args.index_a = args.index_b = NULL;
    tile_act(l->op->act, &args);
}

static void message_product(message_mlp *l) {
    gemm_packed(l->p, l->ldh, l->tile.eb, l->e->ld, l->me->panels_t, l->tile.rows, l->de, l->hidden,
                false);
}

static void message_sums(message_mlp *l, bool to_dst) {
    const uint32_t *receiver = receivers(l, to_dst);
    for (int r = 0; r < l->tile.rows; r++) {
        const real *y2 = l->y2 + (size_t)r * l->ldh;
        real *sum = row_of(l->sum, receiver[r]);
        if (l->op->mode != WF_SUM_ATTENTION) {
            row_add(sum, y2, l->hidden);
            continue;
        }
        real rescale, logit = row_dot(l->v->data, y2, l->hidden);
        real weight = softmax_add(l->softmax, receiver[r], logit, &rescale);
        if (rescale != 1) row_scale(sum, rescale, l->hidden);
        row_add_scaled(sum, weight, y2, l->hidden);
    }
}

bool WF_FN(wf_lstar_messages_forward)(const wf_op *op, wf_arena *arena) {
    message_mlp l;
    if (!messages_start(&l, op, false, arena)) return false;
    memset(l.mean->data, 0, (size_t)l.mean->rows * (size_t)l.mean->ld * sizeof(real));
    memset(l.sum->data, 0, (size_t)l.sum->rows * (size_t)l.sum->ld * sizeof(real));
    if (op->mode == WF_SUM_ATTENTION) softmax_start(l.softmax, op->part->n_nodes);
    while (tile_next(&l.tile)) {
        tile_mean(&l.tile, l.mean);
        message_product(&l);
        message_hidden(&l, true, NULL, NULL);
        message_sums(&l, true);
        message_hidden(&l, false, NULL, NULL);
        message_sums(&l, false);
    }
    for (int n = 0; op->mode != WF_SUM_PLAIN && n < l.sum->rows; n++)
        row_scale(row_of(l.sum, n), sum_factor(op, l.softmax, n), l.hidden);
    return true;
}

typedef struct message_gradient {
    real *slope1, *slope2, *dx2, *dp; /* (tile, ldh) */
    real *deb;                        /* (tile, e->ld) */
    real *factor, *along;             /* [N]: sum_factor, dS.S */
} message_gradient;

static bool message_gradient_start(const message_mlp *l, message_gradient *b, wf_arena *arena) {
    size_t count = (size_t)tile_rows * (size_t)l->ldh, nodes = (size_t)l->op->part->n_nodes;
    b->slope1 = scratch(arena, count);
    b->slope2 = scratch(arena, count);
    b->dx2 = scratch(arena, count);
    b->dp = scratch(arena, count);
    b->deb = scratch(arena, (size_t)tile_rows * (size_t)l->e->ld);
    b->factor = scratch(arena, nodes);
    b->along = scratch(arena, nodes);
    if (!b->slope1 || !b->slope2 || !b->dx2 || !b->dp || !b->deb || !b->factor || !b->along)
        return false;
    for (size_t n = 0; n < nodes; n++) {
        b->factor[n] = sum_factor(l->op, l->softmax, (int)n);
        b->along[n] = row_dot(grad_row(l->sum, n), row_of(l->sum, n), l->hidden);
    }
    return true;
}

/* dx2 of the tile in one direction. */
static void message_dx2(const message_mlp *l, const message_gradient *b, bool to_dst) {
    const uint32_t *receiver = receivers(l, to_dst);
    for (int r = 0; r < l->tile.rows; r++) {
        const real *restrict y2 = l->y2 + (size_t)r * l->ldh;
        const real *restrict slope = b->slope2 + (size_t)r * l->ldh;
        const real *restrict ds = grad_row(l->sum, receiver[r]);
        real *restrict dx2 = b->dx2 + (size_t)r * l->ldh;
        if (l->op->mode != WF_SUM_ATTENTION) {
            real factor = b->factor[receiver[r]];
            for (int c = 0; c < l->hidden; c++) dx2[c] = factor * ds[c] * slope[c];
            continue;
        }
        const real *restrict v = l->v->data;
        real weight = softmax_weight(l->softmax, receiver[r], row_dot(v, y2, l->hidden));
        real dlogit = weight * (row_dot(ds, y2, l->hidden) - b->along[receiver[r]]);
        for (int c = 0; c < l->hidden; c++) dx2[c] = (weight * ds[c] + dlogit * v[c]) * slope[c];
        if (wanted(l->v)) row_add_scaled(l->v->grad, dlogit, y2, l->hidden);
    }
}

/* Gradients of one direction; y2 becomes dx1 and is added to dp (set when `first`). */
static bool message_backward(message_mlp *l, const message_gradient *b, bool to_dst, bool first,
                             wf_arena *arena) {
    int rows = l->tile.rows;
    const uint32_t *receiver = receivers(l, to_dst), *sender = receivers(l, !to_dst);
    message_hidden(l, to_dst, b->slope1, b->slope2);
    message_dx2(l, b, to_dst);
    if (wanted(l->m2) && !weight_gradient(l->m2, b->dx2, l->ldh, l->y1, l->ldh, rows, arena))
        return false;
    if (wanted(l->b2)) column_sums(l->b2->grad, b->dx2, rows, l->hidden, l->ldh);
    gemm_packed(l->y2, l->ldh, b->dx2, l->ldh, l->m2->panels, rows, l->hidden, l->hidden, false);
    for (int r = 0; r < rows; r++) {
        real *restrict dx1 = l->y2 + (size_t)r * l->ldh, *restrict dp = b->dp + (size_t)r * l->ldh;
        const real *restrict slope = b->slope1 + (size_t)r * l->ldh;
        for (int c = 0; c < l->hidden; c++) dx1[c] *= slope[c];
        for (int c = 0; c < l->hidden; c++) dp[c] = dx1[c] + (first ? 0 : dp[c]);
        if (wanted(l->ai)) row_add(grad_row(l->ai, receiver[r]), dx1, l->hidden);
        if (wanted(l->aj)) row_add(grad_row(l->aj, sender[r]), dx1, l->hidden);
    }
    return true;
}

bool WF_FN(wf_lstar_messages_backward)(const wf_op *op, wf_arena *arena) {
    message_mlp l;
    message_gradient b;
    if (!messages_start(&l, op, true, arena) || !message_gradient_start(&l, &b, arena))
        return false;
    while (tile_next(&l.tile)) {
        message_product(&l);
        if (!message_backward(&l, &b, true, true, arena)) return false;
        if (!message_backward(&l, &b, false, false, arena)) return false;
        if (wanted(l.me) &&
            !weight_gradient(l.me, b.dp, l.ldh, l.tile.eb, l.e->ld, l.tile.rows, arena))
            return false;
        gemm_packed(b.deb, l.e->ld, b.dp, l.ldh, l.me->panels, l.tile.rows, l.hidden, l.de, false);
        tile_norm_backward(&l.tile, l.mean, b.deb, l.e->wants ? l.e->grad : NULL);
    }
    tile_finish_backward(&l.tile, op);
    return true;
}
