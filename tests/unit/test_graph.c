/* Descriptions, flat order, permutation action, forward pass, normalisation, ragged batches. */
#include "wf_test.h"
#include "base/random.h"
#include "graph/batch.h"
#include "weft/graph.h"

static wf_graph *parse(wf_ctx *ctx, const char *arch, const char *act, unsigned flags) {
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, arch, act, flags, &graph));
    return graph;
}

static void layout_is_that_of_a_state_dict(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *g = parse(ctx, "64-16-8-10", "relu", 0);
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
    g = parse(ctx, "784-32-32-10", "relu", 0);
    assert_int_equal(g->n_params, 26506);
    wf_graph_free(g);
    g = parse(ctx, "4-3!-2", "tanh", 0);
    assert_int_equal(g->n_params, 12 + 6 + 2);
    assert_string_equal(g->text, "4-3!-2");
    wf_graph_free(g);
    wf_ctx_free(ctx);
}

static void bad_descriptions(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
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
    char deep[512] = "2";
    for (int i = 0; i < 40; i++) strcat(deep, "-2");
    assert_fails(ctx, wf_graph_parse(ctx, deep, "relu", 0, &g), WF_ERR_USAGE,
                 "more than 32 layers");
    wf_ctx_free(ctx);
}

static void width_is_rounded_half_up(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *g = parse(ctx, "64-16-5-10", "relu", 0), *h = NULL;
    assert_ok(ctx, wf_graph_scale_width(ctx, g, 0.5, &h));
    assert_string_equal(h->text, "64-8-3-10");
    wf_graph_free(h);
    assert_ok(ctx, wf_graph_scale_width(ctx, g, 0.01, &h));
    assert_string_equal(h->text, "64-1-1-10");
    wf_graph_free(h);
    assert_fails(ctx, wf_graph_scale_width(ctx, g, 0, &h), WF_ERR_USAGE, "width factor");
    wf_graph_free(g);
    wf_ctx_free(ctx);
}

static void random_perm(const wf_graph *g, uint64_t seed, uint32_t *perm) {
    for (int o = 0; o < g->n_orbits; o++) {
        size_t start = wf_graph_perm_start(g, o), end = wf_graph_perm_start(g, o + 1);
        wf_rng rng = wf_rng_at(seed, (uint32_t)o, WF_RNG_TEST, 5);
        wf_rng_shuffle(&rng, perm + start, (uint32_t)(end - start));
    }
}

/* Entry (i, j) of a block goes to (place of i, place of j), where places of fixed groups are their own. */
static void permutation_moves_entries(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *g = parse(ctx, "2-3-2-2", "relu", 0);
    const uint32_t perm[] = {2, 0, 1, /* second layer */ 1, 0};
    float w[64], moved[64], back[64];
    for (size_t i = 0; i < g->n_params; i++) w[i] = (float)i;
    wf_graph_permute(g, perm, w, moved);
    wf_graph_permute_inverse(g, perm, moved, back);
    assert_memory_equal(w, back, g->n_params * sizeof *w);
    /* layers.0 weight (3,2) and bias (3), layers.1 weight (2,3) and bias (2), layers.2 weight (2,2) and bias (2) */
    const float expected[] = {2,  3,  4, 5,       0,  1,       /**/ 7, 8,  6,  /**/ 13, 14, 12,
                              10, 11, 9, /**/ 16, 15, /**/ 18, 17,     20, 19, /**/ 21, 22};
    assert_int_equal(g->n_params, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < g->n_params; i++) assert_true(moved[i] == expected[i]);
    wf_graph_free(g);
    wf_ctx_free(ctx);
}

/* The forward pass against a plain loop in double, and its invariance under relabelling. */
static void forward_and_permutation(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    static const char *const archs[] = {"5-7-3", "5-9-6-4", "5-3!-8-2!", "5-4"};
    static const char *const acts[] = {"relu", "tanh", "gelu", "silu", "sigmoid", "identity"};
    for (int a = 0; a < 4; a++)
        for (int c = 0; c < 6; c++) {
            wf_graph *g = parse(ctx, archs[a], acts[c], 0);
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
    wf_ctx_free(ctx);
}

static void normalisation(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *g = parse(ctx, "3-4-2", "relu", 0);
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
    assert_fails(ctx, wf_norm_fit(ctx, g, w, count, &norm), WF_ERR_INPUT, "layers.0.weight");
    free(w), free(n), free(back);
    wf_graph_free(g);
    wf_ctx_free(ctx);
}

static void ragged_batches(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_graph *a = parse(ctx, "64-16-8-10", "relu", 0),
             *b = parse(ctx, "784-32-32-10", "relu", WF_GRAPH_FOLD_INPUT);
    wf_graph *c = parse(ctx, "3-2!-2", "relu", 0);
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
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_that_of_a_state_dict),
        cmocka_unit_test(bad_descriptions),
        cmocka_unit_test(width_is_rounded_half_up),
        cmocka_unit_test(permutation_moves_entries),
        cmocka_unit_test(forward_and_permutation),
        cmocka_unit_test(normalisation),
        cmocka_unit_test(ragged_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
