/* Collections of convolutional and residual networks: the same bits for any number of threads, any
 * shard, any pause and any neighbours; scores; requests that cannot be met. PyTorch is compared in
 * tests/oracle/test_cnn.py. */
#include "folder_fixture.h"

#include "weft/zoo.h"
#include "zoo/zoo_engine.h"

#include <unistd.h>

/* A batch norm, so that running statistics are part of what is kept; a maximum, a residual add. */
static const char residual[] =
    "{\"input\": [1, 8, 8], \"layers\": ["
    "{\"op\": \"conv\", \"from\": 0, \"units\": 5, \"kernel\": [3, 3], \"padding\": [1, 1], "
    "\"norm\": {\"kind\": \"batch\"}, \"activation\": \"relu\"}, "
    "{\"op\": \"conv\", \"from\": 1, \"units\": 5, \"kernel\": [3, 3], \"padding\": [1, 1], "
    "\"activation\": \"identity\"}, "
    "{\"op\": \"add\", \"from\": [2, 1], \"activation\": \"relu\", "
    "\"pool\": {\"kind\": \"max\", \"kernel\": [2, 2], \"stride\": [2, 2]}}, "
    "{\"op\": \"linear\", \"from\": 3, \"units\": 10, \"activation\": \"identity\"}]}";
static const char *const archs[] = {"1x8x8 conv6 pool conv7k5s2 tanh gap linear10", residual};

typedef struct digits {
    wf_dataset *data;
    wf_graph *graph;
    wf_zoo_desc desc;
} digits;

static wf_ctx *ctx_of(int threads) {
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = threads}, &ctx) != WF_OK) abort();
    return ctx;
}

static void digits_start(digits *d, const char *arch) {
    wf_ctx *ctx = ctx_of(1);
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "digits";
    desc.rows = 250;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &d->data));
    assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &d->graph));
    d->desc = wf_zoo_desc_default();
    d->desc.count = 5;
    d->desc.first = 40;
    d->desc.batch = 48;
    d->desc.epochs = 2;
    d->desc.epochs_max = 4;
    d->desc.lr = 0.05;
    d->desc.optimizer = WF_ZOO_SGD;
    d->desc.momentum = 0.9;
    d->desc.nesterov = d->desc.cosine = d->desc.flip = true;
    d->desc.crop = 1;
    wf_ctx_free(ctx);
}

static void digits_end(digits *d) {
    wf_dataset_free(d->data);
    wf_graph_free(d->graph);
}

/* The networks of a collection trained with so many threads in shards of a size. */
static float *trained(const digits *d, const char *name, int threads, size_t shard) {
    wf_ctx *ctx = ctx_of(threads);
    wf_zoo_desc desc = d->desc;
    desc.shard = shard;
    const char *path = in_folder(name);
    unlink(path);
    assert_ok(ctx, wf_zoo_train(ctx, d->graph, d->data, &desc, path, NULL));
    wf_zoo *zoo;
    float *weights;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_int_equal(wf_zoo_count(zoo), desc.count);
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 0, desc.count, &weights));
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
    return weights;
}

static void same_networks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        digits d;
        digits_start(&d, archs[i]);
        size_t each = d.graph->n_params, bytes = d.desc.count * each * sizeof(float);
        float *expected = trained(&d, "one.safetensors", 1, 0);
        float *threads = trained(&d, "threads.safetensors", 3, 0);
        assert_memory_equal(threads, expected, bytes);
        float *shards = trained(&d, "shards.safetensors", 2, 2);
        assert_memory_equal(shards, expected, bytes);
        wf_zoo_save_seconds = 0; /* a pause after every update, through a file */
        float *pauses = trained(&d, "pauses.safetensors", 2, 0);
        wf_zoo_save_seconds = 5;
        assert_memory_equal(pauses, expected, bytes);
        d.desc.first += 3;
        d.desc.count = 1;
        float *alone = trained(&d, "alone.safetensors", 1, 0);
        assert_memory_equal(alone, expected + 3 * each, each * sizeof(float));
        free(expected), free(threads), free(shards), free(pauses), free(alone);
        digits_end(&d);
    }
}

