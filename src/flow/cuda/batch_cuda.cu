/* batch_cuda: one CTA per slice of a network.
 *
 * draw      The noise of the slice goes to shared memory first: a thread makes the four deviates of
 *           a Philox block at a time, because a relabelled deviate on its own would cost a whole
 *           block. Then neighbouring threads read w1 (4 bytes a parameter) and write x, wt, target
 *           (12), or w0 and w1 (8).
 * compare   reads f, wt, target and writes df: 16 bytes a parameter
 * measured  H200, 256 MNIST networks (6.8 M parameters): draw of w0 and w1 45 us (42 % of 4.3
 *           TB/s), interpolate 44 us (71 %), compare 33 us (75 %); 256 karhunen networks: 8.2, 5.5,
 *           6.1 us */
#include "flow/cuda/batch_cuda.cuh"
#include "flow/cuda/cta_sum.cuh"

namespace wf_batch_gpu {
namespace {

/* What all threads of a CTA know of their network. */
struct place_info {
    const float *w1;
    const relabel *blocks;
    int n_blocks;
    uint32_t n, start;
    uint32_t noise_network, noise_step; /* address of w0 */
    float t;
    wf_path_scales scale;
    wf_axes axes;
    const wf_loss_weight *loss_weights;
};

__device__ float draw_time(const batch &b, wf_rng *rng) {
    if (b.time_law == WF_TIME_UNIFORM) return wf_rng_uniform(rng);
    if (b.time_law == WF_TIME_LATE) return fmaxf(wf_rng_uniform(rng), wf_rng_uniform(rng));
    uint32_t first = wf_rng_u32(rng), second = wf_rng_u32(rng);
    float deviate, other;
    wf_box_muller(first, second, &deviate, &other);
    return 1 / (1 + wf_expf(-deviate));
}

__device__ place_info choose(const batch &b, uint32_t here, uint32_t update, uint32_t *chosen) {
    place_info info;
    uint32_t drawn = b.drawn[here], place = (uint32_t)b.first + here;
    uint32_t from =
        (uint32_t)(((uint64_t)update * (uint64_t)b.networks + drawn) % (uint32_t)b.round_length);
    source s = b.sources[from];
    family k = b.families[s.family];
    wf_rng rng = wf_rng_at(b.seed, drawn, WF_RNG_BATCH, update);
    uint32_t network = b.epochs
                           ? wf_epoch_network(b.seed, s.count, (uint32_t)b.networks, update, drawn)
                           : wf_rng_below(&rng, s.count);
    info.w1 = k.weights + ((size_t)s.first + network) * k.params;
    info.blocks = k.blocks;
    info.n_blocks = k.n_blocks;
    info.n = k.params;
    info.start = b.param_start[here];
    rng = wf_rng_at(b.seed, place, WF_RNG_TIME, update);
    info.t = draw_time(b, &rng);
    info.noise_network = place;
    info.noise_step = update;
    if (b.noise_table > 0) {
        info.noise_network =
            b.epochs ? wf_epoch_noise(b.seed, b.noise_table, (uint32_t)b.networks, update, place)
                     : wf_rng_below(&rng, b.noise_table);
        info.noise_step = UINT32_MAX;
    }
    info.scale = wf_path_at(&b.path, 1, (double)info.t);
    info.axes = k.axes;
    info.loss_weights = k.loss_weights;
    *chosen = from;
    return info;
}

/* The relabelling that w1 is read with, and its flipped units, into shared memory. */
__device__ void draw_relabelling(const batch &b, const place_info &info, uint32_t place,
                                 uint32_t update, uint32_t *from) {
    for (int i = 0; i < info.n_blocks; i++) {
        relabel k = info.blocks[i];
        if (k.dst < 0) continue;
        uint32_t n = k.count / (uint32_t)(k.n_src * k.coef);
        wf_rng order =
            wf_relabel_order(b.seed, place, (uint32_t)b.networks, update, (uint32_t)k.dst);
        for (uint32_t u = threadIdx.x; u < n; u += threads)
            from[k.dst + u] = (b.relabel ? wf_rng_permuted(&order, n, u) : u) |
                              (b.signs && wf_random_flip(b.seed, place, update, (uint32_t)k.dst + u)
                                   ? flipped_unit
                                   : 0);
    }
}

/* Where a network of the batch is on its path. */
struct on_path {
    uint32_t place, update, start, n;
    float t;
    wf_path_scales scale;
    wf_axes axes;
};

/* The interpolation of its parameter `at`. */
__device__ void put(const batch &b, const on_path &p, uint32_t at, float w0, float w1) {
    size_t to = (size_t)p.start + at;
    float wt = (1 - p.t) * w0 + p.t * w1;
    if (b.path_noise > 0)
        wt += b.path_noise * deviate(b.seed, p.place, WF_RNG_NOISE, p.update, p.n + at);
    b.wt[to] = wt;
    b.target[to] = w1 - w0;
    b.x[to] = wf_axes_at(&p.axes, &b.path, p.scale, (double)p.t, at).in * wt;
}

__global__ void __launch_bounds__(threads) draw_kernel(batch b) {
    extern __shared__ uint32_t from[]; /* relabellings of its noise, and of itself after it */
    __shared__ float noise[slice];     /* w0 of this slice before scaling */
    __shared__ place_info shared;
    __shared__ uint32_t chosen;
    uint32_t here = blockIdx.y, place = (uint32_t)b.first + here, update = *b.update;
    if (threadIdx.x == 0) shared = choose(b, here, update, &chosen);
    if (b.relabelling != NULL) {
        const uint32_t *there =
            b.relabelling + ((size_t)(update % b.ring) * b.networks + place) * b.units;
        for (uint32_t u = threadIdx.x; u < b.units; u += threads) from[u] = there[u];
    }
    __syncthreads();
    place_info info = shared;
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            b.t[here] = info.t;
            b.scale[here] = info.scale;
            b.axes[here] = info.axes;
            b.loss_weights[here] = info.loss_weights;
            if (b.cond_size > 0) {
                wf_rng rng = wf_rng_at(b.seed, place, WF_RNG_DROP, update);
                b.drop[here] = wf_rng_uniform(&rng) < b.cond_drop;
            }
        }
        for (int k = threadIdx.x; k < b.cond_size; k += threads)
            b.cond[here * b.cond_size + k] = b.conds[chosen * b.cond_size + k];
    }
    if (b.most_units > 0) draw_relabelling(b, info, place, update, from + b.units);
    uint32_t first = blockIdx.x * slice;
    if (first >= info.n) return;
    uint32_t count = min(info.n - first, (uint32_t)slice);
    if (b.relabelling == NULL) {
        for (uint32_t i = 4 * threadIdx.x; i < count; i += 4 * threads)
            four_deviates(b.seed, info.noise_network, WF_RNG_NOISE, info.noise_step,
                          (first + i) / 4, noise + i);
    } else {
        for (uint32_t i = threadIdx.x; i < count; i += threads)
            noise[i] = deviate(b.seed, info.noise_network, WF_RNG_NOISE, info.noise_step,
                               relabelled(info.blocks, info.n_blocks, from, first + i));
    }
    __syncthreads();
    on_path path = {place, update, info.start, info.n, info.t, info.scale, info.axes};
    for (uint32_t i = threadIdx.x; i < count; i += threads) {
        uint32_t at = first + i;
        size_t to = (size_t)info.start + at;
        float w0 = noise[i];
        bool flipped = false;
        uint32_t source = at;
        if (b.most_units > 0)
            source = relabelled(info.blocks, info.n_blocks, from + b.units, at, &flipped);
        float w1 = flipped ? -info.w1[source] : info.w1[source];
        if (b.source_std != 1) w0 *= b.source_std;
        if (b.w0 != NULL) b.w0[to] = w0, b.w1[to] = w1;
        else put(b, path, at, w0, w1);
    }
}

