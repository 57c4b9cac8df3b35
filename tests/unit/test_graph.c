/* Descriptions, flat order, permutation action, forward pass, normalisation, ragged batches. */
#include "network_case.h"
#include "ctx_fixture.h"
#include "base/random.h"
#include "graph/batch.h"
#include "weft/text.h"
#include "weft/graph.h"

static wf_graph *parse(const char *arch, const char *act, unsigned flags) {
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, arch, act, flags, &graph));
    return graph;
}

static void layout_is_that_of_a_state_dict(void **state) {
    (void)state;
    wf_graph *g = parse("64-16-8-10", "relu", 0);
    assert_int_equal(g->n_params, 1266);
    assert_int_equal(g->n_orbits, 2);
    static const struct {
        const char *name;
        size_t offset;
    } expected[] = {{"layers.0.weight", 0},  {"layers.0.bias", 1024},   {"layers.1.weight", 1040},
                    {"layers.1.bias", 1168}, {"layers.2.weight", 1176}, {"layers.2.bias", 1256}};
    assert_int_equal(g->n_blocks, 6);
    for (int b = 0; b < 6; b++) {
        assert_string_equal(g->blocks[b].name, expected[b].name);
        assert_int_equal(g->blocks[b].offset, expected[b].offset);
    }
    wf_graph_free(g);
    g = parse("784-32-32-10", "relu", 0);
    assert_int_equal(g->n_params, 26506);
    wf_graph_free(g);
    g = parse("4-3!-2", "tanh", 0);
    assert_int_equal(g->n_params, 12 + 6 + 2);
    assert_string_equal(g->text, "4-3!-2");
    wf_graph_free(g);
}

static void bad_descriptions(void **state) {
    (void)state;
    wf_graph *g;
    static const char *const bad[] = {"",
                                      "64",
                                      "64-",
                                      "-64-10",
                                      "64--10",
                                      "64-0-10",
                                      "64-16x-10",
                                      "a-b",
                                      "64 -10",
                                      "64!-10",
                                      "64-16!!-10",
                                      "9999999-2",
                                      "1-99999999999999999999-2",
                                      "64-16-10 "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ctx, wf_graph_parse(ctx, bad[i], "relu", 0, &g), WF_ERR_USAGE, "architecture");
    assert_fails(ctx, wf_graph_parse(ctx, "2-2", "swish", 0, &g), WF_ERR_USAGE, "relu");
    char deep[10000] = "2";
    for (int i = 0; i < 300; i++) strcat(deep, "-2");
    g = parse(deep, "relu", 0);
    assert_int_equal(g->n_blocks, 600);
    assert_string_equal(g->text, deep);
    wf_graph_free(g);
    for (int i = 300; i < 4097; i++) strcat(deep, "-2");
    assert_fails(ctx, wf_graph_parse(ctx, deep, "relu", 0, &g), WF_ERR_USAGE,
                 "expected 1 to 4096 layers");
}

static const char paper_cnn[] = "3x32x32 conv16 pool conv32 pool conv48 gap linear10";

/* The order, shapes and names of the nn.Sequential. */
static void layout_of_a_cnn(void **state) {
    (void)state;
    wf_graph *g = parse(paper_cnn, "relu", 0);
    assert_int_equal(g->n_params, 19450);
    assert_int_equal(g->inputs, 3072);
    assert_int_equal(g->outputs, 10);
    assert_int_equal(g->n_orbits, 3);
    assert_string_equal(g->text, paper_cnn);
    static const struct {
        const char *name;
        int rank, coef;
        size_t shape[4];
    } expected[] = {{"0.weight", 4, 9, {16, 3, 3, 3}},   {"0.bias", 1, 1, {16}},
                    {"3.weight", 4, 9, {32, 16, 3, 3}},  {"3.bias", 1, 1, {32}},
                    {"6.weight", 4, 9, {48, 32, 3, 3}},  {"6.bias", 1, 1, {48}},
                    {"10.weight", 2, 1, {10, 48, 0, 0}}, {"10.bias", 1, 1, {10}}};
    assert_int_equal(g->n_blocks, 8);
    for (int b = 0; b < 8; b++) {
        size_t shape[4];
        assert_string_equal(g->blocks[b].name, expected[b].name);
        assert_int_equal(g->blocks[b].coef, expected[b].coef);
        assert_int_equal(wf_block_shape(g, &g->blocks[b], shape), expected[b].rank);
        for (int d = 0; d < expected[b].rank; d++) assert_int_equal(shape[d], expected[b].shape[d]);
    }
    assert_int_equal(g->groups[1].sum_height, 32);
    assert_int_equal(g->groups[1].height, 16);
    assert_int_equal(g->groups[3].sum_width, 8);
    assert_int_equal(g->groups[3].width, 1);
    wf_graph_free(g);
    /* A linear layer after an image flattens it; the norms of an image are those of torch. */
    g = parse("2x6x5 conv4k3s2p0! batchnorm tanh pass layernorm linear7! linear3", "relu", 0);
    static const char *const names[] = {"0.weight",      "1.weight", "1.bias", "1.running_mean",
                                        "1.running_var", "3.weight", "3.bias", "5.weight",
                                        "7.weight",      "7.bias"};
    static const size_t counts[] = {72, 4, 4, 4, 4, 16, 16, 112, 21, 3};
    assert_int_equal(g->n_blocks, 10);
    for (int b = 0; b < 10; b++) {
        assert_string_equal(g->blocks[b].name, names[b]);
        assert_int_equal(g->blocks[b].count, counts[b]);
        assert_int_equal(wf_block_trained(&g->blocks[b]), b != 3 && b != 4);
    }
    size_t shape[4];
    assert_int_equal(wf_block_shape(g, &g->blocks[5], shape), 3);
    assert_int_equal(shape[1] * shape[2], 4);
    assert_int_equal(wf_block_shape(g, &g->blocks[7], shape), 2);
    assert_int_equal(shape[1], 16);
    assert_int_equal(g->activation, WF_ACT_MIXED);
    wf_graph_free(g);
}

