/* optim_cuda: clipping, AdamW, Muon and EMA as kernels over flat arrays.
 *
 *   squares   sum of squares of the gradient, one double per CTA
 *   decide    one CTA: norm and loss from the partial sums, whether they are finite, scalars and
 *             record of this update, number of the next
 *   first     pieces of at most 1024: AdamW with EMA; or, for Muon's matrices, momentum and the
 *             start of Newton-Schulz (muon_cuda.cu: one launch, or 15)
 *   second    Muon's parameters and EMA
 * AdamW reads 20 bytes a parameter and writes 16, squares reads 4: bound by bandwidth, for fields
 * of a few million parameters by latency. */
#include "nn/cuda/muon_cuda.cuh"

#include "base/comm.h"
#include "base/cuda/device.cuh"

#include <stdlib.h>
#include <string.h>
#include <vector>

#include "nn/cuda/optim_cuda.h"

namespace {

enum { threads = 256, piece_size = 1024, square_ctas = 1056, ring = 4096 };

/* State of the kernels of one update, in device memory. */
struct control {
    uint32_t update; /* number of the next update */
    int go;          /* this update is made */
    int stopped;     /* no further update is made */
    int improved;    /* the loss is the lowest so far */
    double best_loss;
    wf_pace pace;
    float scale, ema, ema_rest;       /* clipping; decay and 1 - decay */
    float rate, root;                 /* AdamW: rate / correct1, 1 / sqrt(correct2) */
    float keep, muon_keep, muon_rate; /* keep: where decay applies */
};

struct settings {
    wf_optim_desc optim;
    wf_schedule schedule;
};

/* At most `piece_size` parameters of AdamW (matrix < 0) or of one of Muon's matrices. */
struct piece {
    uint32_t offset, count;
    int matrix;
    uint32_t inside; /* position of the first one in the matrix */
    int part;        /* index among the matrix's sums of squares */
    bool decay;
};

struct arrays {
    float *params;
    const float *grad;
    float *first, *second, *ema, *best;
};

/* Sum over the CTA in fixed order, in thread 0. */
__device__ double cta_sum(double value) {
    __shared__ double warp_sum[threads / 32];
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(~0u, value, lane);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0)
        for (int k = 0; k < threads / 32; k++) sum += warp_sum[k];
    return sum;
}

__global__ void __launch_bounds__(threads) squares(const float *grad, size_t n, double *partial) {
    double sum = 0;
    for (size_t i = blockIdx.x * (size_t)threads + threadIdx.x; i < n;
         i += (size_t)square_ctas * threads)
        sum += (double)grad[i] * (double)grad[i];
    sum = cta_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__device__ void set_scalars(const settings &s, control *c, double norm, double factor) {
    const wf_optim_desc &d = s.optim;
    double n = (double)c->update + 1, rate = d.lr * factor;
    c->scale = (float)(d.clip > 0 ? fmin(1.0, d.clip / (norm + 1e-6)) : 1);
    double ema = wf_ema_decay(d.ema, c->update);
    c->ema = (float)ema;
    c->ema_rest = (float)(1 - ema);
    c->rate = (float)(rate / (1 - pow(d.beta1, n)));
    c->root = (float)(1 / sqrt(1 - pow(d.beta2, n)));
    c->keep = (float)(1 - rate * d.weight_decay);
    c->muon_rate = (float)(d.muon_lr * factor);
    c->muon_keep = (float)(1 - d.muon_lr * factor * d.weight_decay);
}

__global__ void __launch_bounds__(threads)
    decide(settings s, control *c, const double *partial, const double *terms, int n_terms,
           wf_update_record *records) {
    double sum = 0, loss = 0;
    for (int i = threadIdx.x; i < square_ctas; i += threads) sum += partial[i];
    for (int i = threadIdx.x; i < n_terms; i += threads) loss += terms[i];
    sum = cta_sum(sum);
    loss = cta_sum(loss);
    if (threadIdx.x > 0) return;
    c->go = 0;
    if (c->stopped) return;
    double norm = sqrt(sum),
           factor = wf_schedule_factor(&s.schedule, wf_pace_position(&c->pace, c->update));
    bool made = isfinite(loss) && isfinite(norm);
    records[c->update % ring] = {loss, norm, factor, c->update, made};
    if (!made) {
        c->stopped = 1;
        return;
    }
    set_scalars(s, c, norm, factor);
    c->go = 1;
    c->improved = loss < c->best_loss;
    if (c->improved) c->best_loss = loss;
    c->update++;
}

__device__ void update_ema(const control &c, const arrays &a, size_t at, float value) {
    if (a.ema != NULL) a.ema[at] = c.ema * a.ema[at] + c.ema_rest * value;
}

/* torch.optim.AdamW, as in nn/cpu/optim_cpu.c. */
__device__ void adamw(const settings &s, const control &c, const arrays &a, const piece &p) {
    float beta1 = (float)s.optim.beta1, rest1 = (float)(1 - s.optim.beta1);
    float beta2 = (float)s.optim.beta2, rest2 = (float)(1 - s.optim.beta2);
    float eps = (float)s.optim.eps, keep = p.decay ? c.keep : 1;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < p.count; i += threads) {
        size_t at = p.offset + i;
        float gradient = c.scale * a.grad[at], value = a.params[at];
        if (a.best != NULL && c.improved) a.best[at] = value;
        float m = beta1 * a.first[at] + rest1 * gradient;
        float v = beta2 * a.second[at] + rest2 * gradient * gradient;
        value = keep * value - c.rate * m / (sqrtf(v) * c.root + eps);
        a.first[at] = m;
        a.second[at] = v;
        a.params[at] = value;
        update_ema(c, a, at, value);
    }
}

