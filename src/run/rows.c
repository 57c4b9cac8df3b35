/* rows: lines of the table and clouds of points as JSON, and the table for a terminal. */
#include "run/files.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of a row: name in JSON, place in the struct. */
static const struct row_member {
    const char *name;
    size_t offset;
} members[] = {
#define MEMBER(name)                                                                               \
    { #name, offsetof(wf_eval_row, name) }
    MEMBER(accuracy_mean),
    MEMBER(accuracy_std),
    MEMBER(iou_mean),
    MEMBER(iou_std),
    MEMBER(wcs_mean),
    MEMBER(wcs_std),
    MEMBER(jws),
    MEMBER(jws_std),
    MEMBER(jws_raw),
    MEMBER(jws_no_sqrt3),
    MEMBER(diversity_iou_mean),
    MEMBER(diversity_iou_std),
    MEMBER(diversity_wcs_mean),
    MEMBER(diversity_wcs_std),
#undef MEMBER
};
enum { n_members = sizeof members / sizeof members[0] };

json_t *wf__run_row_to_json(const wf_eval_row *row) {
    json_t *json = json_pack("{s:s, s:I}", "name", row->name, "n", (json_int_t)row->n);
    for (int i = 0; json != NULL && i < n_members; i++) {
        const double *value = (const void *)((const char *)row + members[i].offset);
        json_object_set_new(json, members[i].name, wf__run_json_number(*value));
    }
    return json;
}

void wf__run_row_of_scores(const char *name, const float *scores, size_t n, wf_eval_row *row) {
    *row = (wf_eval_row){.n = n};
    snprintf(row->name, sizeof row->name, "%s", name);
    for (int i = 0; i < n_members; i++) *(double *)(void *)((char *)row + members[i].offset) = NAN;
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
    for (int i = 0; i < n_members; i++) {
        double *value = (void *)((char *)row + members[i].offset);
        const json_t *number = json_object_get(json, members[i].name);
        *value = json_is_number(number) ? json_number_value(number) : NAN;
    }
    return true;
}

/* The arrays of points, float or index. */
static const struct point_member {
    const char *name;
    size_t offset;
    bool index;
} arrays[] = {
#define ARRAY(name, index)                                                                         \
    { #name, offsetof(wf_points, name), index }
    ARRAY(accuracy, false),       ARRAY(iou, false),        ARRAY(wcs, false),
    ARRAY(nearest_wcs, true),     ARRAY(nearest_iou, true), ARRAY(wcs_percentile, false),
    ARRAY(iou_percentile, false),
#undef ARRAY
};
enum { n_arrays = sizeof arrays / sizeof arrays[0] };

static void *array_of(const wf_points *points, int which) {
    return *(void *const *)(const void *)((const char *)points + arrays[which].offset);
}

json_t *wf__run_points_to_json(const char *name, const wf_points *points) {
    json_t *json = json_pack("{s:s, s:I}", "name", name, "n", (json_int_t)points->n);
    for (int which = 0; json != NULL && which < n_arrays; which++) {
        const void *from = array_of(points, which);
        if (from == NULL) continue;
        json_t *list = json_array();
        for (size_t i = 0; i < points->n; i++)
            json_array_append_new(list, arrays[which].index
                                            ? json_integer(((const uint32_t *)from)[i])
                                            : wf__run_json_number(((const float *)from)[i]));
        json_object_set_new(json, arrays[which].name, list);
    }
    return json;
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
    for (int which = 0; which < n_arrays; which++) {
        const json_t *list = json_object_get(json, arrays[which].name);
        void **place = (void *)((char *)points + arrays[which].offset);
        if (list != NULL && !read_array(list, arrays[which].index, points->n, place)) {
            wf__run_points_release(points);
            return false;
        }
    }
    return true;
}

void wf__run_points_release(wf_points *points) {
    for (int which = 0; which < n_arrays; which++) free(array_of(points, which));
    *points = (wf_points){0};
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
