/* read_delimited: CSV and TSV, cut in place.
 *
 * The first line names the columns. A cell may stand in double quotes; then "" is one quote, and
 * separators and line ends are part of it. Spaces round a cell are not. An empty cell, or a bare ?,
 * is missing. Lines end with LF, CRLF or CR; empty lines are skipped. Cells become NUL-terminated
 * strings within the file's bytes: unquoting only shortens, and the byte after a cell has always
 * been read before it is overwritten. */
#include "data/data_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cutter {
    wf_ctx *ctx;
    const char *label;
    char *at, *end;
    size_t line;
    char delimiter;
} cutter;

typedef enum ending { ENDS_CELL, ENDS_ROW, ENDS_FILE } ending;

static bool is_blank(const cutter *cut, char c) {
    return c == ' ' || (c == '\t' && cut->delimiter != '\t');
}

static void skip_blanks(cutter *cut) {
    while (cut->at < cut->end && is_blank(cut, *cut->at)) cut->at++;
}

/* Consumes what stands after a cell: separator, line end or the file's end. */
static bool take_ending(cutter *cut, ending *how) {
    *how = ENDS_FILE;
    if (cut->at == cut->end) return true;
    char c = *cut->at;
    *how = c == cut->delimiter ? ENDS_CELL : ENDS_ROW;
    if (c != cut->delimiter && c != '\n' && c != '\r') return false;
    cut->at++;
    if (c == '\r' && cut->at < cut->end && *cut->at == '\n') cut->at++;
    if (*how == ENDS_ROW) cut->line++;
    return true;
}

static wf_status cut_quoted(cutter *cut, char **cell, ending *how) {
    size_t opened = cut->line;
    char *to = ++cut->at;
    *cell = to;
    for (;; cut->at++) {
        if (cut->at == cut->end)
            return wf_fail(cut->ctx, WF_ERR_INPUT, "%s:%zu: a quote is opened and never closed",
                           cut->label, opened);
        if (*cut->at == '"') {
            if (cut->at + 1 == cut->end || cut->at[1] != '"') break;
            cut->at++;
        }
        cut->line += *cut->at == '\n';
        *to++ = *cut->at;
    }
    cut->at++;
    skip_blanks(cut);
    if (!take_ending(cut, how))
        return wf_fail(cut->ctx, WF_ERR_INPUT,
                       "%s:%zu: text after a closing quote; a quote within a quoted cell is "
                       "written twice",
                       cut->label, cut->line);
    *to = 0;
    return WF_OK;
}

/* One cell; *cell is NULL when it is missing. */
static wf_status cut_cell(cutter *cut, char **cell, ending *how) {
    skip_blanks(cut);
    if (cut->at < cut->end && *cut->at == '"') {
        WF_TRY(cut_quoted(cut, cell, how));
        if ((*cell)[0] == 0) *cell = NULL;
        return WF_OK;
    }
    *cell = cut->at;
    while (cut->at < cut->end && *cut->at != cut->delimiter && *cut->at != '\n' && *cut->at != '\r')
        cut->at++;
    char *last = cut->at;
    while (last > *cell && is_blank(cut, last[-1])) last--;
    take_ending(cut, how);
    *last = 0;
    if (last == *cell || strcmp(*cell, "?") == 0) *cell = NULL;
    return WF_OK;
}

static bool at_empty_line(const cutter *cut) {
    const char *at = cut->at;
    while (at < cut->end && is_blank(cut, *at)) at++;
    return at == cut->end || *at == '\n' || *at == '\r';
}

static void skip_empty_lines(cutter *cut) {
    while (cut->at < cut->end && at_empty_line(cut)) {
        ending how;
        skip_blanks(cut);
        take_ending(cut, &how);
    }
}

