#include "base/cuda/device.h"

#include <stdio.h>

extern "C" bool wf_cuda_available(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

extern "C" const char *wf_cuda_description(void) {
    static char text[320];
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