/* A ResNet of two basic blocks, the second with a convolution in its shortcut, as torchvision names
 * them. */
static const char *const resnet_names[][2] = {{"conv1", "bn1"},
                                              {"layer1.0.conv1", "layer1.0.bn1"},
                                              {"layer1.0.conv2", "layer1.0.bn2"},
                                              {NULL, NULL},
                                              {"layer2.0.conv1", "layer2.0.bn1"},
                                              {"layer2.0.conv2", "layer2.0.bn2"},
                                              {"layer2.0.downsample.0", "layer2.0.downsample.1"},
                                              {NULL, NULL},
                                              {"fc", NULL}};

static wf_layer conv_layer(int l, int from, int n, int kernel, int stride, bool relu) {
    return (wf_layer){.op = WF_LAYER_CONV,
                      .from = {from},
                      .n = n,
                      .window = {{kernel, kernel}, {stride, stride}, {kernel / 2, kernel / 2}},
                      .norm = WF_NORM_BATCH,
                      .activation = relu ? WF_ACT_RELU : WF_ACT_IDENTITY,
                      .name = resnet_names[l][0],
                      .norm_name = resnet_names[l][1]};
}

static wf_graph *resnet(void) {
    const wf_layer layers[] = {
        conv_layer(0, 0, 4, 3, 1, true),
        conv_layer(1, 1, 4, 3, 1, true),
        conv_layer(2, 2, 4, 3, 1, false),
        {.op = WF_LAYER_ADD, .from = {3, 1}, .activation = WF_ACT_RELU},
        conv_layer(4, 4, 6, 3, 2, true),
        conv_layer(5, 5, 6, 3, 1, false),
        conv_layer(6, 4, 6, 1, 2, false),
        {.op = WF_LAYER_ADD, .from = {6, 7}, .activation = WF_ACT_RELU, .pool = WF_POOL_GLOBAL},
        {.op = WF_LAYER_LINEAR,
         .from = {8},
         .n = 5,
         .bias = true,
         .activation = WF_ACT_IDENTITY,
         .name = "fc"}};
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_build(ctx, 3, 8, 8, layers, 9, 0, &graph));
    return graph;
}

static void layout_of_a_resnet(void **state) {
    (void)state;
    wf_graph *g = resnet(), *wide = NULL, *read = parse(resnet_json, "relu", 0);
    assert_true(wf_graph_equal(g, read));
    for (int b = 0; b < g->n_blocks; b++)
        assert_string_equal(g->blocks[b].name, read->blocks[b].name);
    wf_graph_free(read);
    assert_int_equal(g->n_blocks, 6 * 5 + 2);
    assert_string_equal(g->blocks[4].name, "bn1.running_var");
    assert_string_equal(g->blocks[25].name, "layer2.0.downsample.0.weight");
    assert_string_equal(g->blocks[31].name, "fc.bias");
    /* Orbits: the first stream, both inner groups, the second stream. */
    static const int orbits[] = {-1, 0, 1, 0, 0, 2, 3, 3, 3, -1};
    static const int units[] = {0, 1, 2, 1, 1, 5, 6, 6, 6, 9};
    assert_int_equal(g->n_orbits, 4);
    for (int k = 0; k <= 9; k++) {
        assert_int_equal(g->groups[k].orbit, orbits[k]);
        assert_int_equal(g->groups[k].units, units[k]);
    }
    assert_int_equal(wf_graph_perm_size(g), 4 + 4 + 6 + 6);
    assert_int_equal(g->groups[7].height, 4);
    assert_ok(ctx, wf_graph_scale_width(ctx, g, 1.5, &wide));
    static const int widths[] = {3, 6, 6, 6, 6, 9, 9, 9, 9, 5};
    for (int k = 0; k <= 9; k++) assert_int_equal(wide->groups[k].n, widths[k]);
    assert_false(wf_graph_equal(g, wide));
    assert_string_not_equal(g->text, wide->text);
    /* The metanetwork's graph has one set of nodes for each stream. */
    wf_arena arena = {0};
    wf_batch batch;
    const wf_graph *graphs[] = {g};
    assert_ok(ctx, wf_batch_build(ctx, &arena, graphs, 1, &batch));
    assert_int_equal(batch.n_nodes, 3 + 4 + 4 + 6 + 6 + 5 + 6 * 4 + 1);
    wf_arena_free(&arena);
    wf_graph_free(g), wf_graph_free(wide);
}

