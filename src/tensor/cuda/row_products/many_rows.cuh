/* many_rows: chains of many rows, step by step (sequence_split.cuh: split_steps). */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_MANY_ROWS_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_MANY_ROWS_CUH

#include "tensor/cuda/row_products/row_sequence.cuh"

namespace wf_gpu {

/* Steps that are all products of one direction, none of which reads or writes what another writes; no slots. */
void wide_launch(const chain &c);
/* Steps of which none is a product; no slots. */
void rows_launch(const chain &c);

} // namespace wf_gpu
#endif
