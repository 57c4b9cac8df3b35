/* chain_cuda: a chain of steps on the rows of one height, in one launch. Steps: chain_cuda.cuh.
 *
 *   block    up to 16 warps and one that fetches weights (chain_ring.cuh); as many warps as spread the rows over all SMs once,
 *            less the 16 that a chain of graphs beside it may need
 *   warp     16 rows through all steps, at its own pace: no step waits for another warp, only for tiles of weights
 *   team     where rows are fewer than warps: two or four of them share 16 rows, 32 columns of each product a warp, eight where
 *            they are graphs, 16 columns a warp, and wait between steps. A row's bits do not depend on it
 *   product  n in 64 columns (128 where registers allow), k in 64; mma.sync m16n8k16, sums over k in order. A left operand
 *            that lies in memory is read 64 columns ahead and passes through shared memory as bf16
 *   ends     sums pass through 16 x 32 floats of the warp's own shared memory, so that everything beside them is read and
 *            written in whole lines of 128 bytes
 * FLOPs 2 rows k n a product; bytes: weights in bf16 once per block from L2, results in float: 150 MB forward and 180
 * backward a lean block of width 64 with 25,856 nodes, 35 and 42 us of the bandwidth.
 * Measured, H200, ncu: such a block 100 us forward and 90 backward, 35 and 47 % of the bandwidth; width 128 with 19,456 nodes
 * 266 and 181; graphs 22 and 30, at width 128 49 and 48. Forward at width 128 slots leave room for fewer than ten warps a block,
 * so that blocks come in two waves. Forward and backward of 56 networks 64-16-8-10, width 64, 8 blocks: 3.18 ms without teams,
 * 3.02 with teams of two, 2.98 with teams of four. */
#include "tensor/cuda/chain_ring.cuh"
#include "tensor/cuda/chain_rows.cuh"

#include <stddef.h>

