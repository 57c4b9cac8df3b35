/* flow_fit: sets a training run up, and its loop on the CPU. fit_loop_gpu.c has the GPU's loop,
 * trainer.c what both share.
 *
 * One update: draw a batch (draw.c), interpolate, loss and gradient (objective.c), clip, AdamW or
 * Muon, EMA (nn/optim.c). Everything is allocated before the loop; the loop allocates only to write
 * a checkpoint and to train fresh networks (fresh.c).
 *
 * L1  All randomness is addressed by the update's number, so a run that goes on from a checkpoint
 *     makes the updates the uninterrupted run would have made, bit for bit.
 * L2  A line of the log is written before a checkpoint that includes its update, and lines beyond
 *     the checkpoint are cut when a run goes on: no line is missing, none is there twice.
 * L3  A checkpoint holds finite numbers: an update is made only when loss and gradient are finite,
 *     and weights and moments are checked before they replace an earlier checkpoint. */
#include "flow/trainer.h"

#include "base/comm.h"
#include "base/digest.h"
#include "base/isa.h"
#include "flow/fit_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the loop on the CPU ---------------------------------------------------------------------- */

static wf_status store(wf_ctx *ctx, void *tr_) {
    const wf_trainer *tr = tr_;
    wf_fit_state state = tr->state;
    state.seconds = wf__trainer_seconds(tr);
    wf_stop_saves(ctx, wf_ctx_seconds(ctx) - tr->last_save);
    wf_status status = wf__trainer_store(tr, ctx, &state);
    wf_stop_saves(ctx, 0);
    return status;
}

static wf_status save(wf_trainer *tr) {
    WF_TRY(wf_optim_collect(tr->ctx, tr->optim));
    wf__trainer_fill_best(tr);
    wf_status status = wf_rank_0_does(tr->ctx, store, tr);
    tr->gave_up = status == WF_ERR_INTERRUPTED;
    WF_TRY(status);
    tr->saved = true;
    tr->last_save = wf_ctx_seconds(tr->ctx);
    return WF_OK;
}

/* What goes by a clock, of which rank 0's counts. */
enum { TIME_IS_OVER = 1, SAVE_IS_DUE = 2, PACE_IS_DUE = 4 };
static uint32_t clock_flags(const wf_trainer *tr) {
    bool due = wf_ctx_seconds(tr->ctx) - tr->last_save >= tr->desc.save_seconds;
    return (wf__trainer_late(tr) ? (uint32_t)TIME_IS_OVER : 0) | (due ? (uint32_t)SAVE_IS_DUE : 0) |
           (wf__trainer_pace_due(tr) ? (uint32_t)PACE_IS_DUE : 0);
}

static void tell_idle_ranks(const wf_trainer *tr) {
    const wf_split *split = &tr->draw.split;
    int idle = split->ranks - split->active;
    if (split->field == NULL || idle == 0) return;
    wf_warn(tr->ctx,
            "%s cuts a batch of %d networks into %d part%s: %d of %d ranks idle while the flow is "
            "trained; a larger batch has more parts",
            tr->field->kind->name, tr->draw.batch, split->parts, split->parts == 1 ? "" : "s", idle,
            split->ranks);
}

/* With several ranks the message names the first whose numbers are not finite. */
static wf_status diverged(wf_trainer *tr, const char *what, double value) {
    const wf_split *split = tr->draw.flow.split;
    char named[144];
    int rank;
    if (split == NULL) return wf__trainer_diverged(tr, tr->ctx, tr->state.made + 1, what, value);
    WF_TRY(wf_split_find_diverged(tr->ctx, split, tr->draw.flow.loss, tr->grad, &rank));
    snprintf(named, sizeof named, "%s (%s)", what, wf_rank_name(wf__ctx_comm(tr->ctx), rank));
    return wf__trainer_diverged(tr, tr->ctx, tr->state.made + 1, named, value);
}

/* One update. */
static wf_status update(wf_trainer *tr, double *loss) {
    size_t update = tr->state.made;
    wf_flow_batch *batch = &tr->draw.flow;
    batch->drawn = wf_draw_batch(tr->ctx, &tr->draw, update);
    if (batch->split == NULL) WF_TRY(batch->drawn);
    else if (update == tr->began_at) tell_idle_ranks(tr);
    batch->flags = clock_flags(tr);
    wf_flow_interpolate(tr->ctx, &tr->path_form, tr->desc.seed, (uint32_t)update, &tr->draw.flow);
    WF_TRY(wf_flow_loss(tr->ctx, tr->field, tr->arrays.weights, &tr->draw.flow, loss, tr->grad));
    if (!isfinite(*loss)) return diverged(tr, "loss", *loss);
    double norm = wf_optim_norm(tr->ctx, tr->optim, tr->grad);
    if (!isfinite(norm)) return diverged(tr, "gradient's norm", norm);
    if (tr->desc.kept == WF_KEPT_BEST && *loss < tr->state.best_loss) {
        tr->state.best_loss = *loss;
        memcpy(tr->arrays.best, tr->arrays.weights, tr->field->params * sizeof(float));
    }
    double factor = wf__trainer_rate(tr, update);
    WF_TRY(wf_optim_apply(tr->ctx, tr->optim, update, factor, norm, tr->grad, tr->arrays.weights));
    return wf__trainer_count(tr, *loss, norm, factor);
}

