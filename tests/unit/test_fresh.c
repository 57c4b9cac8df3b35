/* Fresh networks: which ones a pool holds, that pieces of a run and threads agree on them, and what
 * happens when one diverges. */
#include "wf_test.h"
#include "clusters.h"
#include "flow/trainer.h"
#include "flow_fixture.h"

#include <jansson.h>

enum { wanted = 32, slice = wanted / WF_FRESH_SLICES };

typedef struct setting {
    wf_ctx *ctx;
    wf_dataset *data;
    wf_zoo *zoo, *held_out;
    wf_fresh fresh;
    wf_source source;
    wf_fit_desc fit;
} setting;

static wf_zoo *trained(setting *s, const char *arch, size_t first, size_t count, const char *name) {
    wf_graph *graph;
    wf_zoo *zoo;
    wf_zoo_desc desc = s->fresh.zoo;
    desc.first = first;
    desc.count = count;
    const char *path = in_folder(name);
    unlink(path);
    assert_ok(s->ctx, wf_graph_parse(s->ctx, arch, "relu", 0, &graph));
    assert_ok(s->ctx, wf_zoo_train(s->ctx, graph, s->data, &desc, path, NULL));
    assert_ok(s->ctx, wf_zoo_open(s->ctx, path, &zoo));
    wf_graph_free(graph);
    return zoo;
}

static void set_up(setting *s) {
    *s = (setting){.ctx = test_ctx(), .data = data_of(3, 2, 40, 10)};
    s->fresh = (wf_fresh){.data = s->data, .zoo = wf_zoo_desc_default()};
    s->fresh.zoo.epochs = 1;
    s->fresh.zoo.batch = 16;
    s->zoo = trained(s, "3-4-2", 0, wanted, "zoo.safetensors");
    s->held_out = trained(s, "3-4-2", wanted, 9, "held_out.safetensors");
    s->source = (wf_source){.zoo = s->zoo, .held_out = s->held_out, .fresh = &s->fresh};
    s->fit = quick_fit();
    s->fit.fresh_rate = 0.5; /* a renewal every 4 updates */
    s->fit.validations = 12;
}

static void end(setting *s) {
    wf_zoo_free(s->zoo);
    wf_zoo_free(s->held_out);
    data_free(s->data);
    wf_ctx_free(s->ctx);
}

/* A pool that is open, before it is filled. */
typedef struct open_pool {
    wf_training_set set;
    wf_fresh_pool pool;
} open_pool;

static void pool_open(const setting *s, wf_ctx *ctx, open_pool *out) {
    static const wf_field field;
    assert_ok(ctx, wf_training_set_load(ctx, &s->source, 1, &field, &s->fit, &out->set));
    assert_ok(ctx, wf_fresh_pool_create(ctx, &s->source, &out->set, &out->pool));
}

static void pool_close(open_pool *p) {
    wf_fresh_pool_free(&p->pool);
    wf_training_set_free(&p->set);
}

/* Network k of the fresh ones, in the family's normalised space. */
static void plain_network(const setting *s, const wf_family *family, size_t k, float *w) {
    wf_zoo_desc desc = s->fresh.zoo;
    desc.first = WF_FRESH_FIRST + k;
    desc.count = 1;
    wf_zoo_init(family->graph, desc.seed, WF_FRESH_FIRST + (uint32_t)k, w);
    assert_ok(s->ctx, wf_zoo_train_from(s->ctx, family->graph, s->data, &desc, w));
    wf_norm_apply(&family->norm, family->graph, w, w);
}

/* After any number of renewals a pool holds the newest networks, each the same however it got
 * there and on however many threads. */
