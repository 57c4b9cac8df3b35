/* lean_nodes: the nodes of a lean block at width 64, in one launch forward and one backward
 * (formulas: wf_lean_nodes in tensor/tape.h; node_tile.cuh).
 *
 *   forward    f = to_dst forward'   b = to_src backward'
 *              x = hb w_h' + f w_f' + b w_b' + table[g]   y = act(x)
 *              q = y w' + c   h' = h + (1 + gate) q
 *   backward   dq = (1 + gate) dh'   dx = (dq w) act'(x)   dhb = dx w_h
 *              df = dx w_f   dto_dst = df forward   (b alike)
 *   kept       of a node: f and b, y and act'(x), q in float; backward puts dx where act'(x) was,
 *              and dq, df and db beside. Products of weight gradients and sums over graphs read
 *              them later (row_products/gradient_sums.cuh)
 *   sums       with partials, those that the edges left are added up here first, and stay where the
 *              sums would be, in bf16; hb is in bf16 too
 *   beside     on a side stream: the graphs' part of the block neither waits for it nor it for that
 *   flops      98,304 a node forward and as many backward, without weight gradients
 *   bytes      of a node: 2,800 forward, 2,400 backward; with partials 2,200 forward and these
 * Not measured yet. */
#include "models/cuda/gmn_lean/node_tile.cuh"
#include "tensor/cuda/row_products/sequence_ops.cuh"

