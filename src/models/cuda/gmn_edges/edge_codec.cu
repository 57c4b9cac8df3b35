/* edge_codec: the encoder and the readout of the edges, one kernel for each direction.
 *
 *   encoder   e = W sin(a w + b) + table[role]                W (D, D), one value w an edge
 *   readout   y = LN(e)   x = W1 y + b1   r = w2 . f(x) + b2  W1 (D, D), w2 (D), f an activation
 * A block keeps the weight in shared memory and takes a range of tiles of edges, 16 rows a warp.
 * There are as many blocks as fit on the device. The rows of the next tile are loaded while one is
 * computed. Only the edge stream, its gradient and one value an edge are in memory; backward
 * computes the rest again. A warp holds 16 rows times D sums of a product, so sums along a row stay
 * within four lanes.
 * Weight gradients stay in registers over all tiles of a block, an equal part of the matrix for
 * each warp: operands are tiles [rows][D] in shared memory, read transposed; sums by role are a
 * product with ones. Each block leaves partial sums, and a second launch adds them in order (C1).
 * FLOPs an edge: 2 D^2 forward, 4 D^2 (encoder) or 6 D^2 (readout) backward. Bytes: 4 D an edge
 * forward; backward 4 D (encoder), 8 D (readout). Latency of a tile's loads is the limit: the
 * kernels take two to six times what bandwidth alone would. */
#include "tensor/cuda/fused.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"
#include "tensor/cuda/row_products/deferred.cuh"

#include <stddef.h>

namespace wf_gpu {
namespace {

typedef __nv_bfloat16 bf16;
enum { most_roles = 16 };

template <int D> struct shape {
    enum {
        warps = D > 64 ? 8 : 4,
        threads = 32 * warps,
        rows = 16 * warps,
        pitch = D + padding,
        quads = D / 4,
        tiles = D / 8, /* 8 columns each, of a warp's sums */
        /* blocks of a multiprocessor: as many as registers or shared memory allow */
        blocks_each = D > 64 ? 1 : 3, /* backward */
        encoder_blocks = D > 64 ? 2 : 5,
        readout_blocks = D > 64 ? 1 : 4,
        /* a warp's part of a matrix (D, D) */
        part_m = 32,
        part_n = D * D / warps / part_m,
        parts_down = D / part_m
    };
};

template <int D> struct tile_memory {
    typedef shape<D> S;
    bf16 weight[D * S::pitch];
    float a[D], b[D], c[D];
    bf16 left[S::rows * S::pitch], right[S::rows * S::pitch];
    float raw[S::rows * D]; /* the next tile of edges, being loaded */
    float value[S::rows], rho[S::rows];
    int param[S::rows], role[S::rows];
    float reduce[S::warps][D];
};
/* Blocks on the whole device. */
inline unsigned all_blocks(int each) { return (unsigned)(each * processor_count()); }

/* The tiles of a block: neighbours, so that a search for one starts near the last. */
struct tile_range {
    int begin, end;
};
__device__ inline tile_range tiles_of_block(int edges, int rows, int self, int all) {
    long long tiles = (edges + rows - 1) / rows;
    return tile_range{(int)(tiles * self / all), (int)(tiles * (self + 1) / all)};
}

/* Starts loading this warp's 16 rows of a tile into `raw`; rows after the last are zero. */
template <int D>
__device__ void fetch_own_rows(tile_memory<D> &m, const float *from, int first, int edges) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        int at = lane + 32 * i, row = 16 * warp + at / (D / 4), col = at % (D / 4) * 4;
        bool there = first + row < edges;
        uint32_t to = (uint32_t)__cvta_generic_to_shared(m.raw + row * D + col);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(there ? from + (size_t)(first + row) * D + col : from), "r"(there ? 16 : 0)
                     : "memory");
    }
}
__device__ inline void own_rows_arrived() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

/* --- products --------------------------------------------------------------------------------- */
template <int D> __device__ void take_weight(bf16 *to, const float *w) {
    for (int at = (int)threadIdx.x; at < D * D / 4; at += shape<D>::threads) {
        int row = at / (D / 4), col = at % (D / 4) * 4;
        float v[4];
        look4(w + (size_t)row * D + col, 4, v);
        *(uint2 *)(to + row * shape<D>::pitch + col) =
            make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
    }
}

