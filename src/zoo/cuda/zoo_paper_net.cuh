/* zoo_paper_net: the paper's network for CIFAR-10 from its first update to its last in one block.
 *
 *   3x32x32 conv16 pool conv32 pool conv48 gap linear10     3x3 kernels, relu, 19,450 parameters
 *
 * zoo_conv takes any such chain; here shapes are constants and three images go through the block
 * side by side. 12 warps, 168 registers each at most:
 *
 *   registers       gradient of the batch: each warp sums its tiles of all weights over all images;
 *                   what each maximum chose: a warp goes backward over the places that it went
 *                   forward over
 *   shared memory   bf16 weights 37 KB, three images 58 KB, their values and gradients 123 KB
 *   device memory   fp32 weights and moments, read and written once an update
 *
 * All products are m16n8k16 with bf16 operands and fp32 sums, channels as rows and places as
 * columns, so a lane has a window of the pooling in its own four registers:
 *
 *   phase (barrier)      warp                                        products   ldmatrix, of a warp
 *   conv1                an image's quarter: 8 lines                       64                    34
 *   conv2                8 lines, 16 of 32 channels                       144                    54
 *   conv3                2 lines, 48 channels                             108                    66
 *   loss                 image; every warp of an image for itself           -
 *   conv3 backward       values: 4 lines, 16 of 32 channels               108                    54
 *                        weights: 16 x 8 channels, 9 taps                 108                    48
 *   conv2 backward       weights: 16 x 8 channels, 3 taps of a column     144                    78
 *                        values: 4 lines, 16 channels                     144                    54
 *   conv1 backward       weights, from the registers of the former         64                    32
 *   load                 24 lines of the next images
 *
 * A line of places is loaded once for the three taps above one another. Values lie as (8 channels,
 * place, channel): eight neighbours are 128 bytes, so no ldmatrix meets a bank twice and a tap is
 * a constant offset. Images stand below one another with one line and one column of zeros between
 * them. The first layer reads nine planes, three channels moved by -1, 0 and 1 places.
 *
 * Measured on an H200 (bench/cnn_benchmark.cu, 132 networks): 5.8 networks of 60 epochs of 50,000 a
 * second, 250 TFLOP/s, 13,000 cycles an image; 3,536 products at 8 cycles of a quarter of the
 * multiprocessor are 7,100. Cycles of three images: conv1 3,500, conv2 3,900, conv3 4,200, loss
 * 3,300, conv3 backward 7,500, conv2 backward 7,300, conv1 backward 6,300, the barrier behind it
 * 2,300, images 600, updates 800.
 *
 * I1  Sums run in fixed order: bits do not depend on the wave or on neighbours.
 * I2  Places of padding are zero from the start and are never written but by clear_values.
 * I3  Where a batch leaves a place of three empty, an earlier image goes through it with gradient
 *     zero. */
#pragma once

#include "zoo/cuda/zoo_conv.cuh"

#include "tensor/cuda/tensor_cores/mma.cuh"

