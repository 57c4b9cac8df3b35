/* cuda_match: time of the weight matching on the GPU and on the CPU, and whether they agree.
 *
 *     cuda_match pairs ARCH COUNT           COUNT pairs of noise in device memory, two sweeps,
 *                                           replayed as a CUDA graph
 *     cuda_match cloud ZOO QUERIES COUNT    the first QUERIES networks against COUNT of the
 *                                           collection (fewer: filled up with relabelled,
 *                                           perturbed copies), each leave-one-out; the CPU takes
 *                                           its share of queries
 *     cuda_match parts ZOO COUNT TESTS      COUNT networks tested on TESTS examples of noise,
 *                                           and all their errors compared */
#include "align/cuda/match_cuda.h"
#include "base/cuda/device.h"
#include "base/random.h"
#include "base/status.h"
#include "eval/iou.h"
#include "weft/weft.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { repeats = 20, rounds = 3 };

static void check(wf_ctx *ctx, wf_status status) {
    if (status == WF_OK) return;
    fprintf(stderr, "cuda_match: %s\n", wf_last_error(ctx));
    exit(1);
}

static void check_cuda(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "cuda_match: %s\n", cudaGetErrorString(error));
    exit(1);
}

static wf_ctx *open_ctx(wf_device device) {
    wf_ctx_desc desc = {.device = device};
    wf_ctx *ctx;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) exit(1);
    return ctx;
}

static float *noise(size_t count, size_t params, uint32_t step) {
    float *w = malloc(count * params * sizeof *w);
    for (size_t i = 0; i < count; i++) {
        wf_rng rng = wf_rng_at(1, (uint32_t)i, WF_RNG_TEST, step);
        wf_rng_normals(&rng, w + i * params, params);
    }
    return w;
}

