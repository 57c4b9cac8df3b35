/* Walks tensor/ops.def on both backends of the GPU: outputs and gradients against the CPU's in
 * double and (those in float) in float, at odd widths and group sizes, with outputs and scratch
 * poisoned beforehand, and again without for the same bits. All cases are tried before the test
 * fails. Threads compute the references ahead: alone they take longer than the GPU. */
#include <pthread.h>

#include "gpu_fixture.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "poisoned_case.h"

enum { most_shown = 30, most_threads = 15, most_cases = 2000 };
static const double bf16_tolerance = 1e-2;
static int failures;
static setup gpu, again; /* keep their memory from case to case */

/* What a case computed, as doubles. */
typedef struct results {
    double *output[WF_OP_OUTPUTS], *gradient[most_inputs];
} results;

static double *fetch_tensor(const setup *s, const wf_tensor *tensor, const void *from) {
    return copy_out(s, from, (size_t)tensor->rows * (size_t)tensor->ld);
}
static results fetch(const setup *s) {
    results r = {{NULL}, {NULL}};
    for (int i = 0; i < WF_OP_OUTPUTS; i++) {
        const wf_tensor *out = s->tape.last->out[i];
        if (out != NULL) r.output[i] = fetch_tensor(s, out, out->data);
    }
    for (int i = 0; i < s->n_inputs; i++)
        if (s->input[i]->wants) r.gradient[i] = fetch_tensor(s, s->input[i], s->input[i]->grad);
    return r;
}
static void drop(results *r) {
    for (int i = 0; i < WF_OP_OUTPUTS; i++) free(r->output[i]);
    for (int i = 0; i < most_inputs; i++) free(r->gradient[i]);
}

/* What a case is held against. */
typedef struct comparison {
    const char *other;
    const results *values;
    const results *rounded;  /* values of inputs rounded to bf16; NULL: of no matter */
    double output, gradient; /* how far off a case may be; zeros: equal bits */
    bool quiet;
} comparison;

static double distance(const double *x, const double *y, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum);
}

/* Whether x is near enough to y; `rounded` may be NULL. */
static bool compare(const setup *s, const comparison *c, const wf_tensor *a, const double *x,
                    const double *y, const double *rounded, bool gradient) {
    /* Inputs, what becomes of them and gradients are rounded to bf16, each as far as the first:
     * together less than twice as far. */
    enum { roundings = 2 };
    size_t n = (size_t)a->rows * (size_t)a->ld;
    double tolerance = gradient ? c->gradient : c->output;
    double difference = distance(x, y, n), norm = 0;
    for (size_t i = 0; i < n; i++) norm += y[i] * y[i];
    norm = sqrt(norm);
    /* A gradient that is zero but for rounding has no relative error. */
    bool tiny = difference * difference < 1e-11 * (double)n && norm * norm < 1e-6 * (double)n;
    /* Roundings to bf16 average out over many values, not over a few. */
    int values = a->rows * a->cols;
    if (tolerance == bf16_tolerance && values < 128) tolerance *= fmax(2, 1 + 6 / sqrt(values));
    /* One value may be what is left of many that cancel. */
    if (norm == 0 || (values == 1 && norm < 1)) norm = 1;
    if (rounded != NULL) tolerance = fmax(tolerance, roundings * distance(rounded, y, n) / norm);
    if (tolerance == 0 ? difference == 0 : difference <= tolerance * norm || tiny) return true;
    if (!c->quiet && failures++ < most_shown)
        print_error("%s, %s size %d group %d variant %d: %s (%d, %d) differs from %s by %.3g > "
                    "%.3g of %.3g\n",
                    s->tape.backend->name, wf_op_name(s->tape.last->kind), s->size, s->group,
                    s->variant, gradient ? "a gradient" : "an output", a->rows, a->cols, c->other,
                    difference / norm, tolerance, norm);
    return false;
}

