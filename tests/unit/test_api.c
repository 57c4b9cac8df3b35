/* What bindings of other languages stand on: the library's number, options without structs,
 * collections and data sets from memory, generators by JSON, getters. */
#include "ctx_fixture.h"

#include "base/random.h"
#include "weft/weft.h"

#include <pthread.h>

/* --- the library and the context -------------------------------------------------------------- */

static void test_abi(void **state) {
    (void)state;
    assert_int_equal(wf_abi_version(), WF_ABI);
    assert_string_equal(wf_version(), WF_VERSION);
}

/* What never was made is freed, too. */
static void test_frees_nothing(void **state) {
    (void)state;
    wf_free(NULL);
    wf_ctx_free(NULL);
    wf_dataset_free(NULL);
    wf_fetched_free(NULL);
    wf_flow_free(NULL);
    wf_generator_free(NULL);
    wf_graph_free(NULL);
    wf_import_result_free(NULL);
    wf_lock_free(NULL);
    wf_mix_free(NULL);
    wf_norm_free(NULL);
    wf_points_free(NULL);
    wf_recipe_free(NULL);
    wf_reference_free(NULL);
    wf_scratch_free(NULL);
    wf_zoo_free(NULL);
    wf_zoo_names_free(NULL, 0);
}

static void test_configure(void **state) {
    (void)state;
    wf_ctx *own;
    assert_int_equal(wf_ctx_create(NULL, &own), WF_OK);
    assert_ok(own, wf_ctx_configure(own, "{\"threads\": 3, \"device\": \"cpu\"}"));
    assert_int_equal(wf_ctx_threads(own), 3);
    assert_ok(own, wf_ctx_configure(own, "{\"threads\": 1}"));
    assert_int_equal(wf_ctx_threads(own), 1);
    assert_ok(own, wf_ctx_configure(own, "{\"threads\": 2, \"wait\": true}"));
    assert_fails(own, wf_ctx_configure(own, "{\"threads\": 5, \"devise\": \"cpu\"}"), WF_ERR_USAGE,
                 "did you mean \"device\"");
    assert_int_equal(wf_ctx_threads(own), 2);
    assert_fails(own, wf_ctx_configure(own, "{\"device\": \"tpu\"}"), WF_ERR_USAGE,
                 "cpu, cuda, auto");
    assert_fails(own, wf_ctx_configure(own, "[1]"), WF_ERR_USAGE, "a JSON object");
    assert_fails(own, wf_ctx_configure(own, "{threads"), WF_ERR_USAGE, "not JSON");
    wf_ctx_free(own);
}

static void *interrupt_later(void *own) {
    usleep(50000);
    wf_interrupt(own);
    return NULL;
}

/* Another thread stops a fit that would take hours; the context serves again. */
static void test_interrupt(void **state) {
    (void)state;
    wf_graph *graph;
    wf_zoo *zoo;
    assert_ok(ctx, wf_graph_parse(ctx, "2-4-2", "relu", 0, &graph));
    float weights[3 * 22];
    for (size_t i = 0; i < 3; i++) wf_zoo_init(graph, 5, (uint32_t)i, weights + i * 22);
    assert_ok(ctx, wf_zoo_from_memory(ctx, NULL, graph, weights, 3, false, &zoo));
    wf_source source = {.zoo = zoo};
    wf_fit_desc fit = wf_fit_desc_default();
    fit.updates = 1000000;
    wf_generator_fit_desc desc = {
        .sources = &source, .n_sources = 1, .train = &fit, .path = in_folder("long.safetensors")};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, interrupt_later, ctx), 0);
    assert_fails(ctx, wf_generator_fit(ctx, wf_generator_find("gmn"), &desc), WF_ERR_INTERRUPTED,
                 "");
    pthread_join(other, NULL);
    assert_true(wf_interrupted(ctx));
    wf_interrupt_clear(ctx);
    assert_false(wf_interrupted(ctx));
    wf_graph *again;
    assert_ok(ctx, wf_graph_parse(ctx, "2-4-2", "relu", 0, &again));
    wf_graph_free(again);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

typedef struct heard {
    int progress, lines;
    char line[256];
} heard;

static void hear_progress(void *user, const wf_progress *progress) {
    assert_non_null(progress->stage);
    ((heard *)user)->progress++;
}

static void hear_line(void *user, const char *path, const char *line) {
    heard *h = user;
    assert_non_null(strstr(path, "log.jsonl"));
    snprintf(h->line, sizeof h->line, "%s", line);
    h->lines++;
}

