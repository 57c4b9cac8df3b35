/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "base/cuda/device.h"

bool wf_cuda_available(void) { return false; }
const char *wf_cuda_description(void) { return "this build has no CUDA"; }
wf_status wf_cuda_open(wf_ctx *ctx, int gpu, wf_cuda_device **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
wf_cuda_device *wf_cuda_hold(wf_cuda_device *device) { return device; }
void wf_cuda_release(wf_cuda_device *device) {}
void wf_cuda_use(const wf_cuda_device *device) {}
wf_status wf_cuda_wait(wf_ctx *ctx) { return wf_cuda_absent(ctx); }
