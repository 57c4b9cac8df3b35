/* Principal axes of first layers: eigenvectors, what apply and invert do, the flow they give, what
 * is refused. */
#include "wf_test.h"
#include "flow/eigen.h"
#include "flow_fixture.h"

/* --- eigenvectors ----------------------------------------------------------------------------- */

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void eigenvectors_are_such(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    double two[4] = {2, 1, 1, 2}, found[2];
    assert_ok(ctx, wf_eigen(ctx, two, 2, found, NULL, 0, 0));
    assert_close(found[0], 3, 1e-12);
    assert_close(found[1], 1, 1e-12);
    assert_close(fabs(two[0] - two[1]), 0, 1e-12); /* the axis of 3 is the diagonal */
    static const int sizes[] = {1, 2, 5, 16, 33};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        size_t all = (size_t)n * (size_t)n;
        double *c = calloc(all, 8), *v = calloc(all, 8), *l = calloc((size_t)n, 8);
        float *factor = calloc(2 * all, 4);
        wf_rng rng = wf_rng_at(5, (uint32_t)k, WF_RNG_TEST, 0);
        wf_rng_normals(&rng, factor, 2 * all);
        for (int i = 0; i < n; i++) /* columns of very different size: condition 1e6 and more */
            for (int r = 0; r < 2 * n; r++) factor[r * n + i] *= (float)pow(10, -3.0 * i / n);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                for (int r = 0; r < 2 * n; r++)
                    c[i * n + j] += (double)factor[r * n + i] * factor[r * n + j];
        memcpy(v, c, all * 8);
        assert_ok(ctx, wf_eigen(ctx, v, n, l, NULL, 0, 0));
        for (int i = 0; i < n; i++) {
            if (i > 0) assert_true(l[i] <= l[i - 1]);
            for (int j = 0; j < n; j++) {
                assert_close(dot(v + i * n, v + j * n, n), i == j, 1e-8);
                assert_close(dot(c + j * n, v + i * n, n), l[i] * v[i * n + j], 1e-9 * l[0]);
            }
        }
        free(c), free(v), free(l), free(factor);
    }
    wf_ctx_free(ctx);
}