/* sums (16 rows of this warp, D) = rows W', or rows W when transposed. */
template <int D, bool transposed>
__device__ void multiply_rows(float (&sum)[D / 8][4], const bf16 *rows, const bf16 *weight) {
    enum { pitch = shape<D>::pitch };
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bf16 *a = rows + (16 * warp + lane % 16) * pitch + lane / 16 * 8;
    const bf16 *b = transposed ? weight + lane % 16 * pitch + lane / 16 * 8
                               : weight + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[j][i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t x[4];
        load_matrices<false>(x, a + k);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            uint32_t y[4];
            load_matrices<transposed>(y,
                                      transposed ? b + k * pitch + 16 * j : b + 16 * j * pitch + k);
            multiply_add(sum[2 * j], x, y[0], y[1]);
            multiply_add(sum[2 * j + 1], x, y[2], y[3]);
        }
    }
}

/* Adds this warp's part of left' right over the rows of the tile. */
template <int D>
__device__ void multiply_columns(float (&sum)[2][shape<D>::part_n / 8][4], const bf16 *left,
                                 const bf16 *right) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % S::parts_down * S::part_m, across = warp / S::parts_down * S::part_n;
    const bf16 *a = left + (lane / 16 * 8 + lane % 8) * S::pitch + down + lane / 8 % 2 * 8;
    const bf16 *b = right + lane % 16 * S::pitch + across + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < S::rows; k += 16) {
        uint32_t x[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) load_matrices<true>(x[i], a + k * S::pitch + 16 * i);
#pragma unroll
        for (int j = 0; j < S::part_n / 16; j++) {
            uint32_t y[4];
            load_matrices<true>(y, b + k * S::pitch + 16 * j);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                multiply_add(sum[i][2 * j], x[i], y[0], y[1]);
                multiply_add(sum[i][2 * j + 1], x[i], y[2], y[3]);
            }
        }
    }
}

template <int D>
__device__ void put_part(float *to, const float (&sum)[2][shape<D>::part_n / 8][4]) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % S::parts_down * S::part_m, across = warp / S::parts_down * S::part_n;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < S::part_n / 8; j++) {
            float x[4];
            gather_row(sum[i][j], lane, x);
            int row = down + 16 * i + lane / 4 + lane % 2 * 8;
            put4(to + row * D + across + 8 * j + lane % 4 / 2 * 4, x);
        }
}

/* Sums of columns that lanes hold in the layout of a product's sums (two neighbours of 8j + 2 (lane
 * % 4)): over the 8 lanes of a column, then over the warps in order, to `to` [D]. Called by all
 * threads. */
template <int D>
__device__ void put_columns(float *to, const float (&sum)[D / 8][2], tile_memory<D> &m) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < S::tiles; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = sum[j][i];
            for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
            if (lane < 4) m.reduce[warp][8 * j + 2 * lane + i] = x;
        }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < D; c += S::threads) {
        float x = 0;
        for (int w = 0; w < S::warps; w++) x += m.reduce[w][c];
        to[c] = x;
    }
}

/* --- adding the partial sums of blocks -------------------------------------------------------- */
struct sum_part {
    float *to; /* NULL: not wanted */
    int first, count;
};
struct block_sums {
    const float *partials;
    int blocks, size, count;
    sum_part part[4];
};
/* A block has 32 neighbours; 8 warps add an eighth of the partial sums each, then the eighths in
 * order. */
__global__ void add_block_sums(const __grid_constant__ block_sums s) {
    wait_for_previous();
    __shared__ float sums[8][32];
    int at = (int)(blockIdx.x * 32 + threadIdx.x), each = (s.blocks + 7) / 8;
    int first = (int)threadIdx.y * each, last = min(s.blocks, first + each);
    float sum = 0;
    if (at < s.size)
#pragma unroll 8
        for (int k = first; k < last; k++) sum += s.partials[(size_t)k * s.size + at];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || at >= s.size) return;
    for (int k = 1; k < 8; k++) sum += sums[k][threadIdx.x];
    for (int k = 0; k < s.count; k++) {
        int place = at - s.part[k].first;
        if (s.part[k].to != NULL && place >= 0 && place < s.part[k].count)
            s.part[k].to[place] += sum;
    }
}
void launch_add(const block_sums &s) {
    start_kernel(add_block_sums, blocks_for((size_t)s.size, 32), dim3(32, 8), 0, s);
}

