/* jws: joint Wasserstein similarity (paper, appendix B.4).
 *
 * Points are (task score, max IoU, WCS), divided by the scales d_k. For b = 1..B a subset of the
 * reference cloud as large as the set of networks is drawn without replacement, and
 *     W2(b)^2 = min over matchings g of mean_i |s_i - r_g(i)|^2       exact, by assignment
 *     JWS     = max(0, 1 - mean_b W2(b) / sqrt 3)
 * Ablations: raw leaves out the scales; no_sqrt3 leaves out the division by sqrt 3. Subset b is
 * the beginning of the shuffle of stream (seed, 0, WF_RNG_JWS, b), the same for every row of a
 * table. */
#include "eval/jws.h"

#include "align/assign.h"
#include "base/comm.h"
#include "base/pool.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Neighbouring subsets share most of their cloud points, whose prices are a good start for the next
 * assignment. They are handed on within a fixed chunk only, so that results do not depend on the
 * thread count. */
enum { subsets_in_a_chunk = 5, chunks_in_a_round = 8 };

/* -|a_i - b_j|^2 for all pairs. */
static void closeness(const double *a, const double *b, size_t n, double *score) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double x = a[3 * i] - b[3 * j], y = a[3 * i + 1] - b[3 * j + 1],
                   z = a[3 * i + 2] - b[3 * j + 2];
            score[i * n + j] = -(x * x + y * y + z * z);
        }
}

typedef struct transport {
    double *score; /* (n, n) */
    uint32_t *match;
    void *scratch;
} transport;

static wf_status transport_open(wf_ctx *ctx, size_t n, transport *t) {
    WF_TRY(wf_alloc(ctx, n * n, sizeof *t->score, "distances", &t->score));
    WF_TRY(wf_alloc(ctx, n, sizeof *t->match, "matching", &t->match));
    return wf_alloc(ctx, 1, wf__assign_scratch((int)n), "assignment", &t->scratch);
}

static void transport_close(transport *t) {
    free(t->score);
    free(t->match);
    free(t->scratch);
}

/* price NULL: no warm start. */
static double wasserstein2(transport *t, const double *a, const double *b, size_t n,
                           double *price) {
    closeness(a, b, n, t->score);
    double gain = price == NULL ? wf__assign((int)n, t->score, t->match, t->scratch)
                                : wf__assign_warm((int)n, t->score, price, t->match, t->scratch);
    return sqrt(fmax(0, -gain) / (double)n);
}

wf_status wf_wasserstein2(wf_ctx *ctx, const double *a, const double *b, int m, double *out) {
    if (m < 1)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "Wasserstein distance of %d points: at least one is needed", m);
    for (int i = 0; i < 3 * m; i++)
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return wf_fail(ctx, WF_ERR_USAGE, "Wasserstein distance: point %d is not finite",
                           i / 3);
    transport t = {0};
    wf_status status = transport_open(ctx, (size_t)m, &t);
    if (status == WF_OK) *out = wasserstein2(&t, a, b, (size_t)m, NULL);
    transport_close(&t);
    return status;
}

typedef struct jws_worker {
    transport transport;
    uint32_t *order, *chosen; /* of the cloud, of the networks */
    double *points, *cloud;   /* (size, 3): this subset, scaled or not */
    double *price;            /* [size] of the subset's cloud points */
    double *known;            /* (2, m) last price of every cloud point, scaled and raw */
} jws_worker;

typedef struct jws_call {
    const double *points, *cloud;
    size_t n, m, size, subsets, first; /* first: chunk of this round */
    double scales[3];
    uint64_t seed;
    jws_worker *workers;
    double *scaled, *raw; /* [subsets] W2 */
} jws_call;

/* out (size, 3): rows order[0..size-1] of `points`, coordinate k divided by scales[k]. */
static void gather(const double *points, const uint32_t *order, size_t size, const double scales[3],
                   double *out) {
    for (size_t i = 0; i < size; i++)
        for (int k = 0; k < 3; k++) out[3 * i + k] = points[3 * order[i] + k] / scales[k];
}

static double subset_distance(const jws_call *call, jws_worker *worker, const double scales[3],
                              double *known) {
    gather(call->cloud, worker->order, call->size, scales, worker->cloud);
    gather(call->points, worker->chosen, call->size, scales, worker->points);
    for (size_t i = 0; i < call->size; i++) worker->price[i] = known[worker->order[i]];
    double distance =
        wasserstein2(&worker->transport, worker->points, worker->cloud, call->size, worker->price);
    for (size_t i = 0; i < call->size; i++) known[worker->order[i]] = worker->price[i];
    return distance;
}

static void draw_subset(const jws_call *call, size_t b, jws_worker *worker) {
    wf_rng reference = wf_rng_at(call->seed, 0, WF_RNG_JWS, (uint32_t)b);
    wf_rng_shuffle(&reference, worker->order, (uint32_t)call->m);
    if (call->n > call->m) {
        wf_rng generated = wf_rng_at(call->seed, 1, WF_RNG_JWS, (uint32_t)b);
        wf_rng_shuffle(&generated, worker->chosen, (uint32_t)call->n);
    } else {
        for (size_t i = 0; i < call->n; i++) worker->chosen[i] = (uint32_t)i;
    }
}

