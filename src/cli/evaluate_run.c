/* evaluate_run: all rows of a run: the collection itself, held-out networks, the controls, the generated networks.
 * Every control is a generator like the flow, so the table is one loop over (name, weights). */
#include "cli/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_rows = 16 };

typedef struct judged {
    wf_eval_row row;
    wf_points points;
    bool has_points, copies;
} judged;

typedef struct evaluation {
    cli_app *app;
    const cli_recipe *recipe;
    const wf_zoo *zoo;
    const wf_reference *reference;
    judged rows[max_rows];
    int n_rows;
} evaluation;

static wf_status judge(evaluation *e, const char *name, const float *weights, size_t n) {
    judged *next = &e->rows[e->n_rows];
    CLI_TRY(
        wf_eval_networks(e->app->ctx, e->reference, name, weights, n, &next->row, &next->points));
    next->has_points = true;
    next->copies = wf_report_is_copy(&next->points);
    e->n_rows++;
    return WF_OK;
}

static wf_status judge_file(evaluation *e, const char *name, const char *path) {
    wf_zoo *zoo;
    float *weights = NULL;
    wf_ctx *ctx = e->app->ctx;
    CLI_TRY(wf_zoo_open(ctx, path, &zoo));
    wf_status status = WF_OK;
    if (!wf_graph_equal(wf_zoo_graph(zoo), wf_zoo_graph(e->zoo)))
        status =
            cli_fail(e->app, WF_ERR_SHAPE, "%s has networks of %s, the collection %s has %s", path,
                     wf_zoo_graph(zoo)->text, wf_zoo_path(e->zoo), wf_zoo_graph(e->zoo)->text);
    if (status == WF_OK) status = wf_zoo_load(ctx, zoo, 0, wf_zoo_count(zoo), &weights);
    if (status == WF_OK) status = judge(e, name, weights, wf_zoo_count(zoo));
    free(weights);
    wf_zoo_free(zoo);
    return status;
}

static const double sigmas[] = {0.05, 0.10, 0.25, 0.50};
enum { n_sigmas = sizeof sigmas / sizeof sigmas[0] };

/* The row `perturbation` is the best of those at the single strengths, by JWS; without JWS the weakest. */
static void add_best_perturbation(evaluation *e, int first) {
    int best = first;
    for (int i = first + 1; i < first + n_sigmas; i++)
        if (e->rows[i].row.jws > e->rows[best].row.jws) best = i;
    judged *next = &e->rows[e->n_rows++];
    next->row = e->rows[best].row;
    next->copies = e->rows[best].copies;
    snprintf(next->row.name, sizeof next->row.name, "perturbation");
}

static wf_status judge_controls(evaluation *e) {
    wf_ctx *ctx = e->app->ctx;
    size_t n = e->recipe->sample_count;
    uint64_t seed = e->recipe->sample.seed;
    float *weights = calloc(n, wf_zoo_graph(e->zoo)->n_params * sizeof *weights);
    if (weights == NULL)
        return cli_fail(e->app, WF_ERR_MEMORY, "%zu controls do not fit in memory", n);
    wf_status status = wf_control_random(ctx, wf_zoo_graph(e->zoo), n, seed, weights);
    if (status == WF_OK) status = judge(e, "random", weights, n);
    int first = e->n_rows;
    for (int i = 0; status == WF_OK && i < n_sigmas; i++) {
        char name[32];
        snprintf(name, sizeof name, "perturbation-%.2f", sigmas[i]);
        status = wf_control_perturb(ctx, e->zoo, sigmas[i], n, seed, weights);
        if (status == WF_OK) status = judge(e, name, weights, n);
    }
    if (status == WF_OK) add_best_perturbation(e, first);
    for (int matched = 0; status == WF_OK && matched < 2; matched++) {
        status = wf_control_average(ctx, e->zoo, matched == 1, n, seed, weights);
        if (status == WF_OK)
            status = judge(e, matched == 1 ? "average-matched" : "average", weights, n);
    }
    free(weights);
    return status;
}

