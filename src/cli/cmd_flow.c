/* train, flow info: fit a flow to collections; what a flow was fitted to. */
#include "cli/commands.h"
#include "cli/pipeline.h"
#include "cli/sources.h"

#include <stdlib.h>
#include <string.h>

static wf_status write_recipe_beside(cli_app *app, const cli_recipe *recipe, const char *path) {
    char beside[CLI_PATH];
    snprintf(beside, sizeof beside, "%s.recipe.conf", path);
    char *text = cli_recipe_resolved(recipe);
    if (text == NULL) return cli_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = wf_write_file(app->ctx, beside, text, strlen(text));
    free(text);
    return status;
}

/* --zoo, --manifest, or the recipe's manifest. */
static wf_status open_sources(cli_app *app, const cli_recipe *recipe, cli_sources *s) {
    const char *zoo = cli_text(app, "zoo"), *manifest = cli_text(app, "manifest");
    if (zoo != NULL && manifest != NULL)
        return cli_fail(app, WF_ERR_USAGE, "give --zoo or --manifest, not both");
    if (manifest != NULL && cli_text(app, "cond") != NULL)
        return cli_fail(app, WF_ERR_USAGE,
                        "--cond belongs to --zoo; a manifest holds conditions itself");
    if (zoo != NULL) return cli_sources_list(app, zoo, cli_text(app, "cond"), s);
    if (manifest == NULL) manifest = recipe->manifest;
    if (manifest != NULL) return cli_sources_manifest(app, manifest, s);
    return cli_fail(app, WF_ERR_USAGE,
                    "say what to fit: --zoo FILE or --manifest FILE (weft zoo train and weft zoo "
                    "import make collections; weft run does all of it)");
}

wf_status cli_fit_sources(cli_app *app, const cli_recipe *recipe, const cli_sources *s,
                          const char *path, wf_flow **out) {
    wf_field_desc field = *recipe->field;
    int rows = 0;
    for (int i = 0; i < s->n; i++) { /* a folded row is as long as the longest */
        CLI_TRY(cli_recipe_field(app, recipe, wf_zoo_graph(s->list[i].zoo), &field));
        if (field.fold_rows > rows) rows = field.fold_rows;
    }
    field.fold_rows = rows;
    return wf_flow_fit(app->ctx, s->list, s->n, &field, &recipe->fit, path, out);
}

static wf_status fit(cli_app *app, cli_recipe *recipe, cli_sources *s) {
    const char *out = cli_text(app, "out");
    wf_flow *flow;
    CLI_TRY(cli_recipe_open(app, app->argument[0], recipe));
    cli_settings(app, wf_fit_settings(), &recipe->fit);
    if (recipe->train_path != NULL)
        return cli_fail(app, WF_ERR_USAGE,
                        "train.path belongs to weft run; here --zoo names what is fitted");
    CLI_TRY(open_sources(app, recipe, s));
    CLI_TRY(cli_sources_open(app, s));
    CLI_TRY(cli_sources_condition(app, s, recipe->field));
    CLI_TRY(cli_sources_shares(app, s, recipe->shares));
    CLI_TRY(write_recipe_beside(app, recipe, out));
    double start = cli_seconds();
    CLI_TRY(cli_resumable(app, cli_fit_sources(app, recipe, s, out, &flow)));
    double seconds = cli_seconds() - start;
    size_t updates = wf_flow_updates(flow);
    wf_flow_free(flow);
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:I, s:f}", "path", out, "updates",
                                             (json_int_t)updates, "seconds", seconds));
    cli_print("%s: a flow after %zu updates\n", out, updates);
    return WF_OK;
}

wf_status cli_train(cli_app *app) {
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the flow goes: -o FILE");
    cli_recipe recipe = {0};
    cli_sources s = {0};
    wf_status status = fit(app, &recipe, &s);
    cli_sources_free(&s);
    cli_recipe_free(&recipe);
    return status;
}

/* --- flow info ---------------------------------------------------------------------------------- */

static json_t *source_to_json(const wf_flow *flow, int index) {
    wf_flow_source source = wf_flow_source_at(flow, index);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:s, s:s, s:s}", "task", source.task, "arch", source.graph->text,
        "activation", wf_activation_name(source.graph->activation), "networks",
        (json_int_t)source.count, "tests", source.tests, "data", source.data, "path", source.path);
    if (source.cond != NULL)
        json_object_set_new(json, "cond",
                            cli_numbers_to_json(source.cond, wf_flow_cond_size(flow)));
    return json;
}

static void print_source(const wf_flow *flow, int index) {
    wf_flow_source source = wf_flow_source_at(flow, index);
    int numbers = source.cond != NULL ? wf_flow_cond_size(flow) : 0;
    cli_print("  %-20s %-20s %8zu networks", source.task[0] != '\0' ? source.task : "-",
              source.graph->text, source.count);
    if (numbers > 8) cli_print("  a condition of %d numbers", numbers);
    else if (numbers > 0) cli_print("  condition ");
    for (int k = 0; numbers <= 8 && k < numbers; k++)
        cli_print("%s%g", k > 0 ? "," : "", source.cond[k]);
    cli_print("%s%s\n", source.tests[0] != '\0' ? "  tested on " : "", source.tests);
}

static wf_status print_flow(cli_app *app, const wf_flow *flow) {
    const wf_field_desc *field = wf_flow_options(flow);
    const char *layout = wf_flow_meta(flow, "field.layout"),
               *cond = wf_flow_meta(flow, "field.cond");
    double dropped = wf_flow_trained_with(flow)->cond_drop;
    size_t parameters = wf_flow_params(flow);
    if (app->json) {
        json_t *sources = json_array();
        for (int i = 0; i < wf_flow_sources(flow); i++)
            json_array_append_new(sources, source_to_json(flow, i));
        return cli_print_json(app, json_pack("{s:s, s:I, s:s, s:I, s:s, s:i, s:o, s:o}", "path",
                                             app->argument[0], "updates",
                                             (json_int_t)wf_flow_updates(flow), "layout", layout,
                                             "parameters", (json_int_t)parameters, "cond", cond,
                                             "cond_size", field->cond_size, "cond_drop",
                                             cli_json_number(dropped), "sources", sources));
    }
    char count[32];
    cli_count(parameters, count);
    cli_print("%s\n  field        %s %d/%d/%d x %d: %s parameters after %zu updates\n",
              app->argument[0], layout, field->node, field->edge, field->time, field->blocks, count,
              wf_flow_updates(flow));
    if (field->cond != WF_COND_NONE)
        cli_print("  conditions   %d number%s (%s), left out with probability %g\n",
                  field->cond_size, field->cond_size == 1 ? "" : "s", cond, dropped);
    cli_print("fitted to\n");
    for (int i = 0; i < wf_flow_sources(flow); i++) print_source(flow, i);
    return WF_OK;
}

wf_status cli_flow_info(cli_app *app) {
    wf_flow *flow;
    CLI_TRY(wf_flow_open(app->ctx, app->argument[0], &flow));
    wf_status status = print_flow(app, flow);
    wf_flow_free(flow);
    return status;
}
