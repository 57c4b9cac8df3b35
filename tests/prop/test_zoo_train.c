/* The zoo engine: against plain loops in double, under relabelling of hidden units; divergence,
 * scores, refusals; initial weights. Threads, shards and interruptions: test_zoo_restart.c. */
#include "zoo_fixture.h"

/* --- plain loops in double -------------------------------------------------------------------- */

static double plain_act(wf_activation kind, double z, double *slope) {
    double s = 1 / (1 + exp(-z)), cdf = 0.5 * (1 + erf(z / sqrt(2)));
    switch (kind) {
    case WF_ACT_RELU: *slope = z > 0; return z > 0 ? z : 0;
    case WF_ACT_TANH: *slope = 1 - tanh(z) * tanh(z); return tanh(z);
    case WF_ACT_GELU: *slope = cdf + z * exp(-z * z / 2) / sqrt(2 * acos(-1)); return z * cdf;
    case WF_ACT_SILU: *slope = s + z * s * (1 - s); return z * s;
    case WF_ACT_SIGMOID: *slope = s * (1 - s); return s;
    default: *slope = 1; return z;
    }
}

enum { plain_width = 64, plain_layers = 8 };

/* Offset of layer l's block of a kind in the flat vector, or -1. */
static long offset_of(const wf_graph *graph, int l, wf_block_kind kind) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == l && graph->blocks[b].kind == kind)
            return (long)graph->blocks[b].offset;
    return -1;
}

/* Adds the gradient of one example's loss / batch. Groups 0 .. n_layers are the layers of a
 * chain. */
static void plain_gradient(const wf_graph *graph, const double *w, const float *x, int label,
                           double smoothing, double batch, double *g) {
    double h[plain_layers + 1][plain_width], slope[plain_layers + 1][plain_width];
    double d[plain_width], before[plain_width];
    int last = graph->n_layers, classes = graph->outputs;
    for (int j = 0; j < graph->inputs; j++) h[0][j] = x[j];
    for (int l = 0; l < last; l++) {
        int in = graph->groups[l].n, out = graph->groups[l + 1].n;
        long weight = offset_of(graph, l, WF_BLOCK_WEIGHT),
             bias = offset_of(graph, l, WF_BLOCK_BIAS);
        for (int i = 0; i < out; i++) {
            double z = bias < 0 ? 0 : w[bias + i];
            for (int j = 0; j < in; j++) z += w[weight + i * in + j] * h[l][j];
            wf_activation kind = l + 1 < last ? graph->activation : WF_ACT_IDENTITY;
            h[l + 1][i] = plain_act(kind, z, &slope[l + 1][i]);
        }
    }
    double total = 0;
    for (int c = 0; c < classes; c++) total += exp(h[last][c]);
    for (int c = 0; c < classes; c++)
        d[c] = (exp(h[last][c]) / total - smoothing / classes - (c == label ? 1 - smoothing : 0)) /
               batch;
    for (int l = last - 1; l >= 0; l--) {
        int in = graph->groups[l].n, out = graph->groups[l + 1].n;
        long weight = offset_of(graph, l, WF_BLOCK_WEIGHT),
             bias = offset_of(graph, l, WF_BLOCK_BIAS);
        for (int j = 0; j < in; j++) before[j] = 0;
        for (int i = 0; i < out; i++) {
            if (bias >= 0) g[bias + i] += d[i];
            for (int j = 0; j < in; j++) {
                g[weight + i * in + j] += d[i] * h[l][j];
                before[j] += d[i] * w[weight + i * in + j];
            }
        }
        for (int j = 0; l > 0 && j < in; j++) d[j] = before[j] * slope[l][j];
    }
}

