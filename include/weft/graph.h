/* weft/graph.h: a network as data: its layers, and the parameter graph that follows from them.
 *
 *     wf_graph *g;
 *     wf_graph_parse(ctx, "64-16-8-10", "relu", 0, &g);     64 inputs, hidden 16, 8, 10 classes
 *     wf_graph_parse(ctx, "3x32x32 conv16 pool conv32 pool conv48 gap linear10", "relu", 0, &g);
 *
 * A description is a list of layers. Each makes one group of units from one or two earlier groups.
 * It is written as a C array (wf_graph_build), as JSON (wf_graph_json) or, without residual
 * connections but those of basic blocks, as a text. Everything else follows from it: the flat
 * parameter order (that of a PyTorch state_dict), hidden-unit permutations, positional roles,
 * parameter groups, the forward pass. Nothing else knows what an MLP is.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_GRAPH_H
#define WEFT_GRAPH_H

#include "weft/base.h"

WF_BEGIN_C

typedef enum wf_activation {
#define X(constant, name) WF_ACT_##constant,
#include "weft/activations.def"
#undef X
    WF_ACT_MIXED /* wf_graph.activation of a network whose layers differ */
} wf_activation;

/* What a layer computes from its input before normalisation, activation and pooling. */
typedef enum wf_layer_kind {
    WF_LAYER_LINEAR, /* nn.Linear; an image is flattened first */
    WF_LAYER_CONV,   /* nn.Conv2d, as cross-correlation, without dilation and groups */
    WF_LAYER_ADD,    /* the sum of its two inputs: a residual connection */
    WF_LAYER_PASS    /* its input as it is, for a norm, an activation or a pooling of its own */
} wf_layer_kind;

/* Norm layers have gamma and beta. The running statistics of a batch norm are buffers: part of the
 * flat vector, not trained. */
typedef enum wf_norm_kind {
    WF_NORM_NONE,
    WF_NORM_BATCH, /* nn.BatchNorm1d and 2d */
    WF_NORM_LAYER  /* nn.LayerNorm over all values of a group: (n) or (n, height, width) */
} wf_norm_kind;

typedef enum wf_pool_kind {
    WF_POOL_NONE,
    WF_POOL_MAX,
    WF_POOL_AVERAGE, /* padding counts as zeros, as in nn.AvgPool2d */
    WF_POOL_GLOBAL   /* the average over all places */
} wf_pool_kind;

/* The window of a convolution or a pooling: {height, width} each. */
typedef struct wf_window {
    int kernel[2], stride[2], padding[2];
} wf_window;

/* One layer. Group 0 is the network's input and group l + 1 is made by layers[l]. */
typedef struct wf_layer {
    wf_layer_kind op;
    int from[2];      /* groups it reads; the second only for WF_LAYER_ADD */
    int in;           /* units it expects of its input; 0: whatever there are */
    int n;            /* units it makes (channels of a convolution); add and pass: 0 */
    wf_window window; /* of a convolution */
    bool bias;        /* linear and convolution */
    wf_norm_kind norm;
    double eps; /* of the norm; 0: 1e-5 */
    wf_activation activation;
    wf_pool_kind pool;
    wf_window pool_window; /* of maximum and average */
    const char *name;      /* NAME.weight, NAME.bias; NULL: "layers.0", "layers.1" ... */
    const char *norm_name; /* NULL: "layers.0.norm" ... */
    /* A batch norm that is multiplied into weight and bias (wf_graph_fold_norms): its name, and
     * `eps` above. It has no parameters; exports write it as an identity. NULL: none. */
    const char *folded_norm;
    bool folded_bias; /* the bias stands for that norm's beta: the layer itself has none */
} wf_layer;

/* Units of a layer, or the one node that stands for a vector of parameters. The values of kinds
 * from WF_GROUP_BIAS on are those of wf_block_kind in the same order. */
