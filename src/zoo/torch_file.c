/* torch_file: see the header. Archive: NAME/data.pkl, NAME/data/KEY (one per storage, raw
 * little-endian elements), NAME/byteorder where torch is recent. The pickle gives views into
 * storages; each storage is read and checked once.
 *
 * torch.save writes unpacked entries, so tensors point into the file. Only packed entries, strided
 * views and the dictionary itself take memory. One budget, set by the size of the file, limits all
 * of it (spend), because a few hundred bytes can claim gigabytes. */
#include "zoo/torch_file.h"
#include "zoo/torch_pickle.h"
#include "base/zip.h"
#include "weft/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The budget: twice the file, for one that was packed or transposed as a whole, and what a small
 * file may take. */
enum { budget_factor = 2, budget_floor = 48 << 20 };
enum { most_tensors = 1 << 16, longest_name = 1024 };

typedef struct contents {
    const uint8_t *data;
    void *owned;
    bool loaded;
} contents;

struct wf_torch_file {
    wf_map map; /* empty when the bytes are the caller's */
    char *label;
    wf_zip zip;
    wf_arena arena;
    contents *contents;   /* of each zip entry */
    size_t pickle;        /* entry of data.pkl */
    size_t budget, spent; /* bytes */
    wf_st_tensor *tensors;
    size_t n;
};

static const uint8_t legacy_start[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9};

wf_status wf_torch_recognise(wf_ctx *ctx, const char *path, bool *out) {
    wf_map map = {0};
    WF_TRY(wf_map_open(ctx, path, &map));
    *out = map.size >= sizeof legacy_start &&
           (memcmp(map.data, "PK\3\4", 4) == 0 ||
            memcmp(map.data, legacy_start, sizeof legacy_start) == 0);
    wf_map_close(&map);
    return WF_OK;
}

static wf_status spend(wf_ctx *ctx, wf_torch_file *file, size_t bytes) {
    if (bytes > file->budget - file->spent)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: its tensors take more than %zu MB of memory, far more than the file has; "
            "save them unpacked and .contiguous()",
            file->label, file->budget >> 20);
    file->spent += bytes;
    return WF_OK;
}

static wf_status load(wf_ctx *ctx, wf_torch_file *file, size_t entry, contents *out) {
    contents *kept = &file->contents[entry];
    if (!kept->loaded) {
        if (file->zip.entries[entry].deflated)
            WF_TRY(spend(ctx, file, file->zip.entries[entry].size));
        WF_TRY(wf_zip_read(ctx, &file->zip, entry, &kept->data, &kept->owned));
        kept->loaded = true;
    }
    *out = *kept;
    return WF_OK;
}

/* --- the archive ------------------------------------------------------------------------------ */

/* The length of "NAME/" in front of data.pkl, which must be there once. */
static wf_status find_pickle(wf_ctx *ctx, wf_torch_file *file, size_t *prefix) {
    static const char tail[] = "/data.pkl";
    const size_t tail_length = sizeof tail - 1;
    size_t found = 0;
    for (size_t i = 0; i < file->zip.n; i++) {
        const wf_zip_entry *entry = &file->zip.entries[i];
        if (entry->name_length <= tail_length ||
            memchr(entry->name, '/', entry->name_length - tail_length) != NULL ||
            memcmp(entry->name + entry->name_length - tail_length, tail, tail_length) != 0)
            continue;
        file->pickle = i;
        *prefix = entry->name_length - tail_length + 1;
        found++;
    }
    if (found == 1) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: a zip file, but with %zu entries NAME/data.pkl instead of one: not written "
                   "by torch.save",
                   file->label, found);
}

/* Index of NAME/tail, or zip.n. */
static size_t find_member(const wf_torch_file *file, size_t prefix, const char *folder,
                          const char *tail, size_t tail_length) {
    const wf_zip_entry *pickle = &file->zip.entries[file->pickle];
    size_t folder_length = strlen(folder), length = prefix + folder_length + tail_length;
    char name[512];
    if (length > sizeof name) return file->zip.n;
    memcpy(name, pickle->name, prefix);
    memcpy(name + prefix, folder, folder_length);
    memcpy(name + prefix + folder_length, tail, tail_length);
    return wf_zip_find(&file->zip, name, length);
}

