/* run_tasks: the stages of a run with a manifest: collections that recipes describe, networks
 * trained alike at other widths, one flow for all of them, and networks of every task and width
 * out of it. A file that is there is not made again, so a broken stage goes on where it stopped. */
#include "base/json_text.h"
#include "run/data_source.h"
#include "run/job.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>

/* --- what is to be made ----------------------------------------------------------------------- */

wf_status wf__run_tasks_file(wf_run_job *r, const char *folder, int source, double width,
                             char out[WF_RUN_PATH]) {
    const char *label = r->tasks->sources.text[source].label;
    char name[160];
    if (width > 0) snprintf(name, sizeof name, "%.64s-x%g.safetensors", label, width);
    else snprintf(name, sizeof name, "%.64s.safetensors", label);
    return wf__run_path(r->app, folder, name, out);
}

wf_status wf__run_tasks_numbers(wf_run_job *r, const char *what, const char *text, float *out,
                                int most, int *n) {
    WF_TRY(wf__run_numbers(r->app, what, text, out, most, n));
    for (int i = 0; i < *n; i++)
        for (int k = 0; k < i; k++) {
            char one[32], other[32];
            snprintf(one, sizeof one, "%g", (double)out[i]);
            snprintf(other, sizeof other, "%g", (double)out[k]);
            if (strcmp(one, other) == 0)
                return wf__run_fail(r->app, WF_ERR_USAGE,
                                    "%s is %s, with %s twice; write different numbers, of six "
                                    "digits at most",
                                    what, text, one);
        }
    return WF_OK;
}

static wf_status read_widths(wf_run_job *r) {
    wf_run_tasks *t = r->tasks;
    t->width[0] = 1;
    t->n_widths = 1;
    if (r->recipe.widths == NULL) return WF_OK;
    WF_TRY(wf__run_tasks_numbers(r, "sample.widths", r->recipe.widths, t->width, WF_RUN_MOST_WIDTHS,
                                 &t->n_widths));
    for (int w = 0; w < t->n_widths; w++)
        if (!(t->width[w] > 0))
            return wf__run_fail(r->app, WF_ERR_USAGE,
                                "sample.widths is %s; write factors above 0, as 0.5,1,1.5",
                                r->recipe.widths);
    return WF_OK;
}

/* The data that a given collection is judged on. */
static wf_status open_task_data(wf_run_job *r, const wf_run_source_text *text, wf_dataset **out) {
    wf_zoo *zoo = NULL;
    if (text->zoo[0] != '\0') WF_TRY(wf_zoo_open(r->app->ctx, text->zoo, &zoo));
    wf_status status = wf__run_dataset_named(r->app, text->data, zoo, out);
    wf_zoo_free(zoo);
    return status;
}

static wf_status open_task(wf_run_job *r, int source) {
    wf_run_task *task = &r->tasks->task[source];
    wf_run_source_text *text = &r->tasks->sources.text[source];
    if (text->data[0] != '\0') return open_task_data(r, text, &task->data);
    if (text->recipe[0] == '\0') return WF_OK;
    WF_TRY(wf__run_recipe_open(r->app, text->recipe, &task->recipe));
    /* How many is the run's to say: the same recipes serve at any scale. */
    if (wf_recipe_has(r->recipe.source, "zoo", "count"))
        task->recipe.zoo.count = r->recipe.zoo.count;
    if (wf_recipe_has(r->recipe.source, "zoo", "held_out"))
        task->recipe.held_out = r->recipe.held_out;
    WF_TRY(wf__run_recipe_dataset(r->app, &task->recipe, &task->data));
    WF_TRY(wf__run_recipe_graph(r->app, &task->recipe, task->data, &task->graph));
    return wf__run_tasks_file(r, r->paths.zoo, source, 0, text->zoo);
}

/* Adds the settings a collection is made with. */
static bool put_settings(wf_long_text *to, const wf_run_task *task) {
    if (task->recipe.source == NULL) return true;
    json_t *config = wf__run_recipe_stage(&task->recipe, WF_STAGE_COLLECTION);
    char *text = config == NULL ? NULL : wf_json_text(config, JSON_COMPACT | JSON_SORT_KEYS);
    bool whole = text != NULL && wf_long_text_add(to, "%s", text);
    free(text);
    json_decref(config);
    return whole;
}

