/* The tables and MNIST under WEFT_DATA: inputs after one-hot, classes and rows of each class.
 * Skipped where there are none. */
#include "ctx_fixture.h"
#include "weft/data.h"

#include <unistd.h>

static const char flare5[] =
    "largest_spot_size,spot_distribution,Activity,Evolution,Previous_24_hour_flare_activity_code,"
    "Historically-complex,Did_region_become_historically_complex,Area,Area_of_the_largest_spot,"
    "C-class_flares_production_by_this_region,M-class_flares_production_by_this_region,"
    "X-class_flares_production_by_this_region";
static const char flare2[] =
    "class code,largest spot code,spot dist code,Activity,Evolution,Previous 24 hour code,"
    "Historically-complex,become complex,Area,Area of the largest spot";
static const char acs[] = "COW, MAR, RELP, SEX, RAC1P";

/* count: rows of each class, ended by 0; a single number when all classes have as many. */
static const struct {
    const char *path, *categorical, *drop;
    int inputs, classes;
    size_t count[6];
} tables[] = {
    {"mfeat/mfeat-factors.arff.gz", NULL, NULL, 216, 10, {200}},
    {"mfeat/mfeat-fourier.tsv.gz", NULL, NULL, 76, 10, {200}},
    {"mfeat/mfeat-karhunen.arff.gz", NULL, NULL, 64, 10, {200}},
    {"mfeat/mfeat-morphological.arff", NULL, NULL, 6, 10, {200}},
    {"mfeat/mfeat-zernike.arff.gz", NULL, NULL, 47, 10, {200}},
    {"kr-vs-kp/kr-vs-kp.arff.gz", NULL, NULL, 73, 2, {1669, 1527}},
    {"letter/letter.arff.gz", NULL, NULL, 16, 26, {0}},
    {"balance-scale/balance-scale.arff", NULL, NULL, 4, 3, {288, 49, 288}},
    {"breast-w/breast-w.arff", NULL, NULL, 9, 2, {458, 241}},
    {"cmc/cmc.arff", NULL, NULL, 24, 3, {629, 333, 511}},
    {"blood-transfusion-service-center/blood-transfusion-service-center.arff",
     NULL,
     NULL,
     4,
     2,
     {570, 178}},
    {"banknote-authentication/banknote-authentication.arff", NULL, NULL, 4, 2, {762, 610}},
    {"hayes-roth/hayes-roth.tsv.gz", NULL, NULL, 4, 3, {65, 64, 31}},
    {"heart-c/heart-c.arff", NULL, NULL, 25, 2, {165, 138}},
    {"heart-h/heart-h.arff", NULL, NULL, 25, 2, {188, 106}},
    {"ozone-level-8hr/ozone-level-8hr.csv.gz", NULL, NULL, 72, 2, {2374, 160}},
    {"phoneme/phoneme.arff.gz", NULL, NULL, 5, 2, {3818, 1586}},
    {"solar-flare/solar-flare_1.tsv.gz", flare5, NULL, 34, 5, {65, 76, 88, 21, 65}},
    {"flare/flare.tsv.gz", flare2, NULL, 31, 2, {884, 182}},
    {"acs-income/acsincome-2018-CA_1.csv.gz", acs, "OCCP,POBP", 35, 2, {19209, 12957}},
};

static bool have(const char *path) {
    char full[1024];
    const char *root = getenv("WEFT_DATA");
    snprintf(full, sizeof full, "%s/%s", root != NULL ? root : "", path);
    FILE *file = root != NULL ? fopen(full, "rb") : NULL;
    if (file != NULL) fclose(file);
    return file != NULL;
}

static void check_counts(const wf_dataset *data, const size_t *expected) {
    size_t count[32] = {0}, test[32] = {0}, rows = data->n_train + data->n_test;
    for (size_t i = 0; i < data->n_train; i++) count[data->y_train[i]]++;
    for (size_t i = 0; i < data->n_test; i++) count[data->y_test[i]]++, test[data->y_test[i]]++;
    for (int k = 0; k < data->classes; k++) {
        if (expected[0] != 0) assert_int_equal(count[k], expected[expected[1] == 0 ? 0 : k]);
        assert_true(fabs((double)test[k] - 0.2 * (double)count[k]) < 1);
    }
    assert_int_equal(data->n_test, (size_t)floor(0.2 * (double)rows + 0.5));
}

