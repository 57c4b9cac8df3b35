/* lean_backward_cuda: the edges of a lean block backward, in one kernel and the sums of what it leaves.
 *
 *   do = (1 + gate) de'   dz = w2' do   dm = dF[dst] + dR[src]   dx = [dm | dz] * unit'(x)   deb = w1' dx + share * dmean
 *   g = deb (1 + scale)   de = de' + rho (g - mean g - e^ mean(g e^))
 *   dw1 = sum dx eb'   dw2 = sum do z'   tables: sums of dx towards both ends
 *   per graph: sums of deb, deb e^, de' (w2 z + c2); dc2 = sum do
 * block   four warpgroups, one block a multiprocessor. Two compute: each takes a chunk of lines, 64 rows at a time, and
 *         leaves eb, do, z and dx in shared memory as bf16 panels, operands of its next products. Two add up weight
 *         gradients: dw1 and dw2 are six units of 64 x 64, three a warpgroup, in registers over the block's whole share;
 *         they also sum dx towards the nodes. A tile goes to and fro by named barriers: full (compute -> sums), empty.
 * split   Q = 4 (D = 128): a block has a quarter of the messages and of z, so weights, panels and units are those of D = 64.
 *         Its deb is a quarter of the sum: it leaves as bf16, and norm_kernel adds the four and finishes the rows
 * flops   36 D^2 an edge at M = 2D (x 8, w2 z 4, dz 4, deb 8, dw1 8, dw2 4)
 * bytes   e and de' read (twice, the second time from L2), de written: 12D of HBM; tables 4 (M + 2D) (1 + 2/8) of L1, dF and
 *         dR 4M (1 + 2/8); slots 4 (M + 2D) (1/8 + 1/16..1/8) written and read; Q = 4: e and de' read by four blocks, and
 *         deb 8D written and read
 * measured on an H200, 256 graphs, by whole steps: 64-16-8-10 at D = 64 0.375 ms a block, 784-32-32-10 folded at D = 128
 *         1.15 ms and norm_kernel 0.249; 25 % of the HBM bound with slots and tables (0.094 ms) and 23 % of the tensor
 *         cores' (0.265 ms); norm_kernel 85 % of HBM. What binds is latency: two warps a scheduler
 * tried   two warpgroups that do everything: 0.673 ms, more spills */
#include "tensor/cuda/lean_fused_cuda.cuh"
#include "tensor/cuda/sides_cuda.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace mma;

enum {
    block_threads = 512,
    groups = 2, /* that compute, and that sum */
    strip = 64,
    strip_tiles = strip / 8,
    strip_bytes = 8192, /* of 64 rows */
    units = 3,          /* of 64 x 64 weight gradients a warpgroup has */
    all_units = groups * units
};

/* Named barriers. */
enum { barrier_group = 1, barrier_full = 3, barrier_empty = 5 };
__device__ inline void meet(int id) { asm volatile("bar.sync %0, 384;" ::"r"(id) : "memory"); }
__device__ inline void signal(int id) { asm volatile("bar.arrive %0, 384;" ::"r"(id) : "memory"); }

struct lean_gradient {
    lean_fused f;
    const float *dto[2]; /* gradients of the sums towards dst, src */
    int ld_dto;
    const float *degree; /* means: divide by it; NULL: no */
    const float *dmean;
    int ld_dmean;
    int edges;
    float *partial;      /* (blocks, all_units, 64 * 64) */
    uint2 *quarter_debs; /* Q > 1: (Q, E, D) in bf16 */
};

/* Shared memory, in this order; a warpgroup's panels are strips of eb, do, z, dx. MS: strips of messages of a block. */
template <int D, int Q, int MS> struct layout {
    static constexpr int zs = 2 * D / Q; /* columns of z of a block */
    static constexpr int wide = (D + strip - 1) / strip, z_strips = zs / strip;
    static constexpr int strips = MS + z_strips, messages = MS * strip, hidden = strips * strip;
    static constexpr int tile_eb = 0, tile_do = wide, tile_z = 2 * wide,
                         tile_dx = 2 * wide + z_strips;
    static constexpr int of_w1 = strips * wide, used_units = of_w1 + wide * z_strips;
    static_assert(used_units <= all_units, "weight gradients stay in registers");
    /* Sums over runs: with the whole of deb at hand deb, deb e^; always de' (w2 z + c2), do. */
    static constexpr int kinds = Q == 1 ? 4 : 2, kind_gate = kinds - 2, kind_do = kinds - 1;
    static constexpr int w2 = (int)panel_bytes(hidden, D), tiles = w2 + (int)panel_bytes(D, zs),
                         each = (tile_dx + strips) * strip_bytes, carried = tiles + groups * each,
                         sums = carried + groups * strips * 128 * 16,
                         tables = sums + groups * 4 * kinds * D * 4,
                         c2 = tables + groups * 4 * shared_strip_bytes, bytes = c2 + D * 4;
    /* Of the block's hidden columns, the first of strip `s` among all. */
    static __device__ int place(int s, int quarter) {
        return s < MS ? quarter * messages + s * strip
                      : Q * messages + quarter * zs + (s - MS) * strip;
    }
};