typedef enum wf_group_kind {
    WF_GROUP_INPUT,
    WF_GROUP_HIDDEN,
    WF_GROUP_OUTPUT,
    WF_GROUP_BIAS,
    WF_GROUP_GAMMA,
    WF_GROUP_BETA,
    WF_GROUP_MEAN,
    WF_GROUP_VARIANCE
} wf_group_kind;

typedef enum wf_block_kind {
    WF_BLOCK_WEIGHT, /* matrix or kernels */
    WF_BLOCK_BIAS,
    WF_BLOCK_GAMMA,
    WF_BLOCK_BETA,
    WF_BLOCK_MEAN, /* running statistics of a batch norm: buffers */
    WF_BLOCK_VARIANCE
} wf_block_kind;

typedef struct wf_group {
    wf_group_kind kind;
    int n;                     /* nodes: units, channels */
    int layer;                 /* 0: input, l + 1: made by or feeding layers[l] */
    int orbit;                 /* permutation orbit 0..n_orbits-1, or -1: fixed nodes */
    int units;                 /* the first group with the same units: this one, unless it adds or
                                   passes on an earlier one */
    bool image;                /* a unit has height x width values; otherwise one */
    int height, width;         /* after pooling; 1 x 1 without an image */
    int sum_height, sum_width; /* before pooling */
} wf_group;

/* One tensor of parameters. Entry (i of dst, j of src, k) is w[offset + (i*n_src + j)*coef + k]. */
typedef struct wf_block {
    wf_block_kind kind;
    int src, dst;     /* groups; the source of a vector is a node of its own */
    int coef;         /* coefficients an edge carries: entries of a kernel, places of an image */
    int layer;        /* it belongs to layers[layer] */
    size_t offset;    /* in the flat parameter vector */
    size_t count;     /* n_dst * n_src * coef, at least 1 */
    bool folded;      /* kept on the dst nodes, not as edges of the metanetwork's graph */
    const char *name; /* "layers.0.weight" */
} wf_block;

typedef struct wf_graph {
    int n_layers, n_groups, n_blocks, n_orbits;
    wf_layer *layers;    /* the description; everything below is derived from it */
    wf_group *groups;    /* input, one per layer, then the nodes of vectors in flat order */
    wf_block *blocks;    /* flat order: layer by layer weight, bias, gamma, beta, mean, variance */
    size_t *orbit_start; /* [n_orbits + 1] first unit of an orbit in a permutation */
    size_t n_params;     /* length of the flat vector, buffers included */
    wf_activation activation; /* of all hidden linear and convolution layers, or WF_ACT_MIXED */
    int inputs, outputs;      /* numbers that go in (channels * height * width) and come out */
    char *text;  /* for people: "64-16-8-10". Equal texts and activations: equal descriptions */
    char *names; /* memory of all names */
} wf_graph;

enum {
    WF_GRAPH_FOLD_INPUT = 1 /* weights and bias of a hidden layer that reads the input sit on its
                               units: no edges and no input nodes in the metanetwork's graph */
};

