/* job: everything a recipe describes, stage after stage. A finished stage with the same
 * settings is skipped, a broken one goes on where it stopped, and results of other settings are
 * never overwritten unless --redo says so. */
#include "base/comm.h"
#include "run/data_source.h"
#include "run/outputs.h"
#include "run/eval_rows.h"
#include "run/job.h"
#include "weft/comm.h"

#include <stdlib.h>
#include <string.h>

typedef wf_run_job run;

static const char recipe_name[] = "recipe.conf";

bool wf__run_job_along(const run *r) {
    return r->recipe.manifest != NULL && r->recipe.conds != NULL;
}

/* With [zoo] path the collections are those of the recipe. */
static wf_status set_paths(wf_run_app *app, const wf_run_recipe *recipe, const char *folder,
                           wf_run_paths *out) {
    bool flow = recipe->kind->flow != NULL;
    const struct {
        const char *name;
        char *path;
    } files[] = {
        {"zoo.safetensors", out->zoo},
        {"held-out.safetensors", out->held_out},
        {flow ? "flow.safetensors" : "model.safetensors", out->flow},
        {flow ? "flow.safetensors.log.jsonl" : "model.safetensors.log.jsonl", out->log},
        {"nets.safetensors", out->nets},
        {"nets-direct.safetensors", out->direct},
        {"eval.json", out->eval},
        {"points.json", out->points},
        {"report.html", out->report},
        {recipe_name, out->recipe},
        {"zoo-aligned.safetensors", out->aligned},
    };
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        WF_TRY(wf__run_path(app, folder, files[i].name, files[i].path));
    if (recipe->manifest != NULL) { /* folders with a file for each collection */
        char *folders[] = {out->zoo, out->held_out, out->nets, out->direct};
        static const char *const names[] = {"zoos", "scratch", "nets", "nets-direct"};
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
            WF_TRY(wf__run_path(app, folder, names[i], folders[i]));
    }
    if (recipe->zoo_path != NULL) {
        snprintf(out->zoo, sizeof out->zoo, "%s", recipe->zoo_path);
        snprintf(out->held_out, sizeof out->held_out, "%s",
                 recipe->held_out_path != NULL ? recipe->held_out_path : "");
    }
    return WF_OK;
}

const char *wf__run_log_digest(const run *r) {
    const char *name = strrchr(r->paths.log, '/');
    json_t *outputs = wf__run_stages_outputs(&r->stages, WF_STAGE_TRAINING);
    return json_string_value(json_object_get(outputs, name != NULL ? name + 1 : r->paths.log));
}

/* --- the stages ------------------------------------------------------------------------------- */

static const wf_run_shape *shape_of(const run *r) {
    if (r->recipe.manifest == NULL) return &wf__run_shape_one;
    return wf__run_job_along(r) ? &wf__run_shape_domains : &wf__run_shape_tasks;
}

static wf_status do_stage(run *r, wf_stage stage) {
    if (stage == WF_STAGE_REPORT) return shape_of(r)->report(r, r->paths.report);
    return shape_of(r)->stages[stage](r);
}

static bool is_there(const run *r, wf_stage stage) {
    if (stage == WF_STAGE_REPORT) return wf_file_exists(r->paths.report);
    return shape_of(r)->outputs_exist(r, stage);
}

/* Offsets in wf_run_paths of what a stage leaves, ended by 0, which is `folder`. */
#define FILE_AT(member) offsetof(wf_run_paths, member)
static const size_t outputs_of[WF_STAGES][3] = {
    [WF_STAGE_COLLECTION] = {FILE_AT(zoo)},
    [WF_STAGE_HELD_OUT] = {FILE_AT(held_out)},
    [WF_STAGE_TRAINING] = {FILE_AT(flow), FILE_AT(log), FILE_AT(aligned)},
    [WF_STAGE_SAMPLING] = {FILE_AT(nets), FILE_AT(direct)},
    [WF_STAGE_EVALUATION] = {FILE_AT(eval), FILE_AT(points)},
    [WF_STAGE_REPORT] = {FILE_AT(report)},
};

/* Path k of what a stage leaves; NULL after the last. */
static const char *output_path(const run *r, wf_stage stage, int k) {
    if (k == 3 || outputs_of[stage][k] == 0) return NULL;
    return (const char *)&r->paths + outputs_of[stage][k];
}

