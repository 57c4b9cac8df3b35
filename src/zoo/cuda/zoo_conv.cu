/* zoo_conv: a network of convolutions from its first update to its last in one block.
 *
 *   3x3 and other odd kernels, stride 1, same size; relu; 2x2 maximum pooling behind any but the
 *   last, global average behind the last; one linear layer
 *
 * The paper's network (3-16-32-48, 32x32 pixels, 19,450 parameters) has 14.2 MFLOP an image forward
 * and backward, 42.6 TFLOP in 60 epochs of 50,000. One image at a time goes through the block:
 *
 *   shared memory   bf16 weights with a pitch for ldmatrix 50 KB, gradient of the batch in fp32
 *                   78 KB, values and gradients of one image 102 KB: 232,144 of 232,448 bytes
 *   registers       119 a thread of sm_90a, none spilled
 *   device memory   fp32 weights and moments, read and written once an update: 2.4 KB an image
 *
 * All products are m16n8k16 with bf16 operands and fp32 sums. Values lie (y, x, channel), so 16
 * channels of a pixel are 32 bytes, and a row of an operand is a pixel shifted by a tap:
 *
 *   block   layer (barrier)
 *   warp        tile of 2 x 8 pixels, pairs of 16 channels     forward, gradient of values
 *               kernel row, 16 x 16 channels                   gradient of weights, over all pixels
 *   step            tap, 16 channels (16 pixels)
 *
 *   forward    sum (pixel, out) += x (pixel + tap, in) w (tap, out, in)'     ldmatrix, ldmatrix
 *   values     dx (pixel, in)   += d (pixel - tap, out) w (tap, out, in)     ldmatrix, .trans
 *   weights    dw (out, in)     += d (pixel, out)' x (pixel + tap, in)       .trans,   .trans
 *
 * The rows of a tile are its upper and its lower 8 pixels, so a pooling window is two registers of
 * two lanes. What a maximum chose is kept in a byte; sums before pooling are not kept. The first
 * layer has too few channels for that: a warp copies the patches of 16 pixels (27 weights, padded
 * to 32) beside one another, and its products are those of a 1x1 convolution.
 *
 * Measured on an H200 with the paper's network: 1.84 networks of 60 epochs a second, 41,000 cycles
 * an image, of which its 3,536 products would take 7,100. zoo_paper_net trains that network at 5.8.
 *
 * I1  Sums run in fixed order: bits do not depend on the wave or on neighbours.
 * I2  Halos and channels of padding are zero from the start and are never written. */
#include "zoo/cuda/zoo_conv.cuh"

#include "tensor/cuda/tensor_cores/mma.cuh"