__global__ void __launch_bounds__(threads) interpolate_kernel(batch b) {
    uint32_t here = blockIdx.y, place = (uint32_t)b.first + here, update = *b.update;
    uint32_t start = b.param_start[here], n = b.param_start[here + 1] - start;
    uint32_t end = min(n, (blockIdx.x + 1) * (uint32_t)slice);
    on_path path = {place, update, start, n, b.t[here], b.scale[here], b.axes[here]};
    for (uint32_t i = blockIdx.x * slice + threadIdx.x; i < end; i += threads)
        put(b, path, i, b.matched[(size_t)start + i], b.w1[(size_t)start + i]);
}

__global__ void __launch_bounds__(threads) compare_kernel(batch b) {
    uint32_t here = blockIdx.y, start = b.param_start[here];
    uint32_t n = b.param_start[here + 1] - start;
    uint32_t end = min(n, (blockIdx.x + 1) * (uint32_t)slice);
    wf_path_scales others = b.scale[here];
    wf_axes axes = b.axes[here];
    const wf_loss_weight *entry = b.loss_weights[here];
    double t = (double)b.t[here];
    float slope = (float)(2.0 / ((double)n * b.networks));
    double sum = 0;
    for (uint32_t i = blockIdx.x * slice + threadIdx.x; i < end; i += threads) {
        size_t at = (size_t)start + i;
        wf_path_scales s = wf_axes_at(&axes, &b.path, others, t, i);
        while (i >= entry->end) entry++;
        float v = s.skip * b.wt[at] + s.out * b.f[at];
        float difference = v - b.target[at];
        b.df[at] = slope * entry->weight * s.out * difference;
        sum += (double)entry->weight * (double)difference * (double)difference;
    }
    sum = cta_sum<threads>(sum);
    if (threadIdx.x > 0) return;
    b.terms[((uint32_t)b.first + here) * gridDim.x + blockIdx.x] = sum / (double)n / b.networks;
}

__global__ void __launch_bounds__(threads)
    normals_kernel(uint64_t seed, uint32_t first, uint32_t purpose, uint32_t step, float std,
                   float *out, size_t n) {
    uint32_t row = blockIdx.y, block = blockIdx.x * threads + threadIdx.x;
    if ((size_t)block * 4 >= n) return;
    float four[4];
    four_deviates(seed, first + row, purpose, step, block, four);
    for (int k = 0; k < 4 && (size_t)block * 4 + k < n; k++)
        out[row * n + (size_t)block * 4 + k] = four[k] * std;
}

} // namespace

void draw(const batch &b, cudaStream_t stream) {
    size_t bytes = (b.units + b.most_units) * sizeof(uint32_t);
    draw_kernel<<<dim3((unsigned)b.slices, (unsigned)b.own), threads, bytes, stream>>>(b);
}

void interpolate(const batch &b, cudaStream_t stream) {
    interpolate_kernel<<<dim3((unsigned)b.slices, (unsigned)b.own), threads, 0, stream>>>(b);
}

void compare(const batch &b, cudaStream_t stream) {
    compare_kernel<<<dim3((unsigned)b.slices, (unsigned)b.own), threads, 0, stream>>>(b);
}

void normals(uint64_t seed, uint32_t first, uint32_t purpose, uint32_t step, float std, float *out,
             size_t rows, size_t n, cudaStream_t stream) {
    unsigned blocks = (unsigned)((n + 4 * threads - 1) / (4 * threads));
    normals_kernel<<<dim3(blocks, (unsigned)rows), threads, 0, stream>>>(seed, first, purpose, step,
                                                                         std, out, n);
}

} // namespace wf_batch_gpu
