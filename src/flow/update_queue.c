#include "flow/update_queue.h"

#include "base/backlog.h"
#include "flow/split.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

/* A checkpoint on its way. */
typedef enum save_stage { SAVE_NONE, SAVE_COPYING, SAVE_WRITING } save_stage;

/* What goes by a clock, of which rank 0's counts: whether the fit has ended, whether `between` has
 * work, and above them how many updates may be under way. */
enum { HAS_ENDED = 1, HAS_PAUSE = 2, AHEAD_SHIFT = 8 };

typedef struct queue_loop {
    wf_update_queue *q;
    uint32_t flags;
    size_t enqueued; /* updates, counted from the fit's first */
    wf_backlog backlog;
    double last_record; /* when it was there, or the empty queue was filled again */
    double last_save;
    save_stage stage;
    size_t boundary;  /* updates in the checkpoint */
    bool state_known; /* records up to the boundary have been read */
    wf_ctx *writer_ctx;
    pthread_t writer;
    atomic_bool written;
    wf_status write_status;
} queue_loop;

/* --- checkpoints ------------------------------------------------------------------------------ */

static void *write_checkpoint(void *arg) {
    queue_loop *loop = arg;
    loop->write_status = loop->q->work->store(loop->q->fit, loop->writer_ctx);
    atomic_store(&loop->written, true);
    return NULL;
}

static void note_boundary(queue_loop *loop) {
    if (loop->stage != SAVE_COPYING || loop->state_known || *loop->q->made != loop->boundary)
        return;
    loop->q->work->keep_state(loop->q->fit);
    loop->state_known = true;
}

static wf_status begin_save(queue_loop *loop) {
    WF_TRY(wf__updates_cuda_copy(loop->q->ctx, loop->q->device));
    loop->stage = SAVE_COPYING;
    loop->boundary = loop->enqueued;
    loop->state_known = false;
    note_boundary(loop); /* nothing may be under way */
    return WF_OK;
}

static wf_status begin_writing(queue_loop *loop) {
    atomic_store(&loop->written, false);
    if (pthread_create(&loop->writer, NULL, write_checkpoint, loop) != 0)
        return wf_fail(loop->q->ctx, WF_ERR_FAILED, "%s: no thread to write the checkpoint",
                       loop->q->path);
    loop->stage = SAVE_WRITING;
    return WF_OK;
}

static wf_status end_writing(queue_loop *loop) {
    pthread_join(loop->writer, NULL);
    loop->stage = SAVE_NONE;
    *loop->q->gave_up = loop->write_status == WF_ERR_INTERRUPTED;
    if (loop->write_status != WF_OK)
        return wf_fail(loop->q->ctx, loop->write_status, "%s", wf_last_error(loop->writer_ctx));
    *loop->q->saved = true;
    loop->last_save = wf_ctx_seconds(loop->q->ctx);
    return WF_OK;
}

/* Takes a checkpoint one stage further. wait: until it is written, which needs all records up to
 * its boundary. */
static wf_status go_on_saving(queue_loop *loop, bool wait) {
    note_boundary(loop);
    bool there = false;
    if (loop->stage == SAVE_COPYING && loop->state_known) {
        WF_TRY(wf__updates_cuda_copied(loop->q->ctx, loop->q->device, wait, &there));
        if (there) WF_TRY(begin_writing(loop));
    }
    if (loop->stage == SAVE_WRITING && (wait || atomic_load(&loop->written)))
        WF_TRY(end_writing(loop));
    return WF_OK;
}

/* --- updates ---------------------------------------------------------------------------------- */

/* Does a validation wait for the updates that are enqueued? Then nothing may follow them yet. */
static bool validation_waits(const queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    return loop->enqueued > *q->made && q->work->validation_due(q->fit, loop->enqueued);
}

static bool is_held(const wf_update_queue *q, size_t update) {
    return q->work->holds != NULL && q->work->holds(q->fit, update);
}

/* No update is enqueued behind one that something waits for. */
static wf_status enqueue(queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    bool under_way = loop->enqueued > *q->made;
    size_t ahead = loop->flags >> AHEAD_SHIFT;
    if (!under_way) loop->last_record = wf_seconds();
    if (!under_way && q->work->between != NULL) WF_TRY(q->work->between(q->fit));
    bool pauses = under_way && (loop->flags & HAS_PAUSE) != 0;
    while (q->work->wants(q->fit, loop->enqueued) && !pauses && !validation_waits(loop) &&
           !is_held(q, loop->enqueued) && loop->enqueued - *q->made < ahead) {
        WF_TRY(q->work->enqueue(q->fit));
        loop->enqueued++;
    }
    return WF_OK;
}

/* Waits for the next update and counts it. */
static wf_status read_record(queue_loop *loop, double *loss) {
    const wf_update_queue *q = loop->q;
    wf_update_record record;
    WF_TRY(q->work->record(q->fit, *q->made, &record));
    bool finite = isfinite(record.loss);
    if (!record.made)
        return q->work->diverged(q->fit, finite ? "gradient's norm" : "loss",
                                 finite ? record.norm : record.loss);
    WF_TRY(q->work->count(q->fit, &record));
    *loss = record.loss;
    /* While the queue is full, records come as fast as updates are made. */
    double now = wf_seconds();
    wf_backlog_took(&loop->backlog, 1, now - loop->last_record);
    loop->last_record = now;
    return WF_OK;
}

