/* ptx: the instructions that weft's kernels write down, as functions. translate.py calls them by
 * the instruction's name, dots made underscores; operands stand in its order, vectors word by
 * word. */
#ifndef WF_EMULATOR_PTX_H
#define WF_EMULATOR_PTX_H

#include "cuda_bf16.h"

namespace ptx {

using emulated::shared_at;

/* [operand + offset] */
inline uint32_t at(uint32_t address, int offset) { return address + (uint32_t)offset; }
inline const void *at(const void *p, int offset) { return (const char *)p + offset; }

inline int laneid() { return emulated::self->lane; }
inline int tid_x() { return (int)emulated::self->index.x; }
template <class T, class U> void mov_u32(T &to, U from) { to = (T)from; }
inline void mov_b32(uint16_t &low, uint16_t &high, uint32_t from) {
    low = (uint16_t)from, high = (uint16_t)(from >> 16);
}
inline void selp_u32(uint32_t &to, uint32_t yes, uint32_t no, bool p) { to = p ? yes : no; }

/* --- numbers ---------------------------------------------------------------------------------- */
inline void tanh_approx_f32(float &to, float x) { to = tanhf(x); }
inline void rsqrt_approx_ftz_f32(float &to, float x) { to = 1 / sqrtf(x); }
inline void cvt_rn_bf16x2_f32(uint32_t &to, float high, float low) {
    to = (uint32_t)__float2bfloat16_rn(high).bits << 16 | __float2bfloat16_rn(low).bits;
}

inline float of_half(uint16_t bits) {
    _Float16 x;
    memcpy(&x, &bits, 2);
    return (float)x;
}
inline uint16_t half_of(float value) {
    _Float16 x = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &x, 2);
    return bits;
}
inline void cvt_f32_f16(float &to, uint16_t x) { to = of_half(x); }
inline void cvt_rn_f16x2_f32(uint32_t &to, float high, float low) {
    to = (uint32_t)half_of(high) << 16 | half_of(low);
}
/* f of both halves of up to three words. */
template <class F> void halves(uint32_t &to, F f, uint32_t x, uint32_t y = 0, uint32_t z = 0) {
    uint32_t out = 0;
    for (int k = 0; k < 32; k += 16)
        out |= (uint32_t)half_of(f(of_half((uint16_t)(x >> k)), of_half((uint16_t)(y >> k)),
                                   of_half((uint16_t)(z >> k))))
               << k;
    to = out;
}
inline void mul_f16x2(uint32_t &to, uint32_t x, uint32_t y) {
    halves(
        to, [](float a, float b, float) { return a * b; }, x, y);
}
inline void add_f16x2(uint32_t &to, uint32_t x, uint32_t y) {
    halves(
        to, [](float a, float b, float) { return a + b; }, x, y);
}
inline void min_f16x2(uint32_t &to, uint32_t x, uint32_t y) {
    halves(
        to, [](float a, float b, float) { return fminf(a, b); }, x, y);
}
inline void fma_rn_f16x2(uint32_t &to, uint32_t x, uint32_t y, uint32_t z) {
    halves(
        to, [](float a, float b, float c) { return a * b + c; }, x, y, z);
}
inline void neg_f16x2(uint32_t &to, uint32_t x) { to = x ^ 0x80008000u; }
inline void tanh_approx_f16x2(uint32_t &to, uint32_t x) {
    halves(
        to, [](float a, float, float) { return tanhf(a); }, x);
}

/* --- memory ----------------------------------------------------------------------------------- */
template <class T> const T *global_at(const void *p) {
    if ((uintptr_t)p % sizeof(T) != 0) emulated::fail("%zu bytes at %p in memory", sizeof(T), p);
    return (const T *)p;
}
inline void prefetch_global_L2(const void *) {}
inline void ld_global_v4_f32(float &x, float &y, float &z, float &w, const void *from) {
    float4 v = *global_at<float4>(from);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
inline void ld_global_nc_v4_f32(float &x, float &y, float &z, float &w, const void *from) {
    ld_global_v4_f32(x, y, z, w, from);
}
inline void ld_global_L1_no_allocate_v4_f32(float &x, float &y, float &z, float &w,
                                            const void *from) {
    ld_global_v4_f32(x, y, z, w, from);
}
inline void ld_global_v2_b32(uint32_t &x, uint32_t &y, const void *from) {
    uint2 v = *global_at<uint2>(from);
    x = v.x, y = v.y;
}
inline void st_global_v4_f32(const void *to, float x, float y, float z, float w) {
    *(float4 *)global_at<float4>(to) = float4{x, y, z, w};
}
inline void ld_shared_v4_f32(float &x, float &y, float &z, float &w, uint32_t from) {
    float4 v = *(const float4 *)shared_at(from, 16);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
inline void st_shared_v4_f32(uint32_t to, float x, float y, float z, float w) {
    *(float4 *)shared_at(to, 16) = float4{x, y, z, w};
}
inline void st_shared_b32(uint32_t to, uint32_t x) { *(uint32_t *)shared_at(to, 4) = x; }
inline void st_shared_v4_b32(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    *(uint4 *)shared_at(to, 16) = uint4{x, y, z, w};
}

/* --- copies and barriers ---------------------------------------------------------------------- */
/* 16 bytes, of which `there` are read; the rest become zero. */
void cp_async_cg_shared_global(uint32_t to, const void *from, int size, int there = 16);
inline void cp_async_ca_shared_global(uint32_t to, const void *from, int size) {
    cp_async_cg_shared_global(to, from, size);
}
void cp_async_commit_group();
void cp_async_wait_group(int left);
void cp_async_wait_all();
void mbarrier_init_shared_b64(uint32_t barrier, int count);
void mbarrier_arrive_shared_b64(uint64_t &state, uint32_t barrier);
void mbarrier_test_wait_parity_shared_b64(bool &done, uint32_t barrier, uint32_t parity);
void cp_async_mbarrier_arrive_noinc_shared_b64(uint32_t barrier);
inline void bar_sync(int id, int count) { emulated::arrive_at(id, count, true); }
inline void bar_arrive(int id, int count) { emulated::arrive_at(id, count, false); }

/* --- matrices --------------------------------------------------------------------------------- */
/* Four matrices of 8 x 8 elements of 16 bits: lane l names row l % 8 of matrix l / 8 and gets
 * elements (l / 4, l % 4 * 2 ..) of each, or those of its transpose. */
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,
                                              uint32_t address);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                    uint32_t &d, uint32_t address);
void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t &to, uint32_t x);
/* d (16, 8) = a (16, 16) b (16, 8) + c */
#define EMULATED_MMA(type)                                                                         \
    void mma_sync_aligned_m16n8k16_row_col_f32_##type##_##type##_f32(                              \
        float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,         \
        uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3)
EMULATED_MMA(bf16);
EMULATED_MMA(f16);

} // namespace ptx
#endif
