/* lstar_messages_forward: the messages of an lstar block in one kernel. Formulas: wf_lstar_messages
 * in tensor/tape.h.
 *
 *   tile (64 edges, a warpgroup):
 *     eb = LN(e) modulated                     bf16 fragments, D / 16 x 4 registers
 *   and then, towards a and towards b:
 *     x1 = Me eb + Ai[receiver] + Aj[sender]   pieces of 64 columns
 *     y1 = s(x1)                               fragments of the next product
 *     y2 = s(M2 y1 + b2)                       pieces of 64 columns
 *   sums of y2 towards a in the segment's partials, towards b in the bundle's partial; sum of eb
 *   per segment
 * Me and M2 stay in shared memory as bf16 panels. One CTA for each multiprocessor, of four
 * warpgroups (D = 64) or two (D = 128), each with tasks of bundles of its own: while one multiplies
 * another is busy with special functions. Rows of the tables come a piece ahead into shared memory;
 * sums over rows are products with zeros and ones.
 * Attention: y2 of all pieces first, in fp16 (D = 64: in shared memory, D = 128: in registers),
 * with its logit; then weights (edge_softmax.cuh) in place of the ones. Partial sums are in fp32
 * there and joined by node_softmax_sums.
 * An edge costs 4 D H + 4 H H FLOP (Me eb once for either direction), 4 H special functions. Bytes
 * from L2: 4 D of e, 5 H of tables where they miss L1, 2 H of partials. Latency is the limit, of
 * memory and of dependent instructions: a third of the products' rate on an H200. */
#include "models/cuda/gmn_lstar/lstar_attention.cuh"
#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_edges/warp_tile.cuh"

#include <stdlib.h>
#include <string.h>

