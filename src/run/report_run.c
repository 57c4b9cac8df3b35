/* report_run: gathers the files of a run and hands them to the report. */
#include "run/eval_rows.h"
#include "run/pipeline.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { max_facts = 10, weights_shown = 400 };

typedef struct gathered {
    json_t *eval, *points;
    wf_eval_row *rows;        /* [n] */
    bool *copies;             /* [n] */
    wf_points *clouds;        /* [n]; n 0: it has none */
    wf_report_entry *entries; /* [n] */
    int n;
    wf_zoo *zoo, *nets;
    float *trained, *generated;
    char fact_text[max_facts][320];
    wf_report_fact facts[max_facts];
    int n_facts;
    char title[128], summary[600], generated_name[64];
    char *recipe_text;
} gathered;

/* What a row of eval.json is, in a run of `generator`. */
static wf_report_role role_of(const char *generator, const char *row) {
    if (strcmp(row, "reference") == 0) return WF_REPORT_REFERENCE;
    if (strcmp(row, "held-out") == 0) return WF_REPORT_HELD_OUT;
    size_t length = strlen(generator);
    bool own = strncmp(row, generator, length) == 0 &&
               (row[length] == '\0' || strcmp(row + length, "-refined") == 0);
    return own ? WF_REPORT_GENERATED : WF_REPORT_CONTROL;
}

wf_status wf__run_rows_of_eval(wf_run_app *app, const char *path, const json_t *eval,
                               wf_eval_row **rows, bool **copies, int *n) {
    const json_t *list = json_object_get(eval, "rows"), *row;
    size_t i, count = json_array_size(list);
    *n = 0;
    *rows = calloc(count + 1, sizeof **rows);
    *copies = calloc(count + 1, sizeof **copies);
    if (*rows == NULL || *copies == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    json_array_foreach(list, i, row) {
        if (!wf__run_row_from_json(row, &(*rows)[i]))
            return wf__run_fail(app, WF_ERR_INPUT, "%s: row %zu is not one of weft eval", path, i);
        (*copies)[i] = json_is_true(json_object_get(row, "copies"));
        ++*n;
    }
    return count > 0 ? WF_OK : wf__run_fail(app, WF_ERR_INPUT, "%s: it has no rows", path);
}

static const json_t *points_named(const json_t *points, const char *name) {
    size_t i;
    const json_t *cloud;
    json_array_foreach(json_object_get(points, "points"), i, cloud) {
        const char *have = json_string_value(json_object_get(cloud, "name"));
        if (have != NULL && strcmp(have, name) == 0) return cloud;
    }
    return NULL;
}

static wf_status gather_cloud(wf_run_app *app, const wf_run_paths *paths, gathered *g, int i) {
    const json_t *cloud = points_named(g->points, g->rows[i].name);
    if (cloud == NULL) return WF_OK;
    bool read = wf__run_points_from_json(cloud, &g->clouds[i]);
    WF_TRY(wf__run_json_complete(app, paths->points, cloud));
    if (!read)
        return wf__run_fail(app, WF_ERR_INPUT, "%s: the points of %s are damaged", paths->points,
                            g->rows[i].name);
    g->entries[i].points = &g->clouds[i];
    return WF_OK;
}

static wf_status gather_rows(wf_run_app *app, const wf_run_recipe *recipe,
                             const wf_run_paths *paths, gathered *g) {
    WF_TRY(wf__run_json_read(app, paths->eval, &g->eval));
    WF_TRY(wf__run_json_read(app, paths->points, &g->points));
    WF_TRY(wf__run_rows_of_eval(app, paths->eval, g->eval, &g->rows, &g->copies, &g->n));
    g->clouds = calloc((size_t)g->n, sizeof *g->clouds);
    g->entries = calloc((size_t)g->n, sizeof *g->entries);
    if (g->clouds == NULL || g->entries == NULL)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->n; i++) {
        g->entries[i] = (wf_report_entry){.role = role_of(recipe->generator, g->rows[i].name),
                                          .row = &g->rows[i],
                                          .copies = g->copies[i]};
        WF_TRY(gather_cloud(app, paths, g, i));
    }
    return WF_OK;
}

