/* matrix_ops: what operations on float matrices are made of: products, sums of rows, layer norm.
 * Each function makes one or two launches.
 *
 * Matrices are row-major, rows `ld` apart. Outputs are aligned to 16 bytes and padded to 4 columns.
 * Inputs need not be: weights are views into the flat parameters. A function that takes scratch
 * returns false if there is none. */
#pragma once

#include "tensor/cuda/runtime/op_kernels.cuh"

namespace wf_gpu {

/* --- products --------------------------------------------------------------------------------- */
/* A (m, k) and B, row-major. */
struct operands {
    const float *a;
    int lda;
    const float *b;
    int ldb;
    int m, n, k;
};

/* c = [c +] x + scale[r] * bias + table[map[r]]; absent parts NULL. */
struct into_linear {
    float *c;
    int ldc;
    bool add;
    const float *bias, *scale, *table;
    int ld_table;
    const uint32_t *map;
};
/* y = f(x + a[index_a[r]] + b[index_b[r]]) for an activation f; index NULL: row 0; slope: f', or
 * NULL. */
struct into_activation {
    int act;
    float *y, *slope;
    int ld;
    const float *a;
    int lda;
    const uint32_t *index_a;
    const float *b;
    int ldb;
    const uint32_t *index_b;
};
/* out = in + (1 + gate[graph[r]]) * (x + bias); gate NULL: in + x + bias. in may be out. */
struct into_residual {
    const float *in;
    float *out;
    int ld;
    const float *bias, *gate;
    int ld_gate;
    const uint32_t *graph;
};
/* c *= x */
struct into_product {
    float *c;
    int ldc;
};

/* x = A B' for B (n, k): the forward direction of a weight (n, k). */
void forward_product(const operands &o, const into_linear &to);
void forward_product(const operands &o, const into_activation &to);
void forward_product(const operands &o, const into_residual &to);
/* x = A B for B (k, n): the gradient by a layer's input. */
void input_product(const operands &o, const into_linear &to);
void input_product(const operands &o, const into_product &to);
/* w (m, n) += A' B for A (rows, m), B (rows, n); w has no padding. */
bool weight_product(float *w, const float *a, int lda, const float *b, int ldb, int rows, int m,
                    int n, wf_arena *arena);

/* --- sums over rows --------------------------------------------------------------------------- */
struct sum_target {
    float *data;
    int ld;
    bool set;  /* overwrite; else add */
    bool mean; /* divide by the number of rows */
};
/* target[0] from all rows of factor[r] * x[r]; factor may be NULL. */
bool sum_rows(const float *x, const float *factor, int ld, int rows, int cols, const sum_target &to,
              wf_arena *arena);
/* target[t] from the rows start[t] .. start[t+1]-1 of x * y; y may be NULL. */
bool sum_ranges(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *start,
                int targets, const sum_target &to, wf_arena *arena);
/* target[t] from the rows with map[r] == t; y may be NULL. */
bool sum_mapped(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *map,
                int targets, const sum_target &to, wf_arena *arena);

/* --- layer norm ------------------------------------------------------------------------------- */
/* hat = LN(x), y = hat * (1 + scale[map[r]]) + shift[map[r]]; shift at modulation, scale `cols`
 * after it. hat, rho, y may be NULL; modulation NULL: y = hat. */
struct norm_args {
    const float *x;
    int rows, cols, ld; /* of x, y and hat */
    const float *modulation;
    int ld_modulation;
    const uint32_t *map;
    float *y, *hat, *rho;
};
void norm_rows(const norm_args &step);
/* dy += part of the gradient of a mean over the graph's rows (if mean_grad is given; stored back),
 * then dx += gradient by x. The caller makes the gradients of the modulation: sums of dy and of dy
 * * hat. */
struct norm_back_args {
    float *dy;
    const float *hat, *rho;
    int rows, cols, ld;
    const float *modulation;
    int ld_modulation;
    const uint32_t *map;
    const float *mean_grad; /* (B, ld_mean) or NULL */
    int ld_mean;
    const uint32_t *start;
    float *dx; /* NULL: not wanted */
    int ld_dx;
};
void norm_rows_backward(const norm_back_args &step);

/* Zeros behind the columns of every row. */
void zero_padding(const wf_tensor *x);

} // namespace wf_gpu
