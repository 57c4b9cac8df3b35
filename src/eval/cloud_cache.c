/* cloud_cache: the reference's scores beside its collection, in PATH.cloud.safetensors.
 *
 *   cloud.index U32 [m]   cloud.wcs F32 [m]   cloud.wcs_nearest U32 [m]
 *   score F32 [N]   errors U64 [N, words]   iou F32 [N]   iou_nearest U32 [N]   with labelled data
 *   __metadata__  weft.cloud    what the values were computed from: all weights, the architecture,
 *                               the data set's fingerprint and the settings that matter
 *                 weft.digest   digest of the tensors as they stand, so that damage is noticed
 * A file with another key is stale and replaced silently; a damaged one with a warning. */
#include "base/comm.h"
#include "base/pool.h"
#include "base/safetensors.h"
#include "eval/reference.h"

#include <stdlib.h>
#include <string.h>

enum { cache_version = 2, networks_in_a_chunk = 256, max_tensors = 7 };

typedef struct digest_call {
    wf_ctx *ctx;
    const float *weights;
    size_t n, params; /* n: of this piece */
    uint64_t *digest; /* [n] */
} digest_call;

/* Murmur's finaliser: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static void digest_chunk(void *call_, size_t chunk, int worker) {
    (void)worker;
    const digest_call *call = call_;
    size_t end = (chunk + 1) * networks_in_a_chunk;
    for (size_t i = chunk * networks_in_a_chunk; i < end && i < call->n; i++) {
        uint64_t state = 0;
        for (size_t p = 0; p < call->params; p++) {
            uint32_t bits;
            memcpy(&bits, call->weights + i * call->params + p, sizeof bits);
            state = (state ^ bits) * 0x9e3779b97f4a7c15u;
            state ^= state >> 29;
        }
        call->digest[i] = mix(state);
    }
}

static wf_status digest_piece(void *call_, const float *weights, size_t first, size_t count) {
    const digest_call *all = call_;
    digest_call call = {all->ctx, weights, count, all->params, all->digest + first};
    size_t chunks = (count + networks_in_a_chunk - 1) / networks_in_a_chunk;
    if (wf_parallel_stoppable(call.ctx, chunks, digest_chunk, &call)) return WF_OK;
    return wf_fail(call.ctx, WF_ERR_INTERRUPTED, "interrupted while looking at networks");
}

static wf_status cache_key(wf_ctx *ctx, const wf_reference *ref, char out[65]) {
    const wf_graph *graph = wf_zoo_graph(ref->zoo);
    digest_call call = {.ctx = ctx, .params = graph->n_params};
    WF_TRY(wf_alloc(ctx, ref->n, sizeof *call.digest, "cloud cache", &call.digest));
    wf_status status = wf__reference_each(ctx, ref, digest_piece, &call);
    if (status != WF_OK) {
        free(call.digest);
        return status;
    }
    wf_sha256 hash;
    wf_sha256_start(&hash);
    wf_sha256_add(&hash, call.digest, ref->n * sizeof *call.digest);
    free(call.digest);
    char text[256];
    int length = snprintf(text, sizeof text, "%d ", cache_version);
    wf_sha256_add(&hash, text, (size_t)length);
    wf_sha256_add(&hash, graph->text, strlen(graph->text));
    length = snprintf(text, sizeof text, " %s %s score %d cloud %zu sweeps %d seed %llu",
                      wf_activation_name(graph->activation),
                      ref->data == NULL ? "none" : ref->data->fingerprint, (int)ref->desc.score,
                      ref->m, ref->desc.sweeps, (unsigned long long)ref->desc.seed);
    wf_sha256_add(&hash, text, (size_t)length);
    wf_sha256_end(&hash, out);
    return WF_OK;
}

/* The cache's tensors as views of the reference's arrays; count returned. */
static size_t cache_tensors(const wf_reference *ref, wf_st_tensor out[max_tensors]) {
    const wf_st_tensor all[max_tensors] = {
        {.name = "cloud.index",
         .dtype = WF_ST_U32,
         .rank = 1,
         .shape = {ref->m},
         .data = ref->cloud},
        {.name = "cloud.wcs", .dtype = WF_ST_F32, .rank = 1, .shape = {ref->m}, .data = ref->wcs},
        {.name = "cloud.wcs_nearest",
         .dtype = WF_ST_U32,
         .rank = 1,
         .shape = {ref->m},
         .data = ref->wcs_nearest},
        {.name = "score", .dtype = WF_ST_F32, .rank = 1, .shape = {ref->n}, .data = ref->score},
        {.name = "errors",
         .dtype = WF_ST_U64,
         .rank = 2,
         .shape = {ref->n, ref->words},
         .data = ref->errors},
        {.name = "iou", .dtype = WF_ST_F32, .rank = 1, .shape = {ref->n}, .data = ref->iou},
        {.name = "iou_nearest",
         .dtype = WF_ST_U32,
         .rank = 1,
         .shape = {ref->n},
         .data = ref->iou_nearest},
    };
    size_t count = ref->data == NULL ? 3 : max_tensors;
    for (size_t i = 0; i < count; i++) {
        out[i] = all[i];
        out[i].count = 1;
        for (int d = 0; d < all[i].rank; d++) out[i].count *= all[i].shape[d];
        out[i].bytes = out[i].count * wf_st_dtype_size(all[i].dtype);
    }
    return count;
}