static void time_pairs(const char *arch, size_t count) {
    wf_ctx *gpu = open_ctx(WF_DEVICE_CUDA), *cpu = open_ctx(WF_DEVICE_CPU);
    wf_graph *graph;
    check(cpu, wf_graph_parse(cpu, arch, "relu", 0, &graph));
    size_t params = graph->n_params, bytes = count * params * sizeof(float);
    float *a = noise(count, params, 0), *b = noise(count, params, 1), *back = malloc(bytes);
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = 2;
    wf_match_cuda *matcher;
    check(gpu, wf_match_cuda_open(gpu, graph, &desc, count, &matcher));
    float *da, *db, *dout;
    check_cuda(cudaMalloc((void **)&da, bytes));
    check_cuda(cudaMalloc((void **)&db, bytes));
    check_cuda(cudaMalloc((void **)&dout, bytes));
    check_cuda(cudaMemcpy(da, a, bytes, cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(db, b, bytes, cudaMemcpyHostToDevice));
    cudaStream_t stream;
    cudaGraph_t captured;
    cudaGraphExec_t replay;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    check(gpu, wf_match_cuda_run(gpu, matcher, da, 1, db, count, dout, stream));
    check_cuda(cudaStreamEndCapture(stream, &captured));
    check_cuda(cudaGraphInstantiate(&replay, captured, 0));
    cudaEvent_t start, stop;
    check_cuda(cudaEventCreate(&start));
    check_cuda(cudaEventCreate(&stop));
    float best = INFINITY;
    for (int round = 0; round <= rounds; round++) {
        check_cuda(cudaEventRecord(start, stream));
        for (int i = 0; i < repeats; i++) check_cuda(cudaGraphLaunch(replay, stream));
        check_cuda(cudaEventRecord(stop, stream));
        check_cuda(cudaEventSynchronize(stop));
        float ms;
        check_cuda(cudaEventElapsedTime(&ms, start, stop));
        if (round > 0 && ms / repeats < best) best = ms / repeats;
    }
    check_cuda(cudaMemcpy(back, dout, bytes, cudaMemcpyDeviceToHost));
    double begin = wf_seconds();
    check(cpu, wf_match_pairs(cpu, graph, a, b, count, &desc));
    double seconds = wf_seconds() - begin;
    size_t different = 0;
    for (size_t i = 0; i < count; i++)
        different += memcmp(b + i * params, back + i * params, params * sizeof *b) != 0;
    printf("pairs %s: %zu pairs of noise, 2 sweeps: %.1f us on the GPU, %.1f us on %d cores; %zu "
           "matched otherwise\n",
           arch, count, 1e3 * (double)best, 1e6 * seconds, wf_ctx_threads(cpu), different);
    wf_match_cuda_close(matcher);
}

/* Networks from `have` on are copies of the earlier ones: relabelled, and every weight moved by
 * 30 % of its block's size. */
static void fill_up(const wf_graph *graph, const wf_norm *norm, float *w, size_t have,
                    size_t count) {
    size_t params = graph->n_params;
    uint32_t *perm = malloc(wf_graph_perm_size(graph) * sizeof *perm);
    float *moved = malloc(params * sizeof *moved);
    for (size_t i = have; i < count; i++) {
        wf_rng rng = wf_rng_at(2, (uint32_t)i, WF_RNG_TEST, 0);
        for (int orbit = 0; orbit < graph->n_orbits; orbit++) {
            size_t from = wf_graph_perm_start(graph, orbit);
            size_t to = orbit + 1 < graph->n_orbits ? wf_graph_perm_start(graph, orbit + 1)
                                                    : wf_graph_perm_size(graph);
            wf_rng_shuffle(&rng, perm + from, (uint32_t)(to - from));
        }
        wf_rng_normals(&rng, moved, params);
        for (int b = 0; b < graph->n_blocks; b++)
            for (size_t k = graph->blocks[b].offset;
                 k < graph->blocks[b].offset + graph->blocks[b].count; k++)
                moved[k] = w[i % have * params + k] + 0.3f * norm->std[b] * moved[k];
        wf_graph_permute(graph, perm, moved, w + i * params);
    }
    free(perm);
    free(moved);
}

/* Mean sweeps of the plain loop, up to the same limit as the score's. */
static double mean_sweeps(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                          const float *w, size_t count, size_t pairs) {
    uint32_t *perm = malloc(wf_graph_perm_size(graph) * sizeof *perm);
    double sum = 0;
    for (size_t i = 0; i < pairs; i++) {
        int used;
        size_t a = i * 7919 % count, b = (i * 104729 + 1) % count;
        check(ctx, wf_match(ctx, graph, w + a * graph->n_params, w + b * graph->n_params, desc,
                            perm, NULL, &used));
        sum += used;
    }
    free(perm);
    return sum / (double)pairs;
}

/* `count` networks, the first of them from the collection. */
static float *load_networks(wf_ctx *ctx, const char *path, size_t count, wf_zoo **zoo,
                            size_t *have) {
    double begin = wf_seconds();
    check(ctx, wf_zoo_open(ctx, path, zoo));
    const wf_graph *graph = wf_zoo_graph(*zoo);
    *have = wf_zoo_count(*zoo) < count ? wf_zoo_count(*zoo) : count;
    float *loaded;
    check(ctx, wf_zoo_load(ctx, *zoo, 0, *have, &loaded));
    printf("%s: %zu networks read in %.3f s", graph->text, *have, wf_seconds() - begin);
    float *w = realloc(loaded, count * graph->n_params * sizeof *w);
    wf_norm norm;
    check(ctx, wf_norm_fit(ctx, graph, w, *have, &norm));
    fill_up(graph, &norm, w, *have, count);
    return w;
}

static void time_parts(const char *path, size_t count, size_t tests) {
    wf_ctx *ctx[2] = {open_ctx(WF_DEVICE_CUDA), open_ctx(WF_DEVICE_CPU)};
    static const char *const names[2] = {"GPU", "CPU"};
    wf_zoo *zoo;
    size_t have;
    float *w = load_networks(ctx[1], path, count, &zoo, &have);
    const wf_graph *graph = wf_zoo_graph(zoo);
    printf("\n");
    wf_dataset data = {.n_test = tests, .inputs = graph->inputs, .classes = graph->outputs};
    data.x_test = noise(tests, (size_t)graph->inputs, 5);
    data.y_test = malloc(tests * sizeof(int32_t));
    for (size_t i = 0; i < tests; i++) data.y_test[i] = (int32_t)(i % (size_t)graph->outputs);
    size_t bytes = (tests + 7) / 8;
    uint8_t *errors[2] = {malloc(count * bytes), malloc(count * bytes)};
    uint64_t *masks = NULL;
    size_t different = 0, share = count / 8;
    for (int k = 0; k < 2; k++)
        for (int round = 0; round < 2; round++) { /* the first starts the GPU or the threads */
            size_t some = k == 0 ? count : share;
            double begin = wf_seconds();
            check(ctx[k], wf_score_networks(ctx[k], graph, w, some, &data, WF_SCORE_ACCURACY, NULL,
                                            errors[k]));
            double seconds = wf_seconds() - begin;
            printf("  testing on the %s: %zu networks, %zu examples: %.3f s (all: %.3f)\n",
                   names[k], some, tests, seconds, seconds * (double)count / (double)some);
        }
    for (size_t i = 0; i < share * bytes; i++)
        different += (size_t)__builtin_popcount((unsigned)(errors[0][i] ^ errors[1][i]));
    printf("  %zu of %zu answers differ\n", different, share * tests);
    check(ctx[0], wf__masks_widen(ctx[0], errors[0], count, bytes, &masks));
    float *best = malloc(2 * count * sizeof *best);
    uint32_t *which = malloc(2 * count * sizeof *which);
    int64_t *self = malloc(count * sizeof *self);
    for (size_t i = 0; i < count; i++) self[i] = (int64_t)i;
    for (int k = 0; k < 2; k++) {
        size_t some = k == 0 ? count : share;
        double begin = wf_seconds();
        check(ctx[k], wf__iou_max(ctx[k], masks, some, masks, count, wf__mask_words(bytes), self,
                                  best + k * count, which + k * count));
        double seconds = wf_seconds() - begin;
        printf("  errors on the %s: %zu x %zu: %.3f s (all: %.3f)\n", names[k], some, count,
               seconds, seconds * (double)count / (double)some);
    }
    different = 0;
    for (size_t i = 0; i < share; i++)
        different += best[i] != best[count + i] || which[i] != which[count + i];
    printf("  %zu of %zu neighbours differ\n", different, share);
}

static void time_cloud(const char *path, size_t queries, size_t count) {
    wf_ctx *gpu = open_ctx(WF_DEVICE_CUDA), *cpu = open_ctx(WF_DEVICE_CPU);
    wf_zoo *zoo;
    size_t have;
    float *w = load_networks(cpu, path, count, &zoo, &have);
    const wf_graph *graph = wf_zoo_graph(zoo);
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = 5;
    printf(", %.2f sweeps a pair\n", mean_sweeps(cpu, graph, &desc, w, have, 300));
    int64_t *self = malloc(queries * sizeof *self);
    for (size_t i = 0; i < queries; i++) self[i] = (int64_t)i;
    float *best = malloc(2 * queries * sizeof *best);
    uint32_t *which = malloc(2 * queries * sizeof *which);
    for (int round = 0; round < 3; round++) {
        double begin = wf_seconds();
        check(gpu, wf_wcs_max(gpu, graph, w, queries, w, count, self, &desc, best, which));
        double seconds = wf_seconds() - begin;
        printf("  GPU: %zu x %zu pairs in %.3f s, %.1f million a second%s\n", queries, count,
               seconds, 1e-6 * (double)queries * (double)count / seconds,
               round == 0 ? " (with the GPU's start)" : "");
    }
    size_t share = queries < 32 ? queries : 32;
    float *cpu_best = best + queries;
    uint32_t *cpu_which = which + queries;
    double begin = wf_seconds();
    check(cpu, wf_wcs_max(cpu, graph, w, share, w, count, self, &desc, cpu_best, cpu_which));
    double seconds = wf_seconds() - begin, worst = 0;
    size_t other = 0;
    for (size_t q = 0; q < share; q++) {
        double difference = fabs((double)best[q] - (double)cpu_best[q]);
        if (difference > worst) worst = difference;
        other += which[q] != cpu_which[q];
    }
    printf(
        "  CPU: %zu x %zu pairs in %.3f s on %d cores, so all in %.1f s; values differ by %.2g at "
        "most, %zu neighbours differ\n",
        share, count, seconds, wf_ctx_threads(cpu), seconds * (double)queries / (double)share,
        worst, other);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "pairs") == 0) time_pairs(argv[2], (size_t)atol(argv[3]));
    else if (argc == 5 && strcmp(argv[1], "cloud") == 0)
        time_cloud(argv[2], (size_t)atol(argv[3]), (size_t)atol(argv[4]));
    else if (argc == 5 && strcmp(argv[1], "parts") == 0)
        time_parts(argv[2], (size_t)atol(argv[3]), (size_t)atol(argv[4]));
    else return fprintf(stderr, "see the head of cuda_match.c\n"), 2;
    return 0;
}
