/* node_forward: the nodes of a lean block forward at width 64, and the tables of the next block, in
 * one kernel (node_benchmark).
 *
 *   x = wh hb + wf F + wb R + row of the graph   y = gelu(x)   h' = h + (1 + gate) (w2 y + c2)
 *   hb' = h' normalised, modulated   tables = wt hb' (+ row of the graph, for the first)
 * F and R are the sums of the slots (edge_tiles.cuh) that the edges have left, in list order. wf
 * and wb are products of two weights each, which an update forms once.
 *   tile      64 nodes: 8 octets, of any graphs. A graph's rows are read by octet
 *   block     all weights in shared memory, four groups of 128 threads, a tile each and no second
 *   warp      two octets, 16 rows of the tile, and as many of each of the group's two tiles in
 *             shared memory. Warps of a group meet in products alone
 *   slots     each octet's list is read at once, a lane an entry; its slots are called into L2,
 *             then added up, `depth` in flight
 *   F, R      column k of a slot is 16 bytes, its 8 nodes. They go through the warp's shared memory
 *             and are turned while they are loaded as left operands
 *   rows      of a graph stand in the accumulators before the first product
 *   tables    64 columns at a time. The rows of an octet are an atom of its panel: ad in atoms 0 to
 *             3, as in 4 to 7 */
#ifndef WF_BENCH_NODE_FORWARD_CUH
#define WF_BENCH_NODE_FORWARD_CUH

#include "edge_tiles.cuh"

namespace edge {

struct node_args {
    const unsigned char *weights, *hb; /* hb: a tile of fp16 for 64 nodes */
    const float *h;                    /* (nodes, 64) */
    const int4 *octets;                /* graph, first of F, of R, end in `list` */
    const int *list;                   /* slots */
    const uint32_t *slots;
    const float *rows; /* of a graph, in lane order: x 128, ad 256, 1 + gate, 1 + scale, shift */
    float *h_out;
    unsigned char *hb_out, *panels; /* panels: of an octet */
    /* For backward. sums: slots of F and R of each octet; y: tiles of bf16. In lane order
     * (lane_words): slopes of 128 columns in fp16, q = w2 y + c2 in bf16. */
    uint32_t *sums;
    unsigned char *y;
    uint4 *slopes, *q;
    int tiles;
};

namespace node {
enum {
    groups = 4,
    threads = groups * group_threads,
    depth = 2, /* slots of an octet in flight */
    table_pieces = 8,
    panel_bytes = table_pieces * atom_bytes,
    wh = 0, /* (128, 64) in fp16 */
    wf = wh + 2 * tile_bytes,
    wb = wf + 4 * tile_bytes, /* each (128, 128) in bf16: 64 columns, then 64 */
    w2 = wb + 4 * tile_bytes, /* (64, 128) in fp16 */
    wt = w2 + 2 * tile_bytes, /* (512, 64) in fp16 */
    c2 = wt + table_pieces * tile_bytes,
    weight_bytes = c2 + 256,
    barriers = weight_bytes, /* of the weights, then one of each warp */
    first_group = (barriers + 8 + groups * 32 + 1023) / 1024 * 1024,
    group_bytes = 2 * tile_bytes,
    bytes = first_group + groups * group_bytes,
    /* of a graph's rows */
    row_x = 0,
    row_ad = row_x + half_hidden,
    row_gate = row_ad + 4 * width,
    row_scale = row_gate + width,
    row_shift = row_scale + width,
    row_floats = row_shift + width
};
static_assert(bytes <= 227 * 1024, "what a block may have");
} // namespace node

/* Of a thread. */
struct node_state {
    uint32_t base, tiles, own_fragment; /* shared memory, the group's two tiles there, and
                                           fragment_at of the first */
    int group, warp;
    __device__ int thread() const { return (int)threadIdx.x % group_threads; }
    __device__ int lane() const { return (int)threadIdx.x % 32; }
    __device__ uint32_t weights_full() const { return base + node::barriers; }
    __device__ uint32_t full() const {
        return base + node::barriers + 8 + (uint32_t)((group * 4 + warp) * 8);
    }
    /* The group's tile `side`, and the warp's 2,048 bytes of it. */
    __device__ uint32_t tile(int side) const { return tiles + (uint32_t)(side * tile_bytes); }
    __device__ uint32_t part(int side) const {
        return tile(side) + (uint32_t)(warp * 2 * atom_bytes);
    }
    /* fragment_at(tile(side), step) */
    __device__ uint32_t fragment(int side, int step) const {
        return (own_fragment ^ (uint32_t)(32 * step)) + (uint32_t)(side * tile_bytes);
    }
    /* The warp's first octet of a tile. */
    __device__ int octet(int of) const { return of * 8 + 2 * warp; }
};

/* --- what leaves through shared memory -------------------------------------------------------- */
/* The warp's rows in its part `side`: an atom to `to`, the other `apart` bytes behind it. */
__device__ inline void let_leave(const node_state &own, int side, unsigned char *to, size_t apart) {
    publish();
    __syncwarp();
    if (own.lane() < 2) {
        store(to + (size_t)own.lane() * apart, own.part(side) + (uint32_t)(own.lane() * atom_bytes),
              atom_bytes);
        commit_stores();
    }
}
/* Into tile number `tile` of tiles of 64 rows. */
__device__ inline void let_leave(const node_state &own, int side, unsigned char *to, int tile) {
    let_leave(own, side, to + (size_t)tile * tile_bytes + (size_t)(own.warp * 2 * atom_bytes),
              (size_t)atom_bytes);
}
/* Until all but the last Left parts that left may be overwritten. */
template <int Left> __device__ inline void wait_until_left(const node_state &own) {
    if (own.lane() < 2) wait_stores_read<Left>();
    __syncwarp();
}
/* 64 columns of products in bf16 into the warp's part `side`. */
__device__ inline void put_piece(const node_state &own, int side, const float (&x)[8][4]) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = &x[2 * s + k / 2][k % 2 * 2];
            f.r[k] = pack_bf16(from[0], from[1]);
        }
        store_fragment(own.fragment(side, s), f);
    }
}

