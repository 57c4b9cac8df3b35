/* wf_dataset_open on files: preparation against values worked out by hand, refusals, separate test
 * files, frozen preparations. */
#include "folder_fixture.h"
#include "data/prepare.h"
#include "weft/rng.h"

#include <unistd.h>
#include <zlib.h>

static char warning[1024];

static void keep_warning(void *user, const char *sentence) {
    (void)user;
    snprintf(warning, sizeof warning, "%s", sentence);
}

static wf_ctx *warning_ctx(void) {
    wf_ctx *ctx;
    wf_ctx_desc desc = {.threads = 1, .warn = keep_warning};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    warning[0] = 0;
    return ctx;
}

static void write_file(const char *name, const char *text, bool gzip) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (gzip) {
        gzFile file = gzopen(path, "wb");
        assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), (int)strlen(text));
        gzclose(file);
        return;
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static wf_data_desc describe(const char *path) {
    wf_data_desc desc = wf_data_desc_default();
    desc.path = path;
    desc.root = folder;
    return desc;
}

static void refuse(wf_ctx *ctx, const char *name, const char *text, const wf_data_desc *with,
                   const char *words) {
    wf_data_desc desc = *with;
    wf_dataset *data;
    desc.path = name;
    desc.root = folder;
    write_file(name, text, false);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT, words);
    assert_null(data);
}

/* The separate test file fixes which rows are which, so every number follows by hand: age 1 2 3 ?
 * 10 -> median 2.5, imputed 1 2 3 2.5 10: mean 3.7, variance 10.36; colour: red and blue occur
 * twice each in the training part, blue stands first; green occurs in the test part alone and is a
 * level; the constant column keeps deviation 1. */
static const char train_csv[] = "age,colour,same,dropped,class\n"
                                "1,red,7,x,b\n"
                                "2,blue,7,x,a\n"
                                "3,red,7,x,b\n"
                                "?,blue,7,x,a\n"
                                "10,,7,x,c\n";
static const char test_csv[] = "class,age,extra,colour,same\n"
                               "a,?,1,green,8\n"
                               "c,4.7,1,,7\n";

static void preparation_by_hand(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    write_file("train.csv", train_csv, false);
    write_file("test.csv", test_csv, false);
    wf_data_desc desc = describe("train.csv");
    desc.test_path = "test.csv";
    desc.categorical = " colour ";
    desc.drop = "dropped";
    desc.target = "class";
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_non_null(strstr(warning, "1 of 3 columns are constant"));
    assert_non_null(strstr(warning, "'same'"));
    assert_string_equal(data->name, "train");
    assert_int_equal(data->inputs, 5);
    assert_int_equal(data->classes, 3);
    assert_int_equal(data->n_train, 5);
    assert_int_equal(data->n_test, 2);
    const char *inputs[] = {"age", "colour=blue", "colour=green", "colour=red", "same"};
    for (int i = 0; i < 5; i++) assert_string_equal(data->input_names[i], inputs[i]);
    const char *classes[] = {"a", "b", "c"};
    for (int k = 0; k < 3; k++) assert_string_equal(data->class_names[k], classes[k]);
    const double age[] = {1, 2, 3, 2.5, 10, 2.5, 4.7};
    const int colour[] = {2, 0, 2, 0, 0, 1, 0}, label[] = {1, 0, 1, 0, 2, 0, 2};
    for (size_t r = 0; r < 7; r++) {
        const float *x = r < 5 ? data->x_train + r * 5 : data->x_test + (r - 5) * 5;
        assert_close(x[0], (age[r] - 3.7) / sqrt(10.36), 1e-6);
        for (int k = 0; k < 3; k++) assert_close(x[1 + k], k == colour[r], 0);
        assert_close(x[4], r == 5 ? 1 : 0, 0);
        assert_int_equal(r < 5 ? data->y_train[r] : data->y_test[r - 5], label[r]);
    }
    wf_dataset_free(data);
    wf_ctx_free(ctx);
}

