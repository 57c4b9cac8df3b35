/* node_backward: what node_forward does, backward, in one kernel (node_benchmark).
 *
 *   dhb' = wt' dtables + g         dtables: sums of the slots that both halves of the edges'
 *                                  backward leave; g: what the next block's kernel has left of dhb'
 *   dh' = dh + norm backward of dhb'   dq = (1 + gate) dh'
 *   dx = (w2' dq) slope            dF = wf' dx   dR = wb' dx   g of this block = wh' dx
 * dF and dR leave as panels, dq and dx as tiles for the products of the weight gradients. Sums of
 * dhb', dhb' e^ (e^ is h' normalised) and dh' q leave for each octet: the gradients of shift, scale
 * and gate.
 *   roles     tiles, groups, warps and slots as in node_forward
 *   sums      four times: F and R of the messages' half and of the update's
 *   products  64 columns at a time, left operands from registers. dq and dx leave through shared
 *             memory and are loaded from there */
#ifndef WF_BENCH_NODE_BACKWARD_CUH
#define WF_BENCH_NODE_BACKWARD_CUH

#include "node_forward.cuh"

namespace edge {

struct node_back_args {
    const unsigned char *weights; /* as forward, but all in bf16 and not halved */
    const int4 *octets;
    const int *list;
    const uint32_t *half_slots[2]; /* of messages, of the update */
    const float *rows, *h, *dh;    /* h: h' */
    const uint4 *g, *q, *slopes;   /* in lane order: bf16, bf16, fp16 */
    float *dh_out;
    uint4 *g_out;
    unsigned char *dq, *dx, *panels; /* panels: of an octet, dF in atoms 0 and 1, dR in 2 and 3 */
    float *sums;                     /* of an octet, in lane order: gate, scale, shift */
    int tiles;
};

namespace node {
enum { back_pieces = 5, back_panel_bytes = 4 * atom_bytes };
}

/* kept[k], k < Bit, becomes the sum of two lanes, of which each keeps a half. */
template <int Bit> __device__ inline void halve(float (&kept)[16], int lane) {
    bool upper = (lane & Bit) != 0;
#pragma unroll
    for (int k = 0; k < Bit; k++) {
        float sent = upper ? kept[k] : kept[k + Bit];
        kept[k] = (upper ? kept[k + Bit] : kept[k]) + __shfl_xor_sync(0xffffffffu, sent, Bit);
    }
}
/* Sums of value(row, k), k of the lane's 16 columns, over the 8 rows of each of the warp's two
 * octets, to the sums of `kind`: 28 shuffles. */
template <class F>
__device__ inline void leave_octet_sums(const node_back_args &p, const node_state &own, int tile,
                                        int kind, F value) {
    float kept[16];
    bool second = own.lane() >= 16;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        float low = value(0, k), high = value(1, k);
        float sent = second ? low : high;
        kept[k] = (second ? high : low) + __shfl_xor_sync(0xffffffffu, sent, 16);
    }
    halve<8>(kept, own.lane()), halve<4>(kept, own.lane());
    size_t octet = (size_t)(own.octet(tile) + own.lane() / 16);
    *(float4 *)(p.sums + (octet * 3 + (size_t)kind) * width + own.lane() % 4 * 16 +
                own.lane() / 4 % 4 * 4) = make_float4(kept[0], kept[1], kept[2], kept[3]);
}

/* Calls what a tile reads behind its slots into L2, 128 bytes a lane. */
__device__ inline void call_rows(const node_back_args &p, const node_state &own, int tile) {
    size_t rows = (size_t)(tile * 64 + 16 * own.warp) * width + (size_t)(own.lane() * 32);
    prefetch(p.h + rows), prefetch(p.dh + rows);
    size_t line =
        (size_t)(own.warp * 32 + own.lane() % 4 * 8); /* of four in a fragment's 512 bytes */
    int s = own.lane() / 4;
    prefetch((s < 4 ? p.g : p.q) + (size_t)(tile * 4 + s % 4) * group_threads + line);
    prefetch(p.slopes + (size_t)(tile * 8 + s) * group_threads + line);
}

