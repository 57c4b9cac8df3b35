/* zoo_cuda: a network per thread block, from its first update to its last, all state on chip.
 *
 * Per update and chunk of R examples the block computes, on shared memory, with 4 x 4 register tiles
 *   z_l = h_{l-1} W_l' + b_l      h_l = act(z_l)      d_L = (softmax(z_L) - target) / batch
 *   G_l += d_l' h_{l-1}           d_{l-1} = (d_l W_l) * act'(z_{l-1})
 * then Adam or SGD over the padded parameters. Widths are padded to multiples of 4 with zero weights,
 * rows of shared matrices are 4 floats longer than that so that neighbouring rows lie in other banks.
 * The examples' order comes from a kernel of its own: one thread per (network, epoch) shuffles in
 * place, because a Fisher-Yates shuffle is one long dependent chain.
 *
 * Bytes: weights, gradient, moments 16 P, activations and their gradients 8 R sum(widths).
 * FLOPs: karhunen 64-16-8-10, batch 128: 0.66 MFLOP an update; 0.214 GFLOP a network of 25 epochs.
 * I1  Sums run in fixed order; a network's bits depend on nothing but itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/cuda/device.h"
#include "base/pool.h"
#include "weft/rng.h"
#include "zoo/cuda/zoo_cuda.h"
}

namespace {

enum { block_threads = 128, max_layers = 8, shared_limit = 227 * 1024, wave_bytes = 1 << 30 };

struct gpu_layer {
    int in, out, in_padded, out_padded;
    int stride_in, stride_out; /* rows of h_{l-1} and of z_l */
    int weight, bias;          /* in the padded parameters: (out_padded, stride_in), (out_padded) */
    int flat_weight, flat_bias; /* in the flat vector; flat_bias < 0: none */
    int output;                 /* h_l (rows, stride_out) in shared memory */
    int delta;                  /* d_l, the same shape; of the last layer: output */
    int slope;                  /* act'(z_l), or -1 where h_l tells it */
};

struct gpu_plan {
    int n_layers;
    gpu_layer layer[max_layers];
    int activation;
    int n_params, n_padded;
    int rows;  /* R */
    int input; /* h_0 */
    int shared_floats;
    int batch, n_train, n_test, inputs, classes, epochs_max;
    int optimizer, nesterov, cosine;
    float momentum, weight_decay, smoothing;
    double beta1, beta2, eps;
    const float *x_train, *x_test;
    const int32_t *y_train, *y_test;
};

struct gpu_task {
    uint32_t index;
    int epochs;
    double lr;
};

__global__ void shuffle_examples(gpu_plan plan, uint64_t seed, const gpu_task *tasks, int count,
                                 uint16_t *order16, uint32_t *order32) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    int network = thread / plan.epochs_max, epoch = thread % plan.epochs_max;
    if (network >= count || epoch >= tasks[network].epochs) return;
    size_t start = ((size_t)network * plan.epochs_max + epoch) * plan.n_train;
    wf_rng rng = wf_rng_at(seed, tasks[network].index, WF_RNG_SHUFFLE, (uint32_t)epoch);
    uint32_t n = (uint32_t)plan.n_train;
    if (order16 != NULL) {
        uint16_t *order = order16 + start;
        for (uint32_t i = 0; i < n; i++) order[i] = (uint16_t)i;
        for (uint32_t i = n; i > 1; i--) {
            uint32_t j = wf_rng_below(&rng, i);
            uint16_t kept = order[i - 1];
            order[i - 1] = order[j];
            order[j] = kept;
        }
    } else {
        uint32_t *order = order32 + start;
        for (uint32_t i = 0; i < n; i++) order[i] = i;
        for (uint32_t i = n; i > 1; i--) {
            uint32_t j = wf_rng_below(&rng, i);
            uint32_t kept = order[i - 1];
            order[i - 1] = order[j];
            order[j] = kept;
        }
    }
}

