/* evaluate_tasks: what a generator of many tasks makes, beside networks trained alike, for every
 * task and width: in each cell a loop over the rows that the recipe lists (eval_rows.h).
 *
 * At the collections' own width (1) networks are judged against the collection, with all that
 * weft eval has. At other widths there is no collection, and scores stand beside those of
 * networks trained from scratch. The gap is generated minus scratch, at width 1 generated minus
 * the collection. */
#include "run/eval_rows.h"
#include "run/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One task at one width. */
typedef struct cell {
    int source;
    double width;
    char arch[256];
    wf_run_judged *rows; /* [n_rows] */
    int n_rows;
} cell;

static const wf_eval_row *row_of(const cell *c, wf_run_row_kind kind) {
    for (int i = 0; i < c->n_rows; i++)
        if (c->rows[i].of->kind == kind) return &c->rows[i].row;
    return NULL;
}

/* Networks trained alike: the collection where it was scored, else the scratch ones. */
static double trained_score(const cell *c) {
    const wf_eval_row *row = row_of(c, WF_RUN_ROW_REFERENCE);
    if (row == NULL) row = row_of(c, WF_RUN_ROW_HELD_OUT);
    return row != NULL ? row->accuracy_mean : NAN;
}

static double generated_score(const cell *c) {
    const wf_eval_row *row = row_of(c, WF_RUN_ROW_REFINED);
    if (row == NULL) row = row_of(c, WF_RUN_ROW_GENERATED);
    return row != NULL ? row->accuracy_mean : NAN;
}

static wf_status judge_cell(wf_run_job *r, const wf_run_eval_rows *rows, int source, double width,
                            cell *c) {
    const wf_run_tasks *t = r->tasks;
    const wf_zoo *zoo = width == 1 ? t->sources.list[source].zoo : NULL;
    const wf_dataset *data = t->task[source].data;
    wf_reference *reference = NULL;
    wf_graph *graph;
    char held_out[WF_RUN_PATH], nets[WF_RUN_PATH], direct[WF_RUN_PATH];
    *c = (cell){.source = source, .width = width};
    WF_TRY(wf__run_tasks_file(r, r->paths.held_out, source, width, held_out));
    WF_TRY(wf__run_tasks_file(r, r->paths.nets, source, width, nets));
    WF_TRY(wf__run_tasks_file(r, r->paths.direct, source, width, direct));
    WF_TRY(wf__run_tasks_graph(r, source, width, &graph));
    snprintf(c->arch, sizeof c->arch, "%s", graph->text);
    wf_status status = WF_OK;
    if (zoo != NULL)
        status = wf_reference_open(r->app->ctx, zoo, data, &r->recipe.eval, &reference);
    wf_run_judging what = {.app = r->app,
                           .recipe = &r->recipe,
                           .reference = reference,
                           .data = data,
                           .held_out = held_out,
                           .generated = r->recipe.sample.refine_cycles > 0 ? direct : nets,
                           .refined = nets,
                           .zoo = zoo,
                           .graph = graph};
    if (status == WF_OK && (zoo != NULL || data != NULL))
        status = wf__run_judge_rows(&what, rows, &c->rows, &c->n_rows);
    wf_reference_free(reference);
    wf_graph_free(graph);
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

static json_t *cell_rows(const wf_run_job *r, const cell *c, json_t *list) {
    const wf_run_sources *sources = &r->tasks->sources;
    for (int i = 0; i < c->n_rows; i++) {
        json_t *row = wf__run_row_to_json(&c->rows[i].row);
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
                     wf__run_json_number(count > 0 ? sum / count : NAN), "collections", count);
}

/* What has to be said about the data of a task, as that they were regenerated. */
static void add_note(const wf_run_tasks *t, int source, json_t *notes) {
    const wf_dataset *data = t->task[source].data;
    if (data == NULL || data->note[0] == '\0') return;
    json_object_set_new(notes, t->sources.text[source].label, json_string(data->note));
}

/* What the manifest quotes for this cell. */
static void add_paper(const wf_run_tasks *t, const cell *c, json_t *list) {
    double trained, generated;
    if (!wf__run_sources_paper(&t->sources, c->source, c->width, &trained, &generated)) return;
    json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "collection",
                                          t->sources.text[c->source].label, "width", c->width,
                                          "trained", trained, "generated", generated));
}

static wf_status write_results(wf_run_job *r, const cell *cells, int n) {
    const wf_run_tasks *t = r->tasks;
    json_t *rows = json_array(), *gaps = json_array(), *notes = json_object(),
           *paper = json_array();
    for (int i = 0; i < n; i++) cell_rows(r, &cells[i], rows);
    for (int i = 0; i < n; i++) add_paper(t, &cells[i], paper);
    for (int w = 0; w < t->n_widths; w++)
        json_array_append_new(gaps, mean_gap(cells, n, t->width[w]));
    for (int i = 0; i < t->sources.n; i++) add_note(t, i, notes);
    json_t *json = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s}", "recipe", r->recipe.name,
                             "generator", r->recipe.generator, "rows", rows, "gaps", gaps, "paper",
                             paper, "data_notes", notes, "version", WF_VERSION);
    wf_status status = wf__run_json_write(r->app, r->paths.eval, json);
    json_decref(json);
    return status;
}

static wf_status judge_cells(wf_run_job *r, const wf_run_eval_rows *rows, cell *cells) {
    const wf_run_tasks *t = r->tasks;
    for (int i = 0; i < t->sources.n; i++)
        for (int w = 0; w < t->n_widths; w++) {
            WF_TRY(judge_cell(r, rows, i, t->width[w], &cells[i * t->n_widths + w]));
            if (wf_interrupted(r->app->ctx))
                return wf__run_fail(r->app, WF_ERR_INTERRUPTED, "interrupted between two tasks");
        }
    return WF_OK;
}

wf_status wf__run_tasks_evaluation(wf_run_job *r) {
    const wf_run_tasks *t = r->tasks;
    WF_TRY(wf__run_sources_open(r->app, &r->tasks->sources));
    int n = t->sources.n * t->n_widths;
    cell *cells = calloc((size_t)n, sizeof *cells);
    if (cells == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    wf_run_eval_rows rows;
    wf_status status = wf__run_eval_rows_read(r->app, &r->recipe, "scratch", false, &rows);
    if (status == WF_OK) status = judge_cells(r, &rows, cells);
    if (status == WF_OK) status = write_results(r, cells, n);
    for (int i = 0; i < n; i++) wf__run_judged_free(cells[i].rows, cells[i].n_rows);
    free(cells);
    wf__run_eval_rows_free(&rows);
    return status;
}
