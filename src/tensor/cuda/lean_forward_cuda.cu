/* lean_forward_cuda: the edges of a lean block forward, and the sums of its slots.
 *
 *   eb = LN(e) modulated    [m | z] = unit(w1 eb + ad[dst] + as[src])    e' = e + (1 + gate) (w2 z + c2)
 * warp    takes a strand (tensor/octets.h) on its own, a pair of octets at a time: 16 rows whose way stays in registers. The
 *         four warps of a warpgroup share wgmma alone; there is no barrier behind the staging of the weights
 * tables  node a's eight rows lie in shared memory in bf16 for a whole run, b's two for a pair; x begins as their product
 *         with a matrix of zeros and halves (mma.sync), and w1 is halved too: the unit works on x / 2
 * units   in fp16, two at a time; m, z and w2 are fp16 too, finer than bf16 and wide enough behind a unit
 * sums    products of a matrix of zeros and ones with the transposed fragments of m: towards a carried in shared memory
 *         over a run, towards b stored, both as slots in bf16; sums of eb over a run likewise, in fp32
 * D <= 64 one launch of four warpgroups; D = 128: one for the messages, one for z and e', of three each: their weights do
 *         not fit together
 * flops   2 (M + 4D) D an edge = 12 D^2 at M = 2D, and D^2 / 2 .. 2 D^2 more for tables and sums
 * bytes   e read twice (the second time from L2; D = 128: three times), e' written: 8D of HBM; tables 4 (M + 2D) (1/12 +
 *         1/8); slots 2M (1/8 + 1/12) written and read
 * measured on an H200, 256 graphs, launch after launch: 64-16-8-10 at D = 64 0.126 ms, with the sums 0.141; 784-32-32-10
 *         folded at D = 128 0.148 + 0.252 ms, with the sums 0.422. 261 MB of HBM in the first, 48 % of the bandwidth; 34 %
 *         of the issue slots (37 million warp instructions): what binds is the length of a warp's chain
 * tried   three warpgroups of 168 registers: 0.150 ms; two, with strips through shared memory: 0.146; units in fp32: 2,310
 *         instructions a pair, and spills; the next product under way during the units: no gain */
#include "tensor/cuda/lean_fused_cuda.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace mma;

template <int D> struct crew {
    static constexpr int groups = D > 64 ? 3 : 4, warps = WF_OCTET_WARPS * groups,
                         threads = 32 * warps;
};
enum { strip = 64, piece = 32, held_rows = WF_OCTET + 2 };

/* Shared memory: weights, a row of zeros, c2; then of every warp its table rows (a's, b's), the modulation of its graph, sums
 * towards a. MS: strips of messages; Update: z and e' too. */
template <int D, int MS, bool Update> struct layout {
    static constexpr int messages = MS * strip, hidden = messages + (Update ? 2 * D : 0);
    static constexpr int pitch = 2 * hidden + 16; /* rows of a table in different banks */
    static constexpr int w2 = (int)panel_bytes(hidden, D);
    static constexpr int zeros = w2 + (Update ? (int)panel_bytes(D, 2 * D) : 0);
    static constexpr int c2 = zeros + pitch, own = c2 + D * 4;
    static constexpr int modulation = held_rows * pitch;
    static constexpr int carried = modulation + (Update ? 3 * D * 4 : 0);
    static constexpr int each = carried + WF_OCTET * messages * 4;
    static constexpr int bytes = own + crew<D>::warps * each;
};

extern __shared__ __align__(1024) unsigned char shared[];

/* --- single instructions ------------------------------------------------------------------------------------------ */
/* Loads where they stand: the compiler would move them to where they are used, or a whole pair's to its beginning. */
__device__ inline float4 load_shared(uint32_t from) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}
__device__ inline float4 load_global(const float *from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
__device__ inline void store_shared(uint32_t to, const float4 &x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z),
                 "f"(x.w)
                 : "memory");
}
__device__ inline void store_shared(uint32_t to, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void prefetch_line(const float *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

/* acc = a b: operands in bf16, or in fp16. */
template <bool Half>
__device__ inline void fresh_mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0,
                                 uint32_t b1) {
    if (Half)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                     : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                     : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* The 8 x 8 blocks of a fragment transposed: operand b of the product that sums its rows, for columns 0..7 (two) and 8..15. */
__device__ inline fragment transposed(const fragment &f) {
    fragment out;
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(out.r[k])
                     : "r"(f.r[k]));
    return out;
}

/* --- products with w2, in fp16 ------------------------------------------------------------------------------------- */
#if WF_HAS_WGMMA
#define WF_HALF_MMA(n, list, outs, a0, a1, a2, a3, b, add)                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" add ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 " list ", {%" a0 ",%" a1   \
                 ",%" a2 ",%" a3 "}, %" b ", p, 1, 1, 0;}"                                         \
                 : outs                                                                            \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b_at), "r"(added))