static void plain_train(const wf_graph *graph, const wf_dataset *data, const wf_zoo_desc *desc,
                        uint32_t index, double lr, int epochs, double *w) {
    size_t n = graph->n_params, batch = (size_t)desc->batch, updates = 0;
    size_t all = (size_t)epochs * ((data->n_train + batch - 1) / batch);
    double *g = calloc(3 * n, sizeof *g), *m = g + n, *v = m + n;
    uint32_t *order = malloc(data->n_train * sizeof *order);
    for (int epoch = 0; epoch < epochs; epoch++) {
        wf_rng rng = wf_rng_at(desc->seed, index, WF_RNG_SHUFFLE, (uint32_t)epoch);
        wf_rng_shuffle(&rng, order, (uint32_t)data->n_train);
        for (size_t first = 0; first < data->n_train; first += batch, updates++) {
            size_t rows = data->n_train - first < batch ? data->n_train - first : batch;
            for (size_t i = 0; i < n; i++) g[i] = desc->weight_decay * w[i];
            for (size_t e = 0; e < rows; e++) {
                uint32_t at = order[first + e];
                plain_gradient(graph, w, data->x_train + at * (size_t)data->inputs,
                               data->y_train[at], desc->label_smoothing, (double)rows, g);
            }
            double k = (double)updates;
            double rate = desc->cosine ? lr / 2 * (1 + cos(acos(-1) * k / (double)all)) : lr;
            for (size_t i = 0; i < n; i++) {
                if (desc->optimizer == WF_ZOO_ADAM) {
                    m[i] = desc->beta1 * m[i] + (1 - desc->beta1) * g[i];
                    v[i] = desc->beta2 * v[i] + (1 - desc->beta2) * g[i] * g[i];
                    double mhat = m[i] / (1 - pow(desc->beta1, k + 1));
                    double vhat = v[i] / (1 - pow(desc->beta2, k + 1));
                    w[i] -= rate * mhat / (sqrt(vhat) + desc->eps);
                } else {
                    m[i] = desc->momentum * m[i] + g[i];
                    w[i] -= rate * (desc->nesterov ? g[i] + desc->momentum * m[i] : m[i]);
                }
            }
        }
    }
    free(order);
    free(g);
}

typedef struct training_case {
    const char *arch, *activation;
    wf_zoo_optimizer optimizer;
    double momentum, decay, smoothing;
    bool nesterov, cosine;
    int batch;
} training_case;

static const training_case cases[] = {
    {"5-16-8-4", "relu", WF_ZOO_ADAM, 0, 0, 0, false, false, 32},
    {"5-7-4", "tanh", WF_ZOO_ADAM, 0, 0.01, 0.1, false, true, 16},
    {"5-33!-17-4", "gelu", WF_ZOO_SGD, 0, 0, 0, false, false, 7},
    {"5-9-1-4!", "silu", WF_ZOO_SGD, 0.9, 0.001, 0.2, true, true, 100},
    {"5-50-4", "sigmoid", WF_ZOO_SGD, 0.8, 0, 0, false, false, 150},
    {"5-6-6-6-4", "identity", WF_ZOO_ADAM, 0, 0, 0.05, false, true, 1},
    {"5-4", "relu", WF_ZOO_ADAM, 0, 0.1, 0, false, false, 64},
    {"5-64-4", "relu", WF_ZOO_ADAM, 0, 0, 0, false, false, 64},
    {"5-16!-20!-4!", "relu", WF_ZOO_SGD, 0, 0, 0, false, false, 64},
};
enum { n_cases = sizeof cases / sizeof *cases, n_examples = 150 };

static wf_zoo_desc desc_of(const training_case *c, int epochs) {
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = 1;
    desc.seed = 11;
    desc.optimizer = c->optimizer;
    desc.lr = desc.lr_max = c->optimizer == WF_ZOO_ADAM ? 5e-3 : 5e-2;
    desc.epochs = desc.epochs_max = epochs;
    desc.batch = c->batch;
    desc.momentum = c->momentum;
    desc.nesterov = c->nesterov;
    desc.weight_decay = c->decay;
    desc.cosine = c->cosine;
    desc.label_smoothing = c->smoothing;
    return desc;
}

