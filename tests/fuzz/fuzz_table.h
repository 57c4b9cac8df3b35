/* What the fuzz targets of the readers share: a table that was read goes through split, fit,
 * one-hot and back through its JSON. */
#ifndef WF_FUZZ_TABLE_H
#define WF_FUZZ_TABLE_H

#include "driver.h"

#include "data/prepare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *fuzz_copy(const uint8_t *bytes, size_t size) {
    char *copy = malloc(size + 1);
    if (copy == NULL) abort();
    if (size > 0) memcpy(copy, bytes, size);
    copy[size] = 0;
    return copy;
}

static void fuzz_use_table(wf_ctx *ctx, wf_table *table) {
    wf_data_desc desc = wf_data_desc_default();
    wf_dataset *data;
    float *x;
    int32_t *y;
    size_t inputs;
    desc.name = "fuzz";
    desc.test_fraction = 0.5;
    if (wf__dataset_from_tables(ctx, &desc, table, NULL, &data) != WF_OK) return;
    for (size_t i = 0; i < data->n_train * (size_t)data->inputs; i++)
        if (!isfinite(data->x_train[i])) abort();
    for (size_t i = 0; i < data->n_test; i++)
        if (data->y_test[i] < 0 || data->y_test[i] >= data->classes) abort();
    if (wf__prepare_apply(ctx, data->preparation, table, &x, &y, &inputs) != WF_OK) abort();
    if (inputs != (size_t)data->inputs) abort();
    free(x);
    free(y);
    wf_dataset_free(data);
}

#endif
