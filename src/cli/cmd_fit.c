/* fit: a flow without a recipe. The library plans (weft/plan.h), the plan is written as a recipe
 * beside the flow, and that recipe is what is trained: `weft train` with it makes the same flow.
 *
 * F1  The recipe is written before the first update. A fit that was broken off goes on with it;
 *     nothing is measured or planned again.
 * F2  Recipe and flow belong together: a process that plans or removes them holds the lock of the
 *     recipe, as the trainer holds that of the flow. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "run/data_source.h"
#include "run/pipeline.h"
#include "weft/plan.h"
#include "weft/recipe.h"
#include "weft/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct fitting {
    wf_run_app *app;
    const char *zoo_path, *out;
    char recipe_path[WF_RUN_PATH], zoo_whole[WF_RUN_PATH];
    wf_zoo *zoo;
    wf_plan plan;
    bool planned; /* by this call; else an earlier one did */
    wf_run_recipe recipe;
} fitting;

/* --- the plan --------------------------------------------------------------------------------- */

/* Lines of [data]: what differs from the defaults. free() them, also after a failure. */
static wf_status data_lines(wf_run_app *app, wf_data_desc data, char **lines) {
    wf_run_data_paths whole;
    wf_long_text to = {0};
    wf_data_desc plain = wf_data_desc_default();
    wf__run_data_whole(&data, whole);
    wf_status status = WF_OK;
    for (const wf_setting *row = wf_data_settings(); status == WF_OK && row->key != NULL; row++) {
        char buffer[WF_SETTING_BUFFER], *quoted;
        /* The scale is always written: without one the collection's own would count. */
        bool scale = strcmp(row->key, "scale") == 0;
        if (row->key[0] == '\0' || (!scale && wf_setting_equal(row, &data, &plain))) continue;
        status = wf_recipe_quote(app->ctx, wf_setting_text(row, &data, buffer), &quoted);
        if (status == WF_OK) wf_long_text_add(&to, "%s = %s\n", row->key, quoted);
        wf_free(quoted);
    }
    *lines = wf_long_text_end(&to);
    if (*lines != NULL || status != WF_OK) return status;
    return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
}

/* --data, opened once so that what does not fit is said before any training; *lines NULL
 * without. */
static wf_status read_data(fitting *f, char **lines) {
    wf_run_app *app = f->app;
    const char *name = cli_text(app, "data");
    *lines = NULL;
    if (name == NULL) return WF_OK;
    wf_run_recipe recipe;
    wf_dataset *data = NULL;
    wf_status status = wf__run_data_recipe(app, name, f->zoo, &recipe);
    if (status == WF_OK) status = wf__run_recipe_dataset(app, &recipe, &data);
    if (status == WF_OK) status = wf_dataset_fits(app->ctx, data, wf_zoo_graph(f->zoo));
    if (status == WF_OK) status = cli_check_data(app, f->zoo, &recipe);
    if (status == WF_OK) status = data_lines(app, recipe.data, lines);
    wf_dataset_free(data);
    wf__run_recipe_free(&recipe);
    return status;
}

static void say_plan(const fitting *f) {
    const wf_plan *plan = &f->plan;
    const wf_graph *graph = wf_zoo_graph(f->zoo);
    char params[32], updates[32], took[32];
    wf__run_count(plan->field_params, params);
    wf__run_count(plan->fit.updates, updates);
    wf__run_duration(plan->seconds, took);
    wf__run_say(f->app, "%zu networks of %s: %zu train, %zu validate", wf_zoo_count(f->zoo),
                graph->text, plan->networks, plan->fit.set_aside);
    wf__run_say(f->app, "field: %d wide, %d blocks, %s parameters%s", plan->field.node,
                plan->field.blocks, params, plan->field.fold ? ", first layer folded" : "");
    wf__run_say(f->app, "training: %s updates of %zu networks, %.3g ms each: about %s", updates,
                plan->fit.batch, 1000 * plan->update_seconds, took);
    wf__run_say(f->app, "recipe: %s", f->recipe_path);
}

