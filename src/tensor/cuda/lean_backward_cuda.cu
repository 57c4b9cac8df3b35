/* lean_backward_cuda: the edges of a lean block backward, in one kernel and the sums of what it leaves.
 *
 *   do = (1 + gate) de'   dz = w2' do   dm = dF[dst] + dR[src]   dx = [dm | dz] * unit'(x)   deb = w1' dx + share * dmean
 *   g = deb (1 + scale)   de = de' + rho (g - mean g - e^ mean(g e^))
 *   dw1 = sum dx eb'   dw2 = sum do z'   tables: sums of dx towards both ends
 *   per graph: sums of deb, deb e^, de' (w2 z + c2); dc2 = sum do
 * block   256 threads, two warpgroups, one block a multiprocessor; a warpgroup takes chunks of lines, both in step
 * tile    64 rows a warpgroup. eb, do, z and dx lie in shared memory as bf16 panels: operands of the next products, and
 *         transposed those of dw1 and dw2. The two warpgroups share these out in units of 64 x 64, three each, whose sums
 *         stay in registers over all tiles (96 a thread); they run while the tile's sums and layer norm are finished.
 *         Hidden columns 64 at a time; deb is added up from registers
 * flops   2 (M (3D) + 2D (6D) ...) an edge: 36 D^2 at M = 2D (x 8, w2 z 4, dz 4, deb 8, dw1 8, dw2 4)
 * bytes   e and de' read (twice, the second time from L2), de written: 12D of HBM; tables as forward, dF and dR 4M (1 + 2/8);
 *         slots 4 (M + 2D) (1/8 + 1/16..1/8) written and read; partial weights once a block */
#include "tensor/cuda/lean_fused_cuda.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace mma;

enum {
    block_threads = 256,
    groups = 2,
    strip = 64,
    strip_tiles = strip / 8,
    strip_bytes = 8192, /* of 64 rows */
    units = 3,          /* of 64 x 64 weight gradients a warpgroup has */
    kinds = 4           /* sums over runs: deb, deb e^, de' (w2 z + c2), do */
};

struct lean_gradient {
    lean_fused f;
    const float *dto[2]; /* gradients of the sums towards dst, src */
    int ld_dto;
    const float *degree; /* means: divide by it; NULL: no */
    const float *dmean;
    int ld_dmean;
    float *partial; /* (blocks, 2 * units, 64 * 64) */
};

/* Shared memory, in this order; eb .. dx of a warpgroup follow one another. */
template <int D> struct layout {
    static constexpr int z_strips = 2 * D / strip;
    int w2, tiles, each, carried, sums, c2, bytes;
    __host__ __device__ explicit layout(int hidden) {
        w2 = (int)panel_bytes(hidden, D);
        tiles = w2 + (int)panel_bytes(D, 2 * D);
        each = (2 + z_strips + hidden / strip) * strip_bytes;
        carried = tiles + groups * each;
        sums = carried + hidden / strip * block_threads * 16;
        c2 = sums + 2 * groups * 4 * kinds * D * 4;
        bytes = c2 + D * 4;
    }
};

extern __shared__ __align__(1024) unsigned char shared[];

