/* gmn_cuda: records a batch's operations on the CUDA backend and captures them.
 *
 * Creating a program runs forward and backward once as they are, which loads the kernels and shows how much memory they
 * take; then the arena gets just that, and they are recorded again under capture. */
#include "base/cuda/device.cuh"

#include <stdlib.h>

extern "C" {
#include "models/cuda/gmn_cuda.h"
#include "models/gmn_part.h"
#include "tensor/cuda/backend_cuda.h"
}
#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/runtime/runtime.cuh"

#include <vector>

struct gmn_cuda {
    wf_field_program base;
    wf_cuda_device *device; /* held */
    const wf_backend *backend;
    gmn_part part;
    wf_arena own; /* buffers that are not borrowed */
    size_t n_params, n_values, n_graphs, n_cond;
    cudaGraph_t forward_graph, backward_graph;
    cudaGraphExec_t forward, backward;
    wf_gpu::pack_job *packs; /* fast: weights to bf16, device memory */
    int n_packs;
};

namespace {

cudaStream_t stream(const gmn_cuda *program) { return program->device->stream; }

/* --- buffers ------------------------------------------------------------------------------------------------- */
bool own_buffer(gmn_cuda *program, size_t bytes, const void *borrowed, void *place) {
    void *memory = (void *)borrowed;
    if (memory == NULL) {
        memory = wf_arena_alloc(&program->own, bytes + 16);
        if (memory == NULL ||
            cudaMemsetAsync(memory, 0, bytes + 16, stream(program)) != cudaSuccess)
            return false;
    }
    *(void **)place = memory;
    return true;
}

bool make_buffers(gmn_cuda *program, const wf_field_program_desc *desc) {
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

/* Copies of all weights in bf16: their places in floats, their memory, and the list of what is to be copied. */
bool make_panels(gmn_cuda *program, const gmn_layout *layout, size_t *offsets, float **panels) {
    size_t total = 0;
    for (int i = 0; i < layout->count; i++) {
        offsets[i] = total; /* rows are whole sixteens of two bytes */
        total += (size_t)layout->tensors[i].rows * (size_t)wf_pad(layout->tensors[i].cols) / 2;
    }
    *panels = (float *)wf_arena_alloc(&program->own, total * sizeof(float));
    std::vector<wf_gpu::pack_job> jobs;
    for (int i = 0; i < layout->count; i++) {
        const wf_field_tensor *tensor = &layout->tensors[i];
        for (int row = 0; row < tensor->rows; row += wf_gpu::pack_rows) {
            int rows = tensor->rows - row < wf_gpu::pack_rows ? tensor->rows - row
                                                              : (int)wf_gpu::pack_rows;
            jobs.push_back(wf_gpu::pack_job{program->base.buffers.params + tensor->offset +
                                                (size_t)row * (size_t)tensor->cols,
                                            (__nv_bfloat16 *)(*panels + offsets[i]) +
                                                (size_t)row * (size_t)wf_pad(tensor->cols),
                                            rows, tensor->cols});
        }
    }
    size_t bytes = jobs.size() * sizeof jobs[0];
    program->packs = (wf_gpu::pack_job *)wf_arena_alloc(&program->own, bytes);
    if (*panels == NULL || program->packs == NULL) return false;
    wf_cuda_upload(program->device, program->packs, jobs.data(), bytes);
    program->n_packs = (int)jobs.size();
    return true;
}

/* --- recording ----------------------------------------------------------------------------------------------- */
wf_status recorded(wf_ctx *ctx, const gmn_cuda *program) {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation)
        return wf_fail(ctx, WF_ERR_FAILED, "field on the GPU: %s", cudaGetErrorString(error));
    if (program->part.tape.failed || error != cudaSuccess)
        return wf_fail(ctx, WF_ERR_MEMORY,
                       "field: no GPU memory for the activations of the batch; use smaller batches "
                       "or a smaller field");
    return WF_OK;
}

typedef void record_fn(gmn_cuda *program, const gmn_inputs *in);

void end_recording(gmn_cuda *program) {
    bool *failed = &program->part.tape.failed;
    if (*failed) wf_cuda_discard(program->device);
    else *failed = !wf_cuda_finish(program->device);
}
void record_forward(gmn_cuda *program, const gmn_inputs *in) {
    {
        wf_gpu::entered scope(program->backend);
        wf_gpu::chain_pack_all(program->packs, program->n_packs);
    }
    wf__gmn_part_forward(&program->part, in);
    end_recording(program);
}
void record_backward(gmn_cuda *program, const gmn_inputs *in) {
    wf__gmn_part_backward(&program->part, in, program->base.buffers.dv, program->base.buffers.dw);
    end_recording(program);
}

wf_status capture(wf_ctx *ctx, gmn_cuda *program, const gmn_inputs *in, record_fn *record,
                  cudaGraph_t *graph, cudaGraphExec_t *out) {
    WF_CUDA_TRY(ctx, cudaStreamBeginCapture(stream(program), cudaStreamCaptureModeRelaxed));
    record(program, in);
    cudaError_t error = cudaStreamEndCapture(stream(program), graph);
    wf_status status = recorded(ctx, program);
    if (status == WF_OK && error == cudaSuccess) error = cudaGraphInstantiate(out, *graph, 0);
    if (status == WF_OK && error != cudaSuccess)
        status =
            wf_fail(ctx, WF_ERR_FAILED, "field on the GPU: capture: %s", cudaGetErrorString(error));
    return status;
}

wf_status record_all(wf_ctx *ctx, gmn_cuda *program, const gmn_inputs *in) {
    record_forward(program, in);
    WF_TRY(recorded(ctx, program));
    if (in->keep) {
        record_backward(program, in);
        WF_TRY(recorded(ctx, program));
    }
    WF_CUDA_TRY(ctx,
                cudaStreamSynchronize(stream(program))); /* before the tables are uploaded again */
    wf_tape_tighten(&program->part.tape);
    WF_TRY(capture(ctx, program, in, record_forward, &program->forward_graph, &program->forward));
    if (in->keep)
        WF_TRY(capture(ctx, program, in, record_backward, &program->backward_graph,
                       &program->backward));
    return WF_OK;
}

wf_status build(wf_ctx *ctx, const gmn_cuda_desc *own, const wf_field_program_desc *desc,
                gmn_cuda *program) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    program->device = wf_cuda_hold(device);
    const wf_backend *backend = desc->fast ? wf_backend_cuda_bf16(device) : wf_backend_cuda(device);
    if (backend == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "field on the GPU: out of memory");
    program->backend = backend;
    const wf_batch *batch = desc->batch;
    program->own.source = backend->memory;
    program->n_params = own->layout->params;
    program->n_values = batch->n_params;
    program->n_graphs = (size_t)batch->n_graphs;
    program->n_cond = program->n_graphs * (size_t)own->layout->desc.cond_size;
    if (!make_buffers(program, desc))
        return wf_fail(ctx, WF_ERR_MEMORY, "field: no GPU memory for its parameters and the batch");
    size_t *offsets;
    float *panels = program->base.buffers.params; /* not NULL: nothing is packed */
    WF_TRY(
        wf_alloc(ctx, (size_t)own->layout->count, sizeof *offsets, "places of panels", &offsets));
    if (desc->fast && !make_panels(program, own->layout, offsets, &panels)) {
        free(offsets);
        return wf_fail(ctx, WF_ERR_MEMORY, "field: no GPU memory for its parameters in bf16");
    }
    gmn_inputs in = {};
    in.layout = own->layout;
    in.backend = backend;
    in.dtype = WF_F32;
    in.params = program->base.buffers.params;
    in.panel_offset = offsets;
    in.panels = panels;
    in.fourier = own->fourier;
    in.batch = batch;
    in.w = program->base.buffers.w;
    in.t = program->base.buffers.t;
    in.cond = program->base.buffers.cond;
    in.drop = program->base.buffers.drop;
    in.keep = desc->keep;
    in.v = program->base.buffers.v;
    program->part.first_graph = 0;
    program->part.last_graph = batch->n_graphs;
    program->part.grad = program->base.buffers.grad;
    wf_status status = record_all(ctx, program, &in);
    free(offsets);
    return status;
}

