/* utf8: validity of text that comes from files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the well-formed character at `text`, 1 to 4; 0 when there is none within `size` bytes.
 * No surrogates, no overlong forms. */
size_t wf_utf8_step(const char *text, size_t size);
/* Where the first malformed byte is; `size` when all is well. */
size_t wf_utf8_check(const char *text, size_t size);
