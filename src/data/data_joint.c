/* data_joint: thinning, merging levels, joining (see data_joint.h). */
#include "data/data_joint.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

static wf_status out_of_memory(wf_ctx *ctx, const wf_table *table) {
    return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", table->label);
}

/* --- fewer rows ------------------------------------------------------------------------------- */

static void thin_text(wf_table *table, const bool *kept) {
    size_t to = 0, width = table->columns;
    for (size_t r = 0; r < table->rows; r++) {
        if (!kept[r]) continue;
        memmove(table->cells + to * width, table->cells + r * width, width * sizeof *table->cells);
        table->line[to++] = table->line[r];
    }
}

static wf_status thin_bytes(wf_ctx *ctx, wf_table *table, const bool *kept, size_t most) {
    uint8_t *bytes = wf_arena_alloc(&table->arena, most * table->columns);
    if (bytes == NULL) return out_of_memory(ctx, table);
    size_t to = 0;
    for (size_t r = 0; r < table->rows; r++) {
        if (!kept[r]) continue;
        for (size_t c = 0; c < table->columns; c++)
            bytes[to * table->columns + c] = table->column[c].bytes[r * table->column[c].stride];
        to++;
    }
    for (size_t c = 0; c < table->columns; c++) {
        table->column[c].bytes = bytes + c;
        table->column[c].stride = table->columns;
    }
    return WF_OK;
}

/* Columns that are stored each in its own way. */
static wf_status thin_columns(wf_ctx *ctx, wf_table *table, const bool *kept, size_t most) {
    for (size_t c = 0; c < table->columns; c++) {
        wf_column *column = &table->column[c];
        double *values = wf_arena_alloc(&table->arena, most * sizeof *values);
        if (values == NULL) return out_of_memory(ctx, table);
        const char **texts = (const char **)(void *)values;
        uint8_t *bytes = (uint8_t *)values;
        size_t to = 0;
        for (size_t r = 0; r < table->rows; r++) {
            if (!kept[r]) continue;
            if (column->texts != NULL) texts[to] = column->texts[r];
            else if (column->values != NULL) values[to] = column->values[r];
            else bytes[to] = column->bytes[r * column->stride];
            to++;
        }
        if (column->texts != NULL) column->texts = texts;
        else if (column->values != NULL) column->values = values;
        else column->bytes = bytes, column->stride = 1;
    }
    return WF_OK;
}

static bool all_bytes(const wf_table *table) {
    for (size_t c = 0; c < table->columns; c++)
        if (table->column[c].bytes == NULL) return false;
    return true;
}

wf_status wf__table_thin(wf_ctx *ctx, wf_table *table, size_t most, uint64_t seed) {
    if (most == 0 || table->rows <= most) return WF_OK;
    uint32_t *order = NULL;
    bool *kept = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof *order, "rows", &order), done);
    WF_TRY_GOTO(wf_alloc(ctx, table->rows, sizeof *kept, "rows", &kept), done);
    wf_rng rng = wf_rng_at(seed, 0, WF_RNG_SPLIT, 1);
    wf_rng_shuffle(&rng, order, (uint32_t)table->rows);
    for (size_t i = 0; i < most; i++) kept[order[i]] = true;
    if (table->cells != NULL) thin_text(table, kept);
    else WF_TRY_GOTO((all_bytes(table) ? thin_bytes : thin_columns)(ctx, table, kept, most), done);
    table->rows = most;
done:
    free(order);
    free(kept);
    return status;
}

/* --- merging levels --------------------------------------------------------------------------- */

/* The next piece of *at up to one of `stops` or the end, without blanks round it; *at moves to the
 * stop. */
static size_t take_piece(const char **at, const char *stops, const char **start) {
    *at += strspn(*at, " \t");
    *start = *at;
    size_t length = strcspn(*at, stops);
    *at += length;
    while (length > 0 && ((*start)[length - 1] == ' ' || (*start)[length - 1] == '\t')) length--;
    return length;
}

