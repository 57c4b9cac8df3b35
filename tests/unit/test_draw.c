/* What an update draws: sources, fresh and fixed noise, the laws of time, matching ahead; and which
 * weights are kept. */

#include "flow/match_ahead.h"
#include "flow_fixture.h"
#include "ctx_fixture.h"

typedef struct drawing {
    wf_ctx *ctx;
    wf_zoo *zoo;
    wf_training_set set;
    wf_draw draw;
    size_t params; /* of a network */
} drawing;

/* In place: a draw points into its set and into itself. */
static void drawing_open(drawing *d, const wf_fit_desc *desc) {
    *d = (drawing){.ctx = test_ctx()};
    d->zoo = make_zoo(d->ctx, "2-3-2", 6, 0);
    d->params = wf_zoo_graph(d->zoo)->n_params;
    wf_source source = {.zoo = d->zoo};
    wf_field field = {.cond_size = 0};
    assert_ok(d->ctx, wf_training_set_load(d->ctx, &source, 1, &field, desc, &d->set));
    assert_ok(d->ctx, wf_draw_create(d->ctx, &d->set, desc, &d->draw));
}

static void drawing_close(drawing *d) {
    wf_draw_free(&d->draw);
    wf_training_set_free(&d->set);
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

/* A number that tells networks apart, and one for noise vectors. */
static void note_epoch(drawing *d, size_t batch, size_t update, float *networks, float *noise) {
    assert_ok(d->ctx, wf_draw_batch(d->ctx, &d->draw, update));
    for (size_t b = 0; b < batch; b++) {
        networks[b] = d->draw.flow.w1[b * d->params];
        noise[b] = d->draw.flow.w0[b * d->params];
    }
}

static int distinct(const float *values, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < i && values[k] != values[i]) k++;
        count += k == i;
    }
    return count;
}

/* Are the incoming rows of the hidden units (2 weights each) those of the network, in any order,
 * each with its own bias and its own column after it? */
static bool is_copy(const float *w, const float *copy) {
    enum { hidden = 3, in = 2, out = 2, bias = 6, second = 9 };
    for (int u = 0; u < hidden; u++) {
        int v = 0;
        while (v < hidden && memcmp(copy + u * in, w + v * in, in * sizeof *w) != 0) v++;
        if (v == hidden || copy[bias + u] != w[bias + v]) return false;
        for (int o = 0; o < out; o++)
            if (copy[second + o * hidden + u] != w[second + o * hidden + v]) return false;
    }
    return memcmp(copy + second + out * hidden, w + second + out * hidden, out * sizeof *w) == 0;
}

/* With relabel each drawn network is a network of the collection with its hidden units in another
 * order; all six orders of three units occur, and everything else that is drawn stays. */
static void relabelled_copies_compute_the_same(void **state) {
    (void)state;
    wf_fit_desc desc = quick_fit();
    desc.coupling = WF_COUPLING_INDEPENDENT;
    drawing plain, copies;
    drawing_open(&plain, &desc);
    desc.relabel = true;
    drawing_open(&copies, &desc);
    float orders[320];
    int n = 0, moved = 0;
    for (size_t update = 0; update < 40; update++) {
        assert_ok(plain.ctx, wf_draw_batch(plain.ctx, &plain.draw, update));
        assert_ok(copies.ctx, wf_draw_batch(copies.ctx, &copies.draw, update));
        size_t all = desc.batch * plain.params;
        assert_memory_equal(plain.draw.flow.w0, copies.draw.flow.w0, all * sizeof(float));
        for (size_t b = 0; b < desc.batch; b++) {
            const float *w = plain.draw.flow.w1 + b * plain.params;
            const float *copy = copies.draw.flow.w1 + b * plain.params;
            assert_true(is_copy(w, copy));
            moved += memcmp(w, copy, plain.params * sizeof *w) != 0;
            if (plain.draw.network[b] == 0) orders[n++] = copy[0] + 3 * copy[2] + 5 * copy[4];
        }
    }
    assert_true(moved > 200); /* five of six orders differ from the network's own */
    assert_int_equal(distinct(orders, n), 6);
    drawing_close(&plain);
    drawing_close(&copies);
}

