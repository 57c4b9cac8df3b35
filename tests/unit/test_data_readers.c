/* The text and IDX readers on texts in memory: what is accepted, what is refused and where. */
#include "wf_test.h"
#include "data/data_table.h"

typedef wf_status table_reader(wf_ctx *, const char *, char *, size_t, wf_table *);

static wf_status csv(wf_ctx *ctx, const char *label, char *text, size_t size, wf_table *out) {
    return wf__table_from_delimited(ctx, label, text, size, ',', out);
}
static wf_status tsv(wf_ctx *ctx, const char *label, char *text, size_t size, wf_table *out) {
    return wf__table_from_delimited(ctx, label, text, size, '\t', out);
}
static table_reader *const arff = wf__table_from_arff;

/* An exact-size copy, so that the address sanitizer sees every read after it. */
static char *copy_bytes(const void *bytes, size_t size) {
    char *copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    copy[size] = 0;
    return copy;
}

static wf_table read_text(wf_ctx *ctx, table_reader *reader, const char *text) {
    wf_table table = {0};
    assert_ok(ctx, reader(ctx, "t", copy_bytes(text, strlen(text)), strlen(text), &table));
    return table;
}

static void refuse_bytes(wf_ctx *ctx, table_reader *reader, const char *text, size_t size,
                         const char *words) {
    wf_table table = {0};
    assert_fails(ctx, reader(ctx, "t", copy_bytes(text, size), size, &table), WF_ERR_INPUT, words);
    wf__table_free(&table);
}

static void refuse(wf_ctx *ctx, table_reader *reader, const char *text, const char *words) {
    refuse_bytes(ctx, reader, text, strlen(text), words);
}

/* `expected` has the cells row by row; NULL is a missing one. */
static void check_cells(const wf_table *table, size_t rows, size_t columns,
                        const char *const *expected) {
    assert_int_equal(table->rows, rows);
    assert_int_equal(table->columns, columns);
    for (size_t i = 0; i < rows * columns; i++) {
        if (expected[i] == NULL) assert_null(table->cells[i]);
        else assert_string_equal(table->cells[i], expected[i]);
    }
}

