/* weft/align.h: exact assignment and Git Re-Basin weight matching for any described network.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_ALIGN_H
#define WEFT_ALIGN_H

#include "weft/zoo.h"

WF_BEGIN_C

/* The permutation that maximises sum_r score[r*n + match[r]]; exact. n >= 1.
 * score (n, n) and match (n) are the caller's. Returns WF_OK, WF_ERR_USAGE (n, a score that is
 * not finite) or WF_ERR_MEMORY. */
WF_API wf_status wf_assign_max(wf_ctx *ctx, int n, const double *score, uint32_t *match);

/* Sweep s visits the orbits in an order drawn from (seed, restart, s). */
typedef struct wf_match_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/match.def"
} wf_match_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_match_desc wf_match_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_match_settings(void);

/* Find the relabelling of b's hidden units that brings b closest to a: perm is ready for
 * wf_graph_permute(graph, perm, b, out). dot (may be NULL) receives <a, permuted b>; sweeps_used
 * may be NULL. The plain, readable loop.
 * desc NULL means the defaults. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_INPUT (values that are
 * not finite) or WF_ERR_MEMORY. */
WF_API wf_status wf_match(wf_ctx *ctx, const wf_graph *graph, const float *a, const float *b,
                          const wf_match_desc *desc, uint32_t *perm, double *dot, int *sweeps_used);

/* For each of nq queries the largest matched cosine over nr references, and which one (either
 * out pointer may be NULL). skip[q] is a reference index to leave out (a network itself), or -1;
 * skip NULL: none. The fast path: same values as wf_match.
 * desc NULL means the defaults. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_INPUT (values that are
 * not finite), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_wcs_max(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                            const float *refs, size_t nr, const int64_t *skip,
                            const wf_match_desc *desc, float *best, uint32_t *which);

/* Permute each b[k] (count, n_params) in place so that it matches a[k]: the matched coupling. In
 * parallel.
 * desc NULL means the defaults. Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_INPUT (values that are
 * not finite), WF_ERR_INTERRUPTED (some are relabelled) or WF_ERR_MEMORY. */
WF_API wf_status wf_match_pairs(wf_ctx *ctx, const wf_graph *graph, const float *a, float *b,
                                size_t count, const wf_match_desc *desc);

/* Relabel networks (count, n_params) in place so that each matches network `reference` of them.
 * desc NULL means the defaults. Returns WF_OK, WF_ERR_USAGE (no such network), WF_ERR_INPUT (values
 * that are not finite), WF_ERR_INTERRUPTED (some are relabelled) or WF_ERR_MEMORY. */
WF_API wf_status wf_align_networks(wf_ctx *ctx, const wf_graph *graph, float *weights, size_t count,
                                   size_t reference, const wf_match_desc *desc);

/* Write the collection `zoo` to `path` with every network relabelled to match network
 * `reference`. Indices, all other tensors (seeds, scores, masks: relabelling changes no
 * function) and the metadata are kept; "weft.aligned" says how it was done. desc NULL means the
 * defaults. `path` may be the collection's own.
 * Returns WF_OK, WF_ERR_USAGE (no such network), WF_ERR_INPUT (a damaged file, values that are not
 * finite), WF_ERR_INTERRUPTED, WF_ERR_DISK or WF_ERR_MEMORY; on failure nothing is written. */
WF_API wf_status wf_align_zoo(wf_ctx *ctx, const wf_zoo *zoo, size_t reference,
                              const wf_match_desc *desc, const char *path);

WF_END_C

#endif
