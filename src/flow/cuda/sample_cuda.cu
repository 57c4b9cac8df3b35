/* sample_cuda: kernels of one pass over (rows, n_params) around the field's program; 8 to 24 bytes
 * a number. Each takes about a hundredth of a velocity's time. */
#include "flow/cuda/batch_cuda.cuh"

#include "align/cuda/match_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/cuda/device.cuh"
#include "base/backlog.h"

extern "C" {
#include "flow/cuda/ode_cuda.h"
#include "flow/cuda/sample_cuda.h"
#include "flow/principal.h"
#include "tensor/cuda/backend_cuda.h"
}

namespace {

enum { threads = 256, pieces = 4 * threads };

/* A row's place on its path; `others` are the scales of what has unit variance. */
struct row_path {
    double t;
    wf_path_scales others;
};

dim3 grid_of(int rows, size_t n) {
    return dim3((unsigned)((n + pieces - 1) / pieces), (unsigned)rows);
}

/* Index of the k-th number of a thread; beyond n - 1 it has none. */
__device__ size_t number(int k) {
    return (size_t)blockIdx.x * pieces + (size_t)k * threads + threadIdx.x;
}

__global__ void __launch_bounds__(threads)
    prepare(size_t n, wf_path form, wf_axes axes, const row_path *path, const double *y, float *x,
            float *t) {
    size_t row = blockIdx.y;
    row_path p = path[row];
    if (blockIdx.x == 0 && threadIdx.x == 0) t[row] = (float)p.t;
    for (int k = 0; k < pieces / threads; k++) {
        size_t i = number(k);
        if (i >= n) return;
        float in = wf_axes_at(&axes, &form, p.others, p.t, (uint32_t)i).in;
        x[row * n + i] = in * (float)y[row * n + i];
    }
}

/* dy = skip y + out f; f guided where f_null is not NULL. */
__global__ void __launch_bounds__(threads)
    finish(size_t n, wf_path form, wf_axes axes, const row_path *path, const double *y,
           const float *f, const float *f_null, float guidance, double *dy) {
    size_t row = blockIdx.y;
    row_path p = path[row];
    for (int k = 0; k < pieces / threads; k++) {
        size_t i = number(k), at = row * n + i;
        if (i >= n) return;
        float value = f[at];
        if (f_null != NULL) value = f_null[at] + guidance * (value - f_null[at]);
        wf_path_scales scale = wf_axes_at(&axes, &form, p.others, p.t, (uint32_t)i);
        dy[at] = (double)scale.skip * y[at] + (double)(scale.out * value);
    }
}

__global__ void __launch_bounds__(threads) to_double(size_t n, const float *x, double *y) {
    for (int k = 0; k < pieces / threads; k++) {
        size_t i = number(k), at = blockIdx.y * n + i;
        if (i < n) y[at] = (double)x[at];
    }
}

__global__ void __launch_bounds__(threads) to_float(size_t n, const double *y, float *x) {
    for (int k = 0; k < pieces / threads; k++) {
        size_t i = number(k), at = blockIdx.y * n + i;
        if (i < n) x[at] = (float)y[at];
    }
}

__global__ void __launch_bounds__(threads)
    move_back(size_t n, double t, const float *noise, double *y) {
    for (int k = 0; k < pieces / threads; k++) {
        size_t i = number(k), at = blockIdx.y * n + i;
        if (i < n) y[at] = t * y[at] + (1 - t) * (double)noise[at];
    }
}

} // namespace

struct wf_sample_cuda {
    wf_cuda_device *device; /* held */
    wf_ctx *ctx;            /* of the running call */
    wf_graph *graph;
    int batch, cond_size;
    bool fast, equivariant;
    size_t n; /* parameters of a network */
    wf_field_program *program;
    const wf_field_buffers *buffers; /* of the program */
    wf_arena memory;                 /* the solver's states */
    wf_ode_ops ops;
    wf_sample_cuda_call call;
    wf_backlog backlog;
    size_t enqueued, ahead; /* velocities since the last wait, and how many there may be */
    double since;           /* that wait */
    wf_row_ring steps, paths;
    row_path *path_host;
    double *y;
    float *f, *flat, *noise, *matched;
    float *variance;        /* of the axes */
    wf_match_cuda *matcher; /* made when first asked for; a flow has one way of matching */
    void *own[8];
    int n_own;
};

namespace {

cudaStream_t stream(const wf_sample_cuda *s) { return s->device->stream; }

wf_status take(wf_ctx *ctx, wf_sample_cuda *s, size_t bytes, void *place) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes + 16) != cudaSuccess) {
        cudaGetLastError();
        return wf_fail(ctx, WF_ERR_MEMORY,
                       "sampling: no GPU memory (%zu bytes); take fewer networks at a time", bytes);
    }
    s->own[s->n_own++] = memory;
    memcpy(place, &memory, sizeof memory);
    return WF_OK;
}