/* Six networks in batches of two or four: three batches an epoch, or one that leaves two out. */
static void epochs_visit_each_once(void **state) {
    (void)state;
    enum { epochs = 30 };
    for (size_t batch = 2; batch <= 4; batch += 2) {
        wf_fit_desc desc = quick_fit();
        desc.coupling = WF_COUPLING_INDEPENDENT;
        desc.noise_table = 6;
        desc.epochs = true;
        desc.batch = batch;
        drawing d;
        drawing_open(&d, &desc);
        size_t batches = 6 / batch, used = batches * batch;
        int together = 0, orders = 0;
        float networks[6], noise[6], before[6] = {0}, first = 0, with = 0;
        for (size_t e = 0; e < epochs; e++) {
            for (size_t k = 0; k < batches; k++)
                note_epoch(&d, batch, e * batches + k, networks + k * batch, noise + k * batch);
            assert_int_equal(distinct(networks, (int)used), used);
            assert_int_equal(distinct(noise, (int)used), used);
            orders += memcmp(networks, before, used * sizeof(float)) != 0;
            memcpy(before, networks, sizeof before);
            if (e == 0) first = networks[0], with = noise[0];
            for (size_t k = 0; k < used; k++) together += networks[k] == first && noise[k] == with;
        }
        assert_true(orders > epochs / 2);
        assert_true(together < epochs / 2); /* noise does not go with its network */
        drawing_close(&d);
    }
    /* any n: a permutation */
    for (uint32_t n = 1; n < 70; n++) {
        bool seen[70] = {false};
        wf_rng rng = wf_rng_at(3, n, WF_RNG_TEST, 0);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t to = wf_rng_permuted(&rng, n, i);
            assert_true(to < n && !seen[to]);
            seen[to] = true;
        }
    }
    /* fewer networks than places: every batch is an epoch that goes round */
    for (uint32_t b = 0; b < 4; b++)
        assert_int_equal(wf_epoch_network(1, 4, 10, 7, b), wf_epoch_network(1, 4, 10, 7, b + 4));
}

/* The loss of single batches of a small flow rises now and then, but seldom many times in a row. */
static void patience_ends_a_run(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 6, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    wf_fit_desc fit = quick_fit();
    fit.patience = 2;
    fit.updates = fit.schedule_updates = 400;
    wf_flow *flow;
    const char *path = in_folder("patience");
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, &flow));
    size_t ended = wf_flow_updates(flow);
    assert_true(ended > 2 && ended < 400);
    wf_flow_free(flow);
    /* it stays ended, and a cut run ends at the same update */
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, &flow));
    assert_int_equal(wf_flow_updates(flow), ended);
    wf_flow_free(flow);
    path = in_folder("patience2");
    fit.updates = ended - 1;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, NULL));
    fit.updates = 400;
    assert_ok(ctx, wf_flow_fit(ctx, &source, 1, &field, &fit, path, &flow));
    assert_int_equal(wf_flow_updates(flow), ended);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

static void times_follow_their_law(void **state) {
    (void)state;
    /* of t, of its logit, of t: mean and variance */
    const double expected[3][2] = {{0.5, 1.0 / 12}, {0, 1}, {2.0 / 3, 1.0 / 18}};
    for (int law = 0; law < 3; law++) {
        wf_fit_desc desc = quick_fit();
        desc.batch = 64;
        desc.time_law = (wf_time_law)law;
        bool logit = law == WF_TIME_LOGIT_NORMAL;
        drawing d;
        drawing_open(&d, &desc);
        double sum = 0, squares = 0, n = 0;
        for (size_t update = 0; update < 300; update++) {
            assert_ok(d.ctx, wf_draw_batch(d.ctx, &d.draw, update));
            for (size_t b = 0; b < desc.batch; b++) {
                double t = d.draw.flow.t[b], x = logit ? log(t / (1 - t)) : t;
                assert_true(t >= 0 && t < 1);
                sum += x, squares += x * x, n++;
            }
        }
        double mean = sum / n, variance = squares / n - mean * mean;
        assert_close(mean, expected[law][0], logit ? 0.03 : 0.01);
        assert_close(variance, expected[law][1], logit ? 0.05 : 0.003);
        drawing_close(&d);
    }
}