/* --- encoder ---------------------------------------------------------------------------------- */
struct encoder {
    const wf_batch_block *blocks;
    int n_blocks;
    size_t first_edge, first_param;
    int edges, roles;
    bool sine;
    const float *w, *a, *b, *weight, *table;
    const uint32_t *role;
    float *e;
    const float *de;
    float *dw, *partials;
    int size; /* floats of a block's partial sums: dW (D, D), da, db, dtable (roles, D) */
};

/* Subtracts whole periods: the fast functions are accurate near zero only. */
__device__ inline float near_zero(float x) {
    return x - 6.283185307179586f * rintf(0.15915494309189535f * x);
}

/* Finds the parameter, value and role of an edge. Edges are asked for in rising order, near each
 * other. */
struct edge_reader {
    int block, param, role;
    float value;
    __device__ edge_reader(const encoder &p, int edge) : block(0), param(-1), role(0), value(0) {
        size_t at = p.first_edge + (size_t)edge;
        int high = p.n_blocks;
        while (high - block > 1) {
            int middle = (block + high) / 2;
            if (p.blocks[middle].edge0 <= at) block = middle;
            else high = middle;
        }
    }
    __device__ void look(const encoder &p, int edge) {
        param = -1, role = 0, value = 0;
        if (edge >= p.edges) return;
        size_t at = p.first_edge + (size_t)edge;
        while (block + 1 < p.n_blocks && p.blocks[block + 1].edge0 <= at) block++;
        param = (int)(p.blocks[block].param0 - p.first_param + (at - p.blocks[block].edge0));
        value = p.w[param];
        role = (int)p.role[edge];
    }
};

__device__ inline float code_of(const encoder &p, float a, float b, float value) {
    float x = a * value + b;
    return p.sine ? __sinf(near_zero(x)) : x;
}

template <int D> __device__ void code_rows(const encoder &p, tile_memory<D> &m, bf16 *to) {
    typedef shape<D> S;
    for (int at = (int)threadIdx.x; at < S::rows * S::quads; at += S::threads) {
        int row = at / S::quads, col = at % S::quads * 4;
        float x[4], value = m.value[row];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = code_of(p, m.a[col + i], m.b[col + i], value);
        *(uint2 *)(to + row * S::pitch + col) =
            make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
    }
}

template <int D> __device__ void start_encoder(const encoder &p, tile_memory<D> &m) {
    take_weight<D>(m.weight, p.weight);
    for (int c = (int)threadIdx.x; c < D; c += shape<D>::threads) m.a[c] = p.a[c], m.b[c] = p.b[c];
}

/* Warps work independently: a lane computes the codes that are its part of the left operand. */
template <int D>
__global__ void __launch_bounds__(shape<D>::threads)
    encoder_kernel(const __grid_constant__ encoder p) {
    wait_for_previous();
    typedef shape<D> S;
    extern __shared__ __align__(16) unsigned char memory[];
    tile_memory<D> &m = *(tile_memory<D> *)memory;
    start_encoder(p, m);
    __syncthreads();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    tile_range range =
        tiles_of_block(p.edges, 16, (int)blockIdx.x * S::warps + warp, (int)gridDim.x * S::warps);
    edge_reader next(p, min(16 * range.begin + lane % 16, p.edges - 1));
    next.look(p, 16 * range.begin + lane % 16);
    const bf16 *b = m.weight + (lane / 16 * 8 + lane % 8) * S::pitch + lane / 8 % 2 * 8;
    for (int tile = range.begin; tile < range.end; tile++) {
        float low = __shfl_sync(0xffffffffu, next.value, lane / 4);
        float high = __shfl_sync(0xffffffffu, next.value, lane / 4 + 8);
        int local = lane / 4 + lane % 2 * 8, row = 16 * tile + local;
        int role = __shfl_sync(0xffffffffu, next.role, local);
        if (tile + 1 < range.end) next.look(p, 16 * (tile + 1) + lane % 16);
        float sum[S::tiles][4] = {};
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t x[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int col = k + 8 * half + lane % 4 * 2;
                float2 a = *(const float2 *)(m.a + col), c = *(const float2 *)(m.b + col);
                x[2 * half] = bf16_pair(code_of(p, a.x, c.x, low), code_of(p, a.y, c.y, low));
                x[2 * half + 1] = bf16_pair(code_of(p, a.x, c.x, high), code_of(p, a.y, c.y, high));
            }
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                uint32_t y[4];
                load_matrices<false>(y, b + 16 * j * S::pitch + k);
                multiply_add(sum[2 * j], x, y[0], y[1]);
                multiply_add(sum[2 * j + 1], x, y[2], y[3]);
            }
        }
        const float *table = p.table + (size_t)role * D + lane % 4 / 2 * 4;
        float *out = p.e + (size_t)row * D + lane % 4 / 2 * 4;
