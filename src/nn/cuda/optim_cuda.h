/* optim_cuda: nn/optim.h on the GPU; an update is a few kernels without the host.
 *
 * The object owns parameters, gradient and state in device memory, and also the number of the next
 * update. Kernels read that number there, so the same launches, captured once, make every update.
 * The device also decides whether loss and gradient are finite: if they are not, this update is not
 * made, nor any after it. Sums run in an order fixed by the sizes. All launches go to the device's
 * stream. */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "base/cuda/device_ranks.h"
#include "nn/optim.h"

typedef struct wf_optim_cuda wf_optim_cuda;

typedef struct wf_optim_cuda_desc {
    wf_optim_desc optim; /* WF_F32 */
    wf_schedule schedule;
    const wf_optim_tensor *tensors; /* read while the object is made */
    int n_tensors;
    size_t params;
    bool fast; /* Muon's products of bf16 numbers on tensor cores, else float */
    bool best; /* keep the parameters of the lowest loss */
    /* NULL: none. Else all ranks have the same gradient; each iterates its share of Muon's matrices
     * and gets the others'. */
    wf_device_ranks *ranks;
} wf_optim_cuda_desc;

/* Device memory, (params) floats each; ema and best NULL where they are not kept. */
typedef struct wf_optim_cuda_arrays {
    float *params, *grad, *first, *second, *ema, *best;
} wf_optim_cuda_arrays;

/* The result of an update, in host memory. */
typedef struct wf_update_record {
    double loss, norm, factor; /* factor: of the learning rate */
    uint32_t update;
    uint32_t made; /* 0: loss or norm is not finite, so it was not made */
} wf_update_record;

wf_status wf__optim_cuda_create(wf_ctx *ctx, const wf_optim_cuda_desc *desc, wf_optim_cuda **out);
void wf__optim_cuda_free(wf_optim_cuda *optim); /* accepts NULL */
wf_optim_cuda_arrays wf__optim_cuda_arrays(const wf_optim_cuda *optim);
/* Sets the number of the next update and the lowest loss so far; waits for the stream. */
wf_status wf__optim_cuda_start(wf_ctx *ctx, wf_optim_cuda *optim, size_t update, double best_loss);
/* How updates go through the schedule from here on; waits for the stream. */
wf_status wf__optim_cuda_pace(wf_ctx *ctx, wf_optim_cuda *optim, const wf_pace *pace);
/* Device memory: the number of the next update. */
const uint32_t *wf__optim_cuda_update(const wf_optim_cuda *optim);
/* Enqueue one update from the gradient; the loss is the sum of `terms` (device, n_terms). May be
 * captured. */
wf_status wf__optim_cuda_apply(wf_ctx *ctx, wf_optim_cuda *optim, const double *terms, int n_terms);
/* The record of update u is at u % *ring; valid once the stream has passed the update. */
const volatile wf_update_record *wf__optim_cuda_records(const wf_optim_cuda *optim, size_t *ring);

WF_END_C