static void a_pool_is_a_function_of_its_renewals(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    wf_ctx *one;
    assert_ok(s.ctx, wf_ctx_create(&(wf_ctx_desc){.threads = 1}, &one));
    open_pool renewed;
    pool_open(&s, s.ctx, &renewed);
    assert_ok(s.ctx, wf_fresh_pool_fill(s.ctx, &renewed.pool, 0));
    assert_ok(s.ctx, wf_training_set_normalise(s.ctx, &s.fit, &renewed.set));
    const wf_family *family = &renewed.set.families[0];
    size_t n = family->graph->n_params;
    float *plain = calloc(n, sizeof *plain);
    for (size_t renewals = 0; renewals <= 35; renewals++) {
        for (size_t k = renewals * slice; k < renewals * slice + wanted; k += 5) {
            plain_network(&s, family, k, plain);
            assert_memory_equal(family->weights + k % wanted * n, plain, n * sizeof *plain);
        }
        if (renewals % 7 == 0) { /* as a resumed run makes it */
            open_pool again;
            pool_open(&s, one, &again);
            assert_ok(one, wf_fresh_pool_fill(one, &again.pool, renewals));
            assert_ok(one, wf_norm_create(one, family->norm.n, &again.set.families[0].norm));
            memcpy(again.set.families[0].norm.mean, family->norm.mean, (size_t)family->norm.n * 4);
            memcpy(again.set.families[0].norm.std, family->norm.std, (size_t)family->norm.n * 4);
            assert_ok(one, wf_training_set_normalise(one, &s.fit, &again.set));
            assert_memory_equal(again.set.families[0].weights, family->weights,
                                (family->count + family->held_out) * n * sizeof(float));
            pool_close(&again);
        }
        int place;
        assert_ok(s.ctx, wf_fresh_pool_renew(s.ctx, &renewed.pool, &place));
        assert_int_equal(place, renewals % WF_FRESH_SLICES);
    }
    assert_int_equal(wf_fresh_pool_made(&renewed.pool), wanted + 36 * slice);
    free(plain);
    pool_close(&renewed);
    wf_ctx_free(one);
    end(&s);
}

/* Neither those of the collection nor held-out ones, which are validated with and nothing else. */
static void collections_are_never_fitted(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    s.fit.normalise = false;
    open_pool p;
    pool_open(&s, s.ctx, &p);
    assert_ok(s.ctx, wf_fresh_pool_fill(s.ctx, &p.pool, 3));
    const wf_family *family = &p.set.families[0];
    size_t n = family->graph->n_params;
    float *w = calloc(n, sizeof *w);
    const wf_zoo *zoos[] = {s.zoo, s.held_out};
    for (int z = 0; z < 2; z++)
        for (size_t k = 0; k < wf_zoo_count(zoos[z]); k++) {
            wf_zoo_get(zoos[z], k, w);
            for (size_t i = 0; i < family->count; i++)
                assert_memory_not_equal(family->weights + i * n, w, n * sizeof *w);
            if (z == 1) assert_memory_equal(family->weights + (family->count + k) * n, w, n * 4);
        }
    free(w);
    pool_close(&p);
    wf_zoo *high = trained(&s, "3-4-2", WF_FRESH_FIRST, 3, "high.safetensors");
    wf_source source = s.source;
    source.held_out = high;
    s.fit.normalise = true;
    toy_orders orders = {0};
    wf_field_desc field = plain_field(0);
    assert_fails(s.ctx,
                 wf_flow_fit_with(s.ctx, &source, 1, toy_kind(&orders), &field, &s.fit,
                                  in_folder("high_flow.safetensors"), NULL),
                 WF_ERR_USAGE, "are kept for fresh networks");
    wf_zoo_free(high);
    end(&s);
}

/* The log without its times; the caller frees it. */
static json_t *read_log(wf_ctx *ctx, const char *path) {
    char name[300], *text;
    size_t size;
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    assert_ok(ctx, wf_read_file(ctx, name, 1 << 22, &text, &size));
    json_t *lines = json_array();
    for (char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        json_t *object = json_loadb(line, strcspn(line, "\n"), 0, NULL);
        assert_non_null(object);
        json_object_del(object, "seconds");
        json_array_append_new(lines, object);
    }
    free(text);
    return lines;
}

