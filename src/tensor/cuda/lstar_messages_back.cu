/* lstar_messages_back: backward of the messages of an lstar block. Formulas: kernels of lstar_messages_fused.cu, reversed.
 *
 *   tile (64 edges, a warpgroup), towards a and then towards b:
 *     y1, s'(x1)      as forward; y1 stays in registers, the slope goes to a stash of the lane's own
 *     dx2 = dS[receiver] * s'(M2 y1 + b2)     pieces of 64 columns
 *     dx1 = (M2' dx2) * s'(x1)                sums towards both ends: dAi of the receiver, dAj of the sender
 *   deb = Me' (dx1 of both) + dmean / E, then backward through the norm: de, sums of deb and deb * hat per run
 * Operands of the weight gradients leave as images (outer_cuda.cuh): eb, y1 and dx2 of either direction, dp; rows without
 * an edge are zero in dx2 and dp. What a lane needs again later it reads back from its own part of them.
 * An edge costs 2 (3 D H + 4 H H) FLOP here, 2 (D H + 2 H H) in the outer products, 4 H special functions; bytes: 10 H + 2 D
 * of images, about 4 H of slots and 12 D of e and de. */
#include "tensor/cuda/lstar_back.cuh"
#include "tensor/cuda/lstar_fused.cuh"

