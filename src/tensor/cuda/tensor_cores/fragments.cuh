/* fragments: bf16 operands of mma.sync m16n8k16, and tiles of float matrices on the way to shared
 * memory. */
#pragma once

#include "tensor/cuda/fp32/epilogue.cuh"

#include <cuda_bf16.h>

namespace wf_gpu {

__host__ __device__ inline int whole16(int n) { return (n + 15) / 16 * 16; }

/* Rows of a tile are padded by 16 bytes, so that 8 rows of a matrix are in different banks. */
enum { tile_k = 32, padding = 8 };

__device__ inline uint32_t bf16_pair(float low, float high) {
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&two;
}

template <bool transposed> __device__ inline void load_matrices(uint32_t (&to)[4], uint32_t at) {
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
}

template <bool transposed>
__device__ inline void load_matrices(uint32_t (&to)[4], const __nv_bfloat16 *from) {
    load_matrices<transposed>(to, (uint32_t)__cvta_generic_to_shared(from));
}

__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* `width` rows of a matrix by tile_k of k, which runs along its rows (inner) or down its
 * columns. */
template <int width, int threads, bool inner, bool whole> struct tile {
    enum {
        loads = width * tile_k / 4 / threads,
        pitch = (inner ? tile_k : width) + padding,
        size = (inner ? width : tile_k) * pitch
    };
    float held[loads][4];

    __device__ void fetch(const float *from, int ld, int first, int count, int k, int k_end) {
        fetch_tile<width, tile_k, threads, inner, whole>(held, from, ld, first, count, k, k_end);
    }
    __device__ void store(__nv_bfloat16 *to) const {
#pragma unroll
        for (int i = 0; i < loads; i++) {
            int at = (int)threadIdx.x + i * threads, across = (inner ? tile_k : width) / 4;
            *(uint2 *)(to + at / across * pitch + at % across * 4) =
                make_uint2(bf16_pair(held[i][0], held[i][1]), bf16_pair(held[i][2], held[i][3]));
        }
    }
    /* Operand A of rows row .. row + 15: (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8). */
    __device__ static void read_a(uint32_t (&to)[4], const __nv_bfloat16 *from, int row, int k,
                                  int lane) {
        if (inner) load_matrices<false>(to, from + (row + lane % 16) * pitch + k + lane / 16 * 8);
        else
            load_matrices<true>(to, from + (k + lane / 16 * 8 + lane % 8) * pitch + row +
                                        lane / 8 % 2 * 8);
    }
    /* Operands B of columns row .. row + 7 and row + 8 .. row + 15, two registers each. */
    __device__ static void read_b(uint32_t (&to)[4], const __nv_bfloat16 *from, int row, int k,
                                  int lane) {
        if (inner)
            load_matrices<false>(to, from + (row + lane / 16 * 8 + lane % 8) * pitch + k +
                                         lane / 8 % 2 * 8);
        else load_matrices<true>(to, from + (k + lane % 16) * pitch + row + lane / 16 * 8);
    }
};

/* The accumulators of a 16 x 8 tile are two neighbours of rows g and g + 8, g = lane / 4. Makes
 * four neighbours of one row of them: even lanes get row g, odd lanes row g + 8. */
__device__ inline void gather_row(const float (&sum)[4], int lane, float (&x)[4]) {
    bool odd = lane & 1;
    float give0 = odd ? sum[0] : sum[2], give1 = odd ? sum[1] : sum[3];
    float got0 = __shfl_xor_sync(0xffffffffu, give0, 1);
    float got1 = __shfl_xor_sync(0xffffffffu, give1, 1);
    x[0] = odd ? got0 : sum[0], x[1] = odd ? got1 : sum[1];
    x[2] = odd ? sum[2] : got0, x[3] = odd ? sum[3] : got1;
}

} // namespace wf_gpu
