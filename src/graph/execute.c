#include "graph/execute.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t places(const wf_group *group) { return (size_t)group->height * (size_t)group->width; }
static size_t sum_places(const wf_group *group) {
    return (size_t)group->sum_height * (size_t)group->sum_width;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Floats of a scratch, 4 GB. A description of a few bytes may stand for images of any size, so sums
 * are compared with it before they can overflow: each value is below 2^54. */
static const size_t most_floats = (size_t)1 << 30;

wf_status wf__executor_open(wf_ctx *ctx, const wf_graph *graph, wf_executor *out) {
    *out = (wf_executor){.graph = graph, .kernel = WF_PICK_F32(wf__execute_kernel)};
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_layers + 1, sizeof *out->place, "forward pass",
                    &out->place));
    size_t floats = 0, sums = 0, patch = 0;
    for (int g = 1; g <= graph->n_layers; g++) {
        const wf_group *group = &graph->groups[g];
        const wf_layer *layer = &graph->layers[g - 1];
        out->place[g] = floats;
        floats += (size_t)group->n * places(group) * WF_TILE;
        sums = larger(sums, (size_t)group->n * sum_places(group) * WF_TILE);
        if (layer->op == WF_LAYER_CONV) {
            size_t taps = (size_t)(layer->window.kernel[0] * layer->window.kernel[1]);
            size_t rows = (size_t)graph->groups[layer->from[0]].n * taps + (size_t)group->n;
            patch = larger(patch, rows * WF_TILE);
        }
        if (floats > most_floats || sums > most_floats || patch > most_floats)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                           "forward pass: layer %d (%d units of %dx%d) takes more than 4 GB for %d "
                           "examples; use smaller images or fewer units",
                           g, group->n, group->sum_height, group->sum_width, WF_TILE);
    }
    out->sums = floats;
    out->patch = floats + sums;
    out->floats = out->patch + patch;
    return WF_OK;
}

void wf__executor_close(wf_executor *executor) {
    free(executor->place);
    *executor = (wf_executor){0};
}

/* --- one layer -------------------------------------------------------------------------------- */

typedef struct layer_call {
    const wf_executor *executor;
    const wf_layer *layer;
    const wf_group *from, *to;
    const float *w, *x; /* parameters; values of the (first) source */
    const float *other; /* of the second source of an add */
    float *sums, *patch;
} layer_call;

/* The parameters of this kind that the layer has; NULL: none. */
static const float *params_of(const layer_call *call, wf_block_kind kind) {
    const wf_graph *graph = call->executor->graph;
    int layer = (int)(call->layer - graph->layers);
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == layer && graph->blocks[b].kind == kind)
            return call->w + graph->blocks[b].offset;
    return NULL;
}

/* The patch that the place (row, column) of the output sees: (source unit, tap, tile). */
static void gather_patch(const layer_call *call, int row, int column) {
    const wf_window *window = &call->layer->window;
    const wf_group *from = call->from;
    float *to = call->patch;
    for (int unit = 0; unit < from->n; unit++)
        for (int i = 0; i < window->kernel[0]; i++)
            for (int j = 0; j < window->kernel[1]; j++, to += WF_TILE) {
                int y = row * window->stride[0] - window->padding[0] + i;
                int x = column * window->stride[1] - window->padding[1] + j;
                bool inside = y >= 0 && y < from->height && x >= 0 && x < from->width;
                size_t at =
                    ((size_t)unit * (size_t)from->height + (size_t)y) * (size_t)from->width +
                    (size_t)x;
                if (inside) memcpy(to, call->x + at * WF_TILE, WF_TILE * sizeof *to);
                else memset(to, 0, WF_TILE * sizeof *to);
            }
}

static void convolve(const layer_call *call) {
    const wf_window *window = &call->layer->window;
    size_t n = (size_t)call->to->n, all = sum_places(call->to);
    size_t taps = (size_t)call->from->n * (size_t)(window->kernel[0] * window->kernel[1]);
    const float *kernels = params_of(call, WF_BLOCK_WEIGHT);
    float *y = call->patch + taps * WF_TILE; /* (units, tile) of one place */
    for (size_t place = 0; place < all; place++) {
        gather_patch(call, (int)place / call->to->sum_width, (int)place % call->to->sum_width);
        memset(y, 0, n * WF_TILE * sizeof *y);
        call->executor->kernel.affine(kernels, n, taps, call->patch, y);
        for (size_t unit = 0; unit < n; unit++)
            memcpy(call->sums + (unit * all + place) * WF_TILE, y + unit * WF_TILE,
                   WF_TILE * sizeof *y);
    }
}

static void sum_up(const layer_call *call) {
    size_t n = (size_t)call->to->n, values = n * sum_places(call->to) * WF_TILE;
    float *sums = call->sums;
    if (call->layer->op == WF_LAYER_CONV) convolve(call);
    else if (call->layer->op == WF_LAYER_LINEAR) {
        memset(sums, 0, values * sizeof *sums);
        call->executor->kernel.affine(params_of(call, WF_BLOCK_WEIGHT), n,
                                      (size_t)call->from->n * places(call->from), call->x, sums);
    } else memcpy(sums, call->x, values * sizeof *sums);
    if (call->layer->op == WF_LAYER_ADD)
        for (size_t i = 0; i < values; i++) sums[i] += call->other[i];
}