void destroy(gmn_cuda *program) {
    if (program == NULL) return;
    if (program->device != NULL) cudaStreamSynchronize(stream(program));
    if (program->forward != NULL) cudaGraphExecDestroy(program->forward);
    if (program->backward != NULL) cudaGraphExecDestroy(program->backward);
    if (program->forward_graph != NULL) cudaGraphDestroy(program->forward_graph);
    if (program->backward_graph != NULL) cudaGraphDestroy(program->backward_graph);
    wf_tape_free(&program->part.tape);
    wf_arena_free(&program->own);
    wf_cuda_release(program->device);
    free(program);
}

wf_status create(wf_ctx *ctx, const gmn_cuda_desc *own, const wf_field_program_desc *desc,
                 gmn_cuda **out) {
    gmn_cuda *program;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *program, "a velocity field on the GPU", &program));
    wf_status status = wf_gpu::without_exceptions(ctx, "field on the GPU",
                                                  [&] { return build(ctx, own, desc, program); });
    if (status == WF_OK) *out = program;
    else destroy(program);
    return status;
}

/* --- fingerprint of a batch ------------------------------------------------------------------------------------ */
/* FNV-1a over numbers; structures are not hashed as bytes, for they have padding. */
void mix(uint64_t *hash, uint64_t value) { *hash = (*hash ^ value) * 1099511628211u; }

