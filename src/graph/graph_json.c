/* graph_json: descriptions as JSON. docs/formats.md has the keys. Default values are not written.
 * Unknown keys are refused, so that a file of a later version is not misread. */
#include "base/json_text.h"
#include "graph/describe.h"
#include "weft/file.h"
#include "weft/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const norm_names[] = {"none", "batch", "layer"};
static const char *const pool_names[] = {"none", "max", "average", "global"};

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    wf_ctx *ctx;
    char where[48]; /* "layer 2", "layer 2, norm" */
} reader;

static wf_status wrong(const reader *r, const char *key, const char *expected) {
    return wf_fail(r->ctx, WF_ERR_USAGE, "architecture JSON, %s: \"%.40s\" must be %s", r->where,
                   key, expected);
}

/* `known` ends with NULL. */
static wf_status check_keys(const reader *r, json_t *object, const char *const *known) {
    if (!json_is_object(object))
        return wf_fail(r->ctx, WF_ERR_USAGE, "architecture JSON, %s: an object {...} is expected",
                       r->where);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        const char *const *name = known;
        while (*name != NULL && strcmp(*name, key) != 0) name++;
        if (*name == NULL)
            return wf_fail(r->ctx, WF_ERR_USAGE, "architecture JSON, %s: unknown key \"%.40s\"",
                           r->where, key);
    }
    return WF_OK;
}

static wf_status whole(const reader *r, const char *key, const json_t *value, int *out) {
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > 1 << 30)
        return wrong(r, key, "a whole number from 0 to 2^30");
    *out = (int)number;
    return WF_OK;
}

static wf_status get_int(const reader *r, json_t *object, const char *key, int *out) {
    const json_t *value = json_object_get(object, key);
    return value == NULL ? WF_OK : whole(r, key, value, out);
}

/* One number for both sides, or [height, width]; absent: *out stays. */
static wf_status get_pair(const reader *r, json_t *object, const char *key, int out[2]) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL) return WF_OK;
    if (!json_is_array(value)) {
        WF_TRY(whole(r, key, value, &out[0]));
        out[1] = out[0];
        return WF_OK;
    }
    if (json_array_size(value) != 2) return wrong(r, key, "a number or [height, width]");
    for (size_t i = 0; i < 2; i++) WF_TRY(whole(r, key, json_array_get(value, i), &out[i]));
    return WF_OK;
}

static wf_status get_text(const reader *r, json_t *object, const char *key, const char **out) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL) return WF_OK;
    if (!json_is_string(value)) return wrong(r, key, "a text");
    *out = json_string_value(value);
    return WF_OK;
}

/* One of n names; absent: *out stays. */
static wf_status get_name(const reader *r, json_t *object, const char *key,
                          const char *const *names, int n, int *out) {
    const char *text = NULL;
    char memory[96];
    wf_text list = wf_text_start(memory, sizeof memory);
    WF_TRY(get_text(r, object, key, &text));
    if (text == NULL) return WF_OK;
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return WF_OK;
        }
        wf_text_add(&list, "%s%s", i ? ", " : "one of ", names[i]);
    }
    return wrong(r, key, memory);
}

static wf_status read_window(const reader *r, json_t *object, bool pooling, wf_window *out) {
    *out = (wf_window){{0, 0}, {1, 1}, {0, 0}};
    WF_TRY(get_pair(r, object, "kernel", out->kernel));
    if (json_object_get(object, "kernel") == NULL) return wrong(r, "kernel", "given");
    if (pooling) memcpy(out->stride, out->kernel, sizeof out->stride);
    WF_TRY(get_pair(r, object, "stride", out->stride));
    return get_pair(r, object, "padding", out->padding);
}

static wf_status get_bool(const reader *r, json_t *object, const char *key, bool *out) {
    const json_t *value = json_object_get(object, key);
    if (value != NULL && !json_is_boolean(value)) return wrong(r, key, "true or false");
    if (value != NULL) *out = json_is_true(value);
    return WF_OK;
}

static wf_status get_eps(const reader *r, json_t *norm, wf_layer *layer) {
    const json_t *eps = json_object_get(norm, "eps");
    if (eps != NULL && !(json_number_value(eps) > 0)) return wrong(r, "eps", "a positive number");
    layer->eps = json_number_value(eps);
    return WF_OK;
}

static wf_status read_norm(reader *r, int number, json_t *norm, wf_layer *layer) {
    static const char *const keys[] = {"kind", "name", "eps", NULL};
    int kind = WF_NORM_NONE;
    if (norm == NULL) return WF_OK;
    snprintf(r->where, sizeof r->where, "layer %d, norm", number);
    WF_TRY(check_keys(r, norm, keys));
    WF_TRY(get_name(r, norm, "kind", norm_names, 3, &kind));
    if (kind == WF_NORM_NONE) return wrong(r, "kind", "batch or layer");
    layer->norm = (wf_norm_kind)kind;
    WF_TRY(get_eps(r, norm, layer));
    return get_text(r, norm, "name", &layer->norm_name);
}

