/* The zoo engine on the GPU against the CPU's: the same networks up to rounding, at odd sizes. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "base/random.h"
#include "weft/zoo.h"

#include <math.h>
#include <unistd.h>

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

/* Normal inputs, or bytes / 255 of which two in three are 0. */
static void fill_inputs(float *x, size_t n, bool pixels, uint32_t step) {
    wf_rng rng = wf_rng_at(1, 2, WF_RNG_TEST, step);
    wf_rng_normals(&rng, x, n);
    for (size_t i = 0; pixels && i < n; i++) {
        float byte = floorf(255 * fabsf(x[i]) / 2);
        x[i] = x[i] < 0.5f ? 0 : fminf(byte, 255) / 255;
    }
}

static void fill_dataset(wf_dataset *data, int inputs, int classes, size_t n, bool pixels) {
    *data = (wf_dataset){.n_train = n, .n_test = n / 3, .inputs = inputs, .classes = classes};
    strcpy(data->name, "noise");
    strcpy(data->fingerprint, "none");
    data->x_train = malloc(n * (size_t)inputs * sizeof(float));
    data->x_test = malloc(n * (size_t)inputs * sizeof(float));
    data->y_train = malloc(n * sizeof(int32_t));
    data->y_test = malloc(n * sizeof(int32_t));
    fill_inputs(data->x_train, n * (size_t)inputs, pixels, 3);
    fill_inputs(data->x_test, n * (size_t)inputs, pixels, 4);
    for (size_t i = 0; i < n; i++)
        data->y_train[i] = data->y_test[i] = (int32_t)(i % (size_t)classes);
}

static void free_dataset(wf_dataset *data) {
    free(data->x_train), free(data->x_test), free(data->y_train), free(data->y_test);
}

typedef struct network_case {
    const char *arch, *activation;
    int batch, epochs;
    size_t count;
    bool pixels, sgd, cosine, nesterov;
    double smoothing, decay;
} network_case;

/* 307 examples; batch and epochs such that most take about 20 updates. */
static const network_case cases[] = {
    {"64-16-8-10", "relu", 128, 7, 37, false, false, false, false, 0, 0},
    {"64-16-8-10", "tanh", 33, 2, 37, false, false, true, false, 0.1, 1e-3},
    {"7-5-3", "tanh", 33, 3, 37, false, false, true, false, 0.1, 1e-3},
    {"5-9!-1-4-2", "gelu", 200, 3, 37, false, true, true, true, 0, 1e-3},
    {"3-2", "silu", 1, 1, 37, false, true, false, false, 0, 0},
    {"9-33-7-3", "silu", 50, 3, 37, false, false, false, false, 0, 0},
    {"4-7-2!", "sigmoid", 17, 3, 37, false, true, false, false, 0.2, 0},
    {"20-10", "relu", 40, 3, 5, false, false, false, false, 0, 0},       /* one layer */
    {"784-32-32-10", "tanh", 64, 4, 5, true, false, false, false, 0, 0}, /* two blocks */
    {"784-32-32-10", "relu", 64, 4, 12, true, false, false, false, 0, 0},
    {"784-32-32-10", "relu", 64, 4, 5, false, true, true, true, 0.1, 1e-3}, /* two planes */
    {"784-16-10", "gelu", 50, 3, 3, true, true, false, false, 0, 1e-3},
    {"300-64-7-5", "silu", 100, 6, 3, false, false, true, false, 0.1, 0},
    {"2000-40-20-6", "sigmoid", 33, 2, 3, true, false, false, false, 0, 1e-4}, /* left to the CPU */
    {"3072-32!-10", "relu", 64, 2, 3, true, false, false, false, 0,
     0}, /* eight blocks; fp32: CPU */
    {"61-21-5", "tanh", 77, 5, 3, false, false, false, false, 0, 0},
    {"40-150-100-10", "relu", 64, 2, 3, false, false, false, false, 0, 0}, /* state off chip */
    {"900-300-10", "relu", 300, 2, 2, true, false, false, false, 0, 0},
};

/* WEFT_CUDA_SMALL: an epoch of two networks, for tools that slow the program down. */
static wf_zoo_desc desc_of(const network_case *c) {
    bool small = getenv("WEFT_CUDA_SMALL") != NULL;
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = small ? 2 : c->count;
    desc.batch = c->batch;
    desc.epochs = desc.epochs_max = small ? 1 : c->epochs;
    desc.optimizer = c->sgd ? WF_ZOO_SGD : WF_ZOO_ADAM;
    desc.momentum = c->sgd ? 0.9 : 0;
    desc.lr = desc.lr_max = 1e-3;
    desc.cosine = c->cosine;
    desc.nesterov = c->nesterov;
    desc.label_smoothing = c->smoothing;
    desc.weight_decay = c->decay;
    return desc;
}

