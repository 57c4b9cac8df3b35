/* The validation loss: what it measures, when, what it keeps, and that training never notices
 * it. */
#include "wf_test.h"
#include "flow_fixture.h"

#include <jansson.h>

typedef struct heard {
    int warnings;
    char last[400];
} heard;

static void hear(void *user, const char *sentence) {
    heard *h = user;
    h->warnings++;
    snprintf(h->last, sizeof h->last, "%s", sentence);
}

/* Lines of the log that hold a validation. */
typedef struct curve {
    int n;
    double update[256], held_out[256], fitted[256];
    size_t by_source;
} curve;

static curve read_curve(wf_ctx *ctx, const char *path) {
    char name[300], *text;
    size_t size;
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    assert_ok(ctx, wf_read_file(ctx, name, 1 << 20, &text, &size));
    curve c = {0};
    for (char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        json_t *object = json_loadb(line, length, 0, NULL);
        assert_non_null(object);
        if (json_object_get(object, "validation") != NULL) {
            c.update[c.n] = json_number_value(json_object_get(object, "update"));
            c.held_out[c.n] = json_number_value(json_object_get(object, "validation"));
            c.fitted[c.n++] = json_number_value(json_object_get(object, "fitted"));
            c.by_source = json_array_size(json_object_get(object, "by_source"));
        }
        json_decref(object);
        line += length + 1;
    }
    free(text);
    return c;
}

static void assert_same_tensor(wf_ctx *ctx, const char *a, const char *b, const char *name) {
    wf_st_file *x, *y;
    assert_ok(ctx, wf_st_open(ctx, a, &x));
    assert_ok(ctx, wf_st_open(ctx, b, &y));
    const wf_st_tensor *s = wf_st_find(x, name), *t = wf_st_find(y, name);
    assert_non_null(s);
    assert_non_null(t);
    assert_memory_equal(s->data, t->data, s->count * sizeof(float));
    wf_st_close(x);
    wf_st_close(y);
}

static void training_does_not_notice_it(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0), *held_out = make_zoo(ctx, "2-3-2", 7, 1);
    wf_field_desc field = plain_field(0);
    wf_fit_desc desc = quick_fit();
    desc.validations = 10;
    const char *plain = in_folder("plain.safetensors"), *watched = in_folder("watched.safetensors");
    assert_ok(ctx, wf_flow_fit(ctx, &(wf_source){.zoo = zoo}, 1, &field, &desc, plain, NULL));
    assert_ok(ctx, wf_flow_fit(ctx, &(wf_source){.zoo = zoo, .held_out = held_out}, 1, &field,
                               &desc, watched, NULL));
    assert_same_tensor(ctx, plain, watched, "optim.second");
    assert_int_equal(read_curve(ctx, plain).n, 0);
    curve c = read_curve(ctx, watched);
    assert_int_equal(c.n, 10);
    assert_true(c.update[0] == 6 && c.update[9] == 60);
    assert_true(c.by_source == 0);
    for (int i = 0; i < c.n; i++) assert_true(c.held_out[i] > 0 && c.fitted[i] > 0);
    wf_zoo_free(zoo);
    wf_zoo_free(held_out);
    wf_ctx_free(ctx);
}

/* Interrupted at every place between two validations, and in them. */
static void a_resumed_run_has_the_same_curve(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0), *held_out = make_zoo(ctx, "2-3-2", 7, 1);
    wf_source source = {.zoo = zoo, .held_out = held_out};
    wf_field_desc field = plain_field(0);
    wf_fit_desc desc = quick_fit();
    desc.validations = 12;
    desc.kept = WF_KEPT_VALIDATION;
    const char *whole = in_folder("whole.safetensors");
    toy_orders orders = {0};
    assert_ok(ctx,
              wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, &desc, whole, NULL));
    curve a = read_curve(ctx, whole);
    assert_int_equal(a.n, 12);
    double lowest = a.held_out[0];
    for (int i = 1; i < a.n; i++) lowest = fmin(lowest, a.held_out[i]);
    /* In updates, in validations between them, and in the last of all. */
    for (long at = 1; at <= 84; at += at < 18 ? 1 : 33) {
        char name[64];
        snprintf(name, sizeof name, "parts_%ld.safetensors", at);
        const char *parts = in_folder(name);
        orders = (toy_orders){.interrupt_at = at};
        wf_ctx *own = test_ctx();
        assert_int_equal(
            wf_flow_fit_with(own, &source, 1, toy_kind(&orders), &field, &desc, parts, NULL),
            WF_ERR_INTERRUPTED);
        wf_ctx_free(own);
        orders = (toy_orders){0};
        wf_flow *flow;
        assert_ok(
            ctx, wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, &desc, parts, &flow));
        curve b = read_curve(ctx, parts);
        assert_memory_equal(&a, &b, sizeof a);
        assert_close(flow->state.best_loss, lowest, 1e-8 * lowest);
        wf_flow_free(flow);
        assert_same_tensor(ctx, whole, parts, "best.table");
        assert_same_tensor(ctx, whole, parts, "ema.table");
    }
    wf_zoo_free(zoo);
    wf_zoo_free(held_out);
    wf_ctx_free(ctx);
}

