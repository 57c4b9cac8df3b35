/* match_solve: the sweeps of the weight matching, many pairs at once.
 *
 * A group of 16 lanes (n <= 16) or a warp (n <= 64) matches one pair; a lane owns one or two columns, that is units of the
 * reference. The scores of the orbit being visited lie in shared memory as score[r][column], read by the owner of the column
 * alone but for the gain, so rows are indexed at random without a bank conflict and without a barrier.
 *   visit    score[r][u] = fixed[r][u] + sum_k L[k][r] R[row(k)][u]: lanes are u, rows eight at a time in registers, L of the
 *            query from shared memory (all pairs of a block have one query), R and fixed from the caches
 *   assign   as in cpu/match_kernel.c, step by step: rows take their best column where it is free, the others are matched by
 *            shortest augmenting paths from the prices of the orbit's last visit. A step is one addition, comparison and minimum
 *            over the lanes; the minimum is redux.sync on floats mapped to ordered integers
 * Two groups of a warp run in lockstep: all branches are of the whole warp, what concerns one group alone is a selection.
 *
 * Bound by issue. Measured on an H200: 836,000 pairs of trained karhunen networks in 5.85 ms, 3.0 of 4 instructions a clock, 5,400 a
 * pair; 131,000 MNIST pairs (784-32-32-10) in 8.77 ms, 2.45 a clock, 41,000 a pair.
 *
 * I1  Same bits as the CPU kernels with fused multiply-add: order of sums, ties (lowest column) and the gain are theirs.
 * I2  Every loop is bounded whatever the weights: a search ends after n steps, and an orbit whose assignment could not be
 *     completed (a score is not a number) keeps its place. */
#include "align/cuda/match_gpu.cuh"

#include <math.h>

