/* Generators that are fitted in phases: counts, resume in every phase, samples that do not
 * depend on batches and threads, and what they refuse. */
#include "phase_cases.h"
#include "base/io.h"
#include "generators/phase_fit.h"

/* --- counts ----------------------------------------------------------------------------------- */

static size_t params_of(wf_ctx *ctx, const small_case *small, const char *arch) {
    wf_graph *graph;
    size_t params;
    void *options = make_options(ctx, small);
    assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &graph));
    assert_ok(ctx, wf_generator_params(ctx, wf_generator_find(small->generator), options, graph, 0,
                                       &params));
    wf_graph_free(graph);
    free(options);
    return params;
}

static const char *const mnist = "784-32-32-10";
static const char *const cifar = "3x32x32 conv16 pool conv32 pool conv48 gap linear10";

static void counts_are_the_papers(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    assert_int_equal(params_of(ctx, &(small_case){.generator = "pdiff"}, mnist),
                     15396833 + 2545153);
    assert_int_equal(
        params_of(ctx, &(small_case){.generator = "pdiff", .settings = {{"latent", "768"}}}, cifar),
        32725537 + 3201537);
    /* SANE: the paper prints millions with one decimal, baselines.md's arithmetic has two. Position
     * tables have as many rows as there are units, layers and channels. */
    static const struct {
        const char *arch, *width, *blocks;
        size_t params;
        double millions;
    } sane[] = {
        {mnist, "104", "6", 2041873, 2.04},   {mnist, "160", "6", 4277533, 4.28},
        {mnist, "224", "6", 7938493, 7.94},   {mnist, "232", "6", 8479057, 8.48},
        {mnist, "320", "6", 15641773, 15.64}, {mnist, "328", "6", 16403521, 16.40},
        {cifar, "640", "8", 79657757, 79.66}, {cifar, "1024", "8", 202704797, 202.70},
    };
    for (size_t i = 0; i < sizeof sane / sizeof *sane; i++) {
        small_case c = {.generator = "sane-kde",
                        .settings = {{"width", sane[i].width}, {"blocks", sane[i].blocks}}};
        size_t params = params_of(ctx, &c, sane[i].arch);
        assert_close((double)params / 1e6, sane[i].millions, 0.0051);
        assert_int_equal(params, sane[i].params);
    }
    wf_ctx_free(ctx);
}

/* --- resume ----------------------------------------------------------------------------------- */

static void resumed_is_uninterrupted(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (int i = 0; i < n_small; i++) {
        const small_case *small = &cases[i];
        wf_fit_desc train = small_fit(small);
        char whole[256], parts[256];
        snprintf(whole, sizeof whole, "%s/%s-whole", folder, small->generator);
        snprintf(parts, sizeof parts, "%s/%s-parts", folder, small->generator);
        assert_ok(ctx, fit_small(ctx, small, &train, whole));
        int broken = 0; /* in each phase, if this machine is not too fast for it */
        if (small->first_updates > 0) broken += break_off(test_ctx(), small, &train, parts, 3);
        broken += break_off(test_ctx(), small, &train, parts, small->first_updates + 6);
        assert_true(broken >= 1);
        assert_ok(ctx, fit_small(ctx, small, &train, parts));
        assert_same_tensors(ctx, whole, parts);
        char *a = timeless_log(whole), *b = timeless_log(parts);
        assert_string_equal(a, b);
        assert_int_equal(count_of(a, "\"loss\":"), small->first_updates + small->updates);
        assert_true(count_of(a, "\"validation\":") >= 3);
        free(a);
        free(b);
        /* more updates than before: it goes on */
        train.updates += 2;
        assert_ok(ctx, fit_small(ctx, small, &train, parts));
        a = read_log(parts);
        assert_int_equal(count_of(a, "\"loss\":"), small->first_updates + small->updates + 2);
        free(a);
    }
    wf_ctx_free(ctx);
}

/* To set up large phases takes seconds, and nothing is there to save. */
static void a_stop_before_the_first_update_is_heard(void **state) {
    (void)state;
    wf_ctx *own = test_ctx();
    char path[256];
    snprintf(path, sizeof path, "%s/early", folder);
    wf_phase_fit fit = {.ctx = own, .path = path, .n_phases = 1, .log = -1};
    assert_ok(own, wf_phase_fit_open(&fit, NULL));
    wf_phase_fit_free(&fit);
    fit = (wf_phase_fit){.ctx = own, .path = path, .n_phases = 1, .log = -1};
    wf_interrupt(own);
    assert_int_equal(wf_phase_fit_open(&fit, NULL), WF_ERR_INTERRUPTED);
    assert_non_null(strstr(wf_last_error(own), "interrupted before an update was made"));
    wf_phase_fit_free(&fit);
    wf_ctx_free(own);
}

static double no_time(void *user) {
    (void)user;
    return 0;
}

static void stop_at_a_line(void *ctx, const char *path, const char *line) {
    (void)path, (void)line;
    wf_interrupt(ctx);
}

