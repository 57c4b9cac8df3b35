/* lean_backward: the edges of a lean block backward: one kernel, and the sums of what it leaves.
 *
 *   do = (1 + gate) de'   dz = w2' do   dm = dF[dst] + dR[src]   dx = [dm | dz] * f'(x)
 *   deb = w1' dx + dmean / E   g = deb (1 + scale)   de = de' + rho (g - mean g - e^ mean(g e^))
 *   dw1 = sum dx eb'   dw2 = sum do z'   tables: sums of dx towards both ends
 *   per graph: sums of deb, deb e^, de' (w2 z + c2); dc2 = sum do
 *   attention: dm = alpha_f dF[dst] + alpha_b dR[src] + dl_f vf + dl_b vb, where lean_attention.cu
 *              gives the four numbers of an edge
 *
 *   block   four warpgroups, one block a multiprocessor. Two compute: each takes a task
 *           (WF_CUT_GROUP), 64 rows at a time, and leaves eb, do, z and dx in shared memory as
 *           bf16 panels, operands of its next products. Two add up weight gradients: dw1 and dw2
 *           are six squares of 64 x 64, three a warpgroup, in registers over all rows of the
 *           block; they also sum dx towards the nodes. Named barriers pass a tile from one to
 *           the other: full (compute to sums), empty (back)
 *   paths   of the computing warpgroups: lean_back_ahead.cuh at D <= 64, lean_back_quarters.cuh
 *           at D = 128
 *   split   Q = 4 (D = 128): a block has a quarter of the messages and of z, so weights, panels
 *           and squares are those of D = 64. Its deb is a quarter of the sum and leaves as bf16;
 *           lean_norm_kernel adds the four quarters and finishes the rows
 *   flops   36 D^2 an edge at M = 2D (x 8, w2 z 4, dz 4, deb 8, dw1 8, dw2 4)
 *   bytes   e and de' read (twice, the second time from L2), de written: 12D of HBM; tables 4 (M
 *           + 2D) (1 + 2/8) of L1, dF and dR 4M (1 + 2/8); partial sums 2 (M + 2D) (1/8 +
 *           1/16..1/8) written and read; Q = 4: e and de' read by four blocks, and deb 8D
 *           written and read
 * The limit are the dependent instructions of two computing warps a scheduler, which wait for loads
 * half of their time (D = 128: a third). docs/results/2026-11-15-cuda-bf16.md has times, and what
 * was tried. */
#include "models/cuda/gmn_lean/lean_attention.cuh"
#include "models/cuda/gmn_lean/lean_back_ahead.cuh"
#include "models/cuda/gmn_lean/lean_back_quarters.cuh"

