/* gradient_sums: weight gradients and sums towards tables, many in one launch.
 *
 * Weight gradients: a block takes a tile of 64 x 64 outputs, or 128 x 128 of a large weight and many rows, which reads half as
 * much, and a chunk of rows. A block's time is that of its rows, and what chunks leave is written and read again: 4 to 12 chunks,
 * as many as make 32 blocks of a weight, or more where they would have over 2,176 rows (12 of the 101 nodes of 256 networks
 * 64-16-8-10). 32 rows at a time, rounded to bf16 on the way into
 * shared memory; warps of 32 x 32, or 32 x 64, by mma.sync. A weight's bits do not depend on the tile. Blocks of a job's first
 * columns add up the bias in float.
 * Chunks' partial sums are added in order by another launch (C1).
 * Sums: a block takes a target and 64 columns; 16 groups of 16 lanes take every 16th of its rows, and their sums are added in
 * order, so that a target's bits depend on its own rows alone (C2). Bound by bandwidth.
 * Measured, H200, ncu, lean, width 64, 25,856 nodes: weights of two blocks (13.5 GFLOP) 131 us and 12 for their chunks, 100
 * TFLOP/s; sums of a block (90 MB) 24 us, 3.8 TB/s. Tiles of 128 in place of 64: forward and backward of 64 folded networks
 * 784-32-32-10, nodes of width 256, edges of 64, 5.57 to 5.47 ms; of 256 of them, width 128, 22.36 to 22.11. */
#include "tensor/cuda/row_products/gradient_sums.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"

