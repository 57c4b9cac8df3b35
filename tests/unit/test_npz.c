/* NumPy archives: every type that is read, both orders, labels of any kind, what is refused and
 * why. */
#include "torch_writer.h"
#include "ctx_fixture.h"

#include "data/prepare.h"

static void add_array(zip_writer *z, const char *name, const char *header, const void *data,
                      size_t size, bool deflated) {
    bytes file = {0};
    char entry[80];
    put(&file, "\x93NUMPY\x01\x00", 8);
    put_number(&file, strlen(header), 2);
    put_string(&file, header);
    put(&file, data, size);
    snprintf(entry, sizeof entry, "%s.npy", name);
    zip_add(z, entry, file.data, file.n, deflated);
    free(file.data);
}

#define HEADER(type, order, shape)                                                                 \
    "{'descr': '" type "', 'fortran_order': " order ", 'shape': " shape ", }\n"

static const double x23[] = {1, 2, 3, 4, 5, 6};

static wf_status read_npz(zip_writer *z, const char *target, wf_table *out, wf_table *test) {
    bytes file = zip_end(z, false);
    wf_status status = wf__table_from_npz(ctx, "a.npz", file.data, file.n, target, out, test);
    free(file.data);
    return status;
}

static double number(const wf_table *table, size_t row, size_t column) {
    double all[8];
    assert_true(table->rows <= 8);
    assert_ok(ctx, wf__table_numbers(ctx, table, column, all));
    return all[row];
}

