/* zoo_init: what a network of a collection starts from: its layers, initial weights, learning rate
 * and epochs. Random numbers are addressed by the network's index alone:
 *   weights of block b            (seed, index, WF_RNG_INIT, b), in flat order
 *   learning rate; epochs         (seed, index, WF_RNG_HYPER, 0); (..., 1) */
#include "zoo/zoo_engine.h"

#include "weft/rng.h"

#include <math.h>

#define NAME(constant, text) text,
#define ENUM(type, values) static const char *const type##_names[] = {values NULL};
#include "weft/zoo.def"
static const wf_setting zoo_rows[] = {
#define SETTING(...) WF_SETTING_ROW(wf_zoo_desc, "zoo", "zoo.", __VA_ARGS__)
#include "weft/zoo.def"
    {0}};

const wf_setting *wf_zoo_settings(void) { return zoo_rows; }

wf_zoo_desc wf_zoo_desc_default(void) {
    wf_zoo_desc desc = {0};
    wf_settings_default(zoo_rows, &desc);
    return desc;
}

/* Edges that enter one unit of the layer, which is what PyTorch calls fan-in. */
static size_t fan_in(const wf_graph *graph, int layer) {
    size_t sum = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->kind == WF_BLOCK_WEIGHT && block->layer == layer)
            sum += (size_t)graph->groups[block->src].n * (size_t)block->coef;
    }
    return sum;
}

/* torch.nn.Linear: kaiming_uniform with a = sqrt 5 is uniform in +-1/sqrt(fan-in), as is the bias. */
void wf_zoo_init(const wf_graph *graph, uint64_t seed, uint32_t index, float *w) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        size_t entering = fan_in(graph, block->layer);
        float bound = entering > 0 ? (float)(1 / sqrt((double)entering)) : 0.0f;
        wf_rng rng = wf_rng_at(seed, index, WF_RNG_INIT, (uint32_t)b);
        for (size_t i = 0; i < block->count; i++)
            w[block->offset + i] = bound * (2 * wf_rng_uniform(&rng) - 1);
    }
}

wf_zoo_task wf_zoo_task_of(const wf_zoo_desc *desc, uint32_t index) {
    wf_zoo_task task = {index, desc->lr, desc->epochs};
    if (desc->lr_max > desc->lr) {
        wf_rng rng = wf_rng_at(desc->seed, index, WF_RNG_HYPER, 0);
        task.lr = desc->lr * exp(wf_rng_uniform(&rng) * log(desc->lr_max / desc->lr));
    }
    if (desc->epochs_max > desc->epochs) {
        wf_rng rng = wf_rng_at(desc->seed, index, WF_RNG_HYPER, 1);
        task.epochs += (int)wf_rng_below(&rng, (uint32_t)(desc->epochs_max - desc->epochs) + 1);
    }
    return task;
}

static wf_status not_a_chain(wf_ctx *ctx, const wf_graph *graph, const char *why) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                   "%s: collections are trained for chains of dense layers only, and %s; train "
                   "these networks elsewhere and bring them in with weft zoo import",
                   graph->text, why);
}

/* The blocks of layer l, which must lead from group `from` to one other group. */
static wf_status add_layer(wf_ctx *ctx, const wf_graph *graph, int l, int *from,
                           wf_zoo_layer *layer) {
    const wf_block *weight = NULL, *bias = NULL;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->layer != l) continue;
        const wf_block **place = block->kind == WF_BLOCK_WEIGHT ? &weight : &bias;
        if (*place != NULL) return not_a_chain(ctx, graph, "one of its layers has several blocks");
        if (block->coef != 1) return not_a_chain(ctx, graph, "one of its blocks has kernels");
        *place = block;
    }
    if (weight == NULL || weight->src != *from || (bias != NULL && bias->dst != weight->dst))
        return not_a_chain(ctx, graph, "its blocks do not follow one another");
    *layer = (wf_zoo_layer){graph->groups[weight->src].n, graph->groups[weight->dst].n,
                            bias != NULL, weight->offset, bias != NULL ? bias->offset : 0};
    *from = weight->dst;
    return WF_OK;
}

wf_status wf_zoo_chain_build(wf_ctx *ctx, const wf_graph *graph, wf_zoo_chain *out) {
    *out = (wf_zoo_chain){.activation = graph->activation, .n_params = graph->n_params};
    int group = 0;
    while (group < graph->n_groups && graph->groups[group].kind != WF_GROUP_INPUT) group++;
    if (group == graph->n_groups || graph->n_layers < 1 || graph->n_layers > WF_MAX_BLOCKS)
        return not_a_chain(ctx, graph, "it has no inputs or no layers");
    for (int l = 0; l < graph->n_layers; l++)
        WF_TRY(add_layer(ctx, graph, l, &group, &out->layers[l]));
    if (graph->groups[group].kind != WF_GROUP_OUTPUT)
        return not_a_chain(ctx, graph, "its last layer does not lead to the outputs");
    out->n_layers = graph->n_layers;
    return WF_OK;
}