/* Behind the last update that is enqueued: no checkpoint begins while a validation waits, so none
 * has this boundary, and the arrays on the host are free. */
static wf_status validate(queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    if (!q->work->validation_due(q->fit, *q->made)) return WF_OK;
    WF_TRY(go_on_saving(loop, true));
    return q->work->validate(q->fit);
}

/* Before each update all ranks agree on what they do next, so that they enqueue the same updates:
 * an update waits for the others' gradients. An interruption of one is one of all. */
static wf_status meet(queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    size_t ahead = wf_backlog_next(&loop->backlog, q->one_by_one ? 1 : WF_UPDATES_AHEAD);
    bool pauses = q->work->pauses != NULL && q->work->pauses(q->fit);
    loop->flags = (uint32_t)ahead << AHEAD_SHIFT;
    if (q->work->ended(q->fit)) loop->flags |= HAS_ENDED;
    if (pauses) loop->flags |= HAS_PAUSE;
    wf_status mine = wf_interrupted(q->ctx) ? WF_ERR_INTERRUPTED : WF_OK;
    if (wf_ctx_ranks(q->ctx) == 1) return mine;
    wf_split nobody = {.rank = wf_ctx_rank(q->ctx), .ranks = wf_ctx_ranks(q->ctx), .active = 1};
    return wf_split_meet(q->ctx, &nobody, mine, &loop->flags, NULL);
}

/* Finishes all enqueued updates and writes a checkpoint of them. */
static wf_status finish(queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    double loss;
    wf_stop_saves(loop->writer_ctx, wf_ctx_seconds(q->ctx) - loop->last_save);
    if (wf_interrupted(q->ctx)) wf_interrupt(loop->writer_ctx);
    while (*q->made < loop->enqueued) {
        WF_TRY(read_record(loop, &loss));
        if (is_held(q, *q->made)) /* what it is held for comes first, and is not begun here */
            *q->validation_waits = q->work->validation_due(q->fit, *q->made);
        else WF_TRY(validate(loop));
        WF_TRY(go_on_saving(loop, false));
    }
    wf_status status = go_on_saving(loop, true); /* one that is still on its way */
    if (wf_ctx_rank(q->ctx) == 0) {
        if (status == WF_OK) status = begin_save(loop);
        if (status == WF_OK) status = go_on_saving(loop, true);
    }
    WF_TRY(wf_from_rank_0(q->ctx, status));
    *q->saved = true;
    return WF_OK;
}

/* WF_ERR_INTERRUPTED: in what is prepared behind the update. */
static wf_status next_update(queue_loop *loop, double *loss) {
    const wf_update_queue *q = loop->q;
    WF_TRY(enqueue(loop));
    WF_TRY(read_record(loop, loss));
    return q->work->prepare == NULL ? WF_OK : q->work->prepare(q->fit, loop->enqueued);
}

static wf_status run(queue_loop *loop) {
    const wf_update_queue *q = loop->q;
    wf_meter meter = wf_meter_start(q->ctx, q->doing, "updates", (double)q->updates);
    double loss = NAN, smooth = NAN;
    if (*q->validation_waits) WF_TRY(validate(loop));
    *q->validation_waits = false;
    for (;;) {
        wf_status status = meet(loop);
        if (status == WF_OK && (loop->flags & HAS_ENDED) != 0) break;
        if (status == WF_OK) status = next_update(loop, &loss);
        if (status == WF_ERR_INTERRUPTED) {
            WF_TRY(finish(loop));
            return WF_ERR_INTERRUPTED;
        }
        WF_TRY(status);
        smooth = isnan(smooth) ? loss : 0.98 * smooth + 0.02 * loss;
        WF_TRY(validate(loop));
        q->work->progress(q->fit, &meter, smooth, false);
        WF_TRY(go_on_saving(loop, false));
        if (loop->stage == SAVE_NONE && !validation_waits(loop) && wf_ctx_rank(q->ctx) == 0 &&
            wf_ctx_seconds(q->ctx) - loop->last_save >= q->save_seconds)
            WF_TRY(begin_save(loop));
    }
    WF_TRY(finish(loop));
    q->work->progress(q->fit, &meter, smooth, true);
    return WF_OK;
}

wf_status wf_queue_run(wf_update_queue *q) {
    queue_loop loop = {.q = q, .enqueued = *q->made, .last_save = wf_ctx_seconds(q->ctx)};
    wf_ctx_desc one = {.threads = 1};
    if (wf_ctx_create(&one, &loop.writer_ctx) != WF_OK)
        return wf_fail(q->ctx, WF_ERR_MEMORY, "%s: out of memory", q->path);
    wf_status status = run(&loop);
    if (loop.stage == SAVE_WRITING) pthread_join(loop.writer, NULL);
    wf_ctx_free(loop.writer_ctx);
    return status;
}
