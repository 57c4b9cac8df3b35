/* Weight matching on the GPU against the CPU's kernels and the plain loop: values and permutations,
 * at odd widths, with ties, copies and networks of zeros. */
#include "named_cases.h"

#include "align/cuda/match_cuda.h"
#include "base/cuda/device.h"
#include "base/random.h"
#include "weft/align.h"

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

/* Two residual blocks, the second with a stride and a projection. */
#define RESIDUAL                                                                                   \
    "{\"input\":[2,6,6],\"layers\":[{\"op\":\"conv\",\"units\":5,\"kernel\":3,\"padding\":1},"     \
    "{\"op\":\"conv\",\"units\":6,\"kernel\":3,\"padding\":1},"                                    \
    "{\"op\":\"conv\",\"units\":5,\"kernel\":3,\"padding\":1},{\"op\":\"add\",\"from\":[1,3]},"    \
    "{\"op\":\"conv\",\"from\":4,\"units\":7,\"kernel\":3,\"padding\":1,\"stride\":2},"            \
    "{\"op\":\"conv\",\"units\":7,\"kernel\":3,\"padding\":1},"                                    \
    "{\"op\":\"conv\",\"from\":4,\"units\":7,\"kernel\":1,\"stride\":2},"                          \
    "{\"op\":\"add\",\"from\":[6,7],\"pool\":{\"kind\":\"global\"}},{\"op\":\"linear\",\"units\":" \
    "3}]}"

static const char *const archs[] = {"5-1-3",
                                    "4-3-2",
                                    "7-9-4",
                                    "6-17-5",
                                    "9-32-3",
                                    "10-33-4",
                                    "3-64-2",
                                    "64-16-8-10",
                                    "5-9!-1-4-2",
                                    "6-5!-7!-11-3",
                                    "20-32-31-10",
                                    "3-64-63-9-2",
                                    "4-17-33-6",
                                    "784-32-32-10",
                                    "2-6-6-6-6-6-2",
                                    "3-40!-40!-3",
                                    "2x6x6 conv5 pool conv9k5 conv4k1! gap linear3",
                                    "1x6x6 conv33 conv16 gap linear2",
                                    RESIDUAL};
enum { n_archs = sizeof archs / sizeof *archs };

/* How networks are made. */
typedef enum kind { GAUSSIAN, TIED, COPIES, ZEROS, KINDS } kind;

/* TIED: weights -1, 0 and 1, so that many assignments have the same value. COPIES: every third
 * network is a relabelling of the one before. ZEROS: every second network is zero. */
static float *make_networks(const wf_graph *graph, size_t count, kind how, uint32_t stream) {
    size_t params = graph->n_params, units = wf_graph_perm_size(graph);
    float *w = malloc(count * params * sizeof *w);
    uint32_t *perm = malloc((units + 1) * sizeof *perm);
    for (size_t i = 0; i < count; i++) {
        wf_rng rng = wf_rng_at(7, (uint32_t)i, WF_RNG_TEST, stream);
        float *place = w + i * params;
        wf_rng_normals(&rng, place, params);
        if (how == TIED)
            for (size_t k = 0; k < params; k++)
                place[k] = place[k] > 0.7f ? 1 : place[k] < -0.7f ? -1 : 0;
        if (how == ZEROS && i % 2 == 1) memset(place, 0, params * sizeof *place);
        if (how == COPIES && i % 3 == 2) {
            for (int orbit = 0; orbit < graph->n_orbits; orbit++)
                wf_rng_shuffle(&rng, perm + wf_graph_perm_start(graph, orbit),
                               (uint32_t)wf__orbit_size(graph, orbit));
            wf_graph_permute(graph, perm, place - params, place);
        }
    }
    free(perm);
    return w;
}