#pragma unroll
        for (int j = 0; j < S::tiles; j++) {
            float x[4], more[4];
            gather_row(sum[j], lane, x);
            if (row >= p.edges) continue;
            take4(table + 8 * j, more);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] += more[i];
            put4(out + 8 * j, x);
        }
    }
}

/* Copies de of this warp's rows, which have been loaded, to `right` in bf16. */
template <int D> __device__ void keep_own_rows(tile_memory<D> &m) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        int at = lane + 32 * i, row = 16 * warp + at / (D / 4), col = at % (D / 4) * 4;
        float x[4];
        take4(m.raw + row * D + col, x);
        *(uint2 *)(m.right + row * shape<D>::pitch + col) =
            make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
    }
}

/* Sums of de by role: de times a matrix (roles, rows) with ones where a row has the role. A warp
 * has 16 of the columns. */
template <int D> __device__ void multiply_roles(float (&sum)[2][4], const tile_memory<D> &m) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bf16 *b = m.right + lane % 16 * S::pitch + 16 * warp + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < S::rows; k += 16) {
        uint32_t x[4], y[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int2 role = *(const int2 *)(m.role + k + 8 * half + lane % 4 * 2);
            int low = lane / 4, high = lane / 4 + 8;
            x[2 * half] = bf16_pair(role.x == low, role.y == low);
            x[2 * half + 1] = bf16_pair(role.x == high, role.y == high);
        }
        load_matrices<true>(y, b + k * S::pitch);
        multiply_add(sum[0], x, y[0], y[1]);
        multiply_add(sum[1], x, y[2], y[3]);
    }
}

