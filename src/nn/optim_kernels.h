/* optim_kernels: the optimisers' arithmetic, built once per variant (see base/variant.h). Each
 * function works on one chunk of the flat arrays, or on one matrix, and touches nothing else. */
#pragma once

#include <stddef.h>

typedef struct wf_adamw_args {
    double beta1, beta2, eps;
    double rate;       /* step size of this update */
    double keep;       /* 1 - rate * weight decay; 1 where decay does not apply */
    double correct1;   /* 1 - beta1^n of update n = 1, 2 ... */
    double correct2;   /* 1 - beta2^n */
    double grad_scale; /* clipping */
    double ema;        /* decay; used where the ema array is not NULL */
} wf_adamw_args;

typedef struct wf_muon_args {
    double momentum;
    double rate; /* with the shape's factor */
    double keep; /* 1 - rate without the factor * weight decay */
    double grad_scale, ema;
} wf_muon_args;

/* c (m, n) = alpha * left right + beta * d. Element (i, k) of left is left[i*row + k*step]; right
 * (depth, n), c and d are row-major with n columns. m is a multiple of 8, n of 16; d may be NULL. c
 * overlaps nothing else. */
typedef struct wf_product {
    void *c;
    const void *left;
    size_t row, step;
    const void *right;
    size_t m, n, depth;
    double alpha, beta;
    const void *d;
} wf_product;

/* Arrays are of the variant's real type. ema may be NULL. */
typedef struct wf_optim_kernels {
    double (*sum_squares)(const void *x, size_t n);
    void (*adamw)(void *p, const void *g, void *m, void *v, void *ema, size_t n,
                  const wf_adamw_args *args);
    /* p (rows, cols), g its gradient, m the momentum; scratch has wf_muon_scratch(rows, cols)
     * reals, 64-byte aligned. */
    void (*muon)(void *p, const void *g, void *m, void *ema, int rows, int cols,
                 const wf_muon_args *args, void *scratch);
    /* out (rows, cols) = the matrix of the five Newton-Schulz iterations from x (rows, cols). */
    void (*newton_schulz)(const void *x, void *out, int rows, int cols, void *scratch);
    void (*multiply)(const wf_product *product);
} wf_optim_kernels;

extern const wf_optim_kernels wf_optim_kernels_base_f32, wf_optim_kernels_base_f64;
#if defined(__x86_64__)
extern const wf_optim_kernels wf_optim_kernels_avx2_f32, wf_optim_kernels_avx512_f32;
#endif

/* Matrices are padded to these multiples: long side, short side. */
enum { WF_MUON_PAD_LONG = 8, WF_MUON_PAD_SHORT = 16 };
size_t wf_muon_scratch(int rows, int cols);
