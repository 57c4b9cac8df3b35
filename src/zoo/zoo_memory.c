/* zoo_memory: collections without a file, and any collection written as it stands. */
#include "zoo/zoo_file.h"

#include "base/json_text.h"

#include <stdlib.h>
#include <string.h>

/* --- making ----------------------------------------------------------------------------------- */

static wf_status start(wf_ctx *ctx, const char *name, const wf_graph *graph, size_t count,
                       wf_zoo **out) {
    size_t blocks = (size_t)graph->n_blocks;
    *out = NULL;
    if (name == NULL) name = "collection in memory";
    if (count == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: a collection needs at least one network", name);
    wf_zoo *zoo;
    WF_TRY(wf_alloc(ctx, 1, sizeof *zoo, name, &zoo));
    zoo->count = count;
    zoo->path = strdup(name);
    wf_status status = zoo->path != NULL ? wf_graph_clone(ctx, graph, &zoo->graph)
                                         : wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", name);
    if (status == WF_OK) status = wf_alloc(ctx, blocks, sizeof *zoo->blocks, name, &zoo->blocks);
    if (status == WF_OK) status = wf_alloc(ctx, blocks, sizeof *zoo->strides, name, &zoo->strides);
    if (status == WF_OK) *out = zoo;
    else wf_zoo_free(zoo);
    return status;
}

static void set_blocks(wf_zoo *zoo, const float *weights) {
    for (int b = 0; b < zoo->graph->n_blocks; b++) {
        zoo->blocks[b] = (const uint8_t *)(weights + zoo->graph->blocks[b].offset);
        zoo->strides[b] = zoo->graph->n_params * sizeof *weights;
    }
}

wf_status wf_zoo_from_memory(wf_ctx *ctx, const char *name, const wf_graph *graph,
                             const float *weights, size_t count, bool copy, wf_zoo **out) {
    WF_TRY(start(ctx, name, graph, count, out));
    wf_zoo *zoo = *out;
    if (copy) {
        size_t each = graph->n_params * sizeof *weights;
        wf_status status = wf_alloc_raw(ctx, count, each, zoo->path, &zoo->own);
        if (status != WF_OK) {
            wf_zoo_free(zoo);
            *out = NULL;
            return status;
        }
        memcpy(zoo->own, weights, count * each);
        weights = zoo->own;
    }
    set_blocks(zoo, weights);
    return WF_OK;
}

wf_status wf_zoo_from_tensors(wf_ctx *ctx, const char *name, const wf_graph *graph,
                              const float *const *base, const size_t *stride, size_t count,
                              wf_zoo **out) {
    WF_TRY(start(ctx, name, graph, count, out));
    for (int b = 0; b < graph->n_blocks; b++) {
        (*out)->blocks[b] = (const uint8_t *)base[b];
        (*out)->strides[b] = stride[b] * sizeof **base;
    }
    return WF_OK;
}

/* One less than a writer takes, for the entry that a rewrite adds. */
enum { most_meta = sizeof((wf_zoo_extra *)0)->meta / sizeof(const char *[2]) - 1 };

/* --- columns and metadata --------------------------------------------------------------------- */

static wf_status check_memory(wf_ctx *ctx, const wf_zoo *zoo) {
    if (wf_zoo_in_memory(zoo)) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE, "%s: a collection that is a file cannot be changed",
                   zoo->path);
}

/* A copy that replaces *old. */
static wf_status replace(wf_ctx *ctx, const void *from, size_t count, size_t size, void *old) {
    void *copy = NULL, *before;
    memcpy(&before, old, sizeof before);
    if (from != NULL) {
        WF_TRY(wf_alloc(ctx, count, size, "a collection's column", &copy));
        memcpy(copy, from, count * size);
    }
    free(before);
    memcpy(old, &copy, sizeof copy);
    return WF_OK;
}

