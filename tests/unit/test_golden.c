/* Files of version 0.1 (tests/golden/0.1): collections and flows open, flows sample the networks
 * that version 0.1 sampled, and training goes on from its checkpoints. Networks are compared up to
 * rounding, which differs between processors. */
#include "ctx_fixture.h"
#include "weft/file.h"
#include "run/recipe_schema.h"
#include "weft/flow.h"

#define GOLDEN "tests/golden/0.1/"

static void collections_open(void **state) {
    (void)state;
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, GOLDEN "run/zoo.safetensors", &zoo));
    assert_int_equal(wf_zoo_count(zoo), 12);
    assert_string_equal(wf_zoo_graph(zoo)->text, "2-5-3");
    assert_string_equal(wf_zoo_test(zoo, 0), "blobs");
    assert_non_null(strstr(wf_zoo_meta(zoo, "weft.recipe"), "epochs = 20\n"));
    assert_int_equal(wf_zoo_seeds(zoo)[11], 11);
    const float *scores = wf_zoo_scores(zoo, "blobs");
    float weights[33];
    wf_zoo_get(zoo, 3, weights);
    assert_close(scores[3], 16.0 / 18, 1e-6);
    assert_close(weights[0], -0.1141897514462471, 0); /* layers.0.weight[3][0][0] of the file */
    wf_zoo_free(zoo);
}

/* Networks of a flow as a file has them. */
static void samples_are(wf_flow *flow, const float *cond, const wf_sample_desc *desc,
                        const char *path) {
    wf_zoo *nets;
    float *expected;
    assert_ok(ctx, wf_zoo_open(ctx, path, &nets));
    size_t n = wf_zoo_count(nets), size = wf_zoo_graph(nets)->n_params;
    assert_ok(ctx, wf_zoo_load(ctx, nets, 0, n, &expected));
    float *found = calloc(n, size * sizeof *found);
    assert_non_null(found);
    assert_ok(ctx, wf_flow_sample(ctx, flow, wf_zoo_graph(nets), cond, n, desc, found, NULL, NULL));
    double difference = relative_difference(found, expected, n * size);
    if (!(difference < 1e-3)) fail_msg("%s: networks differ by %g", path, difference);
    free(found);
    free(expected);
    wf_zoo_free(nets);
}

static void lean_flow(void **state) {
    (void)state;
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open(ctx, GOLDEN "run/flow.safetensors", &flow));
    const wf_fit_desc *fit = wf_flow_trained_with(flow);
    assert_int_equal(wf_flow_updates(flow), 30);
    assert_int_equal(fit->optimizer, WF_OPT_MUON);
    assert_true(fit->cosine && fit->schedule_updates == 30 && fit->beta1 == 0.9 &&
                fit->ema == 0.999);
    wf_sample_desc desc = wf_sample_desc_default();
    samples_are(flow, NULL, &desc, GOLDEN "run/nets-direct.safetensors");
    desc.refine_cycles = 1;
    desc.refine_steps = 2;
    samples_are(flow, NULL, &desc, GOLDEN "run/nets.safetensors");
    wf_flow_free(flow);
}

static void lstar_flow(void **state) {
    (void)state;
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open(ctx, GOLDEN "lstar.safetensors", &flow));
    const wf_fit_desc *fit = wf_flow_trained_with(flow);
    const wf_field_desc *field = wf_flow_options(flow);
    assert_int_equal(field->layout, WF_LAYOUT_LSTAR);
    assert_int_equal(fit->optimizer, WF_OPT_ADAMW);
    assert_false(fit->cosine || fit->precondition);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_HEUN;
    desc.steps = 20;
    desc.seed = 5;
    samples_are(flow, NULL, &desc, GOLDEN "lstar.nets.safetensors");
    wf_flow_free(flow);
}

static void flow_of_tasks(void **state) {
    (void)state;
    wf_flow *flow;
    int other;
    assert_ok(ctx, wf_flow_open(ctx, GOLDEN "tasks.safetensors", &flow));
    assert_ok(ctx, wf_flow_find_task(ctx, flow, "other", &other));
    wf_flow_source source = wf_flow_source_at(flow, other);
    assert_int_equal(source.count, 4);
    assert_true(wf_flow_trained_with(flow)->principal && source.cond[0] == 1);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.guidance = 1.5;
    desc.seed = 5;
    samples_are(flow, source.cond, &desc, GOLDEN "tasks.nets.safetensors");
    wf_flow_free(flow);
}

/* The settings of run.conf: none of them reads as another than the file's. */
static void training_goes_on(void **state) {
    (void)state;
    char *bytes, path[256];
    size_t size;
    snprintf(path, sizeof path, "%s", in_folder("flow.safetensors"));
    assert_ok(ctx, wf_read_file(ctx, GOLDEN "run/flow.safetensors", 1 << 20, &bytes, &size));
    assert_ok(ctx, wf_write_file(ctx, path, bytes, size));
    free(bytes);
    wf_field_desc field = wf_field_desc_default();
    field.node = field.edge = field.time = 4;
    field.blocks = 1;
    wf_fit_desc fit = wf_fit_desc_default();
    fit.batch = 8;
    fit.updates = 35;
    fit.schedule_updates = 30;
    wf_source source = {0};
    wf_zoo *zoo;
    wf_flow *flow;
    assert_ok(ctx, wf_zoo_open(ctx, GOLDEN "run/zoo.safetensors", &zoo));
    source.zoo = zoo;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, &flow));
    assert_int_equal(wf_flow_updates(flow), 35);
    wf_flow_free(flow);
    fit.beta1 = 0.91;
    assert_fails(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, NULL), WF_ERR_USAGE,
                 "its fit.beta1 is 0.9, this run's is 0.91");
    wf_zoo_free(zoo);
}

static const wf_setting recipe_rows[] = {
#define SETTING(section, ...) WF_SETTING_ROW(wf_run_recipe, section, "", __VA_ARGS__)
#include "run/recipe.def"
    {0}};

/* A setting that version 0.1 did not have says what it did: else its flows could not be continued,
 * and stages of its runs were no longer finished. */
static void newer_settings_say_what_was_before(void **state) {
    (void)state;
    char *stages, name[128];
    size_t size;
    wf_flow *flow;
    assert_ok(ctx, wf_read_file(ctx, GOLDEN "run/stage.json", 1 << 20, &stages, &size));
    assert_ok(ctx, wf_flow_open(ctx, GOLDEN "run/flow.safetensors", &flow));
    const wf_setting *tables[] = {recipe_rows,         wf_data_settings(), wf_zoo_settings(),
                                  wf_field_settings(), wf_fit_settings(),  wf_sample_settings(),
                                  wf_eval_settings()};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const wf_setting *row = tables[t]; row->key != NULL; row++) {
            snprintf(name, sizeof name, "\"%s.%s\"", row->section, row->key);
            bool in_stage = row->stage == WF_STAGE_NONE || strstr(stages, name) != NULL;
            bool in_flow = row->in_file == WF_FILE_NONE || t < 3 || /* files of flows alone */
                           wf_flow_meta(flow, row->meta) != NULL;
            if (row->before == NULL && !(in_stage && in_flow))
                fail_msg("%s.%s is newer than version 0.1 and has no .before", row->section,
                         row->key);
        }
    wf_flow_free(flow);
    free(stages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collections_open), cmocka_unit_test(lean_flow),
        cmocka_unit_test(lstar_flow),       cmocka_unit_test(flow_of_tasks),
        cmocka_unit_test(training_goes_on), cmocka_unit_test(newer_settings_say_what_was_before),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
