/* execute_cuda: the forward pass of any described network (graph/execute.h), in fp32.
 *
 * A block takes one network and 32 examples at a time. Lanes are examples, and values lie
 * (unit, place, example), so a warp reads 128 bytes side by side. A linear layer is a convolution
 * whose kernel is the whole image.
 *
 *   block   8 units, 256 rows of their weights in shared memory
 *   warp        4 places, all 32 examples: 32 sums in registers
 *   step            one weight of each of the 8 units: 4 values, 32 multiply-adds
 *
 * Values pass through device memory: for the paper's CNN 4.7 MB a block, written once and read from
 * L2 once for each tap and each 8 units, and 160 MFLOP. NOT MEASURED. Predicted on an H200: 15 of
 * 67 TFLOP/s, 100 networks on 10,000 examples in 0.35 s. First to measure: whether loads or
 * multiply-adds bind.
 *
 * I1  Sums run over sources in the order of the parameters, as on the CPU. */
#include <cuda_runtime.h>
#include <stdlib.h>

#include "base/cuda/device.cuh"
#include "graph/cuda/activate.cuh"

#include "graph/cuda/execute_cuda.h"

namespace {

enum { tile = 32, threads = 256, warps = threads / 32, unit_step = 8, place_step = 4 };
enum { slab_rows = 256, most_networks = 64 };
constexpr size_t scratch_bytes = (size_t)8 << 30;

struct exec_layer {
    wf_layer_kind op;
    wf_norm_kind norm;
    wf_activation activation;
    wf_pool_kind pool;
    wf_window window, pool_window;
    int units, source_units;
    int source_height, source_width, sum_height, sum_width, height, width;
    double eps;
    size_t source, other, sums, values;                  /* in the block's scratch */
    long long weight, bias, gamma, beta, mean, variance; /* in the flat vector; -1: none */
};

struct exec_args {
    const exec_layer *layers;
    int n_layers, outputs, inputs;
    size_t n_params, floats; /* of a network; of a block's scratch */
    const float *weights;    /* (networks, n_params) */
    const float *x;          /* (examples, inputs) */
    const int32_t *labels;
    int examples, tiles, networks;
    float *scratch;
    uint32_t *masks; /* (networks, tiles); NULL: not asked for */
    float *logits;   /* (networks, examples, outputs); NULL: not asked for */
};

__device__ inline int lane_of() { return (int)threadIdx.x % 32; }
__device__ inline int warp_of() { return (int)threadIdx.x / 32; }

/* Rows k0 .. k0 + rows-1 of the weights of eight units, added to the sums of four places. */
__device__ void add_products(const exec_layer &layer, const float *x, const float *slab, int k0,
                             int rows, int first_unit, int first_place, float *sums) {
    int places = layer.sum_height * layer.sum_width, lane = lane_of();
    int taps = layer.window.kernel[0] * layer.window.kernel[1];
    int y[place_step], column[place_step];
    float sum[place_step][unit_step];
    for (int p = 0; p < place_step; p++) {
        int place = first_place + p < places ? first_place + p : first_place;
        int row = place / layer.sum_width;
        y[p] = row * layer.window.stride[0] - layer.window.padding[0];
        column[p] =
            (place - row * layer.sum_width) * layer.window.stride[1] - layer.window.padding[1];
        for (int i = 0; i < unit_step; i++) {
            bool real = k0 > 0 && first_unit + i < layer.units;
            sum[p][i] = real ? sums[((size_t)(first_unit + i) * places + place) * tile + lane] : 0;
        }
    }
    int unit = k0 / taps, tap = k0 - unit * taps;
    int down = tap / layer.window.kernel[1], right = tap - down * layer.window.kernel[1];
    for (int k = 0; k < rows; k++) {
        float4 low = ((const float4 *)slab)[2 * k], high = ((const float4 *)slab)[2 * k + 1];
        const float w[unit_step] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        for (int p = 0; p < place_step; p++) {
            int at = y[p] + down, across = column[p] + right;
            bool inside =
                at >= 0 && at < layer.source_height && across >= 0 && across < layer.source_width;
            size_t from = ((size_t)unit * layer.source_height + at) * layer.source_width + across;
            float value = inside ? x[from * tile + lane] : 0;
            for (int i = 0; i < unit_step; i++) sum[p][i] = fmaf(w[i], value, sum[p][i]);
        }
        if (++right == layer.window.kernel[1]) right = 0, down++;
        if (down == layer.window.kernel[0]) down = 0, unit++;
    }
    for (int p = 0; p < place_step && first_place + p < places; p++)
        for (int i = 0; i < unit_step && first_unit + i < layer.units; i++)
            sums[((size_t)(first_unit + i) * places + first_place + p) * tile + lane] = sum[p][i];
}

__device__ void multiply(const exec_layer &layer, const float *w, float *scratch) {
    __shared__ __align__(16) float slab[slab_rows * unit_step];
    int depth = layer.source_units * layer.window.kernel[0] * layer.window.kernel[1];
    int places = layer.sum_height * layer.sum_width;
    for (int unit = 0; unit < layer.units; unit += unit_step)
        for (int k0 = 0; k0 < depth; k0 += slab_rows) {
            int rows = depth - k0 < slab_rows ? depth - k0 : (int)slab_rows;
            __syncthreads();
            for (int i = threadIdx.x; i < rows * unit_step; i += threads) {
                int u = i / rows, k = i - u * rows;
                slab[k * unit_step + u] =
                    unit + u < layer.units ? w[layer.weight + (size_t)(unit + u) * depth + k0 + k]
                                           : 0;
            }
            __syncthreads();
            for (int place = place_step * warp_of(); place < places; place += place_step * warps)
                add_products(layer, scratch + layer.source, slab, k0, rows, unit, place,
                             scratch + layer.sums);
        }
}

__device__ void combine(const exec_layer &layer, float *scratch) {
    size_t n = (size_t)layer.units * layer.sum_height * layer.sum_width * tile;
    const float *a = scratch + layer.source, *b = scratch + layer.other;
    for (size_t i = threadIdx.x; i < n; i += threads)
        scratch[layer.sums + i] = layer.op == WF_LAYER_ADD ? a[i] + b[i] : a[i];
}

/* Bias, batch norm and, unless a layer norm comes first, the activation. A warp takes a unit. */
__device__ void finish_units(const exec_layer &layer, const float *w, float *sums) {
    int places = layer.sum_height * layer.sum_width;
    bool activates = layer.norm != WF_NORM_LAYER;
    for (int unit = warp_of(); unit < layer.units; unit += warps) {
        float *x = sums + (size_t)unit * places * tile + lane_of();
        float bias = layer.bias >= 0 ? w[layer.bias + unit] : 0, scale = 1, shift = 0;
        if (layer.norm == WF_NORM_BATCH) {
            scale =
                (float)(w[layer.gamma + unit] / sqrt((double)w[layer.variance + unit] + layer.eps));
            shift = w[layer.beta + unit] - w[layer.mean + unit] * scale;
        }
        for (int p = 0; p < places; p++) {
            float value = x[p * tile];
            if (layer.bias >= 0) value += bias;
            if (layer.norm == WF_NORM_BATCH) value = value * scale + shift;
            x[p * tile] = activates ? activate(layer.activation, value) : value;
        }
    }
}

/* The sum of a number of each warp, for each example. */
__device__ double sum_of_warps(double own) {
    __shared__ double parts[warps][tile];
    __syncthreads();
    parts[warp_of()][lane_of()] = own;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < warps; i++) sum += parts[i][lane_of()];
    return sum;
}

