/* zoo subset, head, split, merge, filter: collections out of collections. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "weft/import.h"
#include "weft/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A collection that is taken apart. */
typedef struct taking {
    wf_run_app *app;
    wf_zoo *zoo;
    size_t count;
    size_t *index; /* the networks that are kept */
    size_t n;
} taking;

static wf_status open_taking(wf_run_app *app, const char *out, taking *t) {
    *t = (taking){.app = app};
    if (out == NULL) return wf__run_fail(app, WF_ERR_USAGE, "say where the networks go: -o FILE");
    WF_TRY(cli_new_file(app, out));
    WF_TRY(wf_zoo_open(app->ctx, app->argument[0], &t->zoo));
    t->count = wf_zoo_count(t->zoo);
    t->index = calloc(t->count, sizeof *t->index);
    return t->index != NULL ? WF_OK : wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
}

static void close_taking(taking *t) {
    free(t->index);
    wf_zoo_free(t->zoo);
}

static wf_status write_taken(const taking *t, const size_t *index, size_t n, const char *path) {
    const wf_zoo_pick pick = {t->zoo, index, n};
    return wf_zoo_select(t->app->ctx, &pick, 1, path);
}

static wf_status print_taken(const taking *t, const char *path) {
    const wf_graph *graph = wf_zoo_graph(t->zoo);
    if (t->app->json)
        return cli_print_json(t->app,
                              json_pack("{s:s, s:s, s:I, s:I}", "path", path, "arch", graph->text,
                                        "count", (json_int_t)t->n, "of", (json_int_t)t->count));
    cli_print("%s: %zu of %zu network%s of %s\n", path, t->n, t->count, WF_RUN_S(t->count),
              graph->text);
    return WF_OK;
}

static wf_status finish_taking(taking *t, wf_status status) {
    const char *out = cli_text(t->app, "out");
    if (status == WF_OK) status = write_taken(t, t->index, t->n, out);
    if (status == WF_OK) status = print_taken(t, out);
    close_taking(t);
    return status;
}

/* --- subset, head ----------------------------------------------------------------------------- */

wf_status cli_zoo_subset(wf_run_app *app) {
    taking t;
    const char *list = cli_text(app, "index");
    if (list == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say which networks: --index 0,3,10-19");
    wf_status status = open_taking(app, cli_text(app, "out"), &t);
    if (status == WF_OK) {
        free(t.index);
        status = cli_read_indices(app, "--index", list, app->argument[0], t.count, &t.index, &t.n);
        if (status != WF_OK) t.index = NULL;
    }
    return finish_taking(&t, status);
}

wf_status cli_zoo_head(wf_run_app *app) {
    taking t;
    wf_status status = open_taking(app, cli_text(app, "out"), &t);
    size_t wanted = (size_t)cli_int(app, "count");
    if (status == WF_OK) t.n = wanted < t.count ? wanted : t.count;
    for (size_t i = 0; i < t.n; i++) t.index[i] = i;
    return finish_taking(&t, status);
}

/* --- split ------------------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* The first `drawn` places of a shuffle; then those and the rest in their order. */
static void draw(taking *t, size_t drawn, uint64_t seed) {
    wf_rng rng = wf_rng_at(seed, 0, WF_RNG_SPLIT, 1);
    for (size_t i = 0; i < t->count; i++) t->index[i] = i;
    for (size_t i = 0; i < drawn; i++) {
        size_t k = i + wf_rng_below(&rng, (uint32_t)(t->count - i));
        size_t kept = t->index[i];
        t->index[i] = t->index[k];
        t->index[k] = kept;
    }
    qsort(t->index, drawn, sizeof *t->index, by_number);
    qsort(t->index + drawn, t->count - drawn, sizeof *t->index, by_number);
}

static wf_status split_size(const taking *t, size_t *drawn) {
    wf_run_app *app = t->app;
    *drawn = cli_given(app, "count") ? (size_t)cli_int(app, "count")
                                     : (size_t)(cli_real(app, "fraction") * (double)t->count + 0.5);
    if (cli_given(app, "count") && cli_given(app, "fraction"))
        return wf__run_fail(app, WF_ERR_USAGE, "give --count or --fraction, not both");
    if (*drawn > 0 && *drawn < t->count) return WF_OK;
    return wf__run_fail(
        app, WF_ERR_USAGE,
        "%zu of the %zu network%s of %s would be held out; both parts need at least one", *drawn,
        t->count, WF_RUN_S(t->count), app->argument[0]);
}

static wf_status split(taking *t, const char *out, const char *held_out) {
    wf_run_app *app = t->app;
    size_t drawn;
    if (held_out == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the drawn networks go: --held-out FILE");
    WF_TRY(cli_new_file(app, held_out));
    WF_TRY(split_size(t, &drawn));
    draw(t, drawn, (uint64_t)cli_int(app, "seed"));
    t->n = t->count - drawn;
    WF_TRY(write_taken(t, t->index, drawn, held_out));
    WF_TRY(write_taken(t, t->index + drawn, t->n, out));
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:I, s:s, s:I}", "path", out, "count",
                                             (json_int_t)t->n, "held_out", held_out,
                                             "held_out_count", (json_int_t)drawn));
    cli_print("%s: %zu network%s\n%s: %zu network%s, drawn at random\n", out, t->n, WF_RUN_S(t->n),
              held_out, drawn, WF_RUN_S(drawn));
    return WF_OK;
}

