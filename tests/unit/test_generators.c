/* The registry, generators by name, and a generator of our own in the tables of the program. */
#include "folder_fixture.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "cli/cli.h"
#include "toy_generator.h"

#include <fcntl.h>
#include <jansson.h>

/* --- a generator with a fit: its file is the mean of the collection --------------------------- */

static wf_status mean_fit(wf_ctx *ctx, const wf_generator_kind *kind,
                          const wf_generator_fit_desc *desc) {
    const wf_zoo *zoo = desc->sources[0].zoo;
    size_t p = wf_zoo_graph(zoo)->n_params, count = wf_zoo_count(zoo);
    float *all, *mean = calloc(p, sizeof *mean);
    WF_TRY(wf_zoo_load(ctx, zoo, 0, count, &all));
    for (size_t k = 0; k < count * p; k++) mean[k % p] += all[k] / (float)count;
    wf_st_tensor tensor = {.name = "mean",
                           .dtype = WF_ST_F32,
                           .rank = 1,
                           .shape = {p},
                           .count = p,
                           .bytes = p * sizeof *mean,
                           .data = mean};
    const char *const meta[][2] = {{"weft.generator", kind->name},
                                   {"arch", wf_zoo_graph(zoo)->text}};
    wf_status status = wf_st_write(ctx, desc->path, &tensor, 1, meta, 2);
    free(all);
    free(mean);
    return status;
}

typedef struct mean_state {
    wf_st_file *file;
    wf_graph *graph;
} mean_state;

static wf_status mean_open(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_open_desc *desc, void **self) {
    (void)kind;
    mean_state *m = calloc(1, sizeof *m);
    WF_TRY(wf_st_open(ctx, desc->path, &m->file));
    WF_TRY(wf_graph_parse(ctx, wf_st_meta(m->file, "arch"), "relu", 0, &m->graph));
    *self = m;
    return WF_OK;
}

static void mean_free(void *self) {
    mean_state *m = self;
    wf_st_close(m->file);
    wf_graph_free(m->graph);
    free(m);
}

static const wf_graph *mean_graph(const void *self) { return ((const mean_state *)self)->graph; }

static wf_status mean_sample(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    const wf_st_tensor *mean = wf_st_find(((const mean_state *)self)->file, "mean");
    (void)ctx;
    for (size_t k = 0; k < request->n; k++)
        memcpy(request->weights + k * mean->count, mean->data, mean->bytes);
    return WF_OK;
}

static wf_generator_kind mean_kind(const char *name, unsigned traits) {
    return (wf_generator_kind){.name = name,
                               .about = "the mean of the collection",
                               .traits = traits,
                               .fit = mean_fit,
                               .open = mean_open,
                               .sample = mean_sample,
                               .free = mean_free,
                               .graph = mean_graph};
}

/* --- the registry ----------------------------------------------------------------------------- */

static void kinds_are_found(void **state) {
    (void)state;
    assert_true(wf_generator_count() > 5);
    assert_null(wf_generator_at(wf_generator_count()));
    assert_null(wf_generator_at(-1));
    assert_null(wf_generator_find("nobody"));
    for (int i = 0; i < wf_generator_count(); i++) {
        const wf_generator_kind *kind = wf_generator_at(i);
        assert_ptr_equal(wf_generator_find(kind->name), kind);
        assert_true(kind->about != NULL && kind->open != NULL && kind->sample != NULL);
        assert_true(kind->settings == NULL || kind->options_size > 0);
    }
    assert_true((wf_generator_find(WF_GENERATOR_DEFAULT)->traits & WF_GENERATOR_EQUIVARIANT) != 0);
    assert_true((wf_generator_find("dwf")->traits & WF_GENERATOR_WANTS_ALIGNED) == 0);
    assert_true((wf_generator_find("dwf-aligned")->traits & WF_GENERATOR_WANTS_ALIGNED) != 0);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    static const char *const names[] = {"", "Upper", "a b", "-a", "a-", "a--b", "noise-0.1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        wf_generator_kind kind = mean_kind(names[i], 0);
        assert_fails(ctx, wf_generator_register(ctx, &kind), WF_ERR_USAGE, "cannot name");
    }
    wf_generator_kind taken = mean_kind("random", 0), empty = {.name = "empty", .about = "none"};
    assert_fails(ctx, wf_generator_register(ctx, &taken), WF_ERR_USAGE, "already");
    assert_fails(ctx, wf_generator_register(ctx, &empty), WF_ERR_USAGE, "lacks");
    wf_ctx_free(ctx);
}

