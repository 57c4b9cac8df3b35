/* device_ranks: numbers in device memory that several ranks share.
 *
 * D1  Calls are enqueued on a stream and may be captured. All ranks make the same calls in the same
 *     order.
 * D2  NCCL carries them where it is built in and every rank has a GPU of its own. NCCL refuses two
 *     ranks on one GPU: then, without NCCL, and with WEFT_NCCL=off, numbers go through pinned host
 *     memory and MPI, called by the stream (cudaLaunchHostFunc). A warning says so. With
 *     WEFT_NCCL=on one rank by itself takes NCCL, too.
 * D3  For the same number of ranks the results have the same bits, and all ranks have the same. */
#pragma once

#include "base/comm.h"

WF_BEGIN_C

typedef struct wf_device_ranks wf_device_ranks;

/* Of the context's ranks and its GPU; collective. *out NULL: there is one rank. */
wf_status wf_device_ranks_open(wf_ctx *ctx, wf_device_ranks **out);
/* The streams have passed all calls, and no captured one is launched again. Accepts NULL. */
void wf_device_ranks_close(wf_device_ranks *ranks);
/* numbers (n), floats or doubles, become their sums over the ranks. */
wf_status wf_device_ranks_sum(wf_ctx *ctx, wf_device_ranks *ranks, void *numbers, size_t n,
                              bool doubles, void *stream);
/* The same of some ranges of floats, in one exchange. */
wf_status wf_device_ranks_sum_ranges(wf_ctx *ctx, wf_device_ranks *ranks, float *numbers,
                                     const wf_range *ranges, size_t n_ranges, void *stream);
/* Rank r has filled bytes start[r] .. start[r+1]-1; all get all. */
wf_status wf_device_ranks_gather(wf_ctx *ctx, wf_device_ranks *ranks, void *bytes,
                                 const size_t *start, void *stream);

WF_END_C
