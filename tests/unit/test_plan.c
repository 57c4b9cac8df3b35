/* The planner: what it chooses for collections and times, and its plan as JSON and as a recipe. */
#include "ctx_fixture.h"

#include "weft/weft.h"

static int reports, warnings;
static char warned[512];

static void hear(void *user, const wf_progress *progress) {
    (void)user;
    (void)progress;
    reports++;
}

static void hear_warning(void *user, const char *sentence) {
    (void)user;
    snprintf(warned, sizeof warned, "%s", sentence);
    warnings++;
}

static wf_zoo *zoo_of(const char *arch, size_t count) {
    wf_graph *graph;
    wf_zoo *zoo;
    assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &graph));
    size_t n = wf_graph_params(graph);
    float *weights = malloc(count * n * sizeof *weights);
    for (uint32_t k = 0; k < count; k++) wf_zoo_init(graph, 3, k, weights + k * n);
    assert_ok(ctx, wf_zoo_from_memory(ctx, "mine", graph, weights, count, true, &zoo));
    free(weights);
    wf_graph_free(graph);
    return zoo;
}

/* A hundred days: the largest field that the number of networks allows, and no more updates than
 * are of use. */
static void test_much_time(void **state) {
    (void)state;
    wf_plan plan;
    wf_zoo *zoo = zoo_of("2-3-2", 120);
    wf_ctx_on_progress(ctx, hear, NULL);
    wf_ctx_on_warning(ctx, hear_warning, NULL);
    reports = warnings = 0;
    assert_ok(ctx, wf_plan_fit(ctx, zoo, 1e5, &plan));
    assert_int_equal(reports, 0); /* the measurement is the planner's own business */
    assert_int_equal(warnings, 0);
    assert_int_equal(plan.field.node, 32);
    assert_int_equal(plan.field.blocks, 4);
    assert_false(plan.field.fold);
    assert_int_equal(plan.fit.set_aside, 12);
    assert_int_equal(plan.networks, 108);
    assert_int_equal(plan.fit.kept, WF_KEPT_VALIDATION);
    assert_true(plan.fit.updates == 20000 && plan.fit.batch > 16 && plan.fit.batch <= 108);
    assert_true(plan.update_seconds > 0);
    assert_true(plan.seconds >= plan.update_seconds * (double)plan.fit.updates);
    assert_false(plan.few_networks || plan.short_time);
    size_t params;
    assert_ok(ctx, wf_generator_params(ctx, wf_generator_find("gmn"), &plan.field,
                                       wf_zoo_graph(zoo), 0, &params));
    assert_int_equal(params, plan.field_params);
    wf_zoo_free(zoo);
}

/* A moment: the smallest field, with warnings. A first layer of long rows is folded. */
static void test_little_time(void **state) {
    (void)state;
    wf_plan plan;
    wf_zoo *zoo = zoo_of("300-4-2", 12);
    reports = warnings = 0;
    assert_ok(ctx, wf_plan_fit(ctx, zoo, 1e-3, &plan));
    assert_int_equal(plan.field.node, 16);
    assert_int_equal(plan.field.blocks, 2);
    assert_true(plan.field.fold);
    assert_int_equal(plan.fit.set_aside, 0);
    assert_int_equal(plan.fit.kept, WF_KEPT_EMA);
    assert_true(plan.short_time && plan.few_networks);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warned, "as minutes = "));
    assert_fails(ctx, wf_plan_fit(ctx, zoo, -1, &plan), WF_ERR_USAGE, "-1 minutes");
    assert_fails(ctx, wf_plan_fit(ctx, zoo, NAN, &plan), WF_ERR_USAGE, "minutes");
    wf_interrupt(ctx);
    assert_fails(ctx, wf_plan_fit(ctx, zoo, 1, &plan), WF_ERR_INTERRUPTED,
                 "interrupted while the plan was made"); /* and no word of a checkpoint */
    wf_interrupt_clear(ctx);
    wf_zoo_free(zoo);
}

