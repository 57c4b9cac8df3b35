/* weft/bench.h: measured speed of parts of the library, for `weft bench`.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_BENCH_H
#define WEFT_BENCH_H

#include "weft/field.h"

WF_BEGIN_C

typedef struct wf_bench_field_result {
    size_t params;                 /* of the field */
    double forward, backward;      /* seconds per batch, best of the repeats */
    double sample;                 /* a forward that keeps nothing, seconds per batch, best */
    double step_best, step_median; /* forward + backward, seconds per network */
    /* Of the matrix products executed, recomputation included, in the best step. */
    double gigaflops;
} wf_bench_field_result;

/* One training step of a field (random weights in all parameters) on `batch` networks of
 * architecture `arch`, with the context's threads. A first run is not counted.
 * desc is borrowed and not NULL. Returns WF_OK, WF_ERR_USAGE (batch, repeats, the description),
 * WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_bench_field(wf_ctx *ctx, const wf_field_desc *desc, const char *arch, int batch,
                                int repeats, wf_bench_field_result *out);

typedef struct wf_bench_gpu_result {
    double forward,
        step;        /* seconds per batch: forward alone, forward + backward; best of the rounds */
    double velocity; /* seconds for the velocity of `velocities` networks */
    size_t bytes;    /* of GPU memory that the step holds */
} wf_bench_gpu_result;

/* The same on the GPU, replayed from GPU memory as a training loop does it. bf16: products in bf16
 * and fused kernels, else float throughout. desc->fold_rows > 0 folds the first layer of arch.
 * Returns WF_OK, WF_ERR_USAGE (batch, velocities, the description), WF_ERR_UNSUPPORTED (there is no
 * GPU) or WF_ERR_MEMORY. */
WF_API wf_status wf_bench_field_gpu(wf_ctx *ctx, const wf_field_desc *desc, const char *arch,
                                    int batch, int velocities, bool bf16, wf_bench_gpu_result *out);

/* Single-precision multiply-adds that all threads of the context reach together on registers alone,
 * in GFLOP/s. */
WF_API double wf_bench_fma_peak(wf_ctx *ctx);

WF_END_C

#endif
