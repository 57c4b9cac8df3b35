/* edge_weight_gradients: sums of outer products of images.
 *
 *   CTA   128 rows of dw (64 a warpgroup) by all n columns, over a slice of the tiles; accumulators
 *         stay in registers. For each tile, two strips of dy (16 KB) and n / 64 strips of x come by
 *         cp.async, three or four tiles ahead
 * The partial sums (slice, m, n) of all products are added in order by one more launch. They run on
 * a side stream, beside the operations on nodes.
 * Bytes: dy once, x m / 128 times (the second time from L2), 2 each a row and column. Bandwidth is
 * the limit: 95 % of it is used on an H200 at m = n = 128. */
#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_edges/edge_weight_gradients.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {
namespace {

enum { outer_threads = 256, block_rows = 128 };

template <int N> struct outer_shape {
    static constexpr int stages = N > 128 ? 3 : 4;
    static constexpr int stage_bytes = (block_rows / 64 + N / 64) * image_strip_bytes;
    static constexpr int bytes = stages * stage_bytes;
    static_assert(bytes <= outer_bytes, "as promised");
};

struct outer_args {
    const unsigned char *dy[2], *x[2];
    int images, m, tiles, slices;
    size_t tile_bytes;
    float *partial;      /* (slices, m, n), both by position in the image */
    float *bias_partial; /* (slices, m) by position, or NULL */
};

__device__ inline void copy_strip(uint32_t to, const unsigned char *from) {
#pragma unroll
    for (int i = 0; i < image_strip_bytes / 16 / outer_threads; i++) {
        int at = 16 * ((int)threadIdx.x + i * outer_threads);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (uint32_t)at),
                     "l"(from + at)
                     : "memory");
    }
}

/* Loads an item, that is a tile of an image. */
template <int N>
__device__ inline void copy_item(const outer_args &s, int item, int first_strip, int strips,
                                 uint32_t to) {
    int tile = item / s.images, image = item % s.images;
    const unsigned char *dy =
        (image == 0 ? s.dy[0] : s.dy[1]) + tile * s.tile_bytes + first_strip * image_strip_bytes;
    const unsigned char *x = (image == 0 ? s.x[0] : s.x[1]) + tile * s.tile_bytes;
    for (int k = 0; k < strips; k++)
        copy_strip(to + k * image_strip_bytes, dy + (size_t)k * image_strip_bytes);
#pragma unroll
    for (int k = 0; k < N / 64; k++)
        copy_strip(to + (block_rows / 64 + k) * image_strip_bytes,
                   x + (size_t)k * image_strip_bytes);
}

/* A thread's two columns of dy, 16 of the 64 rows. */
__device__ inline void add_columns(const unsigned char *dy, float2 *sum) {
    int word = (int)threadIdx.x % 64, quarter = (int)threadIdx.x / 64;
    const unsigned char *strip = dy + word / 32 * image_strip_bytes;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int row = 16 * quarter + k;
        uint32_t both = *(const uint32_t *)(strip + row * 128 + ((word % 32 / 4) ^ (row % 8)) * 16 +
                                            word % 4 * 4);
        sum->x += __uint_as_float(both << 16);
        sum->y += __uint_as_float(both & 0xffff0000u);
    }
}

