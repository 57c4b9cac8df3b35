/* match_cuda: Re-Basin weight matching on the GPU, the definition of match.c and the arithmetic of
 * cpu/match_kernel.c.
 *
 * Scores are sums of fused multiply-adds in the order of the CPU kernels and the assignment breaks
 * ties like theirs, so a pair gets the very permutation that the AVX2 and AVX-512 kernels find. */
#pragma once

#include "align/match.h"

WF_BEGIN_C

typedef struct wf_match_cuda wf_match_cuda;

/* Whether networks of this description and these settings can be matched on a GPU: hidden layers of
 * at most 64 units. */
bool wf_match_cuda_fits(const wf_graph *graph, const wf_match_desc *desc);

/* A matcher of pairs that lie in device memory. Holds the scores of `pairs` pairs; a call may bring
 * more and takes several rounds then. desc NULL means the defaults. WF_ERR_UNSUPPORTED where
 * wf_match_cuda_fits says no. */
wf_status wf_match_cuda_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                             size_t pairs, wf_match_cuda **out);
void wf_match_cuda_close(wf_match_cuda *matcher);

/* out[k] = b[k] with its hidden units permuted to match a[k * a_step] (a_step 1: pairs; 0: all
 * match one network), k < count.
 *   a, b, out   device memory, (count, n_params) in flat order, no padding; out overlaps neither
 *   stream      a cudaStream_t; the call only enqueues kernels there: nothing is allocated,
 *               copied from the host or waited for, so it may be captured in a CUDA graph
 * A pair with a weight that is not finite comes out as some permutation of b. */
wf_status wf_match_cuda_run(wf_ctx *ctx, wf_match_cuda *matcher, const float *a, size_t a_step,
                            const float *b, size_t count, float *out, void *stream);

/* wf_match_pairs on the GPU: b in host memory, permuted in place; a_step as above. */
wf_status wf_match_pairs_cuda(wf_ctx *ctx, const wf_graph *graph, const float *a, size_t a_step,
                              float *b, size_t count, const wf_match_desc *desc);

/* wf_wcs_max on the GPU; host memory in, host memory out. */
wf_status wf_wcs_max_cuda(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                          const float *refs, size_t nr, const int64_t *skip,
                          const wf_match_desc *desc, float *best, uint32_t *which);

WF_END_C
