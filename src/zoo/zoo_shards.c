/* zoo_shards: a collection trained in resumable pieces.
 *
 *   PATH.parts/0000000512.safetensors ...   finished pieces, each a collection of its own, atomic
 *   PATH                                    all of them, in order of index, when the last is done
 *
 * A part carries its networks' indices (weft.seed) and the settings they were trained with
 * (weft.recipe); a call first takes up every part it finds, then trains the missing networks, then merges.
 *
 * A call that finds no parts and was not told a shard's size writes the networks straight to their places in PATH's temporary
 * sibling, beside the training of the next ones (zoo_file.h, wf_zoo_stream). Every few seconds, and when it is interrupted or
 * fails, it saves what no part holds yet as a part; when nothing diverged the sibling becomes PATH and nothing is copied.
 * I1  A network is the same in whatever part it was trained, so parts of any size may be mixed.
 * I2  Parts of other settings are refused, never mixed in, never deleted.
 * I3  A diverged network lies in its part with weights that are not finite, which is how the merge knows it. */
#include "zoo/zoo_engine.h"

#include "base/c_locale.h"
#include "base/io.h"
#include "zoo/zoo_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    max_path = 4096,
    max_recipe = 4096,
    largest_shard = 1024,
    gpu_shard = 16384, /* a second or so, and many times what runs at once */
    named_divergences = 10,
    in_stream = -2 /* place.part: in the growing file alone */
};
static const double most_unsaved = 5; /* seconds of work that a killed process may lose */
static const double stream_bytes = 2147483648.0; /* of weights in memory at once */
static const double shard_flops = 1e12;          /* about ten seconds of one core */
static const double gpu_speed = 100;             /* times that */
static const char part_ending[] = ".safetensors";

typedef struct part_list {
    size_t count, capacity;
    wf_zoo **parts;
} part_list;

/* Where network first + i lies; part -1: not trained yet, in_stream: in the growing file, slot i. */
typedef struct place {
    int32_t part;
    uint32_t slot;
} place;

/* Columns of some networks, in the order of the file. */
typedef struct columns {
    int64_t *index;
    float *lr;
    int32_t *epochs;
    float *scores;
    uint8_t *errors; /* (count, error_bytes) */
} columns;

typedef struct collection {
    const wf_graph *graph;
    const wf_dataset *data;
    const wf_zoo_desc *desc;
    const char *path;
    wf_zoo_chain chain;
    wf_zoo_plan plan;
    char folder[max_path];
    char recipe[max_recipe];
    char fingerprint[65], test_name[101];
    size_t error_bytes;
    part_list list;
    place *places; /* [count] */
    /* while the file grows; else NULL and empty */
    wf_zoo_stream *stream;
    columns extra;  /* [count] */
    uint8_t *state; /* [count] wf_zoo_state */
} collection;

/* --- settings as text ------------------------------------------------------------------------- */

static void fingerprint_of(const wf_dataset *data, char out[65]) {
    if (data->fingerprint[0] != '\0') {
        memcpy(out, data->fingerprint, sizeof data->fingerprint);
        return;
    }
    wf_sha256 hash;
    wf_sha256_start(&hash);
    size_t width = (size_t)data->inputs * sizeof(float);
    wf_sha256_add(&hash, data->x_train, data->n_train * width);
    wf_sha256_add(&hash, data->y_train, data->n_train * sizeof *data->y_train);
    wf_sha256_add(&hash, data->x_test, data->n_test * width);
    wf_sha256_add(&hash, data->y_test, data->n_test * sizeof *data->y_test);
    wf_sha256_end(&hash, out);
}

