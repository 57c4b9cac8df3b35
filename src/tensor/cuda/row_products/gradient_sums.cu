/* gradient_sums: weight gradients and sums into tables, many in one launch.
 *
 * Weight gradients. A block takes a slice of the rows and a tile of 64 x 64 outputs, or of 128 x
 * 128 for a large weight with many rows, which halves the reads. Run time is proportional to rows
 * per block, but the partial sums of slices are written and read again. So there are 4 to 12
 * slices, enough for 32 blocks a weight, or more where a slice would have over 2,176 rows (12
 * slices of the 101 nodes of 256 networks 64-16-8-10). 32 rows at a time are rounded to bf16 on the
 * way into shared memory and multiplied by mma.sync, a warp 32 x 32 or 32 x 64. A weight's bits do
 * not depend on the tile. The blocks of the first columns add up the bias in float. A second launch
 * adds the partial sums of the slices in order (C1).
 *
 * Table sums. A block takes a target and 64 columns. 16 groups of 16 lanes take every 16th row, and
 * their sums are added in order, so the bits of a target depend on its own rows alone (C2). Bound
 * by bandwidth. */
#include "tensor/cuda/row_products/gradient_sums.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"

namespace wf_gpu {
namespace {

/* The entry of a block or output: the last that begins at or before it. */
template <class List, class First> __device__ int entry_of(const List &list, First first, int at) {
    int k = 0;
    while (k + 1 < list.count && first(list.of[k + 1]) <= at) k++;
    return k;
}

/* A block's tile of a weight: each warp has 32 rows and half of the columns. */
enum { rows_down = 8, weight_loads = tile_k / rows_down };
template <int Side> struct weight_shape {
    enum {
        threads = 2 * Side,
        lanes_across = Side / 4,
        sixteens = Side / 32, /* groups of 16 columns of a warp */
        blocks = Side > 64 ? 2 : 4
    };
    typedef tile<Side, threads, false, true> operand;
    static_assert(threads / lanes_across == rows_down, "every eighth row");
};

/* Four neighbours of a matrix in float, or in bf16 at the same number of elements. */
__device__ inline float4 read_four(const float *data, size_t place, bool half) {
    if (!half) return *(const float4 *)(data + place);
    uint2 words = *(const uint2 *)((const uint16_t *)data + place);
    return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                       __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u));
}

/* This thread's four columns of a matrix, at rows r, r + 8, r + 16, r + 24 of every 32. */
template <int Side> struct column_reader {
    enum { lanes_across = weight_shape<Side>::lanes_across };
    const float *data;
    size_t at, step;
    bool there, half;
    __device__ column_reader(const float *matrix, int ld, int first, int count, int row,
                             bool in_half)
        : data(matrix), half(in_half) {
        int col = first + (int)threadIdx.x % lanes_across * 4;
        there = col < count;
        at = (size_t)(row + (int)threadIdx.x / lanes_across) * ld + (there ? col : 0);
        step = (size_t)rows_down * ld;
    }
    /* rows: how many of the next 32 exist */
    __device__ void fetch(typename weight_shape<Side>::operand &to, int rows) {
#pragma unroll
        for (int i = 0; i < weight_loads; i++, at += step) {
            float4 v = make_float4(0, 0, 0, 0);
            if (there && (int)threadIdx.x / lanes_across + i * rows_down < rows)
                v = read_four(data, at, half);
            to.held[i][0] = v.x, to.held[i][1] = v.y, to.held[i][2] = v.z, to.held[i][3] = v.w;
        }
    }
};

/* Adds up a lane's four columns of dy over the rows it fetched. */
template <int Side>
__device__ inline void add_bias(const weight_gradient &entry,
                                const typename weight_shape<Side>::operand &dy, int row, int end,
                                float (&sum)[4]) {
#pragma unroll
    for (int i = 0; i < weight_loads; i++) {
        int r = row + (int)threadIdx.x / weight_shape<Side>::lanes_across + i * rows_down;
        float scale = entry.scale != NULL && r < end ? entry.scale[r] : 1;
#pragma unroll
        for (int c = 0; c < 4; c++) sum[c] += scale * dy.held[i][c];
    }
}

