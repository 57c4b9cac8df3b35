/* zoo_small: MLPs of two or three layers with many inputs and few units, trained on tensor cores.
 *
 * The first layer is that of zoo_large_input.cu: a warp owns columns, with their state in
 * registers. In the layers after it a warp takes 8 examples from z_1 to the logits and back to d_1
 * without a barrier, all in registers, with examples in the columns of every product:
 *   z_l' = W_l h_{l-1}'    A = W_l, ldmatrix;         B = h_{l-1}, from accumulators of z_{l-1},
 *                                                     movmatrix
 *   d_{l-1}' = W_l' d_l'   A = W_l', ldmatrix.trans;  B = d_l
 * Three products each: hi hi, lo hi, hi lo. It leaves d_l and h_l (units, examples) in shared
 * memory, where
 *   dW_l = d_l h_{l-1}'    and the sums of the biases, a product with ones,
 * are one more product over all examples, in pieces of 16 x 16 that are divided among the warps.
 * Every rank of a cluster takes all examples through the later layers: that costs no time and
 * saves a second exchange. The examples of the next batch come by bulk copies (sm_90) or cp.async
 * while the optimiser works.
 *
 * FLOPs: MNIST 784-32-32-10, batch 64: 6.9 MFLOP an update, twice that as hi + lo; karhunen
 * 64-16-8-10, batch 128: 0.66 MFLOP, three products each. Bytes: 100 KB of x an MNIST update;
 * nothing else leaves the chip. One network fills its SMs' registers, so latency is not hidden: an
 * H200 reaches 16 % of the products' rate (docs/results/2026-11-15-zoo-h200.md).
 *
 *   I1  sums run in fixed order; a network's bits depend on nothing but itself
 *   I2  padding columns, units and rows hold zeros in x, w and d, so they stay zero
 *   I3  ranks may be one update apart: there are two inboxes for z_1, used alternately */
#include "zoo/cuda/zoo_small.cuh"
#include "zoo/cuda/zoo_first_layer.cuh"

namespace zoo_gpu {
namespace {

/* Sizes of the later layers, in parameters. */
template <int T1, int T2, int T3> struct sizes {
    static constexpr int layers = T3 > 0 ? 3 : 2;
    static constexpr int pieces = T1 + T2 * T1 + T3 * T2; /* pieces of work, see piece_at */
    static constexpr int stride2 = 16 * T1 + 8, stride3 = 16 * T2 + 8;
    static constexpr int weight2 = 0, weight3 = 16 * T2 * stride2;
    static constexpr int bias1 = weight3 + 16 * T3 * stride3, bias2 = bias1 + 16 * T1,
                         bias3 = bias2 + 16 * T2;
    static constexpr int total = bias3 + 16 * T3;
};

/* Of one block; pointers into shared memory. */
struct areas {
    float *state;          /* (3, total) */
    __nv_bfloat16 *halves; /* (2, total) */
    uint32_t *d[4],
        *h[3]; /* bf16 pairs (2, 16 T, (R + 8) / 2); d[1 .. layers], h[1 .. layers - 1] */
    int pitch; /* (R + 8) / 2 */
};

template <int T1, int T2, int T3>
__device__ inline areas areas_of(const small_plan &plan, unsigned char *shared) {
    areas a;
    a.state = (float *)(shared + plan.state);
    a.halves = (__nv_bfloat16 *)(shared + plan.halves);
    a.pitch = (plan.large.rows + 8) / 2;
    uint32_t *next = (uint32_t *)(shared + plan.operands);
    a.d[1] = (uint32_t *)(shared + plan.large.delta);
    a.d[2] = next, next += 32 * T2 * a.pitch;
    a.h[1] = next, next += 32 * T1 * a.pitch;
    a.d[3] = next, next += 32 * T3 * a.pitch;
    a.h[2] = next;
    return a;
}

__device__ inline uint32_t transposed(uint32_t pair) {
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

/* 1 / (1 + e^-z), to 2^-21; short, because all code of an update has to fit in the instruction
 * cache. */
__device__ inline float logistic(float z) { return __fdividef(1.0f, 1.0f + __expf(-z)); }

/* The activation of z; its slope follows from the result. */
__device__ inline float output_of(int activation, float z) {
    if (activation == WF_ACT_RELU) return z > 0 ? z : 0;
    if (activation == WF_ACT_IDENTITY) return z;
    float s = logistic(activation == WF_ACT_TANH ? 2 * z : z);
    return activation == WF_ACT_TANH ? 2 * s - 1 : s;
}

/* Operands of 8 examples: tile t holds units 8t .. 8t+7, pairs along them. */
template <int N> struct columns8 { uint32_t top[N], rest[N]; };

/* z (16 M units, 8 examples) += W h. W (16 M, 16 K) row-major hi and lo, `stride` wide; TRANSPOSED:
 * W' of such a matrix. */
template <int M, int K, bool TRANSPOSED>
__device__ inline void multiply(float (&z)[M][4], const __nv_bfloat16 *halves, int total,
                                int stride, int lane, const columns8<2 * K> &b) {
    int row = TRANSPOSED ? lane % 8 + 8 * (lane / 16) : lane % 16;
    int column = TRANSPOSED ? 8 * (lane / 8 % 2) : 8 * (lane / 16);
    uint32_t w = shared_address(halves + row * stride + column);
    /* three separate sums, so that none waits for another */
    float low_high[M][4] = {}, high_low[M][4] = {};
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t top[4], rest[4];
            uint32_t at = w + 2 * (uint32_t)(TRANSPOSED ? 16 * k * stride + 16 * m
                                                        : 16 * m * stride + 16 * k);
            if (TRANSPOSED) {
                load_transposed(top, at);
                load_transposed(rest, at + 2 * (uint32_t)total);
            } else {
                load_matrices(top, at);
                load_matrices(rest, at + 2 * (uint32_t)total);
            }
            mma16(z[m], top, b.top[2 * k], b.top[2 * k + 1]);
            mma16(low_high[m], rest, b.top[2 * k], b.top[2 * k + 1]);
            mma16(high_low[m], top, b.rest[2 * k], b.rest[2 * k + 1]);
        }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) z[m][i] += low_high[m][i] + high_low[m][i];
}

/* Accumulators (16 T units, 8 examples) to shared memory as (units, examples) pairs; OPERANDS: also
 * to operands of the next product. */
template <int T, bool OPERANDS>
__device__ inline void keep(const float (&z)[T][4], uint32_t *out, int pitch, int tile, int lane,
                            columns8<2 * T> &operand) {
    uint32_t *place = out + lane / 4 * pitch + 4 * tile + lane % 4;
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t top, rest;
            split(z[m][2 * half], z[m][2 * half + 1], top, rest);
            int unit = 16 * m + 8 * half;
            place[unit * pitch] = top;
            place[(16 * T + unit) * pitch] = rest;
            if (!OPERANDS) continue;
            operand.top[2 * m + half] = transposed(top);
            operand.rest[2 * m + half] = transposed(rest);
        }
}

