/* assign: the exact assignment without allocation, for loops that solve many of them. */
#pragma once

#include "base/isa.h"
#include "base/status.h"

/* Bytes of scratch memory that one problem of size n needs; 8-byte aligned. */
size_t wf__assign_scratch(int n);

/* The permutation that maximises sum_r score[r*n + match[r]]; returns the sum. Finite scores. */
double wf__assign(int n, const double *score, uint32_t *match, void *scratch);

/* The same from given column prices, which are replaced by the final ones. Any finite prices
 * lead to an exact answer; those of a similar problem lead there faster. */
double wf__assign_warm(int n, const double *score, double *price, uint32_t *match, void *scratch);

typedef struct wf_assign_kernel {
    /* distance[j] = min(distance[j], (base - row[j]) + open[j]); returns the least and its first
     * place. */
    double (*relax)(size_t n, const double *row, const double *open, double base, double *distance,
                    uint32_t *place);
    double (*least)(size_t n, const double *values, uint32_t *place);
} wf_assign_kernel;

extern const wf_assign_kernel wf__assign_kernel_base_f32;
#if defined(__x86_64__)
extern const wf_assign_kernel wf__assign_kernel_avx2_f32, wf__assign_kernel_avx512_f32;
#endif