/* Four networks and a field that can learn them by heart. */
static void memorising_is_seen_and_said_once(void **state) {
    (void)state;
    heard h = {0};
    wf_ctx_desc with = {.threads = 2, .warn = hear, .user = &h};
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(&with, &ctx), WF_OK);
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 3, 0), *held_out = make_zoo(ctx, "2-3-2", 40, 1);
    wf_field_desc field = plain_field(0);
    field.node = field.edge = field.time = 16;
    field.blocks = 2;
    wf_fit_desc desc = quick_fit();
    desc.updates = 1500;
    desc.batch = 16;
    desc.ema = 0.98;
    const char *path = in_folder("memory.safetensors");
    assert_ok(ctx, wf_flow_fit(ctx, &(wf_source){.zoo = zoo, .held_out = held_out}, 1, &field,
                               &desc, path, NULL));
    curve c = read_curve(ctx, path);
    assert_int_equal(c.n, 100);
    assert_true(c.held_out[99] > 1.05 * c.fitted[99]);
    assert_int_equal(h.warnings, 1);
    assert_non_null(strstr(h.last, "the flow memorises: more networks or fewer updates"));
    assert_null(strstr(h.last, "are kept"));

    desc.kept = WF_KEPT_VALIDATION; /* the same losses, and the weights of the lowest one */
    path = in_folder("lowest.safetensors");
    assert_ok(ctx, wf_flow_fit(ctx, &(wf_source){.zoo = zoo, .held_out = held_out}, 1, &field,
                               &desc, path, NULL));
    assert_int_equal(h.warnings, 2);
    assert_non_null(strstr(h.last, "; the weights of the lowest are kept"));
    wf_zoo_free(zoo);
    wf_zoo_free(held_out);
    wf_ctx_free(ctx);
}

static void every_collection_has_its_loss(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *a = make_zoo(ctx, "2-3-2", 20, 0), *b = make_zoo(ctx, "3-4-2", 9, 1),
           *c = make_zoo(ctx, "2-3-2", 6, 2), *held_out = make_zoo(ctx, "3-4-2", 5, 3);
    const float cond[] = {1, 0, 0, 1, 0.5f, 0.5f};
    /* The first has networks set aside, the second held-out ones. */
    wf_source sources[] = {{.zoo = a, .cond = cond},
                           {.zoo = b, .cond = cond + 2, .held_out = held_out, .draw_weight = 3},
                           {.zoo = c, .cond = cond + 4}};
    wf_field_desc field = plain_field(2);
    wf_fit_desc desc = quick_fit();
    desc.updates = 12;
    desc.validations = 3;
    desc.set_aside = 4;
    const char *path = in_folder("three.safetensors");
    wf_flow *flow;
    assert_ok(ctx, wf_flow_fit(ctx, sources, 3, &field, &desc, path, &flow));
    assert_int_equal(wf_flow_source_at(flow, 0).count, 16);
    assert_int_equal(wf_flow_source_at(flow, 1).count, 9);
    assert_int_equal(wf_flow_source_at(flow, 2).count, 2);
    curve lines = read_curve(ctx, path);
    assert_int_equal(lines.n, 3);
    assert_int_equal(lines.by_source, 3);
    wf_flow_free(flow);
    wf_zoo_free(a);
    wf_zoo_free(b);
    wf_zoo_free(c);
    wf_zoo_free(held_out);
    wf_ctx_free(ctx);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0), *other = make_zoo(ctx, "2-4-2", 5, 1);
    wf_field_desc field = plain_field(0);
    wf_fit_desc desc = quick_fit();
    desc.set_aside = 20;
    const char *path = in_folder("never.safetensors");
    wf_source source = {.zoo = zoo};
    assert_int_equal(wf_flow_fit(ctx, &source, 1, &field, &desc, path, NULL), WF_ERR_USAGE);
    assert_non_null(strstr(wf_last_error(ctx), "set_aside = 20"));
    desc.set_aside = 0;
    desc.kept = WF_KEPT_VALIDATION;
    assert_int_equal(wf_flow_fit(ctx, &source, 1, &field, &desc, path, NULL), WF_ERR_USAGE);
    assert_non_null(strstr(wf_last_error(ctx), "train.set_aside"));
    source.held_out = other;
    assert_int_equal(wf_flow_fit(ctx, &source, 1, &field, &desc, path, NULL), WF_ERR_SHAPE);
    assert_non_null(strstr(wf_last_error(ctx), "2-4-2"));
    assert_false(wf_file_exists(path));
    wf_zoo_free(zoo);
    wf_zoo_free(other);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_does_not_notice_it),
        cmocka_unit_test(a_resumed_run_has_the_same_curve),
        cmocka_unit_test(memorising_is_seen_and_said_once),
        cmocka_unit_test(every_collection_has_its_loss),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
