/* graph_getters: what a description says, for callers that do not know its struct. */
#include "weft/graph.h"

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