static wf_status judge_all(evaluation *e, const cli_run_paths *paths) {
    judged *first = &e->rows[0];
    CLI_TRY(wf_eval_reference(e->app->ctx, e->reference, &first->row, &first->points));
    snprintf(first->row.name, sizeof first->row.name, "reference");
    first->has_points = true;
    e->n_rows = 1;
    if (wf_file_exists(paths->held_out)) CLI_TRY(judge_file(e, "held-out", paths->held_out));
    if (e->recipe->controls) CLI_TRY(judge_controls(e));
    if (e->recipe->sample.refine_cycles == 0) return judge_file(e, "gmn", paths->nets);
    CLI_TRY(judge_file(e, "gmn", paths->direct));
    return judge_file(e, "gmn-refined", paths->nets);
}

static json_t *results(const evaluation *e, const wf_dataset *data) {
    json_t *rows = json_array(), *novelty = json_object();
    for (int i = 0; i < e->n_rows; i++) {
        json_t *row = cli_row_to_json(&e->rows[i].row);
        json_object_set_new(row, "copies", json_boolean(e->rows[i].copies));
        json_array_append_new(rows, row);
        if (strncmp(e->rows[i].row.name, "gmn", 3) == 0)
            json_object_set_new(novelty, e->rows[i].row.name,
                                cli_novelty_to_json(&e->rows[i].points));
    }
    double scales[3];
    wf_reference_scales(e->reference, scales);
    const wf_graph *graph = wf_zoo_graph(e->zoo);
    return json_pack(
        "{s:s, s:o, s:[o,o,o], s:s, s:o, s:s, s:s, s:s, s:I, s:s}", "recipe", e->recipe->name,
        "rows", rows, "scales", cli_json_number(scales[0]), cli_json_number(scales[1]),
        cli_json_number(scales[2]), "notes", wf_reference_notes(e->reference), "novelty", novelty,
        "data", data != NULL ? data->name : "", "data_note", data != NULL ? data->note : "", "arch",
        graph->text, "networks", (json_int_t)wf_zoo_count(e->zoo), "version", WF_VERSION);
}

static json_t *clouds(const evaluation *e) {
    json_t *list = json_array();
    for (int i = 0; i < e->n_rows; i++)
        if (e->rows[i].has_points)
            json_array_append_new(list,
                                  cli_points_to_json(e->rows[i].row.name, &e->rows[i].points));
    return json_pack("{s:o}", "points", list);
}

static wf_status write_results(const evaluation *e, const cli_run_paths *paths,
                               const wf_dataset *data) {
    json_t *json = clouds(e);
    wf_status status = cli_json_write(e->app, paths->points, json);
    json_decref(json);
    if (status != WF_OK) return status;
    json = results(e, data);
    status = cli_json_write(e->app, paths->eval, json);
    json_decref(json);
    return status;
}

wf_status cli_evaluate_run(cli_app *app, const cli_recipe *recipe, const cli_run_paths *paths,
                           const wf_dataset *data) {
    wf_zoo *zoo;
    wf_reference *reference = NULL;
    CLI_TRY(wf_zoo_open(app->ctx, paths->zoo, &zoo));
    wf_status status = wf_reference_open(app->ctx, zoo, data, &recipe->eval, &reference);
    evaluation *e = calloc(1, sizeof *e);
    if (status == WF_OK && e == NULL) status = cli_fail(app, WF_ERR_MEMORY, "out of memory");
    if (status == WF_OK) {
        *e = (evaluation){.app = app, .recipe = recipe, .zoo = zoo, .reference = reference};
        status = judge_all(e, paths);
        if (status == WF_OK) status = write_results(e, paths, data);
        for (int i = 0; i < max_rows; i++)
            if (e->rows[i].has_points) wf_points_free(&e->rows[i].points);
    }
    free(e);
    wf_reference_free(reference);
    wf_zoo_free(zoo);
    return status;
}
