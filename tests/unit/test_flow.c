/* Objective, trainer and checkpoints around a toy field with known derivatives. */
#include "wf_test.h"
#include "base/io.h"
#include "flow_fixture.h"
#include "models/field_kinds.h"

#include <jansson.h>

/* Calls of the allocator, counted where nothing else has taken it over. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1
static long allocations, fail_at; /* fail_at: the allocation that fails, counted from 1; 0: none */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
/* Seen by the C library too. */
#pragma GCC visibility push(default)
static int refused(void) { return __atomic_add_fetch(&allocations, 1, 0) == fail_at; }
void *malloc(size_t n) { return refused() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return refused() ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return refused() ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return refused() ? NULL : __libc_memalign(a, n); }
#pragma GCC visibility pop
#endif

/* --- objective -------------------------------------------------------------------------------- */

/* The preconditioning is what linear regression of u = w1 - w0 on w_t gives for Gaussians. */
static void scales_are_the_gaussian_answer(void **state) {
    (void)state;
    for (int k = 0; k < 3 * 3 * 9 * 3; k++) {
        double s = 0.5 + k % 3 * 0.5, q = k / 3 % 3 * 0.1, t = k / 9 % 9 * 0.125;
        double l = k / 81 == 0 ? 1 : k / 81 == 1 ? 0.04 : 30; /* variance of w1 */
        wf_path path = {true, s, q};
        wf_path_scales scale = wf_path_at(&path, l, t);
        double variance = (1 - t) * (1 - t) * s * s + l * t * t + q * q;
        double covariance = l * t - (1 - t) * s * s;
        double rest = l + s * s - covariance * covariance / variance;
        assert_close(scale.in * scale.in, fmin(l, 1) / variance, 1e-6 / variance);
        assert_close(scale.skip, covariance / variance, 1e-5);
        assert_close(scale.out, sqrt(rest), 1e-5 * sqrt(l + s * s));
    }
    wf_path path = {true, 1, 0};
    wf_path_scales half = wf_path_at(&path, 1, 0.25);
    double a = 0.25 * 0.25 + 0.75 * 0.75; /* design section 3, written out */
    assert_close(half.skip, (2 * 0.25 - 1) / a, 1e-7);
    assert_close(half.out, 1 / sqrt(a), 1e-7);
    path.precondition = false;
    wf_path_scales plain = wf_path_at(&path, 1, 0.25);
    assert_true(plain.in == 1 && plain.skip == 0 && plain.out == 1);
}

/* A ragged batch of two architectures with buffers of its own. */
typedef struct fixture {
    wf_graph *graphs[2];
    const wf_graph *list[3];
    wf_arena arena;
    wf_batch shape;
    wf_flow_batch flow;
    wf_field *field;
    toy_orders orders;
    float params[toy_params], grad[toy_params];
    float *memory[5];
    float t[3];
    wf_path_scales scale[3];
    double loss[3];
} fixture;

static void fixture_make(wf_ctx *ctx, fixture *x) {
    *x = (fixture){.t = {0.2f, 0.9f, 0.5f}};
    assert_ok(ctx, wf_graph_parse(ctx, "3-4-2", "tanh", 0, &x->graphs[0]));
    assert_ok(ctx, wf_graph_parse(ctx, "2-5-6-2", "tanh", 0, &x->graphs[1]));
    x->list[0] = x->list[2] = x->graphs[0];
    x->list[1] = x->graphs[1];
    assert_ok(ctx, wf_batch_build(ctx, &x->arena, x->list, 3, &x->shape));
    for (int i = 0; i < 5; i++) {
        x->memory[i] = calloc(x->shape.n_params, sizeof(float));
        wf_rng rng = wf_rng_at(9, (uint32_t)i, WF_RNG_TEST, 1);
        wf_rng_normals(&rng, x->memory[i], x->shape.n_params);
    }
    x->flow = (wf_flow_batch){.shape = &x->shape,
                              .w0 = x->memory[0],
                              .w1 = x->memory[1],
                              .t = x->t,
                              .wt = x->memory[2],
                              .x = x->memory[3],
                              .f = x->memory[4],
                              .scale = x->scale,
                              .loss = x->loss};
    wf_field_desc field = plain_field(0);
    assert_ok(ctx, wf_field_create(ctx, toy_kind(&x->orders), &field, NULL, WF_F32, &x->field));
    wf_field_init(x->field, 4, x->params);
}