namespace wf_gpu {
namespace {

/* The job of a block or item: the last that begins at or before it. */
template <class Jobs, class First> __device__ int job_of(const Jobs &jobs, First first, int at) {
    int k = 0;
    while (k + 1 < jobs.count && first(jobs.job[k + 1]) <= at) k++;
    return k;
}

/* A block's tile of a weight: warps of 32 rows times a half of its columns. */
enum { rows_down = 8, weight_loads = tile_k / rows_down };
template <int Side> struct weight_shape {
    enum {
        threads = 2 * Side,
        lanes_across = Side / 4,
        sixteens = Side / 32, /* of columns of a warp */
        blocks = Side > 64 ? 2 : 4
    };
    typedef tile<Side, threads, false, true> operand;
    static_assert(threads / lanes_across == rows_down, "every eighth row");
};

/* This thread's four columns of a matrix, at rows r, r + 8, r + 16, r + 24 of each step. */
template <int Side> struct column_reader {
    enum { lanes_across = weight_shape<Side>::lanes_across };
    const float *at;
    size_t step;
    bool there;
    __device__ column_reader(const float *data, int ld, int first, int count, int row) {
        int col = first + (int)threadIdx.x % lanes_across * 4;
        there = col < count;
        at = data + (size_t)(row + (int)threadIdx.x / lanes_across) * ld + (there ? col : 0);
        step = (size_t)rows_down * ld;
    }
    /* rows: how many of the next 32 are there */
    __device__ void fetch(typename weight_shape<Side>::operand &to, int rows) {
#pragma unroll
        for (int i = 0; i < weight_loads; i++, at += step) {
            float4 v = make_float4(0, 0, 0, 0);
            if (there && (int)threadIdx.x / lanes_across + i * rows_down < rows)
                v = *(const float4 *)at;
            to.held[i][0] = v.x, to.held[i][1] = v.y, to.held[i][2] = v.z, to.held[i][3] = v.w;
        }
    }
};

/* A lane's four columns of dy, over the rows it fetched. */
template <int Side>
__device__ inline void add_bias(const weight_job &job,
                                const typename weight_shape<Side>::operand &dy, int row, int end,
                                float (&sum)[4]) {
#pragma unroll
    for (int i = 0; i < weight_loads; i++) {
        int r = row + (int)threadIdx.x / weight_shape<Side>::lanes_across + i * rows_down;
        float scale = job.scale != NULL && r < end ? job.scale[r] : 1;
#pragma unroll
        for (int c = 0; c < 4; c++) sum[c] += scale * dy.held[i][c];
    }
}

template <int Side>
__global__ void __launch_bounds__(weight_shape<Side>::threads, weight_shape<Side>::blocks)
    weight_kernel(const __grid_constant__ weight_jobs jobs) {
    follow();
    typedef weight_shape<Side> shape;
    typedef typename shape::operand weight_tile;
    __shared__ __align__(16) __nv_bfloat16 as[2][weight_tile::size], bs[2][weight_tile::size];
    int at = (int)blockIdx.x;
    const weight_job &job = jobs.job[job_of(
        jobs, [](const weight_job &j) { return j.first_block; }, at)];
    at -= job.first_block;
    int tiles = job.tiles_m * job.tiles_n, chunk = at / tiles;
    int first_m = at % tiles / job.tiles_n * Side, first_n = at % tiles % job.tiles_n * Side;
    int row = chunk * job.chunk_rows, end = min(job.rows, row + job.chunk_rows);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % (Side / 32) * 32, across = warp / (Side / 32) * (Side / 2);
    bool biased = job.bias != NULL && first_n == 0;
    float sum[2][2 * shape::sixteens][4] = {}, bias[4] = {};
    weight_tile a, b;
    column_reader<Side> dy(job.dy, job.ldy, first_m, job.m, row);
    column_reader<Side> x(job.x, job.ldx, first_n, job.n, row);
    dy.fetch(a, end - row);
    x.fetch(b, end - row);
    for (int buffer = 0; row < end; buffer ^= 1) {
        if (biased) add_bias<Side>(job, a, row, end, bias);
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
    int ld = whole16(job.n);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2 * shape::sixteens; j++) {
            int m = first_m + down + 16 * i + lane / 4 + lane % 2 * 8;
            int n = first_n + across + 8 * j + lane % 4 / 2 * 4;
            float four[4];
            gather_row(sum[i][j], lane, four);
            if (job.weight != NULL && m < job.m && n < ld)
                put4(job.partial + ((size_t)chunk * job.m + m) * ld + n, four);
        }
    if (!biased) return;
    __syncthreads();
    float(*shares)[Side] = (float(*)[Side])as; /* 8 groups of rows */
    int group = (int)threadIdx.x / shape::lanes_across;
    int quad = (int)threadIdx.x % shape::lanes_across;
#pragma unroll
    for (int c = 0; c < 4; c++) shares[group][4 * quad + c] = bias[c];
    __syncthreads();
    int m = first_m + (int)threadIdx.x;
    if (threadIdx.x >= Side || m >= job.m) return;
    float total = 0;
    for (int k = 0; k < rows_down; k++) total += shares[k][threadIdx.x];
    job.bias_partial[(size_t)chunk * job.m + m] = total;
}

__global__ void weight_add_kernel(const __grid_constant__ weight_jobs jobs, int items) {
    follow();
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= items) return;
    const weight_job &job = jobs.job[job_of(
        jobs, [](const weight_job &j) { return j.first_item; }, at)];
    at -= job.first_item;
    int weights = job.weight != NULL ? job.m * job.n : 0, ld = whole16(job.n);
    bool bias = at >= weights;
    const float *from = bias ? job.bias_partial + (at - weights)
                             : job.partial + (size_t)(at / job.n) * ld + at % job.n;
    size_t step = bias ? (size_t)job.m : (size_t)job.m * ld;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < job.chunks; k++) sum += from[(size_t)k * step];
    if (bias) job.bias[at - weights] += sum;
    else job.weight[at] += sum;
}

enum { sum_groups = 16, sum_lanes = 16 };

