/* chain_cuda: a chain of steps on the rows of one height, in one launch. Steps: chain_cuda.cuh.
 *
 *   block    a tile of 64 rows (16 where there are few rows) goes through all steps
 *   product  n in tiles of 64 columns (few rows: 128), k in steps of 64; the weights' tiles come through a ring of two or three buffers of
 *            shared memory by cp.async, which runs ahead over the bounds of products and steps: weights depend on nothing
 *   warp     16 x 32 (few rows: 16 x 16) by mma.sync m16n8k16, sums over k in order
 *   others   a warp takes rows, four at once, or threads take four columns of a row each
 * Between steps the block waits; what one step wrote to memory the next reads from the caches.
 * FLOPs 2 rows k n a product; bytes: weights in bf16 once per tile of rows from L2, results in float.
 * Measured, H200, ncu, a lean block of width 64 with 25,856 nodes, before the places of the tiles were found out ahead: 173 us
 * forward (4.2 GFLOP), 192 backward, 36 and 41 for the 256 graphs: 25 TFLOP/s, far below every limit. What holds it back: a
 * warp issues an instruction every ten to twenty cycles, waiting for barriers and for the step before. */
#include "tensor/cuda/chain_cuda.cuh"
#include "tensor/cuda/fragments_cuda.cuh"

namespace wf_gpu {
namespace {

static_assert(sizeof(chain) <= 4096, "the arguments of a kernel");

typedef __nv_bfloat16 bf16;
enum { ring_k = 64 };

/* As smooth_unit, with the fast exponential: its error is far below bf16's. */
__device__ inline float quick_unit(int unit, float x, float *slope) {
    const float linear = 1.5957691216057308f, cubic = 0.07135481627260025f;
    float square = x * x;
    bool gelu = unit == WF_UNIT_GELU;
    float inner = gelu ? x * (linear + cubic * square) : x;
    float inner_slope = gelu ? linear + 3 * cubic * square : 1;
    float s = __fdividef(1, 1 + __expf(-inner));
    *slope = s + x * s * (1 - s) * inner_slope;
    return x * s;
}

__device__ inline void keep4(bf16 *to, const float (&x)[4]) {
    *(uint2 *)to = make_uint2(pair(x[0], x[1]), pair(x[2], x[3]));
}

/* Whether this block takes the product at a step. */
__device__ inline bool mine(const chain &c, int step) {
    if (c.step[step].kind != chain_product) return false;
    if (gridDim.y == 1) return true;
    int before = 0;
    for (int k = 0; k < step; k++) before += c.step[k].kind == chain_product;
    return before == (int)blockIdx.y;
}

/* --- the ring of weights ------------------------------------------------------------------------------------ */
/* Tiles of all products' weights in the order in which they are used. Where each lies is found out at the start, by a thread
 * for each. */
struct weight_place {
    const bf16 *w; /* the tile's first element; NULL: there is none */
    int ld;
    int16_t rows, cols; /* that there are: negative for a tile that is read transposed */
};

template <int BN> __device__ int tiles_of(const chain_step &s) {
    int deep = 0;
    for (int p = 0; p < s.parts; p++) deep += (s.part[p].k + ring_k - 1) / ring_k;
    return deep * ((s.cols + BN - 1) / BN);
}

template <int BN> __device__ weight_place place_of(const chain &c, int tile) {
    weight_place place = {};
    for (int k = 0; k < c.count; k++) {
        if (!mine(c, k)) continue;
        const chain_step &s = c.step[k];
        int tiles = tiles_of<BN>(s);
        if (tile >= tiles) {
            tile -= tiles;
            continue;
        }
        int deep = tiles / ((s.cols + BN - 1) / BN), n = tile / deep * BN, p = 0;
        for (tile %= deep; tile >= (s.part[p].k + ring_k - 1) / ring_k; p++)
            tile -= (s.part[p].k + ring_k - 1) / ring_k;
        const chain_part &part = s.part[p];
        int depth = tile * ring_k, row = s.transposed ? depth : n, col = s.transposed ? n : depth;
        int rows = min((s.transposed ? part.k : s.cols) - row, 1024);
        place.w = part.w + (size_t)row * part.ld + col;
        place.ld = part.ld;
        place.rows = (int16_t)(s.transposed ? -rows : rows);
        place.cols = (int16_t)min(part.ld - col, 1024);
        break;
    }
    return place;
}

template <int BN, int threads, int ring> struct weight_ring {
    enum {
        straight_pitch = ring_k + padding,
        crossed_pitch = BN + padding,
        straight = BN * straight_pitch,
        crossed = ring_k * crossed_pitch,
        size = straight > crossed ? straight : crossed
    };
    bf16 *buffers;
    const weight_place *next;
    int into, from; /* buffers of the next tile to be fetched and to be used */

    /* places: of all tiles and ring - 1 empty ones behind them */
    __device__ weight_ring(bf16 *memory, const weight_place *places)
        : buffers(memory), next(places), into(0), from(0) {
        for (int i = 0; i < ring - 1; i++) fetch();
    }
    /* Units of 8 elements, `across` of them along a row of the weight. */
    template <int across, int pitch> __device__ void copy(const weight_place &p, int rows) const {
        enum { units = BN * ring_k / 8, down = threads / across };
        int row = (int)threadIdx.x / across, col = (int)threadIdx.x % across * 8;
        const bf16 *source = p.w + (size_t)row * p.ld + col;
        uint32_t at = (uint32_t)__cvta_generic_to_shared(buffers + into * size + row * pitch + col);
#pragma unroll
        for (int i = 0; i < units / threads; i++) {
            bool there = row + i * down < rows && col < p.cols;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             at + (uint32_t)(i * down * pitch * (int)sizeof(bf16))),
                         "l"(there ? source + (size_t)(i * down) * p.ld : p.w), "r"(there ? 16 : 0)
                         : "memory");
        }
    }
    __device__ void fetch() {
        weight_place p = *next++;
        if (p.w != NULL) {
            if (p.rows < 0) copy<BN / 8, crossed_pitch>(p, -p.rows);
            else copy<ring_k / 8, straight_pitch>(p, p.rows);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        into = into + 1 == ring ? 0 : into + 1;
    }
    /* The next tile to be multiplied; another is fetched behind it. */
    __device__ const bf16 *take() {
        asm volatile("cp.async.wait_group %0;" ::"n"(ring - 2) : "memory");
        __syncthreads();
        const bf16 *tile = buffers + from * size;
        from = from + 1 == ring ? 0 : from + 1;
        fetch();
        return tile;
    }
};

/* --- products ------------------------------------------------------------------------------------------------ */
__device__ inline void add4(float (&x)[4], const float (&more)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] += more[i];
}
__device__ inline void add_existing(const float *out, float (&x)[4]) {
    float more[4];
    take4(out, more);
    add4(x, more);
}

