/* matcher: many independent pairs in parallel, and the largest matched cosine of queries over
 * references.
 *
 * wf_wcs_max cuts (queries x references) into chunks of group x slab. A chunk packs a tile of
 * references at a time; for each of its queries the fixed scores of the whole tile are one
 * product, then the pairs are matched one by one. The largest value does not depend on the cut;
 * of equal values the lowest reference counts. */
#include "align/matcher.h"

#include "align/cuda/match_cuda.h"
#include "align/match_plan.h"
#include "base/comm.h"
#include "base/pool.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    pairs_in_a_chunk = 4,
    queries_in_a_group = 32,
    tile_bytes = 256 * 1024, /* of packed references: they stay in the second-level cache */
    fewest_in_a_tile = 4,
    most_in_a_tile = 32,
    tiles_in_a_slab = 8,
    chunks_in_a_round_per_thread = 4
};

/* Squares that sum to more could overflow in float scores. */
static const double largest_square = 1e30;

/* In eight interleaved sums, because a single one would wait for each addition. */
static double sum_of_squares(const float *w, size_t n) {
    double part[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) part[k] += (double)w[i + k] * (double)w[i + k];
    for (; i < n; i++) sum += (double)w[i] * (double)w[i];
    for (int k = 0; k < 8; k++) sum += part[k];
    return sum;
}

/* Sum of squares of the parameters that are matched. Buffers lie between ranges of them. */
static double network_squares(const wf_graph *graph, const float *w) {
    double sum = 0;
    size_t start = 0;
    for (int b = 0; b <= graph->n_blocks; b++) {
        if (b < graph->n_blocks && wf__block_matched(graph, b)) continue;
        const wf_block *block = &graph->blocks[b];
        size_t end = b < graph->n_blocks ? block->offset : graph->n_params;
        sum += sum_of_squares(w + start, end - start);
        start = b < graph->n_blocks ? end + block->count : end;
    }
    return sum;
}

/* False also for NaN. */
static bool usable(double squares) { return squares < largest_square; }

/* --- where ------------------------------------------------------------------------------------ */

/* Rough time of a pair on one core: products at 30 GFLOP/s, 15 ns for each entry of a score matrix
 * over the sweeps. */
static double pair_seconds(const wf_graph *graph) {
    double flops = 0, entries = 0;
    for (int o = 0; o < graph->n_orbits; o++) {
        double n = wf__orbit_size(graph, o);
        entries += n * n;
    }
    for (int block = 0; block < graph->n_blocks; block++)
        for (int s = 0; s < WF_SIDES; s++) {
            wf_block_side side = wf__block_side(graph, block, s);
            if (side.orbit >= 0 && wf__block_matched(graph, block))
                flops += 2.0 * side.n * side.n * side.n_other * side.coef;
        }
    return flops / 30e9 + entries * 15e-9;
}

wf_status wf__match_on_gpu(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           double pairs, bool *out) {
    WF_TRY(wf_use_cuda_for(ctx, pairs * pair_seconds(graph), out));
    if (*out && !wf_match_cuda_fits(graph, desc)) {
        *out = false;
        if (graph->n_orbits > 0)
            wf_warn(ctx,
                    "device cuda: %.200s is too wide, too deep or not made of linear layers alone; "
                    "matched on "
                    "the CPU",
                    graph->text);
    }
    wf_note_device(ctx, "matching", *out);
    return WF_OK;
}

/* --- pairs ------------------------------------------------------------------------------------ */

typedef struct matcher_worker {
    wf_match_work work;
    float *query, *reference, *scores, *permuted;
    uint32_t *perm;
    size_t bad; /* first pair that could not be matched, SIZE_MAX: none */
} matcher_worker;

struct wf_matcher {
    wf_match_plan plan;
    wf_match_kernel kernel;
    int threads;
    matcher_worker *workers;
    const float *a, *b;
    float *moved; /* where each b goes relabelled, or NULL and ... */
    uint32_t *from;
    size_t stride; /* ... where its relabelling goes */
    size_t a_step, count;
};

