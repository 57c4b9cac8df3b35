/* lean_fused: common parts of the fused kernels for the edges of a lean block. Formulas:
 * wf_lean_edges in tensor/tape.h.
 *
 * Backward, a warpgroup takes tiles of 64 rows, four pairs of bundles (models/edge_bundles.h,
 * WF_CUT_GROUP), in registers in the layout of mma.cuh: a lane has rows g and g + 8 of its warp,
 * one of either bundle, so both have the same node a; and of every 16 columns the four from 4c on.
 * Lanes without an edge repeat a row that exists: their values are finite, and masked before they
 * are summed. Sums towards nodes are products with zeros and ones (bundle_mma) over a strip of 64
 * hidden columns in shared memory. The sum towards a continues over the pairs of a segment, in
 * order, across tiles. */
#pragma once

#include "tensor/cuda/fused.cuh"
#include "tensor/cuda/tensor_cores/mma.cuh"
#include "models/cuda/gmn_edges/partial_sums.cuh"

namespace wf_gpu {

/* The fused operations; false: out of scratch. */
bool lean_fused_forward(const wf_op *op, wf_arena *arena);
bool lean_fused_backward(const wf_op *op, wf_arena *arena);
/* Whether there are templates for the operation's widths and options. */
bool lean_fused_fits(const wf_op *op);

namespace lean {

/* The widths of an operation and where its operands lie. */
struct lean_fused {
    const wf_bundle *bundles;
    int n_bundles, n_tasks, list_length; /* pairs of a task */
    const float *e;
    float *out;              /* forward: e'; backward: its gradient, which becomes that of e */
    const float *modulation; /* of a graph: shift, scale, gate, each D wide */
    int ld_modulation;
    const float *ad, *as; /* (N, ld_table) */
    int ld_table;
    mma::weight_rows w1, w2;
    const float *c2;
    int messages; /* M; 0: not wanted */
    int skipped;  /* columns of the tables and rows of w1 before the first that is used */
    int n_segments;
    float *
        /* in bf16 (attention forward: fp32); forward: (partials, M), backward: (partials, M +
         * 2D) */
        partials;
    float *segment_sums; /* forward: (segments, D) of eb; backward: see there */
};

/* Of an operation; partials and segment_sums are still to be had. messages: all of them, or 0. */
lean_fused lean_operands(const wf_op *op, const wf_bundle_table *table, int messages);

/* A warp's pair of bundles: the two rows of a lane and their nodes. */
struct lane_rows {
    int row[2];
    bool there[2];
    int a, b[2], graph;
    bool from_a;     /* a is the source */
    float inv_edges; /* 1 / edges of the graph */
};

/* After `last` pairs there are none: the last one's rows, masked. */
__device__ inline lane_rows rows_of_pair(const wf_bundle *bundles, int pair, int last) {
    bool inside = pair < last;
    const int4 *from = (const int4 *)(bundles + 2 * (inside ? pair : last - 1));
    int g = (int)(threadIdx.x % 32) / 4;
    lane_rows r;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int4 place = __ldg(from + 2 * k), rest = __ldg(from + 2 * k + 1);
        int count = rest.z & 0xff, at = g < count ? g : 0;
        r.row[k] = place.x + at * place.y;
        r.there[k] = inside && g < count;
        r.b[k] = place.w;
        if (k == 0) {
            r.a = place.z + at;
            r.graph = rest.x;
            r.from_a = (rest.z >> 8 & 0xff) != 0;
            r.inv_edges = __int_as_float(rest.w);
        }
    }
    return r;
}

__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Sums over the 8 lanes of equal c of four columns a lane, from 16 columns' first on, to sums[0 ..
 * 15]. */
