/* net_memory: a network of any described kind in memory, for net_kernels.c: values and gradients of
 * its groups in tiles of examples, parameters flat, and weights packed for products. */
#pragma once

#include "zoo/cpu/net_tiles.h"
#include "zoo/cpu/zoo_course.h"

/* Values of a group or of a layer's sums, one piece for each tile of a wave. */
typedef struct net_values {
    real *at; /* NULL: not kept */
    /* reals from place to place: units * NET_TILE, and a tile more where caches want it */
    size_t place;
    size_t tile; /* reals of a tile */
} net_values;

typedef struct net_layer {
    const wf_layer *layer;
    const wf_group *from, *other, *to; /* other: NULL unless it adds */
    wf_window window;                  /* of a convolution; the whole image for a linear layer */
    real *weight, *bias, *gamma, *beta, *mean, *variance; /* NULL where it has none */
    real *forward_pack;                                   /* (taps, n_src, n_dst) */
    real *back_pack; /* (taps, n_dst, n_src); NULL where the input is not asked for its gradient */
    net_values sums; /* after norm and activation */
    net_values normal; /* (z - mean) / deviation */
    net_values slope;
    /* batch norm: [2 n] mean and 1 / deviation; layer norm: [wave][NET_TILE] 1 / deviation */
    real *moments;
} net_layer;

typedef struct network {
    const wf_zoo_plan *plan;
    int n_layers, wave; /* tiles that go through a layer together */
    size_t n_params;
    net_layer *layers;
    /* [n_layers + 1] of groups after pooling; without a pooling the layer's sums */
    net_values *values;
    net_values *gradients; /* [n_layers + 1] the same */
    bool *reached;         /* [n_layers + 1] a gradient has been written there in this wave */
    real *weight, *gradient, *first_moment, *second_moment; /* flat */
    net_values delta; /* gradient of the sums of the layer at hand */
    net_tap *taps;    /* of the place at hand */
    uint32_t *words, *order;
    int *rows;       /* [wave] examples of each tile */
    int32_t *labels; /* [wave][NET_TILE] */
} network;

static size_t places(const wf_group *group) { return (size_t)group->height * (size_t)group->width; }
static size_t sum_places(const wf_group *group) {
    return (size_t)group->sum_height * (size_t)group->sum_width;
}
static size_t taps_of(const net_layer *l) {
    return (size_t)l->window.kernel[0] * (size_t)l->window.kernel[1];
}
static bool is_weighted(const net_layer *l) { return l->layer->op <= WF_LAYER_CONV; }
static bool pools(const net_layer *l) { return l->layer->pool != WF_POOL_NONE; }

/* --- memory ----------------------------------------------------------------------------------- */

/* An odd number of cache lines from place to place: neighbours then lie in different sets. */
static net_values carve_values(carver *from, int wave, int units, size_t n_places) {
    size_t place = ((size_t)units | 1) * NET_TILE, tile = place * n_places;
    return (net_values){carve(from, (size_t)wave * tile, sizeof(real)), place, tile};
}

static real *block_of(const network *net, int l, wf_block_kind kind) {
    const wf_graph *graph = net->plan->graph;
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == l && graph->blocks[b].kind == kind)
            return net->weight + graph->blocks[b].offset;
    return NULL;
}

static void find_parameters(network *net, int index) {
    net_layer *l = &net->layers[index];
    l->weight = block_of(net, index, WF_BLOCK_WEIGHT);
    l->bias = block_of(net, index, WF_BLOCK_BIAS);
    l->gamma = block_of(net, index, WF_BLOCK_GAMMA);
    l->beta = block_of(net, index, WF_BLOCK_BETA);
    l->mean = block_of(net, index, WF_BLOCK_MEAN);
    l->variance = block_of(net, index, WF_BLOCK_VARIANCE);
}

static void carve_layer(carver *from, network *net, int index) {
    const wf_graph *graph = net->plan->graph;
    net_layer plain, *l = from->base == NULL ? &plain : &net->layers[index];
    const wf_layer *layer = &graph->layers[index];
    *l = (net_layer){.layer = layer,
                     .from = &graph->groups[layer->from[0]],
                     .to = &graph->groups[index + 1],
                     .window = layer->window};
    if (layer->op == WF_LAYER_ADD) l->other = &graph->groups[layer->from[1]];
    if (layer->op == WF_LAYER_LINEAR)
        l->window = (wf_window){{l->from->height, l->from->width}, {1, 1}, {0, 0}};
    int n = l->to->n, wave = net->wave;
    if (is_weighted(l)) {
        size_t pack = taps_of(l) * (size_t)l->from->n * (size_t)n;
        l->forward_pack = carve(from, pack, sizeof(real));
        if (layer->from[0] > 0) l->back_pack = carve(from, pack, sizeof(real));
    }
    l->sums = carve_values(from, wave, n, sum_places(l->to));
    if (layer->norm != WF_NORM_NONE) {
        l->normal = carve_values(from, wave, n, sum_places(l->to));
        size_t moments = layer->norm == WF_NORM_BATCH ? 2 * (size_t)n : (size_t)wave * NET_TILE;
        l->moments = carve(from, moments, sizeof(real));
    }
    if (has_slope(layer->activation)) l->slope = carve_values(from, wave, n, sum_places(l->to));
    net_values values = l->sums;
    if (pools(l)) values = carve_values(from, wave, n, places(l->to));
    net_values gradients = carve_values(from, wave, n, places(l->to));
    if (from->base == NULL) return;
    net->values[index + 1] = values;
    net->gradients[index + 1] = gradients;
    find_parameters(net, index);
}