/* --- slots ------------------------------------------------------------------------------------ */
/* An octet's part of the list: F, then R. Lane l has entry l; those behind 32 are read singly. */
struct octet_slots {
    int4 of;
    int entry;
    template <class Args> __device__ octet_slots(const Args &p, int octet) {
        of = __ldg(p.octets + octet);
        int at = of.y + (int)threadIdx.x % 32;
        entry = at < of.w ? __ldg(p.list + at) : 0;
    }
    /* Number `at` of the list, the same for all lanes. */
    __device__ int slot(const int *list, int at) const {
        return at - of.y < 32 ? __shfl_sync(0xffffffffu, entry, at - of.y) : __ldg(list + at);
    }
    __device__ int first(int way) const { return way ? of.z : of.y; }
    __device__ int end(int way) const { return way ? of.w : of.z; }
    /* Calls the first 32 slots into L2, 128 bytes a lane. */
    __device__ void call(const uint32_t *slots) const {
        int lane = (int)threadIdx.x % 32, count = min(of.w - of.y, 32);
        for (int k = 0; k < count; k += 2) {
            int from = __shfl_sync(0xffffffffu, entry, (k + lane / 16) % 32);
            if (k + lane / 16 < count)
                prefetch(slots + (size_t)from * slot_words + (size_t)(lane % 16 * 32));
        }
    }
};
/* octets[k], for a loop that is not unrolled: no memory. */
__device__ inline octet_slots either(const octet_slots (&octets)[2], int k) {
    octet_slots out = octets[0];
    if (k == 1) out = octets[1];
    return out;
}
__device__ inline void add_eight(float (&sum)[8], const uint4 &more) {
    const uint32_t words[4] = {more.x, more.y, more.z, more.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 both = unpack_bf16(words[j]);
        sum[2 * j] += both.x, sum[2 * j + 1] += both.y;
    }
}
/* Sums of an octet's slots of F (way 0) or R: columns lane + 32 q, 8 nodes in bf16. */
__device__ inline void add_slots(uint4 (&out)[4], const octet_slots &octet, const int *list,
                                 const uint32_t *slots, int way) {
    float sum[4][8] = {};
    const uint32_t *own = slots + threadIdx.x % 32 * 4;
    for (int at = octet.first(way), end = octet.end(way); at < end; at += node::depth) {
        uint4 x[node::depth][4];
#pragma unroll
        for (int i = 0; i < node::depth; i++) {
            if (at + i >= end) continue;
            const uint32_t *from = own + (size_t)octet.slot(list, at + i) * slot_words;
#pragma unroll
            for (int q = 0; q < 4; q++) x[i][q] = __ldg((const uint4 *)(from + 128 * q));
        }
#pragma unroll
        for (int i = 0; i < node::depth; i++) {
            if (at + i >= end) continue;
#pragma unroll
            for (int q = 0; q < 4; q++) add_eight(sum[q], x[i][q]);
        }
    }
#pragma unroll
    for (int q = 0; q < 4; q++)
        out[q] = uint4{pack_bf16(sum[q][0], sum[q][1]), pack_bf16(sum[q][2], sum[q][3]),
                       pack_bf16(sum[q][4], sum[q][5]), pack_bf16(sum[q][6], sum[q][7])};
}
/* Sums of the warp's octet `side` into its part of that number. */
__device__ inline void put_sums(const node_state &own, int side, const uint4 (&sums)[4]) {
#pragma unroll
    for (int q = 0; q < 4; q++)
        store_words(own.part(side) + (uint32_t)((own.lane() + 32 * q) * 16), sums[q]);
}
/* Columns 16 step .. of the sums of both octets, as a left operand. */
__device__ inline fragment load_sums(const node_state &own, int step) {
    int matrix = own.lane() / 8;
    return load_turned(own.part(matrix % 2) +
                       (uint32_t)((16 * step + matrix / 2 * 8 + own.lane() % 8) * 16));
}
__device__ inline void load_sums(fragment (&to)[8], const node_state &own) {
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 8; s++) to[s] = load_sums(own, s);
    __syncwarp();
}

