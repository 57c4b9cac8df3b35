/* match_kernel: weight matching of one pair in float, a score row being one or a few vectors.
 *
 * Scores are products of matrices (match_plan.h); the assignment is by shortest augmenting paths
 * as in assign.c, with
 *   I1  prices kept from the orbit's last visit, the columns' maxima at its first. Any prices
 *       are feasible, because a row's profit is its maximum of score - price, so a warm start
 *       costs nothing and most rows find their old column again;
 *   I2  an orbit whose neighbours have not moved since its last visit is skipped: its scores,
 *       and so its assignment, would be the same. A sweep in which nothing moves is then the
 *       last, exactly as in the plain loop;
 *   I3  padded columns have score -infinity and are never chosen. */
#include "align/match_plan.h"

#include "base/variant.h"

#ifndef WF_REAL_IS_DOUBLE

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef int32_t vint __attribute__((vector_size(WF_LANES * sizeof(int32_t))));

/* --- vector primitives: comparison, choice, smallest lane ------------------------------------- */
#if defined(__AVX512F__)
typedef __mmask16 vmask;
INLINE vmask less(vreal a, vreal b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
INLINE vmask lane_mask(int lane) { return (vmask)(1u << (lane & 31)); }
INLINE vreal choose(vmask mask, vreal a, vreal b) {
    return (vreal)_mm512_mask_blend_ps(mask, (__m512)b, (__m512)a);
}
INLINE vint choose_int(vmask mask, vint a, vint b) {
    return (vint)_mm512_mask_blend_epi32(mask, (__m512i)b, (__m512i)a);
}
INLINE vreal smaller(vreal a, vreal b) { return (vreal)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE float smallest_lane(vreal a) { return _mm512_reduce_min_ps((__m512)a); }
/* The first lane equal to `value`, or WF_LANES. */
INLINE int lane_equal(vreal a, float value) {
    unsigned equal = _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(value), _CMP_EQ_OQ);
    return __builtin_ctz(equal | 1u << WF_LANES);
}
#else
typedef vint vmask;
INLINE vmask less(vreal a, vreal b) { return (vmask)(a < b); }
INLINE vmask lane_mask(int lane) {
    vint count;
    for (int i = 0; i < WF_LANES; i++) count[i] = i;
    return (vmask)(count == (vint){0} + lane);
}
INLINE vint choose_int(vmask mask, vint a, vint b) { return (mask & a) | (~mask & b); }
INLINE vreal choose(vmask mask, vreal a, vreal b) {
    return (vreal)choose_int(mask, (vint)a, (vint)b);
}
INLINE vreal smaller(vreal a, vreal b) { return choose(less(a, b), a, b); }
#if defined(__AVX2__)
INLINE float smallest_lane(vreal a) {
    __m128 half =
        _mm_min_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
    half = _mm_min_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_min_ss(half, _mm_movehdup_ps(half)));
}
INLINE int lane_equal(vreal a, float value) {
    __m256 equal = _mm256_cmp_ps((__m256)a, _mm256_set1_ps(value), _CMP_EQ_OQ);
    return __builtin_ctz((unsigned)_mm256_movemask_ps(equal) | 1u << WF_LANES);
}
#else
INLINE float smallest_lane(vreal a) {
    float least = a[0];
    for (int i = 1; i < WF_LANES; i++) least = a[i] < least ? a[i] : least;
    return least;
}
INLINE int lane_equal(vreal a, float value) {
    for (int i = 0; i < WF_LANES; i++)
        if (a[i] == value) return i;
    return WF_LANES;
}
#endif
#endif

INLINE vreal load(const float *at) { return *(const vreal_u *)at; }
INLINE void store(float *at, vreal value) { *(vreal_u *)at = value; }
INLINE vreal splat(float value) { return (vreal){0} + value; }

