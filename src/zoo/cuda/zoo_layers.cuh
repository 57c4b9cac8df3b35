/* zoo_layers: the layers of one small MLP on a block's shared memory, in fp32; used by both
 * training kernels.
 *
 *   z_l = h_{l-1} W_l' + b_l      h_l = act(z_l)      d_L = (softmax(z_L) - target) / batch
 *   G_l (+)= d_l' h_{l-1}         d_{l-1} = (d_l W_l) * act'(z_{l-1})
 *
 * Widths are padded to multiples of 4 with zero weights; rows of shared matrices are 4 floats
 * longer than that so that neighbouring rows lie in other banks. Register tiles of 4 x 4 where they
 * keep the block's threads busy, smaller ones where there are few: a step of a small network waits
 * for latency, not for arithmetic. I1  Sums run in fixed order. */
#pragma once

#include <stdint.h>

#include "weft/zoo.h"

namespace zoo_gpu {

enum { max_layers = 8, shared_limit = 227 * 1024 };

/* n / d for n d < 2^32: a division by a number known to the host alone costs some thirty
 * instructions. */
struct divisor {
    uint32_t d, magic;
};

inline divisor divisor_of(int d) {
    return divisor{(uint32_t)d, d == 1 ? 0 : (uint32_t)((((uint64_t)1 << 32) + d - 1) / d)};
}

__device__ inline int quotient(int n, divisor by) {
    return by.magic == 0 ? n : (int)__umulhi((uint32_t)n, by.magic);
}

struct gpu_layer {
    int in, out, in_padded, out_padded;
    int stride_in, stride_out; /* rows of h_{l-1} and of z_l */
    int weight, bias;          /* in the padded parameters: (out_padded, stride_in), (out_padded) */
    int flat_weight, flat_bias;             /* in the flat vector; flat_bias < 0: none */
    int output;                             /* h_l (rows, stride_out) in the working memory */
    int delta;                              /* d_l, the same shape; of the last layer: output */
    int slope;                              /* act'(z_l), or -1 where h_l tells it */
    divisor in_quads, out_pairs, out_quads; /* in_padded / 4, out_padded / 2, out_padded / 4 */
};

struct gpu_plan {
    int n_layers;
    gpu_layer layer[max_layers];
    int activation;
    int n_params, n_padded;
    int rows;  /* examples at once */
    int input; /* h_0 in the working memory */
    int work_floats;
    int batch, n_train, n_test, inputs, classes, epochs_max;
    int optimizer, nesterov, cosine;
    float momentum, weight_decay, smoothing;
    float beta1, rest1, beta2, rest2, eps; /* rest = 1 - beta */
    const float2 *corrections;             /* [updates] 1 / (1 - beta1^k), 1 / sqrt(1 - beta2^k) */
    const float *x_train, *x_test;
    const int32_t *y_train, *y_test;
};

struct gpu_task {
    uint32_t index;
    int epochs;
    double lr;
};

/* Networks side by side, and what a kernel leaves of them. */
struct gpu_networks {
    const gpu_task *tasks;
    const uint16_t *order16; /* (count, epochs_max, n_train), or */
    const uint32_t *order32;
    float *flat; /* (count, n_params) */
    uint32_t *broken, *wrong;
    uint8_t *errors; /* (count, ceil(n_test / 8)) */
    /* A word of the host, not 0 when training is to stop. zoo_block and zoo_conv look at it every
     * `look_every` updates and leave GPU_UNFINISHED in `broken`; the networks of the other kernels
     * are small. */
    const volatile uint32_t *stop;
    int look_every;
};

/* What `broken` says of a network. */
enum { GPU_SOUND, GPU_DIVERGED, GPU_UNFINISHED };

/* The numbers of one update; what a network's own schedule says. */
struct gpu_rates {
    float step, root, rate; /* Adam: lr / (1 - beta1^k), 1 / sqrt(1 - beta2^k); SGD: lr */
};

__device__ inline float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }

