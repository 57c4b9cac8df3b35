/* warp_tile: a warp's pair of bundles (models/edge_bundles.h), 16 rows, in the layout of mma.cuh:
 * lane 4g + c holds, of every 16 columns, columns 4c .. 4c+3 of rows g (first bundle) and g + 8
 * (second bundle). Row g of both bundles ends at node a = a0 + g.
 *
 * Lanes without an edge work on the first edge of the bundle, so that all their values are finite;
 * what they add to a sum is masked. */
#pragma once

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "models/cuda/gmn_edges/partial_sums.cuh"

namespace wf_gpu::bundle {

enum { group_threads = WF_GROUP_WARPS * 32 }; /* a warpgroup */

/* What a lane knows of its pair. */
struct pair {
    int row[2];    /* of the edge stream */
    float live[2]; /* 1: the edge exists, 0: it does not */
    int counts;    /* edges of the first bundle + 256 * edges of the second */
    int a, b[2];   /* nodes */
    int graph, segment;
    bool from_a;             /* a is the source */
    bool begins, ends, real; /* real: not padding */
    float inv_edges;         /* 1 / edges of the graph */
};

/* Equal in all lanes except row, live and a. */
__device__ inline pair load_pair(const wf_bundle *bundles, int p) {
    const int4 *from = (const int4 *)(bundles + 2 * p);
    int4 place = __ldg(from), about = __ldg(from + 1);
    int4 other_place = __ldg(from + 2), other_about = __ldg(from + 3);
    int g = (int)(threadIdx.x % 32 / 4);
    int count = about.z & 255, other_count = other_about.z & 255;
    pair out;
    out.live[0] = g < count ? 1.0f : 0.0f;
    out.live[1] = g < other_count ? 1.0f : 0.0f;
    out.counts = count | other_count << 8;
    out.row[0] = place.x + (g < count ? g * place.y : 0);
    out.row[1] = other_place.x + (g < other_count ? g * other_place.y : 0);
    out.a = place.z + (g < count ? g : 0);
    out.b[0] = place.w;
    out.b[1] = other_place.w;
    out.graph = about.x;
    out.segment = about.y;
    out.from_a = (about.z >> 8 & 255) != 0;
    out.begins = (about.z >> 16 & 255) != 0;
    out.ends = (about.z >> 24 & 255) != 0;
    out.real = count > 0;
    out.inv_edges = __int_as_float(about.w);
    return out;
}

/* The nodes of a later pair, to load ahead. */
struct ends {
    int a, b[2];
    bool from_a;
};
__device__ inline ends ends_of(const pair &p) { return ends{p.a, {p.b[0], p.b[1]}, p.from_a}; }
__device__ inline ends load_ends(const wf_bundle *bundles, int p) {
    const int4 *from = (const int4 *)(bundles + 2 * p);
    int4 place = __ldg(from);
    int about = __ldg(&from[1].z), g = (int)(threadIdx.x % 32 / 4);
    return ends{place.z + (g < (about & 255) ? g : 0),
                {place.w, __ldg(&from[2].w)},
                (about >> 8 & 255) != 0};
}

/* The pair after step t of a task: in the same list, or in the warpgroup's next task. The last pair
 * is followed by itself. */
__device__ inline int following(int index, int t, int list_length, int task, int stride,
                                int tasks) {
    if (t + 1 < list_length) return index + 1;
    return task + stride < tasks ? index - t + stride * WF_GROUP_WARPS * list_length : index;
}

__device__ inline float4 load4(const float *p) { return __ldg((const float4 *)p); }
/* The same, but loaded again at each use where registers are short. */
__device__ inline float4 load4_here(const float *p) {
    float4 x;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(p));
    return x;
}
__device__ inline void fetch_to_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Prefetches the edge rows of a pair into L2. */
template <int D>
__device__ inline void fetch_pair(const wf_bundle *bundles, int p, const float *e, int ld) {
    int lane = (int)(threadIdx.x % 32), k = lane % 8;
    const int4 *from = (const int4 *)(bundles + 2 * p + lane / 8 % 2);
    int4 place = __ldg(from);
    int count = __ldg(&from[1].z) & 255;
    const float *row = e + (size_t)(place.x + (k < count ? k * place.y : 0)) * ld;
#pragma unroll
    for (int line = lane / 16; line < D / 32; line += 2) fetch_to_l2(row + 32 * line);
}