template <int Tiles>
__device__ inline void half_group_mma(float (&acc)[Tiles][4], const fragment &a, uint64_t b_at,
                                      int added) {
    if constexpr (Tiles == 16)
        WF_HALF_MMA("128", WF_REGS64, WF_ACC64(0), "64", "65", "66", "67", "68", "69");
    else if constexpr (Tiles == 8)
        WF_HALF_MMA("64", WF_REGS32, WF_ACC32(0), "32", "33", "34", "35", "36", "37");
    else WF_HALF_MMA("32", WF_REGS16, WF_ACC16(0), "16", "17", "18", "19", "20", "21");
}
#undef WF_HALF_MMA
#endif

/* As forward_mma of all rows of the panel, whose values are fp16. */
template <int Tiles, int Steps>
__device__ inline void half_mma(float (&acc)[Tiles][4], const fragment (&x)[Steps], const panel &w,
                                int k0, bool fresh) {
#if WF_HAS_WGMMA
#pragma unroll
    for (int s = 0; s < Steps; s++)
        half_group_mma(acc, x[s], forward_descriptor(w, 0, k0 + 16 * s), !fresh || s > 0);
#else
    if (fresh) clear(acc);
#pragma unroll
    for (int s = 0; s < Steps; s++)
#pragma unroll
        for (int t = 0; t < Tiles; t += 2) {
            uint32_t b[4];
            float sum[2][4];
            load_matrices(b, forward_address(w, 8 * t, k0 / 8 + 2 * s));
            fresh_mma<true>(sum[0], x[s].r, b[0], b[1]);
            fresh_mma<true>(sum[1], x[s].r, b[2], b[3]);
#pragma unroll
            for (int k = 0; k < 4; k++) acc[t][k] += sum[0][k], acc[t + 1][k] += sum[1][k];
        }
#endif
}