namespace wf_gpu {

bool use_wgmma() {
    const char *choice = getenv("WEFT_MMA");
    return choice == NULL || strcmp(choice, "sync") != 0;
}

namespace {

struct message_step {
    const wf_bundle *bundles;
    int list_length, tasks, n_bundles;
    const float *e, *modulation, *ai, *aj, *b2;
    int ld_e, ld_modulation, ld_table;
    mma::weight_rows me, m2;
    uint16_t *partials; /* (wf_partial_rows, H) in bf16 */
    float *means;       /* (segments, D): sums of eb */
    /* Attention: v (H), partials in fp32 and what lies beside them (edge_softmax.cuh). */
    const float *v;
    float *weighted;
    float2 *tops;
};

template <int D, int H> __host__ __device__ constexpr size_t weight_bytes() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + H * sizeof(float);
}
template <int D, int H> __host__ __device__ constexpr size_t message_bytes() {
    return weight_bytes<D, H>() +
           forward_groups<D>() * WF_GROUP_WARPS * (size_t)bundle::buffer_bytes;
}

/* Attention: v, and where the registers are short y2 of a pair. */
template <int D> __host__ __device__ constexpr bool units_aside() { return D <= 64; }
template <int D, int H> __host__ __device__ constexpr size_t attended_bytes() {
    return message_bytes<D, H>() + H * sizeof(float) +
           (units_aside<D>() ? forward_groups<D>() * WF_GROUP_WARPS * (size_t)(H / 16 * 512) : 0);
}

/* One direction of a tile; `next` is the one of which tables are fetched when this one has its
 * own. */
template <int D, int H, bool Wgmma>
__device__ inline void first_layer(const message_step &s, const bundle::pair &p, bool to_a,
                                   const bundle::ends &next, const bundle::row_buffer &tables,
                                   const mma::fragment (&eb)[D / 16], const mma::panel &me,
                                   mma::fragment (&y1)[H / 16]) {
    constexpr int pieces = H / bundle::piece;
    bundle::in_pieces<Wgmma, pieces>(
        [&](bundle::piece_acc &acc, int k) {
            tables.take(acc);
            mma::begin<Wgmma>();
            mma::forward_mma<Wgmma>(acc, eb, me, bundle::piece * k, 0, false);
        },
        [&](int k) {
            bool last = k + 1 == pieces, way = to_a != last;
            tables.fetch(way ? s.ai : s.aj, way ? s.aj : s.ai, s.ld_table,
                         last ? 0 : bundle::piece * (k + 1), last ? next : bundle::ends_of(p));
        },
        [&](bundle::piece_acc &acc, int) {
            mma::fragment y[bundle::piece_groups];
            bundle::into_fragments(acc, y);
            bundle::push(y1, y);
        });
}

template <int D, int H, bool Wgmma>
__device__ inline void message(const message_step &s, const bundle::pair &p, int pair_index,
                               bool to_a, const bundle::ends &next,
                               const bundle::row_buffer &tables, const mma::fragment (&eb)[D / 16],
                               const mma::panel &me, const mma::panel &m2, const float *b2) {
    constexpr int pieces = H / bundle::piece;
    mma::fragment y1[H / 16];
    first_layer<D, H, Wgmma>(s, p, to_a, next, tables, eb, me, y1);
    bundle::held_sums before;
    bundle::selection select = bundle::selection_of(p);
    bundle::in_pieces<Wgmma, pieces>(
        [&](bundle::piece_acc &acc, int k) {
            bundle::load_bias(acc, b2 + bundle::piece * k);
            mma::begin<Wgmma>();
            mma::forward_mma<Wgmma>(acc, y1, m2, bundle::piece * k, 0, false);
        },
        [&](int k) {
            if (to_a) bundle::hold_sums(&before, s.partials, H, s.n_bundles, bundle::piece * k, p);
        },
        [&](bundle::piece_acc &acc, int k) {
            mma::fragment y[bundle::piece_groups];
            bundle::into_fragments(acc, y);
#pragma unroll
            for (int j = 0; j < bundle::piece_groups; j++) {
                float sum[2][4];
                bundle::select_sums(select, y[j], sum);
                if (to_a)
                    bundle::add_towards_a(sum, j, before, p, s.partials, H, s.n_bundles,
                                          bundle::piece * k);
                else bundle::store_towards_b(sum, j, s.partials, H, pair_index, bundle::piece * k);
            }
        });
}

/* Partial sums of the segment's sums so far, sixteen after sixteen; zeros where there are none. */
template <int H>
__device__ inline void hold_weighted(float4 (&before)[H / 16], const float *partials,
                                     const bundle::pair &p) {
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        float4 x = {0, 0, 0, 0};
        if (!p.begins && p.real)
            asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                         : "l"(partials + 16 * j)
                         : "memory");
        before[j] = x;
    }
}

