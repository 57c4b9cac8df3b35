/* Files of flows that were damaged or lie, and files under another locale. */
#include "comma_locale.h"
#include "flow_fixture.h"
#include "ctx_fixture.h"

static wf_fit_desc train_desc(void) {
    wf_fit_desc desc = quick_fit();
    desc.updates = 2;
    desc.batch = 2;
    desc.log_every = 1;
    desc.cosine = false;
    desc.principal = true;
    return desc;
}

static toy_orders orders; /* none */

static wf_status train(const char *path, int cond_size, const wf_field_kind *kind) {
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 4, 0);
    const float cond[] = {1, 0};
    wf_source source = {.zoo = zoo, .cond = cond_size > 0 ? cond : NULL};
    wf_field_desc field = plain_field(cond_size);
    wf_fit_desc desc = train_desc();
    wf_status status = wf_flow_fit_with(ctx, &source, 1, kind, &field, &desc, path, NULL);
    wf_zoo_free(zoo);
    return status;
}

/* What is changed in the flow of a real training. */
typedef struct change {
    const char *key, *value; /* of the metadata; key NULL: nothing, value NULL: it is left out */
    const char *name;        /* the key's new name; NULL: it stays */
    const char *tensor;      /* NULL: none */
    size_t count;            /* of its values; 0: it is left out */
    const float *values;
} change;

static const char *changed(const char *from, const change *c) {
    const char *path = in_folder("changed.safetensors");
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, from, &file));
    size_t all = wf_st_count(file), n = 0, n_meta = wf_st_meta_count(file);
    wf_st_tensor *tensors = calloc(all, sizeof *tensors);
    const char *(*meta)[2] = calloc(n_meta, sizeof *meta);
    bool found = false;
    for (size_t i = 0; i < all; i++) {
        tensors[n] = *wf_st_at(file, i);
        if (c->tensor != NULL && strcmp(tensors[n].name, c->tensor) == 0) {
            found = true;
            if (c->count == 0) continue;
            tensors[n].rank = 1;
            tensors[n].shape[0] = tensors[n].count = c->count;
            tensors[n].bytes = c->count * sizeof(float);
            tensors[n].data = c->values;
        }
        n++;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n_meta; i++) {
        wf_st_meta_at(file, i, &meta[kept][0], &meta[kept][1]);
        bool here = c->key != NULL && strcmp(meta[kept][0], c->key) == 0;
        found = found || here;
        if (here && c->name != NULL) meta[kept][0] = c->name;
        if (here && c->name == NULL) meta[kept][1] = c->value;
        if (meta[kept][1] != NULL) kept++;
    }
    assert_true(found);
    assert_ok(ctx, wf_st_write(ctx, path, tensors, n, (const char *const(*)[2])meta, kept));
    free(tensors);
    free(meta);
    wf_st_close(file);
    return path;
}

static void lies_are_refused(void **state) {
    (void)state;
    static const struct lie {
        const char *key, *value, *words;
    } lies[] = {
        {"stocks", "0", "\"stocks\" is 0; expected 1"},
        {"sources", "0", "\"sources\" is 0; expected 1"},
        {"stocks", "1000000", "\"stocks\" is 1000000; expected 1"},
        {"fit.source_std", "nan",
         "\"fit.source_std\" is \"nan\"; allowed is a number above 0 and up to 1000"},
        {"fit.path_noise", "-1", "\"fit.path_noise\" is \"-1\"; allowed"},
        {"fit.updates", "0", "\"fit.updates\" is \"0\"; allowed"},
        {"arch.0", "2-0-2", "expected a width"},
        {"field.node", "1000000",
         "\"field.node\" is \"1000000\"; allowed is a whole number from 1"},
        {"field.node", "4096", "parameters, the file stores"},
        {"field.blocks", "200", "parameters, the file stores"},
        {"field.cond_size", "8000", "parameters, the file stores"},
        {"field.cond_size", "-3", "\"field.cond_size\" is \"-3\"; allowed"},
        {"fit.precondition", "no", "principal needs precondition"},
        {"fit.principal", "maybe", "\"fit.principal\" is \"maybe\"; allowed is no, yes"},
        {"fit.loss_by", "units",
         "\"fit.loss_by\" is \"units\"; allowed is parameters, layers, errors"},
        {"fit.cosine", "sine", "\"fit.cosine\" is \"sine\"; allowed is constant, cosine"},
        {"weft.kind", NULL, "not a flow"},
        {"arch.0", "3-3-2", "\"principal.0.axes\" has 4 values of type F32, expected 9"},
        {"arch.0", "1000000-3-2", "\"principal.0.axes\" has 4 values"},
    };
    char good[256];
    snprintf(good, sizeof good, "%s", in_folder("good.safetensors"));
    assert_ok(ctx, train(good, 2, wf_field_find("gmn")));
    char texts[256]; /* as version 0.1 wrote it, without the graph */
    snprintf(texts, sizeof texts, "%s", in_folder("texts.safetensors"));
    assert_int_equal(rename(changed(good, &(change){.key = "arch.0.graph"}), texts), 0);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        wf_flow *flow;
        const char *path = changed(texts, &(change){.key = lies[i].key, .value = lies[i].value});
        assert_fails(ctx, wf_flow_open(ctx, path, &flow), WF_ERR_INPUT, lies[i].words);
        assert_null(flow);
        path = changed(good, &(change){.key = lies[i].key, .value = lies[i].value});
        assert_int_equal(wf_flow_open(ctx, path, &flow), WF_ERR_INPUT);
        assert_null(flow);
    }
    wf_flow *flow;
    const char *path = changed(good, &(change){.key = "arch.0", .value = "2-4-2"});
    assert_fails(ctx, wf_flow_open(ctx, path, &flow), WF_ERR_INPUT,
                 "\"arch.0\" is 2-4-2, but \"arch.0.graph\" describes 2-3-2");
}

