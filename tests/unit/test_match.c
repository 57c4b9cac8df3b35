/* Weight matching: permuted copies are found, one hidden layer is exact, and bad input is
 * refused. */

#include "ctx_fixture.h"
#include <pthread.h>
#include <unistd.h>

#include "base/random.h"
#include "weft/align.h"

static float *random_network(const wf_graph *graph, uint32_t index) {
    float *w = malloc(graph->n_params * sizeof *w);
    wf_rng rng = wf_rng_at(5, index, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, w, graph->n_params);
    return w;
}

static uint32_t *random_perm(const wf_graph *graph, uint32_t index) {
    uint32_t *perm = malloc((wf_graph_perm_size(graph) + 1) * sizeof *perm);
    wf_rng rng = wf_rng_at(6, index, WF_RNG_TEST, 0);
    for (int orbit = 0; orbit < graph->n_orbits; orbit++) {
        size_t end = orbit + 1 < graph->n_orbits ? wf_graph_perm_start(graph, orbit + 1)
                                                 : wf_graph_perm_size(graph);
        size_t start = wf_graph_perm_start(graph, orbit);
        wf_rng_shuffle(&rng, perm + start, (uint32_t)(end - start));
    }
    return perm;
}

static double dot_product(const float *a, const float *b, size_t n) {
    double dot = 0;
    for (size_t i = 0; i < n; i++) dot += (double)a[i] * (double)b[i];
    return dot;
}

static const char *const archs[] = {"2-16-3",     "64-16-8-10", "3-7-5-9-2",
                                    "4-33-17!-3", "5-2",        "6-1-1-2"};
enum { n_archs = sizeof archs / sizeof *archs };

/* b = P a must be brought back to a, parameter by parameter. */
static void finds_permuted_copies(void **state) {
    (void)state;
    for (int k = 0; k < n_archs; k++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, archs[k], "relu", 0, &graph));
        float *a = random_network(graph, (uint32_t)k);
        float *b = malloc(graph->n_params * sizeof *b), *back = malloc(graph->n_params * sizeof *b);
        uint32_t *hidden = random_perm(graph, (uint32_t)k);
        uint32_t *found = random_perm(graph, 99);
        wf_graph_permute(graph, hidden, a, b);
        double dot;
        int sweeps;
        wf_match_desc desc = wf_match_desc_default();
        desc.restarts = 20; /* random weights have local optima */
        assert_ok(ctx, wf_match(ctx, graph, a, b, &desc, found, &dot, &sweeps));
        wf_graph_permute(graph, found, b, back);
        assert_memory_equal(back, a, graph->n_params * sizeof *a);
        assert_close(dot, dot_product(a, a, graph->n_params), 1e-9 * graph->n_params);
        free(a), free(b), free(back), free(hidden), free(found);
        wf_graph_free(graph);
    }
}

/* The returned dot product is that of the returned relabelling, never below the identity's, and
 * more sweeps or restarts never make it smaller. */
static void dot_belongs_to_perm(void **state) {
    (void)state;
    for (int k = 0; k < n_archs; k++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, archs[k], "tanh", 0, &graph));
        float *a = random_network(graph, 10), *b = random_network(graph, 11);
        float *moved = malloc(graph->n_params * sizeof *moved);
        uint32_t *perm = random_perm(graph, 0);
        double last = dot_product(a, b, graph->n_params) - 1e-9;
        for (int step = 0; step < 4; step++) {
            wf_match_desc desc = {
                .sweeps = 1 + step, .tolerance = 1e-12, .restarts = step, .seed = 3};
            double dot;
            assert_ok(ctx, wf_match(ctx, graph, a, b, &desc, perm, &dot, NULL));
            wf_graph_permute(graph, perm, b, moved);
            assert_close(dot, dot_product(a, moved, graph->n_params), 1e-9);
            assert_true(dot >= last - 1e-9);
            last = dot;
        }
        free(a), free(b), free(moved), free(perm);
        wf_graph_free(graph);
    }
}

