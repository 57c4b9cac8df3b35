/* wcs_cuda: the largest matched cosine of queries over references, on the GPU.
 *
 *     references come in slabs, queries in tiles; for a tile x slab of pairs
 *       product       fixed scores of orbit o: (depth, queries*n)' x (depth, references*n),
 *                     match_product.cu
 *       match_pairs   the sweeps (match_solve.cu), a cosine per pair
 *       wcs_reduce    the largest cosine of each query so far; of equal ones the lowest reference
 *                     counts
 * Measured on an H200 (ncu), 300 against 300 networks 784-32-32-10: products 3.3 ms, match_pairs
 * 6.1 ms, wcs_reduce 4 us (360 KB read: latency). match_product.cu and match_solve.cu say what
 * binds the two that count. */
#include "align/cuda/match_gpu.cuh"
#include "align/cuda/match_product.cuh"
#include "base/backlog.h"

extern "C" {
#include "align/cuda/match_cuda.h"
}

#include <algorithm>
#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { tile = WF_GPU_TILE, threads = 256 };
enum { most_queries = 1024, most_references = 4096, fewest_references = 64 };
constexpr size_t slab_bytes = (size_t)512 << 20, score_bytes = (size_t)1 << 30;

/* One block per query; the candidates of a slab come after those of earlier ones. */
__global__ void wcs_reduce(const float *cosine, int references, uint32_t first, float *best,
                           uint32_t *which) {
    __shared__ float values[threads];
    __shared__ uint32_t places[threads];
    const float *row = cosine + (size_t)blockIdx.x * references;
    float value = -INFINITY;
    uint32_t place = UINT32_MAX;
    for (int r = threadIdx.x; r < references; r += threads)
        if (row[r] > value) value = row[r], place = (uint32_t)r;
    values[threadIdx.x] = value, places[threadIdx.x] = place;
    for (int step = threads / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x >= step) continue;
        float other = values[threadIdx.x + step];
        uint32_t there = places[threadIdx.x + step];
        bool later = other < values[threadIdx.x] ||
                     (other == values[threadIdx.x] && there > places[threadIdx.x]);
        if (!later) values[threadIdx.x] = other, places[threadIdx.x] = there;
    }
    if (threadIdx.x != 0 || !(values[0] > best[blockIdx.x])) return;
    best[blockIdx.x] = values[0];
    which[blockIdx.x] = first + places[0];
}

__global__ void fill_best(float *best, uint32_t *which, int count) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) best[i] = -INFINITY, which[i] = 0;
}

/* Networks on the device: as they came, and packed. */
struct packed_networks {
    size_t most; /* networks */
    float *raw, *links;
    double *squares;
    float *fixed[WF_GPU_ORBITS];
    size_t ld[WF_GPU_ORBITS];
};

struct wcs_call {
    wf_ctx *ctx;
    wf_gpu_plan plan;
    const float *queries, *refs;
    size_t nq, nr;
    const int64_t *skip;
    size_t tile_queries;
    wf_backlog backlog; /* of four queries */
    packed_networks query, reference;
    float *scores[WF_GPU_ORBITS];
    float *cosine; /* (tile_queries, slab) */
    int64_t *gpu_skip;
    float *best;
    uint32_t *which;
    double *checked; /* host: sums of squares of a slab */
    wf_meter meter;
    double done;
};

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

size_t padded_depth(const wf_gpu_orbit &orbit) {
    return round_up(orbit.depth < 1 ? 1 : (size_t)orbit.depth, WF_GPU_STEP);
}

template <typename T> wf_status take(wf_ctx *ctx, size_t count, T **out) {
    WF_CUDA_TRY(ctx, cudaMalloc(out, (count + 1) * sizeof(T)));
    return WF_OK;
}

/* A tile may begin at any multiple of 4 networks, so whole tiles of columns must lie after the
 * last one. */
wf_status packed_open(wf_ctx *ctx, const wf_gpu_shape &shape, size_t most,
                      packed_networks *packed) {
    packed->most = most;
    WF_TRY(take(ctx, most * shape.n_params, &packed->raw));
    WF_TRY(take(ctx, most * shape.link_floats, &packed->links));
    WF_TRY(take(ctx, most, &packed->squares));
    for (int o = 0; o < shape.n_orbits; o++) {
        const wf_gpu_orbit &orbit = shape.orbits[o];
        packed->ld[o] = round_up(most * orbit.n, tile) + tile;
        size_t floats = padded_depth(orbit) * packed->ld[o];
        WF_TRY(take(ctx, floats, &packed->fixed[o]));
        WF_CUDA_TRY(ctx, cudaMemset(packed->fixed[o], 0, floats * sizeof(float)));
    }
    return WF_OK;
}