__device__ inline void sum_columns(const float4 &value, float *sums) {
    int lane = (int)(threadIdx.x % 32);
    bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
    float first =
        (upper ? value.z : value.x) + __shfl_xor_sync(0xffffffffu, upper ? value.x : value.z, 16);
    float second =
        (upper ? value.w : value.y) + __shfl_xor_sync(0xffffffffu, upper ? value.y : value.w, 16);
    float sum = (odd ? second : first) + __shfl_xor_sync(0xffffffffu, odd ? first : second, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    if ((lane & 4) == 0) sums[4 * (lane % 4) + 2 * upper + odd] = sum;
}

/* --- a row tile's layer norm ------------------------------------------------------------------ */
/* D / 16 groups of 16 columns of a lane's row, four columns each. */
template <int D>
__device__ inline void normalise(float4 (&v)[D / 16], float *mean_of, float *rho_of) {
    float sum = 0, square = 0;
#pragma unroll
    for (int j = 0; j < D / 16; j++) sum += v[j].x + v[j].y + (v[j].z + v[j].w);
    float mean = quad_sum(sum) / D;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        v[j] = make_float4(v[j].x - mean, v[j].y - mean, v[j].z - mean, v[j].w - mean);
        square += v[j].x * v[j].x + v[j].y * v[j].y + (v[j].z * v[j].z + v[j].w * v[j].w);
    }
    float rho = rsqrtf(quad_sum(square) / D + 1e-6f);
#pragma unroll
    for (int j = 0; j < D / 16; j++)
        v[j] = make_float4(v[j].x * rho, v[j].y * rho, v[j].z * rho, v[j].w * rho);
    *mean_of = mean;
    *rho_of = rho;
}

__device__ inline float4 modulated(const float4 &hat, const float4 &scale, const float4 &shift) {
    return make_float4(hat.x * (1 + scale.x) + shift.x, hat.y * (1 + scale.y) + shift.y,
                       hat.z * (1 + scale.z) + shift.z, hat.w * (1 + scale.w) + shift.w);
}
__device__ inline float4 plus(const float4 &x, const float4 &y) {
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
__device__ inline float4 times(const float4 &x, const float4 &y) {
    return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}
__device__ inline float4 scaled(float by, const float4 &x) {
    return make_float4(by * x.x, by * x.y, by * x.z, by * x.w);
}
__device__ inline float4 masked(bool there, const float4 &x) {
    return there ? x : make_float4(0, 0, 0, 0);
}

/* --- tables ----------------------------------------------------------------------------------- */
/* Rows of two tables for a strip of 64 hidden columns, fetched ahead: node a's of one, b's of the
 * other. Each pointer is at column 0 of the strip. */
__device__ inline void into(float (&acc)[8][4], int j, const float4 &x, const float4 &y) {
    acc[2 * j][0] = x.x, acc[2 * j][1] = x.y, acc[2 * j + 1][0] = x.z, acc[2 * j + 1][1] = x.w;
    acc[2 * j][2] = y.x, acc[2 * j][3] = y.y, acc[2 * j + 1][2] = y.z, acc[2 * j + 1][3] = y.w;
}

/* In shared memory, by asynchronous copies: 2,048 bytes of a warp's own for node a's rows, 512 for
 * b's. Every fetch is a group of copies; take waits until at most `Left` of those after it are
 * running. */
enum { rows_a_bytes = 2048, rows_b_bytes = 512 };
struct shared_strip {
    unsigned char *base_a, *base_b;
    static __device__ void copy(void *to, const float *from) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(mma::shared_address(to)),
                     "l"(from)
                     : "memory");
    }
    __device__ void fetch(const float *of_a, const float *of_b0, const float *of_b1) {
        int lane = (int)(threadIdx.x % 32);
        __syncwarp(); /* all have taken the last strip */
#pragma unroll
        for (int j = 0; j < 4; j++)
            copy(base_a + 512 * j + 16 * lane, of_a + 4 * (lane % 4) + 16 * j);
        copy(base_b + 16 * lane, (lane < 16 ? of_b0 : of_b1) + 4 * (lane % 16));
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    template <int Left> __device__ void arrive() const {
        asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
        __syncwarp();
    }
    __device__ float4 of_a(int j) const {
        return *(const float4 *)(base_a + 512 * j + 16 * (threadIdx.x % 32));
    }
    __device__ float4 of_b(int k, int j) const {
        return *(const float4 *)(base_b + 256 * k + 64 * j + 16 * (threadIdx.x % 4));
    }
    template <int Left> __device__ void take(float (&acc)[8][4]) const {
        arrive<Left>();
#pragma unroll
        for (int j = 0; j < 4; j++)
            into(acc, j, plus(of_a(j), of_b(0, j)), plus(of_a(j), of_b(1, j)));
    }
    /* acc = by_a * a's row + by[k] * b's row, zero where there is no edge; it has arrived. */
    __device__ void combine(float (&acc)[8][4], float by_a, const float (&by)[2],
                            const bool (&there)[2]) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 a = scaled(by_a, of_a(j));
            into(acc, j, masked(there[0], plus(a, scaled(by[0], of_b(0, j)))),
                 masked(there[1], plus(a, scaled(by[1], of_b(1, j)))));
        }
    }
    /* acc = by.x * a's row + by.y * b's row + by.z * vf + by.w * vb; it has arrived. vf and vb (vb
     * is `ld` after it) lie in shared memory. */
    __device__ void attend(float (&acc)[8][4], const float4 (&by)[2], const float *vf,
                           int ld) const {
        const float *v = vf + 4 * (threadIdx.x % 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 a = of_a(j), f = *(const float4 *)(v + 16 * j), y[2];
            float4 b = *(const float4 *)(v + ld + 16 * j);
#pragma unroll
            for (int k = 0; k < 2; k++)
                y[k] = plus(plus(scaled(by[k].x, a), scaled(by[k].y, of_b(k, j))),
                            plus(scaled(by[k].z, f), scaled(by[k].w, b)));
            into(acc, j, y[0], y[1]);
        }
    }
};

