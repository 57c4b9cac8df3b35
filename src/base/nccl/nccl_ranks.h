/* nccl_ranks: sums and gathers between GPUs over NCCL. nccl_ranks_nccl.cu uses the library;
 * nccl_ranks_absent.c stands in for it in builds without, where only the description is called.
 * Calls are enqueued on a stream and may be captured. They return NULL, or a sentence that says
 * what failed. */
#pragma once

#include "base/comm.h"

WF_BEGIN_C

enum { WF_NCCL_ID = 128 }; /* bytes of the name that ranks meet under */

/* For `weft version`: "2.27.3", or "none". */
const char *wf__nccl_description(void);
bool wf__nccl_present(void);
/* Rank 0 makes the name, all open with it. */
const char *wf__nccl_name(char id[WF_NCCL_ID]);
const char *wf__nccl_open(const char id[WF_NCCL_ID], int rank, int size, void **out);
void wf__nccl_close(void *comm);
/* numbers (n) = their sum over all ranks, the same bits on all. */
const char *wf__nccl_sum(void *comm, void *numbers, size_t n, bool doubles, void *stream);
/* The same of some ranges of floats. */
const char *wf__nccl_sum_ranges(void *comm, float *numbers, const wf_range *ranges, size_t n_ranges,
                                void *stream);
/* Rank r has filled bytes start[r] .. start[r+1]-1; all get all. */
const char *wf__nccl_gather(void *comm, int size, void *bytes, const size_t *start, void *stream);

WF_END_C
