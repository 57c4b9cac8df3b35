/* many_rows: row sequences on many rows: products tile by tile, and the operations between them.
 *
 *   launch   independent products of one direction; blocks that read the same rows are neighbours
 *   block    128 rows by 128 columns of one product, or by 64 (use_narrow_tiles); two warpgroups
 *            of 64 rows; two blocks an SM, so that one writes its results while the other
 *            multiplies
 *   k        64 at a time through all terms, in order. The left operand is read from float
 *            memory 64 columns ahead into registers, rounded to bf16 and stored as a panel of 64
 *            rows for each warpgroup, in two stages. Weights come by cp.async two stages ahead,
 *            three stages in all; the first ones before the previous launch has ended (L3)
 *   product  wgmma m64n128k16, on sm_80 mma.sync (mma.cuh), both operands from panels
 *   results  a warp has 16 rows, as in few_rows.cu: product_ends.cuh. Its sums replace the
 *            stages in shared memory
 * Sums over k are in order, and wgmma and mma.sync round alike on an H200 (test_cuda_nodes,
 * test_cuda_field): a row has the bits that few_rows.cu gives it.
 * FLOPs 2 rows k n a product. Bytes: the left operand in float once for every tile across, from L2;
 * weights in bf16 for every 128 rows; results in float. Latency is the limit: a tile waits for its
 * loads of 64 columns of k. With nodes of 256 columns a block takes a third of few_rows.cu's time,
 * with 64 as long. docs/results/2026-11-15-cuda-bf16.md has times, and what was tried. */
#include "tensor/cuda/row_products/many_rows.cuh"
#include "tensor/cuda/row_products/product_ends.cuh"
#include "tensor/cuda/tensor_cores/mma.cuh"

#include <stddef.h>