/* The same ResNet as words, and torchvision's resnet18, whose parameters are known. */
static void basic_blocks_as_words(void **state) {
    (void)state;
    wf_graph *g = resnet(), *read;
    read = parse("3x8x8 conv4! batchnorm basic4x1 basic6x1s2 gap linear5", "relu", 0);
    assert_true(wf_graph_equal(g, read));
    for (int b = 0; b < g->n_blocks; b++)
        assert_string_equal(g->blocks[b].name, read->blocks[b].name);
    wf_graph_free(read);
    read = parse("3x224x224 conv64k7s2! batchnorm pool3s2p1 basic64x2 basic128x2s2 basic256x2s2 "
                 "basic512x2s2 gap linear1000",
                 "relu", 0);
    size_t statistics = 0;
    for (int b = 0; b < read->n_blocks; b++)
        if (!wf_block_trained(&read->blocks[b])) statistics += read->blocks[b].count;
    assert_int_equal(read->n_params - statistics, 11689512); /* PyTorch's count for resnet18 */
    wf_graph_free(read);
    assert_fails(ctx,
                 wf_graph_parse(ctx, "3x8x8 conv4 conv4 basic4x1 gap linear5", "relu", 0, &read),
                 WF_ERR_USAGE, "conv1.bias");
    assert_fails(ctx, wf_graph_parse(ctx, "3x8x8 basic4 gap linear5", "relu", 0, &read),
                 WF_ERR_USAGE, "basic64x2s2");
    assert_fails(ctx, wf_graph_parse(ctx, "3x8x8 basic4x9999 gap linear5", "relu", 0, &read),
                 WF_ERR_USAGE, "basic64x2s2");
    assert_fails(ctx, wf_graph_parse(ctx, "3x8x8 basic4x1 batchnorm gap linear5", "relu", 0, &read),
                 WF_ERR_USAGE, "in this order");
    wf_graph_free(g);
}

/* Batch norms folded, out again and folded again: the same logits, then the same bits. */
static void norms_are_folded(void **state) {
    (void)state;
    static const char *const texts[] = {
        "3x8x8 conv4! batchnorm basic4x1 basic6x1s2 gap linear5",
        "7 linear6 batchnorm tanh linear4! batchnorm sigmoid linear3",
        "{\"input\":[2,5,5],\"layers\":[{\"op\":\"conv\",\"units\":3,\"kernel\":3,\"norm\":"
        "{\"kind\":\"batch\",\"name\":\"n\",\"eps\":0.5},\"activation\":\"relu\"},"
        "{\"op\":\"linear\",\"units\":4}]}"};
    for (int t = 0; t < 3; t++) {
        wf_graph *kept = parse(texts[t], "relu", 0), *folded, *back, *read, *wide;
        assert_ok(ctx, wf_graph_fold_norms(ctx, kept, &folded));
        assert_ok(ctx, wf_graph_unfold_norms(ctx, folded, &back));
        assert_true(wf_graph_equal(kept, back));
        for (int b = 0; b < kept->n_blocks; b++)
            assert_string_equal(kept->blocks[b].name, back->blocks[b].name);
        for (int b = 0; b < folded->n_blocks; b++)
            assert_true(folded->blocks[b].kind <= WF_BLOCK_BIAS);
        /* JSON and a change of width keep what was folded. */
        char *json;
        assert_ok(ctx, wf_graph_json(ctx, folded, &json));
        assert_ok(ctx, wf_graph_from_json(ctx, json, 0, &read));
        free(json);
        assert_ok(ctx, wf_graph_scale_width(ctx, folded, 2, &wide));
        for (int l = 0; l < kept->n_layers; l++) {
            const wf_layer *a = &folded->layers[l], *b = &read->layers[l], *c = &wide->layers[l];
            assert_int_equal(a->folded_norm != NULL, kept->layers[l].norm == WF_NORM_BATCH);
            if (a->folded_norm == NULL) continue;
            assert_string_equal(a->folded_norm, b->folded_norm);
            assert_string_equal(a->folded_norm, c->folded_norm);
            assert_true(a->folded_bias == b->folded_bias && a->eps == b->eps);
            assert_int_equal(a->folded_bias, !kept->layers[l].bias);
        }
        float *w = calloc(2 * kept->n_params + 2 * folded->n_params, sizeof *w);
        float *w_back = w + kept->n_params, *f = w_back + kept->n_params,
              *again = f + folded->n_params;
        wf_rng rng = wf_rng_at(5, (uint32_t)t, 0, 0);
        for (size_t i = 0; i < kept->n_params; i++) w[i] = 2 * wf_rng_uniform(&rng) - 1;
        for (int b = 0; b < kept->n_blocks; b++)
            for (size_t i = 0; i < kept->blocks[b].count; i++)
                if (kept->blocks[b].kind == WF_BLOCK_VARIANCE)
                    w[kept->blocks[b].offset + i] = fabsf(w[kept->blocks[b].offset + i]) + 0.1f;
        wf_graph_convert_norms(kept, folded, w, f);
        wf_graph_convert_norms(folded, back, f, w_back);
        wf_graph_convert_norms(back, folded, w_back, again);
        assert_memory_equal(f, again, folded->n_params * sizeof *f);
        float x[3 * 8 * 8], logits[3][8];
        for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = 2 * wf_rng_uniform(&rng) - 1;
        assert_ok(ctx, wf_graph_forward(ctx, kept, w, x, 1, logits[0]));
        assert_ok(ctx, wf_graph_forward(ctx, folded, f, x, 1, logits[1]));
        assert_ok(ctx, wf_graph_forward(ctx, back, w_back, x, 1, logits[2]));
        for (int o = 0; o < kept->outputs; o++)
            for (int k = 1; k < 3; k++)
                assert_close(logits[k][o], logits[0][o], 1e-5 * (1 + fabs((double)logits[0][o])));
        free(w);
        wf_graph_free(kept), wf_graph_free(folded), wf_graph_free(back);
        wf_graph_free(read), wf_graph_free(wide);
    }
    wf_graph *kept = parse("1x4x4 conv3 relu pass batchnorm linear2", "relu", 0), *folded;
    assert_fails(ctx, wf_graph_fold_norms(ctx, kept, &folded), WF_ERR_SHAPE, "layer 2, batch norm");
    wf_graph_free(kept);
}