/* dhb' in acc: the sums of dtables, 128 columns at a time, multiplied by wt. */
__device__ inline void tables_back(float (&acc)[8][4], const node_back_args &p,
                                   const node_state &own, int tile) {
    octet_slots octets[2] = {octet_slots(p, own.octet(tile)), octet_slots(p, own.octet(tile) + 1)};
#pragma unroll
    for (int k = 0; k < 4; k++) octets[k / 2].call(p.half_slots[k % 2]);
    call_rows(p, own, tile);
    clear(acc);
#pragma unroll 1
    for (int part = 0; part < 4; part++) {
        fragment a[8];
#pragma unroll 1
        for (int k = 0; k < 2; k++) {
            uint4 sums[4];
            add_slots(sums, either(octets, k), p.list, p.half_slots[part % 2], part / 2);
            put_sums(own, k, sums);
        }
        load_sums(a, own);
        wait_for(own.weights_full(), 0);
        uint32_t weights = region(own.base + (uint32_t)(node::wt + part * 2 * tile_bytes));
        products_begin();
#pragma unroll
        for (int s = 0; s < 8; s++) product<bf16, true>(acc, a[s], columns(weights, 0, s), true);
        products_commit();
        products_wait<0>();
        settle(acc);
    }
}

/* acc += g. */
__device__ inline void add_next(float (&acc)[8][4], const node_back_args &p, const node_state &own,
                                int tile) {
    const uint4 *next = p.g + lane_words(own, tile, 4);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint4 words = __ldg(next + s * group_threads);
        const uint32_t g[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 add = unpack_bf16(g[k]);
            float *x = &acc[2 * s + k / 2][k % 2 * 2];
            x[0] += add.x, x[1] += add.y;
        }
    }
}
/* The normalised rows of h'; returns 1 / deviation of the lane's two. */
__device__ inline float2 normalised(float (&x)[8][4], const float *h, const node_state &own,
                                    int tile) {
    load_rows(x, h, own, tile);
    float2 rho = centre(x);
#pragma unroll
    for (int k = 0; k < 32; k++) x[k / 4][k % 4] *= k % 4 / 2 ? rho.y : rho.x;
    return rho;
}
/* acc, dhb', becomes g - mean g - e^ mean(g e^) with g = acc (1 + scale). */
__device__ inline void project(float (&acc)[8][4], const float (&hat)[8][4],
                               const lane_row &scale) {
    float mean[2] = {0, 0}, along[2] = {0, 0};
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
    for (int k = 0; k < 32; k++) {
        float *x = &acc[k / 4][k % 4];
        *x = fmaf(-along[k % 4 / 2], hat[k / 4][k % 4], *x - mean[k % 4 / 2]);
    }
}
/* dh' = dh + rho acc leaves, and dq, from which left operands are loaded; hat becomes dh' q. */
__device__ inline void leave_rows(fragment (&dq)[4], float (&acc)[8][4], float (&hat)[8][4],
                                  float2 rho, const node_back_args &p, const node_state &own,
                                  int tile) {
    lane_row gate(p, own, tile, node::row_gate);
    const uint4 *q_of = p.q + lane_words(own, tile, 4);
    const float *dh = p.dh + lane_floats(own, tile);
    float *dh_out = p.dh_out + lane_floats(own, tile);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint4 words = __ldg(q_of + s * group_threads);
        const uint32_t q[4] = {words.x, words.y, words.z, words.w};
        fragment f;
#pragma unroll
        for (int k = 0; k < 4; k++) { /* as in a fragment: tile 2 s + k / 2, row k % 2 */
            const int t = 2 * s + k / 2, row = k % 2;
            float4 by = gate.at(row, 0, s);
            float2 old = load_pair(dh + float_step(s, k)), value = unpack_bf16(q[k]);
            float *x = &acc[t][2 * row], *e = &hat[t][2 * row], by_rho = row ? rho.y : rho.x;
            x[0] = fmaf(by_rho, x[0], old.x), x[1] = fmaf(by_rho, x[1], old.y);
            *(float2 *)(dh_out + float_step(s, k)) = make_float2(x[0], x[1]);
            f.r[k] =
                k < 2 ? pack_bf16(x[0] * by.x, x[1] * by.y) : pack_bf16(x[0] * by.z, x[1] * by.w);
            e[0] = x[0] * value.x, e[1] = x[1] * value.y;
        }
        store_fragment(own.fragment(0, s), f);
    }
    let_leave(own, 0, p.dq, tile);