/* A setting that a file lacks has the value of files from before it; one that nobody knows is a
 * newer version's. */
static void absent_settings_have_their_old_values(void **state) {
    (void)state;
    char old[256];
    snprintf(old, sizeof old, "%s", in_folder("old.safetensors"));
    wf_fit_desc desc = train_desc();
    desc.principal = false;
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 4, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    desc.updates = 1;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &desc, old, NULL));
    static const char *const keys[] = {"fit.principal", "fit.loss_by"};
    for (int i = 0; i < 2; i++)
        assert_int_equal(rename(changed(old, &(change){.key = keys[i]}), old), 0);
    wf_flow *flow;
    assert_ok(ctx, wf_flow_open(ctx, old, &flow));
    assert_false(wf_flow_trained_with(flow)->principal);
    assert_int_equal(wf_flow_trained_with(flow)->loss_by, WF_LOSS_BY_PARAMETERS);
    wf_flow_free(flow);
    desc.updates = 2;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &desc, old, &flow)); /* goes on */
    assert_int_equal(wf_flow_updates(flow), 2);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
    const char *newer = changed(old, &(change){.key = "fit.ema", .name = "fit.emu"});
    assert_fails(ctx, wf_flow_open(ctx, newer, &flow), WF_ERR_INPUT,
                 "\"fit.emu\", which this version of weft does not know");
}

static void damaged_axes_are_refused(void **state) {
    (void)state;
    static const float nan_axes[] = {1, 0, 0, NAN}, flat[] = {1, 0}, negative[] = {1, -1};
    static const float infinite[] = {INFINITY, 1}, three[] = {1, 1, 1};
    static const struct damage {
        change change;
        const char *words;
    } damages[] = {
        {{.tensor = "principal.0.axes"}, "lacks the tensor \"principal.0.axes\""},
        {{.tensor = "principal.0.mean"}, "lacks the tensor \"principal.0.mean\""},
        {{.tensor = "principal.0.variance"}, "lacks the tensor \"principal.0.variance\""},
        {{.tensor = "principal.0.axes", .count = 3, .values = three}, "has 3 values"},
        {{.tensor = "principal.0.mean", .count = 3, .values = three}, "has 3 values"},
        {{.tensor = "principal.0.variance", .count = 3, .values = three}, "has 3 values"},
        {{.tensor = "principal.0.axes", .count = 4, .values = nan_axes}, "not finite"},
        {{.tensor = "principal.0.mean", .count = 2, .values = infinite}, "not finite"},
        {{.tensor = "principal.0.variance", .count = 2, .values = flat}, "not positive"},
        {{.tensor = "principal.0.variance", .count = 2, .values = negative}, "not positive"},
    };
    char good[256];
    snprintf(good, sizeof good, "%s", in_folder("axes.safetensors"));
    assert_ok(ctx, train(good, 0, toy_kind(&orders)));
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        wf_flow *flow;
        const char *path = changed(good, &damages[i].change);
        assert_fails(ctx, wf_flow_open_with(ctx, path, toy_kind(&orders), &flow), WF_ERR_INPUT,
                     damages[i].words);
        assert_null(flow);
        assert_fails(ctx, train(path, 0, toy_kind(&orders)), WF_ERR_INPUT,
                     damages[i].words); /* resumed */
    }
}

