/* Import and export: which tensors are the layers, all three kinds of source, refusals, and the way
 * back out. */
#include "folder_fixture.h"
#include "weft/text.h"
#include "failing_malloc.h"
#include "torch_writer.h"
#include "base/safetensors.h"
#include "weft/import.h"
#include "zoo/torch_write.h"
#include "zoo/zoo_import_items.h"
#include "zoo/zoo_import_layers.h"

#include <sys/stat.h>
#include <unistd.h>

static char warning[2048];
static void keep_warning(void *user, const char *sentence) {
    (void)user;
    snprintf(warning, sizeof warning, "%s", sentence);
}

static wf_ctx *ctx;

static int setup(void **state) {
    wf_ctx_desc desc = {.threads = 2, .warn = keep_warning};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 1;
    return make_folder(state);
}
static int teardown(void **state) {
    wf_ctx_free(ctx);
    return drop_folder(state);
}

/* --- names ------------------------------------------------------------------------------------ */

static void natural_order(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool by_number;
    } ascending[] = {
        {"fc2", "fc10", true},
        {"0.weight", "2.weight", true},
        {"a", "b", false},
        {"a", "ab", false},
        {"l1.out", "l2.in", true},
        {"l1.in", "l1.out", false},
        {"x.weight", "x1.w", false},
        {"007", "8", true},
        {"01a", "1b", false},
        {"net_9.pt", "net_10.pt", true},
        {"99999999999999999999998", "99999999999999999999999", true},
    };
    for (size_t i = 0; i < sizeof ascending / sizeof *ascending; i++) {
        bool by_number;
        assert_true(wf_natural_order(ascending[i].a, ascending[i].b, &by_number) < 0);
        assert_int_equal(by_number, ascending[i].by_number);
        assert_true(wf_natural_order(ascending[i].b, ascending[i].a, NULL) > 0);
        assert_int_equal(wf_natural_order(ascending[i].a, ascending[i].a, NULL), 0);
    }
}

/* --- layers ----------------------------------------------------------------------------------- */

typedef struct shape {
    const char *name; /* '#' in front: whole numbers */
    int rank;
    size_t dims[4];
} shape;

static wf_status resolve(const shape *shapes, const char *layers, bool stackable,
                         wf_import_chain *chain) {
    static const float data[1];
    wf_st_tensor tensors[40];
    const wf_st_tensor *pointers[40];
    size_t n = 0;
    for (; shapes[n].name != NULL; n++) {
        bool integer = shapes[n].name[0] == '#';
        tensors[n] = (wf_st_tensor){.name = shapes[n].name + integer,
                                    .dtype = integer ? WF_ST_I64 : WF_ST_F32,
                                    .rank = shapes[n].rank,
                                    .count = 1,
                                    .data = data};
        for (int i = 0; i < shapes[n].rank; i++) {
            tensors[n].shape[i] = shapes[n].dims[i];
            tensors[n].count *= shapes[n].dims[i];
        }
        pointers[n] = &tensors[n];
    }
    wf_status status = wf_import_resolve(ctx, "net.pt", pointers, n, layers, stackable, chain);
    if (status != WF_OK) return status;
    /* Names outlive the tensors of this function; the test looks at them through a static copy. */
    static wf_st_tensor kept[40];
    memcpy(kept, tensors, sizeof kept);
    for (int l = 0; l < chain->n; l++) {
        chain->layers[l].weight = &kept[chain->layers[l].weight - tensors];
        if (chain->layers[l].bias) chain->layers[l].bias = &kept[chain->layers[l].bias - tensors];
    }
    return WF_OK;
}

enum { max_tensors = 12 };

