/* data bng: data sets that are made rather than found. */
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/recipe_schema.h"

#include <stdlib.h>
#include <string.h>

static bool is_recipe(const char *path) {
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".conf") == 0;
}

static wf_status print_bng(cli_app *app, const char *path, const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    CLI_TRY(cli_json_complete(app, path, json));
    if (app->json) {
        json_object_set_new(json, "path", json_string(path));
        return cli_print_json(app, json);
    }
    printf("%s: %s\n", path, json_string_value(json_object_get(json, "note")));
    size_t index, k;
    json_t *column, *parent;
    json_array_foreach(json_object_get(json, "columns"), index, column) {
        printf("  %-28s <-", json_string_value(json_object_get(column, "name")));
        json_array_foreach(json_object_get(column, "parents"), k, parent)
            printf("%s %s", k > 0 ? "," : "", json_string_value(parent));
        puts("");
    }
    json_decref(json);
    return WF_OK;
}

static wf_status make_bng(cli_app *app, const wf_data_desc *from) {
    const char *path = cli_text(app, "out");
    wf_bng_desc desc = wf_bng_desc_default();
    desc.rows = (size_t)cli_int(app, "rows");
    desc.bins = (int)cli_int(app, "bins");
    desc.max_parents = (int)cli_int(app, "parents");
    desc.prior = cli_real(app, "prior");
    if (cli_given(app, "seed")) desc.seed = (uint64_t)cli_int(app, "seed");
    char *text;
    CLI_TRY(wf_data_bng(app->ctx, from, &desc, path, &text));
    wf_status status = print_bng(app, path, text);
    free(text);
    return status;
}

wf_status cli_data_bng(cli_app *app) {
    const char *source = app->argument[0];
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the table goes: -o FILE.arff");
    if (!is_recipe(source)) {
        wf_data_desc from = wf_data_desc_default();
        from.path = source;
        return make_bng(app, &from);
    }
    cli_recipe recipe;
    wf_status status = cli_recipe_open(app, source, &recipe);
    if (status == WF_OK) status = make_bng(app, &recipe.data);
    cli_recipe_free(&recipe);
    return status;
}
