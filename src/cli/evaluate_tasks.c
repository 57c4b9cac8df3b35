/* evaluate_tasks: what a flow of many tasks makes, beside networks trained alike, for every task and width.
 *
 * At the collections' own width (1) generated networks are judged against the collection, with all that
 * weft eval has; at other widths there is no collection, and scores stand beside those of networks trained from scratch. The
 * gap is generated minus scratch, at width 1 generated minus the collection. */
#include "cli/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_rows = 4 };

/* One task at one width. */
typedef struct cell {
    int source;
    double width;
    char arch[256];
    wf_eval_row rows[max_rows];
    int n_rows;
} cell;

static const wf_eval_row *row_named(const cell *c, const char *name) {
    for (int i = 0; i < c->n_rows; i++)
        if (strcmp(c->rows[i].name, name) == 0) return &c->rows[i];
    return NULL;
}

/* Networks trained alike: the collection where it was scored, else the scratch ones. */
static double trained_score(const cell *c) {
    const wf_eval_row *row = row_named(c, "reference");
    if (row == NULL) row = row_named(c, "scratch");
    return row != NULL ? row->accuracy_mean : NAN;
}

static double generated_score(const cell *c) {
    const wf_eval_row *row = row_named(c, "gmn-refined");
    if (row == NULL) row = row_named(c, "gmn");
    return row != NULL ? row->accuracy_mean : NAN;
}

/* The file's networks as a row: against the reference where there is one, else their scores. */
static wf_status judge(cli_job *r, const wf_reference *reference, const char *name,
                       const char *path, cell *c) {
    wf_ctx *ctx = r->app->ctx;
    wf_zoo *zoo;
    float *weights = NULL, *scores = NULL;
    const wf_dataset *data = r->tasks->task[c->source].data;
    CLI_TRY(wf_zoo_open(ctx, path, &zoo));
    size_t n = wf_zoo_count(zoo);
    wf_eval_row *row = &c->rows[c->n_rows];
    wf_status status = wf_zoo_load(ctx, zoo, 0, n, &weights);
    if (status == WF_OK && reference != NULL)
        status = wf_eval_networks(ctx, reference, name, weights, n, row, NULL);
    else if (status == WF_OK) {
        scores = calloc(n + 1, sizeof *scores);
        if (scores == NULL) status = cli_fail(r->app, WF_ERR_MEMORY, "out of memory");
        else
            status = wf_score_networks(ctx, wf_zoo_graph(zoo), weights, n, data,
                                       r->recipe.eval.score, scores, NULL);
        if (status == WF_OK) cli_row_of_scores(name, scores, n, row);
    }
    if (status == WF_OK) c->n_rows++;
    free(weights);
    free(scores);
    wf_zoo_free(zoo);
    return status;
}

static wf_status judge_files(cli_job *r, const wf_reference *reference, cell *c) {
    char path[CLI_PATH];
    CLI_TRY(cli_tasks_file(r, r->paths.held_out, c->source, c->width, path));
    if (wf_file_exists(path)) CLI_TRY(judge(r, reference, "scratch", path, c));
    bool refined = r->recipe.sample.refine_cycles > 0;
    if (refined) {
        CLI_TRY(cli_tasks_file(r, r->paths.direct, c->source, c->width, path));
        CLI_TRY(judge(r, reference, "gmn", path, c));
    }
    CLI_TRY(cli_tasks_file(r, r->paths.nets, c->source, c->width, path));
    return judge(r, reference, refined ? "gmn-refined" : "gmn", path, c);
}

static wf_status judge_native(cli_job *r, cell *c) {
    const cli_tasks *t = r->tasks;
    wf_reference *reference;
    CLI_TRY(wf_reference_open(r->app->ctx, t->sources.list[c->source].zoo, t->task[c->source].data,
                              &r->recipe.eval, &reference));
    wf_points points;
    wf_status status = wf_eval_reference(r->app->ctx, reference, &c->rows[0], &points);
    if (status == WF_OK) {
        snprintf(c->rows[0].name, sizeof c->rows[0].name, "reference");
        c->n_rows = 1;
        wf_points_free(&points);
        status = judge_files(r, reference, c);
    }
    wf_reference_free(reference);
    return status;
}

