/* Built-in sets: shapes, addressing by row, the split and the scaling computed again by hand. */
#include "ctx_fixture.h"
#include "data/prepare.h"
#include "weft/rng.h"

static wf_dataset *open_set(const char *name, uint64_t seed, size_t rows) {
    wf_data_desc desc = wf_data_desc_default();
    desc.name = name;
    desc.seed = seed;
    desc.rows = rows;
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    return data;
}

static void builtin_sets_have_their_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int inputs, classes;
        size_t rows;
    } sets[] = {{"spirals", 2, 3, 1500}, {"moons", 2, 2, 1000}, {"digits", 64, 10, 4000}};
    for (size_t s = 0; s < 3; s++) {
        assert_string_equal(wf_data_builtin()[s], sets[s].name);
        wf_dataset *data = open_set(sets[s].name, 0, 0);
        assert_string_equal(data->name, sets[s].name);
        assert_int_equal(data->inputs, sets[s].inputs);
        assert_int_equal(data->classes, sets[s].classes);
        assert_int_equal(data->n_train, sets[s].rows * 4 / 5);
        assert_int_equal(data->n_test, sets[s].rows / 5);
        size_t per_class = data->n_test / (size_t)data->classes, count[10] = {0};
        for (size_t i = 0; i < data->n_test; i++) count[data->y_test[i]]++;
        for (int k = 0; k < data->classes; k++) assert_int_equal(count[k], per_class);
        assert_int_equal(strlen(data->fingerprint), 64);
        wf_dataset_free(data);
    }
    assert_null(wf_data_builtin()[3]);
}

/* The training part has mean 0 and deviation 1 in each input; the test part nearly so, but not
 * exactly. */
static void training_part_is_standardised(void **state) {
    (void)state;
    wf_dataset *data = open_set("digits", 3, 1000);
    double worst_test = 0;
    for (int c = 0; c < data->inputs; c++) {
        double m = 0, v = 0, t = 0;
        for (size_t i = 0; i < data->n_train; i++)
            m += data->x_train[i * 64 + (size_t)c] / (double)data->n_train;
        for (size_t i = 0; i < data->n_train; i++)
            v += pow(data->x_train[i * 64 + (size_t)c] - m, 2) / (double)data->n_train;
        for (size_t i = 0; i < data->n_test; i++)
            t += data->x_test[i * 64 + (size_t)c] / (double)data->n_test;
        assert_close(m, 0, 1e-5);
        assert_close(v, 1, 1e-5);
        if (fabs(t) > worst_test) worst_test = fabs(t);
    }
    assert_true(worst_test > 1e-3);
    wf_dataset_free(data);
}

/* Row r is the same row whatever the number of rows; another seed gives other rows. */
static void rows_are_addressed(void **state) {
    (void)state;
    for (const char *const *name = wf_data_builtin(); *name != NULL; name++) {
        wf_table few = {0}, many = {0}, other = {0};
        assert_ok(ctx, wf__table_builtin(ctx, *name, 5, 60, -1, &few));
        assert_ok(ctx, wf__table_builtin(ctx, *name, 5, 100, -1, &many));
        assert_ok(ctx, wf__table_builtin(ctx, *name, 6, 60, -1, &other));
        bool differs = false;
        for (size_t c = 0; c < few.columns; c++)
            for (size_t r = 0; r < few.rows; r++) {
                assert_true(few.column[c].values[r] == many.column[c].values[r]);
                differs |= few.column[c].values[r] != other.column[c].values[r];
            }
        assert_true(differs);
        wf__table_free(&few);
        wf__table_free(&many);
        wf__table_free(&other);
    }
}

/* Without noise a spiral's point lies on its arm: the angle, less 4 t, is the arm's third of a
 * turn. */
static void spirals_follow_their_formula(void **state) {
    (void)state;
    wf_table table = {0};
    assert_ok(ctx, wf__table_builtin(ctx, "spirals", 1, 90, 0, &table));
    for (size_t r = 0; r < table.rows; r++) {
        double x = table.column[0].values[r], y = table.column[1].values[r];
        double t = (hypot(x, y) - 0.1) / 0.9;
        double angle = atan2(y, x) - 4 * t - 2 * M_PI * (double)(r % 3) / 3;
        assert_close(remainder(angle, 2 * M_PI), 0, 1e-5);
        assert_int_equal((int)table.column[2].values[r], (int)(r % 3));
        assert_true(t >= 0 && t < 1);
    }
    wf__table_free(&table);
    assert_ok(ctx, wf__table_builtin(ctx, "moons", 1, 90, 0, &table));
    for (size_t r = 0; r < table.rows; r++) {
        double x = table.column[0].values[r], y = table.column[1].values[r];
        assert_close(hypot(x - (double)(r % 2), y - 0.5 * (double)(r % 2)), 1, 1e-6);
    }
    wf__table_free(&table);
}

