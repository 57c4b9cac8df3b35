#include "flow/match_ahead.h"

#include <pthread.h>
#include <stdlib.h>

enum { most_bytes = 1 << 30 }; /* of all workers' batches */

typedef struct worker {
    wf_match_ahead *ahead;
    wf_ctx *ctx; /* its own: threads, and the sentence of a failure */
    wf_draw draw;
    pthread_t thread;
    bool running;
} worker;

struct wf_match_ahead {
    worker *workers;
    int n_workers;
    uint32_t *relabellings;
    size_t ring, units, end;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock: */
    size_t next;     /* the next update to be taken by a worker */
    size_t *held;    /* (ring) one more than the update whose relabellings are there; 0: none */
    size_t released; /* the entries of updates below are free */
    bool quit;
    wf_status status;
    const worker *failed;
};

size_t wf_match_units(const wf_training_set *set) {
    size_t most = 1;
    for (int s = 0; s < set->n_families; s++) {
        size_t units = wf_graph_perm_size(set->families[s].graph);
        if (units > most) most = units;
    }
    return most;
}

static void *run(void *arg) {
    worker *w = arg;
    wf_match_ahead *a = w->ahead;
    pthread_mutex_lock(&a->lock);
    while (!a->quit && a->status == WF_OK && a->next < a->end) {
        if (a->next >= a->released + a->ring) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        size_t update = a->next++;
        pthread_mutex_unlock(&a->lock);
        uint32_t *entry = a->relabellings + update % a->ring * (size_t)w->draw.batch * a->units;
        wf_status status = wf_draw_relabellings(w->ctx, &w->draw, update, entry, a->units);
        pthread_mutex_lock(&a->lock);
        if (status == WF_OK) a->held[update % a->ring] = update + 1;
        else if (a->status == WF_OK) a->status = status, a->failed = w;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Each worker has a batch of its own while memory allows; with more threads, workers have
 * several. */
static int count_workers(int threads, const wf_training_set *set, size_t batch, size_t ring) {
    size_t largest = 1, most = (size_t)threads;
    for (int s = 0; s < set->n_families; s++)
        if (set->families[s].graph->n_params > largest) largest = set->families[s].graph->n_params;
    size_t fitting = most_bytes / (WF_DRAW_ARRAYS * sizeof(float) * batch * largest);
    if (most > fitting) most = fitting;
    if (most > ring) most = ring;
    return most < 1 ? 1 : (int)most;
}

static wf_status start_worker(wf_ctx *ctx, wf_match_ahead *a, const wf_training_set *set,
                              const wf_fit_desc *desc, worker *w) {
    int threads = wf_ctx_threads(ctx) / a->n_workers;
    wf_ctx_desc pool = {.threads = threads < 1 ? 1 : threads};
    w->ahead = a;
    if (wf_ctx_create(&pool, &w->ctx) != WF_OK)
        return wf_fail(ctx, WF_ERR_MEMORY, "matching ahead: out of memory");
    wf_status status = wf_draw_create(w->ctx, set, desc, &w->draw);
    if (status != WF_OK) return wf_fail(ctx, status, "%s", wf_last_error(w->ctx));
    w->running = pthread_create(&w->thread, NULL, run, w) == 0;
    return w->running ? WF_OK : wf_fail(ctx, WF_ERR_FAILED, "matching ahead: no thread");
}

wf_status wf_match_ahead_start(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                               size_t first, size_t end, uint32_t *relabellings, size_t ring,
                               wf_match_ahead **out) {
    *out = NULL;
    wf_match_ahead *a;
    WF_TRY(wf_alloc(ctx, 1, sizeof *a, "matching ahead", &a));
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->relabellings = relabellings;
    a->ring = ring;
    a->units = wf_match_units(set);
    a->next = a->released = first;
    a->end = end;
    /* The thread that feeds the GPU is not among them: it mostly waits. */
    a->n_workers = count_workers(wf_ctx_threads(ctx), set, desc->batch, ring);
    wf_status status = wf_alloc(ctx, ring, sizeof *a->held, "matching ahead", &a->held);
    if (status == WF_OK)
        status =
            wf_alloc(ctx, (size_t)a->n_workers, sizeof *a->workers, "matching ahead", &a->workers);
    for (int i = 0; status == WF_OK && i < a->n_workers; i++)
        status = start_worker(ctx, a, set, desc, &a->workers[i]);
    if (status == WF_OK) *out = a;
    else wf_match_ahead_stop(a);
    return status;
}

wf_status wf_match_ahead_wait(wf_ctx *ctx, wf_match_ahead *a, size_t update) {
    pthread_mutex_lock(&a->lock);
    const size_t *held = &a->held[update % a->ring];
    while (a->status == WF_OK && *held != update + 1) pthread_cond_wait(&a->changed, &a->lock);
    bool there = *held == update + 1;
    wf_status status = a->status;
    pthread_mutex_unlock(&a->lock);
    return there ? WF_OK : wf_fail(ctx, status, "%s", wf_last_error(a->failed->ctx));
}

void wf_match_ahead_release(wf_match_ahead *a, size_t update) {
    pthread_mutex_lock(&a->lock);
    if (update > a->released) a->released = update;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void wf_match_ahead_stop(wf_match_ahead *a) {
    if (a == NULL) return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; a->workers != NULL && i < a->n_workers; i++)
        if (a->workers[i].running) pthread_join(a->workers[i].thread, NULL);
    for (int i = 0; a->workers != NULL && i < a->n_workers; i++) {
        wf_draw_free(&a->workers[i].draw);
        wf_ctx_free(a->workers[i].ctx);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->workers);
    free(a->held);
    free(a);
}