static wf_status check_archive(wf_ctx *ctx, wf_torch_file *file, size_t prefix) {
    if (find_member(file, prefix, "", "constants.pkl", 13) != file->zip.n)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: a TorchScript program, and no code is ever run; save the weights alone: "
            "torch.save(model.state_dict(), path)",
            file->label);
    size_t order = find_member(file, prefix, "", "byteorder", 9);
    if (order == file->zip.n) return WF_OK;
    contents text = {0};
    WF_TRY(load(ctx, file, order, &text));
    if (file->zip.entries[order].size != 6 || memcmp(text.data, "little", 6) != 0)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: its byte order is not 'little'; save it again on a little-endian machine",
            file->label);
    return WF_OK;
}

/* --- the dictionary --------------------------------------------------------------------------- */

/* *looked counts the pairs that were looked at. */
static bool has_tensors(const wf_pickle_value *dict, size_t *looked) {
    for (size_t i = 0; i + 1 < dict->n; i += 2, (*looked)++)
        if (dict->items[i]->kind == WF_PICKLE_TEXT && dict->items[i + 1]->kind == WF_PICKLE_TENSOR)
            return true;
    return false;
}

/* The dictionary of tensors: `top` itself or the one value of it that is one. */
static wf_status find_state(wf_ctx *ctx, const wf_torch_file *file, const wf_pickle_value *top,
                            const wf_pickle_value **out) {
    if (top->kind != WF_PICKLE_DICT)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: holds no dictionary of tensors; save model.state_dict()", file->label);
    *out = top;
    static const char usual[] = "state_dict"; /* of Lightning, and of many scripts */
    const wf_pickle_value *called = NULL;
    size_t found = 0, looked = 0;
    if (has_tensors(top, &looked)) return WF_OK;
    char keys[256];
    wf_text list = wf_text_start(keys, sizeof keys);
    size_t most =
        file->zip.entries[file->pickle].size; /* a pair that is in one place has a byte there */
    for (size_t i = 0; i + 1 < top->n && looked <= most; i += 2) {
        const wf_pickle_value *key = top->items[i], *inner = top->items[i + 1];
        if (inner->kind != WF_PICKLE_DICT || !has_tensors(inner, &looked)) continue;
        *out = inner;
        if (key->kind == WF_PICKLE_TEXT && key->n == strlen(usual) &&
            memcmp(key->text, usual, key->n) == 0)
            called = inner;
        if (key->kind == WF_PICKLE_TEXT)
            wf_text_add(&list, "%s'%.*s'", found ? ", " : "", (int)(key->n < 40 ? key->n : 40),
                        key->text);
        found++;
    }
    if (looked > most)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: its dictionaries hold one another over and over; save "
                       "model.state_dict()",
                       file->label);
    if (called != NULL) *out = called;
    if (found == 1 || called != NULL) return WF_OK;
    if (found == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: no tensors in its dictionary; save model.state_dict()", file->label);
    return wf_fail(
        ctx, WF_ERR_INPUT,
        "%s: %zu dictionaries of tensors (%s), and it cannot be told which one is meant; "
        "save the wanted one alone",
        file->label, found, keys);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static bool is_contiguous(const wf_pickle_tensor *view) {
    size_t expected = 1;
    for (int i = view->rank; i-- > 0;) {
        if (view->shape[i] != 1 && view->stride[i] != expected) return false;
        expected *= view->shape[i];
    }
    return true;
}

/* Copies a strided view in row-major order. */
static void gather(const wf_pickle_tensor *view, size_t element, const uint8_t *from, uint8_t *to) {
    size_t index[WF_ST_MAX_RANK] = {0};
    size_t place = view->offset;
    for (size_t k = 0; k < view->count; k++) {
        memcpy(to + k * element, from + place * element, element);
        for (int i = view->rank; i-- > 0;) {
            place += view->stride[i];
            if (++index[i] < view->shape[i]) break;
            place -= view->stride[i] * view->shape[i];
            index[i] = 0;
        }
    }
}

static wf_status copy_view(wf_ctx *ctx, wf_torch_file *file, const wf_pickle_tensor *view,
                           const uint8_t *from, wf_st_tensor *out) {
    WF_TRY(spend(ctx, file, out->bytes));
    uint8_t *copy = wf_arena_alloc(&file->arena, out->bytes);
    if (copy == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for tensor '%s'", file->label,
                       out->name);
    gather(view, wf_st_dtype_size(out->dtype), from, copy);
    out->data = copy;
    return WF_OK;
}

static wf_status find_storage(wf_ctx *ctx, wf_torch_file *file, size_t prefix, const char *name,
                              const wf_pickle_storage *storage, contents *out) {
    size_t entry = find_member(file, prefix, "data/", storage->key, storage->key_length);
    if (entry == file->zip.n)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the storage of tensor '%s' is missing", file->label,
                       name);
    size_t bytes;
    if (__builtin_mul_overflow(storage->count, wf_st_dtype_size(storage->dtype), &bytes) ||
        bytes != file->zip.entries[entry].size)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the storage of tensor '%s' has %zu bytes where %zu elements of %s are "
                       "expected",
                       file->label, name, file->zip.entries[entry].size, storage->count,
                       wf_st_dtype_name(storage->dtype));
    return load(ctx, file, entry, out);
}