static wf_status fit_toy(const wf_zoo *zoo, const wf_fit_desc *desc, const char *path,
                         wf_flow **out) {
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    toy_orders orders = {0};
    return wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, desc, path, out);
}

/* The best weights are those a run has that stops just before the update with the lowest loss. */
static void best_weights_had_the_lowest_loss(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 20, 0);
    wf_fit_desc desc = quick_fit();
    desc.log_every = 1;
    desc.kept = WF_KEPT_BEST;
    desc.schedule_updates = desc.updates;
    wf_flow *best, *final;
    const char *path = in_folder("best");
    assert_ok(ctx, fit_toy(zoo, &desc, path, &best));
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
    assert_ok(ctx, fit_toy(zoo, &desc, in_folder("final"), &final));
    assert_int_equal(best->field->params, final->field->params);
    assert_memory_equal(best->params, final->params, best->field->params * sizeof(float));
    wf_flow_free(best);
    wf_flow_free(final);
    wf_zoo_free(zoo);
}

/* Three collections of two architectures. */
static void three_sources(const wf_fit_desc *desc, wf_zoo *zoos[3], wf_training_set *out) {
    static const char *const archs[] = {"2-5-2", "2-4-3-2", "2-5-2"};
    wf_source sources[3];
    for (int i = 0; i < 3; i++) {
        zoos[i] = make_zoo(ctx, archs[i], 4 + (size_t)i, (uint32_t)i);
        sources[i] = (wf_source){.zoo = zoos[i]};
    }
    wf_field field = {.cond_size = 0};
    assert_ok(ctx, wf_training_set_load(ctx, sources, 3, &field, desc, out));
}

/* A weight of 3 is three places of a round, which lie apart; batches of 8 cut rounds of 6
 * anywhere. */
static void weights_are_places(void **state) {
    (void)state;
    static const uint32_t round[] = {0, 1, 2, 1, 2, 1};
    wf_fit_desc desc = quick_fit();
    wf_zoo *zoos[3];
    wf_source sources[3];
    wf_field field = {.cond_size = 0};
    wf_training_set set;
    for (int i = 0; i < 3; i++) {
        zoos[i] = make_zoo(ctx, i == 1 ? "2-4-3-2" : "2-5-2", 4, (uint32_t)i);
        sources[i] = (wf_source){.zoo = zoos[i], .draw_weight = (const int[]){0, 3, 2}[i]};
    }
    assert_ok(ctx, wf_training_set_load(ctx, sources, 3, &field, &desc, &set));
    assert_int_equal(wf_round_length(&set), 6);
    for (int update = 0; update < 9; update++)
        for (int b = 0; b < 8; b++)
            assert_int_equal(wf_draw_source(&set, 8, (size_t)update, b),
                             round[(update * 8 + b) % 6]);
    wf_training_set_free(&set);
    sources[2].draw_weight = -1;
    assert_int_equal(wf_training_set_load(ctx, sources, 3, &field, &desc, &set), WF_ERR_USAGE);
    assert_non_null(strstr(wf_last_error(ctx), "a sampling weight of -1"));
    for (int i = 0; i < 3; i++) wf_zoo_free(zoos[i]);
}

