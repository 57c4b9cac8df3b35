/* run_domains: a run along a line of conditions, between collections of one architecture and beyond
 * them: networks of every condition of [sample] conds, judged against each collection on that
 * collection's data.
 *
 * eval.json  rows: {..., "on": collection, "cond": number} for the collection itself ("reference"),
 *            networks trained alike ("scratch") and generated ones (the generator's name); "mix":
 *            baselines between the two collections, where there are two.
 * points.json  clouds of single networks' scores, a list for each collection's data. */
#include "run/eval_rows.h"
#include "run/mixes.h"
#include "run/job.h"

#include <stdlib.h>

enum { collection_shown = 300 }; /* networks of a collection in the plane */

static wf_status no_memory(wf_run_job *r) {
    return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
}

wf_status wf__run_domains_open(wf_run_job *r) {
    wf_run_tasks *t = r->tasks;
    WF_TRY(wf__run_tasks_numbers(r, "sample.conds", r->recipe.conds, t->cond, WF_RUN_MOST_CONDS,
                                 &t->n_conds));
    if (r->recipe.widths != NULL)
        return wf__run_fail(r->app, WF_ERR_USAGE, "give sample.widths or sample.conds, not both");
    const int *size = wf__run_recipe_cond_size(&r->recipe);
    int numbers = wf__run_recipe_conditional(&r->recipe) && size != NULL ? *size : 0;
    if (numbers != 1 || r->recipe.kind->flow == NULL)
        return wf__run_fail(
            r->app, WF_ERR_USAGE,
            "sample.conds are single numbers, the conditions have %d; take a flow, set model.cond "
            "and give each collection cond = NUMBER",
            numbers);
    for (int i = 0; i < t->sources.n; i++)
        if (t->task[i].data == NULL)
            return wf__run_fail(r->app, WF_ERR_INPUT,
                                "[%s] has no data to judge on; write data = DATA",
                                t->sources.text[i].label);
    return WF_OK;
}

static wf_status cond_file(wf_run_job *r, double cond, char out[WF_RUN_PATH]) {
    char name[64];
    snprintf(name, sizeof name, "cond%g.safetensors", cond);
    return wf__run_path(r->app, r->paths.nets, name, out);
}

static bool outputs_exist(const wf_run_job *run, wf_stage stage) {
    wf_run_job *r = (wf_run_job *)(uintptr_t)run; /* names of files alone */
    if (stage == WF_STAGE_EVALUATION)
        return wf_file_exists(r->paths.eval) && wf_file_exists(r->paths.points);
    if (stage != WF_STAGE_SAMPLING) return wf__run_tasks_outputs_exist(run, stage);
    for (int c = 0; c < r->tasks->n_conds; c++) {
        char path[WF_RUN_PATH];
        if (cond_file(r, r->tasks->cond[c], path) != WF_OK || !wf_file_exists(path)) return false;
    }
    return true;
}

/* --- sampling --------------------------------------------------------------------------------- */

static wf_status open_zoos(wf_run_job *r) {
    wf_run_sources *s = &r->tasks->sources;
    WF_TRY(wf__run_sources_open(r->app, s));
    for (int i = 1; i < s->n; i++)
        if (!wf_graph_equal(wf_zoo_graph(s->list[0].zoo), wf_zoo_graph(s->list[i].zoo)))
            return wf__run_fail(r->app, WF_ERR_SHAPE,
                                "[%s] has networks of %s, [%s] of %s; sample.conds goes between "
                                "collections of one architecture",
                                s->text[0].label, wf_zoo_graph(s->list[0].zoo)->text,
                                s->text[i].label, wf_zoo_graph(s->list[i].zoo)->text);
    return WF_OK;
}

static wf_status sample_cond(wf_run_job *r, wf_generator *generator, float cond) {
    char path[WF_RUN_PATH];
    WF_TRY(cond_file(r, cond, path));
    if (wf_file_exists(path)) return WF_OK;
    wf_flow *flow = wf_generator_flow(generator);
    const wf_source *nearest = &r->tasks->sources.list[wf_flow_nearest(flow, &cond)];
    wf_run_generation what = {.generator = generator,
                              .path_of = r->paths.flow,
                              .graph = wf_zoo_graph(nearest->zoo),
                              .like = nearest->zoo,
                              .cond = &cond,
                              .n = r->recipe.sample_count,
                              .sample = r->recipe.sample,
                              .path = path};
    WF_TRY(wf_flow_place(r->app->ctx, flow, &cond, &what.place));
    if (what.place != WF_COND_TRAINED) what.sample.guidance = r->recipe.guidance_between;
    return wf__run_generate_networks(r->app, &what, NULL);
}

