/* data_table: reading columns as numbers or categories, and naming places in sentences. */
#include "base/c_locale.h"
#include "base/utf8.h"
#include "data/data_table.h"
#include "weft/text.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double largest_number = 1e299; /* sums over all rows stay finite */

void wf__table_free(wf_table *table) {
    free(table->cells);
    free(table->line);
    free(table->text);
    wf_arena_free(&table->arena);
    *table = (wf_table){0};
}

char *wf__arena_format(wf_arena *arena, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    locale_t before = wf_c_locale_enter(); /* a class or level named by a number is kept in files */
    int length = vsnprintf(NULL, 0, format, args);
    char *text = length < 0 ? NULL : wf_arena_alloc(arena, (size_t)length + 1);
    if (text != NULL) vsnprintf(text, (size_t)length + 1, format, again);
    wf_c_locale_leave(before);
    va_end(again);
    va_end(args);
    return text;
}

size_t wf__table_find(const wf_table *table, const char *name, size_t length, size_t hint) {
    for (size_t i = 0; i < table->columns; i++) {
        size_t c = (hint + i) % table->columns;
        const char *candidate = table->column[c].name;
        if (strncmp(candidate, name, length) == 0 && candidate[length] == 0) return c;
    }
    return table->columns;
}

wf_status wf__table_add_row(wf_ctx *ctx, wf_table *table, size_t line, const char ***cells) {
    WF_TRY(wf__data_look(ctx, table->rows, table->label));
    if (table->rows == table->capacity) {
        size_t limit = WF_TABLE_MAX_CELLS / table->columns;
        if (table->rows >= limit)
            return wf_fail(ctx, WF_ERR_INPUT,
                           "%s: more than %zu rows of %zu columns are too many; use a part of it",
                           table->label, limit, table->columns);
        size_t capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
        if (capacity > limit) capacity = limit;
        void *grown = realloc(table->cells, capacity * table->columns * sizeof *table->cells);
        if (grown != NULL) table->cells = grown;
        void *lines = realloc(table->line, capacity * sizeof *table->line);
        if (lines != NULL) table->line = lines;
        if (grown == NULL || lines == NULL)
            return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for %zu rows", table->label,
                           capacity);
        table->capacity = capacity;
    }
    *cells = table->cells + table->rows * table->columns;
    for (size_t c = 0; c < table->columns; c++) (*cells)[c] = NULL;
    table->line[table->rows++] = line < UINT32_MAX ? (uint32_t)line : UINT32_MAX;
    return WF_OK;
}

/* The first byte that is not UTF-8, or `size`. */
static wf_status find_bad_byte(wf_ctx *ctx, const char *label, const char *text, size_t size,
                               size_t *bad) {
    enum { piece = 1 << 24, longest_character = 4 };
    for (*bad = 0; *bad < size;) {
        size_t left = size - *bad, count = left < piece ? left : piece;
        WF_TRY(wf__data_look(ctx, 0, label));
        size_t good = wf_utf8_check(text + *bad, count);
        *bad += good;
        /* The piece may end within a character; the next one begins with it. */
        if (good == count || (count < left && good > count - longest_character)) continue;
        return WF_OK;
    }
    return WF_OK;
}

wf_status wf__check_text(wf_ctx *ctx, const char *label, const char *text, size_t size) {
    const char *nul = memchr(text, 0, size);
    size_t bad = nul != NULL ? (size_t)(nul - text) : 0;
    if (nul == NULL) WF_TRY(find_bad_byte(ctx, label, text, size, &bad));
    if (bad == size) return WF_OK;
    size_t line = 1;
    for (size_t i = 0; i < bad; i++) line += text[i] == '\n';
    return wf_fail(ctx, WF_ERR_INPUT, "%s:%zu: %s", label, line,
                   nul != NULL ? "a NUL byte; this is not a text file"
                               : "a byte that is not UTF-8; convert the file (iconv -t UTF-8)");
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

wf_status wf__table_check_names(wf_ctx *ctx, const wf_table *table) {
    const char **names;
    WF_TRY(wf_alloc(ctx, table->columns, sizeof *names, "columns", &names));
    for (size_t c = 0; c < table->columns; c++) names[c] = table->column[c].name;
    qsort(names, table->columns, sizeof *names, compare_text);
    wf_status status = WF_OK;
    for (size_t c = 1; c < table->columns && status == WF_OK; c++)
        if (strcmp(names[c - 1], names[c]) == 0)
            status =
                wf_fail(ctx, WF_ERR_INPUT, "%s: two columns are named '%.80s'; rename one of them",
                        table->label, names[c]);
    free(names);
    return status;
}

void wf__table_place(const wf_table *table, size_t row, size_t column, char *out, size_t size) {
    const char *label = table->label;
    for (size_t p = 0; p < table->n_parts && table->part[p].first <= row; p++)
        label = table->part[p].label;
    if (table->line != NULL)
        snprintf(out, size, "%s:%u: column %zu (%s)", label, table->line[row], column + 1,
                 table->column[column].name);
    else
        snprintf(out, size, "%s: row %zu, column %zu (%s)", table->label, row, column + 1,
                 table->column[column].name);
}

void wf__table_names(const wf_table *table, char *out, size_t size) {
    static const char rest[] = ", ...";
    wf_text list = wf_text_start(out, size - sizeof rest);
    for (size_t c = 0; c < table->columns && !list.cut; c++) {
        size_t before = list.length;
        if (wf_text_add(&list, "%s%s", c > 0 ? ", " : "", table->column[c].name)) continue;
        memcpy(out + before, rest, sizeof rest); /* in place of half a name */
    }
}

bool wf__parse_number(const char *text, double *out) {
    while (isspace((unsigned char)*text)) text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) length--;
    if (length == 0 || strspn(text, "0123456789+-.eE") < length) return false;
    char *end;
    *out = wf_c_strtod(text, &end);
    return end == text + length && isfinite(*out);
}

