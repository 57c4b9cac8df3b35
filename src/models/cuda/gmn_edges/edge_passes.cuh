/* edge_passes: passes over edges and messages in float, for the operations of both layouts. */
#pragma once

#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {

/* y = f(p + a[index_a] + b[index_b]) for an activation f; slope = f'. */
void activate_with_tables(const float *p, int rows, int cols, const into_activation &to);

/* For every node: `in` summed over the edges that enter it, `out` over those that leave it. Sets or
 * adds to to_in and to_out; if these are equal, both sums go there. Weights per edge may be NULL.
 * If degree is not NULL, the sums are divided by it. */
struct node_sum_args {
    const wf_part *part;
    const float *in, *out;
    int ld, cols;
    const float *weight_in, *weight_out;
    const float *degree;
    float *to_in, *to_out;
    int ld_to;
    bool add;
};
void node_sums(const node_sum_args &step);

/* Attention: the messages y (E, ld) of one direction, the vector v of their logits, and who
 * receives them. */
struct direction {
    const float *y;
    int ld, cols;
    const float *v;
    const uint32_t *receiver;
    float *weight, *dlogit; /* [E] */
};
/* Softmax over all messages entering a node; `in` goes to dst, `out` to src. saved: max and total,
 * [N] each. */
void softmax_weights(const wf_part *part, const direction &in, const direction &out, float *saved);
/* For backward: weight and dlogit of a direction, dlogit = weight * (dsum[receiver].y -
 * along[receiver]). */
void softmax_backward(const wf_part *part, const direction &d, const float *saved,
                      const float *dsum, int ld_dsum, const float *along);
/* along[n] = [along[n] +] a[n].b[n] */
void row_dots(const float *a, const float *b, int ld, int rows, int cols, float *along, bool add);

/* slope *= sum over sources of weight[r] * dsum[receiver[r]] + dlogit[r] * v; weight NULL: 1, or 1
 * / degree. */
struct gradient_source {
    const float *dsum;
    const uint32_t *receiver;
    const float *weight, *dlogit, *v, *degree;
};
void slopes_to_gradients(float *slope, int rows, int ld, const gradient_source *sources, int count,
                         int ld_dsum);

/* out = (1 + gate[graph[r]]) * x */
void gate_rows(const float *x, float *out, int rows, int cols, int ld, const float *gate,
               int ld_gate, const uint32_t *graph);
/* out += x, whole rows */
void add_rows(float *out, const float *x, size_t count);

} // namespace wf_gpu