static double difference(const double *a, const double *b, size_t n) {
    double sum = 0, norm = 0;
    for (size_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
    return sqrt(sum / norm);
}

static void start_weights(const wf_graph *graph, float *w, double *w64) {
    wf_zoo_init(graph, 3, 0, w);
    for (size_t i = 0; i < graph->n_params; i++) w64[i] = w[i];
}

static void test_against_plain_loops(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    wf_dataset *data = data_of(5, 4, n_examples, 0);
    for (int c = 0; c < n_cases; c++) {
        wf_graph *graph = graph_of(ctx, cases[c].arch, cases[c].activation);
        wf_zoo_desc desc = desc_of(&cases[c], 3);
        desc.first = 40 + (size_t)c;
        size_t n = graph->n_params;
        float *w = malloc(n * sizeof *w);
        double *start = malloc(4 * n * sizeof *start), *plain = start + n, *engine = plain + n,
               *single = engine + n;
        start_weights(graph, w, start);
        memcpy(plain, start, n * sizeof *plain);
        memcpy(engine, start, n * sizeof *engine);
        plain_train(graph, data, &desc, (uint32_t)desc.first, desc.lr, desc.epochs, plain);
        assert_ok(ctx, wf_zoo_train_from_f64(ctx, graph, data, &desc, engine));
        assert_ok(ctx, wf_zoo_train_from(ctx, graph, data, &desc, w));
        for (size_t i = 0; i < n; i++) single[i] = w[i];
        assert_true(difference(start, plain, n) > 1e-2); /* it did learn */
        assert_close(difference(engine, plain, n), 0, 1e-10);
        assert_close(difference(single, plain, n), 0, 1e-4);
        free(start);
        free(w);
        wf_graph_free(graph);
    }
    data_free(data);
    wf_ctx_free(ctx);
}

/* An epoch longer than the engine draws random words at a time, against the same loops. */
static void test_long_epoch(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    wf_dataset *data = data_of(3, 2, 2600, 0);
    wf_graph *graph = graph_of(ctx, "3-4-2", "tanh");
    wf_zoo_desc desc = desc_of(&cases[1], 2);
    float w[26];
    double plain[26], engine[26];
    assert_int_equal(graph->n_params, 26);
    start_weights(graph, w, plain);
    memcpy(engine, plain, sizeof plain);
    plain_train(graph, data, &desc, 0, desc.lr, desc.epochs, plain);
    assert_ok(ctx, wf_zoo_train_from_f64(ctx, graph, data, &desc, engine));
    assert_close(difference(engine, plain, 26), 0, 1e-10);
    wf_graph_free(graph);
    data_free(data);
    wf_ctx_free(ctx);
}

/* --- relabelling: train(P w) = P train(w) ----------------------------------------------------- */

/* where[i]: the place in the flat vector that entry i moves to. */
static void random_relabelling(const wf_graph *graph, uint32_t index, uint32_t *where) {
    size_t n = graph->n_params;
    uint32_t *perm = malloc((wf_graph_perm_size(graph) + 1) * sizeof *perm);
    for (int o = 0; o < graph->n_orbits; o++) {
        wf_rng rng = wf_rng_at(5, index, WF_RNG_TEST, (uint32_t)o);
        size_t end =
            o + 1 < graph->n_orbits ? wf_graph_perm_start(graph, o + 1) : wf_graph_perm_size(graph);
        size_t first = wf_graph_perm_start(graph, o);
        wf_rng_shuffle(&rng, perm + first, (uint32_t)(end - first));
    }
    float *numbers = malloc(2 * n * sizeof *numbers), *moved = numbers + n;
    for (size_t i = 0; i < n; i++) numbers[i] = (float)i;
    wf_graph_permute(graph, perm, numbers, moved);
    for (size_t i = 0; i < n; i++) where[(size_t)moved[i]] = (uint32_t)i;
    free(numbers);
    free(perm);
}

static void test_relabelling(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    wf_dataset *data = data_of(5, 4, n_examples, 0);
    for (int c = 0; c < n_cases; c++) {
        wf_graph *graph = graph_of(ctx, cases[c].arch, cases[c].activation);
        wf_zoo_desc desc = desc_of(&cases[c], 3);
        size_t n = graph->n_params, moved = 0;
        uint32_t *where = malloc(n * sizeof *where);
        random_relabelling(graph, (uint32_t)c, where);
        float *w = malloc(2 * n * sizeof *w), *pw = w + n;
        double *w64 = malloc(4 * n * sizeof *w64), *pw64 = w64 + n, *a = pw64 + n, *b = a + n;
        start_weights(graph, w, w64);
        for (size_t i = 0; i < n; i++) {
            pw[where[i]] = w[i];
            pw64[where[i]] = w64[i];
            moved += where[i] != i;
        }
        assert_true(graph->n_orbits == 0 || moved > 0);
        assert_ok(ctx, wf_zoo_train_from_f64(ctx, graph, data, &desc, w64));
        assert_ok(ctx, wf_zoo_train_from_f64(ctx, graph, data, &desc, pw64));
        for (size_t i = 0; i < n; i++) a[where[i]] = w64[i];
        assert_close(difference(pw64, a, n), 0, 1e-10);
        assert_ok(ctx, wf_zoo_train_from(ctx, graph, data, &desc, w));
        assert_ok(ctx, wf_zoo_train_from(ctx, graph, data, &desc, pw));
        for (size_t i = 0; i < n; i++) a[where[i]] = w[i], b[i] = pw[i];
        assert_close(difference(b, a, n), 0, 1e-4);
        free(w64);
        free(w);
        free(where);
        wf_graph_free(graph);
    }
    data_free(data);
    wf_ctx_free(ctx);
}

/* --- divergence, scores, refusals ------------------------------------------------------------- */

static void count_warning(void *user, const char *sentence) {
    if (strstr(sentence, "diverged") != NULL) ++*(int *)user;
}

static void test_divergence(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "diverged");
    s.desc.optimizer = WF_ZOO_SGD;
    s.desc.lr = 1e-3;
    s.desc.lr_max = 1e25;
    s.desc.count = 24;
    int warnings = 0;
    wf_ctx *ctx = NULL;
    assert_int_equal(
        wf_ctx_create(&(wf_ctx_desc){.threads = 2, .warn = count_warning, .user = &warnings}, &ctx),
        WF_OK);
    size_t diverged = 99, n = s.graph->n_params, next = 0;
    assert_ok(ctx, wf_zoo_train(ctx, s.graph, s.data, &s.desc, s.path, &diverged));
    assert_true(diverged > 0 && diverged < 24 && warnings > 0);
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, s.path, &zoo));
    assert_int_equal(wf_zoo_count(zoo), 24 - diverged);
    /* each network by itself: the finite ones are in the file, bit for bit and in order */
    float *alone = malloc(2 * n * sizeof *alone), *stored = alone + n;
    for (size_t i = 0; i < 24; i++) {
        wf_zoo_desc desc = s.desc;
        desc.first += i;
        desc.count = 1;
        wf_zoo_init(s.graph, desc.seed, (uint32_t)desc.first, alone);
        wf_status status = wf_zoo_train_from(ctx, s.graph, s.data, &desc, alone);
        if (status == WF_ERR_DIVERGED) continue;
        assert_int_equal(status, WF_OK);
        assert_int_equal(wf_zoo_seeds(zoo)[next], desc.first);
        wf_zoo_get(zoo, next++, stored);
        assert_memory_equal(alone, stored, n * sizeof *alone);
    }
    assert_int_equal(next, wf_zoo_count(zoo));
    wf_zoo_free(zoo);
    s.desc.lr = s.desc.lr_max = 1e25;
    unlink(s.path);
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_DIVERGED, "all 24 networks");
    assert_int_equal(access(s.path, F_OK), -1);
    assert_int_equal(access(s.parts, F_OK), -1);
    free(alone);
    wf_ctx_free(ctx);
    shared_end(&s);
}

