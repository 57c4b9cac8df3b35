/* Generators that are fitted in phases: counts, resume in every phase, samples that do not
 * depend on batches and threads, and what they refuse. */
#include "flow_fixture.h"
#include "base/safetensors.h"
#include "generators/phase_fit.h"
#include "weft/generator.h"

#include <pthread.h>

/* A generator at toy size. */
typedef struct small_case {
    const char *generator;
    const char *settings[6][2];
    size_t updates, first_updates; /* of the last phase; of those before */
} small_case;

static const small_case cases[] = {
    {"pdiff",
     {{"latent", "6"},
      {"channels", "4"},
      {"time", "4"},
      {"vae_updates", "12"},
      {"vae_lr", "0.01"},
      {"diffusion_steps", "25"}},
     14,
     12},
    {"sane-kde",
     {{"width", "12"}, {"heads", "3"}, {"blocks", "2"}, {"latent", "5"}, {"token", "3"}},
     15,
     0},
    {"sane-gauss", {{"width", "8"}, {"heads", "2"}, {"blocks", "1"}, {"latent", "4"}}, 9, 0},
};
enum { n_small = sizeof cases / sizeof *cases };

static void *make_options(wf_ctx *ctx, const small_case *small) {
    const wf_generator_kind *kind = wf_generator_find(small->generator);
    void *options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    for (int i = 0; i < 6 && small->settings[i][0] != NULL; i++)
        assert_ok(ctx, wf_settings_set(ctx, kind->settings(), small->settings[i][0],
                                       small->settings[i][1], options));
    return options;
}

static wf_fit_desc small_fit(const small_case *small) {
    wf_fit_desc fit = wf_fit_desc_default();
    fit.optimizer = WF_OPT_ADAMW;
    fit.updates = fit.schedule_updates = small->updates;
    fit.batch = 4;
    fit.log_every = 1;
    fit.lr = 0.01;
    fit.save_seconds = 1e9;
    fit.set_aside = 3;
    fit.validations = 3;
    return fit;
}

/* A collection of 11 networks, as weft align leaves one where that is wanted. */
static wf_zoo *open_networks(wf_ctx *ctx, const wf_generator_kind *kind) {
    wf_zoo *zoo = make_zoo(ctx, "3-5-4-2", 11, 1);
    if ((kind->traits & WF_GENERATOR_WANTS_ALIGNED) == 0) return zoo;
    const char *path = in_folder("aligned.safetensors");
    assert_ok(ctx, wf_align_zoo(ctx, zoo, 0, NULL, path));
    wf_zoo_free(zoo);
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    return zoo;
}

static wf_status fit_small(wf_ctx *ctx, const small_case *small, const wf_fit_desc *train,
                           const char *path) {
    const wf_generator_kind *kind = wf_generator_find(small->generator);
    wf_zoo *zoo = open_networks(ctx, kind);
    wf_source source = {.zoo = zoo};
    void *options = make_options(ctx, small);
    wf_status status = wf_generator_fit(
        ctx, kind,
        &(wf_generator_fit_desc){
            .sources = &source, .n_sources = 1, .options = options, .train = train, .path = path});
    free(options);
    wf_zoo_free(zoo);
    return status;
}

static char *read_log(const char *path) {
    char name[300], *text = calloc(1, 1 << 20);
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    FILE *file = fopen(name, "r");
    if (file != NULL) {
        text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

static size_t count_of(const char *text, const char *what) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

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

/* Interrupts a fit once its log has so many lines. */
typedef struct interrupter {
    wf_ctx *ctx;
    const char *path;
    size_t lines;
} interrupter;

static void *interrupt_later(void *arg) {
    const interrupter *i = arg;
    for (int tries = 0; tries < 20000; tries++) {
        char *log = read_log(i->path);
        bool enough = count_of(log, "\n") >= i->lines;
        free(log);
        if (enough) break;
        usleep(500);
    }
    wf_interrupt(i->ctx);
    return NULL;
}

/* Breaks a fit off behind so many lines of its log; false: it was faster. */
static bool break_off(const small_case *small, const wf_fit_desc *train, const char *path,
                      size_t lines) {
    wf_ctx *ctx = test_ctx();
    interrupter i = {ctx, path, lines};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, interrupt_later, &i), 0);
    wf_status status = fit_small(ctx, small, train, path);
    pthread_join(thread, NULL);
    if (status != WF_OK && status != WF_ERR_INTERRUPTED) fail_msg("%s", wf_last_error(ctx));
    wf_ctx_free(ctx);
    return status == WF_ERR_INTERRUPTED;
}

static void assert_same_tensors(wf_ctx *ctx, const char *a, const char *b) {
    wf_st_file *x, *y;
    assert_ok(ctx, wf_st_open(ctx, a, &x));
    assert_ok(ctx, wf_st_open(ctx, b, &y));
    assert_int_equal(wf_st_count(x), wf_st_count(y));
    for (size_t i = 0; i < wf_st_count(x); i++) {
        const wf_st_tensor *t = wf_st_at(x, i), *u = wf_st_find(y, t->name);
        if (u == NULL || u->bytes != t->bytes || memcmp(u->data, t->data, t->bytes) != 0)
            fail_msg("tensor %s differs", t->name);
    }
    wf_st_close(x);
    wf_st_close(y);
}

/* Lines without their seconds. */
static char *timeless_log(const char *path) {
    char *log = read_log(path);
    for (char *at = log; (at = strstr(at, ",\"seconds\":")) != NULL;) {
        char *end = strchr(at, '}');
        memmove(at, end, strlen(end) + 1);
    }
    return log;
}

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
        if (small->first_updates > 0) broken += break_off(small, &train, parts, 3);
        broken += break_off(small, &train, parts, small->first_updates + 6);
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

/* --- samples ---------------------------------------------------------------------------------- */

static void sample_small(const char *path, int threads, size_t first, size_t n, size_t batch,
                         float *out) {
    wf_ctx *ctx;
    wf_generator *generator;
    assert_int_equal(wf_ctx_create(&(wf_ctx_desc){.threads = threads}, &ctx), WF_OK);
    assert_ok(ctx, wf_generator_open(ctx, &(wf_generator_open_desc){.path = path}, &generator));
    wf_sample_desc desc = wf_sample_desc_default();
    desc.first = first, desc.batch = batch, desc.seed = 5;
    wf_generator_request request = {
        .graph = wf_generator_graph(generator), .n = n, .sample = &desc, .weights = out};
    assert_ok(ctx, wf_generator_sample(ctx, generator, &request));
    wf_generator_free(generator);
    wf_ctx_free(ctx);
}

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
        sample_small(path, 2, 0, count, 0, all);
        sample_small(path, 1, 2, 3, 1, some);
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
    if (!break_off(&cases[0], &train, path, 2)) skip("the fit was over before it was interrupted");
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
        cmocka_unit_test(counts_are_the_papers),  cmocka_unit_test(resumed_is_uninterrupted),
        cmocka_unit_test(samples_have_addresses), cmocka_unit_test(bad_fits_are_refused),
        cmocka_unit_test(half_a_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