static void frozen_preparation_applies_to_other_tables(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    write_file("train.csv", train_csv, false);
    write_file("test.csv", test_csv, false);
    wf_data_desc desc = describe("train.csv");
    desc.test_path = "test.csv";
    desc.categorical = "colour";
    desc.drop = "dropped";
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    wf_table table = {0};
    float *x;
    int32_t *y;
    size_t inputs;
    assert_ok(ctx, wf__table_load(ctx, &desc, "test.csv", NULL, &table, NULL));
    assert_ok(ctx, wf__prepare_apply(ctx, data->preparation, &table, &x, &y, &inputs));
    assert_int_equal(inputs, 5);
    assert_memory_equal(x, data->x_test, 10 * sizeof *x);
    assert_memory_equal(y, data->y_test, 2 * sizeof *y);
    free(x);
    free(y);
    wf__table_free(&table);
    /* A preparation reads back to the same text. */
    wf_preparation read;
    assert_ok(ctx, wf__preparation_read(ctx, data->preparation, &read));
    char *again = wf__preparation_write(&read);
    assert_string_equal(again, data->preparation);
    free(again);
    wf__preparation_free(&read);

    static const char *const others[][2] = {
        {"class,age,colour\na,1,red\n", "there is no such column"},
        {"class,age,colour,same\na,1,pink,1\n", "others.csv:2: column 3 (colour): 'pink'"},
        {"class,age,colour,same\nd,1,red,1\n", "'d' is not one of its levels (a, b, c)"},
        {"class,age,colour,same\na,1,red,x\n", "'x' is not a number"},
        {"class,age,colour,same\n?,1,red,1\n", "the label is missing"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_file("others.csv", others[i][0], false);
        assert_ok(ctx, wf__table_load(ctx, &desc, "others.csv", NULL, &table, NULL));
        assert_fails(ctx, wf__prepare_apply(ctx, data->preparation, &table, &x, &y, &inputs),
                     WF_ERR_INPUT, others[i][1]);
        wf__table_free(&table);
    }
    wf_dataset_free(data);
    wf_ctx_free(ctx);
}

static void damaged_preparations_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    wf_preparation read;
    assert_fails(ctx, wf__preparation_read(ctx, "{", &read), WF_ERR_INPUT, "not JSON");
#define HEAD "{\"format\":\"weft preparation 1\",\"scale\":\"standard\",\"target\":\"y\","
#define GOOD "\"classes\":[\"a\",\"b\"],\"columns\":[{\"name\":\"x\","
    assert_ok(ctx,
              wf__preparation_read(ctx, HEAD GOOD "\"impute\":0,\"mean\":1,\"std\":2}]}", &read));
    assert_int_equal(read.inputs, 1);
    wf__preparation_free(&read);
    static const char *const bad[] = {
        "[]",
        "{}",
        "{\"format\":\"weft preparation 2\",\"scale\":\"standard\",\"target\":\"y\"," GOOD
        "\"impute\":0,\"mean\":1,\"std\":2}]}",
        "{\"format\":\"weft preparation 1\",\"scale\":\"large\",\"target\":\"y\"," GOOD
        "\"impute\":0,\"mean\":1,\"std\":2}]}",
        HEAD GOOD "\"impute\":0,\"mean\":1,\"std\":0}]}",
        HEAD GOOD "\"impute\":0,\"mean\":1}]}",
        HEAD GOOD "\"impute\":\"0\",\"mean\":1,\"std\":1}]}",
        HEAD GOOD "\"levels\":[],\"impute\":\"r\"}]}",
        HEAD GOOD "\"levels\":[\"r\",5],\"impute\":\"r\"}]}",
        HEAD GOOD "\"levels\":[\"r\"],\"impute\":\"s\"}]}",
        HEAD "\"classes\":[],\"columns\":[]}",
        HEAD "\"classes\":[\"a\"],\"columns\":[]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ctx, wf__preparation_read(ctx, bad[i], &read), WF_ERR_INPUT,
                     "not a \"weft preparation 1\"");
    wf_ctx_free(ctx);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    wf_data_desc plain = wf_data_desc_default(), with = plain;
#define ROWS "1,2,x\n3,4,x\n5,6,y\n7,8,y\n"
    refuse(ctx, "t.csv", "a,b,c\n1,2,x\n3,4,y\n5,6,y\n", &plain, "class 'x' of column 'c' has one");
    refuse(ctx, "t.csv", "a,b,c\n1,2,x\n3,4,x\n", &plain, "one class only, 'x'");
    refuse(ctx, "t.csv", "a,b,c\n1,2,?\n3,4,\n", &plain, "'c' is missing in every row");
    refuse(ctx, "t.csv", "a,b,c\n" ROWS "1,2,?\n", &plain,
           "t.csv:6: column 3 (c): the label is missing");
    refuse(ctx, "t.csv", "a,b,c\n?,2,x\n?,4,x\n?,6,y\n?,8,y\n", &plain,
           "column 'a' is missing in every row");
    refuse(ctx, "t.csv", "a,b,c\n1,2,x\n3,4,x\nred,6,y\n7,8,y\n", &plain,
           "t.csv:4: column 1 (a): 'red' is not a number");
    refuse(ctx, "t.csv", "a,b,c\n1,2,x\n3,4,x\nred,6,y\n7,8,y\n", &plain, "under categorical");
    refuse(ctx, "t.csv", "a,b,c\n1.7e308,2,x\n1.7e308,4,x\n1.6e308,6,y\n1.7e308,8,y\n",
           &(wf_data_desc){.scale = WF_SCALE_STANDARD, .test_fraction = 0.5},
           "t.csv:2: column 1 (a): '1.7e308' is too large; numbers go up to 1e+299");
    refuse(ctx, "t.csv", "a,b,c\n1,2,x\n3,4,x\n1e250,6,y\n7,8,y\n",
           &(wf_data_desc){.format = "auto", .scale = WF_SCALE_NONE, .test_fraction = 0.5},
           "too large for a 32-bit number");
    with.target = "d";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "target names 'd'");
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "the columns are: a, b, c");
    with = plain, with.categorical = "a, bb";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "categorical names 'bb'");
    with = plain, with.drop = "\"a,b\"";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "drop names 'a,b'");
    with = plain, with.drop = "c";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "the label column 'c' is named under drop");
    with = plain, with.drop = "a", with.categorical = "a";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "under categorical and under drop");
    with = plain, with.drop = "a,b";
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "no input column");
    with = plain, with.categorical = "a";
    refuse(ctx, "t.csv", "a,b,c\n?,2,x\n?,4,x\n?,6,y\n?,8,y\n", &with,
           "column 'a' is missing in every row");
    with = plain, with.test_fraction = 0.01;
    refuse(ctx, "t.csv", "a,b,c\n" ROWS, &with, "leaves no test row of 4 rows");
    refuse(ctx, "t.arff",
           "@attribute a string\n@attribute b real\n@attribute c {x,y}\n@data\n" ROWS, &plain,
           "column 'a' is declared as a string");
    refuse(ctx, "t.arff", "@attribute a {1,2}\n@attribute b real\n@attribute c {x,y}\n@data\n" ROWS,
           &plain, "t.arff:6: column 1 (a): '3' is not one of its levels (1)");
    char many[2000] = "a,b\n";
    for (int r = 0; r < 100; r++) snprintf(many + strlen(many), 32, "%d,%d.5\n", r, r);
    refuse(ctx, "t.csv", many, &plain, "regression, which is not supported");
    with = plain, with.categorical = "a", with.target = "b";
    char labelled[4000] = "a,b\n";
    for (int r = 0; r < 101; r++) snprintf(labelled + strlen(labelled), 32, "%d,%d\n", r, r % 2);
    refuse(ctx, "t.csv", labelled, &with, "'a' has 101 levels in 101 rows; is it an identifier");
