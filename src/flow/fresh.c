#include "flow/fresh.h"

#include "base/comm.h"
#include <stdlib.h>
#include <string.h>

size_t wf_fresh_pool_size(size_t wanted) {
    return (wanted + WF_FRESH_SLICES - 1) / WF_FRESH_SLICES * WF_FRESH_SLICES;
}

/* P1: a collection that was trained with the same seed may have any index of the lower half. */
static wf_status check_indices(wf_ctx *ctx, const wf_zoo *zoo) {
    const int64_t *index = zoo == NULL ? NULL : wf_zoo_seeds(zoo);
    for (size_t k = 0; index != NULL && k < wf_zoo_count(zoo); k++)
        if (index[k] >= (int64_t)WF_FRESH_FIRST)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "%s: network %zu has index %lld; those from %u on are kept for fresh "
                           "networks. Lower zoo.first",
                           wf_zoo_path(zoo), k, (long long)index[k], WF_FRESH_FIRST);
    return WF_OK;
}

static wf_status open_source(wf_ctx *ctx, const wf_source *from, const wf_training_source *source,
                             wf_fresh_source *out) {
    WF_TRY(check_indices(ctx, from->zoo));
    WF_TRY(check_indices(ctx, from->held_out));
    out->graph = wf_zoo_graph(from->zoo);
    out->desc = from->fresh->zoo;
    out->desc.first = WF_FRESH_FIRST;
    out->desc.count = source->count;
    out->slice = source->count / WF_FRESH_SLICES;
    return wf_zoo_plan_build(ctx, out->graph, from->fresh->data, &out->desc, &out->chain,
                             &out->plan);
}

wf_status wf_fresh_pool_create(wf_ctx *ctx, const wf_source *sources, wf_training_set *set,
                               wf_fresh_pool *out) {
    *out = (wf_fresh_pool){.set = set};
    if (!set->fresh) return WF_OK;
    size_t n = (size_t)set->n_sources, largest = 0;
    WF_TRY(wf_alloc(ctx, n, sizeof *out->sources, "fresh networks", &out->sources));
    for (size_t i = 0; i < n; i++) {
        WF_TRY(open_source(ctx, &sources[i], &set->sources[i], &out->sources[i]));
        out->slices += out->sources[i].slice;
        if (set->sources[i].count > largest) largest = set->sources[i].count;
    }
    WF_TRY(wf_alloc(ctx, largest, sizeof *out->index, "fresh networks", &out->index));
    return wf_alloc(ctx, largest, sizeof *out->state, "fresh networks", &out->state);
}

void wf_fresh_pool_free(wf_fresh_pool *pool) {
    free(pool->sources);
    free(pool->index);
    free(pool->state);
    *pool = (wf_fresh_pool){0};
}

size_t wf_fresh_pool_made(const wf_fresh_pool *pool) {
    return pool->slices * (WF_FRESH_SLICES + pool->renewals);
}

/* P2, for the networks of one slice. */
static wf_status leave_out(wf_ctx *ctx, wf_fresh_pool *pool, const wf_fresh_source *source,
                           const uint32_t *index, const uint8_t *state, float *weights) {
    size_t n = source->graph->n_params, slice = source->slice;
    for (size_t k = 0; k < slice; k++) {
        if (state[k] == WF_ZOO_TRAINED) continue;
        pool->diverged++;
        size_t other = k;
        do other = (other + 1) % slice;
        while (other != k && state[other] != WF_ZOO_TRAINED);
        if (other == k)
            return wf_fail(ctx, WF_ERR_DIVERGED,
                           "all %zu fresh networks from index %u on diverged; lower zoo.lr", slice,
                           index[0]);
        memcpy(weights + k * n, weights + other * n, n * sizeof *weights);
    }
    if (pool->diverged > 0 && !pool->warned)
        wf_warn(ctx, "fresh networks that diverge are left out; index %u is near the first",
                index[0]);
    pool->warned = pool->warned || pool->diverged > 0;
    return WF_OK;
}

