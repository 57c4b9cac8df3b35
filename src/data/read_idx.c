/* read_idx: IDX files of unsigned bytes (the format of MNIST).
 *
 *   byte 0,1 zero   byte 2 type (8: unsigned byte)   byte 3 number of dimensions d
 *   d big-endian 32-bit sizes, then as many bytes as their product, last dimension fastest
 * The first dimension counts the examples. Labels have one dimension. */
#include "data/data_table.h"

#include <stdio.h>
#include <string.h>

enum { max_dimensions = 8, max_inputs = 1 << 22 };

typedef struct idx_view {
    int dimensions;
    uint32_t size[max_dimensions];
    size_t rows, inputs; /* of one example */
    const uint8_t *bytes;
} idx_view;

static const char *type_name(uint8_t type) {
    switch (type) {
    case 0x09: return "signed bytes";
    case 0x0B: return "16-bit integers";
    case 0x0C: return "32-bit integers";
    case 0x0D: return "32-bit floats";
    case 0x0E: return "64-bit floats";
    }
    return NULL;
}

static wf_status read_header(wf_ctx *ctx, const char *label, const uint8_t *bytes, size_t size,
                             idx_view *out) {
    if (size < 4 || bytes[0] != 0 || bytes[1] != 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: not an IDX file (it must begin with two zero bytes)",
                       label);
    if (bytes[2] != 0x08) {
        const char *name = type_name(bytes[2]);
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: an IDX file of %s (type 0x%02x); only unsigned "
                       "bytes (0x08) are read",
                       label, name != NULL ? name : "no known type", bytes[2]);
    }
    out->dimensions = bytes[3];
    if (out->dimensions < 1 || out->dimensions > max_dimensions)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %d dimensions; an IDX file has 1 to %d", label,
                       out->dimensions, max_dimensions);
    if (size < 4 + 4 * (size_t)out->dimensions)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the file ends within the header", label);
    for (int d = 0; d < out->dimensions; d++) {
        const uint8_t *at = bytes + 4 + 4 * d;
        out->size[d] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        if (out->size[d] == 0)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: dimension %d is 0; the file holds nothing",
                           label, d + 1);
    }
    return WF_OK;
}

/* The sizes that the header promises. */
static wf_status read_sizes(wf_ctx *ctx, const char *label, const uint8_t *bytes, size_t size,
                            idx_view *out) {
    WF_TRY(read_header(ctx, label, bytes, size, out));
    out->rows = out->size[0];
    out->inputs = 1;
    for (int d = 1; d < out->dimensions; d++) {
        out->inputs *= out->size[d]; /* below 2^22 times 2^32: no overflow */
        if (out->inputs > max_inputs)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: more than %d bytes an example", label,
                           max_inputs);
    }
    return WF_OK;
}

bool wf__idx_is_over(const char *bytes, size_t size, size_t fresh) {
    (void)fresh;
    idx_view view = {0};
    size_t longest_header = 4 + 4 * max_dimensions;
    if (size < longest_header) return false;
    if (read_sizes(NULL, "", (const uint8_t *)bytes, size, &view) != WF_OK) return true;
    return size - longest_header > view.rows * view.inputs;
}

static wf_status read_idx(wf_ctx *ctx, const char *label, const char *text, size_t size,
                          idx_view *out) {
    const uint8_t *bytes = (const uint8_t *)text;
    WF_TRY(read_sizes(ctx, label, bytes, size, out));
    size_t header = 4 + 4 * (size_t)out->dimensions;
    size_t need = out->rows * out->inputs;
    if (size - header != need)
        return wf_fail(ctx, WF_ERR_INPUT,
                       size - header < need
                           ? "%s: the header promises %zu x %zu bytes of data, the file has %zu; "
                             "it is cut off"
                           : "%s: the header promises %zu x %zu bytes of data, the file has %zu or "
                             "more; it is longer than it should be",
                       label, out->rows, out->inputs, size - header);
    out->bytes = bytes + header;
    return WF_OK;
}

/* "pixel 3,5": the place of an input within an example. */
static const char *input_name(wf_arena *arena, const idx_view *view, size_t input) {
    char place[16 * max_dimensions] = "";
    for (int d = view->dimensions - 1; d >= 1; d--) {
        char longer[sizeof place];
        int written = snprintf(longer, sizeof longer, "%zu%s%.110s", input % view->size[d],
                               place[0] != 0 ? "," : "", place);
        if (written < 0) return NULL;
        memcpy(place, longer, sizeof place);
        input /= view->size[d];
    }
    return wf__arena_format(arena, "pixel %s", place);
}

wf_status wf__table_from_idx(wf_ctx *ctx, const char *label, char *images, size_t images_size,
                             const char *labels_label, const char *labels, size_t labels_size,
                             wf_table *out) {
    idx_view x = {0}, y = {0};
    out->label = label;
    out->text = images;
    WF_TRY(read_idx(ctx, label, images, images_size, &x));
    WF_TRY(read_idx(ctx, labels_label, labels, labels_size, &y));
    if (x.dimensions < 2)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: one dimension, so these are labels; examples need two or more", label);
    if (y.dimensions != 1)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %d dimensions; labels have one", labels_label,
                       y.dimensions);
    if (x.rows != y.rows)
        return wf_fail(ctx, WF_ERR_INPUT, "%s has %zu examples, but %s has %zu labels", label,
                       x.rows, labels_label, y.rows);
    out->rows = x.rows;
    out->columns = x.inputs + 1;
    out->target = x.inputs;
    if (x.dimensions == 3 ||
        x.dimensions == 4) { /* (n, height, width), (n, channels, height, width) */
        out->image[0] = x.dimensions == 3 ? 1 : (int)x.size[1];
        out->image[1] = (int)x.size[x.dimensions - 2];
        out->image[2] = (int)x.size[x.dimensions - 1];
    }
    out->column = wf_arena_zalloc(&out->arena, out->columns * sizeof *out->column);
    uint8_t *label_bytes = wf_arena_alloc(&out->arena, y.rows);
    if (out->column == NULL || label_bytes == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label);
    memcpy(label_bytes, y.bytes, y.rows);
    for (size_t c = 0; c < x.inputs; c++) {
        out->column[c] = (wf_column){
            .name = input_name(&out->arena, &x, c), .bytes = x.bytes + c, .stride = x.inputs};
        if (out->column[c].name == NULL)
            return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label);
    }
    out->column[x.inputs] = (wf_column){.name = "label", .bytes = label_bytes, .stride = 1};
    return WF_OK;
}
