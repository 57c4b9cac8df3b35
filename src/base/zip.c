/* zip: see the header. Layout of a zip file, from the end backwards:
 *
 *   | local header, name, extra, contents | ... | central directory | zip64 end, locator
 *   | end, comment |
 *
 * The end record gives the place of the central directory, whose entries give the local headers;
 * the sizes and the CRC are taken from the central directory alone (torch writes zeros into the
 * local headers). */
#include "base/zip.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    end_size = 22,
    end64_size = 56,
    locator_size = 20,
    central_size = 46,
    local_size = 30,
    comment_max = 65535,
    deflate_ratio = 1032, /* no deflate stream expands further */
    method_stored = 0,
    method_deflated = 8,
    piece = 1 << 16,
    most_entries = 1 << 18 /* a file may claim one in every 76 of its bytes */
};
static const uint32_t end_signature = 0x06054b50, end64_signature = 0x06064b50;
static const uint32_t locator_signature = 0x07064b50;
static const uint32_t central_signature = 0x02014b50, local_signature = 0x04034b50;

static uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return u16(p) | (uint32_t)u16(p + 2) << 16; }
static uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

/* The central directory as the end records describe it. */
typedef struct directory {
    uint64_t entries, size, offset;
} directory;

static wf_status broken(wf_ctx *ctx, const wf_zip *zip, const char *what) {
    return wf_fail(ctx, WF_ERR_INPUT, "%s: damaged zip file: %s; copy, save or fetch it again",
                   zip->label, what);
}

/* Is [offset, offset + count) inside the first `limit` bytes? */
static bool inside(uint64_t offset, uint64_t count, uint64_t limit) {
    return offset <= limit && count <= limit - offset;
}

static wf_status find_end(wf_ctx *ctx, const wf_zip *zip, size_t *at) {
    if (zip->size >= end_size) {
        size_t last = zip->size - end_size;
        size_t first = last > comment_max ? last - comment_max : 0;
        for (size_t p = last + 1; p-- > first;) {
            if (u32(zip->bytes + p) != end_signature) continue;
            if (u16(zip->bytes + p + 20) != last - p) continue; /* the comment ends the file */
            *at = p;
            return WF_OK;
        }
    }
    return broken(ctx, zip, "no end record, the file is cut short or is no zip file");
}

static wf_status read_end64(wf_ctx *ctx, const wf_zip *zip, size_t end, directory *dir,
                            size_t *limit) {
    if (end < locator_size || u32(zip->bytes + end - locator_size) != locator_signature)
        return WF_OK;
    const uint8_t *locator = zip->bytes + end - locator_size;
    uint64_t place = u64(locator + 8);
    if (u32(locator + 4) != 0 || u32(locator + 16) > 1)
        return broken(ctx, zip, "it is one part of several");
    if (!inside(place, end64_size, end - locator_size) ||
        u32(zip->bytes + place) != end64_signature)
        return broken(ctx, zip, "the zip64 end record is not where its locator says");
    const uint8_t *record = zip->bytes + place;
    if (u32(record + 16) != 0 || u32(record + 20) != 0 || u64(record + 24) != u64(record + 32))
        return broken(ctx, zip, "it is one part of several");
    *dir = (directory){u64(record + 32), u64(record + 40), u64(record + 48)};
    *limit = place;
    return WF_OK;
}

static wf_status read_directory(wf_ctx *ctx, const wf_zip *zip, directory *dir) {
    size_t end = 0;
    WF_TRY(find_end(ctx, zip, &end));
    const uint8_t *record = zip->bytes + end;
    if (u16(record + 4) != 0 || u16(record + 6) != 0 || u16(record + 8) != u16(record + 10))
        return broken(ctx, zip, "it is one part of several");
    *dir = (directory){u16(record + 10), u32(record + 12), u32(record + 16)};
    size_t limit = end;
    WF_TRY(read_end64(ctx, zip, end, dir, &limit));
    if (!inside(dir->offset, dir->size, limit))
        return broken(ctx, zip, "the central directory lies outside the file");
    if (dir->entries > dir->size / central_size)
        return broken(ctx, zip, "the central directory is too small for its entries");
    if (dir->entries > most_entries)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: a zip file of %llu entries; at most %d are read",
                       zip->label, (unsigned long long)dir->entries, most_entries);
    return WF_OK;
}

/* The 64-bit values stand in the extra field in this order, each only where the 32-bit one is all
 * ones. */