template <int T>
__device__ inline void start_from_bias(float (&z)[T][4], const float *bias, int lane) {
#pragma unroll
    for (int m = 0; m < T; m++) {
        z[m][0] = z[m][1] = bias[16 * m + lane / 4];
        z[m][2] = z[m][3] = bias[16 * m + 8 + lane / 4];
    }
}

__device__ inline float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

/* h_1 of 8 examples from the parts of z_1: as operands, and as (units, examples) in shared memory
 * and in `transposed_h`. */
template <int T1>
__device__ inline void first_outputs(const small_plan &plan, const place &at, const areas &a,
                                     const float *bias, int tile, int parity, columns8<2 * T1> &h,
                                     columns8<2 * T1> &transposed_h) {
    const large_input_plan &large = plan.large;
    int row = 8 * tile + at.lane / 4, q = at.lane % 4;
    bool summed = large.ranks > 1;
    int stride = summed ? 16 * T1 + 8 : 16 * T1 + 4, parts = summed ? large.ranks : plan.owners;
    const float *z = (const float *)(at.shared + (summed ? large.inbox : large.partial)) +
                     (summed ? parity * parts : 0) * large.rows * stride + row * stride + 2 * q;
    float2 sum[2 * T1];
#pragma unroll
    for (int j = 0; j < 2 * T1; j++) sum[j] = *(const float2 *)(z + 8 * j);
    for (int p = 1; p < parts; p++) {
        z += large.rows * stride;
#pragma unroll
        for (int j = 0; j < 2 * T1; j++) sum[j] = add2(sum[j], *(const float2 *)(z + 8 * j));
    }
    int activation = large.rest.activation, units = large.rest.layer[0].out;
    uint32_t *out = a.h[1] + at.lane / 4 * a.pitch + 4 * tile + q;
#pragma unroll
    for (int j = 0; j < 2 * T1; j++) {
        int unit = 8 * j + 2 * q;
        float2 b = *(const float2 *)(bias + unit);
        float x = output_of(activation, fmaf(large.scale, sum[j].x, b.x)),
              y = output_of(activation, fmaf(large.scale, sum[j].y, b.y));
        if (unit >= units) x = 0; /* sigmoid of padding is not 0 */
        if (unit + 1 >= units) y = 0;
        split(x, y, h.top[j], h.rest[j]);
        transposed_h.top[j] = transposed(h.top[j]);
        transposed_h.rest[j] = transposed(h.rest[j]);
        out[8 * j * a.pitch] = transposed_h.top[j];
        out[(16 * T1 + 8 * j) * a.pitch] = transposed_h.rest[j];
    }
}

