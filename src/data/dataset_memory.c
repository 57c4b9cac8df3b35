/* dataset_memory: data sets of a caller's arrays, and what a data set says of itself. */
#include "base/settings_json.h"
#include "data/prepare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One part as the caller has it; rows NULL: all of them, in order. */
typedef struct part {
    const float *x;
    const int32_t *y;
    size_t n;
    const char *what;
} part;

static wf_status check_part(wf_ctx *ctx, const char *name, const part *from, int inputs,
                            int classes) {
    for (size_t r = 0; r < from->n; r++) {
        if (from->y[r] < 0)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "%s: row %zu of the %s has label %d; labels count from 0", name, r,
                           from->what, (int)from->y[r]);
        if (classes > 0 && from->y[r] >= classes)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "%s: row %zu of the %s has label %d; there are %d classes, labelled 0 "
                           "to %d",
                           name, r, from->what, (int)from->y[r], classes, classes - 1);
        for (int i = 0; i < inputs; i++)
            if (!isfinite(from->x[r * (size_t)inputs + (size_t)i]))
                return wf_fail(ctx, WF_ERR_INPUT,
                               "%s: row %zu of the %s has a number that is not finite (input %d); "
                               "take the row out or fill it in",
                               name, r, from->what, i);
    }
    return WF_OK;
}

static int largest_label(const part *from, int most) {
    for (size_t r = 0; r < from->n; r++)
        if (from->y[r] > most) most = from->y[r];
    return most;
}

static wf_status name_all(wf_ctx *ctx, const char *prefix, int count, char ***out) {
    char **names;
    WF_TRY(wf_alloc(ctx, (size_t)count, sizeof *names, "names", &names));
    *out = names;
    for (int i = 0; i < count; i++) {
        WF_TRY(wf_alloc(ctx, 16, 1, "names", &names[i]));
        snprintf(names[i], 16, "%s%d", prefix, i);
    }
    return WF_OK;
}

static wf_status copy_part(wf_ctx *ctx, const part *from, int inputs, float **x, int32_t **y,
                           size_t *n) {
    size_t row = (size_t)inputs * sizeof **x;
    *n = from->n;
    if (from->n == 0) return WF_OK;
    WF_TRY(wf_alloc_raw(ctx, from->n, row, "inputs", x));
    WF_TRY(wf_alloc_raw(ctx, from->n, sizeof **y, "labels", y));
    memcpy(*x, from->x, from->n * row);
    memcpy(*y, from->y, from->n * sizeof **y);
    return WF_OK;
}

static wf_status make(wf_ctx *ctx, const char *name, int inputs, int classes, const part *train,
                      const part *test, wf_dataset **out) {
    *out = NULL;
    if (name == NULL || *name == '\0') name = "data";
    if (inputs < 1 || classes < 0 || (train->n == 0 && test->n == 0))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: %s", name,
                       inputs < 1 || classes < 0 ? "a number of inputs or classes is wrong"
                                                 : "there are no rows");
    WF_TRY(check_part(ctx, name, train, inputs, classes));
    WF_TRY(check_part(ctx, name, test, inputs, classes));
    wf_dataset *data;
    WF_TRY(wf_alloc(ctx, 1, sizeof *data, "data", &data));
    snprintf(data->name, sizeof data->name, "%s", name);
    data->inputs = inputs;
    data->classes = classes > 0 ? classes : 1 + largest_label(test, largest_label(train, 0));
    wf_status status =
        copy_part(ctx, train, inputs, &data->x_train, &data->y_train, &data->n_train);
    if (status == WF_OK)
        status = copy_part(ctx, test, inputs, &data->x_test, &data->y_test, &data->n_test);
    if (status == WF_OK) status = name_all(ctx, "", data->classes, &data->class_names);
    if (status == WF_OK) status = name_all(ctx, "x", data->inputs, &data->input_names);
    if (status == WF_OK) status = wf__dataset_fingerprint(ctx, data);
    if (status == WF_OK) *out = data;
    else wf_dataset_free(data);
    return status;
}

wf_status wf_dataset_from_memory(wf_ctx *ctx, const char *name, int inputs, int classes,
                                 const float *x_train, const int32_t *y_train, size_t n_train,
                                 const float *x_test, const int32_t *y_test, size_t n_test,
                                 wf_dataset **out) {
    part train = {x_train, y_train, n_train, "training part"};
    part test = {x_test, y_test, n_test, "test part"};
    return make(ctx, name, inputs, classes, &train, &test, out);
}

