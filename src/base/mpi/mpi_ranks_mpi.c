/* mpi_ranks_mpi: collective calls over MPI, and a thread that watches the other ranks.
 *
 * M1  Every MPI call is made under one mutex (MPI_THREAD_SERIALIZED). Calls that wait start a
 *     nonblocking operation and test it again and again, so that the mutex is free in between and a
 *     failure elsewhere ends the wait.
 * M2  Notices (a beat, a failure, an interruption, a farewell) go over a communicator of their own.
 *     Every rank sends rank 0 a beat every few seconds, and rank 0 sends one to all others. A rank
 *     that sends none for WEFT_RANK_TIMEOUT seconds is lost: its process was killed or stopped, or
 *     its host hangs. Time in which the listener itself was stopped does not count: Slurm may
 *     suspend a whole job.
 * M3  After a failure all ranks say farewell to rank 0 before any of them ends: a launcher kills
 *     the whole job when one process ends with an error, and rank 0 may have a checkpoint to
 *     write. */
#include "base/mpi/mpi_ranks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Open MPI's C++ bindings are not wanted here. */
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

enum {
    largest_call = 1 << 30, /* bytes: counts of MPI are ints */
    spin_us = 1000,         /* that a waiting call keeps its core; then it yields */
    yield_us = 2000,        /* from here on it naps between two looks */
    tick_ms = 20,
    beat_ms = 2000,
    stuck_ms = 7000,     /* from a failure to the end of a rank that does not react */
    farewell_ms = 10000, /* that a failed rank waits for the others */
    pause_ms = 1000      /* a longer pause of the watcher counts as one: its process was stopped */
};
static const double usual_timeout = 20;

typedef enum notice_kind { BEAT, FAILURE, INTERRUPTION, FAREWELL } notice_kind;

typedef struct notice {
    int32_t kind, status;
    int32_t rank; /* that failed: the sender, one that it has found lost, or whom all blame */
    char sentence[WF_COMM_SENTENCE];
} notice;

typedef struct wf_mpi {
    MPI_Comm work, notices, device;
    pthread_mutex_t lock;
    atomic_bool claimed; /* the watcher wants the lock */
    pthread_t watcher;
    bool watching;
    atomic_bool quit;
    double timeout;
    double watched;     /* seconds, without those in which this process was stopped */
    double *heard;      /* [size] of `watched`, when a rank was last heard of */
    bool *left;         /* [size] its farewell has come */
    MPI_Request *beats; /* [size] under way, or MPI_REQUEST_NULL */
    notice beat;
    bool interruption_told;
    double failed_at;
} wf_mpi;

const char *wf__mpi_description(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (text[0] != '\0') return text;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    for (char *at = strstr(text, " v"); at != NULL; at = NULL)
        memmove(at + 1, at + 2, strlen(at + 1));
    return text;
}

static void nap(long microseconds) { nanosleep(&(struct timespec){0, microseconds * 1000}, NULL); }

/* Tests until all operations are over (M1). False: the communicator has failed. Pending receives
 * are cancelled, because their memory may be freed. */
static bool wait_all(wf_comm *comm, MPI_Request *requests, int n) {
    wf_mpi *mpi = comm->mpi;
    for (double start = wf_seconds();;) {
        int done = 0;
        /* On a loaded host a test may take as long as others need the core. */
        while (atomic_load(&mpi->claimed)) nap(50);
        pthread_mutex_lock(&mpi->lock);
        MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE);
        pthread_mutex_unlock(&mpi->lock);
        if (done) return true;
        if (atomic_load(&comm->failed) != 0) return false;
        double waited = wf_seconds() - start;
        if (waited > 1e-6 * yield_us) nap(50);
        else if (waited > 1e-6 * spin_us) sched_yield();
    }
}

/* --- notices (M2) ----------------------------------------------------------------------------- */

static void send_notice(wf_comm *comm, int to, const notice *what) {
    MPI_Request request;
    notice *copy = malloc(sizeof *copy); /* lives as long as the process: few are sent */
    if (copy == NULL) return;
    *copy = *what;
    MPI_Isend(copy, (int)sizeof *copy, MPI_BYTE, to, 0, comm->mpi->notices, &request);
    MPI_Request_free(&request);
}

/* Under the lock. */
static void tell_all(wf_comm *comm, const notice *what) {
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank) send_notice(comm, r, what);
}