static wf_status write_plan(fitting *f, const char *data) {
    char *text;
    WF_TRY(wf_plan_recipe(f->app->ctx, &f->plan, f->zoo_whole, data, &text));
    wf_status status = wf_write_file(f->app->ctx, f->recipe_path, text, strlen(text));
    wf_free(text);
    return status;
}

static wf_status make_plan(fitting *f) {
    wf_run_app *app = f->app;
    char *data, *quoted;
    WF_TRY(wf__run_whole_path(app, f->zoo_path, f->zoo_whole));
    WF_TRY(wf_recipe_quote(app->ctx, f->zoo_whole, &quoted)); /* what no recipe can hold is said */
    wf_free(quoted);                                          /* before updates are measured */
    wf_status status = read_data(f, &data);
    if (status == WF_OK) {
        wf__run_say(app, "measuring how long updates take");
        status = wf_plan_fit(app->ctx, f->zoo, cli_real(app, "minutes"), &f->plan);
    }
    if (status == WF_OK && cli_given(app, "seed")) {
        uint64_t seed = (uint64_t)cli_int(app, "seed");
        f->plan.field.seed = f->plan.fit.seed = f->plan.sample.seed = seed;
    }
    if (status == WF_OK) status = write_plan(f, data);
    free(data);
    f->planned = status == WF_OK;
    if (f->planned) say_plan(f);
    return status;
}

/* --- what is there already -------------------------------------------------------------------- */

/* --force. Another command may be training the flow. */
static wf_status remove_earlier(fitting *f) {
    wf_ctx *ctx = f->app->ctx;
    wf_lock *lock;
    WF_TRY(wf_lock_file(ctx, f->out, &lock));
    wf_status status = wf_remove(ctx, f->out);
    if (status == WF_OK) status = wf_remove(ctx, f->recipe_path);
    wf_lock_free(lock);
    return status;
}

/* The path without links, "" where nothing is there. Other failures are told, so that a fault of
 * the disk is not taken for another collection. */
static wf_status resolve(wf_run_app *app, const char *path, char out[WF_RUN_PATH]) {
    if (realpath(path, out) != NULL) return WF_OK;
    out[0] = '\0';
    if (errno == ENOENT || errno == ENOTDIR) return WF_OK;
    wf_status status = errno == ENOMEM ? WF_ERR_MEMORY : WF_ERR_INPUT;
    return wf__run_fail(app, status, "%s: %s", path, strerror(errno));
}

/* Is the recipe that is there about the collection that was given? */
static wf_status same_collection(fitting *f, bool *same) {
    char given[WF_RUN_PATH], named[WF_RUN_PATH];
    *same = false;
    if (f->recipe.zoo_path == NULL) return WF_OK;
    WF_TRY(resolve(f->app, f->zoo_path, given));
    WF_TRY(resolve(f->app, f->recipe.zoo_path, named));
    *same = given[0] != '\0' && strcmp(given, named) == 0;
    return WF_OK;
}

/* Invariant F1. *found: a flow stands there with its recipe. */
static wf_status look_around(fitting *f, bool *found) {
    wf_run_app *app = f->app;
    *found = false;
    if (cli_flag(app, "force")) return remove_earlier(f);
    if (!wf_file_exists(f->out)) return WF_OK;
    if (!wf_file_exists(f->recipe_path)) return cli_not_there(app, f->out);
    wf_flow *flow;
    WF_TRY(wf__run_recipe_open(app, f->recipe_path, &f->recipe));
    WF_TRY(wf_flow_open(app->ctx, f->out, &flow));
    size_t done = wf_flow_position(flow), of = f->recipe.fit.updates;
    size_t made = wf_flow_updates(flow); /* fewer where the schedule was shortened */
    wf_flow_free(flow);
    bool same;
    WF_TRY(same_collection(f, &same));
    if (!same)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "%s is a flow of %s; give another name, or --force to fit anew", f->out,
                            f->recipe.zoo_path);
    *found = true;
    if (done >= of)
        wf__run_say(app, "%s: done before, as %s says; --force fits anew", f->out, f->recipe_path);
    else
        wf__run_say(app, "%s: goes on from update %zu of %s%zu, as %s says", f->out, made,
                    made == done ? "" : "at most ", of - done + made, f->recipe_path);
    return WF_OK;
}

