/* Logits against the plain forward pass; scores of logits against scores of networks; curves
 * between two collections where their values are known: at both ends, for copies, for relabelled
 * copies. tests/oracle/test_mix.py has the rest. */
#include "folder_fixture.h"
#include "weft/align.h"
#include "weft/eval.h"
#include "weft/flow.h"
#include "weft/rng.h"

#include <unistd.h>

enum { n_networks = 7 };

static wf_ctx *ctx;
static wf_dataset *data;
static wf_graph *graph;
static char path_a[64], path_b[64];

static void train(const char *path, uint64_t seed) {
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = n_networks;
    desc.seed = seed;
    desc.epochs = 4;
    desc.batch = 32;
    desc.lr = 0.02;
    assert_ok(ctx, wf_zoo_train(ctx, graph, data, &desc, path, NULL));
}

static int set_up(void **state) {
    ctx = test_ctx();
    if (make_folder(state) != 0) return -1;
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "moons";
    desc.rows = 300;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_ok(ctx, wf_graph_parse(ctx, "2-7-5-2", "relu", 0, &graph));
    snprintf(path_a, sizeof path_a, "%s/a", folder);
    snprintf(path_b, sizeof path_b, "%s/b", folder);
    train(path_a, 1);
    train(path_b, 2);
    return 0;
}

static int tear_down(void **state) {
    wf_graph_free(graph);
    wf_dataset_free(data);
    wf_ctx_free(ctx);
    return drop_folder(state);
}

static void logits_are_those_of_the_forward_pass(void **state) {
    (void)state;
    wf_zoo *zoo;
    float *weights;
    size_t each = data->n_test * 2, bytes = (data->n_test + 7) / 8;
    assert_ok(ctx, wf_zoo_open(ctx, path_a, &zoo));
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 0, n_networks, &weights));
    float *logits = calloc(n_networks * each, sizeof *logits);
    float *plain = calloc(each, sizeof *plain);
    assert_ok(ctx, wf_logits(ctx, graph, weights, n_networks, data, logits));
    for (size_t k = 0; k < n_networks; k++) {
        assert_ok(ctx, wf_graph_forward(ctx, graph, weights + k * graph->n_params, data->x_test,
                                        data->n_test, plain));
        for (size_t i = 0; i < each; i++) assert_close(logits[k * each + i], plain[i], 1e-5);
    }
    for (int score = 0; score < 2; score++) {
        float of_networks[n_networks], of_logits[n_networks];
        uint8_t *errors = calloc(2 * n_networks, bytes), *other = errors + n_networks * bytes;
        assert_ok(ctx, wf_score_networks(ctx, graph, weights, n_networks, data, (wf_score)score,
                                         of_networks, errors));
        assert_ok(
            ctx, wf_score_logits(ctx, logits, n_networks, data, (wf_score)score, of_logits, other));
        assert_memory_equal(of_networks, of_logits, sizeof of_networks);
        assert_memory_equal(errors, other, n_networks * bytes);
        free(errors);
    }
    free(logits);
    free(plain);
    free(weights);
    wf_zoo_free(zoo);
}

static void pairs_do_not_repeat(void **state) {
    (void)state;
    wf_zoo *a, *b;
    size_t p = graph->n_params;
    float *from = calloc(2 * n_networks, p * sizeof *from),
          *to = calloc(2 * n_networks, p * sizeof *to);
    float own[256];
    assert_ok(ctx, wf_zoo_open(ctx, path_a, &a));
    assert_ok(ctx, wf_zoo_open(ctx, path_b, &b));
    assert_ok(ctx, wf_control_pairs(ctx, a, b, 0, 2 * n_networks, 5, from, to));
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < n_networks; i++) { /* each network once a round */
            int seen_from = 0, seen_to = 0;
            for (size_t k = round * n_networks; k < (round + 1) * n_networks; k++) {
                wf_zoo_get(a, i, own);
                seen_from += memcmp(own, from + k * p, p * sizeof *own) == 0;
                wf_zoo_get(b, i, own);
                seen_to += memcmp(own, to + k * p, p * sizeof *own) == 0;
            }
            assert_int_equal(seen_from, 1);
            assert_int_equal(seen_to, 1);
        }
    free(from);
    free(to);
    wf_zoo_free(a);
    wf_zoo_free(b);
}

static double mean_at(const wf_mix *mix, int curve, int point) {
    return mix->mean[curve * mix->points + point];
}

