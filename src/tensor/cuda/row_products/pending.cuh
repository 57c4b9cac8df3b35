/* pending: what an operation needs to be deferred (defer_ops.cu, deferred.cu). */
#pragma once

#include "tensor/cuda/row_products/gradient_sums.cuh"
#include "tensor/cuda/row_products/sequence_split.cuh"

namespace wf_gpu {

/* The memory of an operation: what it reads in its own row, what it reads in any row, what it
 * writes. */
struct footprint {
    std::vector<range> rows, tables, writes;
    void read(const wf_tensor *t) {
        if (t != NULL) rows.push_back(data_range(t));
    }
    void look(const wf_tensor *t) {
        if (t != NULL) tables.push_back(data_range(t));
    }
};

/* The open sequence for this number of rows, with room for `ops` more operations and for kept
 * operands of `columns` (kept_pitch). Whatever f depends on is launched first. An operation on
 * nodes that waits for a sequence of graphs starts a new sequence, so that the operations before it
 * need not wait. */
open_sequence &join(int rows, int ops, int columns, const footprint &f);

/* The caller is about to overwrite all of r. If a memset of r is pending, cancels it and returns
 * true. */
bool cancel_zero_of(const range &r);

/* Launches what reads r, and the sums that write it. */
void launch_users(const range &r);
wf_arena *deferred_scratch();

/* A sum of very many rows into few targets is launched at once, in spans (fp32/row_sums.cuh). */
bool by_spans(const table_sum &entry);
/* Defer a sum into a table, or the gradients of a linear layer's weight and bias (either may be
 * NULL) from its input x. False: out of memory. */
bool add_sum(table_sum entry, const std::vector<range> &sources);
bool add_weight(const wf_op *op, const wf_tensor *x, const wf_tensor *weight,
                const wf_tensor *bias);
/* The same for operands that are no tensors, in whole rows; those of the weight and bias and their
 * scratch are set here. */
bool add_weight_of(weight_gradient entry, const range (&sources)[2], const wf_tensor *weight,
                   const wf_tensor *bias);

} // namespace wf_gpu
