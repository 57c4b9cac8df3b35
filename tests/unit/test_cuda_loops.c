/* The loops around a field on the GPU, small enough for the emulated device: a training run and
 * samples beside the CPU's, a field without a program for the GPU, and how soon a loop stops. */
#include "named_cases.h"
#include "base/cuda/device.h"
#include "base/io.h"
#include "clusters.h"
#include "flow/fit_common.h"
#include "flow/flow_fit.h"
#include "flow_fixture.h"
#include "named_cases.h"

#include <pthread.h>
#include <time.h>

static char warned[256];

static void keep_warning(void *user, const char *sentence) {
    (void)user;
    snprintf(warned, sizeof warned, "%s", sentence);
}

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device, .warn = keep_warning};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

static wf_fit_desc short_fit(wf_optimizer optimizer) {
    wf_fit_desc fit = quick_fit();
    fit.updates = 3;
    fit.batch = 3;
    fit.log_every = 1;
    fit.lr = 1e-3;
    fit.eps = 1e-4; /* else an update has the sign of gradients that are rounding alone */
    fit.optimizer = optimizer;
    fit.precision = WF_PRECISION_FP32;
    return fit;
}

/* A flow of two collections, told apart by a condition, on either device. */
static wf_flow *fit_on(wf_ctx *ctx, wf_zoo *const *zoos, const wf_fit_desc *fit, const char *name) {
    static const float cond[2][1] = {{0}, {1}};
    wf_source sources[] = {{.zoo = zoos[0], .cond = cond[0]}, {.zoo = zoos[1], .cond = cond[1]}};
    wf_field_desc field = plain_field(1);
    wf_flow *flow;
    assert_ok(ctx, wf_flow_fit(ctx, sources, 2, &field, fit, in_folder(name), &flow));
    return flow;
}

static void test_training(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    for (int k = 0; k < 2; k++) {
        wf_ctx *ctx[] = {device_ctx(WF_DEVICE_CPU), device_ctx(WF_DEVICE_CUDA)};
        wf_zoo *zoos[] = {make_zoo(ctx[0], "3-4-2", 5, 0), make_zoo(ctx[0], "2-3-2", 5, 1)};
        wf_fit_desc fit = short_fit(k == 0 ? WF_OPT_ADAMW : WF_OPT_MUON);
        fit.cond_drop = 0.3;
        fit.path_noise = 0.1;
        wf_flow *flow[2];
        float nets[2][2][26], direct[2][2][26];
        for (int d = 0; d < 2; d++) {
            char name[32];
            snprintf(name, sizeof name, "flow_%d_%d", k, d);
            flow[d] = fit_on(ctx[d], zoos, &fit, name);
            wf_sample_desc sample = wf_sample_desc_default();
            sample.solver = WF_SOLVER_HEUN;
            sample.steps = 2;
            sample.refine_cycles = 1;
            sample.refine_steps = 1;
            sample.guidance = 1.5;
            sample.precision = WF_PRECISION_FP32;
            float cond = 0.5f;
            assert_ok(ctx[d], wf_flow_sample(ctx[d], flow[d], wf_zoo_graph(zoos[0]), &cond, 2,
                                             &sample, nets[d][0], direct[d][0], NULL));
        }
        size_t params = wf_flow_params(flow[0]);
        assert_close(relative_difference(flow[1]->params, flow[0]->params, params), 0, 1e-5);
        assert_close(relative_difference(direct[1][0], direct[0][0], 52), 0, 1e-4);
        assert_close(relative_difference(nets[1][0], nets[0][0], 52), 0, 1e-4);
        assert_null(strstr(wf_ctx_devices(ctx[0]), "fitting")); /* there was nothing to choose */
        assert_non_null(strstr(wf_ctx_devices(ctx[1]), "fitting cuda"));
        assert_non_null(strstr(wf_ctx_devices(ctx[1]), "sampling cuda"));
        for (int d = 0; d < 2; d++) {
            wf_zoo_free(zoos[d]);
            wf_flow_free(flow[d]);
        }
        for (int d = 0; d < 2; d++) wf_ctx_free(ctx[d]);
    }
}

/* Networks that are trained meanwhile reach the device, in memory of its own and in the host's. A
 * run that was broken off goes on as if it had not been. */
