/* zoo_import_files: see the header. */
#include "zoo/zoo_import_files.h"

#include "zoo/zoo_import_items.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { deepest = 32 }; /* folders within folders; a link to a parent ends there */

static bool ends_with(const char *text, const char *tail) {
    size_t length = strlen(text), tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool is_safetensors(const char *name) { return ends_with(name, ".safetensors"); }

bool wf_import_torch_name(const char *name) {
    static const char *const endings[] = {".pt", ".pth", ".ckpt", ".bin"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, endings[i])) return true;
    return false;
}

static bool is_network_file(const char *name) {
    return name[0] != '.' && (is_safetensors(name) || wf_import_torch_name(name));
}

void wf_import_files_free(wf_import_files *files) {
    for (size_t i = 0; i < files->n; i++) free(files->list[i].path);
    free(files->list);
    *files = (wf_import_files){0};
}

static wf_status add(wf_ctx *ctx, const char *folder, const char *name, bool alone,
                     wf_import_files *to) {
    if (to->n == to->capacity) {
        size_t capacity = to->capacity == 0 ? 64 : 2 * to->capacity;
        wf_import_file *moved = realloc(to->list, capacity * sizeof *moved);
        if (moved == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", name);
        to->list = moved;
        to->capacity = capacity;
    }
    size_t length = strlen(folder) + strlen(name) + 2;
    char *path = malloc(length);
    if (path == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", name);
    bool slash = folder[0] != 0 && !ends_with(folder, "/");
    snprintf(path, length, "%s%s%s", folder, slash ? "/" : "", name);
    to->list[to->n++] = (wf_import_file){.path = path, .alone = alone};
    return WF_OK;
}

static int by_natural_path(const void *a, const void *b) {
    return wf_natural_order(((const wf_import_file *)a)->path, ((const wf_import_file *)b)->path,
                            NULL);
}

/* --- a folder --------------------------------------------------------------------------------- */

typedef struct folder {
    wf_ctx *ctx;
    const char *path;
    wf_import_files files, folders;
} folder;

static wf_status take_name(void *into_, const char *name) {
    folder *into = into_;
    if (name[0] == '.') return WF_OK;
    WF_TRY(add(into->ctx, into->path, name, false, &into->folders));
    struct stat info;
    wf_import_file *last = &into->folders.list[into->folders.n - 1];
    if (stat(last->path, &info) == 0 && S_ISDIR(info.st_mode)) return WF_OK;
    free(last->path);
    into->folders.n--;
    return is_network_file(name) ? add(into->ctx, into->path, name, false, &into->files) : WF_OK;
}

static bool has(const wf_import_files *files, const char *name) {
    for (size_t i = 0; i < files->n; i++)
        if (strcmp(base_name(files->list[i].path), name) == 0) return true;
    return false;
}

/* What trainers save beside a network. */
static bool is_companion(const char *name, bool has_safetensors) {
    static const char *const names[] = {"optimizer", "scheduler",     "training_args",
                                        "rng_state", "random_states", "scaler"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
    return has_safetensors && strcmp(name, "pytorch_model.bin") == 0;
}

static void drop_companions(wf_import_files *files) {
    bool safetensors = has(files, "model.safetensors");
    if (!safetensors && !has(files, "pytorch_model.bin")) return;
    size_t kept = 0;
    for (size_t i = 0; i < files->n; i++) {
        if (is_companion(base_name(files->list[i].path), safetensors)) free(files->list[i].path);
        else files->list[kept++] = files->list[i];
    }
    files->n = kept;
}

static wf_status check_kinds(wf_ctx *ctx, const folder *f) {
    for (size_t i = 1; i < f->files.n; i++) {
        const char *first = f->files.list[0].path, *other = f->files.list[i].path;
        if (is_safetensors(first) == is_safetensors(other)) continue;
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: both safetensors and torch files ('%s', '%s'), perhaps the same "
                       "networks twice; name the ones you want, as '%s/*%s'",
                       f->path, base_name(first), base_name(other), f->path, strrchr(other, '.'));
    }
    return WF_OK;
}

static wf_status list_folder(wf_ctx *ctx, const char *path, bool recursive, int depth,
                             wf_import_files *out);

static wf_status list_below(wf_ctx *ctx, const folder *f, int depth, wf_import_files *out) {
    if (depth >= deepest)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: folders lie more than %d deep, or a link leads back to one above",
                       f->path, deepest);
    for (size_t i = 0; i < f->folders.n; i++)
        WF_TRY(list_folder(ctx, f->folders.list[i].path, true, depth + 1, out));
    return WF_OK;
}

static wf_status list_folder(wf_ctx *ctx, const char *path, bool recursive, int depth,
                             wf_import_files *out) {
    folder f = {.ctx = ctx, .path = path};
    wf_status status = wf_list_folder(ctx, path, take_name, &f);
    if (status == WF_OK) {
        drop_companions(&f.files);
        status = check_kinds(ctx, &f);
    }
    for (size_t i = 0; i < f.files.n && status == WF_OK; i++)
        status = add(ctx, "", f.files.list[i].path, false, out);
    if (status == WF_OK && recursive) status = list_below(ctx, &f, depth, out);
    wf_import_files_free(&f.files);
    wf_import_files_free(&f.folders);
    return status;
}

/* --- sources ---------------------------------------------------------------------------------- */

/* Says where files would be, had subfolders been searched. */
static wf_status nothing_in(wf_ctx *ctx, const char *path, bool recursive) {
    wf_import_files below = {0};
    bool deeper = !recursive && list_folder(ctx, path, true, 0, &below) == WF_OK && below.n > 0;
    if (deeper) qsort(below.list, below.n, sizeof *below.list, by_natural_path);
    wf_status status =
        deeper ? wf_fail(ctx, WF_ERR_INPUT,
                         "%s: no networks in this folder, but %zu file%s in folders below it, as "
                         "%s; give --recursive to take them",
                         path, below.n, below.n == 1 ? "" : "s", below.list[0].path)
               : wf_fail(ctx, WF_ERR_INPUT,
                         "%s: no .safetensors, .pt, .pth, .ckpt or .bin files in this folder%s",
                         path, recursive ? " or below it" : "");
    wf_import_files_free(&below);
    return status;
}

static wf_status list_one(wf_ctx *ctx, const char *path, bool recursive, wf_import_files *out) {
    struct stat info;
    if (stat(path, &info) != 0) return wf_fail_to_open(ctx, path);
    if (!S_ISDIR(info.st_mode)) return add(ctx, "", path, true, out);
    size_t before = out->n;
    WF_TRY(list_folder(ctx, path, recursive, 0, out));
    if (out->n == before) return nothing_in(ctx, path, recursive);
    qsort(out->list + before, out->n - before, sizeof *out->list, by_natural_path);
    return WF_OK;
}

static wf_status list_pattern(wf_ctx *ctx, const char *pattern, bool recursive,
                              wf_import_files *out) {
    glob_t found = {0};
    int code = glob(pattern, GLOB_BRACE, NULL, &found);
    if (code == GLOB_NOSPACE) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", pattern);
    wf_status status =
        code == 0
            ? WF_OK
            : wf_fail(ctx, WF_ERR_INPUT, "%s: no file matches%s", pattern,
                      strstr(pattern, "**") == NULL
                          ? ""
                          : "; ** is no more than *: name the folder above and give --recursive");
    wf_import_files paths = {0};
    for (size_t i = 0; status == WF_OK && i < found.gl_pathc; i++)
        status = add(ctx, "", found.gl_pathv[i], true, &paths);
    globfree(&found);
    if (paths.n > 0) qsort(paths.list, paths.n, sizeof *paths.list, by_natural_path);
    for (size_t i = 0; status == WF_OK && i < paths.n; i++)
        status = list_one(ctx, paths.list[i].path, recursive, out);
    wf_import_files_free(&paths);
    return status;
}

/* Names begin after the last slash that all paths have in common. */
static void set_names(wf_import_files *files) {
    size_t common = (size_t)(base_name(files->list[0].path) - files->list[0].path);
    for (size_t i = 1; i < files->n; i++) {
        size_t same = 0;
        const char *a = files->list[0].path, *b = files->list[i].path;
        while (same < common && a[same] == b[same]) same++;
        while (same > 0 && a[same - 1] != '/') same--;
        common = same;
    }
    for (size_t i = 0; i < files->n; i++) files->list[i].name = files->list[i].path + common;
}

wf_status wf_import_files_list(wf_ctx *ctx, const char *const *sources, int n, bool recursive,
                               wf_import_files *out) {
    *out = (wf_import_files){0};
    for (int i = 0; i < n; i++) {
        bool pattern = !wf_file_exists(sources[i]) && strpbrk(sources[i], "*?[{") != NULL;
        WF_TRY((pattern ? list_pattern : list_one)(ctx, sources[i], recursive, out));
    }
    if (out->n == 0) return wf_fail(ctx, WF_ERR_USAGE, "import: no source is given");
    set_names(out);
    return WF_OK;
}
