/* bench_field: how fast a training step of a field is here, and how fast this machine
 * multiplies. */
#include "weft/bench.h"

#include "base/cuda/device.h"
#include "base/pool.h"
#include "base/random.h"
#include "models/cuda/gmn_cuda.h"
#include "models/field_kinds.h"
#include "tensor/cuda/backend_cuda.h"

#include <stdlib.h>

enum { peak_rounds = 1 << 21, peak_repeats = 5, most_repeats = 1000 };

static void peak_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    double *flops = arg;
    flops[chunk] = wf_backend_cpu(WF_F32)->fma_rounds(peak_rounds);
}

double wf_bench_fma_peak(wf_ctx *ctx) {
    enum { most_threads = 256 };
    double flops[most_threads], best = 0;
    int threads = wf_ctx_threads(ctx);
    if (threads > most_threads) threads = most_threads;
    for (int r = 0; r < peak_repeats; r++) {
        double start = wf_seconds(), sum = 0;
        wf_parallel(ctx, (size_t)threads, peak_chunk, flops);
        double seconds = wf_seconds() - start;
        for (int t = 0; t < threads; t++) sum += flops[t];
        if (sum / seconds > best) best = sum / seconds;
    }
    return best * 1e-9;
}

typedef struct bench {
    wf_graph *graph;
    wf_arena arena;
    wf_batch batch;
    wf_field *field;
    float *params, *w, *t, *cond, *v, *dv, *grad;
    double *steps;
} bench;

static void bench_free(bench *b) {
    wf_graph_free(b->graph);
    wf_arena_free(&b->arena);
    wf_field_free(b->field);
    float *arrays[] = {b->params, b->w, b->t, b->cond, b->v, b->dv, b->grad};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(b->steps);
}

static wf_status bench_open(wf_ctx *ctx, const wf_field_desc *desc, const char *arch, int n,
                            int repeats, bench *b) {
    WF_TRY(wf_graph_parse(ctx, arch, "relu", desc->fold_rows > 0 ? WF_GRAPH_FOLD_INPUT : 0,
                          &b->graph));
    const wf_graph **graphs = wf_arena_alloc(&b->arena, (size_t)n * sizeof *graphs);
    if (graphs == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "bench: no memory for %d networks", n);
    for (int i = 0; i < n; i++) graphs[i] = b->graph;
    WF_TRY(wf_batch_build(ctx, &b->arena, graphs, n, &b->batch));
    WF_TRY(wf_field_create(ctx, &wf__field_gmn, desc, b->graph, WF_F32, &b->field));
    size_t params = b->field->params, many = b->batch.n_params, nets = (size_t)n;
    WF_TRY(wf_alloc(ctx, params, sizeof(float), "parameters", &b->params));
    WF_TRY(wf_alloc(ctx, params, sizeof(float), "gradients", &b->grad));
    WF_TRY(wf_alloc(ctx, many, sizeof(float), "networks", &b->w));
    WF_TRY(wf_alloc(ctx, many, sizeof(float), "velocities", &b->v));
    WF_TRY(wf_alloc(ctx, many, sizeof(float), "velocities", &b->dv));
    WF_TRY(wf_alloc(ctx, nets, sizeof(float), "times", &b->t));
    WF_TRY(
        wf_alloc(ctx, nets * (size_t)(desc->cond_size + 1), sizeof(float), "conditions", &b->cond));
    WF_TRY(wf_alloc(ctx, (size_t)repeats, sizeof(double), "timings", &b->steps));
    wf_field_init(b->field, 1, b->params);
    for (size_t i = 0; i < params; i++) b->params[i] += 1e-3f * (float)(i % 17); /* no zero start */
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_NOISE, 0);
    wf_rng_normals(&rng, b->w, many);
    for (size_t i = 0; i < many; i++) b->dv[i] = 1e-3f;
    for (int i = 0; i < n; i++) b->t[i] = ((float)i + 0.5f) / (float)n;
    return WF_OK;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static wf_status bench_run(wf_ctx *ctx, bench *b, bool conditional, int repeats,
                           wf_bench_field_result *out) {
    wf_field_input input = {.batch = &b->batch, .w = b->w, .t = b->t};
    if (conditional) input.cond = b->cond;
    for (int r = -1; r < repeats; r++) {
        if (wf_interrupted(ctx)) return wf_fail(ctx, WF_ERR_INTERRUPTED, "bench: interrupted");
        double start = wf_seconds();
        input.keep = false;
        WF_TRY(wf_field_forward(ctx, b->field, b->params, &input, b->v));
        double sampled = wf_seconds();
        input.keep = true;
        WF_TRY(wf_field_forward(ctx, b->field, b->params, &input, b->v));
        double middle = wf_seconds();
        WF_TRY(wf_field_backward(ctx, b->field, b->dv, b->grad, NULL));
        double end = wf_seconds();
        if (r < 0) continue;
        b->steps[r] = end - sampled;
        if (r == 0 || sampled - start < out->sample) out->sample = sampled - start;
        if (r == 0 || middle - sampled < out->forward) out->forward = middle - sampled;
        if (r == 0 || end - middle < out->backward) out->backward = end - middle;
    }
    qsort(b->steps, (size_t)repeats, sizeof *b->steps, ascending);
    double nets = (double)b->batch.n_graphs;
    out->params = b->field->params;
    out->step_best = b->steps[0] / nets;
    out->step_median = b->steps[repeats / 2] / nets;
    out->gigaflops = b->field->kind->flops(b->field) / b->steps[0] * 1e-9;
    return WF_OK;
}

