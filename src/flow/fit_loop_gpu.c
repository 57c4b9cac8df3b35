/* fit_loop_gpu: the training loop when updates run on the GPU.
 *
 * The host keeps some updates enqueued, reads their records in order as they finish, and writes the
 * log from them. A checkpoint is taken after the last enqueued update: the GPU copies its state out
 * while later updates run, the records up to that boundary give the rest, and a thread writes the
 * file. Invariants L1 to L3 of flow_fit.c hold. */
#include "flow/trainer.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

static const double seconds_ahead = 0.2; /* of work enqueued: how long an interruption may wait */

/* A checkpoint on its way. */
typedef enum save_stage { SAVE_NONE, SAVE_COPYING, SAVE_WRITING } save_stage;

typedef struct gpu_loop {
    wf_trainer *tr;
    wf_fit_cuda *fit;
    size_t enqueued; /* updates, counted from the run's first */
    double per_update;
    save_stage stage;
    size_t boundary;    /* updates in the checkpoint */
    bool state_known;   /* records up to the boundary have been read */
    wf_fit_state state; /* at the boundary */
    wf_ctx *writer_ctx;
    pthread_t writer;
    atomic_bool written;
    wf_status write_status;
} gpu_loop;

/* --- checkpoints ------------------------------------------------------------------------------ */

static void *write_checkpoint(void *arg) {
    gpu_loop *loop = arg;
    loop->write_status = wf__trainer_store(loop->tr, loop->writer_ctx, &loop->state);
    atomic_store(&loop->written, true);
    return NULL;
}

static wf_status begin_save(gpu_loop *loop) {
    WF_TRY(wf__fit_cuda_copy(loop->tr->ctx, loop->fit));
    loop->stage = SAVE_COPYING;
    loop->boundary = loop->enqueued;
    loop->state_known = false;
    return WF_OK;
}

static void note_boundary(gpu_loop *loop) {
    if (loop->stage != SAVE_COPYING || loop->state_known || loop->tr->state.step != loop->boundary)
        return;
    loop->state = loop->tr->state;
    loop->state.seconds = wf__trainer_seconds(loop->tr);
    loop->state_known = true;
}

static wf_status begin_writing(gpu_loop *loop) {
    wf__trainer_fill_best(loop->tr);
    atomic_store(&loop->written, false);
    if (pthread_create(&loop->writer, NULL, write_checkpoint, loop) != 0)
        return wf_fail(loop->tr->ctx, WF_ERR_FAILED, "%s: no thread to write the checkpoint",
                       loop->tr->path);
    loop->stage = SAVE_WRITING;
    return WF_OK;
}

static wf_status end_writing(gpu_loop *loop) {
    pthread_join(loop->writer, NULL);
    loop->stage = SAVE_NONE;
    if (loop->write_status != WF_OK)
        return wf_fail(loop->tr->ctx, loop->write_status, "%s", wf_last_error(loop->writer_ctx));
    loop->tr->saved = true;
    loop->tr->last_save = wf_seconds();
    return WF_OK;
}

/* Takes a checkpoint one stage further. wait: until it is written, which needs all records up to
 * its boundary. */
static wf_status go_on_saving(gpu_loop *loop, bool wait) {
    note_boundary(loop);
    bool there = false;
    if (loop->stage == SAVE_COPYING && loop->state_known) {
        WF_TRY(wf__fit_cuda_copied(loop->tr->ctx, loop->fit, wait, &there));
        if (there) WF_TRY(begin_writing(loop));
    }
    if (loop->stage == SAVE_WRITING && (wait || atomic_load(&loop->written)))
        WF_TRY(end_writing(loop));
    return WF_OK;
}

/* --- updates ---------------------------------------------------------------------------------- */

/* With patience each loss decides whether there is a next update. */
static size_t updates_ahead(const gpu_loop *loop) {
    if (loop->tr->desc.patience > 0) return 1;
    double fitting = loop->per_update > 0 ? seconds_ahead / loop->per_update : 4;
    return fitting < 2 ? 2 : fitting > WF_FIT_CUDA_AHEAD ? WF_FIT_CUDA_AHEAD : (size_t)fitting;
}

