/* gemm: matrix products in float on the ordinary cores.
 *
 *   block   a tile (BM, BN) of the output; k in steps of 8 through two buffers of shared memory, the next step's
 *           elements on their way into registers while this one's are multiplied
 *   thread  TM x TN outputs in groups of 4 x 4: per k, (TM + TN) / 4 loads of 16 bytes for TM * TN multiply-adds
 * Both operands lie in shared memory as [k][.], so the three forms differ only in how a tile is fetched. An element's sum
 * runs over k in order in every tile shape, so a row's bits do not depend on its neighbours (C2). What becomes of the sum
 * (bias, tables, unit, gate) is done on the registers.
 * Weight gradients have few outputs and many rows: the rows are cut into chunks, by shape alone, and the chunks' partial
 * sums are added in order.
 * Limit: 2 FLOP x 128 lanes a clock on each SM, 67 TFLOP/s on an H200 (data sheet). Bytes: each operand once per tile.
 * Measured, H200, ncu, 324,096 rows, n = 128, unit and tables behind it: about 31 TFLOP/s at k = 128, 21 at k = 64. What
 * holds it back: waits for the next step's loads, with 12 to 16 warps on an SM, and the epilogue at so small a k. */
#include "tensor/cuda/runtime/runtime.cuh"
#include "tensor/cuda/tensor_cores/gemm_bf16.cuh"

namespace wf_gpu {
namespace {

enum { skew = 4, most_parts = 512 };

/* --- tiles ------------------------------------------------------------------------------------------------- */
/* A tile of `width` rows of a matrix whose k runs along its rows (inner) or down its columns. */
template <int width, int BK, int threads, bool inner, bool whole> struct tile {
    enum { loads = width * BK / 4 / threads };
    float held[loads][4];

    __device__ void fetch(const float *from, int ld, int first, int count, int k, int k_end) {
        fetch_tile<width, BK, threads, inner, whole>(held, from, ld, first, count, k, k_end);
    }
    __device__ void store(float (*to)[width + skew]) const {
#pragma unroll
        for (int i = 0; i < loads; i++) {
            int at = (int)threadIdx.x + i * threads;
            if (inner) {
#pragma unroll
                for (int j = 0; j < 4; j++) to[at % (BK / 4) * 4 + j][at / (BK / 4)] = held[i][j];
            } else {
                put4(&to[at / (width / 4)][at % (width / 4) * 4], held[i]);
            }
        }
    }
};

template <int BM, int BN, int BK, int TM, int TN, bool a_inner, bool b_inner, bool whole, class To>
__global__ void __launch_bounds__(BM / TM * BN / TN, 512 / (BM / TM * BN / TN))
    gemm_kernel(operands o, To to, int chunk) {
    follow();
    enum { threads = BM / TM * BN / TN };
    __shared__ __align__(16) float as[2][BK][BM + skew], bs[2][BK][BN + skew];
    int first_m = (int)blockIdx.x * BM, first_n = (int)blockIdx.y * BN;
    int k = (int)blockIdx.z * chunk, k_end = min(o.k, k + chunk);
    int across = (int)threadIdx.x % (BN / TN), down = (int)threadIdx.x / (BN / TN);
    tile<BM, BK, threads, a_inner, whole> a;
    tile<BN, BK, threads, b_inner, whole> b;
    float sum[TM][TN] = {};
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
        for (int kk = 0; kk < BK; kk++) {
            float x[TM], y[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4)
                *(float4 *)&x[i] =
                    *(const float4 *)&as[buffer][kk][i / 4 * (BM / TM * 4) + down * 4];
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *(float4 *)&y[j] =
                    *(const float4 *)&bs[buffer][kk][j / 4 * (BN / TN * 4) + across * 4];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        if (k < k_end) {
            a.store(as[buffer ^ 1]);
            b.store(bs[buffer ^ 1]);
        }
        __syncthreads();
    }
    int width = (o.n + WF_PAD - 1) / WF_PAD * WF_PAD;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        int row = first_m + i / 4 * (BM / TM * 4) + down * 4 + i % 4;
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            int col = first_n + j / 4 * (BN / TN * 4) + across * 4;
            float x[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
            if (row < o.m && col < width) finish(to, row, col, o.n, x);
        }
    }
}

template <int BM, int BN, int BK, int TM, int TN, bool a_inner, bool b_inner, bool whole, class To>
void launch(const operands &o, const To &to, int chunk, int chunks) {
    dim3 grid(blocks_for((size_t)o.m, BM), blocks_for((size_t)o.n, BN), (unsigned)chunks);
    start_kernel(gemm_kernel<BM, BN, BK, TM, TN, a_inner, b_inner, whole, To>, grid,
                 BM / TM * BN / TN, 0, o, to, chunk);
}

/* The largest tile that still gives every SM something to do. */
template <bool a_inner, bool b_inner, class To>
void multiply(const operands &o, const To &to, int chunk, int chunks) {
    if (o.m <= 0 || o.n <= 0) return;
    bool whole =
        in_fours(o.a, o.lda, a_inner ? o.k : o.m) && in_fours(o.b, o.ldb, b_inner ? o.k : o.n);
    size_t tiles =
        (size_t)blocks_for((size_t)o.m, 128) * blocks_for((size_t)o.n, 128) * (size_t)chunks;
    if (tiles < 64 || o.m < 64)
        launch<32, 32, 32, 4, 4, a_inner, b_inner, false>(o, to, chunk, chunks);
    else if (!whole) launch<128, 64, 8, 8, 8, a_inner, b_inner, false>(o, to, chunk, chunks);
    else if (o.n <= 64 || tiles < 256)
        launch<128, 64, 8, 8, 8, a_inner, b_inner, true>(o, to, chunk, chunks);
    else launch<128, 128, 8, 8, 8, a_inner, b_inner, true>(o, to, chunk, chunks);
}

/* 32 neighbouring outputs a block; 8 warps add an eighth of the chunks each, then the eighths in order. */
__global__ void add_chunks(float *w, const float *partial, int m, int n, int ld, int chunks) {
    follow();
    __shared__ float shares[8][32];
    int col = (int)(blockIdx.x * 32 + threadIdx.x), row = (int)blockIdx.y;
    int each = (chunks + 7) / 8, first = (int)threadIdx.y * each, last = min(first + each, chunks);
    float sum = 0;
    if (col < n)
#pragma unroll 4
        for (int s = first; s < last; s++) sum += partial[((size_t)s * m + row) * ld + col];
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= n) return;
    for (int s = 1; s < 8; s++) sum += shares[s][threadIdx.x];
    w[(size_t)row * n + col] += sum;
}

} // namespace