/* All that a network depends on but its index: equal text, equal networks. */
static wf_status write_recipe(wf_ctx *ctx, collection *all) {
    const wf_zoo_desc *desc = all->desc;
    char optimizer[256];
    locale_t before = wf_c_locale_enter();
    if (desc->optimizer == WF_ZOO_ADAM)
        snprintf(optimizer, sizeof optimizer,
                 "optimizer = adam\nbeta1 = %.17g\nbeta2 = %.17g\neps = %.17g\n", desc->beta1,
                 desc->beta2, desc->eps);
    else
        snprintf(optimizer, sizeof optimizer, "optimizer = sgd\nmomentum = %.17g\nnesterov = %s\n",
                 desc->momentum, desc->nesterov ? "true" : "false");
    int length = snprintf(
        all->recipe, sizeof all->recipe,
        "arch = %s\nactivation = %s\nseed = %" PRIu64 "\n%s"
        "lr = %.17g\nlr_max = %.17g\nepochs = %d\nepochs_max = %d\nbatch = %d\n"
        "weight_decay = %.17g\nschedule = %s\nlabel_smoothing = %.17g\ntest = %s\ndata = %s\n",
        all->graph->text, wf_activation_name(all->graph->activation), desc->seed, optimizer,
        desc->lr, fmax(desc->lr, desc->lr_max), desc->epochs,
        desc->epochs_max > desc->epochs ? desc->epochs_max : desc->epochs, desc->batch,
        desc->weight_decay, desc->cosine ? "cosine" : "constant", desc->label_smoothing,
        all->test_name, all->fingerprint);
    wf_c_locale_leave(before);
    return length < max_recipe ? WF_OK
                               : wf_fail(ctx, WF_ERR_UNSUPPORTED,
                                         "%.80s...: the text of this architecture is too long for "
                                         "a collection's recipe",
                                         all->graph->text);
}

/* The first line in which two recipes differ, for the sentence that refuses one of them. */
static void first_difference(const char *a, const char *b, char *line_a, char *line_b, int size) {
    size_t start = 0;
    for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
        if (a[i] == '\n') start = i + 1;
    snprintf(line_a, (size_t)size, "%.*s", (int)strcspn(a + start, "\n"), a + start);
    snprintf(line_b, (size_t)size, "%.*s", (int)strcspn(b + start, "\n"), b + start);
}

/* --- parts on disk ----------------------------------------------------------------------------- */

static bool is_part(const char *name) {
    size_t length = strlen(name), ending = strlen(part_ending);
    return name[0] != '.' && length > ending && strcmp(name + length - ending, part_ending) == 0;
}

static wf_status list_add(wf_ctx *ctx, part_list *list, wf_zoo *part) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        wf_zoo **grown = realloc(list->parts, capacity * sizeof *grown);
        if (grown == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "list of parts: out of memory");
        list->parts = grown;
        list->capacity = capacity;
    }
    list->parts[list->count++] = part;
    return WF_OK;
}

static wf_status check_part(wf_ctx *ctx, const collection *all, const wf_zoo *part) {
    const char *recipe = wf_zoo_meta(part, "weft.recipe");
    size_t bytes;
    const uint8_t *errors = wf_zoo_errors(part, NULL, &bytes);
    if (recipe == NULL || wf_zoo_seeds(part) == NULL || wf_zoo_rates(part) == NULL ||
        wf_zoo_epochs(part) == NULL ||
        (all->error_bytes > 0 && (errors == NULL || wf_zoo_scores(part, NULL) == NULL)))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: not a part of a collection; delete the folder %s to start again",
                       wf_zoo_path(part), all->folder);
    if (strcmp(recipe, all->recipe) != 0) {
        char theirs[128], ours[128];
        first_difference(recipe, all->recipe, theirs, ours, sizeof ours);
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s holds networks of other settings (\"%s\", asked for is \"%s\"); finish "
                       "that collection, or delete the folder to start again",
                       all->folder, theirs, ours);
    }
    if (bytes != all->error_bytes || !wf_graph_equal(wf_zoo_graph(part), all->graph))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: shapes do not fit its settings; delete the folder %s to start again",
                       wf_zoo_path(part), all->folder);
    return WF_OK;
}

