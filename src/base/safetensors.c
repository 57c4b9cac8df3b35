/* safetensors: strict reader and writer.
 *
 *     | u64 n, little-endian | n bytes of JSON, padded with spaces | data |
 *     {"__metadata__": {key: text, ...}, name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
 *
 * R1  A file is accepted whole or refused with a sentence; no tensor ever points outside the data.
 * R2  In order of their offsets the tensors follow one another from 0 to the end of the file: no
 *     overlap, no hole, nothing behind. Tensors without elements are legal and take no room.
 * W1  Tensors are written by falling item size, then by name, and the data begin at a multiple of
 *     64 bytes: every tensor is aligned for its type, and equal input gives equal bytes. */
#include "base/safetensors.h"
#include "base/utf8.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data are little-endian and used in place"
#endif

enum { most_header_bytes = 100000000, data_alignment = 64 };
static const char metadata_key[] = "__metadata__";

static const struct {
    const char *name;
    size_t size;
} dtype_table[] = {
    [WF_ST_BOOL] = {"BOOL", 1}, [WF_ST_U8] = {"U8", 1},   [WF_ST_I8] = {"I8", 1},
    [WF_ST_I16] = {"I16", 2},   [WF_ST_U16] = {"U16", 2}, [WF_ST_F16] = {"F16", 2},
    [WF_ST_BF16] = {"BF16", 2}, [WF_ST_I32] = {"I32", 4}, [WF_ST_U32] = {"U32", 4},
    [WF_ST_F32] = {"F32", 4},   [WF_ST_F64] = {"F64", 8}, [WF_ST_I64] = {"I64", 8},
    [WF_ST_U64] = {"U64", 8},
};
enum { dtype_count = sizeof dtype_table / sizeof *dtype_table };

size_t wf_st_dtype_size(wf_st_dtype dtype) { return dtype_table[dtype].size; }
const char *wf_st_dtype_name(wf_st_dtype dtype) { return dtype_table[dtype].name; }

struct wf_st_file {
    wf_map map;   /* size 0 when the bytes are the caller's */
    json_t *root; /* owns all names and metadata */
    wf_st_tensor *tensor;
    size_t count;
    const char *(*meta)[2];
    size_t meta_count;
};

/* --- reading ---------------------------------------------------------------------------------- */

/* What a step of the reader needs to know, and to name in its sentence. */
typedef struct reading {
    wf_ctx *ctx;
    const char *label; /* the file */
    const uint8_t *data;
    size_t data_size;
} reading;

#define TENSOR_FAIL(r, t, format, ...)                                                             \
    wf_fail((r)->ctx, WF_ERR_INPUT, "%s: tensor \"%.100s\": " format, (r)->label, (t)->name,       \
            __VA_ARGS__)

