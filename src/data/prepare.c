/* prepare: choosing, fitting and applying (see prepare.h). */
#include "data/prepare.h"

#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void wf__preparation_free(wf_preparation *preparation) {
    wf_arena_free(&preparation->arena);
    *preparation = (wf_preparation){0};
}

/* --- roles ------------------------------------------------------------------------------------ */

typedef enum role { ROLE_INPUT, ROLE_CATEGORY, ROLE_DROPPED } role;

static wf_status no_such_column(wf_ctx *ctx, const wf_table *table, const char *key,
                                const char *name, size_t length) {
    char names[600];
    wf__table_names(table, names, sizeof names);
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: %s names '%.*s', but there is no such column; the columns are: %s",
                   table->label, key, (int)(length > 80 ? 80 : length), name, names);
}

typedef struct list_item {
    const char *name;
    size_t length;
} list_item;

/* The next item of a comma-separated list, from *at on; false: there is none. Spaces round a name
 * are not part of it; a name with a comma is "quoted". */
static bool next_item(const char **at, list_item *out) {
    *at += strspn(*at, " \t,");
    bool quoted = **at == '"';
    *at += quoted;
    *out = (list_item){*at, strcspn(*at, quoted ? "\"" : ",")};
    *at += out->length;
    if (quoted && **at == '"') (*at)++;
    while (!quoted && out->length > 0 && strchr(" \t", out->name[out->length - 1]) != NULL)
        out->length--;
    return quoted || out->length > 0;
}

/* Marks each column of a list. */
static wf_status mark_listed(wf_ctx *ctx, const wf_table *table, const char *key, const char *list,
                             role mark, role *roles) {
    const char *at = list == NULL ? "" : list;
    for (list_item item; next_item(&at, &item);) {
        size_t column = wf__table_find(table, item.name, item.length, 0);
        if (column == table->columns)
            return no_such_column(ctx, table, key, item.name, item.length);
        if (roles[column] == ROLE_DROPPED && mark == ROLE_CATEGORY)
            return wf_fail(ctx, WF_ERR_INPUT,
                           "%s: column '%s' is named under categorical and under drop; take it out "
                           "of one of them",
                           table->label, table->column[column].name);
        roles[column] = mark;
    }
    return WF_OK;
}

static wf_status find_target(wf_ctx *ctx, const wf_table *table, const char *name, size_t *out) {
    *out = table->target;
    if (name == NULL || name[0] == 0) return WF_OK;
    *out = wf__table_find(table, name, strlen(name), 0);
    if (*out == table->columns) return no_such_column(ctx, table, "target", name, strlen(name));
    return WF_OK;
}

static wf_status add_column(wf_ctx *ctx, const wf_table *table, size_t column, role as,
                            const wf_table *test, wf_preparation *out) {
    const wf_column *from = &table->column[column];
    if (from->declared == WF_DECLARED_OTHER)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is declared as a string, date or relation, which is no "
                       "input; name it under drop",
                       table->label, from->name);
    wf_prepared_column *to = &out->column[out->columns++];
    *to = (wf_prepared_column){.name = from->name, .std = 1};
    to->categorical = as == ROLE_CATEGORY || from->declared == WF_DECLARED_NOMINAL;
    if (!to->categorical) {
        out->inputs++;
        return WF_OK;
    }
    WF_TRY(wf__table_levels(ctx, table, column, test, &out->arena, &to->levels, &to->n_levels));
    if (to->n_levels == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is missing in every row; name it under drop", table->label,
                       from->name);
    /* A column of identifiers, listed by mistake, would give a network a million inputs. */
    if (to->n_levels > 100 && 2 * to->n_levels > table->rows)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the categorical column '%s' has %zu levels in %zu rows; is it an "
                       "identifier? Name it under drop",
                       table->label, from->name, to->n_levels, table->rows);
    out->inputs += to->n_levels;
    return WF_OK;
}

/* Many numbers that are not whole are a quantity, not classes; so are many whole numbers that
 * hardly ever repeat. */
static wf_status refuse_regression(wf_ctx *ctx, const wf_table *table, const char *name,
                                   const wf_preparation *out) {
    enum { most_classes = 20 };
    bool rare = 2 * out->n_classes > table->rows, broken = false;
    double number;
    const char *example = out->classes[0];
    for (size_t k = 0; k < out->n_classes; k++) {
        if (!wf__parse_number(out->classes[k], &number)) return WF_OK;
        if (!broken && number != floor(number)) example = out->classes[k];
        broken = broken || number != floor(number);
    }
    if (out->n_classes <= most_classes || (!broken && !rare)) return WF_OK;
    return wf_fail(
        ctx, WF_ERR_INPUT,
        "%s: the label column '%s' holds numbers, as %.20s, %zu different ones in %zu rows: "
        "that is regression, which is not supported. Name a column of classes under "
        "target (--target), or cut the numbers into classes first",
        table->label, name, example, out->n_classes, table->rows);
}

