/* files: paths, removal and JSON files. */
#include "run/files.h"

#include "base/io.h"
#include "weft/comm.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { json_limit = 256 << 20 };

bool wf__run_ends_with(const char *text, const char *ending) {
    size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

wf_status wf__run_path(wf_run_app *app, const char *folder, const char *name,
                       char out[WF_RUN_PATH]) {
    int length = snprintf(out, WF_RUN_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= WF_RUN_PATH)
        return wf__run_fail(app, WF_ERR_USAGE, "%.200s...: the path is too long", folder);
    return WF_OK;
}

wf_status wf__run_whole_path(wf_run_app *app, const char *path, char out[WF_RUN_PATH]) {
    char folder[WF_RUN_PATH];
    if (realpath(path, out) != NULL) return WF_OK;
    if (path[0] != '/' && getcwd(folder, sizeof folder) != NULL)
        return wf__run_path(app, folder, path, out);
    if (snprintf(out, WF_RUN_PATH, "%s", path) < WF_RUN_PATH) return WF_OK;
    return wf__run_fail(app, WF_ERR_USAGE, "%.200s...: the path is too long", path);
}

static wf_lock **next_lock(wf_run_app *app) {
    assert(app->n_locks < WF_RUN_MAX_LOCKS);
    return &app->locks[app->n_locks++];
}

wf_status wf__run_lock_file(wf_run_app *app, const char *path) {
    bool twice = false; /* this command would wait for itself */
    if (path == NULL) return WF_OK;
    for (int i = 0; i < app->n_locks; i++) twice = twice || wf_lock_is_of(app->locks[i], path);
    WF_TRY(wf_ctx_decide(app->ctx, &twice)); /* rank 0 holds the locks */
    if (twice)
        return wf__run_fail(app, WF_ERR_USAGE,
                            "%s is named twice; give each output a name of its own", path);
    return wf_lock_file(app->ctx, path, next_lock(app));
}

wf_status wf__run_lock_folder(wf_run_app *app, const char *folder) {
    return wf_lock_folder(app->ctx, folder, next_lock(app));
}

bool wf__run_zoo_is_done(const char *path) {
    char parts[WF_RUN_PATH + 16];
    snprintf(parts, sizeof parts, "%s.parts", path);
    return wf_file_exists(path) && !wf_file_exists(parts);
}

void wf__run_count(size_t count, char out[32]) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%zu", count), used = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
}

static atomic_bool lacked_memory;

void *wf__run_json_malloc(size_t size) {
    void *memory = malloc(size);
    if (memory == NULL) lacked_memory = true;
    return memory;
}

void wf__run_json_watch(void) { json_set_alloc_funcs(wf__run_json_malloc, free); }

wf_status wf__run_json_complete(wf_run_app *app, const char *what, const json_t *json) {
    if (lacked_memory) return wf__run_fail(app, WF_ERR_MEMORY, "%s: out of memory", what);
    if (json == NULL)
        return wf__run_fail(app, WF_ERR_INPUT, "%s: a name in it is not UTF-8, which JSON demands",
                            what);
    return WF_OK;
}

wf_status wf__run_json_read(wf_run_app *app, const char *path, json_t **out) {
    char *text;
    size_t size;
    *out = NULL;
    WF_TRY(wf_read_file(app->ctx, path, json_limit, &text, &size));
    json_error_t error;
    wf_status modest = wf_json_check(app->ctx, path, text, size);
    if (modest == WF_OK) *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    free(text);
    WF_TRY(modest);
    if (*out == NULL && !lacked_memory)
        return wf__run_fail(app, WF_ERR_INPUT, "%s, line %d: %s", path, error.line, error.text);
    wf_status status = wf__run_json_complete(app, path, *out);
    if (status == WF_OK) return WF_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

wf_status wf__run_json_write(wf_run_app *app, const char *path, const json_t *json) {
    char *text = json == NULL ? NULL : json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(10));
    wf_status status = wf__run_json_complete(app, path, text == NULL ? NULL : json);
    if (status == WF_OK) status = wf_write_file(app->ctx, path, text, strlen(text));
    free(text);
    return status;
}
