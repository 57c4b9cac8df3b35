/* Fields written with nn/layers.h: counts of parameters, gradients against differences, and the
 * same bits for any number of threads. */
#include "net_case.h"

static double loss(net_case *s) {
    run_forward(s, false, true);
    double sum = 0;
    for (size_t i = 0; i < s->many; i++) sum += get(s, s->v, i) * get(s, s->dv, i);
    return sum;
}

static void check_differences(net_case *s, void *values, const void *gradient, size_t count,
                              const char *what) {
    double norm = 0, step = 1e-5;
    for (size_t i = 0; i < count; i++) norm += pow(get(s, gradient, i), 2);
    norm = sqrt(norm / (double)count);
    for (size_t pick = 0; pick < 40; pick++) {
        size_t i = (pick * 104729 + pick) % count;
        double kept = get(s, values, i);
        put(s, values, i, kept + step);
        double above = loss(s);
        put(s, values, i, kept - step);
        double below = loss(s);
        put(s, values, i, kept);
        double numeric = (above - below) / (2 * step), value = get(s, gradient, i);
        if (!(fabs(value - numeric) <= 1e-6 * (fabs(numeric) + norm) + 1e-7))
            fail_msg("%s %s %zu: gradient %.12g, difference %.12g", s->field->kind->name, what, i,
                     value, numeric);
    }
}

static void test_gradients(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof small_fields / sizeof *small_fields; i++) {
        net_case s;
        open_case(&s, &small_fields[i], WF_F64, 1, 3);
        run_forward(&s, true, true);
        assert_int_equal(wf_field_backward(s.ctx, s.field, s.dv, s.grad, s.dw), WF_OK);
        check_differences(&s, s.theta, s.grad, s.params, "parameter");
        check_differences(&s, s.w, s.dw, s.many, "weight");
        close_case(&s);
    }
}

static const field_case wide[] = {
    {"mlp", "64-16-8-10", {{"width", "100"}, {"blocks", "3"}, {"time", "32"}}},
    {"dwf", "64-16-8-10", {{"width", "100"}, {"time", "32"}, {"dropout", "0.1"}}},
    {"dit", "64-16-8-10", {{"width", "40"}, {"blocks", "2"}, {"time", "32"}}},
};

/* Threads change no bit, nor does a forward that keeps nothing. */
static void test_threads(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        net_case one, many;
        open_case(&one, &wide[i], WF_F32, 1, most_networks);
        open_case(&many, &wide[i], WF_F32, 3, most_networks);
        run_forward(&one, true, true);
        run_forward(&many, true, true);
        assert_memory_equal(one.v, many.v, one.many * sizeof(float));
        assert_int_equal(wf_field_backward(one.ctx, one.field, one.dv, one.grad, one.dw), WF_OK);
        assert_int_equal(wf_field_backward(many.ctx, many.field, many.dv, many.grad, NULL), WF_OK);
        assert_memory_equal(one.grad, many.grad, one.params * sizeof(float));
        run_forward(&many, false, true);
        assert_memory_equal(one.v, many.v, one.many * sizeof(float));
        close_case(&one);
        close_case(&many);
    }
}

/* A share of a batch's parts, as one of several processes has it; its gradient joins the running
 * sum half a tensor at a time. */
static void add_share(net_case *s, int first_part, int last_part, float *running) {
    wf_field_input input = {.batch = &s->batch,
                            .w = s->w,
                            .t = s->t,
                            .first_part = first_part,
                            .last_part = last_part,
                            .keep = true,
                            .training = true,
                            .seed = net_seed,
                            .update = 2};
    assert_int_equal(wf_field_forward(s->ctx, s->field, s->theta, &input, s->v), WF_OK);
    assert_int_equal(wf_field_backward(s->ctx, s->field, s->dv, s->grad, NULL), WF_OK);
    for (int i = 0; i < s->field->n_tensors; i++) {
        const wf_field_tensor *tensor = &s->field->tensors[i];
        size_t cols = (size_t)tensor->cols, rows = (size_t)tensor->rows;
        size_t half = cols > 1 ? rows / 2 * cols : 0, at = tensor->offset,
               rest = rows * cols - half;
        wf_field *field = s->field;
        assert_true(field->kind->add(field, at, half, running + at, first_part == 0));
        assert_true(field->kind->add(field, at + half, rest, running + at + half, first_part == 0));
    }
}

/* Processes that share a batch have the bits of one, however it is cut. */
static void test_shares(void **state) {
    static const int cuts[][4] = {{0, 16, 16, 16}, {0, 5, 16, 16}, {0, 1, 9, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        net_case whole, share;
        int start[WF_FIELD_PARTS + 1];
        open_case(&whole, &wide[i], WF_F32, 1, most_networks);
        open_case(&share, &wide[i], WF_F32, 2, most_networks);
        float *running = malloc(whole.params * sizeof *running);
        run_forward(&whole, true, true);
        assert_int_equal(wf_field_backward(whole.ctx, whole.field, whole.dv, whole.grad, NULL),
                         WF_OK);
        assert_int_equal(share.field->kind->parts(share.field, &share.batch, start), 16);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            memset(share.v, 0, share.many * sizeof(float));
            for (int r = 0; r < 3; r++)
                if (cuts[c][r] < cuts[c][r + 1])
                    add_share(&share, cuts[c][r], cuts[c][r + 1], running);
            assert_memory_equal(share.v, whole.v, share.many * sizeof(float));
            assert_memory_equal(running, whole.grad, whole.params * sizeof(float));
        }
        free(running);
        close_case(&whole);
        close_case(&share);
    }
}