/* To write takes longer than is at stake: nothing is saved, and then the last checkpoint stands. */
static void a_stop_waits_for_what_saves_work(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    const small_case *small = &cases[0];
    wf_fit_desc train = small_fit(small);
    char whole[256], parts[256];
    snprintf(whole, sizeof whole, "%s/stop-whole", folder);
    snprintf(parts, sizeof parts, "%s/stop-parts", folder);
    assert_ok(ctx, fit_small(ctx, small, &train, whole));
    for (int piece = 0; piece < 3; piece++) {
        wf_ctx *own = test_ctx();
        wf_ctx_set_clock(own, no_time, NULL);
        wf_ctx_on_log(own, stop_at_a_line, own);
        wf_stop_seconds = piece == 1 ? 3600 : 0;
        wf_piece_bytes = 100;
        assert_fails(own, fit_small(own, small, &train, parts), WF_ERR_INTERRUPTED,
                     piece == 0   ? "no checkpoint yet"
                     : piece == 1 ? "the checkpoint is saved"
                                  : "the last checkpoint stands");
        assert_int_equal(access(parts, F_OK), piece == 0 ? -1 : 0);
        wf_ctx_free(own);
    }
    wf_stop_seconds = 1;
    wf_piece_bytes = 16 << 20;
    assert_ok(ctx, fit_small(ctx, small, &train, parts));
    assert_same_tensors(ctx, whole, parts);
    wf_ctx_free(ctx);
}

/* --- samples ---------------------------------------------------------------------------------- */

static void samples_have_addresses(void **state) {
    (void)state;
    enum { each = 3 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2, count = 5 };
    wf_ctx *ctx = test_ctx();
    for (int i = 0; i < n_small; i++) {
        wf_fit_desc train = small_fit(&cases[i]);
        char path[256];
        snprintf(path, sizeof path, "%s/%s-sampled", folder, cases[i].generator);
        assert_ok(ctx, fit_small(ctx, &cases[i], &train, path));
        float all[count * each], some[count * each];
        wf_sample_desc sample = wf_sample_desc_default();
        sample.seed = 5;
        sample_small(&(wf_ctx_desc){.threads = 2}, path, &sample, count, all);
        sample.first = 2, sample.batch = 1;
        sample_small(&(wf_ctx_desc){.threads = 1}, path, &sample, 3, some);
        assert_memory_equal(all + 2 * each, some, 3 * each * sizeof(float));
        assert_memory_not_equal(all, all + each, each * sizeof(float));
        for (int k = 0; k < count * each; k++) assert_true(isfinite(all[k]));
    }
    wf_ctx_free(ctx);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void bad_fits_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    for (int i = 0; i < n_small; i++) {
        const small_case *small = &cases[i];
        const wf_generator_kind *kind = wf_generator_find(small->generator);
        wf_fit_desc train = small_fit(small);
        char path[256];
        snprintf(path, sizeof path, "%s/%s-refused", folder, small->generator);
        train.coupling = WF_COUPLING_INDEPENDENT;
        assert_fails(ctx, fit_small(ctx, small, &train, path), WF_ERR_USAGE, "does not read it");
        static const char *const others[] = {"patience", "fresh_pool", "noise_table"};
        for (int k = 0; k < 3; k++) {
            train = small_fit(small);
            assert_ok(ctx, wf_settings_set(ctx, wf_fit_settings(), others[k], "3", &train));
            assert_fails(ctx, fit_small(ctx, small, &train, path), WF_ERR_USAGE, others[k]);
        }
        wf_zoo *a = open_networks(ctx, kind), *b = make_zoo(ctx, "3-6-4-2", 5, 2);
        wf_source sources[] = {{.zoo = a}, {.zoo = b}};
        wf_generator_fit_desc desc = {.sources = sources, .n_sources = 2, .path = path};
        assert_fails(ctx, wf_generator_fit(ctx, kind, &desc), WF_ERR_SHAPE, "one architecture");
        assert_false(wf_file_exists(path));
        wf_zoo_free(a);
        wf_zoo_free(b);
        /* a file of another configuration */
        train = small_fit(small);
        assert_ok(ctx, fit_small(ctx, small, &train, path));
        train.batch = 5;
        assert_fails(ctx, fit_small(ctx, small, &train, path), WF_ERR_USAGE, "fit.batch");
        /* no refinement */
        wf_generator *generator;
        wf_sample_desc sample = wf_sample_desc_default();
        sample.refine_cycles = 1;
        float weights[64];
        assert_ok(ctx, wf_generator_open(ctx, &(wf_generator_open_desc){.path = path}, &generator));
        wf_generator_request request = {
            .graph = wf_generator_graph(generator), .n = 1, .sample = &sample, .weights = weights};
        assert_fails(ctx, wf_generator_sample(ctx, generator, &request), WF_ERR_USAGE,
                     "no refinement");
        wf_generator_free(generator);
    }
    wf_ctx_free(ctx);
}

/* A fit that broke off before its last phase has nothing to sample from. */
static void half_a_fit_is_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_fit_desc train = small_fit(&cases[0]);
    char path[256];
    snprintf(path, sizeof path, "%s/half", folder);
    if (!break_off(test_ctx(), &cases[0], &train, path, 2))
        skip("the fit was over before it was interrupted");
    wf_generator *generator;
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, path, &file));
    bool first = strcmp(wf_st_meta(file, "phase"), "0") == 0;
    wf_st_close(file);
    if (first)
        assert_fails(ctx,
                     wf_generator_open(ctx, &(wf_generator_open_desc){.path = path}, &generator),
                     WF_ERR_INPUT, "broke off in the phase vae");
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_the_papers),
        cmocka_unit_test(resumed_is_uninterrupted),
        cmocka_unit_test(a_stop_before_the_first_update_is_heard),
        cmocka_unit_test(a_stop_waits_for_what_saves_work),
        cmocka_unit_test(samples_have_addresses),
        cmocka_unit_test(bad_fits_are_refused),
        cmocka_unit_test(half_a_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
