/* self_attention: multi-head self-attention without a mask, in float on the ordinary cores.
 *
 * The (T, T) matrix of a head is never stored. A block has 64 rows of one side and walks over the
 * other side 32 rows at a time:
 *   forward   queries over keys: S = Q K', running maximum and sum of each row, O = P V
 *   queries   dQ = dS K               queries over keys
 *   keys      dV = P' dO, dK = dS' Q  keys over queries
 * with P = exp(S / sqrt(d) - log sum) again from Q and K, dS = P (dO V' - along) / sqrt(d), along =
 * dO.O of the row.
 *   thread  4 rows x 4 columns of a tile of S from operands that lie in shared memory as
 *           [d][row], then 4 rows x D / 8 columns of the result: eight neighbouring lanes share
 *           four rows
 * Sums run in order, with neither atomics nor partial sums: the same bits always. Heads wider than
 * 128 columns take a warp a row. Limit: 4 T D multiply-adds forward and 14 T D / 2 backward a row.
 * Not measured yet. */
#include "tensor/cuda/runtime/op_kernels.cuh"

namespace wf_gpu {
namespace {

enum { own_rows = 64, walk_rows = 32, tile_threads = 128, skew = 4, widest = 128 };

struct attention {
    const float *qkv; /* (B T, ld) */
    int ld;
    float *y; /* (B T, ld_y); gradients dy */
    int ld_y;
    float *log_sum; /* (B, heads, T) */
    int tokens, heads, width;
    float factor;
    /* backward */
    const float *dy, *along; /* along as log_sum */
    float *dqkv;

    /* Row 0 of queries (0), keys (1), values (2) of sequence and head blockIdx.y. */
    __device__ size_t first_row() const { return (size_t)(blockIdx.y / heads) * tokens; }
    __device__ int column() const { return (int)(blockIdx.y % heads) * width; }
    __device__ size_t part(int which) const {
        return first_row() * ld + which * heads * width + column();
    }
    __device__ size_t output() const { return first_row() * ld_y + column(); }
    __device__ size_t stats() const { return (size_t)blockIdx.y * tokens; }
};

/* to[d][row] = from[first + row][d], zeros outside. */
template <int rows>
__device__ void load_across(float *to, const float *from, int ld, int first, int count, int width) {
    for (int at = (int)threadIdx.x; at < rows * width; at += tile_threads) {
        int row = at / width, d = at % width;
        to[d * (rows + skew) + row] =
            first + row < count ? from[(size_t)(first + row) * ld + d] : 0;
    }
}
/* to[row][d] = from[first + row][d], D columns of which `width` count. */
template <int rows, int D>
__device__ void load_along(float *to, const float *from, int ld, int first, int count, int width) {
    for (int at = (int)threadIdx.x; at < rows * D; at += tile_threads) {
        int row = at / D, d = at % D;
        to[at] = first + row < count && d < width ? from[(size_t)(first + row) * ld + d] : 0;
    }
}

/* sum[i][j] = x[r + i].y[c + j], x [d][own_rows + skew], y [d][walk_rows + skew]. */
__device__ void tile_product(float (&sum)[4][4], const float *x, const float *y, int width, int r,
                             int c) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
    for (int d = 0; d < width; d++) {
        float4 a = *(const float4 *)(x + d * (own_rows + skew) + r);
        float4 b = *(const float4 *)(y + d * (walk_rows + skew) + c);
        float xs[4] = {a.x, a.y, a.z, a.w}, ys[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = fmaf(xs[i], ys[j], sum[i][j]);
    }
}
/* p[column][row]: a tile where its rows lie together for add_product. */
__device__ void put_tile(float *p, const float (&value)[4][4], int r, int c) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        *(float4 *)(p + (c + j) * (own_rows + skew) + r) =
            make_float4(value[0][j], value[1][j], value[2][j], value[3][j]);
}
/* sum[i][k] += sum over columns of p[column][r + i] z[column][lane + 8 k] */
template <int D>
__device__ void add_product(float (&sum)[4][D / 8], const float *p, const float *z, int r,
                            int lane) {
    for (int t = 0; t < walk_rows; t++) {
        float4 a = *(const float4 *)(p + t * (own_rows + skew) + r);
        float xs[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int k = 0; k < D / 8; k++) {
            float b = z[t * D + lane + 8 * k];
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i][k] = fmaf(xs[i], b, sum[i][k]);
        }
    }
}
/* Of the eight lanes that share rows. */
__device__ float lanes_sum(float x) {
    for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ float lanes_max(float x) {
    for (int step = 4; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Shared memory, in floats: own sides [D][64 + skew], walked sides [D][32 + skew], walked rows
 * [32][D], tiles [32][64 + skew]. */
template <int D> constexpr size_t shared_floats(int own, int walked, int rows, int tiles) {
    return (size_t)D * (own_rows + skew) * own + (size_t)D * (walk_rows + skew) * walked +
           (size_t)walk_rows * D * rows + (size_t)walk_rows * (own_rows + skew) * tiles;
}

/* --- forward ---------------------------------------------------------------------------------- */
template <int D> __global__ void __launch_bounds__(tile_threads) forward_kernel(attention a) {
    wait_for_previous();
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *k = q + D * (own_rows + skew), *v = k + D * (walk_rows + skew);
    float *p = v + walk_rows * D;
    int lane = (int)threadIdx.x % 8, r = (int)threadIdx.x / 8 * 4,
        first = (int)blockIdx.x * own_rows;
    float most[4], total[4], sum[4][D / 8];
    for (int i = 0; i < 4; i++) most[i] = -INFINITY, total[i] = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < D / 8; j++) sum[i][j] = 0;
    load_across<own_rows>(q, a.qkv + a.part(0), a.ld, first, a.tokens, a.width);
    for (int other = 0; other < a.tokens; other += walk_rows) {
        __syncthreads();
        load_across<walk_rows>(k, a.qkv + a.part(1), a.ld, other, a.tokens, a.width);
        load_along<walk_rows, D>(v, a.qkv + a.part(2), a.ld, other, a.tokens, a.width);
        __syncthreads();
        float s[4][4];
        tile_product(s, q, k, a.width, r, 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float highest = -INFINITY, part = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = other + 4 * lane + j < a.tokens ? a.factor * s[i][j] : -INFINITY;
                highest = fmaxf(highest, s[i][j]);
            }
            float next = fmaxf(most[i], lanes_max(highest)), rescale = expf(most[i] - next);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = expf(s[i][j] - next);
                part += s[i][j];
            }
            total[i] = total[i] * rescale + lanes_sum(part);
            most[i] = next;
#pragma unroll
            for (int j = 0; j < D / 8; j++) sum[i][j] *= rescale;
        }
        put_tile(p, s, r, 4 * lane);
        __syncthreads();
        add_product<D>(sum, p, v, r, lane);
    }
    for (int i = 0; i < 4; i++) {
        int row = first + r + i;
        if (row >= a.tokens) break;
        if (lane == 0) a.log_sum[a.stats() + row] = most[i] + logf(total[i]);
        for (int j = 0; j < D / 8; j++)
            if (lane + 8 * j < a.width)
                a.y[a.output() + (size_t)row * a.ld_y + lane + 8 * j] = sum[i][j] / total[i];
    }
}

