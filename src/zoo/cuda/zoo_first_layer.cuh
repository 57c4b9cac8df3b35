/* zoo_first_layer: a wide first layer on tensor cores, for the kernels that keep its state in
 * registers.
 *
 * A warp owns 8 NT input columns for all units (16 MT), with weights and both moments in registers
 * in the layout of the accumulator of dW. That layout is also the layout of an A operand, so the
 * weights never leave registers:
 *   z' (units, examples)  = W x'        A = W, split into bf16 hi + lo;     B = x, ldmatrix
 *   dW (units, columns)   = d' x        A = d', hi + lo, shared memory;     B = x, ldmatrix.trans
 * Inputs are bf16: one plane where they are exact but for a common factor (pixels), else hi + lo,
 * three products. */
#pragma once

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "zoo/cuda/zoo_large_input.cuh"

namespace zoo_gpu {

using wf_gpu::mma::load_matrices;
using wf_gpu::mma::load_transposed;
using wf_gpu::mma::pack;

enum { group = 32 }; /* examples whose z a warp holds at once */

__device__ inline void mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
}

/* Two floats as bf16 pairs whose sum has 16 bits or more. */
__device__ inline void split(float low, float high, uint32_t &top, uint32_t &rest) {
    top = pack(low, high);
    rest = pack(low - __uint_as_float(top << 16), high - __uint_as_float(top & 0xffff0000u));
}

__device__ inline void copy_async(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline int cluster_rank() {
#if __CUDA_ARCH__ >= 900
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
#else
    return 0;
#endif
}

__device__ inline void cluster_barrier(int ranks) {
#if __CUDA_ARCH__ >= 900
    if (ranks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::
                         : "memory");
        return;
    }
#endif
    __syncthreads();
}

__device__ inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The same place in the shared memory of another rank. */
template <typename T> __device__ inline T *of_rank(T *own, int rank) {
#if __CUDA_ARCH__ >= 900
    uint64_t address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"((uint64_t)own), "r"(rank));
    return (T *)address;
#else
    return own;
#endif
}

template <int MT, int NT> struct owned { /* a thread's part of the first layer */
    float w[MT][NT][4], first[MT][NT][4], second[MT][NT][4];
};

/* What a block knows of itself. */
struct place {
    int rank, warp, lane;
    unsigned char *shared;
};

/* Column and unit of element i of tile (mt, nt), within the block and the layer. */
template <int NT> __device__ inline int column_of(const place &at, int nt, int i) {
    return at.warp * 8 * NT + 8 * nt + 2 * (at.lane % 4) + i % 2;
}

__device__ inline int unit_of(const place &at, int mt, int i) {
    return 16 * mt + at.lane / 4 + 8 * (i / 2);
}

/* Makes bulk copies possible; all threads call, after they have cleared shared memory and before a
 * barrier. */
__device__ inline void copies_start(uint64_t *arrived) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Starts the copies of the examples list[0 .. rows_used-1]. An example, all planes of it, is one
 * bulk copy; a warp needs some sixty cycles to issue one, so all warps share them. */
__device__ inline void fetch_examples(const large_input_plan &plan, const place &at,
                                      const __nv_bfloat16 *x, const uint32_t *list, int rows_used,
                                      uint64_t *arrived) {
    int slice = plan.planes * plan.columns;
    size_t width = (size_t)plan.ranks * slice;
    uint32_t to = shared_address(at.shared + plan.x);
    x += at.rank * slice;
#if __CUDA_ARCH__ >= 900
    uint32_t bytes = 2 * (uint32_t)slice, barrier = shared_address(arrived);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"((uint32_t)rows_used * bytes)
                     : "memory");
    for (int row = at.warp + plan.warps * at.lane; row < rows_used; row += 32 * plan.warps)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to + 2 * (uint32_t)(row * plan.stride)),
                     "l"(x + list[row] * width), "r"(bytes), "r"(barrier)
                     : "memory");
