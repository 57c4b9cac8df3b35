/* What tests need to make torch.save files without torch: a byte buffer, a zip writer, the pickle
 * of a dict of tensors. */
#ifndef TORCH_WRITER_H
#define TORCH_WRITER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

typedef struct bytes {
    uint8_t *data;
    size_t n, capacity;
} bytes;

static inline void put(bytes *b, const void *data, size_t n) {
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n) + 64;
        b->data = realloc(b->data, b->capacity);
        if (b->data == NULL) abort();
    }
    if (n > 0) memcpy(b->data + b->n, data, n);
    b->n += n;
}
static inline void put_number(bytes *b, uint64_t value, int count) {
    for (int i = 0; i < count; i++) put(b, &(uint8_t){i < 8 ? (uint8_t)(value >> 8 * i) : 0}, 1);
}
static inline void put_string(bytes *b, const char *text) { put(b, text, strlen(text)); }

/* --- zip: bytes of the entries, then zip_end appends the directory --- */

typedef struct zip_writer {
    bytes out, directory;
    unsigned count;
} zip_writer;

static inline void zip_add(zip_writer *z, const char *name, const void *data, size_t n,
                           bool deflated) {
    uint8_t *packed = malloc(n + n / 1000 + 64);
    size_t packed_n = n;
    if (deflated) {
        z_stream s = {0};
        deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
        s.next_in = (Bytef *)(uintptr_t)data, s.avail_in = (uInt)n;
        s.next_out = packed, s.avail_out = (uInt)(n + n / 1000 + 64);
        if (deflate(&s, Z_FINISH) != Z_STREAM_END) abort();
        packed_n = s.total_out;
        deflateEnd(&s);
    } else if (n > 0) {
        memcpy(packed, data, n);
    }
    size_t header = z->out.n, name_n = strlen(name);
    uint32_t crc = (uint32_t)crc32(crc32(0, NULL, 0), data, (uInt)n);
    put_number(&z->out, 0x04034b50, 4);
    put_number(&z->out, 0, 4); /* version, flags */
    put_number(&z->out, deflated ? 8 : 0, 2);
    put_number(&z->out, 0, 16); /* time, crc and sizes: as torch does, only in the directory */
    put_number(&z->out, name_n, 2);
    put_number(&z->out, 0, 2);
    put(&z->out, name, name_n);
    put(&z->out, packed, packed_n);
    put_number(&z->directory, 0x02014b50, 4);
    put_number(&z->directory, 0, 6);
    put_number(&z->directory, deflated ? 8 : 0, 2);
    put_number(&z->directory, 0, 4);
    put_number(&z->directory, crc, 4);
    put_number(&z->directory, packed_n, 4);
    put_number(&z->directory, n, 4);
    put_number(&z->directory, name_n, 2);
    put_number(&z->directory, 0, 12);
    put_number(&z->directory, header, 4);
    put(&z->directory, name, name_n);
    z->count++;
    free(packed);
}

/* The finished file, which the caller frees; zip64: with the zip64 records torch writes. */
static inline bytes zip_end(zip_writer *z, bool zip64) {
    size_t place = z->out.n;
    put(&z->out, z->directory.data, z->directory.n);
    if (zip64) {
        size_t record = z->out.n;
        put_number(&z->out, 0x06064b50, 4);
        put_number(&z->out, 44, 8);
        put_number(&z->out, 0, 12);
        put_number(&z->out, z->count, 8);
        put_number(&z->out, z->count, 8);
        put_number(&z->out, z->directory.n, 8);
        put_number(&z->out, place, 8);
        put_number(&z->out, 0x07064b50, 4);
        put_number(&z->out, 0, 4);
        put_number(&z->out, record, 8);
        put_number(&z->out, 1, 4);
    }
    put_number(&z->out, 0x06054b50, 4);
    put_number(&z->out, 0, 4);
    put_number(&z->out, zip64 ? 0xffff : z->count, 2);
    put_number(&z->out, zip64 ? 0xffff : z->count, 2);
    put_number(&z->out, zip64 ? 0xffffffff : z->directory.n, 4);
    put_number(&z->out, zip64 ? 0xffffffff : place, 4);
    put_number(&z->out, 0, 2);
    bytes out = z->out;
    free(z->directory.data);
    *z = (zip_writer){0};
    return out;
}

/* --- pickle --- */

static inline void pickle_text(bytes *b, const char *text) {
    put_string(b, "X");
    put_number(b, strlen(text), 4);
    put_string(b, text);
}
static inline void pickle_int(bytes *b, int64_t value) {
    put_string(b, "\x8a\x08");
    put_number(b, (uint64_t)value, 8);
}
/* Pushes an empty OrderedDict. */
static inline void pickle_dict(bytes *b) { put_string(b, "ccollections\nOrderedDict\n)R"); }

static inline void pickle_tuple(bytes *b, const int64_t *values, int n) {
    put_string(b, "(");
    for (int i = 0; i < n; i++) pickle_int(b, values[i]);
    put_string(b, "t");
}

typedef struct view {
    const char *storage, *key; /* "FloatStorage", "0" */
    int64_t elements, offset;
    int rank;
    int64_t shape[8], stride[8];
} view;

static inline void pickle_tensor(bytes *b, const view *v) {
    put_string(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pickle_text(b, "storage");
    put_string(b, "ctorch\n");
    put_string(b, v->storage);
    put_string(b, "\n");
    pickle_text(b, v->key);
    pickle_text(b, "cpu");
    pickle_int(b, v->elements);
    put_string(b, "tQ");
    pickle_int(b, v->offset);
    pickle_tuple(b, v->shape, v->rank);
    pickle_tuple(b, v->stride, v->rank);
    put_string(b, "\x89");
    pickle_dict(b);
    put_string(b, "tR");
}

/* A contiguous float tensor that fills its storage. */
static inline view full_view(const char *key, int rank, int64_t d0, int64_t d1) {
    view v = {.storage = "FloatStorage", .key = key, .rank = rank, .shape = {d0, d1}};
    v.elements = rank == 2 ? d0 * d1 : d0;
    v.stride[0] = rank == 2 ? d1 : 1;
    v.stride[1] = 1;
    return v;
}

#endif
