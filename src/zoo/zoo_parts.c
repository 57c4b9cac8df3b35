/* zoo_parts: the files of a collection while it is trained (zoo_shards.c): its settings as text,
 * parts and networks under way, and the merge of all parts into one file. */
#include "zoo/zoo_collection.h"

#include "base/comm.h"
#include "base/safetensors.h"
#include "weft/text.h"
#include "zoo/zoo_recipe.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { named_divergences = 10 };
static const char part_ending[] = ".safetensors", started_ending[] = ".started";

/* --- settings as text ------------------------------------------------------------------------- */

static void fingerprint_of(const wf_dataset *data, char out[65]) {
    if (data->fingerprint[0] != '\0') {
        memcpy(out, data->fingerprint, sizeof data->fingerprint);
        return;
    }
    wf_sha256 hash;
    wf_sha256_start(&hash);
    size_t width = (size_t)data->inputs * sizeof(float);
    wf_sha256_add(&hash, data->x_train, data->n_train * width);
    wf_sha256_add(&hash, data->y_train, data->n_train * sizeof *data->y_train);
    wf_sha256_add(&hash, data->x_test, data->n_test * width);
    wf_sha256_add(&hash, data->y_test, data->n_test * sizeof *data->y_test);
    wf_sha256_end(&hash, out);
}

/* The settings in a form in which equal meanings have equal values: empty ranges and settings of
 * the other optimiser, which have no effect, become defaults. */
static wf_zoo_desc normal_form(const wf_zoo_desc *desc) {
    wf_zoo_desc normal = *desc, defaults = wf_zoo_desc_default();
    normal.lr_max = fmax(desc->lr, desc->lr_max);
    if (normal.epochs_max < normal.epochs) normal.epochs_max = normal.epochs;
    if (desc->optimizer == WF_ZOO_ADAM) {
        normal.momentum = defaults.momentum;
        normal.nesterov = defaults.nesterov;
    } else {
        normal.beta1 = defaults.beta1;
        normal.beta2 = defaults.beta2;
        normal.eps = defaults.eps;
    }
    return normal;
}

/* All that a network depends on but its index, as lines of "key = value". */
static wf_status write_recipe(wf_ctx *ctx, zoo_collection *all) {
    wf_zoo_desc desc = normal_form(all->desc);
    char buffer[WF_SETTING_BUFFER];
    wf_text text = wf_text_start(all->recipe, sizeof all->recipe);
    wf_text_add(&text, "arch = %s\nactivation = %s\n", all->graph->text,
                wf_activation_name(all->graph->activation));
    for (const wf_setting *row = wf_zoo_settings(); row->key != NULL; row++)
        if (row->in_file == WF_FILE_CONFIG)
            wf_text_add(&text, "%s = %s\n", row->key, wf_setting_text(row, &desc, buffer));
    wf_text_add(&text, "test = %s\ndata = %s\n", all->test_name, all->fingerprint);
    return !text.cut ? WF_OK
                     : wf_fail(ctx, WF_ERR_UNSUPPORTED,
                               "%.80s...: the text of this architecture is too long for "
                               "a collection's recipe",
                               all->graph->text);
}

/* --- parts on disk ---------------------------------------------------------------------------- */

static bool has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), end = strlen(ending);
    return name[0] != '.' && length > end && strcmp(name + length - end, ending) == 0;
}

static wf_status list_add(wf_ctx *ctx, part_list *list, wf_zoo *part) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        wf_zoo **grown = realloc(list->parts, capacity * sizeof *grown);
        if (grown == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "list of parts: out of memory");
        list->parts = grown;
        list->capacity = capacity;
    }
    list->parts[list->count++] = part;
    return WF_OK;
}