static void fixture_free(fixture *x) {
    for (int i = 0; i < 5; i++) free(x->memory[i]);
    wf_field_free(x->field);
    wf_graph_free(x->graphs[0]);
    wf_graph_free(x->graphs[1]);
    wf_arena_free(&x->arena);
}

static double fixture_loss(wf_ctx *ctx, fixture *x, const wf_path *path, float *grad) {
    double loss;
    wf_flow_interpolate(ctx, path, 1, 2, &x->flow);
    assert_ok(ctx, wf_flow_loss(ctx, x->field, x->params, &x->flow, &loss, grad));
    return loss;
}

static void loss_is_the_mean_of_means(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    fixture x;
    fixture_make(ctx, &x);
    wf_path path = {false, 1, 0};
    double loss = fixture_loss(ctx, &x, &path, NULL), expected = 0;
    float *wt = calloc(x.shape.n_params, sizeof *wt), *v = calloc(x.shape.n_params, sizeof *v);
    for (int g = 0; g < 3; g++)
        for (size_t i = x.shape.param_start[g]; i < x.shape.param_start[g + 1]; i++)
            wt[i] = (1 - x.t[g]) * x.flow.w0[i] + x.t[g] * x.flow.w1[i];
    assert_ok(ctx, wf_field_forward(ctx, x.field, x.params,
                                    &(wf_field_input){.batch = &x.shape, .w = wt, .t = x.t}, v));
    for (int g = 0; g < 3; g++) {
        double sum = 0;
        for (size_t i = x.shape.param_start[g]; i < x.shape.param_start[g + 1]; i++)
            sum += pow(v[i] - ((double)x.flow.w1[i] - x.flow.w0[i]), 2);
        expected += sum / (double)x.list[g]->n_params / 3;
    }
    assert_close(loss, expected, 1e-5 * expected);
    /* and with weights of its own: the first three parameters of every network count double, the
     * rest half */
    wf_loss_weight weights[3][2];
    const wf_loss_weight *lists[3] = {weights[0], weights[1], weights[2]};
    expected = 0;
    for (int g = 0; g < 3; g++) {
        size_t start = x.shape.param_start[g], n = x.list[g]->n_params;
        weights[g][0] = (wf_loss_weight){3, 2};
        weights[g][1] = (wf_loss_weight){(uint32_t)n, 0.5f};
        for (size_t i = 0; i < n; i++)
            expected +=
                (i < 3 ? 2 : 0.5) *
                pow(v[start + i] - ((double)x.flow.w1[start + i] - x.flow.w0[start + i]), 2) /
                (double)n / 3;
    }
    x.flow.loss_weights = lists;
    assert_close(fixture_loss(ctx, &x, &path, NULL), expected, 1e-5 * expected);
    x.flow.loss_weights = NULL;
    free(wt);
    free(v);
    fixture_free(&x);
    wf_ctx_free(ctx);
}

/* The gradient with a GMN, along a direction through all its parameters, against differences of the
 * loss. */
