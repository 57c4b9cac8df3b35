/* zoo_suits: whether the networks of a collection fit a data set, and what would fit better.
 *
 * Files of other programs do not say how inputs were scaled, which activation the networks have, or
 * which output stands for which class. A way is one combination of the three. The usual
 * ways are tried on a few networks and a part of the test set. */
#include "align/assign.h"
#include "base/mute.h"
#include "base/settings_json.h"
#include "graph/describe.h"
#include "weft/eval.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { sample_networks = 16, sample_rows = 2000, most_rows = 20000 };

/* A better way must raise accuracy by this much and take away this share of the errors. */
static const double least_gain = 0.02, least_share = 1.0 / 3;
/* Of two ways that are nearly as good, the simpler and more usual one is reported. Activations are
 * listed by how often people use them. */
static const double cost_of_a_change = 0.03, cost_of_a_place = 0.003;

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
    const wf_data_desc *desc; /* opened with each scale; NULL: `data` is scaled */
    const wf_dataset *data;
    wf_scale scale; /* of the way as given */
    float *weights; /* (n, n_params) */
    size_t n;
    double largest_class; /* its share in the test part */
    way given, best;
    uint32_t *label_of; /* [classes] of each output, by the best way */
    char order[256];    /* the same as names */
    bool order_cut;     /* too long */
} trial;

/* The description with another activation of its hidden layers. */
static wf_status with_activation(const trial *t, wf_activation activation, wf_graph **out) {
    const wf_graph *graph = t->graph;
    wf_layer *layers;
    WF_TRY(wf_alloc(t->ctx, (size_t)graph->n_layers, sizeof *layers, "layers", &layers));
    memcpy(layers, graph->layers, (size_t)graph->n_layers * sizeof *layers);
    for (int l = 0; l + 1 < graph->n_layers; l++)
        if (layers[l].activation == graph->activation) layers[l].activation = activation;
    wf_status status = wf__graph_rebuild(t->ctx, graph, layers, 0, out);
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
    for (int c = 0; c < data->classes; c++) {
        const char *name = data->class_names[label_of[c]];
        const char *quote = strchr(name, ',') != NULL ? "\"" : "";
        wf_text_add(&text, "%s%s%s%s", c > 0 ? "," : "", quote, name, quote);
    }
    t->order_cut = text.cut;
    memcpy(t->label_of, label_of, (size_t)data->classes * sizeof *label_of);
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
    double *transposed = NULL;
    uint32_t *match = NULL;
    void *scratch = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(t->ctx, classes * classes, sizeof *transposed, "classes", &transposed),
                done);
    WF_TRY_GOTO(wf_alloc(t->ctx, classes, sizeof *match, "classes", &match), done);
    WF_TRY_GOTO(wf_alloc(t->ctx, wf__assign_scratch((int)classes), 1, "classes", &scratch), done);
    for (size_t r = 0; r < classes; r++)
        for (size_t c = 0; c < classes; c++) transposed[r * classes + c] = count[c * classes + r];
    w.accuracy = wf__assign((int)classes, transposed, match, scratch) / total;
    w.other_order = true;
    w.changes++;
    if (worth(&w) > worth(&t->best)) {
        t->best = w;
        keep_order(t, data, match);
    }
done:
    free(scratch);
    free(match);
    free(transposed);
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

static double largest_class(const wf_dataset *data) {
    size_t largest = 0;
    for (int c = 0; c < data->classes; c++) {
        size_t count = 0;
        for (size_t k = 0; k < data->n_test; k++) count += data->y_test[k] == c;
        if (count > largest) largest = count;
    }
    return (double)largest / (double)data->n_test;
}

/* Shift and divisor of one input under a scale: fitted to rows (n, inputs), as prepare.c does. */
static void fit_scale(wf_scale scale, const float *x, size_t n, size_t inputs, double *shift,
                      double *divisor) {
    double sum = 0, squares = 0, low = x[0], high = x[0];
    *shift = 0;
    *divisor = scale == WF_SCALE_UNIT ? 255 : 1;
    if (scale != WF_SCALE_STANDARD && scale != WF_SCALE_MINMAX) return;
    for (size_t k = 0; k < n; k++) {
        sum += x[k * inputs];
        low = fmin(low, x[k * inputs]);
        high = fmax(high, x[k * inputs]);
    }
    double mean = sum / (double)n;
    for (size_t k = 0; k < n; k++) squares += (x[k * inputs] - mean) * (x[k * inputs] - mean);
    *shift = scale == WF_SCALE_STANDARD ? mean : low;
    *divisor = scale == WF_SCALE_STANDARD ? sqrt(squares / (double)n) : high - low;
    if (!(*divisor > 0)) *divisor = 1;
}