/* Sum over the four lanes of a row. */
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Rows of the edge stream, normalised in two passes: hat = (e - mean) * rho. If `aside` is not
 * NULL, the raw rows are stored there (D / 8 places of the lane, group_threads apart). */
template <int D> struct normed_rows {
    float4 hat[2][D / 16];
    float mean[2], rho[2];
};

template <int D>
__device__ inline void load_normed(const float *e, int ld, const pair &p, normed_rows<D> *out,
                                   float4 *aside = NULL) {
    int c = (int)(threadIdx.x % 4);
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            out->hat[k][j] = load4(e + (size_t)p.row[k] * ld + 16 * j + 4 * c);
    if (aside != NULL)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            aside[i * group_threads] = out->hat[i / (D / 16)][i % (D / 16)];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float sum = 0, square = 0;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 x = out->hat[k][j];
            sum += x.x + x.y + (x.z + x.w);
        }
        float mean = quad_sum(sum) * (1.0f / D);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 x = out->hat[k][j];
            x = float4{x.x - mean, x.y - mean, x.z - mean, x.w - mean};
            square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
            out->hat[k][j] = x;
        }
        float rho = rsqrtf(quad_sum(square) * (1.0f / D) + 1e-6f);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 x = out->hat[k][j];
            out->hat[k][j] = float4{x.x * rho, x.y * rho, x.z * rho, x.w * rho};
        }
        out->mean[k] = mean;
        out->rho[k] = rho;
    }
}

__device__ inline float4 normalised(const float4 &x, float mean, float rho) {
    return float4{(x.x - mean) * rho, (x.y - mean) * rho, (x.z - mean) * rho, (x.w - mean) * rho};
}

/* x * (1 + scale) + shift */
__device__ inline float4 modulated(const float4 &x, const float4 &shift, const float4 &scale) {
    return float4{x.x + x.x * scale.x + shift.x, x.y + x.y * scale.y + shift.y,
                  x.z + x.z * scale.z + shift.z, x.w + x.w * scale.w + shift.w};
}

/* The operand eb of a pair's rows. `modulation`: shift and scale of the first graph, ld apart. If
 * `sums` is not NULL, masked sums of both rows go there: D / 4 values, [4j + k] is column 16j + 4c
 * + k. */
template <int D>
__device__ inline void make_operand(const normed_rows<D> &rows, const float *modulation,
                                    int ld_modulation, const pair &p, mma::fragment (&out)[D / 16],
                                    float *sums) {
    int c = (int)(threadIdx.x % 4);
    const float *shift = modulation + (size_t)p.graph * ld_modulation + 4 * c;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        float4 low = load4(shift + 16 * j), high = load4(shift + D + 16 * j);
        float4 x = modulated(rows.hat[0][j], low, high), y = modulated(rows.hat[1][j], low, high);
        out[j] = mma::fragment_of(x, y);
        if (sums == NULL) continue;
        sums[4 * j] = p.live[0] * x.x + p.live[1] * y.x;
        sums[4 * j + 1] = p.live[0] * x.y + p.live[1] * y.y;
        sums[4 * j + 2] = p.live[0] * x.z + p.live[1] * y.z;
        sums[4 * j + 3] = p.live[0] * x.w + p.live[1] * y.w;
    }
}

template <int D>
__device__ inline void load_operand(const float *e, int ld, const float *modulation,
                                    int ld_modulation, const pair &p, mma::fragment (&out)[D / 16],
                                    float *sums) {
    normed_rows<D> rows;
    load_normed<D>(e, ld, p, &rows);
    make_operand<D>(rows, modulation, ld_modulation, p, out, sums);
}

/* Stores a lane's rows aside and loads them again, 128 lanes side by side: D / 8 places. */
template <int D> __device__ inline void store_rows_aside(float4 *to, const normed_rows<D> &rows) {
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < D / 16; j++) to[(k * (D / 16) + j) * group_threads] = rows.hat[k][j];
}
template <int D> __device__ inline void load_rows_aside(const float4 *from, normed_rows<D> *rows) {
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < D / 16; j++) rows->hat[k][j] = from[(k * (D / 16) + j) * group_threads];
}

/* --- a product in pieces of 64 columns -------------------------------------------------------- */
enum { piece = 64, piece_tiles = piece / 8, piece_groups = piece / 16 };
typedef float piece_acc[piece_tiles][4];

