/* gmn_cuda: the GMN's programs (field_program.cuh), and such programs with the caller's arrays in
 * host memory. */
#include "models/cuda/field_program.cuh"

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
    wf_gpu::field_program program;
    gmn_part part;
    wf_gpu::weight_copy *packs; /* fast: weights to bf16, device memory */
    int n_packs;
};

namespace {

/* Copies of all weights in bf16: their places in floats, their memory, and the list of what is to
 * be copied. */
bool make_panels(gmn_cuda *own, const gmn_layout *layout, size_t *offsets, float **panels) {
    size_t total = 0;
    for (int i = 0; i < layout->count; i++) {
        offsets[i] = total; /* rows are whole sixteens of two bytes */
        total += (size_t)layout->tensors[i].rows * (size_t)wf_pad(layout->tensors[i].cols) / 2;
    }
    *panels = (float *)wf_arena_alloc(&own->program.run.own, total * sizeof(float));
    std::vector<wf_gpu::weight_copy> copies;
    for (int i = 0; i < layout->count; i++) {
        const wf_field_tensor *tensor = &layout->tensors[i];
        for (int row = 0; row < tensor->rows; row += wf_gpu::pack_rows) {
            int rows = tensor->rows - row < wf_gpu::pack_rows ? tensor->rows - row
                                                              : (int)wf_gpu::pack_rows;
            copies.push_back(wf_gpu::weight_copy{own->program.base.buffers.params + tensor->offset +
                                                     (size_t)row * (size_t)tensor->cols,
                                                 (__nv_bfloat16 *)(*panels + offsets[i]) +
                                                     (size_t)row * (size_t)wf_pad(tensor->cols),
                                                 rows, tensor->cols});
        }
    }
    size_t bytes = copies.size() * sizeof copies[0];
    own->packs = (wf_gpu::weight_copy *)wf_arena_alloc(&own->program.run.own, bytes);
    if (*panels == NULL || own->packs == NULL) return false;
    wf_cuda_upload(own->program.run.device, own->packs, copies.data(), bytes);
    own->n_packs = (int)copies.size();
    own->program.defers = true;
    return true;
}

void record_forward(gmn_cuda *own, const gmn_inputs *in) {
    {
        wf_gpu::entered scope(own->program.run.backend);
        wf_gpu::pack_weights(own->packs, own->n_packs);
    }
    wf__gmn_part_forward(&own->part, in);
}

wf_status build(wf_ctx *ctx, const gmn_cuda_desc *field, const wf_field_program_desc *desc,
                gmn_cuda *own) {
    wf_gpu::field_program *program = &own->program;
    program->run.tape = &own->part.tape;
    WF_TRY(wf_gpu::open_field_program(ctx, program, field->field, desc));
    const wf_field_buffers *buffers = &program->base.buffers;
    const gmn_layout *layout = field->layout;
    size_t *offsets;
    float *panels = buffers->params; /* not NULL: nothing is packed */
    WF_TRY(wf_alloc(ctx, (size_t)layout->count, sizeof *offsets, "places of panels", &offsets));
    if (desc->fast && !make_panels(own, layout, offsets, &panels)) {
        free(offsets);
        return wf_fail(ctx, WF_ERR_MEMORY, "field: no GPU memory for its parameters in bf16");
    }
    gmn_inputs in = {};
    in.layout = layout;
    in.backend = program->run.backend;
    in.dtype = WF_F32;
    in.params = buffers->params;
    in.panel_offset = offsets;
    in.panels = panels;
    in.fourier = field->fourier;
    in.batch = desc->batch;
    in.w = buffers->w;
    in.t = buffers->t;
    in.cond = buffers->cond;
    in.drop = buffers->drop;
    in.dropout.seed = desc->seed;
    in.dropout.update = desc->lent.update;
    in.dropout.row = desc->first;
    in.keep = desc->keep;
    in.v = buffers->v;
    own->part.first_graph = 0;
    own->part.last_graph = desc->batch->n_graphs;
    own->part.grad = buffers->grad;
    wf_status status = wf_gpu::record_program(
        ctx, &program->run, desc->keep, [&] { record_forward(own, &in); },
        [&] { wf__gmn_part_backward(&own->part, &in, buffers->dv, buffers->dw); });
    free(offsets);
    return status;
}

/* --- fingerprint of a batch ------------------------------------------------------------------- */
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

wf_status copy(wf_ctx *ctx, const gmn_cuda *own, void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                         own->program.run.device->stream));
    return WF_OK;
}

} // namespace