void wf__mpi_tell_failure(wf_comm *comm, wf_status status, const char *sentence) {
    int rank = comm->blamed >= 0 ? comm->blamed : comm->rank;
    notice what = {.kind = FAILURE, .status = (int32_t)status, .rank = rank};
    snprintf(what.sentence, sizeof what.sentence, "%s", sentence);
    pthread_mutex_lock(&comm->mpi->lock);
    tell_all(comm, &what);
    pthread_mutex_unlock(&comm->mpi->lock);
}

/* Long work of this rank ends early, as after Ctrl-C. */
static void stop_work(wf_comm *comm) {
    wf_ctx *ctx = atomic_load(&comm->ctx);
    if (ctx != NULL) wf_interrupt(ctx);
}

/* Of another rank than the sender the sentence is complete. */
static void failed_elsewhere(wf_comm *comm, int from, const notice *what) {
    char sentence[WF_COMM_SENTENCE];
    if (what->rank == from)
        snprintf(sentence, sizeof sentence, "%s: %.600s", wf_rank_name(comm, from), what->sentence);
    else snprintf(sentence, sizeof sentence, "%s", what->sentence);
    wf__comm_fail(comm, (wf_status)what->status, what->rank, sentence);
    stop_work(comm);
}

static void take_notice(wf_comm *comm, int from, const notice *what) {
    wf_mpi *mpi = comm->mpi;
    mpi->heard[from] = mpi->watched;
    if (what->kind == FAILURE) failed_elsewhere(comm, from, what);
    else if (what->kind == INTERRUPTION) {
        mpi->interruption_told = true; /* by the rank that was interrupted */
        stop_work(comm);
    } else if (what->kind == FAREWELL) mpi->left[from] = true;
}

/* Under the lock. */
static void take_notices(wf_comm *comm) {
    for (;;) {
        int there = 0;
        MPI_Status status;
        notice what;
        MPI_Iprobe(MPI_ANY_SOURCE, 0, comm->mpi->notices, &there, &status);
        if (!there) return;
        MPI_Recv(&what, (int)sizeof what, MPI_BYTE, status.MPI_SOURCE, 0, comm->mpi->notices,
                 MPI_STATUS_IGNORE);
        take_notice(comm, status.MPI_SOURCE, &what);
    }
}

/* Under the lock. A beat that has not left yet need not be followed by another. */
static void send_beats(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    for (int r = 0; r < comm->size; r++) {
        int done = 1;
        if (r == comm->rank || (comm->rank != 0 && r != 0)) continue;
        if (mpi->beats[r] != MPI_REQUEST_NULL) MPI_Test(&mpi->beats[r], &done, MPI_STATUS_IGNORE);
        if (done)
            MPI_Isend(&mpi->beat, (int)sizeof mpi->beat, MPI_BYTE, r, 0, mpi->notices,
                      &mpi->beats[r]);
    }
}

/* Rank 0 watches all ranks, the others watch rank 0. They wait a little longer, so that rank 0 can
 * name the lost rank, and one after the other, so that one of them speaks for all. */
static double patience(const wf_comm *comm) {
    int after = comm->rank < 30 ? comm->rank : 30;
    return comm->mpi->timeout + (comm->rank == 0 ? 0 : 2.9 + 0.1 * after);
}

static void find_lost(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    for (int r = 0; r < (comm->rank == 0 ? comm->size : 1); r++) {
        if (r == comm->rank || mpi->left[r] || mpi->watched - mpi->heard[r] < patience(comm))
            continue;
        notice what = {.kind = FAILURE, .status = WF_ERR_RANK, .rank = r};
        snprintf(what.sentence, sizeof what.sentence,
                 "%s has not answered for %.0f s: it was killed, or its host hangs. What was saved "
                 "is whole, and the same command goes on from it",
                 wf_rank_name(comm, r), mpi->timeout);
        comm->finder = true;
        if (!wf__comm_fail(comm, WF_ERR_RANK, r, what.sentence)) return;
        pthread_mutex_lock(&mpi->lock);
        tell_all(comm, &what);
        pthread_mutex_unlock(&mpi->lock);
        stop_work(comm);
        return;
    }
}

/* A failure elsewhere has to end this rank too, whatever its own thread is doing. */
static void end_when_stuck(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    if (mpi->failed_at == 0) mpi->failed_at = mpi->watched;
    if (comm->failed_rank == comm->rank || mpi->watched - mpi->failed_at < 1e-3 * stuck_ms) return;
    if (atomic_load(&comm->ctx) == NULL) return; /* it is about to end */
    if (comm->desc.stuck != NULL) comm->desc.stuck(comm->desc.user, comm->sentence);
    else MPI_Abort(MPI_COMM_WORLD, wf_status_exit_code(WF_ERR_RANK));
}