/* With one hidden layer a single sweep is exact: compare with all 5! relabellings. */
static void one_hidden_layer_is_exact(void **state) {
    (void)state;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "3-5-2", "relu", 0, &graph));
    float *a = random_network(graph, 1), *b = random_network(graph, 2), moved[64];
    assert_true(graph->n_params <= 64);
    double best = -INFINITY;
    for (uint32_t code = 0; code < 120; code++) { /* factorial digits */
        uint32_t perm[5] = {0, 1, 2, 3, 4}, rest = code;
        for (uint32_t i = 4; i > 0; i--) {
            uint32_t j = rest % (i + 1), kept = perm[i];
            rest /= i + 1;
            perm[i] = perm[j];
            perm[j] = kept;
        }
        wf_graph_permute(graph, perm, b, moved);
        double dot = dot_product(a, moved, graph->n_params);
        if (dot > best) best = dot;
    }
    wf_match_desc desc = {.sweeps = 1, .tolerance = 1e-12};
    uint32_t perm[5];
    double dot;
    assert_ok(ctx, wf_match(ctx, graph, a, b, &desc, perm, &dot, NULL));
    assert_close(dot, best, 1e-9);
    free(a), free(b);
    wf_graph_free(graph);
}

/* Relabelling b beforehand cannot change the value when the optimum is unique (one hidden
 * layer). */
static void value_is_invariant(void **state) {
    (void)state;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "4-12-3", "relu", 0, &graph));
    float *a = random_network(graph, 1), *b = random_network(graph, 2);
    float *moved = malloc(graph->n_params * sizeof *moved);
    uint32_t *hidden = random_perm(graph, 7), *perm = random_perm(graph, 8);
    double plain, relabelled;
    assert_ok(ctx, wf_match(ctx, graph, a, b, NULL, perm, &plain, NULL));
    wf_graph_permute(graph, hidden, b, moved);
    assert_ok(ctx, wf_match(ctx, graph, a, moved, NULL, perm, &relabelled, NULL));
    assert_close(relabelled, plain, 1e-9);
    free(a), free(b), free(moved), free(hidden), free(perm);
    wf_graph_free(graph);
}

/* wf_match_pairs must leave what wf_match followed by wf_graph_permute leaves. */
static void pairs_equal_plain_loop(void **state) {
    (void)state;
    enum { count = 37 };
    for (int k = 0; k < n_archs; k++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, archs[k], "relu", 0, &graph));
        size_t n = graph->n_params;
        float *a = malloc(count * n * sizeof *a), *b = malloc(count * n * sizeof *b);
        float *expected = malloc(n * sizeof *expected), *original = malloc(count * n * sizeof *b);
        wf_rng rng_a = wf_rng_at(1, 1, WF_RNG_TEST, 0), rng_b = wf_rng_at(1, 2, WF_RNG_TEST, 0);
        wf_rng_normals(&rng_a, a, count * n);
        wf_rng_normals(&rng_b, b, count * n);
        memcpy(original, b, count * n * sizeof *b);
        wf_match_desc desc = {.sweeps = 2, .tolerance = 1e-12, .seed = 4};
        assert_ok(ctx, wf_match_pairs(ctx, graph, a, b, count, &desc));
        uint32_t *perm = random_perm(graph, 0);
        for (int i = 0; i < count; i++) {
            assert_ok(ctx,
                      wf_match(ctx, graph, a + i * n, original + i * n, &desc, perm, NULL, NULL));
            wf_graph_permute(graph, perm, original + i * n, expected);
            assert_memory_equal(b + i * n, expected, n * sizeof *expected);
        }
        free(a), free(b), free(expected), free(original), free(perm);
        wf_graph_free(graph);
    }
}

/* Indices, seeds and metadata stay, every network computes what it did, and none is further from
 * the reference. */
