/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "tensor/cuda/backend_cuda.h"

const wf_backend *wf_backend_cuda(wf_cuda_device *device) { return NULL; }
const wf_backend *wf_backend_cuda_bf16(wf_cuda_device *device) { return NULL; }
bool wf_cuda_finish(wf_cuda_device *device) { return false; }
void wf_cuda_discard(wf_cuda_device *device) {}
size_t wf_cuda_shared_bytes(wf_cuda_device *device) { return 0; }
bool wf_cuda_fuses(const wf_op *op) { return false; }
void wf_cuda_upload(wf_cuda_device *device, void *to, const void *from, size_t bytes) {}
bool wf_cuda_download(wf_cuda_device *device, void *to, const void *from, size_t bytes) {
    return false;
}