static void *watch(void *comm_) {
    wf_comm *comm = comm_;
    wf_mpi *mpi = comm->mpi;
    double next_beat = 0, before = wf_seconds();
    while (!atomic_load(&mpi->quit)) {
        double now = wf_seconds();
        wf_ctx *ctx = atomic_load(&comm->ctx);
        bool interrupted = wf_interrupted(ctx) && atomic_load(&comm->failed) == 0;
        atomic_store(&mpi->claimed, true);
        pthread_mutex_lock(&mpi->lock);
        atomic_store(&mpi->claimed, false);
        mpi->watched += now - before < 1e-3 * pause_ms ? now - before : 1e-3 * pause_ms;
        before = now;
        take_notices(comm);
        if (interrupted && !mpi->interruption_told) {
            mpi->interruption_told = true;
            tell_all(comm, &(notice){.kind = INTERRUPTION});
        }
        if (mpi->watched >= next_beat) {
            next_beat = mpi->watched + 1e-3 * beat_ms;
            send_beats(comm);
        }
        pthread_mutex_unlock(&mpi->lock);
        if (atomic_load(&comm->failed) != 0) end_when_stuck(comm);
        else find_lost(comm);
        nap(1000L * tick_ms);
    }
    return NULL;
}

/* --- joining and leaving ---------------------------------------------------------------------- */

static double timeout_setting(void) {
    const char *text = getenv("WEFT_RANK_TIMEOUT");
    double seconds = text != NULL ? strtod(text, NULL) : 0;
    return seconds > 0 ? seconds : usual_timeout;
}

static int find_local_rank(void) {
    MPI_Comm node;
    int rank = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_free(&node);
    return rank;
}

static wf_status start_watching(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    sigset_t all, before;
    for (int r = 0; r < comm->size; r++) mpi->beats[r] = MPI_REQUEST_NULL;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    mpi->watching = pthread_create(&mpi->watcher, NULL, watch, comm) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return mpi->watching ? WF_OK : WF_ERR_MEMORY;
}

static wf_status prepare(wf_comm *comm, char *sentence) {
    char own[64] = "?";
    size_t size = (size_t)comm->size;
    comm->host = calloc(size, sizeof *comm->host);
    comm->mpi = calloc(1, sizeof *comm->mpi);
    wf_mpi *mpi = comm->mpi;
    if (mpi != NULL) {
        mpi->heard = calloc(size, sizeof *mpi->heard);
        mpi->left = calloc(size, sizeof *mpi->left);
        mpi->beats = calloc(size, sizeof(MPI_Request));
        pthread_mutex_init(&mpi->lock, NULL);
    }
    snprintf(sentence, WF_COMM_SENTENCE, "no memory for %d ranks", comm->size);
    if (comm->host == NULL || mpi == NULL || mpi->heard == NULL || mpi->left == NULL ||
        mpi->beats == NULL)
        return WF_ERR_MEMORY;
    gethostname(own, sizeof own - 1);
    MPI_Allgather(own, sizeof own, MPI_BYTE, comm->host, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->work);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->notices);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->device);
    comm->local_rank = find_local_rank();
    mpi->timeout = timeout_setting();
    return start_watching(comm);
}

wf_status wf__mpi_join(wf_comm *comm, char sentence[WF_COMM_SENTENCE]) {
    int provided = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
        snprintf(sentence, WF_COMM_SENTENCE, "%s could not start", wf__mpi_description());
        return WF_ERR_UNSUPPORTED;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->size);
    if (comm->size == 1) return WF_OK;
    if (provided < MPI_THREAD_SERIALIZED) {
        snprintf(sentence, WF_COMM_SENTENCE,
                 "%s was built without threads (MPI_THREAD_SERIALIZED); take one that has them",
                 wf__mpi_description());
        return WF_ERR_UNSUPPORTED;
    }
    return prepare(comm, sentence);
}

/* Under the lock. Have all said farewell? waits: some have not that may still do so; a rank that
 * sends nothing for most of the time-out will not. */
static bool all_left(const wf_comm *comm, bool *waits) {
    const wf_mpi *mpi = comm->mpi;
    double silent = mpi->timeout > 8 ? 0.75 * mpi->timeout : 6;
    bool all = true;
    *waits = false;
    for (int r = 0; r < (comm->rank == 0 ? comm->size : 1); r++) {
        if (r == comm->rank || mpi->left[r]) continue;
        all = false;
        *waits |= mpi->watched - mpi->heard[r] < silent;
    }
    return all;
}

