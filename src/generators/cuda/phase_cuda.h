/* phase_cuda: a phase of phase_fit.h on the GPU: its updates, and evaluations of its network.
 *
 * One update is one CUDA graph: draw the inputs (phase_draws.cu), forward and backward of the
 * network recorded on a tape (models/cuda/field_program.cuh), clip and optimiser. Parameters,
 * moments, average and running statistics stay on the device (flow/cuda/updates_cuda.h). */
#pragma once

#include "flow/cuda/updates_cuda.h"
#include "generators/phase_fit.h"

WF_BEGIN_C

typedef struct wf_phase_cuda wf_phase_cuda;

/* Pointers are borrowed; all of them must outlive the object. */
typedef struct wf_phase_cuda_desc {
    const wf_phase *phase;
    const void *model;
    const wf_fit_desc *fit;
    wf_optim_desc optim;
    wf_schedule schedule;
    const wf_fit_arrays *arrays; /* without best; statistics are the phase's */
    size_t first, made;          /* updates of the phases before, and of this one */
    size_t count;                /* networks that are fitted */
    int judged;                  /* networks of a validation's batches; 0: none */
    bool fast;                   /* bf16 products */
} wf_phase_cuda_desc;

wf_status wf__phase_cuda_create(wf_ctx *ctx, const wf_phase_cuda_desc *desc, wf_phase_cuda **out);
void wf__phase_cuda_free(wf_phase_cuda *phase); /* waits for the GPU; accepts NULL */
wf_updates_cuda *wf__phase_cuda_updates(const wf_phase_cuda *phase);
wf_status wf__phase_cuda_enqueue(wf_ctx *ctx, wf_phase_cuda *phase);
/* Loss of `judged` networks with the weights that would sample, after all enqueued updates. in:
 * host memory, as the phase's `fill` leaves it. */
wf_status wf__phase_cuda_judge(wf_ctx *ctx, wf_phase_cuda *phase, float *const in[WF_PHASE_INPUTS],
                               double *loss);
/* Inputs of the last update, for tests; host memory, room as the phase's `shapes` says. */
wf_status wf__phase_cuda_inputs(wf_ctx *ctx, wf_phase_cuda *phase,
                                float *const in[WF_PHASE_INPUTS]);

/* --- evaluations: what wf_phase_eval does on a GPU -------------------------------------------- */
typedef struct wf_eval_cuda wf_eval_cuda;

/* Copies the weights that sample to the device. */
wf_status wf__eval_cuda_open(wf_ctx *ctx, const wf_phase *phase, bool fast, wf_eval_cuda **out);
void wf__eval_cuda_close(wf_eval_cuda *eval); /* accepts NULL */
/* The walk is recorded for `networks` of them when it is first met. in, out: host memory, of the
 * first `some`. */
wf_status wf__eval_cuda_run(wf_ctx *ctx, wf_eval_cuda *eval, const void *model, wf_phase_walk *walk,
                            int networks, const wf_phase_shape *shape, int inputs,
                            const float *const *in, float *out, int some);

WF_END_C
