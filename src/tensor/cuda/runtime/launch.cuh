/* launch: launches that begin while the one before them on their stream is still ending (programmatic dependent launch).
 *
 * Between two launches that depend on each other nothing runs for a microsecond, and then the blocks of the second begin with
 * what depends on nothing: barriers, indices, weights. From sm_90 on a launch may begin as soon as every block of the one before
 * it has begun: its blocks take the places that fall free, and wait inside. In a capture this is a programmatic edge of the
 * graph. The backend's kernels are launched by start_kernel, but for those of L3; other launches, copies and events before and
 * behind them order everything as they always do.
 * Rules
 *   L1  a kernel of start_kernel calls follow before it reads or writes what another launch writes or reads. follow returns when
 *       the launch before it is complete. That one called follow too before it ended, so all before it is complete as well
 *   L2  follow lets the next launch begin, behind its own wait. So when a launch begins, everything but the launch before it on
 *       its stream is complete
 *   L3  before follow a kernel may read weights and their copies in bf16, nothing else. Who writes these (an optimiser, packing)
 *       is launched plainly, and so is what start_kernel launches next, on any stream (plain_next): that begins when the weights
 *       stand, and by L2 all that comes later does
 *   L4  behind an event of another stream, and where a capture begins, the next launch is plain too
 * Measured on an H200, updates of 56 networks 64-16-8-10 and of 64 networks 784-32-32-10, lean, in ms: 2.83 and 7.70 without, 2.72
 * and 7.52 with it (and weights staged from copies, zeros on a side stream); 100 velocities 1.30 and 3.23, and 1.20 and 2.95.
 * Tried: programmatic edges between streams too, made by hand: 2.71 and 7.51. */
#ifndef WF_TENSOR_CUDA_RUNTIME_LAUNCH_CUH
#define WF_TENSOR_CUDA_RUNTIME_LAUNCH_CUH

#include <cuda_runtime.h>

namespace wf_gpu {

/* Where launches go: the device's stream, or another for a while (NULL: the device's again). */
cudaStream_t stream();
void use_stream(cudaStream_t side);

/* What start_kernel launches next on this stream, or on any, waits for all before it. */
void plain_next(cudaStream_t stream);
void plain_next();
/* Whether a launch on this stream may begin early; it is made now. */
bool begins_early(cudaStream_t stream);

/* Whether kernels that run on this device call griddepcontrol.wait: code for sm_90 does, code for an older device does not,
 * even where a newer one runs it. */
bool kernels_wait();

/* Multiprocessors of the device, and the shared memory that a block may have on it. */
int processor_count();
int most_shared_bytes();

/* Lets a kernel have as much shared memory, if it may not have more already. Where the device has less its launch fails. */
void allow_shared(const void *kernel, size_t bytes);

/* A kernel that calls follow, on stream(). */
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

/* Zeros, and a copy on the device, as launches like all others; whole floats. */
void start_zero(void *to, size_t bytes);
void start_copy(void *to, const void *from, size_t bytes);

#ifdef __CUDACC__
__device__ inline void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

} // namespace wf_gpu
#endif