#undef ROWS
    wf_ctx_free(ctx);
}

/* A string column that is dropped does no harm; a numeric column may be called a category in ARFF
 * too. */
static void dropped_string_columns_are_fine(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    write_file("s.arff",
               "@attribute s string\n@attribute n real\n@attribute c {y,x}\n@data\n"
               "'any thing',10,x\nb,9,x\nc,10,y\nd,9,y\n",
               false);
    wf_data_desc desc = describe("s.arff");
    desc.drop = "s";
    desc.categorical = "n";
    desc.test_fraction = 0.5;
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->inputs, 2);
    assert_string_equal(data->input_names[0], "n=9");
    assert_string_equal(data->input_names[1], "n=10");
    assert_string_equal(data->class_names[0], "y");
    wf_dataset_free(data);
    wf_ctx_free(ctx);
}

static void files_are_found_and_told_apart(void **state) {
    (void)state;
    static const char text[] = "a,b,c\n1,2,x\n3,4,x\n5,6,y\n7,9,y\n";
    wf_ctx *ctx = warning_ctx();
    wf_dataset *data, *packed;
    write_file("p.csv", text, false);
    write_file("q.csv.gz", text, true);
    write_file("r.dat", text, false);
    wf_data_desc desc = describe("p.csv");
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    desc.path = "q.csv.gz";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &packed));
    assert_string_equal(data->fingerprint, packed->fingerprint);
    assert_string_equal(packed->name, "q");
    wf_dataset_free(packed);
    desc.path = "r.dat";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_USAGE,
                 "does not tell the format");
    desc.format = "xls";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_USAGE, "format is 'xls'");
    desc.format = "csv";
    desc.labels = "p.csv";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_USAGE, "IDX only");
    desc.labels = NULL;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &packed));
    wf_dataset_free(packed);
    desc.format = "idx";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_USAGE, "holds no labels");
    desc.labels = "p.csv";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_INPUT, "not an IDX file");
    desc.labels = "none.idx";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_INPUT, "no such file");
    desc = describe("none.csv");
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_INPUT, "none.csv: there is no");
    /* The environment's folder first, then the working folder. */
    char *old = getenv("WEFT_DATA") != NULL ? strdup(getenv("WEFT_DATA")) : NULL;
    char *place = getcwd(NULL, 0);
    desc = describe("p.csv");
    desc.root = NULL;
    setenv("WEFT_DATA", folder, 1);
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &packed));
    assert_string_equal(data->fingerprint, packed->fingerprint);
    wf_dataset_free(packed);
    setenv("WEFT_DATA", "/nowhere", 1);
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &packed), WF_ERR_INPUT, "nor in the working");
    assert_int_equal(chdir(folder), 0);
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &packed));
    wf_dataset_free(packed);
    assert_int_equal(chdir(place), 0);
    if (old != NULL) setenv("WEFT_DATA", old, 1);
    else unsetenv("WEFT_DATA");
    free(old);
    free(place);
    wf_dataset_free(data);
    wf_ctx_free(ctx);
}

