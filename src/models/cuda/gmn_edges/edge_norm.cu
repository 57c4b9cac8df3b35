/* edge_norm: layer norm of the edge stream with its modulation and mean. */
#include "models/cuda/gmn_edges/edge_norm.cuh"

namespace wf_gpu {

bool normed_start(const wf_op *op, bool backward, wf_arena *arena, normed_edges *out) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1];
    *out = normed_edges{
        op->part, e, modulation, op->column, scratch_rows(arena, e->rows, e->cols), NULL, NULL};
    if (backward) {
        out->hat = scratch_rows(arena, e->rows, e->cols);
        out->rho = scratch(arena, (size_t)e->rows);
        if (out->hat == NULL || out->rho == NULL) return false;
    }
    if (out->eb == NULL) return false;
    norm_rows(norm_args{data_of(e), e->rows, e->cols, e->ld, data_of(modulation) + op->column,
                        modulation->ld, op->part->edge_graph, out->eb, out->hat, out->rho});
    return true;
}

bool normed_mean(const normed_edges &n, const wf_tensor *mean, wf_arena *arena) {
    start_zero(mean->data, (size_t)mean->rows * (size_t)mean->ld * sizeof(float));
    return sum_ranges(n.eb, NULL, n.e->ld, n.e->rows, n.e->cols, n.part->edge_start, mean->rows,
                      sum_target{data_of(mean), mean->ld, true, true}, arena);
}

bool normed_backward(const normed_edges &n, const wf_tensor *mean, float *deb, float *de,
                     wf_arena *arena) {
    int rows = n.e->rows, cols = n.e->cols, ld = n.e->ld;
    const uint32_t *start = n.part->edge_start;
    norm_back_args step = {deb,
                           n.hat,
                           n.rho,
                           rows,
                           cols,
                           ld,
                           data_of(n.modulation) + n.column,
                           n.modulation->ld,
                           n.part->edge_graph,
                           NULL,
                           0,
                           start,
                           de,
                           ld};
    if (mean != NULL) {
        step.mean_grad = grad_of(mean);
        step.ld_mean = mean->ld;
    }
    norm_rows_backward(step);
    if (!wanted(n.modulation)) return true;
    sum_target shift = {grad_of(n.modulation) + n.column, n.modulation->ld, false, false};
    sum_target scale = shift;
    scale.data += cols;
    int graphs = n.part->n_graphs;
    return sum_ranges(deb, NULL, ld, rows, cols, start, graphs, shift, arena) &&
           sum_ranges(deb, n.hat, ld, rows, cols, start, graphs, scale, arena);
}

} // namespace wf_gpu