namespace zoo_gpu::paper {

using wf_gpu::mma::load_matrices;
using wf_gpu::mma::load_transposed;
using wf_gpu::mma::pack;
using wf_gpu::mma::shared_address;
using wf_gpu::mma::store_transposed;
using wf_gpu::mma::warp_mma;

enum { warps = 12, threads = 32 * warps, together = 3, image_warps = warps / together };
enum { side = 32, inputs = 3 * side * side, classes = 10, channels1 = 16, channels2 = 32 };
enum { channels3 = 48, places3 = 64, image_lines = 3 * side / image_warps };

/* Parameters in the flat vector. */
enum {
    flat_w1 = 0,
    flat_b1 = flat_w1 + channels1 * 27,
    flat_w2 = flat_b1 + channels1,
    flat_b2 = flat_w2 + channels2 * channels1 * 9,
    flat_w3 = flat_b2 + channels2,
    flat_b3 = flat_w3 + channels3 * channels2 * 9,
    flat_linear = flat_b3 + channels3,
    n_linear = classes * (channels3 + 1),
    n_params = flat_linear + n_linear
};

/* Places of one image below the other: line y of image i is line (i h + y + 1), h the height and a
 * line of padding. */
enum { pitch16 = 17, pitch8 = 9 };
enum {
    plane16 = ((together * pitch16 + 1) * pitch16 + 1) * 16, /* bytes of 8 channels */
    plane8 = ((together * pitch8 + 1) * pitch8 + 1) * 16,
    line16 = 16 * pitch16,
    line8 = 16 * pitch8,
    line32 = 2 * side,                  /* of the first layer's planes */
    plane32 = (side + 2) * line32 + 16, /* an odd number of 16 bytes */
    image32 = 9 * plane32
};
__device__ inline int place16(int image, int y, int x) {
    return 16 * ((image * pitch16 + y + 1) * pitch16 + x + 1);
}
__device__ inline int place8(int image, int y, int x) {
    return 16 * ((image * pitch8 + y + 1) * pitch8 + x + 1);
}

/* Bytes in shared memory. Weights of the first layer are (4 x 8 inputs, 16) rows of 8 in the order
 * of `patch`; of the others (9 taps, inputs / 8, outputs) rows of 8. */
enum {
    tap2 = 16 * channels2 * channels1 / 8,
    tap3 = 16 * channels3 * channels2 / 8,
    linear_pitch = channels3 + 4,
    at_images = 0,                               /* (images, 9 planes, 34 lines, 32) */
    at_values1 = at_images + together * image32, /* what conv2 reads, 2 planes */
    at_values2 = at_values1 + 2 * plane16,       /* what conv3 reads, 4 planes */
    at_delta3 = at_values2 + 4 * plane8,         /* gradient of conv3's sums, 6 planes */
    at_delta2 = at_delta3 + 6 * plane8,          /* gradient of conv2's sums, 4 planes */
    at_w3 = at_delta2 + 4 * plane16,
    at_w2 = at_w3 + 9 * tap3,
    at_w1 = at_w2 + 9 * tap2,
    at_biases = at_w1 + 64 * channels1,                              /* 16, 32, 48 floats */
    at_linear = at_biases + 4 * (channels1 + channels2 + channels3), /* (10, pitch), 10 */
    at_sums = at_linear + 4 * (classes * linear_pitch + 12),         /* (warps, 48) of conv3 */
    at_means = at_sums + 4 * warps * channels3,                      /* (warps, 48) */
    at_slopes = at_means + 4 * warps * channels3, /* (warps, 16) gradient of the logits */
    shared_bytes = at_slopes + 4 * warps * 16,
    /* gradients on their way to the update, where values were */
    at_g3 = at_delta2,
    at_g2 = at_values1,
    at_g1 = at_values2,                              /* (warps, 16, 32) */
    at_bias_parts = at_g2 + 4 * (flat_b2 - flat_w2), /* (warps, 96) */
};
static_assert(4 * (flat_b3 - flat_w3) <= 4 * plane16, "gradient of conv3");
static_assert(at_bias_parts + 4 * warps * 96 <= at_values2, "gradient of conv2, biases");
static_assert(at_g1 + 4 * warps * channels1 * 32 <= at_delta2, "gradient of conv1");
static_assert(at_values1 % 16 == 0 && at_values2 % 16 == 0 && at_linear % 16 == 0, "ldmatrix");

/* A warp's place. Of an accumulator a lane has rows `row` and row + 8, columns 2 quad and 2 quad +
 * 1. */
struct place {
    unsigned char *shared;
    uint32_t base; /* its address */
    int warp, lane, row, quad;
    int image, part; /* of three, of an image's four warps */
    template <typename T> __device__ T *at(int bytes) const { return (T *)(shared + bytes); }
};

/* The same place, of which the compiler knows nothing: addresses are computed again in each phase,
 * for all of them together do not fit into registers. */
__device__ inline place afresh(place me) {
    asm volatile("" : "+r"(me.lane), "+r"(me.row), "+r"(me.quad), "+r"(me.warp));
    asm volatile("" : "+r"(me.image), "+r"(me.part));
    return me;
}

/* What a warp keeps of a network or of an image from one phase to the next. */
struct keep {
    float w1[4][4], w2[3][4], w3[9][4]; /* gradient of the batch: its tiles */
    float b1[2], b2[2], b3[3][2];       /* of biases: its places */
    float linear[2];                    /* of parameters thread, thread + threads */
    uint32_t choice1[4], choice2[2];    /* 3 bits each: which of a window, 4 more where above 0 */
    uint32_t alive3;                    /* a bit each: above 0 */
};

/* Weight or input k of the first layer: plane (channel and column of the kernel) and line. */
struct patch {
    int plane, down;
};
__device__ inline patch patch_of(int k) {
    return k < 24 ? patch{k % 8, k / 8} : patch{8, k < 27 ? k - 24 : 0};
}
__device__ inline uint32_t patch_address(const place &me, int k, int below) {
    patch p = patch_of(k);
    return me.base + (uint32_t)(at_images + me.image * image32 + p.plane * plane32 +
                                (8 * me.part + p.down + below) * line32);
}

/* Columns 2q and 2q + 1 are places 4 apart: what two windows of eight places became. */
__device__ inline int column_place(int lane) { return 4 * (lane % 2) + lane % 8 / 2; }

/* The largest of a window, with bias and relu; its choice goes to bit `bit`. */
__device__ inline float pooled(float a, float b, float c, float d, float bias, int bit,
                               uint32_t &choices) {
    float upper = fmaxf(a, b), lower = fmaxf(c, d), value = fmaxf(upper, lower) + bias;
    uint32_t which = lower > upper ? (d > c ? 3u : 2u) : (b > a ? 1u : 0u);
    if (value > 0) which |= 4u;
    choices |= which << bit;
    return fmaxf(value, 0.0f);
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Two lines at a time, four blocks of 8 places. */
__device__ inline void forward1(const place &at, keep &mine) {
    const place me = afresh(at);
    uint32_t w[2][4], from[2];
    for (int k = 0; k < 2; k++) {
        load_matrices(
            w[k], me.base + (uint32_t)(at_w1 + 512 * k + me.lane / 16 * 256 + me.lane % 16 * 16));
        from[k] = patch_address(me, 16 * k + me.lane % 16, me.lane / 16);
    }
    const float *bias = me.at<float>(at_biases) + me.row;
    const float b[2] = {bias[0], bias[8]};
    uint32_t to = me.base + (uint32_t)(at_values1 + me.lane / 8 % 2 * plane16 +
                                       place16(me.image, 4 * me.part, 8 * (me.lane / 16)) +
                                       16 * column_place(me.lane));
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float sum[4][2][4] = {};
#pragma unroll
        for (int block = 0; block < 4; block++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t x[4];
                load_transposed(x, from[k] + (uint32_t)(2 * r * line32 + 16 * block));
                warp_mma(sum[block][0], w[k], x[0], x[1]);
                warp_mma(sum[block][1], w[k], x[2], x[3]);
            }
        mine.choice1[r] = 0;
        uint32_t out[2][2];
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float v[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float(&s)[2][4] = sum[2 * pair + i];
                    v[i] = pooled(s[0][2 * half], s[0][2 * half + 1], s[1][2 * half],
                                  s[1][2 * half + 1], b[half], 3 * (4 * pair + 2 * i + half),
                                  mine.choice1[r]);
                }
                out[pair][half] = pack(v[0], v[1]);
            }
        store_transposed(to + (uint32_t)(r * line16), out[0][0], out[0][1], out[1][0], out[1][1]);
    }
}