namespace wf_gpu {
namespace {

using namespace lean::node;
using namespace mma;

enum { hidden = 2 * width, messages = 2 * width, hidden_sixteens = hidden / 16 };

/* What forward keeps and backward adds, one after the other (wf_lean_nodes allocates it). */
struct kept_nodes {
    enum { words = 11 };                                 /* of two bytes, a node and column */
    uint16_t *message[2], *y, *slope, *dq, *dmessage[2]; /* slope: fp16, then dx */
    float *q;
    kept_nodes(void *memory, int nodes) {
        size_t count = (size_t)nodes * width;
        q = (float *)memory;
        uint16_t *at = (uint16_t *)(q + count);
        for (uint16_t **part : {&message[0], &message[1], &dq, &dmessage[0], &dmessage[1]})
            *part = at, at += count;
        y = at, at += 2 * count;
        slope = at;
    }
};

struct lean_nodes {
    const float *h, *hb, *to[2], *table, *modulation; /* modulation: the gate */
    int ld_table, ld_modulation, nodes;
    const uint32_t *graph;
    weight_rows messages[2], first[3], last; /* first: of hb, f, b */
    const float *c;
    bool keep;
    partial_lists lists; /* partials NULL: sums and hb are there, in float; else hb in bf16 */
    kept_nodes kept;
    float *out;
    /* backward; NULL: not wanted */
    const float *dh;
    float *dhb, *dto[2];
    bool set_dhb, set_dto[2]; /* else add */
    explicit lean_nodes(const kept_nodes &places) : lists(), kept(places) {}
};

/* The weights in shared memory: six panels, then c. */
enum {
    each_panel = (int)panel_bytes(width, 2 * width),
    panels_bytes = 6 * each_panel + width * (int)sizeof(float)
};
__device__ inline panel place_of_panel(int index, int rows) {
    return panel{shared_address(shared) + (uint32_t)(index * each_panel), rows};
}
__device__ inline panel message_panel(int way) { return place_of_panel(way, width); }
__device__ inline panel first_panel(int operand) { return place_of_panel(2 + operand, hidden); }
__device__ inline panel last_panel() { return place_of_panel(5, width); }
__device__ inline float *last_bias() { return (float *)(shared + 6 * each_panel); }

__device__ inline void stage(const lean_nodes &p) {
#pragma unroll
    for (int k = 0; k < 2; k++) stage_panel(message_panel(k), 0, p.messages[k], width, messages);
#pragma unroll
    for (int k = 0; k < 3; k++) stage_panel(first_panel(k), 0, p.first[k], hidden, width);
    stage_panel(last_panel(), 0, p.last, width, hidden);
    for (int i = (int)threadIdx.x; i < width; i += threads) last_bias()[i] = p.c[i];
}

/* 64 columns of x, and from them y and the slopes. */
template <int Act>
__device__ inline void
activate_strip(fragment (&y)[hidden_sixteens], const lean_nodes &p, const lane_nodes &r, int strip,
               const fragment (&hb)[sixteens], const fragment (&message)[2][sixteens],
               const float *(&table)[2]) {
    float acc[strip_tiles][4];
    begin<group_products>();
    forward_mma<group_products>(acc, hb, first_panel(0), width * strip, 0, true);
#pragma unroll
    for (int k = 0; k < 2; k++)
        forward_mma<group_products>(acc, message[k], first_panel(1 + k), width * strip, 0, false);
    finish<group_products>();
    settle(acc);
#pragma unroll
    for (int j = 0; j < sixteens; j++) {
        float4 value[2], slope[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 x = lean::plus(four_of(acc, j, k),
                                  *(const float4 *)(table[k] + width * strip + 16 * j));
            value[k].x = quick_activation(Act, x.x, &slope[k].x);
            value[k].y = quick_activation(Act, x.y, &slope[k].y);
            value[k].z = quick_activation(Act, x.z, &slope[k].z);
            value[k].w = quick_activation(Act, x.w, &slope[k].w);
        }
        int sixteen = sixteens * strip + j;
        y[sixteen] = fragment_of(value[0], value[1]);
        if (!p.keep) continue;
        store_words(p.kept.y, hidden, r, sixteen, y[sixteen]);
        store_words(
            p.kept.slope, hidden, r, sixteen,
            fragment{{pack_half(slope[0].x, slope[0].y), pack_half(slope[1].x, slope[1].y),
                      pack_half(slope[0].z, slope[0].w), pack_half(slope[1].z, slope[1].w)}});
    }
}

template <int Act, bool Slots> __device__ inline void forward_tile(const lean_nodes &p, int tile) {
    lane_nodes r(tile, p.nodes);
    if (Slots) {
        int first = tile * tile_rows + (int)(threadIdx.x % 128) / 32 * 16;
        sum_lists<messages>(p.lists, first);
    }
    fragment hb[sixteens], message[2][sixteens], y[hidden_sixteens];
    const float *table[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        table[k] = p.table + (size_t)p.graph[r.row[k]] * p.ld_table + r.column;
    if (Slots)
#pragma unroll
        for (int j = 0; j < sixteens; j++) hb[j] = load_words((const uint16_t *)p.hb, width, r, j);
    else load_operands(hb, p.hb, width, 0, r);
#pragma unroll
    for (int way = 0; way < 2; way++) {
        fragment sums[messages / 16];
        float acc[strip_tiles][4];
        if (Slots)
#pragma unroll
            for (int j = 0; j < messages / 16; j++)
                sums[j] = load_words(p.lists.to[way], messages, r, j);
        else load_operands(sums, p.to[way], messages, 0, r);
        multiply(acc, sums, message_panel(way), 0);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            message[way][j] = fragment_of(acc[2 * j], acc[2 * j + 1]);
            if (p.keep) store_words(p.kept.message[way], width, r, j, message[way][j]);
        }
    }
#pragma unroll
    for (int strip = 0; strip < 2; strip++) activate_strip<Act>(y, p, r, strip, hb, message, table);
    const float *gate[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        gate[k] = p.modulation + (size_t)p.graph[r.row[k]] * p.ld_modulation + r.column;
    float acc[strip_tiles][4];
    multiply(acc, y, last_panel(), 0);
#pragma unroll
    for (int j = 0; j < sixteens; j++) {
        float4 c = *(const float4 *)(last_bias() + 16 * j + r.column);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            size_t at = r.place(k, width) + 16 * j;
            float4 by = *(const float4 *)(gate[k] + 16 * j), old = *(const float4 *)(p.h + at);
            float4 q = lean::plus(four_of(acc, j, k), c);
            if (!r.there[k]) continue;
            if (p.keep) *(float4 *)(p.kept.q + at) = q;
            *(float4 *)(p.out + at) =
                make_float4(old.x + (1 + by.x) * q.x, old.y + (1 + by.y) * q.y,
                            old.z + (1 + by.z) * q.z, old.w + (1 + by.w) * q.w);
        }
    }
}

template <int Act, bool Slots>
__global__ void __launch_bounds__(threads, 1)
    lean_nodes_kernel(const __grid_constant__ lean_nodes p) {
    stage(p);
    wait_for_previous();
    __syncthreads();
    for (int tile = first_tile(); tile * tile_rows < p.nodes; tile += tile_step())
        forward_tile<Act, Slots>(p, tile);
}

/* --- backward --------------------------------------------------------------------------------- */
/* Sums of 64 columns into a matrix of floats, from column `first` on. */
__device__ inline void put_strip(float *to, int ld, int first, bool set, const lane_nodes &r,
                                 const float (&acc)[strip_tiles][4]) {
#pragma unroll
    for (int j = 0; j < sixteens; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 *at = (float4 *)(to + r.place(k, ld) + first + 16 * j);
            float4 x = four_of(acc, j, k);
            if (r.there[k]) *at = set ? x : lean::plus(*at, x);
        }
}

__device__ inline void backward_tile(const lean_nodes &p, int tile) {
    lane_nodes r(tile, p.nodes);
    fragment dq[sixteens], dx[hidden_sixteens];
    float acc[strip_tiles][4];
    {
        const float *gate[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            gate[k] = p.modulation + (size_t)p.graph[r.row[k]] * p.ld_modulation + r.column;
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 v[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 by = *(const float4 *)(gate[k] + 16 * j);
                float4 d = *(const float4 *)(p.dh + r.place(k, width) + 16 * j);
                v[k] = make_float4((1 + by.x) * d.x, (1 + by.y) * d.y, (1 + by.z) * d.z,
                                   (1 + by.w) * d.w);
            }
            dq[j] = fragment_of(v[0], v[1]);
            store_words(p.kept.dq, width, r, j, dq[j]);
        }
    }
#pragma unroll
    for (int strip = 0; strip < 2; strip++) {
        fragment slope[sixteens];
#pragma unroll
        for (int j = 0; j < sixteens; j++)
            slope[j] = load_words(p.kept.slope, hidden, r, sixteens * strip + j);
        multiply_back(acc, dq, last_panel(), width * strip);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 v[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float2 low = unpack_half(slope[j].r[k]), high = unpack_half(slope[j].r[2 + k]);
                v[k] = lean::times(four_of(acc, j, k), make_float4(low.x, low.y, high.x, high.y));
            }
            int sixteen = sixteens * strip + j;
            dx[sixteen] = fragment_of(v[0], v[1]);
            store_words(p.kept.slope, hidden, r, sixteen, dx[sixteen]);
        }
    }
    multiply_back(acc, dx, first_panel(0), 0);
    put_strip(p.dhb, width, 0, p.set_dhb, r, acc);
#pragma unroll
    for (int way = 0; way < 2; way++) {
        fragment dmessage[sixteens];
        multiply_back(acc, dx, first_panel(1 + way), 0);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            dmessage[j] = fragment_of(acc[2 * j], acc[2 * j + 1]);
            store_words(p.kept.dmessage[way], width, r, j, dmessage[j]);
        }
#pragma unroll
        for (int strip = 0; strip < 2; strip++) {
            multiply_back(acc, dmessage, message_panel(way), width * strip);
            put_strip(p.dto[way], messages, width * strip, p.set_dto[way], r, acc);
        }
    }
}