__device__ void layer_norm(const exec_layer &layer, const float *w, float *sums) {
    int rows = layer.units * layer.sum_height * layer.sum_width;
    double sum = 0, squares = 0;
    float *x = sums + lane_of();
    for (int i = warp_of(); i < rows; i += warps) sum += x[(size_t)i * tile];
    double mean = sum_of_warps(sum) / rows;
    for (int i = warp_of(); i < rows; i += warps) {
        double d = x[(size_t)i * tile] - mean;
        squares += d * d;
    }
    double scale = 1 / sqrt(sum_of_warps(squares) / rows + layer.eps);
    for (int i = warp_of(); i < rows; i += warps) {
        float value =
            (float)((x[(size_t)i * tile] - mean) * scale) * w[layer.gamma + i] + w[layer.beta + i];
        x[(size_t)i * tile] = activate(layer.activation, value);
    }
}

/* One place of a maximum or average; NaN stays. */
__device__ float pool_place(const exec_layer &layer, const float *unit, int row, int column) {
    const wf_window &window = layer.pool_window;
    bool maximum = layer.pool == WF_POOL_MAX;
    float out = maximum ? -INFINITY : 0;
    for (int i = 0; i < window.kernel[0]; i++)
        for (int j = 0; j < window.kernel[1]; j++) {
            int y = row * window.stride[0] - window.padding[0] + i;
            int x = column * window.stride[1] - window.padding[1] + j;
            if (y < 0 || y >= layer.sum_height || x < 0 || x >= layer.sum_width) continue;
            float value = unit[((size_t)y * layer.sum_width + x) * tile];
            if (!maximum) out += value;
            else if (!(value <= out) && !isnan(out)) out = value;
        }
    return maximum ? out : out * (1 / (float)(window.kernel[0] * window.kernel[1]));
}