wf_status cli_zoo_split(wf_run_app *app) {
    taking t;
    const char *out = cli_text(app, "out");
    wf_status status = open_taking(app, out, &t);
    if (status == WF_OK) status = split(&t, out, cli_text(app, "held-out"));
    close_taking(&t);
    return status;
}

/* --- merge ------------------------------------------------------------------------------------ */

static wf_status merge(wf_run_app *app, wf_zoo **zoos, wf_zoo_pick *picks) {
    const char *out = cli_text(app, "out");
    size_t count = 0;
    WF_TRY(cli_new_file(app, out));
    for (int i = 0; i < app->n_arguments; i++) {
        WF_TRY(wf_zoo_open(app->ctx, app->argument[i], &zoos[i]));
        picks[i].zoo = zoos[i];
        count += wf_zoo_count(zoos[i]);
    }
    WF_TRY(wf_zoo_select(app->ctx, picks, app->n_arguments, out));
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:s, s:I, s:i}", "path", out, "arch",
                                             wf_zoo_graph(zoos[0])->text, "count",
                                             (json_int_t)count, "collections", app->n_arguments));
    cli_print("%s: %zu networks of %s, of %d collections\n", out, count,
              wf_zoo_graph(zoos[0])->text, app->n_arguments);
    return WF_OK;
}

wf_status cli_zoo_merge(wf_run_app *app) {
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the collection goes: -o FILE");
    size_t n = (size_t)app->n_arguments;
    wf_zoo **zoos = calloc(n, sizeof *zoos);
    wf_zoo_pick *picks = calloc(n, sizeof *picks);
    wf_status status = zoos != NULL && picks != NULL
                           ? merge(app, zoos, picks)
                           : wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    for (size_t i = 0; zoos != NULL && i < n; i++) wf_zoo_free(zoos[i]);
    free(picks);
    free(zoos);
    return status;
}

/* --- filter ----------------------------------------------------------------------------------- */

/* Why networks were left out. */
typedef struct filtered {
    size_t non_finite, duplicates, dead, by_score;
} filtered;

static bool wants_marks(const wf_run_app *app) {
    return cli_flag(app, "finite") || cli_flag(app, "unique") || cli_flag(app, "alive");
}

static bool wants_scores(const wf_run_app *app) {
    return cli_given(app, "min-score") || cli_given(app, "max-score") || cli_given(app, "best");
}

