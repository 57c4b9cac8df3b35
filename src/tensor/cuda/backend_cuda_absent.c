/* A build without CUDA. */
#include "tensor/cuda/backend_cuda.h"

const wf_backend *wf_backend_cuda(void) { return NULL; }
const wf_backend *wf_backend_cuda_bf16(void) { return NULL; }

void *wf_cuda_stream(void) { return NULL; }

void wf_cuda_finish(void) {}
void wf_cuda_discard(void) {}
size_t wf_cuda_shared_bytes(void) { return 0; }

bool wf_cuda_fuses(const wf_op *op) {
    (void)op;
    return false;
}
bool wf_cuda_download(void *to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return false;
}