/* Text or builder -> description -> JSON -> the same description, and the text parses back. */
static void descriptions_survive_json(void **state) {
    (void)state;
    static const char *const texts[] = {
        "64-16-8-10",
        "64-10",
        "4-3!-2",
        "64-16!-10!",
        paper_cnn,
        "1x8x8 conv4 batchnorm pool3s2p1 linear9 tanh linear2",
        "1x8x8 conv4 identity pass batchnorm relu avgpool3 conv10k2p0 gap",
        "7 linear5 layernorm gelu linear4! linear3",
        "7 linear5 tanh linear4 silu linear3"};
    for (size_t i = 0; i <= sizeof texts / sizeof *texts; i++) {
        bool text = i < sizeof texts / sizeof *texts;
        wf_graph *g = text ? parse(texts[i], "relu", 0) : resnet(), *again, *clone;
        char *json, *json_again;
        assert_ok(ctx, wf_graph_json(ctx, g, &json));
        assert_ok(ctx, wf_graph_from_json(ctx, json, 0, &again));
        assert_ok(ctx, wf_graph_json(ctx, again, &json_again));
        assert_string_equal(json, json_again);
        assert_string_equal(g->text, again->text);
        assert_true(wf_graph_equal(g, again));
        assert_ok(ctx, wf_graph_clone(ctx, g, &clone));
        assert_true(wf_graph_equal(g, clone));
        for (int b = 0; b < g->n_blocks; b++) {
            assert_string_equal(g->blocks[b].name, again->blocks[b].name);
            assert_string_equal(g->blocks[b].name, clone->blocks[b].name);
        }
        wf_graph_free(again), wf_graph_free(clone);
        if (text) {
            bool mixed = g->activation == WF_ACT_MIXED;
            again = parse(g->text, mixed ? "relu" : wf_activation_name(g->activation), 0);
            assert_true(wf_graph_equal(g, again));
            assert_string_equal(g->text, again->text);
            wf_graph_free(again);
        }
        free(json), free(json_again);
        wf_graph_free(g);
    }
    wf_graph *a = parse("5-4-3", "relu", 0), *b = parse("5 linear4 linear3", "relu", 0),
             *c = parse("5-4-3", "tanh", 0);
    assert_true(wf_graph_equal(a, b)); /* names are ignored */
    assert_false(wf_graph_equal(a, c));
    wf_graph_free(a), wf_graph_free(b), wf_graph_free(c);
}

