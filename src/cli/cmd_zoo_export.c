/* zoo export: networks of a collection as plain state_dicts, one file each. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "weft/import.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct exporting {
    wf_run_app *app;
    wf_zoo *zoo;
    size_t *index;
    size_t n;
    char **names;  /* of all networks of the collection; NULL: none */
    float *scores; /* of all networks; NULL: not asked for */
    wf_dataset *data;
    bool folder; /* --out is one */
} exporting;

/* --- which ------------------------------------------------------------------------------------ */

static wf_status choose_all(exporting *e) {
    e->n = wf_zoo_count(e->zoo);
    e->index = calloc(e->n, sizeof *e->index);
    if (e->index == NULL) return wf__run_fail(e->app, WF_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < e->n; i++) e->index[i] = i;
    return WF_OK;
}

static wf_status choose(exporting *e) {
    wf_run_app *app = e->app;
    bool best = cli_given(app, "best"), all = cli_flag(app, "all"), list = cli_given(app, "index");
    if (best + all + list > 1)
        return wf__run_fail(app, WF_ERR_USAGE, "give one of --index, --best and --all");
    if (!best && !all)
        return cli_read_indices(app, "--index", cli_text(app, "index"), app->argument[0],
                                wf_zoo_count(e->zoo), &e->index, &e->n);
    WF_TRY(choose_all(e));
    if (!best) return WF_OK;
    const char *test;
    WF_TRY(cli_scores(app, e->zoo, &e->scores, &test, &e->data));
    WF_TRY(cli_order_by_score(app, e->scores, e->index, e->n));
    if (e->n > (size_t)cli_int(app, "best")) e->n = (size_t)cli_int(app, "best");
    return WF_OK;
}

/* --- where to --------------------------------------------------------------------------------- */

static const char *ending_of(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash != NULL ? slash : path, '.');
    return dot == NULL ? "" : dot;
}

static bool is_one_of(const char *ending, const char *const *known) {
    for (; *known != NULL; known++)
        if (strcmp(ending, *known) == 0) return true;
    return false;
}

/* A single network goes to the file --out, many go to a folder; so does one where --out is a folder
 * or ends in a slash. */
static wf_status choose_place(exporting *e) {
    static const char *const known[] = {"", ".safetensors", ".pt", ".pth", ".ckpt", ".bin", NULL};
    wf_run_app *app = e->app;
    const char *out = cli_text(app, "out"), *ending = ending_of(out);
    struct stat info;
    bool there = stat(out, &info) == 0;
    e->folder = e->n > 1 || out[strlen(out) - 1] == '/' || (there && S_ISDIR(info.st_mode));
    if (e->folder && there && !S_ISDIR(info.st_mode))
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "%s is a file, and %zu networks need a folder: one file each. Give another "
            "-o, or --index for one of them",
            out, e->n);
    if (e->folder && !there && *ending != '\0' && is_one_of(ending, known))
        return wf__run_fail(app, WF_ERR_USAGE,
                            "%s is a file's name, and %zu networks need a folder, one file each: "
                            "-o %.*s/ --format %s",
                            out, e->n, (int)(ending - out), out,
                            strcmp(ending, ".safetensors") == 0 ? "safetensors" : "pt");
    if (!e->folder && !is_one_of(ending, known))
        return wf__run_fail(app, WF_ERR_USAGE,
                            "%s ends in %s, which is not written; .safetensors and .pt are", out,
                            ending);
    if (!e->folder && cli_given(app, "format"))
        return wf__run_fail(app, WF_ERR_USAGE,
                            "--format goes with a folder; the ending of -o says it for one file");
    if (!e->folder) return cli_new_file(app, out);
    WF_TRY(wf_make_folder(app->ctx, out));
    return wf__run_lock_folder(app, out);
}

