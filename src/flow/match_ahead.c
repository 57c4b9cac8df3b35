#include "flow/match_ahead.h"

#include <pthread.h>
#include <stdlib.h>

struct wf_match_ahead {
    wf_ctx *ctx; /* its own: threads, and the sentence of a failure */
    wf_draw draw;
    uint32_t *relabellings;
    size_t slots, units, end;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock: */
    size_t done;     /* updates below are in their slots */
    size_t released; /* slots of updates below are free */
    bool quit;
    wf_status status;
};

size_t wf_match_units(const wf_stocks *stocks) {
    size_t most = 1;
    for (int s = 0; s < stocks->n_stocks; s++) {
        size_t units = wf_graph_perm_size(stocks->stocks[s].graph);
        if (units > most) most = units;
    }
    return most;
}

static void *run(void *arg) {
    wf_match_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->quit && a->status == WF_OK && a->done < a->end) {
        if (a->done >= a->released + a->slots) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        size_t update = a->done;
        pthread_mutex_unlock(&a->lock);
        uint32_t *slot = a->relabellings + update % a->slots * (size_t)a->draw.batch * a->units;
        wf_status status = wf_draw_relabellings(a->ctx, &a->draw, update, slot, a->units);
        pthread_mutex_lock(&a->lock);
        a->status = status;
        if (status == WF_OK) a->done++;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

wf_status wf_match_ahead_start(wf_ctx *ctx, const wf_stocks *stocks, const wf_fit_desc *desc,
                               size_t first, size_t end, uint32_t *relabellings, size_t slots,
                               wf_match_ahead **out) {
    *out = NULL;
    wf_match_ahead *a;
    WF_TRY(wf_alloc(ctx, 1, sizeof *a, "matching ahead", &a));
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->relabellings = relabellings;
    a->slots = slots;
    a->units = wf_match_units(stocks);
    a->done = a->released = first;
    a->end = end;
    /* The thread that feeds the GPU is not among them: it mostly waits. */
    wf_ctx_desc pool = {.threads = wf_ctx_threads(ctx)};
    wf_status status = wf_ctx_create(&pool, &a->ctx);
    if (status != WF_OK) wf_fail(ctx, status, "matching ahead: out of memory");
    if (status == WF_OK) {
        status = wf_draw_create(a->ctx, stocks, desc, &a->draw);
        if (status != WF_OK) wf_fail(ctx, status, "%s", wf_last_error(a->ctx));
    }
    if (status == WF_OK) {
        a->running = pthread_create(&a->thread, NULL, run, a) == 0;
        if (!a->running) status = wf_fail(ctx, WF_ERR_FAILED, "matching ahead: no thread");
    }
    if (status == WF_OK) *out = a;
    else wf_match_ahead_stop(a);
    return status;
}

wf_status wf_match_ahead_wait(wf_ctx *ctx, wf_match_ahead *a, size_t update) {
    pthread_mutex_lock(&a->lock);
    while (a->status == WF_OK && a->done <= update) pthread_cond_wait(&a->changed, &a->lock);
    bool there = a->done > update;
    wf_status status = a->status;
    pthread_mutex_unlock(&a->lock);
    return there ? WF_OK : wf_fail(ctx, status, "%s", wf_last_error(a->ctx));
}

void wf_match_ahead_release(wf_match_ahead *a, size_t update) {
    pthread_mutex_lock(&a->lock);
    if (update > a->released) a->released = update;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void wf_match_ahead_stop(wf_match_ahead *a) {
    if (a == NULL) return;
    if (a->running) {
        pthread_mutex_lock(&a->lock);
        a->quit = true;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    wf_draw_free(&a->draw);
    wf_ctx_free(a->ctx);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
