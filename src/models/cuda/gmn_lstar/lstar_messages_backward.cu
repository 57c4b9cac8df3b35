/* lstar_messages_backward: backward of the messages of an lstar block. Formulas: kernels of
 * lstar_messages_forward.cu, reversed.
 *
 *   tile (64 edges, a warpgroup), towards a and then towards b:
 *     y1, s'(x1)                            as forward; the slope is put aside as bytes
 *     dx2 = dS[receiver] * s'(M2 y1 + b2)   pieces of 64 columns
 *     dx1 = (M2' dx2) * s'(x1)              sums towards both ends: dAi of the receiver, dAj of
 *                                           the sender
 *   and then
 *     deb = Me' (dx1 of both) + dmean / E   backward through the norm: de, sums of deb and of
 *                                           deb * hat per segment
 * Attention (lstar_attention.cuh): after y1 all pieces of y2 once, for the logit and dS.y2 of a
 * row, which give alpha and dl; then dy2 = alpha dS + dl v in place of dS, and dv by products of dl
 * with y2, carried over a warp's pairs.
 * Operands of the weight gradients leave as images (edge_weight_gradients.cuh): eb, y1 and dx2 of
 * either direction, dp; rows without an edge are zero in dx2 and dp. What a lane needs again later
 * lies in its stash.
 * An edge costs 6 D H + 8 H H FLOP here, 2 D H + 4 H H in the outer products, 4 H special
 * functions. Bytes: 10 H + 2 D of images, 4 H of partials, 16 D of e and de, 8 H of tables and dS
 * where they miss L1; at D = 128 also 8 H of the stash. L1 and L2 are the limit, each at almost
 * 60 % of its rate on an H200. Four warpgroups spill at D = 64, and three are
 * slower. */
#include "models/cuda/gmn_lstar/lstar_attention.cuh"
#include "models/cuda/gmn_lstar/lstar_back.cuh"
#include "models/cuda/gmn_lstar/lstar_fused.cuh"

