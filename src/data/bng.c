/* bng: a table sampled from a Bayesian network that was learned on another table.
 *
 * The "BNG" sets of OpenML were made so from small tables (van Rijn and others, 2014). Here:
 * numeric columns are cut into bins of nearly equal counts (equal values stay together), a missing
 * cell counts as its column's most frequent value, the class is a parent of every column, further
 * edges come from hill climbing (bayes_net.h). Row r is drawn from the stream (seed, r,
 * WF_RNG_DATA, bng_stream), so a larger set begins with the smaller one. A numeric cell is one of
 * the source's own cells in the drawn bin, so its text is one that occurs there.
 *
 * The file is ARFF; its first line is the note that readers hand on (wf_dataset.note). */
#include "base/io.h"
#include "base/json_text.h"
#include "data/bayes_net.h"
#include "data/prepare.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { bng_stream = 64 };

#define SETTINGS_OF wf_bng
#define SETTINGS_SECTION "bng"
#define SETTINGS_META "bng."
#define SETTINGS_DEF "weft/bng.def"
#include "base/settings_table.h"

/* A column of the source as a discrete variable. */
typedef struct variable {
    const char *name;
    size_t source;       /* column of the table */
    const char **levels; /* NULL: numeric */
    size_t n_levels;     /* levels, or bins */
    double *cut;         /* numeric: [n_levels] largest value of each bin */
    uint32_t *rows;      /* numeric: rows with a value, ordered by bin */
    size_t *start;       /* numeric: [n_levels + 1] where each bin's rows begin */
} variable;

typedef struct generator {
    wf_ctx *ctx;
    const wf_bng_desc *desc;
    wf_table table;
    wf_preparation preparation;
    variable *variable; /* inputs, then the class */
    int32_t *codes;     /* (V, N) */
    int32_t *card;
    wf_bayes_net net;
    wf_arena arena;
    char relation[128], note[sizeof((wf_dataset *)0)->note];
} generator;

static wf_status out_of_memory(const generator *g) {
    return wf_fail(g->ctx, WF_ERR_MEMORY, "%s: out of memory", g->table.label);
}

/* --- the table as discrete variables ---------------------------------------------------------- */

typedef struct placed {
    double value;
    uint32_t row;
} placed;

static int by_value(const void *a_, const void *b_) {
    const placed *a = a_, *b = b_;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

/* Bin k ends at the first change of value after (k + 1) / bins of the sorted values. */
static void cut_bins(const generator *g, const placed *sorted, size_t n, variable *v,
                     int32_t *codes) {
    size_t bin = 0;
    for (size_t i = 0; i < n; i++) {
        v->rows[i] = sorted[i].row;
        codes[sorted[i].row] = (int32_t)bin;
        v->cut[bin] = sorted[i].value;
        bool last = i + 1 == n, change = !last && sorted[i + 1].value > sorted[i].value;
        if (last || (change && (double)(i + 1) * g->desc->bins >= (double)(bin + 1) * (double)n))
            v->start[++bin] = i + 1;
    }
    v->n_levels = bin;
}

static wf_status bin_numbers(generator *g, variable *v, int32_t *codes) {
    size_t rows = g->table.rows, n = 0, bins = (size_t)g->desc->bins;
    double *values = NULL;
    placed *sorted = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(g->ctx, rows, sizeof *values, "columns", &values), done);
    WF_TRY_GOTO(wf_alloc(g->ctx, rows, sizeof *sorted, "columns", &sorted), done);
    WF_TRY_GOTO(wf__table_numbers(g->ctx, &g->table, v->source, values), done);
    for (size_t r = 0; r < rows; r++) {
        codes[r] = -1;
        if (!isnan(values[r])) sorted[n++] = (placed){values[r], (uint32_t)r};
    }
    if (n == 0) {
        status = wf_fail(g->ctx, WF_ERR_INPUT,
                         "%s: column '%s' is missing in every row; name it under drop",
                         g->table.label, v->name);
        goto done;
    }
    qsort(sorted, n, sizeof *sorted, by_value);
    v->rows = wf_arena_alloc(&g->arena, n * sizeof *v->rows);
    v->cut = wf_arena_alloc(&g->arena, (bins + 1) * sizeof *v->cut);
    v->start = wf_arena_zalloc(&g->arena, (bins + 2) * sizeof *v->start);
    if (v->rows == NULL || v->cut == NULL || v->start == NULL) status = out_of_memory(g);
    else cut_bins(g, sorted, n, v, codes);
done:
    free(values);
    free(sorted);
    return status;
}

