#include "flow/validation.h"

#include <math.h>
#include <stdlib.h>

/* Noise and times of validation lie at addresses that no update has. */
static const uint64_t validation_stream = 0x76616C6964617465u;

/* Networks of one of the two batches: forward passes of all validations together take 1 % of those
 * of training, where an update costs three forward passes. */
static int networks_of(const wf_fit_desc *desc, const wf_training_set *set, int n_sources) {
    enum { fewest = 16, most = 512, most_floats = 1 << 22 };
    double training = 3 * (double)desc->updates * (double)desc->batch;
    double fitting = 0.01 * training / (2 * (double)desc->validations);
    size_t largest = 1;
    for (int s = 0; s < set->n_families; s++)
        if (set->families[s].graph->n_params > largest) largest = set->families[s].graph->n_params;
    fitting = fmin(fitting, most_floats / (double)largest);
    return (int)fmin(most, fmax(fmax(fewest, n_sources), fitting));
}

static wf_status open_batch(wf_ctx *ctx, const wf_validation *v, const wf_training_set *set,
                            const wf_fit_desc *desc, bool held_out, wf_draw *draw) {
    wf_fit_desc fixed = *desc;
    fixed.batch = (size_t)networks_of(desc, set, v->n_sources);
    fixed.seed ^= validation_stream;
    fixed.noise_table = 0;
    fixed.epochs = false;
    fixed.cond_drop = 0;
    WF_TRY(wf_draw_create(ctx, set, &fixed, draw));
    draw->only = v->sources;
    draw->n_only = v->n_sources;
    draw->held_out = held_out;
    return wf_draw_batch(ctx, draw, 0);
}

wf_status wf_validation_create(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                               const wf_path *path, wf_validation *out) {
    *out = (wf_validation){.loss = NAN, .fitted_loss = NAN, .path = *path, .lowest = HUGE_VAL};
    size_t n = (size_t)set->n_sources;
    WF_TRY(wf_alloc(ctx, n, sizeof *out->sources, "validation", &out->sources));
    for (int i = 0; i < set->n_sources; i++)
        if (set->sources[i].held_out_count > 0) out->sources[out->n_sources++] = (uint32_t)i;
    if (out->n_sources == 0 || desc->validations == 0) {
        if (desc->kept != WF_KEPT_VALIDATION) return WF_OK;
        return wf_fail(ctx, WF_ERR_USAGE,
                       "weights = validation needs held-out networks: set zoo.held_out or "
                       "train.set_aside, and validations above 0");
    }
    out->keeps_lowest = desc->kept == WF_KEPT_VALIDATION;
    out->every = desc->updates > desc->validations ? desc->updates / desc->validations : 1;
    WF_TRY(wf_alloc(ctx, n, sizeof *out->by_source, "validation", &out->by_source));
    WF_TRY(open_batch(ctx, out, set, desc, true, &out->held_out));
    return open_batch(ctx, out, set, desc, false, &out->fitted);
}

void wf_validation_free(wf_validation *validation) {
    wf_draw_free(&validation->held_out);
    wf_draw_free(&validation->fitted);
    free(validation->sources);
    free(validation->by_source);
    *validation = (wf_validation){0};
}

bool wf_validation_due(const wf_validation *validation, size_t update, size_t updates) {
    if (validation->every == 0 || update == 0) return false;
    return update % validation->every == 0 || update == updates;
}

static void sum_by_source(wf_validation *v) {
    const wf_draw *draw = &v->held_out;
    for (int k = 0; k < v->n_sources; k++) {
        double sum = 0;
        int count = 0;
        for (int place = 0; place < draw->batch; place++)
            if (draw->source[draw->order[place]] == v->sources[k]) {
                sum += draw->flow.loss[place];
                count++;
            }
        v->by_source[k] = sum / count;
    }
}

/* The loss counts as rising when it is one percent above its lowest value, and that value is a
 * tenth of the run's validations old. */
static void warn_of_gap(wf_ctx *ctx, wf_validation *v, size_t update) {
    if (v->loss < v->lowest) {
        v->lowest = v->loss;
        v->lowest_at = update;
    }
    if (v->warned || v->loss < 1.01 * v->lowest || update - v->lowest_at < 10 * v->every) return;
    v->warned = true;
    wf_warn(ctx,
            "the flow memorises: more networks or fewer updates. The loss on held-out networks "
            "was lowest at update %zu (%.4f) and is %.4f now, on its own networks %.4f%s",
            v->lowest_at, v->lowest, v->loss, v->fitted_loss,
            v->keeps_lowest ? "; the weights of the lowest are kept" : "");
}

wf_status wf_validation_run(wf_ctx *ctx, wf_validation *v, size_t update,
                            wf_validation_forward *forward, void *arg) {
    wf_draw *draws[] = {&v->held_out, &v->fitted};
    double *losses[] = {&v->loss, &v->fitted_loss};
    for (int which = 0; which < 2; which++) {
        wf_draw *draw = draws[which];
        if (which == 1 && draw->set->fresh) WF_TRY(wf_draw_batch(ctx, draw, 0));
        wf_flow_interpolate(ctx, &v->path, draw->seed, 0, &draw->flow);
        wf_status status = forward(arg, which, &draw->flow);
        WF_TRY(wf_flow_compare(ctx, status, &draw->flow, losses[which]));
    }
    sum_by_source(v);
    warn_of_gap(ctx, v, update);
    return WF_OK;
}
