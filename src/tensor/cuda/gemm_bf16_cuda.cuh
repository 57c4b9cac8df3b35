/* gemm_bf16_cuda: the products of steps_cuda.cuh on the tensor cores. */
#ifndef WF_TENSOR_CUDA_GEMM_BF16_CUDA_CUH
#define WF_TENSOR_CUDA_GEMM_BF16_CUDA_CUH

#include "tensor/cuda/epilogue_cuda.cuh"

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