wf_status wf_bench_field(wf_ctx *ctx, const wf_field_desc *desc, const char *arch, int batch,
                         int repeats, wf_bench_field_result *out) {
    *out = (wf_bench_field_result){.params = 0};
    if (batch < 1 || repeats < 1 || repeats > most_repeats)
        return wf_fail(ctx, WF_ERR_USAGE, "bench: %d networks, %d repeats; take 1 to %d repeats",
                       batch, repeats, most_repeats);
    bench b = {.graph = NULL};
    wf_status status = bench_open(ctx, desc, arch, batch, repeats, &b);
    if (status == WF_OK) status = bench_run(ctx, &b, desc->cond != WF_COND_NONE, repeats, out);
    bench_free(&b);
    return status;
}

/* --- on the GPU ------------------------------------------------------------------------------- */
enum { gpu_repeats = 20, gpu_rounds = 3 };
static const double gpu_round_seconds = 0.1;

/* One program and numbers of about the right size everywhere: zeros would be faster than real
 * data. */
static wf_status gpu_open(wf_ctx *ctx, const bench *b, bool keep, bool bf16,
                          wf_field_program **out) {
    wf_field_program_desc desc = {.batch = &b->batch, .keep = keep, .fast = bf16};
    WF_TRY(wf_field_program_create(ctx, b->field, &desc, out));
    const wf_field_buffers *to = &(*out)->buffers;
    wf_cuda_device *gpu;
    WF_TRY(wf_ctx_cuda(ctx, &gpu));
    wf_cuda_upload(gpu, to->params, b->params, b->field->params * sizeof(float));
    wf_cuda_upload(gpu, to->w, b->w, b->batch.n_params * sizeof(float));
    wf_cuda_upload(gpu, to->t, b->t, (size_t)b->batch.n_graphs * sizeof(float));
    if (keep) wf_cuda_upload(gpu, to->dv, b->dv, b->batch.n_params * sizeof(float));
    return WF_OK;
}

/* Seconds a run takes, of `repeats` one after the other. */
static wf_status gpu_round(wf_ctx *ctx, wf_field_program *program, bool backward, int repeats,
                           double *seconds) {
    if (wf_interrupted(ctx)) return wf_fail(ctx, WF_ERR_INTERRUPTED, "bench: interrupted");
    WF_TRY(wf_cuda_wait(ctx));
    double start = wf_seconds();
    for (int r = 0; r < repeats; r++) {
        WF_TRY(wf_field_program_forward(ctx, program));
        if (backward) WF_TRY(wf_field_program_backward(ctx, program));
    }
    WF_TRY(wf_cuda_wait(ctx));
    *seconds = (wf_seconds() - start) / repeats;
    return WF_OK;
}

/* Best of the rounds. A first run is not counted, a second says how many make a round: steps take
 * from less than one to hundreds of milliseconds. */
static wf_status gpu_time(wf_ctx *ctx, wf_field_program *program, bool backward, double *best) {
    double seconds;
    WF_TRY(gpu_round(ctx, program, backward, 1, &seconds));
    WF_TRY(gpu_round(ctx, program, backward, 1, best));
    double fit = gpu_round_seconds / (*best + 1e-9);
    int repeats = fit > gpu_repeats ? gpu_repeats : fit < 2 ? 2 : (int)fit;
    for (int round = 0; round < gpu_rounds; round++) {
        WF_TRY(gpu_round(ctx, program, backward, repeats, &seconds));
        if (round == 0 || seconds < *best) *best = seconds;
    }
    return WF_OK;
}

static wf_status gpu_step(wf_ctx *ctx, const bench *b, bool bf16, wf_bench_gpu_result *out) {
    wf_field_program *program;
    WF_TRY(gpu_open(ctx, b, true, bf16, &program));
    wf_status status = gpu_time(ctx, program, false, &out->forward);
    if (status == WF_OK) status = gpu_time(ctx, program, true, &out->step);
    out->bytes = wf_field_program_bytes(program);
    wf_field_program_free(program);
    return status;
}

static wf_status gpu_velocity(wf_ctx *ctx, const bench *b, bool bf16, wf_bench_gpu_result *out) {
    wf_field_program *program;
    WF_TRY(gpu_open(ctx, b, false, bf16, &program));
    wf_status status = gpu_time(ctx, program, false, &out->velocity);
    wf_field_program_free(program);
    return status;
}

typedef wf_status gpu_measure(wf_ctx *ctx, const bench *b, bool bf16, wf_bench_gpu_result *out);

static wf_status gpu_case(wf_ctx *ctx, const wf_field_desc *desc, const char *arch, int networks,
                          gpu_measure *measure, bool bf16, wf_bench_gpu_result *out) {
    bench b = {.graph = NULL};
    wf_status status = bench_open(ctx, desc, arch, networks, 1, &b);
    if (status == WF_OK) status = measure(ctx, &b, bf16, out);
    bench_free(&b);
    return status;
}

wf_status wf_bench_field_gpu(wf_ctx *ctx, const wf_field_desc *desc, const char *arch, int batch,
                             int velocities, bool bf16, wf_bench_gpu_result *out) {
    *out = (wf_bench_gpu_result){.bytes = 0};
    if (batch < 1 || velocities < 1)
        return wf_fail(ctx, WF_ERR_USAGE, "bench: %d and %d networks; at least one of each", batch,
                       velocities);
    wf_cuda_device *gpu;
    WF_TRY(wf_ctx_cuda(ctx, &gpu));
    WF_TRY(gpu_case(ctx, desc, arch, batch, gpu_step, bf16, out));
    return gpu_case(ctx, desc, arch, velocities, gpu_velocity, bf16, out);
}