extern __shared__ __align__(1024) unsigned char shared[];

/* What both kinds of warpgroup know. */
template <int D, int Q, int MS> struct worker {
    using at = layout<D, Q, MS>;
    const lean_gradient &p;
    int quarter, warp, lane, thread; /* thread of the warpgroup */
    int column;                      /* the lane's first of sixteen */
    int place;                       /* of the warpgroup in the block */

    __device__ explicit worker(const lean_gradient &args) : p(args), quarter((int)blockIdx.x % Q) {
        refresh();
    }
    /* Who I am, again: what is derived from it need not stay in registers from one phase to the next. */
    __device__ void refresh() {
        int id;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
        warp = id / 32 % 4;
        lane = id % 32;
        thread = id % 128;
        column = 4 * (lane % 4);
        place = id / 128;
    }

    __device__ panel tile(int group, int index) const {
        return panel{shared_address(shared) +
                         (uint32_t)(at::tiles + group * at::each + index * strip_bytes),
                     tile_rows};
    }
    /* Pairs first .. last - 1 of the `round`-th chunk of a compute warpgroup; none behind the last chunk. */
    __device__ void chunk_of(int round, int group, int *first, int *last) const {
        int shares = (int)gridDim.x / Q,
            chunk = (round * shares + (int)blockIdx.x / Q) * groups + group;
        *first = min(chunk, p.f.n_chunks) * p.f.steps;
        *last = chunk < p.f.n_chunks ? *first + p.f.steps : *first;
    }
    __device__ int rounds() const {
        int each = (int)gridDim.x / Q * groups;
        return (p.f.n_chunks + each - 1) / each;
    }
};

/* --- the warpgroups that compute ---------------------------------------------------------------------------------- */
template <int D, int Q, int MS, bool Gelu, bool Wide> struct computer : worker<D, Q, MS> {
    using base = worker<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::lane;
    using base::p;
    using base::place;
    using base::quarter;
    using base::refresh;
    using base::thread;
    using base::tile;
    using base::warp;

    lane_rows rows;
    float mean[2], rho[2];
    float carried[(at::kinds * D + 127) / 128];

    __device__ explicit computer(const lean_gradient &args) : base(args) {}

    /* Weights, and the warp's place for tables. */
    __device__ panel w1() const { return panel{shared_address(shared), at::hidden}; }
    __device__ panel w2() const { return panel{shared_address(shared) + (uint32_t)at::w2, D}; }
    __device__ shared_strip next() const {
        return shared_strip{shared + at::tables + (place * 4 + warp) * shared_strip_bytes};
    }

    __device__ float *sums() const {
        return (float *)(shared + at::sums) + place * 4 * at::kinds * D;
    }
    /* Where the warp's sums of a kind go. */
    __device__ float *sums_of(int kind) const { return sums() + (warp * at::kinds + kind) * D; }
    /* The sums of runs, after a barrier: a thread has every 128th column of all kinds. */
    __device__ void sum_runs(const tile_runs &t) {
        float *to = p.f.run_sums + (size_t)quarter * p.f.n_runs * (at::kinds * D);
#pragma unroll
        for (int i = 0; i < (at::kinds * D + 127) / 128; i++) {
            int col = thread + 128 * i;
            if (col >= at::kinds * D) break;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (t.begins >> k & 1) carried[i] = 0;
                carried[i] += sums()[k * at::kinds * D + col];
                if (t.ends >> k & 1) to[(size_t)t.run[k] * (at::kinds * D) + col] = carried[i];
            }
        }
    }

    /* eb and do of the tile into their panels, once these are empty. The next tile's rows are on their way to L2. */
    __device__ void load(int next_upper, int next_lower) {
        refresh();
        constexpr bool early = D <= 64; /* room for both streams in registers */
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        float4 v[2][D / 16], d[2][D / 16];
#pragma unroll
        for (int k = 0; k < 2; k++) load_row<D>(v[k], p.f.e + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int k = 0; k < 2 && early; k++)
            load_row<D>(d[k], p.f.out + (size_t)rows.row[k] * D + column);
        prefetch_rows<D>(p.f.e, next_upper, next_lower);
        prefetch_rows<D>(p.f.out, next_upper, next_lower);
        meet(barrier_empty + place);
#pragma unroll
        for (int k = 0; k < 2; k++) normalise<D>(v[k], &mean[k], &rho[k]);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift = __ldg((const float4 *)(mod + 16 * j));
            float4 scale = __ldg((const float4 *)(mod + D + 16 * j));
            store_fragment(
                tile(place, at::tile_eb), 16 * warp, j,
                fragment_of(modulated(v[0][j], scale, shift), modulated(v[1][j], scale, shift)));
        }
