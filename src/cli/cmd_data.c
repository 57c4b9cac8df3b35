/* data bng, data fetch: data sets that are made, and data sets from the network. */
#include "cli/commands.h"
#include "run/files.h"
#include "run/recipe_schema.h"

#include <stdlib.h>
#include <string.h>

static wf_status print_bng(wf_run_app *app, const char *path, const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    WF_TRY(wf__run_json_complete(app, path, json));
    if (app->json) {
        json_object_set_new(json, "path", json_string(path));
        return cli_print_json(app, json);
    }
    cli_print("%s: %s\n", path, json_string_value(json_object_get(json, "note")));
    size_t index, k;
    json_t *column, *parent;
    json_array_foreach(json_object_get(json, "columns"), index, column) {
        cli_print("  %-28s <-", json_string_value(json_object_get(column, "name")));
        json_array_foreach(json_object_get(column, "parents"), k, parent)
            cli_print("%s %s", k > 0 ? "," : "", json_string_value(parent));
        cli_print("\n");
    }
    json_decref(json);
    return WF_OK;
}

static wf_status make_bng(wf_run_app *app, const wf_data_desc *from) {
    const char *path = cli_text(app, "out");
    wf_bng_desc desc = wf_bng_desc_default();
    cli_settings(app, wf_bng_settings(), &desc);
    char *text;
    WF_TRY(wf_data_bng(app->ctx, from, &desc, path, &text));
    wf_status status = print_bng(app, path, text);
    free(text);
    return status;
}

wf_status cli_data_bng(wf_run_app *app) {
    const char *source = app->argument[0];
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the table goes: -o FILE.arff");
    WF_TRY(wf__run_lock_file(app, cli_text(app, "out")));
    if (!wf__run_ends_with(source, ".conf")) {
        wf_data_desc from = wf_data_desc_default();
        from.path = source;
        return make_bng(app, &from);
    }
    wf_run_recipe recipe;
    wf_status status = wf__run_recipe_open(app, source, &recipe);
    if (status == WF_OK) status = make_bng(app, &recipe.data);
    wf__run_recipe_free(&recipe);
    return status;
}

wf_status cli_data_fetch(wf_run_app *app) {
    wf_fetch_desc desc = wf_fetch_desc_default();
    desc.folder = cli_text(app, "out");
    desc.server = cli_text(app, "server");
    desc.sha256 = cli_text(app, "sha256");
    wf_fetched fetched;
    wf_status status = wf_data_fetch(app->ctx, app->argument[0], &desc, &fetched);
    if (status == WF_OK && app->json)
        status = cli_print_json(
            app, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "path", fetched.path, "name",
                           fetched.name, "target", fetched.target, "sha256", fetched.sha256,
                           "bytes", (json_int_t)fetched.bytes, "resumed",
                           (json_int_t)fetched.resumed, "cached", (int)fetched.cached));
    else if (status == WF_OK) {
        char bytes[32], resumed[32];
        wf__run_count((size_t)fetched.bytes, bytes);
        wf__run_count((size_t)fetched.resumed, resumed);
        cli_print("%s: %s, %s bytes%s%s%s\n  sha256 %s\n", fetched.path, fetched.name, bytes,
                  fetched.cached        ? ", there already"
                  : fetched.resumed > 0 ? ", of them "
                                        : "",
                  !fetched.cached && fetched.resumed > 0 ? resumed : "",
                  !fetched.cached && fetched.resumed > 0 ? " from an earlier call" : "",
                  fetched.sha256);
    }
    wf_fetched_free(&fetched);
    return status;
}
