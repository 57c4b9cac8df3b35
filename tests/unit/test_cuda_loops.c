/* The loops around a field on the GPU, small enough for the emulated device: a training run and
 * samples beside the CPU's, and a field without a program for the GPU. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "clusters.h"
#include "flow/flow_fit.h"
#include "flow_fixture.h"

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

static void training_and_sampling_agree_with_the_cpu(void **state) {
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
        assert_non_null(strstr(wf_ctx_devices(ctx[1]), "fitting cuda, sampling cuda"));
        for (int d = 0; d < 2; d++) {
            wf_zoo_free(zoos[d]);
            wf_flow_free(flow[d]);
        }
        for (int d = 0; d < 2; d++) wf_ctx_free(ctx[d]);
    }
}

/* Networks that are trained meanwhile reach the device, in memory of its own and in the host's. A
 * run that was broken off goes on as if it had not been. */
static void fresh_networks_reach_the_device(void **state) {
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
    fit.fresh_rate = 2; /* 2 networks of a slice: a renewal behind every update */
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

/* What has no program for the GPU runs on the CPU, with its bits, and says so. */
static void a_field_without_a_program_says_so(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_and_sampling_agree_with_the_cpu),
        cmocka_unit_test(fresh_networks_reach_the_device),
        cmocka_unit_test(a_field_without_a_program_says_so),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
