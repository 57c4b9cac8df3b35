/* octets_cuda: sums of slots. A warp takes a node (a graph) and 128 columns, four a lane, and walks the list in order;
 * rows are loaded eight ahead, so the latency of a list (3 to 20 rows) is paid about once.
 * Bytes: every listed row once, 4 * cols each, which come from L2 when the edge kernel has just left them. */
#include "tensor/cuda/octets_cuda.cuh"

namespace wf_gpu {
namespace {

enum { ahead = 8, lane_columns = 4, warp_columns = 32 * lane_columns };

__device__ inline void add_to(float4 *sum, float4 x) {
    sum->x += x.x;
    sum->y += x.y;
    sum->z += x.z;
    sum->w += x.w;
}

/* Rows row(first) .. row(last - 1) of columns col .. col + 3, added in order. */
template <class Row>
__device__ float4 list_sum(const float *slots, int ld, int col, uint32_t first, uint32_t last,
                           Row row) {
    float4 sum = {0, 0, 0, 0};
    for (uint32_t at = first; at < last; at += ahead) {
        float4 x[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (at + k < last) x[k] = *(const float4 *)(slots + (size_t)row(at + k) * ld + col);
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (at + k < last) add_to(&sum, x[k]);
    }
    return sum;
}

/* Columns from cols on are zeros, or stay. */
__device__ inline void put_sum(const slot_sum_step &s, int row, int col, float4 sum, float factor) {
    float value[lane_columns] = {sum.x, sum.y, sum.z, sum.w};
    float *to = s.to + (size_t)row * s.ld_to + col;
#pragma unroll
    for (int k = 0; k < lane_columns; k++) {
        bool inside = col + k < s.cols;
        if (s.set && col + k < s.ld_to) to[k] = inside ? value[k] * factor : 0;
        else if (inside) to[k] += value[k] * factor;
    }
}

/* Slots may be narrower than the target's padding. */
__device__ inline bool has_columns(const slot_sum_step &s, int col) {
    return col < s.cols && col + lane_columns <= s.ld;
}

__global__ void __launch_bounds__(threads_each)
    node_sums_kernel(slot_sum_step s, const uint32_t *start, const uint32_t *rows, int nodes) {
    int node = (int)(blockIdx.x * (threads_each / 32) + threadIdx.x / 32);
    int col = (int)(blockIdx.y * warp_columns + threadIdx.x % 32 * lane_columns);
    if (node >= nodes || col >= s.ld_to) return;
    uint32_t first = start[2 * node + (s.ends == slots_as_src)];
    uint32_t last = start[2 * node + (s.ends == slots_as_dst ? 1 : 2)];
    float4 sum = {0, 0, 0, 0};
    if (has_columns(s, col))
        sum = list_sum(s.slots, s.ld, col, first, last,
                       [=](uint32_t at) { return __ldg(rows + at); });
    float degree = s.degree == NULL ? 1 : s.degree[node];
    put_sum(s, node, col, sum, degree > 0 ? 1 / degree : 0);
}

__global__ void __launch_bounds__(threads_each)
    graph_sums_kernel(slot_sum_step s, const uint32_t *runs, const uint32_t *edges, int graphs) {
    int graph = (int)(blockIdx.x * (threads_each / 32) + threadIdx.x / 32);
    int col = (int)(blockIdx.y * warp_columns + threadIdx.x % 32 * lane_columns);
    if (graph >= graphs || col >= s.ld_to) return;
    float4 sum = {0, 0, 0, 0};
    if (has_columns(s, col))
        sum = list_sum(s.slots, s.ld, col, runs[graph], runs[graph + 1],
                       [](uint32_t at) { return at; });
    float count = s.mean ? (float)(edges[graph + 1] - edges[graph]) : 1;
    put_sum(s, graph, col, sum, count > 0 ? 1 / count : 0);
}

/* Eight columns a lane; cols / 8 neighbouring lanes share a node. */
__global__ void __launch_bounds__(threads_each)
    half_sums_kernel(half_sum_step s, const uint32_t *start, const uint32_t *rows, int nodes) {
    half_sum_target t = blockIdx.y == 0 ? s.of[0] : s.of[1];
    int lanes = s.cols / 8, i = (int)(blockIdx.x * threads_each + threadIdx.x);
    int node = i / lanes, col = i % lanes * 8;
    if (node >= nodes || t.to == NULL) return;
    uint32_t first = start[2 * node + (t.ends == slots_as_src)];
    uint32_t last = start[2 * node + (t.ends == slots_as_dst ? 1 : 2)];
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (uint32_t at = first; at < last; at += ahead) {
        uint4 x[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (at + k < last)
                x[k] = *(const uint4 *)(t.slots + (size_t)__ldg(rows + at + k) * s.cols + col);
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (at + k >= last) break;
            uint32_t word[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                sum[2 * w] += __uint_as_float(word[w] << 16);
                sum[2 * w + 1] += __uint_as_float(word[w] & 0xffff0000u);
            }
        }
    }
    float degree = s.degree == NULL ? 1 : s.degree[node], factor = degree > 0 ? 1 / degree : 0;
    float4 *to = (float4 *)(t.to + (size_t)node * s.ld_to + col);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float4 was = s.set ? float4{0, 0, 0, 0} : to[k];
        to[k] = float4{was.x + factor * sum[4 * k], was.y + factor * sum[4 * k + 1],
                       was.z + factor * sum[4 * k + 2], was.w + factor * sum[4 * k + 3]};
    }
}

dim3 sums_grid(int rows, int cols) {
    return dim3(blocks_for((size_t)rows, threads_each / 32),
                blocks_for((size_t)cols, warp_columns));
}

} // namespace

void node_slot_sums(const slot_sum_step &step) {
    const wf_part *part = step.part;
    if (part->n_nodes == 0) return;
    const wf_octets *of = step.of != NULL ? step.of : part->octets;
    int cols = step.set ? step.ld_to : step.cols;
    node_sums_kernel<<<sums_grid(part->n_nodes, cols), threads_each, 0, stream()>>>(
        step, of->slot_start, of->slots, part->n_nodes);
}

void graph_run_sums(const slot_sum_step &step) {
    const wf_part *part = step.part;
    if (part->n_graphs == 0) return;
    const wf_octets *of = step.of != NULL ? step.of : part->octets;
    int cols = step.set ? step.ld_to : step.cols;
    graph_sums_kernel<<<sums_grid(part->n_graphs, cols), threads_each, 0, stream()>>>(
        step, of->graph_runs, part->edge_start, part->n_graphs);
}

void node_half_sums(const half_sum_step &step) {
    const wf_octets *of = step.part->octets;
    int nodes = step.part->n_nodes;
    if (nodes == 0) return;
    dim3 grid(blocks_for((size_t)nodes * (size_t)(step.cols / 8), threads_each),
              step.of[1].to == NULL ? 1 : 2);
    half_sums_kernel<<<grid, threads_each, 0, stream()>>>(step, of->slot_start, of->slots, nodes);
}

} // namespace wf_gpu
