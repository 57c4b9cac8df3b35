/* cuda_step: time and memory of a training step and of a velocity on the GPU, replayed as CUDA
 * graphs.
 *
 *     cuda_step                        all cases, and the velocity of 100 networks
 *     cuda_step CASE KIND PRECISION    one of karhunen, mnist with lean or lstar (+a: with
 *                                      attention) in fp32 or bf16, created and run once: for a
 *                                      profiler
 *     cuda_step KIND                   this kind alone, in bf16 */
#include "base/arena.h"
#include "base/random.h"
#include "base/cuda/device.h"
#include "base/status.h"
#include "graph/batch.h"
#include "models/cuda/gmn_cuda.h"
#include "models/field_kinds.h"
#include "models/field.h"
#include "models/gmn_part.h"
#include "tensor/cuda/backend_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { repeats = 20, rounds = 3 };

static void check(wf_ctx *ctx, wf_status status) {
    if (status == WF_OK) return;
    fprintf(stderr, "cuda_step: %s\n", wf_last_error(ctx));
    exit(1);
}

typedef struct kind {
    const char *name;
    wf_layout layout;
    wf_messages messages;
} kind;
static const kind kinds[] = {{"lean", WF_LAYOUT_LEAN, WF_MESSAGES_SUM},
                             {"lstar", WF_LAYOUT_LSTAR, WF_MESSAGES_SUM},
                             {"lean+a", WF_LAYOUT_LEAN, WF_MESSAGES_ATTENTION},
                             {"lstar+a", WF_LAYOUT_LSTAR, WF_MESSAGES_ATTENTION}};
enum { n_kinds = sizeof kinds / sizeof *kinds };

static const kind *kind_of(const char *name) {
    for (int k = 0; k < n_kinds; k++)
        if (strcmp(kinds[k].name, name) == 0) return &kinds[k];
    fprintf(stderr, "cuda_step: no kind %s\n", name);
    exit(1);
}

static wf_field_desc field_of(const char *name, const kind *of) {
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = of->layout;
    desc.messages = of->messages;
    if (strcmp(name, "mnist") == 0) {
        desc.node = desc.edge = desc.time = 128;
        desc.fold_rows = 785;
    }
    return desc;
}

typedef struct step_case {
    wf_field *field;
    wf_arena arena;
    wf_graph *graph;
    wf_batch batch;
    wf_field_program *program;
} step_case;

static void open_case(wf_ctx *ctx, const char *name, const kind *of, bool fast, int n, bool keep,
                      step_case *c) {
    bool mnist = strcmp(name, "mnist") == 0;
    wf_field_desc desc = field_of(name, of);
    *c = (step_case){.graph = NULL};
    check(ctx, wf_graph_parse(ctx, mnist ? "784-32-32-10" : "64-16-8-10", "relu",
                              mnist ? WF_GRAPH_FOLD_INPUT : 0, &c->graph));
    const wf_graph **graphs = calloc((size_t)n, sizeof *graphs);
    for (int i = 0; i < n; i++) graphs[i] = c->graph;
    check(ctx, wf_batch_build(ctx, &c->arena, graphs, n, &c->batch));
    free(graphs);
    check(ctx, wf_field_create(ctx, &wf__field_gmn, &desc, NULL, WF_F32, &c->field));
    wf_field_program_desc program = {.batch = &c->batch, .keep = keep, .fast = fast};
    check(ctx, wf_field_program_create(ctx, c->field, &program, &c->program));
    /* Random numbers of about the right size in all parameters: zeros would be faster than real
     * data. */
    const wf_field_buffers *to = &c->program->buffers;
    size_t count = c->field->params > c->batch.n_params ? c->field->params : c->batch.n_params;
    float *numbers = malloc(count * sizeof *numbers);
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, numbers, count);
    wf_cuda_device *gpu;
    check(ctx, wf_ctx_cuda(ctx, &gpu));
    wf_cuda_upload(gpu, to->w, numbers, c->batch.n_params * sizeof *numbers);
    if (keep) wf_cuda_upload(gpu, to->dv, numbers, c->batch.n_params * sizeof *numbers);
    for (size_t i = 0; i < c->field->params; i++) numbers[i] *= 0.1f;
    wf_cuda_upload(gpu, to->params, numbers, c->field->params * sizeof *numbers);
    free(numbers);
}

static void close_case(step_case *c) {
    wf_field_program_free(c->program);
    wf_field_free(c->field);
    wf_arena_free(&c->arena);
    wf_graph_free(c->graph);
}

/* Best of the rounds, seconds a run. */
static double time_of(wf_ctx *ctx, step_case *c, bool forward, bool backward) {
    double best = 1e30;
    for (int round = -1; round < rounds; round++) {
        check(ctx, wf_cuda_wait(ctx));
        double start = wf_seconds();
        for (int r = 0; r < repeats; r++) {
            if (forward) check(ctx, wf_field_program_forward(ctx, c->program));
            if (backward) check(ctx, wf_field_program_backward(ctx, c->program));
        }
        check(ctx, wf_cuda_wait(ctx));
        double seconds = (wf_seconds() - start) / repeats;
        if (round >= 0 && seconds < best) best = seconds;
    }
    return best;
}

static void run_case(wf_ctx *ctx, const char *name, const kind *of, bool fast) {
    step_case c;
    double start = wf_seconds();
    open_case(ctx, name, of, fast, 256, true, &c);
    double made = wf_seconds() - start;
    double forward = time_of(ctx, &c, true, false), step = time_of(ctx, &c, true, true);
    double bytes = (double)wf_field_program_bytes(c.program);
    close_case(&c);
    open_case(ctx, name, of, fast, 100, false, &c);
    double velocity = time_of(ctx, &c, true, false);
    close_case(&c);
    printf("%-9s %-7s %-5s %8.2f %8.2f %8.2f %8.2f %10.2f %8.0f\n", name, of->name,
           fast ? "bf16" : "fp32", forward * 1e3, (step - forward) * 1e3, step * 1e3,
           bytes / (1 << 30), velocity * 1e3, made * 1e3);
}

int main(int argc, char **argv) {
    wf_ctx_desc desc = {.threads = 2, .device = WF_DEVICE_CUDA};
    wf_ctx *ctx;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) return 1;
    if (argc == 4) {
        step_case c;
        open_case(ctx, argv[1], kind_of(argv[2]), strcmp(argv[3], "bf16") == 0, 256, true, &c);
        close_case(&c);
    } else {
        setvbuf(stdout, NULL, _IOLBF, 0);
        printf("B = 256; ms               forward backward     step      GiB  v of 100     make\n");
        const kind *only = argc == 2 ? kind_of(argv[1]) : NULL;
        for (int k = 0; k < 4 * n_kinds; k++) {
            const kind *of = &kinds[k % n_kinds];
            bool fast = k < 2 * n_kinds;
            if (only != NULL ? of == only && fast : fast || of->messages == WF_MESSAGES_SUM)
                run_case(ctx, k / n_kinds % 2 ? "mnist" : "karhunen", of, fast);
        }
    }
    wf_ctx_free(ctx);
    return 0;
}