namespace wf_gpu {
namespace {

enum { staged_pitch = 40, staged_columns = 32 };

/* --- products ------------------------------------------------------------------------------------------------ */
/* 64 columns of a left operand that lies in memory, on their way to `staged` as bf16: a lane has four of every other row. */
struct left_reader {
    float4 held[8];
    __device__ void fetch(const chain_part &part, const warp_rows &v, int k) {
        int lane = lane_here(), col = k + lane % 16 * 4;
        bool inside = col < whole16(part.k);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            held[i] = make_float4(0, 0, 0, 0);
            if (inside)
                held[i] = read4(part.x + place_of(v.row(2 * i + lane / 16), part.ldx) + col);
        }
    }
    __device__ void store(const warp_rows &v) const {
        int lane = lane_here();
        uint32_t at = v.staged + (uint32_t)(lane / 16 * 128 + lane % 2 * 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            *shared_at<uint2>(
                at + (uint32_t)(256 * i + 16 * ((lane % 16 / 2) ^ (2 * i + lane / 16) % 8))) =
                make_uint2(pair(held[i].x, held[i].y), pair(held[i].z, held[i].w));
        __syncwarp();
    }
};

/* sum += 16 rows of `left`, lines of pitch bytes, 16 * steps of k, times one tile of weights, or two that lie side by side,
 * from its columns 16 * slice on. */
template <bool transposed, int Sums>
__device__ inline void multiply_tiles(float (&sum)[Sums][4], uint32_t left, uint32_t pitch,
                                      uint32_t first, uint32_t second, bool both, int slice,
                                      int steps) {
    int lane = lane_here(), turn = lane & 7;
    uint32_t own = (uint32_t)(128 * (transposed ? lane % 16 : lane / 16 * 8 + lane % 8));
    left += pitch * (uint32_t)(lane % 16);
#pragma unroll 2
    for (int kk = 0; kk < steps; kk++) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, left + (uint32_t)(16 * ((2 * kk + lane / 16) ^ turn)));
        uint32_t line =
            own + (uint32_t)(transposed ? kk * 2048 : 16 * ((2 * kk + lane / 8 % 2) ^ turn));
#pragma unroll
        for (int j = 0; j < Sums / 2; j++) {
            if (j >= 4 && !both) break;
            int col = slice + j % 4; /* in sixteens */
            uint32_t place =
                (j < 4 ? first : second) + line +
                (uint32_t)(transposed ? 16 * ((2 * col + lane / 16) ^ turn) : col * 2048);
            load_matrices<transposed>(b, place);
            multiply_add(sum[2 * j], a, b[0], b[1]);
            multiply_add(sum[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* sum = columns n .. of the product, 8 * Sums of them; in a team, those of this warp: 8 * Sums * self behind n. */
template <bool transposed, int Sums, int Team>
__device__ inline void multiply(float (&sum)[Sums][4], const chain_step &s, const warp_rows &v,
                                weight_ring &ring, int n) {
    enum { own = 8 * Sums };
    left_reader reader;
    bool both = own * Team > tile_side && s.cols - n > tile_side;
    bool idle = n + own * v.self >= s.cols;
    if (s.part[0].slot < 0) reader.fetch(s.part[0], v, 0);
#pragma unroll 1
    for (int p = 0, k = 0; p < s.parts;) {
        const chain_part &part = s.part[p];
        int steps = min((whole16(part.k) - k) / 16, tile_side / 16);
        uint32_t left = v.staged, pitch = 128;
        if (part.slot < 0) reader.store(v);
        else
            left = v.slots + 2 * (uint32_t)(part.slot + k),
            pitch = 2 * (uint32_t)slot_pitch(part.k);
        k += tile_side;
        if (k >= part.k) k = 0, p++;
        if (p < s.parts && s.part[p].slot < 0) reader.fetch(s.part[p], v, k);
        uint32_t first = ring.take(), second = both ? ring.take_next() : first;
        if (Team > 1 && own * v.self >= tile_side) first = second;
        if (Team == 1 || !idle)
            multiply_tiles<transposed>(sum, left, pitch, first, second, both,
                                       own * v.self % tile_side / 16, steps);
        ring.give_back();
        if (both) ring.give_back();
    }
}

/* What a lane knows of its rows, lane / 8 and every fourth behind it, and of four columns of the bias. */
enum { lane_rows = chain_rows / 4 };
struct product_rows {
    int table[lane_rows], gate[lane_rows];
    float scale[lane_rows];
    float4 bias;
    template <bool aligned> __device__ void look(const chain_step &s, const warp_rows &v, int n) {
        int lane = lane_here(), col = n + 4 * lane;
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            int row = v.row(4 * i + lane / 8);
            table[i] = s.table == NULL ? 0 : (int)s.map[row];
            gate[i] = s.gate == NULL ? 0 : (int)s.gate_map[row];
            scale[i] = s.bias == NULL || s.scale == NULL ? 1 : s.scale[row];
        }
        bias = make_float4(0, 0, 0, 0);
        if (s.bias != NULL && col < s.cols) bias = table4<aligned>(s.bias + col, s.cols - col);
    }
};

__device__ inline float4 shuffled(const float4 &x, int from) {
    const unsigned all = 0xffffffffu;
    return make_float4(__shfl_sync(all, x.x, from), __shfl_sync(all, x.y, from),
                       __shfl_sync(all, x.z, from), __shfl_sync(all, x.w, from));
}
/* x + a * y */
__device__ inline void add_scaled(float4 &x, float a, const float4 &y) {
    x.x += a * y.x, x.y += a * y.y, x.z += a * y.z, x.w += a * y.w;
}
__device__ inline float4 staged_row(const warp_rows &v, int lane, int i) {
    return *shared_at<float4>(v.staged +
                              4 * (uint32_t)((4 * i + lane / 8) * staged_pitch + lane % 8 * 4));
}
/* Out and slot of a lane's i-th row, at its columns. */
__device__ inline void finish_row(const chain_step &s, const warp_rows &v, int lane, int i, int col,
                                  const float4 &x) {
    int local = 4 * i + lane / 8;
    if (v.there(local)) write4(s.out + place_of(v.first + local, s.ld_out) + col, x);
    if (s.slot >= 0) v.keep(s.slot, s.cols, local, col, x);
}

/* 32 staged columns from n + 32 * chunk on; a lane takes four columns of its four rows. Sums are zero behind the last column.
 * Products forward have a bias, a table and a gate and set `out`; those backward have none of them and may add to it. */
template <bool aligned>
__device__ inline void finish_forward(const chain_step &s, const warp_rows &v,
                                      const product_rows &known, int n, int chunk, int end) {
    int lane = lane_here(), col = n + staged_columns * chunk + 4 * (lane % 8);
    int left = s.cols - col;
    float4 bias = shuffled(known.bias, 8 * chunk + lane % 8), x[lane_rows];
    if (col >= whole16(end)) return;
    if (s.table != NULL) {
        const float *table = s.table + col;
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = table4<aligned>(table + place_of(known.table[i], s.ld_table), left);
    } else {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) x[i] = make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        add_scaled(x[i], 1, staged_row(v, lane, i));
        add_scaled(x[i], known.scale[i], bias);
    }
    if (s.after != chain_load && s.raw != NULL) {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            int local = 4 * i + lane / 8;
            if (v.there(local)) write4(s.raw + place_of(v.first + local, s.ld_raw) + col, x[i]);
        }
    }
    if (s.after == chain_unit) {
        float slope;
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] =
                make_float4(quick_unit(s.unit, x[i].x, &slope), quick_unit(s.unit, x[i].y, &slope),
                            quick_unit(s.unit, x[i].z, &slope), quick_unit(s.unit, x[i].w, &slope));
    } else if (s.after == chain_residual) {
        float4 beside[lane_rows], gate[lane_rows];
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            beside[i] = read4(s.x + place_of(v.row(4 * i + lane / 8), s.ldx) + col);
            gate[i] = make_float4(0, 0, 0, 0);
            if (s.gate != NULL)
                gate[i] = table4<aligned>(s.gate + place_of(known.gate[i], s.ld_gate) + col, left);
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = make_float4(
                beside[i].x + (1 + gate[i].x) * x[i].x, beside[i].y + (1 + gate[i].y) * x[i].y,
                beside[i].z + (1 + gate[i].z) * x[i].z, beside[i].w + (1 + gate[i].w) * x[i].w);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) finish_row(s, v, lane, i, col, x[i]);
}

__device__ inline float slope_of(int unit, float x) {
    float slope;
    quick_unit(unit, x, &slope);
    return slope;
}

__device__ inline void finish_backward(const chain_step &s, const warp_rows &v, int n, int chunk,
                                       int end) {
    int lane = lane_here(), col = n + staged_columns * chunk + 4 * (lane % 8);
    if (col >= whole16(end)) return;
    float4 before[lane_rows], x[lane_rows];
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        before[i] = make_float4(0, 0, 0, 0);
        if (s.add) before[i] = read4(s.out + place_of(v.row(4 * i + lane / 8), s.ld_out) + col);
    }
    if (s.after == chain_unit_back) {
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = read4(s.other + place_of(v.row(4 * i + lane / 8), s.ld_other) + col);
#pragma unroll
        for (int i = 0; i < lane_rows; i++)
            x[i] = make_float4(slope_of(s.unit, x[i].x), slope_of(s.unit, x[i].y),
                               slope_of(s.unit, x[i].z), slope_of(s.unit, x[i].w));
    } else {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) x[i] = make_float4(1, 1, 1, 1);
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
        float4 sum = staged_row(v, lane, i);
        finish_row(s, v, lane, i, col,
                   make_float4(before[i].x + x[i].x * sum.x, before[i].y + x[i].y * sum.y,
                               before[i].z + x[i].z * sum.z, before[i].w + x[i].w * sum.w));
    }
}