static void assert_same_files(wf_ctx *ctx, const char *a, const char *b) {
    json_t *logs[] = {read_log(ctx, a), read_log(ctx, b)};
    assert_true(json_array_size(logs[0]) > 20);
    assert_true(json_equal(logs[0], logs[1]));
    json_decref(logs[0]);
    json_decref(logs[1]);
    wf_st_file *x, *y;
    assert_ok(ctx, wf_st_open(ctx, a, &x));
    assert_ok(ctx, wf_st_open(ctx, b, &y));
    const char *tensors[] = {"weights.table", "ema.table", "optim.second", "norm.0.std"};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const wf_st_tensor *s = wf_st_find(x, tensors[i]), *t = wf_st_find(y, tensors[i]);
        assert_memory_equal(s->data, t->data, s->count * sizeof(float));
    }
    wf_st_close(x);
    wf_st_close(y);
}

/* Broken off in updates, in renewals and in validations, of one task or of two architectures. */
static void a_resumed_run_is_the_uninterrupted_one(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    wf_zoo *other = trained(&s, "3-5-3-2", 0, 20, "other.safetensors");
    static const float cond[2][2] = {{1, 0}, {0, 1}};
    wf_source both[2] = {s.source, {.zoo = other, .fresh = &s.fresh}};
    both[0].cond = cond[0], both[1].cond = cond[1];
    toy_orders orders = {0};
    for (int n = 1; n <= 2; n++) {
        const wf_source *sources = n == 1 ? &s.source : both;
        wf_field_desc field = plain_field(n == 1 ? 0 : 2);
        char whole[64];
        snprintf(whole, sizeof whole, "whole_%d.safetensors", n);
        orders = (toy_orders){0};
        assert_ok(s.ctx, wf_flow_fit_with(s.ctx, sources, n, toy_kind(&orders), &field, &s.fit,
                                          in_folder(whole), NULL));
        for (long at = 1; at <= 84; at += at < 16 ? 1 : 17) {
            char name[64];
            snprintf(name, sizeof name, "parts_%d_%ld.safetensors", n, at);
            orders = (toy_orders){.interrupt_at = (int)at};
            wf_ctx *own = test_ctx();
            assert_int_equal(wf_flow_fit_with(own, sources, n, toy_kind(&orders), &field, &s.fit,
                                              in_folder(name), NULL),
                             WF_ERR_INTERRUPTED);
            wf_ctx_free(own);
            orders = (toy_orders){0};
            assert_ok(s.ctx, wf_flow_fit_with(s.ctx, sources, n, toy_kind(&orders), &field, &s.fit,
                                              in_folder(name), NULL));
            assert_same_files(s.ctx, in_folder(whole), in_folder(name));
        }
    }
    /* Other settings make other networks: such a run is not continued. */
    wf_fresh longer = s.fresh;
    longer.zoo.epochs = 2;
    s.source.fresh = &longer;
    wf_field_desc field = plain_field(0);
    s.fit.updates = 70;
    s.fit.schedule_updates = 60;
    assert_fails(s.ctx,
                 wf_flow_fit_with(s.ctx, &s.source, 1, toy_kind(&orders), &field, &s.fit,
                                  in_folder("whole_1.safetensors"), NULL),
                 WF_ERR_USAGE, "source.0.hash");
    wf_zoo_free(other);
    end(&s);
}

/* Before the pool is filled nothing is there to go on from. */
static void interrupted_while_the_pool_is_filled(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    toy_orders orders = {0};
    wf_field_desc field = plain_field(0);
    wf_interrupt(s.ctx);
    assert_int_equal(wf_flow_fit_with(s.ctx, &s.source, 1, toy_kind(&orders), &field, &s.fit,
                                      in_folder("early.safetensors"), NULL),
                     WF_ERR_INTERRUPTED);
    assert_false(wf_file_exists(in_folder("early.safetensors")));
    end(&s);
}