static wf_status stage_sampling(wf_run_job *r) {
    wf_generator *generator;
    WF_TRY(open_zoos(r));
    WF_TRY(wf_make_folder(r->app->ctx, r->paths.nets));
    WF_TRY(wf__run_open_generator(r->app, &r->recipe, r->paths.flow, NULL, &generator));
    wf_status status = WF_OK;
    for (int c = 0; status == WF_OK && c < r->tasks->n_conds; c++)
        status = sample_cond(r, generator, r->tasks->cond[c]);
    wf_generator_free(generator);
    return status;
}

/* --- evaluation ------------------------------------------------------------------------------- */

static json_t *numbers(const float *values, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, wf__run_json_number(values[i]));
    return list;
}

static void add_row(wf_run_job *r, const wf_eval_row *row, int on, double cond, json_t *rows) {
    json_t *json = wf__run_row_to_json(row);
    json_object_set_new(json, "on", json_string(r->tasks->sources.text[on].label));
    json_object_set_new(json, "cond", wf__run_json_number(cond));
    json_array_append_new(rows, json);
}

/* The generated networks of condition c against one collection; their scores go to its cloud. */
static wf_status judge_cond(wf_run_job *r, wf_run_judging what, const wf_run_eval_rows *list,
                            int on, int c, json_t *rows, json_t *cloud) {
    char path[WF_RUN_PATH];
    wf_run_judged *judged;
    int n;
    WF_TRY(cond_file(r, r->tasks->cond[c], path));
    what.generated = path;
    wf_status status = wf__run_judge_rows(&what, list, &judged, &n);
    for (int i = 0; status == WF_OK && i < n; i++) {
        add_row(r, &judged[i].row, on, r->tasks->cond[c], rows);
        json_array_append_new(json_object_get(cloud, "scores"),
                              numbers(judged[i].points.accuracy, judged[i].points.n));
    }
    wf__run_judged_free(judged, n);
    return status;
}

/* All rows on one collection's data: those of the collection, then the generated ones. */
static wf_status judge_against(wf_run_job *r, const wf_reference *reference, int on, json_t *rows,
                               json_t *const *clouds) {
    const wf_run_tasks *t = r->tasks;
    char path[WF_RUN_PATH];
    wf_run_eval_rows list;
    wf_run_judged *judged = NULL;
    int n = 0;
    WF_TRY(wf__run_tasks_file(r, r->paths.held_out, on, 1, path));
    wf_run_judging what = {.app = r->app,
                           .recipe = &r->recipe,
                           .reference = reference,
                           .held_out = path,
                           .zoo = t->sources.list[on].zoo,
                           .graph = wf_zoo_graph(t->sources.list[on].zoo)};
    wf_status status = wf__run_eval_rows_read(r->app, &r->recipe, "scratch", false, &list);
    if (status == WF_OK) status = wf__run_judge_rows(&what, &list, &judged, &n);
    for (int i = 0; status == WF_OK && i < n; i++)
        add_row(r, &judged[i].row, on, t->sources.list[on].cond[0], rows);
    wf_run_eval_rows generated = {.list = list.list, .n = 0};
    for (int i = 0; i < list.n; i++)
        if (list.list[i].kind == WF_RUN_ROW_GENERATED)
            generated.list = &list.list[i], generated.n = 1;
    for (int c = 0; status == WF_OK && generated.n > 0 && c < t->n_conds; c++)
        status = judge_cond(r, what, &generated, on, c, rows, clouds[c]);
    wf__run_judged_free(judged, n);
    wf__run_eval_rows_free(&list);
    return status;
}

static wf_status judge_on(wf_run_job *r, int on, json_t *rows, json_t *const *clouds) {
    const wf_run_tasks *t = r->tasks;
    wf_reference *reference;
    WF_TRY(wf_reference_open(r->app->ctx, t->sources.list[on].zoo, t->task[on].data,
                             &r->recipe.eval, &reference));
    wf_status status = judge_against(r, reference, on, rows, clouds);
    wf_reference_free(reference);
    return status;
}

