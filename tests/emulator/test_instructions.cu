/* test_instructions: small kernels for the instructions of sm_90a, each with planted bugs.
 *
 *     test_instructions                 on the emulated device: every kernel is right under all
 *                                       seeds, and every bug is found under one of them
 *     test_instructions CASE [BUG]      one of them, under WEFT_EMULATOR_SEED
 * On a GPU the kernels without bugs run once each, so that the emulated device can be compared with
 * a real one. */
#include "../../bench/hopper.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>
#ifdef WF_EMULATOR_CUDA_RUNTIME_H
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace hopper;

enum bug {
    none,
    no_expect,
    wrong_parity,
    no_wait,
    no_fence,
    early_reuse,
    early_refill,
    early_end,
    no_barrier,
    overwritten,
    uninitialised,
    wrong_count,
    one_warp_less,
    no_begin
};

/* A GPU runs the kernels as they should be. */
__device__ static bool has(int bug, int which) {
#ifdef WF_EMULATOR_CUDA_RUNTIME_H
    return bug == which;
#else
    return false;
#endif
}

__device__ static float load_float(uint32_t at) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return __uint_as_float(word);
}
__device__ static void store_float(uint32_t at, float x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(__float_as_uint(x)) : "memory");
}

/* --- bulk copies through a ring of two buffers ------------------------------------------------ */
enum { chunk = 128, chunks = 7, chunk_bytes = chunk * 4, depth = 2 };

__device__ static void produce(const float *in, uint32_t ring, uint32_t full, uint32_t empty,
                               int bug) {
    for (int k = 0; k < chunks; k++) {
        uint32_t at = (uint32_t)(k % depth), round = (uint32_t)(k / depth);
        if (k >= depth && !has(bug, early_refill)) wait_for(empty + 8 * at, (round ^ 1) & 1);
        if (has(bug, no_expect)) arrive(full + 8 * at);
        else arrive_expecting(full + 8 * at, chunk_bytes);
        fetch(ring + at * chunk_bytes, in + k * chunk, chunk_bytes, full + 8 * at);
    }
}
/* out = in + 1. Warps 1 .. 4 compute, one thread of warp 0 fetches. */
__global__ void bulk_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t ring = address_of(shared), result = ring + depth * chunk_bytes;
    uint32_t full = result + chunk_bytes, empty = full + 8 * depth;
    int at = (int)threadIdx.x - 32;
    if (threadIdx.x == 0) {
        for (uint32_t k = 0; k < depth; k++)
            barrier_create(full + 8 * k, 1), barrier_create(empty + 8 * k, chunk);
        barriers_created();
    }
    __syncthreads();
    if (at < 0) {
        if (threadIdx.x == 0) produce(in, ring, full, empty, bug);
        return;
    }
    for (int k = 0; k < chunks; k++) {
        uint32_t slot = (uint32_t)(k % depth), parity = (uint32_t)(k / depth) & 1;
        if (!has(bug, no_wait)) wait_for(full + 8 * slot, parity ^ (has(bug, wrong_parity)));
        float x = load_float(ring + slot * chunk_bytes + 4 * (uint32_t)at) + 1;
        arrive(empty + 8 * slot);
        if (at == 0 && !has(bug, early_reuse)) wait_stores_read<0>();
        meet(1, has(bug, wrong_count) && at < 32 ? chunk + 32 : chunk);
        store_float(result + 4 * (uint32_t)at, x);
        if (!has(bug, no_fence)) publish();
        meet(1, chunk);
        if (at == 0) {
            store(out + k * chunk, result, chunk_bytes);
            commit_stores();
        }
    }
    if (at == 0 && !has(bug, early_end)) wait_stores_read<0>();
}

/* out = in, from one buffer. While a copy leaves, all threads do other work, here barriers. */
__global__ void slow_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t own = address_of(shared);
    int at = (int)threadIdx.x;
    for (int k = 0; k < chunks; k++) {
        if (at == 0 && !has(bug, early_reuse)) wait_stores_read<0>();
        meet(1, chunk);
        store_float(own + 4 * (uint32_t)at, in[k * chunk + at]);
        publish();
        meet(1, chunk);
        if (at == 0) {
            store(out + k * chunk, own, chunk_bytes);
            commit_stores();
        }
        for (int i = 0; i < 200; i++) meet(1, chunk);
    }
    if (at == 0) wait_stores_read<0>();
}

