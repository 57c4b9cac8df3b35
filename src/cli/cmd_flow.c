/* train, flow info: fit a generator to collections; what a flow was fitted to. */
#include "cli/commands.h"
#include "run/data_source.h"
#include "run/pipeline.h"
#include "run/sources.h"
#include "weft/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FLOW and `ending`; fails when it is too long. */
static wf_status path_beside(wf_run_app *app, const char *flow, const char *ending,
                             char out[WF_RUN_PATH]) {
    if (snprintf(out, WF_RUN_PATH, "%s%s", flow, ending) < WF_RUN_PATH) return WF_OK;
    return wf__run_fail(app, WF_ERR_USAGE, "%.200s...: the path is too long", flow);
}

/* One section: collection i of --zoo A,B, and its condition. */
static wf_status put_section(wf_run_app *app, wf_long_text *to, const wf_run_source_text *source,
                             int i) {
    char whole[WF_RUN_PATH], *zoo, *cond = NULL;
    WF_TRY(wf__run_whole_path(app, source->zoo, whole));
    WF_TRY(wf_recipe_quote(app->ctx, whole, &zoo));
    wf_status status =
        source->cond == NULL ? WF_OK : wf_recipe_quote(app->ctx, source->cond, &cond);
    if (status == WF_OK) wf_long_text_add(to, "[%d]\nzoo = %s\n", i + 1, zoo);
    if (cond != NULL) wf_long_text_add(to, "cond = %s\n", cond);
    wf_free(zoo);
    wf_free(cond);
    return status;
}

/* Several collections of --zoo as a manifest, which a recipe can name. */
static wf_status write_manifest(wf_run_app *app, const wf_run_sources *s, const char *path) {
    wf_long_text to = {0};
    wf_status status = WF_OK;
    for (int i = 0; status == WF_OK && i < s->n; i++)
        status = put_section(app, &to, &s->text[i], i);
    char *text = wf_long_text_end(&to);
    if (status == WF_OK && text == NULL) status = wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    if (status == WF_OK) status = wf_write_file(app->ctx, path, text, to.length);
    free(text);
    return status;
}

/* The recipe that weft run takes: as it was read, with collections and data by their whole paths.
 * One collection is zoo.path; several, or one with a condition, are a manifest. */
static wf_status write_recipe_beside(wf_run_app *app, const wf_run_recipe *recipe,
                                     const wf_run_sources *s, const char *flow) {
    char beside[WF_RUN_PATH], list[WF_RUN_PATH], named[WF_RUN_PATH];
    wf_run_data_paths data;
    bool listed = cli_text(app, "zoo") != NULL;
    bool one = listed && s->n == 1 && s->text[0].cond == NULL;
    const char *source = cli_text(app, "manifest");
    if (source == NULL) source = recipe->manifest; /* one of the three is there: open_sources */
    WF_TRY(path_beside(app, flow, ".recipe.conf", beside));
    WF_TRY(path_beside(app, flow, ".manifest.conf", list));
    if (one) source = s->text[0].zoo;
    else if (listed) {
        WF_TRY(write_manifest(app, s, list));
        source = list;
    }
    wf_run_recipe made = *recipe;
    WF_TRY(wf__run_whole_path(app, source, named));
    made.zoo_path = one ? named : NULL;
    made.manifest = one ? NULL : named;
    if (!one) made.arch = NULL; /* a manifest's collections have theirs */
    wf__run_data_whole(&made.data, data);
    char *text = wf__run_recipe_resolved(&made);
    if (text == NULL)
        return wf__run_fail(app, WF_ERR_MEMORY, "%s: out of memory, or a path is not UTF-8",
                            beside);
    wf_status status = wf_write_file(app->ctx, beside, text, strlen(text));
    free(text);
    return status;
}

/* --zoo, --manifest, or the recipe's manifest. */
static wf_status open_sources(wf_run_app *app, const wf_run_recipe *recipe, wf_run_sources *s) {
    const char *zoo = cli_text(app, "zoo"), *manifest = cli_text(app, "manifest");
    if (zoo != NULL && manifest != NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "give --zoo or --manifest, not both");
    if (manifest != NULL && cli_text(app, "cond") != NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--cond belongs to --zoo; a manifest holds conditions itself");
    if (zoo != NULL) return wf__run_sources_list(app, zoo, cli_text(app, "cond"), s);
    if (manifest == NULL) manifest = recipe->manifest;
    if (manifest != NULL) return wf__run_sources_manifest(app, manifest, s);
    return wf__run_fail(
        app, WF_ERR_USAGE,
        "say what to fit: --zoo FILE or --manifest FILE (weft zoo train and weft zoo "
        "import make collections; weft run does all of it)");
}

static wf_status print_fitted(wf_run_app *app, const wf_run_recipe *recipe, const char *path,
                              double seconds) {
    size_t updates = 0;
    bool is_flow = recipe->kind->flow != NULL;
    if (is_flow) {
        wf_flow *flow;
        WF_TRY(wf_flow_open(app->ctx, path, &flow));
        updates = wf_flow_updates(flow);
        wf_flow_free(flow);
    }
    if (app->json) {
        json_t *json =
            json_pack("{s:s, s:s, s:f, s:s}", "path", path, "generator", recipe->generator,
                      "seconds", seconds, "devices", wf_ctx_devices(app->ctx));
        if (json != NULL && is_flow)
            json_object_set_new(json, "updates", json_integer((json_int_t)updates));
        return cli_print_json(app, json);
    }
    if (is_flow) cli_print("%s: a flow after %zu update%s\n", path, updates, WF_RUN_S(updates));
    else cli_print("%s: %s, fitted\n", path, recipe->generator);
    return WF_OK;
}

static wf_status fit(wf_run_app *app, wf_run_recipe *recipe, wf_run_sources *s) {
    const char *out = cli_text(app, "out");
    WF_TRY(wf__run_recipe_open(app, app->argument[0], recipe));
    if (out == NULL) return wf__run_fail(app, WF_ERR_USAGE, "say where the flow goes: -o FILE");
    if (recipe->kind->fit == NULL)
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "model.generator is %s, which needs no fit; weft sample makes its networks",
            recipe->generator);
    cli_settings(app, wf_fit_settings(), &recipe->fit);
    if (recipe->train_path != NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "train.path belongs to weft run; here --zoo names what is fitted");
    if (recipe->fresh)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "zoo.fresh belongs to weft run, which knows how networks are trained");
    WF_TRY(open_sources(app, recipe, s));
    WF_TRY(wf__run_sources_open(app, s));
    WF_TRY(wf__run_sources_condition(app, s, recipe));
    WF_TRY(wf__run_sources_shares(app, s, recipe->shares));
    WF_TRY(write_recipe_beside(app, recipe, s, out));
    double start = wf_seconds();
    WF_TRY(wf__run_resumable(app, wf__run_fit(app, recipe, s->list, s->n, out)));
    return print_fitted(app, recipe, out, wf_seconds() - start);
}

