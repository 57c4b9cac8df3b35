/* cuda_bf16: the upper half of a float, rounded to nearest even. */
#ifndef WF_EMULATOR_CUDA_BF16_H
#define WF_EMULATOR_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits = emulated::bits_of(x);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline float __bfloat162float(__nv_bfloat16 x) {
    return emulated::of_bits<float>((uint32_t)x.bits << 16);
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
