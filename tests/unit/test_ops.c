/* Walks tensor/ops.def: every operation's gradient in double against central differences, at odd sizes, and the float
 * kernels of every instruction set this machine has against the double ones. An operation without a case here does not
 * compile. */
#include "base/random.h"
#include "tensor/tape.h"
#include "wf_test.h"

enum { most_inputs = 12, most_blocks = 8 };

typedef struct setup {
    wf_tape tape;
    wf_dtype dtype;
    int size;    /* the width under test */
    int variant; /* which options the case takes */
    uint32_t stream;
    wf_tensor *input[most_inputs];
    int n_inputs;
    wf_batch_block blocks[most_blocks];
    wf_batch_fold fold;
    wf_part part;
} setup;

static double get(const setup *s, const void *x, size_t i) {
    return s->dtype == WF_F64 ? ((const double *)x)[i] : ((const float *)x)[i];
}
static void put(const setup *s, void *x, size_t i, double value) {
    if (s->dtype == WF_F64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

/* The same deviates, exact in float, for both types. */
static void fill(setup *s, wf_tensor *x, void *data) {
    wf_rng rng = wf_rng_at(7, s->stream++, WF_RNG_TEST, (uint32_t)s->size);
    for (int r = 0; r < x->rows; r++)
        for (int c = 0; c < x->ld; c++) {
            float value = 0;
            if (c < x->cols) wf_rng_normals_from(&rng, (size_t)(r * x->cols + c), &value, 1);
            put(s, data, (size_t)(r * x->ld + c), value);
        }
}

static wf_tensor *keep(setup *s, wf_tensor *x) {
    assert_non_null(x);
    s->input[s->n_inputs++] = x;
    return x;
}
static wf_tensor *rows(setup *s, int count, int cols) {
    wf_tensor *x = wf_tape_tensor(&s->tape, count, cols, true);
    fill(s, x, x->data);
    return keep(s, x);
}
/* A caller's array: weights, biases, tables, flat parameters. */
static wf_tensor *flat(setup *s, int count, int cols) {
    size_t bytes = (size_t)count * (size_t)cols * s->tape.size;
    void *data = wf_tape_alloc(&s->tape, bytes), *grad = wf_tape_alloc(&s->tape, bytes);
    memset(grad, 0, bytes);
    wf_tensor shape = {.rows = count, .cols = cols, .ld = cols};
    fill(s, &shape, data);
    for (size_t i = 0; cols > 1 && i < (size_t)count * (size_t)cols; i++)
        put(s, data, i, (float)(get(s, data, i) / sqrt(cols)));
    return keep(s, wf_tape_weight(&s->tape, data, grad, count, cols, NULL, NULL));
}

static uint32_t *indices(setup *s, int count, uint32_t below) {
    uint32_t *out = wf_tape_alloc(&s->tape, (size_t)(count + 1) * sizeof *out);
    for (int i = 0; i < count; i++) out[i] = (uint32_t)(i * 7 + 3) % below;
    return out;
}

static void add_block(setup *s, int graph, int n_src, int n_dst, size_t src0, size_t dst0,
                      int coef) {
    s->blocks[s->part.n_blocks++] = (wf_batch_block){.graph = graph,
                                                     .n_src = n_src,
                                                     .n_dst = n_dst,
                                                     .coef = coef,
                                                     .src0 = src0,
                                                     .dst0 = dst0,
                                                     .edge0 = (size_t)s->part.n_edges + 5,
                                                     .param0 = s->part.n_params + 2};
    s->part.n_edges += n_src * n_dst;
    s->part.n_params += (size_t)(n_src * n_dst * coef);
}

/* Two graphs: 3 -> size with a bias node, and size -> 2; places in the batch do not start at zero. `coef` of the last
 * block. A fold of 3 rows of size + 1 sits on the first graph's inputs. */
static const wf_part *graphs(setup *s, int coef) {
    int n = s->size;
    wf_part *part = &s->part;
    part->first_edge = 5, part->first_param = 2, part->first_node = 0;
    add_block(s, 0, 3, n, 0, 3, 1);
    add_block(s, 0, 1, n, (size_t)(3 + n), 3, 1);
    add_block(s, 1, n, 2, (size_t)(4 + n), (size_t)(4 + 2 * n), coef);
    part->n_graphs = 2;
    part->n_nodes = 6 + 2 * n;
    part->blocks = s->blocks;
    uint32_t *dst = indices(s, part->n_edges, 1), *src = indices(s, part->n_edges, 1);
    uint32_t *graph = indices(s, part->n_edges, 1);
    void *degree = wf_tape_alloc(&s->tape, (size_t)part->n_nodes * s->tape.size);
    for (int k = 0; k < part->n_nodes; k++) put(s, degree, (size_t)k, 0);
    for (int b = 0, edge = 0; b < part->n_blocks; b++)
        for (int i = 0; i < s->blocks[b].n_dst; i++)
            for (int j = 0; j < s->blocks[b].n_src; j++, edge++) {
                dst[edge] = (uint32_t)s->blocks[b].dst0 + (uint32_t)i;
                src[edge] = (uint32_t)s->blocks[b].src0 + (uint32_t)j;
                graph[edge] = (uint32_t)s->blocks[b].graph;
                put(s, degree, dst[edge], get(s, degree, dst[edge]) + 1);
                put(s, degree, src[edge], get(s, degree, src[edge]) + 1);
            }
    uint32_t *starts = indices(s, 3, 1);
    starts[0] = 0, starts[1] = (uint32_t)(4 * n), starts[2] = (uint32_t)part->n_edges;
    part->edge_dst = dst, part->edge_src = src, part->edge_graph = graph;
    part->edge_start = starts;
    part->degree = degree;
    s->fold = (wf_batch_fold){.n_dst = 3,
                              .n_src = n,
                              .has_bias = true,
                              .weight0 = part->n_params + 2,
                              .bias0 = part->n_params + 2 + (size_t)(3 * n)};
    part->folds = &s->fold;
    part->n_folds = 1;
    part->n_fold_rows = 3;
    part->n_params += (size_t)(3 * n + 3);
    return part;
}

/* --- one case per operation: builds inputs and records the operation ------------------------------------ */
static void build_linear(setup *s) {
    int n = s->size;
    wf_linear_desc desc = {.x = {rows(s, 9, n)}, .weight = {flat(s, n + 2, n)}};
    if (s->variant > 0) {
        desc.x[1] = rows(s, 9, 1);
        desc.weight[1] = flat(s, n + 2, 1);
        desc.bias = flat(s, n + 2, 1);
    }
    if (s->variant > 1) {
        void *scale = wf_tape_alloc(&s->tape, 9 * s->tape.size);
        for (size_t i = 0; i < 9; i++) put(s, scale, i, (float)(0.5 + (double)i));
        desc.scale = scale;
        desc.table = rows(s, 4, n + 2);
        desc.map = indices(s, 9, 4);
    }
    wf_linear(&s->tape, &desc);
}
static void build_activation(setup *s) {
    wf_activation_op(&s->tape, rows(s, 5, s->size), (wf_unit)s->variant);
}
static void build_norm(setup *s) {
    wf_tensor *x = rows(s, 6, s->size);
    wf_tensor *modulation = s->variant ? rows(s, 3, 2 * s->size + 3) : NULL;
    wf_norm_op(&s->tape, x, modulation, 2, indices(s, 6, 3));
}
static void build_residual(setup *s) {
    wf_tensor *x = rows(s, 6, s->size), *branch = rows(s, 6, s->size);
    wf_tensor *modulation = s->variant ? rows(s, 3, s->size + 3) : NULL;
    wf_residual(&s->tape, x, branch, modulation, 2, indices(s, 6, 3));
}
static void build_mean(setup *s) {
    uint32_t *start = indices(s, 4, 1);
    start[0] = 0, start[1] = 4, start[2] = 4, start[3] = 7;
    wf_mean_op(&s->tape, rows(s, 7, s->size), 3, start);
}
static void build_gather(setup *s) {
    wf_gather(&s->tape, s->variant ? flat(s, 4, s->size) : rows(s, 4, s->size), 9,
              s->variant > 1 ? NULL : indices(s, 9, 4));
}
static void build_insert(setup *s) {
    wf_tensor *x = rows(s, 8, s->size), *add = rows(s, 3, s->size);
    uint32_t *map = indices(s, 3, 1);
    map[0] = 5, map[1] = 0, map[2] = 7;
    wf_insert(&s->tape, x, add, map);
}
static void build_time_features(setup *s) {
    wf_tensor *t = wf_tape_tensor(&s->tape, 4, 1, false);
    for (int r = 0; r < 4; r++) put(s, t->data, (size_t)(r * t->ld), (float)(0.1 + 0.25 * r));
    wf_time_features(&s->tape, t, 2 * s->size);
}
static void build_null_rows(setup *s) {
    static const uint8_t flags[5] = {0, 1, 0, 0, 1};
    wf_tensor *x = rows(s, 5, s->size), *null = flat(s, 1, s->size);
    wf_null_rows(&s->tape, x, null, s->variant ? NULL : flags);
}
static void build_logit(setup *s) {
    wf_tensor *a = flat(s, 1, s->size + 1), *m = flat(s, s->size + 1, s->size);
    wf_logit(&s->tape, a, m);
}
static wf_tensor *parameters(setup *s, const wf_part *part) {
    return flat(s, (int)part->n_params, 1);
}
static void build_edge_features(setup *s) {
    const wf_part *part = graphs(s, 4);
    bool fourier = s->variant == WF_CODE_FOURIER;
    int width = fourier ? 2 * s->size : s->size;
    wf_edge_features_desc desc = {.code = (wf_value_code)s->variant, .width = width};
    desc.w = parameters(s, part);
    desc.a = flat(s, s->size, 1);
    desc.kernel_a = flat(s, s->size, 4);
    if (fourier) {
        desc.a->wants = desc.kernel_a->wants = false; /* frozen */
    } else {
        desc.b = flat(s, s->size, 1);
        desc.kernel_b = flat(s, s->size, 1);
    }
    wf_edge_features(&s->tape, part, &desc);
}
static void build_fold_pack(setup *s) {
    const wf_part *part = graphs(s, 1);
    wf_fold_pack(&s->tape, part, parameters(s, part), s->size + 1 + s->variant);
}
static void build_velocity(setup *s) {
    const wf_part *part = graphs(s, s->variant ? 4 : 1);
    wf_tensor *single = rows(s, part->n_edges, 1);
    wf_tensor *kernel = s->variant ? rows(s, part->n_edges, 4) : NULL;
    wf_tensor *fold = rows(s, 3, s->size + 1);
    void *v = wf_tape_alloc(&s->tape, part->n_params * s->tape.size);
    memset(v, 0, part->n_params * s->tape.size);
    void *dv = wf_tape_alloc(&s->tape, part->n_params * s->tape.size);
    wf_velocity(&s->tape, part, single, kernel, fold,
                wf_tape_view(&s->tape, v, dv, (int)part->n_params, 1));
}

/* Variants 0..5: the three sums with either unit; 6: a last block, whose sums nobody wants; 7: the same with 64 messages,
 * whole panels that are left out. */
static void build_lean_edges(setup *s) {
    const wf_part *part = graphs(s, 1);
    int de = s->size, messages = s->variant > 6 ? 64 : 2 * (s->size % 5 + 1);
    int hidden = messages + 2 * de;
    wf_lean_desc desc = {.column = 1, .messages = messages};
    desc.sum = (wf_sum)(s->variant % 3);
    desc.unit = s->variant < 3 ? WF_UNIT_GELU : WF_UNIT_SILU;
    desc.sums = s->variant < 6;
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 3 * de + 2);
    desc.ad = rows(s, part->n_nodes, hidden);
    desc.as = rows(s, part->n_nodes, hidden);
    desc.w1 = flat(s, hidden, de);
    desc.w2 = flat(s, de, 2 * de);
    desc.c2 = flat(s, de, 1);
    if (desc.sum == WF_SUM_ATTENTION) {
        desc.vf = rows(s, 1, messages);
        desc.vb = rows(s, 1, messages);
    }
    wf_lean_edges(&s->tape, part, &desc);
}
static void build_lstar_messages(setup *s) {
    const wf_part *part = graphs(s, 1);
    int de = s->size, hidden = 2 * (s->size % 5 + 1);
    wf_lstar_messages_desc desc = {.column = 1};
    desc.sum = (wf_sum)(s->variant % 3);
    desc.unit = s->variant < 3 ? WF_UNIT_SILU : WF_UNIT_GELU;
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 2 * de + 2);
    desc.ai = rows(s, part->n_nodes, hidden);
    desc.aj = rows(s, part->n_nodes, hidden);
    desc.me = flat(s, hidden, de);
    desc.m2 = flat(s, hidden, hidden);
    desc.b2 = flat(s, hidden, 1);
    if (desc.sum == WF_SUM_ATTENTION) desc.v = rows(s, 1, hidden);
    wf_lstar_messages(&s->tape, part, &desc);
}
static void build_lstar_edges(setup *s) {
    const wf_part *part = graphs(s, 1);
    int de = s->size, hidden = 2 * de;
    wf_lstar_edges_desc desc = {.column = 1, .unit = s->variant ? WF_UNIT_GELU : WF_UNIT_SILU};
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 2 * de + 2);
    desc.ci = rows(s, part->n_nodes, hidden);
    desc.cj = rows(s, part->n_nodes, hidden);
    desc.ee = flat(s, hidden, de);
    desc.e2 = flat(s, hidden, hidden);
    desc.c2 = flat(s, hidden, 1);
    desc.e3 = flat(s, de, hidden);
    desc.c3 = flat(s, de, 1);
    wf_lstar_edges(&s->tape, part, &desc);
}