static void the_gradient_is_that_of_the_loss(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (int encoder = 0; encoder < 3; encoder++) {
        fixture x;
        fixture_make(ctx, &x);
        wf_field_desc field = plain_field(0);
        field.encoder = (wf_encoder)encoder;
        wf_field *gmn;
        assert_ok(ctx, wf_field_create(ctx, &wf__field_gmn, &field, NULL, WF_F32, &gmn));
        size_t n = gmn->params;
        float *params = calloc(n, 4), *grad = calloc(n, 4), *moved = calloc(n, 4);
        wf_field_init(gmn, 5, params);
        wf_rng rng = wf_rng_at(9, 3, WF_RNG_TEST, 2);
        wf_rng_normals(&rng, moved, n);
        for (size_t i = 0; i < n; i++) params[i] += 0.1f * moved[i]; /* readouts start at zero */
        wf_path path = {true, 1, 0};
        double loss, value[2];
        wf_flow_interpolate(ctx, &path, 1, 2, &x.flow);
        assert_ok(ctx, wf_flow_loss(ctx, gmn, params, &x.flow, &loss, grad));
        for (int t = 0; t < gmn->n_tensors; t++) {
            const wf_field_tensor *info = &gmn->tensors[t];
            size_t count = (size_t)info->rows * (size_t)info->cols;
            double along = 0, length = 0;
            for (size_t i = info->offset; i < info->offset + count; i++)
                length += (double)grad[i] * grad[i];
            length = sqrt(length);
            if (length < 1e-3) continue;
            for (int side = 0; side < 2; side++) {
                memcpy(moved, params, n * 4);
                for (size_t i = info->offset; i < info->offset + count; i++)
                    moved[i] += (side ? 1 : -1) * 4e-3f * (float)(grad[i] / length);
                wf_flow_interpolate(ctx, &path, 1, 2, &x.flow);
                assert_ok(ctx, wf_flow_loss(ctx, gmn, moved, &x.flow, &value[side], NULL));
            }
            along = (value[1] - value[0]) / 8e-3;
            if (!(fabs(along - length) <= 0.02 * length + 2e-4))
                fail_msg("encoder %d, %s: slope %.5g along the gradient, its norm is %.5g", encoder,
                         info->name, along, length);
        }
        free(params), free(grad), free(moved);
        wf_field_free(gmn);
        fixture_free(&x);
    }
    wf_ctx_free(ctx);
}

/* With F = 0 the preconditioned velocity is the skip term alone. */
static void preconditioned_loss_has_its_skip(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    fixture x;
    fixture_make(ctx, &x);
    memset(x.params, 0, sizeof x.params);
    wf_path path = {true, 1, 0};
    double loss = fixture_loss(ctx, &x, &path, NULL), expected = 0;
    for (int g = 0; g < 3; g++) {
        double t = x.t[g], a = t * t + (1 - t) * (1 - t), sum = 0;
        for (size_t i = x.shape.param_start[g]; i < x.shape.param_start[g + 1]; i++) {
            double wt = (1 - t) * x.flow.w0[i] + t * x.flow.w1[i];
            sum += pow((2 * t - 1) / a * wt - ((double)x.flow.w1[i] - x.flow.w0[i]), 2);
        }
        expected += sum / (double)x.list[g]->n_params / 3;
    }
    assert_close(loss, expected, 1e-5 * expected);
    fixture_free(&x);
    wf_ctx_free(ctx);
}

static void gradient_agrees_with_differences(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    fixture x;
    fixture_make(ctx, &x);
    const wf_path paths[] = {
        {false, 1, 0}, {true, 1, 0}, {true, 1.5, 0}, {true, 0.7, 0.2}, {false, 2, 0.1}};
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        fixture_loss(ctx, &x, &paths[k], x.grad);
        for (int i = 0; i < toy_params; i++) {
            float kept = x.params[i], h = 0.0625f;
            x.params[i] = kept + h;
            double up = fixture_loss(ctx, &x, &paths[k], NULL);
            x.params[i] = kept - h;
            double down = fixture_loss(ctx, &x, &paths[k], NULL);
            x.params[i] = kept;
            /* The loss is quadratic in each parameter: the difference is exact but for rounding. */
            assert_close(x.grad[i], (up - down) / (2 * h), 2e-5 * (1 + fabs(x.grad[i])));
        }
    }
    fixture_free(&x);
    wf_ctx_free(ctx);
}

/* --- trainer ---------------------------------------------------------------------------------- */

static wf_status fit(wf_ctx *ctx, const wf_source *sources, int n, int cond_size,
                     const wf_fit_desc *desc, const char *path, toy_orders *orders) {
    wf_field_desc field = plain_field(cond_size);
    return wf_flow_fit_with(ctx, sources, n, toy_kind(orders), &field, desc, path, NULL);
}

/* Every tensor of two checkpoints, byte for byte. */
static void assert_same_tensors(wf_ctx *ctx, const char *a, const char *b) {
    wf_st_file *x, *y;
    assert_ok(ctx, wf_st_open(ctx, a, &x));
    assert_ok(ctx, wf_st_open(ctx, b, &y));
    assert_int_equal(wf_st_count(x), wf_st_count(y));
    for (size_t i = 0; i < wf_st_count(x); i++) {
        const wf_st_tensor *t = wf_st_at(x, i), *u = wf_st_find(y, t->name);
        assert_non_null(u);
        assert_int_equal(t->bytes, u->bytes);
        if (memcmp(t->data, u->data, t->bytes) != 0) fail_msg("tensor %s differs", t->name);
    }
    assert_string_equal(wf_st_meta(x, "step"), wf_st_meta(y, "step"));
    wf_st_close(x);
    wf_st_close(y);
}