void packed_close(packed_networks *packed) {
    cudaFree(packed->raw);
    cudaFree(packed->links);
    cudaFree(packed->squares);
    for (float *fixed : packed->fixed) cudaFree(fixed);
}

/* Networks first..first+count of `from` to the device, checked and packed. */
wf_status packed_fill(wcs_call *call, packed_networks *packed, const float *from, size_t first,
                      size_t count, const char *what) {
    wf_ctx *ctx = call->ctx;
    const wf_gpu_shape &shape = call->plan.shape;
    size_t params = (size_t)shape.n_params;
    WF_CUDA_TRY(ctx, cudaMemcpy(packed->raw, from + first * params, count * params * sizeof(float),
                                cudaMemcpyHostToDevice));
    WF_TRY(wf_gpu_squares(ctx, packed->raw, count, params, packed->squares, 0));
    WF_TRY(wf_gpu_pack_links(ctx, shape, packed->raw, count, packed->links, 0));
    for (int o = 0; o < shape.n_orbits; o++) {
        const wf_gpu_orbit &orbit = shape.orbits[o];
        WF_TRY(wf_gpu_pack(ctx, shape.terms + orbit.first_term, orbit.depth, orbit.n, packed->raw,
                           count, params, packed->fixed[o], packed->ld[o], 0));
    }
    WF_CUDA_TRY(ctx, cudaMemcpy(call->checked, packed->squares, count * sizeof(double),
                                cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++)
        if (!wf_gpu_usable(call->checked[i]))
            return wf_fail(ctx, WF_ERR_INPUT,
                           "matching: %s network %zu has weights that are not finite or far too "
                           "large; weft zoo filter --finite leaves such networks out",
                           what, first + i);
    return WF_OK;
}

wf_status wcs_open(wcs_call *call, const wf_graph *graph, const wf_match_desc *desc) {
    wf_ctx *ctx = call->ctx;
    WF_TRY(wf_gpu_plan_open(ctx, graph, desc, &call->plan));
    const wf_gpu_shape &shape = call->plan.shape;
    size_t each = 0, slab = slab_bytes / (graph->n_params * sizeof(float));
    slab = std::clamp(slab, (size_t)fewest_references, (size_t)most_references);
    slab = std::min(slab, round_up(call->nr, 4));
    for (int o = 0; o < shape.n_orbits; o++)
        each += (size_t)shape.orbits[o].n * (size_t)shape.orbits[o].n * sizeof(float);
    size_t queries = std::min(round_up(call->nq, 4), (size_t)most_queries);
    call->tile_queries = score_bytes / (slab * each) / 4 * 4;
    call->tile_queries = std::clamp(call->tile_queries, (size_t)4, queries);
    WF_TRY(packed_open(ctx, shape, queries, &call->query));
    WF_TRY(packed_open(ctx, shape, slab, &call->reference));
    for (int o = 0; o < shape.n_orbits; o++) {
        size_t rows = round_up(call->tile_queries * shape.orbits[o].n, tile);
        WF_TRY(take(ctx, rows * call->reference.ld[o], &call->scores[o]));
    }
    WF_TRY(take(ctx, call->tile_queries * slab, &call->cosine));
    WF_TRY(take(ctx, queries, &call->gpu_skip));
    WF_TRY(take(ctx, queries, &call->best));
    WF_TRY(take(ctx, queries, &call->which));
    return wf_alloc(ctx, std::max(queries, slab), sizeof(double), "matching", &call->checked);
}

void wcs_close(wcs_call *call) {
    packed_close(&call->query);
    packed_close(&call->reference);
    for (float *scores : call->scores) cudaFree(scores);
    cudaFree(call->cosine);
    cudaFree(call->gpu_skip);
    cudaFree(call->best);
    cudaFree(call->which);
    free(call->checked);
    wf_gpu_plan_close(&call->plan);
}

/* Queries q0..q0+queries of the slab on the device against the references there, whose first is
 * `first`. */
wf_status wcs_tile(wcs_call *call, size_t q0, size_t queries, size_t first, size_t references) {
    wf_ctx *ctx = call->ctx;
    const wf_gpu_shape &shape = call->plan.shape;
    wf_gpu_match_args args = {};
    for (int o = 0; o < shape.n_orbits; o++) {
        const wf_gpu_orbit &orbit = shape.orbits[o];
        size_t ld = call->reference.ld[o], n = (size_t)orbit.n;
        WF_TRY(wf_gpu_product(ctx, call->query.fixed[o] + q0 * n, call->query.ld[o],
                              call->reference.fixed[o], ld, (int)padded_depth(orbit),
                              call->scores[o], ld, queries * n, references * n, 0));
        args.scores[o] = wf_gpu_scores{call->scores[o], n * ld, n, ld};
    }
    WF_CUDA_TRY(ctx, cudaGetLastError());
    args.query_links = call->query.links + q0 * shape.link_floats;
    args.query_link_step = (size_t)shape.link_floats;
    args.reference_links = call->reference.links;
    args.queries = (int)queries, args.references = (int)references;
    args.cosine = call->cosine;
    args.query_squares = call->query.squares + q0;
    args.reference_squares = call->reference.squares;
    args.skip = call->skip == NULL ? NULL : call->gpu_skip + q0;
    args.first_reference = (int64_t)first;
    WF_TRY(wf_gpu_match(ctx, shape, args, 0));
    wcs_reduce<<<(unsigned)queries, threads>>>(call->cosine, (int)references, (uint32_t)first,
                                               call->best + q0, call->which + q0);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(0));
    call->done += (double)queries * (double)references;
    wf_meter_update(&call->meter, call->done, NULL);
    if (wf_interrupted(ctx))
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while matching networks");
    return WF_OK;
}

