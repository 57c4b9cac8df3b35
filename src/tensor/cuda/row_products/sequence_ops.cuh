/* sequence_ops: the operations of a row sequence other than products. A warp or a team of warps
 * takes 16 rows. */
#pragma once

#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"

namespace wf_gpu {

/* This thread's lane. What depends on it is computed where it is used instead of staying in
 * registers over the whole sequence. */
__device__ inline int lane_here() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* Offset of a row in elements; neither argument is negative. */
__device__ inline size_t place_of(int row, int ld) { return (size_t)(uint32_t)row * (uint32_t)ld; }

/* Shared memory by its own address; generic pointers are slower. */
template <class T> __device__ inline T *shared_at(uint32_t address) {
    return (T *)__cvta_shared_to_generic(address);
}

/* The rows first .. first + 15 of a warp, of which those below `rows` exist; its kept operands; its
 * [16][staged_pitch] floats. `team` warps may have the same rows and kept operands, and this one is
 * number `self`; otherwise team is 1 and self 0. */
struct warp_rows {
    int first, rows, self, team;
    uint32_t kept, staged;

    /* A row that exists: beyond the last the last is read, and nothing is written. */
    __device__ int row(int local) const { return min(first + local, rows - 1); }
    __device__ bool there(int local) const { return first + local < rows; }
    /* Keeps elements col .. col + 3 of a row in shared memory, col % 4 == 0. */
    __device__ void keep(int place_in_kept, int cols, int local, int col, const float4 &x) const {
        int place = local * kept_pitch(cols) + (col & ~63) + ((col ^ (8 * local)) & 56) + (col & 7);
        *shared_at<uint2>(kept + 2 * (uint32_t)(place_in_kept + place)) =
            make_uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w));
    }
};

/* accurate_activation with the fast tanh, whose error is below that of bf16: x (1 + t) / 2, t =
 * tanh(x (a + b x^2)). Where tanh rounds to one in float, t must be exactly one, because the slope
 * multiplies the difference by x^3. */
__device__ inline float quick_activation(int act, float x, float *slope) {
    bool gelu = act == WF_TAPE_ACT_GELU;
    float a = gelu ? 0.7978845608028654f : 0.5f, b = gelu ? 0.035677408136300125f : 0.0f;
    float square = x * x, at = x * (a + b * square), t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(at));
    if (fabsf(at) > 9) t = copysignf(1, at);
    float s = 0.5f + 0.5f * t, y = x * s;
    *slope = s + y * (1 - s) * (2 * a + 6 * b * square);
    return y;
}

/* Four aligned neighbours in memory. The asm has no memory clobber, so the compiler need not reload
 * the sequence after every store; __syncwarp between operations orders memory. */
__device__ inline float4 read4(const float *from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(__cvta_generic_to_global(from)));
    return x;
}
__device__ inline void write4(float *to, const float4 &x) {
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));
}
/* Four neighbours of a table, of which `left` exist; one load if the table is aligned. Functions
 * that read tables exist in two versions for that. There should be few functions, because the first
 * warp to run one waits for its instructions to be fetched. */