/* Opens a part and notes where its networks lie; those outside first .. first+count-1 are left alone. */
static wf_status take_part(wf_ctx *ctx, collection *all, const char *path) {
    wf_zoo *part;
    wf_status status = wf_zoo_open(ctx, path, &part);
    if (status == WF_ERR_MEMORY) return status;
    if (status != WF_OK)
        return wf_fail(ctx, status, "%s; delete this file to train its networks again",
                       wf_last_error(ctx));
    status = check_part(ctx, all, part);
    if (status == WF_OK) status = list_add(ctx, &all->list, part);
    if (status != WF_OK) {
        wf_zoo_free(part);
        return status;
    }
    const int64_t *indices = wf_zoo_seeds(part);
    for (size_t slot = 0; slot < wf_zoo_count(part); slot++) {
        int64_t i = indices[slot] - (int64_t)all->desc->first;
        if (i < 0 || (size_t)i >= all->desc->count) continue;
        all->places[i] = (place){(int32_t)all->list.count - 1, (uint32_t)slot};
    }
    return WF_OK;
}

static wf_status join_path(wf_ctx *ctx, char *out, const char *a, const char *separator,
                           const char *b) {
    if (snprintf(out, max_path, "%s%s%s", a, separator, b) >= max_path)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: the path is too long", a);
    return WF_OK;
}

static wf_status take_parts(wf_ctx *ctx, collection *all) {
    WF_TRY(wf_make_folder(ctx, all->folder));
    DIR *folder = opendir(all->folder);
    if (folder == NULL) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s", all->folder);
    wf_status status = WF_OK;
    char path[max_path];
    for (struct dirent *entry; status == WF_OK && (entry = readdir(folder)) != NULL;) {
        if (!is_part(entry->d_name)) continue;
        status = join_path(ctx, path, all->folder, "/", entry->d_name);
        if (status == WF_OK) status = take_part(ctx, all, path);
    }
    closedir(folder);
    return status;
}

/* Networks of a larger collection that is not finished yet are not ours to delete. */
static bool reaches_outside(const collection *all, const wf_zoo *part) {
    const int64_t *indices = wf_zoo_seeds(part);
    for (size_t slot = 0; slot < wf_zoo_count(part); slot++) {
        int64_t i = indices[slot] - (int64_t)all->desc->first;
        if (i < 0 || (size_t)i >= all->desc->count) return true;
    }
    return false;
}

/* Deletes the merged parts, what a killed writer left of one (".NAME.tmp.PID"), and the folder when it is empty. */
static void remove_parts(wf_ctx *ctx, const collection *all) {
    for (size_t p = 0; p < all->list.count; p++)
        if (!reaches_outside(all, all->list.parts[p])) unlink(wf_zoo_path(all->list.parts[p]));
    DIR *folder = opendir(all->folder);
    if (folder == NULL) return;
    char path[max_path];
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        bool leftover = entry->d_name[0] == '.' && strstr(entry->d_name, ".tmp.") != NULL;
        if (leftover && join_path(ctx, path, all->folder, "/", entry->d_name) == WF_OK)
            unlink(path);
    }
    closedir(folder);
    if (rmdir(all->folder) != 0)
        wf_warn(ctx, "%s: the folder is kept, it holds more than this collection's parts (%s)",
                all->folder, strerror(errno));
}

/* --- what goes with the weights ---------------------------------------------------------------- */

static void columns_free(columns *some) {
    free(some->index);
    free(some->lr);
    free(some->epochs);
    free(some->scores);
    free(some->errors);
}

static wf_status columns_alloc(wf_ctx *ctx, size_t count, size_t error_bytes, columns *out) {
    *out = (columns){0};
    const char *what = "scores of a collection";
    wf_status status = wf_alloc(ctx, count, sizeof *out->index, what, &out->index);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->lr, what, &out->lr);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->epochs, what, &out->epochs);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof *out->scores, what, &out->scores);
    if (status == WF_OK) status = wf_alloc(ctx, count, error_bytes, what, &out->errors);
    return status;
}

static wf_zoo_extra extra_of(const collection *all, const columns *some, const char *seed) {
    bool tested = all->error_bytes > 0;
    return (wf_zoo_extra){.seeds = some->index,
                          .lr = some->lr,
                          .epochs = some->epochs,
                          .n_tests = tested ? 1 : 0,
                          .test_names = {all->test_name},
                          .scores = {some->scores},
                          .errors = {some->errors},
                          .error_bytes = {all->error_bytes},
                          .n_meta = all->data->note[0] != 0 ? 5 : 4,
                          .meta = {{"weft.recipe", all->recipe},
                                   {"weft.data", all->fingerprint},
                                   {"weft.preparation", all->data->preparation},
                                   {"weft.seed", seed},
                                   {"weft.data.note", all->data->note}}};
}

