/* edge_softmax: adds the partial sums of a vector's gradient, one per block or warp of an edge
 * kernel, in order. */
#include "models/cuda/gmn_edges/edge_softmax.cuh"

#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {
namespace {

enum { block_columns = 32, eighths = 8 };

/* Eight threads a column. */
__global__ void __launch_bounds__(block_columns *eighths)
    vector_partials_kernel(const float *partials, int rows, int ld, int split, float *to,
                           float *behind) {
    wait_for_previous();
    __shared__ float sums[eighths][block_columns];
    int col = (int)(blockIdx.x * block_columns + threadIdx.x), part = (int)threadIdx.y;
    int each = (rows + eighths - 1) / eighths, last = min(rows, (part + 1) * each);
    float sum = 0;
#pragma unroll 8
    for (int row = part * each; row < last && col < ld; row++)
        sum += partials[(size_t)row * ld + col];
    sums[part][threadIdx.x] = sum;
    __syncthreads();
    float *target = col < split ? to : behind;
    if (part > 0 || col >= ld || target == NULL) return;
    for (int s = 1; s < eighths; s++) sum += sums[s][threadIdx.x];
    target[col < split ? col : col - split] += sum;
}

} // namespace

void softmax::add_vector_partials(const float *partials, int rows, int ld, int split,
                                  const wf_tensor *to, const wf_tensor *behind) {
    std::vector<range> writes, reads = {rows_of(partials, rows, ld)};
    for (const wf_tensor *t : {to, behind})
        if (wanted(t)) writes.push_back(grad_range(t));
    if (writes.empty()) return;
    launch_scope scope(for_partial_sums, reads, writes);
    start_kernel(vector_partials_kernel, blocks_for((size_t)ld, block_columns),
                 dim3(block_columns, eighths), 0, partials, rows, ld, split,
                 wanted(to) ? grad_of(to) : NULL, wanted(behind) ? grad_of(behind) : NULL);
}

} // namespace wf_gpu
