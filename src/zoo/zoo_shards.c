/* zoo_shards: a collection trained in resumable pieces.
 *
 *   PATH.parts/0000000512.safetensors ...   finished networks, each file a collection of its
 *                                           own, atomic
 *   PATH.parts/0000000519.started           one network under way: weights, moments, updates made
 *   PATH                                    all networks, in order of index, when the last is done
 *
 * Both kinds carry the settings of their networks (weft.recipe), a part its networks' indices too
 * (weft.seed). A call first takes up everything it finds, then trains the missing networks, then
 * merges.
 *
 * A call that finds no parts and was not told a shard's size writes the networks straight to their
 * places in PATH's temporary sibling, beside the training of the next ones (zoo_file.h,
 * wf_zoo_stream). When nothing diverged the sibling becomes PATH and nothing is copied.
 * I1  A network is the same in whatever part it was trained, so parts of any size may be mixed.
 * I2  Parts of other settings are refused, never mixed in, never deleted.
 * I3  A diverged network lies in its part with weights that are not finite, which is how the
 *     merge knows it.
 * I4  Every wf_zoo_save_seconds, and when it is interrupted or fails, a call saves what no part
 *     holds yet: finished networks as a part, and each thread the network it is training. */
#include "zoo/zoo_collection.h"

#include "base/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    largest_shard = 1024,
    gpu_shard = 16384 /* a second or so, and many times what runs at once */
};
static const double stream_bytes = 2147483648.0; /* of weights in memory at once */
static const double shard_flops = 1e12;          /* about ten seconds of one core */
static const double gpu_speed = 100;             /* times that */

/* --- saving ----------------------------------------------------------------------------------- */

/* Networks that are to be written as a part. */
typedef struct unsaved {
    const zoo_collection *all;
    const size_t *list;
    int failed; /* an errno */
} unsaved;

static bool in_piece(const zoo_collection *all, size_t i) {
    return i >= all->piece_first && i - all->piece_first < all->piece_count;
}

static void unsaved_network(void *unsaved_, size_t k, float *w) {
    unsaved *some = unsaved_;
    const zoo_collection *all = some->all;
    size_t i = some->list[k], n = all->graph->n_params;
    if (in_piece(all, i)) {
        memcpy(w, all->piece_weights + (i - all->piece_first) * n, n * sizeof *w);
        return;
    }
    int failed = wf_zoo_stream_get(all->stream, i, w);
    if (failed) some->failed = failed;
}

static void copy_columns(const zoo_collection *all, const size_t *list, size_t count,
                         columns *out) {
    size_t bytes = all->error_bytes;
    for (size_t k = 0; k < count; k++) {
        size_t i = list[k];
        out->index[k] = all->extra.index[i];
        out->lr[k] = all->extra.lr[i];
        out->epochs[k] = all->extra.epochs[i];
        out->scores[k] = all->extra.scores[i];
        if (bytes > 0) memcpy(out->errors + k * bytes, all->extra.errors + i * bytes, bytes);
    }
}

/* Finished, and in no part yet. Threads may be finishing others meanwhile. */
static bool is_unsaved(const zoo_collection *all, size_t i) {
    if (all->places[i].part >= 0) return false;
    if (!in_piece(all, i)) return all->places[i].part == WF_PLACE_STREAM;
    return __atomic_load_n(&all->state[i], __ATOMIC_ACQUIRE) != WF_ZOO_WAITING;
}

static wf_status write_part(wf_ctx *ctx, zoo_collection *all, const size_t *list, size_t count) {
    columns some = {0};
    unsaved source = {all, list, 0};
    wf_status status;
    char path[WF_ZOO_PATH];
    WF_TRY_GOTO(wf__zoo_columns_alloc(ctx, count, all->error_bytes, &some), done);
    copy_columns(all, list, count, &some);
    WF_TRY_GOTO(wf__zoo_part_path(ctx, all, some.index[0], path), done);
    wf_zoo_extra extra = wf__zoo_extra(all, &some);
    WF_TRY_GOTO(wf_zoo_write_from(ctx, path, all->graph, unsaved_network, &source, count, &extra),
                done);
    if (source.failed) {
        unlink(path);
        errno = source.failed;
        status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be read back", all->path);
    } else status = wf__zoo_take_part(ctx, all, path);
done:
    wf__zoo_columns_free(&some);
    return status;
}

