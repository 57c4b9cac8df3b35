/* deferred: the bf16 backend's operations on rows of nodes and graphs, gathered into few launches.
 *
 * linear, activation, norm, residual and mean are not run when they are recorded. Their steps join the open chain of their
 * height (row_sequence.cuh); weight gradients and sums towards tables become jobs (gradient_sums.cuh). A chain or a job is
 * launched when somebody else needs what it writes, is about to overwrite what it reads, or when the queue is finished.
 * Zeroing a gradient waits too: where the first step into it writes all of it, nothing needs to be zeroed.
 * Invariants
 *   Q1  open chains and jobs do not depend on each other, but for jobs on chains: a job's sources are launched before it
 *   Q2  within a chain only the same row of the same matrix is written and read again
 *   Q3  what touches memory by another way (kernels of other operations, copies) calls queue_before or queue_finish first */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_DEFERRED_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_DEFERRED_CUH

#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {

/* What waits on a device; it works in `memory`. */
struct deferred_work;
deferred_work *make_deferred(const wf_arena_source *memory);
void free_deferred(deferred_work *work);

/* Declined: not of a kind or shape for the queue; call queue_before and run it. */
enum queue_answer { queue_declined, queue_taken, queue_no_memory };
queue_answer queue_forward(const wf_op *op);
queue_answer queue_backward(const wf_op *op);
/* An operation that takes no scratch, of the encoders: run it while the scope of queue_beside lives. */
bool runs_beside(const wf_op *op, bool backward);
launch_scope queue_beside(const wf_op *op, bool backward);
/* Launches what an operation that is run at once depends on. Bit i of `claims`: it calls queue_claim for input i. */
void queue_before(const wf_op *op, bool backward, unsigned claims);
/* True: the gradient of t would be zero, is not, and must be written as a whole; false: it must be added to. */
bool queue_claim(const wf_tensor *t);
void queue_zero(void *data, size_t bytes);
/* Launches everything. */
void queue_finish();
/* Drops everything: the tape has failed. */
void queue_discard();
/* Device memory that jobs work in. */
size_t queue_bytes();

} // namespace wf_gpu
#endif
