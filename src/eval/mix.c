/* mix: baselines between two collections (paper, domain-conditioned generation): curves over alpha
 * of averaged weights, direct and after Re-Basin, and of logit ensembles. The same pairs serve
 * every curve. */
#include "base/status.h"
#include "weft/eval.h"
#include "weft/flow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_mix_desc wf_mix_desc_default(void) {
    return (wf_mix_desc){.score = WF_SCORE_AUC,
                         .pairs = 50,
                         .steps = 10,
                         .n_sweeps = 4,
                         .sweeps = {0, 1, 5, 50},
                         .ensemble = true};
}

void wf_mix_free(wf_mix *mix) {
    if (mix == NULL) return;
    free(mix->name);
    free(mix->alpha);
    free(mix->mean);
    free(mix->std);
    *mix = (wf_mix){0};
}

typedef struct mixing {
    wf_ctx *ctx;
    const wf_graph *graph;
    const wf_dataset *const *data;
    const wf_mix_desc *desc;
    wf_mix *out;
    float *from, *to, *mixed; /* (pairs, n_params) */
    float *scores;            /* [pairs] */
    wf_meter meter;
    int curve; /* the next one */
} mixing;

static wf_status check_desc(wf_ctx *ctx, const wf_mix_desc *desc, int n_data) {
    if (desc->pairs < 1 || desc->pairs > 1000000)
        return wf_fail(ctx, WF_ERR_USAGE, "mixing: %zu pairs; give 1 to 1000000", desc->pairs);
    if (desc->steps < 1 || desc->steps > 1000)
        return wf_fail(ctx, WF_ERR_USAGE, "mixing: %d steps; give 1 to 1000", desc->steps);
    if (n_data < 1) return wf_fail(ctx, WF_ERR_USAGE, "mixing: no test set");
    if (desc->n_sweeps < 0 || desc->n_sweeps > 8)
        return wf_fail(ctx, WF_ERR_USAGE, "mixing: %d numbers of sweeps; give at most 8",
                       desc->n_sweeps);
    return WF_OK;
}

static wf_status mix_alloc(wf_ctx *ctx, const wf_mix_desc *desc, int n_data, wf_mix *out) {
    out->curves = desc->n_sweeps + (desc->ensemble ? 1 : 0);
    out->points = desc->steps + 1;
    out->n_data = n_data;
    size_t values = (size_t)out->curves * (size_t)out->points * (size_t)n_data;
    WF_TRY(wf_alloc(ctx, (size_t)out->curves, sizeof *out->name, "curves", &out->name));
    WF_TRY(wf_alloc(ctx, (size_t)out->points, sizeof(double), "curves", &out->alpha));
    WF_TRY(wf_alloc(ctx, values, sizeof(double), "curves", &out->mean));
    WF_TRY(wf_alloc(ctx, values, sizeof(double), "curves", &out->std));
    for (int k = 0; k < out->points; k++) out->alpha[k] = (double)k / desc->steps;
    return WF_OK;
}

/* Mean and deviation of m->scores as point `point` on test set `set`. */
static void keep_point(mixing *m, int point, int set) {
    size_t place =
        ((size_t)m->curve * (size_t)m->out->points + (size_t)point) * (size_t)m->out->n_data +
        (size_t)set;
    double n = (double)m->desc->pairs, sum = 0, squares = 0;
    for (size_t k = 0; k < m->desc->pairs; k++) sum += m->scores[k];
    for (size_t k = 0; k < m->desc->pairs; k++)
        squares += (m->scores[k] - sum / n) * (m->scores[k] - sum / n);
    m->out->mean[place] = sum / n;
    m->out->std[place] = sqrt(squares / n);
}

static void blend(const float *a, const float *b, double alpha, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) out[i] = (float)((1 - alpha) * a[i] + alpha * b[i]);
}

static wf_status step_done(mixing *m, int point) {
    wf_meter_update(&m->meter, (double)(m->curve * m->out->points + point + 1), NULL);
    if (wf_interrupted(m->ctx))
        return wf_fail(m->ctx, WF_ERR_INTERRUPTED, "interrupted while mixing networks");
    return WF_OK;
}

