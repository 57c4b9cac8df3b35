/* zoo_score: scores that go into a collection, and whether its networks fit a data set at all.
 *
 * Files of other programs do not say how inputs were scaled, which activation the networks have, or
 * which output stands for which class. wf_zoo_suits tries what people usually do on a few networks
 * and a part of the test set, and says what would fit. */
#include "align/assign.h"
#include "weft/eval.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- what would fit --------------------------------------------------------------------------- */

enum { sample_networks = 16, sample_rows = 2000, most_rows = 20000 };

/* A better way must raise accuracy by this much and take away this share of the errors. */
static const double least_gain = 0.02, least_share = 1.0 / 3;
/* Of two ways that are nearly as good the simpler and more usual one is told. Activations are
 * listed by how often people use them. */
static const double cost_of_a_change = 0.01, cost_of_a_place = 0.003;

typedef struct way {
    wf_scale scale;
    wf_activation activation;
    bool other_order; /* of classes */
    double accuracy;
    int changes;
} way;

typedef struct trial {
    wf_ctx *ctx;
    const wf_graph *graph;
    const wf_data_desc *desc;
    float *weights; /* (n, n_params) */
    size_t n;
    way given, best;
    char order[256]; /* the classes in the order of the best way */
} trial;

/* The description with another activation of its hidden layers. */
static wf_status with_activation(const trial *t, wf_activation activation, wf_graph **out) {
    const wf_graph *graph = t->graph;
    wf_layer *layers;
    WF_TRY(wf_alloc(t->ctx, (size_t)graph->n_layers, sizeof *layers, "layers", &layers));
    memcpy(layers, graph->layers, (size_t)graph->n_layers * sizeof *layers);
    for (int l = 0; l + 1 < graph->n_layers; l++)
        if (layers[l].activation == graph->activation) layers[l].activation = activation;
    const wf_group *input = &graph->groups[0];
    wf_status status = wf_graph_build(t->ctx, input->n, input->image ? input->height : 0,
                                      input->width, layers, graph->n_layers, 0, out);
    free(layers);
    return status;
}

/* count[label * classes + prediction] over all networks. */
static void count_predictions(const float *logits, size_t networks, const wf_dataset *data,
                              double *count) {
    size_t classes = (size_t)data->classes;
    for (size_t k = 0; k < networks * data->n_test; k++) {
        const float *row = logits + k * classes;
        size_t best = 0;
        for (size_t c = 1; c < classes; c++)
            if (row[c] > row[best]) best = c;
        if (isnan(row[best])) continue;
        count[(size_t)data->y_test[k % data->n_test] * classes + best] += 1;
    }
}

static void keep_order(trial *t, const wf_dataset *data, const uint32_t *label_of) {
    wf_text text = wf_text_start(t->order, sizeof t->order);
    for (int c = 0; c < data->classes; c++)
        wf_text_add(&text, "%s%s", c > 0 ? "," : "", data->class_names[label_of[c]]);
    if (text.cut) wf_text_add(&text, "...");
}

static double worth(const way *w) {
    return w->accuracy - cost_of_a_change * w->changes - cost_of_a_place * (double)w->activation;
}

/* A way and, where another order of classes is better, that one. */
static wf_status weigh(trial *t, const wf_dataset *data, const double *count, way w) {
    size_t classes = (size_t)data->classes;
    double total = (double)(t->n * data->n_test), right = 0;
    for (size_t c = 0; c < classes; c++) right += count[c * classes + c];
    w.accuracy = right / total;
    if (w.changes == 0) t->given = w;
    if (worth(&w) > worth(&t->best)) t->best = w;
    /* Output r stands for class match[r]. */
    double *turned = NULL;
    uint32_t *match = NULL;
    void *scratch = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(t->ctx, classes * classes, sizeof *turned, "classes", &turned), done);
    WF_TRY_GOTO(wf_alloc(t->ctx, classes, sizeof *match, "classes", &match), done);
    WF_TRY_GOTO(wf_alloc(t->ctx, wf__assign_scratch((int)classes), 1, "classes", &scratch), done);
    for (size_t r = 0; r < classes; r++)
        for (size_t c = 0; c < classes; c++) turned[r * classes + c] = count[c * classes + r];
    w.accuracy = wf__assign((int)classes, turned, match, scratch) / total;
    w.other_order = true;
    w.changes++;
    if (worth(&w) > worth(&t->best)) {
        t->best = w;
        keep_order(t, data, match);
    }