static char *read_text(wf_ctx *ctx, const char *path) {
    char *text;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, path, 1 << 20, &text, &size));
    return text;
}

/* Updates and losses of a log must agree; seconds may differ. */
static void assert_same_log(wf_ctx *ctx, const char *a, const char *b) {
    char name[2][300];
    snprintf(name[0], sizeof name[0], "%s.log.jsonl", a);
    snprintf(name[1], sizeof name[1], "%s.log.jsonl", b);
    char *x = read_text(ctx, name[0]), *y = read_text(ctx, name[1]), *p = x, *q = y;
    while (*p != '\0' && *q != '\0') {
        char *p_end = strstr(p, ",\"seconds\""), *q_end = strstr(q, ",\"seconds\"");
        assert_non_null(p_end);
        assert_non_null(q_end);
        *p_end = *q_end = '\0';
        assert_string_equal(p, q);
        p = strchr(p_end + 1, '\n') + 1;
        q = strchr(q_end + 1, '\n') + 1;
    }
    assert_true(*p == '\0' && *q == '\0');
    free(x);
    free(y);
}

static double mean_loss(wf_ctx *ctx, const char *path, size_t from, size_t to) {
    char name[300];
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    char *text = read_text(ctx, name), *line = text;
    double sum = 0;
    int n = 0;
    while (line != NULL && *line != '\0') {
        unsigned long long at;
        double loss;
        assert_int_equal(sscanf(line, "{\"update\":%llu,\"loss\":%lf", &at, &loss), 2);
        if (at > from && at <= to) sum += loss, n++;
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    free(text);
    assert_true(n > 0);
    return sum / n;
}

static void training_reduces_the_loss(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 2, 0); /* two networks */
    wf_source source = {.zoo = zoo};
    for (int variant = 0; variant < 4; variant++) {
        wf_fit_desc desc = quick_fit();
        desc.updates = 600;
        desc.optimizer = variant & 1 ? WF_OPT_MUON : WF_OPT_ADAMW;
        desc.precondition = desc.normalise = variant & 2;
        desc.coupling = variant & 2 ? WF_COUPLING_MATCHED : WF_COUPLING_INDEPENDENT;
        char name[32];
        snprintf(name, sizeof name, "reduce_%d", variant);
        const char *path = in_folder(name);
        toy_orders orders = {0};
        assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders));
        assert_int_equal(orders.calls, 600);
        double early = mean_loss(ctx, path, 0, 50), late = mean_loss(ctx, path, 500, 600);
        if (!(late < 0.85 * early))
            fail_msg("variant %d: loss from %g to %g", variant, early, late);
    }
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

