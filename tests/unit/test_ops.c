/* Walks tensor/ops.def: every operation's gradient in double against central differences, at odd
 * sizes, and the float kernels of every instruction set this machine has against the double
 * ones. */
#include "ops_case.h"

/* All operations up to this one, in order. */
static void run_again(setup *s, const wf_op *op) {
    if (op->previous != NULL) run_again(s, op->previous);
    wf_arena_mark mark = wf_arena_here(&s->tape.arena);
    assert_true(s->tape.backend->forward[op->kind](op, &s->tape.arena));
    wf_arena_rewind(&s->tape.arena, mark);
}

static double loss_of(setup *s, const double *dy) {
    const wf_op *op = s->tape.last;
    run_again(s, op);
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
        s->tape.backend->pack(s->tape.backend, x->data, x->rows, x->cols, (void *)x->panels,
                              (void *)x->panels_t);
    return loss_of(s, dy);
}

static void check_gradients(wf_op_kind kind, int size, int variant) {
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, kind, size, size, variant);
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
    start(&exact, wf_backend_cpu(WF_F64), WF_F64, kind, size, size, variant);
    start(&s, wf_backend_cpu_at(isa), WF_F32, kind, size, size, variant);
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

/* Values against loops written out here, so that a gradient consistent with a wrong forward cannot
 * pass. */
static void test_values(void **state) {
    (void)state;
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_linear, 9, 9, 2);
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
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_activation, 33, 33, WF_TAPE_ACT_GELU);
    for (int i = 0; i < 33; i++) {
        double x = ((double *)s.tape.last->in[0]->data)[i];
        double u = sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x);
        assert_close(((double *)s.tape.last->out[0]->data)[i], 0.5 * x * (1 + tanh(u)), 1e-14);
    }
    wf_tape_free(&s.tape);
}

/* Attention written out, and erf-GELU. */
static void test_sequence_values(void **state) {
    (void)state;
    enum { heads = 2, width = 3, tokens = 3, ld = 32 };
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_attention, width, tokens, heads - 1);
    const double *x = s.tape.last->in[0]->data, *y = s.tape.last->out[0]->data;
    assert_int_equal(s.tape.last->in[0]->ld, ld);
    for (int r = 0; r < 2 * tokens; r++)
        for (int h = 0; h < heads; h++) {
            double p[tokens], sum = 0, out[width] = {0};
            for (int j = 0; j < tokens; j++) {
                int other = r / tokens * tokens + j;
                double dot = 0;
                for (int c = h * width; c < (h + 1) * width; c++)
                    dot += x[r * ld + c] * x[other * ld + heads * width + c];
                sum += p[j] = exp(dot / sqrt(width));
                for (int c = 0; c < width; c++)
                    out[c] += p[j] * x[other * ld + (2 * heads + h) * width + c];
            }
            for (int c = 0; c < width; c++)
                assert_close(y[r * s.tape.last->out[0]->ld + h * width + c], out[c] / sum, 1e-13);
        }
    wf_tape_free(&s.tape);
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_activation, 33, 33, WF_TAPE_ACT_GELU_ERF);
    for (int i = 0; i < 33; i++) {
        double value = ((double *)s.tape.last->in[0]->data)[i];
        assert_close(((double *)s.tape.last->out[0]->data)[i],
                     0.5 * value * (1 + erf(value / sqrt(2))), 1e-14);
    }
    wf_tape_free(&s.tape);
}

static double at(const wf_tensor *x, int row, int col) {
    return ((const double *)x->data)[row * x->ld + col];
}

/* Convolutions written out: every product of a position, a tap and a channel once. */
static void test_convolution_values(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++)
        for (int transposed = 0; transposed < 2; transposed++) {
            setup s;
            start(&s, wf_backend_cpu(WF_F64), WF_F64,
                  transposed ? WF_OP_conv1d_transposed : WF_OP_conv1d, 9, 7, variant);
            const wf_op *op = s.tape.last;
            const wf_tensor *x = op->in[0], *weight = op->in[1], *y = op->out[0];
            const wf_conv1d_desc *d = &op->conv;
            int length = d->length, out_length = y->rows / 2;
            assert_int_equal(out_length,
                             transposed ? (length - 1) * d->stride - 2 * d->padding + d->kernel +
                                              d->output_padding
                                        : (length + 2 * d->padding - d->kernel) / d->stride + 1);
            double *sum = calloc((size_t)(y->rows * y->cols), sizeof *sum);
            for (int b = 0; b < 2; b++)
                for (int i = 0; i < (transposed ? length : out_length); i++)
                    for (int tap = 0; tap < d->kernel; tap++) {
                        int far = i * d->stride - d->padding + tap;
                        int from = transposed ? i : far, to = transposed ? far : i;
                        if (far < 0 || far >= (transposed ? out_length : length)) continue;
                        for (int c = 0; c < x->cols; c++)
                            for (int o = 0; o < y->cols; o++)
                                sum[(b * out_length + to) * y->cols + o] +=
                                    at(x, b * length + from, c) *
                                    (transposed ? at(weight, c, tap * y->cols + o)
                                                : at(weight, o, tap * x->cols + c));
                    }
            for (int r = 0; r < y->rows; r++)
                for (int o = 0; o < y->cols; o++) {
                    double bias = op->in[2] != NULL ? ((double *)op->in[2]->data)[o] : 0;
                    assert_close(at(y, r, o), sum[r * y->cols + o] + bias, 1e-13);
                }
            free(sum);
            wf_tape_free(&s.tape);
        }
}

