/* edge_passes: sums over the edges of nodes, softmax over messages, small passes over rows.
 *
 * All are bound by bandwidth: a warp reads a row of values, neighbouring lanes neighbouring
 * columns. Sums towards nodes walk the table of dense blocks. The edges that enter node i of a
 * block are n_src neighbouring rows, those that leave node j are n_src rows apart. The blocks of
 * the node's graph are tried in order (C1). */
#include "models/cuda/gmn_edges/edge_passes.cuh"

#include <math.h>

namespace wf_gpu {
namespace {

struct float_quad {
    float x[4];
};
__device__ inline float_quad load(const float *from) {
    float4 v = *(const float4 *)from;
    return float_quad{{v.x, v.y, v.z, v.w}};
}
__device__ inline void store(float *to, const float_quad &v) {
    *(float4 *)to = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
}

/* --- edges of a node -------------------------------------------------------------------------- */
/* The blocks of a graph and their position in the part. */
struct block_table {
    const wf_batch_block *blocks;
    int count;
    size_t first_node, first_edge;
    const uint32_t *node_graph, *edge_graph;

    __device__ size_t edge(int b) const { return blocks[b].edge0 - first_edge; }
    /* The number of the part's first graph. */
    __device__ int first_graph() const { return blocks[0].graph - (int)edge_graph[edge(0)]; }
    __device__ int first_block(int graph) const {
        int low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (blocks[middle].graph < graph) low = middle + 1;
            else high = middle;
        }
        return low;
    }
};
block_table table_of(const wf_part *part) {
    return block_table{part->blocks,     part->n_blocks,   part->first_node,
                       part->first_edge, part->node_graph, part->edge_graph};
}

/* Rows first, first + stride ... of the edges that enter or leave a node in one block. */
struct edge_rows {
    size_t first;
    int count, stride;
};

/* Calls f.in(edges) and f.out(edges) for each block of the node's graph that has the node at that
 * end. */
template <class F> __device__ void walk_node(const block_table &table, int node, F &f) {
    if (table.count == 0) return;
    int graph = table.first_graph() + (int)table.node_graph[node];
    size_t place = table.first_node + (size_t)node;
    for (int b = table.first_block(graph); b < table.count; b++) {
        const wf_batch_block &block = table.blocks[b];
        if (block.graph != graph) break;
        size_t i = place - block.dst0, j = place - block.src0;
        if (place >= block.dst0 && i < (size_t)block.n_dst)
            f.in(edge_rows{table.edge(b) + i * (size_t)block.n_src, block.n_src, 1});
        if (place >= block.src0 && j < (size_t)block.n_src)
            f.out(edge_rows{table.edge(b) + j, block.n_dst, block.n_src});
    }
}

struct node_gather {
    const float *in_values, *out_values, *weight_in, *weight_out;
    int ld, col;
    float_quad in_sum, out_sum;

    __device__ void add(const float *values, const float *weight, const edge_rows &e,
                        float_quad &sum) const {
        const float *row = values + e.first * ld + col;
        size_t step = (size_t)e.stride * ld;
#pragma unroll 4
        for (int k = 0; k < e.count; k++) {
            float4 v = *(const float4 *)(row + (size_t)k * step);
            float w = weight == NULL ? 1 : weight[e.first + (size_t)k * e.stride];
            sum.x[0] += w * v.x, sum.x[1] += w * v.y;
            sum.x[2] += w * v.z, sum.x[3] += w * v.w;
        }
    }
    __device__ void in(const edge_rows &e) {
        if (in_values != NULL) add(in_values, weight_in, e, in_sum);
    }
    __device__ void out(const edge_rows &e) {
        if (out_values != NULL) add(out_values, weight_out, e, out_sum);
    }
};

/* A warp takes a node and 128 columns, 4 a lane. */
struct node_sum_warp {
    node_sum_args s;
    block_table table;
    const float *degree;
    int tiles;

