/* dataset: wf_dataset_open: find, read or generate, join, split, fit, apply, fingerprint. */
#include "base/io.h"
#include "data/data_joint.h"
#include "data/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_OF wf_data
#define SETTINGS_SECTION "data"
#define SETTINGS_META "data."
#define SETTINGS_DEF "weft/data.def"
#include "base/settings_table.h"

void wf_dataset_free(wf_dataset *data) {
    if (data == NULL) return;
    for (int k = 0; data->class_names != NULL && k < data->classes; k++) free(data->class_names[k]);
    for (int i = 0; data->input_names != NULL && i < data->inputs; i++) free(data->input_names[i]);
    free(data->class_names);
    free(data->input_names);
    free(data->x_train);
    free(data->x_test);
    free(data->y_train);
    free(data->y_test);
    free(data->preparation);
    free(data);
}

/* What is alive while a data set is being made of tables. */
typedef struct making {
    wf_table *table;
    const wf_table *test; /* NULL: split */
    wf_preparation preparation;
    int32_t *labels;
    bool *in_test;
    uint32_t *train_rows, *test_rows;
    uint32_t *fit_rows; /* training rows of all files that are prepared together */
    size_t n_fit;
} making;

static void making_free(making *from) {
    wf__preparation_free(&from->preparation);
    free(from->labels);
    free(from->in_test);
    free(from->train_rows);
    free(from->test_rows);
    free(from->fit_rows);
}

static wf_status check_bng(wf_ctx *ctx, const wf_data_desc *desc) {
    const char *const others[][2] = {{"path", desc->path},
                                     {"test_path", desc->test_path},
                                     {"labels", desc->labels},
                                     {"joint", desc->joint},
                                     {"merge", desc->merge}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i][1] != NULL && others[i][1][0] != 0)
            return wf_fail(ctx, WF_ERR_USAGE, "data: %s and bng cannot go together", others[i][0]);
    return WF_OK;
}

static wf_status check_desc(wf_ctx *ctx, const wf_data_desc *desc) {
    WF_TRY(wf_settings_check(ctx, wf_data_rows, desc));
    if (desc->bng != NULL && desc->bng[0] != 0) return check_bng(ctx, desc);
    if (desc->path == NULL && desc->name == NULL)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "data: neither a path nor the name of a built-in set (spirals, moons, "
                       "digits) is given, as in --set data.path=mine.csv");
    if (desc->path == NULL && desc->test_path != NULL)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "data: a test path is given, but no path; a built-in set splits itself");
    bool joint = desc->joint != NULL && desc->joint[0] != 0;
    bool merge = desc->merge != NULL && desc->merge[0] != 0;
    if (joint && desc->test_path != NULL)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "data: joint and test_path cannot go together; tables prepared together "
                       "are split");
    if (desc->path == NULL && (joint || merge))
        return wf_fail(ctx, WF_ERR_USAGE, "data: %s goes with a path, not with a built-in set",
                       joint ? "joint" : "merge");
    return WF_OK;
}

static wf_status all_rows(wf_ctx *ctx, size_t count, uint32_t **rows) {
    WF_TRY(wf_alloc(ctx, count, sizeof **rows, "rows", rows));
    for (size_t r = 0; r < count; r++) (*rows)[r] = (uint32_t)r;
    return WF_OK;
}

/* Of rows first .. first+rows-1, which are one file's. */
static wf_status check_labels(wf_ctx *ctx, const making *from, const wf_table_part *part) {
    const wf_table *table = from->table;
    const wf_preparation *preparation = &from->preparation;
    size_t *count;
    WF_TRY(wf_alloc(ctx, preparation->n_classes, sizeof *count, "classes", &count));
    wf_status status = WF_OK;
    for (size_t r = part->first; r < part->first + part->rows && status == WF_OK; r++) {
        if (from->labels[r] >= 0) {
            count[from->labels[r]]++;
            continue;
        }
        char place[512];
        wf__table_place(table, r, table->target, place, sizeof place);
        status = wf_fail(ctx, WF_ERR_INPUT, "%s: the label is missing; take the row out", place);
    }
    for (size_t k = 0; k < preparation->n_classes && status == WF_OK; k++)
        if (count[k] < 2)
            status = wf_fail(ctx, WF_ERR_INPUT,
                             "%s: class '%s' of column '%s' has %s, but a split into training and "
                             "test part needs two of each class",
                             part->label, preparation->classes[k], preparation->target,
                             count[k] == 1 ? "one row only" : "no row");
    free(count);
    return status;
}

/* Two files: all rows of the one train, all rows of the other test. */
static wf_status take_both(wf_ctx *ctx, making *from, wf_dataset *data) {
    data->n_train = from->n_fit = from->table->rows;
    data->n_test = from->test->rows;
    WF_TRY(all_rows(ctx, data->n_train, &from->train_rows));
    WF_TRY(all_rows(ctx, data->n_train, &from->fit_rows));
    return all_rows(ctx, data->n_test, &from->test_rows);
}

