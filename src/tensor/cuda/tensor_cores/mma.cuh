/* mma: tensor-core products of row tiles with bf16 operands and fp32 sums, for the fused edge
 * kernels.
 *
 * A row tile is 64 rows by D columns and belongs to a warpgroup: four consecutive warps, the first
 * a multiple of 4. Warp w owns rows 16w .. 16w+15. Let c = lane % 4 and g = lane / 4. A lane holds
 * rows g and g + 8 of its warp and, of every 16 columns, the four columns 4c .. 4c+3:
 *     acc[2j][0..1], acc[2j+1][0..1]    row g,     columns 16j + 4c .. 16j + 4c+3
 *     acc[2j][2..3], acc[2j+1][2..3]    row g + 8, the same columns
 * so fp32 rows and tables are read and written 16 bytes a lane. The tensor core numbers the columns
 * differently: its "position" p of 16 is our column column_of(p) = 4 ((p%8)/2) + 2 (p/8) + p%2.
 * Every channel axis of every bf16 operand is stored by position, both axes of weights, so the
 * positions of different operands match. Only the results of outer_mma (weight gradients) have rows
 * by position.
 *
 * Shared memory. A panel holds a matrix (rows, cols) in bf16, by position, in strips of 64 columns.
 * A strip is rows x 128 bytes; the 16-byte word w of row r is at w ^ (r % 8) (the 128-byte swizzle
 * of wgmma). Panels begin at multiples of 1,024 bytes; a last strip of fewer columns still takes
 * 128 bytes a row. Weights (out, in) are panels with out rows; a row tile that is read along its
 * rows is a panel with 64 rows.
 *
 *     forward_mma    acc (64, n)  += x (64, k) W'     W (n, k) a panel; x in registers
 *     backward_mma   acc (64, n)  += dy (64, k) W     W (k, n), the same panel, read transposed
 *     tile_forward_mma, tile_backward_mma             x or dy a 64-row panel in shared memory
 *     outer_mma      acc (64, n)  += dy' x            dy (64, 64 of its columns), x (64, n) panels
 * Each exists as mma.sync (sm_80 and later) and as wgmma (sm_90a): template argument Wgmma.
 * Compiled for another architecture it has no effect. With Wgmma a product belongs to one warpgroup
 * and runs on after the call:
 *     begin<Wgmma>(); forward_mma<Wgmma>(...); ...; finish<Wgmma>();   acc may be used after finish
 * What a product reads from shared memory must have been written before a barrier, and each writer
 * must have called publish() before that barrier. The last argument of a product, `fresh`: acc is
 * overwritten instead of added to. */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WF_HAS_WGMMA 1
#else
#define WF_HAS_WGMMA 0
#endif

