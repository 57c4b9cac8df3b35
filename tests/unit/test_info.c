/* wf_zoo_info against what was put into the collections; the hashes and dead units on their own. */
#include "network_case.h"
#include "ctx_fixture.h"
#include "base/io.h"
#include "base/random.h"
#include "weft/import.h"
#include "zoo/zoo_info_units.h"

#include <jansson.h>
#include <unistd.h>

static char path[256];

static int begin(void **state) {
    int failed = set_up(state);
    snprintf(path, sizeof path, "%s/zoo.safetensors", folder);
    return failed;
}

static wf_graph *graph_of(const char *arch, const char *activation) {
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, arch, activation, 0, &graph));
    return graph;
}

static float *normals(const wf_graph *graph, size_t count, uint32_t seed) {
    float *w = malloc(count * graph->n_params * sizeof *w);
    wf_rng rng = wf_rng_at(seed, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, w, count * graph->n_params);
    return w;
}

static wf_zoo_summary info_of(const wf_graph *graph, const float *w, size_t count,
                              const wf_zoo_extra *extra) {
    wf_zoo *zoo = NULL;
    wf_zoo_summary info;
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, w, count, extra));
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_ok(ctx, wf_zoo_info(ctx, zoo, &info));
    wf_zoo_free(zoo);
    return info;
}

static void permute_randomly(const wf_graph *graph, uint32_t seed, const float *in, float *out) {
    uint32_t perm[64];
    wf_rng rng = wf_rng_at(seed, 1, WF_RNG_TEST, 0);
    for (int o = 0; o < graph->n_orbits; o++) {
        size_t start = wf_graph_perm_start(graph, o);
        size_t end =
            o + 1 < graph->n_orbits ? wf_graph_perm_start(graph, o + 1) : wf_graph_perm_size(graph);
        for (size_t u = start; u < end; u++) perm[u] = (uint32_t)(u - start);
        wf_rng_shuffle(&rng, perm + start, (uint32_t)(end - start));
    }
    wf_graph_permute(graph, perm, in, out);
}

static void scores_and_sizes(void **state) {
    (void)state;
    wf_graph *graph = graph_of("5-7-3", "gelu");
    float *w = normals(graph, 4, 1);
    const float a[4] = {0.5f, 0.75f, 1.0f, 0.75f}, b[4] = {NAN, 0.25f, NAN, 0.75f};
    wf_zoo_extra extra = {.n_tests = 2, .test_names = {"moons", "spirals"}, .scores = {a, b}};
    wf_zoo_summary info = info_of(graph, w, 4, &extra);
    assert_int_equal(info.count, 4);
    assert_int_equal(info.parameters, 5 * 7 + 7 + 7 * 3 + 3);
    assert_int_equal(info.hidden_units, 4 * 7);
    assert_int_equal(info.n_tests, 2);
    int first = strcmp(info.tests[0].name, "moons") == 0 ? 0 : 1; /* any order */
    const wf_zoo_score_info *moons = &info.tests[first], *spirals = &info.tests[1 - first];
    assert_string_equal(spirals->name, "spirals");
    assert_close(moons->mean, 0.75, 1e-12);
    assert_close(moons->std, sqrt((0.0625 + 0.0625) / 4), 1e-12);
    assert_close(moons->min, 0.5, 0);
    assert_close(moons->max, 1.0, 0);
    assert_close(spirals->mean, 0.5, 1e-12);
    assert_close(spirals->std, 0.25, 1e-12);
    assert_int_equal(info.duplicates + info.permuted_duplicates + info.dead_units, 0);
    assert_int_equal(info.non_finite_values, 0);
    free(w);
    wf_graph_free(graph);
}

/* 0..9 are different; 10 = 3, 11 = P 5, 12 = 11, 13 = Q 5, 14 = 3 but for one bit of one weight, 15
 * = P 14. */