static bool keeps(const wf_run_app *app, uint8_t mark, float score, filtered *why) {
    if (cli_flag(app, "finite") && (mark & WF_ZOO_NON_FINITE)) return why->non_finite++, false;
    if (cli_flag(app, "unique") && (mark & WF_ZOO_DUPLICATE)) return why->duplicates++, false;
    if (cli_flag(app, "alive") && (mark & WF_ZOO_DEAD_UNITS)) return why->dead++, false;
    bool low = cli_given(app, "min-score") && !(score >= (float)cli_real(app, "min-score"));
    bool high = cli_given(app, "max-score") && !(score <= (float)cli_real(app, "max-score"));
    if (low || high) return why->by_score++, false;
    return true;
}

static wf_status choose(taking *t, const uint8_t *marks, const float *scores, filtered *why) {
    wf_run_app *app = t->app;
    for (size_t i = 0; i < t->count; i++)
        if (keeps(app, marks[i], scores != NULL ? scores[i] : 0, why)) t->index[t->n++] = i;
    if (cli_given(app, "best")) {
        WF_TRY(cli_order_by_score(app, scores, t->index, t->n));
        size_t most = (size_t)cli_int(app, "best");
        if (t->n > most) why->by_score += t->n - most, t->n = most;
    }
    if (t->n == 0)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "no network of %s is left, and nothing was written: %zu not finite, %zu "
            "duplicates, %zu with dead units, %zu by score",
            app->argument[0], why->non_finite, why->duplicates, why->dead, why->by_score);
    return WF_OK;
}

static wf_status filter(taking *t, filtered *why) {
    wf_run_app *app = t->app;
    float *scores = NULL;
    const char *test = NULL;
    wf_dataset *data = NULL;
    wf_zoo_summary summary;
    uint8_t *marks = calloc(t->count, 1);
    wf_status status = marks != NULL ? WF_OK : wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    if (status == WF_OK && wants_marks(app))
        status = wf_zoo_inspect(app->ctx, t->zoo, &summary, marks);
    if (status == WF_OK && wants_scores(app))
        status = cli_scores(app, t->zoo, &scores, &test, &data);
    if (status == WF_OK) status = choose(t, marks, scores, why);
    if (status == WF_OK) status = write_taken(t, t->index, t->n, cli_text(app, "out"));
    free(scores);
    free(marks);
    wf_dataset_free(data);
    return status;
}

static wf_status print_filtered(const taking *t, const filtered *why) {
    const char *out = cli_text(t->app, "out");
    if (t->app->json)
        return cli_print_json(t->app,
                              json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "path", out, "count",
                                        (json_int_t)t->n, "of", (json_int_t)t->count, "non_finite",
                                        (json_int_t)why->non_finite, "duplicates",
                                        (json_int_t)why->duplicates, "dead", (json_int_t)why->dead,
                                        "by_score", (json_int_t)why->by_score));
    cli_print("%s: %zu of %zu network%s", out, t->n, t->count, WF_RUN_S(t->count));
    const struct {
        size_t n;
        const char *text;
    } reasons[] = {{why->non_finite, "not finite"},
                   {why->duplicates, "duplicates"},
                   {why->dead, "with dead units"},
                   {why->by_score, "by score"}};
    const char *before = "; left out: ";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].n == 0) continue;
        cli_print("%s%zu %s", before, reasons[i].n, reasons[i].text);
        before = ", ";
    }
    cli_print("\n");
    return WF_OK;
}

wf_status cli_zoo_filter(wf_run_app *app) {
    if (!wants_marks(app) && !wants_scores(app))
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "say what stays: --finite, --unique, --alive, --min-score X, --max-score X "
            "or --best N");
    taking t;
    filtered why = {0};
    wf_status status = open_taking(app, cli_text(app, "out"), &t);
    if (status == WF_OK) status = filter(&t, &why);
    if (status == WF_OK) status = print_filtered(&t, &why);
    close_taking(&t);
    return status;
}