static void test_callbacks(void **state) {
    (void)state;
    heard progress = {0}, log = {0};
    wf_graph *graph;
    wf_zoo *zoo;
    wf_ctx *own = test_ctx();
    assert_ok(own, wf_graph_parse(own, "2-3-2", "relu", 0, &graph));
    float weights[4 * 17];
    for (size_t i = 0; i < 4; i++) wf_zoo_init(graph, 5, (uint32_t)i, weights + i * 17);
    assert_ok(own, wf_zoo_from_memory(own, "mine", graph, weights, 4, false, &zoo));
    wf_ctx_on_progress(own, hear_progress, &progress);
    wf_ctx_on_log(own, hear_line, &log);
    void *fit;
    assert_ok(own, wf_settings_create(own, wf_fit_settings(),
                                      "{\"updates\": 4, \"log_every\": 2, \"batch\": 2}", &fit));
    wf_field_desc field = wf_field_desc_default();
    field.blocks = 1, field.node = field.edge = field.time = 8;
    wf_source source = {.zoo = zoo};
    wf_flow *flow;
    assert_ok(own, wf_flow_fit(own, &source, 1, &field, fit, in_folder("flow.safetensors"), &flow));
    assert_true(progress.progress > 0);
    assert_int_equal(log.lines, 2);
    assert_non_null(strstr(log.line, "\"update\":4"));
    assert_string_equal(wf_flow_source_at(flow, 0).path, "mine");
    assert_ptr_equal(wf_flow_source_graph(flow, 0), wf_flow_source_at(flow, 0).graph);
    wf_flow_free(flow);
    wf_free(fit);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
    wf_ctx_free(own);
}

/* --- options without structs ------------------------------------------------------------------ */

static void test_options(void **state) {
    (void)state;
    void *made;
    assert_ok(ctx, wf_settings_create(ctx, wf_fit_settings(),
                                      "{\"updates\": 123, \"lr\": 0.25, \"optimizer\": \"adamw\", "
                                      "\"normalise\": false, \"schedule\": \"constant\", "
                                      "\"seed\": \"18446744073709551615\", \"batch\": 8.0, "
                                      "\"ema\": null}",
                                      &made));
    const wf_fit_desc *fit = made;
    wf_fit_desc plain = wf_fit_desc_default();
    assert_int_equal(fit->updates, 123);
    assert_true(fit->lr == 0.25);
    assert_int_equal(fit->optimizer, WF_OPT_ADAMW);
    assert_false(fit->normalise);
    assert_false(fit->cosine);
    assert_true(fit->seed == UINT64_MAX);
    assert_int_equal(fit->batch, 8);
    assert_true(fit->ema == plain.ema && fit->clip == plain.clip);
    wf_free(made);
    assert_ok(ctx, wf_settings_create(ctx, wf_fit_settings(), NULL, &made));
    for (const wf_setting *row = wf_fit_settings(); row->key != NULL; row++)
        assert_true(wf_setting_equal(row, made, &plain));
    wf_free(made);
    static const char *const bad[][2] = {{"{\"updats\": 1}", "did you mean \"updates\""},
                                         {"{\"updates\": 0}", "allowed is"},
                                         {"{\"updates\": 1.5}", "allowed is"},
                                         {"{\"lr\": [1, {}]}", "a list of those"},
                                         {"{\"lr\": {}}", "a list of those"},
                                         {"{\"\": 1}", "no setting"},
                                         {"{\"lr\": 1, \"lr\": 2}", "not JSON"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(ctx, wf_settings_create(ctx, wf_fit_settings(), bad[i][0], &made),
                     WF_ERR_USAGE, bad[i][1]);
        assert_null(made);
    }
}

/* Texts live in the struct's memory; lists are joined; a fault leaves the caller's struct alone. */
static void test_option_texts(void **state) {
    (void)state;
    void *made;
    assert_ok(ctx, wf_settings_create(ctx, wf_data_settings(),
                                      "{\"name\": \"moons\", \"drop\": [\"a\", \"b\", 3], "
                                      "\"rows\": 80}",
                                      &made));
    const wf_data_desc *data = made;
    assert_string_equal(data->name, "moons");
    assert_string_equal(data->drop, "a, b, 3");
    assert_null(data->path);
    wf_free(made);
    wf_data_desc own = wf_data_desc_default();
    own.rows = 5;
    char *texts;
    assert_ok(
        ctx, wf_settings_from_json(ctx, wf_data_settings(), "{\"name\": \"moons\"}", &own, &texts));
    assert_string_equal(own.name, "moons");
    assert_int_equal(own.rows, 5);
    wf_free(texts);
    assert_fails(ctx,
                 wf_settings_from_json(ctx, wf_data_settings(), "{\"rows\": 6, \"noise\": \"x\"}",
                                       &own, &texts),
                 WF_ERR_USAGE, "data.noise");
    assert_int_equal(own.rows, 5);
    assert_null(texts);
    char *json;
    assert_ok(ctx, wf_settings_describe(ctx, wf_data_settings(), &json));
    assert_non_null(strstr(json, "\"key\": \"scale\""));
    assert_non_null(strstr(json, "\"names\": [\"standard\""));
    wf_free(json);
}

/* --- collections from memory ------------------------------------------------------------------ */

enum { count = 4, params = 22 };

static float *numbers(void) {
    static float weights[count * params];
    for (size_t i = 0; i < count * params; i++) weights[i] = (float)i / 7 - 5;
    return weights;
}

static wf_graph *small_graph(void) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "2-4-2", "tanh", 0, &graph));
    assert_int_equal(wf_graph_params(graph), params);
    return graph;
}