namespace zoo_gpu {
namespace {

using wf_gpu::mma::load_matrices;
using wf_gpu::mma::load_transposed;
using wf_gpu::mma::pack;
using wf_gpu::mma::shared_address;
using wf_gpu::mma::warp_mma;

enum { tile_pixels = 16, most_pairs = 3, positive = 4 };
const uint32_t ones = 0x3f803f80u; /* two of bf16 */

/* A warp's place, and the block's shared memory. */
struct block_place {
    unsigned char *shared;
    float *gradient;
    int warp, lane, row, quad; /* of the accumulator: lane / 4, lane % 4 */
    template <typename T> __device__ T *at(int bytes) const { return (T *)(shared + bytes); }
};

struct pixel {
    int y, x;
    bool inside;
};

/* Pixel `row` (0 to 15) of a tile: 8 of one line, then the 8 below them. */
__device__ inline pixel pixel_of(const conv_layer &layer, int tile, int row) {
    int down = tile / layer.tiles_across, across = tile - down * layer.tiles_across;
    pixel p = {2 * down + row / 8, 8 * across + row % 8, true};
    p.inside = p.y < layer.height && p.x < layer.width;
    return p;
}

__device__ inline int place_of(const conv_image &image, int y, int x) {
    return image.at + ((y + image.halo) * image.row + x + image.halo) * image.pitch;
}

/* --- products --------------------------------------------------------------------------------- */

/* sum (16 pixels, 16 pairs) += over all taps. `a` is the lane's row of the first tap; its taps are
 * `down` and `right` bytes apart. */
__device__ inline void multiply(const conv_layer &layer, const block_place &me, uint32_t a,
                                int down, int right, int first, int pairs,
                                float (&sum)[most_pairs][2][4]) {
    /* B: lanes 0-7 units 0-7, 8-15 the same of the next 8 inputs, 16-31 the next 8 units */
    uint32_t b = shared_address(me.shared) + (uint32_t)layer.weight +
                 (uint32_t)((16 * first + 8 * (me.lane / 16) + me.lane % 8) * layer.weight_pitch +
                            16 * (me.lane / 8 % 2));
    for (int tap = 0; tap < layer.taps; tap++) {
        uint32_t from = a + (uint32_t)(tap / layer.kernel * down + tap % layer.kernel * right);
        uint32_t with = b + (uint32_t)(tap * layer.out_padded * layer.weight_pitch);
        for (int k = 0; k < layer.in_padded; k += 16) {
            uint32_t x[4], w[4];
            load_matrices(x, from + 2 * (uint32_t)k);
#pragma unroll
            for (int i = 0; i < most_pairs; i++) {
                if (i >= pairs) break;
                load_matrices(w, with + (uint32_t)(16 * i * layer.weight_pitch + 2 * k));
                warp_mma(sum[i][0], x, w[0], w[1]);
                warp_mma(sum[i][1], x, w[2], w[3]);
            }
        }
    }
}

/* The same for the gradient of what a layer reads: taps mirrored, weights transposed. */
__device__ inline void multiply_back(const conv_layer &layer, const block_place &me, uint32_t a,
                                     int down, int right, int first, int pairs,
                                     float (&sum)[most_pairs][2][4]) {
    /* B: lanes 0-15 units 0-15, 16-31 the same of the next 8 inputs */
    uint32_t b =
        shared_address(me.shared) + (uint32_t)layer.weight +
        (uint32_t)(me.lane % 16 * layer.weight_pitch + 2 * (16 * first) + 16 * (me.lane / 16));
    for (int tap = 0; tap < layer.taps; tap++) {
        uint32_t from = a - (uint32_t)(tap / layer.kernel * down + tap % layer.kernel * right);
        uint32_t with = b + (uint32_t)(tap * layer.out_padded * layer.weight_pitch);
        for (int k = 0; k < layer.out_padded; k += 16) {
            uint32_t d[4], w[4];
            load_matrices(d, from + 2 * (uint32_t)k);
#pragma unroll
            for (int i = 0; i < most_pairs; i++) {
                if (i >= pairs) break;
                load_transposed(w, with + (uint32_t)(k * layer.weight_pitch + 32 * i));
                warp_mma(sum[i][0], d, w[0], w[1]);
                warp_mma(sum[i][1], d, w[2], w[3]);
            }
        }
    }
}

/* Pairs of 16 channels that a warp takes at a time: few enough for all warps to have work. */
__device__ inline int pairs_at_once(int tiles, int channels) {
    int pairs = channels / 16, most = pairs < most_pairs ? pairs : (int)most_pairs;
    while (most > 1 && tiles * ((pairs + most - 1) / most) < conv_warps) most--;
    return most;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* The largest of a window of 2 x 2 and which it is; of equal ones the first. */
__device__ inline float largest(const float (&window)[4], int *which) {
    float best = window[0];
    *which = 0;
#pragma unroll
    for (int i = 1; i < 4; i++)
        if (window[i] > best) best = window[i], *which = i;
    return best;
}

/* Two channels of one place after pooling, where the next layer reads them. */
__device__ inline void keep_values(const conv_plan &plan, const block_place &me, int l, int y,
                                   int x, int channel, const float (&value)[2],
                                   const int (&which)[2]) {
    const conv_layer &layer = plan.layer[l];
    if (y >= layer.next_height || x >= layer.next_width) return;
    uint8_t *choice =
        me.at<uint8_t>(layer.choice) + (y * layer.next_width + x) * layer.out_padded + channel;
    for (int i = 0; i < 2; i++)
        choice[i] = (uint8_t)(which[i] + (value[i] > 0 ? (int)positive : 0));
    if (l + 1 == plan.n_convs) return;
    const conv_image &to = plan.layer[l + 1].values;
    *me.at<uint32_t>(place_of(to, y, x) + 2 * channel) =
        pack(value[0] > 0 ? value[0] : 0, value[1] > 0 ? value[1] : 0);
}

/* Bias, relu and pooling of a tile's 8 channels from `channel` on. */
__device__ inline void finish_sums(const conv_plan &plan, const block_place &me, int l, int tile,
                                   int channel, const float (&sum)[4]) {
    const conv_layer &layer = plan.layer[l];
    channel += 2 * me.quad;
    const float *bias = me.at<float>(layer.bias) + channel;
    float upper[2] = {sum[0] + bias[0], sum[1] + bias[1]};
    float lower[2] = {sum[2] + bias[0], sum[3] + bias[1]};
    pixel p = pixel_of(layer, tile, me.row);
    bool below = p.x < layer.width && p.y + 1 < layer.height;
    int which[2] = {0, 0};
    if (layer.pooled) {
        float value[2];
        for (int i = 0; i < 2; i++) {
            float window[4] = {upper[i], __shfl_xor_sync(0xffffffffu, upper[i], 4), lower[i],
                               __shfl_xor_sync(0xffffffffu, lower[i], 4)};
            value[i] = largest(window, &which[i]);
        }
        if (me.row % 2 == 0) keep_values(plan, me, l, p.y / 2, p.x / 2, channel, value, which);
        return;
    }
    if (p.inside) keep_values(plan, me, l, p.y, p.x, channel, upper, which);
    if (below) keep_values(plan, me, l, p.y + 1, p.x, channel, lower, which);
    if (l + 1 < plan.n_convs) return;
    for (int i = 0; i < 2; i++) { /* of the tile's 16 pixels */
        float total = p.inside && upper[i] > 0 ? upper[i] : 0;
        if (below && lower[i] > 0) total += lower[i];
        for (int d = 4; d < 32; d *= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
        if (me.row == 0) me.at<float>(plan.sums)[tile * layer.out_padded + channel + i] = total;
    }
}

/* The patches of a tile's pixels beside one another; weights of a unit in the order of the file. */
__device__ inline void copy_patches(const conv_plan &plan, const block_place &me, int tile) {
    const conv_layer &layer = plan.layer[0];
    const __nv_bfloat16 *image = me.at<__nv_bfloat16>(plan.image);
    __nv_bfloat16 *to = me.at<__nv_bfloat16>(plan.patches + me.warp * plan.warp_bytes +
                                             me.lane % 16 * plan.patch_pitch);
    pixel p = pixel_of(layer, tile, me.lane % 16);
    int taps = plan.kernel * plan.kernel, pad = plan.kernel / 2;
    for (int k = me.lane / 16; k < layer.in_padded; k += 2) {
        int channel = k / taps, tap = k - channel * taps;
        int y = p.y + tap / plan.kernel - pad, x = p.x + tap % plan.kernel - pad;
        bool inside =
            p.inside && k < layer.in && y >= 0 && y < layer.height && x >= 0 && x < layer.width;
        to[k] =
            inside ? image[(channel * layer.height + y) * layer.width + x] : __float2bfloat16(0.0f);
    }
}

__device__ void first_forward(const conv_plan &plan, const block_place &me) {
    const conv_layer &layer = plan.layer[0];
    uint32_t a = shared_address(me.shared) +
                 (uint32_t)(plan.patches + me.warp * plan.warp_bytes +
                            me.lane % 16 * plan.patch_pitch + 16 * (me.lane / 16));
    int all = layer.out_padded / 16;
    for (int tile = me.warp; tile < layer.tiles; tile += conv_warps) {
        __syncwarp();
        copy_patches(plan, me, tile);
        __syncwarp();
        for (int first = 0; first < all; first += most_pairs) {
            float sum[most_pairs][2][4] = {};
            int pairs = all - first < most_pairs ? all - first : (int)most_pairs;
            multiply(layer, me, a, 0, 0, first, pairs, sum);
#pragma unroll
            for (int i = 0; i < most_pairs; i++)
                for (int half = 0; half < 2 && i < pairs; half++)
                    finish_sums(plan, me, 0, tile, 16 * (first + i) + 8 * half, sum[i][half]);
        }
    }
}

/* Products of a layer's tiles of pixels with 16 of `channels` channels at a time. The operand of a
 * pixel begins `shift` places below and to the right of it in `image`. product(a, first, pairs,
 * sum) multiplies pairs of eight channels from 16 * first on, keep(tile, channel, sum) takes
 * eight. */
template <class Product, class Keep>
__device__ inline void each_tile(const conv_layer &layer, const conv_image &image, int shift,
                                 int channels, const block_place &me, Product product, Keep keep) {
    int all = channels / 16, each = pairs_at_once(layer.tiles, channels);
    int groups = (all + each - 1) / each;
    for (int task = me.warp; task < layer.tiles * groups; task += conv_warps) {
        int tile = task / groups, first = (task - tile * groups) * each;
        int pairs = all - first < each ? all - first : each;
        pixel p = pixel_of(layer, tile, me.lane % 16);
        if (!p.inside) p.y = p.x = 0; /* what it gives is not kept */
        uint32_t a = shared_address(me.shared) +
                     (uint32_t)(place_of(image, p.y + shift, p.x + shift) + 16 * (me.lane / 16));
        float sum[most_pairs][2][4] = {};
        product(a, first, pairs, sum);
#pragma unroll
        for (int i = 0; i < most_pairs; i++)
            for (int half = 0; half < 2 && i < pairs; half++)
                keep(tile, 16 * (first + i) + 8 * half, sum[i][half]);
    }
}

__device__ void layer_forward(const conv_plan &plan, const block_place &me, int l) {
    const conv_layer &layer = plan.layer[l];
    const conv_image &values = layer.values;
    each_tile(
        layer, values, -(layer.kernel / 2), layer.out_padded, me,
        [&](uint32_t a, int first, int pairs, float(&sum)[most_pairs][2][4]) {
            multiply(layer, me, a, values.row * values.pitch, values.pitch, first, pairs, sum);
        },
        [&](int tile, int channel, const float(&sum)[4]) {
            finish_sums(plan, me, l, tile, channel, sum);
        });
}

/* Means of all places, then logits. Ends with a barrier. */
__device__ void linear_forward(const conv_plan &plan, const block_place &me) {
    const conv_layer &last = plan.layer[plan.n_convs - 1];
    float *means = me.at<float>(plan.means), *logits = me.at<float>(plan.logits);
    const float *sums = me.at<float>(plan.sums), *w = me.at<float>(plan.linear);
    for (int c = threadIdx.x; c < last.out; c += conv_threads) {
        float sum = 0;
        for (int tile = 0; tile < last.tiles; tile++) sum += sums[tile * last.out_padded + c];
        means[c] = sum / (float)(last.height * last.width);
    }
    __syncthreads();
    for (int o = me.warp; o < plan.net.classes; o += conv_warps) {
        float sum = 0;
        for (int c = me.lane; c < last.out; c += 32) sum += w[o * last.out + c] * means[c];
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (me.lane == 0) logits[o] = sum + w[plan.net.classes * last.out + o];
    }
    __syncthreads();
}

/* All layers; the image is in shared memory. Begins and ends with a barrier. */
__device__ void all_forward(const conv_plan &plan, const block_place &me) {
    __syncthreads();
    first_forward(plan, me);
    for (int l = 1; l < plan.n_convs; l++) {
        __syncthreads();
        layer_forward(plan, me, l);
    }
    __syncthreads();
    linear_forward(plan, me);
}

/* --- backward --------------------------------------------------------------------------------- */

/* Logits to their gradient, by the first warp. Ends with a barrier. */
__device__ void loss_backward(const conv_plan &plan, const block_place &me, int label, int batch) {
    const gpu_plan &net = plan.net;
    if (me.warp == 0) {
        float *z = me.at<float>(plan.logits), top = -INFINITY, total = 0;
        float each = 1.0f / batch, off = net.smoothing * each / net.classes,
              on = (1 - net.smoothing) * each;
        for (int c = me.lane; c < net.classes; c += 32) top = fmaxf(top, z[c]);
        for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        for (int c = me.lane; c < net.classes; c += 32) total += expf(z[c] - top);
        for (int d = 1; d < 32; d *= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
        for (int c = me.lane; c < net.classes; c += 32)
            z[c] = expf(z[c] - top) * each / total - off - (c == label ? on : 0);
    }
    __syncthreads();
}

/* Gradients of the linear layer and of the last convolution's sums. Ends with a barrier. */
__device__ void linear_backward(const conv_plan &plan, const block_place &me) {
    const conv_layer &last = plan.layer[plan.n_convs - 1];
    const float *w = me.at<float>(plan.linear), *means = me.at<float>(plan.means);
    const float *d = me.at<float>(plan.logits);
    float *slopes = me.at<float>(plan.slopes);
    int classes = plan.net.classes, places = last.height * last.width;
    for (int i = threadIdx.x; i < classes * last.out; i += conv_threads) {
        int o = i / last.out;
        me.gradient[plan.linear_weight + i] += d[o] * means[i - o * last.out];
    }
    for (int o = threadIdx.x; plan.linear_bias >= 0 && o < classes; o += conv_threads)
        me.gradient[plan.linear_bias + o] += d[o];
    for (int c = threadIdx.x; c < last.out_padded; c += conv_threads) {
        float sum = 0;
        for (int o = 0; o < classes && c < last.out; o++) sum += d[o] * w[o * last.out + c];
        slopes[c] = sum / (float)places;
    }
    __syncthreads();
    const uint8_t *choice = me.at<uint8_t>(last.choice);
    int halves = last.out_padded / 2;
    for (int i = threadIdx.x; i < places * halves; i += conv_threads) {
        int place = i / halves, c = 2 * (i - place * halves), y = place / last.width;
        const uint8_t *chosen = choice + place * last.out_padded + c;
        *me.at<uint32_t>(place_of(last.delta, y, place - y * last.width) + 2 * c) =
            pack(chosen[0] & positive ? slopes[c] : 0, chosen[1] & positive ? slopes[c + 1] : 0);
    }
    __syncthreads();
}

/* Adds a tile (16 units, 8 inputs) of dW to the flat gradient. */
__device__ inline void add_gradient(const conv_layer &layer, const block_place &me, int unit,
                                    int input, int tap, const float (&sum)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int o = unit + me.row + 8 * (i / 2), u = input + 2 * me.quad + i % 2;
        if (o < layer.out && u < layer.in)
            me.gradient[layer.flat_weight + (o * layer.in + u) * layer.taps + tap] += sum[i];
    }
}

/* dW and db of a layer behind the first. */
__device__ void weight_backward(const conv_plan &plan, const block_place &me, int l) {
    const conv_layer &layer = plan.layer[l];
    int rows = layer.out_padded / 16, pairs = layer.in_padded / 16, pad = layer.kernel / 2;
    uint32_t base = shared_address(me.shared);
    for (int task = me.warp; task < layer.kernel * rows * pairs; task += conv_warps) {
        int down = task / (rows * pairs), rest = task - down * rows * pairs;
        int unit = 16 * (rest / pairs), input = 16 * (rest % pairs);
        bool sums_bias = down == 0 && input == 0 && layer.flat_bias >= 0;
        float sum[most_kernel][2][4] = {}, bias[4] = {};
        for (int tile = 0; tile < layer.tiles; tile++) {
            /* A: lanes 0-7 pixels 0-7, 8-15 the same of the next 8 units, 16-31 pixels 8-15;
             * B: lanes 0-15 pixels, 16-31 the same of the next 8 inputs. Pixels outside are zero:
             * the corner of the halo. */
            pixel p = pixel_of(layer, tile, me.lane % 8 + 8 * (me.lane / 16));
            int from = p.inside ? place_of(layer.delta, p.y, p.x) : layer.delta.at;
            uint32_t d[4], x[4];
            load_transposed(d, base + (uint32_t)(from + 2 * unit + 16 * (me.lane / 8 % 2)));
            p = pixel_of(layer, tile, me.lane % 16);
            if (!p.inside) p.y = p.x = 0; /* times zero */
            from = place_of(layer.values, p.y + down - pad, p.x - pad) + 2 * input +
                   16 * (me.lane / 16);
#pragma unroll
            for (int right = 0; right < most_kernel; right++) {
                if (right >= layer.kernel) break;
                load_transposed(x, base + (uint32_t)(from + right * layer.values.pitch));
                warp_mma(sum[right][0], d, x[0], x[1]);
                warp_mma(sum[right][1], d, x[2], x[3]);
            }
            if (sums_bias) warp_mma(bias, d, ones, ones);
        }
#pragma unroll
        for (int right = 0; right < most_kernel; right++)
            for (int half = 0; half < 2 && right < layer.kernel; half++)
                add_gradient(layer, me, unit, input + 8 * half, down * layer.kernel + right,
                             sum[right][half]);
        for (int i = 0; i < 2 && sums_bias && me.quad == 0; i++) {
            int o = unit + me.row + 8 * i;
            if (o < layer.out) me.gradient[layer.flat_bias + o] += bias[2 * i];
        }
    }
}

/* Two channels of the gradient at a place after pooling: to the place that was chosen. */
__device__ inline void spread(const conv_plan &plan, const block_place &me, int l, int y, int x,
                              int channel, float first, float second) {
    const conv_layer &layer = plan.layer[l];
    if (y >= layer.next_height || x >= layer.next_width) return;
    int place = y * layer.next_width + x;
    const uint8_t *choice = me.at<uint8_t>(layer.choice) + place * layer.out_padded + channel;
    if (!(choice[0] & positive)) first = 0;
    if (!(choice[1] & positive)) second = 0;
    if (l == 0) {
        *me.at<uint32_t>(plan.first_delta + 2 * (place * layer.out_padded + channel)) =
            pack(first, second);
        return;
    }
    if (!layer.pooled) {
        *me.at<uint32_t>(place_of(layer.delta, y, x) + 2 * channel) = pack(first, second);
        return;
    }
    for (int i = 0; i < 4; i++)
        *me.at<uint32_t>(place_of(layer.delta, 2 * y + i / 2, 2 * x + i % 2) + 2 * channel) =
            pack((choice[0] & 3) == i ? first : 0, (choice[1] & 3) == i ? second : 0);
}

/* Gradient of what layer l reads, to the sums of the layer before it. */
__device__ void value_backward(const conv_plan &plan, const block_place &me, int l) {
    const conv_layer &layer = plan.layer[l];
    const conv_image &delta = layer.delta;
    each_tile(
        layer, delta, layer.kernel / 2, layer.in_padded, me,
        [&](uint32_t a, int first, int pairs, float(&sum)[most_pairs][2][4]) {
            multiply_back(layer, me, a, delta.row * delta.pitch, delta.pitch, first, pairs, sum);
        },
        [&](int tile, int channel, const float(&sum)[4]) {
            pixel p = pixel_of(layer, tile, me.row);
            if (p.x >= layer.width) return;
            channel += 2 * me.quad;
            spread(plan, me, l - 1, p.y, p.x, channel, sum[0], sum[1]);
            spread(plan, me, l - 1, p.y + 1, p.x, channel, sum[2], sum[3]);
        });
}

/* The gradient of the first layer's sums at a tile's pixels, 16 units from `unit` on. */
__device__ inline void copy_deltas(const conv_plan &plan, const block_place &me, int tile,
                                   int unit) {
    const conv_layer &layer = plan.layer[0];
    const __nv_bfloat16 *delta = me.at<__nv_bfloat16>(plan.first_delta);
    const uint8_t *choice = me.at<uint8_t>(layer.choice);
    __nv_bfloat16 *to =
        me.at<__nv_bfloat16>(plan.patches + me.warp * plan.warp_bytes +
                             tile_pixels * plan.patch_pitch + me.lane % 16 * plan.d_pitch);
    pixel p = pixel_of(layer, tile, me.lane % 16);
    int shrink = layer.pooled ? 2 : 1, y = p.y / shrink, x = p.x / shrink;
    int own = layer.pooled ? p.y % 2 * 2 + p.x % 2 : 0;
    bool inside = p.inside && y < layer.next_height && x < layer.next_width;
    int from = (y * layer.next_width + x) * layer.out_padded + unit;
    for (int c = me.lane / 16; c < 16; c += 2) {
        bool chosen = inside && (choice[from + c] & 3) == own;
        to[c] = chosen ? delta[from + c] : __float2bfloat16(0.0f);
    }
}

/* dW and db of the first layer: each warp over its own tiles, then all warps in order. Begins and
 * ends with a barrier. */
__device__ void first_backward(const conv_plan &plan, const block_place &me) {
    const conv_layer &layer = plan.layer[0];
    constexpr int most = most_patch / 16;
    int own = plan.patches + me.warp * plan.warp_bytes, pairs = layer.in_padded / 16;
    uint32_t patches = shared_address(me.shared) +
                       (uint32_t)(own + me.lane % 16 * plan.patch_pitch + 16 * (me.lane / 16));
    uint32_t deltas =
        shared_address(me.shared) +
        (uint32_t)(own + tile_pixels * plan.patch_pitch +
                   (me.lane % 8 + 8 * (me.lane / 16)) * plan.d_pitch + 16 * (me.lane / 8 % 2));
    for (int unit = 0; unit < layer.out_padded; unit += 16) {
        float sum[most][2][4] = {}, bias[4] = {};
        __syncthreads();
        for (int tile = me.warp; tile < layer.tiles; tile += conv_warps) {
            __syncwarp();
            copy_patches(plan, me, tile);
            copy_deltas(plan, me, tile, unit);
            __syncwarp();
            uint32_t d[4], x[4];
            load_transposed(d, deltas);
#pragma unroll
            for (int i = 0; i < most; i++) {
                if (i >= pairs) break;
                load_transposed(x, patches + 32 * (uint32_t)i);
                warp_mma(sum[i][0], d, x[0], x[1]);
                warp_mma(sum[i][1], d, x[2], x[3]);
            }
            warp_mma(bias, d, ones, ones);
        }
        __syncwarp();
        float *part = me.at<float>(own), *bias_part = me.at<float>(plan.bias_parts);
#pragma unroll
        for (int i = 0; i < most; i++)
            for (int k = 0; k < 8 && i < pairs; k++)
                part[(me.row + 8 * (k % 4 / 2)) * layer.in_padded + 16 * i + 8 * (k / 4) +
                     2 * me.quad + k % 2] = sum[i][k / 4][k % 4];
        if (me.quad == 0) {
            bias_part[16 * me.warp + me.row] = bias[0];
            bias_part[16 * me.warp + me.row + 8] = bias[2];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * layer.in; i += conv_threads) {
            int o = i / layer.in, k = i - o * layer.in;
            float total = 0;
            for (int w = 0; w < conv_warps; w++)
                total += me.at<float>(plan.patches + w * plan.warp_bytes)[o * layer.in_padded + k];
            if (unit + o < layer.out)
                me.gradient[layer.flat_weight + (unit + o) * layer.in + k] += total;
        }
        for (int o = threadIdx.x; o < 16 && layer.flat_bias >= 0; o += conv_threads) {
            float total = 0;
            for (int w = 0; w < conv_warps; w++) total += bias_part[16 * w + o];
            if (unit + o < layer.out) me.gradient[layer.flat_bias + unit + o] += total;
        }
    }
    __syncthreads();
}

__device__ void all_backward(const conv_plan &plan, const block_place &me, int label, int batch) {
    loss_backward(plan, me, label, batch);
    linear_backward(plan, me);
    for (int l = plan.n_convs - 1; l > 0; l--) {
        weight_backward(plan, me, l);
        value_backward(plan, me, l);
        __syncthreads();
    }
    first_backward(plan, me);
}

/* --- images and weights ----------------------------------------------------------------------- */

__device__ void load_image(const conv_plan &plan, const block_place &me, const float *x,
                           const image_change &how) {
    int height = plan.layer[0].height, width = plan.layer[0].width;
    __nv_bfloat16 *to = me.at<__nv_bfloat16>(plan.image);
    for (int i = threadIdx.x; i < plan.net.inputs; i += conv_threads) {
        int line = i / width, column = i - line * width, channel = line / height;
        int row = reflected(line - channel * height + how.down, height);
        int from = how.flip ? width - 1 - column : column;
        to[i] = __float2bfloat16(
            x[(channel * height + row) * width + reflected(from + how.right, width)]);
    }
}

/* Copies of the flat weights where the products read them. Ends with a barrier. */
__device__ void stage_weights(const conv_plan &plan, const block_place &me, const float *flat) {
    for (int l = 0; l < plan.n_convs; l++) {
        const conv_layer &layer = plan.layer[l];
        int each = layer.in * layer.taps;
        for (int i = threadIdx.x; i < layer.out * each; i += conv_threads) {
            int o = i / each, rest = i - o * each, u = rest / layer.taps, tap = rest % layer.taps;
            me.at<__nv_bfloat16>(layer.weight +
                                 (tap * layer.out_padded + o) * layer.weight_pitch)[u] =
                __float2bfloat16(flat[layer.flat_weight + i]);
        }
        for (int o = threadIdx.x; layer.flat_bias >= 0 && o < layer.out; o += conv_threads)
            me.at<float>(layer.bias)[o] = flat[layer.flat_bias + o];
    }
    int classes = plan.net.classes, in = plan.layer[plan.n_convs - 1].out;
    float *w = me.at<float>(plan.linear);
    for (int i = threadIdx.x; i < classes * in; i += conv_threads)
        w[i] = flat[plan.linear_weight + i];
    for (int o = threadIdx.x; o < classes && plan.linear_bias >= 0; o += conv_threads)
        w[classes * in + o] = flat[plan.linear_bias + o];
    __syncthreads();
}

template <bool ADAM>
__device__ void update_weights(const conv_plan &plan, const block_place &me, const gpu_rates &rates,
                               float *flat, float *first, float *second) {
    for (int i = threadIdx.x; i < plan.net.n_params; i += conv_threads) {
        float w = flat[i], m = first[i], v = ADAM ? second[i] : 0;
        update_parameter<ADAM, true>(plan.net, rates, me.gradient[i], w, m, v);
        flat[i] = w, first[i] = m;
        if (ADAM) second[i] = v;
        me.gradient[i] = 0;
    }
    __syncthreads();
    stage_weights(plan, me, flat);
}

/* --- one network ------------------------------------------------------------------------------ */

/* Error bits of the test examples, and how many there are. */
__device__ void judge(const conv_plan &plan, const block_place &me, uint8_t *errors,
                      uint32_t *wrong) {
    const gpu_plan &net = plan.net;
    const image_change as_it_is = {false, 0, 0};
    uint32_t bits = 0, count = 0; /* of the first thread */
    for (int i = 0; i < net.n_test; i++) {
        load_image(plan, me, net.x_test + (size_t)i * net.inputs, as_it_is);
        all_forward(plan, me);
        if (threadIdx.x != 0) continue;
        const float *z = me.at<float>(plan.logits);
        int best = 0;
        for (int c = 1; c < net.classes; c++)
            if (z[c] > z[best]) best = c;
        if (best != net.y_test[i]) bits |= 1u << i % 8, count++;
        if (i % 8 == 7 || i + 1 == net.n_test) errors[i / 8] = (uint8_t)bits, bits = 0;
    }
    if (threadIdx.x == 0) *wrong = count;
}

__global__ void __launch_bounds__(conv_threads)
    train_conv(const __grid_constant__ conv_plan plan, const gpu_networks networks) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ gpu_rates rates;
    __shared__ uint32_t stop;
    const gpu_plan &net = plan.net;
    size_t network = blockIdx.x;
    float *flat = networks.flat + network * (size_t)net.n_params;
    float *first = plan.state + network * 3 * (size_t)net.n_params, *second = first + net.n_params;
    int lane = (int)threadIdx.x % 32;
    block_place me = {shared,
                      plan.gradient >= 0 ? (float *)(shared + plan.gradient)
                                         : second + net.n_params,
                      (int)threadIdx.x / 32,
                      lane,
                      lane / 4,
                      lane % 4};
    gpu_task task = networks.tasks[network];
    for (int i = threadIdx.x; i < plan.shared_bytes / 4; i += conv_threads)
        ((uint32_t *)shared)[i] = 0;
    for (int i = threadIdx.x; i < net.n_params; i += conv_threads)
        me.gradient[i] = first[i] = second[i] = 0;
    __syncthreads();
    stage_weights(plan, me, flat);
    int updates = (net.n_train + net.batch - 1) / net.batch * task.epochs, update = 0;
    for (int epoch = 0; epoch < task.epochs; epoch++) {
        size_t order = (network * net.epochs_max + epoch) * (size_t)net.n_train;
        for (int start = 0; start < net.n_train; start += net.batch, update++) {
            int batch = min(net.batch, net.n_train - start);
            if (threadIdx.x == 0) stop = update % networks.look_every == 0 ? *networks.stop : 0;
            __syncthreads();
            if (stop != 0) { /* the same for all threads: set again only behind barriers */
                if (threadIdx.x == 0) networks.broken[network] = GPU_UNFINISHED;
                return;
            }
            for (int i = 0; i < batch; i++) {
                size_t place = order + start + i;
                uint32_t example =
                    networks.order16 ? networks.order16[place] : networks.order32[place];
                load_image(plan, me, net.x_train + (size_t)example * net.inputs,
                           change_of(plan, task.index, (uint32_t)epoch, example));
                all_forward(plan, me);
                all_backward(plan, me, net.y_train[example], batch);
            }
            if (threadIdx.x == 0) rates = rates_of(net, task.lr, update, updates);
            __syncthreads();
            if (net.optimizer == WF_ZOO_ADAM)
                update_weights<true>(plan, me, rates, flat, first, second);
            else update_weights<false>(plan, me, rates, flat, first, second);
        }
    }
    bool bad = false;
    for (int i = threadIdx.x; i < net.n_params; i += conv_threads) bad |= !isfinite(flat[i]);
    if (__syncthreads_or(bad) && threadIdx.x == 0) networks.broken[network] = GPU_DIVERGED;
    judge(plan, me, networks.errors + network * (((size_t)net.n_test + 7) / 8),
          networks.wrong + network);
}

/* --- the plan --------------------------------------------------------------------------------- */

int padded16(int n) { return (n + 15) / 16 * 16; }

/* An odd number of 16 bytes for so many channels. */
int pitch_of(int channels) { return (2 * channels / 16 | 1) * 16; }

/* Bytes, in whole sixteens. */
int take(int *used, size_t bytes) {
    int at = *used;
    *used += (int)((bytes + 15) / 16 * 16);
    return at;
}

conv_image take_image(int *used, int height, int width, int channels, int halo) {
    conv_image image = {0, pitch_of(channels), width + 2 * halo, halo};
    image.at = take(used, (size_t)(height + 2 * halo) * image.row * image.pitch);
    return image;
}

const wf_block *block_of(const wf_graph *graph, int l, wf_block_kind kind) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == l && graph->blocks[b].kind == kind) return &graph->blocks[b];
    return NULL;
}

void describe_layer(conv_plan *plan, const wf_graph *graph, int l) {
    const wf_layer *from = &graph->layers[l];
    const wf_group *source = &graph->groups[l], *group = &graph->groups[l + 1];
    const wf_block *bias = block_of(graph, l, WF_BLOCK_BIAS);
    conv_layer *to = &plan->layer[l];
    int kernel = from->window.kernel[0];
    *to = conv_layer{};
    to->in = l == 0 ? source->n * kernel * kernel : source->n, to->out = group->n;
    to->in_padded = padded16(to->in), to->out_padded = padded16(to->out);
    to->kernel = l == 0 ? 1 : kernel, to->taps = to->kernel * to->kernel;
    to->height = group->sum_height, to->width = group->sum_width;
    to->tiles_across = (to->width + 7) / 8;
    to->tiles = (to->height + 1) / 2 * to->tiles_across;
    to->pooled = from->pool == WF_POOL_MAX;
    to->next_height = to->pooled ? group->height : to->height;
    to->next_width = to->pooled ? group->width : to->width;
    to->flat_weight = (int)block_of(graph, l, WF_BLOCK_WEIGHT)->offset;
    to->flat_bias = bias != NULL ? (int)bias->offset : -1;
}

/* Places in shared memory; returns the bytes. */
int lay_out(conv_plan *plan, bool gradient_shared) {
    int used = 0, classes = plan->net.classes;
    const conv_layer *first = &plan->layer[0], *last = &plan->layer[plan->n_convs - 1];
    for (int l = 0; l < plan->n_convs; l++) {
        conv_layer *layer = &plan->layer[l];
        layer->weight_pitch = pitch_of(layer->in_padded);
        layer->weight = take(&used, (size_t)layer->taps * layer->out_padded * layer->weight_pitch);
        layer->bias = take(&used, sizeof(float) * layer->out_padded);
        layer->choice =
            take(&used, (size_t)layer->next_height * layer->next_width * layer->out_padded);
        int halo = layer->kernel / 2 > 1 ? layer->kernel / 2 : 1;
        if (l == 0) continue;
        layer->values = take_image(&used, layer->height, layer->width, layer->in_padded, halo);
        layer->delta = take_image(&used, layer->height, layer->width, layer->out_padded, halo);
    }
    plan->image = take(&used, 2 * (size_t)plan->net.inputs);
    plan->patch_pitch = pitch_of(first->in_padded);
    plan->d_pitch = pitch_of(16);
    size_t copies = (size_t)tile_pixels * (plan->patch_pitch + plan->d_pitch);
    size_t partial = sizeof(float) * 16 * first->in_padded;
    plan->warp_bytes = (int)(copies > partial ? copies : partial);
    plan->patches = take(&used, (size_t)conv_warps * plan->warp_bytes);
    plan->first_delta =
        take(&used, 2 * (size_t)first->next_height * first->next_width * first->out_padded);
    plan->linear = take(&used, sizeof(float) * classes * (last->out + 1));
    plan->sums = take(&used, sizeof(float) * last->tiles * last->out_padded);
    plan->means = take(&used, sizeof(float) * last->out_padded);
    plan->slopes = take(&used, sizeof(float) * last->out_padded);
    plan->logits = take(&used, sizeof(float) * classes);
    plan->bias_parts = take(&used, sizeof(float) * conv_warps * 16);
    plan->gradient = gradient_shared ? take(&used, sizeof(float) * plan->net.n_params) : -1;
    return plan->shared_bytes = used;
}

bool is_square(const wf_window *window, int kernel, int stride, int padding) {
    return window->kernel[0] == kernel && window->kernel[1] == kernel &&
           window->stride[0] == stride && window->stride[1] == stride &&
           window->padding[0] == padding && window->padding[1] == padding;
}

} // namespace

