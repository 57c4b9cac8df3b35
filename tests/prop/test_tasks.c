/* One flow for several tasks: two of one shape that want opposite answers, so that the condition
 * alone tells them apart, and one of another shape. Networks are asked for by task and scored on
 * its examples. */
#include "wf_test.h"
#include "flow_fixture.h"

#include "weft/eval.h"

enum { n_examples = 300, n_networks = 150, n_tasks = 3, sampled = 40 };

/* ahead, behind: which side of a line, and the same with the labels exchanged. range: low, middle
 * or high. */
static const char *const names[n_tasks] = {"ahead", "behind", "range"};
static const char *const archs[n_tasks] = {"2-4-2", "2-4-2", "1-4-3"};

typedef struct tasks {
    wf_ctx *ctx;
    wf_dataset *data[n_tasks];
    wf_zoo *zoos[n_tasks];
    float cond[n_tasks][n_tasks];
    wf_source sources[n_tasks];
    wf_flow *flow;
} tasks;

static int32_t label_of(int task, const float *x) {
    if (task == 2) return x[0] < -0.5f ? 0 : x[0] < 0.5f ? 1 : 2;
    return (x[0] + 0.5f * x[1] > 0.2f) != (task == 1);
}

static wf_dataset *make_data(int task) {
    int inputs = task == 2 ? 1 : 2;
    wf_dataset *data = calloc(1, sizeof *data);
    *data = (wf_dataset){.n_train = n_examples, .n_test = n_examples, .inputs = inputs};
    data->classes = task == 2 ? 3 : 2;
    snprintf(data->name, sizeof data->name, "%s", names[task]);
    float **x[2] = {&data->x_train, &data->x_test};
    int32_t **y[2] = {&data->y_train, &data->y_test};
    for (uint32_t part = 0; part < 2; part++) {
        *x[part] = calloc((size_t)n_examples * (size_t)inputs, sizeof(float));
        *y[part] = calloc(n_examples, sizeof(int32_t));
        wf_rng rng = wf_rng_at(31, (uint32_t)inputs, WF_RNG_TEST, part);
        wf_rng_normals(&rng, *x[part], (size_t)n_examples * (size_t)inputs);
        for (int i = 0; i < n_examples; i++) (*y[part])[i] = label_of(task, *x[part] + i * inputs);
    }
    return data;
}

static wf_zoo *make_task_zoo(wf_ctx *ctx, int task, const wf_dataset *data) {
    wf_graph *graph;
    wf_zoo *zoo;
    assert_ok(ctx, wf_graph_parse(ctx, archs[task], "relu", 0, &graph));
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = n_networks;
    desc.epochs = desc.epochs_max = 12;
    desc.batch = 32;
    desc.lr = desc.lr_max = 0.02;
    const char *path = in_folder(names[task]);
    assert_ok(ctx, wf_zoo_train(ctx, graph, data, &desc, path, NULL));
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    wf_graph_free(graph);
    return zoo;
}

static int open_tasks(void **state) {
    if (make_folder(state) != 0) return 1;
    tasks *t = calloc(1, sizeof *t);
    t->ctx = test_ctx();
    for (int k = 0; k < n_tasks; k++) {
        t->data[k] = make_data(k);
        t->zoos[k] = make_task_zoo(t->ctx, k, t->data[k]);
        t->cond[k][k] = 1;
        t->sources[k] = (wf_source){.zoo = t->zoos[k], .cond = t->cond[k], .task = names[k]};
    }
    wf_field_desc field = plain_field(n_tasks);
    field.node = field.edge = field.time = 32;
    field.blocks = 3;
    wf_fit_desc fit = quick_fit();
    fit.updates = 700;
    fit.batch = 32;
    fit.lr = 0.002;
    fit.ema = 0.99;
    fit.cond_drop = 0.1;
    assert_ok(t->ctx,
              wf_flow_fit(t->ctx, t->sources, n_tasks, &field, &fit, in_folder("tasks"), &t->flow));
    *state = t;
    return 0;
}

static int close_tasks(void **state) {
    tasks *t = *state;
    wf_flow_free(t->flow);
    for (int k = 0; k < n_tasks; k++) {
        wf_zoo_free(t->zoos[k]);
        wf_dataset *data = t->data[k];
        free(data->x_train);
        free(data->x_test);
        free(data->y_train);
        free(data->y_test);
        free(data);
    }
    wf_ctx_free(t->ctx);
    free(t);
    return drop_folder(state);
}

