/* A block's operations on rows of nodes, in bf16 on the GPU: messages in, an MLP with a residual, a
 * norm, two tables and a mean, and their gradients. Widths are unequal and odd. Few rows go through
 * chains, many through wide products: both are held against the CPU in double, and the first rows
 * of the many against the few, bit by bit. */
#include "gpu_fixture.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "ops_case.h"

typedef struct widths {
    int node, hidden, first, second, message;
} widths;
static const widths cases[] = {{1, 3, 5, 2, 7},           {32, 48, 20, 64, 33},
                               {64, 128, 192, 192, 64},   {100, 70, 130, 9, 36},
                               {192, 384, 256, 256, 128}, {257, 130, 64, 65, 40},
                               {384, 32, 100, 384, 48}};
enum {
    n_cases = sizeof cases / sizeof *cases,
    few = 37,
    many = 2100, /* the last tile of 128 is not full */
    n_graphs = 4,
    n_outputs = 4
};
static const double tolerance = 2e-2;

typedef struct block {
    setup s;
    wf_tensor *output[n_outputs];
} block;

static wf_tensor *product(setup *s, wf_tensor *x, int width, wf_tensor *bias) {
    return wf_linear(
        &s->tape, &(wf_linear_desc){.x = {x}, .weight = {flat(s, width, x->cols)}, .bias = bias});
}

/* Rows after the first few are of the last graph, so that those have the same neighbours in all
 * batches. */
static uint32_t *graph_starts(setup *s, int count) {
    uint32_t *start = wf_tape_host(&s->tape, (n_graphs + 1) * sizeof *start);
    for (int g = 0; g < n_graphs; g++) start[g] = (uint32_t)(few * g / (n_graphs - 1));
    start[n_graphs] = (uint32_t)count;
    return placed(s, start, n_graphs + 1);
}

static void record(block *b, const widths *w, int count) {
    setup *s = &b->s;
    wf_tensor *h = rows(s, count, w->node), *to[2] = {NULL};
    for (int k = 0; k < 2; k++) to[k] = rows(s, count, w->message);
    wf_tensor *modulation = rows(s, n_graphs, 3 * w->node + 2);
    uint32_t *map = some_indices(s, count, n_graphs);
    void *scale = wf_tape_host(&s->tape, (size_t)count * s->tape.size);
    for (int i = 0; i < count; i++) put(s, scale, (size_t)i, 0.5 + i % 3);
    wf_linear_desc message = {.x = {to[1]},
                              .weight = {flat(s, w->node, w->message)},
                              .bias = flat(s, w->node, 1),
                              .scale = wf_tape_upload(&s->tape, scale, count * s->tape.size)};
    wf_linear_desc inner = {
        .x = {h, product(s, to[0], w->node, NULL), wf_linear(&s->tape, &message)},
        .table = rows(s, n_graphs, w->hidden),
        .map = map};
    for (int k = 0; k < 3; k++) inner.weight[k] = flat(s, w->hidden, w->node);
    wf_tensor *x = wf_activation_op(&s->tape, wf_linear(&s->tape, &inner), WF_TAPE_ACT_GELU);
    x = product(s, x, w->node, flat(s, w->node, 1));
    x = wf_residual(&s->tape, h, x, modulation, 2 * w->node, map);
    b->output[0] = x;
    x = wf_norm_op(&s->tape, x, modulation, 0, map);
    b->output[1] = wf_mean_op(&s->tape, x, n_graphs, graph_starts(s, count));
    b->output[2] = wf_linear(&s->tape, &(wf_linear_desc){.x = {x},
                                                         .weight = {flat(s, w->first, w->node)},
                                                         .table = rows(s, n_graphs, w->first),
                                                         .map = map});
    b->output[3] = product(s, x, w->second, NULL);
}

