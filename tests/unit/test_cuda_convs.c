/* Chains of convolutions trained on the GPU against the CPU engine: the same networks but for the
 * rounding of bf16, over few updates; also on the emulator.
 *
 * One update: images and kernels of small whole numbers are exact in bf16, so every relu and every
 * maximum decides alike, ties included, and only gradients are rounded. Several updates: a rounding
 * that turns one relu the other way shows in a whole gradient of few images: the bound is wide. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "base/random.h"
#include "weft/zoo.h"

#include <math.h>

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

enum { networks = 3 };

typedef struct conv_case {
    const char *name, *arch;
    int batch, epochs;
    size_t examples;
    bool adam, changed; /* changed: flips and crops */
    bool exact;         /* whole numbers */
    double bound;       /* of the difference of steps */
    double smoothing, decay;
} conv_case;

static const conv_case cases[] = {
    {"one-update", "3x8x16 conv16 pool conv16 gap linear4", 5, 1, 5, false, true, true, 0.01, 0.1,
     5e-4},
    {"odd", "1x7x9 conv5k5 pool conv20 conv7k1! gap linear3", 4, 1, 4, false, false, true, 0.01, 0,
     0},
    {"wide", "2x6x6 conv40k3 conv64 gap linear12", 3, 1, 3, false, false, true, 0.01, 0, 0},
    {"deep", "1x16x8 conv16 pool conv32 pool conv48 gap linear5", 4, 1, 4, false, true, true, 0.01,
     0.1, 1e-3},
    {"paper", "3x32x32 conv16 pool conv32 pool conv48 gap linear10", 2, 1, 2, false, true, true,
     0.01, 0.1, 5e-4},
    {"six-updates", "3x8x16 conv16 pool conv16 gap linear4", 5, 2, 12, false, true, false, 0.15,
     0.1, 5e-4},
    {"paper-updates", "3x32x32 conv16 pool conv32 pool conv48 gap linear10", 5, 2, 8, false, true,
     false, 0.15, 0.1, 5e-4},
    {"paper-adam", "3x32x32 conv16 pool conv32 pool conv48 gap linear10", 4, 1, 7, true, false,
     false, 0.45, 0.1, 0},
    {"adam", "2x8x8 conv8 conv16 gap linear3", 4, 2, 10, true, false, false, 0.25, 0.1, 0},
};

static void fill(wf_dataset *data, const wf_graph *graph, size_t n, bool exact) {
    size_t inputs = (size_t)graph->inputs;
    *data = (wf_dataset){.n_train = n,
                         .n_test = n,
                         .inputs = graph->inputs,
                         .classes = graph->outputs,
                         .channels = graph->groups[0].n,
                         .height = graph->groups[0].height,
                         .width = graph->groups[0].width};
    strcpy(data->name, "noise");
    strcpy(data->fingerprint, "none");
    data->x_train = malloc(n * inputs * sizeof(float));
    data->y_train = malloc(n * sizeof(int32_t));
    wf_rng rng = wf_rng_at(1, 2, WF_RNG_TEST, 3);
    wf_rng_normals(&rng, data->x_train, n * inputs);
    for (size_t i = 0; exact && i < n * inputs; i++)
        data->x_train[i] = fmaxf(-2, fminf(2, roundf(data->x_train[i])));
    for (size_t i = 0; i < n; i++) data->y_train[i] = (int32_t)(i % (size_t)data->classes);
    data->x_test = data->x_train;
    data->y_test = data->y_train;
}

static wf_zoo_desc desc_of(const conv_case *c) {
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = networks;
    desc.batch = c->batch;
    desc.epochs = desc.epochs_max = c->epochs;
    desc.optimizer = c->adam ? WF_ZOO_ADAM : WF_ZOO_SGD;
    desc.momentum = c->adam ? 0 : 0.9;
    desc.nesterov = !c->adam;
    desc.cosine = true;
    desc.lr = desc.lr_max = c->adam ? 1e-3 : 0.05;
    desc.label_smoothing = c->smoothing;
    desc.weight_decay = c->decay;
    desc.flip = c->changed;
    desc.crop = c->changed ? 2 : 0;
    return desc;
}

/* Kernels of -1, 0 and 1, few of them not 0. */
static void round_kernels(const wf_graph *graph, uint32_t network, float *w) {
    wf_rng rng = wf_rng_at(4, network, WF_RNG_TEST, 5);
    for (int b = 0; b < graph->n_blocks; b++)
        for (size_t i = 0; i < graph->blocks[b].count; i++) {
            uint32_t draw = wf_rng_below(&rng, graph->blocks[b].layer == 0 ? 4 : 12);
            if (graph->layers[graph->blocks[b].layer].op == WF_LAYER_CONV)
                w[graph->blocks[b].offset + i] = draw == 0 ? 1 : draw == 1 ? -1 : 0;
        }
}

