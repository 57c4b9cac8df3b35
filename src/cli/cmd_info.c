/* data list, data info, model info: what there is and how large it is. */
#include "cli/commands.h"
#include "run/data_source.h"
#include "run/files.h"
#include "run/recipe_schema.h"
#include "run/sources.h"

#include "weft/text.h"

#include <stdlib.h>

wf_status cli_data_list(wf_run_app *app) {
    const char *root = getenv("WEFT_DATA");
    if (app->json) {
        json_t *names = json_array();
        for (const char *const *name = wf_data_builtin(); *name != NULL; name++)
            json_array_append_new(names, json_string(*name));
        return cli_print_json(
            app, json_pack("{s:o, s:s}", "builtin", names, "folder", root != NULL ? root : "."));
    }
    cli_print("built in:\n");
    for (const char *const *name = wf_data_builtin(); *name != NULL; name++)
        cli_print("  %s\n", *name);
    cli_print("%s\nfiles of recipes are looked up under %s%s\n", wf__run_data_remark("digits"),
              root != NULL ? root : "the working folder",
              root != NULL ? " (WEFT_DATA)" : "; WEFT_DATA names another");
    return WF_OK;
}

static json_t *classes_to_json(const wf_dataset *data, const size_t *counts) {
    json_t *list = json_array();
    for (int c = 0; c < data->classes; c++)
        json_array_append_new(list, json_pack("{s:s, s:I}", "name", data->class_names[c], "count",
                                              (json_int_t)counts[c]));
    return list;
}

static json_t *inputs_to_json(const wf_dataset *data) {
    json_t *list = json_array();
    for (int i = 0; i < data->inputs; i++)
        json_array_append_new(list, json_string(data->input_names[i]));
    return list;
}

/* NULL: no images. */
static json_t *image_to_json(const wf_dataset *data) {
    return data->height == 0 ? NULL
                             : json_pack("[i, i, i]", data->channels, data->height, data->width);
}

static void print_dataset(const char *named, const wf_dataset *data, const size_t *counts) {
    cli_print("%s\n  examples     %zu to train, %zu to test\n  inputs       %d", data->name,
              data->n_train, data->n_test, data->inputs);
    if (data->height > 0)
        cli_print(", images of %dx%dx%d", data->channels, data->height, data->width);
    cli_print("\n  classes      %d:", data->classes);
    for (int c = 0; c < data->classes && c < 12; c++)
        cli_print(" %s (%zu)", data->class_names[c], counts[c]);
    cli_print("%s\n  fingerprint  %.16s\n", data->classes > 12 ? " ..." : "", data->fingerprint);
    if (data->note[0] != '\0') cli_print("  note         %s\n", data->note);
    if (wf__run_data_remark(named) != NULL)
        cli_print("  note         %s\n", wf__run_data_remark(named));
}

wf_status cli_data_info(wf_run_app *app) {
    wf_dataset *data;
    WF_TRY(wf__run_dataset_named(app, app->argument[0], NULL, &data));
    wf_status status = WF_OK;
    size_t *counts = calloc((size_t)data->classes, sizeof *counts);
    if (counts == NULL) status = wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    else {
        for (size_t i = 0; i < data->n_train; i++) counts[data->y_train[i]]++;
        for (size_t i = 0; i < data->n_test; i++) counts[data->y_test[i]]++;
        if (app->json)
            status = cli_print_json(
                app, json_pack("{s:s, s:I, s:I, s:o, s:o?, s:o, s:s, s:s}", "name", data->name,
                               "train", (json_int_t)data->n_train, "test", (json_int_t)data->n_test,
                               "inputs", inputs_to_json(data), "image", image_to_json(data),
                               "classes", classes_to_json(data, counts), "fingerprint",
                               data->fingerprint, "note", data->note));
        else print_dataset(app->argument[0], data, counts);
    }
    free(counts);
    wf_dataset_free(data);
    return status;
}

static void add_tensor(void *list, const char *name, int rows, int cols, bool muon, bool decay) {
    json_t *shape = cols > 1 ? json_pack("[i,i]", rows, cols) : json_pack("[i]", rows);
    json_array_append_new(list, json_pack("{s:s, s:o, s:b, s:b}", "name", name, "shape", shape,
                                          "muon", (int)muon, "decay", (int)decay));
}

