#include "graph/batch.h"

#include <string.h>

/* Whether the metanetwork's graph has nodes of the group's own. Folded inputs and their bias node
 * have none, nor has a group that adds or passes on an earlier one: it shares that one's nodes. */
static bool group_present(const wf_graph *graph, int group) {
    if (graph->groups[group].units != group) return false;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (graph->groups[block->dst].units == group ||
            (graph->groups[block->src].units == group && !block->folded))
            return true;
    }
    return false;
}

/* Index of a role in a growing list of distinct ones. */
static int node_role_index(wf_batch *batch, wf_node_role role) {
    for (int r = batch->n_node_roles; r-- > 0;)
        if (memcmp(&batch->node_roles[r], &role, sizeof role) == 0) return r;
    batch->node_roles[batch->n_node_roles] = role;
    return batch->n_node_roles++;
}

static int edge_role_index(wf_batch *batch, wf_edge_role role) {
    for (int r = 0; r < batch->n_edge_roles; r++)
        if (memcmp(&batch->edge_roles[r], &role, sizeof role) == 0) return r;
    batch->edge_roles[batch->n_edge_roles] = role;
    return batch->n_edge_roles++;
}

typedef struct batch_sizes {
    size_t nodes, edges, params, blocks, folds;
} batch_sizes;

static void count_graph(const wf_graph *graph, batch_sizes *sizes) {
    for (int g = 0; g < graph->n_groups; g++)
        if (group_present(graph, g)) sizes->nodes += (size_t)graph->groups[g].n;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (!block->folded) {
            sizes->edges += block->count / (size_t)block->coef;
            sizes->blocks++;
        } else if (block->kind == WF_BLOCK_WEIGHT) {
            sizes->folds++;
        }
    }
    sizes->params += graph->n_params;
}

void wf_graph_size(const wf_graph *graph, size_t *nodes, size_t *edges, size_t *folded) {
    batch_sizes sizes = {0};
    count_graph(graph, &sizes);
    *nodes = sizes.nodes;
    *edges = sizes.edges;
    *folded = 0;
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].folded) *folded += graph->blocks[b].count;
}

/* A graph of an architecture already in the batch is copied from there with shifted places, so that
 * the search for roles is done once per architecture. */
static void copy_graph(wf_batch *batch, int from, int to) {
    size_t nodes = batch->node_start[from + 1] - batch->node_start[from];
    size_t node_shift = batch->node_start[to] - batch->node_start[from];
    size_t edge_shift = batch->edge_start[to] - batch->edge_start[from];
    size_t param_shift = batch->param_start[to] - batch->param_start[from];
    memcpy(batch->node_role + batch->node_start[to], batch->node_role + batch->node_start[from],
           nodes * sizeof *batch->node_role);
    memcpy(batch->degree + batch->node_start[to], batch->degree + batch->node_start[from],
           nodes * sizeof *batch->degree);
    for (size_t b = batch->block_start[from]; b < batch->block_start[from + 1]; b++) {
        wf_batch_block block = batch->blocks[b];
        block.graph = to;
        block.src0 += node_shift;
        block.dst0 += node_shift;
        block.edge0 += edge_shift;
        block.param0 += param_shift;
        batch->blocks[batch->n_blocks++] = block;
    }
    int folds = batch->n_folds;
    for (int f = 0; f < folds; f++) {
        wf_batch_fold fold = batch->folds[f];
        if (fold.graph != from) continue;
        fold.graph = to;
        fold.dst0 += node_shift;
        fold.weight0 += param_shift;
        fold.bias0 += param_shift;
        batch->folds[batch->n_folds++] = fold;
    }
    batch->node_start[to + 1] = batch->node_start[to] + nodes;
    batch->edge_start[to + 1] =
        batch->edge_start[to] + batch->edge_start[from + 1] - batch->edge_start[from];
    batch->param_start[to + 1] =
        batch->param_start[to] + batch->param_start[from + 1] - batch->param_start[from];
}