/* Does a validation wait for the updates that are enqueued? Then nothing may follow them yet. */
static bool validation_waits(const gpu_loop *loop) {
    return loop->enqueued > loop->tr->state.step &&
           wf_validation_due(&loop->tr->validation, loop->enqueued, loop->tr->desc.updates);
}

static wf_status enqueue(gpu_loop *loop) {
    wf_trainer *tr = loop->tr;
    while (loop->enqueued < tr->desc.updates && !validation_waits(loop) &&
           !wf__trainer_renewal_due(tr, loop->enqueued) &&
           loop->enqueued - tr->state.step < updates_ahead(loop)) {
        WF_TRY(wf__fit_cuda_enqueue(tr->ctx, loop->fit));
        loop->enqueued++;
    }
    return WF_OK;
}

/* Waits for the next update and counts it. */
static wf_status read_record(gpu_loop *loop, double *loss) {
    wf_trainer *tr = loop->tr;
    wf_update_record record;
    double start = wf_seconds();
    WF_TRY(wf__fit_cuda_record(tr->ctx, loop->fit, tr->state.step, &record));
    if (!record.made)
        return wf__trainer_diverged(tr, tr->ctx, tr->state.step + 1,
                                    isfinite(record.loss) ? "gradient's norm" : "loss",
                                    isfinite(record.loss) ? record.norm : record.loss);
    *loss = record.loss;
    if (tr->desc.kept == WF_KEPT_BEST && record.loss < tr->state.best_loss)
        tr->state.best_loss = record.loss;
    WF_TRY(wf__trainer_count(tr, record.loss, record.norm, record.factor));
    /* While the queue is full, waiting for a record takes as long as an update. */
    double took = wf_seconds() - start;
    loop->per_update = loop->per_update > 0 ? 0.9 * loop->per_update + 0.1 * took : took;
    return WF_OK;
}

static wf_status forward_on_gpu(void *arg, int which, wf_flow_batch *batch) {
    gpu_loop *loop = arg;
    return wf__fit_cuda_forward(loop->tr->ctx, loop->fit, which, batch);
}

/* Behind the last update that is enqueued: no checkpoint begins while a validation waits, so none
 * has this boundary, and the arrays on the host are free. */
static wf_status validate(gpu_loop *loop) {
    wf_trainer *tr = loop->tr;
    if (!wf_validation_due(&tr->validation, tr->state.step, tr->desc.updates)) return WF_OK;
    WF_TRY(go_on_saving(loop, true));
    if (tr->desc.kept == WF_KEPT_VALIDATION) {
        bool there;
        WF_TRY(wf__fit_cuda_copy(tr->ctx, loop->fit));
        WF_TRY(wf__fit_cuda_copied(tr->ctx, loop->fit, true, &there));
    }
    return wf__trainer_validate(tr, forward_on_gpu, loop);
}

/* Fresh networks, where the next update waits for them and nothing is under way; as on the CPU
 * before a validation. */
static wf_status renew(gpu_loop *loop) {
    wf_trainer *tr = loop->tr;
    wf__trainer_choose_rate(tr, loop->enqueued);
    if (loop->enqueued != tr->state.step || !wf__trainer_renewal_due(tr, loop->enqueued))
        return WF_OK;
    tr->state.validation_waits =
        wf_validation_due(&tr->validation, tr->state.step, tr->desc.updates);
    WF_TRY(wf__fit_cuda_match_until(tr->ctx, loop->fit, loop->enqueued));
    while (wf__trainer_renewal_due(tr, loop->enqueued)) {
        int place;
        WF_TRY(wf_fresh_pool_renew(tr->ctx, &tr->pool, &place));
        for (int i = 0; i < tr->set.n_sources; i++) {
            const wf_training_source *source = &tr->set.sources[i];
            size_t slice = tr->pool.sources[i].slice;
            WF_TRY(wf__fit_cuda_renew(tr->ctx, loop->fit, source->family,
                                      source->first + (size_t)place * slice, slice));
        }
    }
    tr->state.validation_waits = false;
    return wf__fit_cuda_match_until(tr->ctx, loop->fit, tr->desc.updates);
}

