/* phase_loop_gpu: what a phase does in the loop of flow/update_queue.h. */
#include "flow/update_queue.h"
#include "generators/cuda/phase_cuda.h"
#include "generators/phase_loop.h"

typedef struct gpu_phase {
    wf_phase_fit *fit;
    wf_phase_cuda *cuda;
    wf_phase_state state; /* of the checkpoint on its way */
} gpu_phase;

static bool wants(void *phase, size_t update) {
    return update < ((gpu_phase *)phase)->fit->loop->phase->updates;
}

static wf_status enqueue(void *phase) {
    gpu_phase *p = phase;
    return wf__phase_cuda_enqueue(p->fit->ctx, p->cuda);
}

static wf_status record(void *phase, size_t update, wf_update_record *out) {
    gpu_phase *p = phase;
    return wf__updates_cuda_record(p->fit->ctx, wf__phase_cuda_updates(p->cuda), update, out);
}

static wf_status count(void *phase, const wf_update_record *record) {
    return wf__phase_count(((gpu_phase *)phase)->fit, record->loss, record->norm, record->factor);
}

static wf_status diverged(void *phase, const char *what, double value) {
    const wf_phase_fit *fit = ((gpu_phase *)phase)->fit;
    return wf__phase_diverged(fit, fit->ctx, fit->state.made + 1, what, value);
}

static bool validation_due(void *phase, size_t made) {
    return wf__phase_validation_due(((gpu_phase *)phase)->fit, made);
}

static wf_status validate(void *phase) {
    gpu_phase *p = phase;
    wf_phase_loop *loop = p->fit->loop;
    double *losses[] = {&loop->held_out, &loop->fitted};
    for (int which = 0; which < 2; which++) {
        wf__phase_judged_batch(p->fit, which);
        WF_TRY(wf__phase_cuda_judge(p->fit->ctx, p->cuda, loop->in, losses[which]));
    }
    return wf__phase_log_validation(p->fit);
}

static bool ended(void *phase) { return wf__phase_ended(((gpu_phase *)phase)->fit); }

static void keep_state(void *phase) {
    gpu_phase *p = phase;
    p->state = wf__phase_now(p->fit);
}

static wf_status store(void *phase, wf_ctx *ctx) {
    gpu_phase *p = phase;
    return wf__phase_store(p->fit, ctx, &p->state);
}

static void progress(void *phase, wf_meter *meter, double smooth, bool end) {
    wf__phase_progress(((gpu_phase *)phase)->fit, meter, smooth, end);
}

static const wf_queue_work work = {.wants = wants,
                                   .enqueue = enqueue,
                                   .record = record,
                                   .count = count,
                                   .diverged = diverged,
                                   .validation_due = validation_due,
                                   .validate = validate,
                                   .ended = ended,
                                   .keep_state = keep_state,
                                   .store = store,
                                   .progress = progress};

wf_status wf__phase_loop_gpu(wf_phase_fit *fit) {
    wf_phase_loop *loop = fit->loop;
    wf_phase *s = loop->phase;
    gpu_phase phase = {.fit = fit};
    wf_fit_arrays arrays = {.weights = s->weights,
                            .ema = s->ema,
                            .first = wf_optim_first(loop->optim),
                            .second = wf_optim_second(loop->optim)};
    wf_phase_cuda_desc desc = {.phase = s,
                               .model = fit->model,
                               .fit = &fit->desc,
                               .optim = loop->optim_desc,
                               .schedule = loop->schedule,
                               .arrays = &arrays,
                               .first = loop->first,
                               .made = fit->state.made,
                               .count = fit->set.families[0].count,
                               .judged = loop->judged,
                               .fast = fit->fast};
    WF_TRY(wf__phase_cuda_create(fit->ctx, &desc, &phase.cuda));
    wf_update_queue queue = {.ctx = fit->ctx,
                             .path = fit->path,
                             .doing = s->doing,
                             .work = &work,
                             .fit = &phase,
                             .device = wf__phase_cuda_updates(phase.cuda),
                             .updates = s->updates,
                             .made = &fit->state.made,
                             .validation_waits = &fit->state.waits,
                             .saved = &fit->saved,
                             .gave_up = &fit->gave_up,
                             .save_seconds = fit->desc.save_seconds};
    wf_status status = wf_queue_run(&queue);
    wf__phase_cuda_free(phase.cuda);
    fit->state = wf__phase_now(fit);
    return status;
}
