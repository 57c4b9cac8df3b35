/* The GPU of a context that lasts as long as the program; NULL: there is none. */
#ifndef GPU_FIXTURE_H
#define GPU_FIXTURE_H

#include "wf_test.h"

#include "tensor/cuda/backend_cuda.h"

static inline wf_cuda_device *test_gpu(void) {
    static wf_ctx *owner;
    wf_cuda_device *device;
    if (owner == NULL) owner = test_ctx();
    return wf_ctx_cuda(owner, &device) == WF_OK ? device : NULL;
}

#endif
