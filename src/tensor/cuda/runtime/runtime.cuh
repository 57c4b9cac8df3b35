/* runtime: what the CUDA backends keep with a device (base/cuda/device.h): its tables, its launches, its side streams and
 * the operations that wait.
 *
 * Whoever is called from C enters the device first (`entered`). Everything below then finds the state of that device by
 * here(), as CUDA itself finds a thread's current device.
 * Invariants
 *   R1  between calls nobody is inside a device, and one thread at a time is: asserted on entering
 *   R2  outside an `entered` scope here() is not called: asserted */
#ifndef WF_TENSOR_CUDA_RUNTIME_RUNTIME_CUH
#define WF_TENSOR_CUDA_RUNTIME_RUNTIME_CUH

#include "base/cuda/device.cuh"

extern "C" {
#include "tensor/tensor.h"
}

#include <thread>

namespace wf_gpu {

struct side_streams;
struct deferred_work;

/* Streams whose last launch was start_kernel's: the next one may begin early (launch.cuh). */
struct overlapping {
    enum { most = 16 };
    cudaStream_t stream[most];
    int count;
};

struct runtime : device_state {
    wf_cuda_device *device; /* whose this is */
    wf_backend float_table, bf16_table;
    wf_arena_source memory; /* device memory */
    cudaStream_t uploads;

    cudaStream_t side; /* where launches go now; NULL: the device's stream */
    overlapping overlap;
    bool kernels_wait;  /* see there, in launch.cuh */
    bool bf16_products; /* products round their operands to bf16 */

    side_streams *sides;
    deferred_work *deferred; /* row_products/deferred.cuh */

    std::thread::id user; /* the thread inside; none: nobody */
    int depth;            /* of nested scopes */

    explicit runtime(wf_cuda_device *device);
    runtime(const runtime &) = delete;
    ~runtime() override;
};

/* Of this device; made at the first call. NULL: out of memory, or the GPU reports a failure. */
runtime *runtime_of(wf_cuda_device *device);

/* The backends' tables of operations, by backend_cuda.cu. */
void fill_tables(runtime *own);

/* While it lives, the thread works on this device. */
struct entered {
    runtime *own, *before;
    explicit entered(runtime *own);
    explicit entered(const wf_backend *backend);
    entered(const entered &) = delete;
    ~entered();
};
runtime &here();

/* From a function that C calls and that answers by true or false: f on the device, false when it throws. */
template <class F> bool on_device(const wf_backend *backend, F f) {
    try {
        entered scope(backend);
        return f();
    } catch (...) {
        return false;
    }
}

} // namespace wf_gpu
#endif