static void good_networks(void **state) {
    (void)state;
    /* clang-format off */
    static const struct {
        shape shapes[max_tensors];
        const char *layers, *arch, *order; /* of weights and biases, '-' for no bias */
        size_t networks;
    } cases[] = {
        {{{"0.weight", 2, {16, 64}}, {"0.bias", 1, {16}}, {"2.weight", 2, {10, 16}},
          {"2.bias", 1, {10}}},
         NULL, "64-16-10", "0.weight 0.bias 2.weight 2.bias ", 1},
        /* numbers are numbers, whatever the order in the file */
        {{{"10.weight", 2, {8, 8}}, {"9.weight", 2, {8, 8}}, {"2.weight", 2, {8, 8}}},
         NULL, "8-8!-8!-8!", "2.weight - 9.weight - 10.weight - ", 1},
        /* the shapes place what the names do not */
        {{{"fc1.weight", 2, {16, 4}}, {"fc2.weight", 2, {8, 16}}, {"fc1.bias", 1, {16}},
          {"head.weight", 2, {3, 8}}, {"head.bias", 1, {3}}},
         NULL, "4-16-8!-3", "fc1.weight fc1.bias fc2.weight - head.weight head.bias ", 1},
        {{{"output.weight", 2, {3, 8}}, {"hidden.weight", 2, {8, 16}},
          {"input.weight", 2, {16, 4}}},
         NULL, "4-16!-8!-3!", "input.weight - hidden.weight - output.weight - ", 1},
        /* equal widths: numbers order fc1 before fc2, the shape puts `out` last */
        {{{"fc1.weight", 2, {4, 4}}, {"fc2.weight", 2, {4, 4}}, {"out.weight", 2, {3, 4}}},
         NULL, "4-4!-4!-3!", "fc1.weight - fc2.weight - out.weight - ", 1},
        /* numbers further out decide before names further in */
        {{{"b.0.x.weight", 2, {8, 6}}, {"b.0.y.weight", 2, {4, 8}}, {"b.1.x.weight", 2, {8, 4}},
          {"b.1.y.weight", 2, {4, 8}}},
         NULL, "6-8!-4!-8!-4!", "b.0.x.weight - b.0.y.weight - b.1.x.weight - b.1.y.weight - ", 1},
        /* wrappers */
        {{{"module._orig_mod.module.0.weight", 2, {2, 3}},
          {"module._orig_mod.module.0.bias", 1, {2}}},
         NULL, "3-2", "module._orig_mod.module.0.weight module._orig_mod.module.0.bias ", 1},
        {{{"net._orig_mod.0.weight", 2, {2, 3}}, {"net._orig_mod.0.bias", 1, {2}}},
         "net.0", "3-2", "net._orig_mod.0.weight net._orig_mod.0.bias ", 1},
        /* a bare Linear */
        {{{"weight", 2, {2, 3}}, {"bias", 1, {2}}}, NULL, "3-2", "weight bias ", 1},
        /* names of one's own */
        {{{"w1", 2, {5, 4}}, {"w2", 2, {5, 5}}, {"b1", 1, {5}}, {"b2", 1, {5}}},
         NULL, "4-5-5", "w1 b1 w2 b2 ", 1},
        {{{"w1", 2, {5, 4}}, {"w2", 2, {3, 5}}, {"b_out", 1, {3}}},
         NULL, "4-5!-3", "w1 - w2 b_out ", 1},
        /* named in order */
        {{{"a.weight", 2, {4, 4}}, {"b.weight", 2, {4, 4}}, {"b.bias", 1, {4}}, {"c", 2, {4, 4}}},
         " b, module.a,c ", "4-4-4!-4!", "b.weight b.bias a.weight - c - ", 1},
        /* stacked */
        {{{"0.weight", 3, {7, 16, 64}}, {"0.bias", 2, {7, 16}}, {"2.weight", 3, {7, 10, 16}}},
         NULL, "64-16-10!", "0.weight 0.bias 2.weight - ", 7},
        {{{"0.weight", 3, {1, 2, 3}}}, NULL, "3-2!", "0.weight - ", 1},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_import_chain chain;
        wf_status status = resolve(cases[i].shapes, cases[i].layers, true, &chain);
        if (status != WF_OK) fail_msg("case %zu: %s", i, wf_last_error(ctx));
        char order[512] = "", arch[128];
        wf_text widths = wf_text_start(arch, sizeof arch);
        wf_text_add(&widths, "%d", chain.inputs);
        for (int l = 0; l < chain.n; l++) {
            const wf_import_layer *layer = &chain.layers[l];
            wf_text_add(&widths, "-%d%s", layer->units, layer->bias ? "" : "!");
            strcat(strcat(order, layer->weight->name), " ");
            strcat(strcat(order, layer->bias ? layer->bias->name : "-"), " ");
        }
        assert_string_equal(arch, cases[i].arch);
        assert_string_equal(order, cases[i].order);
        assert_int_equal(chain.networks, cases[i].networks);
    }
}

