/* muon_cuda: the products of Newton-Schulz.
 *
 *     A = s^2 Y'Y     Q = b A + c A A     Z = s (a Y + Y Q)
 *     s = 1 / (||Y|| + 1e-7) in the first of five iterations, then 1
 *   inside  one CTA of 8 warps per matrix, r = 64 or 128: Y, A and Q in shared memory (bf16,
 *           rows 16 bytes longer than a power of two), mma.sync with float sums. A and Q are
 *           symmetric, so every operand is read along its rows except in the first product. Y is
 *           replaced in strips of 16 rows. Results are rounded to bf16, as in the publication of
 *           Muon
 *   fast    for larger matrices: one CTA of 128 threads per 64 x 64 tile of a product; 15
 *           launches. Operand tiles of bf16 in shared memory, depth 64 at a time, each warp 32 x
 *           32 on tensor cores (wmma 16x16x16)
 *   float   the same tiles, 32 numbers a thread, depth 16 at a time: for comparisons with the CPU
 * Cost: 5 (4 n r^2 + 2 r^3) FLOP a matrix: 24 MFLOP for (256, 64), 189 MFLOP for (512, 128). Reads
 * and writes 2 n r bf16. `inside` is one wave whose warps wait for operands: 13 % of the bf16 rate
 * of an H200 at width 64, 23 % at 128; 15 launches take seven and three times as long. */
#include "nn/cuda/muon_cuda.cuh"

#include "tensor/cuda/tensor_cores/mma.cuh"

#include <mma.h>