/* 16 channels of 8 lines, four at a time. */
__device__ inline void forward2(const place &at, keep &mine) {
    const place me = afresh(at);
    int rows = me.part / 2, lines = me.part % 2 * 8;
    uint32_t w0 = me.base + (uint32_t)(at_w2 + me.lane / 16 * (16 * channels2) +
                                       16 * (16 * rows + me.lane % 16));
    uint32_t x0 =
        me.base + (uint32_t)(at_values1 + me.lane / 8 % 2 * plane16 +
                             place16(me.image, lines - 1, me.lane % 8 + 8 * (me.lane / 16) - 1));
    uint32_t to =
        me.base + (uint32_t)(at_values2 + (2 * rows + me.lane / 8 % 2) * plane8 +
                             place8(me.image, lines / 2 + me.lane / 16, column_place(me.lane)));
    const float *bias = me.at<float>(at_biases) + channels1 + 16 * rows + me.row;
    const float b[2] = {bias[0], bias[8]};
#pragma unroll
    for (int turn = 0; turn < 2; turn++) {
        float sum[4][2][4] = {};
#pragma unroll
        for (int dx = 0; dx < 3; dx++) {
            uint32_t w[3][4];
#pragma unroll
            for (int dy = 0; dy < 3; dy++)
                load_matrices(w[dy], w0 + (uint32_t)((3 * dy + dx) * tap2));
#pragma unroll
            for (int line = 0; line < 6; line++) {
                uint32_t x[4];
                load_matrices(x, x0 + (uint32_t)((4 * turn + line) * line16 + 16 * dx));
#pragma unroll
                for (int dy = 0; dy < 3; dy++) {
                    if (line < dy || line - dy >= 4) continue;
                    warp_mma(sum[line - dy][0], w[dy], x[0], x[1]);
                    warp_mma(sum[line - dy][1], w[dy], x[2], x[3]);
                }
            }
        }
        mine.choice2[turn] = 0;
        uint32_t out[2][2];
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float v[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float(&upper)[4] = sum[2 * pair][i], (&lower)[4] = sum[2 * pair + 1][i];
                    v[i] = pooled(upper[2 * half], upper[2 * half + 1], lower[2 * half],
                                  lower[2 * half + 1], b[half], 3 * (4 * pair + 2 * i + half),
                                  mine.choice2[turn]);
                }
                out[pair][half] = pack(v[0], v[1]);
            }
        store_transposed(to + (uint32_t)(2 * turn * line8), out[0][0], out[0][1], out[1][0],
                         out[1][1]);
    }
}

/* Sums of relu over two lines; which were above 0. */
__device__ inline void forward3(const place &at, keep &mine) {
    const place me = afresh(at);
    uint32_t w0 = me.base + (uint32_t)(at_w3 + me.lane / 16 * (16 * channels3) + me.lane % 16 * 16);
    uint32_t x0 =
        me.base + (uint32_t)(at_values2 + me.lane / 8 % 2 * plane8 +
                             place8(me.image, 2 * me.part - 1 + me.lane / 16, me.lane % 8 - 1));
    float sum[2][3][4] = {};
#pragma unroll
    for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t x[2][4];
            load_matrices(x[0], x0 + (uint32_t)(2 * k * plane8 + 16 * dx));
            load_matrices(x[1], x0 + (uint32_t)(2 * k * plane8 + 16 * dx + 2 * line8));
#pragma unroll
            for (int dy = 0; dy < 3; dy++)
#pragma unroll
                for (int m = 0; m < 3; m++) {
                    uint32_t w[4];
                    load_matrices(w, w0 + (uint32_t)((3 * dy + dx) * tap3 + 2 * k * 16 * channels3 +
                                                     256 * m));
#pragma unroll
                    for (int y = 0; y < 2; y++) {
                        const uint32_t(&line)[4] = x[(y + dy) / 2];
                        int i = (y + dy) % 2 * 2;
                        warp_mma(sum[y][m], w, line[i], line[i + 1]);
                    }
                }
        }
    mine.alive3 = 0;
    float *sums = me.at<float>(at_sums) + me.warp * channels3;
    const float *bias = me.at<float>(at_biases) + channels1 + channels2 + me.row;
#pragma unroll
    for (int m = 0; m < 3; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = 0, b = bias[16 * m + 8 * half];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = sum[i / 2][m][2 * half + i % 2] + b;
                if (v > 0) mine.alive3 |= 1u << (8 * m + 4 * half + i), total += v;
            }
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (me.quad == 0) sums[16 * m + 8 * half + me.row] = total;
        }
}

/* Means of the warp's image, and the logit of class `lane`; -INFINITY for lanes from 10 on. */
__device__ inline float logit_of(const place &me) {
    const float *sums = me.at<float>(at_sums) + me.image * image_warps * channels3;
    float *means = me.at<float>(at_means) + me.warp * channels3;
    for (int c = me.lane; c < channels3; c += 32)
        means[c] =
            (sums[c] + sums[channels3 + c] + sums[2 * channels3 + c] + sums[3 * channels3 + c]) *
            (1.0f / places3);
    __syncwarp();
    int o = me.lane % classes, third = me.lane < 3 * classes ? me.lane / classes : 0;
    const float4 *w = me.at<float4>(at_linear) + (o * linear_pitch + 16 * third) / 4;
    const float4 *x = me.at<float4>(at_means) + (me.warp * channels3 + 16 * third) / 4;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) sum = dot4(w[k], x[k], sum);
    float second = __shfl_down_sync(0xffffffffu, sum, classes);
    float last = __shfl_down_sync(0xffffffffu, sum, 2 * classes);
    const float *bias = me.at<float>(at_linear) + classes * linear_pitch;
    return me.lane < classes ? sum + second + last + bias[me.lane] : -INFINITY;
}