/* --- units ----------------------------------------------------------------------------------------------------------- */
__device__ inline uint32_t pack_half(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
/* Two units, given x / 2 of both: half + half * tanh(inner). */
template <bool Gelu> __device__ inline uint32_t units_of_halves(float low, float high) {
    uint32_t half = pack_half(low, high), inner = half, out;
    if (Gelu) /* x (0.79788 + 0.035677 x^2) */
        asm("{.reg .b32 s; mul.f16x2 s, %1, %1; fma.rn.f16x2 s, s, %2, %3; mul.f16x2 %0, s, %1;}"
            : "=r"(inner)
            : "r"(half), "r"(0x34913491u), "r"(0x3e623e62u));
    asm("{.reg .b32 t; tanh.approx.f16x2 t, %2; fma.rn.f16x2 %0, %1, t, %1;}"
        : "=r"(out)
        : "r"(half), "r"(inner));
    return out;
}
template <bool Gelu, int Groups>
__device__ inline void into_units(const float (&x)[2 * Groups][4], fragment (&to)[Groups]) {
#pragma unroll
    for (int j = 0; j < Groups; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[j].r[k] =
                units_of_halves<Gelu>(x[2 * j + k / 2][k % 2 * 2], x[2 * j + k / 2][k % 2 * 2 + 1]);
}

/* w (rows, Cols) into a panel in fp16, by words of two columns: neighbouring threads read neighbours. */
template <int Cols> __device__ inline void stage_halves(const panel &to, const float *w, int rows) {
    const unsigned words = Cols / 2;
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < (unsigned)rows * words; i += (int)blockDim.x) {
        int row = (int)(i / words), position = position_of((int)(2 * (i % words)));
        float low = __ldg(w + 2 * i), high = __ldg(w + 2 * i + 1);
        store_shared(to.at(position_of(row), position / 8) + (uint32_t)(position % 8 * 2),
                     pack_half(low, high));
    }
    publish();
}

/* A pair of octets as a lane sees it. `record`: lane k has word k of the pair, k < 16. */
struct pair_of_octets {
    uint32_t row[2];
    int count[2], a0, graph, run;
    bool from_a, begins, ends;

    static __device__ int word(int record, int k) { return __shfl_sync(0xffffffffu, record, k); }
    static __device__ int load(const wf_octet *octets, int pair) {
        return __ldg((const int *)(octets + 2 * pair) + threadIdx.x % 16);
    }
    __device__ explicit pair_of_octets(int record) {
        int g = (int)(threadIdx.x % 32 / 4), about = word(record, 6);
        count[0] = about & 0xff;
        count[1] = word(record, 14) & 0xff;
        from_a = (about & 0xff00) != 0;
        begins = (about & 0xff0000) != 0;
        ends = (about & 0xff000000) != 0;
        row[0] = (uint32_t)(word(record, 0) + (g < count[0] ? g : 0) * word(record, 1));
        row[1] = (uint32_t)(word(record, 8) + (g < count[1] ? g : 0) * word(record, 9));
        a0 = word(record, 2);
        graph = word(record, 4);
        run = word(record, 5);
    }
};

/* One warp's way through its strands. */
template <int D, int MS, bool Update, bool Gelu> struct walker {
    using at = layout<D, MS, Update>;
    const lean_fused &p;
    panel w1, w2;
    int lane, g, c, column; /* column: the lane's first of sixteen */
    uint32_t own, tables;   /* tables, of ldmatrix: rows of a, then of b, then zeros */
    fragment eb[D / 16];
    float mean_carried[D > 64 ? 4 : 2];
    float4 held[2][2]; /* rows of the next b */

    __device__ explicit walker(const lean_fused &args)
        : p(args), w1{shared_address(shared), at::hidden}, w2{shared_address(shared) +
                                                                  (uint32_t)at::w2,
                                                              D},
          lane((int)(threadIdx.x % 32)), g((int)(threadIdx.x % 32 / 4)), c((int)(threadIdx.x % 4)),
          column(4 * c) {
        unsigned warp = threadIdx.x / 32, matrix = threadIdx.x % 32 / 8, k = threadIdx.x % 8;
        own = shared_address(shared) + at::own + warp * at::each;
        tables = matrix % 2 == 0 ? own + k * at::pitch
                 : k < 2         ? own + (WF_OCTET + k) * at::pitch
                                 : shared_address(shared) + at::zeros;
        tables += matrix / 2 * 16;
#pragma unroll
        for (float &sum : mean_carried) sum = 0;
    }

    __device__ void stage() const {
        stage_panel<true>(w1, 0, p.w1.at(p.skipped, 0), w1.rows, D);
        if (Update) stage_halves<2 * D>(w2, p.w2.w, D);
        for (int i = (int)threadIdx.x; i < at::pitch / 4; i += (int)blockDim.x)
            ((uint32_t *)(shared + at::zeros))[i] = 0;
        for (int i = (int)threadIdx.x; i < D && Update; i += (int)blockDim.x)
            ((float *)(shared + at::c2))[i] = p.c2[i];
        __syncthreads();
    }

    /* --- tables ---------------------------------------------------------------------------------------------- */
    /* Four columns of a table row into row `row` of the warp's, by position. */
    __device__ void put(int row, int col, const float4 &x) const {
        uint32_t to = own + (uint32_t)(row * at::pitch + col / 16 * 32 + col % 16);
        store_shared(to, pack(x.x, x.y));
        store_shared(to + 16, pack(x.z, x.w));
    }
    /* A run begins: the rows of its nodes a, its graph's modulation, no sums yet. */
    __device__ void open_run(const pair_of_octets &o) const {
        __syncwarp(); /* the last run's have been read */
        const float *from = (o.from_a ? p.as : p.ad) + p.skipped + 4 * lane;
        const float *mod = p.modulation + (size_t)o.graph * p.ld_modulation + lane;
#pragma unroll
        for (int first = 0; first < at::hidden; first += 128) {
            if (first + 4 * lane >= at::hidden) continue;
            float4 x[WF_OCTET];
#pragma unroll
            for (int k = 0; k < WF_OCTET; k++)
                x[k] = load_global(from + (size_t)(o.a0 + (k < o.count[0] ? k : 0)) * p.ld_table +
                                   first);
#pragma unroll
            for (int k = 0; k < WF_OCTET; k++) put(k, first + 4 * lane, x[k]);
        }
        if (Update) {
            float x[3 * D / 32];
#pragma unroll
            for (int k = 0; k < 3 * D / 32; k++) x[k] = __ldg(mod + 32 * k);
#pragma unroll
            for (int k = 0; k < 3 * D / 32; k++) /* 1 + scale, 1 + gate */
                store_shared(own + at::modulation + (uint32_t)(4 * lane + 128 * k),
                             __float_as_uint(k < D / 32 ? x[k] : 1 + x[k]));
        }
#pragma unroll
        for (int k = 0; k < at::messages / 16; k++)
            store_shared(own + at::carried + (uint32_t)(512 * k + 16 * lane),
                         make_float4(0, 0, 0, 0));
    }
    /* Rows of the two b of a pair: into registers, and from there. */
    __device__ void fetch_b(int record) {
        bool from_a = (pair_of_octets::word(record, 6) & 0xff00) != 0;
        const float *from = (from_a ? p.ad : p.as) + p.skipped + 4 * lane;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float *row = from + (size_t)pair_of_octets::word(record, 8 * k + 3) * p.ld_table;
#pragma unroll
            for (int i = 0; i < (at::hidden + 127) / 128; i++)
                if (4 * lane + 128 * i < at::hidden) held[k][i] = load_global(row + 128 * i);
        }
    }
    __device__ void put_b() const {
        __syncwarp(); /* the last pair's have been read */
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < (at::hidden + 127) / 128; i++)
                if (4 * lane + 128 * i < at::hidden)
                    put(WF_OCTET + k, 4 * lane + 128 * i, held[k][i]);
        __syncwarp();
    }

    /* x / 2 of hidden columns from n on, under way. */
    template <int Tiles> __device__ void start(float (&x)[Tiles][4], int n) const {
        const uint32_t low = 0x00003f00u, high = 0x3f000000u; /* a half */
        uint32_t mine = g / 2 != c ? 0u : g % 2 ? high : low;
        uint32_t pick[4] = {mine, mine, c == 0 ? low : 0u, c == 0 ? high : 0u};
#pragma unroll
        for (int t = 0; t < Tiles; t += 2) {
            uint32_t b[4];
            load_transposed(b, tables + (uint32_t)(2 * n + 16 * t));
            fresh_mma<false>(x[t], pick, b[0], b[1]);
            fresh_mma<false>(x[t + 1], pick, b[2], b[3]);
        }
        begin<true>();
        forward_mma<true>(x, eb, w1, n, 0, false);
        commit<true>();
    }

    /* --- rows -------------------------------------------------------------------------------------------------- */
    /* What comes after this pair, on its way to L2: its rows of e, and a new run's tables. */
    __device__ void fetch_next(int record) {
        int half = lane / 8 % 2, k = lane % 8;
        int first = pair_of_octets::word(record, 8 * half);
        int stride = pair_of_octets::word(record, 8 * half + 1);
        int count = pair_of_octets::word(record, 8 * half + 6) & 0xff;
        const float *row = p.e + (size_t)(uint32_t)(first + (k < count ? k * stride : 0)) * D;
#pragma unroll
        for (int i = 0; i < (D + 63) / 64; i++)
            if (lane / 16 * 32 + 64 * i < D) prefetch_line(row + lane / 16 * 32 + 64 * i);
        int about = pair_of_octets::word(record, 6), a0 = pair_of_octets::word(record, 2);
        if ((about & 0xff0000) != 0) {
            const float *from = ((about & 0xff00) != 0 ? p.as : p.ad) + p.skipped;
            int row_of = lane / 4 < (about & 0xff) ? lane / 4 : 0;
            from += (size_t)(a0 + row_of) * p.ld_table + lane % 4 * 32;
#pragma unroll
            for (int i = 0; i < at::hidden; i += 128)
                if (i + lane % 4 * 32 < at::hidden) prefetch_line(from + i);
        }
    }

    __device__ void norm(const pair_of_octets &o, int next, bool more) {
        float4 v[2][D / 16];
        load_rows(v, o);
        if (o.begins) open_run(o);
        __syncwarp();
        float rho[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float sum = 0, square = 0;
#pragma unroll
            for (int j = 0; j < D / 16; j++) sum += v[k][j].x + v[k][j].y + (v[k][j].z + v[k][j].w);
            float mean = quad_sum(sum) * (1.0f / D);
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                float4 x = v[k][j];
                x = make_float4(x.x - mean, x.y - mean, x.z - mean, x.w - mean);
                square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
                v[k][j] = x;
            }
            asm("rsqrt.approx.ftz.f32 %0, %1;"
                : "=f"(rho[k])
                : "f"(quad_sum(square) * (1.0f / D) + 1e-6f));
        }
        if (more) fetch_next(next);
        const float *mod = p.modulation + (size_t)o.graph * p.ld_modulation + column;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift, scale;
            if (Update) {
                uint32_t from = own + at::modulation + (uint32_t)(16 * c + 64 * j);
                shift = load_shared(from);
                scale = load_shared(from + D * 4);
            } else {
                shift = __ldg((const float4 *)(mod + 16 * j));
                scale = __ldg((const float4 *)(mod + D + 16 * j));
                scale = make_float4(1 + scale.x, 1 + scale.y, 1 + scale.z, 1 + scale.w);
            }
            float4 y[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                y[k] = make_float4(
                    v[k][j].x * rho[k] * scale.x + shift.x, v[k][j].y * rho[k] * scale.y + shift.y,
                    v[k][j].z * rho[k] * scale.z + shift.z, v[k][j].w * rho[k] * scale.w + shift.w);
            eb[j] = fragment_of(y[0], y[1]);
        }
    }

    /* Ones where the octet has edges, for the two rows k = 2c, 2c + 1 of a product's operand. */
    static __device__ uint32_t ones(int c, int count, uint32_t one) {
        return (2 * c < count ? one : 0u) | (2 * c + 1 < count ? one << 16 : 0u);
    }

    /* Sums of eb over a run; lane (g, c) keeps those of tile g of eight columns (and g + 8). */
    __device__ void sum_means(const pair_of_octets &o) {
        uint32_t upper = ones(c, o.count[0], 0x3f80u), lower = ones(c, o.count[1], 0x3f80u);
        uint32_t all[4] = {upper, upper, lower, lower};
#pragma unroll
        for (float &sum : mean_carried) sum = o.begins ? 0 : sum;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            fragment b = transposed(eb[j]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int t = 2 * j + k;
                float sum[4];
                fresh_mma<false>(sum, all, b.r[2 * k], b.r[2 * k + 1]);
                if (g == t % 8) {
                    mean_carried[t / 8 * 2] += sum[0];
                    mean_carried[t / 8 * 2 + 1] += sum[1];
                }
            }
        }
        if (!o.ends || g >= D / 8) return;
        float *to = p.run_sums + (size_t)o.run * D + g / 2 * 16 + column + g % 2 * 2;
