/* product: matrix products of plain row-major matrices, such as large weights where they lie, with
 * all threads of the operation.
 *
 * C is cut into blocks of rows and columns, a block a chunk; in a block k is walked in steps of
 * product_depth, so that what is read again stays in the caches. An element's sum runs over k in
 * order in every form (gemm.h): blocks and threads do not change its bits. */
#pragma once

#include "tensor/cpu/kernels.h"

enum { product_depth = 256 };

/* C (m, n), rows ldc apart, = or += A (m, k), any strides, times B (k, n) row-major. Exactly n
 * columns of C are written. */
typedef struct product_args {
    real *c;
    ptrdiff_t ldc;
    const real *a;
    ptrdiff_t a_row, a_k;
    const real *b;
    ptrdiff_t ldb;
    int m, k, n;
    bool add;
} product_args;
void WF_FN(wf_product)(wf_ctx *ctx, const product_args *args);

/* C (m, n) = or += X (m, k) W', W (n, k) row-major. Columns n .. wf_pad(n)-1 of C are set to zero
 * where C is not added to. */
bool WF_FN(wf_product_by_weight)(wf_ctx *ctx, wf_arena *arena, real *c, int ldc, const real *x,
                                 int ldx, const real *w, int ldw, int m, int k, int n, bool add);

/* fn(op, more, first, last) for ranges of 0 .. count-1, of about 32,768 values each at `width`
 * values a row. */
typedef void range_fn(const wf_op *op, void *more, int first, int last);
void WF_FN(wf_over_rows)(const wf_op *op, int count, int width, range_fn *fn, void *more);
/* The same with ranges that end where map changes, so that no two of them have rows of one group;
 * the rows of a group lie together. */
void WF_FN(wf_over_groups)(const wf_op *op, int count, int width, range_fn *fn, void *more);
/* The same for columns, in ranges of at least 64: sums over rows, which go in order in each
 * column. */
void WF_FN(wf_over_columns)(const wf_op *op, int count, range_fn *fn, void *more);

#define over_rows WF_FN(wf_over_rows)
#define over_groups WF_FN(wf_over_groups)
#define over_columns WF_FN(wf_over_columns)

/* One direction of an operation that fn computes for ranges of rows, as many as `tensor` has. */
#define WF_OVER_ROWS(name, tensor, fn)                                                             \
    bool WF_FN(wf_##name)(const wf_op *op, wf_arena *arena) {                                      \
        (void)arena;                                                                               \
        over_rows(op, (tensor)->rows, (tensor)->ld, fn, NULL);                                     \
        return true;                                                                               \
    }