static void test_scores(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "scores");
    wf_ctx *ctx = ctx_of(2);
    assert_ok(ctx, train_with(ctx, &s, 5));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, s.path, &zoo));
    size_t bytes, n_test = s.data->n_test, total_wrong = 0;
    const uint8_t *errors = wf_zoo_errors(zoo, "clusters", &bytes);
    assert_non_null(errors);
    assert_int_equal(bytes, (n_test + 7) / 8);
    float *w = malloc(s.graph->n_params * sizeof *w), *logits = malloc(n_test * 5 * sizeof *logits);
    for (size_t i = 0; i < wf_zoo_count(zoo); i++) {
        wf_zoo_get(zoo, i, w);
        assert_ok(ctx, wf_graph_forward(ctx, s.graph, w, s.data->x_test, n_test, logits));
        size_t wrong = 0;
        for (size_t r = 0; r < 8 * bytes; r++) {
            bool bit = errors[i * bytes + r / 8] >> r % 8 & 1;
            int best = 0;
            for (int c = 1; r < n_test && c < 5; c++)
                if (logits[r * 5 + (size_t)c] > logits[r * 5 + (size_t)best]) best = c;
            assert_int_equal(bit, r < n_test && best != s.data->y_test[r]);
            wrong += bit;
        }
        assert_close(wf_zoo_scores(zoo, NULL)[i], 1 - (double)wrong / (double)n_test, 1e-6);
        total_wrong += wrong;
    }
    double error_rate = (double)total_wrong / (double)(n_test * wf_zoo_count(zoo));
    assert_true(error_rate > 0.01 && error_rate < 0.5); /* chance is 0.8 */
    assert_non_null(wf_zoo_meta(zoo, "weft.recipe"));
    assert_int_equal(strlen(wf_zoo_meta(zoo, "weft.data")), 64);
    free(logits);
    free(w);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
    shared_end(&s);
}