static void resumed_run_is_the_uninterrupted_one(void **state) {
    (void)state;
    for (int ragged = 0; ragged < 2; ragged++) {
        wf_ctx *ctx = test_ctx();
        wf_zoo *zoos[2] = {make_zoo(ctx, "2-3-2", 20, 0), make_zoo(ctx, "3-4-2-2", 10, 1)};
        float cond[2][1] = {{0.5f}, {-1}};
        wf_source sources[2] = {{.zoo = zoos[0], .cond = ragged ? cond[0] : NULL},
                                {.zoo = zoos[1], .cond = cond[1]}};
        int n = ragged ? 2 : 1, cond_size = ragged;
        wf_fit_desc desc = quick_fit();
        desc.cond_drop = 0.3;
        desc.path_noise = 0.1;
        desc.warmup = 10;
        desc.kept = ragged ? WF_KEPT_BEST : WF_KEPT_EMA;
        desc.principal = ragged;
        desc.loss_by = ragged ? WF_LOSS_BY_LAYERS : WF_LOSS_BY_PARAMETERS;
        const char *whole = in_folder(ragged ? "whole_ragged" : "whole");
        toy_orders orders = {0};
        assert_ok(ctx, fit(ctx, sources, n, cond_size, &desc, whole, &orders));
        /* Interrupted three times, each piece with another number of threads. */
        const char *pieces = in_folder(ragged ? "pieces_ragged" : "pieces");
        for (int piece = 0; piece < 4; piece++) {
            wf_ctx_desc threads = {.threads = 1 + piece};
            wf_ctx *own;
            assert_int_equal(wf_ctx_create(&threads, &own), WF_OK);
            orders = (toy_orders){.interrupt_at = piece < 3 ? 10 + piece : 0};
            wf_status status = fit(own, sources, n, cond_size, &desc, pieces, &orders);
            assert_int_equal(status, piece < 3 ? WF_ERR_INTERRUPTED : WF_OK);
            if (piece < 3) assert_non_null(strstr(wf_last_error(own), "interrupted after update"));
            wf_ctx_free(own);
        }
        assert_same_tensors(ctx, whole, pieces);
        assert_same_log(ctx, whole, pieces);
        /* A finished run is not run again. */
        orders = (toy_orders){0};
        assert_ok(ctx, fit(ctx, sources, n, cond_size, &desc, pieces, &orders));
        assert_int_equal(orders.calls, 0);
        assert_same_log(ctx, whole, pieces);
        wf_zoo_free(zoos[0]);
        wf_zoo_free(zoos[1]);
        wf_ctx_free(ctx);
    }
}

/* To set up a large field takes seconds, and nothing is there to save. */
static void a_stop_before_the_first_update_saves_nothing(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx(), *own = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit();
    toy_orders orders = {.stop_at_init = own};
    const char *path = in_folder("stopped_early");
    assert_int_equal(fit(own, &source, 1, 0, &desc, path, &orders), WF_ERR_INTERRUPTED);
    assert_non_null(strstr(wf_last_error(own), "interrupted before an update was made"));
    assert_int_equal(orders.calls, 0);
    assert_false(wf_file_exists(path));
    wf_ctx_free(own);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* To write takes longer than is at stake: the last checkpoint stands, and the end is the same. */
static double no_time(void *user) {
    (void)user;
    return 0;
}

static double much_time(void *user) { return *(double *)user += 3600; }

static void a_stop_waits_for_what_saves_work(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit();
    const char *whole = in_folder("whole_stop"), *pieces = in_folder("pieces_stop");
    toy_orders orders = {0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, whole, &orders));
    static const char *const said[] = {"no checkpoint yet", "the checkpoint is saved",
                                       "the last checkpoint stands"};
    wf_piece_bytes = 100;
    wf_stop_seconds = 0;
    for (int piece = 0; piece < 3; piece++) {
        wf_ctx *own = test_ctx();
        double clock = 0;
        wf_ctx_set_clock(own, piece == 1 ? much_time : no_time, &clock);
        orders = (toy_orders){.interrupt_at = 10};
        assert_fails(own, fit(own, &source, 1, 0, &desc, pieces, &orders), WF_ERR_INTERRUPTED,
                     said[piece]);
        assert_int_equal(access(pieces, F_OK), piece == 0 ? -1 : 0);
        wf_ctx_free(own);
    }
    wf_piece_bytes = 16 << 20;
    wf_stop_seconds = 1;
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open_with(ctx, pieces, toy_kind(&orders), &flow));
    assert_int_equal(wf_flow_updates(flow), 9); /* the tenth was stopped in its midst */
    wf_flow_free(flow);
    orders = (toy_orders){0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, pieces, &orders));
    assert_same_tensors(ctx, whole, pieces);
    assert_same_log(ctx, whole, pieces);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* Out of time at once: one update, which a run without the limit goes on from. */
static void a_run_ends_by_the_clock(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit(), limited = desc;
    limited.max_seconds = 1e-9;
    const char *whole = in_folder("unlimited"), *cut = in_folder("cut");
    toy_orders orders = {0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, whole, &orders));
    orders = (toy_orders){0};
    for (int again = 0; again < 2; again++)
        assert_ok(ctx, fit(ctx, &source, 1, 0, &limited, cut, &orders));
    assert_int_equal(orders.calls, 1);
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open_with(ctx, cut, toy_kind(&orders), &flow));
    assert_int_equal(wf_flow_updates(flow), 1);
    wf_flow_free(flow);
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, cut, &orders));
    assert_same_tensors(ctx, whole, cut);
    assert_same_log(ctx, whole, cut);
    limited.max_seconds = -1;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &limited, cut, &orders), WF_ERR_USAGE,
                 "max_seconds is -1");
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* --- a clock that each update moves on -------------------------------------------------------- */

