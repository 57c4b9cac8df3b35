/* zoo_write: collections as files (zoo_file.c has the format), at once or network by network. */
#include "zoo/zoo_file.h"

#include "graph/describe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    n_own_meta = 4,
    max_extra_tensors = 3 + 2 * WF_ZOO_TESTS,
    max_meta = sizeof((wf_zoo_extra *)0)->meta / sizeof(const char *[2])
};

static size_t add_column(wf_st_tensor *tensors, size_t n, const char *name, wf_st_dtype dtype,
                         size_t count, const void *data) {
    if (data == NULL) return n;
    tensors[n] = (wf_st_tensor){.name = name,
                                .dtype = dtype,
                                .rank = 1,
                                .shape = {count},
                                .count = count,
                                .bytes = count * wf_st_dtype_size(dtype),
                                .data = data};
    return n + 1;
}

/* Names are kept in `names`, which outlives the write. */
static size_t add_tests(wf_st_tensor *tensors, size_t n, char (*names)[2][128], size_t count,
                        const wf_zoo_extra *extra) {
    for (int t = 0; t < extra->n_tests; t++) {
        char *score = names[t][0], *errors = names[t][1];
        snprintf(score, sizeof names[t][0], "%s%s", wf__zoo_score_prefix, extra->test_names[t]);
        snprintf(errors, sizeof names[t][1], "%s%s", wf__zoo_errors_prefix, extra->test_names[t]);
        n = add_column(tensors, n, score, WF_ST_F32, count, extra->scores[t]);
        if (extra->errors[t] == NULL) continue;
        size_t bytes = extra->error_bytes[t];
        n = add_column(tensors, n, errors, WF_ST_U8, count * bytes, extra->errors[t]);
        tensors[n - 1].rank = 2;
        tensors[n - 1].shape[0] = count;
        tensors[n - 1].shape[1] = bytes;
    }
    return n;
}

bool wf__zoo_own_key(const char *key) {
    return strcmp(key, "weft.format") == 0 || strcmp(key, "weft.graph") == 0 ||
           strcmp(key, "weft.arch") == 0 || strcmp(key, "weft.activation") == 0;
}

/* The keys that describe the graph are ours: a caller may hand on all metadata of another file. */
static size_t gather_meta(const wf_graph *graph, const char *json, const wf_zoo_extra *extra,
                          const char *meta[][2]) {
    const char *own[n_own_meta][2] = {{"weft.format", wf__zoo_format},
                                      {"weft.graph", json},
                                      {"weft.arch", graph->text},
                                      {"weft.activation", wf_activation_name(graph->activation)}};
    memcpy(meta, own, sizeof own);
    size_t n = n_own_meta;
    for (int i = 0; i < extra->n_meta; i++) {
        if (extra->meta[i][1] == NULL || wf__zoo_own_key(extra->meta[i][0])) continue;
        meta[n][0] = extra->meta[i][0];
        meta[n][1] = extra->meta[i][1];
        n++;
    }
    return n;
}

static wf_status check_extra(wf_ctx *ctx, const char *path, size_t count,
                             const wf_zoo_extra *extra) {
    if (count == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: a collection needs at least one network", path);
    if (extra->n_tests < 0 || extra->n_tests > WF_ZOO_TESTS || extra->n_meta < 0 ||
        extra->n_meta > max_meta)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: %d test sets and %d metadata keys do not fit", path,
                       extra->n_tests, extra->n_meta);
    for (int t = 0; t < extra->n_tests; t++) {
        if (extra->test_names[t] == NULL || extra->test_names[t][0] == 0 ||
            strlen(extra->test_names[t]) > 100)
            return wf_fail(ctx, WF_ERR_USAGE, "%s: test set %d needs a name of 1 to 100 characters",
                           path, t);
        if (extra->errors[t] != NULL && extra->error_bytes[t] == 0)
            return wf_fail(ctx, WF_ERR_USAGE, "%s: the error masks of %s have no bytes", path,
                           extra->test_names[t]);
    }
    return WF_OK;
}