static void same_networks(const wf_zoo *zoo, const float *weights) {
    float w[params], *all;
    assert_int_equal(wf_zoo_count(zoo), count);
    for (size_t k = 0; k < count; k++) {
        wf_zoo_get(zoo, k, w);
        assert_memory_equal(w, weights + k * params, sizeof w);
    }
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 0, count, &all));
    assert_memory_equal(all, weights, count * sizeof w);
    wf_free(all);
}

static void test_zoo_from_memory(void **state) {
    (void)state;
    wf_graph *graph = small_graph();
    float *weights = numbers();
    wf_zoo *borrowed, *copied, *file;
    assert_ok(ctx, wf_zoo_from_memory(ctx, NULL, graph, weights, count, false, &borrowed));
    assert_ok(ctx, wf_zoo_from_memory(ctx, "mine", graph, weights, count, true, &copied));
    wf_graph_free(graph);
    same_networks(borrowed, weights);
    same_networks(copied, weights);
    assert_true(wf_zoo_in_memory(borrowed));
    assert_string_equal(wf_zoo_path(copied), "mine");
    size_t stride;
    assert_ptr_equal(wf_zoo_tensor(borrowed, 1, &stride), weights + 8);
    assert_int_equal(stride, params);
    assert_null(wf_zoo_tensor(borrowed, 4, &stride));
    weights[0] = 99;
    float w[params];
    wf_zoo_get(copied, 0, w);
    assert_true(w[0] == -5);
    numbers();

    float scores[count] = {1, .5f, .25f, 0};
    uint8_t errors[count * 2] = {0, 1, 2, 3, 4, 5, 6, 7};
    const char *names[count] = {"a.pt", "b.pt", "c.pt", "d.pt"};
    assert_ok(ctx, wf_zoo_set_scores(ctx, borrowed, "moons", NULL, errors, 2));
    assert_ok(ctx, wf_zoo_set_scores(ctx, borrowed, "moons", scores, errors, 2));
    assert_ok(ctx, wf_zoo_set_names(ctx, borrowed, names));
    assert_ok(ctx, wf_zoo_set_meta(ctx, borrowed, "author", "me"));
    assert_ok(ctx, wf_zoo_set_meta(ctx, borrowed, "author", "you"));
    assert_ok(ctx, wf_zoo_set_meta(ctx, borrowed, "gone", "x"));
    assert_ok(ctx, wf_zoo_set_meta(ctx, borrowed, "gone", NULL));
    assert_fails(ctx, wf_zoo_set_meta(ctx, borrowed, "weft.graph", "{}"), WF_ERR_USAGE, "own");
    const char *path = in_folder("saved.safetensors");
    assert_ok(ctx, wf_zoo_save(ctx, borrowed, path));
    assert_ok(ctx, wf_zoo_open(ctx, path, &file));
    same_networks(file, weights);
    assert_false(wf_zoo_in_memory(file));
    assert_memory_equal(wf_zoo_scores(file, "moons"), scores, sizeof scores);
    size_t bytes;
    assert_memory_equal(wf_zoo_errors(file, NULL, &bytes), errors, sizeof errors);
    assert_string_equal(wf_zoo_meta(file, "author"), "you");
    assert_null(wf_zoo_meta(file, "gone"));
    assert_string_equal(wf_zoo_meta(file, "weft.sources"), "[\"a.pt\",\"b.pt\",\"c.pt\",\"d.pt\"]");
    assert_fails(ctx, wf_zoo_set_meta(ctx, file, "author", "x"), WF_ERR_USAGE, "cannot be changed");
    const char *again = in_folder("again.safetensors");
    assert_ok(ctx, wf_zoo_save(ctx, file, again));
    char digest[2][33];
    assert_ok(ctx, wf_file_digest(ctx, path, digest[0]));
    assert_ok(ctx, wf_file_digest(ctx, again, digest[1]));
    assert_string_equal(digest[0], digest[1]);
    wf_zoo_free(file);
    wf_zoo_free(copied);
    wf_zoo_free(borrowed);
}

