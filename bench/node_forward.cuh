/* node_forward: the nodes of a lean block forward at width 64, and the tables of the next block, in
 * one kernel (node_benchmark).
 *
 *   x = wh hb + wf F + wb R + row of the graph   y = gelu(x)   h' = h + (1 + gate) (w2 y + c2)
 *   hb' = h' normalised, modulated   tables = wt hb' (+ row of the graph, for the first)
 * F and R are the sums of the slots (edge_tiles.cuh) that the edges have left, in list order. wf
 * and wb are products of two weights each, which an update forms once.
 *   tile      64 nodes: 8 groups of 8, of any graphs. A graph's rows are read by group
 *   block     all weights in shared memory, two groups of 128 threads, each with tiles of its own
 *   sums      (128 columns, 64 nodes): column k of a slot is 16 bytes of row k, so F need not be
 *             turned. The slots of R are added up while the products with F run
 *   tables    64 columns at a time, the next 64 in flight. The rows of a group are an atom of its
 *             panel: ad in atoms 0 to 3, as in 4 to 7 */
#ifndef WF_BENCH_NODE_FORWARD_CUH
#define WF_BENCH_NODE_FORWARD_CUH

#include "edge_tiles.cuh"

namespace edge {

struct node_args {
    const unsigned char *weights, *hb; /* hb: a tile of fp16 for 64 nodes */
    const float *h;                    /* (nodes, 64) */
    const int4 *groups;                /* graph, first of F, of R, end in `list` */
    const int *list;                   /* slots */
    const uint32_t *slots;
    const float *rows; /* of a graph, in lane order: x 128, ad 256, 1 + gate, 1 + scale, shift */
    float *h_out;
    unsigned char *hb_out, *panels; /* panels: of a group */
    /* For backward. sums: slots of F and R of each group; y: tiles of bf16. In lane order
     * (lane_words): slopes of 128 columns in fp16, q = w2 y + c2 in bf16. */
    uint32_t *sums;
    unsigned char *y;
    uint4 *slopes, *q;
    int tiles;
};

namespace node {
enum {
    groups = 2,
    threads = groups * group_threads,
    table_pieces = 8,
    panel_bytes = table_pieces * atom_bytes,
    wh = 0, /* (128, 64) in fp16 */
    wf = wh + 2 * tile_bytes,
    wb = wf + 4 * tile_bytes, /* each (128, 128) in bf16: 64 columns, then 64 */
    w2 = wb + 4 * tile_bytes, /* (64, 128) in fp16 */
    wt = w2 + 2 * tile_bytes, /* (512, 64) in fp16 */
    c2 = wt + table_pieces * tile_bytes,
    weight_bytes = c2 + 256,
    barriers = weight_bytes,
    first_group = (barriers + 64 + 1023) / 1024 * 1024,
    hb = 2 * tile_bytes, /* of a group: sums, then two tiles of hb (backward: to leave) */
    group_bytes = hb + 2 * tile_bytes,
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

/* What a group of threads keeps from tile to tile. */
struct node_state {
    uint32_t base, sums;
    int group, thread, n;
    __device__ uint32_t full(int side) const {
        return base + node::barriers + 8 + (uint32_t)(group * 16 + side * 8);
    }
    __device__ uint32_t hb(int side) const { return sums + node::hb + side * tile_bytes; }
    __device__ void meet_group() const { meet(1 + group, group_threads); }
};

__device__ inline void node_fetch(const node_args &p, const node_state &own, int tile, int side) {
    if (own.thread != 0 || tile >= p.tiles) return;
    arrive_expecting(own.full(side), tile_bytes);
    fetch(own.hb(side), p.hb + (size_t)tile * tile_bytes, tile_bytes, own.full(side));
}

/* Sums of the slots of 8 groups: the thread's column. way: 0 F, 1 R. */
template <class Args>
__device__ inline void add_slots(uint32_t (&to)[8][4], const Args &p, const uint32_t *slots,
                                 int tile, int column, int way) {
#pragma unroll
    for (int g = 0; g < 8; g++) {
        int4 of = p.groups[tile * 8 + g];
        int first = way ? of.z : of.y, end = way ? of.w : of.z;
        float sum[8] = {};
        for (int i = first; i < end; i++) {
            uint4 x = *(const uint4 *)(slots + (size_t)p.list[i] * slot_words + column * 4);
            const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 both = unpack_bf16(words[k]);
                sum[2 * k] += both.x, sum[2 * k + 1] += both.y;
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) to[g][k] = pack_bf16(sum[2 * k], sum[2 * k + 1]);
    }
}
/* Fragment s of a tile, 16 bytes a thread: `of` fragments a tile. */
__device__ inline size_t lane_words(const node_state &own, int tile, int s, int of) {
    return (size_t)(tile * of + s) * group_threads + (size_t)own.thread;
}
__device__ inline uint4 words_of(const fragment &f) {
    return uint4{f.r[0], f.r[1], f.r[2], f.r[3]};
}
/* way: 0 F, 1 R */
__device__ inline void keep_sums(const node_args &p, const node_state &own, int tile, int way,
                                 const uint32_t (&from)[8][4]) {
#pragma unroll
    for (int g = 0; g < 8; g++)
        *(uint4 *)(p.sums + (size_t)((tile * 8 + g) * 2 + way) * slot_words + own.thread * 4) =
            uint4{from[g][0], from[g][1], from[g][2], from[g][3]};
}
__device__ inline void store_sums_of_slots(const node_state &own, const uint32_t (&from)[8][4]) {
#pragma unroll
    for (int g = 0; g < 8; g++) {
        uint32_t at = word_at(own.sums, own.thread, g);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(from[g][0]),
                     "r"(from[g][1]), "r"(from[g][2]), "r"(from[g][3])
                     : "memory");
    }
    publish();
    own.meet_group();
}
/* x += wf F or wb R, in flight. */
__device__ inline void add_messages(float (&x)[16][4], const node_state &own, int weight) {
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<bf16, true, false>(x, columns(region(own.sums), 0, s),
                                   rows(region(own.base), weight + s / 4 * 2 * tile_bytes, s % 4),
                                   true);
}

/* The lane's columns of a row of 64, 16 floats, for its two rows, which belong to two groups. */
struct lane_row {
    const float *of[2];
    template <class Args> __device__ lane_row(const Args &p, int tile, int row) {
        int warp = (int)threadIdx.x / 32 % 4, c = (int)threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < 2; k++)
            of[k] = p.rows + (size_t)p.groups[tile * 8 + 2 * warp + k].x * node::row_floats + row +
                    16 * c;
    }
    /* Of columns 16 s + 2 c, + 1, + 8, + 9, behind 64 `strip`. */
    __device__ float4 at(int k, int strip, int s) const {
        return __ldg((const float4 *)(of[k] + width * strip + 4 * s));
    }
};
/* acc += a row: Strips times 64 columns, from strip `first`. */
template <int Strips>
__device__ inline void add_row(float (&acc)[8 * Strips][4], const lane_row &row, int first) {
#pragma unroll
    for (int t = 0; t < 8 * Strips; t += 2)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 x = row.at(k, first + t / 8, t % 8 / 2);
            acc[t][2 * k] += x.x, acc[t][2 * k + 1] += x.y;
            acc[t + 1][2 * k] += x.z, acc[t + 1][2 * k + 1] += x.w;
        }
}

