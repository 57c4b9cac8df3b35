/* lean_back_sums: adds up what the lean backward's kernel leaves (lean_back.cuh). Slots of both ends and the graphs' sums
 * in one launch; weight gradients on a side. With Q = 4 the rows come first: deb is the sum of four quarters.
 * measured on an H200, 256 graphs (ncu): slots 27 us at D = 64, 43 at D = 128; weights 56 and 70; rows 219 (D = 128) */
#include "models/cuda/gmn_lean/lean_back.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {
namespace {

using namespace lean;

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
    follow();
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
            for (int k = 0; k < 4; k++)
                w.dc2[col + k] += at::ahead ? 2 * value[k] : value[k]; /* of do / 2 */
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
    lean_norm_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts, int graphs) {
    follow();
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
    *(float4 *)(p.spans + (size_t)block * (2 * D) + warp * D + 4 * lane) = sum;
}

/* Adds a graph's spans, and what the quarters left of de' (w2 z + c2), to the gradients of shift, scale and gate: a block a
 * graph, a thread a column of the three. */
template <int D, int Q>
__global__ void __launch_bounds__(3 * D)
    lean_graph_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts,
                      const uint32_t *runs, float *to) {
    follow();
    const int kinds = layout<D, Q, 0>::kinds, kind = layout<D, Q, 0>::kind_gate;
    int graph = (int)blockIdx.x, col = (int)threadIdx.x;
    float sum = 0;
    if (col < 2 * D) {
        int first = (int)starts[graph] / span + graph;
        int last = (int)starts[graph + 1] / span + graph + 1;
#pragma unroll 8
        for (int s = first; s < last; s++) sum += p.spans[(size_t)s * (2 * D) + col];
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
template <int D, int Q, int MS = 2 * D / Q / strip>
void sum_weights(const weight_sums &w, int messages) {
    if (messages == Q * MS * strip)
        start_kernel(lean_weights_kernel<D, Q, MS>, dim3(unit_blocks + 1, Q), dim3(quads, shares),
                     0, w);
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
    half_sum_step nodes = {op->part, {}, p.f.messages + 2 * D, tables[0]->ld, NULL, lines};
    for (int k = 0; k < 2; k++)
        nodes.of[k] = {(const uint16_t *)p.f.slots,
                       wanted(tables[k]) ? grad_of(tables[k]) + p.f.skipped : NULL,
                       k == 0 ? slots_as_dst : slots_as_src, sets_table(op, tables[k])};
    node_half_sums(nodes, graphs ? &graph : NULL);
}

template <int D, int Q> void add_up(const wf_op *op, const lean_gradient &p) {
    const wf_part *part = op->part;
    const wf_octets *lines = part->lines;
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4], *w2 = op->in[5], *c2 = op->in[6];
    const int ld = layout<D, Q, 0>::kinds * D, blocks = Q * p.shares;
    std::vector<range> writes, reads = {rows_of(p.f.run_sums, Q * lines->n_runs, ld),
                                        rows_of(p.partial, blocks, all_units * strip * strip)};
    if constexpr (Q > 1) {
        start_kernel(lean_norm_kernel<D, Q>, (unsigned)lean_spans(part), dim3(32, span_warps), 0, p,
                     part->edge_start, part->n_graphs);
        reads.push_back(rows_of(p.spans, lean_spans(part), 2 * D));
    }
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
            start_kernel(lean_graph_kernel<D, Q>, (unsigned)part->n_graphs, 3 * D, 0, p,
                         part->edge_start, lines->graph_runs, grad_of(modulation) + op->column);
}

} // namespace

int lean::lean_spans(const wf_part *part) { return part->n_edges / span + part->n_graphs; }

void lean::lean_add_up(const wf_op *op, const lean_gradient &p) {
    int de = op->in[0]->cols;
    if (de == 32) add_up<32, 1>(op, p);
    else if (de == 64) add_up<64, 1>(op, p);
    else add_up<128, 4>(op, p);
}

} // namespace wf_gpu
