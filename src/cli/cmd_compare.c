/* compare: runs of weft run side by side: what differs in their settings, the rows of their
 * networks, and, over a setting that is a number, the four panels of a sweep beside published
 * numbers.
 *
 * A run's settings are read from its stage.json: they are the ones its results were made with. */
#include "cli/commands.h"
#include "cli/compare_methods.h"
#include "cli/tables.h"
#include "run/stages.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { most_keys = 64, most_series = 32, most_kinds = 2 };

/* The generated rows of a run: GENERATOR and GENERATOR-refined in eval.json, and in the table. */
static const struct kind {
    const char *ending, *name;
} kinds[most_kinds] = {{"", "direct"}, {"-refined", "refined"}};

typedef struct compared {
    char name[64];
    json_t *eval, *stages;
    json_t *settings;  /* of all stages together: key to text */
    double at;         /* the setting of --over */
    cli_method method; /* with --methods */
} compared;

/* A line of the table. */
typedef struct line {
    wf_eval_row row;
    wf_report_role role;
    bool copies;
    const wf_points *points; /* with --methods and a page; belongs to the run */
} line;

typedef struct comparison {
    wf_run_app *app;
    compared *runs;
    int n_runs;
    const char *keys[most_keys]; /* settings that differ; they belong to the runs */
    int n_keys;
    const char *over; /* NULL: none */
    bool methods;
    json_t *beside; /* published numbers, or NULL */
    line *lines;
    int n_lines, line_room;
    wf_report_series series[most_series];
    char series_name[most_series][256];
    double *x; /* what the series point to */
    wf_eval_row *rows;
    int n_points;
    int n_series;
} comparison;

/* --- reading ---------------------------------------------------------------------------------- */

/* "runs/sweep-100/" to "sweep-100". */
static void name_of(const char *folder, char out[64]) {
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && folder[start - 1] != '/') start--;
    snprintf(out, 64, "%.*s", (int)(end - start), folder + start);
}

static const char *setting(const compared *run, const char *key) {
    const char *text = json_string_value(json_object_get(run->settings, key));
    return text != NULL ? text : "";
}

static wf_status read_run(comparison *c, const char *folder, compared *run) {
    wf_run_app *app = c->app;
    char path[WF_RUN_PATH];
    name_of(folder, run->name);
    WF_TRY(wf__run_path(app, folder, "eval.json", path));
    WF_TRY(wf__run_json_read(app, path, &run->eval));
    if (!json_is_array(json_object_get(run->eval, "rows")))
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s: no rows of one collection; weft compare takes runs "
                            "without a manifest",
                            path);
    WF_TRY(wf__run_path(app, folder, "stage.json", path));
    bool known;
    WF_TRY(wf__run_stages_read(app, path, &run->stages, &known));
    run->settings = json_object();
    const char *name;
    json_t *stage;
    json_object_foreach(run->stages, name, stage)
        json_object_update(run->settings, json_object_get(stage, "config"));
    WF_TRY(wf__run_json_complete(app, path, run->settings));
    if (!c->methods) return WF_OK;
    return cli_method_read(app, folder, run->eval, run->stages, run->settings,
                           cli_text(app, "out") != NULL, &run->method);
}

/* Runs that have no results yet are passed over. */
static wf_status read_runs(comparison *c) {
    wf_run_app *app = c->app;
    c->runs = calloc((size_t)app->n_arguments, sizeof *c->runs);
    if (c->runs == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < app->n_arguments; i++) {
        char path[WF_RUN_PATH];
        WF_TRY(wf__run_path(app, app->argument[i], "eval.json", path));
        if (!wf_file_exists(path)) {
            wf__run_say(app, "%s has no results yet (no eval.json): left out", app->argument[i]);
            continue;
        }
        WF_TRY(read_run(c, app->argument[i], &c->runs[c->n_runs++]));
    }
    if (c->n_runs > 0) return WF_OK;
    return wf__run_fail(app, WF_ERR_INPUT, "none of the folders holds results of weft run");
}