/* Networks whose weights differ by more than `bound` by norm, and the largest difference. */
static size_t differences(const float *a, const float *b, size_t count, size_t n, double bound,
                          double *worst) {
    size_t beyond = 0;
    *worst = 0;
    for (size_t k = 0; k < count; k++) {
        double difference = relative_difference(b + k * n, a + k * n, n);
        beyond += !(difference <= bound);
        if (!(difference <= *worst)) *worst = difference;
    }
    return beyond;
}

static void same_networks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    size_t failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (!my_case("%s-%s-%s", cases[c].arch, cases[c].activation, cases[c].sgd ? "sgd" : "adam"))
            continue;
        wf_graph *graph = NULL;
        assert_ok(cpu, wf_graph_parse(cpu, cases[c].arch, cases[c].activation, 0, &graph));
        wf_dataset data;
        fill_dataset(&data, graph->inputs, graph->outputs, 307, cases[c].pixels);
        wf_zoo_desc desc = desc_of(&cases[c]);
        size_t floats = desc.count * graph->n_params;
        float *start = malloc(floats * sizeof *start), *a = malloc(floats * sizeof *a),
              *b = malloc(floats * sizeof *b);
        for (size_t k = 0; k < desc.count; k++)
            wf_zoo_init(graph, 3, (uint32_t)k, start + k * graph->n_params);
        memcpy(a, start, floats * sizeof *a);
        assert_ok(cpu, wf_zoo_train_from(cpu, graph, &data, &desc, a));
        for (int fp32 = 1; fp32 >= 0; fp32--) {
            memcpy(b, start, floats * sizeof *b);
            desc.fp32 = fp32;
            assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, b));
            double worst, bound = fp32 ? 1e-5 : 1e-3;
            size_t beyond = differences(a, b, desc.count, graph->n_params, bound, &worst);
            print_message("%s %s batch %d %s: %.2e, %zu of %zu networks beyond %.0e\n",
                          cases[c].arch, cases[c].activation, desc.batch, fp32 ? "fp32" : "mixed",
                          worst, beyond, desc.count, bound);
            /* A unit at the kink of relu may fall to the other side for one example. */
            bool kinks = !fp32 && strcmp(cases[c].activation, "relu") == 0;
            if (fp32) failed += !(relative_difference(b, a, floats) <= bound);
            else failed += beyond > (kinks ? (desc.count + 3) / 4 : 0);
        }
        free(start), free(a), free(b), free_dataset(&data);
        wf_graph_free(graph);
    }
    wf_ctx_free(cpu), wf_ctx_free(gpu);
    assert_int_equal(failed, 0);
}

/* The same call twice gives the same bits, also when networks are trained in other company. */
static void same_bits(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_ctx *gpu = device_ctx(WF_DEVICE_CUDA);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c += 4) {
        wf_graph *graph = NULL;
        assert_ok(gpu, wf_graph_parse(gpu, cases[c].arch, cases[c].activation, 0, &graph));
        wf_dataset data;
        fill_dataset(&data, graph->inputs, graph->outputs, 307, cases[c].pixels);
        wf_zoo_desc desc = desc_of(&cases[c]);
        size_t n = graph->n_params;
        float *a = calloc(desc.count * n, sizeof *a), *b = calloc(n, sizeof *b);
        for (size_t k = 0; k < desc.count; k++) wf_zoo_init(graph, 3, (uint32_t)k, a + k * n);
        memcpy(b, a + n, n * sizeof *b);
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, a));
        desc.first = desc.count = 1;
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, b));
        assert_memory_equal(b, a + n, n * sizeof *b);
        free(a), free(b), free_dataset(&data);
        wf_graph_free(graph);
    }
    wf_ctx_free(gpu);
}

typedef struct trained {
    wf_zoo *zoo[2]; /* CPU, GPU */
    wf_dataset *data;
} trained;

/* Both devices train a collection on a built-in set and write it. */
static trained train_both(const char *arch, const char *set, const wf_zoo_desc *desc) {
    trained both = {0};
    wf_data_desc built_in = wf_data_desc_default();
    built_in.name = set;
    char path[64];
    snprintf(path, sizeof path, "/tmp/weft-test-zoo-cuda-%d.safetensors", (int)getpid());
    for (int d = 0; d < 2; d++) {
        wf_ctx *ctx = device_ctx(d ? WF_DEVICE_CUDA : WF_DEVICE_CPU);
        wf_graph *graph = NULL;
        wf_dataset_free(both.data);
        assert_ok(ctx, wf_dataset_open(ctx, &built_in, &both.data));
        assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &graph));
        assert_ok(ctx, wf_zoo_train(ctx, graph, both.data, desc, path, NULL));
        assert_ok(ctx, wf_zoo_open(ctx, path, &both.zoo[d]));
        remove(path);
        wf_graph_free(graph);
        wf_ctx_free(ctx);
    }
    return both;
}

static void trained_free(trained *both) {
    wf_zoo_free(both->zoo[0]), wf_zoo_free(both->zoo[1]);
    wf_dataset_free(both->data);
}