#pragma unroll
        for (int k = 0; k < 2 && !early; k++)
            load_row<D>(d[k], p.f.out + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 gate = __ldg((const float4 *)(mod + 2 * D + 16 * j)), none = {0, 0, 0, 0};
            float4 upper = masked(rows.there[0], modulated(d[0][j], gate, none));
            float4 lower = masked(rows.there[1], modulated(d[1][j], gate, none));
            store_fragment(tile(place, at::tile_do), 16 * warp, j, fragment_of(upper, lower));
            sum_columns(plus(upper, lower), sums_of(at::kind_do) + 16 * j);
        }
    }

    /* The tables for strip s; strips of z come first. */
    __device__ void fetch(int s) {
        const float *of_a = rows.from_a ? p.f.as : p.f.ad, *of_b = rows.from_a ? p.f.ad : p.f.as;
        int from = p.f.skipped + at::place(s, quarter);
        next().fetch(of_a + (size_t)rows.a * p.f.ld_table + from,
                     of_b + (size_t)rows.b[0] * p.f.ld_table + from,
                     of_b + (size_t)rows.b[1] * p.f.ld_table + from);
    }

    __device__ void store_strip(int index, const float (&x)[strip_tiles][4]) const {
#pragma unroll
        for (int j = 0; j < strip / 16; j++)
            store_fragment(tile(place, index), 16 * warp, j, fragment_of(x[2 * j], x[2 * j + 1]));
    }

    __device__ void update_strip(int s) {
        refresh();
        float x[strip_tiles][4], dz[strip_tiles][4];
        next().take(x);
        begin<Wide>();
        tile_forward_mma<Wide, D / 16>(x, tile(place, at::tile_eb), 16 * warp, 0, w1(),
                                       at::messages + s * strip, 0, false);
        tile_backward_mma<Wide, D / 16>(dz, tile(place, at::tile_do), 16 * warp, 0, w2(), 0,
                                        s * strip, true);
        commit<Wide>();
        if (s + 1 < at::z_strips) fetch(MS + s + 1);
        else if (MS > 0) fetch(0);
        wait<Wide>();
        settle(x);
        settle(dz);
#pragma unroll
        for (int j = 0; j < strip_tiles; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float slope;
                x[j][k] = fast_unit<Gelu>(x[j][k], &slope);
                dz[j][k] *= slope;
            }
        store_strip(at::tile_z + s, x);
        store_strip(at::tile_dx + MS + s, dz);
    }

    /* By what a node's messages pull. */
    __device__ float pull(int node) const {
        return p.degree == NULL ? 1 : __fdividef(1, p.degree[node]);
    }

    __device__ void message_strip(int s) {
        refresh();
        float x[strip_tiles][4], dm[strip_tiles][4];
        next().take(x);
        const float *of_a = p.dto[rows.from_a] + at::place(s, quarter);
        const float *of_b = p.dto[!rows.from_a] + at::place(s, quarter);
        next().fetch(of_a + (size_t)rows.a * p.ld_dto, of_b + (size_t)rows.b[0] * p.ld_dto,
                     of_b + (size_t)rows.b[1] * p.ld_dto);
        begin<Wide>();
        tile_forward_mma<Wide, D / 16>(x, tile(place, at::tile_eb), 16 * warp, 0, w1(), s * strip,
                                       0, false);
        finish<Wide>();
        settle(x);
        const float by[2] = {pull(rows.b[0]), pull(rows.b[1])};
        next().take(dm, pull(rows.a), by, rows.there);
        if (s + 1 < MS) fetch(s + 1);
#pragma unroll
        for (int j = 0; j < strip_tiles; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float slope;
                fast_unit<Gelu>(x[j][k], &slope);
                dm[j][k] *= slope;
            }
        store_strip(at::tile_dx + s, dm);
    }

    /* Sums of de' (w2 z + c2). */
    __device__ void gate_sums() const {
        float o[D / 8][4];
        begin<Wide>();
        tile_forward_mma<Wide, at::zs / 16>(o, tile(place, at::tile_z), 16 * warp, 0, w2(), 0, 0,
                                            true);
        finish<Wide>();
        settle(o);
        const float *c2 = (const float *)(shared + at::c2) + column;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 add = *(const float4 *)(c2 + 16 * j), total = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 d =
                    masked(rows.there[k],
                           *(const float4 *)(p.f.out + (size_t)rows.row[k] * D + column + 16 * j));
                total.x += d.x * (o[2 * j][2 * k] + add.x);
                total.y += d.y * (o[2 * j][2 * k + 1] + add.y);
                total.z += d.z * (o[2 * j + 1][2 * k] + add.z);
                total.w += d.w * (o[2 * j + 1][2 * k + 1] + add.w);
            }
            sum_columns(total, sums_of(at::kind_gate) + 16 * j);
        }
    }

    /* deb of the block's columns. */
    __device__ void pull_back(float (&deb)[D / 8][4]) const {
        begin<Wide>();
#pragma unroll
        for (int s = 0; s < at::strips; s++)
            tile_backward_mma<Wide, strip / 16>(deb, tile(place, at::tile_dx + s), 16 * warp, 0,
                                                w1(), s * strip, 0, s == 0);
        finish<Wide>();
        settle(deb);
    }

    /* deb is complete but for the mean's share: sums over the graph's edges, and the gradient of e. */
    __device__ void norm_backward(float (&deb)[D / 8][4]) const {
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        const float *dmean = p.dmean + (size_t)rows.graph * p.ld_dmean + column;
        float sum[2] = {0, 0}, along[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 of_mean = __ldg((const float4 *)(dmean + 16 * j));
            float4 of_scale = __ldg((const float4 *)(mod + D + 16 * j));
            const float part[4] = {of_mean.x, of_mean.y, of_mean.z, of_mean.w};
            const float scale[4] = {of_scale.x, of_scale.y, of_scale.z, of_scale.w};
            float total[4] = {0, 0, 0, 0}, product[4] = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 v = *(const float4 *)(p.f.e + (size_t)rows.row[k] * D + column + 16 * j);
                const float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float *value = &deb[2 * j + q / 2][2 * k + q % 2];
                    float h = (e[q] - mean[k]) * rho[k], d = *value + rows.share * part[q];
                    d = rows.there[k] ? d : 0;
                    total[q] += d;
                    product[q] += d * h;
                    d *= 1 + scale[q];
                    sum[k] += d;
                    along[k] += d * h;
                    *value = d;
                }
            }
            sum_columns(make_float4(total[0], total[1], total[2], total[3]), sums_of(0) + 16 * j);
            sum_columns(make_float4(product[0], product[1], product[2], product[3]),
                        sums_of(1) + 16 * j);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float middle = quad_sum(sum[k]) / D, slant = quad_sum(along[k]) / D;
            if (!rows.there[k]) continue;
            size_t from = (size_t)rows.row[k] * D + column;
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                float4 d = *(const float4 *)(p.f.out + from + 16 * j);
                float4 v = *(const float4 *)(p.f.e + from + 16 * j);
                const float *first = &deb[2 * j][2 * k], *second = &deb[2 * j + 1][2 * k];
                d.x += rho[k] * (first[0] - middle - (v.x - mean[k]) * rho[k] * slant);
                d.y += rho[k] * (first[1] - middle - (v.y - mean[k]) * rho[k] * slant);
                d.z += rho[k] * (second[0] - middle - (v.z - mean[k]) * rho[k] * slant);
                d.w += rho[k] * (second[1] - middle - (v.w - mean[k]) * rho[k] * slant);
                *(float4 *)(p.f.out + from + 16 * j) = d;
            }
        }
    }

    __device__ void leave_quarter(const float (&deb)[D / 8][4]) const {
        uint2 *to = p.quarter_debs + (size_t)quarter * p.edges * (D / 4) + lane % 4;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!rows.there[k]) continue;
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                to[(size_t)rows.row[k] * (D / 4) + 4 * j] =
                    make_uint2(pack(deb[2 * j][2 * k], deb[2 * j][2 * k + 1]),
                               pack(deb[2 * j + 1][2 * k], deb[2 * j + 1][2 * k + 1]));
        }
    }

    __device__ void step(int pair, int last) {
        lane_rows coming = rows_of_pair(p.f.octets, pair + 4 + warp, last);
        rows = rows_of_pair(p.f.octets, pair + warp, last);
        fetch(MS);
        load(coming.row[0], coming.row[1]);
        publish();
        group_barrier(barrier_group + place);
#pragma unroll 1
        for (int s = 0; s < at::z_strips; s++) update_strip(s);
#pragma unroll 1
        for (int s = 0; s < MS; s++) message_strip(s);
        publish();
        group_barrier(barrier_group + place);
        signal(barrier_full + place);
        refresh();
        gate_sums();
        refresh();
        float deb[D / 8][4];
        pull_back(deb);
        if (Q == 1) norm_backward(deb);
        else leave_quarter(deb);
        group_barrier(barrier_group + place);
        refresh();
        sum_runs(runs_of_tile(p.f.octets, pair, last));
    }

    __device__ void run() {
        for (int round = 0; round < base::rounds(); round++) {
            int first, last;
            base::chunk_of(round, place, &first, &last);
#pragma unroll 1
            for (int pair = first; pair < first + p.f.steps; pair += 4) step(pair, last);
        }
    }
};

