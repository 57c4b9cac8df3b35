/* node_backward: what node_forward does, backward, in one kernel (node_benchmark).
 *
 *   dhb' = wt' dtables + g         dtables: sums of the slots that both halves of the edges'
 *                                  backward leave; g: what the next block's kernel has left of dhb'
 *   dh' = dh + norm backward of dhb'   dq = (1 + gate) dh'
 *   dx = (w2' dq) slope            dF = wf' dx   dR = wb' dx   g of this block = wh' dx
 * dF and dR leave as panels, dq and dx as tiles for the products of the weight gradients. Sums of
 * dhb', dhb' e^ (e^ is h' normalised) and dh' q leave for each group of nodes: the gradients of
 * shift, scale and gate.
 *   sums      as in node_forward, four times: F and R of the messages' half and of the update's
 *   products  the next sums are added up while they run; 64 columns of results in flight */
#ifndef WF_BENCH_NODE_BACKWARD_CUH
#define WF_BENCH_NODE_BACKWARD_CUH

#include "node_forward.cuh"

namespace edge {

struct node_back_args {
    const unsigned char *weights; /* as forward, but all in bf16 and not halved */
    const int4 *groups;
    const int *list;
    const uint32_t *half_slots[2]; /* of messages, of the update */
    const float *rows, *h, *dh;    /* h: h' */
    const uint4 *g, *q, *slopes;   /* in lane order: bf16, bf16, fp16 */
    float *dh_out;
    uint4 *g_out;
    unsigned char *dq, *dx, *panels; /* panels: of a group, dF in atoms 0 and 1, dR in 2 and 3 */
    float *sums;                     /* of a group, in lane order: gate, scale, shift */
    int tiles;
};

namespace node {
enum { back_pieces = 5, back_panel_bytes = 4 * atom_bytes };
}

/* The sum of two lanes, of which each keeps a half. */
template <int Bit> __device__ inline void halve(float (&kept)[32], int lane) {
    bool upper = (lane & Bit) != 0;
#pragma unroll
    for (int k = 0; k < Bit; k++) {
        float sent = upper ? kept[k] : kept[k + Bit];
        kept[k] = (upper ? kept[k + Bit] : kept[k]) + __shfl_xor_sync(0xffffffffu, sent, Bit);
    }
}
/* Sums of v over the 8 rows of each of the warp's two groups, to to[64] of `kind`: 28
 * shuffles. */
__device__ inline void leave_group_sums(const float (&v)[8][4], const node_back_args &p,
                                        const node_state &own, int tile, int kind) {
    int lane = own.thread % 32, warp = own.thread / 32;
    float kept[32];
#pragma unroll
    for (int k = 0; k < 32; k++) kept[k] = v[k % 16 / 2][k / 16 * 2 + k % 2];
    halve<16>(kept, lane), halve<8>(kept, lane), halve<4>(kept, lane);
    size_t group = (size_t)(tile * 8 + 2 * warp + lane / 16);
    *(float4 *)(p.sums + (group * 3 + (size_t)kind) * width + lane % 4 * 16 + lane / 4 % 4 * 4) =
        make_float4(kept[0], kept[1], kept[2], kept[3]);
}

/* The normalised rows of h', and 1 / deviation. */
__device__ inline void normalised(float (&x)[8][4], float (&rho)[2], const float *h, size_t first) {
    float mean[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < 8; t++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float2 both = *(const float2 *)(h + first + (size_t)(8 * k * width + 8 * t));
            x[t][2 * k] = both.x, x[t][2 * k + 1] = both.y;
            mean[k] += both.x + both.y;
        }
#pragma unroll
    for (int k = 0; k < 2; k++) mean[k] = quad_sum(mean[k]) * (1.0f / width);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        float *at = &x[k / 4][k % 4];
        *at -= mean[k % 4 / 2];
        squares[k % 4 / 2] = fmaf(*at, *at, squares[k % 4 / 2]);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) rho[k] = rsqrtf(quad_sum(squares[k]) * (1.0f / width) + 1e-6f);
#pragma unroll
    for (int k = 0; k < 32; k++) x[k / 4][k % 4] *= rho[k % 4 / 2];
}