/* The step of training is compared: weights move little, and would agree if nothing were done. */
static void test_networks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    size_t failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (!my_case("%s", cases[c].name)) continue;
        wf_graph *graph = NULL;
        assert_ok(cpu, wf_graph_parse(cpu, cases[c].arch, "relu", 0, &graph));
        wf_dataset data;
        fill(&data, graph, cases[c].examples, cases[c].exact);
        wf_zoo_desc desc = desc_of(&cases[c]);
        size_t n = graph->n_params, floats = desc.count * n;
        float *memory = malloc(4 * floats * sizeof *memory);
        float *start = memory, *a = start + floats, *b = a + floats, *again = b + floats;
        for (uint32_t k = 0; k < networks; k++) {
            wf_zoo_init(graph, 3, k, start + k * n);
            if (cases[c].exact) round_kernels(graph, k, start + k * n);
        }
        memcpy(a, start, floats * sizeof *a);
        memcpy(b, start, floats * sizeof *b);
        memcpy(again, start, floats * sizeof *b);
        assert_ok(cpu, wf_zoo_train_from(cpu, graph, &data, &desc, a));
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, b));
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, again));
        assert_memory_equal(b, again, floats * sizeof *b);
        for (size_t i = 0; i < floats; i++) a[i] -= start[i], b[i] -= start[i];
        for (int block = 0; block < graph->n_blocks; block++) {
            double worst = 0;
            for (size_t k = 0; k < networks; k++) {
                size_t at = k * n + graph->blocks[block].offset;
                double difference = relative_difference(b + at, a + at, graph->blocks[block].count);
                if (!(difference <= worst)) worst = difference;
            }
            print_message("%s, %s: steps differ by %.1e\n", cases[c].name,
                          graph->blocks[block].name, worst);
            failed += !(worst <= cases[c].bound);
        }
        free(memory), free(data.x_train), free(data.y_train);
        wf_graph_free(graph);
    }
    wf_ctx_free(cpu), wf_ctx_free(gpu);
    assert_int_equal(failed, 0);
}

/* Collections from both devices: the same start, shuffles and masks of errors. Weights hardly move,
 * and only logits that bf16 puts in another order may differ. */
static void compare_scores(const char *arch, size_t examples) {
    wf_ctx *ctx[] = {device_ctx(WF_DEVICE_CPU), device_ctx(WF_DEVICE_CUDA)};
    wf_graph *graph = NULL;
    assert_ok(ctx[0], wf_graph_parse(ctx[0], arch, "relu", 0, &graph));
    wf_dataset data;
    fill(&data, graph, examples, false);
    data.n_train = 5;
    conv_case still = {.batch = 3, .epochs = 1, .changed = true};
    wf_zoo_desc desc = desc_of(&still);
    desc.lr = desc.lr_max = 1e-9;
    wf_zoo *zoo[2];
    for (int d = 0; d < 2; d++) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/weft_convs_%d_%d.safetensors", (int)getpid(), d);
        assert_ok(ctx[d], wf_zoo_train(ctx[d], graph, &data, &desc, path, NULL));
        assert_ok(ctx[d], wf_zoo_open(ctx[d], path, &zoo[d]));
        remove(path);
    }
    float *w = calloc(2 * graph->n_params, sizeof *w);
    const float *scores[] = {wf_zoo_scores(zoo[0], NULL), wf_zoo_scores(zoo[1], NULL)};
    size_t bytes, differing = 0;
    const uint8_t *masks[] = {wf_zoo_errors(zoo[0], NULL, &bytes),
                              wf_zoo_errors(zoo[1], NULL, &bytes)};
    for (size_t i = 0; i < networks * bytes; i++)
        differing += (size_t)__builtin_popcount(masks[0][i] ^ masks[1][i]);
    print_message("%zu of %zu predictions differ\n", differing, networks * examples);
    assert_true(differing * 20 <= networks * examples);
    for (size_t k = 0; k < networks; k++) {
        wf_zoo_get(zoo[0], k, w), wf_zoo_get(zoo[1], k, w + graph->n_params);
        assert_true(relative_difference(w + graph->n_params, w, graph->n_params) < 1e-6);
        print_message("scores %.3f and %.3f\n", (double)scores[0][k], (double)scores[1][k]);
        assert_true(fabsf(scores[0][k] - scores[1][k]) < 0.05f);
    }
    free(w), free(data.x_train), free(data.y_train);
    wf_zoo_free(zoo[0]), wf_zoo_free(zoo[1]);
    wf_graph_free(graph);
    wf_ctx_free(ctx[0]), wf_ctx_free(ctx[1]);
}

static void test_scores(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    if (my_case("general")) compare_scores("1x6x7 conv8 pool conv9 gap linear3", 61);
    if (my_case("paper")) compare_scores("3x32x32 conv16 pool conv32 pool conv48 gap linear10", 29);
}

static void warn(void *said, const char *sentence) { snprintf(said, 400, "%s", sentence); }

/* What the kernel does not take is trained on the CPU, and said. */
static void test_others(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    static const char *const others[][2] = {
        {"1x6x6 conv4 batchnorm conv4 gap linear2", "layer 1 of 1x6x6"},
        {"1x6x6 conv4s2 conv4 gap linear2", "stride 1"},
        {"1x6x6 conv4 conv4 linear2", "a global average at the end"},
    };
    wf_ctx *gpu = device_ctx(WF_DEVICE_CUDA);
    char said[400] = "";
    wf_ctx_on_warning(gpu, warn, said);
    for (size_t c = 0; c < sizeof others / sizeof *others; c++) {
        if (!my_case("%zu", c)) continue;
        wf_graph *graph = NULL;
        assert_ok(gpu, wf_graph_parse(gpu, others[c][0], "relu", 0, &graph));
        wf_dataset data;
        fill(&data, graph, 6, false);
        conv_case plain = {.batch = 3, .epochs = 1};
        wf_zoo_desc desc = desc_of(&plain);
        float *w = calloc(desc.count * graph->n_params, sizeof *w);
        for (size_t k = 0; k < desc.count; k++)
            wf_zoo_init(graph, 3, (uint32_t)k, w + k * graph->n_params);
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, w));
        assert_non_null(strstr(said, others[c][1]));
        assert_non_null(strstr(said, "on the CPU"));
        free(w), free(data.x_train), free(data.y_train);
        wf_graph_free(graph);
    }
    wf_ctx_free(gpu);
}

static int group(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_networks),
                                       cmocka_unit_test(test_scores),
                                       cmocka_unit_test(test_others)};
    return run_chosen(tests, NULL, NULL);
}
int main(void) { return run_in_processes(group); }
