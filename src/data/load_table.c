/* load_table: from a path to a table: where the file lies, which format it has. */
#include "base/io.h"
#include "base/tar.h"
#include "data/data_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define LARGEST_FILE ((size_t)4 << 30)

#define LARGEST_CIFAR ((size_t)1 << 29) /* the archives unpack to 184 MB */

typedef enum format {
    FORMAT_IDX,
    FORMAT_CSV,
    FORMAT_TSV,
    FORMAT_ARFF,
    FORMAT_NPZ,
    FORMAT_CIFAR10,
    FORMAT_CIFAR100,
    N_FORMATS
} format;

/* Relative paths: under desc->root if there is one, else under WEFT_DATA if the file is there, else
 * from the working folder. */
static wf_status find_file(wf_ctx *ctx, const wf_data_desc *desc, const char *path, wf_arena *arena,
                           const char **out) {
    const char *folder = desc->root != NULL ? desc->root : getenv("WEFT_DATA");
    bool under = path[0] != '/' && folder != NULL && folder[0] != 0;
    *out = wf__arena_format(arena, "%s%s%s", under ? folder : "", under ? "/" : "", path);
    if (*out == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    if (wf_file_exists(*out)) return WF_OK;
    if (under && desc->root == NULL && wf_file_exists(path)) {
        *out = wf__arena_format(arena, "%s", path);
        return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    }
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: there is no such file%s; data sets are looked up under the folder that "
                   "WEFT_DATA names, then in the working folder",
                   *out, under && desc->root == NULL ? ", nor in the working folder" : "");
}

static bool ends_with(const char *text, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length >= n && strncasecmp(text + length - n, ending, n) == 0;
}

static wf_status choose_format(wf_ctx *ctx, const wf_data_desc *desc, const char *path,
                               format *out) {
    static const char *const names[N_FORMATS] = {"idx", "csv",     "tsv",     "arff",
                                                 "npz", "cifar10", "cifar100"};
    bool automatic = desc->format == NULL || strcmp(desc->format, "auto") == 0;
    for (int k = 0; !automatic && k < N_FORMATS; k++)
        if (strcmp(desc->format, names[k]) == 0) {
            *out = (format)k;
            return WF_OK;
        }
    if (!automatic)
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "data: format is '%s'; it must be auto, idx, csv, tsv, arff, npz, cifar10 or "
            "cifar100",
            desc->format);
    size_t length = strlen(path);
    if (ends_with(path, length, ".gz")) length -= 3;
    if (ends_with(path, length, ".csv")) *out = FORMAT_CSV;
    else if (ends_with(path, length, ".tsv") || ends_with(path, length, ".tab")) *out = FORMAT_TSV;
    else if (ends_with(path, length, ".arff")) *out = FORMAT_ARFF;
    else if (ends_with(path, length, ".npz")) *out = FORMAT_NPZ;
    else if (ends_with(path, length, ".npy"))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: one array holds inputs or labels, not both; save them together: "
                       "numpy.savez('data.npz', X=X, y=y)",
                       path);
    else if (ends_with(path, length, ".idx") || ends_with(path, length, "-ubyte"))
        *out = FORMAT_IDX;
    else if (strcasestr(path, "cifar-100") != NULL) *out = FORMAT_CIFAR100;
    else if (strcasestr(path, "cifar-10") != NULL) *out = FORMAT_CIFAR10;
    else
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: its name does not tell the format (.csv, .tsv, .arff, .idx or -ubyte, "
                       "with or without .gz, .npz, or cifar-10 or cifar-100 in it); say format = "
                       "idx, csv, tsv, arff, npz, cifar10 or cifar100",
                       path);
    return WF_OK;
}

/* Bytes with a NUL are not text: the reader will refuse them. */
static bool is_no_text(const char *bytes, size_t size, size_t fresh) {
    return memchr(bytes + size - fresh, 0, fresh) != NULL;
}