template <int N, bool Wgmma>
__global__ void __launch_bounds__(outer_threads, 1) outer_kernel(outer_args s) {
    wait_for_previous();
    extern __shared__ __align__(1024) unsigned char shared[];
    typedef outer_shape<N> shape;
    int blocks_m = (s.m + block_rows - 1) / block_rows;
    int slice = (int)blockIdx.x / blocks_m, first_strip = (int)blockIdx.x % blocks_m * 2;
    int strips = min(2, s.m / 64 - first_strip);
    int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x % 128 / 32;
    int items = s.tiles * s.images;
    int first = (int)((long long)items * slice / s.slices);
    int last = (int)((long long)items * (slice + 1) / s.slices);
    uint32_t base = mma::shared_address(shared);
    float acc[N / 8][4];
    mma::clear(acc);
    float2 column = {0, 0};
    for (int k = 0; k < shape::stages - 1; k++) {
        if (first + k < last)
            copy_item<N>(s, first + k, first_strip, strips, base + k * shape::stage_bytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int item = first; item < last; item++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(shape::stages - 2) : "memory");
        mma::publish();
        __syncthreads();
        int ahead = item + shape::stages - 1;
        if (ahead < last)
            copy_item<N>(s, ahead, first_strip, strips,
                         base + (ahead - first) % shape::stages * shape::stage_bytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
        int at = (item - first) % shape::stages * shape::stage_bytes;
        if (group < strips) {
            mma::panel dy = {base + (uint32_t)(at + group * image_strip_bytes), 64};
            mma::panel x = {base + (uint32_t)(at + 2 * image_strip_bytes), 64};
            mma::begin<Wgmma>();
            mma::outer_mma<Wgmma>(acc, dy, 16 * warp, 0, x, 0, false);
            mma::commit<Wgmma>();
        }
        if (s.bias_partial != NULL) add_columns(shared + at, &column);
        mma::wait<Wgmma>();
        mma::settle(acc);
    }
    int lane = (int)threadIdx.x % 32;
    if (group < strips) {
        int row = (first_strip + group) * 64 + 16 * warp + lane / 4;
        float *to = s.partial + ((size_t)slice * s.m + row) * N + 2 * (lane % 4);
#pragma unroll
        for (int t = 0; t < N / 8; t++) {
            *(float2 *)(to + 8 * t) = float2{acc[t][0], acc[t][1]};
            *(float2 *)(to + 8 * N + 8 * t) = float2{acc[t][2], acc[t][3]};
        }
    }
    if (s.bias_partial == NULL) return;
    __syncthreads();
    float2 *quarters = (float2 *)shared;
    quarters[threadIdx.x] = column;
    __syncthreads();
    int word = (int)threadIdx.x;
    if (word >= 32 * strips) return;
    for (int q = 1; q < 4; q++) {
        column.x += quarters[64 * q + word].x;
        column.y += quarters[64 * q + word].y;
    }
    *(float2 *)(s.bias_partial + (size_t)slice * s.m + 64 * first_strip + 2 * word) = column;
}

/* --- adding the slices ------------------------------------------------------------------------ */
struct slice_sum {
    const float *partial;
    float *to;
    int m, n, ld, slices; /* n = 0: a vector */
};
struct slice_sums {
    slice_sum of[2 * most_outer_products];
};

__global__ void add_slices_kernel(slice_sums all) {
    wait_for_previous();
    slice_sum s = all.of[blockIdx.y];
    int width = s.n == 0 ? 1 : s.n, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= s.m * width) return;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < s.slices; k++) sum += s.partial[(size_t)k * (s.m * width) + i];
    int row = image_column(i / width), col = s.n == 0 ? 0 : image_column(i % width);
    s.to[(size_t)row * s.ld + col] += sum;
}

template <int N, bool Wgmma> bool launch_outer(const outer_args &s) {
    unsigned blocks = (unsigned)((s.m + block_rows - 1) / block_rows * s.slices);
    start_kernel(outer_kernel<N, Wgmma>, blocks, outer_threads, outer_shape<N>::bytes, s);
    return true;
}
template <int N> bool launch_outer(const outer_args &s) {
    return use_wgmma() ? launch_outer<N, true>(s) : launch_outer<N, false>(s);
}

} // namespace

bool outer_products(const outer_product *products, int count, const unsigned char *images,
                    int tiles, size_t tile_bytes, wf_arena *arena) {
    outer_args products_args[most_outer_products];
    slice_sums sums = {};
    int n_sums = 0, most = 0;
    std::vector<range> writes;
    auto take = [&](size_t floats) {
        float *memory = scratch(arena, floats);
        writes.push_back(rows_of(memory, 1, (int)floats));
        return memory;
    };
    for (int k = 0; k < count; k++) {
        const outer_product *p = &products[k];
        outer_args &s = products_args[k];
        s.partial = NULL;
        if (p->dw == NULL && p->db == NULL) continue;
        int slices = max(1, processor_count() / ((p->m + block_rows - 1) / block_rows));
        s = {{p->dy[0], p->dy[1]},
             {p->x[0], p->x[1]},
             p->images,
             p->m,
             tiles,
             slices,
             tile_bytes,
             take((size_t)slices * (size_t)p->m * (size_t)p->n),
             NULL};
        if (p->db != NULL) s.bias_partial = take((size_t)slices * (size_t)p->m);
        if (s.partial == NULL || (p->db != NULL && s.bias_partial == NULL)) return false;
        if (p->dw != NULL) {
            sums.of[n_sums++] = slice_sum{s.partial, p->dw, p->m, p->n, p->ld, slices};
            writes.push_back(columns_of(p->dw, p->m, p->ld, p->n));
        }
        if (p->db != NULL) {
            sums.of[n_sums++] = slice_sum{s.bias_partial, p->db, p->m, 0, 1, slices};
            writes.push_back(rows_of(p->db, 1, p->m));
        }
        most = max(most, p->m * p->n);
    }
    if (n_sums == 0) return true;
    const char *begin = (const char *)images;
    launch_scope scope(for_weights, {range{begin, begin + tiles * tile_bytes}}, writes);
    lend_scratch(for_weights);
    for (int k = 0; k < count; k++)
        if (products_args[k].partial != NULL &&
            !(products[k].n == 64    ? launch_outer<64>(products_args[k])
              : products[k].n == 128 ? launch_outer<128>(products_args[k])
                                     : launch_outer<256>(products_args[k])))
            return false;
    dim3 grid(blocks_for((size_t)most, threads_each), (unsigned)n_sums);
    start_kernel(add_slices_kernel, grid, threads_each, 0, sums);
    return true;
}

} // namespace wf_gpu