/* Without a rate it follows from measured times, once: the checkpoint has it. */
static void a_measured_rate_stays(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    s.fit.fresh_rate = 0;
    s.fit.updates = s.fit.schedule_updates = 100;
    toy_orders orders = {.interrupt_at = 90};
    wf_field_desc field = plain_field(0);
    wf_ctx *own = test_ctx();
    const char *path = in_folder("measured.safetensors");
    s.source.held_out = NULL;
    assert_int_equal(
        wf_flow_fit_with(own, &s.source, 1, toy_kind(&orders), &field, &s.fit, path, NULL),
        WF_ERR_INTERRUPTED);
    wf_ctx_free(own);
    wf_flow *flow;
    assert_ok(s.ctx, wf_flow_open_with(s.ctx, path, toy_kind(&orders), &flow));
    size_t every = flow->state.fresh_every, from = flow->state.fresh_from;
    assert_true(every > 0);
    assert_int_equal(from, 64);
    wf_flow_free(flow);
    orders = (toy_orders){0};
    assert_ok(s.ctx, wf_flow_fit_with(s.ctx, &s.source, 1, toy_kind(&orders), &field, &s.fit, path,
                                      &flow));
    assert_int_equal(flow->state.fresh_every, every);
    assert_int_equal(flow->state.fresh_from, from);
    wf_flow_free(flow);
    end(&s);
}

static int warnings;
static void hear(void *user, const char *sentence) {
    (void)user;
    warnings += strstr(sentence, "diverge") != NULL;
}

/* Rates up to 1e30: some networks of every slice are finite, others are not. */
static void diverged_networks_are_left_out(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    wf_ctx *ctx;
    assert_ok(s.ctx, wf_ctx_create(&(wf_ctx_desc){.threads = 2, .warn = hear}, &ctx));
    s.fresh.zoo.optimizer = WF_ZOO_SGD;
    s.fresh.zoo.epochs = 4;
    s.fresh.zoo.lr = 1e-3;
    s.fresh.zoo.lr_max = 1e8;
    s.fit.fresh_pool = 20 * WF_FRESH_SLICES;
    open_pool p;
    pool_open(&s, ctx, &p);
    assert_ok(ctx, wf_fresh_pool_fill(ctx, &p.pool, 0));
    const wf_family *family = &p.set.families[0];
    assert_int_equal(family->count, 20 * WF_FRESH_SLICES);
    for (size_t i = 0; i < family->count * family->graph->n_params; i++)
        assert_true(isfinite(family->weights[i]));
    assert_true(p.pool.diverged > 10);
    assert_int_equal(warnings, 1);
    pool_close(&p);
    s.fresh.zoo.lr = 1e29;
    s.fresh.zoo.lr_max = 0;
    pool_open(&s, ctx, &p);
    assert_fails(ctx, wf_fresh_pool_fill(ctx, &p.pool, 0), WF_ERR_DIVERGED, "lower zoo.lr");
    pool_close(&p);
    wf_ctx_free(ctx);
    end(&s);
}

static void what_cannot_be_fresh(void **state) {
    (void)state;
    setting s;
    set_up(&s);
    wf_source mixed[2] = {s.source, s.source};
    mixed[1].fresh = NULL;
    toy_orders orders = {0};
    wf_field_desc field = plain_field(0);
    assert_fails(s.ctx,
                 wf_flow_fit_with(s.ctx, mixed, 2, toy_kind(&orders), &field, &s.fit,
                                  in_folder("mixed.safetensors"), NULL),
                 WF_ERR_USAGE, "all or none");
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_is_a_function_of_its_renewals),
        cmocka_unit_test(collections_are_never_fitted),
        cmocka_unit_test(a_resumed_run_is_the_uninterrupted_one),
        cmocka_unit_test(interrupted_while_the_pool_is_filled),
        cmocka_unit_test(a_measured_rate_stays),
        cmocka_unit_test(diverged_networks_are_left_out),
        cmocka_unit_test(what_cannot_be_fresh),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