static const char *seed_text(const collection *all, char *out, size_t size) {
    snprintf(out, size, "%" PRIu64, all->desc->seed);
    return out;
}

/* --- training ---------------------------------------------------------------------------------- */

typedef struct shard_buffers {
    uint32_t *index;
    float *weights; /* (capacity, n_params) */
    uint8_t *state;
    columns extra;
} shard_buffers;

static void buffers_free(shard_buffers *buffers) {
    free(buffers->index);
    free(buffers->weights);
    free(buffers->state);
    columns_free(&buffers->extra);
}

static wf_status buffers_alloc(wf_ctx *ctx, const collection *all, size_t capacity,
                               shard_buffers *out) {
    *out = (shard_buffers){0};
    wf_status status = wf_alloc(ctx, capacity, sizeof *out->index, "network indices", &out->index);
    if (status == WF_OK)
        status = wf_alloc(ctx, capacity, all->graph->n_params * sizeof *out->weights,
                          "weights of a shard", &out->weights);
    if (status == WF_OK) status = wf_alloc(ctx, capacity, 1, "network states", &out->state);
    if (status == WF_OK) status = columns_alloc(ctx, capacity, all->error_bytes, &out->extra);
    return status;
}

/* Moves the networks that were reached to the front; returns how many. */
static size_t keep_finished(const collection *all, shard_buffers *buffers, size_t count) {
    size_t kept = 0, n_params = all->graph->n_params, bytes = all->error_bytes;
    columns *extra = &buffers->extra;
    for (size_t i = 0; i < count; i++) {
        if (buffers->state[i] == WF_ZOO_WAITING) continue;
        wf_zoo_task task = wf_zoo_task_of(all->desc, buffers->index[i]);
        extra->index[kept] = buffers->index[i];
        extra->lr[kept] = (float)task.lr;
        extra->epochs[kept] = task.epochs;
        extra->scores[kept] = extra->scores[i];
        memmove(extra->errors + kept * bytes, extra->errors + i * bytes, bytes);
        memmove(buffers->weights + kept * n_params, buffers->weights + i * n_params,
                n_params * sizeof *buffers->weights);
        kept++;
    }
    return kept;
}

static wf_status write_part(wf_ctx *ctx, collection *all, shard_buffers *buffers, size_t count) {
    size_t kept = keep_finished(all, buffers, count);
    if (kept == 0) return WF_OK;
    char name[64], path[max_path], seed[32];
    snprintf(name, sizeof name, "%010" PRId64 "%s", buffers->extra.index[0], part_ending);
    WF_TRY(join_path(ctx, path, all->folder, "/", name));
    wf_zoo_extra extra = extra_of(all, &buffers->extra, seed_text(all, seed, sizeof seed));
    WF_TRY(wf_zoo_write(ctx, path, all->graph, buffers->weights, kept, &extra));
    return take_part(ctx, all, path);
}

/* Trains the networks in buffers->index and writes what was finished, also when interrupted. */
static wf_status train_shard(wf_ctx *ctx, collection *all, shard_buffers *buffers, size_t count,
                             wf_meter *meter, size_t done_before) {
    memset(buffers->state, WF_ZOO_WAITING, count);
    memset(buffers->extra.scores, 0, count * sizeof *buffers->extra.scores);
    memset(buffers->extra.errors, 0, count * all->error_bytes);
    wf_zoo_piece piece = {.graph = all->graph,
                          .count = count,
                          .index = buffers->index,
                          .weights = buffers->weights,
                          .fresh = true,
                          .state = buffers->state,
                          .scores = all->error_bytes > 0 ? buffers->extra.scores : NULL,
                          .errors = buffers->extra.errors,
                          .error_bytes = all->error_bytes,
                          .meter = meter,
                          .done_before = done_before};
    wf_status status = wf_zoo_piece_run(ctx, &all->plan, wf_zoo_kernels_pick(), &piece);
    if (status == WF_OK || status == WF_ERR_INTERRUPTED) {
        wf_status written = write_part(ctx, all, buffers, count);
        if (written != WF_OK) status = written;
    }
    return status;
}