static block run(const wf_backend *backend, wf_dtype dtype, int index, int count) {
    block b = {.s = {.dtype = dtype, .size = index}};
    wf_tape_start(&b.s.tape, backend, dtype, true);
    record(&b, &cases[index], count);
    assert_false(b.s.tape.failed);
    for (int k = 0; k < n_outputs; k++) {
        void *grad = wf_tape_grad(&b.s.tape, b.output[k]);
        settle(&b.s);
        fill(&b.s, b.output[k], grad, 1);
    }
    assert_true(wf_tape_backward(&b.s.tape));
    return b;
}

/* How far the first `count` values are from others, of their size. */
static double distance(const double *x, const double *y, size_t count) {
    double sum = 0, norm = 0;
    for (size_t i = 0; i < count; i++) sum += (x[i] - y[i]) * (x[i] - y[i]), norm += y[i] * y[i];
    return norm == 0 ? sqrt(sum) : sqrt(sum / norm);
}

/* Tensor k of a block: outputs, then gradients of inputs. */
static const wf_tensor *tensor_of(const block *b, int k) {
    return k < n_outputs ? b->output[k] : b->s.input[k - n_outputs];
}
static double *values_of(const block *b, int k) {
    const wf_tensor *t = tensor_of(b, k);
    return copy_out(&b->s, k < n_outputs ? t->data : t->grad, (size_t)t->rows * (size_t)t->ld);
}

static void compare(const block *gpu, const block *cpu, int index, int count) {
    for (int k = 0; k < n_outputs + gpu->s.n_inputs; k++) {
        const wf_tensor *t = tensor_of(gpu, k);
        size_t n = (size_t)t->rows * (size_t)t->ld;
        double *here = values_of(gpu, k), *there = values_of(cpu, k);
        double limit = n < 128 ? 3 * tolerance : tolerance, d = distance(here, there, n);
        if (!(d <= limit))
            fail_msg("case %d, %d rows: %s %d (%d, %d) is %.3g > %.3g off", index, count,
                     k < n_outputs ? "output" : "gradient of input",
                     k < n_outputs ? k : k - n_outputs, t->rows, t->cols, d, limit);
        free(here), free(there);
    }
}

/* What belongs to rows. */
static void compare_bits(const block *small, const block *large, int index) {
    for (int k = 0; k < n_outputs + small->s.n_inputs; k++) {
        const wf_tensor *t = tensor_of(small, k);
        if (t->rows != few) continue;
        double *here = values_of(large, k), *there = values_of(small, k);
        for (int i = 0; i < few * t->ld; i++)
            if (here[i] != there[i])
                fail_msg("case %d: tensor %d (%d, %d) differs at row %d, column %d: %.9g, of few "
                         "rows %.9g",
                         index, k, t->rows, t->cols, i / t->ld, i % t->ld, here[i], there[i]);
        free(here), free(there);
    }
}

static void test_block(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    assert_non_null(wf_backend_cpu(WF_F64));
    for (int index = 0; index < n_cases; index++) {
        if (!my_case("nodes-%d", cases[index].node)) continue;
        block gpu[2];
        for (int k = 0; k < 2; k++) {
            int count = k ? many : few;
            gpu[k] = run(wf_backend_cuda_bf16(test_gpu()), WF_F32, index, count);
            block cpu = run(wf_backend_cpu(WF_F64), WF_F64, index, count);
            compare(&gpu[k], &cpu, index, count);
            wf_tape_free(&cpu.s.tape);
        }
        compare_bits(&gpu[0], &gpu[1], index);
        block again = run(wf_backend_cuda_bf16(test_gpu()), WF_F32, index, many);
        for (int k = 0; k < n_outputs + again.s.n_inputs; k++) {
            double *here = values_of(&again, k), *there = values_of(&gpu[1], k);
            assert_memory_equal(here, there,
                                (size_t)tensor_of(&again, k)->rows * tensor_of(&again, k)->ld * 8);
            free(here), free(there);
        }
        wf_tape_free(&again.s.tape);
        for (int k = 0; k < 2; k++) wf_tape_free(&gpu[k].s.tape);
    }
}

static int group(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block)};
    return run_chosen(tests, NULL, NULL);
}
int main(void) { return run_in_processes(group); }
