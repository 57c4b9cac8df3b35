/* hopper: the instructions of sm_90a that the second design of the edge kernels uses, as functions.
 *
 * Shared memory is named by 32-bit addresses. A tile holds rows of 64 elements of 16 bits; its
 * 16-byte word w of row r is at word w ^ (r % 8) of 128 bytes (the 128-byte swizzle of wgmma).
 * Tiles begin at multiples of 1,024 bytes. A wider matrix is several tiles ("strips") side by side.
 *
 *     product<N>(acc, a, b, added)   acc (64, N) += a b; N 16, 64 or 128; a 64 x 16, b 16 x N
 *     a   in registers (fragment), or a descriptor
 *     b   a descriptor: rows(...) where k runs along the rows of the tile, columns(...) where k
 *         runs down its rows, 16 at a time
 * Type: fp16 or bf16, template argument. Lane 4g + c of warp w of the group holds rows 16w + g and
 * + 8 of acc, columns 8t + 2c and the next: acc[t][0..1] and acc[t][2..3]. A fragment has the same
 * places: r[0], r[1] for t = 0, r[2], r[3] for t = 1. */
#ifndef WF_BENCH_HOPPER_CUH
#define WF_BENCH_HOPPER_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace hopper {

/* --- mbarriers -------------------------------------------------------------------------------- */
__device__ inline uint32_t address_of(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ inline void barrier_create(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
/* After barrier_create, before other blocks or the copy engine use them. */
__device__ inline void barriers_created() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_expecting(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of this parity is complete: 0 for the first. */
__device__ inline void wait_for(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
/* Ordinary stores before it are seen by wgmma and bulk copies behind the next barrier. */
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Threads of a named barrier, 1 .. 15. */
__device__ inline void meet(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* --- bulk copies ------------------------------------------------------------------------------ */
__device__ inline void fetch(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* To the same place in each block of the mask, whose barriers are told. */
__device__ inline void fetch_for_all(uint32_t to, const void *from, int bytes, uint32_t barrier,
                                     uint16_t ranks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"(ranks)
                 : "memory");
}
/* Into another block of the cluster; `to` and `barrier` by address_in. */
__device__ inline void send(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                 "[%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ inline void store(void *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until the sources of all but the last Left groups of this thread may be overwritten. */
template <int Left> __device__ inline void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}
template <int Left> __device__ inline void wait_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory");
}

/* Calls 128 bytes into L2. */
__device__ inline void prefetch(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* --- clusters --------------------------------------------------------------------------------- */
__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* The same place in another block's shared memory. */
__device__ inline uint32_t address_in(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ inline uint32_t load_from(uint32_t there) {
    uint32_t word;
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(word) : "r"(there) : "memory");
    return word;
}
/* 16 bytes that tell the other block's barrier. */
__device__ inline void send_word(uint32_t there, uint4 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(there),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
                 : "memory");
}
__device__ inline void arrive_in(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}
__device__ inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Of 128 threads. Taken from a lane, so that the compiler knows that a warp has one value. */
__device__ inline int group_index() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); }

/* --- registers -------------------------------------------------------------------------------- */
template <int Registers> __device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> __device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/* --- fragments -------------------------------------------------------------------------------- */
struct fragment {
    uint32_t r[4];
};
/* Address of the 16-byte word of a row of a tile. */
__device__ inline uint32_t word_at(uint32_t tile, int row, int word) {
    return tile + (uint32_t)(row * 128 + ((word ^ row) & 7) * 16);
}
/* Columns 16 step .. of the 16 rows of this warp. */
__device__ inline uint32_t fragment_at(uint32_t tile, int step) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    return word_at(tile, 16 * warp + lane % 16, 2 * step + lane / 16);
}
__device__ inline fragment load_fragment(uint32_t at) {
    fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(at)
                 : "memory");
    return f;
}
/* The same of matrices of which a row in memory is a column here. */
__device__ inline fragment load_turned(uint32_t at) {
    fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(at)
                 : "memory");
    return f;
}
__device__ inline void store_fragment(uint32_t at, const fragment &f) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
                 : "memory");
}

/* --- wgmma ------------------------------------------------------------------------------------ */
/* The lower word of a descriptor: start, and the distance of strips (where n runs along them). Its
 * unit is 16 bytes, so that places in one region differ by a constant in this word alone. */