static bool has_batch_norm(const wf_graph *graph) {
    for (int l = 0; l < graph->n_layers; l++)
        if (graph->layers[l].norm == WF_NORM_BATCH) return true;
    return false;
}

static int tiles_of(int examples) { return (examples + NET_TILE - 1) / NET_TILE; }

/* Gives every array of `net` its place after base; with base NULL only counts. Returns the
 * bytes. */
static size_t lay_out(const wf_zoo_plan *plan, void *base, network *net) {
    const wf_graph *graph = plan->graph;
    int n_layers = graph->n_layers;
    size_t groups = (size_t)n_layers + 1, largest = 0, most_taps = 0;
    size_t batch =
        (size_t)plan->desc->batch < plan->train.n ? (size_t)plan->desc->batch : plan->train.n;
    *net = (network){.plan = plan,
                     .n_layers = n_layers,
                     .wave = has_batch_norm(graph) ? tiles_of((int)batch) : 1,
                     .n_params = graph->n_params};
    carver from = {base, 0};
    net->layers = carve(&from, (size_t)n_layers, sizeof *net->layers);
    net->values = carve(&from, groups, sizeof *net->values);
    net->gradients = carve(&from, groups, sizeof *net->gradients);
    net->reached = carve(&from, groups, sizeof *net->reached);
    net->rows = carve(&from, (size_t)net->wave, sizeof *net->rows);
    net->labels = carve(&from, (size_t)net->wave * NET_TILE, sizeof *net->labels);
    net->weight = carve(&from, net->n_params, sizeof(real));
    net->gradient = carve(&from, net->n_params, sizeof(real));
    net->first_moment = carve(&from, net->n_params, sizeof(real));
    net->second_moment = carve(&from, net->n_params, sizeof(real));
    net_values input = carve_values(&from, net->wave, graph->groups[0].n, places(graph->groups));
    if (base != NULL) {
        net->values[0] = input;
        net->gradients[0] = (net_values){0};
    }
    for (int l = 0; l < n_layers; l++) {
        const wf_group *source = &graph->groups[graph->layers[l].from[0]],
                       *to = &graph->groups[l + 1];
        size_t sums = ((size_t)to->n | 1) * NET_TILE * sum_places(to);
        size_t taps = graph->layers[l].op == WF_LAYER_LINEAR ? places(source)
                      : graph->layers[l].op == WF_LAYER_CONV
                          ? (size_t)graph->layers[l].window.kernel[0] *
                                (size_t)graph->layers[l].window.kernel[1]
                          : 0;
        if (sums > largest) largest = sums;
        if (taps > most_taps) most_taps = taps;
        carve_layer(&from, net, l);
    }
    net->delta.at = carve(&from, (size_t)net->wave * largest, sizeof(real));
    net->taps = carve(&from, most_taps, sizeof *net->taps);
    net->words = carve(&from, 4 * word_blocks, sizeof *net->words);
    net->order = carve(&from, plan->train.n, sizeof *net->order);
    return from.used;
}

static void network_start(network *net, const wf_zoo_plan *plan, const real *w, void *scratch) {
    lay_out(plan, scratch, net);
    memcpy(net->weight, w, net->n_params * sizeof *w);
    clear(net->first_moment, net->n_params);
    clear(net->second_moment, net->n_params);
}

/* The matrices of each tap, and their transposes. */
static void pack_weights(network *net) {
    for (int i = 0; i < net->n_layers; i++) {
        const net_layer *l = &net->layers[i];
        if (!is_weighted(l)) continue;
        size_t taps = taps_of(l), n_src = (size_t)l->from->n, n_dst = (size_t)l->to->n;
        const real *w = l->weight;
        for (size_t o = 0; o < n_dst; o++)
            for (size_t u = 0; u < n_src; u++)
                for (size_t t = 0; t < taps; t++, w++) {
                    l->forward_pack[(t * n_src + u) * n_dst + o] = *w;
                    if (l->back_pack != NULL) l->back_pack[(t * n_dst + o) * n_src + u] = *w;
                }
    }
}

static real *tile_of(const net_values *values, int tile) {
    return values->at + (size_t)tile * values->tile;
}