#pragma unroll
        for (int i = 0; i < (D > 64 ? 2 : 1); i++)
            *(float2 *)(to + 64 * i) = make_float2(mean_carried[2 * i], mean_carried[2 * i + 1]);
    }

    /* The sums of a strip of messages towards both ends. */
    __device__ void sum_messages(const fragment (&m)[strip / 16], const pair_of_octets &o, int pair,
                                 int n) const {
        uint32_t low = 0x00003c00u, high = 0x3c000000u, one = g / 2 != c ? 0u : g % 2 ? high : low;
        uint32_t pick[4] = {g < o.count[0] ? one : 0u, g == 0 ? ones(c, o.count[0], 0x3c00u) : 0u,
                            g < o.count[1] ? one : 0u, g == 1 ? ones(c, o.count[1], 0x3c00u) : 0u};
        uint32_t carried = own + at::carried + (uint32_t)(16 * lane);
        uint2 to_b[strip / 16], to_a[strip / 16];
#pragma unroll
        for (int j = 0; j < strip / 16; j++) {
            float4 sum = load_shared(carried + (uint32_t)((n / 16 + j) * 512));
            float acc[2][4];
            fragment b = transposed(m[j]);
            fresh_mma<true>(acc[0], pick, b.r[0], b.r[1]);
            fresh_mma<true>(acc[1], pick, b.r[2], b.r[3]);
            sum = make_float4(sum.x + acc[0][0], sum.y + acc[0][1], sum.z + acc[1][0],
                              sum.w + acc[1][1]);
            store_shared(carried + (uint32_t)((n / 16 + j) * 512), sum);
            to_b[j] = make_uint2(pack(acc[0][2], acc[0][3]), pack(acc[1][2], acc[1][3]));
            to_a[j] = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
        }
        uint16_t *slots = (uint16_t *)p.slots + n + column;
        if (g < 2 && (g == 0 ? o.count[0] : o.count[1]) > 0) {
            uint16_t *to = slots + (size_t)(uint32_t)(2 * pair + g) * at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(uint2 *)(to + 16 * j) = to_b[j];
        }
        if (o.ends) {
            uint16_t *to =
                slots + (size_t)(uint32_t)(p.n_octets + WF_OCTET * o.run + g) * at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(uint2 *)(to + 16 * j) = to_a[j];
        }
    }

    /* All hidden columns of a pair, and the tables of the next. */
    __device__ void hidden(const pair_of_octets &o, int pair, int next) {
        if (!Update) fetch_b(next);
#pragma unroll 1
        for (int n = 0; n < at::messages; n += strip) {
            float x[strip / 8][4];
            fragment m[strip / 16];
            start(x, n);
            wait<true>();
            settle(x);
            into_units<Gelu>(x, m);
            sum_messages(m, o, pair, n);
        }
        float acc[Update ? D / 8 : 1][4];
        if constexpr (Update) {
#pragma unroll
            for (int n = 0; n < 2 * D; n += piece) {
                float x[piece / 8][4];
                fragment z[piece / 16];
                start(x, at::messages + n);
                wait<true>();
                settle(x);
                if (n + piece == 2 * D) fetch_b(next);
                into_units<Gelu>(x, z);
                begin<true>();
                half_mma(acc, z, w2, n, n == 0);
                commit<true>();
            }
        }
        put_b();
        if constexpr (Update) {
            float4 in[2][D / 16];
            load_rows(in, o);
            wait<true>();
            settle(acc);
            leave(acc, in, o);
        }
    }

    __device__ void load_rows(float4 (&in)[2][D / 16], const pair_of_octets &o) const {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                in[k][j] = load_global(p.e + (size_t)o.row[k] * D + column + 16 * j);
    }
    __device__ void leave(const float (&acc)[D / 8][4], const float4 (&in)[2][D / 16],
                          const pair_of_octets &o) const {
        uint32_t gate = own + at::modulation + (uint32_t)(2 * D * 4 + 16 * c);
        uint32_t c2 = shared_address(shared) + at::c2 + (uint32_t)(16 * c);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 by = load_shared(gate + 64 * j), add = load_shared(c2 + 64 * j);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float *first = &acc[2 * j][2 * k], *second = &acc[2 * j + 1][2 * k];
                float4 v = in[k][j];
                v = make_float4(v.x + by.x * (first[0] + add.x), v.y + by.y * (first[1] + add.y),
                                v.z + by.z * (second[0] + add.z), v.w + by.w * (second[1] + add.w));
                if (g < o.count[k]) *(float4 *)(p.out + (size_t)o.row[k] * D + column + 16 * j) = v;
            }
        }
    }

    __device__ void run() {
        int group = (int)(threadIdx.x / 128), warp = (int)(threadIdx.x / 32 % 4);
        for (int chunk = (int)blockIdx.x + (int)gridDim.x * group; chunk < p.n_chunks;
             chunk += (int)gridDim.x * crew<D>::groups) {
            int first = (chunk * WF_OCTET_WARPS + warp) * p.steps, last = first + p.steps;
            int next = pair_of_octets::load(p.octets, first);
            fetch_next(next);
            fetch_b(next);
            put_b();
#pragma unroll 1
            for (int pair = first; pair < last; pair++) {
                /* Descriptors are worked out anew: kept, they would fill the registers. */
                asm volatile("" : "+r"(w1.base), "+r"(w2.base));
                pair_of_octets now(next);
                next = pair_of_octets::load(p.octets, min(pair + 1, last - 1));
                norm(now, next, pair + 1 < last);
                if (Update) sum_means(now);
                hidden(now, pair, next);
            }
        }
    }
};