static wf_status choose_classes(wf_ctx *ctx, const wf_table *table, wf_preparation *out) {
    const wf_column *target = &table->column[table->target];
    out->target = target->name;
    WF_TRY(wf__table_levels(ctx, table, table->target, NULL, &out->arena, &out->classes,
                            &out->n_classes));
    if (out->n_classes == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the label column '%s' is missing in every row",
                       table->label, target->name);
    if (out->n_classes == 1)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the label column '%s' has one class only, '%s'; nothing can be learnt",
                       table->label, target->name, out->classes[0]);
    WF_TRY(refuse_regression(ctx, table, target->name, out));
    if (2 * out->n_classes > table->rows && out->n_classes > 20)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the label column '%s' has %zu classes in %zu rows; name the right one "
                       "under target",
                       table->label, target->name, out->n_classes, table->rows);
    return WF_OK;
}

static wf_status no_such_class(wf_ctx *ctx, const wf_table *table, const wf_preparation *out,
                               const list_item *item, bool again) {
    char names[600];
    wf_text list = wf_text_start(names, sizeof names);
    for (size_t k = 0; k < out->n_classes; k++)
        wf_text_add(&list, "%s%s", k > 0 ? ", " : "", out->classes[k]);
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: classes names '%.*s'%s; the classes are: %s%s. List them in the order of "
                   "the networks' outputs (--classes)",
                   table->label, (int)(item->length > 80 ? 80 : item->length), item->name,
                   again ? " twice" : ", which does not occur", names, list.cut ? " ..." : "");
}

/* desc->classes, "no,yes": another order of the same classes. */
static wf_status order_classes(wf_ctx *ctx, const wf_table *table, const char *list,
                               wf_preparation *out) {
    if (list == NULL || list[0] == 0) return WF_OK;
    const char **ordered = wf_arena_alloc(&out->arena, out->n_classes * sizeof *ordered);
    if (ordered == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", table->label);
    size_t n = 0;
    const char *at = list;
    for (list_item item; next_item(&at, &item); n++) {
        size_t k = 0;
        while (k < out->n_classes && (strncmp(out->classes[k], item.name, item.length) != 0 ||
                                      out->classes[k][item.length] != 0))
            k++;
        bool again = false;
        for (size_t i = 0; k < out->n_classes && i < n && !again; i++)
            again = ordered[i] == out->classes[k];
        if (k == out->n_classes || again) return no_such_class(ctx, table, out, &item, again);
        ordered[n] = out->classes[k];
    }
    if (n != out->n_classes)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: classes names %zu of the %zu classes of '%s'; name all of them",
                       table->label, n, out->n_classes, out->target);
    out->classes = ordered;
    return WF_OK;
}

