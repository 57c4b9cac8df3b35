/* read_cifar: CIFAR-10 and CIFAR-100 in their binary form.
 *
 * A batch is a row of images without a header:
 *   CIFAR-10    label (0 to 9), 3072 bytes                            3073 bytes an image
 *   CIFAR-100   coarse label (0 to 19), fine (0 to 99), 3072 bytes    3074
 * The 3072 bytes are red, green and blue planes of 32 rows of 32. A whole set is a folder of
 * batches or the official archive; a single batch is a table that may be split. All images of a
 * part stand in one piece of memory, so a column of the table is every 3073rd byte of it. */
#include "base/io.h"
#include "base/tar.h"
#include "data/data_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { pixels = 3 * 32 * 32, most_batches = 5 };
#define LARGEST_BATCH ((size_t)1 << 28) /* that of CIFAR-100 has 154 MB */

/* How one of the two sets is stored. */
typedef struct cifar_kind {
    const char *name;
    size_t record;  /* bytes of an image with its labels */
    int n_labels;   /* label bytes before the pixels */
    int classes[2]; /* of each label byte */
    const char *label_names[2];
    const char *train[most_batches + 1], *test[2]; /* files, NULL-terminated */
} cifar_kind;

static const cifar_kind kinds[] = {
    {"CIFAR-10",
     1 + pixels,
     1,
     {10},
     {"label"},
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin"},
     {"test_batch.bin"}},
    {"CIFAR-100", 2 + pixels, 2, {20, 100}, {"coarse", "fine"}, {"train.bin"}, {"test.bin"}},
};

/* --- images to a table ------------------------------------------------------------------------ */

static wf_status check_batch(wf_ctx *ctx, const char *label, const cifar_kind *kind,
                             const uint8_t *bytes, size_t size) {
    if (size == 0 || size % kind->record != 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: %zu bytes; expected whole %s images of %zu bytes, found %zu and %zu "
                       "bytes more: it is cut off, or no such batch",
                       label, size, kind->name, kind->record, size / kind->record,
                       size % kind->record);
    for (size_t r = 0; r < size / kind->record; r++)
        for (int k = 0; k < kind->n_labels; k++)
            if (bytes[r * kind->record + (size_t)k] >= kind->classes[k])
                return wf_fail(ctx, WF_ERR_INPUT,
                               "%s: image %zu has the %s%s %d; expected 0 to %d, as %s has them",
                               label, r, kind->label_names[k], kind->n_labels > 1 ? " label" : "",
                               bytes[r * kind->record + (size_t)k], kind->classes[k] - 1,
                               kind->name);
    return WF_OK;
}

/* The label byte that is asked for: the last one unless `target` names another. */
static wf_status choose_label(wf_ctx *ctx, const char *label, const cifar_kind *kind,
                              const char *target, int *out) {
    *out = kind->n_labels - 1;
    if (target == NULL || target[0] == 0) return WF_OK;
    for (int k = 0; k < kind->n_labels; k++)
        if (strcmp(target, kind->label_names[k]) == 0) {
            *out = k;
            return WF_OK;
        }
    return wf_fail(ctx, WF_ERR_USAGE, "%s: target is '%s'; labels of %s are %s%s%s", label, target,
                   kind->name, kind->label_names[0], kind->n_labels > 1 ? " and " : "",
                   kind->n_labels > 1 ? kind->label_names[1] : "");
}

