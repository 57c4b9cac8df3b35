/* lstar_edges_backward: backward of the edge update of an lstar block.
 *
 *   tile (64 edges, a warpgroup):
 *     dz2 = E3' de'                 pieces of 64 columns, into the lane's stash
 *     z1 = s(q1), s'(q1)            as forward; the slope goes to the stash as bytes
 *     dq2 = dz2 * s'(E2 z1 + c2)    z2 leaves as an image
 *     dq1 = (E2' dq2) * s'(q1)      sums towards both ends: dCi, dCj
 *     deb = Ee' dq1                 backward through the norm: de, sums of deb and of deb * hat per
 *                                   segment
 * Operands of the weight gradients leave as images (edge_weight_gradients.cuh): eb, de', z1, z2,
 * dq1, dq2; rows without an edge are zero in de' and so in dq2 and dq1. E3 is streamed where
 * forward streams it.
 * An edge costs 6 D H + 4 H H FLOP here, 4 D H + 2 H H in the outer products, 2 H special
 * functions. Bytes: 8 H + 4 D of images, 2 H of partials, 20 D of e and de; at D = 128 also 9 H of
 * the stash and 2 H of E3. L2 is the limit, at 65 % of its rate on an H200; most of it are images
 * and, at D = 128, the stash. Three warpgroups at D = 64 are slower. */
#include "models/cuda/gmn_lstar/lstar_back.cuh"
#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_lstar/lstar_stream.cuh"

