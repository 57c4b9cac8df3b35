/* chain_cuda: a chain of steps on the rows of one height, in one launch. Steps: chain_cuda.cuh.
 *
 *   block    a tile of 64 rows (16 where there are few rows) goes through all steps
 *   product  n in tiles of 64 or 128 columns, k in steps of 64; the weights' tiles come through a ring of three buffers of
 *            shared memory by cp.async, which runs ahead over the bounds of products and steps: weights depend on nothing
 *   warp     32 x 32 (few rows: 16 x 16) by mma.sync m16n8k16, sums over k in order
 *   others   a warp takes rows, four at once, or threads take four columns of a row each
 * Between steps the block waits; what one step wrote to memory the next reads from the caches.
 * FLOPs 2 rows k n a product; bytes: weights in bf16 once per tile of rows from L2, results in float. */
#include "tensor/cuda/chain_cuda.cuh"
#include "tensor/cuda/fragments_cuda.cuh"

namespace wf_gpu {
namespace {

static_assert(sizeof(chain) <= 4096, "the arguments of a kernel");

typedef __nv_bfloat16 bf16;
enum { ring_k = 64, ring = 3 };

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

/* --- the ring of weights ------------------------------------------------------------------------------------ */
template <int BN, int threads> struct weight_ring {
    enum {
        straight_pitch = ring_k + padding,
        crossed_pitch = BN + padding,
        straight = BN * straight_pitch,
        crossed = ring_k * crossed_pitch,
        size = straight > crossed ? straight : crossed
    };
    const chain &c;
    bf16 *buffers;
    int step, part, n, k; /* of the next tile to be fetched */
    int fetched, used;

    __device__ weight_ring(const chain &all, bf16 *memory)
        : c(all), buffers(memory), step(-1), part(0), n(0), k(0), fetched(0), used(0) {
        next_product();
        for (int i = 0; i < ring - 1; i++) fetch();
    }
    __device__ void next_product() {
        do step++;
        while (step < c.count && c.step[step].kind != chain_product);
    }
    __device__ void advance() {
        const chain_step &s = c.step[step];
        k += ring_k;
        if (k < s.part[part].k) return;
        k = 0;
        if (++part < s.parts) return;
        part = 0;
        n += BN;
        if (n < s.cols) return;
        n = 0;
        next_product();
    }
    __device__ static void copy(bf16 *to, const bf16 *from, bool there) {
        uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    }
    __device__ void fetch() {
        if (step < c.count) {
            const chain_step &s = c.step[step];
            const chain_part &p = s.part[part];
            bf16 *to = buffers + fetched % ring * size;
            /* units of 8 elements along a row of the weight */
            int across = s.transposed ? BN / 8 : ring_k / 8, units = BN * ring_k / 8;
            int first_row = s.transposed ? k : n, first_col = s.transposed ? n : k;
            int rows = s.transposed ? p.k : s.cols;
            int pitch = s.transposed ? crossed_pitch : straight_pitch;
#pragma unroll
            for (int i = 0; i < units / threads; i++) {
                int at = (int)threadIdx.x + i * threads;
                int row = first_row + at / across, col = first_col + at % across * 8;
                bool there = row < rows && col < p.ld;
                copy(to + at / across * pitch + at % across * 8,
                     there ? p.w + (size_t)row * p.ld + col : p.w, there);
            }
            advance();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        fetched++;
    }
    /* The next tile to be multiplied; whoever calls may fetch another behind it. */
    __device__ const bf16 *take() {
        asm volatile("cp.async.wait_group %0;" ::"n"(ring - 2) : "memory");
        __syncthreads();
        const bf16 *tile = buffers + used % ring * size;
        used++;
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

/* Four sums of a product: to memory and to the slot. */
template <int TM>
__device__ inline void finish_product(const chain_step &s, bf16 *slots, int first, int local,
                                      int col, bool there, float (&x)[4]) {
    int row = first + local;
    if (there) {
        float more[4];
        float *out = s.out + (size_t)row * s.ld_out + col;
        if (s.add && s.after != chain_unit_back) add_existing(out, x);
        if (s.bias != NULL) {
            float scale = s.scale == NULL ? 1 : s.scale[row];
            look4(s.bias + col, s.cols - col, more);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] += scale * more[i];
        }
        if (s.table != NULL) {
            look4(s.table + (size_t)s.map[row] * s.ld_table + col, s.cols - col, more);
            add4(x, more);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = col + i < s.cols ? x[i] : 0;
        if (s.raw != NULL) put4(s.raw + (size_t)row * s.ld_raw + col, x);
        float slope[4];
        if (s.after == chain_unit) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = quick_unit(s.unit, x[i], &slope[i]);
        } else if (s.after == chain_unit_back) {
            take4(s.other + (size_t)row * s.ld_other + col, more);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                quick_unit(s.unit, more[i], &slope[i]);
                x[i] *= slope[i];
            }
            if (s.add) add_existing(out, x);
        } else if (s.after == chain_residual) {
            if (s.gate != NULL) {
                look4(s.gate + (size_t)s.gate_map[row] * s.ld_gate + col, s.cols - col, more);
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] *= 1 + more[i];
            }
            take4(s.x + (size_t)row * s.ldx + col, more);
            add4(x, more);
        }
        put4(out, x);
    }
    if (s.slot >= 0 && col < whole16(s.cols))
        keep4(slots + s.slot + local * slot_pitch(s.cols) + col, x);
}

template <int TM, int BN, int WM, int WN, class Ring>
__device__ void product(const chain &c, const chain_step &s, bf16 *slots, Ring &weights,
                        int first) {
    enum { MT = WM / 16, NT = WN / 8 };
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int down = warp % (TM / WM) * WM, across = warp / (TM / WM) * WN;
    for (int n = 0; n < s.cols; n += BN) {
        float sum[MT][NT][4] = {};
        for (int p = 0; p < s.parts; p++) {
            const chain_part &part = s.part[p];
            int pitch = slot_pitch(part.k), k_end = whole16(part.k);
            const bf16 *a = slots + part.slot + (down + lane % 16) * pitch + lane / 16 * 8;
            for (int k = 0; k < k_end; k += ring_k) {
                const bf16 *w = weights.take();
                /* this lane's rows of the matrices it loads */
                const bf16 *b =
                    s.transposed ? w + lane % 16 * Ring::crossed_pitch + across + lane / 16 * 8
                                 : w + (across + lane / 16 * 8 + lane % 8) * Ring::straight_pitch +
                                       lane / 8 % 2 * 8;
                int steps = min(ring_k, k_end - k) / 16;
#pragma unroll
                for (int kk = 0; kk < ring_k / 16; kk++) {
                    if (kk >= steps) break;
                    uint32_t x[MT][4], y[NT / 2][4];
#pragma unroll
                    for (int i = 0; i < MT; i++)
                        load_matrices<false>(x[i], a + 16 * i * pitch + k + 16 * kk);
                    if (s.transposed) {
#pragma unroll
                        for (int j = 0; j < NT / 2; j++)
                            load_matrices<true>(y[j], b + 16 * kk * Ring::crossed_pitch + 16 * j);
                    } else {
#pragma unroll
                        for (int j = 0; j < NT / 2; j++)
                            load_matrices<false>(y[j], b + 16 * j * Ring::straight_pitch + 16 * kk);
                    }
#pragma unroll
                    for (int i = 0; i < MT; i++)
#pragma unroll
                        for (int j = 0; j < NT; j++)
                            multiply_add(sum[i][j], x[i], y[j / 2][j % 2 * 2],
                                         y[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < MT; i++) {
            int local = down + 16 * i + lane / 4 + lane % 2 * 8;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int col = n + across + 8 * j + lane % 4 / 2 * 4;
                float x[4];
                gather_row(sum[i][j], lane, x);
                bool there = first + local < c.rows && col < whole16(s.cols);
                finish_product<TM>(s, slots, first, local, col, there, x);
            }
        }
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

template <int TM, int threads>
__device__ void elements(const chain &c, const chain_step &s, bf16 *slots, int first) {
    int quads = whole16(s.cols) / 4;
#pragma unroll 4
    for (int at = (int)threadIdx.x; at < TM * quads; at += threads) {
        int local = at / quads, col = at % quads * 4, row = first + local;
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

/* --- layer norm ------------------------------------------------------------------------------------------------ */
enum { held_rows = 4, held_columns = 4 /* times 32 */ };

struct row_stats {
    float mean, rho;
};
/* Of `cols` values, `held` a lane in registers. */
template <int rows>
__device__ inline void row_statistics(const float (&v)[rows][held_columns], int cols, int lane,
                                      row_stats (&to)[rows]) {
    float sum[rows], square[rows];
#pragma unroll
    for (int r = 0; r < rows; r++) {
        sum[r] = 0;
#pragma unroll
        for (int i = 0; i < held_columns; i++) sum[r] += v[r][i];
    }
#pragma unroll
    for (int r = 0; r < rows; r++) to[r].mean = warp_sum(sum[r]) / (float)cols;
#pragma unroll
    for (int r = 0; r < rows; r++) {
        square[r] = 0;
#pragma unroll
        for (int i = 0; i < held_columns; i++) {
            float d = lane + 32 * i < cols ? v[r][i] - to[r].mean : 0;
            square[r] += d * d;
        }
    }
#pragma unroll
    for (int r = 0; r < rows; r++) to[r].rho = 1 / sqrtf(warp_sum(square[r]) / (float)cols + 1e-6f);
}

template <int rows>
__device__ inline void hold(const chain &c, const float *x, int ld, int cols, int row, int lane,
                            float (&v)[rows][held_columns]) {
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int i = 0; i < held_columns; i++)
            v[r][i] = row + r < c.rows && lane + 32 * i < cols
                          ? x[(size_t)(row + r) * ld + lane + 32 * i]
                          : 0;
}

/* Rows of at most 128 columns, by `held_rows` a warp. */
template <int TM, int warps>
__device__ void norm_rows_held(const chain &c, const chain_step &s, bf16 *slots, int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, pitch = slot_pitch(s.cols);
    for (int local = warp * held_rows; local < TM; local += warps * held_rows) {
        float v[held_rows][held_columns];
        row_stats stats[held_rows];
        hold(c, s.x, s.ldx, s.cols, first + local, lane, v);
        row_statistics(v, s.cols, lane, stats);
#pragma unroll
        for (int r = 0; r < held_rows; r++) {
            int row = first + local + r;
            if (row >= c.rows) break;
            const float *shift = s.table == NULL ? NULL : s.table + (size_t)s.map[row] * s.ld_table;
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                int col = lane + 32 * i;
                if (col >= whole16(s.cols)) break;
                float y = col < s.cols ? (v[r][i] - stats[r].mean) * stats[r].rho : 0;
                if (shift != NULL && col < s.cols) y = y * (1 + shift[s.cols + col]) + shift[col];
                s.out[(size_t)row * s.ld_out + col] = y;
                if (s.slot >= 0) slots[s.slot + (local + r) * pitch + col] = __float2bfloat16_rn(y);
            }
        }
    }
}

/* g = the gradient by the normalised value: x, times 1 + scale. */
template <int TM, int warps>
__device__ void norm_back_held(const chain &c, const chain_step &s, bf16 *slots, int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, pitch = slot_pitch(s.cols);
    for (int local = warp * held_rows; local < TM; local += warps * held_rows) {
        float v[held_rows][held_columns], g[held_rows][held_columns];
        row_stats stats[held_rows];
        hold(c, s.other, s.ld_other, s.cols, first + local, lane, v);
        hold(c, s.x, s.ldx, s.cols, first + local, lane, g);
        row_statistics(v, s.cols, lane, stats);
#pragma unroll
        for (int r = 0; r < held_rows; r++) {
            int row = first + local + r;
            if (row >= c.rows) break;
            const float *scale =
                s.table == NULL ? NULL : s.table + (size_t)s.map[row] * s.ld_table + s.cols;
            float sum = 0, along = 0;
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                int col = lane + 32 * i;
                v[r][i] = col < s.cols ? (v[r][i] - stats[r].mean) * stats[r].rho : 0;
                if (scale != NULL && col < s.cols) g[r][i] *= 1 + scale[col];
                sum += g[r][i];
                along += g[r][i] * v[r][i];
            }
            sum = warp_sum(sum) / (float)s.cols;
            along = warp_sum(along) / (float)s.cols;
            if (s.stats != NULL && lane == 0) {
                s.stats[2 * (size_t)row] = stats[r].mean;
                s.stats[2 * (size_t)row + 1] = stats[r].rho;
            }
            if (s.out == NULL) continue;
#pragma unroll
            for (int i = 0; i < held_columns; i++) {
                int col = lane + 32 * i;
                if (col >= whole16(s.cols)) break;
                float *out = s.out + (size_t)row * s.ld_out + col;
                float dx = col < s.cols ? stats[r].rho * (g[r][i] - sum - v[r][i] * along) : 0;
                if (s.add) dx += *out;
                *out = dx;
                if (s.slot >= 0)
                    slots[s.slot + (local + r) * pitch + col] = __float2bfloat16_rn(dx);
            }
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------------------------- */
template <int TM, int BN, int WM, int WN>
__global__ void __launch_bounds__(TM / WM * BN / WN * 32)
    chain_kernel(const __grid_constant__ chain c) {
    enum { threads = TM / WM * BN / WN * 32 };
    extern __shared__ __align__(16) unsigned char memory[];
    typedef weight_ring<BN, threads> ring_of_weights;
    bf16 *slots = (bf16 *)memory + ring * ring_of_weights::size;
    ring_of_weights weights(c, (bf16 *)memory);
    int first = (int)blockIdx.x * TM;
    for (int k = 0; k < c.count; k++) {
        const chain_step &s = c.step[k];
        switch (s.kind) {
        case chain_product: product<TM, BN, WM, WN>(c, s, slots, weights, first); break;
        case chain_norm: norm_rows_held<TM, threads / 32>(c, s, slots, first); break;
        case chain_norm_back: norm_back_held<TM, threads / 32>(c, s, slots, first); break;
        default: elements<TM, threads>(c, s, slots, first);
        }
        __syncthreads();
    }
}

template <int TM, int BN, int WM, int WN> void launch(const chain &c) {
    enum { threads = TM / WM * BN / WN * 32 };
    size_t bytes = ((size_t)ring * weight_ring<BN, threads>::size + (size_t)c.slots) * sizeof(bf16);
    static size_t allowed = 48 << 10;
    if (bytes > allowed) {
        cudaFuncSetAttribute(chain_kernel<TM, BN, WM, WN>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        allowed = bytes;
    }
    chain_kernel<TM, BN, WM, WN><<<blocks_for((size_t)c.rows, TM), threads, bytes, stream()>>>(c);
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

void chain_launch(const chain &c) {
    if (c.rows == 0 || c.count == 0) return;
    if (chain_tile(c.rows) == 16) launch<16, 64, 16, 16>(c);
    else if (c.wide) launch<64, 128, 32, 32>(c);
    else launch<64, 64, 32, 32>(c);
}

void chain_pack(const pack_job &job) {
    if (job.rows > 0)
        pack_kernel<<<blocks_for((size_t)job.rows, pack_rows), threads_each, 0, stream()>>>(job);
}

void chain_pack_all(const pack_job *jobs, int count) {
    if (count > 0) pack_all_kernel<<<(unsigned)count, threads_each, 0, stream()>>>(jobs);
}

} // namespace wf_gpu
