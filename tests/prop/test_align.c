/* The fast matching against the plain loop, on many shapes; invariances; leave-one-out; thread
 * counts. */
#include "wf_test.h"
#include "network_case.h"

#include "base/random.h"
#include "weft/align.h"

static const char *const archs[] = {"2-16-3",      "64-16-8-10", "3-7-5-9-2", "4-33-17!-3",
                                    "5-2",         "6-1-1-2",    "9-40-3",    "3-70-20!-2",
                                    "2-5-5-5-5-2", "8-32-32-4"};
enum { n_archs = sizeof archs / sizeof *archs };

static float *random_networks(const wf_graph *graph, size_t count, uint32_t index) {
    float *w = malloc(count * graph->n_params * sizeof *w + 1);
    wf_rng rng = wf_rng_at(15, index, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, w, count * graph->n_params);
    return w;
}

/* Without running statistics, which take no part in the matching. */
static double norm(const wf_graph *graph, const float *w) {
    double sum = 0;
    for (int b = 0; b < graph->n_blocks; b++)
        for (size_t i = 0; i < graph->blocks[b].count && wf_block_trained(&graph->blocks[b]); i++)
            sum += pow((double)w[graph->blocks[b].offset + i], 2);
    return sqrt(sum);
}

/* Largest cosine by the plain loop. */
static double plain_max(wf_ctx *ctx, const wf_graph *graph, const float *query, const float *refs,
                        size_t nr, int64_t skip, const wf_match_desc *desc, uint32_t *which) {
    size_t n = graph->n_params;
    uint32_t *perm = malloc((wf_graph_perm_size(graph) + 1) * sizeof *perm);
    double best = -2;
    for (size_t r = 0; r < nr; r++) {
        double dot;
        if ((int64_t)r == skip) continue;
        assert_ok(ctx, wf_match(ctx, graph, query, refs + r * n, desc, perm, &dot, NULL));
        double value = dot / (norm(graph, query) * norm(graph, refs + r * n));
        if (value > best) best = value, *which = (uint32_t)r;
    }
    free(perm);
    return best;
}

static void compare(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc, size_t nq,
                    size_t nr) {
    float *queries = random_networks(graph, nq, 1), *refs = random_networks(graph, nr, 2);
    float *best = malloc(nq * sizeof *best);
    uint32_t *which = malloc(nq * sizeof *which), expected = 0;
    int64_t *skip = malloc(nq * sizeof *skip);
    for (size_t q = 0; q < nq; q++) skip[q] = q % 3 == 0 ? -1 : (int64_t)(q % nr);
    assert_ok(ctx, wf_wcs_max(ctx, graph, queries, nq, refs, nr, skip, desc, best, which));
    for (size_t q = 0; q < nq; q++) {
        double value = plain_max(ctx, graph, queries + q * graph->n_params, refs, nr, skip[q], desc,
                                 &expected);
        assert_close(best[q], value, 1e-6);
        assert_int_equal(which[q], expected);
    }
    free(queries), free(refs), free(best), free(which), free(skip);
}

static void fast_equals_plain(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (int k = 0; k < n_archs; k++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, archs[k], "relu", 0, &graph));
        wf_match_desc desc = {.sweeps = 5, .tolerance = 1e-12, .seed = (uint64_t)k};
        compare(ctx, graph, &desc, 5, 37);
        desc.restarts = 2;
        desc.sweeps = 3;
        compare(ctx, graph, &desc, 2, 9);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

