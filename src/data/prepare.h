/* prepare: from a table to inputs and labels: split, imputation, scaling, one-hot (docs/data.md).
 *
 * A preparation is fitted once, on training rows, and then applied to any table with the same
 * column names:
 *   numeric column      one input, ((missing ? impute : x) - mean) / std (scale = channel: mean
 *                       and std of all pixels of a channel)
 *   categorical column  n_levels inputs, 1 at the level, 0 elsewhere; missing takes the level
 *                       impute_level
 * Inputs stand in the order of the table's columns. It is kept as JSON; reading that back gives the
 * same numbers. */
#pragma once

#include "data/data_table.h"

typedef struct wf_prepared_column {
    const char *name;
    bool categorical;
    double impute, mean, std;
    const char **levels;
    size_t n_levels, impute_level;
} wf_prepared_column;

typedef struct wf_preparation {
    wf_scale scale;
    wf_prepared_column *column;
    size_t columns, inputs;
    int image[3]; /* channels, height, width of the inputs; zeros: no images */
    const char *target;
    const char **classes;
    size_t n_classes;
    wf_arena arena;
} wf_preparation;

void wf__preparation_free(wf_preparation *preparation); /* a zeroed one is fine */

/* Which columns are inputs and of which kind, by desc's target, categorical and drop; levels and
 * classes are those that occur in `table` (and, for levels, in `test`, which may be NULL). Sets
 * table->target. On failure *out is to be freed too. */
wf_status wf__prepare_roles(wf_ctx *ctx, const wf_data_desc *desc, wf_table *table,
                            const wf_table *test, wf_preparation *out);
/* Imputed values, means and deviations from the given rows. */
wf_status wf__prepare_fit(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table,
                          const uint32_t *rows, size_t n_rows);
/* x (n_rows, inputs), y (n_rows), for the given rows. */
wf_status wf__prepare_rows(wf_ctx *ctx, const wf_preparation *preparation, const wf_table *table,
                           const uint32_t *rows, size_t n_rows, float *x, int32_t *y);

/* The same for tables of bytes, by all threads (prepare_bytes.c); *done false: they do not
 * apply. */
wf_status wf__prepare_fit_bytes(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table,
                                const uint32_t *rows, size_t n_rows, bool *done);
wf_status wf__prepare_rows_bytes(wf_ctx *ctx, const wf_preparation *preparation,
                                 const wf_table *table, const uint32_t *rows, size_t n_rows,
                                 float *x, bool *done);

/* JSON, to be freed; NULL when out of memory (names and levels must be UTF-8, which the readers see
 * to). */
char *wf__preparation_write(const wf_preparation *preparation);
wf_status wf__preparation_read(wf_ctx *ctx, const char *json, wf_preparation *out);

/* A frozen preparation on all rows of another table. *x (table->rows, *inputs) and *y are to be
 * freed. */
wf_status wf__prepare_apply(wf_ctx *ctx, const char *json, const wf_table *table, float **x,
                            int32_t **y, size_t *inputs);

/* The data set of a table that is split, or of two tables. Both are borrowed; desc's path is used
 * for the name alone. */
wf_status wf__dataset_from_tables(wf_ctx *ctx, const wf_data_desc *desc, wf_table *table,
                                  const wf_table *test, wf_dataset **out);

/* For a message about outputs that are not as many as classes: what a network of one output needs,
 * "" for others. */
const char *wf__one_output(int outputs);

/* Over both parts as they stand. */
wf_status wf__dataset_fingerprint(wf_ctx *ctx, wf_dataset *data);

/* A table sampled from a Bayesian network of the table from->bng, with from's columns, rows and
 * bng_seed (bng.c). On failure *out is to be freed too. */
wf_status wf__table_bng(wf_ctx *ctx, const wf_data_desc *from, wf_table *out);

/* Stratified split: in_test[r] for each row. Class c (n_c rows) gives its share n_c * fraction to
 * the test part, rounded by largest remainder (ties: first class) so that round(rows * fraction)
 * rows are drawn in all, but never its last row. Which ones: the first of a shuffle of the class's
 * rows from the stream (seed, c, WF_RNG_SPLIT, 0). */
wf_status wf__split(wf_ctx *ctx, const int32_t *labels, size_t rows, size_t classes,
                    double fraction, uint64_t seed, bool *in_test);
