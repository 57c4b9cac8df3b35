/* cuda_loop: what an update costs on the GPU beside its field: draw, loss, optimiser, matching.
 *
 *     cuda_loop [CASE...]        of karhunen-lean karhunen-lstar mnist-lean mnist-lstar; all
 *                                without
 *     cuda_loop brief [CASE...]  the field and an update with AdamW alone
 *     cuda_loop nccl [CASE...]   updates without and with NCCL, one rank: what its way costs
 *     cuda_loop profile CASE     two updates with Muon and matched noise, for a profiler
 * CASE:B: B networks, not 256; CASE:B:NxE: nodes of width N, edges of width E. */
#include "base/cuda/device.h"
#include "base/random.h"
#include "flow/cuda/fit_cuda.h"
#include "flow/match_ahead.h"
#include "models/cuda/gmn_cuda.h"
#include "models/field_kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_networks = 1024 };
static int batch, rounds = 3;
static bool brief, nccl;
static size_t repeats = 12;

static void check(wf_ctx *ctx, wf_status status) {
    if (status == WF_OK) return;
    fprintf(stderr, "cuda_loop: %s\n", wf_last_error(ctx));
    exit(1);
}

/* Networks of normal deviates in place of a collection. */
static wf_training_set make_set(wf_ctx *ctx, bool mnist) {
    wf_training_set set = {.n_families = 1, .n_sources = 1};
    size_t count = mnist ? 500 : 2000;
    set.families = calloc(1, sizeof *set.families);
    set.sources = calloc(1, sizeof *set.sources);
    check(ctx, wf_graph_parse(ctx, mnist ? "784-32-32-10" : "64-16-8-10", "relu",
                              mnist ? WF_GRAPH_FOLD_INPUT : 0, &set.families[0].graph));
    size_t params = set.families[0].graph->n_params;
    set.families[0].count = set.sources[0].count = count;
    set.families[0].weights = malloc(count * params * sizeof(float));
    for (size_t k = 0; k < count; k++) {
        wf_rng rng = wf_rng_at(5, (uint32_t)k, WF_RNG_TEST, 0);
        wf_rng_normals(&rng, set.families[0].weights + k * params, params);
    }
    return set;
}

static double time_updates(wf_ctx *ctx, const wf_field *field, wf_training_set *set,
                           wf_fit_desc fit, bool fast) {
    size_t params = field->params;
    wf_fit_arrays arrays = {calloc(params, 4), calloc(params, 4), NULL, calloc(params, 4),
                            calloc(params, 4)};
    wf_field_init(field, 1, arrays.weights);
    memcpy(arrays.ema, arrays.weights, params * 4);
    wf_fit_cuda_desc desc = {.field = field,
                             .set = set,
                             .fit = &fit,
                             .path = {fit.precondition, fit.source_std, fit.path_noise},
                             .optim = {.lr = fit.lr,
                                       .beta1 = fit.beta1,
                                       .beta2 = fit.beta2,
                                       .eps = fit.eps,
                                       .muon = fit.optimizer == WF_OPT_MUON,
                                       .muon_lr = fit.muon_lr,
                                       .muon_momentum = fit.muon_momentum,
                                       .clip = fit.clip,
                                       .ema = fit.ema},
                             .arrays = &arrays,
                             .best_loss = 1e300,
                             .fast = fast};
    wf_fit_cuda *engine;
    check(ctx, wf__fit_cuda_create(ctx, &desc, &engine));
    size_t made = 0;
    double best = 1e30;
    for (int round = -1; round < rounds; round++) {
        wf_update_record record;
        double start = wf_seconds();
        for (size_t k = 0; k < repeats; k++) check(ctx, wf__fit_cuda_enqueue(ctx, engine));
        for (size_t k = 0; k < repeats; k++)
            check(ctx, wf__fit_cuda_record(ctx, engine, made++, &record));
        double seconds = (wf_seconds() - start) / (double)repeats;
        if (round >= 0 && seconds < best) best = seconds;
        if (!record.made) {
            fprintf(stderr, "cuda_loop: diverged: loss %g, norm %g\n", record.loss, record.norm);
            exit(1);
        }
    }
    wf__fit_cuda_free(engine);
    free(arrays.weights), free(arrays.ema), free(arrays.first), free(arrays.second);
    return best * 1e3;
}

static double time_field(wf_ctx *ctx, const wf_field *field, const wf_training_set *set,
                         bool fast) {
    wf_arena arena = {0};
    wf_batch shape;
    const wf_graph *graphs[most_networks];
    for (int b = 0; b < batch; b++) graphs[b] = set->families[0].graph;
    check(ctx, wf_batch_build(ctx, &arena, graphs, batch, &shape));
    wf_field_program *program;
    wf_field_program_desc desc = {.batch = &shape, .keep = true, .fast = fast};
    check(ctx, wf_field_program_create(ctx, field, &desc, &program));
    double best = 1e30;
    for (int round = -1; round < rounds; round++) {
        check(ctx, wf_cuda_wait(ctx));
        double start = wf_seconds();
        for (int k = 0; k < 20; k++) {
            check(ctx, wf_field_program_forward(ctx, program));
            check(ctx, wf_field_program_backward(ctx, program));
        }
        check(ctx, wf_cuda_wait(ctx));
        double seconds = (wf_seconds() - start) / 20;
        if (round >= 0 && seconds < best) best = seconds;
    }
    wf_field_program_free(program);
    wf_arena_free(&arena);
    return best * 1e3;
}