static void sources_take_turns(void **state) {
    (void)state;
    wf_fit_desc desc = quick_fit();
    wf_zoo *zoos[3];
    wf_training_set set;
    wf_draw draw;
    three_sources(&desc, zoos, &set);
    assert_ok(ctx, wf_draw_create(ctx, &set, &desc, &draw));
    int count[3] = {0};
    bool seen[3][6] = {{false}};
    for (size_t update = 0; update < 60; update++) {
        assert_ok(ctx, wf_draw_batch(ctx, &draw, update));
        int family = 0;
        for (size_t place = 0; place < desc.batch; place++) {
            uint32_t drawn = draw.order[place], source = draw.source[drawn];
            assert_true(set.sources[source].family >= family); /* ordered by architecture */
            family = set.sources[source].family;
            count[source]++;
            seen[source][draw.network[drawn]] = true;
        }
        for (int i = 0; i < 3; i++) assert_true(abs(count[i] - count[0]) <= 1);
    }
    assert_true(count[0] == 160 && count[1] == 160 && count[2] == 160);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4 + i; k++) assert_true(seen[i][k]);
    wf_draw_free(&draw);
    wf_training_set_free(&set);
    for (int i = 0; i < 3; i++) wf_zoo_free(zoos[i]);
}

/* Relabellings found ahead, applied to plain noise, are the noise of a matched draw. */
static void matching_ahead_finds_the_same(void **state) {
    (void)state;
    enum { slots = 4, first = 3, end = 17 };
    wf_fit_desc matched = quick_fit(), plain = matched;
    plain.coupling = WF_COUPLING_INDEPENDENT;
    wf_zoo *zoos[3];
    wf_training_set set;
    wf_draw with, without;
    three_sources(&matched, zoos, &set);
    assert_ok(ctx, wf_draw_create(ctx, &set, &matched, &with));
    assert_ok(ctx, wf_draw_create(ctx, &set, &plain, &without));
    size_t units = wf_match_units(&set);
    assert_int_equal(units, 7);
    uint32_t *memory = calloc(slots * matched.batch * units, sizeof *memory);
    wf_match_ahead *ahead;
    assert_ok(ctx, wf_match_ahead_start(ctx, &set, &matched, first, end, memory, slots, &ahead));
    for (size_t update = first; update < end; update++) {
        assert_ok(ctx, wf_match_ahead_wait(ctx, ahead, update));
        assert_ok(ctx, wf_draw_batch(ctx, &with, update));
        assert_ok(ctx, wf_draw_batch(ctx, &without, update));
        for (size_t b = 0; b < matched.batch; b++) {
            const uint32_t *from = memory + (update % slots * matched.batch + b) * units;
            const wf_graph *graph = with.graphs[b];
            size_t start = with.shape.param_start[b];
            uint32_t perm[7];
            float moved[64];
            wf__match_to_perm(graph, from, perm);
            wf_graph_permute(graph, perm, without.flow.w0 + start, moved);
            assert_memory_equal(moved, with.flow.w0 + start, graph->n_params * sizeof(float));
        }
        wf_match_ahead_release(ahead, update + 1);
    }
    wf_match_ahead_stop(ahead);
    /* Stopped with work left. */
    assert_ok(ctx, wf_match_ahead_start(ctx, &set, &matched, 0, 1000000, memory, slots, &ahead));
    wf_match_ahead_stop(ahead);
    free(memory);
    wf_draw_free(&with);
    wf_draw_free(&without);
    wf_training_set_free(&set);
    for (int i = 0; i < 3; i++) wf_zoo_free(zoos[i]);
}

static void layers_may_count_alike(void **state) {
    (void)state;
    for (int by = 0; by < 2; by++) {
        wf_fit_desc desc = quick_fit();
        desc.loss_by = (wf_loss_by)by;
        drawing d;
        drawing_open(&d, &desc);
        assert_ok(d.ctx, wf_draw_batch(d.ctx, &d.draw, 0));
        /* 2-3-2: layers of 9 and 8 parameters */
        const wf_loss_weight *list = d.draw.flow.loss_weights[5];
        double sum[2] = {0};
        for (uint32_t i = 0; i < 17; i++) {
            while (i >= list->end) list++;
            sum[i >= 9] += (double)list->weight;
        }
        assert_close(sum[0], by ? 8.5 : 9, 1e-5);
        assert_close(sum[1], by ? 8.5 : 8, 1e-5);
        drawing_close(&d);
    }
}

/* 16 networks of 2-5-3 whose first layer varies by `spread`; bad: one's outputs overflow.
 * Parameters: 10 + 5 and 15 + 3. */