/* With a deviation of 0 every network that is drawn would be the mean of the collection. */
static void deviations_are_positive(void **state) {
    (void)state;
    static const float zero[] = {1, 0, 1, 1}, negative[] = {1, 1, 1, -2};
    const float *const lies[] = {zero, negative};
    char good[256];
    snprintf(good, sizeof good, "%s", in_folder("deviations.safetensors"));
    assert_ok(ctx, train(good, 2, wf_field_find("gmn")));
    for (int i = 0; i < 2; i++) {
        wf_flow *flow;
        const char *path =
            changed(good, &(change){.tensor = "norm.0.std", .count = 4, .values = lies[i]});
        assert_fails(ctx, wf_flow_open(ctx, path, &flow), WF_ERR_INPUT,
                     "\"norm.0.std\" has a deviation that is not positive");
        assert_null(flow);
    }
}

/* A run goes on along the axes of its file, not along those that this machine would find. */
static void resumed_runs_keep_the_axes_of_the_file(void **state) {
    (void)state;
    static const float axes[] = {0, 1, 1, 0}, mean[] = {0.5f, -0.5f}, variance[] = {7, 0.125f};
    static const struct kept {
        const char *name;
        const float *values;
        size_t count;
    } kept[] = {{"principal.0.axes", axes, 4},
                {"principal.0.mean", mean, 2},
                {"principal.0.variance", variance, 2}};
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("own_axes.safetensors"));
    assert_ok(ctx, train(path, 0, toy_kind(&orders)));
    for (size_t i = 0; i < 3; i++) {
        change c = {.tensor = kept[i].name, .count = kept[i].count, .values = kept[i].values};
        assert_int_equal(rename(changed(path, &c), path), 0);
    }
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 4, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    wf_fit_desc desc = train_desc();
    desc.updates = 4;
    wf_flow *flow;
    assert_ok(ctx,
              wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, &desc, path, &flow));
    assert_int_equal(wf_flow_updates(flow), 4);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(wf_st_find(flow->file, kept[i].name)->data, kept[i].values,
                            kept[i].count * sizeof(float));
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

/* Bytes of a file; "" when it cannot be read. */
static char *text_of(const char *path) {
    char *text = NULL;
    size_t size;
    return wf_read_file(ctx, path, 1 << 20, &text, &size) == WF_OK ? text : strdup("");
}

/* A host program with a decimal comma writes and reads the same files. */
static void files_ignore_the_locale(void **state) {
    (void)state;
    char plain[256], comma[256];
    snprintf(plain, sizeof plain, "%s", in_folder("plain.safetensors"));
    snprintf(comma, sizeof comma, "%s", in_folder("comma.safetensors"));
    wf_flow *flow = NULL;
    assert_ok(ctx, train(plain, 0, toy_kind(&orders)));
    bool made = comma_locale_begin();
    wf_status opened = wf_flow_open_with(ctx, plain, toy_kind(&orders), &flow);
    double seen = flow == NULL ? 0 : flow->fit.ema;
    wf_flow_free(flow);
    wf_status trained = train(comma, 0, toy_kind(&orders));
    comma_locale_end();
    assert_int_equal(opened, WF_OK);
    assert_int_equal(trained, WF_OK);
    assert_true(seen == 0.9);
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, comma, &file));
    assert_string_equal(wf_st_meta(file, "fit.source_std"), "1");
    assert_null(strchr(wf_st_meta(file, "fit.lr"), ','));
    assert_null(strchr(wf_st_meta(file, "seconds"), ','));
    assert_non_null(strchr(wf_st_meta(file, "seconds"), '.'));
    wf_st_close(file);
    char *log = text_of(in_folder("comma.safetensors.log.jsonl"));
    assert_non_null(strstr(log, "\"lr\":0."));
    free(log);
    if (!made) skip("no localedef");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(absent_settings_have_their_old_values),
        cmocka_unit_test(damaged_axes_are_refused),
        cmocka_unit_test(deviations_are_positive),
        cmocka_unit_test(resumed_runs_keep_the_axes_of_the_file),
        cmocka_unit_test(files_ignore_the_locale),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