/* Stacked tensors, as torch.func.stack_module_state has them, in and out. */
static void test_zoo_from_tensors(void **state) {
    (void)state;
    wf_graph *graph = small_graph();
    const float *weights = numbers(), *base[4];
    float stacked[count * params];
    size_t stride[4], offset, each;
    for (int t = 0; wf_graph_tensor(graph, t, &offset, &each, NULL, NULL, NULL) != NULL; t++) {
        base[t] = stacked + count * offset;
        stride[t] = each;
        for (size_t k = 0; k < count; k++)
            memcpy(stacked + count * offset + k * each, weights + k * params + offset,
                   each * sizeof *stacked);
    }
    wf_zoo *zoo, *file;
    assert_ok(ctx, wf_zoo_from_tensors(ctx, NULL, graph, base, stride, count, &zoo));
    same_networks(zoo, weights);
    const char *path = in_folder("stacked.safetensors");
    assert_ok(ctx, wf_zoo_save(ctx, zoo, path));
    assert_ok(ctx, wf_zoo_open(ctx, path, &file));
    for (int t = 0; t < 4; t++) {
        size_t step;
        const float *tensor = wf_zoo_tensor(file, t, &step);
        assert_int_equal(step, stride[t]);
        assert_memory_equal(tensor, base[t], count * step * sizeof *tensor);
    }
    wf_zoo_free(zoo);
    assert_fails(ctx, wf_zoo_from_tensors(ctx, "none", graph, base, stride, 0, &zoo), WF_ERR_USAGE,
                 "at least one network");
    assert_null(zoo);
    wf_zoo_free(file);
    wf_graph_free(graph);
}

/* Wherever a collection is taken: summary, alignment, controls, judging. */
static void test_memory_everywhere(void **state) {
    (void)state;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "2-4-2", "relu", 0, &graph));
    float weights[6 * params], made[3 * params];
    for (uint32_t k = 0; k < 6; k++) wf_zoo_init(graph, 9, k, weights + k * params);
    wf_zoo *zoo, *aligned, *file;
    assert_ok(ctx, wf_zoo_from_memory(ctx, NULL, graph, weights, 6, false, &zoo));
    wf_zoo_summary info;
    float scores[6] = {0, 0, 0, 1, 1, 1};
    assert_ok(ctx, wf_zoo_set_scores(ctx, zoo, "t", scores, NULL, 0));
    assert_ok(ctx, wf_zoo_info(ctx, zoo, &info));
    assert_int_equal(info.count, 6);
    assert_int_equal(info.n_tests, 1);
    assert_true(info.tests[0].mean == 0.5);
    const char *path = in_folder("aligned.safetensors");
    assert_ok(ctx, wf_align_zoo(ctx, zoo, 0, NULL, path));
    assert_ok(ctx, wf_zoo_open(ctx, path, &aligned));
    assert_non_null(wf_zoo_meta(aligned, "weft.aligned"));
    assert_memory_equal(wf_zoo_scores(aligned, "t"), scores, sizeof scores);
    assert_ok(ctx, wf_control_perturb(ctx, zoo, 0.1, 3, 1, made));
    assert_ok(ctx, wf_control_average(ctx, zoo, true, 3, 1, made));

    /* The same values as of the same networks in a file. */
    const char *saved = in_folder("everywhere.safetensors");
    assert_ok(ctx, wf_zoo_save(ctx, zoo, saved));
    assert_ok(ctx, wf_zoo_open(ctx, saved, &file));
    wf_data_desc want = wf_data_desc_default();
    want.name = "moons";
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_open(ctx, &want, &data));
    const wf_zoo *both[] = {zoo, file};
    wf_eval_row row[2];
    for (int i = 0; i < 2; i++) {
        wf_reference *reference;
        assert_ok(ctx, wf_reference_open(ctx, both[i], data, NULL, &reference));
        assert_ok(ctx, wf_eval_networks(ctx, reference, "made", made, 3, &row[i], NULL));
        wf_reference_free(reference);
    }
    assert_true(row[0].accuracy_mean == row[1].accuracy_mean);
    assert_true(row[0].wcs_mean == row[1].wcs_mean && row[0].jws == row[1].jws);
    wf_dataset_free(data);
    wf_zoo_free(file);
    wf_zoo_free(aligned);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

/* --- data sets from memory -------------------------------------------------------------------- */