/* first_node: [n_groups] scratch. */
static void place_graph(wf_batch *batch, const wf_graph *graph, int index, size_t *first_node) {
    size_t node = batch->node_start[index], edge = batch->edge_start[index];
    size_t param0 = batch->param_start[index];
    for (int g = 0; g < graph->n_groups; g++) {
        const wf_group *group = &graph->groups[g];
        first_node[g] = group->units == g ? node : first_node[group->units];
        if (!group_present(graph, g)) continue;
        bool ordered = group->orbit < 0 && group->kind < WF_GROUP_BIAS;
        for (int i = 0; i < group->n; i++) {
            wf_node_role role = {group->layer, ordered ? i : -1, (int)group->kind};
            batch->degree[node] = 0;
            batch->node_role[node++] = (uint32_t)node_role_index(batch, role);
        }
    }
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        int n_dst = graph->groups[block->dst].n, n_src = graph->groups[block->src].n;
        size_t dst0 = first_node[block->dst], src0 = first_node[block->src];
        if (block->folded && block->kind == WF_BLOCK_WEIGHT) {
            batch->folds[batch->n_folds++] = (wf_batch_fold){.graph = index,
                                                             .n_dst = n_dst,
                                                             .n_src = n_src * block->coef,
                                                             .dst0 = dst0,
                                                             .weight0 = param0 + block->offset};
        } else if (block->folded) {
            wf_batch_fold *fold = &batch->folds[batch->n_folds - 1];
            fold->has_bias = true;
            fold->bias0 = param0 + block->offset;
        } else {
            wf_edge_role role = {block->layer, (int)block->kind, block->coef};
            batch->blocks[batch->n_blocks++] =
                (wf_batch_block){.graph = index,
                                 .n_src = n_src,
                                 .n_dst = n_dst,
                                 .coef = block->coef,
                                 .src0 = src0,
                                 .dst0 = dst0,
                                 .edge0 = edge,
                                 .param0 = param0 + block->offset,
                                 .role = edge_role_index(batch, role)};
            edge += (size_t)n_dst * (size_t)n_src;
            for (int i = 0; i < n_dst; i++) batch->degree[dst0 + (size_t)i] += (float)n_src;
            for (int j = 0; j < n_src; j++) batch->degree[src0 + (size_t)j] += (float)n_dst;
        }
    }
    batch->node_start[index + 1] = node;
    batch->edge_start[index + 1] = edge;
    batch->param_start[index + 1] = param0 + graph->n_params;
}

static void *array(wf_arena *arena, size_t count, size_t size, bool *failed) {
    void *memory = wf_arena_zalloc(arena, (count ? count : 1) * size);
    if (memory == NULL) *failed = true;
    return memory;
}

wf_status wf_batch_build(wf_ctx *ctx, wf_arena *arena, const wf_graph *const *graphs, int n,
                         wf_batch *out) {
    batch_sizes sizes = {0};
    int groups = 0;
    for (int k = 0; k < n; k++) {
        count_graph(graphs[k], &sizes);
        if (graphs[k]->n_groups > groups) groups = graphs[k]->n_groups;
    }
    size_t starts = (size_t)n + 1;
    bool failed = false;
    *out = (wf_batch){
        .n_graphs = n,
        .n_nodes = sizes.nodes,
        .n_edges = sizes.edges,
        .n_params = sizes.params,
        .node_start = array(arena, starts, sizeof(size_t), &failed),
        .edge_start = array(arena, starts, sizeof(size_t), &failed),
        .param_start = array(arena, starts, sizeof(size_t), &failed),
        .block_start = array(arena, starts, sizeof(size_t), &failed),
        .blocks = array(arena, sizes.blocks, sizeof(wf_batch_block), &failed),
        .folds = array(arena, sizes.folds, sizeof(wf_batch_fold), &failed),
        .node_roles = array(arena, sizes.nodes, sizeof(wf_node_role), &failed),
        .edge_roles = array(arena, sizes.blocks, sizeof(wf_edge_role), &failed),
        .node_role = array(arena, sizes.nodes, sizeof(uint32_t), &failed),
        .node_graph = array(arena, sizes.nodes, sizeof(uint32_t), &failed),
        .edge_graph = array(arena, sizes.edges, sizeof(uint32_t), &failed),
        .degree = array(arena, sizes.nodes, sizeof(float), &failed),
    };
    size_t *first_node = array(arena, (size_t)groups, sizeof *first_node, &failed);
    if (failed)
        return wf_fail(ctx, WF_ERR_MEMORY,
                       "batch of %d networks (%zu edges): out of memory; use a smaller batch", n,
                       sizes.edges);
    for (int k = 0; k < n; k++) {
        int same = 0;
        while (same < k && graphs[same] != graphs[k]) same++;
        out->block_start[k] = out->n_blocks;
        if (same < k) copy_graph(out, same, k);
        else place_graph(out, graphs[k], k, first_node);
        for (size_t i = out->node_start[k]; i < out->node_start[k + 1]; i++)
            out->node_graph[i] = (uint32_t)k;
        for (size_t i = out->edge_start[k]; i < out->edge_start[k + 1]; i++)
            out->edge_graph[i] = (uint32_t)k;
    }
    out->block_start[n] = out->n_blocks;
    return WF_OK;
}
