/* runtime: the state of a device, and entering it. */
#include "tensor/cuda/runtime/runtime.cuh"
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/runtime/launch.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

#include <assert.h>

namespace wf_gpu {
namespace {

thread_local runtime *current; /* R2 */

void *device_take(void *device, size_t bytes) {
    void *memory = NULL;
    wf_cuda_use((const wf_cuda_device *)device);
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError(); /* out of memory is the caller's to report */
    return NULL;
}
void device_give(void *, void *memory) { cudaFree(memory); }

} // namespace

runtime::runtime(wf_cuda_device *of)
    : device(of), float_table(), bf16_table(), memory{device_take, device_give, of}, uploads(),
      side(), overlap(), kernels_wait(wf_gpu::kernels_wait()), bf16_products(),
      sides(new side_streams()), deferred(NULL), user(), depth() {
    deferred = make_deferred(&memory);
    fill_tables(this);
}

runtime::~runtime() {
    delete sides;
    free_deferred(deferred);
    if (uploads != NULL) cudaStreamDestroy(uploads);
}

runtime *runtime_of(wf_cuda_device *device) {
    if (device->runtime == NULL) {
        wf_cuda_use(device);
        runtime *made = new runtime(device);
        if (cudaStreamCreateWithFlags(&made->uploads, cudaStreamNonBlocking) != cudaSuccess) {
            delete made;
            return NULL;
        }
        device->runtime = made;
    }
    return static_cast<runtime *>(device->runtime);
}

entered::entered(runtime *of) : own(of), before(current) {
    std::thread::id self = std::this_thread::get_id();
    assert(own->depth == 0 || own->user == self); /* R1 */
    own->user = self;
    own->depth++;
    current = own;
    wf_cuda_use(own->device);
}
entered::entered(const wf_backend *backend) : entered(runtime_of(backend->device)) {}
entered::~entered() {
    own->depth--;
    current = before;
}

runtime &here() {
    assert(current != NULL);
    return *current;
}

} // namespace wf_gpu
