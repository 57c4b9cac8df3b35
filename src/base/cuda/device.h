/* device: a GPU as a context uses it.
 *
 * A context owns one device object. Everything a GPU keeps between calls belongs to it: streams,
 * scratch memory, work that waits to be launched. So contexts on different threads or different
 * GPUs share nothing. An object that may outlive the context (a recorded program, the arenas of a
 * flow) holds the device with wf_cuda_hold. Invariant: one thread at a time uses a device; it is
 * asserted where work is launched (tensor/cuda/runtime). */
#pragma once

#include "base/status.h"

WF_BEGIN_C

typedef struct wf_cuda_device wf_cuda_device;

bool wf_cuda_available(void);
/* "NVIDIA H200, 132 SMs, 139 GiB" of the first GPU, or why there is none. Valid until the thread's
 * next call. */
const char *wf_cuda_description(void);

/* The context's GPU (wf_ctx_desc.gpu), opened at the first call. It becomes the calling thread's
 * current CUDA device, so that plain CUDA calls after this one reach it. Fails when there is no
 * such GPU. */
wf_status wf_ctx_cuda(wf_ctx *ctx, wf_cuda_device **out);

/* GPU number `gpu`, held once. On failure *out is NULL and the result says why. */
wf_status wf_cuda_open(wf_ctx *ctx, int gpu, wf_cuda_device **out);
wf_cuda_device *wf_cuda_hold(wf_cuda_device *device);
void wf_cuda_release(wf_cuda_device *device); /* accepts NULL; the last one closes it */
/* Makes it the calling thread's current CUDA device. */
void wf_cuda_use(const wf_cuda_device *device);
/* Waits for the stream of the context's GPU; says what went wrong there. */
wf_status wf_cuda_wait(wf_ctx *ctx);

WF_END_C