/* Settings that differ between the runs, in the order of the first run's file. */
static wf_status find_keys(comparison *c) {
    for (int run = 0; run < c->n_runs; run++) {
        const char *key;
        json_t *value;
        json_object_foreach(c->runs[run].settings, key, value) {
            /* Generators have settings of their own: the generator says enough. */
            if (c->methods && strcmp(key, "model.generator") != 0) continue;
            bool differs = false, known = strcmp(key, "data.fingerprint") == 0;
            for (int i = 0; i < c->n_runs; i++)
                differs |= strcmp(setting(&c->runs[i], key), setting(&c->runs[run], key)) != 0;
            for (int i = 0; i < c->n_keys; i++) known |= strcmp(c->keys[i], key) == 0;
            if (!differs || known) continue;
            if (c->n_keys == most_keys)
                return wf__run_fail(c->app, WF_ERR_USAGE,
                                    "the runs differ in more than %d settings; compare fewer",
                                    most_keys);
            c->keys[c->n_keys++] = key;
        }
    }
    return WF_OK;
}

static int by_setting(const void *a, const void *b) {
    const compared *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return strcmp(x->name, y->name);
}

static wf_status read_over(comparison *c) {
    if (c->over == NULL) return WF_OK;
    for (int i = 0; i < c->n_runs; i++) {
        char *end;
        const char *text = setting(&c->runs[i], c->over);
        if (text[0] == '\0')
            return wf__run_fail(c->app, WF_ERR_USAGE,
                                "--over %s: the run %s has no such setting; weft help recipe lists "
                                "them",
                                c->over, c->runs[i].name);
        c->runs[i].at = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(c->runs[i].at))
            return wf__run_fail(c->app, WF_ERR_USAGE,
                                "--over %s: \"%s\" in the run %s is no number", c->over, text,
                                c->runs[i].name);
    }
    qsort(c->runs, (size_t)c->n_runs, sizeof *c->runs, by_setting);
    return WF_OK;
}

/* "train.limit=100 train.seed=1"; without the key `but`. */
static void describe(const comparison *c, const compared *run, const char *but, char *out,
                     size_t size) {
    wf_text text = wf_text_start(out, size);
    if (c->methods) {
        wf_text_add(&text, "%s", run->method.label);
        return;
    }
    for (int i = 0; i < c->n_keys; i++) {
        if (but != NULL && strcmp(c->keys[i], but) == 0) continue;
        wf_text_add(&text, "%s%s=%s", text.length > 0 ? " " : "", c->keys[i],
                    setting(run, c->keys[i]));
    }
}

/* Whether two runs differ in nothing but --over. */
static bool alike(const comparison *c, const compared *a, const compared *b) {
    if (c->methods) return strcmp(a->method.label, b->method.label) == 0;
    for (int i = 0; i < c->n_keys; i++)
        if (strcmp(c->keys[i], c->over) != 0 &&
            strcmp(setting(a, c->keys[i]), setting(b, c->keys[i])) != 0)
            return false;
    return true;
}

/* --- rows ------------------------------------------------------------------------------------- */

static const json_t *row_named(const compared *run, const char *name) {
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(run->eval, "rows"), i, row) {
        const char *have = json_string_value(json_object_get(row, "name"));
        if (have != NULL && strcmp(have, name) == 0) return row;
    }
    return NULL;
}

/* A generated row. Runs without refinement have no refined row. */
static const json_t *generated_row(const compared *run, const struct kind *kind) {
    const char *generator = json_string_value(json_object_get(run->eval, "generator"));
    char name[80];
    snprintf(name, sizeof name, "%.60s%s", generator != NULL ? generator : WF_GENERATOR_DEFAULT,
             kind->ending);
    return row_named(run, name);
}

static wf_status add_line(comparison *c, const wf_eval_row *row, const char *name,
                          wf_report_role role, bool copies) {
    if (c->n_lines == c->line_room) {
        c->line_room = 2 * c->line_room + 16;
        line *more = realloc(c->lines, (size_t)c->line_room * sizeof *more);
        if (more == NULL) return wf__run_fail(c->app, WF_ERR_MEMORY, "out of memory");
        c->lines = more;
    }
    line *next = &c->lines[c->n_lines++];
    *next = (line){.row = *row, .role = role, .copies = copies};
    snprintf(next->row.name, sizeof next->row.name, "%s", name);
    return WF_OK;
}