/* What fits networks whose two outputs are -x and x to numbers around 100. */
static char *what_suits(const wf_zoo *zoo, const int32_t labels[4]) {
    float x[40];
    int32_t y[40];
    for (int k = 0; k < 40; k++) {
        x[k] = 100 + 0.5f * (float)(k - 20) + 0.25f;
        y[k] = labels[(k >= 20) * 2 + k % 2];
    }
    wf_dataset *data;
    char *json;
    assert_ok(ctx, wf_dataset_from_memory(ctx, NULL, 1, 2, NULL, NULL, 0, x, y, 40, &data));
    assert_ok(ctx, wf_zoo_suits_json(ctx, zoo, NULL, data, &json));
    wf_dataset_free(data);
    return json;
}

static void test_what_suits_data_in_memory(void **state) {
    (void)state;
    wf_graph *graph;
    wf_zoo *zoo;
    wf_dataset *data;
    const float weights[] = {-1, 1, 0, 0};
    assert_ok(ctx, wf_graph_parse(ctx, "1-2", "relu", 0, &graph));
    assert_ok(ctx, wf_zoo_from_memory(ctx, NULL, graph, weights, 1, false, &zoo));
    char *json = what_suits(zoo, (const int32_t[]){0, 0, 1, 1});
    assert_string_equal(json, "{\"accuracy\": 0.5, \"best\": 1.0, \"largest_class\": 0.5, "
                              "\"guessing\": 0.55000000000000004, \"scale\": \"standard\", "
                              "\"activation\": null, \"classes\": null}");
    wf_free(json);
    json = what_suits(zoo, (const int32_t[]){1, 1, 0, 0});
    assert_non_null(strstr(json, "\"scale\": \"standard\""));
    assert_non_null(strstr(json, "\"classes\": [1, 0]"));
    wf_free(json);
    /* Labels that have nothing to do with the inputs. */
    json = what_suits(zoo, (const int32_t[]){0, 1, 0, 1});
    assert_non_null(strstr(json, "\"scale\": null"));
    assert_non_null(strstr(json, "\"classes\": null"));
    wf_free(json);
    const float x[] = {1, 2};
    const int32_t y[] = {0, 1};
    assert_ok(ctx, wf_dataset_from_memory(ctx, NULL, 1, 2, x, y, 2, NULL, NULL, 0, &data));
    assert_fails(ctx, wf_zoo_suits_json(ctx, zoo, NULL, data, &json), WF_ERR_INPUT, "no test part");
    assert_null(json);
    wf_dataset_free(data);
    assert_ok(ctx, wf_dataset_from_memory(ctx, NULL, 2, 2, NULL, NULL, 0, x, y, 1, &data));
    assert_fails(ctx, wf_zoo_suits_json(ctx, zoo, NULL, data, &json), WF_ERR_SHAPE, "1-2");
    wf_dataset_free(data);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

static void test_data_from_memory(void **state) {
    (void)state;
    const float x[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t y[] = {0, 1, 0, 1};
    wf_dataset *data;
    assert_ok(ctx, wf_dataset_from_memory(ctx, "mine", 2, 0, x, y, 3, x + 6, y + 3, 1, &data));
    size_t n;
    assert_memory_equal(wf_dataset_x(data, false, &n), x, 6 * sizeof *x);
    assert_int_equal(n, 3);
    assert_int_equal(wf_dataset_y(data, true, &n)[0], 1);
    assert_int_equal(n, 1);
    char *json;
    assert_ok(ctx, wf_dataset_json(ctx, data, &json));
    assert_non_null(strstr(json, "\"classes\": 2"));
    assert_non_null(strstr(json, "\"preparation\": null"));
    wf_free(json);
    wf_dataset_free(data);
    assert_ok(ctx, wf_dataset_from_memory(ctx, NULL, 2, 5, NULL, NULL, 0, x, y, 4, &data));
    assert_int_equal(data->classes, 5);
    assert_null(wf_dataset_x(data, false, &n));
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "2-3-5", "relu", 0, &graph));
    float weights[29] = {0}, score;
    assert_int_equal(wf_graph_params(graph), 29);
    assert_ok(ctx,
              wf_score_networks(ctx, graph, weights, 1, data, WF_SCORE_ACCURACY, &score, NULL));
    assert_true(score == 0.5f);
    wf_graph_free(graph);
    wf_dataset_free(data);
    assert_ok(ctx, wf_dataset_split(ctx, NULL, 2, 0, x, y, 4, 0.5, 1, &data));
    assert_int_equal(data->n_train, 2);
    assert_int_equal(data->n_test, 2);
    wf_dataset_free(data);
}

