/* fused_cuda: which operations of the bf16 backend have a kernel of their own for their shapes. */
#ifndef WF_TENSOR_CUDA_FUSED_CUDA_CUH
#define WF_TENSOR_CUDA_FUSED_CUDA_CUH

#include "tensor/cuda/mma.cuh"
#include "tensor/cuda/steps_cuda.cuh"

namespace wf_gpu {

typedef bool op_run(const wf_op *op, wf_arena *arena);

/* NULL: none fits; the operation runs step by step, its products on the tensor cores. The choice depends on widths and
 * options alone, so that forward and backward make the same one. */
op_run *fused_forward(const wf_op *op);
op_run *fused_backward(const wf_op *op);
/* Of backward: bit i says that the kernel calls queue_claim (queue_cuda.cuh) for input i before it writes its gradient;
 * the others' are zero or hold something. */
unsigned fused_claims(const wf_op *op);
/* For the kernels of edges, backward: claims the gradient of a table; true: all of it is to be set, false: added to. */
bool sets_table(const wf_op *op, const wf_tensor *table);
/* A weight of whole sixteens of columns. */
mma::weight_rows weight_rows_of(const wf_tensor *weight);

} // namespace wf_gpu
#endif
