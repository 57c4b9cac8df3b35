/* evaluate: rows of the table and scores of single networks (paper, appendix B.2 to B.4).
 *
 * Networks are compared with the whole collection; the collection's own row is leave-one-out: task
 * score and IoU over all N networks, WCS over the cloud. Diversity is the leave-one-out maximum
 * among the networks themselves. Standard deviations divide by n. */
#include "base/status.h"
#include "eval/eval_json.h"
#include "eval/iou.h"
#include "eval/jws.h"
#include "eval/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wf_points_free(wf_points *points) {
    if (points == NULL) return;
    for (const wf_points_member *m = wf__points_members; m->name != NULL; m++)
        free(*wf__points_array(points, m));
    *points = (wf_points){0};
}

static wf_status points_alloc(wf_ctx *ctx, size_t n, bool with_data, wf_points *points) {
    points->n = n;
    WF_TRY(wf_alloc(ctx, n, sizeof(float), "scores", &points->wcs));
    WF_TRY(wf_alloc(ctx, n, sizeof(uint32_t), "scores", &points->nearest_wcs));
    WF_TRY(wf_alloc(ctx, n, sizeof(float), "scores", &points->wcs_percentile));
    if (!with_data) return WF_OK;
    WF_TRY(wf_alloc(ctx, n, sizeof(float), "scores", &points->accuracy));
    WF_TRY(wf_alloc(ctx, n, sizeof(float), "scores", &points->iou));
    WF_TRY(wf_alloc(ctx, n, sizeof(uint32_t), "scores", &points->nearest_iou));
    return wf_alloc(ctx, n, sizeof(float), "scores", &points->iou_percentile);
}

/* Mean and standard deviation; NaN without values. */
static void spread(const float *values, size_t n, double *mean, double *std) {
    *mean = *std = NAN;
    if (values == NULL || n == 0) return;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += (double)values[i];
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double difference = (double)values[i] - *mean;
        squares += difference * difference;
    }
    *std = sqrt(squares / (double)n);
}

static wf_eval_row empty_row(const char *name, size_t n) {
    wf_eval_row row = {.n = n};
    for (const wf_row_member *m = wf__row_members; m->name != NULL; m++)
        *wf__row_number(&row, m) = NAN;
    snprintf(row.name, sizeof row.name, "%s", name);
    return row;
}

static int by_value(const void *a_, const void *b_) {
    float a = *(const float *)a_, b = *(const float *)b_;
    return (a > b) - (a < b);
}

/* How many of n sorted values are below `value`, or not above it. */
static size_t count_below(const float *sorted, size_t n, float value, bool or_equal) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle] < value || (or_equal && sorted[middle] == value)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Place of each value among the reference's, 0..100; a tie counts half. */
static wf_status percentiles(wf_ctx *ctx, const float *values, size_t n, const float *reference,
                             size_t m, float *out) {
    float *sorted = NULL;
    WF_TRY(wf_alloc(ctx, m, sizeof *sorted, "percentiles", &sorted));
    memcpy(sorted, reference, m * sizeof *sorted);
    qsort(sorted, m, sizeof *sorted, by_value);
    for (size_t i = 0; i < n; i++) {
        size_t below = count_below(sorted, m, values[i], false);
        size_t not_above = count_below(sorted, m, values[i], true);
        out[i] = (float)(50.0 * (double)(below + not_above) / (double)m);
    }
    free(sorted);
    return WF_OK;
}

/* Scores of the cloud's networks, gathered from those of the collection. */
static wf_status cloud_points(wf_ctx *ctx, const wf_reference *ref, wf_points *points) {
    WF_TRY(points_alloc(ctx, ref->m, ref->data != NULL, points));
    for (size_t i = 0; i < ref->m; i++) {
        points->wcs[i] = ref->wcs[i];
        points->nearest_wcs[i] = ref->wcs_nearest[i];
        if (ref->data == NULL) continue;
        points->accuracy[i] = ref->score[ref->cloud[i]];
        points->iou[i] = ref->iou[ref->cloud[i]];
        points->nearest_iou[i] = ref->iou_nearest[ref->cloud[i]];
    }
    WF_TRY(percentiles(ctx, points->wcs, ref->m, points->wcs, ref->m, points->wcs_percentile));
    if (ref->data == NULL) return WF_OK;
    return percentiles(ctx, points->iou, ref->m, points->iou, ref->m, points->iou_percentile);
}