wf_status cli_train(wf_run_app *app) {
    wf_run_recipe recipe = {0};
    wf_run_sources s = {0};
    wf_status status = fit(app, &recipe, &s);
    wf__run_sources_free(&s);
    wf__run_recipe_free(&recipe);
    return status;
}

/* --- flow info -------------------------------------------------------------------------------- */

/* Networks that were trained beside the flow, not the file's. */
static bool is_fresh(const wf_flow *flow, int index) {
    char key[32];
    snprintf(key, sizeof key, "source.%d.fresh", index);
    return wf_flow_meta(flow, key) != NULL;
}

static json_t *source_to_json(const wf_flow *flow, int index) {
    wf_flow_source source = wf_flow_source_at(flow, index);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:s, s:s, s:s}", "task", source.task, "arch", source.graph->text,
        "activation", wf_activation_name(source.graph->activation), "networks",
        (json_int_t)source.count, "tests", source.tests, "data", source.data, "path", source.path);
    if (source.cond != NULL)
        json_object_set_new(json, "cond",
                            wf__run_numbers_to_json(source.cond, wf_flow_cond_size(flow)));
    if (is_fresh(flow, index)) json_object_set_new(json, "fresh", json_true());
    return json;
}

static void print_source(const wf_flow *flow, int index) {
    wf_flow_source source = wf_flow_source_at(flow, index);
    int numbers = source.cond != NULL ? wf_flow_cond_size(flow) : 0;
    cli_print("  %-20s %-20s %8zu network%s", source.task[0] != '\0' ? source.task : "-",
              source.graph->text, source.count, WF_RUN_S(source.count));
    if (numbers > 8) cli_print("  a condition of %d numbers", numbers);
    else if (numbers > 0) cli_print("  condition ");
    for (int k = 0; numbers <= 8 && k < numbers; k++)
        cli_print("%s%g", k > 0 ? "," : "", source.cond[k]);
    cli_print("%s%s%s\n", is_fresh(flow, index) ? "  trained beside the flow" : "",
              source.tests[0] != '\0' ? "  tested on " : "", source.tests);
}

static wf_status print_flow_json(wf_run_app *app, const wf_flow *flow) {
    const wf_generator_kind *kind = wf_generator_find(wf_flow_generator(flow));
    const char *cond = wf_flow_meta(flow, "field.cond");
    char *settings = wf_settings_json(kind->settings(), wf_flow_options(flow));
    json_t *sources = json_array();
    for (int i = 0; i < wf_flow_sources(flow); i++)
        json_array_append_new(sources, source_to_json(flow, i));
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:o?, s:I, s:s, s:i, s:o, s:o}", "path", app->argument[0],
                  "generator", kind->name, "updates", (json_int_t)wf_flow_updates(flow), "model",
                  settings == NULL ? NULL : json_loads(settings, 0, NULL), "parameters",
                  (json_int_t)wf_flow_params(flow), "cond", cond != NULL ? cond : "none",
                  "cond_size", wf_flow_cond_size(flow), "cond_drop",
                  wf__run_json_number(wf_flow_trained_with(flow)->cond_drop), "sources", sources);
    free(settings);
    return cli_print_json(app, json);
}

static wf_status print_flow(wf_run_app *app, const wf_flow *flow) {
    if (app->json) return print_flow_json(app, flow);
    const char *cond = wf_flow_meta(flow, "field.cond");
    int cond_size = wf_flow_cond_size(flow);
    char count[32], model[400];
    wf__run_count(wf_flow_params(flow), count);
    wf__run_options_text(wf_generator_find(wf_flow_generator(flow)), wf_flow_options(flow), model,
                         sizeof model);
    cli_print("%s\n  generator    %s: %s parameters after %zu update%s\n", app->argument[0], model,
              count, wf_flow_updates(flow), WF_RUN_S(wf_flow_updates(flow)));
    if (cond_size > 0)
        cli_print("  conditions   %d number%s (%s), left out with probability %g\n", cond_size,
                  WF_RUN_S(cond_size), cond != NULL ? cond : "",
                  wf_flow_trained_with(flow)->cond_drop);
    cli_print("fitted to\n");
    for (int i = 0; i < wf_flow_sources(flow); i++) print_source(flow, i);
    return WF_OK;
}

wf_status cli_flow_info(wf_run_app *app) {
    wf_flow *flow;
    WF_TRY(wf_flow_open(app->ctx, app->argument[0], &flow));
    wf_status status = print_flow(app, flow);
    wf_flow_free(flow);
    return status;
}