static void names_have_parameters(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    const wf_generator_kind *kind;
    void *options;
    assert_ok(ctx, wf_generator_named(ctx, "perturbation-0.25", &kind, &options));
    assert_string_equal(kind->name, "perturbation");
    char buffer[WF_SETTING_BUFFER];
    assert_string_equal(wf_setting_text(kind->settings(), options, buffer), "0.25");
    free(options);
    assert_ok(ctx, wf_generator_named(ctx, "average-matched", &kind, &options));
    assert_null(options);
    assert_fails(ctx, wf_generator_named(ctx, "perturbation--1", &kind, &options), WF_ERR_USAGE,
                 "sigma");
    assert_fails(ctx, wf_generator_named(ctx, "random-1", &kind, &options), WF_ERR_USAGE,
                 "perturbation-sigma");
    assert_fails(ctx, wf_generator_named(ctx, "nobody", &kind, &options), WF_ERR_USAGE, "toy");
    wf_ctx_free(ctx);
}

/* --- fit, open, sample ------------------------------------------------------------------------ */

static wf_zoo *make_zoo(wf_ctx *ctx, const char *arch, size_t count) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &graph));
    float *weights = calloc(count, graph->n_params * sizeof *weights);
    for (size_t k = 0; k < count; k++)
        wf_zoo_init(graph, 5, (uint32_t)k, weights + k * graph->n_params);
    char name[64];
    snprintf(name, sizeof name, "zoo_%s.safetensors", arch);
    assert_ok(ctx, wf_zoo_write(ctx, in_folder(name), graph, weights, count, NULL));
    free(weights);
    wf_graph_free(graph);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, in_folder(name), &zoo));
    return zoo;
}

static void a_fit_is_opened_by_its_file(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 4), *other = make_zoo(ctx, "2-4-2", 4);
    wf_source sources[] = {{.zoo = zoo}, {.zoo = other}};
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("mean.safetensors"));
    const wf_generator_kind *kind = wf_generator_find("toy-mean");
    wf_generator_fit_desc fit = {.sources = sources, .n_sources = 1, .path = path};
    assert_ok(ctx, wf_generator_fit(ctx, kind, &fit));
    wf_generator *generator;
    assert_ok(ctx, wf_generator_open(ctx, &(wf_generator_open_desc){.path = path}, &generator));
    assert_ptr_equal(wf_generator_kind_of(generator), kind);
    assert_null(wf_generator_flow(generator));
    assert_true(wf_graph_equal(wf_generator_graph(generator), wf_zoo_graph(zoo)));
    float w[2][17];
    wf_generator_request request = {.graph = wf_zoo_graph(zoo), .n = 2, .weights = w[0]};
    assert_ok(ctx, wf_generator_sample(ctx, generator, &request));
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    /* What it cannot do is said by name. */
    wf_generator_request wrong = request;
    wrong.graph = wf_zoo_graph(other);
    assert_fails(ctx, wf_generator_sample(ctx, generator, &wrong), WF_ERR_UNSUPPORTED, "2-3-2");
    wrong = request;
    wrong.direct = w[1];
    assert_fails(ctx, wf_generator_sample(ctx, generator, &wrong), WF_ERR_USAGE, "refinement");
    wrong = request;
    wrong.cond = w[0];
    assert_fails(ctx, wf_generator_sample(ctx, generator, &wrong), WF_ERR_USAGE, "conditions");
    wf_generator_free(generator);
    fit.n_sources = 2;
    assert_fails(ctx, wf_generator_fit(ctx, kind, &fit), WF_ERR_SHAPE, "one architecture");
    fit.n_sources = 0;
    assert_fails(ctx, wf_generator_fit(ctx, kind, &fit), WF_ERR_USAGE, "at least one");
    fit.n_sources = 1, fit.cond_size = 2;
    assert_fails(ctx, wf_generator_fit(ctx, kind, &fit), WF_ERR_USAGE, "conditions");
    fit.cond_size = 0;
    assert_fails(ctx, wf_generator_fit(ctx, wf_generator_find("toy-aligned"), &fit), WF_ERR_INPUT,
                 "weft align");
    assert_fails(ctx, wf_generator_fit(ctx, &toy_generator, &fit), WF_ERR_USAGE, "nothing to fit");
    wf_generator_open_desc bad = {.kind = kind};
    assert_fails(ctx, wf_generator_open(ctx, &bad, &generator), WF_ERR_USAGE, "which file");
    bad.kind = &toy_generator;
    assert_fails(ctx, wf_generator_open(ctx, &bad, &generator), WF_ERR_USAGE, "collection");
    bad = (wf_generator_open_desc){.path = wf_zoo_path(zoo)};
    assert_fails(ctx, wf_generator_open(ctx, &bad, &generator), WF_ERR_INPUT, "weft fit");
    wf_zoo_free(zoo);
    wf_zoo_free(other);
    wf_ctx_free(ctx);
}

