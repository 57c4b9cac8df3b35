/* phase_cases: generators that are fitted in phases, at toy size, and fits of them. */
#ifndef WF_TESTS_PHASE_CASES_H
#define WF_TESTS_PHASE_CASES_H

#include "flow_fixture.h"
#include "base/safetensors.h"
#include "weft/generator.h"

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

static inline void *make_options(wf_ctx *ctx, const small_case *small) {
    const wf_generator_kind *kind = wf_generator_find(small->generator);
    void *options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    for (int i = 0; i < 6 && small->settings[i][0] != NULL; i++)
        assert_ok(ctx, wf_settings_set(ctx, kind->settings(), small->settings[i][0],
                                       small->settings[i][1], options));
    return options;
}

static inline wf_fit_desc small_fit(const small_case *small) {
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
static inline wf_zoo *open_networks(wf_ctx *ctx, const wf_generator_kind *kind) {
    wf_zoo *zoo = make_zoo(ctx, "3-5-4-2", 11, 1);
    if ((kind->traits & WF_GENERATOR_WANTS_ALIGNED) == 0) return zoo;
    const char *path = in_folder("aligned.safetensors");
    assert_ok(ctx, wf_align_zoo(ctx, zoo, 0, NULL, path));
    wf_zoo_free(zoo);
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    return zoo;
}

static inline wf_status fit_small(wf_ctx *ctx, const small_case *small, const wf_fit_desc *train,
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

static inline char *read_log(const char *path) {
    char name[300], *text = calloc(1, 1 << 20);
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    FILE *file = fopen(name, "r");
    if (file != NULL) {
        text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

static inline size_t count_of(const char *text, const char *what) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

/* Interrupts a fit behind so many more lines of its log. */
typedef struct interrupter {
    wf_ctx *ctx;
    size_t lines;
} interrupter;

static inline void count_line(void *arg, const char *path, const char *line) {
    interrupter *i = arg;
    (void)path, (void)line;
    if (--i->lines == 0) wf_interrupt(i->ctx);
}

/* Breaks a fit off once its log has so many lines; false: it was over before. Frees the context. */
static inline bool break_off(wf_ctx *ctx, const small_case *small, const wf_fit_desc *train,
                             const char *path, size_t lines) {
    char *log = read_log(path);
    size_t there = count_of(log, "\n");
    free(log);
    interrupter i = {ctx, lines > there ? lines - there : 1};
    wf_ctx_on_log(ctx, count_line, &i);
    wf_status status = fit_small(ctx, small, train, path);
    if (status != WF_OK && status != WF_ERR_INTERRUPTED) fail_msg("%s", wf_last_error(ctx));
    wf_ctx_free(ctx);
    return status == WF_ERR_INTERRUPTED;
}

static inline void assert_same_tensors(wf_ctx *ctx, const char *a, const char *b) {
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
static inline char *timeless_log(const char *path) {
    char *log = read_log(path);
    for (char *at = log; (at = strstr(at, ",\"seconds\":")) != NULL;) {
        char *end = strchr(at, '}');
        memmove(at, end, strlen(end) + 1);
    }
    return log;
}

/* desc: of the context and of the samples. */
static inline void sample_small(const wf_ctx_desc *device, const char *path,
                                const wf_sample_desc *desc, size_t n, float *out) {
    wf_ctx *ctx;
    wf_generator *generator;
    assert_int_equal(wf_ctx_create(device, &ctx), WF_OK);
    assert_ok(ctx, wf_generator_open(ctx, &(wf_generator_open_desc){.path = path}, &generator));
    wf_generator_request request = {
        .graph = wf_generator_graph(generator), .n = n, .sample = desc, .weights = out};
    assert_ok(ctx, wf_generator_sample(ctx, generator, &request));
    wf_generator_free(generator);
    wf_ctx_free(ctx);
}

#endif
