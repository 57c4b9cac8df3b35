/* zoo_info: what can be said of a collection without its data set (weft/import.h).
 *
 * One pass over the networks, in parallel, leaves a record of each (hashes, dead units,
 * non-finite values); sums and comparisons are made from the records in index order, so the
 * answer does not depend on the threads. */
#include "zoo/zoo_file.h"
#include "weft/import.h"
#include "base/json_text.h"
#include "base/pool.h"
#include "base/settings_json.h"
#include "zoo/zoo_info_units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { chunk_networks = 16, round_networks = 2048, chunk_pairs = 16, max_pairs = 2000 };
static const double related_above = 0.5; /* independent networks stay far below */

typedef struct record {
    uint64_t exact, orderless;
    size_t index, dead, non_finite;
} record;

/* What a thread needs to look at one network or two. */
typedef struct desk {
    float *a, *b;
    wf_units units;
} desk;

typedef struct scan {
    wf_ctx *ctx;
    const wf_zoo *zoo;
    const wf_graph *graph;
    desk *desks;
    int n_desks;
    record *records;
    size_t count, first; /* of this round */
    uint8_t *marks;      /* of each network; NULL: not asked for */
} scan;

/* --- records ---------------------------------------------------------------------------------- */

static void record_network(const scan *s, desk *d, size_t index) {
    record *r = &s->records[index];
    wf_zoo_get(s->zoo, index, d->a);
    r->index = index;
    for (size_t i = 0; i < s->graph->n_params; i++) r->non_finite += !isfinite(d->a[i]);
    r->exact = wf_exact_hash(d->a, s->graph->n_params);
    r->orderless = wf_orderless_hash(&d->units, d->a);
    r->dead = wf_dead_units(s->graph, d->a);
}

static void record_chunk(void *scan_, size_t chunk, int worker) {
    const scan *s = scan_;
    size_t first = s->first + chunk * chunk_networks;
    for (size_t i = first; i < first + chunk_networks && i < s->count; i++)
        record_network(s, &s->desks[worker], i);
}

static wf_status record_all(scan *s) {
    WF_TRY(wf_alloc(s->ctx, s->count, sizeof *s->records, "records", &s->records));
    wf_meter meter = wf_meter_start(s->ctx, "looking at networks", "networks", (double)s->count);
    for (s->first = 0; s->first < s->count; s->first += round_networks) {
        if (!wf_parallel_stoppable(s->ctx, round_networks / chunk_networks, record_chunk, s))
            return wf_fail(s->ctx, WF_ERR_INTERRUPTED, "interrupted");
        size_t left = s->count - s->first;
        wf__zoo_give_back(s->zoo, s->first, left < round_networks ? left : round_networks);
        wf_meter_update(&meter, (double)s->first, NULL);
    }
    wf_meter_end(&meter, (double)s->count, NULL);
    return WF_OK;
}

static void sum_records(const scan *s, wf_zoo_summary *out) {
    out->hidden_units = s->count * wf_graph_perm_size(s->graph);
    for (size_t i = 0; i < s->count; i++) {
        const record *r = &s->records[i];
        if (s->marks != NULL && r->non_finite > 0) s->marks[i] |= WF_ZOO_NON_FINITE;
        if (s->marks != NULL && r->dead > 0) s->marks[i] |= WF_ZOO_DEAD_UNITS;
        out->dead_units += r->dead;
        out->dead_networks += r->dead > 0;
        out->non_finite_values += r->non_finite;
        if (r->non_finite > 0 && out->non_finite_networks++ == 0) out->first_non_finite = i;
    }
}

/* --- duplicates ------------------------------------------------------------------------------- */