/* Finishes all enqueued updates and writes a checkpoint of them. */
static wf_status finish(gpu_loop *loop) {
    wf_trainer *tr = loop->tr;
    double loss;
    while (tr->state.step < loop->enqueued) {
        WF_TRY(read_record(loop, &loss));
        if (wf__trainer_renewal_due(tr, tr->state.step)) /* comes first, and is not begun here */
            tr->state.validation_waits =
                wf_validation_due(&tr->validation, tr->state.step, tr->desc.updates);
        else WF_TRY(validate(loop));
        WF_TRY(go_on_saving(loop, false));
    }
    WF_TRY(go_on_saving(loop, true)); /* one that is still on its way */
    WF_TRY(begin_save(loop));
    return go_on_saving(loop, true);
}

/* WF_ERR_INTERRUPTED: in a renewal behind the update. */
static wf_status next_update(gpu_loop *loop, double *loss) {
    WF_TRY(enqueue(loop));
    WF_TRY(read_record(loop, loss));
    return renew(loop);
}

static wf_status run(gpu_loop *loop) {
    wf_trainer *tr = loop->tr;
    size_t updates = tr->desc.updates;
    wf_meter meter = wf_meter_start(tr->ctx, "training the flow", "updates", (double)updates);
    double loss = NAN, smooth = NAN;
    if (tr->state.validation_waits) WF_TRY(validate(loop));
    tr->state.validation_waits = false;
    while (!wf__trainer_ended(tr) && !wf__trainer_late(tr)) {
        wf_status status = wf_interrupted(tr->ctx) ? WF_ERR_INTERRUPTED : next_update(loop, &loss);
        if (status == WF_ERR_INTERRUPTED) {
            WF_TRY(finish(loop));
            return wf__trainer_interrupted(tr);
        }
        WF_TRY(status);
        smooth = isnan(smooth) ? loss : 0.98 * smooth + 0.02 * loss;
        WF_TRY(validate(loop));
        wf__trainer_progress(tr, &meter, smooth, false);
        WF_TRY(go_on_saving(loop, false));
        if (loop->stage == SAVE_NONE && !validation_waits(loop) &&
            wf_seconds() - tr->last_save >= tr->desc.save_seconds)
            WF_TRY(begin_save(loop));
    }
    WF_TRY(finish(loop));
    wf__trainer_progress(tr, &meter, smooth, true);
    if (tr->state.step < updates) wf__trainer_cut(tr);
    return WF_OK;
}

wf_status wf__train_gpu(wf_trainer *tr) {
    if (wf__trainer_ended(tr) && !tr->state.validation_waits) return WF_OK;
    gpu_loop loop = {.tr = tr, .enqueued = tr->state.step};
    wf_fit_cuda_desc desc = {.field = tr->field,
                             .set = &tr->set,
                             .fit = &tr->desc,
                             .path = tr->path_form,
                             .optim = tr->optim_desc,
                             .schedule = tr->schedule,
                             .arrays = &tr->arrays,
                             .update = tr->state.step,
                             .best_loss = tr->state.best_loss,
                             .fast = tr->fast};
    wf_ctx_desc one = {.threads = 1};
    if (wf_ctx_create(&one, &loop.writer_ctx) != WF_OK)
        return wf_fail(tr->ctx, WF_ERR_MEMORY, "%s: out of memory", tr->path);
    wf_status status = wf__fit_cuda_create(tr->ctx, &desc, &loop.fit);
    if (status == WF_OK) status = run(&loop);
    if (loop.stage == SAVE_WRITING) pthread_join(loop.writer, NULL);
    wf__fit_cuda_free(loop.fit);
    wf_ctx_free(loop.writer_ctx);
    return status;
}