/* --- skipping, redoing ------------------------------------------------------------------------ */

/* Collections that the recipe names are the user's: never removed. */
static bool is_given(const run *r, wf_stage stage) {
    return r->recipe.zoo_path != NULL &&
           (stage == WF_STAGE_COLLECTION || stage == WF_STAGE_HELD_OUT);
}

static wf_status remove_outputs(run *r, wf_stage stage) {
    if (is_given(r, stage)) return WF_OK;
    const char *path;
    for (int k = 0; (path = output_path(r, stage, k)) != NULL; k++) {
        char beside[WF_RUN_PATH + 32];
        WF_TRY(wf_remove(r->app->ctx, path));
        static const char *const ending[] = {".parts", ".cloud.safetensors"};
        for (int e = 0; e < 2; e++) {
            snprintf(beside, sizeof beside, "%s%s", path, ending[e]);
            WF_TRY(wf_remove(r->app->ctx, beside));
        }
    }
    return WF_OK;
}

static wf_status redo_from(run *r, wf_stage changed, const char *what) {
    wf__run_say(r->app, "%s; %s and what stands on it are done again", what,
                wf__run_stage_name(changed));
    for (int stage = 0; stage < WF_STAGES; stage++)
        if (stage == (int)changed || wf__run_stage_depends((wf_stage)stage, changed))
            WF_TRY(remove_outputs(r, (wf_stage)stage));
    return wf__run_stages_forget(r->app, &r->stages, changed);
}

/* A collection of several files that has one more or one less than it had. */
static wf_status given_changed(run *r, wf_stage stage, char changed[WF_RUN_PATH]) {
    const char *path = output_path(r, stage, 0);
    if (path[0] == '\0' || !wf__run_exists(r->app, path)) return WF_OK; /* reported later */
    return wf__run_parts_changed(r->app, r->paths.folder, path,
                                 wf__run_stages_outputs(&r->stages, stage), changed);
}

/* Files that are not what their stage left: damaged, or exchanged. */
static wf_status settle_outputs(run *r, bool redo) {
    for (int stage = 0; stage < WF_STAGES; stage++) {
        char path[WF_RUN_PATH], what[WF_RUN_PATH + 64];
        if (!wf__run_stages_finished(&r->stages, (wf_stage)stage)) continue;
        WF_TRY(wf__run_outputs_changed(r->app, r->paths.folder,
                                       wf__run_stages_outputs(&r->stages, (wf_stage)stage), path));
        if (path[0] == '\0' && is_given(r, (wf_stage)stage))
            WF_TRY(given_changed(r, (wf_stage)stage, path));
        if (path[0] == '\0') continue;
        bool again = redo || stage == WF_STAGE_REPORT; /* which is made of results */
        if (!again && is_given(r, (wf_stage)stage))
            return wf__run_fail(
                r->app, WF_ERR_USAGE,
                "%s is not %s the results in %s were made with. Give another --out, or --redo to "
                "replace them",
                path,
                wf_file_exists(output_path(r, (wf_stage)stage, 0))
                    ? "the collection that"
                    : "as it was in the collection that",
                r->paths.folder);
        if (!again)
            return wf__run_fail(r->app, WF_ERR_INPUT,
                                "%s: is not what %s left: damaged, or exchanged. Remove %s, %s",
                                path, wf__run_stage_name((wf_stage)stage), path,
                                strcmp(path, r->paths.log) == 0
                                    ? "and the page has no curve of the loss"
                                    : "and weft run makes it again");
        snprintf(what, sizeof what, "%s is not what it was", path);
        WF_TRY(redo_from(r, (wf_stage)stage, what));
    }
    return WF_OK;
}

/* Settings that changed since the results in the folder: refuse, or with redo start those stages
 * over. The page itself is made of results and may always be written again. */
static wf_status settle_changes(run *r, bool redo) {
    for (;;) {
        char what[600];
        wf_stage changed = wf__run_stages_changed(&r->stages, what, sizeof what);
        if (changed == WF_STAGES) return WF_OK;
        if (!redo && changed != WF_STAGE_REPORT)
            return wf__run_fail(
                r->app, WF_ERR_USAGE,
                "%s holds results of another recipe (%s): %s. Give another --out, or --redo to "
                "replace them",
                r->paths.folder, wf__run_stage_name(changed), what);
        WF_TRY(redo_from(r, changed, what));
    }
}