/* A whole number, not negative. JSON has no other way to write one: 3.0 and 1e2 are refused. */
static bool get_size(const json_t *value, size_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

static wf_status read_dtype(const reading *r, const json_t *value, wf_st_tensor *tensor) {
    if (!json_is_string(value)) return TENSOR_FAIL(r, tensor, "%s", "dtype is not a string");
    const char *name = json_string_value(value);
    for (int i = 0; i < dtype_count; i++) {
        if (strcmp(name, dtype_table[i].name) != 0) continue;
        tensor->dtype = (wf_st_dtype)i;
        return WF_OK;
    }
    return TENSOR_FAIL(r, tensor,
                       "dtype \"%.30s\" is not supported; BOOL, U8 to U64, I8 to I64, F16, BF16, "
                       "F32 and F64 are",
                       name);
}

static wf_status read_shape(const reading *r, const json_t *value, wf_st_tensor *tensor) {
    if (!json_is_array(value)) return TENSOR_FAIL(r, tensor, "%s", "shape is not a list");
    size_t rank = json_array_size(value);
    if (rank > WF_ST_MAX_RANK)
        return TENSOR_FAIL(r, tensor, "%zu dimensions; at most %d are supported", rank,
                           WF_ST_MAX_RANK);
    tensor->rank = (int)rank;
    tensor->count = 1;
    for (size_t i = 0; i < rank; i++) {
        if (!get_size(json_array_get(value, i), &tensor->shape[i]))
            return TENSOR_FAIL(r, tensor, "shape[%zu] is not a whole number from 0 up", i);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return TENSOR_FAIL(r, tensor, "%s", "the product of its shape overflows");
    }
    if (__builtin_mul_overflow(tensor->count, wf_st_dtype_size(tensor->dtype), &tensor->bytes))
        return TENSOR_FAIL(r, tensor, "%s", "its size in bytes overflows");
    return WF_OK;
}

static wf_status read_offsets(const reading *r, const json_t *value, wf_st_tensor *tensor) {
    size_t begin, end;
    if (!json_is_array(value) || json_array_size(value) != 2 ||
        !get_size(json_array_get(value, 0), &begin) || !get_size(json_array_get(value, 1), &end))
        return TENSOR_FAIL(r, tensor, "%s", "data_offsets is not two whole numbers from 0 up");
    if (begin > end)
        return TENSOR_FAIL(r, tensor, "its data end at %zu, before they begin at %zu", end, begin);
    if (end > r->data_size)
        return TENSOR_FAIL(r, tensor, "its data end at %zu, but the file holds %zu bytes of data",
                           end, r->data_size);
    if (end - begin != tensor->bytes)
        return TENSOR_FAIL(r, tensor, "its shape needs %zu bytes, data_offsets give %zu",
                           tensor->bytes, end - begin);
    tensor->data = r->data + begin;
    return WF_OK;
}

static wf_status read_tensor(const reading *r, const char *name, const json_t *entry,
                             wf_st_tensor *tensor) {
    tensor->name = name;
    if (name[0] == '\0')
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: a tensor has an empty name", r->label);
    if (!json_is_object(entry)) return TENSOR_FAIL(r, tensor, "%s", "its entry is not an object");
    static const char *const field[] = {"dtype", "shape", "data_offsets"};
    const json_t *value[3];
    for (int i = 0; i < 3; i++) {
        value[i] = json_object_get(entry, field[i]);
        if (value[i] == NULL) return TENSOR_FAIL(r, tensor, "%s is missing", field[i]);
    }
    if (json_object_size(entry) != 3)
        return TENSOR_FAIL(r, tensor, "%zu fields; dtype, shape and data_offsets are all there is",
                           json_object_size(entry));
    WF_TRY(read_dtype(r, value[0], tensor));
    WF_TRY(read_shape(r, value[1], tensor));
    return read_offsets(r, value[2], tensor);
}

static wf_status read_metadata(const reading *r, json_t *object, wf_st_file *file) {
    if (!json_is_object(object))
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: __metadata__ is not an object", r->label);
    WF_TRY(wf_alloc(r->ctx, json_object_size(object), sizeof *file->meta, r->label, &file->meta));
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (!json_is_string(value))
            return wf_fail(r->ctx, WF_ERR_INPUT, "%s: __metadata__ \"%.100s\" is not a string",
                           r->label, key);
        file->meta[file->meta_count][0] = key;
        file->meta[file->meta_count++][1] = json_string_value(value);
    }
    return WF_OK;
}

/* File order; empty tensors stand before the tensor that begins where they are. */
static int by_place(const void *a_, const void *b_) {
    const wf_st_tensor *a = a_, *b = b_;
    uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    if (at_a != at_b) return at_a < at_b ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Rule R2. */
static wf_status check_places(const reading *r, const wf_st_tensor *tensor, size_t count) {
    const uint8_t *next = r->data;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *begin = tensor[i].data;
        if (begin < next)
            return TENSOR_FAIL(r, &tensor[i], "overlaps \"%.100s\"", tensor[i - 1].name);
        if (begin > next)
            return TENSOR_FAIL(r, &tensor[i], "%zu bytes before its data belong to no tensor",
                               (size_t)(begin - next));
        next = begin + tensor[i].bytes;
    }
    size_t behind = r->data_size - (size_t)(next - r->data);
    if (behind > 0)
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: %zu bytes behind the last tensor belong to none",
                       r->label, behind);
    return WF_OK;
}