/* One piece after the other in a loop that is not unrolled: the code of a whole block would not fit
 * into the instruction cache. issue(acc, k) starts piece k, load(k) fetches what it is combined
 * with meanwhile, use(acc, k) does the rest. */
template <bool Wgmma, int Pieces, class Issue, class Load, class Use>
__device__ inline void in_pieces(Issue issue, Load load, Use use) {
#pragma unroll 1
    for (int k = 0; k < Pieces; k++) {
        piece_acc acc;
        issue(acc, k);
        mma::commit<Wgmma>();
        load(k);
        mma::wait<Wgmma>();
        mma::settle(acc);
        use(acc, k);
    }
}

/* Appends the fragments of a piece. After the last piece all are in order. */
template <int Fragments>
__device__ inline void push(mma::fragment (&to)[Fragments],
                            const mma::fragment (&x)[piece_groups]) {
#pragma unroll
    for (int i = 0; i + piece_groups < Fragments; i++) to[i] = to[i + piece_groups];
#pragma unroll
    for (int i = 0; i < piece_groups; i++) to[Fragments - piece_groups + i] = x[i];
}

/* Rows of node tables for a piece, loaded ahead by asynchronous copies into shared memory of the
 * warp: those of the nodes a of its rows (2 KB) and of the two b (512 bytes). */
enum { buffer_bytes = 2560, buffer_b = 2048 };
struct row_buffer {
    unsigned char *base;

    static __device__ void copy(void *to, const float *from) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(mma::shared_address(to)),
                     "l"(from)
                     : "memory");
    }
    /* Columns n0 .. n0 + 63 of rows of two tables; NULL: none of that kind. */
    __device__ void fetch(const float *of_a, const float *of_b, int ld, int n0,
                          const ends &p) const {
        int lane = (int)(threadIdx.x % 32);
        __syncwarp(); /* all lanes have read the last rows */
        if (of_a != NULL) {
            const float *from = of_a + (size_t)p.a * ld + n0 + 4 * (lane % 4);
#pragma unroll
            for (int j = 0; j < piece_groups; j++) copy(base + 512 * j + 16 * lane, from + 16 * j);
        }
        if (of_b != NULL)
            copy(base + buffer_b + 16 * lane,
                 of_b + (size_t)(lane < 16 ? p.b[0] : p.b[1]) * ld + n0 + 4 * (lane % 16));
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ void await() const {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    __device__ float4 of_a(int j) const {
        return *(const float4 *)(base + 512 * j + 16 * (threadIdx.x % 32));
    }
    __device__ float4 of_b(int k, int j) const {
        return *(const float4 *)(base + buffer_b + 256 * k + 64 * j + 16 * (threadIdx.x % 4));
    }
    /* acc = a's row + b's row */
    __device__ void take(piece_acc &acc) const {
        await();
#pragma unroll
        for (int j = 0; j < piece_groups; j++) {
            float4 a = of_a(j);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 b = of_b(k, j);
                acc[2 * j][2 * k] = a.x + b.x;
                acc[2 * j][2 * k + 1] = a.y + b.y;
                acc[2 * j + 1][2 * k] = a.z + b.z;
                acc[2 * j + 1][2 * k + 1] = a.w + b.w;
            }
        }
    }
};
/* The same without a buffer: rows are loaded when they are used. */
struct direct_rows {
    const float *a, *b[2];

    __device__ void fetch(const float *of_a, const float *of_b, int ld, int n0, const ends &p) {
        int column = n0 + 4 * (int)(threadIdx.x % 4);
        a = of_a + (size_t)p.a * ld + column;
        b[0] = of_b + (size_t)p.b[0] * ld + column;
        b[1] = of_b + (size_t)p.b[1] * ld + column;
    }
    __device__ void await() const {}
    __device__ float4 of_a(int j) const { return load4(a + 16 * j); }
    __device__ float4 of_b(int k, int j) const { return load4(b[k] + 16 * j); }
    __device__ void take(piece_acc &acc) const {
        float4 x[piece_groups], y[2][piece_groups];
#pragma unroll
        for (int j = 0; j < piece_groups; j++) {
            x[j] = of_a(j);
            y[0][j] = of_b(0, j);
            y[1][j] = of_b(1, j);
        }
#pragma unroll
        for (int j = 0; j < piece_groups; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                acc[2 * j][2 * k] = x[j].x + y[k][j].x;
                acc[2 * j][2 * k + 1] = x[j].y + y[k][j].y;
                acc[2 * j + 1][2 * k] = x[j].z + y[k][j].z;
                acc[2 * j + 1][2 * k + 1] = x[j].w + y[k][j].w;
            }
    }
};

