/* backend_cuda: the tables of operations of both CUDA backends. */
#include "tensor/cuda/fused.cuh"
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/runtime/runtime.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

#include <assert.h>

namespace wf_gpu {
namespace {

/* --- float ------------------------------------------------------------------------------------ */
template <op_function *run> bool run_float(const wf_op *op, wf_arena *arena) {
    return on_device(op->backend, [&] { return run(op, arena); });
}

void zero(const wf_backend *self, void *data, size_t bytes) {
    entered scope(self);
    start_zero(data, bytes);
}

void upload(const wf_backend *self, void *to, const void *from, size_t bytes) {
    entered scope(self);
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, here().uploads);
    cudaStreamSynchronize(here().uploads);
}

/* Weights are read where they lie. */
void pack_nothing(const wf_backend *, const void *, int, int, void *, void *) {}

/* --- bf16 ------------------------------------------------------------------------------------- */
/* While it lives, products round their operands to bf16 and use the tensor cores. */
struct bf16_scope {
    bf16_scope() { here().bf16_products = true; }
    ~bf16_scope() { here().bf16_products = false; }
};

/* Those of nodes between the edges' operations take none, and need not wait for a side stream that
 * adds up the edges' weight gradients in theirs. */
bool takes_scratch(const wf_op *op) {
    return op->kind != WF_OP_node_tables && op->kind != WF_OP_lean_nodes;
}

/* An operation is deferred, or has a fused kernel, or runs as on the float backend with bf16
 * products. */
bool run_in_bf16(const wf_op *op, wf_arena *arena, op_function *steps, bool backward) {
    bf16_scope scope;
    deferral answer = backward ? defer_backward(op) : defer_forward(op);
    if (answer != declined) return answer == deferred && launched();
    bool scratched = takes_scratch(op);
    if (scratched) rejoin(for_partial_sums); /* op may use the scratch of the last operation */
    if (runs_beside(op, backward)) {
        launch_scope beside = beside_scope(op, backward);
        return steps(op, arena);
    }
    launch_before(op, backward, fused_overwrites(op));
    if (scratched) rejoin_scratch();
    op_function *fused = backward ? fused_backward(op) : fused_forward(op);
    return fused != NULL ? fused(op, arena) : steps(op, arena);
}

template <op_function *steps, bool backward> bool run_bf16(const wf_op *op, wf_arena *arena) {
    return on_device(op->backend, [&] { return run_in_bf16(op, arena, steps, backward); });
}

bool fuses_bf16(const wf_op *op) {
    return on_device(op->backend, [&] {
        switch (op->kind) {
        case WF_OP_edge_encoder: return edge_encoder_fits(op);
        case WF_OP_edge_readout: return edge_readout_fits(op);
        case WF_OP_lean_edges: return lean_nodes_take_partials(op);
        case WF_OP_node_tables: return node_tables_fits(op);
        case WF_OP_lean_nodes: return lean_nodes_fits(op);
        default: return false;
        }
    });
}

void pack_bf16(const wf_backend *self, const void *weight, int rows, int cols, void *panels,
               void *) {
    entered scope(self);
    pack_weight(weight_copy{(const float *)weight, (__nv_bfloat16 *)panels, rows, cols});
}

/* If memory is short the memset is not deferred. */
void zero_bf16(const wf_backend *self, void *data, size_t bytes) {
    if (!on_device(self, [&] { return defer_zero(data, bytes), true; })) zero(self, data, bytes);
}

} // namespace

void fill_tables(runtime *own) {
    wf_backend table = {
        "cuda f32",
        {
#define X(name, tolerance) run_float<name##_forward>,
#include "tensor/ops.def"
#undef X
        },
        {
#define X(name, tolerance) run_float<name##_backward>,
#include "tensor/ops.def"
#undef X
        },
        NULL, /* fuses nothing */
        pack_nothing,
        NULL, /* the rate of multiply-adds is not measured */
        &own->memory,
        zero,
        upload,
        own->device,
    };
    own->float_table = table;
    const wf_backend bf16 = {
        "cuda bf16",
        {
#define X(name, tolerance) run_bf16<name##_forward, false>,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
        },
        {
#define X(name, tolerance) run_bf16<name##_backward, true>,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
        },
        fuses_bf16,
        pack_bf16,
        NULL,
        &own->memory,
        zero_bf16,
        upload,
        own->device,
        own->device->processors,
        24,            /* weight gradients are launched late and still read the last of them */
        few_rows_most, /* few rows run on side streams: reusing memory would make them wait */
    };
    own->bf16_table = bf16;
}

} // namespace wf_gpu

using namespace wf_gpu;

static runtime *find_runtime(wf_cuda_device *device) {
    try {
        return device == NULL ? NULL : runtime_of(device);
    } catch (...) {
        return NULL;
    }
}

extern "C" const wf_backend *wf_backend_cuda(wf_cuda_device *device) {
    runtime *own = find_runtime(device);
    return own == NULL ? NULL : &own->float_table;
}

extern "C" const wf_backend *wf_backend_cuda_bf16(wf_cuda_device *device) {
    runtime *own = find_runtime(device);
    return own == NULL ? NULL : &own->bf16_table;
}

extern "C" bool wf_cuda_finish(wf_cuda_device *device) {
    const wf_backend *backend = wf_backend_cuda_bf16(device);
    if (backend != NULL && on_device(backend, [] { return launch_deferred(), true; })) return true;
    wf_cuda_discard(device);
    return false;
}

extern "C" void wf_cuda_discard(wf_cuda_device *device) {
    const wf_backend *backend = wf_backend_cuda_bf16(device);
    if (backend != NULL) on_device(backend, [] { return drop_deferred(), true; });
}

extern "C" size_t wf_cuda_shared_bytes(wf_cuda_device *device) {
    size_t bytes = 0;
    const wf_backend *backend = wf_backend_cuda_bf16(device);
    if (backend != NULL) on_device(backend, [&] { return bytes = deferred_bytes(), true; });
    return bytes;
}

extern "C" bool wf_cuda_fuses(const wf_op *op) {
    return on_device(op->backend, [&] { return fused_forward(op) != NULL; });
}

extern "C" void wf_cuda_upload(wf_cuda_device *device, void *to, const void *from, size_t bytes) {
    const wf_backend *backend = wf_backend_cuda(device);
    if (backend != NULL) upload(backend, to, from, bytes);
}

extern "C" bool wf_cuda_download(wf_cuda_device *device, void *to, const void *from, size_t bytes) {
    if (!wf_cuda_finish(device)) return false;
    cudaStream_t work = device->stream;
    if (bytes > 0 && cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, work) != cudaSuccess)
        return false;
    return cudaStreamSynchronize(work) == cudaSuccess;
}