wf_status wf__prepare_roles(wf_ctx *ctx, const wf_data_desc *desc, wf_table *table,
                            const wf_table *test, wf_preparation *out) {
    out->scale = desc->scale;
    if (table->rows == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: no rows after the header", table->label);
    WF_TRY(find_target(ctx, table, desc->target, &table->target));
    out->column = wf_arena_zalloc(&out->arena, table->columns * sizeof *out->column);
    role *roles = wf_arena_zalloc(&out->arena, table->columns * sizeof *roles);
    if (out->column == NULL || roles == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", table->label);
    WF_TRY(mark_listed(ctx, table, "drop", desc->drop, ROLE_DROPPED, roles));
    WF_TRY(mark_listed(ctx, table, "categorical", desc->categorical, ROLE_CATEGORY, roles));
    if (roles[table->target] == ROLE_DROPPED)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the label column '%s' is named under drop; name another one under "
                       "target",
                       table->label, table->column[table->target].name);
    WF_TRY(choose_classes(ctx, table, out));
    WF_TRY(order_classes(ctx, table, desc->classes, out));
    for (size_t c = 0; c < table->columns; c++)
        if (c != table->target && roles[c] != ROLE_DROPPED)
            WF_TRY(add_column(ctx, table, c, roles[c], test, out));
    if (out->inputs == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: no input column beside the label '%s'; is the separator right, or is "
                       "too much dropped?",
                       table->label, out->target);
    if (out->inputs > INT32_MAX)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %zu inputs are too many", table->label, out->inputs);
    return WF_OK;
}

/* --- fitting ---------------------------------------------------------------------------------- */

/* The k-th smallest of n values (Hoare's selection); reorders them. */
static double select_kth(double *values, size_t n, size_t k) {
    size_t low = 0, high = n - 1;
    while (low < high) {
        double pivot = values[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;;) {
            while (values[i] < pivot) i++;
            while (pivot < values[j]) j--;
            if (i >= j) break;
            double kept = values[i];
            values[i++] = values[j];
            values[j--] = kept;
        }
        if (k <= j) high = j;
        else low = j + 1;
    }
    return values[k];
}

static double median(double *values, size_t n) {
    double upper = select_kth(values, n, n / 2);
    if (n % 2 == 1) return upper;
    double lower = values[0]; /* selection left the smaller half in front */
    for (size_t i = 1; i < n / 2; i++)
        if (values[i] > lower) lower = values[i];
    return lower + (upper - lower) / 2;
}

/* Mean and population deviation of the imputed values of the rows; a constant column keeps
 * deviation 1. */
static bool fit_scale(wf_prepared_column *column, const double *all, const uint32_t *rows,
                      size_t n_rows, bool to_range) {
    double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < n_rows; i++) {
        double x = isnan(all[rows[i]]) ? column->impute : all[rows[i]];
        sum += x;
        low = fmin(low, x);
        high = fmax(high, x);
    }
    bool constant = low == high;
    column->mean = constant ? low : sum / (double)n_rows;
    column->std = 1;
    if (constant) return true;
    if (to_range) { /* from the smallest, which becomes 0, to the largest, which becomes 1 */
        column->mean = low;
        column->std = isfinite(high - low) ? high - low : high;
        return false;
    }
    for (size_t i = 0; i < n_rows; i++) {
        double x = isnan(all[rows[i]]) ? column->impute : all[rows[i]];
        squares += (x - column->mean) * (x - column->mean);
    }
    column->std = sqrt(squares / (double)n_rows);
    /* The square may underflow, or overflow: then the range stands in for the deviation. */
    if (!(column->std > 0) || !isfinite(column->std)) column->std = high / 2 - low / 2;
    return false;
}

/* Sum and sum of squares, kept in place of mean and deviation until pool_channels. */
static void fit_sums(wf_prepared_column *column, const double *all, const uint32_t *rows,
                     size_t n_rows) {
    column->mean = column->std = 0;
    for (size_t i = 0; i < n_rows; i++) {
        double x = isnan(all[rows[i]]) ? column->impute : all[rows[i]];
        column->mean += x;
        column->std += x * x;
    }
}

/* From sums of columns to one mean and one population deviation for each channel. */
static void pool_channels(wf_preparation *preparation, size_t n_rows) {
    size_t places = (size_t)(preparation->image[1] * preparation->image[2]);
    for (int k = 0; k < preparation->image[0]; k++) {
        wf_prepared_column *column = preparation->column + (size_t)k * places;
        double sum = 0, squares = 0, n = (double)places * (double)n_rows;
        for (size_t c = 0; c < places; c++) {
            sum += column[c].mean;
            squares += column[c].std;
        }
        double mean = sum / n, variance = squares / n - mean * mean;
        for (size_t c = 0; c < places; c++) {
            column[c].mean = mean;
            column[c].std = variance > 0 ? sqrt(variance) : 1;
        }
    }
}

typedef struct fit_scratch {
    double *all, *present; /* [table rows] */
    int32_t *codes;
} fit_scratch;

static wf_status fit_numeric(wf_ctx *ctx, wf_preparation *preparation, wf_prepared_column *column,
                             const wf_table *table, size_t source, const uint32_t *rows,
                             size_t n_rows, fit_scratch *scratch, bool *constant) {
    WF_TRY(wf__table_numbers(ctx, table, source, scratch->all));
    size_t present = 0, anywhere = 0;
    for (size_t r = 0; r < table->rows; r++) anywhere += !isnan(scratch->all[r]);
    for (size_t i = 0; i < n_rows; i++)
        if (!isnan(scratch->all[rows[i]])) scratch->present[present++] = scratch->all[rows[i]];
    if (anywhere == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is missing in every row; name it under drop", table->label,
                       column->name);
    if (present == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is missing in every training row, its %zu values all fell "
                       "to the test part; name it under drop, or take another seed",
                       table->label, column->name, anywhere);
    column->impute = median(scratch->present, present);
    column->mean = 0;
    column->std = preparation->scale == WF_SCALE_UNIT ? 255 : 1;
    if (preparation->scale == WF_SCALE_STANDARD || preparation->scale == WF_SCALE_MINMAX)
        *constant =
            fit_scale(column, scratch->all, rows, n_rows, preparation->scale == WF_SCALE_MINMAX);
    if (preparation->scale == WF_SCALE_CHANNEL) fit_sums(column, scratch->all, rows, n_rows);
    return WF_OK;
}

