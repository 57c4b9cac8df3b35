/* split: which networks of a batch this rank works on.
 *
 * The field cuts a batch into parts, by the batch alone, and adds their gradients in order. Ranks
 * take whole contiguous parts, so that the sum over ranks is the same sum in the same order, and
 * the bits do not depend on the number of ranks. Ranks beyond the parts have nothing to do. */
#pragma once

#include "base/comm.h"
#include "models/field.h"

typedef struct wf_split {
    wf_field *field; /* NULL: one process has the whole batch */
    int rank, ranks;
    int active; /* ranks that have parts: 0 .. active-1 */
    int parts;
    int part_start[WF_FIELD_PARTS + 1]; /* first network of each part */
} wf_split;

/* Of a context with several ranks; else the split stays empty. */
wf_split wf_split_start(const wf_ctx *ctx, wf_field *field);
/* For a batch of this shape. */
void wf_split_batch(wf_split *split, const wf_batch *shape);
/* Parts, and networks, of a rank. */
wf_range wf_split_parts(const wf_split *split, int rank);
wf_range wf_split_networks(const wf_split *split, int rank);
/* One meeting of all ranks: statuses as in wf_agree, rank 0's flags for all, and the losses of all
 * networks, of which every rank has its own. */
wf_status wf_split_meet(wf_ctx *ctx, const wf_split *split, wf_status mine, uint32_t *flags,
                        double *loss);
/* Backward from dv (P) unless `mine` is a failure: this rank's status. grad = partial gradients of
 * all parts, added in order, on all ranks, where all of them are well (wf_split_meet says so).
 * summed: a failure of the sum, behind which no rank waits for another. */
wf_status wf_split_backward(wf_ctx *ctx, const wf_split *split, wf_status mine, const void *dv,
                            float *grad, wf_status *summed);
/* After an update that diverged: the first rank whose losses or gradients are not finite, 0 where
 * each by itself is. loss: of all networks. scratch (params of the field). */
wf_status wf_split_find_diverged(wf_ctx *ctx, const wf_split *split, const double *loss,
                                 float *scratch, int *rank);
