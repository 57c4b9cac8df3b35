/* lean_forward: the edges of a lean block forward, and the sums of its partial sums.
 *
 *   eb = LN(e) modulated   [m | z] = f(w1 eb + ad[dst] + as[src])   e' = e + (1 + gate) (w2 z + c2)
 *
 *   warp    takes a list (models/edge_bundles.h) on its own, a pair of bundles at a time: 16
 *           rows that stay in registers. The four warps of a warpgroup have only wgmma in
 *           common; there is no barrier after the staging of the weights
 *   tables  the eight rows of nodes a are in shared memory in bf16 for a whole segment, the two
 *           of b for a pair. x begins as their product with a matrix of zeros and halves
 *           (mma.sync), and w1 is halved too: the activation works on x / 2
 *   units   activations in fp16, two at a time; m, z and w2 are fp16 too, finer than bf16 and with
 *           enough range after an activation
 *   sums    products of a matrix of zeros and ones with the transposed fragments of m: towards a
 *           carried in shared memory over a segment, towards b stored, both as partial sums in
 *           bf16; sums of eb over a segment likewise, in fp32
 *   D       D <= 64: one launch of four warpgroups. D = 128: one launch for the messages, one
 *           for z and e', of three warpgroups each, because their weights do not fit together.
 *           Under attention lean_attention.cu makes the messages, at all widths
 *   flops   2 (M + 4D) D an edge = 12 D^2 at M = 2D, and D^2 / 2 .. 2 D^2 more for tables and sums
 *   bytes   e read twice (the second time from L2; D = 128: three times), e' written: 8D of HBM;
 *           tables 4 (M + 2D) (1/12 + 1/8); partial sums 2M (1/8 + 1/12) written and read
 * The dependent instructions of a warp are the limit: a third of the issue slots and half of the
 * bandwidth are used on an H200. docs/results/2026-11-15-cuda-bf16.md has times, and what was
 * tried. */
#include "models/cuda/gmn_lean/lean_attention.cuh"
#include "models/cuda/gmn_lean/lean_walk.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace lean::walk;

/* --- products with w2, in fp16 ---------------------------------------------------------------- */
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

/* One warp's way. */
template <int D, int MS, bool Update, bool Gelu> struct forward_walker : walker<D, MS, Update> {
    using base = walker<D, MS, Update>;
    using at = layout<D, MS, Update>;
    using base::c;
    using base::column;
    using base::eb;
    using base::fetch_b;
    using base::g;
    using base::lane;
    using base::load_rows;
    using base::ones;
    using base::own;
    using base::p;
    using base::put_b;
    using base::start;
    using base::w2;

    float mean_carried[D > 64 ? 4 : 2];

    __device__ explicit forward_walker(const lean_fused &args) : base(args) {
#pragma unroll
        for (float &sum : mean_carried) sum = 0;
    }

    /* Sums of eb over a segment; lane (g, c) keeps those of tile g of eight columns (and g + 8). */
    __device__ void sum_means(const bundle_pair &o) {
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
        float *to = p.segment_sums + (size_t)o.segment * D + g / 2 * 16 + column + g % 2 * 2;
#pragma unroll
        for (int i = 0; i < (D > 64 ? 2 : 1); i++)
            *(float2 *)(to + 64 * i) = make_float2(mean_carried[2 * i], mean_carried[2 * i + 1]);
    }

    /* The sums of a strip of messages towards both ends. */
    __device__ void sum_messages(const fragment (&m)[strip / 16], const bundle_pair &o, int pair,
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
        uint16_t *partials = (uint16_t *)p.partials + n + column;
        if (g < 2 && (g == 0 ? o.count[0] : o.count[1]) > 0) {
            uint16_t *to = partials + (size_t)(uint32_t)(2 * pair + g) * at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(uint2 *)(to + 16 * j) = to_b[j];
        }
        if (o.ends) {
            uint16_t *to = partials + (size_t)(uint32_t)(p.n_bundles + WF_BUNDLE * o.segment + g) *
                                          at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(uint2 *)(to + 16 * j) = to_a[j];
        }
    }

    /* All hidden columns of a pair, and the tables of the next. */
    __device__ void hidden(const bundle_pair &o, int pair, int next) {
        if (!Update) fetch_b(next);
#pragma unroll 1
        for (int n = 0; n < at::messages; n += strip) {
            float x[strip / 8][4];
            fragment m[strip / 16];
            start(x, n);
            wait<true>();
            settle(x);
            activate<Gelu>(x, m);
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
                activate<Gelu>(x, z);
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

    __device__ void leave(const float (&acc)[D / 8][4], const float4 (&in)[2][D / 16],
                          const bundle_pair &o) const {
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
        base::each_pair([](const bundle_pair &, int) {},
                        [&](const bundle_pair &now, int pair, int, int next) {
                            if (Update) sum_means(now);
                            hidden(now, pair, next);
                        });
    }
};

template <int D, int MS, bool Update, bool Gelu>
__global__ void __launch_bounds__(crew<D>::threads, 1)
    lean_forward_kernel(const __grid_constant__ lean_fused p) {
    forward_walker<D, MS, Update, Gelu> w(p);
    w.stage();
    wait_for_previous();
    w.run();
}

template <int D, int MS, bool Update, bool Gelu> bool launch(const lean_fused &p) {
    const int bytes = layout<D, MS, Update>::bytes;
    static_assert(bytes <= 227 * 1024, "what a block may have");
    auto kernel = lean_forward_kernel<D, MS, Update, Gelu>;
    int most = processor_count(), blocks = p.n_tasks < most ? p.n_tasks : most;
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
template <int D> bool launch_activation(const lean_fused &p, int act) {
    return act == WF_TAPE_ACT_GELU ? launch_strips<D, true>(p) : launch_strips<D, false>(p);
}

} // namespace

lean_fused lean::lean_operands(const wf_op *op, const wf_bundle_table *table, int messages) {
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4];
    return lean_fused{table->bundles,
                      table->n_bundles,
                      table->n_tasks,
                      table->list_length,
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
                      table->n_segments,
                      NULL,
                      NULL};
}

namespace {
/* The kernels take what a multiprocessor of sm_90 has; others work step by step. */
bool has_shared_memory() { return most_shared_bytes() >= 227 * 1024; }
} // namespace

/* Whether there are kernels for the edges; the tables are not looked at. */
static bool edges_fit(const wf_op *op) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *w1 = op->in[4];
    int de = e->cols, messages = w1->rows - 2 * de;
    bool widths = de == 32 || de == 64 || de == 128;
    bool aligned = op->column % 4 == 0 && modulation->ld % 4 == 0;
    return has_shared_memory() && widths && aligned &&
           messages % (de > 64 ? 4 * strip : strip) == 0 && messages <= 2 * de &&
           op->act != WF_TAPE_ACT_SINE && op->part->bundles[WF_CUT_LONG_4] != NULL &&
           op->part->n_edges > 0;
}
bool lean_fused_fits(const wf_op *op) {
    const wf_tensor *ad = op->in[2];
    return edges_fit(op) && ad->ld % 4 == 0 && ad->ld == op->in[3]->ld;
}
/* Here the nodes stand in place of the tables. */
bool lean_nodes_take_partials(const wf_op *op) {
    const wf_tensor *h = op->in[2];
    bool widths = h->cols == 64 && h->ld == 64 && op->in[0]->cols == 64 && op->in[4]->rows == 256;
    return widths && op->mode != WF_SUM_ATTENTION && edges_fit(op);
}