namespace wf_gpu {
namespace {

struct edge_back_step {
    const wf_bundle *bundles;
    int list_length, tasks, n_bundles;
    const float *e, *modulation, *ci, *cj, *c2;
    int ld_e, ld_modulation, ld_table;
    mma::weight_rows ee, e2, e3;
    const unsigned char *e3_image;
    unsigned char *images; /* of each tile in turn: z1, z2, dq1, dq2, eb, de' */
    uint4 *stash;          /* (warpgroups, stash_fragments, 128), unless in shared memory */
    uint16_t *partials;    /* (wf_partial_rows, H) in bf16 */
    float *segments;       /* (segments, 2 D) */
    float *de;
};

template <int D, int H> __host__ __device__ constexpr size_t tile_bytes() {
    return 4 * image_bytes(H) + 2 * image_bytes(D);
}
template <int D, int H> __host__ __device__ constexpr size_t edge_back_bytes() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + last_bytes<D, H>() + H * sizeof(float);
}

template <int D, int H> __host__ __device__ constexpr size_t fixed_bytes() {
    return edge_back_bytes<D, H>() + table_bytes<D, H>(back_groups<D>());
}

/* dz2 (then dq1), and slopes in bytes; and, where all of it is in shared memory, the normalised
 * rows. */
template <int D, int H> __host__ __device__ constexpr bool rows_aside() {
    return stash_is_shared<D>(fixed_bytes<D, H>(), H / 16 + H / 32 + D / 8);
}
template <int D, int H> __host__ __device__ constexpr int stash_fragments() {
    return H / 16 + H / 32 + (rows_aside<D, H>() ? D / 8 : 0);
}

template <int D, int H> constexpr size_t all_bytes() {
    return fixed_bytes<D, H>() + stash_bytes<D>(fixed_bytes<D, H>(), stash_fragments<D, H>());
}

/* de' of a pair's rows in bf16, zero where there is no edge. */
template <int D>
__device__ inline void load_gradient(const float *de, int ld, const bundle::pair &p,
                                     mma::fragment (&to)[D / 16]) {
    int c = (int)(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        float4 x[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            x[k] = *(const float4 *)(de + (size_t)p.row[k] * ld + 16 * j + 4 * c);
            if (p.live[k] == 0) x[k] = float4{0, 0, 0, 0};
        }
        to[j] = mma::fragment_of(x[0], x[1]);
    }
}

/* dz2 = E3' de' into the stash. */
template <int D, int H, bool Wgmma>
__device__ inline void last_layer_back(const edge_back_step &s, const mma::panel &e3, int group,
                                       const mma::fragment (&de)[D / 16], uint4 *stash) {
    constexpr int pieces = H / bundle::piece, groups16 = bundle::piece_groups;
    auto keep = [&](const bundle::piece_acc &acc, int k) {
#pragma unroll
        for (int j = 0; j < groups16; j++)
            stash[(groups16 * k + j) * bundle::group_threads] =
                bits_of(mma::fragment_of(acc[2 * j], acc[2 * j + 1]));
    };
    if constexpr (streamed<D, H>()) {
#pragma unroll 1
        for (int k = 0; k < pieces; k++) {
            bundle::piece_acc acc;
            await_strip(1 + group);
            mma::begin<Wgmma>();
            mma::backward_mma<Wgmma>(acc, de, e3, 0, 0, true);
            mma::finish<Wgmma>();
            mma::settle(acc);
            mma::group_barrier(1 + group);
            if (k + 1 < pieces)
                start_strip<D>(e3.base, s.e3_image + (k + 1) * mma::panel_bytes(D, 64));
            keep(acc, k);
        }
    } else {
        bundle::in_pieces<Wgmma, pieces>(
            [&](bundle::piece_acc &acc, int k) {
                mma::begin<Wgmma>();
                mma::backward_mma<Wgmma>(acc, de, e3, 0, bundle::piece * k, true);
            },
            [](int) {}, keep);
    }
}

__device__ inline void fetch_tables(const edge_back_step &s, const bundle::row_buffer &to,
                                    const bundle::ends &of, int k) {
    to.fetch(of.from_a ? s.cj : s.ci, of.from_a ? s.ci : s.cj, s.ld_table, bundle::piece * k, of);
}

template <int D, int H, bool Wgmma>
__device__ inline void update_back(const edge_back_step &s, const bundle::pair &p, int pair_index,
                                   int tile, const bundle::ends &next,
                                   const bundle::row_buffer &tables, uint32_t strip,
                                   const mma::panel &ee, const mma::panel &e2, const float *c2,
                                   uint4 *stash, float4 *aside, float (&mean)[2], float (&rho)[2]) {
    constexpr int pieces = H / bundle::piece, groups16 = bundle::piece_groups;
    unsigned char *images = s.images + tile * tile_bytes<D, H>();
    uint4 *slopes = stash + H / 16 * bundle::group_threads;
    mma::fragment dq2[H / 16];
    {
        mma::fragment z1[H / 16];
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
            store_tile(images + 4 * image_bytes(H), eb);
            unsigned char *image = images;
            bundle::in_pieces<Wgmma, pieces>(
                [&](bundle::piece_acc &acc, int k) {
                    tables.take(acc);
                    mma::begin<Wgmma>();
                    mma::forward_mma<Wgmma>(acc, eb, ee, bundle::piece * k, 0, false);
                },
                [&](int k) {
                    if (k + 1 < pieces) fetch_tables(s, tables, bundle::ends_of(p), k + 1);
                    else if (!streamed<D, H>()) fetch_tables(s, tables, next, 0);
                },
                [&](bundle::piece_acc &acc, int k) {
                    mma::fragment z[groups16];
                    units_and_slopes(acc, k, z, image, slopes);
                    bundle::push(z1, z);
                });
        }
        if (streamed<D, H>()) { /* all warps have their tables, whose place it is */
            mma::group_barrier(1 + (int)threadIdx.x / bundle::group_threads);
            start_strip<D>(strip, s.e3_image);
        }
        unsigned char *z2_image = images + image_bytes(H);
        unsigned char *dq2_image = images + 3 * image_bytes(H);
        uint4 dz2[groups16];
        bundle::in_pieces<Wgmma, pieces>(
            [&](bundle::piece_acc &acc, int k) {
                bundle::load_bias(acc, c2 + bundle::piece * k);
                mma::begin<Wgmma>();
                mma::forward_mma<Wgmma>(acc, z1, e2, bundle::piece * k, 0, false);
            },
            [&](int k) {
#pragma unroll
                for (int j = 0; j < groups16; j++)
                    dz2[j] = stash[(groups16 * k + j) * bundle::group_threads];
            },
            [&](bundle::piece_acc &acc, int k) {
                mma::fragment z2[groups16], dq[groups16];
#pragma unroll
                for (int j = 0; j < groups16; j++) {
                    bundle::piece_acc slope;
#pragma unroll
                    for (int t = 0; t < 2; t++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            acc[2 * j + t][i] = mma::fast_activation<false>(acc[2 * j + t][i],
                                                                            &slope[2 * j + t][i]);
                    z2[j] = mma::fragment_of(acc[2 * j], acc[2 * j + 1]);
                    scale_by(slope, j, dz2[j]);
                    dq[j] = mma::fragment_of(slope[2 * j], slope[2 * j + 1]);
                }
#pragma unroll
                for (int j = 0; j < groups16; j += 2) {
                    store_image(z2_image, (groups16 * k + j) / 2, z2[j], z2[j + 1]);
                    store_image(dq2_image, (groups16 * k + j) / 2, dq[j], dq[j + 1]);
                }
                bundle::push(dq2, dq);
            });
    }
    unsigned char *image = images + 2 * image_bytes(H);
    bundle::held_sums before;
    bundle::selection select = bundle::selection_of(p);
    uint4 slope[2];
    bundle::in_pieces<Wgmma, pieces>(
        [&](bundle::piece_acc &acc, int k) {
            mma::begin<Wgmma>();
            mma::backward_mma<Wgmma>(acc, dq2, e2, 0, bundle::piece * k, true);
        },
        [&](int k) {
            bundle::hold_sums(&before, s.partials, H, s.n_bundles, bundle::piece * k, p);
            slope[0] = slopes[2 * k * bundle::group_threads];
            slope[1] = slopes[(2 * k + 1) * bundle::group_threads];
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
                    bundle::add_towards_a(sum, j + i, before, p, s.partials, H, s.n_bundles,
                                          bundle::piece * k);
                    bundle::store_towards_b(sum, j + i, s.partials, H, pair_index,
                                            bundle::piece * k);
                }
                store_image(image, (groups16 * k + j) / 2, x[0], x[1]);
                store_stash(stash + (groups16 * k + j) * bundle::group_threads,
                            x); /* dz2's place */
            }
        });
}

