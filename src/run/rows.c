/* rows: lines of the table and clouds of points as JSON, and the table for a terminal. */
#include "run/files.h"

#include "eval/eval_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *wf__run_row_to_json(const wf_eval_row *row) { return wf__row_json(row); }

void wf__run_row_of_scores(const char *name, const float *scores, size_t n, wf_eval_row *row) {
    *row = (wf_eval_row){.n = n};
    snprintf(row->name, sizeof row->name, "%s", name);
    for (const wf_row_member *m = wf__row_members; m->name != NULL; m++)
        *wf__row_number(row, m) = NAN;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += scores[i];
    for (size_t i = 0; i < n; i++) squares += pow((double)scores[i] - sum / (double)n, 2);
    row->accuracy_mean = sum / (double)n;
    row->accuracy_std = sqrt(squares / (double)n);
}

bool wf__run_row_from_json(const json_t *json, wf_eval_row *row) {
    *row = (wf_eval_row){0};
    const char *name = json_string_value(json_object_get(json, "name"));
    const json_t *n = json_object_get(json, "n");
    if (name == NULL || !json_is_integer(n) || json_integer_value(n) < 0) return false;
    snprintf(row->name, sizeof row->name, "%s", name);
    row->n = (size_t)json_integer_value(n);
    for (const wf_row_member *m = wf__row_members; m->name != NULL; m++)
        *wf__row_number(row, m) = wf__run_number_of(json, m->name);
    return true;
}

json_t *wf__run_points_to_json(const char *name, const wf_points *points) {
    json_t *json = json_pack("{s:s, s:I}", "name", name, "n", (json_int_t)points->n);
    json_t *arrays = wf__points_json(points);
    bool whole = arrays != NULL && json_object_update(json, arrays) == 0;
    json_decref(arrays);
    if (whole) return json;
    json_decref(json);
    return NULL;
}

static bool read_array(const json_t *list, bool index, size_t n, void **out) {
    if (!json_is_array(list) || json_array_size(list) != n) return false;
    void *array = wf__run_json_malloc((n + 1) * 4);
    if (array == NULL) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        if (index) ((uint32_t *)array)[i] = (uint32_t)json_integer_value(value);
        else ((float *)array)[i] = json_is_number(value) ? (float)json_number_value(value) : NAN;
    }
    *out = array;
    return true;
}

bool wf__run_points_from_json(const json_t *json, wf_points *points) {
    *points = (wf_points){0};
    const json_t *n = json_object_get(json, "n");
    if (!json_is_integer(n) || json_integer_value(n) < 0) return false;
    points->n = (size_t)json_integer_value(n);
    for (const wf_points_member *m = wf__points_members; m->name != NULL; m++) {
        const json_t *list = json_object_get(json, m->name);
        if (list != NULL && !read_array(list, m->index, points->n, wf__points_array(points, m))) {
            wf_points_free(points);
            return false;
        }
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median of the percentiles, how many lie at 99 or above, and the largest value. */
static json_t *audit_of(const float *values, const float *percentiles, size_t n) {
    float *sorted = wf__run_json_malloc((n + 1) * sizeof *sorted);
    if (sorted == NULL) return NULL;
    memcpy(sorted, percentiles, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    size_t close = 0;
    double most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        close += percentiles[i] >= 99;
        most = fmax(most, values[i]);
    }
    double median = n == 0 ? NAN : 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    free(sorted);
    return json_pack("{s:o, s:o, s:I}", "largest", wf__run_json_number(most), "median_percentile",
                     wf__run_json_number(median), "at_99th_percentile", (json_int_t)close);
}

json_t *wf__run_novelty_to_json(const wf_points *points) {
    json_t *json = json_pack("{s:I}", "n", (json_int_t)points->n);
    if (points->wcs != NULL && points->wcs_percentile != NULL)
        json_object_set_new(json, "wcs", audit_of(points->wcs, points->wcs_percentile, points->n));
    if (points->iou != NULL && points->iou_percentile != NULL)
        json_object_set_new(json, "iou", audit_of(points->iou, points->iou_percentile, points->n));
    return json;
}

double wf__run_number_of(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *wf__run_text_of(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}