/* --- backward --------------------------------------------------------------------------------- */

/* Gradient of the logits, and from there of conv3's sums. label < 0: an empty place. */
__device__ inline void loss_backward(const gpu_plan &net, const place &at, int label, int batch,
                                     keep &mine) {
    const place me = afresh(at);
    float z = logit_of(me), top = z, each = 1.0f / batch;
    float off = net.smoothing * each / classes, on = (1 - net.smoothing) * each;
#pragma unroll
    for (int d = 1; d < 16; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    float e = me.lane < classes ? expf(z - top) : 0, total = e;
#pragma unroll
    for (int d = 1; d < 16; d *= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
    float slope = e * each / total - off - (me.lane == label ? on : 0);
    if (label < 0 || me.lane >= classes) slope = 0;
    if (me.lane < classes) me.at<float>(at_slopes)[16 * me.warp + me.lane] = slope;
    const float *w = me.at<float>(at_linear) + me.lane;
    float value[2] = {0, 0}; /* of channels lane, lane + 32 */
#pragma unroll
    for (int o = 0; o < classes; o++) {
        float d = __shfl_sync(0xffffffffu, slope, o);
        value[0] = fmaf(d, w[o * linear_pitch], value[0]);
        if (me.lane < 16) value[1] = fmaf(d, w[o * linear_pitch + 32], value[1]);
    }
    uint32_t to = me.base + (uint32_t)(at_delta3 + me.lane / 8 % 2 * plane8 +
                                       place8(me.image, 2 * me.part + me.lane / 16, me.lane % 8));
#pragma unroll
    for (int m = 0; m < 3; m++) {
        uint32_t out[2][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float v = __shfl_sync(0xffffffffu, value[m / 2], 16 * m % 32 + 8 * half + me.row) *
                      (1.0f / places3);
            uint32_t alive = mine.alive3 >> (8 * m + 4 * half), both = pack(v, v);
            mine.b3[m][half] += v * (float)__popc(alive & 15);
#pragma unroll
            for (int y = 0; y < 2; y++)
                out[y][half] = both & ((alive >> 2 * y & 1 ? 0xffffu : 0u) |
                                       (alive >> 2 * y & 2 ? 0xffff0000u : 0u));
        }
        store_transposed(to + (uint32_t)(2 * m * plane8), out[0][0], out[0][1], out[1][0],
                         out[1][1]);
    }
}

/* The thread's two parameters of the linear layer, over the three images. */
__device__ inline void linear_gradient(const place &at, keep &mine) {
    const place me = afresh(at);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = (int)threadIdx.x + k * threads;
        if (i >= n_linear) continue;
        bool bias = i >= classes * channels3;
        int o = bias ? i - classes * channels3 : i / channels3, c = i % channels3;
#pragma unroll
        for (int image = 0; image < together; image++) {
            int warp = image * image_warps;
            float d = me.at<float>(at_slopes)[16 * warp + o];
            float x = bias ? 1 : me.at<float>(at_means)[warp * channels3 + c];
            mine.linear[k] = fmaf(d, x, mine.linear[k]);
        }
    }
}

/* Gradient of what conv3 reads, 16 channels of 4 lines, and from there of conv2's sums. */
__device__ inline void values3_backward(const place &at, keep &mine) {
    const place me = afresh(at);
    int rows = me.part / 2, lines = me.part % 2 * 4;
    uint32_t w0 = me.base + (uint32_t)(at_w3 + 16 * ((2 * rows + me.lane / 8 % 2) * channels3 +
                                                     me.lane % 8 + 8 * (me.lane / 16)));
    uint32_t d0 =
        me.base + (uint32_t)(at_delta3 + me.lane / 8 % 2 * plane8 +
                             place8(me.image, lines - 1 + me.lane / 16, column_place(me.lane) + 1));
    float sum[4][4] = {};
#pragma unroll
    for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int k = 0; k < 3; k++) {
            uint32_t w[3][4];
#pragma unroll
            for (int dy = 0; dy < 3; dy++)
                load_transposed(w[dy], w0 + (uint32_t)((3 * dy + dx) * tap3 + 256 * k));
#pragma unroll
            for (int pair = 0; pair < 3; pair++) {
                uint32_t d[4];
                load_matrices(d, d0 + (uint32_t)(2 * pair * line8 + 2 * k * plane8 - 16 * dx));
#pragma unroll
                for (int i = 0; i < 6; i++) {
                    int dy = 2 - i % 3, y = 2 * pair + i / 3 + dy - 2;
                    if (y < 0 || y >= 4) continue;
                    warp_mma(sum[y], w[dy], d[i / 3 * 2], d[i / 3 * 2 + 1]);
                }
            }
        }
    uint32_t to = me.base + (uint32_t)(at_delta2 + (2 * rows + me.lane / 8 % 2) * plane16 +
                                       place16(me.image, 2 * lines, 2 * column_place(me.lane)) +
                                       16 * (me.lane / 16));
#pragma unroll
    for (int y = 0; y < 4; y++) {
        uint32_t out[2][4]; /* by half, by place in the window */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t choices = mine.choice2[y / 2] >> (12 * (y % 2) + 3 * half);
            float v[2] = {choices & 4 ? sum[y][2 * half] : 0,
                          choices & 256 ? sum[y][2 * half + 1] : 0};
            mine.b2[half] += v[0];
            mine.b2[half] += v[1];
            uint32_t both = pack(v[0], v[1]);
            uint32_t first = choices & 3, second = choices >> 6 & 3;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                out[half][i] =
                    (first == i ? both & 0xffffu : 0u) | (second == i ? both & 0xffff0000u : 0u);
        }
#pragma unroll
        for (int down = 0; down < 2; down++)
            store_transposed(to + (uint32_t)((2 * y + down) * line16), out[0][2 * down],
                             out[1][2 * down], out[0][2 * down + 1], out[1][2 * down + 1]);
    }
}

