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
inline void setp_ne_b32(bool &p, int x, int y) { p = x != y; }
inline void selp_u32(uint32_t &to, uint32_t yes, uint32_t no, bool p) { to = p ? yes : no; }

/* --- numbers ---------------------------------------------------------------------------------- */
inline void tanh_approx_f32(float &to, float x) { to = tanhf(x); }
inline void sqrt_approx_ftz_f32(float &to, float x) { to = sqrtf(x); }
inline void rcp_approx_ftz_f32(float &to, float x) { to = 1 / x; }
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
/* f of both halves of up to three words of bf16. */
template <class F> void bf16_halves(uint32_t &to, F f, uint32_t x, uint32_t y, uint32_t z) {
    auto value = [](uint32_t word, int k) {
        return emulated::of_bits<float>(k == 0 ? word << 16 : word & 0xffff0000u);
    };
    uint32_t out = 0;
    for (int k = 0; k < 2; k++)
        out |= (uint32_t)__float2bfloat16_rn(f(value(x, k), value(y, k), value(z, k))).bits
               << 16 * k;
    to = out;
}
inline void mul_bf16x2(uint32_t &to, uint32_t x, uint32_t y) {
    bf16_halves(
        to, [](float a, float b, float) { return a * b; }, x, y, 0);
}
inline void fma_rn_bf16x2(uint32_t &to, uint32_t x, uint32_t y, uint32_t z) {
    bf16_halves(
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
inline void ld_global_v2_f32(float &x, float &y, const void *from) {
    float2 v = *global_at<float2>(from);
    x = v.x, y = v.y;
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
inline void ld_shared_v4_b32(uint32_t &x, uint32_t &y, uint32_t &z, uint32_t &w, uint32_t from) {
    uint4 v = *(const uint4 *)shared_at(from, 16);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
inline void ld_shared_v2_f32(float &x, float &y, uint32_t from) {
    float2 v = *(const float2 *)shared_at(from, 8);
    x = v.x, y = v.y;
}
inline void ld_shared_b32(uint32_t &x, uint32_t from) { x = *(const uint32_t *)shared_at(from, 4); }
/* As shared_at, for an ordinary store: wgmma and bulk copies see it after fence.proxy.async. */
void *shared_to(uint32_t address, int bytes);
inline void st_shared_v4_f32(uint32_t to, float x, float y, float z, float w) {
    *(float4 *)shared_to(to, 16) = float4{x, y, z, w};
}
inline void st_shared_v2_f32(uint32_t to, float x, float y) {
    *(float2 *)shared_to(to, 8) = float2{x, y};
}
inline void st_shared_b32(uint32_t to, uint32_t x) { *(uint32_t *)shared_to(to, 4) = x; }
inline void st_shared_v4_b32(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    *(uint4 *)shared_to(to, 16) = uint4{x, y, z, w};
}
/* Of any block of the cluster. */
inline void ld_shared_cluster_b32(uint32_t &x, uint32_t from) { ld_shared_b32(x, from); }
inline void ld_shared_cluster_v4_f32(float &x, float &y, float &z, float &w, uint32_t from) {
    ld_shared_v4_f32(x, y, z, w, from);
}
inline void st_shared_cluster_b32(uint32_t to, uint32_t x) { st_shared_b32(to, x); }

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
inline uint64_t &sink() { /* operand _ */
    static uint64_t nobody_reads;
    return nobody_reads;
}
inline void mbarrier_init_shared_cta_b64(uint32_t barrier, int count) {
    mbarrier_init_shared_b64(barrier, count);
}
inline void mbarrier_arrive_shared_cta_b64(uint64_t &state, uint32_t barrier) {
    mbarrier_arrive_shared_b64(state, barrier);
}
void mbarrier_arrive_expect_tx_shared_cta_b64(uint64_t &state, uint32_t barrier, uint32_t bytes);
void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(uint32_t barrier, uint32_t bytes);
void mbarrier_arrive_release_cluster_shared_cluster_b64(uint64_t &state, uint32_t barrier);
/* The hardware may let the thread wait a little; here it waits as long as it takes. */
inline void mbarrier_try_wait_parity_shared_cta_b64(bool &done, uint32_t barrier, uint32_t parity) {
    mbarrier_test_wait_parity_shared_b64(done, barrier, parity);
}
inline void fence_mbarrier_init_release_cluster() {}
void fence_proxy_async_shared_cta();
/* Bulk copies: `bytes` and both addresses are multiples of 16. */
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void *from,
                                                                    uint32_t bytes,
                                                                    uint32_t barrier);
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, uint16_t ranks);
void cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(uint32_t to, uint32_t from,
                                                                        uint32_t bytes,
                                                                        uint32_t barrier);
void cp_async_bulk_global_shared_cta_bulk_group(const void *to, uint32_t from, uint32_t bytes);
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group(int left);
void cp_async_bulk_wait_group_read(int left);

/* --- clusters --------------------------------------------------------------------------------- */
int cluster_ctarank();
int cluster_nctarank();
void barrier_cluster_arrive_release_aligned();
void barrier_cluster_wait_acquire_aligned();
void mapa_shared_cluster_u32(uint32_t &to, uint32_t address, uint32_t rank);
void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(uint32_t to, uint32_t x, uint32_t y,
                                                               uint32_t z, uint32_t w,
                                                               uint32_t barrier);
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}

/* --- named barriers --------------------------------------------------------------------------- */
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

/* The other way: lane l names row l % 8 of matrix l / 8, brings elements (l / 4, l % 4 * 2 ..). */
void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d);
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t address, uint32_t a, uint32_t b,
                                                    uint32_t c, uint32_t d);

