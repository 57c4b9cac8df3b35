/* assign_kernel: the two passes over a row that the exact assignment is made of, in double. */
#include "align/assign.h"

#include "base/variant.h"

#ifndef WF_REAL_IS_DOUBLE

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { lanes = WF_LANES / 2 };
typedef double vdouble __attribute__((vector_size(lanes * sizeof(double))));
typedef double vdouble_u
    __attribute__((vector_size(lanes * sizeof(double)), aligned(sizeof(double)), may_alias));

static inline vdouble smaller(vdouble a, vdouble b) {
#if defined(__AVX512F__)
    return (vdouble)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
    return (vdouble)_mm256_min_pd((__m256d)a, (__m256d)b);
#else
    for (int i = 0; i < lanes; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
#endif
}

static double smallest_lane(vdouble a) {
    double low = a[0];
    for (int i = 1; i < lanes; i++) low = a[i] < low ? a[i] : low;
    return low;
}

static uint32_t first_place(size_t n, const double *values, double value) {
    size_t j = 0;
#if defined(__AVX512F__)
    for (; j + lanes <= n; j += lanes) {
        unsigned equal =
            _mm512_cmp_pd_mask(_mm512_loadu_pd(values + j), _mm512_set1_pd(value), _CMP_EQ_OQ);
        if (equal != 0) return (uint32_t)j + (uint32_t)__builtin_ctz(equal);
    }
#endif
    while (j + 1 < n && values[j] != value) j++;
    return (uint32_t)j;
}

static double least(size_t n, const double *values, uint32_t *place) {
    vdouble low = (vdouble){0} + INFINITY;
    double rest = INFINITY;
    size_t j = 0;
    for (; j + lanes <= n; j += lanes) low = smaller(low, *(const vdouble_u *)(values + j));
    for (; j < n; j++) rest = values[j] < rest ? values[j] : rest;
    double lane = smallest_lane(low), value = lane < rest ? lane : rest;
    *place = first_place(n, values, value);
    return value;
}

static double relax(size_t n, const double *row, const double *open, double base, double *distance,
                    uint32_t *place) {
    vdouble low = (vdouble){0} + INFINITY;
    double rest = INFINITY;
    size_t j = 0;
    for (; j + lanes <= n; j += lanes) {
        vdouble through = (base - *(const vdouble_u *)(row + j)) + *(const vdouble_u *)(open + j);
        vdouble nearer = smaller(through, *(const vdouble_u *)(distance + j));
        *(vdouble_u *)(distance + j) = nearer;
        low = smaller(low, nearer);
    }
    for (; j < n; j++) {
        double through = (base - row[j]) + open[j];
        distance[j] = through < distance[j] ? through : distance[j];
        rest = distance[j] < rest ? distance[j] : rest;
    }
    double lane = smallest_lane(low), value = lane < rest ? lane : rest;
    *place = first_place(n, distance, value);
    return value;
}

const wf_assign_kernel WF_FN(wf__assign_kernel) = {relax, least};

#endif
