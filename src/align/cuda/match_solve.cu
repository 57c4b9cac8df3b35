/* match_solve: the sweeps of the weight matching, many pairs at once.
 *
 * A group of 16 lanes (n <= 16) or a warp (n <= 64) matches one pair; a lane owns one or two
 * columns, that is units of the reference. The scores of the orbit being visited lie in shared
 * memory as score[r][column]; the odd pitch lets lanes read a row or a column of it without bank
 * conflicts.
 *   visit    score[r][u] = fixed[r][u] + sum_k L[k][r] R[row(k)][u]: lanes are u, rows eight at a
 *            time in registers, L of the query from shared memory (all pairs of a block have one
 *            query), R and fixed from the caches
 *   assign   as in cpu/match_kernel.c: a lane scans one row for its best column and the lowest row
 *            gets it. The others are matched by shortest augmenting paths from the prices of the
 *            orbit's last visit. A step of a search is one addition, comparison and minimum over
 *            the lanes; the minimum is redux.sync on floats mapped to ordered integers
 * Two groups of a warp run in lockstep: the whole warp takes every branch, and where only one group
 * is concerned, values are selected instead.
 *
 * Bound by issue. Measured on an H200: 836,000 pairs of trained karhunen networks in 5.85 ms, 3.0
 * of 4 instructions a clock, 5,400 a pair; 131,000 MNIST pairs (784-32-32-10) in 8.77 ms, 2.45 a
 * clock, 41,000 a pair.
 *
 * I1  Same bits as the CPU kernels with fused multiply-add: order of sums, ties (lowest column) and
 *     the gain are theirs.
 * I2  Every loop is bounded whatever the weights: a search ends after n steps, and an orbit whose
 *     assignment could not be completed (a score is not a number) keeps its place. */
#include "align/cuda/match_gpu.cuh"

#include <math.h>

namespace {

constexpr unsigned whole_warp = 0xffffffffu;
enum { warp_size = 32, rows_at_once = 8, block_warps = 8, pairs_per_group = 8 };

/* Floats in the order of signed integers; its own inverse. There is no negative zero: a distance is
 * a difference whose first term, a price, is never one. */
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
            key[c] = ordered(__float_as_int(values[c]));
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

/* A pair and its memory. Arrays in shared memory are laid out by lane of the warp, so two groups
 * never meet. */
template <int G, int C> struct pair_state : group<G, C> {
    enum { units = warp_size * C, pitch = units + 1 };
    const wf_gpu_shape *shape;
    const wf_gpu_match_args *args;
    float *price;             /* (n_orbits, units) */
    float *score;             /* (widest rounded up to 8, pitch) */
    int *claim;               /* (units) lowest row that wants the column */
    uint8_t *from, *best;     /* (n_orbits, units) */
    const float *query_links; /* in shared memory */
    const float *reference_links;
    size_t query, reference; /* numbers within the launch */

    /* Place of a unit, or of the lane's own, in arrays of `units`; two columns a lane only where
     * the group is the warp. */
    __device__ int place(int unit) const { return this->first + unit; }
    __device__ int own(int c) const { return c * warp_size + this->first + this->lane; }

    __device__ const float *fixed_scores(int orbit) const {
        const wf_gpu_scores &s = args->scores[orbit];
        return s.base + query * s.query_step + reference * s.reference_step;
    }

    /* One term of eight rows: a [8] of the query times a row of the reference. */
    __device__ __forceinline__ void add_row(const float *a, const float *row, int n8,
                                            float (&sum)[rows_at_once][C]) const {
        float4 low = ((const float4 *)a)[0], high = ((const float4 *)a)[1];
        float left[rows_at_once] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int c = 0; c < C; c++) {
            float right = c * G + this->lane < n8 ? __ldg(row + c * G) : 0;
#pragma unroll
            for (int i = 0; i < rows_at_once; i++) sum[i][c] = fmaf(left[i], right, sum[i][c]);
        }
    }

