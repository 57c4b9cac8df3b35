/* Descriptions of networks, as text and as JSON: any text is read or refused; what is read survives
 * being written and read again, can be permuted and executed. */
#include "driver.h"

#include "weft/graph.h"

#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "64-16-8-10",
    "2-3!-2",
    "3x8x8 conv4 batchnorm relu pool conv8k3s2p1 gelu gap linear10",
    "1x6x6 conv2k5s2p2 layernorm pass flatten linear3!",
    "{\"input\":[2],\"layers\":[{\"op\":\"linear\",\"name\":\"a\",\"units\":3,\"activation\":"
    "\"relu\"},"
    "{\"op\":\"linear\",\"name\":\"b\",\"units\":2,\"bias\":false}]}",
    "{\"input\":[3,8,8],\"layers\":[{\"op\":\"conv\",\"name\":\"c\",\"units\":4,\"kernel\":3,"
    "\"padding\":"
    "1,\"activation\":\"relu\"},{\"op\":\"conv\",\"name\":\"d\",\"units\":4,\"kernel\":[3,3],"
    "\"padding\":1,"
    "\"norm\":{\"kind\":\"batch\",\"name\":\"n\",\"eps\":0.001}},{\"op\":\"add\",\"from\":[1,2],"
    "\"activation\":"
    "\"relu\"},{\"op\":\"pass\",\"pool\":{\"kind\":\"global\"}},{\"op\":\"linear\",\"name\":\"e\","
    "\"units\":2}]}",
};

FUZZ_TEXTS(seeds)

/* Small networks only: a description of a few bytes may stand for gigabytes of weights. */
static void use_graph(wf_ctx *ctx, const wf_graph *graph) {
    size_t n = graph->n_params, units = wf_graph_perm_size(graph);
    size_t work = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_group *dst = &graph->groups[graph->blocks[b].dst];
        work += graph->blocks[b].count * (size_t)dst->sum_height * (size_t)dst->sum_width;
    }
    if (n > 20000 || units > 20000 || graph->inputs > 20000 || graph->outputs > 20000 ||
        work > 10000000)
        return;
    float *w = calloc(3 * n + 1, sizeof *w), *x = calloc((size_t)graph->inputs + 1, sizeof *x);
    float *logits = calloc((size_t)graph->outputs + 1, sizeof *logits);
    uint32_t *perm = calloc(units + 1, sizeof *perm);
    if (w == NULL || x == NULL || logits == NULL || perm == NULL) abort();
    for (size_t i = 0; i < n; i++) w[i] = (float)(i % 7) - 3;
    for (int o = 0; o < graph->n_orbits; o++) { /* each orbit backwards */
        size_t start = wf_graph_perm_start(graph, o), end = wf_graph_perm_start(graph, o + 1);
        for (size_t u = start; u < end; u++) perm[u] = (uint32_t)(end - 1 - u);
    }
    wf_graph_permute(graph, perm, w, w + n);
    wf_graph_permute_inverse(graph, perm, w + n, w + 2 * n);
    if (memcmp(w, w + 2 * n, n * sizeof *w) != 0) abort();
    if (wf_graph_is_chain(graph) && wf_graph_forward(ctx, graph, w, x, 1, logits) != WF_OK) abort();
    free(w), free(x), free(logits), free(perm);
}

static void read_text(wf_ctx *ctx, const char *text) {
    size_t length = strlen(text);
    wf_graph *graph, *again = NULL;
    char *json = NULL;
    /* A name of a file is read as one. */
    if (length > 5 && strcmp(text + length - 5, ".json") == 0) return;
    if (wf_graph_parse(ctx, text, "relu", length % 2 == 0 ? 0 : WF_GRAPH_FOLD_INPUT, &graph) !=
        WF_OK) {
        if (graph != NULL || wf_last_error(ctx)[0] == '\0') abort();
        return;
    }
    if (wf_graph_json(ctx, graph, &json) != WF_OK ||
        wf_graph_from_json(ctx, json, 0, &again) != WF_OK || !wf_graph_equal(graph, again) ||
        strcmp(graph->text, again->text) != 0)
        abort();
    wf_graph *other = NULL;
    if (wf_graph_fold_rows(graph) < 0) abort();
    if (wf_graph_fold(ctx, graph, WF_GRAPH_FOLD_INPUT, &other) != WF_OK) abort();
    wf_graph_free(other);
    if (wf_graph_scale_width(ctx, graph, 1.5, &other) == WF_OK) wf_graph_free(other);
    use_graph(ctx, graph);
    free(json);
    wf_graph_free(graph);
    wf_graph_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static wf_ctx *ctx;
    const wf_ctx_desc desc = {.threads = 1};
    if (ctx == NULL && wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    read_text(ctx, text);
    free(text);
    return 0;
}
