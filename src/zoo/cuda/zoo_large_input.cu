/* zoo_large_input: MLPs with a large first layer and any layers after it, trained from their first
 * update to their last.
 *
 * A network belongs to a cluster of C blocks, and its first layer to their warps
 * (zoo_first_layer.cuh). Warps add their parts of z in shared memory, blocks in distributed shared
 * memory, always in the same order. Rank c then takes rows c R/C .. through the later layers
 * (fp32, zoo_layers.cuh), and sends d of the first layer and its gradient of the others to all
 * ranks. The next examples are loaded while the optimiser works. After the last update the same
 * forward pass tests the network. Networks that zoo_small.cu takes are several times faster there.
 *
 * Registers: 12 MT NT for the state. Shared memory: x 2 planes R columns, parts of z 4 W R (16 MT +
 * 4), d' 64 MT (R + 8), the later layers 16 n_padded and their activations. Measured on an H200:
 * MNIST 784-32-32-10 38,000 cycles an update on two SMs, of which the later layers 18,000.
 *   I1  sums run in fixed order; a network's bits depend on nothing but itself
 *   I2  padding columns, units and rows hold zeros in x, w and d, so they stay zero
 *   I3  a buffer that another rank writes or reads is used again only after the next cluster
 *       barrier */
#include "zoo/cuda/zoo_large_input.cuh"
#include "zoo/cuda/zoo_first_layer.cuh"