__device__ void pool(const exec_layer &layer, float *scratch) {
    int before = layer.sum_height * layer.sum_width, after = layer.height * layer.width;
    for (int i = warp_of(); i < layer.units * after; i += warps) {
        int u = i / after, place = i - u * after;
        const float *unit = scratch + layer.sums + (size_t)u * before * tile + lane_of();
        float out = 0;
        if (layer.pool == WF_POOL_GLOBAL) {
            for (int p = 0; p < before; p++) out += unit[p * tile];
            out *= 1 / (float)before;
        } else out = pool_place(layer, unit, place / layer.width, place % layer.width);
        scratch[layer.values + (size_t)i * tile + lane_of()] = out;
    }
}

__device__ void run_layer(const exec_layer &layer, const float *w, float *scratch) {
    if (layer.op <= WF_LAYER_CONV) multiply(layer, w, scratch);
    else combine(layer, scratch);
    __syncthreads();
    finish_units(layer, w, scratch + layer.sums);
    __syncthreads();
    if (layer.norm == WF_NORM_LAYER) {
        layer_norm(layer, w, scratch + layer.sums);
        __syncthreads();
    }
    if (layer.pool != WF_POOL_NONE) pool(layer, scratch);
    __syncthreads();
}

/* The first warp: logits out, or a word of the mask. */
__device__ void judge(const exec_args &args, int network, int at, const float *logits) {
    int lane = lane_of(), example = at * tile + lane;
    bool real = example < args.examples;
    if (args.logits != NULL && real)
        for (int o = 0; o < args.outputs; o++)
            args.logits[((size_t)network * args.examples + example) * args.outputs + o] =
                logits[o * tile + lane];
    if (args.masks == NULL) return;
    int best = 0;
    bool nan = isnan(logits[lane]);
    for (int o = 1; o < args.outputs; o++) {
        nan |= isnan(logits[o * tile + lane]);
        if (logits[o * tile + lane] > logits[best * tile + lane]) best = o;
    }
    bool wrong = real && (nan || best != args.labels[example]);
    unsigned votes = __ballot_sync(0xffffffffu, wrong);
    if (lane == 0) args.masks[(size_t)network * args.tiles + at] = votes;
}

__global__ void __launch_bounds__(threads)
    execute_networks(const __grid_constant__ exec_args args) {
    float *scratch = args.scratch + blockIdx.x * args.floats;
    for (int item = (int)blockIdx.x; item < args.networks * args.tiles; item += (int)gridDim.x) {
        int network = item / args.tiles, at = item - network * args.tiles;
        const float *w = args.weights + (size_t)network * args.n_params;
        __syncthreads();
        for (int i = threadIdx.x; i < args.inputs * tile; i += threads) {
            int example = at * tile + i % tile;
            scratch[i] =
                example < args.examples ? args.x[(size_t)example * args.inputs + i / tile] : 0;
        }
        __syncthreads();
        for (int l = 0; l < args.n_layers; l++) run_layer(args.layers[l], w, scratch);
        if (warp_of() == 0)
            judge(args, network, at, scratch + args.layers[args.n_layers - 1].values);
    }
}

