/* torch_write: a zip container of stored entries, as torch 1.6 and later read it.
 *
 *   net/data.pkl            pickle, protocol 2: OrderedDict of name -> _rebuild_tensor_v2(...)
 *   net/byteorder           "little"
 *   net/extra/KEY           what the caller notes, as weft.graph
 *   net/data/0, 1 ...       one storage for each tensor, raw floats
 *   net/version             "3"
 *
 * Contents begin at multiples of 64 bytes, padded by an extra field as torch does, so that
 * torch.load may map the file. */
#include "zoo/torch_write.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { alignment = 64, most_tensors = 60000 };

typedef wf_long_text text;

typedef struct archive {
    wf_ctx *ctx;
    wf_writer file;
    uint64_t at;    /* bytes written */
    text directory; /* central directory */
    unsigned entries;
} archive;

static void put_string(text *t, const char *string) { wf_long_text_put(t, string, strlen(string)); }

static void put_byte(text *t, int byte) { wf_long_text_put(t, &(char){(char)byte}, 1); }

static wf_status put(archive *a, const void *bytes, size_t count) {
    a->at += count;
    return wf_writer_write(a->ctx, &a->file, bytes, count);
}

/* Little-endian; there may be more bytes than a uint64_t has. */
static void number(uint8_t **at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++, value >>= 8) *(*at)++ = (uint8_t)value;
}

/* What the local header and the directory have in common: version, flags, method, time, date, CRC,
 * sizes, length of the name. */
static void common_fields(uint8_t **at, uint32_t crc, size_t size, size_t name_length) {
    number(at, 0, 2);      /* version needed */
    number(at, 0, 2);      /* flags */
    number(at, 0, 2);      /* stored */
    number(at, 0, 2);      /* time */
    number(at, 0x0021, 2); /* date: the first there is, 1980-01-01 */
    number(at, crc, 4);
    number(at, size, 4);
    number(at, size, 4);
    number(at, name_length, 2);
}

static wf_status add_entry(archive *a, const char *name, const void *bytes, size_t size) {
    uint8_t local[30], central[46], padding[alignment + 4] = {'F', 'B'}, *at = local;
    size_t length = strlen(name), start = (size_t)a->at;
    uint32_t crc = (uint32_t)crc32_z(crc32_z(0, NULL, 0), bytes, size);
    size_t extra = 4 + (alignment - (start + sizeof local + length + 4) % alignment) % alignment;
    padding[2] = (uint8_t)(extra - 4);
    number(&at, 0x04034b50, 4);
    common_fields(&at, crc, size, length);
    number(&at, extra, 2);
    WF_TRY(put(a, local, sizeof local));
    WF_TRY(put(a, name, length));
    WF_TRY(put(a, padding, extra));
    WF_TRY(put(a, bytes, size));
    at = central;
    number(&at, 0x02014b50, 4);
    number(&at, 0, 2); /* version made by */
    common_fields(&at, crc, size, length);
    number(&at, 0, 12); /* no extra field, comment, disk, attributes */
    number(&at, start, 4);
    wf_long_text_put(&a->directory, central, sizeof central);
    wf_long_text_put(&a->directory, name, length);
    a->entries++;
    return WF_OK;
}

static wf_status end_archive(archive *a, const char *directory) {
    uint8_t end[22], *at = end;
    size_t size = a->directory.length;
    number(&at, 0x06054b50, 4);
    number(&at, 0, 4);
    number(&at, a->entries, 2);
    number(&at, a->entries, 2);
    number(&at, size, 4);
    number(&at, a->at, 4);
    number(&at, 0, 2);
    WF_TRY(put(a, directory, size));
    return put(a, end, sizeof end);
}

/* --- the pickle ------------------------------------------------------------------------------- */

static void put_number(text *p, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) put_byte(p, (int)(value >> 8 * i & 255));
}

static void put_unicode(text *p, const char *string) {
    put_byte(p, 'X'); /* BINUNICODE */
    put_number(p, strlen(string), 4);
    put_string(p, string);
}

static void put_integer(text *p, size_t value) {
    bool small = value <= INT32_MAX;
    put_byte(p, small ? 'J' : '\x8a'); /* BININT, or LONG1 of 8 bytes */
    if (!small) put_byte(p, 8);
    put_number(p, value, small ? 4 : 8);
}