/* What becomes of a row of a product: pointers into that row, at this lane's first column. aligned: bias, table and gate lie
 * in whole fours, as everything else does. */
template <int after, bool aligned> struct product_row {
    float *out, *raw;
    const float *bias, *table, *gate, *other;
    float scale;
    int cols, unit;
    bool add, there;
    bf16 *slot;

    __device__ product_row(const chain_step &s, bf16 *slots, int rows, int row, int local,
                           int col) {
        there = row < rows;
        cols = s.cols;
        unit = s.unit;
        add = s.add;
        size_t r = there ? (size_t)row : 0;
        out = s.out + r * s.ld_out + col;
        raw = s.raw == NULL ? NULL : s.raw + r * s.ld_raw + col;
        bias = s.bias == NULL ? NULL : s.bias + col;
        scale = s.bias == NULL || s.scale == NULL ? 1 : s.scale[r];
        table = s.table == NULL ? NULL : s.table + (size_t)s.map[r] * s.ld_table + col;
        gate = NULL;
        other = NULL;
        if (after == chain_residual) {
            other = s.x + r * s.ldx + col;
            if (s.gate != NULL) gate = s.gate + (size_t)s.gate_map[r] * s.ld_gate + col;
        }
        if (after == chain_unit_back) other = s.other + r * s.ld_other + col;
        slot = s.slot < 0 ? NULL : slots + s.slot + local * slot_pitch(s.cols) + col;
    }
    __device__ static void look(const float *from, int left, float (&v)[4]) {
        if (aligned) fetch4<true>(from, left, v);
        else fetch4<false>(from, left, v);
    }
    /* Four sums at `step` behind the first column, of which `left` are columns. */
    __device__ void finish(int step, int left, float (&x)[4]) const {
        float more[4], slope[4];
        if (there) {
            if (after != chain_unit_back && add) add_existing(out + step, x);
            if (bias != NULL) {
                look(bias + step, left, more);
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] += scale * more[i];
            }
            if (table != NULL) {
                look(table + step, left, more);
                add4(x, more);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = (aligned ? left > 0 : i < left) ? x[i] : 0;
            if (after != chain_load && raw != NULL) put4(raw + step, x);
            if (after == chain_unit) {
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = quick_unit(unit, x[i], &slope[i]);
            } else if (after == chain_unit_back) {
                take4(other + step, more);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    quick_unit(unit, more[i], &slope[i]);
                    x[i] *= slope[i];
                }
                if (add) add_existing(out + step, x);
            } else if (after == chain_residual) {
                if (gate != NULL) {
                    look(gate + step, left, more);
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] *= 1 + more[i];
                }
                add_existing(other + step, x);
            }
            put4(out + step, x);
        }
        if (slot != NULL) keep4(slot + step, x);
    }
};