static const char *cell(const wf_table *table, size_t row, size_t column) {
    if (table->column[column].texts != NULL) return table->column[column].texts[row];
    return table->cells[row * table->columns + column];
}

wf_status wf__table_numbers(wf_ctx *ctx, const wf_table *table, size_t column, double *out) {
    const wf_column *from = &table->column[column];
    WF_TRY(wf__data_look(ctx, 0, table->label));
    if (from->values != NULL) {
        memcpy(out, from->values, table->rows * sizeof *out);
        return WF_OK;
    }
    if (from->bytes != NULL) {
        for (size_t r = 0; r < table->rows; r++) out[r] = from->bytes[r * from->stride];
        return WF_OK;
    }
    for (size_t r = 0; r < table->rows; r++) {
        const char *text = cell(table, r, column);
        WF_TRY(wf__data_look(ctx, r, table->label));
        if (text == NULL) {
            out[r] = NAN;
            continue;
        }
        bool number = wf__parse_number(text, &out[r]);
        if (number && fabs(out[r]) <= largest_number) continue;
        char place[512];
        wf__table_place(table, r, column, place, sizeof place);
        if (number)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: '%.40s' is too large; numbers go up to %g",
                           place, text, largest_number);
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: '%.40s' is not a number; write ? for a missing value, or name the "
                       "column under categorical if it holds categories",
                       place, text);
    }
    return WF_OK;
}

typedef struct numbered {
    double value;
    const char *text;
} numbered;

static int compare_numbered(const void *a_, const void *b_) {
    const numbered *a = a_, *b = b_;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    return strcmp(a->text, b->text);
}

/* A cell as text, whatever the storage: bytes and values become decimals. NULL: missing or no
 * memory (then *failed). */
static const char *cell_text(const wf_table *table, size_t row, size_t column, wf_arena *arena,
                             bool *failed) {
    const wf_column *from = &table->column[column];
    if (from->values == NULL && from->bytes == NULL) return cell(table, row, column);
    double value =
        from->values != NULL ? from->values[row] : (double)from->bytes[row * from->stride];
    if (isnan(value)) return NULL;
    const char *text = wf__arena_format(arena, "%.17g", value);
    if (text == NULL) *failed = true;
    return text;
}

static size_t drop_repeats(const char **sorted, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || strcmp(sorted[kept - 1], sorted[i]) != 0) sorted[kept++] = sorted[i];
    return kept;
}

/* The distinct texts of a column, sorted by bytes, appended to `found` (room for all rows), which
 * has `count` already. Repeats are dropped on the way, so that what is sorted stays small. */
static wf_status distinct_texts(wf_ctx *ctx, const wf_table *table, size_t column, wf_arena *arena,
                                const char **found, size_t *count) {
    const wf_column *from = &table->column[column];
    if (from->bytes != NULL) { /* at most 256 texts, not one for each row */
        bool seen[256] = {false};
        for (size_t r = 0; r < table->rows; r++) seen[from->bytes[r * from->stride]] = true;
        for (int byte = 0; byte < 256; byte++) {
            if (!seen[byte]) continue;
            const char *text = wf__arena_format(arena, "%d", byte);
            if (text == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "levels: out of memory");
            found[(*count)++] = text;
        }
    } else {
        bool failed = false;
        size_t full = *count + 65536;
        for (size_t r = 0; r < table->rows; r++) {
            const char *text = cell_text(table, r, column, arena, &failed);
            if (failed) return wf_fail(ctx, WF_ERR_MEMORY, "levels: out of memory");
            WF_TRY(wf__data_look(ctx, r, table->label));
            if (text != NULL) found[(*count)++] = text;
            if (*count < full) continue;
            qsort(found, *count, sizeof *found, compare_text);
            *count = drop_repeats(found, *count);
            full = 2 * *count + 65536;
        }
    }
    qsort(found, *count, sizeof *found, compare_text);
    *count = drop_repeats(found, *count);
    return WF_OK;
}