/* --- the warpgroups that sum ---------------------------------------------------------------------------------------- */
template <int D, int Q, int MS, bool Wide> struct summer : worker<D, Q, MS> {
    using base = worker<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::p;
    using base::place;
    using base::quarter;
    using base::refresh;
    using base::thread;
    using base::tile;
    using base::warp;

    float dw[units][strip_tiles][4];

    __device__ int half() const { return place - groups; } /* which of the two */

    __device__ explicit summer(const lean_gradient &args) : base(args) {
#pragma unroll
        for (int u = 0; u < units; u++) clear(dw[u]);
    }

    /* dw1 comes first, by strips of dx, then of eb; behind the last unit that one again, for nothing: a branch would cost
     * the others their overlap. */
    __device__ void weight_units(int group) {
        refresh();
        const int of_w1 = at::of_w1;
        begin<Wide>();
#pragma unroll
        for (int u = 0; u < units; u++) {
            int unit = min(half() * units + u, at::used_units - 1);
            int left = unit < of_w1 ? at::tile_dx + unit / at::wide
                                    : at::tile_do + (unit - of_w1) / at::z_strips;
            int right = unit < of_w1 ? at::tile_eb + unit % at::wide
                                     : at::tile_z + (unit - of_w1) % at::z_strips;
            outer_mma<Wide>(dw[u], tile(group, left), 16 * warp, 0, tile(group, right), 0, false);
        }
        commit<Wide>();
    }

    __device__ void sum_strips(int group, int pair, int last) {
        refresh();
        tile_runs t = runs_of_tile(p.f.octets, pair, last);
        const int ld = Q * at::messages + 2 * D;
#pragma unroll 1
        for (int s = half(); s < at::strips; s += groups) {
            float4 *at_lane =
                (float4 *)(shared + at::carried) + (group * at::strips + s) * 128 + thread;
            float4 value = *at_lane;
            sum_tile(tile(group, at::tile_dx + s), 16 * warp, t, 2 * pair, p.f.n_octets,
                     (uint16_t *)p.f.slots + at::place(s, quarter) + 16 * warp + column, ld,
                     &value);
            *at_lane = value;
        }
    }

    __device__ void leave_weights() {
        refresh();
        float4 *to = (float4 *)p.partial + (size_t)blockIdx.x * (all_units * strip_tiles * 128);
#pragma unroll
        for (int u = 0; u < units; u++)
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
                to[((half() * units + u) * strip_tiles + j) * 128 + thread] =
                    make_float4(dw[u][j][0], dw[u][j][1], dw[u][j][2], dw[u][j][3]);
    }

    __device__ void run() {
        for (int g = 0; g < groups; g++) signal(barrier_empty + g);
        int rounds = base::rounds();
        for (int round = 0; round < rounds; round++)
#pragma unroll 1
            for (int step = 0; step < p.f.steps; step += 4)
#pragma unroll 1
                for (int g = 0; g < groups; g++) {
                    int first, last;
                    base::chunk_of(round, g, &first, &last);
                    meet(barrier_full + g);
                    weight_units(g);
                    sum_strips(g, first + step, last);
                    wait<Wide>();
#pragma unroll
                    for (int u = 0; u < units; u++) settle(dw[u]);
                    if (round + 1 < rounds || step + 4 < p.f.steps) signal(barrier_empty + g);
                }
        leave_weights();
    }
};