/* Sums: eights of columns that a warp adds up at once. Team: warps that share 16 rows; together they take `columns` at a time.
 * Warps of a block, at most: with the one that fetches 12 have 168 registers each, 16 have 128, 17 have 96. A team of eight is
 * for few rows, one to a block. */
template <int Sums, int Team> struct shape {
    enum {
        columns = 8 * Sums * Team,
        warps = Team == 8   ? 8
                : Team == 4 ? 16
                : Team == 2 ? 14
                : Sums == 8 ? 15
                            : 11
    };
};

/* One function for all products of a direction: the first warp that comes by has to wait for its instructions. */
template <bool transposed, bool aligned, int Sums, int Team>
__device__ __forceinline__ void product(const chain_step &s, column_span span, const warp_rows &v,
                                        weight_ring &ring) {
    int lane = lane_here();
#pragma unroll 1
    for (int begin = span.begin; begin < span.end; begin += shape<Sums, Team>::columns) {
        float sum[Sums][4] = {};
        product_rows known;
        int n = begin + 8 * Sums * v.self;
        if (!transposed) known.look<aligned>(s, v, n);
        multiply<transposed, Sums, Team>(sum, s, v, ring, begin);
        __syncwarp();
#pragma unroll 1
        for (int chunk = 0; 4 * chunk < Sums && n + staged_columns * chunk < s.cols; chunk++) {
            float *to = shared_at<float>(v.staged) + lane / 4 * staged_pitch + lane % 4 * 2;
#pragma unroll
            for (int k = 0; k < Sums; k++)
                if (k / 4 == chunk) {
                    float *at = to + k % 4 * 8;
                    *(float2 *)at = make_float2(sum[k][0], sum[k][1]);
                    *(float2 *)(at + 8 * staged_pitch) = make_float2(sum[k][2], sum[k][3]);
                }
            __syncwarp();
            int end = Team > 1 ? min(s.cols, n + 8 * Sums) : s.cols;
            if (transposed) finish_backward(s, v, n, chunk, end);
            else finish_forward<aligned>(s, v, known, n, chunk, end);
            __syncwarp();
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------------------------- */
/* Shared memory: barriers, the ring's tiles, then each warp's staged sums and slots. */
enum {
    barrier_bytes = 2 * most_ring * 8,
    staged_bytes = chain_rows * staged_pitch * (int)sizeof(float)
};

template <int Sums, int Team>
__global__ void __launch_bounds__(32 * (shape<Sums, Team>::warps + 1), 1)
    chain_kernel(const __grid_constant__ chain argument, int depth) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ chain c; /* read all the time, by indices */
    int words = (int)((offsetof(chain, step) + (size_t)argument.count * sizeof(chain_step)) /
                      sizeof(uint32_t));
    for (int at = (int)threadIdx.x; at < words; at += (int)blockDim.x)
        ((uint32_t *)&c)[at] = ((const uint32_t *)&argument)[at];
    int warps = (int)blockDim.x / 32 - 1, warp = (int)threadIdx.x / 32;
    int teams = warps / Team, team = warp / Team;
    int first = ((int)blockIdx.x * teams + team) * chain_rows;
    weight_ring ring = {shared_place(memory + barrier_bytes), shared_place(memory), depth, 0, 0};
    if (threadIdx.x == 0) {
        int groups = (argument.rows + chain_rows - 1) / chain_rows;
        ring.create(Team * min(teams, groups - (int)blockIdx.x * teams));
    }
    __syncthreads();
    if (warp == warps) {
        fetch_all(c, ring, shape<Sums, Team>::columns);
        return;
    }
    if (first >= c.rows) return;
    follow(); /* weights may be fetched before it: L3 */
    uint32_t staged = ring.buffers + (uint32_t)(depth * tile_bytes + warp * staged_bytes);
    uint32_t slots = ring.buffers + (uint32_t)(depth * tile_bytes + warps * staged_bytes) +
                     2 * (uint32_t)(team * c.slots);
    warp_rows v = {first, c.rows, warp % Team, Team, slots, staged};
    for (int k = 0; k < c.count; k++) {
        const chain_step &s = c.step[k];
        uint32_t at = shared_place(&s);
        switch (s.kind) {
        case chain_product: {
            column_span span = span_of(c, k, shape<Sums, Team>::columns);
            if (s.transposed) product<true, true, Sums, Team>(s, span, v, ring);
            else if (s.aligned) product<false, true, Sums, Team>(s, span, v, ring);
            else product<false, false, Sums, Team>(s, span, v, ring);
            break;
        }
        case chain_norm:
        case chain_norm_back:
            if (s.aligned) norm_any_width<true>(s, at, v);
            else norm_any_width<false>(s, at, v);
            break;
        default:
            if (s.aligned) element_tile<true>(at, v);
            else element_tile<false>(at, v);
        }
        if (Team > 1) asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * Team) : "memory");
        else __syncwarp();
    }
}

