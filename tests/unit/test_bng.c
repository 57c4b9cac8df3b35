/* Bayesian networks: structure against enumerated scores, draws against the tables, generated files
 * against their source. */
#include "ctx_fixture.h"
#include "weft/data.h"
#include "weft/file.h"
#include "data/bayes_net.h"

/* a: three values; b follows a nine times of ten; c is a coin of its own; d = (b + c) mod 2
 * mostly. */
enum { n_rows = 1200, n_variables = 4 };
static void make_codes(int32_t *codes) {
    for (uint32_t r = 0; r < n_rows; r++) {
        wf_rng rng = wf_rng_at(5, r, WF_RNG_TEST, 0);
        int32_t a = (int32_t)wf_rng_below(&rng, 3), c = (int32_t)wf_rng_below(&rng, 2);
        int32_t b = wf_rng_below(&rng, 10) == 0 ? (a + 1) % 3 : a;
        int32_t d = wf_rng_below(&rng, 10) == 0 ? (b + c + 1) % 2 : (b + c) % 2;
        int32_t row[] = {a, b, c, d};
        for (size_t v = 0; v < n_variables; v++) codes[v * n_rows + r] = row[v];
    }
}

/* BIC of a family straight from its definition. */
static double plain_bic(const int32_t *codes, const int32_t *card, size_t child, unsigned parents) {
    size_t q = 1;
    for (size_t p = 0; p < n_variables; p++)
        if (parents >> p & 1) q *= (size_t)card[p];
    double score = -0.5 * log(n_rows) * (double)(q * (size_t)(card[child] - 1));
    for (size_t r = 0; r < n_rows; r++) {
        double same = 0, alike = 0;
        for (size_t other = 0; other < n_rows; other++) {
            bool equal = true;
            for (size_t p = 0; p < n_variables; p++)
                if (parents >> p & 1) equal &= codes[p * n_rows + r] == codes[p * n_rows + other];
            alike += equal;
            same += equal && codes[child * n_rows + r] == codes[child * n_rows + other];
        }
        score += log(same / alike);
    }
    return score;
}

static void learned_structure_is_a_local_optimum(void **state) {
    (void)state;
    static int32_t codes[n_variables * n_rows];
    const int32_t card[] = {3, 3, 2, 2};
    make_codes(codes);
    wf_bayes_net net = {.variables = n_variables,
                        .rows = n_rows,
                        .codes = codes,
                        .card = card,
                        .class_variable = -1,
                        .max_parents = 3};
    assert_ok(ctx, wf__bayes_net_learn(ctx, &net));
    double sum = 0;
    bool placed[n_variables] = {false};
    for (size_t v = 0; v < n_variables; v++) {
        unsigned parents = 0;
        for (size_t p = 0; p < n_variables; p++)
            parents |= (unsigned)net.edge[p * n_variables + v] << p;
        double score = plain_bic(codes, card, v, parents);
        assert_close(net.local[v], score, 1e-6);
        sum += score;
        for (size_t p = 0; p < n_variables; p++) /* no single drop gains */
            if (parents >> p & 1)
                assert_true(plain_bic(codes, card, v, parents & ~(1u << p)) <= score + 1e-6);
    }
    assert_close(net.bic, sum, 1e-6);
    for (size_t i = 0; i < n_variables; i++) { /* parents come first */
        size_t v = net.order[i];
        for (size_t p = 0; p < n_variables; p++)
            assert_true(!net.edge[p * n_variables + v] || placed[p]);
        placed[v] = true;
    }
    /* a and b belong together, c touches neither of them alone. */
    assert_true(net.edge[0 * n_variables + 1] || net.edge[1 * n_variables + 0]);
    assert_false(net.edge[0 * n_variables + 2] || net.edge[2 * n_variables + 0]);
    wf__bayes_net_free(&net);
}

static void draws_follow_the_tables(void **state) {
    (void)state;
    static int32_t codes[n_variables * n_rows];
    const int32_t card[] = {3, 3, 2, 2};
    enum { draws = 60000 };
    make_codes(codes);
    wf_bayes_net net = {.variables = n_variables,
                        .rows = n_rows,
                        .codes = codes,
                        .card = card,
                        .class_variable = 3,
                        .max_parents = 2};
    assert_ok(ctx, wf__bayes_net_learn(ctx, &net));
    for (size_t v = 0; v < 3; v++) assert_true(net.edge[3 * n_variables + v]);
    assert_ok(ctx, wf__bayes_net_tables(ctx, &net, 0.5));
    double source[9] = {0}, drawn[9] = {0}, most = 0;
    for (size_t r = 0; r < n_rows; r++) source[3 * codes[r] + codes[n_rows + r]] += 1.0 / n_rows;
    for (uint32_t k = 0; k < draws; k++) {
        int32_t row[n_variables];
        wf_rng rng = wf_rng_at(9, k, WF_RNG_TEST, 0);
        wf__bayes_net_draw(&net, &rng, row);
        drawn[3 * row[0] + row[1]] += 1.0 / draws;
    }
    for (int i = 0; i < 9; i++) most = fmax(most, fabs(source[i] - drawn[i]));
    assert_true(most < 0.01); /* standard error 0.002, and the prior's pull */
    wf__bayes_net_free(&net);
}

