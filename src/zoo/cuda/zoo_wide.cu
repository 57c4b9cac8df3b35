/* zoo_wide: MLPs with a wide first layer, trained from their first update to their last on tensor cores.
 *
 * A network belongs to a cluster of C blocks. A warp owns 8 NT input columns of the first layer for all its units
 * (16 MT), with weights and both moments in registers, in the layout of the accumulator of dW. That layout is also the
 * layout of an A operand, so the first layer's weights never leave registers while a network trains:
 *   z' (units, examples)  = W x'        A = W, split into bf16 hi + lo;     B = x, ldmatrix
 *   dW (units, columns)   = d' x        A = d', hi + lo, shared memory;     B = x, ldmatrix.trans
 * Warps add their parts of z in shared memory, blocks in distributed shared memory, always in the same order. Rank c
 * then takes rows c R/C .. through the layers behind (fp32, zoo_layers.cuh), and sends d of the first layer to all.
 * Inputs are bf16: one plane where they are exact but for a common factor (pixels), else hi + lo, three products.
 * The next examples are on their way (cp.async) while the optimiser runs. After the last update the same forward pass
 * judges the test examples.
 *
 * Registers: 12 MT NT for the state. Shared memory: x 2 planes R columns, parts of z 4 W R (16 MT + 4), d' 64 MT (R + 8),
 * the layers behind 16 n_padded and their activations.
 * I1  Sums run in fixed order; a network's bits depend on nothing but itself.
 * I2  Padding columns, units and rows hold zeros in x, w and d, so they stay zero.
 * I3  A buffer that another rank writes or reads is touched again only behind the next cluster barrier. */
#include "zoo/cuda/zoo_wide.cuh"

