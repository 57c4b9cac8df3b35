/* What an update draws: fresh and fixed noise, the laws of time; and which weights are kept. */
#include "wf_test.h"

#include "flow_fixture.h"

typedef struct drawing {
    wf_ctx *ctx;
    wf_zoo *zoo;
    wf_stocks stocks;
    wf_draw draw;
    size_t params; /* of a network */
} drawing;

/* In place: a draw points into its stocks and into itself. */
static void drawing_open(drawing *d, const wf_fit_desc *desc) {
    *d = (drawing){.ctx = test_ctx()};
    d->zoo = make_zoo(d->ctx, "2-3-2", 6, 0);
    d->params = wf_zoo_graph(d->zoo)->n_params;
    wf_source source = {.zoo = d->zoo};
    wf_field_desc field = plain_field(0);
    assert_ok(d->ctx, wf_stocks_load(d->ctx, &source, 1, &field, desc, &d->stocks));
    assert_ok(d->ctx, wf_draw_create(d->ctx, &d->stocks, desc, &d->draw));
}

static void drawing_close(drawing *d) {
    wf_draw_free(&d->draw);
    wf_stocks_free(&d->stocks);
    wf_zoo_free(d->zoo);
    wf_ctx_free(d->ctx);
}

/* Distinct noise vectors over some updates, by their first number. */
static int distinct_noise(size_t table) {
    wf_fit_desc desc = quick_fit();
    desc.coupling = WF_COUPLING_INDEPENDENT; /* matching would move the numbers */
    desc.noise_table = table;
    drawing d;
    drawing_open(&d, &desc);
    float seen[512];
    int count = 0;
    for (size_t update = 0; update < 40; update++) {
        assert_ok(d.ctx, wf_draw_batch(d.ctx, &d.draw, update));
        for (size_t b = 0; b < desc.batch; b++) {
            float first = d.draw.flow.w0[b * d.params];
            int k = 0;
            while (k < count && seen[k] != first) k++;
            if (k == count) seen[count++] = first;
        }
    }
    drawing_close(&d);
    return count;
}

static void noise_comes_from_its_table(void **state) {
    (void)state;
    assert_int_equal(distinct_noise(1), 1);
    assert_int_equal(distinct_noise(5), 5);
    assert_true(distinct_noise(0) > 310); /* 320 draws of 24 bits */
}

static void times_follow_their_law(void **state) {
    (void)state;
    for (int law = 0; law < 2; law++) {
        wf_fit_desc desc = quick_fit();
        desc.batch = 64;
        desc.time_law = (wf_time_law)law;
        drawing d;
        drawing_open(&d, &desc);
        double sum = 0, squares = 0, n = 0;
        for (size_t update = 0; update < 300; update++) {
            assert_ok(d.ctx, wf_draw_batch(d.ctx, &d.draw, update));
            for (size_t b = 0; b < desc.batch; b++) {
                double t = d.draw.flow.t[b], x = law ? log(t / (1 - t)) : t;
                assert_true(t >= 0 && t < 1);
                sum += x, squares += x * x, n++;
            }
        }
        double mean = sum / n, variance = squares / n - mean * mean;
        assert_close(mean, law ? 0 : 0.5, 0.03);
        assert_close(variance, law ? 1 : 1.0 / 12, law ? 0.05 : 0.003);
        drawing_close(&d);
    }
}

static wf_status fit_toy(wf_ctx *ctx, const wf_zoo *zoo, const wf_fit_desc *desc, const char *path,
                         wf_flow **out) {
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    toy_orders orders = {0};
    return wf_flow_fit_with(ctx, &source, 1, &field, desc, path, toy_make, &orders, out);
}

/* The best weights are those a run has that stops just before the update with the lowest loss. */
static void best_weights_had_the_lowest_loss(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_fit_desc desc = quick_fit();
    desc.log_every = 1;
    desc.kept = WF_KEPT_BEST;
    desc.schedule_updates = desc.updates;
    wf_flow *best, *final;
    const char *path = file_name("best");
    assert_ok(ctx, fit_toy(ctx, zoo, &desc, path, &best));
    char name[300], line[512];
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    FILE *log = fopen(name, "r");
    assert_non_null(log);
    double lowest = INFINITY;
    size_t update, at = 0;
    while (fgets(line, sizeof line, log) != NULL) {
        double loss;
        assert_int_equal(sscanf(line, "{\"update\":%zu,\"loss\":%lf", &update, &loss), 2);
        if (loss < lowest) lowest = loss, at = update;
    }
    fclose(log);
    assert_true(at > 1);
    desc.kept = WF_KEPT_FINAL;
    desc.updates = at - 1;
    assert_ok(ctx, fit_toy(ctx, zoo, &desc, file_name("final"), &final));
    assert_int_equal(best->velocity.params, final->velocity.params);
    assert_memory_equal(best->params, final->params, best->velocity.params * sizeof(float));
    wf_flow_free(best);
    wf_flow_free(final);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_comes_from_its_table),
        cmocka_unit_test(times_follow_their_law),
        cmocka_unit_test(best_weights_had_the_lowest_loss),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
