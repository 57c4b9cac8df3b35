/* Sampling, guidance, normalisation of sampled networks, and the controls, around a toy field. */
#include "flow/draw.h"
#include "flow_fixture.h"
#include "ctx_fixture.h"

/* --- sampling --------------------------------------------------------------------------------- */

static wf_flow *fitted(const wf_source *sources, int n, int cond_size, const wf_fit_desc *desc,
                       const char *name, toy_orders *orders) {
    wf_field_desc field = plain_field(cond_size);
    wf_flow *flow;
    assert_ok(ctx, wf_flow_fit_with(ctx, sources, n, toy_kind(orders), &field, desc,
                                    in_folder(name), &flow));
    *orders = (toy_orders){0};
    return flow;
}

static void networks_do_not_depend_on_batching(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-6-5-2", 30, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc fit_desc = quick_fit();
    toy_orders orders = {0};
    wf_flow *flow = fitted(&source, 1, 0, &fit_desc, "batching", &orders);
    const wf_graph *graph = wf_zoo_graph(zoo);
    size_t p = graph->n_params, n = 11;
    float *all = calloc(n * p, 4), *direct = calloc(n * p, 4), *part = calloc(n * p, 4);
    float *again = calloc(n * p, 4);
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_DOPRI5; solver++) {
        wf_sample_desc desc = wf_sample_desc_default();
        desc.solver = (wf_solver)solver;
        desc.steps = 12;
        desc.refine_cycles = 2;
        desc.seed = 8;
        wf_sample_stats stats;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, n, &desc, all, direct, &stats));
        assert_true(memcmp(all, direct, n * p * sizeof *all) != 0);
        if (solver != WF_SOLVER_DOPRI5) {
            int stages = solver == WF_SOLVER_EULER ? 1 : solver == WF_SOLVER_HEUN ? 2 : 4;
            assert_close(stats.evaluations, (12 + 3 + 3) * stages, 0);
        } else {
            assert_true(stats.accepted > 0 && stats.evaluations > 6);
        }
        /* Euler's 12 steps have three from 0.75: the same three by their number. Other solvers
         * differ there alone. */
        desc.refine_steps = 3;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, n, &desc, part, again, NULL));
        assert_memory_equal(direct, again, n * p * sizeof *all);
        assert_true((memcmp(all, part, n * p * sizeof *all) == 0) == (solver == WF_SOLVER_EULER));
        desc.refine_steps = 1;
        wf_sample_stats jumps;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, n, &desc, part, NULL, &jumps));
        if (solver == WF_SOLVER_HEUN) assert_close(jumps.evaluations, 12 * 2 + 2, 0);
        desc.refine_steps = 0;
        desc.batch = 3;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, n, &desc, part, NULL, NULL));
        assert_memory_equal(all, part, n * p * sizeof *all);
        for (size_t k = 0; k < n; k += 4) {
            desc.first = k;
            assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, 1, &desc, part, NULL, NULL));
            assert_memory_equal(all + k * p, part, p * sizeof *all);
        }
        desc.first = 0;
        desc.refine_cycles = 0;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, n, &desc, part, NULL, NULL));
        assert_memory_equal(direct, part, n * p * sizeof *all);
    }
    free(all);
    free(direct);
    free(part);
    free(again);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

/* With F = 0 and preconditioning the flow is exact for unit Gaussians, so w(1) = w(0): the direct
 * sample is its noise on the scale of the collection; at another width, where the second layer has
 * 9 inputs instead of 6, that layer's scale goes with 1/sqrt(inputs). */
