/* gradient_sums: weight gradients and sums towards tables, many in one launch. */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_GRADIENT_SUMS_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_GRADIENT_SUMS_CUH

#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {

/* weight (m, n) += dy' x for dy (rows, m), x (rows, n), both aligned and in fours; bias (m) += sum of scale[r] * dy[r].
 * weight, bias, scale may be NULL. partial (chunks, m, pad(n)) and bias_partial (chunks, m) are scratch. */
struct weight_job {
    const float *dy, *x;
    int ldy, ldx, rows, m, n;
    float *weight, *bias;
    const float *scale;
    float *partial, *bias_partial;
    int chunks, chunk_rows, side, tiles_m, tiles_n;
    int first_block, first_item; /* where this job's begin in the launches */
};
enum { most_weight_jobs = 32 };
struct weight_jobs {
    int count;
    weight_job job[most_weight_jobs];
};
/* Scratch of a job, in floats; chunks and tiles are set. */
size_t weight_job_scratch(weight_job *job);
void run_weight_jobs(weight_jobs *jobs);

/* target[t] (=, += or mean) of x * f over the rows of t: start[t] .. start[t+1]-1, or those with map[r] == t within
 * bounds[2t], bounds[2t+1]. f: 1, or y, or (y - mean) / deviation by stats. */
struct sum_job {
    const float *x, *y, *stats;
    int ldx, ldy, rows, cols;
    const uint32_t *start, *map;
    const int *bounds;
    int targets;
    sum_target to;
    int tiles, first_block;
};
enum { most_sum_jobs = 24 };
struct sum_jobs {
    int count;
    sum_job job[most_sum_jobs];
};
void run_sum_jobs(sum_jobs *jobs);

} // namespace wf_gpu
#endif