typedef void build_fn(setup *s);
static build_fn *const builders[] = {
#define X(name, tolerance) build_##name,
#include "tensor/ops.def"
#undef X
};
static int variants_of(wf_op_kind kind) {
    switch (kind) {
    case WF_OP_lean_edges: return 8;
    case WF_OP_lstar_messages: return 6;
    case WF_OP_linear:
    case WF_OP_activation:
    case WF_OP_gather:
    case WF_OP_edge_features: return 3;
    case WF_OP_norm:
    case WF_OP_residual:
    case WF_OP_null_rows:
    case WF_OP_fold_pack:
    case WF_OP_velocity:
    case WF_OP_lstar_edges: return 2;
    default: return 1;
    }
}

/* --- running a case --------------------------------------------------------------------------------------- */
static void start(setup *s, const wf_backend *backend, wf_dtype dtype, wf_op_kind kind, int size,
                  int variant) {
    memset(s, 0, sizeof *s);
    s->dtype = dtype;
    s->size = size;
    s->variant = variant;
    wf_tape_start(&s->tape, backend, dtype, true);
    builders[kind](s);
    assert_false(s->tape.failed);
    assert_non_null(s->tape.last);
    assert_int_equal(s->tape.last->kind, kind);
    assert_null(s->tape.last->previous);
}

