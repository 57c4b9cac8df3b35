/* execute_kernel: products and activations of graph/execute.h.
 *
 * affine: y (n_dst, tile) += w (n_dst, n_src) x (n_src, tile). Lanes are examples, so a weight is a
 * broadcast; a step holds row_step x column_step vectors of y in registers and runs over all
 * sources. */
#include "graph/execute.h"

#include "base/variant.h"

#ifndef WF_REAL_IS_DOUBLE

enum {
    row_step = WF_LANES == 16 ? 6 : 4,
    column_step = WF_LANES == 16 ? 4 : 2, /* vectors */
    tile_vectors = WF_TILE / WF_LANES
};

static inline void affine_step(const float *w, int rows, size_t n_src, const float *x, float *y) {
    vreal sum[row_step][column_step];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < column_step; v++)
            sum[r][v] = *(const vreal_u *)(y + r * WF_TILE + v * WF_LANES);
    for (size_t j = 0; j < n_src; j++)
        for (int v = 0; v < column_step; v++) {
            vreal value = *(const vreal_u *)(x + j * WF_TILE + v * WF_LANES);
            for (int r = 0; r < rows; r++) sum[r][v] += w[(size_t)r * n_src + j] * value;
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < column_step; v++)
            *(vreal_u *)(y + r * WF_TILE + v * WF_LANES) = sum[r][v];
}

static void affine(const float *w, size_t n_dst, size_t n_src, const float *x, float *y) {
    for (int column = 0; column < tile_vectors; column += column_step) {
        size_t i = 0, shift = (size_t)column * WF_LANES;
        for (; i + row_step <= n_dst; i += row_step)
            affine_step(w + i * n_src, row_step, n_src, x + shift, y + i * WF_TILE + shift);
        for (; i < n_dst; i++)
            affine_step(w + i * n_src, 1, n_src, x + shift, y + i * WF_TILE + shift);
    }
}

static void activate(wf_activation activation, float *x, size_t count) {
    switch (activation) {
    case WF_ACT_RELU:
        for (size_t i = 0; i < count; i++) x[i] = x[i] > 0 ? x[i] : 0;
        break;
    case WF_ACT_TANH:
        for (size_t i = 0; i < count; i++) x[i] = wf_tanhf(x[i]);
        break;
    case WF_ACT_GELU:
        for (size_t i = 0; i < count; i++) x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
        break;
    case WF_ACT_SILU:
        for (size_t i = 0; i < count; i++) x[i] = x[i] / (1 + wf_expf(-x[i]));
        break;
    case WF_ACT_SIGMOID:
        for (size_t i = 0; i < count; i++) x[i] = 1 / (1 + wf_expf(-x[i]));
        break;
    default: break; /* identity */
    }
}

const wf_execute_kernel WF_FN(wf__execute_kernel) = {affine, activate};

#endif