template <int Side>
__global__ void __launch_bounds__(weight_shape<Side>::threads, weight_shape<Side>::blocks)
    weight_kernel(const __grid_constant__ weight_gradients list) {
    wait_for_previous();
    typedef weight_shape<Side> shape;
    typedef typename shape::operand weight_tile;
    __shared__ __align__(16) __nv_bfloat16 as[2][weight_tile::size], bs[2][weight_tile::size];
    int at = (int)blockIdx.x;
    const weight_gradient &entry = list.of[entry_of(
        list, [](const weight_gradient &j) { return j.first_block; }, at)];
    at -= entry.first_block;
    int tiles = entry.tiles_m * entry.tiles_n, slice = at / tiles;
    int first_m = at % tiles / entry.tiles_n * Side, first_n = at % tiles % entry.tiles_n * Side;
    int row = slice * entry.slice_rows, end = min(entry.rows, row + entry.slice_rows);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % (Side / 32) * 32, across = warp / (Side / 32) * (Side / 2);
    bool biased = entry.bias != NULL && first_n == 0;
    float sum[2][2 * shape::sixteens][4] = {}, bias[4] = {};
    weight_tile a, b;
    column_reader<Side> dy(entry.dy, entry.ldy, first_m, entry.m, row, entry.half_dy);
    column_reader<Side> x(entry.x, entry.ldx, first_n, entry.n, row, entry.half_x);
    dy.fetch(a, end - row);
    x.fetch(b, end - row);
    for (int buffer = 0; row < end; buffer ^= 1) {
        if (biased) add_bias<Side>(entry, a, row, end, bias);
        a.store(as[buffer]);
        b.store(bs[buffer]);
        __syncthreads();
        row += tile_k;
        if (row < end) {
            dy.fetch(a, end - row);
            x.fetch(b, end - row);
        }
#pragma unroll
        for (int kk = 0; kk < tile_k; kk += 16) {
            uint32_t left[2][4], right[shape::sixteens][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                weight_tile::read_a(left[i], as[buffer], down + 16 * i, kk, lane);
#pragma unroll
            for (int j = 0; j < shape::sixteens; j++)
                weight_tile::read_b(right[j], bs[buffer], across + 16 * j, kk, lane);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2 * shape::sixteens; j++)
                    multiply_add(sum[i][j], left[i], right[j / 2][j % 2 * 2],
                                 right[j / 2][j % 2 * 2 + 1]);
        }
    }
    int ld = whole16(entry.n);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2 * shape::sixteens; j++) {
            int m = first_m + down + 16 * i + lane / 4 + lane % 2 * 8;
            int n = first_n + across + 8 * j + lane % 4 / 2 * 4;
            float four[4];
            gather_row(sum[i][j], lane, four);
            if (entry.weight != NULL && m < entry.m && n < ld)
                put4(entry.partial + ((size_t)slice * entry.m + m) * ld + n, four);
        }
    if (!biased) return;
    __syncthreads();
    float(*partial_sums)[Side] = (float(*)[Side])as; /* of 8 groups of rows */
    int group = (int)threadIdx.x / shape::lanes_across;
    int quad = (int)threadIdx.x % shape::lanes_across;
#pragma unroll
    for (int c = 0; c < 4; c++) partial_sums[group][4 * quad + c] = bias[c];
    __syncthreads();
    int m = first_m + (int)threadIdx.x;
    if (threadIdx.x >= Side || m >= entry.m) return;
    float total = 0;
    for (int k = 0; k < rows_down; k++) total += partial_sums[k][threadIdx.x];
    entry.bias_partial[(size_t)slice * entry.m + m] = total;
}

__global__ void weight_add_kernel(const __grid_constant__ weight_gradients list, int items) {
    wait_for_previous();
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= items) return;
    const weight_gradient &entry = list.of[entry_of(
        list, [](const weight_gradient &j) { return j.first_item; }, at)];
    at -= entry.first_item;
    int weights = entry.weight != NULL ? entry.m * entry.n : 0, ld = whole16(entry.n);
    bool bias = at >= weights;
    const float *from = bias ? entry.bias_partial + (at - weights)
                             : entry.partial + (size_t)(at / entry.n) * ld + at % entry.n;
    size_t step = bias ? (size_t)entry.m : (size_t)entry.m * ld;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < entry.slices; k++) sum += from[(size_t)k * step];
    if (bias) entry.bias[at - weights] += sum;
    else entry.weight[at] += sum;
}

enum { sum_groups = 16, sum_lanes = 16 };