/* --- backward --------------------------------------------------------------------------------- */
/* along[row] = dy.y of each head */
struct along_row {
    attention a;
    float *along;
    __device__ void operator()(int row, int lane) const {
        for (int h = 0; h < a.heads; h++) {
            size_t at = (size_t)row * a.ld_y + h * a.width;
            float dot = warp_dot(a.dy + at, a.y + at, a.width, lane);
            if (lane == 0)
                along[((size_t)(row / a.tokens) * a.heads + h) * a.tokens + row % a.tokens] = dot;
        }
    }
};

/* p = P of the tile, ds = dS; row statistics of queries, which are the tile's rows or its
 * columns. */
template <bool queries_own>
__device__ void tile_slopes(const attention &a, float (&p)[4][4], float (&ds)[4][4], int own,
                            int walked) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int query = queries_own ? own + i : walked + j;
            int key = queries_own ? walked + j : own + i;
            bool there = query < a.tokens && key < a.tokens;
            size_t at = a.stats() + (there ? query : 0);
            p[i][j] = there ? expf(a.factor * p[i][j] - a.log_sum[at]) : 0;
            ds[i][j] = there ? p[i][j] * (ds[i][j] - a.along[at]) * a.factor : 0;
        }
}

template <int D>
__device__ void add_result(float *to, int ld, int first, const attention &a,
                           const float (&sum)[4][D / 8], int lane) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < D / 8; j++)
            if (first + i < a.tokens && lane + 8 * j < a.width)
                to[(size_t)(first + i) * ld + lane + 8 * j] += sum[i][j];
}

