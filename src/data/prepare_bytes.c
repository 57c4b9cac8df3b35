/* prepare_bytes: the preparation of tables whose inputs are all bytes (images), by all threads. The
 * same numbers as prepare.c, which goes column by column. Here a data set of 60,000 images is read
 * in rows, because reading one of its columns touches as much memory as reading all of it. */
#include "data/prepare.h"

#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

enum { columns_at_once = 16, rows_at_once = 256 };

typedef struct byte_work {
    wf_preparation *fitted;            /* fitting */
    const wf_preparation *preparation; /* applying */
    const uint8_t *const *bytes;       /* [columns] first value of each */
    size_t stride, n_rows;
    const uint32_t *rows;
    float *x;
} byte_work;

/* Where each prepared column's bytes begin; *out NULL where they are not all bytes of one stride.
 * To be freed. */
static wf_status find_bytes(wf_ctx *ctx, const wf_preparation *preparation, const wf_table *table,
                            const uint8_t ***out, size_t *stride) {
    const uint8_t **bytes;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, preparation->columns, sizeof *bytes, "columns", &bytes));
    size_t source = table->columns - 1;
    for (size_t c = 0; c < preparation->columns; c++) {
        const char *name = preparation->column[c].name;
        source = wf__table_find(table, name, strlen(name), source + 1);
        const wf_column *column = source < table->columns ? &table->column[source] : NULL;
        if (column == NULL || preparation->column[c].categorical || column->bytes == NULL ||
            (c > 0 && column->stride != *stride)) {
            free(bytes);
            return WF_OK;
        }
        bytes[c] = column->bytes;
        *stride = column->stride;
    }
    *out = bytes;
    return WF_OK;
}

/* The mean of the two middle values, or the middle one. */
static double median_of_counts(const size_t count[256], size_t n) {
    size_t below = 0;
    int lower = -1;
    for (int value = 0;; value++) {
        below += count[value];
        if (lower < 0 && below > (n - 1) / 2) lower = value;
        if (below > n / 2) return lower + (value - lower) / 2.0;
    }
}

/* Sum and sum of squares, which the caller pools over a channel: whole numbers, so exact. */
static void column_sums(const size_t count[256], wf_prepared_column *column) {
    column->mean = column->std = 0;
    for (int value = 0; value < 256; value++) {
        column->mean += (double)count[value] * value;
        column->std += (double)count[value] * value * value;
    }
}

static void fit_some(void *work_, size_t chunk, int worker) {
    (void)worker;
    const byte_work *work = work_;
    size_t first = chunk * columns_at_once, n = work->fitted->columns - first;
    if (n > columns_at_once) n = columns_at_once;
    size_t count[columns_at_once][256] = {0};
    for (size_t i = 0; i < work->n_rows; i++) {
        size_t at = work->rows[i] * work->stride;
        for (size_t c = 0; c < n; c++) count[c][work->bytes[first + c][at]]++;
    }
    for (size_t c = 0; c < n; c++) {
        wf_prepared_column *column = &work->fitted->column[first + c];
        column->impute = median_of_counts(count[c], work->n_rows);
        column->mean = 0;
        column->std = work->fitted->scale == WF_SCALE_UNIT ? 255 : 1;
        if (work->fitted->scale == WF_SCALE_CHANNEL) column_sums(count[c], column);
    }
}

wf_status wf__prepare_fit_bytes(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table,
                                const uint32_t *rows, size_t n_rows, bool *done) {
    *done = false;
    if (preparation->scale == WF_SCALE_STANDARD || preparation->scale == WF_SCALE_MINMAX ||
        n_rows == 0)
        return WF_OK;
    byte_work work = {.fitted = preparation, .rows = rows, .n_rows = n_rows};
    const uint8_t **bytes;
    WF_TRY(find_bytes(ctx, preparation, table, &bytes, &work.stride));
    if (bytes == NULL) return WF_OK;
    work.bytes = bytes;
    size_t chunks = (preparation->columns + columns_at_once - 1) / columns_at_once;
    *done = wf_parallel_stoppable(ctx, chunks, fit_some, &work);
    free(bytes);
    return *done ? WF_OK : wf__data_look(ctx, 0, table->label);
}

static void apply_some(void *work_, size_t chunk, int worker) {
    (void)worker;
    const byte_work *work = work_;
    const wf_preparation *preparation = work->preparation;
    size_t first = chunk * rows_at_once, end = first + rows_at_once;
    if (end > work->n_rows) end = work->n_rows;
    for (size_t i = first; i < end; i++) {
        float *x = work->x + i * preparation->inputs;
        size_t at = work->rows[i] * work->stride;
        for (size_t c = 0; c < preparation->columns; c++) {
            const wf_prepared_column *column = &preparation->column[c];
            x[c] = (float)(((double)work->bytes[c][at] - column->mean) / column->std);
        }
    }
}

wf_status wf__prepare_rows_bytes(wf_ctx *ctx, const wf_preparation *preparation,
                                 const wf_table *table, const uint32_t *rows, size_t n_rows,
                                 float *x, bool *done) {
    *done = false;
    byte_work work = {.preparation = preparation, .rows = rows, .n_rows = n_rows, .x = x};
    const uint8_t **bytes;
    WF_TRY(find_bytes(ctx, preparation, table, &bytes, &work.stride));
    if (bytes == NULL) return WF_OK;
    for (size_t c = 0; c < preparation->columns; c++)
        if (!(preparation->column[c].std > 1e-30)) { /* may overflow, which prepare.c reports */
            free(bytes);
            return WF_OK;
        }
    work.bytes = bytes;
    size_t chunks = (n_rows + rows_at_once - 1) / rows_at_once;
    *done = wf_parallel_stoppable(ctx, chunks, apply_some, &work);
    free(bytes);
    return *done ? WF_OK : wf__data_look(ctx, 0, table->label);
}
