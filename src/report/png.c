/* png: the smallest encoder that a browser reads: 8-bit RGB, one IDAT, each row filtered against
 * its left neighbour (regions of one colour become runs of zeros). */
#include "report/page.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* length, type, data, CRC over type and data. Returns the place after it. */
static uint8_t *put_chunk(uint8_t *at, const char type[4], const uint8_t *data, size_t size) {
    put_u32(at, (uint32_t)size);
    memcpy(at + 4, type, 4);
    if (size > 0) memcpy(at + 8, data, size);
    put_u32(at + 8 + size, (uint32_t)crc32(0, at + 4, (uInt)(size + 4)));
    return at + 12 + size;
}

static void filter_rows(const uint8_t *rgb, int width, int height, uint8_t *out) {
    size_t row = 3 * (size_t)width;
    for (int y = 0; y < height; y++) {
        const uint8_t *line = rgb + (size_t)y * row;
        *out++ = 1;
        for (size_t x = 0; x < row; x++) *out++ = (uint8_t)(line[x] - (x < 3 ? 0 : line[x - 3]));
    }
}

bool wf__png_encode(const uint8_t *rgb, int width, int height, uint8_t **out, size_t *size) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    size_t raw = (3 * (size_t)width + 1) * (size_t)height;
    uLongf packed_size = compressBound(raw);
    uint8_t *rows = malloc(raw), *packed = malloc(packed_size);
    uint8_t *file = malloc(packed_size + 64);
    bool fine = rows != NULL && packed != NULL && file != NULL;
    if (fine) {
        filter_rows(rgb, width, height, rows);
        fine = compress2(packed, &packed_size, rows, raw, 9) == Z_OK;
    }
    if (fine) {
        uint8_t header[13] = {0};
        put_u32(header, (uint32_t)width);
        put_u32(header + 4, (uint32_t)height);
        header[8] = 8; /* bits */
        header[9] = 2; /* RGB */
        memcpy(file, signature, 8);
        uint8_t *at = put_chunk(file + 8, "IHDR", header, sizeof header);
        at = put_chunk(at, "IDAT", packed, packed_size);
        at = put_chunk(at, "IEND", NULL, 0);
        *out = file;
        *size = (size_t)(at - file);
        file = NULL;
    }
    free(rows);
    free(packed);
    free(file);
    return fine;
}

void wf__page_picture(wf__page *page, const uint8_t *rgb, int width, int height,
                      const char *title) {
    uint8_t *file;
    size_t size;
    if (!wf__png_encode(rgb, width, height, &file, &size)) {
        page->failed = true;
        return;
    }
    wf__page_add(page, "<img width=\"%d\" height=\"%d\" alt=\"", width, height);
    wf__page_escaped(page, title);
    wf__page_add(page, "\" title=\"");
    wf__page_escaped(page, title);
    wf__page_add(page, "\" src=\"data:image/png;base64,");
    wf__page_base64(page, file, size);
    wf__page_add(page, "\">");
    free(file);
}
