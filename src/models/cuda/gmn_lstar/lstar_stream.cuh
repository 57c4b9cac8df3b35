/* lstar_stream: E3 (D, H), the last matrix of the edge update, for widths at which the three
 * matrices do not fit into shared memory together. It comes from L2, one strip of 64 columns of H
 * at a time, into a buffer of each warpgroup. */
#pragma once

#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_edges/warp_tile.cuh"

namespace wf_gpu {

template <int D, int H> __host__ __device__ constexpr bool streamed() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + mma::panel_bytes(D, H) > 220 * 1024;
}
template <int D, int H> __host__ __device__ constexpr size_t last_bytes() {
    static_assert(!streamed<D, H>() || forward_groups<D>() == back_groups<D>(),
                  "one buffer a warpgroup");
    return streamed<D, H>() ? back_groups<D>() * mma::panel_bytes(D, mma::strip_columns)
                            : mma::panel_bytes(D, H);
}
/* Where the warps' buffers of table rows are: after the weights, or in the warpgroup's strip while
 * that is not used. */
template <int D, int H> __host__ __device__ constexpr size_t table_bytes(int groups) {
    return streamed<D, H>() ? 0 : (size_t)groups * WF_GROUP_WARPS * bundle::buffer_bytes;
}
template <int D, int H>
__device__ inline bundle::row_buffer table_buffer(unsigned char *strips, unsigned char *behind) {
    if constexpr (!streamed<D, H>()) return bundle::own_buffer(behind);
    static_assert(!streamed<D, H>() || WF_GROUP_WARPS * bundle::buffer_bytes <=
                                           mma::panel_bytes(D, mma::strip_columns),
                  "a strip has room for them");
    int warp = (int)threadIdx.x / 32;
    return bundle::row_buffer{strips +
                              warp / WF_GROUP_WARPS * mma::panel_bytes(D, mma::strip_columns) +
                              warp % WF_GROUP_WARPS * bundle::buffer_bytes};
}
/* The bytes of a panel of w (rows, cols), as stage_panel would write them. */
void panel_image(const float *w, int ld, int rows, int cols, unsigned char *to);

/* Starts copying a strip (rows x 128 bytes) by the threads of a warpgroup. */
template <int Rows> __device__ inline void start_strip(uint32_t to, const unsigned char *from) {
    int thread = (int)threadIdx.x % bundle::group_threads;
#pragma unroll
    for (int i = 0; i < Rows * mma::strip_pitch / 16 / bundle::group_threads; i++) {
        int at = 16 * (thread + i * bundle::group_threads);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (uint32_t)at),
                     "l"(from + at)
                     : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for the strip; the whole warpgroup may then read it. */
__device__ inline void await_strip(int barrier) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    mma::publish();
    mma::group_barrier(barrier);
}

} // namespace wf_gpu