static void test_batch_norm_values(void **state) {
    (void)state;
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_batch_norm, 3, 3, 1);
    const wf_op *op = s.tape.last;
    const wf_tensor *x = op->in[0];
    double *running = op->in[3]->data, before[6];
    memcpy(before, running, sizeof before);
    run_again(&s, op);
    for (int c = 0; c < 3; c++) {
        double mean = 0, square = 0, n = x->rows;
        for (int r = 0; r < x->rows; r++) mean += at(x, r, c) / n;
        for (int r = 0; r < x->rows; r++) square += pow(at(x, r, c) - mean, 2);
        for (int r = 0; r < x->rows; r++)
            assert_close(at(op->out[0], r, c),
                         (at(x, r, c) - mean) / sqrt(square / n + 1e-5) *
                                 ((double *)op->in[1]->data)[c] +
                             ((double *)op->in[2]->data)[c],
                         1e-12);
        assert_close(running[c], 0.9 * before[c] + 0.1 * mean, 1e-14);
        assert_close(running[3 + c], 0.9 * before[3 + c] + 0.1 * square / (n - 1), 1e-14);
    }
    wf_tape_free(&s.tape);
    /* as it is used: the running statistics stand for the batch's, and stay */
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_batch_norm, 3, 3, 0);
    op = s.tape.last, x = op->in[0], running = op->in[3]->data;
    memcpy(before, running, sizeof before);
    run_again(&s, op);
    assert_memory_equal(before, running, sizeof before);
    for (int c = 0; c < 3; c++)
        assert_close(at(op->out[0], 2, c),
                     (at(x, 2, c) - running[c]) / sqrt(running[3 + c] + 1e-5) *
                             ((double *)op->in[1]->data)[c] +
                         ((double *)op->in[2]->data)[c],
                     1e-12);
    wf_tape_free(&s.tape);
}

static void test_loss_values(void **state) {
    (void)state;
    setup s;
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_nt_xent, 9, 3, 1);
    const wf_tensor *z = s.tape.last->in[0];
    int n = z->rows;
    double loss = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0, own = 0;
        for (int j = 0; j < n; j++) {
            double dot = 0, a = 0, b = 0;
            for (int c = 0; c < 9; c++) {
                dot += at(z, i, c) * at(z, j, c);
                a += at(z, i, c) * at(z, i, c);
                b += at(z, j, c) * at(z, j, c);
            }
            double value = dot / sqrt(a * b) / 0.1;
            if (j != i) sum += exp(value);
            if (j == (i + n / 2) % n) own = value;
        }
        loss += (log(sum) - own) / n;
    }
    assert_close(at(s.tape.last->out[0], 0, 0), loss, 1e-12);
    wf_tape_free(&s.tape);
    start(&s, wf_backend_cpu(WF_F64), WF_F64, WF_OP_mse, 9, 3, 1);
    const wf_op *op = s.tape.last;
    loss = 0;
    for (int r = 0; r < 6; r++)
        for (int c = 0; c < 9; c++)
            loss += pow(at(op->in[0], r, c) * at(op->in[2], r, c) - at(op->in[1], r, c), 2) / 54;
    assert_close(at(op->out[0], 0, 0), loss, 1e-13);
    wf_tape_free(&s.tape);
}