namespace wf_gpu {
namespace {

struct message_back_step {
    const wf_bundle *bundles;
    int list_length, tasks, n_bundles;
    const float *e, *modulation, *ai, *aj, *b2, *dsum, *degree, *dmean;
    int ld_e, ld_modulation, ld_table, ld_sum, ld_mean;
    mma::weight_rows me, m2;
    unsigned char *images; /* of each tile in turn: y1, dx2 of either direction, dp, eb */
    uint4 *stash;          /* (warpgroups, stash_fragments, 128), unless in shared memory */
    uint16_t *partials_i, *partials_j; /* (wf_partial_rows, H) in bf16 */
    float *segments;                   /* (segments, 2 D) */
    float *de;
    /* Attention: v (H); of nodes the largest logit, 1 / total, along; dv_partials of dv, one a
     * warp, (warps, H). */
    const float *v;
    const float4 *nodes;
    float *dv_partials;
};

template <int D, int H> __host__ __device__ constexpr size_t tile_bytes() {
    return 5 * image_bytes(H) + image_bytes(D);
}
/* Weights, and the warps' buffers of table rows. */
template <int D, int H> __host__ __device__ constexpr size_t weight_bytes() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + H * sizeof(float);
}
/* Slopes in bytes are in shared memory; rows of tables come ahead only where both fit. */
template <int D, int H> __host__ __device__ constexpr bool rows_ahead() { return D <= 64; }
template <int D, int H> __host__ __device__ constexpr size_t slopes_at() {
    return weight_bytes<D, H>() +
           (rows_ahead<D, H>() ? back_groups<D>() * WF_GROUP_WARPS * (size_t)bundle::buffer_bytes
                               : 0);
}
template <int D, int H> __host__ __device__ constexpr size_t fixed_bytes() {
    return slopes_at<D, H>() + back_groups<D>() * (size_t)mma::tile_rows * H;
}
/* dx1 of the first direction (then dp), eb; and, where all of it is in shared memory, the
 * normalised rows. */
template <int D, int H> __host__ __device__ constexpr int stash_rows() { return (H + D) / 16; }
template <int D, int H> __host__ __device__ constexpr bool rows_aside() {
    return stash_is_shared<D>(fixed_bytes<D, H>(), stash_rows<D, H>() + D / 8);
}
template <int D, int H> __host__ __device__ constexpr int stash_fragments() {
    return stash_rows<D, H>() + (rows_aside<D, H>() ? D / 8 : 0);
}
template <int D, int H> __host__ __device__ constexpr size_t back_bytes() {
    return fixed_bytes<D, H>() + stash_bytes<D>(fixed_bytes<D, H>(), stash_fragments<D, H>());
}

/* Attention: v lies after everything else. */
template <int D, int H> __host__ __device__ constexpr size_t attended_back_bytes() {
    return back_bytes<D, H>() + H * sizeof(float);
}

/* dv of a warp over all its pairs: of piece k in place k, then of the next in its turn. Lane (g, c)
 * has columns 4c + 2 (g % 2) and the next one of sixteen g / 2. */
template <int H, bool Attention> struct vector_sums {
    static constexpr int pieces = H / bundle::piece;
    float of[Attention ? pieces : 1][2];
    __device__ vector_sums() {
#pragma unroll
        for (auto &sum : of) sum[0] = sum[1] = 0;
    }
    /* sum += dl y of sixteen j of a piece, y and the rows dl of both bundles in fp16. Tile t of
     * eight columns has row t of the operand alone, so a piece adds up in sum[0] and sum[1] (the
     * others stay zero). */
    static __device__ void add(float (&sum)[4], const mma::fragment &y, int j, uint32_t upper,
                               uint32_t lower) {
        int g = (int)(threadIdx.x % 32 / 4);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            bool mine = g == 2 * j + t;
            const uint32_t a[4] = {mine ? upper : 0u, 0u, mine ? lower : 0u, 0u};
            softmax::half_mma(sum, a, bundle::transposed(y.r[2 * t]),
                              bundle::transposed(y.r[2 * t + 1]));
        }
    }
    /* += `times` a piece's sum; the piece after it comes next. */
    __device__ void turn(const float (&sum)[4], float times) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float turned = of[0][i] + times * sum[i];
#pragma unroll
            for (int k = 0; k + 1 < pieces; k++) of[k][i] = of[k + 1][i];
            of[pieces - 1][i] = turned;
        }
    }
    __device__ void leave(float *to) const {
        int lane = (int)(threadIdx.x % 32), g = lane / 4;
        to += g / 2 * 16 + lane % 4 * 4 + g % 2 * 2;
#pragma unroll
        for (int k = 0; k < pieces; k++)
            *(float2 *)(to + k * bundle::piece) = float2{of[k][0], of[k][1]};
    }
};

/* Weights of a lane's rows and gradients of their logits, given dS.y2; none where there is no
 * edge. */
__device__ inline void attend_rows(const float4 *nodes, const int (&receiver)[2],
                                   const bundle::pair &p, const float (&logit)[2],
                                   const float (&push)[2], float (&weight)[2], float (&dl)[2]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float4 at = __ldg(nodes + receiver[k]);
        bool there = p.live[k] != 0;
        weight[k] = there ? __expf(logit[k] - at.x) * at.y : 0;
        dl[k] = weight[k] * (push[k] - at.z);
    }
}

/* One direction; `first`: towards a. `next`: of which tables are fetched when this one has its
 * own. */