bool lean_fused_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    const wf_bundle_table *table = op->part->bundles[de > 64 ? WF_CUT_LONG_3 : WF_CUT_LONG_4];
    lean_fused p = lean_operands(op, table, messages);
    size_t words = (size_t)(attends(op) ? messages : messages / 2); /* of a partial */
    const wf_tensor *lent = op->in[9];
    p.partials = lent != NULL ? data_of(lent) : scratch(arena, wf_partial_rows(table) * words);
    p.segment_sums = scratch(arena, (size_t)table->n_segments * (size_t)de);
    if (p.partials == NULL || p.segment_sums == NULL) return false;
    partial_sum_args graph = {op->part, p.segment_sums, de,       de,   0,    NULL,
                              true,     data_of(mean),  mean->ld, true, table};
    const uint16_t *partials = (const uint16_t *)p.partials;
    lean_attention a = {p};
    if (attends(op)) {
        for (int k = 0; k < 2; k++) a.v[k] = data_of(op->in[7 + k]);
        a.tops = (float2 *)scratch(arena, 2 * wf_partial_rows(table));
        if (a.tops == NULL || !attend(op, a)) return false;
        p.skipped += messages; /* what is left is the update */
        p.messages = 0;
    }
    bool done = de == 32   ? launch_activation<32>(p, op->act)
                : de == 64 ? launch_activation<64>(p, op->act)
                           : launch_activation<128>(p, op->act);
    if (!done) return false;
    if (lent != NULL) { /* lean_nodes.cu adds them up; the graphs' beside it */
        launch_scope scope(for_partial_sums, {rows_of(p.segment_sums, table->n_segments, de)},
                           {data_range(mean)});
        graph_segment_sums(graph);
    } else if (messages == 0) graph_segment_sums(graph);
    else if (attends(op))
        node_softmax_sums(softmax_sum_args{op->part,
                                           p.partials,
                                           a.tops,
                                           {data_of(to[0]), data_of(to[1])},
                                           messages,
                                           to[0]->ld,
                                           (float *)op->saved,
                                           table},
                          graph);
    else
        node_half_sums(
            half_sum_args{op->part,
                          {{partials, data_of(to[0]), partials_as_dst, true},
                           {partials, data_of(to[1]), partials_as_src, true}},
                          messages,
                          to[0]->ld,
                          op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL,
                          table},
            &graph);
    return launched();
}

} // namespace wf_gpu
