/* match_cuda: the tables of the GPU matching, and pairs matched from device memory to device
 * memory.
 *
 * A call for pairs is four kernels: link records of both sides, fixed scores, the sweeps
 * (match_solve.cu), the permutation.
 *   fixed scores   one block per orbit and pair: fixed[r][u] = sum_k a[k][r] b[k][u], k in order,
 *                  tiles of 32 k through shared memory; 2 n^2 depth FLOP and 8 n depth bytes a pair
 *                  and orbit (MNIST: 1.6 MFLOP, 200 KB)
 * 256 pairs, two sweeps, on an H200: 43 us (64-16-8-10), 253 us (784-32-32-10: sweeps 163, fixed
 * scores 61). Latency binds: a pair is one warp, so beside other work it costs next to nothing. */
#include "align/cuda/match_gpu.cuh"
#include "base/backlog.h"

extern "C" {
#include "align/cuda/match_cuda.h"
}

#include <stdlib.h>
#include <string.h>

enum { most_orders = 1 << 20, depth_tile = 32, score_threads = 128 };

/* --- tables ----------------------------------------------------------------------------------- */

extern "C" bool wf_match_cuda_fits(const wf_graph *graph, const wf_match_desc *desc) {
    if (graph->n_orbits < 1 || graph->n_orbits > WF_GPU_ORBITS || graph->n_blocks > WF_GPU_BLOCKS ||
        graph->n_params > INT32_MAX)
        return false;
    int links = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        links += 2 * (graph->groups[graph->blocks[b].src].orbit >= 0 &&
                      graph->groups[graph->blocks[b].dst].orbit >= 0);
        if (!wf__block_matched(graph, b)) return false;
    }
    for (int o = 0; o < graph->n_orbits; o++)
        if (wf__orbit_has_loop(graph, o)) return false;
    if (links > WF_GPU_LINKS) return false;
    for (int o = 0; o < graph->n_orbits; o++)
        if (wf__orbit_size(graph, o) > WF_GPU_WIDEST) return false;
    double orders = ((double)desc->restarts + 1) * desc->sweeps * graph->n_orbits;
    double starts = ((double)desc->restarts + 1) * (double)wf_graph_perm_size(graph);
    return orders <= most_orders && starts <= most_orders;
}

/* Host copies of the tables, one after another as they will lie on the device. */
typedef struct host_tables {
    int2 *terms;
    int *rest_at;
    uint8_t *order, *begin;
    uint8_t *memory;
    size_t bytes;
} host_tables;

static void add_side(wf_gpu_shape *shape, int o, const wf_block_side *at, bool counted,
                     int2 *terms) {
    wf_gpu_orbit *orbit = &shape->orbits[o];
    if (at->other_orbit >= 0) {
        wf_gpu_link *link = &shape->links[shape->n_links++];
        *link = wf_gpu_link{};
        link->orbit = o, link->other = at->other_orbit;
        link->n = orbit->n, link->n8 = orbit->n8;
        link->others = at->n_other, link->coef = at->coef, link->depth = at->n_other * at->coef;
        link->start = shape->link_floats;
        link->offset = (int)at->offset;
        link->unit_step = (int)at->unit_step, link->other_step = (int)at->other_step;
        link->counted = counted;
        shape->link_floats += link->depth * link->n8;
        orbit->n_links++;
        return;
    }
    for (int x = 0; x < at->n_other; x++)
        for (int k = 0; k < at->coef; k++) {
            int2 *term = &terms[orbit->first_term + orbit->depth++];
            term->x = (int)(at->offset + (size_t)x * at->other_step + (size_t)k);
            term->y = (int)at->unit_step;
        }
}

