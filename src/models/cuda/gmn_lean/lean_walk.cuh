/* lean_walk: how kernels that compute the edges of a lean block forward (lean_forward.cu,
 * lean_attention.cu) walk through lists of bundles: rows of e, normalised, as fragments in
 * registers; tables of both ends in shared memory; x of one strip of hidden columns at a time. */
#pragma once

#include "models/cuda/gmn_lean/lean_fused.cuh"

namespace wf_gpu::lean {
namespace walk {

using namespace mma;

template <int D> struct crew {
    static constexpr int groups = D > 64 ? 3 : 4, warps = WF_GROUP_WARPS * groups,
                         threads = 32 * warps;
};
enum { strip = 64, piece = 32, held_rows = WF_BUNDLE + 2 };

/* Shared memory: weights, a row of zeros, c2; then of every warp its table rows (a's, b's), the
 * modulation of its graph, sums towards a. MS: strips of messages; Update: z and e' too. */
template <int D, int MS, bool Update> struct layout {
    static constexpr int messages = MS * strip, hidden = messages + (Update ? 2 * D : 0);
    static constexpr int pitch = 2 * hidden + 16; /* rows of a table in different banks */
    static constexpr int w2 = (int)panel_bytes(hidden, D);
    static constexpr int zeros = w2 + (Update ? (int)panel_bytes(D, 2 * D) : 0);
    static constexpr int c2 = zeros + pitch, own = c2 + D * 4;
    static constexpr int modulation = held_rows * pitch;
    static constexpr int carried = modulation + (Update ? 3 * D * 4 : 0);
    static constexpr int each = carried + WF_BUNDLE * messages * 4;
    static constexpr int bytes = own + crew<D>::warps * each;
};

extern __shared__ __align__(1024) unsigned char shared[];

/* --- single instructions ---------------------------------------------------------------------- */
/* Loads where they stand: the compiler would move them to where they are used, or a whole pair's to
 * its beginning. */
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

/* The 8 x 8 blocks of a fragment transposed: operand b of the product that sums its rows, for
 * columns 0..7 (two) and 8..15. */
__device__ inline fragment transposed(const fragment &f) {
    fragment out;
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(out.r[k])
                     : "r"(f.r[k]));
    return out;
}

/* --- units ------------------------------------------------------------------------------------ */
/* Two activations, given x / 2 of both: half + half * tanh(inner). */
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
__device__ inline void activate(const float (&x)[2 * Groups][4], fragment (&to)[Groups]) {
#pragma unroll
    for (int j = 0; j < Groups; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[j].r[k] =
                units_of_halves<Gelu>(x[2 * j + k / 2][k % 2 * 2], x[2 * j + k / 2][k % 2 * 2 + 1]);
}

/* w (rows, Cols) into a panel in fp16, by words of two columns: neighbouring threads read
 * neighbours. */
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

/* A pair of bundles as a lane sees it. `record`: lane k has word k of the pair, k < 16. */
struct bundle_pair {
    uint32_t row[2];
    int count[2], a0, graph, segment;
    bool from_a, begins, ends;

    static __device__ int word(int record, int k) { return __shfl_sync(0xffffffffu, record, k); }
    static __device__ int load(const wf_bundle *bundles, int pair) {
        return __ldg((const int *)(bundles + 2 * pair) + threadIdx.x % 16);
    }
    __device__ explicit bundle_pair(int record) {
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
        segment = word(record, 5);
    }
};

/* One warp's way through its lists. Carries: sums towards a, zeros where a segment begins; else
 * that memory is the caller's. */
template <int D, int MS, bool Update, bool Carries = true> struct walker {
    using at = layout<D, MS, Update>;
    const lean_fused &p;
    panel w1, w2;
    int lane, g, c, column; /* column: the lane's first of sixteen */
    uint32_t own, tables;   /* tables, of ldmatrix: rows of a, then of b, then zeros */
    fragment eb[D / 16];
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
                 : k < 2         ? own + (WF_BUNDLE + k) * at::pitch
                                 : shared_address(shared) + at::zeros;
        tables += matrix / 2 * 16;
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

    /* --- tables ------------------------------------------------------------------------------- */
    /* Four columns of a table row into row `row` of the warp's, by position. */
    __device__ void put(int row, int col, const float4 &x) const {
        uint32_t to = own + (uint32_t)(row * at::pitch + col / 16 * 32 + col % 16);
        store_shared(to, pack(x.x, x.y));
        store_shared(to + 16, pack(x.z, x.w));
    }
    /* A segment begins: the rows of its nodes a, its graph's modulation, no sums yet. */
    __device__ void open_segment(const bundle_pair &o) const {
        __syncwarp(); /* the last segment's have been read */
        const float *from = (o.from_a ? p.as : p.ad) + p.skipped + 4 * lane;
        const float *mod = p.modulation + (size_t)o.graph * p.ld_modulation + lane;
#pragma unroll
        for (int first = 0; first < at::hidden; first += 128) {
            if (first + 4 * lane >= at::hidden) continue;
            float4 x[WF_BUNDLE];
#pragma unroll
            for (int k = 0; k < WF_BUNDLE; k++)
                x[k] = load_global(from + (size_t)(o.a0 + (k < o.count[0] ? k : 0)) * p.ld_table +
                                   first);
#pragma unroll
            for (int k = 0; k < WF_BUNDLE; k++) put(k, first + 4 * lane, x[k]);
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
        for (int k = 0; k < (Carries ? at::messages / 16 : 0); k++)
            store_shared(own + at::carried + (uint32_t)(512 * k + 16 * lane),
                         make_float4(0, 0, 0, 0));
    }
    /* Rows of the two b of a pair: into registers, and from there. */
    __device__ void fetch_b(int record) {
        bool from_a = (bundle_pair::word(record, 6) & 0xff00) != 0;
        const float *from = (from_a ? p.ad : p.as) + p.skipped + 4 * lane;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float *row = from + (size_t)bundle_pair::word(record, 8 * k + 3) * p.ld_table;
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
                    put(WF_BUNDLE + k, 4 * lane + 128 * i, held[k][i]);
        __syncwarp();
    }

    /* x / 2 of hidden columns from n on, running. */
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

    /* --- rows --------------------------------------------------------------------------------- */
    /* What comes after this pair, being loaded to L2: its rows of e, and a new segment's tables. */
    __device__ void fetch_next(int record) {
        int half = lane / 8 % 2, k = lane % 8;
        int first = bundle_pair::word(record, 8 * half);
        int stride = bundle_pair::word(record, 8 * half + 1);
        int count = bundle_pair::word(record, 8 * half + 6) & 0xff;
        const float *row = p.e + (size_t)(uint32_t)(first + (k < count ? k * stride : 0)) * D;
#pragma unroll
        for (int i = 0; i < (D + 63) / 64; i++)
            if (lane / 16 * 32 + 64 * i < D) prefetch_line(row + lane / 16 * 32 + 64 * i);
        int about = bundle_pair::word(record, 6), a0 = bundle_pair::word(record, 2);
        if ((about & 0xff0000) != 0) {
            const float *from = ((about & 0xff00) != 0 ? p.as : p.ad) + p.skipped;
            int row_of = lane / 4 < (about & 0xff) ? lane / 4 : 0;
            from += (size_t)(a0 + row_of) * p.ld_table + lane % 4 * 32;
#pragma unroll
            for (int i = 0; i < at::hidden; i += 128)
                if (i + lane % 4 * 32 < at::hidden) prefetch_line(from + i);
        }
    }

    __device__ void norm(const bundle_pair &o, int next, bool more) {
        float4 v[2][D / 16];
        load_rows(v, o);
        if (o.begins) open_segment(o);
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

    /* Ones where the bundle has edges, for the two rows k = 2c, 2c + 1 of a product's operand. */
    static __device__ uint32_t ones(int c, int count, uint32_t one) {
        return (2 * c < count ? one : 0u) | (2 * c + 1 < count ? one << 16 : 0u);
    }

    __device__ void load_rows(float4 (&in)[2][D / 16], const bundle_pair &o) const {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                in[k][j] = load_global(p.e + (size_t)o.row[k] * D + column + 16 * j);
    }

    /* A warp's pairs, list after list: before(pair, its record), then norm, then each(pair, its
     * place, both records). */
    template <class Before, class Each> __device__ void each_pair(Before before, Each each) {
        int group = (int)(threadIdx.x / 128), warp = (int)(threadIdx.x / 32 % 4);
        for (int task = (int)blockIdx.x + (int)gridDim.x * group; task < p.n_tasks;
             task += (int)gridDim.x * crew<D>::groups) {
            int first = (task * WF_GROUP_WARPS + warp) * p.list_length,
                last = first + p.list_length;
            int next = bundle_pair::load(p.bundles, first);
            fetch_next(next);
            fetch_b(next);
            put_b();
#pragma unroll 1
            for (int pair = first; pair < last; pair++) {
                /* Descriptors are worked out anew: kept, they would fill the registers. */
                asm volatile("" : "+r"(w1.base), "+r"(w2.base));
                bundle_pair now(next);
                int record = next;
                next = bundle_pair::load(p.bundles, min(pair + 1, last - 1));
                before(now, record);
                norm(now, next, pair + 1 < last);
                each(now, pair, record, next);
            }
        }
    }
};

} // namespace walk
} // namespace wf_gpu::lean