__global__ void __launch_bounds__(sum_groups *sum_lanes)
    sum_kernel(const __grid_constant__ sum_jobs jobs) {
    follow();
    __shared__ float shares[sum_groups][4 * sum_lanes];
    int at = (int)blockIdx.x;
    const sum_job &job = jobs.job[job_of(
        jobs, [](const sum_job &j) { return j.first_block; }, at)];
    at -= job.first_block;
    int t = at / job.tiles, lane = (int)threadIdx.x % sum_lanes;
    int group = (int)threadIdx.x / sum_lanes, col = at % job.tiles * 4 * sum_lanes + 4 * lane;
    int first = job.start != NULL ? (int)job.start[t] : job.map != NULL ? job.bounds[2 * t] : 0;
    int last = job.start != NULL ? (int)job.start[t + 1]
               : job.map != NULL ? job.bounds[2 * t + 1]
                                 : job.rows;
    float sum[4] = {};
    if (col < job.cols) {
#pragma unroll 4
        for (int row = first + group; row < last; row += sum_groups) {
            float x[4], y[4];
            if (job.map != NULL && job.map[row] != (uint32_t)t) continue;
            take4(job.x + (size_t)row * job.ldx + col, x);
            if (job.y != NULL) {
                take4(job.y + (size_t)row * job.ldy + col, y);
                float mean = 0, rho = 1;
                if (job.stats != NULL) {
                    mean = job.stats[2 * (size_t)row];
                    rho = job.stats[2 * (size_t)row + 1];
                }
#pragma unroll
                for (int c = 0; c < 4; c++) x[c] *= (y[c] - mean) * rho;
            }
#pragma unroll
            for (int c = 0; c < 4; c++) sum[c] += x[c];
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) shares[group][4 * lane + c] = sum[c];
    __syncthreads();
    col = at % job.tiles * 4 * sum_lanes + (int)threadIdx.x;
    int width = job.to.set ? whole16(job.cols) : job.cols; /* a whole tensor: its padding too */
    if (threadIdx.x >= 4 * sum_lanes || col >= width) return;
    float total = 0;
    for (int k = 0; k < sum_groups; k++) total += shares[k][threadIdx.x];
    if (job.to.mean && last > first) total /= (float)(last - first);
    if (col >= job.cols) total = 0;
    float *out = job.to.data + (size_t)t * job.to.ld + col;
    *out = job.to.set ? total : *out + total;
}

} // namespace

size_t weight_job_scratch(weight_job *job) {
    enum { most_rows = 2176, fewest_rows = 256, most_chunks = 12, fewest_chunks = 4 };
    enum { enough_blocks = 32 };                /* of a job */
    enum { many_rows = 2048, large_side = 96 }; /* from which on larger tiles pay */
    bool large = job->rows > many_rows && job->m >= large_side && job->n >= large_side;
    job->side = large ? 128 : 64;
    job->tiles_m = (int)blocks_for((size_t)job->m, (size_t)job->side);
    job->tiles_n = job->weight == NULL ? 1 : (int)blocks_for((size_t)job->n, (size_t)job->side);
    int chunks = enough_blocks / (job->tiles_m * job->tiles_n);
    chunks = chunks < fewest_chunks ? fewest_chunks : chunks > most_chunks ? most_chunks : chunks;
    int needed = (int)blocks_for((size_t)job->rows, most_rows);
    if (chunks < needed) chunks = needed;
    int rows = (int)blocks_for((size_t)job->rows, (size_t)(chunks * tile_k)) * tile_k;
    job->chunk_rows = rows < fewest_rows ? fewest_rows : rows;
    job->chunks = (int)blocks_for((size_t)job->rows, (size_t)job->chunk_rows);
    return (size_t)job->chunks * (size_t)job->m * (size_t)(wf_pad(job->n) + 1);
}

/* The jobs whose tiles have this side. */
template <int Side> static void launch_tiles(const weight_jobs &all) {
    weight_jobs own = {};
    int blocks = 0;
    for (int k = 0; k < all.count; k++) {
        if (all.job[k].side != Side) continue;
        weight_job &job = own.job[own.count++] = all.job[k];
        job.first_block = blocks;
        blocks += job.chunks * job.tiles_m * job.tiles_n;
    }
    if (blocks > 0)
        start_kernel(weight_kernel<Side>, (unsigned)blocks, weight_shape<Side>::threads, 0, own);
}

void run_weight_jobs(weight_jobs *jobs) {
    int items = 0;
    for (int k = 0; k < jobs->count; k++) {
        weight_job *job = &jobs->job[k];
        job->first_item = items;
        items += (job->weight != NULL ? job->m * job->n : 0) + (job->bias != NULL ? job->m : 0);
    }
    if (items == 0) return;
    launch_tiles<128>(*jobs);
    launch_tiles<64>(*jobs);
    start_kernel(weight_add_kernel, blocks_for((size_t)items, threads_each), threads_each, 0, *jobs,
                 items);
}

void run_sum_jobs(sum_jobs *jobs) {
    int blocks = 0;
    for (int k = 0; k < jobs->count; k++) {
        sum_job *job = &jobs->job[k];
        job->tiles = (int)blocks_for((size_t)job->cols, 4 * sum_lanes);
        job->first_block = blocks;
        blocks += job->tiles * job->targets;
    }
    if (blocks > 0) start_kernel(sum_kernel, (unsigned)blocks, sum_groups * sum_lanes, 0, *jobs);
}

} // namespace wf_gpu