static void fill_shape(const wf_graph *graph, wf_gpu_shape *shape, host_tables *host) {
    int terms = 0;
    for (int o = 0; o < shape->n_orbits; o++) {
        wf_gpu_orbit *orbit = &shape->orbits[o];
        orbit->n = wf__orbit_size(graph, o);
        orbit->n8 = (orbit->n + 7) / 8 * 8;
        orbit->start = (int)wf_graph_perm_start(graph, o);
        orbit->first_link = shape->n_links;
        orbit->first_term = terms;
        if (orbit->n > shape->widest) shape->widest = orbit->n;
        for (int block = 0; block < graph->n_blocks; block++)
            for (int s = 0; s < WF_SIDES; s++) {
                wf_block_side at = wf__block_side(graph, block, s);
                if (at.orbit == o) add_side(shape, o, &at, s == WF_SIDE_DST, host->terms);
            }
        terms += orbit->depth;
    }
    shape->rest = shape->link_floats;
    for (int block = 0; block < graph->n_blocks; block++) {
        wf_block_side at = wf__block_side(graph, block, WF_SIDE_DST);
        if (at.orbit >= 0 || at.other_orbit >= 0) continue;
        for (size_t i = 0; i < graph->blocks[block].count; i++)
            host->rest_at[shape->n_rest++] = (int)(graph->blocks[block].offset + i);
    }
    /* Records stay aligned for reads of four floats. */
    shape->link_floats = (shape->rest + shape->n_rest + 3) / 4 * 4;
}

static wf_status fill_orders(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                             const wf_gpu_shape *shape, host_tables *host) {
    uint32_t *drawn = NULL;
    size_t units = (size_t)shape->n_units, orbits = (size_t)shape->n_orbits;
    WF_TRY(wf_alloc(ctx, units + orbits, sizeof *drawn, "matching", &drawn));
    for (int restart = 0; restart <= desc->restarts; restart++) {
        wf__match_start(graph, desc->seed, (uint32_t)restart, drawn);
        for (size_t i = 0; i < units; i++)
            host->begin[(size_t)restart * units + i] = (uint8_t)drawn[i];
        for (int sweep = 0; sweep < desc->sweeps; sweep++) {
            uint32_t *order = drawn + units;
            wf__match_order(graph, desc->seed, (uint32_t)restart, (uint32_t)sweep, order);
            uint8_t *place = host->order + ((size_t)restart * desc->sweeps + sweep) * orbits;
            for (size_t i = 0; i < orbits; i++) place[i] = (uint8_t)order[i];
        }
    }
    free(drawn);
    return WF_OK;
}

static wf_status fill_tables(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                             wf_gpu_plan *plan, host_tables *host) {
    wf_gpu_shape *shape = &plan->shape;
    size_t runs = (size_t)desc->restarts + 1, params = graph->n_params;
    size_t terms = 2 * params * sizeof(int2), rest = params * sizeof(int);
    size_t order = runs * desc->sweeps * graph->n_orbits, begin = runs * shape->n_units;
    host->bytes = terms + rest + order + begin;
    WF_TRY(wf_alloc(ctx, host->bytes, 1, "matching", &host->memory));
    host->terms = (int2 *)host->memory;
    host->rest_at = (int *)(host->memory + terms);
    host->order = host->memory + terms + rest;
    host->begin = host->order + order;
    fill_shape(graph, shape, host);
    WF_TRY(fill_orders(ctx, graph, desc, shape, host));
    WF_CUDA_TRY(ctx, cudaMalloc(&plan->tables, host->bytes));
    WF_CUDA_TRY(ctx, cudaMemcpy(plan->tables, host->memory, host->bytes, cudaMemcpyHostToDevice));
    uint8_t *device = (uint8_t *)plan->tables;
    shape->terms = (const int2 *)device;
    shape->rest_at = (const int *)(device + terms);
    shape->order = device + terms + rest;
    shape->begin = device + terms + rest + order;
    return WF_OK;
}