/* Smallest entry of nv vectors and its place. */
INLINE int place_of_least(int nv, const vreal *values, float *least) {
    vreal low = values[0];
    for (int v = 1; v < nv; v++) low = smaller(low, values[v]);
    *least = smallest_lane(low);
    for (int v = 0; v < nv; v++) {
        int lane = lane_equal(values[v], *least);
        if (lane < WF_LANES) return v * WF_LANES + lane;
    }
    return 0; /* not reached: one entry is the least */
}

/* --- products --------------------------------------------------------------------------------- */

/* c_v[r] = (init ? init_v[r] : 0) + sum_k a[r*depth + k] * b_v[row(k)*ldb], r < rows, v < vectors;
 * row(k) = k without an index. */
INLINE void product_step(const int rows, const int vectors, const float *a, size_t depth,
                         const float *const *b, size_t ldb, const uint32_t *index,
                         const float *init, float *const *c, size_t ldc) {
    vreal sum[8][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] =
                init == NULL ? splat(0) : load(init + (size_t)r * ldc + (size_t)v * WF_LANES);
    for (size_t k = 0; k < depth; k++) {
        size_t row = (index == NULL ? k : index[k]) * ldb;
        for (int v = 0; v < vectors; v++) {
            vreal value = load(b[v] + row);
            for (int r = 0; r < rows; r++) sum[r][v] += a[(size_t)r * depth + k] * value;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) store(c[v] + (size_t)r * ldc, sum[r][v]);
}

enum { most_rows = WF_LANES == 16 ? 8 : 4 };

INLINE void product(const int vectors, int n, const float *a, size_t depth, const float *const *b,
                    size_t ldb, const uint32_t *index, const float *init, float *const *c,
                    size_t ldc) {
    int r = 0;
    while (r < n) {
        float *place[2];
        for (int v = 0; v < vectors; v++) place[v] = c[v] + (size_t)r * ldc;
        const float *rows = a + (size_t)r * depth,
                    *from = init == NULL ? NULL : init + (size_t)r * ldc;
        int left = n - r;
        if (left >= most_rows) {
            product_step(most_rows, vectors, rows, depth, b, ldb, index, from, place, ldc);
            r += most_rows;
        } else if (left >= 2) {
            product_step(2, vectors, rows, depth, b, ldb, index, from, place, ldc);
            r += 2;
        } else {
            product_step(1, vectors, rows, depth, b, ldb, index, from, place, ldc);
            r += 1;
        }
    }
}

static void product_two(int n, const float *a, size_t depth, const float *const *b, size_t ldb,
                        float *const *c, size_t ldc) {
    product(2, n, a, depth, b, ldb, NULL, NULL, c, ldc);
}

/* Vectors of all references are taken two at a time, so that a weight of the query serves both. */
static void fixed_scores(const wf_match_plan *plan, const float *query, const float *references,
                         size_t count, float *scores) {
    for (int o = 0; o < plan->n_orbits; o++) {
        const wf_match_orbit *orbit = &plan->orbits[o];
        size_t padded = (size_t)orbit->padded, parts = padded / WF_LANES, all = parts * count;
        for (size_t first = 0; first < all; first += 2) {
            const float *b[2];
            float *c[2];
            for (size_t v = 0; v < 2; v++) {
                size_t vector = first + v < all ? first + v : all - 1;
                size_t reference = vector / parts, shift = vector % parts * WF_LANES;
                b[v] = references + reference * plan->reference_floats + orbit->b + shift;
                c[v] = scores + reference * plan->score_floats + orbit->score + shift;
            }
            product_two(orbit->n, query + orbit->a, orbit->depth, b, padded, c, padded);
        }
    }
}

/* score (n, padded) = fixed + links under the current matching. */
static void add_links(const wf_match_plan *plan, const wf_match_orbit *orbit, const float *query,
                      const float *reference, const float *fixed, wf_match_work *work) {
    size_t padded = (size_t)orbit->padded;
    const float *init = fixed;
    for (int l = orbit->first_link; l < orbit->first_link + orbit->n_links; l++) {
        const wf_match_link *link = &plan->links[l];
        const uint32_t *rows = work->from + plan->orbits[link->other].start;
        if (link->coef > 1) {
            for (size_t k = 0; k < link->depth; k++)
                work->rows[k] = rows[k / (size_t)link->coef] * (uint32_t)link->coef +
                                (uint32_t)(k % (size_t)link->coef);
            rows = work->rows;
        }
        size_t shift = 0;
        for (; shift + 2 * WF_LANES <= padded; shift += 2 * WF_LANES) {
            const float *b[2] = {reference + link->b + shift,
                                 reference + link->b + shift + WF_LANES};
            float *c[2] = {work->score + shift, work->score + shift + WF_LANES};
            product(2, orbit->n, query + link->a, link->depth, b, padded, rows, init + shift, c,
                    padded);
        }
        for (; shift < padded; shift += WF_LANES) {
            const float *b[1] = {reference + link->b + shift};
            float *c[1] = {work->score + shift};
            product(1, orbit->n, query + link->a, link->depth, b, padded, rows, init + shift, c,
                    padded);
        }
        init = work->score;
    }
    if (orbit->n_links == 0) memcpy(work->score, fixed, (size_t)orbit->n * padded * sizeof(float));
}

/* --- assignment ------------------------------------------------------------------------------- */

/* One orbit's problem. The vectors are registers where nv is a constant. */
typedef struct problem {
    int n;
    bool fresh;         /* the orbit's first visit: the prices are to be made */
    const float *score; /* (n, nv vectors) */
    float *price;       /* nv vectors */
    uint32_t *match;    /* [n] column of a row */
    int32_t *row_of, *previous;
    uint32_t *free_rows;
    const wf_ctx *watched;
} problem;

/* Orbits of more vectors than this take long enough to look for an interruption inside. */
enum { quick_vectors = 4 };

INLINE void mask_padding(int nv, int n, float *score) {
    if (n == nv * WF_LANES) return;
    for (int r = 0; r < n; r++)
        for (int j = n; j < nv * WF_LANES; j++)
            score[(size_t)r * (size_t)(nv * WF_LANES) + (size_t)j] = -INFINITY;
}

/* Shortest augmenting path from a free row, then the prices, then the path flipped. */
INLINE void augment(const int nv, const problem *p, uint32_t start, vreal *distance, vreal *open,
                    vreal *settled, vint *previous) {
    size_t width = (size_t)nv * WF_LANES;
    const float *row = p->score + start * width;
    float reached, base;
    for (int v = 0; v < nv; v++) {
        open[v] = load(p->price + v * WF_LANES);
        settled[v] = splat(INFINITY);
        distance[v] = open[v] - load(row + v * WF_LANES);
        previous[v] = (vint){0} + (int32_t)start;
    }
    int column = place_of_least(nv, distance, &base);
    for (int v = 0; v < nv; v++) distance[v] -= base;
    reached = 0;
    for (;;) {
        int32_t owner = p->row_of[column];
        if (owner < 0) break;
        row = p->score + (size_t)owner * width;
        base = reached + (row[column] - p->price[column]);
        for (int v = 0; v < nv; v++) {
            /* A lane outside this vector gives an empty mask. */
            int lane = column - v * WF_LANES;
            vmask here = lane_mask(lane >= 0 && lane < WF_LANES ? lane : WF_LANES);
            settled[v] = choose(here, splat(reached), settled[v]);
            distance[v] = choose(here, splat(INFINITY), distance[v]);
            open[v] = choose(here, splat(INFINITY), open[v]);
            vreal through = (open[v] - load(row + v * WF_LANES)) + base;
            vmask closer = less(through, distance[v]);
            distance[v] = choose(closer, through, distance[v]);
            previous[v] = choose_int(closer, (vint){0} + owner, previous[v]);
        }
        column = place_of_least(nv, distance, &reached);
    }
    for (int v = 0; v < nv; v++) {
        vreal rise = splat(reached) - settled[v], price = load(p->price + v * WF_LANES);
        store(p->price + v * WF_LANES, choose(less(splat(0), rise), price + rise, price));
        memcpy(p->previous + v * WF_LANES, &previous[v], sizeof previous[v]);
    }
    for (;;) {
        uint32_t r = (uint32_t)p->previous[column], next = p->match[r];
        p->row_of[column] = (int32_t)r;
        p->match[r] = (uint32_t)column;
        if (r == start) return;
        column = (int)next;
    }
}

INLINE void start_prices(int nv, const problem *p) {
    size_t width = (size_t)nv * WF_LANES;
    for (int v = 0; v < nv; v++) {
        vreal top = load(p->score + v * WF_LANES);
        for (int r = 1; r < p->n; r++) {
            vreal row = load(p->score + (size_t)r * width + (size_t)v * WF_LANES);
            top = choose(less(top, row), row, top);
        }
        /* Padding, whose maximum is -infinity, keeps price 0. */
        store(p->price + v * WF_LANES, choose(less(splat(-INFINITY), top), top, splat(0)));
    }
}

INLINE void assign(const int nv, const problem *p, vreal *distance, vreal *open, vreal *settled,
                   vint *previous) {
    size_t width = (size_t)nv * WF_LANES;
    int n_free = 0;
    if (p->fresh) start_prices(nv, p);
    for (size_t j = 0; j < width; j++) p->row_of[j] = -1;
    for (int r = 0; r < p->n; r++) {
        float least;
        for (int v = 0; v < nv; v++)
            distance[v] = load(p->price + v * WF_LANES) -
                          load(p->score + (size_t)r * width + (size_t)v * WF_LANES);
        int column = place_of_least(nv, distance, &least);
        if (p->row_of[column] >= 0) {
            p->free_rows[n_free++] = (uint32_t)r;
            continue;
        }
        p->row_of[column] = r;
        p->match[r] = (uint32_t)column;
    }
    for (int i = 0; i < n_free; i++) {
        if (nv > quick_vectors && wf_interrupted(p->watched)) return;
        augment(nv, p, p->free_rows[i], distance, open, settled, previous);
    }
}

#define ASSIGN_FIXED(nv)                                                                           \
    static void assign_##nv(const problem *p) {                                                    \
        vreal distance[nv], open[nv], settled[nv];                                                 \
        vint previous[nv];                                                                         \
        assign(nv, p, distance, open, settled, previous);                                          \
    }