/* Small enough that little is lost with a killed process, large enough to keep the threads busy. */
static size_t shard_size(const collection *all, int threads, bool cuda) {
    if (all->desc->shard > 0) return all->desc->shard;
    double epochs = fmax(all->desc->epochs, all->desc->epochs_max);
    double flops = 6.0 * (double)all->graph->n_params * epochs * (double)all->data->n_train;
    double size = cuda ? fmin(gpu_speed * shard_flops / flops, gpu_shard)
                       : fmin(shard_flops / flops, largest_shard);
    return size > 2 * threads ? (size_t)size : 2 * (size_t)threads;
}

static size_t count_trained(const collection *all) {
    size_t trained = 0;
    for (size_t i = 0; i < all->desc->count; i++) trained += all->places[i].part != -1;
    return trained;
}

static wf_status train_parts(wf_ctx *ctx, collection *all) {
    size_t total = all->desc->count, trained = count_trained(all);
    if (trained == total) return WF_OK;
    bool cuda;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    size_t capacity = shard_size(all, wf_ctx_threads(ctx), cuda);
    if (capacity > total - trained) capacity = total - trained;
    shard_buffers buffers;
    wf_status status = buffers_alloc(ctx, all, capacity, &buffers);
    wf_meter meter =
        wf_meter_start(ctx, "training networks", "networks", (double)(total - trained));
    size_t done = 0;
    for (size_t next = 0; status == WF_OK && next < total;) {
        size_t count = 0;
        for (; next < total && count < capacity; next++)
            if (all->places[next].part < 0)
                buffers.index[count++] = (uint32_t)(all->desc->first + next);
        if (count == 0) break;
        status = train_shard(ctx, all, &buffers, count, &meter, done);
        done += count;
    }
    wf_meter_end(&meter, (double)(count_trained(all) - trained), NULL);
    buffers_free(&buffers);
    return status;
}

/* --- the growing file --------------------------------------------------------------------------- */

/* Some networks on their way into the file; one thread at a time writes them. */
typedef struct hand {
    const collection *all;
    const float *weights; /* of the piece */
    size_t piece_first;   /* its place in the collection */
    size_t handed;        /* networks of it that were given to the thread, or are in the file */
    size_t first, count;  /* what the thread writes now */
    bool running;
    pthread_t thread;
    int failed; /* an errno */
} hand;

static void *write_networks(void *hand_) {
    hand *h = hand_;
    int failed = wf_zoo_stream_put(h->all->stream, h->piece_first + h->first, h->count,
                                   h->weights + h->first * h->all->graph->n_params);
    if (failed) h->failed = failed;
    return NULL;
}

static void hand_wait(hand *h) {
    if (h->running) pthread_join(h->thread, NULL);
    h->running = false;
}

/* All networks of the piece before `end` are done. */
static void hand_over(void *hand_, size_t end) {
    hand *h = hand_;
    hand_wait(h);
    h->first = h->handed;
    h->count = end - h->handed;
    h->handed = end;
    h->running = pthread_create(&h->thread, NULL, write_networks, h) == 0;
    if (!h->running) write_networks(h);
}

/* What a piece has finished, when it ended before its end: networks on the CPU finish in no order. */
static void hand_finished(hand *h, const uint8_t *state, size_t count) {
    hand_wait(h);
    for (size_t i = h->handed; i < count; i++) {
        if (state[i] == WF_ZOO_WAITING) continue;
        h->first = i;
        h->count = 1;
        write_networks(h);
    }
}

typedef struct unsaved {
    const collection *all;
    const size_t *list;
    int failed; /* an errno */
} unsaved;

static void unsaved_network(void *unsaved_, size_t i, float *w) {
    unsaved *some = unsaved_;
    int failed = wf_zoo_stream_get(some->all->stream, some->list[i], w);
    if (failed) some->failed = failed;
}