/* A file name that is safe anywhere: the network's own, as runs_3_model, or net-0012. */
static void file_name(const exporting *e, size_t index, char *out, size_t size) {
    wf_text text = wf_text_start(out, size);
    const char *name = e->names == NULL ? NULL : e->names[index];
    size_t length = name == NULL ? 0 : strlen(name) - strlen(ending_of(name));
    bool plain = false;
    for (size_t i = 0; i < length && i < 100; i++) {
        bool fine = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                    (name[i] >= '0' && name[i] <= '9') || (strchr("-_.", name[i]) != NULL && i > 0);
        plain = plain || fine;
        wf_text_add(&text, "%c", fine ? name[i] : '_');
    }
    if (plain) return;
    int digits = snprintf(NULL, 0, "%zu", wf_zoo_count(e->zoo));
    text = wf_text_start(out, size);
    wf_text_add(&text, "net-%0*zu", digits, index);
}

/* The name of a network in the export's folder, without its ending. */
typedef struct stem {
    char text[192];
} stem;

static int compare_stems(const void *a_, const void *b_) {
    const stem *a = *(stem *const *)a_, *b = *(stem *const *)b_;
    int order = strcmp(a->text, b->text);
    return order != 0 ? order : (a > b) - (a < b);
}

/* Of networks of one name all but the first get their number behind it. What comes out may be the
 * name of another one. */
static bool part_equals(const exporting *e, stem *stems, stem **sorted, bool *cut) {
    bool equal = false;
    qsort(sorted, e->n, sizeof *sorted, compare_stems);
    for (size_t i = e->n; i-- > 1;) {
        if (strcmp(sorted[i - 1]->text, sorted[i]->text) != 0) continue;
        size_t length = strlen(sorted[i]->text);
        wf_text text = {.start = sorted[i]->text, .size = sizeof(stem), .length = length};
        *cut = !wf_text_add(&text, "-%zu", e->index[sorted[i] - stems]) || *cut;
        equal = true;
    }
    return equal;
}

/* stems: [n], zeroed. */
static wf_status name_all(const exporting *e, stem *stems) {
    bool cut = false;
    stem **sorted = malloc(e->n * sizeof *sorted);
    if (sorted == NULL) return wf__run_fail(e->app, WF_ERR_MEMORY, "out of memory");
    for (size_t k = 0; k < e->n; k++) {
        file_name(e, e->index[k], stems[k].text, sizeof stems[k].text);
        sorted[k] = &stems[k];
    }
    while (!cut && part_equals(e, stems, sorted, &cut)) continue;
    free(sorted);
    if (!cut) return WF_OK;
    return wf__run_fail(e->app, WF_ERR_USAGE,
                        "%s: its networks' names are too much alike for files",
                        e->app->argument[0]);
}

static wf_status set_path(const exporting *e, size_t k, const stem *stems, char out[WF_RUN_PATH]) {
    wf_run_app *app = e->app;
    const char *folder = cli_text(app, "out");
    if (!e->folder) {
        snprintf(out, WF_RUN_PATH, "%s", folder);
        return WF_OK;
    }
    char name[256];
    wf_text text = wf_text_start(name, sizeof name);
    wf_text_add(&text, "%s.%s", stems[k].text, cli_text(app, "format"));
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    char bare[WF_RUN_PATH];
    snprintf(bare, sizeof bare, "%.*s", (int)length, folder);
    return wf__run_path(app, bare, name, out);
}

/* --- the work --------------------------------------------------------------------------------- */

static json_t *network_to_json(const exporting *e, size_t k, const char *path) {
    size_t index = e->index[k];
    json_t *json = json_pack("{s:s, s:I}", "path", path, "index", (json_int_t)index);
    if (e->names != NULL) json_object_set_new(json, "name", json_string(e->names[index]));
    if (e->scores != NULL)
        json_object_set_new(json, "score", wf__run_json_number((double)e->scores[index]));
    return json;
}

