#include "run/data_source.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

void wf__run_data_whole(wf_data_desc *data, wf_run_data_paths buffer) {
    const char **paths[] = {&data->path, &data->labels, &data->test_path, &data->test_labels};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (*paths[i] != NULL && realpath(*paths[i], buffer[i]) != NULL) *paths[i] = buffer[i];
}

bool wf__run_is_builtin_data(const char *name) {
    for (const char *const *builtin = wf_data_builtin(); *builtin != NULL; builtin++)
        if (strcmp(*builtin, name) == 0) return true;
    return false;
}

const char *wf__run_data_remark(const char *name) {
    if (strcmp(name, "digits") != 0) return NULL;
    return "digits is drawn by weft, 8x8 pixels from 0 to 1; it is not load_digits() of "
           "scikit-learn, "
           "which goes into a file: numpy.savez('digits.npz', X=X, y=y)";
}

static bool ends_with(const char *name, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length >= n && strncmp(name + length - n, ending, n) == 0;
}

static bool is_data_file(const char *name) {
    static const char *const endings[] = {".csv", ".tsv",   ".tab", ".arff", ".npz",
                                          ".npy", "-ubyte", ".idx", ".data"};
    size_t length = strlen(name);
    if (ends_with(name, length, ".gz")) length -= 3;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, length, endings[i])) return true;
    return strstr(name, "cifar-10") != NULL; /* and cifar-100 */
}

/* --- IDX -------------------------------------------------------------------------------------- */

/* Replaces `from` in the path by `to`; false where the result is no file. */
static bool sibling(const char *path, const char *from, const char *to, char out[WF_RUN_PATH]) {
    const char *at = strstr(path, from);
    if (at == NULL) return false;
    int length =
        snprintf(out, WF_RUN_PATH, "%.*s%s%s", (int)(at - path), path, to, at + strlen(from));
    return length > 0 && length < WF_RUN_PATH && wf_file_exists(out);
}

static wf_status set_text(wf_run_app *app, wf_run_recipe *recipe, const char *key,
                          const char *value, const char **member) {
    WF_TRY(wf_recipe_set(app->ctx, recipe->source, "data", key, value));
    return wf_recipe_string(app->ctx, recipe->source, "data", key, member);
}

/* MNIST's four files, where they lie side by side under their names. */
static wf_status find_labels(wf_run_app *app, const char *path, wf_run_recipe *recipe) {
    char found[WF_RUN_PATH], labels[WF_RUN_PATH];
    if (recipe->data.labels == NULL && sibling(path, "images-idx3", "labels-idx1", found))
        WF_TRY(set_text(app, recipe, "labels", found, &recipe->data.labels));
    if (recipe->data.test_path != NULL || !sibling(path, "train-images", "t10k-images", found) ||
        !sibling(found, "images-idx3", "labels-idx1", labels))
        return WF_OK;
    WF_TRY(set_text(app, recipe, "test_path", found, &recipe->data.test_path));
    return set_text(app, recipe, "test_labels", labels, &recipe->data.test_labels);
}

/* --whole: the file is its own test part. What is fitted on the training part sees the same
 * rows. */
static wf_status take_whole(wf_run_app *app, bool file, wf_run_recipe *recipe) {
    wf_data_desc *data = &recipe->data;
    if (!file || data->test_path != NULL)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--whole is for a file that is split; this data set has a test part "
                            "of its own");
    if (data->labels != NULL)
        WF_TRY(set_text(app, recipe, "test_labels", data->labels, &data->test_labels));
    return set_text(app, recipe, "test_path", data->path, &data->test_path);
}

/* --- the recipe ------------------------------------------------------------------------------- */

bool wf__run_says_scale(const wf_run_app *app, const wf_run_recipe *recipe) {
    return app->scale_given || wf_recipe_has(recipe->source, "data", "scale");
}

wf_status wf__run_read_as(wf_run_app *app, const wf_zoo *of, wf_run_recipe *recipe) {
    if (of == NULL) return WF_OK;
    if (!wf__run_says_scale(app, recipe)) wf_zoo_scale(of, &recipe->data.scale);
    const char *classes = wf_zoo_meta(of, "weft.classes"), *said = recipe->data.classes;
    if (classes == NULL || (said != NULL && said[0] != '\0')) return WF_OK;
    return set_text(app, recipe, "classes", classes, &recipe->data.classes);
}

wf_status wf__run_data_recipe(wf_run_app *app, const char *name, const wf_zoo *of,
                              wf_run_recipe *out) {
    bool builtin = wf__run_is_builtin_data(name), file = !builtin && is_data_file(name);
    *out = (wf_run_recipe){0};
    if (builtin) WF_TRY(wf__run_recipe_of_data(app, "name", name, out));
    else if (file) WF_TRY(wf__run_recipe_of_data(app, "path", name, out));
    else WF_TRY(wf__run_recipe_open(app, name, out));
    /* A file that is named on the command line lies where the name says. */
    if (file && wf_file_exists(name)) {
        out->data.root = "";
        WF_TRY(find_labels(app, name, out));
    }
    uint64_t seed = out->data.seed; /* --seed is that of what is drawn, not of the data */
    if (app->apply != NULL) app->apply(app, wf_data_settings(), &out->data);
    out->data.seed = seed;
    if (app->whole_data) WF_TRY(take_whole(app, file, out));
    WF_TRY(wf__run_read_as(app, of, out));
    if (builtin && of != NULL && wf_zoo_meta(of, "weft.sources") != NULL &&
        wf__run_data_remark(name) != NULL)
        wf_warn(app->ctx, "%s", wf__run_data_remark(name));
    return WF_OK;
}

wf_status wf__run_dataset_named(wf_run_app *app, const char *name, const wf_zoo *of,
                                wf_dataset **out) {
    wf_run_recipe recipe;
    *out = NULL;
    wf_status status = wf__run_data_recipe(app, name, of, &recipe);
    if (status == WF_OK) status = wf__run_recipe_dataset(app, &recipe, out);
    wf__run_recipe_free(&recipe);
    return status;
}

/* --- whether it fits -------------------------------------------------------------------------- */