/* Checked images, which become the table's. */
static wf_status make_table(wf_ctx *ctx, const char *label, const cifar_kind *kind,
                            const char *target, char *images, size_t size, wf_table *out) {
    int which;
    out->label = label;
    out->text = images;
    WF_TRY(choose_label(ctx, label, kind, target, &which));
    out->rows = size / kind->record;
    out->columns = pixels + 1;
    out->target = pixels;
    out->image[0] = 3;
    out->image[1] = out->image[2] = 32;
    out->column = wf_arena_zalloc(&out->arena, out->columns * sizeof *out->column);
    if (out->column == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label);
    const uint8_t *bytes = (const uint8_t *)images;
    for (int c = 0; c < pixels; c++) {
        const char *name =
            wf__arena_format(&out->arena, "pixel %d,%d,%d", c / 1024, c / 32 % 32, c % 32);
        if (name == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", label);
        out->column[c] =
            (wf_column){.name = name, .bytes = bytes + kind->n_labels + c, .stride = kind->record};
    }
    out->column[pixels] = (wf_column){
        .name = kind->label_names[which], .bytes = bytes + which, .stride = kind->record};
    return WF_OK;
}

wf_status wf__table_from_cifar(wf_ctx *ctx, const char *label, char *bytes, size_t size,
                               int classes, const char *target, wf_table *out) {
    const cifar_kind *kind = &kinds[classes == 100];
    wf_status status = check_batch(ctx, label, kind, (const uint8_t *)bytes, size);
    if (status == WF_OK) return make_table(ctx, label, kind, target, bytes, size, out);
    free(bytes);
    return status;
}

/* --- whole sets ------------------------------------------------------------------------------- */

/* The batches of a part as they were found; from a folder they are to be freed. */
typedef struct batches {
    const char *const *names;
    const uint8_t *bytes[most_batches];
    size_t size[most_batches];
} batches;

static wf_status join_batches(wf_ctx *ctx, const char *label, const cifar_kind *kind,
                              const char *target, const batches *from, wf_table *out) {
    size_t total = 0;
    for (int i = 0; from->names[i] != NULL; i++) {
        char place[512];
        snprintf(place, sizeof place, "%s: %s", label, from->names[i]);
        if (from->bytes[i] == NULL)
            return wf_fail(ctx, WF_ERR_INPUT, "%s is missing; %s has it", place, kind->name);
        WF_TRY(check_batch(ctx, place, kind, from->bytes[i], from->size[i]));
        total += from->size[i];
    }
    char *images, *at;
    WF_TRY(wf_alloc_raw(ctx, total, 1, "images", &images));
    at = images;
    for (int i = 0; from->names[i] != NULL; i++) {
        memcpy(at, from->bytes[i], from->size[i]);
        at += from->size[i];
    }
    return make_table(ctx, label, kind, target, images, total, out);
}

/* The place of the file in a part; -1: it is none of these. */
static int find_batch(const batches *part, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    for (int i = 0; part->names[i] != NULL; i++)
        if (strcmp(name, part->names[i]) == 0) return i;
    return -1;
}

static wf_status find_in_tar(wf_ctx *ctx, wf_tar *tar, batches parts[2]) {
    bool more;
    for (;;) {
        WF_TRY(wf_tar_next(ctx, tar, &more));
        if (!more) return WF_OK;
        for (int p = 0; p < 2; p++) {
            int i = find_batch(&parts[p], tar->name);
            if (i < 0) continue;
            if (parts[p].bytes[i] != NULL)
                return wf_fail(ctx, WF_ERR_INPUT, "%s: it has %s twice", tar->label,
                               parts[p].names[i]);
            parts[p].bytes[i] = tar->data;
            parts[p].size[i] = tar->data_size;
        }
    }
}

wf_status wf__cifar_from_tar(wf_ctx *ctx, const char *label, const char *bytes, size_t size,
                             int classes, const char *target, wf_table *train, wf_table *test) {
    const cifar_kind *kind = &kinds[classes == 100];
    batches parts[2] = {{.names = kind->train}, {.names = kind->test}};
    wf_tar tar = wf_tar_start(label, bytes, size);
    WF_TRY(find_in_tar(ctx, &tar, parts));
    WF_TRY(join_batches(ctx, label, kind, target, &parts[0], train));
    return join_batches(ctx, label, kind, target, &parts[1], test);
}

/* A batch of a folder, plain or with .gz after its name. */
static wf_status read_batch(wf_ctx *ctx, const char *folder, batches *part, int i) {
    char path[4096], *bytes;
    for (int packed = 0; packed < 2; packed++) {
        int length = snprintf(path, sizeof path, "%s/%s%s", folder, part->names[i],
                              packed == 1 ? ".gz" : "");
        if (length < 0 || (size_t)length >= sizeof path)
            return wf_fail(ctx, WF_ERR_INPUT, "%.200s...: the path is too long", folder);
        if (!wf_file_exists(path)) continue;
        WF_TRY(wf_read_file(ctx, path, LARGEST_BATCH, &bytes, &part->size[i]));
        part->bytes[i] = (const uint8_t *)bytes;
        return WF_OK;
    }
    return WF_OK;
}

static wf_status load_part(wf_ctx *ctx, const char *folder, const cifar_kind *kind,
                           const char *const *names, const char *target, wf_table *out) {
    batches part = {.names = names};
    wf_status status = WF_OK;
    for (int i = 0; names[i] != NULL && status == WF_OK; i++)
        status = read_batch(ctx, folder, &part, i);
    if (status == WF_OK) status = join_batches(ctx, folder, kind, target, &part, out);
    for (int i = 0; names[i] != NULL; i++) free((void *)part.bytes[i]);
    return status;
}

wf_status wf__cifar_from_folder(wf_ctx *ctx, const char *path, int classes, const char *target,
                                wf_table *train, wf_table *test) {
    const cifar_kind *kind = &kinds[classes == 100];
    WF_TRY(load_part(ctx, path, kind, kind->train, target, train));
    return load_part(ctx, path, kind, kind->test, target, test);
}