template <class T> __device__ T from_float(float x);
template <> __device__ float from_float<float>(float x) { return x; }
template <> __device__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__global__ void __launch_bounds__(threads)
    first(settings s, const control *control_, arrays a, const piece *pieces,
          const wf_muon::matrix *matrices, T *y, double *sums) {
    control c = *control_;
    if (!c.go) return;
    piece p = pieces[blockIdx.x];
    if (p.matrix < 0) {
        adamw(s, c, a, p);
        return;
    }
    wf_muon::matrix m = matrices[p.matrix];
    float momentum = (float)s.optim.muon_momentum;
    double sum = 0;
    wf_muon::walk walk(m, p.inside + threadIdx.x, threads);
    for (uint32_t i = threadIdx.x; i < p.count; i += threads, walk.next()) {
        size_t at = p.offset + i;
        float gradient = c.scale * a.grad[at];
        float moved = momentum * a.first[at] + gradient;
        a.first[at] = moved;
        float direction = gradient + momentum * moved;
        y[walk.place()] = from_float<T>(direction);
        sum += (double)direction * (double)direction;
    }
    sum = cta_sum(sum);
    if (threadIdx.x == 0) sums[p.part] = sum;
}

/* Muon's pieces: p <- keep p - rate z. */
template <class T>
__global__ void __launch_bounds__(threads)
    second(const control *control_, arrays a, const piece *pieces, const wf_muon::matrix *matrices,
           const T *z) {
    control c = *control_;
    if (!c.go) return;
    piece p = pieces[blockIdx.x];
    wf_muon::matrix m = matrices[p.matrix];
    float keep = p.decay ? c.muon_keep : 1, rate = c.muon_rate * m.shape;
    wf_muon::walk walk(m, p.inside + threadIdx.x, threads);
    for (uint32_t i = threadIdx.x; i < p.count; i += threads, walk.next()) {
        size_t at = p.offset + i;
        float value = a.params[at];
        if (a.best != NULL && c.improved) a.best[at] = value;
        value = keep * value - rate * to_float(z[walk.place()]);
        a.params[at] = value;
        update_ema(c, a, at, value);
    }
}

} // namespace

struct wf_optim_cuda {
    wf_cuda_device *device; /* held */
    settings set;
    size_t params;
    bool fast;
    wf_optim_cuda_arrays arrays;
    control *state;
    double *partial;
    wf_update_record *records, *records_there; /* host, and the same seen from the device */
    piece *pieces;                             /* Muon's first */
    int n_pieces, n_muon;
    wf_muon::work muon;
    double *sums;
    wf_device_ranks *ranks; /* NULL: this one has all matrices */
    int n_ranks;
    size_t *shares;   /* [n_ranks + 1] where each rank's results begin, in bytes */
    void *memory[24]; /* everything on the device */
    int n_memory;
};