/* Random gradients of all outputs; copies in doubles, for the loss sum dy*y. */
static double *seed_gradients(setup *s, size_t *count) {
    const wf_op *op = s->tape.last;
    double *copy = NULL;
    *count = 0;
    for (int i = 0; i < WF_OP_OUTPUTS; i++) {
        wf_tensor *out = op->out[i];
        if (out == NULL) continue;
        void *grad = wf_tape_grad(&s->tape, out);
        fill(s, out, grad);
        size_t n = (size_t)out->rows * (size_t)out->ld;
        copy = realloc(copy, (*count + n) * sizeof *copy);
        for (size_t k = 0; k < n; k++) copy[(*count)++] = get(s, grad, k);
    }
    return copy;
}

static double loss_of(setup *s, const double *dy) {
    const wf_op *op = s->tape.last;
    wf_arena_mark mark = wf_arena_here(&s->tape.arena);
    assert_true(s->tape.backend->forward[op->kind](op, &s->tape.arena));
    wf_arena_rewind(&s->tape.arena, mark);
    double sum = 0;
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        for (size_t k = 0; op->out[i] && k < (size_t)op->out[i]->rows * (size_t)op->out[i]->ld; k++)
            sum += *dy++ * get(s, op->out[i]->data, k);
    return sum;
}

