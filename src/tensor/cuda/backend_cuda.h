/* backend_cuda: two tables of operations on a GPU, with the same memory, stream and tensors
 * (float). One is float throughout, with accurate functions. In the other, products round their
 * operands to bf16 and edge operations have fused kernels. Both take any width.
 *
 * Kernels run on the device's stream and on side streams that fork from it and rejoin it. Nothing
 * waits for them on the host, so forward and backward of a tape can be captured as a CUDA graph
 * (relaxed mode). Invariants
 *   C1  sums run in an order fixed by shapes and tables alone; no atomics: the same bits every run
 *   C2  the values of a graph do not depend on its place in the batch nor on its neighbours
 *   C3  columns after a tensor's last are written as zeros (T1), never read
 *   C4  uploads run at once, on a stream of their own: in a capture they are complete before the
 *       graph is launched. No kernel writes to uploaded memory: a tape keeps it in an arena of
 *       its own
 * One thread at a time uses the backends of a device (base/cuda/device.h). The float backend reads
 * weights where they are, so packing does nothing. Panels of the bf16 backend are bf16 copies
 * (rows, columns padded to 16). */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "base/cuda/device.h"
#include "tensor/tensor.h"

/* The backends of a device, which live as long as it does. NULL: out of memory, or no CUDA. */
const wf_backend *wf_backend_cuda(wf_cuda_device *device);
const wf_backend *wf_backend_cuda_bf16(wf_cuda_device *device);
/* The bf16 backend defers operations. wf_cuda_finish launches everything that was deferred; call it
 * before anything else reads what a tape wrote, and before a capture ends. False: out of memory,
 * and the deferred work is dropped. wf_cuda_discard drops it because a tape has failed. */
bool wf_cuda_finish(wf_cuda_device *device);
void wf_cuda_discard(wf_cuda_device *device);
size_t wf_cuda_shared_bytes(wf_cuda_device *device); /* device memory of deferred work */
/* Whether the bf16 backend has a fused kernel for an edge operation of this shape (for tests). */
bool wf_cuda_fuses(const wf_op *op);
/* Copies in at once; does not wait for kernels. */
void wf_cuda_upload(wf_cuda_device *device, void *to, const void *from, size_t bytes);
/* Waits for the device's stream and copies out (0 bytes: only waits); false: the GPU reports a
 * failure. */
bool wf_cuda_download(wf_cuda_device *device, void *to, const void *from, size_t bytes);

WF_END_C
