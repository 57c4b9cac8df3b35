/* gemm: C (m, n) = or += A (m, k) B (k, n), for tiles that stay in the caches.
 *
 *   for each panel of B: 64 columns (AVX-512; two vectors elsewhere)        B panel [k][64]
 *                                                                           stays in L1
 *     for each 6 rows of A: 24 accumulators in registers,
 *                           4 loads + 6 broadcasts for 24 multiply-adds
 * Columns are processed up to wf_pad(n); A may have any strides (so A' is free). An element's sum
 * runs over k in order whatever the tile, so a row's bits do not depend on its neighbours. */
#pragma once

#include "base/variant.h"
#include "tensor/tensor.h"

enum { gemm_rows = 6, gemm_vectors = WF_LANES == 16 ? 4 : 2, gemm_panel = gemm_vectors * WF_LANES };

typedef struct gemm_args {
    real *c;
    ptrdiff_t ldc;
    const real *a;
    ptrdiff_t a_row, a_k; /* strides of A */
    const real *b;
    ptrdiff_t b_k, b_panel; /* strides of B: one k, one panel; b_k 0: the panel's width */
    int b_first;            /* rows of B to pass over */
    int m, k, n;
    bool add;
} gemm_args;

static inline __attribute__((always_inline)) void gemm_micro(const gemm_args *g, real *c,
                                                             const real *a, const real *b,
                                                             ptrdiff_t b_k, const int mr,
                                                             const int nv) {
    const ptrdiff_t ldc = g->ldc, a_row = g->a_row, a_k = g->a_k;
    vreal acc[gemm_rows][gemm_vectors];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++)
            acc[i][j] =
                g->add ? (vreal) * (const vreal_u *)(c + i * ldc + j * WF_LANES) : (vreal){0};
    for (int k = 0; k < g->k; k++) {
        vreal bv[gemm_vectors];
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) bv[j] = *(const vreal_u *)(b + j * WF_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            real value = a[i * a_row];
#pragma GCC unroll 8
            for (int j = 0; j < nv; j++) acc[i][j] += value * bv[j];
        }
        a += a_k;
        b += b_k;
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) *(vreal_u *)(c + i * ldc + j * WF_LANES) = acc[i][j];
}

static inline __attribute__((always_inline)) void
gemm_strip(const gemm_args *g, real *c, const real *b, ptrdiff_t b_k, const int nv) {
    int i = 0;
    for (; i + 6 <= g->m; i += 6) gemm_micro(g, c + i * g->ldc, g->a + i * g->a_row, b, b_k, 6, nv);
    if (i + 4 <= g->m) {
        gemm_micro(g, c + i * g->ldc, g->a + i * g->a_row, b, b_k, 4, nv);
        i += 4;
    }
    if (i + 2 <= g->m) {
        gemm_micro(g, c + i * g->ldc, g->a + i * g->a_row, b, b_k, 2, nv);
        i += 2;
    }
    if (i < g->m) gemm_micro(g, c + i * g->ldc, g->a + i * g->a_row, b, b_k, 1, nv);
}

void WF_FN(wf_gemm)(const gemm_args *args);
/* B (k, n), entry (k, n) at k*row + n*column of b, to panels [wf_panel_size(k, n)]; columns beyond
 * n are zero. */
void WF_FN(wf_pack_panels)(const real *b, ptrdiff_t row, ptrdiff_t column, int k, int n, real *out);

/* B as packed by wf_backend.pack: panel after panel, each [k][its width]. */
static inline void gemm_packed(real *c, int ldc, const real *a, int lda, const void *panels, int m,
                               int k, int n, bool add) {
    gemm_args args = {c, ldc, a, lda, 1, panels, 0, (ptrdiff_t)gemm_panel * k, 0, m, k, n, add};
    WF_FN(wf_gemm)(&args);
}

/* The same with the rows first .. k-1 of a packed B (k, n) only; A has k - first columns. */
static inline void gemm_packed_from(real *c, int ldc, const real *a, int lda, const void *panels,
                                    int first, int m, int k, int n) {
    gemm_args args = {c,     ldc, a,         lda, 1,    panels, 0, (ptrdiff_t)gemm_panel * k,
                      first, m,   k - first, n,   false};
    WF_FN(wf_gemm)(&args);
}

/* C (m, n) += A' B for A (k, m), B (k, n) row-major: gradients of weights. */
static inline void gemm_transposed(real *c, int ldc, const real *a, int lda, const real *b, int ldb,
                                   int m, int k, int n) {
    gemm_args args = {c, ldc, a, 1, lda, b, ldb, gemm_panel, 0, m, k, n, true};
    WF_FN(wf_gemm)(&args);
}
