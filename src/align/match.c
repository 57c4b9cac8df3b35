/* match: Git Re-Basin weight matching (Ainsworth et al. 2022, section 3.2), the plain loop.
 *
 * Coordinate ascent on <a, P b> over relabellings P of b's hidden units. A sweep visits every
 * orbit once, in an order that all pairs share. For orbit o with n units
 *     score[r][u] = sum of a[r, x, k] * b[u, from(x), k]
 *                   over blocks that touch o, units x of their other end, coefficients k
 * is what the dot product would gain from standing b's unit u at place r while everything else
 * stays: incoming weights, incoming bias and outgoing weights. The best assignment replaces the
 * current one when it gains more than the tolerance; a sweep in which no orbit gains is the
 * last. Groups that share an orbit (residual connections) are one problem: all their blocks add
 * to its score.
 *
 * A block from an orbit to itself (x + W x) is scored from both ends, with the other end where it
 * stands. That is not what the dot product gains, so there the whole dot product decides.
 *
 * Arithmetic: every score is a sum in double, over blocks in flat order, then x, then k. The
 * fast path (matcher.c) works in float; its matchings are the same unless two assignments agree to
 * about 1e-6 of the score. */
#include "align/match.h"

#include "align/assign.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_OF wf_match
#define SETTINGS_SECTION "match"
#define SETTINGS_META "match."
#define SETTINGS_DEF "weft/match.def"
#include "base/settings_table.h"

wf_status wf__match_check(wf_ctx *ctx, const wf_match_desc *desc) {
    if (desc->sweeps < 1 || desc->sweeps > 1000000)
        return wf_fail(ctx, WF_ERR_USAGE, "matching: %d sweeps; give 1 to 1000000", desc->sweeps);
    if (desc->restarts < 0 || desc->restarts > 10000)
        return wf_fail(ctx, WF_ERR_USAGE, "matching: %d restarts; give 0 to 10000", desc->restarts);
    if (!(desc->tolerance >= 0))
        return wf_fail(ctx, WF_ERR_USAGE, "matching: tolerance %g; give 0 or more",
                       desc->tolerance);
    return WF_OK;
}

int wf__orbit_size(const wf_graph *graph, int orbit) {
    return (int)(graph->orbit_start[orbit + 1] - graph->orbit_start[orbit]);
}

bool wf__orbit_has_loop(const wf_graph *graph, int orbit) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->groups[graph->blocks[b].src].orbit == orbit &&
            graph->groups[graph->blocks[b].dst].orbit == orbit)
            return true;
    return false;
}

wf_block_side wf__block_side(const wf_graph *graph, int block, int side) {
    const wf_block *b = &graph->blocks[block];
    const wf_group *dst = &graph->groups[b->dst], *src = &graph->groups[b->src];
    size_t row = (size_t)src->n * b->coef;
    if (side == WF_SIDE_DST)
        return (wf_block_side){dst->n,     src->n,    b->coef, dst->orbit,
                               src->orbit, b->offset, row,     (size_t)b->coef};
    return (wf_block_side){src->n,     dst->n,    b->coef,         src->orbit,
                           dst->orbit, b->offset, (size_t)b->coef, row};
}

void wf__match_to_perm(const wf_graph *graph, const uint32_t *from, uint32_t *perm) {
    for (int orbit = 0; orbit < graph->n_orbits; orbit++) {
        size_t start = wf_graph_perm_start(graph, orbit);
        uint32_t n = (uint32_t)wf__orbit_size(graph, orbit);
        for (uint32_t place = 0; place < n; place++) perm[start + from[start + place]] = place;
    }
}

void wf__match_start(const wf_graph *graph, uint64_t seed, uint32_t restart, uint32_t *from) {
    wf_rng rng = wf_rng_at(seed, restart, WF_RNG_MATCH, UINT32_MAX);
    for (int orbit = 0; orbit < graph->n_orbits; orbit++) {
        uint32_t *part = from + wf_graph_perm_start(graph, orbit);
        uint32_t n = (uint32_t)wf__orbit_size(graph, orbit);
        if (restart > 0) wf_rng_shuffle(&rng, part, n);
        else
            for (uint32_t u = 0; u < n; u++) part[u] = u;
    }
}

