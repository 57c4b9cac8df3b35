/* node_tables: what the nodes of a lean block are for its edges, at width 64, in one launch forward
 * and one backward (formulas: wf_node_tables in tensor/tape.h; node_tile.cuh).
 *
 *   forward    hb = LN(h) (1 + scale) + shift   i = hb first' + graph[g]   j = hb second'
 *   backward   dhb = di first + dj second + dmean / nodes + dhb   v = dhb (1 + scale)
 *              dh = [dh +] rho (v - mean v - h^ mean(v h^)), h^ = LN(h), 1 / rho its deviation
 *   sums       with partials, backward adds up those that the edges left; they stay in bf16 where
 *              the gradients of i and j would be. hb is in bf16 too
 *   flops      256 a node and column of i and j, forward and backward
 *   bytes      of a node with tables of 256 columns: 2,600 forward, 3,300 backward; with
 *              partials 2,400 and 3,300 (1,000 of them from L1 or L2), and these
 * Not measured yet. */
#include "models/cuda/gmn_lean/node_tile.cuh"

namespace wf_gpu {
namespace {

using namespace lean::node;
using namespace mma;
using lean::normalise;
using lean::plus;
using lean::quad_sum;

enum { partial_columns = 256 }; /* of both tables, with the edges' partials */

struct node_tables {
    const float *h, *modulation; /* shift, then scale */
    int ld_modulation, nodes;
    const uint32_t *graph, *start; /* of a node; first node of a graph */
    weight_rows first, second;
    int strips; /* of 64 columns of a table */
    const float *add;
    int ld_add;
    float *hb, *tables[2];
    /* backward */
    float *dtables[2];
    const float *dmean; /* dmean NULL: none */
    int ld_dmean;
    float *dhb, *dh, *stats; /* dhb: added to; dh, stats NULL: not wanted */
    bool set_dh;             /* else add */
    partial_lists lists;     /* partials NULL: dtables are there, in float */
};

__device__ inline panel panel_of(const node_tables &p, int which) {
    int rows = width * p.strips;
    return panel{shared_address(shared) + (uint32_t)(which * rows * strip_pitch), rows};
}
__device__ inline void stage(const node_tables &p) {
    stage_panel(panel_of(p, 0), 0, p.first, width * p.strips, width);
    stage_panel(panel_of(p, 1), 0, p.second, width * p.strips, width);
}

/* The rows normalised. */
__device__ inline void load_normalised(float4 (&v)[2][sixteens], float (&mean)[2], float (&rho)[2],
                                       const float *h, const lane_nodes &r) {
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < sixteens; j++)
            v[k][j] = *(const float4 *)(h + r.place(k, width) + 16 * j);
#pragma unroll
    for (int k = 0; k < 2; k++) normalise<width>(v[k], &mean[k], &rho[k]);
}

/* Half: hb leaves in bf16. */
template <bool Half> __device__ inline void forward_tile(const node_tables &p, int tile) {
    lane_nodes r(tile, p.nodes);
    const float *modulation[2], *add[2];
    fragment hb[sixteens];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        size_t graph = p.graph[r.row[k]];
        modulation[k] = p.modulation + graph * p.ld_modulation + r.column;
        add[k] = p.add + graph * p.ld_add + r.column;
    }
    {
        float4 v[2][sixteens];
        float mean[2], rho[2];
        load_normalised(v, mean, rho, p.h, r);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 shift = *(const float4 *)(modulation[k] + 16 * j);
                float4 scale = *(const float4 *)(modulation[k] + width + 16 * j);
                v[k][j] = lean::modulated(v[k][j], scale, shift);
                if (!Half && r.there[k]) *(float4 *)(p.hb + r.place(k, width) + 16 * j) = v[k][j];
            }
            hb[j] = fragment_of(v[0][j], v[1][j]);
            if (Half) store_words((uint16_t *)p.hb, width, r, j, hb[j]);
        }
    }
    int ld = width * p.strips;
#pragma unroll 1
    for (int strip = 0; strip < 2 * p.strips; strip++) {
        int which = strip >= p.strips, first = width * (strip - which * p.strips);
        float acc[strip_tiles][4];
        multiply(acc, hb, panel_of(p, which), first);
#pragma unroll
        for (int j = 0; j < sixteens; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 x = four_of(acc, j, k);
                if (which == 0) x = plus(x, *(const float4 *)(add[k] + first + 16 * j));
                if (r.there[k]) *(float4 *)(p.tables[which] + r.place(k, ld) + first + 16 * j) = x;
            }
    }
}

template <bool Half>
__global__ void __launch_bounds__(threads, 1)
    node_tables_kernel(const __grid_constant__ node_tables p) {
    stage(p);
    wait_for_previous();
    __syncthreads();
    for (int tile = first_tile(); tile * tile_rows < p.nodes; tile += tile_step())
        forward_tile<Half>(p, tile);
}