template <int D, int H, bool Wgmma, bool Attention, class Rows>
__device__ inline void message_back(const message_back_step &s, const bundle::pair &p,
                                    int pair_index, int tile, bool first, const bundle::ends &next,
                                    Rows &rows, const mma::panel &me, const mma::panel &m2,
                                    const float *b2, const float *v, uint4 *slopes, uint4 *stash,
                                    vector_sums<H, Attention> *dv) {
    constexpr int pieces = H / bundle::piece, groups16 = bundle::piece_groups;
    unsigned char *images = s.images + tile * tile_bytes<D, H>();
    const float *table_a = first ? s.ai : s.aj, *table_b = first ? s.aj : s.ai;
    auto fetch_sums = [&](int k) {
        rows.fetch(first ? s.dsum : NULL, first ? NULL : s.dsum, s.ld_sum, bundle::piece * k,
                   bundle::ends_of(p));
    };
    mma::fragment dx2[H / 16];
    {
        mma::fragment y1[H / 16];
        {
            mma::fragment eb[D / 16];
            load_stash(stash + H / 16 * bundle::group_threads, eb);
            unsigned char *image = images + (first ? 0 : 1) * image_bytes(H);
            bundle::in_pieces<Wgmma, pieces>(
                [&](bundle::piece_acc &acc, int k) {
                    rows.take(acc);
                    mma::begin<Wgmma>();
                    mma::forward_mma<Wgmma>(acc, eb, me, bundle::piece * k, 0, false);
                },
                [&](int k) {
                    if (k + 1 < pieces)
                        rows.fetch(table_a, table_b, s.ld_table, bundle::piece * (k + 1),
                                   bundle::ends_of(p));
                    else fetch_sums(0);
                },
                [&](bundle::piece_acc &acc, int k) {
                    mma::fragment y[groups16];
                    units_and_slopes(acc, k, y, image, slopes);
                    bundle::push(y1, y);
                });
        }
        int receiver[2] = {first ? p.a : p.b[0], first ? p.a : p.b[1]};
        float factor[2], dl[2];
        if constexpr (!Attention)
#pragma unroll
            for (int k = 0; k < 2; k++)
                factor[k] =
                    s.degree == NULL ? p.live[k] : p.live[k] / __ldg(s.degree + receiver[k]);
        unsigned char *image = images + (first ? 2 : 3) * image_bytes(H);
        float4 dsum[2][groups16];
        auto take_sums = [&] {
            rows.await();
#pragma unroll
            for (int j = 0; j < groups16; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) dsum[r][j] = first ? rows.of_a(j) : rows.of_b(r, j);
        };
        auto fetch_next = [&](int k) {
            if (k + 1 < pieces) fetch_sums(k + 1);
            else rows.fetch(table_b, table_a, s.ld_table, 0, next);
        };
        auto second_layer = [&](bundle::piece_acc &acc, int k) {
            bundle::load_bias(acc, b2 + bundle::piece * k);
            mma::begin<Wgmma>();
            mma::forward_mma<Wgmma>(acc, y1, m2, bundle::piece * k, 0, false);
        };
        uint32_t upper = 0, lower = 0; /* dl of rows 2c, 2c + 1 of either bundle, as an operand */
        float times = 0;               /* what it was divided by */
        if constexpr (Attention) {
            float logit[2] = {0, 0}, push[2] = {0, 0};
            auto again = [&](int k) { fetch_sums(k + 1 < pieces ? k + 1 : 0); };
            bundle::in_pieces<Wgmma, pieces>(
                second_layer,
                [&](int k) {
                    if (rows_ahead<D, H>()) return;
                    take_sums();
                    again(k);
                },
                [&](bundle::piece_acc &acc, int k) {
                    if (rows_ahead<D, H>()) {
                        take_sums();
                        again(k);
                    }
                    bundle::apply_silu(acc);
#pragma unroll
                    for (int j = 0; j < groups16; j++) {
                        mma::fragment y = halves_of(acc, j);
                        float4 x = *(const float4 *)(v + bundle::piece * k + 16 * j +
                                                     4 * (threadIdx.x % 4));
                        add_dots(y, x, x, logit);
                        add_dots(y, dsum[0][j], dsum[1][j], push);
                    }
                });
#pragma unroll
            for (int k = 0; k < 2; k++) {
                logit[k] = bundle::quad_sum(logit[k]);
                push[k] = bundle::quad_sum(push[k]);
            }
            attend_rows(s.nodes, receiver, p, logit, push, factor, dl);
            softmax::vector_rows(dl, &upper, &lower, &times);
        }
        bundle::in_pieces<Wgmma, pieces>(
            second_layer,
            [&](int k) {
                if (rows_ahead<D, H>()) return;
                take_sums();
                fetch_next(k);
            },
            [&](bundle::piece_acc &acc, int k) {
                mma::fragment dx[groups16];
                if (rows_ahead<D, H>()) {
                    take_sums();
                    fetch_next(k);
                }
                float of_vector[4] = {0, 0, 0, 0};
#pragma unroll
                for (int j = 0; j < groups16; j++) {
                    float slope[2][4];
#pragma unroll
                    for (int t = 0; t < 2; t++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float value =
                                mma::fast_activation<false>(acc[2 * j + t][i], &slope[t][i]);
                            if (Attention) acc[2 * j + t][i] = value;
                        }
                    float4 along = {0, 0, 0, 0};
                    if constexpr (Attention) {
                        along = *(const float4 *)(v + bundle::piece * k + 16 * j +
                                                  4 * (threadIdx.x % 4));
                        dv->add(of_vector, halves_of(acc, j), j, upper, lower);
                    }
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float4 d = dsum[r][j];
                        d = float4{factor[r] * d.x, factor[r] * d.y, factor[r] * d.z,
                                   factor[r] * d.w};
                        if constexpr (Attention)
                            d = float4{d.x + dl[r] * along.x, d.y + dl[r] * along.y,
                                       d.z + dl[r] * along.z, d.w + dl[r] * along.w};
                        slope[0][2 * r] *= d.x;
                        slope[0][2 * r + 1] *= d.y;
                        slope[1][2 * r] *= d.z;
                        slope[1][2 * r + 1] *= d.w;
                    }
                    dx[j] = mma::fragment_of(slope[0], slope[1]);
                }
                if constexpr (Attention) dv->turn(of_vector, times);
#pragma unroll
                for (int j = 0; j < groups16; j += 2)
                    store_image(image, (groups16 * k + j) / 2, dx[j], dx[j + 1]);
                bundle::push(dx2, dx);
            });
    }
    unsigned char *image = images + 4 * image_bytes(H);
    uint16_t *partials_a = first ? s.partials_i : s.partials_j,
             *partials_b = first ? s.partials_j : s.partials_i;
    bundle::held_sums before;
    bundle::selection select = bundle::selection_of(p);
    uint4 slope[2], earlier[groups16];
    bundle::in_pieces<Wgmma, pieces>(
        [&](bundle::piece_acc &acc, int k) {
            mma::begin<Wgmma>();
            mma::backward_mma<Wgmma>(acc, dx2, m2, 0, bundle::piece * k, true);
        },
        [&](int k) {
            bundle::hold_sums(&before, partials_a, H, s.n_bundles, bundle::piece * k, p);
            slope[0] = slopes[2 * k * bundle::group_threads];
            slope[1] = slopes[(2 * k + 1) * bundle::group_threads];
            if (!first)
#pragma unroll
                for (int j = 0; j < groups16; j++)
                    earlier[j] = stash[(groups16 * k + j) * bundle::group_threads];
        },
        [&](bundle::piece_acc &acc, int k) {
            scale_by_slopes(acc, slope);
#pragma unroll
            for (int j = 0; j < groups16; j += 2) {
                mma::fragment x[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float sum[2][4];
                    x[i] = mma::fragment_of(acc[2 * (j + i)], acc[2 * (j + i) + 1]);
                    bundle::select_sums(select, x[i], sum);
                    bundle::add_towards_a(sum, j + i, before, p, partials_a, H, s.n_bundles,
                                          bundle::piece * k);
                    bundle::store_towards_b(sum, j + i, partials_b, H, pair_index,
                                            bundle::piece * k);
                    if (!first) add_fragment(x[i], earlier[j + i]);
                }
                if (!first) store_image(image, (groups16 * k + j) / 2, x[0], x[1]);
                store_stash(stash + (groups16 * k + j) * bundle::group_threads, x);
            }
        });
}