    /* Eight rows of scores from row r0 on. */
    __device__ __forceinline__ void score_rows(const wf_gpu_orbit &orbit, int o, int r0) {
        float sum[rows_at_once][C];
        size_t step = args->scores[o].row_step;
        const float *fixed = fixed_scores(o) + r0 * step + this->lane;
#pragma unroll
        for (int i = 0; i < rows_at_once; i++, fixed += step)
#pragma unroll
            for (int c = 0; c < C; c++) {
                bool inside = r0 + i < orbit.n && c * G + this->lane < orbit.n;
                sum[i][c] = inside ? fixed[c * G] : 0;
            }
        for (int l = orbit.first_link; l < orbit.first_link + orbit.n_links; l++) {
            const wf_gpu_link &link = shape->links[l];
            const uint8_t *rows = from + link.other * units + this->first;
            const float *b = reference_links + link.start + this->lane;
            const float *a = query_links + link.start + r0;
            int n8 = link.n8;
            if (link.coef == 1) {
#pragma unroll 4
                for (int x = 0; x < link.depth; x++, a += n8) add_row(a, b + rows[x] * n8, n8, sum);
                continue;
            }
            for (int x = 0; x < link.others; x++) {
                const float *row = b + rows[x] * link.coef * n8;
#pragma unroll 3
                for (int k = 0; k < link.coef; k++, a += n8, row += n8) add_row(a, row, n8, sum);
            }
        }
#pragma unroll
        for (int i = 0; i < rows_at_once; i++)
#pragma unroll
            for (int c = 0; c < C; c++)
                score[(r0 + i) * pitch + own(c)] =
                    c * G + this->lane < orbit.n ? sum[i][c] : -INFINITY;
    }

    /* The prices of an orbit's first visit: the columns' maxima. */
    __device__ __forceinline__ void start_prices(int n, float *prices) const {
#pragma unroll
        for (int c = 0; c < C; c++) {
            float top = score[own(c)];
            for (int r = 1; r < n; r++) top = fmaxf(top, score[r * pitch + own(c)]);
            if (c * G + this->lane < n) prices[c] = top;
        }
    }

