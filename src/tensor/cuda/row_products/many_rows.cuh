/* many_rows: launches for row sequences on many rows, made by split_by_op (sequence_split.cuh). */
#pragma once

#include "tensor/cuda/row_products/row_sequence.cuh"

namespace wf_gpu {

/* Independent products of one direction, without kept operands. */
void start_products(const row_sequence &c);
/* Operations other than products, without kept operands. */
void start_row_ops(const row_sequence &c);

} // namespace wf_gpu