/* --- fitting ---------------------------------------------------------------------------------- */

static json_t *plan_json(const fitting *f) {
    const wf_plan *plan = &f->plan;
    if (!f->planned) return json_null();
    return json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:b}", "width",
                     plan->field.node, "blocks", plan->field.blocks, "field_params",
                     (json_int_t)plan->field_params, "updates", (json_int_t)plan->fit.updates,
                     "batch", (json_int_t)plan->fit.batch, "networks", (json_int_t)plan->networks,
                     "set_aside", (json_int_t)plan->fit.set_aside, "seconds", plan->seconds,
                     "update_seconds", plan->update_seconds, "few_networks", plan->few_networks,
                     "short_time", plan->short_time);
}

static wf_status print_result(const fitting *f, double seconds) {
    wf_run_app *app = f->app;
    wf_flow *flow;
    WF_TRY(wf_flow_open(app->ctx, f->out, &flow));
    size_t updates = wf_flow_updates(flow);
    wf_flow_free(flow);
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:s, s:I, s:f, s:o, s:s}", "path", f->out,
                                             "recipe", f->recipe_path, "updates",
                                             (json_int_t)updates, "seconds", seconds, "plan",
                                             plan_json(f), "devices", wf_ctx_devices(app->ctx)));
    char took[32];
    wf__run_duration(seconds, took);
    cli_print("%s: a flow after %zu updates, in %s\n", f->out, updates, took);
    cli_print("networks from it:  weft sample %s -n 100 -o nets.safetensors\n", f->out);
    bool judges = wf_recipe_has_section(f->recipe.source, "data");
    cli_print("the whole table:   weft run %s%s\n", f->recipe_path,
              judges ? "" : " --set data.path=FILE");
    return WF_OK;
}

static wf_status fit_zoo(fitting *f) {
    wf_run_app *app = f->app;
    bool found;
    WF_TRY(wf_zoo_open(app->ctx, f->zoo_path, &f->zoo));
    WF_TRY(wf__run_lock_file(app, f->recipe_path));
    WF_TRY(look_around(f, &found));
    if (found) wf_scratch_sweep(WF_PLAN_SCRATCH); /* a killed process has made the plan */
    else {
        WF_TRY(make_plan(f));
        WF_TRY(wf__run_recipe_open(app, f->recipe_path, &f->recipe));
    }
    /* Also behind the last update: a killed process may not have kept how the flow samples. */
    wf_source source = {.zoo = f->zoo};
    double start = wf_seconds();
    WF_TRY(wf__run_resumable(app, wf__run_fit(app, &f->recipe, &source, 1, f->out)));
    return print_result(f, wf_seconds() - start);
}

wf_status cli_fit_zoo(wf_run_app *app) {
    fitting f = {.app = app, .zoo_path = app->argument[0], .out = cli_text(app, "out")};
    if (f.out == NULL) return wf__run_fail(app, WF_ERR_USAGE, "say where the flow goes: -o FILE");
    if (snprintf(f.recipe_path, WF_RUN_PATH, "%s.recipe.conf", f.out) >= WF_RUN_PATH)
        return wf__run_fail(app, WF_ERR_USAGE, "%.200s...: the path is too long", f.out);
    wf_status status = fit_zoo(&f);
    wf__run_recipe_free(&f.recipe);
    wf_zoo_free(f.zoo);
    return status;
}