/* Each file is split on its own; what is fitted is fitted on the training rows of all of them. */
static wf_status split_part(wf_ctx *ctx, const wf_data_desc *desc, making *from,
                            const wf_table_part *part, bool own, wf_dataset *data) {
    WF_TRY(check_labels(ctx, from, part));
    WF_TRY(wf__split(ctx, from->labels + part->first, part->rows, from->preparation.n_classes,
                     desc->test_fraction, desc->seed, from->in_test + part->first));
    for (size_t r = part->first; r < part->first + part->rows; r++) {
        if (!from->in_test[r]) from->fit_rows[from->n_fit++] = (uint32_t)r;
        if (!own) continue;
        if (from->in_test[r]) from->test_rows[data->n_test++] = (uint32_t)r;
        else from->train_rows[data->n_train++] = (uint32_t)r;
    }
    return WF_OK;
}

/* Rows of both parts, each in the order of the table. */
static wf_status split_rows(wf_ctx *ctx, const wf_data_desc *desc, making *from, wf_dataset *data) {
    const wf_table *table = from->table;
    const wf_preparation *preparation = &from->preparation;
    if (from->test != NULL) return take_both(ctx, from, data);
    WF_TRY(wf_alloc(ctx, table->rows, sizeof *from->labels, "labels", &from->labels));
    WF_TRY(wf_alloc(ctx, table->rows, sizeof *from->in_test, "split", &from->in_test));
    WF_TRY(wf_alloc(ctx, table->rows, sizeof(uint32_t), "rows", &from->train_rows));
    WF_TRY(wf_alloc(ctx, table->rows, sizeof(uint32_t), "rows", &from->test_rows));
    WF_TRY(wf_alloc(ctx, table->rows, sizeof(uint32_t), "rows", &from->fit_rows));
    WF_TRY(wf__table_codes(ctx, table, table->target, preparation->classes, preparation->n_classes,
                           from->labels));
    wf_table_part whole = {0, table->rows, table->label};
    if (table->n_parts == 0) WF_TRY(split_part(ctx, desc, from, &whole, true, data));
    for (size_t p = 0; p < table->n_parts; p++)
        WF_TRY(split_part(ctx, desc, from, &table->part[p], p == table->own, data));
    if (data->n_test == 0)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: a test fraction of %g leaves no test row of %zu rows; raise it",
                       table->label, desc->test_fraction, data->n_train);
    return WF_OK;
}

static wf_status make_part(wf_ctx *ctx, const making *from, const wf_table *table,
                           const uint32_t *rows, size_t count, float **x, int32_t **y) {
    WF_TRY(wf_alloc(ctx, count, from->preparation.inputs * sizeof **x, "inputs", x));
    WF_TRY(wf_alloc(ctx, count, sizeof **y, "labels", y));
    return wf__prepare_rows(ctx, &from->preparation, table, rows, count, *x, *y);
}

/* "column", or "column=level". */
static wf_status copy_name(wf_ctx *ctx, const char *column, const char *level, char **out) {
    size_t size = strlen(column) + 1 + (level != NULL ? strlen(level) + 1 : 0);
    WF_TRY(wf_alloc(ctx, size, 1, "names", out));
    snprintf(*out, size, "%s%s%s", column, level != NULL ? "=" : "", level != NULL ? level : "");
    return WF_OK;
}

static wf_status copy_names(wf_ctx *ctx, const wf_preparation *preparation, wf_dataset *data) {
    WF_TRY(wf_alloc(ctx, preparation->n_classes, sizeof(char *), "names", &data->class_names));
    WF_TRY(wf_alloc(ctx, preparation->inputs, sizeof(char *), "names", &data->input_names));
    for (size_t k = 0; k < preparation->n_classes; k++)
        WF_TRY(copy_name(ctx, preparation->classes[k], NULL, &data->class_names[k]));
    size_t input = 0;
    for (size_t c = 0; c < preparation->columns; c++) {
        const wf_prepared_column *column = &preparation->column[c];
        for (size_t k = 0; k < column->n_levels; k++)
            WF_TRY(copy_name(ctx, column->name, column->levels[k], &data->input_names[input++]));
        if (!column->categorical)
            WF_TRY(copy_name(ctx, column->name, NULL, &data->input_names[input++]));
    }
    return WF_OK;
}

/* "3x32x32 images", "64 inputs" */
static const char *inputs_text(int channels, int height, int width, char out[64]) {
    if (height > 0) snprintf(out, 64, "images of %dx%dx%d", channels, height, width);
    else snprintf(out, 64, "%d inputs", channels);
    return out;
}

