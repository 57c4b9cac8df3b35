/* lean_back_sums: adds up what the kernel of the lean backward leaves (lean_back.cuh): partial sums
 * of both ends and sums of graphs in one launch, weight gradients on a side stream. With Q = 4 the
 * rows come first: deb is the sum of four quarters. */
#include "models/cuda/gmn_lean/lean_back.cuh"
#include "tensor/cuda/row_products/deferred.cuh"

namespace wf_gpu {
namespace {

using namespace lean;

/* Adds the blocks' partial weight gradients in order, by 8 threads an accumulator quadruple. After
 * them a block for four columns each adds the segments' sums of do / 2, (Q, segments, ld). */
struct weight_sums {
    const float4 *partial;
    int blocks; /* of partial */
    float *dw1, *dw2;
    const float *sums_do;
    int ld, segments;
    float *dc2; /* all three: NULL, not wanted */
};
enum { eighths = 8, quads = 32, square_blocks = all_squares * strip_tiles * 128 / quads };

/* Rows of quadruples, each ld from the last, added in order; the thread of share 0 has the sum. */
__device__ inline float4 sum_of_eighths(const float4 *from, size_t ld, int count) {
    __shared__ float4 sums[eighths][quads];
    int eighth = (int)threadIdx.y, each = (count + eighths - 1) / eighths;
    int last = min(count, (eighth + 1) * each);
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int b = eighth * each; b < last; b++) sum = plus(sum, from[(size_t)b * ld]);
    sums[eighth][threadIdx.x] = sum;
    __syncthreads();
    for (int s = 1; s < eighths && eighth == 0; s++) sum = plus(sum, sums[s][threadIdx.x]);
    return sum;
}

/* Four columns of dc2: a thread adds up a share of the segments, then neighbours add up theirs. */
__device__ inline void add_do(const weight_sums &w, const float *from, int quad) {
    const int threads = eighths * quads;
    __shared__ float4 sums[threads];
    int thread = (int)(threadIdx.y * quads + threadIdx.x);
    int each = (w.segments + threads - 1) / threads, last = min(w.segments, (thread + 1) * each);
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int s = thread * each; s < last; s++)
        sum = plus(sum, *(const float4 *)(from + (size_t)s * w.ld + 4 * quad));
    sums[thread] = sum;
    for (int step = 1; step < threads; step *= 2) {
        __syncthreads();
        if (thread % (2 * step) == 0) sums[thread] = plus(sums[thread], sums[thread + step]);
    }
    if (thread > 0) return;
    const float value[4] = {sums[0].x, sums[0].y, sums[0].z, sums[0].w};
#pragma unroll
    for (int k = 0; k < 4; k++) w.dc2[4 * quad + k] += 2 * value[k];
}

template <int D, int Q, int MS>
__global__ void __launch_bounds__(eighths *quads) lean_weights_kernel(weight_sums w) {
    wait_for_previous();
    using at = layout<D, Q, MS>;
    const int all = all_squares * strip_tiles * 128;
    bool first_thread = threadIdx.y == 0;
    if (blockIdx.x >= square_blocks) {
        int own = (int)blockIdx.x - square_blocks, quarter = own / (D / 4 / Q);
        if (blockIdx.y == 0 && w.dc2 != NULL)
            add_do(w, w.sums_do + (size_t)quarter * w.segments * w.ld, own);
        return;
    }
    int quad = (int)(blockIdx.x * quads + threadIdx.x);
    int quarter = (int)blockIdx.y, of_w1 = at::of_w1;
    float4 sum =
        sum_of_eighths(w.partial + (size_t)quarter * all + quad, (size_t)Q * all, w.blocks / Q);
    int square = quad / (strip_tiles * 128), j = quad / 128 % strip_tiles, thread = quad % 128;
    if (!first_thread || square >= at::used_squares) return;
    bool first = square < of_w1;
    int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    int col = j / 2 * 16 + lane % 4 * 4 + j % 2 * 2;
    int v = square - of_w1;
    int row0 = first ? at::place(square / at::wide, quarter) : v / at::z_strips * strip;
    int col0 = first ? square % at::wide * strip : quarter * at::zs + v % at::z_strips * strip;
    int rows = first ? Q * at::messages + 2 * D : D, ld = first ? D : 2 * D;
    float *to = first ? w.dw1 : w.dw2;
    const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int r = row0 + column_of(row + k / 2 * 8), c = col0 + col + k % 2;
        if (to != NULL && r < rows && c < ld) to[(size_t)r * ld + c] += value[k];
    }
}

/* --- rows whose deb came in quarters ---------------------------------------------------------- */
enum { span = 64, span_warps = 8 };

/* Rows of a graph in spans of 64 from its first on: block starts[g] / 64 + g + k is span k of graph
 * g, some are empty. A warp takes every eighth row, four columns a lane (D = 128). Leaves de and, a
 * row a block, the sums of deb and of deb e^. */
template <int D, int Q>
__global__ void __launch_bounds__(32 * span_warps)
    lean_norm_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts, int graphs) {
    wait_for_previous();
    static_assert(D == 128, "four columns a lane");
    __shared__ float4 warp_sums[2][span_warps][32];
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
    warp_sums[0][warp][lane] = total;
    warp_sums[1][warp][lane] = product;
    __syncthreads();
    if (warp >= 2) return;
    float4 sum = {0, 0, 0, 0};
    for (int w = 0; w < span_warps; w++) sum = plus(sum, warp_sums[warp][w][lane]);
    *(float4 *)(p.spans + (size_t)block * (2 * D) + warp * D + 4 * lane) = sum;
}