static wf_status read_header(const reading *r, const char *text, size_t size, wf_st_file *file) {
    if (text[0] != '{')
        return wf_fail(r->ctx, WF_ERR_INPUT,
                       "%s: the header does not begin with '{'; is this a "
                       "safetensors file?",
                       r->label);
    size_t good = wf_utf8_check(text, size);
    if (good < size)
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: the header is not UTF-8 at byte %zu", r->label,
                       8 + good);
    json_error_t error = {0};
    file->root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (file->root == NULL) {
        if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory)
            return wf_fail(r->ctx, WF_ERR_MEMORY, "%s: out of memory for its header", r->label);
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: the header is not valid at byte %d: %s", r->label,
                       8 + error.position, error.text);
    }
    WF_TRY(wf_alloc(r->ctx, json_object_size(file->root), sizeof *file->tensor, r->label,
                    &file->tensor));
    const char *name;
    json_t *entry;
    json_object_foreach(file->root, name, entry) {
        if (strcmp(name, metadata_key) == 0) WF_TRY(read_metadata(r, entry, file));
        else WF_TRY(read_tensor(r, name, entry, &file->tensor[file->count++]));
    }
    if (file->count > 1) qsort(file->tensor, file->count, sizeof *file->tensor, by_place);
    return check_places(r, file->tensor, file->count);
}

wf_status wf_st_parse(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                      wf_st_file **out) {
    *out = NULL;
    const uint8_t *byte = bytes;
    if (size < 8)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %zu bytes are too few for a safetensors file", label,
                       size);
    uint64_t header;
    memcpy(&header, byte, 8);
    if (header > most_header_bytes)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a header of %llu bytes; the format allows %d", label,
                       (unsigned long long)header, most_header_bytes);
    if (header > size - 8)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: a header of %llu bytes, but only %zu follow; the file is cut short",
                       label, (unsigned long long)header, size - 8);
    if (header < 2)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a header of %llu bytes holds no JSON object", label,
                       (unsigned long long)header);
    wf_st_file *file;
    WF_TRY(wf_alloc(ctx, 1, sizeof *file, label, &file));
    reading r = {ctx, label, byte + 8 + header, size - 8 - (size_t)header};
    wf_status status = read_header(&r, (const char *)byte + 8, (size_t)header, file);
    if (status == WF_OK) *out = file;
    else wf_st_close(file);
    return status;
}

wf_status wf_st_open(wf_ctx *ctx, const char *path, wf_st_file **out) {
    *out = NULL;
    wf_map map;
    WF_TRY(wf_map_open(ctx, path, &map));
    wf_status status = wf_st_parse(ctx, path, map.data, map.size, out);
    if (status == WF_OK) (*out)->map = map;
    else wf_map_close(&map);
    return status;
}

void wf_st_close(wf_st_file *file) {
    if (file == NULL) return;
    json_decref(file->root);
    free(file->tensor);
    free(file->meta);
    wf_map_close(&file->map);
    free(file);
}

size_t wf_st_count(const wf_st_file *file) { return file->count; }

const wf_st_tensor *wf_st_at(const wf_st_file *file, size_t index) {
    assert(index < file->count);
    return &file->tensor[index];
}

const wf_st_tensor *wf_st_find(const wf_st_file *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensor[i].name, name) == 0) return &file->tensor[i];
    return NULL;
}

size_t wf_st_meta_count(const wf_st_file *file) { return file->meta_count; }

void wf_st_meta_at(const wf_st_file *file, size_t index, const char **key, const char **value) {
    assert(index < file->meta_count);
    *key = file->meta[index][0];
    *value = file->meta[index][1];
}