/* 16 outputs by 8 inputs, all taps: two lines of places at a time, and the four that they read. */
__device__ inline void weights3_backward(const place &at, keep &mine) {
    const place me = afresh(at);
    int rows = me.warp / 4, columns = me.warp % 4;
    uint32_t d0 = me.base + (uint32_t)(at_delta3 + (2 * rows + me.lane / 8 % 2) * plane8 +
                                       place8(0, me.lane / 16, me.lane % 8));
    uint32_t x0 = me.base + (uint32_t)(at_values2 + columns * plane8 +
                                       place8(0, me.lane / 8 - 1, me.lane % 8 - 1));
#pragma unroll 1
    for (int image = 0; image < together; image++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint32_t from = (uint32_t)(image * pitch8 * line8 + 2 * pair * line8), d[4];
            load_transposed(d, d0 + from);
#pragma unroll
            for (int dx = 0; dx < 3; dx++) {
                uint32_t x[4];
                load_transposed(x, x0 + from + (uint32_t)(16 * dx));
#pragma unroll
                for (int dy = 0; dy < 3; dy++) warp_mma(mine.w3[3 * dy + dx], d, x[dy], x[dy + 1]);
            }
        }
}

/* 16 outputs by 8 inputs, one column of taps. Lines are loaded in fours, the first is -1. */
__device__ inline void weights2_backward(const place &at, keep &mine) {
    const place me = afresh(at);
    int rows = me.warp / 6, columns = me.warp / 3 % 2, dx = me.warp % 3;
    uint32_t d0 = me.base + (uint32_t)(at_delta2 + (2 * rows + me.lane / 8 % 2) * plane16 +
                                       place16(0, me.lane / 16, me.lane % 8));
    uint32_t x0 = me.base + (uint32_t)(at_values1 + columns * plane16 +
                                       place16(0, me.lane / 8 - 1, me.lane % 8 + dx - 1));
#pragma unroll 1
    for (int strip = 0; strip < 2 * together; strip++) {
        uint32_t from = (uint32_t)(strip / 2 * pitch16 * line16 + strip % 2 * 128), x[5][4];
#pragma unroll
        for (int pair = 0; pair < 8; pair++) {
            uint32_t d[4];
            if (pair == 0) load_transposed(x[0], x0 + from);
            if (pair % 2 == 1)
                load_transposed(x[pair / 2 + 1], x0 + from + (uint32_t)((2 * pair + 2) * line16));
            load_transposed(d, d0 + from + (uint32_t)(2 * pair * line16));
#pragma unroll
            for (int dy = 0; dy < 3; dy++) {
                int line = 2 * pair + dy;
                warp_mma(mine.w2[dy], d, x[line / 4][line % 4], x[(line + 1) / 4][(line + 1) % 4]);
            }
        }
    }
}

/* Gradient of what conv2 reads, 4 lines, in registers. */
__device__ inline void values2_backward(const place &at, float (&sum)[4][2][4]) {
    const place me = afresh(at);
    uint32_t w0 =
        me.base +
        (uint32_t)(at_w2 + 16 * (me.lane / 8 % 2 * channels2 + me.lane % 8 + 8 * (me.lane / 16)));
    uint32_t d0 = me.base + (uint32_t)(at_delta2 + me.lane / 8 % 2 * plane16 +
                                       place16(me.image, 4 * me.part - 1,
                                               column_place(me.lane) + 8 * (me.lane / 16) + 1));
#pragma unroll
    for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t w[3][4];
#pragma unroll
            for (int dy = 0; dy < 3; dy++)
                load_transposed(w[dy], w0 + (uint32_t)((3 * dy + dx) * tap2 + 256 * k));
#pragma unroll
            for (int line = 0; line < 6; line++) {
                uint32_t d[4];
                load_matrices(d, d0 + (uint32_t)(line * line16 + 2 * k * plane16 - 16 * dx));
#pragma unroll
                for (int dy = 2; dy >= 0; dy--) {
                    int y = line + dy - 2;
                    if (y < 0 || y >= 4) continue;
                    warp_mma(sum[y][0], w[dy], d[0], d[1]);
                    warp_mma(sum[y][1], w[dy], d[2], d[3]);
                }
            }
        }
}

/* Two of a window's four gradients of a channel, each in its column: [0] the upper, [1] the lower
 * line. */
__device__ inline void spread(float value, uint32_t choice, float &bias, uint32_t (&line)[2]) {
    if (!(choice & 4)) value = 0;
    bias += value;
    uint32_t word = choice & 1 ? pack(0, value) : pack(value, 0);
    line[0] = choice & 2 ? 0 : word;
    line[1] = choice & 2 ? word : 0;
}