static void exact_flow_returns_its_noise(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-6-2", 50, 0);
    wf_source source = {.zoo = zoo};
    wf_fit_desc fit_desc = quick_fit();
    toy_orders orders = {0};
    wf_flow *flow = fitted(&source, 1, 0, &fit_desc, "exact", &orders);
    memset(flow->params, 0, toy_params * sizeof(float));
    wf_graph *wide;
    assert_ok(ctx, wf_graph_parse(ctx, "2-9-2", "relu", 0, &wide));
    float *load;
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 0, 50, &load));
    wf_norm norm;
    assert_ok(ctx, wf_norm_fit(ctx, wf_zoo_graph(zoo), load, 50, &norm));
    size_t p = wide->n_params;
    float *w = calloc(3 * p, 4), *noise = calloc(p, 4);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.seed = 12;
    desc.rtol = desc.atol = 1e-8;
    assert_ok(ctx, wf_flow_sample(ctx, flow, wide, NULL, 3, &desc, w, NULL, NULL));
    for (uint32_t k = 0; k < 3; k++) {
        wf_rng rng = wf_rng_at(12, k, WF_RNG_SAMPLE, 0);
        wf_rng_normals(&rng, noise, p);
        for (int b = 0; b < wide->n_blocks; b++)
            for (size_t i = 0; i < wide->blocks[b].count; i++) {
                size_t at = wide->blocks[b].offset + i;
                double scale = wide->blocks[b].layer == 1 ? sqrt(6.0 / 9) : 1;
                assert_close(w[k * p + at], scale * (norm.mean[b] + norm.std[b] * noise[at]), 2e-5);
            }
    }
    wf_norm_free(&norm);
    wf_graph *deep;
    assert_ok(ctx, wf_graph_parse(ctx, "2-9-9-2", "relu", 0, &deep));
    assert_fails(ctx, wf_flow_sample(ctx, flow, deep, NULL, 1, &desc, w, NULL, NULL),
                 WF_ERR_UNSUPPORTED, "2-9-9-2");
    free(load);
    free(w);
    free(noise);
    wf_graph_free(wide);
    wf_graph_free(deep);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

/* One Euler step of the sampler from t = 0 is w0 + v(w0, 0) with the v that training compares to
 * its target. */
static void sampler_and_objective_agree(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-6-3", 20, 0);
    wf_source source = {.zoo = zoo};
    for (int way = 0; way < 3; way++) { /* plain, preconditioned, along principal axes */
        bool precondition = way > 0;
        wf_fit_desc fit_desc = quick_fit();
        fit_desc.precondition = precondition;
        fit_desc.principal = way == 2;
        fit_desc.source_std = 1.3;
        toy_orders orders = {0};
        wf_flow *flow = fitted(&source, 1, 0, &fit_desc,
                               way == 0   ? "agree"
                               : way == 1 ? "agree_p"
                                          : "agree_a",
                               &orders);
        wf_training_set set;
        wf_field field = {.cond_size = 0};
        assert_ok(ctx, wf_training_set_load(ctx, &source, 1, &field, &fit_desc, &set));
        assert_ok(ctx, wf_training_set_rotate(ctx, &fit_desc, &set));
        wf_draw draw;
        fit_desc.batch = 1;
        fit_desc.coupling = WF_COUPLING_INDEPENDENT;
        assert_ok(ctx, wf_draw_create(ctx, &set, &fit_desc, &draw));
        assert_ok(ctx, wf_draw_batch(ctx, &draw, 0));
        const wf_graph *graph = wf_zoo_graph(zoo);
        size_t p = graph->n_params;
        wf_rng rng = wf_rng_at(6, 2, WF_RNG_SAMPLE, 0);
        wf_rng_normals(&rng, draw.flow.w0, p);
        for (size_t i = 0; i < p; i++) draw.flow.w0[i] *= 1.3f;
        draw.flow.t[0] = 0;
        wf_path path = {precondition, 1.3, 0};
        double loss;
        wf_flow_interpolate(ctx, &path, 1, 1, &draw.flow);
        assert_ok(ctx, wf_flow_loss(ctx, flow->field, flow->params, &draw.flow, &loss, NULL));
        float expected[64], w[64], squares = 0;
        for (size_t i = 0; i < p; i++) {
            expected[i] = draw.flow.w0[i] + draw.flow.f[i];
            squares += draw.flow.f[i] * draw.flow.f[i];
        }
        assert_true(squares > 0.1f);
        assert_ok(ctx, wf_principal_invert(ctx, &set.families[0].principal, graph, expected, 1));
        wf_norm_invert(&set.families[0].norm, graph, expected, expected);
        wf_sample_desc desc = wf_sample_desc_default();
        desc.solver = WF_SOLVER_EULER;
        desc.steps = 1;
        desc.seed = 6;
        desc.first = 2;
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, 1, &desc, w, NULL, NULL));
        assert_close(relative_difference(w, expected, p), 0, 1e-6);
        wf_draw_free(&draw);
        wf_training_set_free(&set);
        wf_flow_free(flow);
    }
    wf_zoo_free(zoo);
}