static wf_status forward_on_cpu(void *arg, int which, wf_flow_batch *batch) {
    const wf_trainer *tr = arg;
    (void)which;
    return wf_flow_forward(tr->ctx, tr->field, wf__trainer_sampled(tr), batch, false);
}

static wf_status validate(wf_trainer *tr) {
    tr->state.validation_waits = true;
    WF_TRY(wf_optim_collect(tr->ctx, tr->optim));
    WF_TRY(wf__trainer_validate(tr, forward_on_cpu, tr));
    tr->state.validation_waits = false;
    return WF_OK;
}

/* After an update: fresh networks for the next one, then validation. In this order the pool does
 * not depend on where a run was broken off. */
static wf_status follow_update(wf_trainer *tr) {
    int place;
    WF_TRY(wf__trainer_choose_rate(tr, tr->state.made));
    tr->state.validation_waits = wf__trainer_validation_due(tr, tr->state.made);
    while (wf__trainer_renewal_due(tr, tr->state.made))
        WF_TRY(wf_fresh_pool_renew(tr->ctx, &tr->pool, &place));
    return tr->state.validation_waits ? validate(tr) : WF_OK;
}

/* Updates until the last, the time limit, or an interruption, which leaves the update it comes in
 * unmade. */
static wf_status make_updates(wf_trainer *tr, wf_meter *meter) {
    double loss = NAN, smooth = NAN;
    if (tr->state.validation_waits) WF_TRY(validate(tr));
    bool shared = tr->draw.flow.split != NULL; /* then the ranks meet in each update */
    wf__trainer_start_pace(tr);
    uint32_t flags = clock_flags(tr);
    WF_TRY(wf_broadcast(tr->ctx, &flags, sizeof flags));
    while (!wf__trainer_ended(tr) && (flags & TIME_IS_OVER) == 0) {
        if (!shared && wf_interrupted(tr->ctx)) return WF_ERR_INTERRUPTED;
        WF_TRY(update(tr, &loss));
        smooth = isnan(smooth) ? loss : 0.98 * smooth + 0.02 * loss;
        WF_TRY(follow_update(tr));
        wf__trainer_progress(tr, meter, smooth, false);
        flags = shared ? tr->draw.flow.flags : clock_flags(tr);
        if (flags & PACE_IS_DUE) WF_TRY(wf__trainer_set_pace(tr));
        if (flags & SAVE_IS_DUE) WF_TRY(save(tr));
    }
    wf__trainer_progress(tr, meter, smooth, true);
    return WF_OK;
}

static wf_status train(wf_trainer *tr) {
    size_t updates = tr->desc.updates;
    if (wf__trainer_ended(tr) && !tr->state.validation_waits) return WF_OK;
    wf_meter meter = wf_meter_start(tr->ctx, "training the flow", "updates", (double)updates);
    wf_status status = make_updates(tr, &meter);
    if (status != WF_OK && status != WF_ERR_INTERRUPTED) return status;
    if (status == WF_OK && tr->state.made < updates) wf__trainer_cut(tr);
    wf_status saved = tr->gave_up ? WF_ERR_INTERRUPTED : save(tr);
    if (saved != WF_OK) status = saved;
    return status == WF_ERR_INTERRUPTED ? wf__trainer_interrupted(tr) : status;
}

/* --- setting up ------------------------------------------------------------------------------- */

static wf_status make_optimiser(wf_trainer *tr) {
    const wf_fit_desc *desc = &tr->desc;
    tr->optim_desc = wf_fit_optim_desc(desc, desc->lr);
    WF_TRY(wf_fit_optim_create(tr->ctx, &tr->optim_desc, tr->field->tensors, tr->field->n_tensors,
                               tr->field->params, &tr->optim));
    tr->arrays.first = wf_optim_first(tr->optim);
    tr->arrays.second = wf_optim_second(tr->optim);
    tr->arrays.ema = wf_optim_ema(tr->optim);
    tr->schedule = wf_fit_schedule(desc, desc->lr, desc->schedule_updates);
    return WF_OK;
}