/* One direction under attention: y2 of all pieces first, then sums by weights. */
template <int D, int H, bool Wgmma>
__device__ inline void
attended_message(const message_step &s, const bundle::pair &p, int pair_index, bool to_a,
                 const bundle::ends &next, const bundle::row_buffer &tables,
                 const mma::fragment (&eb)[D / 16], const mma::panel &me, const mma::panel &m2,
                 const float *b2, const float *v, uint4 *aside, softmax::segment_weights *run) {
    kept_units<H, units_aside<D>()> y2;
    y2.at = aside;
    float logit[2] = {0, 0};
    {
        mma::fragment y1[H / 16];
        first_layer<D, H, Wgmma>(s, p, to_a, next, tables, eb, me, y1);
        bundle::in_pieces<Wgmma, H / bundle::piece>(
            [&](bundle::piece_acc &acc, int k) {
                bundle::load_bias(acc, b2 + bundle::piece * k);
                mma::begin<Wgmma>();
                mma::forward_mma<Wgmma>(acc, y1, m2, bundle::piece * k, 0, false);
            },
            [&](int) {},
            [&](bundle::piece_acc &acc, int k) {
                mma::fragment y[bundle::piece_groups];
                into_halves(acc, y);
                add_logits(y, v + bundle::piece * k, logit);
                y2.put(y, k);
            });
    }
    int g = (int)(threadIdx.x % 32 / 4), c = (int)(threadIdx.x % 4);
    float *partials = s.weighted + 4 * c;
    partials +=
        (size_t)(to_a ? s.n_bundles + WF_BUNDLE * p.segment + g : 2 * pair_index + g % 2) * H;
    float4 before[H / 16];
    if (to_a) hold_weighted<H>(before, partials, p);
    logit[0] = bundle::quad_sum(logit[0]);
    logit[1] = bundle::quad_sum(logit[1]);
    const bool there[2] = {p.live[0] != 0, p.live[1] != 0};
    const int count[2] = {p.counts & 255, p.counts >> 8};
    uint32_t pick[4] = {0, 0, 0, 0};
    float rescale = 0;
    if (to_a) rescale = run->join(p.begins, there, logit, &pick[0], &pick[2]);
    else softmax::bundle_weights(there, logit, pair_index, count, s.tops, &pick[1], &pick[3]);
    if (to_a && p.ends) run->leave(s.tops, s.n_bundles, p.segment);
    bool mine = to_a ? p.real : g < 2 && (g == 0 ? count[0] : count[1]) > 0;
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        mma::fragment y = y2.get(j);
        float sum[2][4];
        mma::clear(sum);
#pragma unroll
        for (int t = 0; t < 2; t++)
            softmax::half_mma(sum[t], pick, bundle::transposed(y.r[2 * t]),
                              bundle::transposed(y.r[2 * t + 1]));
        float4 x = before[j];
        x = to_a ? float4{x.x * rescale + sum[0][0], x.y * rescale + sum[0][1],
                          x.z * rescale + sum[1][0], x.w * rescale + sum[1][1]}
                 : float4{sum[0][2], sum[0][3], sum[1][2], sum[1][3]};
        if (mine) *(float4 *)(partials + 16 * j) = x;
    }
}

template <int D, int H, bool Wgmma, bool Attention>
__global__ void __launch_bounds__(forward_groups<D>() * bundle::group_threads, 1)
    messages_kernel(message_step s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    mma::panel me = {mma::shared_address(shared), H};
    mma::panel m2 = {me.base + (uint32_t)mma::panel_bytes(H, D), H};
    float *b2 = (float *)(shared + mma::panel_bytes(H, D) + mma::panel_bytes(H, H));
    mma::stage_panel(me, 0, s.me, H, D);
    mma::stage_panel(m2, 0, s.m2, H, H);
    for (int i = (int)threadIdx.x; i < H; i += (int)blockDim.x) b2[i] = s.b2[i];
    wait_for_previous();
    float *v = (float *)(shared + message_bytes<D, H>());
    for (int i = (int)threadIdx.x; Attention && i < H; i += (int)blockDim.x) v[i] = s.v[i];
    __syncthreads();
    int warp = (int)threadIdx.x % bundle::group_threads / 32;
    softmax::segment_weights run;
    float eb_sum[D / 32];
    int first = (int)blockIdx.x * forward_groups<D>() + (int)threadIdx.x / bundle::group_threads;
    int stride = (int)gridDim.x * forward_groups<D>(), rounds = (s.tasks + stride - 1) / stride;
    bundle::row_buffer tables = bundle::own_buffer(shared + weight_bytes<D, H>());
    if (first < s.tasks)
        tables.fetch(s.ai, s.aj, s.ld_table, 0,
                     bundle::load_ends(s.bundles, (first * WF_GROUP_WARPS + warp) * s.list_length));
#pragma unroll 1
    for (int step = 0; step < rounds * s.list_length; step++) {
        int task = first + step / s.list_length * stride, t = step % s.list_length;
        if (task >= s.tasks) break;
        int index = (task * WF_GROUP_WARPS + warp) * s.list_length + t;
        bundle::pair p = bundle::load_pair(s.bundles, index);
        bundle::ends next = bundle::load_ends(
            s.bundles, bundle::following(index, t, s.list_length, task, stride, s.tasks));
        if (t + 1 < s.list_length) bundle::fetch_pair<D>(s.bundles, index + 1, s.e, s.ld_e);
        mma::fragment eb[D / 16];
        {
            float sums[D / 4];
            bundle::load_operand<D>(s.e, s.ld_e, s.modulation, s.ld_modulation, p, eb, sums);
            bundle::sum_over_rows(sums);
#pragma unroll
            for (int i = 0; i < D / 32; i++) eb_sum[i] = p.begins ? sums[i] : eb_sum[i] + sums[i];
            if (p.ends) bundle::store_summed<D / 4>(s.means + (size_t)p.segment * D, eb_sum);
        }
#pragma unroll 1
        for (int way = 0; way < 2; way++)
            if constexpr (Attention)
                attended_message<D, H, Wgmma>(
                    s, p, index, way == 0, way == 0 ? bundle::ends_of(p) : next, tables, eb, me, m2,
                    b2, v, (uint4 *)(v + H) + threadIdx.x / 32 * (H / 16 * 32) + threadIdx.x % 32,
                    &run);
            else
                message<D, H, Wgmma>(s, p, index, way == 0, way == 0 ? bundle::ends_of(p) : next,
                                     tables, eb, me, m2, b2);
    }
    tables.await();
}