template <int D> __global__ void __launch_bounds__(tile_threads) queries_kernel(attention a) {
    wait_for_previous();
    extern __shared__ __align__(16) unsigned char shared[];
    float *q = (float *)shared, *dy = q + D * (own_rows + skew), *k = dy + D * (own_rows + skew);
    float *v = k + D * (walk_rows + skew), *rows = v + D * (walk_rows + skew);
    float *tile = rows + walk_rows * D;
    int lane = (int)threadIdx.x % 8, r = (int)threadIdx.x / 8 * 4,
        first = (int)blockIdx.x * own_rows;
    float sum[4][D / 8] = {};
    load_across<own_rows>(q, a.qkv + a.part(0), a.ld, first, a.tokens, a.width);
    load_across<own_rows>(dy, a.dy + a.output(), a.ld_y, first, a.tokens, a.width);
    for (int other = 0; other < a.tokens; other += walk_rows) {
        __syncthreads();
        load_across<walk_rows>(k, a.qkv + a.part(1), a.ld, other, a.tokens, a.width);
        load_across<walk_rows>(v, a.qkv + a.part(2), a.ld, other, a.tokens, a.width);
        load_along<walk_rows, D>(rows, a.qkv + a.part(1), a.ld, other, a.tokens, a.width);
        __syncthreads();
        float p[4][4], ds[4][4];
        tile_product(p, q, k, a.width, r, 4 * lane);
        tile_product(ds, dy, v, a.width, r, 4 * lane);
        tile_slopes<true>(a, p, ds, first + r, other + 4 * lane);
        put_tile(tile, ds, r, 4 * lane);
        __syncthreads();
        add_product<D>(sum, tile, rows, r, lane);
    }
    add_result<D>(a.dqkv + a.part(0), a.ld, first + r, a, sum, lane);
}

template <int D> __global__ void __launch_bounds__(tile_threads) keys_kernel(attention a) {
    wait_for_previous();
    extern __shared__ __align__(16) unsigned char shared[];
    float *k = (float *)shared, *v = k + D * (own_rows + skew), *q = v + D * (own_rows + skew);
    float *dy = q + D * (walk_rows + skew), *q_rows = dy + D * (walk_rows + skew);
    float *dy_rows = q_rows + walk_rows * D, *p_tile = dy_rows + walk_rows * D;
    float *ds_tile = p_tile + walk_rows * (own_rows + skew);
    int lane = (int)threadIdx.x % 8, r = (int)threadIdx.x / 8 * 4,
        first = (int)blockIdx.x * own_rows;
    float dk[4][D / 8] = {}, dv[4][D / 8] = {};
    load_across<own_rows>(k, a.qkv + a.part(1), a.ld, first, a.tokens, a.width);
    load_across<own_rows>(v, a.qkv + a.part(2), a.ld, first, a.tokens, a.width);
    for (int other = 0; other < a.tokens; other += walk_rows) {
        __syncthreads();
        load_across<walk_rows>(q, a.qkv + a.part(0), a.ld, other, a.tokens, a.width);
        load_across<walk_rows>(dy, a.dy + a.output(), a.ld_y, other, a.tokens, a.width);
        load_along<walk_rows, D>(q_rows, a.qkv + a.part(0), a.ld, other, a.tokens, a.width);
        load_along<walk_rows, D>(dy_rows, a.dy + a.output(), a.ld_y, other, a.tokens, a.width);
        __syncthreads();
        float p[4][4], ds[4][4];
        tile_product(p, k, q, a.width, r, 4 * lane);
        tile_product(ds, v, dy, a.width, r, 4 * lane);
        tile_slopes<false>(a, p, ds, first + r, other + 4 * lane);
        put_tile(p_tile, p, r, 4 * lane);
        put_tile(ds_tile, ds, r, 4 * lane);
        __syncthreads();
        add_product<D>(dv, p_tile, dy_rows, r, lane);
        add_product<D>(dk, ds_tile, q_rows, r, lane);
    }
    add_result<D>(a.dqkv + a.part(1), a.ld, first + r, a, dk, lane);
    add_result<D>(a.dqkv + a.part(2), a.ld, first + r, a, dv, lane);
}