ASSIGN_FIXED(1)
ASSIGN_FIXED(2)
ASSIGN_FIXED(4)

static void assign_any(const problem *p, int nv, float *search) {
    vreal *vectors = (vreal *)(void *)search;
    assign(nv, p, vectors, vectors + nv, vectors + 2 * nv, (vint *)(void *)(vectors + 3 * nv));
}

/* --- one pair --------------------------------------------------------------------------------- */

static float matched_score(const float *score, size_t width, const uint32_t *match, int n) {
    float sum = 0;
    for (int r = 0; r < n; r++) sum += score[(size_t)r * width + match[r]];
    return sum;
}

static double matched_value(const wf_match_plan *plan, const float *query, const float *reference,
                            const float *fixed, const wf_match_work *work) {
    double value = 0;
    for (int o = 0; o < plan->n_orbits; o++) {
        const wf_match_orbit *orbit = &plan->orbits[o];
        value += (double)matched_score(fixed + orbit->score, (size_t)orbit->padded,
                                       work->from + orbit->start, orbit->n);
    }
    for (int l = 0; l < plan->n_links; l++) {
        const wf_match_link *link = &plan->links[l];
        if (!link->counted) continue;
        const wf_match_orbit *orbit = &plan->orbits[link->orbit];
        const uint32_t *columns = work->from + orbit->start;
        const uint32_t *rows = work->from + plan->orbits[link->other].start;
        for (size_t k = 0; k < link->depth; k++) {
            size_t coef = (size_t)link->coef;
            const float *b =
                reference + link->b + (rows[k / coef] * coef + k % coef) * (size_t)orbit->padded;
            float sum = 0;
            for (int r = 0; r < orbit->n; r++)
                sum += query[link->a + (size_t)r * link->depth + k] * b[columns[r]];
            value += (double)sum;
        }
    }
    for (size_t i = 0; i < plan->rest; i++)
        value += (double)query[plan->rest_a + i] * (double)reference[plan->rest_b + i];
    return value;
}

