/* lean_fp32: the edges of a lean block in float, pass by pass. Formulas: wf_lean_edges in
 * tensor/tape.h.
 *
 * [m | z] are two matrices (E, M) and (E, 2de), so that both are aligned whatever M. Multiply-adds
 * an edge at equal widths d: forward 6 d^2; backward 6 (m, z and w2 z again) + 2 (dz) + 2 (dw2) + 4
 * (deb) + 4 (dw1). */
#include "models/cuda/gmn_edges/edge_norm.cuh"

namespace wf_gpu {
namespace {

struct lean {
    const wf_op *op;
    const wf_part *part;
    const wf_tensor *e, *modulation, *ad, *as, *w1, *w2, *c2, *vf, *vb;
    const wf_tensor *out, *mean, *to_dst, *to_src;
    int edges, de, messages, ldm, ldz;
    const float *gate, *degree; /* degree: only of means */
    normed_edges normed;
};

bool lean_start(lean *l, const wf_op *op, bool backward, wf_arena *arena) {
    wf_tensor *const *in = op->in, *const *out = op->out;
    *l = lean{op,    op->part, in[0], in[1],  in[2],  in[3],  in[4], in[5],
              in[6], in[7],    in[8], out[0], out[1], out[2], out[3]};
    l->edges = l->e->rows;
    l->de = l->e->cols;
    l->messages = l->w1->rows - 2 * l->de;
    l->ldm = wf_pad(l->messages);
    l->ldz = wf_pad(2 * l->de);
    l->gate = data_of(l->modulation) + op->column + 2 * l->de;
    l->degree = op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL;
    return normed_start(op, backward, arena, &l->normed);
}

/* Rows `first` .. of w1: messages begin at 0, z at M. */
struct half {
    int first, cols, ld;
};
half message_half(const lean &l) { return half{0, l.messages, l.ldm}; }
half update_half(const lean &l) { return half{l.messages, 2 * l.de, l.ldz}; }

const float *half_weight(const lean &l, const half &h) {
    return data_of(l.w1) + (size_t)h.first * l.w1->ld;
}

void lean_hidden(const lean &l, const half &h, float *y, float *slope) {
    operands o = {l.normed.eb, l.e->ld, half_weight(l, h), l.w1->ld, l.edges, h.cols, l.de};
    forward_product(o, into_activation{l.op->act, y, slope, h.ld, data_of(l.ad) + h.first, l.ad->ld,
                                       l.part->edge_dst, data_of(l.as) + h.first, l.as->ld,
                                       l.part->edge_src});
}

direction towards(const lean &l, bool dst, const float *m, float *weight, float *dlogit) {
    return direction{m,
                     l.ldm,
                     l.messages,
                     data_of(dst ? l.vf : l.vb),
                     dst ? l.part->edge_dst : l.part->edge_src,
                     weight,
                     dlogit};
}

bool lean_sums(const lean &l, const float *m, wf_arena *arena) {
    size_t bytes = (size_t)l.to_dst->rows * (size_t)l.to_dst->ld * sizeof(float);
    start_zero(l.to_dst->data, bytes);
    start_zero(l.to_src->data, bytes);
    float *weights[2] = {NULL, NULL};
    if (l.op->mode == WF_SUM_ATTENTION) {
        for (int k = 0; k < 2; k++) {
            weights[k] = scratch(arena, (size_t)l.edges);
            if (weights[k] == NULL) return false;
        }
        softmax_weights(l.part, towards(l, true, m, weights[0], NULL),
                        towards(l, false, m, weights[1], NULL), (float *)l.op->saved);
    }
    node_sums(node_sum_args{l.part, m, m, l.ldm, l.messages, weights[0], weights[1], l.degree,
                            data_of(l.to_dst), data_of(l.to_src), l.to_dst->ld, false});
    return true;
}

} // namespace

bool lean_edges_forward(const wf_op *op, wf_arena *arena) {
    lean l;
    if (!lean_start(&l, op, false, arena) || !normed_mean(l.normed, l.mean, arena)) return false;
    if (l.to_dst != NULL) {
        float *m = scratch_rows(arena, l.edges, l.messages);
        if (m == NULL) return false;
        lean_hidden(l, message_half(l), m, NULL);
        if (!lean_sums(l, m, arena)) return false;
    }
    float *z = scratch_rows(arena, l.edges, 2 * l.de);
    if (z == NULL) return false;
    lean_hidden(l, update_half(l), z, NULL);
    forward_product(forward_operands(z, l.ldz, l.edges, l.w2),
                    into_residual{data_of(l.e), data_of(l.out), l.e->ld, data_of(l.c2), l.gate,
                                  l.modulation->ld, l.part->edge_graph});
    return launched();
}

namespace {

/* dx of the messages, in place of their slope. */
bool lean_pull(const lean &l, const float *m, float *slope, wf_arena *arena) {
    gradient_source sources[2] = {
        {grad_of(l.to_dst), l.part->edge_dst, NULL, NULL, NULL, l.degree},
        {grad_of(l.to_src), l.part->edge_src, NULL, NULL, NULL, l.degree}};
    if (l.op->mode == WF_SUM_ATTENTION) {
        const wf_tensor *to[2] = {l.to_dst, l.to_src}, *v[2] = {l.vf, l.vb};
        float *along = scratch(arena, (size_t)l.part->n_nodes);
        if (along == NULL) return false;
        for (int k = 0; k < 2; k++)
            row_dots(grad_of(to[k]), data_of(to[k]), to[k]->ld, to[k]->rows, l.messages, along,
                     k > 0);
        for (int k = 0; k < 2; k++) {
            float *weight = scratch(arena, (size_t)l.edges);
            float *dlogit = scratch(arena, (size_t)l.edges);
            if (weight == NULL || dlogit == NULL) return false;
            softmax_backward(l.part, towards(l, k == 0, m, weight, dlogit),
                             (const float *)l.op->saved, grad_of(to[k]), to[k]->ld, along);
            sources[k].weight = weight;
            sources[k].dlogit = dlogit;
            sources[k].v = data_of(v[k]);
            if (wanted(v[k]) && !sum_rows(m, dlogit, l.ldm, l.edges, l.messages,
                                          sum_target{grad_of(v[k]), 0, false, false}, arena))
                return false;
        }
    }
    slopes_to_gradients(slope, l.edges, l.ldm, sources, 2, l.to_dst->ld);
    return true;
}

/* What dx of one half gives: tables, w1, and its share of deb. */
bool lean_half_backward(const lean &l, const half &h, const float *dx, float *deb, bool add,
                        wf_arena *arena) {
    table_gradients(l.part, dx, h.ld, h.cols, wanted(l.ad) ? grad_of(l.ad) + h.first : NULL,
                    wanted(l.as) ? grad_of(l.as) + h.first : NULL, l.ad->ld);
    if (wanted(l.w1) && !weight_product(grad_of(l.w1) + (size_t)h.first * l.w1->ld, dx, h.ld,
                                        l.normed.eb, l.e->ld, l.edges, h.cols, l.de, arena))
        return false;
    input_product(operands{dx, h.ld, half_weight(l, h), l.w1->ld, l.edges, l.de, h.cols},
                  plain(deb, l.e->ld, add));
    return true;
}

/* z and its gradient: w2, c2, the gate; dx of z in place of its slope. */
bool lean_update_backward(const lean &l, float *z, float *slope, float *o, wf_arena *arena) {
    const float *de = grad_of(l.out);
    int ld = l.e->ld;
    if (wanted(l.modulation)) {
        into_linear to = plain(o, ld, false);
        to.bias = data_of(l.c2);
        forward_product(forward_operands(z, l.ldz, l.edges, l.w2), to);
        sum_target gate = {grad_of(l.modulation) + l.op->column + 2 * l.de, l.modulation->ld, false,
                           false};
        if (!sum_ranges(de, o, ld, l.edges, l.de, l.part->edge_start, l.part->n_graphs, gate,
                        arena))
            return false;
    }
    gate_rows(de, o, l.edges, l.de, ld, l.gate, l.modulation->ld, l.part->edge_graph);
    if (wanted(l.w2) &&
        !weight_product(grad_of(l.w2), o, ld, z, l.ldz, l.edges, l.de, 2 * l.de, arena))
        return false;
    if (wanted(l.c2) &&
        !sum_rows(o, NULL, ld, l.edges, l.de, sum_target{grad_of(l.c2), 0, false, false}, arena))
        return false;
    input_product(input_operands(o, ld, l.edges, l.w2), into_product{slope, l.ldz});
    return true;
}

} // namespace

bool lean_edges_backward(const wf_op *op, wf_arena *arena) {
    lean l;
    if (!lean_start(&l, op, true, arena)) return false;
    float *z = scratch_rows(arena, l.edges, 2 * l.de);
    float *slope = scratch_rows(arena, l.edges, 2 * l.de);
    float *o = scratch_rows(arena, l.edges, l.de);
    if (z == NULL || slope == NULL || o == NULL) return false;
    lean_hidden(l, update_half(l), z, slope);
    if (!lean_update_backward(l, z, slope, o, arena)) return false;
    float *deb = o; /* the gated gradient has been used */
    if (!lean_half_backward(l, update_half(l), slope, deb, false, arena)) return false;
    if (l.to_dst != NULL) {
        float *m = scratch_rows(arena, l.edges, l.messages);
        float *dm = scratch_rows(arena, l.edges, l.messages);
        if (m == NULL || dm == NULL) return false;
        lean_hidden(l, message_half(l), m, dm);
        if (!lean_pull(l, m, dm, arena) ||
            !lean_half_backward(l, message_half(l), dm, deb, true, arena))
            return false;
    }
    return normed_backward(l.normed, l.mean, deb, grad_of(l.out), arena) && launched();
}

} // namespace wf_gpu
