#include "run/eval_rows.h"

#include "run/outputs.h"

#include <stdlib.h>
#include <string.h>

static const char refined_ending[] = "-refined";

const char *wf__run_generated_name(const wf_run_recipe *recipe, char out[64]) {
    snprintf(out, 64, "%s%s", recipe->generator,
             recipe->sample.refine_cycles > 0 ? refined_ending : "");
    return out;
}

/* --- names ------------------------------------------------------------------------------------ */

static wf_status append(wf_run_app *app, wf_run_eval_rows *rows, const char *name, int length,
                        wf_run_eval_row **out) {
    wf_run_eval_row *list = realloc(rows->list, (size_t)(rows->n + 1) * sizeof *list);
    if (list == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    rows->list = list;
    *out = &list[rows->n++];
    **out = (wf_run_eval_row){.kind = WF_RUN_ROW_REFERENCE};
    snprintf((*out)->name, sizeof(*out)->name, "%.*s", length, name);
    return WF_OK;
}

/* A generator that needs no fit; without the number that its name may have, the best of those
 * with. */
static wf_status set_control(wf_run_app *app, wf_run_eval_row *row) {
    WF_TRY(wf_generator_named(app->ctx, row->name, &row->generator, &row->options));
    if (row->generator->fit != NULL)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "eval.rows names %s, which has to be fitted; a run fits one generator, "
            "model.generator. Make a run of its own; weft compare puts runs side by side",
            row->name);
    bool bare = strcmp(row->generator->name, row->name) == 0;
    row->kind = bare && row->generator->variants != NULL ? WF_RUN_ROW_BEST : WF_RUN_ROW_CONTROL;
    return WF_OK;
}

static wf_status add_row(wf_run_app *app, const wf_run_recipe *recipe, const char *held_out,
                         const char *name, int length, wf_run_eval_rows *rows) {
    wf_run_eval_row *row = NULL;
    char refined[64];
    WF_TRY(append(app, rows, name, length, &row));
    for (int i = 0; i + 1 < rows->n; i++)
        if (strcmp(rows->list[i].name, row->name) == 0)
            return wf__run_fail(app, WF_ERR_USAGE, "eval.rows names %s twice", row->name);
    snprintf(refined, sizeof refined, "%s%s", recipe->generator, refined_ending);
    if (strcmp(row->name, "reference") == 0) row->kind = WF_RUN_ROW_REFERENCE;
    else if (strcmp(row->name, held_out) == 0) row->kind = WF_RUN_ROW_HELD_OUT;
    else if (strcmp(row->name, recipe->generator) == 0) row->kind = WF_RUN_ROW_GENERATED;
    else if (strcmp(row->name, refined) == 0) row->kind = WF_RUN_ROW_REFINED;
    else return set_control(app, row);
    if (row->kind == WF_RUN_ROW_REFINED && recipe->sample.refine_cycles == 0)
        return wf__run_fail(app, WF_ERR_USAGE, "eval.rows names %s, but sample.refine_cycles is 0",
                            row->name);
    return WF_OK;
}

/* "0.05,0.10" of perturbation: perturbation-0.05, perturbation-0.10, perturbation. */
static wf_status add_controls(wf_run_app *app, const wf_run_recipe *recipe, const char *held_out,
                              wf_run_eval_rows *rows) {
    const wf_generator_kind *kind;
    for (int i = 0; (kind = wf_generator_at(i)) != NULL; i++) {
        if (kind->fit != NULL || kind == recipe->kind) continue;
        for (const char *at = kind->variants; at != NULL && *at != '\0';) {
            char name[64];
            int length = (int)strcspn(at, ",");
            snprintf(name, sizeof name, "%s-%.*s", kind->name, length, at);
            WF_TRY(add_row(app, recipe, held_out, name, -1, rows));
            at += length + (at[length] == ',');
        }
        WF_TRY(add_row(app, recipe, held_out, kind->name, -1, rows));
    }
    return WF_OK;
}