/* Invariant M3. Are all ranks here? Nobody waits for one that is lost. */
static bool say_farewell(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    notice bye = {.kind = FAREWELL};
    bool all = false, waits = true;
    pthread_mutex_lock(&mpi->lock);
    if (comm->rank != 0) send_notice(comm, 0, &bye);
    pthread_mutex_unlock(&mpi->lock);
    for (double start = wf_seconds(); waits && wf_seconds() - start < 1e-3 * farewell_ms;) {
        pthread_mutex_lock(&mpi->lock);
        all = all_left(comm, &waits);
        if (comm->rank == 0 && all) tell_all(comm, &bye);
        pthread_mutex_unlock(&mpi->lock);
        if (waits) nap(1000L * tick_ms);
    }
    return all;
}

void wf__mpi_leave(wf_comm *comm) {
    wf_mpi *mpi = comm->mpi;
    int code = wf_status_exit_code((wf_status)atomic_load(&comm->failed));
    bool all = code == 0 || comm->size == 1 || say_farewell(comm);
    if (mpi != NULL) {
        atomic_store(&mpi->quit, true);
        if (mpi->watching) pthread_join(mpi->watcher, NULL);
    }
    /* MPI_Finalize would wait for the lost rank; MPI_Abort ends it, where it still runs. */
    if (!all) MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
    if (mpi == NULL) return;
    free(mpi->heard);
    free(mpi->left);
    free(mpi->beats);
    pthread_mutex_destroy(&mpi->lock);
    free(mpi);
}

/* --- collective calls ------------------------------------------------------------------------- */

bool wf__mpi_barrier(wf_comm *comm) {
    MPI_Request request;
    if (atomic_load(&comm->failed) != 0) return false;
    pthread_mutex_lock(&comm->mpi->lock);
    MPI_Ibarrier(comm->mpi->work, &request);
    pthread_mutex_unlock(&comm->mpi->lock);
    return wait_all(comm, &request, 1);
}

static bool broadcast_over(wf_comm *comm, MPI_Comm over, void *bytes, size_t count, int root) {
    if (atomic_load(&comm->failed) != 0) return false;
    for (size_t at = 0; at < count; at += largest_call) {
        size_t part = count - at < largest_call ? count - at : largest_call;
        MPI_Request request;
        pthread_mutex_lock(&comm->mpi->lock);
        MPI_Ibcast((char *)bytes + at, (int)part, MPI_BYTE, root, over, &request);
        pthread_mutex_unlock(&comm->mpi->lock);
        if (!wait_all(comm, &request, 1)) return false;
    }
    return true;
}

bool wf__mpi_broadcast(wf_comm *comm, void *bytes, size_t count, int root) {
    return broadcast_over(comm, comm->mpi->work, bytes, count, root);
}

/* Counts of MPI are ints: large gathers are broadcasts from each rank. */
static bool gather_large(wf_comm *comm, MPI_Comm over, char *bytes, const size_t *start) {
    for (int r = 0; r < comm->size; r++)
        if (!broadcast_over(comm, over, bytes + start[r], start[r + 1] - start[r], r)) return false;
    return true;
}

static bool gather_over(wf_comm *comm, MPI_Comm over, void *bytes, const size_t *start) {
    if (atomic_load(&comm->failed) != 0) return false;
    if (start[comm->size] > largest_call) return gather_large(comm, over, bytes, start);
    int *counts = malloc(2 * (size_t)comm->size * sizeof *counts);
    if (counts == NULL) return gather_large(comm, over, bytes, start);
    int *starts = counts + comm->size;
    for (int r = 0; r < comm->size; r++) {
        starts[r] = (int)start[r];
        counts[r] = (int)(start[r + 1] - start[r]);
    }
    MPI_Request request;
    pthread_mutex_lock(&comm->mpi->lock);
    MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes, counts, starts, MPI_BYTE, over,
                    &request);
    pthread_mutex_unlock(&comm->mpi->lock);
    bool done = wait_all(comm, &request, 1);
    if (done) free(counts); /* else MPI may still read them */
    return done;
}

bool wf__mpi_gather(wf_comm *comm, void *bytes, const size_t *start) {
    return gather_over(comm, comm->mpi->work, bytes, start);
}

bool wf__mpi_device_gather(wf_comm *comm, void *bytes, const size_t *start) {
    return gather_over(comm, comm->mpi->device, bytes, start);
}