static wf_status load_idx(wf_ctx *ctx, const wf_data_desc *desc, const char *images,
                          const char *labels, wf_table *out) {
    const char *labels_path;
    char *image_bytes, *label_bytes;
    size_t image_size, label_size;
    if (labels == NULL || labels[0] == 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: an IDX file holds no labels; name the file that does under labels",
                       images);
    WF_TRY(find_file(ctx, desc, labels, &out->arena, &labels_path));
    WF_TRY(
        wf_read_until(ctx, labels_path, LARGEST_FILE, wf__idx_is_over, &label_bytes, &label_size));
    wf_status status =
        wf_read_until(ctx, images, LARGEST_FILE, wf__idx_is_over, &image_bytes, &image_size);
    if (status == WF_OK)
        status = wf__table_from_idx(ctx, images, image_bytes, image_size, labels_path, label_bytes,
                                    label_size, out);
    free(label_bytes);
    return status;
}

/* Without a header at its beginning it is no archive: the reader will refuse it. */
static bool is_no_tar(const char *bytes, size_t size, size_t fresh) {
    bool more;
    wf_tar tar = wf_tar_start("", bytes, size);
    return size == fresh && size >= 1024 && wf_tar_next(NULL, &tar, &more) == WF_OK && !more;
}

/* A single batch, or a folder or archive with both parts. */
static wf_status load_cifar(wf_ctx *ctx, const wf_data_desc *desc, const char *found, int classes,
                            wf_table *out, wf_table *test) {
    struct stat info;
    char *bytes;
    size_t size, length = strlen(found);
    bool folder = stat(found, &info) == 0 && S_ISDIR(info.st_mode);
    bool archive = ends_with(found, length, ".tar") || ends_with(found, length, ".tar.gz") ||
                   ends_with(found, length, ".tgz");
    if ((folder || archive) && test == NULL)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: it brings its own test part, so it goes under path alone; name one "
                       "batch (.bin) here",
                       found);
    if (folder) return wf__cifar_from_folder(ctx, found, classes, desc->target, out, test);
    WF_TRY(wf_read_until(ctx, found, LARGEST_CIFAR, archive ? is_no_tar : NULL, &bytes, &size));
    if (!archive) return wf__table_from_cifar(ctx, found, bytes, size, classes, desc->target, out);
    wf_status status =
        wf__cifar_from_tar(ctx, found, bytes, size, classes, desc->target, out, test);
    free(bytes);
    return status;
}

static wf_status load_npz(wf_ctx *ctx, const wf_data_desc *desc, const char *found, wf_table *out,
                          wf_table *test) {
    wf_map map = {0};
    WF_TRY(wf_map_open(ctx, found, &map));
    wf_status status = wf__table_from_npz(ctx, found, map.data, map.size, desc->target, out, test);
    wf_map_close(&map);
    return status;
}

wf_status wf__table_load(wf_ctx *ctx, const wf_data_desc *desc, const char *path,
                         const char *labels, wf_table *out, wf_table *test) {
    const char *found;
    format how = FORMAT_CSV;
    char *bytes;
    size_t size;
    WF_TRY(choose_format(ctx, desc, path, &how));
    WF_TRY(find_file(ctx, desc, path, &out->arena, &found));
    if (how == FORMAT_IDX) return load_idx(ctx, desc, found, labels, out);
    if (labels != NULL && labels[0] != 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: a separate file of labels goes with IDX only; name the label column "
                       "under target",
                       found);
    if (how == FORMAT_NPZ) return load_npz(ctx, desc, found, out, test);
    if (how == FORMAT_CIFAR10 || how == FORMAT_CIFAR100)
        return load_cifar(ctx, desc, found, how == FORMAT_CIFAR100 ? 100 : 10, out, test);
    WF_TRY(wf_read_until(ctx, found, LARGEST_FILE, is_no_text, &bytes, &size));
    if (how == FORMAT_ARFF) return wf__table_from_arff(ctx, found, bytes, size, out);
    return wf__table_from_delimited(ctx, found, bytes, size, how == FORMAT_TSV ? '\t' : ',', out);
}
