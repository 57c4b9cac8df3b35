/* cuda_runtime: what weft's kernels need of the CUDA runtime and of device C++, for g++ on a
 * machine without a GPU.
 *
 * translate.py turns launches and inline PTX of a preprocessed .cu file into calls of what is
 * declared here and in ptx.h; emulator.cpp runs them. Every thread of a block is a fiber; one runs
 * at a time, until it has to wait for others. Invariants
 *   M1  a thread runs on until it meets others (warp, barrier, mbarrier): what it may not yet
 *       read has not been written, for the order of warps and lanes is shuffled by
 *       WEFT_EMULATOR_SEED (0: as they are numbered)
 *   M2  a launch runs when somebody waits for it, in any order that streams and events allow:
 *       shuffled by the same seed
 *   M3  an asynchronous copy to shared memory happens when its thread waits for it, or (by the
 *       same seed) at once
 *   M4  memory that nobody has written is NaN: of the device when it is taken, dynamic shared
 *       memory for every block
 *   M5  what a GPU would refuse or hang on (too much shared memory, misaligned words, threads
 *       that wait for ever, lanes of a warp in different instructions, a capture whose streams
 *       are not joined) ends the program with a sentence
 *   M6  several host threads may call; one is inside at a time, and launches of all of them are
 *       shuffled together (M2)
 *   M7  blocks of a cluster run side by side. A bulk copy lands at any time between its issue and
 *       the moment when all threads wait, its destination NaN until then (hopper.cpp)
 *   M8  wgmma runs when it is waited for; until then its accumulators are NaN
 * Not seen: two lanes' accesses on both sides of an instruction that the whole warp executes (mma,
 * shuffles), for here it keeps them in order as __syncwarp does; blocks that are not of one cluster
 * side by side. Kernels of src/ run here as compiled for sm_80, those of bench/ as for sm_90a, and
 * those of lean, of lstar and of many rows both ways (test_cuda_ops_90a).
 * Static shared memory is one for all blocks of a cluster.
 * The card is one of sm_80 with the shared memory of later ones; WEFT_EMULATOR_PROCESSORS says of
 * how many SMs (8), and WEFT_EMULATOR_DEVICES how many cards there are (1). Their memory is one:
 * reading another card's is not noticed. */
#ifndef WF_EMULATOR_CUDA_RUNTIME_H
#define WF_EMULATOR_CUDA_RUNTIME_H

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <functional>
#include <tuple>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static /* blocks run one after another */

using std::max;
using std::min;

/* --- vectors ---------------------------------------------------------------------------------- */
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* --- runtime ---------------------------------------------------------------------------------- */
enum cudaError_t {
    cudaSuccess,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidValue,
    cudaErrorStreamCaptureUnjoined,
    cudaErrorNotReady,
    cudaErrorHostMemoryAlreadyRegistered
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization,
    cudaLaunchAttributeClusterDimension
};
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeRelaxed = 2 };
enum { cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
struct cudaDeviceProp {
    char name[64];
    int multiProcessorCount;
    size_t totalGlobalMem;
};
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t, *cudaGraphExec_t;
typedef size_t cudaGraphNode_t; /* place among a graph's tasks */
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaStreamSetCaptureDependencies = 1 };
struct cudaFuncAttributes {
    int ptxVersion, maxDynamicSharedSizeBytes;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char *cudaGetErrorString(cudaError_t error);

cudaError_t cudaMalloc(void **memory, size_t bytes);
template <class T> cudaError_t cudaMalloc(T **memory, size_t bytes) {
    return cudaMalloc((void **)memory, bytes);
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all);
/* Host memory that kernels reach: theirs are the host's addresses. */
enum { cudaHostAllocDefault = 0, cudaHostAllocMapped = 2, cudaHostRegisterDefault = 0 };
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
template <class T> cudaError_t cudaMallocHost(T **memory, size_t bytes) {
    return cudaHostAlloc((void **)memory, bytes, 0);
}
cudaError_t cudaFreeHost(void *memory);
inline cudaError_t cudaHostGetDevicePointer(void **there, void *here, unsigned) {
    *there = here;
    return cudaSuccess;
}
inline cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
cudaError_t cudaFree(void *memory);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
inline cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
/* Waits: nobody else would run the launches. */
inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event); /* waits: nobody else would run the launches */

