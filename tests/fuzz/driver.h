/* What a fuzz target defines. */
#ifndef WF_FUZZ_DRIVER_H
#define WF_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Must survive any bytes; returns 0. `data` holds exactly `size` bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Optional: good inputs to start from, index 0, 1, 2 ...; NULL after the last. */
const char *fuzz_seed(size_t index, size_t *size) __attribute__((weak));

#endif