template <int D, int Q, int MS, bool Gelu, bool Wide>
__global__ void __launch_bounds__(block_threads, 1)
    lean_backward_kernel(const __grid_constant__ lean_gradient p) {
    using at = layout<D, Q, MS>;
    int quarter = (int)blockIdx.x % Q;
    panel w1 = {shared_address(shared), at::hidden};
    panel w2 = {shared_address(shared) + (uint32_t)at::w2, D};
    size_t m_row = (size_t)(p.f.skipped + quarter * at::messages);
    size_t z_row = (size_t)(p.f.skipped + Q * at::messages + quarter * at::zs);
    stage_panel(w1, 0, p.f.w1 + m_row * D, D, at::messages, D);
    stage_panel(w1, at::messages, p.f.w1 + z_row * D, D, at::zs, D);
    stage_panel(w2, 0, p.f.w2 + quarter * at::zs, 2 * D, D, at::zs);
    float *c2 = (float *)(shared + at::c2);
    for (int i = (int)threadIdx.x; i < D; i += block_threads) c2[i] = quarter == 0 ? p.f.c2[i] : 0;
    __syncthreads();
    if (__shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) < groups) {
        computer<D, Q, MS, Gelu, Wide> w(p);
        w.run();
    } else {
        summer<D, Q, MS, Wide> w(p);
        w.run();
    }
}