/* Bytewise-sorted levels into the order of numbers, when all of them are numbers. */
static wf_status order_by_number(wf_ctx *ctx, const char **levels, size_t count) {
    numbered *pairs;
    WF_TRY(wf_alloc(ctx, count, sizeof *pairs, "levels", &pairs));
    bool all = true;
    for (size_t i = 0; i < count && all; i++) {
        pairs[i].text = levels[i];
        all = wf__parse_number(levels[i], &pairs[i].value);
    }
    if (all) {
        qsort(pairs, count, sizeof *pairs, compare_numbered);
        for (size_t i = 0; i < count; i++) levels[i] = pairs[i].text;
    }
    free(pairs);
    return WF_OK;
}

static bool contains(const char *const *sorted, size_t count, const char *text) {
    return bsearch(&text, sorted, count, sizeof *sorted, compare_text) != NULL;
}

wf_status wf__table_levels(wf_ctx *ctx, const wf_table *table, size_t column, const wf_table *more,
                           wf_arena *arena, const char ***levels, size_t *count) {
    const wf_column *from = &table->column[column];
    size_t rows = table->rows + (more != NULL ? more->rows : 0);
    const char **found;
    wf_status status = WF_OK;
    WF_TRY(wf_alloc(ctx, rows > 256 ? rows : 256, sizeof *found, "levels", &found));
    size_t n = 0;
    WF_TRY_GOTO(distinct_texts(ctx, table, column, arena, found, &n), done);
    if (more != NULL) {
        size_t other = wf__table_find(more, from->name, strlen(from->name), column);
        if (other < more->columns)
            WF_TRY_GOTO(distinct_texts(ctx, more, other, arena, found, &n), done);
    }
    const char **kept =
        wf_arena_alloc(arena, (from->n_levels > n ? from->n_levels : n) * sizeof *kept);
    if (kept == NULL) {
        status = wf_fail(ctx, WF_ERR_MEMORY, "levels: out of memory");
        goto done;
    }
    *count = 0;
    if (from->declared == WF_DECLARED_NOMINAL) {
        for (size_t i = 0; i < from->n_levels; i++)
            if (contains(found, n, from->levels[i])) kept[(*count)++] = from->levels[i];
    } else {
        memcpy(kept, found, n * sizeof *kept);
        *count = n;
        status = order_by_number(ctx, kept, n);
    }
    *levels = kept;
done:
    free(found);
    return status;
}

typedef struct coded {
    const char *text;
    int32_t code;
} coded;

static int compare_coded(const void *a, const void *b) {
    return strcmp(((const coded *)a)->text, ((const coded *)b)->text);
}

static wf_status unknown_level(wf_ctx *ctx, const wf_table *table, size_t row, size_t column,
                               const char *text, const char *const *levels, size_t count) {
    char place[512], known[256];
    wf_text list = wf_text_start(known, sizeof known);
    for (size_t i = 0; i < count && !list.cut; i++)
        wf_text_add(&list, "%s%s", i > 0 ? ", " : "", levels[i]);
    wf__table_place(table, row, column, place, sizeof place);
    return wf_fail(ctx, WF_ERR_INPUT, "%s: '%.40s' is not one of its levels (%s%s)", place, text,
                   known, list.cut ? " ..." : "");
}

wf_status wf__table_codes(wf_ctx *ctx, const wf_table *table, size_t column,
                          const char *const *levels, size_t count, int32_t *out) {
    coded *sorted;
    WF_TRY(wf_alloc(ctx, count, sizeof *sorted, "levels", &sorted));
    for (size_t i = 0; i < count; i++) sorted[i] = (coded){levels[i], (int32_t)i};
    qsort(sorted, count, sizeof *sorted, compare_coded);
    wf_arena scratch = {0};
    wf_status status = WF_OK;
    for (size_t r = 0; r < table->rows && status == WF_OK; r++) {
        bool failed = false;
        coded key = {cell_text(table, r, column, &scratch, &failed), 0};
        out[r] = -1;
        status = wf__data_look(ctx, r, table->label);
        if (failed) status = wf_fail(ctx, WF_ERR_MEMORY, "levels: out of memory");
        if (key.text == NULL || status != WF_OK) continue;
        const coded *hit = bsearch(&key, sorted, count, sizeof *sorted, compare_coded);
        if (hit != NULL) out[r] = hit->code;
        else status = unknown_level(ctx, table, r, column, key.text, levels, count);
        wf_arena_reset(&scratch);
    }
    wf_arena_free(&scratch);
    free(sorted);
    return status;
}