static void bad_words(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
        wf_status status;
    } bad[] = {
        {"3x8 conv4", "inputs as 64 or 3x32x32", WF_ERR_USAGE},
        {"3x0x8 conv4", "inputs as 64 or 3x32x32", WF_ERR_USAGE},
        {"3x8x8 ", "expected 1 to 4096 layers, found 0", WF_ERR_USAGE},
        {"3x8x8 pool", "conv16, linear10 or pass", WF_ERR_USAGE},
        {"3x8x8 conv", "a number of units", WF_ERR_USAGE},
        {"3x8x8 conv4k", "a space at \"k\"", WF_ERR_USAGE},
        {"3x8x8 conv0 gap", "layer 1 (conv \"0\"): expected 1 to 1048576 units", WF_ERR_USAGE},
        {"3x8x8 conv4 swish", "an activation at \"swish\"", WF_ERR_USAGE},
        {"3x8x8 conv4 pool batchnorm linear2", "in this order", WF_ERR_USAGE},
        {"3x8x8 conv4 flatten conv5 gap", "a linear layer after flatten", WF_ERR_USAGE},
        {"3x8x8 conv4 linear2 relu", "the outputs are logits", WF_ERR_USAGE},
        {"3x8x8 conv4", "expected one value per output, found 4x8x8", WF_ERR_SHAPE},
        {"3x8x8 conv4 linear5 conv3 gap", "layer 3 (conv \"5\"): expected an image", WF_ERR_SHAPE},
        {"3x8x8 conv4 linear5 pool linear2", "layer 2 (linear \"3\"): expected an image to pool",
         WF_ERR_SHAPE},
        {"3x8x8 conv4k11p1 gap", "a kernel of 11x11 does not fit; expected at most 10x10",
         WF_ERR_SHAPE},
        {"3x8x8 conv4 pool pass pool conv3k5p0 gap",
         "layer 3 (conv \"4\"): convolution: a kernel of 5x5 does not fit; expected at most 2x2",
         WF_ERR_SHAPE},
        {"3x8x8 conv4 pool pass pool pass pool pass pool linear3", "pooling: a kernel of 2x2",
         WF_ERR_SHAPE},
        {"3x8x8 conv4s0 gap", "stride go from 1", WF_ERR_USAGE},
        {"3x8x8 conv4 pool2p2 linear2", "at most half of the kernel", WF_ERR_USAGE},
        {"3x8x8 conv4p99999999999 gap", "a space at \"p99999999999", WF_ERR_USAGE},
        {"1000000x16000x16000 conv4 gap", "inputs of 1000000 x 16000", WF_ERR_USAGE},
    };
    wf_graph *g;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(ctx, wf_graph_parse(ctx, bad[i].text, "relu", 0, &g), bad[i].status,
                     bad[i].sentence);
        assert_null(g);
    }
}

static void bad_json(void **state) {
    (void)state;
    static const struct {
        const char *json, *sentence;
    } bad[] = {
        {"{", "line 1"},
        {"{}", "\"input\" must be [n] or [channels, height, width]"},
        {"{\"input\":[2]}", "\"layers\" must be a list"},
        {"{\"input\":[2,0,1],\"layers\":[{}]}", "without zeros"},
        {"{\"input\":[-2],\"layers\":[{}]}", "a whole number"},
        {"{\"input\":[2],\"layers\":[{}],\"x\":1}", "top level: unknown key \"x\""},
        {"{\"input\":[2],\"layers\":[7]}", "layer 1: an object"},
        {"{\"input\":[2],\"layers\":[{}]}", "layer 1: \"op\" must be linear, conv"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"attention\"}]}", "one of linear, conv, add, pass"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"unit\":3}]}", "unknown key \"unit\""},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\"}]}",
         "expected 1 to 1048576 units, found 0"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3,\"in\":4}]}",
         "expected 4 units to read, found 2"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3,\"from\":1}]}",
         "it reads layer 1; expected 0 (the input) to 0"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3},"
         "{\"op\":\"linear\",\"units\":3,\"from\":0}]}",
         "layer 1 (linear \"layers.0\"): no layer reads it"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3},"
         "{\"op\":\"add\",\"from\":[0,1]}]}",
         "layer 2 (add): expected two inputs of one size, found 2 of layer 0 and 3 of layer 1"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"add\",\"from\":0}]}", "the two layers"},
        {"{\"input\":[1,4,4],\"layers\":[{\"op\":\"conv\",\"units\":3}]}",
         "\"kernel\" must be given"},
        {"{\"input\":[1,4,4],\"layers\":[{\"op\":\"conv\",\"units\":3,"
         "\"kernel\":[3]}]}",
         "a number or [height, width]"},
        {"{\"input\":[1,4,4],\"layers\":[{\"op\":\"conv\",\"units\":3,"
         "\"kernel\":[3,5]}]}",
         "a kernel of 3x5 does not fit; expected at most 4x4"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3,"
         "\"norm\":{\"kind\":\"group\"}}]}",
         "layer 1, norm: \"kind\" must be one of none, batch, layer"},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3,"
         "\"name\":\"weft.x\"}]}",
         "begins with \"weft.\""},
        {"{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"units\":3,\"name\":\"a\"},"
         "{\"op\":\"linear\",\"units\":3,\"name\":\"a\"}]}",
         "also has a tensor \"a."},
        {"{\"input\":[2],\"layers\":[{\"op\":\"pass\"}]}", "no layer has parameters"},
    };
    wf_graph *g;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        wf_status status = wf_graph_from_json(ctx, bad[i].json, 0, &g);
        assert_true(status == WF_ERR_USAGE || status == WF_ERR_SHAPE);
        if (strstr(wf_last_error(ctx), bad[i].sentence) == NULL)
            fail_msg("%s: \"%s\", expected \"%s\"", bad[i].json, wf_last_error(ctx),
                     bad[i].sentence);
    }
}

