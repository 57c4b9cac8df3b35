/* ode_cuda: the arithmetic of flow/ode.h on states in device memory, on the device's stream. */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "flow/ode.h"

/* Copies host arrays over rows to the device without waiting for the stream: pinned
 * entries, used in rotation. */
typedef struct wf_row_ring {
    char *host, *device;
    size_t bytes; /* of an entry */
    int used;     /* entries handed out so far */
    void *stream; /* the device's */
} wf_row_ring;
wf_status wf__row_ring_open(wf_ctx *ctx, size_t bytes, wf_row_ring *out);
void wf__row_ring_close(wf_row_ring *ring);
/* *out: the data on the device, valid until the 32nd call from now. */
wf_status wf__row_ring_up(wf_ctx *ctx, wf_row_ring *ring, const void *data, size_t bytes,
                          void *out);

/* memory: an arena of the CUDA backend's source. ring: of two numbers for each row, borrowed. */
wf_ode_ops wf__ode_cuda_ops(wf_arena *memory, wf_row_ring *ring);

WF_END_C