/* The warp's part of a block's buffers. */
__device__ inline row_buffer own_buffer(void *all) {
    return row_buffer{(unsigned char *)all + threadIdx.x / 32 * buffer_bytes};
}
template <bool Ahead> __device__ inline auto table_rows(void *all) {
    if constexpr (Ahead) return own_buffer(all);
    else return direct_rows{};
}

/* acc = x, y: a lane's four columns of group j of either row. */
template <int Tiles>
__device__ inline void put4(float (&acc)[Tiles][4], int j, const float4 &x, const float4 &y) {
    acc[2 * j][0] = x.x;
    acc[2 * j][1] = x.y;
    acc[2 * j + 1][0] = x.z;
    acc[2 * j + 1][1] = x.w;
    acc[2 * j][2] = y.x;
    acc[2 * j][3] = y.y;
    acc[2 * j + 1][2] = y.z;
    acc[2 * j + 1][3] = y.w;
}
template <int Tiles> __device__ inline float4 get4(const float (&acc)[Tiles][4], int j, int k) {
    return float4{acc[2 * j][2 * k], acc[2 * j][2 * k + 1], acc[2 * j + 1][2 * k],
                  acc[2 * j + 1][2 * k + 1]};
}

/* acc = bias in every row; `bias` (in any memory) from column n0 on. */
template <int Tiles> __device__ inline void load_bias(float (&acc)[Tiles][4], const float *bias) {
    int c = (int)(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < Tiles / 2; j++) {
        float4 x = *(const float4 *)(bias + 16 * j + 4 * c);
        acc[2 * j][0] = acc[2 * j][2] = x.x;
        acc[2 * j][1] = acc[2 * j][3] = x.y;
        acc[2 * j + 1][0] = acc[2 * j + 1][2] = x.z;
        acc[2 * j + 1][1] = acc[2 * j + 1][3] = x.w;
    }
}