namespace wf_gpu::mma {

enum { tile_rows = 64, strip_columns = 64, strip_pitch = 128 };

__host__ __device__ constexpr int column_of(int position) {
    return position / 16 * 16 + 4 * (position % 8 / 2) + 2 * (position % 16 / 8) + position % 2;
}
__host__ __device__ constexpr int position_of(int column) {
    return column / 16 * 16 + 8 * (column % 4 / 2) + 2 * (column % 16 / 4) + column % 2;
}
__host__ __device__ constexpr size_t panel_bytes(int rows, int cols) {
    return (size_t)((cols + strip_columns - 1) / strip_columns) * (size_t)rows * strip_pitch;
}

/* --- shared memory ---------------------------------------------------------------------------- */
__device__ inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

struct panel {
    uint32_t base; /* address in shared memory */
    int rows;
    /* Address of 16-byte word `word` (8 positions) of a row. */
    __device__ uint32_t at(int row, int word) const {
        return base + (uint32_t)((word / 8 * rows + row) * strip_pitch + ((word ^ row) % 8) * 16);
    }
};

/* Writes to shared memory become visible to wgmma after this and a barrier. */
__device__ inline void publish() {
#if WF_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Barrier of the 128 threads of a warpgroup; id 1 .. 15, one for each warpgroup. */
__device__ inline void group_barrier(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* Two values in bf16, `low` in the lower half. */
__device__ inline uint32_t pack(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

/* The same in fp16, and the inverse. */
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

/* A weight (out, in) or a part of it: its first element in float and, if there is one, in the bf16
 * copy. The copy has a multiple of 16 columns, 16-byte aligned. Rows of both are ld apart. */
struct weight_rows {
    const float *w;
    const __nv_bfloat16 *copy;
    int ld;
    __device__ weight_rows at(int row, int col) const {
        size_t place = (size_t)row * ld + col;
        return weight_rows{w + place, copy == NULL ? NULL : copy + place, ld};
    }
    /* 16 columns of a row from col on, two in a register. */
    template <bool Copied> __device__ void read(int row, int col, uint32_t (&words)[8]) const {
        size_t place = (size_t)row * ld + col;
        if (Copied) {
            uint4 x = *(const uint4 *)(copy + place), y = *(const uint4 *)(copy + place + 8);
            words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
            words[4] = y.x, words[5] = y.y, words[6] = y.z, words[7] = y.w;
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) words[k] = pack(w[place + 2 * k], w[place + 2 * k + 1]);
        }
    }
};
__device__ inline uint32_t halved(uint32_t word) {
    return pack(0.5f * __uint_as_float(word << 16), 0.5f * __uint_as_float(word & 0xffff0000u));
}

/* For stage_panel: a thread loads `Batch` groups of 16 columns at once. */
template <bool Halved, bool Copied, int Batch>
__device__ inline void stage_rows(const panel &to, int row0, const weight_rows &w, int rows,
                                  int cols) {
    int groups = cols / 16, all = rows * groups, step = (int)blockDim.x;
    for (int first = (int)threadIdx.x; first < all; first += Batch * step) {
        uint32_t words[Batch][8];
#pragma unroll
        for (int b = 0; b < Batch; b++) {
            int i = first + b * step;
            if (i < all) w.read<Copied>(column_of(i / groups), 16 * (i % groups), words[b]);
        }
#pragma unroll
        for (int b = 0; b < Batch; b++) {
            int i = first + b * step, row = row0 + i / groups, word = 2 * (i % groups);
            if (i >= all) continue;
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (Halved) words[b][k] = halved(words[b][k]);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to.at(row, word)),
                         "r"(words[b][0]), "r"(words[b][2]), "r"(words[b][4]), "r"(words[b][6])
                         : "memory");
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to.at(row, word + 1)),
                         "r"(words[b][1]), "r"(words[b][3]), "r"(words[b][5]), "r"(words[b][7])
                         : "memory");
        }
    }
}
/* Rows row0 .. row0 + rows-1 of a panel = w (rows, cols), times a half if Halved. All threads of
 * the block take part, and a barrier must follow. rows and cols are multiples of 16. */
template <bool Halved = false, int Batch = 4>
__device__ inline void stage_panel(const panel &to, int row0, const weight_rows &w, int rows,
                                   int cols) {
    if (w.copy != NULL) stage_rows<Halved, true, Batch>(to, row0, w, rows, cols);
    else stage_rows<Halved, false, 1>(to, row0, w, rows, cols);
    publish();
}

/* --- fragments -------------------------------------------------------------------------------- */
/* 16 rows of a warp by 16 columns: a lane's four columns of row g (r[0], r[2]) and of row g + 8
 * (r[1], r[3]). */
struct fragment {
    uint32_t r[4];
};
__device__ inline fragment fragment_of(const float4 &upper, const float4 &lower) {
    return fragment{{pack(upper.x, upper.y), pack(lower.x, lower.y), pack(upper.z, upper.w),
                     pack(lower.z, lower.w)}};
}
/* The accumulators acc[2j], acc[2j+1] as operand of the next product. */
__device__ inline fragment fragment_of(const float (&first)[4], const float (&second)[4]) {
    return fragment{{pack(first[0], first[1]), pack(first[2], first[3]), pack(second[0], second[1]),
                     pack(second[2], second[3])}};
}

/* The address of a lane's part of a 16 x 16 block (rows row0 .., group 0) of a panel for ldmatrix
 * and stmatrix: lane l names row l % 16 of the first (l < 16) or second eight columns. For other
 * groups of the strip, xor with 32 * group. */