static void copy_columns(const collection *all, const size_t *list, size_t count, columns *out) {
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

/* Writes the networks that are in the growing file alone as a part. */
static wf_status save_unsaved(wf_ctx *ctx, collection *all) {
    size_t *list, count = 0;
    WF_TRY(wf_alloc(ctx, all->desc->count, sizeof *list, "network indices", &list));
    for (size_t i = 0; i < all->desc->count; i++)
        if (all->places[i].part == in_stream) list[count++] = i;
    columns some = {0};
    unsaved source = {all, list, 0};
    wf_status status = WF_OK;
    char name[64], path[max_path], seed[32];
    if (count == 0) goto done;
    WF_TRY_GOTO(columns_alloc(ctx, count, all->error_bytes, &some), done);
    copy_columns(all, list, count, &some);
    snprintf(name, sizeof name, "%010" PRId64 "%s", some.index[0], part_ending);
    WF_TRY_GOTO(join_path(ctx, path, all->folder, "/", name), done);
    wf_zoo_extra extra = extra_of(all, &some, seed_text(all, seed, sizeof seed));
    WF_TRY_GOTO(wf_zoo_write_from(ctx, path, all->graph, unsaved_network, &source, count, &extra),
                done);
    if (source.failed) {
        unlink(path);
        errno = source.failed;
        status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be read back", all->path);
    } else status = take_part(ctx, all, path);
done:
    columns_free(&some);
    free(list);
    return status;
}

/* Networks next .. next+count-1 into the file. */
static wf_status train_piece(wf_ctx *ctx, collection *all, size_t next, size_t count,
                             const uint32_t *index, float *weights, hand *h, wf_meter *meter) {
    hand_wait(h);
    *h = (hand){.all = all, .weights = weights, .piece_first = next, .failed = h->failed};
    bool tested = all->error_bytes > 0;
    wf_zoo_piece piece = {.graph = all->graph,
                          .count = count,
                          .index = index + next,
                          .weights = weights,
                          .fresh = true,
                          .state = all->state + next,
                          .scores = tested ? all->extra.scores + next : NULL,
                          .errors = all->extra.errors + next * all->error_bytes,
                          .error_bytes = all->error_bytes,
                          .meter = meter,
                          .done_before = next,
                          .finished = hand_over,
                          .user = h};
    wf_status status = wf_zoo_piece_run(ctx, &all->plan, wf_zoo_kernels_pick(), &piece);
    if (status != WF_OK) hand_finished(h, piece.state, count);
    for (size_t i = 0; i < count; i++)
        if (piece.state[i] != WF_ZOO_WAITING)
            all->places[next + i] = (place){in_stream, (uint32_t)(next + i)};
    return status;
}

/* All networks, in pieces; two buffers take turns, because one is still being written from. */
static wf_status train_pieces(wf_ctx *ctx, collection *all, size_t capacity, const uint32_t *index,
                              float *const weights[2], wf_meter *meter) {
    size_t total = all->desc->count;
    hand h = {0};
    double saved = wf_seconds();
    wf_status status = WF_OK;
    int turn = 0;
    for (size_t next = 0; next < total && status == WF_OK; next += capacity, turn ^= 1) {
        size_t count = total - next < capacity ? total - next : capacity;
        status = train_piece(ctx, all, next, count, index, weights[turn], &h, meter);
        if (status != WF_OK || next + count == total || wf_seconds() - saved < most_unsaved)
            continue;
        hand_wait(&h);
        if (h.failed == 0) status = save_unsaved(ctx, all);
        saved = wf_seconds();
    }
    hand_wait(&h);
    if (h.failed != 0) {
        errno = h.failed;
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", all->path);
    }
    if (status == WF_OK) return WF_OK;
    char sentence[512]; /* of what went wrong first */
    snprintf(sentence, sizeof sentence, "%s", wf_last_error(ctx));
    wf_status kept = save_unsaved(ctx, all);
    return kept == WF_OK ? wf_fail(ctx, status, "%s", sentence) : kept;
}

static wf_status train_streamed(wf_ctx *ctx, collection *all, bool cuda) {
    size_t total = all->desc->count, row = all->graph->n_params * sizeof(float);
    size_t capacity = shard_size(all, wf_ctx_threads(ctx), false);
    if (cuda) capacity = (size_t)fmax(stream_bytes / (double)row, 1);
    if (capacity > total) capacity = total;
    uint32_t *index = NULL;
    float *weights[2] = {NULL, NULL};
    wf_status status = wf_alloc(ctx, total, sizeof *index, "network indices", &index);
    for (int i = 0; i < (capacity < total ? 2 : 1) && status == WF_OK; i++) {
        weights[i] =
            malloc(capacity * row); /* not cleared: a gigabyte that is about to be written */
        if (weights[i] == NULL)
            status = wf_fail(ctx, WF_ERR_MEMORY, "weights of a shard: out of memory (%zu bytes)",
                             capacity * row);
    }
    if (status == WF_OK) {
        for (size_t i = 0; i < total; i++) index[i] = (uint32_t)(all->desc->first + i);
        wf_meter meter = wf_meter_start(ctx, "training networks", "networks", (double)total);
        status = train_pieces(ctx, all, capacity, index, weights, &meter);
        wf_meter_end(&meter, (double)count_trained(all), NULL);
    }
    free(index);
    free(weights[0]);
    free(weights[1]);
    return status;
}

/* Opens the growing file; leaves all->stream NULL where there can be none. */
static wf_status stream_start(wf_ctx *ctx, collection *all) {
    size_t total = all->desc->count;
    WF_TRY(columns_alloc(ctx, total, all->error_bytes, &all->extra));
    WF_TRY(wf_alloc(ctx, total, sizeof *all->state, "network states", &all->state));
    for (size_t i = 0; i < total; i++) {
        wf_zoo_task task = wf_zoo_task_of(all->desc, (uint32_t)(all->desc->first + i));
        all->extra.index[i] = task.index;
        all->extra.lr[i] = (float)task.lr;
        all->extra.epochs[i] = task.epochs;
    }
    char seed[32];
    wf_zoo_extra extra = extra_of(all, &all->extra, seed_text(all, seed, sizeof seed));
    wf_status status = wf_zoo_stream_open(ctx, all->path, all->graph, total, &extra, &all->stream);
    return status == WF_ERR_UNSUPPORTED ? WF_OK : status;
}

/* The growing file becomes the collection when it is whole; else its networks become parts. */
static wf_status stream_end(wf_ctx *ctx, collection *all) {
    for (size_t i = 0; i < all->desc->count; i++)
        if (all->state[i] != WF_ZOO_TRAINED) return save_unsaved(ctx, all);
    char seed[32];
    wf_zoo_extra extra = extra_of(all, &all->extra, seed_text(all, seed, sizeof seed));
    wf_status status = wf_zoo_stream_commit(ctx, all->stream, &extra);
    all->stream = NULL;
    if (status == WF_OK) remove_parts(ctx, all);
    return status;
}

/* *merged: the file stands already. */
static wf_status train_missing(wf_ctx *ctx, collection *all, bool *merged) {
    size_t total = all->desc->count;
    *merged = false;
    if (count_trained(all) == total) return WF_OK;
    bool cuda;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    if (all->desc->shard == 0 && all->list.count == 0) WF_TRY(stream_start(ctx, all));
    wf_status status = all->stream != NULL ? train_streamed(ctx, all, cuda) : train_parts(ctx, all);
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

/* --- the merge --------------------------------------------------------------------------------- */

static void network_at(void *all_, size_t place_index, float *w) {
    const collection *all = all_;
    const place *at = &all->places[place_index];
    wf_zoo_get(all->list.parts[at->part], at->slot, w);
}

static bool all_finite(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

/* Closes up the places of networks that did not diverge; returns how many there are. */
static wf_status drop_diverged(wf_ctx *ctx, collection *all, size_t *kept) {
    size_t total = all->desc->count, n_params = all->graph->n_params, dropped = 0;
    float *w;
    WF_TRY(wf_alloc(ctx, n_params, sizeof *w, "one network", &w));
    for (size_t i = 0; i < total; i++) {
        network_at(all, i, w);
        if (all_finite(w, n_params)) {
            all->places[i - dropped] = all->places[i];
            continue;
        }
        if (++dropped <= named_divergences)
            wf_warn(ctx, "network %zu diverged (learning rate %.3g) and is left out",
                    all->desc->first + i,
                    wf_zoo_task_of(all->desc, (uint32_t)(all->desc->first + i)).lr);
    }
    free(w);
    *kept = total - dropped;
    if (dropped > named_divergences)
        wf_warn(ctx, "%zu of %zu networks diverged and are left out; lower the learning rate",
                dropped, total);
    return WF_OK;
}

static void merge_columns(const collection *all, size_t count, columns *out) {
    for (size_t i = 0; i < count; i++) {
        const wf_zoo *part = all->list.parts[all->places[i].part];
        size_t slot = all->places[i].slot, bytes = all->error_bytes;
        out->index[i] = wf_zoo_seeds(part)[slot];
        out->lr[i] = wf_zoo_rates(part)[slot];
        out->epochs[i] = wf_zoo_epochs(part)[slot];
        if (bytes == 0) continue;
        out->scores[i] = wf_zoo_scores(part, NULL)[slot];
        memcpy(out->errors + i * bytes, wf_zoo_errors(part, NULL, &bytes) + slot * bytes, bytes);
    }
}

static wf_status merge(wf_ctx *ctx, collection *all, size_t *diverged) {
    size_t kept;
    WF_TRY(drop_diverged(ctx, all, &kept));
    *diverged = all->desc->count - kept;
    if (kept == 0) {
        remove_parts(ctx, all);
        return wf_fail(ctx, WF_ERR_DIVERGED,
                       "%s: all %zu networks diverged; lower the learning rate (%g)", all->path,
                       all->desc->count, all->desc->lr);
    }
    columns extra;
    wf_status status = columns_alloc(ctx, kept, all->error_bytes, &extra);
    if (status == WF_OK) {
        char seed[32];
        merge_columns(all, kept, &extra);
        wf_zoo_extra written = extra_of(all, &extra, seed_text(all, seed, sizeof seed));
        status = wf_zoo_write_from(ctx, all->path, all->graph, network_at, all, kept, &written);
    }
    columns_free(&extra);
    if (status == WF_OK) remove_parts(ctx, all);
    return status;
}

static wf_status collection_start(wf_ctx *ctx, collection *all) {
    const wf_zoo_desc *desc = all->desc;
    WF_TRY(wf_writer_check(ctx, all->path));
    WF_TRY(wf_zoo_plan_build(ctx, all->graph, all->data, desc, &all->chain, &all->plan));
    const char *name = desc->test_name != NULL ? desc->test_name : all->data->name;
    if (strlen(name) >= sizeof all->test_name)
        return wf_fail(ctx, WF_ERR_USAGE, "test set name \"%s\": at most 100 characters", name);
    snprintf(all->test_name, sizeof all->test_name, "%s", name[0] != '\0' ? name : "test");
    all->error_bytes = (all->data->n_test + 7) / 8;
    fingerprint_of(all->data, all->fingerprint);
    WF_TRY(write_recipe(ctx, all));
    WF_TRY(join_path(ctx, all->folder, all->path, "", ".parts"));
    WF_TRY(wf_alloc(ctx, desc->count, sizeof *all->places, "places of networks", &all->places));
    for (size_t i = 0; i < desc->count; i++) all->places[i].part = -1;
    return take_parts(ctx, all);
}

wf_status wf_zoo_train(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                       const wf_zoo_desc *desc, const char *path, size_t *diverged) {
    size_t dropped = 0;
    collection *all;
    WF_TRY(wf_alloc(ctx, 1, sizeof *all, "collection", &all));
    all->graph = graph;
    all->data = data;
    all->desc = desc;
    all->path = path;
    wf_status status = collection_start(ctx, all);
    bool merged = false;
    if (status == WF_OK) status = train_missing(ctx, all, &merged);
    if (status == WF_OK && !merged) status = merge(ctx, all, &dropped);
    for (size_t p = 0; p < all->list.count; p++) wf_zoo_free(all->list.parts[p]);
    free(all->list.parts);
    free(all->places);
    free(all->state);
    columns_free(&all->extra);
    free(all);
    if (diverged != NULL) *diverged = dropped;
    return status;
}
