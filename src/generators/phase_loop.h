/* phase_loop: the updates of one phase, on the CPU (phase_loop.c) or on a GPU (phase_loop_gpu.c),
 * and what both share with the files of phase_fit.c. */
#pragma once

#include "generators/phase_fit.h"

/* What the loop of one phase holds. */
typedef struct wf_phase_loop {
    wf_phase *phase;
    wf_tape tape;
    wf_net net;
    wf_optim *optim; /* on a GPU: its moments as they are copied out */
    wf_optim_desc optim_desc;
    wf_schedule schedule;
    float *grad, *statistics; /* CPU: (list.total); (buffers.total) before the update */
    float *in[WF_PHASE_INPUTS];
    uint32_t *networks; /* [most] */
    size_t first;       /* updates of the phases before */
    size_t every;       /* updates between validations; 0: none */
    int judged;         /* networks of a validation's batches */
    double held_out, fitted, started;
} wf_phase_loop;

/* fit->loop for phase `index`, whose optimiser's state is read where it is in the file. */
wf_status wf__phase_loop_create(wf_phase_fit *fit, int index);
void wf__phase_loop_free(wf_phase_loop *loop);
/* To the end of the phase. WF_ERR_INTERRUPTED: the sentence says which checkpoint
 * stands. */
wf_status wf__phase_loop_run(wf_phase_fit *fit);
wf_status wf__phase_loop_gpu(wf_phase_fit *fit);

/* An update has been made: counts it and writes its line of the log where one is due. */
wf_status wf__phase_count(wf_phase_fit *fit, double loss, double norm, double factor);
bool wf__phase_validation_due(const wf_phase_fit *fit, size_t made);
/* Fills loop->in with the batch that validates: 0 held-out networks, 1 fitted ones. */
wf_phase_batch wf__phase_judged_batch(const wf_phase_fit *fit, int which);
/* Writes loop->held_out and loop->fitted to the log. */
wf_status wf__phase_log_validation(wf_phase_fit *fit);
/* All updates are made, or this phase's share of max_seconds is over; it makes one at least. */
bool wf__phase_ended(const wf_phase_fit *fit);
void wf__phase_progress(const wf_phase_fit *fit, wf_meter *meter, double smooth, bool end);
/* Where it stands now, time included. */
wf_phase_state wf__phase_now(const wf_phase_fit *fit);

/* --- phase_fit.c ------------------------------------------------------------------------------ */
/* Writes the file of this state. Touches nothing of the fit, so a thread with a context of its own
 * may call it. */
wf_status wf__phase_store(const wf_phase_fit *fit, wf_ctx *ctx, const wf_phase_state *state);
wf_status wf__phase_diverged(const wf_phase_fit *fit, wf_ctx *ctx, size_t update, const char *what,
                             double value);
wf_status wf__phase_read_optimiser(wf_phase_fit *fit);