/* h' from acc = w2 y, and hb' as fragments. */
template <bool Keep>
__device__ inline void node_leave(float (&acc)[8][4], fragment (&out)[4], const node_args &p,
                                  const node_state &own, int tile) {
    int lane = own.thread % 32, warp = own.thread / 32, c = lane % 4;
    lane_row gate(p, tile, node::row_gate);
    size_t first = (size_t)(64 * tile + 16 * warp + lane / 4) * width + 2 * (size_t)c;
    float mean[2] = {0, 0}, squares[2] = {0, 0}, rho[2];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        float4 add = load_floats(own.base + node::c2 + (uint32_t)(c * 64 + s * 16));
        const float c2[4] = {add.x, add.y, add.z, add.w};
        fragment q;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 by = gate.at(k, 0, s);
            const float gates[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                size_t at = first + (size_t)(8 * k * width + 16 * s + 8 * i);
                float2 old = *(const float2 *)(p.h + at);
                float *x = &acc[2 * s + i][2 * k];
                x[0] += c2[2 * i], x[1] += c2[2 * i + 1];
                q.r[2 * i + k] = pack_bf16(x[0], x[1]);
                x[0] = fmaf(gates[2 * i], x[0], old.x);
                x[1] = fmaf(gates[2 * i + 1], x[1], old.y);
                *(float2 *)(p.h_out + at) = make_float2(x[0], x[1]);
                mean[k] += x[0] + x[1];
            }
        }
        if (Keep) p.q[lane_words(own, tile, s, 4)] = words_of(q);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) mean[k] = quad_sum(mean[k]) * (1.0f / width);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        float *x = &acc[k / 4][k % 4];
        *x -= mean[k % 4 / 2];
        squares[k % 4 / 2] = fmaf(*x, *x, squares[k % 4 / 2]);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) rho[k] = rsqrtf(quad_sum(squares[k]) * (1.0f / width) + 1e-6f);
    lane_row scale(p, tile, node::row_scale), shift(p, tile, node::row_shift);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 by = scale.at(k, 0, s), add = shift.at(k, 0, s);
            const float *low = &acc[2 * s][2 * k], *high = &acc[2 * s + 1][2 * k];
            out[s].r[k] =
                pack_half(fmaf(low[0] * rho[k], by.x, add.x), fmaf(low[1] * rho[k], by.y, add.y));
            out[s].r[2 + k] =
                pack_half(fmaf(high[0] * rho[k], by.z, add.z), fmaf(high[1] * rho[k], by.w, add.w));
        }
}