static void subset_chunk(void *call_, size_t chunk, int index) {
    const jws_call *call = call_;
    jws_worker *worker = &call->workers[index];
    const double ones[3] = {1, 1, 1};
    size_t b = (call->first + chunk) * subsets_in_a_chunk, end = b + subsets_in_a_chunk;
    memset(worker->known, 0, 2 * call->m * sizeof *worker->known);
    for (; b < end && b < call->subsets; b++) {
        draw_subset(call, b, worker);
        call->scaled[b] = subset_distance(call, worker, call->scales, worker->known);
        call->raw[b] = subset_distance(call, worker, ones, worker->known + call->m);
    }
}

static wf_status jws_open(wf_ctx *ctx, jws_call *call) {
    WF_TRY(wf_alloc(ctx, 2 * call->subsets, sizeof(double), "JWS", &call->scaled));
    call->raw = call->scaled + call->subsets;
    int threads = wf_ctx_threads(ctx);
    WF_TRY(wf_alloc(ctx, (size_t)threads, sizeof *call->workers, "JWS", &call->workers));
    for (int i = 0; i < threads; i++) {
        jws_worker *worker = &call->workers[i];
        WF_TRY(transport_open(ctx, call->size, &worker->transport));
        WF_TRY(wf_alloc(ctx, call->m + call->n, sizeof(uint32_t), "JWS", &worker->order));
        worker->chosen = worker->order + call->m;
        WF_TRY(wf_alloc(ctx, 7 * call->size + 2 * call->m, sizeof(double), "JWS", &worker->points));
        worker->cloud = worker->points + 3 * call->size;
        worker->price = worker->cloud + 3 * call->size;
        worker->known = worker->price + call->size;
    }
    return WF_OK;
}

static void jws_close(jws_call *call, int threads) {
    for (int i = 0; call->workers != NULL && i < threads; i++) {
        transport_close(&call->workers[i].transport);
        free(call->workers[i].order);
        free(call->workers[i].points);
    }
    free(call->workers);
    free(call->scaled);
}

static wf_jws summary(const jws_call *call) {
    double scaled = 0, raw = 0, squares = 0, subsets = (double)call->subsets;
    for (size_t b = 0; b < call->subsets; b++) {
        scaled += call->scaled[b] / subsets;
        raw += call->raw[b] / subsets;
    }
    for (size_t b = 0; b < call->subsets; b++)
        squares += (call->scaled[b] - scaled) * (call->scaled[b] - scaled) / subsets;
    return (wf_jws){.full = fmax(0, 1 - scaled / sqrt(3)),
                    .spread = sqrt(squares / 3),
                    .raw = fmax(0, 1 - raw / sqrt(3)),
                    .no_sqrt3 = fmax(0, 1 - scaled)};
}

/* Every rank has the distances of some chunks of subsets. */
static wf_status collect(wf_ctx *ctx, jws_call *call, size_t chunks) {
    int ranks = wf_ctx_ranks(ctx);
    if (ranks == 1) return WF_OK;
    size_t *start;
    WF_TRY(wf_alloc(ctx, (size_t)ranks + 1, sizeof *start, "JWS", &start));
    for (int r = 0; r <= ranks; r++) {
        size_t subset = wf_share_start(chunks, r, ranks) * subsets_in_a_chunk;
        start[r] = sizeof(double) * (subset < call->subsets ? subset : call->subsets);
    }
    wf_status status = wf_gather_bytes(ctx, call->scaled, start);
    if (status == WF_OK) status = wf_gather_bytes(ctx, call->raw, start);
    free(start);
    return status;
}

wf_status wf__jws(wf_ctx *ctx, const double *points, size_t n, const double *cloud, size_t m,
                  const double scales[3], int subsets, uint64_t seed, wf_jws *out) {
    /* As many networks as the cloud has: every subset is the whole cloud, and all distances are
     * equal. */
    jws_call call = {.points = points,
                     .cloud = cloud,
                     .n = n,
                     .m = m,
                     .size = n < m ? n : m,
                     .subsets = n == m ? 1 : (size_t)subsets,
                     .scales = {scales[0], scales[1], scales[2]},
                     .seed = seed};
    size_t chunks = (call.subsets + subsets_in_a_chunk - 1) / subsets_in_a_chunk;
    wf_status status = WF_OK;
    WF_TRY_GOTO(jws_open(ctx, &call), done);
    wf_meter meter = wf_meter_start(ctx, "comparing clouds", "subsets", (double)call.subsets);
    wf_range own = wf_share(ctx, chunks);
    call.first = own.first;
    while (call.first < own.last) {
        size_t left = own.last - call.first,
               count = left < chunks_in_a_round ? left : chunks_in_a_round;
        bool whole = wf_parallel_stoppable(ctx, count, subset_chunk, &call);
        call.first += count;
        wf_meter_update(&meter, (double)(call.first * subsets_in_a_chunk), NULL);
        if (!whole) {
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while comparing clouds");
            break;
        }
    }
    WF_TRY_GOTO(wf_agree(ctx, status), done);
    WF_TRY_GOTO(collect(ctx, &call, chunks), done);
    wf_meter_end(&meter, (double)call.subsets, NULL);
    *out = summary(&call);
done:
    jws_close(&call, wf_ctx_threads(ctx));
    return status;
}