template <int D, int H, bool Wgmma, bool Attention>
__global__ void __launch_bounds__(back_groups<D>() * bundle::group_threads, 1)
    messages_back_kernel(message_back_step s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    mma::panel me = {mma::shared_address(shared), H};
    mma::panel m2 = {me.base + (uint32_t)mma::panel_bytes(H, D), H};
    float *b2 = (float *)(shared + mma::panel_bytes(H, D) + mma::panel_bytes(H, H));
    constexpr int batch = D > 64 ? 1 : 4; /* four: 144 bytes of spills more */
    mma::stage_panel<false, batch>(me, 0, s.me, H, D);
    mma::stage_panel<false, batch>(m2, 0, s.m2, H, H);
    for (int i = (int)threadIdx.x; i < H; i += (int)blockDim.x) b2[i] = s.b2[i];
    wait_for_previous();
    float *v = (float *)(shared + back_bytes<D, H>());
    for (int i = (int)threadIdx.x; Attention && i < H; i += (int)blockDim.x) v[i] = s.v[i];
    vector_sums<H, Attention> dv;
    __syncthreads();
    int warp = (int)threadIdx.x % bundle::group_threads / 32;
    constexpr int places = stash_fragments<D, H>();
    constexpr bool is_shared = stash_is_shared<D>(fixed_bytes<D, H>(), places);
    uint4 *stash = own_stash<D>(is_shared, shared + fixed_bytes<D, H>(), s.stash, places);
    float4 *aside = (float4 *)stash + stash_rows<D, H>() * bundle::group_threads;
    float mean[2], rho[2];
    bundle::segment_sums<D> sums;
    int first = (int)blockIdx.x * back_groups<D>() + (int)threadIdx.x / bundle::group_threads;
    int stride = (int)gridDim.x * back_groups<D>(), rounds = (s.tasks + stride - 1) / stride;
    uint4 *slopes = (uint4 *)(shared + slopes_at<D, H>()) +
                    threadIdx.x / bundle::group_threads * (mma::tile_rows * H / sizeof(uint4)) +
                    threadIdx.x % bundle::group_threads;
    auto ahead = bundle::table_rows<rows_ahead<D, H>()>(shared + weight_bytes<D, H>());
    if (first < s.tasks)
        ahead.fetch(s.ai, s.aj, s.ld_table, 0,
                    bundle::load_ends(s.bundles, (first * WF_GROUP_WARPS + warp) * s.list_length));
#pragma unroll 1
    for (int step = 0; step < rounds * s.list_length; step++) {
        int task = first + step / s.list_length * stride, t = step % s.list_length;
        if (task >= s.tasks) break;
        int index = (task * WF_GROUP_WARPS + warp) * s.list_length + t;
        int tile = task * s.list_length + t;
        bundle::pair p = bundle::load_pair(s.bundles, index);
        bundle::ends next = bundle::load_ends(
            s.bundles, bundle::following(index, t, s.list_length, task, stride, s.tasks));
        if (t + 1 < s.list_length) bundle::fetch_pair<D>(s.bundles, index + 1, s.e, s.ld_e);
        {
            mma::fragment eb[D / 16];
            bundle::normed_rows<D> rows;
            bundle::load_normed<D>(s.e, s.ld_e, p, &rows);
            bundle::make_operand<D>(rows, s.modulation, s.ld_modulation, p, eb, NULL);
            if (rows_aside<D, H>()) bundle::store_rows_aside<D>(aside, rows);
            mean[0] = rows.mean[0];
            mean[1] = rows.mean[1];
            rho[0] = rows.rho[0];
            rho[1] = rows.rho[1];
            store_tile(s.images + tile * tile_bytes<D, H>() + 5 * image_bytes(H), eb);
            store_stash(stash + H / 16 * bundle::group_threads, eb);
        }
#pragma unroll 1
        for (int way = 0; way < 2; way++)
            message_back<D, H, Wgmma, Attention>(s, p, index, tile, way == 0,
                                                 way == 0 ? bundle::ends_of(p) : next, ahead, me,
                                                 m2, b2, v, slopes, stash, &dv);
        float deb[D / 8][4];
        bundle::held_stream<D> stream;
        stream.fetch(s.de, s.ld_e, p);
        {
            mma::fragment dp[H / 16];
            load_stash(stash, dp);
            mma::begin<Wgmma>();
            mma::backward_mma<Wgmma>(deb, dp, me, 0, 0, true);
            mma::finish<Wgmma>();
        }
        mma::settle(deb);
        bundle::normed_rows<D> rows;
        if (rows_aside<D, H>()) bundle::load_rows_aside<D>(aside, &rows);
        auto hat_of = [&](int k, int j) {
            if constexpr (rows_aside<D, H>()) return rows.hat[k][j];
            const float *from = s.e + (size_t)p.row[k] * s.ld_e + 4 * (threadIdx.x % 4);
            return bundle::normalised(bundle::load4_here(from + 16 * j), mean[k], rho[k]);
        };
        bundle::norm_backward<D>(deb, hat_of, rho, s.ld_e, s.modulation, s.ld_modulation, s.dmean,
                                 s.ld_mean, p, &sums, s.segments, s.de, stream);
    }
    ahead.await();
    if constexpr (Attention)
        dv.leave(s.dv_partials + (size_t)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * H);
}

