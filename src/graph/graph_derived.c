/* graph_derived: what follows from a description: copies, equality, change of width, shapes of
 * tensors, permutation action. */
#include "graph/describe.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- getters, for callers that do not know the struct ----------------------------------------- */

size_t wf_graph_params(const wf_graph *graph) { return graph->n_params; }
int wf_graph_inputs(const wf_graph *graph) { return graph->inputs; }
int wf_graph_outputs(const wf_graph *graph) { return graph->outputs; }
const char *wf_graph_text(const wf_graph *graph) { return graph->text; }
const char *wf_graph_activation(const wf_graph *graph) {
    return wf_activation_name(graph->activation);
}
int wf_graph_tensors(const wf_graph *graph) { return graph->n_blocks; }

const char *wf_graph_tensor(const wf_graph *graph, int index, size_t *offset, size_t *count,
                            int *rank, size_t shape[4], int *kind) {
    if (index < 0 || index >= graph->n_blocks) return NULL;
    const wf_block *block = &graph->blocks[index];
    size_t own[4];
    int dimensions = wf_block_shape(graph, block, own);
    if (offset != NULL) *offset = block->offset;
    if (count != NULL) *count = block->count;
    if (rank != NULL) *rank = dimensions;
    for (int i = 0; shape != NULL && i < 4; i++) shape[i] = i < dimensions ? own[i] : 1;
    if (kind != NULL) *kind = (int)block->kind;
    return block->name;
}

/* --- descriptions from descriptions ----------------------------------------------------------- */

wf_status wf__graph_rebuild(wf_ctx *ctx, const wf_graph *like, const wf_layer *layers,
                            unsigned flags, wf_graph **out) {
    const wf_group *input = &like->groups[0];
    return wf_graph_build(ctx, input->n, input->image ? input->height : 0, input->width, layers,
                          like->n_layers, flags, out);
}

static unsigned flags_of(const wf_graph *graph) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].folded) return WF_GRAPH_FOLD_INPUT;
    return 0;
}

wf_status wf_graph_clone(wf_ctx *ctx, const wf_graph *graph, wf_graph **out) {
    return wf__graph_rebuild(ctx, graph, graph->layers, flags_of(graph), out);
}

wf_status wf_graph_fold(wf_ctx *ctx, const wf_graph *graph, unsigned flags, wf_graph **out) {
    return wf__graph_rebuild(ctx, graph, graph->layers, flags, out);
}

static bool same_window(const wf_window *a, const wf_window *b) {
    for (int side = 0; side < 2; side++)
        if (a->kernel[side] != b->kernel[side] || a->stride[side] != b->stride[side] ||
            a->padding[side] != b->padding[side])
            return false;
    return true;
}

static bool same_layer(const wf_layer *a, const wf_layer *b) {
    return a->op == b->op && a->from[0] == b->from[0] &&
           (a->op != WF_LAYER_ADD || a->from[1] == b->from[1]) && a->n == b->n &&
           (a->op != WF_LAYER_CONV || same_window(&a->window, &b->window)) && a->bias == b->bias &&
           a->norm == b->norm && (a->norm == WF_NORM_NONE || a->eps == b->eps) &&
           a->activation == b->activation && a->pool == b->pool &&
           ((a->pool != WF_POOL_MAX && a->pool != WF_POOL_AVERAGE) ||
            same_window(&a->pool_window, &b->pool_window));
}

bool wf_graph_equal(const wf_graph *a, const wf_graph *b) {
    const wf_group *in_a = &a->groups[0], *in_b = &b->groups[0];
    if (a->n_layers != b->n_layers || in_a->n != in_b->n || in_a->image != in_b->image ||
        in_a->height != in_b->height || in_a->width != in_b->width)
        return false;
    for (int l = 0; l < a->n_layers; l++)
        if (!same_layer(&a->layers[l], &b->layers[l])) return false;
    return true;
}

bool wf_graph_is_chain(const wf_graph *graph) {
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        if (layer->op != WF_LAYER_LINEAR || layer->from[0] != l || layer->norm != WF_NORM_NONE ||
            layer->pool != WF_POOL_NONE || graph->groups[l].image)
            return false;
    }
    return true;
}

wf_status wf_graph_scale_width(wf_ctx *ctx, const wf_graph *graph, double factor, wf_graph **out) {
    *out = NULL;
    if (!(factor > 0) || factor > 1024)
        return wf_fail(ctx, WF_ERR_USAGE, "width factor %g: use a number above 0 and at most 1024",
                       factor);
    wf_layer *layers;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_layers, sizeof *layers, "graph", &layers));
    wf_status status = WF_OK;
    for (int l = 0; l < graph->n_layers && status == WF_OK; l++) {
        layers[l] = graph->layers[l];
        layers[l].in = 0;
        if (graph->groups[l + 1].orbit < 0) continue;
        double width = floor(layers[l].n * factor + 0.5);
        if (width > WF_MAX_WIDTH)
            status =
                wf_fail(ctx, WF_ERR_USAGE,
                        "width factor %g: layer %d would have %.0f units, at most %d are possible",
                        factor, l + 1, width, WF_MAX_WIDTH);
        else layers[l].n = width < 1 ? 1 : (int)width;
    }
    if (status == WF_OK) status = wf__graph_rebuild(ctx, graph, layers, flags_of(graph), out);
    free(layers);
    return status;
}

int wf_block_shape(const wf_graph *graph, const wf_block *block, size_t shape[4]) {
    const wf_layer *layer = &graph->layers[block->layer];
    const wf_group *dst = &graph->groups[block->dst];
    shape[0] = (size_t)dst->n;
    if (block->kind == WF_BLOCK_WEIGHT) {
        shape[1] = (size_t)graph->groups[block->src].n;
        if (layer->op == WF_LAYER_LINEAR) {
            shape[1] *= (size_t)block->coef;
            return 2;
        }
        shape[2] = (size_t)layer->window.kernel[0];
        shape[3] = (size_t)layer->window.kernel[1];
        return 4;
    }
    if (block->kind == WF_BLOCK_BIAS || layer->norm != WF_NORM_LAYER || !dst->image) return 1;
    shape[1] = (size_t)dst->sum_height;
    shape[2] = (size_t)dst->sum_width;
    return 3;
}

/* --- permutations ----------------------------------------------------------------------------- */

size_t wf_graph_perm_start(const wf_graph *graph, int orbit) { return graph->orbit_start[orbit]; }
size_t wf_graph_perm_size(const wf_graph *graph) { return graph->orbit_start[graph->n_orbits]; }

/* Place of node i of a group after the relabelling. */
static const uint32_t *group_perm(const wf_graph *graph, const uint32_t *perm, int group) {
    int orbit = graph->groups[group].orbit;
    return orbit < 0 ? NULL : perm + graph->orbit_start[orbit];
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