/* The collection and held-out networks, once where the runs share them. */
static wf_status add_shared(comparison *c, const char *name, wf_report_role role) {
    for (int i = 0; i < c->n_runs; i++) {
        wf_eval_row row;
        const json_t *json = row_named(&c->runs[i], name);
        if (json == NULL || !wf__run_row_from_json(json, &row)) continue;
        bool known = false, any = false;
        for (int k = 0; k < i; k++) {
            const json_t *earlier = row_named(&c->runs[k], name);
            known |= earlier != NULL && json_equal(earlier, json);
            any |= earlier != NULL;
        }
        char label[160];
        snprintf(label, sizeof label, any ? "%s of %s" : "%s", name, c->runs[i].name);
        if (!known) {
            WF_TRY(add_line(c, &row, label, role, false));
            c->lines[c->n_lines - 1].points = cli_method_points(&c->runs[i].method, name);
        }
    }
    return WF_OK;
}

static wf_status add_generated(comparison *c) {
    for (int i = 0; i < c->n_runs; i++)
        for (int k = 0; k < most_kinds; k++) {
            wf_eval_row row;
            char label[160];
            const json_t *json = generated_row(&c->runs[i], &kinds[k]);
            if (json == NULL) continue;
            if (!wf__run_row_from_json(json, &row))
                return wf__run_fail(c->app, WF_ERR_INPUT, "%s: its %s row is not one of weft eval",
                                    c->runs[i].name, kinds[k].name);
            snprintf(label, sizeof label, "%s %s", c->runs[i].name, kinds[k].name);
            WF_TRY(add_line(c, &row, label, WF_REPORT_GENERATED,
                            json_is_true(json_object_get(json, "copies"))));
            c->lines[c->n_lines - 1].points = cli_method_points(&c->runs[i].method, row.name);
            if (k == 0) c->runs[i].method.row = row;
        }
    return WF_OK;
}

/* --- series ----------------------------------------------------------------------------------- */

static wf_status begin_series(comparison *c, const char *name, bool published) {
    if (c->n_series == most_series)
        return wf__run_fail(c->app, WF_ERR_USAGE, "more than %d lines to draw; compare fewer runs",
                            most_series);
    snprintf(c->series_name[c->n_series], sizeof c->series_name[0], "%s", name);
    c->series[c->n_series] = (wf_report_series){.name = c->series_name[c->n_series],
                                                .published = published,
                                                .x = c->x + c->n_points,
                                                .rows = c->rows + c->n_points};
    c->n_series++;
    return WF_OK;
}

static void add_point(comparison *c, double x, const wf_eval_row *row) {
    c->x[c->n_points] = x;
    c->rows[c->n_points++] = *row;
    c->series[c->n_series - 1].n++;
}

/* The runs that differ from run `first` in nothing but --over. */
static wf_status own_series(comparison *c, int first, const struct kind *kind) {
    char name[256], others[201];
    bool begun = false;
    describe(c, &c->runs[first], c->over, others, sizeof others);
    snprintf(name, sizeof name, "%s%s%s", others, others[0] != '\0' ? ", " : "", kind->name);
    for (int i = first; i < c->n_runs; i++) {
        wf_eval_row row;
        const json_t *json = generated_row(&c->runs[i], kind);
        if (json == NULL || !alike(c, &c->runs[first], &c->runs[i]) ||
            !wf__run_row_from_json(json, &row))
            continue;
        if (!begun) WF_TRY(begin_series(c, name, false));
        begun = true;
        add_point(c, c->runs[i].at, &row);
    }
    return WF_OK;
}