static wf_status judge_cell(cli_job *r, int source, double width, cell *c) {
    wf_graph *graph;
    c->source = source;
    c->width = width;
    CLI_TRY(cli_tasks_graph(r, source, width, &graph));
    snprintf(c->arch, sizeof c->arch, "%s", graph->text);
    wf_graph_free(graph);
    if (width == 1) return judge_native(r, c);
    return r->tasks->task[source].data != NULL ? judge_files(r, NULL, c) : WF_OK;
}

/* --- results -------------------------------------------------------------------------------------- */

static json_t *cell_rows(const cli_job *r, const cell *c, json_t *list) {
    const cli_sources *sources = &r->tasks->sources;
    for (int i = 0; i < c->n_rows; i++) {
        json_t *row = cli_row_to_json(&c->rows[i]);
        json_object_set_new(row, "task", json_string(sources->list[c->source].task));
        json_object_set_new(row, "collection", json_string(sources->text[c->source].label));
        json_object_set_new(row, "width", json_real(c->width));
        json_object_set_new(row, "arch", json_string(c->arch));
        json_array_append_new(list, row);
    }
    return list;
}

/* Mean of the gaps at a width over the tasks that have one. */
static json_t *mean_gap(const cell *cells, int n, double width) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < n; i++) {
        double gap = generated_score(&cells[i]) - trained_score(&cells[i]);
        if (cells[i].width != width || !isfinite(gap)) continue;
        sum += gap;
        count++;
    }
    return json_pack("{s:f, s:o, s:i}", "width", width, "gap",
                     cli_json_number(count > 0 ? sum / count : NAN), "collections", count);
}

/* What has to be said about the data of a task, as that they were regenerated. */
static void add_note(const cli_tasks *t, int source, json_t *notes) {
    const wf_dataset *data = t->task[source].data;
    if (data == NULL || data->note[0] == '\0') return;
    json_object_set_new(notes, t->sources.text[source].label, json_string(data->note));
}

/* What the manifest quotes for this cell. */
static void add_paper(const cli_tasks *t, const cell *c, json_t *list) {
    double trained, generated;
    if (!cli_sources_paper(&t->sources, c->source, c->width, &trained, &generated)) return;
    json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "collection",
                                          t->sources.text[c->source].label, "width", c->width,
                                          "trained", trained, "generated", generated));
}

static wf_status write_results(cli_job *r, const cell *cells, int n) {
    const cli_tasks *t = r->tasks;
    json_t *rows = json_array(), *gaps = json_array(), *notes = json_object(),
           *paper = json_array();
    for (int i = 0; i < n; i++) cell_rows(r, &cells[i], rows);
    for (int i = 0; i < n; i++) add_paper(t, &cells[i], paper);
    for (int w = 0; w < t->n_widths; w++)
        json_array_append_new(gaps, mean_gap(cells, n, t->width[w]));
    for (int i = 0; i < t->sources.n; i++) add_note(t, i, notes);
    json_t *json =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:s}", "recipe", r->recipe.name, "rows", rows, "gaps",
                  gaps, "paper", paper, "data_notes", notes, "version", WF_VERSION);
    wf_status status = cli_json_write(r->app, r->paths.eval, json);
    json_decref(json);
    return status;
}

wf_status cli_tasks_evaluation(cli_job *r) {
    const cli_tasks *t = r->tasks;
    if (t->sources.list[0].zoo == NULL) CLI_TRY(cli_sources_open(r->app, &r->tasks->sources));
    int n = t->sources.n * t->n_widths, at = 0;
    cell *cells = calloc((size_t)n, sizeof *cells);
    if (cells == NULL) return cli_fail(r->app, WF_ERR_MEMORY, "out of memory");
    wf_status status = WF_OK;
    for (int i = 0; status == WF_OK && i < t->sources.n; i++)
        for (int w = 0; status == WF_OK && w < t->n_widths; w++, at++) {
            status = judge_cell(r, i, t->width[w], &cells[at]);
            if (status == WF_OK && wf_interrupted(r->app->ctx))
                status = cli_fail(r->app, WF_ERR_INTERRUPTED, "interrupted between two tasks");
        }
    if (status == WF_OK) status = write_results(r, cells, n);
    free(cells);
    return status;
}
