/* partial_sums: adds partial sums. A lane takes four columns (eight of partial sums in bf16) of a
 * node or graph and walks its list in order. Rows are loaded eight ahead, so the latency of a list
 * (3 to 20 rows), which is the limit, is paid about once. Bytes: every listed row once, 4 (2) *
 * cols, from L2 if the edge kernel has just written them. */
#include "models/cuda/gmn_edges/partial_sums.cuh"
#include "models/cuda/gmn_edges/edge_softmax.cuh"

namespace wf_gpu {
namespace {

enum { ahead = 8, half_ahead = 4, lane_columns = 4, half_columns = 8, graph_threads = 64 };

__device__ inline void add_to(float4 *sum, float4 x) {
    sum->x += x.x;
    sum->y += x.y;
    sum->z += x.z;
    sum->w += x.w;
}

/* Adds rows row(first) .. row(last - 1) of columns col .. col + 3 in order. */
template <class Row>
__device__ float4 list_sum(const float *partials, int ld, int col, uint32_t first, uint32_t last,
                           Row row) {
    float4 sum = {0, 0, 0, 0};
    for (uint32_t at = first; at < last; at += ahead) {
        float4 x[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (at + k < last) x[k] = *(const float4 *)(partials + (size_t)row(at + k) * ld + col);
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (at + k < last) add_to(&sum, x[k]);
    }
    return sum;
}

/* Columns from cols on become zero, or are left alone. */
__device__ inline void put_sum(const partial_sum_args &s, int row, int col, float4 sum,
                               float factor) {
    float *to = s.to + (size_t)row * s.ld_to + col;
    if (col + lane_columns <= s.cols) {
        float4 was = s.set ? float4{0, 0, 0, 0} : *(const float4 *)to;
        *(float4 *)to = float4{was.x + sum.x * factor, was.y + sum.y * factor,
                               was.z + sum.z * factor, was.w + sum.w * factor};
        return;
    }
    float value[lane_columns] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int k = 0; k < lane_columns; k++) {
        bool inside = col + k < s.cols;
        if (s.set && col + k < s.ld_to) to[k] = inside ? value[k] * factor : 0;
        else if (inside) to[k] += value[k] * factor;
    }
}

/* Columns that a launch covers: those of the partial sums, or also the target's padding. */
__host__ __device__ inline int lanes_of(const partial_sum_args &s) {
    return ((s.set ? s.ld_to : s.cols) + lane_columns - 1) / lane_columns;
}
/* Partial sums may be narrower than the target's padding. */
__device__ inline bool has_columns(const partial_sum_args &s, int col) {
    return col < s.cols && col + lane_columns <= s.ld;
}

__global__ void __launch_bounds__(threads_each)
    node_sums_kernel(partial_sum_args s, const uint32_t *start, const uint32_t *rows, int nodes) {
    wait_for_previous();
    int lanes = lanes_of(s), i = (int)(blockIdx.x * threads_each + threadIdx.x);
    int node = i / lanes, col = i % lanes * lane_columns;
    if (node >= nodes) return;
    uint32_t first = start[2 * node + (s.ends == partials_as_src)];
    uint32_t last = start[2 * node + (s.ends == partials_as_dst ? 1 : 2)];
    float4 sum = {0, 0, 0, 0};
    if (has_columns(s, col))
        sum = list_sum(s.partials, s.ld, col, first, last,
                       [=](uint32_t at) { return __ldg(rows + at); });
    float degree = s.degree == NULL ? 1 : s.degree[node];
    put_sum(s, node, col, sum, degree > 0 ? 1 / degree : 0);
}

/* Thread i of the sums over graphs. */
struct graph_lists {
    const uint32_t *segments, *edges;
    int graphs;
};
__device__ inline void sum_graph(const partial_sum_args &s, const graph_lists &l, int i) {
    int lanes = lanes_of(s), graph = i / lanes, col = i % lanes * lane_columns;
    if (graph >= l.graphs) return;
    float4 sum = {0, 0, 0, 0};
    if (has_columns(s, col))
        sum = list_sum(s.partials, s.ld, col, l.segments[graph], l.segments[graph + 1],
                       [](uint32_t at) { return at; });
    float count = s.mean ? (float)(l.edges[graph + 1] - l.edges[graph]) : 1;
    put_sum(s, graph, col, sum, count > 0 ? 1 / count : 0);
}
__global__ void __launch_bounds__(graph_threads)
    graph_sums_kernel(partial_sum_args s, graph_lists lists) {
    wait_for_previous();
    sum_graph(s, lists, (int)(blockIdx.x * graph_threads + threadIdx.x));
}

/* The list of a node for one target. */
struct partial_list {
    const uint16_t *partials;
    uint32_t first, count;
    __device__ partial_list(const half_sum_target &t, const uint32_t *start, int node)
        : partials(t.partials), first(0), count(0) {
        if (t.to == NULL) return;
        first = start[2 * node + (t.ends == partials_as_src)];
        count = start[2 * node + (t.ends == partials_as_dst ? 1 : 2)] - first;
    }
};
__device__ inline void put_half(const half_sum_args &s, const half_sum_target &target, int node,
                                int col, const float (&sum)[half_columns], float factor) {
    if (target.to == NULL) return;
    float4 *to = (float4 *)(target.to + (size_t)node * s.ld_to + col);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float4 was = target.set ? float4{0, 0, 0, 0} : to[k];
        to[k] = float4{was.x + factor * sum[4 * k], was.y + factor * sum[4 * k + 1],
                       was.z + factor * sum[4 * k + 2], was.w + factor * sum[4 * k + 3]};
    }
}

/* A lane has eight columns; cols / 8 neighbouring lanes have a node. A lane walks the lists of both
 * targets as one, so that most nodes wait for loads once. Blocks from node_blocks on sum over
 * graphs. */
__global__ void __launch_bounds__(threads_each)
    half_sums_kernel(half_sum_args s, const uint32_t *start, const uint32_t *rows, int nodes,
                     unsigned node_blocks, partial_sum_args graph, graph_lists lists) {
    wait_for_previous();
    if (blockIdx.x >= node_blocks)
        return sum_graph(graph, lists,
                         (int)((blockIdx.x - node_blocks) * threads_each + threadIdx.x));
    int i = (int)(blockIdx.x * threads_each + threadIdx.x), lanes = s.cols / half_columns;
    int node = i / lanes, col = i % lanes * half_columns;
    if (node >= nodes) return;
    partial_list one(s.of[0], start, node), two(s.of[1], start, node);
    float degree = s.degree == NULL ? 1 : s.degree[node], factor = degree > 0 ? 1 / degree : 0;
    float sum[2][half_columns] = {};
    uint32_t last = one.count + two.count;
    for (uint32_t at = 0; at < last; at += half_ahead) {
        uint4 x[half_ahead];
#pragma unroll
        for (int k = 0; k < half_ahead; k++) {
            if (at + k >= last) continue;
            bool of_one = at + k < one.count;
            uint32_t place = (of_one ? one.first : two.first - one.count) + at + k; /* may wrap */
            uint32_t row = __ldg(rows + place);
            x[k] = *(const uint4 *)((of_one ? one.partials : two.partials) + (size_t)row * s.cols +
                                    col);
        }
#pragma unroll
        for (int k = 0; k < half_ahead; k++) {
            if (at + k >= last) break;
            const uint32_t word[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
            bool of_one = at + k < one.count;
#pragma unroll
            for (int w = 0; w < half_columns; w++) {
                float value =
                    __uint_as_float(w % 2 ? word[w / 2] & 0xffff0000u : word[w / 2] << 16);
                if (of_one) sum[0][w] += value;
                else sum[1][w] += value;
            }
        }
    }
    put_half(s, s.of[0], node, col, sum[0], factor);
    put_half(s, s.of[1], node, col, sum[1], factor);
}

/* The partial sums of a node as dst, then as src: one list, walked twice. Blocks from node_blocks
 * on sum over graphs. */
__global__ void __launch_bounds__(threads_each)
    softmax_sums_kernel(softmax_sum_args s, const uint32_t *start, const uint32_t *rows, int nodes,
                        unsigned node_blocks, partial_sum_args graph, graph_lists lists) {
    wait_for_previous();
    if (blockIdx.x >= node_blocks)
        return sum_graph(graph, lists,
                         (int)((blockIdx.x - node_blocks) * threads_each + threadIdx.x));
    int i = (int)(blockIdx.x * threads_each + threadIdx.x), lanes = s.cols / lane_columns;
    int node = i / lanes, col = i % lanes * lane_columns;
    if (node >= nodes) return;
    uint32_t first = start[2 * node], middle = start[2 * node + 1], last = start[2 * node + 2];
    float top = softmax::lowest, total = 0;
    float4 sum[2] = {};
#pragma unroll 8
    for (uint32_t at = first; at < last; at++) top = fmaxf(top, s.tops[__ldg(rows + at)].x);
    for (uint32_t at = first; at < last; at += ahead) {
        float4 x[ahead];
        float2 of[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (at + k >= last) continue;
            uint32_t row = __ldg(rows + at + k);
            x[k] = *(const float4 *)(s.partials + (size_t)row * s.cols + col);
            of[k] = s.tops[row];
        }
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (at + k >= last) break;
            float by = __expf(of[k].x - top);
            total += by * of[k].y;
            float4 value = {by * x[k].x, by * x[k].y, by * x[k].z, by * x[k].w};
            if (at + k < middle) add_to(&sum[0], value);
            else add_to(&sum[1], value);
        }
    }
    float factor = total > 0 ? 1 / total : 0;
    if (s.to[1] == NULL) add_to(&sum[0], sum[1]);
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (s.to[k] != NULL)
            *(float4 *)(s.to[k] + (size_t)node * s.ld_to + col) =
                float4{factor * sum[k].x, factor * sum[k].y, factor * sum[k].z, factor * sum[k].w};
    if (col > 0) return;
    s.saved[node] = top;
    s.saved[nodes + node] = total;
}

graph_lists lists_of(const partial_sum_args &step) {
    const wf_bundle_table *of = step.of != NULL ? step.of : step.part->bundles[WF_CUT_SHORT];
    return graph_lists{of->graph_segments, step.part->edge_start, step.part->n_graphs};
}
unsigned blocks_of(const partial_sum_args &step, int rows, int threads) {
    return blocks_for((size_t)rows * (size_t)lanes_of(step), (size_t)threads);
}

} // namespace