static wf_status save_unsaved(wf_ctx *ctx, zoo_collection *all) {
    size_t *list, count = 0;
    WF_TRY(wf_alloc(ctx, all->desc->count, sizeof *list, "network indices", &list));
    for (size_t i = 0; i < all->desc->count; i++)
        if (is_unsaved(all, i)) list[count++] = i;
    wf_status status = count > 0 ? write_part(ctx, all, list, count) : WF_OK;
    for (size_t k = 0; k < count && status == WF_OK; k++) wf__zoo_started_remove(ctx, all, list[k]);
    all->saved = wf_seconds();
    free(list);
    return status;
}

/* The first failure of a save while training goes on. */
static void note_failure(zoo_collection *all, wf_status status, const wf_ctx *said_by) {
    if (all->save_status != WF_OK) return;
    snprintf(all->sentence, sizeof all->sentence, "%s", wf_last_error(said_by));
    all->save_status = status;
}

static bool save_when_due(void *all_) {
    zoo_collection *all = all_;
    if (wf_seconds() - all->saved < wf_zoo_save_seconds) return true;
    pthread_mutex_lock(&all->keeping);
    wf_status status = save_unsaved(all->ctx, all);
    if (status != WF_OK) note_failure(all, status, all->ctx);
    pthread_mutex_unlock(&all->keeping);
    return status == WF_OK;
}

static bool keep_network(void *all_, size_t i, const void *w, const wf_zoo_progress *progress) {
    zoo_collection *all = all_;
    pthread_mutex_lock(&all->keeping);
    wf_status status = wf__zoo_started_write(all->keeper, all, all->piece_first + i, w, progress);
    if (status == WF_OK) all->started[all->piece_first + i] = 1;
    else note_failure(all, status, all->keeper);
    pthread_mutex_unlock(&all->keeping);
    return status == WF_OK;
}

static bool resume_network(void *all_, size_t i, void *w, wf_zoo_progress *progress, bool *found) {
    zoo_collection *all = all_;
    wf_status status = WF_OK;
    pthread_mutex_lock(&all->keeping);
    *found = all->started[all->piece_first + i] != 0;
    if (*found) status = wf__zoo_started_read(all->keeper, all, all->piece_first + i, w, progress);
    if (status != WF_OK) note_failure(all, status, all->keeper);
    pthread_mutex_unlock(&all->keeping);
    return status == WF_OK;
}

/* --- the growing file ------------------------------------------------------------------------- */

static void *write_networks(void *all_) {
    zoo_collection *all = all_;
    hand *h = &all->hand;
    int failed = wf_zoo_stream_put(all->stream, h->first, h->count, h->weights);
    if (failed) h->failed = failed;
    return NULL;
}

static void hand_wait(hand *h) {
    if (h->running) pthread_join(h->thread, NULL);
    h->running = false;
}

/* All networks of the piece before `end` are done: a thread writes those that it has not been given
 * yet. */
static void hand_over(void *all_, size_t end) {
    zoo_collection *all = all_;
    hand *h = &all->hand;
    if (all->stream == NULL) return;
    hand_wait(h);
    h->first = all->piece_first + h->handed;
    h->count = end - h->handed;
    h->weights = all->piece_weights + h->handed * all->graph->n_params;
    h->handed = end;
    h->running = pthread_create(&h->thread, NULL, write_networks, all) == 0;
    if (!h->running) write_networks(all);
}

/* Opens the growing file; leaves all->stream NULL where there can be none. */
static wf_status stream_start(wf_ctx *ctx, zoo_collection *all) {
    wf__zoo_name_networks(all, all->desc->count, all->networks);
    wf_zoo_extra extra = wf__zoo_extra(all, &all->extra);
    wf_status status =
        wf_zoo_stream_open(ctx, all->path, all->graph, all->desc->count, &extra, &all->stream);
    return status == WF_ERR_UNSUPPORTED ? WF_OK : status;
}