__device__ inline uint32_t block_address(const panel &of, int row0) {
    int lane = (int)(threadIdx.x % 32), row = row0 + lane % 16;
    return of.base + (uint32_t)(row * strip_pitch + (lane / 16 ^ row) % 8 * 16);
}
__device__ inline uint32_t block_address(const panel &of, int row0, int group) {
    return (block_address(of, row0) ^ (uint32_t)(group % 4 * 32)) +
           (uint32_t)(group / 4 * of.rows * strip_pitch);
}

/* Stores 16 columns, number `group`, of this warp's rows of a 64-row panel; row0 is 16 times the
 * warp's index. The caller calls publish(). */
__device__ inline void store_fragment(const panel &to, int row0, int group, const fragment &f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     block_address(to, row0, group)),
                 "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
                 : "memory");
#else
    int lane = (int)(threadIdx.x % 32), row = row0 + lane / 4;
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to.at(row + 8 * (k % 2), 2 * group + k / 2) +
                                                     (uint32_t)(lane % 4 * 4)),
                     "r"(f.r[k])
                     : "memory");
#endif
}

template <int Tiles> __device__ inline void clear(float (&acc)[Tiles][4]) {
#pragma unroll
    for (int t = 0; t < Tiles; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[t][k] = 0;
}

/* --- mma.sync --------------------------------------------------------------------------------- */
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
/* The other way, of transposed matrices: lane l names the place of column l % 8 of matrix l / 8. */
__device__ inline void store_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
#else
    int lane = (int)(threadIdx.x % 32);
    const uint32_t words[4] = {a, b, c, d};
    for (int k = 0; k < 8; k++) {
        uint32_t to =
            __shfl_sync(0xffffffffu, address, 8 * (k / 2) + 2 * (lane % 4) + k % 2) + lane / 4 * 2;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to),
                     "h"((uint16_t)(words[k / 2] >> k % 2 * 16))
                     : "memory");
    }
    __syncwarp();
#endif
}
/* acc (16, 8) += a (16, 16) b (16, 8) */
__device__ inline void warp_mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ldmatrix reads four matrices; lane l names row l % 8 of matrix l / 8. Below are the four matrices
 * of two neighbouring n-tiles. */
/* b of x W': rows of the panel are n, words are k. */
__device__ inline uint32_t forward_address(const panel &w, int n, int k_word) {
    int lane = (int)(threadIdx.x % 32), matrix = lane / 8;
    return w.at(n + lane % 8 + matrix / 2 * 8, k_word + matrix % 2);
}
/* b of dy W, and of dy' x: rows of the panel are k, words are n. */
__device__ inline uint32_t backward_address(const panel &w, int k, int n_word) {
    int lane = (int)(threadIdx.x % 32), matrix = lane / 8;
    return w.at(k + lane % 8 + matrix % 2 * 8, n_word + matrix / 2);
}
/* a of dy' x: rows of the panel are k, words are m. */
__device__ inline uint32_t transposed_a_address(const panel &w, int k, int m_word) {
    int lane = (int)(threadIdx.x % 32), matrix = lane / 8;
    return w.at(k + lane % 8 + matrix / 2 * 8, m_word + matrix % 2);
}
/* a of a row tile: rows of the panel are m, words are k. */
__device__ inline uint32_t plain_a_address(const panel &w, int m, int k_word) {
    int lane = (int)(threadIdx.x % 32), matrix = lane / 8;
    return w.at(m + lane % 8 + matrix % 2 * 8, k_word + matrix / 2);
}

/* Two tiles of 8 columns at a time: b_address(i) is the panel's address of 16 columns. */
template <int Tiles, bool Transposed, class B>
__device__ inline void warp_row(float (&acc)[Tiles][4], const uint32_t (&a)[4], B b_address) {
    static_assert(Tiles % 2 == 0, "columns come in sixteens");
#pragma unroll
    for (int t = 0; t < Tiles; t += 2) {
        uint32_t b[4];
        if (Transposed) load_transposed(b, b_address(t / 2));
        else load_matrices(b, b_address(t / 2));
        warp_mma(acc[t], a, b[0], b[1]);
        warp_mma(acc[t + 1], a, b[2], b[3]);
    }
}

/* --- wgmma ------------------------------------------------------------------------------------ */
#if WF_HAS_WGMMA
/* Descriptor of a panel: start, distance of strips (used when n runs along the strip) and of groups
 * of 8 rows, swizzle. */