template <int D>
__global__ void __launch_bounds__(shape<D>::threads, shape<D>::blocks_each)
    encoder_back_kernel(const __grid_constant__ encoder p) {
    wait_for_previous();
    typedef shape<D> S;
    static_assert(D / S::warps == 16, "columns of the roles' sums of a warp");
    extern __shared__ __align__(16) unsigned char memory[];
    tile_memory<D> &m = *(tile_memory<D> *)memory;
    start_encoder(p, m);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float weight[2][S::part_n / 8][4] = {}, da[S::tiles][2] = {}, db[S::tiles][2] = {};
    float roles[2][4] = {};
    tile_range range = tiles_of_block(p.edges, S::rows, (int)blockIdx.x, (int)gridDim.x);
    int own = 16 * warp + lane % 16; /* the row whose values this lane looks up */
    edge_reader next(p, min(range.begin * S::rows + own, p.edges - 1));
    next.look(p, range.begin * S::rows + own);
    fetch_own_rows(m, p.de, range.begin * S::rows, p.edges);
    for (int tile = range.begin; tile < range.end; tile++) {
        int first = tile * S::rows, following = first + S::rows;
        __syncthreads();
        own_rows_arrived();
        keep_own_rows(m);
        if (lane < 16)
            m.value[own] = next.value, m.param[own] = next.param, m.role[own] = next.role;
        __syncwarp();
        if (tile + 1 < range.end) {
            fetch_own_rows(m, p.de, following, p.edges);
            next.look(p, following + own);
        }
        __syncthreads();
        code_rows(p, m, m.left);
        __syncthreads();
        multiply_columns<D>(weight, m.right, m.left);
        multiply_roles<D>(roles, m);
        float sum[S::tiles][4];
        multiply_rows<D, true>(sum, m.right, m.weight);
        /* rows g and g + 8; rows after the last have a zero gradient */
        int local = 16 * warp + lane / 4;
        float low = m.value[local], high = m.value[local + 8], dlow = 0, dhigh = 0;
#pragma unroll
        for (int j = 0; j < S::tiles; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int col = 8 * j + lane % 4 * 2 + i;
                float a = m.a[col], b = m.b[col], g = sum[j][i], h = sum[j][2 + i];
                if (p.sine) {
                    g *= __cosf(near_zero(a * low + b));
                    h *= __cosf(near_zero(a * high + b));
                }
                da[j][i] += g * low + h * high;
                db[j][i] += g + h;
                dlow += g * a;
                dhigh += h * a;
            }
        if (p.dw == NULL) continue;
        for (int step = 1; step < 4; step *= 2) {
            dlow += __shfl_xor_sync(0xffffffffu, dlow, step);
            dhigh += __shfl_xor_sync(0xffffffffu, dhigh, step);
        }
        if (lane % 4 == 0 && first + local < p.edges) p.dw[m.param[local]] += dlow;
        if (lane % 4 == 1 && first + local + 8 < p.edges) p.dw[m.param[local + 8]] += dhigh;
    }
    float *partial = p.partials + (size_t)blockIdx.x * p.size;
    put_part<D>(partial, weight);
    put_columns<D>(partial + D * D, da, m);
    put_columns<D>(partial + D * D + D, db, m);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int role = lane / 4 + i / 2 * 8, col = 16 * warp + 8 * j + lane % 4 * 2 + i % 2;
            if (role < p.roles) partial[D * D + 2 * D + role * D + col] = roles[j][i];
        }
}

encoder encoder_of(const wf_op *op) {
    const wf_part *part = op->part;
    encoder p = {};
    p.blocks = part->blocks;
    p.n_blocks = part->n_blocks;
    p.first_edge = part->first_edge;
    p.first_param = part->first_param;
    p.edges = part->n_edges;
    p.roles = op->in[4]->rows;
    p.sine = op->mode == WF_CODE_SINE;
    p.w = data_of(op->in[0]);
    p.a = data_of(op->in[1]);
    p.b = data_of(op->in[2]);
    p.weight = data_of(op->in[3]);
    p.table = data_of(op->in[4]);
    p.role = op->map;
    p.e = data_of(op->out[0]);
    return p;
}

/* --- readout ---------------------------------------------------------------------------------- */
struct readout {
    int edges, act, ld;
    const float *e, *weight, *bias, *last, *last_bias;
    float *out;
    const float *dout;
    float *de, *partials;
    bool add;
    int size; /* floats of a block's partial sums: dW1 (D, D), db1, dw2, db2 and 3 of padding */
};

/* LN of this warp's rows, which have been loaded, to `left`; 1 / deviation of each to `rho`. 8
 * lanes a row. */
template <int D> __device__ void norm_own_rows(tile_memory<D> &m) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int local = 16 * warp + 4 * k + lane / 8;
        float x[D / 32][4], sum = 0, square = 0;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            take4(m.raw + local * D + 32 * i + lane % 8 * 4, x[i]);
            sum += x[i][0] + x[i][1] + x[i][2] + x[i][3];
        }
        for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        float mean = sum / D;
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                x[i][c] -= mean;
                square += x[i][c] * x[i][c];
            }
        for (int step = 1; step < 8; step *= 2)
            square += __shfl_xor_sync(0xffffffffu, square, step);
        float r = rsqrtf(square / D + 1e-6f);
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            *(uint2 *)(m.left + local * S::pitch + 32 * i + lane % 8 * 4) = make_uint2(
                bf16_pair(x[i][0] * r, x[i][1] * r), bf16_pair(x[i][2] * r, x[i][3] * r));
        if (lane % 8 == 0) m.rho[local] = r;
    }
    __syncwarp();
}