/* The growing file becomes the collection when it is whole; else its networks become parts. */
static wf_status stream_end(wf_ctx *ctx, zoo_collection *all) {
    for (size_t i = 0; i < all->desc->count; i++)
        if (all->state[i] != WF_ZOO_TRAINED) return save_unsaved(ctx, all);
    wf_zoo_extra extra = wf__zoo_extra(all, &all->extra);
    wf_status status = wf_zoo_stream_commit(ctx, all->stream, &extra);
    all->stream = NULL;
    if (status == WF_OK) wf__zoo_remove_parts(ctx, all);
    return status;
}

/* --- training --------------------------------------------------------------------------------- */

/* Networks in memory at a time: enough to keep the threads busy; on a GPU many times what runs at
 * once. */
static size_t piece_size(const zoo_collection *all, int threads, bool cuda) {
    if (all->desc->shard > 0) return all->desc->shard;
    if (cuda && all->stream != NULL)
        return (size_t)fmax(stream_bytes / ((double)all->graph->n_params * sizeof(float)), 1);
    double epochs = fmax(all->desc->epochs, all->desc->epochs_max);
    double flops = 6.0 * (double)all->graph->n_params * epochs * (double)all->data->n_train;
    double size = cuda ? fmin(gpu_speed * shard_flops / flops, gpu_shard)
                       : fmin(shard_flops / flops, largest_shard);
    return size > 2 * threads ? (size_t)size : 2 * (size_t)threads;
}

static size_t count_trained(const zoo_collection *all) {
    size_t trained = 0;
    for (size_t i = 0; i < all->desc->count; i++) trained += all->places[i].part != WF_PLACE_NONE;
    return trained;
}

/* Networks first .. first+count-1, those that are in parts already left out. */
static wf_status train_piece(wf_ctx *ctx, zoo_collection *all, size_t first, size_t count,
                             const uint32_t *index, float *weights, wf_meter *meter) {
    hand_wait(&all->hand);
    all->hand.handed = 0;
    all->piece_first = first;
    all->piece_count = count;
    all->piece_weights = weights;
    wf_zoo_piece piece = {.graph = all->graph,
                          .count = count,
                          .index = index + first,
                          .weights = weights,
                          .fresh = true,
                          .state = all->state + first,
                          .scores = all->error_bytes > 0 ? all->extra.scores + first : NULL,
                          .errors = all->extra.errors + first * all->error_bytes,
                          .error_bytes = all->error_bytes,
                          .meter = meter,
                          .done_before = all->done,
                          .user = all,
                          .finished = hand_over,
                          .tick = save_when_due,
                          .keep = keep_network,
                          .resume = resume_network};
    wf_status status = wf_zoo_piece_run(ctx, &all->plan, wf_zoo_kernels_pick(&all->plan), &piece);
    if (all->save_status != WF_OK) status = wf_fail(ctx, all->save_status, "%s", all->sentence);
    if (status == WF_OK && all->stream == NULL) return save_unsaved(ctx, all);
    if (status == WF_OK) return WF_OK;
    char sentence[512]; /* of what went wrong first */
    snprintf(sentence, sizeof sentence, "%s", wf_last_error(ctx));
    wf_status kept = all->save_status == WF_OK ? save_unsaved(ctx, all) : WF_OK;
    return kept == WF_OK ? wf_fail(ctx, status, "%s", sentence) : kept;
}

/* All networks that are missing, in pieces. With a growing file two buffers take turns, because one
 * is still being written from. */
static wf_status train_pieces(wf_ctx *ctx, zoo_collection *all, size_t capacity,
                              const uint32_t *index, float *const weights[2], wf_meter *meter) {
    size_t total = all->desc->count;
    wf_status status = WF_OK;
    int buffer = 0;
    for (size_t next = 0; next < total && status == WF_OK;) {
        if (all->state[next] != WF_ZOO_WAITING) {
            next++;
            continue;
        }
        size_t count = total - next < capacity ? total - next : capacity, waiting = 0;
        for (size_t i = next; i < next + count; i++) waiting += all->state[i] == WF_ZOO_WAITING;
        status = train_piece(ctx, all, next, count, index, weights[buffer], meter);
        for (size_t i = next; i < next + count && status == WF_OK; i++)
            if (all->places[i].part == WF_PLACE_NONE)
                all->places[i] = (place){WF_PLACE_STREAM, (uint32_t)i};
        if (weights[1] != NULL) buffer ^= 1;
        all->done += waiting;
        next += count;
    }
    hand_wait(&all->hand);
    all->piece_count = 0;
    if (status != WF_OK || all->hand.failed == 0) return status;
    errno = all->hand.failed;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", all->path);
}