/* Adds a graph's spans, and what the quarters left of de' (w2 z + c2), to the gradients of shift,
 * scale and gate: a block a graph, a thread a column of the three. */
template <int D, int Q>
__global__ void __launch_bounds__(3 * D)
    lean_graph_kernel(const __grid_constant__ lean_gradient p, const uint32_t *starts,
                      const uint32_t *segments, float *to) {
    wait_for_previous();
    const int kinds = layout<D, Q, 0>::kinds, kind = layout<D, Q, 0>::kind_gate;
    int graph = (int)blockIdx.x, col = (int)threadIdx.x;
    float sum = 0;
    if (col < 2 * D) {
        int first = (int)starts[graph] / span + graph;
        int last = (int)starts[graph + 1] / span + graph + 1;
#pragma unroll 8
        for (int s = first; s < last; s++) sum += p.spans[(size_t)s * (2 * D) + col];
    } else {
        const float *of = p.f.segment_sums + kind * D + col - 2 * D;
#pragma unroll 4
        for (uint32_t r = segments[graph]; r < segments[graph + 1]; r++)
#pragma unroll
            for (int q = 0; q < Q; q++) sum += of[((size_t)q * p.f.n_segments + r) * (kinds * D)];
    }
    to[(size_t)graph * p.f.ld_modulation + col] += sum;
}

/* --- launches --------------------------------------------------------------------------------- */
template <int D, int Q, int MS = 2 * D / Q / strip>
void sum_weights(const weight_sums &w, int messages) {
    if (messages == Q * MS * strip)
        start_kernel(lean_weights_kernel<D, Q, MS>, dim3(square_blocks + D / 4, Q),
                     dim3(quads, eighths), 0, w);
    else if constexpr (MS > 0) sum_weights<D, Q, MS - 1>(w, messages);
}

/* Sums over graphs, with the whole of deb at hand; to NULL: not wanted. */
template <int D, int Q> partial_sum_args graph_sums(const wf_op *op, const lean_gradient &p) {
    const wf_tensor *modulation = op->in[1];
    const int ld = layout<D, Q, 0>::kinds * D;
    float *to = Q == 1 && wanted(modulation) ? grad_of(modulation) + op->column : NULL;
    return {op->part,
            p.f.segment_sums,
            ld,
            3 * D,
            0,
            NULL,
            false,
            to,
            modulation->ld,
            false,
            op->part->bundles[WF_CUT_GROUP]};
}

/* The edges' sums towards nodes and graphs. */
template <int D, int Q> void sum_partials(const wf_op *op, const lean_gradient &p) {
    const wf_bundle_table *table = op->part->bundles[WF_CUT_GROUP];
    const wf_tensor *tables[2] = {op->in[2], op->in[3]};
    partial_sum_args graph = graph_sums<D, Q>(op, p);
    half_sum_args nodes = {op->part, {}, p.f.messages + 2 * D, tables[0]->ld, NULL, table};
    for (int k = 0; k < 2; k++)
        nodes.of[k] = {(const uint16_t *)p.f.partials,
                       wanted(tables[k]) ? grad_of(tables[k]) + p.f.skipped : NULL,
                       k == 0 ? partials_as_dst : partials_as_src, sets_table(op, tables[k])};
    node_half_sums(nodes, graph.to != NULL ? &graph : NULL);
}

template <int D, int Q> void add_up(const wf_op *op, const lean_gradient &p) {
    const wf_part *part = op->part;
    const wf_bundle_table *table = part->bundles[WF_CUT_GROUP];
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4], *w2 = op->in[5], *c2 = op->in[6];
    const int ld = layout<D, Q, 0>::kinds * D, blocks = Q * p.parts;
    std::vector<range> writes, reads = {rows_of(p.f.segment_sums, Q * table->n_segments, ld),
                                        rows_of(p.partial, blocks, all_squares * strip * strip)};
    if constexpr (Q > 1) {
        start_kernel(lean_norm_kernel<D, Q>, (unsigned)lean_spans(part), dim3(32, span_warps), 0, p,
                     part->edge_start, part->n_graphs);
        reads.push_back(rows_of(p.spans, lean_spans(part), 2 * D));
    }
    bool lent = op->in[9] != NULL; /* node_tables.cu adds them up, and sets what it keeps */
    if (lent) cancel_zero(op->in[2]), cancel_zero(op->in[3]);
    else sum_partials<D, Q>(op, p);
    /* The rest runs beside what follows: no later launch of the block waits for it. */
    for (const wf_tensor *t : {w1, w2, c2, Q > 1 || lent ? modulation : NULL})
        if (wanted(t)) writes.push_back(grad_range(t));
    launch_scope scope(for_partial_sums, reads, writes);
    partial_sum_args graph = graph_sums<D, Q>(op, p);
    if (lent && graph.to != NULL) graph_segment_sums(graph);
    sum_weights<D, Q>(weight_sums{(const float4 *)p.partial, blocks,
                                  wanted(w1) ? grad_of(w1) + (size_t)p.f.skipped * D : NULL,
                                  wanted(w2) ? grad_of(w2) : NULL,
                                  p.f.segment_sums + layout<D, Q, 0>::kind_do * D, ld,
                                  table->n_segments, wanted(c2) ? grad_of(c2) : NULL},
                      p.f.messages);
    if constexpr (Q > 1)
        if (wanted(modulation))
            start_kernel(lean_graph_kernel<D, Q>, (unsigned)part->n_graphs, 3 * D, 0, p,
                         part->edge_start, table->graph_segments, grad_of(modulation) + op->column);
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