done:
    free(scratch);
    free(match);
    free(turned);
    return status;
}

static wf_status try_activation(trial *t, const wf_dataset *data, way w) {
    wf_graph *graph = NULL;
    float *logits = NULL;
    double *count = NULL;
    size_t classes = (size_t)data->classes;
    wf_status status;
    WF_TRY_GOTO(with_activation(t, w.activation, &graph), done);
    WF_TRY_GOTO(wf_alloc(t->ctx, t->n * data->n_test * classes, sizeof *logits, "logits", &logits),
                done);
    WF_TRY_GOTO(wf_alloc(t->ctx, classes * classes, sizeof *count, "classes", &count), done);
    WF_TRY_GOTO(wf_logits(t->ctx, graph, t->weights, t->n, data, logits), done);
    count_predictions(logits, t->n, data, count);
    status = weigh(t, data, count, w);
done:
    free(count);
    free(logits);
    wf_graph_free(graph);
    return status;
}

static wf_status try_scale(trial *t, wf_scale scale) {
    wf_data_desc desc = *t->desc;
    desc.scale = scale;
    if (desc.rows == 0 && desc.path != NULL) desc.rows = most_rows;
    wf_dataset *data;
    WF_TRY(wf_dataset_open(t->ctx, &desc, &data));
    size_t all = data->n_test;
    if (data->n_test > sample_rows) data->n_test = sample_rows; /* the first ones serve */
    wf_activation own = t->graph->activation;
    wf_status status = wf_dataset_fits(t->ctx, data, t->graph);
    for (int a = 0; a < WF_ACT_MIXED && status == WF_OK; a++) {
        bool same = (wf_activation)a == own;
        if (!same && (own == WF_ACT_MIXED || t->graph->n_layers < 2)) continue;
        way w = {.scale = scale, .activation = (wf_activation)a};
        w.changes = !same + (scale != t->desc->scale);
        status = try_activation(t, data, w);
    }
    if (status == WF_OK && own == WF_ACT_MIXED) {
        way w = {.scale = scale, .activation = own, .changes = scale != t->desc->scale};
        status = try_activation(t, data, w);
    }
    data->n_test = all;
    wf_dataset_free(data);
    return status;
}

/* Networks spread over the collection; those that are not finite predict nothing. */
static wf_status take_sample(trial *t, const wf_zoo *zoo) {
    size_t count = wf_zoo_count(zoo), each = t->graph->n_params;
    t->n = count < sample_networks ? count : sample_networks;
    WF_TRY(wf_alloc(t->ctx, t->n, each * sizeof *t->weights, "networks", &t->weights));
    for (size_t i = 0; i < t->n; i++) wf_zoo_get(zoo, i * count / t->n, t->weights + i * each);
    return WF_OK;
}

static void write_advice(const trial *t, wf_suits *out) {
    const way *best = &t->best;
    char buffer[WF_SETTING_BUFFER];
    wf_text text = wf_text_start(out->advice, sizeof out->advice);
    if (best->scale != t->desc->scale) {
        const wf_data_desc desc = {.scale = best->scale};
        wf_text_add(&text, " --scale %s",
                    wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &desc, buffer));
    }
    if (best->activation != t->graph->activation)
        wf_text_add(&text, " --activation %s", wf_activation_name(best->activation));
    if (best->other_order) wf_text_add(&text, " --classes \"%s\"", t->order);
    memmove(out->advice, out->advice + 1, text.length); /* the first space, and the NUL */
}

