#include "base/comm.h"

#include "base/io.h"
#include "base/isa.h"
#include "base/mpi/mpi_ranks.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int wf_comm_rank(const wf_comm *comm) { return comm == NULL ? 0 : comm->rank; }
int wf_comm_size(const wf_comm *comm) { return comm == NULL ? 1 : comm->size; }
int wf_comm_local_rank(const wf_comm *comm) { return comm == NULL ? 0 : comm->local_rank; }
const char *wf_comm_host(const wf_comm *comm, int rank) {
    return comm == NULL ? "" : comm->host[rank];
}

const char *wf_comm_failure(const wf_comm *comm) {
    int status = comm != NULL ? atomic_load(&comm->failed) : WF_OK;
    bool failed = status != WF_OK && status != WF_ERR_INTERRUPTED; /* all were stopped then */
    return failed && comm->failed_rank != comm->rank ? comm->sentence : NULL;
}

wf_status wf_comm_failure_status(const wf_comm *comm) {
    return wf_comm_failure(comm) == NULL ? WF_OK : (wf_status)atomic_load(&comm->failed);
}

bool wf_comm_speaks(const wf_comm *comm) {
    if (comm == NULL) return true;
    bool lost = atomic_load(&comm->failed) == WF_ERR_RANK && comm->failed_rank == 0;
    return lost ? comm->finder : comm->rank == 0;
}

const char *wf_rank_name(const wf_comm *comm, int rank) {
    static _Thread_local char text[96];
    snprintf(text, sizeof text, "rank %d on %s", rank, wf_comm_host(comm, rank));
    return text;
}

bool wf__launched(void) {
    const char *choice = getenv("WEFT_MPI");
    if (choice != NULL && choice[0] != '\0') return strcmp(choice, "off") != 0;
    /* Open MPI, PMIx (srun --mpi=pmix), PMI (MPICH, Intel MPI, srun --mpi=pmi2), PALS. */
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "PALS_RANKID"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (getenv(marks[i]) != NULL) return true;
    return false;
}

/* --- failures --------------------------------------------------------------------------------- */

bool wf__comm_fail(wf_comm *comm, wf_status status, int rank, const char *sentence) {
    if (atomic_exchange(&comm->failing, true)) return false;
    snprintf(comm->sentence, sizeof comm->sentence, "%s", sentence);
    comm->failed_rank = rank;
    atomic_store(&comm->failed, (int)status);
    return true;
}

/* The status of a collective call. */
static wf_status result(wf_ctx *ctx, const wf_comm *comm, bool done) {
    if (done) return WF_OK;
    wf_status status = (wf_status)atomic_load(&comm->failed);
    if (status == WF_OK) return wf_fail(ctx, WF_ERR_MEMORY, "no memory for a sum over ranks");
    return wf_fail(ctx, status, "%s", comm->sentence);
}

void wf_comm_give_up(wf_ctx *ctx, wf_status status, const char *sentence) {
    wf_comm *comm = wf__ctx_comm(ctx);
    if (comm == NULL) return;
    if (wf__comm_fail(comm, status, comm->rank, sentence))
        wf__mpi_tell_failure(comm, status, sentence);
}

/* --- joining ---------------------------------------------------------------------------------- */

static void comm_free(wf_comm *comm) {
    free(comm->running);
    free(comm->host);
    free(comm);
}

typedef struct introduction {
    char build[33], arguments[65], isa[16], version[16];
} introduction;

static introduction introduce(const wf_comm_desc *desc) {
    introduction own = {.build = "?"};
    wf_file_digest(NULL, "/proc/self/exe", own.build);
    const char *arguments = desc->arguments != NULL ? desc->arguments : "";
    wf_sha256_hex(arguments, strlen(arguments), own.arguments);
    snprintf(own.isa, sizeof own.isa, "%s", wf_isa_name(wf_isa()));
    snprintf(own.version, sizeof own.version, "%s", WF_VERSION);
    return own;
}

