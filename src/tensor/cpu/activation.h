/* activation: SiLU and tanh-GELU of whole vectors, with their slopes.
 *
 * tanh-GELU is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), SiLU is x * sigmoid(x). Both need one
 * exponential, and for f = x s, s = sigmoid(u(x))
 *   f' = s + x s (1 - s) du/dx
 * The exponential is wf_expf of base/vmath.h for vectors. If the machine has an estimate of 1/x,
 * one Newton step (two units in the last place) replaces the division. The double build calls
 * libm. */
#pragma once

#include "base/variant.h"
#include "tensor/tensor.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define gelu_slope ((real)1.5957691216057308)
#define gelu_cubic ((real)0.07135481627260025)

#ifdef WF_REAL_IS_DOUBLE
static inline vreal act_sigmoid(vreal u) {
    vreal s;
    for (int lane = 0; lane < WF_LANES; lane++) s[lane] = 1 / (1 + r_exp(-u[lane]));
    return s;
}
static inline vreal act_exp(vreal x) {
    for (int lane = 0; lane < WF_LANES; lane++) x[lane] = r_exp(x[lane]);
    return x;
}
#else
typedef int32_t vint __attribute__((vector_size(WF_LANES * sizeof(int32_t))));

#if WF_LANES == 16 && defined(__AVX512F__)
static inline vreal act_clamp(vreal x, real low, real high) {
    return (vreal)_mm512_max_ps(_mm512_min_ps((__m512)x, _mm512_set1_ps(high)),
                                _mm512_set1_ps(low));
}
static inline vreal act_reciprocal(vreal x) {
    vreal estimate = (vreal)_mm512_rcp14_ps((__m512)x);
    return estimate + estimate * (1 - x * estimate);
}
#elif WF_LANES == 8 && defined(__AVX2__)
static inline vreal act_clamp(vreal x, real low, real high) {
    return (vreal)_mm256_max_ps(_mm256_min_ps((__m256)x, _mm256_set1_ps(high)),
                                _mm256_set1_ps(low));
}
static inline vreal act_reciprocal(vreal x) { return 1 / x; }
#else
static inline vreal act_clamp(vreal x, real low, real high) {
    for (int lane = 0; lane < WF_LANES; lane++) {
        x[lane] = x[lane] > high ? high : x[lane];
        x[lane] = x[lane] < low ? low : x[lane];
    }
    return x;
}
static inline vreal act_reciprocal(vreal x) { return 1 / x; }
#endif

static inline __attribute__((always_inline)) vreal act_exp(vreal x) {
    const real magic = 12582912.0f;
    x = act_clamp(x, -87.0f, 88.0f);
    vreal shifted = x * 1.44269504f + magic;
    vreal k = shifted - magic;
    vreal r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    vreal p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vreal y = p * (r * r) + r + 1.0f;
    return y * (vreal)(((vint)shifted + 127) << 23);
}

/* 1 / (1 + e^-u); the exponential is at most 2e38, whose reciprocal may be taken as zero. */
static inline __attribute__((always_inline)) vreal act_sigmoid(vreal u) {
    return act_reciprocal(1 + act_exp(-u));
}
#endif

/* f(x); *slope = f'(x) if `sloped` (a constant). */
static inline __attribute__((always_inline)) vreal act_vector(const int act, const bool sloped,
                                                              vreal x, vreal *slope) {
    vreal square = x * x;
    vreal inner = act == WF_TAPE_ACT_SILU ? x : x * (gelu_slope + gelu_cubic * square);
    vreal s = act_sigmoid(inner);
    vreal y = x * s;
    if (sloped) {
        vreal change = y * (1 - s);
        if (act != WF_TAPE_ACT_SILU) change *= gelu_slope + 3 * gelu_cubic * square;
        *slope = s + change;
    }
    return y;
}
