/* eval_json: see eval_json.h. */
#include "eval/eval_json.h"

#include "base/settings_json.h"
#include "eval/reference.h"

#include <stddef.h>

const wf_row_member wf__row_members[] = {
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
    {NULL, 0},
#undef MEMBER
};

const wf_points_member wf__points_members[] = {
#define ARRAY(name, index)                                                                         \
    { #name, offsetof(wf_points, name), index }
    ARRAY(accuracy, false),       ARRAY(iou, false),        ARRAY(wcs, false),
    ARRAY(nearest_wcs, true),     ARRAY(nearest_iou, true), ARRAY(wcs_percentile, false),
    ARRAY(iou_percentile, false), {NULL, 0, false},
#undef ARRAY
};

json_t *wf__row_json(const wf_eval_row *row) {
    json_t *json = json_pack("{s:s, s:I}", "name", row->name, "n", (json_int_t)row->n);
    bool good = json != NULL;
    for (const wf_row_member *m = wf__row_members; good && m->name != NULL; m++)
        good = json_object_set_new(json, m->name, wf__json_real(*wf__row_number(row, m))) == 0;
    if (good) return json;
    json_decref(json);
    return NULL;
}

static json_t *array_json(const void *values, bool index, size_t n) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(
                   list, index ? json_integer((json_int_t)((const uint32_t *)values)[i])
                               : wf__json_real((double)((const float *)values)[i])) == 0;
    if (good) return list;
    json_decref(list);
    return NULL;
}

json_t *wf__points_json(const wf_points *points) {
    json_t *json = json_object();
    bool good = json != NULL;
    for (const wf_points_member *m = wf__points_members; good && m->name != NULL; m++) {
        const void *values = *wf__points_array(points, m);
        if (values != NULL)
            good = json_object_set_new(json, m->name, array_json(values, m->index, points->n)) == 0;
    }
    if (good) return json;
    json_decref(json);
    return NULL;
}

json_t *wf__eval_row_json(const wf_eval_row *row, const wf_points *points) {
    json_t *object = wf__row_json(row);
    if (json_object_set_new(object, "points", wf__points_json(points)) == 0) return object;
    json_decref(object);
    return NULL;
}

wf_status wf_eval_json(wf_ctx *ctx, const wf_reference *reference, const char *name,
                       const float *weights, size_t n, char **out) {
    wf_eval_row row;
    wf_points points = {0};
    *out = NULL;
    wf_status status = weights == NULL
                           ? wf_eval_reference(ctx, reference, &row, &points)
                           : wf_eval_networks(ctx, reference, name, weights, n, &row, &points);
    if (status == WF_OK) status = wf__json_answer(ctx, wf__eval_row_json(&row, &points), out);
    wf_points_free(&points);
    return status;
}
