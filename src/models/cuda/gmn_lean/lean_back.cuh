/* lean_back: common parts of the kernels of the lean backward; see lean_backward.cu. Activations
 * are in fp16, two at a time, doubled together with their slopes: the panel of z holds 2 z, that of
 * do holds do / 2. */
#pragma once

#include "models/cuda/gmn_lean/lean_fused.cuh"

namespace wf_gpu::lean {

using namespace mma;

enum {
    block_threads = 512,
    groups = 2, /* that compute, and that sum */
    strip = 64,
    strip_tiles = strip / 8,
    strip_bytes = 8192, /* of 64 rows */
    squares = 3,        /* of 64 x 64 weight gradients a warpgroup has */
    all_squares = groups * squares
};
/* Products are a warpgroup's (mma.cuh, Wgmma): they run on after the call. */
constexpr bool group_products = true;

struct lean_gradient {
    lean_fused f;
    const float *dto[2]; /* gradients of the sums towards dst, src */
    int ld_dto;
    const float *degree; /* means: divide by it; NULL: no */
    const float *dmean;
    int ld_dmean;
    int edges;
    float *partial;        /* (parts, Q, all_squares, 64 * 64) */
    uint2 *quarter_debs;   /* Q > 1: (Q, E, D) in bf16 */
    float *spans;          /* Q > 1: see lean_norm_kernel */
    int parts;             /* of Q blocks each */
    const float4 *weights; /* attention: of the edges (lean_attention.cuh) */
    const float *v[2];     /* and vf, vb */
};

/* Shared memory, in this order; a warpgroup's panels are strips of eb, do, z, dx. MS: strips of
 * messages of a block. */
template <int D, int Q, int MS> struct layout {
    static constexpr bool ahead = D <= 64; /* which of the two ways the computing warpgroups go */
    static constexpr int zs = 2 * D / Q;   /* columns of z of a block */
    static constexpr int wide = (D + strip - 1) / strip, z_strips = zs / strip;
    static constexpr int strips = MS + z_strips, messages = MS * strip, hidden = strips * strip;
    static constexpr int tile_eb = 0, tile_do = wide, tile_z = 2 * wide,
                         tile_dx = 2 * wide + z_strips;
    static constexpr int of_w1 = strips * wide, used_squares = of_w1 + wide * z_strips;
    static_assert(used_squares <= all_squares, "weight gradients stay in registers");
    /* Sums over segments: with the whole of deb at hand deb, deb e^; always de' (w2 z + c2), do / 2
     * (of its columns a block has a Q-th). */
    static constexpr int kinds = Q == 1 ? 4 : 2, kind_gate = kinds - 2, kind_do = kinds - 1;
    static constexpr int w2 = (int)panel_bytes(hidden, D), tiles = w2 + (int)panel_bytes(D, zs),
                         each = (tile_dx + strips) * strip_bytes, carried = tiles + groups * each,
                         sums = carried + groups * strips * 128 * 16,
                         tables = sums + groups * 4 * kinds * D * 4,
                         gradients = tables + groups * 4 * (rows_a_bytes + rows_b_bytes),
                         c2 = gradients + (ahead ? groups * 4 * rows_b_bytes : 0),
                         bytes = c2 + D * 4;
    static_assert(bytes <= 227 * 1024, "what a block may have");
    /* Of the block's hidden columns, the first of strip `s` among all. */
    static __device__ int place(int s, int quarter) {
        return s < MS ? quarter * messages + s * strip
                      : Q * messages + quarter * zs + (s - MS) * strip;
    }
};

/* Adds up what the kernel left: partials and graphs' sums now (with Q = 4 the rows' gradient too),
 * weights beside what follows. */
void lean_add_up(const wf_op *op, const lean_gradient &p);
/* Rows of p.spans. */
int lean_spans(const wf_part *part);

/* Named barriers. */
enum { barrier_group = 1, barrier_full = 3, barrier_empty = 5 };
__device__ inline void meet(int id) { asm volatile("bar.sync %0, 384;" ::"r"(id) : "memory"); }
__device__ inline void signal(int id) { asm volatile("bar.arrive %0, 384;" ::"r"(id) : "memory"); }

extern __shared__ __align__(1024) unsigned char shared[];

/* What both kinds of warpgroup know. */
template <int D, int Q, int MS> struct worker {
    using at = layout<D, Q, MS>;
    const lean_gradient &p;
    int quarter, warp, lane, thread; /* thread of the warpgroup */
    int column;                      /* the lane's first of sixteen */
    int place;                       /* of the warpgroup in the block */

    __device__ explicit worker(const lean_gradient &args)
        : p(args), quarter((int)blockIdx.x % Q),
          place(__shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0)) {
        refresh();
    }
    /* Computes the place of this thread again, so that what is derived from it need not stay in
     * registers from one phase to the next. */
    __device__ void refresh() {
        int id;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
        warp = id / 32 % 4;
        lane = id % 32;
        thread = id % 128;
        column = 4 * (lane % 4);
        if (!at::ahead) place = id / 128; /* registers are short */
    }

