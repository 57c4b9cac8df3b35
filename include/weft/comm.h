/* weft/comm.h: several processes that work as one (docs/scaling.md).
 *
 * A launcher starts the same program several times: `mpirun -n 4 PROGRAM`. Every process joins,
 * puts the communicator into its context, and then makes the same library calls with the same
 * arguments in the same order. Each call shares its work out over the processes (ranks); results
 * are those of one process, bit for bit on the CPU. Rank 0 alone writes files.
 *
 *     wf_comm *comm;
 *     char why[WF_COMM_SENTENCE];
 *     wf_comm_join(&(wf_comm_desc){.arguments = "train"}, &comm, why);
 *     wf_ctx_create(&(wf_ctx_desc){.comm = comm, .gpu = wf_comm_local_rank(comm)}, &ctx);
 *     status = wf_generator_fit(ctx, ...);
 *     if (status != WF_OK) wf_comm_give_up(ctx, status, wf_last_error(ctx));
 *     wf_ctx_free(ctx);
 *     status = wf_comm_end(comm, why);
 *     wf_comm_leave(comm);
 *
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_COMM_H
#define WEFT_COMM_H

#include "weft/base.h"

WF_BEGIN_C

typedef struct wf_comm wf_comm;

enum { WF_COMM_SENTENCE = 768 };

typedef struct wf_comm_desc {
    /* Digested and compared: ranks that were started with other arguments are refused. NULL:
     * nothing. */
    const char *arguments;
    /* Another rank failed or was lost, and this one has not come back to the communicator for some
     * seconds: it hangs in a call of its own. Called on another thread; should print the sentence
     * and end the process. NULL: MPI_Abort. */
    void (*stuck)(void *user, const char *sentence);
    void *user;
} wf_comm_desc;

/* Joins the processes that a launcher started together. *out NULL with WF_OK: this process stands
 * alone, at no cost. Fails when ranks differ in build, instruction set or arguments, and when there
 * are several but this build has no MPI.
 * *out is the caller's, also after a failure: wf_comm_leave(), once the sentence is told, because a
 * launcher may end all when one has left. Returns WF_OK, WF_ERR_USAGE (ranks differ), WF_ERR_RANK
 * (one was lost), WF_ERR_UNSUPPORTED (no MPI in this build) or WF_ERR_MEMORY; `sentence` says
 * which, "" where another rank speaks. */
WF_API wf_status wf_comm_join(const wf_comm_desc *desc, wf_comm **out,
                              char sentence[WF_COMM_SENTENCE]);
/* The last shared call. Waits until all ranks are here. Fails when another rank gave up after this
 * one's last shared call; `sentence` says why, "" where another rank speaks.
 * comm may be NULL. Returns WF_OK or the status of the rank that failed. */
WF_API wf_status wf_comm_end(wf_comm *comm, char sentence[WF_COMM_SENTENCE]);
/* comm may be NULL and is gone afterwards. Ends the process where another rank was lost: MPI cannot
 * be left then. */
WF_API void wf_comm_leave(wf_comm *comm);

/* All accept NULL: rank 0 of 1, whose host is "". The host's name belongs to the communicator. */
WF_API int wf_comm_rank(const wf_comm *comm);
WF_API int wf_comm_size(const wf_comm *comm);
WF_API int wf_comm_local_rank(const wf_comm *comm); /* among the ranks of this host: its GPU */
WF_API const char *wf_comm_host(const wf_comm *comm, int rank);

/* Of the context's communicator. */
WF_API int wf_ctx_rank(const wf_ctx *ctx);
WF_API int wf_ctx_ranks(const wf_ctx *ctx);
/* All ranks get rank 0's answer, so that all take the same branch.
 * Returns WF_OK, or the status of a rank that failed meanwhile. */
WF_API wf_status wf_ctx_decide(wf_ctx *ctx, bool *answer);
/* This rank has failed: shared calls of the others end with `status` and a sentence that names rank
 * and host. From here on the context works by itself; ranks other than 0 write no files. Harmless
 * when another rank has failed before. */
WF_API void wf_comm_give_up(wf_ctx *ctx, wf_status status, const char *sentence);
/* The failure of another rank that ended this one's work; NULL: there was none. It belongs to the
 * communicator. */
WF_API const char *wf_comm_failure(const wf_comm *comm);
/* Returns its status; WF_OK: there was none. */
WF_API wf_status wf_comm_failure_status(const wf_comm *comm);
/* Is this the rank that tells the user? Rank 0; when that is lost, the one that found it so. */
WF_API bool wf_comm_speaks(const wf_comm *comm);

WF_END_C

#endif
