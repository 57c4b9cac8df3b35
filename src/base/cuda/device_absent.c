/* A build without CUDA. No device is ever opened, so the functions on one are never called. */
#include "base/cuda/device.h"

bool wf_cuda_available(void) { return false; }

const char *wf_cuda_description(void) { return "this build has no CUDA"; }

wf_status wf_cuda_open(wf_ctx *ctx, int gpu, wf_cuda_device **out) {
    (void)gpu;
    *out = NULL;
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: %s", wf_cuda_description());
}

wf_cuda_device *wf_cuda_hold(wf_cuda_device *device) { return device; }

void wf_cuda_release(wf_cuda_device *device) { (void)device; }

void wf_cuda_use(const wf_cuda_device *device) { (void)device; }

wf_status wf_cuda_wait(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: %s", wf_cuda_description());
}

int wf_cuda_processors(const wf_cuda_device *device) {
    (void)device;
    return 0;
}

void *wf_cuda_stream(const wf_cuda_device *device) {
    (void)device;
    return NULL;
}
