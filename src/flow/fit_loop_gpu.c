/* fit_loop_gpu: what a flow does in the loop of update_queue.h. Invariants L1 to L3 of flow_fit.c
 * hold. */
#include "base/comm.h"
#include "flow/trainer.h"
#include "flow/update_queue.h"

typedef struct gpu_fit {
    wf_trainer *tr;
    wf_fit_cuda *cuda;
    wf_fit_state state; /* of the checkpoint on its way */
    bool paced;         /* its speed is being measured */
} gpu_fit;

static bool wants(void *fit, size_t update) {
    return wf__trainer_wants(((gpu_fit *)fit)->tr, update);
}

static wf_status enqueue(void *fit) {
    gpu_fit *f = fit;
    return wf__fit_cuda_enqueue(f->tr->ctx, f->cuda);
}

static wf_status record(void *fit, size_t update, wf_update_record *out) {
    gpu_fit *f = fit;
    return wf__fit_cuda_record(f->tr->ctx, f->cuda, update, out);
}

static wf_status count(void *fit, const wf_update_record *record) {
    wf_trainer *tr = ((gpu_fit *)fit)->tr;
    if (tr->desc.kept == WF_KEPT_BEST && record->loss < tr->state.best_loss)
        tr->state.best_loss = record->loss;
    return wf__trainer_count(tr, record->loss, record->norm, record->factor);
}

static wf_status diverged(void *fit, const char *what, double value) {
    const wf_trainer *tr = ((gpu_fit *)fit)->tr;
    return wf__trainer_diverged(tr, tr->ctx, tr->state.made + 1, what, value);
}

static bool validation_due(void *fit, size_t made) {
    return wf__trainer_validation_due(((gpu_fit *)fit)->tr, made);
}

static wf_status forward_on_gpu(void *fit, int which, wf_flow_batch *batch) {
    gpu_fit *f = fit;
    return wf__fit_cuda_forward(f->tr->ctx, f->cuda, which, batch);
}

static wf_status validate(void *fit) {
    gpu_fit *f = fit;
    if (f->tr->desc.kept == WF_KEPT_VALIDATION) { /* its weights may be the best */
        bool there;
        wf_updates_cuda *updates = wf__fit_cuda_updates(f->cuda);
        WF_TRY(wf__updates_cuda_copy(f->tr->ctx, updates));
        WF_TRY(wf__updates_cuda_copied(f->tr->ctx, updates, true, &there));
    }
    return wf__trainer_validate(f->tr, forward_on_gpu, f);
}

/* Fresh networks change the collection. */
static bool holds(void *fit, size_t update) {
    return wf__trainer_renewal_due(((gpu_fit *)fit)->tr, update);
}

/* Fresh networks, where the next update waits for them and nothing is under way; as on the CPU
 * before a validation. */
static wf_status prepare(void *fit, size_t enqueued) {
    gpu_fit *f = fit;
    wf_trainer *tr = f->tr;
    WF_TRY(wf__trainer_choose_rate(tr, enqueued));
    if (enqueued != tr->state.made || !wf__trainer_renewal_due(tr, enqueued)) return WF_OK;
    tr->state.validation_waits = validation_due(f, tr->state.made);
    WF_TRY(wf__fit_cuda_match_until(tr->ctx, f->cuda, enqueued));
    while (wf__trainer_renewal_due(tr, enqueued)) {
        int place;
        WF_TRY(wf_fresh_pool_renew(tr->ctx, &tr->pool, &place));
        for (int i = 0; i < tr->set.n_sources; i++) {
            const wf_training_source *source = &tr->set.sources[i];
            size_t slice = tr->pool.sources[i].slice;
            WF_TRY(wf__fit_cuda_renew(tr->ctx, f->cuda, source->family,
                                      source->first + (size_t)place * slice, slice));
        }
    }
    tr->state.validation_waits = false;
    return wf__fit_cuda_match_until(tr->ctx, f->cuda, tr->desc.updates);
}

static bool pauses(void *fit) { return wf__trainer_pace_due(((gpu_fit *)fit)->tr); }

/* Sets the pace where that is due. */
static wf_status between(void *fit) {
    gpu_fit *f = fit;
    if (!f->paced) wf__trainer_start_pace(f->tr);
    f->paced = true;
    bool due = wf__trainer_pace_due(f->tr);
    if (f->tr->desc.max_seconds > 0) WF_TRY(wf_ctx_decide(f->tr->ctx, &due));
    if (!due) return WF_OK;
    WF_TRY(wf__trainer_set_pace(f->tr));
    return wf__fit_cuda_pace(f->tr->ctx, f->cuda, &f->tr->state.pace);
}

static bool ended(void *fit) {
    const wf_trainer *tr = ((gpu_fit *)fit)->tr;
    return wf__trainer_ended(tr) || wf__trainer_late(tr);
}

static void keep_state(void *fit) {
    gpu_fit *f = fit;
    f->state = f->tr->state;
    f->state.seconds = wf__trainer_seconds(f->tr);
}

static wf_status store(void *fit, wf_ctx *ctx) {
    gpu_fit *f = fit;
    wf__trainer_fill_best(f->tr);
    return wf__trainer_store(f->tr, ctx, &f->state);
}

static void progress(void *fit, wf_meter *meter, double smooth, bool end) {
    wf__trainer_progress(((gpu_fit *)fit)->tr, meter, smooth, end);
}

static const wf_queue_work work = {.wants = wants,
                                   .enqueue = enqueue,
                                   .record = record,
                                   .count = count,
                                   .diverged = diverged,
                                   .validation_due = validation_due,
                                   .validate = validate,
                                   .holds = holds,
                                   .prepare = prepare,
                                   .pauses = pauses,
                                   .between = between,
                                   .ended = ended,
                                   .keep_state = keep_state,
                                   .store = store,
                                   .progress = progress};

wf_status wf__train_gpu(wf_trainer *tr) {
    if (wf__trainer_ended(tr) && !tr->state.validation_waits) return WF_OK;
    gpu_fit fit = {.tr = tr};
    wf_fit_cuda_desc desc = {.field = tr->field,
                             .set = &tr->set,
                             .fit = &tr->desc,
                             .path = tr->path_form,
                             .optim = tr->optim_desc,
                             .schedule = tr->schedule,
                             .arrays = &tr->arrays,
                             .update = tr->state.made,
                             .pace = tr->state.pace,
                             .best_loss = tr->state.best_loss,
                             .fast = tr->fast};
    WF_TRY(wf__fit_cuda_create(tr->ctx, &desc, &fit.cuda));
    wf_update_queue queue = {.ctx = tr->ctx,
                             .path = tr->path,
                             .doing = "training the flow",
                             .work = &work,
                             .fit = &fit,
                             .device = wf__fit_cuda_updates(fit.cuda),
                             .updates = tr->desc.updates,
                             .made = &tr->state.made,
                             .validation_waits = &tr->state.validation_waits,
                             .saved = &tr->saved,
                             .gave_up = &tr->gave_up,
                             .save_seconds = tr->desc.save_seconds,
                             .one_by_one = tr->desc.patience > 0};
    wf_status status = wf_queue_run(&queue);
    wf__fit_cuda_free(fit.cuda);
    if (status == WF_ERR_INTERRUPTED) return wf__trainer_interrupted(tr);
    if (status == WF_OK && tr->state.made < tr->desc.updates) wf__trainer_cut(tr);
    return status;
}
