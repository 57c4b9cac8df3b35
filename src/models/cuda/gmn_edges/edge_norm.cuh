/* edge_norm: what the edge operations of both layouts share: normalised edges, forward and backward. */
#ifndef WF_MODELS_CUDA_GMN_EDGES_EDGE_NORM_CUH
#define WF_MODELS_CUDA_GMN_EDGES_EDGE_NORM_CUH

#include "models/cuda/gmn_edges/edge_passes.cuh"

namespace wf_gpu {

/* eb = LN(e) modulated; hat and rho only where backward needs them. */
struct normed_edges {
    const wf_part *part;
    const wf_tensor *e, *modulation;
    int column;
    float *eb, *hat, *rho;
};
bool normed_start(const wf_op *op, bool backward, wf_arena *arena, normed_edges *out);
/* mean (B, de) of eb over each graph's edges. */
bool normed_mean(const normed_edges &n, const wf_tensor *mean, wf_arena *arena);
/* deb is complete but for the mean's share (mean NULL: none): gradients of the modulation, and de += (NULL: unwanted). */
bool normed_backward(const normed_edges &n, const wf_tensor *mean, float *deb, float *de,
                     wf_arena *arena);

/* The plain products of the edge operations: y = x W', dx = [dx +] dy W. */
inline operands forward_operands(const float *x, int ldx, int rows, const wf_tensor *weight) {
    return operands{x, ldx, data_of(weight), weight->ld, rows, weight->rows, weight->cols};
}
inline operands input_operands(const float *dy, int ldy, int rows, const wf_tensor *weight) {
    return operands{dy, ldy, data_of(weight), weight->ld, rows, weight->cols, weight->rows};
}
inline into_linear plain(float *c, int ldc, bool add) {
    return into_linear{c, ldc, add, NULL, NULL, NULL, 0, NULL};
}
/* unit(x + bias) */
inline into_unit unit_with_bias(int unit, float *y, float *slope, int ld, const wf_tensor *bias) {
    return into_unit{unit, y, slope, ld, data_of(bias), 0, NULL, NULL, 0, NULL};
}

/* Table gradients: in += sums of dx over edges that enter, out += over those that leave; NULL: not wanted. */
inline void table_gradients(const wf_part *part, const float *dx, int ld, int cols, float *in,
                            float *out, int ld_to) {
    if (in != NULL || out != NULL)
        node_sums(node_sum_step{part, in == NULL ? NULL : dx, out == NULL ? NULL : dx, ld, cols,
                                NULL, NULL, NULL, in, out, ld_to, true});
}

} // namespace wf_gpu
#endif
