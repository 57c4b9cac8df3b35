/* graph: from "64-16-8-10" to node groups and edge blocks, and what follows from them: permutation
 * action, width change, parameter-group normalisation. See weft/graph.h for the layout.
 *
 * Groups of an MLP with layers 0..L-1:  inputs, hidden 1..L-1, outputs, then one bias node per layer
 * that has a bias. Blocks: layers.l.weight joins group l to group l+1, layers.l.bias the layer's bias
 * node to group l+1. A hidden group is one permutation orbit. */
#include "base/status.h"
#include "weft/graph.h"
#include "weft/text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_layers = WF_MAX_BLOCKS / 2, max_width = 1 << 20 };

static const char *const activation_names[] = {"relu", "tanh",    "gelu",
                                               "silu", "sigmoid", "identity"};

const char *wf_activation_name(wf_activation activation) { return activation_names[activation]; }

static wf_status parse_activation(wf_ctx *ctx, const char *text, wf_activation *out) {
    for (int i = 0; i < (int)(sizeof activation_names / sizeof *activation_names); i++)
        if (strcmp(text, activation_names[i]) == 0) {
            *out = (wf_activation)i;
            return WF_OK;
        }
    return wf_fail(
        ctx, WF_ERR_USAGE,
        "activation \"%s\" is not known; use relu, tanh, gelu, silu, sigmoid or identity", text);
}

/* The widths of a chain and which of its layers have a bias. */
typedef struct layer_chain {
    int n_layers;
    int width[max_layers + 1];
    bool bias[max_layers];
} layer_chain;

static wf_status parse_chain(wf_ctx *ctx, const char *arch, layer_chain *out) {
    const char *p = arch;
    int n = 0;
    *out = (layer_chain){0};
    for (;;) {
        char *end;
        long width = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (width < 1 || width > max_width)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "architecture \"%s\": expected a width from 1 to %d at \"%s\"; write "
                           "widths joined by "
                           "'-', for example 64-16-8-10",
                           arch, max_width, p);
        if (n > max_layers)
            return wf_fail(ctx, WF_ERR_USAGE, "architecture \"%s\": more than %d layers", arch,
                           max_layers);
        out->width[n] = (int)width;
        bool bias = *end != '!';
        if (!bias) end++;
        if (n == 0 && !bias)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "architecture \"%s\": the inputs have no bias; '!' stands behind a "
                           "layer's output width",
                           arch);
        if (n > 0) out->bias[n - 1] = bias;
        n++;
        if (*end == '\0') break;
        if (*end != '-')
            return wf_fail(ctx, WF_ERR_USAGE, "architecture \"%s\": expected '-' at \"%s\"", arch,
                           end);
        p = end + 1;
    }
    if (n < 2)
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "architecture \"%s\": at least inputs and outputs are needed, for example 64-10", arch);
    out->n_layers = n - 1;
    return WF_OK;
}

static void add_block(wf_graph *graph, wf_block_kind kind, int src, int dst, int layer,
                      bool folded) {
    wf_block *block = &graph->blocks[graph->n_blocks++];
    *block = (wf_block){
        .kind = kind, .src = src, .dst = dst, .coef = 1, .layer = layer, .folded = folded};
    block->offset = graph->n_params;
    block->count = (size_t)graph->groups[dst].n * (size_t)graph->groups[src].n;
    graph->n_params += block->count;
    snprintf(block->name, sizeof block->name, "layers.%d.%s", layer,
             kind == WF_BLOCK_WEIGHT ? "weight" : "bias");
}

