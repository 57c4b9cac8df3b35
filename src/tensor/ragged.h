/* ragged: the shape of a ragged batch of parameter graphs, as the metanetwork sees them.
 *
 * Nodes of all graphs in one list (N), edges in one list (E), parameters in one flat vector (P),
 * each graph's part contiguous. A block's edges are dense and dst-major: edge (i, j) is row edge0 +
 * i*n_src + j, its coefficients are parameters param0 + (i*n_src + j)*coef + 0..coef-1. Folded
 * groups (an input layer whose weights sit on the hidden nodes) have neither nodes nor edges here.
 * graph/batch.h builds it from descriptions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wf_batch_block {
    int graph;
    int n_src, n_dst, coef;
    size_t src0, dst0; /* first node of either end */
    size_t edge0, param0;
    int role; /* into edge_roles */
} wf_batch_block;

typedef struct wf_batch_fold {
    int graph;
    int n_dst, n_src; /* a row is n_src weights and, if has_bias, one bias */
    bool has_bias;
    size_t dst0;           /* first node */
    size_t weight0, bias0; /* parameters of row i: weight0 + i*n_src .., bias0 + i */
} wf_batch_fold;

/* Positional roles are shared by an orbit: order is the index of an input or output node, -1 for
 * hidden and bias nodes. */
typedef struct wf_node_role {
    int layer, order, type; /* type: kind of node group */
} wf_node_role;
typedef struct wf_edge_role {
    int layer, type, coef; /* type: kind of block */
} wf_edge_role;

typedef struct wf_batch {
    int n_graphs;
    size_t n_nodes, n_edges, n_params;
    size_t *node_start, *edge_start, *param_start, *block_start; /* [n_graphs + 1] */
    size_t n_blocks;
    wf_batch_block *blocks; /* by graph, in the graph's block order, folded ones left out */
    int n_folds;
    wf_batch_fold *folds;
    int n_node_roles, n_edge_roles; /* distinct ones over the whole batch */
    wf_node_role *node_roles;
    wf_edge_role *edge_roles;
    uint32_t *node_role;  /* [n_nodes] */
    uint32_t *node_graph; /* [n_nodes] */
    uint32_t *edge_graph; /* [n_edges] */
    float *degree; /* [n_nodes] edges at the node, both directions: fan-in + bias + fan-out */
} wf_batch;