/* Everybody knows all introductions, so all come to the same result. */
static wf_status compare(const wf_comm *comm, const introduction *all, char *sentence) {
    for (int r = 1; r < comm->size; r++) {
        const introduction *a = &all[0], *b = &all[r];
        char first[96], other[96];
        snprintf(first, sizeof first, "%s", wf_rank_name(comm, 0));
        snprintf(other, sizeof other, "%s", wf_rank_name(comm, r));
        if (strcmp(a->isa, b->isa) != 0)
            snprintf(
                sentence, WF_COMM_SENTENCE,
                "%s computes with %s, %s with %s, and their bits would differ; set WEFT_ISA to "
                "the lower one for all ranks (mpirun -x WEFT_ISA=%s)",
                first, a->isa, other, b->isa,
                strcmp(a->isa, "base") == 0 || strcmp(b->isa, "base") == 0 ? "base" : "avx2");
        else if (strcmp(a->build, b->build) != 0)
            snprintf(
                sentence, WF_COMM_SENTENCE,
                "%s runs another build than %s (weft %s, digest %s; weft %s, digest %s); start "
                "the same program on all hosts",
                other, first, b->version, b->build, a->version, a->build);
        else if (strcmp(a->arguments, b->arguments) != 0)
            snprintf(sentence, WF_COMM_SENTENCE,
                     "%s was started with other arguments than %s; all ranks run one command",
                     other, first);
        else continue;
        return WF_ERR_USAGE;
    }
    return WF_OK;
}

static wf_status meet(wf_comm *comm, char *sentence) {
    size_t size = (size_t)comm->size;
    introduction *all = calloc(size, sizeof *all);
    size_t *start = calloc(size + 1, sizeof *start);
    wf_status status = WF_ERR_MEMORY;
    snprintf(sentence, WF_COMM_SENTENCE, "no memory for %zu ranks", size);
    if (all != NULL && start != NULL) {
        for (size_t r = 0; r <= size; r++) start[r] = r * sizeof *all;
        all[comm->rank] = introduce(&comm->desc);
        status = WF_ERR_RANK;
        if (wf__mpi_gather(comm, all, start)) status = compare(comm, all, sentence);
        else snprintf(sentence, WF_COMM_SENTENCE, "%s", comm->sentence);
    }
    free(all);
    free(start);
    return status;
}

wf_status wf_comm_join(const wf_comm_desc *desc, wf_comm **out, char sentence[WF_COMM_SENTENCE]) {
    *out = NULL;
    sentence[0] = '\0';
    if (!wf__launched()) return WF_OK;
    wf_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        snprintf(sentence, WF_COMM_SENTENCE, "out of memory");
        return WF_ERR_MEMORY;
    }
    comm->desc = *desc;
    comm->blamed = -1;
    wf_status status = wf__mpi_join(comm, sentence);
    if (status != WF_OK) comm_free(comm);
    else if (comm->size == 1) wf_comm_leave(comm);
    else {
        *out = comm;
        status = meet(comm, sentence);
        if (status != WF_OK) wf__comm_fail(comm, status, comm->rank, sentence);
        if (!wf_comm_speaks(comm)) sentence[0] = '\0';
    }
    return status;
}

wf_status wf_comm_end(wf_comm *comm, char sentence[WF_COMM_SENTENCE]) {
    sentence[0] = '\0';
    if (comm == NULL) return WF_OK;
    atomic_store(&comm->ctx, NULL);
    wf__mpi_barrier(comm);
    wf_status status = (wf_status)atomic_load(&comm->failed);
    if (status != WF_OK && wf_comm_speaks(comm))
        snprintf(sentence, WF_COMM_SENTENCE, "%s", comm->sentence);
    return status;
}

void wf_comm_leave(wf_comm *comm) {
    if (comm == NULL) return;
    wf__mpi_leave(comm);
    comm_free(comm);
}

/* --- collective calls ------------------------------------------------------------------------- */

wf_status wf_barrier(wf_ctx *ctx) {
    wf_comm *comm = wf__ctx_comm(ctx);
    return comm == NULL ? WF_OK : result(ctx, comm, wf__mpi_barrier(comm));
}