typedef struct slow_clock {
    double now, per_update;
    size_t updates, fast_from; /* from this update on an update takes no time; 0: never */
} slow_clock;

static double slow_now(void *user) { return ((slow_clock *)user)->now; }

static void slow_update(void *user, const char *path, const char *line) { /* log_every = 1 */
    slow_clock *clock = user;
    (void)path, (void)line;
    clock->updates++;
    bool fast = clock->fast_from > 0 && clock->updates >= clock->fast_from;
    clock->now += fast ? 1e-6 : clock->per_update;
}

static wf_ctx *slow_ctx(slow_clock *clock) {
    wf_ctx *ctx = test_ctx();
    wf_ctx_set_clock(ctx, slow_now, clock);
    wf_ctx_on_log(ctx, slow_update, clock);
    return ctx;
}

static wf_fit_desc late_fit(void) {
    wf_fit_desc desc = quick_fit();
    desc.updates = 400;
    desc.log_every = 1;
    desc.max_seconds = 1;
    return desc;
}

/* 400 updates of 10 ms. In the 1 s that there is the schedule comes to its end all the same. */
static void a_late_run_shortens_its_schedule(void **state) {
    (void)state;
    static const size_t fast_from[] = {0, 50};
    for (int k = 0; k < 2; k++) {
        slow_clock clock = {.now = 5, .per_update = 0.01, .fast_from = fast_from[k]};
        wf_ctx *ctx = slow_ctx(&clock);
        wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
        wf_source source = {.zoo = zoo};
        wf_fit_desc desc = late_fit();
        const char *path = in_folder(k == 0 ? "late" : "late_at_first");
        toy_orders orders = {0};
        assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders));
        wf_flow *flow;
        assert_ok(ctx, wf_flow_open_with(ctx, path, toy_kind(&orders), &flow));
        assert_true(wf_flow_position(flow) >= 400);
        if (k == 0) assert_in_range(wf_flow_updates(flow), 90, 100);
        assert_true(clock.now - 5 < 1);
        assert_true(last_rate(ctx, path) < 0.2 * desc.lr);
        wf_flow_free(flow);
        wf_zoo_free(zoo);
        wf_ctx_free(ctx);
    }
}

/* The strides are part of the checkpoint: broken off with long ones, a run goes on with them, in
 * one piece or in three. */
static void a_late_run_goes_on_with_its_pace(void **state) {
    (void)state;
    slow_clock clock = {.per_update = 0.01};
    wf_ctx *ctx = test_ctx(), *slow = slow_ctx(&clock);
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = late_fit();
    const char *whole = in_folder("late_whole"), *pieces = in_folder("late_pieces");
    toy_orders orders = {.interrupt_at = 30};
    assert_int_equal(fit(slow, &source, 1, 0, &desc, whole, &orders), WF_ERR_INTERRUPTED);
    size_t size;
    char *bytes;
    assert_ok(ctx, wf_read_file(ctx, whole, 1 << 24, &bytes, &size));
    assert_ok(ctx, wf_write_file(ctx, pieces, bytes, size));
    free(bytes);
    desc.max_seconds = 0;
    orders = (toy_orders){0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, whole, &orders));
    assert_in_range(orders.calls, 60, 80); /* of 371 */
    for (int piece = 0; piece < 3; piece++) {
        wf_ctx *own = test_ctx();
        orders = (toy_orders){.interrupt_at = piece < 2 ? 15 : 0};
        assert_int_equal(fit(own, &source, 1, 0, &desc, pieces, &orders),
                         piece < 2 ? WF_ERR_INTERRUPTED : WF_OK);
        wf_ctx_free(own);
    }
    assert_same_tensors(ctx, whole, pieces);
    wf_zoo_free(zoo);
    wf_ctx_free(slow);
    wf_ctx_free(ctx);
}