__device__ inline uint64_t descriptor(uint32_t address, int strip_bytes) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)((strip_bytes & 0x3ffff) >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define WF_ACC4(t) "+f"(acc[t][0]), "+f"(acc[t][1]), "+f"(acc[t][2]), "+f"(acc[t][3])
#define WF_ACC8(t) WF_ACC4(t), WF_ACC4(t + 1)
#define WF_ACC16(t) WF_ACC8(t), WF_ACC8(t + 2)
#define WF_ACC32(t) WF_ACC16(t), WF_ACC16(t + 4)
#define WF_ACC64(t) WF_ACC32(t), WF_ACC32(t + 8)
#define WF_REGS8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define WF_REGS16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define WF_REGS32                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define WF_REGS64                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
/* The operands after `n` accumulators: a in registers or its descriptor, the descriptor of b, 0 to
 * overwrite, transpositions. */
#define WF_WGMMA_A(n, list, outs, a0, a1, a2, a3, b, add, transposed_b)                            \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" add ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " list ", {%" a0 ",%" a1 \
                 ",%" a2 ",%" a3 "}, %" b ", p, 1, 1, %" transposed_b ";}"                         \
                 : outs                                                                            \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b_at), "r"(added),      \
                   "n"((int)TransposedB))
#define WF_WGMMA_TILE(n, list, outs, a, b, add, transposed_a, transposed_b)                        \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" add ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " list ", %" a ", %" b   \
                 ", p, 1, 1, %" transposed_a ", %" transposed_b ";}"                               \
                 : outs                                                                            \
                 : "l"(a_at), "l"(b_at), "r"(added), "n"((int)TransposedA), "n"((int)TransposedB))