/* Adds the blocks' partial weight gradients in order, by 8 threads an accumulator quadruple. Behind them a block adds the runs'
 * sums of do, (runs, ld), likewise. */
struct weight_sums {
    const float4 *partial;
    int blocks; /* of partial */
    float *dw1, *dw2;
    const float *sums_do;
    int ld, runs;
    float *dc2; /* all three: NULL, not wanted */
};
enum { shares = 8, quads = 32, unit_blocks = all_units * strip_tiles * 128 / quads };

/* Rows of quadruples, each ld from the last, added in order; the thread of share 0 has the sum. */
__device__ inline float4 share_sum(const float4 *from, size_t ld, int count) {
    __shared__ float4 sums[shares][quads];
    int share = (int)threadIdx.y, each = (count + shares - 1) / shares;
    int last = min(count, (share + 1) * each);
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int b = share * each; b < last; b++) sum = plus(sum, from[(size_t)b * ld]);
    sums[share][threadIdx.x] = sum;
    __syncthreads();
    for (int s = 1; s < shares && share == 0; s++) sum = plus(sum, sums[s][threadIdx.x]);
    return sum;
}

template <int D, int Q, int MS>
__global__ void __launch_bounds__(shares *quads) lean_weights_kernel(weight_sums w) {
    using at = layout<D, Q, MS>;
    const int all = all_units * strip_tiles * 128;
    bool first_thread = threadIdx.y == 0;
    if (blockIdx.x == unit_blocks) {
        int col = 4 * (int)threadIdx.x;
        if (blockIdx.y > 0 || w.dc2 == NULL) return;
        float4 sum = share_sum((const float4 *)(w.sums_do + (col < D ? col : 0)),
                               (size_t)(w.ld / 4), w.runs);
        if (first_thread && col < D) {
            const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
            for (int k = 0; k < 4; k++) w.dc2[col + k] += value[k];
        }
        return;
    }
    int quad = (int)(blockIdx.x * quads + threadIdx.x);
    int quarter = (int)blockIdx.y, of_w1 = at::of_w1;
    float4 sum = share_sum(w.partial + (size_t)quarter * all + quad, (size_t)Q * all, w.blocks / Q);
    int unit = quad / (strip_tiles * 128), j = quad / 128 % strip_tiles, thread = quad % 128;
    if (!first_thread || unit >= at::used_units) return;
    bool first = unit < of_w1;
    int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    int col = j / 2 * 16 + lane % 4 * 4 + j % 2 * 2;
    int v = unit - of_w1;
    int row0 = first ? at::place(unit / at::wide, quarter) : v / at::z_strips * strip;
    int col0 = first ? unit % at::wide * strip : quarter * at::zs + v % at::z_strips * strip;
    int rows = first ? Q * at::messages + 2 * D : D, ld = first ? D : 2 * D;
    float *to = first ? w.dw1 : w.dw2;
    const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int r = row0 + column_of(row + k / 2 * 8), c = col0 + col + k % 2;
        if (to != NULL && r < rows && c < ld) to[(size_t)r * ld + c] += value[k];
    }
}

/* --- rows whose deb came in quarters ------------------------------------------------------------------------------- */
enum { span = 64, span_warps = 8 };

/* Rows of a graph in spans of 64 from its first on: block starts[g] / 64 + g + k is span k of graph g, some are empty. A warp
 * takes every eighth row, four columns a lane (D = 128). Leaves de and, a row a block, the sums of deb and of deb e^. */
