/* pool: run a function over fixed chunks on all threads of a context.
 * The cut into chunks is the caller's and never depends on the thread count; each chunk writes its
 * own output, and sums over chunks are made afterwards in chunk order. So results have the same
 * bits for any number of threads. */
#pragma once

#include "base/status.h"

/* worker is in 0 .. wf_ctx_threads(ctx)-1: an index for scratch memory, nothing else. */
typedef void wf_chunk_fn(void *arg, size_t chunk, int worker);

/* Returns when all chunks are done. ctx NULL runs them here, in order. Not reentrant: a chunk must
 * not call it. */
void wf_parallel(wf_ctx *ctx, size_t chunks, wf_chunk_fn *fn, void *arg);
/* The same, but once the context is interrupted no more chunks are begun: false then, and what the
 * chunks wrote must not be used. */
bool wf_parallel_stoppable(wf_ctx *ctx, size_t chunks, wf_chunk_fn *fn, void *arg);
/* From now on every round of the context is stoppable, or (false) only those that say so. Returns
 * what it was before. For callers of functions that know nothing of interruptions; ctx NULL: false,
 * and nothing changes. */
bool wf_stop_rounds(wf_ctx *ctx, bool stop);
