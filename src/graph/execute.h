/* execute: the forward pass of a described network on a tile of examples.
 *
 * A value has one number for each of WF_TILE examples, so all loops run over examples and a weight
 * is a broadcast. Values of a group are stored (unit, row, column, example); a group without an
 * image has one place. One layer after another:
 *   sums        linear: one product; convolution: one product for each place, of its patch; add;
 *               pass
 *   then        bias, norm, activation, pooling
 * Sums run over sources in the order of the parameters, whatever the instruction set. */
#pragma once

#include "base/isa.h"
#include "weft/graph.h"

enum { WF_TILE = 64 };

/* The inner loops, built once for each instruction set (cpu/execute_kernel.c). */
typedef struct wf_execute_kernel {
    /* y (n_dst, tile) += w (n_dst, n_src) x, x (n_src, tile). */
    void (*affine)(const float *w, size_t n_dst, size_t n_src, const float *x, float *y);
    void (*activate)(wf_activation activation, float *x, size_t count);
} wf_execute_kernel;

extern const wf_execute_kernel wf__execute_kernel_base_f32;
#if defined(__x86_64__)
extern const wf_execute_kernel wf__execute_kernel_avx2_f32, wf__execute_kernel_avx512_f32;
#endif

/* Where values lie in a worker's scratch. One executor serves all threads. */
typedef struct wf_executor {
    const wf_graph *graph;
    wf_execute_kernel kernel;
    size_t *place;      /* [n_layers + 1] of a group's values after pooling */
    size_t sums, patch; /* of one layer's values before pooling, and of a convolution's patch */
    size_t floats;      /* of a scratch */
} wf_executor;

/* The graph is borrowed. Close it also after a failure. */
wf_status wf__executor_open(wf_ctx *ctx, const wf_graph *graph, wf_executor *out);
void wf__executor_close(wf_executor *executor);

/* Logits (outputs, tile), in the scratch, of inputs x (inputs, tile) under flat parameters w. */
const float *wf__execute(const wf_executor *executor, const float *w, const float *x,
                         float *scratch);