/* Stacks the networks block by block (I1): block b starts at stacked + count * offset. */
static wf_status stack_networks(wf_ctx *ctx, const wf_graph *graph, wf_zoo_source *source,
                                void *user, size_t count, float *stacked) {
    float *w;
    WF_TRY(wf_alloc(ctx, graph->n_params, sizeof *w, "one network", &w));
    for (size_t i = 0; i < count; i++) {
        source(user, i, w);
        for (int b = 0; b < graph->n_blocks; b++) {
            const wf_block *block = &graph->blocks[b];
            memcpy(stacked + count * block->offset + i * block->count, w + block->offset,
                   block->count * sizeof *w);
        }
    }
    free(w);
    return WF_OK;
}

/* All tensors of a collection, the blocks first; block b's data are at stacked + count * offset. */
typedef struct collection_tensors {
    size_t n, n_meta;
    wf_st_tensor *tensors;
    char *json; /* the description */
    char names[WF_ZOO_TESTS][2][128];
    const char *meta[n_own_meta + max_meta][2];
} collection_tensors;

static void free_tensors(collection_tensors *all) {
    free(all->tensors);
    free(all->json);
}

static wf_status describe(wf_ctx *ctx, const wf_graph *graph, const float *stacked, size_t count,
                          const wf_zoo_extra *extra, collection_tensors *out) {
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks + max_extra_tensors, sizeof *out->tensors,
                    "collection header", &out->tensors));
    WF_TRY(wf_graph_json(ctx, graph, &out->json));
    size_t n = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        out->tensors[n] = wf__zoo_block_tensor(graph, &graph->blocks[b], count);
        if (stacked != NULL) out->tensors[n].data = stacked + count * graph->blocks[b].offset;
        n++;
    }
    n = add_column(out->tensors, n, "weft.seed", WF_ST_I64, count, extra->seeds);
    n = add_column(out->tensors, n, "weft.lr", WF_ST_F32, count, extra->lr);
    n = add_column(out->tensors, n, "weft.epochs", WF_ST_I32, count, extra->epochs);
    out->n = add_tests(out->tensors, n, out->names, count, extra);
    out->n_meta = gather_meta(graph, out->json, extra, out->meta);
    return WF_OK;
}

wf_status wf_zoo_write_from(wf_ctx *ctx, const char *path, const wf_graph *graph,
                            wf_zoo_source *source, void *user, size_t count,
                            const wf_zoo_extra *extra) {
    static const wf_zoo_extra none;
    if (extra == NULL) extra = &none;
    WF_TRY(check_extra(ctx, path, count, extra));
    wf_status status = WF_OK;
    float *stacked = NULL;
    collection_tensors all = {0};
    WF_TRY_GOTO(wf_alloc(ctx, count, graph->n_params * sizeof(float), "collection", &stacked),
                done);
    WF_TRY_GOTO(stack_networks(ctx, graph, source, user, count, stacked), done);
    WF_TRY_GOTO(describe(ctx, graph, stacked, count, extra, &all), done);
    status =
        wf_st_write(ctx, path, all.tensors, all.n, (const char *const(*)[2])all.meta, all.n_meta);
done:
    free_tensors(&all);
    free(stacked);
    return status;
}

/* --- writing network by network --------------------------------------------------------------- */

enum { staged_bytes = 1 << 20 };

struct wf_zoo_stream {
    const wf_graph *graph;
    size_t count;
    char *path;
    wf_st_stream *file;
};