/* --- backward --------------------------------------------------------------------------------- */
/* acc = di first + dj second: the next 64 columns are loaded while a product runs. */
template <bool Slots>
__device__ inline void tables_back(float (&acc)[strip_tiles][4], const node_tables &p,
                                   const lane_nodes &r) {
    int ld = width * p.strips, all = 2 * p.strips;
    auto load = [&](fragment(&to)[sixteens], int strip) {
        int which = strip >= p.strips;
        int first = width * (strip - which * p.strips);
        if (Slots)
#pragma unroll
            for (int j = 0; j < sixteens; j++)
                to[j] = load_words(p.lists.to[which] + first, ld, r, j);
        else load_operands(to, p.dtables[which], ld, first, r);
    };
    auto add = [&](const fragment(&dy)[sixteens], int strip) {
        int which = strip >= p.strips;
        begin<group_products>();
        backward_mma<group_products>(acc, dy, panel_of(p, which),
                                     width * (strip - which * p.strips), 0, false);
        commit<group_products>();
    };
    fragment dy[2][sixteens];
    clear(acc);
    load(dy[0], 0);
#pragma unroll 1
    for (int strip = 0; strip < all; strip += 2) { /* `all` is even */
        add(dy[0], strip);
        load(dy[1], strip + 1);
        wait<group_products>();
        add(dy[1], strip + 1);
        if (strip + 2 < all) load(dy[0], strip + 2);
        wait<group_products>();
        settle(acc);
    }
}

template <bool Slots> __device__ inline void backward_tile(const node_tables &p, int tile) {
    lane_nodes r(tile, p.nodes);
    float acc[strip_tiles][4];
    if (Slots) {
        int first = tile * tile_rows + (int)(threadIdx.x % 128) / 32 * 16;
        sum_lists<partial_columns>(p.lists, first);
    }
    tables_back<Slots>(acc, p, r);
    float4 hat[2][sixteens];
    float mean[2], rho[2];
    load_normalised(hat, mean, rho, p.h, r);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int graph = (int)p.graph[r.row[k]];
        const float *scale = p.modulation + (size_t)graph * p.ld_modulation + width + r.column;
        const float *dmean =
            p.dmean == NULL ? NULL : p.dmean + (size_t)graph * p.ld_dmean + r.column;
        float share = 1 / (float)(p.start[graph + 1] - p.start[graph]), sum = 0, along = 0;
        float4 v[sixteens];
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 *to = (float4 *)(p.dhb + r.place(k, width) + 16 * j);
            v[j] = four_of(acc, j, k);
            v[j] = plus(v[j], *to);
            if (dmean != NULL)
                v[j] = plus(v[j], lean::scaled(share, *(const float4 *)(dmean + 16 * j)));
            if (r.there[k]) *to = v[j];
            float4 by = *(const float4 *)(scale + 16 * j), x = hat[k][j];
            v[j] = lean::times(v[j], make_float4(1 + by.x, 1 + by.y, 1 + by.z, 1 + by.w));
            sum += v[j].x + v[j].y + (v[j].z + v[j].w);
            along += v[j].x * x.x + v[j].y * x.y + (v[j].z * x.z + v[j].w * x.w);
        }
        sum = quad_sum(sum) / width;
        along = quad_sum(along) / width;
        if (!r.there[k]) continue;
        if (p.stats != NULL && r.column == 0)
            *(float2 *)(p.stats + 2 * (size_t)r.row[k]) = make_float2(mean[k], rho[k]);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            if (p.dh == NULL) continue;
            float4 *to = (float4 *)(p.dh + r.place(k, width) + 16 * j);
            float4 x = hat[k][j];
            float4 d = make_float4(
                rho[k] * (v[j].x - sum - x.x * along), rho[k] * (v[j].y - sum - x.y * along),
                rho[k] * (v[j].z - sum - x.z * along), rho[k] * (v[j].w - sum - x.w * along));
            *to = p.set_dh ? d : plus(*to, d);
        }
    }
}

template <bool Slots>
__global__ void __launch_bounds__(threads, 1)
    node_tables_back_kernel(const __grid_constant__ node_tables p) {
    stage(p);
    wait_for_previous();
    __syncthreads();
    for (int tile = first_tile(); tile * tile_rows < p.nodes; tile += tile_step())
        backward_tile<Slots>(p, tile);
}

/* --- launches --------------------------------------------------------------------------------- */
enum input { in_h, in_modulation, in_first, in_second, in_graph, in_partials };
enum output { out_hb, out_i, out_j, out_mean };

node_tables tables_of(const wf_op *op) {
    wf_tensor *const *in = op->in, *const *out = op->out;
    node_tables p = {};
    p.h = data_of(in[in_h]), p.nodes = in[in_h]->rows;
    p.modulation = data_of(in[in_modulation]) + op->column;
    p.ld_modulation = in[in_modulation]->ld;
    p.graph = op->map, p.start = op->start;
    p.first = weight_rows_of(in[in_first]), p.second = weight_rows_of(in[in_second]);
    p.strips = in[in_first]->rows / width;
    p.add = data_of(in[in_graph]), p.ld_add = in[in_graph]->ld;
    p.hb = data_of(out[out_hb]);
    p.tables[0] = data_of(out[out_i]), p.tables[1] = data_of(out[out_j]);
    return p;
}
int shared_bytes(int hidden) { return 2 * (int)panel_bytes(hidden, width); }