void forward_product(const operands &o, const into_linear &to) {
    if (here().bf16_products) forward_product_bf16(o, to);
    else multiply<true, true>(o, to, o.k, 1);
}
void forward_product(const operands &o, const into_unit &to) {
    if (here().bf16_products) forward_product_bf16(o, to);
    else multiply<true, true>(o, to, o.k, 1);
}
void forward_product(const operands &o, const into_residual &to) {
    if (here().bf16_products) forward_product_bf16(o, to);
    else multiply<true, true>(o, to, o.k, 1);
}
void input_product(const operands &o, const into_linear &to) {
    if (here().bf16_products) input_product_bf16(o, to);
    else multiply<true, false>(o, to, o.k, 1);
}
void input_product(const operands &o, const into_product &to) {
    if (here().bf16_products) input_product_bf16(o, to);
    else multiply<true, false>(o, to, o.k, 1);
}

bool weight_product(float *w, const float *a, int lda, const float *b, int ldb, int rows, int m,
                    int n, wf_arena *arena) {
    if (rows == 0) return true;
    /* Chunks of 256 to 4,096 rows, so many that about 512 tiles result. */
    size_t tiles = (size_t)blocks_for((size_t)m, 128) * blocks_for((size_t)n, 128);
    size_t chunk = (size_t)rows * tiles / most_parts / 256 * 256;
    if (chunk < 256) chunk = 256;
    if (chunk > 4096) chunk = 4096;
    int chunks = (int)blocks_for((size_t)rows, chunk), ld = wf_pad(n);
    wf_arena_mark mark = wf_arena_here(arena);
    float *partial = scratch(arena, (size_t)chunks * (size_t)m * (size_t)ld);
    if (partial == NULL) return false;
    operands o = {a, lda, b, ldb, m, n, rows};
    into_chunk to = {partial, ld, m};
    if (here().bf16_products) weight_chunks_bf16(o, to, (int)chunk, chunks);
    else if (m <= 64 && n > 64 && in_fours(a, lda, m) && in_fours(b, ldb, n))
        /* half of a tile of 128 rows would be idle */
        launch<64, 128, 8, 8, 8, false, false, true>(o, to, (int)chunk, chunks);
    else multiply<false, false>(o, to, (int)chunk, chunks);
    start_kernel(add_chunks, dim3(blocks_for((size_t)n, 32), (unsigned)m), dim3(32, 8), 0, w,
                 partial, m, n, ld, chunks);
    wf_arena_rewind(arena, mark);
    return true;
}

} // namespace wf_gpu
