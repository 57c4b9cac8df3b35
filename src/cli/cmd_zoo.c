/* zoo train, import: collections made and brought in. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "cli/recipe_schema.h"
#include "weft/import.h"

#include <stdlib.h>

static wf_status train_collection(cli_app *app, cli_recipe *recipe, wf_dataset **data,
                                  wf_graph **graph) {
    const char *out = cli_text(app, "out");
    CLI_TRY(cli_recipe_open(app, app->argument[0], recipe));
    cli_settings(app, wf_zoo_settings(), &recipe->zoo);
    CLI_TRY(cli_recipe_dataset(app, recipe, data));
    CLI_TRY(cli_recipe_graph(app, recipe, *data, graph));
    size_t diverged = 0;
    double start = cli_seconds();
    CLI_TRY(
        cli_resumable(app, wf_zoo_train(app->ctx, *graph, *data, &recipe->zoo, out, &diverged)));
    double seconds = cli_seconds() - start;
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:s, s:I, s:I, s:I, s:f}", "path", out, "arch",
                                             (*graph)->text, "first", (json_int_t)recipe->zoo.first,
                                             "count", (json_int_t)(recipe->zoo.count - diverged),
                                             "diverged", (json_int_t)diverged, "seconds", seconds));
    cli_print("%s: %zu network%s of %s", out, recipe->zoo.count - diverged,
              CLI_S(recipe->zoo.count - diverged), (*graph)->text);
    if (diverged > 0) cli_print(" (%zu diverged and were left out)", diverged);
    cli_print("\n");
    return WF_OK;
}

wf_status cli_zoo_train(cli_app *app) {
    cli_recipe recipe = {0};
    wf_dataset *data = NULL;
    wf_graph *graph = NULL;
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the collection goes: -o FILE");
    wf_status status = train_collection(app, &recipe, &data, &graph);
    wf_graph_free(graph);
    wf_dataset_free(data);
    cli_recipe_free(&recipe);
    return status;
}

static json_t *import_to_json(const wf_import_result *result) {
    json_t *list = json_array();
    for (int i = 0; i < result->n_collections; i++) {
        const wf_import_collection *one = &result->collections[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I}", "path", one->path, "arch",
                                              one->arch, "count", (json_int_t)one->count,
                                              "non_finite", (json_int_t)one->non_finite));
    }
    return json_pack("{s:I, s:I, s:o}", "files", (json_int_t)result->files, "networks",
                     (json_int_t)result->networks, "collections", list);
}

wf_status cli_zoo_import(cli_app *app) {
    const char *out = cli_text(app, "out"), *activation = cli_text(app, "activation");
    if (out == NULL) return cli_fail(app, WF_ERR_USAGE, "say where the collection goes: -o FILE");
    if (activation == NULL && cli_text(app, "arch") == NULL)
        return cli_fail(app, WF_ERR_USAGE,
                        "say the activation of the hidden layers, which files do not hold: "
                        "--activation relu, or describe the whole network with --arch");
    CLI_TRY(cli_new_file(app, out));
    wf_import_desc desc = wf_import_desc_default();
    desc.activation = activation;
    desc.arch = cli_text(app, "arch");
    desc.layers = cli_text(app, "layers");
    desc.name = cli_text(app, "name");
    desc.recursive = cli_flag(app, "recursive");
    wf_import_result result;
    CLI_TRY(wf_zoo_import_all(app->ctx, app->argument, app->n_arguments, &desc, out, &result));
    wf_status status = WF_OK;
    if (app->json) status = cli_print_json(app, import_to_json(&result));
    else
        for (int i = 0; i < result.n_collections; i++) {
            const wf_import_collection *one = &result.collections[i];
            cli_print("%s: %zu network%s of %s", one->path, one->count, CLI_S(one->count),
                      one->arch);
            if (one->non_finite > 0)
                cli_print(", %zu with values that are not finite", one->non_finite);
            cli_print("\n");
        }
    wf_import_result_free(&result);
    return status;
}