template <bool aligned> __device__ inline float4 table4(const float *from, int left) {
    if (aligned) return left > 0 ? read4(from) : make_float4(0, 0, 0, 0);
    float v[4];
    fetch4<false>(from, left, v);
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* --- operations on single elements ------------------------------------------------------------ */
/* The graph of a row; start[g] is the first row of graph g. */
__device__ inline int graph_of(const uint32_t *start, int graphs, int row) {
    int low = 0, high = graphs;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((int)start[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

/* What a lane knows of row lane % 16: the row of x, a factor, the row of the table. */
struct row_source {
    int from;
    float factor;
    uint32_t table;
    __device__ row_source(const row_op &s, const warp_rows &v) {
        from = v.row(lane_here() % sequence_rows);
        factor = 1;
        table = s.table != NULL ? s.map[from] : 0;
        if (s.kind == row_mean_back) {
            from = graph_of(s.start, s.graphs, from);
            factor = 1 / (float)(s.start[from + 1] - s.start[from]);
        }
    }
};

/* One element of the result. gate is read from the table, other from the second matrix. */
__device__ inline float element(const row_op &s, float factor, float gate, float other, float x) {
    if (s.kind == row_residual) return x + (1 + gate) * other;
    if (s.kind == row_residual_back) return x * (1 + gate);
    if (s.kind != row_activation && s.kind != row_activation_back) return x * factor;
    float slope, y = quick_activation(s.act, s.kind == row_activation ? x : other, &slope);
    return s.kind == row_activation ? y : x * slope;
}

/* A lane takes four columns of one or more rows. Of two rows at a time everything is read before
 * anything is written. */
template <bool aligned> __device__ __noinline__ void element_tile(uint32_t step, warp_rows v) {
    const row_op &s = *shared_at<row_op>(step);
    enum { batch = 2 };
    int quads = whole16(s.cols) / 4, shift = quads > 16 ? 5 : quads > 8 ? 4 : quads > 4 ? 3 : 2;
    int lane = lane_here(), across = 1 << shift, down = 32 >> shift;
    row_source source(s, v);
#pragma unroll 1
    for (int first = 0; first < quads; first += across) {
        int col = 4 * (first + (lane & (across - 1))), left = s.cols - col;
        bool inside = col < whole16(s.cols);
#pragma unroll 1
        for (int top = v.self * batch * down; top < sequence_rows; top += v.team * batch * down) {
            float4 x[batch], gate[batch], other[batch], before[batch];
            float factor[batch];
#pragma unroll
            for (int i = 0; i < batch; i++) {
                int local = (top + i * down + (lane >> shift)) % sequence_rows;
                int row = v.row(local), from = __shfl_sync(0xffffffffu, source.from, local);
                int table = (int)__shfl_sync(0xffffffffu, source.table, local);
                factor[i] = __shfl_sync(0xffffffffu, source.factor, local);
                x[i] = gate[i] = other[i] = before[i] = make_float4(0, 0, 0, 0);
                if (!inside) continue;
                x[i] = table4<aligned>(s.x + place_of(from, s.ldx) + col, left);
                if (s.table != NULL)
                    gate[i] = table4<aligned>(s.table + place_of(table, s.ld_table) + col, left);
                if (s.other != NULL) other[i] = read4(s.other + place_of(row, s.ld_other) + col);
                if (s.add) before[i] = read4(s.out + place_of(row, s.ld_out) + col);
            }
#pragma unroll
            for (int i = 0; i < batch; i++) {
                int local = top + i * down + (lane >> shift);
                if (!inside || local >= sequence_rows) continue;
                float4 y =
                    make_float4(element(s, factor[i], gate[i].x, other[i].x, x[i].x) + before[i].x,
                                element(s, factor[i], gate[i].y, other[i].y, x[i].y) + before[i].y,
                                element(s, factor[i], gate[i].z, other[i].z, x[i].z) + before[i].z,
                                element(s, factor[i], gate[i].w, other[i].w, x[i].w) + before[i].w);
                if (s.out != NULL && v.there(local))
                    write4(s.out + place_of(v.first + local, s.ld_out) + col, y);
                if (s.kept >= 0) v.keep(s.kept, s.cols, local, col, y);
            }
        }
    }
}

/* --- layer norm ------------------------------------------------------------------------------- */
/* `Lanes` (8, 16 or 32) lanes have a row, and a warp as many rows at once as that allows. A lane
 * has four groups of four columns, `Lanes` groups apart: up to 128, 256 or 512 columns in the same
 * registers. */
enum { held_quads = 4 };
static_assert(4 * held_quads * 32 == widest_norm, "a warp holds the widest row");

template <int Lanes> struct held_row {
    enum { down = 32 / Lanes }; /* rows of a warp at once */
    float v[held_quads][4];

    __device__ static int column(int lane, int i) { return 4 * (lane % Lanes + Lanes * i); }
    /* The sum over all lanes of a row. */
    __device__ static float sum_of(float x) {
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
        return x;
    }
    /* zeros after the last column */
    __device__ void load(const float *row, int cols, int lane) {
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = column(lane, i);
            float4 x = make_float4(0, 0, 0, 0);
            if (col < cols) x = read4(row + col);
            v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
        }
    }
    /* A row of a table, or zeros if there is none. */
    template <bool aligned> __device__ void look(const float *row, int cols, int lane) {
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = column(lane, i);
            float4 x = make_float4(0, 0, 0, 0);
            if (row != NULL && col < cols) x = table4<aligned>(row + col, cols - col);
            v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
        }
    }
    /* v = (v - mean) / deviation; padding stays zero. */
    __device__ void normalise(int cols, int lane, float *mean, float *rho) {
        float sum = 0, square = 0, part = __fdividef(1, (float)cols);
#pragma unroll
        for (int i = 0; i < held_quads; i++) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
        *mean = sum_of(sum) * part;
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                v[i][c] = column(lane, i) + c < cols ? v[i][c] - *mean : 0;
                square += v[i][c] * v[i][c];
            }
        *rho = rsqrtf(sum_of(square) * part + 1e-6f);
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) v[i][c] *= *rho;
    }
};

