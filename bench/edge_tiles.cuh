/* edge_tiles: the synthetic tiles of edge_benchmark: their order, their operands, their dealing to
 * blocks, and what the kernels of the benchmark share.
 *
 * A tile is 8 nodes a by 8 nodes b: 64 edges of width 64; row 8 b + a. A graph has 20 tiles in
 * four runs of one octet a each (8, 8, 2 and 2 tiles: the layers of 64-16-8-10) and three parts (8,
 * 8 and 4 tiles). A part is worked on by one block. Its tile k belongs to class k % groups. Class c
 * of the block's i-th part is taken by group (c - i) mod groups, so that all groups get the same
 * share while sums depend on classes alone.
 *
 *   image       64 rows of 128 bytes, swizzled (hopper.cuh), then 64 pairs (mean, deviation)
 *   panel       rows of 8 nodes: for every 64 columns an atom of 8 x 128 bytes, swizzled
 *   modulation  of a graph: 1 + scale and shift in fp16, 1 + gate in float, in lane order: lane c
 *               of a quad has columns 16 s + 8 t + 2 c and the next, s < 4, t < 2, one after the
 *               other
 *   slot        sums towards 8 nodes: (128 columns, 8 nodes) in bf16 */
#ifndef WF_BENCH_EDGE_TILES_CUH
#define WF_BENCH_EDGE_TILES_CUH

#include "hopper.cuh"