static void ends_are_the_collections(void **state) {
    (void)state;
    wf_zoo *a, *b;
    wf_mix mix;
    wf_mix_desc desc = wf_mix_desc_default();
    const wf_dataset *sets[] = {data};
    desc.pairs = n_networks; /* all of them, once */
    desc.steps = 4;
    assert_ok(ctx, wf_zoo_open(ctx, path_a, &a));
    assert_ok(ctx, wf_zoo_open(ctx, path_b, &b));
    assert_ok(ctx, wf_eval_mix(ctx, a, b, sets, 1, &desc, &mix));
    assert_int_equal(mix.curves, 5);
    assert_string_equal(mix.name[2], "average-5");
    assert_string_equal(mix.name[4], "ensemble");
    assert_close(mix.alpha[3], 0.75, 0);
    for (int end = 0; end < 2; end++) {
        float *weights, scores[n_networks];
        double mean = 0;
        assert_ok(ctx, wf_zoo_load(ctx, end == 0 ? a : b, 0, n_networks, &weights));
        assert_ok(ctx, wf_score_networks(ctx, graph, weights, n_networks, data, WF_SCORE_AUC,
                                         scores, NULL));
        for (int k = 0; k < n_networks; k++) mean += scores[k] / n_networks;
        /* Relabelling hidden units changes no function, so every curve ends there. */
        for (int c = 0; c < 5; c++) assert_close(mean_at(&mix, c, end == 0 ? 0 : 4), mean, 1e-6);
        free(weights);
    }
    wf_mix_free(&mix);
    wf_zoo_free(a);
    wf_zoo_free(b);
}

/* The second collection is the first with its hidden units relabelled: weight matching undoes it,
 * so that the middle is the ends. */
static void matching_finds_relabelled_copies(void **state) {
    (void)state;
    wf_zoo *a, *b;
    wf_mix mix;
    float *weights;
    char path[80];
    uint32_t perm[12];
    size_t p = graph->n_params;
    assert_ok(ctx, wf_zoo_open(ctx, path_a, &a));
    assert_ok(ctx, wf_zoo_load(ctx, a, 0, 1, &weights));
    float *relabelled = calloc(n_networks, p * sizeof *relabelled);
    for (uint32_t i = 0; i < 7; i++) perm[i] = (i + 3) % 7;
    for (uint32_t i = 0; i < 5; i++) perm[7 + i] = 4 - i;
    wf_graph_permute(graph, perm, weights, relabelled);
    snprintf(path, sizeof path, "%s/one", folder);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 1, NULL));
    wf_zoo_free(a);
    assert_ok(ctx, wf_zoo_open(ctx, path, &a));
    snprintf(path, sizeof path, "%s/relabelled", folder);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, relabelled, 1, NULL));
    assert_ok(ctx, wf_zoo_open(ctx, path, &b));
    wf_mix_desc desc = wf_mix_desc_default();
    const wf_dataset *sets[] = {data};
    desc.pairs = 3;
    desc.steps = 2;
    assert_ok(ctx, wf_eval_mix(ctx, a, b, sets, 1, &desc, &mix));
    assert_true(fabs(mean_at(&mix, 0, 1) - mean_at(&mix, 0, 0)) > 1e-3); /* as they are: broken */
    for (int c = 2; c < 5; c++) assert_close(mean_at(&mix, c, 1), mean_at(&mix, c, 0), 1e-6);
    wf_mix_free(&mix);
    free(weights);
    free(relabelled);
    wf_zoo_free(a);
    wf_zoo_free(b);
}

static void mistakes_are_named(void **state) {
    (void)state;
    wf_zoo *a, *other;
    wf_mix mix;
    wf_graph *wide;
    char path[80];
    const wf_dataset *sets[] = {data};
    snprintf(path, sizeof path, "%s/wide", folder);
    assert_ok(ctx, wf_graph_parse(ctx, "2-9-2", "relu", 0, &wide));
    float *weights = calloc(2, wide->n_params * sizeof *weights);
    assert_ok(ctx, wf_zoo_write(ctx, path, wide, weights, 2, NULL));
    assert_ok(ctx, wf_zoo_open(ctx, path, &other));
    assert_ok(ctx, wf_zoo_open(ctx, path_a, &a));
    assert_fails(ctx, wf_eval_mix(ctx, a, other, sets, 1, NULL, &mix), WF_ERR_SHAPE,
                 "one architecture");
    wf_mix_free(&mix);
    wf_mix_desc desc = wf_mix_desc_default();
    desc.pairs = 0;
    assert_fails(ctx, wf_eval_mix(ctx, a, a, sets, 1, &desc, &mix), WF_ERR_USAGE, "0 pairs");
    desc = wf_mix_desc_default();
    desc.sweeps[1] = -1;
    assert_fails(ctx, wf_eval_mix(ctx, a, a, sets, 1, &desc, &mix), WF_ERR_USAGE, "-1 sweeps");
    wf_mix_free(&mix);
    wf_dataset three = *data;
    three.classes = 3;
    sets[0] = &three;
    assert_fails(ctx, wf_eval_mix(ctx, a, a, sets, 1, NULL, &mix), WF_ERR_SHAPE, "3 classes");
    wf_mix_free(&mix);
    free(weights);
    wf_graph_free(wide);
    wf_zoo_free(a);
    wf_zoo_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_forward_pass),
        cmocka_unit_test(pairs_do_not_repeat),
        cmocka_unit_test(ends_are_the_collections),
        cmocka_unit_test(matching_finds_relabelled_copies),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