static wf_status read_folded(reader *r, int number, json_t *norm, wf_layer *layer) {
    static const char *const keys[] = {"name", "eps", "bias", NULL};
    if (norm == NULL) return WF_OK;
    snprintf(r->where, sizeof r->where, "layer %d, folded_norm", number);
    WF_TRY(check_keys(r, norm, keys));
    WF_TRY(get_eps(r, norm, layer));
    WF_TRY(get_text(r, norm, "name", &layer->folded_norm));
    if (layer->folded_norm == NULL) return wrong(r, "name", "given");
    return get_bool(r, norm, "bias", &layer->folded_bias);
}

static wf_status read_pool(reader *r, int number, json_t *pool, wf_layer *layer) {
    static const char *const keys[] = {"kind", "kernel", "stride", "padding", NULL};
    int kind = WF_POOL_NONE;
    if (pool == NULL) return WF_OK;
    snprintf(r->where, sizeof r->where, "layer %d, pool", number);
    WF_TRY(check_keys(r, pool, keys));
    WF_TRY(get_name(r, pool, "kind", pool_names, 4, &kind));
    if (kind == WF_POOL_NONE) return wrong(r, "kind", "max, average or global");
    layer->pool = (wf_pool_kind)kind;
    return kind == WF_POOL_GLOBAL ? WF_OK : read_window(r, pool, true, &layer->pool_window);
}

/* A number, or [a, b] of an add. */
static wf_status read_from(const reader *r, json_t *object, wf_layer *layer) {
    const json_t *value = json_object_get(object, "from");
    if (layer->op != WF_LAYER_ADD) return get_int(r, object, "from", &layer->from[0]);
    if (!json_is_array(value) || json_array_size(value) != 2)
        return wrong(r, "from", "[a, b], the two layers to add");
    for (size_t i = 0; i < 2; i++)
        WF_TRY(whole(r, "from", json_array_get(value, i), &layer->from[i]));
    return WF_OK;
}

static wf_status read_layer(reader *r, int l, json_t *object, wf_layer *layer) {
    static const char *const keys[] = {"op",      "from", "in",          "units",      "kernel",
                                       "stride",  "name", "bias",        "activation", "norm",
                                       "padding", "pool", "folded_norm", NULL};
    int op = -1;
    const char *activation = "identity";
    snprintf(r->where, sizeof r->where, "layer %d", l + 1);
    WF_TRY(check_keys(r, object, keys));
    const char *const ops[] = {wf__op_name(WF_LAYER_LINEAR), wf__op_name(WF_LAYER_CONV),
                               wf__op_name(WF_LAYER_ADD), wf__op_name(WF_LAYER_PASS)};
    WF_TRY(get_name(r, object, "op", ops, 4, &op));
    if (op < 0) return wrong(r, "op", "linear, conv, add or pass");
    *layer = (wf_layer){.op = (wf_layer_kind)op, .from = {l}, .bias = true};
    WF_TRY(read_from(r, object, layer));
    WF_TRY(get_int(r, object, "in", &layer->in));
    WF_TRY(get_int(r, object, "units", &layer->n));
    if (op == WF_LAYER_CONV) WF_TRY(read_window(r, object, false, &layer->window));
    WF_TRY(get_text(r, object, "name", &layer->name));
    WF_TRY(get_text(r, object, "activation", &activation));
    WF_TRY(wf__activation_parse(r->ctx, activation, &layer->activation));
    WF_TRY(get_bool(r, object, "bias", &layer->bias));
    WF_TRY(read_norm(r, l + 1, json_object_get(object, "norm"), layer));
    WF_TRY(read_folded(r, l + 1, json_object_get(object, "folded_norm"), layer));
    return read_pool(r, l + 1, json_object_get(object, "pool"), layer);
}

static wf_status read_root(reader *r, json_t *root, wf_draft *draft) {
    static const char *const keys[] = {"input", "layers", NULL};
    WF_TRY(check_keys(r, root, keys));
    const json_t *input = json_object_get(root, "input"), *layers = json_object_get(root, "layers");
    size_t sizes = json_array_size(input), n = json_array_size(layers);
    int *size[] = {&draft->channels, &draft->height, &draft->width};
    if (sizes != 1 && sizes != 3) return wrong(r, "input", "[n] or [channels, height, width]");
    for (size_t i = 0; i < sizes; i++) WF_TRY(whole(r, "input", json_array_get(input, i), size[i]));
    if (sizes == 3 && draft->height == 0) return wrong(r, "input", "without zeros");
    if (n < 1 || n > WF_MAX_LAYERS) return wrong(r, "layers", "a list of 1 to 4096 layers");
    draft->layers = wf_arena_alloc(&draft->arena, n * sizeof *draft->layers);
    if (draft->layers == NULL) return wf_fail(r->ctx, WF_ERR_MEMORY, "architecture: out of memory");
    for (; draft->n < (int)n; draft->n++)
        WF_TRY(read_layer(r, draft->n, json_array_get(layers, (size_t)draft->n),
                          &draft->layers[draft->n]));
    return WF_OK;
}