namespace {

/* --- tables ----------------------------------------------------------------------------------- */
struct tables {
    std::vector<piece> pieces;
    std::vector<wf_muon::matrix> matrices;
    std::vector<wf_muon::tile_place> square, tall;
    std::vector<int> inside[2];
    int inside_bytes[2] = {0, 0};
    int parts = 0;
    size_t y = 0, a = 0;
};

void add_pieces(tables *t, const wf_optim_tensor &tensor, int matrix) {
    uint32_t count = (uint32_t)tensor.rows * (uint32_t)tensor.cols;
    for (uint32_t done = 0; done < count; done += piece_size) {
        uint32_t part = count - done < piece_size ? count - done : (uint32_t)piece_size;
        t->pieces.push_back({(uint32_t)tensor.offset + done, part, matrix, done,
                             matrix < 0 ? 0 : t->parts++, tensor.decay});
    }
}

int padded(int n) { return (n + wf_muon::tile - 1) / wf_muon::tile * wf_muon::tile; }

/* own: this rank iterates it. */
void add_matrix(tables *t, const wf_optim_tensor &tensor, int shared_bytes, bool own) {
    wf_muon::matrix m = {};
    m.offset = (uint32_t)tensor.offset;
    m.rows = tensor.rows, m.cols = tensor.cols;
    m.transposed = tensor.rows < tensor.cols;
    m.n = padded(m.transposed ? tensor.cols : tensor.rows);
    m.r = padded(m.transposed ? tensor.rows : tensor.cols);
    m.shape = (float)sqrt(fmax(1, (double)tensor.rows / tensor.cols));
    m.y = (uint32_t)t->y, m.a = (uint32_t)t->a;
    m.first_part = t->parts;
    int index = (int)t->matrices.size();
    add_pieces(t, tensor, index);
    m.parts = t->parts - m.first_part;
    t->y += (size_t)m.n * (size_t)m.r;
    t->a += (size_t)m.r * (size_t)m.r;
    t->matrices.push_back(m);
    if (!own) return;
    if (int bytes = wf_muon::inside_bytes(m, shared_bytes)) {
        int kind = m.r == 64 ? 0 : 1;
        t->inside[kind].push_back(index);
        if (bytes > t->inside_bytes[kind]) t->inside_bytes[kind] = bytes;
        return;
    }
    for (int i = 0; i < m.n; i += wf_muon::tile)
        for (int j = 0; j < m.r; j += wf_muon::tile) {
            t->tall.push_back({index, i, j});
            if (i < m.r) t->square.push_back({index, i, j});
        }
}

/* shared_bytes: shared memory that a matrix of Muon may take; 0: none is iterated there. */
tables make_tables(const wf_ctx *ctx, const wf_optim_cuda_desc *desc, int shared_bytes) {
    tables t;
    size_t matrices = 0;
    for (int i = 0; i < desc->n_tensors; i++)
        matrices += desc->optim.muon && desc->tensors[i].matrix;
    wf_range own = desc->ranks != NULL ? wf_share(ctx, matrices) : wf_range{0, matrices};
    for (int i = 0; i < desc->n_tensors; i++)
        if (desc->optim.muon && desc->tensors[i].matrix) {
            size_t index = t.matrices.size();
            add_matrix(&t, desc->tensors[i], shared_bytes, index >= own.first && index < own.last);
        }
    /* Neighbours with equal decay are one range, cut into whole pieces. */
    wf_optim_tensor range = {};
    for (int i = 0; i < desc->n_tensors; i++) {
        const wf_optim_tensor &tensor = desc->tensors[i];
        bool adamw = !(desc->optim.muon && tensor.matrix);
        if (range.rows > 0 && (!adamw || tensor.decay != range.decay)) {
            add_pieces(&t, range, -1);
            range = wf_optim_tensor{};
        }
        if (!adamw) continue;
        if (range.rows == 0) range = {tensor.offset, 0, 1, false, tensor.decay};
        range.rows += tensor.rows * tensor.cols;
    }
    if (range.rows > 0) add_pieces(&t, range, -1);
    return t;
}

/* --- memory ----------------------------------------------------------------------------------- */
wf_status take(wf_ctx *ctx, wf_optim_cuda *o, size_t bytes, const void *from, void *place) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes + 16) != cudaSuccess) {
        cudaGetLastError();
        return wf_fail(ctx, WF_ERR_MEMORY, "optimiser: no GPU memory for its state (%zu bytes)",
                       bytes);
    }
    o->memory[o->n_memory++] = memory;
    memcpy(place, &memory, sizeof memory);
    if (from != NULL)
        WF_CUDA_TRY(
            ctx, cudaMemcpyAsync(memory, from, bytes, cudaMemcpyHostToDevice, o->device->stream));
    else WF_CUDA_TRY(ctx, cudaMemsetAsync(memory, 0, bytes + 16, o->device->stream));
    return WF_OK;
}