/* IoU over all networks, or over those of the cloud where only they have one. */
static wf_status spread_iou(wf_ctx *ctx, const wf_reference *ref, wf_eval_row *row) {
    if (ref->n <= WF_REFERENCE_PAIRED) {
        spread(ref->iou, ref->n, &row->iou_mean, &row->iou_std);
        return WF_OK;
    }
    float *iou = NULL;
    if (ref->iou != NULL) WF_TRY(wf_alloc(ctx, ref->m, sizeof *iou, "scores", &iou));
    for (size_t i = 0; iou != NULL && i < ref->m; i++) iou[i] = ref->iou[ref->cloud[i]];
    spread(iou, ref->m, &row->iou_mean, &row->iou_std);
    free(iou);
    return WF_OK;
}

wf_status wf_eval_reference(wf_ctx *ctx, const wf_reference *reference, wf_eval_row *row,
                            wf_points *points) {
    *row = empty_row("reference", reference->n);
    spread(reference->score, reference->n, &row->accuracy_mean, &row->accuracy_std);
    WF_TRY(spread_iou(ctx, reference, row));
    spread(reference->wcs, reference->m, &row->wcs_mean, &row->wcs_std);
    /* The collection's own IoU and WCS are already leave-one-out values. */
    row->diversity_iou_mean = row->iou_mean;
    row->diversity_iou_std = row->iou_std;
    row->diversity_wcs_mean = row->wcs_mean;
    row->diversity_wcs_std = row->wcs_std;
    if (points == NULL) return WF_OK;
    *points = (wf_points){0};
    wf_status status = cloud_points(ctx, reference, points);
    if (status != WF_OK) wf_points_free(points);
    return status;
}

/* Everything about one set of networks while it is judged. */
typedef struct judged {
    const wf_reference *ref;
    const float *weights;
    size_t n;
    uint64_t *errors; /* (n, words) */
    int64_t *self;    /* 0, 1, 2 ...: what leave-one-out skips */
    float *among;     /* [n] leave-one-out maximum among themselves */
    wf_points points;
} judged;

static wf_status test_networks(wf_ctx *ctx, judged *set) {
    const wf_reference *ref = set->ref;
    size_t bytes = (ref->data->n_test + 7) / 8;
    uint8_t *masks = NULL;
    WF_TRY(wf_alloc(ctx, set->n, bytes, "error masks", &masks));
    wf_status status = wf_score_networks(ctx, wf_zoo_graph(ref->zoo), set->weights, set->n,
                                         ref->data, ref->desc.score, set->points.accuracy, masks);
    if (status == WF_OK) status = wf__masks_widen(ctx, masks, set->n, bytes, &set->errors);
    free(masks);
    return status;
}

static wf_status judge_functions(wf_ctx *ctx, judged *set, const wf_points *cloud,
                                 wf_eval_row *row) {
    const wf_reference *ref = set->ref;
    wf_points *points = &set->points;
    WF_TRY(test_networks(ctx, set));
    WF_TRY(wf__iou_max(ctx, set->errors, set->n, ref->errors, ref->n, ref->words, NULL, points->iou,
                       points->nearest_iou));
    WF_TRY(percentiles(ctx, points->iou, set->n, cloud->iou, ref->m, points->iou_percentile));
    spread(points->accuracy, set->n, &row->accuracy_mean, &row->accuracy_std);
    spread(points->iou, set->n, &row->iou_mean, &row->iou_std);
    if (set->n < 2) return WF_OK;
    WF_TRY(wf__iou_max(ctx, set->errors, set->n, set->errors, set->n, ref->words, set->self,
                       set->among, NULL));
    spread(set->among, set->n, &row->diversity_iou_mean, &row->diversity_iou_std);
    return WF_OK;
}

