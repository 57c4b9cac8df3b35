/* backend_cuda: streams, memory, and the table of operations. */
#include "base/cuda/device.h"
#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/fused.cuh"
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace {

cudaStream_t work, side, other;

void *device_take(size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError(); /* out of memory is the caller's to report */
    return NULL;
}

void device_give(void *memory) { cudaFree(memory); }

void device_zero(void *data, size_t bytes) { wf_gpu::start_zero(data, bytes); }

void device_upload(void *to, const void *from, size_t bytes) {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, side);
    cudaStreamSynchronize(side);
}

/* Weights are read where they lie. */
void pack_nothing(const void *, int, int, void *, void *) {}

bool streams_ready() {
    if (work != NULL) return true;
    return wf_cuda_available() &&
           cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) == cudaSuccess &&
           wf_gpu::make_stream(&work, wf_gpu::stream_is_main);
}

/* An operation of the bf16 backend: queued, or a kernel of its own, or the steps of the float one with products in bf16. */
using wf_gpu::op_run;
template <op_run *steps, bool backward> bool run_bf16(const wf_op *op, wf_arena *arena) {
    wf_gpu::bf16_products scope;
    wf_gpu::queue_answer answer = backward ? wf_gpu::queue_backward(op) : wf_gpu::queue_forward(op);
    if (answer != wf_gpu::queue_declined)
        return answer == wf_gpu::queue_taken && wf_gpu::launched();
    wf_gpu::rejoin(wf_gpu::for_parts); /* it may work in the last operation's scratch */
    if (wf_gpu::runs_beside(op, backward)) {
        wf_gpu::launch_scope beside = wf_gpu::queue_beside(op, backward);
        return steps(op, arena);
    }
    wf_gpu::queue_before(op, backward, wf_gpu::fused_claims(op));
    wf_gpu::rejoin_scratch();
    op_run *fused = backward ? wf_gpu::fused_backward(op) : wf_gpu::fused_forward(op);
    return fused != NULL ? fused(op, arena) : steps(op, arena);
}

bool fuses_bf16(const wf_op *op) {
    return op->kind == WF_OP_edge_encoder   ? wf_gpu::edge_encoder_fits(op)
           : op->kind == WF_OP_edge_readout ? wf_gpu::edge_readout_fits(op)
                                            : false;
}

void pack_bf16(const void *weight, int rows, int cols, void *panels, void *) {
    wf_gpu::chain_pack(
        wf_gpu::pack_job{(const float *)weight, (__nv_bfloat16 *)panels, rows, cols});
}

const wf_arena_source device_memory = {device_take, device_give};

} // namespace

namespace wf_gpu {
cudaStream_t stream() { return other != NULL ? other : work; }
bool make_stream(cudaStream_t *stream, int priority) {
    int least = 0, greatest = 0; /* greater ones are smaller numbers */
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess) return false;
    int value = least - priority < greatest ? greatest : least - priority;
    return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, value) == cudaSuccess;
}
void use_stream(cudaStream_t stream) { other = stream; }
const wf_arena_source *device_source() { return &device_memory; }
} // namespace wf_gpu

extern "C" const wf_backend *wf_backend_cuda(void) {
    static const wf_backend table = {
        "cuda f32",
        {
#define X(name, tolerance) wf_gpu::name##_forward,
#include "tensor/ops.def"
#undef X
        },
        {
#define X(name, tolerance) wf_gpu::name##_backward,
#include "tensor/ops.def"
#undef X
        },
        NULL, /* fuses nothing */
        pack_nothing,
        NULL, /* the rate of multiply-adds is not measured */
        &device_memory,
        device_zero,
        device_upload,
    };
    return streams_ready() ? &table : NULL;
}

extern "C" const wf_backend *wf_backend_cuda_bf16(void) {
    static const wf_backend table = {
        "cuda bf16",
        {
#define X(name, tolerance) run_bf16<wf_gpu::name##_forward, false>,
#include "tensor/ops.def"
#undef X
#define X(name, tolerance) NULL,
#include "tensor/layers.def"
#undef X
#define X(name, tolerance) run_bf16<wf_gpu::name##_forward, false>,
#include "tensor/fused.def"
#undef X
        },
        {
#define X(name, tolerance) run_bf16<wf_gpu::name##_backward, true>,
#include "tensor/ops.def"
#undef X
#define X(name, tolerance) NULL,
#include "tensor/layers.def"
#undef X
#define X(name, tolerance) run_bf16<wf_gpu::name##_backward, true>,
#include "tensor/fused.def"
#undef X
        },
        fuses_bf16,
        pack_bf16,
        NULL,
        &device_memory,
        wf_gpu::queue_zero,
        device_upload,
        true, /* octets */
    };
    return streams_ready() ? &table : NULL;
}

extern "C" void *wf_cuda_stream(void) { return work; }

extern "C" void wf_cuda_finish(void) { wf_gpu::queue_finish(); }
extern "C" void wf_cuda_discard(void) { wf_gpu::queue_discard(); }
extern "C" size_t wf_cuda_shared_bytes(void) { return wf_gpu::queue_bytes(); }
extern "C" bool wf_cuda_fuses(const wf_op *op) { return wf_gpu::fused_forward(op) != NULL; }

extern "C" bool wf_cuda_download(void *to, const void *from, size_t bytes) {
    wf_gpu::queue_finish();
    if (bytes > 0 && cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, work) != cudaSuccess)
        return false;
    return cudaStreamSynchronize(work) == cudaSuccess;
}