    __device__ panel tile(int group, int index) const {
        return panel{shared_address(shared) +
                         (uint32_t)(at::tiles + group * at::each + index * strip_bytes),
                     tile_rows};
    }
    /* Pairs first .. last - 1 of the `round`-th task of a compute warpgroup; none after the last
     * task. */
    __device__ void chunk_of(int round, int group, int *first, int *last) const {
        int parts = (int)gridDim.x / Q,
            task = (round * parts + (int)blockIdx.x / Q) * groups + group;
        *first = min(task, p.f.n_tasks) * p.f.list_length;
        *last = task < p.f.n_tasks ? *first + p.f.list_length : *first;
    }
    __device__ int rounds() const {
        int each = (int)gridDim.x / Q * groups;
        return (p.f.n_tasks + each - 1) / each;
    }
};

/* --- units ------------------------------------------------------------------------------------ */
/* Twice two activations, and twice their slopes, in fp16: x + x t and 1 + t + x r (1 - t^2), t =
 * tanh(x p). */
template <bool Gelu>
__device__ inline void double_units(float low, float high, uint32_t *value, uint32_t *slope) {
    uint32_t x, t, r = 0x38003800u; /* a half */
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    if (Gelu) /* p = 0.79788 + 0.035677 x^2, r = p + 2 * 0.035677 x^2; after x^2 = 240 tanh is 1 */
        asm("{.reg .b32 s, p; mul.f16x2 s, %2, %2; min.f16x2 s, s, %3; fma.rn.f16x2 p, s, %4, %5; "
            "fma.rn.f16x2 %1, s, %6, %5; mul.f16x2 p, p, %2; tanh.approx.f16x2 %0, p;}"
            : "=r"(t), "=r"(r)
            : "r"(x), "r"(0x5b805b80u), "r"(0x28912891u), "r"(0x3a623a62u), "r"(0x2eda2edau));
    else
        asm("{.reg .b32 p; mul.f16x2 p, %1, %2; tanh.approx.f16x2 %0, p;}"
            : "=r"(t)
            : "r"(x), "r"(r));
    asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(*value) : "r"(x), "r"(t));
    asm("{.reg .b32 n, u, w; neg.f16x2 n, %1; fma.rn.f16x2 u, n, %1, %4; mul.f16x2 u, u, %2; "
        "add.f16x2 w, %1, %4; fma.rn.f16x2 %0, u, %3, w;}"
        : "=r"(*slope)
        : "r"(t), "r"(x), "r"(r), "r"(0x3c003c00u));
}

