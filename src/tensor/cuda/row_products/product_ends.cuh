/* product_ends: what happens to the sums of a product (row_sequence.cuh). A warp has 16 rows of
 * them, 8 columns in each four registers, as mma.sync and wgmma leave them. The sums pass through
 * 16 x 32 floats of shared memory of the warp, so that memory is read and written in whole lines of
 * 128 bytes. */
#pragma once

#include "tensor/cuda/row_products/sequence_ops.cuh"

namespace wf_gpu {

enum {
    staged_pitch = 40,
    staged_columns = 32,
    staged_bytes = sequence_rows * staged_pitch * (int)sizeof(float)
};

/* What a lane knows of its rows, lane / 8 and every fourth after it, and of four columns of the
 * bias. */
enum { lane_rows = sequence_rows / 4 };
struct product_rows {
    int table[lane_rows], gate[lane_rows];
    float scale[lane_rows];
    float4 bias;
    template <bool aligned> __device__ void look(const row_op &s, const warp_rows &v, int n) {
        int lane = lane_here(), col = n + 4 * lane;
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            int row = v.row(4 * i + lane / 8);
            table[i] = s.table == NULL ? 0 : (int)s.map[row];
            gate[i] = s.gate == NULL ? 0 : (int)s.gate_map[row];
            scale[i] = s.bias == NULL || s.scale == NULL ? 1 : s.scale[row];
        }
        bias = make_float4(0, 0, 0, 0);
        if (s.bias != NULL && col < s.cols) bias = table4<aligned>(s.bias + col, s.cols - col);
    }
};

__device__ inline float4 shuffled(const float4 &x, int from) {
    const unsigned all = 0xffffffffu;
    return make_float4(__shfl_sync(all, x.x, from), __shfl_sync(all, x.y, from),
                       __shfl_sync(all, x.z, from), __shfl_sync(all, x.w, from));
}
/* x + a * y */
__device__ inline void add_scaled(float4 &x, float a, const float4 &y) {
    x.x += a * y.x, x.y += a * y.y, x.z += a * y.z, x.w += a * y.w;
}
__device__ inline float4 staged_row(const warp_rows &v, int lane, int i) {
    return *shared_at<float4>(v.staged +
                              4 * (uint32_t)((4 * i + lane / 8) * staged_pitch + lane % 8 * 4));
}
/* Writes a lane's i-th row at its columns, to `out` and to the kept copy. */
__device__ inline void finish_row(const row_op &s, const warp_rows &v, int lane, int i, int col,
                                  const float4 &x) {
    int local = 4 * i + lane / 8;
    if (v.there(local)) write4(s.out + place_of(v.first + local, s.ld_out) + col, x);
    if (s.kept >= 0) v.keep(s.kept, s.cols, local, col, x);
}

/* Finishes 32 staged columns from n + 32 * strip on; a lane takes four columns of its four rows.
 * Sums after the last column are zero. A forward product may have a bias, a table and a gate, and
 * sets `out`. A backward product has none of these and may add to `out`. */
template <bool aligned>
__device__ inline void finish_forward(const row_op &s, const warp_rows &v,
                                      const product_rows &known, int n, int strip, int end) {
    int lane = lane_here(), col = n + staged_columns * strip + 4 * (lane % 8);
    int left = s.cols - col;
    float4 bias = shuffled(known.bias, 8 * strip + lane % 8), x[lane_rows];
    if (col >= whole16(end)) return;
    if (s.table != NULL) {
        const float *table = s.table + col;
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = table4<aligned>(table + place_of(known.table[i], s.ld_table), left);
    } else {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) x[i] = make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        add_scaled(x[i], 1, staged_row(v, lane, i));
        add_scaled(x[i], known.scale[i], bias);
    }
    if (s.after != row_load && s.raw != NULL) {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            int local = 4 * i + lane / 8;
            if (v.there(local)) write4(s.raw + place_of(v.first + local, s.ld_raw) + col, x[i]);
        }
    }
    if (s.after == row_activation) {
        float slope;
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = make_float4(
                quick_activation(s.act, x[i].x, &slope), quick_activation(s.act, x[i].y, &slope),
                quick_activation(s.act, x[i].z, &slope), quick_activation(s.act, x[i].w, &slope));
    } else if (s.after == row_residual) {
        float4 beside[lane_rows], gate[lane_rows];
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            beside[i] = read4(s.x + place_of(v.row(4 * i + lane / 8), s.ldx) + col);
            gate[i] = make_float4(0, 0, 0, 0);
            if (s.gate != NULL)
                gate[i] = table4<aligned>(s.gate + place_of(known.gate[i], s.ld_gate) + col, left);
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = make_float4(
                beside[i].x + (1 + gate[i].x) * x[i].x, beside[i].y + (1 + gate[i].y) * x[i].y,
                beside[i].z + (1 + gate[i].z) * x[i].z, beside[i].w + (1 + gate[i].w) * x[i].w);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) finish_row(s, v, lane, i, col, x[i]);
}

__device__ inline float slope_of(int act, float x) {
    float slope;
    quick_activation(act, x, &slope);
    return slope;
}

__device__ inline void finish_backward(const row_op &s, const warp_rows &v, int n, int strip,
                                       int end) {
    int lane = lane_here(), col = n + staged_columns * strip + 4 * (lane % 8);
    if (col >= whole16(end)) return;
    float4 before[lane_rows], x[lane_rows];
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        before[i] = make_float4(0, 0, 0, 0);
        if (s.add) before[i] = read4(s.out + place_of(v.row(4 * i + lane / 8), s.ld_out) + col);
    }
    if (s.after == row_activation_back) {
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = read4(s.other + place_of(v.row(4 * i + lane / 8), s.ld_other) + col);
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = make_float4(slope_of(s.act, x[i].x), slope_of(s.act, x[i].y),
                               slope_of(s.act, x[i].z), slope_of(s.act, x[i].w));
    } else {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) x[i] = make_float4(1, 1, 1, 1);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        float4 sum = staged_row(v, lane, i);
        finish_row(s, v, lane, i, col,
                   make_float4(before[i].x + x[i].x * sum.x, before[i].y + x[i].y * sum.y,
                               before[i].z + x[i].z * sum.z, before[i].w + x[i].w * sum.w));
    }
}

/* Stages 32 columns of the sums where finish_forward and finish_backward read them. */
template <int Sums>
__device__ inline void stage_columns(const float (&sum)[Sums][4], uint32_t staged, int strip) {
    int lane = lane_here();
    float *to = shared_at<float>(staged) + lane / 4 * staged_pitch + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < Sums; k++)
        if (k / 4 == strip) {
            float *at = to + k % 4 * 8;
            *(float2 *)at = make_float2(sum[k][0], sum[k][1]);
            *(float2 *)(at + 8 * staged_pitch) = make_float2(sum[k][2], sum[k][3]);
        }
}

} // namespace wf_gpu
