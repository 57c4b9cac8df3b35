/* zoo_block: one network per thread block in fp32, from its first update to its last, and its test
 * at the end.
 *
 * Weights, gradient and both moments are in shared memory as far as they fit. The rest is in device
 * memory, which stays in the L2 cache for networks of up to some 50,000 parameters. The optimiser's
 * state is moved out first, because an update touches it once, and the weights last. The layers are
 * those of zoo_layers.cuh on sets of R examples.
 *
 * Bytes: weights, gradient, moments 16 P, activations and their gradients 8 R sum(widths). FLOPs:
 * karhunen 64-16-8-10, batch 128: 0.66 MFLOP an update, 0.214 GFLOP a network of 25 epochs.
 * Barriers and latency are the limit: an H200 reaches a tenth of its fp32 rate.
 *   I1  sums run in fixed order; a network's bits depend on nothing but itself */
#include "zoo/cuda/zoo_block.cuh"

namespace zoo_gpu {
namespace {

enum { most_rows = 128 };

/* h_0 of some examples; rows beyond rows_used are 0. */
__device__ void load_examples(const gpu_plan &plan, const float *x, const uint32_t *list,
                              int rows_used, float *work) {
    const gpu_layer &layer = plan.layer[0];
    float *input = work + plan.input;
    bool whole = plan.inputs % 4 == 0;
    int quads = layer.in_padded / 4;
    for (int i = threadIdx.x; i < plan.rows * quads; i += blockDim.x) {
        int row = quotient(i, layer.in_quads), k = 4 * (i - row * quads);
        float4 value = make_float4(0, 0, 0, 0);
        if (row < rows_used) {
            const float *from = x + (size_t)list[row] * plan.inputs + k;
            if (whole) value = load4(from);
            else {
                float *v = &value.x;
                for (int c = 0; c < 4; c++)
                    if (k + c < plan.inputs) v[c] = from[c];
            }
        }
        *reinterpret_cast<float4 *>(input + row * layer.stride_in + k) = value;
    }
}

__device__ const float *layer_input(const gpu_plan &plan, const float *work, int l) {
    return work + (l == 0 ? plan.input : plan.layer[l - 1].output);
}

__device__ void all_forward(const gpu_plan &plan, const float *weights, float *work,
                            int rows_used) {
    for (int l = 0; l < plan.n_layers; l++) {
        layer_forward(plan, plan.layer[l], l + 1 == plan.n_layers, layer_input(plan, work, l),
                      weights, work, rows_used);
        __syncthreads();
    }
}

__device__ void all_backward(const gpu_plan &plan, const float *weights, float *work, int rows_used,
                             bool add, float *gradient) {
    for (int l = plan.n_layers - 1; l >= 0; l--) {
        if (l > 0) layer_backward(plan, plan.layer[l], plan.layer[l - 1], weights, work);
        layer_gradient(plan.layer[l], layer_input(plan, work, l), work, rows_used, add, gradient);
        __syncthreads();
    }
}

/* Error bits of the test examples, and how many there are. */
__device__ void judge(const gpu_plan &plan, const float *weights, float *work, uint32_t *list,
                      uint8_t *errors, uint32_t *wrong) {
    for (int start = 0; start < plan.n_test; start += plan.rows) {
        int used = min(plan.rows, plan.n_test - start);
        for (int i = threadIdx.x; i < used; i += blockDim.x) list[i] = (uint32_t)(start + i);
        __syncthreads();
        load_examples(plan, plan.x_test, list, used, work);
        __syncthreads();
        all_forward(plan, weights, work, used);
        for (int row = threadIdx.x; row < plan.rows; row += blockDim.x)
            list[row] = row < used && predicted(plan, work, row) != plan.y_test[start + row];
        __syncthreads();
        for (int byte = threadIdx.x; 8 * byte < used; byte += blockDim.x) {
            uint32_t bits = 0;
            for (int b = 0; b < 8; b++) bits |= list[8 * byte + b] << b;
            errors[start / 8 + byte] = (uint8_t)bits;
            atomicAdd(wrong, (uint32_t)__popc(bits)); /* integers: order does not matter */
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(512)
    train_block(const __grid_constant__ block_plan plan, const gpu_networks networks) {
    extern __shared__ __align__(16) float shared[];
    __shared__ uint32_t list[most_rows];
    __shared__ int32_t labels[most_rows];
    __shared__ gpu_rates rates;
    __shared__ uint32_t stop;
    const gpu_plan &net = plan.net;
    size_t network = blockIdx.x;
    float *spill = plan.spill + network * (size_t)(4 - plan.arrays_shared) * net.n_padded;
    float *array[4]; /* weights, gradient, first and second moment */
    for (int a = 0; a < 4; a++)
        array[a] = a < plan.arrays_shared ? shared + a * net.n_padded
                                          : spill + (size_t)(a - plan.arrays_shared) * net.n_padded;
    float *weights = array[0], *gradient = array[1], *first = array[2], *second = array[3];
    float *work = shared + plan.arrays_shared * net.n_padded;
    gpu_task task = networks.tasks[network];
    float *flat = networks.flat + network * net.n_params;
    load_weights(net, 0, flat, weights);
    for (int i = threadIdx.x; i < net.n_padded; i += blockDim.x)
        gradient[i] = first[i] = second[i] = 0;
    int updates = (net.n_train + net.batch - 1) / net.batch * task.epochs, update = 0;
    for (int epoch = 0; epoch < task.epochs; epoch++) {
        size_t order = (network * net.epochs_max + epoch) * (size_t)net.n_train;
        for (int start = 0; start < net.n_train; start += net.batch, update++) {
            int batch = min(net.batch, net.n_train - start);
            if (threadIdx.x == 0) stop = update % networks.look_every == 0 ? *networks.stop : 0;
            for (int done = 0; done < batch; done += net.rows) {
                int used = min(net.rows, batch - done);
                __syncthreads();
                if (stop !=
                    0) { /* the same for all threads: it is set again only behind barriers */
                    if (threadIdx.x == 0) networks.broken[network] = GPU_UNFINISHED;
                    return;
                }
                for (int i = threadIdx.x; i < used; i += blockDim.x) {
                    size_t place = order + start + done + i;
                    list[i] = networks.order16 ? networks.order16[place] : networks.order32[place];
                    labels[i] = net.y_train[list[i]];
                }
                __syncthreads();
                load_examples(net, net.x_train, list, used, work);
                __syncthreads();
                all_forward(net, weights, work, used);
                loss_gradient(net, labels, used, batch, work);
                if (done == 0 && threadIdx.x == blockDim.x - 1)
                    rates = rates_of(net, task.lr, update, updates);
                __syncthreads();
                all_backward(net, weights, work, used, done > 0, gradient);
            }
            if (net.optimizer == WF_ZOO_ADAM)
                update_padded<true, true>(net, rates, gradient, 1, weights, first, second);
            else update_padded<false, true>(net, rates, gradient, 1, weights, first, second);
        }
    }
    __syncthreads();
    bool bad = false;
    for (int i = threadIdx.x; i < net.n_padded; i += blockDim.x) bad |= !isfinite(weights[i]);
    if (__syncthreads_or(bad) && threadIdx.x == 0) networks.broken[network] = GPU_DIVERGED;
    store_weights(net, 0, weights, flat);
    judge(net, weights, work, list, networks.errors + network * (((size_t)net.n_test + 7) / 8),
          networks.wrong + network);
}

/* Parameters and the working memory of R rows. */
void lay_out(gpu_plan *plan, int rows) {
    plan->rows = rows;
    int params = 0, work = 0;
    plan->input = work, work += rows * plan->layer[0].stride_in;
    for (int l = 0; l < plan->n_layers; l++) {
        gpu_layer &layer = plan->layer[l];
        layer.weight = params, params += layer.out_padded * layer.stride_in;
        layer.bias = params, params += layer.out_padded;
        int size = rows * layer.stride_out;
        bool hidden = l + 1 < plan->n_layers;
        layer.output = layer.delta = work, work += size;
        if (hidden) layer.delta = work, work += size;
        if (hidden && layer.slope >= 0) layer.slope = work, work += size;
    }
    plan->n_padded = params;
    plan->work_floats = work;
}

} // namespace

bool block_choose(block_plan *plan) {
    /* Two blocks on an SM are better than a larger set of examples, and so is state on chip. */
    const int limits[] = {shared_limit / 2 - 3072, shared_limit - 3072};
    for (int arrays = 4; arrays >= 0; arrays--)
        for (int pass = arrays == 4 ? 0 : 1; pass < 2; pass++)
            for (int rows = most_rows; rows >= 32; rows /= 2) {
                if (rows > 32 && rows / 2 >= plan->net.batch) continue;
                lay_out(&plan->net, rows);
                double bytes = 4.0 * ((double)arrays * plan->net.n_padded + plan->net.work_floats);
                if (bytes > limits[pass]) continue;
                plan->arrays_shared = arrays;
                plan->shared_bytes = (int)bytes;
                plan->threads = pass == 0 ? 128 : 512;
                return true;
            }
    return false;
}

size_t block_spill(const block_plan &plan) {
    return (size_t)(4 - plan.arrays_shared) * (size_t)plan.net.n_padded;
}

cudaError_t block_launch(const block_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(
        train_block, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
    if (error != cudaSuccess) return error;
    train_block<<<(unsigned)count, (unsigned)plan.threads, (size_t)plan.shared_bytes, stream>>>(
        plan, networks);
    return cudaGetLastError();
}

} // namespace zoo_gpu