/* The median against sorting, over lengths, ties and orders; seen through a one-column table with
 * one missing test value. */
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void medians_agree_with_sorting(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 0);
    for (int n = 2; n < 60; n++) {
        double *values = calloc((size_t)n, sizeof *values);
        uint32_t *rows = calloc((size_t)n, sizeof *rows);
        uint32_t range = n % 3 == 0 ? 3 : 1000;
        for (int i = 0; i < n; i++) {
            values[i] = n % 5 == 0 ? (double)i : (double)wf_rng_below(&rng, range);
            rows[i] = (uint32_t)i;
        }
        wf_column column[2] = {{.name = "v", .values = values}, {.name = "y", .values = values}};
        wf_table table = {.label = "m", .rows = (size_t)n, .columns = 2, .column = column};
        wf_prepared_column prepared = {.name = "v"};
        wf_preparation preparation = {
            .scale = WF_SCALE_STANDARD, .column = &prepared, .columns = 1};
        assert_ok(ctx, wf__prepare_fit(ctx, &preparation, &table, rows, (size_t)n));
        qsort(values, (size_t)n, sizeof *values, ascending);
        assert_close(prepared.impute, (values[(n - 1) / 2] + values[n / 2]) / 2, 0);
        free(values);
        free(rows);
    }
    wf_ctx_free(ctx);
}

/* Files of a size that takes a while to read: 100,000 rows. */
static char *many_rows(const char *header, size_t *size) {
    enum { rows = 100000, longest = 32 };
    char *text = malloc(strlen(header) + (size_t)rows * longest + 1);
    char *at = text + sprintf(text, "%s", header);
    for (int r = 0; r < rows; r++)
        at += sprintf(at, "%d,%s,%d\n", r, r % 3 == 0 ? "red" : "blue", r % 2);
    *size = (size_t)(at - text);
    return text;
}

