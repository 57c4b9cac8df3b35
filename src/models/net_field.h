/* net_field: a field of one architecture whose network is written with nn/layers.h.
 *
 * Such a field sees a batch as a matrix (B, P), one network a row. A model is its settings and one
 * function that walks the network; everything else that models/field.h asks for is here. The whole
 * batch is one tape, and operations use all threads. A process of several has some of its rows:
 * since a gradient is a sum over rows in order, any cut of the batch gives the same bits. */
#pragma once

#include "models/field.h"
#include "nn/layers.h"

WF_BEGIN_C

/* What a walk is given. v is filled by wf_from_tokens, at the end. */
typedef struct wf_net_inputs {
    int networks, params; /* B, P */
    wf_tensor *w, *t;     /* (B, P) without padding, (B, 1) */
    wf_tensor *v;         /* (B, P) without padding */
    /* [P] The places in the flat vector of all weights in the order of layers, then those of all
     * other parameters in theirs: a map for wf_to_tokens and wf_from_tokens. */
    const uint32_t *weights_first;
} wf_net_inputs;

/* options: the struct of the kind's settings. */
typedef void wf_net_walk(wf_net *net, const void *options, const wf_net_inputs *in);

/* A model of networks of `width` parameters, and the tape of one evaluation, on any backend. */
typedef struct wf_net_model {
    wf_net_walk *walk;
    void *options;
    wf_params list;
    int width;
    uint32_t *weights_first;
} wf_net_model;
typedef struct wf_net_run {
    wf_tape tape;
    wf_net net;
    wf_tensor *w, *v;
} wf_net_run;
/* On run->tape, which is started. Arrays are the backend's; key: of dropout, NULL: none. False: out
 * of memory. */
bool wf__net_run_forward(wf_net_run *run, const wf_net_model *model, int networks,
                         const void *params, const void *w, const void *t,
                         const wf_dropout_key *key, void *v);
/* After a forward that keeps; dw may be NULL. grad NULL: only the gradients of activations, for
 * wf_net_add_gradient. */
bool wf__net_run_backward(wf_net_run *run, const void *dv, void *grad, void *dw);

/* The functions of a kind whose model is `walk`: create as the kind's own create calls it, the rest
 * as they are. Weight decay applies to all parameters or, as in nn/params.h, to matrices alone. */
wf_status wf__net_field_create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                               const wf_graph *graph, wf_dtype dtype, size_t params, uint64_t seed,
                               bool decay_all, wf_net_walk *walk, wf_field **out);
void wf__net_field_free(wf_field *field);
void wf__net_field_init(const wf_field *field, uint64_t seed, void *params);
wf_status wf__net_field_forward(wf_ctx *ctx, wf_field *field, const void *params,
                                const wf_field_input *input, void *v);
wf_status wf__net_field_backward(wf_ctx *ctx, wf_field *field, const void *dv, void *grad,
                                 void *dw);
int wf__net_field_parts(wf_field *field, const wf_batch *batch, int start[WF_FIELD_PARTS + 1]);
bool wf__net_field_add(wf_field *field, size_t first, size_t n, float *running, bool fresh);
double wf__net_field_flops(const wf_field *field);
wf_status wf__net_field_record(wf_ctx *ctx, const wf_field *field,
                               const wf_field_program_desc *desc, wf_field_program **out);
/* These, as members of a wf_field_kind. */
#define WF_NET_FIELD_FUNCTIONS                                                                     \
    .free = wf__net_field_free, .init = wf__net_field_init, .forward = wf__net_field_forward,      \
    .backward = wf__net_field_backward, .parts = wf__net_field_parts, .add = wf__net_field_add,    \
    .flops = wf__net_field_flops, .record = wf__net_field_record

WF_END_C