/* Milliseconds a batch of relabellings takes the host's threads. */
static double time_matching(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *fit) {
    size_t units = wf_match_units(set), updates = 40;
    uint32_t *memory = calloc(updates * (size_t)batch * units, sizeof *memory);
    wf_match_ahead *ahead;
    double start = wf_seconds();
    check(ctx, wf_match_ahead_start(ctx, set, fit, 0, updates, memory, updates, &ahead));
    check(ctx, wf_match_ahead_wait(ctx, ahead, updates - 1));
    double seconds = (wf_seconds() - start) / (double)updates;
    wf_match_ahead_stop(ahead);
    free(memory);
    return seconds * 1e3;
}

/* Both ways in turns, because a GPU's clock drifts. */
static void compare_nccl(wf_ctx *ctx, const char *name, const wf_field *field, wf_training_set *set,
                         wf_fit_desc fit) {
    for (int muon = 0; muon < 2; muon++) {
        double best[2] = {1e30, 1e30};
        fit.optimizer = muon ? WF_OPT_MUON : WF_OPT_ADAMW;
        for (int k = 0; k < 6; k++) {
            setenv("WEFT_NCCL", k % 2 ? "on" : "off", 1);
            double ms = time_updates(ctx, field, set, fit, true);
            if (ms < best[k % 2]) best[k % 2] = ms;
        }
        printf("%-24s %-5s %8.3f %8.3f %+6.2f %%\n", name, muon ? "muon" : "adamw", best[0],
               best[1], 100 * (best[1] / best[0] - 1));
    }
}

static void time_case(wf_ctx *ctx, const char *name, const wf_field *field, wf_training_set *set,
                      wf_fit_desc fit) {
    double updates[4] = {0}, matching = 0, bare = time_field(ctx, field, set, true);
    for (int k = 0; k < (brief ? 1 : 4); k++) {
        fit.optimizer = k / 2 ? WF_OPT_MUON : WF_OPT_ADAMW;
        fit.coupling = k % 2 ? WF_COUPLING_MATCHED : WF_COUPLING_INDEPENDENT;
        updates[k] = time_updates(ctx, field, set, fit, true);
    }
    fit.coupling = WF_COUPLING_MATCHED;
    if (!brief) matching = time_matching(ctx, set, &fit);
    printf("%-24s %8.3f %8.3f", name, bare, updates[0]);
    if (!brief)
        printf(" %8.3f %8.3f %8.3f %9.3f %9.0f", updates[1], updates[2], updates[3], matching,
               batch / matching * 1e3);
    printf("\n");
}

static void run_case(wf_ctx *ctx, const char *name) {
    bool mnist = strncmp(name, "mnist", 5) == 0, lstar = strstr(name, "lstar") != NULL;
    const char *colon = strchr(name, ':');
    int node = 0, edge = 0;
    batch = 256;
    if (colon != NULL && sscanf(colon, ":%d:%dx%d", &batch, &node, &edge) == 2) batch = 0;
    if (batch < 1 || batch > most_networks) {
        fprintf(stderr, "cuda_loop: %s: CASE[:B[:NxE]], a batch has 1 to %d networks\n", name,
                most_networks);
        exit(1);
    }
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = lstar ? WF_LAYOUT_LSTAR : WF_LAYOUT_LEAN;
    if (mnist) desc.node = desc.edge = desc.time = 128, desc.fold_rows = 785;
    if (edge > 0) desc.node = node, desc.edge = edge;
    wf_field *field;
    check(ctx, wf_field_create(ctx, &wf__field_gmn, &desc, NULL, WF_F32, &field));
    wf_training_set set = make_set(ctx, mnist);
    wf_fit_desc fit = wf_fit_desc_default();
    fit.batch = (size_t)batch;
    fit.lr = 1e-4, fit.muon_lr = 1e-3;
    if (rounds == 0) { /* the profiler's */
        time_updates(ctx, field, &set, fit, true);
        exit(0);
    }
    if (nccl) compare_nccl(ctx, name, field, &set, fit);
    else time_case(ctx, name, field, &set, fit);
    fflush(stdout);
    free(set.families[0].weights);
    wf_graph_free(set.families[0].graph);
    free(set.families), free(set.sources);
    wf_field_free(field);
}

int main(int argc, char **argv) {
    static const char *const all[] = {"karhunen-lean", "mnist-lean", "karhunen-lstar",
                                      "mnist-lstar"};
    wf_ctx_desc desc = {.device = WF_DEVICE_CUDA};
    wf_ctx *ctx;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 1;
    int first = 1;
    brief = argc > 1 && strcmp(argv[1], "brief") == 0;
    nccl = argc > 1 && strcmp(argv[1], "nccl") == 0;
    first += brief || nccl;
    if (brief) rounds = 2, repeats = 8;
    if (nccl) printf("bf16, ms                          alone     NCCL    more\n");
    else
        printf("bf16, ms                    field    adamw%s (%d threads)\n",
               brief ? "" : " +matched     muon +matched  matching   pairs/s", wf_ctx_threads(ctx));
    if (argc == 3 && strcmp(argv[1], "profile") == 0) {
        rounds = 0, repeats = 2;
        run_case(ctx, argv[2]);
    }
    for (int k = first; k < argc; k++) run_case(ctx, argv[k]);
    for (int k = 0; argc == first && k < 4; k++) run_case(ctx, all[k]);
    wf_ctx_free(ctx);
    return 0;
}