#else
    int pieces = slice / 8;
    for (int i = threadIdx.x; i < rows_used * pieces; i += blockDim.x) {
        int row = quotient(i, plan.pieces), piece = i - row * pieces;
        copy_async(to + 2 * (uint32_t)(row * plan.stride + 8 * piece),
                   x + list[row] * width + 8 * piece);
    }
#endif
}

/* Waits for what the last fetch_examples has started; phase begins with 0. */
__device__ inline void copies_wait(uint64_t *arrived, uint32_t &phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(shared_address(arrived)),
                 "r"(phase)
                 : "memory");
    phase ^= 1;
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* This warp's part of z' to shared memory: (W, R, 16 MT + 4). */
template <int MT, int NT, int PLANES>
__device__ inline void partial_products(const large_input_plan &plan, const place &at,
                                        const owned<MT, NT> &own) {
    constexpr int stride_z = 16 * MT + 4;
    float *out = (float *)(at.shared + plan.partial) + at.warp * plan.rows * stride_z;
    /* lane -> row of an 8 x 8 matrix: 0-7 columns 0-7, 8-15 columns 8-15, 16-31 the same of the
     * next 8 examples */
    uint32_t start = shared_address(at.shared + plan.x) +
                     2 * (uint32_t)((at.lane % 8 + 8 * (at.lane / 16)) * plan.stride +
                                    at.warp * 8 * NT + 8 * (at.lane / 8 % 2));
#pragma unroll 1
    for (int g = 0; g < plan.rows; g += group) {
        float z[MT][4][4] = {};
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            uint32_t top[MT][4], rest[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int nt = j + i / 2, e = 2 * (i % 2);
                    if (nt < NT)
                        split(own.w[mt][nt][e], own.w[mt][nt][e + 1], top[mt][i], rest[mt][i]);
                }
#pragma unroll
            for (int pair = 0; pair < 2; pair++)
#pragma unroll
                for (int plane = 0; plane < PLANES; plane++) {
                    uint32_t b[4];
                    load_matrices(b, start + 2 * (uint32_t)((g + 16 * pair) * plan.stride +
                                                            plane * plan.columns + 8 * j));
                    /* all of hi, then all of lo: a product does not wait for the one before it */
#pragma unroll
                    for (int part = 0; part < (plane == 0 ? 2 : 1); part++)
#pragma unroll
                        for (int mt = 0; mt < MT; mt++) {
                            const uint32_t(&w)[4] = part == 0 ? top[mt] : rest[mt];
                            if (j + 1 < NT) {
                                mma16(z[mt][2 * pair], w, b[0], b[1]);
                                mma16(z[mt][2 * pair + 1], w, b[2], b[3]);
                            } else {
                                mma8(z[mt][2 * pair], w, b[0]);
                                mma8(z[mt][2 * pair + 1], w, b[2]);
                            }
                        }
                }
        }
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    out[(g + 8 * t + 2 * (at.lane % 4) + i % 2) * stride_z + unit_of(at, mt, i)] =
                        z[mt][t][i];
    }
}