wf_status wf_zoo_suits(wf_ctx *ctx, const wf_zoo *zoo, const wf_data_desc *desc, wf_suits *out) {
    static const wf_scale scales[] = {WF_SCALE_NONE, WF_SCALE_STANDARD, WF_SCALE_MINMAX,
                                      WF_SCALE_UNIT};
    *out = (wf_suits){0};
    trial t = {.ctx = ctx, .graph = wf_zoo_graph(zoo), .desc = desc};
    t.best.accuracy = -1;
    wf_status status = take_sample(&t, zoo);
    if (status == WF_OK) status = try_scale(&t, desc->scale);
    for (size_t i = 0; i < sizeof scales / sizeof *scales && status == WF_OK; i++)
        if (scales[i] != desc->scale) status = try_scale(&t, scales[i]);
    free(t.weights);
    if (status != WF_OK) return status;
    out->accuracy = t.given.accuracy;
    out->best = t.best.accuracy;
    double gain = t.best.accuracy - t.given.accuracy;
    if (t.best.changes > 0 && gain >= least_gain && gain >= least_share * (1 - t.given.accuracy))
        write_advice(&t, out);
    else out->best = out->accuracy;
    return WF_OK;
}

/* --- scores into a collection ----------------------------------------------------------------- */

static bool is_replaced(const char *key) {
    static const char *const keys[] = {
        "weft.format", "weft.graph",       "weft.arch",  "weft.activation", "weft.digest",
        "weft.data",   "weft.preparation", "weft.scale", "weft.data.note",  "weft.classes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static wf_status describe(wf_ctx *ctx, const wf_zoo *from, const wf_dataset *data,
                          const wf_data_desc *desc, wf_zoo *to) {
    char buffer[WF_SETTING_BUFFER];
    for (size_t i = 0; i < wf_zoo_meta_count(from); i++) {
        const char *key, *value;
        wf_zoo_meta_at(from, i, &key, &value);
        if (!is_replaced(key)) WF_TRY(wf_zoo_set_meta(ctx, to, key, value));
    }
    WF_TRY(wf_zoo_set_meta(
        ctx, to, "weft.scale",
        wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), desc, buffer)));
    if (desc->classes != NULL && desc->classes[0] != 0)
        WF_TRY(wf_zoo_set_meta(ctx, to, "weft.classes", desc->classes));
    WF_TRY(wf_zoo_set_meta(ctx, to, "weft.preparation", data->preparation));
    WF_TRY(wf_zoo_set_meta(ctx, to, "weft.data", data->fingerprint));
    if (data->note[0] != 0) WF_TRY(wf_zoo_set_meta(ctx, to, "weft.data.note", data->note));
    return WF_OK;
}

wf_status wf_zoo_score(wf_ctx *ctx, const wf_zoo *zoo, const wf_dataset *data,
                       const wf_data_desc *desc, const char *path) {
    size_t count = wf_zoo_count(zoo), bytes = (data->n_test + 7) / 8;
    float *weights = NULL, *scores = NULL;
    uint8_t *errors = NULL;
    wf_zoo *copy = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_zoo_load(ctx, zoo, 0, count, &weights), done);
    WF_TRY_GOTO(wf_alloc(ctx, count, sizeof *scores, "scores", &scores), done);
    WF_TRY_GOTO(wf_alloc(ctx, count, bytes, "errors", &errors), done);
    WF_TRY_GOTO(wf_score_networks(ctx, wf_zoo_graph(zoo), weights, count, data, WF_SCORE_ACCURACY,
                                  scores, errors),
                done);
    WF_TRY_GOTO(
        wf_zoo_from_memory(ctx, wf_zoo_path(zoo), wf_zoo_graph(zoo), weights, count, false, &copy),
        done);
    WF_TRY_GOTO(describe(ctx, zoo, data, desc, copy), done);
    WF_TRY_GOTO(wf_zoo_set_scores(ctx, copy, data->name, scores, errors, bytes), done);
    status = wf_zoo_save(ctx, copy, path);
done:
    wf_zoo_free(copy);
    free(errors);
    free(scores);
    free(weights);
    return status;
}