/* Gradients of the weights, of the graphs' rows, of shift and scale. */
bool add_gradients(const wf_op *op, const node_tables &p) {
    wf_tensor *const *in = op->in, *const *out = op->out;
    weight_gradient entry = {};
    entry.rows = p.nodes, entry.m = entry.ldy = width * p.strips;
    entry.x = p.hb, entry.n = entry.ldx = width;
    entry.half_dy = entry.half_x = p.lists.partials != NULL; /* in the gradients' memory */
    for (int k = 0; k < 2; k++) {
        entry.dy = p.dtables[k];
        range sources[2] = {grad_range(out[out_i + k]), data_range(out[out_hb])};
        if (!add_weight_of(entry, sources, in[in_first + k], NULL)) return false;
    }
    table_sum sum = {};
    sum.rows = p.nodes, sum.map = op->map;
    if (wanted(in[in_graph])) {
        const wf_tensor *graph = in[in_graph];
        sum.x = p.dtables[0], sum.ldx = sum.cols = width * p.strips, sum.targets = graph->rows;
        sum.half_x = entry.half_dy;
        /* span sums do not write the padding */
        bool set = !by_spans(sum) && cancel_zero(graph);
        sum.to = sum_target{grad_of(graph), graph->ld, set, false};
        if (!add_sum(sum, {grad_range(out[out_i])})) return false;
    }
    if (!wanted(in[in_modulation])) return true;
    const wf_tensor *modulation = in[in_modulation];
    sum.x = p.dhb, sum.half_x = false;
    sum.ldx = sum.cols = width, sum.targets = modulation->rows;
    sum.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    if (!add_sum(sum, {grad_range(out[out_hb])})) return false;
    sum.y = p.h, sum.ldy = width, sum.stats = p.stats;
    sum.to.data += width;
    return add_sum(sum,
                   {grad_range(out[out_hb]), data_range(in[in_h]), rows_of(p.stats, p.nodes, 2)});
}

} // namespace

bool node_tables_fits(const wf_op *op) {
    wf_tensor *const *in = op->in;
    const wf_tensor *h = in[in_h], *modulation = in[in_modulation];
    int hidden = in[in_first]->rows;
    return h->rows > 0 && h->cols == width && h->ld == width && hidden % width == 0 &&
           staged(in[in_first], hidden, width) && staged(in[in_second], hidden, width) &&
           plain_rows(in[in_graph]) && modulation != NULL && plain_rows(modulation) &&
           op->column % 4 == 0 && most_shared_bytes() >= shared_bytes(hidden);
}

bool node_tables_forward(const wf_op *op, wf_arena *) {
    node_tables p = tables_of(op);
    const wf_tensor *hb = op->out[out_hb], *mean = op->out[out_mean];
    bool half = op->in[in_partials] != NULL;
    start_kernel(half ? node_tables_kernel<true> : node_tables_kernel<false>, blocks_of(p.nodes),
                 threads, (size_t)shared_bytes(width * p.strips), p);
    if (!launched() || mean == NULL) return launched();
    launch_users(data_range(mean));
    table_sum sum = {};
    sum.x = p.hb, sum.half_x = half;
    sum.ldx = sum.cols = width, sum.rows = p.nodes;
    sum.start = op->start, sum.targets = mean->rows;
    sum.to = sum_target{data_of(mean), mean->ld, true, true};
    return add_sum(sum, {data_range(hb)});
}

bool node_tables_backward(const wf_op *op, wf_arena *) {
    wf_tensor *const *in = op->in, *const *out = op->out;
    node_tables p = tables_of(op);
    for (int k = 0; k < 2; k++) p.dtables[k] = grad_of(out[out_i + k]);
    if (out[out_mean] != NULL) p.dmean = grad_of(out[out_mean]), p.ld_dmean = out[out_mean]->ld;
    p.dhb = grad_of(out[out_hb]);
    if (wanted(in[in_h])) p.dh = grad_of(in[in_h]), p.set_dh = cancel_zero(in[in_h]);
    if (wanted(in[in_modulation])) {
        p.stats = scratch(deferred_scratch(), 2 * (size_t)p.nodes);
        if (p.stats == NULL) return false;
    }
    if (in[in_partials] != NULL) {
        const wf_bundle_table *table = op->part->bundles[WF_CUT_GROUP]; /* lean_backward.cu */
        p.lists = partial_lists{(const uint16_t *)data_of(in[in_partials]),
                                table->partial_start,
                                table->partials,
                                NULL,
                                {(uint16_t *)p.dtables[0], (uint16_t *)p.dtables[1]},
                                p.nodes};
    }
    auto kernel =
        in[in_partials] != NULL ? node_tables_back_kernel<true> : node_tables_back_kernel<false>;
    start_kernel(kernel, blocks_of(p.nodes), threads, (size_t)shared_bytes(width * p.strips), p);
    return launched() && add_gradients(op, p);
}

} // namespace wf_gpu