static bool is_level(const char *text, const char *level, size_t length) {
    return text != NULL && strncmp(text, level, length) == 0 && text[length] == 0;
}

static wf_status declare(wf_ctx *ctx, wf_table *table, wf_column *column, const char *level) {
    for (size_t k = 0; k < column->n_levels; k++)
        if (strcmp(column->levels[k], level) == 0) return WF_OK;
    const char **levels =
        wf_arena_alloc(&table->arena, (column->n_levels + 1) * sizeof *column->levels);
    if (levels == NULL) return out_of_memory(ctx, table);
    memcpy(levels, column->levels, column->n_levels * sizeof *levels);
    levels[column->n_levels++] = level;
    column->levels = levels;
    return WF_OK;
}

/* Renames one level in one table; *hits counts its cells. */
static wf_status rename_level(wf_ctx *ctx, wf_table *table, size_t column, const char *from,
                              size_t length, const char *to, size_t to_length, size_t *hits) {
    char *level = wf__arena_format(&table->arena, "%.*s", (int)to_length, to);
    if (level == NULL) return out_of_memory(ctx, table);
    for (size_t r = 0; r < table->rows; r++) {
        const char **cell = &table->cells[r * table->columns + column];
        if (!is_level(*cell, from, length)) continue;
        *cell = level;
        (*hits)++;
    }
    if (table->column[column].declared != WF_DECLARED_NOMINAL) return WF_OK;
    return declare(ctx, table, &table->column[column], level);
}

static wf_status merge_fault(wf_ctx *ctx, const char *list) {
    return wf_fail(ctx, WF_ERR_USAGE,
                   "data: merge is '%.200s'; write COLUMN: LEVEL, LEVEL -> LEVEL, with ; between "
                   "columns",
                   list);
}

/* "a, b -> c" of one column, the list from `levels` on; *at moves past it. */
static wf_status merge_column(wf_ctx *ctx, const char *list, const char *name, size_t name_length,
                              const char **at, wf_table *const *tables, size_t count) {
    const char *levels = *at, *arrow = strstr(levels, "->"), *end = levels + strcspn(levels, ";");
    if (arrow == NULL || arrow > end) return merge_fault(ctx, list);
    const char *to, *behind = arrow + 2;
    size_t to_length = take_piece(&behind, ";", &to);
    if (to_length == 0) return merge_fault(ctx, list);
    while (levels < arrow) {
        const char *from, *stop = levels;
        size_t length = take_piece(&stop, ",-;", &from), hits = 0;
        while (stop < arrow && *stop == '-') { /* a minus sign, not the arrow */
            stop++;
            const char *rest;
            take_piece(&stop, ",-;", &rest);
            length = (size_t)(stop - from);
            while (length > 0 && (from[length - 1] == ' ' || from[length - 1] == '\t')) length--;
        }
        if (length == 0) return merge_fault(ctx, list);
        bool found = false;
        for (size_t t = 0; t < count; t++) {
            size_t column = wf__table_find(tables[t], name, name_length, 0);
            if (column == tables[t]->columns) continue;
            found = true;
            WF_TRY(rename_level(ctx, tables[t], column, from, length, to, to_length, &hits));
        }
        if (!found || hits == 0)
            return wf_fail(ctx, WF_ERR_INPUT,
                           found ? "%s: merge names level '%.*s' of column '%.*s', which does not "
                                   "occur; levels are compared as text"
                                 : "%s: merge names level '%.*s' of column '%.*s', but there is no "
                                   "such column",
                           tables[0]->label, (int)length, from, (int)name_length, name);
        levels = stop < arrow ? stop + 1 : arrow;
    }
    *at = behind;
    return WF_OK;
}

