/* zip: a read-only zip reader over bytes in memory, strict where it matters for safety. Stored and
 * deflated entries, zip64. Every offset and size is checked against the file before it is used,
 * entries may not overlap each other or the central directory, names are unique, and contents are
 * checked against their CRC. Nothing is ever extracted to disk, so names need no cleaning. */
#pragma once

#include "base/status.h"

typedef struct wf_zip_entry {
    const char *name; /* into the file's bytes, not NUL-terminated */
    size_t name_length;
    size_t header;       /* offset of the local header */
    size_t data;         /* offset of the contents */
    size_t packed, size; /* bytes in the file; bytes unpacked */
    uint32_t crc;
    bool deflated;
} wf_zip_entry;

typedef struct wf_zip {
    const char *label; /* the file's name in sentences */
    const uint8_t *bytes;
    size_t size;
    wf_zip_entry *entries; /* in order of name */
    size_t n;
} wf_zip;

/* label and bytes are borrowed until wf_zip_close(). */
wf_status wf_zip_open(wf_ctx *ctx, const char *label, const void *bytes, size_t size, wf_zip *out);
void wf_zip_close(wf_zip *zip);
/* Index of the entry, or zip->n when there is none. */
size_t wf_zip_find(const wf_zip *zip, const char *name, size_t length);
/* The contents. *owned is what the caller frees: NULL when *data points into the zip's bytes. A
 * deflated entry takes entry->size bytes of memory, which the file alone decides: the caller
 * compares it with what it may spend before it calls. */
wf_status wf_zip_read(wf_ctx *ctx, const wf_zip *zip, size_t index, const uint8_t **data,
                      void **owned);
/* The contents piece by piece, whatever their size. What `take` was given is only then good when
 * the call returns WF_OK: size and CRC are known at the end. A failure of `take` ends the call. */
typedef wf_status wf_zip_take(void *user, const uint8_t *bytes, size_t count);
wf_status wf_zip_stream(wf_ctx *ctx, const wf_zip *zip, size_t index, wf_zip_take *take,
                        void *user);