__device__ inline float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* dW += d' x over R examples. */
template <int MT, int NT, int PLANES>
__device__ inline void first_gradient(const large_input_plan &plan, const place &at,
                                      float (&sum)[MT][NT][4]) {
    int stride_d = plan.rows + 8;
    /* A: lanes 0-7 units 0-7, 8-15 units 8-15, 16-31 the same of the next 8 examples */
    uint32_t delta = shared_address(at.shared + plan.delta) +
                     2 * (uint32_t)((at.lane % 16) * stride_d + 8 * (at.lane / 16));
    /* B: lanes 0-7 examples 0-7, 8-15 examples 8-15, 16-31 the same of the next 8 columns */
    uint32_t x =
        shared_address(at.shared + plan.x) +
        2 * (uint32_t)((at.lane % 16) * plan.stride + at.warp * 8 * NT + 8 * (at.lane / 16));
#pragma unroll 1
    for (int e = 0; e < plan.rows; e += 16) {
        uint32_t top[MT][4], rest[MT][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            load_matrices(top[mt], delta + 2 * (uint32_t)(16 * mt * stride_d + e));
            load_matrices(rest[mt], delta + 2 * (uint32_t)(16 * (MT + mt) * stride_d + e));
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt += 2)
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) {
                uint32_t b[4];
                load_transposed(
                    b, x + 2 * (uint32_t)(e * plan.stride + plane * plan.columns + 8 * nt));
#pragma unroll
                for (int part = 0; part < (plane == 0 ? 2 : 1); part++)
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        const uint32_t(&d)[4] = part == 0 ? top[mt] : rest[mt];
                        mma16(sum[mt][nt], d, b[0], b[1]);
                        if (nt + 1 < NT) mma16(sum[mt][nt + 1 < NT ? nt + 1 : nt], d, b[2], b[3]);
                    }
            }
    }
}

template <bool ADAM, int MT, int NT>
__device__ inline void update_owned(const large_input_plan &plan, const gpu_rates &rates,
                                    const float (&sum)[MT][NT][4], owned<MT, NT> &own) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                update_parameter<ADAM, false>(plan.rest, rates, plan.scale * sum[mt][nt][i],
                                              own.w[mt][nt][i], own.first[mt][nt][i],
                                              own.second[mt][nt][i]);
}

template <int MT, int NT> __device__ inline bool own_is_broken(const owned<MT, NT> &own) {
    bool bad = false;
    for (int mt = 0; mt < MT; mt++)
        for (int nt = 0; nt < NT; nt++)
            for (int i = 0; i < 4; i++) bad |= !isfinite(own.w[mt][nt][i]);
    return bad;
}

/* The weights a thread owns, from the flat vector or back to it. */
template <int MT, int NT, bool LOAD>
__device__ inline void move_owned(const large_input_plan &plan, const place &at, float *flat,
                                  owned<MT, NT> &own) {
    const gpu_layer &layer = plan.rest.layer[0];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int unit = unit_of(at, mt, i);
                int column = at.rank * plan.columns + column_of<NT>(at, nt, i);
                bool real = unit < layer.out && column < layer.in;
                float *there = flat + layer.flat_weight + unit * layer.in + column;
                if (LOAD) {
                    own.w[mt][nt][i] = real ? *there : 0;
                    own.first[mt][nt][i] = own.second[mt][nt][i] = 0;
                } else if (real) *there = own.w[mt][nt][i];
            }
}

/* Where a walk over a network's batches stands: examples first .. of the batch that starts at
 * `start` of an epoch. */
struct walk {
    int epoch, start, first;
};

__device__ inline bool walk_on(const large_input_plan &plan, walk &at, int epochs) {
    const gpu_plan &rest = plan.rest;
    at.first += plan.rows;
    if (at.first >= min(rest.batch, rest.n_train - at.start)) at.first = 0, at.start += rest.batch;
    if (at.start >= rest.n_train) at.start = 0, at.epoch++;
    return at.epoch < epochs;
}

__device__ inline int walk_rows(const large_input_plan &plan, const walk &at) {
    int batch = min(plan.rest.batch, plan.rest.n_train - at.start);
    return min(plan.rows, batch - at.first);
}

/* A cluster of plan.ranks blocks for each network. */
inline cudaError_t launch_ranks(const void *kernel, const large_input_plan &plan, size_t count,
                                void **arguments, cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             plan.shared_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(count * (size_t)plan.ranks));
    config.blockDim = dim3((unsigned)(32 * plan.warps));
    config.dynamicSmemBytes = (size_t)plan.shared_bytes;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)plan.ranks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = plan.ranks > 1 ? 1 : 0;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

} // namespace zoo_gpu
