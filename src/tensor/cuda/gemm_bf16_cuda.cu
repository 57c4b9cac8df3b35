/* gemm_bf16_cuda: matrix products on the tensor cores: float in memory, rounded to bf16 on the way into shared memory,
 * summed in float.
 *
 *   block   a tile (BM, BN) of the output; k in steps of 32 through two buffers of shared memory, the next step's elements
 *           on their way into registers while this one's are multiplied
 *   warp    32 x 32 (small tiles: 16 x 16) of it by mma.sync m16n8k16, operands by ldmatrix
 * A tile lies in shared memory as it lies in memory, k along its rows or down its columns; ldmatrix transposes what needs
 * it. Rows are padded by 16 bytes, so that the 8 rows of a matrix lie in different banks. An element's sum runs over k in
 * order in every tile shape, so a row's bits do not depend on its neighbours (C2). Two lanes of a quad exchange halves of
 * their accumulators, so that each has four neighbouring sums for the epilogue, which is that of the float products.
 * Bytes: each operand once per tile. Limit: the tensor cores' bf16 rate (788 TFLOP/s measured on an H200) or, at the widths
 * of the fields (k <= 256), the float traffic. */
#include "tensor/cuda/gemm_bf16_cuda.cuh"

#include <cuda_bf16.h>

