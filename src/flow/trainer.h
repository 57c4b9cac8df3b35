/* trainer: what the training loops of the CPU (flow_fit.c) and of the GPU (fit_loop_gpu.c) share:
 * a run and its files. */
#pragma once

#include "flow/cuda/fit_cuda.h"
#include "flow/flow_fit.h"
#include "flow/fresh.h"
#include "flow/validation.h"
#include "nn/optim.h"

typedef struct wf_trainer {
    wf_ctx *ctx;
    const char *path;
    wf_fit_desc desc; /* schedule_updates resolved */
    wf_path path_form;
    wf_schedule schedule;
    wf_optim_desc optim_desc;
    wf_training_set set;
    wf_fresh_pool pool;      /* without sources where nothing is fresh */
    size_t fresh_timed_from; /* update, and when it began */
    double fresh_timed_at;
    wf_draw draw;
    wf_field *field;
    wf_optim *optim;
    wf_fit_arrays arrays;
    float *grad;
    wf_validation validation;
    wf_meta config;
    wf_fit_state state;
    size_t began_at;   /* where this process began */
    bool on_gpu, fast; /* where updates are made; fast: bf16 */
    bool saved;        /* a checkpoint of this configuration stands at path */
    bool gave_up;      /* a stop would have waited too long for a newer one */
    int log;           /* file descriptor; -1 without a log */
    double started, last_save;
    size_t paced_from; /* update, and the run's seconds, of the last look at the pace */
    double paced_at;
} wf_trainer;

/* Is max_seconds over? A run makes one update at least. */
bool wf__trainer_late(const wf_trainer *tr);
/* Is it through its schedule, or has the loss risen as often as patience allows? */
bool wf__trainer_ended(const wf_trainer *tr);
/* Is update `update` made, unless something else ends the run? */
bool wf__trainer_wants(const wf_trainer *tr, size_t update);
/* Is a validation due after that many updates? */
bool wf__trainer_validation_due(const wf_trainer *tr, size_t update);
/* With max_seconds: starts to measure the speed, between updates. */
void wf__trainer_start_pace(wf_trainer *tr);
/* Is it time for wf__trainer_set_pace? */
bool wf__trainer_pace_due(const wf_trainer *tr);
/* Between updates: sets state.pace so that the schedule ends by max_seconds. */
wf_status wf__trainer_set_pace(wf_trainer *tr);
/* The factor of the learning rates in that update. */
double wf__trainer_rate(const wf_trainer *tr, size_t update);
/* The weights that would sample, had the run ended here: the EMA where there is one. */
const float *wf__trainer_sampled(const wf_trainer *tr);
/* The warning of a run that ended before its last update. */
void wf__trainer_cut(const wf_trainer *tr);
/* Seconds of training so far, over all pieces of the run. */
double wf__trainer_seconds(const wf_trainer *tr);
/* The update after tr->state.made has been made: counts it and writes its line of the log where
 * one is due. */
wf_status wf__trainer_count(wf_trainer *tr, double loss, double norm, double factor);
/* WF_ERR_DIVERGED with its sentence, in ctx. */
wf_status wf__trainer_diverged(const wf_trainer *tr, wf_ctx *ctx, size_t update, const char *what,
                               double value);
/* Measures both validation losses after tr->state.made and logs them. With weights = validation
 * the weights of the lowest one are kept; weights and EMA must be up to date then. */
wf_status wf__trainer_validate(wf_trainer *tr, wf_validation_forward *forward, void *arg);
/* The progress line: the smoothed loss, and the last validation's where there is one. */
void wf__trainer_progress(const wf_trainer *tr, wf_meter *meter, double smooth, bool end);
/* Until a validation has chosen weights, those that would sample are kept. Call it before a
 * checkpoint is stored. */
void wf__trainer_fill_best(wf_trainer *tr);
/* Writes tr->arrays as the checkpoint of `state`. Touches nothing of the trainer, so a thread with
 * a context of its own may call it. */
wf_status wf__trainer_store(const wf_trainer *tr, wf_ctx *ctx, const wf_fit_state *state);
/* The sentence of an interruption. */
wf_status wf__trainer_interrupted(const wf_trainer *tr);

/* --- fresh networks (trainer_fresh.c); nothing happens without -----------------------------------
 * Fills the pool as the run's update wants it, and normalises. */
wf_status wf__trainer_fill_pool(wf_trainer *tr);
/* Is one to be made before that update? Then wf_fresh_pool_renew. */
bool wf__trainer_renewal_due(const wf_trainer *tr, size_t update);
/* After an update: chooses how often to renew, counted from update `next`, where that is due. All
 * ranks call it alike. */
wf_status wf__trainer_choose_rate(wf_trainer *tr, size_t next);

/* The loop on the GPU. */
wf_status wf__train_gpu(wf_trainer *tr);
