/* run: weft/run.h on top of jobs. */
#include "weft/run.h"

#include "base/settings_json.h"
#include "base/status.h"
#include "run/job.h"

#include <stdlib.h>
#include <string.h>

static void pass_on(wf_run_app *app, const char *line) {
    const wf_run_desc *desc = app->user;
    desc->say(desc->user, line);
}

static wf_status begin(wf_ctx *ctx, const wf_run_desc *desc, wf_run_app *app) {
    *app = (wf_run_app){.ctx = ctx, .seed = desc->seed, .user = (void *)(uintptr_t)desc};
    if (desc->say != NULL) app->say = pass_on;
    if (desc->n_overrides < 0 || desc->n_overrides > WF_RUN_MAX_LIST)
        return wf_fail(ctx, WF_ERR_USAGE, "%d overrides; at most %d", desc->n_overrides,
                       WF_RUN_MAX_LIST);
    for (int i = 0; i < desc->n_overrides; i++) app->list[app->n_list++] = desc->overrides[i];
    wf_zoo_desc zoo;
    const wf_setting *row = wf_settings_find(wf_zoo_settings(), "seed");
    if (desc->seed != NULL && !wf_setting_parse(row, desc->seed, &zoo))
        return wf_fail(ctx, WF_ERR_USAGE, "seed is \"%.40s\"; a whole number from 0 up",
                       desc->seed);
    return WF_OK;
}

/* What the job noticed itself becomes the context's sentence. */
static wf_status end(wf_run_app *app, wf_status status) {
    for (int i = 0; i < app->n_locks; i++) wf_lock_free(app->locks[i]);
    if (status != WF_OK && app->sentence[0] != '\0')
        return wf_fail(app->ctx, status, "%s", app->sentence);
    return status;
}

static json_t *files_json(const wf_run_paths *paths) {
    const struct {
        const char *key, *path;
    } all[] = {{"zoo", paths->zoo},      {"held_out", paths->held_out}, {"flow", paths->flow},
               {"log", paths->log},      {"nets", paths->nets},         {"direct", paths->direct},
               {"eval", paths->eval},    {"points", paths->points},     {"report", paths->report},
               {"recipe", paths->recipe}};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].path[0] != '\0' && wf_file_exists(all[i].path))
            json_object_set_new(object, all[i].key, json_string(all[i].path));
    return object;
}

static wf_status describe(wf_run_job *job, char **result) {
    json_t *eval;
    WF_TRY(wf__run_json_read(job->app, job->paths.eval, &eval));
    return wf__json_answer(
        job->app->ctx,
        json_pack("{s:s, s:s, s:f, s:o, s:o, s:s}", "folder", job->paths.folder, "name",
                  job->recipe.name, "seconds", wf__run_stages_total(&job->stages), "eval", eval,
                  "files", files_json(&job->paths), "devices", wf_ctx_devices(job->app->ctx)),
        result);
}

static wf_status open_recipe(wf_run_app *app, const char *recipe, const char *text,
                             wf_run_recipe *out) {
    if (text != NULL)
        return wf__run_recipe_of_text(app, recipe != NULL ? recipe : "recipe", text, out);
    if (recipe == NULL) return wf_fail(app->ctx, WF_ERR_USAGE, "say which recipe to run");
    bool builtin = strcmp(recipe, "demo") == 0 && !wf_file_exists(recipe);
    return builtin ? wf__run_recipe_builtin(app, out) : wf__run_recipe_open(app, recipe, out);
}

wf_status wf_run(wf_ctx *ctx, const char *recipe, const char *text, const wf_run_desc *desc,
                 char **result) {
    static const wf_run_desc defaults;
    wf_run_app *app;
    wf_run_job *job;
    if (desc == NULL) desc = &defaults;
    if (result != NULL) *result = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *app, "run", &app));
    wf_status status = begin(ctx, desc, app);
    if (status == WF_OK) status = wf__run_job_create(app, &job);
    if (status == WF_OK) {
        status = open_recipe(app, recipe, text, &job->recipe);
        if (status == WF_OK) {
            char folder[WF_RUN_PATH];
            if (desc->folder != NULL) snprintf(folder, sizeof folder, "%s", desc->folder);
            else snprintf(folder, sizeof folder, "runs/%s", job->recipe.name);
            status = wf__run_job(job, folder, desc->redo);
        }
        if (status == WF_OK && result != NULL) status = describe(job, result);
        status = wf__run_job_end(job, status);
    }
    status = end(app, status);
    free(app);
    return status;
}