wf_status wf_broadcast(wf_ctx *ctx, void *bytes, size_t count) {
    wf_comm *comm = wf__ctx_comm(ctx);
    return comm == NULL ? WF_OK : result(ctx, comm, wf__mpi_broadcast(comm, bytes, count, 0));
}

wf_status wf_ctx_decide(wf_ctx *ctx, bool *answer) {
    uint8_t byte = *answer;
    WF_TRY(wf_broadcast(ctx, &byte, 1));
    *answer = byte != 0;
    return WF_OK;
}

size_t wf_share_start(size_t count, int rank, int ranks) {
    size_t each = count / (size_t)ranks, more = count % (size_t)ranks, r = (size_t)rank;
    return r * each + (r < more ? r : more);
}

wf_range wf_share(const wf_ctx *ctx, size_t count) {
    int rank = wf_ctx_rank(ctx), ranks = wf_ctx_ranks(ctx);
    return (wf_range){wf_share_start(count, rank, ranks), wf_share_start(count, rank + 1, ranks)};
}

wf_status wf_gather_bytes(wf_ctx *ctx, void *bytes, const size_t *start) {
    wf_comm *comm = wf__ctx_comm(ctx);
    return comm == NULL ? WF_OK : result(ctx, comm, wf__mpi_gather(comm, bytes, start));
}

wf_status wf_gather_rows(wf_ctx *ctx, void *rows, size_t row_bytes, size_t count) {
    wf_comm *comm = wf__ctx_comm(ctx);
    if (comm == NULL || rows == NULL) return WF_OK;
    size_t *start;
    WF_TRY(wf_alloc(ctx, (size_t)comm->size + 1, sizeof *start, "ranks", &start));
    for (int r = 0; r <= comm->size; r++)
        start[r] = row_bytes * wf_share_start(count, r, comm->size);
    wf_status status = wf_gather_bytes(ctx, rows, start);
    free(start);
    return status;
}

typedef struct outcome {
    int32_t status;
    char sentence[WF_COMM_SENTENCE];
} outcome;

/* The rank whose failure is told; -1: all are well. */
static int worst_of(const int32_t *all, int size) {
    int worst = -1;
    for (int r = 0; r < size; r++) {
        if (all[r] == WF_OK) continue;
        if (worst < 0 || (all[worst] == WF_ERR_INTERRUPTED && all[r] != WF_ERR_INTERRUPTED))
            worst = r;
    }
    return worst;
}

wf_status wf_agree(wf_ctx *ctx, wf_status mine) {
    enum { small = 64 };
    wf_comm *comm = wf__ctx_comm(ctx);
    if (comm == NULL) return mine;
    size_t size = (size_t)comm->size;
    int32_t few[small], *all = few;
    size_t few_starts[small + 1], *start = few_starts;
    if (size > small) {
        all = malloc(size * sizeof *all);
        start = malloc((size + 1) * sizeof *start);
        if (all == NULL || start == NULL) {
            free(all), free(start);
            return wf_fail(ctx, WF_ERR_MEMORY, "no memory for %zu ranks", size);
        }
    }
    for (size_t r = 0; r <= size; r++) start[r] = r * sizeof *all;
    all[comm->rank] = (int32_t)mine;
    bool done = wf__mpi_gather(comm, all, start);
    int worst = done ? worst_of(all, comm->size) : -1;
    wf_status status = worst < 0 ? WF_OK : (wf_status)all[worst];
    if (size > small) free(all), free(start);
    if (!done) return result(ctx, comm, false);
    comm->blamed = worst;
    if (worst < 0) return WF_OK;
    outcome told = {.status = (int32_t)status};
    if (worst == comm->rank)
        snprintf(told.sentence, sizeof told.sentence, "%s", wf_last_error(ctx));
    done = wf__mpi_broadcast(comm, &told, sizeof told, worst);
    if (worst == comm->rank) return status; /* a rank that has heard of it may have given up */
    if (!done) return result(ctx, comm, false);
    return wf_fail(ctx, status, "%s: %s", wf_rank_name(comm, worst), told.sentence);
}