static void refused_networks(void **state) {
    (void)state;
    /* clang-format off */
    static const struct {
        shape shapes[max_tensors];
        const char *layers;
        bool stackable;
        const char *words[2];
    } cases[] = {
        {{{NULL, 0, {0}}}, NULL, false, {"no tensors", ""}},
        {{{"x", 1, {4}}}, NULL, false, {"no weight matrices", "x F32 [4]"}},
        {{{"a.weight", 2, {4, 4}}, {"b.weight", 2, {4, 4}}}, NULL, false,
         {"ambiguous", "a.weight F32 [4,4], b.weight F32 [4,4]"}},
        {{{"b.0.x", 2, {8, 4}}, {"b.0.y", 2, {4, 8}}, {"b.1.x", 2, {8, 4}}, {"b.1.y", 2, {4, 8}}},
         NULL, false, {"ambiguous", "--layers"}}, /* 4-8-4-8-4 or 8-4-8-4-8 */
        {{{"0.weight", 2, {4, 3}}, {"1.weight", 2, {4, 3}}}, NULL, false,
         {"do not chain", "1.weight F32 [4,3]"}},
        /* the only chain contradicts the numbers */
        {{{"1.weight", 2, {2, 4}}, {"2.weight", 2, {4, 3}}}, NULL, false,
         {"do not chain", "--layers"}},
        /* batch norm */
        {{{"0.weight", 2, {4, 3}}, {"0.bias", 1, {4}}, {"1.weight", 1, {4}}, {"1.bias", 1, {4}},
          {"1.running_mean", 1, {4}}, {"#1.num_batches_tracked", 0, {0}}},
         NULL, false, {"1.num_batches_tracked I64 []", "normalisation"}},
        /* layer norm after layers with and without bias */
        {{{"0.weight", 2, {4, 3}}, {"0.bias", 1, {4}}, {"1.weight", 1, {4}}, {"1.bias", 1, {4}}},
         NULL, false, {"left over", "1.bias F32 [4], 1.weight F32 [4]"}},
        {{{"0.weight", 2, {4, 3}}, {"1.weight", 1, {4}}, {"1.bias", 1, {4}}}, NULL, false,
         {"left over", "1.weight F32 [4]"}},
        /* a gain alone is no bias, nor is a PReLU's slope */
        {{{"0.weight", 2, {4, 3}}, {"1.scale", 1, {4}}}, NULL, false, {"left over", "1.scale"}},
        {{{"0.weight", 2, {4, 3}}, {"0.bias", 1, {4}}, {"1.weight", 1, {1}}}, NULL, false,
         {"left over", "1.weight F32 [1]"}},
        /* convolutions; rank 3 in a folder is a kernel too */
        {{{"0.weight", 4, {8, 1, 3, 3}}, {"3.weight", 2, {10, 8}}}, NULL, true,
         {"convolutions", "0.weight F32 [8,1,3,3]"}},
        {{{"0.weight", 3, {8, 1, 3}}, {"3.weight", 2, {10, 8}}}, NULL, false,
         {"convolutions", "0.weight F32 [8,1,3]"}},
        {{{"#0.weight", 2, {4, 3}}}, NULL, false, {"0.weight I64 [4,3]", ""}},
        {{{"0.weight", 2, {0, 3}}}, NULL, false, {"empty tensors", "[0,3]"}},
        {{{"0.weight", 2, {4, 3}}, {"0.bias", 1, {5}}}, NULL, false,
         {"'0.bias' has 5 entries", "4 outputs"}},
        {{{"u", 2, {4, 3}}, {"v", 2, {3, 4}}, {"w", 2, {4, 3}}, {"b", 1, {4}}}, "u,v,w", false,
         {"which layers these biases", "b F32 [4]"}},
        {{{"w", 2, {4, 3}}, {"b.x", 1, {4}}, {"b.y", 1, {4}}}, NULL, false,
         {"which layers these biases", "b.x F32 [4], b.y F32 [4]"}},
        {{{"module.a.weight", 2, {4, 3}}, {"a.weight", 2, {4, 3}}}, NULL, false,
         {"two tensors are named 'a.weight'", ""}},
        {{{"a.weight", 2, {4, 3}}, {"b.weight", 2, {2, 4}}}, "a", false, {"left over", "b.weight"}},
        {{{"a.weight", 2, {4, 3}}, {"b.weight", 2, {2, 4}}}, "b,a", false,
         {"'a.weight' has 3 inputs", "2 outputs"}},
        {{{"a.weight", 2, {4, 3}}}, "a,a", false, {"named twice", ""}},
        {{{"a.weight", 2, {4, 3}}}, "c", false, {"\"c\" has no weight matrix", "a.weight"}},
        {{{"a.weight", 2, {4, 3}}, {"a.bias", 1, {4}}}, "a.bias", false, {"no weight matrix", ""}},
        {{{"a.weight", 2, {4, 3}}}, "", false, {"no weight matrix", ""}},
        {{{"0.weight", 3, {7, 4, 3}}, {"0.bias", 2, {6, 4}}}, NULL, true,
         {"disagree on the number", "0.bias"}},
        {{{"0.weight", 3, {7, 4, 3}}, {"0.bias", 1, {4}}}, NULL, true, {"0.bias F32 []", ""}},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_import_chain chain;
        wf_status status = resolve(cases[i].shapes, cases[i].layers, cases[i].stackable, &chain);
        const char *said = wf_last_error(ctx);
        if ((status != WF_ERR_INPUT && status != WF_ERR_USAGE) ||
            strstr(said, cases[i].words[0]) == NULL || strstr(said, cases[i].words[1]) == NULL)
            fail_msg("case %zu: status %d, \"%s\"; expected \"%s\" and \"%s\"", i, (int)status,
                     status ? said : "", cases[i].words[0], cases[i].words[1]);
    }
}

/* A layered mess of 32 equal matrices without numbers must be refused soon, not after 32! steps. */
static void many_orders_end(void **state) {
    (void)state;
    static char names[33][8];
    shape shapes[34] = {0};
    for (int i = 0; i < 32; i++) {
        snprintf(names[i], sizeof names[i], "%c%c", 'a' + i / 6, 'a' + i % 6);
        shapes[i] = (shape){names[i], 2, {4, i >= 30 ? 5 : 4}}; /* two beginnings: no order */
    }
    wf_import_chain chain;
    assert_fails(ctx, resolve(shapes, NULL, false, &chain), WF_ERR_INPUT, "--layers");
    shapes[32] = (shape){"zz", 2, {4, 4}};
    assert_fails(ctx, resolve(shapes, NULL, false, &chain), WF_ERR_INPUT, "more than 32");
}

/* --- files ------------------------------------------------------------------------------------ */

static float value_of(size_t network, size_t i) { return (float)network + (float)i / 64; }

/* Layer sizes 3-4-2 with a last layer without bias; `wide`: 3-5-2. Values count up in flat
 * order. */