static void test_fresh(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx[] = {device_ctx(WF_DEVICE_CPU), device_ctx(WF_DEVICE_CUDA)};
    wf_zoo *zoos[] = {make_zoo(ctx[0], "3-4-2", 16, 0), make_zoo(ctx[0], "3-3-2", 16, 1)};
    wf_dataset *data = data_of(3, 2, 20, 5);
    static const float cond[2][1] = {{0}, {1}};
    wf_fresh fresh = {.data = data, .zoo = wf_zoo_desc_default()};
    fresh.zoo.epochs = 1;
    wf_source sources[] = {{.zoo = zoos[0], .held_out = zoos[0], .cond = cond[0], .fresh = &fresh},
                           {.zoo = zoos[1], .cond = cond[1], .fresh = &fresh}};
    wf_field_desc field = plain_field(1);
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.updates = 5;
    fit.schedule_updates = 5;
    fit.fresh_rate = 2; /* 2 networks of a slice: a renewal after every update */
    fit.validations = 2;
    wf_flow *flow[3];
    const char *names[] = {"fresh_cpu", "fresh_gpu", "fresh_streamed"};
    for (int d = 0; d < 3; d++) {
        if (d == 2) setenv("WEFT_STREAM_COLLECTION", "1", 1);
        for (size_t updates = d == 1 ? 2 : 5; updates <= 5; updates += 3) { /* in two parts */
            fit.updates = updates;
            assert_ok(ctx[d > 0], wf_flow_fit(ctx[d > 0], sources, 2, &field, &fit,
                                              in_folder(names[d]), &flow[d]));
            if (updates < 5) wf_flow_free(flow[d]);
        }
        unsetenv("WEFT_STREAM_COLLECTION");
    }
    size_t params = wf_flow_params(flow[0]);
    assert_close(relative_difference(flow[1]->params, flow[0]->params, params), 0, 1e-5);
    assert_memory_equal(flow[2]->params, flow[1]->params, params * sizeof(float));
    for (int d = 0; d < 3; d++) wf_flow_free(flow[d]);
    for (int d = 0; d < 2; d++) wf_zoo_free(zoos[d]);
    for (int d = 0; d < 2; d++) wf_ctx_free(ctx[d]);
    data_free(data);
}

/* A clock that each update moves on by 10 ms. */
static double clock_now(void *user) { return *(double *)user; }
static void clock_update(void *user, const char *path, const char *line) {
    (void)path, (void)line;
    *(double *)user += 0.01;
}

/* 60 updates of 10 ms with 0.3 s for them: the schedule is shortened on the device too, and the
 * rate there is the one that the host's pace says, before and after a break. */
static void test_pace(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    double now = 7;
    wf_ctx_set_clock(ctx, clock_now, &now);
    wf_ctx_on_log(ctx, clock_update, &now);
    wf_zoo *zoos[] = {make_zoo(ctx, "3-4-2", 5, 0), make_zoo(ctx, "2-3-2", 5, 1)};
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.updates = 60;
    fit.cosine = true;
    fit.set_aside = 1;
    fit.validations = 3;
    fit.max_seconds = 0.3;
    wf_flow *flow = fit_on(ctx, zoos, &fit, "late");
    size_t made = wf_flow_updates(flow);
    assert_in_range(made, 20, 31);
    assert_true(wf_flow_position(flow) >= 60);
    assert_true(flow->state.pace.stride > 1.5);
    assert_non_null(strstr(warned, "the schedule was shortened"));
    wf_schedule schedule = wf_fit_schedule(&fit, fit.lr, 60);
    size_t last = wf_pace_position(&flow->state.pace, made - 1);
    assert_close(last_rate(ctx, in_folder("late")), fit.lr * wf_schedule_factor(&schedule, last),
                 1e-8 * fit.lr);
    wf_flow_free(flow);

    fit.max_seconds = 0; /* goes on with the pace it has */
    fit.updates = 90;
    fit.schedule_updates = 60;
    flow = fit_on(ctx, zoos, &fit, "late");
    assert_true(wf_flow_position(flow) >= 90 && wf_flow_updates(flow) < made + 20);
    wf_flow_free(flow);
    for (int d = 0; d < 2; d++) wf_zoo_free(zoos[d]);
    wf_ctx_free(ctx);
}

