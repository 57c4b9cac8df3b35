/* The zoo engine on the GPU against the CPU's: the same networks up to rounding, at odd sizes. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "base/random.h"
#include "weft/zoo.h"

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

static void fill_dataset(wf_dataset *data, int inputs, int classes, size_t n) {
    *data = (wf_dataset){.n_train = n, .n_test = n / 3, .inputs = inputs, .classes = classes};
    strcpy(data->name, "noise");
    strcpy(data->fingerprint, "none");
    data->x_train = malloc(n * (size_t)inputs * sizeof(float));
    data->x_test = malloc(n * (size_t)inputs * sizeof(float));
    data->y_train = malloc(n * sizeof(int32_t));
    data->y_test = malloc(n * sizeof(int32_t));
    wf_rng rng = wf_rng_at(1, 2, WF_RNG_TEST, 3);
    wf_rng_normals(&rng, data->x_train, n * (size_t)inputs);
    rng.step = 4;
    wf_rng_normals(&rng, data->x_test, n * (size_t)inputs);
    for (size_t i = 0; i < n; i++)
        data->y_train[i] = data->y_test[i] = (int32_t)(i % (size_t)classes);
}

static void same_networks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip();
    static const struct {
        const char *arch, *activation;
        int batch;
        bool sgd, cosine, nesterov;
        double smoothing, decay;
    } cases[] = {
        {"64-16-8-10", "relu", 128, false, false, false, 0, 0},
        {"7-5-3", "tanh", 33, false, true, false, 0.1, 1e-3},
        {"5-9!-1-4-2", "gelu", 200, true, true, true, 0, 1e-3},
        {"3-2", "silu", 1, true, false, false, 0, 0},
        {"9-33-7-3", "silu", 50, false, false, false, 0, 0},
        {"4-7-2!", "sigmoid", 17, true, false, false, 0.2, 0},
    };
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        wf_graph *graph = NULL;
        assert_ok(cpu, wf_graph_parse(cpu, cases[c].arch, cases[c].activation, 0, &graph));
        wf_dataset data;
        fill_dataset(&data, graph->inputs, graph->outputs, 307);
        wf_zoo_desc desc = wf_zoo_desc_default();
        desc.count = 37;
        desc.batch = cases[c].batch;
        desc.epochs = desc.epochs_max = cases[c].batch == 1 ? 1 : 3;
        desc.optimizer = cases[c].sgd ? WF_ZOO_SGD : WF_ZOO_ADAM;
        desc.momentum = cases[c].sgd ? 0.9 : 0;
        desc.lr = desc.lr_max = 1e-3;
        desc.cosine = cases[c].cosine;
        desc.nesterov = cases[c].nesterov;
        desc.label_smoothing = cases[c].smoothing;
        desc.weight_decay = cases[c].decay;
        size_t floats = desc.count * graph->n_params;
        float *a = malloc(floats * sizeof *a), *b = malloc(floats * sizeof *b);
        for (size_t k = 0; k < desc.count; k++)
            wf_zoo_init(graph, 3, (uint32_t)k, a + k * graph->n_params);
        memcpy(b, a, floats * sizeof *b);
        assert_ok(cpu, wf_zoo_train_from(cpu, graph, &data, &desc, a));
        assert_ok(gpu, wf_zoo_train_from(gpu, graph, &data, &desc, b));
        double difference = relative_difference(b, a, floats);
        print_message("%s %s: %.2e\n", cases[c].arch, cases[c].activation, difference);
        assert_close(difference, 0, 1e-5);
        free(a), free(b), free(data.x_train), free(data.x_test), free(data.y_train),
            free(data.y_test);
        wf_graph_free(graph);
    }
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

static void scores_and_masks(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip();
    wf_ctx *cpu = device_ctx(WF_DEVICE_CPU), *gpu = device_ctx(WF_DEVICE_CUDA);
    wf_data_desc built_in = wf_data_desc_default();
    built_in.name = "spirals";
    wf_dataset *data = NULL;
    wf_graph *graph = NULL;
    assert_ok(cpu, wf_dataset_open(cpu, &built_in, &data));
    assert_ok(cpu, wf_graph_parse(cpu, "2-16-3", "relu", 0, &graph));
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 50;
    desc.epochs = desc.epochs_max = 2;
    char path[2][64] = {"/tmp/weft-test-zoo-cpu.safetensors", "/tmp/weft-test-zoo-gpu.safetensors"};
    wf_zoo *zoo[2];
    for (int d = 0; d < 2; d++) {
        wf_ctx *ctx = d ? gpu : cpu;
        assert_ok(ctx, wf_zoo_train(ctx, graph, data, &desc, path[d], NULL));
        assert_ok(ctx, wf_zoo_open(ctx, path[d], &zoo[d]));
        remove(path[d]);
    }
    const float *a = wf_zoo_scores(zoo[0], NULL), *b = wf_zoo_scores(zoo[1], NULL);
    size_t bytes[2], differing = 0;
    const uint8_t *e = wf_zoo_errors(zoo[0], NULL, &bytes[0]),
                  *f = wf_zoo_errors(zoo[1], NULL, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    for (size_t k = 0; k < 50; k++) assert_close(a[k], b[k], 2.5 / (double)data->n_test);
    for (size_t i = 0; i < 50 * bytes[0]; i++) differing += (size_t)__builtin_popcount(e[i] ^ f[i]);
    assert_true(differing <= 50 * data->n_test / 500); /* examples on a decision border */
    wf_zoo_free(zoo[0]), wf_zoo_free(zoo[1]);
    wf_dataset_free(data);
    wf_graph_free(graph);
    wf_ctx_free(cpu), wf_ctx_free(gpu);
}

static void asking_for_a_device_that_is_not_there(void **state) {
    (void)state;
    if (wf_cuda_available()) skip();
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, "7-5-3", "relu", 0, &graph));
    wf_dataset data;
    fill_dataset(&data, 7, 3, 30);
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 1;
    float w[64] = {0};
    assert_fails(ctx, wf_zoo_train_from(ctx, graph, &data, &desc, w), WF_ERR_UNSUPPORTED,
                 "--device cpu");
    free(data.x_train), free(data.x_test), free(data.y_train), free(data.y_test);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_networks),
        cmocka_unit_test(scores_and_masks),
        cmocka_unit_test(asking_for_a_device_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