static wf_status published_series(comparison *c) {
    size_t i, k;
    const json_t *series, *json;
    json_array_foreach(json_object_get(c->beside, "series"), i, series) {
        const char *name = json_string_value(json_object_get(series, "name"));
        WF_TRY(begin_series(c, name != NULL ? name : "published", true));
        json_array_foreach(json_object_get(series, "rows"), k, json) {
            wf_eval_row row;
            char label[160];
            const json_t *at = json_object_get(json, "at");
            if (!json_is_number(at) || !wf__run_row_from_json(json, &row))
                return wf__run_fail(c->app, WF_ERR_INPUT,
                                    "%s: row %zu of series %zu needs at, name and n",
                                    cli_text(c->app, "beside"), k, i);
            add_point(c, json_number_value(at), &row);
            snprintf(label, sizeof label, "%.60s %g", c->series_name[c->n_series - 1],
                     json_number_value(at));
            WF_TRY(add_line(c, &row, label, WF_REPORT_CONTROL, false));
        }
    }
    return WF_OK;
}

static int published_points(const comparison *c) {
    size_t i, points = 0;
    const json_t *series;
    json_array_foreach(json_object_get(c->beside, "series"), i, series) points +=
        json_array_size(json_object_get(series, "rows"));
    return (int)points;
}

static wf_status make_series(comparison *c) {
    size_t room = (size_t)(most_kinds * c->n_runs + published_points(c) + 1);
    c->x = calloc(room, sizeof *c->x);
    c->rows = calloc(room, sizeof *c->rows);
    if (c->x == NULL || c->rows == NULL)
        return wf__run_fail(c->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < c->n_runs; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++) seen |= alike(c, &c->runs[i], &c->runs[k]);
        for (int k = 0; k < most_kinds && !seen; k++) WF_TRY(own_series(c, i, &kinds[k]));
    }
    return published_series(c);
}

/* --- results ---------------------------------------------------------------------------------- */

static json_t *to_json(const comparison *c) {
    json_t *keys = json_array(), *runs = json_array();
    for (int i = 0; i < c->n_keys; i++) json_array_append_new(keys, json_string(c->keys[i]));
    for (int i = 0; i < c->n_runs; i++) {
        const compared *run = &c->runs[i];
        json_t *settings = json_object(), *seconds = json_object();
        for (int k = 0; k < c->n_keys; k++)
            json_object_set_new(settings, c->keys[k], json_string(setting(run, c->keys[k])));
        for (int stage = 0; stage < WF_STAGES; stage++)
            json_object_set_new(
                seconds, wf__run_stage_name((wf_stage)stage),
                wf__run_json_number(cli_stage_seconds(run->stages, (wf_stage)stage)));
        json_array_append_new(runs, json_pack("{s:s, s:o, s:o, s:O?, s:O?, s:O?}", "run", run->name,
                                              "settings", settings, "seconds", seconds, "rows",
                                              json_object_get(run->eval, "rows"), "scales",
                                              json_object_get(run->eval, "scales"), "novelty",
                                              json_object_get(run->eval, "novelty")));
        if (c->methods)
            json_object_set_new(json_array_get(runs, (size_t)i), "method",
                                cli_method_to_json(&run->method, run->stages));
    }
    return json_pack("{s:o, s:o}", "differ", keys, "runs", runs);
}

static wf_status print_table(const comparison *c, bool auc) {
    wf_eval_row *rows = calloc((size_t)c->n_lines + 1, sizeof *rows);
    bool *copies = calloc((size_t)c->n_lines + 1, sizeof *copies);
    if (rows == NULL || copies == NULL) {
        free(rows);
        free(copies);
        return wf__run_fail(c->app, WF_ERR_MEMORY, "out of memory");
    }
    for (int i = 0; i < c->n_lines; i++) rows[i] = c->lines[i].row, copies[i] = c->lines[i].copies;
    cli_print_rows(rows, c->n_lines, auc, copies);
    free(rows);
    free(copies);
    cli_print("\n");
    if (c->methods) cli_print_methods_head();
    for (int i = 0; c->methods && i < c->n_runs; i++)
        cli_print_method(c->runs[i].name, &c->runs[i].method, c->runs[i].stages);
    for (int i = 0; !c->methods && i < c->n_runs; i++) {
        char what[1024], took[32];
        describe(c, &c->runs[i], NULL, what, sizeof what);
        wf__run_duration(cli_stage_seconds(c->runs[i].stages, WF_STAGE_TRAINING), took);
        cli_print("%s: %s%straining %s\n", c->runs[i].name, what, what[0] != '\0' ? ", " : "",
                  took);
    }
    return WF_OK;
}

