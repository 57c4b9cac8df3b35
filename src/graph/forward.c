/* forward: the described network's own forward pass, on all threads.
 *
 * Examples are cut into tiles (graph/execute.h), so logits depend neither on the thread count nor
 * on the other examples. */
#include "base/pool.h"
#include "graph/execute.h"

#include <stdlib.h>
#include <string.h>

typedef struct forward_call {
    wf_executor executor;
    const float *w, *x;
    float *logits;
    size_t n, scratch_floats;
    float *scratch; /* scratch_floats per worker: the executor's, then inputs (inputs, tile) */
} forward_call;

static void forward_tile(void *call_, size_t tile, int worker) {
    const forward_call *call = call_;
    const wf_graph *graph = call->executor.graph;
    size_t first = tile * WF_TILE, inputs = (size_t)graph->inputs, outputs = (size_t)graph->outputs;
    size_t rows = call->n - first < WF_TILE ? call->n - first : WF_TILE;
    float *scratch = call->scratch + (size_t)worker * call->scratch_floats;
    float *x = scratch + call->executor.floats;
    memset(x, 0, inputs * WF_TILE * sizeof *x);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < inputs; j++) x[j * WF_TILE + r] = call->x[(first + r) * inputs + j];
    const float *logits = wf__execute(&call->executor, call->w, x, scratch);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < outputs; i++)
            call->logits[(first + r) * outputs + i] = logits[i * WF_TILE + r];
}

wf_status wf_graph_forward(wf_ctx *ctx, const wf_graph *graph, const float *w, const float *x,
                           size_t n, float *logits) {
    forward_call call = {.w = w, .x = x, .logits = logits, .n = n};
    wf_status status = wf__executor_open(ctx, graph, &call.executor);
    call.scratch_floats = call.executor.floats + (size_t)graph->inputs * WF_TILE;
    if (status == WF_OK)
        status = wf_alloc(ctx, call.scratch_floats * (size_t)wf_ctx_threads(ctx), sizeof(float),
                          "forward pass", &call.scratch);
    if (status == WF_OK) wf_parallel(ctx, (n + WF_TILE - 1) / WF_TILE, forward_tile, &call);
    free(call.scratch);
    wf__executor_close(&call.executor);
    return status;
}