/* --- host ------------------------------------------------------------------------------------- */

struct exec_memory {
    exec_layer *layers;
    float *weights, *x, *scratch, *logits;
    int32_t *labels;
    uint32_t *masks;
};

long long offset_of(const wf_graph *graph, int l, wf_block_kind kind) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == l && graph->blocks[b].kind == kind)
            return (long long)graph->blocks[b].offset;
    return -1;
}

/* Values of a group after pooling, and of one layer before it; returns the floats of a scratch. */
size_t describe(const wf_graph *graph, exec_layer *layers) {
    size_t floats = (size_t)graph->inputs * tile;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        const wf_group *source = &graph->groups[layer->from[0]], *to = &graph->groups[l + 1];
        exec_layer *out = &layers[l];
        *out = exec_layer{layer->op, layer->norm, layer->activation, layer->pool};
        out->window = layer->window, out->pool_window = layer->pool_window;
        if (layer->op == WF_LAYER_LINEAR)
            out->window = wf_window{{source->height, source->width}, {1, 1}, {0, 0}};
        out->units = to->n, out->source_units = source->n;
        out->source_height = source->height, out->source_width = source->width;
        out->sum_height = to->sum_height, out->sum_width = to->sum_width;
        out->height = to->height, out->width = to->width;
        out->eps = layer->eps;
        out->source = layer->from[0] == 0 ? 0 : layers[layer->from[0] - 1].values;
        if (layer->op == WF_LAYER_ADD)
            out->other = layer->from[1] == 0 ? 0 : layers[layer->from[1] - 1].values;
        out->values = out->sums = floats;
        floats += (size_t)to->n * to->height * to->width * tile;
        if (layer->pool != WF_POOL_NONE) {
            out->sums = floats;
            floats += (size_t)to->n * to->sum_height * to->sum_width * tile;
        }
        out->weight = offset_of(graph, l, WF_BLOCK_WEIGHT);
        out->bias = offset_of(graph, l, WF_BLOCK_BIAS);
        out->gamma = offset_of(graph, l, WF_BLOCK_GAMMA);
        out->beta = offset_of(graph, l, WF_BLOCK_BETA);
        out->mean = offset_of(graph, l, WF_BLOCK_MEAN);
        out->variance = offset_of(graph, l, WF_BLOCK_VARIANCE);
    }
    return floats;
}

template <typename T> wf_status take(wf_ctx *ctx, size_t count, T **out) {
    WF_CUDA_TRY(ctx, cudaMalloc(out, (count + 1) * sizeof(T)));
    return WF_OK;
}

template <typename T> wf_status bring(wf_ctx *ctx, const T *from, size_t count, T **out) {
    WF_TRY(take(ctx, count, out));
    WF_CUDA_TRY(ctx, cudaMemcpy(*out, from, count * sizeof(T), cudaMemcpyHostToDevice));
    return WF_OK;
}

