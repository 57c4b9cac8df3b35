/* edge_backward: stages Z0 .. Z3 and M0 .. M3 of edge_benchmark, the edges of a lean block backward
 * at width 64 in two kernels.
 *
 *   Z (update)    x = w1 eb + tables   [y, y'] = gelu(x)   dz = w2' (1 + gate) de'   dx = dz y'
 *                 deb = w1' dx, left for M; weight sums eb dx' and, for each part, de' y'
 *   M (messages)  dm = dF[a] + dR[b]   dx = dm y'   deb = w1' dx + that of Z
 *                 de = de' + (g - mean g - e^ mean(g e^)) / deviation, g = deb (1 + scale)
 *                 weight sums eb dx'; for each part and warp sums of deb e^
 *   block     two compute groups that alternate in a part, a group for weight sums and sums towards
 *             nodes, a group whose warp g fetches for compute group g
 *   slot      of a compute group, two of them: image, modulation, de', panels (M: deb, dF, dR too).
 *             eb takes the place of e^ in bf16, de that of de'
 *   hand-over dx (and y) in shared memory, one tile a compute group: `ready` says that it is
 *             complete, `free` that the weights group has read it
 * Stage 3 is stage 2 with another way to deb (deb_products).
 * Stage 0 has the products alone (Z: y = h and dx = dz; M: dx = dm + h, h = x / 2), stage 1 the
 * units too; both work on a group's first tile again and again. w1 and the tables are halved, as in
 * edge_forward, and so is deb until M doubles it. */
#ifndef WF_BENCH_EDGE_BACKWARD_CUH
#define WF_BENCH_EDGE_BACKWARD_CUH

#include "edge_tiles.cuh"