static void write_net(const char *path, size_t network, bool torch, bool wide) {
    const int64_t h = wide ? 5 : 4;
    float w[64];
    for (size_t i = 0; i < 64; i++) w[i] = value_of(network, i);
    const float *parts[3] = {w, w + 3 * h, w + 4 * h};
    const size_t counts[3] = {(size_t)(3 * h), (size_t)h, (size_t)(2 * h)};
    if (!torch) {
        wf_st_tensor tensors[3] = {
            {"0.weight", WF_ST_F32, 2, {(size_t)h, 3}, counts[0], counts[0] * 4, parts[0]},
            {"0.bias", WF_ST_F32, 1, {(size_t)h}, counts[1], counts[1] * 4, parts[1]},
            {"2.weight", WF_ST_F32, 2, {2, (size_t)h}, counts[2], counts[2] * 4, parts[2]},
        };
        assert_ok(ctx, wf_st_write(ctx, path, tensors, 3, NULL, 0));
        return;
    }
    const view views[3] = {full_view("0", 2, h, 3), full_view("1", 1, h, 0),
                           full_view("2", 2, 2, h)};
    static const char *const names[3] = {"module.0.weight", "module.0.bias", "module.2.weight"};
    bytes p = {0};
    put_string(&p, "\x80\x02}");
    pickle_text(&p, "state_dict");
    pickle_dict(&p);
    for (int i = 0; i < 3; i++) {
        pickle_text(&p, names[i]);
        pickle_tensor(&p, &views[i]);
        put_string(&p, "s");
    }
    put_string(&p, "s.");
    zip_writer z = {0};
    zip_add(&z, "archive/data.pkl", p.data, p.n, false);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "archive/data/%d", i);
        zip_add(&z, name, parts[i], counts[i] * 4, i == 1);
    }
    bytes file = zip_end(&z, true);
    assert_ok(ctx, wf_write_file(ctx, path, file.data, file.n));
    free(file.data);
    free(p.data);
}

static void check_networks(const wf_zoo *zoo, const char *arch, const size_t *networks,
                           size_t count, const char *sources) {
    const wf_graph *graph = wf_zoo_graph(zoo);
    assert_string_equal(graph->text, arch);
    assert_string_equal(wf_activation_name(graph->activation), "tanh");
    assert_int_equal(wf_zoo_count(zoo), count);
    assert_string_equal(wf_zoo_meta(zoo, "weft.sources"), sources);
    for (size_t m = 0; m < count; m++) {
        float w[64];
        wf_zoo_get(zoo, m, w);
        for (size_t i = 0; i < graph->n_params; i++)
            assert_close(w[i], value_of(networks[m], i), 0);
    }
}

static void check_collection(const char *path, const char *arch, const size_t *networks,
                             size_t count, const char *sources) {
    wf_zoo *zoo = NULL;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    check_networks(zoo, arch, networks, count, sources);
    wf_zoo_free(zoo);
}

static void folder_of(bool torch) {
    const char *end = torch ? "pt" : "safetensors";
    char name[64];
    snprintf(name, sizeof name, "nets-%s", end);
    assert_int_equal(mkdir(in_folder(name), 0777), 0);
    const int numbers[5] = {1, 2, 9, 10, 11};
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "nets-%s/net%d.%s", end, numbers[i], end);
        write_net(in_folder(name), (size_t)numbers[i], torch, numbers[i] == 9 || numbers[i] == 10);
    }
    snprintf(name, sizeof name, "nets-%s/notes.txt", end);
    assert_ok(ctx, wf_write_file(ctx, in_folder(name), "x", 1));
    snprintf(name, sizeof name, "nets-%s/", end);
    wf_import_desc desc = wf_import_desc_default();
    desc.activation = "tanh";
    wf_import_result result;
    char out[64];
    snprintf(out, sizeof out, "out-%s.safetensors", end);
    assert_ok(ctx, wf_zoo_import(ctx, in_folder(name), &desc, in_folder(out), &result));
    assert_int_equal(result.files, 5);
    assert_int_equal(result.networks, 5);
    assert_int_equal(result.n_collections, 2);
    assert_non_null(strstr(result.collections[0].path, "-3-4-2nobias.safetensors"));
    assert_non_null(strstr(result.collections[1].path, "-3-5-2nobias.safetensors"));
    char sources[2][128];
    snprintf(sources[0], sizeof sources[0], "[\"net1.%s\",\"net2.%s\",\"net11.%s\"]", end, end,
             end);
    snprintf(sources[1], sizeof sources[1], "[\"net9.%s\",\"net10.%s\"]", end, end);
    check_collection(result.collections[0].path, "3-4-2!", (size_t[]){1, 2, 11}, 3, sources[0]);
    check_collection(result.collections[1].path, "3-5-2!", (size_t[]){9, 10}, 2, sources[1]);
    wf_import_result_free(&result);
    wf_import_result_free(NULL);
}

static void folders(void **state) {
    (void)state;
    folder_of(false);
    folder_of(true);
}

