/* match_product: products of matrices made from many networks, in float and in the CPU kernels'
 * order of sums. */
#pragma once

#include "base/cuda/device.cuh"

enum { WF_GPU_TILE = 128, WF_GPU_STEP = 8 };

/* c (rows, columns) = a' b, a (depth, rows), b (depth, columns). Whole tiles of WF_GPU_TILE are
 * read and written, so what lies after the last row and column belongs to the matrices; depth is a
 * multiple of WF_GPU_STEP; pointers and leading dimensions are multiples of 4 floats. */
wf_status wf_gpu_product(wf_ctx *ctx, const float *a, size_t lda, const float *b, size_t ldb,
                         int depth, float *c, size_t ldc, size_t rows, size_t columns,
                         cudaStream_t stream);

/* out[k][network * n + unit] = networks[network][terms[k].x + unit * terms[k].y], k < depth. */
wf_status wf_gpu_pack(wf_ctx *ctx, const int2 *terms, int depth, int n, const float *networks,
                      size_t count, size_t params, float *out, size_t ld, cudaStream_t stream);
