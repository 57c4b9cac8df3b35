/* A recipe run by the library: results, lines, overrides, what is refused, interruption. */
#include "ctx_fixture.h"

#include "weft/weft.h"

static const char recipe[] = "[data]\nname = moons\nrows = 120\n"
                             "[zoo]\narch = 2-3-2\ncount = 12\nheld_out = 4\nepochs = 2\n"
                             "[model]\nnode = 8\nedge = 8\ntime = 8\nblocks = 1\n"
                             "[train]\nupdates = 6\nbatch = 4\n"
                             "[sample]\ncount = 4\nsolver = euler\nsteps = 2\n"
                             "[eval]\nsubsets = 3\n";

static char lines[4096];

static void hear(void *user, const char *line) {
    assert_ptr_equal(user, lines);
    size_t length = strlen(lines);
    snprintf(lines + length, sizeof lines - length, "%s\n", line);
}

static void test_run(void **state) {
    (void)state;
    char *result, path[300];
    wf_run_desc desc = {.folder = in_folder("run"), .say = hear, .user = lines};
    lines[0] = '\0';
    assert_ok(ctx, wf_run(ctx, "small", recipe, &desc, &result));
    assert_non_null(strstr(lines, "training: "));
    assert_non_null(strstr(result, "\"name\": \"small\""));
    assert_non_null(strstr(result, "\"rows\": ["));
    assert_non_null(strstr(result, "/run/report.html\""));
    wf_free(result);
    snprintf(path, sizeof path, "%s/eval.json", desc.folder);
    assert_true(wf_file_exists(path));
    wf_zoo *nets;
    snprintf(path, sizeof path, "%s/nets.safetensors", desc.folder);
    assert_ok(ctx, wf_zoo_open(ctx, path, &nets));
    assert_int_equal(wf_zoo_count(nets), 4);
    wf_zoo_free(nets);

    /* Again: all is there. */
    lines[0] = '\0';
    assert_ok(ctx, wf_run(ctx, "small", recipe, &desc, NULL));
    assert_non_null(strstr(lines, "evaluation: done before"));

    /* Other settings are refused, then asked for. */
    const char *other[] = {"train.updates=7"};
    desc.overrides = other;
    desc.n_overrides = 1;
    assert_fails(ctx, wf_run(ctx, "small", recipe, &desc, &result), WF_ERR_USAGE,
                 "train.updates was 6, now 7");
    assert_null(result);
    desc.redo = true;
    assert_ok(ctx, wf_run(ctx, "small", recipe, &desc, NULL));

    snprintf(path, sizeof path, "%s/again.html", desc.folder);
    assert_ok(ctx, wf_run_report(ctx, desc.folder, path));
    assert_true(wf_file_exists(path));
    assert_fails(ctx, wf_run_report(ctx, "/nowhere", NULL), WF_ERR_INPUT, "no folder of weft run");
}

static void test_run_json(void **state) {
    (void)state;
    char *result, options[512];
    snprintf(options, sizeof options,
             "{\"folder\": \"%s\", \"set\": {\"train.updates\": 3, \"sample.count\": \"2\"}, "
             "\"seed\": 5}",
             in_folder("by_json"));
    assert_ok(ctx, wf_run_json(ctx, NULL, recipe, options, NULL, NULL, &result));
    assert_non_null(strstr(result, "\"folder\": \""));
    wf_free(result);
    wf_recipe *made;
    wf_fit_desc fit = wf_fit_desc_default();
    assert_ok(ctx, wf_recipe_open(ctx, in_folder("by_json/recipe.conf"), &made));
    assert_ok(ctx, wf_recipe_settings(ctx, made, wf_fit_settings(), &fit));
    assert_true(fit.updates == 3 && fit.seed == 5);
    wf_recipe_free(made);
    static const char *const bad[][2] = {
        {"{\"folders\": 1}", "did you mean \"folder\""},
        {"{\"set\": [1]}", "section.key"},
        {"{\"set\": {\"train.updates\": []}}", "set.train.updates"},
        {"{\"set\": {\"train.updaets\": 3}}", "updates"},
        {"{\"seed\": \"x\"}", "seed is \"x\""},
        {"{\"seed\": \"\"}", "seed is \"\""},
        {"{\"seed\": -1}", "seed is \"-1\""},
        {"{\"seed\": \"99999999999999999999\"}", "seed is \"99999999999999999999\""},
        {"{\"seed\": 1.5}", "seed: a whole number"},
        {"{\"folder\": 5}", "folder: a text"},
        {"{\"redo\": \"yes\"}", "redo: true or false"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ctx, wf_run_json(ctx, NULL, recipe, bad[i][0], NULL, NULL, &result),
                     WF_ERR_USAGE, bad[i][1]);
    assert_fails(ctx, wf_run(ctx, NULL, NULL, NULL, NULL), WF_ERR_USAGE, "which recipe");
    assert_fails(ctx, wf_run(ctx, "no such recipe", NULL, NULL, NULL), WF_ERR_INPUT,
                 "no recipe of that name");
    wf_run_desc desc = {.seed = "x"};
    assert_fails(ctx, wf_run(ctx, NULL, recipe, &desc, NULL), WF_ERR_USAGE, "seed is \"x\"");
}

/* Stopped before the work, it says that the same call goes on; then it does. */
static void test_interrupted(void **state) {
    (void)state;
    wf_run_desc desc = {.folder = in_folder("stopped")};
    wf_interrupt(ctx);
    assert_fails(ctx, wf_run(ctx, NULL, recipe, &desc, NULL), WF_ERR_INTERRUPTED, "");
    wf_interrupt_clear(ctx);
    assert_ok(ctx, wf_run(ctx, NULL, recipe, &desc, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_json),
        cmocka_unit_test(test_interrupted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
