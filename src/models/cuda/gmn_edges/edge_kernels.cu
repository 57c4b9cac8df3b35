/* edge_kernels: which edge operations have a fused kernel on the bf16 backend. */
#include "tensor/cuda/fused.cuh"

#include "models/cuda/gmn_lean/lean_fused.cuh"
#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "tensor/cuda/row_products/deferred.cuh"

namespace wf_gpu {

op_function *fused_forward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges: return lean_fused_fits(op) ? lean_fused_forward : NULL;
    case WF_OP_lstar_messages: return lstar_messages_fused_forward(op);
    case WF_OP_lstar_edges: return lstar_edges_fused_forward(op);
    default: return NULL;
    }
}

op_function *fused_backward(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges: return lean_fused_fits(op) ? lean_fused_backward : NULL;
    case WF_OP_lstar_messages: return lstar_messages_fused_backward(op);
    case WF_OP_lstar_edges: return lstar_edges_fused_backward(op);
    default: return NULL;
    }
}

namespace {
/* Whether backward sets all of the gradients of both tables, inputs 2 and 3. */
bool sets_tables(const wf_op *op) {
    const wf_tensor *e = op->in[0], *first = op->in[2], *second = op->in[3];
    bool whole = first->ld == first->cols && second->ld == second->cols;
    switch (op->kind) {
    case WF_OP_lean_edges: /* without messages their columns must be zeroed */
        return whole && lean_fused_fits(op) &&
               (op->out[2] != NULL || op->in[4]->rows == 2 * e->cols);
    case WF_OP_lstar_messages:
    case WF_OP_lstar_edges: return whole && fused_backward(op) != NULL;
    default: return false;
    }
}
} // namespace

bool sets_table(const wf_op *op, const wf_tensor *table) {
    return wanted(table) && sets_tables(op) && cancel_zero(table);
}

mma::weight_rows weight_rows_of(const wf_tensor *weight) {
    bool whole = weight->ld == weight->cols && weight->cols % 16 == 0;
    return mma::weight_rows{data_of(weight), whole ? (const __nv_bfloat16 *)weight->panels : NULL,
                            weight->ld};
}

unsigned fused_overwrites(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_lean_edges:
    case WF_OP_lstar_messages:
    case WF_OP_lstar_edges: return sets_tables(op) ? 1 << 2 | 1 << 3 : 0;
    case WF_OP_edge_readout: return 1;         /* the edges */
    case WF_OP_node_tables: return 1 | 1 << 4; /* h, rows of graphs */
    case WF_OP_lean_nodes:                     /* hb, sums of messages, rows of graphs */
        return 1 << 1 | 1 << 2 | 1 << 3 | 1 << 9;
    default: return 0;
    }
}

} // namespace wf_gpu