/* Counts of the paper's models. 1944-10 has as many parameters as the CNN of its CIFAR-10. */
static const struct {
    field_case field;
    size_t count;
} counts[] = {
    {{"mlp", "784-32-32-10", {{"width", "352"}, {"blocks", "8"}, {"time", "128"}}}, 21434730},
    {{"mlp", "1944-10", {{"width", "1184"}, {"blocks", "10"}, {"time", "256"}}}, 80356378},
    {{"dwf", "64-16-8-10", {{"width", "608"}, {"time", "128"}}}, 2009538},
    {{"dwf-aligned", "64-16-8-10", {{"width", "608"}, {"time", "128"}}}, 2009538},
    {{"dwf", "64-16-8-10", {{"width", "2176"}, {"time", "128"}}}, 10557490},
    {{"dwf", "784-32-32-10", {{"width", "200"}}}, 10687494},
    {{"dwf", "784-32-32-10", {{"width", "300"}}}, 16045844},
    {{"dwf", "784-32-32-10", {{"width", "400"}}}, 21424194},
    {{"dwf", "784-32-32-10", {{"width", "558"}}}, 29962751},
    {{"dwf", "1944-10", {{"width", "1954"}}}, 79992165},
    {{"dit", "64-16-8-10", {{"width", "128"}, {"time", "64"}}}, 2019872},
    {{"dit", "64-16-8-10", {{"width", "256"}, {"blocks", "12"}, {"time", "64"}}}, 10731424},
    {{"dit", "784-32-32-10", {{"width", "256"}}}, 8223008},
    {{"dit", "784-32-32-10", {{"width", "368"}}}, 15762848},
    {{"dit", "1944-10", {{"width", "864"}}}, 77913152},
};

static void test_counts(void **state) {
    (void)state;
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(NULL, &ctx), WF_OK);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        wf_graph *graph;
        if (wf_graph_parse(ctx, counts[i].field.arch, "relu", 0, &graph) != WF_OK)
            fail_msg("%s", wf_last_error(ctx));
        wf_field *field = make_field(ctx, &counts[i].field, graph, WF_F32);
        assert_int_equal(field->params, counts[i].count);
        wf_field_free(field);
        wf_graph_free(graph);
    }
    wf_ctx_free(ctx);
}

/* Dropout works in training alone, and another update drops other values. */
static void test_dropout(void **state) {
    (void)state;
    net_case s;
    open_case(&s, &wide[1], WF_F32, 1, 2);
    size_t bytes = s.many * sizeof(float);
    wf_field_input input = {.batch = &s.batch, .w = s.w, .t = s.t, .seed = 4, .update = 2};
    assert_int_equal(wf_field_forward(s.ctx, s.field, s.theta, &input, s.dv), WF_OK);
    run_forward(&s, false, true);
    assert_memory_not_equal(s.v, s.dv, bytes);
    memcpy(s.dw, s.v, bytes);
    run_forward(&s, false, true);
    assert_memory_equal(s.v, s.dw, bytes);
    input.training = true, input.update = 3;
    assert_int_equal(wf_field_forward(s.ctx, s.field, s.theta, &input, s.v), WF_OK);
    assert_memory_not_equal(s.v, s.dw, bytes);
    input.training = false;
    assert_int_equal(wf_field_forward(s.ctx, s.field, s.theta, &input, s.v), WF_OK);
    assert_memory_equal(s.v, s.dv, bytes);
    close_case(&s);
}

/* Fields start at zero velocity, with other parameters that are not zero. */
static void test_start(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof small_fields / sizeof *small_fields; i++) {
        net_case s;
        open_case(&s, &small_fields[i], WF_F32, 1, 2);
        wf_field_init(s.field, 1, s.theta);
        assert_true(get(&s, s.theta, 0) != 0);
        run_forward(&s, false, true);
        for (size_t k = 0; k < s.many; k++) assert_true(get(&s, s.v, k) == 0);
        close_case(&s);
    }
}

/* What a field cannot do is said. */
static void test_refusals(void **state) {
    (void)state;
    net_case s, other;
    open_case(&s, &small_fields[0], WF_F32, 1, 2);
    open_case(&other, &wide[0], WF_F32, 1, 2);
    wf_field_input input = {.batch = &other.batch, .w = other.w, .t = other.t};
    assert_int_equal(wf_field_forward(s.ctx, s.field, s.theta, &input, other.v), WF_ERR_SHAPE);
    assert_int_equal(wf_field_backward(s.ctx, s.field, s.dv, s.grad, NULL), WF_ERR_USAGE);
    wf_field *field;
    const wf_field_kind *kind = s.field->kind;
    void *options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    assert_int_equal(wf_field_create(s.ctx, kind, options, NULL, WF_F32, &field), WF_ERR_USAGE);
    assert_null(field);
    /* a file that stores another number of parameters */
    assert_int_equal(kind->create(s.ctx, kind, options, s.graph, WF_F32, 7, &field), WF_ERR_INPUT);
    assert_null(field);
    assert_int_equal(wf_settings_set(s.ctx, kind->settings(), "time", "7", options), WF_OK);
    assert_int_equal(wf_field_create(s.ctx, kind, options, s.graph, WF_F32, &field), WF_ERR_USAGE);
    free(options);
    /* heads that do not divide the width */
    kind = wf_field_find("dit");
    options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    assert_int_equal(wf_settings_set(s.ctx, kind->settings(), "heads", "7", options), WF_OK);
    assert_int_equal(wf_field_create(s.ctx, kind, options, s.graph, WF_F32, &field), WF_ERR_USAGE);
    assert_null(field);
    free(options);
    close_case(&s);
    close_case(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_counts),    cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_start),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