    /* The first column with the best score - price of row r; shown: the prices in shared memory. */
    __device__ __forceinline__ int best_column(int n, int r, const float *shown) const {
        const float *row = score + min(r, n - 1) * pitch + this->first;
        float least = INFINITY;
        int column = 0;
        for (int j = 0; j < n; j += 4) {
            float4 four = *(const float4 *)(shown + this->first + j);
            float price_of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float distance = price_of[k] - row[j + k];
                if (distance < least) {
                    least = distance;
                    column = j + k;
                }
            }
        }
        return column;
    }

    /* column_of[row]; false where no assignment was found. `on`: this group takes part. shown: the
     * prices in shared memory. */
    __device__ __forceinline__ bool assign(int n, bool on, float *prices, float *shown,
                                           int *column_of) {
        typename row_set<C>::type free_rows = 0;
        int row_of[C], column[C];
        bool found = true;
#pragma unroll
        for (int c = 0; c < C; c++) {
            shown[own(c)] = prices[c];
            claim[own(c)] = INT_MAX;
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < C; c++) {
            int r = c * G + this->lane;
            column[c] = best_column(n, r, shown);
            if (r < n) atomicMin(&claim[place(column[c])], r);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < C; c++) {
            int r = c * G + this->lane;
            bool has = claim[place(column[c])] == r;
            column_of[c] = has ? column[c] : -1;
            row_of[c] = claim[own(c)] == INT_MAX ? -1 : claim[own(c)];
            free_rows |= (typename row_set<C>::type)this->ballot(r < n && !has) << (c * G);
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

    /* Shortest augmenting path from a free row, then the prices, then the path flipped. */
    __device__ __forceinline__ bool augment(int n, int start, bool active, float *prices,
                                            int *row_of, int *column_of) {
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
            /* A warp of one group is in this loop only while it is searching. */
            bool moving = G == warp_size || searching;
            int row = moving ? owner : 0;
            base = reached + gave;
#pragma unroll
            for (int c = 0; c < C; c++) {
                bool here = moving && column == c * G + this->lane;
                settled[c] = here ? reached : settled[c];
                distance[c] = here ? INFINITY : distance[c];
                open[c] = here ? INFINITY : open[c];
                float through = (open[c] - score[row * pitch + own(c)]) + base;
                bool closer = moving && through < distance[c];
                distance[c] = closer ? through : distance[c];
                previous[c] = closer ? owner : previous[c];
            }
            float least;
            int next = this->place_of_least(distance, &least);
            int next_owner = this->at(row_of, next);
            gave = this->at(profit, next);
            column = moving ? next : column;
            reached = moving ? least : reached;
            owner = moving ? next_owner : owner;
            searching = moving && owner >= 0;
        }
        bool found = !searching;
        bool flipping = active && found;
#pragma unroll
        for (int c = 0; c < C; c++) {
            float rise = reached - settled[c];
            prices[c] = flipping && rise > 0 ? prices[c] + rise : prices[c];
        }
        for (int step = 0; step < n && this->any(flipping); step++) {
            int r = this->at(previous, column);
            int next = this->at(column_of, r);
            this->set(row_of, column, r, flipping);
            this->set(column_of, r, column, flipping);
            flipping = flipping && r != start;
            column = flipping ? next : column;
        }
        return found;
    }

    /* sum over r of score[r][places[r]], in the order of r. */
    __device__ __forceinline__ float matched(int n, const int *places) {
        float value[C], sum = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            int r = c * G + this->lane;
            value[c] = r < n ? score[r * pitch + place(places[c])] : 0;
        }
#pragma unroll 8
        for (int r = 0; r < n; r++) sum += this->at(value, r);
        return sum;
    }

    /* Whether the orbit moved. */
    __device__ __forceinline__ bool improve(int o, bool on, bool fresh) {
        const wf_gpu_orbit &orbit = shape->orbits[o];
        int n = orbit.n, column_of[C], old[C];
        float prices[C], *shown = price + o * units;
        __syncwarp(); /* other lanes have read the last visit's scores and claims */
        for (int r = 0; r < n; r += rows_at_once) score_rows(orbit, o, r);
#pragma unroll
        for (int c = 0; c < C; c++) {
            prices[c] = shown[own(c)];
            old[c] = from[o * units + own(c)];
        }
        if (fresh) start_prices(n, prices);
        bool found = assign(n, on, prices, shown, column_of), differs = false;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (on) shown[own(c)] = prices[c];
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
            if (moved && c * G + this->lane < n) from[o * units + own(c)] = (uint8_t)column_of[c];
        __syncwarp();
        return moved;
    }

    __device__ __forceinline__ void sweep(int restart, bool alive) {
        for (int o = 0; o < shape->n_orbits; o++)
#pragma unroll
            for (int c = 0; c < C; c++) {
                int u = c * G + this->lane, at = restart * shape->n_units + shape->orbits[o].start;
                price[o * units + own(c)] = 0;
                from[o * units + own(c)] = u < shape->orbits[o].n ? shape->begin[at + u] : 0;
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
                /* The first sweep visits every orbit, and each is dirty then. */
                bool gained = improve(o, visit, s == 0);
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
    __device__ __forceinline__ double value() {
        double sum = 0;
        for (int o = 0; o < shape->n_orbits; o++) {
            const float *fixed = fixed_scores(o);
#pragma unroll
            for (int c = 0; c < C; c++) {
                int r = c * G + this->lane;
                if (r < shape->orbits[o].n)
                    sum += (double)fixed[r * args->scores[o].row_step + from[o * units + own(c)]];
            }
        }
        for (int l = 0; l < shape->n_links; l++) {
            const wf_gpu_link &link = shape->links[l];
            if (!link.counted) continue;
            const uint8_t *rows = from + link.other * units + this->first;
#pragma unroll
            for (int c = 0; c < C; c++) {
                int r = c * G + this->lane;
                if (r >= link.n) continue;
                const float *a = query_links + link.start + r;
                const float *b = reference_links + link.start + from[link.orbit * units + own(c)];
                if (link.coef == 1) {
#pragma unroll 4
                    for (int x = 0; x < link.depth; x++)
                        sum += (double)a[x * link.n8] * (double)__ldg(b + rows[x] * link.n8);
                    continue;
                }
                for (int x = 0; x < link.others; x++) {
                    const float *row = b + rows[x] * link.coef * link.n8;
                    for (int k = 0; k < link.coef; k++, a += link.n8, row += link.n8)
                        sum += (double)*a * (double)__ldg(row);
                }
            }
        }
        for (int i = this->lane; i < shape->n_rest; i += G)
            sum += (double)query_links[shape->rest + i] * (double)reference_links[shape->rest + i];
        return this->sum(sum);
    }

    /* The best matching over all restarts, in `best`; returns its value. */
    __device__ __forceinline__ double run(bool alive) {
        double top = 0;
        for (int restart = 0; restart <= shape->restarts; restart++) {
            sweep(restart, alive);
            double now = value();
            bool better = restart == 0 || now > top;
            if (better) top = now;
            for (int o = 0; o < shape->n_orbits; o++)
                for (int c = 0; c < C; c++)
                    if (better) best[o * units + own(c)] = from[o * units + own(c)];
            __syncwarp();
        }
        return top;
    }

    __device__ __forceinline__ void keep(double dot) const {
        if (args->from != NULL)
            for (int o = 0; o < shape->n_orbits; o++)
                for (int c = 0; c < C; c++) {
                    int u = c * G + this->lane;
                    if (u < shape->orbits[o].n)
                        args->from[query * shape->n_units + shape->orbits[o].start + u] =
                            best[o * units + own(c)];
                }
        if (args->cosine == NULL || this->lane != 0) return;
        double norms = sqrt(args->query_squares[query]) * sqrt(args->reference_squares[reference]);
        bool skipped =
            args->skip != NULL && args->skip[query] == args->first_reference + (int64_t)reference;
        args->cosine[query * args->references + reference] = skipped     ? -INFINITY
                                                             : norms > 0 ? (float)(dot / norms)
                                                                         : 0;
    }
};

/* Bytes of shared memory of a warp, a multiple of 16: prices, scores, claims, matchings. */
template <int C> __host__ __device__ size_t warp_bytes(const wf_gpu_shape &shape) {
    size_t rows = (size_t)(shape.widest + rows_at_once - 1) / rows_at_once * rows_at_once;
    size_t lanes = (size_t)warp_size * C, orbits = (size_t)shape.n_orbits;
    return (orbits * lanes + rows * (lanes + 1) + lanes) * sizeof(float) + 2 * orbits * lanes;
}

__host__ __device__ inline size_t query_bytes(const wf_gpu_shape &shape) {
    return ((size_t)shape.link_floats * sizeof(float) + 15) / 16 * 16;
}

/* Grid (strips of references, queries); a strip is pairs_per_group pairs for each group of the
 * block. Pairwise: one warp a block, its first group alone at work. */
template <int G, int C>
__global__ void __launch_bounds__(block_warps *warp_size, 4)
    match_pairs(const __grid_constant__ wf_gpu_shape shape,
                const __grid_constant__ wf_gpu_match_args args) {
    extern __shared__ uint8_t shared[];
    size_t query = blockIdx.y;
    int warp = threadIdx.x / warp_size, in_warp = threadIdx.x % warp_size;
    float *links = (float *)shared;
    const float *record = args.query_links + query * args.query_link_step;
    for (int i = threadIdx.x; i < shape.link_floats; i += blockDim.x) links[i] = record[i];
    __syncthreads();
    pair_state<G, C> pair;
    pair.lane = in_warp % G;
    pair.first = in_warp - pair.lane;
    pair.shape = &shape;
    pair.args = &args;
    pair.query_links = links;
    pair.query = query;
    int units = warp_size * C,
        rows = (shape.widest + rows_at_once - 1) / rows_at_once * rows_at_once;
    pair.price = (float *)(shared + query_bytes(shape) + warp * warp_bytes<C>(shape));
    pair.score = pair.price + shape.n_orbits * units;
    pair.claim = (int *)(pair.score + rows * (units + 1));
    pair.from = (uint8_t *)(pair.claim + units);
    pair.best = pair.from + shape.n_orbits * units;
    int groups = blockDim.x / G, mine = threadIdx.x / G;
    size_t references = args.references;
    size_t first = (size_t)blockIdx.x * groups * pairs_per_group;
    for (int i = 0; i < (args.pairwise ? 1 : (int)pairs_per_group); i++) {
        size_t reference = args.pairwise ? query : first + (size_t)i * groups + mine;
        bool real = args.pairwise ? mine == 0 : reference < references;
        if (!__any_sync(whole_warp, real)) return;
        pair.reference = real ? reference : args.pairwise ? query : references - 1;
        pair.reference_links = args.reference_links + pair.reference * shape.link_floats;
        bool skipped =
            args.skip != NULL && args.skip[query] == args.first_reference + (int64_t)pair.reference;
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
            int row = i / link.n8, u = i % link.n8, x = row / link.coef, k = row % link.coef;
            size_t from = link.offset + (size_t)u * link.unit_step + (size_t)x * link.other_step;
            record[link.start + i] = u < link.n ? w[from + k] : 0;
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
wf_status launch(wf_ctx *ctx, const wf_gpu_shape &shape, const wf_gpu_match_args &args,
                 cudaStream_t stream) {
    int warps = args.pairwise ? 1 : (int)block_warps;
    size_t each = warp_bytes<C>(shape), query = query_bytes(shape);
    while (warps > 1 && query + warps * each > (size_t)shape.shared_bytes) warps /= 2;
    unsigned strip = (unsigned)(warps * warp_size / G * pairs_per_group);
    dim3 grid(args.pairwise ? 1 : ((unsigned)args.references + strip - 1) / strip,
              (unsigned)args.queries);
    match_pairs<G, C><<<grid, warps * warp_size, query + warps * each, stream>>>(shape, args);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return WF_OK;
}

} // namespace

wf_status wf_gpu_match_prepare(wf_ctx *ctx, wf_gpu_shape *shape) {
    if (shape->widest <= 16) return prepare<16, 1>(ctx, shape);
    if (shape->widest <= 32) return prepare<32, 1>(ctx, shape);
    return prepare<32, 2>(ctx, shape);
}

wf_status wf_gpu_match(wf_ctx *ctx, const wf_gpu_shape &shape, const wf_gpu_match_args &args,
                       cudaStream_t stream) {
    if (args.queries == 0 || args.references == 0) return WF_OK;
    if (shape.widest <= 16) return launch<16, 1>(ctx, shape, args, stream);
    if (shape.widest <= 32) return launch<32, 1>(ctx, shape, args, stream);
    return launch<32, 2>(ctx, shape, args, stream);
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
