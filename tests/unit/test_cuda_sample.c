/* The samplers on the GPU against the CPU's: every solver, guidance, refinement, chunks, the order
 * of the methods. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "flow_fixture.h"

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

typedef struct bench {
    wf_ctx *cpu, *gpu;
    wf_graph *graph;
    wf_flow *flow;
    float *here, *there, *direct_here, *direct_there;
} bench;

enum { networks = 8 };

/* A flow after a few updates: large ones, after which its field is far from zero, or next to
 * none. */
static void bench_train(bench *b, const char *arch, int cond_size, wf_fit_desc fit) {
    *b = (bench){.cpu = device_ctx(WF_DEVICE_CPU), .gpu = device_ctx(WF_DEVICE_CUDA)};
    wf_field_desc field = plain_field(cond_size);
    field.node = 20, field.edge = 34, field.time = 10, field.blocks = 2;
    fit.updates = 25;
    fit.cond_drop = cond_size > 0 ? 0.3 : 0;
    fit.ema = 0;
    float cond[2][2] = {{0, 1}, {1, 0}};
    wf_zoo *zoos[2];
    wf_source sources[2];
    for (int i = 0; i < 2; i++) {
        zoos[i] = make_zoo(b->cpu, arch, 9, (uint32_t)i);
        sources[i] = (wf_source){.zoo = zoos[i], .cond = cond_size > 0 ? cond[i] : NULL};
    }
    remove(in_folder("flow"));
    assert_ok(b->cpu, wf_flow_fit(b->cpu, sources, 2, &field, &fit, in_folder("flow"), &b->flow));
    assert_ok(b->cpu, wf_graph_parse(b->cpu, arch, "relu", 0, &b->graph));
    for (int i = 0; i < 2; i++) wf_zoo_free(zoos[i]);
    float **arrays[] = {&b->here, &b->there, &b->direct_here, &b->direct_there};
    for (int i = 0; i < 4; i++) *arrays[i] = calloc(networks * b->graph->n_params, sizeof(float));
}

static void bench_open(bench *b, const char *arch, int cond_size) {
    wf_fit_desc fit = quick_fit();
    fit.muon_lr = 0.05;
    bench_train(b, arch, cond_size, fit);
}

static void bench_close(bench *b) {
    wf_flow_free(b->flow);
    wf_graph_free(b->graph);
    free(b->here), free(b->there), free(b->direct_here), free(b->direct_there);
    wf_ctx_free(b->cpu);
    wf_ctx_free(b->gpu);
}

static void compare(bench *b, const char *what, const float *cond, wf_sample_desc desc,
                    double limit) {
    size_t all = networks * b->graph->n_params;
    wf_sample_stats here, there;
    desc.precision = WF_PRECISION_FP32;
    assert_ok(b->cpu, wf_flow_sample(b->cpu, b->flow, b->graph, cond, networks, &desc, b->here,
                                     b->direct_here, &here));
    memset(b->there, 0xff, all * 4);
    assert_ok(b->gpu, wf_flow_sample(b->gpu, b->flow, b->graph, cond, networks, &desc, b->there,
                                     b->direct_there, &there));
    double d = relative_difference(b->there, b->here, all);
    double direct = relative_difference(b->direct_there, b->direct_here, all);
    print_message("%s: networks %.2g, before refinement %.2g, evaluations %.5g and %.5g\n", what, d,
                  direct, there.evaluations, here.evaluations);
    if (!(d <= limit && direct <= limit)) fail_msg("%s: off by %.3g and %.3g", what, d, direct);
    assert_close(there.evaluations, here.evaluations, 0.1 * here.evaluations);
    if (desc.solver != WF_SOLVER_DOPRI5) assert_true(there.evaluations == here.evaluations);
}

static void samplers_agree(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, "3-7-4-2", 0);
    static const char *const names[] = {"euler", "heun", "rk4", "dopri5"};
    for (int solver = 0; solver < 4; solver++) {
        wf_sample_desc desc = wf_sample_desc_default();
        desc.solver = (wf_solver)solver;
        desc.steps = 9;
        desc.seed = 4;
        desc.rtol = desc.atol = 1e-4;
        compare(&b, names[solver], NULL, desc, 1e-3);
        desc.refine_cycles = 2;
        desc.batch = 3; /* chunks of 3, 3 and 2 */
        desc.refine_matched = solver % 2 == 0;
        compare(&b, "the same refined, in chunks", NULL, desc, 5e-3);
    }
    bench_close(&b);
}

static void samplers_agree_along_principal_axes(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    wf_fit_desc fit = quick_fit();
    fit.muon_lr = 0.05;
    fit.principal = true;
    fit.source_std = 1.5;
    bench_train(&b, "3-7-4-2", 0, fit);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.rtol = desc.atol = 1e-4;
    desc.refine_cycles = 2;
    compare(&b, "dopri5 along principal axes", NULL, desc, 5e-3);
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 9;
    compare(&b, "euler along principal axes", NULL, desc, 5e-3);
    bench_close(&b);
}

