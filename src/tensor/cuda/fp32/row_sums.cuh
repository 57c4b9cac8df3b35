/* row_sums: sums over rows, of any value per (row, column).
 *
 * The rows of a target lie between its first and last one. They are cut into spans of 1,024 rows,
 * counted from the first (C2). A block of 8 warps takes a span and 32 columns: each warp adds 128
 * rows in order, then the 8 sums are added in order. A second launch adds the partial sums of the
 * spans in order. A row is read once for every target whose rows lie around it: ranges do not
 * overlap, and maps that repeat (roles of nodes and edges) have few targets. */
#pragma once

#include "tensor/cuda/fp32/matrix_ops.cuh"

namespace wf_gpu {

enum { span_rows = 1024, span_warps = 8 };

/* The rows of targets: given by their starts, or by a map and bounds [2 * targets], or all rows of
 * a single target. */
struct row_ranges {
    const uint32_t *starts, *map;
    const int *bounds;
    int targets, spans; /* most spans of a target */
    int rows;

    __device__ int first(int t) const {
        return starts != NULL ? (int)starts[t] : map != NULL ? bounds[2 * t] : 0;
    }
    __device__ int last(int t) const {
        return starts != NULL ? (int)starts[t + 1] : map != NULL ? bounds[2 * t + 1] : rows;
    }
    /* The first partial sum of a target. Ranges do not overlap, so their partial sums lie side by
     * side; mapped targets have room for `spans` each. */
    __device__ int first_partial(int t) const {
        return starts != NULL ? (int)starts[t] / span_rows + t : t * spans;
    }
    /* The target of a partial sum. */
    __device__ int target(int s) const {
        if (starts == NULL) return s / spans;
        int low = 0, high = targets;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (first_partial(middle) <= s) low = middle;
            else high = middle;
        }
        return low;
    }
};

template <class V>
__global__ void __launch_bounds__(32 * span_warps)
    span_kernel(V value, row_ranges ranges, int cols, float *partial, int ld) {
    wait_for_previous();
    __shared__ float warp_sums[span_warps][32];
    int index = (int)blockIdx.x, t = ranges.target(index);
    int first = ranges.first(t) + (index - ranges.first_partial(t)) * span_rows;
    int last = min(ranges.last(t), first + span_rows);
    if (first >= last) return;
    int col = (int)(blockIdx.y * 32 + threadIdx.x);
    int row = first + (int)threadIdx.y * (span_rows / span_warps);
    int end = min(last, row + span_rows / span_warps);
    float sum = 0;
    if (ranges.map == NULL) {
        if (col < cols)
#pragma unroll 8
            for (; row < end; row++) sum += value(row, col);
    } else {
        /* 32 rows at a time: the warp adds those of the target in order, with four loads ahead */
        for (; row < end; row += 32) {
            int own = row + (int)threadIdx.x;
            unsigned here = __ballot_sync(0xffffffffu, own < end && ranges.map[own] == (uint32_t)t);
            while (here != 0) {
                float x[4];
                bool there[4];
#pragma unroll
                for (int k = 0; k < 4; k++, here &= here - 1) {
                    there[k] = here != 0 && col < cols;
                    x[k] = there[k] ? value(row + __ffs((int)here) - 1, col) : 0;
                }
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (there[k]) sum += x[k];
            }
        }
    }
    warp_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= cols) return;
    for (int w = 1; w < span_warps; w++) sum += warp_sums[w][threadIdx.x];
    partial[(size_t)index * ld + col] = sum;
}

/* Adds the partial sums of each target's spans. */
void add_spans(const row_ranges &ranges, int cols, const float *partial, int ld,
               const sum_target &to);
/* bounds[2t], bounds[2t+1] around the rows with map[r] == t. */
void find_bounds(const uint32_t *map, int rows, int targets, int *bounds);

template <class V>
bool sum_values(V value, row_ranges ranges, int n_partials, int cols, const sum_target &to,
                wf_arena *arena) {
    int ld = wf_pad(cols);
    wf_arena_mark mark = wf_arena_here(arena);
    float *partial = scratch(arena, (size_t)n_partials * (size_t)ld);
    if (partial == NULL) return false;
    dim3 grid((unsigned)n_partials, blocks_for((size_t)cols, 32));
    start_kernel(span_kernel<V>, grid, dim3(32, span_warps), 0, value, ranges, cols, partial, ld);
    add_spans(ranges, cols, partial, ld, to);
    wf_arena_rewind(arena, mark);
    return true;
}

template <class V>
bool sum_values_ranges(V value, int rows, int cols, const uint32_t *start, int targets,
                       const sum_target &to, wf_arena *arena) {
    row_ranges ranges = {start, NULL, NULL, targets, 0, rows};
    return targets == 0 || sum_values(value, ranges, rows / span_rows + targets, cols, to, arena);
}

/* map NULL: all rows, one target. */
template <class V>
bool sum_values_mapped(V value, int rows, int cols, const uint32_t *map, int targets,
                       const sum_target &to, wf_arena *arena) {
    if (rows == 0 || targets == 0) return true;
    wf_arena_mark mark = wf_arena_here(arena);
    int *bounds = (int *)wf_arena_alloc(arena, 2 * (size_t)targets * sizeof(int));
    if (bounds == NULL) return false;
    if (map != NULL) find_bounds(map, rows, targets, bounds);
    int spans = (rows + span_rows - 1) / span_rows;
    row_ranges ranges = {NULL, map, bounds, targets, spans, rows};
    bool done = sum_values(value, ranges, spans * targets, cols, to, arena);
    wf_arena_rewind(arena, mark);
    return done;
}

} // namespace wf_gpu