__device__ inline float readout_activation(int act, float x, float *slope) {
    const float linear = 1.5957691216057308f, cubic = 0.07135481627260025f;
    float square = x * x;
    bool gelu = act == WF_TAPE_ACT_GELU;
    float inner = gelu ? x * (linear + cubic * square) : x;
    float inner_slope = gelu ? linear + 3 * cubic * square : 1;
    float s = __fdividef(1, 1 + __expf(-inner));
    *slope = s + x * s * (1 - s) * inner_slope;
    return x * s;
}

template <int D> __device__ void start_readout(const readout &p, tile_memory<D> &m) {
    take_weight<D>(m.weight, p.weight);
    for (int c = (int)threadIdx.x; c < D; c += shape<D>::threads)
        m.b[c] = p.bias[c], m.c[c] = p.last[c];
}

template <int D>
__global__ void __launch_bounds__(shape<D>::threads)
    readout_kernel(const __grid_constant__ readout p) {
    wait_for_previous();
    typedef shape<D> S;
    extern __shared__ __align__(16) unsigned char memory[];
    tile_memory<D> &m = *(tile_memory<D> *)memory;
    start_readout(p, m);
    __syncthreads();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float last_bias = p.last_bias[0];
    tile_range range = tiles_of_block(p.edges, S::rows, (int)blockIdx.x, (int)gridDim.x);
    fetch_own_rows(m, p.e, range.begin * S::rows, p.edges);
    for (int tile = range.begin; tile < range.end; tile++) {
        int first = tile * S::rows;
        own_rows_arrived();
        norm_own_rows(m);
        if (tile + 1 < range.end) fetch_own_rows(m, p.e, first + S::rows, p.edges);
        float sum[S::tiles][4], low = 0, high = 0, slope;
        multiply_rows<D, false>(sum, m.left, m.weight);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < S::tiles; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int col = 8 * j + lane % 4 * 2 + i;
                low += m.c[col] * readout_activation(p.act, sum[j][i] + m.b[col], &slope);
                high += m.c[col] * readout_activation(p.act, sum[j][2 + i] + m.b[col], &slope);
            }
        for (int step = 1; step < 4; step *= 2) {
            low += __shfl_xor_sync(0xffffffffu, low, step);
            high += __shfl_xor_sync(0xffffffffu, high, step);
        }
        /* a row of the result is one value and padding: four lanes, four columns each */
        int row = first + 16 * warp + lane / 4, col = lane % 4 * 4;
        float4 zero = make_float4(0, 0, 0, 0), x = zero, y = zero;
        if (col == 0) x.x = low + last_bias, y.x = high + last_bias;
        if (row < p.edges) *(float4 *)(p.out + (size_t)row * p.ld + col) = x;
        if (row + 8 < p.edges) *(float4 *)(p.out + (size_t)(row + 8) * p.ld + col) = y;
    }
}

/* From dy = dx W1 to the gradient by e. A lane has four neighbours of one row; the lane with the
 * rest of the row is two away. */
template <int D>
__device__ void norm_back_own_rows(const readout &p, int first, const float (&sum)[D / 8][4],
                                   const tile_memory<D> &m) {
    typedef shape<D> S;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int local = 16 * warp + lane / 4 + lane % 2 * 8, row = first + local;
    bool there = row < p.edges;
    const bf16 *y = m.left + local * S::pitch + lane % 4 / 2 * 4;
    float *out = p.de + (size_t)(there ? row : 0) * D + lane % 4 / 2 * 4;
    float g[S::tiles][4], total = 0, along = 0, r = m.rho[local];
#pragma unroll
    for (int j = 0; j < S::tiles; j++) {
        gather_row(sum[j], lane, g[j]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            total += g[j][i];
            along += g[j][i] * __bfloat162float(y[8 * j + i]);
        }
    }
    total = (total + __shfl_xor_sync(0xffffffffu, total, 2)) / D;
    along = (along + __shfl_xor_sync(0xffffffffu, along, 2)) / D;
    if (!there) return;
#pragma unroll
    for (int j = 0; j < S::tiles; j++) {
        float before[4] = {};
        if (p.add) take4(out + 8 * j, before);
#pragma unroll
        for (int i = 0; i < 4; i++)
            before[i] += r * (g[j][i] - total - __bfloat162float(y[8 * j + i]) * along);
        put4(out + 8 * j, before);
    }
}

