/* A collection file: what is written comes back; what does not fit its description is refused. */
#include "failing_malloc.h"
#include "network_case.h"
#include "ctx_fixture.h"

#include "base/safetensors.h"
#include "weft/file.h"
#include "weft/import.h"

#include <unistd.h>

static char path[256];

static int begin(void **state) {
    int failed = set_up(state);
    snprintf(path, sizeof path, "%s/zoo.safetensors", folder);
    return failed;
}
static wf_graph *graph_of(const char *arch, const char *activation) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, arch, activation, 0, &graph));
    return graph;
}

/* Entry j of network i is 1000 i + j. */
static float *numbered(const wf_graph *graph, size_t count) {
    float *weights = malloc(count * graph->n_params * sizeof *weights);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < graph->n_params; j++)
            weights[i * graph->n_params + j] = (float)(1000 * i + j);
    return weights;
}

static void test_round_trip(void **state) {
    (void)state;
    enum { count = 5 };
    wf_graph *graph = graph_of("3-4!-2", "tanh"); /* 12 weights, no bias, 8 weights, 2 biases */
    assert_int_equal(graph->n_params, 22);
    float *weights = numbered(graph, count);
    int64_t seeds[count] = {4, 5, 6, 7, INT64_MIN};
    float lr[count] = {1, 2, 3, 4, 5},
          scores[2][count] = {{.1f, .2f, .3f, .4f, .5f}, {1, 1, 0, 0, 1}};
    int32_t epochs[count] = {9, 8, 7, 6, 5};
    uint8_t errors[count][3];
    for (int i = 0; i < count * 3; i++) errors[i / 3][i % 3] = (uint8_t)(11 * i);
    wf_zoo_extra extra = {
        .seeds = seeds,
        .lr = lr,
        .epochs = epochs,
        .n_tests = 2,
        .test_names = {"moons", "other set"},
        .scores = {scores[0], scores[1]},
        .errors = {&errors[0][0], NULL},
        .error_bytes = {3, 0},
        .n_meta = 3,
        .meta = {{"weft.data", "abc"}, {"weft.arch", "1-1"}, {"weft.none", NULL}}};
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, count, &extra));

    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_int_equal(wf_zoo_count(zoo), count);
    assert_true(wf_graph_equal(wf_zoo_graph(zoo), graph));
    assert_string_equal(wf_zoo_path(zoo), path);
    float w[22];
    for (size_t i = 0; i < count; i++) {
        wf_zoo_get(zoo, i, w);
        assert_memory_equal(w, weights + i * 22, sizeof w);
    }
    float *some;
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 2, 3, &some));
    assert_memory_equal(some, weights + 2 * 22, 3 * sizeof w);
    free(some);
    assert_fails(ctx, wf_zoo_load(ctx, zoo, 3, 3, &some), WF_ERR_USAGE, "has 5");
    assert_memory_equal(wf_zoo_seeds(zoo), seeds, sizeof seeds);
    assert_memory_equal(wf_zoo_scores(zoo, "moons"), scores[0], sizeof scores[0]);
    assert_memory_equal(wf_zoo_scores(zoo, "other set"), scores[1], sizeof scores[1]);
    assert_non_null(wf_zoo_scores(zoo, NULL));
    assert_null(wf_zoo_scores(zoo, "unknown"));
    size_t bytes;
    assert_memory_equal(wf_zoo_errors(zoo, "moons", &bytes), errors, sizeof errors);
    assert_int_equal(bytes, 3);
    assert_null(wf_zoo_errors(zoo, "other set", &bytes));
    assert_string_equal(wf_zoo_meta(zoo, "weft.data"), "abc");
    assert_string_equal(wf_zoo_meta(zoo, "weft.arch"), "3-4!-2");
    assert_string_equal(wf_zoo_meta(zoo, "weft.activation"), "tanh");
    assert_null(wf_zoo_meta(zoo, "weft.none"));
    wf_zoo_free(zoo);
    free(weights);
    wf_graph_free(graph);
}

