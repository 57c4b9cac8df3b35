/* forward: the described network's own forward pass.
 *
 * value(dst) = act( sum over blocks into dst of W value(src) ), a bias node's value being 1.
 * wf_graph_executable says which descriptions can be executed. Groups are visited in their order,
 * so sources are ready before use. Examples are cut into fixed chunks that run on all threads. */
#include "base/pool.h"
#include "weft/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { chunk_rows = 256 };

static void activate(wf_activation activation, float *x, size_t n) {
    switch (activation) {
    case WF_ACT_RELU:
        for (size_t i = 0; i < n; i++) x[i] = x[i] > 0 ? x[i] : 0;
        break;
    case WF_ACT_TANH:
        for (size_t i = 0; i < n; i++) x[i] = tanhf(x[i]);
        break;
    case WF_ACT_GELU:
        for (size_t i = 0; i < n; i++) x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
        break;
    case WF_ACT_SILU:
        for (size_t i = 0; i < n; i++) x[i] = x[i] / (1 + expf(-x[i]));
        break;
    case WF_ACT_SIGMOID:
        for (size_t i = 0; i < n; i++) x[i] = 1 / (1 + expf(-x[i]));
        break;
    default: break; /* identity */
    }
}

typedef struct forward_call {
    const wf_graph *graph;
    const float *w, *x;
    float *logits;
    size_t n, scratch_floats;
    float *scratch; /* scratch_floats per worker: values of all layers' groups, (nodes, rows) */
    size_t *place;  /* [n_groups] of a group's values in the scratch */
} forward_call;

/* y (n_dst, rows) += W (n_dst, n_src) x, x given as (rows, n_src) for inputs, (n_src, rows)
 * otherwise. */
static void add_block(const wf_block *block, const wf_graph *graph, const float *w, const float *x,
                      bool row_major, size_t rows, float *y) {
    size_t n_dst = (size_t)graph->groups[block->dst].n, n_src = (size_t)graph->groups[block->src].n;
    for (size_t i = 0; i < n_dst; i++) {
        float *out = y + i * rows;
        for (size_t j = 0; j < n_src; j++) {
            float weight = w[block->offset + i * n_src + j];
            if (x == NULL)
                for (size_t r = 0; r < rows; r++) out[r] += weight;
            else if (row_major)
                for (size_t r = 0; r < rows; r++) out[r] += weight * x[r * n_src + j];
            else
                for (size_t r = 0; r < rows; r++) out[r] += weight * x[j * rows + r];
        }
    }
}

static void forward_chunk(void *call_, size_t chunk, int worker) {
    const forward_call *call = call_;
    const wf_graph *graph = call->graph;
    size_t first = chunk * chunk_rows;
    size_t rows = call->n - first < chunk_rows ? call->n - first : chunk_rows;
    float *scratch = call->scratch + (size_t)worker * call->scratch_floats;
    const float *x = call->x + first * (size_t)graph->inputs;
    for (int g = 1; g <= graph->n_layers; g++) {
        const wf_group *group = &graph->groups[g];
        float *y = scratch + call->place[g];
        memset(y, 0, (size_t)group->n * rows * sizeof *y);
        for (int b = 0; b < graph->n_blocks; b++) {
            const wf_block *block = &graph->blocks[b];
            if (block->dst != g) continue;
            wf_group_kind kind = graph->groups[block->src].kind;
            bool inputs = kind == WF_GROUP_INPUT;
            const float *source = inputs                  ? x
                                  : kind == WF_GROUP_BIAS ? NULL
                                                          : scratch + call->place[block->src];
            add_block(block, graph, call->w, source, inputs, rows, y);
        }
        activate(graph->layers[g - 1].activation, y, (size_t)group->n * rows);
        if (g < graph->n_layers) continue;
        for (size_t r = 0; r < rows; r++)
            for (int i = 0; i < group->n; i++)
                call->logits[(first + r) * (size_t)group->n + (size_t)i] = y[(size_t)i * rows + r];
    }
}

wf_status wf_graph_forward(wf_ctx *ctx, const wf_graph *graph, const float *w, const float *x,
                           size_t n, float *logits) {
    WF_TRY(wf_graph_executable(ctx, graph));
    size_t *place = NULL;
    float *scratch = NULL;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_groups, sizeof *place, "forward pass", &place));
    size_t nodes = 0;
    for (int g = 1; g <= graph->n_layers; g++) {
        place[g] = nodes * chunk_rows;
        nodes += (size_t)graph->groups[g].n;
    }
    size_t floats = nodes * chunk_rows;
    wf_status status = wf_alloc(ctx, floats * (size_t)wf_ctx_threads(ctx), sizeof *scratch,
                                "forward pass", &scratch);
    if (status == WF_OK) {
        forward_call call = {graph, w, x, logits, n, floats, scratch, place};
        wf_parallel(ctx, (n + chunk_rows - 1) / chunk_rows, forward_chunk, &call);
    }
    free(place);
    free(scratch);
    return status;
}