static void normalisation_is_per_architecture(void **state) {
    (void)state;
    /* The first and third share an architecture, hence a family and its normalisation. */
    wf_zoo *zoos[3] = {make_zoo(ctx, "2-3-2", 10, 0), make_zoo(ctx, "2-3-3", 6, 1),
                       make_zoo(ctx, "2-3-2", 4, 2)};
    wf_source sources[3] = {{.zoo = zoos[0]}, {.zoo = zoos[1]}, {.zoo = zoos[2]}};
    wf_training_set set;
    wf_field field = {.cond_size = 0};
    wf_fit_desc fit_desc = quick_fit();
    fit_desc.limit = 5;
    assert_ok(ctx, wf_training_set_load(ctx, sources, 3, &field, &fit_desc, &set));
    assert_int_equal(set.n_families, 2);
    assert_int_equal(set.families[0].count, 9); /* limit 5, and all 4 */
    assert_int_equal(set.families[1].count, 5);
    assert_int_equal(set.sources[2].first, 5);
    for (int s = 0; s < 2; s++) {
        const wf_family *family = &set.families[s];
        for (int b = 0; b < family->graph->n_blocks; b++) {
            double sum = 0, squares = 0;
            size_t n = family->count * family->graph->blocks[b].count;
            for (size_t k = 0; k < family->count; k++)
                for (size_t i = 0; i < family->graph->blocks[b].count; i++) {
                    double x = family->weights[k * family->graph->n_params +
                                               family->graph->blocks[b].offset + i];
                    sum += x;
                    squares += x * x;
                }
            assert_close(sum / (double)n, 0, 1e-5);
            assert_close(squares / (double)n, 1, 0.1);
        }
    }
    wf_graph *wide;
    assert_ok(ctx, wf_graph_parse(ctx, "2-8-3", "relu", 0, &wide));
    assert_ptr_equal(wf_training_set_match(&set, wide, NULL), &set.families[1]);
    assert_ptr_equal(wf_training_set_match(&set, wf_zoo_graph(zoos[2]), NULL), &set.families[0]);
    wf_graph_free(wide);
    wf_training_set_free(&set);
    fit_desc.limit = 0;
    fit_desc.normalise = false;
    assert_ok(ctx, wf_training_set_load(ctx, sources, 1, &field, &fit_desc, &set));
    float w[64];
    wf_zoo_get(zoos[0], 7, w);
    size_t p = set.families[0].graph->n_params;
    assert_memory_equal(set.families[0].weights + 7 * p, w, p * sizeof *w);
    wf_training_set_free(&set);
    for (int i = 0; i < 3; i++) wf_zoo_free(zoos[i]);
}

/* With normalise_by = collection, collections of one architecture keep their own means; a sample
 * takes those of the nearest condition. An exact flow (F = 0) shows them. */
static void normalisation_may_be_per_collection(void **state) {
    (void)state;
    wf_zoo *zoos[2] = {make_zoo(ctx, "2-3-2", 40, 0), make_zoo(ctx, "2-3-2", 30, 5)};
    float cond[2][1] = {{0}, {1}};
    wf_source sources[2] = {{.zoo = zoos[0], .cond = cond[0]}, {.zoo = zoos[1], .cond = cond[1]}};
    wf_fit_desc fit_desc = quick_fit();
    fit_desc.normalise_by = WF_NORMALISE_BY_COLLECTION;
    toy_orders orders = {0};
    wf_flow *flow = fitted(sources, 2, 1, &fit_desc, "apart", &orders);
    assert_int_equal(flow->set.n_families, 2);
    memset(flow->params, 0, toy_params * sizeof(float));
    const wf_graph *graph = wf_zoo_graph(zoos[0]);
    size_t p = graph->n_params;
    wf_sample_desc desc = wf_sample_desc_default();
    desc.seed = 12;
    desc.rtol = desc.atol = 1e-8;
    float noise[64], w[64];
    wf_rng rng = wf_rng_at(12, 0, WF_RNG_SAMPLE, 0);
    wf_rng_normals(&rng, noise, p);
    wf_norm norms[2];
    for (int i = 0; i < 2; i++) {
        float *load, near[1] = {i == 0 ? 0.4f : 0.6f};
        assert_ok(ctx, wf_zoo_load(ctx, zoos[i], 0, wf_zoo_count(zoos[i]), &load));
        assert_ok(ctx, wf_norm_fit(ctx, graph, load, wf_zoo_count(zoos[i]), &norms[i]));
        free(load);
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, near, 1, &desc, w, NULL, NULL));
        for (int b = 0; b < graph->n_blocks; b++) {
            size_t at = graph->blocks[b].offset;
            assert_close(w[at], norms[i].mean[b] + norms[i].std[b] * noise[at], 2e-5);
        }
    }
    assert_true(fabs((double)norms[0].mean[1] - (double)norms[1].mean[1]) > 1e-3);
    wf_flow_free(flow);
    for (int i = 0; i < 2; i++) wf_zoo_free(zoos[i]), wf_norm_free(&norms[i]);
}