/* Every kind of tensor, under the names and in the shapes of PyTorch; also one network exported. */
static void test_any_description(void **state) {
    (void)state;
    enum { count = 3 };
    static const char *const described[] = {
        "3x8x8 conv4 pool pass layernorm conv6k5s2p2! gap linear10", resnet_json};
    char exported[280];
    snprintf(exported, sizeof exported, "%s.one", path);
    for (int i = 0; i < 2; i++) {
        wf_graph *graph = graph_of(described[i], "relu");
        float *weights = numbered(graph, count), *w = malloc(graph->n_params * sizeof *w);
        assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, count, NULL));
        wf_zoo *zoo;
        assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
        assert_true(wf_graph_equal(wf_zoo_graph(zoo), graph));
        wf_zoo_get(zoo, 2, w);
        assert_memory_equal(w, weights + 2 * graph->n_params, graph->n_params * sizeof *w);
        assert_ok(ctx, wf_zoo_export(ctx, zoo, 1, exported, NULL));
        wf_st_file *file;
        assert_ok(ctx, wf_st_open(ctx, exported, &file));
        for (int b = 0; b < graph->n_blocks; b++) {
            const wf_block *block = &graph->blocks[b];
            const wf_st_tensor *tensor = wf_st_find(file, block->name);
            size_t shape[4];
            assert_non_null(tensor);
            assert_int_equal(tensor->rank, wf_block_shape(graph, block, shape));
            assert_memory_equal(tensor->shape, shape, (size_t)tensor->rank * sizeof *shape);
            assert_memory_equal(tensor->data, weights + graph->n_params + block->offset,
                                block->count * sizeof *w);
        }
        wf_st_close(file);
        wf_zoo_free(zoo);
        free(weights), free(w);
        wf_graph_free(graph);
    }
    unlink(exported);
}

/* The file is what torch.func.stack_module_state would hold: stacked tensors with these shapes. */
static void test_layout(void **state) {
    (void)state;
    wf_graph *graph = graph_of("3-4-2", "relu");
    float *weights = numbered(graph, 2);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 2, NULL));
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, path, &file));
    const wf_st_tensor *tensor = wf_st_find(file, "layers.1.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->rank, 3);
    assert_int_equal(tensor->shape[0], 2);
    assert_int_equal(tensor->shape[1], 2);
    assert_int_equal(tensor->shape[2], 4);
    float value; /* network 1, unit 1, input 2: after 12 + 4 parameters of the first layer */
    memcpy(&value, (const char *)tensor->data + (8 + 4 + 2) * sizeof value, sizeof value);
    assert_close(value, 1000 + 16 + 4 + 2, 0);
    tensor = wf_st_find(file, "layers.0.bias");
    assert_non_null(tensor);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[1], 4);
    wf_st_close(file);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_null(wf_zoo_seeds(zoo));
    assert_null(wf_zoo_scores(zoo, NULL));
    wf_zoo_free(zoo);
    free(weights);
    wf_graph_free(graph);
}

static float numbers[64];

static wf_st_tensor tensor_of(const char *name, wf_st_dtype dtype, int rank, size_t a, size_t b,
                              size_t c) {
    wf_st_tensor tensor = {
        .name = name, .dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = numbers};
    tensor.count = a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1);
    tensor.bytes = tensor.count * wf_st_dtype_size(dtype);
    return tensor;
}

/* A file of 2-3 networks with bias, changed in one place, must be refused with these words. */
static void refused(const wf_st_tensor *tensors, size_t n, const char *arch, const char *activation,
                    wf_status status, const char *words) {
    const char *meta[2][2];
    size_t n_meta = 0;
    if (arch != NULL) meta[n_meta][0] = "weft.arch", meta[n_meta++][1] = arch;
    if (activation != NULL) meta[n_meta][0] = "weft.activation", meta[n_meta++][1] = activation;
    assert_ok(ctx, wf_st_write(ctx, path, tensors, n, (const char *const(*)[2])meta, n_meta));
    wf_zoo *zoo = (wf_zoo *)1;
    assert_fails(ctx, wf_zoo_open(ctx, path, &zoo), status, words);
    assert_null(zoo);
}