namespace wf_muon {
namespace {

enum { threads = 128, fast_depth = 64, float_depth = 16, skew = 8 };
enum product { gram, poly, next };

/* 1 / (||Y|| + 1e-7): every thread adds the same few numbers in the same order. */
__device__ float first_scale(const work &w, const matrix &m) {
    double sum = 0;
    for (int k = 0; k < m.parts; k++) sum += w.squares[m.first_part + k];
    return (float)(1 / (sqrt(sum) + 1e-7));
}

/* What a product reads and writes: C (., r) at tile (i, j) = alpha L R + beta D; L is read as
 * L'[k][i] unless `next`. */
template <class T> struct operand {
    const T *left, *right, *d;
    T *c;
    int depth, ld;
    float alpha, beta;
};

template <class T, int kind>
__device__ operand<T> operands(const work &w, const matrix &m, bool first, bool flipped) {
    const T *y = (const T *)(flipped ? w.z : w.y) + m.y;
    T *z = (T *)(flipped ? w.y : w.z) + m.y;
    T *a = (T *)w.a + m.a, *q = (T *)w.q + m.a;
    float s = first && kind != poly ? first_scale(w, m) : 1;
    if (kind == gram) return {y, y, (const T *)nullptr, a, m.n, m.r, s * s, 0};
    if (kind == poly) return {a, a, a, q, m.r, m.r, 2.0315f, -4.7750f};
    return {y, q, y, z, m.r, m.r, s, s * 3.4445f};
}

template <int kind>
__global__ void __launch_bounds__(threads) fast_product(work w, bool first, bool flipped) {
    namespace mma = nvcuda::wmma;
    using bf16 = __nv_bfloat16;
    constexpr bool across = kind != next; /* the left tile is stored as [k][i] */
    constexpr int ld = tile + skew;
    __shared__ __align__(32) bf16 left[fast_depth * ld], right[fast_depth * ld];
    __shared__ __align__(32) float sum[tile * (tile + 4)];
    if (*w.go == 0) return;
    tile_place at = kind == next ? w.tall_tiles[blockIdx.x] : w.square_tiles[blockIdx.x];
    matrix m = w.matrices[at.matrix];
    operand<bf16> o = operands<bf16, kind>(w, m, first, flipped);
    int warp = threadIdx.x / 32, i0 = warp / 2 * 32, j0 = warp % 2 * 32;
    mma::fragment<mma::accumulator, 16, 16, 16, float> acc[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) mma::fill_fragment(acc[i][j], 0.0f);
    for (int k0 = 0; k0 < o.depth; k0 += fast_depth) {
        __syncthreads();
        for (int v = threadIdx.x; v < tile * fast_depth / 8; v += threads) {
            int row = v / (tile / 8), column = v % (tile / 8) * 8;
            const bf16 *from = across ? o.left + (size_t)(k0 + row) * o.ld + at.i + column
                                      : o.left + (size_t)(at.i + row) * o.ld + k0 + column;
            *(uint4 *)(left + row * ld + column) = *(const uint4 *)from;
            *(uint4 *)(right + row * ld + column) =
                *(const uint4 *)(o.right + (size_t)(k0 + row) * o.ld + at.j + column);
        }
        __syncthreads();
        for (int k = 0; k < fast_depth; k += 16) {
            mma::fragment<mma::matrix_b, 16, 16, 16, bf16, mma::row_major> b[2];
            for (int j = 0; j < 2; j++)
                mma::load_matrix_sync(b[j], right + k * ld + j0 + 16 * j, ld);
            for (int i = 0; i < 2; i++) {
                if constexpr (across) {
                    mma::fragment<mma::matrix_a, 16, 16, 16, bf16, mma::col_major> a;
                    mma::load_matrix_sync(a, left + k * ld + i0 + 16 * i, ld);
                    for (int j = 0; j < 2; j++) mma::mma_sync(acc[i][j], a, b[j], acc[i][j]);
                } else {
                    mma::fragment<mma::matrix_a, 16, 16, 16, bf16, mma::row_major> a;
                    mma::load_matrix_sync(a, left + (i0 + 16 * i) * ld + k, ld);
                    for (int j = 0; j < 2; j++) mma::mma_sync(acc[i][j], a, b[j], acc[i][j]);
                }
            }
        }
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            mma::store_matrix_sync(sum + (i0 + 16 * i) * (tile + 4) + j0 + 16 * j, acc[i][j],
                                   tile + 4, mma::mem_row_major);
    __syncthreads();
    for (int v = threadIdx.x; v < tile * tile / 2; v += threads) {
        int row = v / (tile / 2), column = v % (tile / 2) * 2;
        size_t to = (size_t)(at.i + row) * o.ld + at.j + column;
        float x = o.alpha * sum[row * (tile + 4) + column];
        float y = o.alpha * sum[row * (tile + 4) + column + 1];
        if (kind != gram) {
            float2 d = __bfloat1622float2(*(const __nv_bfloat162 *)(o.d + to));
            x += o.beta * d.x, y += o.beta * d.y;
        }
        *(__nv_bfloat162 *)(o.c + to) = __floats2bfloat162_rn(x, y);
    }
}

template <int kind>
__global__ void __launch_bounds__(threads) float_product(work w, bool first, bool flipped) {
    constexpr bool across = kind != next;
    __shared__ float left[float_depth][tile + 1], right[float_depth][tile];
    if (*w.go == 0) return;
    tile_place at = kind == next ? w.tall_tiles[blockIdx.x] : w.square_tiles[blockIdx.x];
    matrix m = w.matrices[at.matrix];
    operand<float> o = operands<float, kind>(w, m, first, flipped);
    int j = threadIdx.x % 16 * 4, i = threadIdx.x / 16 * 8;
    float acc[8][4] = {};
    for (int k0 = 0; k0 < o.depth; k0 += float_depth) {
        __syncthreads();
        for (int v = threadIdx.x; v < tile * float_depth; v += threads) {
            if (across)
                left[v / tile][v % tile] = o.left[(size_t)(k0 + v / tile) * o.ld + at.i + v % tile];
            else
                left[v % float_depth][v / float_depth] =
                    o.left[(size_t)(at.i + v / float_depth) * o.ld + k0 + v % float_depth];
            right[v / tile][v % tile] = o.right[(size_t)(k0 + v / tile) * o.ld + at.j + v % tile];
        }
        __syncthreads();
        for (int k = 0; k < float_depth; k++)
            for (int y = 0; y < 8; y++)
                for (int x = 0; x < 4; x++) acc[y][x] += left[k][i + y] * right[k][j + x];
    }
    for (int y = 0; y < 8; y++)
        for (int x = 0; x < 4; x++) {
            size_t to = (size_t)(at.i + i + y) * o.ld + at.j + j + x;
            float value = o.alpha * acc[y][x];
            if (kind != gram) value += o.beta * o.d[to];
            o.c[to] = value;
        }
}

/* --- inside shared memory --------------------------------------------------------------------- */
enum { inside_threads = 256, inside_warps = inside_threads / 32, pad = 8 };

/* A matrix in shared memory, r columns. */
template <int R> struct block {
    __nv_bfloat16 *at;
    __device__ __nv_bfloat16 *place(int row, int column) const {
        return at + row * (R + pad) + column;
    }
    __device__ uint32_t address(int row, int column) const {
        return wf_gpu::mma::shared_address(place(row, column));
    }
};

/* acc (16, 8 Tiles) += left (16, depth) right; left and right give a lane's address for 16 of the
 * depth. */
template <int Tiles, bool Across, class Left, class Right>
__device__ void multiply(float (&acc)[Tiles][4], int depth, Left left, Right right) {
    for (int k = 0; k < depth; k += 16) {
        uint32_t a[4], b[4];
        if (Across) wf_gpu::mma::load_transposed(a, left(k));
        else wf_gpu::mma::load_matrices(a, left(k));
#pragma unroll
        for (int j = 0; j < Tiles; j += 2) {
            if (Across) wf_gpu::mma::load_transposed(b, right(k, 8 * j));
            else wf_gpu::mma::load_matrices(b, right(k, 8 * j));
            wf_gpu::mma::warp_mma(acc[j], a, b[0], b[1]);
            wf_gpu::mma::warp_mma(acc[j + 1], a, b[2], b[3]);
        }
    }
}

/* Calls f(row, column, x, y) for every two neighbouring accumulators. */
template <int Tiles, class F>
__device__ void each_two(const float (&acc)[Tiles][4], int row, int column, F f) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Tiles; j++) {
        int at = column + 8 * j + lane % 4 * 2;
        f(row + lane / 4, at, acc[j][0], acc[j][1]);
        f(row + lane / 4 + 8, at, acc[j][2], acc[j][3]);
    }
}

template <int R>
__device__ void put_two(const block<R> &to, int row, int column, float x, float y) {
    *(__nv_bfloat162 *)to.place(row, column) = __floats2bfloat162_rn(x, y);
}
template <int R> __device__ float2 get_two(const block<R> &from, int row, int column) {
    return __bfloat1622float2(*(const __nv_bfloat162 *)from.place(row, column));
}

/* Rows from a global array of R columns to shared memory, or back. */
template <int R, bool Out> __device__ void copy_rows(__nv_bfloat16 *global, block<R> y, int n) {
    constexpr int words = R / 8;
    for (int v = threadIdx.x; v < n * words; v += inside_threads) {
        uint4 *there = (uint4 *)(global + (size_t)v * 8);
        uint4 *here = (uint4 *)y.place(v / words, v % words * 8);
        if (Out) *there = *here;
        else *here = *there;
    }
}

template <int R>
__global__ void __launch_bounds__(inside_threads) iterate_inside(work w, const int *which) {
    extern __shared__ __align__(128) __nv_bfloat16 memory[];
    if (*w.go == 0) return;
    matrix m = w.matrices[which[blockIdx.x]];
    block<R> y = {memory}, a = {memory + m.n * (R + pad)}, q = {a.at + R * (R + pad)};
    copy_rows<R, false>((__nv_bfloat16 *)w.y + m.y, y, m.n);
    float s = first_scale(w, m);
    /* A warp owns 16 rows of the square products, and of their columns all or half. */
    constexpr int strips = R / 16, groups = inside_warps / strips, tiles = R / 8 / groups;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp % strips * 16, column = warp / strips * 8 * tiles;
    int row16 = lane % 16, half = lane / 16 * 8; /* rows 0-15, then 8 columns on */
    int row8 = lane % 8 + lane / 16 * 8,
        step8 = lane / 8 % 2 * 8; /* 8 rows, 8 columns on, 8 rows on */
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        float acc[tiles][4];
        wf_gpu::mma::clear(acc);
        multiply<tiles, true>(
            acc, m.n, [&](int k) { return y.address(k + row8, row + step8); },
            [&](int k, int j) { return y.address(k + row16, column + j + half); });
        each_two(acc, row, column, [&](int i, int j, float x0, float x1) {
            put_two(a, i, j, s * s * x0, s * s * x1);
        });
        __syncthreads();
        wf_gpu::mma::clear(acc);
        multiply<tiles, false>(
            acc, R, [&](int k) { return a.address(row + row16, k + half); },
            [&](int k, int j) { return a.address(column + j + row8, k + step8); });
        each_two(acc, row, column, [&](int i, int j, float x0, float x1) {
            float2 d = get_two(a, i, j);
            put_two(q, i, j, 2.0315f * x0 - 4.7750f * d.x, 2.0315f * x1 - 4.7750f * d.y);
        });
        __syncthreads();
        for (int strip = warp * 16; strip < m.n; strip += inside_warps * 16) {
            float sum[R / 8][4];
            wf_gpu::mma::clear(sum);
            multiply<R / 8, false>(
                sum, R, [&](int k) { return y.address(strip + row16, k + half); },
                [&](int k, int j) { return q.address(j + row8, k + step8); });
            __syncwarp(); /* all lanes have read the strip */
            each_two(sum, strip, 0, [&](int i, int j, float x0, float x1) {
                float2 d = get_two(y, i, j);
                put_two(y, i, j, s * (x0 + 3.4445f * d.x), s * (x1 + 3.4445f * d.y));
            });
        }
        s = 1;
        __syncthreads();
    }
    copy_rows<R, true>((__nv_bfloat16 *)w.z + m.y, y, m.n);
}

} // namespace