/* Trains slices 0 .. n - 1 of pool->index to weights. */
static wf_status train_slices(wf_ctx *ctx, wf_fresh_pool *pool, wf_fresh_source *source, size_t n,
                              float *weights, wf_meter *meter, size_t done_before) {
    size_t count = n * source->slice;
    size_t params = source->graph->n_params;
    wf_range own = wf_share(ctx, count); /* each rank trains some, and all get all */
    memset(pool->state, WF_ZOO_WAITING, count);
    wf_zoo_piece piece = {.graph = source->graph,
                          .count = own.last - own.first,
                          .index = pool->index + own.first,
                          .weights = weights + own.first * params,
                          .fresh = true,
                          .state = pool->state + own.first,
                          .declined = &source->declined,
                          .meter = meter,
                          .done_before = done_before};
    wf_status status = WF_OK;
    if (piece.count > 0)
        status = wf_zoo_piece_run(ctx, &source->plan, wf_zoo_kernels_pick(&source->plan), &piece);
    WF_TRY(wf_agree_rows(ctx, status, weights, params * sizeof *weights, count));
    WF_TRY(wf_gather_rows(ctx, pool->state, 1, count));
    for (size_t s = 0; s < n; s++) {
        size_t at = s * source->slice;
        WF_TRY(leave_out(ctx, pool, source, pool->index + at, pool->state + at,
                         weights + at * source->graph->n_params));
    }
    return WF_OK;
}

/* Indices of slice c to pool->index from `at` on. */
static wf_status set_indices(wf_ctx *ctx, wf_fresh_pool *pool, const wf_fresh_source *source,
                             size_t c, size_t at) {
    size_t first = c * source->slice;
    if (first + source->slice > (size_t)UINT32_MAX - WF_FRESH_FIRST)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "fresh networks: all %u indices are used up; lower train.fresh_rate",
                       UINT32_MAX - WF_FRESH_FIRST);
    for (size_t k = 0; k < source->slice; k++)
        pool->index[at + k] = WF_FRESH_FIRST + (uint32_t)(first + k);
    return WF_OK;
}

static float *weights_of(const wf_fresh_pool *pool, int source, size_t place) {
    const wf_training_source *s = &pool->set->sources[source];
    const wf_family *family = &pool->set->families[s->family];
    return family->weights +
           (s->first + place * pool->sources[source].slice) * family->graph->n_params;
}

wf_status wf_fresh_pool_fill(wf_ctx *ctx, wf_fresh_pool *pool, size_t renewals) {
    if (pool->sources == NULL) return WF_OK;
    double start = wf_seconds();
    size_t all = pool->slices * WF_FRESH_SLICES, done = 0;
    wf_meter meter = wf_meter_start(ctx, "training fresh networks", "networks", (double)all);
    for (int i = 0; i < pool->set->n_sources; i++) {
        wf_fresh_source *source = &pool->sources[i];
        for (size_t place = 0; place < WF_FRESH_SLICES; place++) {
            size_t times = (renewals + WF_FRESH_SLICES - 1 - place) / WF_FRESH_SLICES;
            WF_TRY(set_indices(ctx, pool, source, place + times * WF_FRESH_SLICES,
                               place * source->slice));
        }
        WF_TRY(
            train_slices(ctx, pool, source, WF_FRESH_SLICES, weights_of(pool, i, 0), &meter, done));
        done += WF_FRESH_SLICES * source->slice;
    }
    wf_meter_end(&meter, (double)all, NULL);
    pool->renewals = renewals;
    pool->network_time = (wf_seconds() - start) / (double)all;
    return WF_OK;
}

wf_status wf_fresh_pool_renew(wf_ctx *ctx, wf_fresh_pool *pool, int *place) {
    size_t c = WF_FRESH_SLICES + pool->renewals;
    *place = (int)(c % WF_FRESH_SLICES);
    for (int i = 0; i < pool->set->n_sources; i++) {
        wf_fresh_source *source = &pool->sources[i];
        const wf_family *family = &pool->set->families[pool->set->sources[i].family];
        float *weights = weights_of(pool, i, (size_t)*place);
        WF_TRY(set_indices(ctx, pool, source, c, 0));
        WF_TRY(train_slices(ctx, pool, source, 1, weights, NULL, 0));
        WF_TRY(wf_family_transform(ctx, family, weights, source->slice));
    }
    pool->renewals++;
    return WF_OK;
}