static void aligns_a_collection(void **state) {
    (void)state;
    enum { count = 11, chosen = 4 };
    const char *path = in_folder("zoo.safetensors");
    const char *aligned_path = in_folder("aligned.safetensors");
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "5-9-7-2", "relu", 0, &graph));
    size_t n = graph->n_params;
    float weights[count * 200], x[3 * 5], before[6], after[6], w[200];
    assert_true(n <= 200);
    int64_t seeds[count];
    wf_rng rng = wf_rng_at(7, 0, WF_RNG_TEST, 0), inputs = wf_rng_at(7, 1, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, weights, count * n);
    wf_rng_normals(&inputs, x, 15);
    for (int i = 0; i < count; i++) seeds[i] = 100 - i;
    wf_zoo_extra extra = {.seeds = seeds, .n_meta = 1, .meta = {{"weft.recipe", "[zoo]"}}};
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, count, &extra));
    wf_zoo *zoo, *aligned;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_fails(ctx, wf_align_zoo(ctx, zoo, count, NULL, aligned_path), WF_ERR_USAGE, "0 to 10");
    assert_ok(ctx, wf_align_zoo(ctx, zoo, chosen, NULL, aligned_path));
    assert_ok(ctx, wf_zoo_open(ctx, aligned_path, &aligned));
    assert_int_equal(wf_zoo_count(aligned), count);
    assert_memory_equal(wf_zoo_seeds(aligned), seeds, sizeof seeds);
    assert_string_equal(wf_zoo_meta(aligned, "weft.recipe"), "[zoo]");
    assert_non_null(strstr(wf_zoo_meta(aligned, "weft.aligned"), "network 4"));
    const float *target = weights + chosen * n;
    for (size_t i = 0; i < count; i++) {
        const float *original = weights + i * n;
        wf_zoo_get(aligned, i, w);
        assert_ok(ctx, wf_graph_forward(ctx, graph, original, x, 3, before));
        assert_ok(ctx, wf_graph_forward(ctx, graph, w, x, 3, after));
        for (int k = 0; k < 6; k++) assert_close(after[k], before[k], 1e-4);
        double dot = dot_product(target, w, n), expected;
        uint32_t perm[16];
        assert_ok(ctx, wf_match(ctx, graph, target, original, NULL, perm, &expected, NULL));
        assert_close(dot, expected, 1e-4);
        if (i == chosen) assert_memory_equal(w, target, n * sizeof *w);
    }
    wf_zoo_free(aligned);
    assert_ok(ctx, wf_align_zoo(ctx, zoo, 0, NULL, path)); /* onto itself */
    wf_zoo_free(zoo);
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_non_null(strstr(wf_zoo_meta(zoo, "weft.aligned"), "network 0"));
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

static void *interrupt_soon(void *ctx_) {
    usleep(200000);
    wf_interrupt(ctx_);
    return NULL;
}

/* One pair whose matching would take an hour, in every way there is: each ends soon after the
 * interruption. */
static void can_be_interrupted(void **state) {
    (void)state;
    wf_match_desc desc = wf_match_desc_default();
    desc.restarts = 10000;
    for (int way = 0; way < 3; way++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, "40-200-180-10", "relu", 0, &graph));
        size_t n = graph->n_params;
        float *w = malloc(2 * n * sizeof *w), best;
        wf_rng rng = wf_rng_at(5, 0, WF_RNG_TEST, 0);
        wf_rng_normals(&rng, w, 2 * n);
        uint32_t *perm = calloc(wf_graph_perm_size(graph), sizeof *perm), which;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, ctx), 0);
        wf_status status = way == 0 ? wf_match(ctx, graph, w, w + n, &desc, perm, NULL, NULL)
                           : way == 1
                               ? wf_match_pairs(ctx, graph, w, w + n, 1, &desc)
                               : wf_wcs_max(ctx, graph, w, 1, w + n, 1, NULL, &desc, &best, &which);
        pthread_join(thread, NULL);
        assert_fails(ctx, status, WF_ERR_INTERRUPTED, "interrupted while matching");
        free(perm);
        free(w);
        wf_graph_free(graph);
        wf_interrupt_clear(ctx);
    }
}

static void refuses_bad_input(void **state) {
    (void)state;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "3-5-2", "relu", 0, &graph));
    float *a = random_network(graph, 1), *b = random_network(graph, 2);
    uint32_t perm[5];
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = 0;
    assert_fails(ctx, wf_match(ctx, graph, a, b, &desc, perm, NULL, NULL), WF_ERR_USAGE, "sweeps");
    assert_fails(ctx, wf_match_pairs(ctx, graph, a, b, 1, &desc), WF_ERR_USAGE, "sweeps");
    desc = wf_match_desc_default();
    desc.tolerance = NAN;
    assert_fails(ctx, wf_match(ctx, graph, a, b, &desc, perm, NULL, NULL), WF_ERR_USAGE,
                 "tolerance");
    b[3] = INFINITY;
    assert_fails(ctx, wf_match(ctx, graph, a, b, NULL, perm, NULL, NULL), WF_ERR_INPUT,
                 "parameter 3");
    assert_fails(ctx, wf_match_pairs(ctx, graph, a, b, 1, NULL), WF_ERR_INPUT, "not finite");
    free(a), free(b);
    wf_graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_permuted_copies),     cmocka_unit_test(dot_belongs_to_perm),
        cmocka_unit_test(one_hidden_layer_is_exact), cmocka_unit_test(value_is_invariant),
        cmocka_unit_test(pairs_equal_plain_loop),    cmocka_unit_test(aligns_a_collection),
        cmocka_unit_test(can_be_interrupted),        cmocka_unit_test(refuses_bad_input),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
