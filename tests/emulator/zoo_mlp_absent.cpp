/* zoo_mlp_absent: kernels of src/zoo/cuda that launch clusters by cudaLaunchKernelExC, which the
 * emulator does not have. On it every chain of linear layers goes to zoo_block. */
#include "zoo/cuda/zoo_large_input.cuh"
#include "zoo/cuda/zoo_small.cuh"

namespace zoo_gpu {

bool can_cluster() { return false; }
bool large_input_choose(large_input_plan *, bool) { return false; }
bool small_choose(small_plan *, bool) { return false; }
cudaError_t large_input_launch(const large_input_plan &, const gpu_networks &, size_t,
                               cudaStream_t) {
    return cudaErrorInvalidValue;
}
cudaError_t small_launch(const small_plan &, const gpu_networks &, size_t, cudaStream_t) {
    return cudaErrorInvalidValue;
}
cudaError_t split_into_planes(const large_input_plan &, const float *, size_t, __nv_bfloat16 *) {
    return cudaErrorInvalidValue;
}

} // namespace zoo_gpu