namespace edge {

struct backward_args {
    const unsigned char *weights, *images, *modulation, *de;
    const unsigned char *deb;       /* M: what Z has left */
    const unsigned char *panels[4]; /* a, b; M: dF of a, dR of b */
    unsigned char *out;             /* Z: deb; M: de */
    uint32_t *b_slots, *a_slots;    /* of tiles, of runs */
    float *weight_sums, *part_sums; /* of blocks; Z: of parts (stages 0, 1: of blocks) */
    float *scale_sums;              /* M: of parts, groups and warps */
    float *kept;                    /* stages 0, 1: deb of a group's tile */
    dealing deal;
};

template <bool Message> struct back {
    enum {
        groups = 2,
        threads = (groups + 2) * group_threads,
        compute_registers = Message ? 184 : 152,
        weight_registers = Message ? 112 : 176,
        w1 = 0,
        w2 = w1 + 2 * tile_bytes, /* Z */
        selector = Message ? w2 : w2 + 2 * tile_bytes,
        weight_bytes = selector + 2048,
        barriers = weight_bytes,
        first_group = (barriers + 256 + 1023) / 1024 * 1024,
        /* of a slot */
        stats = tile_bytes,
        modulation = stats + stats_bytes,
        de = modulation + modulation_bytes,
        panel_bytes = 2 * atom_bytes,
        panel = de + tile_bytes, /* two of them, M: four */
        deb = panel + (Message ? 4 : 2) * panel_bytes,
        slot_bytes = deb + (Message ? tile_bytes : 0),
        dx = 2 * slot_bytes,
        y = dx + 2 * tile_bytes,
        out = y + (Message ? 0 : 2) * tile_bytes,
        group_bytes = out + (Message ? 0 : tile_bytes),
        bytes = first_group + groups * group_bytes
    };
    static_assert(bytes <= 227 * 1024, "what a block may have");
    uint32_t base;
    __device__ uint32_t slot(int group, int side) const {
        return base + (uint32_t)(first_group + group * group_bytes + side * slot_bytes);
    }
    __device__ uint32_t full(int group, int side) const {
        return base + barriers + 8 + (uint32_t)(group * 16 + side * 8);
    }
    __device__ uint32_t empty(int group, int side) const { return full(group, side) + 32; }
    __device__ uint32_t ready(int group) const {
        return base + barriers + 72 + (uint32_t)(group * 8);
    }
    __device__ uint32_t free(int group) const { return ready(group) + 16; }
    __device__ void create_barriers() const {
        barrier_create(base + barriers, 1);
        for (int g = 0; g < groups; g++) {
            for (int side = 0; side < 2; side++)
                barrier_create(full(g, side), 1), barrier_create(empty(g, side), 5);
            barrier_create(ready(g), group_threads);
            barrier_create(free(g), 4);
        }
        barriers_created();
    }
};

template <int Stage, bool Message>
__device__ inline void backward_fetch(const backward_args &p, back<Message> m, int group) {
    using at = back<Message>;
    int n = 0;
    if (group == 0) {
        arrive_expecting(m.base + at::barriers, at::weight_bytes);
        fetch(m.base, p.weights, at::weight_bytes, m.base + at::barriers);
    }
    each_tile<at::groups>(p.deal, (int)blockIdx.x, group, [&](const place &here) {
        int side = n % 2, round = n / 2;
        if (n++ > 0 && Stage < 2) return;
        uint32_t to = m.slot(group, side), full = m.full(group, side);
        size_t tile = (size_t)here.tile, graph = tile / graph_tiles;
        size_t node[2] = {(size_t)run_of(here.tile), (size_t)b_of(here.tile)};
        if (round > 0) wait_for(m.empty(group, side), (uint32_t)(round - 1) & 1);
        arrive_expecting(full, at::slot_bytes);
        fetch(to, p.images + tile * image_bytes, image_bytes, full);
        fetch(to + at::modulation, p.modulation + graph * modulation_bytes, modulation_bytes, full);
        fetch(to + at::de, p.de + tile * tile_bytes, tile_bytes, full);
#pragma unroll
        for (int k = 0; k < (Message ? 4 : 2); k++)
            fetch(to + (uint32_t)(at::panel + k * at::panel_bytes),
                  p.panels[k] + node[k % 2] * at::panel_bytes, at::panel_bytes, full);
        if (Message) fetch(to + at::deb, p.deb + tile * tile_bytes, tile_bytes, full);
    });
}

/* y in bf16 and dx = g y', of 64 columns, two at a time. */
template <int Stage, bool Message>
__device__ inline void backward_units(fragment (&y)[4], fragment (&dx)[4], const float (&x)[8][4],
                                      const float (&g)[8][4]) {
#pragma unroll
    for (int k = 0; k < 16; k++) {
        const float *from = &x[2 * (k / 4) + k % 4 / 2][k % 2 * 2];
        const float *by = &g[2 * (k / 4) + k % 4 / 2][k % 2 * 2];
        uint32_t h = pack_half(from[0], from[1]), slope = 0x3c003c00u;
        if (Stage > 0) h = gelu(h, &slope);
        float2 s = unpack_half(slope);
        dx[k / 4].r[k % 4] = Stage > 0 ? pack_bf16(by[0] * s.x, by[1] * s.y)
                                       : pack_bf16(Message ? by[0] + from[0] : by[0],
                                                   Message ? by[1] + from[1] : by[1]);
        if (!Message) y[k / 4].r[k % 4] = half_to_bf16(h);
    }
}

/* What a compute group keeps from tile to tile. */
struct backward_state {
    float scale_sums[16]; /* M: columns 16 s + 8 t + 2 c and the next */
    int group, n;
    bool leader;
};

/* 64 columns of x / 2, and of what comes back to them. */
template <bool Message>
__device__ inline void backward_start(float (&x)[8][4], float (&g)[8][4], const fragment (&eb)[4],
                                      const fragment (&d)[4], back<Message> m, uint32_t slot,
                                      int piece) {
    using at = back<Message>;
    const fragment nodes = one_hot(0x3f80u);
    const int panel = at::panel, tile = piece * tile_bytes;
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
        product<bf16, false>(x, eb[s], rows(region(m.base), at::w1 + tile, s), s > 0);
    product<bf16, true>(x, nodes, panels(region(slot), panel, panel + at::panel_bytes, piece),
                        true);
    if (Message)
        product<bf16, true>(
            g, nodes,
            panels(region(slot), panel + 2 * at::panel_bytes, panel + 3 * at::panel_bytes, piece),
            false);
    else
#pragma unroll
        for (int s = 0; s < 4; s++)
            product<bf16, true>(g, d[s], columns(region(m.base), at::w2 + tile, s), s > 0);
    products_commit();
}

/* (1 + gate) de' in bf16. */
__device__ inline void gated(fragment (&d)[4], uint32_t de, uint32_t modulation) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        float4 by = load_floats(modulation + 256 + (threadIdx.x % 4) * 64 + 16 * s);
        uint32_t gate[2] = {pack_bf16(by.x, by.y), pack_bf16(by.z, by.w)};
        d[s] = load_fragment(fragment_at(de, s));
#pragma unroll
        for (int k = 0; k < 4; k++) d[s].r[k] = bf16_mul(d[s].r[k], gate[k / 2]);
    }
}

