/* fused_cuda: which operations of the bf16 backend have a kernel of their own. */
#include "tensor/cuda/fused_cuda.cuh"

#include "tensor/cuda/lean_fused_cuda.cuh"

namespace wf_gpu {

op_run *fused_forward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges: return lean_fused_fits(op) ? lean_fused_forward : NULL;
    default: return NULL;
    }
}

op_run *fused_backward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges:
        return lean_fused_fits(op) && op->in[0]->cols <= 64 ? lean_fused_backward : NULL;
    default: return NULL;
    }
}

} // namespace wf_gpu
