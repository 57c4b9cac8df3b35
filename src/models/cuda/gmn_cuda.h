/* gmn_cuda: the GMN velocity field on a GPU, as two CUDA graphs for one batch.
 *
 * A program is recorded once for a batch: all index tables, activations and gradients lie on the device at fixed places.
 * Running it replays a graph on the stream of tensor/cuda/backend_cuda.h and waits for nothing, so a training loop may
 * put its own kernels before and behind it on that stream. */
#ifndef WF_MODELS_CUDA_GMN_CUDA_H
#define WF_MODELS_CUDA_GMN_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "models/gmn_layout.h"

typedef struct gmn_cuda gmn_cuda;

/* Device memory. params (params of the field), w, v, dv, dw (P), t (B), cond (B, K), drop (B), grad (params). */
typedef struct gmn_cuda_buffers {
    float *params, *w, *t, *cond;
    uint8_t *drop;
    float *v;
    float *dv, *grad, *dw; /* with keep only, dw with want_dw only */
} gmn_cuda_buffers;

/* layout, fourier (host; NULL without) and batch are read while the program is made and not kept. borrowed: buffers that
 * are not NULL are used instead of own ones and must outlive the program; creating it overwrites v, grad and dw, the rest
 * is only read. fast: bf16 products and fused kernels; else float throughout. */
typedef struct gmn_cuda_desc {
    const gmn_layout *layout;
    const float *fourier;
    const wf_batch *batch;
    bool keep, want_dw, fast;
    gmn_cuda_buffers borrowed;
} gmn_cuda_desc;

/* WF_ERR_MEMORY: the activations do not fit on the GPU. Own buffers start as zeros. */
wf_status wf__gmn_cuda_create(wf_ctx *ctx, const gmn_cuda_desc *desc, gmn_cuda **out);
void wf__gmn_cuda_free(gmn_cuda *program); /* waits for the stream; accepts NULL */
const gmn_cuda_buffers *wf__gmn_cuda_buffers(const gmn_cuda *program);
size_t wf__gmn_cuda_bytes(const gmn_cuda *program); /* device memory it holds or shares */
/* Enqueue v = velocity; then grad (and dw) from dv, for a program with keep. */
wf_status wf__gmn_cuda_forward(wf_ctx *ctx, gmn_cuda *program);
wf_status wf__gmn_cuda_backward(wf_ctx *ctx, gmn_cuda *program);
/* The cudaGraph_t behind either, the program's: for a caller who builds a larger graph around it. */
void *wf__gmn_cuda_graph(const gmn_cuda *program, bool backward);
/* Waits for the stream; says what went wrong on the GPU. */
wf_status wf__gmn_cuda_wait(wf_ctx *ctx);

/* --- the same with the caller's arrays in host memory, for models/field.h ---------------------------------------- */
/* One program with and one without keep, remade when the batch or desc->fast is another. Zero-initialised: empty. */
typedef struct gmn_cuda_cache {
    gmn_cuda *program[2];
    uint64_t print[2];
} gmn_cuda_cache;
void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache);
double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache); /* of a step; 0: none recorded */

typedef struct gmn_cuda_arrays {
    const float *params, *w, *t, *cond; /* cond, drop: may be NULL */
    const uint8_t *drop;
    float *v;
} gmn_cuda_arrays;
/* desc->want_dw and desc->borrowed are not read. */
wf_status wf__gmn_cuda_field_forward(wf_ctx *ctx, gmn_cuda_cache *cache, const gmn_cuda_desc *desc,
                                     const gmn_cuda_arrays *arrays);
/* After a forward with keep; dw may be NULL. */
wf_status wf__gmn_cuda_field_backward(wf_ctx *ctx, gmn_cuda_cache *cache, const float *dv,
                                      float *grad, float *dw);

#ifdef __cplusplus
}
#endif
#endif
