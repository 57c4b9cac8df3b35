/* zoo_file: a collection of M networks of one architecture, one safetensors file.
 *
 *   layers.0.weight [M,out,in]  layers.0.bias [M,out] ...    F32, one tensor per block of the graph
 *   weft.seed [M] I64   weft.lr [M] F32   weft.epochs [M] I32        where known
 *   weft.score.S [M] F32   weft.errors.S [M,bytes] U8                for each test set S
 *   __metadata__: weft.format "collection 1", weft.graph (JSON), and what the writer adds; for
 *                 people and for version 0.1, which had no weft.graph: weft.arch, weft.activation
 *
 * I1  In memory a network is flat, block after block; in the file each block is stacked over
 *     networks.
 * I2  An open collection was checked whole: every block is there, F32, and has the shape that
 *     the description says; a tensor that is neither a block nor named weft.* is refused.
 * I3  Weights and error masks stay in the mapping; the small typed columns are copied, because
 *     tensors in a file may be unaligned.
 * The writer is zoo_write.c. Collections without a file are in zoo_memory.c, those of several
 * files in zoo_select.c. */
#include "zoo/zoo_file.h"

#include "base/comm.h"
#include "base/pool.h"
#include "graph/describe.h"
#include "weft/text.h"
#include "zoo/torch_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char wf__zoo_format[] = "collection 1";
const char wf__zoo_score_prefix[] = "weft.score.";
const char wf__zoo_errors_prefix[] = "weft.errors.";

/* --- shapes ----------------------------------------------------------------------------------- */

/* The tensor of PyTorch with the networks in front: [M,out,in], [M,out], [M,out,in,3,3]. */
wf_st_tensor wf__zoo_block_tensor(const wf_graph *graph, const wf_block *block, size_t count) {
    wf_st_tensor tensor = {.name = block->name, .dtype = WF_ST_F32};
    tensor.rank = 1 + wf_block_shape(graph, block, tensor.shape + 1);
    tensor.shape[0] = count;
    tensor.count = count * block->count;
    tensor.bytes = tensor.count * sizeof(float);
    return tensor;
}

static bool same_shape(const wf_st_tensor *a, const wf_st_tensor *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

static const char *shape_text(const wf_st_tensor *tensor, char *out, size_t size) {
    wf_text text = wf_text_start(out, size);
    wf_text_add(&text, "[");
    for (int i = 0; i < tensor->rank; i++) wf_text_add(&text, i ? ",%zu" : "%zu", tensor->shape[i]);
    wf_text_add(&text, "]");
    return out;
}

/* --- reading ---------------------------------------------------------------------------------- */

static wf_status read_graph(wf_ctx *ctx, wf_zoo *zoo) {
    const char *format = wf_st_meta(zoo->file, "weft.format");
    const char *json = wf_st_meta(zoo->file, "weft.graph");
    const char *arch = wf_st_meta(zoo->file, "weft.arch");
    const char *activation = wf_st_meta(zoo->file, "weft.activation");
    if (format != NULL && strcmp(format, wf__zoo_format) != 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: weft.format is \"%s\", a collection has \"%s\"",
                       zoo->path, format, wf__zoo_format);
    if (wf_st_meta(zoo->file, "weft.kind") != NULL) /* of a flow, or another generator */
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: a generator, not a collection of networks; draw some from it: weft sample "
            "%s -o new.safetensors",
            zoo->path, zoo->path);
    if (json == NULL && (arch == NULL || activation == NULL))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: not a collection: __metadata__ has no %s; bring other files in with "
                       "weft zoo import",
                       zoo->path, arch == NULL ? "weft.arch" : "weft.activation");
    wf_status status = json != NULL ? wf_graph_from_json(ctx, json, 0, &zoo->graph)
                                    : wf__graph_parse_text(ctx, arch, activation, 0, &zoo->graph);
    if (status == WF_ERR_MEMORY) return status;
    if (status == WF_OK && json != NULL && arch != NULL && strcmp(arch, zoo->graph->text) != 0)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: weft.arch is %.60s, but weft.graph describes %.60s; the file is damaged",
            zoo->path, arch, zoo->graph->text);
    if (status == WF_OK) return WF_OK;
    if (json != NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: weft.graph: %s", zoo->path, wf_last_error(ctx));
    return wf_fail(ctx, WF_ERR_INPUT, "%s: weft.arch \"%s\" with weft.activation \"%s\": %s",
                   zoo->path, arch, activation, wf_last_error(ctx));
}

