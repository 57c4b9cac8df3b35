/* What the targets of safetensors files share. */
#ifndef WF_FUZZ_HEADER_H
#define WF_FUZZ_HEADER_H

#include "driver.h"

#include <stdlib.h>

typedef struct fuzz_header_text {
    const char *header;
    size_t data; /* bytes of data after it */
} fuzz_header_text;

/* A file with this header; byte i of its data is first + step * i. */
static const char *fuzz_header(const fuzz_header_text *of, int first, int step, size_t *size) {
    static char bytes[2048];
    uint64_t length = strlen(of->header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, of->header, length);
    for (size_t i = 0; i < of->data; i++) bytes[8 + length + i] = (char)(first + step * (int)i);
    *size = 8 + length + of->data;
    return bytes;
}

/* Reads bytes as they are, and with a header size that fits: a mutation that moves the end of the
 * header would otherwise never reach the rules after the JSON. */
static void fuzz_repaired(void (*read)(const uint8_t *data, size_t size), const uint8_t *data,
                          size_t size) {
    read(data, size);
    const uint8_t *brace = size > 8 ? memrchr(data + 8, '}', size - 8) : NULL;
    uint8_t *repaired = brace != NULL ? malloc(size) : NULL;
    if (repaired == NULL) return;
    uint64_t header = (uint64_t)(brace - data) + 1 - 8;
    memcpy(repaired, data, size);
    memcpy(repaired, &header, 8);
    read(repaired, size);
    free(repaired);
}

#endif
