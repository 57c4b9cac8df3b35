/* many_rows: launches for row sequences on many rows, made by split_by_op (sequence_split.cuh). */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_MANY_ROWS_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_MANY_ROWS_CUH

#include "tensor/cuda/row_products/row_sequence.cuh"

namespace wf_gpu {

/* Independent products of one direction, without kept operands. */
void start_products(const row_sequence &c);
/* Operations other than products, without kept operands. */
void start_row_ops(const row_sequence &c);

} // namespace wf_gpu
#endif
