/* ode_cuda: combinations of stages and norms of rows.
 *
 * combine   one CTA per row and piece of it: reads y and the stages with a weight, writes one
 *           array; bandwidth bound
 * norms, errors, find_bad   one CTA per row; partial sums are added in fixed order
 * Numbers per row (steps, norms) are in host memory: small copies on the same stream, and a wait
 * where a norm is asked for.
 * Each kernel takes at most a fiftieth of a velocity's time. */
#include "flow/cuda/cta_sum.cuh"
#include "flow/cuda/ode_cuda.h"

#include "base/cuda/device.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { threads = 256, piece = 2048, check_every = 8, entries = 64 };

wf_row_ring *ring_of(const wf_ode_ops *ops) { return (wf_row_ring *)ops->self; }
cudaStream_t stream(const wf_ode_ops *ops) { return (cudaStream_t)ring_of(ops)->stream; }

/* Stages and their weights, as an argument of kernels. */
struct stages {
    const double *k[WF_ODE_MAX_STAGES];
    double weight[WF_ODE_MAX_STAGES];
    int n;
};

stages with_weights(double *const *k, const double *weight, int n) {
    stages s = {};
    for (int j = 0; j < n; j++)
        if (weight[j] != 0) {
            s.k[s.n] = k[j];
            s.weight[s.n++] = weight[j];
        }
    return s;
}

/* The steps of all rows on the device; there is room for as many numbers after them. */
wf_status rows_up(wf_ctx *ctx, const wf_ode_ops *ops, const double *host, int rows, double **out) {
    return wf__row_ring_up(ctx, ring_of(ops), host, (size_t)rows * sizeof *host, out);
}

wf_status rows_down(wf_ctx *ctx, const wf_ode_ops *ops, const double *device, int rows,
                    double *host) {
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(host, device, (size_t)rows * sizeof *host,
                                     cudaMemcpyDeviceToHost, stream(ops)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(ops)));
    return WF_OK;
}

__global__ void __launch_bounds__(threads)
    combine_kernel(size_t dim, const double *y, stages s, const double *h, double *out) {
    size_t row = blockIdx.y, start = row * dim, end = (blockIdx.x + 1) * (size_t)piece;
    double weight[WF_ODE_MAX_STAGES];
    for (int j = 0; j < s.n; j++) weight[j] = h[row] * s.weight[j];
    if (end > dim) end = dim;
    for (size_t i = blockIdx.x * (size_t)piece + threadIdx.x; i < end; i += threads) {
        double sum = y[start + i];
        for (int j = 0; j < s.n; j++) sum += weight[j] * s.k[j][start + i];
        out[start + i] = sum;
    }
}

__global__ void __launch_bounds__(threads)
    norms_kernel(size_t dim, const double *x, const double *y, double atol, double rtol,
                 double *out) {
    size_t row = blockIdx.x, start = row * dim;
    double sum = 0;
    for (size_t i = start + threadIdx.x; i < start + dim; i += threads) {
        double scaled = x[i] / (atol + rtol * fabs(y[i]));
        sum += scaled * scaled;
    }
    sum = cta_sum<threads>(sum);
    if (threadIdx.x == 0) out[row] = sqrt(sum / (double)dim);
}

__global__ void __launch_bounds__(threads)
    errors_kernel(size_t dim, const double *y, const double *next, stages s, const double *h,
                  double atol, double rtol, double *out) {
    size_t row = blockIdx.x, start = row * dim;
    double sum = 0;
    for (size_t i = start + threadIdx.x; i < start + dim; i += threads) {
        double error = 0;
        for (int j = 0; j < s.n; j++) error += s.weight[j] * s.k[j][i];
        double size = fmax(fabs(y[i]), fabs(next[i]));
        double scaled = h[row] * error / (atol + rtol * size);
        sum += scaled * scaled + 0 * next[i]; /* not finite when next is not */
    }
    sum = cta_sum<threads>(sum);
    if (threadIdx.x == 0) out[row] = isfinite(sum) ? sqrt(sum / (double)dim) : NAN;
}

__global__ void __launch_bounds__(threads) finite_kernel(size_t dim, const double *y, double *out) {
    size_t row = blockIdx.x, start = row * dim;
    double sum = 0;
    for (size_t i = start + threadIdx.x; i < start + dim; i += threads) sum += 0 * y[i];
    sum = cta_sum<threads>(sum);
    if (threadIdx.x == 0) out[row] = sum;
}