__device__ inline void weights1_backward(const place &at, const float (&value)[4][2][4],
                                         keep &mine) {
    const place me = afresh(at);
    uint32_t from[2];
    for (int k = 0; k < 2; k++)
        from[k] = patch_address(me, 16 * k + 8 * (me.lane / 16) + me.lane % 8, me.lane / 8 % 2);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int block = 0; block < 4; block++) {
            uint32_t d[4], line[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                spread(value[r][block / 2][2 * half + block % 2],
                       mine.choice1[r] >> 3 * (2 * block + half), mine.b1[half], line);
                d[half] = line[0], d[2 + half] = line[1];
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t x[4];
                load_matrices(x, from[k] + (uint32_t)(2 * r * line32 + 16 * block));
                warp_mma(mine.w1[2 * k], d, x[0], x[1]);
                warp_mma(mine.w1[2 * k + 1], d, x[2], x[3]);
            }
        }
}

/* --- images ----------------------------------------------------------------------------------- */

/* The warp's lines of an image, a pixel a lane. */
__device__ inline void read_lines(const place &at, const float *image, const image_change &how,
                                  float (&pixel)[image_lines]) {
    const place me = afresh(at);
    image += reflected((how.flip ? side - 1 - me.lane : me.lane) + how.right, side);
#pragma unroll
    for (int i = 0; i < image_lines; i++) {
        int line = image_lines * me.part + i;
        pixel[i] = image[(line / side * side + reflected(line % side + how.down, side)) * side];
    }
}

/* Moved by -1, 0 and 1 places. */
__device__ inline void write_lines(const place &at, const float (&pixel)[image_lines]) {
    const place me = afresh(at);
    __nv_bfloat16 *to = me.at<__nv_bfloat16>(at_images + me.image * image32) + me.lane;
#pragma unroll
    for (int i = 0; i < image_lines; i++) {
        int line = image_lines * me.part + i;
        __nv_bfloat16 *row = to + (line / side * 3 * plane32 + (line % side + 1) * line32) / 2;
        __nv_bfloat16 value = __float2bfloat16(pixel[i]);
        if (me.lane < side - 1) row[1] = value;
        row[plane32 / 2] = value;
        if (me.lane > 0) row[plane32 - 1] = value;
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* Where the products read a weight of each layer, by its place in the file. */
__device__ inline int staged1(int i) {
    int o = i / 27, channel = i % 27 / 9, down = i % 9 / 3, plane = 3 * channel + i % 3;
    int k = plane < 8 ? 8 * down + plane : 24 + down;
    return at_w1 + k / 8 * 256 + o * 16 + k % 8 * 2;
}
template <int In, int Out> __device__ inline int staged(int i) {
    int o = i / (9 * In), u = i % (9 * In) / 9, tap = i % 9;
    return ((tap * In / 8 + u / 8) * Out + o) * 16 + u % 8 * 2;
}

/* A new parameter, to where the products read it. */
__device__ inline void stage(const place &me, int i, float w) {
    if (i >= flat_linear) {
        int k = i - flat_linear, o = k / channels3;
        if (k >= classes * channels3) k += 4 * classes;
        else k += 4 * o;
        me.at<float>(at_linear)[k] = w;
    } else if (i >= flat_b3) {
        me.at<float>(at_biases)[channels1 + channels2 + i - flat_b3] = w;
    } else if (i >= flat_w3) {
        *me.at<__nv_bfloat16>(at_w3 + staged<channels2, channels3>(i - flat_w3)) =
            __float2bfloat16(w);
    } else if (i >= flat_b2) {
        me.at<float>(at_biases)[channels1 + i - flat_b2] = w;
    } else if (i >= flat_w2) {
        *me.at<__nv_bfloat16>(at_w2 + staged<channels1, channels2>(i - flat_w2)) =
            __float2bfloat16(w);
    } else if (i >= flat_b1) {
        me.at<float>(at_biases)[i - flat_b1] = w;
    } else {
        *me.at<__nv_bfloat16>(staged1(i)) = __float2bfloat16(w);
    }
}

/* The registers of all warps to shared memory, where values were. */
__device__ inline void gather_gradient(const place &me, keep &mine) {
    float *g3 = me.at<float>(at_g3), *g2 = me.at<float>(at_g2);
    float *g1 = me.at<float>(at_g1) + me.warp * channels1 * 32;
    float *biases = me.at<float>(at_bias_parts) + 96 * me.warp;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = me.row + 8 * (i / 2), column = 2 * me.quad + i % 2;
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
            g3[((16 * (me.warp / 4) + row) * channels2 + 8 * (me.warp % 4) + column) * 9 + tap] =
                mine.w3[tap][i];
#pragma unroll
        for (int down = 0; down < 3; down++)
            g2[((16 * (me.warp / 6) + row) * channels1 + 8 * (me.warp / 3 % 2) + column) * 9 +
               3 * down + me.warp % 3] = mine.w2[down][i];
#pragma unroll
        for (int k = 0; k < 4; k++) g1[row * 32 + 8 * k + column] = mine.w1[k][i];
    }
#pragma unroll
    for (int i = 0; i < 10; i++) {
        int half = i % 2;
        float total = i < 2 ? mine.b1[half] : i < 4 ? mine.b2[half] : mine.b3[(i - 4) / 2][half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (me.quad == 0) biases[8 * i + me.row] = total; /* 16, 16 of conv2's 32, 48 */
    }
}

/* The gradient of a parameter before the linear layer. */
__device__ inline float gathered(const place &me, int i) {
    float total = 0;
    if (i < flat_b1) {
        int at = (staged1(i) - at_w1) / 2, k = at / 128 * 8 + at % 8;
        const float *part = me.at<float>(at_g1) + i / 27 * 32 + k;
        for (int w = 0; w < warps; w++) total += part[w * channels1 * 32];
        return total;
    }
    const float *biases = me.at<float>(at_bias_parts);
    if (i < flat_w2) {
        for (int w = 0; w < warps; w++) total += biases[96 * w + i - flat_b1];
        return total;
    }
    if (i < flat_b2) return me.at<float>(at_g2)[i - flat_w2];
    if (i < flat_w3) { /* the warps of its 16 channels */
        int c = i - flat_b2;
        for (int w = 0; w < warps; w++)
            if (w % 4 / 2 == c / 16) total += biases[96 * w + 16 + c % 16];
        return total;
    }
    if (i < flat_b3) return me.at<float>(at_g3)[i - flat_w3];
    for (int w = 0; w < warps; w++) total += biases[96 * w + 32 + i - flat_b3];
    return total;
}

__device__ inline void clear_values(const place &me) {
    for (int i = (int)threadIdx.x; i < (at_w3 - at_values1) / 16; i += threads)
        me.at<uint4>(at_values1)[i] = uint4{0, 0, 0, 0};
}

__device__ inline void clear_gradient(keep &mine) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int k = 0; k < 4; k++) mine.w1[k][i] = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) mine.w2[k][i] = 0;
#pragma unroll
        for (int k = 0; k < 9; k++) mine.w3[k][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        mine.b1[i] = mine.b2[i] = mine.linear[i] = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) mine.b3[k][i] = 0;
    }
}