const char *wf__one_output(int outputs) {
    return outputs != 1
               ? ""
               : "; one output for two classes is not judged: give the last layer two, a row "
                 "of zeros before its own";
}

wf_status wf_dataset_fits(wf_ctx *ctx, const wf_dataset *data, const wf_graph *graph) {
    const wf_group *input = &graph->groups[0];
    bool images = data->height > 0, size = data->inputs == graph->inputs;
    if (images && input->image)
        size = data->channels == input->n && data->height == input->height &&
               data->width == input->width;
    if (size && data->classes == graph->outputs) return WF_OK;
    char found[64], expected[64];
    return wf_fail(ctx, WF_ERR_SHAPE,
                   "networks %.200s expect %s and have %d output%s; data set %s has %s and %d "
                   "classes%s",
                   graph->text,
                   inputs_text(input->n, input->image ? input->height : 0, input->width, expected),
                   graph->outputs, graph->outputs == 1 ? "" : "s", data->name,
                   images ? inputs_text(data->channels, data->height, data->width, found)
                          : inputs_text(data->inputs, 0, 0, found),
                   data->classes, wf__one_output(graph->outputs));
}

/* The name to show: as given, else the file's without folder and endings. */
static void set_name(const wf_data_desc *desc, wf_dataset *data) {
    const char *from = desc->name;
    size_t length;
    if (from != NULL && from[0] != 0) length = strlen(from);
    else {
        const char *slash = strrchr(desc->path, '/');
        from = slash == NULL ? desc->path : slash + 1;
        length = strcspn(from, ".");
    }
    if (length >= sizeof data->name) length = sizeof data->name - 1;
    memcpy(data->name, from, length);
    data->name[length] = 0;
}

static wf_status add_bytes(wf_ctx *ctx, const wf_dataset *data, wf_sha256 *hash, const void *bytes,
                           size_t count) {
    static const size_t piece = 1 << 24;
    for (const char *at = bytes; count > 0;) {
        size_t some = count < piece ? count : piece;
        WF_TRY(wf__data_look(ctx, 0, data->name));
        wf_sha256_add(hash, at, some);
        at += some;
        count -= some;
    }
    return WF_OK;
}

wf_status wf__dataset_fingerprint(wf_ctx *ctx, wf_dataset *data) {
    wf_sha256 hash;
    uint64_t shape[4] = {data->n_train, data->n_test, (uint64_t)data->inputs,
                         (uint64_t)data->classes};
    size_t row = (size_t)data->inputs * sizeof(float);
    wf_sha256_start(&hash);
    wf_sha256_add(&hash, shape, sizeof shape);
    WF_TRY(add_bytes(ctx, data, &hash, data->x_train, data->n_train * row));
    WF_TRY(add_bytes(ctx, data, &hash, data->y_train, data->n_train * sizeof *data->y_train));
    WF_TRY(add_bytes(ctx, data, &hash, data->x_test, data->n_test * row));
    WF_TRY(add_bytes(ctx, data, &hash, data->y_test, data->n_test * sizeof *data->y_test));
    wf_sha256_end(&hash, data->fingerprint);
    return WF_OK;
}

static wf_status make_dataset(wf_ctx *ctx, const wf_data_desc *desc, making *from,
                              wf_dataset *data) {
    WF_TRY(wf__prepare_roles(ctx, desc, from->table, from->test, &from->preparation));
    set_name(desc, data);
    if (from->table->note != NULL) snprintf(data->note, sizeof data->note, "%s", from->table->note);
    WF_TRY(split_rows(ctx, desc, from, data));
    WF_TRY(wf__prepare_fit(ctx, &from->preparation, from->table, from->fit_rows, from->n_fit));
    data->inputs = (int)from->preparation.inputs;
    data->classes = (int)from->preparation.n_classes;
    data->channels = from->preparation.image[0];
    data->height = from->preparation.image[1];
    data->width = from->preparation.image[2];
    data->preparation = wf__preparation_write(&from->preparation);
    if (data->preparation == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "preparation: out of memory");
    WF_TRY(copy_names(ctx, &from->preparation, data));
    WF_TRY(make_part(ctx, from, from->table, from->train_rows, data->n_train, &data->x_train,
                     &data->y_train));
    WF_TRY(make_part(ctx, from, from->test != NULL ? from->test : from->table, from->test_rows,
                     data->n_test, &data->x_test, &data->y_test));
    return wf__dataset_fingerprint(ctx, data);
}

wf_status wf__dataset_from_tables(wf_ctx *ctx, const wf_data_desc *desc, wf_table *table,
                                  const wf_table *test, wf_dataset **out) {
    *out = NULL;
    making from = {.table = table, .test = test};
    wf_dataset *data;
    WF_TRY(wf_alloc(ctx, 1, sizeof *data, "data", &data));
    wf_status status = make_dataset(ctx, desc, &from, data);
    making_free(&from);
    if (status == WF_OK) *out = data;
    else wf_dataset_free(data);
    return status;
}