__device__ inline float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ inline float activate(int activation, float z, float *slope) {
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
__device__ inline float slope_from_output(int activation, float h) {
    switch (activation) {
    case WF_ACT_RELU: return h > 0;
    case WF_ACT_TANH: return 1 - h * h;
    case WF_ACT_SIGMOID: return h * (1 - h);
    default: return 1;
    }
}

/* Writes act(z) of one unit, and its slope where it cannot be told from it; padding units are 0. */
__device__ inline void finish_unit(const gpu_plan &plan, const gpu_layer &layer, bool last,
                                   float *work, int row, int unit, float z) {
    int place = row * layer.stride_out + unit;
    float slope = 1;
    if (!last) {
        if (plan.activation == WF_ACT_RELU) z = z > 0 ? z : 0;
        else z = activate(plan.activation, z, &slope);
    }
    if (unit >= layer.out) z = slope = 0; /* sigmoid of padding is not 0 */
    work[layer.output + place] = z;
    if (!last && layer.slope >= 0) work[layer.slope + place] = slope;
}

/* Tile: rows r, r + rows/TR .., units u, u + units/TC .. */
template <int TR, int TC>
__device__ inline void forward_tiles(const gpu_plan &plan, const gpu_layer &layer, bool last,
                                     const float *input, const float *weights, float *work,
                                     int rows_used) {
    int row_tiles = plan.rows / TR, unit_tiles = layer.out_padded / TC;
    for (int tile = threadIdx.x; tile < row_tiles * unit_tiles; tile += blockDim.x) {
        int row = quotient(tile, TC == 4 ? layer.out_quads : layer.out_pairs);
        int unit = tile - row * unit_tiles;
        if (row >= rows_used) continue;
        float sum[TR][TC];
        for (int c = 0; c < TC; c++) {
            float b = weights[layer.bias + unit + c * unit_tiles];
            for (int r = 0; r < TR; r++) sum[r][c] = b;
        }
        const float *h = input + row * layer.stride_in;
        const float *w = weights + layer.weight + unit * layer.stride_in;
#pragma unroll 4
        for (int k = 0; k < layer.in_padded; k += 4) {
            float4 hv[TR], wv[TC];
            for (int r = 0; r < TR; r++) hv[r] = load4(h + r * row_tiles * layer.stride_in + k);
            for (int c = 0; c < TC; c++) wv[c] = load4(w + c * unit_tiles * layer.stride_in + k);
            for (int r = 0; r < TR; r++)
                for (int c = 0; c < TC; c++) sum[r][c] = dot4(hv[r], wv[c], sum[r][c]);
        }
        for (int r = 0; r < TR; r++)
            for (int c = 0; c < TC; c++)
                finish_unit(plan, layer, last, work, row + r * row_tiles, unit + c * unit_tiles,
                            sum[r][c]);
    }
}

/* z_l (rows, out) = h W' + b, activated unless it is the last layer. */
__device__ inline void layer_forward(const gpu_plan &plan, const gpu_layer &layer, bool last,
                                     const float *input, const float *weights, float *work,
                                     int rows_used) {
    int tiles = plan.rows * layer.out_padded / 16, threads = blockDim.x;
    if (2 * tiles > threads)
        forward_tiles<4, 4>(plan, layer, last, input, weights, work, rows_used);
    else if (4 * tiles > threads)
        forward_tiles<2, 4>(plan, layer, last, input, weights, work, rows_used);
    else forward_tiles<2, 2>(plan, layer, last, input, weights, work, rows_used);
}

template <int TR>
__device__ inline void backward_tiles(const gpu_plan &plan, const gpu_layer &layer,
                                      const gpu_layer &below, const float *weights, float *work) {
    int row_tiles = plan.rows / TR, tiles = layer.in_padded / 4;
    const float *delta = work + layer.delta;
    for (int tile = threadIdx.x; tile < row_tiles * tiles; tile += blockDim.x) {
        int row = quotient(tile, layer.in_quads), k = 4 * (tile - row * tiles);
        float4 sum[TR] = {};
#pragma unroll 8
        for (int n = 0; n < layer.out_padded; n++) {
            float4 w = load4(weights + layer.weight + n * layer.stride_in + k);
            for (int r = 0; r < TR; r++) {
                float d = delta[(row + r * row_tiles) * layer.stride_out + n];
                sum[r].x = fmaf(d, w.x, sum[r].x);
                sum[r].y = fmaf(d, w.y, sum[r].y);
                sum[r].z = fmaf(d, w.z, sum[r].z);
                sum[r].w = fmaf(d, w.w, sum[r].w);
            }
        }
        for (int r = 0; r < TR; r++) {
            int place = (row + r * row_tiles) * below.stride_out + k;
            const float *s = &sum[r].x;
            for (int c = 0; c < 4; c++) {
                float slope = below.slope >= 0 ? work[below.slope + place + c]
                                               : slope_from_output(plan.activation,
                                                                   work[below.output + place + c]);
                work[below.delta + place + c] = s[c] * slope;
            }
        }
    }
}

/* d_{l-1} (rows, in) = (d_l W_l) * act'(z_{l-1}). */
__device__ inline void layer_backward(const gpu_plan &plan, const gpu_layer &layer,
                                      const gpu_layer &below, const float *weights, float *work) {
    int tiles = plan.rows * layer.in_padded / 16;
    if (2 * tiles > (int)blockDim.x) backward_tiles<4>(plan, layer, below, weights, work);
    else backward_tiles<2>(plan, layer, below, weights, work);
}

template <int TU>
__device__ inline void gradient_tiles(const gpu_layer &layer, const float *input,
                                      const float *delta, int rows_used, bool add,
                                      float *gradient) {
    int input_tiles = layer.in_padded / 4, tiles = layer.out_padded / TU * input_tiles;
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        int group = quotient(tile, layer.in_quads), k = 4 * (tile - group * input_tiles),
            n = TU * group;
        float4 sum[TU] = {};
#pragma unroll 4
        for (int row = 0; row < rows_used; row++) {
            float4 h = load4(input + row * layer.stride_in + k);
            for (int c = 0; c < TU; c++) {
                float d = delta[row * layer.stride_out + n + c];
                sum[c].x = fmaf(d, h.x, sum[c].x);
                sum[c].y = fmaf(d, h.y, sum[c].y);
                sum[c].z = fmaf(d, h.z, sum[c].z);
                sum[c].w = fmaf(d, h.w, sum[c].w);
            }
        }
        for (int c = 0; c < TU; c++) {
            float4 *g =
                reinterpret_cast<float4 *>(gradient + layer.weight + (n + c) * layer.stride_in + k);
            float4 before = add ? *g : make_float4(0, 0, 0, 0);
            *g = make_float4(before.x + sum[c].x, before.y + sum[c].y, before.z + sum[c].z,
                             before.w + sum[c].w);
        }
    }
}