__device__ __forceinline__ float4 load4(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ float activate(int activation, float z, float *slope) {
    switch (activation) {
    case WF_ACT_RELU: *slope = z > 0; return z > 0 ? z : 0;
    case WF_ACT_TANH: {
        float h = tanhf(z);
        *slope = 1 - h * h;
        return h;
    }
    case WF_ACT_GELU: {
        float cdf = 0.5f * (1 + erff(z * 0.70710678f));
        *slope = cdf + z * 0.39894228f * expf(-0.5f * z * z);
        return z * cdf;
    }
    case WF_ACT_SILU: {
        float s = 1 / (1 + expf(-z));
        *slope = s * (1 + z * (1 - s));
        return z * s;
    }
    case WF_ACT_SIGMOID: {
        float s = 1 / (1 + expf(-z));
        *slope = s * (1 - s);
        return s;
    }
    default: *slope = 1; return z;
    }
}

/* The slope where the activation itself tells it. */
__device__ __forceinline__ float slope_from_output(int activation, float h) {
    switch (activation) {
    case WF_ACT_RELU: return h > 0;
    case WF_ACT_TANH: return 1 - h * h;
    case WF_ACT_SIGMOID: return h * (1 - h);
    default: return 1;
    }
}

/* z_l (R, out) = h W' + b, activated unless it is the last layer. Tile: rows r, r + R/4 .., units n .. n+3. */
__device__ void layer_forward(const gpu_plan &plan, const gpu_layer &layer, bool last,
                              const float *input, const float *weights, float *shared,
                              int rows_used) {
    int rows = plan.rows, quarter = rows / 4, unit_tiles = layer.out_padded / 4;
    float *output = shared + layer.output;
    for (int tile = threadIdx.x; tile < quarter * unit_tiles; tile += block_threads) {
        int unit = tile % unit_tiles, row = tile / unit_tiles;
        if (row >= rows_used) continue;
        float sum[4][4];
        for (int c = 0; c < 4; c++) {
            float b = weights[layer.bias + unit + c * unit_tiles];
            for (int r = 0; r < 4; r++) sum[r][c] = b;
        }
        const float *h = input + row * layer.stride_in;
        const float *w = weights + layer.weight + unit * layer.stride_in;
        for (int k = 0; k < layer.in_padded; k += 4) {
            float4 hv[4], wv[4];
            for (int r = 0; r < 4; r++) hv[r] = load4(h + r * quarter * layer.stride_in + k);
            for (int c = 0; c < 4; c++) wv[c] = load4(w + c * unit_tiles * layer.stride_in + k);
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 4; c++) sum[r][c] = dot4(hv[r], wv[c], sum[r][c]);
        }
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4; c++) {
                int place = (row + r * quarter) * layer.stride_out + unit + c * unit_tiles;
                float z = sum[r][c], slope = 1;
                if (!last) z = activate(plan.activation, z, &slope);
                if (unit + c * unit_tiles >= layer.out)
                    z = slope = 0; /* sigmoid of padding is not 0 */
                output[place] = z;
                if (!last && layer.slope >= 0) shared[layer.slope + place] = slope;
            }
    }
}

/* d_{l-1} (R, in) = (d_l W_l) * act'(z_{l-1}). Tile: rows r + quarters, inputs k .. k+3 together. */
__device__ void layer_backward(const gpu_plan &plan, const gpu_layer &layer, const gpu_layer &below,
                               const float *weights, float *shared) {
    int rows = plan.rows, quarter = rows / 4, tiles = layer.in_padded / 4;
    const float *delta = shared + layer.delta;
    for (int tile = threadIdx.x; tile < quarter * tiles; tile += block_threads) {
        int k = 4 * (tile % tiles), row = tile / tiles;
        float4 sum[4] = {};
        for (int n = 0; n < layer.out_padded; n++) {
            float4 w = load4(weights + layer.weight + n * layer.stride_in + k);
            for (int r = 0; r < 4; r++) {
                float d = delta[(row + r * quarter) * layer.stride_out + n];
                sum[r].x = fmaf(d, w.x, sum[r].x);
                sum[r].y = fmaf(d, w.y, sum[r].y);
                sum[r].z = fmaf(d, w.z, sum[r].z);
                sum[r].w = fmaf(d, w.w, sum[r].w);
            }
        }
        for (int r = 0; r < 4; r++) {
            int place = (row + r * quarter) * below.stride_out + k;
            const float *s = &sum[r].x;
            for (int c = 0; c < 4; c++) {
                float slope =
                    below.slope >= 0
                        ? shared[below.slope + place + c]
                        : slope_from_output(plan.activation, shared[below.output + place + c]);
                shared[below.delta + place + c] = s[c] * slope;
            }
        }
    }
}

