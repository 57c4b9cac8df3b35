/* fused_cuda: which operations of the bf16 backend have a kernel of their own. */
#include "tensor/cuda/fused_cuda.cuh"

#include "tensor/cuda/lean_fused_cuda.cuh"
#include "tensor/cuda/lstar_fused.cuh"

namespace wf_gpu {

op_run *fused_forward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges: return lean_fused_fits(op) ? lean_fused_forward : NULL;
    case WF_OP_lstar_messages: return lstar_messages_fused_forward(op);
    case WF_OP_lstar_edges: return lstar_edges_fused_forward(op);
    default: return NULL;
    }
}

op_run *fused_backward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges: return lean_fused_fits(op) ? lean_fused_backward : NULL;
    case WF_OP_lstar_messages: return lstar_messages_fused_backward(op);
    case WF_OP_lstar_edges: return lstar_edges_fused_backward(op);
    default: return NULL;
    }
}

} // namespace wf_gpu