/* All ranks go on from one checkpoint. */
static wf_status same_state(const wf_trainer *tr) {
    char text[64 + WF_DIGEST_DIGITS];
    wf_digest digest;
    if (wf_ctx_ranks(tr->ctx) == 1) return WF_OK;
    WF_TRY(wf_digest_start(tr->ctx, &digest));
    wf_digest_add(&digest, tr->arrays.weights, tr->field->params * sizeof(float));
    int length = snprintf(text, 32, "%zu ", tr->state.made);
    wf_digest_end(&digest, text + length);
    text[length + WF_DIGEST_DIGITS] = '\0';
    return wf_same(tr->ctx, tr->path, text);
}

/* Networks and conditions of all sources. */
static wf_status same_networks(const wf_trainer *tr) {
    for (int i = 0; i < tr->set.n_sources; i++) {
        char text[32];
        snprintf(text, sizeof text, "%llx", (unsigned long long)tr->set.sources[i].hash);
        WF_TRY(wf_same(tr->ctx, tr->set.sources[i].path, text));
    }
    return WF_OK;
}

static wf_status start_or_resume(wf_trainer *tr) {
    size_t params = tr->field->params;
    bool there = wf_file_exists(tr->path);
    WF_TRY(wf_ctx_decide(tr->ctx, &there));
    if (there) {
        tr->saved = true;
        wf_status status = wf_checkpoint_resume(tr->ctx, tr->path, tr->field, &tr->config, &tr->set,
                                                &tr->state, &tr->arrays);
        WF_TRY(wf_agree(tr->ctx, status));
        return same_state(tr);
    }
    wf_field_init(tr->field, tr->field->seed, tr->arrays.weights);
    if (tr->arrays.ema != NULL) memcpy(tr->arrays.ema, tr->arrays.weights, params * sizeof(float));
    if (tr->arrays.best != NULL)
        memcpy(tr->arrays.best, tr->arrays.weights, params * sizeof(float));
    return WF_OK;
}

wf_status wf__field_device(wf_ctx *ctx, const wf_field *field, const char *part, bool *on_gpu) {
    WF_TRY(wf_use_cuda(ctx, on_gpu));
    if (!*on_gpu) return WF_OK;
    if (field->kind->record == NULL) {
        wf_warn(ctx, "%s has no program for the GPU: %s runs on the CPU", field->kind->name, part);
        *on_gpu = false;
    }
    wf_note_device(ctx, part, *on_gpu);
    return WF_OK;
}

static wf_status choose_device(wf_trainer *tr) {
    WF_TRY(wf__field_device(tr->ctx, tr->field, "fitting", &tr->on_gpu));
    WF_TRY(wf_choose_precision(tr->ctx, tr->desc.precision, tr->on_gpu, true, &tr->fast));
    tr->state.kernels = !tr->on_gpu ? wf_isa_name(wf_isa()) : tr->fast ? "cuda bf16" : "cuda fp32";
    return WF_OK;
}

/* The one architecture of a field that is made for it; NULL for a field that takes any. */
static wf_status only_graph(wf_ctx *ctx, const wf_field_kind *kind, const wf_source *sources, int n,
                            const wf_graph **out) {
    *out = NULL;
    if (n < 1) return wf_fail(ctx, WF_ERR_USAGE, "no collection to train on; give at least one");
    if ((kind->traits & WF_GENERATOR_ANY_ARCHITECTURE) != 0) return WF_OK;
    *out = wf_zoo_graph(sources[0].zoo);
    return wf__one_architecture(ctx, kind->name, sources, n);
}

/* Invariant L2. A new run starts with an empty log. */
static wf_status open_log(wf_trainer *tr) {
    return wf_fit_log_open(tr->ctx, tr->path, tr->state.made, &tr->log);
}

