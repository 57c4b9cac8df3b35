/* Descriptions of networks: any text or JSON is read or refused; what is read survives being written
 * and read again, scaled, cloned and permuted. */
#include "driver.h"

#include "../network_case.h"
#include "weft/graph.h"

#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "64-16!-8-10",
    "3x32x32 conv16 pool conv32k5s2p2! batchnorm tanh avgpool3s1p1 pass layernorm gap linear10",
    "{\"input\":[7],\"layers\":[{\"op\":\"linear\",\"units\":5,\"in\":7,\"activation\":\"gelu\","
    "\"norm\":{\"kind\":\"layer\",\"eps\":1e-3}},{\"op\":\"pass\",\"activation\":\"relu\"},"
    "{\"op\":\"linear\",\"name\":\"head\",\"units\":3,\"bias\":false}]}",
    resnet_json,
    loop_json,
};

const char *fuzz_seed(size_t index, size_t *size) {
    if (index >= sizeof seeds / sizeof *seeds) return NULL;
    *size = strlen(seeds[index]);
    return seeds[index];
}

static void demand(bool holds) {
    if (!holds) abort();
}

static void permute_and_back(const wf_graph *graph) {
    size_t n = graph->n_params, units = wf_graph_perm_size(graph);
    if (n > 1 << 16 || units > 1 << 16) return;
    float *w = malloc(3 * n * sizeof *w);
    uint32_t *perm = malloc((units + 1) * sizeof *perm);
    demand(w != NULL && perm != NULL);
    for (size_t i = 0; i < n; i++) w[i] = (float)i;
    for (int o = 0; o < graph->n_orbits; o++) {
        size_t start = wf_graph_perm_start(graph, o), end = wf_graph_perm_start(graph, o + 1);
        for (size_t u = start; u < end; u++) perm[u] = (uint32_t)(end - 1 - u);
    }
    wf_graph_permute(graph, perm, w, w + n);
    wf_graph_permute_inverse(graph, perm, w + n, w + 2 * n);
    demand(memcmp(w, w + 2 * n, n * sizeof *w) == 0);
    free(w), free(perm);
}

static void use(wf_ctx *ctx, const wf_graph *graph) {
    wf_graph *again = NULL, *scaled = NULL;
    char *json, *json_again;
    demand(wf_graph_json(ctx, graph, &json) == WF_OK);
    demand(wf_graph_from_json(ctx, json, WF_GRAPH_FOLD_INPUT, &again) == WF_OK);
    demand(wf_graph_equal(graph, again) && strcmp(graph->text, again->text) == 0);
    demand(again->n_params == graph->n_params && again->n_orbits == graph->n_orbits);
    demand(wf_graph_json(ctx, again, &json_again) == WF_OK && strcmp(json, json_again) == 0);
    size_t nodes, edges, folded, sum = 0, shape[4];
    wf_graph_size(again, &nodes, &edges, &folded);
    for (int b = 0; b < again->n_blocks; b++) {
        size_t entries = 1;
        int rank = wf_block_shape(again, &again->blocks[b], shape);
        for (int d = 0; d < rank; d++) entries *= shape[d];
        demand(entries == again->blocks[b].count && again->blocks[b].offset == sum);
        sum += entries;
    }
    demand(sum == again->n_params && folded <= sum);
    if (wf_graph_scale_width(ctx, graph, 0.5, &scaled) == WF_OK)
        demand(scaled->inputs == graph->inputs && scaled->outputs == graph->outputs);
    permute_and_back(graph);
    wf_graph_free(again), wf_graph_free(scaled);
    free(json), free(json_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static wf_ctx *ctx; /* so that the sentences are made, too */
    const wf_ctx_desc desc = {.threads = 1};
    if (ctx == NULL && wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    char *text = malloc(size + 1);
    demand(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    wf_graph *graph;
    size_t length = strlen(text);
    bool is_file = length > 5 && strcmp(text + length - 5, ".json") == 0;
    if (!is_file) {
        if (wf_graph_parse(ctx, text, "relu", 0, &graph) == WF_OK) {
            use(ctx, graph);
            wf_graph_free(graph);
        } else {
            demand(graph == NULL && wf_last_error(ctx)[0] != '\0');
        }
    }
    free(text);
    return 0;
}