static void csv_cells(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table = read_text(ctx, csv,
                               "\xEF\xBB\xBF\"a \"\"x\"\"\", b ,c\r\n"
                               "1,,\"two\nlines, \"\"quoted\"\"\"\r\n"
                               "\r\n"
                               " 2.5 , ? ,\"?\"\n"
                               "\"\" ,5'10\", x y \r"
                               "7,8,9");
    assert_string_equal(table.column[0].name, "a \"x\"");
    assert_string_equal(table.column[1].name, "b");
    assert_string_equal(table.column[2].name, "c");
    assert_int_equal(table.target, 2);
    const char *cells[] = {
        "1", NULL, "two\nlines, \"quoted\"", "2.5", NULL, "?", NULL, "5'10\"", "x y", "7",
        "8", "9"};
    check_cells(&table, 4, 3, cells);
    const uint32_t lines[] = {2, 5, 6, 7};
    for (int r = 0; r < 4; r++) assert_int_equal(table.line[r], lines[r]);
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

static void tsv_cells(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table = read_text(ctx, tsv, "a\tb b\tc\n\t\t\n\"x\ty\"\t1,5\t z \n");
    const char *cells[] = {NULL, NULL, NULL, "x\ty", "1,5", "z"};
    check_cells(&table, 2, 3, cells);
    assert_string_equal(table.column[1].name, "b b");
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

static void csv_refusals(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    refuse(ctx, csv, "", "t: the file is empty");
    refuse(ctx, csv, "\n \r\n\n", "the file is empty");
    refuse(ctx, csv, "a,b\n", "no rows after the header");
    refuse(ctx, csv, "a\n1\n", "one column only; is the separator a comma");
    refuse(ctx, tsv, "a,b\n1,2\n", "one column only; is the separator a tab");
    refuse(ctx, csv, "1,2\n3,4\n", "it must name the columns");
    refuse(ctx, csv, "a,,c\n1,2,3\n", "column 2 has no name");
    refuse(ctx, csv, "a,b,a\n1,2,3\n", "two columns are named 'a'");
    refuse(ctx, csv, "a,b\n1,2\n3\n", "t:3: 1 cell, but the header names 2 columns");
    refuse(ctx, csv, "a,b\n1,2\n\n3,4,5\n", "t:4: 3 cells, but the header names 2 columns");
    refuse(ctx, csv, "a,b\n1,2,\n", "t:2: 3 cells");
    refuse(ctx, csv, "a,b\n1,\"x\ny\n", "t:2: a quote is opened and never closed");
    refuse(ctx, csv, "a,b\n1,\"", "t:2: a quote is opened");
    refuse(ctx, csv, "a,b\n\"x\ny\"z,1\n", "t:3: text after a closing quote");
    refuse(ctx, csv, "a,b\n1,\xff\n", "t:2: a byte that is not UTF-8");
    refuse_bytes(ctx, csv, "a,b\n1,\0002\n", 9, "t:2: a NUL byte");
    wf_ctx_free(ctx);
}

static void arff_cells(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table = read_text(ctx, arff,
                               "% comment\n"
                               "@RELATION 'a relation' ignored\n"
                               "  @Attribute 'first one' REAL % why\r\n"
                               "@attribute \"se'cond\" {low, 'mid dle' ,\"hi\\\"gh\",'it\\'s'}\n"
                               "@attribute third{a,b c}\n"
                               "@attribute n Integer\n"
                               "@attribute s STRING\n"
                               "@attribute d date \"yyyy-MM-dd\"\n"
                               "@attribute class\t{x, y}\n"
                               "@DATA\n"
                               "\n"
                               "% rows\n"
                               "1.5,'mid dle', b c ,?,\"two words\\tand tab\",'2020-01-01',x\n"
                               "?,\"hi\\\"gh\",'?',-3e2,? , d2, y\r\n"
                               "{}\n"
                               "{ 0 7, 1 'it\\'s', 6 y }\n"
                               "4\tlow\ta\t5\tt\td\tx");
    assert_int_equal(table.columns, 7);
    assert_int_equal(table.target, 6);
    assert_string_equal(table.column[0].name, "first one");
    assert_string_equal(table.column[1].name, "se'cond");
    assert_string_equal(table.column[2].name, "third");
    assert_int_equal(table.column[0].declared, WF_DECLARED_NUMERIC);
    assert_int_equal(table.column[3].declared, WF_DECLARED_NUMERIC);
    assert_int_equal(table.column[4].declared, WF_DECLARED_OTHER);
    assert_int_equal(table.column[5].declared, WF_DECLARED_OTHER);
    assert_int_equal(table.column[1].n_levels, 4);
    const char *levels[] = {"low", "mid dle", "hi\"gh", "it's"};
    for (int k = 0; k < 4; k++) assert_string_equal(table.column[1].levels[k], levels[k]);
    const char *cells[] = {"1.5",        "mid dle", "b c",  NULL,     "two words\tand tab",
                           "2020-01-01", "x",       NULL,   "hi\"gh", "?",
                           "-3e2",       NULL,      "d2",   "y",      "0",
                           "low",        "a",       "0",    "0",      "0",
                           "x",          "7",       "it's", "a",      "0",
                           "0",          "0",       "y",    "4",      "low",
                           "a",          "5",       "t",    "d",      "x"};
    check_cells(&table, 5, 7, cells);
    assert_int_equal(table.line[0], 13);
    assert_int_equal(table.line[4], 17);
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

static void arff_refusals(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
#define TWO "@attribute a real\n@attribute b {x,y}\n"
    refuse(ctx, arff, "", "t:1: the file ends before @data");
    refuse(ctx, arff, TWO, "the file ends before @data");
    refuse(ctx, arff, "@data\n1,2\n", "fewer than two attributes");
    refuse(ctx, arff, TWO "@data\n% nothing\n", "no rows after @data");
    refuse(ctx, arff, "hello\n", "t:1: expected @relation");
    refuse(ctx, arff, "@attributes a real\n", "t:1: expected @relation");
    refuse(ctx, arff, "@attribute\n", "t:1: the attribute has no name");
    refuse(ctx, arff, "@attribute a\n", "t:1: the attribute's type must be");
    refuse(ctx, arff, "@attribute a complex\n", "t:1: the attribute's type must be");
    refuse(ctx, arff, "@attribute a relational\n", "relational attributes are not supported");
    refuse(ctx, arff, "@attribute a real 5\n", "text after the attribute's type");
    refuse(ctx, arff, "@attribute 'a real\n", "t:1: a quote is opened and not closed");
    refuse(ctx, arff, "@attribute a {x,y\n", "closed by }");
    refuse(ctx, arff, "@attribute a {x,,y}\n", "a level is empty");
    refuse(ctx, arff, "@attribute a {}\n", "a level is empty");
    refuse(ctx, arff, "@attribute a {x,'y' z}\n", "separated by commas");
    refuse(ctx, arff, "@attribute a {x,y,x}\n", "declares the level 'x' twice");
    refuse(ctx, arff, TWO "@attribute a real\n@data\n", "two columns are named 'a'");
    refuse(ctx, arff, TWO "@data\n1,x\n2\n", "t:5: 1 cell, but there are 2 attributes");
    refuse(ctx, arff, TWO "@data\n1,x,3\n", "t:4: 3 cells, but there are 2 attributes");
    refuse(ctx, arff, TWO "@data\n1,\n", "t:4: cell 2 is empty");
    refuse(ctx, arff, TWO "@data\n,x\n", "t:4: cell 1 is empty");
    refuse(ctx, arff, TWO "@data\n1,'x\n", "t:4: a quote is opened");
    refuse(ctx, arff, TWO "@data\n'1'x,x\n", "t:4: text after a closing quote");
    refuse(ctx, arff, TWO "@data\n{0 1, 2 x}\n", "attribute number 2, but they end at 1");
    refuse(ctx, arff, TWO "@data\n{1 x, 0 1}\n", "must rise");
    refuse(ctx, arff, TWO "@data\n{0 1, 0 2}\n", "must rise");
    refuse(ctx, arff, TWO "@data\n{0 1, 1 x\n", "closed by }");
    refuse(ctx, arff, TWO "@data\n{0 1, 1}\n", "{number value");
    refuse(ctx, arff, TWO "@data\n{0 1, 1 }\n", "without a value");
    refuse(ctx, arff, TWO "@data\n{a 1}\n", "{number value");
    refuse(ctx, arff, TWO "@data\n{99999999999 1}\n", "{number value");
    refuse(ctx, arff, TWO "@data\n{0 1} 5\n", "text after the closing brace");
    refuse(ctx, arff, TWO "@data\n{", "{number value");
    refuse(ctx, arff, TWO "@data\n1,\xc3\x28\n", "t:4: a byte that is not UTF-8");
#undef TWO
    wf_ctx_free(ctx);
}

static void numbers_are_strict(void **state) {
    (void)state;
    static const char *const good[] = {"0", "-1.5", " 2 ", "+3e-2", ".5", "5.", "1E3"};
    static const double values[] = {0, -1.5, 2, 0.03, 0.5, 5, 1000};
    static const char *const bad[] = {"",      " ",    "x",   "1x",  "0x10", "inf",  "nan",
                                      "1e999", "-inf", "1 2", "1,5", "--1",  "e5",   "+",
                                      ".",     "1e",   "1_0", "１",  "NA",   "1e5x", "$5"};
    double value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(wf__parse_number(good[i], &value));
        assert_close(value, values[i], 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (wf__parse_number(bad[i], &value)) fail_msg("'%s' was read as %g", bad[i], value);
}

static void check_levels(wf_ctx *ctx, const wf_table *table, size_t column, size_t count,
                         const char *const *expected) {
    wf_arena arena = {0};
    const char **levels;
    size_t n;
    assert_ok(ctx, wf__table_levels(ctx, table, column, NULL, &arena, &levels, &n));
    assert_int_equal(n, count);
    for (size_t k = 0; k < count; k++) assert_string_equal(levels[k], expected[k]);
    wf_arena_free(&arena);
}

static void levels_have_their_order(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table = read_text(ctx, csv, "n,m,t\n10,10,b\n9,?,a\n-1,9,B\n9.0,x,?\n10,10,b\n");
    check_levels(ctx, &table, 0, 4, (const char *[]){"-1", "9", "9.0", "10"});
    check_levels(ctx, &table, 1, 3, (const char *[]){"10", "9", "x"});
    check_levels(ctx, &table, 2, 3, (const char *[]){"B", "a", "b"});
    wf__table_free(&table);
    table = read_text(ctx, arff,
                      "@attribute a {q,z,never,b}\n@attribute c {1}\n@data\nb,1\n?,1\nz,1\nq,1\n");
    check_levels(ctx, &table, 0, 3, (const char *[]){"q", "z", "b"});
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

/* --- IDX -------------------------------------------------------------------------------------- */

static wf_status read_pair(wf_ctx *ctx, const uint8_t *images, size_t images_size,
                           const uint8_t *labels, size_t labels_size, wf_table *out) {
    *out = (wf_table){0};
    char *label_copy = copy_bytes(labels, labels_size);
    wf_status status = wf__table_from_idx(ctx, "x", copy_bytes(images, images_size), images_size,
                                          "y", label_copy, labels_size, out);
    free(label_copy);
    return status;
}

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
                                 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 3};

static void idx_pixels(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table;
    assert_ok(ctx, read_pair(ctx, images, sizeof images, labels, sizeof labels, &table));
    assert_int_equal(table.rows, 2);
    assert_int_equal(table.columns, 7);
    assert_string_equal(table.column[5].name, "pixel 1,2");
    double column[2];
    for (size_t c = 0; c < 6; c++) {
        assert_ok(ctx, wf__table_numbers(ctx, &table, c, column));
        assert_close(column[0], (double)c + 1, 0);
        assert_close(column[1], c == 5 ? 255 : (double)c + 7, 0);
    }
    check_levels(ctx, &table, 6, 2, (const char *[]){"3", "7"});
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

static void idx_refusals(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_table table;
    static const struct {
        size_t at;
        uint8_t byte;
        const char *words;
    } changes[] = {
        {0, 1, "x: not an IDX file"},
        {1, 1, "x: not an IDX file"},
        {2, 0x0D, "of 32-bit floats (type 0x0d)"},
        {2, 0x99, "of no known type"},
        {3, 0, "0 dimensions"},
        {3, 9, "9 dimensions"},
        {7, 0, "dimension 1 is 0"},
        {15, 0, "dimension 3 is 0"},
        {15, 4, "the file has 12; it is cut off"},
        {15, 2, "longer than it should be"},
        {4, 0xff, "it is cut off"},
        {8, 0xff, "bytes an example"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t changed[sizeof images];
        memcpy(changed, images, sizeof images);
        changed[changes[i].at] = changes[i].byte;
        assert_fails(ctx, read_pair(ctx, changed, sizeof changed, labels, sizeof labels, &table),
                     WF_ERR_INPUT, changes[i].words);
        wf__table_free(&table);
    }
    for (size_t size = 0; size < sizeof images; size++) { /* every truncation */
        assert_int_equal(read_pair(ctx, images, size, labels, sizeof labels, &table), WF_ERR_INPUT);
        wf__table_free(&table);
    }
    assert_fails(ctx, read_pair(ctx, labels, sizeof labels, labels, sizeof labels, &table),
                 WF_ERR_INPUT, "x: one dimension, so these are labels");
    wf__table_free(&table);
    assert_fails(ctx, read_pair(ctx, images, sizeof images, images, sizeof images, &table),
                 WF_ERR_INPUT, "y: 3 dimensions; labels have one");
    wf__table_free(&table);
    const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 3, 1};
    assert_fails(ctx, read_pair(ctx, images, sizeof images, three, sizeof three, &table),
                 WF_ERR_INPUT, "x has 2 examples, but y has 3 labels");
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_cells),
        cmocka_unit_test(tsv_cells),
        cmocka_unit_test(csv_refusals),
        cmocka_unit_test(arff_cells),
        cmocka_unit_test(arff_refusals),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(levels_have_their_order),
        cmocka_unit_test(idx_pixels),
        cmocka_unit_test(idx_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