/* 64 columns of the tables, in flight. */
__device__ inline void table_start(float (&acc)[8][4], const fragment (&hb)[4], uint32_t base,
                                   int piece) {
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
        product<fp16, false>(acc, hb[s], rows(region(base), node::wt + piece * tile_bytes, s),
                             s > 0);
    products_commit();
}
/* All tables of a tile. Threads 0 .. 7 let the atoms of a group leave each; thread 0 hb' too. */
__device__ inline void leave_tables(const fragment (&hb)[4], const node_args &p,
                                    const node_state &own, int tile) {
    lane_row graph(p, tile, node::row_ad);
    float acc[2][8][4];
    table_start(acc[0], hb, own.base, 0);
#pragma unroll
    for (int piece = 0; piece < node::table_pieces; piece++) {
        uint32_t to = own.sums + (uint32_t)(piece % 2 * tile_bytes);
        float(&x)[8][4] = acc[piece % 2];
        if (piece + 1 < node::table_pieces) {
            table_start(acc[(piece + 1) % 2], hb, own.base, piece + 1);
            products_wait<1>();
        } else products_wait<0>();
        settle(x);
        if (piece < 4) add_row<1>(x, graph, piece);
        if (own.thread < 8) piece == 0 ? wait_stores_read<0>() : wait_stores_read<1>();
        own.meet_group(); /* y, or the atoms of two pieces ago, have left `to` */
#pragma unroll
        for (int s = 0; s < 4; s++) {
            fragment f;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *from = &x[2 * s + k / 2][k % 2 * 2];
                f.r[k] = pack_bf16(from[0], from[1]);
            }
            store_fragment(fragment_at(to, s), f);
        }
        publish();
        own.meet_group();
        if (own.thread < 8) {
            size_t group = (size_t)(tile * 8 + own.thread);
            if (own.thread == 0 && piece == 0)
                store(p.hb_out + (size_t)tile * tile_bytes, own.hb(own.n % 2), tile_bytes);
            store(p.panels + group * node::panel_bytes + (size_t)(piece * atom_bytes),
                  to + (uint32_t)(own.thread * atom_bytes), atom_bytes);
            commit_stores();
        }
    }
}

