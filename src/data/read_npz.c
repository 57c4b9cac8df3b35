/* read_npz: arrays of NumPy, as numpy.savez and savez_compressed write them: a zip container of
 * .npy files, stored or deflated.
 *
 *   .npy   "\x93NUMPY", version 1 to 3, length of the header, a header of text, the values
 *          {'descr': '<f4', 'fortran_order': False, 'shape': (150, 4), }
 *
 * Inputs (n, ...) and labels (n) are two arrays of one file: those of `target` and of the usual
 * names (X and y, data and target, x_train, y_train, x_test, y_test ...). Pickled objects are never
 * read.
 *
 * The size of the file limits what it may unpack to, because a few hundred bytes can claim
 * gigabytes. */
#include "base/safetensors.h"
#include "base/utf8.h"
#include "base/zip.h"
#include "data/data_table.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { max_arrays = 64, max_dimensions = 8, longest_name = 64, longest_header = 4096 };
enum { unpack_factor = 100, unpack_floor = 64 << 20, max_columns = 1 << 22 };

/* The kinds of numpy's type letters that are read. */
typedef enum kind { KIND_FLOAT, KIND_SIGNED, KIND_UNSIGNED, KIND_UTF32, KIND_BYTES } kind;

typedef struct array {
    char name[longest_name + 1]; /* without .npy */
    size_t entry;
    kind kind;
    size_t item; /* bytes */
    bool fortran;
    int dimensions;
    size_t shape[max_dimensions];
    size_t count; /* of items */
    size_t header;
} array;

typedef struct npz {
    wf_ctx *ctx;
    const char *label;
    wf_zip zip;
    array *arrays;
    size_t n, budget;
} npz;

static wf_status bad_array(const npz *z, const array *a, const char *why) {
    return wf_fail(z->ctx, WF_ERR_INPUT, "%s: array '%s': %s", z->label, a->name, why);
}

/* --- the header ------------------------------------------------------------------------------- */