wf_status wf_graph_from_json(wf_ctx *ctx, const char *json, unsigned flags, wf_graph **out) {
    *out = NULL;
    json_error_t error;
    WF_TRY(wf_json_check(ctx, "architecture JSON", json, strlen(json)));
    errno = 0;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    /* jansson calls it a wrong text, or says nothing */
    if (root == NULL && (errno == ENOMEM || error.text[0] == '\0'))
        return wf_fail(ctx, WF_ERR_MEMORY, "architecture: out of memory");
    if (root == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "architecture JSON, line %d, column %d: %s", error.line,
                       error.column, error.text);
    reader r = {.ctx = ctx, .where = "top level"};
    wf_draft draft = {0};
    wf_status status = read_root(&r, root, &draft);
    if (status == WF_OK) status = wf__draft_build(ctx, &draft, flags, out);
    wf_arena_free(&draft.arena);
    json_decref(root);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* json_object_set_new with NULL fails: what could not be made is noticed by its caller. */
static bool set(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static bool set_pair(json_t *object, const char *key, const int pair[2], const int usual[2]) {
    if (memcmp(pair, usual, 2 * sizeof *pair) == 0) return true;
    if (pair[0] == pair[1]) return set(object, key, json_integer(pair[0]));
    return set(object, key, json_pack("[i,i]", pair[0], pair[1]));
}

static bool set_window(json_t *object, const wf_window *window, const int usual_stride[2]) {
    static const int zeros[2];
    return set_pair(object, "kernel", window->kernel, zeros) &&
           set_pair(object, "stride", window->stride, usual_stride) &&
           set_pair(object, "padding", window->padding, zeros);
}

static bool write_layer(const wf_layer *layer, int l, json_t *object) {
    static const int ones[2] = {1, 1};
    bool weighted = layer->op == WF_LAYER_LINEAR || layer->op == WF_LAYER_CONV;
    bool ok = set(object, "op", json_string(wf__op_name(layer->op)));
    if (layer->op == WF_LAYER_ADD)
        ok = ok && set(object, "from", json_pack("[i,i]", layer->from[0], layer->from[1]));
    else if (layer->from[0] != l) ok = ok && set(object, "from", json_integer(layer->from[0]));
    if (weighted)
        ok = ok && set(object, "name", json_string(layer->name)) &&
             set(object, "units", json_integer(layer->n));
    if (layer->op == WF_LAYER_CONV) ok = ok && set_window(object, &layer->window, ones);
    if (weighted && !layer->bias) ok = ok && set(object, "bias", json_false());
    if (layer->norm != WF_NORM_NONE) {
        json_t *norm =
            json_pack("{s:s, s:s}", "kind", norm_names[layer->norm], "name", layer->norm_name);
        ok = set(object, "norm", norm) && ok;
        if (ok && layer->eps != 1e-5) ok = set(norm, "eps", json_real(layer->eps));
    }
    if (layer->folded_norm != NULL) {
        json_t *norm = json_pack("{s:s}", "name", layer->folded_norm);
        ok = set(object, "folded_norm", norm) && ok;
        if (ok && layer->eps != 1e-5) ok = set(norm, "eps", json_real(layer->eps));
        if (layer->folded_bias) ok = ok && set(norm, "bias", json_true());
    }
    if (layer->activation != WF_ACT_IDENTITY)
        ok = ok && set(object, "activation", json_string(wf_activation_name(layer->activation)));
    if (layer->pool != WF_POOL_NONE) {
        json_t *pool = json_pack("{s:s}", "kind", pool_names[layer->pool]);
        ok = set(object, "pool", pool) && ok;
        if (ok && layer->pool != WF_POOL_GLOBAL)
            ok = set_window(pool, &layer->pool_window, layer->pool_window.kernel);
    }
    return ok;
}

wf_status wf_graph_json(wf_ctx *ctx, const wf_graph *graph, char **out) {
    const wf_group *input = &graph->groups[0];
    json_t *layers = json_array();
    json_t *root = input->image ? json_pack("{s:[i,i,i], s:O}", "input", input->n, input->height,
                                            input->width, "layers", layers)
                                : json_pack("{s:[i], s:O}", "input", input->n, "layers", layers);
    bool ok = root != NULL;
    for (int l = 0; l < graph->n_layers && ok; l++) {
        json_t *object = json_object();
        ok =
            json_array_append_new(layers, object) == 0 && write_layer(&graph->layers[l], l, object);
    }
    *out = ok ? wf_json_text(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    json_decref(layers);
    return *out != NULL ? WF_OK : wf_fail(ctx, WF_ERR_MEMORY, "architecture: out of memory");
}
