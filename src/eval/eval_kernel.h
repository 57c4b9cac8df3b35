/* eval_kernel: the inner loops of evaluation that are built once per instruction set. */
#ifndef WF_EVAL_KERNEL_H
#define WF_EVAL_KERNEL_H

#include "base/isa.h"
#include "weft/graph.h"

/* Examples that go through a network together; values of a group are stored (nodes, WF_SCORE_TILE). */
enum { WF_SCORE_TILE = 64 };

typedef struct wf_eval_kernel {
    /* y (n_dst, tile) += w (n_dst, n_src) x, x (n_src, tile). Sums run over sources in order. */
    void (*affine)(const float *w, size_t n_dst, size_t n_src, const float *x, float *y);
    void (*activate)(wf_activation activation, float *x, size_t count);
    /* Bits in which each of `count` masks of `words` words agrees with `query`: both set. */
    void (*overlaps)(const uint64_t *query, const uint64_t *masks, size_t count, size_t words,
                     uint32_t *overlap);
} wf_eval_kernel;

extern const wf_eval_kernel wf__eval_kernel_base_f32;
#if defined(__x86_64__)
extern const wf_eval_kernel wf__eval_kernel_avx2_f32, wf__eval_kernel_avx512_f32;
#endif

#endif