/* A field with fold_rows is trained on folded graphs, its file says so, and its samples are of that
 * field. */
static void folded_fields_see_folded_graphs(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "5-4-2", 20, 0);
    wf_source source = {.zoo = zoo};
    wf_field_desc field = plain_field(0);
    field.fold_rows = 6;
    wf_fit_desc fit_desc = quick_fit();
    fit_desc.updates = 30;
    wf_flow *flow;
    assert_ok(ctx,
              wf_flow_fit(ctx, &source, 1, &field, &fit_desc, in_folder("folded_flow"), &flow));
    assert_string_equal(wf_flow_meta(flow, "arch.0.fold"), "yes");
    int count = flow->field->n_tensors;
    const wf_field_tensor *tensors = flow->field->tensors;
    bool trained = false;
    for (int i = 0; i < count;
         i++) { /* zero at first: it moves only when folded rows are decoded */
        if (strcmp(tensors[i].name, "fold_decoder.weight") != 0) continue;
        for (int k = 0; k < tensors[i].rows * tensors[i].cols; k++)
            trained = trained || flow->params[tensors[i].offset + (size_t)k] != 0;
    }
    assert_true(trained);
    const wf_graph *graph = wf_zoo_graph(zoo);
    wf_graph *folded;
    assert_ok(ctx, wf_graph_parse(ctx, graph->text, "relu", WF_GRAPH_FOLD_INPUT, &folded));
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 3;
    desc.refine_cycles = 1;
    float a[64], b[64];
    assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, 1, &desc, a, NULL, NULL));
    assert_ok(ctx, wf_flow_sample(ctx, flow, folded, NULL, 1, &desc, b, NULL, NULL));
    assert_memory_equal(a, b, graph->n_params * sizeof *a);
    wf_graph_free(folded);
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

static void guidance_mixes_two_velocities(void **state) {
    (void)state;
    wf_zoo *zoo = make_zoo(ctx, "2-3-2", 10, 0);
    float cond[1] = {2};
    wf_source source = {.zoo = zoo, .cond = cond};
    wf_fit_desc fit_desc = quick_fit();
    fit_desc.cond_drop = 0.2;
    toy_orders orders = {0};
    wf_flow *flow = fitted(&source, 1, 1, &fit_desc, "guided", &orders);
    const wf_graph *graph = wf_zoo_graph(zoo);
    size_t p = graph->n_params;
    float w[4][64];
    wf_sample_desc desc = wf_sample_desc_default();
    desc.solver = WF_SOLVER_EULER;
    desc.steps = 1; /* one step from t = 0: linear in the velocity */
    for (int g = 0; g < 3; g++) {
        desc.guidance = g;
        orders = (toy_orders){0};
        assert_ok(ctx, wf_flow_sample(ctx, flow, graph, cond, 1, &desc, w[g], NULL, NULL));
        assert_int_equal(orders.conditional, g != 0);
        assert_int_equal(orders.null, g != 1);
    }
    assert_ok(ctx, wf_flow_sample(ctx, flow, graph, NULL, 1, &desc, w[3], NULL, NULL));
    assert_memory_equal(w[0], w[3], p * sizeof(float)); /* no condition is the null */
    assert_true(memcmp(w[0], w[1], p * sizeof(float)) != 0);
    for (size_t i = 0; i < p; i++)
        assert_close(w[2][i], w[0][i] + 2 * (w[1][i] - w[0][i]), 1e-4 * (1 + fabs(w[2][i])));
    float bad[1] = {NAN};
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, bad, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_USAGE, "not finite");
    wf_flow_free(flow);
    fit_desc.cond_drop = 0;
    flow = fitted(&source, 1, 1, &fit_desc, "unguided", &orders);
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, cond, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_USAGE, "never trained");
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, NULL, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_USAGE, "without a condition");
    desc.guidance = 1;
    desc.refine_cycles = 1;
    desc.refine_t = 1;
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, cond, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_USAGE, "refine_t");
    desc.refine_t = 0.5;
    desc.refine_steps = -1;
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, cond, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_USAGE, "refine_steps");
    desc.refine_steps = 0;
    desc.refine_cycles = 0;
    orders = (toy_orders){.nan_at = 1};
    desc.first = 40;
    assert_fails(ctx, wf_flow_sample(ctx, flow, graph, cond, 1, &desc, w[0], NULL, NULL),
                 WF_ERR_DIVERGED, "network 40");
    wf_flow_free(flow);
    wf_zoo_free(zoo);
}

