/* edge_forward: stages F0, F1, F2 of edge_benchmark, the edges of a lean block forward at width 64.
 *
 *   x = w1 eb + table[a] + table[b]   [m | z] = gelu(x)   e' = e + (1 + gate) (w2 z + c2)
 *   block      three compute groups of 128 threads, and a group whose warp g fetches for group g
 *   group      takes tiles of its own: 64 columns of x at a time, the next 64 in flight
 *   slot       image, modulation, panels of a and b: 17 KB, two a group. e' takes e's place in it
 *              and leaves by a bulk copy
 *   sums       products of m' with a matrix of zeros and ones; those towards a stay in registers
 * F0 has the products alone (y = h), F1 the units too; both work on the first tile of a group again
 * and again. F2 is complete. */
#ifndef WF_BENCH_EDGE_FORWARD_CUH
#define WF_BENCH_EDGE_FORWARD_CUH

#include "edge_tiles.cuh"

namespace edge {

struct forward_args {
    const unsigned char *weights, *images, *modulation, *a_panels, *b_panels;
    unsigned char *out;
    uint32_t *b_slots, *a_slots; /* of tiles; of runs and classes */
    float *kept;                 /* F0, F1: w2 z of a group's tile */
    dealing deal;
};

namespace forward {
enum {
    groups = 3,
    threads = (groups + 1) * group_threads,
    w1 = 0,
    w2 = w1 + 4 * tile_bytes,
    selector = w2 + 2 * tile_bytes,
    c2 = selector + 2048, /* lane order, as gates */
    weight_bytes = c2 + 256,
    barriers = weight_bytes,
    first_group = (barriers + 128 + 1023) / 1024 * 1024,
    /* of a slot */
    stats = tile_bytes,
    modulation = stats + stats_bytes,
    a_panel = modulation + modulation_bytes,
    b_panel = a_panel + 4 * atom_bytes,
    slot_bytes = b_panel + 4 * atom_bytes,
    messages = 2 * slot_bytes,
    group_bytes = messages + 2 * tile_bytes,
    bytes = first_group + groups * group_bytes
};
static_assert(bytes <= 227 * 1024, "what a block may have");

/* Barriers: weights; then full and empty of the two slots of each group. */
__device__ inline uint32_t full_of(uint32_t base, int group, int slot) {
    return base + barriers + 8 + (uint32_t)(group * 32 + slot * 8);
}
__device__ inline uint32_t empty_of(uint32_t base, int group, int slot) {
    return full_of(base, group, slot) + 16;
}
} // namespace forward

/* One thread fetches the tiles of a group. */
template <int Stage>
__device__ inline void forward_fetch(const forward_args &p, uint32_t base, int group) {
    using namespace forward;
    int n = 0;
    if (group == 0) {
        arrive_expecting(base + barriers, weight_bytes);
        fetch(base, p.weights, weight_bytes, base + barriers);
    }
    each_tile<groups>(p.deal, (int)blockIdx.x, group, [&](const place &at) {
        int tile = at.tile;
        int slot = n % 2, round = n / 2;
        if (n++ > 0 && Stage < 2) return;
        uint32_t to = base + (uint32_t)(first_group + group * group_bytes + slot * slot_bytes);
        uint32_t full = full_of(base, group, slot);
        if (round > 0) wait_for(empty_of(base, group, slot), (uint32_t)(round - 1) & 1);
        arrive_expecting(full, slot_bytes);
        fetch(to, p.images + (size_t)tile * image_bytes, image_bytes, full);
        fetch(to + forward::modulation,
              p.modulation + (size_t)(tile / graph_tiles) * modulation_bytes, modulation_bytes,
              full);
        fetch(to + a_panel, p.a_panels + (size_t)run_of(tile) * 4 * atom_bytes, 4 * atom_bytes,
              full);
        fetch(to + b_panel, p.b_panels + (size_t)b_of(tile) * 4 * atom_bytes, 4 * atom_bytes, full);
    });
}

/* 64 columns of x / 2, in flight. */
__device__ inline void forward_start(float (&x)[8][4], const fragment (&eb)[4],
                                     const fragment &nodes, uint32_t base, uint32_t slot,
                                     int piece) {
    using namespace forward;
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
        product<fp16, false>(x, eb[s], rows(region(base), w1 + piece * tile_bytes, s), s > 0);
    product<bf16, true>(x, nodes, panels(region(slot), a_panel, b_panel, piece), true);
    products_commit();
}
template <int Stage>
__device__ inline void forward_units(fragment (&y)[4], const float (&x)[8][4]) {
#pragma unroll
    for (int k = 0; k < 16; k++) { /* fragment k / 4, word k % 4: tile 2 (k / 4) + k % 4 / 2 */
        const float *from = &x[2 * (k / 4) + k % 4 / 2][k % 2 * 2];
        uint32_t h = pack_half(from[0], from[1]);
        y[k / 4].r[k % 4] = Stage > 0 ? gelu(h) : h;
    }
}

/* e' = e + (1 + gate) (acc + c2), normalised again, into e's place. */
__device__ inline void forward_leave(float (&acc)[8][4], uint32_t base, uint32_t slot) {
    using namespace forward;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, c = lane % 4;
    uint32_t own = slot + stats + (uint32_t)((16 * warp + lane / 4) * 8);
    float2 old[2] = {load_stats(own), load_stats(own + 64)};
    float sum[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment e = load_fragment(fragment_at(slot, s));
        float4 gate = load_floats(slot + forward::modulation + 256 + (uint32_t)(c * 64 + s * 16));
        float4 add = load_floats(base + c2 + (uint32_t)(c * 64 + s * 16));
        const float by[4] = {gate.x, gate.y, gate.z, gate.w}, c2[4] = {add.x, add.y, add.z, add.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 x = unpack_half(e.r[k]);
            float *to = &acc[2 * s + k / 2][k % 2 * 2];
            const int row = k % 2, column = k / 2 * 2;
            to[0] = fmaf(by[column], to[0] + c2[column], fmaf(old[row].y, x.x, old[row].x));
            to[1] = fmaf(by[column + 1], to[1] + c2[column + 1], fmaf(old[row].y, x.y, old[row].x));
            sum[row] += to[0] + to[1];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) sum[row] = quad_sum(sum[row]) * (1.0f / width);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        float *x = &acc[k / 4][k % 4];
        *x -= sum[k % 4 / 2];
        squares[k % 4 / 2] = fmaf(*x, *x, squares[k % 4 / 2]);
    }
    float rho[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float variance = quad_sum(squares[row]) * (1.0f / width) + 1e-6f;
        rho[row] = rsqrtf(variance);
        if (c == 0) {
            float deviation = variance * rho[row];
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(own + 64 * (uint32_t)row),
                         "f"(sum[row]), "f"(deviation)
                         : "memory");
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        fragment e;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *x = &acc[2 * s + k / 2][k % 2 * 2];
            e.r[k] = pack_half(x[0] * rho[k % 2], x[1] * rho[k % 2]);
        }
        store_fragment(fragment_at(slot, s), e);
    }
}

