/* ranks: what the collective calls of a training update cost, by size.
 *
 *   make bench-ranks                     builds it
 *   mpirun -n 2 build/bench/ranks        prints CSV: floats, best and median milliseconds, GB/s
 *
 * sum: the ordered sum of the gradient (base/comm.h). gather: Muon's matrices. */
#include "base/comm.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>

enum { repeats = 40, most = 1 << 23 };

static float own[most];

static bool add(void *user, size_t first, size_t n, float *running, bool fresh) {
    (void)user;
    for (size_t i = 0; i < n; i++)
        running[i] = fresh ? own[first + i] : running[i] + own[first + i];
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const wf_ctx *ctx, const char *what, size_t floats, double *seconds) {
    qsort(seconds, repeats, sizeof *seconds, by_value);
    if (wf_ctx_rank(ctx) != 0) return;
    printf("%s,%d,%zu,%.3f,%.3f,%.2f\n", what, wf_ctx_ranks(ctx), floats, 1e3 * seconds[0],
           1e3 * seconds[repeats / 2], (double)floats * sizeof(float) / seconds[0] / 1e9);
}

static wf_status measure(wf_ctx *ctx, float *out, size_t floats) {
    double seconds[repeats];
    wf_range bucket[most / WF_BUCKET + 1];
    wf_ordered_sum sum = {.out = out, .buckets = bucket, .active = wf_ctx_ranks(ctx), .add = add};
    for (size_t at = 0; at < floats; at += WF_BUCKET)
        bucket[sum.n_buckets++] = (wf_range){at, at + WF_BUCKET < floats ? at + WF_BUCKET : floats};
    for (int i = 0; i < repeats; i++) {
        WF_TRY(wf_barrier(ctx));
        double start = wf_seconds();
        WF_TRY(wf_sum_in_order(ctx, &sum));
        seconds[i] = wf_seconds() - start;
    }
    show(ctx, "sum", floats, seconds);
    for (int i = 0; i < repeats; i++) {
        WF_TRY(wf_barrier(ctx));
        double start = wf_seconds();
        WF_TRY(wf_gather_rows(ctx, out, sizeof *out, floats));
        seconds[i] = wf_seconds() - start;
    }
    show(ctx, "gather", floats, seconds);
    return WF_OK;
}

int main(void) {
    char why[WF_COMM_SENTENCE];
    wf_comm *comm;
    wf_ctx *ctx;
    if (wf_comm_join(&(wf_comm_desc){.arguments = "bench"}, &comm, why) != WF_OK || comm == NULL) {
        fprintf(stderr, "start it with mpirun -n 2 or more. %s\n", why);
        return 2;
    }
    wf_status status = wf_ctx_create(&(wf_ctx_desc){.threads = 1, .comm = comm}, &ctx);
    float *out = malloc(most * sizeof *out);
    if (status == WF_OK && wf_ctx_rank(ctx) == 0) puts("call,ranks,floats,best_ms,median_ms,GB/s");
    for (size_t floats = 1; floats <= most && status == WF_OK && out != NULL; floats *= 8)
        status = measure(ctx, out, floats);
    free(out);
    wf_ctx_free(ctx);
    if (status == WF_OK) status = wf_comm_end(comm, why);
    wf_comm_leave(comm);
    return status != WF_OK;
}