namespace wf_gpu {
namespace {

enum { groups = 2 };

struct message_back_step {
    const wf_octet *octets;
    int steps, chunks, n_octets;
    const float *e, *modulation, *ai, *aj, *me, *m2, *b2, *dsum, *degree, *dmean;
    int ld_e, ld_modulation, ld_table, ld_me, ld_m2, ld_sum, ld_mean;
    unsigned char *eb, *y1[2], *dx2[2], *dp; /* images */
    uint4 *stash;                            /* (warpgroups, H / 16, 128): slopes */
    float *slots_i, *slots_j;                /* (wf_octets_slots, H) */
    float *runs;                             /* (runs, 2 D) */
    float *de;
};

template <int D, int H> __host__ __device__ constexpr size_t back_bytes() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + H * sizeof(float);
}

/* One direction; `first`: towards a. */
template <int D, int H, bool Wide>
__device__ inline void message_back(const message_back_step &s, const octet::pair &p,
                                    int pair_index, int tile, bool first, const mma::panel &me,
                                    const mma::panel &m2, const float *b2, uint4 *stash) {
    constexpr int pieces = H / octet::piece, groups16 = octet::piece_groups;
    constexpr size_t tile_bytes = (size_t)(H / 64) * image_strip_bytes;
    const float *table_a = first ? s.ai : s.aj, *table_b = first ? s.aj : s.ai;
    mma::fragment dx2[H / 16];
    {
        mma::fragment y1[H / 16];
        {
            mma::fragment eb[D / 16];
            load_tile<D>(s.eb, tile, eb);
            unsigned char *image = (first ? s.y1[0] : s.y1[1]) + (size_t)tile * tile_bytes;
            octet::held_tables tables;
            octet::in_pieces<Wide, pieces>(
                [&](octet::piece_acc &acc, int k) {
                    mma::forward_mma<Wide>(acc, eb, me, octet::piece * k, 0, true);
                },
                [&](int k) {
                    octet::hold_tables(&tables, table_a, table_b, s.ld_table, octet::piece * k, p);
                },
                [&](octet::piece_acc &acc, int) { octet::add_tables(acc, tables); },
                [&](octet::piece_acc &acc, int k) {
                    units_and_slopes(acc, k, y1 + groups16 * k, image, stash);
                });
        }
        int receiver[2] = {first ? p.a : p.b[0], first ? p.a : p.b[1]};
        float factor[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            factor[k] = s.degree == NULL ? p.live[k] : p.live[k] / __ldg(s.degree + receiver[k]);
        const float *upper = s.dsum + (size_t)receiver[0] * s.ld_sum;
        const float *lower = s.dsum + (size_t)receiver[1] * s.ld_sum;
        unsigned char *image = (first ? s.dx2[0] : s.dx2[1]) + (size_t)tile * tile_bytes;
        octet::held_rows dsum;
        octet::in_pieces<Wide, pieces>(
            [&](octet::piece_acc &acc, int k) {
                octet::load_bias(acc, b2 + octet::piece * k);
                mma::begin<Wide>();
                mma::forward_mma<Wide>(acc, y1, m2, octet::piece * k, 0, false);
            },
            [&](int k) {
                octet::hold_rows(&dsum, upper + octet::piece * k, lower + octet::piece * k);
            },
            [&](octet::piece_acc &acc, int k) {
#pragma unroll
                for (int j = 0; j < groups16; j++) {
                    float slope[2][4];
#pragma unroll
                    for (int t = 0; t < 2; t++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            mma::fast_unit<false>(acc[2 * j + t][i], &slope[t][i]);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float4 d = dsum.of[r][j];
                        slope[0][2 * r] *= factor[r] * d.x;
                        slope[0][2 * r + 1] *= factor[r] * d.y;
                        slope[1][2 * r] *= factor[r] * d.z;
                        slope[1][2 * r + 1] *= factor[r] * d.w;
                    }
                    dx2[groups16 * k + j] = mma::fragment_of(slope[0], slope[1]);
                }
            },
            [&](octet::piece_acc &, int k) {
#pragma unroll
                for (int j = 0; j < groups16; j += 2)
                    store_image(image, (groups16 * k + j) / 2, dx2[groups16 * k + j],
                                dx2[groups16 * k + j + 1]);
            });
    }
    unsigned char *image = s.dp + (size_t)tile * tile_bytes;
    float *slots_a = first ? s.slots_i : s.slots_j, *slots_b = first ? s.slots_j : s.slots_i;
    octet::held_sums before;
    uint4 slope[groups16];
    octet::in_pieces<Wide, pieces>(
        [&](octet::piece_acc &acc, int k) {
            mma::backward_mma<Wide>(acc, dx2, m2, 0, octet::piece * k, true);
        },
        [&](int k) {
            octet::hold_sums(&before, slots_a, H, s.n_octets, octet::piece * k, p);
#pragma unroll
            for (int j = 0; j < groups16; j++)
                slope[j] = stash[(groups16 * k + j) * octet::group_threads];
        },
        [&](octet::piece_acc &acc, int k) {
#pragma unroll
            for (int j = 0; j < groups16; j++) scale_by(acc, j, slope[j]);
            octet::add_towards_a(acc, before, p, slots_a, H, s.n_octets, octet::piece * k);
        },
        [&](octet::piece_acc &acc, int k) {
#pragma unroll
            for (int j = 0; j < groups16; j += 2) {
                int i = (groups16 * k + j) / 2;
                mma::fragment x = mma::fragment_of(acc[2 * j], acc[2 * j + 1]);
                mma::fragment y = mma::fragment_of(acc[2 * j + 2], acc[2 * j + 3]);
                if (!first) {
                    mma::fragment x_before, y_before;
                    load_image(image, i, &x_before, &y_before);
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        x.r[r] = add_pairs(x.r[r], x_before.r[r]);
                        y.r[r] = add_pairs(y.r[r], y_before.r[r]);
                    }
                }
                store_image(image, i, x, y);
            }
            octet::store_towards_b(acc, p, slots_b, H, pair_index, octet::piece * k);
        });
}

template <int D, int H, bool Wide>
__global__ void __launch_bounds__(groups *octet::group_threads, 1)
    messages_back_kernel(message_back_step s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    mma::panel me = {mma::shared_address(shared), H};
    mma::panel m2 = {me.base + (uint32_t)mma::panel_bytes(H, D), H};
    float *b2 = (float *)(shared + mma::panel_bytes(H, D) + mma::panel_bytes(H, H));
    mma::stage_panel(me, 0, s.me, s.ld_me, H, D);
    mma::stage_panel(m2, 0, s.m2, s.ld_m2, H, H);
    for (int i = (int)threadIdx.x; i < H; i += (int)blockDim.x) b2[i] = s.b2[i];
    __syncthreads();
    int chunk = (int)blockIdx.x * groups + (int)threadIdx.x / octet::group_threads;
    int warp = (int)threadIdx.x % octet::group_threads / 32;
    if (chunk >= s.chunks) return;
    uint4 *stash = s.stash + (size_t)chunk * (H / 16) * octet::group_threads +
                   threadIdx.x % octet::group_threads;
    octet::run_sums<D> sums;
#pragma unroll 1
    for (int t = 0; t < s.steps; t++) {
        int index = (chunk * WF_OCTET_WARPS + warp) * s.steps + t, tile = chunk * s.steps + t;
        octet::pair p = octet::load_pair(s.octets, index);
        if (t + 1 < s.steps) octet::fetch_pair<D>(s.octets, index + 1, s.e, s.ld_e);
        {
            mma::fragment eb[D / 16];
            octet::load_operand<D>(s.e, s.ld_e, s.modulation, s.ld_modulation, p, eb, NULL);
            store_tile<D>(s.eb, tile, eb);
        }
#pragma unroll 1
        for (int way = 0; way < 2; way++)
            message_back<D, H, Wide>(s, p, index, tile, way == 0, me, m2, b2, stash);
        float deb[D / 8][4];
        {
            mma::fragment dp[H / 16];
            load_tile<H>(s.dp, tile, dp);
            mma::begin<Wide>();
            mma::backward_mma<Wide>(deb, dp, me, 0, 0, true);
            mma::finish<Wide>();
        }
        mma::settle(deb);
        octet::norm_backward<D>(deb, s.e, s.ld_e, s.modulation, s.ld_modulation, s.dmean, s.ld_mean,
                                p, &sums, s.runs, s.de);
    }
}

template <int D, int H, bool Wide> bool launch_back(const message_back_step &s) {
    size_t bytes = back_bytes<D, H>();
    if (cudaFuncSetAttribute(messages_back_kernel<D, H, Wide>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return false;
    unsigned blocks = blocks_for((size_t)s.chunks, groups);
    messages_back_kernel<D, H, Wide><<<blocks, groups * octet::group_threads, bytes, stream()>>>(s);
    return true;
}

/* Scratch of the kernel; false: none left. */
template <int D, int H>
bool take_scratch(message_back_step *s, const wf_octets *o, int tiles, wf_arena *arena) {
    unsigned char **images[] = {&s->y1[0], &s->y1[1], &s->dx2[0], &s->dx2[1], &s->dp};
    for (unsigned char **image : images) {
        *image = (unsigned char *)wf_arena_alloc(arena, image_bytes(tiles, H));
        if (*image == NULL) return false;
    }
    s->eb = (unsigned char *)wf_arena_alloc(arena, image_bytes(tiles, D));
    s->stash = (uint4 *)wf_arena_alloc(arena, (size_t)o->n_chunks * (H / 16) *
                                                  octet::group_threads * sizeof(uint4));
    s->slots_i = scratch(arena, wf_octets_slots(o) * H);
    s->slots_j = scratch(arena, wf_octets_slots(o) * H);
    s->runs = scratch(arena, (size_t)o->n_runs * 2 * D);
    return s->eb != NULL && s->stash != NULL && s->slots_i != NULL && s->slots_j != NULL &&
           s->runs != NULL;
}

template <int D, int H> bool messages_backward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_octets *o = part->octets;
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ai = op->in[2], *aj = op->in[3],
                    *me = op->in[4], *m2 = op->in[5], *b2 = op->in[6], *sum = op->out[0],
                    *mean = op->out[1];
    message_back_step s = {};
    s.octets = o->octets;
    s.steps = o->steps;
    s.chunks = o->n_chunks;
    s.n_octets = o->n_octets;
    s.e = data_of(e);
    s.modulation = data_of(modulation) + op->column;
    s.ai = data_of(ai);
    s.aj = data_of(aj);
    s.me = data_of(me);
    s.m2 = data_of(m2);
    s.b2 = data_of(b2);
    s.dsum = grad_of(sum);
    s.degree = op->mode == WF_SUM_MEAN ? (const float *)part->degree : NULL;
    s.dmean = grad_of(mean);
    s.ld_e = e->ld;
    s.ld_modulation = modulation->ld;
    s.ld_table = ai->ld;
    s.ld_me = me->ld;
    s.ld_m2 = m2->ld;
    s.ld_sum = sum->ld;
    s.ld_mean = mean->ld;
    s.de = wanted_grad(e);
    if (o->n_chunks == 0) return true;
    int tiles = o->n_chunks * o->steps;
    if (!take_scratch<D, H>(&s, o, tiles, arena) ||
        !(wide_products() ? launch_back<D, H, true>(s) : launch_back<D, H, false>(s)))
        return false;
    slot_sum_step nodes = {part, s.slots_i, H, H, slots_of_both, NULL, false, NULL, ai->ld, false};
    nodes.to = wanted_grad(ai);
    if (nodes.to != NULL) node_slot_sums(nodes);
    nodes.slots = s.slots_j;
    nodes.to = wanted_grad(aj);
    if (nodes.to != NULL) node_slot_sums(nodes);
    if (wanted(modulation))
        graph_run_sums(slot_sum_step{part, s.runs, 2 * D, 2 * D, 0, NULL, false,
                                     grad_of(modulation) + op->column, modulation->ld, false});
    outer_product products[2] = {
        {{s.dx2[0], s.dx2[1]},
         {s.y1[0], s.y1[1]},
         2,
         H,
         H,
         wanted_grad(m2),
         wanted_grad(b2),
         m2->ld},
        {{s.dp, NULL}, {s.eb, NULL}, 1, H, D, wanted_grad(me), NULL, me->ld}};
    return outer_products(products, 2, tiles, arena) && launched();
}

} // namespace

op_run *lstar_messages_fused_backward(const wf_op *op) {
    if (lstar_messages_fused_forward(op) == NULL) return NULL;
    int d = op->in[0]->cols, h = op->in[4]->rows;
#define SHAPE(D, H)                                                                                \
    if (d == D && h == H) return messages_backward<D, H>;
    SHAPE(64, 128)
    SHAPE(128, 256)
#undef SHAPE
    return NULL;
}

} // namespace wf_gpu
