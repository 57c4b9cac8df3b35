/* node_tile: common parts of the kernels for the nodes of a lean block at width 64 (node_tables.cu,
 * lean_nodes.cu).
 *
 *   block    four warpgroups of 128 registers a thread; all weights in shared memory, staged before
 *            the previous launch has ended. A warpgroup takes tiles of 64 nodes by itself: after
 *            the staging there is no barrier
 *   tile     in registers, in the layout of mma.cuh: a lane has rows g and g + 8 of its warp's 16
 *            and of every 16 columns the four from 4c on. Products take their left operands from
 *            registers, so that nothing between two products leaves them
 *   rows     a row's results depend on that row alone: the same bits in any batch. Rows after the
 *            last repeat it and are not stored
 * Kept operands and gradients are in bf16, four neighbours of a lane as 8 bytes. */
#pragma once

#include "models/cuda/gmn_lean/lean_fused.cuh"
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/pending.cuh"

namespace wf_gpu::lean {
namespace node {

using namespace mma;

enum {
    width = 64,
    sixteens = width / 16,
    strip_tiles = width / 8,
    groups = 4,
    threads = groups * 128
};
constexpr bool group_products = true; /* of a warpgroup (mma.cuh, Wgmma) */

/* The two rows of a lane. */
struct lane_nodes {
    int row[2], column; /* column: the lane's first of sixteen */
    bool there[2];
    __device__ lane_nodes(int tile, int nodes) : column((int)(threadIdx.x % 4) * 4) {
        int first = tile * tile_rows + (int)(threadIdx.x % 128) / 32 * 16;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int wanted_row = first + (int)(threadIdx.x % 32) / 4 + 8 * k;
            there[k] = wanted_row < nodes;
            row[k] = there[k] ? wanted_row : nodes - 1;
        }
    }
    /* The lane's place in a row of `ld` elements. */
    __device__ size_t place(int k, int ld) const {
        return (size_t)(uint32_t)row[k] * (uint32_t)ld + (uint32_t)column;
    }
};

/* 16 Sixteens columns of both rows, from column `first` on, as operands. */
template <int Sixteens>
__device__ inline void load_operands(fragment (&to)[Sixteens], const float *x, int ld, int first,
                                     const lane_nodes &r) {
    float4 v[2][Sixteens];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < Sixteens; j++)
            v[k][j] = *(const float4 *)(x + r.place(k, ld) + first + 16 * j);
#pragma unroll
    for (int j = 0; j < Sixteens; j++) to[j] = fragment_of(v[0][j], v[1][j]);
}

/* A fragment of sixteen columns, number `sixteen`, of both rows, as it is. */
__device__ inline void store_words(uint16_t *to, int ld, const lane_nodes &r, int sixteen,
                                   const fragment &f) {
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (r.there[k])
            *(uint2 *)(to + r.place(k, ld) + 16 * sixteen) = make_uint2(f.r[k], f.r[2 + k]);
}
__device__ inline fragment load_words(const uint16_t *from, int ld, const lane_nodes &r,
                                      int sixteen) {
    uint2 upper = *(const uint2 *)(from + r.place(0, ld) + 16 * sixteen);
    uint2 lower = *(const uint2 *)(from + r.place(1, ld) + 16 * sixteen);
    return fragment{{upper.x, lower.x, upper.y, lower.y}};
}

/* The four columns of row k among sums. */
template <int Tiles> __device__ inline float4 four_of(const float (&acc)[Tiles][4], int j, int k) {
    return make_float4(acc[2 * j][2 * k], acc[2 * j][2 * k + 1], acc[2 * j + 1][2 * k],
                       acc[2 * j + 1][2 * k + 1]);
}

/* acc = x w', acc = dy w, of 64 columns, complete. */
template <int Steps>
__device__ inline void multiply(float (&acc)[strip_tiles][4], const fragment (&x)[Steps],
                                const panel &w, int n0) {
    begin<group_products>();
    forward_mma<group_products>(acc, x, w, n0, 0, true);
    finish<group_products>();
    settle(acc);
}
template <int Steps>
__device__ inline void multiply_back(float (&acc)[strip_tiles][4], const fragment (&dy)[Steps],
                                     const panel &w, int n0) {
    begin<group_products>();
    backward_mma<group_products>(acc, dy, w, 0, n0, true);
    finish<group_products>();
    settle(acc);
}

/* --- partial sums of the edges ---------------------------------------------------------------- */
/* Partial sums in bf16 (models/edge_bundles.h), which list has which, and where sums go: (nodes,
 * Columns) in bf16 as destination and as source. */
