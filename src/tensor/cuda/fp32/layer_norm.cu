/* layer_norm: layer norm of rows, forward and backward. Bound by bandwidth: a warp reads a row,
 * neighbouring lanes neighbouring columns. */
#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {
namespace {

/* Rows of up to 128 columns stay in registers, 4 columns a lane; longer rows are read again. */
enum { held_columns = 4 };

struct norm_row {
    norm_args s;
    __device__ void write(int row, int c, float hat, const float *shift) const {
        float y = shift == NULL ? hat : hat * (1 + shift[s.cols + c]) + shift[c];
        if (s.hat != NULL) s.hat[(size_t)row * s.ld + c] = hat;
        if (s.y != NULL) s.y[(size_t)row * s.ld + c] = y;
    }
    template <bool held> __device__ void run(int row, int lane) const {
        const float *x = s.x + (size_t)row * s.ld;
        float v[held_columns], sum = 0, square = 0;
        if (held) {
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                v[i] = lane + 32 * i < s.cols ? x[lane + 32 * i] : 0;
                sum += v[i];
            }
        } else {
            for (int c = lane; c < s.cols; c += 32) sum += x[c];
        }
        float mean = warp_sum(sum) / (float)s.cols;
        if (held) {
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                v[i] = lane + 32 * i < s.cols ? v[i] - mean : 0;
                square += v[i] * v[i];
            }
        } else {
            for (int c = lane; c < s.cols; c += 32) square += (x[c] - mean) * (x[c] - mean);
        }
        float rho = 1 / sqrtf(warp_sum(square) / (float)s.cols + 1e-6f);
        if (s.rho != NULL && lane == 0) s.rho[row] = rho;
        const float *shift =
            s.modulation == NULL ? NULL : s.modulation + (size_t)s.map[row] * s.ld_modulation;
        if (held) {
#pragma unroll
            for (int i = 0; i < held_columns; i++)
                if (lane + 32 * i < s.cols) write(row, lane + 32 * i, v[i] * rho, shift);
        } else {
            for (int c = lane; c < s.cols; c += 32) write(row, c, (x[c] - mean) * rho, shift);
        }
        for (int c = s.cols + lane; c < s.ld; c += 32) {
            if (s.hat != NULL) s.hat[(size_t)row * s.ld + c] = 0;
            if (s.y != NULL) s.y[(size_t)row * s.ld + c] = 0;
        }
    }
    __device__ void operator()(int row, int lane) const {
        if (s.cols <= 32 * held_columns) run<true>(row, lane);
        else run<false>(row, lane);
    }
};

struct norm_back_row {
    norm_back_args s;
    /* The gradient by hat of one element; *dy includes its part of the gradient of the mean. */
    __device__ float gradient(int row, int c, const float *share, float part, const float *scale,
                              float *dy) const {
        *dy = s.dy[(size_t)row * s.ld + c];
        if (share != NULL) *dy += part * share[c];
        return scale == NULL ? *dy : *dy * (1 + scale[c]);
    }
    __device__ void write(int row, int c, float dx, float dy, bool shared) const {
        if (s.dx != NULL) s.dx[(size_t)row * s.ld_dx + c] += dx;
        if (shared) s.dy[(size_t)row * s.ld + c] = dy;
    }
    template <bool held> __device__ void run(int row, int lane) const {
        const float *hat = s.hat + (size_t)row * s.ld, *share = NULL, *scale = NULL;
        float part = 0, sum = 0, dot = 0, rho = s.rho[row];
        float g[held_columns], h[held_columns], dy[held_columns];
        if (s.modulation != NULL)
            scale = s.modulation + (size_t)s.map[row] * s.ld_modulation + s.cols;
        if (s.mean_grad != NULL) {
            uint32_t graph = s.map[row];
            share = s.mean_grad + (size_t)graph * s.ld_mean;
            part = 1 / (float)(s.start[graph + 1] - s.start[graph]);
        }
        if (held) {
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                int c = lane + 32 * i;
                bool there = c < s.cols;
                g[i] = there ? gradient(row, c, share, part, scale, &dy[i]) : 0;
                h[i] = there ? hat[c] : 0;
                sum += g[i];
                dot += g[i] * h[i];
            }
        } else {
            for (int c = lane; c < s.cols; c += 32) {
                float value = gradient(row, c, share, part, scale, &dy[0]);
                sum += value;
                dot += value * hat[c];
            }
        }
        float mean = warp_sum(sum) / (float)s.cols, along = warp_sum(dot) / (float)s.cols;
        if (held) {
#pragma unroll
            for (int i = 0; i < held_columns; i++)
                if (lane + 32 * i < s.cols)
                    write(row, lane + 32 * i, rho * (g[i] - mean - h[i] * along), dy[i],
                          share != NULL);
        } else {
            for (int c = lane; c < s.cols; c += 32) {
                float value = gradient(row, c, share, part, scale, &dy[0]);
                write(row, c, rho * (value - mean - hat[c] * along), dy[0], share != NULL);
            }
        }
    }
    __device__ void operator()(int row, int lane) const {
        if (s.cols <= 32 * held_columns) run<true>(row, lane);
        else run<false>(row, lane);
    }
};

} // namespace

void norm_rows(const norm_args &step) { each_warp(norm_row{step}, step.rows); }

void norm_rows_backward(const norm_back_args &step) { each_warp(norm_back_row{step}, step.rows); }

} // namespace wf_gpu
