/* Evaluation on the GPU against the CPU's: overlaps of error masks exactly, masks of networks but
 * for border cases. */
#include "named_cases.h"

#include "base/cuda/device.h"
#include "base/random.h"
#include "eval/cuda/eval_cuda.h"
#include "eval/iou.h"

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

/* Masks with every density from none to all; every fifth is a copy of the one before. */
static uint64_t *make_masks(size_t count, size_t words, uint32_t stream) {
    uint64_t *masks = calloc(count * words + 1, sizeof *masks);
    for (size_t i = 0; i < count; i++) {
        wf_rng rng = wf_rng_at(3, (uint32_t)i, WF_RNG_TEST, stream);
        uint32_t density = wf_rng_u32(&rng) % 9;
        for (size_t w = 0; w < words; w++) {
            for (int bit = 0; bit < 64; bit++)
                masks[i * words + w] |= (uint64_t)(wf_rng_u32(&rng) % 8 < density) << bit;
            if (i % 5 == 4) masks[i * words + w] = masks[(i - 1) * words + w];
        }
    }
    return masks;
}

static void compare_overlaps(wf_ctx *cpu, wf_ctx *gpu, size_t nq, size_t nr, size_t words,
                             bool leave_out) {
    uint64_t *queries = make_masks(nq, words, 1), *refs = make_masks(nr, words, 2);
    int64_t *skip = malloc(nq * sizeof *skip);
    float *best = malloc(2 * nq * sizeof *best);
    uint32_t *which = malloc(2 * nq * sizeof *which);
    for (size_t q = 0; q < nq; q++) {
        skip[q] = q % 4 == 3 ? -1 : (int64_t)(q % nr);
        if (q < nr) memcpy(queries + q * words, refs + q * words, words * sizeof *refs);
    }
    assert_ok(cpu,
              wf__iou_max(cpu, queries, nq, refs, nr, words, leave_out ? skip : NULL, best, which));
    assert_ok(gpu, wf__iou_max(gpu, queries, nq, refs, nr, words, leave_out ? skip : NULL,
                               best + nq, which + nq));
    for (size_t q = 0; q < nq; q++)
        if (best[q] != best[nq + q] || which[q] != which[nq + q])
            fail_msg("%zu x %zu masks of %zu words, query %zu: %.9g (%u) on the CPU, %.9g (%u) on "
                     "the GPU",
                     nq, nr, words, q, (double)best[q], which[q], (double)best[nq + q],
                     which[nq + q]);
    free(queries), free(refs), free(skip), free(best), free(which);
}

static void overlaps(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    bool small = getenv("WEFT_CUDA_SMALL") != NULL;
    static const size_t words[] = {1, 2, 7, 8, 9, 17};
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        compare_overlaps(cpu, gpu, 1, 1, words[w], false);
        compare_overlaps(cpu, gpu, 1, 1, words[w], true);
        compare_overlaps(cpu, gpu, 3, 65, words[w], true);
        compare_overlaps(cpu, gpu, 130, small ? 20 : 1000, words[w], true);
        compare_overlaps(cpu, gpu, 64, 64, words[w], false);
    }
    if (!small) compare_overlaps(cpu, gpu, 16500, 200, 2, true);
    if (!small) compare_overlaps(cpu, gpu, 5, 20000, 3, true);
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

