/* cuda_products: the library's products of rows with weights beside cuBLASLt's, at the shapes of
 * the rival generators.
 *
 *     cuda_products [PATTERN]     shapes whose names hold PATTERN; all without
 *
 * ours: wf_linear on the bf16 backend, recorded as CUDA graphs; operands are float in memory and
 * rounded on the way. cuBLASLt: operands that are bf16 already, sums in float, float results, the
 * fastest of the algorithms that it proposes; `round` is what rounding the rows (and dy) to bf16
 * first would cost it. forward: y = x W'. backward: dx = dy W and dW = dy' x. The best of several
 * rounds, in ms; TFLOP/s of ours. */
#include "models/cuda/field_program.cuh"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "tensor/cuda/backend_cuda.h"
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        auto status_ = (call);                                                                     \
        if ((int)status_ != 0) {                                                                   \
            fprintf(stderr, "cuda_products: %s: status %d\n", #call, (int)status_);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

struct shape {
    const char *name;
    int rows, in, out;
};
/* Rows: networks of a batch, for dit their tokens (829 of MNIST's, 608 of CIFAR-10's, 40 of
 * karhunen's). */
const shape shapes[] = {
    {"mlp-352 in", 64, 26506, 352},          {"mlp-352 block", 64, 352, 352},
    {"mlp-1184 in", 64, 19450, 1184},        {"mlp-1184 block", 64, 1184, 1184},
    {"mlp-1184 out", 64, 1184, 19450},       {"dit-128 qkv", 256 * 40, 128, 384},
    {"dit-368 qkv", 32 * 829, 368, 1104},    {"dit-368 up", 32 * 829, 368, 1472},
    {"dit-368 down", 32 * 829, 1472, 368},   {"dit-864 qkv", 32 * 608, 864, 2592},
    {"dit-864 up", 32 * 608, 864, 3456},     {"dit-864 down", 32 * 608, 3456, 864},
    {"dwf-608 in", 256, 1394, 608},          {"dwf-1954 in", 256, 19514, 1954},
    {"dwf-1954 middle", 256, 1954, 977},     {"dwf-1954 out", 256, 1954, 19450},
    {"sane-640 up", 32 * 2 * 106, 640, 2560}};

enum { rounds = 5, repeats = 20 };

/* Best milliseconds of a call, which enqueues on the stream. */
template <class F> double best_ms(cudaStream_t stream, F enqueue) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    double best = 1e30;
    for (int round = 0; round <= rounds; round++) { /* the first one warms up */
        CHECK(cudaEventRecord(begin, stream));
        for (int k = 0; k < repeats; k++) enqueue();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (round > 0 && ms / repeats < best) best = ms / repeats;
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return best;
}

/* Device memory of n values that are neither equal nor large. */
template <class T> __global__ void fill(T *to, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) to[i] = (T)((float)((i * 2654435761u) % 1024u) / 1024.0f - 0.5f);
}
template <class T> T *make(size_t n, cudaStream_t stream) {
    T *memory;
    CHECK(cudaMalloc((void **)&memory, (n + 64) * sizeof(T)));
    fill<<<(unsigned)((n + 64 + 255) / 256), 256, 0, stream>>>(memory, n + 64);
    CHECK(cudaGetLastError());
    return memory;
}

__global__ void round_values(const float *from, __nv_bfloat16 *to, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) to[i] = __float2bfloat16_rn(from[i]);
}

struct times {
    double forward, backward;
};

times time_ours(wf_ctx *ctx, wf_cuda_device *device, const shape &s) {
    cudaStream_t stream = device->stream;
    size_t ld_in = (size_t)wf_pad(s.in), ld_out = (size_t)wf_pad(s.out), rows = (size_t)s.rows;
    float *x = make<float>(rows * ld_in, stream), *dx = make<float>(rows * ld_in, stream);
    float *w = make<float>((size_t)s.out * (size_t)s.in, stream);
    float *dw = make<float>((size_t)s.out * (size_t)s.in, stream);
    float *dy = make<float>(rows * ld_out, stream);
    wf_tape tape = {};
    wf_gpu::recorded_program program = {};
    program.tape = &tape;
    wf_status status = wf_gpu::open_program(ctx, &program, true);
    wf_tensor *y = NULL;
    if (status == WF_OK)
        status = wf_gpu::record_program(
            ctx, &program, true,
            [&] {
                wf_tape_start(&tape, program.backend, WF_F32, true);
                wf_tensor *rows_of = wf_tape_view(&tape, x, dx, s.rows, s.in);
                wf_linear_desc desc = {};
                if (rows_of != NULL) rows_of->ld = (int)ld_in;
                desc.x[0] = rows_of;
                desc.weight[0] = wf_tape_view(&tape, w, dw, s.out, s.in);
                y = tape.failed ? NULL : wf_linear(&tape, &desc);
            },
            [&] {
                if (y == NULL) return;
                y->grad = dy;
                y->grad_set = true;
                wf_tape_backward(&tape);
            });
    if (status != WF_OK) {
        fprintf(stderr, "cuda_products: %s: %s\n", s.name, wf_last_error(ctx));
        exit(1);
    }
    times out;
    out.forward = best_ms(stream, [&] { wf_gpu::run_forward(ctx, &program); });
    out.backward = best_ms(stream, [&] { wf_gpu::run_backward(ctx, &program); });
    wf_gpu::close_program(&program);
    for (float *memory : {x, dx, w, dw, dy}) CHECK(cudaFree(memory));
    return out;
}

