/* comm: what the library asks of a context whose work several processes share.
 *
 * C1  All ranks make the same collective calls in the same order. What they branch on is equal on
 *     all of them: arguments, results of collective calls, and files, which change only inside
 *     collective calls (base/io.c).
 * C2  A rank that fails by itself gives up (wf_comm_give_up): the collective calls of the others
 *     fail, and none waits for ever. A rank that falls silent is found by the others within
 *     WEFT_RANK_TIMEOUT seconds (base/mpi/).
 * C3  After a failure all collective calls fail. Files are then rank 0's alone to write, without
 *     the others.
 * C4  With one rank every call returns at once and changes nothing. */
#pragma once

#include "base/status.h"
#include "weft/comm.h"

#ifndef __cplusplus
#include <stdatomic.h>
#endif

WF_BEGIN_C

/* --- of a context ----------------------------------------------------------------------------- */

/* Rank 0's bytes go to all. */
wf_status wf_broadcast(wf_ctx *ctx, void *bytes, size_t count);
wf_status wf_barrier(wf_ctx *ctx);

/* Rank r works on items start(r) .. start(r+1)-1 of `count`. */
typedef struct wf_range {
    size_t first, last; /* last: one past it */
} wf_range;
size_t wf_share_start(size_t count, int rank, int ranks);
wf_range wf_share(const wf_ctx *ctx, size_t count); /* this rank's */
/* Each rank has filled its share of rows (count, row_bytes); all get all. rows may be NULL, for
 * nobody. */
wf_status wf_gather_rows(wf_ctx *ctx, void *rows, size_t row_bytes, size_t count);
/* The same with any cut: rank r has filled bytes start[r] .. start[r+1]-1. */
wf_status wf_gather_bytes(wf_ctx *ctx, void *bytes, const size_t *start);

/* Every rank's status: WF_OK when all have WF_OK, else on all ranks the failure of the lowest
 * failing rank. An interruption counts less than any other failure. */
wf_status wf_agree(wf_ctx *ctx, wf_status mine);
/* wf_agree of some shared work, then the gathering of its rows. */
wf_status wf_agree_rows(wf_ctx *ctx, wf_status mine, void *rows, size_t row_bytes, size_t count);
/* Rank 0's status for all, with its sentence. */
wf_status wf_from_rank_0(wf_ctx *ctx, wf_status status);
/* When all ranks are here, rank 0 does `work` alone; its status for all. */
wf_status wf_rank_0_does(wf_ctx *ctx, wf_status (*work)(wf_ctx *ctx, void *user), void *user);
/* Fails where ranks have different texts: "rank 2 on node3 has another WHAT than rank 0 on node1
 * (b, a)". */
wf_status wf_same(wf_ctx *ctx, const char *what, const char *text);

/* out = the sum over ranks 0 .. active-1, in their order. The running sum passes from rank to rank
 * in buckets, so the bits are those of one process that adds everything in this order: while a rank
 * adds to one bucket, the next rank adds to the one before. */
enum { WF_BUCKET = 65536 }; /* numbers of a usual bucket */
typedef struct wf_ordered_sum {
    float *out;
    const wf_range *buckets; /* ranges of `out`, in the order in which they are summed */
    size_t n_buckets;
    int active; /* ranks from this one on only get the result */
    /* Adds this rank's numbers of a bucket to `running`, or, when `fresh`, sets them; false: out of
     * memory. */
    bool (*add)(void *user, size_t first, size_t n, float *running, bool fresh);
    /* With `beside`: returns once this rank has its numbers of a bucket. */
    void (*wait_for)(void *user, size_t bucket);
    /* Runs on the calling thread, while another thread sums and calls the other two; NULL: the
     * calling thread sums, and the numbers are there. */
    void (*beside)(void *user);
    void *user;
} wf_ordered_sum;
wf_status wf_sum_in_order(wf_ctx *ctx, const wf_ordered_sum *sum);

/* While true, the context works as if it were alone; returns what it was. For work and files of
 * this rank only. */
bool wf_work_alone(wf_ctx *ctx, bool alone);
/* Rank 0 and all that stand alone write files. */
bool wf_writes_files(const wf_ctx *ctx);
/* Whether files are written in collective calls: there are several ranks, and none has failed. */
bool wf_writes_together(const wf_ctx *ctx);
/* "rank 2 on node3", in a static buffer of the calling thread. */
const char *wf_rank_name(const wf_comm *comm, int rank);

/* --- the object, shared with the implementations (base/mpi/) ---------------------------------- */

#ifndef __cplusplus /* C++ has other atomics; the CUDA code needs no look inside */
struct wf_comm {
    int rank, size, local_rank;
    char (*host)[64];    /* [size] */
    atomic_int failed;   /* a wf_status: nothing is collective any more */
    atomic_bool failing; /* the first failure is the one to tell */
    int failed_rank;
    bool finder;                     /* this rank found it lost */
    int blamed;                      /* whose failure all ranks have agreed on; -1: nobody's */
    char sentence[WF_COMM_SENTENCE]; /* of the failure; written before `failed` */
    wf_ctx *_Atomic ctx;             /* is interrupted when another rank stops */
    wf_comm_desc desc;
    float *running; /* of wf_sum_in_order */
    size_t n_running;
    struct wf_mpi *mpi;
};
#endif

wf_comm *wf__ctx_comm(const wf_ctx *ctx); /* NULL: it is alone, or works alone */
/* Notes the first failure; false when there was one before. */
bool wf__comm_fail(wf_comm *comm, wf_status status, int rank, const char *sentence);

WF_END_C
