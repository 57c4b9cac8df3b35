/* few_rows: a row sequence on few rows, all operations in one launch. For many rows see
 * many_rows.cu.
 *
 *   block    takes 16 rows through all operations: a team of eight warps, and one more that
 *            fetches weights (weight_ring.cuh)
 *   team     each warp has 16 columns of a product; the team synchronises between operations
 *   product  128 columns of n and 64 of k at a time; mma.sync m16n8k16; sums over k in order. A
 *            left operand in memory is read 64 columns ahead and passes through shared memory as
 *            bf16
 *   results  product_ends.cuh
 * Latency is the limit: the products of a block run one after the other. Measured, H200, ncu:
 * sequences of 256 graphs take 22 us forward and 30 backward at width 64, 53 and 52 at width
 * 128. */
#include "tensor/cuda/row_products/product_ends.cuh"
#include "tensor/cuda/row_products/weight_ring.cuh"

#include <stddef.h>

namespace wf_gpu {
namespace {

/* --- products --------------------------------------------------------------------------------- */
/* 64 columns of a left operand on the way from memory to `staged` as bf16. A lane has four columns
 * of every other row. */
struct left_reader {
    float4 held[8];
    __device__ void fetch(const product_term &term, const warp_rows &v, int k) {
        int lane = lane_here(), col = k + lane % 16 * 4;
        bool inside = col < whole16(term.k);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            held[i] = make_float4(0, 0, 0, 0);
            if (inside)
                held[i] = read4(term.x + place_of(v.row(2 * i + lane / 16), term.ldx) + col);
        }
    }
    __device__ void store(const warp_rows &v) const {
        int lane = lane_here();
        uint32_t at = v.staged + (uint32_t)(lane / 16 * 128 + lane % 2 * 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            *shared_at<uint2>(
                at + (uint32_t)(256 * i + 16 * ((lane % 16 / 2) ^ (2 * i + lane / 16) % 8))) =
                make_uint2(bf16_pair(held[i].x, held[i].y), bf16_pair(held[i].z, held[i].w));
        __syncwarp();
    }
};

/* Columns that a block takes at a time, and columns of a warp. */
enum { team = 8, own_columns = 16, team_columns = team * own_columns, sums = own_columns / 8 };

/* sum += left W for 16 rows of `left`, `pitch` bytes apart, 16 * steps of k, and columns 16 * slice
 * .. of a tile of weights. */
template <bool transposed>
__device__ inline void multiply_tile(float (&sum)[sums][4], uint32_t left, uint32_t pitch,
                                     uint32_t tile, int slice, int steps) {
    int lane = lane_here(), swizzle = lane & 7;
    uint32_t own = (uint32_t)(128 * (transposed ? lane % 16 : lane / 16 * 8 + lane % 8));
    left += pitch * (uint32_t)(lane % 16);
    tile += own + (uint32_t)(transposed ? 16 * ((2 * slice + lane / 16) ^ swizzle) : slice * 2048);
#pragma unroll 2
    for (int kk = 0; kk < steps; kk++) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, left + (uint32_t)(16 * ((2 * kk + lane / 16) ^ swizzle)));
        load_matrices<transposed>(
            b,
            tile + (uint32_t)(transposed ? kk * 2048 : 16 * ((2 * kk + lane / 8 % 2) ^ swizzle)));
        multiply_add(sum[0], a, b[0], b[1]);
        multiply_add(sum[1], a, b[2], b[3]);
    }
}

/* sum = this warp's columns of the 128 from n on. */
template <bool transposed>
__device__ inline void multiply(float (&sum)[sums][4], const row_op &s, const warp_rows &v,
                                weight_ring &ring, int n) {
    left_reader reader;
    bool both = s.cols - n > tile_side; /* two tiles of weights side by side */
    bool idle = n + own_columns * v.self >= s.cols;
    if (s.terms[0].kept < 0) reader.fetch(s.terms[0], v, 0);
#pragma unroll 1
    for (int p = 0, k = 0; p < s.n_terms;) {
        const product_term &term = s.terms[p];
        int steps = min((whole16(term.k) - k) / 16, tile_side / 16);
        uint32_t left = v.staged, pitch = 128;
        if (term.kept < 0) reader.store(v);
        else
            left = v.kept + 2 * (uint32_t)(term.kept + k), pitch = 2 * (uint32_t)kept_pitch(term.k);
        k += tile_side;
        if (k >= term.k) k = 0, p++;
        if (p < s.n_terms && s.terms[p].kept < 0) reader.fetch(s.terms[p], v, k);
        uint32_t tile = ring.take(), second = both ? ring.take_next() : tile;
        if (own_columns * v.self >= tile_side) tile = second;
        if (!idle)
            multiply_tile<transposed>(sum, left, pitch, tile, own_columns * v.self % tile_side / 16,
                                      steps);
        ring.give_back();
        if (both) ring.give_back();
    }
}

/* One function serves all products of a direction: the first warp to run it waits for its
 * instructions to be fetched. */
