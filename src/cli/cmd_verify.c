/* verify: whether files are still what weft wrote: by the digest that a file holds, and by those
 * that a run keeps of what its stages left (stage.json). */
#include "cli/commands.h"
#include "run/outputs.h"
#include "run/stages.h"
#include "weft/zoo.h"

#include <string.h>
#include <sys/stat.h>

typedef struct verification {
    wf_run_app *app;
    json_t *files;  /* path: digest of the run's records, or null */
    json_t *result; /* list of {path, verdict, ...} */
    int damaged;
} verification;

/* The outputs of a folder of weft run, and its stage.json; nothing when it is none. only (may be
 * NULL): of this path alone. */
static wf_status add_recorded(verification *v, const char *folder, const char *only) {
    char path[WF_RUN_PATH];
    json_t *record, *entry, *digest;
    const char *stage, *name;
    WF_TRY(wf__run_path(v->app, folder, "stage.json", path));
    if (!wf_file_exists(path)) return WF_OK;
    bool known;
    wf_status status = wf__run_stages_read(v->app, path, &record, &known);
    if (only == NULL) json_object_set_new(v->files, path, json_null());
    if (status == WF_ERR_INPUT) return WF_OK; /* judge says it */
    WF_TRY(status);
    json_object_foreach(record, stage, entry) {
        json_object_foreach(json_object_get(entry, "outputs"), name, digest) {
            if (status == WF_OK) status = wf__run_outputs_path(v->app, folder, name, path);
            if (status == WF_OK && (only == NULL || strcmp(only, path) == 0))
                json_object_set(v->files, path, digest);
        }
    }
    json_decref(record);
    return status;
}

static bool holds_digest(const char *path) {
    return wf__run_ends_with(path, ".safetensors") || wf__run_ends_with(path, ".started");
}

static wf_status add_file(void *v_, const char *path) {
    verification *v = v_;
    if (holds_digest(path) && json_object_get(v->files, path) == NULL)
        json_object_set_new(v->files, path, json_null());
    return WF_OK;
}

/* FILE: with what a run's stage.json beside it says. */
static wf_status add_path(verification *v, const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        char folder[WF_RUN_PATH];
        snprintf(folder, sizeof folder, "%s", path);
        for (size_t end = strlen(folder); end > 1 && folder[end - 1] == '/';) folder[--end] = '\0';
        WF_TRY(add_recorded(v, folder, NULL));
        return wf__run_each_file(v->app, folder, add_file, v);
    }
    const char *slash = strrchr(path, '/');
    char folder[WF_RUN_PATH] = ".", beside[WF_RUN_PATH];
    if (slash != NULL) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    WF_TRY(wf__run_path(v->app, folder, slash != NULL ? slash + 1 : path, beside));
    WF_TRY(add_recorded(v, folder, beside));
    if (json_object_get(v->files, beside) == NULL)
        json_object_set_new(v->files, slash != NULL ? beside : path, json_null());
    return WF_OK;
}

/* A path, or a pattern that the shell left as it was. */
static wf_status add_argument(verification *v, const char *path) {
    char **files;
    size_t count;
    WF_TRY(wf_zoo_files(v->app->ctx, path, &files, &count));
    wf_status status = WF_OK;
    for (size_t i = 0; i < count && status == WF_OK; i++) status = add_path(v, files[i]);
    wf_zoo_names_free(files, count);
    return status;
}

static bool is_record(const char *path) {
    const char *slash = strrchr(path, '/');
    return strcmp(slash != NULL ? slash + 1 : path, "stage.json") == 0;
}

/* stage.json by the digest in it. */
static wf_status judge_record(verification *v, const char *path, bool *known) {
    json_t *record;
    wf_status status = wf__run_stages_read(v->app, path, &record, known);
    if (status == WF_OK) json_decref(record);
    return status;
}

static wf_status judge(verification *v, const char *path, const char *recorded) {
    wf_ctx *ctx = v->app->ctx;
    wf_status status = WF_OK;
    bool known = false;
    char digest[33];
    const char *why = "";
    if (!wf_file_exists(path)) status = WF_ERR_INPUT, why = "it is not there";
    else if (holds_digest(path)) {
        status = wf_file_verify(ctx, path, &known);
        if (status != WF_OK) why = wf_last_error(ctx);
    } else if (is_record(path)) {
        status = judge_record(v, path, &known);
        if (status != WF_OK) why = v->app->sentence;
    }
    if (status == WF_OK && (recorded != NULL || !(known || holds_digest(path)))) {
        status = wf_file_digest(ctx, path, digest);
        if (status != WF_OK) why = wf_last_error(ctx);
        else if (recorded != NULL && strcmp(digest, recorded) != 0)
            status = WF_ERR_INPUT, why = "it is not what the stage left";
        known = known || recorded != NULL;
    }
    if (status != WF_OK && status != WF_ERR_INPUT) return status;
    v->damaged += status != WF_OK;
    json_t *one = json_pack("{s:s, s:s}", "path", path, "verdict",
                            status != WF_OK ? "damaged"
                            : known         ? "ok"
                                            : "no digest");
    if (status != WF_OK) json_object_set_new(one, "why", json_string(why));
    json_array_append_new(v->result, one);
    return wf__run_json_complete(v->app, path, v->result);
}

static wf_status print(verification *v) {
    size_t count = json_array_size(v->result);
    if (v->app->json) {
        WF_TRY(cli_print_json(v->app,
                              json_pack("{s:O, s:i}", "files", v->result, "damaged", v->damaged)));
    } else {
        for (size_t i = 0; i < count; i++) {
            const json_t *one = json_array_get(v->result, i);
            const char *why = json_string_value(json_object_get(one, "why"));
            cli_print("%-10s %s%s%s\n", json_string_value(json_object_get(one, "verdict")),
                      json_string_value(json_object_get(one, "path")), why != NULL ? ": " : "",
                      why != NULL ? why : "");
        }
    }
    if (v->damaged == 0) return WF_OK;
    return wf__run_fail(v->app, WF_ERR_INPUT, "%d of %zu files are not what they were", v->damaged,
                        count);
}

static wf_status verify(verification *v) {
    const char *path;
    json_t *recorded;
    for (int i = 0; i < v->app->n_arguments; i++) WF_TRY(add_argument(v, v->app->argument[i]));
    WF_TRY(wf__run_json_complete(v->app, "verify", v->files));
    json_object_foreach(v->files, path, recorded)
        WF_TRY(judge(v, path, json_string_value(recorded)));
    return print(v);
}

wf_status cli_verify(wf_run_app *app) {
    verification v = {app, json_object(), json_array(), 0};
    wf_status status = verify(&v);
    json_decref(v.files);
    json_decref(v.result);
    return status;
}