template <int D, bool Gelu, bool Wide> struct walker {
    const lean_gradient &p;
    int hidden;
    layout<D> at;
    panel w1, w2;
    int group, warp, lane, thread;
    int column; /* the lane's first of sixteen */
    lane_rows rows;
    int parity;
    float share;
    float mean[2], rho[2];
    float carried[kinds * D / 128];
    float deb[D / 8][4];
    float dw[units][strip_tiles][4];

    __device__ explicit walker(const lean_gradient &args)
        : p(args), hidden(args.f.messages + 2 * D),
          at(hidden), w1{shared_address(shared), hidden}, w2{shared_address(shared) +
                                                                 (uint32_t)at.w2,
                                                             D},
          group((int)threadIdx.x / 128), warp((int)threadIdx.x / 32 % 4),
          lane((int)threadIdx.x % 32), thread((int)threadIdx.x % 128), column(4 * (lane % 4)),
          parity(0) {
#pragma unroll
        for (int u = 0; u < units; u++) clear(dw[u]);
#pragma unroll
        for (int k = 0; k < kinds * D / 128; k++) carried[k] = 0;
    }

    __device__ void stage() const {
        stage_panel(w1, 0, p.f.w1 + (size_t)p.f.skipped * D, D, hidden, D);
        stage_panel(w2, 0, p.f.w2, 2 * D, D, 2 * D);
        float *c2 = (float *)(shared + at.c2);
        for (int i = (int)threadIdx.x; i < D; i += block_threads) c2[i] = p.f.c2[i];
        __syncthreads();
    }

    /* Panels of a warpgroup: eb, do, then strips of z, strips of dx. */
    __device__ panel tile(int of_group, int index) const {
        return panel{shared_address(shared) +
                         (uint32_t)(at.tiles + of_group * at.each + index * strip_bytes),
                     tile_rows};
    }
    enum { tile_eb = 0, tile_do = 1, tile_z = 2, tile_dx = 2 + layout<D>::z_strips };

    /* Of this tile; the next one has the other half. */
    __device__ float *sums() const {
        return (float *)(shared + at.sums) + (2 * group + parity) * 4 * kinds * D;
    }

    /* Sums over the warp's rows of a lane's columns, into shared memory. */
    __device__ void leave_sums(float (&total)[D / 4], int kind) const {
        column_sums(total);
        int first = first_kept<D / 4>();
#pragma unroll
        for (int k = 0; k < D / 32; k++) {
            int f = first + k;
            sums()[(warp * kinds + kind) * D + f / 4 * 16 + column + f % 4] = total[k];
        }
    }

    /* The sums of runs, after a barrier: a thread has every 128th column of all kinds. */
    __device__ void sum_runs(const tile_runs &t) {
#pragma unroll
        for (int i = 0; i < kinds * D / 128; i++) {
            int col = thread + 128 * i;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (t.begins >> k & 1) carried[i] = 0;
                carried[i] += sums()[k * kinds * D + col];
                if (t.ends >> k & 1)
                    p.f.run_sums[(size_t)t.run[k] * (kinds * D) + col] = carried[i];
            }
        }
    }

    /* eb and do of the tile as fragments. */
    __device__ void load(fragment (&eb)[D / 16], fragment (&gated)[D / 16]) {
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        float4 v[2][D / 16];
#pragma unroll
        for (int k = 0; k < 2; k++) load_row<D>(v[k], p.f.e + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int k = 0; k < 2; k++) normalise<D>(v[k], &mean[k], &rho[k]);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift = __ldg((const float4 *)(mod + 16 * j));
            float4 scale = __ldg((const float4 *)(mod + D + 16 * j));
            eb[j] = fragment_of(modulated(v[0][j], scale, shift), modulated(v[1][j], scale, shift));
        }