/* Of everything the stage leaves. The stage is done, also when there is no time left for
 * digests. */
static wf_status take_digests(run *r, wf_stage stage, json_t *outputs) {
    wf_status status = WF_OK;
    const char *path;
    for (int k = 0; status == WF_OK && (path = output_path(r, stage, k)) != NULL; k++)
        status = wf__run_outputs_add(r->app, r->paths.folder, path, outputs);
    if (status != WF_ERR_INTERRUPTED) return status;
    json_object_clear(outputs);
    return WF_OK;
}

/* A stage of a run that has no such part: nothing is held out, or the generator needs no fit. */
static bool has_nothing(const run *r, wf_stage stage) {
    const wf_run_recipe *recipe = &r->recipe;
    if (stage == WF_STAGE_TRAINING) return recipe->kind->fit == NULL;
    if (stage != WF_STAGE_HELD_OUT || r->tasks != NULL) return false;
    return recipe->zoo_path != NULL ? recipe->held_out_path == NULL : recipe->held_out == 0;
}

static wf_status run_stage(run *r, wf_stage stage) {
    wf_run_app *app = r->app;
    bool silent = has_nothing(r, stage);
    bool done = wf__run_stages_finished(&r->stages, stage) && is_there(r, stage);
    WF_TRY(wf_ctx_decide(app->ctx, &done)); /* with several ranks: as rank 0 sees the files */
    if (done) {
        if (!silent) wf__run_say(app, "%s: done before", wf__run_stage_name(stage));
        return WF_OK;
    }
    if (wf_interrupted(app->ctx))
        return wf__run_fail(app, WF_ERR_INTERRUPTED,
                            "stopped before %s; the same command goes on from here",
                            wf__run_stage_name(stage));
    WF_TRY(wf__run_stages_begin(app, &r->stages, stage));
    double start = wf_seconds();
    wf_status status = do_stage(r, stage);
    double seconds = wf_seconds() - start;
    if (status != WF_OK) {
        /* The first fault is the one to tell. */
        if (app->sentence[0] == '\0') wf__run_fail(app, status, "%s", wf_last_error(app->ctx));
        wf__run_resumable(app, status);
        char sentence[sizeof app->sentence];
        memcpy(sentence, app->sentence, sizeof sentence);
        wf_comm_give_up(app->ctx, status, sentence); /* the other ranks may not be here */
        wf__run_stages_end(app, &r->stages, stage, seconds, false, NULL);
        memcpy(app->sentence, sentence, sizeof sentence);
        return status;
    }
    char took[32];
    wf__run_duration(seconds, took);
    if (!silent) wf__run_say(app, "%s: %s", wf__run_stage_name(stage), took);
    json_t *outputs = json_object();
    status = take_digests(r, stage, outputs);
    if (status == WF_OK)
        status = wf__run_stages_end(app, &r->stages, stage, seconds, true, outputs);
    json_decref(outputs);
    return status;
}

