/* gradient_sums: weight gradients and sums into tables, many in one launch. */
#pragma once

#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {

/* weight (m, n) += dy' x for dy (rows, m), x (rows, n), both 16-byte aligned with ld % 4 == 0; bias
 * (m) += sum of scale[r] * dy[r]. weight, bias, scale may be NULL. partial (slices, m, pad(n)) and
 * bias_partial (slices, m) are scratch. */
struct weight_gradient {
    const float *dy, *x;
    int ldy, ldx, rows, m, n;
    bool half_dy, half_x; /* in bf16, by the same pointer; ld % 4 == 0 */
    float *weight, *bias;
    const float *scale;
    float *partial, *bias_partial;
    int slices, slice_rows, side, tiles_m, tiles_n;
    int first_block, first_item; /* where the entry begins in either launch */
};
enum { most_weight_gradients = 32 };
struct weight_gradients {
    int count;
    weight_gradient of[most_weight_gradients];
};
/* Sets slices and tiles; returns the floats of scratch that it needs. */
size_t weight_gradient_scratch(weight_gradient *entry);
void launch_weight_gradients(weight_gradients *list);

/* target[t] (=, += or mean) of x * f over the rows of t: start[t] .. start[t+1]-1, or those with
 * map[r] == t between bounds[2t] and bounds[2t+1]. f is 1, or y, or (y - mean) / deviation by
 * stats. */
struct table_sum {
    const float *x, *y, *stats;
    int ldx, ldy, rows, cols;
    bool half_x; /* x in bf16, by the same pointer */
    const uint32_t *start, *map;
    const int *bounds;
    int targets;
    sum_target to;
    int tiles, first_block;
};
enum { most_table_sums = 24 };
struct table_sums {
    int count;
    table_sum of[most_table_sums];
};
void launch_table_sums(table_sums *list);

} // namespace wf_gpu