static wf_status read_blocks(wf_ctx *ctx, wf_zoo *zoo) {
    const wf_graph *graph = zoo->graph;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *zoo->blocks, "collection blocks",
                    &zoo->blocks));
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *zoo->strides, "collection blocks",
                    &zoo->strides));
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        const wf_st_tensor *tensor = wf_st_find(zoo->file, block->name);
        if (tensor == NULL)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: %s needs a tensor \"%s\", which is missing",
                           zoo->path, graph->text, block->name);
        if (b == 0 && tensor->rank > 0) zoo->count = tensor->shape[0];
        wf_st_tensor expected = wf__zoo_block_tensor(graph, block, zoo->count);
        char have[160], want[160];
        if (tensor->dtype != WF_ST_F32 || !same_shape(tensor, &expected))
            return wf_fail(ctx, WF_ERR_SHAPE,
                           "%s: \"%s\" is %s %s, %s with %zu networks needs F32 %s", zoo->path,
                           block->name, wf_st_dtype_name(tensor->dtype),
                           shape_text(tensor, have, sizeof have), graph->text, zoo->count,
                           shape_text(&expected, want, sizeof want));
        zoo->blocks[b] = tensor->data;
        zoo->strides[b] = block->count * sizeof(float);
    }
    if (zoo->count == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the collection has no networks", zoo->path);
    return WF_OK;
}

/* Copies a column [M] of the given type; absent is fine. */
static wf_status read_column(wf_ctx *ctx, const wf_zoo *zoo, const char *name, wf_st_dtype dtype,
                             void *out_pointer) {
    const wf_st_tensor *tensor = wf_st_find(zoo->file, name);
    if (tensor == NULL) return WF_OK;
    char have[160];
    if (tensor->dtype != dtype || tensor->rank != 1 || tensor->shape[0] != zoo->count)
        return wf_fail(ctx, WF_ERR_SHAPE, "%s: \"%s\" is %s %s, expected %s [%zu]", zoo->path, name,
                       wf_st_dtype_name(tensor->dtype), shape_text(tensor, have, sizeof have),
                       wf_st_dtype_name(dtype), zoo->count);
    void *copy;
    WF_TRY(wf_alloc(ctx, zoo->count, wf_st_dtype_size(dtype), name, &copy));
    memcpy(copy, tensor->data, tensor->bytes);
    memcpy(out_pointer, &copy, sizeof copy);
    return WF_OK;
}

