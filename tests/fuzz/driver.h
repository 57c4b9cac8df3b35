/* What a fuzz target defines. */
#ifndef WF_FUZZ_DRIVER_H
#define WF_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Must survive any bytes; returns 0. `data` holds exactly `size` bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Optional: good inputs to start from, index 0, 1, 2 ...; NULL after the last. */
const char *fuzz_seed(size_t index, size_t *size) __attribute__((weak));
/* fuzz_seed from an array of texts. */
#define FUZZ_TEXTS(texts)                                                                          \
    const char *fuzz_seed(size_t index, size_t *size) {                                            \
        const char *text = index < sizeof(texts) / sizeof *(texts) ? (texts)[index] : NULL;        \
        *size = text != NULL ? strlen(text) : 0;                                                   \
        return text;                                                                               \
    }

#endif