const char *wf_st_meta(const wf_st_file *file, const char *key) {
    for (size_t i = 0; i < file->meta_count; i++)
        if (strcmp(file->meta[i][0], key) == 0) return file->meta[i][1];
    return NULL;
}

/* --- conversion ------------------------------------------------------------------------------- */

static float float_from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, mantissa = half & 0x3ff;
    uint32_t exponent = half >> 10 & 31, bits;
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24, exact in float */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13; /* infinities and NaN */
    else bits = sign | (exponent + 112) << 23 | mantissa << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_from_brain(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

wf_status wf_st_to_float(wf_ctx *ctx, const wf_st_tensor *tensor, float *out) {
    const uint8_t *from = tensor->data;
    if (tensor->dtype == WF_ST_F32) {
        if (tensor->bytes > 0) memcpy(out, from, tensor->bytes);
    } else if (tensor->dtype == WF_ST_F64) {
        for (size_t i = 0; i < tensor->count; i++) {
            double value;
            memcpy(&value, from + 8 * i, sizeof value);
            out[i] = (float)value;
        }
    } else if (tensor->dtype == WF_ST_F16 || tensor->dtype == WF_ST_BF16) {
        for (size_t i = 0; i < tensor->count; i++) {
            uint16_t value;
            memcpy(&value, from + 2 * i, sizeof value);
            out[i] = tensor->dtype == WF_ST_F16 ? float_from_half(value) : float_from_brain(value);
        }
    } else {
        return wf_fail(ctx, WF_ERR_INPUT,
                       "tensor \"%.100s\" holds %s; F16, BF16, F32 or F64 is needed", tensor->name,
                       wf_st_dtype_name(tensor->dtype));
    }
    return WF_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Rule W1. */
static int by_item_and_name(const void *a_, const void *b_) {
    const wf_st_tensor *a = *(const wf_st_tensor *const *)a_, *b = *(const wf_st_tensor *const *)b_;
    size_t size_a = wf_st_dtype_size(a->dtype), size_b = wf_st_dtype_size(b->dtype);
    if (size_a != size_b) return size_a > size_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

static wf_status check_name(wf_ctx *ctx, const char *path, const wf_st_tensor *tensor) {
    const char *name = tensor->name;
    if (name[0] == '\0' || strcmp(name, metadata_key) == 0 ||
        wf_utf8_check(name, strlen(name)) < strlen(name))
        return wf_fail(ctx, WF_ERR_INPUT, "%s: \"%.100s\" cannot be the name of a tensor", path,
                       name);
    return WF_OK;
}

/* The bytes of the tensor's shape; count and bytes of the caller, where given, must agree. */
static wf_status tensor_bytes(wf_ctx *ctx, const char *path, const wf_st_tensor *tensor,
                              size_t *bytes) {
    assert(tensor->rank >= 0 && tensor->rank <= WF_ST_MAX_RANK);
    *bytes = wf_st_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(*bytes, tensor->shape[i], bytes))
            return wf_fail(ctx, WF_ERR_SHAPE, "%s: tensor \"%.100s\" is too large", path,
                           tensor->name);
    assert(tensor->bytes == 0 || tensor->bytes == *bytes);
    return WF_OK;
}

/* Adds one tensor to the header; *offset moves behind it. */
static wf_status add_entry(wf_ctx *ctx, const char *path, json_t *root, const wf_st_tensor *tensor,
                           size_t *offset) {
    WF_TRY(check_name(ctx, path, tensor));
    size_t bytes;
    WF_TRY(tensor_bytes(ctx, path, tensor, &bytes));
    size_t begin = *offset;
    if (__builtin_add_overflow(begin, bytes, offset) || *offset > INT64_MAX)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: more data than a file can hold", path);
    json_t *shape = json_array();
    int failed = shape == NULL;
    for (int i = 0; i < tensor->rank && !failed; i++)
        failed = json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    if (failed) {
        json_decref(shape);
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for its header", path);
    }
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", wf_st_dtype_name(tensor->dtype), "shape", shape,
                  "data_offsets", (json_int_t)begin, (json_int_t)*offset);
    if (json_object_set_new(root, tensor->name, entry) != 0)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for its header", path);
    return WF_OK;
}

static wf_status add_metadata(wf_ctx *ctx, const char *path, json_t *root,
                              const char *const (*meta)[2], size_t n_meta) {
    json_t *object = json_object();
    if (json_object_set_new(root, metadata_key, object) != 0)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for its metadata", path);
    for (size_t i = 0; i < n_meta; i++) {
        const char *key = meta[i][0], *value = meta[i][1];
        if (wf_utf8_check(key, strlen(key)) < strlen(key) ||
            wf_utf8_check(value, strlen(value)) < strlen(value))
            return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%.100s\" is not UTF-8", path, key);
        if (json_object_get(object, key) != NULL)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%.100s\" is given twice", path, key);
        if (json_object_set_new(object, key, json_string(value)) != 0)
            return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for its metadata", path);
    }
    return WF_OK;
}

