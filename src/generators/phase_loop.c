#include "generators/phase_loop.h"

#include "base/c_locale.h"
#include "base/random.h"
#include "flow/fit_common.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Noise of validation lies at addresses that no update has. */
static const uint64_t validation_stream = 0x76616C6964617465u;

/* --- setting up ------------------------------------------------------------------------------- */

static size_t updates_before(const wf_phase_fit *fit, int index) {
    size_t sum = 0;
    for (int i = 0; i < index; i++) sum += fit->phases[i].updates;
    return sum;
}

/* All validations together take about a percent of the forward passes, but each has 16 networks. */
static void plan_validation(const wf_phase_fit *fit, wf_phase_loop *loop) {
    const wf_family *family = &fit->set.families[0];
    size_t updates = loop->phase->updates, times = fit->desc.validations;
    if (family->held_out == 0 || times == 0) return;
    loop->every = updates > times ? updates / times : 1;
    double fitting = 0.01 * 3 * (double)updates * (double)fit->desc.batch / (2 * (double)times);
    double most = fmin(fmin(512, (double)family->held_out), (double)family->count);
    loop->judged = (int)fmin(most, fmax(16, fitting));
}

void wf__phase_loop_free(wf_phase_loop *loop) {
    if (loop == NULL) return;
    wf_tape_free(&loop->tape);
    wf_optim_free(loop->optim);
    for (int i = 0; i < WF_PHASE_INPUTS; i++) free(loop->in[i]);
    free(loop->grad);
    free(loop->statistics);
    free(loop->networks);
    free(loop);
}

/* The EMA lives in the phase, so that files and samplers find it there. */
wf_status wf__phase_loop_create(wf_phase_fit *fit, int index) {
    wf_ctx *ctx = fit->ctx;
    wf_phase *s = &fit->phases[index];
    wf_phase_loop *loop;
    WF_TRY(wf_alloc(ctx, 1, sizeof *loop, "a phase", &loop));
    fit->loop = loop;
    loop->phase = s, loop->held_out = loop->fitted = NAN;
    loop->first = updates_before(fit, index);
    plan_validation(fit, loop);
    size_t params = s->list.total, batch = fit->desc.batch;
    int most = loop->judged > (int)batch ? loop->judged : (int)batch;
    loop->optim_desc = wf_fit_optim_desc(&fit->desc, s->lr);
    WF_TRY(wf_fit_optim_create(ctx, &loop->optim_desc, s->list.tensors, s->list.count, params,
                               &loop->optim));
    WF_TRY(wf_fit_not_stopped(ctx, fit->path));
    bool last = index == fit->n_phases - 1;
    loop->schedule =
        wf_fit_schedule(&fit->desc, s->lr, last ? fit->desc.schedule_updates : s->updates);
    if (!fit->on_gpu) {
        WF_TRY(wf_alloc(ctx, params, sizeof(float), "gradient", &loop->grad));
        WF_TRY(wf_alloc(ctx, s->buffers.total, sizeof(float), "statistics", &loop->statistics));
    }
    WF_TRY(wf_alloc(ctx, (size_t)most, sizeof(uint32_t), "batch", &loop->networks));
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int inputs = s->shapes(fit->model, most, shape);
    for (int i = 0; i < inputs; i++)
        WF_TRY(wf_alloc(ctx, (size_t)shape[i].rows * (size_t)shape[i].cols, sizeof(float), "batch",
                        &loop->in[i]));
    if (fit->desc.ema > 0) {
        WF_TRY(wf_alloc(ctx, params, sizeof(float), "averaged weights", &s->ema));
        memcpy(s->ema, s->weights, params * sizeof(float));
    }
    if (fit->resumed == index) WF_TRY(wf__phase_read_optimiser(fit));
    if (s->ema != NULL) memcpy(wf_optim_ema(loop->optim), s->ema, params * sizeof(float));
    return wf_fit_not_stopped(ctx, fit->path);
}

/* --- what both loops do ----------------------------------------------------------------------- */

wf_phase_state wf__phase_now(const wf_phase_fit *fit) {
    wf_phase_state state = fit->state;
    double since = wf_ctx_seconds(fit->ctx) - fit->loop->started;
    state.seconds += since;
    state.phase_seconds += since;
    return state;
}

static wf_status write_line(wf_phase_fit *fit, const char *text) {
    char line[320];
    const wf_phase_loop *loop = fit->loop;
    if (fit->log < 0) return WF_OK;
    int length = snprintf(line, sizeof line, "{\"update\":%zu,\"phase\":\"%s\",%s}\n",
                          loop->first + fit->state.made, loop->phase->name, text);
    return wf_fit_log_append(fit->ctx, fit->path, fit->log, line, (size_t)length);
}