/* Loads where they stand: of the edge stream, which is not to take L1 from the tables, and of what
 * does not change. */
__device__ inline float4 load_stream(const float *from) {
    float4 x;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
/* Four groups of 16 columns of a row, four columns of each; and all of them. */
__device__ inline void load_window(float4 *x, const float *from) {
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%16];\n\t"
                 "ld.global.L1::no_allocate.v4.f32 {%4, %5, %6, %7}, [%16 + 64];\n\t"
                 "ld.global.L1::no_allocate.v4.f32 {%8, %9, %10, %11}, [%16 + 128];\n\t"
                 "ld.global.L1::no_allocate.v4.f32 {%12, %13, %14, %15}, [%16 + 192];"
                 : "=f"(x[0].x), "=f"(x[0].y), "=f"(x[0].z), "=f"(x[0].w), "=f"(x[1].x),
                   "=f"(x[1].y), "=f"(x[1].z), "=f"(x[1].w), "=f"(x[2].x), "=f"(x[2].y),
                   "=f"(x[2].z), "=f"(x[2].w), "=f"(x[3].x), "=f"(x[3].y), "=f"(x[3].z),
                   "=f"(x[3].w)
                 : "l"(from)
                 : "memory");
}
template <int Sixteens> __device__ inline void load_row(float4 (&x)[Sixteens], const float *from) {
    if constexpr (Sixteens % 4 == 0) {
#pragma unroll
        for (int j = 0; j < Sixteens; j += 4) load_window(x + j, from + 16 * j);
    } else {
#pragma unroll
        for (int j = 0; j < Sixteens; j++) x[j] = load_stream(from + 16 * j);
    }
}
__device__ inline float4 load_constant(const float *from) {
    float4 x;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from));
    return x;
}

/* Rows of the edge stream that the next tile will read, into L2. */
template <int D> __device__ inline void prefetch_rows(const float *stream, int upper, int lower) {
    int c = (int)(threadIdx.x % 4);
    const int lines = D * 4 / 128; /* of a row */
#pragma unroll
    for (int k = 0; k < (2 * lines + 3) / 4; k++) {
        int line = c + 4 * k;
        if (line < 2 * lines)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(
                stream + (size_t)(line < lines ? upper : lower) * D + line % lines * 32));
    }
}