/* dhb' in acc becomes dh', which leaves; dq as fragments. */
__device__ inline void node_norm_back(float (&acc)[8][4], fragment (&dq)[4],
                                      const node_back_args &p, const node_state &own, int tile) {
    int lane = own.thread % 32, warp = own.thread / 32, c = lane % 4;
    size_t first = (size_t)(64 * tile + 16 * warp + lane / 4) * width + 2 * (size_t)c;
    float hat[8][4], rho[2], mean[2] = {0, 0}, along[2] = {0, 0};
    normalised(hat, rho, p.h, first);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint4 words = p.g[lane_words(own, tile, s, 4)];
        const uint32_t g[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 add = unpack_bf16(g[k]);
            float *x = &acc[2 * s + k / 2][k % 2 * 2];
            x[0] += add.x, x[1] += add.y;
        }
    }
    leave_group_sums(acc, p, own, tile, 2);
    {
        float product_of[8][4];
#pragma unroll
        for (int k = 0; k < 32; k++)
            product_of[k / 4][k % 4] = acc[k / 4][k % 4] * hat[k / 4][k % 4];
        leave_group_sums(product_of, p, own, tile, 1);
    }
    lane_row scale(p, tile, node::row_scale), gate(p, tile, node::row_gate);
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int s = k / 4, i = k / 2 % 2, row = k % 2;
        float4 by = scale.at(row, 0, s);
        float *x = &acc[2 * s + i][2 * row];
        const float *e = &hat[2 * s + i][2 * row];
        x[0] *= i ? by.z : by.x, x[1] *= i ? by.w : by.y;
        mean[row] += x[0] + x[1];
        along[row] = fmaf(x[0], e[0], fmaf(x[1], e[1], along[row]));
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        mean[k] = quad_sum(mean[k]) * (1.0f / width);
        along[k] = quad_sum(along[k]) * (1.0f / width);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint4 words = p.q[lane_words(own, tile, s, 4)];
        const uint32_t q[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int k = 0; k < 4; k++) { /* as in a fragment: tile 2 s + k / 2, row k % 2 */
            const int t = 2 * s + k / 2, row = k % 2;
            float4 by = gate.at(row, 0, s);
            size_t at = first + (size_t)(8 * row * width + 8 * t);
            float2 old = *(const float2 *)(p.dh + at), value = unpack_bf16(q[k]);
            float *x = &acc[t][2 * row], *e = &hat[t][2 * row];
            x[0] = fmaf(rho[row], fmaf(-along[row], e[0], x[0] - mean[row]), old.x);
            x[1] = fmaf(rho[row], fmaf(-along[row], e[1], x[1] - mean[row]), old.y);
            *(float2 *)(p.dh_out + at) = make_float2(x[0], x[1]);
            dq[s].r[k] =
                k < 2 ? pack_bf16(x[0] * by.x, x[1] * by.y) : pack_bf16(x[0] * by.z, x[1] * by.w);
            e[0] = x[0] * value.x, e[1] = x[1] * value.y;
        }
    }
    leave_group_sums(hat, p, own, tile, 0);
}

/* dhb' without g. */
__device__ inline void tables_back(float (&acc)[8][4], const node_back_args &p,
                                   const node_state &own, int tile) {
    uint32_t sums[8][4];
    add_slots(sums, p, p.half_slots[0], tile, own.thread, 0);
    if (own.thread < 8) wait_stores_read<0>();
    own.meet_group(); /* the last tile has left */
#pragma unroll
    for (int part = 0; part < 4; part++) { /* 128 columns of the tables */
        store_sums_of_slots(own, sums);
        products_begin();
#pragma unroll
        for (int s = 0; s < 8; s++)
            product<bf16, true, true>(
                acc, columns(region(own.sums), 0, s),
                columns(region(own.base), node::wt + part * 2 * tile_bytes, s), part > 0 || s > 0);
        products_commit();
        if (part < 3) add_slots(sums, p, p.half_slots[(part + 1) % 2], tile, own.thread, part > 0);
        products_wait<0>();
        settle(acc);
        own.meet_group(); /* nobody reads the sums any more */
    }
}