static wf_status check_recipe(wf_ctx *ctx, const zoo_collection *all, const char *recipe) {
    wf_recipe_line theirs, ours;
    if (wf__same_recipe(recipe, all->recipe, &theirs, &ours)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s holds networks of other settings (\"%.*s = %.*s\", asked for is \"%.*s = "
                   "%.*s\"); finish that collection, or delete the folder to start again",
                   all->folder, theirs.key_size, theirs.key,
                   theirs.value_size < 80 ? theirs.value_size : 80, theirs.value, ours.key_size,
                   ours.key, ours.value_size < 80 ? ours.value_size : 80, ours.value);
}

static wf_status check_part(wf_ctx *ctx, const zoo_collection *all, const wf_zoo *part) {
    const char *recipe = wf_zoo_meta(part, "weft.recipe");
    size_t bytes;
    const uint8_t *errors = wf_zoo_errors(part, NULL, &bytes);
    if (recipe == NULL || wf_zoo_seeds(part) == NULL || wf_zoo_rates(part) == NULL ||
        wf_zoo_epochs(part) == NULL ||
        (all->error_bytes > 0 && (errors == NULL || wf_zoo_scores(part, NULL) == NULL)))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: not a part of a collection; delete the folder %s to start again",
                       wf_zoo_path(part), all->folder);
    WF_TRY(check_recipe(ctx, all, recipe));
    if (bytes != all->error_bytes || !wf_graph_equal(wf_zoo_graph(part), all->graph))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: shapes do not fit its settings; delete the folder %s to start again",
                       wf_zoo_path(part), all->folder);
    return WF_OK;
}

static wf_status cannot_take(wf_ctx *ctx, wf_status status) {
    if (status == WF_ERR_MEMORY || status == WF_ERR_INTERRUPTED) return status;
    return wf_fail(ctx, status, "%s; delete this file to train its networks again",
                   wf_last_error(ctx));
}

/* Notes where the networks of the last part lie; those outside first .. first+count-1 are left
 * alone. */
static void note_places(zoo_collection *all) {
    const wf_zoo *part = all->list.parts[all->list.count - 1];
    const int64_t *indices = wf_zoo_seeds(part);
    for (size_t network = 0; network < wf_zoo_count(part); network++) {
        int64_t i = indices[network] - (int64_t)all->desc->first;
        if (i < 0 || (size_t)i >= all->desc->count) continue;
        all->places[i] = (place){(int32_t)all->list.count - 1, (uint32_t)network};
        all->state[i] = WF_ZOO_TRAINED;
    }
}

wf_status wf__zoo_take_part(wf_ctx *ctx, zoo_collection *all, const char *path) {
    wf_zoo *part;
    wf_status status = wf_zoo_open(ctx, path, &part);
    if (status != WF_OK) return cannot_take(ctx, status);
    status = check_part(ctx, all, part);
    if (status == WF_OK) status = list_add(ctx, &all->list, part);
    if (status != WF_OK) {
        wf_zoo_free(part);
        return status;
    }
    note_places(all);
    return WF_OK;
}

void wf__zoo_name_networks(const zoo_collection *all, size_t kept, char out[WF_ZOO_NETWORKS]) {
    size_t first = all->desc->first;
    snprintf(out, WF_ZOO_NETWORKS, "%zu to %zu, %zu of them", first, first + all->desc->count - 1,
             kept);
}

/* Does a collection of these settings hold all networks that are asked for, but those that
 * diverged? Files of earlier versions do not say which they were made for. */
static bool is_whole(const zoo_collection *all, const wf_zoo *zoo) {
    const char *networks = wf_zoo_meta(zoo, "weft.networks");
    const int64_t *indices = wf_zoo_seeds(zoo);
    size_t count = wf_zoo_count(zoo);
    char asked[WF_ZOO_NETWORKS];
    wf__zoo_name_networks(all, count, asked);
    if (networks != NULL && networks[0] != '\0') return strcmp(networks, asked) == 0;
    bool whole = indices != NULL && count == all->desc->count;
    for (size_t i = 0; whole && i < count; i++)
        whole = indices[i] == (int64_t)(all->desc->first + i);
    return whole;
}

/* Takes up the file at PATH if it was made with these settings and is intact. It may hold all
 * networks that are asked for; if a killed call left it beside some of its parts, it counts as one
 * more part. Any other file there will be replaced, which is told while there is time to stop. */
