/* octet_softmax: shares of a vector's gradient, one a block or warp of an edge kernel, added in order. */
#include "models/cuda/gmn_edges/edge_softmax.cuh"

#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {
namespace {

enum { share_columns = 32, share_threads = 8 };

/* Eight threads a column. */
__global__ void __launch_bounds__(share_columns *share_threads)
    vector_shares_kernel(const float *shares, int rows, int ld, int split, float *to,
                         float *behind) {
    follow();
    __shared__ float sums[share_threads][share_columns];
    int col = (int)(blockIdx.x * share_columns + threadIdx.x), part = (int)threadIdx.y;
    int each = (rows + share_threads - 1) / share_threads, last = min(rows, (part + 1) * each);
    float sum = 0;
#pragma unroll 8
    for (int row = part * each; row < last && col < ld; row++)
        sum += shares[(size_t)row * ld + col];
    sums[part][threadIdx.x] = sum;
    __syncthreads();
    float *target = col < split ? to : behind;
    if (part > 0 || col >= ld || target == NULL) return;
    for (int s = 1; s < share_threads; s++) sum += sums[s][threadIdx.x];
    target[col < split ? col : col - split] += sum;
}

} // namespace

void softmax::add_vector_shares(const float *shares, int rows, int ld, int split,
                                const wf_tensor *to, const wf_tensor *behind) {
    std::vector<range> writes, reads = {rows_of(shares, rows, ld)};
    for (const wf_tensor *t : {to, behind})
        if (wanted(t)) writes.push_back(grad_range(t));
    if (writes.empty()) return;
    launch_scope scope(for_parts, reads, writes);
    start_kernel(vector_shares_kernel, blocks_for((size_t)ld, share_columns),
                 dim3(share_columns, share_threads), 0, shares, rows, ld, split,
                 wanted(to) ? grad_of(to) : NULL, wanted(behind) ? grad_of(behind) : NULL);
}

} // namespace wf_gpu