/* Rows spread over the test part of the data in memory, scaled. The scale is fitted to the training
 * part, or to the test part where there is no other. */
static wf_status scaled_rows(const trial *t, wf_scale scale, wf_dataset **out) {
    const wf_dataset *data = t->data;
    bool trains = data->n_train > 0;
    size_t inputs = (size_t)data->inputs, all = data->n_test, fitted = trains ? data->n_train : all;
    const float *from = trains ? data->x_train : data->x_test;
    size_t n = all < sample_rows ? all : sample_rows;
    float *x = NULL;
    int32_t *y = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(t->ctx, n * inputs, sizeof *x, "examples", &x), done);
    WF_TRY_GOTO(wf_alloc(t->ctx, n, sizeof *y, "labels", &y), done);
    for (size_t i = 0; i < inputs; i++) {
        double shift, divisor;
        fit_scale(scale, from + i, fitted, inputs, &shift, &divisor);
        for (size_t k = 0; k < n; k++)
            x[k * inputs + i] = (float)((data->x_test[k * all / n * inputs + i] - shift) / divisor);
    }
    for (size_t k = 0; k < n; k++) y[k] = data->y_test[k * all / n];
    status = wf_dataset_from_memory(t->ctx, data->name, data->inputs, data->classes, NULL, NULL, 0,
                                    x, y, n, out);
done:
    free(y);
    free(x);
    return status;
}

static wf_status open_scaled(trial *t, wf_scale scale, wf_dataset **out) {
    if (t->desc == NULL) {
        t->largest_class = largest_class(t->data);
        return scaled_rows(t, scale, out);
    }
    wf_data_desc desc = *t->desc;
    desc.scale = scale;
    if (desc.rows == 0 && desc.path != NULL) desc.rows = most_rows;
    wf__ctx_mute(t->ctx, true); /* warnings about scales that nobody asked for */
    wf_status opened = wf_dataset_open(t->ctx, &desc, out);
    wf__ctx_mute(t->ctx, false);
    WF_TRY(opened);
    t->largest_class = largest_class(*out);
    return WF_OK;
}

static wf_status try_scale(trial *t, wf_scale scale) {
    wf_dataset *data;
    WF_TRY(open_scaled(t, scale, &data));
    size_t all = data->n_test;
    if (data->n_test > sample_rows) data->n_test = sample_rows; /* the first ones serve */
    wf_activation own = t->graph->activation;
    wf_status status = wf_dataset_fits(t->ctx, data, t->graph);
    for (int a = 0; a < WF_ACT_MIXED && status == WF_OK; a++) {
        bool same = (wf_activation)a == own;
        if (!same && (own == WF_ACT_MIXED || t->graph->n_layers < 2)) continue;
        way w = {.scale = scale, .activation = (wf_activation)a};
        w.changes = !same + (scale != t->scale);
        status = try_activation(t, data, w);
    }
    if (status == WF_OK && own == WF_ACT_MIXED) {
        way w = {.scale = scale, .activation = own, .changes = scale != t->scale};
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

/* Below this an accuracy is hardly above that of always naming the largest class. */
static double guessing(const trial *t) { return t->largest_class + 0.1 * (1 - t->largest_class); }

static wf_status try_all(trial *t, const wf_zoo *zoo) {
    static const wf_scale scales[] = {WF_SCALE_NONE, WF_SCALE_STANDARD, WF_SCALE_MINMAX,
                                      WF_SCALE_UNIT};
    t->graph = wf_zoo_graph(zoo);
    t->scale = t->desc != NULL ? t->desc->scale : WF_SCALE_NONE;
    t->best.accuracy = -1;
    if (t->desc == NULL) {
        WF_TRY(wf_dataset_fits(t->ctx, t->data, t->graph));
        if (t->data->n_test == 0)
            return wf_fail(t->ctx, WF_ERR_INPUT, "%s has no test part", t->data->name);
    }
    WF_TRY(
        wf_alloc(t->ctx, (size_t)t->graph->outputs, sizeof *t->label_of, "classes", &t->label_of));
    WF_TRY(take_sample(t, zoo));
    WF_TRY(try_scale(t, t->scale));
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        if (1 - t->given.accuracy < least_gain) break;
        if (scales[i] != t->scale) WF_TRY(try_scale(t, scales[i]));
    }
    double gain = t->best.accuracy - t->given.accuracy;
    if (gain < least_gain || gain < least_share * (1 - t->given.accuracy) ||
        t->best.accuracy < guessing(t))
        t->best = t->given;
    return WF_OK;
}

static void trial_free(trial *t) {
    free(t->weights);
    free(t->label_of);
}

/* The scale as recipes write it. */
static const char *scale_text(const way *w, char buffer[WF_SETTING_BUFFER]) {
    const wf_data_desc desc = {.scale = w->scale};
    return wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &desc, buffer);
}