/* 8 * Tiles columns from tile First of acc; a in registers. */
template <int First, int Tiles, bool TransposedB, int All>
__device__ inline void group_mma(float (&acc)[All][4], const fragment &a, uint64_t b_at,
                                 int added) {
    static_assert(Tiles == 2 || Tiles == 4 || Tiles == 8 || Tiles == 16, "a shape of wgmma");
    if constexpr (Tiles == 16)
        WF_WGMMA_A("128", WF_REGS64, WF_ACC64(First), "64", "65", "66", "67", "68", "69", "70");
    else if constexpr (Tiles == 8)
        WF_WGMMA_A("64", WF_REGS32, WF_ACC32(First), "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (Tiles == 4)
        WF_WGMMA_A("32", WF_REGS16, WF_ACC16(First), "16", "17", "18", "19", "20", "21", "22");
    else WF_WGMMA_A("16", WF_REGS8, WF_ACC8(First), "8", "9", "10", "11", "12", "13", "14");
}
template <int First, int Tiles, bool TransposedA, bool TransposedB, int All>
__device__ inline void group_mma(float (&acc)[All][4], uint64_t a_at, uint64_t b_at, int added) {
    static_assert(Tiles == 2 || Tiles == 4 || Tiles == 8 || Tiles == 16, "a shape of wgmma");
    if constexpr (Tiles == 16)
        WF_WGMMA_TILE("128", WF_REGS64, WF_ACC64(First), "64", "65", "66", "67", "68");
    else if constexpr (Tiles == 8)
        WF_WGMMA_TILE("64", WF_REGS32, WF_ACC32(First), "32", "33", "34", "35", "36");
    else if constexpr (Tiles == 4)
        WF_WGMMA_TILE("32", WF_REGS16, WF_ACC16(First), "16", "17", "18", "19", "20");
    else WF_WGMMA_TILE("16", WF_REGS8, WF_ACC8(First), "8", "9", "10", "11", "12");
}
#undef WF_WGMMA_A
#undef WF_WGMMA_TILE

/* The largest shape for the tiles that are left. */
__host__ __device__ constexpr int shape_of(int tiles) {
    return tiles >= 16 ? 16 : tiles >= 8 ? 8 : tiles >= 4 ? 4 : 2;
}

/* All tiles, shape by shape; b_at(n) is the descriptor of b from column n on. */
template <int First, bool TransposedB, int All, class B>
__device__ inline void group_row(float (&acc)[All][4], const fragment &a, B b_at, int added) {
    if constexpr (First < All) {
        constexpr int tiles = shape_of(All - First);
        group_mma<First, tiles, TransposedB>(acc, a, b_at(8 * First), added);
        group_row<First + tiles, TransposedB>(acc, a, b_at, added);
    }
}
template <int First, bool TransposedA, bool TransposedB, int All, class B>
__device__ inline void group_row(float (&acc)[All][4], uint64_t a_at, B b_at, int added) {
    if constexpr (First < All) {
        constexpr int tiles = shape_of(All - First);
        group_mma<First, tiles, TransposedA, TransposedB>(acc, a_at, b_at(8 * First), added);
        group_row<First + tiles, TransposedA, TransposedB>(acc, a_at, b_at, added);
    }
}

/* b of x W' from row n and position k; rows of the panel are n. */
__device__ inline uint64_t forward_descriptor(const panel &w, int n, int k) {
    return descriptor(w.base + (uint32_t)((k / 64 * w.rows + n) * strip_pitch + k % 64 * 2), 16);
}
/* b of dy W and of dy' x, a of dy' x: rows of the panel are k, positions n run along its strips. */
__device__ inline uint64_t backward_descriptor(const panel &w, int k, int n) {
    return descriptor(w.base + (uint32_t)((n / 64 * w.rows + k) * strip_pitch + n % 64 * 2),
                      w.rows * strip_pitch);
}
#endif

/* --- products --------------------------------------------------------------------------------- */
/* Before the first product of a batch: acc, fragments and shared memory are complete. */
template <bool Wgmma> __device__ inline void begin() {
#if WF_HAS_WGMMA
    if (Wgmma) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/* Ends a batch, which keeps running. */
template <bool Wgmma> __device__ inline void commit() {
#if WF_HAS_WGMMA
    if (Wgmma) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Waits until at most `Left` committed batches are still running. */
template <bool Wgmma, int Left = 0> __device__ inline void wait() {
#if WF_HAS_WGMMA
    if (Wgmma) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
#endif
}
template <bool Wgmma> __device__ inline void finish() {
    commit<Wgmma>();
    wait<Wgmma>();
}
/* Tells the compiler that acc has changed: after wait(), before acc is read. */
template <int Tiles> __device__ inline void settle(float (&acc)[Tiles][4]) {
#pragma unroll
    for (int t = 0; t < Tiles; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) asm volatile("" : "+f"(acc[t][k])::"memory");
}

/* acc (64, 8 Tiles) += x W': x (64, 16 Steps), W = rows n0 .. n0 + 8 Tiles - 1, positions k0 .. of
 * the panel. n0 a multiple of 8, k0 of 16. */
template <bool Wgmma, int Tiles, int Steps>
__device__ inline void forward_mma(float (&acc)[Tiles][4], const fragment (&x)[Steps],
                                   const panel &w, int n0, int k0, bool fresh) {
#if WF_HAS_WGMMA
    if constexpr (Wgmma) {
#pragma unroll
        for (int s = 0; s < Steps; s++)
            group_row<0, false>(
                acc, x[s], [&](int n) { return forward_descriptor(w, n0 + n, k0 + 16 * s); },
                !fresh || s > 0);
        return;
    }
#endif
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < Steps; s++)
        warp_row<Tiles, false>(
            acc, x[s].r, [&](int i) { return forward_address(w, n0 + 16 * i, k0 / 8 + 2 * s); });
}

/* acc (64, 8 Tiles) += dy W: dy (64, 16 Steps), W = rows k0 .. k0 + 16 Steps - 1, positions n0 ..
 * of the panel. k0 a multiple of 16, n0 of 64. */
template <bool Wgmma, int Tiles, int Steps>
__device__ inline void backward_mma(float (&acc)[Tiles][4], const fragment (&dy)[Steps],
                                    const panel &w, int k0, int n0, bool fresh) {
#if WF_HAS_WGMMA
    if constexpr (Wgmma) {
#pragma unroll
        for (int s = 0; s < Steps; s++)
            group_row<0, true>(
                acc, dy[s], [&](int n) { return backward_descriptor(w, k0 + 16 * s, n0 + n); },
                !fresh || s > 0);
        return;
    }
#endif
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < Steps; s++)
        warp_row<Tiles, true>(
            acc, dy[s].r, [&](int i) { return backward_address(w, k0 + 16 * s, n0 / 8 + 2 * i); });
}

/* forward_mma with x = positions x0 .. x0 + 16 Steps - 1 of a 64-row panel; row0: 16 times the
 * warp's index. */
template <bool Wgmma, int Steps, int Tiles>
__device__ inline void tile_forward_mma(float (&acc)[Tiles][4], const panel &x, int row0, int x0,
                                        const panel &w, int n0, int k0, bool fresh) {
#if WF_HAS_WGMMA
    if constexpr (Wgmma) {
#pragma unroll
        for (int s = 0; s < Steps; s++)
            group_row<0, false, false>(
                acc, forward_descriptor(x, 0, x0 + 16 * s),
                [&](int n) { return forward_descriptor(w, n0 + n, k0 + 16 * s); }, !fresh || s > 0);
        return;
    }
#endif
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < Steps; s++) {
        uint32_t a[4];
        load_matrices(a, plain_a_address(x, row0, x0 / 8 + 2 * s));
        warp_row<Tiles, false>(
            acc, a, [&](int i) { return forward_address(w, n0 + 16 * i, k0 / 8 + 2 * s); });
    }
}
template <bool Wgmma, int Steps, int Tiles>
__device__ inline void tile_backward_mma(float (&acc)[Tiles][4], const panel &dy, int row0, int y0,
                                         const panel &w, int k0, int n0, bool fresh) {
#if WF_HAS_WGMMA
    if constexpr (Wgmma) {
#pragma unroll
        for (int s = 0; s < Steps; s++)
            group_row<0, false, true>(
                acc, forward_descriptor(dy, 0, y0 + 16 * s),
                [&](int n) { return backward_descriptor(w, k0 + 16 * s, n0 + n); },
                !fresh || s > 0);
        return;
    }
#endif
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < Steps; s++) {
        uint32_t a[4];
        load_matrices(a, plain_a_address(dy, row0, y0 / 8 + 2 * s));
        warp_row<Tiles, true>(
            acc, a, [&](int i) { return backward_address(w, k0 + 16 * s, n0 / 8 + 2 * i); });
    }
}