/* Missing cells (-1) take the most frequent value. */
static wf_status fill_missing(generator *g, const variable *v, int32_t *codes) {
    size_t *count;
    WF_TRY(wf_alloc(g->ctx, v->n_levels, sizeof *count, "levels", &count));
    size_t most = 0;
    for (size_t r = 0; r < g->table.rows; r++)
        if (codes[r] >= 0) count[codes[r]]++;
    for (size_t k = 1; k < v->n_levels; k++)
        if (count[k] > count[most]) most = k;
    for (size_t r = 0; r < g->table.rows; r++)
        if (codes[r] < 0) codes[r] = (int32_t)most;
    free(count);
    return WF_OK;
}

static wf_status make_variable(generator *g, size_t index) {
    const wf_preparation *preparation = &g->preparation;
    bool label = index == preparation->columns;
    const wf_prepared_column *column = label ? NULL : &preparation->column[index];
    variable *v = &g->variable[index];
    int32_t *codes = g->codes + index * g->table.rows;
    v->name = label ? preparation->target : column->name;
    v->source = wf__table_find(&g->table, v->name, strlen(v->name), index);
    if (label || column->categorical) {
        v->levels = label ? preparation->classes : column->levels;
        v->n_levels = label ? preparation->n_classes : column->n_levels;
        WF_TRY(wf__table_codes(g->ctx, &g->table, v->source, v->levels, v->n_levels, codes));
    } else WF_TRY(bin_numbers(g, v, codes));
    WF_TRY(fill_missing(g, v, codes));
    g->card[index] = (int32_t)v->n_levels;
    return WF_OK;
}

static wf_status make_variables(generator *g) {
    size_t count = g->preparation.columns + 1;
    g->variable = wf_arena_zalloc(&g->arena, count * sizeof *g->variable);
    g->card = wf_arena_zalloc(&g->arena, count * sizeof *g->card);
    if (g->variable == NULL || g->card == NULL) return out_of_memory(g);
    WF_TRY(wf_alloc(g->ctx, count * g->table.rows, sizeof *g->codes, "columns", &g->codes));
    for (size_t i = 0; i < count; i++) WF_TRY(make_variable(g, i));
    g->net.variables = count;
    g->net.rows = g->table.rows;
    g->net.codes = g->codes;
    g->net.card = g->card;
    g->net.class_variable = (int)count - 1;
    g->net.max_parents = g->desc->max_parents;
    return WF_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

/* Text goes to the file, where there is one, when so much of it is there. */
enum { text_at_once = 1 << 20 };

static void put_text(wf_long_text *out, const char *text) {
    wf_long_text_put(out, text, strlen(text));
}

/* A name or level as ARFF takes it: bare where that is safe, else in single quotes. */
static void put_token(wf_long_text *out, const char *text) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-";
    if (text[0] != 0 && text[strspn(text, plain)] == 0) {
        put_text(out, text);
        return;
    }
    wf_long_text_put(out, "'", 1);
    for (; *text != 0; text++) {
        if (*text == '\n' || *text == '\r' || *text == '\t')
            wf_long_text_add(out, "\\%c", *text == '\n' ? 'n' : *text == '\r' ? 'r' : 't');
        else if (*text == '\'' || *text == '\\') wf_long_text_add(out, "\\%c", *text);
        else wf_long_text_put(out, text, 1);
    }
    wf_long_text_put(out, "'", 1);
}

