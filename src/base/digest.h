/* digest: whether bytes are still those that were written: XXH3 of 128 bits, as 32 hexadecimal
 * digits. It detects damaged and swapped files, not forged ones. */
#pragma once

#include "base/status.h"

enum { WF_DIGEST_DIGITS = 32 };

typedef struct wf_digest {
    struct XXH3_state_s *state;
} wf_digest;
wf_status wf_digest_start(wf_ctx *ctx, wf_digest *out);
void wf_digest_add(wf_digest *digest, const void *bytes, size_t count);
/* Frees it. text: the digits, no NUL; NULL when they are not wanted any more. */
void wf_digest_end(wf_digest *digest, char text[WF_DIGEST_DIGITS]);

/* Of bytes that are at hand: what wf_file_digest says of a file of these bytes. */
wf_status wf_digest_of(wf_ctx *ctx, const void *bytes, size_t count, char out[33]);