/* Controls through the interface have the bits of their functions. */
static void controls_are_generators(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 6);
    static const char *const names[] = {"random", "perturbation-0.3", "average", "average-matched"};
    for (int i = 0; i < 4; i++) {
        wf_generator *generator;
        wf_generator_open_desc desc = {.zoo = zoo};
        void *options;
        float w[3][17], expected[3][17];
        wf_sample_desc sample = wf_sample_desc_default();
        sample.seed = 7;
        assert_ok(ctx, wf_generator_named(ctx, names[i], &desc.kind, &options));
        desc.options = options;
        assert_ok(ctx, wf_generator_open(ctx, &desc, &generator));
        wf_generator_request request = {
            .graph = wf_zoo_graph(zoo), .n = 3, .sample = &sample, .weights = w[0]};
        assert_ok(ctx, wf_generator_sample(ctx, generator, &request));
        if (i == 0) assert_ok(ctx, wf_control_random(ctx, request.graph, 3, 7, expected[0]));
        if (i == 1) assert_ok(ctx, wf_control_perturb(ctx, zoo, 0.3, 3, 7, expected[0]));
        if (i > 1) assert_ok(ctx, wf_control_average(ctx, zoo, i == 3, 3, 7, expected[0]));
        assert_memory_equal(w, expected, sizeof w);
        wf_generator_free(generator);
        free(options);
    }
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* However a generator draws them: networks take the roots of running variances. */
static void no_variance_is_below_zero(void **state) {
    (void)state;
    enum { n = 50 };
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "3 linear4 batchnorm linear2", 6);
    const wf_graph *graph = wf_zoo_graph(zoo);
    wf_generator *generator;
    wf_generator_open_desc desc = {.zoo = zoo};
    void *options;
    float *w = calloc(2 * n * graph->n_params, sizeof *w), *raw = w + n * graph->n_params;
    int below = 0;
    assert_ok(ctx, wf_generator_named(ctx, "perturbation-2", &desc.kind, &options));
    desc.options = options;
    assert_ok(ctx, wf_generator_open(ctx, &desc, &generator));
    wf_generator_request request = {.graph = graph, .n = n, .weights = w};
    assert_ok(ctx, wf_generator_sample(ctx, generator, &request));
    assert_ok(ctx, wf_control_perturb(ctx, zoo, 2, n, wf_sample_desc_default().seed, raw));
    for (size_t k = 0; k < n; k++)
        for (int b = 0; b < graph->n_blocks; b++)
            for (size_t i = 0; i < graph->blocks[b].count; i++) {
                size_t at = k * graph->n_params + graph->blocks[b].offset + i;
                bool variance = graph->blocks[b].kind == WF_BLOCK_VARIANCE;
                below += variance && raw[at] < 0;
                assert_true(w[at] == (variance && raw[at] < 0 ? 0 : raw[at]));
            }
    assert_true(below > 0);
    wf_generator_free(generator);
    free(options);
    free(w);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* --- in the program --------------------------------------------------------------------------- */

enum { most_words = 32 };

/* Runs `weft WORDS...` with stdout in a file; the words are a list ended by NULL. */
static int weft(const char *out, const char *const *words) {
    char *argv[most_words] = {"weft"};
    int argc = 1;
    for (; words[argc - 1] != NULL; argc++) argv[argc] = (char *)(uintptr_t)words[argc - 1];
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), file = open(out, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, STDOUT_FILENO);
    int code = cli_main(argc, argv);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(file);
    return code;
}
#define WEFT(out, ...) weft(out, (const char *const[]){__VA_ARGS__, NULL})

/* "a,b,c": the names of the rows of an eval.json or of a run's --json. */
static void row_names(const char *path, char *out, size_t size) {
    json_t *eval = json_load_file(path, 0, NULL);
    assert_non_null(eval);
    size_t i;
    json_t *row;
    wf_text text = wf_text_start(out, size);
    json_array_foreach(json_object_get(eval, "rows"), i, row) wf_text_add(
        &text, "%s%s", i > 0 ? "," : "", json_string_value(json_object_get(row, "name")));
    json_decref(eval);
}

#define TINY "tests/cli/tiny.conf", "--quiet", "--json"

/* The proof of the interface: nothing but its registration makes toy a row of the table. */
static void a_registered_generator_is_in_the_table(void **state) {
    (void)state;
    char names[400], out[256], run[256];
    snprintf(out, sizeof out, "%s", in_folder("out.json"));
    snprintf(run, sizeof run, "%s", in_folder("run"));
    assert_int_equal(WEFT(out, "run", TINY, "-o", run), 0);
    row_names(out, names, sizeof names);
    assert_string_equal(names, "reference,held-out,random,perturbation-0.05,perturbation-0.10,"
                               "perturbation-0.25,perturbation-0.50,perturbation,average,"
                               "average-matched,toy,gmn,gmn-refined");
    /* The same run with a table of its own: only the evaluation is done again. */
    assert_int_equal(WEFT(out, "run", TINY, "-o", run, "--redo", "--set",
                          "eval.rows=toy-2, toy,perturbation-0.3,perturbation, reference,gmn"),
                     0);
    row_names(out, names, sizeof names);
    assert_string_equal(names, "toy-2,toy,perturbation-0.3,perturbation,reference,gmn");
}