__global__ void __launch_bounds__(threads, 1)
    lean_nodes_back_kernel(const __grid_constant__ lean_nodes p) {
    stage(p);
    wait_for_previous();
    __syncthreads();
    for (int tile = first_tile(); tile * tile_rows < p.nodes; tile += tile_step())
        backward_tile(p, tile);
}

/* --- launches --------------------------------------------------------------------------------- */
enum input {
    in_h,
    in_hb,
    in_dst,
    in_src,
    in_forward,
    in_backward,
    in_wh,
    in_wf,
    in_wb,
    in_table,
    in_w,
    in_c,
    in_modulation,
    in_partials
};

lean_nodes nodes_of(const wf_op *op) {
    wf_tensor *const *in = op->in;
    lean_nodes p(kept_nodes(op->saved, in[in_h]->rows));
    p.h = data_of(in[in_h]), p.nodes = in[in_h]->rows, p.hb = data_of(in[in_hb]);
    p.table = data_of(in[in_table]), p.ld_table = in[in_table]->ld;
    p.modulation = data_of(in[in_modulation]) + op->column;
    p.ld_modulation = in[in_modulation]->ld;
    p.graph = op->map;
    for (int k = 0; k < 2; k++) {
        p.to[k] = data_of(in[in_dst + k]);
        p.messages[k] = weight_rows_of(in[in_forward + k]);
    }
    for (int k = 0; k < 3; k++) p.first[k] = weight_rows_of(in[in_wh + k]);
    p.last = weight_rows_of(in[in_w]), p.c = data_of(in[in_c]);
    p.keep = op->saved != NULL;
    if (in[in_partials] != NULL) {
        const wf_bundle_table *table = op->part->bundles[WF_CUT_LONG_4]; /* lean_forward.cu */
        p.lists = partial_lists{(const uint16_t *)data_of(in[in_partials]),
                                table->partial_start,
                                table->partials,
                                op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL,
                                {(uint16_t *)data_of(in[in_dst]), (uint16_t *)data_of(in[in_src])},
                                p.nodes};
    }
    p.out = data_of(op->out[0]);
    return p;
}
template <class T> range range_of(const T *data, size_t count) {
    return range{(const char *)data, (const char *)(data + count)};
}

