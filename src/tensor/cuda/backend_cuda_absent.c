/* A build without CUDA. */
#include "tensor/cuda/backend_cuda.h"

const wf_backend *wf_backend_cuda(void) { return NULL; }
const wf_backend *wf_backend_cuda_bf16(void) { return NULL; }

void *wf_cuda_stream(void) { return NULL; }

bool wf_cuda_download(void *to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return false;
}