/* Whatever the time and the machine: too few updates come with a warning. The smallest field needs
 * more of them. */
static void test_enough_updates(void **state) {
    (void)state;
    static const double minutes[] = {0.01, 0.05, 0.2, 0.5};
    wf_zoo *zoo = zoo_of("8-8-4", 120);
    for (size_t i = 0; i < sizeof minutes / sizeof *minutes; i++) {
        wf_plan plan;
        warnings = 0;
        assert_ok(ctx, wf_plan_fit(ctx, zoo, minutes[i], &plan));
        size_t needed = plan.field.node == 16 ? 3200 : 800;
        assert_true(plan.short_time == (plan.fit.updates < needed));
        assert_int_equal(warnings, plan.short_time);
    }
    wf_zoo_free(zoo);
}

/* The plan as JSON is what fits take; as a recipe it reads back to the same settings. */
static void test_texts(void **state) {
    (void)state;
    wf_plan plan;
    char *json, *text;
    wf_zoo *zoo = zoo_of("2-3-2", 40);
    const wf_zoo *zoos[] = {zoo};
    assert_ok(ctx, wf_plan_json(ctx, zoo, 1e-3, &json));
    const char *model = strstr(json, "\"model\": {"), *sample = strstr(json, "\"sample\": {");
    assert_non_null(strstr(json, "\"short_time\": true"));
    assert_true(model != NULL && sample > model);
    char options[4096]; /* model and train, as they stand there */
    snprintf(options, sizeof options, "{%.*s}", (int)(sample - model - 2), model);
    const char *path = in_folder("planned.safetensors");
    assert_ok(ctx, wf_generator_fit_json(ctx, "gmn", zoos, NULL, 1, options, path));
    wf_free(json);

    assert_ok(ctx, wf_plan_fit(ctx, zoo, 1e-3, &plan));
    plan.fit.updates = 123, plan.fit.seed = 7;
    assert_ok(ctx,
              wf_plan_recipe(ctx, &plan, "a folder/zoo #1.safetensors", "name = moons\n", &text));
    wf_recipe *recipe;
    assert_ok(ctx, wf_recipe_parse(ctx, "plan", text, strlen(text), &recipe));
    wf_field_desc field = wf_field_desc_default();
    wf_fit_desc fit = wf_fit_desc_default();
    wf_sample_desc draws = wf_sample_desc_default();
    wf_data_desc data = wf_data_desc_default();
    const char *zoo_path = NULL;
    assert_ok(ctx, wf_recipe_string(ctx, recipe, "zoo", "path", &zoo_path));
    assert_string_equal(zoo_path, "a folder/zoo #1.safetensors");
    assert_ok(ctx, wf_recipe_settings(ctx, recipe, wf_field_settings(), &field));
    assert_ok(ctx, wf_recipe_settings(ctx, recipe, wf_fit_settings(), &fit));
    assert_ok(ctx, wf_recipe_settings(ctx, recipe, wf_sample_settings(), &draws));
    assert_ok(ctx, wf_recipe_settings(ctx, recipe, wf_data_settings(), &data));
    assert_ok(ctx, wf_recipe_finish(ctx, recipe));
    for (const wf_setting *row = wf_field_settings(); row->key != NULL; row++)
        assert_true(wf_setting_equal(row, &field, &plan.field));
    for (const wf_setting *row = wf_fit_settings(); row->key != NULL; row++)
        assert_true(wf_setting_equal(row, &fit, &plan.fit));
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++)
        assert_true(wf_setting_equal(row, &draws, &plan.sample));
    assert_string_equal(data.name, "moons");
    wf_recipe_free(recipe);
    wf_free(text);
    wf_zoo_free(zoo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_much_time),
        cmocka_unit_test(test_little_time),
        cmocka_unit_test(test_enough_updates),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
