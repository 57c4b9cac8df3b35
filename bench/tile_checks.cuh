/* tile_checks: what edge_benchmark and node_benchmark share on the host: numbers in fp16 and bf16,
 * tiles in the order of shared memory (edge_tiles.cuh), device memory, launches, comparison and
 * times. */
#ifndef WF_BENCH_TILE_CHECKS_CUH
#define WF_BENCH_TILE_CHECKS_CUH

#include "edge_tiles.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <vector>

namespace edge {

static inline void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "benchmark: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* --- numbers ---------------------------------------------------------------------------------- */
/* Multiples of 1/64, |x| <= most: exact in fp16 and in bf16 where most <= 4. */
static inline double draw(double most) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    int steps = (int)(most * 64);
    return ((int)((state >> 33) % (uint64_t)(2 * steps + 1)) - steps) / 64.0;
}
static inline std::vector<double> draws(size_t n, double most) {
    std::vector<double> out(n);
    for (double &x : out) x = draw(most);
    return out;
}
static inline uint16_t bits_bf16(double x) {
    float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline double of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static inline uint16_t bits_half(double x) { /* normal numbers and zero */
    int exponent;
    double fraction = frexp(fabs(x), &exponent);
    uint16_t sign = x < 0 ? 0x8000 : 0;
    if (x == 0 || exponent < -13) return sign;
    return (uint16_t)(sign + ((exponent + 14) << 10) + (int)(fraction * 2048 + 0.5) - 1024);
}
static inline double of_half(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double value = exponent == 31 ? NAN : ldexp(1024 + (bits & 1023), exponent - 25);
    return (bits & 0x8000 ? -1 : 1) * (exponent == 0 ? ldexp(bits & 1023, -24) : value);
}

/* y and its slope by x. */
static inline double unit(double x, double *slope) {
    double inner = x * (0.7978845608 + 0.0356774081 * x * x), t = tanh(inner);
    *slope = 0.5 + 0.5 * t + 0.5 * x * (1 - t * t) * (0.7978845608 + 0.1070322243 * x * x);
    return 0.5 * x + 0.5 * x * t;
}

/* --- memory ----------------------------------------------------------------------------------- */
typedef std::vector<unsigned char> bytes;
static inline void put(bytes &to, size_t at, uint16_t bits) { memcpy(&to[at], &bits, 2); }
/* Element of a swizzled tile that begins at `tile`. */
static inline size_t element_at(size_t tile, int row, int column) {
    return tile + (size_t)(row * 128 + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2);
}
/* (rows, 64) of a matrix with rows `pitch` apart, times `by`. */
static inline void put_tile(bytes &to, size_t tile, const double *from, int rows, int pitch,
                            bool half, double by) {
    for (int row = 0; row < rows; row++)
        for (int k = 0; k < width; k++) {
            double x = from[row * pitch + k] * by;
            put(to, element_at(tile, row, k), half ? bits_half(x) : bits_bf16(x));
        }
}
/* Column k of a row is number `order` of lane c: edge_tiles.cuh. */
static inline int lane_order(int k) { return k % 8 / 2 * 16 + k / 8 * 2 + k % 2; }

/* --- the device ------------------------------------------------------------------------------- */
static cudaStream_t stream;
static std::vector<void *> taken;
static inline void *take(size_t size) {
    void *memory;
    check(cudaMalloc(&memory, size), "memory");
    check(cudaMemsetAsync(memory, 0xff, size, stream), "memset"); /* NaN */
    taken.push_back(memory);
    return memory;
}
static inline void give_all() {
    for (void *memory : taken) cudaFree(memory);
    taken.clear();
}
/* `times` copies, one behind the other. */
static inline unsigned char *upload(const bytes &from, int times) {
    unsigned char *to = (unsigned char *)take(from.size() * (size_t)times);
    for (int k = 0; k < times; k++)
        check(cudaMemcpyAsync(to + from.size() * (size_t)k, from.data(), from.size(),
                              cudaMemcpyHostToDevice, stream),
              "copy");
    return to;
}
template <class T> static std::vector<T> download(const void *from, size_t count) {
    std::vector<T> out(count);
    check(cudaMemcpyAsync(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
          "copy");
    check(cudaStreamSynchronize(stream), "kernel");
    return out;
}

static inline bytes of_ints(const std::vector<int> &list) {
    return bytes((const unsigned char *)list.data(),
                 (const unsigned char *)(list.data() + list.size()));
}
template <class K, class A>
static inline void start(K kernel, int blocks, int threads, int shared, const A &args) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
          "shared memory");
    kernel<<<blocks, threads, shared, stream>>>(args);
    check(cudaGetLastError(), "launch");
}

/* Adds up the difference of outputs from what they should be. */
struct comparison {
    const char *stage, *output;
    double difference = 0, norm = 0;
    void add(double is, double wanted) {
        difference += (is - wanted) * (is - wanted), norm += wanted * wanted;
    }
    bool passes() const {
        double error = sqrt(difference / norm);
        bool right = error < 5e-3; /* operands and outputs in bf16 */
        if (!right) printf("FAILED %s: %s is off by %.3g of its norm\n", stage, output, error);
        return right;
    }
};
static inline double slot_value(const std::vector<uint32_t> &slots, size_t slot, size_t k) {
    return of_bf16((uint16_t)(slots[slot * slot_words + k / 2] >> 16 * (k % 2)));
}

/* --- times ------------------------------------------------------------------------------------ */
#ifndef WF_EMULATOR_CUDA_RUNTIME_H
/* Of one of `launches` launches, launch(0) and so on. */
template <class F> static double median_us(int launches, F launch) {
    enum { repeats = 21 };
    std::vector<float> times;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int k = 0; k < repeats + 2; k++) {
        float ms;
        check(cudaEventRecord(begin, stream), "event");
        for (int i = 0; i < launches; i++) launch(i);
        check(cudaEventRecord(end, stream), "event");
        check(cudaEventSynchronize(end), "kernel");
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        if (k >= 2) times.push_back(ms);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / launches;
}
#endif

} // namespace edge
#endif
