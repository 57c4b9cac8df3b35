/* The fused kernels of an lstar block on the GPU, with wide products and with mma.sync: outputs and
 * gradients against the CPU's in double, outputs and scratch poisoned beforehand, again without for
 * the same bits. Group widths around the eight rows of an octet, two graphs in a tile, a bias
 * block, fewer than eight edges into a node. All cases are tried before the test fails. */
#include "gpu_fixture.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "poisoned_case.h"

enum { most_shown = 40 };
static int failures;
static setup gpu, again; /* keep their memory from case to case */

/* Says where two tensors differ most. */
static void describe(const setup *s, const char *what, int place, const wf_tensor *a,
                     const double *x, const double *y, double error) {
    size_t n = (size_t)a->rows * (size_t)a->ld, worst = 0, bad = 0;
    size_t nans = 0;
    for (size_t i = 0; i < n; i++) {
        nans += isnan(x[i]);
        bad += !(fabs(x[i] - y[i]) <= 0.05 * (1 + fabs(y[i])));
        if (!(fabs(x[i] - y[i]) <= fabs(x[worst] - y[worst]))) worst = i;
    }
    print_error(
        "%s size %d group %d variant %d %s: %s %d (%d, %d) off by %.3g; %zu of %zu far off, "
        "%zu NaN; worst at row %zu column %zu: %.5g, expected %.5g\n",
        wf_op_name(s->tape.last->kind), s->size, s->group, s->variant,
        getenv("WEFT_MMA") != NULL ? "sync" : "wide", what, place, a->rows, a->cols, error, bad, n,
        nans, worst / (size_t)a->ld, worst % (size_t)a->ld, x[worst], y[worst]);
}

static void compare(const setup *s, const setup *other, int place, bool gradient,
                    double tolerance) {
    const wf_tensor *a = gradient ? s->input[place] : s->tape.last->out[place];
    const wf_tensor *b = gradient ? other->input[place] : other->tape.last->out[place];
    size_t n = (size_t)a->rows * (size_t)a->ld;
    double *x = copy_out(s, gradient ? a->grad : a->data, n);
    double *y = copy_out(other, gradient ? b->grad : b->data, n), difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (x[i] - y[i]) * (x[i] - y[i]);
        norm += y[i] * y[i];
    }
    double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    if (!(tolerance == 0 ? difference == 0 : error <= tolerance) && failures++ < most_shown)
        describe(s,
                 tolerance == 0 ? "again, tensor"
                 : gradient     ? "gradient"
                                : "output",
                 place, a, x, y, error);
    free(x);
    free(y);
}

static void compare_all(const setup *s, const setup *other, double tolerance) {
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (s->tape.last->out[i] != NULL) compare(s, other, i, false, tolerance);
    for (int i = 0; i < s->n_inputs; i++)
        if (s->input[i]->wants) compare(s, other, i, true, tolerance);
}

static void check_case(wf_op_kind kind, int size, int group, int variant) {
    setup cpu;
    start_again(&gpu, wf_backend_cuda_bf16(test_gpu()), WF_F32, kind, size, group, variant);
    assert_true(wf_cuda_fuses(gpu.tape.last));
    run_case(&gpu, true);
    start_again(&again, wf_backend_cuda_bf16(test_gpu()), WF_F32, kind, size, group, variant);
    run_case(&again, false);
    compare_all(&gpu, &again, 0);
    start(&cpu, wf_backend_cpu(WF_F64), WF_F64, kind, size, group, variant);
    size_t count;
    free(seed_gradients(&cpu, &count));
    assert_true(wf_tape_backward(&cpu.tape));
    compare_all(&gpu, &cpu, 1e-2);
    wf_tape_free(&cpu.tape);
}

/* Variants first .. last - 1. WEFT_CUDA_SMALL: one group width, for tools that slow the program
 * down. */
static void walk(wf_op_kind kind, int first, int last) {
    if (!wf_cuda_available()) skip("no GPU");
    static const int sizes[] = {64, 128}, groups[] = {1, 3, 7, 8, 9, 33, 300};
    bool small = getenv("WEFT_CUDA_SMALL") != NULL;
    failures = 0;
    for (int sync = 0; sync < 2; sync++) {
        if (sync) setenv("WEFT_MMA", "sync", 1);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
                for (int variant = first; variant < last; variant++)
                    if ((!small || groups[k] == 9) &&
                        my_case("%s-%dx%d-%s-%s", wf_op_name(kind), sizes[i], groups[k],
                                variant_name(kind, variant), sync ? "sync" : "wide"))
                        check_case(kind, sizes[i], groups[k], variant);
        unsetenv("WEFT_MMA");
    }
    wf_tape_free(&gpu.tape);
    wf_tape_free(&again.tape);
    if (failures > 0) fail_msg("%d tensors are off", failures);
}

static void test_messages(void **state) {
    (void)state;
    walk(WF_OP_lstar_messages, 0, 3); /* SiLU */
}
static void test_large_logits(void **state) {
    (void)state;
    walk(WF_OP_lstar_messages, 6, 7);
}
static void test_edges(void **state) {
    (void)state;
    walk(WF_OP_lstar_edges, 0, 1);
}

static int run_group(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_large_logits),
        cmocka_unit_test(test_edges),
    };
    return run_chosen(tests, NULL, NULL);
}

int main(void) { return run_in_processes(run_group); }