/* Scores and error masks are those of the executed networks. */
static void judged(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(2);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        digits d;
        digits_start(&d, archs[i]);
        float *weights = trained(&d, "judged.safetensors", 2, 0), *logits;
        wf_zoo *zoo;
        assert_ok(ctx, wf_zoo_open(ctx, in_folder("judged.safetensors"), &zoo));
        size_t n = d.data->n_test, bytes;
        const uint8_t *errors = wf_zoo_errors(zoo, NULL, &bytes);
        logits = malloc(n * 10 * sizeof *logits);
        for (size_t k = 0; k < d.desc.count; k++) {
            size_t wrong = 0;
            assert_ok(ctx, wf_graph_forward(ctx, d.graph, weights + k * d.graph->n_params,
                                            d.data->x_test, n, logits));
            for (size_t r = 0; r < n; r++) {
                int best = 0;
                for (int c = 1; c < 10; c++)
                    if (logits[r * 10 + (size_t)c] > logits[r * 10 + (size_t)best]) best = c;
                bool bit = (errors[k * bytes + r / 8] >> r % 8 & 1) != 0;
                assert_int_equal(bit, best != d.data->y_test[r]);
                wrong += bit;
            }
            assert_close(wf_zoo_scores(zoo, NULL)[k], 1 - (double)wrong / (double)n, 1e-6);
        }
        free(logits);
        free(weights);
        wf_zoo_free(zoo);
        digits_end(&d);
    }
    wf_ctx_free(ctx);
}

/* A chain of linear layers gives the same networks through both kinds of kernels, up to
 * rounding. */
static void both_kernels(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    digits d;
    digits_start(&d, "64-12-10");
    d.desc.count = 1;
    d.desc.flip = false;
    d.desc.crop = 0;
    size_t n = d.graph->n_params;
    float *w = malloc(2 * n * sizeof *w), *start = malloc(n * sizeof *start);
    wf_zoo_init(d.graph, d.desc.seed, 0, start);
    memcpy(w, start, n * sizeof *w);
    memcpy(w + n, start, n * sizeof *w);
    assert_ok(ctx, wf_zoo_train_from(ctx, d.graph, d.data, &d.desc, w));
    wf_graph *as_words;
    assert_ok(ctx, wf_graph_parse(ctx, "1x8x8 linear12 linear10", "relu", 0, &as_words));
    assert_ok(ctx, wf_zoo_train_from(ctx, as_words, d.data, &d.desc, w + n));
    assert_true(relative_difference(w, start, n) > 0.05);
    assert_true(relative_difference(w, w + n, n) < 1e-4);
    wf_graph_free(as_words);
    free(w), free(start);
    digits_end(&d);
    wf_ctx_free(ctx);
}

static void refused(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    digits d;
    digits_start(&d, archs[0]);
    float *w = calloc(d.graph->n_params, sizeof *w);
    d.desc.crop = 8;
    assert_fails(ctx, wf_zoo_train_from(ctx, d.graph, d.data, &d.desc, w), WF_ERR_USAGE,
                 "zoo.crop is 8; expected less than the sides of the images, 8x8");
    d.desc.crop = 0;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "64-4-10", "relu", 0, &graph));
    d.data->height = 0;
    assert_fails(ctx, wf_zoo_train_from(ctx, graph, d.data, &d.desc, w), WF_ERR_USAGE,
                 "data set digits has none");
    wf_graph_free(graph);
    assert_ok(ctx, wf_graph_parse(ctx, "64 linear4 batchnorm linear10", "relu", 0, &graph));
    d.desc.flip = false;
    d.desc.batch = 199; /* 200 examples */
    assert_fails(ctx, wf_zoo_train_from(ctx, graph, d.data, &d.desc, w), WF_ERR_USAGE,
                 "zoo.batch is 199, which leaves a batch of one of 200 examples");
    wf_graph_free(graph);
    assert_ok(ctx, wf_graph_parse(ctx, "1x8x8 conv1000000p4000 gap linear10", "relu", 0, &graph));
    assert_fails(ctx, wf_zoo_train_from(ctx, graph, d.data, &d.desc, w), WF_ERR_UNSUPPORTED,
                 "layer 1 (1000000 units of");
    wf_graph_free(graph);
    free(w);
    digits_end(&d);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_networks),
        cmocka_unit_test(judged),
        cmocka_unit_test(both_kernels),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