/* Rows of one part of a split, gathered; free x and y. */
static wf_status gather(wf_ctx *ctx, const part *all, const bool *in_test, bool test, int inputs,
                        part *out) {
    float *x;
    int32_t *y;
    size_t row = (size_t)inputs * sizeof *x, n = 0;
    WF_TRY(wf_alloc(ctx, all->n, row, "rows", &x));
    out->x = x;
    WF_TRY(wf_alloc(ctx, all->n, sizeof *y, "rows", &y));
    out->y = y;
    for (size_t r = 0; r < all->n; r++) {
        if (in_test[r] != test) continue;
        memcpy(x + n * (size_t)inputs, all->x + r * (size_t)inputs, row);
        y[n++] = all->y[r];
    }
    out->n = n;
    return WF_OK;
}

static wf_status check_classes(wf_ctx *ctx, const char *name, const part *all, size_t classes) {
    size_t *count;
    WF_TRY(wf_alloc(ctx, classes, sizeof *count, "classes", &count));
    wf_status status = WF_OK;
    for (size_t r = 0; r < all->n; r++) count[all->y[r]]++;
    for (size_t k = 0; k < classes && status == WF_OK; k++)
        if (count[k] < 2)
            status = wf_fail(ctx, WF_ERR_INPUT,
                             "%s: class %zu has %zu rows, but a split needs two of each", name, k,
                             count[k]);
    free(count);
    return status;
}

wf_status wf_dataset_split(wf_ctx *ctx, const char *name, int inputs, int classes, const float *x,
                           const int32_t *y, size_t n, double test_fraction, uint64_t seed,
                           wf_dataset **out) {
    part all = {x, y, n, "table"}, train = {.what = "table"}, test = {.what = "table"};
    *out = NULL;
    if (name == NULL || *name == '\0') name = "data";
    if (inputs < 1 || n == 0 || !(test_fraction > 0 && test_fraction < 1))
        return wf_fail(ctx, WF_ERR_USAGE, "%s: %s", name,
                       inputs < 1 ? "there are no inputs"
                       : n == 0   ? "there are no rows"
                                  : "the test part's share lies between 0 and 1");
    WF_TRY(check_part(ctx, name, &all, inputs, classes));
    if (classes == 0) classes = 1 + largest_label(&all, 0);
    WF_TRY(check_classes(ctx, name, &all, (size_t)classes));
    bool *in_test = NULL;
    wf_status status = wf_alloc(ctx, n, sizeof *in_test, "split", &in_test);
    if (status == WF_OK)
        status = wf__split(ctx, y, n, (size_t)classes, test_fraction, seed, in_test);
    if (status == WF_OK) status = gather(ctx, &all, in_test, false, inputs, &train);
    if (status == WF_OK) status = gather(ctx, &all, in_test, true, inputs, &test);
    if (status == WF_OK) status = make(ctx, name, inputs, classes, &train, &test, out);
    free(in_test);
    const void *gathered[] = {train.x, train.y, test.x, test.y};
    for (int i = 0; i < 4; i++) free((void *)(uintptr_t)gathered[i]);
    return status;
}

/* --- getters ---------------------------------------------------------------------------------- */

const float *wf_dataset_x(const wf_dataset *data, bool test, size_t *n) {
    if (n != NULL) *n = test ? data->n_test : data->n_train;
    return test ? data->x_test : data->x_train;
}

const int32_t *wf_dataset_y(const wf_dataset *data, bool test, size_t *n) {
    if (n != NULL) *n = test ? data->n_test : data->n_train;
    return test ? data->y_test : data->y_train;
}

static json_t *text_list(char *const *names, int n) {
    json_t *list = json_array();
    for (int i = 0; names != NULL && i < n; i++)
        if (json_array_append_new(list, json_string(names[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

wf_status wf_dataset_json(wf_ctx *ctx, const wf_dataset *data, char **out) {
    json_t *preparation =
        data->preparation == NULL ? json_null() : json_loads(data->preparation, 0, NULL);
    json_t *image = data->height == 0
                        ? json_null()
                        : json_pack("[i,i,i]", data->channels, data->height, data->width);
    return wf__json_answer(
        ctx,
        json_pack("{s:s, s:i, s:i, s:I, s:I, s:o, s:o, s:s, s:s, s:o, s:o}", "name", data->name,
                  "inputs", data->inputs, "classes", data->classes, "n_train",
                  (json_int_t)data->n_train, "n_test", (json_int_t)data->n_test, "class_names",
                  text_list(data->class_names, data->classes), "input_names",
                  text_list(data->input_names, data->inputs), "fingerprint", data->fingerprint,
                  "note", data->note, "preparation", preparation, "image", image),
        out);
}