/* --- clusters --------------------------------------------------------------------------------- */
/* Rank r of two reads what the other has written: out = in of the neighbour. */
__global__ void neighbour_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    int rank = cluster_rank(), at = (int)threadIdx.x;
    uint32_t own = address_of(shared) + 4 * (uint32_t)at;
    store_float(own, in[rank * chunk + at]);
    cluster_arrive();
    if (!has(bug, no_barrier)) cluster_wait();
    out[rank * chunk + at] = __uint_as_float(load_from(address_in(own, rank ^ 1)));
    if (has(bug, no_barrier)) cluster_wait();
    if (has(bug, early_end)) return;
    cluster_arrive();
    cluster_wait();
}

/* Rank 0 fetches for both; each adds its rank. */
__global__ void multicast_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    int rank = cluster_rank(), at = (int)threadIdx.x;
    uint32_t data = address_of(shared), full = data + chunk_bytes;
    if (at == 0) {
        barrier_create(full, 1);
        barriers_created();
        if (rank == 0 || !has(bug, no_expect)) arrive_expecting(full, chunk_bytes);
        else arrive(full);
    }
    cluster_arrive();
    cluster_wait();
    if (rank == 0 && at == 0) fetch_for_all(data, in, chunk_bytes, full, 3);
    if (!has(bug, no_wait)) wait_for(full, has(bug, wrong_parity));
    out[rank * chunk + at] = load_float(data + 4 * (uint32_t)at) + (float)rank;
    cluster_arrive();
    cluster_wait();
}

/* Each rank sends half of its data by a bulk copy and half by words to the other rank. */
__global__ void exchange_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    int rank = cluster_rank(), at = (int)threadIdx.x;
    uint32_t own = address_of(shared), got = own + chunk_bytes, full = got + chunk_bytes;
    if (at == 0 && (rank == 0 || !has(bug, uninitialised))) {
        barrier_create(full, 1);
        barriers_created();
        arrive_expecting(full, chunk_bytes);
    }
    store_float(own + 4 * (uint32_t)at, in[rank * chunk + at]);
    if (!has(bug, no_fence)) publish();
    if (!has(bug, no_barrier)) cluster_arrive(), cluster_wait();
    uint32_t there = address_in(got, rank ^ 1), told = address_in(full, rank ^ 1);
    if (at == 0) send(there, own, chunk_bytes / 2, told);
    if (at < chunk / 8) {
        uint32_t half = chunk_bytes / 2 + 16 * (uint32_t)at;
        uint4 x = *(const uint4 *)(shared + half);
        send_word(there + half, x, told);
    }
    wait_for(full, 0);
    out[rank * chunk + at] = load_float(got + 4 * (uint32_t)at);
    cluster_arrive();
    cluster_wait();
}

/* --- products --------------------------------------------------------------------------------- */
enum { side = 64, tile_bytes = side * 128 };

__device__ static uint32_t pair_of(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
/* Copies a (64, 64) matrix into a tile, 128 threads. */
__device__ static void stage(uint32_t tile, const float *from, bool fenced) {
    for (int step = 0; step < 4; step++) {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
        fragment f;
        for (int k = 0; k < 4; k++) {
            const float *x = from + (16 * warp + lane / 4 + k % 2 * 8) * side + 16 * step +
                             lane % 4 * 2 + k / 2 * 8;
            f.r[k] = pair_of(x[0], x[1]);
        }
        store_fragment(fragment_at(tile, step), f);
    }
    if (fenced) publish();
}
/* out = x y' (64, 64), then the first 16 columns of x' y. */
__global__ void product_kernel(const float *in, float *out, int bug) {
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t x = address_of(shared), y = x + tile_bytes;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    stage(x, in, !has(bug, no_fence));
    stage(y, in + side * side, !has(bug, no_fence));
    if (!has(bug, no_barrier)) __syncthreads();
    if (has(bug, one_warp_less) && warp == 3) return;
    float acc[8][4], turned[2][4];
    fragment a[4];
    for (int step = 0; step < 4; step++) a[step] = load_fragment(fragment_at(x, step));
    if (!has(bug, no_begin)) products_begin();
#pragma unroll
    for (int step = 0; step < 4; step++)
        product<bf16, false>(acc, a[step], rows(region(y), 0, step), step > 0);
    products_commit();
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; step++)
        product<bf16, true, true>(turned, columns(region(x), 0, step), columns(region(y), 0, step),
                                  step > 0);
    products_commit();
    if (has(bug, overwritten)) stage(y, in, true);
    if (!has(bug, no_wait)) products_wait<1>();
    settle(acc);
    for (int t = 0; t < 8; t++)
        for (int k = 0; k < 4; k++)
            out[(16 * warp + lane / 4 + k / 2 * 8) * side + 8 * t + lane % 4 * 2 + k % 2] =
                acc[t][k];
    products_wait<0>();
    settle(turned);
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 4; k++)
            out[side * side + (16 * warp + lane / 4 + k / 2 * 8) * 16 + 8 * t + lane % 4 * 2 +
                k % 2] = turned[t][k];
}