static void test_bad_requests(void **state) {
    (void)state;
    shared s;
    shared_start(&s, "bad");
    wf_ctx *ctx = ctx_of(1);
    const wf_zoo_desc good = s.desc;
#define REFUSED(change, status, words)                                                             \
    do {                                                                                           \
        s.desc = good;                                                                             \
        change;                                                                                    \
        assert_fails(ctx, train_with(ctx, &s, 0), status, words);                                  \
    } while (0)
    REFUSED(s.desc.count = 0, WF_ERR_USAGE, "zoo.count is 0");
    REFUSED(s.desc.first = (size_t)UINT32_MAX, WF_ERR_USAGE, "2^32");
    REFUSED(s.desc.batch = 0, WF_ERR_USAGE, "zoo.batch is 0");
    REFUSED(s.desc.epochs = 0, WF_ERR_USAGE, "zoo.epochs is 0");
    REFUSED(s.desc.lr = 0, WF_ERR_USAGE, "zoo.lr is 0; allowed is a number above 0");
    REFUSED(s.desc.lr = NAN, WF_ERR_USAGE, "zoo.lr is nan");
    REFUSED(s.desc.label_smoothing = 1.5, WF_ERR_USAGE, "zoo.label_smoothing is 1.5");
    REFUSED(s.desc.weight_decay = -1, WF_ERR_USAGE, "zoo.weight_decay is -1");
    REFUSED(s.desc.beta2 = 1, WF_ERR_USAGE, "zoo.beta2 is 1");
    REFUSED(s.desc.eps = 0, WF_ERR_USAGE, "zoo.eps is 0");
    REFUSED((s.desc.optimizer = WF_ZOO_SGD, s.desc.nesterov = true), WF_ERR_USAGE,
            "zoo.nesterov is yes, but zoo.momentum is 0");
    s.desc = good;
    s.data->y_train[5] = 5;
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_INPUT, "label 5 of training example 5");
    s.data->y_train[5] = 0;
    s.data->inputs = 7;
    assert_fails(ctx, train_with(ctx, &s, 0), WF_ERR_SHAPE, "7 inputs");
    s.data->inputs = 6;
    s.data->n_test = 0; /* no test set: a collection without scores */
    assert_ok(ctx, train_with(ctx, &s, 0));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, s.path, &zoo));
    assert_null(wf_zoo_scores(zoo, NULL));
    wf_zoo_free(zoo);
    snprintf(s.path, sizeof s.path, "/proc/nowhere/zoo.safetensors");
    assert_int_not_equal(train_with(ctx, &s, 0), WF_OK);
    wf_ctx_free(ctx);
    shared_end(&s);
}

