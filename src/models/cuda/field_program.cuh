/* field_program: operations of one batch, of a field or of another network, recorded on a CUDA
 * backend and captured as two graphs.
 *
 * All activations and gradients lie on the device at fixed places. Running a program replays a
 * graph on the device's stream and waits for nothing, so that a training loop may put its own
 * kernels before and after it. While that stream is capturing, the program becomes one node of the
 * captured graph. A program belongs to the device of the context it was made with, and holds it.
 * Making one runs forward and backward once as they are, which loads the kernels and shows how much
 * memory they take; then the tape gets just that, and they are recorded again under capture. */
#pragma once

#include "base/cuda/device.cuh"

extern "C" {
#include "models/field.h"
#include "tensor/tape.h"
}

#include <functional>

namespace wf_gpu {

struct recorded_program {
    wf_cuda_device *device; /* held */
    const wf_backend *backend;
    wf_tape *tape; /* the owner's, who records on it */
    wf_arena own;  /* more memory of the owner's, on the device */
    cudaGraph_t forward_graph, backward_graph[WF_TAPE_STAGES]; /* a graph for each stage */
    cudaGraphExec_t forward, backward[WF_TAPE_STAGES];
    int stages;
    /* With several stages, while it is made: the tensors, their stages and gradients. */
    const wf_field_tensor *tensors;
    int n_tensors;
    const int *stage_of;
    const float *grad;
};

/* The device and its backend, of a program that is zero but for the tape. */
wf_status open_program(wf_ctx *ctx, recorded_program *program, bool fast);
/* forward and backward record on program->tape, whose `failed` says when memory ran out. The
 * stages of backward are those of the tape. */
wf_status record_program(wf_ctx *ctx, recorded_program *program, bool keep,
                         const std::function<void()> &forward,
                         const std::function<void()> &backward);
/* Waits for the stream; the struct itself is the caller's. */
void close_program(recorded_program *program);

size_t program_bytes(const recorded_program *program);
wf_status run_forward(wf_ctx *ctx, recorded_program *program);
wf_status run_backward(wf_ctx *ctx, recorded_program *program); /* all stages */
wf_status run_backward_stage(wf_ctx *ctx, recorded_program *program, int stage);

/* What the programs of all kinds of fields have; a kind's own struct begins with it and comes from
 * wf_alloc. */
struct field_program {
    wf_field_program base;
    recorded_program run; /* in run.own: buffers that are not lent */
    size_t n_params, n_values, n_graphs, n_cond;
    bool defers; /* its bytes include the device's memory of deferred work */
};
/* open_program, and the buffers. */
wf_status open_field_program(wf_ctx *ctx, field_program *program, const wf_field *field,
                             const wf_field_program_desc *desc);

} // namespace wf_gpu