__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

template <int T>
__device__ inline void activate_tiles(float (&z)[T][4], int activation, int units, int lane) {
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z[m][i] = output_of(activation, z[m][i]);
            if (16 * m + lane / 4 + 8 * (i / 2) >= units) z[m][i] = 0;
        }
}

/* Over the lanes that hold the same examples. */
__device__ inline float largest_of_units(float x) {
    for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

__device__ inline float sum_of_units(float x) {
    for (int d = 4; d < 32; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Logits to their gradient; examples beyond `used` get 0. */
template <int T>
__device__ inline void loss_tiles(float (&z)[T][4], const gpu_plan &rest, const int32_t *labels,
                                  int tile, int used, float each, int lane) {
    float off = rest.smoothing * each / rest.classes, on = (1 - rest.smoothing) * each;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = 8 * tile + 2 * (lane % 4) + e, label = labels[row];
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int i = e; i < 4; i += 2)
                if (16 * m + lane / 4 + 4 * (i - e) < rest.classes) top = fmaxf(top, z[m][i]);
        top = largest_of_units(top);
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int i = e; i < 4; i += 2) {
                bool real = 16 * m + lane / 4 + 4 * (i - e) < rest.classes;
                z[m][i] = real ? __expf(z[m][i] - top) : 0;
                total += z[m][i];
            }
        float factor = each / sum_of_units(total);
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int i = e; i < 4; i += 2) {
                int c = 16 * m + lane / 4 + 4 * (i - e);
                bool real = c < rest.classes && row < used;
                z[m][i] = real ? z[m][i] * factor - off - (c == label ? on : 0) : 0;
            }
    }
}

/* Whether the most likely class of an example is not its label; of equal classes the first counts.
 * Lanes 0 to 3 write. */
template <int T>
__device__ inline void judge_tiles(const float (&z)[T][4], const gpu_plan &rest,
                                   const int32_t *labels, uint32_t *wrong, int tile, int used,
                                   int lane) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = 8 * tile + 2 * (lane % 4) + e, best = 0;
        float top = -INFINITY;
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int i = e; i < 4; i += 2) {
                int c = 16 * m + lane / 4 + 4 * (i - e);
                if (c < rest.classes && (z[m][i] > top || c == lane / 4)) top = z[m][i], best = c;
            }
        for (int d = 4; d < 32; d *= 2) {
            float other = __shfl_xor_sync(0xffffffffu, top, d);
            int other_best = __shfl_xor_sync(0xffffffffu, best, d);
            if (other > top || (other == top && other_best < best)) top = other, best = other_best;
        }
        if (lane < 4) wrong[row] = row < used && best != labels[row];
    }
}

/* d = (W' d_above) * slope(h). */
template <int T>
__device__ inline void times_slope(float (&d)[T][4], const float (&h)[T][4], int activation) {
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[m][i] *= slope_from_output(activation, h[m][i]);
}