/* wgmma.mma_async of 64 x n x 16 (hopper.cpp). Operands behind the n / 2 accumulators: a in four
 * registers or its descriptor, the descriptor of b, whether to add, two signs, transpositions. */
void issue_product(const emulated::product_form &form, const emulated::product_part &part);
struct operand_of_wgmma {
    float *place;
    uint64_t value;
    operand_of_wgmma(float &accumulator) : place(&accumulator), value(0) {}
    template <class T> operand_of_wgmma(T word) : place(NULL), value((uint64_t)word) {}
};
template <int N, bool Half, class... A> void wgmma(A &...operands) {
    const operand_of_wgmma list[] = {operand_of_wgmma(operands)...}, *rest = list + N / 2;
    constexpr bool in_registers = sizeof...(A) == N / 2 + 9;
    static_assert(in_registers || sizeof...(A) == N / 2 + 7, "a in registers, or its descriptor");
    emulated::product_part part = {};
    for (int k = 0; k < N / 2; k++) part.acc[k] = list[k].place;
    for (int k = 0; k < 4 && in_registers; k++) part.a[k] = (uint32_t)rest[k].value;
    const operand_of_wgmma *b = rest + (in_registers ? 4 : 1);
    issue_product({N, Half, in_registers, !in_registers && b[4].value,
                   b[in_registers ? 4 : 5].value != 0, b[1].value != 0,
                   in_registers ? 0 : rest[0].value, b[0].value},
                  part);
}
#define EMULATED_WGMMA(n, type, half)                                                              \
    template <class... A>                                                                          \
    void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_##type##_##type(A &&...operands) {          \
        wgmma<n, half>(operands...);                                                               \
    }
#define EMULATED_WGMMAS(n) EMULATED_WGMMA(n, bf16, false) EMULATED_WGMMA(n, f16, true)
EMULATED_WGMMAS(8)
EMULATED_WGMMAS(16)
EMULATED_WGMMAS(32)
EMULATED_WGMMAS(64)
EMULATED_WGMMAS(128)
EMULATED_WGMMAS(256)
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int left);

} // namespace ptx
#endif