#define CUDART_CB
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*call)(void *), void *argument);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **after, size_t *n);
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *after,
                                                size_t n, unsigned flags);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                       const cudaGraphNode_t *after, size_t n, cudaGraph_t child);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* --- threads ---------------------------------------------------------------------------------- */
extern dim3 blockDim, gridDim; /* a launch's configuration has members of these names */
namespace emulated {

struct thread {
    dim3 index;
    int lane;
};
extern thread *self;
extern dim3 block_index;
#define threadIdx (emulated::self->index)
#define blockIdx emulated::block_index

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What the lanes of a warp bring to an instruction that all of them execute together, and what it
 * gives them. The last to arrive calls finish for all. Lanes that have ended bring nothing. */
enum { most_words = 6, warp_lanes = 32 };
struct meeting {
    uint32_t in[warp_lanes][most_words], out[warp_lanes][4];
};
typedef void finish_fn(meeting &);
/* `name` says which instruction it is. */
const meeting &meet(const char *name, finish_fn *finish, const uint32_t *words, int count);

/* Of the block: the threads that are left, or `count` of them at barrier `id`. */
void arrive_at(int id, int count, bool wait);
bool sync_threads(bool value); /* true: of any thread */

/* Shared memory has addresses of 32 bits. */
enum { most_shared = 227 << 10, first_address = 1 << 30 };
extern unsigned char *dynamic_shared; /* of the block that runs */
inline uint32_t address_of(const void *p) {
    return (uint32_t)((uintptr_t)p - (uintptr_t)dynamic_shared) + first_address;
}
/* Of an aligned word of so many bytes. */
void *shared_at(uint32_t address, int bytes);

/* What wgmma says, and what a lane brings to it: its accumulators, its part of a in registers. */
struct product_form {
    int n;
    bool half, a_in_registers, turned_a, turned_b, added;
    uint64_t a_at, b_at; /* descriptors */
};
struct product_part {
    float *acc[128];
    uint32_t a[4];
};

/* --- launches --------------------------------------------------------------------------------- */
void enqueue(cudaStream_t stream, std::function<void()> task);
void run_grid(const char *name, dim3 grid, dim3 block, unsigned cluster, size_t bytes,
              const std::function<void()> &thread);
void allow_shared(const void *kernel, int bytes);
int shared_allowed(const void *kernel);
void check_shared(const char *name, const void *kernel, size_t bytes);

/* kernel<<<grid, block, bytes, stream>>>(arguments), which are copied. */
template <class... P> struct launcher {
    const char *name;
    dim3 grid, block;
    size_t bytes;
    cudaStream_t stream;
    void (*kernel)(P...);
    unsigned cluster; /* blocks along x */
    template <class... A> void operator()(const A &...arguments) const {
        std::tuple<P...> kept(static_cast<P>(arguments)...);
        launcher own = *this;
        check_shared(name, (const void *)kernel, bytes);
        enqueue(stream, [own, kept] {
            run_grid(own.name, own.grid, own.block, own.cluster, own.bytes,
                     [&] { std::apply(own.kernel, kept); });
        });
    }
};
template <class... P>
launcher<P...> launch(const char *name, dim3 grid, dim3 block, size_t bytes, cudaStream_t stream,
                      void (*kernel)(P...), unsigned cluster = 1) {
    return {name, grid, block, bytes, stream, kernel, cluster};
}

template <class... P>
launcher<P...> launch(const char *name, dim3 grid, dim3 block, void (*kernel)(P...)) {
    return {name, grid, block, 0, NULL, kernel, 1};
}

template <class T> uint32_t bits_of(T value) {
    static_assert(sizeof(T) == 4, "a word");
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
template <class T> T of_bits(uint32_t bits) {
    T value;
    memcpy(&value, &bits, 4);
    return value;
}
/* fold over the lanes' first words, given to all. */
template <class F> uint32_t reduced(const char *name, uint32_t own, uint32_t start, F fold) {
    const meeting &m = meet(name, NULL, &own, 1);
    for (int lane = 0; lane < warp_lanes; lane++) start = fold(start, m.in[lane][0], lane);
    return start;
}

} // namespace emulated

/* Launches do not begin early here: of the attributes only the cluster is looked at. */
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                               const A &...arguments) {
    unsigned cluster = 1;
    for (unsigned k = 0; k < config->numAttrs; k++)
        if (config->attrs[k].id == cudaLaunchAttributeClusterDimension)
            cluster = config->attrs[k].val.clusterDim.x;
    emulated::launch(__PRETTY_FUNCTION__, config->gridDim, config->blockDim,
                     config->dynamicSmemBytes, config->stream, kernel, cluster)(arguments...);
    return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *of, const void *kernel) {
    of->ptxVersion = 80;
    of->maxDynamicSharedSizeBytes = emulated::shared_allowed(kernel);
    return cudaSuccess;
}
template <class K> cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute, int bytes) {
    if (bytes > emulated::most_shared) return cudaErrorInvalidValue;
    emulated::allow_shared((const void *)kernel, bytes);
    return cudaSuccess;
}

