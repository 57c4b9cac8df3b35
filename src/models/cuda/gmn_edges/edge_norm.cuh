/* edge_norm: normalised edges, forward and backward, for the edge operations of both layouts. */
#pragma once

#include "models/cuda/gmn_edges/edge_passes.cuh"

namespace wf_gpu {

/* eb = LN(e) modulated; hat and rho are for backward. */
struct normed_edges {
    const wf_part *part;
    const wf_tensor *e, *modulation;
    int column;
    float *eb, *hat, *rho;
};
bool normed_start(const wf_op *op, bool backward, wf_arena *arena, normed_edges *out);
/* mean (B, de) of eb over each graph's edges. */
bool normed_mean(const normed_edges &n, const wf_tensor *mean, wf_arena *arena);
/* deb lacks only the part that comes from the mean (mean NULL: none). Makes the gradients of the
 * modulation, and de += gradient by e (NULL: not wanted). */
bool normed_backward(const normed_edges &n, const wf_tensor *mean, float *deb, float *de,
                     wf_arena *arena);

/* Operands of plain products: y = x W', dx = [dx +] dy W. */
inline operands forward_operands(const float *x, int ldx, int rows, const wf_tensor *weight) {
    return operands{x, ldx, data_of(weight), weight->ld, rows, weight->rows, weight->cols};
}
inline operands input_operands(const float *dy, int ldy, int rows, const wf_tensor *weight) {
    return operands{dy, ldy, data_of(weight), weight->ld, rows, weight->cols, weight->rows};
}
inline into_linear plain(float *c, int ldc, bool add) {
    return into_linear{c, ldc, add, NULL, NULL, NULL, 0, NULL};
}
/* f(x + bias) for an activation f */
inline into_activation activation_with_bias(int act, float *y, float *slope, int ld,
                                            const wf_tensor *bias) {
    return into_activation{act, y, slope, ld, data_of(bias), 0, NULL, NULL, 0, NULL};
}

/* Table gradients: in += sums of dx over edges that enter, out += over those that leave; NULL: not
 * wanted. */
inline void table_gradients(const wf_part *part, const float *dx, int ld, int cols, float *in,
                            float *out, int ld_to) {
    if (in != NULL || out != NULL)
        node_sums(node_sum_args{part, in == NULL ? NULL : dx, out == NULL ? NULL : dx, ld, cols,
                                NULL, NULL, NULL, in, out, ld_to, true});
}

} // namespace wf_gpu
