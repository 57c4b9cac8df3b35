/* safetensors: strict reader and writer.
 *
 *     | u64 n, little-endian | n bytes of JSON, padded with spaces | data |
 *   {"__metadata__": {key: text, ...}, name: {"dtype", "shape", "data_offsets": [begin, end]} ...}
 *
 * R1  A file is accepted whole or refused with a sentence; no tensor ever points outside the data.
 * R2  In order of their offsets the tensors follow one another from 0 to the end of the file: no
 *     overlap, no hole, nothing after. Tensors without elements are legal and take no room.
 * D1  The last pair of our metadata is "weft.digest": "xxh3:" and 32 digits, the digest of the
 *     whole file with zeros in the place of these digits. A file without this text, byte for
 *     byte, has no digest.
 * W1  Tensors are written by falling item size, then by name, and the data begin at a multiple
 *     of 64 bytes: every tensor is aligned for its type, and equal input gives equal bytes. */
#include "base/safetensors.h"
#include "base/digest.h"
#include "base/st_index.h"
#include "base/utf8.h"
#include "weft/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

size_t wf_st_dtype_size(wf_st_dtype dtype) { return dtype_table[dtype].size; }
const char *wf_st_dtype_name(wf_st_dtype dtype) { return dtype_table[dtype].name; }

static const char digest_key[] = "weft.digest";
static const char digest_mark[] = "\"weft.digest\":\"xxh3:"; /* the digits follow */
static const char no_digits[] = "00000000000000000000000000000000";

struct wf_st_file {
    wf_map map; /* size 0 when the bytes are the caller's */
    wf_st_index index;
    char *label;
    const uint8_t *bytes; /* of the whole file */
    size_t size, header;
};

/* --- reading ---------------------------------------------------------------------------------- */

static bool is_text(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != '\t' && bytes[i] != '\n' && bytes[i] != '\r' &&
            (bytes[i] < ' ' || bytes[i] > '~'))
            return false;
    return true;
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
    if (is_text(byte, 8))
        return wf_fail(ctx, WF_ERR_INPUT, "%s: no safetensors file: it holds text", label);
    if (header > most_header_bytes)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: no safetensors file: a header of %llu bytes; the format allows %d",
                       label, (unsigned long long)header, most_header_bytes);
    if (header > size - 8)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: a header of %llu bytes, but only %zu follow; the file is cut short",
                       label, (unsigned long long)header, size - 8);
    if (header < 2)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a header of %llu bytes holds no JSON object", label,
                       (unsigned long long)header);
    wf_st_file *file;
    WF_TRY(wf_alloc(ctx, 1, sizeof *file, label, &file));
    *file =
        (wf_st_file){.label = strdup(label), .bytes = byte, .size = size, .header = (size_t)header};
    wf_status status =
        file->label == NULL
            ? wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label)
            : wf__st_index_read(ctx, label, (const char *)byte + 8, (size_t)header,
                                byte + 8 + header, size - 8 - (size_t)header, &file->index);
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
    wf__st_index_free(&file->index);
    wf_map_close(&file->map);
    free(file->label);
    free(file);
}

void wf_st_give_back(const wf_st_file *file, const void *data, size_t bytes) {
    size_t from = (size_t)((const uint8_t *)data - file->bytes);
    wf_map_give_back(&file->map, from, from + bytes);
}

size_t wf_st_count(const wf_st_file *file) { return file->index.count; }

const wf_st_tensor *wf_st_at(const wf_st_file *file, size_t index) {
    assert(index < file->index.count);
    return &file->index.tensor[index];
}

const wf_st_tensor *wf_st_find(const wf_st_file *file, const char *name) {
    return wf__st_index_tensor(&file->index, name);
}

size_t wf_st_meta_count(const wf_st_file *file) { return file->index.meta_count; }

void wf_st_meta_at(const wf_st_file *file, size_t index, const char **key, const char **value) {
    assert(index < file->index.meta_count);
    *key = file->index.meta[index][0];
    *value = file->index.meta[index][1];
}

const char *wf_st_meta(const wf_st_file *file, const char *key) {
    return wf__st_index_meta(&file->index, key);
}

/* --- digest ----------------------------------------------------------------------------------- */

enum { verified_at_once = 16 << 20 }; /* bytes between looks for an interruption */