void wf__match_order(const wf_graph *graph, uint64_t seed, uint32_t restart, uint32_t sweep,
                     uint32_t *order) {
    wf_rng rng = wf_rng_at(seed, restart, WF_RNG_MATCH, sweep);
    wf_rng_shuffle(&rng, order, (uint32_t)graph->n_orbits);
}

/* One pair and its memory. */
typedef struct plain_match {
    const wf_graph *graph;
    const float *a, *b;
    uint32_t *from, *best_from, *match, *order;
    double *score;
    void *assign;
} plain_match;

static void add_side(const plain_match *m, const wf_block_side *side) {
    const uint32_t *other =
        side->other_orbit < 0 ? NULL : m->from + wf_graph_perm_start(m->graph, side->other_orbit);
    for (int r = 0; r < side->n; r++) {
        const float *a = m->a + side->offset + (size_t)r * side->unit_step;
        for (int u = 0; u < side->n; u++) {
            const float *b = m->b + side->offset + (size_t)u * side->unit_step;
            double sum = 0;
            for (int x = 0; x < side->n_other; x++) {
                size_t y = other == NULL ? (size_t)x : other[x];
                for (int k = 0; k < side->coef; k++)
                    sum += (double)a[(size_t)x * side->other_step + k] *
                           (double)b[y * side->other_step + k];
            }
            m->score[(size_t)r * side->n + u] += sum;
        }
    }
}

static void score_orbit(const plain_match *m, int orbit, int n) {
    memset(m->score, 0, (size_t)n * n * sizeof(double));
    for (int block = 0; block < m->graph->n_blocks; block++)
        for (int s = 0; s < WF_SIDES; s++) {
            wf_block_side side = wf__block_side(m->graph, block, s);
            if (side.orbit == orbit && wf__block_matched(m->graph, block)) add_side(m, &side);
        }
}

/* <a, P b>, in double. */
static double matched_dot(const plain_match *m) {
    double dot = 0;
    for (int block = 0; block < m->graph->n_blocks; block++) {
        if (!wf__block_matched(m->graph, block)) continue;
        wf_block_side side = wf__block_side(m->graph, block, WF_SIDE_DST);
        const uint32_t *rows =
            side.orbit < 0 ? NULL : m->from + wf_graph_perm_start(m->graph, side.orbit);
        const uint32_t *columns =
            side.other_orbit < 0 ? NULL : m->from + wf_graph_perm_start(m->graph, side.other_orbit);
        for (int i = 0; i < side.n; i++)
            for (int j = 0; j < side.n_other; j++) {
                size_t row = rows == NULL ? (size_t)i : rows[i];
                size_t column = columns == NULL ? (size_t)j : columns[j];
                const float *a =
                    m->a + side.offset + (size_t)i * side.unit_step + (size_t)j * side.other_step;
                const float *b =
                    m->b + side.offset + row * side.unit_step + column * side.other_step;
                for (int k = 0; k < side.coef; k++) dot += (double)a[k] * (double)b[k];
            }
    }
    return dot;
}