void node_partial_sums(const partial_sum_args &step) {
    const wf_part *part = step.part;
    if (part->n_nodes == 0) return;
    const wf_bundle_table *of = step.of != NULL ? step.of : part->bundles[WF_CUT_SHORT];
    start_kernel(node_sums_kernel, blocks_of(step, part->n_nodes, threads_each), threads_each, 0,
                 step, of->partial_start, of->partials, part->n_nodes);
}

void graph_segment_sums(const partial_sum_args &step) {
    int graphs = step.part->n_graphs;
    if (graphs == 0) return;
    start_kernel(graph_sums_kernel, blocks_of(step, graphs, graph_threads), graph_threads, 0, step,
                 lists_of(step));
}

void node_half_sums(const half_sum_args &step, const partial_sum_args *graph) {
    const wf_bundle_table *of = step.table != NULL ? step.table : step.part->bundles[WF_CUT_SHORT];
    int nodes = step.part->n_nodes;
    if (nodes == 0) return;
    partial_sum_args none = {};
    graph_lists lists = {};
    unsigned blocks = blocks_for((size_t)nodes * (size_t)(step.cols / half_columns), threads_each);
    unsigned more = 0;
    if (graph != NULL) {
        lists = lists_of(*graph);
        more = blocks_of(*graph, lists.graphs, threads_each);
    }
    start_kernel(half_sums_kernel, blocks + more, threads_each, 0, step, of->partial_start,
                 of->partials, nodes, blocks, graph != NULL ? *graph : none, lists);
}

void node_softmax_sums(const softmax_sum_args &step, const partial_sum_args &graph) {
    int nodes = step.part->n_nodes;
    if (nodes == 0) return;
    unsigned blocks = blocks_for((size_t)nodes * (size_t)(step.cols / lane_columns), threads_each);
    graph_lists lists = lists_of(graph);
    unsigned more = blocks_of(graph, lists.graphs, threads_each);
    start_kernel(softmax_sums_kernel, blocks + more, threads_each, 0, step,
                 step.table->partial_start, step.table->partials, nodes, blocks, graph, lists);
}

} // namespace wf_gpu
