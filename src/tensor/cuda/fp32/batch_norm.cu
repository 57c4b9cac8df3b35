/* batch_norm: batch norm of columns over all rows. Sums over rows by row_sums.cuh, variances about
 * the mean in a second pass; four passes forward with training, three backward, bound by bandwidth;
 * not measured yet. */
#include "tensor/cuda/fp32/row_sums.cuh"

namespace wf_gpu {
namespace {

struct square_value {
    const float *x, *mean;
    int ld;
    __device__ float operator()(int row, int col) const {
        float d = x[(size_t)row * ld + col] - mean[col];
        return d * d;
    }
};
struct hat_gradient_value {
    const float *x, *dy, *mean, *rho;
    int ld;
    __device__ float operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        return dy[at] * (x[at] - mean[col]) * rho[col];
    }
};

/* rho from variances in its place; with training the running statistics move. */
struct finish_column {
    float *mean, *rho, *running;
    int cols, rows;
    bool training;
    float eps;
    __device__ void operator()(int, int c) const {
        if (!training) {
            mean[c] = running[c];
            rho[c] = running[cols + c];
        } else {
            float unbiased = rows > 1 ? rho[c] * ((float)rows / (float)(rows - 1)) : rho[c];
            running[c] += 0.1f * (mean[c] - running[c]);
            running[cols + c] += 0.1f * (unbiased - running[cols + c]);
        }
        rho[c] = 1 / sqrtf(rho[c] + eps);
    }
};
struct normal_element {
    const float *x, *mean, *rho, *weight, *bias;
    float *y;
    int cols, ld;
    __device__ void operator()(int row, int c) const {
        size_t at = (size_t)row * ld + c;
        y[at] = c < cols ? (x[at] - mean[c]) * rho[c] * weight[c] + bias[c] : 0;
    }
};
/* sums: of dy, then of dy * hat; NULL without training */
struct normal_back_element {
    const float *x, *dy, *mean, *rho, *weight, *sums;
    float *dx;
    int cols, ld;
    float share;
    __device__ void operator()(int row, int c) const {
        size_t at = (size_t)row * ld + c;
        float g = dy[at];
        if (sums != NULL) g -= share * (sums[c] + (x[at] - mean[c]) * rho[c] * sums[cols + c]);
        dx[at] += rho[c] * weight[c] * g;
    }
};
struct add_vector {
    float *to;
    const float *from;
    __device__ void operator()(int, int c) const { to[c] += from[c]; }
};

} // namespace

/* saved: mean and rho (C each) of what was used. */
bool batch_norm_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    float *mean = (float *)op->saved, *rho = mean + x->cols;
    bool training = op->mode != 0;
    if (training && (!sum_mapped(data_of(x), NULL, x->ld, x->rows, x->cols, NULL, 1,
                                 sum_target{mean, 0, true, true}, arena) ||
                     !sum_values_mapped(square_value{data_of(x), mean, x->ld}, x->rows, x->cols,
                                        NULL, 1, sum_target{rho, 0, true, true}, arena)))
        return false;
    each(finish_column{mean, rho, data_of(op->in[3]), x->cols, x->rows, training, (float)op->value},
         1, x->cols);
    each(normal_element{data_of(x), mean, rho, data_of(op->in[1]), data_of(op->in[2]), data_of(y),
                        x->cols, x->ld},
         x->rows, x->ld);
    return launched();
}

bool batch_norm_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *weight = op->in[1], *bias = op->in[2], *y = op->out[0];
    const float *mean = (const float *)op->saved, *rho = mean + x->cols;
    float *sums = scratch(arena, 2 * (size_t)x->cols);
    if (sums == NULL ||
        !sum_rows(grad_of(y), NULL, y->ld, y->rows, y->cols, sum_target{sums, 0, true, false},
                  arena) ||
        !sum_values_mapped(hat_gradient_value{data_of(x), grad_of(y), mean, rho, x->ld}, x->rows,
                           x->cols, NULL, 1, sum_target{sums + x->cols, 0, true, false}, arena))
        return false;
    if (wanted(bias)) each(add_vector{grad_of(bias), sums}, 1, x->cols);
    if (wanted(weight)) each(add_vector{grad_of(weight), sums + x->cols}, 1, x->cols);
    if (wanted(x))
        each(normal_back_element{data_of(x), grad_of(y), mean, rho, data_of(weight),
                                 op->mode != 0 ? sums : NULL, grad_of(x), x->cols, x->ld,
                                 1 / (float)x->rows},
             x->rows, x->cols);
    return launched();
}

} // namespace wf_gpu