template <class T>
wf_status take_table(wf_ctx *ctx, wf_optim_cuda *o, const std::vector<T> &from, void *place) {
    return take(ctx, o, from.size() * sizeof(T), from.data(), place);
}

wf_status make_muon(wf_ctx *ctx, const wf_optim_cuda_desc *desc, wf_optim_cuda *o,
                    const tables &t) {
    size_t size = o->fast ? sizeof(__nv_bfloat16) : sizeof(float);
    WF_TRY(take(ctx, o, t.y * size, NULL, &o->muon.y));
    WF_TRY(take(ctx, o, t.y * size, NULL, &o->muon.z));
    WF_TRY(take(ctx, o, t.a * size, NULL, &o->muon.a));
    WF_TRY(take(ctx, o, t.a * size, NULL, &o->muon.q));
    WF_TRY(take(ctx, o, (size_t)t.parts * sizeof(double), NULL, &o->sums));
    WF_TRY(take_table(ctx, o, t.matrices, &o->muon.matrices));
    WF_TRY(take_table(ctx, o, t.square, &o->muon.square_tiles));
    WF_TRY(take_table(ctx, o, t.tall, &o->muon.tall_tiles));
    for (int k = 0; k < 2; k++) {
        WF_TRY(take_table(ctx, o, t.inside[k], &o->muon.inside[k]));
        o->muon.n_inside[k] = (int)t.inside[k].size();
        o->muon.inside_bytes[k] = t.inside_bytes[k];
    }
    WF_CUDA_TRY(ctx, wf_muon::prepare(o->muon));
    o->muon.n_square = (int)t.square.size();
    o->muon.n_tall = (int)t.tall.size();
    o->muon.squares = o->sums;
    o->muon.go = &o->state->go;
    for (const piece &p : t.pieces) o->n_muon += p.matrix >= 0;
    o->ranks = desc->ranks;
    o->n_ranks = wf_ctx_ranks(ctx);
    if (o->ranks == NULL) return WF_OK;
    WF_TRY(wf_alloc(ctx, (size_t)o->n_ranks + 1, sizeof *o->shares, "optimiser", &o->shares));
    for (int r = 0; r <= o->n_ranks; r++) {
        size_t first = wf_share_start(t.matrices.size(), r, o->n_ranks);
        o->shares[r] = (first < t.matrices.size() ? t.matrices[first].y : t.y) * size;
    }
    return WF_OK;
}

wf_status build(wf_ctx *ctx, const wf_optim_cuda_desc *desc, wf_optim_cuda *o) {
    size_t bytes = desc->params * sizeof(float);
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    o->device = wf_cuda_hold(device);
    o->set = {desc->optim, desc->schedule};
    o->params = desc->params;
    o->fast = desc->fast;
    WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.params));
    WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.grad));
    WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.first));
    WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.second));
    if (desc->optim.ema > 0) WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.ema));
    if (desc->best) WF_TRY(take(ctx, o, bytes, NULL, &o->arrays.best));
    WF_TRY(take(ctx, o, sizeof(control), NULL, &o->state));
    WF_TRY(take(ctx, o, square_ctas * sizeof(double), NULL, &o->partial));
    tables t = make_tables(ctx, desc, desc->fast ? device->shared_bytes : 0);
    WF_TRY(take_table(ctx, o, t.pieces, &o->pieces));
    o->n_pieces = (int)t.pieces.size();
    if (!t.matrices.empty()) WF_TRY(make_muon(ctx, desc, o, t));
    WF_CUDA_TRY(
        ctx, cudaHostAlloc((void **)&o->records, ring * sizeof *o->records, cudaHostAllocMapped));
    WF_CUDA_TRY(ctx, cudaHostGetDevicePointer((void **)&o->records_there, o->records, 0));
    /* before the tables on the host are freed */
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(o->device->stream));
    return WF_OK;
}