template <int D, int Q>
__global__ void __launch_bounds__(32 * span_warps)
    lean_norm_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts, int graphs,
                     float *sums) {
    static_assert(D == 128, "four columns a lane");
    __shared__ float4 shares_of[2][span_warps][32];
    int lane = (int)threadIdx.x, warp = (int)threadIdx.y, block = (int)blockIdx.x;
    int low = 0, high = graphs;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((int)starts[middle] / span + middle <= block) low = middle;
        else high = middle;
    }
    int begin_row = (int)starts[low], end_row = (int)starts[low + 1];
    int first = begin_row + (block - (begin_row / span + low)) * span,
        end = min(first + span, end_row);
    float4 total = {0, 0, 0, 0}, product = {0, 0, 0, 0};
    if (first < end) {
        float share = 1 / (float)(end_row - begin_row);
        float4 scale =
            *(const float4 *)(p.f.modulation + (size_t)low * p.f.ld_modulation + D + 4 * lane);
        float4 part = *(const float4 *)(p.dmean + (size_t)low * p.ld_dmean + 4 * lane);
        for (int row = first + warp; row < end; row += span_warps) {
            size_t place = (size_t)row * D + 4 * lane;
            float4 v = *(const float4 *)(p.f.e + place), d = *(const float4 *)(p.f.out + place);
            float deb[4] = {share * part.x, share * part.y, share * part.z, share * part.w};
#pragma unroll
            for (int q = 0; q < Q; q++) {
                uint2 pair = p.quarter_debs[((size_t)q * p.edges + row) * (D / 4) + lane];
                deb[0] += __uint_as_float(pair.x << 16);
                deb[1] += __uint_as_float(pair.x & 0xffff0000u);
                deb[2] += __uint_as_float(pair.y << 16);
                deb[3] += __uint_as_float(pair.y & 0xffff0000u);
            }
            float mean = warp_sum(v.x + v.y + (v.z + v.w)) / D;
            float h[4] = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
            float rho = rsqrtf(
                warp_sum(h[0] * h[0] + h[1] * h[1] + (h[2] * h[2] + h[3] * h[3])) / D + 1e-6f);
            const float by[4] = {1 + scale.x, 1 + scale.y, 1 + scale.z, 1 + scale.w};
            float g[4], sum = 0, along = 0;
#pragma unroll
            for (int q = 0; q < 4; q++) {
                h[q] *= rho;
                g[q] = deb[q] * by[q];
                sum += g[q];
                along += g[q] * h[q];
            }
            total = plus(total, make_float4(deb[0], deb[1], deb[2], deb[3]));
            product = plus(product,
                           make_float4(deb[0] * h[0], deb[1] * h[1], deb[2] * h[2], deb[3] * h[3]));
            sum = warp_sum(sum) / D;
            along = warp_sum(along) / D;
            *(float4 *)(p.f.out + place) = make_float4(
                d.x + rho * (g[0] - sum - h[0] * along), d.y + rho * (g[1] - sum - h[1] * along),
                d.z + rho * (g[2] - sum - h[2] * along), d.w + rho * (g[3] - sum - h[3] * along));
        }
    }
    shares_of[0][warp][lane] = total;
    shares_of[1][warp][lane] = product;
    __syncthreads();
    if (warp >= 2) return;
    float4 sum = {0, 0, 0, 0};
    for (int w = 0; w < span_warps; w++) sum = plus(sum, shares_of[warp][w][lane]);
    *(float4 *)(sums + (size_t)block * (2 * D) + warp * D + 4 * lane) = sum;
}

/* Adds a graph's spans, and what the quarters left of de' (w2 z + c2), to the gradients of shift, scale and gate: a block a
 * graph, a thread a column of the three. */
template <int D, int Q>
__global__ void __launch_bounds__(3 * D)
    lean_graph_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts,
                      const uint32_t *runs, const float *sums, float *to) {
    const int kinds = layout<D, Q, 0>::kinds, kind = layout<D, Q, 0>::kind_gate;
    int graph = (int)blockIdx.x, col = (int)threadIdx.x;
    float sum = 0;
    if (col < 2 * D) {
        int first = (int)starts[graph] / span + graph;
        int last = (int)starts[graph + 1] / span + graph + 1;
#pragma unroll 8
        for (int s = first; s < last; s++) sum += sums[(size_t)s * (2 * D) + col];
    } else {
        const float *of = p.f.run_sums + kind * D + col - 2 * D;
#pragma unroll 4
        for (uint32_t r = runs[graph]; r < runs[graph + 1]; r++)
#pragma unroll
            for (int q = 0; q < Q; q++) sum += of[((size_t)q * p.f.n_runs + r) * (kinds * D)];
    }
    to[(size_t)graph * p.f.ld_modulation + col] += sum;
}

/* --- launches ---------------------------------------------------------------------------------------------------------- */
template <int D, int Q, int MS> bool launch(const lean_gradient &p, bool gelu, int blocks) {
    const int bytes = layout<D, Q, MS>::bytes;
    auto kernel = gelu ? lean_backward_kernel<D, Q, MS, true, true>
                       : lean_backward_kernel<D, Q, MS, false, true>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    kernel<<<(unsigned)blocks, block_threads, (size_t)bytes, stream()>>>(p);
    return launched();
}

/* By the number of strips of messages. */
template <int D, int Q, int MS = 2 * D / Q / strip>
bool launch_strips(const lean_gradient &p, bool gelu, int blocks) {
    if (p.f.messages == Q * MS * strip) return launch<D, Q, MS>(p, gelu, blocks);
    if constexpr (MS > 0) return launch_strips<D, Q, MS - 1>(p, gelu, blocks);
    return false;
}
template <int D, int Q, int MS = 2 * D / Q / strip>
void sum_weights(const weight_sums &w, int messages) {
    if (messages == Q * MS * strip)
        lean_weights_kernel<D, Q, MS>
            <<<dim3(unit_blocks + 1, Q), dim3(quads, shares), 0, stream()>>>(w);
    else if constexpr (MS > 0) sum_weights<D, Q, MS - 1>(w, messages);
}

