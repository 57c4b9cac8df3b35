#include "base/digest.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { block_bytes = 1 << 20 };

wf_status wf_digest_start(wf_ctx *ctx, wf_digest *out) {
    out->state = XXH3_createState();
    if (out->state == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "digest: out of memory");
    XXH3_128bits_reset(out->state);
    return WF_OK;
}

void wf_digest_add(wf_digest *digest, const void *bytes, size_t count) {
    if (count > 0) XXH3_128bits_update(digest->state, bytes, count);
}

void wf_digest_end(wf_digest *digest, char text[WF_DIGEST_DIGITS]) {
    XXH128_canonical_t bytes;
    char digits[3];
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(digest->state));
    for (int i = 0; text != NULL && i < WF_DIGEST_DIGITS / 2; i++) {
        snprintf(digits, sizeof digits, "%02x", bytes.digest[i]);
        memcpy(text + 2 * i, digits, 2);
    }
    XXH3_freeState(digest->state);
    digest->state = NULL;
}

wf_status wf_digest_of(wf_ctx *ctx, const void *bytes, size_t count, char out[33]) {
    wf_digest digest;
    WF_TRY(wf_digest_start(ctx, &digest));
    wf_digest_add(&digest, bytes, count);
    wf_digest_end(&digest, out);
    out[WF_DIGEST_DIGITS] = '\0';
    return WF_OK;
}

static wf_status add_file(wf_ctx *ctx, const char *path, int fd, void *block, wf_digest *digest) {
    for (;;) {
        ssize_t got = read(fd, block, block_bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read", path);
        if (got == 0) return WF_OK;
        if (wf_interrupted(ctx))
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", path);
        wf_digest_add(digest, block, (size_t)got);
    }
}

wf_status wf_file_digest(wf_ctx *ctx, const char *path, char out[33]) {
    void *block;
    wf_digest digest = {NULL};
    out[0] = '\0';
    int fd = wf_open_to_read(path, 0);
    if (fd < 0) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be opened", path);
    wf_status status = wf_alloc_raw(ctx, block_bytes, 1, path, &block);
    if (status == WF_OK) {
        status = wf_digest_start(ctx, &digest);
        if (status == WF_OK) status = add_file(ctx, path, fd, block, &digest);
        free(block);
    }
    if (digest.state != NULL) wf_digest_end(&digest, out);
    out[status == WF_OK ? WF_DIGEST_DIGITS : 0] = '\0';
    close(fd);
    return status;
}