static wf_status check_header(const cutter *cut, const wf_table *table) {
    if (table->columns < 2)
        return wf_fail(cut->ctx, WF_ERR_INPUT,
                       "%s: the header names one column only; is the separator a %s?", cut->label,
                       cut->delimiter == '\t' ? "tab" : "comma");
    size_t numbers = 0;
    const char *broken = NULL; /* a name that is a number, and not whole */
    for (size_t c = 0; c < table->columns; c++) {
        double number;
        if (!wf__parse_number(table->column[c].name, &number)) continue;
        numbers++;
        if (number != floor(number)) broken = table->column[c].name;
    }
    if (numbers == table->columns)
        return wf_fail(cut->ctx, WF_ERR_INPUT,
                       "%s: the first line holds numbers only, but it must name the columns; put "
                       "a header in front",
                       cut->label);
    if (broken != NULL)
        wf_warn(cut->ctx,
                "%s: the first line is taken for the names of the columns, and one is %.20s; if it "
                "is a row of data, put a header in front",
                cut->label, broken);
    return wf__table_check_names(cut->ctx, table);
}

/* The names of the first line, a malloced array even on failure. */
static wf_status cut_names(cutter *cut, char ***names, size_t *count) {
    size_t capacity = 0;
    for (ending how = ENDS_CELL; how == ENDS_CELL; ++*count) {
        if (*count == capacity) {
            capacity = capacity == 0 ? 64 : 2 * capacity;
            void *grown = realloc(*names, capacity * sizeof **names);
            if (grown == NULL)
                return wf_fail(cut->ctx, WF_ERR_MEMORY, "%s: out of memory", cut->label);
            *names = grown;
        }
        WF_TRY(cut_cell(cut, &(*names)[*count], &how));
        if ((*names)[*count] == NULL)
            return wf_fail(cut->ctx, WF_ERR_INPUT,
                           "%s: column %zu has no name; the first line must name every column",
                           cut->label, *count + 1);
    }
    return WF_OK;
}

static wf_status cut_header(cutter *cut, wf_table *table) {
    char **names = NULL;
    size_t count = 0;
    wf_status status = cut_names(cut, &names, &count);
    if (status == WF_OK) {
        table->column = wf_arena_zalloc(&table->arena, count * sizeof *table->column);
        if (table->column == NULL)
            status = wf_fail(cut->ctx, WF_ERR_MEMORY, "%s: out of memory", cut->label);
    }
    if (status == WF_OK) {
        for (size_t c = 0; c < count; c++) table->column[c].name = names[c];
        table->columns = count;
        table->target = count - 1;
        status = check_header(cut, table);
    }
    free(names);
    return status;
}

static wf_status cut_row(cutter *cut, wf_table *table) {
    size_t line = cut->line, count = 0;
    const char **cells;
    WF_TRY(wf__table_add_row(cut->ctx, table, line, &cells));
    for (ending how = ENDS_CELL; how == ENDS_CELL; count++) {
        char *cell;
        WF_TRY(cut_cell(cut, &cell, &how));
        if (count < table->columns) cells[count] = cell;
    }
    if (count != table->columns)
        return wf_fail(cut->ctx, WF_ERR_INPUT,
                       "%s:%zu: %zu cell%s, but the header names %zu columns", cut->label, line,
                       count, count == 1 ? "" : "s", table->columns);
    return WF_OK;
}

wf_status wf__table_from_delimited(wf_ctx *ctx, const char *label, char *text, size_t size,
                                   char delimiter, wf_table *out) {
    out->label = label;
    out->text = text;
    WF_TRY(wf__check_text(ctx, label, text, size));
    cutter cut = {ctx, label, text, text + size, 1, delimiter};
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) cut.at += 3;
    skip_empty_lines(&cut);
    if (cut.at == cut.end) return wf_fail(ctx, WF_ERR_INPUT, "%s: the file is empty", label);
    WF_TRY(cut_header(&cut, out));
    for (skip_empty_lines(&cut); cut.at < cut.end; skip_empty_lines(&cut))
        WF_TRY(cut_row(&cut, out));
    if (out->rows == 0) return wf_fail(ctx, WF_ERR_INPUT, "%s: no rows after the header", label);
    return WF_OK;
}