static wf_status take_result(wf_ctx *ctx, zoo_collection *all) {
    static const char replaced[] = "%s holds other networks, or is damaged: it is replaced when "
                                   "all of these are trained";
    wf_zoo *zoo;
    if (!wf_file_exists(all->path)) return WF_OK;
    wf_status status = wf_zoo_open(ctx, all->path, &zoo);
    if (status == WF_ERR_MEMORY) return status;
    if (status != WF_OK) {
        wf_warn(ctx, replaced, all->path);
        return WF_OK;
    }
    const char *recipe = wf_zoo_meta(zoo, "weft.recipe");
    bool whole = is_whole(all, zoo);
    bool ours = recipe != NULL && strcmp(recipe, all->recipe) == 0 &&
                (whole || wf_file_exists(all->folder)) && wf_zoo_verify(ctx, zoo) == WF_OK;
    if (ours) status = check_part(ctx, all, zoo);
    if (ours && status == WF_OK) status = list_add(ctx, &all->list, zoo);
    if (!ours || status != WF_OK) {
        wf_zoo_free(zoo);
        if (!ours) wf_warn(ctx, replaced, all->path);
        return status;
    }
    all->stands = whole ? wf_zoo_count(zoo) : 0;
    note_places(all);
    return WF_OK;
}

static wf_status join_path(wf_ctx *ctx, char *out, const char *a, const char *separator,
                           const char *b) {
    if (snprintf(out, WF_ZOO_PATH, "%s%s%s", a, separator, b) >= WF_ZOO_PATH)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: the path is too long", a);
    return WF_OK;
}

wf_status wf__zoo_part_path(wf_ctx *ctx, const zoo_collection *all, int64_t first,
                            char out[WF_ZOO_PATH]) {
    char name[64];
    snprintf(name, sizeof name, "%010" PRId64 "%s", first, part_ending);
    return join_path(ctx, out, all->folder, "/", name);
}

/* --- networks under way ----------------------------------------------------------------------- */

static wf_status started_path(wf_ctx *ctx, const zoo_collection *all, size_t i,
                              char out[WF_ZOO_PATH]) {
    char name[64];
    snprintf(name, sizeof name, "%010zu%s", all->desc->first + i, started_ending);
    return join_path(ctx, out, all->folder, "/", name);
}

wf_status wf__zoo_started_write(wf_ctx *ctx, const zoo_collection *all, size_t i, const void *w,
                                const wf_zoo_progress *progress) {
    size_t n = all->graph->n_params;
    char path[WF_ZOO_PATH], updates[32];
    WF_TRY(started_path(ctx, all, i, path));
    snprintf(updates, sizeof updates, "%" PRIu64, progress->updates);
    const void *data[] = {w, progress->first, progress->second};
    static const char *const names[] = {"weights", "first", "second"};
    wf_st_tensor tensors[3];
    for (int k = 0; k < 3; k++)
        tensors[k] = (wf_st_tensor){names[k], WF_ST_F32, 1, {n}, n, n * sizeof(float), data[k]};
    const char *const meta[][2] = {{"weft.format", "network under way 1"},
                                   {"weft.recipe", all->recipe},
                                   {"weft.updates", updates}};
    return wf_st_write(ctx, path, tensors, 3, meta, 3);
}

