/* fold_norms: batch norms in evaluation, folded into the layer before them and back
 * (weft/graph.h).
 *
 *     scale = gamma / sqrt(variance + eps)
 *     weight' = scale weight        bias' = (bias - mean) scale + beta
 *
 * Sums and products are in double. Folding, unfolding and folding again gives the same bits. */
#include "base/status.h"
#include "graph/describe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_weights(const wf_layer *layer) {
    return layer->op == WF_LAYER_LINEAR || layer->op == WF_LAYER_CONV;
}

static wf_status fold_layer(wf_ctx *ctx, int number, wf_layer *layer) {
    if (layer->norm != WF_NORM_BATCH) return WF_OK;
    if (!has_weights(layer))
        return wf_fail(ctx, WF_ERR_SHAPE,
                       "architecture: layer %d, batch norm \"%.80s\": expected a convolution or "
                       "linear layer before it to fold it into, found %s; keep it with --keep-norm "
                       "(keep_norm)",
                       number, layer->norm_name,
                       layer->op == WF_LAYER_ADD ? "the sum of two layers"
                                                 : "a value that others read, or an activation");
    layer->folded_norm = layer->norm_name;
    layer->folded_bias = !layer->bias;
    layer->bias = true;
    layer->norm = WF_NORM_NONE;
    layer->norm_name = NULL;
    return WF_OK;
}

static void unfold_layer(wf_layer *layer) {
    if (layer->folded_norm == NULL) return;
    layer->norm = WF_NORM_BATCH;
    layer->norm_name = layer->folded_norm;
    layer->bias = !layer->folded_bias;
    layer->folded_norm = NULL;
}

static wf_status convert(wf_ctx *ctx, const wf_graph *graph, bool fold, wf_graph **out) {
    wf_layer *layers;
    wf_status status = WF_OK;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_layers, sizeof *layers, "graph", &layers));
    for (int l = 0; l < graph->n_layers && status == WF_OK; l++) {
        layers[l] = graph->layers[l];
        if (fold) status = fold_layer(ctx, l + 1, &layers[l]);
        else unfold_layer(&layers[l]);
    }
    if (status == WF_OK) status = wf__graph_rebuild(ctx, graph, layers, 0, out);
    free(layers);
    return status;
}

wf_status wf_graph_fold_norms(wf_ctx *ctx, const wf_graph *graph, wf_graph **out) {
    return convert(ctx, graph, true, out);
}

wf_status wf_graph_unfold_norms(wf_ctx *ctx, const wf_graph *graph, wf_graph **out) {
    return convert(ctx, graph, false, out);
}

/* --- parameters ------------------------------------------------------------------------------- */

/* Offsets of one layer's tensors by kind; -1: it has none. */
typedef struct layer_params {
    ptrdiff_t of[WF_BLOCK_VARIANCE + 1];
    size_t units, weights; /* all weights of the layer */
} layer_params;

/* The blocks of layer l, which begin at *block; moves on to the next layer. */
static layer_params next_layer(const wf_graph *graph, int l, int *block) {
    layer_params params = {.of = {-1, -1, -1, -1, -1, -1}, .units = (size_t)graph->groups[l + 1].n};
    for (; *block < graph->n_blocks && graph->blocks[*block].layer == l; ++*block) {
        const wf_block *one = &graph->blocks[*block];
        params.of[one->kind] = (ptrdiff_t)one->offset;
        if (one->kind == WF_BLOCK_WEIGHT) params.weights = one->count;
    }
    return params;
}

static void fold_params(const layer_params *from, const layer_params *to, double eps,
                        const float *in, float *out) {
    size_t row = from->weights / from->units;
    const float *gamma = in + from->of[WF_BLOCK_GAMMA], *beta = in + from->of[WF_BLOCK_BETA];
    const float *mean = in + from->of[WF_BLOCK_MEAN], *variance = in + from->of[WF_BLOCK_VARIANCE];
    const float *weight = in + from->of[WF_BLOCK_WEIGHT];
    for (size_t i = 0; i < from->units; i++) {
        double scale = gamma[i] / sqrt((double)variance[i] + eps);
        double bias = from->of[WF_BLOCK_BIAS] < 0 ? 0 : in[from->of[WF_BLOCK_BIAS] + (ptrdiff_t)i];
        for (size_t k = i * row; k < (i + 1) * row; k++)
            out[to->of[WF_BLOCK_WEIGHT] + (ptrdiff_t)k] = (float)(weight[k] * scale);
        out[to->of[WF_BLOCK_BIAS] + (ptrdiff_t)i] = (float)((bias - mean[i]) * scale + beta[i]);
    }
}

static void unfold_params(const layer_params *from, const layer_params *to, double eps,
                          const float *in, float *out) {
    float variance = eps < 1 ? (float)(1 - eps) : 0;
    float gamma = (float)sqrt((double)variance + eps);
    const float *bias = in + from->of[WF_BLOCK_BIAS];
    bool own = to->of[WF_BLOCK_BIAS] >= 0;
    memcpy(out + to->of[WF_BLOCK_WEIGHT], in + from->of[WF_BLOCK_WEIGHT],
           from->weights * sizeof *out);
    for (size_t i = 0; i < from->units; i++) {
        if (own) out[to->of[WF_BLOCK_BIAS] + (ptrdiff_t)i] = bias[i];
        out[to->of[WF_BLOCK_GAMMA] + (ptrdiff_t)i] = gamma;
        out[to->of[WF_BLOCK_BETA] + (ptrdiff_t)i] = own ? 0 : bias[i];
        out[to->of[WF_BLOCK_MEAN] + (ptrdiff_t)i] = 0;
        out[to->of[WF_BLOCK_VARIANCE] + (ptrdiff_t)i] = variance;
    }
}

void wf_graph_convert_norms(const wf_graph *from, const wf_graph *to, const float *in, float *out) {
    int from_block = 0, to_block = 0;
    for (int l = 0; l < from->n_layers; l++) {
        int first = from_block, to_first = to_block;
        layer_params source = next_layer(from, l, &from_block), made = next_layer(to, l, &to_block);
        if (source.of[WF_BLOCK_MEAN] >= 0 && made.of[WF_BLOCK_MEAN] < 0)
            fold_params(&source, &made, from->layers[l].eps, in, out);
        else if (source.of[WF_BLOCK_MEAN] < 0 && made.of[WF_BLOCK_MEAN] >= 0)
            unfold_params(&source, &made, to->layers[l].eps, in, out);
        else
            for (int b = first; b < from_block; b++)
                memcpy(out + to->blocks[to_first + b - first].offset, in + from->blocks[b].offset,
                       from->blocks[b].count * sizeof *out);
    }
}
