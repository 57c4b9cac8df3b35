#include "run/outputs.h"

#include <errno.h>
#include <fts.h>
#include <string.h>

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static wf_status walk_failed(wf_run_app *app, const char *path, int code) {
    return wf__run_fail(app, code == ENOMEM ? WF_ERR_MEMORY : WF_ERR_INPUT, "%s: %s", path,
                        strerror(code));
}

wf_status wf__run_each_file(wf_run_app *app, const char *path, wf_run_visit *visit, void *user) {
    char start[WF_RUN_PATH];
    snprintf(start, sizeof start, "%s", path);
    char *const starts[] = {start, NULL};
    FTS *walk = fts_open(starts, FTS_PHYSICAL | FTS_NOCHDIR | FTS_COMFOLLOW, by_name);
    if (walk == NULL) return walk_failed(app, path, errno);
    wf_status status = WF_OK;
    for (FTSENT *entry; status == WF_OK && (errno = 0, entry = fts_read(walk)) != NULL;) {
        bool hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
        if (hidden) fts_set(walk, entry, FTS_SKIP);
        else if (entry->fts_info == FTS_F) status = visit(user, entry->fts_path);
        else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR ||
                 entry->fts_info == FTS_NS)
            status = walk_failed(app, entry->fts_path, entry->fts_errno);
    }
    if (status == WF_OK && errno != 0) status = walk_failed(app, path, errno);
    fts_close(walk);
    return status;
}

/* Relative to the folder where the file lies in it. */
static const char *name_of(const char *folder, const char *path) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/' ? path + length + 1 : path;
}

typedef struct adding {
    wf_run_app *app;
    const char *folder;
    json_t *outputs;
} adding;

static wf_status add_file(void *adding_, const char *path) {
    const adding *a = adding_;
    char digest[33];
    WF_TRY(wf_file_digest(a->app->ctx, path, digest));
    json_object_set_new(a->outputs, name_of(a->folder, path), json_string(digest));
    return wf__run_json_complete(a->app, path, a->outputs);
}

wf_status wf__run_outputs_add(wf_run_app *app, const char *folder, const char *path,
                              json_t *outputs) {
    adding a = {app, folder, outputs};
    char **files;
    size_t count;
    if (path[0] == '\0' || !wf__run_exists(app, path)) return WF_OK;
    WF_TRY(wf_zoo_files(app->ctx, path, &files, &count));
    wf_status status = WF_OK;
    for (size_t i = 0; i < count && status == WF_OK; i++)
        status = wf__run_each_file(app, files[i], add_file, &a);
    wf_zoo_names_free(files, count);
    return status;
}

bool wf__run_exists(wf_run_app *app, const char *path) {
    char **files = NULL;
    size_t count = 0;
    if (wf_file_exists(path)) return true;
    if (strpbrk(path, "*?[") == NULL || wf_zoo_files(app->ctx, path, &files, &count) != WF_OK)
        return false;
    wf_zoo_names_free(files, count);
    return count > 0;
}

static bool is_among(const char *name, const char *folder, char *const *files, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(name_of(folder, files[i]), name) == 0) return true;
    return false;
}

wf_status wf__run_parts_changed(wf_run_app *app, const char *folder, const char *pattern,
                                json_t *outputs, char changed[WF_RUN_PATH]) {
    char **files;
    size_t count;
    const char *name;
    json_t *value;
    changed[0] = '\0';
    if (wf_file_exists(pattern) || json_object_size(outputs) == 0) return WF_OK;
    WF_TRY(wf_zoo_files(app->ctx, pattern, &files, &count));
    json_object_foreach(outputs, name,
                        value) if (changed[0] == '\0' && !is_among(name, folder, files, count))
        snprintf(changed, WF_RUN_PATH, "%s", name);
    for (size_t i = 0; i < count && changed[0] == '\0'; i++)
        if (json_object_get(outputs, name_of(folder, files[i])) == NULL)
            snprintf(changed, WF_RUN_PATH, "%s", files[i]);
    wf_zoo_names_free(files, count);
    return WF_OK;
}

wf_status wf__run_outputs_path(wf_run_app *app, const char *folder, const char *name,
                               char out[WF_RUN_PATH]) {
    if (name[0] != '/') {
        WF_TRY(wf__run_path(app, folder, name, out));
        if (wf_file_exists(out)) return WF_OK;
    }
    /* A collection of the user's stands under its own path. */
    if (wf_file_exists(name)) snprintf(out, WF_RUN_PATH, "%s", name);
    return WF_OK;
}

wf_status wf__run_outputs_changed(wf_run_app *app, const char *folder, json_t *outputs,
                                  char changed[WF_RUN_PATH]) {
    const char *name;
    json_t *value;
    json_object_foreach(outputs, name, value) {
        char digest[33];
        const char *recorded = json_string_value(value);
        WF_TRY(wf__run_outputs_path(app, folder, name, changed));
        if (recorded == NULL || !wf_file_exists(changed)) continue;
        WF_TRY(wf_file_digest(app->ctx, changed, digest));
        if (strcmp(digest, recorded) != 0) return WF_OK;
    }
    changed[0] = '\0';
    return WF_OK;
}