static wf_status read_tensor(wf_ctx *ctx, wf_torch_file *file, size_t prefix,
                             const wf_pickle_value *key, const wf_pickle_value *item,
                             wf_st_tensor *out) {
    if (key->kind != WF_PICKLE_TEXT || memchr(key->text, 0, key->n) != NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a tensor's name is no text", file->label);
    if (key->n > longest_name)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a tensor's name has %zu bytes; %d are allowed",
                       file->label, key->n, longest_name);
    char *name = wf_arena_alloc(&file->arena, key->n + 1);
    if (name == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for a name", file->label);
    memcpy(name, key->text, key->n);
    name[key->n] = 0;
    if (item->kind != WF_PICKLE_TENSOR)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: '%.80s' stands among the tensors and is none; save model.state_dict() "
                       "alone",
                       file->label, name);
    const wf_pickle_tensor *view = item->tensor;
    contents storage = {0};
    WF_TRY(find_storage(ctx, file, prefix, name, view->storage, &storage));
    size_t element = wf_st_dtype_size(view->storage->dtype);
    *out = (wf_st_tensor){.name = name,
                          .dtype = view->storage->dtype,
                          .rank = view->rank,
                          .count = view->count,
                          .bytes = view->count * element,
                          .data = storage.data};
    memcpy(out->shape, view->shape, sizeof out->shape);
    if (view->count == 0) return WF_OK;
    if (!is_contiguous(view)) return copy_view(ctx, file, view, storage.data, out);
    out->data = storage.data + view->offset * element;
    return WF_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const wf_st_tensor *const *)a)->name, (*(const wf_st_tensor *const *)b)->name);
}

static wf_status check_names(wf_ctx *ctx, const wf_torch_file *file) {
    const wf_st_tensor **sorted = NULL;
    WF_TRY(wf_alloc(ctx, file->n, sizeof *sorted, file->label, &sorted));
    for (size_t i = 0; i < file->n; i++) sorted[i] = &file->tensors[i];
    qsort(sorted, file->n, sizeof *sorted, by_name);
    wf_status status = WF_OK;
    for (size_t i = 1; i < file->n && status == WF_OK; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            status = wf_fail(ctx, WF_ERR_INPUT, "%s: two tensors are named '%.80s'", file->label,
                             sorted[i]->name);
    free(sorted);
    return status;
}

static wf_status read_tensors(wf_ctx *ctx, wf_torch_file *file, size_t prefix) {
    contents pickle = {0};
    const wf_pickle_value *top = NULL, *state = NULL;
    WF_TRY(load(ctx, file, file->pickle, &pickle));
    WF_TRY(wf_pickle_read(ctx, file->label, pickle.data, file->zip.entries[file->pickle].size,
                          file->budget - file->spent, &file->arena, &top));
    WF_TRY(spend(ctx, file, file->arena.taken));
    WF_TRY(find_state(ctx, file, top, &state));
    if (state->n / 2 > most_tensors)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %zu tensors; at most %d are read", file->label,
                       state->n / 2, most_tensors);
    WF_TRY(wf_alloc(ctx, state->n / 2, sizeof *file->tensors, file->label, &file->tensors));
    for (size_t i = 0; i + 1 < state->n; i += 2, file->n++)
        WF_TRY(read_tensor(ctx, file, prefix, state->items[i], state->items[i + 1],
                           &file->tensors[file->n]));
    return check_names(ctx, file);
}