static wf_status write_page(const comparison *c, bool auc, const char *path) {
    wf_report_entry *entries = calloc((size_t)c->n_lines + 1, sizeof *entries);
    wf_report_fact *facts = calloc((size_t)c->n_runs, sizeof *facts);
    wf_report_log *logs = calloc((size_t)c->n_runs, sizeof *logs);
    char(*texts)[1024] = calloc((size_t)c->n_runs, sizeof *texts);
    wf_status status = WF_OK;
    int n_logs = 0;
    if (entries == NULL || facts == NULL || texts == NULL || logs == NULL)
        status = wf__run_fail(c->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; status == WF_OK && i < c->n_lines; i++)
        entries[i] = (wf_report_entry){.role = c->lines[i].role,
                                       .row = &c->lines[i].row,
                                       .points = c->lines[i].points,
                                       .copies = c->lines[i].copies};
    for (int i = 0; status == WF_OK && i < c->n_runs; i++) {
        describe(c, &c->runs[i], NULL, texts[i], sizeof texts[i]);
        if (c->methods)
            cli_method_text(&c->runs[i].method, c->runs[i].stages, texts[i], sizeof texts[i]);
        facts[i] = (wf_report_fact){c->runs[i].name, texts[i]};
        const cli_method *method = &c->runs[i].method;
        if (method->log[0] != '\0')
            logs[n_logs++] = (wf_report_log){c->runs[i].name, method->log, method->log_digest};
    }
    if (status == WF_OK) {
        char summary[200];
        snprintf(summary, sizeof summary,
                 c->methods
                     ? "%d runs of several generators: sizes, updates, seconds, variants of JWS."
                     : "%d runs, and in what they differ.",
                 c->n_runs);
        wf_report_sweep sweep = {c->over != NULL ? c->over : "", c->series, c->n_series};
        wf_report_desc desc = wf_report_desc_default();
        desc.title = "weft: runs side by side";
        desc.summary = summary;
        desc.score = auc ? WF_SCORE_AUC : WF_SCORE_ACCURACY;
        desc.entries = entries;
        desc.n_entries = c->n_lines;
        desc.facts = facts;
        desc.n_facts = c->n_runs;
        desc.sweep = &sweep;
        desc.logs = logs;
        desc.n_logs = n_logs;
        status = wf_report_write(c->app->ctx, &desc, path);
    }
    free(entries);
    free(facts);
    free(logs);
    free(texts);
    return status;
}

static wf_status compare(comparison *c) {
    wf_run_app *app = c->app;
    const char *beside = cli_text(app, "beside"), *page = cli_text(app, "out");
    c->over = cli_text(app, "over");
    if (beside != NULL && c->over == NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--beside needs --over: its numbers stand over a setting");
    WF_TRY(wf__run_lock_file(app, page));
    c->methods = cli_flag(app, "methods");
    WF_TRY(read_runs(c));
    if (beside != NULL) WF_TRY(wf__run_json_read(app, beside, &c->beside));
    WF_TRY(find_keys(c));
    WF_TRY(read_over(c));
    WF_TRY(add_shared(c, "reference", WF_REPORT_REFERENCE));
    WF_TRY(add_shared(c, "held-out", WF_REPORT_HELD_OUT));
    WF_TRY(add_generated(c));
    if (c->over != NULL) WF_TRY(make_series(c));
    bool auc = strcmp(setting(&c->runs[0], "eval.score"), "auc") == 0;
    if (page != NULL) WF_TRY(write_page(c, auc, page));
    return app->json ? cli_print_json(app, to_json(c)) : print_table(c, auc);
}

wf_status cli_compare(wf_run_app *app) {
    comparison *c = calloc(1, sizeof *c);
    if (c == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    c->app = app;
    wf_status status = compare(c);
    for (int i = 0; c->runs != NULL && i < app->n_arguments; i++) {
        json_decref(c->runs[i].eval);
        json_decref(c->runs[i].stages);
        json_decref(c->runs[i].settings);
        cli_method_free(&c->runs[i].method);
    }
    json_decref(c->beside);
    free(c->runs);
    free(c->lines);
    free(c->x);
    free(c->rows);
    free(c);
    return status;
}
