/* norm: the parameter-group normalisation, one mean and one standard deviation per block. */
#include "base/status.h"
#include "graph/norm_sums.h"
#include "weft/graph.h"

#include <math.h>
#include <stdlib.h>

wf_status wf_norm_create(wf_ctx *ctx, int n, wf_norm *out) {
    *out = (wf_norm){0};
    WF_TRY(wf_alloc(ctx, 2 * (size_t)n, sizeof *out->mean, "normalisation", &out->mean));
    out->std = out->mean + n;
    out->n = n;
    return WF_OK;
}

void wf_norm_free(wf_norm *norm) {
    if (norm == NULL) return;
    free(norm->mean);
    *norm = (wf_norm){0};
}

void wf__norm_add(const wf_graph *graph, const float *weights, size_t count, const double *mean,
                  double *sums) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        double sum = sums[b];
        for (size_t k = 0; k < count; k++) {
            const float *w = weights + k * graph->n_params + block->offset;
            if (mean == NULL)
                for (size_t i = 0; i < block->count; i++) sum += w[i];
            else
                for (size_t i = 0; i < block->count; i++)
                    sum += (w[i] - mean[b]) * (w[i] - mean[b]);
        }
        sums[b] = sum;
    }
}

void wf__norm_means(const wf_graph *graph, size_t count, double *sums) {
    for (int b = 0; b < graph->n_blocks; b++)
        sums[b] /= (double)count * (double)graph->blocks[b].count;
}

wf_status wf__norm_finish(wf_ctx *ctx, const wf_graph *graph, size_t count, const double *mean,
                          const double *squares, wf_norm *out) {
    WF_TRY(wf_norm_create(ctx, graph->n_blocks, out));
    for (int b = 0; b < graph->n_blocks; b++) {
        double std = sqrt(squares[b] / ((double)count * (double)graph->blocks[b].count));
        if (!isfinite(mean[b]) || !isfinite(std)) {
            wf_norm_free(out);
            return wf_fail(ctx, WF_ERR_INPUT,
                           "normalisation: %s holds values that are not finite; `weft zoo info` "
                           "names the networks",
                           graph->blocks[b].name);
        }
        out->mean[b] = (float)mean[b];
        out->std[b] = std > 0 ? (float)std : 1.0f;
    }
    return WF_OK;
}

wf_status wf_norm_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                      wf_norm *out) {
    *out = (wf_norm){0};
    if (count == 0)
        return wf_fail(ctx, WF_ERR_SHAPE, "normalisation: the collection has no networks");
    double *both;
    WF_TRY(wf_alloc(ctx, 2 * (size_t)graph->n_blocks, sizeof *both, "normalisation", &both));
    double *squares = both + graph->n_blocks;
    wf__norm_add(graph, weights, count, NULL, both);
    wf__norm_means(graph, count, both);
    wf__norm_add(graph, weights, count, both, squares);
    wf_status status = wf__norm_finish(ctx, graph, count, both, squares, out);
    free(both);
    return status;
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