static wf_status add_defaults(wf_run_app *app, const wf_run_recipe *recipe, const char *held_out,
                              bool controls, wf_run_eval_rows *rows) {
    char refined[64];
    WF_TRY(add_row(app, recipe, held_out, "reference", -1, rows));
    WF_TRY(add_row(app, recipe, held_out, held_out, -1, rows));
    if (controls) WF_TRY(add_controls(app, recipe, held_out, rows));
    WF_TRY(add_row(app, recipe, held_out, recipe->generator, -1, rows));
    if (recipe->sample.refine_cycles == 0) return WF_OK;
    return add_row(app, recipe, held_out, wf__run_generated_name(recipe, refined), -1, rows);
}

wf_status wf__run_eval_rows_read(wf_run_app *app, const wf_run_recipe *recipe, const char *held_out,
                                 bool controls, wf_run_eval_rows *out) {
    *out = (wf_run_eval_rows){.listed = recipe->rows != NULL};
    if (!out->listed) return add_defaults(app, recipe, held_out, controls, out);
    for (const char *at = recipe->rows;;) {
        at += strspn(at, " ");
        int length = (int)strcspn(at, ","), end = length;
        while (end > 0 && at[end - 1] == ' ') end--;
        if (end == 0 || end > 63)
            return wf__run_fail(app, WF_ERR_USAGE,
                                "eval.rows is %s; write names of rows with commas between them",
                                recipe->rows);
        WF_TRY(add_row(app, recipe, held_out, at, end, out));
        if (at[length] == '\0') return WF_OK;
        at += length + 1;
    }
}

void wf__run_eval_rows_free(wf_run_eval_rows *rows) {
    for (int i = 0; i < rows->n; i++) free(rows->list[i].options);
    free(rows->list);
    *rows = (wf_run_eval_rows){0};
}

/* --- networks --------------------------------------------------------------------------------- */

static wf_status load_file(wf_run_app *app, const char *path, const wf_graph *graph,
                           float **weights, size_t *n) {
    wf_zoo *zoo;
    WF_TRY(wf_zoo_open(app->ctx, path, &zoo));
    wf_status status = WF_OK;
    if (!wf_graph_equal(wf_zoo_graph(zoo), graph))
        status = wf__run_fail(app, WF_ERR_SHAPE, "%s has networks of %s, the collection has %s",
                              path, wf_zoo_graph(zoo)->text, graph->text);
    *n = wf_zoo_count(zoo);
    if (status == WF_OK) status = wf_zoo_load(app->ctx, zoo, 0, *n, weights);
    wf_zoo_free(zoo);
    return status;
}

static wf_status sample_control(const wf_run_judging *what, const wf_run_eval_row *row,
                                float **weights, size_t *n) {
    const wf_run_recipe *recipe = what->recipe;
    wf_ctx *ctx = what->app->ctx;
    wf_generator *generator;
    bool keeps = (row->generator->traits & WF_GENERATOR_KEEPS_COLLECTION) != 0;
    if (keeps && what->zoo == NULL) return WF_OK;
    wf_generator_open_desc open = {
        .kind = row->generator, .zoo = what->zoo, .options = row->options};
    WF_TRY(wf_generator_open(ctx, &open, &generator));
    *n = recipe->sample_count;
    *weights = calloc(*n, what->graph->n_params * sizeof **weights);
    wf_status status = WF_OK;
    if (*weights == NULL)
        status = wf__run_fail(what->app, WF_ERR_MEMORY, "%zu networks of %s do not fit in memory",
                              *n, row->name);
    wf_sample_desc sample = recipe->sample;
    sample.refine_cycles = 0;
    wf_generator_request request = {
        .graph = what->graph, .n = *n, .sample = &sample, .weights = *weights};
    if (status == WF_OK) status = wf_generator_sample(ctx, generator, &request);
    wf_generator_free(generator);
    return status;
}

/* The networks of a row, (*n, n_params); *weights stays NULL where there are none: nothing was held
 * out, or a control lacks its collection. */
static wf_status row_networks(const wf_run_judging *what, const wf_run_eval_row *row,
                              float **weights, size_t *n) {
    if (row->kind == WF_RUN_ROW_CONTROL) return sample_control(what, row, weights, n);
    const char *path = row->kind == WF_RUN_ROW_HELD_OUT    ? what->held_out
                       : row->kind == WF_RUN_ROW_GENERATED ? what->generated
                                                           : what->refined;
    if (row->kind == WF_RUN_ROW_GENERATED && what->nets != NULL) {
        *n = wf_zoo_count(what->nets);
        return wf_zoo_load(what->app->ctx, what->nets, 0, *n, weights);
    }
    if (path == NULL || (row->kind == WF_RUN_ROW_HELD_OUT && !wf__run_exists(what->app, path)))
        return WF_OK;
    return load_file(what->app, path, what->graph, weights, n);
}