int inside_bytes(const matrix &m, int most) {
    if (m.r != 64 && m.r != 128) return 0;
    size_t bytes = (size_t)(m.n + 2 * m.r) * (size_t)(m.r + pad) * sizeof(__nv_bfloat16);
    return bytes > (size_t)most ? 0 : (int)bytes;
}

cudaError_t prepare(const work &w) {
    cudaError_t error = cudaSuccess;
    if (w.n_inside[0] > 0)
        error = cudaFuncSetAttribute(
            iterate_inside<64>, cudaFuncAttributeMaxDynamicSharedMemorySize, w.inside_bytes[0]);
    if (error == cudaSuccess && w.n_inside[1] > 0)
        error = cudaFuncSetAttribute(
            iterate_inside<128>, cudaFuncAttributeMaxDynamicSharedMemorySize, w.inside_bytes[1]);
    return error;
}

void *orthogonalise(const work &w, bool fast, cudaStream_t stream) {
    if (w.n_inside[0] > 0)
        iterate_inside<64>
            <<<w.n_inside[0], inside_threads, w.inside_bytes[0], stream>>>(w, w.inside[0]);
    if (w.n_inside[1] > 0)
        iterate_inside<128>
            <<<w.n_inside[1], inside_threads, w.inside_bytes[1], stream>>>(w, w.inside[1]);
    if (w.n_tall == 0) return w.z;
    for (int step = 0; step < steps; step++) {
        bool first = step == 0, flipped = step % 2 == 1;
        if (fast) {
            fast_product<gram><<<w.n_square, threads, 0, stream>>>(w, first, flipped);
            fast_product<poly><<<w.n_square, threads, 0, stream>>>(w, first, flipped);
            fast_product<next><<<w.n_tall, threads, 0, stream>>>(w, first, flipped);
        } else {
            float_product<gram><<<w.n_square, threads, 0, stream>>>(w, first, flipped);
            float_product<poly><<<w.n_square, threads, 0, stream>>>(w, first, flipped);
            float_product<next><<<w.n_tall, threads, 0, stream>>>(w, first, flipped);
        }
    }
    return steps % 2 == 1 ? w.z : w.y;
}

} // namespace wf_muon
