#include "models/cuda/field_program.cuh"

#include <stdlib.h>

#include "tensor/cuda/backend_cuda.h"

namespace wf_gpu {
namespace {

cudaStream_t stream(const recorded_program *program) { return program->device->stream; }

wf_status recorded(wf_ctx *ctx, const recorded_program *program) {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation)
        return wf_fail(ctx, WF_ERR_FAILED, "GPU: %s", cudaGetErrorString(error));
    if (program->tape->failed || error != cudaSuccess)
        return wf_fail(ctx, WF_ERR_MEMORY,
                       "no GPU memory for the activations of the batch; use smaller batches or a "
                       "smaller model");
    return WF_OK;
}

void end_recording(recorded_program *program) {
    if (program->tape->failed) wf_cuda_discard(program->device);
    else program->tape->failed = !wf_cuda_finish(program->device);
}

wf_status begin_capture(wf_ctx *ctx, const recorded_program *program) {
    WF_CUDA_TRY(ctx, cudaStreamBeginCapture(stream(program), cudaStreamCaptureModeRelaxed));
    return WF_OK;
}

wf_status end_capture(wf_ctx *ctx, recorded_program *program, cudaGraph_t *graph,
                      cudaGraphExec_t *out) {
    end_recording(program);
    cudaError_t error = cudaStreamEndCapture(stream(program), graph);
    wf_status status = recorded(ctx, program);
    if (status == WF_OK && error == cudaSuccess) error = cudaGraphInstantiate(out, *graph, 0);
    if (status == WF_OK && error != cudaSuccess)
        status = wf_fail(ctx, WF_ERR_FAILED, "GPU: capture: %s", cudaGetErrorString(error));
    return status;
}

wf_status capture(wf_ctx *ctx, recorded_program *program, const std::function<void()> &record,
                  cudaGraph_t *graph, cudaGraphExec_t *out) {
    WF_TRY(begin_capture(ctx, program));
    record();
    return end_capture(ctx, program, graph, out);
}

struct stage_capture {
    wf_ctx *ctx;
    recorded_program *program;
    wf_status status;
};

int stage_of(const void *user, const void *grad) {
    const recorded_program *program = ((const stage_capture *)user)->program;
    if (grad < program->grad) return -1;
    size_t place = (size_t)((const float *)grad - program->grad);
    int tensor = wf_params_find(program->tensors, program->n_tensors, place);
    return tensor < 0 ? -1 : program->stage_of[tensor];
}

/* One graph ends and the next one begins. */
void stage_is_over(void *user, int stage) {
    stage_capture *own = (stage_capture *)user;
    recorded_program *program = own->program;
    if (own->status != WF_OK || stage == program->stages - 1) return;
    own->status =
        end_capture(own->ctx, program, &program->backward_graph[stage], &program->backward[stage]);
    if (own->status == WF_OK) own->status = begin_capture(own->ctx, program);
    if (own->status != WF_OK) program->tape->failed = true; /* nothing more is recorded */
}

wf_status capture_backward(wf_ctx *ctx, recorded_program *program,
                           const std::function<void()> &record) {
    stage_capture own = {ctx, program, WF_OK};
    int last = program->stages - 1;
    if (last > 0)
        program->tape->stages = wf_tape_stages{program->stages, stage_of, stage_is_over, &own};
    wf_status status =
        capture(ctx, program, record, &program->backward_graph[last], &program->backward[last]);
    program->tape->stages = wf_tape_stages{};
    return own.status != WF_OK ? own.status : status;
}

/* The graph as one node of the graph that the stream is capturing. */
wf_status add_child(wf_ctx *ctx, const recorded_program *program, cudaGraph_t child) {
    cudaStreamCaptureStatus state;
    cudaGraph_t graph;
    const cudaGraphNode_t *behind;
    size_t n;
    cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
    WF_CUDA_TRY(ctx,
                cudaStreamGetCaptureInfo(stream(program), &state, NULL, &graph, &behind, NULL, &n));
    WF_CUDA_TRY(ctx, cudaGraphAddChildGraphNode(&node, graph, behind, n, child));
    WF_CUDA_TRY(ctx, cudaStreamUpdateCaptureDependencies(stream(program), &node, NULL, 1,
                                                         cudaStreamSetCaptureDependencies));
#else
    WF_CUDA_TRY(ctx,
                cudaStreamGetCaptureInfo_v2(stream(program), &state, NULL, &graph, &behind, &n));
    WF_CUDA_TRY(ctx, cudaGraphAddChildGraphNode(&node, graph, behind, n, child));
    WF_CUDA_TRY(ctx, cudaStreamUpdateCaptureDependencies(stream(program), &node, 1,
                                                         cudaStreamSetCaptureDependencies));
#endif
    return WF_OK;
}

wf_status replay(wf_ctx *ctx, const recorded_program *program, cudaGraph_t graph,
                 cudaGraphExec_t executable) {
    cudaStreamCaptureStatus state;
    wf_cuda_use(program->device);
    WF_CUDA_TRY(ctx, cudaStreamIsCapturing(stream(program), &state));
    if (state == cudaStreamCaptureStatusActive) return add_child(ctx, program, graph);
    WF_CUDA_TRY(ctx, cudaGraphLaunch(executable, stream(program)));
    return WF_OK;
}

} // namespace

wf_status open_program(wf_ctx *ctx, recorded_program *program, bool fast) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    program->device = wf_cuda_hold(device);
    program->stages = 1;
    program->backend = fast ? wf_backend_cuda_bf16(device) : wf_backend_cuda(device);
    if (program->backend == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "GPU: out of memory");
    program->own.source = program->backend->memory;
    return WF_OK;
}