#pragma unroll
        for (int k = 0; k < 2; k++) load_row<D>(v[k], p.f.out + (size_t)rows.row[k] * D + column);
        float total[D / 4];
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 gate = __ldg((const float4 *)(mod + 2 * D + 16 * j)), none = {0, 0, 0, 0};
            float4 upper = masked(rows.there[0], modulated(v[0][j], gate, none));
            float4 lower = masked(rows.there[1], modulated(v[1][j], gate, none));
            gated[j] = fragment_of(upper, lower);
            total[4 * j] = upper.x + lower.x, total[4 * j + 1] = upper.y + lower.y;
            total[4 * j + 2] = upper.z + lower.z, total[4 * j + 3] = upper.w + lower.w;
        }
        leave_sums(total, 3);
    }

    __device__ void tables(float (&x)[strip_tiles][4], int n) const {
        const float *of_a = rows.from_a ? p.f.as : p.f.ad, *of_b = rows.from_a ? p.f.ad : p.f.as;
        int from = p.f.skipped + n + column;
        load_tables(x, of_a + (size_t)rows.a * p.f.ld_table + from,
                    of_b + (size_t)rows.b[0] * p.f.ld_table + from,
                    of_b + (size_t)rows.b[1] * p.f.ld_table + from);
    }

    /* dx of hidden columns n .. n + 63 is there: into shared memory, and deb += dx w1. The product runs on. */
    __device__ void spread(const float (&dx)[strip_tiles][4], int n, bool fresh) {
        fragment f[strip / 16];
#pragma unroll
        for (int j = 0; j < strip / 16; j++) {
            f[j] = fragment_of(dx[2 * j], dx[2 * j + 1]);
            store_fragment(tile(group, tile_dx + n / strip), 16 * warp, j, f[j]);
        }
        begin<Wide>();
        backward_mma<Wide>(deb, f, w1, n, 0, fresh);
        commit<Wide>();
    }

    __device__ void update_strip(int n, bool fresh) {
        float x[strip_tiles][4], dz[strip_tiles][4];
        tables(x, p.f.messages + n);
        begin<Wide>();
        tile_forward_mma<Wide, D / 16>(x, tile(group, tile_eb), 16 * warp, 0, w1, p.f.messages + n,
                                       0, false);
        tile_backward_mma<Wide, D / 16>(dz, tile(group, tile_do), 16 * warp, 0, w2, 0, n, true);
        finish<Wide>();
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
#pragma unroll
        for (int j = 0; j < strip / 16; j++)
            store_fragment(tile(group, tile_z + n / strip), 16 * warp, j,
                           fragment_of(x[2 * j], x[2 * j + 1]));
        spread(dz, p.f.messages + n, fresh);
    }

    /* What a node's messages pull by: its row of dto, the lane's first column, and a factor. */
    __device__ const float *pull(bool as_source, int node, float *factor) const {
        *factor = p.degree == NULL ? 1 : __fdividef(1, p.degree[node]);
        return p.dto[as_source] + (size_t)node * p.ld_dto + column;
    }

    __device__ void message_strip(int n) {
        float x[strip_tiles][4];
        tables(x, n);
        begin<Wide>();
        tile_forward_mma<Wide, D / 16>(x, tile(group, tile_eb), 16 * warp, 0, w1, n, 0, false);
        finish<Wide>();
        settle(x);
        float by_a, by[2];
        const float *da = pull(rows.from_a, rows.a, &by_a) + n;
        const float *db[2] = {pull(!rows.from_a, rows.b[0], &by[0]) + n,
                              pull(!rows.from_a, rows.b[1], &by[1]) + n};
#pragma unroll
        for (int j = 0; j < strip / 16; j++) {
            float4 a = __ldg((const float4 *)(da + 16 * j));
            const float of_a[4] = {a.x * by_a, a.y * by_a, a.z * by_a, a.w * by_a};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 b = __ldg((const float4 *)(db[k] + 16 * j));
                const float of_b[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float slope, *value = &x[2 * j + q / 2][2 * k + q % 2];
                    fast_unit<Gelu>(*value, &slope);
                    *value = rows.there[k] ? (of_a[q] + by[k] * of_b[q]) * slope : 0;
                }
            }
        }
        spread(x, n, false);
    }

    /* Sums of de' (w2 z + c2); o = w2 z. */
    __device__ void gate_sums(const float (&o)[D / 8][4]) const {
        const float *c2 = (const float *)(shared + at.c2) + column;
        float total[D / 4];
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 add = *(const float4 *)(c2 + 16 * j);
            const float shift[4] = {add.x, add.y, add.z, add.w};
#pragma unroll
            for (int q = 0; q < 4; q++) total[4 * j + q] = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 d = *(const float4 *)(p.f.out + (size_t)rows.row[k] * D + column + 16 * j);
                const float gradient[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
                for (int q = 0; q < 4; q++)
                    if (rows.there[k])
                        total[4 * j + q] +=
                            gradient[q] * (o[2 * j + q / 2][2 * k + q % 2] + shift[q]);
            }
        }
        leave_sums(total, 2);
    }

    /* deb is complete but for the mean's share: sums over the graph's edges, and the gradient of e. */
    __device__ void norm_backward() {
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        const float *dmean = p.dmean + (size_t)rows.graph * p.ld_dmean + column;
        float hat[2][D / 4], total[D / 4], product[D / 4], sum[2] = {0, 0}, along[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 of_mean = __ldg((const float4 *)(dmean + 16 * j));
            float4 of_scale = __ldg((const float4 *)(mod + D + 16 * j));
            const float part[4] = {of_mean.x, of_mean.y, of_mean.z, of_mean.w};
            const float scale[4] = {of_scale.x, of_scale.y, of_scale.z, of_scale.w};
#pragma unroll
            for (int q = 0; q < 4; q++) total[4 * j + q] = product[4 * j + q] = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 v = *(const float4 *)(p.f.e + (size_t)rows.row[k] * D + column + 16 * j);
                const float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float *value = &deb[2 * j + q / 2][2 * k + q % 2];
                    float h = (e[q] - mean[k]) * rho[k], d = *value + share * part[q];
                    if (rows.there[k]) {
                        total[4 * j + q] += d;
                        product[4 * j + q] += d * h;
                    }
                    d *= 1 + scale[q];
                    sum[k] += d;
                    along[k] += d * h;
                    hat[k][4 * j + q] = h;
                    *value = d;
                }
            }
        }
        leave_sums(total, 0);
        leave_sums(product, 1);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float middle = quad_sum(sum[k]) / D, slant = quad_sum(along[k]) / D;
            if (!rows.there[k]) continue;
            float *row = p.f.out + (size_t)rows.row[k] * D + column;
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                float4 d = *(const float4 *)(row + 16 * j);
                const float *first = &deb[2 * j][2 * k], *second = &deb[2 * j + 1][2 * k];
                const float *h = &hat[k][4 * j];
                d.x += rho[k] * (first[0] - middle - h[0] * slant);
                d.y += rho[k] * (first[1] - middle - h[1] * slant);
                d.z += rho[k] * (second[0] - middle - h[2] * slant);
                d.w += rho[k] * (second[1] - middle - h[3] * slant);
                *(float4 *)(row + 16 * j) = d;
            }
        }
    }

    /* This warpgroup's units of dw1 and dw2 += those of both tiles; runs on. */
    __device__ void weight_units() {
        int of_w1 = hidden / strip;
        begin<Wide>();
#pragma unroll
        for (int u = 0; u < units; u++) {
            /* Behind the last one: that one again, for nothing; a branch would cost the others their overlap. */
            int unit = min(group * units + u, of_w1 + layout<D>::z_strips - 1);
            bool first = unit < of_w1;
#pragma unroll
            for (int from = 0; from < groups; from++)
                outer_mma<Wide>(dw[u], tile(from, first ? tile_dx + unit : tile_do), 16 * warp, 0,
                                tile(from, first ? tile_eb : tile_z + unit - of_w1), 0, false);
        }
        commit<Wide>();
    }

    __device__ void sum_strips(const tile_runs &t, int octet0) const {
        for (int n = 0; n < hidden; n += strip) {
            float4 *at_lane =
                (float4 *)(shared + at.carried) + n / strip * block_threads + (int)threadIdx.x;
            float4 value = *at_lane;
            sum_tile(tile(group, tile_dx + n / strip), 16 * warp, t, octet0, p.f.n_octets,
                     p.f.slots + n + 16 * warp + column, hidden, &value);
            *at_lane = value;
        }
    }

    __device__ void step(int chunk, int index) {
        bool inside = chunk < p.f.n_chunks;
        int pair = ((inside ? chunk : 0) * p.f.tiles + index) * 4;
        rows = rows_of_pair(p.f.octets, pair + warp, inside);
        share = p.f.octets[2 * (pair + warp)].share;
        fragment eb[D / 16], gated[D / 16];
        load(eb, gated);
        wait<Wide>();
        __syncthreads(); /* the weight gradients of the last tiles are done with the panels */
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            store_fragment(tile(group, tile_eb), 16 * warp, j, eb[j]);
            store_fragment(tile(group, tile_do), 16 * warp, j, gated[j]);
        }
        publish();
        group_barrier(1 + group);