static double loss_at(setup *s, const double *dy, wf_tensor *x, size_t i, double value) {
    double *data = x->data;
    data[i] = value;
    if (x->panels != NULL)
        s->tape.backend->pack(x->data, x->rows, x->cols, (void *)x->panels, (void *)x->panels_t);
    return loss_of(s, dy);
}

static void check_gradients(wf_op_kind kind, int size, int variant) {
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, kind, size, variant);
    size_t count;
    double *dy = seed_gradients(&s, &count);
    assert_true(wf_tape_backward(&s.tape));
    for (int k = 0; k < s.n_inputs; k++) {
        wf_tensor *x = s.input[k];
        if (!x->wants) continue;
        double norm = 0;
        size_t total = (size_t)x->rows * (size_t)x->cols, tries = total < 12 ? total : 12;
        for (size_t i = 0; i < (size_t)x->rows * (size_t)x->ld; i++)
            norm += get(&s, x->grad, i) * get(&s, x->grad, i);
        norm = sqrt(norm / (double)total);
        for (size_t pick = 0; pick < tries; pick++) {
            size_t i = (pick * 104729 + pick) % total;
            size_t at = i / (size_t)x->cols * (size_t)x->ld + i % (size_t)x->cols;
            double kept = get(&s, x->data, at), step = 1e-5;
            double above = loss_at(&s, dy, x, at, kept + step);
            double below = loss_at(&s, dy, x, at, kept - step);
            loss_at(&s, dy, x, at, kept);
            double numeric = (above - below) / (2 * step), value = get(&s, x->grad, at);
            if (!(fabs(value - numeric) <= 1e-6 * (fabs(numeric) + norm) + 2e-8))
                fail_msg(
                    "%s size %d variant %d input %d entry %zu: gradient %.12g, difference %.12g",
                    wf_op_name(kind), size, variant, k, i, value, numeric);
        }
    }
    free(dy);
    wf_tape_free(&s.tape);
}