/* w and progress NULL: the file is checked only. */
static wf_status started_read(wf_ctx *ctx, const zoo_collection *all, const char *path, void *w,
                              wf_zoo_progress *progress) {
    wf_st_file *file;
    wf_status status = wf_st_open(ctx, path, &file);
    if (status == WF_OK) {
        status = wf_st_verify(ctx, file, NULL);
        if (status != WF_OK) wf_st_close(file);
    }
    if (status != WF_OK) return cannot_take(ctx, status);
    void *out[] = {w, progress != NULL ? progress->first : NULL,
                   progress != NULL ? progress->second : NULL};
    static const char *const names[] = {"weights", "first", "second"};
    const char *recipe = wf_st_meta(file, "weft.recipe"), *text = wf_st_meta(file, "weft.updates");
    char *end = NULL;
    uint64_t updates = text != NULL ? strtoull(text, &end, 10) : 0;
    bool whole = recipe != NULL && updates > 0 && *end == '\0';
    for (int k = 0; k < 3 && whole; k++) {
        const wf_st_tensor *tensor = wf_st_find(file, names[k]);
        whole =
            tensor != NULL && tensor->dtype == WF_ST_F32 && tensor->count == all->graph->n_params;
    }
    if (whole) status = check_recipe(ctx, all, recipe);
    else status = cannot_take(ctx, wf_fail(ctx, WF_ERR_INPUT, "%s: not a network under way", path));
    for (int k = 0; k < 3 && status == WF_OK && w != NULL; k++) {
        const wf_st_tensor *tensor = wf_st_find(file, names[k]);
        memcpy(out[k], tensor->data, tensor->bytes);
    }
    if (progress != NULL) progress->updates = updates;
    wf_st_close(file);
    return status;
}

wf_status wf__zoo_started_read(wf_ctx *ctx, const zoo_collection *all, size_t i, void *w,
                               wf_zoo_progress *progress) {
    char path[WF_ZOO_PATH];
    WF_TRY(started_path(ctx, all, i, path));
    return started_read(ctx, all, path, w, progress);
}

void wf__zoo_started_remove(wf_ctx *ctx, zoo_collection *all, size_t i) {
    char path[WF_ZOO_PATH];
    if (all->started[i] && started_path(ctx, all, i, path) == WF_OK) unlink(path);
    all->started[i] = 0;
}

static wf_status take_started(wf_ctx *ctx, zoo_collection *all, const char *name,
                              const char *path) {
    size_t index = strtoull(name, NULL, 10);
    WF_TRY(started_read(ctx, all, path, NULL, NULL));
    if (index >= all->desc->first && index - all->desc->first < all->desc->count)
        all->started[index - all->desc->first] = 1;
    return WF_OK;
}

typedef struct taking {
    wf_ctx *ctx;
    zoo_collection *all;
} taking;

static wf_status take_file(void *taking_, const char *name) {
    const taking *now = taking_;
    wf_ctx *ctx = now->ctx;
    zoo_collection *all = now->all;
    char path[WF_ZOO_PATH];
    bool part = has_ending(name, part_ending), started = has_ending(name, started_ending);
    if (!part && !started) return WF_OK;
    WF_TRY(join_path(ctx, path, all->folder, "/", name));
    if (started) return take_started(ctx, all, name, path);
    WF_TRY(wf__zoo_take_part(ctx, all, path));
    wf_status status = wf_zoo_verify(ctx, all->list.parts[all->list.count - 1]);
    return status == WF_OK ? WF_OK : cannot_take(ctx, status);
}

static wf_status take_files(wf_ctx *ctx, zoo_collection *all) {
    WF_TRY(take_result(ctx, all));
    if (all->stands > 0 && !wf_file_exists(all->folder)) return WF_OK;
    WF_TRY(wf_make_folder(ctx, all->folder));
    return wf_list_folder(ctx, all->folder, take_file, &(taking){ctx, all});
}

static wf_status take_files_alone(wf_ctx *ctx, zoo_collection *all) {
    bool alone = wf_work_alone(ctx, true);
    wf_status status = take_files(ctx, all);
    wf_work_alone(ctx, alone);
    return status;
}

/* Networks of a larger collection that is not finished yet are not ours to delete. */
static bool reaches_outside(const zoo_collection *all, const wf_zoo *part) {
    const int64_t *indices = wf_zoo_seeds(part);
    for (size_t network = 0; network < wf_zoo_count(part); network++) {
        int64_t i = indices[network] - (int64_t)all->desc->first;
        if (i < 0 || (size_t)i >= all->desc->count) return true;
    }
    return false;
}