static wf_status build_chain(wf_ctx *ctx, const layer_chain *chain, wf_activation activation,
                             unsigned flags, wf_graph **out) {
    wf_graph *graph = NULL;
    int layers = chain->n_layers;
    WF_TRY(wf_alloc(ctx, 1, sizeof *graph, "graph", &graph));
    wf_status status =
        wf_alloc(ctx, (size_t)(2 * layers + 1), sizeof *graph->groups, "graph", &graph->groups);
    if (status == WF_OK)
        status =
            wf_alloc(ctx, (size_t)(2 * layers), sizeof *graph->blocks, "graph", &graph->blocks);
    if (status != WF_OK) {
        wf_graph_free(graph);
        return status;
    }
    graph->n_layers = layers;
    graph->activation = activation;
    graph->inputs = chain->width[0];
    graph->outputs = chain->width[layers];
    for (int l = 0; l <= layers; l++) {
        bool hidden = l > 0 && l < layers;
        graph->groups[graph->n_groups++] = (wf_group){
            .kind = l == 0   ? WF_GROUP_INPUT
                    : hidden ? WF_GROUP_HIDDEN
                             : WF_GROUP_OUTPUT,
            .n = chain->width[l],
            .layer = l,
            .orbit = hidden ? graph->n_orbits++ : -1,
        };
    }
    for (int l = 0; l < layers; l++) {
        /* Only a layer whose outputs are hidden can be folded onto them. */
        bool folded = l == 0 && layers > 1 && (flags & WF_GRAPH_FOLD_INPUT) != 0;
        add_block(graph, WF_BLOCK_WEIGHT, l, l + 1, l, folded);
        if (!chain->bias[l]) continue;
        graph->groups[graph->n_groups] =
            (wf_group){.kind = WF_GROUP_BIAS, .n = 1, .layer = l + 1, .orbit = -1};
        add_block(graph, WF_BLOCK_BIAS, graph->n_groups++, l + 1, l, folded);
    }
    wf_text text = wf_text_start(graph->text, sizeof graph->text);
    for (int l = 0; l <= layers; l++)
        wf_text_add(&text, "%s%d%s", l ? "-" : "", chain->width[l],
                    l > 0 && !chain->bias[l - 1] ? "!" : "");
    if (text.cut) {
        wf_graph_free(graph);
        return wf_fail(ctx, WF_ERR_USAGE, "architecture: its text is longer than %zu characters",
                       sizeof graph->text - 1);
    }
    *out = graph;
    return WF_OK;
}

wf_status wf_graph_parse(wf_ctx *ctx, const char *arch, const char *activation, unsigned flags,
                         wf_graph **out) {
    *out = NULL;
    layer_chain chain;
    wf_activation act = WF_ACT_RELU;
    WF_TRY(parse_chain(ctx, arch, &chain));
    WF_TRY(parse_activation(ctx, activation, &act));
    return build_chain(ctx, &chain, act, flags, out);
}

static unsigned flags_of(const wf_graph *graph) {
    return graph->blocks[0].folded ? WF_GRAPH_FOLD_INPUT : 0;
}

wf_status wf_graph_clone(wf_ctx *ctx, const wf_graph *graph, wf_graph **out) {
    return wf_graph_parse(ctx, graph->text, wf_activation_name(graph->activation), flags_of(graph),
                          out);
}

wf_status wf_graph_scale_width(wf_ctx *ctx, const wf_graph *graph, double factor, wf_graph **out) {
    *out = NULL;
    if (!(factor > 0) || factor > 1024)
        return wf_fail(ctx, WF_ERR_USAGE, "width factor %g: use a number above 0 and at most 1024",
                       factor);
    layer_chain chain;
    WF_TRY(parse_chain(ctx, graph->text, &chain));
    for (int l = 1; l < chain.n_layers; l++) {
        double width = floor(chain.width[l] * factor + 0.5);
        if (width > max_width)
            return wf_fail(
                ctx, WF_ERR_USAGE,
                "width factor %g: layer %d would have %.0f units, at most %d are possible", factor,
                l, width, max_width);
        chain.width[l] = width < 1 ? 1 : (int)width;
    }
    return build_chain(ctx, &chain, graph->activation, flags_of(graph), out);
}

void wf_graph_free(wf_graph *graph) {
    if (graph == NULL) return;
    free(graph->groups);
    free(graph->blocks);
    free(graph);
}

bool wf_graph_equal(const wf_graph *a, const wf_graph *b) {
    return strcmp(a->text, b->text) == 0 && a->activation == b->activation;
}

size_t wf_graph_perm_start(const wf_graph *graph, int orbit) {
    size_t start = 0;
    for (int g = 0; g < graph->n_groups; g++)
        if (graph->groups[g].orbit >= 0 && graph->groups[g].orbit < orbit)
            start += (size_t)graph->groups[g].n;
    return start;
}