namespace zoo_gpu {
namespace {

/* Parts of z of rows `row` of this block, over its warps. */
__device__ inline float4 sum_of_warps(const large_input_plan &plan, const place &at, int row,
                                      int unit) {
    int stride_z = 16 * plan.tiles_m + 4;
    const float *part = (const float *)(at.shared + plan.partial) + row * stride_z + unit;
    float4 sum = load4(part);
#pragma unroll 4
    for (int w = 1; w < plan.warps; w++) sum = add4(sum, load4(part + w * plan.rows * stride_z));
    return sum;
}

/* h_1 of this rank's rows, from all parts of z. Ends with a barrier of all threads. */
__device__ inline void first_activations(const large_input_plan &plan, const place &at,
                                         const float *weights, float *work) {
    const gpu_layer &layer = plan.rest.layer[0];
    int quads = layer.out_padded / 4, rows_rank = plan.rest.rows, width = 16 * plan.tiles_m;
    bool last = plan.rest.n_layers == 1;
    __syncthreads();
    if (plan.ranks > 1) {
        float *inbox = (float *)(at.shared + plan.inbox); /* (C, R/C, 16 MT) */
        for (int i = threadIdx.x; i < plan.rows * quads; i += blockDim.x) {
            int row = quotient(i, layer.out_quads), unit = 4 * (i - row * quads),
                rank = quotient(row, plan.of_rank);
            float4 sum = sum_of_warps(plan, at, row, unit);
            float *to = inbox + (at.rank * rows_rank + row - rank * rows_rank) * width + unit;
            *reinterpret_cast<float4 *>(of_rank(to, rank)) = sum;
        }
        cluster_barrier(plan.ranks);
    }
    for (int i = threadIdx.x; i < rows_rank * quads; i += blockDim.x) {
        int row = quotient(i, layer.out_quads), unit = 4 * (i - row * quads);
        float4 sum;
        if (plan.ranks > 1) {
            const float *inbox = (const float *)(at.shared + plan.inbox) + row * width + unit;
            sum = load4(inbox);
            for (int c = 1; c < plan.ranks; c++)
                sum = add4(sum, load4(inbox + c * rows_rank * width));
        } else sum = sum_of_warps(plan, at, row, unit);
        const float *s = &sum.x;
        for (int c = 0; c < 4; c++)
            finish_unit(plan.rest, layer, last, work, row, unit + c,
                        fmaf(plan.scale, s[c], weights[layer.bias + unit + c]));
    }
    __syncthreads();
}

__device__ inline void layers_behind(const large_input_plan &plan, const float *weights,
                                     float *work, int rows_used) {
    const gpu_plan &rest = plan.rest;
    for (int l = 1; l < rest.n_layers; l++) {
        layer_forward(rest, rest.layer[l], l + 1 == rest.n_layers, work + rest.layer[l - 1].output,
                      weights, work, rows_used);
        __syncthreads();
    }
}

/* d of the first layer, hi and lo, transposed to (2, 16 MT, R + 8) in the shared memory of every
 * rank. */
__device__ inline void send_delta(const large_input_plan &plan, const place &at,
                                  const float *work) {
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

/* Sends the gradient of the later layers to the same place in every other rank. */
__device__ inline void send_gradient(const large_input_plan &plan, const place &at,
                                     float *gradient) {
    for (int i = 4 * threadIdx.x; i < plan.rest.n_padded && plan.ranks > 1; i += 4 * blockDim.x)
        for (int c = 0; c < plan.ranks; c++)
            if (c != at.rank)
                *reinterpret_cast<float4 *>(of_rank(gradient + i, c)) = load4(gradient + i);
}

/* One update of everything a block holds. The replicated layers add the ranks' gradients, all in
 * the same order. */
template <bool ADAM, int MT, int NT>
__device__ inline void update_all(const large_input_plan &plan, const place &at,
                                  const gpu_rates &rates, const float (&sum)[MT][NT][4],
                                  owned<MT, NT> &own, float *weights) {
    const gpu_plan &rest = plan.rest;
    update_owned<ADAM, MT, NT>(plan, rates, sum, own);
    float *first = weights + rest.n_padded;
    update_padded<ADAM, false>(rest, rates, (float *)(at.shared + plan.gradients), plan.ranks,
                               weights, first, first + rest.n_padded);
}

template <int MT, int NT>
__device__ inline bool is_broken(const large_input_plan &plan, const owned<MT, NT> &own,
                                 const float *weights) {
    bool bad = own_is_broken<MT, NT>(own);
    for (int i = threadIdx.x; i < plan.rest.n_padded; i += blockDim.x) bad |= !isfinite(weights[i]);
    return bad;
}

/* Error bits of the test examples and their number, with the current weights. Ends with a barrier
 * of all threads. */
template <int MT, int NT, int PLANES>
__device__ inline void judge(const large_input_plan &plan, const place &at,
                             const owned<MT, NT> &own, const float *weights, float *work,
                             uint32_t *list, uint8_t *errors, uint32_t *wrong, uint64_t *arrived,
                             uint32_t &phase) {
    const gpu_plan &rest = plan.rest;
    int own_rows = at.rank * rest.rows, bytes = (rest.n_test + 7) / 8;
    for (int start = 0; start < rest.n_test; start += plan.rows) {
        int used = min(plan.rows, rest.n_test - start);
        for (int i = threadIdx.x; i < used; i += blockDim.x) list[i] = (uint32_t)(start + i);
        __syncthreads();
        fetch_examples(plan, at, plan.x_test, list, used, arrived);
        copies_wait(arrived, phase);
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

/* CHUNKED: a batch may be larger than R, so dW is kept from one set of examples to the next. */
template <int MT, int NT, int PLANES, bool CHUNKED, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
    train_large_input(const __grid_constant__ large_input_plan plan, const gpu_networks networks) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ __align__(8) uint64_t arrived;
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
    copies_start(&arrived);
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
    uint32_t next_example = 0, phase = 0;
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
    fetch_examples(plan, at, plan.x_train, list, walk_rows(plan, now), &arrived);
    for (bool more = task.epochs > 0; more;) {
        int batch = min(rest.batch, rest.n_train - now.start), used = walk_rows(plan, now);
        int used_rank = max(0, min(rest.rows, used - own_rows));
        bool add = CHUNKED && now.first > 0, complete = now.first + used == batch;
        walk then = now;
        more = walk_on(plan, then, task.epochs);
        copies_wait(&arrived, phase);
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
        if (more) fetch_examples(plan, at, plan.x_train, list, walk_rows(plan, then), &arrived);
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
                          networks.wrong + network, &arrived, phase);
    cluster_barrier(plan.ranks); /* no rank leaves while another writes to it */
}

/* (n, C, planes, columns) from (n, inputs); one thread an input, padded ones included. */
__global__ void split_inputs(const float *x, size_t n, int inputs, int ranks, int columns,
                             int planes, float factor, __nv_bfloat16 *out) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, width = (size_t)ranks * columns;
    if (i >= n * width) return;
    size_t row = i / width, input = i % width, rank = input / columns;
    float value = input < (size_t)inputs ? x[row * inputs + input] * factor : 0;
    __nv_bfloat16 top = __float2bfloat16(planes == 1 ? rintf(value) : value);
    __nv_bfloat16 *to = out + (row * width + rank * columns) * planes + input % columns;
    to[0] = top;
    if (planes == 2) to[columns] = __float2bfloat16(value - __bfloat162float(top));
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
     {(const void *)train_large_input<1, 4, 1, true, 256>,
      (const void *)train_large_input<1, 4, 2, true, 256>}},
    {2,
     7,
     8,
     false,
     {(const void *)train_large_input<2, 7, 1, false, 256>,
      (const void *)train_large_input<2, 7, 2, false, 256>}},
};

int round_up(int n, int to) { return (n + to - 1) / to * to; }

/* Places in shared memory for R rows on C ranks. */
void lay_out_large_input(large_input_plan *plan, const shape &of, int ranks, int rows) {
    gpu_plan &rest = plan->rest;
    plan->tiles_m = of.tiles_m, plan->tiles_n = of.tiles_n;
    plan->ranks = ranks;
    int needed = (rest.inputs + ranks * 8 * of.tiles_n - 1) / (ranks * 8 * of.tiles_n);
    plan->warps = needed * 32 < rows ? rows / 32 : needed; /* each thread looks one example ahead */
    plan->columns = plan->warps * 8 * of.tiles_n;
    plan->stride = plan->planes * plan->columns;
    plan->pieces = divisor_of(plan->stride / 8);
    if (plan->stride / 8 % 2 == 0) plan->stride += 8;
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
    bytes += round_up(2 * rows * plan->stride + 16, 128); /* 16: an odd tile reads beyond the end */
    plan->partial = bytes, bytes += 4 * plan->warps * rows * (units + 4);
    plan->inbox = bytes, bytes += ranks > 1 ? 4 * rows * units : 0;
    plan->delta = bytes, bytes += 4 * units * (rows + 8);
    plan->state = bytes, bytes += round_up(12 * params, 128); /* weights, moments */
    plan->gradients = bytes, bytes += round_up(4 * ranks * params, 128);
    plan->of_rank = divisor_of(rest.rows);
    plan->work = bytes, bytes += 4 * work;
    plan->shared_bytes = round_up(bytes, 128);
}

} // namespace

bool can_cluster() {
    cudaFuncAttributes made;
    return cudaFuncGetAttributes(&made, (const void *)split_inputs) == cudaSuccess &&
           made.ptxVersion >= 90;
}

bool large_input_choose(large_input_plan *plan, bool clusters) {
    const gpu_layer &first = plan->rest.layer[0];
    for (const shape &of : shapes) {
        if (first.out > 16 * of.tiles_m) continue;
        for (int ranks = 1; ranks <= (clusters ? 8 : 1); ranks *= 2) {
            int least = ranks > 4 ? 64 : 32; /* 8 rows a rank: whole bytes of the masks */
            int rows = round_up(plan->rest.batch, least);
            if (of.chunked && rows > least) rows = least;
            if (rows > 256) break;
            lay_out_large_input(plan, of, ranks, rows);
            if (plan->warps <= of.max_warps && plan->shared_bytes + 4096 <= shared_limit)
                return true;
        }
    }
    return false;
}

cudaError_t large_input_launch(const large_input_plan &plan, const gpu_networks &networks,
                               size_t count, cudaStream_t stream) {
    const void *kernel = NULL;
    for (const shape &of : shapes)
        if (of.tiles_m == plan.tiles_m) kernel = of.kernel[plan.planes - 1];
    void *arguments[] = {(void *)&plan, (void *)&networks};
    return launch_ranks(kernel, plan, count, arguments, stream);
}

cudaError_t split_into_planes(const large_input_plan &plan, const float *x, size_t n,
                              __nv_bfloat16 *out) {
    int width = plan.ranks * plan.columns;
    size_t total = n * (size_t)width;
    if (total == 0) return cudaSuccess;
    split_inputs<<<(unsigned)((total + 255) / 256), 256>>>(
        x, n, plan.rest.inputs, plan.ranks, plan.columns, plan.planes,
        plan.planes == 1 ? 1 / plan.scale : 1.0f, out);
    return cudaGetLastError();
}

} // namespace zoo_gpu
