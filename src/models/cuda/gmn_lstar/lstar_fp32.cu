/* lstar_fp32: messages and edge update of an lstar block in float, pass by pass. Formulas:
 * wf_lstar_messages and wf_lstar_edges in tensor/tape.h.
 *
 *   p = me eb, used in both directions   y1 = s(p + ai[receiver] + aj[sender])   y2 = s(m2 y1 + b2)
 *   S = sum y2   z1 = s(ee eb + ci[dst] + cj[src])   z2 = s(e2 z1 + c2)   e' = e + e3 z2 + c3
 * Multiply-adds an edge at equal widths d: messages 10 d^2 forward, 10 (again) + 20 backward; edges
 * 8 forward, 6 + 16. */
#include "models/cuda/gmn_edges/edge_norm.cuh"

namespace wf_gpu {
namespace {

/* --- messages --------------------------------------------------------------------------------- */
struct messages {
    const wf_op *op;
    const wf_part *part;
    const wf_tensor *e, *ai, *aj, *me, *m2, *b2, *v, *sum, *mean;
    int edges, hidden, ld;
    const float *degree; /* only of means */
    normed_edges normed;
    float *p;
};

bool messages_start(messages *l, const wf_op *op, bool backward, wf_arena *arena) {
    wf_tensor *const *in = op->in;
    *l = messages{op,    op->part, in[0], in[2],      in[3],     in[4],
                  in[5], in[6],    in[7], op->out[0], op->out[1]};
    l->edges = l->e->rows;
    l->hidden = l->me->rows;
    l->ld = wf_pad(l->hidden);
    l->degree = op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL;
    if (!normed_start(op, backward, arena, &l->normed)) return false;
    l->p = scratch_rows(arena, l->edges, l->hidden);
    if (l->p == NULL) return false;
    forward_product(forward_operands(l->normed.eb, l->e->ld, l->edges, l->me),
                    plain(l->p, l->ld, false));
    return true;
}

const uint32_t *receivers(const messages &l, bool to_dst) {
    return to_dst ? l.part->edge_dst : l.part->edge_src;
}

/* y1 and y2 of one direction; slopes may be NULL. */
void message_hidden(const messages &l, bool to_dst, float *y1, float *slope1, float *y2,
                    float *slope2) {
    activate_with_tables(l.p, l.edges, l.hidden,
                         into_activation{l.op->act, y1, slope1, l.ld, data_of(l.ai), l.ai->ld,
                                         receivers(l, to_dst), data_of(l.aj), l.aj->ld,
                                         receivers(l, !to_dst)});
    forward_product(forward_operands(y1, l.ld, l.edges, l.m2),
                    activation_with_bias(l.op->act, y2, slope2, l.ld, l.b2));
}

direction message_direction(const messages &l, bool to_dst, const float *y2, float *weight,
                            float *dlogit) {
    return direction{y2, l.ld, l.hidden, data_of(l.v), receivers(l, to_dst), weight, dlogit};
}

} // namespace

bool lstar_messages_forward(const wf_op *op, wf_arena *arena) {
    messages l;
    if (!messages_start(&l, op, false, arena) || !normed_mean(l.normed, l.mean, arena))
        return false;
    float *y1 = scratch_rows(arena, l.edges, l.hidden), *y2[2], *weight[2] = {NULL, NULL};
    for (int k = 0; k < 2; k++) {
        y2[k] = scratch_rows(arena, l.edges, l.hidden);
        if (op->mode == WF_SUM_ATTENTION) weight[k] = scratch(arena, (size_t)l.edges);
        if (y1 == NULL || y2[k] == NULL || (op->mode == WF_SUM_ATTENTION && weight[k] == NULL))
            return false;
        message_hidden(l, k == 0, y1, NULL, y2[k], NULL);
    }
    if (op->mode == WF_SUM_ATTENTION)
        softmax_weights(l.part, message_direction(l, true, y2[0], weight[0], NULL),
                        message_direction(l, false, y2[1], weight[1], NULL), (float *)op->saved);
    start_zero(l.sum->data, (size_t)l.sum->rows * (size_t)l.sum->ld * sizeof(float));
    node_sums(node_sum_args{l.part, y2[0], y2[1], l.ld, l.hidden, weight[0], weight[1], l.degree,
                            data_of(l.sum), data_of(l.sum), l.sum->ld, false});
    return launched();
}

namespace {

struct message_gradient {
    float *y1, *slope1, *y2, *slope2, *dp; /* (E, H) */
    float *weight, *dlogit, *along;        /* [E], [E], [N]: attention */
};

bool message_gradient_start(const messages &l, message_gradient *b, wf_arena *arena) {
    float **rows[] = {&b->y1, &b->slope1, &b->y2, &b->slope2, &b->dp};
    for (float **matrix : rows)
        if ((*matrix = scratch_rows(arena, l.edges, l.hidden)) == NULL) return false;
    b->weight = b->dlogit = b->along = NULL;
    if (l.op->mode != WF_SUM_ATTENTION) return true;
    b->weight = scratch(arena, (size_t)l.edges);
    b->dlogit = scratch(arena, (size_t)l.edges);
    b->along = scratch(arena, (size_t)l.part->n_nodes);
    if (b->weight == NULL || b->dlogit == NULL || b->along == NULL) return false;
    row_dots(grad_of(l.sum), data_of(l.sum), l.sum->ld, l.sum->rows, l.hidden, b->along, false);
    return true;
}

/* One direction: gradients of m2, b2, v and the tables, dp = or += dx1. */
bool message_backward(const messages &l, const message_gradient &b, bool to_dst, bool first,
                      wf_arena *arena) {
    message_hidden(l, to_dst, b.y1, b.slope1, b.y2, b.slope2);
    gradient_source p = {grad_of(l.sum), receivers(l, to_dst), NULL, NULL, NULL, l.degree};
    if (l.op->mode == WF_SUM_ATTENTION) {
        softmax_backward(l.part, message_direction(l, to_dst, b.y2, b.weight, b.dlogit),
                         (const float *)l.op->saved, grad_of(l.sum), l.sum->ld, b.along);
        p.weight = b.weight;
        p.dlogit = b.dlogit;
        p.v = data_of(l.v);
        if (wanted(l.v) && !sum_rows(b.y2, b.dlogit, l.ld, l.edges, l.hidden,
                                     sum_target{grad_of(l.v), 0, false, false}, arena))
            return false;
    }
    float *dx2 = b.slope2, *dx1 = b.slope1;
    slopes_to_gradients(dx2, l.edges, l.ld, &p, 1, l.sum->ld);
    if (wanted(l.m2) &&
        !weight_product(grad_of(l.m2), dx2, l.ld, b.y1, l.ld, l.edges, l.hidden, l.hidden, arena))
        return false;
    if (wanted(l.b2) && !sum_rows(dx2, NULL, l.ld, l.edges, l.hidden,
                                  sum_target{grad_of(l.b2), 0, false, false}, arena))
        return false;
    input_product(input_operands(dx2, l.ld, l.edges, l.m2), into_product{dx1, l.ld});
    float *receiver = wanted(l.ai) ? grad_of(l.ai) : NULL;
    float *sender = wanted(l.aj) ? grad_of(l.aj) : NULL;
    table_gradients(l.part, dx1, l.ld, l.hidden, to_dst ? receiver : sender,
                    to_dst ? sender : receiver, l.ai->ld);
    size_t count = (size_t)l.edges * (size_t)l.ld;
    if (count == 0) return true;
    if (first) start_copy(b.dp, dx1, count * sizeof(float));
    else add_rows(b.dp, dx1, count);
    return true;
}

} // namespace

bool lstar_messages_backward(const wf_op *op, wf_arena *arena) {
    messages l;
    message_gradient b;
    if (!messages_start(&l, op, true, arena) || !message_gradient_start(l, &b, arena) ||
        !message_backward(l, b, true, true, arena) || !message_backward(l, b, false, false, arena))
        return false;
    if (wanted(l.me) && !weight_product(grad_of(l.me), b.dp, l.ld, l.normed.eb, l.e->ld, l.edges,
                                        l.hidden, l.e->cols, arena))
        return false;
    float *deb = scratch_rows(arena, l.edges, l.e->cols);
    if (deb == NULL) return false;
    input_product(input_operands(b.dp, l.ld, l.edges, l.me), plain(deb, l.e->ld, false));
    return normed_backward(l.normed, l.mean, deb, wanted(l.e) ? grad_of(l.e) : NULL, arena) &&
           launched();
}

/* --- edge update ------------------------------------------------------------------------------ */
namespace {

struct update {
    const wf_op *op;
    const wf_part *part;
    const wf_tensor *e, *ci, *cj, *ee, *e2, *c2, *e3, *c3, *out;
    int edges, hidden, ld;
    normed_edges normed;
    float *z1, *slope1, *z2, *slope2;
};

bool update_start(update *l, const wf_op *op, bool backward, wf_arena *arena) {
    wf_tensor *const *in = op->in;
    *l = update{op, op->part, in[0], in[2], in[3], in[4], in[5], in[6], in[7], in[8], op->out[0]};
    l->edges = l->e->rows;
    l->hidden = l->ee->rows;
    l->ld = wf_pad(l->hidden);
    if (!normed_start(op, backward, arena, &l->normed)) return false;
    float **rows[] = {&l->z1, &l->z2, &l->slope1, &l->slope2};
    for (int k = 0; k < (backward ? 4 : 2); k++)
        if ((*rows[k] = scratch_rows(arena, l->edges, l->hidden)) == NULL) return false;
    forward_product(forward_operands(l->normed.eb, l->e->ld, l->edges, l->ee),
                    into_activation{op->act, l->z1, l->slope1, l->ld, data_of(l->ci), l->ci->ld,
                                    l->part->edge_dst, data_of(l->cj), l->cj->ld,
                                    l->part->edge_src});
    forward_product(forward_operands(l->z1, l->ld, l->edges, l->e2),
                    activation_with_bias(op->act, l->z2, l->slope2, l->ld, l->c2));
    return true;
}

/* w += dy' x and bias += sum dy of an affine layer over the edges. */
bool affine_gradient(const wf_tensor *w, const wf_tensor *bias, const float *dy, int ldy,
                     const float *x, int ldx, int edges, wf_arena *arena) {
    if (wanted(w) && !weight_product(grad_of(w), dy, ldy, x, ldx, edges, w->rows, w->cols, arena))
        return false;
    return !wanted(bias) || sum_rows(dy, NULL, ldy, edges, w->rows,
                                     sum_target{grad_of(bias), 0, false, false}, arena);
}

} // namespace

bool lstar_edges_forward(const wf_op *op, wf_arena *arena) {
    update l;
    if (!update_start(&l, op, false, arena)) return false;
    forward_product(
        forward_operands(l.z2, l.ld, l.edges, l.e3),
        into_residual{data_of(l.e), data_of(l.out), l.e->ld, data_of(l.c3), NULL, 0, NULL});
    return launched();
}

bool lstar_edges_backward(const wf_op *op, wf_arena *arena) {
    update l;
    if (!update_start(&l, op, true, arena)) return false;
    float *de = grad_of(l.out), *dq2 = l.slope2, *dq1 = l.slope1;
    int lde = l.e->ld;
    if (!affine_gradient(l.e3, l.c3, de, lde, l.z2, l.ld, l.edges, arena)) return false;
    input_product(input_operands(de, lde, l.edges, l.e3), into_product{dq2, l.ld});
    if (!affine_gradient(l.e2, l.c2, dq2, l.ld, l.z1, l.ld, l.edges, arena)) return false;
    input_product(input_operands(dq2, l.ld, l.edges, l.e2), into_product{dq1, l.ld});
    table_gradients(l.part, dq1, l.ld, l.hidden, wanted(l.ci) ? grad_of(l.ci) : NULL,
                    wanted(l.cj) ? grad_of(l.cj) : NULL, l.ci->ld);
    if (!affine_gradient(l.ee, NULL, dq1, l.ld, l.normed.eb, lde, l.edges, arena)) return false;
    float *deb = scratch_rows(arena, l.edges, l.e->cols);
    if (deb == NULL) return false;
    input_product(input_operands(dq1, l.ld, l.edges, l.ee), plain(deb, lde, false));
    return normed_backward(l.normed, NULL, deb, de, arena) && launched();
}

} // namespace wf_gpu