template <int D, int MS, bool Update, bool Gelu>
__global__ void __launch_bounds__(crew<D>::threads, 1)
    lean_forward_kernel(const __grid_constant__ lean_fused p) {
    walker<D, MS, Update, Gelu> w(p);
    w.stage();
    follow();
    w.run();
}

template <int D, int MS, bool Update, bool Gelu> bool launch(const lean_fused &p) {
    const int bytes = layout<D, MS, Update>::bytes;
    static_assert(bytes <= 227 * 1024, "what a block may have");
    auto kernel = lean_forward_kernel<D, MS, Update, Gelu>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    int most = processor_count(), blocks = p.n_chunks < most ? p.n_chunks : most;
    start_kernel(kernel, (unsigned)blocks, crew<D>::threads, (size_t)bytes, p);
    return launched();
}

/* By the number of strips of messages. */
template <int D, bool Gelu> bool launch_strips(lean_fused p) {
    int strips = p.messages / strip;
    if constexpr (D <= 64) {
        if (strips == 0) return launch<D, 0, true, Gelu>(p);
        if (strips == 1) return launch<D, 1, true, Gelu>(p);
        return D == 64 && launch<D, D / 32, true, Gelu>(p);
    } else {
        if (strips > 0 && !launch<D, 4, false, Gelu>(p)) return false;
        p.skipped += p.messages;
        return launch<D, 0, true, Gelu>(p);
    }
}
template <int D> bool launch_unit(const lean_fused &p, int unit) {
    return unit == WF_UNIT_GELU ? launch_strips<D, true>(p) : launch_strips<D, false>(p);
}

} // namespace

