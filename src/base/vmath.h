/* vmath: exp, log, tanh, sin and cos as branch-free polynomials, for C and for CUDA.
 *
 * Straight-line code that compilers turn into vector instructions, and the same operations on the
 * CPU and the GPU. Largest errors against libm are pinned by tests/unit/test_vmath.c:
 *     wf_expf 2 ulp on [-87, 88]   wf_logf 2 ulp   wf_sincos_turnf 1e-7 absolute
 *     wf_tanhf 4 ulp               wf_sinf 2e-7 absolute for |x| <= 1e4
 *     wf_normal_cdff 2.5e-7 absolute */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef WF_HD
#ifdef __CUDACC__
#define WF_HD __host__ __device__
#else
#define WF_HD
#endif
#endif

static inline WF_HD float wf_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline WF_HD uint32_t wf_bits_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^x = 2^k e^r, |r| <= ln2/2; clamped so that k stays in range (0x1p-126 .. 0x1p127). */
static inline WF_HD float wf_expf(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + magic;
    float k = shifted - magic;
    float r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = p * (r * r) + r + 1.0f;
    uint32_t scale = (wf_bits_from_float(shifted) + 127u) << 23;
    return y * wf_float_from_bits(scale);
}

/* ln x for normal positive x: x = 2^k m, m in [sqrt(1/2), sqrt 2). */
static inline WF_HD float wf_logf(float x) {
    uint32_t bits = wf_bits_from_float(x);
    uint32_t shifted = bits - 0x3f3504f3u; /* sqrt(1/2) */
    float k = (float)((int32_t)shifted >> 23);
    float m = wf_float_from_bits((shifted & 0x007fffffu) + 0x3f3504f3u);
    float f = m - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float y = f * z * p;
    y = y + k * -2.12194440e-4f;
    y = y - 0.5f * z;
    return f + y + k * 0.693359375f;
}

/* tanh x = 1 - 2/(e^2x + 1) away from zero, an odd polynomial near it. */
static inline WF_HD float wf_tanhf(float x) {
    float clamped = x > 9.0f ? 9.0f : x;
    clamped = clamped < -9.0f ? -9.0f : clamped;
    float far = 1.0f - 2.0f / (wf_expf(2.0f * clamped) + 1.0f);
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near = p * z * x + x;
    return z < 0.390625f ? near : far;
}

/* sin and cos of 2*pi*turn, turn in [0, 1). */
static inline WF_HD void wf_sincos_turnf(float turn, float *sine, float *cosine) {
    float quarter = 4.0f * turn;
    float nearest = floorf(quarter + 0.5f);
    float r = (quarter - nearest) * 1.57079632679f; /* |r| <= pi/4 */
    float z = r * r;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
    float c =
        ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        0.5f * z + 1.0f;
    int q = (int)nearest & 3;
    float sq = (q & 1) ? c : s;
    float cq = (q & 1) ? s : c;
    *sine = (q & 2) ? -sq : sq;
    *cosine = (q == 1 || q == 2) ? -cq : cq;
}

/* sin x: x is brought to [-pi/4, pi/4] with pi/2 in three parts. */
static inline WF_HD float wf_sincosf_(float x, int shift) {
    const float magic = 12582912.0f;
    float shifted = x * 0.636619772f + magic;
    float k = shifted - magic;
    uint32_t q = wf_bits_from_float(shifted) + (uint32_t)shift;
    float r = x - k * 1.5703125f;
    r = r - k * 4.837512969970703e-4f;
    r = r - k * 7.549789948768648e-8f;
    float z = r * r;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
    float c =
        ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        0.5f * z + 1.0f;
    float y = (q & 1) ? c : s;
    return (q & 2) ? -y : y;
}
static inline WF_HD float wf_sinf(float x) { return wf_sincosf_(x, 0); }
static inline WF_HD float wf_cosf(float x) { return wf_sincosf_(x, 1); }

/* Phi(x), the probability that a standard normal deviate is below x, and *bell = e^(-x^2/2). For z
 * = |x|, Phi(-z) is the bell times a polynomial of 1 / (1 + 0.24 z), fitted by least squares to
 * 4e-10. */
static inline WF_HD float wf_normal_cdff(float x, float *bell) {
    float z = x < 0 ? -x : x;
    float t = 1.0f / (1.0f + 0.24f * z);
    float e = wf_expf(-0.5f * x * x);
    float p = -0.12512424f;
    p = p * t + 0.55476957f;
    p = p * t - 0.64648313f;
    p = p * t + 0.62605223f;
    p = p * t - 0.15433868f;
    p = p * t + 0.15561017f;
    p = p * t + 0.08951408f;
    float tail = p * t * e;
    *bell = e;
    return x < 0 ? tail : 1.0f - tail;
}
