/* zoo_import_layers: which tensors of a state_dict are the layers of a fully connected network,
 * and in which order.
 *
 * Weights are the matrices [out,in], biases the vectors [out]. Two weights are ordered by name
 * where their names first differ in a number (fc2 before fc10, blocks.0.out before blocks.1.in);
 * shapes must chain: each `in` is the `out` before it. If exactly one order obeys both, that is
 * the network. Anything left over, or a choice, is an error that lists the tensors: nothing is
 * guessed. */
#pragma once

#include "base/safetensors.h"
#include "graph/describe.h"

enum { WF_IMPORT_MAX_LAYERS = 32 };

typedef struct wf_import_layer {
    const wf_st_tensor *weight, *bias; /* bias NULL: the layer has none */
    int units;
    char name[WF_MAX_NAME + 1]; /* NAME of NAME.weight and NAME.bias, without what wrappers add */
} wf_import_layer;

typedef struct wf_import_chain {
    int inputs, n;
    wf_import_layer layers[WF_IMPORT_MAX_LAYERS];
    size_t networks; /* of a stacked file; 1 otherwise */
    bool named;      /* all tensors are NAME.weight and NAME.bias */
} wf_import_chain;

/* layers: comma-separated names in order, or NULL. stackable: matrices of rank 3 mean M stacked
 * networks. The chain points to the given tensors. */
wf_status wf_import_resolve(wf_ctx *ctx, const char *label, const wf_st_tensor *const *tensors,
                            size_t n, const char *layers, bool stackable, wf_import_chain *out);

/* The tensors of a described network in the order of its parameters: parts [n_blocks]. A tensor
 * belongs to the block of its name. Where not one name is known, tensors are taken in the order of
 * the file, which in torch.save is that of the modules, and all shapes must fit; *graph is then
 * replaced by the same description with the file's names. Counters of batch norms
 * (num_batches_tracked) are left out. stackable: tensors may have the number of networks in
 * front. */
wf_status wf_import_described(wf_ctx *ctx, const char *label, const wf_st_tensor *const *tensors,
                              size_t n, wf_graph **graph, bool stackable,
                              const wf_st_tensor **parts, size_t *networks);