void wf__matcher_close(wf_matcher *matcher) {
    if (matcher == NULL) return;
    for (int i = 0; matcher->workers != NULL && i < matcher->threads; i++) {
        matcher_worker *worker = &matcher->workers[i];
        wf__match_work_close(&worker->work);
        free(worker->query);
        free(worker->reference);
        free(worker->scores);
        free(worker->permuted);
        free(worker->perm);
    }
    free(matcher->workers);
    wf__match_plan_close(&matcher->plan);
    free(matcher);
}

static wf_status worker_open(wf_ctx *ctx, const wf_match_plan *plan, matcher_worker *worker) {
    WF_TRY(wf__match_work_open(ctx, plan, &worker->work));
    WF_TRY(wf_alloc(ctx, plan->query_floats, sizeof(float), "matching", &worker->query));
    WF_TRY(wf_alloc(ctx, plan->reference_floats, sizeof(float), "matching", &worker->reference));
    WF_TRY(wf_alloc(ctx, plan->score_floats, sizeof(float), "matching", &worker->scores));
    WF_TRY(wf_alloc(ctx, plan->graph->n_params, sizeof(float), "matching", &worker->permuted));
    return wf_alloc(ctx, (size_t)plan->n_units, sizeof(uint32_t), "matching", &worker->perm);
}

wf_status wf__matcher_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           wf_matcher **out) {
    *out = NULL;
    wf_match_desc defaults = wf_match_desc_default();
    if (desc == NULL) desc = &defaults;
    WF_TRY(wf__match_check(ctx, desc));
    wf_matcher *matcher = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *matcher, "matching", &matcher));
    matcher->kernel = WF_PICK_F32(wf__match_kernel);
    matcher->threads = wf_ctx_threads(ctx);
    wf_status status = WF_OK;
    WF_TRY_GOTO(wf__match_plan_open(ctx, graph, desc, &matcher->plan), failed);
    WF_TRY_GOTO(wf_alloc(ctx, (size_t)matcher->threads, sizeof *matcher->workers, "matching",
                         &matcher->workers),
                failed);
    for (int i = 0; i < matcher->threads; i++)
        WF_TRY_GOTO(worker_open(ctx, &matcher->plan, &matcher->workers[i]), failed);
    *out = matcher;
    return WF_OK;
failed:
    wf__matcher_close(matcher);
    return status;
}

static void match_pair(wf_matcher *matcher, size_t k, matcher_worker *worker) {
    const wf_match_plan *plan = &matcher->plan;
    size_t params = plan->graph->n_params;
    const float *a = matcher->a + k * matcher->a_step * params;
    const float *b = matcher->b + k * params;
    if (!usable(network_squares(plan->graph, a)) || !usable(network_squares(plan->graph, b))) {
        if (k < worker->bad) worker->bad = k;
        return;
    }
    wf__match_pack_query(plan, a, worker->query);
    wf__match_pack_reference(plan, b, worker->reference);
    matcher->kernel.scores(plan, worker->query, worker->reference, 1, worker->scores);
    matcher->kernel.match(plan, worker->query, worker->reference, worker->scores, &worker->work);
    if (matcher->moved == NULL) {
        memcpy(matcher->from + k * matcher->stride, worker->work.best_from,
               (size_t)plan->n_units * sizeof(uint32_t));
        return;
    }
    wf__match_to_perm(plan->graph, worker->work.best_from, worker->perm);
    wf_graph_permute(plan->graph, worker->perm, b, worker->permuted);
    memcpy(matcher->moved + k * params, worker->permuted, params * sizeof *b);
}

static void match_pairs_chunk(void *matcher_, size_t chunk, int worker) {
    wf_matcher *matcher = matcher_;
    size_t k = chunk * pairs_in_a_chunk, end = k + pairs_in_a_chunk;
    const wf_ctx *watched = matcher->workers[worker].work.watched;
    for (; k < end && k < matcher->count && !wf_interrupted(watched); k++)
        match_pair(matcher, k, &matcher->workers[worker]);
}