wf_status wf__table_merge(wf_ctx *ctx, const char *list, wf_table *const *tables, size_t count) {
    const char *at = list == NULL ? "" : list;
    while (at[strspn(at, " \t;")] != 0) {
        const char *name;
        at += strspn(at, " \t;");
        size_t length = take_piece(&at, ":;", &name);
        if (*at != ':' || length == 0) return merge_fault(ctx, list);
        for (size_t t = 0; t < count; t++)
            if (tables[t]->cells == NULL)
                return wf_fail(ctx, WF_ERR_USAGE, "%s: merge goes with CSV, TSV and ARFF only",
                               tables[t]->label);
        at++;
        WF_TRY(merge_column(ctx, list, name, length, &at, tables, count));
    }
    return WF_OK;
}

/* --- joining ---------------------------------------------------------------------------------- */

static wf_status join_columns(wf_ctx *ctx, wf_table *const *parts, size_t count, size_t own,
                              wf_table *out) {
    const wf_table *first = parts[0];
    const char *target = parts[own]->column[parts[own]->target].name;
    out->label = first->label;
    out->columns = first->columns;
    out->target = wf__table_find(first, target, strlen(target), first->target);
    if (out->target == first->columns)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: there is no column '%s', the label of %s",
                       first->label, target, parts[own]->label);
    out->column = wf_arena_alloc(&out->arena, out->columns * sizeof *out->column);
    out->part = wf_arena_zalloc(&out->arena, count * sizeof *out->part);
    if (out->column == NULL || out->part == NULL) return out_of_memory(ctx, first);
    memcpy(out->column, first->column, out->columns * sizeof *out->column);
    for (size_t p = 0; p < count; p++) {
        out->part[p] = (wf_table_part){out->rows, parts[p]->rows, parts[p]->label};
        out->rows += parts[p]->rows;
    }
    out->n_parts = count;
    return WF_OK;
}

/* Column c of the joined table in part p, checked to be of the same kind. */
static wf_status match_column(wf_ctx *ctx, wf_table *out, size_t c, const wf_table *part,
                              size_t *source) {
    wf_column *column = &out->column[c];
    *source = wf__table_find(part, column->name, strlen(column->name), c);
    if (*source == part->columns)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: there is no column '%s', which %s has; tables prepared together need "
                       "the same columns",
                       part->label, column->name, out->label);
    const wf_column *other = &part->column[*source];
    if (other->declared != column->declared)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: column '%s' is declared otherwise than in %s; tables prepared together "
                       "need the same kinds of columns",
                       part->label, column->name, out->label);
    for (size_t k = 0; k < other->n_levels; k++)
        WF_TRY(declare(ctx, out, column, other->levels[k]));
    return WF_OK;
}

wf_status wf__table_join(wf_ctx *ctx, wf_table *const *parts, size_t count, size_t own,
                         wf_table *out) {
    for (size_t p = 0; p < count; p++)
        if (parts[p]->cells == NULL)
            return wf_fail(ctx, WF_ERR_USAGE, "%s: joint goes with CSV, TSV and ARFF only",
                           parts[p]->label);
    WF_TRY(join_columns(ctx, parts, count, own, out));
    out->own = own;
    out->note = parts[own]->note;
    WF_TRY(wf_alloc(ctx, out->rows * out->columns, sizeof *out->cells, "rows", &out->cells));
    WF_TRY(wf_alloc(ctx, out->rows, sizeof *out->line, "rows", &out->line));
    for (size_t p = 0; p < count; p++) {
        const wf_table *part = parts[p];
        size_t start = out->part[p].first;
        memcpy(out->line + start, part->line, part->rows * sizeof *out->line);
        for (size_t c = 0; c < out->columns; c++) {
            size_t source;
            WF_TRY(match_column(ctx, out, c, part, &source));
            for (size_t r = 0; r < part->rows; r++)
                out->cells[(start + r) * out->columns + c] =
                    part->cells[r * part->columns + source];
        }
    }
    return WF_OK;
}