wf_status wf_st_verify(wf_ctx *ctx, const wf_st_file *file, bool *known) {
    const char *start = (const char *)file->bytes;
    const char *mark = memmem(start + 8, file->header, digest_mark, sizeof digest_mark - 1);
    size_t digits = mark != NULL ? (size_t)(mark - start) + sizeof digest_mark - 1 : 0;
    bool has = mark != NULL && digits + WF_DIGEST_DIGITS <= 8 + file->header;
    if (known != NULL) *known = has;
    if (!has) return WF_OK;
    wf_digest digest;
    char found[WF_DIGEST_DIGITS];
    WF_TRY(wf_digest_start(ctx, &digest));
    wf_digest_add(&digest, start, digits);
    wf_digest_add(&digest, no_digits, WF_DIGEST_DIGITS);
    for (size_t at = digits + WF_DIGEST_DIGITS; at < file->size && !wf_interrupted(ctx);) {
        size_t some = file->size - at < verified_at_once ? file->size - at : verified_at_once;
        wf_digest_add(&digest, start + at, some);
        wf_map_give_back(&file->map, at, at + some);
        at += some;
    }
    wf_digest_end(&digest, found);
    if (wf_interrupted(ctx))
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", file->label);
    if (memcmp(found, start + digits, WF_DIGEST_DIGITS) == 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: is damaged, or was changed by another program: its content does not match "
                   "its digest (metadata weft.digest)",
                   file->label);
}

wf_status wf_file_verify(wf_ctx *ctx, const char *path, bool *known) {
    wf_st_file *file;
    *known = false;
    WF_TRY(wf_st_open(ctx, path, &file));
    wf_status status = wf_st_verify(ctx, file, known);
    wf_st_close(file);
    return status;
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

static void put_text(wf_long_text *text, const char *string) {
    wf_long_text_put(text, string, strlen(string));
}

/* In quotes, with the escapes that JSON asks for. */
static void put_string(wf_long_text *text, const char *string) {
    static const char from[] = "\"\\\b\f\n\r\t", into[] = "\"\\bfnrt";
    wf_long_text_put(text, "\"", 1);
    for (; *string != '\0'; string++) {
        const char *known = strchr(from, *string);
        if (known != NULL) wf_long_text_put(text, (char[]){'\\', into[known - from]}, 2);
        else if ((unsigned char)*string >= 32) wf_long_text_put(text, string, 1);
        else wf_long_text_add(text, "\\u%04x", *string);
    }
    wf_long_text_put(text, "\"", 1);
}

/* One tensor; *offset moves past it. */
static wf_status put_entry(wf_ctx *ctx, const char *path, wf_long_text *text,
                           const wf_st_tensor *tensor, size_t *offset) {
    WF_TRY(check_name(ctx, path, tensor));
    size_t bytes, begin = *offset;
    WF_TRY(tensor_bytes(ctx, path, tensor, &bytes));
    if (__builtin_add_overflow(begin, bytes, offset) || *offset > INT64_MAX)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: more data than a file can hold", path);
    if (text->length > 1) put_text(text, ",");
    put_string(text, tensor->name);
    wf_long_text_add(text, ":{\"dtype\":\"%s\",\"shape\":[", wf_st_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank; i++)
        wf_long_text_add(text, i > 0 ? ",%zu" : "%zu", tensor->shape[i]);
    wf_long_text_add(text, "],\"data_offsets\":[%zu,%zu]}", begin, *offset);
    return WF_OK;
}

/* The caller's pairs and the digest (D1), its digits still zeros; *digits is where they stand. */
static wf_status put_metadata(wf_ctx *ctx, const char *path, wf_long_text *text,
                              const char *const (*meta)[2], size_t n_meta, size_t *digits) {
    if (n_meta > 0)
        WF_TRY(wf__st_check_unique(ctx, path, &meta[0][0], sizeof *meta, n_meta, "metadata key"));
    put_string(text, metadata_key);
    put_text(text, ":{");
    for (size_t i = 0; i < n_meta; i++) {
        const char *key = meta[i][0], *value = meta[i][1];
        if (wf_utf8_check(key, strlen(key)) < strlen(key) ||
            wf_utf8_check(value, strlen(value)) < strlen(value))
            return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%.100s\" is not UTF-8", path, key);
        if (strcmp(key, digest_key) == 0) continue;
        put_string(text, key);
        put_text(text, ":");
        put_string(text, value);
        put_text(text, ",");
    }
    put_text(text, digest_mark);
    *digits = text->length;
    put_text(text, no_digits);
    put_text(text, "\"}");
    return WF_OK;
}