static bool widen(uint64_t value[3], const uint8_t *extra, size_t length) {
    bool wanted = value[0] == UINT32_MAX || value[1] == UINT32_MAX || value[2] == UINT32_MAX;
    while (wanted && length >= 4) {
        size_t bytes = u16(extra + 2);
        if (bytes > length - 4) return false;
        if (u16(extra) == 1) {
            const uint8_t *p = extra + 4;
            for (int i = 0; i < 3; i++) {
                if (value[i] != UINT32_MAX) continue;
                if (bytes < 8) return false;
                value[i] = u64(p);
                p += 8;
                bytes -= 8;
            }
            return true;
        }
        extra += 4 + bytes;
        length -= 4 + bytes;
    }
    return !wanted;
}

/* Finds the contents after the local header, whose name must be that of the central directory. */
static wf_status locate(wf_ctx *ctx, const wf_zip *zip, wf_zip_entry *entry, uint64_t limit) {
    if (!inside(entry->header, local_size, limit) ||
        u32(zip->bytes + entry->header) != local_signature)
        return broken(ctx, zip, "an entry's header is not where the directory says");
    const uint8_t *local = zip->bytes + entry->header;
    size_t name = u16(local + 26), extra = u16(local + 28);
    if (!inside(entry->header + local_size, name + extra, limit))
        return broken(ctx, zip, "an entry's header runs out of the file");
    if (name != entry->name_length || memcmp(local + local_size, entry->name, name) != 0)
        return broken(ctx, zip, "an entry has two different names");
    entry->data = entry->header + local_size + name + extra;
    if (!inside(entry->data, entry->packed, limit))
        return broken(ctx, zip, "an entry's contents run out of the file");
    return WF_OK;
}

static wf_status read_entry(wf_ctx *ctx, const wf_zip *zip, const directory *dir, uint64_t *at,
                            wf_zip_entry *entry) {
    uint64_t end = dir->offset + dir->size;
    const uint8_t *record = zip->bytes + *at;
    if (!inside(*at, central_size, end) || u32(record) != central_signature)
        return broken(ctx, zip, "the central directory has fewer entries than it says");
    unsigned flags = u16(record + 8), method = u16(record + 10);
    uint64_t value[3] = {u32(record + 24), u32(record + 20), u32(record + 42)};
    size_t name = u16(record + 28), extra = u16(record + 30), comment = u16(record + 32);
    if (!inside(*at + central_size, name + extra + comment, end))
        return broken(ctx, zip, "a directory entry runs out of the directory");
    if (!widen(value, record + central_size + name, extra))
        return broken(ctx, zip, "a zip64 field is missing or too short");
    if (flags & 1) return broken(ctx, zip, "an entry is encrypted");
    if (method != method_stored && method != method_deflated)
        return broken(ctx, zip, "an entry's compression is neither 'stored' nor 'deflate'");
    *entry = (wf_zip_entry){.name = (const char *)record + central_size,
                            .name_length = name,
                            .header = value[2],
                            .packed = value[1],
                            .size = value[0],
                            .crc = u32(record + 16),
                            .deflated = method == method_deflated};
    if (!entry->deflated && entry->packed != entry->size)
        return broken(ctx, zip, "a stored entry has two different sizes");
    if (entry->deflated && entry->size / deflate_ratio > entry->packed)
        return broken(ctx, zip, "an entry claims to unpack to more than it can");
    *at += central_size + name + extra + comment;
    return locate(ctx, zip, entry, dir->offset);
}

static int by_place(const void *a_, const void *b_) {
    const wf_zip_entry *a = a_, *b = b_;
    return (a->header > b->header) - (a->header < b->header);
}