static wf_status write_resolved(run *r) {
    char *text = wf__run_recipe_resolved(&r->recipe);
    if (text == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    wf_status status =
        wf__run_stages_keep_recipe(r->app, &r->stages, recipe_name, r->paths.recipe, text);
    free(text);
    return status;
}

/* What can be said before any work is done. */
static wf_status check_recipe(run *r) {
    const wf_run_recipe *recipe = &r->recipe;
    if (recipe->sample.refine_cycles > 0 && (recipe->kind->traits & WF_GENERATOR_REFINES) == 0)
        return wf__run_fail(r->app, WF_ERR_USAGE,
                            "sample.refine_cycles is %d, but %s has no refinement; set it to 0",
                            recipe->sample.refine_cycles, recipe->generator);
    if (recipe->fresh && (recipe->zoo_path != NULL || recipe->train_path != NULL))
        return wf__run_fail(r->app, WF_ERR_USAGE,
                            "zoo.fresh trains networks by [zoo]'s settings; leave %s.path out",
                            recipe->zoo_path != NULL ? "zoo" : "train");
    wf_run_eval_rows rows;
    bool many = recipe->manifest != NULL;
    wf_status status = wf__run_eval_rows_read(r->app, recipe, many ? "scratch" : "held-out",
                                              !many && recipe->controls, &rows);
    wf__run_eval_rows_free(&rows);
    return status;
}

/* Can the generator be fitted to the collection that [zoo] makes? Said before it is made. */
static wf_status check_fit(run *r) {
    const wf_run_recipe *recipe = &r->recipe;
    const wf_generator_kind *kind = recipe->kind;
    size_t params, limit = recipe->fit.limit, networks = recipe->zoo.count;
    if (kind->fit == NULL || r->graph == NULL) return WF_OK;
    WF_TRY(wf_generator_params(r->app->ctx, kind, recipe->model, r->graph, 0, &params));
    if (limit > 0 && limit < networks) networks = limit;
    size_t least = kind->least != NULL ? kind->least(recipe->model) : 1;
    if (recipe->train_path != NULL || networks >= least) return WF_OK;
    return wf__run_fail(r->app, WF_ERR_USAGE,
                        "%s takes %zu networks or more with the settings of [model], and [zoo] and "
                        "train.limit leave %zu; raise zoo.count, or lower what [model] asks for",
                        kind->name, least, networks);
}

/* Data that the networks of zoo.path are judged on. Those that were brought in read them as their
 * collection says, and may have seen no row of them. */
static wf_status open_given_data(run *r) {
    wf_zoo *zoo;
    const wf_data_desc *data = &r->recipe.data;
    WF_TRY(wf_zoo_open(r->app->ctx, r->recipe.zoo_path, &zoo));
    bool imported = wf_zoo_meta(zoo, "weft.sources") != NULL;
    wf_status status = wf__run_read_as(r->app, zoo, &r->recipe);
    wf_zoo_free(zoo);
    if (status == WF_OK) status = wf__run_recipe_dataset(r->app, &r->recipe, &r->data);
    if (status == WF_OK && imported && data->path != NULL && data->test_path == NULL)
        wf__run_say(r->app, "%s: judged on %zu of %zu rows; --set data.test_path=%s takes them all",
                    data->path, r->data->n_test, r->data->n_train + r->data->n_test, data->path);
    return status;
}

static wf_status open_inputs(run *r) {
    const wf_run_recipe *recipe = &r->recipe;
    WF_TRY(check_recipe(r));
    bool given = recipe->zoo_path != NULL;
    if (recipe->manifest != NULL && (given || recipe->arch != NULL))
        return wf__run_fail(r->app, WF_ERR_USAGE,
                            "zoo.manifest names the collections; leave zoo.%s out",
                            given ? "path" : "arch");
    if (recipe->manifest != NULL && recipe->train_path != NULL)
        return wf__run_fail(r->app, WF_ERR_USAGE,
                            "zoo.manifest names the collections; leave train.path out");
    if (recipe->manifest != NULL) return wf__run_tasks_open(r);
    if (recipe->widths != NULL || recipe->conds != NULL)
        return wf__run_fail(
            r->app, WF_ERR_USAGE,
            "sample.%s belongs to zoo.manifest; weft sample does it for one collection",
            recipe->widths != NULL ? "widths" : "conds");
    if (recipe->shares != NULL)
        return wf__run_fail(r->app, WF_ERR_USAGE, "train.shares belongs to zoo.manifest");
    if (!given) WF_TRY(wf__run_recipe_dataset(r->app, recipe, &r->data));
    else if (wf_recipe_has_section(recipe->source, "data")) WF_TRY(open_given_data(r));
    if (!given) WF_TRY(wf__run_recipe_graph(r->app, recipe, r->data, &r->graph));
    return check_fit(r);
}

wf_status wf__run_job(run *r, const char *folder, bool redo) {
    wf_run_app *app = r->app;
    WF_TRY(set_paths(app, &r->recipe, folder, &r->paths));
    WF_TRY(open_inputs(r));
    WF_TRY(wf_make_folder(app->ctx, folder));
    WF_TRY(wf__run_lock_folder(app, folder));
    const char *fingerprint = r->tasks != NULL  ? r->tasks->fingerprint
                              : r->data != NULL ? r->data->fingerprint
                                                : "";
    WF_TRY(wf__run_stages_open(app, folder, &r->recipe, fingerprint, &r->stages));
    WF_TRY(settle_changes(r, redo));
    WF_TRY(settle_outputs(r, redo));
    WF_TRY(write_resolved(r));
    for (int stage = 0; stage < WF_STAGES; stage++) WF_TRY(run_stage(r, (wf_stage)stage));
    return WF_OK;
}

/* A fault in a file that the run itself made: the sentence says how to mend it. */
static wf_status add_remedy(run *r, wf_status status) {
    wf_run_app *app = r->app;
    if (status != WF_ERR_INPUT && status != WF_ERR_SHAPE) return status;
    if (strstr(app->sentence, "Remove ") != NULL) return status;
    char sentence[sizeof app->sentence];
    snprintf(sentence, sizeof sentence, "%s",
             app->sentence[0] != '\0' ? app->sentence : wf_last_error(app->ctx));
    const char *path;
    for (int stage = 0; stage < WF_STAGES; stage++)
        for (int k = 0; (path = output_path(r, (wf_stage)stage, k)) != NULL; k++) {
            size_t length = strlen(path);
            bool named = length > 0 && strncmp(sentence, path, length) == 0 &&
                         strchr(":, ", sentence[length]) != NULL;
            if (named && !is_given(r, (wf_stage)stage) && wf_file_exists(path))
                return wf__run_fail(app, status, "%s. Remove %s, and weft run makes it again",
                                    sentence, path);
        }
    return status;
}

wf_status wf__run_job_create(wf_run_app *app, run **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    (*out)->app = app;
    return WF_OK;
}

wf_status wf__run_job_end(run *r, wf_status status) {
    status = add_remedy(r, status);
    wf__run_stages_free(&r->stages);
    wf__run_tasks_free(r->tasks);
    wf_dataset_free(r->data);
    wf_graph_free(r->graph);
    wf__run_recipe_free(&r->recipe);
    free(r);
    return status;
}

static wf_status record_page(run *r) {
    json_t *outputs = json_object();
    wf_status status = take_digests(r, WF_STAGE_REPORT, outputs);
    if (status == WF_OK)
        status = wf__run_stages_renew(r->app, &r->stages, WF_STAGE_REPORT, outputs);
    json_decref(outputs);
    return status;
}

/* r->recipe is the resolved one that lies in the folder. */
wf_status wf__run_job_report(run *r, const char *folder, const char *out) {
    wf_run_app *app = r->app;
    char source[WF_RUN_PATH];
    WF_TRY(wf__run_path(app, folder, recipe_name, source));
    if (!wf_file_exists(source))
        return wf__run_fail(app, WF_ERR_INPUT, "%s is no folder of weft run: it has no %s", folder,
                            recipe_name);
    WF_TRY(wf__run_recipe_open(app, source, &r->recipe));
    WF_TRY(set_paths(app, &r->recipe, folder, &r->paths));
    bool own = out == NULL || strcmp(out, r->paths.report) == 0; /* the run's page */
    if (own) WF_TRY(wf__run_lock_folder(app, folder));
    else WF_TRY(wf__run_lock_file(app, out));
    if (r->recipe.manifest == NULL && wf_recipe_has_section(r->recipe.source, "data"))
        WF_TRY(wf__run_recipe_dataset(app, &r->recipe, &r->data));
    WF_TRY(wf__run_stages_open(app, folder, &r->recipe, "", &r->stages));
    char changed[WF_RUN_PATH];
    WF_TRY(wf__run_outputs_changed(app, folder, wf__run_stages_recipe(&r->stages), changed));
    if (changed[0] != '\0')
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s: is not what weft run wrote: damaged, or exchanged. The same weft "
                            "run writes it again",
                            changed);
    WF_TRY(wf__run_outputs_changed(
        app, folder, wf__run_stages_outputs(&r->stages, WF_STAGE_EVALUATION), changed));
    if (changed[0] != '\0')
        return wf__run_fail(app, WF_ERR_INPUT,
                            "%s: is not what evaluation left: damaged, or exchanged", changed);
    WF_TRY(shape_of(r)->report(r, own ? r->paths.report : out));
    if (own) return record_page(r);
    snprintf(r->paths.report, sizeof r->paths.report, "%s", out);
    return WF_OK;
}