static wf_status run(wf_ctx *ctx, wf_matcher *matcher, const float *a, size_t a_step,
                     const float *b, size_t count) {
    assert(wf_ctx_threads(ctx) <= matcher->threads);
    matcher->a = a;
    matcher->b = b;
    matcher->a_step = a_step;
    matcher->count = count;
    for (int i = 0; i < matcher->threads; i++) {
        matcher->workers[i].bad = SIZE_MAX;
        matcher->workers[i].work.watched = ctx;
    }
    if (!wf_parallel_stoppable(ctx, (count + pairs_in_a_chunk - 1) / pairs_in_a_chunk,
                               match_pairs_chunk, matcher))
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while matching networks");
    size_t bad = SIZE_MAX;
    for (int i = 0; i < matcher->threads; i++)
        if (matcher->workers[i].bad < bad) bad = matcher->workers[i].bad;
    if (bad == SIZE_MAX) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "matching: pair %zu has weights that are not finite or far too large", bad);
}

wf_status wf__matcher_run(wf_ctx *ctx, wf_matcher *matcher, const float *a, size_t a_step, float *b,
                          size_t count) {
    matcher->moved = b;
    return run(ctx, matcher, a, a_step, b, count);
}

wf_status wf__matcher_find(wf_ctx *ctx, wf_matcher *matcher, const float *a, size_t a_step,
                           const float *b, size_t count, uint32_t *from, size_t stride) {
    matcher->moved = NULL;
    matcher->from = from;
    matcher->stride = stride;
    return run(ctx, matcher, a, a_step, b, count);
}

wf_status wf_match_pairs(wf_ctx *ctx, const wf_graph *graph, const float *a, float *b, size_t count,
                         const wf_match_desc *desc) {
    wf_match_desc defaults = wf_match_desc_default();
    if (desc == NULL) desc = &defaults;
    WF_TRY(wf__match_check(ctx, desc));
    bool cuda;
    WF_TRY(wf__match_on_gpu(ctx, graph, desc, (double)count, &cuda));
    if (cuda) return wf_match_pairs_cuda(ctx, graph, a, 1, b, count, desc);
    wf_matcher *matcher = NULL;
    WF_TRY(wf__matcher_open(ctx, graph, desc, &matcher));
    wf_status status = wf__matcher_run(ctx, matcher, a, 1, b, count);
    wf__matcher_close(matcher);
    return status;
}

/* --- the largest matched cosine --------------------------------------------------------------- */

typedef struct wcs_worker {
    wf_match_work work;
    float *references, *scores; /* one tile */
} wcs_worker;

typedef struct wcs_call {
    wf_ctx *ctx;
    wf_match_plan plan;
    wf_match_kernel kernel;
    const float *queries, *refs;
    size_t nq, nr;
    const int64_t *skip;
    double *query_norm, *ref_norm;
    float *packed; /* (nq, query_floats) */
    size_t tile, slab, slabs;
    int threads;
    wcs_worker *workers;
    size_t first_chunk;
    float *best;     /* (chunks of a round, queries_in_a_group) */
    uint32_t *which; /* the same */
} wcs_call;

static size_t smaller_of(size_t a, size_t b) { return a < b ? a : b; }

/* Best of one query over a packed tile, merged into *best. */
static void match_tile(const wcs_call *call, wcs_worker *worker, size_t q, size_t first,
                       size_t count, float *best, uint32_t *which) {
    const wf_match_plan *plan = &call->plan;
    const float *query = call->packed + q * plan->query_floats;
    call->kernel.scores(plan, query, worker->references, count, worker->scores);
    for (size_t r = 0; r < count && !wf_interrupted(call->ctx); r++) {
        if (call->skip != NULL && call->skip[q] == (int64_t)(first + r)) continue;
        double dot =
            call->kernel.match(plan, query, worker->references + r * plan->reference_floats,
                               worker->scores + r * plan->score_floats, &worker->work);
        double norms = call->query_norm[q] * call->ref_norm[first + r];
        float cosine = norms > 0 ? (float)(dot / norms) : 0;
        if (cosine > *best) {
            *best = cosine;
            *which = (uint32_t)(first + r);
        }
    }
}