/* Networks of one order-less hash together; in them those of one exact hash; in those by index. */
static int by_hashes(const void *a_, const void *b_) {
    const record *a = a_, *b = b_;
    if (a->orderless != b->orderless) return a->orderless < b->orderless ? -1 : 1;
    if (a->exact != b->exact) return a->exact < b->exact ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static int by_index(const void *a, const void *b) {
    size_t x = ((const record *)a)->index, y = ((const record *)b)->index;
    return (x > y) - (x < y);
}

static wf_status same_network(const scan *s, size_t a, size_t b, bool permuted, bool *out) {
    desk *d = &s->desks[0];
    size_t n = s->graph->n_params;
    wf_zoo_get(s->zoo, a, d->a);
    if (permuted) {
        WF_TRY(wf_canonical(s->ctx, &d->units, d->a, d->b));
        memcpy(d->a, d->b, n * sizeof *d->a);
    }
    float *other = NULL;
    WF_TRY(wf_alloc(s->ctx, n, sizeof *other, "network", &other));
    wf_zoo_get(s->zoo, b, other);
    wf_status status = WF_OK;
    if (permuted) status = wf_canonical(s->ctx, &d->units, other, d->b);
    *out = memcmp(d->a, permuted ? d->b : other, n * sizeof *other) == 0;
    free(other);
    return status;
}

/* Keeps the examples with the smallest indices, in order. */
static void note_duplicate(const scan *s, wf_zoo_summary *out, wf_zoo_duplicate found) {
    if (s->marks != NULL) s->marks[found.index] |= WF_ZOO_DUPLICATE;
    const int room = (int)(sizeof out->examples / sizeof *out->examples);
    if (found.permuted) out->permuted_duplicates++;
    else out->duplicates++;
    int place = out->n_examples;
    while (place > 0 && out->examples[place - 1].index > found.index) place--;
    if (place == room) return;
    if (out->n_examples < room) out->n_examples++;
    memmove(&out->examples[place + 1], &out->examples[place],
            (size_t)(out->n_examples - place - 1) * sizeof *out->examples);
    out->examples[place] = found;
}

/* Compares each of heads[1..n-1], in index order, with the different networks before it. *kept
 * of them stay in front. */
static wf_status compare_heads(const scan *s, record *heads, size_t n, bool permuted, size_t *kept,
                               wf_zoo_summary *out) {
    *kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool same = false;
        for (size_t k = 0; k < *kept && !same; k++) {
            WF_TRY(same_network(s, heads[k].index, heads[i].index, permuted, &same));
            if (same)
                note_duplicate(s, out,
                               (wf_zoo_duplicate){heads[i].index, heads[k].index, permuted});
        }
        if (!same) heads[(*kept)++] = heads[i];
    }
    return WF_OK;
}

static wf_status find_duplicates(scan *s, wf_zoo_summary *out) {
    record *r = s->records;
    qsort(r, s->count, sizeof *r, by_hashes);
    for (size_t start = 0, end; start < s->count; start = end) {
        size_t heads = start; /* first of each run of equal bits, gathered in front */
        for (end = start; end < s->count && r[end].orderless == r[start].orderless;) {
            size_t run = end, kept = 0;
            while (end < s->count && r[end].orderless == r[run].orderless &&
                   r[end].exact == r[run].exact)
                end++;
            if (end - run > 1) WF_TRY(compare_heads(s, r + run, end - run, false, &kept, out));
            else kept = 1;
            memmove(r + heads, r + run, kept * sizeof *r);
            heads += kept;
        }
        size_t kept;
        qsort(r + start, heads - start, sizeof *r, by_index);
        if (heads - start > 1) WF_TRY(compare_heads(s, r + start, heads - start, true, &kept, out));
    }
    return WF_OK;
}

/* --- kinship ---------------------------------------------------------------------------------- */

typedef struct pairs {
    const scan *scan;
    size_t n, apart; /* pair k: networks i and i + apart (modulo the count) */
    double *cosine;
} pairs;

static double cosine(const float *a, const float *b, size_t n) {
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        dot += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return dot / sqrt(aa * bb); /* NaN where it is not defined */
}