__device__ inline void bias_gradient(const gpu_layer &layer, const float *work, int rows_used,
                                     bool add, float *gradient) {
    if (layer.flat_bias < 0) return;
    const float *delta = work + layer.delta;
    /* From the last thread down: the first ones have tiles of the weights. */
    for (int n = (int)blockDim.x - 1 - (int)threadIdx.x; n < layer.out; n += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int row = 0; row < rows_used; row++) sum += delta[row * layer.stride_out + n];
        gradient[layer.bias + n] = add ? gradient[layer.bias + n] + sum : sum;
    }
}

/* G_l (out, in) (+)= d_l' h_{l-1} and the bias' sum. */
__device__ inline void layer_gradient(const gpu_layer &layer, const float *input, const float *work,
                                      int rows_used, bool add, float *gradient) {
    const float *delta = work + layer.delta;
    if (layer.out_padded * layer.in_padded / 8 > (int)blockDim.x)
        gradient_tiles<4>(layer, input, delta, rows_used, add, gradient);
    else gradient_tiles<2>(layer, input, delta, rows_used, add, gradient);
    bias_gradient(layer, work, rows_used, add, gradient);
}

/* Logits to their gradient, eight lanes an example. Rows beyond rows_used get zero. Whole warps
 * call: lanes after the last row take part in the shuffles alone. */
__device__ inline void loss_gradient(const gpu_plan &plan, const int32_t *labels, int rows_used,
                                     int batch, float *work) {
    const gpu_layer &layer = plan.layer[plan.n_layers - 1];
    int lane = threadIdx.x % 8;
    float each = 1.0f / batch, off = plan.smoothing * each / plan.classes,
          on = (1 - plan.smoothing) * each;
    for (int first = 0; first < plan.rows; first += blockDim.x / 8) {
        int row = first + threadIdx.x / 8;
        int classes = row < plan.rows ? plan.classes : 0;
        float *z = work + layer.output + row * layer.stride_out;
        float top = -INFINITY, total = 0;
        for (int c = lane; c < classes; c += 8) top = fmaxf(top, z[c]);
        for (int d = 1; d < 8; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        for (int c = lane; c < classes; c += 8) total += expf(z[c] - top);
        for (int d = 1; d < 8; d *= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
        float factor = each / total;
        if (row >= plan.rows) continue;
        int label = row < rows_used ? labels[row] : 0;
        for (int c = lane; c < layer.out_padded; c += 8)
            z[c] = row < rows_used && c < plan.classes
                       ? expf(z[c] - top) * factor - off - (c == label ? on : 0)
                       : 0;
    }
}

/* The most likely class of a row; of equal ones the first. */
__device__ inline int predicted(const gpu_plan &plan, const float *work, int row) {
    const gpu_layer &last = plan.layer[plan.n_layers - 1];
    const float *z = work + last.output + row * last.stride_out;
    int best = 0;
    for (int c = 1; c < plan.classes; c++)
        if (z[c] > z[best]) best = c;
    return best;
}

/* m / (root sqrt(v) + eps) to 2^-22, in two special-function instructions; v that is not normal
 * counts as 0. */
__device__ inline float adam_step(float m, float v, float root, float eps) {
    float s, r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(v));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaf(s, root, eps)));
    return m * r;
}

