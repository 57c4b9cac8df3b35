/* zoo_ranks: a collection trained by several ranks. Rank 0 takes up the files that it finds and
 * says which networks are missing; each rank trains a contiguous share of those into parts; rank 0
 * merges all parts. The parts that a killed rank had saved are kept, and the next call divides the
 * rest among the ranks again. */
#include "base/comm.h"
#include "zoo/zoo_collection.h"

#include <stdlib.h>

/* All ranks learn from rank 0 which networks are trained; then each rank keeps a share of what
 * is not. */
static wf_status share_out(wf_ctx *ctx, zoo_collection *all) {
    size_t count = all->desc->count, waiting = 0, next = 0;
    WF_TRY(wf_same(ctx, "the collection's recipe or data set", all->recipe));
    WF_TRY(wf_broadcast(ctx, &all->stands, sizeof all->stands));
    WF_TRY(wf_broadcast(ctx, all->state, count));
    WF_TRY(wf_broadcast(ctx, all->started, count));
    for (size_t i = 0; i < count; i++) waiting += all->state[i] == WF_ZOO_WAITING;
    wf_range own = wf_share(ctx, waiting);
    for (size_t i = 0; i < count; i++) {
        bool waits = all->state[i] == WF_ZOO_WAITING;
        bool mine = waits && next >= own.first && next < own.last;
        next += waits;
        if (mine || all->places[i].part >= 0) continue;
        all->state[i] = WF_ZOO_TRAINED;
        all->places[i].part = WF_PLACE_ELSEWHERE;
    }
    if (waiting > 0 && waiting < (size_t)wf_ctx_ranks(ctx))
        wf_warn(ctx, "%zu networks to train: %zu of %d ranks have nothing to do", waiting,
                (size_t)wf_ctx_ranks(ctx) - waiting, wf_ctx_ranks(ctx));
    return WF_OK;
}

/* Rank 0 opens the parts that the others have written, by the indices in their names: a listing of
 * the folder may be old on a network file system. */
static wf_status take_others(wf_ctx *ctx, zoo_collection *all, size_t before) {
    size_t ranks = (size_t)wf_ctx_ranks(ctx), rank = (size_t)wf_ctx_rank(ctx), *start = NULL;
    int64_t *first = NULL;
    size_t written = all->list.count - before;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, ranks + 1, sizeof *start, "parts", &start), done);
    start[rank] = written;
    WF_TRY_GOTO(wf_gather_rows(ctx, start, sizeof *start, ranks), done);
    for (size_t r = 0, sum = 0; r <= ranks; r++) {
        size_t own = r < ranks ? start[r] : 0;
        start[r] = sum;
        sum += own * sizeof *first;
    }
    WF_TRY_GOTO(wf_alloc(ctx, start[ranks] / sizeof *first, sizeof *first, "parts", &first), done);
    for (size_t p = 0; p < written; p++)
        first[start[rank] / sizeof *first + p] = wf_zoo_seeds(all->list.parts[before + p])[0];
    WF_TRY_GOTO(wf_gather_bytes(ctx, first, start), done);
    for (size_t p = start[1] / sizeof *first; rank == 0 && p < start[ranks] / sizeof *first; p++) {
        char path[WF_ZOO_PATH];
        WF_TRY_GOTO(wf__zoo_part_path(ctx, all, first[p], path), done);
        bool alone = wf_work_alone(ctx, true);
        status = wf__zoo_take_part(ctx, all, path);
        wf_work_alone(ctx, alone);
        if (status != WF_OK) goto done;
    }
done:
    free(start);
    free(first);
    return status;
}

typedef struct merging {
    zoo_collection *all;
    size_t *dropped;
} merging;

static wf_status merge(wf_ctx *ctx, void *merging_) {
    const merging *m = merging_;
    return m->all->stands > 0 ? wf__zoo_train_here(ctx, m->all, m->dropped)
                              : wf__zoo_merge(ctx, m->all, m->dropped);
}

wf_status wf__zoo_train_together(wf_ctx *ctx, zoo_collection *all, wf_status status,
                                 size_t *dropped) {
    WF_TRY(wf_agree(ctx, status));
    WF_TRY(share_out(ctx, all));
    size_t before = all->list.count;
    bool merged = all->stands > 0;
    if (!merged) {
        bool alone = wf_work_alone(ctx, true);
        all->in_parts = true;
        status = wf__zoo_train_missing(ctx, all, &merged);
        wf_work_alone(ctx, alone);
        status = wf_agree(ctx, status);
        if (status == WF_ERR_INTERRUPTED)
            return wf_fail(ctx, status, "interrupted; the networks trained so far are kept in %s",
                           all->folder);
        WF_TRY(status);
        WF_TRY(take_others(ctx, all, before));
    }
    WF_TRY(wf_rank_0_does(ctx, merge, &(merging){all, dropped}));
    return wf_broadcast(ctx, dropped, sizeof *dropped);
}