/* deb = w1' dx, halved, of a tile whose dx is at `handed`; last: its second piece. The first is
 * loaded from there: ptxas 13.0 would compute it anew from accumulators that then hold the second.
 * In stage 3 the products take all of dx from shared memory. */
template <int Stage, bool Message>
__device__ inline void deb_products(float (&deb)[8][4], const fragment (&last)[4], back<Message> m,
                                    const backward_state &own, uint32_t handed) {
    fragment first[4];
    if constexpr (Stage == 3) {
        publish();
        meet(1 + own.group, group_threads);
    } else {
        __syncwarp();
#pragma unroll
        for (int s = 0; s < 4; s++) first[s] = load_fragment(fragment_at(handed, s));
    }
    products_begin();
#pragma unroll
    for (int s = 0; s < 8; s++) { /* both pieces of w1 are one column of tiles */
        uint64_t w1 = columns(region(m.base), back<Message>::w1, s);
        if constexpr (Stage == 3)
            product<bf16, false, true>(deb, rows(region(handed), s / 4 * tile_bytes, s % 4), w1,
                                       s > 0);
        else product<bf16, true>(deb, s < 4 ? first[s] : last[s - 4], w1, s > 0);
    }
    products_commit();
    if constexpr (Stage < 3) publish();
    arrive(m.ready(own.group));
    products_wait<0>();
    settle(deb);
}

/* All columns of a tile: deb; dx, y and eb for the weights group. */
template <int Stage, bool Message>
__device__ inline void backward_tile(back<Message> m, backward_state &own, const fragment (&e)[4],
                                     float (&deb)[8][4], uint32_t slot, uint32_t eb_to) {
    using at = back<Message>;
    fragment eb[4], d[4], dx[4];
    uint32_t handed = m.slot(own.group, 0) + at::dx;
    modulate(eb, e, slot + at::modulation);
    if (!Message) gated(d, slot + at::de, slot + at::modulation);
#pragma unroll
    for (int k = 0; k < 16; k++) eb[k / 4].r[k % 4] = half_to_bf16(eb[k / 4].r[k % 4]);
    if (Stage < 2 && own.n > 0) wait_for(m.free(own.group), (uint32_t)(own.n - 1) & 1);
#pragma unroll
    for (int s = 0; s < 4; s++) store_fragment(fragment_at(eb_to, s), eb[s]);
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
        float x[8][4], g[8][4];
        fragment y[4];
        backward_start<Message>(x, g, eb, d, m, slot, piece);
        if (Stage >= 2 && piece == 0 && own.n > 0) {
            if (Message && own.leader) { /* the last tile's slot has left */
                wait_stores_read<0>();
                arrive(m.empty(own.group, (own.n - 1) % 2));
            }
            wait_for(m.free(own.group), (uint32_t)(own.n - 1) & 1);
        }
        products_wait<0>();
        settle(x), settle(g);
        backward_units<Stage, Message>(y, dx, x, g);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t to = handed + (uint32_t)(piece * tile_bytes);
            store_fragment(fragment_at(to, s), dx[s]);
            if (!Message) store_fragment(fragment_at(to + 2 * tile_bytes, s), y[s]);
        }
    }
    deb_products<Stage, Message>(deb, dx, m, own, handed);
}

/* Z: deb in bf16 into a tile of its own. */
__device__ inline void leave_part(const float (&deb)[8][4], uint32_t out) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *x = &deb[2 * s + k / 2][k % 2 * 2];
            f.r[k] = pack_bf16(x[0], x[1]);
        }
        store_fragment(fragment_at(out, s), f);
    }
}