/* --- judging ---------------------------------------------------------------------------------- */

/* Networks of another architecture than the collection's have a score only. */
static wf_status judge_scores(const wf_run_judging *what, const char *name, const float *weights,
                              size_t n, wf_run_judged *out) {
    float *scores = calloc(n + 1, sizeof *scores);
    if (scores == NULL) return wf__run_fail(what->app, WF_ERR_MEMORY, "out of memory");
    wf_status status = wf_score_networks(what->app->ctx, what->graph, weights, n, what->data,
                                         what->recipe->eval.score, scores, NULL);
    if (status != WF_OK) {
        free(scores);
        return status;
    }
    wf__run_row_of_scores(name, scores, n, &out->row);
    out->points = (wf_points){.n = n, .accuracy = scores};
    out->has_scores = true;
    return WF_OK;
}

static wf_status judge_networks(const wf_run_judging *what, const wf_run_eval_row *row,
                                wf_run_judged *out) {
    float *weights = NULL;
    size_t n = 0;
    wf_status status = row_networks(what, row, &weights, &n);
    if (status == WF_OK && weights != NULL && what->reference == NULL)
        status = judge_scores(what, row->name, weights, n, out);
    else if (status == WF_OK && weights != NULL) {
        status = wf_eval_networks(what->app->ctx, what->reference, row->name, weights, n, &out->row,
                                  &out->points);
        out->has_points = status == WF_OK;
        out->copies = status == WF_OK && wf_report_is_copy(&out->points);
    }
    free(weights);
    return status;
}

static wf_status judge_reference(const wf_run_judging *what, wf_run_judged *out) {
    if (what->reference == NULL) return WF_OK;
    WF_TRY(wf_eval_reference(what->app->ctx, what->reference, &out->row, &out->points));
    snprintf(out->row.name, sizeof out->row.name, "reference");
    out->has_points = true;
    return WF_OK;
}

/* The best row of the same generator above this one, by JWS; without JWS the first. */
static void copy_best(const wf_run_judged *judged, int n, const wf_run_eval_row *row,
                      wf_run_judged *out) {
    const wf_run_judged *best = NULL;
    for (int i = 0; i < n; i++) {
        bool same =
            judged[i].of->kind == WF_RUN_ROW_CONTROL && judged[i].of->generator == row->generator;
        if (same && (best == NULL || judged[i].row.jws > best->row.jws)) best = &judged[i];
    }
    if (best == NULL) return;
    out->row = best->row;
    out->copies = best->copies;
    snprintf(out->row.name, sizeof out->row.name, "%s", row->name);
}

wf_status wf__run_judge_rows(const wf_run_judging *what, const wf_run_eval_rows *rows,
                             wf_run_judged **out, int *n) {
    *n = 0;
    *out = calloc((size_t)rows->n, sizeof **out);
    if (*out == NULL) return wf__run_fail(what->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < rows->n; i++) {
        const wf_run_eval_row *row = &rows->list[i];
        wf_run_judged *next = &(*out)[*n];
        if (row->kind == WF_RUN_ROW_BEST) copy_best(*out, *n, row, next);
        else if (row->kind == WF_RUN_ROW_REFERENCE) WF_TRY(judge_reference(what, next));
        else WF_TRY(judge_networks(what, row, next));
        if (next->row.name[0] == '\0' && what->whole)
            return wf__run_fail(what->app, WF_ERR_USAGE, "eval.rows names %s, but %s", row->name,
                                row->kind == WF_RUN_ROW_BEST
                                    ? "no row with a number that it is the best of"
                                    : "there are no such networks");
        next->of = row;
        *n += next->row.name[0] != '\0';
    }
    return WF_OK;
}

void wf__run_judged_free(wf_run_judged *judged, int n) {
    for (int i = 0; judged != NULL && i < n; i++)
        if (judged[i].has_points || judged[i].has_scores) wf_points_free(&judged[i].points);
    free(judged);
}