/* Everything the collections depend on, as one digest. */
static wf_status take_fingerprint(wf_run_job *r) {
    wf_run_tasks *t = r->tasks;
    wf_long_text all = {0};
    char *manifest = wf_recipe_text(t->sources.manifest);
    bool whole = manifest != NULL && wf_long_text_add(&all, "%s", manifest);
    for (int i = 0; whole && i < t->sources.n; i++) {
        const wf_dataset *data = t->task[i].data;
        whole = put_settings(&all, &t->task[i]) &&
                wf_long_text_add(&all, "%s\n", data != NULL ? data->fingerprint : "");
    }
    char *text = wf_long_text_end(&all);
    whole = whole && text != NULL;
    if (whole) wf_sha256_hex(text, all.length, t->fingerprint);
    free(text);
    free(manifest);
    return whole ? WF_OK : wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
}

/* Said before the collections are made. Those that are given are opened, and compared, later. */
static wf_status check_architectures(wf_run_job *r) {
    const wf_generator_kind *kind = r->recipe.kind;
    const wf_run_tasks *tasks = r->tasks;
    int first = -1;
    if ((kind->traits & WF_GENERATOR_ANY_ARCHITECTURE) != 0) return WF_OK;
    for (int i = 0; i < tasks->sources.n; i++) {
        const wf_graph *graph = tasks->task[i].graph;
        if (graph == NULL) continue;
        if (first < 0) first = i;
        if (!wf_graph_equal(tasks->task[first].graph, graph))
            return wf__run_fail(
                r->app, WF_ERR_USAGE, "%s takes one architecture; %s has networks of %s, %s of %s",
                kind->name, tasks->sources.text[first].label, tasks->task[first].graph->text,
                tasks->sources.text[i].label, graph->text);
    }
    return WF_OK;
}