/* What a file says of its networks is text of its own, never the name of another file. */
static void test_no_other_files(void **state) {
    (void)state;
    wf_st_tensor tensors[2] = {tensor_of("layers.0.weight", WF_ST_F32, 3, 4, 3, 2),
                               tensor_of("layers.0.bias", WF_ST_F32, 2, 4, 3, 0)};
    char json[300];
    snprintf(json, sizeof json, "%s.json", path);
    static const char graph[] =
        "{\"input\": [2], \"layers\": [{\"op\": \"linear\", \"units\": 3}]}";
    assert_ok(ctx, wf_write_file(ctx, json, graph, sizeof graph - 1));
    wf_graph *named;
    assert_ok(ctx, wf_graph_parse(ctx, json, "relu", 0, &named)); /* a caller may name one */
    wf_graph_free(named);
    refused(tensors, 2, json, "relu", WF_ERR_INPUT, "expected a width");
    unlink(json);
    const char *meta[3][2] = {
        {"weft.arch", "2-4"}, {"weft.activation", "relu"}, {"weft.graph", graph}};
    assert_ok(ctx, wf_st_write(ctx, path, tensors, 2, (const char *const(*)[2])meta, 3));
    wf_zoo *zoo;
    assert_fails(ctx, wf_zoo_open(ctx, path, &zoo), WF_ERR_INPUT,
                 "weft.arch is 2-4, but weft.graph describes 2-3");
}

static void test_refusals(void **state) {
    (void)state;
    wf_st_tensor good[3] = {tensor_of("layers.0.weight", WF_ST_F32, 3, 4, 3, 2),
                            tensor_of("layers.0.bias", WF_ST_F32, 2, 4, 3, 0),
                            tensor_of("weft.seed", WF_ST_I64, 1, 4, 0, 0)};
    const char *meta[2][2] = {{"weft.arch", "2-3"}, {"weft.activation", "relu"}};
    assert_ok(ctx, wf_st_write(ctx, path, good, 3, (const char *const(*)[2])meta, 2));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    wf_zoo_free(zoo);

    refused(good, 3, NULL, "relu", WF_ERR_INPUT, "no weft.arch");
    refused(good, 3, "2-3", NULL, WF_ERR_INPUT, "no weft.activation");
    refused(good, 3, "2-x", "relu", WF_ERR_INPUT, "2-x");
    refused(good, 3, "2-3", "softplus", WF_ERR_INPUT, "softplus");
    refused(good, 3, "2-4", "relu", WF_ERR_SHAPE, "layers.0.weight");
    refused(good, 3, "2-3-3", "relu", WF_ERR_INPUT, "layers.1.weight");
    refused(good, 3, "2-3!", "relu", WF_ERR_INPUT, "layers.0.bias");
    refused(good, 1, "2-3", "relu", WF_ERR_INPUT, "layers.0.bias");
    wf_st_tensor bad[3];
    struct {
        int which;
        wf_st_tensor with;
        wf_status status;
        const char *words;
    } change[] = {
        {0, tensor_of("layers.0.weight", WF_ST_F16, 3, 4, 3, 2), WF_ERR_SHAPE, "F16"},
        {0, tensor_of("layers.0.weight", WF_ST_F32, 3, 4, 2, 3), WF_ERR_SHAPE, "[4,2,3]"},
        {1, tensor_of("layers.0.bias", WF_ST_F32, 2, 5, 3, 0), WF_ERR_SHAPE, "[5,3]"},
        {1, tensor_of("layers.0.bias", WF_ST_F32, 1, 12, 0, 0), WF_ERR_SHAPE, "[12]"},
        {2, tensor_of("weft.seed", WF_ST_I64, 1, 3, 0, 0), WF_ERR_SHAPE, "weft.seed"},
        {2, tensor_of("weft.seed", WF_ST_F32, 1, 4, 0, 0), WF_ERR_SHAPE, "weft.seed"},
        {2, tensor_of("weft.score.a", WF_ST_F32, 1, 5, 0, 0), WF_ERR_SHAPE, "weft.score.a"},
        {2, tensor_of("weft.errors.a", WF_ST_U8, 1, 4, 0, 0), WF_ERR_SHAPE, "weft.errors.a"},
        {2, tensor_of("stranger", WF_ST_F32, 1, 4, 0, 0), WF_ERR_INPUT, "stranger"},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        memcpy(bad, good, sizeof bad);
        bad[change[i].which] = change[i].with;
        refused(bad, 3, "2-3", "relu", change[i].status, change[i].words);
    }
    wf_st_tensor empty[2] = {tensor_of("layers.0.weight", WF_ST_F32, 3, 0, 3, 2),
                             tensor_of("layers.0.bias", WF_ST_F32, 2, 0, 3, 0)};
    refused(empty, 2, "2-3", "relu", WF_ERR_INPUT, "no networks");
    unlink(path);
    assert_fails(ctx, wf_zoo_open(ctx, path, &zoo), WF_ERR_INPUT, path);
}