static wf_status write_parts(wf_ctx *ctx, wf_writer *writer, const char *header,
                             const wf_st_tensor *const *order, size_t n) {
    char padding[data_alignment];
    memset(padding, ' ', sizeof padding);
    size_t length = strlen(header);
    uint64_t padded = (8 + length + data_alignment - 1) / data_alignment * data_alignment - 8;
    if (padded > most_header_bytes)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: a header of %zu bytes; the format allows %d",
                       writer->path, length, most_header_bytes);
    WF_TRY(wf_writer_write(ctx, writer, &padded, 8));
    WF_TRY(wf_writer_write(ctx, writer, header, length));
    WF_TRY(wf_writer_write(ctx, writer, padding, (size_t)padded - length));
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        WF_TRY(tensor_bytes(ctx, writer->path, order[i], &bytes));
        WF_TRY(wf_writer_write(ctx, writer, order[i]->data, bytes));
    }
    return WF_OK;
}

/* The header of all tensors in `order`, as text for free(). */
static wf_status make_header(wf_ctx *ctx, const char *path, const wf_st_tensor *const *order,
                             size_t n, const char *const (*meta)[2], size_t n_meta, char **out) {
    json_t *root = json_object();
    if (root == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    wf_status status = WF_OK;
    if (n_meta > 0) WF_TRY_GOTO(add_metadata(ctx, path, root, meta, n_meta), done);
    size_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        if (json_object_get(root, order[i]->name) != NULL) {
            status = wf_fail(ctx, WF_ERR_INPUT, "%s: two tensors are named \"%.100s\"", path,
                             order[i]->name);
            goto done;
        }
        WF_TRY_GOTO(add_entry(ctx, path, root, order[i], &offset), done);
    }
    *out = json_dumps(root, JSON_COMPACT);
    if (*out == NULL) status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
done:
    json_decref(root);
    return status;
}

wf_status wf_st_write(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                      const char *const (*meta)[2], size_t n_meta) {
    const wf_st_tensor **order;
    char *header = NULL;
    WF_TRY(wf_alloc(ctx, n, sizeof *order, path, &order));
    for (size_t i = 0; i < n; i++) order[i] = &tensors[i];
    if (n > 1) qsort(order, n, sizeof *order, by_item_and_name);
    wf_writer writer;
    wf_status status;
    WF_TRY_GOTO(make_header(ctx, path, order, n, meta, n_meta, &header), done);
    WF_TRY_GOTO(wf_writer_open(ctx, path, &writer), done);
    status = write_parts(ctx, &writer, header, order, n);
    if (status == WF_OK) status = wf_writer_commit(ctx, &writer);
    else wf_writer_abort(&writer);
done:
    free(header);
    free(order);
    return status;
}
