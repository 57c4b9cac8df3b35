/* checkpoint: a flow in one safetensors file, to go on training from and to sample from.
 *
 * Tensors: "weights.NAME" and, where the fit has them, "ema.NAME", "best.NAME" for every tensor of
 * the field; "optim.first", "optim.second" (flat); "norm.S.mean", "norm.S.std" of family S (one
 * number per block); "principal.S.mean", "principal.S.variance" (inputs), "principal.S.axes"
 * (inputs, inputs); "cond" (sources, K). Metadata: the configuration (flow_config.h),
 * "weft.kind" = "flow", "arch.S", "source.I.*", "weft.generator" (the field's kind), and the
 * state of the run: "step", "seconds", "window.loss", "window.updates", "best.loss", "pace.*".
 * Sampling reads what `kept` says: the EMA where there is one, the last or the best weights.
 * docs/flow.md has the list. */
#pragma once

#include "flow/flow_config.h"
#include "flow/training_set.h"
#include "nn/optim.h"

static const double WF_NO_LOSS = 1e300;

/* Where a run stands. */
typedef struct wf_fit_state {
    size_t made;         /* updates */
    double seconds;      /* of training, over all pieces of the run */
    double window_loss;  /* sum of losses since the last line of the log */
    size_t window_count; /* updates in it */
    double best_loss;    /* lowest of a single batch, with weights = validation of a validation;
                            WF_NO_LOSS before the first */
    double last_loss;    /* of the last update, and how many in a row rose: for patience */
    size_t worse;
    /* With fresh networks: a renewal every so many updates, counted from update fresh_from; 0: not
     * chosen yet. */
    size_t fresh_every, fresh_from;
    wf_pace pace;          /* of the schedule */
    bool validation_waits; /* that of this moment was broken off and comes first */
    const char *kernels; /* what it runs on: "avx2", "cuda bf16"; NULL in a flow that was opened */
} wf_fit_state;

/* The flat arrays of a run, (params) each; ema NULL without EMA, best NULL unless it is what is
 * kept. */
typedef struct wf_fit_arrays {
    float *weights, *ema, *best, *first, *second;
} wf_fit_arrays;

/* config: wf_config_put and wf_checkpoint_sources. */
wf_status wf_checkpoint_sources(wf_ctx *ctx, const wf_training_set *set, wf_meta *config);
wf_status wf_checkpoint_save(wf_ctx *ctx, const char *path, const wf_field *field,
                             const wf_training_set *set, const wf_meta *config,
                             const wf_fit_state *state, const wf_fit_arrays *arrays);
/* Refuses a file of another configuration. The set gets its principal axes, and with fresh
 * networks its normalisation. */
wf_status wf_checkpoint_resume(wf_ctx *ctx, const char *path, const wf_field *field,
                               const wf_meta *config, wf_training_set *set, wf_fit_state *state,
                               wf_fit_arrays *arrays);

struct wf_flow {
    wf_st_file *file;
    void *options; /* of the field's kind */
    wf_fit_desc fit;
    wf_fit_state state;
    wf_training_set set; /* without weights */
    wf_field *field;
    float *params;              /* those that are kept */
    struct wf_sample_cuda *gpu; /* what the last call on a GPU left for the next; NULL: none */
};
/* kind NULL: the one that the file names. */
wf_status wf_flow_open_with(wf_ctx *ctx, const char *path, const wf_field_kind *kind,
                            wf_flow **out);