/* All references for `queries` queries from q0 on; results into best and which. */
wf_status wcs_slab(wcs_call *call, size_t q0, size_t queries, float *best, uint32_t *which) {
    wf_ctx *ctx = call->ctx;
    WF_TRY(packed_fill(call, &call->query, call->queries, q0, queries, "query"));
    if (call->skip != NULL)
        WF_CUDA_TRY(ctx, cudaMemcpy(call->gpu_skip, call->skip + q0, queries * sizeof(int64_t),
                                    cudaMemcpyHostToDevice));
    fill_best<<<(unsigned)(queries + 255) / 256, 256>>>(call->best, call->which, (int)queries);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    for (size_t first = 0; first < call->nr; first += call->reference.most) {
        size_t count = std::min(call->reference.most, call->nr - first);
        WF_TRY(packed_fill(call, &call->reference, call->refs, first, count, "reference"));
        for (size_t q = 0, some; q < queries; q += some) {
            /* Whole fours: a tile begins at an aligned place. */
            some = wf_backlog_next(&call->backlog, call->tile_queries / 4) * 4;
            some = std::min({some, call->tile_queries, queries - q});
            double start = wf_seconds();
            WF_TRY(wcs_tile(call, q, some, first, count));
            wf_backlog_took(&call->backlog, (some + 3) / 4, wf_seconds() - start);
        }
    }
    WF_CUDA_TRY(ctx,
                cudaMemcpy(best + q0, call->best, queries * sizeof(float), cudaMemcpyDeviceToHost));
    WF_CUDA_TRY(ctx, cudaMemcpy(which + q0, call->which, queries * sizeof(uint32_t),
                                cudaMemcpyDeviceToHost));
    return WF_OK;
}

wf_status wcs_run(wcs_call *call, float *best, uint32_t *which) {
    double pairs = (double)call->nq * (double)call->nr;
    call->meter = wf_meter_start(call->ctx, "matching networks", "pairs", pairs);
    for (size_t q = 0; q < call->nq; q += call->query.most)
        WF_TRY(wcs_slab(call, q, std::min(call->query.most, call->nq - q), best, which));
    wf_meter_end(&call->meter, pairs, NULL);
    return WF_OK;
}

} // namespace

extern "C" wf_status wf_wcs_max_cuda(wf_ctx *ctx, const wf_graph *graph, const float *queries,
                                     size_t nq, const float *refs, size_t nr, const int64_t *skip,
                                     const wf_match_desc *desc, float *best, uint32_t *which) {
    wcs_call call = {};
    call.ctx = ctx;
    call.queries = queries, call.refs = refs;
    call.nq = nq, call.nr = nr;
    call.skip = skip;
    wf_status status = wcs_open(&call, graph, desc);
    if (status == WF_OK) status = wcs_run(&call, best, which);
    wcs_close(&call);
    return status;
}
