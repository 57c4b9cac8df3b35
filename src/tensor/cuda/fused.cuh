/* fused: what the bf16 backend asks the kernels of models. The functions declared here are defined beside those kernels
 * (models/cuda/gmn_edges) and found when the library is linked. */
#ifndef WF_TENSOR_CUDA_FUSED_CUH
#define WF_TENSOR_CUDA_FUSED_CUH

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "tensor/cuda/runtime/op_kernels.cuh"

namespace wf_gpu {

typedef bool op_run(const wf_op *op, wf_arena *arena);

/* NULL: none fits; the operation runs step by step, its products on the tensor cores. The choice depends on widths and
 * options alone, so that forward and backward make the same one. */
op_run *fused_forward(const wf_op *op);
op_run *fused_backward(const wf_op *op);
/* Of backward: bit i says that the kernel calls queue_claim (deferred.cuh) for input i before it writes its gradient;
 * the others' are zero or hold something. */
unsigned fused_claims(const wf_op *op);
/* Operations of fused.def: whether they have kernels for these shapes. */
bool edge_encoder_fits(const wf_op *op);
bool edge_readout_fits(const wf_op *op);
op_run edge_encoder_forward, edge_encoder_backward, edge_readout_forward, edge_readout_backward;
/* For the kernels of edges, backward: claims the gradient of a table; true: all of it is to be set, false: added to. */
bool sets_table(const wf_op *op, const wf_tensor *table);
/* A weight of whole sixteens of columns. */
mma::weight_rows weight_rows_of(const wf_tensor *weight);

} // namespace wf_gpu
#endif