static void exchange(uint32_t *a, uint32_t *b, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* Whether the orbit moved. */
static bool improve(const wf_match_plan *plan, const wf_match_orbit *orbit, bool fresh,
                    const float *query, const float *reference, const float *fixed,
                    wf_match_work *work) {
    int nv = orbit->padded / WF_LANES, n = orbit->n;
    size_t width = (size_t)orbit->padded;
    add_links(plan, orbit, query, reference, fixed + orbit->score, work);
    mask_padding(nv, n, work->score);
    problem p = {n,
                 fresh,
                 work->score,
                 work->price + orbit->price,
                 work->match,
                 work->row_of,
                 work->previous,
                 work->free_rows,
                 work->watched};
    if (nv == 1) assign_1(&p);
    else if (nv == 2) assign_2(&p);
    else if (nv == 4) assign_4(&p);
    else assign_any(&p, nv, work->search);
    if (nv > quick_vectors && wf_interrupted(work->watched)) return false; /* rows may be free */
    uint32_t *from = work->from + orbit->start;
    if (memcmp(from, work->match, (size_t)n * sizeof *from) == 0) return false;
    float gain = matched_score(work->score, width, work->match, n) -
                 matched_score(work->score, width, from, n);
    if (!((double)gain > plan->desc.tolerance)) return false;
    double value = orbit->has_loop ? matched_value(plan, query, reference, fixed, work) : 0;
    exchange(from, work->match, n);
    if (!orbit->has_loop ||
        matched_value(plan, query, reference, fixed, work) - value > plan->desc.tolerance)
        return true;
    exchange(from, work->match, n);
    return false;
}

static void run_sweeps(const wf_match_plan *plan, const float *query, const float *reference,
                       const float *fixed, int restart, wf_match_work *work) {
    size_t orbits = (size_t)plan->n_orbits;
    memcpy(work->from, plan->start + (size_t)restart * (size_t)plan->n_units,
           (size_t)plan->n_units * sizeof *work->from);
    for (int o = 0; o < plan->n_orbits; o++) work->dirty[o] = true;
    for (int sweep = 0; sweep < plan->desc.sweeps; sweep++) {
        const uint32_t *order = work->order;
        if (sweep < plan->tabled)
            order = plan->order + ((size_t)restart * (size_t)plan->tabled + (size_t)sweep) * orbits;
        else
            wf__match_order(plan->graph, plan->desc.seed, (uint32_t)restart, (uint32_t)sweep,
                            work->order);
        bool moved = false;
        for (size_t i = 0; i < orbits; i++) {
            const wf_match_orbit *orbit = &plan->orbits[order[i]];
            if (!work->dirty[order[i]]) continue;
            work->dirty[order[i]] = false;
            /* The first sweep visits every orbit, and each is dirty then. */
            if (!improve(plan, orbit, sweep == 0, query, reference, fixed, work)) continue;
            moved = true;
            for (int l = 0; l < orbit->n_links; l++)
                work->dirty[plan->links[orbit->first_link + l].other] = true;
        }
        if (!moved || wf_interrupted(work->watched)) return;
    }
}

static double match_pair(const wf_match_plan *plan, const float *query, const float *reference,
                         const float *fixed, wf_match_work *work) {
    double best = 0;
    for (int restart = 0; restart <= plan->desc.restarts; restart++) {
        run_sweeps(plan, query, reference, fixed, restart, work);
        double value = matched_value(plan, query, reference, fixed, work);
        if (restart > 0 && !(value > best)) continue;
        best = value;
        memcpy(work->best_from, work->from, (size_t)plan->n_units * sizeof *work->from);
        if (wf_interrupted(work->watched)) break;
    }
    return best;
}

const wf_match_kernel WF_FN(wf__match_kernel) = {fixed_scores, match_pair};

#endif
