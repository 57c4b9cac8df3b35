/* runtime: what the CUDA backends keep with a device (base/cuda/device.h): operation tables, launch
 * state, side streams and deferred work.
 *
 * A function that C calls enters the device first (`entered`). Everything below then finds the
 * state of that device by here(), just as CUDA finds the current device of a thread. Invariants
 *   R1  one thread at a time is inside a device: asserted on entering
 *   R2  here() is called inside an `entered` scope only: asserted */
#pragma once

#include "base/cuda/device.cuh"

extern "C" {
#include "tensor/tensor.h"
}

#include <thread>

namespace wf_gpu {

struct side_streams;
struct deferred_work;

/* Streams whose last launch was made by start_kernel: the next one may begin early (launch.cuh). */
struct overlapping {
    enum { most = 16 };
    cudaStream_t stream[most];
    int count;
};

struct runtime : device_state {
    wf_cuda_device *device; /* the owner */
    wf_backend float_table, bf16_table;
    wf_arena_source memory; /* device memory */
    cudaStream_t uploads;

    cudaStream_t side; /* current stream of launches; NULL: the device's */
    overlapping overlap;
    bool kernels_wait;  /* launch.cuh */
    bool bf16_products; /* products round their operands to bf16 */

    side_streams *sides;
    deferred_work *deferred; /* row_products/deferred.cuh */

    std::thread::id user; /* the thread inside */
    int depth;            /* of nested scopes */

    explicit runtime(wf_cuda_device *device);
    runtime(const runtime &) = delete;
    ~runtime() override;
};

/* The state of a device, made at the first call. NULL: the GPU reports a failure. */
runtime *runtime_of(wf_cuda_device *device);

/* Fills the operation tables (backend_cuda.cu). */
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

/* Runs f, which returns a bool, on the device. No exception leaves: false if f throws. */
template <class F> bool on_device(const wf_backend *backend, F f) {
    try {
        entered scope(backend);
        return f();
    } catch (...) {
        return false;
    }
}

} // namespace wf_gpu