static wf_status fit_categorical(wf_ctx *ctx, wf_prepared_column *column, const wf_table *table,
                                 size_t source, const uint32_t *rows, size_t n_rows,
                                 fit_scratch *scratch) {
    WF_TRY(wf__table_codes(ctx, table, source, column->levels, column->n_levels, scratch->codes));
    size_t *count;
    WF_TRY(wf_alloc(ctx, column->n_levels, sizeof *count, "levels", &count));
    for (size_t i = 0; i < n_rows; i++)
        if (scratch->codes[rows[i]] >= 0) count[scratch->codes[rows[i]]]++;
    column->impute_level = 0;
    for (size_t k = 1; k < column->n_levels; k++)
        if (count[k] > count[column->impute_level]) column->impute_level = k;
    bool none = count[column->impute_level] == 0;
    free(count);
    if (none)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is missing in every training row; name it under drop, or "
                       "take another seed",
                       table->label, column->name);
    return WF_OK;
}

/* Columns come in the same order as a rule: the search goes on after *at, where the last one was
 * found. */
static wf_status source_column(wf_ctx *ctx, const wf_table *table, const char *name, size_t *at) {
    *at = wf__table_find(table, name, strlen(name), *at + 1);
    if (*at == table->columns)
        return no_such_column(ctx, table, "the preparation", name, strlen(name));
    return WF_OK;
}

static wf_status fit_columns(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table,
                             const uint32_t *rows, size_t n_rows, fit_scratch *scratch) {
    size_t constants = 0, source = table->columns - 1;
    const char *first = NULL;
    for (size_t c = 0; c < preparation->columns; c++) {
        wf_prepared_column *column = &preparation->column[c];
        WF_TRY(source_column(ctx, table, column->name, &source));
        bool constant = column->categorical && column->n_levels == 1;
        if (column->categorical)
            WF_TRY(fit_categorical(ctx, column, table, source, rows, n_rows, scratch));
        else
            WF_TRY(fit_numeric(ctx, preparation, column, table, source, rows, n_rows, scratch,
                               &constant));
        /* Pixels at the border of images are often constant, so no warning is given. */
        if (constant && table->column[source].bytes == NULL && constants++ == 0)
            first = column->name;
    }
    if (constants > 0)
        wf_warn(ctx,
                "%s: %zu of %zu columns are constant in the training part (the first: '%s') and "
                "tell nothing; networks that are yet to be trained can do without (drop)",
                table->label, constants, preparation->columns, first);
    return WF_OK;
}

/* A table counts as images only if all their pixels are inputs. */
static wf_status check_images(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table) {
    const int *image = table->image;
    if ((size_t)(image[0] * image[1] * image[2]) == preparation->inputs)
        memcpy(preparation->image, image, sizeof preparation->image);
    if (preparation->scale != WF_SCALE_CHANNEL || preparation->image[0] > 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE,
                   "%s: scale = channel needs images with all their pixels (digits, IDX, CIFAR); "
                   "use standard for other inputs",
                   table->label);
}

wf_status wf__prepare_fit(wf_ctx *ctx, wf_preparation *preparation, const wf_table *table,
                          const uint32_t *rows, size_t n_rows) {
    fit_scratch scratch = {0};
    wf_status status;
    bool done;
    WF_TRY(check_images(ctx, preparation, table));
    WF_TRY(wf__prepare_fit_bytes(ctx, preparation, table, rows, n_rows, &done));
    if (done) {
        if (preparation->scale == WF_SCALE_CHANNEL) pool_channels(preparation, n_rows);
        return WF_OK;
    }
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof(double), "columns", &scratch.all), done);
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof(double), "columns", &scratch.present), done);
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof(int32_t), "columns", &scratch.codes), done);
    status = fit_columns(ctx, preparation, table, rows, n_rows, &scratch);
    if (status == WF_OK && preparation->scale == WF_SCALE_CHANNEL)
        pool_channels(preparation, n_rows);
done:
    free(scratch.codes);
    free(scratch.present);
    free(scratch.all);
    return status;
}

/* --- applying --------------------------------------------------------------------------------- */