/* Equal eigenvalues, none at all, one alone, values of either sign. */
static void odd_matrices_have_eigenvectors_too(void **state) {
    (void)state;
    enum { n = 21 };
    for (int kind = 0; kind < 5; kind++) {
        double c[n * n] = {0}, v[n * n], l[n], largest = 1;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                static const int swaps = n - 1;
                if (kind == 0) c[i * n + j] = i == j ? 3 : 0;
                if (kind == 2) c[i * n + j] = (i + 1) * (j + 1); /* of rank one */
                if (kind == 3) c[i * n + j] = i + j == swaps;    /* 1 and -1 */
                if (kind == 4) c[i * n + j] = i == j ? 1e-9 * i * i : i + j == 1 ? 1e6 : 0;
            }
        memcpy(v, c, sizeof c);
        wf_ctx *ctx = test_ctx();
        assert_ok(ctx, wf_eigen(ctx, v, n, l, NULL, 0, 0));
        for (int i = 0; i < n; i++) largest = fmax(largest, fabs(l[i]));
        for (int i = 0; i < n; i++) {
            double most = 0;
            if (i > 0) assert_true(l[i] <= l[i - 1]);
            for (int j = 0; j < n; j++) {
                assert_close(dot(v + i * n, v + j * n, n), i == j, 1e-12);
                assert_close(dot(c + j * n, v + i * n, n), l[i] * v[i * n + j], 1e-12 * largest);
                if (fabs(v[i * n + j]) > fabs(most)) most = v[i * n + j];
            }
            assert_true(most > 0);
        }
        wf_ctx_free(ctx);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

enum { inputs = 19 }; /* fills no vector */

/* Networks of 19-4-2 whose first layer has a mean and correlated inputs, the rest unit deviates. */
static wf_zoo *correlated_zoo(wf_ctx *ctx, size_t count, float **weights, wf_graph **graph) {
    assert_ok(ctx, wf_graph_parse(ctx, "19-4-2", "relu", 0, graph));
    size_t p = (*graph)->n_params;
    *weights = calloc(count * p, sizeof(float));
    for (size_t k = 0; k < count; k++) {
        float *w = *weights + k * p;
        wf_rng rng = wf_rng_at(3, (uint32_t)k, WF_RNG_TEST, 9);
        wf_rng_normals(&rng, w, p);
        for (int unit = 0; unit < 4; unit++) {
            float *row = w + unit * inputs, common = row[0];
            for (int j = 0; j < inputs; j++)
                row[j] = 0.2f * (float)j + common + 0.1f * (float)(j % 4) * row[j];
        }
    }
    const char *path = in_folder("correlated.safetensors");
    assert_ok(ctx, wf_zoo_write(ctx, path, *graph, *weights, count, NULL));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    return zoo;
}

static void rows_lie_along_their_axes(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    enum { count = 700 };
    float *w;
    wf_graph *graph;
    wf_zoo *zoo = correlated_zoo(ctx, count, &w, &graph);
    size_t p = graph->n_params, rows = 4 * count;
    wf_principal principal;
    assert_ok(ctx, wf_principal_fit(ctx, graph, w, count, NULL, &principal));
    assert_int_equal(principal.width, inputs);
    wf_axes axes = wf_principal_axes(&principal, graph);
    assert_true(axes.first == 0 && axes.count == 4 * inputs && axes.width == inputs);
    float *x = calloc(count * p, 4);
    memcpy(x, w, count * p * 4);
    assert_ok(ctx, wf_principal_apply(ctx, &principal, graph, x, count, NULL));
    for (int a = 0; a < inputs; a++)
        for (int b = 0; b < inputs; b++) {
            double sum = 0, product = 0;
            for (size_t r = 0; r < rows; r++) {
                const float *row = x + r / 4 * p + r % 4 * inputs;
                sum += row[a] / (double)rows;
                product += (double)row[a] * row[b] / (double)rows;
            }
            assert_close(sum, 0, 1e-4);
            double expected = a == b ? principal.variance[a] : 0;
            assert_close(product, expected, 1e-4 * principal.variance[0]);
        }
    for (size_t r = 1; r < rows; r++) { /* turned, not stretched */
        const float *one = w + r / 4 * p + r % 4 * inputs, *two = x + r / 4 * p + r % 4 * inputs;
        double before = 0, behind = 0;
        for (int j = 0; j < inputs; j++) {
            before += pow((double)one[j] - w[j], 2);
            behind += pow((double)two[j] - x[j], 2);
        }
        assert_close(behind, before, 1e-4 * before);
    }
    for (size_t k = 0; k < count; k++) /* the rest stays */
        assert_memory_equal(w + k * p + 4 * inputs, x + k * p + 4 * inputs,
                            (p - 4 * inputs) * sizeof(float));
    assert_ok(ctx, wf_principal_invert(ctx, &principal, graph, x, count));
    assert_true(relative_difference(x, w, count * p) < 1e-6);
    wf_principal_free(&principal);
    assert_fails(ctx, wf_principal_fit(ctx, graph, w, 18, NULL, &principal), WF_ERR_INPUT,
                 "need 76 rows");
    wf_principal_free(&principal);
    free(w), free(x);
    wf_graph_free(graph);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* The 27 weights of a 3x3x3 kernel are a row with fixed coordinates, too. */
static void kernels_lie_along_their_axes(void **state) {
    (void)state;
    enum { count = 60, width = 27, units = 5 };
    wf_ctx *ctx = test_ctx();
    wf_graph *graph = NULL;
    assert_ok(ctx, wf_graph_parse(ctx, "3x6x6 conv5 pool conv4 gap linear2", "relu", 0, &graph));
    assert_int_equal(wf_principal_width(graph), width);
    size_t p = graph->n_params;
    float *w = calloc(2 * count * p, sizeof *w), *rotated = w + count * p;
    wf_rng rng = wf_rng_at(8, 0, WF_RNG_TEST, 2);
    wf_rng_normals(&rng, w, count * p);
    for (size_t k = 0; k < count; k++)
        for (int u = 0; u < units; u++)
            for (int j = 1; j < width; j++) /* neighbours alike, as in trained kernels */
                w[k * p + (size_t)(u * width + j)] += 0.9f * w[k * p + (size_t)(u * width + j - 1)];
    memcpy(rotated, w, count * p * sizeof *w);
    wf_principal axes;
    assert_ok(ctx, wf_principal_fit(ctx, graph, w, count, NULL, &axes));
    assert_ok(ctx, wf_principal_apply(ctx, &axes, graph, rotated, count, NULL));
    for (int a = 0; a < width; a++)
        for (int b = 0; b <= a; b++) {
            double sum = 0;
            for (size_t k = 0; k < count; k++)
                for (int u = 0; u < units; u++) {
                    const float *row = rotated + k * p + (size_t)(u * width);
                    sum += (double)row[a] * (double)row[b];
                }
            double expected = a == b ? (double)axes.variance[a] : 0;
            assert_close(sum / (count * units), expected, 1e-3 * (double)axes.variance[0]);
        }
    for (size_t k = 0; k < count; k++) /* all that is not the first kernels stays */
        assert_memory_equal(rotated + k * p + units * width, w + k * p + units * width,
                            (p - units * width) * sizeof *w);
    assert_ok(ctx, wf_principal_invert(ctx, &axes, graph, rotated, count));
    for (size_t i = 0; i < count * p; i++) assert_close(rotated[i], w[i], 1e-4);
    wf_principal_free(&axes);
    free(w);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

/* The axes do not depend on the number of threads, nor on a cut of the rows. */
static void threads_change_no_bit(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    float *w;
    wf_graph *graph;
    wf_zoo *zoo = correlated_zoo(ctx, 300, &w, &graph);
    wf_principal first;
    assert_ok(ctx, wf_principal_fit(ctx, graph, w, 300, NULL, &first));
    for (int threads = 1; threads < 6; threads += 2) {
        wf_ctx_desc desc = {.threads = threads};
        wf_ctx *own;
        assert_int_equal(wf_ctx_create(&desc, &own), WF_OK);
        wf_principal other;
        assert_ok(own, wf_principal_fit(own, graph, w, 300, NULL, &other));
        assert_memory_equal(first.memory, other.memory, (2 + inputs) * inputs * sizeof(float));
        wf_principal_free(&other);
        wf_ctx_free(own);
    }
    wf_principal_free(&first);
    free(w);
    wf_graph_free(graph);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

typedef struct told {
    char stage[32];
    double done, total;
    bool last;
} told;

static void hear(void *user, const wf_progress *progress) {
    told *t = user;
    snprintf(t->stage, sizeof t->stage, "%s", progress->stage);
    t->done = progress->done;
    t->total = progress->total;
    t->last = progress->last;
}

/* One meter for covariance, eigenvectors and rows of all architectures; each of the three can be
 * stopped. */
static void work_is_told_and_can_be_stopped(void **state) {
    (void)state;
    told t = {.last = false};
    wf_ctx_desc desc = {.threads = 2, .progress = hear, .user = &t};
    wf_ctx *ctx;
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    float *w;
    wf_graph *graph;
    wf_zoo *zoo = correlated_zoo(ctx, 100, &w, &graph), *other = make_zoo(ctx, "5-4-2", 40, 0);
    wf_source sources[] = {{.zoo = zoo}, {.zoo = other}};
    wf_field field = {.cond_size = 0};
    wf_fit_desc fit = quick_fit();
    wf_training_set set;
    assert_ok(ctx, wf_training_set_load(ctx, sources, 2, &field, &fit, &set));
    assert_ok(ctx, wf_training_set_rotate(ctx, &fit, &set)); /* not asked for */
    assert_true(set.families[0].principal.width == 0 && !t.last);
    fit.principal = true;
    assert_ok(ctx, wf_training_set_rotate(ctx, &fit, &set));
    assert_true(set.families[0].principal.width == inputs && set.families[1].principal.width == 5);
    assert_string_equal(t.stage, "principal axes");
    assert_true(t.last && t.total > 0);
    assert_close(t.done, t.total, 1e-9 * t.total);
    wf_interrupt(ctx);
    double matrix[9] = {2, 1, 0, 1, 2, 1, 0, 1, 2}, values[3];
    wf_principal principal;
    assert_fails(ctx, wf_eigen(ctx, matrix, 3, values, NULL, 0, 0), WF_ERR_INTERRUPTED,
                 "interrupted");
    assert_fails(ctx, wf_principal_fit(ctx, graph, w, 100, NULL, &principal), WF_ERR_INTERRUPTED,
                 "interrupted");
    assert_null(principal.memory);
    assert_fails(ctx, wf_principal_apply(ctx, &set.families[0].principal, graph, w, 100, NULL),
                 WF_ERR_INTERRUPTED, "interrupted");
    wf_training_set_free(&set);
    free(w);
    wf_graph_free(graph);
    wf_zoo_free(zoo), wf_zoo_free(other);
    wf_ctx_free(ctx);
}

/* Inputs whose weights never change, and one law for all of them: variances stay positive, rows
 * come back. */
static void constant_rows_have_axes(void **state) {
    (void)state;
    enum { count = 50, width = 40 };
    wf_ctx *ctx = test_ctx();
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "40-6!-2", "relu", WF_GRAPH_FOLD_INPUT, &graph));
    size_t p = graph->n_params;
    float *w = calloc(count * p, 4), *x = calloc(count * p, 4);
    for (int kind = 0; kind < 2; kind++) { /* nothing varies; one axis has it all */
        for (size_t k = 0; k < count; k++)
            for (size_t i = 0; i < 6 * width; i++)
                w[k * p + i] = kind * (float)sin((double)(k * 6 + i / width)) * 3 * (float)(i % 2);
        memcpy(x, w, count * p * 4);
        wf_principal principal;
        assert_ok(ctx, wf_principal_fit(ctx, graph, x, count, NULL, &principal));
        for (int k = 0; k < width; k++) assert_true(principal.variance[k] > 0);
        if (kind == 1) assert_true(principal.variance[1] < 1e-5f * principal.variance[0]);
        assert_ok(ctx, wf_principal_apply(ctx, &principal, graph, x, count, NULL));
        assert_ok(ctx, wf_principal_invert(ctx, &principal, graph, x, count));
        for (size_t i = 0; i < count * p; i++) assert_close(x[i], w[i], 1e-5);
        wf_principal_free(&principal);
    }
    free(w), free(x);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

/* --- the flow --------------------------------------------------------------------------------- */

/* With F = 0 coordinate k of a row goes from its noise x to sqrt(variance k) x: exact for Gaussian
 * rows. So it does at another width; with other inputs there are no axes. */
static void exact_flow_has_the_collections_covariance(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    float *w;
    wf_graph *graph, *wide, *other;
    wf_zoo *zoo = correlated_zoo(ctx, 200, &w, &graph);
    assert_ok(ctx, wf_graph_parse(ctx, "19-6-2", "relu", 0, &wide));
    assert_ok(ctx, wf_graph_parse(ctx, "18-4-2", "relu", 0, &other));
    wf_source source = {.zoo = zoo};
    wf_fit_desc fit = quick_fit();
    fit.principal = true;
    fit.source_std = 1.5;
    wf_field_desc field = plain_field(0);
    toy_orders orders = {0};
    wf_flow *flow;
    assert_ok(ctx, wf_flow_fit_with(ctx, &source, 1, toy_kind(&orders), &field, &fit,
                                    in_folder("exact"), &flow));
    memset(flow->params, 0, toy_params * sizeof(float));
    const wf_family *family = &flow->set.families[0];
    size_t p = wide->n_params;
    float *made = calloc(3 * p, 4), *expected = calloc(p, 4);
    wf_sample_desc desc = wf_sample_desc_default();
    desc.seed = 12;
    desc.rtol = desc.atol = 1e-8;
    assert_ok(ctx, wf_flow_sample(ctx, flow, wide, NULL, 3, &desc, made, NULL, NULL));
    for (uint32_t k = 0; k < 3; k++) {
        wf_rng rng = wf_rng_at(12, k, WF_RNG_SAMPLE, 0);
        wf_rng_normals(&rng, expected, p);
        for (size_t i = 0; i < 6 * inputs; i++)
            expected[i] *= sqrtf(family->principal.variance[i % inputs]);
        assert_ok(ctx, wf_principal_invert(ctx, &family->principal, wide, expected, 1));
        wf_norm norm;
        assert_ok(ctx, wf_family_norm(ctx, family, wide, &norm));
        wf_norm_invert(&norm, wide, expected, expected);
        wf_norm_free(&norm);
        assert_true(relative_difference(made + k * p, expected, p) < 2e-5);
    }
    assert_fails(ctx, wf_flow_sample(ctx, flow, other, NULL, 1, &desc, made, NULL, NULL),
                 WF_ERR_UNSUPPORTED, "19 inputs");
    free(made), free(expected), free(w);
    wf_flow_free(flow);
    wf_graph_free(graph), wf_graph_free(wide), wf_graph_free(other);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

/* A run that is continued keeps the axes of its checkpoint, whatever this machine would find. */
static void continued_runs_keep_their_axes(void **state) {
    (void)state;
    wf_ctx *ctx = test_ctx();
    float *w;
    wf_graph *graph;
    wf_zoo *zoo = correlated_zoo(ctx, 100, &w, &graph);
    wf_source source = {.zoo = zoo};
    wf_field field = {.cond_size = 0};
    wf_fit_desc fit = quick_fit();
    fit.principal = true;
    wf_training_set set;
    assert_ok(ctx, wf_training_set_load(ctx, &source, 1, &field, &fit, &set));
    wf_family *family = &set.families[0];
    float *plain = calloc(100 * graph->n_params, 4);
    memcpy(plain, family->weights, 100 * graph->n_params * 4);
    assert_ok(ctx, wf_principal_create(ctx, inputs, &family->principal));
    for (int k = 0; k < inputs; k++) { /* the inputs backwards */
        family->principal.mean[k] = 0, family->principal.variance[k] = 2;
        family->principal.axes[k * inputs + inputs - 1 - k] = 1;
    }
    assert_ok(ctx, wf_training_set_rotate(ctx, &fit, &set));
    for (int k = 0; k < inputs; k++) assert_true(family->weights[k] == plain[inputs - 1 - k]);
    wf_training_set_free(&set);
    free(plain), free(w);
    wf_graph_free(graph);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eigenvectors_are_such),
        cmocka_unit_test(odd_matrices_have_eigenvectors_too),
        cmocka_unit_test(rows_lie_along_their_axes),
        cmocka_unit_test(kernels_lie_along_their_axes),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(work_is_told_and_can_be_stopped),
        cmocka_unit_test(constant_rows_have_axes),
        cmocka_unit_test(exact_flow_has_the_collections_covariance),
        cmocka_unit_test(continued_runs_keep_their_axes),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