/* What a compute group keeps from tile to tile. */
struct forward_state {
    float to_a[2][4]; /* sums of a run so far, of two strips */
    int n;
    bool leader;
};

/* The products of one tile; acc becomes w2 z. */
template <int Stage>
__device__ inline void forward_tile(const forward_args &p, forward_state &own, float (&acc)[8][4],
                                    uint32_t base, uint32_t slot, uint32_t m, int group,
                                    const place &at) {
    using namespace forward;
    fragment eb[4], nodes = one_hot(0x3f80u);
    float x[2][8][4], sum[2][2][4];
#pragma unroll
    for (int s = 0; s < 4; s++) eb[s] = load_fragment(fragment_at(slot, s));
    modulate(eb, eb, slot + forward::modulation);
    forward_start(x[0], eb, nodes, base, slot, 0);
    forward_start(x[1], eb, nodes, base, slot, 1);
    if (Stage == 2 && own.leader && own.n > 0) { /* the last tile's slot is free */
        wait_stores_read<0>();
        arrive(empty_of(base, group, (own.n - 1) % 2));
    }
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
        fragment y[4];
        products_wait<1>();
        settle(x[piece]);
        forward_units<Stage>(y, x[piece]);
#pragma unroll
        for (int s = 0; s < 4; s++)
            store_fragment(fragment_at(m + (uint32_t)(piece * tile_bytes), s), y[s]);
        if (piece == 1) {
            publish();
            meet(1 + group, group_threads);
        }
        forward_start(x[piece], eb, nodes, base, slot, piece + 2);
    }
    products_begin();