static wf_zoo *spread_zoo(double spread, bool bad) {
    enum { count = 16, params = 33, first = 15 };
    static float weights[count * params];
    wf_graph *graph;
    wf_zoo *zoo;
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, weights, count * params);
    for (int i = 0; i < count * params; i++)
        if (i % params < first) weights[i] = (float)(0.5 + spread * (double)weights[i]);
    for (int i = first; bad && i < params; i++) weights[i] = 3e38f;
    assert_ok(ctx, wf_graph_parse(ctx, "2-5-3", "tanh", 0, &graph));
    assert_ok(ctx, wf_zoo_from_memory(ctx, "mine", graph, weights, count, true, &zoo));
    wf_graph_free(graph);
    return zoo;
}

/* loss_by = errors: what the first layer has of the whole loss. */
static double first_share(double spread, const wf_fit_desc *desc) {
    wf_zoo *zoo = spread_zoo(spread, false);
    wf_source source = {.zoo = zoo};
    wf_field field = {.cond_size = 0};
    wf_training_set set;
    assert_ok(ctx, wf_training_set_load(ctx, &source, 1, &field, desc, &set));
    const wf_loss_weight *list = set.families[0].loss_weights;
    double sum[2] = {0};
    for (uint32_t i = 0; i < 33; i++) {
        while (i >= list->end) list++;
        sum[i >= 15] += (double)list->weight;
    }
    assert_close(sum[0] + sum[1], 33, 1e-4);
    wf_training_set_free(&set);
    wf_zoo_free(zoo);
    return sum[0] / 33;
}

/* The same by another way: noise in both layers in turn, inputs and deviates of the test's own. */
static double measured_share(double spread) {
    enum { params = 33, first = 15, examples = 400 };
    wf_zoo *zoo = spread_zoo(spread, false);
    static float x[2 * examples], w[params], y[3 * examples], z[3 * examples];
    double cost[2] = {0};
    wf_rng rng = wf_rng_at(2, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, x, 2 * examples);
    for (size_t k = 0; k < 16; k++)
        for (int layer = 0; layer < 2; layer++) {
            float deviates[params];
            wf_zoo_get(zoo, k, w);
            assert_ok(ctx, wf_graph_forward(ctx, wf_zoo_graph(zoo), w, x, examples, y));
            rng = wf_rng_at(3, (uint32_t)k, WF_RNG_TEST, (uint32_t)layer);
            wf_rng_normals(&rng, deviates, params);
            for (int i = layer ? first : 0; i < (layer ? params : first); i++)
                w[i] += (float)(0.5 * (layer ? 1 : spread)) * deviates[i];
            assert_ok(ctx, wf_graph_forward(ctx, wf_zoo_graph(zoo), w, x, examples, z));
            for (int e = 0; e < examples; e++) {
                float d[3], mean = 0;
                for (int o = 0; o < 3; o++) mean += (d[o] = z[3 * e + o] - y[3 * e + o]) / 3;
                for (int o = 0; o < 3; o++) cost[layer] += pow((double)(d[o] - mean), 2);
            }
        }
    wf_zoo_free(zoo);
    return cost[0] / (cost[0] + cost[1]);
}

static void layers_may_count_as_errors_cost(void **state) {
    (void)state;
    wf_fit_desc desc = quick_fit();
    desc.loss_by = WF_LOSS_BY_ERRORS;
    double wide = first_share(1, &desc), narrow = first_share(0.1, &desc);
    assert_close(wide, measured_share(1), 0.1);
    assert_close(narrow, measured_share(0.1), 0.1 * narrow + 0.01);
    assert_true(wide > 0.2 && narrow < 0.05);
    assert_close(first_share(1e-4, &desc), 0.001 / 1.001, 1e-6); /* no layer is given up */
    desc.seed = 5; /* the weights are the collection's alone */
    assert_true(first_share(1, &desc) == wide);
    wf_zoo *zoo = spread_zoo(1, true);
    wf_source source = {.zoo = zoo};
    wf_field field = {.cond_size = 0};
    wf_training_set set;
    assert_fails(ctx, wf_training_set_load(ctx, &source, 1, &field, &desc, &set), WF_ERR_INPUT,
                 "use loss_by = layers");
    wf_zoo_free(zoo);
}