template <int D>
__global__ void __launch_bounds__(shape<D>::threads, shape<D>::blocks_each)
    readout_back_kernel(const __grid_constant__ readout p) {
    wait_for_previous();
    typedef shape<D> S;
    extern __shared__ __align__(16) unsigned char memory[];
    tile_memory<D> &m = *(tile_memory<D> *)memory;
    start_readout(p, m);
    __syncthreads();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float weight[2][S::part_n / 8][4] = {}, db[S::tiles][2] = {}, dlast[S::tiles][2] = {};
    float dlast_bias = 0;
    tile_range range = tiles_of_block(p.edges, S::rows, (int)blockIdx.x, (int)gridDim.x);
    fetch_own_rows(m, p.e, range.begin * S::rows, p.edges);
    for (int tile = range.begin; tile < range.end; tile++) {
        int first = tile * S::rows, local = 16 * warp + lane / 4, row = first + local;
        float low = row < p.edges ? p.dout[(size_t)row * p.ld] : 0;
        float high = row + 8 < p.edges ? p.dout[(size_t)(row + 8) * p.ld] : 0;
        own_rows_arrived();
        norm_own_rows(m);
        if (tile + 1 < range.end) fetch_own_rows(m, p.e, first + S::rows, p.edges);
        float sum[S::tiles][4];
        multiply_rows<D, false>(sum, m.left, m.weight);
        if (lane % 4 == 0) dlast_bias += low + high;
#pragma unroll
        for (int j = 0; j < S::tiles; j++) {
            float dx[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int col = 8 * j + lane % 4 * 2 + i;
                float slope, other;
                dlast[j][i] += low * readout_activation(p.act, sum[j][i] + m.b[col], &slope);
                dlast[j][i] += high * readout_activation(p.act, sum[j][2 + i] + m.b[col], &other);
                dx[i] = low * m.c[col] * slope;
                dx[2 + i] = high * m.c[col] * other;
                db[j][i] += dx[i] + dx[2 + i];
            }
            bf16 *to = m.right + local * S::pitch + 8 * j + lane % 4 * 2;
            *(uint32_t *)to = bf16_pair(dx[0], dx[1]);
            *(uint32_t *)(to + 8 * S::pitch) = bf16_pair(dx[2], dx[3]);
        }
        __syncthreads();
        multiply_columns<D>(weight, m.right, m.left);
        multiply_rows<D, true>(sum, m.right, m.weight);
        norm_back_own_rows<D>(p, first, sum, m);
        __syncthreads();
    }
    float *partial = p.partials + (size_t)blockIdx.x * p.size;
    put_part<D>(partial, weight);
    put_columns<D>(partial + D * D, db, m);
    put_columns<D>(partial + D * D + D, dlast, m);
    float all = warp_sum(dlast_bias);
    __syncthreads();
    if (lane == 0) m.value[warp] = all;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < S::warps; w++) all += m.value[w];
    put4(partial + D * D + 2 * D, {all, 0, 0, 0});
}

readout readout_of(const wf_op *op) {
    readout p = {};
    p.edges = op->in[0]->rows;
    p.act = op->act;
    p.ld = op->out[0]->ld;
    p.e = data_of(op->in[0]);
    p.weight = data_of(op->in[1]);
    p.bias = data_of(op->in[2]);
    p.last = data_of(op->in[3]);
    p.last_bias = data_of(op->in[4]);
    p.out = data_of(op->out[0]);
    return p;
}