#pragma unroll
    for (int k = 0; k < 8; k++)
        product<fp16, true, false>(sum[k / 4], columns(region(m), k / 4 * tile_bytes, k % 4),
                                   rows(region(base), selector, k % 4), k % 4 > 0);
    products_commit();
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
        fragment z[4];
        products_wait<2>();
        settle(x[piece]);
        forward_units<Stage>(z, x[piece]);
        products_begin();
#pragma unroll
        for (int s = 0; s < 4; s++)
            product<fp16, false>(acc, z[s], rows(region(base), w2 + piece * tile_bytes, s),
                                 piece > 0 || s > 0);
        products_commit();
    }
    products_wait<0>();
    settle(acc);
#pragma unroll
    for (int strip = 0; strip < 2; strip++) {
        settle(sum[strip]);
        store_slot(p.b_slots + (size_t)at.tile * slot_words, strip, sum[strip][1]);
#pragma unroll
        for (int k = 0; k < 4; k++) own.to_a[strip][k] += sum[strip][0][k];
        if (at.ends_run)
            store_slot(p.a_slots + (size_t)(run_of(at.tile) * groups + at.share) * slot_words,
                       strip, own.to_a[strip]);
#pragma unroll
        for (int k = 0; k < 4; k++) own.to_a[strip][k] = at.ends_run ? 0 : own.to_a[strip][k];
    }
}

template <int Stage>
__device__ inline void forward_compute(const forward_args &p, uint32_t base, int group) {
    using namespace forward;
    forward_state own = {};
    own.leader = threadIdx.x % group_threads == 0;
    uint32_t slots = base + (uint32_t)(first_group + group * group_bytes);
    wait_for(base + barriers, 0);
    each_tile<groups>(p.deal, (int)blockIdx.x, group, [&](const place &at) {
        int side = Stage < 2 ? 0 : own.n % 2, round = Stage < 2 ? 0 : own.n / 2;
        uint32_t slot = slots + (uint32_t)(side * slot_bytes);
        wait_for(full_of(base, group, side), (uint32_t)round & 1);
        float acc[8][4];
        forward_tile<Stage>(p, own, acc, base, slot, slots + messages, group, at);
        if (Stage == 2) {
            forward_leave(acc, base, slot);
            publish();
        } else if (at.ends_run) {
            int worker = (int)blockIdx.x * groups + group;
            store_sums(p.kept + (size_t)worker * width * rows_of_tile, acc);
        }
        meet(1 + group, group_threads); /* m may be overwritten, e' may leave */
        if (Stage == 2 && own.leader) {
            store(p.out + (size_t)at.tile * image_bytes, slot, image_bytes);
            commit_stores();
        }
        own.n++;
    });
    if (own.leader) wait_stores_read<0>();
}

template <int Stage>
__global__ void __launch_bounds__(forward::threads, 1)
    forward_kernel(const __grid_constant__ forward_args p) {
    using namespace forward;
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = address_of(shared);
    int group = group_index();
    if (threadIdx.x == 0) {
        barrier_create(base + barriers, 1);
        for (int k = 0; k < 2 * groups; k++) {
            barrier_create(full_of(base, k / 2, k % 2), 1);
            barrier_create(empty_of(base, k / 2, k % 2), 1);
        }
        barriers_created();
    }
    __syncthreads();
    if (group == groups) {
        give_registers<32>();
        int of = (int)threadIdx.x % group_threads / 32;
        if (of < groups && threadIdx.x % 32 == 0) forward_fetch<Stage>(p, base, of);
    } else {
        take_registers<160>();
        forward_compute<Stage>(p, base, group);
    }
}

} // namespace edge
#endif