/* Stacked, in half precision and double, and one network whose numbers are no numbers. */
static void stacked_and_widened(void **state) {
    (void)state;
    enum { m = 3 };
    uint16_t weight[m * 2 * 3];
    double bias[m * 2];
    for (int i = 0; i < m * 6; i++)
        weight[i] = (uint16_t)(0x3c00 + 0x40 * (i % 16)); /* 1 + (i % 16) / 16 */
    for (int i = 0; i < m * 2; i++) bias[i] = i == 3 ? 1e300 : i + 0.125;
    wf_st_tensor tensors[2] = {
        {"lin.weight", WF_ST_F16, 3, {m, 2, 3}, m * 6, sizeof weight, weight},
        {"lin.bias", WF_ST_F64, 2, {m, 2}, m * 2, sizeof bias, bias},
    };
    const char *path = in_folder("stacked.safetensors");
    assert_ok(ctx, wf_st_write(ctx, path, tensors, 2, NULL, 0));
    wf_import_desc desc = {.activation = "relu", .name = "mine"};
    wf_import_result result;
    warning[0] = 0;
    assert_ok(ctx, wf_zoo_import(ctx, path, &desc, in_folder("unstacked"), &result));
    assert_int_equal(result.non_finite, 1);
    assert_non_null(strstr(warning, "1 of 3 networks have infinite values"));
    assert_non_null(strstr(warning, "network 1, stacked.safetensors"));
    wf_zoo *zoo = NULL;
    assert_ok(ctx, wf_zoo_open(ctx, result.collections[0].path, &zoo));
    assert_string_equal(result.collections[0].arch, "3-2");
    assert_string_equal(wf_zoo_meta(zoo, "weft.sources"), "[\"stacked.safetensors\"]");
    assert_string_equal(wf_zoo_meta(zoo, "weft.name"), "mine");
    float w[8];
    wf_zoo_get(zoo, 2, w);
    for (int i = 0; i < 6; i++) assert_close(w[i], 1 + (12 + i) % 16 / 16.0, 0);
    assert_close(w[7], 5.125, 0);
    wf_zoo_get(zoo, 1, w);
    assert_true(isinf(w[7]));
    wf_zoo_free(zoo);
    /* A collection is no source. */
    assert_fails(ctx, wf_zoo_import(ctx, result.collections[0].path, &desc, in_folder("x"), NULL),
                 WF_ERR_INPUT, "already");
    wf_import_result_free(&result);
}

/* --- into memory ------------------------------------------------------------------------------ */

/* After folders(), whose files these are. */
static void files_into_memory(void **state) {
    (void)state;
    char pattern[256], one[256];
    snprintf(pattern, sizeof pattern, "%s", in_folder("nets-pt/net[12].pt"));
    snprintf(one, sizeof one, "%s", in_folder("nets-pt/net11.pt"));
    const char *both[2] = {pattern, one}, *all = in_folder("nets-pt");
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_import_json(ctx, both, 2, "{\"activation\": \"tanh\"}", &zoo));
    check_networks(zoo, "3-4-2!", (size_t[]){1, 2, 11}, 3,
                   "[\"net1.pt\",\"net2.pt\",\"net11.pt\"]");
    assert_true(wf_zoo_in_memory(zoo));
    assert_string_equal(wf_zoo_meta(zoo, "weft.scale"), "none");
    wf_zoo_free(zoo);
    const char *described = "{\"arch\": \"3-4-2!\", \"activation\": \"tanh\", \"name\": \"mine\"}";
    assert_ok(ctx, wf_zoo_import_json(ctx, both + 1, 1, described, &zoo));
    check_networks(zoo, "3-4-2!", (size_t[]){11}, 1, "[\"net11.pt\"]");
    assert_string_equal(wf_zoo_meta(zoo, "weft.name"), "mine");
    wf_zoo_free(zoo);
    static const struct {
        const char *options;
        wf_status status;
        const char *says;
    } bad[] = {
        {"{\"activation\": \"relu\"}", WF_ERR_SHAPE, "networks of 3-4-2! and of 3-5-2!"},
        {NULL, WF_ERR_USAGE, "activation"},
        {"{", WF_ERR_USAGE, "import"},
        {"{\"activation\": 3}", WF_ERR_USAGE, "import"},
        {"{\"activaton\": \"relu\"}", WF_ERR_USAGE, "activaton"},
        {"{\"activation\": \"relu\", \"inputs\": 7, \"outputs\": 2}", WF_ERR_SHAPE, "7 inputs"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(ctx, wf_zoo_import_json(ctx, &all, 1, bad[i].options, &zoo), bad[i].status,
                     bad[i].says);
        assert_null(zoo);
    }
}

/* Two networks 3-4-2! stacked: values of network 5, then of network 6. */
static wf_status import_stacked(wf_ctx *c, const char *options, wf_zoo **out) {
    static const char *const names[3] = {"0.weight", "0.bias", "2.weight"};
    static const int rank[3] = {3, 2, 3};
    static const size_t dims[8] = {2, 4, 3, 2, 4, 2, 2, 4}, counts[3] = {12, 4, 8};
    float values[3][2 * 12];
    for (size_t t = 0, at = 0; t < 3; at += counts[t++])
        for (size_t i = 0; i < 2 * counts[t]; i++)
            values[t][i] = value_of(5 + i / counts[t], at + i % counts[t]);
    const float *data[3] = {values[0], values[1], values[2]};
    return wf_zoo_import_tensors(c, names, data, rank, dims, 3, options, out);
}

