/* zoo train, import: collections made and brought in. */
#include "cli/commands.h"
#include "run/data_source.h"
#include "cli/networks.h"
#include "weft/import.h"

#include <stdlib.h>
#include <string.h>

static wf_status train_collection(wf_run_app *app, wf_run_recipe *recipe, wf_dataset **data,
                                  wf_graph **graph) {
    const char *out = cli_text(app, "out");
    WF_TRY(wf__run_recipe_open(app, app->argument[0], recipe));
    cli_settings(app, wf_zoo_settings(), &recipe->zoo);
    WF_TRY(wf__run_recipe_dataset(app, recipe, data));
    WF_TRY(wf__run_recipe_graph(app, recipe, *data, graph));
    size_t diverged = 0;
    double start = wf_seconds();
    WF_TRY(wf__run_resumable(app,
                             wf_zoo_train(app->ctx, *graph, *data, &recipe->zoo, out, &diverged)));
    double seconds = wf_seconds() - start;
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:s, s:I, s:I, s:I, s:f}", "path", out, "arch",
                                             (*graph)->text, "first", (json_int_t)recipe->zoo.first,
                                             "count", (json_int_t)(recipe->zoo.count - diverged),
                                             "diverged", (json_int_t)diverged, "seconds", seconds));
    cli_print("%s: %zu network%s of %s", out, recipe->zoo.count - diverged,
              WF_RUN_S(recipe->zoo.count - diverged), (*graph)->text);
    if (diverged > 0) cli_print(" (%zu diverged and were left out)", diverged);
    cli_print("\n");
    return WF_OK;
}

wf_status cli_zoo_train(wf_run_app *app) {
    wf_run_recipe recipe = {0};
    wf_dataset *data = NULL;
    wf_graph *graph = NULL;
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the collection goes: -o FILE");
    wf_status status = train_collection(app, &recipe, &data, &graph);
    wf_graph_free(graph);
    wf_dataset_free(data);
    wf__run_recipe_free(&recipe);
    return status;
}

/* --- import ----------------------------------------------------------------------------------- */

/* What is known of a collection beyond its file. */
typedef struct imported {
    wf_suits suits;
    double mean, low, high; /* accuracies of all its networks */
} imported;

typedef struct importing {
    wf_run_app *app;
    wf_import_result result;
    wf_run_recipe recipe; /* of --data */
    wf_dataset *data;     /* NULL: none */
    imported *about;      /* of each collection, with data */
} importing;

/* --data, with scale = none where nothing else is said. */
static wf_status open_data(importing *i, wf_import_desc *desc) {
    const char *name = cli_text(i->app, "data");
    if (name == NULL) return WF_OK;
    WF_TRY(wf__run_data_recipe(i->app, name, NULL, &i->recipe));
    if (!wf__run_says_scale(i->app, &i->recipe)) i->recipe.data.scale = WF_SCALE_NONE;
    if (wf__run_data_remark(name) != NULL) cli_progress_warn(i->app, wf__run_data_remark(name));
    WF_TRY(wf__run_recipe_dataset(i->app, &i->recipe, &i->data));
    desc->inputs = i->data->inputs;
    desc->outputs = i->data->classes;
    return WF_OK;
}

static wf_status score_collection(importing *i, int which) {
    const char *path = i->result.collections[which].path;
    imported *about = &i->about[which];
    wf_zoo *zoo, *scored = NULL;
    WF_TRY(wf_zoo_open(i->app->ctx, path, &zoo));
    wf_status status = wf_zoo_suits(i->app->ctx, zoo, &i->recipe.data, &about->suits);
    if (status == WF_OK) status = wf_zoo_score(i->app->ctx, zoo, i->data, &i->recipe.data, path);
    wf_zoo_free(zoo);
    if (status == WF_OK) status = wf_zoo_open(i->app->ctx, path, &scored);
    if (status != WF_OK) return status;
    size_t n = wf_zoo_count(scored);
    const float *scores = wf_zoo_scores(scored, i->data->name);
    about->low = about->high = scores[0];
    for (size_t k = 0; k < n; k++) {
        about->mean += scores[k] / (double)n;
        if (scores[k] < about->low) about->low = scores[k];
        if (scores[k] > about->high) about->high = scores[k];
    }
    wf_zoo_free(scored);
    cli_warn_unsuited(i->app, path, &i->recipe, about->mean, &about->suits);
    return WF_OK;
}