template <int Tiles> __device__ inline void apply_silu(float (&acc)[Tiles][4]) {
#pragma unroll
    for (int t = 0; t < Tiles; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[t][k] = mma::fast_activation<false>(acc[t][k]);
}
/* y = SiLU(acc), as the fragments of the next product. */
template <int Tiles>
__device__ inline void into_fragments(float (&acc)[Tiles][4], mma::fragment (&to)[Tiles / 2]) {
    apply_silu(acc);
#pragma unroll
    for (int t = 0; t < Tiles; t += 2) to[t / 2] = mma::fragment_of(acc[t], acc[t + 1]);
}

/* --- sums ------------------------------------------------------------------------------------- */
/* Sums of a lane's Values values over the eight g, by a butterfly that halves them: lane (g, c)
 * ends with values g * Values/8 + i in x[i]. The tree is fixed. */
template <int Step, int Left, int Values> __device__ inline void halve_rows(float (&x)[Values]) {
    bool upper = (threadIdx.x & (4 * Step)) != 0;
#pragma unroll
    for (int i = 0; i < Left; i++) {
        float send = upper ? x[i] : x[i + Left], keep = upper ? x[i + Left] : x[i];
        x[i] = keep + __shfl_xor_sync(0xffffffffu, send, 4 * Step);
    }
}
template <int Values> __device__ inline void sum_over_rows(float (&x)[Values]) {
    halve_rows<4, Values / 2>(x);
    halve_rows<2, Values / 4>(x);
    halve_rows<1, Values / 8>(x);
}
/* The column of value i that sum_over_rows leaves. */
template <int Values> __device__ inline int summed_column(int i) {
    int lane = (int)(threadIdx.x % 32), value = lane / 4 * (Values / 8) + i;
    return value / 4 * 16 + lane % 4 * 4 + value % 4;
}
template <int Values> __device__ inline void store_summed(float *to, const float *x) {
    float *at = to + summed_column<Values>(0);
    static_assert(Values == 8 || Values == 16 || Values == 32, "one stretch of columns a lane");
    if constexpr (Values == 32) {
        *(float4 *)at = float4{x[0], x[1], x[2], x[3]};
    } else if constexpr (Values == 16) {
        *(float2 *)at = float2{x[0], x[1]};
    } else {
        at[0] = x[0];
    }
}

/* Sums over a pair's rows as a product with zeros and ones, rows in bf16, sums in fp32. Row g of
 * the left matrix selects row g of both bundles (towards node a), row 8 the first bundle and row 9
 * the second one (towards their b). Lanes without an edge are left out. */
struct selection {
    uint32_t a[4];
};
__device__ inline selection selection_of(const pair &p) {
    const uint32_t low = 0x00003f80u, high = 0x3f800000u;
    int g = (int)(threadIdx.x % 32 / 4), c = (int)(threadIdx.x % 4);
    uint32_t own = g / 2 != c ? 0u : g % 2 ? high : low;
    selection s;
    s.a[0] = p.live[0] != 0 ? own : 0u;
    s.a[2] = p.live[1] != 0 ? own : 0u;
    int count = p.counts & 255, other = p.counts >> 8;
    s.a[1] = g != 0 ? 0u : (2 * c < count ? low : 0u) | (2 * c + 1 < count ? high : 0u);
    s.a[3] = g != 1 ? 0u : (2 * c < other ? low : 0u) | (2 * c + 1 < other ? high : 0u);
    return s;
}
__device__ inline uint32_t transposed(uint32_t x) {
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
    return out;
}
/* Sixteen columns: sum[.][0..1] towards node a0 + g, sum[.][2..3] of bundle g, g < 2; columns as in
 * accumulators. */
__device__ inline void select_sums(const selection &s, const mma::fragment &x, float (&sum)[2][4]) {
    mma::clear(sum);
#pragma unroll
    for (int t = 0; t < 2; t++)
        mma::warp_mma(sum[t], s.a, transposed(x.r[2 * t]), transposed(x.r[2 * t + 1]));
}

/* Sums towards b: rows 2p and 2p + 1 of the partial sums (bf16), group j of the piece at columns n0
 * .. */
__device__ inline void store_towards_b(const float (&sum)[2][4], int j, uint16_t *partials, int ld,
                                       int pair_index, int n0) {
    int g = (int)(threadIdx.x % 32 / 4), c = (int)(threadIdx.x % 4);
    if (g < 2)
        *(uint2 *)(partials + (size_t)(2 * pair_index + g) * ld + n0 + 16 * j + 4 * c) =
            uint2{mma::pack(sum[0][2], sum[0][3]), mma::pack(sum[1][2], sum[1][3])};
}

/* Sums towards a: row g of the segment's partial sums, added up in memory by the one lane that owns
 * the columns. The old value is loaded ahead. */
struct held_sums {
    uint2 of[piece_groups];
};
__device__ inline uint16_t *partial_towards_a(uint16_t *partials, int ld, int n_bundles, int n0,
                                              const pair &p) {
    int lane = (int)(threadIdx.x % 32);
    return partials + (size_t)(n_bundles + WF_BUNDLE * p.segment + lane / 4) * ld + n0 +
           lane % 4 * 4;
}
__device__ inline void hold_sums(held_sums *to, uint16_t *partials, int ld, int n_bundles, int n0,
                                 const pair &p) {
    const uint16_t *from = partial_towards_a(partials, ld, n_bundles, n0, p);
#pragma unroll
    for (int j = 0; j < piece_groups; j++) {
        to->of[j] = uint2{0, 0};
        if (!p.begins && p.real)
            asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                         : "=r"(to->of[j].x), "=r"(to->of[j].y)
                         : "l"(from + 16 * j)
                         : "memory");
    }
}
__device__ inline float2 halves(uint32_t bits) {
    return float2{__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
__device__ inline void add_towards_a(const float (&sum)[2][4], int j, const held_sums &before,
                                     const pair &p, uint16_t *partials, int ld, int n_bundles,
                                     int n0) {
    if (!p.real) return;
    float2 u = halves(before.of[j].x), v = halves(before.of[j].y);
    *(uint2 *)(partial_towards_a(partials, ld, n_bundles, n0, p) + 16 * j) = uint2{
        mma::pack(u.x + sum[0][0], u.y + sum[0][1]), mma::pack(v.x + sum[1][0], v.y + sum[1][1])};
}

/* --- backward through the norm ---------------------------------------------------------------- */
/* A lane's part of the sums over the rows of a segment, per column of D. */
template <int D> struct segment_sums { float shift[D / 32], scale[D / 32]; };

/* A lane's part of a pair's rows of de, loaded ahead where registers allow. */
template <int D> struct held_stream {
    static constexpr bool held = D <= 64;
    float4 of[held ? 2 : 1][held ? D / 16 : 1];
    __device__ void fetch(const float *de, int ld, const pair &p) {
        if constexpr (held) {
            if (de == NULL) return;
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int j = 0; j < D / 16; j++)
                    of[k][j] =
                        load4_here(de + (size_t)p.row[k] * ld + 16 * j + 4 * (threadIdx.x % 4));
        }
    }
};

/* deb (64, D) lacks only the part from the mean (mean_grad (B, ld_mean), NULL: none). de +=
 * gradient by e (NULL: not wanted). At the end of a segment its sums of deb and deb * hat go to
 * rows of (segments, 2 D). hat_of(k, j): a lane's four values of group j of its k-th row, asked for
 * twice. */
template <int D, class Hat>
__device__ inline void norm_backward(float (&deb)[D / 8][4], Hat hat_of, const float (&rho)[2],
                                     int ld, const float *modulation, int ld_modulation,
                                     const float *mean_grad, int ld_mean, const pair &p,
                                     segment_sums<D> *sums, float *segments, float *de,
                                     const held_stream<D> &stream) {
    int c = (int)(threadIdx.x % 4);
    const float *factors = modulation + (size_t)p.graph * ld_modulation + D + 4 * c;
    float column[D / 4], total[2] = {0, 0}, along[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        float4 mean = {0, 0, 0, 0};
        if (mean_grad != NULL)
            mean = load4_here(mean_grad + (size_t)p.graph * ld_mean + 16 * j + 4 * c);
        float m[4] = {mean.x, mean.y, mean.z, mean.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *d = deb[2 * j + i / 2] + i % 2;
            d[0] = p.live[0] * (d[0] + p.inv_edges * m[i]);
            d[2] = p.live[1] * (d[2] + p.inv_edges * m[i]);
            column[4 * j + i] = d[0] + d[2];
        }
    }
    sum_over_rows(column);
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        sums->shift[i] = p.begins ? column[i] : sums->shift[i] + column[i];
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        float4 factor = load4_here(factors + 16 * j), upper = hat_of(0, j), lower = hat_of(1, j);
        float f[4] = {1 + factor.x, 1 + factor.y, 1 + factor.z, 1 + factor.w};
        float h[2][4] = {{upper.x, upper.y, upper.z, upper.w},
                         {lower.x, lower.y, lower.z, lower.w}};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *d = deb[2 * j + i / 2] + i % 2;
            column[4 * j + i] = d[0] * h[0][i] + d[2] * h[1][i];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                d[2 * k] *= f[i];
                total[k] += d[2 * k];
                along[k] += d[2 * k] * h[k][i];
            }
        }
    }
    sum_over_rows(column);
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        sums->scale[i] = p.begins ? column[i] : sums->scale[i] + column[i];
    if (p.ends) {
        store_summed<D / 4>(segments + (size_t)p.segment * (2 * D), sums->shift);
        store_summed<D / 4>(segments + (size_t)p.segment * (2 * D) + D, sums->scale);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float mean = quad_sum(total[k]) * (1.0f / D), slope = quad_sum(along[k]) * (1.0f / D);
        if (p.live[k] == 0 || de == NULL) continue;
        float *to = de + (size_t)p.row[k] * ld + 4 * c;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 hat = hat_of(k, j), x = get4(deb, j, k), was;
            if constexpr (held_stream<D>::held) was = stream.of[k][j];
            else was = *(const float4 *)(to + 16 * j);
            *(float4 *)(to + 16 * j) = float4{was.x + rho[k] * (x.x - mean - hat.x * slope),
                                              was.y + rho[k] * (x.y - mean - hat.y * slope),
                                              was.z + rho[k] * (x.z - mean - hat.z * slope),
                                              was.w + rho[k] * (x.w - mean - hat.w * slope)};
        }
    }
}

} // namespace wf_gpu::bundle