/* acc (64, 8 Tiles) += dy' x over the 64 rows of two panels: positions m0 .. m0 + 63 of dy by n0 ..
 * of x, both multiples of 64. Row i = row0 + g (+ 8) of acc is position m0 + i of dy, that is
 * column column_of(m0 + i). A lane's columns are as everywhere. */
template <bool Wgmma, int Tiles>
__device__ inline void outer_mma(float (&acc)[Tiles][4], const panel &dy, int row0, int m0,
                                 const panel &x, int n0, bool fresh) {
#if WF_HAS_WGMMA
    if constexpr (Wgmma) {
#pragma unroll
        for (int s = 0; s < tile_rows / 16; s++)
            group_row<0, true, true>(
                acc, backward_descriptor(dy, 16 * s, m0),
                [&](int n) { return backward_descriptor(x, 16 * s, n0 + n); }, !fresh || s > 0);
        return;
    }
#endif
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < tile_rows / 16; s++) {
        uint32_t a[4];
        load_transposed(a, transposed_a_address(dy, 16 * s, (m0 + row0) / 8));
        warp_row<Tiles, true>(acc, a,
                              [&](int i) { return backward_address(x, 16 * s, n0 / 8 + 2 * i); });
    }
}

/* --- activations ------------------------------------------------------------------------------ */
__device__ inline float fast_tanh(float x) {
    float out;
    asm("tanh.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

/* tanh-GELU or SiLU with one special function; the error of tanh is 2^-11. */
template <bool Gelu> __device__ inline float fast_activation(float x) {
    float half = 0.5f * x;
    float inner = Gelu ? x * (0.7978845608f + 0.0356774081f * (x * x)) : half;
    return half + half * fast_tanh(inner);
}
/* The same, and its derivative. */
template <bool Gelu> __device__ inline float fast_activation(float x, float *slope) {
    float half = 0.5f * x, square = x * x;
    float inner = Gelu ? x * (0.7978845608f + 0.0356774081f * square) : half;
    float t = fast_tanh(inner);
    float inner_slope = Gelu ? 0.7978845608f + 0.1070322243f * square : 0.5f;
    *slope = 0.5f + 0.5f * t + half * inner_slope * (1 - t * t);
    return half + half * t;
}

} // namespace wf_gpu::mma