/* M: the norm backward; de takes the place of de'. */
__device__ inline void leave_norm(float (&g)[8][4], const fragment (&e)[4], backward_state &own,
                                  uint32_t slot) {
    using at = back<true>;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    uint32_t stats = slot + at::stats + (uint32_t)((16 * warp + lane / 4) * 8);
    float rho[2] = {__fdividef(1.0f, load_stats(stats).y),
                    __fdividef(1.0f, load_stats(stats + 64).y)};
    float mean[2] = {0, 0}, along[2] = {0, 0};
    fragment z;
    uint4 words[2];
    for (int j = 0; j < 2; j++)
        words[j] = load_words(slot + at::modulation + (uint32_t)(lane % 4 * 32 + 16 * j));
#pragma unroll
    for (int k = 0; k < 16; k++) { /* as in modulate: fragment s, word k % 4 */
        const int s = k / 4, t = k / 2, row = k % 2;
        const uint4 &by = words[s / 2];
        float2 scale = unpack_half(t % 4 == 0   ? by.x
                                   : t % 4 == 1 ? by.y
                                   : t % 4 == 2 ? by.z
                                                : by.w);
        if (k % 4 == 0) z = load_fragment(fragment_at(slot + at::deb, s));
        float2 part = unpack_bf16(z.r[k % 4]), x = unpack_half(e[s].r[k % 4]);
        float *to = &g[t][2 * row];
        to[0] = 2 * (to[0] + part.x), to[1] = 2 * (to[1] + part.y);
        own.scale_sums[2 * t] = fmaf(to[0], x.x, own.scale_sums[2 * t]);
        own.scale_sums[2 * t + 1] = fmaf(to[1], x.y, own.scale_sums[2 * t + 1]);
        to[0] *= scale.x, to[1] *= scale.y;
        mean[row] += to[0] + to[1];
        along[row] = fmaf(to[0], x.x, fmaf(to[1], x.y, along[row]));
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        mean[row] = quad_sum(mean[row]) * (1.0f / width);
        along[row] = quad_sum(along[row]) * (1.0f / width);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment de = load_fragment(fragment_at(slot + at::de, s));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int row = k % 2;
            const float *from = &g[2 * s + k / 2][2 * row];
            float2 x = unpack_half(e[s].r[k]), old = unpack_bf16(de.r[k]);
            de.r[k] = pack_bf16(fmaf(rho[row], fmaf(-along[row], x.x, from[0] - mean[row]), old.x),
                                fmaf(rho[row], fmaf(-along[row], x.y, from[1] - mean[row]), old.y));
        }
        store_fragment(fragment_at(slot + at::de, s), de);
    }
}

/* Sums over the rows of a warp; lanes 0 .. 3 write them in lane order. */
__device__ inline void store_scale_sums(float *to, backward_state &own) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        float sum = own.scale_sums[k];
#pragma unroll
        for (int bits = 4; bits < 32; bits *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bits);
        if (lane < 4) to[lane * 16 + k] = sum;
        own.scale_sums[k] = 0;
    }
}

template <int Stage, bool Message>
__device__ inline void backward_compute(const backward_args &p, back<Message> m, int group) {
    using at = back<Message>;
    backward_state own = {};
    own.group = group;
    own.leader = threadIdx.x % group_threads == 0;
    uint32_t out = m.slot(group, 0) + at::out;
    wait_for(m.base + at::barriers, 0);
    each_tile<at::groups>(p.deal, (int)blockIdx.x, group, [&](const place &here) {
        int side = Stage < 2 ? 0 : own.n % 2, round = Stage < 2 ? 0 : own.n / 2;
        uint32_t slot = m.slot(group, side);
        float deb[8][4];
        fragment e[4];
        wait_for(m.full(group, side), (uint32_t)round & 1);
#pragma unroll
        for (int s = 0; s < 4; s++) e[s] = load_fragment(fragment_at(slot, s));
        backward_tile<Stage, Message>(m, own, e, deb, slot, Stage < 2 ? m.slot(group, 1) : slot);
        if constexpr (Stage < 2) {
            int worker = (int)blockIdx.x * at::groups + group;
            if (here.ends_run) store_sums(p.kept + (size_t)worker * width * rows_of_tile, deb);
        } else {
            if constexpr (Message) {
                leave_norm(deb, e, own, slot);
            } else {
                if (own.leader) wait_stores_read<0>();
                meet(1 + group, group_threads); /* the last deb has left */
                leave_part(deb, out);
            }
            publish();
            meet(1 + group, group_threads);
            if (own.leader) {
                store(p.out + (size_t)here.tile * tile_bytes, Message ? slot + at::de : out,
                      tile_bytes);
                commit_stores();
                if (!Message) arrive(m.empty(group, side));
            }
            if (Message && here.ends_part)
                store_scale_sums(p.scale_sums + ((size_t)(here.part * at::groups + group) * 4 +
                                                 threadIdx.x / 32 % 4) *
                                                    width,
                                 own);
        }
        own.n++;
    });
    if (own.leader) wait_stores_read<0>();
}

/* acc (64, 128) in float. */
__device__ inline void store_weights(float *to, const float (&acc)[16][4]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    to += (16 * warp + lane / 4) * half_hidden + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < 16; t++) {
        *(float2 *)(to + 8 * t) = make_float2(acc[t][0], acc[t][1]);
        *(float2 *)(to + 8 * half_hidden + 8 * t) = make_float2(acc[t][2], acc[t][3]);
    }
}

