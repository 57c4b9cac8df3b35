/* trainer: what a training run does alike on the CPU and on a GPU (trainer.h): when it ends, its
 * log, checkpoints, validation and pace. Invariants L1 to L3 of flow_fit.c hold. */
#include "flow/trainer.h"

#include "base/c_locale.h"
#include "base/comm.h"
#include "flow/fit_common.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- when it ends ----------------------------------------------------------------------------- */

double wf__trainer_seconds(const wf_trainer *tr) {
    return tr->state.seconds + wf_ctx_seconds(tr->ctx) - tr->started;
}

bool wf__trainer_late(const wf_trainer *tr) {
    double most = tr->desc.max_seconds;
    return most > 0 && tr->state.made > 0 && wf__trainer_seconds(tr) >= most;
}

static bool out_of_patience(const wf_trainer *tr) {
    return tr->desc.patience > 0 && tr->state.worse >= tr->desc.patience;
}

/* Is the schedule over before that update? */
static bool is_through(const wf_trainer *tr, size_t update) {
    return wf_pace_position(&tr->state.pace, update) >= tr->desc.updates;
}

bool wf__trainer_wants(const wf_trainer *tr, size_t update) { return !is_through(tr, update); }

bool wf__trainer_ended(const wf_trainer *tr) {
    return is_through(tr, tr->state.made) || out_of_patience(tr);
}

bool wf__trainer_validation_due(const wf_trainer *tr, size_t update) {
    size_t last = is_through(tr, update) ? update : tr->desc.updates;
    return wf_validation_due(&tr->validation, update, last);
}

double wf__trainer_rate(const wf_trainer *tr, size_t update) {
    return wf_schedule_factor(&tr->schedule, wf_pace_position(&tr->state.pace, update));
}

void wf__trainer_cut(const wf_trainer *tr) {
    if (out_of_patience(tr)) {
        wf_warn(tr->ctx,
                "%s: the loss rose %zu times in a row (patience): training ends at update %zu of "
                "%zu",
                tr->path, tr->state.worse, tr->state.made, tr->desc.updates);
        return;
    }
    if (is_through(tr, tr->state.made)) {
        if ((double)tr->state.made > 0.95 * (double)tr->desc.updates) return; /* hardly */
        wf_warn(tr->ctx,
                "%s: %zu updates in place of %zu: the machine was slower than planned, and the "
                "schedule was shortened to end in time",
                tr->path, tr->state.made, tr->desc.updates);
        return;
    }
    wf_warn(
        tr->ctx,
        "%s: max_seconds is over: training ends at update %zu of %zu, its rate at %.0f %% of lr",
        tr->path, tr->state.made, tr->desc.updates, 100 * wf__trainer_rate(tr, tr->state.made));
}

/* --- the log ---------------------------------------------------------------------------------- */

/* One line for the updates since the last one. */
static wf_status write_line(wf_trainer *tr, double norm, double factor) {
    if (tr->log < 0 || tr->state.window_count == 0) return WF_OK;
    char line[256];
    locale_t before = wf_c_locale_enter();
    int length = snprintf(line, sizeof line,
                          "{\"update\":%zu,\"loss\":%.9g,\"grad_norm\":%.6g,\"lr\":%.9g,"
                          "\"seconds\":%.3f}\n",
                          tr->state.made, tr->state.window_loss / (double)tr->state.window_count,
                          norm, tr->desc.lr * factor, wf__trainer_seconds(tr));
    wf_c_locale_leave(before);
    tr->state.window_loss = 0;
    tr->state.window_count = 0;
    return wf_fit_log_append(tr->ctx, tr->path, tr->log, line, (size_t)length);
}

wf_status wf__trainer_count(wf_trainer *tr, double loss, double norm, double factor) {
    tr->state.worse = tr->state.made > 0 && loss > tr->state.last_loss ? tr->state.worse + 1 : 0;
    tr->state.last_loss = loss;
    tr->state.made++;
    tr->state.window_loss += loss;
    tr->state.window_count++;
    bool last = is_through(tr, tr->state.made);
    if (last || tr->state.made % tr->desc.log_every == 0) return write_line(tr, norm, factor);
    return WF_OK;
}

/* One line for a validation: losses on held-out and on fitted networks, and by source. */
static wf_status write_validation(wf_trainer *tr) {
    const wf_validation *v = &tr->validation;
    if (tr->log < 0) return WF_OK;
    size_t size = 160 + (size_t)v->n_sources * 24;
    char *buffer;
    WF_TRY(wf_alloc(tr->ctx, size, 1, "log", &buffer));
    wf_text line = wf_text_start(buffer, size);
    locale_t before = wf_c_locale_enter();
    wf_text_add(&line, "{\"update\":%zu,\"validation\":%.9g,\"fitted\":%.9g", tr->state.made,
                v->loss, v->fitted_loss);
    for (int k = 0; v->n_sources > 1 && k < v->n_sources; k++)
        wf_text_add(&line, "%s%.6g", k == 0 ? ",\"by_source\":[" : ",", v->by_source[k]);
    wf_text_add(&line, "%s}\n", v->n_sources > 1 ? "]" : "");
    wf_c_locale_leave(before);
    wf_status status = wf_fit_log_append(tr->ctx, tr->path, tr->log, buffer, strlen(buffer));
    free(buffer);
    return status;
}

/* --- checkpoints and validation --------------------------------------------------------------- */

wf_status wf__trainer_diverged(const wf_trainer *tr, wf_ctx *ctx, size_t update, const char *what,
                               double value) {
    const char *kept =
        tr->saved ? "the last checkpoint is kept" : "no checkpoint had been written yet";
    return wf_fail(ctx, WF_ERR_DIVERGED,
                   "%s: training diverged at update %zu: the %s is %g; %s. Lower lr (%g)%s, set "
                   "clip, or lengthen warmup, and start anew at another path",
                   tr->path, update, what, value, kept, tr->desc.lr,
                   tr->desc.optimizer == WF_OPT_MUON ? " and muon_lr" : "");
}

