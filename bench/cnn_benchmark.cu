/* cnn_benchmark: the kernel that trains the paper's network for CIFAR-10, alone.
 *
 *     cnn_benchmark [IMAGES [NETWORKS]]      6000 images, one network a multiprocessor
 *
 * Prints networks of 60 epochs of 50,000 images a second, then the cycles that each phase takes for
 * three images, seen by the first thread of the first block; a phase ends with its barrier. Images
 * are noise, so that nothing is spared; that the numbers are right is for test_cuda_convs. */
#include "zoo/cuda/zoo_paper_net.cuh"

#include <stdio.h>
#include <stdlib.h>

#include <vector>

using namespace zoo_gpu;

namespace {

enum { n_phases = 10, test_images = 30 };
const char *const phases[n_phases] = {
    "conv1",          "conv2",   "conv3",           "loss",  "conv3 backward", "conv2 backward",
    "conv1 backward", "barrier", "images, barrier", "update"};

struct phase_clock {
    long long *totals; /* [n_phases] */
    long long last, total[n_phases];
    __device__ void start() {
        for (int i = 0; i < n_phases; i++) total[i] = 0;
        last = clock64();
    }
    __device__ void mark(int phase) {
        if (threadIdx.x != 0 || blockIdx.x != 0) return;
        /* a phase is named after its beginning in paper::train: 0 ends the images' barrier */
        const int place[n_phases] = {8, 0, 1, 2, 3, 4, 5, 6, 7, 9};
        long long now = clock64();
        atomicAdd((unsigned long long *)totals + place[phase], (unsigned long long)(now - last));
        last = clock64();
    }
    __device__ void finish() { totals = totals + n_phases; }
};

void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "cnn_benchmark: %s\n", cudaGetErrorString(error));
    exit(1);
}

template <class T> T *upload(const std::vector<T> &from) {
    void *to;
    check(cudaMalloc(&to, from.size() * sizeof(T)));
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return (T *)to;
}

float noise(wf_rng *rng) { return 2 * wf_rng_uniform(rng) - 1; }

template <class Clock>
float milliseconds(const conv_plan &plan, const gpu_networks &networks, int count, Clock clock) {
    auto kernel = paper::train<Clock>;
    cudaEvent_t begin, end;
    float took;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               paper::shared_bytes));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaEventRecord(begin));
    kernel<<<(unsigned)count, paper::threads, (size_t)paper::shared_bytes>>>(plan, networks, clock);
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&took, begin, end));
    return took;
}

} // namespace

int main(int argc, char **argv) {
    int images = argc > 1 ? atoi(argv[1]) : 6000, count = argc > 2 ? atoi(argv[2]) : 0;
    if (count == 0) check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    wf_rng rng = wf_rng_at(1, 2, WF_RNG_TEST, 3);
    std::vector<float> x((size_t)images * paper::inputs), flat((size_t)count * paper::n_params);
    std::vector<int32_t> y(images);
    std::vector<uint16_t> order((size_t)count * images);
    std::vector<gpu_task> tasks(count);
    for (float &v : x) v = noise(&rng);
    for (int i = 0; i < images; i++) y[i] = i % paper::classes;
    for (size_t i = 0; i < flat.size(); i++) flat[i] = 0.1f * noise(&rng);
    for (size_t i = 0; i < order.size(); i++) order[i] = (uint16_t)(i * 2477 % images);
    for (int k = 0; k < count; k++) tasks[k] = gpu_task{(uint32_t)k, 1, 0.02};
    std::vector<float2> corrections(images, make_float2(1, 1));
    conv_plan plan = {};
    gpu_plan &net = plan.net;
    net.n_params = paper::n_params, net.batch = 128, net.n_train = images, net.epochs_max = 1;
    net.n_test = test_images, net.inputs = paper::inputs, net.classes = paper::classes;
    net.optimizer = WF_ZOO_SGD, net.nesterov = net.cosine = 1;
    net.momentum = 0.9f, net.weight_decay = 5e-4f, net.smoothing = 0.1f;
    net.corrections = upload(corrections);
    net.x_train = net.x_test = upload(x);
    net.y_train = net.y_test = upload(y);
    plan.flip = 1, plan.crop = 4, plan.is_paper = true;
    plan.state = upload(std::vector<float>((size_t)count * 3 * paper::n_params));
    std::vector<uint32_t> zeros(count);
    gpu_networks networks = {upload(tasks),
                             upload(order),
                             NULL,
                             upload(flat),
                             upload(zeros),
                             upload(zeros),
                             upload(std::vector<uint8_t>((size_t)count * test_images)),
                             upload(zeros),
                             1};
    float best = 1e30f;
    for (int round = 0; round < 4; round++) {
        float took = milliseconds(plan, networks, count, paper::no_clock());
        if (round > 0 && took < best) best = took;
    }
    double a_second = count / (best * 1e-3) * images / (60.0 * 50000);
    printf("%d networks, an epoch of %d images: %.2f ms, %.3f networks of 60 epochs a second\n",
           count, images, best, a_second);
    long long *totals = upload(std::vector<long long>(2 * n_phases)), seen[n_phases], all = 0;
    milliseconds(plan, networks, count, phase_clock{totals, 0, {}});
    check(cudaMemcpy(seen, totals, sizeof seen, cudaMemcpyDeviceToHost));
    int turns = 0;
    for (int start = 0; start < images; start += net.batch)
        turns += (min(net.batch, images - start) + paper::together - 1) / paper::together;
    for (int i = 0; i < n_phases; i++) all += seen[i];
    printf("cycles for three images, %lld in all\n", all / turns);
    for (int i = 0; i < n_phases; i++)
        printf("%8lld %5.1f %%  %s\n", seen[i] / turns, 100.0 * (double)seen[i] / (double)all,
               phases[i]);
    return 0;
}