/* What has no program for the GPU runs on the CPU, with its bits, and says so. */
static void test_without(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx[] = {device_ctx(WF_DEVICE_CPU), device_ctx(WF_DEVICE_CUDA)};
    wf_zoo *zoo = make_zoo(ctx[0], "3-4-2", 5, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.precision = WF_PRECISION_AUTO;
    toy_orders orders = {0};
    float nets[2][2][26];
    for (int d = 0; d < 2; d++) {
        wf_flow *flow;
        warned[0] = '\0';
        assert_ok(ctx[d], wf_flow_fit_with(ctx[d], &source, 1, toy_kind(&orders), &field, &fit,
                                           in_folder(d == 0 ? "cpu" : "fallen"), &flow));
        if (d == 1)
            assert_string_equal(warned, "toy has no program for the GPU: fitting runs on the CPU");
        assert_ok(ctx[d], wf_flow_sample(ctx[d], flow, wf_zoo_graph(zoo), NULL, 2, NULL, nets[d][0],
                                         NULL, NULL));
        if (d == 1)
            assert_string_equal(warned, "toy has no program for the GPU: sampling runs on the CPU");
        wf_flow_free(flow);
    }
    assert_memory_equal(nets[0], nets[1], sizeof nets[0]);
    assert_string_equal(wf_ctx_devices(ctx[1]), "fitting cpu, sampling cpu");
    wf_zoo_free(zoo);
    for (int d = 0; d < 2; d++) wf_ctx_free(ctx[d]);
}

/* --- interruption ----------------------------------------------------------------------------- */

/* Interrupts behind the first line of the log, which is that of the first update. */
static void stop_at_a_line(void *ctx, const char *path, const char *line) {
    (void)path;
    if (strncmp(line, "{\"update\":", 10) == 0) wf_interrupt(*(wf_ctx **)ctx);
}

/* Nobody knows how long an update takes before one is made: nothing is enqueued behind it. */
static void test_training_stops(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_ctx_on_log(ctx, stop_at_a_line, &ctx);
    wf_zoo *zoo = make_zoo(ctx, "3-4-2", 5, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.updates = 200;
    fit.validations = 0;
    wf_flow *flow = NULL;
    wf_status status = wf_flow_fit(ctx, &source, 1, &field, &fit, in_folder("stopped"), &flow);
    assert_int_equal(status, WF_ERR_INTERRUPTED);
    wf_ctx *other = device_ctx(WF_DEVICE_CPU);
    assert_ok(other, wf_flow_open(other, in_folder("stopped"), &flow));
    assert_int_equal(wf_flow_updates(flow), 1);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
    wf_ctx_free(other);
    wf_ctx_free(ctx);
}

static double no_time(void *user) {
    (void)user;
    return 0;
}

/* Nothing is at stake, and a checkpoint takes longer than the stop may: the thread that writes it
 * gives it up. */
static void test_training_gives_up(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_ctx_on_log(ctx, stop_at_a_line, &ctx);
    wf_ctx_set_clock(ctx, no_time, NULL);
    wf_zoo *zoo = make_zoo(ctx, "3-4-2", 5, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.updates = 200;
    fit.validations = 0;
    wf_flow *flow = NULL;
    wf_stop_seconds = 0;
    wf_piece_bytes = 100;
    assert_fails(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, in_folder("given-up"), &flow),
                 WF_ERR_INTERRUPTED, "no checkpoint yet");
    assert_int_equal(access(in_folder("given-up"), F_OK), -1);
    wf_stop_seconds = 1;
    wf_piece_bytes = 16 << 20;
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

static double cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

typedef struct stopping {
    wf_ctx *ctx;
    double at, told; /* CPU seconds of the process */
} stopping;

static void *stop_later(void *stopping_) {
    stopping *s = stopping_;
    while (cpu_seconds() < s->at) nanosleep(&(struct timespec){0, 1000000}, NULL);
    s->told = cpu_seconds();
    wf_interrupt(s->ctx);
    return NULL;
}

/* The emulated device works in this process, so what is done behind the request is its CPU time: at
 * most WF_BACKLOG_SECONDS of work that was enqueued, and a velocity. */
static void test_sampling_stops(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    enum { velocities = 8, many = 2000 };
    wf_ctx *ctx = device_ctx(WF_DEVICE_CUDA);
    wf_zoo *zoo = make_zoo(ctx, "3-4-2", 5, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    field.blocks = 3;
    wf_fit_desc fit = short_fit(WF_OPT_ADAMW);
    fit.updates = 1;
    wf_flow *flow;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, in_folder("slow"), &flow));
    wf_sample_desc sample = wf_sample_desc_default();
    sample.solver = WF_SOLVER_RK4;
    sample.precision = WF_PRECISION_FP32;
    sample.steps = velocities / 4;
    sample.batch = 16;
    static float nets[16][26];
    double start = cpu_seconds();
    assert_ok(ctx,
              wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 16, &sample, nets[0], NULL, NULL));
    double each = (cpu_seconds() - start) / velocities;
    stopping s = {.ctx = ctx, .at = cpu_seconds() + 4 * each};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_later, &s), 0);
    sample.steps = many;
    wf_status status =
        wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 16, &sample, nets[0], NULL, NULL);
    assert_ok(ctx, wf_cuda_wait(ctx)); /* for what is enqueued */
    double behind = cpu_seconds() - s.told;
    pthread_join(thread, NULL);
    assert_int_equal(status, WF_ERR_INTERRUPTED);
    if (behind > 0.2 + 3 * each)
        fail_msg("%.2f s of work behind the request; a velocity takes %.3f s", behind, each);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_fresh),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_training_stops),
        cmocka_unit_test(test_sampling_stops),
        cmocka_unit_test(test_training_gives_up),
    };
    return run_chosen(tests, make_folder, drop_folder);
}
