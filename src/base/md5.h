/* md5: RFC 1321, because OpenML publishes this digest. Not for security. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct wf_md5 {
    uint32_t state[4];
    uint64_t bytes;
    uint8_t block[64];
} wf_md5;
void wf_md5_start(wf_md5 *hash);
void wf_md5_add(wf_md5 *hash, const void *bytes, size_t count);
void wf_md5_end(wf_md5 *hash, char out[33]);
