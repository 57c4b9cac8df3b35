/* bayes_net: structure, tables and draws (see bayes_net.h). */
#include "data/bayes_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    wf_ctx *ctx;
    wf_bayes_net *net;
    double *gain;   /* (V, V): of dropping the edge where there is one, of adding it elsewhere */
    double *counts; /* scratch of a family's table */
    size_t capacity;
    bool *seen; /* [V] scratch of the walk */
} search;

static bool has_edge(const wf_bayes_net *net, size_t parent, size_t child) {
    return net->edge[parent * net->variables + child] != 0;
}

static void set_edge(wf_bayes_net *net, size_t parent, size_t child, bool there) {
    net->edge[parent * net->variables + child] = there;
}

static bool is_fixed(const wf_bayes_net *net, size_t parent, size_t child) {
    return net->class_variable >= 0 &&
           ((size_t)net->class_variable == parent || (size_t)net->class_variable == child);
}

/* Configurations of the child's parents; 0 when there are more of them than rows. */
static size_t configurations(const wf_bayes_net *net, size_t child) {
    size_t count = 1;
    for (size_t p = 0; p < net->variables; p++) {
        if (!has_edge(net, p, child)) continue;
        count *= (size_t)net->card[p];
        if (count > net->rows) return 0;
    }
    return count;
}

/* Which configuration row r has: mixed radix over the parents in order. values: codes of a row,
 * `stride` apart. */
static size_t configuration_of(const wf_bayes_net *net, size_t child, const int32_t *values,
                               size_t stride) {
    size_t place = 0;
    for (size_t p = 0; p < net->variables; p++)
        if (has_edge(net, p, child))
            place = place * (size_t)net->card[p] + (size_t)values[p * stride];
    return place;
}

static void count_family(const wf_bayes_net *net, size_t child, size_t q, double *counts) {
    size_t card = (size_t)net->card[child];
    memset(counts, 0, q * card * sizeof *counts);
    for (size_t r = 0; r < net->rows; r++) {
        size_t place = configuration_of(net, child, net->codes + r, net->rows);
        counts[place * card + (size_t)net->codes[child * net->rows + r]]++;
    }
}

static wf_status family_score(search *s, size_t child, double *out) {
    const wf_bayes_net *net = s->net;
    size_t q = configurations(net, child), card = (size_t)net->card[child];
    *out = -INFINITY;
    if (q == 0) return WF_OK;
    if (q * card > s->capacity) {
        free(s->counts);
        s->counts = NULL;
        s->capacity = q * card;
        WF_TRY(wf_alloc(s->ctx, s->capacity, sizeof *s->counts, "Bayesian network", &s->counts));
    }
    count_family(net, child, q, s->counts);
    double likelihood = 0;
    for (size_t j = 0; j < q; j++) {
        double total = 0;
        for (size_t k = 0; k < card; k++) total += s->counts[j * card + k];
        for (size_t k = 0; k < card; k++) {
            double count = s->counts[j * card + k];
            if (count > 0) likelihood += count * log(count / total);
        }
    }
    *out = likelihood - 0.5 * log((double)net->rows) * (double)(q * (card - 1));
    return WF_OK;
}

/* What each change of this child's parents would gain. */
static wf_status refresh(search *s, size_t child) {
    wf_bayes_net *net = s->net;
    WF_TRY(family_score(s, child, &net->local[child]));
    for (size_t p = 0; p < net->variables; p++) {
        double *gain = &s->gain[p * net->variables + child];
        *gain = -INFINITY;
        if (p == child || is_fixed(net, p, child)) continue;
        bool there = has_edge(net, p, child);
        double changed;
        set_edge(net, p, child, !there);
        wf_status status = family_score(s, child, &changed);
        set_edge(net, p, child, there);
        WF_TRY(status);
        *gain = changed - net->local[child];
    }
    return WF_OK;
}

static bool reaches(search *s, size_t from, size_t to) {
    if (from == to) return true;
    s->seen[from] = true;
    for (size_t c = 0; c < s->net->variables; c++)
        if (has_edge(s->net, from, c) && !s->seen[c] && reaches(s, c, to)) return true;
    return false;
}

/* May parent -> child be added? The class stands apart from the limit. */
static bool may_add(search *s, size_t parent, size_t child) {
    wf_bayes_net *net = s->net;
    int parents = 0;
    for (size_t p = 0; p < net->variables; p++)
        parents += has_edge(net, p, child) && !is_fixed(net, p, child);
    if (parents >= net->max_parents) return false;
    memset(s->seen, 0, net->variables * sizeof *s->seen);
    return !reaches(s, child, parent);
}

typedef enum step_kind { STEP_NONE, STEP_CHANGE, STEP_REVERSE } step_kind;

typedef struct step {
    step_kind kind;
    size_t parent, child;
    double gain;
} step;

static void consider(step *best, step_kind kind, size_t parent, size_t child, double gain) {
    if (gain > best->gain + 1e-9) *best = (step){kind, parent, child, gain};
}