static bool compare_all(const setup *s, const results *x, const comparison *c) {
    const results *y = c->values, *rounded = c->rounded;
    bool near = true;
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (x->output[i] != NULL)
            near &= compare(s, c, s->tape.last->out[i], x->output[i], y->output[i],
                            rounded == NULL ? NULL : rounded->output[i], false);
    for (int i = 0; i < s->n_inputs; i++)
        if (x->gradient[i] != NULL)
            near &= compare(s, c, s->input[i], x->gradient[i], y->gradient[i],
                            rounded == NULL ? NULL : rounded->gradient[i], true);
    return near;
}

typedef struct op_case {
    wf_op_kind kind;
    int size, group, variant;
    results reference[2]; /* in float (for the float backend) and in double */
    bool ready;
} op_case;

/* The cases of a walk: threads take them in order, never further than `ahead` beyond the one in
 * use. */
typedef struct case_list {
    op_case *cases;
    int count, taken, used, ahead;
    bool fast, fused; /* in bf16; by kernels of their own */
    pthread_mutex_t lock;
    pthread_cond_t changed;
} case_list;

static results compute_reference(const op_case *c, wf_dtype type, bool rounded) {
    setup cpu = {.rounded = rounded};
    start_again(&cpu, wf_backend_cpu(type), type, c->kind, c->size, c->group, c->variant);
    size_t count;
    free(seed_gradients(&cpu, &count));
    assert_true(wf_tape_backward(&cpu.tape));
    results r = fetch(&cpu);
    wf_tape_free(&cpu.tape);
    return r;
}

static void *compute_ahead(void *arg) {
    case_list *list = arg;
    pthread_mutex_lock(&list->lock);
    while (list->taken < list->count) {
        if (list->taken > list->used + list->ahead) {
            pthread_cond_wait(&list->changed, &list->lock);
            continue;
        }
        op_case *c = &list->cases[list->taken++];
        pthread_mutex_unlock(&list->lock);
        if (!list->fast) c->reference[0] = compute_reference(c, WF_F32, false);
        c->reference[1] = compute_reference(c, WF_F64, false);
        pthread_mutex_lock(&list->lock);
        c->ready = true;
        pthread_cond_broadcast(&list->changed);
    }
    pthread_mutex_unlock(&list->lock);
    return NULL;
}

/* In float, against both of the CPU's. */
static void check_float(const op_case *c, const results *here) {
    /* The CPU's float kernels have an error of their own. */
    double own = wf_op_tolerance(c->kind);
    compare_all(&gpu, here,
                &(comparison){.other = "the CPU in float",
                              .values = &c->reference[0],
                              .output = 1e-5 + own,
                              .gradient = 1e-4 + own});
    compare_all(&gpu, here,
                &(comparison){.other = "the CPU in double",
                              .values = &c->reference[1],
                              .output = 1e-5,
                              .gradient = 1e-4});
}

/* A case that is further off than most are is held against how far rounding moves the reference. */
static void check_bf16(const op_case *c, const results *here) {
    comparison plain = {.other = "the CPU in double",
                        .values = &c->reference[1],
                        .output = bf16_tolerance,
                        .gradient = bf16_tolerance,
                        .quiet = true};
    if (compare_all(&gpu, here, &plain)) return;
    results rounded = compute_reference(c, WF_F64, true);
    plain.quiet = false;
    plain.rounded = &rounded;
    compare_all(&gpu, here, &plain);
    drop(&rounded);
}

/* Whether the tape has an operation of this kind: those of fused.def may be composed. */
static bool recorded(const wf_tape *tape, wf_op_kind kind) {
    for (const wf_op *op = tape->last; op != NULL; op = op->previous)
        if (op->kind == kind) return true;
    return false;
}