static void tables_have_their_inputs_and_classes(void **state) {
    (void)state;
    size_t seen = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (!have(tables[i].path)) {
            print_message("skip %s: not in the folder that WEFT_DATA names\n", tables[i].path);
            continue;
        }
        wf_data_desc desc = wf_data_desc_default();
        wf_dataset *data;
        desc.path = tables[i].path;
        desc.categorical = tables[i].categorical;
        desc.drop = tables[i].drop;
        desc.seed = 1;
        assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
        if (data->inputs != tables[i].inputs || data->classes != tables[i].classes)
            fail_msg("%s: %d inputs and %d classes, expected %d and %d", tables[i].path,
                     data->inputs, data->classes, tables[i].inputs, tables[i].classes);
        check_counts(data, tables[i].count);
        for (size_t k = 0; k < data->n_train * (size_t)data->inputs; k++)
            assert_true(isfinite(data->x_train[k]));
        wf_dataset_free(data);
        seen++;
    }
    if (seen == 0) skip("WEFT_DATA names no folder with the tables");
}

/* The twentieth table is not to be had and is made from cmc. */
static void regenerated_cmc_stands_in_for_bng(void **state) {
    (void)state;
    if (!have("cmc/cmc.arff")) skip("WEFT_DATA names no folder with cmc");
    char path[] = "/tmp/weft-bng-cmc-XXXXXX.arff";
    int file = mkstemps(path, 5);
    assert_true(file >= 0);
    close(file);
    wf_data_desc from = wf_data_desc_default(), desc = wf_data_desc_default();
    wf_dataset *source, *data;
    from.path = "cmc/cmc.arff";
    desc.path = path;
    assert_ok(ctx, wf_data_bng(ctx, &from, NULL, path, NULL));
    assert_ok(ctx, wf_dataset_open(ctx, &from, &source));
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->n_train + data->n_test, 55296);
    assert_int_equal(data->inputs, 24);
    assert_int_equal(data->classes, 3);
    assert_non_null(strstr(data->note, "regenerated"));
    assert_string_equal(source->note, "");
    for (int i = 0; i < 24; i++) assert_string_equal(data->input_names[i], source->input_names[i]);
    /* Shares of the classes as in cmc: 629, 333 and 511 of 1,473. */
    double share[3] = {0};
    for (size_t i = 0; i < data->n_train; i++)
        share[data->y_train[i]] += 1.0 / (double)data->n_train;
    assert_close(share[0], 629 / 1473.0, 0.01);
    assert_close(share[1], 333 / 1473.0, 0.01);
    /* The same table without a file. */
    wf_data_desc memory = wf_data_desc_default();
    wf_dataset *same;
    memory.bng = "cmc/cmc.arff";
    assert_ok(ctx, wf_dataset_open(ctx, &memory, &same));
    assert_string_equal(same->fingerprint, data->fingerprint);
    assert_string_equal(same->note, data->note);
    assert_string_equal(same->name, "BNG(cmc)");
    wf_dataset_free(same);
    unlink(path);
    wf_dataset_free(source);
    wf_dataset_free(data);
}

static void mnist_is_mnist(void **state) {
    (void)state;
    if (!have("mnist/t10k-images-idx3-ubyte.gz") || !have("mnist/train-images-idx3-ubyte.gz"))
        skip("WEFT_DATA names no folder with MNIST");
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "mnist";
    desc.path = "mnist/train-images-idx3-ubyte.gz";
    desc.labels = "mnist/train-labels-idx1-ubyte.gz";
    desc.test_path = "mnist/t10k-images-idx3-ubyte.gz";
    desc.test_labels = "mnist/t10k-labels-idx1-ubyte.gz";
    desc.scale = WF_SCALE_UNIT;
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->n_train, 60000);
    assert_int_equal(data->n_test, 10000);
    assert_int_equal(data->inputs, 784);
    assert_int_equal(data->classes, 10);
    const size_t train[] = {5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949};
    const size_t test[] = {980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009};
    size_t train_count[10] = {0}, test_count[10] = {0};
    for (size_t i = 0; i < 60000; i++) train_count[data->y_train[i]]++;
    for (size_t i = 0; i < 10000; i++) test_count[data->y_test[i]]++;
    for (int k = 0; k < 10; k++) {
        assert_int_equal(train_count[k], train[k]);
        assert_int_equal(test_count[k], test[k]);
    }
    /* The first image, a five: its first inked row is row 5, columns 12 on: 3 18 18 18 126 136 175
     * 26 166 255 247 127. */
    const int pixels[] = {3, 18, 18, 18, 126, 136, 175, 26, 166, 255, 247, 127};
    assert_int_equal(data->y_train[0], 5);
    for (int i = 0; i < 152; i++) assert_true(data->x_train[i] == 0);
    for (int i = 0; i < 12; i++)
        assert_close(data->x_train[152 + i], (float)(pixels[i] / 255.0), 0);
    assert_string_equal(data->input_names[29], "pixel 1,1");
    wf_dataset_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_have_their_inputs_and_classes),
        cmocka_unit_test(regenerated_cmc_stands_in_for_bng),
        cmocka_unit_test(mnist_is_mnist),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
