/* update_queue: the training loop when updates run on the GPU, whatever is fitted: a flow
 * (fit_loop_gpu.c) or a phase of another generator (generators/phase_loop_gpu.c).
 *
 * The host keeps some updates enqueued, reads their records in order as they finish, and lets the
 * fit write its log from them. A checkpoint is taken after the last enqueued update: the GPU copies
 * its state out while later updates run, the records up to that boundary give the rest, and a
 * thread writes the file. */
#pragma once

#include "flow/cuda/updates_cuda.h"

/* What a fit does in the loop. `fit` is wf_update_queue.fit. */
typedef struct wf_queue_work {
    /* Is update `update` made, unless something else ends the fit? */
    bool (*wants)(void *fit, size_t update);
    /* Enqueues the next update; waits for one that has been enqueued. */
    wf_status (*enqueue)(void *fit);
    wf_status (*record)(void *fit, size_t update, wf_update_record *out);
    /* Counts the next update and writes its line of the log. */
    wf_status (*count)(void *fit, const wf_update_record *record);
    /* The next update was not made: its loss or gradient's norm is not finite. The error. */
    wf_status (*diverged)(void *fit, const char *what, double value);
    /* Is a validation due behind `made` updates? Then `validate` makes it; nothing is under way. */
    bool (*validation_due)(void *fit, size_t made);
    wf_status (*validate)(void *fit);
    /* Must nothing be under way when `update` is enqueued, because `prepare` changes what updates
     * read? Both NULL: never. prepare: behind each update; WF_ERR_INTERRUPTED: it broke off. */
    bool (*holds)(void *fit, size_t update);
    wf_status (*prepare)(void *fit, size_t enqueued);
    /* Does `between` have work? Then it is called once nothing is under way; also before the first
     * update. Both NULL: never. */
    bool (*pauses)(void *fit);
    wf_status (*between)(void *fit);
    bool (*ended)(void *fit); /* all updates are made, or its time is over */
    /* keep_state: what a checkpoint of this moment has besides the arrays on the GPU. store: writes
     * it, with these arrays; a thread with a context of its own calls it. */
    void (*keep_state)(void *fit);
    wf_status (*store)(void *fit, wf_ctx *ctx);
    void (*progress)(void *fit, wf_meter *meter, double smooth, bool end);
} wf_queue_work;

typedef struct wf_update_queue {
    wf_ctx *ctx;
    const char *path, *doing; /* doing: "training the flow" */
    const wf_queue_work *work;
    void *fit;
    wf_updates_cuda *device;
    size_t updates;         /* of the fit, for the progress line */
    size_t *made;           /* the fit's: how many have been counted */
    bool *validation_waits; /* the fit's: that of this moment comes first */
    bool *saved, *gave_up;  /* the fit's (trainer.h) */
    double save_seconds;
    bool one_by_one; /* each loss decides whether there is a next update */
} wf_update_queue;

/* Updates until the fit has ended, and a checkpoint. WF_ERR_INTERRUPTED, without a sentence:
 * likewise, after the updates that were under way; the checkpoint may have been given up. */
wf_status wf_queue_run(wf_update_queue *queue);
