/* reference: the reference side of every comparison, and its cache. */
#pragma once

#include "base/status.h"
#include "weft/align.h"
#include "weft/eval.h"
#include "zoo/zoo_pieces.h"

/* Largest collection whose networks are all compared with each other by their errors. */
enum { WF_REFERENCE_PAIRED = 50000 };

/* N networks of P parameters, a cloud of m of them, masks of `words` words. Without labelled data
 * score, errors, iou and iou_nearest are NULL. */
struct wf_reference {
    const wf_zoo *zoo;      /* borrowed */
    const wf_dataset *data; /* borrowed; NULL: none */
    wf_eval_desc desc;
    size_t n, m, words;
    float *weights;        /* (N, P); NULL: too many, they are read when they are needed */
    float *score;          /* [N] accuracy or ROC AUC */
    uint64_t *errors;      /* (N, words) */
    float *iou;            /* [N] leave-one-out; NaN outside the cloud above WF_REFERENCE_PAIRED */
    uint32_t *iou_nearest; /* [N] */
    uint32_t *cloud;       /* [m] which networks */
    float *wcs;            /* [m] leave-one-out */
    uint32_t *wcs_nearest; /* [m] */
    double scales[3];
    char notes[512];
};

/* wf_wcs_max of the queries against the whole collection; both results are wanted. */
wf_status wf__reference_match(wf_ctx *ctx, const wf_reference *ref, const float *queries, size_t nq,
                              const int64_t *skip, const wf_match_desc *desc, float *best,
                              uint32_t *which);
/* Hands all networks of the collection to `visit`, in order and as large as memory allows. */
wf_status wf__reference_each(wf_ctx *ctx, const wf_reference *ref, wf_zoo_visit *visit, void *user);
/* Fills score, errors, iou, wcs and their neighbours; false when there is no usable cache.
 * reference->cloud is set. */
bool wf__cloud_read(wf_ctx *ctx, wf_reference *reference);
/* Rank 0 has read the cache for all. */
wf_status wf__cloud_share(wf_ctx *ctx, wf_reference *reference);
/* A cache that cannot be written is a warning, not a failure. */
void wf__cloud_write(wf_ctx *ctx, const wf_reference *reference);