static wf_status judge_weights(wf_ctx *ctx, judged *set, wf_eval_row *row) {
    const wf_reference *ref = set->ref;
    const wf_graph *graph = wf_zoo_graph(ref->zoo);
    wf_points *points = &set->points;
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = ref->desc.sweeps;
    match.seed = ref->desc.seed;
    WF_TRY(wf__reference_match(ctx, ref, set->weights, set->n, NULL, &match, points->wcs,
                               points->nearest_wcs));
    WF_TRY(percentiles(ctx, points->wcs, set->n, ref->wcs, ref->m, points->wcs_percentile));
    spread(points->wcs, set->n, &row->wcs_mean, &row->wcs_std);
    if (set->n < 2) return WF_OK;
    WF_TRY(wf_wcs_max(ctx, graph, set->weights, set->n, set->weights, set->n, set->self, &match,
                      set->among, NULL));
    spread(set->among, set->n, &row->diversity_wcs_mean, &row->diversity_wcs_std);
    return WF_OK;
}

/* (n, 3) as double; whether all are finite. */
static bool joint_scores(const wf_points *points, double *out) {
    bool finite = true;
    for (size_t i = 0; i < points->n; i++) {
        const double joint[3] = {(double)points->accuracy[i], (double)points->iou[i],
                                 (double)points->wcs[i]};
        memcpy(out + 3 * i, joint, sizeof joint);
        for (int k = 0; k < 3; k++) finite &= isfinite(joint[k]) != 0;
    }
    return finite;
}

static wf_status judge_jointly(wf_ctx *ctx, const judged *set, const wf_points *cloud,
                               wf_eval_row *row) {
    const wf_reference *ref = set->ref;
    if (set->n > ref->m)
        wf_warn(
            ctx,
            "%s: %zu networks are compared with %zu trained ones: JWS takes %zu of them at a time",
            row->name, set->n, ref->m, ref->m);
    double *joint = NULL;
    WF_TRY(wf_alloc(ctx, set->n + ref->m, 3 * sizeof *joint, "JWS", &joint));
    double *cloud_joint = joint + 3 * set->n;
    wf_status status = WF_OK;
    bool finite = joint_scores(&set->points, joint);
    if (joint_scores(cloud, cloud_joint) && finite) {
        wf_jws jws;
        status = wf__jws(ctx, joint, set->n, cloud_joint, ref->m, ref->scales, ref->desc.subsets,
                         ref->desc.seed, &jws);
        if (status == WF_OK) {
            row->jws = jws.full;
            row->jws_std = jws.spread;
            row->jws_raw = jws.raw;
            row->jws_no_sqrt3 = jws.no_sqrt3;
        }
    }
    free(joint);
    return status;
}

wf_status wf_eval_networks(wf_ctx *ctx, const wf_reference *reference, const char *name,
                           const float *weights, size_t n, wf_eval_row *row, wf_points *points) {
    if (points != NULL) *points = (wf_points){0};
    *row = empty_row(name, n);
    if (n == 0) return wf_fail(ctx, WF_ERR_INPUT, "%s: no networks to evaluate", name);
    judged set = {.ref = reference, .weights = weights, .n = n};
    wf_points cloud = {0};
    wf_status status = WF_OK;
    WF_TRY_GOTO(points_alloc(ctx, n, reference->data != NULL, &set.points), done);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *set.self, "evaluation", &set.self), done);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *set.among, "evaluation", &set.among), done);
    for (size_t i = 0; i < n; i++) set.self[i] = (int64_t)i;
    WF_TRY_GOTO(cloud_points(ctx, reference, &cloud), done);
    WF_TRY_GOTO(judge_weights(ctx, &set, row), done);
    if (reference->data != NULL) {
        WF_TRY_GOTO(judge_functions(ctx, &set, &cloud, row), done);
        WF_TRY_GOTO(judge_jointly(ctx, &set, &cloud, row), done);
    }
    if (points != NULL) {
        *points = set.points;
        set.points = (wf_points){0};
    }
done:
    if (status == WF_ERR_INPUT) wf_fail(ctx, status, "%s: %s", name, wf_last_error(ctx));
    wf_points_free(&set.points);
    wf_points_free(&cloud);
    free(set.errors);
    free(set.self);
    free(set.among);
    return status;
}
