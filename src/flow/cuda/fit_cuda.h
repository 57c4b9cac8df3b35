/* fit_cuda: the updates of a training run on the GPU.
 *
 * One update is one CUDA graph: draw and interpolate (batch_cuda.cu), the field's program forward
 * (models/field.h), the loss, the program backward, clip and optimiser (nn/cuda). The number of the
 * update lies on the device, so the host launches the same graph again and again. With several
 * architectures there is a graph for each composition of a batch (draw.h).
 *
 * G1  The collections lie on the device when they take no more than half of its free memory. Else
 *     the device reads the networks of a batch from host memory. Collections that are left in
 *     their files go to the device piece by piece.
 * G2  Noise is matched on the GPU (align/cuda) where all architectures allow it. Otherwise host
 *     threads find relabellings some updates ahead (match_ahead.h), and the drawing kernel reads
 *     them from host memory. The same holds with more than four architectures and eight threads:
 *     the GPU matches one architecture after the other and idles with few pairs of each (16
 *     architectures, batch 100, on an H200: 8.0 ms an update; 6.6 with 16 host threads, as without
 *     matching). */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "flow/cuda/updates_cuda.h"

typedef struct wf_fit_cuda wf_fit_cuda;

/* Pointers are borrowed; set, arrays and their contents must outlive the object. */
typedef struct wf_fit_cuda_desc {
    const wf_field *field;
    wf_training_set *set; /* its networks are read into memory where the device has no room */
    const wf_fit_desc *fit;
    wf_path path;
    wf_optim_desc optim;
    wf_schedule schedule;
    const wf_fit_arrays *arrays; /* where the run stands; what is copied out comes back here */
    size_t update;               /* the next one */
    wf_pace pace;
    double best_loss;
    bool fast; /* bf16 products and fused kernels */
} wf_fit_cuda_desc;

wf_status wf__fit_cuda_create(wf_ctx *ctx, const wf_fit_cuda_desc *desc, wf_fit_cuda **out);
void wf__fit_cuda_free(wf_fit_cuda *fit); /* waits for the GPU; accepts NULL */
/* State and updates under way: wf__updates_cuda_copy and wf__updates_cuda_copied. */
wf_updates_cuda *wf__fit_cuda_updates(const wf_fit_cuda *fit);

/* Enqueue the next update; waits for its relabellings only. */
wf_status wf__fit_cuda_enqueue(wf_ctx *ctx, wf_fit_cuda *fit);
/* Rows first .. first + count - 1 of a family's weights have changed. No update may be under way;
 * those that follow see them. */
wf_status wf__fit_cuda_renew(wf_ctx *ctx, wf_fit_cuda *fit, int family, size_t first, size_t count);
/* Host threads that match noise go on up to update `end`: they read the networks themselves, which
 * may change after it. No update may be under way. Nothing happens where the GPU matches. */
wf_status wf__fit_cuda_match_until(wf_ctx *ctx, wf_fit_cuda *fit, size_t end);
/* How updates go through the schedule from here on. No update may be under way. */
wf_status wf__fit_cuda_pace(wf_ctx *ctx, wf_fit_cuda *fit, const wf_pace *pace);
/* Waits for update `update`, which has been enqueued; one call for each, in order. */
wf_status wf__fit_cuda_record(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, wf_update_record *out);
/* F of a fixed batch, after all enqueued updates, with the weights that would sample: reads
 * batch->x, t, cond and writes batch->f. which: 0 or 1; each always stands for the same batch. */
wf_status wf__fit_cuda_forward(wf_ctx *ctx, wf_fit_cuda *fit, int which,
                               const wf_flow_batch *batch);
/* The batch of the last update, for tests: x, target (P of its batch), t (batch); each may be
 * NULL. */
wf_status wf__fit_cuda_batch(wf_ctx *ctx, wf_fit_cuda *fit, float *x, float *target, float *t);

WF_END_C