static void put_header(const generator *g, wf_long_text *out) {
    wf_long_text_add(out, "%s%s\n@relation ", WF_NOTE_MARK, g->note);
    put_token(out, g->relation);
    wf_long_text_put(out, "\n", 1);
    for (size_t i = 0; i < g->net.variables; i++) {
        const variable *v = &g->variable[i];
        put_text(out, "@attribute ");
        put_token(out, v->name);
        if (v->levels == NULL) {
            put_text(out, " numeric\n");
            continue;
        }
        for (size_t k = 0; k < v->n_levels; k++) {
            put_text(out, k == 0 ? " {" : ",");
            put_token(out, v->levels[k]);
        }
        put_text(out, "}\n");
    }
    put_text(out, "@data\n");
}

static void put_row(const generator *g, wf_rng *rng, const int32_t *values, wf_long_text *out) {
    for (size_t i = 0; i < g->net.variables; i++) {
        const variable *v = &g->variable[i];
        if (i > 0) wf_long_text_put(out, ",", 1);
        if (v->levels != NULL) {
            put_token(out, v->levels[values[i]]);
            continue;
        }
        size_t first = v->start[values[i]], count = v->start[values[i] + 1] - first;
        size_t row = v->rows[first + wf_rng_below(rng, (uint32_t)count)];
        const char *cell = g->table.cells[row * g->table.columns + v->source];
        put_text(out, cell + strspn(cell, " \t"));
    }
    wf_long_text_put(out, "\n", 1);
}

static wf_status pass_on(const generator *g, wf_long_text *out, wf_writer *file) {
    if (out->cut) return out_of_memory(g);
    if (file == NULL) return WF_OK;
    wf_status status = wf_writer_write(g->ctx, file, out->bytes, out->length);
    out->length = 0;
    return status;
}

/* file NULL: all of it stays in `out`. */
static wf_status put_rows(const generator *g, wf_long_text *out, wf_writer *file) {
    int32_t *values;
    WF_TRY(wf_alloc(g->ctx, g->net.variables, sizeof *values, "row", &values));
    wf_status status = WF_OK;
    wf_meter meter = wf_meter_start(g->ctx, "sampling rows", "rows", (double)g->desc->rows);
    for (size_t r = 0; r < g->desc->rows && status == WF_OK; r++) {
        wf_rng rng = wf_rng_at(g->desc->seed, (uint32_t)r, WF_RNG_DATA, bng_stream);
        wf__bayes_net_draw(&g->net, &rng, values);
        put_row(g, &rng, values, out);
        if (out->cut || out->length >= text_at_once) status = pass_on(g, out, file);
        if (r % 4096 != 0) continue;
        wf_meter_update(&meter, (double)r, NULL);
        if (status == WF_OK && wf_interrupted(g->ctx))
            status = wf_fail(g->ctx, WF_ERR_INTERRUPTED, "interrupted while sampling rows");
    }
    if (status == WF_OK) wf_meter_end(&meter, (double)g->desc->rows, NULL);
    free(values);
    return status;
}

static wf_status write_table(const generator *g, const char *path) {
    wf_writer writer;
    wf_long_text text = {0};
    WF_TRY(wf_writer_open(g->ctx, path, &writer));
    put_header(g, &text);
    wf_status status = put_rows(g, &text, &writer);
    if (status == WF_OK) status = pass_on(g, &text, &writer);
    if (status == WF_OK) status = wf_writer_commit(g->ctx, &writer);
    wf_writer_abort(&writer);
    free(text.bytes);
    return status;
}

/* The same text in memory, read as a file would be. */
static wf_status read_back(const generator *g, wf_table *out) {
    const char *label = wf__arena_format(&out->arena, "%s", g->relation);
    if (label == NULL) return out_of_memory(g);
    wf_long_text text = {0};
    put_header(g, &text);
    wf_status status = put_rows(g, &text, NULL);
    char *whole = wf_long_text_end(&text);
    if (status == WF_OK && whole == NULL) status = out_of_memory(g);
    if (status == WF_OK) return wf__table_from_arff(g->ctx, label, whole, text.length, out);
    free(whole);
    return status;
}

/* --- the description -------------------------------------------------------------------------- */