static void it_may_be_what_a_run_is_about(void **state) {
    (void)state;
    char names[400], out[256], run[256], nets[300];
    snprintf(out, sizeof out, "%s", in_folder("out.json"));
    snprintf(run, sizeof run, "%s", in_folder("model"));
    /* The recipe has settings of another generator. */
    assert_int_equal(WEFT(out, "run", TINY, "-o", run, "--set", "model.generator=toy"), 3);
    snprintf(run, sizeof run, "%s", in_folder("model.conf"));
    FILE *recipe = fopen(run, "w");
    fputs("[data]\nname = spirals\nrows = 300\n[zoo]\narch = 2-6-3\ncount = 20\nepochs = 2\n"
          "held_out = 0\n[model]\ngenerator = toy\nspread = 0.5\n[sample]\ncount = 6\n"
          "[eval]\nsubsets = 4\nrows = reference,toy\n",
          recipe);
    fclose(recipe);
    char folder_path[256];
    snprintf(folder_path, sizeof folder_path, "%s", in_folder("model-run"));
    assert_int_equal(WEFT(out, "run", run, "--quiet", "--json", "-o", folder_path), 0);
    row_names(out, names, sizeof names);
    assert_string_equal(names, "reference,toy");
    /* With a fit, and aligned by the run because the generator wants it. */
    char other[256];
    snprintf(other, sizeof other, "%s", in_folder("fitted-run"));
    recipe = fopen(run, "w");
    fputs("[data]\nname = spirals\nrows = 300\n[zoo]\narch = 2-6-3\ncount = 20\nepochs = 2\n"
          "held_out = 0\n[model]\ngenerator = toy-aligned\n[sample]\ncount = 6\n"
          "[eval]\nsubsets = 4\ncontrols = no\n",
          recipe);
    fclose(recipe);
    assert_int_equal(WEFT(out, "run", run, "--quiet", "--json", "-o", other), 0);
    row_names(out, names, sizeof names);
    assert_string_equal(names, "reference,toy-aligned");
    snprintf(nets, sizeof nets, "%s/zoo-aligned.safetensors", other);
    assert_int_equal(access(nets, R_OK), 0);
    /* Networks from the file, and from a name. */
    snprintf(nets, sizeof nets, "%s/model.safetensors", other);
    assert_int_equal(WEFT(out, "sample", nets, "-n", "2", "-o", in_folder("a.safetensors")), 0);
    assert_int_equal(
        WEFT(out, "sample", nets, "-n", "2", "-o", in_folder("a.safetensors"), "--refine", "0.7,2"),
        2);
    snprintf(nets, sizeof nets, "%s/zoo.safetensors", other);
    assert_int_equal(
        WEFT(out, "sample", "toy-2", "-n", "2", "--zoo", nets, "-o", in_folder("b.safetensors")),
        0);
    assert_int_equal(WEFT(out, "sample", "random", "-n", "2", "-o", in_folder("b.safetensors")), 2);
}

static void rows_that_cannot_be_are_said_at_once(void **state) {
    (void)state;
    char out[256], run[256];
    snprintf(out, sizeof out, "%s", in_folder("out.json"));
    static const char *const bad[] = {"eval.rows=nobody", "eval.rows=toy-mean", "eval.rows=gmn,gmn",
                                      "eval.rows=gmn,,toy", "eval.rows=toy-x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(run, sizeof run, "%s", in_folder("bad"));
        assert_int_equal(WEFT(out, "run", TINY, "-o", run, "--set", bad[i]), 2);
        assert_int_equal(access(run, F_OK), -1); /* before anything is done */
    }
}

int main(void) {
    static wf_generator_kind mean, aligned;
    mean = mean_kind("toy-mean", 0);
    aligned = mean_kind("toy-aligned", WF_GENERATOR_WANTS_ALIGNED);
    if (wf_generator_register(NULL, &toy_generator) != WF_OK ||
        wf_generator_register(NULL, &mean) != WF_OK ||
        wf_generator_register(NULL, &aligned) != WF_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_found),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(names_have_parameters),
        cmocka_unit_test(a_fit_is_opened_by_its_file),
        cmocka_unit_test(controls_are_generators),
        cmocka_unit_test(no_variance_is_below_zero),
        cmocka_unit_test(a_registered_generator_is_in_the_table),
        cmocka_unit_test(it_may_be_what_a_run_is_about),
        cmocka_unit_test(rows_that_cannot_be_are_said_at_once),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