static void add_bias(const layer_call *call, const float *bias) {
    size_t all = sum_places(call->to) * WF_TILE;
    for (int unit = 0; bias != NULL && unit < call->to->n; unit++)
        for (size_t i = 0; i < all; i++) call->sums[(size_t)unit * all + i] += bias[unit];
}

/* With the running statistics of each unit. */
static void batch_norm(const layer_call *call) {
    const float *gamma = params_of(call, WF_BLOCK_GAMMA), *beta = params_of(call, WF_BLOCK_BETA);
    const float *mean = params_of(call, WF_BLOCK_MEAN),
                *variance = params_of(call, WF_BLOCK_VARIANCE);
    size_t all = sum_places(call->to) * WF_TILE;
    for (int unit = 0; unit < call->to->n; unit++) {
        float scale = (float)(gamma[unit] / sqrt((double)variance[unit] + call->layer->eps));
        float shift = beta[unit] - mean[unit] * scale;
        float *x = call->sums + (size_t)unit * all;
        for (size_t i = 0; i < all; i++) x[i] = x[i] * scale + shift;
    }
}

/* Over all values of the group, for each example. */
static void layer_norm(const layer_call *call) {
    const float *gamma = params_of(call, WF_BLOCK_GAMMA), *beta = params_of(call, WF_BLOCK_BETA);
    size_t rows = (size_t)call->to->n * sum_places(call->to);
    for (size_t k = 0; k < WF_TILE; k++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < rows; i++) sum += call->sums[i * WF_TILE + k];
        double mean = sum / (double)rows;
        for (size_t i = 0; i < rows; i++) {
            double d = call->sums[i * WF_TILE + k] - mean;
            squares += d * d;
        }
        double scale = 1 / sqrt(squares / (double)rows + call->layer->eps);
        for (size_t i = 0; i < rows; i++) {
            float *x = &call->sums[i * WF_TILE + k];
            *x = (float)((*x - mean) * scale) * gamma[i] + beta[i];
        }
    }
}

/* One output place of a maximum or average window; padding counts as zeros in an average and not at
 * all in a maximum. */
static void pool_place(const layer_call *call, const float *unit, int row, int column, float *out) {
    const wf_window *window = &call->layer->pool_window;
    bool maximum = call->layer->pool == WF_POOL_MAX;
    float share = 1 / (float)(window->kernel[0] * window->kernel[1]);
    for (int k = 0; k < WF_TILE; k++) out[k] = maximum ? -INFINITY : 0;
    for (int i = 0; i < window->kernel[0]; i++)
        for (int j = 0; j < window->kernel[1]; j++) {
            int y = row * window->stride[0] - window->padding[0] + i;
            int x = column * window->stride[1] - window->padding[1] + j;
            if (y < 0 || y >= call->to->sum_height || x < 0 || x >= call->to->sum_width) continue;
            const float *from =
                unit + ((size_t)y * (size_t)call->to->sum_width + (size_t)x) * WF_TILE;
            for (int k = 0; k < WF_TILE; k++) {
                if (!maximum) out[k] += from[k];
                else if (!(from[k] <= out[k]) && !isnan(out[k])) out[k] = from[k]; /* NaN stays */
            }
        }
    for (int k = 0; !maximum && k < WF_TILE; k++) out[k] *= share;
}

static void pool(const layer_call *call, float *out) {
    size_t all = sum_places(call->to) * WF_TILE;
    for (int u = 0; u < call->to->n; u++) {
        const float *unit = call->sums + (size_t)u * all;
        if (call->layer->pool == WF_POOL_GLOBAL) {
            float share = 1 / (float)sum_places(call->to);
            memset(out, 0, WF_TILE * sizeof *out);
            for (size_t i = 0; i < all; i++) out[i % WF_TILE] += unit[i];
            for (int k = 0; k < WF_TILE; k++) out[k] *= share;
            out += WF_TILE;
            continue;
        }
        for (int row = 0; row < call->to->height; row++)
            for (int column = 0; column < call->to->width; column++, out += WF_TILE)
                pool_place(call, unit, row, column, out);
    }
}

const float *wf__execute(const wf_executor *executor, const float *w, const float *x,
                         float *scratch) {
    const wf_graph *graph = executor->graph;
    for (int g = 1; g <= graph->n_layers; g++) {
        const wf_layer *layer = &graph->layers[g - 1];
        float *out = scratch + executor->place[g];
        int from = layer->from[0], other = layer->from[1];
        bool pools = layer->pool != WF_POOL_NONE;
        layer_call call = {.executor = executor,
                           .layer = layer,
                           .from = &graph->groups[from],
                           .to = &graph->groups[g],
                           .w = w,
                           .x = from == 0 ? x : scratch + executor->place[from],
                           .sums = pools ? scratch + executor->sums : out,
                           .patch = scratch + executor->patch};
        if (layer->op == WF_LAYER_ADD)
            call.other = other == 0 ? x : scratch + executor->place[other];
        sum_up(&call);
        add_bias(&call, params_of(&call, WF_BLOCK_BIAS));
        if (layer->norm == WF_NORM_BATCH) batch_norm(&call);
        if (layer->norm == WF_NORM_LAYER) layer_norm(&call);
        executor->kernel.activate(layer->activation, call.sums,
                                  (size_t)call.to->n * sum_places(call.to) * WF_TILE);
        if (pools) pool(&call, out);
    }
    return scratch + executor->place[graph->n_layers];
}