template <bool aligned, int Lanes>
__device__ __noinline__ void norm_tile(uint32_t step, warp_rows v) {
    typedef held_row<Lanes> held;
    const row_op &s = *shared_at<row_op>(step);
    int lane = lane_here(), cols = s.cols;
#pragma unroll 1
    for (int local = held::down * v.self + lane / Lanes; local < sequence_rows;
         local += held::down * v.team) {
        int row = v.row(local);
        held x, shift, scale;
        float mean, rho;
        const float *table =
            s.table == NULL ? NULL : s.table + place_of((int)s.map[row], s.ld_table);
        x.load(s.x + place_of(row, s.ldx), cols, lane);
        shift.template look<aligned>(table, cols, lane);
        scale.template look<aligned>(table == NULL ? NULL : table + cols, cols, lane);
        x.normalise(cols, lane, &mean, &rho);
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = held::column(lane, i);
            if (col >= whole16(cols)) break;
            float4 y = make_float4(x.v[i][0] * (1 + scale.v[i][0]) + shift.v[i][0],
                                   x.v[i][1] * (1 + scale.v[i][1]) + shift.v[i][1],
                                   x.v[i][2] * (1 + scale.v[i][2]) + shift.v[i][2],
                                   x.v[i][3] * (1 + scale.v[i][3]) + shift.v[i][3]);
            if (v.there(local)) write4(s.out + place_of(row, s.ld_out) + col, y);
            if (s.kept >= 0) v.keep(s.kept, cols, local, col, y);
        }
    }
}

/* g = gradient by the normalised value: x times 1 + scale. */
template <bool aligned, int Lanes>
__device__ __noinline__ void norm_back_tile(uint32_t step, warp_rows v) {
    typedef held_row<Lanes> held;
    const row_op &s = *shared_at<row_op>(step);
    int lane = lane_here(), cols = s.cols;
#pragma unroll 1
    for (int local = held::down * v.self + lane / Lanes; local < sequence_rows;
         local += held::down * v.team) {
        int row = v.row(local);
        held x, g, scale, before;
        float mean, rho, sum = 0, along = 0, part = __fdividef(1, (float)cols);
        x.load(s.other + place_of(row, s.ld_other), cols, lane);
        g.load(s.x + place_of(row, s.ldx), cols, lane);
        const float *table =
            s.table == NULL ? NULL : s.table + place_of((int)s.map[row], s.ld_table) + cols;
        scale.template look<aligned>(table, cols, lane);
        before.template look<true>(s.add && s.out != NULL ? s.out + place_of(row, s.ld_out) : NULL,
                                   cols, lane);
        x.normalise(cols, lane, &mean, &rho);
#pragma unroll
        for (int i = 0; i < held_quads; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                g.v[i][c] *= 1 + scale.v[i][c];
                sum += g.v[i][c];
                along += g.v[i][c] * x.v[i][c];
            }
        sum = held::sum_of(sum) * part;
        along = held::sum_of(along) * part;
        bool there = v.there(local);
        if (s.stats != NULL && there && lane % Lanes == 0)
            *(float2 *)(s.stats + place_of(row, 2)) = make_float2(mean, rho);
        if (s.out == NULL) continue;
#pragma unroll
        for (int i = 0; i < held_quads; i++) {
            int col = held::column(lane, i);
            if (col >= whole16(cols)) break;
            float dx[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                dx[c] = col + c < cols
                            ? before.v[i][c] + rho * (g.v[i][c] - sum - x.v[i][c] * along)
                            : 0;
            float4 y = make_float4(dx[0], dx[1], dx[2], dx[3]);
            if (there) write4(s.out + place_of(row, s.ld_out) + col, y);
            if (s.kept >= 0) v.keep(s.kept, cols, local, col, y);
        }
    }
}

/* Norm forward or backward. Each width has its own function, so that only the instructions of that
 * width are fetched. */
template <bool aligned, int Lanes>
__device__ __forceinline__ void norm_either(const row_op &s, uint32_t step, const warp_rows &v) {
    if (s.kind == row_norm) norm_tile<aligned, Lanes>(step, v);
    else norm_back_tile<aligned, Lanes>(step, v);
}
template <bool aligned>
__device__ __forceinline__ void norm_any_width(const row_op &s, uint32_t step, const warp_rows &v) {
    enum { of_eight = 8 * 4 * held_quads, of_sixteen = 2 * of_eight };
    if (s.cols <= of_eight) norm_either<aligned, 8>(s, step, v);
    else if (s.cols <= of_sixteen) norm_either<aligned, 16>(s, step, v);
    else norm_either<aligned, 32>(s, step, v);
}

/* Runs an operation other than a product; s lies in shared memory. */
__device__ __forceinline__ void run_row_op(const row_op &s, const warp_rows &v) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(&s);
    if (s.kind == row_norm || s.kind == row_norm_back) {
        if (s.aligned) norm_any_width<true>(s, at, v);
        else norm_any_width<false>(s, at, v);
    } else {
        if (s.aligned) element_tile<true>(at, v);
        else element_tile<false>(at, v);
    }
}

} // namespace wf_gpu