wf_status wf_zoo_set_scores(wf_ctx *ctx, wf_zoo *zoo, const char *test, const float *scores,
                            const uint8_t *errors, size_t error_bytes) {
    WF_TRY(check_memory(ctx, zoo));
    if (test == NULL || *test == '\0' || strlen(test) > 100)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: a test set needs a name of 1 to 100 characters",
                       zoo->path);
    if (errors != NULL && error_bytes == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: the error masks of %s have no bytes", zoo->path,
                       test);
    bool known = false;
    for (int t = 0; t < zoo->n_tests; t++) known |= strcmp(zoo->tests[t].name, test) == 0;
    if (!known && zoo->n_tests == WF_ZOO_TESTS)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: more than %d test sets", zoo->path, WF_ZOO_TESTS);
    wf_zoo_test_set *entry;
    WF_TRY(wf__zoo_test_entry(ctx, zoo, test, &entry));
    WF_TRY(replace(ctx, scores, zoo->count, sizeof *scores, &entry->scores));
    entry->errors = NULL;
    WF_TRY(replace(ctx, errors, zoo->count, error_bytes, &entry->own_errors));
    entry->errors = entry->own_errors;
    entry->error_bytes = errors != NULL ? error_bytes : 0;
    return WF_OK;
}

static void drop_meta(wf_zoo *zoo, size_t index) {
    free(zoo->meta[index][0]);
    free(zoo->meta[index][1]);
    memmove(zoo->meta + index, zoo->meta + index + 1, (--zoo->n_meta - index) * sizeof *zoo->meta);
}

wf_status wf__zoo_put_meta(wf_ctx *ctx, wf_zoo *zoo, const char *key, const char *value) {
    size_t at = 0;
    while (at < zoo->n_meta && strcmp(zoo->meta[at][0], key) != 0) at++;
    if (value == NULL) {
        if (at < zoo->n_meta) drop_meta(zoo, at);
        return WF_OK;
    }
    if (at == most_meta)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: more than %d entries of metadata", zoo->path,
                       most_meta);
    char *copy = strdup(value), *name = strdup(key);
    char *(*grown)[2] = realloc(zoo->meta, (zoo->n_meta + 1) * sizeof *grown);
    if (grown != NULL) zoo->meta = grown;
    if (copy == NULL || name == NULL || grown == NULL) {
        free(copy);
        free(name);
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", zoo->path);
    }
    if (at < zoo->n_meta) drop_meta(zoo, at);
    zoo->meta[zoo->n_meta][0] = name;
    zoo->meta[zoo->n_meta++][1] = copy;
    return WF_OK;
}

wf_status wf_zoo_set_meta(wf_ctx *ctx, wf_zoo *zoo, const char *key, const char *value) {
    WF_TRY(check_memory(ctx, zoo));
    if (key == NULL || *key == '\0' || wf__zoo_own_key(key))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: metadata \"%s\" is the writer's own", zoo->path,
                       key == NULL ? "" : key);
    return wf__zoo_put_meta(ctx, zoo, key, value);
}

wf_status wf_zoo_set_names(wf_ctx *ctx, wf_zoo *zoo, const char *const *names) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < zoo->count; i++)
        good = json_array_append_new(list, json_string(names[i])) == 0;
    char *text = good ? wf_json_text(list, JSON_COMPACT) : NULL;
    json_decref(list);
    wf_status status =
        text != NULL ? wf_zoo_set_meta(ctx, zoo, "weft.sources", text)
                     : wf_fail(ctx, WF_ERR_USAGE, "%s: a network's name is not UTF-8", zoo->path);
    free(text);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

static const wf_block *block_named(const wf_graph *graph, const char *name) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (strcmp(graph->blocks[b].name, name) == 0) return &graph->blocks[b];
    return NULL;
}