namespace wf_gpu {
namespace {

using namespace lean;

template <int D, int Q, int MS, bool Gelu, bool Attention>
using computer =
    std::conditional_t<layout<D, Q, MS>::ahead, ahead_computer<D, Q, MS, Gelu, Attention>,
                       quarter_computer<D, Q, MS, Gelu, Attention>>;

/* --- the warpgroups that sum ------------------------------------------------------------------ */
template <int D, int Q, int MS> struct summer : worker<D, Q, MS> {
    using base = worker<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::p;
    using base::place;
    using base::quarter;
    using base::refresh;
    using base::thread;
    using base::tile;
    using base::warp;

    float dw[squares][strip_tiles][4];

    __device__ int half() const { return place - groups; } /* which of the two */

    __device__ explicit summer(const lean_gradient &args) : base(args) {
#pragma unroll
        for (int u = 0; u < squares; u++) clear(dw[u]);
    }

    /* dw1 comes first, by strips of dx, then of eb; after the last square that one again, for
     * nothing: a branch would cost the others their overlap. */
    __device__ void weight_units(int group) {
        refresh();
        const int of_w1 = at::of_w1;
        begin<group_products>();
#pragma unroll
        for (int u = 0; u < squares; u++) {
            int square = min(half() * squares + u, at::used_squares - 1);
            int left = square < of_w1 ? at::tile_dx + square / at::wide
                                      : at::tile_do + (square - of_w1) / at::z_strips;
            int right = square < of_w1 ? at::tile_eb + square % at::wide
                                       : at::tile_z + (square - of_w1) % at::z_strips;
            outer_mma<group_products>(dw[u], tile(group, left), 16 * warp, 0, tile(group, right), 0,
                                      false);
        }
        commit<group_products>();
    }

    __device__ void sum_strips(int group, int pair, int last) {
        refresh();
        tile_segments t = segments_of_tile(p.f.bundles, pair, last);
        const int ld = Q * at::messages + 2 * D;
#pragma unroll 1
        for (int s = half(); s < at::strips; s += groups) {
            float4 *at_lane =
                (float4 *)(shared + at::carried) + (group * at::strips + s) * 128 + thread;
            float4 value = *at_lane;
            sum_tile(tile(group, at::tile_dx + s), 16 * warp, t, 2 * pair, p.f.n_bundles,
                     (uint16_t *)p.f.partials + at::place(s, quarter) + 16 * warp + column, ld,
                     &value);
            *at_lane = value;
        }
    }

    __device__ void leave_weights() {
        refresh();
        float4 *to = (float4 *)p.partial + (size_t)blockIdx.x * (all_squares * strip_tiles * 128);
#pragma unroll
        for (int u = 0; u < squares; u++)
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
                to[((half() * squares + u) * strip_tiles + j) * 128 + thread] =
                    make_float4(dw[u][j][0], dw[u][j][1], dw[u][j][2], dw[u][j][3]);
    }

    __device__ void run() {
        for (int g = 0; g < groups; g++) signal(barrier_empty + g);
        int rounds = base::rounds();
        for (int round = 0; round < rounds; round++)
#pragma unroll 1
            for (int step = 0; step < p.f.list_length; step += 4)
#pragma unroll 1
                for (int g = 0; g < groups; g++) {
                    int first, last;
                    base::chunk_of(round, g, &first, &last);
                    meet(barrier_full + g);
                    weight_units(g);
                    sum_strips(g, first + step, last);
                    wait<group_products>();
#pragma unroll
                    for (int u = 0; u < squares; u++) settle(dw[u]);
                    if (round + 1 < rounds || step + 4 < p.f.list_length) signal(barrier_empty + g);
                }
        leave_weights();
    }
};

template <int D, int Q, int MS, bool Gelu, bool Attention>
__global__ void __launch_bounds__(block_threads, 1)
    lean_backward_kernel(const __grid_constant__ lean_gradient p) {
    using at = layout<D, Q, MS>;
    int quarter = (int)blockIdx.x % Q;
    panel w1 = {shared_address(shared), at::hidden};
    panel w2 = {shared_address(shared) + (uint32_t)at::w2, D};
    int m_row = p.f.skipped + quarter * at::messages;
    int z_row = p.f.skipped + Q * at::messages + quarter * at::zs;
    stage_panel(w1, 0, p.f.w1.at(m_row, 0), at::messages, D);
    stage_panel(w1, at::messages, p.f.w1.at(z_row, 0), at::zs, D);
    stage_panel(w2, 0, p.f.w2.at(0, quarter * at::zs), D, at::zs);
    float *c2 = (float *)(shared + at::c2);
    for (int i = (int)threadIdx.x; i < D; i += block_threads) c2[i] = quarter == 0 ? p.f.c2[i] : 0;
    wait_for_previous();
    if constexpr (Attention) { /* vf and vb of the block's messages */
        float *v = (float *)(shared + at::bytes);
        for (int i = (int)threadIdx.x; i < 2 * at::messages; i += block_threads)
            v[i] = p.v[i / at::messages][quarter * at::messages + i % at::messages];
    }
    __syncthreads();
    if (__shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) < groups) {
        computer<D, Q, MS, Gelu, Attention> w(p);
        w.run();
    } else {
        summer<D, Q, MS> w(p);
        w.run();
    }
}

/* --- launches --------------------------------------------------------------------------------- */
template <int D, int Q, int MS, bool Gelu, bool Attention> bool launch(const lean_gradient &p) {
    const int bytes = layout<D, Q, MS>::bytes +
                      (Attention ? 2 * layout<D, Q, MS>::messages * (int)sizeof(float) : 0);
    static_assert(bytes <= 227 * 1024, "what a block may have");
    auto kernel = lean_backward_kernel<D, Q, MS, Gelu, Attention>;
    start_kernel(kernel, (unsigned)(Q * p.parts), block_threads, (size_t)bytes, p);
    return launched();
}
template <int D, int Q, int MS> bool launch(const lean_gradient &p, bool gelu) {
    if constexpr (MS > 0)
        if (p.weights != NULL)
            return gelu ? launch<D, Q, MS, true, true>(p) : launch<D, Q, MS, false, true>(p);
    return gelu ? launch<D, Q, MS, true, false>(p) : launch<D, Q, MS, false, false>(p);
}

/* By the number of strips of messages. */
template <int D, int Q, int MS = 2 * D / Q / strip>
bool launch_strips(const lean_gradient &p, bool gelu) {
    if (p.f.messages == Q * MS * strip) return launch<D, Q, MS>(p, gelu);
    if constexpr (MS > 0) return launch_strips<D, Q, MS - 1>(p, gelu);
    return false;
}
template <int D, int Q> bool backward(const wf_op *op, lean_gradient p, wf_arena *arena) {
    const wf_bundle_table *table = op->part->bundles[WF_CUT_GROUP];
    int hidden = p.f.messages + 2 * D, most = processor_count() / Q;
    int blocks = (table->n_tasks + groups - 1) / groups;
    p.parts = blocks < most ? blocks : most;
    const int kinds = layout<D, Q, 0>::kinds;
    const wf_tensor *lent = op->in[9];
    p.f.partials = lent != NULL ? data_of(lent)
                                : scratch(arena, wf_partial_rows(table) * (size_t)(hidden / 2));
    p.f.segment_sums = scratch(arena, (size_t)(Q * table->n_segments) * (size_t)(kinds * D));
    p.partial = scratch(arena, (size_t)(Q * p.parts) * (all_squares * strip * strip));
    if (p.f.partials == NULL || p.f.segment_sums == NULL || p.partial == NULL) return false;
    if (Q > 1) {
        p.quarter_debs = (uint2 *)scratch(arena, (size_t)(Q * p.edges) * (D / 2));
        p.spans = scratch(arena, (size_t)lean_spans(op->part) * (2 * D));
        if (p.quarter_debs == NULL || p.spans == NULL) return false;
    }
    if (!launch_strips<D, Q>(p, op->act == WF_TAPE_ACT_GELU)) return false;
    lean_add_up(op, p);
    return launched();
}

} // namespace

bool lean_fused_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    lean_gradient p = {lean_operands(op, op->part->bundles[WF_CUT_GROUP], messages)};
    p.f.out = grad_of(op->out[0]);
    for (int k = 0; k < 2 && messages > 0; k++) p.dto[k] = grad_of(to[k]);
    if (messages > 0) p.ld_dto = to[0]->ld;
    if (op->mode == WF_SUM_MEAN) p.degree = (const float *)op->part->degree;
    if (attends(op)) {
        p.weights = attend_backward(op, arena);
        if (p.weights == NULL) return false;
        for (int k = 0; k < 2; k++) p.v[k] = data_of(op->in[7 + k]);
    }
    p.dmean = grad_of(mean);
    p.ld_dmean = mean->ld;
    p.edges = op->part->n_edges;
    return de == 32   ? backward<32, 1>(op, p, arena)
           : de == 64 ? backward<64, 1>(op, p, arena)
                      : backward<128, 4>(op, p, arena);
}

} // namespace wf_gpu