/* --- rows of a graph -------------------------------------------------------------------------- */
/* The thread's 16 bytes of the first of a tile's `of` fragments; the next are group_threads
 * behind. */
__device__ inline size_t lane_words(const node_state &own, int tile, int of) {
    return (size_t)(tile * of * group_threads + own.thread());
}
__device__ inline uint4 words_of(const fragment &f) {
    return uint4{f.r[0], f.r[1], f.r[2], f.r[3]};
}
/* The lane's columns of a row of 64, 16 floats, for its two rows, which belong to two octets. */
struct lane_row {
    const float *of[2];
    template <class Args>
    __device__ lane_row(const Args &p, const node_state &own, int tile, int row) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            of[k] = p.rows + __ldg(&p.octets[own.octet(tile) + k].x) * node::row_floats + row +
                    16 * (own.lane() % 4);
    }
    /* Of columns 16 s + 2 c, + 1, + 8, + 9, behind 64 `strip`. */
    __device__ float4 at(int k, int strip, int s) const {
        return __ldg((const float4 *)(of[k] + width * strip + 4 * s));
    }
    /* 64 columns, as accumulators. */
    __device__ void put(float (&acc)[8][4], int strip) const {
#pragma unroll
        for (int k = 0; k < 16; k++) {
            float2 x = __ldg((const float2 *)(of[k % 2] + width * strip + k / 2 * 2));
            acc[k / 2][k % 2 * 2] = x.x, acc[k / 2][k % 2 * 2 + 1] = x.y;
        }
    }
};