wf_status wf_gpu_plan_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           wf_gpu_plan *out) {
    *out = wf_gpu_plan{};
    WF_TRY(wf__match_check(ctx, desc));
    if (!wf_match_cuda_fits(graph, desc))
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: %s is matched on the CPU: the GPU takes 1 to %d hidden layers "
                       "of at most %d units with weights, kernels and biases alone",
                       graph->text, WF_GPU_ORBITS, WF_GPU_WIDEST);
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    wf_gpu_shape *shape = &out->shape;
    shape->shared_bytes = device->shared_bytes;
    shape->n_orbits = graph->n_orbits;
    shape->n_units = (int)wf_graph_perm_size(graph);
    shape->n_params = (int)graph->n_params;
    shape->sweeps = desc->sweeps;
    shape->restarts = desc->restarts;
    shape->tolerance = desc->tolerance;
    host_tables host = {};
    wf_status status = fill_tables(ctx, graph, desc, out, &host);
    free(host.memory);
    if (status == WF_OK) status = wf_gpu_match_prepare(ctx, shape);
    if (status != WF_OK) wf_gpu_plan_close(out);
    return status;
}

void wf_gpu_plan_close(wf_gpu_plan *plan) {
    cudaFree(plan->tables);
    *plan = wf_gpu_plan{};
}

/* --- kernels of the pairs --------------------------------------------------------------------- */