static void compare(const setup *s, const setup *exact, const void *a, const void *b, size_t n,
                    const char *what, wf_op_kind kind) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double x = get(s, a, i), y = get(exact, b, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    if (!(error <= wf_op_tolerance(kind) || difference < 1e-13 * (double)n))
        fail_msg("%s (%s) size %d variant %d: %s differs from double by %.3g > %.3g",
                 wf_op_name(kind), s->tape.backend->name, s->size, s->variant, what, error,
                 wf_op_tolerance(kind));
}

static void check_float(wf_op_kind kind, int size, int variant, wf_isa_id isa) {
    setup exact, s;
    start(&exact, wf_backend_cpu(WF_F64), WF_F64, kind, size, variant);
    start(&s, wf_backend_cpu_at(isa), WF_F32, kind, size, variant);
    size_t count;
    free(seed_gradients(&exact, &count));
    free(seed_gradients(&s, &count));
    assert_true(wf_tape_backward(&exact.tape));
    assert_true(wf_tape_backward(&s.tape));
    for (int i = 0; i < WF_OP_OUTPUTS; i++) {
        const wf_tensor *a = s.tape.last->out[i], *b = exact.tape.last->out[i];
        if (a != NULL)
            compare(&s, &exact, a->data, b->data, (size_t)a->rows * (size_t)a->ld, "output", kind);
    }
    for (int i = 0; i < s.n_inputs; i++) {
        const wf_tensor *a = s.input[i], *b = exact.input[i];
        if (a->wants)
            compare(&s, &exact, a->grad, b->grad, (size_t)a->rows * (size_t)a->ld, "gradient",
                    kind);
    }
    wf_tape_free(&exact.tape);
    wf_tape_free(&s.tape);
}

static const int sizes[] = {1, 3, 7, 9, 33};

static void test_gradients(void **state) {
    (void)state;
    for (int kind = 0; kind < WF_OP_COUNT; kind++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int variant = 0; variant < variants_of((wf_op_kind)kind); variant++)
                check_gradients((wf_op_kind)kind, sizes[k], variant);
}

static void test_float_kernels(void **state) {
    (void)state;
    for (int isa = WF_ISA_BASE; isa <= (int)wf_isa(); isa++)
        for (int kind = 0; kind < WF_OP_COUNT; kind++)
            for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
                for (int variant = 0; variant < variants_of((wf_op_kind)kind); variant++)
                    check_float((wf_op_kind)kind, sizes[k], variant, (wf_isa_id)isa);
}

/* Values against loops written out here, so that a gradient consistent with a wrong forward cannot pass. */
static void test_values(void **state) {
    (void)state;
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_linear, 9, 2);
    const wf_op *op = s.tape.last;
    const double *x0 = op->in[0]->data, *w0 = op->in[1]->data, *x1 = op->in[2]->data;
    const double *w1 = op->in[3]->data, *bias = op->in[8]->data, *table = op->in[9]->data;
    const double *y = op->out[0]->data;
    for (int r = 0; r < 9; r++)
        for (int c = 0; c < 11; c++) {
            double sum = (0.5 + r) * bias[c] + table[(int)op->map[r] * op->in[9]->ld + c];
            for (int k = 0; k < 9; k++) sum += x0[r * op->in[0]->ld + k] * w0[c * 9 + k];
            sum += x1[r * op->in[2]->ld] * w1[c];
            assert_close(y[r * op->out[0]->ld + c], sum, 1e-13);
        }
    wf_tape_free(&s.tape);
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_activation, 33, WF_UNIT_GELU);
    for (int i = 0; i < 33; i++) {
        double x = ((double *)s.tape.last->in[0]->data)[i];
        double u = sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x);
        assert_close(((double *)s.tape.last->out[0]->data)[i], 0.5 * x * (1 + tanh(u)), 1e-14);
    }
    wf_tape_free(&s.tape);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_float_kernels),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