/* Takes eight examples from z_1 to the logits; then tests them, or goes back to d_1. */
template <int T1, int T2, int T3, bool JUDGE>
__device__ inline void through_layers(const small_plan &plan, const place &at, const areas &a,
                                      int tile, int parity, const int32_t *labels, uint32_t *wrong,
                                      int used, float each) {
    using size = sizes<T1, T2, T3>;
    const gpu_plan &rest = plan.large.rest;
    const int activation = rest.activation, lane = at.lane;
    const __nv_bfloat16 *w2 = a.halves + size::weight2, *w3 = a.halves + size::weight3;
    columns8<2 * T1> h1, transposed_h;
    first_outputs<T1>(plan, at, a, a.state + size::bias1, tile, parity, h1, transposed_h);
    float z2[T2][4];
    start_from_bias<T2>(z2, a.state + size::bias2, lane);
    multiply<T2, T1, false>(z2, w2, size::total, size::stride2, lane, h1);
    columns8<2 * T2> d2;
    if constexpr (T3 > 0) {
        activate_tiles<T2>(z2, activation, rest.layer[1].out, lane);
        columns8<2 * T2> h2;
        keep<T2, true>(z2, a.h[2], a.pitch, tile, lane, h2);
        float z3[T3][4];
        start_from_bias<T3>(z3, a.state + size::bias3, lane);
        multiply<T3, T2, false>(z3, w3, size::total, size::stride3, lane, h2);
        if (JUDGE) {
            judge_tiles<T3>(z3, rest, labels, wrong, tile, used, lane);
            return;
        }
        loss_tiles<T3>(z3, rest, labels, tile, used, each, lane);
        columns8<2 * T3> d3;
        keep<T3, true>(z3, a.d[3], a.pitch, tile, lane, d3);
        float back[T2][4] = {};
        multiply<T2, T3, true>(back, w3, size::total, size::stride3, lane, d3);
        times_slope<T2>(back, z2, activation);
        keep<T2, true>(back, a.d[2], a.pitch, tile, lane, d2);
    } else {
        if (JUDGE) {
            judge_tiles<T2>(z2, rest, labels, wrong, tile, used, lane);
            return;
        }
        loss_tiles<T2>(z2, rest, labels, tile, used, each, lane);
        keep<T2, true>(z2, a.d[2], a.pitch, tile, lane, d2);
    }
    float back[T1][4] = {}, outputs[T1][4];
    multiply<T1, T2, true>(back, w2, size::total, size::stride2, lane, d2);
#pragma unroll
    for (int m = 0; m < T1; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t top = transposed_h.top[2 * m + half], low = transposed_h.rest[2 * m + half];
            outputs[m][2 * half] = low_half(top) + low_half(low);
            outputs[m][2 * half + 1] = high_half(top) + high_half(low);
        }
    times_slope<T1>(back, outputs, activation);
    columns8<2 * T1> unused;
    keep<T1, false>(back, a.d[1], a.pitch, tile, lane, unused);
}

/* --- the later layers: gradients and updates ---------------------------------------- */

/* Two neighbouring parameters at `i` of the state. */
template <bool ADAM>
__device__ inline float2 update_pair(const gpu_plan &rest, const gpu_rates &rates, float *state,
                                     int total, int i, float g0, float g1) {
    float2 w = *(float2 *)(state + i), m = *(float2 *)(state + total + i),
           v = *(float2 *)(state + 2 * total + i);
    update_parameter<ADAM, false>(rest, rates, g0, w.x, m.x, v.x);
    update_parameter<ADAM, false>(rest, rates, g1, w.y, m.y, v.y);
    *(float2 *)(state + i) = w;
    *(float2 *)(state + total + i) = m;
    *(float2 *)(state + 2 * total + i) = v;
    return w;
}

/* The work of the later layers is cut into pieces: 16 units of a layer by 16 of its inputs, or the
 * biases of 16 units of the first layer. Piece u belongs to warp (warps - 1 - u) modulo warps,
 * because the last warps own no columns. */
struct piece_sums {
    float w[2][4], ones[4];
};

/* Where piece u is. */
struct piece_place {
    int layer, row, input; /* layer 1: the biases alone */
};

template <int T1, int T2, int T3> __device__ inline piece_place piece_at(int u) {
    if (u < T1) return piece_place{1, 16 * u, 0};
    u -= T1;
    if (u < T2 * T1) return piece_place{2, 16 * (u / T1), 16 * (u % T1)};
    u -= T2 * T1;
    return piece_place{3, 16 * (u / T2), 16 * (u % T2)};
}