size_t wf_graph_perm_size(const wf_graph *graph) {
    return wf_graph_perm_start(graph, graph->n_orbits);
}

/* Place of node i of a group after the relabelling. */
static const uint32_t *group_perm(const wf_graph *graph, const uint32_t *perm, int group) {
    int orbit = graph->groups[group].orbit;
    return orbit < 0 ? NULL : perm + wf_graph_perm_start(graph, orbit);
}

/* One row of a block; without places for its sources (to_src NULL) they stay where they are. */
static void permute_row(const uint32_t *to_src, size_t n_src, size_t coef, const float *in,
                        float *out, bool inverse) {
    if (to_src == NULL) {
        memcpy(out, in, n_src * coef * sizeof *out);
        return;
    }
    for (size_t j = 0; j < n_src; j++) {
        size_t from = inverse ? to_src[j] : j, to = inverse ? j : to_src[j];
        for (size_t c = 0; c < coef; c++) out[to * coef + c] = in[from * coef + c];
    }
}

static void permute(const wf_graph *graph, const uint32_t *perm, const float *in, float *out,
                    bool inverse) {
    assert(in != out);
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        const uint32_t *to_dst = group_perm(graph, perm, block->dst);
        const uint32_t *to_src = group_perm(graph, perm, block->src);
        size_t n_dst = (size_t)graph->groups[block->dst].n,
               n_src = (size_t)graph->groups[block->src].n;
        size_t coef = (size_t)block->coef, row = n_src * coef;
        for (size_t i = 0; i < n_dst; i++) {
            size_t place = to_dst ? to_dst[i] : i;
            size_t from = inverse ? place : i, to = inverse ? i : place;
            permute_row(to_src, n_src, coef, in + block->offset + from * row,
                        out + block->offset + to * row, inverse);
        }
    }
}

void wf_graph_permute(const wf_graph *graph, const uint32_t *perm, const float *in, float *out) {
    permute(graph, perm, in, out, false);
}

void wf_graph_permute_inverse(const wf_graph *graph, const uint32_t *perm, const float *in,
                              float *out) {
    permute(graph, perm, in, out, true);
}

wf_status wf_norm_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                      wf_norm *out) {
    *out = (wf_norm){0};
    if (count == 0)
        return wf_fail(ctx, WF_ERR_SHAPE, "normalisation: the collection has no networks");
    out->n = graph->n_blocks;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        double sum = 0, squares = 0, total = (double)count * (double)block->count;
        for (size_t k = 0; k < count; k++) {
            const float *w = weights + k * graph->n_params + block->offset;
            for (size_t i = 0; i < block->count; i++) sum += w[i];
        }
        double mean = sum / total;
        for (size_t k = 0; k < count; k++) {
            const float *w = weights + k * graph->n_params + block->offset;
            for (size_t i = 0; i < block->count; i++) squares += (w[i] - mean) * (w[i] - mean);
        }
        double std = sqrt(squares / total);
        if (!isfinite(mean) || !isfinite(std))
            return wf_fail(ctx, WF_ERR_INPUT,
                           "normalisation: %s holds values that are not finite; `weft zoo info` "
                           "names the networks",
                           block->name);
        out->mean[b] = (float)mean;
        out->std[b] = std > 0 ? (float)std : 1.0f;
    }
    return WF_OK;
}

void wf_norm_apply(const wf_norm *norm, const wf_graph *graph, const float *in, float *out) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        float mean = b < norm->n ? norm->mean[b] : 0, std = b < norm->n ? norm->std[b] : 1;
        for (size_t i = block->offset; i < block->offset + block->count; i++)
            out[i] = (in[i] - mean) / std;
    }
}

void wf_norm_invert(const wf_norm *norm, const wf_graph *graph, const float *in, float *out) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        float mean = b < norm->n ? norm->mean[b] : 0, std = b < norm->n ? norm->std[b] : 1;
        for (size_t i = block->offset; i < block->offset + block->count; i++)
            out[i] = in[i] * std + mean;
    }
}