static void tensors_into_memory(void **state) {
    (void)state;
    static const char *const options[2] = {"{\"activation\": \"tanh\"}",
                                           "{\"activation\": \"tanh\", \"arch\": \"3-4-2!\"}"};
    wf_zoo *zoo;
    for (int i = 0; i < 2; i++) {
        assert_ok(ctx, import_stacked(ctx, options[i], &zoo));
        check_networks(zoo, "3-4-2!", (size_t[]){5, 6}, 2, "[\"tensors in memory\"]");
        wf_zoo_free(zoo);
    }
    static const char *const name = "0.weight";
    static const float number;
    static const size_t dims[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const float *data = &number;
    assert_fails(ctx,
                 wf_zoo_import_tensors(ctx, &name, &data, &(int){9}, dims, 1, options[0], &zoo),
                 WF_ERR_SHAPE, "0.weight: 9 dimensions");
    assert_null(zoo);
    assert_fails(ctx, wf_zoo_import_tensors(ctx, NULL, NULL, NULL, NULL, 0, options[0], &zoo),
                 WF_ERR_INPUT, "tensors in memory");
    assert_null(zoo);
}

static void bad_sources(void **state) {
    (void)state;
    wf_import_desc desc = {.activation = "relu"};
    const char *out = in_folder("never");
    assert_fails(ctx, wf_zoo_import(ctx, "/nowhere/at/all", &desc, out, NULL), WF_ERR_INPUT,
                 "/nowhere/at/all");
    assert_fails(ctx, wf_zoo_import(ctx, folder, NULL, out, NULL), WF_ERR_USAGE, "activation");
    desc.activation = "swoosh";
    assert_fails(ctx, wf_zoo_import(ctx, folder, &desc, out, NULL), WF_ERR_USAGE, "swoosh");
    desc.activation = "relu";
    assert_int_equal(mkdir(in_folder("mixed"), 0777), 0);
    assert_fails(ctx, wf_zoo_import(ctx, in_folder("mixed"), &desc, out, NULL), WF_ERR_INPUT,
                 "no .safetensors");
    write_net(in_folder("mixed/a.pt"), 1, true, false);
    write_net(in_folder("mixed/a.safetensors"), 1, false, false);
    assert_fails(ctx, wf_zoo_import(ctx, in_folder("mixed"), &desc, out, NULL), WF_ERR_INPUT,
                 "name the ones you want");
    /* One broken file among good ones: named, and nothing written. */
    assert_int_equal(remove(in_folder("mixed/a.safetensors")), 0);
    assert_ok(ctx, wf_write_file(ctx, in_folder("mixed/b.pth"), "PK\3\4 and so on", 13));
    assert_fails(ctx, wf_zoo_import(ctx, in_folder("mixed"), &desc, out, NULL), WF_ERR_INPUT,
                 "mixed/b.pth");
    assert_false(wf_file_exists(in_folder("never.safetensors")));
    assert_ok(ctx, wf_write_file(ctx, in_folder("text"), "hello", 5));
    assert_fails(ctx, wf_zoo_import(ctx, in_folder("text"), &desc, out, NULL), WF_ERR_INPUT,
                 "text");
    /* The target cannot be written. */
    assert_int_equal(remove(in_folder("mixed/b.pth")), 0);
    wf_import_result result;
    assert_int_equal(wf_zoo_import(ctx, in_folder("mixed"), &desc, "/proc/nowhere/x", &result),
                     WF_ERR_DISK);
    assert_int_equal(result.n_collections, 0);
}

/* A single torch file, by content where the name says nothing. */
static void single_files(void **state) {
    (void)state;
    write_net(in_folder("checkpoint"), 6, true, false);
    wf_import_desc desc = {.activation = "tanh", .layers = "0,2"};
    assert_ok(ctx, wf_zoo_import(ctx, in_folder("checkpoint"), &desc, in_folder("one"), NULL));
    check_collection(in_folder("one.safetensors"), "3-4-2!", (size_t[]){6}, 1, "[\"checkpoint\"]");
}

/* --- export ----------------------------------------------------------------------------------- */

static void exports(void **state) {
    (void)state;
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, "3-4-2!", "relu", 0, &graph));
    float w[2 * 24];
    assert_int_equal(graph->n_params, 24);
    for (size_t i = 0; i < 48; i++) w[i] = value_of(i / 24, i % 24);
    const char *path = in_folder("zoo.safetensors");
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, w, 2, NULL));
    wf_zoo *zoo = NULL;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    static const struct {
        const char *names, *expected[3];
    } cases[] = {
        {NULL, {"layers.0.weight", "layers.0.bias", "layers.1.weight"}},
        {"0,2", {"0.weight", "0.bias", "2.weight"}},
        {"net.fc1, net.out", {"net.fc1.weight", "net.fc1.bias", "net.out.weight"}},
    };
    for (int c = 0; c < 3; c++) {
        const char *net = in_folder("net.safetensors");
        assert_ok(ctx, wf_zoo_export(ctx, zoo, 1, net, cases[c].names));
        wf_st_file *file = NULL;
        assert_ok(ctx, wf_st_open(ctx, net, &file));
        assert_int_equal(wf_st_count(file), 3);
        assert_string_equal(wf_st_meta(file, "format"), "pt");
        assert_string_equal(wf_st_meta(file, "weft.activation"), "relu");
        size_t at = 0;
        for (int k = 0; k < 3; k++) {
            const wf_st_tensor *t = wf_st_find(file, cases[c].expected[k]);
            assert_non_null(t);
            assert_int_equal(t->rank, k == 1 ? 1 : 2);
            assert_int_equal(t->shape[0], k == 2 ? 2 : 4);
            float out[24];
            assert_ok(ctx, wf_st_to_float(ctx, t, out));
            for (size_t i = 0; i < t->count; i++) assert_close(out[i], value_of(1, at++), 0);
        }
        assert_int_equal(at, 24);
        wf_st_close(file);
    }
    const char *net = in_folder("bad.safetensors");
    assert_fails(ctx, wf_zoo_export(ctx, zoo, 2, net, NULL), WF_ERR_USAGE, "network 2");
    assert_fails(ctx, wf_zoo_export(ctx, zoo, 0, net, "a"), WF_ERR_USAGE, "1 name");
    assert_fails(ctx, wf_zoo_export(ctx, zoo, 0, net, "a,b,c"), WF_ERR_USAGE, "3 names");
    assert_fails(ctx, wf_zoo_export(ctx, zoo, 0, net, "a,"), WF_ERR_USAGE, "empty");
    assert_fails(ctx, wf_zoo_export(ctx, zoo, 0, net, "a,a"), WF_ERR_USAGE, "twice");
    assert_false(wf_file_exists(net));
    wf_zoo_free(zoo);
    wf_graph_free(graph);
    /* What was exported can be imported. */
    wf_import_desc desc = {.activation = "tanh"};
    assert_int_equal(mkdir(in_folder("again"), 0777), 0);
    assert_int_equal(rename(in_folder("net.safetensors"), in_folder("again/net.safetensors")), 0);
    assert_ok(ctx, wf_zoo_import(ctx, in_folder("again"), &desc, in_folder("back"), NULL));
    check_collection(in_folder("back.safetensors"), "3-4-2!", (size_t[]){1}, 1,
                     "[\"net.safetensors\"]");
}