/* --- initial weights and hyperparameters ------------------------------------------------------ */

static void test_init(void **state) {
    (void)state;
    wf_ctx *ctx = ctx_of(1);
    wf_graph *graph = graph_of(ctx, "25-40-9", "relu");
    enum { count = 200 };
    float *w = malloc(2 * graph->n_params * sizeof *w), *again = w + graph->n_params;
    double sum[4] = {0}, squares[4] = {0}, largest[4] = {0};
    for (uint32_t i = 0; i < count; i++) {
        wf_zoo_init(graph, 1, i, w);
        for (int b = 0; b < 4; b++)
            for (size_t j = 0; j < graph->blocks[b].count; j++) {
                double value = w[graph->blocks[b].offset + j];
                sum[b] += value;
                squares[b] += value * value;
                largest[b] = fmax(largest[b], fabs(value));
            }
    }
    for (int b = 0; b < 4; b++) {
        double n = (double)(count * graph->blocks[b].count), bound = b < 2 ? 1 / 5.0 : 1 / sqrt(40);
        assert_true(largest[b] <= bound + 1e-7 && largest[b] > 0.99 * bound);
        assert_close(sum[b] / n, 0, 5 * bound / sqrt(3 * n));
        /* variance of x^2 for a uniform variable: 4/45 bound^4 */
        assert_close(squares[b] / n, bound * bound / 3, 5 * bound * bound * sqrt(4 / 45.0 / n));
    }
    wf_zoo_init(graph, 1, count - 1, again);
    assert_memory_equal(w, again, graph->n_params * sizeof *w);
    wf_zoo_init(graph, 2, count - 1, again);
    assert_memory_not_equal(w, again, graph->n_params * sizeof *w);
    free(w);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

static void test_hyperparameters(void **state) {
    (void)state;
    wf_zoo_desc desc = wf_zoo_desc_default();
    wf_zoo_task fixed = wf_zoo_task_of(&desc, 5);
    assert_close(fixed.lr, 1e-3, 0);
    assert_int_equal(fixed.epochs, 25);
    desc.lr = 3e-4;
    desc.lr_max = 3e-3;
    desc.epochs = 15;
    desc.epochs_max = 40;
    enum { count = 5000 };
    int seen[41] = {0};
    double sum = 0, squares = 0, low = log(3e-4), range = log(10);
    for (uint32_t i = 0; i < count; i++) {
        wf_zoo_task task = wf_zoo_task_of(&desc, i);
        assert_true(task.lr >= 3e-4 && task.lr <= 3e-3);
        assert_true(task.epochs >= 15 && task.epochs <= 40);
        double u = (log(task.lr) - low) / range;
        sum += u;
        squares += u * u;
        seen[task.epochs]++;
    }
    assert_close(sum / count, 0.5, 5 / sqrt(12.0 * count));
    assert_close(squares / count, 1 / 3.0, 5 * sqrt(4 / 45.0 / count));
    for (int e = 15; e <= 40; e++) assert_close(seen[e], count / 26.0, 5 * sqrt(count / 26.0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_plain_loops),
        cmocka_unit_test(test_long_epoch),
        cmocka_unit_test(test_relabelling),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_hyperparameters),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