static void test_data_refused(void **state) {
    (void)state;
    const float x[] = {0, 1, NAN, 3};
    const int32_t y[] = {0, 2};
    wf_dataset *data;
    assert_fails(ctx, wf_dataset_from_memory(ctx, "d", 2, 0, x, y, 2, NULL, NULL, 0, &data),
                 WF_ERR_INPUT, "row 1 of the training part");
    assert_fails(ctx, wf_dataset_from_memory(ctx, "d", 1, 2, x, y, 2, NULL, NULL, 0, &data),
                 WF_ERR_USAGE, "row 1 of the training part has label 2");
    assert_fails(ctx, wf_dataset_from_memory(ctx, "d", 1, 2, x, y, 0, NULL, NULL, 0, &data),
                 WF_ERR_USAGE, "no rows");
    assert_fails(ctx, wf_dataset_split(ctx, "d", 1, 0, x, y, 2, 0.5, 1, &data), WF_ERR_INPUT,
                 "two of each");
    assert_fails(ctx, wf_dataset_split(ctx, "d", 1, 0, x, y, 2, 1, 1, &data), WF_ERR_USAGE,
                 "between 0 and 1");
    assert_null(data);
}

/* --- generators ------------------------------------------------------------------------------- */

static const char quick[] = "{\"model\": {\"node\": 8, \"edge\": 8, \"time\": 8, \"blocks\": 1%s},"
                            " \"train\": {\"updates\": 5, \"batch\": 2%s}%s}";

static wf_zoo *six_networks(const char *arch, float **weights) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, arch, "relu", 0, &graph));
    size_t n = wf_graph_params(graph);
    *weights = malloc(6 * n * sizeof **weights);
    for (uint32_t k = 0; k < 6; k++) wf_zoo_init(graph, 9, k, *weights + k * n);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_from_memory(ctx, NULL, graph, *weights, 6, false, &zoo));
    wf_graph_free(graph);
    return zoo;
}

/* One Euler step from the noise of network 0 and 1 is the noise plus its velocity at t = 0, in both
 * spaces. */
static void check_velocity(wf_generator *generator, const wf_graph *graph, const wf_norm *norm) {
    size_t n = wf_graph_params(graph);
    float *noise = malloc(2 * n * sizeof *noise), *start = malloc(2 * n * sizeof *start);
    float *v = malloc(2 * n * sizeof *v), *own = malloc(2 * n * sizeof *own);
    float *made = malloc(2 * n * sizeof *made), t[2] = {0, 0};
    for (uint32_t k = 0; k < 2; k++) {
        wf_rng rng = wf_rng_at(0, k, WF_RNG_SAMPLE, 0);
        wf_rng_normals(&rng, noise + k * n, n);
        wf_norm_invert(norm, graph, noise + k * n, start + k * n);
    }
    char *stats;
    assert_ok(ctx, wf_generator_sample_json(ctx, generator, graph, 2,
                                            "{\"sample\": {\"solver\": \"euler\", \"steps\": 1}}",
                                            made, NULL, &stats));
    assert_non_null(strstr(stats, "\"evaluations\": 1.0"));
    wf_free(stats);
    wf_flow *flow = wf_generator_flow(generator);
    assert_ok(ctx, wf_flow_velocity(ctx, flow, graph, start, t, 2, NULL, 1, false, own));
    for (size_t i = 0; i < 2 * n; i++) assert_close(start[i] + own[i], made[i], 1e-4);
    assert_ok(ctx, wf_flow_velocity(ctx, flow, graph, noise, t, 2, NULL, 1, true, v));
    for (uint32_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < n; i++) v[k * n + i] += noise[k * n + i];
        wf_norm_invert(norm, graph, v + k * n, own + k * n);
    }
    for (size_t i = 0; i < 2 * n; i++) assert_close(own[i], made[i], 1e-4);
    t[1] = 1.5f;
    assert_fails(ctx, wf_flow_velocity(ctx, flow, graph, noise, t, 2, NULL, 1, true, v),
                 WF_ERR_USAGE, "time 1");
    float *all[] = {noise, start, v, own, made};
    for (int i = 0; i < 5; i++) free(all[i]);
}

/* Table and page of several sets of networks in one call; copies are marked. */
static void check_report(const wf_reference *reference, const float *made, const float *copies) {
    const char *names[] = {"made", "copies"};
    const float *weights[] = {made, copies};
    const size_t n[] = {3, 6};
    char *rows, *page;
    assert_ok(ctx,
              wf_report_evaluation(ctx, "two sets", reference, names, weights, n, 2, &rows, &page));
    assert_non_null(strstr(rows, "\"name\": \"reference\""));
    assert_non_null(strstr(strstr(rows, "\"name\": \"copies\""), "\"copies\": true"));
    assert_non_null(strstr(page, "two sets"));
    assert_non_null(strstr(page, "</html>"));
    wf_free(page);
    wf_free(rows);
    assert_ok(ctx, wf_report_evaluation(ctx, NULL, reference, names, weights, n, 1, NULL, NULL));
    assert_int_equal(wf_report_evaluation(ctx, NULL, reference, names, weights, n, 0, &rows, &page),
                     WF_ERR_USAGE);
    assert_null(rows);
    assert_null(page);
}