namespace {

struct pair_scores_call {
    const float *a, *b; /* (pairs, n_params) */
    size_t a_step;      /* floats */
    float *scores[WF_GPU_ORBITS];
};

/* Grid (orbits, pairs), 8 x 16 threads, R x C scores a thread: R 16 = C 8 = N, n at most. The next
 * tile is on its way while one is multiplied. */
template <int R, int C>
__global__ void __launch_bounds__(score_threads)
    pair_scores(const __grid_constant__ wf_gpu_shape shape,
                const __grid_constant__ pair_scores_call call) {
    enum { N = 16 * R, pitch = N + 4, units_apart = score_threads / depth_tile };
    enum { each = N / units_apart };
    __shared__ __align__(16) float left[depth_tile][pitch], right[depth_tile][pitch];
    const wf_gpu_orbit &orbit = shape.orbits[blockIdx.x];
    size_t pair = blockIdx.y;
    const float *a = call.a + pair * call.a_step, *b = call.b + pair * shape.n_params;
    int n = orbit.n, k = threadIdx.x % depth_tile, u0 = threadIdx.x / depth_tile;
    int row = threadIdx.x / 8 * R, column = threadIdx.x % 8 * C;
    float sum[R][C] = {}, next_a[each], next_b[each];
    auto fetch = [&](int k0) {
        bool inside = k0 + k < orbit.depth;
        int2 term = inside ? shape.terms[orbit.first_term + k0 + k] : int2{0, 0};
#pragma unroll
        for (int i = 0; i < each; i++) {
            int u = u0 + i * units_apart;
            bool real = inside && u < n;
            next_a[i] = real ? a[term.x + (size_t)u * term.y] : 0;
            next_b[i] = real ? b[term.x + (size_t)u * term.y] : 0;
        }
    };
    fetch(0);
    for (int k0 = 0; k0 < orbit.depth; k0 += depth_tile) {
#pragma unroll
        for (int i = 0; i < each; i++) {
            left[k][u0 + i * units_apart] = next_a[i];
            right[k][u0 + i * units_apart] = next_b[i];
        }
        __syncthreads();
        fetch(k0 + depth_tile);
        int some = min((int)depth_tile, orbit.depth - k0);
#pragma unroll 4
        for (int q = 0; q < some; q++) {
            float x[R], y[C];
#pragma unroll
            for (int i = 0; i < R; i++) x[i] = left[q][row + i];
#pragma unroll
            for (int j = 0; j < C; j++) y[j] = right[q][column + j];
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < C; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
    float *out = call.scores[blockIdx.x] + pair * (size_t)(n * n);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < C; j++)
            if (row + i < n && column + j < n) out[(row + i) * n + column + j] = sum[i][j];
}

struct permute_block {
    int offset, rows, columns; /* rows: nodes of dst, columns: of src, `coef` numbers each */
    int coef;
    int row_start, column_start; /* of the units in `from`; -1: fixed nodes */
};

struct permute_call {
    int n_blocks, n_params, n_units;
    permute_block blocks[WF_GPU_BLOCKS];
    const float *in;
    const uint8_t *from;
    float *out;
};

/* out[i][j] = in[from(i)][from(j)], a warp for a row. Grid (shares of the rows, pairs). */
__global__ void permute(const __grid_constant__ permute_call call) {
    const float *in = call.in + (size_t)blockIdx.y * call.n_params;
    float *out = call.out + (size_t)blockIdx.y * call.n_params;
    const uint8_t *from = call.from + (size_t)blockIdx.y * call.n_units;
    int warps = (int)(gridDim.x * blockDim.x) / 32, lane = (int)threadIdx.x % 32;
    int warp = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (int b = 0; b < call.n_blocks; b++) {
        const permute_block &block = call.blocks[b];
        for (int i = warp; i < block.rows; i += warps) {
            int source = block.row_start < 0 ? i : from[block.row_start + i];
            int length = block.columns * block.coef;
            const float *__restrict__ row = in + block.offset + source * length;
            float *__restrict__ place = out + block.offset + i * length;
            if (block.column_start < 0) {
#pragma unroll 8
                for (int j = lane; j < length; j += 32) place[j] = __ldg(row + j);
            } else if (block.coef > 1) {
                for (int j = lane; j < length; j += 32) {
                    int unit = j / block.coef, k = j - unit * block.coef;
                    place[j] = __ldg(row + from[block.column_start + unit] * block.coef + k);
                }
            } else
                for (int j = lane; j < block.columns; j += 32)
                    place[j] = __ldg(row + from[block.column_start + j]);
        }
    }
}

} // namespace

/* --- pairs ------------------------------------------------------------------------------------ */

struct wf_match_cuda {
    wf_gpu_plan plan;
    size_t pairs;
    permute_call permute;
    float *links; /* (2, pairs, link_floats) */
    float *scores;
    uint8_t *from; /* (pairs, n_units) */
};

static size_t score_floats(const wf_gpu_shape &shape) {
    size_t floats = 0;
    for (int o = 0; o < shape.n_orbits; o++)
        floats += (size_t)shape.orbits[o].n * (size_t)shape.orbits[o].n;
    return floats;
}

static void fill_permute(const wf_graph *graph, permute_call *call) {
    call->n_blocks = graph->n_blocks;
    call->n_params = (int)graph->n_params;
    call->n_units = (int)wf_graph_perm_size(graph);
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        const wf_group *dst = &graph->groups[block->dst], *src = &graph->groups[block->src];
        permute_block *out = &call->blocks[b];
        out->offset = (int)block->offset;
        out->rows = dst->n, out->columns = src->n, out->coef = block->coef;
        out->row_start = dst->orbit < 0 ? -1 : (int)wf_graph_perm_start(graph, dst->orbit);
        out->column_start = src->orbit < 0 ? -1 : (int)wf_graph_perm_start(graph, src->orbit);
    }
}

static wf_status take_memory(wf_ctx *ctx, wf_match_cuda *m) {
    const wf_gpu_shape &shape = m->plan.shape;
    size_t links = 2 * m->pairs * (size_t)shape.link_floats * sizeof(float);
    WF_CUDA_TRY(ctx, cudaMalloc(&m->links, links + sizeof(float)));
    WF_CUDA_TRY(ctx, cudaMalloc(&m->scores, m->pairs * score_floats(shape) * sizeof(float)));
    WF_CUDA_TRY(ctx, cudaMalloc(&m->from, m->pairs * (size_t)shape.n_units));
    return WF_OK;
}