/* A graph from an array of layers, which is copied with its names.
 * channels, height, width   of an image that goes in; height 0: `channels` plain numbers.
 * flags                     0 or WF_GRAPH_FOLD_INPUT.
 * Hidden units of a group form one orbit; groups that are added or passed on share theirs, and
 * with the input or the output they are fixed.
 * *out is the caller's: wf_graph_free(); NULL on failure. Returns WF_OK, WF_ERR_USAGE (the number
 * of layers, a bad layer), WF_ERR_SHAPE (sizes that do not fit: layer, what was expected and what
 * was found) or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_build(wf_ctx *ctx, int channels, int height, int width,
                                const wf_layer *layers, int n_layers, unsigned flags,
                                wf_graph **out);

/* A graph from a text. activation: relu, tanh, gelu, silu, sigmoid, identity; it is used for the
 * hidden linear and convolution layers that name none.
 *   64-16-8-10        widths; a '!' after a width means that this layer has no bias: 64-16!-10
 *   3x32x32 conv16 .. input (64 or 3x32x32), then words: conv16, linear10 (both with '!'), pool,
 *                     avgpool, gap, flatten, batchnorm, layernorm, pass, or an activation.
 *                     conv16k5s2p2 has kernel 5, stride 2, padding 2 (default k3 s1, padding k/2),
 *                     pool3s2p1 likewise (default 2, stride as kernel, no padding).
 *                     basic64x2s2: two basic blocks of a ResNet with 64 channels, the first with
 *                     stride 2; a text with such words has torchvision's names:
 *                     "3x32x32 conv16! batchnorm basic16x2 basic32x2s2 gap linear10"
 *   {"input": ...     JSON, see wf_graph_json
 *   net.json          a file with such JSON
 * Returns WF_OK, WF_ERR_USAGE (no such text or activation), WF_ERR_SHAPE (sizes that do not fit),
 * WF_ERR_INPUT (the file) or WF_ERR_MEMORY; *out is then NULL, else the caller's:
 * wf_graph_free(). */
WF_API wf_status wf_graph_parse(wf_ctx *ctx, const char *text, const char *activation,
                                unsigned flags, wf_graph **out);

/* The description as JSON: docs/formats.md has its keys. wf_graph_json is free()d by the caller.
 * Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_json(wf_ctx *ctx, const wf_graph *graph, char **out);
/* Returns WF_OK, WF_ERR_USAGE, WF_ERR_SHAPE, WF_ERR_INPUT (more text than a description can have)
 * or WF_ERR_MEMORY; *out is then NULL, else the caller's: wf_graph_free(). */
WF_API wf_status wf_graph_from_json(wf_ctx *ctx, const char *json, unsigned flags, wf_graph **out);

/* A copy, the caller's: wf_graph_free(). Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_clone(wf_ctx *ctx, const wf_graph *graph, wf_graph **out);
/* A copy with other flags, the caller's: wf_graph_free(). Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_fold(wf_ctx *ctx, const wf_graph *graph, unsigned flags, wf_graph **out);
/* Accepts NULL. */
WF_API void wf_graph_free(wf_graph *graph);
/* Same parameters, same function; names and folding are ignored. */
WF_API bool wf_graph_equal(const wf_graph *a, const wf_graph *b);
/* "relu" ...: a constant, never NULL. */
WF_API const char *wf_activation_name(wf_activation activation);

/* --- batch norms in evaluation: a factor and a shift of the layer before them -----------------
 * The description with every batch norm folded into the linear or convolution layer that it belongs
 * to, which has a bias then. *out is the caller's: wf_graph_free().
 * Returns WF_OK, WF_ERR_SHAPE (a batch norm behind no such layer) or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_fold_norms(wf_ctx *ctx, const wf_graph *graph, wf_graph **out);
/* The reverse: the description with its batch norms again. *out is the caller's: wf_graph_free().
 * Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_unfold_norms(wf_ctx *ctx, const wf_graph *graph, wf_graph **out);
/* Parameters of one network between the two descriptions: `to` is what one of the functions above
 * made of `from`. The network computes the same. Unfolded batch norms have gamma 1, mean 0 and
 * variance 1 - eps; beta is 0, or the folded bias where the layer itself has none. */
WF_API void wf_graph_convert_norms(const wf_graph *from, const wf_graph *to, const float *in,
                                   float *out);

/* --- what a description says, for callers that do not know the struct -------------------------
 * graph must not be NULL. Texts belong to the graph. Any thread may ask. */
