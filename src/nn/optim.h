/* optim: AdamW, Muon, gradient clipping and EMA as passes over flat arrays.
 *
 * Parameters, gradient, moments and EMA are arrays of one layout, described by a list of tensors.
 * AdamW is torch.optim.AdamW. With Muon the tensors flagged `matrix` move along their
 * orthogonalised Nesterov momentum (nn/cpu/optim_cpu.c) by muon_lr * sqrt(max(1, rows/cols)), all
 * others by AdamW. All arrays are float or double. The same bits come out for any number of
 * threads; nothing is allocated in an update. */
#pragma once

#include "base/status.h"
#include "base/vmath.h"    /* WF_HD */
#include "tensor/tensor.h" /* wf_dtype */

typedef struct wf_optim_tensor {
    size_t offset;
    int rows, cols;
    bool matrix; /* Muon's, where there is Muon */
    bool decay;  /* weight decay applies */
} wf_optim_tensor;

typedef struct wf_optim_desc {
    double lr, weight_decay, beta1, beta2, eps;
    bool muon;
    double muon_lr, muon_momentum;
    double clip;    /* global norm; 0: none */
    double ema;     /* 0: none */
    wf_dtype dtype; /* of parameters, gradient and state; WF_F64 for comparisons */
} wf_optim_desc;

typedef struct wf_optim wf_optim;

/* tensors tile 0 .. params-1 in order. The scratch memory is for the threads of `ctx`. */
wf_status wf_optim_create(wf_ctx *ctx, const wf_optim_desc *desc, const wf_optim_tensor *tensors,
                          int n_tensors, size_t params, wf_optim **out);
void wf_optim_free(wf_optim *optim);

/* State for checkpoints: (params) reals each. `first` is AdamW's first moment, or Muon's momentum;
 * ema is NULL without EMA. The caller sets ema to the initial parameters. */
void *wf_optim_first(wf_optim *optim);
void *wf_optim_second(wf_optim *optim);
void *wf_optim_ema(wf_optim *optim);

/* Global 2-norm of the gradient; not finite when the gradient is not. */
double wf_optim_norm(wf_ctx *ctx, const wf_optim *optim, const void *grad);

/* Update number `update` (0, 1 ...) with both learning rates times `factor`. norm: wf_optim_norm of
 * grad, finite. */
wf_status wf_optim_apply(wf_ctx *ctx, wf_optim *optim, size_t update, double factor, double norm,
                         const void *grad, void *params);

/* Several ranks share out Muon's matrices: each moves some, and all get the parameters. What only
 * the owner of a matrix has of it, moments and EMA, comes to all by this call. */
wf_status wf_optim_collect(wf_ctx *ctx, wf_optim *optim);

/* EMA decay of update `update`: min(ema, (1+n)/(10+n)) with n the updates made before it. */
static inline WF_HD double wf_ema_decay(double ema, size_t update) {
    return fmin(ema, (1.0 + (double)update) / (10.0 + (double)update));
}

/* How fast a run goes through its schedule. A run that is late moves on by `stride` updates of the
 * schedule with each update that it makes. */
typedef struct wf_pace {
    size_t from;     /* from this update on ... */
    double position; /* ... which is here in the schedule ... */
    double stride;   /* ... by so many; 0: no pace was set, update n is at n */
} wf_pace;
static inline WF_HD size_t wf_pace_position(const wf_pace *pace, size_t update) {
    if (pace->stride == 0) return update;
    return (size_t)(pace->position + (double)(update - pace->from) * pace->stride);
}

typedef struct wf_schedule {
    size_t warmup;    /* updates, linear from 1/warmup */
    bool cosine;      /* else constant ... */
    bool one_cycle;   /* ... or torch.optim.lr_scheduler.OneCycleLR, which has its own warm-up */
    size_t horizon;   /* where the cosine ends; constant after it */
    double min_ratio; /* smallest rate / largest rate */
} wf_schedule;
/* Half a cosine from `from` to `to`. */
static inline WF_HD double wf_cosine_between(double from, double to, double share) {
    return to + (from - to) * 0.5 * (1 + cos(3.14159265358979323846 * fmin(share, 1.0)));
}
/* Of `updates` updates, 30 % rise from 1/25 to 1, the rest falls to 1/250000. */
static inline WF_HD double wf_one_cycle_factor(size_t updates, size_t update) {
    double top = 0.3 * (double)updates - 1, last = (double)updates - 1, at = (double)update;
    if (at <= top) return wf_cosine_between(0.04, 1, top > 0 ? at / top : 1);
    return wf_cosine_between(1, 0.04e-4, last > top ? (at - top) / (last - top) : 1);
}
/* The learning rate of update `update` as a fraction of the full one. */
static inline WF_HD double wf_schedule_factor(const wf_schedule *schedule, size_t update) {
    if (schedule->one_cycle) return wf_one_cycle_factor(schedule->horizon, update);
    if (update < schedule->warmup) return ((double)update + 1) / (double)schedule->warmup;
    if (!schedule->cosine || schedule->horizon <= schedule->warmup) return 1;
    double share =
        (double)(update - schedule->warmup) / (double)(schedule->horizon - schedule->warmup);
    double low = schedule->min_ratio;
    return low + (1 - low) * 0.5 * (1 + cos(3.14159265358979323846 * fmin(share, 1.0)));
}