const char *conv_refuses(const wf_graph *graph, int *layer) {
    int convs = graph->n_layers - 1;
    *layer = 1;
    if (convs < 2 || convs > most_convs)
        return "expected two to six convolutions and one linear layer";
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *it = &graph->layers[l];
        const wf_group *source = &graph->groups[l];
        bool last = l == convs, ends = l + 1 == convs;
        int kernel = it->window.kernel[0];
        *layer = l + 1;
        if (it->op != (last ? WF_LAYER_LINEAR : WF_LAYER_CONV) || it->from[0] != l)
            return "expected convolutions one behind the other, then a linear layer";
        if (it->norm != WF_NORM_NONE) return "expected no norm";
        if (last) continue;
        if (it->activation != WF_ACT_RELU) return "expected relu";
        if (kernel % 2 == 0 || kernel > most_kernel ||
            !is_square(&it->window, kernel, 1, kernel / 2))
            return "expected a kernel of 1x1, 3x3 or 5x5, stride 1 and half of it as padding";
        if (it->n > most_channels || (l == 0 && source->n * kernel * kernel > most_patch))
            return "expected at most 128 channels, and first kernels of at most 80 weights";
        bool pooled = it->pool == WF_POOL_MAX && is_square(&it->pool_window, 2, 2, 0);
        if (ends ? it->pool != WF_POOL_GLOBAL : it->pool != WF_POOL_NONE && !pooled)
            return "expected 2x2 maximum pooling or none, and a global average at the end";
    }
    return NULL;
}

