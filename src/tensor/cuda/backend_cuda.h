/* backend_cuda: two operation tables on a GPU, same memory, stream and tensors (float), any widths: one in float with
 * accurate functions, one whose products round their operands to bf16 and whose edge operations have fused kernels.
 *
 * All kernels go to one stream and nothing waits for it, so that a tape's forward and backward can be captured as a
 * CUDA graph (relaxed mode). Invariants
 *   C1  sums run in an order fixed by shapes and tables alone; no atomics: the same bits every run
 *   C2  a graph's values do not depend on its place in the batch nor on its neighbours
 *   C3  columns behind a tensor's last are written as zeros (T1), never read
 *   C4  uploads go through a stream of their own, at once: in a captured graph they are done before it ever runs. So no
 *       upload may follow, on its tape, an operation whose forward takes scratch (edge features, means, the edges of
 *       blocks, the velocity do): the scratch that a replay writes could be the uploaded memory
 * One thread at a time may use the backend. The float one reads weights as they lie: packing does nothing; panels of the
 * bf16 one are copies (rows, columns padded to 16) in bf16. */
#ifndef WF_TENSOR_CUDA_BACKEND_CUDA_H
#define WF_TENSOR_CUDA_BACKEND_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "tensor/tensor.h"

/* NULL: no GPU here, or a build without CUDA. */
const wf_backend *wf_backend_cuda(void);
const wf_backend *wf_backend_cuda_bf16(void);
/* The cudaStream_t of all kernels; a backend has been asked for. */
void *wf_cuda_stream(void);
/* The bf16 backend gathers operations: launch all that wait, or drop them when the tape has failed. Before anything else
 * reads what a tape wrote, and before a capture ends. Its bytes of device memory beside the tapes'. */
void wf_cuda_finish(void);
void wf_cuda_discard(void);
size_t wf_cuda_shared_bytes(void);
/* Whether the bf16 backend has kernels of its own for the edges of a block of this shape: tests ask, so that they know what ran. */
bool wf_cuda_fuses(const wf_op *op);
/* Waits for the stream and copies out (0 bytes: only waits); false: the GPU reports a failure. */
bool wf_cuda_download(void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