namespace wf_gpu {

bool bf16_products::on = false;

namespace {

enum { BK = 32, padding = 8 /* bf16: 16 bytes */ };

__device__ inline uint32_t pair(float low, float high) {
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&two;
}

template <bool transposed>
__device__ inline void load_matrices(uint32_t (&to)[4], const __nv_bfloat16 *from) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
}

__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* `width` rows of a matrix times BK of k, which runs along its rows (inner) or down its columns. */
template <int width, int threads, bool inner, bool whole> struct tile {
    enum {
        loads = width * BK / 4 / threads,
        pitch = (inner ? BK : width) + padding,
        size = (inner ? width : BK) * pitch
    };
    float held[loads][4];

    __device__ void fetch(const float *from, int ld, int first, int count, int k, int k_end) {
#pragma unroll
        for (int i = 0; i < loads; i++) {
            int at = (int)threadIdx.x + i * threads;
            int row, left;
            const float *source;
            if (inner) {
                int kk = k + at % (BK / 4) * 4;
                row = first + at / (BK / 4);
                left = row < count ? k_end - kk : 0;
                source = from + (size_t)row * ld + kk;
            } else {
                int kk = k + at / (width / 4);
                row = first + at % (width / 4) * 4;
                left = kk < k_end ? count - row : 0;
                source = from + (size_t)kk * ld + row;
            }
            fetch4<whole>(source, left, held[i]);
        }
    }
    __device__ void store(__nv_bfloat16 *to) const {
#pragma unroll
        for (int i = 0; i < loads; i++) {
            int at = (int)threadIdx.x + i * threads, across = (inner ? BK : width) / 4;
            *(uint2 *)(to + at / across * pitch + at % across * 4) =
                make_uint2(pair(held[i][0], held[i][1]), pair(held[i][2], held[i][3]));
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

/* The accumulators of an 16 x 8 tile, two neighbours of rows g and g + 8, g = lane / 4, as four neighbours of one row:
 * even lanes have row g, odd ones g + 8. */
__device__ inline void gather_row(const float (&sum)[4], int lane, float (&x)[4]) {
    bool odd = lane & 1;
    float give0 = odd ? sum[0] : sum[2], give1 = odd ? sum[1] : sum[3];
    float got0 = __shfl_xor_sync(0xffffffffu, give0, 1);
    float got1 = __shfl_xor_sync(0xffffffffu, give1, 1);
    x[0] = odd ? got0 : sum[0], x[1] = odd ? got1 : sum[1];
    x[2] = odd ? sum[2] : got0, x[3] = odd ? sum[3] : got1;
}

template <int BM, int BN, int WM, int WN, bool a_inner, bool b_inner, bool whole, class To>
__global__ void __launch_bounds__(BM / WM * BN / WN * 32)
    gemm_kernel(operands o, To to, int chunk) {
    enum { threads = BM / WM * BN / WN * 32, MT = WM / 16, NT = WN / 8 };
    typedef tile<BM, threads, a_inner, whole> tile_a;
    typedef tile<BN, threads, b_inner, whole> tile_b;
    __shared__ __align__(16) __nv_bfloat16 as[2][tile_a::size], bs[2][tile_b::size];
    int first_m = (int)blockIdx.x * BM, first_n = (int)blockIdx.y * BN;
    int k = (int)blockIdx.z * chunk, k_end = min(o.k, k + chunk);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % (BM / WM) * WM, across = warp / (BM / WM) * WN;
    tile_a a;
    tile_b b;
    float sum[MT][NT][4] = {};
    a.fetch(o.a, o.lda, first_m, o.m, k, k_end);
    b.fetch(o.b, o.ldb, first_n, o.n, k, k_end);
    a.store(as[0]);
    b.store(bs[0]);
    __syncthreads();
    for (int buffer = 0; k < k_end; buffer ^= 1) {
        k += BK;
        if (k < k_end) {
            a.fetch(o.a, o.lda, first_m, o.m, k, k_end);
            b.fetch(o.b, o.ldb, first_n, o.n, k, k_end);
        }
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            uint32_t x[MT][4], y[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; i++) tile_a::read_a(x[i], as[buffer], down + 16 * i, kk, lane);
#pragma unroll
            for (int j = 0; j < NT / 2; j++)
                tile_b::read_b(y[j], bs[buffer], across + 16 * j, kk, lane);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    multiply_add(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
        if (k < k_end) {
            a.store(as[buffer ^ 1]);
            b.store(bs[buffer ^ 1]);
        }
        __syncthreads();
    }
    int width = (o.n + WF_PAD - 1) / WF_PAD * WF_PAD;
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int row = first_m + down + 16 * i + lane / 4 + lane % 2 * 8;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int col = first_n + across + 8 * j + lane % 4 / 2 * 4;
            float x[4];
            gather_row(sum[i][j], lane, x);
            if (row < o.m && col < width) finish(to, row, col, o.n, x);
        }
    }
}

template <int BM, int BN, int WM, int WN, bool a_inner, bool b_inner, bool whole, class To>
void launch(const operands &o, const To &to, int chunk, int chunks) {
    dim3 grid(blocks_for((size_t)o.m, BM), blocks_for((size_t)o.n, BN), (unsigned)chunks);
    gemm_kernel<BM, BN, WM, WN, a_inner, b_inner, whole, To>
        <<<grid, BM / WM * BN / WN * 32, 0, stream()>>>(o, to, chunk);
}

/* The largest tile that still gives every SM something to do. */
template <bool a_inner, bool b_inner, class To>
void multiply(const operands &o, const To &to, int chunk, int chunks) {
    if (o.m <= 0 || o.n <= 0) return;
    bool whole =
        in_fours(o.a, o.lda, a_inner ? o.k : o.m) && in_fours(o.b, o.ldb, b_inner ? o.k : o.n);
    size_t tiles =
        (size_t)blocks_for((size_t)o.m, 128) * blocks_for((size_t)o.n, 64) * (size_t)chunks;
    if (!whole) launch<64, 64, 32, 32, a_inner, b_inner, false>(o, to, chunk, chunks);
    else if (tiles < 64) launch<32, 32, 16, 16, a_inner, b_inner, true>(o, to, chunk, chunks);
    else if (tiles < 256 || o.m <= 64)
        launch<64, 64, 32, 32, a_inner, b_inner, true>(o, to, chunk, chunks);
    else launch<128, 64, 32, 32, a_inner, b_inner, true>(o, to, chunk, chunks);
}

} // namespace

void forward_product_bf16(const operands &o, const into_linear &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void forward_product_bf16(const operands &o, const into_unit &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void forward_product_bf16(const operands &o, const into_residual &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void input_product_bf16(const operands &o, const into_linear &to) {
    multiply<true, false>(o, to, o.k, 1);
}
void input_product_bf16(const operands &o, const into_product &to) {
    multiply<true, false>(o, to, o.k, 1);
}
void weight_chunks_bf16(const operands &o, const into_chunk &to, int chunk, int chunks) {
    multiply<false, false>(o, to, chunk, chunks);
}

} // namespace wf_gpu