/* --- forward ---------------------------------------------------------------------------------- */
/* x += F wf' or R wb', both halves. */
__device__ inline void add_messages(float (&x)[2][8][4], const fragment (&sums)[8],
                                    const node_state &own, int weight) {
    products_begin();
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int s = k % 8;
        product<bf16, false>(
            x[k / 8], sums[s],
            rows(region(own.base), weight + (s / 4 * 2 + k / 8) * tile_bytes, s % 4), true);
    }
    products_commit();
    products_wait<0>();
    settle(x[0]), settle(x[1]);
}
/* x += hb wh', whose rows come while nobody else uses the warp's shared memory. */
__device__ inline void fetch_nodes(const node_args &p, const node_state &own, int tile) {
    publish();
    __syncwarp();
    if (own.lane() != 0) return;
    arrive_expecting(own.full(), 2 * atom_bytes);
    fetch(own.part(0), p.hb + (size_t)tile * tile_bytes + (size_t)(own.warp * 2 * atom_bytes),
          2 * atom_bytes, own.full());
}
__device__ inline void add_nodes(float (&x)[2][8][4], const node_state &own) {
    fragment hb[4];
    wait_for(own.full(), 0);
#pragma unroll
    for (int s = 0; s < 4; s++) hb[s] = load_fragment(own.fragment(0, s));
    products_begin();
#pragma unroll
    for (int k = 0; k < 8; k++)
        product<fp16, false>(x[k / 4], hb[k % 4],
                             rows(region(own.base), node::wh + k / 4 * tile_bytes, k % 4), true);
    products_commit();
    products_wait<0>();
    settle(x[0]), settle(x[1]);
}
/* Sums of a way of both octets into the warp's parts; where backward needs them, as slots, too. */
template <bool Keep>
__device__ inline void put_way(const node_args &p, const node_state &own,
                               const octet_slots (&octets)[2], int tile, int way) {
#pragma unroll 1
    for (int k = 0; k < 2; k++) {
        uint4 sums[4];
        add_slots(sums, either(octets, k), p.list, p.slots, way);
        put_sums(own, k, sums);
        uint4 *to = (uint4 *)(p.sums + (size_t)((own.octet(tile) + k) * 2 + way) * slot_words);
#pragma unroll
        for (int q = 0; Keep && q < 4; q++) to[own.lane() + 32 * q] = sums[q];
    }
}
/* x of a tile, 128 columns. */
template <bool Keep>
__device__ inline void node_hidden(float (&x)[2][8][4], const node_args &p, const node_state &own,
                                   int tile) {
    octet_slots octets[2] = {octet_slots(p, own.octet(tile)), octet_slots(p, own.octet(tile) + 1)};
    octets[0].call(p.slots), octets[1].call(p.slots);
    prefetch(p.h + (size_t)(tile * 64 + 16 * own.warp) * width + own.lane() * 32);
    fragment a[8];
    put_way<Keep>(p, own, octets, tile, 0);
    load_sums(a, own);
    put_way<Keep>(p, own, octets, tile, 1);
    lane_row row(p, own, tile, node::row_x);
    row.put(x[0], 0), row.put(x[1], 1);
    wait_for(own.weights_full(), 0);
    add_messages(x, a, own, node::wf);
    load_sums(a, own);
    fetch_nodes(p, own, tile);
    add_messages(x, a, own, node::wb);
    add_nodes(x, own);
}

/* y of a tile, and what backward needs of it. */
template <bool Keep>
__device__ inline void node_units(fragment (&y)[8], const float (&x)[2][8][4], const node_args &p,
                                  const node_state &own, int tile) {
    uint4 *slopes = p.slopes + lane_words(own, tile, 8);
#pragma unroll
    for (int s = 0; s < 8; s++) {
        fragment slope, rounded;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = &x[s / 4][s % 4 * 2 + k / 2][k % 2 * 2];
            uint32_t h = pack_half(from[0], from[1]);
            if (!Keep) y[s].r[k] = gelu(h);
            else y[s].r[k] = gelu(h, &slope.r[k]), rounded.r[k] = half_to_bf16(y[s].r[k]);
        }
        if (!Keep) continue;
        slopes[s * group_threads] = words_of(slope);
        store_fragment(own.fragment(s / 4, s % 4), rounded);
        if (s % 4 == 3) let_leave(own, s / 4, p.y, tile * 2 + s / 4);
    }
}