/* The header of all tensors in `order`, padded (W1). */
static wf_status make_header(wf_ctx *ctx, const char *path, const wf_st_tensor *const *order,
                             size_t n, const char *const (*meta)[2], size_t n_meta,
                             wf_long_text *text, size_t *digits) {
    put_text(text, "{");
    WF_TRY(put_metadata(ctx, path, text, meta, n_meta, digits));
    size_t offset = 0;
    for (size_t i = 0; i < n; i++) WF_TRY(put_entry(ctx, path, text, order[i], &offset));
    put_text(text, "}");
    while (!text->cut && (8 + text->length) % data_alignment != 0) put_text(text, " ");
    if (text->cut) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for its header", path);
    if (text->length > most_header_bytes)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: a header of %zu bytes; the format allows %d", path,
                       text->length, most_header_bytes);
    return WF_OK;
}

/* Adds bytes; between two pieces an overdue stop ends it. *since: bytes of the last piece. */
static wf_status digest_pieces(wf_ctx *ctx, const char *path, wf_digest *digest, size_t *since,
                               const char *bytes, size_t count) {
    while (count > 0) {
        size_t room = wf_piece_bytes - *since, some = count < room ? count : room;
        wf_digest_add(digest, bytes, some);
        bytes += some;
        count -= some;
        *since += some;
        if (*since < wf_piece_bytes) continue;
        *since = 0;
        if (wf_stop_is_overdue(ctx))
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "%s: interrupted before it was written", path);
    }
    return WF_OK;
}

/* Puts the digest of the file into its header. */
static wf_status sign(wf_ctx *ctx, const char *path, const wf_long_text *header, size_t digits,
                      const wf_st_tensor *const *order, size_t n) {
    uint64_t size = header->length;
    wf_digest digest;
    WF_TRY(wf_digest_start(ctx, &digest));
    wf_digest_add(&digest, &size, 8);
    wf_digest_add(&digest, header->bytes, header->length);
    wf_status status = WF_OK;
    size_t since = 0;
    for (size_t i = 0; i < n && status == WF_OK; i++) {
        size_t bytes;
        status = tensor_bytes(ctx, path, order[i], &bytes);
        if (status == WF_OK)
            status = digest_pieces(ctx, path, &digest, &since, order[i]->data, bytes);
    }
    wf_digest_end(&digest, header->bytes + digits);
    return status;
}

static wf_status write_parts(wf_ctx *ctx, wf_writer *writer, const wf_long_text *header,
                             const wf_st_tensor *const *order, size_t n) {
    uint64_t size = header->length;
    WF_TRY(wf_writer_write(ctx, writer, &size, 8));
    WF_TRY(wf_writer_write(ctx, writer, header->bytes, header->length));
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        WF_TRY(tensor_bytes(ctx, writer->path, order[i], &bytes));
        WF_TRY(wf_writer_write(ctx, writer, order[i]->data, bytes));
    }
    return WF_OK;
}

wf_status wf_st_write(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                      const char *const (*meta)[2], size_t n_meta) {
    const wf_st_tensor **order;
    wf_long_text header = {0};
    if (n > 0)
        WF_TRY(wf__st_check_unique(ctx, path, &tensors[0].name, sizeof *tensors, n, "tensor"));
    WF_TRY(wf_alloc(ctx, n, sizeof *order, path, &order));
    for (size_t i = 0; i < n; i++) order[i] = &tensors[i];
    if (n > 1) qsort(order, n, sizeof *order, by_item_and_name);
    wf_writer writer;
    wf_status status;
    size_t digits;
    WF_TRY_GOTO(make_header(ctx, path, order, n, meta, n_meta, &header, &digits), done);
    WF_TRY_GOTO(sign(ctx, path, &header, digits, order, n), done);
    WF_TRY_GOTO(wf_writer_open(ctx, path, &writer), done);
    status = write_parts(ctx, &writer, &header, order, n);
    if (status == WF_OK) status = wf_writer_commit(ctx, &writer);
    else wf_writer_abort(&writer);
done:
    free(header.bytes);
    free(order);
    return status;
}

/* --- piece by piece --------------------------------------------------------------------------- */

enum { early_bytes = 1 << 18 };

struct wf_st_stream {
    wf_writer writer;
    int file;      /* the writer's, for reading as well */
    size_t *start; /* of each tensor in the file, in the caller's order */
    size_t size;   /* of the whole file */
    size_t digits; /* of its digest, where they stand in the file */
};

static wf_status stream_start(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors,
                              const wf_st_tensor *const *order, size_t n,
                              const wf_long_text *header, wf_st_stream *stream) {
    uint64_t size = header->length;
    struct stat info; /* a pipe must not be opened and closed again: its reader would see an end */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "%s: is no plain file", path);
    WF_TRY(wf_writer_open(ctx, path, &stream->writer));
    WF_TRY(wf_writer_write(ctx, &stream->writer, &size, 8));
    WF_TRY(wf_writer_write(ctx, &stream->writer, header->bytes, header->length));
    size_t at = 8 + header->length;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        WF_TRY(tensor_bytes(ctx, path, order[i], &bytes));
        stream->start[order[i] - tensors] = at;
        at += bytes;
    }
    stream->size = at;
    stream->file = open(stream->writer.temporary, O_RDWR | O_CLOEXEC);
    if (stream->file < 0 || fflush(stream->writer.file) != 0 ||
        ftruncate(stream->file, (off_t)at) != 0)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    return WF_OK;
}