template <class T> wf_status launch_pieces(wf_ctx *ctx, wf_optim_cuda *o, const arrays &a) {
    first<T><<<o->n_pieces, threads, 0, o->device->stream>>>(
        o->set, o->state, a, o->pieces, o->muon.matrices, (T *)o->muon.y, o->sums);
    if (o->n_muon == 0) return WF_OK;
    T *z = (T *)wf_muon::orthogonalise(o->muon, o->fast, o->device->stream);
    if (o->ranks != NULL)
        WF_TRY(wf_device_ranks_gather(ctx, o->ranks, z, o->shares, o->device->stream));
    second<T>
        <<<o->n_muon, threads, 0, o->device->stream>>>(o->state, a, o->pieces, o->muon.matrices, z);
    return WF_OK;
}

} // namespace

extern "C" wf_status wf__optim_cuda_create(wf_ctx *ctx, const wf_optim_cuda_desc *desc,
                                           wf_optim_cuda **out) {
    *out = NULL;
    if (desc->params > UINT32_MAX)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "optimiser: %zu parameters are too many",
                       desc->params);
    wf_optim_cuda *o;
    WF_TRY(wf_alloc(ctx, 1, sizeof *o, "optimiser", &o));
    wf_status status =
        wf_gpu::without_exceptions(ctx, "optimiser", [&] { return build(ctx, desc, o); });
    if (status == WF_OK) *out = o;
    else wf__optim_cuda_free(o);
    return status;
}

extern "C" void wf__optim_cuda_free(wf_optim_cuda *o) {
    if (o == NULL) return;
    if (o->device != NULL) cudaStreamSynchronize(o->device->stream);
    for (int i = 0; i < o->n_memory; i++) cudaFree(o->memory[i]);
    cudaFreeHost(o->records);
    free(o->shares);
    wf_cuda_release(o->device);
    free(o);
}

extern "C" wf_optim_cuda_arrays wf__optim_cuda_arrays(const wf_optim_cuda *o) { return o->arrays; }

extern "C" wf_status wf__optim_cuda_start(wf_ctx *ctx, wf_optim_cuda *o, size_t update,
                                          double best_loss) {
    control start = {};
    start.update = (uint32_t)update;
    start.best_loss = best_loss;
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(o->state, &start, sizeof start, cudaMemcpyHostToDevice,
                                     o->device->stream));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(o->device->stream));
    return WF_OK;
}

extern "C" wf_status wf__optim_cuda_pace(wf_ctx *ctx, wf_optim_cuda *o, const wf_pace *pace) {
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(&o->state->pace, pace, sizeof *pace, cudaMemcpyHostToDevice,
                                     o->device->stream));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(o->device->stream));
    return WF_OK;
}

extern "C" const uint32_t *wf__optim_cuda_update(const wf_optim_cuda *o) {
    return &o->state->update;
}

extern "C" wf_status wf__optim_cuda_apply(wf_ctx *ctx, wf_optim_cuda *o, const double *terms,
                                          int n_terms) {
    arrays a = {o->arrays.params, o->arrays.grad, o->arrays.first,
                o->arrays.second, o->arrays.ema,  o->arrays.best};
    squares<<<square_ctas, threads, 0, o->device->stream>>>(a.grad, o->params, o->partial);
    decide<<<1, threads, 0, o->device->stream>>>(o->set, o->state, o->partial, terms, n_terms,
                                                 o->records_there);
    if (o->fast) WF_TRY(launch_pieces<__nv_bfloat16>(ctx, o, a));
    else WF_TRY(launch_pieces<float>(ctx, o, a));
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

extern "C" const volatile wf_update_record *wf__optim_cuda_records(const wf_optim_cuda *o,
                                                                   size_t *size) {
    *size = ring;
    return o->records;
}