static void pair_chunk(void *pairs_, size_t chunk, int worker) {
    const pairs *p = pairs_;
    const scan *s = p->scan;
    desk *d = &s->desks[worker];
    size_t choices = p->apart == 1 ? s->count - 1 : s->count;
    for (size_t k = chunk * chunk_pairs; k < (chunk + 1) * chunk_pairs && k < p->n; k++) {
        size_t i = (size_t)((double)k * (double)choices / (double)p->n);
        wf_zoo_get(s->zoo, i, d->a);
        wf_zoo_get(s->zoo, (i + p->apart) % s->count, d->b);
        p->cosine[k] = cosine(d->a, d->b, s->graph->n_params);
    }
    /* Each look far into a file maps its neighbourhood too. */
    wf__zoo_give_back(s->zoo, 0, s->count);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over pairs of networks `apart` places from each other, as far as it is defined. */
static wf_status median_cosine(const scan *s, size_t apart, double *out) {
    pairs p = {.scan = s, .apart = apart};
    p.n = s->count - 1 < max_pairs ? s->count - 1 : max_pairs;
    WF_TRY(wf_alloc(s->ctx, p.n, sizeof *p.cosine, "cosines", &p.cosine));
    bool whole =
        wf_parallel_stoppable(s->ctx, (p.n + chunk_pairs - 1) / chunk_pairs, pair_chunk, &p);
    if (!whole) {
        free(p.cosine);
        return wf_fail(s->ctx, WF_ERR_INTERRUPTED, "interrupted");
    }
    size_t defined = 0;
    for (size_t k = 0; k < p.n; k++)
        if (isfinite(p.cosine[k])) p.cosine[defined++] = p.cosine[k];
    qsort(p.cosine, defined, sizeof *p.cosine, by_value);
    *out = defined == 0 ? NAN : 0.5 * (p.cosine[(defined - 1) / 2] + p.cosine[defined / 2]);
    free(p.cosine);
    return WF_OK;
}

static wf_status judge_kinship(const scan *s, wf_zoo_summary *out) {
    out->near = out->far = NAN;
    if (s->count < 4 + out->non_finite_networks) return WF_OK;
    WF_TRY(median_cosine(s, 1, &out->near));
    WF_TRY(median_cosine(s, s->count / 2, &out->far));
    if (s->graph->n_orbits == 0 || !(out->near > related_above)) return WF_OK;
    bool steps = 1 - out->near < 0.5 * (1 - out->far);
    out->kinship = steps ? WF_ZOO_TRAJECTORY : WF_ZOO_RELATED;
    snprintf(out->warning, sizeof out->warning,
             steps
                 ? "neighbouring networks have a median cosine of %.3f, those half the collection "
                   "apart %.3f: they look like checkpoints of one training run, not like "
                   "independent networks, and what is learned from them will mostly be copies"
                 : "neighbouring networks have a median cosine of %.3f, others %.3f: they look as "
                   "if they had started from the same weights or been aligned; independent "
                   "networks have different initial weights",
             out->near, out->far);
    return WF_OK;
}

/* --- scores ----------------------------------------------------------------------------------- */

static void summarise_scores(const float *scores, size_t n, wf_zoo_score_info *out) {
    double sum = 0, squares = 0;
    size_t defined = 0;
    out->min = INFINITY, out->max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (isnan(scores[i])) continue;
        sum += scores[i];
        defined++;
        if (scores[i] < out->min) out->min = scores[i];
        if (scores[i] > out->max) out->max = scores[i];
    }
    out->mean = sum / (double)defined;
    for (size_t i = 0; i < n; i++)
        if (!isnan(scores[i])) squares += (scores[i] - out->mean) * (scores[i] - out->mean);
    out->std = sqrt(squares / (double)defined);
    if (defined == 0) out->min = out->max = NAN;
}

static void list_scores(const wf_zoo *zoo, wf_zoo_summary *out) {
    const char *name;
    for (int i = 0; (name = wf_zoo_test(zoo, i)) != NULL; i++) {
        const float *scores = wf_zoo_scores(zoo, name);
        if (scores == NULL || out->n_tests == (int)(sizeof out->tests / sizeof *out->tests))
            continue;
        wf_zoo_score_info *test = &out->tests[out->n_tests++];
        snprintf(test->name, sizeof test->name, "%s", name);
        summarise_scores(scores, wf_zoo_count(zoo), test);
    }
}

/* --- the call --------------------------------------------------------------------------------- */

static wf_status create_desks(scan *s) {
    WF_TRY(
        wf_alloc(s->ctx, (size_t)wf_ctx_threads(s->ctx), sizeof *s->desks, "scratch", &s->desks));
    for (; s->n_desks < wf_ctx_threads(s->ctx); s->n_desks++) {
        desk *d = &s->desks[s->n_desks];
        WF_TRY(wf_units_create(s->ctx, s->graph, &d->units));
        wf_status status = wf_alloc(s->ctx, s->graph->n_params, sizeof *d->a, "network", &d->a);
        if (status == WF_OK)
            status = wf_alloc(s->ctx, s->graph->n_params, sizeof *d->b, "network", &d->b);
        if (status != WF_OK) {
            s->n_desks++; /* half made: freed with the others */
            return status;
        }
    }
    return WF_OK;
}