#pragma unroll
        for (int n = 0; n < 2 * D; n += strip) update_strip(n, n == 0);
#pragma unroll 1
        for (int n = 0; n < p.f.messages; n += strip) message_strip(n);
        publish();
        __syncthreads();
        float o[D / 8][4];
        begin<Wide>();
        for (int s = 0; s < layout<D>::z_strips; s++)
            tile_forward_mma<Wide, strip / 16>(o, tile(group, tile_z + s), 16 * warp, 0, w2, 0,
                                               strip * s, s == 0);
        commit<Wide>();
        weight_units();
        tile_runs t = runs_of_tile(p.f.octets, pair);
        if (!inside) t.begins = t.ends = t.there = 0;
        sum_strips(t, 2 * pair);
        wait<Wide, 1>();
        settle(o);
        settle(deb);
        gate_sums(o);
        norm_backward();
        group_barrier(1 + group);
        sum_runs(t);
        parity ^= 1;
    }

    __device__ void leave_weights() {
        wait<Wide>();
        float4 *to = (float4 *)p.partial + (size_t)blockIdx.x * (2 * units * strip_tiles * 128);
#pragma unroll
        for (int u = 0; u < units; u++) {
            settle(dw[u]);
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
                to[((group * units + u) * strip_tiles + j) * 128 + thread] =
                    make_float4(dw[u][j][0], dw[u][j][1], dw[u][j][2], dw[u][j][3]);
        }
    }

    __device__ void run() {
        for (int first = (int)blockIdx.x; first * groups < p.f.n_chunks; first += (int)gridDim.x)
#pragma unroll 1
            for (int index = 0; index < p.f.tiles; index++) step(first * groups + group, index);
        leave_weights();
    }
};

