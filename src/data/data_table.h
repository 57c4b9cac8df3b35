/* data_table: a table as it was read or generated, before anything is fitted.
 *
 * A table has `rows` rows and `columns` columns; column `target` holds the labels. A column is
 * stored in one of four ways:
 *   text    cells (rows, columns) of the table, row-major; NULL is a missing cell
 *   texts   rows texts of its own                  (labels of NumPy files)
 *   values  rows doubles, NaN is missing           (built-in sets, NumPy files)
 *   bytes   one byte every `stride`, none missing  (IDX, CIFAR)
 * What a text cell means is decided when a column is used: wf__table_numbers reads numbers,
 * wf__table_levels and wf__table_codes read categories. A text cell points into the file's bytes,
 * which the reader cuts up in place. */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "weft/data.h"

typedef enum wf_declared {
    WF_DECLARED_NOTHING, /* CSV, TSV: numbers unless the caller says categories */
    WF_DECLARED_NUMERIC,
    WF_DECLARED_NOMINAL,
    WF_DECLARED_OTHER /* string, date, relational: only to be dropped */
} wf_declared;

typedef struct wf_column {
    const char *name;
    wf_declared declared;
    const char **levels; /* declared levels, in declared order; NULL unless nominal */
    size_t n_levels;
    const char **texts;   /* NULL unless stored so */
    const double *values; /* NULL unless stored so */
    const uint8_t *bytes; /* NULL unless stored so */
    size_t stride;
} wf_column;

/* Rows of one file in a table joined from several. */
typedef struct wf_table_part {
    size_t first, rows;
    const char *label;
} wf_table_part;

typedef struct wf_table {
    const char *label; /* for sentences: the path, or the built-in's name */
    size_t rows, columns, target;
    wf_column *column;
    const char **cells;  /* (rows, columns); NULL when no column is text */
    uint32_t *line;      /* [rows] of the file; NULL when no column is text */
    size_t capacity;     /* rows that fit before cells and line must grow */
    char *text;          /* the file's bytes */
    wf_table_part *part; /* joined tables: where each file's rows are; NULL otherwise */
    size_t n_parts, own; /* joined tables: how many, and which the data set is about */
    const char *note;    /* of the file's first line; NULL: none */
    int image[3];   /* channels, height, width of the inputs in their order; zeros: no images */
    wf_arena arena; /* names, levels and stored columns */
} wf_table;

/* How an ARFF file's first line begins when it carries a note for every user of the table. */
#define WF_NOTE_MARK "% weft note: "

/* The largest number of cells a text table may have. */
#define WF_TABLE_MAX_CELLS ((size_t)1 << 28)

void wf__table_free(wf_table *table); /* a zeroed table is fine */

/* Index of the column with this name, or table->columns. Looks first at column `hint`, then at
 * those after it, then at the others. */
size_t wf__table_find(const wf_table *table, const char *name, size_t length, size_t hint);

/* WF_ERR_INTERRUPTED, with a sentence, when the program was told to stop. For loops over rows: it
 * looks at every 4096th. */
