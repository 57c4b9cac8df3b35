/* gemm_bf16: the products of steps.cuh on the tensor cores. */
#ifndef WF_TENSOR_CUDA_TENSOR_CORES_GEMM_BF16_CUH
#define WF_TENSOR_CUDA_TENSOR_CORES_GEMM_BF16_CUH

#include "tensor/cuda/fp32/epilogue.cuh"

namespace wf_gpu {

void forward_product_bf16(const operands &o, const into_linear &to);
void forward_product_bf16(const operands &o, const into_unit &to);
void forward_product_bf16(const operands &o, const into_residual &to);
void input_product_bf16(const operands &o, const into_linear &to);
void input_product_bf16(const operands &o, const into_product &to);
/* A' B over rows in chunks: partial sums (chunk, m, ld). */
void weight_chunks_bf16(const operands &o, const into_chunk &to, int chunk, int chunks);

} // namespace wf_gpu
#endif