/* Networks of a collection, scored on every collection's data. */
static wf_status collection_cloud(wf_run_job *r, int source, json_t *clouds) {
    const wf_run_tasks *t = r->tasks;
    const wf_zoo *zoo = t->sources.list[source].zoo;
    size_t n = wf_zoo_count(zoo) < collection_shown ? wf_zoo_count(zoo) : collection_shown;
    float *weights, *scores = calloc(n + 1, sizeof *scores);
    if (scores == NULL) return no_memory(r);
    wf_status status = wf_zoo_load(r->app->ctx, zoo, 0, n, &weights);
    json_t *lists = json_array();
    for (int on = 0; status == WF_OK && on < t->sources.n; on++) {
        status = wf_score_networks(r->app->ctx, wf_zoo_graph(zoo), weights, n, t->task[on].data,
                                   r->recipe.eval.score, scores, NULL);
        json_array_append_new(lists, numbers(scores, n));
    }
    json_array_append_new(clouds, json_pack("{s:s, s:b, s:o, s:o}", "name",
                                            t->sources.text[source].label, "trained", 1, "cond",
                                            wf__run_json_number(t->sources.list[source].cond[0]),
                                            "scores", lists));
    if (status == WF_OK) free(weights);
    free(scores);
    return status;
}

/* What can be had between two collections without a generator. */
static wf_status add_mix(wf_run_job *r, json_t *eval) {
    const wf_run_tasks *t = r->tasks;
    if (t->sources.n != 2) return WF_OK;
    const wf_dataset *data[2] = {t->task[0].data, t->task[1].data};
    wf_mix_desc desc = wf_mix_desc_default();
    desc.score = r->recipe.eval.score;
    desc.seed = r->recipe.eval.seed;
    for (int i = 0; i < 2; i++)
        if (wf_zoo_count(t->sources.list[i].zoo) < desc.pairs)
            desc.pairs = wf_zoo_count(t->sources.list[i].zoo);
    wf_mix mix = {0};
    wf_status status = wf_eval_mix(r->app->ctx, t->sources.list[0].zoo, t->sources.list[1].zoo,
                                   data, 2, &desc, &mix);
    if (status == WF_OK) json_object_set_new(eval, "mix", wf__run_mix_to_json(&mix, data));
    wf_mix_free(&mix);
    return status;
}

static void add_notes(const wf_run_tasks *t, json_t *eval) {
    json_t *notes = json_object();
    for (int i = 0; i < t->sources.n; i++)
        if (t->task[i].data->note[0] != '\0')
            json_object_set_new(notes, t->sources.text[i].label,
                                json_string(t->task[i].data->note));
    json_object_set_new(eval, "data_notes", notes);
}

static wf_status evaluate(wf_run_job *r, json_t *eval, json_t *points) {
    const wf_run_tasks *t = r->tasks;
    json_t *rows = json_object_get(eval, "rows"), *clouds = json_object_get(points, "clouds");
    json_t *generated[WF_RUN_MOST_CONDS] = {0};
    for (int i = 0; i < t->sources.n; i++) WF_TRY(collection_cloud(r, i, clouds));
    for (int c = 0; c < t->n_conds; c++) {
        char name[48];
        snprintf(name, sizeof name, "c = %g", t->cond[c]);
        generated[c] = json_pack("{s:s, s:b, s:f, s:[]}", "name", name, "trained", 0, "cond",
                                 (double)t->cond[c], "scores");
        json_array_append_new(clouds, generated[c]);
    }
    WF_TRY(wf__run_json_complete(r->app, r->paths.points, points));
    for (int on = 0; on < t->sources.n; on++) {
        WF_TRY(judge_on(r, on, rows, generated));
        if (wf_interrupted(r->app->ctx))
            return wf__run_fail(r->app, WF_ERR_INTERRUPTED, "interrupted between two collections");
    }
    add_notes(t, eval);
    return add_mix(r, eval);
}

static wf_status stage_evaluation(wf_run_job *r) {
    WF_TRY(open_zoos(r));
    json_t *eval = json_pack("{s:s, s:s, s:[], s:s}", "recipe", r->recipe.name, "generator",
                             r->recipe.generator, "rows", "version", WF_VERSION);
    json_t *points = json_pack("{s:[]}", "clouds");
    wf_status status = eval != NULL && points != NULL ? evaluate(r, eval, points) : no_memory(r);
    if (status == WF_OK) status = wf__run_json_write(r->app, r->paths.points, points);
    if (status == WF_OK) status = wf__run_json_write(r->app, r->paths.eval, eval);
    json_decref(eval);
    json_decref(points);
    return status;
}

const wf_run_shape wf__run_shape_domains = {{wf__run_tasks_collection, wf__run_tasks_held_out,
                                             wf__run_tasks_training, stage_sampling,
                                             stage_evaluation},
                                            wf__run_domains_report,
                                            outputs_exist};