wf_status wf_zoo_stream_open(wf_ctx *ctx, const char *path, const wf_graph *graph, size_t count,
                             const wf_zoo_extra *extra, wf_zoo_stream **out) {
    *out = NULL;
    WF_TRY(check_extra(ctx, path, count, extra));
    wf_zoo_stream *stream;
    collection_tensors all = {0};
    WF_TRY(wf_alloc(ctx, 1, sizeof *stream, path, &stream));
    *stream = (wf_zoo_stream){graph, count, strdup(path), NULL};
    wf_status status = stream->path != NULL
                           ? describe(ctx, graph, NULL, count, extra, &all)
                           : wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    if (status == WF_OK)
        status = wf_st_stream_open(ctx, path, all.tensors, all.n, (const char *const(*)[2])all.meta,
                                   all.n_meta, &stream->file);
    free_tensors(&all);
    if (status == WF_OK) *out = stream;
    else wf_zoo_stream_abort(stream);
    return status;
}

/* Block by block, many networks staged side by side: a system call for each would cost more than
 * the copy. */
int wf_zoo_stream_put(const wf_zoo_stream *stream, size_t first, size_t count,
                      const float *weights) {
    const wf_graph *graph = stream->graph;
    char *staged = malloc(staged_bytes);
    int failed = staged == NULL ? ENOMEM : 0;
    for (int b = 0; b < graph->n_blocks && !failed; b++) {
        const wf_block *block = &graph->blocks[b];
        size_t bytes = block->count * sizeof(float);
        size_t at_once = bytes < staged_bytes ? staged_bytes / bytes : 1;
        for (size_t i = 0; i < count && !failed; i += at_once) {
            size_t n = count - i < at_once ? count - i : at_once;
            const float *from = weights + i * graph->n_params + block->offset;
            for (size_t k = 0; k < n && n > 1; k++)
                memcpy(staged + k * bytes, from + k * graph->n_params, bytes);
            failed = wf_st_stream_put(stream->file, (size_t)b, (first + i) * bytes,
                                      n > 1 ? (const void *)staged : from, n * bytes);
        }
    }
    free(staged);
    return failed;
}

int wf_zoo_stream_get(const wf_zoo_stream *stream, size_t index, float *w) {
    int failed = 0;
    for (int b = 0; b < stream->graph->n_blocks && !failed; b++) {
        const wf_block *block = &stream->graph->blocks[b];
        size_t bytes = block->count * sizeof(float);
        failed = wf_st_stream_get(stream->file, (size_t)b, index * bytes, w + block->offset, bytes);
    }
    return failed;
}

wf_status wf_zoo_stream_commit(wf_ctx *ctx, wf_zoo_stream *stream, const wf_zoo_extra *extra) {
    collection_tensors all = {0};
    wf_status status = describe(ctx, stream->graph, NULL, stream->count, extra, &all);
    for (size_t i = (size_t)stream->graph->n_blocks; i < all.n && status == WF_OK; i++) {
        errno = wf_st_stream_put(stream->file, i, 0, all.tensors[i].data, all.tensors[i].bytes);
        if (errno != 0)
            status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", stream->path);
    }
    free_tensors(&all);
    if (status == WF_OK) {
        status = wf_st_stream_commit(ctx, stream->file);
        stream->file = NULL;
    }
    wf_zoo_stream_abort(stream);
    return status;
}

void wf_zoo_stream_abort(wf_zoo_stream *stream) {
    if (stream == NULL) return;
    wf_st_stream_abort(stream->file);
    free(stream->path);
    free(stream);
}

typedef struct matrix_source {
    const float *weights;
    size_t n_params;
} matrix_source;

static void matrix_row(void *user, size_t index, float *w) {
    const matrix_source *matrix = user;
    memcpy(w, matrix->weights + index * matrix->n_params, matrix->n_params * sizeof *w);
}

wf_status wf_zoo_write(wf_ctx *ctx, const char *path, const wf_graph *graph, const float *weights,
                       size_t count, const wf_zoo_extra *extra) {
    matrix_source matrix = {weights, graph->n_params};
    return wf_zoo_write_from(ctx, path, graph, matrix_row, &matrix, count, extra);
}