wf_status wf__run_tasks_open(wf_run_job *r) {
    r->tasks = calloc(1, sizeof *r->tasks);
    if (r->tasks == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    wf_run_sources *sources = &r->tasks->sources;
    WF_TRY(read_widths(r));
    WF_TRY(wf__run_sources_manifest(r->app, r->recipe.manifest, sources));
    r->tasks->task = calloc((size_t)sources->n, sizeof *r->tasks->task);
    if (r->tasks->task == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < sources->n; i++) WF_TRY(open_task(r, i));
    WF_TRY(check_architectures(r));
    WF_TRY(wf__run_sources_condition(r->app, sources, &r->recipe));
    WF_TRY(wf__run_sources_shares(r->app, sources, r->recipe.shares));
    if (r->recipe.conds != NULL) WF_TRY(wf__run_domains_open(r));
    return take_fingerprint(r);
}

void wf__run_tasks_free(wf_run_tasks *t) {
    if (t == NULL) return;
    for (int i = 0; t->task != NULL && i < t->sources.n; i++) {
        wf__run_recipe_free(&t->task[i].recipe);
        wf_dataset_free(t->task[i].data);
        wf_graph_free(t->task[i].graph);
    }
    free(t->task);
    wf__run_sources_free(&t->sources);
    free(t);
}

wf_status wf__run_tasks_graph(wf_run_job *r, int source, double width, wf_graph **out) {
    const wf_run_task *task = &r->tasks->task[source];
    const wf_zoo *zoo = r->tasks->sources.list[source].zoo;
    return wf_graph_scale_width(r->app->ctx, task->graph != NULL ? task->graph : wf_zoo_graph(zoo),
                                width, out);
}

/* --- networks --------------------------------------------------------------------------------- */

/* `count` networks of the task's recipe, unless they are there. */
static wf_status train_networks(wf_run_job *r, int source, const wf_graph *graph, size_t first,
                                size_t count, const char *path) {
    const wf_run_task *task = &r->tasks->task[source];
    if (wf__run_zoo_is_done(path)) return WF_OK;
    wf_zoo_desc desc = task->recipe.zoo;
    desc.first = first;
    desc.count = count;
    size_t diverged = 0;
    WF_TRY(wf_zoo_train(r->app->ctx, graph, task->data, &desc, path, &diverged));
    wf__run_say(r->app, "%s: %zu network%s of %s%s", r->tasks->sources.text[source].label,
                count - diverged, WF_RUN_S(count - diverged), graph->text,
                diverged > 0 ? "; others diverged and were left out" : "");
    return WF_OK;
}

wf_status wf__run_tasks_collection(wf_run_job *r) {
    wf_run_sources *sources = &r->tasks->sources;
    WF_TRY(wf_make_folder(r->app->ctx, r->paths.zoo));
    for (int i = 0; i < sources->n; i++) {
        const wf_run_task *task = &r->tasks->task[i];
        if (task->graph == NULL) continue;
        WF_TRY(train_networks(r, i, task->graph, task->recipe.zoo.first, task->recipe.zoo.count,
                              sources->text[i].zoo));
    }
    return WF_OK;
}

static bool has_scratch(const wf_run_job *r, int source) {
    return r->tasks->task[source].graph != NULL && r->tasks->task[source].recipe.held_out > 0;
}

wf_status wf__run_tasks_held_out(wf_run_job *r) {
    const wf_run_tasks *t = r->tasks;
    WF_TRY(wf_make_folder(r->app->ctx, r->paths.held_out));
    for (int i = 0; i < t->sources.n; i++)
        for (int w = 0; w < t->n_widths && has_scratch(r, i); w++) {
            const wf_zoo_desc *zoo = &t->task[i].recipe.zoo;
            char path[WF_RUN_PATH];
            wf_graph *graph;
            WF_TRY(wf__run_tasks_file(r, r->paths.held_out, i, t->width[w], path));
            WF_TRY(wf__run_tasks_graph(r, i, t->width[w], &graph));
            wf_status status = train_networks(r, i, graph, zoo->first + zoo->count,
                                              t->task[i].recipe.held_out, path);
            wf_graph_free(graph);
            if (status != WF_OK) return status;
        }
    return WF_OK;
}

/* --- the flow --------------------------------------------------------------------------------- */

/* Held-out networks of the collections' own width, for the validation loss. */
static wf_status open_held_out(wf_run_job *r) {
    wf_source *list = r->tasks->sources.list;
    for (int i = 0; i < r->tasks->sources.n; i++) {
        char path[WF_RUN_PATH];
        wf_zoo *zoo;
        WF_TRY(wf__run_tasks_file(r, r->paths.held_out, i, 1, path));
        if (list[i].held_out != NULL || !has_scratch(r, i) || !wf_file_exists(path)) continue;
        WF_TRY(wf_zoo_open(r->app->ctx, path, &zoo));
        list[i].held_out = zoo;
    }
    return WF_OK;
}

/* What each task's networks are trained with, where all have a recipe; free(*out). */
static wf_status freshen_sources(wf_run_job *r, wf_fresh **out) {
    wf_run_sources *sources = &r->tasks->sources;
    *out = calloc((size_t)sources->n, sizeof **out);
    if (*out == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; i < sources->n; i++) {
        const wf_run_task *task = &r->tasks->task[i];
        if (task->graph == NULL)
            return wf__run_fail(
                r->app, WF_ERR_USAGE,
                "zoo.fresh: %s has no recipe to train networks with; give it one in "
                "the manifest, or set zoo.fresh = no",
                sources->text[i].label);
        (*out)[i] = (wf_fresh){.data = task->data, .zoo = task->recipe.zoo};
        sources->list[i].fresh = &(*out)[i];
    }
    return WF_OK;
}

wf_status wf__run_tasks_training(wf_run_job *r) {
    WF_TRY(wf__run_sources_open(r->app, &r->tasks->sources));
    WF_TRY(open_held_out(r));
    const wf_run_sources *sources = &r->tasks->sources;
    wf_fresh *fresh = NULL;
    wf_status status = r->recipe.fresh ? freshen_sources(r, &fresh) : WF_OK;
    if (status == WF_OK)
        status = wf__run_fit(r->app, &r->recipe, sources->list, sources->n, r->paths.flow);
    for (int i = 0; i < sources->n; i++) sources->list[i].fresh = NULL;
    free(fresh);
    return status;
}

/* What the flow knows of a collection; of other generators the manifest says it. */
static wf_flow_source source_of(const wf_run_job *r, wf_generator *generator, int source) {
    wf_flow *flow = wf_generator_flow(generator);
    const wf_source *listed = &r->tasks->sources.list[source];
    if (flow != NULL) return wf_flow_source_at(flow, source);
    return (wf_flow_source){.task = listed->task, .cond = listed->cond};
}

static wf_status sample_task(wf_run_job *r, wf_generator *generator, int source, double width) {
    bool refined = r->recipe.sample.refine_cycles > 0;
    char path[WF_RUN_PATH], direct[WF_RUN_PATH];
    WF_TRY(wf__run_tasks_file(r, r->paths.nets, source, width, path));
    WF_TRY(wf__run_tasks_file(r, r->paths.direct, source, width, direct));
    if (wf_file_exists(path) && (!refined || wf_file_exists(direct))) return WF_OK;
    wf_graph *graph;
    WF_TRY(wf__run_tasks_graph(r, source, width, &graph));
    wf_flow_source about = source_of(r, generator, source);
    wf_run_generation what = {.generator = generator,
                              .path_of = r->paths.flow,
                              .graph = graph,
                              .cond = about.cond,
                              .task = about.task,
                              .tests = about.tests,
                              .data = about.data,
                              .like = r->tasks->sources.list[source].zoo,
                              .n = r->recipe.sample_count,
                              .sample = r->recipe.sample,
                              .path = path,
                              .direct_path = refined ? direct : NULL};
    wf_status status = wf__run_generate_networks(r->app, &what, NULL);
    wf_graph_free(graph);
    return status;
}

static wf_status stage_sampling(wf_run_job *r) {
    const wf_run_tasks *t = r->tasks;
    WF_TRY(wf__run_sources_open(r->app, &r->tasks->sources));
    WF_TRY(wf_make_folder(r->app->ctx, r->paths.nets));
    if (r->recipe.sample.refine_cycles > 0) WF_TRY(wf_make_folder(r->app->ctx, r->paths.direct));
    for (int i = 0; i < t->sources.n; i++) {
        wf_generator *generator;
        WF_TRY(wf__run_open_generator(r->app, &r->recipe, r->paths.flow, t->sources.list[i].zoo,
                                      &generator));
        wf_status status = WF_OK;
        for (int w = 0; status == WF_OK && w < t->n_widths; w++)
            status = sample_task(r, generator, i, t->width[w]);
        wf_generator_free(generator);
        if (status != WF_OK) return status;
    }
    return WF_OK;
}

/* Every task's networks at every width. held_out: those that were made by training. */
static bool networks_exist(const wf_run_job *run, const char *folder, bool held_out) {
    wf_run_job *r = (wf_run_job *)(uintptr_t)run; /* names of files alone */
    const wf_run_tasks *t = r->tasks;
    char path[WF_RUN_PATH];
    for (int i = 0; i < t->sources.n; i++)
        for (int w = 0; w < t->n_widths && (!held_out || has_scratch(r, i)); w++)
            if (wf__run_tasks_file(r, folder, i, t->width[w], path) != WF_OK ||
                !(held_out ? wf__run_zoo_is_done(path) : wf_file_exists(path)))
                return false;
    return true;
}

bool wf__run_tasks_outputs_exist(const wf_run_job *r, wf_stage stage) {
    const wf_run_sources *sources = &r->tasks->sources;
    switch (stage) {
    case WF_STAGE_COLLECTION:
        for (int i = 0; i < sources->n; i++) {
            bool made = r->tasks->task[i].graph != NULL;
            const char *zoo = sources->text[i].zoo;
            if (!(made ? wf__run_zoo_is_done(zoo) : wf_file_exists(zoo))) return false;
        }
        return true;
    case WF_STAGE_HELD_OUT: return networks_exist(r, r->paths.held_out, true);
    case WF_STAGE_TRAINING: return r->recipe.kind->fit == NULL || wf_file_exists(r->paths.flow);
    case WF_STAGE_SAMPLING:
        return networks_exist(r, r->paths.nets, false) &&
               (r->recipe.sample.refine_cycles == 0 || networks_exist(r, r->paths.direct, false));
    default: return wf_file_exists(r->paths.eval);
    }
}

const wf_run_shape wf__run_shape_tasks = {{wf__run_tasks_collection, wf__run_tasks_held_out,
                                           wf__run_tasks_training, stage_sampling,
                                           wf__run_tasks_evaluation},
                                          wf__run_tasks_report,
                                          wf__run_tasks_outputs_exist};