/* What both ways to compute have in common. */
template <int D, int Q, int MS> struct computing : worker<D, Q, MS> {
    using base = worker<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::lane;
    using base::p;
    using base::place;
    using base::quarter;
    using base::refresh;
    using base::thread;
    using base::tile;
    using base::warp;

    lane_rows rows;
    float carried[(at::kinds * D + 127) / 128];

    __device__ explicit computing(const lean_gradient &args) : base(args) {}

    /* Weights, and the warp's place for tables. */
    __device__ panel w1() const { return panel{shared_address(shared), at::hidden}; }
    __device__ panel w2() const { return panel{shared_address(shared) + (uint32_t)at::w2, D}; }
    __device__ shared_strip next() const {
        unsigned char *base =
            shared + at::tables + (place * 4 + warp) * (rows_a_bytes + rows_b_bytes);
        return shared_strip{base, base + rows_a_bytes};
    }

    __device__ float *sums() const {
        return (float *)(shared + at::sums) + place * 4 * at::kinds * D;
    }
    /* Where the warp's sums of a kind go. */
    __device__ float *sums_of(int kind) const { return sums() + (warp * at::kinds + kind) * D; }
    /* The sums of segments, after a barrier: a thread has every 128th column of all kinds. */
    __device__ void sum_segments(const tile_segments &t) {
        float *to = p.f.segment_sums + (size_t)quarter * p.f.n_segments * (at::kinds * D);
#pragma unroll
        for (int i = 0; i < (at::kinds * D + 127) / 128; i++) {
            int col = thread + 128 * i;
            if (col >= at::kinds * D) break;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (t.begins >> k & 1) carried[i] = 0;
                carried[i] += sums()[k * at::kinds * D + col];
                if (t.ends >> k & 1) to[(size_t)t.segment[k] * (at::kinds * D) + col] = carried[i];
            }
        }
    }

    /* Under attention: vf and vb of the block's messages, after all else; `times` what the rows'
     * messages pull by, towards a and b, along vf and vb, nothing where there is no edge. */
    __device__ const float *vectors() const { return (const float *)(shared + at::bytes); }
    __device__ void load_weights(float4 (&by)[2], float times) const {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 x = load_constant((const float *)(p.weights + rows.row[k]));
            x = masked(rows.there[k], scaled(times, x));
            by[k] = rows.from_a ? make_float4(x.y, x.x, x.z, x.w) : x;
        }
    }

    /* The tables for strip s; strips of z come first. */
    __device__ void fetch(int s) {
        const float *of_a = rows.from_a ? p.f.as : p.f.ad, *of_b = rows.from_a ? p.f.ad : p.f.as;
        int from = p.f.skipped + at::place(s, quarter);
        next().fetch(of_a + (size_t)rows.a * p.f.ld_table + from,
                     of_b + (size_t)rows.b[0] * p.f.ld_table + from,
                     of_b + (size_t)rows.b[1] * p.f.ld_table + from);
    }

    /* --- products, running when the call returns: wait, then settle --- */
    /* x of strip s of z, in which the tables stand already, and dz. */
    __device__ void start_strip(float (&x)[strip_tiles][4], float (&dz)[strip_tiles][4],
                                int s) const {
        begin<group_products>();
        tile_forward_mma<group_products, D / 16>(x, tile(place, at::tile_eb), 16 * warp, 0, w1(),
                                                 at::messages + s * strip, 0, false);
        tile_backward_mma<group_products, D / 16>(dz, tile(place, at::tile_do), 16 * warp, 0, w2(),
                                                  0, s * strip, true);
        commit<group_products>();
    }
    /* x of strip s of the messages, in which the tables stand already. */
    __device__ void start_message(float (&x)[strip_tiles][4], int s) const {
        begin<group_products>();
        tile_forward_mma<group_products, D / 16>(x, tile(place, at::tile_eb), 16 * warp, 0, w1(),
                                                 s * strip, 0, false);
        commit<group_products>();
    }
    /* w2 z. */
    __device__ void start_update(float (&o)[D / 8][4]) const {
        begin<group_products>();
        tile_forward_mma<group_products, at::zs / 16>(o, tile(place, at::tile_z), 16 * warp, 0,
                                                      w2(), 0, 0, true);
        commit<group_products>();
    }
    /* deb of the block's columns. */
    __device__ void start_deb(float (&deb)[D / 8][4]) const {
        begin<group_products>();
#pragma unroll
        for (int s = 0; s < at::strips; s++)
            tile_backward_mma<group_products, strip / 16>(deb, tile(place, at::tile_dx + s),
                                                          16 * warp, 0, w1(), s * strip, 0, s == 0);
        commit<group_products>();
    }

    /* --- activations and slopes of a strip, doubled --- */
    /* Strip s of z: z and dx = dz y' go to their panels. */
    template <bool Gelu>
    __device__ void units(float (&x)[strip_tiles][4], float (&dz)[strip_tiles][4], int s) const {
#pragma unroll
        for (int j = 0; j < strip / 16; j++) {
            fragment z;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float *pair = &x[2 * j + k / 2][k % 2 * 2], *of = &dz[2 * j + k / 2][k % 2 * 2];
                uint32_t value, slope;
                double_units<Gelu>(pair[0], pair[1], &value, &slope);
                float2 both = unpack_half(value), by = unpack_half(slope);
                z.r[k] = pack(both.x, both.y);
                of[0] *= by.x, of[1] *= by.y;
            }
            store_fragment(tile(place, at::tile_z + s), 16 * warp, j, z);
        }
        store_strip(at::tile_dx + at::messages / strip + s, dz);
    }
    template <bool Gelu>
    static __device__ void slopes(uint32_t (&slope)[strip_tiles][2],
                                  const float (&x)[strip_tiles][4]) {
#pragma unroll
        for (int j = 0; j < strip_tiles; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t value;
                double_units<Gelu>(x[j][2 * k], x[j][2 * k + 1], &value, &slope[j][k]);
            }
    }
    static __device__ void multiply_slopes(float (&x)[strip_tiles][4],
                                           const uint32_t (&slope)[strip_tiles][2]) {
#pragma unroll
        for (int j = 0; j < strip_tiles; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float2 two = unpack_half(slope[j][k]);
                x[j][2 * k] *= two.x, x[j][2 * k + 1] *= two.y;
            }
    }

    __device__ void store_strip(int index, const float (&x)[strip_tiles][4]) const {
#pragma unroll
        for (int j = 0; j < strip / 16; j++)
            store_fragment(tile(place, index), 16 * warp, j, fragment_of(x[2 * j], x[2 * j + 1]));
    }
};

} // namespace wf_gpu::lean
