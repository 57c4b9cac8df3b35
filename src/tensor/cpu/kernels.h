/* kernels: what the CPU kernels share: their prototypes, rows as vectors, units, layer norm of a row. */
#ifndef WF_TENSOR_CPU_KERNELS_H
#define WF_TENSOR_CPU_KERNELS_H

#include "tensor/cpu/gemm.h"

#include <string.h>

#define X(name, tolerance)                                                                         \
    bool WF_FN(wf_##name##_forward)(const wf_op *op, wf_arena *arena);                             \
    bool WF_FN(wf_##name##_backward)(const wf_op *op, wf_arena *arena);
#include "tensor/ops.def"
#undef X

double WF_FN(wf_fma_rounds)(size_t rounds);

static inline real *row_of(const wf_tensor *tensor, size_t row) {
    return (real *)tensor->data + row * (size_t)tensor->ld;
}
static inline real *grad_row(const wf_tensor *tensor, size_t row) {
    return (real *)tensor->grad + row * (size_t)tensor->ld;
}
static inline bool wanted(const wf_tensor *tensor) { return tensor != NULL && tensor->wants; }

/* Scratch of `count` reals with the slack that whole vectors need. */
static inline real *scratch(wf_arena *arena, size_t count) {
    return wf_arena_alloc(arena, (count + WF_PAD) * sizeof(real));
}
static inline real *zeroed_scratch(wf_arena *arena, size_t count) {
    return wf_arena_zalloc(arena, (count + WF_PAD) * sizeof(real));
}

/* Halves are added until one lane is left: a short tree, where adding lane by lane would wait for every add. */
static inline real vector_sum(vreal v) {
#if WF_LANES == 16
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif WF_LANES == 8
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#elif WF_LANES == 4
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
    return v[0] + v[1];
}

static inline real row_sum(const real *x, int n) {
    vreal acc = {0};
    int i = 0;
    for (; i + WF_LANES <= n; i += WF_LANES) acc += *(const vreal_u *)(x + i);
    real sum = vector_sum(acc);
    for (; i < n; i++) sum += x[i];
    return sum;
}

static inline real row_dot(const real *x, const real *y, int n) {
    vreal acc = {0};
    int i = 0;
    for (; i + WF_LANES <= n; i += WF_LANES)
        acc += *(const vreal_u *)(x + i) * *(const vreal_u *)(y + i);
    real sum = vector_sum(acc);
    for (; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static inline void row_add(real *restrict out, const real *restrict x, int n) {
    for (int i = 0; i < n; i++) out[i] += x[i];
}
static inline void row_add_scaled(real *restrict out, real factor, const real *restrict x, int n) {
    for (int i = 0; i < n; i++) out[i] += factor * x[i];
}

/* out += the sum of rows of x, top to bottom. */
static inline void column_sums(real *restrict out, const real *restrict x, int rows, int cols,
                               int ld) {
    for (int r = 0; r < rows; r++) row_add(out, x + (size_t)r * ld, cols);
}

/* tanh-GELU is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), SiLU x * sigmoid(x): one exponential each. */
#define gelu_slope ((real)1.5957691216057308)
#define gelu_cubic ((real)0.07135481627260025)

static inline __attribute__((always_inline)) real sigmoid(real x) { return 1 / (1 + r_exp(-x)); }

static inline __attribute__((always_inline)) real unit_value(const int unit, real x) {
    if (unit == WF_UNIT_SINE) return r_sin(x);
    if (unit == WF_UNIT_SILU) return x * sigmoid(x);
    real square = x * x;
    return x * sigmoid(x * (gelu_slope + gelu_cubic * square));
}

static inline __attribute__((always_inline)) real unit_slope(const int unit, real x, real *value) {
    if (unit == WF_UNIT_SINE) {
        *value = r_sin(x);
        return r_cos(x);
    }
    if (unit == WF_UNIT_SILU) {
        real s = sigmoid(x);
        *value = x * s;
        return s + x * s * (1 - s);
    }
    real square = x * x;
    real s = sigmoid(x * (gelu_slope + gelu_cubic * square));
    *value = x * s;
    return s + x * s * (1 - s) * (gelu_slope + 3 * gelu_cubic * square);
}

#define norm_eps ((real)1e-6)

/* hat = (x - mean) * rho, padding zero; returns rho. */
static inline real norm_row(const real *restrict x, int cols, int ld, real *restrict hat) {
    real mean = row_sum(x, cols) / (real)cols;
    for (int i = 0; i < cols; i++) hat[i] = x[i] - mean;
    real rho = 1 / r_sqrt(row_dot(hat, hat, cols) / (real)cols + norm_eps);
    for (int i = 0; i < cols; i++) hat[i] *= rho;
    for (int i = cols; i < ld; i++) hat[i] = 0;
    return rho;
}

/* dx += rho * (g - mean(g) - hat * mean(g * hat)), g the gradient by hat. */
static inline void norm_row_backward(real *restrict dx, const real *restrict g,
                                     const real *restrict hat, real rho, int cols) {
    real mean = row_sum(g, cols) / (real)cols;
    real along = row_dot(g, hat, cols) / (real)cols;
    for (int i = 0; i < cols; i++) dx[i] += rho * (g[i] - mean - hat[i] * along);
}

/* Gradient of the rows first.. of a weight (m, n): weight->grad += A' B, A (k, m - first). The caller's array has no
 * padding, so odd widths pass by scratch. */
static inline bool weight_gradient_from(const wf_tensor *weight, int first, const real *a, int lda,
                                        const real *b, int ldb, int k, wf_arena *arena) {
    int m = weight->rows - first, n = weight->cols;
    real *grad = grad_row(weight, (size_t)first);
    if (n % WF_PAD == 0) {
        gemm_transposed(grad, n, a, lda, b, ldb, m, k, n);
        return true;
    }
    wf_arena_mark mark = wf_arena_here(arena);
    int width = wf_pad(n);
    real *sum = zeroed_scratch(arena, (size_t)m * (size_t)width);
    if (sum == NULL) return false;
    gemm_transposed(sum, width, a, lda, b, ldb, m, k, n);
    for (int i = 0; i < m; i++) row_add(grad + (size_t)i * n, sum + (size_t)i * width, n);
    wf_arena_rewind(arena, mark);
    return true;
}
static inline bool weight_gradient(const wf_tensor *weight, const real *a, int lda, const real *b,
                                   int ldb, int k, wf_arena *arena) {
    return weight_gradient_from(weight, 0, a, lda, b, ldb, k, arena);
}

#endif