/* --- files ------------------------------------------------------------------------------------ */

/* The tables of a data set: its own, those prepared together with it, its test file. */
enum { most_tables = 16 };
typedef struct tables {
    /* in the order of their names, so that every member of a family is fitted alike */
    const char *path[most_tables];
    wf_table table[most_tables], test, joined;
    size_t count, own;
    wf_arena arena;
} tables;

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The own path and those of desc->joint, each once. */
static wf_status list_paths(wf_ctx *ctx, const wf_data_desc *desc, tables *all) {
    all->path[all->count++] = desc->path;
    const char *at = desc->joint == NULL ? "" : desc->joint;
    while (at[strspn(at, " \t,")] != 0) {
        at += strspn(at, " \t,");
        size_t length = strcspn(at, ","), used = length;
        while (used > 0 && (at[used - 1] == ' ' || at[used - 1] == '\t')) used--;
        const char *path = wf__arena_format(&all->arena, "%.*s", (int)used, at);
        if (path == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "data: out of memory");
        at += length;
        bool listed = false;
        for (size_t i = 0; i < all->count; i++) listed |= strcmp(all->path[i], path) == 0;
        if (listed) continue;
        if (all->count == most_tables)
            return wf_fail(ctx, WF_ERR_USAGE, "data: joint names more than %d tables",
                           most_tables - 1);
        all->path[all->count++] = path;
    }
    qsort(all->path, all->count, sizeof *all->path, by_name);
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->path[i], desc->path) == 0) all->own = i;
    return WF_OK;
}

static wf_status load_tables(wf_ctx *ctx, const wf_data_desc *desc, tables *all) {
    wf_table *list[most_tables + 1];
    WF_TRY(list_paths(ctx, desc, all));
    size_t n = 0;
    for (size_t i = 0; i < all->count; i++) {
        wf_table *table = list[n++] = &all->table[i];
        bool whole = all->count == 1 && desc->test_path == NULL;
        WF_TRY(wf__table_load(ctx, desc, all->path[i], desc->labels, table,
                              whole ? &all->test : NULL));
        WF_TRY(wf__table_thin(ctx, table, desc->rows, desc->seed));
    }
    if (desc->test_path != NULL)
        WF_TRY(wf__table_load(ctx, desc, desc->test_path, desc->test_labels, &all->test, NULL));
    if (all->test.rows > 0) list[n++] = &all->test;
    WF_TRY(wf__table_merge(ctx, desc->merge, list, n));
    if (all->count == 1) return WF_OK;
    return wf__table_join(ctx, list, all->count, all->own, &all->joined);
}

static wf_status open_files(wf_ctx *ctx, const wf_data_desc *desc, wf_dataset **out) {
    tables *all;
    WF_TRY(wf_alloc(ctx, 1, sizeof *all, "data", &all));
    wf_status status = load_tables(ctx, desc, all);
    if (status == WF_OK)
        status = wf__dataset_from_tables(ctx, desc, all->count > 1 ? &all->joined : &all->table[0],
                                         all->test.rows > 0 ? &all->test : NULL, out);
    for (size_t i = 0; i < all->count; i++) wf__table_free(&all->table[i]);
    wf__table_free(&all->joined);
    wf__table_free(&all->test);
    wf_arena_free(&all->arena);
    free(all);
    return status;
}

/* The columns were chosen in the source: the sampled table has no others. */
static wf_status open_bng(wf_ctx *ctx, const wf_data_desc *desc, wf_dataset **out) {
    wf_table table = {0};
    wf_data_desc rest = *desc;
    rest.categorical = rest.drop = rest.target = NULL;
    wf_status status = wf__table_bng(ctx, desc, &table);
    if (rest.name == NULL) rest.name = table.label;
    if (status == WF_OK) status = wf__dataset_from_tables(ctx, &rest, &table, NULL, out);
    wf__table_free(&table);
    return status;
}

wf_status wf_dataset_open(wf_ctx *ctx, const wf_data_desc *desc, wf_dataset **out) {
    *out = NULL;
    WF_TRY(check_desc(ctx, desc));
    if (desc->bng != NULL && desc->bng[0] != 0) return open_bng(ctx, desc, out);
    if (desc->path != NULL) return open_files(ctx, desc, out);
    wf_table table = {0};
    wf_status status =
        wf__table_builtin(ctx, desc->name, desc->seed, desc->rows, desc->noise, &table);
    if (status == WF_OK) status = wf__dataset_from_tables(ctx, desc, &table, NULL, out);
    wf__table_free(&table);
    return status;
}