/* acc = w2 y + c2 */
__device__ inline void node_update(float (&acc)[8][4], const fragment (&y)[8],
                                   const node_state &own) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        float4 c2 = load_floats(own.base + node::c2 + (uint32_t)(own.lane() % 4 * 64 + s * 16));
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float *low = &acc[2 * s][2 * k], *high = &acc[2 * s + 1][2 * k];
            low[0] = c2.x, low[1] = c2.y, high[0] = c2.z, high[1] = c2.w;
        }
    }
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<fp16, false>(acc, y[s],
                             rows(region(own.base), node::w2 + s / 4 * tile_bytes, s % 4), true);
    products_commit();
    products_wait<0>();
    settle(acc);
}

/* The lane's first float of (nodes, 64), and word k of fragment s from there: row k % 2, tile
 * 2 s + k / 2. */
__device__ inline size_t lane_floats(const node_state &own, int tile) {
    return (size_t)((64 * tile + 16 * own.warp + own.lane() / 4) * width + 2 * (own.lane() % 4));
}
__device__ constexpr int float_step(int s, int k) { return k % 2 * 8 * width + 16 * s + k / 2 * 8; }
/* The lane's floats of (nodes, 64), as accumulators. */
__device__ inline void load_rows(float (&to)[8][4], const float *from, const node_state &own,
                                 int tile) {
    from += lane_floats(own, tile);
#pragma unroll
    for (int k = 0; k < 16; k++) {
        float2 x = load_pair(from + float_step(k / 4, k % 4));
        to[k / 2][k % 2 * 2] = x.x, to[k / 2][k % 2 * 2 + 1] = x.y;
    }
}
/* 64 columns as they are in left operands, in bf16: in lane order. */
__device__ inline void put_lane_words(uint4 *to, const float (&x)[8][4], const node_state &own,
                                      int tile) {
    to += lane_words(own, tile, 4);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const float *low = x[2 * s], *high = x[2 * s + 1];
        to[s * group_threads] = uint4{pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                                      pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
    }
}
/* h' = h + (1 + gate) acc leaves; acc becomes h'. */
template <bool Keep>
__device__ inline void node_residual(float (&acc)[8][4], const node_args &p, const node_state &own,
                                     int tile) {
    if (Keep) put_lane_words(p.q, acc, own, tile);
    float old[8][4];
    load_rows(old, p.h, own, tile);
    lane_row gate(p, own, tile, node::row_gate);
    float *h_out = p.h_out + lane_floats(own, tile);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        float4 gates[2] = {gate.at(0, 0, s), gate.at(1, 0, s)};
#pragma unroll
        for (int k = 0; k < 4; k++) { /* tile 2 s + k / 2, row k % 2 */
            const int t = 2 * s + k / 2, row = k % 2;
            const float4 &by = gates[row];
            float *x = &acc[t][2 * row], *h = &old[t][2 * row];
            x[0] = fmaf(k < 2 ? by.x : by.z, x[0], h[0]);
            x[1] = fmaf(k < 2 ? by.y : by.w, x[1], h[1]);
            *(float2 *)(h_out + float_step(s, k)) = make_float2(x[0], x[1]);
        }
    }
}
/* Rows minus their means; returns 1 / deviation of the lane's two. */
__device__ inline float2 centre(float (&x)[8][4]) {
    float mean[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 32; k++) mean[k % 4 / 2] += x[k / 4][k % 4];
#pragma unroll
    for (int k = 0; k < 2; k++) mean[k] = quad_sum(mean[k]) * (1.0f / width);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        float *at = &x[k / 4][k % 4];
        *at -= mean[k % 4 / 2];
        squares[k % 4 / 2] = fmaf(*at, *at, squares[k % 4 / 2]);
    }
    return make_float2(rsqrtf(quad_sum(squares[0]) * (1.0f / width) + 1e-6f),
                       rsqrtf(quad_sum(squares[1]) * (1.0f / width) + 1e-6f));
}
/* hb' from h' leaves, and comes back as left operands. (Loaded: what ptxas can make from
 * accumulators it may make anew, when they hold something else.) */