/* `some` parameters a thread at a time, so that their loads wait together. */
template <bool ADAM, int Some>
__device__ inline void update_range(const gpu_plan &net, const place &me, const gpu_rates &rates,
                                    int begin, int end, float *flat, float *first, float *second) {
    for (int start = begin + (int)threadIdx.x; start < end; start += Some * threads) {
        float w[Some] = {}, m[Some] = {}, v[Some] = {};
#pragma unroll
        for (int k = 0; k < Some; k++) {
            int i = start + k * threads;
            if (i >= end) continue;
            w[k] = flat[i], m[k] = first[i], v[k] = ADAM ? second[i] : 0;
        }
#pragma unroll
        for (int k = 0; k < Some; k++) {
            int i = start + k * threads;
            if (i >= end) continue;
            update_parameter<ADAM, true>(net, rates, gathered(me, i), w[k], m[k], v[k]);
            flat[i] = w[k], first[i] = m[k];
            if (ADAM) second[i] = v[k];
            stage(me, i, w[k]);
        }
    }
}

/* One update. Begins behind a barrier, ends with one. */
template <bool ADAM>
__device__ inline void update_weights(const gpu_plan &net, const place &me, const gpu_rates &rates,
                                      float *flat, float *first, float *second, keep &mine) {
    gather_gradient(me, mine);
    __syncthreads(); /* for `rates`, too */
    update_range<ADAM, 1>(net, me, rates, flat_w1, flat_w2, flat, first, second);
    update_range<ADAM, 6>(net, me, rates, flat_w2, flat_b2, flat, first, second);
    update_range<ADAM, 1>(net, me, rates, flat_b2, flat_w3, flat, first, second);
    update_range<ADAM, 6>(net, me, rates, flat_w3, flat_b3, flat, first, second);
    update_range<ADAM, 1>(net, me, rates, flat_b3, flat_linear, flat, first, second);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = flat_linear + (int)threadIdx.x + k * threads;
        if (i >= n_params) continue;
        float w = flat[i], m = first[i], v = ADAM ? second[i] : 0;
        update_parameter<ADAM, true>(net, rates, mine.linear[k], w, m, v);
        flat[i] = w, first[i] = m;
        if (ADAM) second[i] = v;
        stage(me, i, w);
    }
    __syncthreads();
    clear_values(me);
    clear_gradient(mine);
    __syncthreads();
}

/* --- one network ------------------------------------------------------------------------------ */

/* Three places in the order of a network's examples. */
struct cursor {
    int epoch, start, at; /* first example of the batch, place in the batch */
};

__device__ inline cursor behind(const gpu_plan &net, cursor it) {
    it.at += together;
    if (it.at < min(net.batch, net.n_train - it.start)) return it;
    it.at = 0, it.start += net.batch;
    if (it.start < net.n_train) return it;
    return cursor{it.epoch + 1, 0, 0};
}

/* The example that stands at a cursor's place for the warp's image; an empty place repeats the last
 * one of the batch. */
__device__ inline uint32_t example_at(const gpu_plan &net, const gpu_networks &networks,
                                      size_t network, const place &me, cursor it) {
    int last = min(net.batch, net.n_train - it.start) - 1;
    size_t at = (network * net.epochs_max + it.epoch) * (size_t)net.n_train + it.start +
                min(it.at + me.image, last);
    return networks.order16 ? networks.order16[at] : networks.order32[at];
}

/* Up to the means' sums; images are in shared memory. Begins and ends with a barrier. */
template <class Clock>
__device__ inline void all_forward(const place &me, keep &mine, Clock &clock) {
    __syncthreads();
    clock.mark(0);
    forward1(me, mine);
    __syncthreads();
    clock.mark(1);
    forward2(me, mine);
    __syncthreads();
    clock.mark(2);
    forward3(me, mine);
    __syncthreads();
    clock.mark(3);
}