bool conv_choose(conv_plan *plan, const wf_graph *graph, const wf_zoo_desc *desc,
                 int shared_limit) {
    int last = graph->n_layers - 1;
    const wf_block *bias = block_of(graph, last, WF_BLOCK_BIAS);
    plan->n_convs = last;
    plan->channels = graph->groups[0].n;
    plan->kernel = graph->layers[0].window.kernel[0];
    plan->flip = desc->flip, plan->crop = desc->crop, plan->seed = desc->seed;
    plan->linear_weight = (int)block_of(graph, last, WF_BLOCK_WEIGHT)->offset;
    plan->linear_bias = bias != NULL ? (int)bias->offset : -1;
    for (int l = 0; l < plan->n_convs; l++) describe_layer(plan, graph, l);
    const int own = 64; /* of the kernel itself */
    plan->is_paper = paper_takes(graph) && paper_shared() + own <= shared_limit;
    return plan->is_paper || lay_out(plan, true) + own <= shared_limit ||
           lay_out(plan, false) + own <= shared_limit;
}

cudaError_t conv_launch(const conv_plan &plan, const gpu_networks &networks, size_t count,
                        cudaStream_t stream) {
    if (plan.is_paper) return paper_launch(plan, networks, count, stream);
    cudaError_t error = cudaFuncSetAttribute(
        train_conv, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
    if (error != cudaSuccess) return error;
    train_conv<<<(unsigned)count, conv_threads, (size_t)plan.shared_bytes, stream>>>(plan,
                                                                                     networks);
    return cudaGetLastError();
}

} // namespace zoo_gpu