/* c (m, n) = op(a) op(b), column-major; a, b bf16, c float. */
double time_blas(cublasLtHandle_t handle, cudaStream_t stream, cublasOperation_t op_a,
                 cublasOperation_t op_b, int m, int n, int k, const __nv_bfloat16 *a,
                 const __nv_bfloat16 *b, float *c, void *work, size_t work_bytes) {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulPreference_t preference;
    bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
    CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    CHECK(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, ta ? k : m, ta ? m : k, ta ? k : m));
    CHECK(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, tb ? n : k, tb ? k : n, tb ? n : k));
    CHECK(cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, m, n, m));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &work_bytes, sizeof work_bytes));
    cublasLtMatmulHeuristicResult_t found[8];
    int count = 0;
    CHECK(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, lc, lc, preference, 8, found, &count));
    double best = 1e30;
    float one = 1, zero = 0;
    for (int i = 0; i < count; i++) {
        double ms = best_ms(stream, [&] {
            CHECK(cublasLtMatmul(handle, desc, &one, a, la, b, lb, &zero, c, lc, c, lc,
                                 &found[i].algo, work, work_bytes, stream));
        });
        if (ms < best) best = ms;
    }
    CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(cublasLtMatrixLayoutDestroy(la));
    CHECK(cublasLtMatrixLayoutDestroy(lb));
    CHECK(cublasLtMatrixLayoutDestroy(lc));
    CHECK(cublasLtMatmulDescDestroy(desc));
    return count > 0 ? best : NAN;
}

/* Row-major matrices are column-major ones the other way round. round_ms: of x and dy. */
times time_theirs(cublasLtHandle_t handle, cudaStream_t stream, const shape &s, double *round_ms) {
    size_t n_x = (size_t)s.rows * (size_t)s.in, n_y = (size_t)s.rows * (size_t)s.out;
    size_t n_w = (size_t)s.in * (size_t)s.out, bytes = (size_t)64 << 20;
    __nv_bfloat16 *x = make<__nv_bfloat16>(n_x, stream), *w = make<__nv_bfloat16>(n_w, stream);
    __nv_bfloat16 *dy = make<__nv_bfloat16>(n_y, stream);
    float *c = make<float>(n_x > n_y ? (n_x > n_w ? n_x : n_w) : (n_y > n_w ? n_y : n_w), stream);
    float *from = make<float>(n_x > n_y ? n_x : n_y, stream);
    void *work;
    CHECK(cudaMalloc(&work, bytes));
    times out;
    out.forward = time_blas(handle, stream, CUBLAS_OP_T, CUBLAS_OP_N, s.out, s.rows, s.in, w, x, c,
                            work, bytes);
    out.backward = time_blas(handle, stream, CUBLAS_OP_N, CUBLAS_OP_N, s.in, s.rows, s.out, w, dy,
                             c, work, bytes) +
                   time_blas(handle, stream, CUBLAS_OP_N, CUBLAS_OP_T, s.in, s.out, s.rows, x, dy,
                             c, work, bytes);
    *round_ms = best_ms(stream, [&] {
        round_values<<<(unsigned)((n_x + 255) / 256), 256, 0, stream>>>(from, x, n_x);
        round_values<<<(unsigned)((n_y + 255) / 256), 256, 0, stream>>>(from, dy, n_y);
    });
    CHECK(cudaGetLastError());
    for (__nv_bfloat16 *memory : {x, w, dy}) CHECK(cudaFree(memory));
    CHECK(cudaFree(c));
    CHECK(cudaFree(from));
    CHECK(cudaFree(work));
    return out;
}

} // namespace

int main(int argc, char **argv) {
    wf_ctx *ctx;
    wf_cuda_device *device;
    wf_ctx_desc desc = {};
    desc.threads = 1;
    desc.device = WF_DEVICE_CUDA;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 1;
    if (wf_ctx_cuda(ctx, &device) != WF_OK) {
        fprintf(stderr, "cuda_products: %s\n", wf_last_error(ctx));
        return 1;
    }
    cublasLtHandle_t handle;
    CHECK(cublasLtCreate(&handle));
    cudaStream_t stream = device->stream;
    printf("| product | rows x in x out | ours forward | cuBLASLt | ours backward | cuBLASLt | "
           "round | ours / (cuBLASLt + round) | TFLOP/s |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const shape &s : shapes) {
        if (argc > 1 && strstr(s.name, argv[1]) == NULL) continue;
        double round_ms, flops = 6.0 * s.rows * s.in * s.out;
        times ours = time_ours(ctx, device, s), theirs = time_theirs(handle, stream, s, &round_ms);
        double own = ours.forward + ours.backward;
        printf("| %s | %d x %d x %d | %.4f | %.4f | %.4f | %.4f | %.4f | %.2f | %.0f |\n", s.name,
               s.rows, s.in, s.out, ours.forward, theirs.forward, ours.backward, theirs.backward,
               round_ms, own / (theirs.forward + theirs.backward + round_ms), flops / own / 1e9);
        fflush(stdout);
    }
    CHECK(cublasLtDestroy(handle));
    wf_ctx_free(ctx);
    return 0;
}