WF_API size_t wf_graph_params(const wf_graph *graph); /* length of the flat vector */
WF_API int wf_graph_inputs(const wf_graph *graph);
WF_API int wf_graph_outputs(const wf_graph *graph);
WF_API const char *wf_graph_text(const wf_graph *graph);       /* "64-16-8-10" */
WF_API const char *wf_graph_activation(const wf_graph *graph); /* "relu", "mixed" */
WF_API int wf_graph_tensors(const wf_graph *graph); /* tensors of a PyTorch state_dict, in order */
/* Tensor `index` as PyTorch has it: its name ("layers.0.weight"), or NULL after the last.
 * offset, count: its entries in the flat vector. rank and shape: its own dimensions, 1 to 4. kind:
 * wf_block_kind; from WF_BLOCK_MEAN on it is not trained. Any of them may be NULL. */
WF_API const char *wf_graph_tensor(const wf_graph *graph, int index, size_t *offset, size_t *count,
                                   int *rank, size_t shape[4], int *kind);

/* Whether the network is one chain of linear layers on plain inputs, without norms and residual
 * connections. The fastest kernels need that. */
WF_API bool wf_graph_is_chain(const wf_graph *graph);

/* Shape of a block's tensor in PyTorch: its rank (1 to 4) is returned. */
WF_API int wf_block_shape(const wf_graph *graph, const wf_block *block, size_t shape[4]);
/* Running statistics are not trained. */
static inline bool wf_block_trained(const wf_block *block) { return block->kind < WF_BLOCK_MEAN; }

/* Parameters of the longest row that WF_GRAPH_FOLD_INPUT puts on a unit; 0: nothing to fold. */
WF_API int wf_graph_fold_rows(const wf_graph *graph);
/* Nodes and edges of the metanetwork's graph, and parameters that are folded. */
WF_API void wf_graph_size(const wf_graph *graph, size_t *nodes, size_t *edges, size_t *folded);

/* Every hidden width that can move times `factor`, rounded half up, at least 1.
 * *out is the caller's: wf_graph_free(). Returns WF_OK, WF_ERR_USAGE (the factor) or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_graph_scale_width(wf_ctx *ctx, const wf_graph *graph, double factor,
                                      wf_graph **out);

/* A relabelling of hidden units: unit u of orbit o moves to place perm[orbit_start[o] + u].
 * perm has wf_graph_perm_size entries, orbits one after another. */
WF_API size_t wf_graph_perm_size(const wf_graph *graph);
WF_API size_t wf_graph_perm_start(const wf_graph *graph, int orbit);
WF_API void wf_graph_permute(const wf_graph *graph, const uint32_t *perm, const float *in,
                             float *out);
WF_API void wf_graph_permute_inverse(const wf_graph *graph, const uint32_t *perm, const float *in,
                                     float *out);

/* Logits (n, outputs) of inputs x (n, inputs) under flat parameters w.
 * Returns WF_OK, WF_ERR_UNSUPPORTED (a forward pass of more than 4 GB) or WF_ERR_MEMORY. */
WF_API wf_status wf_graph_forward(wf_ctx *ctx, const wf_graph *graph, const float *w,
                                  const float *x, size_t n, float *logits);

/* Mean and standard deviation of each block, pooled over a collection: the parameter-group
 * normalisation. All zero means the identity. */
typedef struct wf_norm {
    int n; /* blocks */
    float *mean, *std;
} wf_norm;

/* weights (count, n_params). A block whose entries are all equal gets std 1.
 * wf_norm_free() what *out holds. Returns WF_OK, WF_ERR_SHAPE (no networks), WF_ERR_INPUT (values
 * that are not finite) or WF_ERR_MEMORY. */
WF_API wf_status wf_norm_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                             wf_norm *out);
/* wf_norm_free() what *out holds. Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_norm_create(wf_ctx *ctx, int n, wf_norm *out); /* zeros */
/* Frees what it holds, not itself; accepts NULL. */
WF_API void wf_norm_free(wf_norm *norm);
WF_API void wf_norm_apply(const wf_norm *norm, const wf_graph *graph, const float *in,
                          float *out); /* (w - mean) / std */
WF_API void wf_norm_invert(const wf_norm *norm, const wf_graph *graph, const float *in, float *out);

WF_END_C

#endif