static wf_status train_with_buffers(wf_ctx *ctx, zoo_collection *all, bool cuda) {
    size_t total = all->desc->count, row = all->graph->n_params * sizeof(float);
    size_t trained = count_trained(all), capacity = piece_size(all, wf_ctx_threads(ctx), cuda);
    if (capacity > total) capacity = total;
    bool two = all->stream != NULL && capacity < total;
    uint32_t *index = NULL;
    float *weights[2] = {NULL, NULL};
    wf_status status = wf_alloc(ctx, total, sizeof *index, "network indices", &index);
    for (int i = 0; i < (two ? 2 : 1) && status == WF_OK; i++)
        status = wf_alloc_raw(ctx, capacity, row, "weights of a shard", &weights[i]);
    if (status == WF_OK) {
        for (size_t i = 0; i < total; i++) index[i] = (uint32_t)(all->desc->first + i);
        wf_meter meter =
            wf_meter_start(ctx, "training networks", "networks", (double)(total - trained));
        all->saved = wf_seconds();
        status = train_pieces(ctx, all, capacity, index, weights, &meter);
        wf_meter_end(&meter, (double)(count_trained(all) - trained), NULL);
    }
    free(index);
    free(weights[0]);
    free(weights[1]);
    return status;
}

wf_status wf__zoo_train_missing(wf_ctx *ctx, zoo_collection *all, bool *merged) {
    size_t total = all->desc->count;
    *merged = false;
    if (count_trained(all) == total) return WF_OK;
    bool cuda;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    bool grows = all->desc->shard == 0 && all->list.count == 0 && !all->in_parts;
    if (grows) WF_TRY(stream_start(ctx, all));
    wf_status status = train_with_buffers(ctx, all, cuda);
    if (status == WF_OK && all->stream != NULL) {
        status = stream_end(ctx, all);
        *merged = status == WF_OK && all->stream == NULL;
    }
    wf_zoo_stream_abort(all->stream);
    all->stream = NULL;
    if (status == WF_ERR_INTERRUPTED)
        return wf_fail(ctx, status,
                       "interrupted with %zu of %zu networks trained; they are kept in %s",
                       count_trained(all), total, all->folder);
    return status;
}

wf_status wf__zoo_train_here(wf_ctx *ctx, zoo_collection *all, size_t *dropped) {
    bool merged = all->stands > 0;
    if (merged) {
        *dropped = all->desc->count - all->stands;
        if (wf_file_exists(all->folder)) wf__zoo_remove_parts(ctx, all);
        return WF_OK;
    }
    WF_TRY(wf__zoo_train_missing(ctx, all, &merged));
    return merged ? WF_OK : wf__zoo_merge(ctx, all, dropped);
}

wf_status wf_zoo_train(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                       const wf_zoo_desc *desc, const char *path, size_t *diverged) {
    size_t dropped = 0;
    zoo_collection *all;
    WF_TRY(wf_alloc(ctx, 1, sizeof *all, "collection", &all));
    all->graph = graph;
    all->data = data;
    all->desc = desc;
    all->path = path;
    all->ctx = ctx;
    pthread_mutex_init(&all->keeping, NULL);
    wf_status status = wf__zoo_start(ctx, all);
    if (wf_ctx_ranks(ctx) > 1) status = wf__zoo_train_together(ctx, all, status, &dropped);
    else if (status == WF_OK) status = wf__zoo_train_here(ctx, all, &dropped);
    for (size_t p = 0; p < all->list.count; p++) wf_zoo_free(all->list.parts[p]);
    free(all->list.parts);
    free(all->places);
    free(all->state);
    free(all->started);
    wf_ctx_free(all->keeper);
    wf_lock_free(all->lock);
    pthread_mutex_destroy(&all->keeping);
    wf__zoo_columns_free(&all->extra);
    free(all);
    if (diverged != NULL) *diverged = dropped;
    return status;
}