/* One tile of weights: k of `steps` sixteens. */
template <int WN, bool transposed, int w_pitch>
__device__ inline void multiply_tile(float (&sum)[WN / 8][4], const bf16 *a, const bf16 *b,
                                     int steps) {
#pragma unroll
    for (int kk = 0; kk < ring_k / 16; kk++) {
        if (kk >= steps) break;
        uint32_t x[4], y[WN / 16][4];
        load_matrices<false>(x, a + 16 * kk);
#pragma unroll
        for (int j = 0; j < WN / 16; j++)
            load_matrices<transposed>(y[j], transposed ? b + 16 * kk * w_pitch + 16 * j
                                                       : b + 16 * j * w_pitch + 16 * kk);
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
            multiply_add(sum[j], x, y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}

/* A warp has 16 rows; a lane one row of each tile of 16 x 8 sums, see gather_row. */
template <int TM, int BN, int WN, int after, bool aligned, class Ring>
__device__ __noinline__ void product(const chain &c, const chain_step &s, bf16 *slots,
                                     Ring &weights, int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % (TM / 16) * 16, across = warp / (TM / 16) * WN;
    bool transposed = s.transposed;
    int cols = s.cols, parts = s.parts, local = down + lane / 4 + lane % 2 * 8;
    int col = across + lane % 4 / 2 * 4, width = whole16(cols);
    product_row<after, aligned> row(s, slots, c.rows, first + local, local, col);
    /* where this lane's rows of the matrices begin in a tile of weights */
    int offset =
        transposed ? lane % 16 * Ring::crossed_pitch + across + lane / 16 * 8
                   : (across + lane / 16 * 8 + lane % 8) * Ring::straight_pitch + lane / 8 % 2 * 8;
    for (int n = 0; n < cols; n += BN) {
        float sum[WN / 8][4] = {};
        for (int p = 0; p < parts; p++) {
            int depth = s.part[p].k, k_end = whole16(depth);
            const bf16 *a =
                slots + s.part[p].slot + (down + lane % 16) * slot_pitch(depth) + lane / 16 * 8;
            for (int k = 0; k < k_end; k += ring_k) {
                const bf16 *b = weights.take() + offset;
                int steps = min(ring_k, k_end - k) / 16;
                if (transposed) multiply_tile<WN, true, Ring::crossed_pitch>(sum, a + k, b, steps);
                else multiply_tile<WN, false, Ring::straight_pitch>(sum, a + k, b, steps);
            }
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            float x[4];
            gather_row(sum[j], lane, x);
            if (n + col + 8 * j < width) row.finish(n + 8 * j, cols - col - n - 8 * j, x);
        }
    }
}

template <int TM, int BN, int WN, bool aligned, class Ring>
__device__ void product_of(const chain &c, const chain_step &s, bf16 *slots, Ring &weights,
                           int first) {
    switch (s.after) {
    case chain_unit: product<TM, BN, WN, chain_unit, aligned>(c, s, slots, weights, first); break;
    case chain_unit_back:
        product<TM, BN, WN, chain_unit_back, aligned>(c, s, slots, weights, first);
        break;
    case chain_residual:
        product<TM, BN, WN, chain_residual, aligned>(c, s, slots, weights, first);
        break;
    default: product<TM, BN, WN, chain_load, aligned>(c, s, slots, weights, first);
    }
}

/* --- steps on single elements -------------------------------------------------------------------------------- */
/* The graph of a row by the graphs' first rows. */
__device__ inline int graph_of(const uint32_t *start, int graphs, int row) {
    int low = 0, high = graphs;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((int)start[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

__device__ inline void element(const chain_step &s, int row, int col, float (&x)[4]) {
    float more[4], slope[4];
    int left = s.cols - col;
    size_t from = (size_t)row;
    float factor = 1;
    if (s.kind == chain_mean_back) {
        int graph = graph_of(s.start, s.graphs, row);
        from = (size_t)graph;
        factor = 1 / (float)(s.start[graph + 1] - s.start[graph]);
    }
    const float *source = s.x + from * s.ldx + col;
    if (((uintptr_t)source & 15) == 0 && left >= 4) {
        take4(source, x);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = i < left ? source[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = i < left ? factor * x[i] : 0;
    switch (s.kind) {
    case chain_unit:
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = quick_unit(s.unit, x[i], &slope[i]);
        break;
    case chain_unit_back: take4(s.other + (size_t)row * s.ld_other + col, more);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            quick_unit(s.unit, more[i], &slope[i]);
            x[i] *= slope[i];
        }
        break;
    case chain_residual:
    case chain_residual_back: {
        float gate[4] = {}, branch[4] = {};
        if (s.table != NULL) look4(s.table + (size_t)s.map[row] * s.ld_table + col, left, gate);
        if (s.kind == chain_residual) take4(s.other + (size_t)row * s.ld_other + col, branch);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] =
                s.kind == chain_residual ? x[i] + (1 + gate[i]) * branch[i] : (1 + gate[i]) * x[i];
        break;
    }
    default: break;
    }
}

/* 2^shift lanes for a row. */
template <int TM, int threads>
__device__ __noinline__ void elements(const chain &c, const chain_step &s, bf16 *slots, int first) {
    int quads = whole16(s.cols) / 4, shift = quads > 16 ? 5 : quads > 8 ? 4 : quads > 4 ? 3 : 2;
    int lane = (int)threadIdx.x & ((1 << shift) - 1);
    for (int quad = lane; quad < quads; quad += 1 << shift)
#pragma unroll 4
        for (int local = (int)threadIdx.x >> shift; local < TM; local += threads >> shift) {
            int col = quad * 4, row = first + local;
            float x[4] = {};
            if (row < c.rows) {
                element(s, row, col, x);
                if (s.out != NULL) {
                    float *out = s.out + (size_t)row * s.ld_out + col;
                    if (s.add) add_existing(out, x);
                    put4(out, x);
                }
            }
            if (s.slot >= 0) keep4(slots + s.slot + local * slot_pitch(s.cols) + col, x);
        }
}

/* slot = x, the commonest of them: whole rows of fours are all in flight at once. */
template <int TM, int threads>
__device__ __noinline__ void load_rows(const chain &c, const chain_step &s, bf16 *slots,
                                       int first) {
    enum { ahead = 8 };
    int quads = whole16(s.cols) / 4, shift = quads > 16 ? 5 : quads > 8 ? 4 : quads > 4 ? 3 : 2;
    int lane = (int)threadIdx.x & ((1 << shift) - 1), pitch = slot_pitch(s.cols);
    int step = threads >> shift, rows = c.rows, ld = s.ldx;
    for (int quad = lane; quad < quads; quad += 1 << shift)
        for (int local = (int)threadIdx.x >> shift; local < TM; local += ahead * step) {
            float4 x[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                int row = first + local + i * step;
                x[i] = make_float4(0, 0, 0, 0);
                if (local + i * step < TM && row < rows)
                    x[i] = *(const float4 *)(s.x + (size_t)row * ld + 4 * quad);
            }
            bf16 *to = slots + s.slot + local * pitch + 4 * quad;
#pragma unroll
            for (int i = 0; i < ahead; i++)
                if (local + i * step < TM)
                    *(uint2 *)(to + i * step * pitch) =
                        make_uint2(pair(x[i].x, x[i].y), pair(x[i].z, x[i].w));
        }
}

/* --- layer norm ------------------------------------------------------------------------------------------------ */
/* 8 lanes a row, 4 rows a warp at once; a lane has the quads lane % 8, + 8 ... of up to 128 columns. */
enum { held_quads = 4 };

__device__ inline float sum8(float x) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

struct held_row {
    float v[held_quads][4];
    /* zeros where there is nothing */
    __device__ void load(const float *row, int cols, int lane, bool there) {
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = 4 * (lane % 8 + 8 * i);
            float4 x = make_float4(0, 0, 0, 0);
            if (there && col < cols) x = *(const float4 *)(row + col);
            v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
        }
    }
    /* To (v - mean) / deviation; padding stays zero. */
    __device__ void normalise(int cols, int lane, float *mean, float *rho) {
        float sum = 0, square = 0;
#pragma unroll
        for (int i = 0; i < held_quads; i++) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
        *mean = sum8(sum) / (float)cols;
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                v[i][c] = 4 * (lane % 8 + 8 * i) + c < cols ? v[i][c] - *mean : 0;
                square += v[i][c] * v[i][c];
            }
        *rho = rsqrtf(sum8(square) / (float)cols + 1e-6f);
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) v[i][c] *= *rho;
    }
};

template <int TM, int warps>
__device__ __noinline__ void norm_tile(const chain &c, const chain_step &s, bf16 *slots,
                                       int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, cols = s.cols;
#pragma unroll 1
    for (int local = warp * 4 + lane / 8; local < TM; local += warps * 4) {
        int row = first + local;
        bool there = row < c.rows;
        held_row x;
        float mean, rho;
        x.load(s.x + (size_t)row * s.ldx, cols, lane, there);
        x.normalise(cols, lane, &mean, &rho);
        const float *shift =
            s.table == NULL || !there ? NULL : s.table + (size_t)s.map[row] * s.ld_table;
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = 4 * (lane % 8 + 8 * i);
            if (col >= whole16(cols)) break;
            float *y = x.v[i];
            if (shift != NULL && col < cols) {
                float scales[4], shifts[4];
                look4(shift + col, cols - col, shifts);
                look4(shift + cols + col, cols - col, scales);
#pragma unroll
                for (int k = 0; k < 4; k++) y[k] = y[k] * (1 + scales[k]) + shifts[k];
            }
            if (there) put4(s.out + (size_t)row * s.ld_out + col, x.v[i]);
            if (s.slot >= 0) keep4(slots + s.slot + local * slot_pitch(cols) + col, x.v[i]);
        }
    }
}

/* g = the gradient by the normalised value: x, times 1 + scale. */
template <int TM, int warps>
__device__ __noinline__ void norm_back_tile(const chain &c, const chain_step &s, bf16 *slots,
                                            int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, cols = s.cols;
#pragma unroll 1
    for (int local = warp * 4 + lane / 8; local < TM; local += warps * 4) {
        int row = first + local;
        bool there = row < c.rows;
        held_row x, g;
        float mean, rho, sum = 0, along = 0;
        x.load(s.other + (size_t)row * s.ld_other, cols, lane, there);
        g.load(s.x + (size_t)row * s.ldx, cols, lane, there);
        x.normalise(cols, lane, &mean, &rho);
        if (s.table != NULL && there) {
            const float *scale = s.table + (size_t)s.map[row] * s.ld_table + cols;
#pragma unroll
            for (int i = 0; i < held_quads; i++) {
                int col = 4 * (lane % 8 + 8 * i);
                float scales[4];
                look4(scale + col, cols - col, scales);
#pragma unroll
                for (int k = 0; k < 4; k++) g.v[i][k] *= 1 + scales[k];
            }
        }
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum += g.v[i][k];
                along += g.v[i][k] * x.v[i][k];
            }
        sum = sum8(sum) / (float)cols;
        along = sum8(along) / (float)cols;
        if (s.stats != NULL && there && lane % 8 == 0)
            *(float2 *)(s.stats + 2 * (size_t)row) = make_float2(mean, rho);
        if (s.out == NULL) continue;
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = 4 * (lane % 8 + 8 * i);
            if (col >= whole16(cols)) break;
            float dx[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                dx[k] = col + k < cols ? rho * (g.v[i][k] - sum - x.v[i][k] * along) : 0;
            float *out = s.out + (size_t)row * s.ld_out + col;
            if (there && s.add) add_existing(out, dx);
            if (there) put4(out, dx);
            if (s.slot >= 0) keep4(slots + s.slot + local * slot_pitch(cols) + col, dx);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------------------------- */
template <int TM, int BN, int WN, int ring>
__global__ void __launch_bounds__(TM / 16 * BN / WN * 32, TM == 16 ? 1 : 3)
    chain_kernel(const __grid_constant__ chain argument) {
    enum { threads = TM / 16 * BN / WN * 32 };
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ chain c; /* read all the time, by indices */
    __shared__ weight_place places[chain_most_tiles + ring];
    for (int at = (int)threadIdx.x; at < (int)(sizeof(chain) / sizeof(uint32_t)); at += threads)
        ((uint32_t *)&c)[at] = ((const uint32_t *)&argument)[at];
    __syncthreads();
    int tiles = 0;
    for (int k = 0; k < c.count; k++)
        if (mine(c, k)) tiles += tiles_of<BN>(c.step[k]);
    for (int at = (int)threadIdx.x; at < tiles + ring; at += threads)
        places[at] = place_of<BN>(c, at);
    __syncthreads();
    typedef weight_ring<BN, threads, ring> ring_of_weights;
    bf16 *slots = (bf16 *)memory + ring * ring_of_weights::size;
    ring_of_weights weights((bf16 *)memory, places);
    int first = (int)blockIdx.x * TM;
    for (int k = 0; k < c.count; k++) {
        const chain_step &s = c.step[k];
        switch (s.kind) {
        case chain_product:
            if (!mine(c, k)) break;
            if (s.aligned) product_of<TM, BN, WN, true>(c, s, slots, weights, first);
            else product_of<TM, BN, WN, false>(c, s, slots, weights, first);
            break;
        case chain_norm: norm_tile<TM, threads / 32>(c, s, slots, first); break;
        case chain_norm_back: norm_back_tile<TM, threads / 32>(c, s, slots, first); break;
        case chain_load:
            if (s.aligned) load_rows<TM, threads>(c, s, slots, first);
            else elements<TM, threads>(c, s, slots, first);
            break;
        default: elements<TM, threads>(c, s, slots, first);
        }
        __syncthreads();
    }
}

template <int TM, int BN, int WN, int ring> void launch(const chain &c, size_t bytes) {
    enum { threads = TM / 16 * BN / WN * 32 };
    bytes += ring * weight_ring<BN, threads, ring>::size * sizeof(bf16);
    static size_t allowed = 40 << 10;
    if (bytes > allowed) {
        cudaFuncSetAttribute(chain_kernel<TM, BN, WN, ring>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        allowed = bytes;
    }
    unsigned products = 0;
    for (int k = 0; k < c.count; k++) products += c.step[k].kind == chain_product;
    dim3 grid(blocks_for((size_t)c.rows, TM), c.apart && TM == 16 && products > 0 ? products : 1);
    chain_kernel<TM, BN, WN, ring><<<grid, threads, bytes, stream()>>>(c);
}

__device__ void pack_rows_of(const pack_job &job, int first, int last) {
    int ld = whole16(job.cols);
    for (int at = first * ld + (int)threadIdx.x; at < last * ld; at += threads_each) {
        int row = at / ld, col = at % ld;
        job.to[at] = __float2bfloat16_rn(col < job.cols ? job.w[(size_t)row * job.cols + col] : 0);
    }
}
__global__ void pack_kernel(pack_job job) {
    int first = (int)blockIdx.x * pack_rows;
    pack_rows_of(job, first, min(job.rows, first + pack_rows));
}
__global__ void pack_all_kernel(const pack_job *jobs) {
    pack_rows_of(jobs[blockIdx.x], 0, jobs[blockIdx.x].rows);
}

} // namespace

/* Blocks of 64 rows that fit on an SM; registers are for three. A shorter ring is worth it when one more fits. */
template <int ring> static int resident(size_t slots) {
    enum { all = 228 << 10, fixed = 7 << 10 };
    size_t each = slots + ring * weight_ring<64, 256, ring>::size * sizeof(bf16) + fixed;
    size_t count = all / each;
    return count < 3 ? (int)count : 3;
}

void chain_launch(const chain &c) {
    if (c.rows == 0 || c.count == 0) return;
    size_t bytes = (size_t)c.slots * sizeof(bf16);
    if (chain_tile(c.rows) == 16) launch<16, 128, 16, 3>(c, bytes);
    else if (resident<2>(bytes) > resident<3>(bytes)) launch<64, 64, 32, 2>(c, bytes);
    else launch<64, 64, 32, 3>(c, bytes);
}

void chain_pack(const pack_job &job) {
    if (job.rows > 0)
        pack_kernel<<<blocks_for((size_t)job.rows, pack_rows), threads_each, 0, stream()>>>(job);
}

void chain_pack_all(const pack_job *jobs, int count) {
    if (count > 0) pack_all_kernel<<<(unsigned)count, threads_each, 0, stream()>>>(jobs);
}

} // namespace wf_gpu