template <int D, bool Gelu, bool Wide>
__global__ void __launch_bounds__(block_threads, 1)
    lean_backward_kernel(const __grid_constant__ lean_gradient p) {
    walker<D, Gelu, Wide> w(p);
    w.stage();
    w.run();
}

/* Adds the blocks' partial weight gradients in order, by 8 threads an accumulator quadruple. */
enum { shares = 8, quads = 32 };
template <int D>
__global__ void __launch_bounds__(shares *quads)
    lean_weights_kernel(const float4 *partial, int blocks, int of_w1, float *dw1, float *dw2) {
    __shared__ float4 sums[shares][quads];
    int quad = (int)(blockIdx.x * quads + threadIdx.x), share = (int)threadIdx.y;
    const int all = 2 * units * strip_tiles * 128;
    float4 sum = {0, 0, 0, 0};
    int each = (blocks + shares - 1) / shares, last = min(blocks, (share + 1) * each);
#pragma unroll 4
    for (int b = share * each; b < last; b++) sum = plus(sum, partial[(size_t)b * all + quad]);
    sums[share][threadIdx.x] = sum;
    __syncthreads();
    int unit = quad / (strip_tiles * 128), j = quad / 128 % strip_tiles, thread = quad % 128;
    if (share > 0 || unit >= of_w1 + layout<D>::z_strips) return;
    for (int s = 1; s < shares; s++) sum = plus(sum, sums[s][threadIdx.x]);
    bool first = unit < of_w1;
    int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    int col = j / 2 * 16 + lane % 4 * 4 + j % 2 * 2;
    int row0 = first ? unit * strip : 0, col0 = first ? 0 : (unit - of_w1) * strip;
    int rows = first ? of_w1 * strip : D, ld = first ? D : 2 * D;
    float *to = first ? dw1 : dw2;
    const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int r = row0 + column_of(row + k / 2 * 8), c = col0 + col + k % 2;
        if (to != NULL && r < rows && c < ld) to[(size_t)r * ld + c] += value[k];
    }
}