__global__ void __launch_bounds__(threads) subtract_kernel(size_t n, double *x, const double *y) {
    size_t i = blockIdx.x * (size_t)threads + threadIdx.x;
    if (i < n) x[i] -= y[i];
}

wf_status combine(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                  double *const *k, const double *weight, int n, const double *h, double *out) {
    double *steps = NULL;
    WF_TRY(rows_up(ctx, ops, h, rows, &steps));
    dim3 grid((unsigned)((dim + piece - 1) / piece), (unsigned)rows);
    combine_kernel<<<grid, threads, 0, stream(ops)>>>(dim, y, with_weights(k, weight, n), steps,
                                                      out);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

wf_status norms(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *x,
                const double *y, double atol, double rtol, double *out) {
    double *there = (double *)ring_of(ops)->device; /* the ring's first entry: waited for below */
    norms_kernel<<<(unsigned)rows, threads, 0, stream(ops)>>>(dim, x, y, atol, rtol, there);
    return rows_down(ctx, ops, there, rows, out);
}

wf_status errors(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                 const double *next, double *const *k, const double *weight, int n, const double *h,
                 double atol, double rtol, double *out) {
    double *steps = NULL;
    WF_TRY(rows_up(ctx, ops, h, rows, &steps));
    double *there = steps + rows;
    errors_kernel<<<(unsigned)rows, threads, 0, stream(ops)>>>(
        dim, y, next, with_weights(k, weight, n), steps, atol, rtol, there);
    return rows_down(ctx, ops, there, rows, out);
}

wf_status subtract(const wf_ode_ops *ops, wf_ctx *ctx, size_t count, double *x, const double *y) {
    subtract_kernel<<<(unsigned)((count + threads - 1) / threads), threads, 0, stream(ops)>>>(count,
                                                                                              x, y);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

wf_status find_bad(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                   int *out) {
    double *here, *there = (double *)ring_of(ops)->device;
    finite_kernel<<<(unsigned)rows, threads, 0, stream(ops)>>>(dim, y, there);
    WF_TRY(wf_alloc(ctx, (size_t)rows, sizeof *here, "solver", &here));
    wf_status status = rows_down(ctx, ops, there, rows, here);
    *out = -1;
    for (int r = 0; status == WF_OK && r < rows && *out < 0; r++)
        if (here[r] != 0) *out = r;
    free(here);
    return status;
}

wf_status copy(const wf_ode_ops *ops, wf_ctx *ctx, double *to, const double *from, size_t count) {
    WF_CUDA_TRY(
        ctx, cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice, stream(ops)));
    return WF_OK;
}

} // namespace

extern "C" wf_status wf__row_ring_open(wf_ctx *ctx, size_t bytes, wf_row_ring *out) {
    wf_cuda_device *device;
    *out = {};
    WF_TRY(wf_ctx_cuda(ctx, &device));
    out->stream = device->stream;
    out->bytes = (bytes + 63) / 64 * 64;
    if (cudaMallocHost(&out->host, entries * out->bytes) == cudaSuccess &&
        cudaMalloc(&out->device, entries * out->bytes) == cudaSuccess)
        return WF_OK;
    cudaGetLastError();
    wf__row_ring_close(out);
    return wf_fail(ctx, WF_ERR_MEMORY, "solver: no GPU memory");
}

extern "C" void wf__row_ring_close(wf_row_ring *ring) {
    cudaFreeHost(ring->host);
    cudaFree(ring->device);
    *ring = {};
}

extern "C" wf_status wf__row_ring_up(wf_ctx *ctx, wf_row_ring *ring, const void *data, size_t bytes,
                                     void *out) {
    cudaStream_t stream = (cudaStream_t)ring->stream;
    /* Half of the entries are free when the stream has passed the other half. */
    if (ring->used % (entries / 2) == 0) WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream));
    size_t entry = (size_t)(ring->used++ % entries) * ring->bytes;
    memcpy(ring->host + entry, data, bytes);
    void *there = ring->device + entry;
    WF_CUDA_TRY(ctx,
                cudaMemcpyAsync(there, ring->host + entry, bytes, cudaMemcpyHostToDevice, stream));
    memcpy(out, &there, sizeof there);
    return WF_OK;
}

extern "C" wf_ode_ops wf__ode_cuda_ops(wf_arena *memory, wf_row_ring *ring) {
    wf_ode_ops ops = {};
    ops.memory = memory;
    ops.self = ring;
    ops.check_every = check_every;
    ops.combine = combine;
    ops.norms = norms;
    ops.errors = errors;
    ops.subtract = subtract;
    ops.find_bad = find_bad;
    ops.copy = copy;
    return ops;
}