static wf_status gather_weights(wf_run_app *app, const wf_run_paths *paths, gathered *g,
                                wf_report_desc *desc) {
    WF_TRY(wf_zoo_open(app->ctx, paths->zoo, &g->zoo));
    WF_TRY(wf_zoo_open(app->ctx, paths->nets, &g->nets));
    desc->graph = wf_zoo_graph(g->zoo);
    desc->n_trained = wf_zoo_count(g->zoo) < weights_shown ? wf_zoo_count(g->zoo) : weights_shown;
    desc->n_generated =
        wf_zoo_count(g->nets) < weights_shown ? wf_zoo_count(g->nets) : weights_shown;
    WF_TRY(wf_zoo_load(app->ctx, g->zoo, 0, desc->n_trained, &g->trained));
    WF_TRY(wf_zoo_load(app->ctx, g->nets, 0, desc->n_generated, &g->generated));
    desc->trained = g->trained;
    desc->generated = g->generated;
    return WF_OK;
}

static void add_fact(gathered *g, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add_fact(gathered *g, const char *label, const char *format, ...) {
    if (g->n_facts == max_facts) return;
    va_list args;
    va_start(args, format);
    vsnprintf(g->fact_text[g->n_facts], sizeof g->fact_text[0], format, args);
    va_end(args);
    g->facts[g->n_facts] = (wf_report_fact){label, g->fact_text[g->n_facts]};
    g->n_facts++;
}

/* "4,800 updates of 16 in 34 s": what was made, where the flow is there, else what was asked. */
static void count_updates(const wf_run_recipe *recipe, const wf_flow *flow, char out[96]) {
    char updates[32], took[32] = "";
    wf__run_count(flow != NULL ? wf_flow_updates(flow) : recipe->fit.updates, updates);
    const char *seconds = flow != NULL ? wf_flow_meta(flow, "seconds") : NULL;
    if (seconds != NULL) wf__run_duration(strtod(seconds, NULL), took);
    snprintf(out, 96, "%s updates of %zu%s%s", updates, recipe->fit.batch,
             seconds != NULL ? " in " : "", took);
}

/* "270 of 300": those that were set aside were not fitted. */
static void count_fitted(const wf_run_recipe *recipe, const wf_flow *flow, size_t networks,
                         char out[96]) {
    char all[32], fitted[32];
    wf__run_count(networks, all);
    size_t n = flow != NULL && wf_flow_sources(flow) == 1 ? wf_flow_source_at(flow, 0).count : 0;
    wf__run_count(n, fitted);
    bool part = n > 0 && n < networks && recipe->train_path == NULL && !recipe->fresh;
    snprintf(out, 96, "%s%s%s", part ? fitted : "", part ? " of " : "", all);
}

static void flow_facts(wf_run_app *app, const wf_run_recipe *recipe, const wf_flow *flow,
                       gathered *g) {
    size_t parameters = 0;
    char model[200], count[32], updates[96];
    wf__run_options_text(recipe->kind, recipe->model, model, sizeof model);
    if (wf_generator_params(app->ctx, recipe->kind, recipe->model, wf_zoo_graph(g->zoo), 0,
                            &parameters) != WF_OK ||
        parameters == 0)
        add_fact(g, "generator", "%s", model);
    else {
        wf__run_count(parameters, count);
        add_fact(g, "generator", "%s, %s parameters", model, count);
    }
    if (recipe->kind->flow == NULL) return;
    count_updates(recipe, flow, updates);
    add_fact(g, "training", "%s, %s%s%s%s%s", updates,
             recipe->fit.optimizer == WF_OPT_MUON ? "Muon" : "AdamW",
             recipe->fit.precondition ? ", preconditioned" : "",
             recipe->fit.principal ? " along principal axes" : "",
             recipe->fit.coupling == WF_COUPLING_MATCHED ? ", matched noise" : "",
             recipe->fit.loss_by == WF_LOSS_BY_PARAMETERS ? ""
             : recipe->fit.loss_by == WF_LOSS_BY_LAYERS   ? ", layers count alike"
                                                          : ", layers count as errors in them do");
}

static void sampling_facts(const wf_run_recipe *recipe, gathered *g) {
    const char *solver = wf_zoo_meta(g->nets, "weft.sample.solver");
    const char *evaluations = wf_zoo_meta(g->nets, "weft.sample.evaluations");
    char refine[64] = "";
    if (recipe->sample.refine_cycles > 0)
        snprintf(refine, sizeof refine, ", refined %d times from t = %g%s",
                 recipe->sample.refine_cycles, recipe->sample.refine_t,
                 recipe->sample.refine_steps == 1 ? " in one jump" : "");
    add_fact(g, "sampling", "%s%s%s%s%s", solver != NULL ? solver : "", refine,
             evaluations != NULL ? ", " : "", evaluations != NULL ? evaluations : "",
             evaluations != NULL ? " evaluations a network" : "");
}

static void gather_facts(wf_run_app *app, const wf_run_recipe *recipe, const wf_flow *flow,
                         const wf_dataset *data, double seconds, gathered *g) {
    const wf_graph *graph = wf_zoo_graph(g->zoo);
    char count[32], fitted[96], parameters[32], rows[32], tests[32], took[32];
    wf__run_count(wf_zoo_count(g->zoo), count);
    wf__run_count(graph->n_params, parameters);
    if (data != NULL) {
        wf__run_count(data->n_train, rows);
        wf__run_count(data->n_test, tests);
        add_fact(g, "data", "%s: %s training and %s test examples, %d inputs, %d classes",
                 data->name, rows, tests, data->inputs, data->classes);
        if (data->note[0] != '\0') add_fact(g, "about the data", "%s", data->note);
    }
    add_fact(g, "collection", "%s networks of %s, %s parameters each", count, graph->text,
             parameters);
    flow_facts(app, recipe, flow, g);
    sampling_facts(recipe, g);
    if (seconds > 0) {
        wf__run_duration(seconds, took);
        add_fact(g, "time", "%s in all, %d threads", took, wf_ctx_threads(app->ctx));
    }
    const char *name = json_string_value(json_object_get(g->eval, "recipe"));
    if (recipe->title != NULL) name = recipe->title;
    snprintf(g->title, sizeof g->title, "weft: %s", name != NULL ? name : recipe->name);
    bool equivariant = (recipe->kind->traits & WF_GENERATOR_EQUIVARIANT) != 0;
    char what[80];
    snprintf(what, sizeof what,
             recipe->kind->flow == NULL ? "The generator %s"
             : equivariant              ? "A permutation-equivariant flow"
                                        : "A flow (%s)",
             recipe->generator);
    count_fitted(recipe, flow, wf_zoo_count(g->zoo), fitted);
    snprintf(
        g->summary, sizeof g->summary,
        "%s was %s %s trained networks of %s%s%s, and %zu new networks were drawn from it. Are "
        "they as good as trained ones, and are they new?",
        what, recipe->kind->fit != NULL ? "fitted to" : "given", fitted, graph->text,
        data != NULL ? " on " : "", data != NULL ? data->name : "", wf_zoo_count(g->nets));
}

static void gathered_free(gathered *g) {
    json_decref(g->eval);
    json_decref(g->points);
    for (int i = 0; g->clouds != NULL && i < g->n; i++) wf_points_free(&g->clouds[i]);
    free(g->rows);
    free(g->copies);
    free(g->clouds);
    free(g->entries);
    free(g->trained);
    free(g->generated);
    free(g->recipe_text);
    wf_zoo_free(g->zoo);
    wf_zoo_free(g->nets);
    free(g);
}

static wf_status write_page(wf_run_app *app, const wf_run_recipe *recipe, const wf_run_paths *paths,
                            const wf_dataset *data, double seconds, const char *log_digest,
                            gathered *g, const char *out_path) {
    wf_report_desc desc = wf_report_desc_default();
    WF_TRY(gather_rows(app, recipe, paths, g));
    WF_TRY(gather_weights(app, paths, g, &desc));
    wf_flow *flow = NULL; /* NULL: none, or removed since */
    if (recipe->kind->flow != NULL && wf_file_exists(paths->flow))
        WF_TRY(wf_flow_open(app->ctx, paths->flow, &flow));
    gather_facts(app, recipe, flow, data, seconds, g);
    wf_flow_free(flow);
    g->recipe_text = wf_recipe_text(recipe->source);
    if (g->recipe_text == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    desc.title = g->title;
    desc.summary = g->summary;
    desc.score = recipe->eval.score;
    desc.entries = g->entries;
    desc.n_entries = g->n;
    desc.notes = json_string_value(json_object_get(g->eval, "notes"));
    wf_report_log log = {.path = paths->log, .digest = log_digest};
    desc.logs = &log;
    desc.n_logs = 1;
    desc.generated_name = wf__run_generated_name(recipe, g->generated_name);
    desc.data = data;
    desc.wall = recipe->wall;
    desc.recipe = g->recipe_text;
    desc.facts = g->facts;
    desc.n_facts = g->n_facts;
    return wf_report_write(app->ctx, &desc, out_path);
}

wf_status wf__run_report(wf_run_app *app, const wf_run_recipe *recipe, const wf_run_paths *paths,
                         const wf_dataset *data, double seconds, const char *log_digest,
                         const char *out_path) {
    gathered *g = calloc(1, sizeof *g);
    if (g == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = write_page(app, recipe, paths, data, seconds, log_digest, g, out_path);
    gathered_free(g);
    return status;
}