/* G_l (out, in) += d_l' h_{l-1} and the bias' sum. Tile: units n .. n+3, inputs k .. k+3. */
__device__ void layer_gradient(const gpu_plan &plan, const gpu_layer &layer, const float *input,
                               const float *shared, int rows_used, float *gradient) {
    const float *delta = shared + layer.delta;
    int input_tiles = layer.in_padded / 4, tiles = layer.out_padded / 4 * input_tiles;
    for (int tile = threadIdx.x; tile < tiles; tile += block_threads) {
        int k = 4 * (tile % input_tiles), n = 4 * (tile / input_tiles);
        float4 sum[4] = {};
        for (int row = 0; row < rows_used; row++) {
            float4 h = load4(input + row * layer.stride_in + k);
            float4 d = load4(delta + row * layer.stride_out + n);
            const float *dn = &d.x;
            for (int c = 0; c < 4; c++) {
                sum[c].x = fmaf(dn[c], h.x, sum[c].x);
                sum[c].y = fmaf(dn[c], h.y, sum[c].y);
                sum[c].z = fmaf(dn[c], h.z, sum[c].z);
                sum[c].w = fmaf(dn[c], h.w, sum[c].w);
            }
        }
        for (int c = 0; c < 4; c++) {
            float *g = gradient + layer.weight + (n + c) * layer.stride_in + k;
            g[0] += sum[c].x, g[1] += sum[c].y, g[2] += sum[c].z, g[3] += sum[c].w;
        }
    }
    if (layer.flat_bias < 0) return;
    for (int n = threadIdx.x; n < layer.out; n += block_threads) {
        float sum = 0;
        for (int row = 0; row < rows_used; row++) sum += delta[row * layer.stride_out + n];
        gradient[layer.bias + n] += sum;
    }
}

/* Logits to their gradient, one thread an example. Rows beyond rows_used get zero. */
__device__ void loss_gradient(const gpu_plan &plan, const int32_t *labels, int rows_used, int batch,
                              float *shared) {
    const gpu_layer &layer = plan.layer[plan.n_layers - 1];
    for (int row = threadIdx.x; row < plan.rows; row += block_threads) {
        float *z = shared + layer.output + row * layer.stride_out;
        if (row >= rows_used) {
            for (int c = 0; c < layer.out_padded; c++) z[c] = 0;
            continue;
        }
        float top = z[0], total = 0;
        for (int c = 1; c < plan.classes; c++) top = fmaxf(top, z[c]);
        for (int c = 0; c < plan.classes; c++) {
            z[c] = expf(z[c] - top);
            total += z[c];
        }
        for (int c = 0; c < plan.classes; c++) {
            float target =
                plan.smoothing / plan.classes + (c == labels[row] ? 1 - plan.smoothing : 0);
            z[c] = (z[c] / total - target) / batch;
        }
    }
}

__device__ void load_examples(const gpu_plan &plan, const float *x, const uint16_t *order16,
                              const uint32_t *order32, size_t first, int rows_used,
                              const int32_t *y, int32_t *labels, float *shared) {
    const gpu_layer &layer = plan.layer[0];
    float *input = shared + plan.input;
    for (int i = threadIdx.x; i < plan.rows * layer.in_padded; i += block_threads) {
        int row = i / layer.in_padded, k = i % layer.in_padded;
        float value = 0;
        if (row < rows_used && k < plan.inputs) {
            size_t example = order16   ? order16[first + row]
                             : order32 ? order32[first + row]
                                       : first + row;
            value = x[example * plan.inputs + k];
            if (k == 0) labels[row] = y[example];
        }
        input[row * layer.stride_in + k] = value;
    }
}

__device__ const float *layer_input(const gpu_plan &plan, const float *shared, int l) {
    return shared + (l == 0 ? plan.input : plan.layer[l - 1].output);
}