static void test_generator(void **state) {
    (void)state;
    float *weights;
    wf_zoo *zoo = six_networks("2-4-2", &weights);
    const wf_zoo *zoos[] = {zoo};
    char json[256];
    snprintf(json, sizeof json, quick, "", "", "");
    const char *path = in_folder("by_json.safetensors");
    assert_ok(ctx, wf_generator_fit_json(ctx, "gmn", zoos, NULL, 1, json, path));
    wf_generator *generator;
    assert_ok(ctx, wf_generator_open_json(ctx, NULL, path, NULL, NULL, &generator));
    wf_norm norm;
    assert_ok(ctx, wf_norm_fit(ctx, wf_zoo_graph(zoo), weights, 6, &norm));
    check_velocity(generator, wf_zoo_graph(zoo), &norm);
    char *text;
    assert_ok(ctx, wf_flow_json(ctx, wf_generator_flow(generator), &text));
    assert_non_null(strstr(text, "\"updates\": 5"));
    assert_non_null(strstr(text, "\"coupling\": \"matched\""));
    assert_non_null(strstr(text, "\"path\": \"collection in memory\""));
    wf_free(text);
    wf_norm_free(&norm);
    wf_generator_free(generator);

    /* A flow that is not equivariant has plain noise unless told, and refuses matched noise. */
    const char *other = in_folder("mlp_by_json.safetensors");
    const char *plain = "{\"model\": {\"width\": 8, \"blocks\": 1}, \"train\": {\"updates\": 2}}";
    const char *matched = "{\"train\": {\"updates\": 2, \"coupling\": \"matched\"}}";
    assert_ok(ctx, wf_generator_fit_json(ctx, "mlp", zoos, NULL, 1, plain, other));
    assert_fails(ctx, wf_generator_fit_json(ctx, "mlp", zoos, NULL, 1, matched, other),
                 WF_ERR_USAGE, "coupling = independent");

    float made[3 * params];
    assert_ok(ctx, wf_generator_open_json(ctx, "perturbation-0.1", NULL, zoo, NULL, &generator));
    assert_ok(ctx, wf_generator_sample_json(ctx, generator, wf_zoo_graph(zoo), 3, NULL, made, NULL,
                                            NULL));
    wf_reference *reference;
    assert_ok(ctx, wf_reference_open(ctx, zoo, NULL, NULL, &reference));
    assert_ok(ctx, wf_eval_json(ctx, reference, "made", made, 3, &text));
    assert_non_null(strstr(text, "\"name\": \"made\""));
    assert_non_null(strstr(text, "\"accuracy_mean\": null"));
    assert_non_null(strstr(text, "\"nearest_wcs\": ["));
    wf_free(text);
    assert_ok(ctx, wf_eval_json(ctx, reference, NULL, NULL, 0, &text));
    assert_non_null(strstr(text, "\"n\": 6"));
    wf_free(text);
    check_report(reference, made, weights);
    wf_reference_free(reference);
    wf_generator_free(generator);
    wf_zoo_free(zoo);
    free(weights);
}

static void test_generator_tasks(void **state) {
    (void)state;
    float *weights[2], made[params], again[params];
    wf_zoo *zoos[2];
    for (int i = 0; i < 2; i++) zoos[i] = six_networks("2-4-2", &weights[i]);
    char json[512];
    snprintf(json, sizeof json, quick, ", \"cond\": \"linear\"", ", \"cond_drop\": 0.1",
             ", \"sources\": [{\"task\": \"a\", \"cond\": [0, 1]}, {\"cond\": [1, 0.5]}]");
    const char *path = in_folder("tasks.safetensors");
    const wf_zoo *const *both = (const wf_zoo *const *)zoos;
    assert_ok(ctx, wf_generator_fit_json(ctx, "gmn", both, NULL, 2, json, path));
    wf_generator *g;
    assert_ok(ctx, wf_generator_open_json(ctx, NULL, path, NULL, NULL, &g));
    const wf_graph *graph = wf_zoo_graph(zoos[0]);
    assert_ok(ctx,
              wf_generator_sample_json(ctx, g, graph, 1, "{\"task\": \"a\"}", made, NULL, NULL));
    assert_ok(ctx,
              wf_generator_sample_json(ctx, g, graph, 1, "{\"cond\": [0, 1]}", again, NULL, NULL));
    assert_memory_equal(made, again, sizeof made);
    static const char *const bad[][2] = {{"{\"task\": \"b\"}", "knows no task"},
                                         {"{\"task\": 5}", "task: a text"},
                                         {"{\"cond\": [1]}", "takes 2"},
                                         {"{\"cond\": [1, \"x\"]}", "no number"},
                                         {"{\"sampel\": {}}", "did you mean \"sample\""},
                                         {"{\"sample\": {\"stepps\": 1}}", "\"steps\""}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ctx, wf_generator_sample_json(ctx, g, graph, 1, bad[i][0], made, NULL, NULL),
                     WF_ERR_USAGE, bad[i][1]);
    assert_fails(ctx, wf_generator_fit_json(ctx, "gmm", both, NULL, 2, json, path), WF_ERR_USAGE,
                 "gmn");
    assert_fails(ctx, wf_generator_fit_json(ctx, "gmn", both, NULL, 2, "{\"sources\": [{}]}", path),
                 WF_ERR_USAGE, "one for each");
    wf_generator_free(g);
    for (int i = 0; i < 2; i++) {
        wf_zoo_free(zoos[i]);
        free(weights[i]);
    }
}