/* --- memory ----------------------------------------------------------------------------------- */

static wf_status import_again(wf_ctx *c, void *source) {
    wf_import_desc desc = {.activation = "relu", .layers = "0,2"};
    wf_import_result result;
    char from[256];
    snprintf(from, sizeof from, "%s/%s", folder, (const char *)source);
    wf_status status = wf_zoo_import(c, from, &desc, in_folder("memory"), &result);
    wf_import_result_free(&result);
    return status;
}

static wf_status import_to_memory(wf_ctx *c, void *options) {
    wf_zoo *zoo;
    char file[256];
    snprintf(file, sizeof file, "%s", in_folder("nets-pt/net11.pt"));
    const char *source = file;
    wf_status status = wf_zoo_import_json(c, &source, 1, options, &zoo);
    wf_zoo_free(zoo);
    if (status == WF_OK) status = import_stacked(c, options, &zoo);
    wf_zoo_free(zoo);
    /* jansson takes a text for damaged when it has no memory for one of its strings. */
    bool blamed = status == WF_ERR_USAGE && strstr(wf_last_error(c), "not JSON") != NULL;
    return blamed ? WF_ERR_MEMORY : status;
}

static wf_status look_and_export(wf_ctx *c, void *zoo) {
    char *info;
    wf_status status = wf_zoo_info_json(c, zoo, &info);
    if (status == WF_OK) { /* whole, or an error */
        assert_non_null(strstr(info, "\"index\": 1, \"earlier\": 0, \"permuted\": false"));
        assert_non_null(strstr(info, "\"index\": 2, \"earlier\": 0, \"permuted\": true"));
    }
    wf_free(info);
    if (status == WF_OK) status = wf_zoo_export(c, zoo, 0, in_folder("one-net.safetensors"), "a,b");
    if (status == WF_OK) status = wf_zoo_export(c, zoo, 0, in_folder("one-net.pt"), "a,b");
    if (status == WF_OK) { /* whole, whichever request failed */
        static off_t whole;
        struct stat made;
        assert_int_equal(stat(in_folder("one-net.pt"), &made), 0);
        if (whole == 0) whole = made.st_size;
        assert_int_equal(made.st_size, whole);
    }
    return status;
}

static const char folded_arch[] = "1x3x3 conv2! batchnorm relu linear2";

static wf_status import_folded(wf_ctx *c, void *unused) {
    (void)unused;
    wf_import_desc desc = {.arch = folded_arch};
    wf_zoo *zoo = NULL;
    wf_status status = wf_zoo_import(c, in_folder("norm.pt"), &desc, in_folder("norm-out"), NULL);
    if (status == WF_OK) status = wf_zoo_open(c, in_folder("norm-out.safetensors"), &zoo);
    if (status == WF_OK) status = wf_zoo_export(c, zoo, 0, in_folder("norm-net.safetensors"), NULL);
    wf_zoo_free(zoo);
    return status;
}

/* Folding at import and back at export, under the names of the file, and read again as networks
 * like those of the collection. */
