#include "flow/layer_costs.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { most_networks = 16, examples = 64, most_floats = 1 << 26 };
static const float noise = 0.5f; /* in standard deviations */

typedef struct costing {
    const wf_graph *whole; /* as the networks run */
    size_t n, params, outputs;
    wf_norm norm;
    float *weights;       /* (n, params) */
    float *changed;       /* (params) */
    float *x;             /* (examples, inputs) */
    float *plain, *moved; /* logits (examples, outputs) */
} costing;

static wf_status costing_open(wf_ctx *ctx, const wf_zoo *zoo, costing *c) {
    static const char what[] = "costs of layers";
    *c = (costing){.whole = wf_zoo_graph(zoo)};
    c->params = wf_graph_params(c->whole);
    c->outputs = (size_t)wf_graph_outputs(c->whole);
    size_t inputs = (size_t)wf_graph_inputs(c->whole), fit = most_floats / c->params;
    c->n = wf_zoo_count(zoo) < most_networks ? wf_zoo_count(zoo) : most_networks;
    if (c->n > fit) c->n = fit > 0 ? fit : 1;
    WF_TRY(wf_alloc(ctx, c->n * c->params, sizeof *c->weights, what, &c->weights));
    WF_TRY(wf_alloc(ctx, c->params, sizeof *c->changed, what, &c->changed));
    WF_TRY(wf_alloc(ctx, examples * inputs, sizeof *c->x, what, &c->x));
    WF_TRY(wf_alloc(ctx, examples * c->outputs, sizeof *c->plain, what, &c->plain));
    WF_TRY(wf_alloc(ctx, examples * c->outputs, sizeof *c->moved, what, &c->moved));
    for (size_t k = 0; k < c->n; k++) wf_zoo_get(zoo, k, c->weights + k * c->params);
    wf_rng rng = wf_rng_at(0, 0, WF_RNG_COST, 0);
    wf_rng_normals(&rng, c->x, examples * inputs);
    return wf_norm_fit(ctx, c->whole, c->weights, c->n, &c->norm);
}

static void costing_close(costing *c) {
    float *memory[] = {c->weights, c->changed, c->x, c->plain, c->moved};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    wf_norm_free(&c->norm);
}

/* c->changed: network k with noise in one layer. */
static void disturb(const costing *c, size_t k, int layer) {
    const float *weights = c->weights + k * c->params;
    wf_rng rng = wf_rng_at(0, (uint32_t)k, WF_RNG_COST, (uint32_t)layer + 1);
    wf_rng_normals(&rng, c->changed, c->params);
    for (int b = 0; b < c->whole->n_blocks; b++) {
        const wf_block *block = &c->whole->blocks[b];
        bool moves = block->layer == layer && wf_block_trained(block);
        float spread = moves ? noise * c->norm.std[b] : 0;
        for (size_t i = block->offset; i < block->offset + block->count; i++)
            c->changed[i] = weights[i] + spread * c->changed[i];
    }
}

/* Mean squared difference of the logits, each example's mean apart. */
static double change(const costing *c) {
    double sum = 0;
    for (size_t e = 0; e < examples; e++) {
        const float *a = c->plain + e * c->outputs, *b = c->moved + e * c->outputs;
        double mean = 0;
        for (size_t o = 0; o < c->outputs; o++) mean += (double)b[o] - (double)a[o];
        mean /= (double)c->outputs;
        if (c->outputs == 1) mean = 0;
        for (size_t o = 0; o < c->outputs; o++) {
            double difference = (double)b[o] - (double)a[o] - mean;
            sum += difference * difference;
        }
    }
    return sum / (double)(examples * c->outputs);
}

static wf_status add_costs(wf_ctx *ctx, const costing *c, size_t k, double *cost) {
    const wf_graph *graph = c->whole;
    WF_TRY(wf_graph_forward(ctx, graph, c->weights + k * c->params, c->x, examples, c->plain));
    for (int b = 0; b < graph->n_blocks; b++) {
        if (b > 0 && graph->blocks[b].layer == graph->blocks[b - 1].layer) {
            cost[b] = cost[b - 1];
            continue;
        }
        disturb(c, k, graph->blocks[b].layer);
        WF_TRY(wf_graph_forward(ctx, graph, c->changed, c->x, examples, c->moved));
        cost[b] += change(c) / (double)c->n;
    }
    return WF_OK;
}

wf_status wf_layer_costs(wf_ctx *ctx, const wf_zoo *zoo, const wf_graph *graph, double *cost) {
    costing c;
    double sum = 0;
    memset(cost, 0, (size_t)graph->n_blocks * sizeof *cost);
    wf_status status = costing_open(ctx, zoo, &c);
    for (size_t k = 0; status == WF_OK && k < c.n; k++) status = add_costs(ctx, &c, k, cost);
    costing_close(&c);
    WF_TRY(status);
    for (int b = 0; b < graph->n_blocks; b++) sum += cost[b];
    if (sum > 0 && isfinite(sum)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: loss_by = errors finds no layer whose errors move the outputs by a finite "
                   "amount; use loss_by = layers",
                   wf_zoo_path(zoo));
}