/* ((OrderedDict),): an empty one. */
static const char ordered_dict[] = "ccollections\nOrderedDict\n)R";

static void put_tensor(text *p, const wf_st_tensor *tensor, size_t index) {
    size_t stride[WF_ST_MAX_RANK], step = 1;
    char key[24];
    put_unicode(p, tensor->name);
    put_string(p,
               "ctorch._utils\n_rebuild_tensor_v2\n(("); /* MARK of its arguments, of the storage */
    put_unicode(p, "storage");
    put_string(p, "ctorch\nFloatStorage\n");
    snprintf(key, sizeof key, "%zu", index);
    put_unicode(p, key);
    put_unicode(p, "cpu");
    put_integer(p, tensor->count);
    put_string(p, "tQ"); /* TUPLE, BINPERSID */
    put_integer(p, 0);
    for (int i = tensor->rank; i-- > 0; step *= tensor->shape[i]) stride[i] = step;
    put_byte(p, '(');
    for (int i = 0; i < tensor->rank; i++) put_integer(p, tensor->shape[i]);
    put_string(p, "t(");
    for (int i = 0; i < tensor->rank; i++) put_integer(p, stride[i]);
    put_string(p, "t\x89"); /* NEWFALSE: requires_grad */
    put_string(p, ordered_dict);
    put_string(p, "tR");
}

static void put_pickle(text *p, const wf_st_tensor *tensors, size_t n) {
    put_string(p, "\x80\x02");
    put_string(p, ordered_dict);
    put_byte(p, '(');
    for (size_t i = 0; i < n; i++) put_tensor(p, &tensors[i], i);
    put_string(p, "u."); /* SETITEMS, STOP */
}

/* --- the call --------------------------------------------------------------------------------- */

static wf_status no_memory(archive *a, const char *path) {
    return wf_fail(a->ctx, WF_ERR_MEMORY, "%s: out of memory", path);
}

static wf_status add_pickle(archive *a, const char *path, const wf_st_tensor *tensors, size_t n) {
    text pickle = {0};
    put_pickle(&pickle, tensors, n);
    char *bytes = wf_long_text_end(&pickle);
    wf_status status =
        bytes != NULL ? add_entry(a, "net/data.pkl", bytes, pickle.length) : no_memory(a, path);
    free(bytes);
    return status;
}

static wf_status add_entries(archive *a, const char *path, const wf_st_tensor *tensors, size_t n,
                             const char *const (*notes)[2], size_t n_notes) {
    char name[128];
    WF_TRY(add_pickle(a, path, tensors, n));
    WF_TRY(add_entry(a, "net/byteorder", "little", 6));
    for (size_t i = 0; i < n_notes; i++) {
        snprintf(name, sizeof name, "net/extra/%s", notes[i][0]);
        WF_TRY(add_entry(a, name, notes[i][1], strlen(notes[i][1])));
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "net/data/%zu", i);
        WF_TRY(add_entry(a, name, tensors[i].data, tensors[i].bytes));
    }
    return add_entry(a, "net/version", "3\n", 2);
}

static wf_status check_size(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += tensors[i].bytes + 1024;
    if (n <= most_tensors && bytes < UINT32_MAX) return WF_OK;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                   "%s: %zu tensors of %zu MB are more than a zip container takes here; write "
                   ".safetensors",
                   path, n, (size_t)(bytes >> 20));
}

wf_status wf_torch_write(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                         const char *const (*notes)[2], size_t n_notes) {
    archive a = {.ctx = ctx};
    WF_TRY(check_size(ctx, path, tensors, n));
    wf_status status = wf_writer_open(ctx, path, &a.file);
    bool opened = status == WF_OK;
    if (opened) status = add_entries(&a, path, tensors, n, notes, n_notes);
    char *directory = wf_long_text_end(&a.directory);
    if (status == WF_OK && directory == NULL) status = no_memory(&a, path);
    if (status == WF_OK) status = end_archive(&a, directory);
    if (status == WF_OK) status = wf_writer_commit(ctx, &a.file);
    else if (opened) wf_writer_abort(&a.file);
    free(directory);
    return status;
}
