/* objective: conditional flow matching on a ragged batch (design section 4).
 *
 *   w_t = (1-t) w0 + t w1 (+ path noise)     target u = w1 - w0
 *   loss = mean over networks of the mean over a network's coordinates of (v(w_t, t) - u)^2
 *
 * Plain: v = F. Preconditioned: v = skip(t) w_t + out(t) F(in(t) w_t, t), the exact answer for unit
 * Gaussian weights when F = 0, with targets of unit variance left for F. With source std s, path
 * noise q, a = t^2 + s^2 (1-t)^2 + q^2:
 *   in = 1/sqrt a    skip = (t - s^2 (1-t)) / a    out = sqrt(s^2 + (1+s^2) q^2) / sqrt a
 * which for s = 1, q = 0 is v = (2t-1)/a w + F(w/sqrt a, t)/sqrt a. */
#ifndef WF_FLOW_OBJECTIVE_H
#define WF_FLOW_OBJECTIVE_H

#include "flow/velocity.h"

typedef struct wf_path {
    bool precondition;
    double source_std, path_noise;
} wf_path;

typedef struct wf_path_scales {
    float in, skip, out;
} wf_path_scales;
wf_path_scales wf_path_at(const wf_path *path, double t);

/* One batch of the objective. Arrays over parameters are (n_params of the batch), ragged by network. */
typedef struct wf_flow_batch {
    const wf_batch *shape;
    float *w0, *w1, *t;    /* t (n_graphs) */
    float *cond;           /* (n_graphs, K), or NULL */
    uint8_t *drop;         /* (n_graphs), or NULL */
    float *wt;             /* w_t, then dloss/dF */
    float *x;              /* what F sees */
    float *f;              /* F, then v */
    wf_path_scales *scale; /* (n_graphs) */
    double *loss;          /* (n_graphs) */
} wf_flow_batch;

/* wt, x and scale from w0, w1, t. Path noise of network b is behind the noise of stream (seed, b, WF_RNG_NOISE, update). */
void wf_flow_interpolate(wf_ctx *ctx, const wf_path *path, uint64_t seed, uint32_t update,
                         wf_flow_batch *batch);

/* After wf_flow_interpolate. grad (params; NULL: not wanted) = dloss/dparams. */
wf_status wf_flow_loss(wf_ctx *ctx, const wf_velocity *velocity, const float *params,
                       wf_flow_batch *batch, double *loss, float *grad);

#endif