template <bool transposed, bool aligned>
__device__ __forceinline__ void product(const row_op &s, column_span span, const warp_rows &v,
                                        weight_ring &ring) {
#pragma unroll 1
    for (int begin = span.begin; begin < span.end; begin += team_columns) {
        float sum[sums][4] = {};
        product_rows known;
        int n = begin + own_columns * v.self, end = min(s.cols, n + own_columns);
        if (!transposed) known.look<aligned>(s, v, n);
        multiply<transposed>(sum, s, v, ring, begin);
        __syncwarp();
        if (n >= s.cols) continue;
        stage_columns(sum, v.staged, 0);
        __syncwarp();
        if (transposed) finish_backward(s, v, n, 0, end);
        else finish_forward<aligned>(s, v, known, n, 0, end);
        __syncwarp();
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */
/* Shared memory: barriers, tiles of the ring, staged sums of each warp, kept operands of the
 * team. */
enum { barrier_bytes = 2 * most_ring * 8 };

__global__ void __launch_bounds__(32 * (team + 1), 1)
    sequence_kernel(const __grid_constant__ row_sequence argument, int depth) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ row_sequence c; /* indexed all the time */
    int words = (int)((offsetof(row_sequence, ops) + (size_t)argument.count * sizeof(row_op)) /
                      sizeof(uint32_t));
    for (int at = (int)threadIdx.x; at < words; at += (int)blockDim.x)
        ((uint32_t *)&c)[at] = ((const uint32_t *)&argument)[at];
    int warp = (int)threadIdx.x / 32;
    weight_ring ring = {shared_place(memory + barrier_bytes), shared_place(memory), depth, 0, 0};
    if (threadIdx.x == 0) ring.create(team);
    __syncthreads();
    if (warp == team) {
        fetch_all(c, ring, team_columns);
        return;
    }
    wait_for_previous(); /* L3 allows fetching weights before this */
    uint32_t behind = ring.buffers + (uint32_t)(depth * tile_bytes);
    warp_rows v = {
        (int)blockIdx.x * sequence_rows,         c.rows, warp, team, behind + team * staged_bytes,
        behind + (uint32_t)(warp * staged_bytes)};
    for (int k = 0; k < c.count; k++) {
        const row_op &s = c.ops[k];
        if (s.kind == row_product) {
            column_span span = span_of(c, k, team_columns);
            if (s.transposed) product<true, true>(s, span, v, ring);
            else if (s.aligned) product<false, true>(s, span, v, ring);
            else product<false, false>(s, span, v, ring);
        } else {
            run_row_op(s, v);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(32 * team) : "memory");
    }
}

__device__ void pack_rows_of(const weight_copy &copy, int first, int last) {
    int quads = whole16(copy.cols) / 4;
    bool aligned = copy.cols % 4 == 0 && (uintptr_t)copy.w % 16 == 0;
    for (int at = first * quads + (int)threadIdx.x; at < last * quads; at += threads_each) {
        int row = at / quads, col = at % quads * 4, left = copy.cols - col;
        const float *from = copy.w + (size_t)row * copy.cols + col;
        float4 x = aligned ? table4<true>(from, left) : table4<false>(from, left);
        *(uint2 *)(copy.to + 4 * (size_t)at) = make_uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w));
    }
}
__global__ void pack_kernel(weight_copy copy) {
    int first = (int)blockIdx.x * pack_rows;
    pack_rows_of(copy, first, min(copy.rows, first + pack_rows));
}
__global__ void pack_all_kernel(const weight_copy *copies) {
    pack_rows_of(copies[blockIdx.x], 0, copies[blockIdx.x].rows);
}

int whole_tiles(int n) { return (n + tile_side - 1) / tile_side; }

/* The most tiles of weights that a block takes, and the spans of columns that are divided among
 * blocks when products are independent. */
void count_tiles(const row_sequence &c, int columns, int *tiles, int *spans) {
    *tiles = *spans = 0;
    for (int k = 0; k < c.count; k++) {
        const row_op &s = c.ops[k];
        if (s.kind != row_product) continue;
        int deep = 0;
        for (int p = 0; p < s.n_terms; p++) deep += whole_tiles(s.terms[p].k);
        *spans += (int)blocks_for((size_t)s.cols, (size_t)columns);
        int own = deep * (c.apart ? columns / tile_side : whole_tiles(s.cols));
        *tiles = c.apart ? (own > *tiles ? own : *tiles) : *tiles + own;
    }
}

int fixed_bytes() { return barrier_bytes + (int)sizeof(row_sequence) + 1024; }

} // namespace

/* What is left beside the shortest ring. */
int most_kept_elements() {
    enum { enough = 56 * 1024, shortest_ring = 3 };
    int room =
        most_shared_bytes() - fixed_bytes() - team * staged_bytes - shortest_ring * tile_bytes;
    return room / 2 < enough ? room / 2 : enough;
}

void start_sequence(const row_sequence &c) {
    if (c.rows == 0 || c.count == 0) return;
    int tiles, spans;
    count_tiles(c, team_columns, &tiles, &spans);
    int own = team * staged_bytes + 2 * c.kept_elements;
    int depth = (most_shared_bytes() - fixed_bytes() - own) / tile_bytes;
    if (depth > most_ring) depth = most_ring;
    if (depth > tiles) depth = tiles > 0 ? tiles : 1;
    int bytes = barrier_bytes + depth * tile_bytes + own;
    dim3 grid(blocks_for((size_t)c.rows, sequence_rows), c.apart ? (unsigned)spans : 1);
    start_kernel(sequence_kernel, grid, 32 * (team + 1), (size_t)bytes, c, depth);
}

void pack_weight(const weight_copy &copy) {
    if (copy.rows > 0)
        pack_kernel<<<blocks_for((size_t)copy.rows, pack_rows), threads_each, 0, stream()>>>(copy);
    plain_next();
}

void pack_weights(const weight_copy *copies, int count) {
    if (count > 0) pack_all_kernel<<<(unsigned)count, threads_each, 0, stream()>>>(copies);
    plain_next();
}

} // namespace wf_gpu