__device__ void load_weights(const gpu_plan &plan, const float *flat, float *weights) {
    for (int i = threadIdx.x; i < plan.n_padded; i += block_threads) weights[i] = 0;
    __syncthreads();
    for (int l = 0; l < plan.n_layers; l++) {
        const gpu_layer &layer = plan.layer[l];
        for (int i = threadIdx.x; i < layer.in * layer.out; i += block_threads)
            weights[layer.weight + i / layer.in * layer.stride_in + i % layer.in] =
                flat[layer.flat_weight + i];
        if (layer.flat_bias >= 0)
            for (int i = threadIdx.x; i < layer.out; i += block_threads)
                weights[layer.bias + i] = flat[layer.flat_bias + i];
    }
    __syncthreads();
}

__global__ void __launch_bounds__(block_threads)
    train_networks(gpu_plan plan, const gpu_task *tasks, const uint16_t *order16,
                   const uint32_t *order32, float *flat, uint8_t *finite) {
    extern __shared__ __align__(16) float shared[];
    __shared__ int32_t labels[128];
    __shared__ int broken;
    float *weights = shared, *gradient = weights + plan.n_padded, *first = gradient + plan.n_padded,
          *second = first + plan.n_padded;
    float *work = second + plan.n_padded; /* offsets of the plan count from here */
    gpu_task task = tasks[blockIdx.x];
    float *mine = flat + (size_t)blockIdx.x * plan.n_params;
    load_weights(plan, mine, weights);
    for (int i = threadIdx.x; i < plan.n_padded; i += block_threads)
        gradient[i] = first[i] = second[i] = 0;
    if (threadIdx.x == 0) broken = 0;
    int per_epoch = (plan.n_train + plan.batch - 1) / plan.batch;
    double updates = (double)per_epoch * task.epochs, power1 = 1, power2 = 1;
    long update = 0;
    for (int epoch = 0; epoch < task.epochs; epoch++) {
        size_t order = ((size_t)blockIdx.x * plan.epochs_max + epoch) * plan.n_train;
        for (int start = 0; start < plan.n_train; start += plan.batch, update++) {
            int batch = min(plan.batch, plan.n_train - start);
            for (int done = 0; done < batch; done += plan.rows) {
                int rows_used = min(plan.rows, batch - done);
                __syncthreads();
                load_examples(plan, plan.x_train, order16, order32, order + start + done, rows_used,
                              plan.y_train, labels, work);
                __syncthreads();
                for (int l = 0; l < plan.n_layers; l++) {
                    layer_forward(plan, plan.layer[l], l + 1 == plan.n_layers,
                                  layer_input(plan, work, l), weights, work, rows_used);
                    __syncthreads();
                }
                loss_gradient(plan, labels, rows_used, batch, work);
                __syncthreads();
                for (int l = plan.n_layers - 1; l >= 0; l--) {
                    if (l > 0)
                        layer_backward(plan, plan.layer[l], plan.layer[l - 1], weights, work);
                    layer_gradient(plan, plan.layer[l], layer_input(plan, work, l), work, rows_used,
                                   gradient);
                    __syncthreads();
                }
            }
            double lr = plan.cosine ? 0.5 * task.lr * (1 + cospi(update / updates)) : task.lr;
            power1 *= plan.beta1, power2 *= plan.beta2;
            float step = (float)(lr / (1 - power1)), root = (float)(1 / sqrt(1 - power2)),
                  rate = (float)lr;
            float b1 = (float)plan.beta1, b2 = (float)plan.beta2, eps = (float)plan.eps;
            for (int i = threadIdx.x; i < plan.n_padded; i += block_threads) {
                float w = weights[i], g = gradient[i] + plan.weight_decay * w;
                gradient[i] = 0;
                if (plan.optimizer == WF_ZOO_ADAM) {
                    float m = first[i] = b1 * first[i] + (1 - b1) * g;
                    float v = second[i] = b2 * second[i] + (1 - b2) * g * g;
                    weights[i] = w - step * m / (sqrtf(v) * root + eps);
                } else {
                    float m = first[i] = update == 0 ? g : plan.momentum * first[i] + g;
                    float d = plan.momentum == 0 ? g : plan.nesterov ? g + plan.momentum * m : m;
                    weights[i] = w - rate * d;
                }
            }
        }
    }
    __syncthreads();
    int bad = 0;
    for (int i = threadIdx.x; i < plan.n_padded; i += block_threads) bad |= !isfinite(weights[i]);
    if (bad) broken = 1;
    for (int l = 0; l < plan.n_layers; l++) {
        const gpu_layer &layer = plan.layer[l];
        for (int i = threadIdx.x; i < layer.in * layer.out; i += block_threads)
            mine[layer.flat_weight + i] =
                weights[layer.weight + i / layer.in * layer.stride_in + i % layer.in];
        if (layer.flat_bias >= 0)
            for (int i = threadIdx.x; i < layer.out; i += block_threads)
                mine[layer.flat_bias + i] = weights[layer.bias + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) finite[blockIdx.x] = !broken;
}

/* Error bits of the test examples, and how many there are. plan.rows is a multiple of 32 here. */
__global__ void __launch_bounds__(block_threads)
    judge_networks(gpu_plan plan, const float *flat, uint8_t *errors, uint32_t *wrong) {
    extern __shared__ __align__(16) float shared[];
    __shared__ int32_t labels[128];
    __shared__ uint32_t total;
    float *weights = shared, *work = weights + plan.n_padded;
    size_t bytes = ((size_t)plan.n_test + 7) / 8;
    uint8_t *mine = errors + blockIdx.x * bytes;
    if (threadIdx.x == 0) total = 0;
    load_weights(plan, flat + (size_t)blockIdx.x * plan.n_params, weights);
    const gpu_layer &last = plan.layer[plan.n_layers - 1];
    for (int start = 0; start < plan.n_test; start += plan.rows) {
        int rows_used = min(plan.rows, plan.n_test - start);
        load_examples(plan, plan.x_test, NULL, NULL, (size_t)start, rows_used, plan.y_test, labels,
                      work);
        __syncthreads();
        for (int l = 0; l < plan.n_layers; l++) {
            layer_forward(plan, plan.layer[l], l + 1 == plan.n_layers, layer_input(plan, work, l),
                          weights, work, rows_used);
            __syncthreads();
        }
        for (int row = threadIdx.x; row < plan.rows; row += block_threads) {
            bool is_wrong = false;
            if (row < rows_used) {
                const float *z = work + last.output + row * last.stride_out;
                int best = 0;
                for (int c = 1; c < plan.classes; c++)
                    if (z[c] > z[best]) best = c;
                is_wrong = best != labels[row];
            }
            uint32_t mask = __ballot_sync(0xffffffffu, is_wrong);
            if (row % 32 == 0) {
                atomicAdd(&total, (uint32_t)__popc(mask)); /* integers: order does not matter */
                for (int byte = 0; byte < 4; byte++) {
                    size_t place = (size_t)(start + row) / 8 + byte;
                    if (place < bytes) mine[place] = (uint8_t)(mask >> (8 * byte));
                }
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) wrong[blockIdx.x] = total;
}

int padded4(int n) { return (n + 3) / 4 * 4; }

/* Lays out parameters and the working memory of R rows; counts floats in shared_floats. */
void lay_out(gpu_plan *plan, const wf_zoo_chain *chain, int rows, bool training) {
    plan->rows = rows;
    int params = 0, work = 0;
    for (int l = 0; l < chain->n_layers; l++) {
        const wf_zoo_layer *from = &chain->layers[l];
        gpu_layer *to = &plan->layer[l];
        bool last = l + 1 == chain->n_layers;
        bool tells = chain->activation != WF_ACT_GELU && chain->activation != WF_ACT_SILU;
        to->in = from->in, to->out = from->out;
        to->in_padded = padded4(from->in), to->out_padded = padded4(from->out);
        to->stride_in = to->in_padded + 4, to->stride_out = to->out_padded + 4;
        to->flat_weight = (int)from->weight_offset;
        to->flat_bias = from->bias ? (int)from->bias_offset : -1;
        to->weight = params;
        params += to->out_padded * to->stride_in;
        to->bias = params;
        params += to->out_padded;
        if (l == 0) {
            plan->input = work;
            work += rows * to->stride_in;
        }
        to->output = to->delta = work;
        work += rows * to->stride_out;
        to->slope = -1;
        if (training && !last) {
            to->delta = work;
            work += rows * to->stride_out;
            if (!tells) {
                to->slope = work;
                work += rows * to->stride_out;
            }
        }
    }
    plan->n_padded = params;
    plan->shared_floats = (training ? 4 : 1) * params + work;
}

/* The most rows that fit; training prefers two blocks on an SM to a larger chunk. */
bool choose_rows(gpu_plan *plan, const wf_zoo_chain *chain, bool training) {
    int limits[] = {shared_limit / 2 - 1024, shared_limit};
    for (int pass = 0; pass < 2; pass++)
        for (int rows = 128; rows >= 32; rows /= 2) {
            if (training && rows > 32 && rows / 2 >= plan->batch) continue;
            lay_out(plan, chain, rows, training);
            if (plan->shared_floats * (int)sizeof(float) + 1024 <= limits[pass]) return true;
        }
    return false;
}

struct gpu_memory {
    void *piece[16];
    int used;
};

cudaError_t take(gpu_memory *memory, size_t bytes, void *out) {
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error == cudaSuccess) memory->piece[memory->used++] = p;
    memcpy(out, &p, sizeof p);
    return error;
}

/* The networks of a piece that wait, side by side. */
struct gathered {
    size_t count, done; /* done: finished and copied back */
    size_t *place;      /* in the piece */
    float *weights;
    wf_zoo_task *tasks;
    uint8_t *finite, *errors;
    uint32_t *wrong;
    wf_meter *meter;
    size_t done_before;
};

wf_status run_waves(wf_ctx *ctx, const wf_zoo_plan *host, gpu_plan plan, gpu_plan judge,
                    gathered &networks, gpu_memory *memory) {
    size_t count = networks.count;
    const wf_zoo_task *tasks = networks.tasks;
    for (size_t k = 0; k < count; k++)
        if (tasks[k].epochs > plan.epochs_max) plan.epochs_max = tasks[k].epochs;
    bool narrow = plan.n_train <= 65536;
    size_t order_bytes = (size_t)plan.epochs_max * plan.n_train * (narrow ? 2 : 4);
    size_t wave = wave_bytes / (order_bytes ? order_bytes : 1);
    wave = wave < 1024 ? 1024 : wave;
    wave = wave > count ? count : wave;
    size_t x_bytes = sizeof(float) * (size_t)plan.inputs, mask = ((size_t)plan.n_test + 7) / 8;
    float *gpu_weights, *x_train, *x_test;
    int32_t *y_train, *y_test;
    gpu_task *gpu_tasks;
    void *order;
    uint8_t *gpu_finite, *gpu_errors;
    uint32_t *gpu_wrong;
    WF_CUDA_TRY(ctx, take(memory, wave * plan.n_params * sizeof(float), &gpu_weights));
    WF_CUDA_TRY(ctx, take(memory, wave * sizeof(gpu_task), &gpu_tasks));
    WF_CUDA_TRY(ctx, take(memory, wave * order_bytes, &order));
    WF_CUDA_TRY(ctx, take(memory, wave, &gpu_finite));
    WF_CUDA_TRY(ctx, take(memory, wave * mask, &gpu_errors));
    WF_CUDA_TRY(ctx, take(memory, wave * sizeof(uint32_t), &gpu_wrong));
    WF_CUDA_TRY(ctx, take(memory, x_bytes * plan.n_train, &x_train));
    WF_CUDA_TRY(ctx, take(memory, x_bytes * plan.n_test, &x_test));
    WF_CUDA_TRY(ctx, take(memory, sizeof(int32_t) * plan.n_train, &y_train));
    WF_CUDA_TRY(ctx, take(memory, sizeof(int32_t) * plan.n_test, &y_test));
    WF_CUDA_TRY(ctx,
                cudaMemcpy(x_train, host->train.x, x_bytes * plan.n_train, cudaMemcpyHostToDevice));
    WF_CUDA_TRY(ctx, cudaMemcpy(y_train, host->train.y, sizeof(int32_t) * plan.n_train,
                                cudaMemcpyHostToDevice));
    if (plan.n_test > 0) {
        WF_CUDA_TRY(
            ctx, cudaMemcpy(x_test, host->test.x, x_bytes * plan.n_test, cudaMemcpyHostToDevice));
        WF_CUDA_TRY(ctx, cudaMemcpy(y_test, host->test.y, sizeof(int32_t) * plan.n_test,
                                    cudaMemcpyHostToDevice));
    }
    plan.x_train = judge.x_train = x_train, plan.x_test = judge.x_test = x_test;
    plan.y_train = judge.y_train = y_train, plan.y_test = judge.y_test = y_test;
    int train_bytes = plan.shared_floats * (int)sizeof(float),
        judge_bytes = judge.shared_floats * (int)sizeof(float);
    WF_CUDA_TRY(ctx, cudaFuncSetAttribute(
                         train_networks, cudaFuncAttributeMaxDynamicSharedMemorySize, train_bytes));
    WF_CUDA_TRY(ctx, cudaFuncSetAttribute(
                         judge_networks, cudaFuncAttributeMaxDynamicSharedMemorySize, judge_bytes));
    gpu_task *staged = (gpu_task *)malloc(wave * sizeof *staged);
    wf_status status = staged ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "collection: out of memory");
    for (size_t start = 0; start < count && status == WF_OK; start += wave) {
        size_t n = count - start < wave ? count - start : wave;
        for (size_t k = 0; k < n; k++)
            staged[k] =
                gpu_task{tasks[start + k].index, tasks[start + k].epochs, tasks[start + k].lr};
        float *part = networks.weights + start * plan.n_params;
        cudaMemcpy(gpu_tasks, staged, n * sizeof *staged, cudaMemcpyHostToDevice);
        cudaMemcpy(gpu_weights, part, n * plan.n_params * sizeof(float), cudaMemcpyHostToDevice);
        uint16_t *order16 = narrow ? (uint16_t *)order : NULL;
        uint32_t *order32 = narrow ? NULL : (uint32_t *)order;
        unsigned shuffles = (unsigned)((n * plan.epochs_max + 127) / 128);
        shuffle_examples<<<shuffles, 128>>>(plan, host->desc->seed, gpu_tasks, (int)n, order16,
                                            order32);
        train_networks<<<(unsigned)n, block_threads, train_bytes>>>(
            plan, gpu_tasks, order16, order32, gpu_weights, gpu_finite);
        if (plan.n_test > 0)
            judge_networks<<<(unsigned)n, block_threads, judge_bytes>>>(judge, gpu_weights,
                                                                        gpu_errors, gpu_wrong);
        cudaMemcpy(part, gpu_weights, n * plan.n_params * sizeof(float), cudaMemcpyDeviceToHost);
        cudaMemcpy(networks.finite + start, gpu_finite, n, cudaMemcpyDeviceToHost);
        if (plan.n_test > 0) {
            cudaMemcpy(networks.errors + start * mask, gpu_errors, n * mask,
                       cudaMemcpyDeviceToHost);
            cudaMemcpy(networks.wrong + start, gpu_wrong, n * sizeof(uint32_t),
                       cudaMemcpyDeviceToHost);
        }
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            status = wf_fail(ctx, WF_ERR_FAILED, "GPU: training networks: %s",
                             cudaGetErrorString(error));
        else networks.done = start + n;
        if (networks.meter)
            wf_meter_update(networks.meter, (double)(networks.done_before + networks.done), NULL);
        if (status == WF_OK && wf_interrupted(ctx))
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted");
    }
    free(staged);
    return status;
}

wf_status train(wf_ctx *ctx, const wf_zoo_plan *host, gathered &networks, bool judged) {
    const wf_zoo_chain *chain = host->chain;
    const wf_zoo_desc *desc = host->desc;
    if (chain->n_layers > max_layers)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: more than %d layers", max_layers);
    gpu_plan plan = {};
    plan.n_layers = chain->n_layers;
    plan.activation = chain->activation;
    plan.n_params = (int)chain->n_params;
    plan.batch = desc->batch;
    plan.n_train = (int)host->train.n, plan.n_test = judged ? (int)host->test.n : 0;
    plan.inputs = chain->layers[0].in;
    plan.classes = chain->layers[chain->n_layers - 1].out;
    plan.optimizer = desc->optimizer, plan.nesterov = desc->nesterov, plan.cosine = desc->cosine;
    plan.momentum = (float)desc->momentum, plan.weight_decay = (float)desc->weight_decay;
    plan.smoothing = (float)desc->label_smoothing;
    plan.beta1 = desc->beta1, plan.beta2 = desc->beta2, plan.eps = desc->eps;
    gpu_plan judge = plan;
    if (!choose_rows(&plan, chain, true) || !choose_rows(&judge, chain, false))
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: a network of %zu parameters does not fit on chip with its "
                       "optimiser's state",
                       chain->n_params);
    gpu_memory memory = {};
    wf_status status = run_waves(ctx, host, plan, judge, networks, &memory);
    for (int i = 0; i < memory.used; i++) cudaFree(memory.piece[i]);
    return status;
}