template <int D, int H, bool Wgmma, bool Attention> bool launch_back(const message_back_step &s) {
    size_t bytes = Attention ? attended_back_bytes<D, H>() : back_bytes<D, H>();
    auto kernel = messages_back_kernel<D, H, Wgmma, Attention>;
    unsigned blocks = most_blocks(s.tasks, back_groups<D>());
    start_kernel(kernel, blocks, back_groups<D>() * bundle::group_threads, bytes, s);
    return true;
}
template <int D, int H, bool Wgmma> bool launch_back(const message_back_step &s) {
    return s.v != NULL ? launch_back<D, H, Wgmma, true>(s) : launch_back<D, H, Wgmma, false>(s);
}

/* What the edges need of a node under attention, a warp a node. */
struct attended_node {
    const float *saved, *sum, *dsum; /* (2, N), (N, ld) twice */
    int ld, cols, count;
    float4 *nodes;
    __device__ void operator()(int node, int lane) const {
        float dot = warp_dot(dsum + (size_t)node * ld, sum + (size_t)node * ld, cols, lane);
        float total = saved[count + node];
        if (lane == 0) nodes[node] = float4{saved[node], total > 0 ? 1 / total : 0, dot, 0};
    }
};

/* v, nodes, dv_partials of dv (`rows` of them); false: no scratch left. */
template <int D, int H>
bool start_attention(message_back_step *s, const wf_op *op, int *rows, wf_arena *arena) {
    const wf_tensor *sum = op->out[0];
    int nodes = op->part->n_nodes;
    *rows = (int)most_blocks(s->tasks, back_groups<D>()) * back_groups<D>() * WF_GROUP_WARPS;
    float4 *of_nodes = (float4 *)scratch(arena, 4 * (size_t)nodes);
    s->dv_partials = scratch(arena, (size_t)*rows * H);
    if (of_nodes == NULL || s->dv_partials == NULL) return false;
    s->v = data_of(op->in[7]);
    s->nodes = of_nodes;
    each_warp(attended_node{(const float *)op->saved, data_of(sum), grad_of(sum), sum->ld, H, nodes,
                            of_nodes},
              nodes);
    return true;
}