static void guidance_agrees(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, "3-4-2", 2);
    const float cond[2] = {0.25f, 0.75f};
    static const double guidance[] = {1, 0, 2.5};
    for (int k = 0; k < 3; k++) {
        wf_sample_desc desc = wf_sample_desc_default();
        desc.solver = WF_SOLVER_HEUN;
        desc.steps = 7;
        desc.guidance = guidance[k];
        desc.refine_cycles = 1;
        compare(&b, "guided", cond, desc, 5e-3);
        if (k == 1) compare(&b, "without a condition", NULL, desc, 5e-3);
    }
    bench_close(&b);
}

/* Wider than the GPU's matching takes. */
static void wide_networks_are_matched_on_the_host(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, "2-70-2", 0);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 5;
    desc.refine_cycles = 1;
    compare(&b, "70 hidden units", NULL, desc, 5e-3);
    bench_close(&b);
}

/* Network k is the same whatever the chunk; another call of the same flow gives the same bits. */
static void networks_do_not_depend_on_the_call(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, "3-7-4-2", 0);
    size_t p = b.graph->n_params;
    for (int fast = 0; fast < 2; fast++) {
        wf_sample_desc desc = wf_sample_desc_default();
        desc.solver = WF_SOLVER_HEUN;
        desc.steps = 6;
        desc.refine_cycles = 1;
        desc.precision = fast ? WF_PRECISION_BF16 : WF_PRECISION_FP32;
        assert_ok(b.gpu, wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.here, NULL,
                                        NULL));
        assert_ok(b.gpu, wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.there,
                                        NULL, NULL));
        assert_memory_equal(b.here, b.there, networks * p * 4);
        desc.first = 5;
        desc.batch = 2;
        assert_ok(b.gpu,
                  wf_flow_sample(b.gpu, b.flow, b.graph, NULL, 3, &desc, b.there, NULL, NULL));
        assert_memory_equal(b.here + 5 * p, b.there, 3 * p * 4);
    }
    bench_close(&b);
}

/* Half the step, 2^order of the error: of the preconditioned path alone, w' = (t - s^2 (1-t)) /
 * (t^2 + s^2 (1-t)^2) w, for a field's codes of time turn faster than these steps see. */
static void methods_have_their_order(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    wf_fit_desc fit = quick_fit();
    fit.lr = fit.muon_lr = 1e-12;
    fit.source_std = 16; /* a sharp turn; with 1 the path is symmetric and errors cancel */
    bench_train(&b, "3-4-2", 0, fit);
    size_t all = networks * b.graph->n_params;
    wf_sample_desc desc = wf_sample_desc_default();
    desc.precision = WF_PRECISION_FP32;
    desc.solver = WF_SOLVER_RK4;
    desc.steps = 400;
    assert_ok(b.gpu,
              wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.here, NULL, NULL));
    static const int expected[] = {1, 2, 4};
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_RK4; solver++) {
        double error[2];
        for (int half = 0; half < 2; half++) {
            desc.solver = (wf_solver)solver;
            desc.steps = 64 << half;
            assert_ok(b.gpu, wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.there,
                                            NULL, NULL));
            error[half] = relative_difference(b.there, b.here, all);
        }
        double order = log2(error[0] / error[1]);
        print_message("order %d: errors %.3g, %.3g, measured %.2f\n", expected[solver], error[0],
                      error[1], order);
        assert_close(order, expected[solver], 0.2);
    }
    bench_close(&b);
}

static void bf16_stays_near(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, "3-7-4-2", 0);
    size_t all = networks * b.graph->n_params;
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 20;
    desc.precision = WF_PRECISION_FP32;
    assert_ok(b.gpu,
              wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.here, NULL, NULL));
    desc.precision = WF_PRECISION_AUTO;
    assert_ok(b.gpu,
              wf_flow_sample(b.gpu, b.flow, b.graph, NULL, networks, &desc, b.there, NULL, NULL));
    double d = relative_difference(b.there, b.here, all);
    print_message("bf16 beside fp32: %.2g\n", d);
    assert_true(d > 0 && d < 0.03);
    bench_close(&b);
}

static void bf16_is_refused_where_it_cannot_apply(void **state) {
    (void)state;
    bench b;
    bench_open(&b, "3-4-2", 0);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.precision = WF_PRECISION_BF16;
    assert_fails(b.cpu, wf_flow_sample(b.cpu, b.flow, b.graph, NULL, 1, &desc, b.here, NULL, NULL),
                 WF_ERR_USAGE, "runs on the CPU");
    if (wf_cuda_available())
        assert_fails(b.gpu,
                     wf_flow_sample(b.gpu, b.flow, b.graph, NULL, 1, &desc, b.here, NULL, NULL),
                     WF_ERR_USAGE, "dopri5");
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samplers_agree),
        cmocka_unit_test(samplers_agree_along_principal_axes),
        cmocka_unit_test(guidance_agrees),
        cmocka_unit_test(wide_networks_are_matched_on_the_host),
        cmocka_unit_test(networks_do_not_depend_on_the_call),
        cmocka_unit_test(methods_have_their_order),
        cmocka_unit_test(bf16_stays_near),
        cmocka_unit_test(bf16_is_refused_where_it_cannot_apply),
    };
    return run_chosen(tests, make_folder, drop_folder);
}