static wf_status apply_numeric(wf_ctx *ctx, const wf_preparation *preparation,
                               const wf_prepared_column *column, const wf_table *table,
                               size_t source, const uint32_t *rows, size_t n_rows, double *all,
                               float *x) {
    WF_TRY(wf__table_numbers(ctx, table, source, all));
    for (size_t i = 0; i < n_rows; i++) {
        double value = isnan(all[rows[i]]) ? column->impute : all[rows[i]];
        float scaled = (float)((value - column->mean) / column->std);
        x[i * preparation->inputs] = scaled;
        if (isfinite(scaled)) continue;
        char place[512];
        wf__table_place(table, rows[i], source, place, sizeof place);
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %g is too large for a 32-bit number", place, value);
    }
    return WF_OK;
}

static wf_status apply_categorical(wf_ctx *ctx, const wf_preparation *preparation,
                                   const wf_prepared_column *column, const wf_table *table,
                                   size_t source, const uint32_t *rows, size_t n_rows,
                                   int32_t *codes, float *x) {
    WF_TRY(wf__table_codes(ctx, table, source, column->levels, column->n_levels, codes));
    for (size_t i = 0; i < n_rows; i++) {
        float *one_hot = x + i * preparation->inputs;
        size_t level = codes[rows[i]] < 0 ? column->impute_level : (size_t)codes[rows[i]];
        for (size_t k = 0; k < column->n_levels; k++) one_hot[k] = k == level ? 1.0f : 0.0f;
    }
    return WF_OK;
}

static wf_status apply_labels(wf_ctx *ctx, const wf_preparation *preparation, const wf_table *table,
                              const uint32_t *rows, size_t n_rows, int32_t *codes, int32_t *y) {
    size_t source = table->columns - 1;
    WF_TRY(source_column(ctx, table, preparation->target, &source));
    WF_TRY(
        wf__table_codes(ctx, table, source, preparation->classes, preparation->n_classes, codes));
    for (size_t i = 0; i < n_rows; i++) {
        y[i] = codes[rows[i]];
        if (y[i] >= 0) continue;
        char place[512];
        wf__table_place(table, rows[i], source, place, sizeof place);
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the label is missing; take the row out", place);
    }
    return WF_OK;
}

wf_status wf__prepare_rows(wf_ctx *ctx, const wf_preparation *preparation, const wf_table *table,
                           const uint32_t *rows, size_t n_rows, float *x, int32_t *y) {
    double *all = NULL;
    int32_t *codes = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof *all, "columns", &all), done);
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof *codes, "columns", &codes), done);
    bool bytes_done;
    WF_TRY_GOTO(wf__prepare_rows_bytes(ctx, preparation, table, rows, n_rows, x, &bytes_done),
                done);
    size_t input = 0, source = table->columns - 1;
    for (size_t c = 0; c < preparation->columns && !bytes_done; c++) {
        const wf_prepared_column *column = &preparation->column[c];
        WF_TRY_GOTO(source_column(ctx, table, column->name, &source), done);
        if (column->categorical)
            WF_TRY_GOTO(apply_categorical(ctx, preparation, column, table, source, rows, n_rows,
                                          codes, x + input),
                        done);
        else
            WF_TRY_GOTO(apply_numeric(ctx, preparation, column, table, source, rows, n_rows, all,
                                      x + input),
                        done);
        input += column->categorical ? column->n_levels : 1;
    }
    status = apply_labels(ctx, preparation, table, rows, n_rows, codes, y);
done:
    free(codes);
    free(all);
    return status;
}

wf_status wf__prepare_apply(wf_ctx *ctx, const char *json, const wf_table *table, float **x,
                            int32_t **y, size_t *inputs) {
    wf_preparation preparation = {0};
    uint32_t *rows = NULL;
    wf_status status;
    *x = NULL;
    *y = NULL;
    WF_TRY_GOTO(wf__preparation_read(ctx, json, &preparation), failed);
    *inputs = preparation.inputs;
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof *rows, "rows", &rows), failed);
    for (size_t r = 0; r < table->rows; r++) rows[r] = (uint32_t)r;
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof(float) * preparation.inputs, "inputs", x),
                failed);
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof(int32_t), "labels", y), failed);
    WF_TRY_GOTO(wf__prepare_rows(ctx, &preparation, table, rows, table->rows, *x, *y), failed);
    free(rows);
    wf__preparation_free(&preparation);
    return WF_OK;
failed:
    free(*x);
    free(*y);
    *x = NULL;
    *y = NULL;
    free(rows);
    wf__preparation_free(&preparation);
    return status;
}