static void compare_masks(wf_ctx *cpu, wf_ctx *gpu, const char *arch, const char *activation,
                          size_t n, size_t tests) {
    wf_graph *graph;
    assert_ok(cpu, wf_graph_parse(cpu, arch, activation, 0, &graph));
    wf_dataset data = {.n_test = tests, .inputs = graph->inputs, .classes = graph->outputs};
    strcpy(data.name, "noise");
    size_t inputs = tests * (size_t)graph->inputs, bytes = (tests + 7) / 8;
    data.x_test = malloc(inputs * sizeof(float));
    data.y_test = malloc(tests * sizeof(int32_t));
    wf_rng rng = wf_rng_at(1, 2, WF_RNG_TEST, 3);
    wf_rng_normals(&rng, data.x_test, inputs);
    for (size_t i = 0; i < tests; i++) data.y_test[i] = (int32_t)(i % (size_t)graph->outputs);
    float *weights = malloc(n * graph->n_params * sizeof *weights);
    rng.step = 4;
    wf_rng_normals(&rng, weights, n * graph->n_params);
    if (n > 2) weights[2 * graph->n_params] = NAN;
    uint8_t *errors = malloc(2 * n * bytes), *masks[2] = {errors, errors + n * bytes};
    float *scores = malloc(2 * n * sizeof *scores);
    assert_ok(
        cpu, wf_score_networks(cpu, graph, weights, n, &data, WF_SCORE_ACCURACY, scores, masks[0]));
    assert_ok(gpu, wf_score_networks(gpu, graph, weights, n, &data, WF_SCORE_ACCURACY, scores + n,
                                     masks[1]));
    size_t different = 0;
    for (size_t i = 0; i < n * bytes; i++)
        different += (size_t)__builtin_popcount((unsigned)(masks[0][i] ^ masks[1][i]));
    if (different > n * tests / 2000)
        fail_msg("%s %s: %zu of %zu answers differ", arch, activation, different, n * tests);
    for (size_t i = 0; i < n; i++)
        assert_close(scores[i], scores[n + i], 1e-6 + (double)different / (double)tests);
    if (n > 2 && strcmp(activation, "relu") == 0 && graph->n_layers == 1)
        assert_close(scores[n + 2], scores[2], 1e-7);
    /* Scores alone, and masks alone. */
    float *again = malloc(n * sizeof *again);
    assert_ok(gpu,
              wf_score_networks(gpu, graph, weights, n, &data, WF_SCORE_ACCURACY, again, NULL));
    assert_memory_equal(again, scores + n, n * sizeof *again);
    assert_ok(gpu,
              wf_score_networks(gpu, graph, weights, n, &data, WF_SCORE_ACCURACY, NULL, masks[0]));
    assert_memory_equal(masks[0], masks[1], n * bytes);
    free(again), free(scores), free(errors), free(weights), free(data.x_test), free(data.y_test);
    wf_graph_free(graph);
}

static void masks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    size_t n = getenv("WEFT_CUDA_SMALL") != NULL ? 3 : 41;
    compare_masks(cpu, gpu, "64-16-8-10", "relu", n, 400);
    compare_masks(cpu, gpu, "5-2", "relu", n, 33);
    compare_masks(cpu, gpu, "7-9-4", "tanh", n, 307);
    compare_masks(cpu, gpu, "6-5!-7!-11-3", "silu", n, 65);
    compare_masks(cpu, gpu, "3-200-2!", "gelu", n, 128);
    compare_masks(cpu, gpu, "1-1-1-2", "sigmoid", n, 1);
    compare_masks(cpu, gpu, "17-130-33-5", "relu", 1, 31);
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

/* A layer that does not fit on the chip, and ROC AUC, are computed on the CPU. */
static void left_to_cpu(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    compare_masks(cpu, gpu, "2-4000-2", "relu", 1, 9);
    assert_string_equal(wf_ctx_devices(gpu), "testing cpu");
    compare_masks(cpu, gpu, "2-4-2", "relu", 1, 9);
    assert_string_equal(wf_ctx_devices(gpu), "testing cpu and cuda");
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

/* Left to choose, small work stays on the CPU; what was chosen can be asked for. */
static void small_work(void **state) {
    (void)state;
    wf_ctx *ctx = device_ctx(WF_DEVICE_AUTO);
    assert_string_equal(wf_ctx_devices(ctx), "");
    uint64_t *refs = make_masks(5, 2, 1);
    float best[5];
    assert_ok(ctx, wf__iou_max(ctx, refs, 5, refs, 5, 2, NULL, best, NULL));
    assert_string_equal(wf_ctx_devices(ctx), "errors cpu");
    for (int i = 0; i < 4; i++) assert_true(best[i] == 1 || best[i] == 0);
    free(refs);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlaps),
        cmocka_unit_test(masks),
        cmocka_unit_test(left_to_cpu),
        cmocka_unit_test(small_work),
    };
    return run_chosen(tests, NULL, NULL);
}