/* Weight gradients from kept operands, and sums over graphs. */
bool add_gradients(const wf_op *op, const lean_nodes &p) {
    wf_tensor *const *in = op->in;
    size_t nodes = (size_t)p.nodes;
    weight_gradient entry = {};
    entry.rows = p.nodes, entry.half_dy = true;
    auto add = [&](const uint16_t *dy, int m, const void *x, int n, bool half, int weight,
                   int bias) {
        entry.dy = (const float *)dy, entry.m = entry.ldy = m;
        entry.x = (const float *)x, entry.n = entry.ldx = n, entry.half_x = half;
        size_t bytes = nodes * (size_t)n * (half ? sizeof(uint16_t) : sizeof(float));
        range sources[2] = {range_of(dy, nodes * (size_t)m), range_of((const char *)x, bytes)};
        return add_weight_of(entry, sources, in[weight], bias < 0 ? NULL : in[bias]);
    };
    const uint16_t *dx = p.kept.slope;
    bool partials = p.lists.partials != NULL;
    if (!add(p.kept.dq, width, p.kept.y, hidden, true, in_w, in_c) ||
        !add(dx, hidden, p.hb, width, partials, in_wh, -1) ||
        !add(dx, hidden, p.kept.message[0], width, true, in_wf, -1) ||
        !add(dx, hidden, p.kept.message[1], width, true, in_wb, -1) ||
        !add(p.kept.dmessage[0], width, p.to[0], messages, partials, in_forward, -1) ||
        !add(p.kept.dmessage[1], width, p.to[1], messages, partials, in_backward, -1))
        return false;
    table_sum sum = {};
    sum.rows = p.nodes, sum.map = op->map;
    if (wanted(in[in_table])) {
        const wf_tensor *table = in[in_table];
        sum.x = (const float *)dx, sum.ldx = sum.cols = hidden, sum.half_x = true;
        sum.targets = table->rows;
        sum.to = sum_target{grad_of(table), table->ld, cancel_zero(table), false};
        if (!add_sum(sum, {range_of(dx, nodes * hidden)})) return false;
    }
    if (!wanted(in[in_modulation])) return true;
    const wf_tensor *modulation = in[in_modulation];
    sum.x = p.dh, sum.y = p.kept.q, sum.half_x = false;
    sum.ldx = sum.ldy = sum.cols = width, sum.targets = modulation->rows;
    sum.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    return add_sum(sum, {range_of(p.dh, nodes * width), range_of(p.kept.q, nodes * width)});
}

} // namespace