/* --- sums towards nodes ----------------------------------------------------------------------- */
/* The flags of a tile's four pairs, bit by bit, and their segments. */
struct tile_segments {
    uint32_t begins, ends,
        there; /* bit k: pair k; there: its bundles 2k and 2k+1 as bits 2k, 2k+1 */
    int segment[4];
};

__device__ inline tile_segments segments_of_tile(const wf_bundle *bundles, int pair, int last) {
    tile_segments t = {0, 0, 0, {0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (pair + k >= last) continue;
        int4 first = __ldg((const int4 *)(bundles + 2 * (pair + k)) + 1);
        int4 second = __ldg((const int4 *)(bundles + 2 * (pair + k)) + 3);
        t.begins |= (uint32_t)((first.z >> 16 & 1) << k);
        t.ends |= (uint32_t)((first.z >> 24 & 1) << k);
        t.there |= (uint32_t)((first.z & 0xff) != 0) << 2 * k;
        t.there |= (uint32_t)((second.z & 0xff) != 0) << (2 * k + 1);
        t.segment[k] = first.y;
    }
    return t;
}

/* Sums of the rows of pair `pair` of bundles (rows row0 .. row0 + 15 of a 64-row panel), 8 Tiles
 * positions from n0 on, as a product with a matrix of zeros and ones: acc[.][0..1] += rows g of
 * both bundles (towards node a0 + g), and acc[.][2..3] += the sum over bundle g of the tile, if it
 * is one of the two (towards its b). Values are those of the panel, in bf16; sums in fp32. Columns
 * as everywhere: of tiles 2j and 2j+1 a lane's are 16j + 4c .. 4c+3. */
template <int Tiles>
__device__ inline void bundle_mma(float (&acc)[Tiles][4], const mma::panel &rows, int row0, int n0,
                                  int pair) {
    const uint32_t ones = 0x3f803f80u, low = 0x00003f80u, high = 0x3f800000u;
    int g = (int)(threadIdx.x % 32) / 4, c = (int)(threadIdx.x % 4);
    uint32_t own = g / 2 != c ? 0u : g % 2 ? high : low; /* k = g */
    uint32_t a[4] = {own, g == 2 * pair ? ones : 0u, own, g == 2 * pair + 1 ? ones : 0u};
    mma::warp_row<Tiles, true>(
        acc, a, [&](int sixteen) { return mma::block_address(rows, row0, n0 / 16 + sixteen); });
}

/* Sixteen columns of a tile: rows by bundle go to partials at once, rows towards a when their run
 * ends. `carried` is the lane's sum of a segment that began in an earlier tile. `partials` points
 * at the lane's first column of row 0. */
__device__ inline void sum_tile(const mma::panel &tile, int n0, const tile_segments &t, int bundle0,
                                int n_bundles, uint16_t *partials, int ld, float4 *carried) {
    int g = (int)(threadIdx.x % 32) / 4;
    float acc[2][4];
    acc[0][0] = carried->x, acc[0][1] = carried->y, acc[1][0] = carried->z, acc[1][1] = carried->w;
    acc[0][2] = acc[0][3] = acc[1][2] = acc[1][3] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (t.begins >> k & 1) acc[0][0] = acc[0][1] = acc[1][0] = acc[1][1] = 0;
        bundle_mma(acc, tile, 16 * k, n0, k);
        if (t.ends >> k & 1)
            *(uint2 *)(partials + (size_t)(n_bundles + WF_BUNDLE * t.segment[k] + g) * ld) =
                make_uint2(mma::pack(acc[0][0], acc[0][1]), mma::pack(acc[1][0], acc[1][1]));
    }
    if (t.there >> g & 1)
        *(uint2 *)(partials + (size_t)(bundle0 + g) * ld) =
            make_uint2(mma::pack(acc[0][2], acc[0][3]), mma::pack(acc[1][2], acc[1][3]));
    *carried = make_float4(acc[0][0], acc[0][1], acc[1][0], acc[1][1]);
}

} // namespace lean
} // namespace wf_gpu
