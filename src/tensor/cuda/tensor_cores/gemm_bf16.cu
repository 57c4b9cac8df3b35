/* gemm_bf16: matrix products on the tensor cores: float in memory, rounded to bf16 on the way into shared memory,
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
#include "tensor/cuda/tensor_cores/fragments.cuh"
#include "tensor/cuda/tensor_cores/gemm_bf16.cuh"

namespace wf_gpu {

namespace {

template <int BM, int BN, int WM, int WN, bool a_inner, bool b_inner, bool whole, class To>
__global__ void __launch_bounds__(BM / WM * BN / WN * 32)
    gemm_kernel(operands o, To to, int chunk) {
    follow();
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
        k += tile_k;
        if (k < k_end) {
            a.fetch(o.a, o.lda, first_m, o.m, k, k_end);
            b.fetch(o.b, o.ldb, first_n, o.n, k, k_end);
        }
#pragma unroll
        for (int kk = 0; kk < tile_k; kk += 16) {
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
    start_kernel(gemm_kernel<BM, BN, WM, WN, a_inner, b_inner, whole, To>, grid,
                 BM / WM * BN / WN * 32, 0, o, to, chunk);
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