static void check_case(const wf_backend *backend, case_list *list, op_case *c) {
    start_again(&gpu, backend, WF_F32, c->kind, c->size, c->group, c->variant);
    if (list->fused) assert_true(wf_cuda_fuses(gpu.tape.last));
    if (list->fast && (c->kind == WF_OP_node_tables || c->kind == WF_OP_lean_nodes))
        assert_int_equal(recorded(&gpu.tape, c->kind), c->size == 64);
    run_case(&gpu, true);
    results here = fetch(&gpu);
    start_again(&again, backend, WF_F32, c->kind, c->size, c->group, c->variant);
    run_case(&again, false);
    results there = fetch(&again);
    compare_all(&gpu, &here, &(comparison){.other = "itself", .values = &there});
    drop(&there);
    pthread_mutex_lock(&list->lock);
    while (!c->ready) pthread_cond_wait(&list->changed, &list->lock);
    list->used++;
    pthread_cond_broadcast(&list->changed);
    pthread_mutex_unlock(&list->lock);
    if (list->fast) check_bf16(c, &here);
    else check_float(c, &here);
    for (int type = list->fast; type < 2; type++) drop(&c->reference[type]);
    drop(&here);
}

/* (width, group): every tile of the products, several spans of the sums. WEFT_CUDA_SMALL takes
 * small groups only, for tools that slow the program down. */
typedef struct shape {
    int width, group;
} shape;
static const shape shapes[] = {{1, 1},   {3, 3},    {7, 7},    {9, 9},    {33, 33},
                               {5, 1},   {32, 3},   {48, 7},   {64, 9},   {100, 33},
                               {130, 5}, {64, 700}, {36, 701}, {128, 33}, {70, 105}};
/* Rows of norms that 16 lanes share, or a warp, or that are too wide for chains; few of them and
 * many. The first is of weights, whose gradients have larger tiles where rows are many. */
static const shape wide_shapes[] = {{97, 105}, {129, 1},   {192, 105}, {256, 105}, {257, 3},
                                    {384, 2},  {510, 105}, {512, 4},   {513, 4}};

/* Attention's fused kernels: groups around the eight rows of an octet, two graphs in a tile, runs
 * that are cut. */
static const shape attended_shapes[] = {{32, 1},  {32, 7},  {32, 33}, {32, 105}, {64, 1},
                                        {64, 3},  {64, 7},  {64, 8},  {64, 33},  {64, 300},
                                        {128, 2}, {128, 3}, {128, 7}, {128, 9},  {128, 105}};

typedef bool takes_fn(int kind, int variant, const shape *of, size_t index);
static bool takes_all(int kind, int variant, const shape *of, size_t index) {
    (void)kind, (void)variant, (void)index;
    return getenv("WEFT_CUDA_SMALL") == NULL || of->group <= 100;
}
static bool takes_wide(int kind, int variant, const shape *of, size_t index) {
    (void)variant, (void)of;
    return index == 0 ? kind == WF_OP_linear : kind == WF_OP_norm;
}
static bool takes_attended(int kind, int variant, const shape *of, size_t index) {
    bool attended =
        variant == 8 || variant == 11 || variant == 16 || (variant == 15 && of->width < 128);
    return kind == WF_OP_lean_edges && attended && takes_all(kind, variant, of, index);
}

static void list_cases(case_list *list, const shape *from, size_t count, takes_fn *takes) {
    for (int kind = 0; kind < WF_OP_COUNT; kind++)
        for (size_t k = 0; k < count; k++)
            for (int variant = 0; variant < variants_of((wf_op_kind)kind); variant++) {
                if (!takes(kind, variant, &from[k], k) ||
                    !my_case("%s-%dx%d-%s", wf_op_name((wf_op_kind)kind), from[k].width,
                             from[k].group, variant_name((wf_op_kind)kind, variant)))
                    continue;
                assert_true(list->count < most_cases);
                list->cases[list->count++] = (op_case){.kind = (wf_op_kind)kind,
                                                       .size = from[k].width,
                                                       .group = from[k].group,
                                                       .variant = variant};
            }
}