/* A property of the device; `other` when it cannot be asked. */
int property(cudaDeviceAttr which, int other) {
    int device, value;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&value, which, device) != cudaSuccess)
        return other;
    return value;
}
int processors() {
    static const int count = property(cudaDevAttrMultiProcessorCount, 108);
    return count;
}
int shared_bytes() {
    static const int bytes = property(cudaDevAttrMaxSharedMemoryPerBlockOptin, 96 << 10);
    return bytes;
}

__device__ void pack_rows_of(const pack_job &job, int first, int last) {
    int quads = whole16(job.cols) / 4;
    bool aligned = job.cols % 4 == 0 && (uintptr_t)job.w % 16 == 0;
    for (int at = first * quads + (int)threadIdx.x; at < last * quads; at += threads_each) {
        int row = at / quads, col = at % quads * 4, left = job.cols - col;
        const float *from = job.w + (size_t)row * job.cols + col;
        float4 x = aligned ? table4<true>(from, left) : table4<false>(from, left);
        *(uint2 *)(job.to + 4 * (size_t)at) = make_uint2(pair(x.x, x.y), pair(x.z, x.w));
    }
}
__global__ void pack_kernel(pack_job job) {
    int first = (int)blockIdx.x * pack_rows;
    pack_rows_of(job, first, min(job.rows, first + pack_rows));
}
__global__ void pack_all_kernel(const pack_job *jobs) {
    pack_rows_of(jobs[blockIdx.x], 0, jobs[blockIdx.x].rows);
}

int whole_tiles(int n) { return (n + tile_side - 1) / tile_side; }