/* Invariant L3: a finite gradient can still make an update overflow. */
static wf_status check_arrays(const wf_trainer *tr, wf_ctx *ctx, size_t made) {
    const wf_fit_arrays *a = &tr->arrays;
    size_t n = tr->field->params;
    if (wf_all_finite(a->weights, n) && wf_all_finite(a->ema, n) && wf_all_finite(a->first, n) &&
        wf_all_finite(a->second, n))
        return WF_OK;
    return wf__trainer_diverged(tr, ctx, made + 1, "largest weight or moment", INFINITY);
}

wf_status wf__trainer_store(const wf_trainer *tr, wf_ctx *ctx, const wf_fit_state *state) {
    WF_TRY(check_arrays(tr, ctx, state->made));
    if (tr->log >= 0 && fsync(tr->log) != 0)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s.log.jsonl", tr->path);
    return wf_checkpoint_save(ctx, tr->path, tr->field, &tr->set, &tr->config, state, &tr->arrays);
}

wf_status wf__trainer_interrupted(const wf_trainer *tr) {
    return wf_fail(tr->ctx, WF_ERR_INTERRUPTED, "%s: interrupted after update %zu; %s", tr->path,
                   tr->state.made, wf_fit_standing(tr->saved, tr->gave_up));
}

const float *wf__trainer_sampled(const wf_trainer *tr) {
    return tr->arrays.ema != NULL ? tr->arrays.ema : tr->arrays.weights;
}

static void keep_sampled(wf_trainer *tr) {
    memcpy(tr->arrays.best, wf__trainer_sampled(tr), tr->field->params * sizeof(float));
}

void wf__trainer_fill_best(wf_trainer *tr) {
    if (tr->desc.kept == WF_KEPT_VALIDATION && tr->state.best_loss >= WF_NO_LOSS) keep_sampled(tr);
}

wf_status wf__trainer_validate(wf_trainer *tr, wf_validation_forward *forward, void *arg) {
    WF_TRY(wf_validation_run(tr->ctx, &tr->validation, tr->state.made, forward, arg));
    double loss = tr->validation.loss;
    if (!isfinite(loss))
        return wf__trainer_diverged(tr, tr->ctx, tr->state.made, "validation loss", loss);
    if (tr->desc.kept == WF_KEPT_VALIDATION && loss < tr->state.best_loss) {
        tr->state.best_loss = loss;
        keep_sampled(tr);
    }
    return write_validation(tr);
}

void wf__trainer_progress(const wf_trainer *tr, wf_meter *meter, double smooth, bool end) {
    char buffer[120];
    wf_text text = wf_text_start(buffer, sizeof buffer);
    wf_text_add(&text, "loss %.4f", smooth);
    if (!isnan(tr->validation.loss)) wf_text_add(&text, ", held-out %.4f", tr->validation.loss);
    if (tr->pool.sources != NULL)
        wf_text_add(&text, ", %zu networks", wf_fresh_pool_made(&tr->pool));
    double made = (double)tr->state.made, stride = tr->state.pace.stride;
    if (stride > 0) {
        double left = (double)tr->desc.updates;
        left -= (double)wf_pace_position(&tr->state.pace, tr->state.made);
        meter->total = made + ceil(fmax(left, 0) / stride);
    }
    if (end) wf_meter_end(meter, made, "%s", buffer);
    else wf_meter_update(meter, made, "%s", buffer);
}

/* --- the pace ----------------------------------------------------------------------------------
 * With max_seconds the speed is measured this many times in a run. Where the updates that are left
 * would take too long, each update moves on by more than one update of the schedule, so that the
 * learning rate comes down to its end in time. When the machine is faster again the stride shrinks,
 * down to 1. The checkpoint holds it (L1). */
enum { looks_at_pace = 20 };
/* Of max_seconds: the rest is for the last validation and checkpoint. */
static const double pace_share = 0.98;

void wf__trainer_start_pace(wf_trainer *tr) {
    tr->paced_from = tr->state.made;
    tr->paced_at = wf__trainer_seconds(tr);
}

bool wf__trainer_pace_due(const wf_trainer *tr) {
    double most = tr->desc.max_seconds;
    return most > 0 && tr->state.made > tr->paced_from &&
           wf__trainer_seconds(tr) - tr->paced_at >= most / looks_at_pace;
}

/* The stride that ends the schedule in time, by the speed since the last look. */
static double fitting_stride(const wf_trainer *tr, double position) {
    double now = wf__trainer_seconds(tr), made = (double)(tr->state.made - tr->paced_from);
    double left = pace_share * tr->desc.max_seconds - now;
    double fitting = left * made / (now - tr->paced_at);
    if (!(fitting > 0)) return tr->state.pace.stride; /* no time is left: max_seconds ends it */
    return fmin(fmax(((double)tr->desc.updates - position) / fitting, 1), 1e6);
}

wf_status wf__trainer_set_pace(wf_trainer *tr) {
    wf_pace *pace = &tr->state.pace;
    double position = (double)wf_pace_position(pace, tr->state.made);
    double stride = fitting_stride(tr, position);
    WF_TRY(wf_broadcast(tr->ctx, &stride, sizeof stride)); /* rank 0's clock counts */
    wf__trainer_start_pace(tr);
    if (stride == pace->stride || (stride == 1 && pace->stride == 0)) return WF_OK;
    *pace = (wf_pace){tr->state.made, position, stride};
    return WF_OK;
}