struct init_call {
    const wf_zoo_plan *plan;
    const wf_zoo_piece *piece;
    const gathered *networks;
};

void init_network(void *call_, size_t k, int worker) {
    (void)worker;
    const init_call *call = (const init_call *)call_;
    size_t n_params = call->plan->chain->n_params, i = call->networks->place[k];
    float *w = call->networks->weights + k * n_params;
    if (call->piece->fresh)
        wf_zoo_init(call->piece->graph, call->plan->desc->seed, call->piece->index[i], w);
    else memcpy(w, (const float *)call->piece->weights + i * n_params, n_params * sizeof *w);
    call->networks->tasks[k] = wf_zoo_task_of(call->plan->desc, call->piece->index[i]);
}

void keep_results(const wf_zoo_plan *plan, const wf_zoo_piece *piece, const gathered &networks) {
    size_t n_params = plan->chain->n_params;
    for (size_t k = 0; k < networks.done; k++) {
        size_t i = networks.place[k];
        memcpy((float *)piece->weights + i * n_params, networks.weights + k * n_params,
               n_params * sizeof(float));
        piece->state[i] = networks.finite[k] ? WF_ZOO_TRAINED : WF_ZOO_DIVERGED;
        if (piece->scores == NULL) continue;
        memcpy(piece->errors + i * piece->error_bytes, networks.errors + k * piece->error_bytes,
               piece->error_bytes);
        piece->scores[i] = (float)(1 - (double)networks.wrong[k] / (double)plan->test.n);
    }
}

} // namespace