template <int T1, int T2, int T3>
__device__ inline void piece_gradient(const areas &a, const piece_place &at, int rows, int lane,
                                      piece_sums &sums) {
    int pitch = a.pitch, d_rows = 16 * (at.layer == 1 ? T1 : at.layer == 2 ? T2 : T3);
    const uint32_t *d = at.layer == 1 ? a.d[1] : at.layer == 2 ? a.d[2] : a.d[3];
    int h_rows = 16 * (at.layer == 3 ? T2 : T1);
    const uint32_t *h = (at.layer == 3 ? a.h[2] : a.h[1]) + at.input * pitch;
    const uint32_t one = 0x3f803f80u; /* 1, 1 */
    uint32_t top_at = shared_address(d + (at.row + lane % 16) * pitch + 4 * (lane / 16));
    /* B: lanes 0-7 inputs 0-7 of examples 0-7, 8-15 of examples 8-15, 16-31 the next 8 inputs */
    uint32_t input_at =
        shared_address(h + (lane % 8 + 8 * (lane / 16)) * pitch + 4 * (lane / 8 % 2));
    uint32_t d_low = 4 * (uint32_t)(d_rows * pitch), h_low = 4 * (uint32_t)(h_rows * pitch);
#pragma unroll 2
    for (int e = 0; e < rows; e += 16) {
        uint32_t top[4], rest[4], b[4], low[4];
        load_matrices(top, top_at + 2 * (uint32_t)e);
        load_matrices(rest, top_at + d_low + 2 * (uint32_t)e);
        load_matrices(b, input_at + 2 * (uint32_t)e);
        load_matrices(low, input_at + h_low + 2 * (uint32_t)e);
        mma16(sums.ones, top, one, one);
        mma16(sums.w[0], top, b[0], b[1]);
        mma16(sums.w[1], top, b[2], b[3]);
        mma16(sums.ones, rest, one, one);
        mma16(sums.w[0], rest, b[0], b[1]);
        mma16(sums.w[1], rest, b[2], b[3]);
        mma16(sums.w[0], top, low[0], low[1]);
        mma16(sums.w[1], top, low[2], low[3]);
    }
}

template <int T1, int T2, int T3, bool ADAM>
__device__ inline void piece_update(const gpu_plan &rest, const gpu_rates &rates, const areas &a,
                                    const piece_place &at, int lane, const piece_sums &sums) {
    using size = sizes<T1, T2, T3>;
    int weight = at.layer == 3 ? size::weight3 : size::weight2,
        stride = at.layer == 3 ? size::stride3 : size::stride2;
    int place = weight + (at.row + lane / 4) * stride + at.input + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < 2 && at.layer > 1; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = place + 8 * half * stride + 8 * n;
            float2 w = update_pair<ADAM>(rest, rates, a.state, size::total, i, sums.w[n][2 * half],
                                         sums.w[n][2 * half + 1]);
            uint32_t top, low;
            split(w.x, w.y, top, low);
            *(uint32_t *)(a.halves + i) = top;
            *(uint32_t *)(a.halves + size::total + i) = low;
        }
    bool biased = at.input == 0 && rest.layer[at.layer - 1].flat_bias >= 0;
    if (lane % 4 < 2 && biased) { /* lanes 0 and 1 of four: units lane / 4 and 8 more */
        int i = (at.layer == 1   ? size::bias1
                 : at.layer == 2 ? size::bias2
                                 : size::bias3) +
                at.row + lane / 4 + 8 * (lane % 4);
        float w = a.state[i], m = a.state[size::total + i], v = a.state[2 * size::total + i];
        update_parameter<ADAM, false>(rest, rates, lane % 4 ? sums.ones[2] : sums.ones[0], w, m, v);
        a.state[i] = w, a.state[size::total + i] = m, a.state[2 * size::total + i] = v;
    }
}

/* The pieces of this warp. CHUNKED: it has one at most, whose sums are kept over the sets of
 * examples of a batch. */
template <int T1, int T2, int T3, bool CHUNKED>
__device__ inline void layers_behind(const small_plan &plan, const place &at, const areas &a,
                                     piece_sums &kept, bool complete, const gpu_rates &rates) {
    const gpu_plan &rest = plan.large.rest;
    for (int u = plan.large.warps - 1 - at.warp; u < sizes<T1, T2, T3>::pieces;
         u += plan.large.warps) {
        piece_place piece = piece_at<T1, T2, T3>(u);
        piece_sums own = {};
        piece_sums &sums = CHUNKED ? kept : own;
        piece_gradient<T1, T2, T3>(a, piece, plan.large.rows, at.lane, sums);
        if (!complete) continue;
        if (rest.optimizer == WF_ZOO_ADAM)
            piece_update<T1, T2, T3, true>(rest, rates, a, piece, at.lane, sums);
        else piece_update<T1, T2, T3, false>(rest, rates, a, piece, at.lane, sums);
    }
}

/* --- z_1 over a cluster ----------------------------------------------------------------------- */