static void wcs_chunk(void *call_, size_t nth, int index) {
    const wcs_call *call = call_;
    wcs_worker *worker = &call->workers[index];
    size_t chunk = call->first_chunk + nth;
    size_t q0 = chunk / call->slabs * queries_in_a_group;
    size_t queries = smaller_of(queries_in_a_group, call->nq - q0);
    size_t r0 = chunk % call->slabs * call->slab, end = smaller_of(r0 + call->slab, call->nr);
    float *best = call->best + nth * queries_in_a_group;
    uint32_t *which = call->which + nth * queries_in_a_group;
    for (size_t q = 0; q < queries; q++) best[q] = -INFINITY;
    for (size_t first = r0; first < end && !wf_interrupted(call->ctx); first += call->tile) {
        size_t count = smaller_of(call->tile, end - first);
        for (size_t r = 0; r < count; r++)
            wf__match_pack_reference(&call->plan,
                                     call->refs + (first + r) * call->plan.graph->n_params,
                                     worker->references + r * call->plan.reference_floats);
        for (size_t q = 0; q < queries; q++)
            match_tile(call, worker, q0 + q, first, count, &best[q], &which[q]);
    }
}

/* Chunks of a query group stand in the order of their references, so the first of equal values
 * wins. */
static void merge_round(const wcs_call *call, size_t chunks, float *best, uint32_t *which) {
    for (size_t nth = 0; nth < chunks; nth++) {
        size_t q0 = (call->first_chunk + nth) / call->slabs * queries_in_a_group;
        size_t queries = smaller_of(queries_in_a_group, call->nq - q0);
        for (size_t q = 0; q < queries; q++) {
            float value = call->best[nth * queries_in_a_group + q];
            if (!(value > best[q0 + q])) continue;
            best[q0 + q] = value;
            which[q0 + q] = call->which[nth * queries_in_a_group + q];
        }
    }
}

static wf_status norms_of(wf_ctx *ctx, const wf_graph *graph, const float *w, size_t count,
                          const char *what, double **out) {
    WF_TRY(wf_alloc(ctx, count, sizeof **out, "matching", out));
    for (size_t i = 0; i < count; i++) {
        double squares = network_squares(graph, w + i * graph->n_params);
        if (!usable(squares))
            return wf_fail(ctx, WF_ERR_INPUT,
                           "matching: %s network %zu has weights that are not finite or far too "
                           "large; weft zoo filter --finite leaves such networks out",
                           what, i);
        (*out)[i] = sqrt(squares);
    }
    return WF_OK;
}

static wf_status wcs_open(wf_ctx *ctx, wcs_call *call, const wf_graph *graph,
                          const wf_match_desc *desc, size_t round) {
    WF_TRY(wf__match_plan_open(ctx, graph, desc, &call->plan));
    const wf_match_plan *plan = &call->plan;
    WF_TRY(norms_of(ctx, graph, call->queries, call->nq, "query", &call->query_norm));
    WF_TRY(norms_of(ctx, graph, call->refs, call->nr, "reference", &call->ref_norm));
    WF_TRY(wf_alloc(ctx, call->nq, plan->query_floats * sizeof(float), "matching", &call->packed));
    for (size_t q = 0; q < call->nq; q++)
        wf__match_pack_query(plan, call->queries + q * graph->n_params,
                             call->packed + q * plan->query_floats);
    size_t bytes = (plan->reference_floats + 1) * sizeof(float);
    call->tile = smaller_of(most_in_a_tile, tile_bytes / bytes);
    if (call->tile < fewest_in_a_tile) call->tile = fewest_in_a_tile;
    call->slab = call->tile * tiles_in_a_slab;
    call->slabs = (call->nr + call->slab - 1) / call->slab;
    WF_TRY(wf_alloc(ctx, round * queries_in_a_group, sizeof(float), "matching", &call->best));
    WF_TRY(wf_alloc(ctx, round * queries_in_a_group, sizeof(uint32_t), "matching", &call->which));
    WF_TRY(wf_alloc(ctx, (size_t)call->threads, sizeof *call->workers, "matching", &call->workers));
    for (int i = 0; i < call->threads; i++) {
        wcs_worker *worker = &call->workers[i];
        WF_TRY(wf__match_work_open(ctx, plan, &worker->work));
        worker->work.watched = ctx;
        WF_TRY(wf_alloc(ctx, call->tile, plan->reference_floats * sizeof(float), "matching",
                        &worker->references));
        WF_TRY(wf_alloc(ctx, call->tile, plan->score_floats * sizeof(float), "matching",
                        &worker->scores));
    }
    return WF_OK;
}