    __device__ void put(float *to, int node, int col, const float_quad &sum, float factor) const {
        float *row = to + (size_t)node * s.ld_to;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (col + i < s.cols) row[col + i] = (s.add ? row[col + i] : 0) + factor * sum.x[i];
    }
    __device__ void operator()(int item, int lane) const {
        int node = item / tiles, col = item % tiles * 128 + lane * 4;
        if (col >= s.cols) return;
        node_gather gather = {s.in, s.out, s.weight_in, s.weight_out, s.ld, col, {}, {}};
        walk_node(table, node, gather);
        float factor = 1;
        if (degree != NULL) factor = degree[node] > 0 ? 1 / degree[node] : 0;
        if (s.to_in == s.to_out) {
            for (int i = 0; i < 4; i++) gather.in_sum.x[i] += gather.out_sum.x[i];
            put(s.to_in, node, col, gather.in_sum, factor);
            return;
        }
        if (s.to_in != NULL) put(s.to_in, node, col, gather.in_sum, factor);
        if (s.to_out != NULL) put(s.to_out, node, col, gather.out_sum, factor);
    }
};

/* --- softmax over the messages of a node ------------------------------------------------------ */
struct logit_row {
    direction d;
    __device__ void operator()(int row, int lane) const {
        float logit = warp_dot(d.y + (size_t)row * d.ld, d.v, d.cols, lane);
        if (lane == 0) d.weight[row] = logit;
    }
};

struct softmax_scan {
    const float *logit_in, *logit_out;
    int lane;
    bool summing;
    float max, total; /* of this lane's messages */

    __device__ void scan(const float *logit, const edge_rows &e) {
        for (int k = lane; k < e.count; k += 32) {
            float x = logit[e.first + (size_t)k * e.stride];
            if (summing) total += expf(x - max);
            else max = fmaxf(max, x);
        }
    }
    __device__ void in(const edge_rows &e) { scan(logit_in, e); }
    __device__ void out(const edge_rows &e) { scan(logit_out, e); }
};

struct softmax_node {
    block_table table;
    const float *logit_in, *logit_out;
    float *max, *total;
    __device__ void operator()(int node, int lane) const {
        softmax_scan scan = {logit_in, logit_out, lane, false, -INFINITY, 0};
        walk_node(table, node, scan);
        scan.max = warp_max(scan.max);
        scan.summing = true;
        walk_node(table, node, scan);
        scan.total = warp_sum(scan.total);
        if (lane == 0) {
            max[node] = scan.max;
            total[node] = scan.total;
        }
    }
};

/* Logit to weight, in place. */
struct softmax_edge {
    float *weight;
    const uint32_t *receiver;
    const float *max, *total;
    __device__ void operator()(int row, int) const {
        uint32_t node = receiver[row];
        weight[row] = expf(weight[row] - max[node]) / total[node];
    }
};

struct softmax_back_row {
    direction d;
    const float *max, *total, *dsum, *along;
    int ld_dsum;
    __device__ void operator()(int row, int lane) const {
        const float *y = d.y + (size_t)row * d.ld;
        uint32_t node = d.receiver[row];
        float logit = warp_dot(y, d.v, d.cols, lane);
        float push = warp_dot(y, dsum + (size_t)node * ld_dsum, d.cols, lane);
        if (lane != 0) return;
        float weight = expf(logit - max[node]) / total[node];
        d.weight[row] = weight;
        d.dlogit[row] = weight * (push - along[node]);
    }
};

struct row_dot {
    const float *a, *b;
    int ld, cols;
    float *along;
    bool add;
    __device__ void operator()(int row, int lane) const {
        float dot = warp_dot(a + (size_t)row * ld, b + (size_t)row * ld, cols, lane);
        if (lane == 0) along[row] = dot + (add ? along[row] : 0);
    }
};

/* --- passes ----------------------------------------------------------------------------------- */
/* A thread has four columns: tables, messages and their gradients are aligned and padded. */
struct table_activation {
    const float *p;
    int cols;
    into_activation to;
    __device__ void operator()(int row, int quad) const {
        int col = 4 * quad;
        size_t at = (size_t)row * to.ld + col;
        float_quad x = load(p + at), slope;
        float_quad a = load(to.a + (size_t)to.index_a[row] * to.lda + col);
        float_quad b = load(to.b + (size_t)to.index_b[row] * to.ldb + col);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x.x[i] = accurate_activation(to.act, x.x[i] + a.x[i] + b.x[i], &slope.x[i]);
            if (col + i >= cols) x.x[i] = slope.x[i] = 0;
        }
        store(to.y + at, x);
        if (to.slope != NULL) store(to.slope + at, slope);
    }
};