static wf_status average_curve(mixing *m) {
    size_t count = m->desc->pairs * m->graph->n_params;
    for (int point = 0; point < m->out->points; point++) {
        blend(m->from, m->to, m->out->alpha[point], count, m->mixed);
        for (int set = 0; set < m->out->n_data; set++) {
            WF_TRY(wf_score_networks(m->ctx, m->graph, m->mixed, m->desc->pairs, m->data[set],
                                     m->desc->score, m->scores, NULL));
            keep_point(m, point, set);
        }
        WF_TRY(step_done(m, point));
    }
    return WF_OK;
}

/* One pair at a time: its logits on a test set may be many. */
static wf_status ensemble_set(mixing *m, int set, float *of_a, float *of_b, float *mixed,
                              float *all) {
    const wf_dataset *data = m->data[set];
    size_t each = data->n_test * (size_t)m->graph->outputs, p = m->graph->n_params;
    for (size_t k = 0; k < m->desc->pairs; k++) {
        WF_TRY(wf_logits(m->ctx, m->graph, m->from + k * p, 1, data, of_a));
        WF_TRY(wf_logits(m->ctx, m->graph, m->to + k * p, 1, data, of_b));
        for (int point = 0; point < m->out->points; point++) {
            blend(of_a, of_b, m->out->alpha[point], each, mixed);
            WF_TRY(wf_score_logits(m->ctx, mixed, 1, data, m->desc->score,
                                   all + (size_t)point * m->desc->pairs + k, NULL));
        }
    }
    for (int point = 0; point < m->out->points; point++) {
        memcpy(m->scores, all + (size_t)point * m->desc->pairs, m->desc->pairs * sizeof(float));
        keep_point(m, point, set);
        WF_TRY(step_done(m, point));
    }
    return WF_OK;
}

static wf_status ensemble_curve(mixing *m) {
    wf_status status = WF_OK;
    for (int set = 0; set < m->out->n_data && status == WF_OK; set++) {
        size_t each = m->data[set]->n_test * (size_t)m->graph->outputs;
        float *logits, *all = NULL;
        WF_TRY(wf_alloc(m->ctx, 3 * each, sizeof *logits, "logits", &logits));
        status =
            wf_alloc(m->ctx, (size_t)m->out->points * m->desc->pairs, sizeof *all, "scores", &all);
        if (status == WF_OK)
            status = ensemble_set(m, set, logits, logits + each, logits + 2 * each, all);
        free(all);
        free(logits);
    }
    return status;
}

static wf_status mix_all(mixing *m, const wf_zoo *a, const wf_zoo *b) {
    const wf_mix_desc *desc = m->desc;
    size_t count = desc->pairs * m->graph->n_params;
    WF_TRY(wf_alloc(m->ctx, 3 * count, sizeof(float), "pairs", &m->from));
    m->to = m->from + count;
    m->mixed = m->to + count;
    WF_TRY(wf_alloc(m->ctx, desc->pairs, sizeof(float), "scores", &m->scores));
    for (int i = 0; i < desc->n_sweeps; i++, m->curve++) {
        int sweeps = desc->sweeps[i];
        if (sweeps == 0) snprintf(m->out->name[m->curve], 32, "average");
        else snprintf(m->out->name[m->curve], 32, "average-%d", sweeps);
        WF_TRY(wf_control_pairs(m->ctx, a, b, sweeps, desc->pairs, desc->seed, m->from, m->to));
        WF_TRY(average_curve(m));
    }
    if (!desc->ensemble) return WF_OK;
    snprintf(m->out->name[m->curve], 32, "ensemble");
    WF_TRY(wf_control_pairs(m->ctx, a, b, 0, desc->pairs, desc->seed, m->from, m->to));
    return ensemble_curve(m);
}

wf_status wf_eval_mix(wf_ctx *ctx, const wf_zoo *a, const wf_zoo *b, const wf_dataset *const *data,
                      int n_data, const wf_mix_desc *desc, wf_mix *out) {
    wf_mix_desc defaults = wf_mix_desc_default();
    if (desc == NULL) desc = &defaults;
    *out = (wf_mix){0};
    WF_TRY(check_desc(ctx, desc, n_data));
    WF_TRY(mix_alloc(ctx, desc, n_data, out));
    mixing m = {.ctx = ctx, .graph = wf_zoo_graph(a), .data = data, .desc = desc, .out = out};
    double total = (double)out->curves * out->points;
    m.meter = wf_meter_start(ctx, "mixing networks", "points", total);
    wf_status status = mix_all(&m, a, b);
    if (status == WF_OK) wf_meter_end(&m.meter, total, NULL);
    free(m.from);
    free(m.scores);
    return status;
}