template <int D, int H, bool Wgmma>
__global__ void __launch_bounds__(back_groups<D>() * bundle::group_threads, 1)
    edges_back_kernel(edge_back_step s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr bool stream_last = streamed<D, H>();
    int group = (int)threadIdx.x / bundle::group_threads;
    mma::panel ee = {mma::shared_address(shared), H};
    mma::panel e2 = {ee.base + (uint32_t)mma::panel_bytes(H, D), H};
    mma::panel e3 = {e2.base + (uint32_t)mma::panel_bytes(H, H), D};
    float *c2 = (float *)(shared + edge_back_bytes<D, H>() - H * sizeof(float));
    mma::stage_panel(ee, 0, s.ee, H, D);
    mma::stage_panel(e2, 0, s.e2, H, H);
    if (stream_last) e3.base += (uint32_t)(group * mma::panel_bytes(D, mma::strip_columns));
    else mma::stage_panel(e3, 0, s.e3, D, H);
    for (int i = (int)threadIdx.x; i < H; i += (int)blockDim.x) c2[i] = s.c2[i];
    wait_for_previous();
    __syncthreads();
    int warp = (int)threadIdx.x % bundle::group_threads / 32;
    constexpr int places = stash_fragments<D, H>();
    constexpr bool is_shared = stash_is_shared<D>(fixed_bytes<D, H>(), places);
    uint4 *stash = own_stash<D>(is_shared, shared + fixed_bytes<D, H>(), s.stash, places);
    float4 *aside = (float4 *)stash + (H / 16 + H / 32) * bundle::group_threads;
    float mean[2], rho[2];
    bundle::segment_sums<D> sums;
    if (stream_last) start_strip<D>(e3.base, s.e3_image);
    int first = (int)blockIdx.x * back_groups<D>() + (int)threadIdx.x / bundle::group_threads;
    int stride = (int)gridDim.x * back_groups<D>(), rounds = (s.tasks + stride - 1) / stride;
    bundle::row_buffer tables = table_buffer<D, H>(
        shared + mma::panel_bytes(H, D) + mma::panel_bytes(H, H), shared + edge_back_bytes<D, H>());
    if (!stream_last && first < s.tasks)
        fetch_tables(s, tables,
                     bundle::load_ends(s.bundles, (first * WF_GROUP_WARPS + warp) * s.list_length),
                     0);
#pragma unroll 1
    for (int step = 0; step < rounds * s.list_length; step++) {
        int task = first + step / s.list_length * stride, t = step % s.list_length;
        if (task >= s.tasks) break;
        int index = (task * WF_GROUP_WARPS + warp) * s.list_length + t;
        int tile = task * s.list_length + t;
        bundle::pair p = bundle::load_pair(s.bundles, index);
        bundle::ends next = bundle::load_ends(
            s.bundles, bundle::following(index, t, s.list_length, task, stride, s.tasks));
        if (t + 1 < s.list_length) {
            bundle::fetch_pair<D>(s.bundles, index + 1, s.e, s.ld_e);
            bundle::fetch_pair<D>(s.bundles, index + 1, s.de, s.ld_e);
        }
        {
            mma::fragment de[D / 16];
            load_gradient<D>(s.de, s.ld_e, p, de);
            store_tile(s.images + tile * tile_bytes<D, H>() + 4 * image_bytes(H) + image_bytes(D),
                       de);
            last_layer_back<D, H, Wgmma>(s, e3, group, de, stash);
        }
        if (stream_last) fetch_tables(s, tables, bundle::ends_of(p), 0);
        update_back<D, H, Wgmma>(s, p, index, tile, next, tables, e3.base, ee, e2, c2, stash, aside,
                                 mean, rho);
        float deb[D / 8][4];
        bundle::held_stream<D> stream;
        stream.fetch(s.de, s.ld_e, p);
        {
            mma::fragment dq1[H / 16];
            load_stash(stash, dq1);
            mma::begin<Wgmma>();
            mma::backward_mma<Wgmma>(deb, dq1, ee, 0, 0, true);
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
        bundle::norm_backward<D>(deb, hat_of, rho, s.ld_e, s.modulation, s.ld_modulation, NULL, 0,
                                 p, &sums, s.segments, s.de, stream);
    }
    tables.await();
}

template <int D, int H, bool Wgmma> bool launch_back(const edge_back_step &s) {
    size_t bytes = all_bytes<D, H>();
    unsigned blocks = most_blocks(s.tasks, back_groups<D>());
    start_kernel(edges_back_kernel<D, H, Wgmma>, blocks, back_groups<D>() * bundle::group_threads,
                 bytes, s);
    return true;
}

/* Scratch of the kernel; false: none left. */
template <int D, int H>
bool take_scratch(edge_back_step *s, const wf_bundle_table *o, int tiles, wf_arena *arena) {
    s->images = (unsigned char *)wf_arena_alloc(arena, tiles * tile_bytes<D, H>());
    s->stash = take_stash<D>(o->n_tasks, stash_fragments<D, H>(), arena);
    s->partials = (uint16_t *)scratch(arena, wf_partial_rows(o) * H / 2);
    s->segments = scratch(arena, (size_t)o->n_segments * 2 * D);
    return s->images != NULL && s->stash != NULL && s->partials != NULL && s->segments != NULL;
}

template <int D, int H> bool edges_backward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_bundle_table *o = part->bundles[WF_CUT_SHORT];
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ci = op->in[2], *cj = op->in[3],
                    *ee = op->in[4], *e2 = op->in[5], *c2 = op->in[6], *e3 = op->in[7],
                    *c3 = op->in[8];
    edge_back_step s = {};
    s.bundles = o->bundles;
    s.list_length = o->list_length;
    s.tasks = o->n_tasks;
    s.n_bundles = o->n_bundles;
    s.e = data_of(e);
    s.modulation = data_of(modulation) + op->column;
    s.ci = data_of(ci);
    s.cj = data_of(cj);
    s.ee = weight_rows_of(ee);
    s.e2 = weight_rows_of(e2);
    s.c2 = data_of(c2);
    s.e3 = weight_rows_of(e3);
    s.ld_e = e->ld;
    s.ld_modulation = modulation->ld;
    s.ld_table = ci->ld;
    s.de = grad_of(op->out[0]);
    if (o->n_tasks == 0) return true;
    int tiles = o->n_tasks * o->list_length;
    if (!take_scratch<D, H>(&s, o, tiles, arena)) return false;
    if (streamed<D, H>()) {
        unsigned char *image = (unsigned char *)wf_arena_alloc(arena, mma::panel_bytes(D, H));
        if (image == NULL) return false;
        panel_image(s.e3.w, s.e3.ld, D, H, image);
        s.e3_image = image;
    }
    if (!(use_wgmma() ? launch_back<D, H, true>(s) : launch_back<D, H, false>(s))) return false;
    node_half_sums(
        half_sum_args{part,
                      {{s.partials, wanted_grad(ci), partials_as_dst, sets_table(op, ci)},
                       {s.partials, wanted_grad(cj), partials_as_src, sets_table(op, cj)}},
                      H,
                      ci->ld,
                      NULL});
    add_modulation_sums(op, s.segments, 2 * D);
    const unsigned char *z1 = s.images, *z2 = z1 + image_bytes(H), *dq1 = z2 + image_bytes(H),
                        *dq2 = dq1 + image_bytes(H), *eb = dq2 + image_bytes(H),
                        *de = eb + image_bytes(D);
    outer_product products[3] = {
        {{de, NULL}, {z2, NULL}, 1, D, H, wanted_grad(e3), wanted_grad(c3), e3->ld},
        {{dq2, NULL}, {z1, NULL}, 1, H, H, wanted_grad(e2), wanted_grad(c2), e2->ld},
        {{dq1, NULL}, {eb, NULL}, 1, H, D, wanted_grad(ee), NULL, ee->ld}};
    return outer_products(products, 3, s.images, tiles, tile_bytes<D, H>(), arena) && launched();
}

} // namespace

op_function *lstar_edges_fused_backward(const wf_op *op) {
    if (lstar_edges_fused_forward(op) == NULL || !shared_memory_fits(outer_bytes)) return NULL;
    WF_RETURN_FOR_WIDTHS(op, all_bytes, edges_backward);
}

} // namespace wf_gpu