template <int count> struct slope_row {
    float *slope;
    int ld, ld_dsum;
    gradient_source first, second;

    __device__ static void add_source(const gradient_source &p, int row, int col, int ld_dsum,
                                      float_quad &sum) {
        uint32_t node = p.receiver[row];
        float weight = 1;
        if (p.weight != NULL) weight = p.weight[row];
        else if (p.degree != NULL) weight = p.degree[node] > 0 ? 1 / p.degree[node] : 0;
        float_quad d = load(p.dsum + (size_t)node * ld_dsum + col);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.x[i] += weight * d.x[i];
        if (p.dlogit == NULL) return;
        float_quad v = load(p.v + col);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.x[i] += p.dlogit[row] * v.x[i];
    }
    __device__ void operator()(int row, int quad) const {
        float *at = slope + (size_t)row * ld + 4 * quad;
        float_quad sum = {}, s = load(at);
        add_source(first, row, 4 * quad, ld_dsum, sum);
        if (count > 1) add_source(second, row, 4 * quad, ld_dsum, sum);
#pragma unroll
        for (int i = 0; i < 4; i++) s.x[i] *= sum.x[i];
        store(at, s);
    }
};

struct gate_row {
    const float *x;
    float *out;
    int cols, ld;
    const float *gate;
    int ld_gate;
    const uint32_t *graph;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        out[at] = col < cols ? (1 + gate[(size_t)graph[row] * ld_gate + col]) * x[at] : 0;
    }
};

struct add_quad {
    float4 *out;
    const float4 *x;
    __device__ void operator()(int row, int) const {
        float4 a = out[row], b = x[row];
        out[row] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
};

} // namespace

void activate_with_tables(const float *p, int rows, int cols, const into_activation &to) {
    each(table_activation{p, cols, to}, rows, to.ld / 4);
}

void node_sums(const node_sum_args &step) {
    int tiles = (step.cols + 127) / 128;
    each_warp(node_sum_warp{step, table_of(step.part), step.degree, tiles},
              step.part->n_nodes * tiles);
}

void softmax_weights(const wf_part *part, const direction &in, const direction &out, float *saved) {
    float *max = saved, *total = saved + part->n_nodes;
    each_warp(logit_row{in}, part->n_edges);
    each_warp(logit_row{out}, part->n_edges);
    each_warp(softmax_node{table_of(part), in.weight, out.weight, max, total}, part->n_nodes);
    each(softmax_edge{in.weight, in.receiver, max, total}, part->n_edges, 1);
    each(softmax_edge{out.weight, out.receiver, max, total}, part->n_edges, 1);
}

void softmax_backward(const wf_part *part, const direction &d, const float *saved,
                      const float *dsum, int ld_dsum, const float *along) {
    each_warp(softmax_back_row{d, saved, saved + part->n_nodes, dsum, along, ld_dsum},
              part->n_edges);
}

void row_dots(const float *a, const float *b, int ld, int rows, int cols, float *along, bool add) {
    each_warp(row_dot{a, b, ld, cols, along, add}, rows);
}

void slopes_to_gradients(float *slope, int rows, int ld, const gradient_source *sources, int count,
                         int ld_dsum) {
    /* Padding of slopes and tensors is zero (T1) and stays zero. */
    if (count == 1) each(slope_row<1>{slope, ld, ld_dsum, sources[0], sources[0]}, rows, ld / 4);
    else each(slope_row<2>{slope, ld, ld_dsum, sources[0], sources[1]}, rows, ld / 4);
}

void gate_rows(const float *x, float *out, int rows, int cols, int ld, const float *gate,
               int ld_gate, const uint32_t *graph) {
    each(gate_row{x, out, cols, ld, gate, ld_gate, graph}, rows, ld);
}

void add_rows(float *out, const float *x, size_t count) {
    each(add_quad{(float4 *)out, (const float4 *)x}, (int)(count / 4), 1);
}

} // namespace wf_gpu
