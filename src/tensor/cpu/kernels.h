/* kernels: what the CPU kernels have in common: prototypes, rows as vectors, activations, layer
 * norm. */
#pragma once

#include "base/pool.h"
#include "tensor/cpu/gemm.h"
#include "tensor/cpu/activation.h"

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

/* Scratch of `count` reals with room for a whole vector after the last. */
static inline real *scratch(wf_arena *arena, size_t count) {
    return wf_arena_alloc(arena, (count + WF_PAD) * sizeof(real));
}
static inline real *zeroed_scratch(wf_arena *arena, size_t count) {
    return wf_arena_zalloc(arena, (count + WF_PAD) * sizeof(real));
}

/* Adds halves until one lane is left: a short tree, instead of one add after the other. */
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

static inline vreal load(const real *x) { return *(const vreal_u *)x; }
static inline void store(real *x, vreal v) { *(vreal_u *)x = v; }

/* Rows are short. A loop over whole vectors and one over the rest need no set-up. */
#define each_vector(i, n) for (int i = 0; i < (n) / WF_LANES * WF_LANES; i += WF_LANES)
#define each_rest(i, n) for (int i = (n) / WF_LANES * WF_LANES; i < (n); i++)

static inline real row_sum(const real *x, int n) {
    vreal acc = {0};
    each_vector(i, n) acc += load(x + i);
    real sum = vector_sum(acc);
    each_rest(i, n) sum += x[i];
    return sum;
}

static inline real row_dot(const real *x, const real *y, int n) {
    vreal acc = {0};
    each_vector(i, n) acc += load(x + i) * load(y + i);
    real sum = vector_sum(acc);
    each_rest(i, n) sum += x[i] * y[i];
    return sum;
}

static inline void row_add(real *out, const real *x, int n) {
    each_vector(i, n) store(out + i, load(out + i) + load(x + i));
    each_rest(i, n) out[i] += x[i];
}
static inline void row_add_scaled(real *out, real factor, const real *x, int n) {
    each_vector(i, n) store(out + i, load(out + i) + factor * load(x + i));
    each_rest(i, n) out[i] += factor * x[i];
}
/* x added to two rows in one pass. */
static inline void row_add_both(real *first, real *second, const real *x, int n) {
    each_vector(i, n) {
        vreal v = load(x + i);
        store(first + i, load(first + i) + v);
        store(second + i, load(second + i) + v);
    }
    each_rest(i, n) {
        first[i] += x[i];
        second[i] += x[i];
    }
}

/* out += the sum of rows of x, top to bottom. */
static inline void column_sums(real *restrict out, const real *restrict x, int rows, int cols,
                               int ld) {
    for (int r = 0; r < rows; r++) row_add(out, x + (size_t)r * ld, cols);
}

/* The first n lanes of a vector that crosses the end of a row. */
static inline vreal load_some(const real *x, int n) {
    vreal v = {0};
    memcpy(&v, x, (size_t)n * sizeof(real));
    return v;
}
static inline void store_some(real *x, vreal v, int n) { memcpy(x, &v, (size_t)n * sizeof(real)); }

#define norm_eps ((real)1e-6)

/* hat = (x - mean) * rho, padding zero; returns rho. */
static inline real norm_row_by(const real *x, int cols, int ld, real eps, real *hat,
                               real *mean_out) {
    real mean = row_sum(x, cols) / (real)cols;
    *mean_out = mean;
    vreal square = {0};
    each_vector(i, cols) {
        vreal centred = load(x + i) - mean;
        store(hat + i, centred);
        square += centred * centred;
    }
    real sum = vector_sum(square);
    each_rest(i, cols) {
        hat[i] = x[i] - mean;
        sum += hat[i] * hat[i];
    }
    real rho = 1 / r_sqrt(sum / (real)cols + eps);
    each_vector(i, cols) store(hat + i, load(hat + i) * rho);
    each_rest(i, cols) hat[i] *= rho;
    for (int i = cols; i < ld; i++) hat[i] = 0;
    return rho;
}
static inline real norm_row(const real *x, int cols, int ld, real *hat) {
    real mean;
    return norm_row_by(x, cols, ld, norm_eps, hat, &mean);
}

/* dx += rho * (g - mean(g) - hat * mean(g * hat)), g the gradient by hat. */
static inline void norm_row_backward(real *dx, const real *g, const real *hat, real rho, int cols) {
    real mean = row_sum(g, cols) / (real)cols;
    real along = row_dot(g, hat, cols) / (real)cols;
    each_vector(i, cols)
        store(dx + i, load(dx + i) + rho * (load(g + i) - mean - load(hat + i) * along));
    each_rest(i, cols) dx[i] += rho * (g[i] - mean - hat[i] * along);
}

/* Gradient of the rows first.. of a weight (m, n): weight->grad += A' B, A (k, m - first). The
 * caller's array has no padding, so odd widths pass by scratch. */
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