/* Moves *at past `word` where it stands there, spaces before it left out. */
static bool take(const char **at, const char *word) {
    *at += strspn(*at, " ");
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

static wf_status read_descr(const npz *z, const char **at, array *a) {
    char text[16] = "";
    const char *end = take(at, "'") ? strchr(*at, '\'') : NULL;
    if (end == NULL || (size_t)(end - *at) >= sizeof text)
        return bad_array(z, a, "its type is a record or is not written as text; save plain arrays");
    memcpy(text, *at, (size_t)(end - *at));
    *at = end + 1;
    if (text[0] == '>')
        return bad_array(z, a,
                         "its numbers are big-endian; save array.astype(array.dtype"
                         ".newbyteorder('<'))");
    if (text[1] == 'O')
        return bad_array(z, a,
                         "pickled objects, which are never read; save numbers or strings, as "
                         "array.astype(float) or array.astype(str)");
    static const struct {
        char letter;
        kind kind;
        const char *sizes;
    } known[] = {{'f', KIND_FLOAT, "248"},     {'i', KIND_SIGNED, "1248"},
                 {'u', KIND_UNSIGNED, "1248"}, {'b', KIND_UNSIGNED, "1"},
                 {'U', KIND_UTF32, NULL},      {'S', KIND_BYTES, NULL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (text[1] != known[i].letter) continue;
        char *rest;
        unsigned long size = strtoul(text + 2, &rest, 10);
        bool listed = known[i].sizes == NULL ? size > 0 && size <= 4096
                                             : size < 10 && size > 0 &&
                                                   strchr(known[i].sizes, '0' + (int)size) != NULL;
        if (*rest != 0 || text[2] < '0' || text[2] > '9' || !listed) break;
        a->kind = known[i].kind;
        a->item = known[i].kind == KIND_UTF32 ? 4 * size : size;
        return WF_OK;
    }
    char why[80];
    snprintf(why, sizeof why, "type %s is not read; save floats, integers or strings", text);
    return bad_array(z, a, why);
}

static wf_status read_shape(const npz *z, const char **at, array *a) {
    if (!take(at, "(")) return bad_array(z, a, "its shape cannot be read");
    a->count = 1;
    while (!take(at, ")")) {
        char *end;
        if (a->dimensions == max_dimensions) return bad_array(z, a, "more than 8 dimensions");
        *at += strspn(*at, " ");
        if (**at < '0' || **at > '9') return bad_array(z, a, "its shape cannot be read");
        size_t size = strtoull(*at, &end, 10);
        if (__builtin_mul_overflow(a->count, size, &a->count) || a->count > (size_t)1 << 40)
            return bad_array(z, a, "more values than any file has");
        a->shape[a->dimensions++] = size;
        *at = end;
        if (!take(at, ",") && !take(at, "L,")) { /* the last */
            if (!take(at, ")")) return bad_array(z, a, "its shape cannot be read");
            return WF_OK;
        }
    }
    return WF_OK;
}

/* {'descr': ..., 'fortran_order': ..., 'shape': ...}, in any order, each once. */
static wf_status read_dictionary(const npz *z, const char *at, array *a) {
    bool seen[3] = {false};
    if (!take(&at, "{")) return bad_array(z, a, "its header is no dictionary");
    while (!take(&at, "}")) {
        int which = take(&at, "'descr'")           ? 0
                    : take(&at, "'fortran_order'") ? 1
                    : take(&at, "'shape'")         ? 2
                                                   : -1;
        if (which < 0 || seen[which] || !take(&at, ":"))
            return bad_array(z, a, "its header cannot be read");
        seen[which] = true;
        if (which == 0) WF_TRY(read_descr(z, &at, a));
        if (which == 1) {
            a->fortran = take(&at, "True");
            if (!a->fortran && !take(&at, "False"))
                return bad_array(z, a, "its header cannot be read");
        }
        if (which == 2) WF_TRY(read_shape(z, &at, a));
        take(&at, ",");
    }
    if (!seen[0] || !seen[1] || !seen[2]) return bad_array(z, a, "its header lacks a part");
    return at[strspn(at, " \n")] == 0 ? WF_OK : bad_array(z, a, "text after its header");
}

static wf_status parse_npy(const npz *z, const uint8_t *bytes, size_t size, array *a) {
    if (size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return bad_array(z, a, "not an array of NumPy (.npy)");
    bool wide = bytes[6] >= 2;
    size_t start = wide ? 12 : 10, length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] < 1 || bytes[6] > 3 || size < start)
        return bad_array(z, a, "a version of .npy that is not known");
    if (wide) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (length > longest_header || length > size - start)
        return bad_array(z, a, "its header runs out of the file");
    char text[longest_header + 1];
    memcpy(text, bytes + start, length);
    text[length] = 0;
    if (strlen(text) != length) return bad_array(z, a, "its header is no text");
    WF_TRY(read_dictionary(z, text, a));
    a->header = start + length;
    size_t need;
    if (__builtin_mul_overflow(a->count, a->item, &need) || size - a->header != need)
        return bad_array(z, a, "its shape does not fit the number of its bytes");
    return WF_OK;
}

/* --- the archive ------------------------------------------------------------------------------ */

/* The contents of an array, out of the budget. */
static wf_status unpack(npz *z, const array *a, const uint8_t **bytes, void **owned) {
    const wf_zip_entry *entry = &z->zip.entries[a->entry];
    if (entry->deflated && entry->size > z->budget)
        return wf_fail(z->ctx, WF_ERR_INPUT,
                       "%s: array '%s' unpacks to %zu MB, far more than the file has; save it with "
                       "numpy.savez",
                       z->label, a->name, (size_t)(entry->size >> 20));
    if (entry->deflated) z->budget -= entry->size;
    return wf_zip_read(z->ctx, &z->zip, a->entry, bytes, owned);
}

static wf_status list_arrays(npz *z) {
    if (z->zip.n > max_arrays)
        return wf_fail(z->ctx, WF_ERR_INPUT, "%s: %zu arrays; at most %d are read", z->label,
                       z->zip.n, max_arrays);
    WF_TRY(wf_alloc(z->ctx, z->zip.n, sizeof *z->arrays, z->label, &z->arrays));
    for (size_t i = 0; i < z->zip.n; i++) {
        const wf_zip_entry *entry = &z->zip.entries[i];
        size_t length = entry->name_length;
        if (length < 5 || memcmp(entry->name + length - 4, ".npy", 4) != 0 ||
            length - 4 > longest_name || wf_utf8_check(entry->name, length) < length ||
            memchr(entry->name, 0, length) != NULL)
            return wf_fail(
                z->ctx, WF_ERR_INPUT,
                "%s: a zip file with an entry that is no array of NumPy; .npz files come "
                "from numpy.savez",
                z->label);
        array *a = &z->arrays[z->n++];
        a->entry = i;
        memcpy(a->name, entry->name, length - 4);
    }
    return WF_OK;
}

/* --- which array is what ---------------------------------------------------------------------- */

static array *find(const npz *z, const char *name) {
    for (size_t i = 0; i < z->n; i++)
        if (strcasecmp(z->arrays[i].name, name) == 0) return &z->arrays[i];
    return NULL;
}

static array *find_any(const npz *z, const char *const *names) {
    for (; *names != NULL; names++) {
        array *a = find(z, *names);
        if (a != NULL) return a;
    }
    return NULL;
}

static void list_names(const npz *z, char *out, size_t size) {
    wf_text list = wf_text_start(out, size);
    for (size_t i = 0; i < z->n; i++)
        wf_text_add(&list, "%s%s", i > 0 ? ", " : "", z->arrays[i].name);
}

static wf_status no_array(const npz *z, const char *name) {
    char names[400];
    list_names(z, names, sizeof names);
    return wf_fail(z->ctx, WF_ERR_INPUT,
                   "%s: target names '%.60s', but there is no such array; it has: %s", z->label,
                   name, names);
}

static wf_status cannot_tell(const npz *z, const char *what) {
    char names[400];
    list_names(z, names, sizeof names);
    return wf_fail(
        z->ctx, WF_ERR_INPUT,
        "%s: which array holds the %s? It has: %s. Name them X and y, or x_train, y_train, "
        "x_test and y_test, and say another name of the labels under target",
        z->label, what, names);
}

typedef struct pair {
    array *x, *y;
} pair;

/* The inputs and labels of the file, and of its test part where it has one. */
static wf_status choose(const npz *z, const char *target, pair *train, pair *test) {
    static const char *const inputs[] = {"x",      "x_train", "data",         "inputs", "features",
                                         "images", "train_x", "train_images", NULL};
    static const char *const labels[] = {"y",     "y_train", "target",       "targets", "labels",
                                         "label", "train_y", "train_labels", NULL};
    static const char *const test_inputs[] = {"x_test", "test_x", "test_images", NULL};
    static const char *const test_labels[] = {"y_test", "test_y", "test_labels", NULL};
    bool named = target != NULL && target[0] != 0;
    train->y = named ? find(z, target) : find_any(z, labels);
    if (train->y == NULL && named) return no_array(z, target);
    if (train->y == NULL) return cannot_tell(z, "labels");
    train->x = find_any(z, inputs);
    if (train->x == NULL && z->n == 2) train->x = &z->arrays[train->y == &z->arrays[0]];
    if (train->x == NULL || train->x == train->y) return cannot_tell(z, "inputs");
    test->x = find_any(z, test_inputs);
    test->y = find_any(z, test_labels);
    if (test->x == NULL || test->y == NULL) *test = (pair){NULL, NULL};
    return WF_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static double value_at(const array *a, const uint8_t *bytes, size_t index) {
    const uint8_t *at = bytes + index * a->item;
    if (a->kind == KIND_FLOAT && a->item == 8) {
        double value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (a->kind == KIND_FLOAT) {
        const wf_st_tensor one = {.dtype = a->item == 4 ? WF_ST_F32 : WF_ST_F16,
                                  .count = 1,
                                  .bytes = a->item,
                                  .data = at};
        float value = 0;
        wf_st_to_float(NULL, &one, &value);
        return (double)value;
    }
    uint64_t bits = 0;
    for (size_t i = a->item; i-- > 0;) bits = bits << 8 | at[i];
    if (a->kind == KIND_UNSIGNED) return (double)bits;
    unsigned shift = 64 - 8 * (unsigned)a->item;
    return (double)((int64_t)(bits << shift) >> shift);
}

static wf_status no_memory(const npz *z) {
    return wf_fail(z->ctx, WF_ERR_MEMORY, "%s: out of memory", z->label);
}

/* "x3", or "pixel 2,5" of images. */
static const char *column_name(const array *a, size_t c, wf_arena *arena) {
    if (a->dimensions < 3) return wf__arena_format(arena, "%s%zu", a->name, c);
    size_t width = a->shape[a->dimensions - 1], height = a->shape[a->dimensions - 2];
    if (a->dimensions == 3) return wf__arena_format(arena, "pixel %zu,%zu", c / width, c % width);
    return wf__arena_format(arena, "pixel %zu,%zu,%zu", c / (width * height), c / width % height,
                            c % width);
}

/* Columns of doubles, or of bytes as they are. NaN is a missing value; infinity is refused. */
static wf_status read_inputs(npz *z, const array *a, const uint8_t *bytes, wf_table *out) {
    size_t rows = out->rows, columns = out->columns - 1;
    bool plain_bytes = a->kind == KIND_UNSIGNED && a->item == 1 && !a->fortran;
    double *values = NULL;
    if (plain_bytes) {
        out->text = malloc(a->count + 1);
        if (out->text == NULL) return no_memory(z);
        memcpy(out->text, bytes, a->count);
    } else {
        values = wf_arena_alloc(&out->arena, a->count * sizeof *values);
        if (values == NULL) return no_memory(z);
    }
    for (size_t c = 0; c < columns; c++) {
        wf_column *column = &out->column[c];
        column->name = column_name(a, c, &out->arena);
        if (column->name == NULL) return no_memory(z);
        if (plain_bytes) {
            column->bytes = (const uint8_t *)out->text + c;
            column->stride = columns;
        } else column->values = values + c * rows;
    }
    for (size_t i = 0; i < a->count && values != NULL; i++) {
        size_t r = a->fortran ? i % rows : i / columns, c = a->fortran ? i / rows : i % columns;
        double value = value_at(a, bytes, i);
        WF_TRY(wf__data_look(z->ctx, i, z->label));
        if (isinf(value) || fabs(value) > 1e299)
            return wf_fail(z->ctx, WF_ERR_INPUT, "%s: array '%s', row %zu, column %zu is %g",
                           z->label, a->name, r, c, value);
        values[c * rows + r] = value;
    }
    return WF_OK;
}

/* A string of numpy as UTF-8; NULL: it is none, or no memory. */
static const char *text_at(const array *a, const uint8_t *bytes, size_t index, wf_arena *arena) {
    const uint8_t *at = bytes + index * a->item;
    char *text = wf_arena_alloc(arena, a->item + 1), *end = text;
    if (text == NULL) return NULL;
    if (a->kind == KIND_BYTES) {
        memcpy(text, at, a->item);
        text[a->item] = 0;
        return wf_utf8_check(text, strlen(text)) == strlen(text) ? text : NULL;
    }
    for (size_t i = 0; i < a->item; i += 4) {
        uint32_t point = at[i] | (uint32_t)at[i + 1] << 8 | (uint32_t)at[i + 2] << 16 |
                         (uint32_t)at[i + 3] << 24;
        if (point == 0) break;
        if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return NULL;
        if (point < 0x80) *end++ = (char)point;
        else {
            int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
            static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
            *end++ = (char)(lead[more] | point >> 6 * more);
            while (more-- > 0) *end++ = (char)(0x80 | (point >> 6 * more & 63));
        }
    }
    *end = 0;
    return text;
}

static wf_status read_labels(npz *z, const array *a, const uint8_t *bytes, wf_table *out) {
    wf_column *column = &out->column[out->target];
    *column = (wf_column){.name = wf__arena_format(&out->arena, "%s", a->name)};
    bool texts = a->kind == KIND_UTF32 || a->kind == KIND_BYTES;
    void *memory = wf_arena_alloc(&out->arena, a->count * sizeof(double));
    if (column->name == NULL || memory == NULL) return no_memory(z);
    double *values = memory;
    const char **cells = memory;
    for (size_t r = 0; r < a->count; r++) {
        WF_TRY(wf__data_look(z->ctx, r, z->label));
        if (!texts) values[r] = value_at(a, bytes, r);
        else if ((cells[r] = text_at(a, bytes, r, &out->arena)) == NULL)
            return wf_fail(z->ctx, WF_ERR_INPUT, "%s: array '%s', row %zu is no text", z->label,
                           a->name, r);
        if (!texts && isinf(values[r]))
            return wf_fail(z->ctx, WF_ERR_INPUT, "%s: array '%s', row %zu is %g", z->label, a->name,
                           r, values[r]);
    }
    if (texts) column->texts = cells;
    else column->values = values;
    return WF_OK;
}

/* Labels are (n), or (n, 1), inputs (n) of anything. */
static wf_status check_pair(const npz *z, const pair *p) {
    const array *x = p->x, *y = p->y;
    if (y->dimensions == 2 && y->shape[1] > 1)
        return bad_array(z, y,
                         "a row for each example; labels are one number or text each: save "
                         "y.argmax(1) of one-hot labels");
    if (y->dimensions < 1 || y->dimensions > 2) return bad_array(z, y, "labels have one dimension");
    if (x->dimensions < 1) return bad_array(z, x, "a single value; inputs have one row an example");
    if (x->kind == KIND_UTF32 || x->kind == KIND_BYTES)
        return bad_array(z, x, "strings are no inputs; save numbers");
    if (x->shape[0] != y->shape[0])
        return wf_fail(z->ctx, WF_ERR_INPUT, "%s: '%s' has %zu examples, but '%s' has %zu labels",
                       z->label, x->name, x->shape[0], y->name, y->shape[0]);
    if (x->count == 0) return bad_array(z, x, "it holds nothing");
    if (x->fortran && x->dimensions > 2)
        return bad_array(z, x, "Fortran order; save numpy.ascontiguousarray(...)");
    if (x->count / x->shape[0] > max_columns || x->count > WF_TABLE_MAX_CELLS)
        return bad_array(z, x, "too many values; use a part of it");
    return WF_OK;
}

static wf_status make_table(npz *z, pair *p, wf_table *out) {
    const uint8_t *x = NULL, *y = NULL;
    void *own_x = NULL, *own_y = NULL;
    wf_status status;
    WF_TRY_GOTO(unpack(z, p->x, &x, &own_x), done);
    WF_TRY_GOTO(unpack(z, p->y, &y, &own_y), done);
    WF_TRY_GOTO(parse_npy(z, x, z->zip.entries[p->x->entry].size, p->x), done);
    WF_TRY_GOTO(parse_npy(z, y, z->zip.entries[p->y->entry].size, p->y), done);
    WF_TRY_GOTO(check_pair(z, p), done);
    out->label = z->label;
    out->rows = p->x->shape[0];
    out->columns = p->x->count / out->rows + 1;
    out->target = out->columns - 1;
    out->column = wf_arena_zalloc(&out->arena, out->columns * sizeof *out->column);
    if (out->column == NULL) {
        status = no_memory(z);
        goto done;
    }
    int d = p->x->dimensions;
    if (d == 3 || d == 4) { /* (n, height, width), (n, channels, height, width) */
        out->image[0] = d == 3 ? 1 : (int)p->x->shape[1];
        out->image[1] = (int)p->x->shape[d - 2];
        out->image[2] = (int)p->x->shape[d - 1];
    }
    WF_TRY_GOTO(read_inputs(z, p->x, x + p->x->header, out), done);
    status = read_labels(z, p->y, y + p->y->header, out);
done:
    free(own_x);
    free(own_y);
    return status;
}

/* The test part's columns are found by name: they are called as those of the training part. */
static void rename_test(const wf_table *train, wf_table *test) {
    if (test->columns != train->columns) return;
    for (size_t c = 0; c < test->columns; c++) test->column[c].name = train->column[c].name;
}

static wf_status read_all(npz *z, const char *target, wf_table *out, wf_table *test) {
    pair train_pair, test_pair;
    WF_TRY(list_arrays(z));
    WF_TRY(choose(z, target, &train_pair, &test_pair));
    WF_TRY(make_table(z, &train_pair, out));
    WF_TRY(wf__table_check_names(z->ctx, out));
    if (test == NULL || test_pair.x == NULL) return WF_OK;
    WF_TRY(make_table(z, &test_pair, test));
    rename_test(out, test);
    return WF_OK;
}

wf_status wf__table_from_npz(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                             const char *target, wf_table *out, wf_table *test) {
    npz z = {.ctx = ctx, .label = label, .budget = unpack_factor * size + unpack_floor};
    WF_TRY(wf_zip_open(ctx, label, bytes, size, &z.zip));
    wf_status status = read_all(&z, target, out, test);
    free(z.arrays);
    wf_zip_close(&z.zip);
    return status;
}