__global__ void __launch_bounds__(sum_groups *sum_lanes)
    sum_kernel(const __grid_constant__ table_sums list) {
    wait_for_previous();
    __shared__ float partial_sums[sum_groups][4 * sum_lanes];
    int at = (int)blockIdx.x;
    const table_sum &entry = list.of[entry_of(
        list, [](const table_sum &j) { return j.first_block; }, at)];
    at -= entry.first_block;
    int t = at / entry.tiles, lane = (int)threadIdx.x % sum_lanes;
    int group = (int)threadIdx.x / sum_lanes, col = at % entry.tiles * 4 * sum_lanes + 4 * lane;
    int first = entry.start != NULL ? (int)entry.start[t]
                : entry.map != NULL ? entry.bounds[2 * t]
                                    : 0;
    int last = entry.start != NULL ? (int)entry.start[t + 1]
               : entry.map != NULL ? entry.bounds[2 * t + 1]
                                   : entry.rows;
    float sum[4] = {};
    if (col < entry.cols) {
#pragma unroll 4
        for (int row = first + group; row < last; row += sum_groups) {
            float x[4], y[4];
            if (entry.map != NULL && entry.map[row] != (uint32_t)t) continue;
            if (entry.half_x) {
                float4 four = read_four(entry.x, (size_t)row * entry.ldx + col, true);
                x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
            } else take4(entry.x + (size_t)row * entry.ldx + col, x);
            if (entry.y != NULL) {
                take4(entry.y + (size_t)row * entry.ldy + col, y);
                float mean = 0, rho = 1;
                if (entry.stats != NULL) {
                    mean = entry.stats[2 * (size_t)row];
                    rho = entry.stats[2 * (size_t)row + 1];
                }
#pragma unroll
                for (int c = 0; c < 4; c++) x[c] *= (y[c] - mean) * rho;
            }
#pragma unroll
            for (int c = 0; c < 4; c++) sum[c] += x[c];
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) partial_sums[group][4 * lane + c] = sum[c];
    __syncthreads();
    col = at % entry.tiles * 4 * sum_lanes + (int)threadIdx.x;
    int width = entry.to.set ? whole16(entry.cols) : entry.cols; /* set: padding is written too */
    if (threadIdx.x >= 4 * sum_lanes || col >= width) return;
    float total = 0;
    for (int k = 0; k < sum_groups; k++) total += partial_sums[k][threadIdx.x];
    if (entry.to.mean && last > first) total /= (float)(last - first);
    if (col >= entry.cols) total = 0;
    float *out = entry.to.data + (size_t)t * entry.to.ld + col;
    *out = entry.to.set ? total : *out + total;
}

} // namespace

size_t weight_gradient_scratch(weight_gradient *entry) {
    enum { most_rows = 2176, fewest_rows = 256, most_slices = 12, fewest_slices = 4 };
    enum { enough_blocks = 32 };                /* of a weight */
    enum { many_rows = 2048, large_side = 96 }; /* from these sizes on larger tiles pay */
    bool large = entry->rows > many_rows && entry->m >= large_side && entry->n >= large_side;
    entry->side = large ? 128 : 64;
    entry->tiles_m = (int)blocks_for((size_t)entry->m, (size_t)entry->side);
    entry->tiles_n =
        entry->weight == NULL ? 1 : (int)blocks_for((size_t)entry->n, (size_t)entry->side);
    int slices = enough_blocks / (entry->tiles_m * entry->tiles_n);
    slices = slices < fewest_slices ? fewest_slices : slices > most_slices ? most_slices : slices;
    int needed = (int)blocks_for((size_t)entry->rows, most_rows);
    if (slices < needed) slices = needed;
    int rows = (int)blocks_for((size_t)entry->rows, (size_t)(slices * tile_k)) * tile_k;
    entry->slice_rows = rows < fewest_rows ? fewest_rows : rows;
    entry->slices = (int)blocks_for((size_t)entry->rows, (size_t)entry->slice_rows);
    return (size_t)entry->slices * (size_t)entry->m * (size_t)(wf_pad(entry->n) + 1);
}

/* Launches the entries whose tiles have this side. */
template <int Side> static void launch_tiles(const weight_gradients &all) {
    weight_gradients own = {};
    int blocks = 0;
    for (int k = 0; k < all.count; k++) {
        if (all.of[k].side != Side) continue;
        weight_gradient &entry = own.of[own.count++] = all.of[k];
        entry.first_block = blocks;
        blocks += entry.slices * entry.tiles_m * entry.tiles_n;
    }
    if (blocks > 0)
        start_kernel(weight_kernel<Side>, (unsigned)blocks, weight_shape<Side>::threads, 0, own);
}

void launch_weight_gradients(weight_gradients *list) {
    int items = 0;
    for (int k = 0; k < list->count; k++) {
        weight_gradient *entry = &list->of[k];
        entry->first_item = items;
        items += (entry->weight != NULL ? entry->m * entry->n : 0) +
                 (entry->bias != NULL ? entry->m : 0);
    }
    if (items == 0) return;
    launch_tiles<128>(*list);
    launch_tiles<64>(*list);
    start_kernel(weight_add_kernel, blocks_for((size_t)items, threads_each), threads_each, 0, *list,
                 items);
}

void launch_table_sums(table_sums *list) {
    int blocks = 0;
    for (int k = 0; k < list->count; k++) {
        table_sum *entry = &list->of[k];
        entry->tiles = (int)blocks_for((size_t)entry->cols, 4 * sum_lanes);
        entry->first_block = blocks;
        blocks += entry->tiles * entry->targets;
    }
    if (blocks > 0) start_kernel(sum_kernel, (unsigned)blocks, sum_groups * sum_lanes, 0, *list);
}

} // namespace wf_gpu