static void print_tensors(const json_t *list) {
    size_t index;
    json_t *one;
    if (json_array_size(list) > 0) cli_print("tensors    in the order of the flat array\n");
    json_array_foreach(list, index, one) {
        json_t *shape = json_object_get(one, "shape");
        char text[64];
        wf_text size = wf_text_start(text, sizeof text);
        for (size_t k = 0; k < json_array_size(shape); k++)
            wf_text_add(&size, "%s%lld", k > 0 ? " x " : "",
                        (long long)json_integer_value(json_array_get(shape, k)));
        cli_print("  %-40s %-12s%s%s\n", json_string_value(json_object_get(one, "name")), text,
                  json_is_true(json_object_get(one, "muon")) ? " muon" : "",
                  json_is_true(json_object_get(one, "decay")) ? " decay" : "");
    }
}

static wf_status model_info(wf_run_app *app, const wf_run_recipe *recipe, const wf_graph *graph) {
    const int *cond_size = wf__run_recipe_cond_size(recipe);
    int numbers = cond_size != NULL ? *cond_size : 0;
    size_t parameters, nodes, edges, folded;
    WF_TRY(wf_generator_params(app->ctx, recipe->kind, recipe->model, graph, numbers, &parameters));
    json_t *tensors = json_array();
    wf_status status = wf_generator_tensors(app->ctx, recipe->kind, recipe->model, graph, numbers,
                                            add_tensor, tensors);
    if (status != WF_OK) {
        json_decref(tensors);
        return status;
    }
    wf_graph_size(graph, &nodes, &edges, &folded);
    if (app->json) {
        const wf_generator_kind *kind = recipe->kind;
        char *settings =
            kind->settings == NULL ? NULL : wf_settings_json(kind->settings(), recipe->model);
        json_t *json = json_pack("{s:s, s:I, s:o?, s:s, s:I, s:I, s:o}", "generator",
                                 recipe->generator, "parameters", (json_int_t)parameters, "model",
                                 settings == NULL ? NULL : json_loads(settings, 0, NULL), "arch",
                                 graph->text, "network_parameters", (json_int_t)graph->n_params,
                                 "nodes", (json_int_t)nodes, "tensors", tensors);
        free(settings);
        return cli_print_json(app, json);
    }
    char count[32], each[32], model[400];
    wf__run_count(parameters, count);
    wf__run_count(graph->n_params, each);
    wf__run_options_text(recipe->kind, recipe->model, model, sizeof model);
    cli_print("generator  %s: %s parameters\n", model, count);
    cli_print("networks   %s: %s parameters as a graph of %zu nodes\n", graph->text, each, nodes);
    print_tensors(tensors);
    json_decref(tensors);
    return WF_OK;
}

static wf_status collection_graph(wf_run_app *app, const char *path, wf_graph **out) {
    wf_zoo *zoo;
    WF_TRY(wf_zoo_open(app->ctx, path, &zoo));
    wf_status status = wf_graph_scale_width(app->ctx, wf_zoo_graph(zoo), 1, out);
    wf_zoo_free(zoo);
    return status;
}

/* The networks of a manifest's first collection; its conditions size the generator. */
static wf_status manifest_graph(wf_run_app *app, wf_run_recipe *recipe, wf_graph **out) {
    wf_run_sources sources;
    wf_run_recipe first = {0};
    wf_status status = wf__run_sources_manifest(app, recipe->manifest, &sources);
    if (status == WF_OK) status = wf__run_sources_condition(app, &sources, recipe);
    if (status == WF_OK && sources.text[0].recipe[0] != '\0') {
        status = wf__run_recipe_open(app, sources.text[0].recipe, &first);
        if (status == WF_OK) status = wf__run_recipe_graph(app, &first, NULL, out);
        wf__run_recipe_free(&first);
    } else if (status == WF_OK) status = collection_graph(app, sources.text[0].zoo, out);
    wf__run_sources_free(&sources);
    return status;
}

wf_status cli_model_info(wf_run_app *app) {
    wf_run_recipe recipe;
    wf_graph *graph = NULL;
    wf_status status = wf__run_recipe_open(app, app->argument[0], &recipe);
    if (status == WF_OK)
        status = recipe.manifest != NULL   ? manifest_graph(app, &recipe, &graph)
                 : recipe.zoo_path != NULL ? collection_graph(app, recipe.zoo_path, &graph)
                                           : wf__run_recipe_graph(app, &recipe, NULL, &graph);
    if (status == WF_OK) status = model_info(app, &recipe, graph);
    wf_graph_free(graph);
    wf__run_recipe_free(&recipe);
    return status;
}
