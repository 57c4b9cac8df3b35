#include "models/cuda/field_program.cuh"

extern "C" {
#include "models/cuda/net_cuda.h"
}

struct net_cuda {
    wf_gpu::field_program program;
    wf_net_run run;
};

namespace {

wf_status build(wf_ctx *ctx, const wf_field *field, const wf_net_model *model,
                const wf_field_program_desc *desc, net_cuda *own) {
    wf_net_run *run = &own->run;
    own->program.run.tape = &run->tape;
    WF_TRY(wf_gpu::open_field_program(ctx, &own->program, field, desc));
    wf_field_buffers *at = &own->program.base.buffers;
    at->update = desc->lent.update;
    wf_dropout_key key = {desc->seed, at->update, desc->first};
    auto forward = [&] {
        wf_tape_start(&run->tape, own->program.run.backend, WF_F32, desc->keep);
        wf__net_run_forward(run, model, desc->batch->n_graphs, at->params, at->w, at->t,
                            at->update != NULL ? &key : NULL, at->v);
    };
    auto backward = [&] { wf__net_run_backward(run, at->dv, at->grad, at->dw); };
    return wf_gpu::record_program(ctx, &own->program.run, desc->keep, forward, backward);
}

} // namespace

extern "C" wf_status wf__net_cuda_create(wf_ctx *ctx, const wf_field *field,
                                         const wf_net_model *model,
                                         const wf_field_program_desc *desc,
                                         wf_field_program **out) {
    net_cuda *own;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *own, "a velocity field on the GPU", &own));
    wf_status status = wf_gpu::without_exceptions(
        ctx, "field on the GPU", [&] { return build(ctx, field, model, desc, own); });
    if (status == WF_OK) *out = &own->program.base;
    else wf_field_program_free(&own->program.base);
    return status;
}
