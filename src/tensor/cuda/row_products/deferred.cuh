/* deferred: the bf16 backend's operations on rows of nodes and graphs, gathered into few launches.
 *
 * linear, activation, norm, residual and mean do not run when they are recorded. They join the open
 * row sequence for their number of rows (row_sequence.cuh). Weight gradients and sums into tables
 * are collected too (gradient_sums.cuh). Work is launched when something else needs what it writes,
 * when something is about to overwrite what it reads, or at launch_deferred. The memset of a
 * gradient is deferred as well: it is cancelled if the first operation on the gradient overwrites
 * all of it. Invariants
 *   Q1  open sequences do not depend on each other, and sums depend on sequences only: the
 *       writers of a sum's sources are launched before it (asserted)
 *   Q2  within a sequence a row is only read again by operations on the same row
 *   Q3  other kernels and copies call launch_before or launch_deferred before they touch memory */
#pragma once

#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {

/* The deferred work of a device. It takes scratch from `memory`. */
struct deferred_work;
deferred_work *make_deferred(const wf_arena_source *memory);
void free_deferred(deferred_work *work);

/* declined: this operation is not deferred. The caller calls launch_before and runs it. */
enum deferral { declined, deferred, no_memory };
deferral defer_forward(const wf_op *op);
deferral defer_backward(const wf_op *op);
/* Small operations of the encoders that take no scratch: the caller runs them inside beside_scope,
 * on a side stream. */
bool runs_beside(const wf_op *op, bool backward);
launch_scope beside_scope(const wf_op *op, bool backward);
/* Launches everything that an operation depends on which is about to run. Bit i of `overwrites`:
 * its kernel calls cancel_zero for input i. */
void launch_before(const wf_op *op, bool backward, unsigned overwrites);
/* True: the pending memset of t's gradient is cancelled, and the caller must overwrite all of it.
 * False: the caller must add to it. */
bool cancel_zero(const wf_tensor *t);
void defer_zero(void *data, size_t bytes);
/* Launches everything. */
void launch_deferred();
/* Drops everything, because the tape has failed. */
void drop_deferred();
/* device memory in use */
size_t deferred_bytes();

} // namespace wf_gpu