/* Deletes the merged parts, what a killed writer left of one (".NAME.tmp.PID"), and the folder when
 * it is empty. */
void wf__zoo_remove_parts(wf_ctx *ctx, zoo_collection *all) {
    for (size_t i = 0; i < all->desc->count; i++) wf__zoo_started_remove(ctx, all, i);
    for (size_t p = 0; p < all->list.count; p++)
        if (!reaches_outside(all, all->list.parts[p]) &&
            strcmp(wf_zoo_path(all->list.parts[p]), all->path) != 0)
            unlink(wf_zoo_path(all->list.parts[p]));
    wf_remove_dead_siblings(all->folder);
    bool left = rmdir(all->folder) != 0;
    if (left && (errno == ENOTEMPTY || errno == EEXIST))
        wf_warn(ctx, "%s: the folder is kept, it holds more than this collection's parts",
                all->folder);
    else if (left)
        wf_warn(ctx, "%s: the empty folder cannot be removed: %s; the same command removes it",
                all->folder, strerror(errno));
    wf_sync_names(all->folder); /* else a power loss brings it back, beside a finished collection */
}

/* --- what goes with the weights --------------------------------------------------------------- */

void wf__zoo_columns_free(columns *some) {
    free(some->index);
    free(some->lr);
    free(some->epochs);
    free(some->scores);
    free(some->errors);
}

wf_status wf__zoo_columns_alloc(wf_ctx *ctx, size_t count, size_t error_bytes, columns *out) {
    *out = (columns){0};
    const char *what = "scores of a collection";
    wf_status status = wf_alloc(ctx, count, sizeof *out->index, what, &out->index);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->lr, what, &out->lr);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->epochs, what, &out->epochs);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->scores, what, &out->scores);
    if (status == WF_OK) status = wf_alloc(ctx, count, error_bytes, what, &out->errors);
    return status;
}

wf_zoo_extra wf__zoo_extra(const zoo_collection *all, const columns *some) {
    bool tested = all->error_bytes > 0;
    return (wf_zoo_extra){.seeds = some->index,
                          .lr = some->lr,
                          .epochs = some->epochs,
                          .n_tests = tested ? 1 : 0,
                          .test_names = {all->test_name},
                          .scores = {some->scores},
                          .errors = {some->errors},
                          .error_bytes = {all->error_bytes},
                          .n_meta = all->data->note[0] != 0 ? 6 : 5,
                          .meta = {{"weft.recipe", all->recipe},
                                   {"weft.networks", all->networks},
                                   {"weft.data", all->fingerprint},
                                   {"weft.preparation", all->data->preparation},
                                   {"weft.seed", all->seed},
                                   {"weft.data.note", all->data->note}}};
}

/* --- the merge -------------------------------------------------------------------------------- */

static void network_at(void *all_, size_t place_index, float *w) {
    const zoo_collection *all = all_;
    const place *at = &all->places[place_index];
    wf_zoo_get(all->list.parts[at->part], at->network, w);
}