/* The edges' sums towards nodes and, with the whole of deb at hand, graphs. */
template <int D, int Q> void sum_slots(const wf_op *op, const lean_gradient &p) {
    const wf_octets *lines = op->part->lines;
    const wf_tensor *tables[2] = {op->in[2], op->in[3]}, *modulation = op->in[1];
    const int ld = layout<D, Q, 0>::kinds * D;
    slot_sum_step graph = {op->part, p.f.run_sums,   ld,    3 * D, 0, NULL, false,
                           NULL,     modulation->ld, false, lines};
    bool graphs = Q == 1 && wanted(modulation);
    if (graphs) graph.to = grad_of(modulation) + op->column;
    half_sum_step nodes = {op->part, {}, p.f.messages + 2 * D, tables[0]->ld, NULL, false, lines};
    for (int k = 0; k < 2; k++)
        nodes.of[k] = {(const uint16_t *)p.f.slots,
                       wanted(tables[k]) ? grad_of(tables[k]) + p.f.skipped : NULL,
                       k == 0 ? slots_as_dst : slots_as_src};
    node_half_sums(nodes, graphs ? &graph : NULL);
}

template <int D, int Q> bool backward(const wf_op *op, lean_gradient p, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_octets *lines = part->lines;
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4], *w2 = op->in[5], *c2 = op->in[6];
    int hidden = p.f.messages + 2 * D, most = processor_count() / Q;
    int blocks = (lines->n_chunks + groups - 1) / groups, runs = Q * lines->n_runs;
    blocks = Q * (blocks < most ? blocks : most);
    const int ld = layout<D, Q, 0>::kinds * D, partial = all_units * strip * strip;
    p.f.slots = scratch(arena, wf_octets_slots(lines) * (size_t)(hidden / 2));
    p.f.run_sums = scratch(arena, (size_t)runs * (size_t)ld);
    p.partial = scratch(arena, (size_t)blocks * (size_t)partial);
    if (p.f.slots == NULL || p.f.run_sums == NULL || p.partial == NULL) return false;
    std::vector<range> writes,
        reads = {rows_of(p.f.run_sums, runs, ld), rows_of(p.partial, blocks, partial)};
    float *spans = NULL;
    int span_blocks = part->n_edges / span + part->n_graphs;
    if (Q > 1) {
        p.quarter_debs = (uint2 *)scratch(arena, (size_t)(Q * p.edges) * (D / 2));
        spans = scratch(arena, (size_t)span_blocks * (2 * D));
        if (p.quarter_debs == NULL || spans == NULL) return false;
        reads.push_back(rows_of(spans, span_blocks, 2 * D));
    }
    if (!launch_strips<D, Q>(p, op->unit == WF_UNIT_GELU, blocks)) return false;
    if constexpr (Q > 1)
        lean_norm_kernel<D, Q><<<(unsigned)span_blocks, dim3(32, span_warps), 0, stream()>>>(
            p, part->edge_start, part->n_graphs, spans);
    sum_slots<D, Q>(op, p);
    /* The rest beside what follows: nobody waits for it. */
    for (const wf_tensor *t : {w1, w2, c2, Q > 1 ? modulation : NULL})
        if (wanted(t)) writes.push_back(grad_range(t));
    launch_scope scope(for_parts, reads, writes);
    sum_weights<D, Q>(weight_sums{(const float4 *)p.partial, blocks,
                                  wanted(w1) ? grad_of(w1) + (size_t)p.f.skipped * D : NULL,
                                  wanted(w2) ? grad_of(w2) : NULL,
                                  p.f.run_sums + layout<D, Q, 0>::kind_do * D, ld, lines->n_runs,
                                  wanted(c2) ? grad_of(c2) : NULL},
                      p.f.messages);
    if constexpr (Q > 1)
        if (wanted(modulation))
            lean_graph_kernel<D, Q><<<(unsigned)part->n_graphs, 3 * D, 0, stream()>>>(
                p, part->edge_start, lines->graph_runs, spans, grad_of(modulation) + op->column);
    return launched();
}

} // namespace

bool lean_fused_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    lean_gradient p = {lean_operands(op, op->part->lines, messages)};
    p.f.out = grad_of(op->out[0]);
    for (int k = 0; k < 2 && messages > 0; k++) p.dto[k] = grad_of(to[k]);
    if (messages > 0) p.ld_dto = to[0]->ld;
    if (op->mode == WF_SUM_MEAN) p.degree = (const float *)op->part->degree;
    p.dmean = grad_of(mean);
    p.ld_dmean = mean->ld;
    p.edges = op->part->n_edges;
    return de == 32   ? backward<32, 1>(op, p, arena)
           : de == 64 ? backward<64, 1>(op, p, arena)
                      : backward<128, 4>(op, p, arena);
}

} // namespace wf_gpu