namespace {

constexpr unsigned whole_warp = 0xffffffffu;
enum { warp_size = 32, row_chunk = 8, block_warps = 8, pairs_per_group = 8 };

/* Floats in the order of signed integers; its own inverse. Negative zero has been added away. */
__device__ inline int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

/* G lanes of a warp that match one pair, C columns a lane: column = c * G + lane. */
template <int G, int C> struct group {
    int lane, first; /* own place in the group; the group's first lane in the warp */

    __device__ bool any(bool mine) const { return __any_sync(whole_warp, mine); }

    __device__ unsigned ballot(bool mine) const {
        unsigned bits = __ballot_sync(whole_warp, mine);
        return G == warp_size ? bits : (bits >> first) & ((1u << (G & 31)) - 1);
    }

    __device__ int least_of(int key) const {
        if (G == warp_size) return __reduce_min_sync(whole_warp, key);
        int low = __reduce_min_sync(whole_warp, first == 0 ? key : INT_MAX);
        int high = __reduce_min_sync(whole_warp, first == 0 ? INT_MAX : key);
        return first == 0 ? low : high;
    }

    /* The lowest of the columns with the least value. */
    __device__ int place_of_least(const float *values, float *least) const {
        int key[C], low = INT_MAX;
#pragma unroll
        for (int c = 0; c < C; c++) {
            key[c] = ordered(__float_as_int(values[c] + 0.0f));
            low = min(low, key[c]);
        }
        low = least_of(low);
        *least = __int_as_float(ordered(low));
        int place = -1;
#pragma unroll
        for (int c = C - 1; c >= 0; c--) {
            unsigned here = ballot(key[c] == low);
            if (here != 0) place = c * G + __ffs((int)here) - 1;
        }
        return place;
    }

    /* values[index] of the group, index the same in all its lanes. */
    template <typename T> __device__ T at(const T *values, int index) const {
        T found = __shfl_sync(whole_warp, values[0], first + (index & (G - 1)));
#pragma unroll
        for (int c = 1; c < C; c++) {
            T other = __shfl_sync(whole_warp, values[c], first + (index & (G - 1)));
            if (index >= c * G) found = other;
        }
        return found;
    }

    template <typename T> __device__ void set(T *values, int index, T value, bool on) const {
#pragma unroll
        for (int c = 0; c < C; c++)
            if (on && index == c * G + lane) values[c] = value;
    }

    __device__ double sum(double value) const {
#pragma unroll
        for (int step = G / 2; step > 0; step /= 2)
            value += __shfl_xor_sync(whole_warp, value, step);
        return value;
    }
};

template <int C> struct row_set;
template <> struct row_set<1> { typedef uint32_t type; };
template <> struct row_set<2> { typedef uint64_t type; };
__device__ inline int first_of(uint32_t set) { return __ffs((int)set) - 1; }
__device__ inline int first_of(uint64_t set) { return __ffsll((long long)set) - 1; }

/* A pair and its memory. Arrays in shared memory are laid out by lane of the warp, so two groups never meet. */
template <int G, int C> struct pair_state : group<G, C> {
    enum { pitch = warp_size * C };
    const wf_gpu_shape *shape;
    const wf_gpu_job *job;
    float *score;             /* (widest rounded up to 8, pitch) own lane's column */
    float *price;             /* (n_orbits, pitch) */
    uint8_t *from, *best;     /* (n_orbits, pitch) */
    const float *query_links; /* in shared memory */
    const float *reference_links;
    size_t query, reference; /* numbers within the launch */

    __device__ int slot(int unit) const { /* of unit `unit` of the group's pair */
        return (unit / G) * warp_size + this->first + unit % G;
    }
    __device__ int own(int c) const { return c * warp_size + this->first + this->lane; }

    __device__ const float *fixed_row(int orbit, int r) const {
        const wf_gpu_scores &s = job->scores[orbit];
        return s.base + query * s.query_step + reference * s.reference_step + r * s.row_step;
    }

    /* Eight rows of scores from row r0 on. */
    __device__ void score_rows(const wf_gpu_orbit &orbit, int o, int r0) {
        float sum[row_chunk][C];
#pragma unroll
        for (int i = 0; i < row_chunk; i++)
#pragma unroll
            for (int c = 0; c < C; c++) {
                int u = c * G + this->lane;
                bool inside = r0 + i < orbit.n && u < orbit.n;
                sum[i][c] = inside ? fixed_row(o, r0 + i)[u] : 0;
            }
        for (int l = orbit.first_link; l < orbit.first_link + orbit.n_links; l++) {
            const wf_gpu_link &link = shape->links[l];
            const uint8_t *rows = from + link.other * pitch;
            int units = link.depth / link.coef;
#pragma unroll 4
            for (int x = 0; x < units; x++) {
                int row = rows[slot(x)] * link.coef;
                for (int k = 0; k < link.coef; k++) {
                    const float *b = reference_links + link.start + (row + k) * link.n8;
                    const float4 *a = (const float4 *)(query_links + link.start +
                                                       (x * link.coef + k) * link.n8 + r0);
                    float4 low = a[0], high = a[1];
                    float left[row_chunk] = {low.x,  low.y,  low.z,  low.w,
                                             high.x, high.y, high.z, high.w};
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        int u = c * G + this->lane;
                        float right = u < link.n8 ? __ldg(b + u) : 0;
#pragma unroll
                        for (int i = 0; i < row_chunk; i++)
                            sum[i][c] = fmaf(left[i], right, sum[i][c]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < row_chunk; i++)
#pragma unroll
            for (int c = 0; c < C; c++)
                score[(r0 + i) * pitch + own(c)] =
                    c * G + this->lane < orbit.n ? sum[i][c] : -INFINITY;
    }

    /* column_of[row]; false where no assignment was found. `on`: this group takes part. */
    __device__ bool assign(int n, bool on, float *prices, int *column_of) {
        typename row_set<C>::type free_rows = 0, taken = 0, one = 1;
        int row_of[C];
        bool found = true;
#pragma unroll
        for (int c = 0; c < C; c++) row_of[c] = column_of[c] = -1;
#pragma unroll 4
        for (int r = 0; r < n; r++) {
            float distance[C], least;
#pragma unroll
            for (int c = 0; c < C; c++) distance[c] = prices[c] - score[r * pitch + own(c)];
            int column = this->place_of_least(distance, &least);
            bool open = (taken >> column & 1) == 0;
            if (open) taken |= one << column;
            else free_rows |= one << r;
            this->set(row_of, column, r, open);
            this->set(column_of, r, column, open);
        }
        if (!on) free_rows = 0;
        while (this->any(free_rows != 0)) {
            bool active = free_rows != 0;
            int start = active ? first_of(free_rows) : 0;
            free_rows &= free_rows - 1;
            found &= augment(n, start, active, prices, row_of, column_of);
        }
        return found;
    }

    /* Shortest augmenting path from a free row, then the prices, then the path turned over. */
    __device__ bool augment(int n, int start, bool active, float *prices, int *row_of,
                            int *column_of) {
        float distance[C], open[C], settled[C], profit[C], base, reached = 0;
        int previous[C];
#pragma unroll
        for (int c = 0; c < C; c++) {
            open[c] = prices[c];
            settled[c] = INFINITY;
            distance[c] = open[c] - score[start * pitch + own(c)];
            previous[c] = start;
            /* of the row that stands here */
            profit[c] = row_of[c] >= 0 ? score[row_of[c] * pitch + own(c)] - prices[c] : 0;
        }
        int column = this->place_of_least(distance, &base);
#pragma unroll
        for (int c = 0; c < C; c++) distance[c] -= base;
        int owner = this->at(row_of, column);
        float gave = this->at(profit, column);
        bool searching = active && owner >= 0;
        for (int step = 0; step < n && this->any(searching); step++) {
            int row = searching ? owner : 0;
            base = reached + gave;
#pragma unroll
            for (int c = 0; c < C; c++) {
                bool here = searching && column == c * G + this->lane;
                settled[c] = here ? reached : settled[c];
                distance[c] = here ? INFINITY : distance[c];
                open[c] = here ? INFINITY : open[c];
                float through = (open[c] - score[row * pitch + own(c)]) + base;
                bool closer = searching && through < distance[c];
                distance[c] = closer ? through : distance[c];
                previous[c] = closer ? owner : previous[c];
            }
            float least;
            int next = this->place_of_least(distance, &least);
            int next_owner = this->at(row_of, next);
            gave = this->at(profit, next);
            column = searching ? next : column;
            reached = searching ? least : reached;
            owner = searching ? next_owner : owner;
            searching = searching && owner >= 0;
        }
        bool found = !searching;
        bool turning = active && found;
#pragma unroll
        for (int c = 0; c < C; c++) {
            float rise = reached - settled[c];
            prices[c] = turning && rise > 0 ? prices[c] + rise : prices[c];
        }
        for (int step = 0; step < n && this->any(turning); step++) {
            int r = this->at(previous, column);
            int next = this->at(column_of, r);
            this->set(row_of, column, r, turning);
            this->set(column_of, r, column, turning);
            turning = turning && r != start;
            column = turning ? next : column;
        }
        return found;
    }

    /* sum over r of score[r][places[r]], in the order of r. */
    __device__ float matched(int n, const int *places) {
        float value[C], sum = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            int r = c * G + this->lane;
            value[c] = r < n ? score[r * pitch + slot(places[c])] : 0;
        }
#pragma unroll 8
        for (int r = 0; r < n; r++) sum += this->at(value, r);
        return sum;
    }

    /* Whether the orbit moved. */
    __device__ bool improve(int o, bool on) {
        const wf_gpu_orbit &orbit = shape->orbits[o];
        int n = orbit.n, column_of[C], old[C];
        float prices[C];
        for (int r = 0; r < n; r += row_chunk) score_rows(orbit, o, r);
#pragma unroll
        for (int c = 0; c < C; c++) {
            prices[c] = price[o * pitch + own(c)];
            old[c] = from[o * pitch + own(c)];
        }
        bool found = assign(n, on, prices, column_of), differs = false;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (on) price[o * pitch + own(c)] = prices[c];
            differs |= c * G + this->lane < n && column_of[c] != old[c];
        }
        bool moved = this->ballot(differs) != 0 && on && found;
        if (!this->any(moved)) return false;
        __syncwarp();
        if (!moved)
            for (int c = 0; c < C; c++) column_of[c] = old[c];
        float gain = matched(n, column_of) - matched(n, old);
        moved = moved && (double)gain > shape->tolerance;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (moved && c * G + this->lane < n) from[o * pitch + own(c)] = (uint8_t)column_of[c];
        __syncwarp();
        return moved;
    }

    __device__ void sweep(int restart, bool alive) {
        for (int o = 0; o < shape->n_orbits; o++)
#pragma unroll
            for (int c = 0; c < C; c++) {
                int u = c * G + this->lane, at = restart * shape->n_units + shape->orbits[o].start;
                price[o * pitch + own(c)] = 0;
                from[o * pitch + own(c)] = u < shape->orbits[o].n ? shape->begin[at + u] : 0;
            }
        __syncwarp();
        unsigned dirty = ~0u;
        for (int s = 0; s < shape->sweeps && this->any(alive); s++) {
            bool moved = false;
            const uint8_t *order =
                shape->order + ((size_t)restart * shape->sweeps + s) * shape->n_orbits;
            for (int i = 0; i < shape->n_orbits; i++) {
                int o = order[i];
                bool visit = alive && (dirty >> o & 1) != 0;
                if (!this->any(visit)) continue;
                if (visit) dirty &= ~(1u << o);
                bool gained = improve(o, visit);
                moved |= gained;
                for (int l = 0; l < shape->orbits[o].n_links; l++) {
                    unsigned other = 1u << shape->links[shape->orbits[o].first_link + l].other;
                    dirty |= gained ? other : 0;
                }
            }
            alive = alive && moved;
        }
    }

    /* <a, P b>. */
    __device__ double value() {
        double sum = 0;
        for (int o = 0; o < shape->n_orbits; o++)
#pragma unroll
            for (int c = 0; c < C; c++) {
                int r = c * G + this->lane;
                if (r < shape->orbits[o].n)
                    sum += (double)fixed_row(o, r)[from[o * pitch + own(c)]];
            }
        for (int l = 0; l < shape->n_links; l++) {
            const wf_gpu_link &link = shape->links[l];
            if (!link.counted) continue;
            for (int k = 0; k < link.depth; k++) {
                int row =
                    from[link.other * pitch + slot(k / link.coef)] * link.coef + k % link.coef;
                const float *b = reference_links + link.start + row * link.n8;
                const float *a = query_links + link.start + k * link.n8;
#pragma unroll
                for (int c = 0; c < C; c++) {
                    int r = c * G + this->lane;
                    if (r < link.n)
                        sum += (double)a[r] * (double)b[from[link.orbit * pitch + own(c)]];
                }
            }
        }
        for (int i = this->lane; i < shape->n_rest; i += G)
            sum += (double)query_links[shape->rest + i] * (double)reference_links[shape->rest + i];
        return this->sum(sum);
    }

    /* The best matching over all restarts, in `best`; returns its value. */
    __device__ double run(bool alive) {
        double top = 0;
        for (int restart = 0; restart <= shape->restarts; restart++) {
            sweep(restart, alive);
            double now = value();
            bool better = restart == 0 || now > top;
            if (better) top = now;
            for (int o = 0; o < shape->n_orbits; o++)
                for (int c = 0; c < C; c++)
                    if (better) best[o * pitch + own(c)] = from[o * pitch + own(c)];
            __syncwarp();
        }
        return top;
    }

    __device__ void keep(double dot) const {
        if (job->from != NULL)
            for (int o = 0; o < shape->n_orbits; o++)
                for (int c = 0; c < C; c++) {
                    int u = c * G + this->lane;
                    if (u < shape->orbits[o].n)
                        job->from[query * shape->n_units + shape->orbits[o].start + u] =
                            best[o * pitch + own(c)];
                }
        if (job->cosine == NULL || this->lane != 0) return;
        double norms = sqrt(job->query_squares[query]) * sqrt(job->reference_squares[reference]);
        bool skipped =
            job->skip != NULL && job->skip[query] == job->first_reference + (int64_t)reference;
        job->cosine[query * job->references + reference] = skipped     ? -INFINITY
                                                           : norms > 0 ? (float)(dot / norms)
                                                                       : 0;
    }
};

/* Bytes of shared memory of a warp, a multiple of 16. */
template <int C> __host__ __device__ size_t warp_bytes(const wf_gpu_shape &shape) {
    size_t rows = (size_t)(shape.widest + row_chunk - 1) / row_chunk * row_chunk;
    size_t lanes = (size_t)warp_size * C, orbits = (size_t)shape.n_orbits;
    return rows * lanes * sizeof(float) + orbits * lanes * (sizeof(float) + 2);
}

__host__ __device__ inline size_t query_bytes(const wf_gpu_shape &shape) {
    return ((size_t)shape.link_floats * sizeof(float) + 15) / 16 * 16;
}

/* Grid (strips of references, queries); a strip is pairs_per_group pairs for each group of the block. Pairwise: one warp a
 * block, its first group alone at work. */
template <int G, int C>
__global__ void __launch_bounds__(block_warps *warp_size)
    match_pairs(const __grid_constant__ wf_gpu_shape shape,
                const __grid_constant__ wf_gpu_job job) {
    extern __shared__ uint8_t shared[];
    size_t query = blockIdx.y;
    int warp = threadIdx.x / warp_size, in_warp = threadIdx.x % warp_size;
    float *links = (float *)shared;
    const float *record = job.query_links + query * job.query_link_step;
    for (int i = threadIdx.x; i < shape.link_floats; i += blockDim.x) links[i] = record[i];
    __syncthreads();
    pair_state<G, C> pair;
    pair.lane = in_warp % G;
    pair.first = in_warp - pair.lane;
    pair.shape = &shape;
    pair.job = &job;
    pair.query_links = links;
    pair.query = query;
    int lanes = warp_size * C;
    pair.score = (float *)(shared + query_bytes(shape) + warp * warp_bytes<C>(shape));
    pair.price = pair.score + (shape.widest + row_chunk - 1) / row_chunk * row_chunk * lanes;
    pair.from = (uint8_t *)(pair.price + shape.n_orbits * lanes);
    pair.best = pair.from + shape.n_orbits * lanes;
    int groups = blockDim.x / G, mine = threadIdx.x / G;
    size_t references = job.references;
    size_t first = (size_t)blockIdx.x * groups * pairs_per_group;
    for (int i = 0; i < (job.pairwise ? 1 : (int)pairs_per_group); i++) {
        size_t reference = job.pairwise ? query : first + (size_t)i * groups + mine;
        bool real = job.pairwise ? mine == 0 : reference < references;
        if (!__any_sync(whole_warp, real)) return;
        pair.reference = real ? reference : job.pairwise ? query : references - 1;
        pair.reference_links = job.reference_links + pair.reference * shape.link_floats;
        bool skipped =
            job.skip != NULL && job.skip[query] == job.first_reference + (int64_t)pair.reference;
        double dot = pair.run(real && !skipped);
        if (real) pair.keep(dot);
        __syncwarp();
    }
}

/* One thread an element; link records are small beside the fixed parts. */
__global__ void pack_links(const __grid_constant__ wf_gpu_shape shape, const float *networks,
                           float *records) {
    const float *w = networks + (size_t)blockIdx.x * shape.n_params;
    float *record = records + (size_t)blockIdx.x * shape.link_floats;
    for (int l = 0; l < shape.n_links; l++) {
        const wf_gpu_link &link = shape.links[l];
        for (int i = threadIdx.x; i < link.depth * link.n8; i += blockDim.x) {
            int k = i / link.n8, u = i % link.n8, x = k / link.coef, c = k % link.coef;
            record[link.start + i] =
                u < link.n
                    ? w[link.offset + (size_t)u * link.unit_step + (size_t)x * link.other_step + c]
                    : 0;
        }
    }
    for (int i = threadIdx.x; i < shape.n_rest; i += blockDim.x)
        record[shape.rest + i] = w[shape.rest_at[i]];
}

/* One warp per network: lane sums in order, then the lanes. */
__global__ void squares_of(const float *networks, size_t count, size_t params, double *squares) {
    size_t network = (size_t)blockIdx.x * (blockDim.x / warp_size) + threadIdx.x / warp_size;
    if (network >= count) return;
    const float *w = networks + network * params;
    double sum = 0;
    for (size_t i = threadIdx.x % warp_size; i < params; i += warp_size)
        sum += (double)w[i] * (double)w[i];
    for (int step = warp_size / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, step);
    if (threadIdx.x % warp_size == 0) squares[network] = sum;
}

template <int G, int C> wf_status prepare(wf_ctx *ctx, wf_gpu_shape *shape) {
    int device;
    WF_CUDA_TRY(ctx, cudaGetDevice(&device));
    WF_CUDA_TRY(ctx, cudaDeviceGetAttribute(&shape->shared_bytes,
                                            cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    size_t least = query_bytes(*shape) + warp_bytes<C>(*shape);
    if (least > (size_t)shape->shared_bytes)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: matching these networks needs %zu KB on chip, this GPU has %d",
                       least / 1024, shape->shared_bytes / 1024);
    WF_CUDA_TRY(ctx,
                cudaFuncSetAttribute(match_pairs<G, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     shape->shared_bytes));
    return WF_OK;
}

template <int G, int C>
wf_status launch(wf_ctx *ctx, const wf_gpu_shape &shape, const wf_gpu_job &job,
                 cudaStream_t stream) {
    int warps = job.pairwise ? 1 : (int)block_warps;
    size_t each = warp_bytes<C>(shape), query = query_bytes(shape);
    while (warps > 1 && query + warps * each > (size_t)shape.shared_bytes) warps /= 2;
    unsigned strip = (unsigned)(warps * warp_size / G * pairs_per_group);
    dim3 grid(job.pairwise ? 1 : ((unsigned)job.references + strip - 1) / strip,
              (unsigned)job.queries);
    match_pairs<G, C><<<grid, warps * warp_size, query + warps * each, stream>>>(shape, job);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

} // namespace

wf_status wf_gpu_match_prepare(wf_ctx *ctx, wf_gpu_shape *shape) {
    if (shape->widest <= 16) return prepare<16, 1>(ctx, shape);
    if (shape->widest <= 32) return prepare<32, 1>(ctx, shape);
    return prepare<32, 2>(ctx, shape);
}

wf_status wf_gpu_match(wf_ctx *ctx, const wf_gpu_shape &shape, const wf_gpu_job &job,
                       cudaStream_t stream) {
    if (job.queries == 0 || job.references == 0) return WF_OK;
    if (shape.widest <= 16) return launch<16, 1>(ctx, shape, job, stream);
    if (shape.widest <= 32) return launch<32, 1>(ctx, shape, job, stream);
    return launch<32, 2>(ctx, shape, job, stream);
}

wf_status wf_gpu_squares(wf_ctx *ctx, const float *networks, size_t count, size_t params,
                         double *squares, cudaStream_t stream) {
    if (count == 0) return WF_OK;
    squares_of<<<(unsigned)((count + 7) / 8), 8 * warp_size, 0, stream>>>(networks, count, params,
                                                                          squares);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

wf_status wf_gpu_pack_links(wf_ctx *ctx, const wf_gpu_shape &shape, const float *networks,
                            size_t count, float *records, cudaStream_t stream) {
    if (count == 0) return WF_OK;
    pack_links<<<(unsigned)count, 128, 0, stream>>>(shape, networks, records);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}