static json_t *describe_variable(const generator *g, size_t index) {
    const variable *v = &g->variable[index];
    json_t *parents = json_array(), *values = json_array();
    for (size_t p = 0; p < g->net.variables; p++)
        if (g->net.edge[p * g->net.variables + index])
            json_array_append_new(parents, json_string(g->variable[p].name));
    for (size_t k = 0; k < v->n_levels; k++)
        json_array_append_new(values,
                              v->levels != NULL ? json_string(v->levels[k]) : json_real(v->cut[k]));
    return json_pack("{s:s, s:o, s:o, s:f}", "name", v->name, "parents", parents,
                     v->levels != NULL ? "levels" : "cuts", values, "bic", g->net.local[index]);
}

static char *describe(const generator *g) {
    json_t *columns = json_array();
    for (size_t i = 0; i < g->net.variables; i++)
        if (json_array_append_new(columns, describe_variable(g, i)) != 0) {
            json_decref(columns);
            return NULL;
        }
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:i, s:i, s:f, s:o}", "note", g->note,
                             "source", g->table.label, "source_rows", (json_int_t)g->table.rows,
                             "rows", (json_int_t)g->desc->rows, "seed", (json_int_t)g->desc->seed,
                             "bic", g->net.bic, "bins", g->desc->bins, "max_parents",
                             g->desc->max_parents, "prior", g->desc->prior, "columns", columns);
    char *text = root == NULL ? NULL : wf_json_text(root, JSON_REAL_PRECISION(17) | JSON_COMPACT);
    json_decref(root);
    return text;
}

/* Everything but the rows. */
static wf_status learn(generator *g, const wf_data_desc *from, const char *source) {
    WF_TRY(wf__table_load(g->ctx, from, source, NULL, &g->table, NULL));
    WF_TRY(wf__prepare_roles(g->ctx, from, &g->table, NULL, &g->preparation));
    WF_TRY(make_variables(g));
    WF_TRY(wf__bayes_net_learn(g->ctx, &g->net));
    WF_TRY(wf__bayes_net_tables(g->ctx, &g->net, g->desc->prior));
    const char *slash = strrchr(g->table.label, '/');
    const char *base = slash != NULL ? slash + 1 : g->table.label;
    snprintf(g->relation, sizeof g->relation, "BNG(%.*s)", (int)strcspn(base, "."), base);
    snprintf(g->note, sizeof g->note,
             "regenerated, not the original: %zu rows sampled by weft from a Bayesian network "
             "learned on %.80s, seed %llu",
             g->desc->rows, base, (unsigned long long)g->desc->seed);
    return WF_OK;
}

static void generator_free(generator *g) {
    free(g->codes);
    wf__bayes_net_free(&g->net);
    wf__preparation_free(&g->preparation);
    wf__table_free(&g->table);
    wf_arena_free(&g->arena);
}

wf_status wf_data_bng(wf_ctx *ctx, const wf_data_desc *from, const wf_bng_desc *desc,
                      const char *path, char **description) {
    wf_bng_desc defaults = wf_bng_desc_default();
    if (desc == NULL) desc = &defaults;
    if (description != NULL) *description = NULL;
    if (from->path == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "data: the table to learn from has no path");
    WF_TRY(wf_settings_check(ctx, wf_bng_rows, desc));
    generator g = {.ctx = ctx, .desc = desc};
    wf_status status = learn(&g, from, from->path);
    if (status == WF_OK && description != NULL && (*description = describe(&g)) == NULL)
        status = out_of_memory(&g);
    if (status == WF_OK) status = write_table(&g, path);
    if (status != WF_OK && description != NULL) {
        free(*description);
        *description = NULL;
    }
    generator_free(&g);
    return status;
}

wf_status wf__table_bng(wf_ctx *ctx, const wf_data_desc *from, wf_table *out) {
    wf_bng_desc desc = wf_bng_desc_default();
    desc.seed = from->bng_seed;
    if (from->rows > 0) desc.rows = from->rows;
    WF_TRY(wf_settings_check(ctx, wf_bng_rows, &desc));
    generator g = {.ctx = ctx, .desc = &desc};
    wf_status status = learn(&g, from, from->bng);
    if (status == WF_OK) status = read_back(&g, out);
    generator_free(&g);
    return status;
}