/* Dropout keeps a share of 1 - p, over 1 - p; other rows, sites and updates keep others. */
static void test_dropout_values(void **state) {
    (void)state;
    enum { count = 40, width = 100 };
    double kept[3] = {0};
    int same = 0;
    uint32_t update = 7;
    setup s = {.dtype = WF_F64, .size = width};
    wf_tape_start(&s.tape, wf_backend_cpu(WF_F64), WF_F64, true);
    wf_tensor *x = rows(&s, count, width), *y[3];
    assert_ptr_equal(wf_dropout(&s.tape, x, 0.25, 0, NULL), x);
    wf_dropout_key key = {.seed = 1, .update = &update};
    for (int k = 0; k < 3; k++) {
        y[k] = wf_dropout(&s.tape, x, 0.25, k == 1, &key);
        update += k == 1;
    }
    for (int r = 0; r < count; r++)
        for (int c = 0; c < width; c++) {
            for (int k = 0; k < 3; k++) {
                double value = at(y[k], r, c);
                if (value != 0) assert_close(value, at(x, r, c) / 0.75, 1e-13);
                kept[k] += value != 0;
            }
            same += (at(y[0], r, c) != 0) == (at(y[1], r, c) != 0);
            same += (at(y[0], r, c) != 0) == (at(y[2], r, c) != 0);
        }
    /* Gains: the same places lose 1 + x in the odd columns, and the even ones stay. */
    uint32_t gains[width];
    for (int c = 0; c < width; c++) gains[c] = c % 2;
    update = 7;
    wf_tensor *g = wf_dropout_gains(&s.tape, x, 0.25, 0, &key, gains);
    for (int r = 0; r < count; r++)
        for (int c = 0; c < width; c++) {
            double gain = at(y[0], r, c) != 0 ? (1 + at(x, r, c)) / 0.75 - 1 : -1;
            assert_close(at(g, r, c), gains[c] ? gain : at(x, r, c), 1e-13);
        }
    for (int k = 0; k < 3; k++) assert_close(kept[k] / (count * width), 0.75, 0.03);
    assert_close(same / (2.0 * count * width), 0.625, 0.03); /* 0.75^2 + 0.25^2 */
    wf_tape_free(&s.tape);
}

/* A linear layer and its gradients; the weight packed, or read where it lies with the threads of
 * ctx. */
typedef struct wide_layer {
    setup s;
    wf_tensor *x, *weight, *y;
} wide_layer;
static void run_wide(wide_layer *w, wf_ctx *ctx, bool plain, int m, int k, int n) {
    w->s = (setup){.dtype = WF_F32, .size = k};
    wf_tape_start(&w->s.tape, wf_backend_cpu(WF_F32), WF_F32, true);
    w->s.tape.ctx = ctx;
    w->x = rows(&w->s, m, k);
    w->weight = flat(&w->s, n, k);
    if (plain) w->weight->panels = w->weight->panels_t = NULL;
    wf_linear_desc desc = {.x = {w->x}, .weight = {w->weight}, .bias = flat(&w->s, 1, n)};
    w->y = wf_linear(&w->s.tape, &desc);
    void *grad = wf_tape_grad(&w->s.tape, w->y);
    fill(&w->s, w->y, grad, 1);
    assert_true(wf_tape_backward(&w->s.tape));
}

/* Blocks and threads do not change a bit of a product. */
static void test_wide_linear(void **state) {
    (void)state;
    static const int shape[][3] = {{5, 700, 301}, {300, 520, 77}, {70, 33, 530}, {97, 257, 97}};
    wf_ctx *ctx = NULL;
    assert_int_equal(wf_ctx_create(&(wf_ctx_desc){.threads = 3}, &ctx), WF_OK);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int threads = 0; threads < 2; threads++) {
            wide_layer packed, plain;
            int m = shape[i][0], k = shape[i][1], n = shape[i][2];
            run_wide(&packed, NULL, false, m, k, n);
            run_wide(&plain, threads ? ctx : NULL, true, m, k, n);
            size_t bytes = (size_t)m * (size_t)packed.y->ld * sizeof(float);
            assert_memory_equal(packed.y->data, plain.y->data, bytes);
            bytes = (size_t)m * (size_t)packed.x->ld * sizeof(float);
            assert_memory_equal(packed.x->grad, plain.x->grad, bytes);
            bytes = (size_t)n * (size_t)k * sizeof(float);
            assert_memory_equal(packed.weight->grad, plain.weight->grad, bytes);
            wf_tape_free(&packed.s.tape);
            wf_tape_free(&plain.s.tape);
        }
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_float_kernels),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_sequence_values),
        cmocka_unit_test(test_convolution_values),
        cmocka_unit_test(test_batch_norm_values),
        cmocka_unit_test(test_loss_values),
        cmocka_unit_test(test_dropout_values),
        cmocka_unit_test(test_wide_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
