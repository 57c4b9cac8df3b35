/* codec_cuda: the encoder of the edges and their readout, one kernel each way. Formulas: wf_edge_encoder and
 * wf_edge_readout in tensor/tape.h. */
#ifndef WF_TENSOR_CUDA_CODEC_CUDA_CUH
#define WF_TENSOR_CUDA_CODEC_CUDA_CUH

#include "tensor/cuda/fused_cuda.cuh"

namespace wf_gpu {

/* Widths of 64 or 128; one value an edge; few roles. */
bool edge_encoder_fits(const wf_op *op);
bool edge_readout_fits(const wf_op *op);
op_run edge_encoder_forward, edge_encoder_backward, edge_readout_forward, edge_readout_backward;

} // namespace wf_gpu
#endif