wf_status prepare(wf_ctx *ctx, const wf_graph *graph, const float *x, const int32_t *labels,
                  size_t n, bool masks, bool logits, exec_memory *m, exec_args *args, int *blocks) {
    exec_layer *layers;
    int processors = 0, device = 0;
    size_t examples = (size_t)args->examples;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_layers, sizeof *layers, "forward pass", &layers));
    args->floats = describe(graph, layers);
    wf_status status = bring(ctx, layers, (size_t)graph->n_layers, &m->layers);
    free(layers);
    WF_TRY(status);
    WF_CUDA_TRY(ctx, cudaGetDevice(&device));
    WF_CUDA_TRY(ctx, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    size_t most = scratch_bytes / (args->floats * sizeof(float)), wanted = 4 * (size_t)processors;
    if (most < 1)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: values of %.200s take more than %zu GB for %d examples",
                       graph->text, scratch_bytes >> 30, (int)tile);
    *blocks = (int)(wanted < most ? wanted : most);
    WF_TRY(take(ctx, (size_t)*blocks * args->floats, &m->scratch));
    WF_TRY(bring(ctx, x, examples * (size_t)graph->inputs, &m->x));
    if (masks) WF_TRY(bring(ctx, labels, examples, &m->labels));
    size_t slab = n < most_networks ? n : (size_t)most_networks;
    WF_TRY(take(ctx, slab * graph->n_params, &m->weights));
    if (masks) WF_TRY(take(ctx, slab * (size_t)args->tiles, &m->masks));
    if (logits) WF_TRY(take(ctx, slab * examples * (size_t)graph->outputs, &m->logits));
    args->layers = m->layers, args->scratch = m->scratch, args->x = m->x;
    args->labels = m->labels, args->weights = m->weights;
    args->masks = m->masks, args->logits = m->logits;
    return WF_OK;
}

wf_status run_slab(wf_ctx *ctx, const exec_args &args, int blocks, const float *weights,
                   uint8_t *errors, float *logits) {
    size_t n = (size_t)args.networks, bytes = ((size_t)args.examples + 7) / 8;
    WF_CUDA_TRY(ctx, cudaMemcpy((void *)args.weights, weights, n * args.n_params * sizeof(float),
                                cudaMemcpyHostToDevice));
    int items = args.networks * args.tiles;
    execute_networks<<<(unsigned)(items < blocks ? items : blocks), threads, 0, 0>>>(args);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    for (size_t k = 0; errors != NULL && k < n; k++)
        WF_CUDA_TRY(ctx, cudaMemcpy(errors + k * bytes, args.masks + k * (size_t)args.tiles, bytes,
                                    cudaMemcpyDeviceToHost));
    if (logits != NULL)
        WF_CUDA_TRY(ctx, cudaMemcpy(logits, args.logits,
                                    n * (size_t)args.examples * args.outputs * sizeof(float),
                                    cudaMemcpyDeviceToHost));
    return WF_OK;
}

} // namespace

extern "C" wf_status wf__execute_cuda(wf_ctx *ctx, const wf_graph *graph, const float *weights,
                                      size_t n, const float *x, const int32_t *labels,
                                      size_t examples, uint8_t *errors, float *logits) {
    if (n == 0 || examples == 0) return WF_OK;
    if (examples > INT32_MAX / 64)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: more than 2^25 examples");
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    exec_memory m = {};
    exec_args args = {};
    int blocks = 1;
    args.n_layers = graph->n_layers, args.inputs = graph->inputs, args.outputs = graph->outputs;
    args.n_params = graph->n_params, args.examples = (int)examples;
    args.tiles = (int)((examples + tile - 1) / tile);
    wf_status status =
        prepare(ctx, graph, x, labels, n, errors != NULL, logits != NULL, &m, &args, &blocks);
    wf_meter meter = wf_meter_start(ctx, "testing networks", "networks", (double)n);
    for (size_t done = 0; done < n && status == WF_OK; done += (size_t)args.networks) {
        args.networks = (int)(n - done < most_networks ? n - done : (size_t)most_networks);
        status = run_slab(ctx, args, blocks, weights + done * graph->n_params,
                          errors == NULL ? NULL : errors + done * ((examples + 7) / 8),
                          logits == NULL ? NULL : logits + done * examples * graph->outputs);
        wf_meter_update(&meter, (double)(done + (size_t)args.networks), NULL);
        if (status == WF_OK && wf_interrupted(ctx))
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while testing networks");
    }
    wf_meter_end(&meter, (double)n, NULL);
    cudaFree(m.layers), cudaFree(m.weights), cudaFree(m.x), cudaFree(m.scratch);
    cudaFree(m.logits), cudaFree(m.labels), cudaFree(m.masks);
    return status;
}