namespace edge {

using namespace hopper;

enum {
    width = 64,
    half_hidden = 128, /* messages, and as many for the update */
    rows_of_tile = 64,
    graph_tiles = 20,
    graph_runs = 4,
    graph_parts = 3,
    graph_b = 10, /* octets b */
    tile_bytes = rows_of_tile * 128,
    stats_bytes = rows_of_tile * 8,
    image_bytes = tile_bytes + stats_bytes,
    modulation_bytes = 512,
    atom_bytes = 1024,
    slot_words = half_hidden * 8 / 2,
    group_threads = 128
};

__host__ __device__ inline int part_start(int part) {
    return part / graph_parts * graph_tiles + part % graph_parts * 8;
}
__host__ __device__ inline int part_tiles(int part) { return part % graph_parts == 2 ? 4 : 8; }
__host__ __device__ inline int run_of(int tile) {
    int place = tile % graph_tiles;
    return tile / graph_tiles * graph_runs + (place < 16 ? place / 8 : 2 + (place - 16) / 2);
}
__host__ __device__ inline int b_of(int tile) {
    int place = tile % graph_tiles;
    return tile / graph_tiles * graph_b + (place < 16 ? place % 8 : 8 + place % 2);
}

/* Parts of each block: those at first[block] .. first[block + 1] - 1 of the list. */
struct dealing {
    const int *list, *first;
};

/* A group's tile: last of its run, or of its part, in its class. */
struct place {
    int tile, part, turn, share; /* turn: of the part in its block; share: the tile's class */
    bool ends_run, ends_part;
};
/* Calls work(place) for the tiles of a group. The host calls it with functions of its own. */
#pragma nv_exec_check_disable
template <int Groups, class F>
__host__ __device__ inline void each_tile(const dealing &deal, int block, int group, F work) {
    for (int i = deal.first[block]; i < deal.first[block + 1]; i++) {
        int part = deal.list[i], start = part_start(part), count = part_tiles(part);
        int turn = i - deal.first[block], own = (group + turn) % Groups;
        for (int k = own; k < count; k += Groups) {
            bool last = k + Groups >= count;
            bool ends = last || run_of(start + k + Groups) != run_of(start + k);
            work(place{start + k, part, turn, own, ends, last});
        }
    }
}

/* --- numbers ---------------------------------------------------------------------------------- */
__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ inline uint32_t pack_half(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ inline float2 unpack_half(uint32_t word) {
    float2 x;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(word));
    return x;
}
__device__ inline float2 unpack_bf16(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline uint32_t half_to_bf16(uint32_t word) {
    float2 x = unpack_half(word);
    return pack_bf16(x.x, x.y);
}
__device__ inline uint32_t half_fma(uint32_t x, uint32_t y, uint32_t z) {
    uint32_t out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
    return out;
}
__device__ inline uint32_t bf16_mul(uint32_t x, uint32_t y) {
    uint32_t out;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}
/* Words of shared memory in lane order: 16 bytes at a time. */
__device__ inline uint4 load_words(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ inline void store_words(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
__device__ inline float4 load_floats(uint32_t at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ inline float2 load_stats(uint32_t at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
/* Two floats. Not moved in front of products, where registers are scarce, nor behind stores. */
__device__ inline float2 load_pair(const float *from) {
    float2 x;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
    return x;
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* tanh-GELU of x = 2 h, two values in fp16. */
__device__ inline uint32_t gelu(uint32_t h) {
    const uint32_t cubic = 0x34913491u, linear = 0x3e623e62u; /* 0.28542, 1.5958 */
    uint32_t y;
    asm("{.reg .b32 s, p, t; mul.f16x2 s, %1, %1; fma.rn.f16x2 p, s, %2, %3; mul.f16x2 p, p, %1; "
        "tanh.approx.f16x2 t, p; fma.rn.f16x2 %0, %1, t, %1;}"
        : "=r"(y)
        : "r"(h), "r"(cubic), "r"(linear));
    return y;
}
/* The same, and the derivative by x. Squares are bounded: far out a slope is 0 times a square. */
__device__ inline uint32_t gelu(uint32_t h, uint32_t *slope) {
    const uint32_t cubic = 0x34913491u, linear = 0x3e623e62u, most = 0x70007000u; /* 8192 */
    const uint32_t square = 0x36da36dau, one_slope = 0x3a623a62u; /* 0.42813, 0.79788 */
    const uint32_t half = 0x38003800u, one = 0x3c003c00u;
    uint32_t y, t, s, d;
    asm("{.reg .b32 p; mul.f16x2 %2, %3, %3; min.f16x2 %2, %2, %6; fma.rn.f16x2 p, %2, %4, %5; "
        "mul.f16x2 p, p, %3; tanh.approx.f16x2 %1, p; fma.rn.f16x2 %0, %3, %1, %3;}"
        : "=&r"(y), "=&r"(t), "=&r"(s)
        : "r"(h), "r"(cubic), "r"(linear), "r"(most));
    asm("{.reg .b32 q, u, w; fma.rn.f16x2 q, %3, %4, %5; mul.f16x2 q, q, %1; neg.f16x2 u, %2; "
        "fma.rn.f16x2 u, u, %2, %7; fma.rn.f16x2 w, %2, %6, %6; fma.rn.f16x2 %0, q, u, w;}"
        : "=r"(d)
        : "r"(h), "r"(t), "r"(s), "r"(square), "r"(one_slope), "r"(half), "r"(one));
    *slope = d;
    return y;
}

/* --- pieces of kernels ------------------------------------------------------------------------ */
/* A (64, 16) of ones: column k < 8 where a is k, column 8 + k where b is k; `one` as 16 bits. */
__device__ inline fragment one_hot(uint32_t one) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, g = lane / 4, c = lane % 4;
    uint32_t a = g / 2 != c ? 0u : one << 16 * (g % 2);
    fragment f = {{a, a, c == warp ? one : 0u, c == warp ? one << 16 : 0u}};
#pragma unroll
    for (int k = 0; k < 4; k++) asm volatile("" : "+r"(f.r[k])); /* not between products */
    return f;
}
/* Rows of a's and b's panels, 8 and 8, as 16 rows of k: columns of one atom. */
__device__ inline uint64_t panels(uint32_t region, int a, int b, int piece) {
    return descriptor(region, a + piece * atom_bytes, b - a);
}
/* The normalised rows of a tile, modulated: e (1 + scale) + shift, in fp16. */
__device__ inline void modulate(fragment (&eb)[4], const fragment (&e)[4], uint32_t modulation) {
    uint32_t at = modulation + (threadIdx.x % 4) * 32;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint4 scale = load_words(at + 16 * j), shift = load_words(at + 128 + 16 * j);
        const uint32_t by[4] = {scale.x, scale.y, scale.z, scale.w};
        const uint32_t add[4] = {shift.x, shift.y, shift.z, shift.w};
#pragma unroll
        for (int k = 0; k < 8; k++) /* fragment 2 j + k / 4; its columns by twos: k / 2 */
            eb[2 * j + k / 4].r[k % 4] = half_fma(e[2 * j + k / 4].r[k % 4], by[k / 2], add[k / 2]);
    }
}
/* Sums of a strip of 64 columns: lane (g, c) of warp w has columns 16 w + g and + 8 of the strip,
 * nodes 2 c and the next. */
__device__ inline void store_slot(uint32_t *slot, int strip, const float (&sum)[4]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    uint32_t *to = slot + (64 * strip + 16 * warp + lane / 4) * 4 + lane % 4;
    to[0] = pack_bf16(sum[0], sum[1]);
    to[32] = pack_bf16(sum[2], sum[3]);
}
/* acc (64, 64) in float, rows of the group's tile. */
__device__ inline void store_sums(float *to, const float (&acc)[8][4]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    to += (16 * warp + lane / 4) * width + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < 8; t++) {
        *(float2 *)(to + 8 * t) = make_float2(acc[t][0], acc[t][1]);
        *(float2 *)(to + 8 * width + 8 * t) = make_float2(acc[t][2], acc[t][3]);
    }
}
template <int Tiles> __device__ inline void clear(float (&acc)[Tiles][4]) {
#pragma unroll
    for (int t = 0; t < Tiles; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[t][k] = 0;
}

} // namespace edge
#endif
