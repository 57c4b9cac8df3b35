/* pairs: the matched coupling: many independent pairs, in parallel. */
#include "align/match.h"
#include "base/pool.h"

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