/* The same six numbers in every type and order. */
static void types_and_orders(void **state) {
    (void)state;
    static const float f4[] = {1, 2, 3, 4, 5, 6};
    static const uint16_t f2[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
    static const int64_t i8[] = {1, 2, 3, 4, 5, 6};
    static const int16_t i2[] = {1, 2, 3, 4, 5, 6};
    static const uint8_t u1[] = {1, 2, 3, 4, 5, 6};
    static const double columns[] = {1, 4, 2, 5, 3, 6};
    static const int32_t y[] = {7, 9};
    const struct {
        const char *header;
        const void *data;
        size_t size;
    } cases[] = {
        {HEADER("<f8", "False", "(2, 3)"), x23, sizeof x23},
        {HEADER("<f4", "False", "(2, 3)"), f4, sizeof f4},
        {HEADER("<f2", "False", "(2, 3)"), f2, sizeof f2},
        {HEADER("<i8", "False", "(2, 3)"), i8, sizeof i8},
        {HEADER("<i2", "False", "(2, 3)"), i2, sizeof i2},
        {HEADER("|u1", "False", "(2, 3)"), u1, sizeof u1},
        {HEADER("|i1", "False", "(2,3)"), u1, sizeof u1},
        {HEADER("<f8", "True", "(2, 3)"), columns, sizeof columns},
        {HEADER("<f8", "False", "(2, 1, 3)"), x23, sizeof x23},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zip_writer z = {0};
        wf_table table = {0};
        add_array(&z, "X", cases[i].header, cases[i].data, cases[i].size, i % 2 == 1);
        add_array(&z, "y", HEADER("<i4", "False", "(2,)"), y, sizeof y, false);
        assert_ok(ctx, read_npz(&z, NULL, &table, NULL));
        assert_int_equal(table.rows, 2);
        assert_int_equal(table.columns, 4);
        for (size_t r = 0; r < 2; r++) {
            for (size_t c = 0; c < 3; c++) assert_close(number(&table, r, c), x23[3 * r + c], 0);
            assert_close(number(&table, r, 3), y[r], 0);
        }
        assert_string_equal(table.column[3].name, "y");
        assert_int_equal(table.image[2], i == 8 ? 3 : 0);
        wf__table_free(&table);
    }
}

/* Names of classes, a target of another name, fewer rows. */
static void texts_as_labels(void **state) {
    (void)state;
    static const uint32_t utf[4][3] = {
        {'n', 'o', 0}, {'j', 0xe4, 0}, {'n', 'o', 0}, {'j', 0xe4, 0}};
    static const char ascii[4][3] = {"no", "yes", "no", "yes"};
    static const double x[] = {1, 2, 3, 4};
    for (int i = 0; i < 2; i++) {
        zip_writer z = {0};
        wf_table table = {0};
        add_array(&z, "features", HEADER("<f8", "False", "(4, 1)"), x, sizeof x, false);
        if (i == 0) add_array(&z, "kind", HEADER("<U3", "False", "(4,)"), utf, sizeof utf, true);
        else add_array(&z, "kind", HEADER("|S3", "False", "(4,)"), ascii, sizeof ascii, true);
        assert_ok(ctx, read_npz(&z, "kind", &table, NULL));
        wf_data_desc desc = wf_data_desc_default();
        wf_dataset *data;
        desc.name = "texts";
        desc.target = "kind";
        desc.test_fraction = 0.5;
        assert_ok(ctx, wf__dataset_from_tables(ctx, &desc, &table, NULL, &data));
        assert_int_equal(data->classes, 2);
        assert_string_equal(data->class_names[0], i == 0 ? "j\xc3\xa4" : "no");
        wf_dataset_free(data);
        desc.classes = i == 0 ? "no, j\xc3\xa4" : "yes,no"; /* the other way round */
        assert_ok(ctx, wf__dataset_from_tables(ctx, &desc, &table, NULL, &data));
        assert_string_equal(data->class_names[0], i == 0 ? "no" : "yes");
        wf_dataset_free(data);
        desc.classes = "no";
        assert_fails(ctx, wf__dataset_from_tables(ctx, &desc, &table, NULL, &data), WF_ERR_INPUT,
                     "1 of the 2 classes");
        desc.classes = "no,maybe";
        assert_fails(ctx, wf__dataset_from_tables(ctx, &desc, &table, NULL, &data), WF_ERR_INPUT,
                     "'maybe', which does not occur");
        wf__table_free(&table);
    }
}

static void test_part(void **state) {
    (void)state;
    static const uint8_t x[] = {0, 255, 3, 4}, y[] = {0, 1};
    zip_writer z = {0};
    wf_table table = {0}, test = {0};
    add_array(&z, "x_train", HEADER("|u1", "False", "(2, 2)"), x, 4, false);
    add_array(&z, "y_train", HEADER("|u1", "False", "(2,)"), y, 2, false);
    add_array(&z, "x_test", HEADER("|u1", "False", "(1, 2)"), x + 2, 2, false);
    add_array(&z, "y_test", HEADER("|u1", "False", "(1,)"), y + 1, 1, false);
    assert_ok(ctx, read_npz(&z, NULL, &table, &test));
    assert_int_equal(test.rows, 1);
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "parts";
    desc.scale = WF_SCALE_MINMAX;
    wf_dataset *data;
    assert_ok(ctx, wf__dataset_from_tables(ctx, &desc, &table, &test, &data));
    assert_int_equal(data->n_train, 2);
    assert_int_equal(data->n_test, 1);
    assert_close(data->x_train[0], 0, 0);
    assert_close(data->x_train[2], 1, 0);
    assert_close(data->x_test[0], 1, 0); /* 3 of 0 to 3 */
    assert_close(data->x_test[1], 0, 0); /* 4 of 4 to 255 */
    wf_dataset_free(data);
    wf__table_free(&table);
    wf__table_free(&test);
}

static void refusals(void **state) {
    (void)state;
    static const double y[] = {0, 1}, wild[] = {1, 2, 3, 4, 5, INFINITY};
    const struct {
        const char *x_name, *x_header, *y_name, *y_header;
        const double *x;
        const char *words;
    } cases[] = {
        {"X", HEADER("|O", "False", "(2, 3)"), "y", HEADER("<f8", "False", "(2,)"), x23,
         "never read"},
        {"X", HEADER(">f8", "False", "(2, 3)"), "y", HEADER("<f8", "False", "(2,)"), x23,
         "big-endian"},
        {"X", HEADER("<c16", "False", "(2, 3)"), "y", HEADER("<f8", "False", "(2,)"), x23, "<c16"},
        {"X", HEADER("<f8", "False", "(2, 4)"), "y", HEADER("<f8", "False", "(2,)"), x23,
         "does not fit"},
        {"X", HEADER("<f8", "False", "(3, 2)"), "y", HEADER("<f8", "False", "(2,)"), x23,
         "3 examples"},
        {"X", HEADER("<f8", "False", "(2, 3)"), "y", HEADER("<f8", "False", "(1, 2)"), x23,
         "argmax"},
        {"X", HEADER("<f8", "False", "(2, 3)"), "z", HEADER("<f8", "False", "(2,)"), x23,
         "It has: X, z"},
        {"X", HEADER("<f8", "False", "(2, 3)"), "y", HEADER("<f8", "False", "(2,)"), wild,
         "is inf"},
        {"X", "{'descr': '<f8', 'shape': (2, 3), }", "y", HEADER("<f8", "False", "(2,)"), x23,
         "lacks"},
        {"X", "nonsense", "y", HEADER("<f8", "False", "(2,)"), x23, "no dictionary"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zip_writer z = {0};
        wf_table table = {0};
        add_array(&z, cases[i].x_name, cases[i].x_header, cases[i].x, sizeof x23, false);
        add_array(&z, cases[i].y_name, cases[i].y_header, y, sizeof y, false);
        assert_fails(ctx, read_npz(&z, NULL, &table, NULL), WF_ERR_INPUT, cases[i].words);
        wf__table_free(&table);
    }
    wf_table table = {0};
    assert_fails(ctx, wf__table_from_npz(ctx, "a", "PK", 2, NULL, &table, NULL), WF_ERR_INPUT, "a");
    zip_writer z = {0};
    zip_add(&z, "readme.txt", "hello", 5, false);
    assert_fails(ctx, read_npz(&z, NULL, &table, NULL), WF_ERR_INPUT, "numpy.savez");
}

/* Numbers that are a quantity are no classes. */
static void regression(void **state) {
    (void)state;
    double x[40], y[40];
    for (int i = 0; i < 40; i++) x[i] = i, y[i] = 0.5 * i;
    zip_writer z = {0};
    wf_table table = {0};
    wf_data_desc desc = wf_data_desc_default();
    wf_dataset *data;
    desc.name = "houses";
    add_array(&z, "X", HEADER("<f8", "False", "(40, 1)"), x, sizeof x, false);
    add_array(&z, "y", HEADER("<f8", "False", "(40,)"), y, sizeof y, false);
    assert_ok(ctx, read_npz(&z, NULL, &table, NULL));
    assert_fails(ctx, wf__dataset_from_tables(ctx, &desc, &table, NULL, &data), WF_ERR_INPUT,
                 "regression, which is not supported");
    wf__table_free(&table);
}

/* A small file cannot fill the memory. */
static void budgets(void **state) {
    (void)state;
    size_t size = (size_t)200 << 20;
    uint8_t *zeros = calloc(1, size);
    zip_writer z = {0};
    wf_table table = {0};
    add_array(&z, "X", HEADER("|u1", "False", "(2, 104857600)"), zeros, size, true);
    add_array(&z, "y", HEADER("|u1", "False", "(2,)"), zeros, 2, true);
    free(zeros);
    assert_fails(ctx, read_npz(&z, NULL, &table, NULL), WF_ERR_INPUT, "far more than the file has");
    wf__table_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_and_orders), cmocka_unit_test(texts_as_labels),
        cmocka_unit_test(test_part),        cmocka_unit_test(refusals),
        cmocka_unit_test(regression),       cmocka_unit_test(budgets),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