/* --- opening ---------------------------------------------------------------------------------- */

static wf_status parse(wf_ctx *ctx, wf_torch_file *file, const void *bytes, size_t size) {
    if (size >= sizeof legacy_start && memcmp(bytes, legacy_start, sizeof legacy_start) == 0)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: written by torch before 1.6 (no zip container), which is not read; load "
            "it in a recent torch and save it again: torch.save(model.state_dict(), path)",
            file->label);
    file->budget = budget_factor * size + budget_floor;
    WF_TRY(wf_zip_open(ctx, file->label, bytes, size, &file->zip));
    WF_TRY(wf_alloc(ctx, file->zip.n, sizeof *file->contents, file->label, &file->contents));
    size_t prefix = 0;
    WF_TRY(find_pickle(ctx, file, &prefix));
    WF_TRY(check_archive(ctx, file, prefix));
    return read_tensors(ctx, file, prefix);
}

static wf_status create(wf_ctx *ctx, const char *label, wf_torch_file **out) {
    WF_TRY(wf_alloc(ctx, 1, sizeof **out, label, out));
    size_t size = strlen(label) + 1;
    wf_status status = wf_alloc(ctx, size, 1, label, &(*out)->label);
    if (status != WF_OK) free(*out);
    else memcpy((*out)->label, label, size);
    return status;
}

wf_status wf_torch_parse(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                         wf_torch_file **out) {
    *out = NULL;
    wf_torch_file *file = NULL;
    WF_TRY(create(ctx, label, &file));
    wf_status status = parse(ctx, file, bytes, size);
    if (status != WF_OK) wf_torch_close(file);
    else *out = file;
    return status;
}

wf_status wf_torch_open(wf_ctx *ctx, const char *path, wf_torch_file **out) {
    *out = NULL;
    wf_torch_file *file = NULL;
    WF_TRY(create(ctx, path, &file));
    wf_status status = wf_map_open(ctx, path, &file->map);
    if (status == WF_OK) status = parse(ctx, file, file->map.data, file->map.size);
    if (status != WF_OK) wf_torch_close(file);
    else *out = file;
    return status;
}

void wf_torch_close(wf_torch_file *file) {
    if (file == NULL) return;
    for (size_t i = 0; file->contents != NULL && i < file->zip.n; i++)
        free(file->contents[i].owned);
    free(file->contents);
    free(file->tensors);
    wf_zip_close(&file->zip);
    wf_arena_free(&file->arena);
    wf_map_close(&file->map);
    free(file->label);
    free(file);
}

wf_status wf_torch_note(wf_ctx *ctx, wf_torch_file *file, const char *key, char **out) {
    enum { longest = 16 << 20 };
    char name[128];
    snprintf(name, sizeof name, "net/extra/%s", key);
    *out = NULL;
    size_t entry = wf_zip_find(&file->zip, name, strlen(name));
    if (entry == file->zip.n || file->zip.entries[entry].size > longest) return WF_OK;
    contents text = {0};
    size_t size = file->zip.entries[entry].size;
    WF_TRY(load(ctx, file, entry, &text));
    WF_TRY(wf_alloc(ctx, size + 1, 1, file->label, out));
    memcpy(*out, text.data, size);
    return WF_OK;
}

size_t wf_torch_count(const wf_torch_file *file) { return file->n; }

const wf_st_tensor *wf_torch_at(const wf_torch_file *file, size_t index) {
    return &file->tensors[index];
}