/* Error bits of the test examples, and how many there are. */
template <class Clock>
__device__ inline void judge(const gpu_plan &net, const place &me, keep &mine, Clock &clock,
                             uint8_t *errors, uint32_t *wrong) {
    const image_change as_it_is = {false, 0, 0};
    uint32_t bits = 0, count = 0; /* of the first thread */
    for (int start = 0; start < net.n_test; start += together) {
        int mine_is = min(start + me.image, net.n_test - 1);
        float pixel[image_lines];
        read_lines(me, net.x_test + (size_t)mine_is * inputs, as_it_is, pixel);
        write_lines(me, pixel);
        all_forward(me, mine, clock);
        if (me.part == 0) {
            float z = logit_of(me);
            int best = 0;
            float top = __shfl_sync(0xffffffffu, z, 0);
            for (int c = 1; c < classes; c++) {
                float other = __shfl_sync(0xffffffffu, z, c);
                if (other > top) top = other, best = c;
            }
            if (me.lane == 0)
                me.at<uint32_t>(at_slopes)[16 * me.warp] = best != net.y_test[mine_is];
        }
        __syncthreads();
        for (int i = start; threadIdx.x == 0 && i < min(start + together, net.n_test); i++) {
            if (me.at<uint32_t>(at_slopes)[16 * image_warps * (i - start)])
                bits |= 1u << i % 8, count++;
            if (i % 8 == 7 || i + 1 == net.n_test) errors[i / 8] = (uint8_t)bits, bits = 0;
        }
    }
    if (threadIdx.x == 0) *wrong = count;
}

/* Clock::mark(n) is called at the barriers: 0 images are there, 1 to 3 conv1 to conv3, 4 loss, 5
 * conv3 backward, 6 conv2 backward: values, 7 weights of conv1, 8 the barrier behind, 9 update. */
template <class Clock>
__global__ void __launch_bounds__(threads, 1)
    train(const __grid_constant__ conv_plan plan, const gpu_networks networks, Clock clock) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ gpu_rates rates;
    __shared__ uint32_t stop;
    const gpu_plan &net = plan.net;
    size_t network = blockIdx.x;
    float *flat = networks.flat + network * (size_t)n_params;
    float *first = plan.state + network * 3 * (size_t)n_params, *second = first + n_params;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const place me = {shared,  shared_address(shared), warp, lane, lane / 4, lane % 4, warp / 4,
                      warp % 4};
    gpu_task task = networks.tasks[network];
    for (int i = (int)threadIdx.x; i < shared_bytes / 16; i += threads)
        me.at<uint4>(0)[i] = uint4{0, 0, 0, 0};
    for (int i = (int)threadIdx.x; i < n_params; i += threads) first[i] = second[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_params; i += threads) stage(me, i, flat[i]);
    keep mine;
    clear_gradient(mine);
    int updates = (net.n_train + net.batch - 1) / net.batch * task.epochs, update = 0;
    cursor now = {0, 0, 0};
    float pixel[image_lines];
    uint32_t example = 0;
    int label = -1; /* of the images in shared memory */
    if (task.epochs > 0) {
        example = example_at(net, networks, network, me, now);
        read_lines(me, net.x_train + (size_t)example * inputs,
                   change_of(plan, task.index, 0, example), pixel);
        write_lines(me, pixel);
        label = me.image < net.batch && me.image < net.n_train ? net.y_train[example] : -1;
    }
    clock.start();
    while (now.epoch < task.epochs) {
        int batch = min(net.batch, net.n_train - now.start);
        if (now.at == 0) {
            if (threadIdx.x == 0) stop = update % networks.look_every == 0 ? *networks.stop : 0;
            __syncthreads();
            if (stop != 0) { /* the same for all threads: set again only behind barriers */
                if (threadIdx.x == 0) networks.broken[network] = GPU_UNFINISHED;
                return;
            }
        }
        cursor next = behind(net, now);
        bool more = next.epoch < task.epochs;
        if (more) example = example_at(net, networks, network, me, next);
        all_forward(me, mine, clock);
        loss_backward(net, me, label, batch, mine);
        __syncthreads();
        clock.mark(4);
        linear_gradient(me, mine);
        values3_backward(me, mine);
        weights3_backward(me, mine);
        __syncthreads();
        clock.mark(5);
        weights2_backward(me, mine);
        float value[4][2][4] = {};
        values2_backward(me, value);
        clock.mark(6);
        if (more) {
            read_lines(me, net.x_train + (size_t)example * inputs,
                       change_of(plan, task.index, (uint32_t)next.epoch, example), pixel);
            label = next.at + me.image < min(net.batch, net.n_train - next.start)
                        ? net.y_train[example]
                        : -1;
        }
        weights1_backward(me, value, mine);
        clock.mark(7);
        if (next.at == 0 && threadIdx.x == 0) rates = rates_of(net, task.lr, update, updates);
        __syncthreads();
        if (more) write_lines(me, pixel);
        clock.mark(8);
        if (next.at == 0) {
            if (net.optimizer == WF_ZOO_ADAM)
                update_weights<true>(net, me, rates, flat, first, second, mine);
            else update_weights<false>(net, me, rates, flat, first, second, mine);
            update++;
            clock.mark(9);
        }
        now = next;
    }
    clock.finish();
    bool bad = false;
    for (int i = (int)threadIdx.x; i < n_params; i += threads) bad |= !isfinite(flat[i]);
    if (__syncthreads_or(bad) && threadIdx.x == 0) networks.broken[network] = GPU_DIVERGED;
    judge(net, me, mine, clock, networks.errors + network * (((size_t)net.n_test + 7) / 8),
          networks.wrong + network);
}

struct no_clock {
    __device__ void start() {}
    __device__ void mark(int) {}
    __device__ void finish() {}
};

} // namespace zoo_gpu::paper