static void chains(void **state) {
    (void)state;
    static const char *const others[] = {paper_cnn, "1x2x2 linear4 linear2",
                                         "4 linear3 batchnorm linear2",
                                         "4 linear3 pass tanh linear2"};
    wf_graph *g = parse("4-3-2", "relu", 0);
    assert_true(wf_graph_is_chain(g));
    wf_graph_free(g);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        g = parse(others[i], "relu", 0);
        assert_false(wf_graph_is_chain(g));
        wf_graph_free(g);
    }
    g = resnet();
    assert_false(wf_graph_is_chain(g));
    wf_graph_free(g);
}

static void width_is_rounded_half_up(void **state) {
    (void)state;
    wf_graph *g = parse("64-16-5-10", "relu", 0), *h = NULL;
    assert_ok(ctx, wf_graph_scale_width(ctx, g, 0.5, &h));
    assert_string_equal(h->text, "64-8-3-10");
    wf_graph_free(h);
    assert_ok(ctx, wf_graph_scale_width(ctx, g, 0.01, &h));
    assert_string_equal(h->text, "64-1-1-10");
    wf_graph_free(h);
    assert_fails(ctx, wf_graph_scale_width(ctx, g, 0, &h), WF_ERR_USAGE, "width factor");
    wf_graph_free(g);
}

static void random_perm(const wf_graph *g, uint64_t seed, uint32_t *perm) {
    for (int o = 0; o < g->n_orbits; o++) {
        size_t start = wf_graph_perm_start(g, o), end = wf_graph_perm_start(g, o + 1);
        wf_rng rng = wf_rng_at(seed, (uint32_t)o, WF_RNG_TEST, 5);
        wf_rng_shuffle(&rng, perm + start, (uint32_t)(end - start));
    }
}

/* Relabelled channels compute the same function: convolutions, poolings, norms, residual sums. */
static void relabelled_images_have_the_same_logits(void **state) {
    (void)state;
    static const char *const texts[] = {
        "3x8x8 conv5 pool conv6k5p2 avgpool3s2p1 conv4s2 gap linear3",
        "2x7x9 conv4k3p0 batchnorm tanh pool3s2p1 conv3k1 layernorm linear6 linear4", NULL};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        wf_graph *g = texts[i] == NULL ? resnet() : parse(texts[i], "relu", 0);
        enum { rows = 70 };
        size_t n = g->n_params, in = (size_t)g->inputs, out = (size_t)g->outputs;
        float *w = malloc(2 * n * 4), *x = malloc(rows * in * 4), *y = malloc(2 * rows * out * 4);
        uint32_t perm[64];
        wf_rng rng = wf_rng_at(3, (uint32_t)i, WF_RNG_TEST, 7);
        wf_rng_normals(&rng, w, n);
        rng.step = 99;
        wf_rng_normals(&rng, x, rows * in);
        for (int b = 0; b < g->n_blocks; b++)
            for (size_t k = 0; g->blocks[b].kind == WF_BLOCK_VARIANCE && k < g->blocks[b].count;
                 k++)
                w[g->blocks[b].offset + k] = fabsf(w[g->blocks[b].offset + k]) + 0.1f;
        random_perm(g, 17, perm);
        wf_graph_permute(g, perm, w, w + n);
        assert_memory_not_equal(w, w + n, n * 4);
        assert_ok(ctx, wf_graph_forward(ctx, g, w, x, rows, y));
        assert_ok(ctx, wf_graph_forward(ctx, g, w + n, x, rows, y + rows * out));
        assert_close(relative_difference(y, y + rows * out, rows * out), 0, 1e-5);
        /* An example does not depend on its neighbours. */
        float alone[16];
        assert_ok(ctx, wf_graph_forward(ctx, g, w, x + 69 * in, 1, alone));
        assert_memory_equal(alone, y + 69 * out, out * sizeof *alone);
        free(w), free(x), free(y);
        wf_graph_free(g);
    }
}

/* Entry (i, j) of a block goes to (place of i, place of j), where places of fixed groups are their
 * own. */
/* Few parameters, but images whose values no machine holds, and whose number overflows. */
static void images_without_end_are_refused(void **state) {
    (void)state;
    char text[4096];
    wf_text words = wf_text_start(text, sizeof text);
    wf_text_add(&words, "1x1x1 conv1048576k1p8191!");
    for (int i = 0; i < 600; i++) wf_text_add(&words, " pass"); /* 600 x 2^54 values */
    wf_text_add(&words, " gap linear2!");
    assert_false(words.cut);
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, text, "relu", 0, &graph));
    float *w = calloc(graph->n_params, sizeof *w), x = 1, logits[2];
    assert_fails(ctx, wf_graph_forward(ctx, graph, w, &x, 1, logits), WF_ERR_UNSUPPORTED,
                 "layer 1 (1048576 units of 16383x16383) takes more than 4 GB");
    free(w);
    wf_graph_free(graph);
}

