/* align_zoo: a collection whose networks all match one of them (Git Re-Basin as preprocessing). */
#include "align/cuda/match_cuda.h"
#include "align/matcher.h"
#include "base/comm.h"
#include "zoo/zoo_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { networks_in_a_round = 256 };

static wf_status match_all_on_gpu(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                                  const float *target, float *weights, size_t count) {
    wf_meter meter = wf_meter_start(ctx, "aligning networks", "networks", (double)count);
    wf_status status = wf_match_pairs_cuda(ctx, graph, target, 0, weights, count, desc);
    if (status == WF_ERR_INPUT)
        return wf_fail(ctx, status, "aligning: %s; leave that network out", wf_last_error(ctx));
    WF_TRY(status);
    wf_meter_end(&meter, (double)count, NULL);
    return WF_OK;
}

static wf_status match_here(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                            const float *target, float *weights, size_t count) {
    bool cuda;
    WF_TRY(wf__match_check(ctx, desc));
    WF_TRY(wf__match_on_gpu(ctx, graph, desc, (double)count, &cuda));
    if (cuda) return match_all_on_gpu(ctx, graph, desc, target, weights, count);
    wf_matcher *matcher = NULL;
    WF_TRY(wf__matcher_open(ctx, graph, desc, &matcher));
    wf_meter meter = wf_meter_start(ctx, "aligning networks", "networks", (double)count);
    wf_status status = WF_OK;
    for (size_t done = 0; done < count && status == WF_OK;) {
        size_t some = count - done < networks_in_a_round ? count - done : networks_in_a_round;
        status = wf__matcher_run(ctx, matcher, target, 0, weights + done * graph->n_params, some);
        if (status == WF_ERR_INPUT)
            status =
                wf_fail(ctx, status,
                        "aligning: one of networks %zu to %zu has weights that are not finite; "
                        "weft zoo filter --finite leaves such networks out",
                        done, done + some - 1);
        done += some;
        wf_meter_update(&meter, (double)done, NULL);
    }
    if (status == WF_OK) wf_meter_end(&meter, (double)count, NULL);
    wf__matcher_close(matcher);
    return status;
}

/* Each rank aligns a share of the networks. */
static wf_status match_all(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           const float *target, float *weights, size_t count) {
    wf_range own = wf_share(ctx, count);
    size_t params = graph->n_params;
    wf_status status =
        match_here(ctx, graph, desc, target, weights + own.first * params, own.last - own.first);
    return wf_agree_rows(ctx, status, weights, params * sizeof *weights, count);
}

wf_status wf_align_networks(wf_ctx *ctx, const wf_graph *graph, float *weights, size_t count,
                            size_t reference, const wf_match_desc *desc) {
    wf_match_desc defaults = wf_match_desc_default();
    float *target;
    if (reference >= count)
        return wf_fail(ctx, WF_ERR_USAGE, "aligning: network %zu asked for, there are %zu",
                       reference, count);
    WF_TRY(wf_alloc(ctx, graph->n_params, sizeof *target, "aligning", &target));
    memcpy(target, weights + reference * graph->n_params, graph->n_params * sizeof *target);
    wf_status status =
        match_all(ctx, graph, desc == NULL ? &defaults : desc, target, weights, count);
    free(target);
    return status;
}

wf_status wf_align_zoo(wf_ctx *ctx, const wf_zoo *zoo, size_t reference, const wf_match_desc *desc,
                       const char *path) {
    wf_match_desc defaults = wf_match_desc_default();
    if (desc == NULL) desc = &defaults;
    size_t count = wf_zoo_count(zoo);
    if (reference >= count)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "aligning %s: network %zu asked for, it has %zu (0 to %zu)",
                       wf_zoo_path(zoo), reference, count, count - 1);
    float *weights;
    WF_TRY(wf_zoo_load(ctx, zoo, 0, count, &weights));
    wf_status status = wf_align_networks(ctx, wf_zoo_graph(zoo), weights, count, reference, desc);
    char how[160];
    snprintf(how, sizeof how, "network %zu, sweeps %d, restarts %d, tolerance %g, seed %llu",
             reference, desc->sweeps, desc->restarts, desc->tolerance,
             (unsigned long long)desc->seed);
    if (status == WF_OK) status = wf__zoo_rewrite(ctx, zoo, weights, "weft.aligned", how, path);
    free(weights);
    return status;
}
