/* scores_cuda: error masks of many networks on one test set.
 *
 * The first layer of a slab of networks is one product of matrices,
 *     h (networks * n, examples) = W' X,   W (inputs + 1, networks * n) packed k-major,   X (inputs
 *                                          + 1, examples), last row 1
 * (match_product.cu). The other layers are one thread per example and one network per block:
 * weights go through shared memory eight units at a time, the values of a layer lie there as
 * (units, threads). A warp's votes are 32 bits of the mask. 2 n inputs + 2 (parameters of the other
 * layers) FLOP and 8 n bytes a network and example, n the first layer's width. Measured on an H200
 * (ncu), 100 networks 784-32-32-10 on 10,000 examples: the product 1.11 ms (45.6 TFLOP/s, 68 % of
 * fp32's rate), finish_networks 0.37 ms (7.5 TFLOP/s: weights pass through shared memory for 128
 * examples at a time), transpose_inputs 56 us. */
#include <cuda_runtime.h>
#include <stdlib.h>

#include "align/cuda/match_product.cuh"
#include "base/backlog.h"
#include "graph/cuda/activate.cuh"

#include "eval/cuda/eval_cuda.h"

namespace {

enum { most_layers = 64, unit_step = 8, most_threads = 128, warp_size = 32 };
constexpr size_t hidden_bytes = (size_t)1 << 30; /* of a slab's first layer */

/* One layer of the chain; bias -1: none. */
struct layer {
    int in, out, weight, bias;
};

struct tail_args {
    int n_layers, n_params, widest;
    wf_activation activation;
    layer layers[most_layers];
    const float *weights; /* (networks, n_params) */
    const float *first;   /* (networks * out of layer 0, ld) */
    size_t ld;
    const int32_t *labels;
    int examples;
    uint32_t *masks; /* (networks, words) */
    int words;
};

/* y (out, threads) of one layer, eight units at a time: their weights go through shared memory as
 * slab (in, 8). */
__device__ void run_layer(const layer &at, const float *w, const float *x, float *slab, float *y) {
    for (int i0 = 0; i0 < at.out; i0 += unit_step) {
        __syncthreads();
        for (int i = 0; i < unit_step; i++)
            for (int j = threadIdx.x; j < at.in; j += blockDim.x)
                slab[j * unit_step + i] =
                    i0 + i < at.out ? w[at.weight + (size_t)(i0 + i) * at.in + j] : 0;
        __syncthreads();
        float sum[unit_step] = {};
#pragma unroll 4
        for (int j = 0; j < at.in; j++) {
            float value = x[j * blockDim.x + threadIdx.x];
            float4 low = ((const float4 *)slab)[2 * j], high = ((const float4 *)slab)[2 * j + 1];
            const float each[unit_step] = {low.x,  low.y,  low.z,  low.w,
                                           high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < unit_step; i++) sum[i] = fmaf(each[i], value, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < unit_step; i++)
            if (i0 + i < at.out)
                y[(i0 + i) * blockDim.x + threadIdx.x] =
                    at.bias < 0 ? sum[i] : sum[i] + w[at.bias + i0 + i];
    }
}

/* Grid (examples, networks). */
__global__ void __launch_bounds__(most_threads)
    finish_networks(const __grid_constant__ tail_args args) {
    extern __shared__ __align__(
        16) float values[]; /* slab (widest, 8), then (2, widest, threads) */
    size_t network = blockIdx.y;
    int example = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    bool real = example < args.examples;
    const float *w = args.weights + network * args.n_params;
    float *x = values + args.widest * unit_step, *y = x + args.widest * blockDim.x;
    int width = args.layers[0].out;
    for (int i = 0; i < width; i++)
        x[i * blockDim.x + threadIdx.x] =
            real ? args.first[(network * width + i) * args.ld + example] : 0;
    for (int l = 1; l < args.n_layers; l++) {
        for (int i = 0; i < width; i++) {
            float *place = x + i * blockDim.x + threadIdx.x;
            *place = activate(args.activation, *place);
        }
        run_layer(args.layers[l], w, x, values, y);
        width = args.layers[l].out;
        float *swap = x;
        x = y, y = swap;
    }
    int best = 0;
    float top = x[threadIdx.x];
    for (int i = 1; i < width; i++) {
        float value = x[i * blockDim.x + threadIdx.x];
        if (value > top) best = i, top = value;
    }
    bool wrong = real && (best != args.labels[real ? example : 0] || isnan(top));
    unsigned votes = __ballot_sync(0xffffffffu, wrong);
    if (threadIdx.x % warp_size == 0 && example / warp_size < args.words)
        args.masks[network * args.words + example / warp_size] = votes;
}

/* Examples side by side, then a row of ones for the bias. */
__global__ void transpose_inputs(const float *x, int examples, int inputs, float *out, size_t ld) {
    int example = (int)(blockIdx.x * blockDim.x + threadIdx.x), j = (int)blockIdx.y;
    if (example < examples)
        out[(size_t)j * ld + example] = j < inputs ? x[(size_t)example * inputs + j] : 1;
}

size_t tail_bytes(const tail_args &args, int threads) {
    return (size_t)args.widest * (2 * (size_t)threads + unit_step) * sizeof(float);
}

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* The networks as a chain of layers; false when they are not one. */
bool chain_of(const wf_graph *graph, tail_args *args) {
    if (graph->n_layers > most_layers || graph->activation == WF_ACT_MIXED) return false;
    args->n_layers = graph->n_layers;
    args->n_params = (int)graph->n_params;
    args->activation = graph->activation;
    for (int l = 0; l < graph->n_layers; l++) args->layers[l] = layer{0, 0, -1, -1};
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        const wf_group *src = &graph->groups[block->src], *dst = &graph->groups[block->dst];
        layer *at = &args->layers[block->layer];
        bool bias = src->kind == WF_GROUP_BIAS;
        int *place = bias ? &at->bias : &at->weight;
        if (*place >= 0 || block->coef != 1 || dst->layer != block->layer + 1) return false;
        if (!bias && src->layer != block->layer) return false;
        *place = (int)block->offset;
        at->out = dst->n;
        if (!bias) at->in = src->n;
        if (dst->n > args->widest) args->widest = dst->n;
    }
    for (int l = 0; l < graph->n_layers; l++)
        if (args->layers[l].weight < 0) return false;
    return true;
}

struct score_memory {
    float *raw, *weights, *first, *x, *inputs;
    int32_t *labels;
    int2 *terms;
    uint32_t *masks;
};

struct score_call {
    wf_ctx *ctx;
    const wf_dataset *data;
    tail_args args;
    score_memory m;
    int threads, depth;
    size_t slab, inputs_ld, weights_ld;
};

template <typename T> wf_status take(wf_ctx *ctx, size_t count, T **out) {
    WF_CUDA_TRY(ctx, cudaMalloc(out, (count + 1) * sizeof(T)));
    return WF_OK;
}

/* Test inputs and the places of the first layer's weights. */
wf_status upload_data(score_call *call) {
    wf_ctx *ctx = call->ctx;
    const wf_dataset *data = call->data;
    const layer &at = call->args.layers[0];
    size_t n = data->n_test, inputs = (size_t)data->inputs, depth = (size_t)call->depth;
    score_memory *m = &call->m;
    WF_TRY(take(ctx, n * inputs, &m->x));
    WF_CUDA_TRY(ctx,
                cudaMemcpy(m->x, data->x_test, n * inputs * sizeof(float), cudaMemcpyHostToDevice));
    WF_TRY(take(ctx, depth * call->inputs_ld, &m->inputs));
    WF_CUDA_TRY(ctx, cudaMemset(m->inputs, 0, depth * call->inputs_ld * sizeof(float)));
    transpose_inputs<<<dim3((unsigned)(n + 255) / 256, (unsigned)inputs + 1), 256>>>(
        m->x, (int)n, data->inputs, m->inputs, call->inputs_ld);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_TRY(take(ctx, n, &m->labels));
    WF_CUDA_TRY(ctx,
                cudaMemcpy(m->labels, data->y_test, n * sizeof(int32_t), cudaMemcpyHostToDevice));
    int2 *terms = NULL;
    WF_TRY(wf_alloc(ctx, inputs + 1, sizeof *terms, "forward pass", &terms));
    for (size_t j = 0; j < inputs; j++) terms[j] = int2{at.weight + (int)j, at.in};
    terms[inputs] = int2{at.bias, 1};
    wf_status status = take(ctx, inputs + 1, &m->terms);
    cudaError_t error = status != WF_OK ? cudaSuccess
                                        : cudaMemcpy(m->terms, terms, (inputs + 1) * sizeof *terms,
                                                     cudaMemcpyHostToDevice);
    free(terms);
    WF_TRY(status);
    WF_CUDA_TRY(ctx, error);
    return WF_OK;
}

wf_status score_open(score_call *call, size_t networks) {
    wf_ctx *ctx = call->ctx;
    tail_args *args = &call->args;
    size_t width = (size_t)args->layers[0].out, n = call->data->n_test;
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    int most = device->shared_bytes;
    call->threads = most_threads;
    while (call->threads > warp_size && tail_bytes(*args, call->threads) > (size_t)most / 2)
        call->threads /= 2;
    if (tail_bytes(*args, call->threads) > (size_t)most)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: a layer of %d units is too wide for the GPU", args->widest);
    WF_CUDA_TRY(ctx, cudaFuncSetAttribute(finish_networks,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    call->depth = (int)round_up((size_t)call->data->inputs + 1, WF_GPU_STEP);
    call->inputs_ld = round_up(n, WF_GPU_TILE);
    call->slab = hidden_bytes / (call->inputs_ld * width * sizeof(float));
    call->slab = call->slab < 1 ? 1 : call->slab > networks ? networks : call->slab;
    if (call->slab > 16384) call->slab = 16384;
    call->weights_ld = round_up(call->slab * width, WF_GPU_TILE);
    score_memory *m = &call->m;
    args->words = (int)((n + 31) / 32);
    WF_TRY(take(ctx, call->slab * (size_t)args->n_params, &m->raw));
    WF_TRY(take(ctx, (size_t)call->depth * call->weights_ld, &m->weights));
    WF_CUDA_TRY(ctx, cudaMemset(m->weights, 0, call->depth * call->weights_ld * sizeof(float)));
    WF_TRY(take(ctx, call->weights_ld * call->inputs_ld, &m->first));
    WF_TRY(take(ctx, call->slab * (size_t)args->words, &m->masks));
    WF_TRY(upload_data(call));
    args->weights = m->raw, args->first = m->first, args->ld = call->inputs_ld;
    args->labels = m->labels, args->examples = (int)n, args->masks = m->masks;
    return WF_OK;
}

wf_status score_slab(score_call *call, const float *weights, size_t count, uint8_t *errors) {
    wf_ctx *ctx = call->ctx;
    const tail_args &args = call->args;
    score_memory *m = &call->m;
    const layer &at = args.layers[0];
    size_t params = (size_t)args.n_params, bytes = (call->data->n_test + 7) / 8;
    WF_CUDA_TRY(
        ctx, cudaMemcpy(m->raw, weights, count * params * sizeof(float), cudaMemcpyHostToDevice));
    int depth = call->data->inputs + (at.bias >= 0);
    WF_TRY(wf_gpu_pack(ctx, m->terms, depth, at.out, m->raw, count, params, m->weights,
                       call->weights_ld, 0));
    WF_TRY(wf_gpu_product(ctx, m->weights, call->weights_ld, m->inputs, call->inputs_ld,
                          call->depth, m->first, call->inputs_ld, count * at.out,
                          call->data->n_test, 0));
    dim3 grid((unsigned)((call->data->n_test + call->threads - 1) / call->threads),
              (unsigned)count);
    finish_networks<<<grid, call->threads, tail_bytes(args, call->threads)>>>(args);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_CUDA_TRY(ctx, cudaMemcpy2D(errors, bytes, m->masks, args.words * sizeof(uint32_t), bytes,
                                  count, cudaMemcpyDeviceToHost));
    return WF_OK;
}

wf_status score_all(score_call *call, const float *weights, size_t n, uint8_t *errors) {
    WF_TRY(score_open(call, n));
    size_t params = (size_t)call->args.n_params, bytes = (call->data->n_test + 7) / 8;
    wf_meter meter = wf_meter_start(call->ctx, "testing networks", "networks", (double)n);
    wf_backlog backlog = {};
    for (size_t done = 0, some; done < n; done += some) {
        double start = wf_seconds();
        some = wf_backlog_next(&backlog, n - done < call->slab ? n - done : call->slab);
        WF_TRY(score_slab(call, weights + done * params, some, errors + done * bytes));
        wf_backlog_took(&backlog, some, wf_seconds() - start);
        wf_meter_update(&meter, (double)(done + some), NULL);
        if (wf_interrupted(call->ctx))
            return wf_fail(call->ctx, WF_ERR_INTERRUPTED, "interrupted while testing networks");
    }
    wf_meter_end(&meter, (double)n, NULL);
    return WF_OK;
}

} // namespace

extern "C" wf_status wf_error_masks_cuda(wf_ctx *ctx, const wf_graph *graph, const float *weights,
                                         size_t n, const wf_dataset *data, uint8_t *errors) {
    if (n == 0) return WF_OK;
    score_call call = {};
    call.ctx = ctx;
    call.data = data;
    if (!chain_of(graph, &call.args))
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: %s is not a chain of layers",
                       graph->text);
    wf_status status = score_all(&call, weights, n, errors);
    score_memory *m = &call.m;
    cudaFree(m->raw), cudaFree(m->weights), cudaFree(m->first), cudaFree(m->x);
    cudaFree(m->inputs), cudaFree(m->labels), cudaFree(m->terms), cudaFree(m->masks);
    return status;
}