static double dot_of(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

typedef struct setting {
    wf_ctx *cpu, *gpu;
    wf_graph *graph;
    const char *arch;
    wf_match_desc desc;
    size_t different; /* pairs with another permutation, of all */
    size_t all;
} setting;

/* Permutations are the same, or equally good. */
static void compare_pairs(setting *s, kind how, size_t count) {
    size_t params = s->graph->n_params, bytes = count * params * sizeof(float);
    float *a = make_networks(s->graph, count, how, 1), *b = make_networks(s->graph, count, how, 2);
    float *by_cpu = malloc(bytes), *by_gpu = malloc(bytes);
    if (how == COPIES) memcpy(b, a, params * sizeof *b);
    memcpy(by_cpu, b, bytes), memcpy(by_gpu, b, bytes);
    assert_ok(s->cpu, wf_match_pairs(s->cpu, s->graph, a, by_cpu, count, &s->desc));
    assert_ok(s->gpu, wf_match_pairs(s->gpu, s->graph, a, by_gpu, count, &s->desc));
    for (size_t i = 0; i < count; i++) {
        const float *left = by_cpu + i * params, *right = by_gpu + i * params;
        s->all++;
        if (memcmp(left, right, params * sizeof *left) == 0) continue;
        s->different++;
        const float *target = a + i * params;
        double scale = sqrt(dot_of(target, target, params) * dot_of(left, left, params));
        double x = dot_of(target, left, params), y = dot_of(target, right, params);
        if (!(fabs(x - y) <= 1e-5 * scale))
            fail_msg("%s, networks %d, pair %zu: <a, b> %.9g on the CPU, %.9g on the GPU", s->arch,
                     (int)how, i, x, y);
    }
    free(a), free(b), free(by_cpu), free(by_gpu);
}

static void compare_maxima(setting *s, kind how, size_t nq, size_t nr) {
    size_t params = s->graph->n_params;
    float *queries = make_networks(s->graph, nq, how, 3),
          *refs = make_networks(s->graph, nr, how, 4);
    float *best[2];
    uint32_t *which[2];
    int64_t *skip = malloc(nq * sizeof *skip);
    for (size_t q = 0; q < nq; q++) {
        skip[q] = q % 3 == 0 ? -1 : (int64_t)(q % nr);
        if (q < nr) memcpy(queries + q * params, refs + q * params, params * sizeof *refs);
    }
    for (int device = 0; device < 2; device++) {
        wf_ctx *ctx = device == 0 ? s->cpu : s->gpu;
        best[device] = malloc(nq * sizeof **best);
        which[device] = malloc(nq * sizeof **which);
        assert_ok(ctx, wf_wcs_max(ctx, s->graph, queries, nq, refs, nr, skip, &s->desc,
                                  best[device], which[device]));
    }
    for (size_t q = 0; q < nq; q++) {
        if (isnan(best[0][q]) && isnan(best[1][q])) continue;
        if (!(fabs((double)best[0][q] - (double)best[1][q]) <= 1e-5))
            fail_msg("%s, networks %d, %zu x %zu, query %zu: %.9g (reference %u) on the CPU, %.9g "
                     "(%u) on the GPU",
                     s->arch, (int)how, nq, nr, q, (double)best[0][q], which[0][q],
                     (double)best[1][q], which[1][q]);
        if (which[0][q] == which[1][q]) continue;
        /* Another neighbour is right only where both are as near. */
        assert_close(best[0][q], best[1][q], 1e-6);
    }
    for (int device = 0; device < 2; device++) free(best[device]), free(which[device]);
    free(queries), free(refs), free(skip);
}

static void test_same_as_cpu(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    setting s = {.cpu = device_ctx(WF_DEVICE_CPU), .gpu = device_ctx(WF_DEVICE_CUDA)};
    bool small = getenv("WEFT_CUDA_SMALL") != NULL;
    for (int k = 0; k < n_archs; k++) {
        if (!my_case("%s", archs[k])) continue;
        s.arch = archs[k];
        assert_ok(s.cpu, wf_graph_parse(s.cpu, s.arch, "relu", 0, &s.graph));
        s.different = s.all = 0;
        s.desc = wf_match_desc_default();
        assert_true(wf_match_cuda_fits(s.graph, &s.desc)); /* else both were the CPU's */
        for (int how = 0; how < KINDS; how++) {
            s.desc = (wf_match_desc){.sweeps = 5, .tolerance = 1e-12, .seed = (uint64_t)k};
            size_t pairs = small ? 3 : 70;
            compare_pairs(&s, (kind)how, pairs);
            compare_maxima(&s, (kind)how, 1, 1);
            compare_maxima(&s, (kind)how, small ? 2 : 9, pairs + 1);
            s.desc.restarts = 2;
            s.desc.sweeps = 100;
            compare_pairs(&s, (kind)how, small ? 2 : 9);
            compare_maxima(&s, (kind)how, 3, 5);
        }
        printf("%s: %zu of %zu pairs matched otherwise than on the CPU\n", s.arch, s.different,
               s.all);
        wf_graph_free(s.graph);
    }
    wf_ctx_free(s.cpu), wf_ctx_free(s.gpu);
}

/* Several slabs of references and tiles of queries; the CPU's values are those of the plain loop
 * (tests/prop/test_align.c). */
static void many_tiles(void **state) {
    (void)state;
    if (!wf_cuda_available() || getenv("WEFT_CUDA_SMALL") != NULL)
        skip("no GPU, or small cases only");
    setting s = {.cpu = device_ctx(WF_DEVICE_CPU), .gpu = device_ctx(WF_DEVICE_CUDA)};
    s.desc = wf_match_desc_default();
    s.desc.sweeps = 5;
    s.arch = "3-5-2";
    assert_ok(s.cpu, wf_graph_parse(s.cpu, s.arch, "relu", 0, &s.graph));
    compare_maxima(&s, GAUSSIAN, 1100, 9000);
    compare_maxima(&s, TIED, 1, 4097);
    wf_graph_free(s.graph);
    wf_ctx_free(s.cpu), wf_ctx_free(s.gpu);
}

/* One pair against the plain loop in double: the value of the permutation that was found. */
static void same_as_plain(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *gpu = device_ctx(WF_DEVICE_CUDA);
    for (int k = 0; k < n_archs; k++) {
        wf_graph *graph;
        assert_ok(gpu, wf_graph_parse(gpu, archs[k], "relu", 0, &graph));
        size_t params = graph->n_params;
        float *a = make_networks(graph, 1, GAUSSIAN, 5), *b = make_networks(graph, 1, GAUSSIAN, 6);
        float best;
        uint32_t *perm = malloc(wf_graph_perm_size(graph) * sizeof *perm);
        double dot;
        wf_match_desc desc = {.sweeps = 5, .tolerance = 1e-12, .seed = 3};
        assert_ok(gpu, wf_match(gpu, graph, a, b, &desc, perm, &dot, NULL));
        assert_ok(gpu, wf_wcs_max(gpu, graph, a, 1, b, 1, NULL, &desc, &best, NULL));
        assert_close(best, dot / sqrt(dot_of(a, a, params) * dot_of(b, b, params)), 1e-5);
        free(a), free(b), free(perm);
        wf_graph_free(graph);
    }
    wf_ctx_free(gpu);
}

/* All to one network, as wf_align_zoo asks; more pairs than a round holds. */
static void all_to_one(void **state) {
    (void)state;
    if (!wf_cuda_available() || getenv("WEFT_CUDA_SMALL") != NULL)
        skip("no GPU, or small cases only");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    wf_graph *graph;
    assert_ok(cpu, wf_graph_parse(cpu, "2-9-4-3", "relu", 0, &graph));
    size_t count = 4100, params = graph->n_params;
    float *a = make_networks(graph, 1, GAUSSIAN, 1), *b = make_networks(graph, count, GAUSSIAN, 2);
    float *one_by_one = malloc(count * params * sizeof *b), *targets = malloc(count * params * 4);
    memcpy(one_by_one, b, count * params * sizeof *b);
    for (size_t i = 0; i < count; i++) memcpy(targets + i * params, a, params * sizeof *a);
    assert_ok(gpu, wf_match_pairs_cuda(gpu, graph, a, 0, b, count, NULL));
    assert_ok(cpu, wf_match_pairs(cpu, graph, targets, one_by_one, count, NULL));
    size_t different = 0;
    for (size_t i = 0; i < count; i++)
        different += memcmp(b + i * params, one_by_one + i * params, params * sizeof *b) != 0;
    assert_true(different <= count / 1000);
    free(a), free(b), free(one_by_one), free(targets);
    wf_graph_free(graph);
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

static void bad_networks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *gpu = device_ctx(WF_DEVICE_CUDA);
    wf_graph *graph;
    assert_ok(gpu, wf_graph_parse(gpu, "4-5-3-2", "relu", 0, &graph));
    float *a = make_networks(graph, 3, GAUSSIAN, 1), *b = make_networks(graph, 3, GAUSSIAN, 2);
    float best[3];
    b[2 * graph->n_params + 4] = NAN;
    assert_fails(gpu, wf_match_pairs(gpu, graph, a, b, 3, NULL), WF_ERR_INPUT, "pair 2");
    assert_fails(gpu, wf_wcs_max(gpu, graph, a, 3, b, 3, NULL, NULL, best, NULL), WF_ERR_INPUT,
                 "reference network 2");
    assert_fails(gpu, wf_wcs_max(gpu, graph, b, 3, a, 3, NULL, NULL, best, NULL), WF_ERR_INPUT,
                 "query network 2");
    b[2 * graph->n_params + 4] = 3e30f;
    assert_fails(gpu, wf_wcs_max(gpu, graph, b, 3, a, 3, NULL, NULL, best, NULL), WF_ERR_INPUT,
                 "far too large");
    int64_t only = 0;
    assert_ok(gpu, wf_wcs_max(gpu, graph, a, 1, a, 1, &only, NULL, best, NULL));
    assert_true(isnan(best[0]));
    free(a), free(b);
    wf_graph_free(graph);
    wf_ctx_free(gpu);
}

/* Too wide for the GPU: the CPU takes over, with the same answer. */
static void too_wide(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    setting s = {.cpu = device_ctx(WF_DEVICE_CPU), .gpu = device_ctx(WF_DEVICE_CUDA)};
    s.desc = wf_match_desc_default();
    s.arch = "3-65-2";
    assert_ok(s.cpu, wf_graph_parse(s.cpu, s.arch, "relu", 0, &s.graph));
    assert_false(wf_match_cuda_fits(s.graph, &s.desc));
    wf_match_cuda *matcher;
    assert_fails(s.gpu, wf_match_cuda_open(s.gpu, s.graph, &s.desc, 4, &matcher),
                 WF_ERR_UNSUPPORTED, "at most 64 units");
    compare_pairs(&s, GAUSSIAN, 3);
    compare_maxima(&s, GAUSSIAN, 2, 3);
    assert_int_equal(s.different, 0);
    wf_graph_free(s.graph);
    wf_ctx_free(s.cpu), wf_ctx_free(s.gpu);
}

static void absent(void **state) {
    (void)state;
    if (wf_cuda_available()) skip("there is a GPU");
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "2-3-2", "relu", 0, &graph));
    float *a = make_networks(graph, 2, GAUSSIAN, 1), best[2];
    assert_fails(ctx, wf_wcs_max(ctx, graph, a, 2, a, 2, NULL, NULL, best, NULL),
                 WF_ERR_UNSUPPORTED, "device cuda");
    free(a);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu), cmocka_unit_test(many_tiles),
        cmocka_unit_test(same_as_plain),    cmocka_unit_test(bad_networks),
        cmocka_unit_test(all_to_one),       cmocka_unit_test(too_wide),
        cmocka_unit_test(absent),
    };
    return run_chosen(tests, NULL, NULL);
}
