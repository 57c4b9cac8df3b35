/* read_arff: Weka's attribute-relation files.
 *
 *   @relation NAME                          ignored
 *   @attribute NAME numeric|real|integer    a number
 *   @attribute NAME {level, 'other level'}  a category; levels keep this order
 *   @attribute NAME string|date ...         may be dropped, but not used
 *   @data                                   then a row a line: 1.5,'other level',? or sparse: {0
 *                                           1.5, 1 'other level'}; what is left out is 0 or the
 *                                           first level
 * Keywords in any case; lines that begin with % are comments; quotes are ' or ", a backslash takes
 * the next character as it is (\n, \r, \t are control characters); a bare ? is missing. Cells are
 * cut in place, as in read_delimited.c. */
#include "data/data_table.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    sparse_cells = 13 << 20
}; /* and half a cell for a byte of the file: 100 MB and four times its size */

typedef struct reader {
    wf_ctx *ctx;
    const char *label;
    char *at, *end;
    size_t line;
    wf_table *table;
    size_t capacity; /* of table->column, which is malloced while it grows */
} reader;

static wf_status fail_here(const reader *in, const char *what) {
    return wf_fail(in->ctx, WF_ERR_INPUT, "%s:%zu: %s", in->label, in->line, what);
}

static wf_status out_of_memory(const reader *in) {
    return wf_fail(in->ctx, WF_ERR_MEMORY, "%s: out of memory", in->label);
}

static bool at_line_end(const reader *in) {
    return in->at == in->end || *in->at == '\n' || *in->at == '\r';
}

/* Whether a tab was among the blanks. */
static bool skip_blanks(reader *in) {
    bool tab = false;
    for (; in->at < in->end && (*in->at == ' ' || *in->at == '\t'); in->at++)
        tab |= *in->at == '\t';
    return tab;
}

static void take_line_end(reader *in) {
    if (in->at == in->end) return;
    if (*in->at++ == '\r' && in->at < in->end && *in->at == '\n') in->at++;
    in->line++;
}

static void skip_line(reader *in) {
    while (!at_line_end(in)) in->at++;
    take_line_end(in);
}

/* Comments and empty lines. */
static void skip_idle_lines(reader *in) {
    for (;;) {
        skip_blanks(in);
        if (in->at == in->end || (*in->at != '%' && !at_line_end(in))) return;
        skip_line(in);
    }
}

/* A token between its first and its last byte, not yet terminated. */
typedef struct token {
    char *start, *end;
    bool quoted;
} token;

static char unescape(char c) {
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    }
    return c;
}

static wf_status take_quoted(reader *in, token *out) {
    char quote = *in->at++, *to = in->at;
    *out = (token){to, to, true};
    while (!at_line_end(in) && *in->at != quote) {
        char c = *in->at++;
        if (c == '\\' && !at_line_end(in)) c = unescape(*in->at++);
        *to++ = c;
    }
    if (at_line_end(in)) return fail_here(in, "a quote is opened and not closed on its line");
    in->at++;
    out->end = to;
    return WF_OK;
}

/* A quoted token, or a bare one up to a byte of `stops` or the line's end, without the spaces round
 * it. */
static wf_status take_token(reader *in, const char *stops, token *out) {
    skip_blanks(in);
    if (in->at < in->end && (*in->at == '\'' || *in->at == '"')) return take_quoted(in, out);
    out->start = in->at;
    out->quoted = false;
    while (!at_line_end(in) && strchr(stops, *in->at) == NULL) in->at++;
    out->end = in->at;
    while (out->end > out->start && out->end[-1] == ' ') out->end--;
    return WF_OK;
}

/* Ends a token's string where the byte after it is still to be read: moves the text one byte back,
 * over the keyword or blank before it. */
static const char *end_in_place(token from) {
    size_t length = (size_t)(from.end - from.start);
    memmove(from.start - 1, from.start, length);
    from.start[length - 1] = 0;
    return from.start - 1;
}

/* --- header ----------------------------------------------------------------------------------- */

static bool take_word(reader *in, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(in->end - in->at) < length || strncasecmp(in->at, word, length) != 0) return false;
    char next = in->at + length < in->end ? in->at[length] : '\n';
    if (strchr(" \t\r\n{,", next) == NULL) return false;
    in->at += length;
    return true;
}

