/* evaluate_run: the table of a run, judged row by row (eval_rows.h), and its files. */
#include "run/eval_rows.h"
#include "run/pipeline.h"

#include <stdlib.h>

typedef struct evaluation {
    wf_run_app *app;
    const wf_run_recipe *recipe;
    const wf_zoo *zoo;
    const wf_reference *reference;
    wf_run_judged *rows;
    int n;
} evaluation;

static json_t *results(const evaluation *e, const wf_dataset *data) {
    json_t *rows = json_array(), *novelty = json_object();
    for (int i = 0; i < e->n; i++) {
        const wf_run_judged *judged = &e->rows[i];
        json_t *row = wf__run_row_to_json(&judged->row);
        json_object_set_new(row, "copies", json_boolean(judged->copies));
        json_array_append_new(rows, row);
        if (judged->of->kind == WF_RUN_ROW_GENERATED || judged->of->kind == WF_RUN_ROW_REFINED)
            json_object_set_new(novelty, judged->row.name,
                                wf__run_novelty_to_json(&judged->points));
    }
    double scales[3];
    wf_reference_scales(e->reference, scales);
    const wf_graph *graph = wf_zoo_graph(e->zoo);
    return json_pack("{s:s, s:s, s:o, s:[o,o,o], s:s, s:o, s:s, s:s, s:s, s:I, s:s}", "recipe",
                     e->recipe->name, "generator", e->recipe->generator, "rows", rows, "scales",
                     wf__run_json_number(scales[0]), wf__run_json_number(scales[1]),
                     wf__run_json_number(scales[2]), "notes", wf_reference_notes(e->reference),
                     "novelty", novelty, "data", data != NULL ? data->name : "", "data_note",
                     data != NULL ? data->note : "", "arch", graph->text, "networks",
                     (json_int_t)wf_zoo_count(e->zoo), "version", WF_VERSION);
}

static json_t *clouds(const evaluation *e) {
    json_t *list = json_array();
    for (int i = 0; i < e->n; i++)
        if (e->rows[i].has_points)
            json_array_append_new(list,
                                  wf__run_points_to_json(e->rows[i].row.name, &e->rows[i].points));
    return json_pack("{s:o}", "points", list);
}

static wf_status write_results(const evaluation *e, const wf_run_paths *paths,
                               const wf_dataset *data) {
    json_t *json = clouds(e);
    wf_status status = wf__run_json_write(e->app, paths->points, json);
    json_decref(json);
    if (status != WF_OK) return status;
    json = results(e, data);
    status = wf__run_json_write(e->app, paths->eval, json);
    json_decref(json);
    return status;
}

wf_status wf__run_evaluate(wf_run_app *app, const wf_run_recipe *recipe, const wf_run_paths *paths,
                           const wf_dataset *data) {
    wf_zoo *zoo;
    wf_reference *reference = NULL;
    wf_run_eval_rows rows;
    WF_TRY(wf_zoo_open(app->ctx, paths->zoo, &zoo));
    wf_status status = wf__run_eval_rows_read(app, recipe, "held-out", recipe->controls, &rows);
    if (status == WF_OK) status = wf_reference_open(app->ctx, zoo, data, &recipe->eval, &reference);
    evaluation e = {.app = app, .recipe = recipe, .zoo = zoo, .reference = reference};
    wf_run_judging what = {.app = app,
                           .recipe = recipe,
                           .reference = reference,
                           .data = data,
                           .held_out = paths->held_out,
                           .generated =
                               recipe->sample.refine_cycles > 0 ? paths->direct : paths->nets,
                           .refined = paths->nets,
                           .zoo = zoo,
                           .graph = wf_zoo_graph(zoo),
                           .whole = rows.listed};
    if (status == WF_OK) status = wf__run_judge_rows(&what, &rows, &e.rows, &e.n);
    if (status == WF_OK) status = write_results(&e, paths, data);
    wf__run_judged_free(e.rows, e.n);
    wf__run_eval_rows_free(&rows);
    wf_reference_free(reference);
    wf_zoo_free(zoo);
    return status;
}
