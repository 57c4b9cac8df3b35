/* graph_text: descriptions as texts (weft/graph.h has the grammar).
 *
 * Names of layers are those of the nn.Sequential that a text with words stands for: every word and
 * every activation is a module, and so is the flattening before the first linear layer. Widths
 * joined by '-' are weft's own form, whose layers are layers.0, layers.1 ... A text with basic
 * blocks has the names of torchvision's ResNets: conv1, bn1, layer1.0.conv1 ..., fc. */
#include "base/io.h"
#include "graph/describe.h"
#include "weft/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that is being read. */
typedef struct reader {
    wf_ctx *ctx;
    const char *text, *at;
    wf_activation activation;
    wf_draft draft;
    int modules;    /* of the nn.Sequential so far */
    bool resnet;    /* there are basic blocks: names are torchvision's */
    int stages;     /* words of basic blocks so far */
    int units;      /* that the next layer reads */
    bool image;     /* what the next layer reads */
    int stage;      /* of the last layer: what may still follow */
    bool activated; /* the last layer names its activation */
} reader;

/* A layer's parts in the order in which they are executed. */
enum { stage_sum, stage_norm, stage_activation, stage_pool };

static wf_status expected(const reader *r, const char *at, const char *what) {
    return wf_fail(r->ctx, WF_ERR_USAGE, "architecture \"%.200s\": expected %s at \"%.60s\"",
                   r->text, what, at);
}

static bool read_number(const char **at, int *out) {
    if (**at < '0' || **at > '9') return false;
    char *end;
    long value = strtol(*at, &end, 10);
    if (value > INT_MAX) return false;
    *out = (int)value;
    *at = end;
    return true;
}

static wf_layer *add_layer(reader *r, wf_layer_kind op) {
    wf_layer *layer = &r->draft.layers[r->draft.n];
    *layer = (wf_layer){.op = op, .from = {r->draft.n}, .activation = WF_ACT_IDENTITY};
    r->draft.n++;
    r->stage = stage_sum;
    r->activated = false;
    return layer;
}

enum { layers_of_a_block = 4, most_blocks = WF_MAX_LAYERS / layers_of_a_block };

/* UNITSxBLOCKS behind "basic". */
static bool read_basic(const char **at, int *units, int *blocks) {
    if (!read_number(at, units) || **at != 'x') return false;
    ++*at;
    return read_number(at, blocks) && *blocks >= 1 && *blocks <= most_blocks;
}

static wf_status reserve_layers(reader *r) {
    size_t words = 1;
    for (const char *p = r->text; *p != 0; p++) words += *p == '-' || *p == ' ';
    for (const char *p = r->text; (p = strstr(p, " basic")) != NULL;) {
        int units, blocks;
        p += sizeof " basic" - 1;
        r->resnet = true;
        if (read_basic(&p, &units, &blocks)) words += layers_of_a_block * (size_t)blocks;
    }
    r->draft.layers = wf_arena_alloc(&r->draft.arena, words * sizeof *r->draft.layers);
    return r->draft.layers != NULL ? WF_OK
                                   : wf_fail(r->ctx, WF_ERR_MEMORY, "architecture: out of memory");
}

/* --- widths joined by '-' --------------------------------------------------------------------- */

static wf_status read_widths(reader *r) {
    for (;;) {
        const char *start = r->at;
        int width;
        if (!read_number(&r->at, &width) || width < 1 || width > WF_MAX_WIDTH)
            return wf_fail(r->ctx, WF_ERR_USAGE,
                           "architecture \"%.200s\": expected a width from 1 to %d at \"%.60s\"; "
                           "write widths joined by '-', for example 64-16-8-10",
                           r->text, WF_MAX_WIDTH, start);
        bool bias = *r->at != '!';
        if (!bias) r->at++;
        if (r->draft.channels == 0) {
            if (!bias)
                return wf_fail(r->ctx, WF_ERR_USAGE,
                               "architecture \"%.200s\": the inputs have no bias; '!' stands "
                               "after a layer's output width",
                               r->text);
            r->draft.channels = width;
        } else {
            wf_layer *layer = add_layer(r, WF_LAYER_LINEAR);
            layer->n = width;
            layer->bias = bias;
            layer->activation = r->activation;
        }
        if (*r->at == 0) break;
        if (*r->at != '-') return expected(r, r->at, "'-'");
        r->at++;
    }
    if (r->draft.n == 0)
        return wf_fail(r->ctx, WF_ERR_USAGE,
                       "architecture \"%.200s\": at least inputs and outputs are needed, for "
                       "example 64-10",
                       r->text);
    r->draft.layers[r->draft.n - 1].activation = WF_ACT_IDENTITY;
    return WF_OK;
}