wf_status wf__zoo_test_entry(wf_ctx *ctx, wf_zoo *zoo, const char *name, wf_zoo_test_set **out) {
    for (int t = 0; t < zoo->n_tests; t++) {
        *out = &zoo->tests[t];
        if (strcmp(zoo->tests[t].name, name) == 0) return WF_OK;
    }
    if (zoo->n_tests == WF_ZOO_TESTS)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: more than %d test sets", zoo->path, WF_ZOO_TESTS);
    char *copy = strdup(name);
    if (copy == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", zoo->path);
    *out = &zoo->tests[zoo->n_tests++];
    (*out)->name = copy;
    return WF_OK;
}

static wf_status read_tests(wf_ctx *ctx, wf_zoo *zoo) {
    for (size_t i = 0; i < wf_st_count(zoo->file); i++) {
        const wf_st_tensor *tensor = wf_st_at(zoo->file, i);
        wf_zoo_test_set *test;
        if (strncmp(tensor->name, wf__zoo_score_prefix, strlen(wf__zoo_score_prefix)) == 0) {
            WF_TRY(
                wf__zoo_test_entry(ctx, zoo, tensor->name + strlen(wf__zoo_score_prefix), &test));
            WF_TRY(read_column(ctx, zoo, tensor->name, WF_ST_F32, &test->scores));
        } else if (strncmp(tensor->name, wf__zoo_errors_prefix, strlen(wf__zoo_errors_prefix)) ==
                   0) {
            WF_TRY(
                wf__zoo_test_entry(ctx, zoo, tensor->name + strlen(wf__zoo_errors_prefix), &test));
            char have[160];
            if (tensor->dtype != WF_ST_U8 || tensor->rank != 2 || tensor->shape[0] != zoo->count)
                return wf_fail(ctx, WF_ERR_SHAPE, "%s: \"%s\" is %s %s, expected U8 [%zu,bytes]",
                               zoo->path, tensor->name, wf_st_dtype_name(tensor->dtype),
                               shape_text(tensor, have, sizeof have), zoo->count);
            test->errors = tensor->data;
            test->error_bytes = tensor->shape[1];
        }
    }
    return WF_OK;
}

static wf_status refuse_strangers(wf_ctx *ctx, const wf_zoo *zoo) {
    for (size_t i = 0; i < wf_st_count(zoo->file); i++) {
        const char *name = wf_st_at(zoo->file, i)->name;
        bool known = strncmp(name, "weft.", 5) == 0;
        for (int b = 0; b < zoo->graph->n_blocks && !known; b++)
            known = strcmp(name, zoo->graph->blocks[b].name) == 0;
        if (!known)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: tensor \"%s\" does not belong to %s", zoo->path,
                           name, zoo->graph->text);
    }
    return WF_OK;
}

/* Checkpoints in place of a collection: says how to make one of them. */
static wf_status refuse_checkpoints(wf_ctx *ctx, const char *path) {
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode), torch = false;
    if (!folder) WF_TRY(wf_torch_recognise(ctx, path, &torch));
    if (!folder && !torch) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s is %s, not a collection; bring networks in first: weft zoo import %s "
                   "--activation relu -o mine.safetensors",
                   path, folder ? "a folder" : "a file of torch.save", path);
}

static wf_status read_collection(wf_ctx *ctx, wf_zoo *zoo) {
    WF_TRY(refuse_checkpoints(ctx, zoo->path));
    WF_TRY(wf_st_open(ctx, zoo->path, &zoo->file));
    WF_TRY(read_graph(ctx, zoo));
    WF_TRY(read_blocks(ctx, zoo));
    WF_TRY(refuse_strangers(ctx, zoo));
    WF_TRY(read_column(ctx, zoo, "weft.seed", WF_ST_I64, &zoo->seeds));
    WF_TRY(read_column(ctx, zoo, "weft.lr", WF_ST_F32, &zoo->rates));
    WF_TRY(read_column(ctx, zoo, "weft.epochs", WF_ST_I32, &zoo->epochs));
    return read_tests(ctx, zoo);
}

wf_status wf_zoo_open(wf_ctx *ctx, const char *path, wf_zoo **out) {
    *out = NULL;
    wf_zoo *zoo = calloc(1, sizeof *zoo);
    if (zoo != NULL) zoo->path = strdup(path);
    if (zoo == NULL || zoo->path == NULL) {
        wf_zoo_free(zoo);
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    }
    wf_status status =
        wf__zoo_is_pattern(path) ? wf__zoo_open_files(ctx, zoo) : read_collection(ctx, zoo);
    if (status != WF_OK) {
        wf_zoo_free(zoo);
        return status;
    }
    *out = zoo;
    return WF_OK;
}

