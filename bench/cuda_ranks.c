/* cuda_ranks: what a sum of numbers in device memory over ranks costs, by size. It is captured and
 * replayed, as in an update.
 *
 *     WEFT_NCCL=on cuda_ranks     one rank, over NCCL
 *     mpirun -n 2 cuda_ranks      over NCCL with a GPU for each, else through host memory
 *
 * Prints the ranks, the numbers of a sum, the best and the median time of one in milliseconds, and
 * the time of a gather of as many (Muon's matrices). 1,958,017 numbers are karhunen's gradient. */
#include "base/comm.h"
#include "base/cuda/device.h"
#include "base/cuda/device_ranks.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { rounds = 12, most_numbers = 1 << 23 };

static void check(wf_ctx *ctx, wf_status status) {
    if (status == WF_OK) return;
    fprintf(stderr, "cuda_ranks: %s\n", wf_last_error(ctx));
    exit(1);
}

static void check_cuda(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "cuda_ranks: %s\n", cudaGetErrorString(error));
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct place {
    wf_ctx *ctx;
    wf_device_ranks *ranks;
    cudaStream_t stream;
    float *numbers;
} place;

/* Best and median milliseconds of one call, `calls` of them in a graph. */
static void time_calls(const place *p, size_t n, bool sum, int calls, double ms[2]) {
    int size = wf_ctx_ranks(p->ctx);
    size_t *start = calloc((size_t)size + 1, sizeof *start);
    for (int r = 0; r <= size; r++) start[r] = sizeof(float) * wf_share_start(n, r, size);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    check_cuda(cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeRelaxed));
    for (int k = 0; k < calls; k++)
        if (sum)
            check(p->ctx, wf_device_ranks_sum(p->ctx, p->ranks, p->numbers, n, false, p->stream));
        else check(p->ctx, wf_device_ranks_gather(p->ctx, p->ranks, p->numbers, start, p->stream));
    check_cuda(cudaStreamEndCapture(p->stream, &graph));
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    double seconds[rounds];
    for (int round = -1; round < rounds; round++) {
        check(p->ctx, wf_barrier(p->ctx));
        double begin = wf_seconds();
        check_cuda(cudaGraphLaunch(replay, p->stream));
        check_cuda(cudaStreamSynchronize(p->stream));
        if (round >= 0) seconds[round] = (wf_seconds() - begin) / calls;
    }
    qsort(seconds, rounds, sizeof *seconds, by_value);
    ms[0] = 1e3 * seconds[0], ms[1] = 1e3 * seconds[rounds / 2];
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
    free(start);
}

/* The sum is right before it is timed: every rank has r + 1 everywhere. */
static void check_sum(const place *p, size_t n) {
    float *host = malloc(n * sizeof *host), ranks = (float)wf_ctx_ranks(p->ctx);
    for (size_t i = 0; i < n; i++) host[i] = (float)wf_ctx_rank(p->ctx) + 1;
    check_cuda(cudaMemcpy(p->numbers, host, n * sizeof *host, cudaMemcpyHostToDevice));
    check(p->ctx, wf_device_ranks_sum(p->ctx, p->ranks, p->numbers, n, false, p->stream));
    check_cuda(cudaStreamSynchronize(p->stream));
    check_cuda(cudaMemcpy(host, p->numbers, n * sizeof *host, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        if (host[i] != ranks * (ranks + 1) / 2) {
            fprintf(stderr, "cuda_ranks: number %zu of %zu has the sum %g, not %g\n", i, n, host[i],
                    ranks * (ranks + 1) / 2);
            exit(1);
        }
    free(host);
    check_cuda(cudaMemset(p->numbers, 0, n * sizeof *host));
}

static void say(void *user, const char *sentence) {
    (void)user;
    fprintf(stderr, "cuda_ranks: %s\n", sentence);
}

int main(void) {
    char why[WF_COMM_SENTENCE];
    wf_comm *comm;
    wf_ctx *ctx;
    if (wf_comm_join(&(wf_comm_desc){.arguments = "bench"}, &comm, why) != WF_OK) {
        if (why[0] != '\0') fprintf(stderr, "cuda_ranks: %s\n", why);
        return 1;
    }
    wf_ctx_desc desc = {.device = WF_DEVICE_CUDA,
                        .gpu = wf_comm_local_rank(comm),
                        .threads = 1,
                        .comm = comm,
                        .warn = wf_comm_rank(comm) == 0 ? say : NULL};
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 1;
    place p = {.ctx = ctx};
    check(ctx, wf_device_ranks_open(ctx, &p.ranks));
    if (p.ranks == NULL) {
        fprintf(stderr, "cuda_ranks: one rank has nothing to sum; set WEFT_NCCL=on, or start it "
                        "with mpirun -n 2\n");
        return 2;
    }
    check_cuda(cudaStreamCreate(&p.stream));
    check_cuda(cudaMalloc((void **)&p.numbers, most_numbers * sizeof *p.numbers));
    static const size_t sizes[] = {512, 4096, 32768, 262144, 1958017, most_numbers};
    if (wf_ctx_rank(ctx) == 0) puts("ranks   numbers  sum, ms   median   gather");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        double sum[2], gather[2];
        int calls = sizes[k] > 100000 ? 4 : 20;
        check_sum(&p, sizes[k]);
        time_calls(&p, sizes[k], true, calls, sum);
        time_calls(&p, sizes[k], false, calls, gather);
        if (wf_ctx_rank(ctx) == 0)
            printf("%5d %9zu %8.4f %8.4f %8.4f\n", wf_ctx_ranks(ctx), sizes[k], sum[0], sum[1],
                   gather[0]);
    }
    check_cuda(cudaFree(p.numbers));
    check_cuda(cudaStreamDestroy(p.stream));
    wf_device_ranks_close(p.ranks);
    wf_ctx_free(ctx);
    wf_status status = wf_comm_end(comm, why);
    wf_comm_leave(comm);
    return status != WF_OK;
}