/* Tensors of the file in its order, weights replaced by the stacked new ones. */
static wf_status rewrite_file(wf_ctx *ctx, const wf_zoo *zoo, const float *weights, const char *key,
                              const char *value, const char *path) {
    const wf_graph *graph = zoo->graph;
    size_t count = zoo->count, n = wf_st_count(zoo->file), n_meta = 0;
    wf_st_tensor *tensors = NULL;
    const char *(*meta)[2] = NULL;
    float *stacked = NULL;
    wf_status status = WF_OK;
    const char *what = "collection";
    if (weights != NULL)
        WF_TRY_GOTO(wf_alloc(ctx, count * graph->n_params, sizeof *stacked, what, &stacked), done);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *tensors, what, &tensors), done);
    WF_TRY_GOTO(wf_alloc(ctx, wf_st_meta_count(zoo->file) + 1, sizeof *meta, what, &meta), done);
    for (size_t i = 0; i < n; i++) {
        tensors[i] = *wf_st_at(zoo->file, i);
        const wf_block *block = block_named(graph, tensors[i].name);
        if (block == NULL || weights == NULL) continue;
        float *place = stacked + count * block->offset;
        for (size_t k = 0; k < count; k++)
            memcpy(place + k * block->count, weights + k * graph->n_params + block->offset,
                   block->count * sizeof *place);
        tensors[i].data = place;
    }
    for (size_t i = 0; i < wf_st_meta_count(zoo->file); i++) {
        wf_st_meta_at(zoo->file, i, &meta[n_meta][0], &meta[n_meta][1]);
        if (key == NULL || strcmp(meta[n_meta][0], key) != 0) n_meta++;
    }
    if (key != NULL) meta[n_meta][0] = key, meta[n_meta++][1] = value;
    status = wf_st_write(ctx, path, tensors, n, (const char *const(*)[2])meta, n_meta);
done:
    free(tensors);
    free(meta);
    free(stacked);
    return status;
}

/* Where the networks that are written come from. */
typedef struct networks {
    const wf_zoo *zoo;
    const float *weights; /* NULL: the collection's own */
} networks;

static void give_network(void *user, size_t index, float *w) {
    const networks *from = user;
    size_t n = from->zoo->graph->n_params;
    if (from->weights == NULL) wf_zoo_get(from->zoo, index, w);
    else memcpy(w, from->weights + index * n, n * sizeof *w);
}

static wf_status rewrite_memory(wf_ctx *ctx, const wf_zoo *zoo, const float *weights,
                                const char *key, const char *value, const char *path) {
    wf_zoo_extra extra = {.seeds = zoo->seeds, .lr = zoo->rates, .epochs = zoo->epochs};
    for (int t = 0; t < zoo->n_tests; t++) {
        extra.test_names[t] = zoo->tests[t].name;
        extra.scores[t] = zoo->tests[t].scores;
        extra.errors[t] = zoo->tests[t].errors;
        extra.error_bytes[t] = zoo->tests[t].error_bytes;
    }
    extra.n_tests = zoo->n_tests;
    for (size_t i = 0; i < zoo->n_meta; i++) {
        if (key != NULL && strcmp(zoo->meta[i][0], key) == 0) continue;
        extra.meta[extra.n_meta][0] = zoo->meta[i][0];
        extra.meta[extra.n_meta++][1] = zoo->meta[i][1];
    }
    if (key != NULL) extra.meta[extra.n_meta][0] = key, extra.meta[extra.n_meta++][1] = value;
    networks from = {zoo, weights};
    return wf_zoo_write_from(ctx, path, zoo->graph, give_network, &from, zoo->count, &extra);
}

wf_status wf__zoo_rewrite(wf_ctx *ctx, const wf_zoo *zoo, const float *weights, const char *key,
                          const char *value, const char *path) {
    WF_TRY(wf_zoo_verify(ctx, zoo));
    return zoo->file != NULL ? rewrite_file(ctx, zoo, weights, key, value, path)
                             : rewrite_memory(ctx, zoo, weights, key, value, path);
}

wf_status wf_zoo_save(wf_ctx *ctx, const wf_zoo *zoo, const char *path) {
    return wf__zoo_rewrite(ctx, zoo, NULL, NULL, NULL, path);
}
