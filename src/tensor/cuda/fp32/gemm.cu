/* gemm: products of float matrices, on the ordinary cores or, rounded to bf16, on the tensor cores.
 *
 *   block   a tile of the output. k goes through two buffers of shared memory: the elements of
 *           the next step are loaded into registers while those of this step are multiplied
 *   float   a thread has TM x TN outputs in groups of 4 x 4: (TM + TN) / 4 loads of 16 bytes for
 *           TM * TN multiply-adds. Both operands lie in shared memory as [k][.]
 *   bf16    elements are rounded on the way into shared memory, where a tile lies as it lies in
 *           memory; ldmatrix transposes what needs it. A warp has WM x WN outputs, by mma.sync
 *           m16n8k16
 * The three forms of a product (matrix_ops.cuh) differ only in how tiles are fetched. The sum of an
 * element runs over k in order in every tile shape, so a row's bits do not depend on its neighbours
 * (C2). Bias, tables, activation and gate are applied to the sums in registers (epilogue.cuh).
 * Weight gradients have few outputs and many rows. The rows are cut into slices, by the shape
 * alone, and the partial sums of the slices are added in order.
 * Bytes: each operand once per tile. In float an H200 reaches 31 of 67 TFLOP/s at k = 128 and 21 at
 * k = 64; waits for the next step's loads and the epilogue hold it back. */
#include "tensor/cuda/runtime/runtime.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"

namespace wf_gpu {
namespace {

/* --- a block on the ordinary cores ------------------------------------------------------------ */
template <int BM, int BN, int BK, int TM, int TN> struct float_block {
    enum {
        rows = BM,
        columns = BN,
        step = BK,
        threads = BM / TM * BN / TN,
        blocks_each = 512 / threads, /* on a multiprocessor */
        skew = 4
    };
    /* `width` rows of a matrix by BK of k, which runs along its rows (inner) or down its
     * columns. */
    template <int width, bool inner, bool whole> struct operand {
        typedef float memory[BK][width + skew];
        enum { loads = width * BK / 4 / threads };
        float held[loads][4];

        __device__ void fetch(const float *from, int ld, int first, int count, int k, int k_end) {
            fetch_tile<width, BK, threads, inner, whole>(held, from, ld, first, count, k, k_end);
        }
        __device__ void store(memory &to) const {
#pragma unroll
            for (int i = 0; i < loads; i++) {
                int at = (int)threadIdx.x + i * threads;
                if (inner) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        to[at % (BK / 4) * 4 + j][at / (BK / 4)] = held[i][j];
                } else {
                    put4(&to[at / (width / 4)][at % (width / 4) * 4], held[i]);
                }
            }
        }
    };

    typedef float sums[TM][TN];
    int across = (int)threadIdx.x % (BN / TN), down = (int)threadIdx.x / (BN / TN);