void wf__zoo_free_columns(wf_zoo *zoo) {
    for (int t = 0; t < zoo->n_tests; t++) {
        free(zoo->tests[t].name);
        free(zoo->tests[t].scores);
        free(zoo->tests[t].own_errors);
    }
    free(zoo->epochs);
    free(zoo->rates);
    free(zoo->seeds);
    zoo->n_tests = 0;
    zoo->epochs = NULL;
    zoo->rates = NULL;
    zoo->seeds = NULL;
}

void wf_zoo_free(wf_zoo *zoo) {
    if (zoo == NULL) return;
    wf__zoo_free_columns(zoo);
    for (size_t p = 0; p < zoo->n_parts; p++) wf_zoo_free(zoo->parts[p]);
    free(zoo->parts);
    free(zoo->firsts);
    for (size_t i = 0; i < zoo->n_meta; i++) {
        free(zoo->meta[i][0]);
        free(zoo->meta[i][1]);
    }
    free(zoo->meta);
    free(zoo->own);
    free(zoo->strides);
    free(zoo->blocks);
    wf_graph_free(zoo->graph);
    if (zoo->file != NULL) wf_st_close(zoo->file);
    free(zoo->path);
    free(zoo);
}

const wf_graph *wf_zoo_graph(const wf_zoo *zoo) { return zoo->graph; }
size_t wf_zoo_count(const wf_zoo *zoo) { return zoo->count; }
const char *wf_zoo_path(const wf_zoo *zoo) { return zoo->path; }
bool wf_zoo_in_memory(const wf_zoo *zoo) { return zoo->file == NULL && zoo->n_parts == 0; }

const char *wf_zoo_meta(const wf_zoo *zoo, const char *key) {
    if (zoo->file != NULL) return wf_st_meta(zoo->file, key);
    for (size_t i = 0; i < zoo->n_meta; i++)
        if (strcmp(zoo->meta[i][0], key) == 0) return zoo->meta[i][1];
    return NULL;
}

size_t wf_zoo_meta_count(const wf_zoo *zoo) {
    return zoo->file != NULL ? wf_st_meta_count(zoo->file) : zoo->n_meta;
}

void wf_zoo_meta_at(const wf_zoo *zoo, size_t index, const char **key, const char **value) {
    if (zoo->file != NULL) wf_st_meta_at(zoo->file, index, key, value);
    else *key = zoo->meta[index][0], *value = zoo->meta[index][1];
}

const float *wf_zoo_tensor(const wf_zoo *zoo, int index, size_t *stride) {
    if (index < 0 || index >= zoo->graph->n_blocks || zoo->n_parts > 0) return NULL;
    *stride = zoo->strides[index] / sizeof(float);
    return (const float *)(const void *)zoo->blocks[index];
}

const int64_t *wf_zoo_seeds(const wf_zoo *zoo) { return zoo->seeds; }
const float *wf_zoo_rates(const wf_zoo *zoo) { return zoo->rates; }
const int32_t *wf_zoo_epochs(const wf_zoo *zoo) { return zoo->epochs; }

static const wf_zoo_test_set *find_test(const wf_zoo *zoo, const char *name) {
    for (int t = 0; t < zoo->n_tests; t++)
        if (name == NULL || strcmp(zoo->tests[t].name, name) == 0) return &zoo->tests[t];
    return NULL;
}

const char *wf_zoo_test(const wf_zoo *zoo, int index) {
    return index >= 0 && index < zoo->n_tests ? zoo->tests[index].name : NULL;
}

const float *wf_zoo_scores(const wf_zoo *zoo, const char *test) {
    const wf_zoo_test_set *found = find_test(zoo, test);
    return found == NULL ? NULL : found->scores;
}

const uint8_t *wf_zoo_errors(const wf_zoo *zoo, const char *test, size_t *bytes_each) {
    const wf_zoo_test_set *found = find_test(zoo, test);
    *bytes_each = found == NULL ? 0 : found->error_bytes;
    return found == NULL ? NULL : found->errors;
}