static void duplicates(void **state) {
    (void)state;
    wf_graph *graph = graph_of("6-9-8-4", "tanh");
    size_t n = graph->n_params;
    float *w = normals(graph, 16, 2);
    float **net = malloc(16 * sizeof *net);
    for (int i = 0; i < 16; i++) net[i] = w + (size_t)i * n;
    memcpy(net[10], net[3], n * sizeof *w);
    permute_randomly(graph, 1, net[5], net[11]);
    memcpy(net[12], net[11], n * sizeof *w);
    permute_randomly(graph, 2, net[5], net[13]);
    memcpy(net[14], net[3], n * sizeof *w);
    net[14][17] = nextafterf(net[14][17], 10);
    permute_randomly(graph, 3, net[14], net[15]);
    wf_zoo_summary info = info_of(graph, w, 16, NULL);
    assert_int_equal(info.duplicates, 2);
    assert_int_equal(info.permuted_duplicates, 3);
    static const wf_zoo_duplicate expected[5] = {
        {10, 3, false}, {11, 5, true}, {12, 11, false}, {13, 5, true}, {15, 14, true}};
    assert_int_equal(info.n_examples, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(info.examples[i].index, expected[i].index);
        assert_int_equal(info.examples[i].earlier, expected[i].earlier);
        assert_int_equal(info.examples[i].permuted, expected[i].permuted);
    }
    /* More than there is room for: the first are kept, all are counted. */
    for (int i = 1; i < 16; i++) memcpy(net[i], net[0], n * sizeof *w);
    info = info_of(graph, w, 16, NULL);
    assert_int_equal(info.duplicates, 15);
    assert_int_equal(info.n_examples, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(info.examples[i].index, i + 1);
    free(net);
    free(w);
    wf_graph_free(graph);
}

/* Units with the same inputs are told apart by their uses; twins may be swapped freely. */
static void twins(void **state) {
    (void)state;
    wf_graph *graph = graph_of("3-4-2", "relu");
    float *w = normals(graph, 2, 3);
    memcpy(w + 3, w, 3 * sizeof *w); /* rows 0 and 1 of the first layer */
    w[13] = w[12];                   /* and their biases */
    for (uint32_t seed = 0; seed < 10; seed++) {
        permute_randomly(graph, seed, w, w + graph->n_params);
        wf_zoo_summary info = info_of(graph, w, 2, NULL);
        assert_int_equal(info.duplicates + info.permuted_duplicates, 1);
    }
    free(w);
    wf_graph_free(graph);
}

static void hashes_see_everything(void **state) {
    (void)state;
    wf_graph *graph = graph_of("3-4-5-2!", "relu");
    size_t n = graph->n_params;
    float *w = normals(graph, 1, 4), *changed = malloc(n * sizeof *changed);
    wf_units units;
    assert_ok(ctx, wf_units_create(ctx, graph, &units));
    uint64_t hash = wf_orderless_hash(&units, w), exact = wf_exact_hash(w, n);
    for (uint32_t seed = 0; seed < 20; seed++) {
        permute_randomly(graph, seed, w, changed);
        assert_true(wf_orderless_hash(&units, changed) == hash);
    }
    assert_true(wf_exact_hash(changed, n) != exact);
    for (size_t i = 0; i < n; i++) { /* every single weight matters, and so does its place */
        memcpy(changed, w, n * sizeof *w);
        changed[i] = nextafterf(w[i], 10);
        assert_true(wf_orderless_hash(&units, changed) != hash);
        changed[i] = w[(i + 1) % n];
        changed[(i + 1) % n] = w[i];
        assert_true(wf_orderless_hash(&units, changed) != hash);
        assert_true(wf_exact_hash(changed, n) != exact);
    }
    wf_units_free(&units);
    free(changed);
    free(w);
    wf_graph_free(graph);
}

/* 2-3-3-1: W1 at 0 (3x2), b1 at 6, W2 at 9 (3x3), b2 at 18, W3 at 21 (1x3), b3 at 24. */
static void dead_units(void **state) {
    (void)state;
    static const struct {
        const char *activation;
        size_t zero[6], negative[6]; /* places to set, ended by 99 */
        size_t dead;
    } cases[] = {
        {"relu", {99}, {99}, 0},
        {"relu", {21, 99}, {99}, 1},                /* unused unit of layer 2 */
        {"relu", {9, 12, 15, 99}, {99}, 1},         /* unused unit of layer 1 */
        {"relu", {9, 12, 99}, {99}, 0},             /* used once */
        {"relu", {0, 1, 99}, {6, 99}, 1},           /* no inputs, bias < 0 */
        {"relu", {0, 1, 6, 99}, {99}, 1},           /* no inputs, bias 0 */
        {"relu", {0, 1, 99}, {99}, 0},              /* no inputs, bias > 0: a constant */
        {"relu", {99}, {0, 1, 6, 99}, 0},           /* the inputs may be negative */
        {"relu", {99}, {9, 10, 11, 18, 99}, 1},     /* the first layer's outputs cannot */
        {"relu", {99}, {9, 10, 11, 99}, 0},         /* bias > 0 */
        {"relu", {21, 9, 10, 11, 18, 99}, {99}, 1}, /* dead twice counts once */
        {"tanh", {0, 1, 6, 99}, {99}, 1},
        {"tanh", {0, 1, 99}, {6, 99}, 0},
        {"tanh", {99}, {9, 10, 11, 18, 99}, 0},
        {"sigmoid", {0, 1, 6, 99}, {99}, 0}, /* one half */
        {"sigmoid", {22, 99}, {99}, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        wf_graph *graph = graph_of("2-3-3-1", cases[c].activation);
        float w[25];
        for (int i = 0; i < 25; i++) w[i] = 0.5f;
        for (int i = 0; cases[c].zero[i] != 99; i++) w[cases[c].zero[i]] = i % 2 ? -0.0f : 0;
        for (int i = 0; cases[c].negative[i] != 99; i++) w[cases[c].negative[i]] = -1;
        size_t dead = wf_dead_units(graph, w);
        if (dead != cases[c].dead)
            fail_msg("case %zu: %zu dead units, expected %zu", c, dead, cases[c].dead);
        if (cases[c].dead > 0) { /* and through the file, in one of two networks */
            float both[50];
            memcpy(both, w, sizeof w);
            for (int i = 25; i < 50; i++) both[i] = 1;
            wf_zoo_summary info = info_of(graph, both, 2, NULL);
            assert_int_equal(info.dead_units, cases[c].dead);
            assert_int_equal(info.dead_networks, 1);
        }
        wf_graph_free(graph);
    }
}

/* Residual connections: duplicates are found though groups share their units, also where a block
 * joins them to themselves; a unit that is passed on is dead only when no reader sees it. */
static void residual_networks(void **state) {
    (void)state;
    static const char *const described[] = {resnet_json, loop_json};
    for (int i = 0; i < 2; i++) {
        wf_graph *graph = graph_of(described[i], "relu");
        size_t n = graph->n_params;
        float *w = normals(graph, 3, 1);
        permute_randomly(graph, 9, w, w + 2 * n);
        wf_zoo_summary info = info_of(graph, w, 3, NULL);
        assert_int_equal(info.permuted_duplicates, 1);
        assert_int_equal(info.examples[0].index, 2);
        assert_int_equal(info.hidden_units, 3 * wf_graph_perm_size(graph));
        assert_int_equal(info.dead_units, 0);
        /* Unit 1 of the stream: zero in every block that reads it. */
        for (int b = 0; b < graph->n_blocks; b++) {
            const wf_block *block = &graph->blocks[b];
            size_t coef = (size_t)block->coef, row = (size_t)graph->groups[block->src].n * coef;
            if (graph->groups[block->src].units != 1) continue;
            for (size_t k = 0; k < block->count; k++)
                if (k % row / coef == 1) w[block->offset + k] = 0;
        }
        assert_int_equal(info_of(graph, w, 1, NULL).dead_units, 1);
        free(w);
        wf_graph_free(graph);
    }
}

static void not_finite(void **state) {
    (void)state;
    wf_graph *graph = graph_of("5-7-3", "relu");
    size_t n = graph->n_params;
    float *w = normals(graph, 9, 5);
    w[2 * n + 3] = NAN;
    w[2 * n + 4] = INFINITY;
    w[7 * n] = -INFINITY;
    wf_zoo_summary info = info_of(graph, w, 9, NULL);
    assert_int_equal(info.non_finite_values, 3);
    assert_int_equal(info.non_finite_networks, 2);
    assert_int_equal(info.first_non_finite, 2);
    assert_true(isfinite(info.near) && isfinite(info.far));
    free(w);
    wf_graph_free(graph);
}

/* Independent networks; one walk; many short walks; small steps around one start; a common start
 * with large steps. */
static void kinship(void **state) {
    (void)state;
    enum { count = 60 };
    static const struct {
        double start, step,
            own;  /* size of the common start, of a walk's steps, of each network's own part */
        int walk; /* networks of one walk */
        wf_zoo_kinship expected;
    } cases[] = {
        {0, 0, 1, 1, WF_ZOO_INDEPENDENT},       {1, 0.2, 0, count, WF_ZOO_TRAJECTORY},
        {1, 0.01, 0, count, WF_ZOO_TRAJECTORY}, {0, 0.2, 0, 20, WF_ZOO_TRAJECTORY},
        {1, 0, 0.3, 1, WF_ZOO_RELATED},         {0.5, 0, 1, 1, WF_ZOO_INDEPENDENT},
    };
    wf_graph *graph = graph_of("8-12-5", "relu");
    size_t n = graph->n_params;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float *common = normals(graph, 1, 10), *noise = normals(graph, count, 11);
        float *fresh = normals(graph, count, 12), *w = calloc(count * n, sizeof *w);
        for (int k = 0; k < count; k++)
            for (size_t i = 0; i < n; i++) {
                size_t at = (size_t)k * n + i;
                double before = k % cases[c].walk != 0 ? w[at - n]
                                : cases[c].start > 0   ? cases[c].start * common[i]
                                : cases[c].walk > 1    ? fresh[at] /* a start of its own */
                                                       : 0;
                w[at] = (float)(before + cases[c].step * noise[at] + cases[c].own * fresh[at]);
            }
        wf_zoo_summary info = info_of(graph, w, count, NULL);
        if (info.kinship != cases[c].expected)
            fail_msg("case %zu: near %.3f, far %.3f: %d, expected %d", c, info.near, info.far,
                     (int)info.kinship, (int)cases[c].expected);
        assert_int_equal(info.warning[0] != 0, info.kinship != WF_ZOO_INDEPENDENT);
        if (c == 0) { /* independent directions: cosines of 1/sqrt(n) */
            assert_close(info.near, 0, 4 / sqrt((double)n));
            assert_close(info.far, 0, 4 / sqrt((double)n));
        }
        free(common), free(noise), free(fresh), free(w);
    }
    wf_graph_free(graph);
    /* Nothing hidden: similar weights are no sign of anything. Too few: no verdict. */
    graph = graph_of("3-2", "relu");
    float same[4 * 8];
    for (int i = 0; i < 32; i++) same[i] = (float)(i % 8) + 0.001f * (float)i;
    assert_int_equal(info_of(graph, same, 4, NULL).kinship, WF_ZOO_INDEPENDENT);
    assert_true(info_of(graph, same, 4, NULL).near > 0.9);
    assert_true(isnan(info_of(graph, same, 3, NULL).near));
    wf_graph_free(graph);
}

/* Whatever the number of threads: the same summary, to the bit. */
static void threads_do_not_matter(void **state) {
    (void)state;
    wf_graph *graph = graph_of("4-6-6-2", "relu");
    float *w = normals(graph, 100, 6);
    memcpy(w + 90 * graph->n_params, w, 10 * graph->n_params * sizeof *w);
    wf_zoo_summary a = info_of(graph, w, 100, NULL), b;
    wf_ctx_desc desc = {.threads = 1};
    wf_ctx *one = NULL;
    wf_zoo *zoo = NULL;
    assert_int_equal(wf_ctx_create(&desc, &one), WF_OK);
    assert_ok(one, wf_zoo_open(one, path, &zoo));
    assert_ok(one, wf_zoo_info(one, zoo, &b));
    assert_true(a.near == b.near && a.far == b.far);
    assert_int_equal(a.duplicates, 10);
    assert_int_equal(b.duplicates, 10);
    assert_int_equal(a.permuted_duplicates, b.permuted_duplicates);
    assert_int_equal(a.dead_units, b.dead_units);
    wf_interrupt(one);
    assert_fails(one, wf_zoo_info(one, zoo, &b), WF_ERR_INTERRUPTED, "interrupted");
    wf_zoo_free(zoo);
    wf_ctx_free(one);
    free(w);
    wf_graph_free(graph);
}

/* The same as JSON, with names that JSON could not hold. */
static void as_json(void **state) {
    (void)state;
    wf_graph *graph = graph_of("2-3-2", "tanh");
    float *w = normals(graph, 3, 8);
    w[0] = NAN;
    const float scores[3] = {0.25f, NAN, 0.75f};
    wf_zoo *zoo;
    char *text;
    assert_ok(ctx, wf_zoo_from_memory(ctx, "caf\xe9", graph, w, 3, true, &zoo));
    assert_ok(ctx, wf_zoo_set_scores(ctx, zoo, "moons", scores, NULL, 0));
    assert_ok(ctx, wf_zoo_set_meta(ctx, zoo, "weft.data.note", "made again"));
    assert_ok(ctx, wf_zoo_info_json(ctx, zoo, &text));
    json_t *info = json_loads(text, 0, NULL);
    wf_free(text);
    static const struct {
        const char *key, *value;
    } texts[] = {{"path", "caf?"},           {"arch", "2-3-2"}, {"activation", "tanh"},
                 {"kinship", "independent"}, {"warning", ""},   {"data_note", "made again"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_string_equal(json_string_value(json_object_get(info, texts[i].key)), texts[i].value);
    static const struct {
        const char *key;
        int value;
    } numbers[] = {{"count", 3},         {"parameters", 17},         {"hidden_units", 9},
                   {"duplicates", 0},    {"permuted_duplicates", 0}, {"dead_units", 0},
                   {"dead_networks", 0}, {"non_finite_values", 1},   {"non_finite_networks", 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_int_equal(json_integer_value(json_object_get(info, numbers[i].key)),
                         numbers[i].value);
    assert_true(json_is_null(json_object_get(info, "near"))); /* of two finite networks */
    json_t *test = json_array_get(json_object_get(info, "tests"), 0);
    assert_string_equal(json_string_value(json_object_get(test, "name")), "moons");
    assert_close(json_real_value(json_object_get(test, "mean")), 0.5, 0);
    json_decref(info);
    wf_interrupt(ctx);
    assert_fails(ctx, wf_zoo_info_json(ctx, zoo, &text), WF_ERR_INTERRUPTED, "interrupted");
    assert_null(text);
    wf_interrupt_clear(ctx);
    wf_zoo_free(zoo);
    free(w);
    wf_graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_and_sizes),
        cmocka_unit_test(duplicates),
        cmocka_unit_test(twins),
        cmocka_unit_test(hashes_see_everything),
        cmocka_unit_test(dead_units),
        cmocka_unit_test(residual_networks),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(kinship),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(as_json),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