static void permutation_moves_entries(void **state) {
    (void)state;
    wf_graph *g = parse("2-3-2-2", "relu", 0);
    const uint32_t perm[] = {2, 0, 1, /* second layer */ 1, 0};
    float w[64], moved[64], back[64];
    for (size_t i = 0; i < g->n_params; i++) w[i] = (float)i;
    wf_graph_permute(g, perm, w, moved);
    wf_graph_permute_inverse(g, perm, moved, back);
    assert_memory_equal(w, back, g->n_params * sizeof *w);
    /* layers.0 weight (3,2) and bias (3), layers.1 weight (2,3) and bias (2), layers.2 weight (2,2)
     * and bias (2) */
    const float expected[] = {2,  3,  4, 5,       0,  1,       /**/ 7, 8,  6,  /**/ 13, 14, 12,
                              10, 11, 9, /**/ 16, 15, /**/ 18, 17,     20, 19, /**/ 21, 22};
    assert_int_equal(g->n_params, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < g->n_params; i++) assert_true(moved[i] == expected[i]);
    wf_graph_free(g);
}

/* The forward pass against a plain loop in double, and its invariance under relabelling. */
static void forward_and_permutation(void **state) {
    (void)state;
    static const char *const archs[] = {"5-7-3", "5-9-6-4", "5-3!-8-2!", "5-4"};
    static const char *const acts[] = {"relu", "tanh", "gelu", "silu", "sigmoid", "identity"};
    for (int a = 0; a < 4; a++)
        for (int c = 0; c < 6; c++) {
            wf_graph *g = parse(archs[a], acts[c], 0);
            enum { rows = 301 };
            size_t out = (size_t)g->outputs;
            float *w = malloc(g->n_params * 4), *pw = malloc(g->n_params * 4),
                  *back = malloc(g->n_params * 4);
            float *x = malloc(rows * 5 * 4), *y = malloc(rows * out * 4),
                  *py = malloc(rows * out * 4);
            uint32_t perm[64];
            wf_rng rng = wf_rng_at(3, (uint32_t)a, WF_RNG_TEST, (uint32_t)c);
            wf_rng_normals(&rng, w, g->n_params);
            rng.step = 99;
            wf_rng_normals(&rng, x, rows * 5);
            random_perm(g, 17, perm);
            wf_graph_permute(g, perm, w, pw);
            wf_graph_permute_inverse(g, perm, pw, back);
            assert_memory_equal(w, back, g->n_params * 4);
            assert_ok(ctx, wf_graph_forward(ctx, g, w, x, rows, y));
            assert_ok(ctx, wf_graph_forward(ctx, g, pw, x, rows, py));
            assert_close(relative_difference(py, y, rows * out), 0, 1e-5);
            for (int r = 0; r < rows; r += 37) {
                double value[64], next[64];
                for (int j = 0; j < 5; j++) value[j] = x[r * 5 + j];
                for (int l = 0; l < g->n_layers; l++) {
                    int n_dst = g->groups[l + 1].n, n_src = g->groups[l].n;
                    size_t weight = 0, bias = SIZE_MAX;
                    for (int b = 0; b < g->n_blocks; b++) {
                        if (g->blocks[b].layer != l) continue;
                        if (g->blocks[b].kind == WF_BLOCK_WEIGHT) weight = g->blocks[b].offset;
                        else bias = g->blocks[b].offset;
                    }
                    for (int i = 0; i < n_dst; i++) {
                        double s = bias == SIZE_MAX ? 0 : w[bias + (size_t)i];
                        for (int j = 0; j < n_src; j++)
                            s += w[weight + (size_t)(i * n_src + j)] * value[j];
                        if (l + 1 < g->n_layers) switch (c) {
                            case 0: s = s > 0 ? s : 0; break;
                            case 1: s = tanh(s); break;
                            case 2: s = 0.5 * s * (1 + erf(s / sqrt(2))); break;
                            case 3: s = s / (1 + exp(-s)); break;
                            case 4: s = 1 / (1 + exp(-s)); break;
                            default: break;
                            }
                        next[i] = s;
                    }
                    memcpy(value, next, sizeof value);
                }
                for (size_t i = 0; i < out; i++)
                    assert_close(y[(size_t)r * out + i], value[i], 1e-4);
            }
            free(w), free(pw), free(back), free(x), free(y), free(py);
            wf_graph_free(g);
        }
}