static wf_status log_update(wf_phase_fit *fit, double norm, double factor) {
    char text[200];
    wf_phase_state now = wf__phase_now(fit);
    locale_t before = wf_c_locale_enter();
    snprintf(text, sizeof text, "\"loss\":%.9g,\"grad_norm\":%.6g,\"lr\":%.9g,\"seconds\":%.3f",
             now.window_loss / (double)now.window_count, norm, fit->loop->phase->lr * factor,
             now.seconds);
    wf_c_locale_leave(before);
    fit->state.window_loss = 0;
    fit->state.window_count = 0;
    return write_line(fit, text);
}

wf_status wf__phase_count(wf_phase_fit *fit, double loss, double norm, double factor) {
    wf_phase_state *state = &fit->state;
    size_t every = fit->desc.log_every;
    state->made++;
    state->window_loss += loss;
    state->window_count++;
    if (every > 0 && (state->made == fit->loop->phase->updates || state->made % every == 0))
        return log_update(fit, norm, factor);
    return WF_OK;
}

bool wf__phase_validation_due(const wf_phase_fit *fit, size_t made) {
    const wf_phase_loop *loop = fit->loop;
    return loop->every > 0 && (made % loop->every == 0 || made == loop->phase->updates);
}

wf_phase_batch wf__phase_judged_batch(const wf_phase_fit *fit, int which) {
    const wf_phase_loop *loop = fit->loop;
    size_t first = which == 0 ? fit->set.families[0].count : 0;
    for (int i = 0; i < loop->judged; i++) loop->networks[i] = (uint32_t)(first + (size_t)i);
    wf_phase_batch batch = {loop->networks, loop->judged, fit->desc.seed ^ validation_stream, 0};
    loop->phase->fill(fit->model, &batch, loop->in);
    return batch;
}

wf_status wf__phase_log_validation(wf_phase_fit *fit) {
    char text[96];
    locale_t before = wf_c_locale_enter();
    snprintf(text, sizeof text, "\"validation\":%.9g,\"fitted\":%.9g", fit->loop->held_out,
             fit->loop->fitted);
    wf_c_locale_leave(before);
    return write_line(fit, text);
}

bool wf__phase_ended(const wf_phase_fit *fit) {
    double most = fit->desc.max_seconds / fit->n_phases;
    if (fit->state.made >= fit->loop->phase->updates) return true;
    return most > 0 && fit->state.made > 0 && wf__phase_now(fit).phase_seconds >= most;
}

void wf__phase_progress(const wf_phase_fit *fit, wf_meter *meter, double smooth, bool end) {
    char note[80];
    wf_text text = wf_text_start(note, sizeof note);
    wf_text_add(&text, "loss %.4f", smooth);
    if (!isnan(fit->loop->held_out)) wf_text_add(&text, ", held-out %.4f", fit->loop->held_out);
    if (end) wf_meter_end(meter, (double)fit->state.made, "%s", note);
    else wf_meter_update(meter, (double)fit->state.made, "%s", note);
}

/* --- the loop on the CPU ---------------------------------------------------------------------- */

static double weighted(const wf_phase_loss *loss) {
    double sum = 0;
    for (int i = 0; i < 2; i++)
        if (loss->term[i] != NULL) sum += loss->weight[i] * (double)*(float *)loss->term[i]->data;
    return sum;
}

/* Loss of a batch, which loop->in holds; with grad also its gradient, and statistics move. */
static wf_status evaluate(wf_phase_fit *fit, int networks, bool grad, double *out) {
    wf_phase_loop *loop = fit->loop;
    wf_tensor *in[WF_PHASE_INPUTS] = {0};
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int count = loop->phase->shapes(fit->model, networks, shape);
    wf_phase_start(fit->ctx, loop->phase, grad, &loop->tape, &loop->net);
    for (int i = 0; i < count; i++)
        in[i] = wf_phase_input(&loop->net, shape[i].rows, shape[i].cols, loop->in[i]);
    wf_phase_loss loss = {0};
    if (!loop->tape.failed) loss = loop->phase->loss(&loop->net, fit->model, networks, in);
    for (int i = 0; grad && i < 2 && !loop->tape.failed; i++)
        if (loss.term[i] != NULL) {
            float *weight = wf_tape_grad(&loop->tape, loss.term[i]);
            if (weight != NULL) *weight = (float)loss.weight[i];
        }
    bool done = !loop->tape.failed && (!grad || wf_net_backward(&loop->net, loop->grad));
    if (wf_interrupted(fit->ctx)) return WF_ERR_INTERRUPTED;
    if (!done)
        return wf_fail(fit->ctx, WF_ERR_MEMORY,
                       "%s: no memory for the activations of the batch; use smaller batches or a "
                       "smaller network",
                       loop->phase->name);
    *out = weighted(&loss);
    return WF_OK;
}