uint64_t fingerprint(const wf_batch *batch) {
    uint64_t hash = 14695981039346656037u;
    mix(&hash, (uint64_t)batch->n_graphs);
    mix(&hash, batch->n_nodes);
    mix(&hash, batch->n_edges);
    mix(&hash, batch->n_params);
    for (size_t b = 0; b < batch->n_blocks; b++) {
        const wf_batch_block *k = &batch->blocks[b];
        const size_t values[] = {(size_t)k->graph, (size_t)k->n_src, (size_t)k->n_dst,
                                 (size_t)k->coef,  k->src0,          k->dst0,
                                 k->edge0,         k->param0,        (size_t)k->role};
        for (size_t value : values) mix(&hash, value);
    }
    for (int f = 0; f < batch->n_folds; f++) {
        const wf_batch_fold *k = &batch->folds[f];
        const size_t values[] = {(size_t)k->graph, (size_t)k->n_dst, (size_t)k->n_src, k->has_bias,
                                 k->dst0,          k->weight0,       k->bias0};
        for (size_t value : values) mix(&hash, value);
    }
    for (int r = 0; r < batch->n_node_roles; r++) {
        mix(&hash, (uint64_t)batch->node_roles[r].layer);
        mix(&hash, (uint64_t)batch->node_roles[r].order);
        mix(&hash, (uint64_t)batch->node_roles[r].type);
    }
    for (int r = 0; r < batch->n_edge_roles; r++) {
        mix(&hash, (uint64_t)batch->edge_roles[r].layer);
        mix(&hash, (uint64_t)batch->edge_roles[r].type);
    }
    for (size_t n = 0; n < batch->n_nodes; n++) mix(&hash, batch->node_role[n]);
    return hash;
}

wf_status copy(wf_ctx *ctx, const gmn_cuda *program, void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream(program)));
    return WF_OK;
}

/* The graph as one node of the graph that the stream is capturing. */
wf_status add_child(wf_ctx *ctx, const gmn_cuda *program, cudaGraph_t child) {
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

wf_status replay(wf_ctx *ctx, const gmn_cuda *program, cudaGraph_t graph,
                 cudaGraphExec_t executable) {
    cudaStreamCaptureStatus state;
    wf_cuda_use(program->device);
    WF_CUDA_TRY(ctx, cudaStreamIsCapturing(stream(program), &state));
    if (state == cudaStreamCaptureStatusActive) return add_child(ctx, program, graph);
    WF_CUDA_TRY(ctx, cudaGraphLaunch(executable, stream(program)));
    return WF_OK;
}

gmn_cuda *own_program(wf_field_program *program) { return (gmn_cuda *)program; }

} // namespace