struct partial_lists {
    const uint16_t *partials;
    const uint32_t *start, *rows;
    const float *degree; /* means: divide by it; NULL: no */
    uint16_t *to[2];
    int nodes;
};
__device__ inline void store_eight(const partial_lists &s, uint32_t list, uint32_t columns,
                                   uint32_t column, const float (&sum)[8]) {
    uint32_t node = list / 2;
    float degree = s.degree == NULL ? 1 : s.degree[node], factor = degree > 0 ? 1 / degree : 0;
    uint4 words = {pack(factor * sum[0], factor * sum[1]), pack(factor * sum[2], factor * sum[3]),
                   pack(factor * sum[4], factor * sum[5]), pack(factor * sum[6], factor * sum[7])};
    *(uint4 *)(s.to[list % 2] + (size_t)node * columns + column) = words;
}
/* Adds up the lists of a warp's 16 nodes, from `first` on, each in its order. Columns / 8 lanes
 * have a row: 16 of them two teams of 8 nodes, 32 of them one of 16. A team walks its lists as one,
 * eight rows ahead; lane k of it knows the end of list k. */
template <int Columns> __device__ inline void sum_lists(const partial_lists &s, int first) {
    enum { lanes = Columns / 8, ahead = 8 };
    static_assert(lanes == 16 || lanes == 32, "as many lanes as lists");
    const uint32_t all = 0xffffffffu;
    uint32_t lane = threadIdx.x % 32, team = lane / lanes * lanes, own = lane % lanes;
    uint32_t lists = 2 * (uint32_t)s.nodes, list0 = 2 * (uint32_t)first + team;
    uint32_t begin = s.start[min(list0 + own, lists)];
    uint32_t end = s.start[min(list0 + own + 1, lists)];
    float sum[8] = {};
    uint32_t empty = __ballot_sync(all, begin == end && list0 + own < lists) >> team;
#pragma unroll 1
    for (uint32_t k = 0; k < lanes; k++)
        if (empty >> k & 1) store_eight(s, list0 + k, Columns, 8 * own, sum);
    uint32_t at = __shfl_sync(all, begin, (int)team);
    uint32_t count = __shfl_sync(all, end, (int)(team + lanes - 1)) - at, most = count;
    if (lanes == 16) most = max(count, __shfl_xor_sync(all, count, 16));
    uint32_t row = own < ahead && own < count ? s.rows[at + own] : 0;
#pragma unroll 1
    for (uint32_t done = 0; done < most; done += ahead, at += ahead) {
        uint4 x[ahead];
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++) {
            uint32_t from = __shfl_sync(all, row, (int)(team + k));
            x[k] = uint4{0, 0, 0, 0};
            if (done + k < count)
                x[k] = *(const uint4 *)(s.partials + (size_t)from * Columns + 8 * own);
        }
        uint32_t next = done + ahead + own;
        row = own < ahead && next < count ? s.rows[at + ahead + own] : 0;
        uint32_t list = 0; /* of entry `own` of these eight */
#pragma unroll
        for (int k = 0; k < lanes - 1; k++)
            list += __shfl_sync(all, end, (int)team + k) <= at + own;
        uint32_t last = __shfl_sync(all, end, (int)(team + list)) == at + own + 1;
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++) {
            uint32_t of = __shfl_sync(all, list, (int)(team + k));
            uint32_t ends = __shfl_sync(all, last, (int)(team + k));
            const uint32_t word[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                sum[2 * w] += __uint_as_float(word[w] << 16);
                sum[2 * w + 1] += __uint_as_float(word[w] & 0xffff0000u);
            }
            if (!ends || done + k >= count) continue;
            store_eight(s, list0 + of, Columns, 8 * own, sum);
#pragma unroll
            for (int w = 0; w < 8; w++) sum[w] = 0;
        }
    }
    __syncwarp(); /* other lanes read the sums */
}

/* Blocks for so many nodes: as few as take no longer, which leaves multiprocessors to what runs
 * beside. */
inline unsigned blocks_of(int nodes) {
    int tiles = (nodes + tile_rows - 1) / tile_rows, most = processor_count();
    return blocks_for((size_t)tiles, (size_t)((tiles + most - 1) / most));
}
/* The tiles of a warpgroup are first_tile(), that + tile_step() ... */
__device__ inline int first_tile() {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    return (int)blockIdx.x + (int)gridDim.x * group;
}
__device__ inline int tile_step() { return (int)gridDim.x * groups; }

extern __shared__ __align__(1024) unsigned char shared[];

/* A node's matrix as the kernels take it: rows of 16 bytes. */
inline bool plain_rows(const wf_tensor *t) { return t->ld % 4 == 0 && t->ld >= t->cols; }
/* Whether kernels may stage a weight. */
inline bool staged(const wf_tensor *t, int rows, int cols) {
    return t->rows == rows && t->cols == cols && t->panels != NULL;
}

} // namespace node
} // namespace wf_gpu::lean