wf_status record_program(wf_ctx *ctx, recorded_program *program, bool keep,
                         const std::function<void()> &forward,
                         const std::function<void()> &backward) {
    forward();
    end_recording(program);
    WF_TRY(recorded(ctx, program));
    if (keep) {
        backward();
        end_recording(program);
        WF_TRY(recorded(ctx, program));
    }
    WF_CUDA_TRY(ctx,
                cudaStreamSynchronize(stream(program))); /* before the tables are uploaded again */
    wf_tape_tighten(program->tape);
    WF_TRY(capture(ctx, program, forward, &program->forward_graph, &program->forward));
    if (keep) WF_TRY(capture_backward(ctx, program, backward));
    return WF_OK;
}

void close_program(recorded_program *program) {
    if (program->device != NULL) cudaStreamSynchronize(stream(program));
    if (program->forward != NULL) cudaGraphExecDestroy(program->forward);
    if (program->forward_graph != NULL) cudaGraphDestroy(program->forward_graph);
    for (int k = 0; k < program->stages; k++) {
        if (program->backward[k] != NULL) cudaGraphExecDestroy(program->backward[k]);
        if (program->backward_graph[k] != NULL) cudaGraphDestroy(program->backward_graph[k]);
    }
    if (program->tape != NULL) wf_tape_free(program->tape);
    wf_arena_free(&program->own);
    wf_cuda_release(program->device);
}

size_t program_bytes(const recorded_program *program) {
    return wf_tape_bytes(program->tape) + wf_arena_capacity(&program->own);
}

wf_status run_forward(wf_ctx *ctx, recorded_program *program) {
    return replay(ctx, program, program->forward_graph, program->forward);
}
wf_status run_backward_stage(wf_ctx *ctx, recorded_program *program, int stage) {
    return replay(ctx, program, program->backward_graph[stage], program->backward[stage]);
}
wf_status run_backward(wf_ctx *ctx, recorded_program *program) {
    for (int k = 0; k < program->stages; k++) WF_TRY(run_backward_stage(ctx, program, k));
    return WF_OK;
}

/* --- of a field ------------------------------------------------------------------------------- */

namespace {

bool own_buffer(field_program *program, size_t bytes, const void *borrowed, void *place) {
    void *memory = (void *)borrowed;
    if (memory == NULL) {
        memory = wf_arena_alloc(&program->run.own, bytes + 16);
        if (memory == NULL ||
            cudaMemsetAsync(memory, 0, bytes + 16, stream(&program->run)) != cudaSuccess)
            return false;
    }
    *(void **)place = memory;
    return true;
}

bool make_buffers(field_program *program, const wf_field_program_desc *desc) {
    const wf_field_buffers *given = &desc->lent;
    wf_field_buffers *own = &program->base.buffers;
    size_t real = sizeof(float), params = program->n_params * real;
    size_t values = program->n_values * real, graphs = program->n_graphs * real;
    bool ok = own_buffer(program, params, given->params, &own->params) &&
              own_buffer(program, values, given->w, &own->w) &&
              own_buffer(program, graphs, given->t, &own->t) &&
              own_buffer(program, program->n_cond * real, given->cond, &own->cond) &&
              own_buffer(program, program->n_graphs, given->drop, &own->drop) &&
              own_buffer(program, values, given->v, &own->v);
    if (ok && desc->keep)
        ok = own_buffer(program, values, given->dv, &own->dv) &&
             own_buffer(program, params, given->grad, &own->grad);
    if (ok && desc->keep && desc->want_dw) ok = own_buffer(program, values, given->dw, &own->dw);
    return ok;
}

} // namespace

wf_status open_field_program(wf_ctx *ctx, field_program *program, const wf_field *field,
                             const wf_field_program_desc *desc) {
    WF_TRY(open_program(ctx, &program->run, desc->fast));
    program->n_params = field->params;
    program->n_values = desc->batch->n_params;
    program->n_graphs = (size_t)desc->batch->n_graphs;
    program->n_cond = program->n_graphs * (size_t)field->cond_size;
    if (!make_buffers(program, desc))
        return wf_fail(ctx, WF_ERR_MEMORY, "field: no GPU memory for its parameters and the batch");
    if (desc->n_stages > 1) {
        program->run.stages = desc->n_stages;
        program->run.stage_of = desc->stages;
        program->run.tensors = field->tensors;
        program->run.n_tensors = field->n_tensors;
        program->run.grad = program->base.buffers.grad;
    }
    return WF_OK;
}

} // namespace wf_gpu

using wf_gpu::field_program;

extern "C" wf_status wf_field_program_forward(wf_ctx *ctx, wf_field_program *program) {
    return wf_gpu::run_forward(ctx, &((field_program *)program)->run);
}
extern "C" wf_status wf_field_program_backward(wf_ctx *ctx, wf_field_program *program) {
    return wf_gpu::run_backward(ctx, &((field_program *)program)->run);
}
extern "C" wf_status wf_field_program_backward_stage(wf_ctx *ctx, wf_field_program *program,
                                                     int stage) {
    return wf_gpu::run_backward_stage(ctx, &((field_program *)program)->run, stage);
}
extern "C" size_t wf_field_program_bytes(const wf_field_program *program) {
    const field_program *own = (const field_program *)program;
    return wf_gpu::program_bytes(&own->run) +
           (own->defers ? wf_cuda_shared_bytes(own->run.device) : 0);
}
extern "C" void wf_field_program_free(wf_field_program *program) {
    if (program == NULL) return;
    wf_gpu::close_program(&((field_program *)program)->run);
    free(program);
}