static void digits_are_images(void **state) {
    (void)state;
    double plain[10][64], again[64], noisy[64];
    for (int digit = 0; digit < 10; digit++) {
        double ink = 0;
        wf__draw_digit(1, 0, digit, 0, plain[digit]);
        for (int i = 0; i < 64; i++) {
            assert_true(plain[digit][i] >= 0 && plain[digit][i] <= 1);
            ink += plain[digit][i];
        }
        assert_true(ink > 3 && ink < 32);
        wf__draw_digit(1, 0, digit, 0, again);
        assert_memory_equal(again, plain[digit], sizeof again);
        wf__draw_digit(1, 0, digit, 1, noisy);
        assert_memory_not_equal(noisy, plain[digit], sizeof noisy);
    }
    for (int a = 0; a < 10; a++)
        for (int b = 0; b < a; b++) {
            double distance = 0;
            for (int i = 0; i < 64; i++) distance += fabs(plain[a][i] - plain[b][i]);
            assert_true(distance > 2);
        }
}

static void bad_descriptions_are_refused(void **state) {
    (void)state;
    wf_dataset *data;
    wf_data_desc desc = wf_data_desc_default();
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "neither a path");
    desc.name = "iris";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "no built-in set 'iris'");
    desc.name = "moons";
    for (double fraction = 0; fraction < 2; fraction++) {
        desc.test_fraction = fraction;
        assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "test_fraction");
    }
    desc.test_fraction = 0.2;
    desc.rows = 3; /* classes 0 1 0 */
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT, "one row only");
    desc.rows = 1;
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_INPUT, "one class only");
    desc.rows = 0;
    desc.test_path = "x.csv";
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "no path");
    desc.test_path = NULL;
    desc.noise = NAN;
    assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), WF_ERR_USAGE, "noise");
    assert_null(data);
    wf_dataset_free(NULL);
}

static void same_seed_same_fingerprint(void **state) {
    (void)state;
    wf_dataset *a = open_set("spirals", 1, 300), *b = open_set("spirals", 1, 300),
               *c = open_set("spirals", 2, 300);
    assert_string_equal(a->fingerprint, b->fingerprint);
    assert_string_not_equal(a->fingerprint, c->fingerprint);
    wf_dataset_free(a);
    wf_dataset_free(b);
    wf_dataset_free(c);
}

/* Largest remainder by hand: 7, 5 and 3 rows at 0.3 want 2.1, 1.5, 0.9, in all round(4.5) = 5: 2,
 * 2, 1. */
static void split_is_stratified(void **state) {
    (void)state;
    int32_t labels[15] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 0};
    bool in_test[15], other[15];
    assert_ok(ctx, wf__split(ctx, labels, 15, 3, 0.3, 4, in_test));
    assert_ok(ctx, wf__split(ctx, labels, 15, 3, 0.3, 5, other));
    int count[3] = {0};
    for (int r = 0; r < 15; r++) count[labels[r]] += in_test[r];
    assert_int_equal(count[0], 2);
    assert_int_equal(count[1], 2);
    assert_int_equal(count[2], 1);
    assert_memory_not_equal(in_test, other, sizeof other);
    /* The last row of a class never goes. */
    int32_t pair[4] = {0, 0, 1, 1};
    assert_ok(ctx, wf__split(ctx, pair, 4, 2, 0.9, 1, in_test));
    assert_int_equal(in_test[0] + in_test[1], 1);
    assert_int_equal(in_test[2] + in_test[3], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_sets_have_their_shapes),
        cmocka_unit_test(training_part_is_standardised),
        cmocka_unit_test(rows_are_addressed),
        cmocka_unit_test(spirals_follow_their_formula),
        cmocka_unit_test(digits_are_images),
        cmocka_unit_test(bad_descriptions_are_refused),
        cmocka_unit_test(same_seed_same_fingerprint),
        cmocka_unit_test(split_is_stratified),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
