/* sample_cuda: sampling a batch of networks (flow_sample.c) with states, noise and field on the
 * GPU.
 *
 * The object holds the field's parameters and its program for a full batch. For a smaller batch it
 * computes the unused rows as well and ignores them. Values are those of the CPU's loops up to the
 * field's rounding: these files do not contract multiply and add. */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

#include "flow/objective.h"
#include "flow/ode.h"
#include "weft/align.h"

typedef struct wf_sample_cuda wf_sample_cuda;

typedef struct wf_sample_cuda_desc {
    const wf_field *field; /* borrowed; it has a program for the GPU */
    const float *params;   /* host; read while the object is made */
    const wf_graph *graph; /* read while the object is made */
    const wf_batch *shape; /* of `batch` such networks; likewise */
    int batch, cond_size;
    bool fast;
} wf_sample_cuda_desc;

wf_status wf__sample_cuda_create(wf_ctx *ctx, const wf_sample_cuda_desc *desc,
                                 wf_sample_cuda **out);
void wf__sample_cuda_free(wf_sample_cuda *sample); /* accepts NULL */
/* Whether it was made for such a graph, batch and precision. */
bool wf__sample_cuda_serves(const wf_sample_cuda *sample, const wf_graph *graph, int batch,
                            bool fast);

/* One call of wf_flow_sample. */
typedef struct wf_sample_cuda_call {
    wf_path path;
    wf_axes axes;      /* of the graph's parameters; variances in host memory */
    const float *cond; /* K numbers, host; NULL: none */
    bool want_cond, want_null;
    float guidance;
    uint64_t seed;
} wf_sample_cuda_call;
wf_status wf__sample_cuda_begin(wf_ctx *ctx, wf_sample_cuda *sample,
                                const wf_sample_cuda_call *call);

double *wf__sample_cuda_states(wf_sample_cuda *sample); /* device: (batch, n_params) */
const wf_ode_ops *wf__sample_cuda_ops(const wf_sample_cuda *sample);
wf_ode_fn wf__sample_cuda_velocity; /* arg: the object */
/* States of rows 0 .. n-1 become the noise of networks first .. first+n-1. */
wf_status wf__sample_cuda_noise(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n);
/* Moves states back to time t of their path with fresh noise of that cycle, matched where match is
 * not NULL. */
wf_status wf__sample_cuda_corrupt(wf_ctx *ctx, wf_sample_cuda *sample, size_t first, int n,
                                  uint32_t cycle, double t, const wf_match_desc *match);
/* out (n, n_params) host = states in float. */
wf_status wf__sample_cuda_fetch(wf_ctx *ctx, wf_sample_cuda *sample, int n, float *out);

WF_END_C