/* Largest difference of the logits of two networks for some inputs. */
static double logit_gap(const wf_graph *graph, const float *a, const float *b) {
    enum { examples = 8 };
    float x[2 * examples], y[3 * examples], z[3 * examples];
    double gap = 0;
    wf_rng rng = wf_rng_at(4, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, x, 2 * examples);
    assert_ok(ctx, wf_graph_forward(ctx, graph, a, x, examples, y));
    assert_ok(ctx, wf_graph_forward(ctx, graph, b, x, examples, z));
    for (int i = 0; i < 3 * examples; i++) gap = fmax(gap, fabs((double)y[i] - (double)z[i]));
    return gap;
}

/* With signs each drawn network computes what a network of the collection does, with the signs of
 * half of its hidden units flipped; with relabel, too, in another order. */
static void flipped_copies_compute_the_same(void **state) {
    (void)state;
    enum { params = 33, hidden = 5 };
    for (int relabel = 0; relabel < 2; relabel++) {
        wf_fit_desc desc = quick_fit();
        desc.coupling = WF_COUPLING_INDEPENDENT;
        desc.signs = true;
        desc.relabel = relabel == 1;
        wf_zoo *zoo = spread_zoo(1, false);
        const wf_graph *graph = wf_zoo_graph(zoo);
        wf_source source = {.zoo = zoo};
        wf_field field = {.cond_size = 0};
        wf_training_set set;
        wf_draw draw;
        assert_ok(ctx, wf_training_set_load(ctx, &source, 1, &field, &desc, &set));
        assert_ok(ctx, wf_draw_create(ctx, &set, &desc, &draw));
        int flipped = 0, all = 0;
        for (size_t update = 0; update < 40; update++) {
            assert_ok(ctx, wf_draw_batch(ctx, &draw, update));
            for (size_t b = 0; b < desc.batch; b++) {
                float own[params], copy[params];
                wf_zoo_get(zoo, draw.network[draw.order[b]], own);
                wf_norm_invert(&set.families[0].norm, graph, draw.flow.w1 + b * params, copy);
                assert_close(logit_gap(graph, own, copy), 0, 1e-4);
                for (int u = 0; u < hidden && !relabel; u++, all++)
                    flipped += own[2 * u] * copy[2 * u] < 0;
            }
        }
        if (!relabel) assert_close(flipped / (double)all, 0.5, 0.05);
        wf_draw_free(&draw);
        wf_training_set_free(&set);
        wf_zoo_free(zoo);
    }
    wf_fit_desc desc = quick_fit();
    desc.signs = true;
    wf_zoo *relu = make_zoo(ctx, "2-3-2", 6, 0);
    wf_source source = {.zoo = relu};
    wf_field field = {.cond_size = 0};
    wf_training_set set;
    assert_fails(ctx, wf_training_set_load(ctx, &source, 1, &field, &desc, &set), WF_ERR_USAGE,
                 "train.signs takes chains of linear layers with tanh; these are networks of 2-3-2 "
                 "with relu");
    desc.principal = true;
    assert_fails(ctx, wf_fit_check(ctx, &desc), WF_ERR_USAGE, "do not go together");
    wf_zoo_free(relu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_take_turns),
        cmocka_unit_test(weights_are_places),
        cmocka_unit_test(matching_ahead_finds_the_same),
        cmocka_unit_test(noise_comes_from_its_table),
        cmocka_unit_test(epochs_visit_each_once),
        cmocka_unit_test(relabelled_copies_compute_the_same),
        cmocka_unit_test(patience_ends_a_run),
        cmocka_unit_test(times_follow_their_law),
        cmocka_unit_test(layers_may_count_alike),
        cmocka_unit_test(layers_may_count_as_errors_cost),
        cmocka_unit_test(flipped_copies_compute_the_same),
        cmocka_unit_test(best_weights_had_the_lowest_loss),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