/* --- wide heads: a warp a row and head, which it walks over all others ------------------------ */
struct wide_attention {
    attention a;
    int sequence, head;
    __device__ const float *part(int which, int token) const {
        return a.qkv + ((size_t)sequence * a.tokens + token) * a.ld +
               (which * a.heads + head) * a.width;
    }
    __device__ float *grad(int which, int token) const {
        return a.dqkv + (part(which, token) - a.qkv);
    }
    __device__ size_t output(int token) const {
        return ((size_t)sequence * a.tokens + token) * a.ld_y + head * a.width;
    }
    __device__ size_t stat(int token) const {
        return ((size_t)sequence * a.heads + head) * a.tokens + token;
    }
    __device__ wide_attention(const attention &of, int row)
        : a(of), sequence(row / of.tokens / of.heads), head(row / of.tokens % of.heads) {}
};
struct wide_forward {
    attention a;
    __device__ void operator()(int row, int lane) const {
        wide_attention w(a, row);
        int own = row % a.tokens;
        float most = -INFINITY, total = 0;
        for (int t = 0; t < a.tokens; t++) {
            float s = a.factor * warp_dot(w.part(0, own), w.part(1, t), a.width, lane);
            float next = fmaxf(most, s);
            total = total * expf(most - next) + expf(s - next);
            most = next;
        }
        float *y = a.y + w.output(own);
        for (int c = lane; c < a.width; c += 32) y[c] = 0;
        for (int t = 0; t < a.tokens; t++) {
            float s = a.factor * warp_dot(w.part(0, own), w.part(1, t), a.width, lane);
            float p = expf(s - most) / total;
            for (int c = lane; c < a.width; c += 32) y[c] += p * w.part(2, t)[c];
        }
        if (lane == 0) a.log_sum[w.stat(own)] = most + logf(total);
    }
};
struct wide_backward {
    attention a;
    __device__ void operator()(int row, int lane) const {
        wide_attention w(a, row);
        int own = row % a.tokens;
        for (int t = 0; t < a.tokens; t++) {
            /* as a query, then as a key */
            float s = a.factor * warp_dot(w.part(0, own), w.part(1, t), a.width, lane);
            float dp = warp_dot(a.dy + w.output(own), w.part(2, t), a.width, lane);
            float p = expf(s - a.log_sum[w.stat(own)]);
            float ds = p * (dp - a.along[w.stat(own)]) * a.factor;
            for (int c = lane; c < a.width; c += 32) w.grad(0, own)[c] += ds * w.part(1, t)[c];
            s = a.factor * warp_dot(w.part(0, t), w.part(1, own), a.width, lane);
            dp = warp_dot(a.dy + w.output(t), w.part(2, own), a.width, lane);
            p = expf(s - a.log_sum[w.stat(t)]);
            ds = p * (dp - a.along[w.stat(t)]) * a.factor;
            for (int c = lane; c < a.width; c += 32) {
                w.grad(1, own)[c] += ds * w.part(0, t)[c];
                w.grad(2, own)[c] += p * a.dy[w.output(t) + c];
            }
        }
    }
};

/* --- launches --------------------------------------------------------------------------------- */
attention attention_of(const wf_op *op) {
    const wf_tensor *qkv = op->in[0], *y = op->out[0];
    attention a = {};
    a.qkv = data_of(qkv), a.ld = qkv->ld;
    a.y = data_of(y), a.ld_y = y->ld;
    a.log_sum = (float *)op->saved;
    a.tokens = op->tokens, a.heads = op->heads, a.width = y->cols / op->heads;
    a.factor = 1 / sqrtf((float)a.width);
    return a;
}

template <int D> void start_forward(const attention &a, dim3 grid) {
    start_kernel(forward_kernel<D>, grid, tile_threads, 4 * shared_floats<D>(1, 1, 1, 1), a);
}
template <int D> void start_backward(const attention &a, dim3 grid) {
    start_kernel(queries_kernel<D>, grid, tile_threads, 4 * shared_floats<D>(2, 2, 1, 1), a);
    start_kernel(keys_kernel<D>, grid, tile_threads, 4 * shared_floats<D>(2, 2, 2, 2), a);
}

/* out = 0 in the padding of every row */
struct padding_element {
    float *out;
    int cols, ld;
    __device__ void operator()(int row, int col) const { out[(size_t)row * ld + cols + col] = 0; }
};

} // namespace

bool attention_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0];
    attention a = attention_of(op);
    int heads = y->rows / a.tokens * a.heads;
    dim3 grid(blocks_for((size_t)a.tokens, own_rows), (unsigned)heads);
    each(padding_element{a.y, y->cols, y->ld}, y->rows, y->ld - y->cols);
    if (a.width > widest) each_warp(wide_forward{a}, heads * a.tokens);
    else if (a.width > 64) start_forward<128>(a, grid);
    else if (a.width > 32) start_forward<64>(a, grid);
    else if (a.width > 16) start_forward<32>(a, grid);
    else start_forward<16>(a, grid);
    return launched();
}

bool attention_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0];
    attention a = attention_of(op);
    int heads = y->rows / a.tokens * a.heads;
    dim3 grid(blocks_for((size_t)a.tokens, own_rows), (unsigned)heads);
    float *along = scratch(arena, (size_t)y->rows * (size_t)a.heads);
    if (along == NULL) return false;
    a.dy = grad_of(y), a.dqkv = grad_of(op->in[0]);
    each_warp(along_row{a, along}, y->rows);
    a.along = along;
    if (a.width > widest) each_warp(wide_backward{a}, heads * a.tokens);
    else if (a.width > 64) start_backward<128>(a, grid);
    else if (a.width > 32) start_backward<64>(a, grid);
    else if (a.width > 16) start_backward<32>(a, grid);
    else start_backward<16>(a, grid);
    return launched();
}

} // namespace wf_gpu
