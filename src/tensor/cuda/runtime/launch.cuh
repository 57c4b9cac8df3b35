/* launch: launches that begin while the previous launch of their stream is still ending
 * (programmatic dependent launch).
 *
 * Between two dependent launches the device is idle for a microsecond, and then the blocks of the
 * second begin with barriers, indices and weights, which depend on nothing. From sm_90 on a launch
 * may begin as soon as every block of the previous one has begun: its blocks take the places that
 * fall free and wait inside. In a capture this becomes a programmatic edge of the graph. Kernels of
 * the backends are launched by start_kernel, except those of L3. Other launches, copies and events
 * order everything as usual. Rules
 *   L1  a kernel launched by start_kernel calls wait_for_previous before it touches memory that
 *       another launch touches. It returns when the previous launch is complete; that one waited
 *       too, so everything before it is complete as well
 *   L2  wait_for_previous then lets the next launch begin. So when a launch begins, everything
 *       except the previous launch of its stream is complete
 *   L3  before wait_for_previous a kernel may only read weights and their bf16 copies. Kernels
 *       that write these (an optimiser, packing) are launched plainly, and so is the next launch
 *       of start_kernel on any stream (plain_next): it begins when the weights are complete, and
 *       by L2 so does every later one
 *   L4  after an event of another stream, and at the beginning of a capture, the next launch is
 *       plain
 * On an H200 it takes 3 % off an update of some 60 networks and 8 % off 100 velocities. */
#pragma once

#include <cuda_runtime.h>

namespace wf_gpu {

/* The stream of launches: the device's, or a side stream for a while (NULL: the device's again). */
cudaStream_t stream();
void use_stream(cudaStream_t side);

/* The next start_kernel on this stream, or on any stream, waits for everything before it. */
void plain_next(cudaStream_t stream);
void plain_next();
/* Whether the launch that is being made on this stream may begin early. */
bool begins_early(cudaStream_t stream);

/* Whether kernels call griddepcontrol.wait on this device. Code for sm_90 does. Code for an older
 * device does not, even if a newer device runs it. */
bool kernels_wait();

/* Multiprocessors of the device, and the most shared memory that a block may have on it. */
int processor_count();
int most_shared_bytes();

/* Allows a kernel this much dynamic shared memory. If the device has less, its launch fails. */
void allow_shared(const void *kernel, size_t bytes);

/* Launches a kernel that calls wait_for_previous, on stream(). */
template <class... P, class... A>
void start_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes,
                  const A &...arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = bytes;
    config.stream = stream();
    config.attrs = &early;
    config.numAttrs = begins_early(config.stream) ? 1 : 0;
    if (bytes > 0) allow_shared((const void *)kernel, bytes);
    cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

/* A memset to zero and a copy on the device, as kernels; the sizes are multiples of 4 bytes. */
void start_zero(void *to, size_t bytes);
void start_copy(void *to, const void *from, size_t bytes);

#ifdef __CUDACC__
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

} // namespace wf_gpu