/* --- a program -------------------------------------------------------------------------------- */
extern "C" wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *field,
                                         const wf_field_program_desc *desc,
                                         wf_field_program **out) {
    gmn_cuda *own;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *own, "a velocity field on the GPU", &own));
    wf_status status = wf_gpu::without_exceptions(ctx, "field on the GPU",
                                                  [&] { return build(ctx, field, desc, own); });
    if (status == WF_OK) *out = &own->program.base;
    else wf_field_program_free(&own->program.base);
    return status;
}

/* --- host arrays ------------------------------------------------------------------------------ */
extern "C" void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) {
    for (int k = 0; k < 2; k++) {
        wf_field_program_free(cache->program[k]);
        cache->program[k] = NULL;
    }
}

extern "C" double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) {
    const gmn_cuda *own = (const gmn_cuda *)cache->program[1];
    return own == NULL ? 0 : wf_tape_flops(&own->part.tape);
}

extern "C" wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache,
                                                const gmn_cuda_desc *field, const float *params,
                                                const wf_field_input *input, float *v) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    int which = input->keep ? 1 : 0;
    uint64_t print = fingerprint(input->batch);
    mix(&print, input->fast);
    mix(&print, (uint64_t)(uintptr_t)device);
    if (cache->program[which] == NULL || cache->print[which] != print) {
        wf_field_program_free(cache->program[which]);
        cache->program[which] = NULL;
        wf_field_program_desc desc = {};
        desc.batch = input->batch;
        desc.keep = desc.want_dw = input->keep;
        desc.fast = input->fast;
        WF_TRY(wf__gmn_cuda_create(ctx, field, &desc, &cache->program[which]));
        cache->print[which] = print;
    }
    gmn_cuda *own = (gmn_cuda *)cache->program[which];
    const wf_gpu::field_program *program = &own->program;
    const wf_field_buffers *to = &program->base.buffers;
    size_t real = sizeof(float);
    WF_TRY(copy(ctx, own, to->params, params, program->n_params * real));
    WF_TRY(copy(ctx, own, to->w, input->w, program->n_values * real));
    WF_TRY(copy(ctx, own, to->t, input->t, program->n_graphs * real));
    if (input->cond != NULL) WF_TRY(copy(ctx, own, to->cond, input->cond, program->n_cond * real));
    if (input->drop != NULL) WF_TRY(copy(ctx, own, to->drop, input->drop, program->n_graphs));
    else
        WF_CUDA_TRY(ctx,
                    cudaMemsetAsync(to->drop, 0, program->n_graphs, program->run.device->stream));
    WF_TRY(wf_gpu::run_forward(ctx, &own->program.run));
    WF_TRY(copy(ctx, own, v, to->v, program->n_values * real));
    return wf_cuda_wait(ctx);
}

extern "C" wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache,
                                                 const float *dv, float *grad, float *dw) {
    gmn_cuda *own = (gmn_cuda *)cache->program[1];
    const wf_gpu::field_program *program = &own->program;
    const wf_field_buffers *at = &program->base.buffers;
    size_t real = sizeof(float);
    WF_TRY(copy(ctx, own, at->dv, dv, program->n_values * real));
    WF_TRY(wf_gpu::run_backward(ctx, &own->program.run));
    WF_TRY(copy(ctx, own, grad, at->grad, program->n_params * real));
    if (dw != NULL) WF_TRY(copy(ctx, own, dw, at->dw, program->n_values * real));
    return wf_cuda_wait(ctx);
}