extern "C" wf_status wf_zoo_cuda_run(wf_ctx *ctx, const wf_zoo_plan *plan,
                                     const wf_zoo_piece *piece) {
    gathered networks = {};
    size_t count = 0;
    for (size_t i = 0; i < piece->count; i++) count += piece->state[i] == WF_ZOO_WAITING;
    if (count == 0) return WF_OK;
    wf_status status =
        wf_alloc(ctx, count, plan->chain->n_params * sizeof(float), "networks", &networks.weights);
    if (status == WF_OK) status = wf_alloc(ctx, count, sizeof(size_t), "networks", &networks.place);
    if (status == WF_OK)
        status = wf_alloc(ctx, count, sizeof(wf_zoo_task), "networks", &networks.tasks);
    if (status == WF_OK) status = wf_alloc(ctx, count, 1, "networks", &networks.finite);
    if (status == WF_OK)
        status = wf_alloc(ctx, count, piece->error_bytes + 1, "error masks", &networks.errors);
    if (status == WF_OK)
        status = wf_alloc(ctx, count, sizeof(uint32_t), "networks", &networks.wrong);
    if (status == WF_OK) {
        for (size_t i = 0; i < piece->count; i++)
            if (piece->state[i] == WF_ZOO_WAITING) networks.place[networks.count++] = i;
        networks.meter = piece->meter;
        networks.done_before = piece->done_before;
        init_call call = {plan, piece, &networks};
        wf_parallel(ctx, count, init_network, &call);
        status = train(ctx, plan, networks, piece->scores != NULL);
        keep_results(plan, piece, networks);
    }
    free(networks.weights), free(networks.place), free(networks.tasks);
    free(networks.finite), free(networks.errors), free(networks.wrong);
    return status;
}