/* The products of the weights group for a tile: dw += eb' dx, part += de' y', sums of dx. */
template <int Stage, bool Message>
__device__ inline void weight_products(float (&dw)[16][4], float (&part)[Message ? 1 : 16][4],
                                       float (&sum)[2][2][4], back<Message> m, int group, int side,
                                       bool first, bool begins) {
    using at = back<Message>;
    uint32_t eb = region(m.slot(group, Stage < 2 ? 1 : side)), dx = region(m.slot(group, 0));
    uint32_t de = region(m.slot(group, side));
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
        product<bf16, true, true>(dw, columns(eb, 0, s), columns(dx, at::dx, s), !first || s > 0);
    if constexpr (!Message)
#pragma unroll
        for (int s = 0; s < 4; s++)
            product<bf16, true, true>(part, columns(de, at::de, s), columns(dx, at::y, s),
                                      !begins || s > 0);
#pragma unroll
    for (int k = 0; k < 8; k++)
        product<bf16, true, false>(sum[k / 4], columns(dx, at::dx + k / 4 * tile_bytes, k % 4),
                                   rows(region(m.base), at::selector, k % 4), k % 4 > 0);
    products_commit();
    products_wait<0>();
    settle(dw), settle(part), settle(sum[0]), settle(sum[1]);
}

template <int Stage, bool Message>
__device__ inline void backward_weights(const backward_args &p, back<Message> m) {
    using at = back<Message>;
    float dw[16][4], part[Message ? 1 : 16][4], to_a[2][4] = {};
    int n[2] = {0, 0};
    bool first = true, begins = true, lane0 = threadIdx.x % 32 == 0;
    wait_for(m.base + at::barriers, 0);
    each_tile<1>(p.deal, (int)blockIdx.x, 0, [&](const place &here) {
        int k = here.tile - part_start(here.part);
        begins = Stage >= 2 ? k == 0 : first;
        int group = (k + here.turn) & 1, count = group ? n[1] : n[0]; /* each_tile's, for 2 */
        int side = Stage < 2 ? 0 : count & 1;
        float sum[2][2][4];
        wait_for(m.ready(group), (uint32_t)count & 1);
        weight_products<Stage, Message>(dw, part, sum, m, group, side, first, begins);
        if (lane0) {
            arrive(m.free(group));
            if (Stage >= 2) arrive(m.empty(group, side));
        }
        n[0] += group == 0, n[1] += group == 1;
        first = false;
#pragma unroll
        for (int strip = 0; strip < 2; strip++) {
            store_slot(p.b_slots + (size_t)here.tile * slot_words, strip, sum[strip][1]);
#pragma unroll
            for (int i = 0; i < 4; i++) to_a[strip][i] += sum[strip][0][i];
            if (here.ends_run)
                store_slot(p.a_slots + (size_t)run_of(here.tile) * slot_words, strip, to_a[strip]);
#pragma unroll
            for (int i = 0; i < 4; i++) to_a[strip][i] = here.ends_run ? 0 : to_a[strip][i];
        }
        if constexpr (!Message && Stage >= 2)
            if (here.ends_part)
                store_weights(p.part_sums + (size_t)here.part * width * half_hidden, part);
    });
    store_weights(p.weight_sums + (size_t)blockIdx.x * width * half_hidden, dw);
    if constexpr (!Message && Stage < 2)
        store_weights(p.part_sums + (size_t)blockIdx.x * width * half_hidden, part);
}

template <int Stage, bool Message>
__global__ void __launch_bounds__(back<Message>::threads, 1)
    backward_kernel(const __grid_constant__ backward_args p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using at = back<Message>;
    at m = {address_of(shared)};
    int group = group_index();
    if (threadIdx.x == 0) m.create_barriers();
    __syncthreads();
    if (group == at::groups + 1) {
        give_registers<32>();
        int of = (int)threadIdx.x % group_threads / 32;
        if (of < at::groups && threadIdx.x % 32 == 0) backward_fetch<Stage, Message>(p, m, of);
    } else if (group == at::groups) {
        if (Message) give_registers<at::weight_registers>();
        else take_registers<at::weight_registers>();
        backward_weights<Stage, Message>(p, m);
    } else {
        take_registers<at::compute_registers>();
        backward_compute<Stage, Message>(p, m, group);
    }
}

} // namespace edge
#endif
