/* backend_cuda: two operation tables on a GPU, same memory, stream and tensors (float), any widths: one in float with
 * accurate functions, one whose products round their operands to bf16 and whose edge operations have fused kernels.
 *
 * All kernels go to the device's stream and to streams that fork from it and join it again, and nothing waits for them. So a
 * tape's forward and backward can be captured as a CUDA graph (relaxed mode). Invariants
 *   C1  sums run in an order fixed by shapes and tables alone; no atomics: the same bits every run
 *   C2  a graph's values do not depend on its place in the batch nor on its neighbours
 *   C3  columns behind a tensor's last are written as zeros (T1), never read
 *   C4  uploads go through a stream of their own, at once: in a captured graph they are done before it ever runs. No kernel
 *       writes where they lie: a tape keeps them in an arena of their own
 * One thread at a time uses the backends of a device (base/cuda/device.h). The float one reads weights as they lie: packing
 * does nothing; panels of the bf16 one are copies (rows, columns padded to 16) in bf16. */
#ifndef WF_TENSOR_CUDA_BACKEND_CUDA_H
#define WF_TENSOR_CUDA_BACKEND_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/cuda/device.h"
#include "tensor/tensor.h"

/* A device's backends, which live as long as it does. NULL: out of memory, or a build without CUDA. */
const wf_backend *wf_backend_cuda(wf_cuda_device *device);
const wf_backend *wf_backend_cuda_bf16(wf_cuda_device *device);
/* The bf16 backend gathers operations: launch all that wait, or drop them when the tape has failed. Before anything else
 * reads what a tape wrote, and before a capture ends. False: out of memory; what waited is dropped. */
bool wf_cuda_finish(wf_cuda_device *device);
void wf_cuda_discard(wf_cuda_device *device);
size_t wf_cuda_shared_bytes(
    wf_cuda_device *device); /* of device memory that it works in, beside the tapes' */
/* Whether the bf16 backend has kernels of its own for the edges of a block of this shape: tests ask, so that they know what ran. */
bool wf_cuda_fuses(const wf_op *op);
/* Copies in at once; does not wait for kernels. */
void wf_cuda_upload(wf_cuda_device *device, void *to, const void *from, size_t bytes);
/* Waits for the device's stream and copies out (0 bytes: only waits); false: the GPU reports a failure. */
bool wf_cuda_download(wf_cuda_device *device, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