static void a_stop_ends_the_reading_of_tables(void **state) {
    (void)state;
    static const struct {
        const char *name, *header;
    } files[] = {{"stop.csv", "a,b,class\n"},
                 {"stop.arff", "@relation r\n@attribute a numeric\n@attribute b {red,blue}\n"
                               "@attribute class {0,1}\n@data\n"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        wf_ctx *ctx = warning_ctx();
        wf_dataset *data;
        size_t size;
        char *text = many_rows(files[i].header, &size);
        write_file(files[i].name, text, false);
        free(text);
        wf_data_desc desc = describe(files[i].name);
        if (i == 0) desc.categorical = "b";
        assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
        assert_int_equal(data->inputs, 3);
        assert_string_equal(data->input_names[1], i == 0 ? "b=blue" : "b=red");
        wf_dataset_free(data);
        wf_interrupt(ctx);
        assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INTERRUPTED, files[i].name);
        wf_ctx_free(ctx);
    }
}

/* Each part of the work, with what came before it done: none goes on to its end. */
static void a_stop_ends_each_part_of_the_reading(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    wf_table table = {0};
    size_t size;
    char *text = many_rows("a,b,class\n", &size);
    assert_ok(ctx, wf__table_from_delimited(ctx, "rows.csv", text, size, ',', &table));
    double *numbers = malloc(table.rows * sizeof *numbers);
    int32_t *codes = malloc(table.rows * sizeof *codes);
    const char **levels;
    size_t count;
    wf_arena arena = {0};
    assert_ok(ctx, wf__table_numbers(ctx, &table, 0, numbers));
    assert_true(numbers[99999] == 99999);
    assert_ok(ctx, wf__table_levels(ctx, &table, 0, NULL, &arena, &levels, &count));
    assert_int_equal(count, 100000); /* more than are sorted at once */
    assert_string_equal(levels[99999], "99999");
    assert_ok(ctx, wf__table_levels(ctx, &table, 1, NULL, &arena, &levels, &count));
    assert_int_equal(count, 2);
    assert_ok(ctx, wf__table_codes(ctx, &table, 1, levels, count, codes));
    assert_int_equal(codes[99999], 1);
    wf_interrupt(ctx);
    static const char words[] = "interrupted while reading rows.csv";
    assert_fails(ctx, wf__table_numbers(ctx, &table, 0, numbers), WF_ERR_INTERRUPTED, words);
    assert_fails(ctx, wf__table_levels(ctx, &table, 1, NULL, &arena, &levels, &count),
                 WF_ERR_INTERRUPTED, words);
    assert_fails(ctx, wf__table_codes(ctx, &table, 1, levels, count, codes), WF_ERR_INTERRUPTED,
                 words);
    assert_fails(ctx, wf__check_text(ctx, "rows.csv", "a", 1), WF_ERR_INTERRUPTED, words);
    wf_dataset data = {.name = "rows.csv",
                       .n_train = 1,
                       .inputs = 1,
                       .x_train = &(float){1},
                       .y_train = &(int32_t){0}};
    assert_fails(ctx, wf__dataset_fingerprint(ctx, &data), WF_ERR_INTERRUPTED, words);
    free(codes);
    free(numbers);
    wf_arena_free(&arena);
    wf__table_free(&table);
    wf_ctx_free(ctx);
}

/* Text is checked in pieces of 16 MB, which may end within a character. */
static void text_is_checked_across_pieces(void **state) {
    (void)state;
    wf_ctx *ctx = warning_ctx();
    enum { piece = 1 << 24, size = piece + 100 };
    char *text = malloc(size + 1);
    for (int before = 1; before <= 3; before++) {
        memset(text, 'x', size);
        text[size] = '\0';
        memcpy(text + piece - before, "\xf0\x9f\x98\x80", 4);
        assert_ok(ctx, wf__check_text(ctx, "long.csv", text, size));
        text[piece] = 'x'; /* the character is broken off */
        assert_fails(ctx, wf__check_text(ctx, "long.csv", text, size), WF_ERR_INPUT,
                     "long.csv:1: a byte that is not UTF-8");
    }
    free(text);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preparation_by_hand),
        cmocka_unit_test(frozen_preparation_applies_to_other_tables),
        cmocka_unit_test(damaged_preparations_are_refused),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(dropped_string_columns_are_fine),
        cmocka_unit_test(files_are_found_and_told_apart),
        cmocka_unit_test(medians_agree_with_sorting),
        cmocka_unit_test(a_stop_ends_the_reading_of_tables),
        cmocka_unit_test(a_stop_ends_each_part_of_the_reading),
        cmocka_unit_test(text_is_checked_across_pieces),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