wf_status wf_agree_rows(wf_ctx *ctx, wf_status mine, void *rows, size_t row_bytes, size_t count) {
    WF_TRY(wf_agree(ctx, mine));
    return wf_gather_rows(ctx, rows, row_bytes, count);
}

wf_status wf_from_rank_0(wf_ctx *ctx, wf_status status) {
    wf_comm *comm = wf__ctx_comm(ctx);
    if (comm == NULL) return status;
    int32_t code = (int32_t)status;
    WF_TRY(wf_broadcast(ctx, &code, sizeof code));
    comm->blamed = code == WF_OK ? -1 : 0;
    if (code == WF_OK) return WF_OK;
    char sentence[WF_COMM_SENTENCE];
    snprintf(sentence, sizeof sentence, "%s", wf_last_error(ctx));
    bool done = wf__mpi_broadcast(comm, sentence, sizeof sentence, 0);
    if (comm->rank == 0) return status; /* a rank that has heard of it may have given up */
    if (!done) return result(ctx, comm, false);
    return wf_fail(ctx, (wf_status)code, "%s", sentence);
}

wf_status wf_rank_0_does(wf_ctx *ctx, wf_status (*work)(wf_ctx *ctx, void *user), void *user) {
    bool together = wf_writes_together(ctx);
    wf_status status = WF_OK;
    if (together) WF_TRY(wf_barrier(ctx));
    if (wf_writes_files(ctx)) {
        bool alone = wf_work_alone(ctx, true);
        status = work(ctx, user);
        wf_work_alone(ctx, alone);
    }
    return together ? wf_from_rank_0(ctx, status) : status;
}

bool wf_writes_together(const wf_ctx *ctx) {
    const wf_comm *comm = wf__ctx_comm(ctx);
    return comm != NULL && atomic_load(&comm->failed) == 0;
}

wf_status wf_same(wf_ctx *ctx, const char *what, const char *text) {
    const wf_comm *comm = wf__ctx_comm(ctx);
    if (comm == NULL) return WF_OK;
    char own[65], first[65];
    wf_sha256_hex(text, strlen(text), own);
    memcpy(first, own, sizeof first);
    WF_TRY(wf_broadcast(ctx, first, sizeof first));
    wf_status status = WF_OK;
    if (strcmp(own, first) != 0)
        status = wf_fail(ctx, WF_ERR_INPUT,
                         "%s is another here than on rank 0 (%s); give all hosts the same files",
                         what, wf_comm_host(comm, 0));
    return wf_agree(ctx, status);
}

static wf_status make_room(wf_ctx *ctx, wf_comm *comm, const wf_ordered_sum *sum) {
    size_t count = 0;
    for (size_t b = 0; b < sum->n_buckets; b++)
        if (sum->buckets[b].last > count) count = sum->buckets[b].last;
    if (comm->n_running >= count) return WF_OK;
    free(comm->running);
    comm->n_running = 0;
    WF_TRY(wf_alloc(ctx, count, sizeof(float), "a sum over ranks", &comm->running));
    comm->n_running = count;
    return WF_OK;
}

typedef struct sum_thread {
    wf_comm *comm;
    const wf_ordered_sum *sum;
    bool done;
} sum_thread;

static void *sum_here(void *own_) {
    sum_thread *own = own_;
    own->done = wf__mpi_sum_in_order(own->comm, own->sum);
    return NULL;
}

/* Signals are the calling thread's. */
static bool sum_elsewhere(sum_thread *own, pthread_t *thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, sum_here, own) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

wf_status wf_sum_in_order(wf_ctx *ctx, const wf_ordered_sum *sum) {
    wf_comm *comm = wf__ctx_comm(ctx);
    assert(comm != NULL && sum->active >= 1 && sum->active <= comm->size);
    WF_TRY(make_room(ctx, comm, sum));
    sum_thread own = {.comm = comm, .sum = sum};
    pthread_t thread;
    bool elsewhere = sum->beside != NULL && sum_elsewhere(&own, &thread);
    if (sum->beside != NULL) sum->beside(sum->user);
    if (elsewhere) pthread_join(thread, NULL);
    else sum_here(&own);
    return result(ctx, comm, own.done);
}