/* --- controls --------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum);
}

static void perturbations_are_near_different_networks(void **state) {
    (void)state;
    enum { count = 12 };
    wf_zoo *zoo = make_zoo(ctx, "2-6-2", count, 0);
    const wf_graph *graph = wf_zoo_graph(zoo);
    size_t p = graph->n_params;
    float *load, *w = calloc(2 * count * p, 4), *x = calloc(p, 4), *y = calloc(p, 4);
    assert_ok(ctx, wf_zoo_load(ctx, zoo, 0, count, &load));
    wf_norm norm;
    assert_ok(ctx, wf_norm_fit(ctx, graph, load, count, &norm));
    assert_ok(ctx, wf_control_perturb(ctx, zoo, 0.1, 2 * count, 4, w));
    int used[2][count] = {{0}};
    double squares = 0;
    for (size_t k = 0; k < 2 * count; k++) {
        size_t nearest = 0;
        for (size_t j = 1; j < count; j++)
            if (distance(w + k * p, load + j * p, p) < distance(w + k * p, load + nearest * p, p))
                nearest = j;
        used[k / count][nearest]++;
        wf_norm_apply(&norm, graph, w + k * p, x);
        wf_norm_apply(&norm, graph, load + nearest * p, y);
        squares += pow(distance(x, y, p), 2);
    }
    for (int j = 0; j < count; j++) /* without replacement while possible, then again */
        assert_true(used[0][j] == 1 && used[1][j] == 1);
    assert_close(sqrt(squares / (double)(2 * count * p)), 0.1, 0.005);
    assert_ok(ctx, wf_control_perturb(ctx, zoo, 0, 1, 4, x));
    for (size_t i = 0; i < p; i++) y[i] = x[i];
    assert_fails(ctx, wf_control_perturb(ctx, zoo, NAN, 1, 4, x), WF_ERR_USAGE, "sigma");
    wf_norm_free(&norm);
    free(load);
    free(w);
    free(x);
    free(y);
    wf_zoo_free(zoo);
}

/* A collection of relabelled copies of one network: matched averages give it back, unmatched ones
 * do not. */
static void matched_averages_undo_relabelling(void **state) {
    (void)state;
    enum { count = 8 };
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "3-7-2", "relu", 0, &graph));
    size_t p = graph->n_params;
    float *weights = calloc(count * p, 4), *w = calloc(count * p, 4), *b = calloc(p, 4);
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 3);
    wf_rng_normals(&rng, weights, p);
    for (size_t k = 1; k < count; k++) {
        uint32_t perm[7];
        wf_rng shuffle = wf_rng_at(1, (uint32_t)k, WF_RNG_TEST, 4);
        wf_rng_shuffle(&shuffle, perm, 7);
        wf_graph_permute(graph, perm, weights, weights + k * p);
    }
    const char *path = in_folder("copies.safetensors");
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, count, NULL));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_ok(ctx, wf_control_average(ctx, zoo, true, 6, 2, w));
    for (size_t k = 0; k < 6; k++) {
        double nearest = 1e9;
        for (size_t j = 0; j < count; j++)
            nearest = fmin(nearest, distance(w + k * p, weights + j * p, p));
        assert_close(nearest, 0, 1e-5);
    }
    assert_ok(ctx, wf_control_average(ctx, zoo, false, 6, 2, w));
    double largest = 0;
    for (size_t k = 0; k < 6; k++) largest = fmax(largest, distance(w + k * p, weights, p));
    assert_true(largest > 0.5);
    wf_zoo_free(zoo);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, 1, NULL));
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    assert_fails(ctx, wf_control_average(ctx, zoo, true, 1, 2, w), WF_ERR_INPUT, "needs 2");
    free(weights);
    free(w);
    free(b);
    wf_zoo_free(zoo);
    wf_graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(networks_do_not_depend_on_batching),
        cmocka_unit_test(exact_flow_returns_its_noise),
        cmocka_unit_test(sampler_and_objective_agree),
        cmocka_unit_test(normalisation_is_per_architecture),
        cmocka_unit_test(normalisation_may_be_per_collection),
        cmocka_unit_test(folded_fields_see_folded_graphs),
        cmocka_unit_test(guidance_mixes_two_velocities),
        cmocka_unit_test(perturbations_are_near_different_networks),
        cmocka_unit_test(matched_averages_undo_relabelling),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