static void normalisation(void **state) {
    (void)state;
    wf_graph *g = parse("3-4-2", "relu", 0);
    enum { count = 50 };
    size_t p = g->n_params;
    float *w = malloc(count * p * 4), *n = malloc(count * p * 4), *back = malloc(p * 4);
    wf_rng rng = wf_rng_at(1, 1, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, w, count * p);
    for (size_t i = 0; i < count * p; i++) w[i] = 3 * w[i] + 0.5f;
    for (size_t k = 0; k < count; k++)
        w[k * p + p - 1] = w[k * p + p - 2] = 7; /* output bias: constant */
    wf_norm norm;
    assert_ok(ctx, wf_norm_fit(ctx, g, w, count, &norm));
    assert_int_equal(norm.n, 4);
    assert_true(norm.std[3] == 1 && norm.mean[3] == 7);
    for (size_t k = 0; k < count; k++) wf_norm_apply(&norm, g, w + k * p, n + k * p);
    wf_norm again;
    assert_ok(ctx, wf_norm_fit(ctx, g, n, count, &again));
    for (int b = 0; b < 3; b++) {
        assert_close(again.mean[b], 0, 1e-5);
        assert_close(again.std[b], 1, 1e-5);
    }
    wf_norm_invert(&norm, g, n, back);
    assert_close(relative_difference(back, w, p), 0, 1e-6);
    w[5] = NAN;
    wf_norm bad;
    assert_fails(ctx, wf_norm_fit(ctx, g, w, count, &bad), WF_ERR_INPUT, "layers.0.weight");
    wf_norm_free(&norm), wf_norm_free(&again), wf_norm_free(&bad);
    free(w), free(n), free(back);
    wf_graph_free(g);
}

static void ragged_batches(void **state) {
    (void)state;
    wf_graph *a = parse("64-16-8-10", "relu", 0),
             *b = parse("784-32-32-10", "relu", WF_GRAPH_FOLD_INPUT);
    wf_graph *c = parse("3-2!-2", "relu", 0);
    const wf_graph *graphs[] = {a, b, c, a, b};
    wf_arena arena = {0};
    wf_batch batch;
    assert_ok(ctx, wf_batch_build(ctx, &arena, graphs, 5, &batch));
    size_t nodes[] = {64 + 16 + 8 + 10 + 3, 76, 3 + 2 + 2 + 1, 101, 76},
           edges[] = {1266, 1386, 12, 1266, 1386};
    size_t params[] = {1266, 26506, 12, 1266, 26506};
    for (int k = 0; k < 5; k++) {
        assert_int_equal(batch.node_start[k + 1] - batch.node_start[k], nodes[k]);
        assert_int_equal(batch.edge_start[k + 1] - batch.edge_start[k], edges[k]);
        assert_int_equal(batch.param_start[k + 1] - batch.param_start[k], params[k]);
    }
    assert_int_equal(batch.n_folds, 2);
    assert_int_equal(batch.folds[1].graph, 4);
    assert_int_equal(batch.folds[1].weight0, batch.param_start[4]);
    assert_int_equal(batch.folds[1].bias0, batch.param_start[4] + 784 * 32);
    /* Every edge belongs to one block, every parameter to one edge or folded row. */
    char *edge_seen = calloc(batch.n_edges, 1), *param_seen = calloc(batch.n_params, 1);
    double degrees = 0;
    for (size_t k = 0; k < batch.n_blocks; k++) {
        const wf_batch_block *block = &batch.blocks[k];
        assert_true(block->dst0 >= batch.node_start[block->graph]);
        assert_true(block->src0 + (size_t)block->n_src <= batch.node_start[block->graph + 1]);
        for (int e = 0; e < block->n_dst * block->n_src; e++) {
            edge_seen[block->edge0 + (size_t)e]++;
            param_seen[block->param0 + (size_t)e]++;
        }
    }
    for (int f = 0; f < batch.n_folds; f++) {
        for (int i = 0; i < 32 * 784; i++) param_seen[batch.folds[f].weight0 + (size_t)i]++;
        for (int i = 0; i < 32; i++) param_seen[batch.folds[f].bias0 + (size_t)i]++;
    }
    for (size_t i = 0; i < batch.n_edges; i++) assert_int_equal(edge_seen[i], 1);
    for (size_t i = 0; i < batch.n_params; i++) assert_int_equal(param_seen[i], 1);
    for (size_t i = 0; i < batch.n_nodes; i++) degrees += batch.degree[i];
    assert_close(degrees, 2.0 * (double)batch.n_edges, 0);
    /* Hidden units of a layer share a role; inputs do not. */
    assert_int_equal(batch.node_role[64], batch.node_role[79]);
    assert_int_not_equal(batch.node_role[64], batch.node_role[80]);
    assert_int_not_equal(batch.node_role[0], batch.node_role[1]);
    free(edge_seen), free(param_seen);
    wf_arena_free(&arena);
    wf_graph_free(a), wf_graph_free(b), wf_graph_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_that_of_a_state_dict),
        cmocka_unit_test(bad_descriptions),
        cmocka_unit_test(layout_of_a_cnn),
        cmocka_unit_test(layout_of_a_resnet),
        cmocka_unit_test(basic_blocks_as_words),
        cmocka_unit_test(norms_are_folded),
        cmocka_unit_test(descriptions_survive_json),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(bad_json),
        cmocka_unit_test(chains),
        cmocka_unit_test(relabelled_images_have_the_same_logits),
        cmocka_unit_test(images_without_end_are_refused),
        cmocka_unit_test(width_is_rounded_half_up),
        cmocka_unit_test(permutation_moves_entries),
        cmocka_unit_test(forward_and_permutation),
        cmocka_unit_test(normalisation),
        cmocka_unit_test(ragged_batches),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