template <int D, int H, bool Wgmma, bool Attention> bool launch_messages(const message_step &s) {
    size_t bytes = Attention ? attended_bytes<D, H>() : message_bytes<D, H>();
    auto kernel = messages_kernel<D, H, Wgmma, Attention>;
    unsigned blocks = most_blocks(s.tasks, forward_groups<D>());
    start_kernel(kernel, blocks, forward_groups<D>() * bundle::group_threads, bytes, s);
    return true;
}
template <int D, int H, bool Wgmma> bool launch_messages(const message_step &s) {
    return s.v != NULL ? launch_messages<D, H, Wgmma, true>(s)
                       : launch_messages<D, H, Wgmma, false>(s);
}

template <int D, int H> bool messages_forward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_bundle_table *o = part->bundles[WF_CUT_SHORT];
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ai = op->in[2], *me = op->in[4],
                    *m2 = op->in[5], *sum = op->out[0], *mean = op->out[1];
    message_step s = {o->bundles,
                      o->list_length,
                      o->n_tasks,
                      o->n_bundles,
                      data_of(e),
                      data_of(modulation) + op->column,
                      data_of(ai),
                      data_of(op->in[3]),
                      data_of(op->in[6]),
                      e->ld,
                      modulation->ld,
                      ai->ld,
                      weight_rows_of(me),
                      weight_rows_of(m2),
                      NULL,
                      scratch(arena, (size_t)o->n_segments * D)};
    bool attends = op->mode == WF_SUM_ATTENTION;
    size_t partials = wf_partial_rows(o);
    if (attends) {
        s.v = data_of(op->in[7]);
        s.weighted = scratch(arena, partials * H);
        s.tops = (float2 *)scratch(arena, 2 * partials);
    } else {
        s.partials = (uint16_t *)scratch(arena, partials * H / 2);
    }
    if (s.means == NULL || (attends ? s.weighted == NULL || s.tops == NULL : s.partials == NULL))
        return false;
    if (s.tasks > 0 &&
        !(use_wgmma() ? launch_messages<D, H, true>(s) : launch_messages<D, H, false>(s)))
        return false;
    partial_sum_args graph = {part, s.means, D, D, 0, NULL, true, data_of(mean), mean->ld, true};
    if (attends) {
        node_softmax_sums(
            softmax_sum_args{
                part, s.weighted, s.tops, {data_of(sum), NULL}, H, sum->ld, (float *)op->saved, o},
            graph);
        return launched();
    }
    const float *degree = op->mode == WF_SUM_MEAN ? (const float *)part->degree : NULL;
    node_half_sums(
        half_sum_args{part,
                      {{s.partials, data_of(sum), partials_of_both, true}, {NULL, NULL, 0, true}},
                      H,
                      sum->ld,
                      degree});
    graph_segment_sums(graph);
    return launched();
}

} // namespace

op_function *lstar_messages_fused_forward(const wf_op *op) {
    if (op->act != WF_TAPE_ACT_SILU || !whole_vectors(op)) return NULL;
    WF_RETURN_FOR_WIDTHS(op, attended_bytes, messages_forward);
}

} // namespace wf_gpu