static bool all_finite(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

/* Closes up the places of networks that did not diverge; returns how many there are. */
static wf_status drop_diverged(wf_ctx *ctx, zoo_collection *all, size_t *kept) {
    size_t total = all->desc->count, n_params = all->graph->n_params, dropped = 0;
    float *w;
    WF_TRY(wf_alloc(ctx, n_params, sizeof *w, "one network", &w));
    for (size_t i = 0; i < total; i++) {
        network_at(all, i, w);
        if (all_finite(w, n_params)) {
            all->places[i - dropped] = all->places[i];
            continue;
        }
        if (++dropped <= named_divergences)
            wf_warn(ctx, "network %zu diverged (learning rate %.3g) and is left out",
                    all->desc->first + i,
                    wf_zoo_task_of(all->desc, (uint32_t)(all->desc->first + i)).lr);
    }
    free(w);
    *kept = total - dropped;
    if (dropped > named_divergences)
        wf_warn(ctx, "%zu of %zu networks diverged and are left out; lower the learning rate",
                dropped, total);
    return WF_OK;
}

static void merge_columns(const zoo_collection *all, size_t count, columns *out) {
    for (size_t i = 0; i < count; i++) {
        const wf_zoo *part = all->list.parts[all->places[i].part];
        size_t network = all->places[i].network, bytes = all->error_bytes;
        out->index[i] = wf_zoo_seeds(part)[network];
        out->lr[i] = wf_zoo_rates(part)[network];
        out->epochs[i] = wf_zoo_epochs(part)[network];
        if (bytes == 0) continue;
        out->scores[i] = wf_zoo_scores(part, NULL)[network];
        memcpy(out->errors + i * bytes, wf_zoo_errors(part, NULL, &bytes) + network * bytes, bytes);
    }
}

wf_status wf__zoo_merge(wf_ctx *ctx, zoo_collection *all, size_t *diverged) {
    size_t kept;
    WF_TRY(drop_diverged(ctx, all, &kept));
    *diverged = all->desc->count - kept;
    if (kept == 0) {
        wf__zoo_remove_parts(ctx, all);
        return wf_fail(ctx, WF_ERR_DIVERGED,
                       "%s: all %zu networks diverged; lower the learning rate (%g)", all->path,
                       all->desc->count, all->desc->lr);
    }
    columns extra;
    wf__zoo_name_networks(all, kept, all->networks);
    wf_status status = wf__zoo_columns_alloc(ctx, kept, all->error_bytes, &extra);
    if (status == WF_OK) {
        merge_columns(all, kept, &extra);
        wf_zoo_extra written = wf__zoo_extra(all, &extra);
        status = wf_zoo_write_from(ctx, all->path, all->graph, network_at, all, kept, &written);
    }
    wf__zoo_columns_free(&extra);
    if (status == WF_OK) wf__zoo_remove_parts(ctx, all);
    return status;
}

/* --- the start -------------------------------------------------------------------------------- */

wf_status wf__zoo_start(wf_ctx *ctx, zoo_collection *all) {
    const wf_zoo_desc *desc = all->desc;
    WF_TRY(wf_lock_file(ctx, all->path, &all->lock));
    WF_TRY(wf_zoo_plan_build(ctx, all->graph, all->data, desc, &all->chain, &all->plan));
    const char *name = desc->test_name != NULL ? desc->test_name : all->data->name;
    if (strlen(name) >= sizeof all->test_name)
        return wf_fail(ctx, WF_ERR_USAGE, "test set name \"%s\": at most 100 characters", name);
    snprintf(all->test_name, sizeof all->test_name, "%s", name[0] != '\0' ? name : "test");
    all->error_bytes = (all->data->n_test + 7) / 8;
    snprintf(all->seed, sizeof all->seed, "%" PRIu64, desc->seed);
    fingerprint_of(all->data, all->fingerprint);
    WF_TRY(write_recipe(ctx, all));
    WF_TRY(join_path(ctx, all->folder, all->path, "", ".parts"));
    WF_TRY(wf_alloc(ctx, desc->count, sizeof *all->places, "places of networks", &all->places));
    WF_TRY(wf_alloc(ctx, desc->count, 1, "network states", &all->state));
    WF_TRY(wf_alloc(ctx, desc->count, 1, "network states", &all->started));
    WF_TRY(wf__zoo_columns_alloc(ctx, desc->count, all->error_bytes, &all->extra));
    for (size_t i = 0; i < desc->count; i++) {
        wf_zoo_task task = wf_zoo_task_of(desc, (uint32_t)(desc->first + i));
        all->places[i].part = WF_PLACE_NONE;
        all->extra.index[i] = task.index;
        all->extra.lr[i] = (float)task.lr;
        all->extra.epochs[i] = task.epochs;
    }
    if (wf_ctx_create(&(wf_ctx_desc){.threads = 1}, &all->keeper) != WF_OK)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", all->path);
    return wf_ctx_rank(ctx) == 0 ? take_files_alone(ctx, all) : WF_OK;
}