#pragma unroll
    for (int s = 0; s < 4; s++) dq[s] = load_fragment(own.fragment(0, s));
}
/* From dhb' without g to dq. */
__device__ inline void node_norm_back(float (&acc)[8][4], fragment (&dq)[4],
                                      const node_back_args &p, const node_state &own, int tile) {
    float hat[8][4];
    float2 rho = normalised(hat, p.h, own, tile);
    add_next(acc, p, own, tile);
    auto of = [](const float(&x)[8][4], int row, int k) { return x[k / 2][row * 2 + k % 2]; };
    leave_octet_sums(p, own, tile, 2, [&](int row, int k) { return of(acc, row, k); });
    leave_octet_sums(p, own, tile, 1,
                     [&](int row, int k) { return of(acc, row, k) * of(hat, row, k); });
    project(acc, hat, lane_row(p, own, tile, node::row_scale));
    leave_rows(dq, acc, hat, rho, p, own, tile);
    leave_octet_sums(p, own, tile, 0, [&](int row, int k) { return of(hat, row, k); });
}

/* dx = (w2' dq) slope leaves, and comes back as left operands. */
__device__ inline void hidden_back(fragment (&dx)[8], const fragment (&dq)[4],
                                   const node_back_args &p, const node_state &own, int tile) {
    float dy[2][8][4];
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<bf16, true>(dy[s / 4], dq[s % 4],
                            columns(region(own.base), node::w2 + s / 4 * tile_bytes, s % 4),
                            s % 4 > 0);
    products_commit();
    products_wait<0>();
    settle(dy[0]), settle(dy[1]);
    wait_until_left<0>(own); /* dq */
    const uint4 *slopes_of = p.slopes + lane_words(own, tile, 8);
#pragma unroll
    for (int s = 0; s < 8; s++) {
        uint4 words = __ldg(slopes_of + s * group_threads);
        const uint32_t slopes[4] = {words.x, words.y, words.z, words.w};
        fragment f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = &dy[s / 4][s % 4 * 2 + k / 2][k % 2 * 2];
            float2 slope = unpack_half(slopes[k]);
            f.r[k] = pack_bf16(from[0] * slope.x, from[1] * slope.y);
        }
        store_fragment(own.fragment(s / 4, s % 4), f);
        if (s % 4 == 3) let_leave(own, s / 4, p.dx, tile * 2 + s / 4);
    }
#pragma unroll
    for (int s = 0; s < 8; s++) dx[s] = load_fragment(own.fragment(s / 4, s % 4));
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
/* g of this block in lane order, dF and dR as panels. */
__device__ inline void leave_back(const fragment (&dx)[8], const node_back_args &p,
                                  const node_state &own, int tile) {
    unsigned char *to = p.panels + (size_t)own.octet(tile) * node::back_panel_bytes;
    float acc[2][8][4];
    back_start(acc[0], dx, own.base, 0);
#pragma unroll
    for (int piece = 0; piece < node::back_pieces; piece++) {
        float(&x)[8][4] = acc[piece % 2];
        const int side = (piece + 1) % 2; /* dx leaves from part 0 first */
        products_wait<0>();
        settle(x);
        if (piece + 1 < node::back_pieces)
            back_start(acc[(piece + 1) % 2], dx, own.base, piece + 1);
        if (piece > 0) {
            wait_until_left<1>(own);
            put_piece(own, side, x);
            let_leave(own, side, to + (size_t)((piece - 1) * atom_bytes),
                      (size_t)node::back_panel_bytes);
        } else put_lane_words(p.g_out, x, own, tile);
    }
}

__device__ inline void node_back_tile(const node_back_args &p, const node_state &own, int tile) {
    fragment dq[4], dx[8];
    {
        float acc[8][4];
        tables_back(acc, p, own, tile);
        node_norm_back(acc, dq, p, own, tile);
    }
    hidden_back(dx, dq, p, own, tile);
    leave_back(dx, p, own, tile);
}

__global__ void __launch_bounds__(node::threads, 1)
    node_back_kernel(const __grid_constant__ node_back_args p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    node_state own = node_begin(shared, p.weights);
    int tile = (int)blockIdx.x * node::groups + own.group;
    if (tile >= p.tiles) return;
    node_back_tile(p, own, tile);
    if (own.lane() < 2) wait_stores_read<0>();
}

} // namespace edge
#endif