static void wcs_close(wcs_call *call) {
    for (int i = 0; call->workers != NULL && i < call->threads; i++) {
        wf__match_work_close(&call->workers[i].work);
        free(call->workers[i].references);
        free(call->workers[i].scores);
    }
    free(call->workers);
    free(call->query_norm);
    free(call->ref_norm);
    free(call->packed);
    free(call->best);
    free(call->which);
    wf__match_plan_close(&call->plan);
}

static wf_status wcs_run(wf_ctx *ctx, wcs_call *call, size_t round, float *best, uint32_t *which) {
    size_t groups = (call->nq + queries_in_a_group - 1) / queries_in_a_group;
    size_t chunks = groups * call->slabs;
    wf_meter meter =
        wf_meter_start(ctx, "matching networks", "pairs", (double)call->nq * (double)call->nr);
    while (call->first_chunk < chunks) {
        size_t count = smaller_of(round, chunks - call->first_chunk);
        if (!wf_parallel_stoppable(ctx, count, wcs_chunk, call))
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while matching networks");
        merge_round(call, count, best, which);
        call->first_chunk += count;
        wf_meter_update(
            &meter,
            (double)call->nq * (double)call->nr * (double)call->first_chunk / (double)chunks, NULL);
    }
    wf_meter_end(&meter, (double)call->nq * (double)call->nr, NULL);
    return WF_OK;
}

static wf_status wcs_here(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                          const float *refs, size_t nr, const int64_t *skip,
                          const wf_match_desc *desc, float *best, uint32_t *which) {
    wf_match_desc defaults = wf_match_desc_default();
    defaults.sweeps = 5;
    if (desc == NULL) desc = &defaults;
    WF_TRY(wf__match_check(ctx, desc));
    if (nr == 0 || nr > UINT32_MAX)
        return wf_fail(ctx, WF_ERR_USAGE, "matching: %zu reference networks; give 1 to %zu", nr,
                       (size_t)UINT32_MAX);
    wcs_call call = {.ctx = ctx,
                     .kernel = WF_PICK_F32(wf__match_kernel),
                     .queries = queries,
                     .refs = refs,
                     .nq = nq,
                     .nr = nr,
                     .skip = skip,
                     .threads = wf_ctx_threads(ctx)};
    size_t round = chunks_in_a_round_per_thread * (size_t)call.threads;
    float *values = NULL;
    uint32_t *places = NULL;
    wf_status status = WF_OK;
    WF_TRY_GOTO(wf_alloc(ctx, nq, sizeof *values, "matching", &values), done);
    WF_TRY_GOTO(wf_alloc(ctx, nq, sizeof *places, "matching", &places), done);
    for (size_t q = 0; q < nq; q++) values[q] = -INFINITY;
    bool cuda;
    WF_TRY_GOTO(wf__match_on_gpu(ctx, graph, desc, (double)nq * (double)nr, &cuda), done);
    if (cuda) {
        WF_TRY_GOTO(wf_wcs_max_cuda(ctx, graph, queries, nq, refs, nr, skip, desc, values, places),
                    done);
    } else {
        WF_TRY_GOTO(wcs_open(ctx, &call, graph, desc, round), done);
        WF_TRY_GOTO(wcs_run(ctx, &call, round, values, places), done);
    }
    for (size_t q = 0; q < nq; q++) {
        if (values[q] == -INFINITY) values[q] = NAN;     /* every reference was left out */
        else values[q] = fmaxf(-1, fminf(1, values[q])); /* a copy may round to 1.0000001 */
    }
    if (best != NULL) memcpy(best, values, nq * sizeof *best);
    if (which != NULL) memcpy(which, places, nq * sizeof *which);
done:
    wcs_close(&call);
    free(values);
    free(places);
    return status;
}

wf_status wf_wcs_max(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                     const float *refs, size_t nr, const int64_t *skip, const wf_match_desc *desc,
                     float *best, uint32_t *which) {
    wf_range own = wf_share(ctx, nq);
    size_t first = own.first;
    wf_status status =
        wcs_here(ctx, graph, queries + first * graph->n_params, own.last - first, refs, nr,
                 skip == NULL ? NULL : skip + first, desc, best == NULL ? NULL : best + first,
                 which == NULL ? NULL : which + first);
    WF_TRY(wf_agree_rows(ctx, status, best, sizeof *best, nq));
    return wf_gather_rows(ctx, which, sizeof *which, nq);
}