/* Tiles of weights that a block takes at most, and spans of columns that blocks share where products are apart. */
void count_tiles(const chain &c, int columns, int *tiles, int *spans) {
    *tiles = *spans = 0;
    for (int k = 0; k < c.count; k++) {
        const chain_step &s = c.step[k];
        if (s.kind != chain_product) continue;
        int deep = 0;
        for (int p = 0; p < s.parts; p++) deep += whole_tiles(s.part[p].k);
        *spans += (int)blocks_for((size_t)s.cols, (size_t)columns);
        int own = deep * (c.apart ? columns / tile_side : whole_tiles(s.cols));
        *tiles = c.apart ? (own > *tiles ? own : *tiles) : *tiles + own;
    }
}

/* Few blocks want all weights at once; where warps have rows of their own, six tiles hide the way from L2, and the rest of the
 * memory is left to kernels beside this one. */
enum { shared_ring = 6, shortest_ring = 3 };
int fixed_bytes() { return barrier_bytes + (int)sizeof(chain) + 1024; }
/* Of a team with `team` warps. */
int team_bytes(const chain &c, int team) { return team * staged_bytes + 2 * c.slots; }

/* Teams of a block, so that as few waves of blocks as possible are all equally long. Where it costs no wave, room is left for a
 * chain of graphs beside this one: with 257 rows or more of graphs not all of it. */
template <int Sums, int Team> int teams_for(const chain &c, int *waves) {
    enum { for_graph_blocks = 16 };
    int most = (shared_bytes() - fixed_bytes() - shortest_ring * tile_bytes) / team_bytes(c, Team);
    if (most > shape<Sums, Team>::warps / Team) most = shape<Sums, Team>::warps / Team;
    if (most < 1) most = 1;
    size_t groups = blocks_for((size_t)c.rows, chain_rows);
    int all = processors(), fewer = all > 2 * for_graph_blocks ? all - for_graph_blocks : all;
    *waves = (int)blocks_for(groups, (size_t)(most * all));
    if ((int)blocks_for(groups, (size_t)(most * fewer)) == *waves) all = fewer;
    return (int)blocks_for(groups, (size_t)(*waves * all));
}

template <int Sums, int Team> void launch(const chain &c) {
    int tiles, spans, waves, teams = teams_for<Sums, Team>(c, &waves);
    count_tiles(c, shape<Sums, Team>::columns, &tiles, &spans);
    int own = teams * team_bytes(c, Team);
    int depth = (shared_bytes() - fixed_bytes() - own) / tile_bytes;
    int most = few_rows(c.rows) ? (int)most_ring : (int)shared_ring;
    if (depth > most) depth = most;
    if (depth > tiles) depth = tiles > 0 ? tiles : 1;
    int bytes = barrier_bytes + depth * tile_bytes + own;
    static int allowed = 40 << 10;
    if (bytes > allowed) {
        cudaFuncSetAttribute(chain_kernel<Sums, Team>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes);
        allowed = bytes;
    }
    dim3 grid(blocks_for((size_t)c.rows, (size_t)(teams * chain_rows)),
              c.apart ? (unsigned)spans : 1);
    start_kernel(chain_kernel<Sums, Team>, grid, 32 * (unsigned)(teams * Team + 1), (size_t)bytes,
                 c, depth);
}

} // namespace

/* A block of one team with the shortest ring. */
int chain_most_slots() {
    enum { enough = 56 * 1024, team = 8 };
    int room = shared_bytes() - fixed_bytes() - team * staged_bytes - shortest_ring * tile_bytes;
    return room / 2 < enough ? room / 2 : enough;
}

/* The largest team with which all rows find room at once: with few warps a multiprocessor time is what they wait. */
void chain_launch(const chain &c) {
    if (c.rows == 0 || c.count == 0) return;
    int fours, twos, wide, waves;
    teams_for<4, 4>(c, &fours);
    teams_for<4, 2>(c, &twos);
    teams_for<16, 1>(c, &wide);
    teams_for<8, 1>(c, &waves);
    if (few_rows(c.rows)) launch<2, 8>(c);
    else if (fours == 1) launch<4, 4>(c);
    else if (twos == 1) launch<4, 2>(c);
    else if (wide <= waves) launch<16, 1>(c);
    else launch<8, 1>(c);
}

void chain_pack(const pack_job &job) {
    if (job.rows > 0)
        pack_kernel<<<blocks_for((size_t)job.rows, pack_rows), threads_each, 0, stream()>>>(job);
    plain_next();
}

void chain_pack_all(const pack_job *jobs, int count) {
    if (count > 0) pack_all_kernel<<<(unsigned)count, threads_each, 0, stream()>>>(jobs);
    plain_next();
}

} // namespace wf_gpu