static void walk(const wf_backend *backend, const shape *from, size_t count, takes_fn *takes) {
    if (!wf_cuda_available()) skip("no GPU");
    assert_non_null(backend);
    assert_non_null(wf_backend_cpu(WF_F32)); /* chosen before threads ask for it */
    int threads = count_cores(most_threads);
    case_list list = {.cases = calloc(most_cases, sizeof *list.cases),
                      .ahead = 2 * threads,
                      .fast = backend == wf_backend_cuda_bf16(test_gpu()),
                      .fused = takes == takes_attended,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread[most_threads];
    failures = 0;
    list_cases(&list, from, count, takes);
    for (int k = 0; k < threads; k++)
        assert_int_equal(pthread_create(&thread[k], NULL, compute_ahead, &list), 0);
    for (int i = 0; i < list.count; i++) check_case(backend, &list, &list.cases[i]);
    for (int k = 0; k < threads; k++) pthread_join(thread[k], NULL);
    wf_tape_free(&gpu.tape);
    wf_tape_free(&again.tape);
    free(list.cases);
    if (failures > 0) fail_msg("%d tensors of %s", failures, backend->name);
}

static void test_float(void **state) {
    (void)state;
    walk(wf_backend_cuda(test_gpu()), shapes, sizeof shapes / sizeof *shapes, takes_all);
}
static void test_bf16(void **state) {
    (void)state;
    walk(wf_backend_cuda_bf16(test_gpu()), shapes, sizeof shapes / sizeof *shapes, takes_all);
}
static void test_wide(void **state) {
    (void)state;
    walk(wf_backend_cuda_bf16(test_gpu()), wide_shapes, sizeof wide_shapes / sizeof *wide_shapes,
         takes_wide);
}
static void test_attention(void **state) {
    (void)state;
    walk(wf_backend_cuda_bf16(test_gpu()), attended_shapes,
         sizeof attended_shapes / sizeof *attended_shapes, takes_attended);
}

/* A table that a long gather reads and an affine map adds, its gradient against sums written out
 * here: the map's comes first and may set what the gather's is added to. */
static void check_shared_table(const wf_backend *backend) {
    enum { targets = 4, width = 18, inputs = 5 };
    static const int count[2] = {2500, 9};
    setup s = {.dtype = WF_F32, .size = width};
    wf_tape_start(&s.tape, backend, WF_F32, true);
    wf_tensor *table = rows(&s, targets, width), *x = rows(&s, count[1], inputs), *y[2];
    uint32_t *map[2] = {indices(&s, count[0], targets), indices(&s, count[1], targets)};
    y[0] = wf_gather(&s.tape, table, count[0], placed(&s, map[0], count[0]));
    y[1] = wf_linear(&s.tape, &(wf_linear_desc){.x = {x},
                                                .weight = {flat(&s, width, inputs)},
                                                .table = table,
                                                .map = placed(&s, map[1], count[1])});
    double sum[targets][width] = {{0}};
    for (int k = 0; k < 2; k++) {
        void *grad = wf_tape_grad(&s.tape, y[k]);
        settle(&s);
        fill(&s, y[k], grad, 1);
        double *dy = fetch_tensor(&s, y[k], grad);
        for (int r = 0; r < count[k]; r++)
            for (int c = 0; c < width; c++) sum[map[k][r]][c] += dy[r * y[k]->ld + c];
        free(dy);
    }
    assert_true(wf_tape_backward(&s.tape));
    double *got = fetch_tensor(&s, table, table->grad);
    for (int r = 0; r < targets; r++)
        for (int c = 0; c < width; c++) assert_close(got[r * table->ld + c], sum[r][c], 1e-3);
    free(got);
    wf_tape_free(&s.tape);
}

static void test_shared_table(void **state) {
    (void)state;
    check_shared_table(wf_backend_cpu(WF_F32));
    if (!wf_cuda_available()) return;
    check_shared_table(wf_backend_cuda(test_gpu()));
    check_shared_table(wf_backend_cuda_bf16(test_gpu()));
}

static void test_absent(void **state) {
    (void)state;
    if (wf_cuda_available()) skip("there is a GPU");
    assert_null(wf_backend_cuda(test_gpu()));
    assert_null(wf_backend_cuda_bf16(test_gpu()));
    char byte;
    assert_false(wf_cuda_download(test_gpu(), &byte, &byte, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_wide),         cmocka_unit_test(test_attention),
        cmocka_unit_test(test_shared_table), cmocka_unit_test(test_absent),
    };
    return run_chosen(tests, NULL, NULL);
}