static wf_sample_desc quick_sample(void) {
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_HEUN;
    desc.steps = 25;
    return desc;
}

/* Mean accuracy on the examples of task `on` of networks sampled under `cond`. */
static double accuracy(tasks *t, const wf_graph *graph, const float *cond,
                       const wf_sample_desc *desc, int on) {
    float *w = calloc(sampled * graph->n_params, sizeof *w), scores[sampled];
    assert_ok(t->ctx, wf_flow_sample(t->ctx, t->flow, graph, cond, sampled, desc, w, NULL, NULL));
    assert_ok(t->ctx, wf_score_networks(t->ctx, graph, w, sampled, t->data[on], WF_SCORE_ACCURACY,
                                        scores, NULL));
    double sum = 0;
    for (int i = 0; i < sampled; i++) sum += scores[i];
    free(w);
    return sum / sampled;
}

static void check_above(const char *what, double value, double least) {
    if (!(value >= least)) fail_msg("%s: %.3f is below %.3f", what, value, least);
}

static void each_task_is_generated_on_demand(void **state) {
    tasks *t = *state;
    wf_sample_desc desc = quick_sample();
    static const double least[n_tasks] = {0.9, 0.9, 0.65}; /* chance: 0.5, 0.5, 0.38 */
    for (int k = 0; k < n_tasks; k++) {
        int index;
        assert_ok(t->ctx, wf_flow_find_task(t->ctx, t->flow, names[k], &index));
        wf_flow_source source = wf_flow_source_at(t->flow, index);
        assert_string_equal(source.graph->text, archs[k]);
        assert_string_equal(source.tests, names[k]);
        assert_int_equal(source.count, n_networks);
        assert_int_equal(strlen(source.data), 64);
        check_above(names[k], accuracy(t, source.graph, source.cond, &desc, k), least[k]);
        desc.refine_cycles = 2;
        check_above(names[k], accuracy(t, source.graph, source.cond, &desc, k), least[k]);
        desc.refine_cycles = 0;
        desc.guidance = 1.5;
        check_above(names[k], accuracy(t, source.graph, source.cond, &desc, k), least[k]);
        desc.guidance = 1;
    }
    /* One shape, one noise, another condition: the opposite answers. */
    double opposite = accuracy(t, wf_zoo_graph(t->zoos[0]), t->cond[1], &desc, 0);
    check_above("the condition decides", 1 - opposite, 0.9);
    int index;
    assert_fails(t->ctx, wf_flow_find_task(t->ctx, t->flow, "aheda", &index), WF_ERR_USAGE,
                 "it knows ahead, behind, range");
    assert_fails(t->ctx, wf_flow_find_task(t->ctx, t->flow, "", &index), WF_ERR_USAGE, "no task");
}

static void widths_never_seen(void **state) {
    tasks *t = *state;
    wf_sample_desc desc = quick_sample();
    static const double factors[] = {0.5, 1.5};
    static const char *const expected[] = {"2-2-2", "2-6-2"};
    for (int i = 0; i < 2; i++) {
        wf_graph *graph;
        assert_ok(t->ctx,
                  wf_graph_scale_width(t->ctx, wf_zoo_graph(t->zoos[0]), factors[i], &graph));
        assert_string_equal(graph->text, expected[i]);
        check_above(graph->text, accuracy(t, graph, t->cond[0], &desc, 0), 0.75);
        check_above(graph->text, accuracy(t, graph, t->cond[1], &desc, 1), 0.75);
        wf_graph_free(graph);
    }
}

/* Guidance 1 and 0 are the plain and the unconditional flow, bit for bit, with every solver and
 * in refinement; and the mixture of both velocities, which only other scales evaluate, tends to
 * them. */