bool wf__mpi_device_sum(wf_comm *comm, void *numbers, size_t n, bool doubles) {
    size_t each = doubles ? sizeof(double) : sizeof(float), most = largest_call / each;
    for (size_t at = 0; at < n; at += most) {
        if (atomic_load(&comm->failed) != 0) return false;
        MPI_Request request;
        pthread_mutex_lock(&comm->mpi->lock);
        MPI_Iallreduce(MPI_IN_PLACE, (char *)numbers + at * each,
                       (int)(n - at < most ? n - at : most), doubles ? MPI_DOUBLE : MPI_FLOAT,
                       MPI_SUM, comm->mpi->device, &request);
        pthread_mutex_unlock(&comm->mpi->lock);
        if (!wait_all(comm, &request, 1)) return false;
    }
    return true;
}

/* The operations of one ordered sum, bucket by bucket. */
typedef struct sum_requests {
    wf_comm *comm;
    const wf_ordered_sum *sum;
    MPI_Request *receives, *sends, *results; /* [buckets] each */
} sum_requests;

static int bucket_size(const sum_requests *s, size_t b) {
    return (int)(s->sum->buckets[b].last - s->sum->buckets[b].first);
}

static float *bucket_in(const sum_requests *s, float *numbers, size_t b) {
    return numbers + s->sum->buckets[b].first;
}

static void post_receives(sum_requests *s) {
    wf_comm *comm = s->comm;
    size_t buckets = s->sum->n_buckets;
    for (size_t b = 0; b < 3 * buckets; b++) s->receives[b] = MPI_REQUEST_NULL;
    if (comm->rank == 0 || comm->rank >= s->sum->active) return;
    pthread_mutex_lock(&comm->mpi->lock);
    for (size_t b = 0; b < buckets; b++)
        MPI_Irecv(bucket_in(s, comm->running, b), bucket_size(s, b), MPI_FLOAT, comm->rank - 1,
                  (int)(b % 32768), comm->mpi->work, &s->receives[b]);
    pthread_mutex_unlock(&comm->mpi->lock);
}

/* This rank's numbers join bucket b. */
static bool add_own(sum_requests *s, size_t b) {
    const wf_ordered_sum *sum = s->sum;
    int rank = s->comm->rank;
    size_t first = sum->buckets[b].first, n = (size_t)bucket_size(s, b);
    float *running = bucket_in(s, s->comm->running, b);
    if (sum->beside != NULL) sum->wait_for(sum->user, b); /* costs no core, unlike wait_all */
    if (rank > 0 && !wait_all(s->comm, &s->receives[b], 1)) return false;
    if (!sum->add(sum->user, first, n, running, rank == 0)) return false;
    if (rank == sum->active - 1) memcpy(bucket_in(s, sum->out, b), running, n * sizeof(float));
    return true;
}

/* The sum of bucket b goes to the next rank, from the last one to all. */
static bool pass_bucket(sum_requests *s, size_t b) {
    wf_comm *comm = s->comm;
    int last = s->sum->active - 1, n = bucket_size(s, b);
    if (comm->rank <= last && !add_own(s, b)) return false;
    pthread_mutex_lock(&comm->mpi->lock);
    if (comm->rank < last)
        MPI_Isend(bucket_in(s, comm->running, b), n, MPI_FLOAT, comm->rank + 1, (int)(b % 32768),
                  comm->mpi->work, &s->sends[b]);
    MPI_Ibcast(bucket_in(s, s->sum->out, b), n, MPI_FLOAT, last, comm->mpi->work, &s->results[b]);
    pthread_mutex_unlock(&comm->mpi->lock);
    return true;
}

static void cancel_receives(sum_requests *s) {
    pthread_mutex_lock(&s->comm->mpi->lock);
    for (size_t b = 0; b < s->sum->n_buckets; b++)
        if (s->receives[b] != MPI_REQUEST_NULL) {
            MPI_Cancel(&s->receives[b]);
            MPI_Request_free(&s->receives[b]);
        }
    pthread_mutex_unlock(&s->comm->mpi->lock);
}

bool wf__mpi_sum_in_order(wf_comm *comm, const wf_ordered_sum *sum) {
    size_t buckets = sum->n_buckets;
    if (atomic_load(&comm->failed) != 0) return false;
    sum_requests s = {.comm = comm, .sum = sum};
    s.receives = malloc((3 * buckets + 1) * sizeof(MPI_Request));
    if (s.receives == NULL) return false;
    s.sends = s.receives + buckets;
    s.results = s.sends + buckets;
    post_receives(&s);
    bool done = true;
    for (size_t b = 0; b < buckets && done; b++) done = pass_bucket(&s, b);
    if (done) done = wait_all(comm, s.receives, (int)(3 * buckets));
    if (!done) cancel_receives(&s);
    free(s.receives);
    return done;
}