/* A write that fails leaves the old collection as it was. */
static void test_failed_write(void **state) {
    (void)state;
    wf_graph *graph = graph_of("2-3", "relu");
    float *weights = numbered(graph, 2);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 2, NULL));
    assert_fails(ctx, wf_zoo_write(ctx, path, graph, weights, 0, NULL), WF_ERR_USAGE,
                 "at least one");
    wf_zoo_extra nameless = {.n_tests = 1, .test_names = {""}};
    assert_fails(ctx, wf_zoo_write(ctx, path, graph, weights, 2, &nameless), WF_ERR_USAGE, "name");
    wf_zoo_extra crowded = {.n_tests = 9};
    assert_fails(ctx, wf_zoo_write(ctx, path, graph, weights, 2, &crowded), WF_ERR_USAGE, "9 test");
    assert_int_not_equal(
        wf_zoo_write(ctx, "/nonexistent_folder/zoo.safetensors", graph, weights, 2, NULL), WF_OK);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_int_equal(wf_zoo_count(zoo), 2);
    wf_zoo_free(zoo);
    free(weights);
    wf_graph_free(graph);
}

/* Parts of two collections as one: weights, columns, names and what both say. */
static void test_select(void **state) {
    (void)state;
    wf_graph *graph = graph_of("2-3-2", "relu");
    float *weights = numbered(graph, 3);
    int64_t seeds[3] = {10, 11, 12};
    float scores[3] = {.25f, .5f, .75f}, lr[3] = {1, 2, 3};
    uint8_t errors[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    wf_zoo_extra extra = {.seeds = seeds,
                          .lr = lr,
                          .n_tests = 1,
                          .test_names = {"moons"},
                          .scores = {scores},
                          .errors = {errors[0]},
                          .error_bytes = {2},
                          .n_meta = 3,
                          .meta = {{"weft.sources", "[\"a.pt\",\"b.pt\",\"c.pt\"]"},
                                   {"weft.scale", "none"},
                                   {"weft.name", "first"}}};
    char other[300], joined[300];
    snprintf(other, sizeof other, "%s.other", path);
    snprintf(joined, sizeof joined, "%s.joined", path);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 3, &extra));
    extra.lr = NULL;
    extra.meta[2][1] = "second";
    extra.meta[0][1] = "[\"d.pt\",\"e.pt\",\"f.pt\"]";
    assert_ok(ctx, wf_zoo_write(ctx, other, graph, weights, 3, &extra));
    wf_zoo *a, *b, *both;
    assert_ok(ctx, wf_zoo_open(ctx, path, &a));
    assert_ok(ctx, wf_zoo_open(ctx, other, &b));
    const size_t some[] = {2, 0};
    const wf_zoo_pick picks[] = {{a, some, 2}, {.zoo = b}};
    assert_ok(ctx, wf_zoo_select(ctx, picks, 2, joined));
    assert_ok(ctx, wf_zoo_open(ctx, joined, &both));
    static const size_t from[] = {2, 0, 0, 1, 2};
    static const char *const expected[] = {"c.pt", "a.pt", "d.pt", "e.pt", "f.pt"};
    char **names;
    size_t bytes;
    assert_int_equal(wf_zoo_count(both), 5);
    assert_ok(ctx, wf_zoo_names(ctx, both, &names));
    const uint8_t *masks = wf_zoo_errors(both, "moons", &bytes);
    assert_int_equal(bytes, 2);
    for (size_t i = 0; i < 5; i++) {
        float w[32];
        wf_zoo_get(both, i, w);
        assert_close(w[1], weights[from[i] * graph->n_params + 1], 0);
        assert_string_equal(names[i], expected[i]);
        assert_int_equal(wf_zoo_seeds(both)[i], seeds[from[i]]);
        assert_close(wf_zoo_scores(both, "moons")[i], scores[from[i]], 0);
        assert_int_equal(masks[2 * i + 1], errors[from[i]][1]);
    }
    wf_zoo_names_free(names, 5);
    assert_string_equal(wf_zoo_meta(both, "weft.scale"), "none");
    assert_null(wf_zoo_meta(both, "weft.name")); /* they differ */
    const size_t beyond = 3;
    const wf_zoo_pick bad = {a, &beyond, 1};
    assert_fails(ctx, wf_zoo_select(ctx, &bad, 1, joined), WF_ERR_USAGE, "the last one is 2");
    wf_zoo_free(both);
    wf_zoo_free(b);
    wf_zoo_free(a);
    unlink(other);
    unlink(joined);
    free(weights);
    wf_graph_free(graph);
}

