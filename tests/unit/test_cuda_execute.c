/* Described networks on the GPU against the CPU's forward pass; also on the emulator. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "base/random.h"
#include "graph/cuda/execute_cuda.h"
#include "named_cases.h"
#include "weft/graph.h"

#include <math.h>

enum { networks = 3, examples = 37 }; /* a tile and a part of one */

/* Every kind of layer; a linear layer deeper than a slab of weights. */
static const char *const archs[] = {
    "3x12x10 conv16 pool conv9 gap linear5",
    "2x11x9 conv5k5s2p1 avgpool3s2p1 conv4k1! linear7 linear3",
    "1x10x10 conv6 batchnorm gelu pool3s2p1 conv3k3p0 layernorm silu linear4",
    "9 linear8 batchnorm sigmoid linear6 layernorm tanh linear2",
    "3x9x8 conv4! batchnorm basic4x1 basic6x1s2 gap linear5",
    "3x10x11 linear13 linear2",
};

static void test_forward(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx_desc desc = {.threads = 2, .device = WF_DEVICE_CUDA};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        if (!my_case("%zu", a)) continue;
        wf_graph *graph = NULL;
        assert_ok(ctx, wf_graph_parse(ctx, archs[a], "relu", 0, &graph));
        size_t n = graph->n_params, inputs = (size_t)graph->inputs,
               rows = (size_t)graph->outputs * examples;
        float *w = malloc(networks * n * sizeof *w), *x = malloc(examples * inputs * sizeof *x);
        float *here = malloc(rows * sizeof *here), *there = malloc(networks * rows * sizeof *there);
        uint8_t errors[networks][(examples + 7) / 8];
        int32_t labels[examples];
        wf_rng rng = wf_rng_at(7, (uint32_t)a, WF_RNG_TEST, 0);
        wf_rng_normals(&rng, w, networks * n);
        wf_rng_normals(&rng, x, examples * inputs);
        for (size_t k = 0; k < networks; k++)
            for (int b = 0; b < graph->n_blocks; b++)
                for (size_t i = 0; i < graph->blocks[b].count; i++) {
                    float *at = &w[k * n + graph->blocks[b].offset + i];
                    *at = graph->blocks[b].kind == WF_BLOCK_VARIANCE ? fabsf(*at) + 0.5f : *at / 3;
                }
        for (int i = 0; i < examples; i++) labels[i] = i % graph->outputs;
        assert_ok(ctx,
                  wf__execute_cuda(ctx, graph, w, networks, x, labels, examples, errors[0], there));
        for (size_t k = 0; k < networks; k++) {
            assert_ok(ctx, wf_graph_forward(ctx, graph, w + k * n, x, examples, here));
            double difference = relative_difference(there + k * rows, here, rows);
            print_message("%s: logits differ by %.1e\n", archs[a], difference);
            assert_true(difference < 1e-5);
            for (int i = 0; i < examples; i++) {
                const float *z = there + k * rows + i * graph->outputs;
                int best = 0;
                for (int o = 1; o < graph->outputs; o++)
                    if (z[o] > z[best]) best = o;
                assert_int_equal(errors[k][i / 8] >> i % 8 & 1, best != labels[i]);
            }
        }
        free(w), free(x), free(here), free(there);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

static int group(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward)};
    return run_chosen(tests, NULL, NULL);
}
int main(void) { return run_in_processes(group); }
