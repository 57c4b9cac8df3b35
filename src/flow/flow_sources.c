/* flow_sources: what a flow was fitted to, and where a condition lies among the trained ones.
 *
 * A condition is between the trained ones when it is a convex combination of them. The nearest such
 * combination x = sum a_i c_i is found by pairwise Frank-Wolfe: each step moves weight from the
 * trained condition that lies farthest up the gradient of |x - c|^2 to the one farthest down, with
 * exact line search. It converges linearly on a polytope, and there are few conditions. */
#include "flow/checkpoint.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_steps = 20000, most_listed = 64 };
/* Multiply-adds that the search for a convex combination may take: about a second. */
static const double most_work = 1e9;
static const double close_enough =
    1e-5; /* of the largest distance between trained conditions, or of 1 */

int wf_flow_sources(const wf_flow *flow) { return flow->set.n_sources; }

static const char *source_note(const wf_flow *flow, int index, const char *what) {
    char key[64];
    snprintf(key, sizeof key, "source.%d.%s", index, what);
    const char *text = wf_flow_meta(flow, key);
    return text != NULL ? text : "";
}

static const float *trained(const wf_training_set *set, int source) {
    return set->cond + (size_t)source * (size_t)set->cond_size;
}

wf_flow_source wf_flow_source_at(const wf_flow *flow, int index) {
    const wf_training_set *set = &flow->set;
    return (wf_flow_source){.task = source_note(flow, index, "task"),
                            .graph = set->families[set->sources[index].family].graph,
                            .cond = set->cond == NULL ? NULL : trained(set, index),
                            .tests = source_note(flow, index, "tests"),
                            .data = source_note(flow, index, "data"),
                            .scale = source_note(flow, index, "scale"),
                            .classes = source_note(flow, index, "classes"),
                            .path = source_note(flow, index, "path"),
                            .count = set->sources[index].count};
}

const wf_graph *wf_flow_source_graph(const wf_flow *flow, int index) {
    return wf_flow_source_at(flow, index).graph;
}

void wf_flow_tasks(const wf_flow *flow, char *out, size_t size) {
    const char *listed[most_listed];
    wf_text list = wf_text_start(out, size);
    int n = 0;
    for (int i = 0; i < flow->set.n_sources && !list.cut && n < most_listed; i++) {
        const char *task = source_note(flow, i, "task");
        bool before = task[0] == '\0';
        for (int k = 0; k < n && !before; k++) before = strcmp(listed[k], task) == 0;
        if (before) continue;
        listed[n++] = task;
        wf_text_add(&list, "%s%s", n > 1 ? ", " : "", task);
    }
}

wf_status wf_flow_find_task(wf_ctx *ctx, const wf_flow *flow, const char *task, int *index) {
    for (int i = 0; i < flow->set.n_sources; i++)
        if (task[0] != '\0' && strcmp(source_note(flow, i, "task"), task) == 0) {
            *index = i;
            return WF_OK;
        }
    char all[800];
    wf_flow_tasks(flow, all, sizeof all);
    if (all[0] == '\0')
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "task \"%s\": the flow's collections have no task names; a manifest gives them", task);
    return wf_fail(ctx, WF_ERR_USAGE, "the flow knows no task \"%s\"; it knows %s", task, all);
}

int wf_flow_nearest(const wf_flow *flow, const float *cond) {
    int best = 0;
    for (int i = 1; i < flow->set.n_sources; i++)
        if (wf_training_set_distance(&flow->set, i, cond) <
            wf_training_set_distance(&flow->set, best, cond))
            best = i;
    return best;
}

/* --- between or beyond ------------------------------------------------------------------------ */

typedef struct hull {
    const wf_training_set *set;
    int n, k;
    double *combination; /* (n) a_i */
    double *residual;    /* (k) x - c */
} hull;

static double slope(const hull *h, int source) {
    const float *c = trained(h->set, source);
    double sum = 0;
    for (int j = 0; j < h->k; j++) sum += (double)c[j] * h->residual[j];
    return sum;
}

/* One step; false when no weight can move to advantage. */
static bool hull_step(hull *h) {
    int down = 0, up = -1;
    double lowest = INFINITY, highest = -INFINITY;
    for (int i = 0; i < h->n; i++) {
        double s = slope(h, i);
        if (s < lowest) lowest = s, down = i;
        if (h->combination[i] > 0 && s > highest) highest = s, up = i;
    }
    const float *to = trained(h->set, down), *from = trained(h->set, up);
    double along = 0, squares = 0;
    for (int j = 0; j < h->k; j++) {
        double d = (double)to[j] - (double)from[j];
        along -= h->residual[j] * d;
        squares += d * d;
    }
    if (!(along > 0) || !(squares > 0)) return false;
    double step = fmin(h->combination[up], along / squares);
    h->combination[down] += step;
    h->combination[up] = step == h->combination[up] ? 0 : h->combination[up] - step;
    for (int j = 0; j < h->k; j++) h->residual[j] += step * ((double)to[j] - (double)from[j]);
    return true;
}

static double norm_of(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Distance of cond from the convex hull of the trained conditions, to about `enough`. */
static double distance_from_hull(hull *h, int nearest, const float *cond, double enough) {
    h->combination[nearest] = 1;
    for (int j = 0; j < h->k; j++)
        h->residual[j] = (double)trained(h->set, nearest)[j] - (double)cond[j];
    double steps = fmin(most_steps, most_work / ((double)h->n * h->k));
    for (int step = 0; step < steps && norm_of(h->residual, h->k) > enough; step++)
        if (!hull_step(h)) break;
    return norm_of(h->residual, h->k);
}

wf_status wf_flow_place(wf_ctx *ctx, const wf_flow *flow, const float *cond, wf_cond_place *out) {
    const wf_training_set *set = &flow->set;
    hull h = {.set = set, .n = set->n_sources, .k = set->cond_size};
    if (set->cond == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "the flow was trained without conditions");
    int nearest = wf_flow_nearest(flow, cond);
    double extent = 0;
    for (int i = 0; i < h.n; i++)
        extent = fmax(extent, sqrt(wf_training_set_distance(set, i, trained(set, 0))));
    double enough = close_enough * (extent > 0 ? extent : 1);
    *out = WF_COND_TRAINED;
    if (sqrt(wf_training_set_distance(set, nearest, cond)) <= enough) return WF_OK;
    WF_TRY(wf_alloc(ctx, (size_t)h.n, sizeof *h.combination, "conditions", &h.combination));
    wf_status status = wf_alloc(ctx, (size_t)h.k, sizeof *h.residual, "conditions", &h.residual);
    if (status == WF_OK)
        *out = distance_from_hull(&h, nearest, cond, enough) <= enough ? WF_COND_BETWEEN
                                                                       : WF_COND_BEYOND;
    free(h.combination);
    free(h.residual);
    return status;
}