/* Many tiles, slabs and query groups, with ends that do not fit. */
static void fast_equals_plain_across_chunks(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *graph;
    wf_match_desc desc = {.sweeps = 5, .tolerance = 1e-12};
    assert_ok(ctx, wf_graph_parse(ctx, "2-4-3-2", "relu", 0, &graph));
    compare(ctx, graph, &desc, 67, 301);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

/* Kernels of several sizes, images that are flattened, norms, orbits that several groups share, and
 * a block from an orbit to itself. */
static const char *const described[] = {
    "3x6x6 conv6 pool conv19k2p0! batchnorm linear9 linear2",
    "2x5x5 conv7k1 layernorm conv4k5 gap linear3",
    "3x32x32 conv16 pool conv32 pool conv48 gap linear10",
    loop_json,
    resnet_json,
};
enum { n_described = sizeof described / sizeof *described };

static void fast_equals_plain_on_any_description(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_match_desc desc = {.sweeps = 4, .tolerance = 1e-12, .restarts = 1};
    for (int i = 0; i < n_described; i++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, described[i], "relu", 0, &graph));
        compare(ctx, graph, &desc, i == 2 ? 2 : 6, i == 2 ? 3 : 40);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

/* A relabelled copy is put back bit for bit, running statistics too, and what the matching says of
 * its dot product is true. Random networks are matched no worse than they stand. */
static void any_description_is_put_back(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (int i = 0; i < n_described; i++) {
        wf_graph *graph;
        assert_ok(ctx, wf_graph_parse(ctx, described[i], "relu", 0, &graph));
        size_t n = graph->n_params, units = wf_graph_perm_size(graph);
        float *w = random_networks(graph, 2, 1), *moved = malloc(n * sizeof *moved),
              *back = malloc(n * sizeof *back);
        uint32_t *perm = malloc(units * sizeof *perm);
        for (int o = 0; o < graph->n_orbits; o++) {
            wf_rng rng = wf_rng_at(16, (uint32_t)o, WF_RNG_TEST, 0);
            size_t start = wf_graph_perm_start(graph, o);
            wf_rng_shuffle(&rng, perm + start,
                           (uint32_t)(wf_graph_perm_start(graph, o + 1) - start));
        }
        wf_graph_permute(graph, perm, w, moved);
        wf_graph_permute_inverse(graph, perm, moved, back);
        assert_memory_equal(w, back, n * sizeof *w);
        for (int copy = 0; copy < 2; copy++) {
            double dot = 0, after = 0, before = 0;
            wf_match_desc desc = {.sweeps = 100, .tolerance = 1e-12, .restarts = copy ? 20 : 0};
            const float *other = copy ? moved : w + n;
            assert_ok(ctx, wf_match(ctx, graph, w, other, &desc, perm, &dot, NULL));
            wf_graph_permute(graph, perm, other, back);
            for (int b = 0; b < graph->n_blocks; b++)
                for (size_t k = 0; k < graph->blocks[b].count; k++) {
                    size_t at = graph->blocks[b].offset + k;
                    if (!wf_block_trained(&graph->blocks[b])) continue;
                    after += (double)w[at] * (double)back[at];
                    before += (double)w[at] * (double)other[at];
                }
            assert_close(dot, after, 1e-9 * fabs(after));
            assert_true(after >= before);
            if (copy) assert_memory_equal(w, back, n * sizeof *w);
        }
        free(w), free(moved), free(back), free(perm);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

/* The matched cosine of a relabelled copy is 1, and relabelling either side cannot raise it above
 * that. */
static void copies_have_cosine_one(void **state) {
    (void)state;
    enum { count = 8 };
    wf_ctx *ctx = test_ctx();
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "10-12-3", "relu", 0, &graph));
    size_t n = graph->n_params;
    float *w = random_networks(graph, count, 3), *moved = malloc(count * n * sizeof *moved);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t perm[12];
        wf_rng rng = wf_rng_at(16, i, WF_RNG_TEST, 0);
        wf_rng_shuffle(&rng, perm, 12);
        wf_graph_permute(graph, perm, w + i * n, moved + i * n);
    }
    float best[count];
    uint32_t which[count];
    assert_ok(ctx, wf_wcs_max(ctx, graph, moved, count, w, count, NULL, NULL, best, which));
    for (uint32_t i = 0; i < count; i++) {
        assert_close(best[i], 1, 1e-6);
        assert_true(best[i] <= 1);
        assert_int_equal(which[i], i);
    }
    free(w), free(moved);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

static void thread_count_changes_nothing(void **state) {
    (void)state;
    enum { nq = 40, nr = 300 };
    float best[3][nq];
    uint32_t which[3][nq];
    for (int t = 0; t < 3; t++) {
        wf_ctx *ctx;
        wf_ctx_desc desc = {.threads = 1 + t};
        wf_graph *graph;
        assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
        assert_ok(ctx, wf_graph_parse(ctx, "4-8-6-3", "relu", 0, &graph));
        float *queries = random_networks(graph, nq, 1), *refs = random_networks(graph, nr, 2);
        assert_ok(ctx,
                  wf_wcs_max(ctx, graph, queries, nq, refs, nr, NULL, NULL, best[t], which[t]));
        free(queries), free(refs);
        wf_graph_free(graph);
        wf_ctx_free(ctx);
    }
    for (int t = 1; t < 3; t++) {
        assert_memory_equal(best[t], best[0], sizeof best[0]);
        assert_memory_equal(which[t], which[0], sizeof which[0]);
    }
}

/* Zero networks, identical units (exact ties everywhere), one reference that is left out. */
static void odd_inputs(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "3-20-18-2", "relu", 0, &graph));
    size_t n = graph->n_params;
    float *a = random_networks(graph, 1, 1), *zero = calloc(n, sizeof *zero), best;
    uint32_t which;
    const int64_t self = 0;
    assert_ok(ctx, wf_wcs_max(ctx, graph, a, 1, zero, 1, NULL, NULL, &best, &which));
    assert_close(best, 0, 0);
    assert_ok(ctx, wf_wcs_max(ctx, graph, a, 1, a, 1, &self, NULL, &best, &which));
    assert_true(isnan(best));
    for (size_t i = 0; i < n; i++) a[i] = 1;
    assert_ok(ctx, wf_wcs_max(ctx, graph, a, 1, a, 1, NULL, NULL, &best, &which));
    assert_close(best, 1, 1e-6);
    a[5] = NAN;
    assert_fails(ctx, wf_wcs_max(ctx, graph, a, 1, zero, 1, NULL, NULL, &best, &which),
                 WF_ERR_INPUT, "query network 0");
    assert_fails(ctx, wf_wcs_max(ctx, graph, zero, 1, a, 1, NULL, NULL, &best, &which),
                 WF_ERR_INPUT, "reference network 0");
    assert_fails(ctx, wf_wcs_max(ctx, graph, zero, 1, a, 0, NULL, NULL, &best, &which),
                 WF_ERR_USAGE, "0 reference");
    free(a), free(zero);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_equals_plain),
        cmocka_unit_test(fast_equals_plain_across_chunks),
        cmocka_unit_test(fast_equals_plain_on_any_description),
        cmocka_unit_test(any_description_is_put_back),
        cmocka_unit_test(copies_have_cosine_one),
        cmocka_unit_test(thread_count_changes_nothing),
        cmocka_unit_test(odd_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