/* --- words ------------------------------------------------------------------------------------ */

enum { longest_module = sizeof "layer1024.1024.downsample.0" };

/* The module that the next word stands for, as a name; `in_resnet` is its name in a ResNet. */
static wf_status next_module(reader *r, const char *in_resnet, const char **out) {
    char *name = wf_arena_alloc(&r->draft.arena, longest_module);
    if (name == NULL) return wf_fail(r->ctx, WF_ERR_MEMORY, "architecture: out of memory");
    if (r->resnet) snprintf(name, longest_module, "%s", in_resnet);
    else snprintf(name, longest_module, "%d", r->modules);
    r->modules++;
    *out = name;
    return WF_OK;
}

static bool take(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

/* Kernel, stride and padding as in "k5s2p2"; those that are left out stay negative. */
static void read_window(const char **at, int *kernel, int *stride, int *padding) {
    struct {
        char letter;
        int *value;
    } parts[] = {{'k', kernel}, {'s', stride}, {'p', padding}};
    for (int i = 0; i < 3; i++) {
        const char *number = *at + 1;
        if (**at == parts[i].letter && read_number(&number, parts[i].value)) *at = number;
    }
}

static wf_window square(int kernel, int stride, int padding) {
    return (wf_window){{kernel, kernel}, {stride, stride}, {padding, padding}};
}

/* The last layer, to which a norm, an activation or a pooling is added. */
static wf_status last_layer(reader *r, const char *word, int stage, wf_layer **out) {
    if (r->draft.n == 0) return expected(r, word, "conv16, linear10 or pass");
    if (r->stage >= stage)
        return expected(r, word,
                        "norm, activation and pooling of a layer in this order; a word `pass` "
                        "opens a further layer");
    *out = &r->draft.layers[r->draft.n - 1];
    r->stage = stage;
    return WF_OK;
}

/* The default activation is a module as soon as the layer goes on without another. */
static void settle_activation(reader *r) {
    if (r->draft.n == 0 || r->stage >= stage_activation) return;
    wf_layer *layer = &r->draft.layers[r->draft.n - 1];
    if (layer->op == WF_LAYER_PASS) return;
    layer->activation = r->activation;
    if (layer->activation != WF_ACT_IDENTITY) r->modules++;
    r->stage = stage_activation;
}

static wf_status read_weighted(reader *r, const char *word, wf_layer_kind op) {
    settle_activation(r);
    wf_layer *layer = add_layer(r, op);
    int kernel = 3, stride = 1, padding = -1;
    if (!read_number(&r->at, &layer->n)) return expected(r, word, "a number of units");
    if (op == WF_LAYER_CONV) {
        read_window(&r->at, &kernel, &stride, &padding);
        layer->window = square(kernel, stride, padding < 0 ? kernel / 2 : padding);
    }
    layer->bias = *r->at != '!';
    if (!layer->bias) r->at++;
    if (op == WF_LAYER_LINEAR && r->image) r->modules++; /* nn.Flatten */
    r->image = r->image && op == WF_LAYER_CONV;
    r->units = layer->n;
    return next_module(r, op == WF_LAYER_CONV ? "conv1" : "fc", &layer->name);
}

/* One convolution with its batch norm, of block `b` of the stage that is being read. */
static wf_status add_block_conv(reader *r, int b, const char *name, const char *norm, int from,
                                wf_window window) {
    wf_layer *layer = add_layer(r, WF_LAYER_CONV);
    char module[longest_module];
    layer->from[0] = from;
    layer->n = r->units;
    layer->window = window;
    layer->norm = WF_NORM_BATCH;
    snprintf(module, sizeof module, "layer%d.%d.%s", r->stages, b, name);
    WF_TRY(next_module(r, module, &layer->name));
    snprintf(module, sizeof module, "layer%d.%d.%s", r->stages, b, norm);
    return next_module(r, module, &layer->norm_name);
}

/* Blocks of two 3x3 convolutions with batch norms and a shortcut. Where the first block changes
 * the number of channels or has a stride, its shortcut is a 1x1 convolution with a batch norm. */
static wf_status read_stage(reader *r, const char *word) {
    int units, blocks, stride = 1;
    if (!read_basic(&r->at, &units, &blocks))
        return expected(r, word,
                        "channels and number of basic blocks, as basic64x2 or basic64x2s2");
    const char *number = r->at + 1;
    if (*r->at == 's' && read_number(&number, &stride)) r->at = number;
    settle_activation(r);
    r->stages++;
    for (int b = 0; b < blocks; b++, stride = 1) {
        int input = r->draft.n, shortcut = input;
        bool same = stride == 1 && units == r->units;
        r->units = units;
        WF_TRY(add_block_conv(r, b, "conv1", "bn1", input, square(3, stride, 1)));
        r->draft.layers[input].activation = r->activation;
        WF_TRY(add_block_conv(r, b, "conv2", "bn2", input + 1, square(3, 1, 1)));
        if (!same) {
            WF_TRY(
                add_block_conv(r, b, "downsample.0", "downsample.1", input, square(1, stride, 0)));
            shortcut = input + 3;
        }
        wf_layer *sum = add_layer(r, WF_LAYER_ADD);
        sum->from[0] = input + 2;
        sum->from[1] = shortcut;
        sum->activation = r->activation;
    }
    r->stage = stage_activation;
    return WF_OK;
}

static wf_status read_pool(reader *r, const char *word, wf_pool_kind pool) {
    wf_layer *layer = NULL;
    settle_activation(r);
    WF_TRY(last_layer(r, word, stage_pool, &layer));
    layer->pool = pool;
    r->modules++;
    if (pool == WF_POOL_GLOBAL) return WF_OK;
    int kernel = 2, stride = -1, padding = 0;
    read_number(&r->at, &kernel);
    read_window(&r->at, &kernel, &stride, &padding);
    layer->pool_window = square(kernel, stride < 0 ? kernel : stride, padding);
    return WF_OK;
}

static wf_status read_norm(reader *r, const char *word, wf_norm_kind norm) {
    wf_layer *layer = NULL;
    WF_TRY(last_layer(r, word, stage_norm, &layer));
    layer->norm = norm;
    return next_module(r, "bn1", &layer->norm_name);
}

static wf_status read_activation(reader *r, const char *word) {
    wf_layer *layer = NULL;
    for (int i = 0; i < WF_ACT_MIXED; i++) {
        if (!take(&r->at, wf_activation_name((wf_activation)i))) continue;
        WF_TRY(last_layer(r, word, stage_activation, &layer));
        layer->activation = (wf_activation)i;
        r->activated = true;
        r->modules += i != WF_ACT_IDENTITY;
        return WF_OK;
    }
    return expected(r, word,
                    "conv16, linear10, basic64x2, pool, avgpool, gap, flatten, batchnorm, "
                    "layernorm, pass or an activation");
}

static wf_status read_word(reader *r) {
    const char *word = r->at;
    if (take(&r->at, "conv")) return read_weighted(r, word, WF_LAYER_CONV);
    if (take(&r->at, "linear")) return read_weighted(r, word, WF_LAYER_LINEAR);
    if (take(&r->at, "basic")) return read_stage(r, word);
    if (take(&r->at, "pool")) return read_pool(r, word, WF_POOL_MAX);
    if (take(&r->at, "avgpool")) return read_pool(r, word, WF_POOL_AVERAGE);
    if (take(&r->at, "gap")) return read_pool(r, word, WF_POOL_GLOBAL);
    if (take(&r->at, "batchnorm")) return read_norm(r, word, WF_NORM_BATCH);
    if (take(&r->at, "layernorm")) return read_norm(r, word, WF_NORM_LAYER);
    if (take(&r->at, "pass")) {
        settle_activation(r);
        add_layer(r, WF_LAYER_PASS);
        return WF_OK;
    }
    if (take(&r->at, "flatten")) /* every linear layer flattens what it reads */
        return strncmp(r->at + strspn(r->at, " "), "linear", 6) == 0
                   ? WF_OK
                   : expected(r, r->at, "a linear layer after flatten");
    return read_activation(r, word);
}

static wf_status read_words(reader *r) {
    wf_draft *draft = &r->draft;
    bool fits = read_number(&r->at, &draft->channels);
    r->image = take(&r->at, "x");
    if (r->image)
        fits = fits && read_number(&r->at, &draft->height) && draft->height > 0 &&
               take(&r->at, "x") && read_number(&r->at, &draft->width);
    if (!fits) return expected(r, r->text, "inputs as 64 or 3x32x32");
    r->units = draft->channels;
    while (*r->at != 0) {
        if (*r->at != ' ') return expected(r, r->at, "a space");
        while (*r->at == ' ') r->at++;
        if (*r->at != 0) WF_TRY(read_word(r));
    }
    if (draft->n > 0 && !r->activated) draft->layers[draft->n - 1].activation = WF_ACT_IDENTITY;
    return WF_OK;
}

/* --- all forms -------------------------------------------------------------------------------- */

enum { most_json = 16 << 20 }; /* 4,096 layers with long names need less than 4 MB */

static wf_status parse_file(wf_ctx *ctx, const char *path, unsigned flags, wf_graph **out) {
    char *json;
    size_t size;
    WF_TRY(wf_read_file(ctx, path, most_json, &json, &size));
    wf_status status = wf_graph_from_json(ctx, json, flags, out);
    if (status != WF_OK && status != WF_ERR_MEMORY)
        status = wf_fail(ctx, status == WF_ERR_USAGE ? WF_ERR_INPUT : status, "%s: %s", path,
                         wf_last_error(ctx));
    free(json);
    return status;
}

wf_status wf_graph_parse(wf_ctx *ctx, const char *text, const char *activation, unsigned flags,
                         wf_graph **out) {
    *out = NULL;
    size_t length = strlen(text);
    if (text[0] != '{' && length > 5 && strcmp(text + length - 5, ".json") == 0)
        return parse_file(ctx, text, flags, out);
    return wf__graph_parse_text(ctx, text, activation, flags, out);
}

wf_status wf__graph_parse_text(wf_ctx *ctx, const char *text, const char *activation,
                               unsigned flags, wf_graph **out) {
    *out = NULL;
    if (text[0] == '{') return wf_graph_from_json(ctx, text, flags, out);
    reader r = {.ctx = ctx, .text = text, .at = text};
    wf_status status = WF_OK;
    WF_TRY_GOTO(reserve_layers(&r), done);
    WF_TRY_GOTO(wf__activation_parse(ctx, activation, &r.activation), done);
    WF_TRY_GOTO(strchr(text, ' ') != NULL ? read_words(&r) : read_widths(&r), done);
    status = wf__draft_build(ctx, &r.draft, flags, out);
done:
    wf_arena_free(&r.draft.arena);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool is_square(const wf_window *window) {
    return window->kernel[0] == window->kernel[1] && window->stride[0] == window->stride[1] &&
           window->padding[0] == window->padding[1];
}

/* Whether words can say it: a chain of layers with square windows and the usual eps. */
static bool has_words(const wf_graph *graph) {
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        if (layer->op == WF_LAYER_ADD || layer->from[0] != l ||
            (layer->op == WF_LAYER_CONV && !is_square(&layer->window)) ||
            (layer->norm != WF_NORM_NONE && layer->eps != 1e-5) ||
            (layer->pool != WF_POOL_NONE && !is_square(&layer->pool_window)))
            return false;
    }
    return true;
}

static bool has_widths(const wf_graph *graph) {
    if (graph->groups[0].image || graph->activation == WF_ACT_MIXED) return false;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        if (layer->op != WF_LAYER_LINEAR || layer->from[0] != l || layer->norm != WF_NORM_NONE)
            return false;
    }
    return true;
}

