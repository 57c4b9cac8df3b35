/* pairs: the matched coupling: many independent pairs, in parallel. */
#include "align/match.h"
#include "base/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct pairs_call {
    const wf_graph *graph;
    const float *a;
    float *b;
    const wf_match_desc *desc;
    wf_status *status; /* of each pair */
} pairs_call;

static void match_one(void *call_, size_t k, int worker) {
    (void)worker;
    const pairs_call *call = call_;
    size_t n = call->graph->n_params;
    const float *a = call->a + k * n;
    float *b = call->b + k * n;
    uint32_t *perm = malloc((wf_graph_perm_size(call->graph) + 1) * sizeof *perm);
    float *permuted = malloc((n + 1) * sizeof *permuted);
    wf_status status = WF_ERR_MEMORY;
    if (perm != NULL && permuted != NULL)
        status = wf_match(NULL, call->graph, a, b, call->desc, perm, NULL, NULL);
    if (status == WF_OK) {
        wf_graph_permute(call->graph, perm, b, permuted);
        memcpy(b, permuted, n * sizeof *b);
    }
    free(perm);
    free(permuted);
    call->status[k] = status;
}

wf_status wf_match_pairs(wf_ctx *ctx, const wf_graph *graph, const float *a, float *b, size_t count,
                         const wf_match_desc *desc) {
    wf_match_desc defaults = wf_match_desc_default();
    pairs_call call = {graph, a, b, desc == NULL ? &defaults : desc, NULL};
    WF_TRY(wf__match_check(ctx, call.desc));
    WF_TRY(wf_alloc(ctx, count, sizeof *call.status, "matching", &call.status));
    wf_parallel(ctx, count, match_one, &call);
    wf_status status = WF_OK;
    for (size_t k = 0; k < count && status == WF_OK; k++)
        if (call.status[k] != WF_OK)
            status = wf_fail(ctx, call.status[k], "matching: pair %zu is not finite", k);
    free(call.status);
    return status;
}

typedef struct wcs_call {
    const wf_graph *graph;
    const float *queries, *refs;
    size_t nr;
    const int64_t *skip;
    const wf_match_desc *desc;
    float *best;
    uint32_t *which;
    wf_status *status;
} wcs_call;

static double norm_of(const float *w, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)w[i] * (double)w[i];
    return sqrt(sum);
}

static void wcs_one(void *call_, size_t q, int worker) {
    (void)worker;
    const wcs_call *call = call_;
    size_t n = call->graph->n_params;
    uint32_t *perm = malloc((wf_graph_perm_size(call->graph) + 1) * sizeof *perm);
    double best = -2;
    uint32_t which = 0;
    wf_status status = perm == NULL ? WF_ERR_MEMORY : WF_OK;
    double norm = norm_of(call->queries + q * n, n);
    for (size_t r = 0; r < call->nr && status == WF_OK; r++) {
        if (call->skip != NULL && call->skip[q] == (int64_t)r) continue;
        double dot;
        status = wf_match(NULL, call->graph, call->queries + q * n, call->refs + r * n, call->desc,
                          perm, &dot, NULL);
        double cosine = dot / (norm * norm_of(call->refs + r * n, n));
        if (cosine > best) {
            best = cosine;
            which = (uint32_t)r;
        }
    }
    free(perm);
    if (call->best != NULL) call->best[q] = (float)best;
    if (call->which != NULL) call->which[q] = which;
    call->status[q] = status;
}

wf_status wf_wcs_max(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                     const float *refs, size_t nr, const int64_t *skip, const wf_match_desc *desc,
                     float *best, uint32_t *which) {
    wf_match_desc defaults = wf_match_desc_default();
    defaults.sweeps = 5;
    wcs_call call = {graph, queries, refs, nr, skip, desc == NULL ? &defaults : desc,
                     best,  which,   NULL};
    WF_TRY(wf__match_check(ctx, call.desc));
    WF_TRY(wf_alloc(ctx, nq, sizeof *call.status, "matching", &call.status));
    wf_parallel(ctx, nq, wcs_one, &call);
    wf_status status = WF_OK;
    for (size_t q = 0; q < nq && status == WF_OK; q++)
        if (call.status[q] != WF_OK)
            status = wf_fail(ctx, call.status[q], "matching: query %zu is not finite", q);
    free(call.status);
    return status;
}
