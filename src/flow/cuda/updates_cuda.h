/* updates_cuda: the state of a fit on the GPU, and the updates that are under way.
 *
 * The object owns the optimiser (nn/cuda/optim_cuda.h) with parameters, gradient and moments, and a
 * copy of every array that a checkpoint has. Its users (fit_cuda.cu, generators/cuda/phase_cuda.cu)
 * capture an update as a CUDA graph and launch it here, again and again.
 *
 * U1  State is copied out at a boundary between updates, on a stream of its own, while later
 *     updates run. */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "flow/checkpoint.h"
#include "base/cuda/device_ranks.h"
#include "nn/cuda/optim_cuda.h"
#include "nn/params.h"

typedef struct wf_updates_cuda wf_updates_cuda;

/* Pointers are borrowed. What arrays and statistics point to must outlive the object. */
typedef struct wf_updates_cuda_desc {
    const wf_field_tensor *tensors; /* read while the object is made */
    int n_tensors;
    size_t params;
    wf_optim_desc optim;
    wf_schedule schedule;
    const wf_fit_arrays *arrays; /* where the fit stands; what is copied out comes back here */
    float *statistics; /* (n_statistics) likewise: numbers that an update changes itself */
    size_t n_statistics;
    size_t update; /* the next one */
    wf_pace pace;
    double best_loss;
    bool best;              /* keep the parameters of the lowest loss */
    bool fast;              /* bf16 products */
    wf_device_ranks *ranks; /* share Muon's matrices; NULL: one has all */
} wf_updates_cuda_desc;

enum { WF_UPDATES_AHEAD = 64 }; /* updates that may be under way */

wf_status wf__updates_cuda_create(wf_ctx *ctx, const wf_updates_cuda_desc *desc,
                                  wf_updates_cuda **out);
void wf__updates_cuda_free(wf_updates_cuda *updates); /* waits for the GPU; accepts NULL */
wf_optim_cuda *wf__updates_cuda_optim(const wf_updates_cuda *updates);
float *wf__updates_cuda_statistics(const wf_updates_cuda *updates); /* device memory */
/* Puts the statistics back to what the host has: recording a program has changed them. */
wf_status wf__updates_cuda_reset(wf_ctx *ctx, wf_updates_cuda *updates);

/* Enqueues the next update: `graph` is the cudaGraphExec_t of one. */
wf_status wf__updates_cuda_launch(wf_ctx *ctx, wf_updates_cuda *updates, void *graph);
size_t wf__updates_cuda_next(const wf_updates_cuda *updates); /* the update to be enqueued */
/* Waits for update `update`, which has been enqueued; one call for each, in order. */
wf_status wf__updates_cuda_record(wf_ctx *ctx, wf_updates_cuda *updates, size_t update,
                                  wf_update_record *out);
/* Begin to copy the state after all enqueued updates to desc->arrays. */
wf_status wf__updates_cuda_copy(wf_ctx *ctx, wf_updates_cuda *updates);
/* Has that copy arrived? With `wait` the call waits for it. */
wf_status wf__updates_cuda_copied(wf_ctx *ctx, wf_updates_cuda *updates, bool wait, bool *out);

WF_END_C