static void folded_norms(void **state) {
    (void)state;
    wf_graph *graph = NULL;
    float w[18 + 8 + 36 + 2];
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = 0.25f + (float)(i % 7);
    assert_ok(ctx, wf_graph_parse(ctx, folded_arch, "relu", 0, &graph));
    wf_st_tensor tensors[7];
    static const char *const names[] = {"stem.weight",       "norm.weight",      "norm.bias",
                                        "norm.running_mean", "norm.running_var", "head.weight",
                                        "head.bias"};
    for (int b = 0; b < 7; b++) {
        const wf_block *block = &graph->blocks[b];
        tensors[b] = (wf_st_tensor){.name = names[b],
                                    .dtype = WF_ST_F32,
                                    .count = block->count,
                                    .bytes = block->count * sizeof(float),
                                    .data = w + block->offset};
        tensors[b].rank = wf_block_shape(graph, block, tensors[b].shape);
    }
    assert_int_equal(graph->n_params, sizeof w / sizeof *w);
    assert_ok(ctx, wf_torch_write(ctx, in_folder("norm.pt"), tensors, 7, NULL, 0));
    wf_import_desc desc = {.arch = folded_arch};
    wf_import_result result;
    assert_ok(ctx, wf_zoo_import(ctx, in_folder("norm.pt"), &desc, in_folder("norm-out"), &result));
    assert_int_equal(result.collections[0].folded_norms, 1);
    assert_string_equal(result.collections[0].arch, "1x3x3 conv2 linear2");
    wf_import_result_free(&result);
    assert_ok(ctx, import_folded(ctx, NULL));
    wf_zoo *zoo = NULL, *nets = NULL;
    assert_ok(ctx, wf_zoo_open(ctx, in_folder("norm-out.safetensors"), &zoo));
    assert_ok(ctx, wf_zoo_open_networks(ctx, in_folder("norm-net.safetensors"), NULL, &nets));
    assert_true(wf_graph_equal(wf_zoo_graph(zoo), wf_zoo_graph(nets)));
    float a[18 + 2 + 36 + 2], b[18 + 2 + 36 + 2];
    wf_zoo_get(zoo, 0, a), wf_zoo_get(nets, 0, b);
    assert_memory_equal(a, b, sizeof a);
    wf_zoo_free(nets);
    /* The user's own file, beside the collection that is like it. */
    assert_ok(ctx, wf_zoo_open_networks(ctx, in_folder("norm.pt"), wf_zoo_graph(zoo), &nets));
    wf_zoo_get(nets, 0, b);
    assert_memory_equal(a, b, sizeof a);
    wf_zoo_free(nets), wf_zoo_free(zoo);
    wf_st_file *file = NULL;
    assert_ok(ctx, wf_st_open(ctx, in_folder("norm-net.safetensors"), &file));
    assert_int_equal(wf_st_count(file), 7);
    for (int k = 0; k < 7; k++) assert_non_null(wf_st_find(file, names[k]));
    wf_st_close(file);
    desc.keep_norm = true;
    assert_ok(ctx,
              wf_zoo_import(ctx, in_folder("norm.pt"), &desc, in_folder("norm-kept"), &result));
    assert_int_equal(result.collections[0].folded_norms, 0);
    wf_import_result_free(&result);
    wf_graph_free(graph);
    fail_every_allocation(ctx, "folded norms", import_folded, NULL);
}

static void short_of_memory(void **state) {
    (void)state;
    fail_every_allocation(ctx, "torch folder", import_again, "nets-pt");
    fail_every_allocation(ctx, "safetensors folder", import_again, "nets-safetensors");
    fail_every_allocation(ctx, "into memory", import_to_memory, "{\"activation\": \"relu\"}");
    wf_graph *graph =
        NULL; /* network 1 = network 0, network 2 = the same with two units exchanged */
    assert_ok(ctx, wf_graph_parse(ctx, "1-2-1!", "relu", 0, &graph));
    const float w[3 * 6] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 2, 1, 4, 3, 6, 5};
    assert_ok(ctx, wf_zoo_write(ctx, in_folder("pairs.safetensors"), graph, w, 3, NULL));
    wf_graph_free(graph);
    wf_zoo *zoo = NULL;
    assert_ok(ctx, wf_zoo_open(ctx, in_folder("pairs.safetensors"), &zoo));
    fail_every_allocation(ctx, "info and export", look_and_export, zoo);
    wf_zoo_free(zoo);
}

static void interrupted(void **state) {
    (void)state;
    wf_ctx *stopped = test_ctx();
    wf_import_desc desc = {.activation = "relu"};
    wf_interrupt(stopped);
    assert_fails(
        stopped,
        wf_zoo_import(stopped, in_folder("stacked.safetensors"), &desc, in_folder("cut"), NULL),
        WF_ERR_INTERRUPTED, "after 0 of 3 networks");
    assert_fails(stopped,
                 wf_zoo_import(stopped, in_folder("nets-pt"), &desc, in_folder("cut"), NULL),
                 WF_ERR_INTERRUPTED, "after 0 of 5 files");
    assert_false(wf_file_exists(in_folder("cut.safetensors")));
    wf_ctx_free(stopped);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(natural_order),     cmocka_unit_test(good_networks),
        cmocka_unit_test(refused_networks),  cmocka_unit_test(many_orders_end),
        cmocka_unit_test(folders),           cmocka_unit_test(stacked_and_widened),
        cmocka_unit_test(bad_sources),       cmocka_unit_test(single_files),
        cmocka_unit_test(exports),           cmocka_unit_test(interrupted),
        cmocka_unit_test(files_into_memory), cmocka_unit_test(tensors_into_memory),
        cmocka_unit_test(folded_norms),      cmocka_unit_test(short_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