/* y of a tile, and what backward needs of it. */
template <bool Keep>
__device__ inline void node_units(fragment (&y)[8], const float (&x)[16][4], const node_args &p,
                                  const node_state &own, int tile) {
#pragma unroll
    for (int s = 0; s < 8; s++) {
        fragment slope, rounded;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = &x[2 * s + k / 2][k % 2 * 2];
            uint32_t h = pack_half(from[0], from[1]);
            if (!Keep) y[s].r[k] = gelu(h);
            else y[s].r[k] = gelu(h, &slope.r[k]), rounded.r[k] = half_to_bf16(y[s].r[k]);
        }
        if (!Keep) continue;
        p.slopes[lane_words(own, tile, s, 8)] = words_of(slope);
        store_fragment(fragment_at(own.sums + (uint32_t)(s / 4 * tile_bytes), s % 4), rounded);
    }
    if (!Keep) return;
    publish();
    own.meet_group();
    if (own.thread != 0) return;
    store(p.y + (size_t)tile * (2 * tile_bytes), own.sums, 2 * tile_bytes);
    commit_stores();
}

template <bool Keep>
__device__ inline void node_tile(const node_args &p, const node_state &own, int tile, int next) {
    int side = own.n % 2;
    uint32_t sums[8][4];
    add_slots(sums, p, p.slots, tile, own.thread, 0);
    if (own.thread < 8) wait_stores_read<0>();
    own.meet_group(); /* the last tile has left */
    node_fetch(p, own, next, side ^ 1);
    if (Keep) keep_sums(p, own, tile, 0, sums);
    store_sums_of_slots(own, sums);
    wait_for(own.full(side), (uint32_t)(own.n / 2) & 1);
    fragment y[8], hb[4];
    {
        float x[16][4];
        products_begin();
#pragma unroll
        for (int s = 0; s < 4; s++)
            product<fp16, false, false>(x, rows(region(own.hb(side)), 0, s),
                                        rows(region(own.base), node::wh, s), s > 0);
        add_messages(x, own, node::wf);
        products_commit();
        add_slots(sums, p, p.slots, tile, own.thread, 1);
        products_wait<0>();
        settle(x);
        own.meet_group(); /* nobody reads F any more */
        if (Keep) keep_sums(p, own, tile, 1, sums);
        store_sums_of_slots(own, sums);
        products_begin();
        add_messages(x, own, node::wb);
        products_commit();
        products_wait<0>();
        settle(x);
        add_row<2>(x, lane_row(p, tile, node::row_x), 0);
        if (Keep) own.meet_group(); /* nobody reads R any more */
        node_units<Keep>(y, x, p, own, tile);
    }
    float acc[8][4];
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++)
        product<fp16, false>(acc, y[s],
                             rows(region(own.base), node::w2 + s / 4 * tile_bytes, s % 4), s > 0);
    products_commit();
    products_wait<0>();
    settle(acc);
    node_leave<Keep>(acc, hb, p, own, tile);
#pragma unroll
    for (int s = 0; s < 4; s++) store_fragment(fragment_at(own.hb(side), s), hb[s]);
    leave_tables(hb, p, own, tile);
}

/* Creates the barriers and fetches the weights. */
__device__ inline node_state node_begin(unsigned char *shared, const unsigned char *weights) {
    node_state own = {};
    own.base = address_of(shared);
    own.group = group_index();
    own.thread = (int)threadIdx.x % group_threads;
    own.sums = own.base + (uint32_t)(node::first_group + own.group * node::group_bytes);
    if (threadIdx.x == 0) {
        for (int k = 0; k < 1 + 2 * node::groups; k++)
            barrier_create(own.base + node::barriers + (uint32_t)(8 * k), 1);
        barriers_created();
        arrive_expecting(own.base + node::barriers, node::weight_bytes);
        fetch(own.base, weights, node::weight_bytes, own.base + node::barriers);
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
    int tile = (int)blockIdx.x * node::groups + own.group, stride = (int)gridDim.x * node::groups;
    node_fetch(p, own, tile, 0);
    wait_for(own.base + node::barriers, 0);
    for (; tile < p.tiles; tile += stride, own.n++) node_tile<Keep>(p, own, tile, tile + stride);
    if (own.thread < 8) wait_stores_read<0>();
}

} // namespace edge
#endif
