/* lstar_fused: the fused kernels for the edges of an lstar block on the bf16 backend:
 * lstar_messages_forward.cu, lstar_edges_forward.cu and their backward. */
#pragma once

#include "tensor/cuda/fused.cuh"

namespace wf_gpu {

/* NULL: no kernel for these widths and options. */
op_function *lstar_messages_fused_forward(const wf_op *op);
op_function *lstar_messages_fused_backward(const wf_op *op);
op_function *lstar_edges_fused_forward(const wf_op *op);
op_function *lstar_edges_fused_backward(const wf_op *op);

/* Kernels read rows of tables and modulation 16 bytes at a time. */
inline bool whole_vectors(const wf_op *op) { return op->column % 4 == 0 && op->in[1]->ld % 4 == 0; }

/* Warpgroups of a CTA, one CTA for each multiprocessor: as many as registers allow without spilling
 * much. */
template <int D> __host__ __device__ constexpr int forward_groups() { return D <= 64 ? 4 : 2; }
template <int D> __host__ __device__ constexpr int back_groups() { return 2; }
/* CTAs: one for each multiprocessor at most. Each warpgroup takes tasks in turn. */
inline unsigned most_blocks(int tasks, int groups) {
    int blocks = (tasks + groups - 1) / groups, most = processor_count();
    return (unsigned)(blocks < most ? blocks : most);
}

/* Whether a CTA may have so much shared memory on this device. */
inline bool shared_memory_fits(size_t bytes) { return (size_t)most_shared_bytes() >= bytes; }

/* Returns function<D, H> for the widths of the operation, where a CTA may have bytes<D, H>(); NULL:
 * no kernel. */
#define WF_RETURN_FOR_WIDTHS(op, bytes, function)                                                  \
    do {                                                                                           \
        int d = (op)->in[0]->cols, h = (op)->in[4]->rows;                                          \
        if (d == 64 && h == 128 && shared_memory_fits(bytes<64, 128>())) return function<64, 128>; \
        if (d == 128 && h == 256 && shared_memory_fits(bytes<128, 256>()))                         \
            return function<128, 256>;                                                             \
        return NULL;                                                                               \
    } while (0)

/* The tensor cores' wide products, or mma.sync (also where there is nothing else): the
 * environment's WEFT_MMA=sync. */
bool use_wgmma();

} // namespace wf_gpu