wf_status wf_run_report(wf_ctx *ctx, const char *folder, const char *path) {
    static const wf_run_desc defaults;
    wf_run_app *app;
    wf_run_job *job;
    WF_TRY(wf_alloc(ctx, 1, sizeof *app, "run", &app));
    wf_status status = begin(ctx, &defaults, app);
    if (status == WF_OK) status = wf__run_job_create(app, &job);
    if (status == WF_OK) status = wf__run_job_end(job, wf__run_job_report(job, folder, path));
    status = end(app, status);
    free(app);
    return status;
}

/* --- options as JSON -------------------------------------------------------------------------- */

typedef struct override_texts {
    char *text[WF_RUN_MAX_LIST];
    int n;
} override_texts;

/* {"train.updates": 100} to "train.updates=100". */
static wf_status read_overrides(wf_ctx *ctx, json_t *set, override_texts *out) {
    const char *key;
    json_t *value;
    if (set != NULL && !json_is_object(set))
        return wf_fail(ctx, WF_ERR_USAGE, "set: an object of \"section.key\": value is expected");
    json_object_foreach(set, key, value) {
        char *text = NULL, *scalar = NULL;
        if (json_is_string(value)) scalar = strdup(json_string_value(value));
        else if (json_is_boolean(value)) scalar = strdup(json_is_true(value) ? "yes" : "no");
        else if (json_is_number(value)) scalar = json_dumps(value, JSON_ENCODE_ANY);
        else
            return wf_fail(ctx, WF_ERR_USAGE, "set.%s: a text, a number, true or false is expected",
                           key);
        if (out->n == WF_RUN_MAX_LIST) {
            free(scalar);
            return wf_fail(ctx, WF_ERR_USAGE, "set: at most %d overrides", WF_RUN_MAX_LIST);
        }
        if (scalar == NULL || asprintf(&text, "%s=%s", key, scalar) < 0) {
            free(scalar);
            return wf_fail(ctx, WF_ERR_MEMORY, "out of memory");
        }
        free(scalar);
        out->text[out->n++] = text;
    }
    return WF_OK;
}

/* The options besides "set"; texts are those of `options`, or `seed`. */
static wf_status read_options(wf_ctx *ctx, const json_t *options, char seed[32],
                              wf_run_desc *desc) {
    const json_t *folder = json_object_get(options, "folder");
    const json_t *number = json_object_get(options, "seed");
    const json_t *redo = json_object_get(options, "redo");
    if (folder != NULL && !json_is_string(folder))
        return wf_fail(ctx, WF_ERR_USAGE, "folder: a text is expected");
    if (number != NULL && !json_is_integer(number) && !json_is_string(number))
        return wf_fail(ctx, WF_ERR_USAGE, "seed: a whole number is expected");
    if (redo != NULL && !json_is_boolean(redo))
        return wf_fail(ctx, WF_ERR_USAGE, "redo: true or false is expected");
    snprintf(seed, 32, "%lld", (long long)json_integer_value(number));
    desc->folder = json_string_value(folder);
    desc->seed = json_is_string(number) ? json_string_value(number) : number != NULL ? seed : NULL;
    desc->redo = json_is_true(redo);
    return WF_OK;
}

wf_status wf_run_json(wf_ctx *ctx, const char *recipe, const char *text, const char *json,
                      void (*say)(void *user, const char *line), void *user, char **result) {
    static const char *const known[] = {"folder", "set", "seed", "redo", NULL};
    json_t *options;
    override_texts overrides = {.n = 0};
    char seed[32];
    if (result != NULL) *result = NULL;
    WF_TRY(wf__json_options(ctx, "run", json, &options));
    wf_status status = wf__json_known(ctx, "run", options, known);
    if (status == WF_OK) status = read_overrides(ctx, json_object_get(options, "set"), &overrides);
    wf_run_desc desc = {.overrides = (const char *const *)overrides.text,
                        .n_overrides = overrides.n,
                        .say = say,
                        .user = user};
    if (status == WF_OK) status = read_options(ctx, options, seed, &desc);
    if (status == WF_OK) status = wf_run(ctx, recipe, text, &desc, result);
    for (int i = 0; i < overrides.n; i++) free(overrides.text[i]);
    json_decref(options);
    return status;
}