namespace zoo_gpu {
namespace {

enum { group = 32 }; /* examples whose z a warp holds at once */

__device__ inline void mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Two floats as bf16 pairs whose sum has 16 bits or more. */
__device__ inline void split(float low, float high, uint32_t &top, uint32_t &rest) {
    top = pack(low, high);
    rest = pack(low - __uint_as_float(top << 16), high - __uint_as_float(top & 0xffff0000u));
}

__device__ inline void copy_async(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

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

__device__ inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Column and unit of element i of tile (mt, nt), within the block and the layer. */
template <int NT> __device__ inline int column_of(const place &at, int nt, int i) {
    return at.warp * 8 * NT + 8 * nt + 2 * (at.lane % 4) + i % 2;
}

__device__ inline int unit_of(const place &at, int mt, int i) {
    return 16 * mt + at.lane / 4 + 8 * (i / 2);
}

/* Starts the copies of the examples list[0 .. rows_used-1]. */
__device__ inline void fetch_examples(const wide_plan &plan, const place &at,
                                      const __nv_bfloat16 *x, size_t n, const uint32_t *list,
                                      int rows_used) {
    int pieces = plan.columns / 8, width = plan.ranks * plan.columns;
    uint32_t to = shared_address(at.shared + plan.x);
    for (int i = threadIdx.x; i < rows_used * pieces; i += blockDim.x) {
        int row = quotient(i, plan.pieces), piece = i - row * pieces;
        const __nv_bfloat16 *from =
            x + (size_t)list[row] * width + at.rank * plan.columns + 8 * piece;
        uint32_t place = to + 2 * (uint32_t)(row * plan.stride + 8 * piece);
        for (int p = 0; p < plan.planes; p++)
            copy_async(place + 2 * (uint32_t)(p * plan.rows * plan.stride),
                       from + (size_t)p * n * width);
    }
}

/* This warp's part of z' to shared memory: (W, R, 16 MT + 4). */
template <int MT, int NT, int PLANES>
__device__ inline void partial_products(const wide_plan &plan, const place &at,
                                        const owned<MT, NT> &own) {
    constexpr int stride_z = 16 * MT + 4;
    float *out = (float *)(at.shared + plan.partial) + at.warp * plan.rows * stride_z;
    /* lane -> row of an 8 x 8 matrix: 0-7 columns 0-7, 8-15 columns 8-15, 16-31 the same of the next 8 examples */
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
                    load_matrices(b, start + 2 * (uint32_t)((plane * plan.rows + g + 16 * pair) *
                                                                plan.stride +
                                                            8 * j));
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        if (j + 1 < NT) {
                            mma16(z[mt][2 * pair], top[mt], b[0], b[1]);
                            mma16(z[mt][2 * pair + 1], top[mt], b[2], b[3]);
                            if (plane == 0) {
                                mma16(z[mt][2 * pair], rest[mt], b[0], b[1]);
                                mma16(z[mt][2 * pair + 1], rest[mt], b[2], b[3]);
                            }
                        } else {
                            mma8(z[mt][2 * pair], top[mt], b[0]);
                            mma8(z[mt][2 * pair + 1], top[mt], b[2]);
                            if (plane == 0) {
                                mma8(z[mt][2 * pair], rest[mt], b[0]);
                                mma8(z[mt][2 * pair + 1], rest[mt], b[2]);
                            }
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

/* Parts of z of rows `row` of this block, over its warps. */
__device__ inline float4 sum_of_warps(const wide_plan &plan, const place &at, int row, int unit) {
    int stride_z = 16 * plan.tiles_m + 4;
    const float *part = (const float *)(at.shared + plan.partial) + row * stride_z + unit;
    float4 sum = load4(part);
#pragma unroll 4
    for (int w = 1; w < plan.warps; w++) sum = add4(sum, load4(part + w * plan.rows * stride_z));
    return sum;
}

/* h_1 of this rank's rows, from all parts of z. Ends with all threads in step. */
__device__ inline void first_activations(const wide_plan &plan, const place &at,
                                         const float *weights, float *work) {
    const gpu_layer &layer = plan.rest.layer[0];
    int quads = layer.out_padded / 4, rows_rank = plan.rest.rows, width = 16 * plan.tiles_m;
    bool last = plan.rest.n_layers == 1;
    __syncthreads();
    if (plan.ranks > 1) {
        float *slots = (float *)(at.shared + plan.slots); /* (C, R/C, 16 MT) */
        for (int i = threadIdx.x; i < plan.rows * quads; i += blockDim.x) {
            int row = quotient(i, layer.out_quads), unit = 4 * (i - row * quads),
                rank = quotient(row, plan.of_rank);
            float4 sum = sum_of_warps(plan, at, row, unit);
            float *to = slots + (at.rank * rows_rank + row - rank * rows_rank) * width + unit;
            *reinterpret_cast<float4 *>(of_rank(to, rank)) = sum;
        }
        cluster_barrier(plan.ranks);
    }
    for (int i = threadIdx.x; i < rows_rank * quads; i += blockDim.x) {
        int row = quotient(i, layer.out_quads), unit = 4 * (i - row * quads);
        float4 sum;
        if (plan.ranks > 1) {
            const float *slot = (const float *)(at.shared + plan.slots) + row * width + unit;
            sum = load4(slot);
            for (int c = 1; c < plan.ranks; c++)
                sum = add4(sum, load4(slot + c * rows_rank * width));
        } else sum = sum_of_warps(plan, at, row, unit);
        const float *s = &sum.x;
        for (int c = 0; c < 4; c++)
            finish_unit(plan.rest, layer, last, work, row, unit + c,
                        fmaf(plan.scale, s[c], weights[layer.bias + unit + c]));
    }
    __syncthreads();
}

__device__ inline void layers_behind(const wide_plan &plan, const float *weights, float *work,
                                     int rows_used) {
    const gpu_plan &rest = plan.rest;
    for (int l = 1; l < rest.n_layers; l++) {
        layer_forward(rest, rest.layer[l], l + 1 == rest.n_layers, work + rest.layer[l - 1].output,
                      weights, work, rows_used);
        __syncthreads();
    }
}

/* d of the first layer, hi and lo, transposed to (2, 16 MT, R + 8) in the shared memory of every rank. */
__device__ inline void send_delta(const wide_plan &plan, const place &at, const float *work) {
    const gpu_layer &layer = plan.rest.layer[0];
    int pairs = plan.rest.rows / 2, stride = plan.rows + 8, units = 16 * plan.tiles_m;
    uint32_t *delta = (uint32_t *)(at.shared + plan.delta);
    /* Lanes run over units: neighbours in a row of d, and rows of d' that lie in other banks. */
    for (int i = threadIdx.x; i < 2 * pairs * (layer.out_padded / 2); i += blockDim.x) {
        int row = quotient(i, layer.out_pairs), half = row & 1;
        int unit = i - row * (layer.out_padded / 2) + half * (layer.out_padded / 2);
        row -= half;
        const float *d = work + layer.delta + row * layer.stride_out + unit;
        uint32_t top, rest;
        split(d[0], d[layer.stride_out], top, rest);
        uint32_t *to = delta + (unit * stride + at.rank * plan.rest.rows + row) / 2;
        for (int c = 0; c < plan.ranks; c++) {
            uint32_t *there = c == at.rank ? to : of_rank(to, c);
            there[0] = top;
            there[units * stride / 2] = rest;
        }
    }
}

/* dW += d' x over R examples. */
template <int MT, int NT, int PLANES>
__device__ inline void first_gradient(const wide_plan &plan, const place &at,
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
                load_transposed(b,
                                x + 2 * (uint32_t)((plane * plan.rows + e) * plan.stride + 8 * nt));
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    mma16(sum[mt][nt], top[mt], b[0], b[1]);
                    if (plane == 0) mma16(sum[mt][nt], rest[mt], b[0], b[1]);
                    if (nt + 1 < NT) {
                        mma16(sum[mt][nt + 1 < NT ? nt + 1 : nt], top[mt], b[2], b[3]);
                        if (plane == 0)
                            mma16(sum[mt][nt + 1 < NT ? nt + 1 : nt], rest[mt], b[2], b[3]);
                    }
                }
            }
    }
}

/* The gradient of the layers behind to the same slot of every other rank. */
__device__ inline void send_gradient(const wide_plan &plan, const place &at, float *gradient) {
    for (int i = 4 * threadIdx.x; i < plan.rest.n_padded && plan.ranks > 1; i += 4 * blockDim.x)
        for (int c = 0; c < plan.ranks; c++)
            if (c != at.rank)
                *reinterpret_cast<float4 *>(of_rank(gradient + i, c)) = load4(gradient + i);
}

/* One update of everything a block holds. The replicated layers add the ranks' gradients, all in the same order. */
template <bool ADAM, int MT, int NT>
__device__ inline void update_all(const wide_plan &plan, const place &at, const gpu_rates &rates,
                                  const float (&sum)[MT][NT][4], owned<MT, NT> &own,
                                  float *weights) {
    const gpu_plan &rest = plan.rest;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                update_parameter<ADAM, false>(rest, rates, plan.scale * sum[mt][nt][i],
                                              own.w[mt][nt][i], own.first[mt][nt][i],
                                              own.second[mt][nt][i]);
    float *first = weights + rest.n_padded;
    update_padded<ADAM, false>(rest, rates, (float *)(at.shared + plan.gradients), plan.ranks,
                               weights, first, first + rest.n_padded);
}

/* The weights a thread owns, from the flat vector or back to it. */
template <int MT, int NT, bool LOAD>
__device__ inline void move_owned(const wide_plan &plan, const place &at, float *flat,
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

template <int MT, int NT>
__device__ inline bool is_broken(const wide_plan &plan, const owned<MT, NT> &own,
                                 const float *weights) {
    bool bad = false;
    for (int mt = 0; mt < MT; mt++)
        for (int nt = 0; nt < NT; nt++)
            for (int i = 0; i < 4; i++) bad |= !isfinite(own.w[mt][nt][i]);
    for (int i = threadIdx.x; i < plan.rest.n_padded; i += blockDim.x) bad |= !isfinite(weights[i]);
    return bad;
}

/* Error bits of the test examples and their number; the weights as they stand. Ends with all threads in step. */
template <int MT, int NT, int PLANES>
__device__ inline void judge(const wide_plan &plan, const place &at, const owned<MT, NT> &own,
                             const float *weights, float *work, uint32_t *list, uint8_t *errors,
                             uint32_t *wrong) {
    const gpu_plan &rest = plan.rest;
    int own_rows = at.rank * rest.rows, bytes = (rest.n_test + 7) / 8;
    for (int start = 0; start < rest.n_test; start += plan.rows) {
        int used = min(plan.rows, rest.n_test - start);
        for (int i = threadIdx.x; i < used; i += blockDim.x) list[i] = (uint32_t)(start + i);
        __syncthreads();
        fetch_examples(plan, at, plan.x_test, (size_t)rest.n_test, list, used);
        copies_wait();
        __syncthreads();
        partial_products<MT, NT, PLANES>(plan, at, own);
        first_activations(plan, at, weights, work);
        int used_rank = max(0, min(rest.rows, used - own_rows));
        layers_behind(plan, weights, work, used_rank);
        for (int row = threadIdx.x; row < used_rank; row += blockDim.x)
            list[row] = predicted(rest, work, row) != rest.y_test[start + own_rows + row];
        __syncthreads();
        for (int byte = threadIdx.x; 8 * byte < used_rank; byte += blockDim.x) {
            uint32_t bits = 0;
            for (int b = 0; b < 8 && 8 * byte + b < used_rank; b++) bits |= list[8 * byte + b] << b;
            if ((start + own_rows) / 8 + byte < bytes)
                errors[(start + own_rows) / 8 + byte] = (uint8_t)bits;
            atomicAdd(wrong, (uint32_t)__popc(bits)); /* integers: order does not matter */
        }
        cluster_barrier(plan.ranks);
    }
}

/* Where a walk over a network's batches stands: examples first .. of the batch that starts at `start` of an epoch. */
struct walk {
    int epoch, start, first;
};

__device__ inline bool walk_on(const wide_plan &plan, walk &at, int epochs) {
    const gpu_plan &rest = plan.rest;
    at.first += plan.rows;
    if (at.first >= min(rest.batch, rest.n_train - at.start)) at.first = 0, at.start += rest.batch;
    if (at.start >= rest.n_train) at.start = 0, at.epoch++;
    return at.epoch < epochs;
}

__device__ inline int walk_rows(const wide_plan &plan, const walk &at) {
    int batch = min(plan.rest.batch, plan.rest.n_train - at.start);
    return min(plan.rows, batch - at.first);
}

/* CHUNKED: a batch may be larger than R, so dW is kept from one set of examples to the next. */
template <int MT, int NT, int PLANES, bool CHUNKED, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    train_wide(const __grid_constant__ wide_plan plan, const gpu_networks networks) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ uint32_t list[256];
    __shared__ int32_t labels[256];
    __shared__ gpu_rates rates;
    const gpu_plan &rest = plan.rest;
    place at = {plan.ranks > 1 ? cluster_rank() : 0, (int)threadIdx.x / 32, (int)threadIdx.x % 32,
                shared_bytes};
    size_t network = blockIdx.x / plan.ranks;
    gpu_task task = networks.tasks[network];
    float *flat = networks.flat + network * rest.n_params;
    float *weights = (float *)(at.shared + plan.state), *work = (float *)(at.shared + plan.work);
    for (int i = threadIdx.x; i < plan.shared_bytes / 4; i += blockDim.x)
        ((uint32_t *)at.shared)[i] = 0;
    __syncthreads();
    load_weights(rest, 1, flat, weights);
    owned<MT, NT> own;
    move_owned<MT, NT, true>(plan, at, flat, own);
    cluster_barrier(plan.ranks); /* all ranks run, and have cleared their memory */

    size_t order = network * rest.epochs_max * (size_t)rest.n_train;
    int updates = (rest.n_train + rest.batch - 1) / rest.batch * task.epochs, update = 0;
    int own_rows = at.rank * rest.rows;
    walk now = {0, 0, 0};
    float sum[MT][NT][4] = {};
    auto example = [&](const walk &w, int row) {
        size_t i = order + (size_t)w.epoch * rest.n_train + w.start + w.first + row;
        return networks.order16 ? (uint32_t)networks.order16[i] : networks.order32[i];
    };
    /* thread i < R holds example i of the next set; its label comes with it */
    uint32_t next_example = 0;
    int32_t next_label = 0;
    auto look_ahead = [&](const walk &w) {
        if ((int)threadIdx.x < walk_rows(plan, w)) {
            next_example = example(w, (int)threadIdx.x);
            next_label = rest.y_train[next_example];
        }
    };
    auto take_next = [&]() {
        if ((int)threadIdx.x < plan.rows) {
            list[threadIdx.x] = next_example;
            labels[threadIdx.x] = next_label;
        }
    };
    look_ahead(now);
    take_next();
    __syncthreads();
    fetch_examples(plan, at, plan.x_train, (size_t)rest.n_train, list, walk_rows(plan, now));
    for (bool more = task.epochs > 0; more;) {
        int batch = min(rest.batch, rest.n_train - now.start), used = walk_rows(plan, now);
        int used_rank = max(0, min(rest.rows, used - own_rows));
        bool add = CHUNKED && now.first > 0, complete = now.first + used == batch;
        walk then = now;
        more = walk_on(plan, then, task.epochs);
        copies_wait();
        __syncthreads();
        if (more) look_ahead(then);
        partial_products<MT, NT, PLANES>(plan, at, own);
        first_activations(plan, at, weights, work);
        layers_behind(plan, weights, work, used_rank);
        loss_gradient(rest, labels + own_rows, used_rank, batch, work);
        if (complete && threadIdx.x == blockDim.x - 1)
            rates = rates_of(rest, task.lr, update, updates);
        __syncthreads();
        float *gradient = (float *)(at.shared + plan.gradients) + at.rank * rest.n_padded;
        for (int l = rest.n_layers - 1; l > 0; l--) {
            layer_backward(rest, rest.layer[l], rest.layer[l - 1], weights, work);
            layer_gradient(rest.layer[l], work + rest.layer[l - 1].output, work, used_rank, add,
                           gradient);
            __syncthreads();
        }
        bias_gradient(rest.layer[0], work, used_rank, add, gradient);
        send_delta(plan, at, work);
        take_next();
        if (plan.ranks > 1) {
            __syncthreads();
            send_gradient(plan, at, gradient);
        }
        cluster_barrier(plan.ranks);
        if (!CHUNKED)
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) sum[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
        first_gradient<MT, NT, PLANES>(plan, at, sum);
        __syncthreads();
        if (more)
            fetch_examples(plan, at, plan.x_train, (size_t)rest.n_train, list,
                           walk_rows(plan, then));
        if (!CHUNKED || complete) {
            const gpu_rates now_rates = rates;
            if (rest.optimizer == WF_ZOO_ADAM)
                update_all<true, MT, NT>(plan, at, now_rates, sum, own, weights);
            else update_all<false, MT, NT>(plan, at, now_rates, sum, own, weights);
            update++;
            if (CHUNKED)
#pragma unroll
                for (int i = 0; i < MT * NT * 4; i++) sum[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
        }
        now = then;
    }
    __syncthreads();
    if (__syncthreads_or(is_broken<MT, NT>(plan, own, weights)) && threadIdx.x == 0)
        atomicOr(networks.broken + network, 1u);
    move_owned<MT, NT, false>(plan, at, flat, own);
    if (at.rank == 0) store_weights(rest, 1, weights, flat);
    cluster_barrier(plan.ranks); /* the gradients of the last update have been read */
    size_t bytes = ((size_t)rest.n_test + 7) / 8;
    judge<MT, NT, PLANES>(plan, at, own, weights, work, list, networks.errors + network * bytes,
                          networks.wrong + network);
    cluster_barrier(plan.ranks); /* no rank leaves while another writes to it */
}

/* bf16 planes of padded rows; one thread an element. */
__global__ void split_inputs(const float *x, size_t n, int inputs, int width, int planes,
                             float factor, __nv_bfloat16 *out) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n * width) return;
    size_t row = i / width, column = i % width;
    float value = column < (size_t)inputs ? x[row * inputs + column] * factor : 0;
    __nv_bfloat16 top = planes == 1 ? __float2bfloat16(rintf(value)) : __float2bfloat16(value);
    out[i] = top;
    if (planes == 2) out[n * width + i] = __float2bfloat16(value - __bfloat162float(top));
}

struct shape {
    int tiles_m, tiles_n, max_warps;
    bool chunked;
    const void *kernel[2]; /* by planes */
};

const shape shapes[] = {
    {1,
     4,
     8,
     true,
     {(const void *)train_wide<1, 4, 1, true, 256>, (const void *)train_wide<1, 4, 2, true, 256>}},
    {2,
     7,
     8,
     false,
     {(const void *)train_wide<2, 7, 1, false, 256>,
      (const void *)train_wide<2, 7, 2, false, 256>}},
    {4,
     3,
     8,
     false,
     {(const void *)train_wide<4, 3, 1, false, 256>,
      (const void *)train_wide<4, 3, 2, false, 256>}},
};

int round_up(int n, int to) { return (n + to - 1) / to * to; }

/* Places in shared memory for R rows on C ranks. */
void lay_out_wide(wide_plan *plan, const shape &of, int ranks, int rows) {
    gpu_plan &rest = plan->rest;
    plan->tiles_m = of.tiles_m, plan->tiles_n = of.tiles_n;
    plan->ranks = ranks;
    int needed = (rest.inputs + ranks * 8 * of.tiles_n - 1) / (ranks * 8 * of.tiles_n);
    plan->warps = needed * 32 < rows ? rows / 32 : needed; /* a thread an example looks ahead */
    plan->columns = plan->warps * 8 * of.tiles_n;
    plan->stride = plan->columns / 8 % 2 ? plan->columns : plan->columns + 8;
    plan->rows = rows;
    rest.rows = rows / ranks;
    int params = 0, work = 0;
    for (int l = 0; l < rest.n_layers; l++) {
        gpu_layer &layer = rest.layer[l];
        layer.weight = params;
        if (l > 0) params += layer.out_padded * layer.stride_in;
        layer.bias = params;
        params += layer.out_padded;
        int size = rest.rows * layer.stride_out;
        bool hidden = l + 1 < rest.n_layers;
        layer.output = layer.delta = work, work += size;
        if (hidden) layer.delta = work, work += size;
        if (hidden && layer.slope >= 0) layer.slope = work, work += size;
    }
    rest.n_padded = params;
    int bytes = 0, units = 16 * of.tiles_m;
    plan->x = bytes;
    bytes +=
        round_up(2 * plan->planes * rows * plan->stride + 16, 128); /* 16: the odd tile reads on */
    plan->partial = bytes, bytes += 4 * plan->warps * rows * (units + 4);
    plan->slots = bytes, bytes += ranks > 1 ? 4 * rows * units : 0;
    plan->delta = bytes, bytes += 4 * units * (rows + 8);
    plan->state = bytes, bytes += round_up(12 * params, 128); /* weights, moments */
    plan->gradients = bytes, bytes += round_up(4 * ranks * params, 128);
    plan->pieces = divisor_of(plan->columns / 8);
    plan->of_rank = divisor_of(rest.rows);
    plan->work = bytes, bytes += 4 * work;
    plan->shared_bytes = round_up(bytes, 128);
}

} // namespace