extern "C" wf_status wf_match_cuda_open(wf_ctx *ctx, const wf_graph *graph,
                                        const wf_match_desc *desc, size_t pairs,
                                        wf_match_cuda **out) {
    *out = NULL;
    wf_match_desc defaults = wf_match_desc_default();
    if (desc == NULL) desc = &defaults;
    wf_match_cuda *m = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *m, "matching", &m));
    m->pairs = pairs < 1 ? 1 : pairs > 32768 ? 32768 : pairs;
    wf_status status = wf_gpu_plan_open(ctx, graph, desc, &m->plan);
    if (status == WF_OK) {
        fill_permute(graph, &m->permute);
        status = take_memory(ctx, m);
    }
    if (status != WF_OK) wf_match_cuda_close(m);
    else *out = m;
    return status;
}

extern "C" void wf_match_cuda_close(wf_match_cuda *m) {
    if (m == NULL) return;
    cudaFree(m->links);
    cudaFree(m->scores);
    cudaFree(m->from);
    wf_gpu_plan_close(&m->plan);
    free(m);
}

static wf_status enqueue_scores(wf_ctx *ctx, const wf_gpu_shape &shape,
                                const pair_scores_call &call, size_t count, cudaStream_t stream) {
    dim3 grid((unsigned)shape.n_orbits, (unsigned)count);
    if (shape.widest <= 16) pair_scores<1, 2><<<grid, score_threads, 0, stream>>>(shape, call);
    else if (shape.widest <= 32) pair_scores<2, 4><<<grid, score_threads, 0, stream>>>(shape, call);
    else pair_scores<4, 8><<<grid, score_threads, 0, stream>>>(shape, call);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

static wf_status run_round(wf_ctx *ctx, wf_match_cuda *m, const float *a, size_t a_step,
                           const float *b, size_t count, float *out, cudaStream_t stream) {
    const wf_gpu_shape &shape = m->plan.shape;
    float *a_links = m->links, *b_links = m->links + m->pairs * shape.link_floats;
    WF_TRY(wf_gpu_pack_links(ctx, shape, a, a_step == 0 ? 1 : count, a_links, stream));
    WF_TRY(wf_gpu_pack_links(ctx, shape, b, count, b_links, stream));
    pair_scores_call scores = {a, b, a_step * shape.n_params, {}};
    wf_gpu_match_args args = {};
    float *place = m->scores;
    for (int o = 0; o < shape.n_orbits; o++) {
        size_t n = (size_t)shape.orbits[o].n;
        scores.scores[o] = place;
        args.scores[o] = wf_gpu_scores{place, 0, n * n, n};
        place += m->pairs * n * n;
    }
    WF_TRY(enqueue_scores(ctx, shape, scores, count, stream));
    args.query_links = a_links, args.reference_links = b_links;
    args.query_link_step = a_step == 0 ? 0 : (size_t)shape.link_floats;
    args.queries = args.references = (int)count;
    args.pairwise = true;
    args.from = m->from;
    WF_TRY(wf_gpu_match(ctx, shape, args, stream));
    permute_call permutation = m->permute;
    permutation.in = b, permutation.from = m->from, permutation.out = out;
    dim3 grid((unsigned)(shape.n_params + 8191) / 8192, (unsigned)count);
    permute<<<grid, 256, 0, stream>>>(permutation);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

extern "C" wf_status wf_match_cuda_run(wf_ctx *ctx, wf_match_cuda *m, const float *a, size_t a_step,
                                       const float *b, size_t count, float *out, void *stream) {
    size_t params = (size_t)m->plan.shape.n_params;
    for (size_t done = 0; done < count; done += m->pairs) {
        size_t some = count - done < m->pairs ? count - done : m->pairs;
        WF_TRY(run_round(ctx, m, a + done * a_step * params, a_step, b + done * params, some,
                         out + done * params, (cudaStream_t)stream));
    }
    return WF_OK;
}

/* --- pairs in host memory --------------------------------------------------------------------- */

enum { pairs_in_a_round = 4096 };

typedef struct host_pairs {
    wf_match_cuda *matcher;
    float *a, *b, *out;
    double *squares; /* (2, pairs of a round) */
    double *checked; /* their host copy */
} host_pairs;

static wf_status host_pairs_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                                 size_t pairs, host_pairs *h) {
    size_t bytes = pairs * graph->n_params * sizeof(float);
    WF_TRY(wf_match_cuda_open(ctx, graph, desc, pairs, &h->matcher));
    WF_CUDA_TRY(ctx, cudaMalloc(&h->a, bytes));
    WF_CUDA_TRY(ctx, cudaMalloc(&h->b, bytes));
    WF_CUDA_TRY(ctx, cudaMalloc(&h->out, bytes));
    WF_CUDA_TRY(ctx, cudaMalloc(&h->squares, 2 * pairs * sizeof(double)));
    return wf_alloc(ctx, 2 * pairs, sizeof(double), "matching", &h->checked);
}

static void host_pairs_close(host_pairs *h) {
    wf_match_cuda_close(h->matcher);
    cudaFree(h->a);
    cudaFree(h->b);
    cudaFree(h->out);
    cudaFree(h->squares);
    free(h->checked);
}

/* One round on the default stream; copies wait for it. */
static wf_status host_round(wf_ctx *ctx, host_pairs *h, const float *a, size_t a_step, float *b,
                            size_t first, size_t count) {
    size_t params = (size_t)h->matcher->plan.shape.n_params, bytes = count * params * sizeof(float);
    size_t queries = a_step == 0 ? 1 : count;
    WF_CUDA_TRY(ctx, cudaMemcpy(h->a, a, queries * params * sizeof(float), cudaMemcpyHostToDevice));
    WF_CUDA_TRY(ctx, cudaMemcpy(h->b, b, bytes, cudaMemcpyHostToDevice));
    WF_TRY(wf_gpu_squares(ctx, h->a, queries, params, h->squares, 0));
    WF_TRY(wf_gpu_squares(ctx, h->b, count, params, h->squares + count, 0));
    WF_CUDA_TRY(ctx, cudaMemcpy(h->checked, h->squares, 2 * count * sizeof(double),
                                cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < count; k++)
        if (!wf_gpu_usable(h->checked[k * a_step]) || !wf_gpu_usable(h->checked[count + k]))
            return wf_fail(ctx, WF_ERR_INPUT,
                           "matching: pair %zu has weights that are not finite or far too large",
                           first + k);
    WF_TRY(wf_match_cuda_run(ctx, h->matcher, h->a, a_step, h->b, count, h->out, 0));
    WF_CUDA_TRY(ctx, cudaMemcpy(b, h->out, bytes, cudaMemcpyDeviceToHost));
    return WF_OK;
}

extern "C" wf_status wf_match_pairs_cuda(wf_ctx *ctx, const wf_graph *graph, const float *a,
                                         size_t a_step, float *b, size_t count,
                                         const wf_match_desc *desc) {
    if (count == 0) return WF_OK;
    size_t round = count < pairs_in_a_round ? count : pairs_in_a_round, params = graph->n_params;
    host_pairs h = {};
    wf_status status = host_pairs_open(ctx, graph, desc, round, &h);
    wf_backlog backlog = {};
    for (size_t done = 0, some; done < count && status == WF_OK; done += some) {
        double start = wf_seconds();
        some = wf_backlog_next(&backlog, count - done < round ? count - done : round);
        status =
            host_round(ctx, &h, a + done * a_step * params, a_step, b + done * params, done, some);
        wf_backlog_took(&backlog, some, wf_seconds() - start);
        if (status == WF_OK && wf_interrupted(ctx))
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while matching networks");
    }
    host_pairs_close(&h);
    return status;
}
