#include "base/cuda/device.cuh"

#include "base/comm.h"

#include <stdio.h>

extern "C" bool wf_cuda_available(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

extern "C" const char *wf_cuda_description(void) {
    static thread_local char text[320];
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        snprintf(text, sizeof text, "no GPU found (%s)",
                 error != cudaSuccess ? cudaGetErrorString(error) : "none");
        return text;
    }
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    snprintf(text, sizeof text, "%s, %d SMs, %zu GiB", properties.name,
             properties.multiProcessorCount, properties.totalGlobalMem >> 30);
    return text;
}

bool wf_gpu::make_stream(cudaStream_t *stream, stream_priority priority) {
    int least = 0, greatest = 0; /* greater priorities are smaller numbers */
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess) return false;
    int value = least - priority < greatest ? greatest : least - priority;
    return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, value) == cudaSuccess;
}

extern "C" wf_status wf_cuda_open(wf_ctx *ctx, int gpu, wf_cuda_device **out) {
    int count = 0;
    *out = NULL;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: %s", wf_cuda_description());
    /* More ranks than GPUs on this host: they share them. */
    if (wf_ctx_ranks(ctx) > 1 && gpu >= count) gpu %= count;
    if (gpu < 0 || gpu >= count)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: there is no GPU %d; this machine has %d, counted from 0", gpu,
                       count);
    wf_cuda_device *device = new (std::nothrow) wf_cuda_device();
    if (device == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "device cuda: out of memory");
    device->number = gpu;
    device->holders = 1;
    wf_cuda_use(device);
    if (cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount, gpu) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&device->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               gpu) != cudaSuccess ||
        !wf_gpu::make_stream(&device->stream, wf_gpu::stream_is_main)) {
        wf_cuda_release(device);
        return wf_fail(ctx, WF_ERR_FAILED, "GPU %d: %s", gpu,
                       cudaGetErrorString(cudaGetLastError()));
    }
    *out = device;
    return WF_OK;
}

extern "C" wf_cuda_device *wf_cuda_hold(wf_cuda_device *device) {
    device->holders++;
    return device;
}

extern "C" void wf_cuda_release(wf_cuda_device *device) {
    if (device == NULL || --device->holders > 0) return;
    wf_cuda_use(device);
    delete device->runtime;
    if (device->stream != NULL) cudaStreamDestroy(device->stream);
    delete device;
}

extern "C" void wf_cuda_use(const wf_cuda_device *device) {
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess || current != device->number)
        cudaSetDevice(device->number);
}

extern "C" wf_status wf_cuda_wait(wf_ctx *ctx) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(device->stream));
    return WF_OK;
}
