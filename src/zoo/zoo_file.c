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
 * Collections without a file are in zoo_memory.c, those of several files in zoo_select.c. */
#include "zoo/zoo_file.h"

#include "base/comm.h"
#include "base/pool.h"
#include "graph/describe.h"
#include "weft/text.h"
#include "zoo/torch_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { max_tests = WF_ZOO_TESTS, n_own_meta = 4, max_extra_tensors = 3 + 2 * max_tests };
static const char format_name[] = "collection 1";
static const char score_prefix[] = "weft.score.";
static const char errors_prefix[] = "weft.errors.";

/* --- shapes ----------------------------------------------------------------------------------- */

/* The tensor of PyTorch with the networks in front: [M,out,in], [M,out], [M,out,in,3,3]. */
static wf_st_tensor block_tensor(const wf_graph *graph, const wf_block *block, size_t count) {
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
    if (format != NULL && strcmp(format, format_name) != 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: weft.format is \"%s\", a collection has \"%s\"",
                       zoo->path, format, format_name);
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
        wf_st_tensor expected = block_tensor(graph, block, zoo->count);
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
    if (zoo->n_tests == max_tests)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: more than %d test sets", zoo->path, max_tests);
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
        if (strncmp(tensor->name, score_prefix, strlen(score_prefix)) == 0) {
            WF_TRY(wf__zoo_test_entry(ctx, zoo, tensor->name + strlen(score_prefix), &test));
            WF_TRY(read_column(ctx, zoo, tensor->name, WF_ST_F32, &test->scores));
        } else if (strncmp(tensor->name, errors_prefix, strlen(errors_prefix)) == 0) {
            WF_TRY(wf__zoo_test_entry(ctx, zoo, tensor->name + strlen(errors_prefix), &test));
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
    wf_map map = {0};
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode), torch = false;
    if (!folder) {
        WF_TRY(wf_map_open(ctx, path, &map));
        torch = wf_torch_recognise(map.data, map.size);
        wf_map_close(&map);
    }
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
    /* Who reads all of it anyway looks whether it is still what was written. */
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

/* --- writing ---------------------------------------------------------------------------------- */

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
        snprintf(score, sizeof names[t][0], "%s%s", score_prefix, extra->test_names[t]);
        snprintf(errors, sizeof names[t][1], "%s%s", errors_prefix, extra->test_names[t]);
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
    const char *own[n_own_meta][2] = {{"weft.format", format_name},
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
    if (extra->n_tests < 0 || extra->n_tests > max_tests || extra->n_meta < 0 ||
        extra->n_meta > (int)(sizeof extra->meta / sizeof extra->meta[0]))
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
    char names[max_tests][2][128];
    const char *meta[n_own_meta + sizeof((wf_zoo_extra *)0)->meta / sizeof(const char *[2])][2];
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
        out->tensors[n] = block_tensor(graph, &graph->blocks[b], count);
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
