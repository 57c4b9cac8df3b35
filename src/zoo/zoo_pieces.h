/* zoo_pieces: going through a collection that may be larger than memory.
 *
 * Z1  Networks of at most WEFT_KEEP_MB megabytes (64 without it) are in memory at a time. A later
 *     pass reads the file again.
 * Z2  The pages of the file that a piece came from are given back, so the resident memory of a pass
 *     does not grow with the collection. The system keeps them as page cache. */
#pragma once

#include "weft/zoo.h"

WF_BEGIN_C

/* Whether `count` networks of n_params parameters may lie in memory as a whole. */
bool wf__zoo_keeps(size_t count, size_t n_params);

/* weights (count, n_params) are networks first .. first+count-1 of the collection. */
typedef wf_status wf_zoo_visit(void *user, const float *weights, size_t first, size_t count);
/* Hands networks first .. first+count-1 to `visit`, piece by piece and in order. what: of the
 * progress lines; NULL: none. */
wf_status wf__zoo_each(wf_ctx *ctx, const wf_zoo *zoo, size_t first, size_t count, const char *what,
                       wf_zoo_visit *visit, void *user);

/* Networks of one collection among those of several. */
typedef struct wf_zoo_span {
    const wf_zoo *zoo;
    size_t first, count;
} wf_zoo_span;
/* wf_norm_fit of all networks of the spans, with the same bits. */
wf_status wf__zoo_norm(wf_ctx *ctx, const wf_graph *graph, const wf_zoo_span *spans, int n,
                       wf_norm *out);

WF_END_C
