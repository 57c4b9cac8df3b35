/* stage_checks: the stages of a field's backward on a GPU. Behind a stage its gradients, and those
 * of the stages before it, are those of the whole backward. */
#ifndef WF_STAGE_CHECKS_H
#define WF_STAGE_CHECKS_H

#include "base/cuda/device.h"
#include "models/field.h"
#include "tensor/cuda/backend_cuda.h"
#include "tensor/tape.h"
#include "wf_test.h"

/* What a program is run with, in host memory. */
typedef struct stage_inputs {
    const void *params, *w, *t, *dv;
} stage_inputs;

static inline void stage_start(wf_ctx *ctx, wf_cuda_device *gpu, const wf_field *field,
                               const wf_batch *batch, wf_field_program *program,
                               const stage_inputs *in) {
    const wf_field_buffers *at = &program->buffers;
    wf_cuda_upload(gpu, at->params, in->params, field->params * sizeof(float));
    wf_cuda_upload(gpu, at->w, in->w, batch->n_params * sizeof(float));
    wf_cuda_upload(gpu, at->t, in->t, (size_t)batch->n_graphs * sizeof(float));
    wf_cuda_upload(gpu, at->dv, in->dv, batch->n_params * sizeof(float));
    assert_ok(ctx, wf_field_program_forward(ctx, program));
}

static inline float *stage_gradient(wf_cuda_device *gpu, const wf_field *field,
                                    const wf_field_program *program) {
    float *out = calloc(field->params, sizeof *out);
    assert_true(wf_cuda_download(gpu, out, program->buffers.grad, field->params * sizeof *out));
    return out;
}

/* Returns the number of stages behind which the gradient was not yet whole. */
static inline int check_stages(wf_ctx *ctx, const wf_field *field, wf_field_program_desc desc,
                               const stage_inputs *in) {
    wf_cuda_device *gpu;
    wf_field_program *whole, *parts;
    int *stage = calloc((size_t)field->n_tensors, sizeof *stage), unfinished = 0;
    assert_ok(ctx, wf_ctx_cuda(ctx, &gpu));
    assert_ok(ctx, wf_field_program_create(ctx, field, &desc, &whole));
    stage_start(ctx, gpu, field, desc.batch, whole, in);
    assert_ok(ctx, wf_field_program_backward(ctx, whole));
    float *expected = stage_gradient(gpu, field, whole);
    desc.n_stages = wf_params_stages(field->tensors, field->n_tensors, WF_TAPE_STAGES, stage);
    desc.stages = stage;
    assert_ok(ctx, wf_field_program_create(ctx, field, &desc, &parts));
    stage_start(ctx, gpu, field, desc.batch, parts, in);
    for (int s = 0; s < desc.n_stages; s++) {
        assert_ok(ctx, wf_field_program_backward_stage(ctx, parts, s));
        float *found = stage_gradient(gpu, field, parts);
        for (int k = 0; k < field->n_tensors; k++) {
            const wf_field_tensor *tensor = &field->tensors[k];
            size_t bytes = (size_t)tensor->rows * (size_t)tensor->cols * sizeof(float);
            if (stage[k] <= s &&
                memcmp(found + tensor->offset, expected + tensor->offset, bytes) != 0)
                fail_msg("behind stage %d of %d the gradient of %s, of stage %d, is another", s,
                         desc.n_stages, tensor->name, stage[k]);
        }
        unfinished += memcmp(found, expected, field->params * sizeof *found) != 0;
        free(found);
    }
    wf_field_program_free(parts);
    wf_field_program_free(whole);
    free(expected);
    free(stage);
    return unfinished;
}

#endif