static void guidance_has_its_ends(void **state) {
    tasks *t = *state;
    const wf_graph *graph = wf_zoo_graph(t->zoos[2]);
    size_t p = graph->n_params;
    float *w[6];
    for (int i = 0; i < 6; i++) w[i] = calloc(2 * p, sizeof(float));
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_DOPRI5; solver++) {
        wf_sample_desc desc = quick_sample(), plain;
        desc.solver = (wf_solver)solver;
        desc.steps = 6;
        desc.rtol = desc.atol = 1e-4;
        desc.refine_cycles = 1;
        plain = desc;
        assert_ok(t->ctx,
                  wf_flow_sample(t->ctx, t->flow, graph, t->cond[2], 2, &plain, w[0], NULL, NULL));
        assert_ok(t->ctx,
                  wf_flow_sample(t->ctx, t->flow, graph, NULL, 2, &plain, w[1], NULL, NULL));
        static const double scales[] = {1, 0, 1 + 1e-12, 1e-12};
        for (int i = 0; i < 4; i++) {
            desc.guidance = scales[i];
            assert_ok(t->ctx, wf_flow_sample(t->ctx, t->flow, graph, t->cond[2], 2, &desc, w[2 + i],
                                             NULL, NULL));
        }
        assert_memory_equal(w[0], w[2], 2 * p * sizeof(float));
        assert_memory_equal(w[1], w[3], 2 * p * sizeof(float));
        assert_true(relative_difference(w[0], w[1], 2 * p) > 0.01);
        double tolerance = solver == WF_SOLVER_DOPRI5 ? 5e-3 : 1e-4;
        assert_close(relative_difference(w[4], w[0], 2 * p), 0, tolerance);
        assert_close(relative_difference(w[5], w[1], 2 * p), 0, tolerance);
    }
    for (int i = 0; i < 6; i++) free(w[i]);
}

static void conditions_are_placed(void **state) {
    tasks *t = *state;
    static const struct {
        float cond[n_tasks];
        wf_cond_place place;
        int nearest;
    } cases[] = {
        {{1, 0, 0}, WF_COND_TRAINED, 0},           {{0, 0, 1}, WF_COND_TRAINED, 2},
        {{0.5f, 0.5f, 0}, WF_COND_BETWEEN, 0},     {{0.2f, 0.2f, 0.6f}, WF_COND_BETWEEN, 2},
        {{0.001f, 0.999f, 0}, WF_COND_BETWEEN, 1}, {{1, 1, 0}, WF_COND_BEYOND, 0},
        {{0, 1.5f, -0.5f}, WF_COND_BEYOND, 1},     {{0, 0, 0}, WF_COND_BEYOND, 0},
        {{0.3f, 0.3f, 0.3f}, WF_COND_BEYOND, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_cond_place place;
        assert_ok(t->ctx, wf_flow_place(t->ctx, t->flow, cases[i].cond, &place));
        assert_int_equal(place, cases[i].place);
        assert_int_equal(wf_flow_nearest(t->flow, cases[i].cond), cases[i].nearest);
    }
}

/* The paper's heterogeneous setting: Fourier features, tanh-GELU, no normalisation, plain AdamW.
 * Any depth samples. */
static void weights_as_they_are(void **state) {
    tasks *t = *state;
    wf_field_desc field = plain_field(n_tasks);
    field.layout = WF_LAYOUT_LSTAR;
    field.encoder = WF_ENCODER_FOURIER;
    field.activation = WF_FIELD_ACT_GELU;
    wf_fit_desc fit = wf_fit_desc_paper();
    fit.normalise = false;
    fit.cond_drop = 0.1;
    fit.updates = 20;
    fit.batch = 9;
    wf_flow *flow;
    assert_ok(t->ctx,
              wf_flow_fit(t->ctx, t->sources, n_tasks, &field, &fit, in_folder("paper"), &flow));
    assert_int_equal(flow->set.n_families, 2); /* two tasks share a shape */
    wf_graph *deep;
    assert_ok(t->ctx, wf_graph_parse(t->ctx, "1-4-4-3", "relu", 0, &deep));
    float w[128];
    wf_sample_desc desc = quick_sample();
    desc.guidance = 4;
    assert_ok(t->ctx, wf_flow_sample(t->ctx, flow, deep, t->cond[2], 2, &desc, w, NULL, NULL));
    for (size_t i = 0; i < 2 * deep->n_params; i++) assert_true(isfinite(w[i]));
    wf_graph_free(deep);
    wf_flow_free(flow);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_is_generated_on_demand),
        cmocka_unit_test(widths_never_seen),
        cmocka_unit_test(guidance_has_its_ends),
        cmocka_unit_test(conditions_are_placed),
        cmocka_unit_test(weights_as_they_are),
    };
    return cmocka_run_group_tests(tests, open_tasks, close_tasks);
}