static char *path_of(const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

static void write_text(const char *path, const char *text) {
    assert_ok(ctx, wf_write_file(ctx, path, text, strlen(text)));
}

/* Names and levels that need quotes, a missing cell, a number column. */
static void write_source(const char *path) {
    static char text[65536];
    int used = snprintf(text, sizeof text,
                        "@relation x\n@attribute 'the size' numeric\n"
                        "@attribute 'it\\'s {odd}' {'a b','c%%d','e,f'}\n@attribute y {p,q}\n"
                        "@data\n");
    for (int r = 0; r < 200; r++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s,%s,%c\n",
                         r == 7 ? "?" : (const char *[]){"1.50", "2", "-3e1", "4"}[r % 4],
                         (const char *[]){"'a b'", "'c%d'", "'e,f'"}[r % 3], r % 2 ? 'p' : 'q');
    write_text(path, text);
}

static void generated_tables_look_like_their_source(void **state) {
    (void)state;
    char source[128], first[128], second[128], longer[128], *text, *again, *more, *json;
    size_t size, size2, size3;
    write_source(path_of("source.arff", source));
    wf_data_desc from = wf_data_desc_default();
    wf_bng_desc desc = wf_bng_desc_default();
    from.path = source;
    desc.rows = 500;
    desc.seed = 42;
    assert_ok(ctx, wf_data_bng(ctx, &from, &desc, path_of("one.arff", first), &json));
    assert_non_null(strstr(json, "\"seed\":42"));
    free(json);
    assert_ok(ctx, wf_data_bng(ctx, &from, &desc, path_of("two.arff", second), NULL));
    desc.rows = 800;
    assert_ok(ctx, wf_data_bng(ctx, &from, &desc, path_of("more.arff", longer), NULL));
    assert_ok(ctx, wf_read_file(ctx, first, 1 << 20, &text, &size));
    assert_ok(ctx, wf_read_file(ctx, second, 1 << 20, &again, &size2));
    assert_ok(ctx, wf_read_file(ctx, longer, 1 << 20, &more, &size3));
    assert_true(size == size2 && memcmp(text, again, size) == 0);
    const char *rows = strstr(text, "@data"), *more_rows = strstr(more, "@data");
    assert_true(strncmp(rows, more_rows, strlen(rows)) == 0); /* more rows begin with the fewer */
    free(text), free(again), free(more);

    wf_data_desc read = wf_data_desc_default();
    wf_dataset *data;
    read.path = first;
    read.scale = WF_SCALE_NONE;
    assert_ok(ctx, wf_dataset_open(ctx, &read, &data));
    assert_int_equal(data->n_train + data->n_test, 500);
    assert_int_equal(data->inputs, 4);
    assert_int_equal(data->classes, 2);
    assert_string_equal(data->input_names[0], "the size");
    assert_string_equal(data->input_names[2], "it's {odd}=c%d");
    assert_non_null(strstr(data->note, "regenerated"));
    assert_non_null(strstr(data->note, "source.arff, seed 42"));
    for (size_t i = 0; i < data->n_train; i++) {
        float x = data->x_train[4 * i];
        assert_true(x == 1.5f || x == 2.0f || x == -30.0f || x == 4.0f);
    }
    wf_dataset_free(data);
}

static void mistakes_are_named(void **state) {
    (void)state;
    char source[128];
    write_source(path_of("bad.arff", source));
    wf_data_desc from = wf_data_desc_default();
    wf_bng_desc desc = wf_bng_desc_default();
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "x", NULL), WF_ERR_USAGE, "no path");
    from.path = source;
    desc.bins = 1;
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "x", NULL), WF_ERR_USAGE, "bng.bins is 1");
    desc = wf_bng_desc_default();
    desc.prior = 0;
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "x", NULL), WF_ERR_USAGE, "bng.prior is 0");
    desc = wf_bng_desc_default();
    desc.rows = 1;
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "x", NULL), WF_ERR_USAGE, "bng.rows is 1");
    desc = wf_bng_desc_default();
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "/nowhere/x.arff", NULL), WF_ERR_DISK,
                 "/nowhere");
    wf_data_desc both = wf_data_desc_default();
    wf_dataset *data;
    both.bng = source;
    both.path = source;
    assert_fails(ctx, wf_dataset_open(ctx, &both, &data), WF_ERR_USAGE, "path and bng");
    both.path = NULL;
    both.rows = 300;
    both.drop = "the size";
    assert_ok(ctx, wf_dataset_open(ctx, &both, &data));
    assert_int_equal(data->n_train + data->n_test, 300);
    assert_int_equal(data->inputs, 3);
    wf_dataset_free(data);
    from.path = "absent.arff";
    assert_fails(ctx, wf_data_bng(ctx, &from, &desc, "x", NULL), WF_ERR_INPUT, "absent.arff");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learned_structure_is_a_local_optimum),
        cmocka_unit_test(draws_follow_the_tables),
        cmocka_unit_test(generated_tables_look_like_their_source),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