namespace wf_gpu {
namespace {

enum {
    group_rows = 64,
    block_rows = 128,
    block_threads = 256,
    deep = 64, /* columns of k at a time */
    left_bytes = block_rows * 2 * deep,
    left_stages = 2,
    weight_stages = 3
};
template <int Columns> struct block_shape {
    enum {
        weight_bytes = Columns * 2 * deep,
        bytes = left_stages * left_bytes + weight_stages * weight_bytes
    };
    static_assert((int)bytes >= block_threads / 32 * Columns / staged_columns * staged_bytes,
                  "sums are staged in their place");
};

/* This thread's index, read anew at each use like lane_here: the sums leave no registers for
 * addresses in shared memory. */
__device__ inline int thread_here() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread & (block_threads - 1);
}

/* The next `deep` columns of k: which term, and the first column. */
struct k_place {
    int part, k;
    __device__ void advance(const row_op &s) {
        k += deep;
        if (k >= s.terms[part].k) k = 0, part++;
    }
    __device__ bool inside(const row_op &s) const { return part < s.n_terms; }
};

/* Weights of 64 columns of k for columns n .. of the product. Rows of the panel are n, or k when
 * transposed. */
template <bool transposed, int Columns>
__device__ inline void fetch_weights(uint32_t to, const row_op &s, const k_place &at, int n) {
    enum { units = transposed ? Columns / 8 : deep / 8, rows = transposed ? deep : Columns };
    if (at.inside(s)) {
        const product_term &term = s.terms[at.part];
        mma::panel panel = {to, rows};
        int thread = thread_here(), unit = thread % units;
        int first = (transposed ? n : at.k) + 8 * unit;
        bool inside = first < term.ld;
#pragma unroll
        for (int i = 0; i < rows * units / block_threads; i++) {
            int local = thread / units + i * (block_threads / units);
            int row = (transposed ? at.k : n) + local;
            bool there = inside && row < (transposed ? term.k : s.cols);
            const __nv_bfloat16 *from = term.w + (there ? place_of(row, term.ld) + first : 0);
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(panel.at(local, unit)),
                "l"(from), "r"(there ? 16 : 0)
                : "memory");
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* 128 rows of 64 columns of k of the left operand. A thread has four columns of every 16th row. */
struct left_tile {
    enum { each = block_rows * deep / 4 / block_threads, down = block_rows / each };
    float4 held[each];
    __device__ void fetch(const row_op &s, const k_place &at, int first, int last) {
        if (!at.inside(s)) return;
        const product_term &term = s.terms[at.part];
        int thread = thread_here(), col = at.k + thread % 16 * 4, row = first + thread / 16;
        bool there = col < whole16(term.k);
#pragma unroll
        for (int i = 0; i < each; i++) {
            held[i] = make_float4(0, 0, 0, 0);
            if (there)
                held[i] = read4(term.x + place_of(min(row + down * i, last), term.ldx) + col);
        }
    }
    __device__ void store(uint32_t to) const {
        int thread = thread_here(), quad = thread % 16, row = thread / 16;
#pragma unroll
        for (int i = 0; i < each; i++) {
            int local = (row + down * i) % group_rows, group = down * i / group_rows;
            mma::panel panel = {to + (uint32_t)(group * left_bytes / 2), group_rows};
            *shared_at<uint2>(panel.at(local, quad / 2) + (uint32_t)(quad % 2 * 8)) =
                make_uint2(bf16_pair(held[i].x, held[i].y), bf16_pair(held[i].z, held[i].w));
        }
    }
};

/* acc = the tile's sums. Shared memory is free when it returns. */
template <bool transposed, int Columns>
__device__ __forceinline__ void multiply(float (&acc)[Columns / 8][4], const row_op &s,
                                         uint32_t shared, int first, int last, int n) {
    enum { weight_bytes = block_shape<Columns>::weight_bytes };
    uint32_t weights = shared + left_stages * left_bytes;
    int group = (int)threadIdx.x / 128, row0 = (int)threadIdx.x % 128 / 32 * 16;
    k_place here = {0, 0}, ahead = {0, 0};
    for (int k = 0; k < weight_stages - 1; k++) {
        fetch_weights<transposed, Columns>(weights + (uint32_t)(k * weight_bytes), s, ahead, n);
        if (ahead.inside(s)) ahead.advance(s);
    }
    wait_for_previous(); /* L3 allows fetching weights before this */
    left_tile left;
    left.fetch(s, here, first, last);
    mma::clear(acc);
    int stage = 0, side = 0;
#pragma unroll 1
    while (here.inside(s)) {
        uint32_t tile = shared + (uint32_t)(side * left_bytes);
        left.store(tile);
        here.advance(s);
        left.fetch(s, here, first, last);
        asm volatile("cp.async.wait_group %0;" ::"n"(weight_stages - 2) : "memory");
        mma::publish();
        mma::wait<true>();
        __syncthreads(); /* these operands have arrived, the last ones have been used */
        int free = stage == 0 ? weight_stages - 1 : stage - 1;
        fetch_weights<transposed, Columns>(weights + (uint32_t)(free * weight_bytes), s, ahead, n);
        if (ahead.inside(s)) ahead.advance(s);
        mma::panel x = {tile + (uint32_t)(group * left_bytes / 2), group_rows};
        mma::panel w = {weights + (uint32_t)(stage * weight_bytes), transposed ? deep : Columns};
        mma::begin<true>();
        if (transposed) mma::tile_backward_mma<true, deep / 16>(acc, x, row0, 0, w, 0, 0, false);
        else mma::tile_forward_mma<true, deep / 16>(acc, x, row0, 0, w, 0, 0, false);
        mma::commit<true>();
        stage = stage + 1 == weight_stages ? 0 : stage + 1;
        side ^= 1;
    }
    mma::wait<true>();
    mma::settle(acc);
    __syncthreads();
}

/* Writes the results of a warp's rows from its staged sums. */
template <bool transposed, bool aligned, int Columns>
__device__ __forceinline__ void finish_tile(const row_op &s, warp_rows v, int n) {
    product_rows known;
    if (!transposed) known.look<aligned>(s, v, n);
#pragma unroll 1
    for (int strip = 0; strip < Columns / staged_columns; strip++, v.staged += staged_bytes) {
        if (n + staged_columns * strip >= s.cols) break;
        if (transposed) finish_backward(s, v, n, strip, s.cols);
        else finish_forward<aligned>(s, v, known, n, strip, s.cols);
    }
}

template <bool transposed, int Columns>
__global__ void __launch_bounds__(block_threads, 2)
    products_kernel(const __grid_constant__ row_sequence c, int across) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ row_op s; /* the product of this block */
    int index = 0, n = (int)blockIdx.x % across * Columns;
    int first = (int)blockIdx.x / across * block_rows;
    for (int width; index + 1 < c.count; index++, n -= width) {
        width = (c.ops[index].cols + Columns - 1) / Columns * Columns;
        if (n < width) break;
    }
    for (int at = (int)threadIdx.x; at < (int)(sizeof(row_op) / 4); at += block_threads)
        ((uint32_t *)&s)[at] = ((const uint32_t *)&c.ops[index])[at];
    __syncthreads();
    uint32_t base = mma::shared_address(shared);
    float acc[Columns / 8][4];
    multiply<transposed, Columns>(acc, s, base, first, c.rows - 1, n);
    int warp = (int)threadIdx.x / 32;
    uint32_t staged = base + (uint32_t)(warp * (Columns / staged_columns) * staged_bytes);
#pragma unroll
    for (int strip = 0; strip < Columns / staged_columns; strip++)
        stage_columns(acc, staged + (uint32_t)(strip * staged_bytes), strip);
    __syncwarp();
    warp_rows v = {first + sequence_rows * warp, c.rows, 0, 1, 0, staged};
    if (v.first >= c.rows) return;
    if (transposed) finish_tile<true, true, Columns>(s, v, n);
    else if (s.aligned) finish_tile<false, true, Columns>(s, v, n);
    else finish_tile<false, false, Columns>(s, v, n);
}

/* Tiles across all products of a launch. */
int tiles_across(const row_sequence &c, int columns) {
    int tiles = 0;
    for (int k = 0; k < c.count; k++)
        tiles += (int)blocks_for((size_t)c.ops[k].cols, (size_t)columns);
    return tiles;
}

template <bool transposed, int Columns> void launch(const row_sequence &c) {
    enum { bytes = block_shape<Columns>::bytes };
    int across = tiles_across(c, Columns);
    unsigned down = blocks_for((size_t)c.rows, block_rows);
    start_kernel(products_kernel<transposed, Columns>, down * (unsigned)across, block_threads,
                 bytes, c, across);
}

/* Narrow tiles are used where wide ones would be half empty, or too few for all multiprocessors. */
bool use_narrow_tiles(const row_sequence &c) {
    int wide = tiles_across(c, 128), down = (int)blocks_for((size_t)c.rows, block_rows);
    return tiles_across(c, 64) < 2 * wide || down * wide < processor_count();
}

/* --- operations other than products ----------------------------------------------------------- */
/* Four warps take 16 rows. */
enum { row_warps = 4 };
__global__ void __launch_bounds__(32 * row_warps, 5)
    row_ops_kernel(const __grid_constant__ row_sequence argument) {
    __shared__ row_sequence c;
    int words = (int)((offsetof(row_sequence, ops) + (size_t)argument.count * sizeof(row_op)) /
                      sizeof(uint32_t));
    for (int at = (int)threadIdx.x; at < words; at += 32 * row_warps)
        ((uint32_t *)&c)[at] = ((const uint32_t *)&argument)[at];
    wait_for_previous();
    int first = (int)blockIdx.x * sequence_rows;
    warp_rows v = {first, argument.rows, (int)threadIdx.x / 32, row_warps, 0, 0};
    for (int k = 0; k < argument.count; k++) {
        __syncthreads();
        run_row_op(c.ops[k], v);
    }
}

} // namespace

void start_products(const row_sequence &c) {
    bool transposed = c.ops[0].transposed;
    if (use_narrow_tiles(c)) transposed ? launch<true, 64>(c) : launch<false, 64>(c);
    else transposed ? launch<true, 128>(c) : launch<false, 128>(c);
}

void start_row_ops(const row_sequence &c) {
    start_kernel(row_ops_kernel, blocks_for((size_t)c.rows, sequence_rows), 32 * row_warps, 0, c);
}

} // namespace wf_gpu