/* --- a program --------------------------------------------------------------------------------------------------- */
extern "C" wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *own,
                                         const wf_field_program_desc *desc,
                                         wf_field_program **out) {
    gmn_cuda *program;
    *out = NULL;
    WF_TRY(create(ctx, own, desc, &program));
    *out = &program->base;
    return WF_OK;
}

extern "C" void wf__gmn_cuda_free(wf_field_program *program) { destroy(own_program(program)); }

extern "C" size_t wf__gmn_cuda_bytes(const wf_field_program *base) {
    const gmn_cuda *program = (const gmn_cuda *)base;
    return wf_tape_bytes(&program->part.tape) + wf_arena_capacity(&program->own) +
           (program->packs != NULL ? wf_cuda_shared_bytes(program->device) : 0);
}

extern "C" wf_status wf__gmn_cuda_forward(wf_ctx *ctx, wf_field_program *base) {
    gmn_cuda *program = own_program(base);
    return replay(ctx, program, program->forward_graph, program->forward);
}

extern "C" wf_status wf__gmn_cuda_backward(wf_ctx *ctx, wf_field_program *base) {
    gmn_cuda *program = own_program(base);
    return replay(ctx, program, program->backward_graph, program->backward);
}

/* --- host arrays ------------------------------------------------------------------------------------------------- */
extern "C" void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) {
    for (int k = 0; k < 2; k++) {
        destroy(cache->program[k]);
        cache->program[k] = NULL;
    }
}

extern "C" double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) {
    const gmn_cuda *program = cache->program[1];
    return program == NULL ? 0 : wf_tape_flops(&program->part.tape);
}

extern "C" wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache,
                                                const gmn_cuda_desc *own, const float *params,
                                                const wf_field_input *input, float *v) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    int which = input->keep ? 1 : 0;
    uint64_t print = fingerprint(input->batch);
    mix(&print, input->fast);
    mix(&print, (uint64_t)(uintptr_t)device);
    if (cache->program[which] == NULL || cache->print[which] != print) {
        destroy(cache->program[which]);
        cache->program[which] = NULL;
        wf_field_program_desc desc = {};
        desc.batch = input->batch;
        desc.keep = desc.want_dw = input->keep;
        desc.fast = input->fast;
        WF_TRY(create(ctx, own, &desc, &cache->program[which]));
        cache->print[which] = print;
    }
    gmn_cuda *program = cache->program[which];
    const wf_field_buffers *to = &program->base.buffers;
    size_t real = sizeof(float);
    WF_TRY(copy(ctx, program, to->params, params, program->n_params * real));
    WF_TRY(copy(ctx, program, to->w, input->w, program->n_values * real));
    WF_TRY(copy(ctx, program, to->t, input->t, program->n_graphs * real));
    if (input->cond != NULL)
        WF_TRY(copy(ctx, program, to->cond, input->cond, program->n_cond * real));
    if (input->drop != NULL) WF_TRY(copy(ctx, program, to->drop, input->drop, program->n_graphs));
    else WF_CUDA_TRY(ctx, cudaMemsetAsync(to->drop, 0, program->n_graphs, stream(program)));
    WF_TRY(replay(ctx, program, program->forward_graph, program->forward));
    WF_TRY(copy(ctx, program, v, to->v, program->n_values * real));
    return wf_cuda_wait(ctx);
}

extern "C" wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache,
                                                 const float *dv, float *grad, float *dw) {
    gmn_cuda *program = cache->program[1];
    const wf_field_buffers *at = &program->base.buffers;
    size_t real = sizeof(float);
    WF_TRY(copy(ctx, program, at->dv, dv, program->n_values * real));
    WF_TRY(replay(ctx, program, program->backward_graph, program->backward));
    WF_TRY(copy(ctx, program, grad, at->grad, program->n_params * real));
    if (dw != NULL) WF_TRY(copy(ctx, program, dw, at->dw, program->n_values * real));
    return wf_cuda_wait(ctx);
}