__device__ inline uint32_t region(uint32_t address, int strip = 8192) {
    return (address & 0x3ffff) >> 4 | (uint32_t)((strip & 0x3ffff) >> 4) << 16;
}
/* `offset` bytes into a region; distance of groups of 8 rows; 128-byte swizzle. */
__device__ inline uint64_t descriptor(uint32_t region, int offset, int stride = 1024) {
    uint32_t upper = (uint32_t)((stride & 0x3ffff) >> 4) | 1u << 30;
    return (uint64_t)upper << 32 | (region + (uint32_t)(offset >> 4));
}
/* k runs along rows: columns 16 step .. of the tile at `offset`, whose rows are n (or m). */
__device__ inline uint64_t rows(uint32_t region, int offset, int step) {
    return descriptor(region, offset + 32 * step);
}
/* k runs down: rows 16 step .. of the tile at `offset`, whose columns are n (or m); further columns
 * are in the next strip. */
__device__ inline uint64_t columns(uint32_t region, int offset, int step) {
    return descriptor(region, offset + 2048 * step);
}

enum type { bf16, fp16 };
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most Left committed batches are running. */
template <int Left> __device__ inline void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
/* Tells the compiler that acc has changed: after products_wait, before acc is read. */
template <int Tiles> __device__ inline void settle(float (&acc)[Tiles][4]) {
#pragma unroll
    for (int t = 0; t < Tiles; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) asm volatile("" : "+f"(acc[t][k])::"memory");
}

#define ACC4(t) "+f"(acc[t][0]), "+f"(acc[t][1]), "+f"(acc[t][2]), "+f"(acc[t][3])
#define ACC8(t) ACC4(t), ACC4(t + 1)
#define ACC32(t) ACC8(t), ACC8(t + 2), ACC8(t + 4), ACC8(t + 6)
#define ACC64(t) ACC32(t), ACC32(t + 8)
#define LIST8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define LIST32                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define LIST64                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
/* A from registers: the operands' numbers behind the accumulators. */
#define PRODUCT_A(kind, n, list, outs, a0, a1, a2, a3, b, add, turned)                             \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" add ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." kind "." kind " " list ", {%" a0 \
                 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", p, 1, 1, %" turned ";}"                       \
                 : outs                                                                            \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b_at), "r"((int)added), \
                   "n"((int)Down))
#define PRODUCT_TILE(kind, n, list, outs, a, b, add, turned_a, turned_b)                           \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" add ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." kind "." kind " " list ", %" a   \
                 ", %" b ", p, 1, 1, %" turned_a ", %" turned_b ";}"                               \
                 : outs                                                                            \
                 : "l"(a_at), "l"(b_at), "r"((int)added), "n"((int)DownA), "n"((int)DownB))

/* acc (64, 64) += a b; Down: k runs down b's tile. */
template <type Kind, bool Down>
__device__ inline void product(float (&acc)[8][4], const fragment &a, uint64_t b_at, bool added) {
    if constexpr (Kind == bf16)
        PRODUCT_A("bf16", "64", LIST32, ACC32(0), "32", "33", "34", "35", "36", "37", "38");
    else PRODUCT_A("f16", "64", LIST32, ACC32(0), "32", "33", "34", "35", "36", "37", "38");
}
/* acc (64, 8 Tiles) += a b, both in shared memory. */
template <type Kind, bool DownA, bool DownB, int Tiles>
__device__ inline void product(float (&acc)[Tiles][4], uint64_t a_at, uint64_t b_at, bool added) {
    static_assert(Tiles == 2 || Tiles == 16 || (Tiles == 8 && Kind == bf16), "those in use");
    if constexpr (Tiles == 16 && Kind == bf16)
        PRODUCT_TILE("bf16", "128", LIST64, ACC64(0), "64", "65", "66", "67", "68");
    else if constexpr (Tiles == 16)
        PRODUCT_TILE("f16", "128", LIST64, ACC64(0), "64", "65", "66", "67", "68");
    else if constexpr (Tiles == 8)
        PRODUCT_TILE("bf16", "64", LIST32, ACC32(0), "32", "33", "34", "35", "36");
    else if constexpr (Kind == bf16)
        PRODUCT_TILE("bf16", "16", LIST8, ACC8(0), "8", "9", "10", "11", "12");
    else PRODUCT_TILE("f16", "16", LIST8, ACC8(0), "8", "9", "10", "11", "12");
}
#undef PRODUCT_A
#undef PRODUCT_TILE

} // namespace hopper
#endif