__device__ inline void node_leave(fragment (&hb)[4], float (&h)[8][4], const node_args &p,
                                  const node_state &own, int tile) {
    float2 both = centre(h);
    const float rho[2] = {both.x, both.y};
    lane_row scale(p, own, tile, node::row_scale), shift(p, own, tile, node::row_shift);
    wait_until_left<0>(own); /* y */
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment f;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 by = scale.at(k, 0, s), add = shift.at(k, 0, s);
            const float *low = &h[2 * s][2 * k], *high = &h[2 * s + 1][2 * k];
            f.r[k] =
                pack_half(fmaf(low[0] * rho[k], by.x, add.x), fmaf(low[1] * rho[k], by.y, add.y));
            f.r[2 + k] =
                pack_half(fmaf(high[0] * rho[k], by.z, add.z), fmaf(high[1] * rho[k], by.w, add.w));
        }
        store_fragment(own.fragment(0, s), f);
    }
    let_leave(own, 0, p.hb_out, tile);
#pragma unroll
    for (int s = 0; s < 4; s++) hb[s] = load_fragment(own.fragment(0, s));
}

/* 64 columns of the tables, in flight; what stands in acc is added to the first four. */
__device__ inline void table_start(float (&acc)[8][4], const fragment (&hb)[4], uint32_t base,
                                   int piece) {
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
        product<fp16, false>(acc, hb[s], rows(region(base), node::wt + piece * tile_bytes, s),
                             piece < 4 || s > 0);
    products_commit();
}
/* All tables of a tile. The next piece's row is loaded while this one leaves. */
__device__ inline void leave_tables(const fragment (&hb)[4], const node_args &p,
                                    const node_state &own, int tile) {
    lane_row graph(p, own, tile, node::row_ad);
    unsigned char *to = p.panels + (size_t)own.octet(tile) * node::panel_bytes;
    float acc[2][8][4];
    graph.put(acc[0], 0);
    table_start(acc[0], hb, own.base, 0);
#pragma unroll
    for (int piece = 0; piece < node::table_pieces; piece++) {
        const int side = (piece + 1) % 2; /* hb' leaves from part 0 */
        if (piece + 1 < 4) graph.put(acc[side], piece + 1);
        products_wait<0>();
        settle(acc[piece % 2]);
        if (piece + 1 < node::table_pieces) table_start(acc[side], hb, own.base, piece + 1);
        wait_until_left<1>(own);
        put_piece(own, side, acc[piece % 2]);
        let_leave(own, side, to + (size_t)(piece * atom_bytes), (size_t)node::panel_bytes);
    }
}

template <bool Keep>
__device__ inline void node_tile(const node_args &p, const node_state &own, int tile) {
    fragment y[8], hb[4];
    {
        float x[2][8][4];
        node_hidden<Keep>(x, p, own, tile);
        node_units<Keep>(y, x, p, own, tile);
    }
    float acc[8][4];
    node_update(acc, y, own);
    node_residual<Keep>(acc, p, own, tile);
    node_leave(hb, acc, p, own, tile);
    leave_tables(hb, p, own, tile);
}

/* Creates the barriers and fetches the weights. */
__device__ inline node_state node_begin(unsigned char *shared, const unsigned char *weights) {
    node_state own = {};
    own.base = address_of(shared);
    own.group = group_index();
    own.warp = __shfl_sync(0xffffffffu, own.thread() / 32, 0);
    own.tiles = own.base + (uint32_t)(node::first_group + own.group * node::group_bytes);
    own.own_fragment = fragment_at(own.tiles, 0);
    if (threadIdx.x == 0) {
        for (int k = 0; k < 1 + 4 * node::groups; k++)
            barrier_create(own.base + node::barriers + (uint32_t)(8 * k), 1);
        barriers_created();
        arrive_expecting(own.weights_full(), node::weight_bytes);
        fetch(own.base, weights, node::weight_bytes, own.weights_full());
    }
    __syncthreads();
    return own;
}
/* Keep: for training. */
template <bool Keep>
__global__ void __launch_bounds__(node::threads, 1)
    node_kernel(const __grid_constant__ node_args p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    node_state own = node_begin(shared, p.weights);
    int tile = (int)blockIdx.x * node::groups + own.group;
    if (tile >= p.tiles) return;
    node_tile<Keep>(p, own, tile);
    if (own.lane() < 2) wait_stores_read<0>();
}

} // namespace edge
#endif
