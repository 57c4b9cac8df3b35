/* row_sums: bounds of mapped targets, the second stage of row sums, and common sums. */
#include "tensor/cuda/fp32/row_sums.cuh"

#include <limits.h>

namespace wf_gpu {
namespace {

enum { bound_threads = 1024 };

__global__ void __launch_bounds__(bound_threads)
    bounds_kernel(const uint32_t *map, int rows, int *bounds) {
    wait_for_previous();
    __shared__ int low[32], high[32];
    uint32_t target = blockIdx.x;
    int first = INT_MAX, last = 0;
    for (int row = (int)threadIdx.x; row < rows; row += bound_threads)
        if (map[row] == target) {
            first = min(first, row);
            last = row + 1;
        }
    first = __reduce_min_sync(0xffffffffu, first);
    last = __reduce_max_sync(0xffffffffu, last);
    if (threadIdx.x % 32 == 0) {
        low[threadIdx.x / 32] = first;
        high[threadIdx.x / 32] = last;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    first = __reduce_min_sync(0xffffffffu, low[threadIdx.x]);
    last = __reduce_max_sync(0xffffffffu, high[threadIdx.x]);
    if (threadIdx.x != 0) return;
    bounds[2 * target] = last == 0 ? 0 : first;
    bounds[2 * target + 1] = last;
}

/* A block for a target and 32 columns; 8 warps add an eighth of the spans each. */
__global__ void add_spans_kernel(row_ranges ranges, int cols, const float *partial, int ld,
                                 sum_target to) {
    wait_for_previous();
    __shared__ float warp_sums[span_warps][32];
    int t = (int)blockIdx.x, col = (int)(blockIdx.y * 32 + threadIdx.x);
    int rows = ranges.last(t) - ranges.first(t), spans = (rows + span_rows - 1) / span_rows;
    int each_warp = (spans + span_warps - 1) / span_warps;
    int first = (int)threadIdx.y * each_warp, last = min(spans, first + each_warp);
    size_t at = (size_t)ranges.first_partial(t);
    float sum = 0;
    if (col < cols)
#pragma unroll 4
        for (int s = first; s < last; s++) sum += partial[(at + (size_t)s) * ld + col];
    warp_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= cols) return;
    for (int w = 1; w < span_warps; w++) sum += warp_sums[w][threadIdx.x];
    if (to.mean && rows > 0) sum /= (float)rows;
    float *out = to.data + (size_t)t * to.ld + col;
    *out = to.set ? sum : *out + sum;
}

/* Each kind of value has its own kernel: a test inside the loop would keep loads from running
 * ahead. */
struct row_value {
    const float *x;
    int ld;
    __device__ float operator()(int row, int col) const { return x[(size_t)row * ld + col]; }
};
struct product_value {
    const float *x, *y;
    int ld;
    __device__ float operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        return x[at] * y[at];
    }
};
struct scaled_value {
    const float *x, *factor;
    int ld;
    __device__ float operator()(int row, int col) const {
        return factor[row] * x[(size_t)row * ld + col];
    }
};

} // namespace

void find_bounds(const uint32_t *map, int rows, int targets, int *bounds) {
    start_kernel(bounds_kernel, (unsigned)targets, bound_threads, 0, map, rows, bounds);
}

void add_spans(const row_ranges &ranges, int cols, const float *partial, int ld,
               const sum_target &to) {
    dim3 grid((unsigned)ranges.targets, blocks_for((size_t)cols, 32));
    start_kernel(add_spans_kernel, grid, dim3(32, span_warps), 0, ranges, cols, partial, ld, to);
}

bool sum_rows(const float *x, const float *factor, int ld, int rows, int cols, const sum_target &to,
              wf_arena *arena) {
    if (factor == NULL) return sum_values_mapped(row_value{x, ld}, rows, cols, NULL, 1, to, arena);
    return sum_values_mapped(scaled_value{x, factor, ld}, rows, cols, NULL, 1, to, arena);
}

bool sum_ranges(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *start,
                int targets, const sum_target &to, wf_arena *arena) {
    if (y == NULL)
        return sum_values_ranges(row_value{x, ld}, rows, cols, start, targets, to, arena);
    return sum_values_ranges(product_value{x, y, ld}, rows, cols, start, targets, to, arena);
}

bool sum_mapped(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *map,
                int targets, const sum_target &to, wf_arena *arena) {
    if (y == NULL) return sum_values_mapped(row_value{x, ld}, rows, cols, map, targets, to, arena);
    return sum_values_mapped(product_value{x, y, ld}, rows, cols, map, targets, to, arena);
}

} // namespace wf_gpu