static wf_status open_and_close(wf_ctx *caller, void *file) {
    wf_zoo *zoo;
    wf_status status = wf_zoo_open(caller, file, &zoo);
    wf_zoo_free(zoo);
    return status;
}

/* Without memory too: a scale is never taken for one that is not said. */
static void test_scale(void **state) {
    (void)state;
    static const char text[] = "{\"format\": \"weft preparation 1\", \"scale\": \"unit\", "
                               "\"target\": \"y\", \"classes\": [\"a\", \"b\"], \"columns\": "
                               "[{\"name\": \"x\", \"impute\": 0, \"mean\": 0, \"std\": 1}]}";
    wf_graph *graph = graph_of("2-3", "relu");
    float *weights = numbered(graph, 2);
    wf_zoo_extra extra = {.n_meta = 1};
    extra.meta[0][0] = "weft.preparation", extra.meta[0][1] = text;
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 2, &extra));
    free(weights);
    wf_graph_free(graph);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    wf_scale scale = WF_SCALE_NONE;
    atomic_store(&malloc_countdown, 0);
    bool known = wf_zoo_scale(zoo, &scale);
    atomic_store(&malloc_countdown, -1);
    assert_true(known);
    assert_int_equal(scale, WF_SCALE_UNIT);
    wf_zoo_free(zoo);
}

/* Without memory the file is not called wrong. */
static void test_no_memory(void **state) {
    (void)state;
    wf_graph *graph = graph_of("2-3", "relu");
    float *weights = numbered(graph, 2);
    float scores[2] = {0.5f, 0.25f};
    wf_zoo_extra extra = {.n_tests = 1, .test_names = {"test"}, .scores = {scores}};
    extra.meta[0][0] = "weft.name", extra.meta[0][1] = "small";
    extra.n_meta = 1;
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 2, &extra));
    free(weights);
    wf_graph_free(graph);
    fail_every_allocation(ctx, "collection", open_and_close, path);
}

/* Without memory too: names that are there are never taken for absent. */
static wf_status read_names(wf_ctx *unused, void *zoo) {
    (void)unused;
    char **names;
    WF_TRY(wf_zoo_names(ctx, zoo, &names));
    assert_non_null(names);
    assert_string_equal(names[0], "first");
    assert_string_equal(names[1], "second");
    wf_zoo_names_free(names, 2);
    return WF_OK;
}

static void test_names(void **state) {
    (void)state;
    wf_graph *graph = graph_of("2-3", "relu");
    float *weights = numbered(graph, 2);
    wf_zoo_extra extra = {.n_meta = 1};
    extra.meta[0][0] = "weft.sources", extra.meta[0][1] = "[\"first\", \"second\"]";
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 2, &extra));
    free(weights);
    wf_graph_free(graph);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    fail_every_allocation(ctx, "names", read_names, zoo);
    wf_zoo_free(zoo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_any_description),
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_other_files), cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_select),         cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_scale),          cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