static int compare_levels(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Copies the list into the arena and refuses repeated levels. */
static wf_status keep_levels(reader *in, const char **levels, size_t count, wf_column *column) {
    column->levels = wf_arena_alloc(&in->table->arena, count * sizeof *levels);
    if (column->levels == NULL) return out_of_memory(in);
    memcpy(column->levels, levels, count * sizeof *levels);
    column->n_levels = count;
    qsort(levels, count, sizeof *levels, compare_levels);
    for (size_t k = 1; k < count; k++)
        if (strcmp(levels[k - 1], levels[k]) == 0)
            return wf_fail(in->ctx, WF_ERR_INPUT,
                           "%s:%zu: attribute '%.80s' declares the level '%.80s' twice", in->label,
                           in->line, column->name, levels[k]);
    return WF_OK;
}

/* After the opening brace. The list grows in *levels, malloced even on failure. */
static wf_status take_levels(reader *in, const char ***levels, size_t *count) {
    size_t capacity = 0;
    for (;;) {
        token level;
        WF_TRY(take_token(in, ",}", &level));
        skip_blanks(in);
        bool closes = in->at < in->end && *in->at == '}';
        if (!closes && (in->at == in->end || *in->at != ','))
            return fail_here(in, "the list of levels must be separated by commas and closed by }");
        in->at++;
        if (level.start == level.end && !level.quoted)
            return fail_here(in, "a level is empty; write '' if that is meant");
        if (*count == capacity) {
            capacity = capacity == 0 ? 16 : 2 * capacity;
            void *grown = realloc(*levels, capacity * sizeof **levels);
            if (grown == NULL) return out_of_memory(in);
            *levels = grown;
        }
        *level.end = 0;
        (*levels)[(*count)++] = level.start;
        if (closes) return WF_OK;
    }
}

static wf_status take_type(reader *in, wf_column *column) {
    skip_blanks(in);
    if (take_word(in, "numeric") || take_word(in, "real") || take_word(in, "integer")) {
        column->declared = WF_DECLARED_NUMERIC;
        return WF_OK;
    }
    if (take_word(in, "string") || take_word(in, "date")) {
        column->declared = WF_DECLARED_OTHER;
        while (!at_line_end(in)) in->at++; /* a date's format */
        return WF_OK;
    }
    if (take_word(in, "relational"))
        return fail_here(in, "relational attributes are not supported");
    if (in->at == in->end || *in->at != '{')
        return fail_here(in, "the attribute's type must be numeric, real, integer, string, date "
                             "or a list of levels in braces");
    in->at++;
    column->declared = WF_DECLARED_NOMINAL;
    const char **levels = NULL;
    size_t count = 0;
    wf_status status = take_levels(in, &levels, &count);
    if (status == WF_OK) status = keep_levels(in, levels, count, column);
    free(levels);
    return status;
}

static wf_status take_attribute(reader *in) {
    wf_table *table = in->table;
    if (table->columns == in->capacity) {
        size_t capacity = in->capacity == 0 ? 64 : 2 * in->capacity;
        void *grown = realloc(table->column, capacity * sizeof *table->column);
        if (grown == NULL) return out_of_memory(in);
        table->column = grown;
        in->capacity = capacity;
    }
    wf_column *column = &table->column[table->columns];
    *column = (wf_column){0};
    token name;
    WF_TRY(take_token(in, " \t{", &name));
    if (name.start == name.end) return fail_here(in, "the attribute has no name");
    column->name = end_in_place(name);
    WF_TRY(take_type(in, column));
    skip_blanks(in);
    if (!at_line_end(in) && *in->at != '%') return fail_here(in, "text after the attribute's type");
    skip_line(in);
    table->columns++;
    return WF_OK;
}

/* Up to and with @data. */
static wf_status take_header(reader *in) {
    for (;;) {
        skip_idle_lines(in);
        if (in->at == in->end) return fail_here(in, "the file ends before @data");
        if (take_word(in, "@attribute")) WF_TRY(take_attribute(in));
        else if (take_word(in, "@relation")) skip_line(in);
        else if (take_word(in, "@data")) break;
        else return fail_here(in, "expected @relation, @attribute, @data or a % comment");
    }
    skip_line(in);
    return in->table->columns > 1
               ? WF_OK
               : fail_here(in, "fewer than two attributes; inputs and a label are needed");
}

/* While it grows the column array is malloced; afterwards it belongs to the arena, whatever
 * happened. */
static wf_status settle_columns(reader *in) {
    wf_table *table = in->table;
    size_t bytes = table->columns * sizeof *table->column;
    wf_column *kept = wf_arena_alloc(&table->arena, bytes);
    if (kept != NULL && bytes > 0) memcpy(kept, table->column, bytes);
    free(table->column);
    table->column = kept;
    if (kept != NULL) return WF_OK;
    table->columns = 0;
    return out_of_memory(in);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Ends a token's string. Its stop byte must have been consumed: the NUL may overwrite it. */
static const char *finish_cell(token from) {
    *from.end = 0;
    return !from.quoted && strcmp(from.start, "?") == 0 ? NULL : from.start;
}

static wf_status take_dense_row(reader *in, const char **cells) {
    size_t line = in->line, count = 0, columns = in->table->columns;
    for (bool more = true; more; count++) {
        token cell;
        WF_TRY(take_token(in, ",\t", &cell));
        bool tab = skip_blanks(in);
        more = !at_line_end(in);
        if (more && *in->at == ',') in->at++;
        else if (more && !tab) return fail_here(in, "text after a closing quote");
        if (!more) take_line_end(in);
        if (cell.start == cell.end && !cell.quoted)
            return wf_fail(in->ctx, WF_ERR_INPUT,
                           "%s:%zu: cell %zu is empty; write ? for a missing value", in->label,
                           line, count + 1);
        const char *text = finish_cell(cell);
        if (count < columns) cells[count] = text;
    }
    if (count == columns) return WF_OK;
    return wf_fail(in->ctx, WF_ERR_INPUT, "%s:%zu: %zu cell%s, but there are %zu attributes",
                   in->label, line, count, count == 1 ? "" : "s", columns);
}

static void fill_defaults(const wf_table *table, const char **cells) {
    for (size_t c = 0; c < table->columns; c++) {
        const wf_column *column = &table->column[c];
        cells[c] = column->declared == WF_DECLARED_NOMINAL ? column->levels[0] : "0";
    }
}

/* The attribute's number, counted from 0; they must rise along the row. */
static wf_status take_index(reader *in, size_t next, size_t *out) {
    size_t index = 0, digits = 0;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9' && digits < 9; digits++)
        index = 10 * index + (size_t)(*in->at++ - '0');
    if (digits == 0 || in->at == in->end || (*in->at != ' ' && *in->at != '\t'))
        return fail_here(in, "a sparse row is written {number value, number value, ...}");
    if (index >= in->table->columns)
        return wf_fail(in->ctx, WF_ERR_INPUT,
                       "%s:%zu: attribute number %zu, but they end at %zu (counted from 0)",
                       in->label, in->line, index, in->table->columns - 1);
    if (index < next) return fail_here(in, "the attribute numbers of a sparse row must rise");
    *out = index;
    return WF_OK;
}

/* After the opening brace. */
static wf_status take_sparse_row(reader *in, const char **cells) {
    size_t next = 0;
    fill_defaults(in->table, cells);
    skip_blanks(in);
    bool closed = in->at < in->end && *in->at == '}';
    if (closed) in->at++;
    while (!closed) {
        size_t index = 0;
        token value;
        skip_blanks(in);
        WF_TRY(take_index(in, next, &index));
        WF_TRY(take_token(in, ",}", &value));
        skip_blanks(in);
        if (at_line_end(in) || (*in->at != ',' && *in->at != '}'))
            return fail_here(in, "a sparse row is separated by commas and closed by }");
        if (value.start == value.end && !value.quoted)
            return fail_here(in, "an attribute number without a value");
        closed = *in->at++ == '}';
        cells[index] = finish_cell(value);
        next = index + 1;
    }
    skip_blanks(in);
    if (!at_line_end(in)) return fail_here(in, "text after the closing brace of a sparse row");
    take_line_end(in);
    return WF_OK;
}

/* Sparse rows are short and become whole ones: they are counted before memory is taken for them. */
static wf_status check_sparse(const reader *in) {
    size_t rows = 0, size = (size_t)(in->end - in->table->text);
    for (const char *at = in->at; at < in->end; at++)
        rows += *at == '{' && (at == in->at || at[-1] == '\n' || at[-1] == '\r');
    if (rows <= (sparse_cells + size / 2) / in->table->columns) return WF_OK;
    return wf_fail(in->ctx, WF_ERR_INPUT,
                   "%s: %zu sparse rows of %zu attributes are too many to be kept as a table; drop "
                   "attributes or rows",
                   in->label, rows, in->table->columns);
}

static wf_status take_rows(reader *in) {
    WF_TRY(check_sparse(in));
    for (skip_idle_lines(in); in->at < in->end; skip_idle_lines(in)) {
        const char **cells;
        WF_TRY(wf__table_add_row(in->ctx, in->table, in->line, &cells));
        if (*in->at == '{') {
            in->at++;
            WF_TRY(take_sparse_row(in, cells));
        } else WF_TRY(take_dense_row(in, cells));
    }
    return in->table->rows > 0 ? WF_OK : fail_here(in, "no rows after @data");
}

/* The first line may be a comment that goes along with the table. */
static wf_status take_note(reader *in) {
    size_t mark = sizeof WF_NOTE_MARK - 1;
    if ((size_t)(in->end - in->at) < mark || memcmp(in->at, WF_NOTE_MARK, mark) != 0) return WF_OK;
    const char *start = in->at + mark;
    size_t length = strcspn(start, "\r\n");
    in->table->note =
        wf__arena_format(&in->table->arena, "%.*s", (int)(length < 1000 ? length : 1000), start);
    return in->table->note != NULL ? WF_OK : out_of_memory(in);
}

wf_status wf__table_from_arff(wf_ctx *ctx, const char *label, char *text, size_t size,
                              wf_table *out) {
    out->label = label;
    out->text = text;
    WF_TRY(wf__check_text(ctx, label, text, size));
    reader in = {ctx, label, text, text + size, 1, out, 0};
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) in.at += 3;
    WF_TRY(take_note(&in));
    wf_status status = take_header(&in), settled = settle_columns(&in);
    WF_TRY(status);
    WF_TRY(settled);
    out->target = out->columns - 1;
    WF_TRY(wf__table_check_names(ctx, out));
    return take_rows(&in);
}
