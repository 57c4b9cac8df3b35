/* eval_json: a row of the table and its networks' scores as JSON. */
#include "eval/eval_json.h"

#include "base/settings_json.h"
#include "eval/reference.h"

static json_t *reals(const float *values, size_t n) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, wf__json_real((double)values[i])) == 0;
    if (good) return list;
    json_decref(list);
    return NULL;
}

static json_t *indices(const uint32_t *values, size_t n) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, json_integer((json_int_t)values[i])) == 0;
    if (good) return list;
    json_decref(list);
    return NULL;
}

static json_t *points_json(const wf_points *points) {
    json_t *object = json_object();
    const struct {
        const char *key;
        const float *values;
    } real[] = {{"accuracy", points->accuracy},
                {"iou", points->iou},
                {"wcs", points->wcs},
                {"wcs_percentile", points->wcs_percentile},
                {"iou_percentile", points->iou_percentile}};
    const struct {
        const char *key;
        const uint32_t *values;
    } index[] = {{"nearest_wcs", points->nearest_wcs}, {"nearest_iou", points->nearest_iou}};
    bool good = object != NULL;
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        if (good && real[i].values != NULL)
            good = json_object_set_new(object, real[i].key, reals(real[i].values, points->n)) == 0;
    for (size_t i = 0; i < sizeof index / sizeof *index; i++)
        if (good && index[i].values != NULL)
            good =
                json_object_set_new(object, index[i].key, indices(index[i].values, points->n)) == 0;
    if (good) return object;
    json_decref(object);
    return NULL;
}

static json_t *row_json(const wf_eval_row *row) {
    const struct {
        const char *key;
        double value;
    } numbers[] = {
#define NUMBER(member) {#member, row->member}
        NUMBER(accuracy_mean),
        NUMBER(accuracy_std),
        NUMBER(iou_mean),
        NUMBER(iou_std),
        NUMBER(wcs_mean),
        NUMBER(wcs_std),
        NUMBER(jws),
        NUMBER(jws_std),
        NUMBER(jws_raw),
        NUMBER(jws_no_sqrt3),
        NUMBER(diversity_iou_mean),
        NUMBER(diversity_iou_std),
        NUMBER(diversity_wcs_mean),
        NUMBER(diversity_wcs_std),
#undef NUMBER
    };
    json_t *object = json_pack("{s:s, s:I}", "name", row->name, "n", (json_int_t)row->n);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(object, numbers[i].key, wf__json_real(numbers[i].value));
    return object;
}

json_t *wf__eval_row_json(const wf_eval_row *row, const wf_points *points) {
    json_t *object = row_json(row);
    if (json_object_set_new(object, "points", points_json(points)) == 0) return object;
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