/* --- the host --------------------------------------------------------------------------------- */
typedef void kernel_fn(const float *in, float *out, int bug);
typedef struct test_case {
    const char *name;
    kernel_fn *kernel;
    unsigned blocks, threads; /* blocks: one cluster */
    size_t n_in, n_out;
    float (*expected)(const float *in, size_t k);
} test_case;

static float same(const float *in, size_t k) { return in[k]; }
static float plus_one(const float *in, size_t k) { return in[k] + 1; }
static float other_half(const float *in, size_t k) { return in[(k + chunk) % (2 * chunk)]; }
static float plus_rank(const float *in, size_t k) { return in[k % chunk] + (float)(k / chunk); }
static float product_of(const float *in, size_t k) {
    const float *x = in, *y = in + side * side;
    float sum = 0;
    for (size_t i = 0; i < side; i++) {
        if (k < side * side) sum += x[k / side * side + i] * y[k % side * side + i];
        else sum += x[i * side + (k - side * side) / 16] * y[i * side + k % 16];
    }
    return sum;
}

static const test_case cases[] = {
    {"bulk", bulk_kernel, 1, 32 + chunk, chunk *chunks, chunk *chunks, plus_one},
    {"slow", slow_kernel, 1, chunk, chunk *chunks, chunk *chunks, same},
    {"neighbour", neighbour_kernel, 2, chunk, 2 * chunk, 2 * chunk, other_half},
    {"multicast", multicast_kernel, 2, chunk, chunk, 2 * chunk, plus_rank},
    {"exchange", exchange_kernel, 2, chunk, 2 * chunk, 2 * chunk, other_half},
    {"product", product_kernel, 1, 128, 2 * side *side, side *side + side * 16, product_of}};