/* 64 columns of wh' dx, wf' dx or wb' dx, in flight. */
__device__ inline void back_start(float (&acc)[8][4], const fragment (&dx)[8], uint32_t base,
                                  int piece) {
    const int from = piece == 0  ? (int)node::wh
                     : piece < 3 ? node::wf + (piece - 1) * 2 * tile_bytes
                                 : node::wb + (piece - 3) * 2 * tile_bytes;
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<bf16, true>(acc, dx[s], columns(region(base), from, s), s > 0);
    products_commit();
}
__device__ inline void leave_back(const fragment (&dx)[8], const node_back_args &p,
                                  const node_state &own, int tile) {
    float acc[2][8][4];
    back_start(acc[0], dx, own.base, 0);
#pragma unroll
    for (int piece = 0; piece < node::back_pieces; piece++) {
        uint32_t to = own.hb(piece % 2);
        float(&x)[8][4] = acc[piece % 2];
        if (piece + 1 < node::back_pieces) {
            back_start(acc[(piece + 1) % 2], dx, own.base, piece + 1);
            products_wait<1>();
        } else products_wait<0>();
        settle(x);
        if (piece > 0) {
            if (own.thread < 8) wait_stores_read<1>();
            own.meet_group(); /* dq, or the atoms of two pieces ago, have left `to` */
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            fragment f;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *from = &x[2 * s + k / 2][k % 2 * 2];
                f.r[k] = pack_bf16(from[0], from[1]);
            }
            if (piece == 0) p.g_out[lane_words(own, tile, s, 4)] = words_of(f);
            else store_fragment(fragment_at(to, s), f);
        }
        if (piece == 0) continue;
        publish();
        own.meet_group();
        if (own.thread >= 8) continue;
        store(p.panels + (size_t)(tile * 8 + own.thread) * node::back_panel_bytes +
                  (size_t)((piece - 1) * atom_bytes),
              to + (uint32_t)(own.thread * atom_bytes), atom_bytes);
        commit_stores();
    }
}

__device__ inline void node_back_tile(const node_back_args &p, const node_state &own, int tile) {
    fragment dq[4], dx[8];
    {
        float acc[8][4];
        tables_back(acc, p, own, tile);
        node_norm_back(acc, dq, p, own, tile);
    }
    float dy[2][8][4];
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<bf16, true>(dy[s / 4], dq[s % 4],
                            columns(region(own.base), node::w2 + s / 4 * tile_bytes, s % 4),
                            s % 4 > 0);
    products_commit();
#pragma unroll
    for (int s = 0; s < 4; s++) store_fragment(fragment_at(own.hb(0), s), dq[s]);
    products_wait<0>();
    settle(dy[0]), settle(dy[1]);
#pragma unroll
    for (int s = 0; s < 8; s++) {
        uint4 words = p.slopes[lane_words(own, tile, s, 8)];
        const uint32_t slopes[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = &dy[s / 4][s % 4 * 2 + k / 2][k % 2 * 2];
            float2 slope = unpack_half(slopes[k]);
            dx[s].r[k] = pack_bf16(from[0] * slope.x, from[1] * slope.y);
        }
        store_fragment(fragment_at(own.sums + (uint32_t)(s / 4 * tile_bytes), s % 4), dx[s]);
    }
    publish();
    own.meet_group();
    if (own.thread == 0) {
        store(p.dq + (size_t)tile * tile_bytes, own.hb(0), tile_bytes);
        store(p.dx + (size_t)tile * (2 * tile_bytes), own.sums, 2 * tile_bytes);
        commit_stores();
    }
    leave_back(dx, p, own, tile);
}

__global__ void __launch_bounds__(node::threads, 1)
    node_back_kernel(const __grid_constant__ node_back_args p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    node_state own = node_begin(shared, p.weights);
    wait_for(own.base + node::barriers, 0);
    int tile = (int)blockIdx.x * node::groups + own.group, stride = (int)gridDim.x * node::groups;
    for (; tile < p.tiles; tile += stride) node_back_tile(p, own, tile);
    if (own.thread < 8) wait_stores_read<0>();
}

} // namespace edge
#endif