template <int D, bool Gelu>
bool launch(const lean_gradient &p, int blocks, float *dw1, float *dw2) {
    int hidden = p.f.messages + 2 * D, bytes = layout<D>(hidden).bytes;
    auto kernel = lean_backward_kernel<D, Gelu, true>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    kernel<<<(unsigned)blocks, block_threads, (size_t)bytes, stream()>>>(p);
    lean_weights_kernel<D>
        <<<2 * units * strip_tiles * 128 / quads, dim3(quads, shares), 0, stream()>>>(
            (const float4 *)p.partial, blocks, hidden / strip, dw1, dw2);
    return launched();
}

} // namespace

bool lean_fused_backward(const wf_op *op, wf_arena *arena) {
    const wf_octets *lines = op->part->lines;
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *w1 = op->in[4], *w2 = op->in[5];
    const wf_tensor *c2 = op->in[6], *tables[2] = {op->in[2], op->in[3]};
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = e->cols, all = w1->rows - 2 * de, messages = to[0] == NULL ? 0 : all;
    int hidden = messages + 2 * de, blocks = (lines->n_chunks + groups - 1) / groups;
    if (blocks > processor_count()) blocks = processor_count();
    lean_gradient p = {lean_operands(op, messages)};
    p.f.out = grad_of(op->out[0]);
    p.f.slots = scratch(arena, wf_octets_slots(lines) * (size_t)hidden);
    p.f.run_sums = scratch(arena, (size_t)lines->n_runs * (size_t)(kinds * de));
    p.partial = scratch(arena, (size_t)blocks * (2 * units * strip * strip));
    if (p.f.slots == NULL || p.f.run_sums == NULL || p.partial == NULL) return false;
    for (int k = 0; k < 2 && messages > 0; k++) p.dto[k] = grad_of(to[k]);
    if (messages > 0) p.ld_dto = to[0]->ld;
    if (op->mode == WF_SUM_MEAN) p.degree = (const float *)op->part->degree;
    p.dmean = grad_of(mean);
    p.ld_dmean = mean->ld;
    float *dw1 = wanted(w1) ? grad_of(w1) + (size_t)p.f.skipped * (size_t)de : NULL;
    float *dw2 = wanted(w2) ? grad_of(w2) : NULL;
    bool gelu = op->unit == WF_UNIT_GELU, done;
    if (de == 32)
        done =
            gelu ? launch<32, true>(p, blocks, dw1, dw2) : launch<32, false>(p, blocks, dw1, dw2);
    else
        done =
            gelu ? launch<64, true>(p, blocks, dw1, dw2) : launch<64, false>(p, blocks, dw1, dw2);
    if (!done) return false;
    for (int k = 0; k < 2; k++)
        if (wanted(tables[k]))
            node_slot_sums(slot_sum_step{
                op->part, p.f.slots, hidden, hidden, k == 0 ? slots_as_dst : slots_as_src, NULL,
                false, grad_of(tables[k]) + p.f.skipped, tables[k]->ld, false, lines});
    if (wanted(modulation))
        graph_run_sums(slot_sum_step{op->part, p.f.run_sums, kinds * de, 3 * de, 0, NULL, false,
                                     grad_of(modulation) + op->column, modulation->ld, false,
                                     lines});
    return !wanted(c2) || sum_rows(p.f.run_sums + 3 * de, NULL, kinds * de, lines->n_runs, de,
                                   sum_target{grad_of(c2), 0, false, false}, arena);
}

} // namespace wf_gpu
