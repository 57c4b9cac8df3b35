/* validation: the loss of a flow on networks that it is not fitted to.
 *
 * Two fixed batches, each with its own networks and both with the same noise and times: held-out
 * networks, and networks of the collection. Both are judged with the weights that would sample (the
 * EMA where there is one), so the gap between the two losses shows what the flow has memorised and
 * nothing else. Batches are sized for about 1 % of a run's forward passes, and 16 networks at
 * least. */
#pragma once

#include "flow/draw.h"

typedef struct wf_validation {
    size_t every;      /* updates between two; 0: no collection has held-out networks */
    uint32_t *sources; /* (n_sources) those with held-out networks */
    int n_sources;
    wf_path path;
    wf_draw held_out, fitted; /* the two batches */
    double loss, fitted_loss; /* of the last validation; NaN before the first */
    double *by_source;        /* (n_sources) loss of the last validation on held-out networks */
    double lowest;            /* and when it was */
    size_t lowest_at;
    bool keeps_lowest; /* the weights of the lowest loss are what samples */
    bool warned;
} wf_validation;

/* set must outlive it. Nothing is made where there is nothing to validate with. */
wf_status wf_validation_create(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                               const wf_path *path, wf_validation *out);
void wf_validation_free(wf_validation *validation);

/* Is one due after update `update`? The last update of a run always has one. */
bool wf_validation_due(const wf_validation *validation, size_t update, size_t updates);

/* Computes F of a batch, whose x and t are set, into batch->f. which: 0 held-out, 1 fitted. */
typedef wf_status wf_validation_forward(void *arg, int which, wf_flow_batch *batch);
/* Both losses after update `update`; warns once when the gap opens. */
wf_status wf_validation_run(wf_ctx *ctx, wf_validation *validation, size_t update,
                            wf_validation_forward *forward, void *arg);