bool lean_nodes_fits(const wf_op *op) {
    wf_tensor *const *in = op->in;
    const wf_tensor *modulation = in[in_modulation];
    bool rows = in[in_h]->rows > 0 && in[in_h]->cols == width && in[in_dst]->cols == messages;
    for (int k : {in_h, in_hb, in_dst, in_src}) rows = rows && in[k]->ld == in[k]->cols;
    for (int k : {in_forward, in_backward}) rows = rows && staged(in[k], width, messages);
    for (int k : {in_wh, in_wf, in_wb}) rows = rows && staged(in[k], hidden, width);
    return rows && staged(in[in_w], width, hidden) && plain_rows(in[in_table]) &&
           op->column % 4 == 0 && plain_rows(modulation) &&
           (op->act == WF_TAPE_ACT_GELU || op->act == WF_TAPE_ACT_SILU) &&
           most_shared_bytes() >= panels_bytes;
}

namespace {
template <bool Slots> void start_forward(const lean_nodes &p, int act) {
    auto kernel = act == WF_TAPE_ACT_GELU ? lean_nodes_kernel<WF_TAPE_ACT_GELU, Slots>
                                          : lean_nodes_kernel<WF_TAPE_ACT_SILU, Slots>;
    start_kernel(kernel, blocks_of(p.nodes), threads, panels_bytes, p);
}
} // namespace

bool lean_nodes_forward(const wf_op *op, wf_arena *) {
    lean_nodes p = nodes_of(op);
    bool partials = p.lists.partials != NULL;
    std::vector<range> reads, writes = {data_range(op->out[0])};
    for (int k : {in_h, in_hb, in_table, in_modulation}) reads.push_back(data_range(op->in[k]));
    for (int k : {in_dst, in_src}) (partials ? writes : reads).push_back(data_range(op->in[k]));
    if (partials) reads.push_back(data_range(op->in[in_partials]));
    if (p.keep)
        writes.push_back(
            range_of((const uint16_t *)op->saved, (size_t)p.nodes * width * kept_nodes::words));
    launch_scope scope(side_for(reads, writes), reads, writes);
    if (partials) start_forward<true>(p, op->act);
    else start_forward<false>(p, op->act);
    return launched();
}

bool lean_nodes_backward(const wf_op *op, wf_arena *) {
    wf_tensor *const *in = op->in;
    lean_nodes p = nodes_of(op);
    p.dh = grad_of(op->out[0]);
    p.dhb = grad_of(in[in_hb]);
    p.set_dhb = cancel_zero(in[in_hb]);
    for (int k = 0; k < 2; k++) {
        p.dto[k] = grad_of(in[in_dst + k]);
        p.set_dto[k] = cancel_zero(in[in_dst + k]);
    }
    size_t count = (size_t)p.nodes * width;
    std::vector<range> reads = {grad_range(op->out[0]), data_range(in[in_modulation])};
    std::vector<range> writes = {grad_range(in[in_hb]), grad_range(in[in_dst]),
                                 grad_range(in[in_src]),
                                 /* all behind q */
                                 range_of(p.kept.message[0], (kept_nodes::words - 2) * count)};
    {
        launch_scope scope(side_for(reads, writes), reads, writes);
        start_kernel(lean_nodes_back_kernel, blocks_of(p.nodes), threads, panels_bytes, p);
    }
    return launched() && add_gradients(op, p);
}

} // namespace wf_gpu