/* A process killed after a checkpoint leaves log lines beyond it, perhaps half a line. */
static void log_lines_beyond_the_checkpoint_go(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit();
    const char *whole = in_folder("log_whole"), *killed = in_folder("log_killed");
    toy_orders orders = {0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, whole, &orders));
    wf_ctx *own = test_ctx();
    orders = (toy_orders){.interrupt_at = 16};
    assert_int_equal(fit(own, &source, 1, 0, &desc, killed, &orders), WF_ERR_INTERRUPTED);
    wf_ctx_free(own);
    char name[300];
    snprintf(name, sizeof name, "%s.log.jsonl", killed);
    FILE *log = fopen(name, "a");
    fprintf(log, "{\"update\":21,\"loss\":1,\"seconds\":1}\n{\"update\":28,\"lo");
    fclose(log);
    orders = (toy_orders){0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, killed, &orders));
    assert_same_log(ctx, whole, killed);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

static void another_configuration_is_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0), *other = make_zoo(ctx, "2-3-2", 20, 5);
    wf_source source = {.zoo = zoo}, swapped = {.zoo = other};
    const char *path = in_folder("config");
    wf_fit_desc desc = quick_fit();
    toy_orders orders = {0};
    assert_ok(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders));
    char *before = read_text(ctx, path);
    wf_fit_desc changed = desc;
    changed.lr = 0.02;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &changed, path, &orders), WF_ERR_USAGE, "fit.lr");
    changed = desc;
    changed.updates = 70; /* the cosine's horizon follows */
    assert_fails(ctx, fit(ctx, &source, 1, 0, &changed, path, &orders), WF_ERR_USAGE,
                 "fit.schedule_updates is 60, this run's is 70");
    changed.schedule_updates = 60; /* with the old horizon the run is only longer */
    assert_fails(ctx, fit(ctx, &swapped, 1, 0, &changed, path, &orders), WF_ERR_USAGE,
                 "source.0.hash");
    char *after = read_text(ctx, path);
    assert_string_equal(before, after);
    assert_ok(ctx, fit(ctx, &source, 1, 0, &changed, path, &orders));
    assert_int_equal(orders.calls, 70);
    assert_ok(ctx, wf_write_file(ctx, path, "no", 2));
    assert_int_equal(fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_INPUT);
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, wf_zoo_path(zoo), &orders), WF_ERR_INPUT,
                 "not a flow");
    free(before);
    free(after);
    wf_zoo_free(zoo);
    wf_zoo_free(other);
    wf_ctx_free(ctx);
}

static void divergence_keeps_the_last_checkpoint(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit();
    const char *path = in_folder("diverged");
    toy_orders orders = {.nan_at = 5};
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_DIVERGED,
                 "diverged at update 5: the loss is nan; no checkpoint had been written yet");
    assert_false(wf_file_exists(path));
    desc.save_seconds = 0;
    orders = (toy_orders){.nan_at = 5};
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_DIVERGED,
                 "the last checkpoint is kept");
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open_with(ctx, path, toy_kind(&orders), &flow));
    assert_int_equal(wf_flow_updates(flow), 4);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

static void updates_allocate_nothing(void **state) {
    (void)state;
#if COUNTS_ALLOCATIONS
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoos[2] = {make_zoo(ctx, "2-3-2", 20, 0), make_zoo(ctx, "3-4-2-2", 10, 1)};
    wf_source sources[2] = {{.zoo = zoos[0]}, {.zoo = zoos[1]}};
    for (int ragged = 0; ragged < 2; ragged++) {
        long counted[2];
        for (int longer = 0; longer < 2; longer++) {
            wf_fit_desc desc = quick_fit();
            desc.updates = longer ? 90 : 30;
            toy_orders orders = {0};
            char name[32];
            snprintf(name, sizeof name, "alloc_%d_%d", ragged, longer);
            const char *path = in_folder(name);
            allocations = 0;
            assert_ok(ctx, fit(ctx, sources, ragged ? 2 : 1, 0, &desc, path, &orders));
            counted[longer] = allocations;
        }
        assert_int_equal(counted[0], counted[1]);
    }
    wf_zoo_free(zoos[0]);
    wf_zoo_free(zoos[1]);
    wf_ctx_free(ctx);
#else
    skip("the sanitizer has its own allocator");
#endif
}

