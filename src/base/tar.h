/* tar: a read-only tar reader over bytes in memory (POSIX ustar, GNU's and pax headers), strict
 * where it matters for safety. Checksums, sizes and the end are checked; anything but files and
 * folders is refused. Nothing is ever extracted to disk, so names need no cleaning. */
#pragma once

#include "base/status.h"

typedef struct wf_tar {
    const char *label; /* the file's name in sentences */
    const uint8_t *bytes;
    size_t size, at;     /* at: offset of the next header */
    char name[257];      /* of the entry: "cifar-10-batches-bin/test_batch.bin" */
    const uint8_t *data; /* its contents, into `bytes` */
    size_t data_size;
} wf_tar;

/* label and bytes are borrowed. */
wf_tar wf_tar_start(const char *label, const void *bytes, size_t size);
/* The next plain file; *more false: there is none, and the archive ends as it should. */
wf_status wf_tar_next(wf_ctx *ctx, wf_tar *tar, bool *more);