wf_status build(wf_ctx *ctx, const wf_sample_cuda_desc *desc, wf_sample_cuda *s) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    s->device = wf_cuda_hold(device);
    const wf_backend *backend = wf_backend_cuda(device);
    if (backend == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "sampling: out of memory");
    WF_TRY(wf_graph_clone(ctx, desc->graph, &s->graph));
    s->batch = desc->batch;
    s->fast = desc->fast;
    s->equivariant = wf_field_equivariant(desc->field);
    s->cond_size = desc->cond_size;
    s->n = desc->graph->n_params;
    size_t rows = (size_t)s->batch, all = rows * s->n;
    wf_field_program_desc program = {};
    program.batch = desc->shape;
    program.fast = desc->fast;
    WF_TRY(wf_field_program_create(ctx, desc->field, &program, &s->program));
    s->buffers = &s->program->buffers;
    WF_TRY(take(ctx, s, all * sizeof(double), &s->y));
    WF_TRY(take(ctx, s, all * sizeof(float), &s->f));
    WF_TRY(take(ctx, s, all * sizeof(float), &s->flat));
    WF_TRY(take(ctx, s, all * sizeof(float), &s->noise));
    WF_TRY(take(ctx, s, all * sizeof(float), &s->matched));
    WF_TRY(take(ctx, s, (size_t)wf_principal_width(s->graph) * sizeof(float), &s->variance));
    WF_TRY(wf__row_ring_open(ctx, 2 * rows * sizeof(double), &s->steps));
    WF_TRY(wf__row_ring_open(ctx, rows * sizeof(row_path), &s->paths));
    WF_TRY(wf_alloc(ctx, rows, sizeof *s->path_host, "sampling", &s->path_host));
    s->memory.source = backend->memory;
    s->ops = wf__ode_cuda_ops(&s->memory, &s->steps);
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(s->buffers->params, desc->params,
                                     desc->field->params * sizeof(float), cudaMemcpyHostToDevice,
                                     stream(s)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(s)));
    return WF_OK;
}

wf_status draw(wf_ctx *ctx, wf_sample_cuda *s, size_t first, int n, uint32_t purpose, uint32_t step,
               float *out) {
    wf_batch_gpu::normals(s->call.seed, (uint32_t)first, purpose, step,
                          (float)s->call.path.source_std, out, (size_t)n, s->n, stream(s));
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

/* A solver asks for one velocity after another and only enqueues them. Waits when they take longer
 * than an interruption may. */
wf_status keep_short(wf_ctx *ctx, wf_sample_cuda *s) {
    if (++s->enqueued < s->ahead) return WF_OK;
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(s)));
    double now = wf_seconds();
    wf_backlog_took(&s->backlog, s->enqueued, now - s->since);
    s->ahead = wf_backlog_next(&s->backlog, SIZE_MAX);
    s->enqueued = 0;
    s->since = now;
    return wf_interrupted(ctx) ? wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while integrating")
                               : WF_OK;
}

/* Relabels the noise in s->noise to match the networks in s->flat; *out: where the result lies. */
wf_status match_noise(wf_ctx *ctx, wf_sample_cuda *s, int n, const wf_match_desc *match,
                      float **out) {
    size_t all = (size_t)n * s->n, bytes = all * sizeof(float);
    if (wf_match_cuda_fits(s->graph, match)) {
        if (s->matcher == NULL)
            WF_TRY(wf_match_cuda_open(ctx, s->graph, match, (size_t)s->batch, &s->matcher));
        *out = s->matched;
        return wf_match_cuda_run(ctx, s->matcher, s->flat, 1, s->noise, (size_t)n, s->matched,
                                 stream(s));
    }
    float *host;
    WF_TRY(wf_alloc(ctx, 2 * all, sizeof *host, "sampling", &host));
    bool ok = wf_cuda_download(s->device, host, s->flat, bytes) &&
              wf_cuda_download(s->device, host + all, s->noise, bytes);
    wf_status status =
        ok ? WF_OK : wf_fail(ctx, WF_ERR_FAILED, "sampling: the GPU reports a failure");
    if (ok) status = wf_match_pairs(ctx, s->graph, host, host + all, (size_t)n, match);
    if (status == WF_OK) wf_cuda_upload(s->device, s->noise, host + all, bytes);
    free(host);
    *out = s->noise;
    return status;
}

} // namespace

extern "C" wf_status wf__sample_cuda_create(wf_ctx *ctx, const wf_sample_cuda_desc *desc,
                                            wf_sample_cuda **out) {
    *out = NULL;
    wf_sample_cuda *s;
    WF_TRY(wf_alloc(ctx, 1, sizeof *s, "sampling", &s));
    wf_status status = build(ctx, desc, s);
    if (status == WF_OK) *out = s;
    else wf__sample_cuda_free(s);
    return status;
}

