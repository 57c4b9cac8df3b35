/* gmn_cuda: the GMN velocity field on a GPU: its programs (field_program.cuh), and those on host
 * arrays. */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "models/gmn_layout.h"

/* What the field knows; layout and fourier (host; NULL without) are read while a program is
 * made. */
typedef struct gmn_cuda_desc {
    const wf_field *field;
    const gmn_layout *layout;
    const float *fourier;
} gmn_cuda_desc;

/* As wf_field_kind.record (models/field.h). */
wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *own,
                              const wf_field_program_desc *desc, wf_field_program **out);

/* --- with the caller's arrays in host memory -------------------------------------------------- */
/* One program with and one without keep, remade when the batch or the precision is another.
 * Zero-initialised: empty. */
typedef struct gmn_cuda_cache {
    wf_field_program *program[2];
    uint64_t print[2];
} gmn_cuda_cache;
void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache);
double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache); /* of a step; 0: none recorded */

wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache, const gmn_cuda_desc *own,
                                     const float *params, const wf_field_input *input, float *v);
/* After a forward with keep; dw may be NULL. */
wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache, const float *dv,
                                      float *grad, float *dw);

WF_END_C