static wf_status score_collections(importing *i) {
    if (i->data == NULL) return WF_OK;
    i->about = calloc((size_t)i->result.n_collections, sizeof *i->about);
    if (i->about == NULL) return wf__run_fail(i->app, WF_ERR_MEMORY, "out of memory");
    for (int k = 0; k < i->result.n_collections; k++) WF_TRY(score_collection(i, k));
    return WF_OK;
}

static json_t *import_to_json(const importing *i) {
    const wf_import_result *result = &i->result;
    json_t *list = json_array();
    for (int k = 0; k < result->n_collections; k++) {
        const wf_import_collection *one = &result->collections[k];
        json_t *json = json_pack("{s:s, s:s, s:I, s:I, s:i}", "path", one->path, "arch", one->arch,
                                 "count", (json_int_t)one->count, "non_finite",
                                 (json_int_t)one->non_finite, "folded_norms", one->folded_norms);
        if (i->about != NULL) {
            const imported *about = &i->about[k];
            json_object_set_new(json, "accuracy", wf__run_json_number(about->mean));
            json_object_set_new(json, "advice", json_string(about->suits.advice));
            json_object_set_new(json, "advised_accuracy", wf__run_json_number(about->suits.best));
        }
        json_array_append_new(list, json);
    }
    return json_pack("{s:I, s:I, s:o}", "files", (json_int_t)result->files, "networks",
                     (json_int_t)result->networks, "collections", list);
}

static void print_imported(const importing *i, int which) {
    const wf_import_collection *one = &i->result.collections[which];
    cli_print("%s: %zu network%s of %s", one->path, one->count, WF_RUN_S(one->count), one->arch);
    if (one->non_finite > 0) cli_print(", %zu with values that are not finite", one->non_finite);
    if (i->about != NULL)
        cli_print(", accuracy %.2f %% on %zu examples of %s (%.2f to %.2f)",
                  100 * i->about[which].mean, i->data->n_test, i->data->name,
                  100 * i->about[which].low, 100 * i->about[which].high);
    cli_print("\n");
}

static void say_folded(const importing *i) {
    for (int k = 0; k < i->result.n_collections; k++) {
        const wf_import_collection *one = &i->result.collections[k];
        if (one->folded_norms > 0)
            cli_print_error("weft: %s: %d batch norm%s of each network folded into the layers "
                            "before, which in evaluation compute the same; --keep-norm keeps "
                            "norms\n",
                            one->path, one->folded_norms, WF_RUN_S(one->folded_norms));
    }
}

static wf_status import_networks(importing *i) {
    wf_run_app *app = i->app;
    const char *out = cli_text(app, "out");
    char path[WF_RUN_PATH];
    wf_import_desc desc = wf_import_desc_default();
    snprintf(path, sizeof path, "%s%s", out,
             wf__run_ends_with(out, ".safetensors") ? "" : ".safetensors");
    WF_TRY(cli_new_file(app, path));
    desc.activation = cli_text(app, "activation");
    desc.arch = cli_text(app, "arch");
    desc.layers = cli_text(app, "layers");
    desc.name = cli_text(app, "name");
    desc.recursive = cli_flag(app, "recursive");
    desc.keep_norm = cli_flag(app, "keep-norm");
    if (desc.keep_norm && desc.arch == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "--keep-norm goes with --arch");
    WF_TRY(open_data(i, &desc));
    WF_TRY(wf_zoo_import_all(app->ctx, app->argument, app->n_arguments, &desc, out, &i->result));
    say_folded(i);
    WF_TRY(score_collections(i));
    if (i->data != NULL) cli_say_split(app, &i->recipe, i->data);
    if (app->json) return cli_print_json(app, import_to_json(i));
    for (int k = 0; k < i->result.n_collections; k++) print_imported(i, k);
    return WF_OK;
}

wf_status cli_zoo_import(wf_run_app *app) {
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the collection goes: -o FILE");
    if (cli_text(app, "activation") == NULL && cli_text(app, "arch") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "say the activation of the hidden layers, which files do not hold: "
                            "--activation relu, or describe the whole network with --arch");
    importing i = {.app = app};
    wf_status status = import_networks(&i);
    free(i.about);
    wf_dataset_free(i.data);
    wf__run_recipe_free(&i.recipe);
    wf_import_result_free(&i.result);
    return status;
}