static void free_scan(scan *s) {
    for (int i = 0; i < s->n_desks; i++) {
        free(s->desks[i].a);
        free(s->desks[i].b);
        wf_units_free(&s->desks[i].units);
    }
    free(s->desks);
    free(s->records);
}

static wf_status summarise(scan *s, wf_zoo_summary *out) {
    WF_TRY(create_desks(s));
    WF_TRY(record_all(s));
    sum_records(s, out);
    WF_TRY(judge_kinship(s, out));
    WF_TRY(find_duplicates(s, out));
    list_scores(s->zoo, out);
    return WF_OK;
}

wf_status wf_zoo_info(wf_ctx *ctx, const wf_zoo *zoo, wf_zoo_summary *out) {
    return wf_zoo_inspect(ctx, zoo, out, NULL);
}

wf_status wf_zoo_inspect(wf_ctx *ctx, const wf_zoo *zoo, wf_zoo_summary *out, uint8_t *marks) {
    scan s = {.ctx = ctx,
              .zoo = zoo,
              .graph = wf_zoo_graph(zoo),
              .count = wf_zoo_count(zoo),
              .marks = marks};
    if (marks != NULL) memset(marks, 0, s.count);
    *out = (wf_zoo_summary){.count = s.count, .parameters = s.graph->n_params};
    WF_TRY(wf_zoo_verify(ctx, zoo));
    wf_status status = summarise(&s, out);
    free_scan(&s);
    return status;
}

/* --- as JSON ---------------------------------------------------------------------------------- */

const char *wf_zoo_kinship_name(wf_zoo_kinship kinship) {
    static const char *const names[] = {"independent", "trajectory", "related"};
    return names[kinship];
}

/* Adds a member to a list that may be NULL; NULL when memory runs out. */
static json_t *with_member(json_t *list, json_t *member) {
    if (json_array_append_new(list, member) == 0) return list;
    json_decref(list);
    return NULL;
}

static json_t *tests_json(const wf_zoo_summary *s) {
    json_t *tests = json_array();
    for (int i = 0; i < s->n_tests; i++) {
        const wf_zoo_score_info *t = &s->tests[i];
        tests = with_member(tests,
                            json_pack("{s:o, s:o, s:o, s:o, s:o}", "name", wf_json_string(t->name),
                                      "mean", wf__json_real(t->mean), "std", wf__json_real(t->std),
                                      "min", wf__json_real(t->min), "max", wf__json_real(t->max)));
    }
    return tests;
}

static json_t *examples_json(const wf_zoo_summary *s) {
    json_t *examples = json_array();
    for (int i = 0; i < s->n_examples; i++) {
        const wf_zoo_duplicate *d = &s->examples[i];
        examples = with_member(examples, json_pack("{s:I, s:I, s:b}", "index", (json_int_t)d->index,
                                                   "earlier", (json_int_t)d->earlier, "permuted",
                                                   (int)d->permuted));
    }
    return examples;
}

wf_status wf_zoo_info_json(wf_ctx *ctx, const wf_zoo *zoo, char **out) {
    wf_zoo_summary s;
    *out = NULL;
    WF_TRY(wf_zoo_info(ctx, zoo, &s));
    const wf_graph *graph = wf_zoo_graph(zoo);
    const char *note = wf_zoo_meta(zoo, "weft.data.note");
    json_t *object = json_pack(
        "{s:o, s:s, s:s, s:I, s:I, s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:s, "
        "s:o, s:o}",
        "path", wf_json_string(wf_zoo_path(zoo)), "arch", graph->text, "activation",
        wf_activation_name(graph->activation), "count", (json_int_t)s.count, "parameters",
        (json_int_t)s.parameters, "tests", tests_json(&s), "duplicates", (json_int_t)s.duplicates,
        "permuted_duplicates", (json_int_t)s.permuted_duplicates, "duplicate_examples",
        examples_json(&s), "hidden_units", (json_int_t)s.hidden_units, "dead_units",
        (json_int_t)s.dead_units, "dead_networks", (json_int_t)s.dead_networks, "non_finite_values",
        (json_int_t)s.non_finite_values, "non_finite_networks", (json_int_t)s.non_finite_networks,
        "near", wf__json_real(s.near), "far", wf__json_real(s.far), "kinship",
        wf_zoo_kinship_name(s.kinship), "warning", wf_json_string(s.warning), "data_note",
        wf_json_string(note != NULL ? note : ""));
    return wf__json_answer(ctx, object, out);
}
