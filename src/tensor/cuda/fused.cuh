/* fused: which operations of models have a fused kernel on the bf16 backend. The functions declared
 * here are defined beside those kernels (models/cuda/gmn_edges); the linker finds them. */
#pragma once

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "tensor/cuda/runtime/op_kernels.cuh"

namespace wf_gpu {

typedef bool op_function(const wf_op *op, wf_arena *arena);

/* A kernel that does the whole operation, or NULL: then it runs in several passes, with bf16
 * products. The choice depends on widths and options alone, so forward and backward make the same
 * one. */
op_function *fused_forward(const wf_op *op);
op_function *fused_backward(const wf_op *op);
/* Bit i: backward calls cancel_zero (row_products/deferred.cuh) for input i before it writes that
 * gradient. The other gradients are zero or hold something, and backward adds to them. */
unsigned fused_overwrites(const wf_op *op);
/* Whether these operations of fused.def have kernels for these shapes. */
bool edge_encoder_fits(const wf_op *op);
bool edge_readout_fits(const wf_op *op);
bool lean_nodes_take_partials(const wf_op *op); /* wf_lean_nodes_take_partials */
bool node_tables_fits(const wf_op *op);
bool lean_nodes_fits(const wf_op *op);
op_function edge_encoder_forward, edge_encoder_backward, edge_readout_forward,
    edge_readout_backward, node_tables_forward, node_tables_backward, lean_nodes_forward,
    lean_nodes_backward;
/* For backward edge kernels: cancels the memset of a table's gradient. True: set it; false: add to
 * it. */
bool sets_table(const wf_op *op, const wf_tensor *table);
/* A weight whose number of columns is a multiple of 16. */
mma::weight_rows weight_rows_of(const wf_tensor *weight);

} // namespace wf_gpu