/* --- launches --------------------------------------------------------------------------------- */
template <int D> void run_encoder(const encoder &p, bool backward) {
    typedef shape<D> S;
    size_t start = offsetof(tile_memory<D>, left); /* forward needs no tiles */
    if (backward)
        start_kernel(encoder_back_kernel<D>, all_blocks(S::blocks_each), S::threads,
                     sizeof(tile_memory<D>), p);
    else start_kernel(encoder_kernel<D>, all_blocks(S::encoder_blocks), S::threads, start, p);
}
template <int D> void run_readout(const readout &p, bool backward) {
    typedef shape<D> S;
    if (backward)
        start_kernel(readout_back_kernel<D>, all_blocks(S::blocks_each), S::threads,
                     sizeof(tile_memory<D>), p);
    else
        start_kernel(readout_kernel<D>, all_blocks(S::readout_blocks), S::threads,
                     sizeof(tile_memory<D>), p);
}
void run(const encoder &p, int width, bool backward) {
    if (width == 64) run_encoder<64>(p, backward);
    else run_encoder<128>(p, backward);
}
void run(const readout &p, int width, bool backward) {
    if (width == 64) run_readout<64>(p, backward);
    else run_readout<128>(p, backward);
}
int blocks_of(int width) {
    return (int)all_blocks(width > 64 ? (int)shape<128>::blocks_each : (int)shape<64>::blocks_each);
}

/* Width 128 takes 175 KB of shared memory, which not every GPU has. */
bool width_fits(int width) {
    return width == 64 || (width == 128 && (size_t)most_shared_bytes() >= sizeof(tile_memory<128>));
}
bool square(const wf_tensor *weight, int width) {
    return weight->rows == width && weight->cols == width;
}
float *gradient(const wf_tensor *t) { return wanted(t) ? grad_of(t) : NULL; }

} // namespace

bool edge_encoder_fits(const wf_op *op) {
    int width = op->in[3]->rows;
    return op->in[2] != NULL && width_fits(width) && square(op->in[3], width) &&
           op->in[4]->rows <= most_roles && op->mode != WF_CODE_FOURIER;
}

bool edge_readout_fits(const wf_op *op) {
    int width = op->in[0]->cols;
    return width_fits(width) && square(op->in[1], width) && op->in[3]->rows == 1;
}

bool edge_encoder_forward(const wf_op *op, wf_arena *) {
    if (op->part->n_edges > 0) run(encoder_of(op), op->in[3]->rows, false);
    return launched();
}

bool edge_encoder_backward(const wf_op *op, wf_arena *arena) {
    encoder p = encoder_of(op);
    int width = op->in[3]->rows, square = width * width, blocks = blocks_of(width);
    if (p.edges == 0) return true;
    p.size = square + 2 * width + p.roles * width;
    p.partials = scratch(arena, (size_t)blocks * (size_t)p.size);
    if (p.partials == NULL) return false;
    p.de = grad_of(op->out[0]);
    p.dw = gradient(op->in[0]);
    run(p, width, true);
    launch_add(block_sums{p.partials,
                          blocks,
                          p.size,
                          4,
                          {{gradient(op->in[3]), 0, square},
                           {gradient(op->in[1]), square, width},
                           {gradient(op->in[2]), square + width, width},
                           {gradient(op->in[4]), square + 2 * width, p.roles * width}}});
    return launched();
}

bool edge_readout_forward(const wf_op *op, wf_arena *) {
    if (op->in[0]->rows > 0) run(readout_of(op), op->in[0]->cols, false);
    return launched();
}

bool edge_readout_backward(const wf_op *op, wf_arena *arena) {
    readout p = readout_of(op);
    const wf_tensor *e = op->in[0];
    int width = e->cols, square = width * width, blocks = blocks_of(width);
    if (p.edges == 0) return true;
    p.size = square + 2 * width + 4; /* partial sums are written 16 bytes at a time */
    p.partials = scratch(arena, (size_t)blocks * (size_t)p.size);
    float *unwanted = wanted(e) ? NULL : scratch_rows(arena, e->rows, e->cols);
    if (p.partials == NULL || (!wanted(e) && unwanted == NULL)) return false;
    p.dout = grad_of(op->out[0]);
    p.de = wanted(e) ? grad_of(e) : unwanted;
    p.add = wanted(e) && !cancel_zero(e);
    run(p, width, true);
    launch_add(block_sums{p.partials,
                          blocks,
                          p.size,
                          4,
                          {{gradient(op->in[1]), 0, square},
                           {gradient(op->in[2]), square, width},
                           {gradient(op->in[3]), square + width, width},
                           {gradient(op->in[4]), square + 2 * width, 1}}});
    return launched();
}

} // namespace wf_gpu