static int compare_names(const char *a, size_t a_length, const char *b, size_t b_length) {
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int by_name(const void *a_, const void *b_) {
    const wf_zip_entry *a = a_, *b = b_;
    return compare_names(a->name, a->name_length, b->name, b->name_length);
}

static wf_status read_entries(wf_ctx *ctx, wf_zip *zip, const directory *dir) {
    uint64_t at = dir->offset;
    for (size_t i = 0; i < dir->entries; i++, zip->n++)
        WF_TRY(read_entry(ctx, zip, dir, &at, &zip->entries[i]));
    qsort(zip->entries, zip->n, sizeof *zip->entries, by_place);
    for (size_t i = 1; i < zip->n; i++) {
        const wf_zip_entry *before = &zip->entries[i - 1];
        if (before->data + before->packed > zip->entries[i].header)
            return broken(ctx, zip, "entries overlap");
    }
    qsort(zip->entries, zip->n, sizeof *zip->entries, by_name);
    for (size_t i = 1; i < zip->n; i++)
        if (by_name(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return broken(ctx, zip, "two entries have the same name");
    return WF_OK;
}

wf_status wf_zip_open(wf_ctx *ctx, const char *label, const void *bytes, size_t size, wf_zip *out) {
    *out = (wf_zip){.label = label, .bytes = bytes, .size = size};
    directory dir = {0};
    WF_TRY(read_directory(ctx, out, &dir));
    WF_TRY(wf_alloc(ctx, dir.entries, sizeof *out->entries, label, &out->entries));
    wf_status status = read_entries(ctx, out, &dir);
    if (status != WF_OK) wf_zip_close(out);
    return status;
}

void wf_zip_close(wf_zip *zip) {
    free(zip->entries);
    *zip = (wf_zip){0};
}

size_t wf_zip_find(const wf_zip *zip, const char *name, size_t length) {
    size_t low = 0, high = zip->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const wf_zip_entry *entry = &zip->entries[middle];
        int order = compare_names(entry->name, entry->name_length, name, length);
        if (order == 0) return middle;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return zip->n;
}

/* --- contents --------------------------------------------------------------------------------- */

typedef struct contents {
    wf_ctx *ctx;
    const wf_zip *zip;
    const wf_zip_entry *entry;
    uint64_t count; /* of bytes so far */
    uLong crc;
    wf_zip_take *take;
    void *user;
} contents;

static wf_status pass_on(contents *c, const uint8_t *bytes, size_t count) {
    if (count > c->entry->size - c->count)
        return broken(c->ctx, c->zip, "an entry does not unpack to its stated size");
    if (wf_interrupted(c->ctx))
        return wf_fail(c->ctx, WF_ERR_INTERRUPTED, "%s: interrupted while unpacking",
                       c->zip->label);
    c->crc = crc32_z(c->crc, bytes, count);
    c->count += count;
    return c->take(c->user, bytes, count);
}

static wf_status no_memory(const contents *c) {
    return wf_fail(c->ctx, WF_ERR_MEMORY, "%s: out of memory for unpacking", c->zip->label);
}

static wf_status unpack(contents *c, uint8_t *out) {
    const uint8_t *in = c->zip->bytes + c->entry->data, *end = in + c->entry->packed;
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)in}; /* zlib reads it only */
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return no_memory(c);
    wf_status status = WF_OK;
    int code = Z_OK;
    while (status == WF_OK && code == Z_OK) {
        size_t left = (size_t)(end - stream.next_in);
        stream.avail_in = left < UINT_MAX ? (uInt)left : UINT_MAX;
        stream.next_out = out;
        stream.avail_out = piece;
        code = inflate(&stream, Z_NO_FLUSH);
        if (code == Z_OK || code == Z_STREAM_END)
            status = pass_on(c, out, piece - stream.avail_out);
    }
    bool whole = code == Z_STREAM_END && stream.next_in == end;
    inflateEnd(&stream);
    if (status != WF_OK) return status;
    if (code == Z_MEM_ERROR) return no_memory(c);
    return whole ? WF_OK : broken(c->ctx, c->zip, "an entry does not unpack to its stated size");
}

wf_status wf_zip_stream(wf_ctx *ctx, const wf_zip *zip, size_t index, wf_zip_take *take,
                        void *user) {
    contents c = {
        .ctx = ctx, .zip = zip, .entry = &zip->entries[index], .take = take, .user = user};
    c.crc = crc32_z(0, NULL, 0);
    if (!c.entry->deflated) WF_TRY(pass_on(&c, zip->bytes + c.entry->data, c.entry->size));
    else {
        uint8_t *out;
        WF_TRY(wf_alloc_raw(ctx, piece, 1, zip->label, &out));
        wf_status status = unpack(&c, out);
        free(out);
        WF_TRY(status);
    }
    if (c.count != c.entry->size)
        return broken(ctx, zip, "an entry does not unpack to its stated size");
    if (c.crc != c.entry->crc) return broken(ctx, zip, "an entry's checksum is wrong");
    return WF_OK;
}

static wf_status keep(void *at_, const uint8_t *bytes, size_t count) {
    uint8_t **at = at_;
    memcpy(*at, bytes, count);
    *at += count;
    return WF_OK;
}

static wf_status look(void *user, const uint8_t *bytes, size_t count) {
    (void)user, (void)bytes, (void)count;
    return WF_OK;
}

wf_status wf_zip_read(wf_ctx *ctx, const wf_zip *zip, size_t index, const uint8_t **data,
                      void **owned) {
    const wf_zip_entry *entry = &zip->entries[index];
    *data = zip->bytes + entry->data;
    *owned = NULL;
    if (!entry->deflated) return wf_zip_stream(ctx, zip, index, look, NULL);
    uint8_t *unpacked, *at;
    WF_TRY(wf_alloc_raw(ctx, entry->size, 1, zip->label, &unpacked));
    at = unpacked;
    wf_status status = wf_zip_stream(ctx, zip, index, keep, &at);
    if (status != WF_OK) {
        free(unpacked);
        return status;
    }
    *data = *owned = unpacked;
    return WF_OK;
}