extern "C" void wf__sample_cuda_free(wf_sample_cuda *s) {
    if (s == NULL) return;
    wf_field_program_free(s->program);
    wf_match_cuda_close(s->matcher);
    for (int i = 0; i < s->n_own; i++) cudaFree(s->own[i]);
    wf_arena_free(&s->memory);
    wf_graph_free(s->graph);
    wf__row_ring_close(&s->steps);
    wf__row_ring_close(&s->paths);
    free(s->path_host);
    wf_cuda_release(s->device);
    free(s);
}

extern "C" bool wf__sample_cuda_serves(const wf_sample_cuda *s, const wf_graph *graph, int batch,
                                       bool fast) {
    return s != NULL && s->batch == batch && s->fast == fast && wf_graph_equal(s->graph, graph);
}

extern "C" wf_status wf__sample_cuda_begin(wf_ctx *ctx, wf_sample_cuda *s,
                                           const wf_sample_cuda_call *call) {
    s->ctx = ctx;
    s->call = *call;
    s->enqueued = 0;
    s->since = wf_seconds();
    s->call.axes.variance = s->variance;
    if (call->axes.count > 0)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(s->variance, call->axes.variance,
                                         call->axes.width * sizeof(float), cudaMemcpyHostToDevice,
                                         stream(s)));
    /* Unused rows of the batch are computed too: from zeros, not from an earlier call's values. */
    size_t rows = (size_t)s->batch;
    WF_CUDA_TRY(ctx, cudaMemsetAsync(s->buffers->w, 0, rows * s->n * sizeof(float), stream(s)));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(s->buffers->t, 0, rows * sizeof(float), stream(s)));
    for (int r = 0; call->cond != NULL && r < s->batch; r++)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(s->buffers->cond + (size_t)r * (size_t)s->cond_size,
                                         call->cond, (size_t)s->cond_size * sizeof(float),
                                         cudaMemcpyHostToDevice, stream(s)));
    return WF_OK;
}

extern "C" double *wf__sample_cuda_states(wf_sample_cuda *s) { return s->y; }

extern "C" const wf_ode_ops *wf__sample_cuda_ops(const wf_sample_cuda *s) { return &s->ops; }

extern "C" wf_status wf__sample_cuda_velocity(void *arg, int n, const int *which, const double *t,
                                              const double *y, double *dy) {
    wf_sample_cuda *s = (wf_sample_cuda *)arg;
    wf_ctx *ctx = s->ctx;
    const wf_sample_cuda_call *call = &s->call;
    (void)which;
    for (int r = 0; r < n; r++) {
        s->path_host[r] = {t[r], wf_path_at(&call->path, 1, t[r])};
    }
    row_path *path;
    WF_TRY(wf__row_ring_up(ctx, &s->paths, s->path_host, (size_t)n * sizeof *path, &path));
    prepare<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, call->path, call->axes, path, y,
                                                         s->buffers->w, s->buffers->t);
    const float *f = s->buffers->v, *f_null = NULL;
    size_t rows = (size_t)s->batch;
    if (call->want_cond) {
        WF_CUDA_TRY(ctx, cudaMemsetAsync(s->buffers->drop, 0, rows, stream(s)));
        WF_TRY(wf_field_program_forward(ctx, s->program));
    }
    if (call->want_cond && call->want_null) {
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(s->f, s->buffers->v, (size_t)n * s->n * sizeof(float),
                                         cudaMemcpyDeviceToDevice, stream(s)));
        f = s->f;
        f_null = s->buffers->v;
    }
    if (call->want_null) {
        WF_CUDA_TRY(ctx, cudaMemsetAsync(s->buffers->drop, 1, rows, stream(s)));
        WF_TRY(wf_field_program_forward(ctx, s->program));
    }
    finish<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, call->path, call->axes, path, y, f,
                                                        f_null, call->guidance, dy);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return keep_short(ctx, s);
}

extern "C" wf_status wf__sample_cuda_noise(wf_ctx *ctx, wf_sample_cuda *s, size_t first, int n) {
    WF_TRY(draw(ctx, s, first, n, WF_RNG_SAMPLE, 0, s->noise));
    to_double<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, s->noise, s->y);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

extern "C" wf_status wf__sample_cuda_corrupt(wf_ctx *ctx, wf_sample_cuda *s, size_t first, int n,
                                             uint32_t cycle, double t, const wf_match_desc *match) {
    float *noise = s->noise;
    WF_TRY(draw(ctx, s, first, n, WF_RNG_REFINE, cycle, noise));
    if (match != NULL && s->equivariant && s->graph->n_orbits > 0) {
        to_float<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, s->y, s->flat);
        WF_TRY(match_noise(ctx, s, n, match, &noise));
    }
    move_back<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, t, noise, s->y);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

extern "C" wf_status wf__sample_cuda_fetch(wf_ctx *ctx, wf_sample_cuda *s, int n, float *out) {
    to_float<<<grid_of(n, s->n), threads, 0, stream(s)>>>(s->n, s->y, s->flat);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    if (wf_cuda_download(s->device, out, s->flat, (size_t)n * s->n * sizeof(float))) return WF_OK;
    return wf_fail(ctx, WF_ERR_FAILED, "sampling: the GPU reports a failure");
}
