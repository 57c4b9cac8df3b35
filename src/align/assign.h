/* assign: the exact assignment without allocation, for loops that solve many of them. */
#ifndef WF_ALIGN_ASSIGN_H
#define WF_ALIGN_ASSIGN_H

#include "base/status.h"

/* Bytes of scratch memory that one problem of size n needs; 8-byte aligned. */
size_t wf__assign_scratch(int n);

/* The permutation that maximises sum_r score[r*n + match[r]]; returns the sum. Finite scores only. */
double wf__assign(int n, const double *score, uint32_t *match, void *scratch);

#endif