static void swap(uint32_t *a, uint32_t *b) {
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Whether the orbit's new assignment gains more than the tolerance; only then is it taken. */
static bool improve_orbit(plain_match *m, int orbit, double tolerance) {
    int n = wf__orbit_size(m->graph, orbit);
    uint32_t *from = m->from + wf_graph_perm_start(m->graph, orbit);
    score_orbit(m, orbit, n);
    double before = 0;
    for (int r = 0; r < n; r++) before += m->score[(size_t)r * n + from[r]];
    double after = wf__assign(n, m->score, m->match, m->assign);
    if (!(after - before > tolerance)) return false;
    double dot = wf__orbit_has_loop(m->graph, orbit) ? matched_dot(m) : -INFINITY;
    for (int r = 0; r < n; r++) swap(&from[r], &m->match[r]);
    if (dot == -INFINITY || matched_dot(m) - dot > tolerance) return true;
    for (int r = 0; r < n; r++) swap(&from[r], &m->match[r]);
    return false;
}

static int sweep_until_still(const wf_ctx *ctx, plain_match *m, const wf_match_desc *desc,
                             uint32_t restart) {
    wf__match_start(m->graph, desc->seed, restart, m->from);
    for (int sweep = 0; sweep < desc->sweeps; sweep++) {
        wf__match_order(m->graph, desc->seed, restart, (uint32_t)sweep, m->order);
        bool gained = false;
        for (int i = 0; i < m->graph->n_orbits && !wf_interrupted(ctx); i++)
            gained |= improve_orbit(m, (int)m->order[i], desc->tolerance);
        if (!gained) return sweep + 1;
    }
    return desc->sweeps;
}

static wf_status check_finite(wf_ctx *ctx, const wf_graph *graph, const float *w,
                              const char *which) {
    for (size_t i = 0; i < graph->n_params; i++)
        if (!isfinite(w[i]))
            return wf_fail(
                ctx, WF_ERR_INPUT,
                "matching: parameter %zu of network %s is not finite; leave that network out", i,
                which);
    return WF_OK;
}

static wf_status plain_match_open(wf_ctx *ctx, const wf_graph *graph, plain_match *m) {
    int largest = 1;
    for (int orbit = 0; orbit < graph->n_orbits; orbit++) {
        int n = wf__orbit_size(graph, orbit);
        if (n > largest) largest = n;
    }
    size_t units = wf_graph_perm_size(graph), n = (size_t)largest;
    WF_TRY(wf_alloc(ctx, 2 * units + n + (size_t)graph->n_orbits + 1, sizeof(uint32_t), "matching",
                    &m->from));
    m->best_from = m->from + units;
    m->match = m->best_from + units;
    m->order = m->match + n;
    WF_TRY(wf_alloc(ctx, n * n, sizeof(double), "matching scores", &m->score));
    return wf_alloc(ctx, 1, wf__assign_scratch(largest), "assignment", &m->assign);
}

static void plain_match_close(plain_match *m) {
    free(m->from);
    free(m->score);
    free(m->assign);
}

wf_status wf_match(wf_ctx *ctx, const wf_graph *graph, const float *a, const float *b,
                   const wf_match_desc *desc, uint32_t *perm, double *dot, int *sweeps_used) {
    wf_match_desc defaults = wf_match_desc_default();
    if (desc == NULL) desc = &defaults;
    WF_TRY(wf__match_check(ctx, desc));
    WF_TRY(check_finite(ctx, graph, a, "a"));
    WF_TRY(check_finite(ctx, graph, b, "b"));
    plain_match m = {.graph = graph, .a = a, .b = b};
    wf_status status = WF_OK;
    WF_TRY_GOTO(plain_match_open(ctx, graph, &m), done);
    size_t bytes = wf_graph_perm_size(graph) * sizeof(uint32_t);
    double best = -INFINITY;
    int sweeps = 0;
    for (int restart = 0; restart <= desc->restarts; restart++) {
        sweeps += sweep_until_still(ctx, &m, desc, (uint32_t)restart);
        if (wf_interrupted(ctx)) {
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while matching networks");
            goto done;
        }
        double value = matched_dot(&m);
        if (value > best || restart == 0) {
            best = value;
            memcpy(m.best_from, m.from, bytes);
        }
    }
    wf__match_to_perm(graph, m.best_from, perm);
    if (dot != NULL) *dot = best;
    if (sweeps_used != NULL) *sweeps_used = sweeps;
done:
    plain_match_close(&m);
    return status;
}