/* One word of a shell. */
static void add_quoted(wf_text *text, const char *word) {
    bool plain = strpbrk(word, "\"$`\\!") == NULL;
    wf_text_add(text, plain ? "\"" : "'");
    for (; *word != '\0'; word++)
        if (!plain && *word == '\'') wf_text_add(text, "'\\''");
        else wf_text_add(text, "%c", *word);
    wf_text_add(text, plain ? "\"" : "'");
}

static void write_advice(const trial *t, wf_suits *out) {
    const way *best = &t->best;
    char buffer[WF_SETTING_BUFFER];
    wf_text text = wf_text_start(out->advice, sizeof out->advice);
    if (best->scale != t->scale) wf_text_add(&text, " --scale %s", scale_text(best, buffer));
    if (best->activation != t->graph->activation)
        wf_text_add(&text, " --activation %s", wf_activation_name(best->activation));
    if (best->other_order) {
        wf_text_add(&text, " --classes ");
        if (t->order_cut) wf_text_add(&text, "and another order of them");
        else add_quoted(&text, t->order);
    }
    if (text.length > 0) memmove(out->advice, out->advice + 1, text.length); /* the first space */
}

wf_status wf_zoo_suits(wf_ctx *ctx, const wf_zoo *zoo, const wf_data_desc *desc, wf_suits *out) {
    *out = (wf_suits){0};
    trial t = {.ctx = ctx, .desc = desc};
    wf_status status = try_all(&t, zoo);
    if (status == WF_OK) {
        out->accuracy = t.given.accuracy;
        out->best = t.best.accuracy;
        out->largest_class = t.largest_class;
        out->guessing = guessing(&t);
        write_advice(&t, out);
    }
    trial_free(&t);
    return status;
}

/* The labels of the outputs, or null where they are as given. */
static json_t *order_json(const trial *t) {
    if (!t->best.other_order) return json_null();
    json_t *list = json_array();
    for (int c = 0; c < t->graph->outputs; c++)
        json_array_append_new(list, json_integer((json_int_t)t->label_of[c]));
    return list;
}

wf_status wf_zoo_suits_json(wf_ctx *ctx, const wf_zoo *zoo, const wf_data_desc *desc,
                            const wf_dataset *data, char **out) {
    char buffer[WF_SETTING_BUFFER];
    *out = NULL;
    trial t = {.ctx = ctx, .desc = desc, .data = data};
    wf_status status = try_all(&t, zoo);
    if (status == WF_OK) {
        const way *best = &t.best;
        const char *scale = best->scale == t.scale ? NULL : scale_text(best, buffer);
        const char *activation =
            best->activation == t.graph->activation ? NULL : wf_activation_name(best->activation);
        status = wf__json_answer(
            ctx,
            json_pack("{s:f, s:f, s:f, s:f, s:s?, s:s?, s:o}", "accuracy", t.given.accuracy, "best",
                      best->accuracy, "largest_class", t.largest_class, "guessing", guessing(&t),
                      "scale", scale, "activation", activation, "classes", order_json(&t)),
            out);
    }
    trial_free(&t);
    return status;
}
