/* weft/graph.h: a network described as node groups and dense edge blocks.
 *
 *     wf_graph *g;
 *     wf_graph_parse(ctx, "64-16-8-10", "relu", 0, &g);       64 inputs, hidden 16 and 8, 10 classes
 *
 * Everything the program knows about an architecture is in this description: flat parameter order
 * (that of a PyTorch state_dict), hidden-unit permutations, positional roles, parameter groups, the
 * forward pass. Nothing else knows what an MLP is. */
#ifndef WEFT_GRAPH_H
#define WEFT_GRAPH_H

#include "weft/base.h"

WF_BEGIN_C

typedef enum wf_group_kind {
    WF_GROUP_INPUT,
    WF_GROUP_HIDDEN,
    WF_GROUP_OUTPUT,
    WF_GROUP_BIAS
} wf_group_kind;
typedef enum wf_block_kind { WF_BLOCK_WEIGHT, WF_BLOCK_BIAS } wf_block_kind;
typedef enum wf_activation {
    WF_ACT_RELU,
    WF_ACT_TANH,
    WF_ACT_GELU,
    WF_ACT_SILU,
    WF_ACT_SIGMOID,
    WF_ACT_IDENTITY
} wf_activation;

typedef struct wf_group {
    wf_group_kind kind;
    int n;     /* nodes */
    int layer; /* inputs 0, first hidden 1 ...; a bias node has the layer it feeds */
    int orbit; /* permutation orbit 0..n_orbits-1, or -1: fixed nodes */
} wf_group;

/* Parameters of one tensor. Entry (i of dst, j of src, k) is w[offset + (i*n_src + j)*coef + k]. */
typedef struct wf_block {
    wf_block_kind kind;
    int src, dst;  /* groups; the source of a bias is its bias node */
    int coef;      /* coefficients an edge carries */
    int layer;     /* 0-based layer it belongs to */
    size_t offset; /* in the flat parameter vector */
    size_t count;  /* n_dst * n_src * coef */
    bool folded;   /* kept on the dst nodes, not as edges of the metanetwork's graph */
    char name[32]; /* "layers.0.weight" */
} wf_block;

typedef struct wf_graph {
    int n_groups, n_blocks, n_orbits, n_layers;
    wf_group *groups; /* inputs, hidden layers, outputs, then bias nodes in layer order */
    wf_block *blocks; /* flat order: layers.0.weight, layers.0.bias, layers.1.weight ... */
    size_t n_params;
    wf_activation activation; /* of hidden groups */
    int inputs, outputs;
    char text[256]; /* canonical form, parses back: "64-16-8-10" */
} wf_graph;

enum {
    WF_GRAPH_FOLD_INPUT = 1
}; /* the first layer's weights and bias sit on the first hidden nodes */

/* arch: widths joined by '-', at least two; a '!' behind a width means that this layer has no bias
 * ("64-16!-10"). activation: relu, tanh, gelu (erf), silu, sigmoid, identity. */
WF_API wf_status wf_graph_parse(wf_ctx *ctx, const char *arch, const char *activation,
                                unsigned flags, wf_graph **out);
WF_API wf_status wf_graph_clone(wf_ctx *ctx, const wf_graph *graph, wf_graph **out);
WF_API void wf_graph_free(wf_graph *graph);
WF_API bool
wf_graph_equal(const wf_graph *a,
               const wf_graph *b); /* same parameters, same function; folding is ignored */
WF_API const char *wf_activation_name(wf_activation activation);

/* Every hidden width times `factor`, rounded half up, at least 1. */
WF_API wf_status wf_graph_scale_width(wf_ctx *ctx, const wf_graph *graph, double factor,
                                      wf_graph **out);

/* A relabelling of hidden units: unit u of orbit o moves to place perm[orbit_start(o) + u].
 * perm has wf_graph_perm_size entries, orbits one after another. */
WF_API size_t wf_graph_perm_size(const wf_graph *graph);
WF_API size_t wf_graph_perm_start(const wf_graph *graph, int orbit);
WF_API void wf_graph_permute(const wf_graph *graph, const uint32_t *perm, const float *in,
                             float *out);
WF_API void wf_graph_permute_inverse(const wf_graph *graph, const uint32_t *perm, const float *in,
                                     float *out);

/* Logits (n, outputs) of inputs x (n, inputs) under flat parameters w. */
WF_API wf_status wf_graph_forward(wf_ctx *ctx, const wf_graph *graph, const float *w,
                                  const float *x, size_t n, float *logits);

/* Mean and standard deviation of each block, pooled over a collection: the parameter-group normalisation. */
enum { WF_MAX_BLOCKS = 64 };
typedef struct wf_norm {
    int n; /* blocks; 0 means the identity */
    float mean[WF_MAX_BLOCKS], std[WF_MAX_BLOCKS];
} wf_norm;

/* weights (count, n_params). A block whose entries are all equal gets std 1. */
WF_API wf_status wf_norm_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                             wf_norm *out);
WF_API void wf_norm_apply(const wf_norm *norm, const wf_graph *graph, const float *in,
                          float *out); /* (w - mean) / std */
WF_API void wf_norm_invert(const wf_norm *norm, const wf_graph *graph, const float *in, float *out);

WF_END_C

#endif