static void compare_scores(const char *arch, const char *set, bool fp32) {
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 50;
    desc.epochs = desc.epochs_max = 2;
    desc.fp32 = fp32;
    trained both = train_both(arch, set, &desc);
    size_t n = both.data->n_test, bytes[2], differing = 0;
    const float *a = wf_zoo_scores(both.zoo[0], NULL), *b = wf_zoo_scores(both.zoo[1], NULL);
    const uint8_t *e = wf_zoo_errors(both.zoo[0], NULL, &bytes[0]),
                  *f = wf_zoo_errors(both.zoo[1], NULL, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    for (size_t i = 0; i < 50 * bytes[0]; i++) differing += (size_t)__builtin_popcount(e[i] ^ f[i]);
    print_message("%s on %s %s: %zu of %zu predictions differ\n", arch, set,
                  fp32 ? "fp32" : "mixed", differing, 50 * n);
    assert_true(differing <= 50 * n / (fp32 ? 500 : 100)); /* examples on a decision border */
    for (size_t k = 0; k < 50; k++) {
        size_t wrong = 0;
        for (size_t i = 0; i < bytes[0]; i++)
            wrong += (size_t)__builtin_popcount(f[k * bytes[0] + i]);
        assert_close(b[k], 1 - (double)wrong / (double)n, 1e-6);
        assert_close(a[k], b[k], 4.5 / (double)n);
    }
    trained_free(&both);
}

static void scores_and_masks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    compare_scores("2-16-3", "spirals", false);
    compare_scores("64-16-10", "digits", true);
    compare_scores("64-16-10", "digits", false);
    compare_scores("64-32-32-10", "digits", false);
}

/* Learning rates from harmless to hopeless: the same networks are left out. */
static void diverging_networks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 60;
    desc.optimizer = WF_ZOO_SGD;
    desc.momentum = 0.9;
    desc.lr = 1e-3, desc.lr_max = 1e9;
    desc.epochs = 1, desc.epochs_max = 4;
    for (int fp32 = 0; fp32 < 2; fp32++) {
        desc.fp32 = fp32;
        trained both = train_both("64-16-8-10", "digits", &desc);
        size_t n[2] = {wf_zoo_count(both.zoo[0]), wf_zoo_count(both.zoo[1])}, same = 0;
        const int64_t *a = wf_zoo_seeds(both.zoo[0]), *b = wf_zoo_seeds(both.zoo[1]);
        for (size_t i = 0, j = 0; i < n[0] && j < n[1];) {
            same += a[i] == b[j];
            if (a[i] <= b[j]) i++;
            else j++;
        }
        print_message("of 60: CPU keeps %zu, GPU %zu, both %zu\n", n[0], n[1], same);
        assert_true(n[0] < 60 && n[0] > 0);
        assert_true(same + 2 >= n[0] && same + 2 >= n[1]);
        trained_free(&both);
    }
}

static void count_warnings(void *count, const char *sentence) {
    print_message("warning: %s\n", sentence);
    ++*(int *)count;
}

/* What no kernel takes is trained on the CPU, with one warning. */
static void too_deep_for_the_gpu(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    int warnings = 0;
    wf_ctx_desc with = {
        .threads = 2, .device = WF_DEVICE_CUDA, .warn = count_warnings, .user = &warnings};
    wf_ctx *gpu = NULL, *cpu = device_ctx(WF_DEVICE_CPU);
    assert_int_equal(wf_ctx_create(&with, &gpu), WF_OK);
    wf_graph *graph = NULL;
    assert_ok(cpu, wf_graph_parse(cpu, "5-4-4-4-4-4-4-4-4-4-3", "tanh", 0, &graph));
    wf_dataset data;
    fill_dataset(&data, 5, 3, 60, false);
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 3;
    float *a = calloc(2 * 3 * graph->n_params, sizeof *a), *b = a + 3 * graph->n_params;
    for (size_t k = 0; k < 3; k++) wf_zoo_init(graph, 3, (uint32_t)k, a + k * graph->n_params);
    memcpy(b, a, 3 * graph->n_params * sizeof *b);
    assert_ok(cpu, wf_zoo_train_from(cpu, graph, &data, &desc, a));
    assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, b));
    assert_int_equal(warnings, 1);
    assert_memory_equal(a, b, 3 * graph->n_params * sizeof *b);
    free(a), free_dataset(&data);
    wf_graph_free(graph);
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

static void asking_for_a_device_that_is_not_there(void **state) {
    (void)state;
    if (wf_cuda_available()) skip("there is a GPU");
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, "7-5-3", "relu", 0, &graph));
    wf_dataset data;
    fill_dataset(&data, 7, 3, 30, false);
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 1;
    float w[64] = {0};
    assert_fails(ctx, wf_zoo_train_from(ctx, graph, &data, &desc, w), WF_ERR_UNSUPPORTED,
                 "--device cpu");
    free_dataset(&data);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_networks),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(scores_and_masks),
        cmocka_unit_test(diverging_networks),
        cmocka_unit_test(too_deep_for_the_gpu),
        cmocka_unit_test(asking_for_a_device_that_is_not_there),
    };
    return run_chosen(tests, NULL, NULL);
}