/* --- device functions ------------------------------------------------------------------------- */
inline void __syncthreads() { emulated::sync_threads(false); }
inline int __syncthreads_or(int value) { return emulated::sync_threads(value != 0); }
inline void __syncwarp() { emulated::meet("__syncwarp", NULL, NULL, 0); }

template <class T> T __shfl_sync(unsigned mask, T value, int lane) {
    if constexpr (sizeof(T) == 8) {
        uint32_t half[2];
        memcpy(half, &value, 8);
        for (uint32_t &word : half) word = __shfl_sync(mask, word, lane);
        memcpy(&value, half, 8);
        return value;
    } else {
        uint32_t own = emulated::bits_of(value);
        return emulated::of_bits<T>(emulated::meet("__shfl_sync", NULL, &own, 1).in[lane & 31][0]);
    }
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return __shfl_sync(mask, value, emulated::self->lane ^ bits);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int delta) {
    if constexpr (sizeof(T) == 8) {
        uint32_t half[2];
        memcpy(half, &value, 8);
        for (uint32_t &word : half) word = __shfl_down_sync(mask, word, delta);
        memcpy(&value, half, 8);
        return value;
    } else {
        int from = emulated::self->lane + delta;
        return __shfl_sync(mask, value, from < emulated::warp_lanes ? from : emulated::self->lane);
    }
}
inline unsigned __ballot_sync(unsigned, int value) {
    return emulated::reduced(
        "__ballot_sync", value != 0, 0,
        [](uint32_t all, uint32_t x, int lane) { return all | (x & 1) << lane; });
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __reduce_add_sync(unsigned, int value) {
    return (int)emulated::reduced("__reduce_add_sync", (uint32_t)value, 0,
                                  [](uint32_t all, uint32_t x, int) { return all + x; });
}
inline int __reduce_min_sync(unsigned, int value) {
    return (int)emulated::reduced(
        "__reduce_min_sync", (uint32_t)value, INT32_MAX,
        [](uint32_t all, uint32_t x, int) { return (uint32_t)min((int)all, (int)x); });
}
inline int __reduce_max_sync(unsigned, int value) {
    return (int)emulated::reduced(
        "__reduce_max_sync", (uint32_t)value, (uint32_t)INT32_MIN,
        [](uint32_t all, uint32_t x, int) { return (uint32_t)max((int)all, (int)x); });
}

inline uint32_t __cvta_generic_to_shared(const void *p) { return emulated::address_of(p); }
inline void *__cvta_shared_to_generic(uint32_t address) { return emulated::shared_at(address, 1); }
inline const void *__cvta_generic_to_global(const void *p) { return p; }
template <class T> T __ldg(const T *p) { return *p; }
template <class T> void __stcs(T *p, T value) { *p = value; }

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __uint_as_float(uint32_t x) { return emulated::of_bits<float>(x); }
inline float __int_as_float(int x) { return emulated::of_bits<float>((uint32_t)x); }
inline int __float_as_int(float x) { return (int)emulated::bits_of(x); }
inline uint32_t __float_as_uint(float x) { return emulated::bits_of(x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
    uint64_t both = (uint64_t)y << 32 | x;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}

inline uint32_t __umulhi(uint32_t x, uint32_t y) { return (uint32_t)((uint64_t)x * y >> 32); }
inline uint32_t atomicAdd(uint32_t *to, uint32_t value) { /* blocks run one after another */
    uint32_t before = *to;
    *to += value;
    return before;
}
inline int atomicMin(int *to, int value) {
    int before = *to;
    if (value < before) *to = value;
    return before;
}
inline double cospi(double x) { return cos(3.14159265358979323846 * x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }

#endif