wf_status wf_st_stream_open(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                            const char *const (*meta)[2], size_t n_meta, wf_st_stream **out) {
    const wf_st_tensor **order = NULL;
    wf_long_text header = {0};
    wf_st_stream *stream = NULL;
    wf_status status;
    *out = NULL;
    if (n > 0)
        WF_TRY(wf__st_check_unique(ctx, path, &tensors[0].name, sizeof *tensors, n, "tensor"));
    WF_TRY_GOTO(wf_alloc(ctx, 1, sizeof *stream, path, &stream), done);
    stream->file = -1;
    WF_TRY_GOTO(wf_alloc(ctx, n + 1, sizeof *stream->start, path, &stream->start), done);
    WF_TRY_GOTO(wf_alloc(ctx, n + 1, sizeof *order, path, &order), done);
    for (size_t i = 0; i < n; i++) order[i] = &tensors[i];
    if (n > 1) qsort(order, n, sizeof *order, by_item_and_name);
    WF_TRY_GOTO(make_header(ctx, path, order, n, meta, n_meta, &header, &stream->digits), done);
    stream->digits += 8;
    status = stream_start(ctx, path, tensors, order, n, &header, stream);
done:
    free(header.bytes);
    free(order);
    if (status == WF_OK) *out = stream;
    else wf_st_stream_abort(stream);
    return status;
}

/* `count` bytes at byte `at` of the file; 0 or an errno. */
static int write_at(const wf_st_stream *stream, size_t at, const void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t n =
            pwrite(stream->file, (const char *)bytes + done, count - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        done += (size_t)n;
    }
    return 0;
}

static int read_at(const wf_st_stream *stream, size_t at, void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t n = pread(stream->file, (char *)bytes + done, count - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        done += (size_t)n;
    }
    return 0;
}

int wf_st_stream_put(const wf_st_stream *stream, size_t i, size_t at, const void *bytes,
                     size_t count) {
    int failed = write_at(stream, stream->start[i] + at, bytes, count);
    if (failed) return failed;
#ifdef __linux__ /* on its way to the disk already, so that commit has little to wait for */
    if (count >= early_bytes)
        sync_file_range(stream->file, (off_t)(stream->start[i] + at), (off_t)count,
                        SYNC_FILE_RANGE_WRITE);
#endif
    return 0;
}

int wf_st_stream_get(const wf_st_stream *stream, size_t i, size_t at, void *bytes, size_t count) {
    return read_at(stream, stream->start[i] + at, bytes, count);
}

/* The data came in any order, so they are read back for the digest: out of the page cache, as a
 * rule. */
static wf_status stream_sign(wf_ctx *ctx, wf_st_stream *stream) {
    enum { block_bytes = 1 << 20 };
    void *block;
    wf_digest digest;
    char digits[WF_DIGEST_DIGITS];
    const char *path = stream->writer.path;
    WF_TRY(wf_alloc_raw(ctx, block_bytes, 1, path, &block));
    size_t since = 0;
    wf_status status = wf_digest_start(ctx, &digest);
    for (size_t at = 0; status == WF_OK && at < stream->size; at += block_bytes) {
        size_t some = stream->size - at < block_bytes ? stream->size - at : block_bytes;
        errno = read_at(stream, at, block, some);
        if (errno != 0) status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be read back", path);
        else status = digest_pieces(ctx, path, &digest, &since, block, some);
    }
    if (digest.state != NULL) wf_digest_end(&digest, digits);
    free(block);
    if (status == WF_OK) {
        errno = write_at(stream, stream->digits, digits, sizeof digits);
        if (errno != 0) status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    }
    return status;
}

wf_status wf_st_stream_commit(wf_ctx *ctx, wf_st_stream *stream) {
    wf_status status = stream_sign(ctx, stream);
    if (status == WF_OK) status = wf_writer_commit(ctx, &stream->writer);
    wf_st_stream_abort(stream);
    return status;
}

void wf_st_stream_abort(wf_st_stream *stream) {
    if (stream == NULL) return;
    wf_writer_abort(&stream->writer);
    if (stream->file >= 0) close(stream->file);
    free(stream->start);
    free(stream);
}