/* One parameter; the semantics of torch.optim. EXACT: divisions and roots as IEEE has them. */
template <bool ADAM, bool EXACT>
__device__ inline void update_parameter(const gpu_plan &plan, const gpu_rates &rates, float g,
                                        float &w, float &first, float &second) {
    g = fmaf(plan.weight_decay, w, g);
    if (ADAM) {
        first = plan.beta1 * first + plan.rest1 * g;
        second = plan.beta2 * second + plan.rest2 * g * g;
        if (EXACT) w -= rates.step * first / (sqrtf(second) * rates.root + plan.eps);
        else w -= adam_step(rates.step * first, second, rates.root, plan.eps);
    } else {
        first = plan.momentum * first + g;
        w -= rates.rate * (plan.nesterov ? fmaf(plan.momentum, first, g) : first);
    }
}

/* All parameters in shared or device memory; gradients (parts, n_padded) are added in order. */
template <bool ADAM, bool EXACT>
__device__ inline void update_padded(const gpu_plan &plan, const gpu_rates &rates,
                                     const float *gradients, int parts, float *weights,
                                     float *first, float *second) {
    for (int i = 4 * threadIdx.x; i < plan.n_padded; i += 4 * blockDim.x) {
        float4 g = load4(gradients + i), w = load4(weights + i), m = load4(first + i),
               v = load4(second + i);
        for (int c = 1; c < parts; c++) {
            float4 more = load4(gradients + (size_t)c * plan.n_padded + i);
            g = make_float4(g.x + more.x, g.y + more.y, g.z + more.z, g.w + more.w);
        }
        update_parameter<ADAM, EXACT>(plan, rates, g.x, w.x, m.x, v.x);
        update_parameter<ADAM, EXACT>(plan, rates, g.y, w.y, m.y, v.y);
        update_parameter<ADAM, EXACT>(plan, rates, g.z, w.z, m.z, v.z);
        update_parameter<ADAM, EXACT>(plan, rates, g.w, w.w, m.w, v.w);
        *reinterpret_cast<float4 *>(weights + i) = w;
        *reinterpret_cast<float4 *>(first + i) = m;
        *reinterpret_cast<float4 *>(second + i) = v;
    }
}

/* Of update k (from 0) of a network with `updates` in all. */
__device__ inline gpu_rates rates_of(const gpu_plan &plan, double lr, int update, int updates) {
    float2 correction = plan.corrections[update];
    if (plan.cosine) lr = 0.5 * lr * (1 + cospi((double)update / updates));
    return gpu_rates{(float)lr * correction.x, correction.y, (float)lr};
}

/* Flat parameters to padded ones and back. Layers before `first_layer` keep their weights
 * elsewhere. */
__device__ inline void load_weights(const gpu_plan &plan, int first_layer, const float *flat,
                                    float *weights) {
    for (int i = threadIdx.x; i < plan.n_padded; i += blockDim.x) weights[i] = 0;
    __syncthreads();
    for (int l = 0; l < plan.n_layers; l++) {
        const gpu_layer &layer = plan.layer[l];
        for (int i = threadIdx.x; l >= first_layer && i < layer.in * layer.out; i += blockDim.x)
            weights[layer.weight + i / layer.in * layer.stride_in + i % layer.in] =
                flat[layer.flat_weight + i];
        for (int i = threadIdx.x; layer.flat_bias >= 0 && i < layer.out; i += blockDim.x)
            weights[layer.bias + i] = flat[layer.flat_bias + i];
    }
    __syncthreads();
}

__device__ inline void store_weights(const gpu_plan &plan, int first_layer, const float *weights,
                                     float *flat) {
    for (int l = 0; l < plan.n_layers; l++) {
        const gpu_layer &layer = plan.layer[l];
        for (int i = threadIdx.x; l >= first_layer && i < layer.in * layer.out; i += blockDim.x)
            flat[layer.flat_weight + i] =
                weights[layer.weight + i / layer.in * layer.stride_in + i % layer.in];
        for (int i = threadIdx.x; layer.flat_bias >= 0 && i < layer.out; i += blockDim.x)
            flat[layer.flat_bias + i] = weights[layer.bias + i];
    }
}

} // namespace zoo_gpu