/* The part that holds a network. */
static size_t part_of(const wf_zoo *zoo, size_t index) {
    size_t low = 0, high = zoo->n_parts;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (zoo->firsts[middle] <= index) low = middle;
        else high = middle;
    }
    return low;
}

void wf_zoo_get(const wf_zoo *zoo, size_t index, float *w) {
    if (zoo->n_parts > 0) {
        size_t part = part_of(zoo, index);
        wf_zoo_get(zoo->parts[part], index - zoo->firsts[part], w);
        return;
    }
    for (int b = 0; b < zoo->graph->n_blocks; b++) {
        const wf_block *block = &zoo->graph->blocks[b];
        memcpy(w + block->offset, zoo->blocks[b] + index * zoo->strides[b],
               block->count * sizeof(float));
    }
}

void wf__zoo_give_back(const wf_zoo *zoo, size_t first, size_t count) {
    size_t part = zoo->n_parts > 0 ? part_of(zoo, first) : 0;
    for (; part < zoo->n_parts && zoo->firsts[part] < first + count; part++) {
        size_t start = zoo->firsts[part], end = start + zoo->parts[part]->count;
        size_t from = first > start ? first : start;
        size_t to = first + count < end ? first + count : end;
        wf__zoo_give_back(zoo->parts[part], from - start, to - from);
    }
    for (int b = 0; zoo->file != NULL && b < zoo->graph->n_blocks; b++)
        wf_st_give_back(zoo->file, zoo->blocks[b] + first * zoo->strides[b],
                        count * zoo->strides[b]);
}

typedef struct load_call {
    const wf_zoo *zoo;
    size_t first, count;
    float *weights;
} load_call;

enum { networks_in_a_chunk = 64 };

static void load_chunk(void *call_, size_t chunk, int worker) {
    (void)worker;
    const load_call *call = call_;
    size_t i = chunk * networks_in_a_chunk, end = i + networks_in_a_chunk;
    for (; i < end && i < call->count; i++)
        wf_zoo_get(call->zoo, call->first + i, call->weights + i * call->zoo->graph->n_params);
}

wf_status wf_zoo_verify(wf_ctx *ctx, const wf_zoo *zoo) {
    for (size_t p = 0; p < zoo->n_parts; p++) WF_TRY(wf_zoo_verify(ctx, zoo->parts[p]));
    return zoo->file == NULL ? WF_OK : wf_st_verify(ctx, zoo->file, NULL);
}

wf_status wf_zoo_same(wf_ctx *ctx, const wf_zoo *zoo) {
    const char *digest = wf_zoo_meta(zoo, "weft.digest");
    char text[256];
    snprintf(text, sizeof text, "%zu networks of %.100s, %.60s", wf_zoo_count(zoo),
             zoo->graph->text, digest != NULL ? digest : "");
    return wf_same(ctx, wf_zoo_path(zoo), text);
}

wf_status wf_zoo_load(wf_ctx *ctx, const wf_zoo *zoo, size_t first, size_t count, float **out) {
    *out = NULL;
    if (first > zoo->count || count > zoo->count - first)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: networks %zu to %zu were asked for, the collection has %zu", zoo->path,
                       first, first + count, zoo->count);
    /* A call that reads all of it also checks that it is what was written. */
    if (count == zoo->count) WF_TRY(wf_zoo_verify(ctx, zoo));
    size_t n_params = zoo->graph->n_params;
    float *weights;
    WF_TRY(wf_alloc_raw(ctx, count, n_params * sizeof(float), "weights of a collection", &weights));
    load_call call = {zoo, first, count, weights};
    size_t chunks = (count + networks_in_a_chunk - 1) / networks_in_a_chunk;
    if (!wf_parallel_stoppable(ctx, chunks, load_chunk, &call)) {
        free(weights);
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while loading networks");
    }
    *out = weights;
    return WF_OK;
}