/* Scratch of the kernel; false: none left. */
template <int D, int H>
bool take_scratch(message_back_step *s, const wf_bundle_table *o, int tiles, wf_arena *arena) {
    s->images = (unsigned char *)wf_arena_alloc(arena, tiles * tile_bytes<D, H>());
    s->stash = take_stash<D>(o->n_tasks, stash_fragments<D, H>(), arena);
    s->partials_i = (uint16_t *)scratch(arena, wf_partial_rows(o) * H / 2);
    s->partials_j = (uint16_t *)scratch(arena, wf_partial_rows(o) * H / 2);
    s->segments = scratch(arena, (size_t)o->n_segments * 2 * D);
    return s->images != NULL && s->stash != NULL && s->partials_i != NULL &&
           s->partials_j != NULL && s->segments != NULL;
}

template <int D, int H> bool messages_backward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_bundle_table *o = part->bundles[WF_CUT_SHORT];
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ai = op->in[2], *aj = op->in[3],
                    *me = op->in[4], *m2 = op->in[5], *b2 = op->in[6], *sum = op->out[0],
                    *mean = op->out[1];
    message_back_step s = {};
    s.bundles = o->bundles;
    s.list_length = o->list_length;
    s.tasks = o->n_tasks;
    s.n_bundles = o->n_bundles;
    s.e = data_of(e);
    s.modulation = data_of(modulation) + op->column;
    s.ai = data_of(ai);
    s.aj = data_of(aj);
    s.me = weight_rows_of(me);
    s.m2 = weight_rows_of(m2);
    s.b2 = data_of(b2);
    s.dsum = grad_of(sum);
    s.degree = op->mode == WF_SUM_MEAN ? (const float *)part->degree : NULL;
    s.dmean = grad_of(mean);
    s.ld_e = e->ld;
    s.ld_modulation = modulation->ld;
    s.ld_table = ai->ld;
    s.ld_sum = sum->ld;
    s.ld_mean = mean->ld;
    s.de = wanted_grad(e);
    if (o->n_tasks == 0) return true;
    int tiles = o->n_tasks * o->list_length, dv_partials = 0;
    bool attends = op->mode == WF_SUM_ATTENTION;
    if (attends && !start_attention<D, H>(&s, op, &dv_partials, arena)) return false;
    if (!take_scratch<D, H>(&s, o, tiles, arena) ||
        !(use_wgmma() ? launch_back<D, H, true>(s) : launch_back<D, H, false>(s)))
        return false;
    if (attends) softmax::add_vector_partials(s.dv_partials, dv_partials, H, H, op->in[7], NULL);
    node_half_sums(
        half_sum_args{part,
                      {{s.partials_i, wanted_grad(ai), partials_of_both, sets_table(op, ai)},
                       {s.partials_j, wanted_grad(aj), partials_of_both, sets_table(op, aj)}},
                      H,
                      ai->ld,
                      NULL});
    add_modulation_sums(op, s.segments, 2 * D);
    const unsigned char *at[6];
    for (int k = 0; k < 6; k++) at[k] = s.images + k * image_bytes(H);
    outer_product products[2] = {
        {{at[2], at[3]}, {at[0], at[1]}, 2, H, H, wanted_grad(m2), wanted_grad(b2), m2->ld},
        {{at[4], NULL}, {at[5], NULL}, 1, H, D, wanted_grad(me), NULL, me->ld}};
    return outer_products(products, 2, s.images, tiles, tile_bytes<D, H>(), arena) && launched();
}

} // namespace

op_function *lstar_messages_fused_backward(const wf_op *op) {
    if (lstar_messages_fused_forward(op) == NULL || !shared_memory_fits(outer_bytes)) return NULL;
    WF_RETURN_FOR_WIDTHS(op, attended_back_bytes, messages_backward);
}

} // namespace wf_gpu