static wf_status update(wf_phase_fit *fit, double *loss) {
    wf_phase_loop *loop = fit->loop;
    wf_phase *s = loop->phase;
    const wf_fit_desc *desc = &fit->desc;
    size_t update = fit->state.made, number = loop->first + update;
    size_t bytes = s->buffers.total * sizeof(float);
    uint32_t count = (uint32_t)fit->set.families[0].count, places = (uint32_t)desc->batch;
    for (uint32_t b = 0; b < places; b++)
        loop->networks[b] = wf_epoch_network(desc->seed, count, places, (uint32_t)number, b);
    wf_phase_batch batch = {loop->networks, (int)places, desc->seed, (uint32_t)number};
    s->fill(fit->model, &batch, loop->in);
    memcpy(loop->statistics, s->statistics, bytes);
    wf_status status = evaluate(fit, batch.n, true, loss);
    if (status != WF_OK) memcpy(s->statistics, loop->statistics, bytes); /* invariant P2 */
    WF_TRY(status);
    if (!isfinite(*loss)) return wf__phase_diverged(fit, fit->ctx, update + 1, "loss", *loss);
    double norm = wf_optim_norm(fit->ctx, loop->optim, loop->grad);
    if (!isfinite(norm))
        return wf__phase_diverged(fit, fit->ctx, update + 1, "gradient's norm", norm);
    double factor = wf_schedule_factor(&loop->schedule, update);
    wf_optim_apply(fit->ctx, loop->optim, update, factor, norm, loop->grad, s->weights);
    return wf__phase_count(fit, *loss, norm, factor);
}

static void fetch_ema(const wf_phase_fit *fit) {
    wf_phase *s = fit->loop->phase;
    if (s->ema != NULL)
        memcpy(s->ema, wf_optim_ema(fit->loop->optim), s->list.total * sizeof(float));
}

/* Losses on held-out and on fitted networks, both with the weights that would sample. */
static wf_status validate(wf_phase_fit *fit) {
    wf_phase_loop *loop = fit->loop;
    double *losses[] = {&loop->held_out, &loop->fitted};
    fit->state.waits = true;
    fetch_ema(fit);
    for (int which = 0; which < 2; which++)
        WF_TRY(evaluate(fit, wf__phase_judged_batch(fit, which).n, false, losses[which]));
    fit->state.waits = false;
    return wf__phase_log_validation(fit);
}

static wf_status save(wf_phase_fit *fit) {
    double now = wf_ctx_seconds(fit->ctx), work = now - fit->loop->started;
    fit->state = wf__phase_now(fit);
    fit->loop->started = now;
    fetch_ema(fit);
    wf_stop_saves(fit->ctx, work);
    wf_status status = wf_phase_fit_save(fit);
    wf_stop_saves(fit->ctx, 0);
    fit->gave_up = status == WF_ERR_INTERRUPTED;
    return status;
}

static wf_status make_updates(wf_phase_fit *fit) {
    const wf_phase_loop *loop = fit->loop;
    size_t updates = loop->phase->updates;
    wf_meter meter = wf_meter_start(fit->ctx, loop->phase->doing, "updates", (double)updates);
    double loss = NAN, smooth = NAN, last_save = loop->started;
    if (fit->state.waits) WF_TRY(validate(fit));
    while (!wf__phase_ended(fit)) {
        if (wf_interrupted(fit->ctx)) return WF_ERR_INTERRUPTED;
        WF_TRY(update(fit, &loss));
        smooth = isnan(smooth) ? loss : 0.98 * smooth + 0.02 * loss;
        if (wf__phase_validation_due(fit, fit->state.made)) WF_TRY(validate(fit));
        wf__phase_progress(fit, &meter, smooth, false);
        if (wf_ctx_seconds(fit->ctx) - last_save < fit->desc.save_seconds) continue;
        WF_TRY(save(fit));
        last_save = wf_ctx_seconds(fit->ctx);
    }
    wf__phase_progress(fit, &meter, smooth, true);
    return WF_OK;
}

/* Both loops end with a checkpoint. */
static wf_status run_on_cpu(wf_phase_fit *fit) {
    wf_status status = make_updates(fit);
    if (status != WF_OK && status != WF_ERR_INTERRUPTED) return status;
    if (!fit->gave_up) WF_TRY(save(fit));
    return status;
}

wf_status wf__phase_loop_run(wf_phase_fit *fit) {
    const wf_phase *s = fit->loop->phase;
    fit->loop->started = wf_ctx_seconds(fit->ctx);
    wf_status status = fit->on_gpu ? wf__phase_loop_gpu(fit) : run_on_cpu(fit);
    if (status == WF_ERR_INTERRUPTED)
        return wf_fail(fit->ctx, WF_ERR_INTERRUPTED, "%s: interrupted in %s after update %zu; %s",
                       fit->path, s->doing, fit->state.made,
                       wf_fit_standing(fit->saved, fit->gave_up));
    if (status == WF_OK && fit->state.made < s->updates)
        wf_warn(fit->ctx, "%s: max_seconds is over: %s ends at update %zu of %zu", fit->path,
                s->doing, fit->state.made, s->updates);
    return status;
}