/* Where the cache of a collection lies; "" for one in memory, and when the name is too long. */
static void cloud_path(const wf_reference *reference, char out[4096]) {
    bool file = !wf_zoo_in_memory(reference->zoo);
    int length =
        file ? snprintf(out, 4096, "%s.cloud.safetensors", wf_zoo_path(reference->zoo)) : -1;
    if (length < 0 || length >= 4096) out[0] = 0;
    const char *name = strrchr(out, '/'); /* of several files: no pattern as a name */
    size_t at = name == NULL ? 0 : (size_t)(name - out);
    while (out[at += strcspn(out + at, "*?[]")] != 0) out[at] = '_';
}

/* NULL, or what is wrong with the file. Values are copied over the reference's arrays only when
 * all is well. */
static const char *take_tensors(wf_ctx *ctx, const wf_st_file *file, const wf_reference *ref) {
    wf_st_tensor expected[max_tensors], found[max_tensors];
    size_t count = cache_tensors(ref, expected);
    if (wf_st_count(file) != count) return "it holds other tensors";
    for (size_t i = 0; i < count; i++) {
        const wf_st_tensor *tensor = wf_st_find(file, expected[i].name);
        if (tensor == NULL) return "a tensor is missing";
        if (tensor->dtype != expected[i].dtype || tensor->bytes != expected[i].bytes)
            return "a tensor has another shape";
        found[i] = *tensor;
    }
    bool known;
    if (wf_st_verify(ctx, file, &known) != WF_OK || !known)
        return "its values do not match their digest";
    if (memcmp(found[0].data, ref->cloud, found[0].bytes) != 0) return "it lists other networks";
    for (size_t i = 1; i < count; i++)
        memcpy((void *)(uintptr_t)expected[i].data, found[i].data, found[i].bytes);
    return NULL;
}

bool wf__cloud_read(wf_ctx *ctx, wf_reference *reference) {
    char path[4096], key[65];
    cloud_path(reference, path);
    if (path[0] == 0 || !wf_file_exists(path)) return false;
    if (cache_key(ctx, reference, key) != WF_OK) return false;
    wf_st_file *file = NULL;
    if (wf_st_open(ctx, path, &file) != WF_OK) {
        wf_warn(ctx, "%s; the reference is computed again", wf_last_error(ctx));
        return false;
    }
    const char *stored = wf_st_meta(file, "weft.cloud"), *fault = "";
    if (stored == NULL) fault = "it has no key";
    else if (strcmp(stored, key) == 0) fault = take_tensors(ctx, file, reference);
    if (fault != NULL && fault[0] != 0)
        wf_warn(ctx, "%s is damaged (%s); the reference is computed again", path, fault);
    wf_st_close(file);
    /* Removes what killed writers left beside this file: no later writer would do it. */
    if (fault == NULL) wf_remove_dead_siblings_of(path);
    return fault == NULL;
}

wf_status wf__cloud_share(wf_ctx *ctx, wf_reference *reference) {
    wf_st_tensor tensors[max_tensors];
    size_t count = cache_tensors(reference, tensors);
    for (size_t i = 0; i < count; i++)
        WF_TRY(wf_broadcast(ctx, (void *)(uintptr_t)tensors[i].data, tensors[i].bytes));
    return WF_OK;
}

void wf__cloud_write(wf_ctx *ctx, const wf_reference *reference) {
    char path[4096], key[65];
    cloud_path(reference, path);
    if (path[0] == 0 || cache_key(ctx, reference, key) != WF_OK) return;
    wf_st_tensor tensors[max_tensors];
    size_t count = cache_tensors(reference, tensors);
    const char *const meta[1][2] = {{"weft.cloud", key}};
    if (wf_st_write(ctx, path, tensors, count, meta, 1) != WF_OK)
        wf_warn(ctx, "the reference cloud is not kept: %s", wf_last_error(ctx));
}