static inline wf_status wf__data_look(wf_ctx *ctx, size_t row, const char *label) {
    if (row % 4096 != 0 || !wf_interrupted(ctx)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", label);
}

/* One more text row, from line `line` of the file; *cells (columns of them) are missing until
 * set. */
wf_status wf__table_add_row(wf_ctx *ctx, wf_table *table, size_t line, const char ***cells);
/* Refuses text that is not UTF-8 or holds a NUL byte, naming the line. */
wf_status wf__check_text(wf_ctx *ctx, const char *label, const char *text, size_t size);
/* Refuses two columns of one name. */
wf_status wf__table_check_names(wf_ctx *ctx, const wf_table *table);

/* The column's numbers, NaN where missing. A cell that is no number fails with its place. out:
 * [rows]. */
wf_status wf__table_numbers(wf_ctx *ctx, const wf_table *table, size_t column, double *out);

/* The levels that occur in the column of `table` or of `more` (which may be NULL; its column is
 * found by name): declared order if declared, else by value if all are numbers, else by bytes.
 * Allocated in `arena`. */
wf_status wf__table_levels(wf_ctx *ctx, const wf_table *table, size_t column, const wf_table *more,
                           wf_arena *arena, const char ***levels, size_t *count);

/* Each row's place in `levels`, -1 where missing. A level that is not among them fails with its
 * place. out: [rows]. */
wf_status wf__table_codes(wf_ctx *ctx, const wf_table *table, size_t column,
                          const char *const *levels, size_t count, int32_t *out);

/* "file.csv:17: column 3 (age)" */
void wf__table_place(const wf_table *table, size_t row, size_t column, char *out, size_t size);
/* The names of all columns with commas between, cut with "..." when they do not fit. */
void wf__table_names(const wf_table *table, char *out, size_t size);

/* A number in C syntax without hexadecimal, infinity or NaN, whatever the locale; spaces around it
 * allowed. */
bool wf__parse_number(const char *text, double *out);

/* A string made in an arena; NULL when out of memory. */
char *wf__arena_format(wf_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Readers into a zeroed table. `text` (size bytes and a NUL after them) becomes the table's;
 * `label` is borrowed and must outlive it. On failure *out is to be freed too. */
wf_status wf__table_from_delimited(wf_ctx *ctx, const char *label, char *text, size_t size,
                                   char delimiter, wf_table *out);
wf_status wf__table_from_arff(wf_ctx *ctx, const char *label, char *text, size_t size,
                              wf_table *out);
/* images and labels: files of unsigned bytes; labels_label names the second in sentences. `labels`
 * is borrowed. */
wf_status wf__table_from_idx(wf_ctx *ctx, const char *label, char *images, size_t images_size,
                             const char *labels_label, const char *labels, size_t labels_size,
                             wf_table *out);

/* Is more there than the header promises, or is there no good header? For wf_read_until. */
bool wf__idx_is_over(const char *bytes, size_t size, size_t fresh);

/* Arrays of one .npz file, whose bytes are borrowed. target: the array of labels; NULL: found by
 * the usual names. Where the file has a test part it fills *test, unless that is NULL. On failure
 * both tables are to be freed too. */
wf_status wf__table_from_npz(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                             const char *target, wf_table *out, wf_table *test);

/* One batch of CIFAR-10 (classes 10) or CIFAR-100; target: "fine", "coarse" or NULL. */
wf_status wf__table_from_cifar(wf_ctx *ctx, const char *label, char *bytes, size_t size,
                               int classes, const char *target, wf_table *out);
/* All batches of an archive, which is borrowed, or of a folder. On failure both tables are to be
 * freed too. */
wf_status wf__cifar_from_tar(wf_ctx *ctx, const char *label, const char *bytes, size_t size,
                             int classes, const char *target, wf_table *train, wf_table *test);
wf_status wf__cifar_from_folder(wf_ctx *ctx, const char *path, int classes, const char *target,
                                wf_table *train, wf_table *test);

/* Finds, reads and parses one file (with its IDX labels, or NULL) as desc's root and format say. A
 * folder or archive that brings its own test part fills *test; NULL: such a one is refused. On
 * failure both tables are to be freed too. */
wf_status wf__table_load(wf_ctx *ctx, const wf_data_desc *desc, const char *path,
                         const char *labels, wf_table *out, wf_table *test);

/* Built-in sets: name is one of wf_data_builtin(). rows 0 and negative noise: the set's
 * defaults. */
wf_status wf__table_builtin(wf_ctx *ctx, const char *name, uint64_t seed, size_t rows, double noise,
                            wf_table *out);
/* Draws digit `digit` for row `row`: 64 values in [0, 1], row-major from the top left. */
void wf__draw_digit(uint64_t seed, uint32_t row, int digit, double noise, double pixel[64]);