static wf_status check_stop(const exporting *e, size_t done) {
    if (!wf_interrupted(e->app->ctx)) return WF_OK;
    return wf__run_fail(e->app, WF_ERR_INTERRUPTED, "interrupted after %zu of %zu networks", done,
                        e->n);
}

/* Nothing is written where one of the files is there already. */
static wf_status export_all(const exporting *e, stem *stems, json_t *list) {
    wf_run_app *app = e->app;
    char path[WF_RUN_PATH];
    if (e->folder) WF_TRY(name_all(e, stems));
    for (size_t k = 0; e->folder && k < e->n; k++) {
        WF_TRY(check_stop(e, 0));
        WF_TRY(set_path(e, k, stems, path));
        WF_TRY(cli_not_there(app, path));
    }
    for (size_t k = 0; k < e->n; k++) {
        WF_TRY(check_stop(e, k));
        WF_TRY(set_path(e, k, stems, path));
        WF_TRY(wf_zoo_export(app->ctx, e->zoo, e->index[k], path, cli_text(app, "names")));
        json_array_append_new(list, network_to_json(e, k, path));
    }
    return WF_OK;
}

static wf_status print_exported(const exporting *e, json_t *list) {
    wf_run_app *app = e->app;
    const wf_graph *graph = wf_zoo_graph(e->zoo);
    const char *activation = wf_activation_name(graph->activation);
    if (app->json && !e->folder) {
        json_t *one = json_deep_copy(json_array_get(list, 0));
        json_object_set_new(one, "arch", json_string(graph->text));
        json_object_set_new(one, "activation", json_string(activation));
        return cli_print_json(app, one);
    }
    if (app->json)
        return cli_print_json(app, json_pack("{s:s, s:s, s:s, s:O}", "folder", cli_text(app, "out"),
                                             "arch", graph->text, "activation", activation,
                                             "networks", list));
    if (e->folder)
        cli_print("%s: %zu network%s of %s, a state_dict each (%s)\n", cli_text(app, "out"), e->n,
                  WF_RUN_S(e->n), graph->text, activation);
    for (size_t k = 0; k < e->n && (k < 10 || !e->folder); k++) {
        const char *path = json_string_value(json_object_get(json_array_get(list, k), "path"));
        if (e->folder) cli_print("  %s", path);
        else
            cli_print("%s: network %zu of %s, a state_dict of %s (%s)", path, e->index[k],
                      app->argument[0], graph->text, activation);
        if (e->scores != NULL) cli_print("  score %.4f", (double)e->scores[e->index[k]]);
        cli_print("\n");
    }
    if (e->folder && e->n > 10) cli_print("  ...\n");
    return WF_OK;
}

static wf_status export_networks(exporting *e) {
    wf_run_app *app = e->app;
    WF_TRY(wf_zoo_open(app->ctx, app->argument[0], &e->zoo));
    WF_TRY(choose(e));
    WF_TRY(wf_zoo_names(app->ctx, e->zoo, &e->names));
    WF_TRY(choose_place(e));
    stem *stems = calloc(e->n, sizeof *stems);
    json_t *list = json_array();
    wf_status status = stems != NULL ? export_all(e, stems, list)
                                     : wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    if (status == WF_OK) status = print_exported(e, list);
    json_decref(list);
    free(stems);
    return status;
}

wf_status cli_zoo_export(wf_run_app *app) {
    const char *out = cli_text(app, "out");
    if (out == NULL || out[0] == '\0')
        return wf__run_fail(app, WF_ERR_USAGE,
                            "say where the network goes: -o net.pt, or -o FOLDER for several");
    exporting e = {.app = app};
    wf_status status = export_networks(&e);
    if (e.zoo != NULL) wf_zoo_names_free(e.names, wf_zoo_count(e.zoo));
    free(e.scores);
    free(e.index);
    wf_dataset_free(e.data);
    wf_zoo_free(e.zoo);
    return status;
}