static void test_generator_list(void **state) {
    (void)state;
    char *text;
    bool gmn = false;
    int i = 0;
    for (; i < wf_generator_count(); i++) {
        assert_ok(ctx, wf_generator_json(ctx, i, &text));
        gmn |= strstr(text, "\"name\": \"gmn\"") != NULL && strstr(text, "\"refines\"") != NULL;
        wf_free(text);
    }
    assert_true(gmn);
    assert_fails(ctx, wf_generator_json(ctx, i, &text), WF_ERR_USAGE, "there are");
    assert_ptr_equal(wf_generator_settings("gmn"), wf_field_settings());
    assert_null(wf_generator_settings("nobody"));
}

static void test_align_in_memory(void **state) {
    (void)state;
    float *weights, before[params];
    wf_zoo *zoo = six_networks("2-4-2", &weights);
    memcpy(before, weights + 2 * params, sizeof before);
    void *desc;
    assert_ok(ctx, wf_settings_create(ctx, wf_match_settings(), "{\"sweeps\": 20}", &desc));
    const char *path = in_folder("aligned_file.safetensors");
    assert_ok(ctx, wf_align_zoo(ctx, zoo, 2, desc, path));
    assert_ok(ctx, wf_align_networks(ctx, wf_zoo_graph(zoo), weights, 6, 2, desc));
    assert_memory_equal(before, weights + 2 * params, sizeof before);
    wf_zoo *file;
    float *all;
    assert_ok(ctx, wf_zoo_open(ctx, path, &file));
    assert_ok(ctx, wf_zoo_load(ctx, file, 0, 6, &all));
    assert_memory_equal(all, weights, 6 * sizeof before);
    assert_fails(ctx, wf_align_networks(ctx, wf_zoo_graph(zoo), weights, 6, 6, desc), WF_ERR_USAGE,
                 "there are 6");
    wf_free(all);
    wf_free(desc);
    wf_zoo_free(file);
    wf_zoo_free(zoo);
    free(weights);
}

/* --- descriptions ----------------------------------------------------------------------------- */

static void test_graph_getters(void **state) {
    (void)state;
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "1x8x8 conv4 pool linear3", "gelu", 0, &graph));
    assert_int_equal(wf_graph_inputs(graph), 64);
    assert_int_equal(wf_graph_outputs(graph), 3);
    assert_string_equal(wf_graph_activation(graph), "gelu");
    assert_string_equal(wf_graph_text(graph), graph->text);
    size_t offset, each, shape[4], total = 0;
    int rank, kind, t = 0;
    const char *name;
    for (; (name = wf_graph_tensor(graph, t, &offset, &each, &rank, shape, &kind)) != NULL; t++) {
        assert_string_equal(name, graph->blocks[t].name);
        assert_int_equal(offset, total);
        total += each;
        assert_int_equal(shape[0] * shape[1] * shape[2] * shape[3], each);
        if (t == 0) assert_int_equal(rank, 4);
    }
    assert_int_equal(t, wf_graph_tensors(graph));
    assert_int_equal(total, wf_graph_params(graph));
    wf_graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abi),
        cmocka_unit_test(test_frees_nothing),
        cmocka_unit_test(test_configure),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_callbacks),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_option_texts),
        cmocka_unit_test(test_zoo_from_memory),
        cmocka_unit_test(test_zoo_from_tensors),
        cmocka_unit_test(test_memory_everywhere),
        cmocka_unit_test(test_what_suits_data_in_memory),
        cmocka_unit_test(test_data_from_memory),
        cmocka_unit_test(test_data_refused),
        cmocka_unit_test(test_generator),
        cmocka_unit_test(test_generator_tasks),
        cmocka_unit_test(test_generator_list),
        cmocka_unit_test(test_align_in_memory),
        cmocka_unit_test(test_graph_getters),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