/* Adds the parts of this block's warps and gives the sums to every rank. */
template <int T1>
__device__ inline void exchange_sums(const small_plan &plan, const place &at, int parity) {
    constexpr int quads = 4 * T1, stride = 16 * T1 + 4, inbox_stride = 16 * T1 + 8;
    const large_input_plan &large = plan.large;
    const float *partial = (const float *)(at.shared + large.partial);
    float *inbox = (float *)(at.shared + large.inbox) +
                   (parity * large.ranks + at.rank) * large.rows * inbox_stride;
    for (int i = threadIdx.x; i < large.rows * quads; i += blockDim.x) {
        int row = i / quads, unit = 4 * (i % quads);
        const float *part = partial + row * stride + unit;
        float4 sum = load4(part);
#pragma unroll 8
        for (int w = 1; w < plan.owners; w++)
            sum = add4(sum, load4(part + w * large.rows * stride));
        float *to = inbox + row * inbox_stride + unit;
        *reinterpret_cast<float4 *>(to) = sum;
        for (int c = 0; c < large.ranks; c++)
            if (c != at.rank) *reinterpret_cast<float4 *>(of_rank(to, c)) = sum;
    }
}

/* --- weights in and out ----------------------------------------------------------------------- */

template <int T1, int T2, int T3, bool LOAD>
__device__ inline void move_behind(const gpu_plan &rest, const areas &a, float *flat) {
    using size = sizes<T1, T2, T3>;
    const int weight[3] = {0, size::weight2, size::weight3},
              stride[3] = {0, size::stride2, size::stride3},
              bias[3] = {size::bias1, size::bias2, size::bias3};
    for (int l = 0; l < size::layers; l++) {
        const gpu_layer &layer = rest.layer[l];
        for (int i = threadIdx.x; l > 0 && i < layer.in * layer.out; i += blockDim.x) {
            int place = weight[l] + i / layer.in * stride[l] + i % layer.in;
            if (!LOAD) {
                flat[layer.flat_weight + i] = a.state[place];
                continue;
            }
            float w = a.state[place] = flat[layer.flat_weight + i];
            __nv_bfloat16 top = __float2bfloat16(w);
            a.halves[place] = top;
            a.halves[size::total + place] = __float2bfloat16(w - __bfloat162float(top));
        }
        for (int i = threadIdx.x; layer.flat_bias >= 0 && i < layer.out; i += blockDim.x) {
            if (LOAD) a.state[bias[l] + i] = flat[layer.flat_bias + i];
            else flat[layer.flat_bias + i] = a.state[bias[l] + i];
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int T1, int NT, int PLANES, bool CHUNKED, int T2, int T3, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    train_small(const __grid_constant__ small_plan plan, const gpu_networks networks) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ __align__(8) uint64_t arrived;
    __shared__ uint32_t list[256];
    __shared__ int32_t labels[2][256]; /* of this set and of the next */
    __shared__ gpu_rates rates;
    const large_input_plan &large = plan.large;
    const gpu_plan &rest = large.rest;
    place at = {large.ranks > 1 ? cluster_rank() : 0, (int)threadIdx.x / 32, (int)threadIdx.x % 32,
                shared_bytes};
    size_t network = blockIdx.x / large.ranks;
    gpu_task task = networks.tasks[network];
    float *flat = networks.flat + network * rest.n_params;
    areas a = areas_of<T1, T2, T3>(plan, shared_bytes);
    for (int i = threadIdx.x; i < large.shared_bytes / 4; i += blockDim.x)
        ((uint32_t *)at.shared)[i] = 0;
    copies_start(&arrived);
    __syncthreads();
    move_behind<T1, T2, T3, true>(rest, a, flat);
    owned<T1, NT> own;
    bool owner = at.warp < plan.owners;
    if (owner) move_owned<T1, NT, true>(large, at, flat, own);
    cluster_barrier(large.ranks); /* all ranks run, and have cleared their memory */

    size_t order = network * rest.epochs_max * (size_t)rest.n_train;
    int updates = (rest.n_train + rest.batch - 1) / rest.batch * task.epochs, update = 0;
    float sum[T1][NT][4] = {};
    piece_sums sums = {};
    walk now = {0, 0, 0};
    uint32_t next_example = 0, phase = 0;
    int32_t next_label = 0;
    int parity = 0;
    auto look_ahead = [&](const walk &w) {
        if ((int)threadIdx.x >= walk_rows(large, w)) return;
        size_t i = order + (size_t)w.epoch * rest.n_train + w.start + w.first + threadIdx.x;
        next_example = networks.order16 ? networks.order16[i] : networks.order32[i];
        next_label = rest.y_train[next_example];
    };
    auto take_next = [&](int parity_of) {
        if ((int)threadIdx.x >= large.rows) return;
        list[threadIdx.x] = next_example;
        labels[parity_of][threadIdx.x] = next_label;
    };
    look_ahead(now);
    take_next(0);
    __syncthreads();
    fetch_examples(large, at, large.x_train, list, walk_rows(large, now), &arrived);
    for (bool more = task.epochs > 0; more;) {
        int batch = min(rest.batch, rest.n_train - now.start), used = walk_rows(large, now);
        bool fresh = !CHUNKED || now.first == 0, complete = now.first + used == batch;
        walk then = now;
        more = walk_on(large, then, task.epochs);
        copies_wait(&arrived, phase);
        __syncthreads();
        if (more) look_ahead(then);
        if (owner) partial_products<T1, NT, PLANES>(large, at, own);
        if (complete && threadIdx.x == blockDim.x - 1)
            rates = rates_of(rest, task.lr, update, updates);
        __syncthreads();
        if (large.ranks > 1) {
            exchange_sums<T1>(plan, at, parity);
            cluster_barrier(large.ranks);
        }
        for (int tile = at.warp; 8 * tile < large.rows; tile += large.warps)
            through_layers<T1, T2, T3, false>(plan, at, a, tile, parity, labels[parity], NULL, used,
                                              1.0f / batch);
        parity ^= 1;
        take_next(parity);
        __syncthreads();
        const gpu_rates now_rates = rates;
        if (fresh) { /* in all warps, so that no register keeps values of the last batch */
#pragma unroll
            for (int i = 0; i < T1 * NT * 4; i++) sum[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
            sums = {};
        }
        if (owner) first_gradient<T1, NT, PLANES>(large, at, sum);
        layers_behind<T1, T2, T3, CHUNKED>(plan, at, a, sums, complete, now_rates);
        __syncthreads();
        if (more) fetch_examples(large, at, large.x_train, list, walk_rows(large, then), &arrived);
        if (owner && complete) {
            if (rest.optimizer == WF_ZOO_ADAM)
                update_owned<true, T1, NT>(large, now_rates, sum, own);
            else update_owned<false, T1, NT>(large, now_rates, sum, own);
        }
        update += complete;
        now = then;
    }
    __syncthreads();
    bool bad = false;
    for (int i = threadIdx.x; i < sizes<T1, T2, T3>::total; i += blockDim.x)
        bad |= !isfinite(a.state[i]);
    if (owner) bad |= own_is_broken<T1, NT>(own);
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(networks.broken + network, 1u);
    if (owner) move_owned<T1, NT, false>(large, at, flat, own);
    if (at.rank == 0) move_behind<T1, T2, T3, false>(rest, a, flat);

    /* The test examples: error bits and their number. The ranks divide the bytes. */
    int bytes = (rest.n_test + 7) / 8;
    for (int start = 0; start < rest.n_test; start += large.rows, parity ^= 1) {
        int used = min(large.rows, rest.n_test - start);
        for (int i = threadIdx.x; i < used; i += blockDim.x) {
            list[i] = (uint32_t)(start + i);
            labels[0][i] = rest.y_test[start + i];
        }
        __syncthreads();
        fetch_examples(large, at, large.x_test, list, used, &arrived);
        copies_wait(&arrived, phase);
        __syncthreads();
        if (owner) partial_products<T1, NT, PLANES>(large, at, own);
        __syncthreads();
        if (large.ranks > 1) {
            exchange_sums<T1>(plan, at, parity);
            cluster_barrier(large.ranks);
        }
        for (int tile = at.warp; 8 * tile < large.rows; tile += large.warps)
            through_layers<T1, T2, T3, true>(plan, at, a, tile, parity, labels[0], list, used, 0);
        __syncthreads();
        for (int byte = threadIdx.x; 8 * byte < used; byte += blockDim.x) {
            uint32_t bits = 0;
            for (int b = 0; b < 8; b++) bits |= list[8 * byte + b] << b;
            if (byte % large.ranks != at.rank || start / 8 + byte >= bytes) continue;
            networks.errors[network * bytes + start / 8 + byte] = (uint8_t)bits;
            /* integers: order does not matter */
            atomicAdd(networks.wrong + network, (uint32_t)__popc(bits));
        }
        __syncthreads();
    }
    cluster_barrier(large.ranks); /* no rank leaves while another writes to it */
}

/* --- shapes ----------------------------------------------------------------------------------- */

struct shape {
    int tiles[3]; /* T1, T2, T3; 0: two layers */
    int tiles_n, most_warps;
    bool chunked, helper;  /* helper: one warp more, which owns no columns */
    const void *kernel[2]; /* by planes */
};

const shape shapes[] = {
    {{1, 1, 1},
     2,
     10,
     true,
     false,
     {(const void *)train_small<1, 2, 1, true, 1, 1, 320, 2>,
      (const void *)train_small<1, 2, 2, true, 1, 1, 320, 2>}},
    {{1, 1, 0},
     2,
     10,
     true,
     false,
     {(const void *)train_small<1, 2, 1, true, 1, 0, 320, 2>,
      (const void *)train_small<1, 2, 2, true, 1, 0, 320, 2>}},
    {{2, 2, 1},
     7,
     8,
     false,
     true,
     {(const void *)train_small<2, 7, 1, false, 2, 1, 256, 1>,
      (const void *)train_small<2, 7, 2, false, 2, 1, 256, 1>}},
    {{2, 1, 0},
     7,
     8,
     false,
     true,
     {(const void *)train_small<2, 7, 1, false, 1, 0, 256, 1>,
      (const void *)train_small<2, 7, 2, false, 1, 0, 256, 1>}},
};

int round_up(int n, int to) { return (n + to - 1) / to * to; }

void lay_out_small(small_plan *plan, const shape &of, int ranks, int rows) {
    large_input_plan &large = plan->large;
    int t1 = of.tiles[0], t2 = of.tiles[1], t3 = of.tiles[2], columns = 8 * of.tiles_n;
    large.tiles_m = t1, large.tiles_n = of.tiles_n;
    large.ranks = ranks, large.rows = rows;
    plan->owners = (large.rest.inputs + ranks * columns - 1) / (ranks * columns);
    large.warps = plan->owners + of.helper;
    if (large.warps * 32 < rows) large.warps = rows / 32; /* each thread looks one example ahead */
    if (of.chunked && large.warps < t1 + t2 * t1 + t3 * t2) large.warps = t1 + t2 * t1 + t3 * t2;
    large.columns = plan->owners * columns;
    large.stride = large.planes * large.columns;
    large.pieces = divisor_of(large.stride / 8);
    if (large.stride / 8 % 2 == 0) large.stride += 8;
    int params = 16 * t2 * (16 * t1 + 8) + 16 * t3 * (16 * t2 + 8) + 16 * (t1 + t2 + t3);
    int operand = 2 * 2 * 16 * (rows + 8); /* bytes of 16 units, hi and lo */
    int bytes = 0;
    large.x = bytes;
    bytes += round_up(2 * rows * large.stride + 16, 128); /* an odd tile reads beyond the end */
    large.partial = bytes;
    int partial = 4 * plan->owners * rows * (16 * t1 + 4);
    int operands = operand * (2 * t1 + t2 + t3 + (t3 > 0 ? t2 : 0));
    /* With several ranks the parts are added before the later layers begin, and d and h take their
     * place. */
    large.delta = ranks > 1 ? bytes : bytes + partial;
    plan->operands = large.delta + operand * t1;
    bytes +=
        round_up(ranks > 1 ? (partial > operands ? partial : operands) : partial + operands, 128);
    large.inbox = bytes, bytes += ranks > 1 ? 2 * 4 * ranks * rows * (16 * t1 + 8) : 0;
    plan->state = bytes, bytes += round_up(12 * params, 128);
    plan->halves = bytes, bytes += round_up(4 * params, 128);
    large.shared_bytes = bytes;
}

bool fits(const shape &of, const gpu_plan &rest) {
    if (rest.n_layers != (of.tiles[2] > 0 ? 3 : 2)) return false;
    for (int l = 0; l < rest.n_layers; l++)
        if (rest.layer[l].out > 16 * of.tiles[l]) return false;
    return true;
}

} // namespace

bool small_choose(small_plan *plan, bool clusters) {
    const gpu_plan &rest = plan->large.rest;
    if (rest.activation == WF_ACT_GELU || rest.activation == WF_ACT_SILU) return false;
    for (int s = 0; s < (int)(sizeof shapes / sizeof *shapes); s++) {
        const shape &of = shapes[s];
        if (!fits(of, rest)) continue;
        for (int ranks = 1; ranks <= (clusters ? 8 : 1); ranks *= 2) {
            int rows = of.chunked ? 32 : round_up(rest.batch, 32);
            if (rows > 256) break;
            lay_out_small(plan, of, ranks, rows);
            plan->shape = s;
            if (plan->large.warps <= of.most_warps &&
                plan->large.shared_bytes + 4096 <= shared_limit)
                return true;
        }
    }
    return false;
}

cudaError_t small_launch(const small_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream) {
    const void *kernel = shapes[plan.shape].kernel[plan.large.planes - 1];
    void *arguments[] = {(void *)&plan, (void *)&networks};
    return launch_ranks(kernel, plan.large, count, arguments, stream);
}

} // namespace zoo_gpu
