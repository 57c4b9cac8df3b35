/* objective: conditional flow matching on a ragged batch.
 *
 *   loss = mean over networks of the mean over a network's coordinates of weight (v(w_t, t) - u)^2
 *
 * with w_t, u and v of flow/path.h. Weights are 1, or such that all layers of a network contribute
 * equally. */
#pragma once

#include "flow/path.h"
#include "flow/split.h"

/* Parameters from the end of the list's previous entry up to `end` have this weight in the loss. */
typedef struct wf_loss_weight {
    uint32_t end;
    float weight;
} wf_loss_weight;

/* One batch of the objective. Arrays over parameters are (n_params of the batch), ragged by
 * network. */
typedef struct wf_flow_batch {
    const wf_batch *shape;
    float *w0, *w1, *t;    /* t (n_graphs) */
    float *cond;           /* (n_graphs, K), or NULL */
    uint8_t *drop;         /* (n_graphs), or NULL */
    float *wt;             /* w_t, then dloss/dF */
    float *x;              /* what F sees */
    float *f;              /* F, then v */
    wf_path_scales *scale; /* (n_graphs) of parameters of unit variance */
    wf_axes *axes;         /* (n_graphs) the others; NULL: there are none */
    /* (n_graphs) lists that end with the network; NULL: all weights are 1 */
    const wf_loss_weight **loss_weights;
    double *loss;          /* (n_graphs) */
    const wf_split *split; /* NULL: this process has the whole batch; else networks of others are
                              not filled, losses are */
    wf_status drawn;       /* of several ranks: whether this one's networks are there */
    uint32_t flags;        /* and what rank 0 tells all of them with the loss */
    const wf_path *path;   /* wf_flow_interpolate's, borrowed; and its */
    uint64_t seed;         /* addresses of random parts */
    uint32_t update;
} wf_flow_batch;

/* wt, x, scale and path from w0, w1, t. The path noise of network b continues stream (seed, b,
 * WF_RNG_NOISE, update) after w0. */
void wf_flow_interpolate(wf_ctx *ctx, const wf_path *path, uint64_t seed, uint32_t update,
                         wf_flow_batch *batch);

/* The field's part of an evaluation; of several ranks, each has its own. */
wf_status wf_flow_forward(wf_ctx *ctx, wf_field *field, const float *params,
                          const wf_flow_batch *batch, bool training);
/* Where batch->f holds F after wf_flow_interpolate: the loss; f becomes v, wt becomes dloss/dF.
 * forward: the status of what made F; a failure on one rank is one on all. */
wf_status wf_flow_compare(wf_ctx *ctx, wf_status forward, wf_flow_batch *batch, double *loss);

/* After wf_flow_interpolate. grad (params; NULL: not wanted) = dloss/dparams. */
wf_status wf_flow_loss(wf_ctx *ctx, wf_field *field, const float *params, wf_flow_batch *batch,
                       double *loss, float *grad);