/* Whichever allocation of training and sampling fails, the call says so, and what it calls good is.
 * jansson is spared: its lexer does not survive the lack of memory. */
static void failed_allocations_are_reported(void **state) {
    (void)state;
#if COUNTS_ALLOCATIONS
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 4, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc desc = quick_fit();
    desc.updates = 2;
    desc.batch = 2;
    desc.principal = true;
    wf_sample_desc sample = wf_sample_desc_default();
    sample.refine_cycles = 1;
    const char *path = in_folder("failing");
    json_set_alloc_funcs(__libc_malloc, free);
    wf_status status = WF_OK;
    long failures = 0;
    /* Some are not missed (a stream's buffer), so the end is where a run makes fewer of them. */
    for (long at = 1, made = 0; made + 1 >= at; at++) {
        wf_field_desc field = plain_field(0);
        toy_orders orders = {0};
        wf_flow *flow = NULL;
        float w[2 * 32];
        remove(path);
        allocations = 0;
        fail_at = at;
        status = wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, &desc, path, &flow);
        if (status == WF_OK)
            status = wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 2, &sample, w, NULL, NULL);
        made = allocations;
        fail_at = 0;
        wf_flow_free(flow);
        failures += status != WF_OK;
        if (status != WF_OK) assert_true(strlen(wf_last_error(ctx)) > 0);
        if (status == WF_OK) {
            assert_ok(ctx, wf_flow_open_with(ctx, path, toy_kind(&orders), &flow));
            assert_int_equal(wf_flow_updates(flow), 2);
            wf_flow_free(flow);
        }
    }
    assert_ok(ctx, status);
    json_set_alloc_funcs(malloc, free);
    if (failures < 100) fail_msg("only %ld failures", failures);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
#else
    skip("the sanitizer has its own allocator");
#endif
}

static void bad_settings_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 5, 0);
    float cond[1] = {1};
    wf_source source = {.zoo = zoo}, conditional = {.zoo = zoo, .cond = cond};
    toy_orders orders = {0};
    const char *path = in_folder("bad");
    wf_fit_desc good = quick_fit(), desc = good;
    desc.normalise = false;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "normalise");
    desc = good, desc.principal = true, desc.precondition = false;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "precondition");
    desc = good, desc.lr = NAN;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "lr is nan");
    desc = good, desc.beta2 = 1;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "beta2");
    desc = good, desc.batch = 0;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "batch");
    desc = good, desc.min_lr = 1;
    assert_fails(ctx, fit(ctx, &source, 1, 0, &desc, path, &orders), WF_ERR_USAGE, "min_lr");
    assert_fails(ctx, fit(ctx, &source, 0, 0, &good, path, &orders), WF_ERR_USAGE, "collection");
    assert_fails(ctx, fit(ctx, &source, 1, 1, &good, path, &orders), WF_ERR_USAGE, "no condition");
    assert_fails(ctx, fit(ctx, &conditional, 1, 0, &good, path, &orders), WF_ERR_USAGE,
                 "a condition");
    assert_fails(ctx, fit(ctx, &source, 1, 0, &good, "/nonexistent/flow", &orders), WF_ERR_DISK,
                 "/nonexistent");
    assert_false(wf_file_exists(path));
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_are_the_gaussian_answer),
        cmocka_unit_test(loss_is_the_mean_of_means),
        cmocka_unit_test(the_gradient_is_that_of_the_loss),
        cmocka_unit_test(preconditioned_loss_has_its_skip),
        cmocka_unit_test(gradient_agrees_with_differences),
        cmocka_unit_test(training_reduces_the_loss),
        cmocka_unit_test(resumed_run_is_the_uninterrupted_one),
        cmocka_unit_test(a_stop_before_the_first_update_saves_nothing),
        cmocka_unit_test(a_stop_waits_for_what_saves_work),
        cmocka_unit_test(a_run_ends_by_the_clock),
        cmocka_unit_test(a_late_run_shortens_its_schedule),
        cmocka_unit_test(a_late_run_goes_on_with_its_pace),
        cmocka_unit_test(log_lines_beyond_the_checkpoint_go),
        cmocka_unit_test(another_configuration_is_refused),
        cmocka_unit_test(divergence_keeps_the_last_checkpoint),
        cmocka_unit_test(updates_allocate_nothing),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(bad_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