bool wide_choose(wide_plan *plan, bool clusters) {
    const gpu_layer &first = plan->rest.layer[0];
    for (const shape &of : shapes) {
        if (first.out > 16 * of.tiles_m) continue;
        for (int ranks = 1; ranks <= (clusters ? 8 : 1); ranks *= 2) {
            int least = ranks > 4 ? 64 : 32; /* 8 rows a rank: whole bytes of the masks */
            int rows = round_up(plan->rest.batch, least);
            if (of.chunked && rows > least) rows = least;
            if (rows > 256) break;
            lay_out_wide(plan, of, ranks, rows);
            if (plan->warps <= of.max_warps && plan->shared_bytes + 4096 <= shared_limit)
                return true;
        }
    }
    return false;
}

cudaError_t wide_launch(const wide_plan &plan, const gpu_networks &networks, size_t count,
                        cudaStream_t stream) {
    const void *kernel = NULL;
    for (const shape &of : shapes)
        if (of.tiles_m == plan.tiles_m) kernel = of.kernel[plan.planes - 1];
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
    void *arguments[] = {(void *)&plan, (void *)&networks};
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

cudaError_t wide_inputs(const wide_plan &plan, const float *x, size_t n, __nv_bfloat16 *out) {
    int width = plan.ranks * plan.columns;
    size_t total = n * (size_t)width;
    if (total == 0) return cudaSuccess;
    split_inputs<<<(unsigned)((total + 255) / 256), 256>>>(
        x, n, plan.rest.inputs, width, plan.planes, plan.planes == 1 ? 1 / plan.scale : 1.0f, out);
    return cudaGetLastError();
}

} // namespace zoo_gpu
