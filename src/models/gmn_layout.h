/* gmn_layout: which parameters a GMN velocity field has, where they lie in the flat array, and how
 * they start.
 *
 * Widths dn, de, T of the description; global width dg = de, message width = dn, hidden width of an
 * MLP = 2 x its output. An affine layer whose input the textbook writes as a concatenation has one
 * weight per operand, in the order of gmn_affine.weight. docs/method.md lists all names. */
#pragma once

#include "models/field.h"
#include "tensor/tape.h"

enum { GMN_NODE_TYPES = 17, GMN_EDGE_TYPES = 14, GMN_POSITION = 3 };

/* Indices into tensors; -1: absent. */
typedef struct gmn_affine {
    int weight[4], bias;
} gmn_affine;

typedef struct gmn_block_layout {
    gmn_affine adaln; /* (T) -> shift, scale (lean: and gate) of node, edge, global */
    /* first: edge, dst, src, global. lean: first gives [m | z], second takes z */
    gmn_affine edge[3];
    gmn_affine msg[3];     /* lstar; first: edge, receiver, sender, global */
    int forward, backward; /* lean: messages of the sums towards dst and towards src (dn, 2de) */
    gmn_affine logit;      /* attention */
    gmn_affine node[3];    /* first: node, message (lean: forward, backward), global */
    gmn_affine global[3];  /* first: node mean, edge mean, global */
} gmn_block_layout;

typedef struct gmn_layout {
    wf_field_desc desc;
    int count;
    wf_field_tensor *tensors;
    size_t params;

    gmn_affine time[2], cond[2], fuse;
    int cond_null, global_start;
    gmn_affine node_layer, node_order, node_projection; /* projection: layer, order, type */
    int node_type;
    int n_kernels, kernels[WF_KERNELS]; /* coefficients of edges, besides 1 */
    gmn_affine edge_value, edge_kernel[WF_KERNELS], edge_layer, edge_position,
        edge_projection; /* value, layer, type, position */
    int edge_type;
    gmn_affine fold_encoder, fold_decoder;
    gmn_affine readout[2], kernel_readout[WF_KERNELS][2];
    gmn_block_layout *blocks;
} gmn_layout;

wf_status wf__gmn_layout_create(wf_ctx *ctx, const wf_field_desc *desc, gmn_layout *out);
void wf__gmn_layout_free(gmn_layout *layout);

/* Coefficients of edges, besides 1, that the field has codes for; how many there are is
 * returned. */
int wf__gmn_kernels(const wf_field_desc *desc, int out[WF_KERNELS]);

/* Columns of the modulation where node, edge and global parts begin, and its width. */
typedef struct gmn_columns {
    int node, edge, global, width;
} gmn_columns;
gmn_columns wf__gmn_columns(const wf_field_desc *desc);