static step best_step(search *s) {
    wf_bayes_net *net = s->net;
    step best = {STEP_NONE, 0, 0, 0};
    for (size_t p = 0; p < net->variables; p++)
        for (size_t c = 0; c < net->variables; c++) {
            double gain = s->gain[p * net->variables + c];
            if (p == c || is_fixed(net, p, c)) continue;
            if (!has_edge(net, p, c)) {
                if (gain > best.gain + 1e-9 && may_add(s, p, c))
                    consider(&best, STEP_CHANGE, p, c, gain);
                continue;
            }
            consider(&best, STEP_CHANGE, p, c, gain);
            double reversed = gain + s->gain[c * net->variables + p];
            set_edge(net, p, c, false);
            if (reversed > best.gain + 1e-9 && may_add(s, c, p))
                consider(&best, STEP_REVERSE, p, c, reversed);
            set_edge(net, p, c, true);
        }
    return best;
}

static wf_status climb(search *s) {
    wf_bayes_net *net = s->net;
    size_t steps = 0;
    wf_meter meter = wf_meter_start(s->ctx, "learning the Bayesian network", "steps", 0);
    for (size_t v = 0; v < net->variables; v++) WF_TRY(refresh(s, v));
    for (;;) {
        step next = best_step(s);
        if (next.kind == STEP_NONE) break;
        bool there = has_edge(net, next.parent, next.child);
        set_edge(net, next.parent, next.child, !there);
        WF_TRY(refresh(s, next.child));
        if (next.kind == STEP_REVERSE) {
            set_edge(net, next.child, next.parent, true);
            WF_TRY(refresh(s, next.parent));
        }
        wf_meter_update(&meter, (double)++steps, NULL);
        if (wf_interrupted(s->ctx))
            return wf_fail(s->ctx, WF_ERR_INTERRUPTED,
                           "interrupted while learning the Bayesian network");
    }
    wf_meter_end(&meter, (double)steps, NULL);
    net->bic = 0;
    for (size_t v = 0; v < net->variables; v++) net->bic += net->local[v];
    return WF_OK;
}

/* Parents before children: of the variables whose parents are all placed, the first. */
static void sort_variables(search *s) {
    wf_bayes_net *net = s->net;
    memset(s->seen, 0, net->variables * sizeof *s->seen);
    for (size_t placed = 0; placed < net->variables; placed++)
        for (size_t v = 0; v < net->variables; v++) {
            bool ready = !s->seen[v];
            for (size_t p = 0; p < net->variables && ready; p++)
                ready = !has_edge(net, p, v) || s->seen[p];
            if (!ready) continue;
            s->seen[v] = true;
            net->order[placed] = (uint32_t)v;
            break;
        }
}

wf_status wf__bayes_net_learn(wf_ctx *ctx, wf_bayes_net *net) {
    size_t v = net->variables;
    search s = {.ctx = ctx, .net = net};
    wf_status status = WF_OK;
    net->edge = wf_arena_zalloc(&net->arena, v * v);
    net->local = wf_arena_zalloc(&net->arena, v * sizeof *net->local);
    net->order = wf_arena_zalloc(&net->arena, v * sizeof *net->order);
    if (net->edge == NULL || net->local == NULL || net->order == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "Bayesian network: out of memory");
    for (size_t c = 0; c < v && net->class_variable >= 0; c++)
        if (c != (size_t)net->class_variable) set_edge(net, (size_t)net->class_variable, c, true);
    WF_TRY_GOTO(wf_alloc(ctx, v * v, sizeof *s.gain, "Bayesian network", &s.gain), done);
    WF_TRY_GOTO(wf_alloc(ctx, v, sizeof *s.seen, "Bayesian network", &s.seen), done);
    WF_TRY_GOTO(climb(&s), done);
    sort_variables(&s);
done:
    free(s.gain);
    free(s.counts);
    free(s.seen);
    return status;
}

wf_status wf__bayes_net_tables(wf_ctx *ctx, wf_bayes_net *net, double prior) {
    net->cumulative = wf_arena_zalloc(&net->arena, net->variables * sizeof *net->cumulative);
    if (net->cumulative == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "Bayesian network: out of memory");
    for (size_t v = 0; v < net->variables; v++) {
        size_t q = configurations(net, v), card = (size_t)net->card[v];
        double *table = wf_arena_alloc(&net->arena, q * card * sizeof *table);
        if (table == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "Bayesian network: out of memory");
        count_family(net, v, q, table);
        for (size_t j = 0; j < q; j++) {
            double total = prior * (double)card, sum = 0;
            for (size_t k = 0; k < card; k++) total += table[j * card + k];
            for (size_t k = 0; k < card; k++) {
                sum += (table[j * card + k] + prior) / total;
                table[j * card + k] = k + 1 < card ? sum : 1;
            }
        }
        net->cumulative[v] = table;
    }
    return WF_OK;
}

void wf__bayes_net_draw(const wf_bayes_net *net, wf_rng *rng, int32_t *values) {
    for (size_t i = 0; i < net->variables; i++) {
        size_t v = net->order[i], card = (size_t)net->card[v];
        const double *table = net->cumulative[v] + configuration_of(net, v, values, 1) * card;
        double u = wf_rng_uniform(rng);
        int32_t value = 0;
        while ((size_t)value + 1 < card && u >= table[value]) value++;
        values[v] = value;
    }
}

void wf__bayes_net_free(wf_bayes_net *net) {
    wf_arena_free(&net->arena);
    *net = (wf_bayes_net){0};
}
