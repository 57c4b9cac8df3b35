/* zoo_init: what a network of a collection starts from: its layers, initial weights, learning rate
 * and epochs. Random numbers are addressed by the network's index alone:
 *   weights of block b            (seed, index, WF_RNG_INIT, b), in flat order
 *   learning rate; epochs         (seed, index, WF_RNG_HYPER, 0); (..., 1) */
#include "zoo/zoo_engine.h"

#include "weft/rng.h"

#include <math.h>

#define SETTINGS_OF wf_zoo
#define SETTINGS_SECTION "zoo"
#define SETTINGS_META "zoo."
#define SETTINGS_DEF "weft/zoo.def"
#include "base/settings_table.h"

/* torch.nn.Linear and Conv2d: kaiming_uniform with a = sqrt 5 is uniform in +-1/sqrt(fan-in), as is
 * the bias. Norm layers start as the identity: gamma and variance 1, beta and mean 0. */
void wf_zoo_init(const wf_graph *graph, uint64_t seed, uint32_t index, float *w) {
    double fan_in = 1;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->kind > WF_BLOCK_BIAS) {
            bool one = block->kind == WF_BLOCK_GAMMA || block->kind == WF_BLOCK_VARIANCE;
            for (size_t i = 0; i < block->count; i++) w[block->offset + i] = one;
            continue;
        }
        /* A layer's weight stands before its bias. */
        if (block->kind == WF_BLOCK_WEIGHT)
            fan_in = (double)graph->groups[block->src].n * block->coef;
        float bound = (float)(1 / sqrt(fan_in));
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

bool wf_zoo_chain_build(const wf_graph *graph, wf_zoo_chain *out) {
    if (!wf_graph_is_chain(graph) || graph->n_layers > WF_ZOO_LAYERS ||
        graph->activation == WF_ACT_MIXED)
        return false;
    *out = (wf_zoo_chain){
        .n_layers = graph->n_layers, .activation = graph->activation, .n_params = graph->n_params};
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        wf_zoo_layer *layer = &out->layers[block->layer];
        if (block->kind == WF_BLOCK_WEIGHT) {
            layer->in = graph->groups[block->src].n;
            layer->out = graph->groups[block->dst].n;
            layer->weight_offset = block->offset;
        } else {
            layer->bias = true;
            layer->bias_offset = block->offset;
        }
    }
    return true;
}