static wf_status set_up(wf_trainer *tr, const wf_source *sources, int n_sources,
                        const wf_field_kind *kind, const void *options) {
    wf_ctx *ctx = tr->ctx;
    const wf_fit_desc *desc = &tr->desc;
    const wf_graph *graph;
    WF_TRY(wf_fit_check(ctx, desc));
    WF_TRY(only_graph(ctx, kind, sources, n_sources, &graph));
    if (desc->epochs && n_sources > 1)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "train.draw is epochs, which go through one collection; here are %d: use "
                       "draw = independent",
                       n_sources);
    WF_TRY(wf_field_create(ctx, kind, options, graph, WF_F32, &tr->field));
    if (desc->coupling == WF_COUPLING_MATCHED && !wf_field_equivariant(tr->field))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "the matched coupling needs a permutation-equivariant field; use "
                       "coupling = independent");
    WF_TRY(choose_device(tr));
    WF_TRY(wf_training_set_load(ctx, sources, n_sources, tr->field, desc, &tr->set));
    WF_TRY(same_networks(tr));
    WF_TRY(wf_fresh_pool_create(ctx, sources, &tr->set, &tr->pool));
    WF_TRY(wf_config_put(ctx, &tr->config, kind->settings(), options));
    WF_TRY(wf_config_put(ctx, &tr->config, wf_fit_settings(), desc));
    WF_TRY(wf_checkpoint_sources(ctx, &tr->set, &tr->config));
    size_t params = tr->field->params;
    WF_TRY(wf_alloc(ctx, params, sizeof(float), "field weights", &tr->arrays.weights));
    WF_TRY(wf_fit_not_stopped(ctx, tr->path));
    WF_TRY(wf_alloc(ctx, params, sizeof(float), "field gradient", &tr->grad));
    if (desc->kept == WF_KEPT_BEST || desc->kept == WF_KEPT_VALIDATION)
        WF_TRY(wf_alloc(ctx, params, sizeof(float), "best weights", &tr->arrays.best));
    WF_TRY(wf_fit_not_stopped(ctx, tr->path));
    WF_TRY(make_optimiser(tr));
    WF_TRY(wf_fit_not_stopped(ctx, tr->path));
    if (!tr->on_gpu) {
        WF_TRY(wf_draw_create(ctx, &tr->set, desc, &tr->draw));
        wf_draw_split(ctx, &tr->draw, tr->field);
    }
    WF_TRY(start_or_resume(tr));
    WF_TRY(wf_fit_not_stopped(ctx, tr->path));
    tr->began_at = tr->state.made;
    bool finished = wf__trainer_ended(tr) && !tr->state.validation_waits;
    tr->started = wf_ctx_seconds(tr->ctx);
    if (!finished) {
        WF_TRY(wf__trainer_fill_pool(tr));
        WF_TRY(wf_training_set_rotate(ctx, desc, &tr->set));
        WF_TRY(wf_validation_create(ctx, &tr->set, desc, &tr->path_form, &tr->validation));
        if (tr->validation.every > 0 && !tr->on_gpu) {
            wf_draw_split(ctx, &tr->validation.held_out, tr->field);
            wf_draw_split(ctx, &tr->validation.fitted, tr->field);
        }
    }
    tr->last_save = wf_ctx_seconds(tr->ctx);
    if (!tr->set.fresh) tr->started = tr->last_save; /* making networks is part of a run's time */
    return finished ? WF_OK : open_log(tr);
}

static void trainer_free(wf_trainer *tr) {
    if (tr->log >= 0) close(tr->log);
    wf_draw_free(&tr->draw);
    wf_fresh_pool_free(&tr->pool);
    wf_validation_free(&tr->validation);
    wf_optim_free(tr->optim);
    wf_field_free(tr->field);
    wf_training_set_free(&tr->set);
    wf_meta_free(&tr->config);
    free(tr->arrays.weights);
    free(tr->arrays.best);
    free(tr->grad);
}

wf_status wf_flow_fit_with(wf_ctx *ctx, const wf_source *sources, int n_sources,
                           const wf_field_kind *kind, const void *options, const wf_fit_desc *desc,
                           const char *path, wf_flow **out) {
    if (out != NULL) *out = NULL;
    wf_trainer tr = {.ctx = ctx,
                     .path = path,
                     .log = -1,
                     .state = {.best_loss = WF_NO_LOSS},
                     .validation = {.loss = NAN}};
    tr.desc = desc == NULL ? wf_fit_desc_default() : *desc;
    /* The horizon is part of the configuration, the number of updates is not. */
    if (!tr.desc.cosine && !tr.desc.one_cycle) tr.desc.schedule_updates = 0;
    else if (tr.desc.schedule_updates == 0) tr.desc.schedule_updates = tr.desc.updates;
    tr.path_form = (wf_path){tr.desc.precondition, tr.desc.source_std, tr.desc.path_noise};
    wf_status status = set_up(&tr, sources, n_sources, kind, options);
    if (status == WF_OK) status = tr.on_gpu ? wf__train_gpu(&tr) : train(&tr);
    trainer_free(&tr);
    if (status == WF_OK && out != NULL) status = wf_flow_open_with(ctx, path, kind, out);
    return status;
}

wf_status wf_flow_fit(wf_ctx *ctx, const wf_source *sources, int n_sources,
                      const wf_field_desc *field, const wf_fit_desc *desc, const char *path,
                      wf_flow **out) {
    wf_field_desc defaults = wf_field_desc_default();
    wf_lock *lock;
    if (out != NULL) *out = NULL;
    WF_TRY(wf_lock_file(ctx, path, &lock));
    wf_status status =
        wf_flow_fit_with(ctx, sources, n_sources, wf_field_find(WF_GENERATOR_DEFAULT),
                         field == NULL ? &defaults : field, desc, path, out);
    wf_lock_free(lock);
    return status;
}