int lean::processor_count() {
    static int count = 0;
    if (count == 0) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
    return count;
}

lean_fused lean::lean_operands(const wf_op *op, const wf_octets *lines, int messages) {
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4];
    return lean_fused{lines->octets,
                      lines->n_octets,
                      lines->n_chunks,
                      lines->steps,
                      data_of(op->in[0]),
                      data_of(op->out[0]),
                      data_of(modulation) + op->column,
                      modulation->ld,
                      data_of(op->in[2]),
                      data_of(op->in[3]),
                      op->in[2]->ld,
                      weight_rows_of(w1),
                      weight_rows_of(op->in[5]),
                      data_of(op->in[6]),
                      messages,
                      w1->rows - 2 * op->in[0]->cols - messages,
                      lines->n_runs,
                      NULL,
                      NULL};
}

namespace {
/* The kernels take what a multiprocessor of sm_90 has; others work step by step. */
bool has_shared_memory() {
    static int bytes = 0;
    if (bytes == 0) cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    return bytes >= 227 * 1024;
}
} // namespace

bool lean_fused_fits(const wf_op *op) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ad = op->in[2], *w1 = op->in[4];
    int de = e->cols, messages = w1->rows - 2 * de;
    bool widths = de == 32 || de == 64 || de == 128;
    bool aligned = op->column % 4 == 0 && modulation->ld % 4 == 0 && ad->ld % 4 == 0 &&
                   ad->ld == op->in[3]->ld;
    return has_shared_memory() && widths && aligned &&
           messages % (de > 64 ? 4 * strip : strip) == 0 && messages <= 2 * de &&
           op->mode != WF_SUM_ATTENTION && op->unit != WF_UNIT_SINE &&
           op->part->strands[0] != NULL && op->part->n_edges > 0;
}

bool lean_fused_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    const wf_octets *strands = op->part->strands[de > 64];
    lean_fused p = lean_operands(op, strands, messages);
    p.slots = scratch(arena, wf_octets_slots(strands) * (size_t)(messages / 2));
    p.run_sums = scratch(arena, (size_t)strands->n_runs * (size_t)de);
    if (p.slots == NULL || p.run_sums == NULL) return false;
    bool done = de == 32   ? launch_unit<32>(p, op->unit)
                : de == 64 ? launch_unit<64>(p, op->unit)
                           : launch_unit<128>(p, op->unit);
    if (!done) return false;
    slot_sum_step graph = {op->part, p.run_sums,    de,       de,   0,      NULL,
                           true,     data_of(mean), mean->ld, true, strands};
    const uint16_t *slots = (const uint16_t *)p.slots;
    if (messages == 0) graph_run_sums(graph);
    else
        node_half_sums(
            half_sum_step{op->part,
                          {{slots, data_of(to[0]), slots_as_dst, true},
                           {slots, data_of(to[1]), slots_as_src, true}},
                          messages,
                          to[0]->ld,
                          op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL,
                          strands},
            &graph);
    return launched();
}

} // namespace wf_gpu