static void put_input(wf_text *w, const wf_graph *graph) {
    const wf_group *input = &graph->groups[0];
    if (input->image) wf_text_add(w, "%dx%dx%d", input->n, input->height, input->width);
    else wf_text_add(w, "%d", input->n);
}

static void put_words(wf_text *w, const wf_graph *graph, int l) {
    const wf_layer *layer = &graph->layers[l];
    const wf_window *window = &layer->window;
    bool last = l + 1 == graph->n_layers, weighted = layer->op != WF_LAYER_PASS;
    wf_text_add(w, " %s", wf__op_name(layer->op));
    if (weighted) wf_text_add(w, "%d", layer->n);
    if (layer->op == WF_LAYER_CONV) {
        if (window->kernel[0] != 3) wf_text_add(w, "k%d", window->kernel[0]);
        if (window->stride[0] != 1) wf_text_add(w, "s%d", window->stride[0]);
        if (window->padding[0] != window->kernel[0] / 2) wf_text_add(w, "p%d", window->padding[0]);
    }
    if (weighted && !layer->bias) wf_text_add(w, "!");
    if (layer->norm == WF_NORM_BATCH) wf_text_add(w, " batchnorm");
    if (layer->norm == WF_NORM_LAYER) wf_text_add(w, " layernorm");
    wf_activation usual = weighted && !last ? graph->activation : WF_ACT_IDENTITY;
    if (layer->activation != usual) wf_text_add(w, " %s", wf_activation_name(layer->activation));
    window = &layer->pool_window;
    if (layer->pool == WF_POOL_GLOBAL) wf_text_add(w, " gap");
    if (layer->pool != WF_POOL_MAX && layer->pool != WF_POOL_AVERAGE) return;
    wf_text_add(w, "%s", layer->pool == WF_POOL_MAX ? " pool" : " avgpool");
    if (window->kernel[0] != 2) wf_text_add(w, "%d", window->kernel[0]);
    if (window->stride[0] != window->kernel[0]) wf_text_add(w, "s%d", window->stride[0]);
    if (window->padding[0] != 0) wf_text_add(w, "p%d", window->padding[0]);
}