/* Whether the kernel's result is right. */
static bool run_case(const test_case &c, int bug) {
    std::vector<float> in(c.n_in), out(c.n_out, 0.0f);
    for (size_t k = 0; k < c.n_in; k++) in[k] = (float)((int)(k * 37 % 101) - 50) / 16;
    float *there[2];
    cudaStream_t stream;
    bool done = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                cudaMalloc(&there[0], c.n_in * 4) == cudaSuccess &&
                cudaMalloc(&there[1], c.n_out * 4) == cudaSuccess &&
                cudaMemcpyAsync(there[0], in.data(), c.n_in * 4, cudaMemcpyHostToDevice, stream) ==
                    cudaSuccess;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = c.blocks, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(c.blocks), config.blockDim = dim3(c.threads);
    config.dynamicSmemBytes = 2 * tile_bytes;
    config.stream = stream;
    config.attrs = &cluster, config.numAttrs = 1;
    done = done &&
           cudaLaunchKernelEx(&config, c.kernel, (const float *)there[0], there[1], bug) ==
               cudaSuccess &&
           cudaMemcpyAsync(out.data(), there[1], c.n_out * 4, cudaMemcpyDeviceToHost, stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
    if (!done) fprintf(stderr, "%s: %s\n", c.name, cudaGetErrorString(cudaGetLastError()));
    for (size_t k = 0; done && k < c.n_out; k++)
        if (!(fabsf(out[k] - c.expected(in.data(), k)) < 1e-2f)) {
            fprintf(stderr, "%s: element %zu is %g, expected %g\n", c.name, k, (double)out[k],
                    (double)c.expected(in.data(), k));
            done = false;
        }
    cudaFree(there[0]), cudaFree(there[1]);
    cudaStreamDestroy(stream);
    return done;
}

#ifdef WF_EMULATOR_CUDA_RUNTIME_H
/* The bugs of each kernel, and a word of the sentence that finds it; "": a wrong result will do. */
typedef struct planted {
    const char *name, *bug_name;
    int bug;
    const char *sentence;
} planted;
static const planted bugs[] = {
    {"bulk", "no_expect", no_expect, "a bulk copy is writing"},
    {"bulk", "wrong_parity", wrong_parity, "a bulk copy is writing"},
    {"bulk", "no_wait", no_wait, "a bulk copy is writing"},
    {"bulk", "no_fence", no_fence, "without fence.proxy.async"},
    {"bulk", "early_reuse", early_reuse, "which a bulk copy has not read yet"},
    {"bulk", "early_refill", early_refill, "an arrival too many"},
    {"bulk", "early_end", early_end, "ends while a bulk copy"},
    {"bulk", "wrong_count", wrong_count, "others said"},
    {"slow", "early_reuse", early_reuse, "which a bulk copy has not read yet"},
    {"neighbour", "no_barrier", no_barrier, ""},
    {"neighbour", "early_end", early_end, "which has ended"},
    {"multicast", "no_expect", no_expect, "did not expect"},
    {"multicast", "no_wait", no_wait, "a bulk copy is writing"},
    {"multicast", "wrong_parity", wrong_parity, "a bulk copy is writing"},
    {"exchange", "uninitialised", uninitialised, "not initialised"},
    {"exchange", "no_barrier", no_barrier, ""},
    {"exchange", "no_fence", no_fence, "without fence.proxy.async"},
    {"product", "no_wait", no_wait, ""},
    {"product", "no_fence", no_fence, "without fence.proxy.async"},
    {"product", "no_barrier", no_barrier, "without fence.proxy.async"},
    {"product", "no_begin", no_begin, "without wgmma.fence"},
    {"product", "overwritten", overwritten, "overwritten before the product"},
    {"product", "one_warp_less", one_warp_less, "other warps of its warpgroup"}};

/* Runs one in a process of its own; what it says on stderr goes to `said`. */
static bool run_child(const char *self, const char *name, int bug, int seed, std::string &said) {
    char text[64], number[16], line[512];
    snprintf(text, sizeof text, "%d", seed), snprintf(number, sizeof number, "%d", bug);
    int ends[2];
    if (pipe(ends) != 0) return false;
    pid_t child = fork();
    if (child == 0) {
        setenv("WEFT_EMULATOR_SEED", text, 1);
        dup2(ends[1], 2);
        execl(self, self, name, number, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    ssize_t n;
    while ((n = read(ends[0], line, sizeof line)) > 0) said.append(line, (size_t)n);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

enum { seeds = 12 };
static int run_all(const char *self) {
    int failed = 0;
    for (const test_case &c : cases) {
        std::string said;
        bool right = true;
        for (int seed = 0; seed < seeds; seed++) right &= run_child(self, c.name, none, seed, said);
        printf("%s %s\n%s", right ? "[       OK ]" : "[  FAILED  ]", c.name, said.c_str());
        failed += !right;
    }
    for (const planted &b : bugs) {
        std::string said;
        int found = 0;
        for (int seed = 0; seed < seeds; seed++)
            found += !run_child(self, b.name, b.bug, seed, said);
        bool right = found > 0 && said.find(b.sentence) != std::string::npos;
        printf("%s %s with %s: found under %d of %d seeds\n%s",
               right ? "[       OK ]" : "[  FAILED  ]", b.name, b.bug_name, found, seeds,
               right ? "" : said.c_str());
        failed += !right;
    }
    return failed != 0;
}
#else
static int run_all(const char *) {
    int failed = 0;
    for (const test_case &c : cases) {
        bool right = run_case(c, none);
        printf("%s %s\n", right ? "ok" : "FAILED", c.name);
        failed += !right;
    }
    return failed != 0;
}
#endif

int main(int argc, char **argv) {
    if (argc < 2) return run_all(argv[0]);
    for (const test_case &c : cases)
        if (strcmp(c.name, argv[1]) == 0) return !run_case(c, argc > 2 ? atoi(argv[2]) : none);
    fprintf(stderr, "usage: test_instructions [CASE [NUMBER OF A BUG]]\n");
    return 2;
}