    template <class A, class B>
    __device__ void multiply(sums &sum, const typename A::memory &as,
                             const typename B::memory &bs) const {
#pragma unroll
        for (int kk = 0; kk < BK; kk++) {
            float x[TM], y[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4)
                *(float4 *)&x[i] = *(const float4 *)&as[kk][i / 4 * (BM / TM * 4) + down * 4];
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *(float4 *)&y[j] = *(const float4 *)&bs[kk][j / 4 * (BN / TN * 4) + across * 4];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
    }
    /* Four neighbouring sums: group j of row i of this thread. */
    enum { n_rows = TM, n_groups = TN / 4 };
    __device__ int row(int i) const { return i / 4 * (BM / TM * 4) + down * 4 + i % 4; }
    __device__ int column(int j) const { return j * (BN / TN * 4) + across * 4; }
    __device__ static void four(const sums &sum, int i, int j, float (&x)[4]) {
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] = sum[i][4 * j + c];
    }
};

/* --- a block on the tensor cores -------------------------------------------------------------- */
template <int BM, int BN, int WM, int WN> struct bf16_block {
    enum {
        rows = BM,
        columns = BN,
        step = tile_k,
        threads = BM / WM * BN / WN * 32,
        blocks_each = 0, /* as many as fit */
        MT = WM / 16,
        NT = WN / 8
    };
    template <int width, bool inner, bool whole>
    struct operand : tile<width, threads, inner, whole> {
        typedef __nv_bfloat16 memory[tile<width, threads, inner, whole>::size];
    };

    typedef float sums[MT][NT][4];
    int lane = (int)threadIdx.x % 32;
    int down = (int)threadIdx.x / 32 % (BM / WM) * WM,
        across = (int)threadIdx.x / 32 / (BM / WM) * WN;

    template <class A, class B>
    __device__ void multiply(sums &sum, const typename A::memory &as,
                             const typename B::memory &bs) const {
#pragma unroll
        for (int kk = 0; kk < tile_k; kk += 16) {
            uint32_t x[MT][4], y[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; i++) A::read_a(x[i], as, down + 16 * i, kk, lane);
#pragma unroll
            for (int j = 0; j < NT / 2; j++) B::read_b(y[j], bs, across + 16 * j, kk, lane);
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    multiply_add(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
    }
    /* Two lanes of a quad exchange halves of their accumulators, so that each has four neighbouring
     * sums. */
    enum { n_rows = MT, n_groups = NT };
    __device__ int row(int i) const { return down + 16 * i + lane / 4 + lane % 2 * 8; }
    __device__ int column(int j) const { return across + 8 * j + lane % 4 / 2 * 4; }
    __device__ void four(const sums &sum, int i, int j, float (&x)[4]) const {
        gather_row(sum[i][j], lane, x);
    }
};

/* --- the kernel ------------------------------------------------------------------------------- */
/* blockIdx.z: a slice of k. */
template <class Block, bool a_inner, bool b_inner, bool whole, class To>
__global__ void __launch_bounds__(Block::threads, Block::blocks_each)
    gemm_kernel(operands o, To to, int slice) {
    wait_for_previous();
    typedef typename Block::template operand<Block::rows, a_inner, whole> operand_a;
    typedef typename Block::template operand<Block::columns, b_inner, whole> operand_b;
    __shared__ __align__(16) typename operand_a::memory as[2];
    __shared__ __align__(16) typename operand_b::memory bs[2];
    int first_m = (int)blockIdx.x * Block::rows, first_n = (int)blockIdx.y * Block::columns;
    int k = (int)blockIdx.z * slice, k_end = min(o.k, k + slice);
    Block block;
    typename Block::sums sum = {};
    operand_a a;
    operand_b b;
    a.fetch(o.a, o.lda, first_m, o.m, k, k_end);
    b.fetch(o.b, o.ldb, first_n, o.n, k, k_end);
    a.store(as[0]);
    b.store(bs[0]);
    __syncthreads();
    for (int buffer = 0; k < k_end; buffer ^= 1) {
        k += Block::step;
        if (k < k_end) {
            a.fetch(o.a, o.lda, first_m, o.m, k, k_end);
            b.fetch(o.b, o.ldb, first_n, o.n, k, k_end);
        }
        block.template multiply<operand_a, operand_b>(sum, as[buffer], bs[buffer]);
        if (k < k_end) {
            a.store(as[buffer ^ 1]);
            b.store(bs[buffer ^ 1]);
        }
        __syncthreads();
    }
    int width = (o.n + WF_PAD - 1) / WF_PAD * WF_PAD;
#pragma unroll
    for (int i = 0; i < Block::n_rows; i++) {
        int row = first_m + block.row(i);
#pragma unroll
        for (int j = 0; j < Block::n_groups; j++) {
            int col = first_n + block.column(j);
            float x[4];
            block.four(sum, i, j, x);
            if (row < o.m && col < width) finish(to, row, col, o.n, x);
        }
    }
}

/* --- launches --------------------------------------------------------------------------------- */
template <class Block, bool a_inner, bool b_inner, bool whole, class To>
void launch(const operands &o, const To &to, int slice, int slices) {
    dim3 grid(blocks_for((size_t)o.m, Block::rows), blocks_for((size_t)o.n, Block::columns),
              (unsigned)slices);
    start_kernel(gemm_kernel<Block, a_inner, b_inner, whole, To>, grid, Block::threads, 0, o, to,
                 slice);
}

/* The largest tile that still gives every SM something to do. whole: all loads are of 16 bytes. */
template <bool a_inner, bool b_inner, class To>
void multiply_float(const operands &o, const To &to, int slice, int slices, bool whole) {
    typedef float_block<32, 32, 32, 4, 4> small;
    typedef float_block<128, 64, 8, 8, 8> narrow;
    typedef float_block<128, 128, 8, 8, 8> large;
    size_t tiles =
        (size_t)blocks_for((size_t)o.m, 128) * blocks_for((size_t)o.n, 128) * (size_t)slices;
    if (tiles < 64 || o.m < 64) launch<small, a_inner, b_inner, false>(o, to, slice, slices);
    else if (!whole) launch<narrow, a_inner, b_inner, false>(o, to, slice, slices);
    else if (o.n <= 64 || tiles < 256) launch<narrow, a_inner, b_inner, true>(o, to, slice, slices);
    else launch<large, a_inner, b_inner, true>(o, to, slice, slices);
}
template <bool a_inner, bool b_inner, class To>
void multiply_bf16(const operands &o, const To &to, int slice, int slices, bool whole) {
    typedef bf16_block<32, 32, 16, 16> small;
    typedef bf16_block<64, 64, 32, 32> middle;
    typedef bf16_block<128, 64, 32, 32> large;
    size_t tiles =
        (size_t)blocks_for((size_t)o.m, 128) * blocks_for((size_t)o.n, 64) * (size_t)slices;
    if (!whole) launch<middle, a_inner, b_inner, false>(o, to, slice, slices);
    else if (tiles < 64) launch<small, a_inner, b_inner, true>(o, to, slice, slices);
    else if (tiles < 256 || o.m <= 64) launch<middle, a_inner, b_inner, true>(o, to, slice, slices);
    else launch<large, a_inner, b_inner, true>(o, to, slice, slices);
}

template <bool a_inner, bool b_inner, class To>
void multiply(const operands &o, const To &to, int slice, int slices) {
    if (o.m <= 0 || o.n <= 0) return;
    bool whole =
        in_fours(o.a, o.lda, a_inner ? o.k : o.m) && in_fours(o.b, o.ldb, b_inner ? o.k : o.n);
    if (here().bf16_products) multiply_bf16<a_inner, b_inner>(o, to, slice, slices, whole);
    else multiply_float<a_inner, b_inner>(o, to, slice, slices, whole);
}

/* 32 neighbouring outputs a block; 8 warps add an eighth of the slices each, then the eighths in
 * order. */
__global__ void add_slices(float *w, const float *partial, int m, int n, int ld, int slices) {
    wait_for_previous();
    __shared__ float eighths[8][32];
    int col = (int)(blockIdx.x * 32 + threadIdx.x), row = (int)blockIdx.y;
    int each = (slices + 7) / 8, first = (int)threadIdx.y * each, last = min(first + each, slices);
    float sum = 0;
    if (col < n)
#pragma unroll 4
        for (int s = first; s < last; s++) sum += partial[((size_t)s * m + row) * ld + col];
    eighths[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= n) return;
    for (int s = 1; s < 8; s++) sum += eighths[s][threadIdx.x];
    w[(size_t)row * n + col] += sum;
}

} // namespace

void forward_product(const operands &o, const into_linear &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void forward_product(const operands &o, const into_activation &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void forward_product(const operands &o, const into_residual &to) {
    multiply<true, true>(o, to, o.k, 1);
}
void input_product(const operands &o, const into_linear &to) {
    multiply<true, false>(o, to, o.k, 1);
}
void input_product(const operands &o, const into_product &to) {
    multiply<true, false>(o, to, o.k, 1);
}

bool weight_product(float *w, const float *a, int lda, const float *b, int ldb, int rows, int m,
                    int n, wf_arena *arena) {
    enum { most_blocks = 512 };
    if (rows == 0) return true;
    /* Slices of 256 to 4,096 rows, so many that about 512 tiles result. */
    size_t tiles = (size_t)blocks_for((size_t)m, 128) * blocks_for((size_t)n, 128);
    size_t slice = (size_t)rows * tiles / most_blocks / 256 * 256;
    if (slice < 256) slice = 256;
    if (slice > 4096) slice = 4096;
    int slices = (int)blocks_for((size_t)rows, slice), ld = wf_pad(n);
    wf_arena_mark mark = wf_arena_here(arena);
    float *partial = scratch(arena, (size_t)slices * (size_t)m * (size_t)ld);
    if (partial == NULL) return false;
    operands o = {a, lda, b, ldb, m, n, rows};
    into_slice to = {partial, ld, m};
    bool low = m <= 64 && n > 64 && in_fours(a, lda, m) && in_fours(b, ldb, n);
    if (low && !here().bf16_products) /* half of a tile of 128 rows would be idle */
        launch<float_block<64, 128, 8, 8, 8>, false, false, true>(o, to, (int)slice, slices);
    else multiply<false, false>(o, to, (int)slice, slices);
    start_kernel(add_slices, dim3(blocks_for((size_t)n, 32), (unsigned)m), dim3(32, 8), 0, w,
                 partial, m, n, ld, slices);
    wf_arena_rewind(arena, mark);
    return true;
}

} // namespace wf_gpu