/* FNV-1a over everything that wf_graph_equal compares. */
static uint32_t digest(const wf_graph *graph) {
    uint32_t hash = 2166136261u;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        const wf_window *windows[] = {&layer->window, &layer->pool_window};
        bool used[] = {layer->op == WF_LAYER_CONV,
                       layer->pool == WF_POOL_MAX || layer->pool == WF_POOL_AVERAGE};
        float eps = layer->norm == WF_NORM_NONE ? 0 : (float)layer->eps;
        int32_t words[21] = {
            layer->op,   layer->from[0],    layer->op == WF_LAYER_ADD ? layer->from[1] : 0,
            layer->n,    layer->bias,       layer->norm,
            layer->pool, layer->activation, 0};
        memcpy(&words[8], &eps, sizeof eps);
        for (int k = 0; k < 2; k++)
            if (used[k]) memcpy(&words[9 + 6 * k], windows[k], sizeof *windows[k]);
        for (size_t i = 0; i < sizeof words; i++)
            hash = (hash ^ ((const uint8_t *)words)[i]) * 16777619u;
    }
    return hash;
}

enum { most_of_a_layer = 96 }; /* " conv1048576k16384s16384p16384! batchnorm identity avgpool..." */

wf_status wf__graph_text(wf_ctx *ctx, const wf_graph *graph, char **out) {
    size_t size = ((size_t)graph->n_layers + 2) * most_of_a_layer;
    WF_TRY(wf_alloc(ctx, size, 1, "graph", out));
    wf_text w = wf_text_start(*out, size);
    put_input(&w, graph);
    if (has_widths(graph))
        for (int l = 0; l < graph->n_layers; l++)
            wf_text_add(&w, "-%d%s", graph->layers[l].n, graph->layers[l].bias ? "" : "!");
    else if (has_words(graph))
        for (int l = 0; l < graph->n_layers; l++) put_words(&w, graph, l);
    else
        wf_text_add(&w, " to %d, %d layers, %zu parameters, %08x", graph->outputs, graph->n_layers,
                    graph->n_params, digest(graph));
    return WF_OK;
}
