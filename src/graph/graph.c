/* graph: from a list of layers to groups, blocks and orbits. See weft/graph.h for the layout; what
 * follows from these is in graph_derived.c.
 *
 * I1  Group l + 1 is made by layer l from groups before it, so groups stand in execution order.
 * I2  Blocks stand in flat order; a layer's blocks follow one another.
 * I3  Groups of one orbit have the same number of units. */
#include "graph/describe.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const activation_names[] = {
#define X(constant, name) name,
#include "weft/activations.def"
#undef X
    "mixed"};
static const char *const op_names[] = {"linear", "conv", "add", "pass"};
static const double default_eps = 1e-5;
static const size_t most_params = (size_t)1 << 40;

const char *wf_activation_name(wf_activation activation) { return activation_names[activation]; }
const char *wf__op_name(wf_layer_kind op) { return op_names[op]; }

wf_status wf__activation_parse(wf_ctx *ctx, const char *name, wf_activation *out) {
    for (int i = 0; i < WF_ACT_MIXED; i++)
        if (strcmp(name, activation_names[i]) == 0) {
            *out = (wf_activation)i;
            return WF_OK;
        }
    return wf_fail(
        ctx, WF_ERR_USAGE,
        "activation \"%s\" is not known; use relu, tanh, gelu, silu, sigmoid or identity", name);
}

/* --- layers to groups ------------------------------------------------------------------------- */

/* "architecture: layer 2 (conv "3"): ..." Layers are counted from 1, as groups are. */
static wf_status refuse(wf_ctx *ctx, const wf_graph *graph, int l, wf_status status,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));
static wf_status refuse(wf_ctx *ctx, const wf_graph *graph, int l, wf_status status,
                        const char *format, ...) {
    char why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const char *name = graph->layers[l].name;
    return wf_fail(ctx, status, "architecture: layer %d (%s%s%.60s%s): %s", l + 1,
                   op_names[graph->layers[l].op], name ? " \"" : "", name ? name : "",
                   name ? "\"" : "", why);
}

/* What readers of a group see: "16x8x8" or "16". */
static const char *size_text(const wf_group *group, char out[48]) {
    if (group->image) snprintf(out, 48, "%dx%dx%d", group->n, group->height, group->width);
    else snprintf(out, 48, "%d", group->n);
    return out;
}

/* Places along one side that a window leaves of `size`. */
static int places(int size, const wf_window *window, int side) {
    int room = size + 2 * window->padding[side] - window->kernel[side];
    return room < 0 ? 0 : room / window->stride[side] + 1;
}

static wf_status slide(wf_ctx *ctx, const wf_graph *graph, int l, const char *what,
                       const wf_window *window, int *height, int *width) {
    for (int side = 0; side < 2; side++)
        if (window->kernel[side] < 1 || window->kernel[side] > WF_MAX_SIDE ||
            window->stride[side] < 1 || window->stride[side] > WF_MAX_SIDE ||
            window->padding[side] < 0 || window->padding[side] > WF_MAX_SIDE)
            return refuse(ctx, graph, l, WF_ERR_USAGE,
                          "%s: kernel and stride go from 1 to %d, padding from 0, found %d, %d, %d",
                          what, WF_MAX_SIDE, window->kernel[side], window->stride[side],
                          window->padding[side]);
    int new_height = places(*height, window, 0), new_width = places(*width, window, 1);
    if (new_height < 1 || new_width < 1)
        return refuse(ctx, graph, l, WF_ERR_SHAPE,
                      "%s: a kernel of %dx%d does not fit; expected at most %dx%d, which is its "
                      "input of %dx%d with padding",
                      what, window->kernel[0], window->kernel[1], *height + 2 * window->padding[0],
                      *width + 2 * window->padding[1], *height, *width);
    if (new_height > WF_MAX_SIDE || new_width > WF_MAX_SIDE)
        return refuse(ctx, graph, l, WF_ERR_SHAPE, "%s: images of %dx%d, at most %d are possible",
                      what, new_height, new_width, WF_MAX_SIDE);
    *height = new_height;
    *width = new_width;
    return WF_OK;
}

static wf_status pool_group(wf_ctx *ctx, const wf_graph *graph, int l, wf_group *group) {
    const wf_layer *layer = &graph->layers[l];
    const wf_window *window = &layer->pool_window;
    if (layer->pool == WF_POOL_NONE) return WF_OK;
    if (!group->image)
        return refuse(ctx, graph, l, WF_ERR_SHAPE,
                      "expected an image to pool, found %d plain numbers", group->n);
    if (layer->pool == WF_POOL_GLOBAL) {
        group->height = group->width = 1;
        return WF_OK;
    }
    for (int side = 0; side < 2; side++)
        if (window->padding[side] > window->kernel[side] / 2)
            return refuse(ctx, graph, l, WF_ERR_USAGE,
                          "pooling: padding %d, expected at most half of the kernel, which is %d",
                          window->padding[side], window->kernel[side]);
    return slide(ctx, graph, l, "pooling", window, &group->height, &group->width);
}

static wf_status check_inputs(wf_ctx *ctx, const wf_graph *graph, int l) {
    const wf_layer *layer = &graph->layers[l];
    for (int i = 0; i < (layer->op == WF_LAYER_ADD ? 2 : 1); i++)
        if (layer->from[i] < 0 || layer->from[i] > l)
            return refuse(ctx, graph, l, WF_ERR_USAGE,
                          "it reads layer %d; expected 0 (the input) to %d, a layer before it",
                          layer->from[i], l);
    const wf_group *source = &graph->groups[layer->from[0]];
    if (layer->in != 0 && layer->in != source->n)
        return refuse(ctx, graph, l, WF_ERR_SHAPE,
                      "expected %d units to read, found %d, which layer %d makes", layer->in,
                      source->n, layer->from[0]);
    if (layer->op != WF_LAYER_ADD) return WF_OK;
    const wf_group *other = &graph->groups[layer->from[1]];
    char size[48], other_size[48];
    if (source->n != other->n || source->image != other->image || source->height != other->height ||
        source->width != other->width)
        return refuse(ctx, graph, l, WF_ERR_SHAPE,
                      "expected two inputs of one size, found %s of layer %d and %s of layer %d",
                      size_text(source, size), layer->from[0], size_text(other, other_size),
                      layer->from[1]);
    return WF_OK;
}

/* Group l + 1, all but its orbit. */
static wf_status make_group(wf_ctx *ctx, wf_graph *graph, int l) {
    wf_layer *layer = &graph->layers[l];
    WF_TRY(check_inputs(ctx, graph, l));
    const wf_group *source = &graph->groups[layer->from[0]];
    wf_group *group = &graph->groups[l + 1];
    *group = (wf_group){.kind = l + 1 < graph->n_layers ? WF_GROUP_HIDDEN : WF_GROUP_OUTPUT,
                        .n = source->n,
                        .layer = l + 1,
                        .image = source->image,
                        .height = source->height,
                        .width = source->width};
    if (layer->op == WF_LAYER_LINEAR || layer->op == WF_LAYER_CONV) {
        if (layer->n < 1 || layer->n > WF_MAX_WIDTH)
            return refuse(ctx, graph, l, WF_ERR_USAGE, "expected 1 to %d units, found %d",
                          WF_MAX_WIDTH, layer->n);
        group->n = layer->n;
    } else if (layer->n != 0 && layer->n != source->n) {
        return refuse(ctx, graph, l, WF_ERR_SHAPE, "expected %d units, found %d", source->n,
                      layer->n);
    }
    layer->n = group->n;
    if (layer->op == WF_LAYER_LINEAR) {
        group->image = false;
        group->height = group->width = 1;
    } else if (layer->op == WF_LAYER_CONV) {
        if (!source->image)
            return refuse(ctx, graph, l, WF_ERR_SHAPE,
                          "expected an image as channels x height x width, found %d plain numbers",
                          source->n);
        WF_TRY(slide(ctx, graph, l, "convolution", &layer->window, &group->height, &group->width));
    }
    group->sum_height = group->height;
    group->sum_width = group->width;
    WF_TRY(pool_group(ctx, graph, l, group));
    bool has_eps = layer->norm != WF_NORM_NONE || layer->folded_norm != NULL;
    if (has_eps && layer->eps == 0) layer->eps = default_eps;
    if (layer->folded_norm != NULL && (!layer->bias || layer->norm != WF_NORM_NONE))
        return refuse(ctx, graph, l, WF_ERR_USAGE,
                      "a folded batch norm needs a linear or convolution layer with a bias and "
                      "without another norm");
    if (!(layer->eps >= 0) || !isfinite(layer->eps))
        return refuse(ctx, graph, l, WF_ERR_USAGE, "eps %g must be a positive number", layer->eps);
    return WF_OK;
}

static wf_status check_ends(wf_ctx *ctx, const wf_graph *graph) {
    int last = graph->n_layers - 1;
    const wf_group *output = &graph->groups[last + 1];
    char size[48];
    if (graph->layers[last].activation != WF_ACT_IDENTITY)
        return refuse(ctx, graph, last, WF_ERR_USAGE,
                      "the outputs are logits and have no activation, found %s",
                      activation_names[graph->layers[last].activation]);
    if (output->height * output->width != 1)
        return refuse(ctx, graph, last, WF_ERR_SHAPE,
                      "expected one value per output, found %s; end with gap or a linear layer",
                      size_text(output, size));
    for (int g = 0; g <= last; g++) {
        bool read = false;
        for (int l = g; l <= last && !read; l++)
            read = graph->layers[l].from[0] == g ||
                   (graph->layers[l].op == WF_LAYER_ADD && graph->layers[l].from[1] == g);
        if (!read && g == 0)
            return wf_fail(ctx, WF_ERR_USAGE, "architecture: no layer reads the input");
        if (!read) return refuse(ctx, graph, g - 1, WF_ERR_USAGE, "no layer reads it");
    }
    return WF_OK;
}

static wf_status make_groups(wf_ctx *ctx, wf_graph *graph, int channels, int height, int width) {
    if (channels < 1 || channels > WF_MAX_WIDTH || height < 0 || height > WF_MAX_SIDE ||
        (height > 0 && (width < 1 || width > WF_MAX_SIDE)) ||
        (double)channels * (height > 0 ? (double)height * width : 1) > INT_MAX)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "architecture: inputs of %d x %d x %d; expected 1 to %d channels of images "
                       "with sides from 1 to %d",
                       channels, height, width, WF_MAX_WIDTH, WF_MAX_SIDE);
    bool image = height > 0;
    if (!image) height = width = 1;
    graph->groups[0] = (wf_group){.kind = WF_GROUP_INPUT,
                                  .n = channels,
                                  .image = image,
                                  .height = height,
                                  .width = width,
                                  .sum_height = height,
                                  .sum_width = width};
    graph->n_groups = graph->n_layers + 1;
    graph->activation = WF_ACT_IDENTITY;
    bool first = true;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        WF_TRY(make_group(ctx, graph, l));
        if (l + 1 == graph->n_layers || layer->op > WF_LAYER_CONV) continue;
        if (first) graph->activation = layer->activation;
        else if (layer->activation != graph->activation) graph->activation = WF_ACT_MIXED;
        first = false;
    }
    graph->inputs = channels * height * width;
    graph->outputs = graph->groups[graph->n_layers].n;
    return check_ends(ctx, graph);
}

/* --- orbits ----------------------------------------------------------------------------------- */

static int root_of(const int *parent, int group) {
    while (parent[group] != group) group = parent[group];
    return group;
}

/* Groups that are added or passed on move together; with the input or the output they are fixed.
 * The root of a set is its lowest group. */
static wf_status make_orbits(wf_ctx *ctx, wf_graph *graph) {
    int groups = graph->n_layers + 1, *parent, *orbit;
    WF_TRY(wf_alloc(ctx, 2 * (size_t)groups, sizeof *parent, "graph", &parent));
    orbit = parent + groups;
    for (int g = 0; g < groups; g++) parent[g] = g;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_layer *layer = &graph->layers[l];
        int inputs = layer->op == WF_LAYER_ADD ? 2 : layer->op == WF_LAYER_PASS ? 1 : 0;
        for (int i = 0; i < inputs; i++) {
            int a = root_of(parent, l + 1), b = root_of(parent, layer->from[i]);
            parent[a > b ? a : b] = a > b ? b : a;
        }
    }
    int fixed[2] = {root_of(parent, 0), root_of(parent, groups - 1)};
    for (int g = 0; g < groups; g++) {
        int root = root_of(parent, g);
        if (root == fixed[0] || root == fixed[1]) orbit[g] = -1;
        else if (root < g) orbit[g] = orbit[root];
        else {
            orbit[g] = graph->n_orbits++;
            graph->orbit_start[graph->n_orbits] =
                graph->orbit_start[graph->n_orbits - 1] + (size_t)graph->groups[g].n;
        }
        graph->groups[g].orbit = orbit[g];
        graph->groups[g].units = root;
    }
    free(parent);
    return WF_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

static const char *const tails[] = {"weight", "bias",         "weight",
                                    "bias",   "running_mean", "running_var"};
enum { longest_tail = sizeof ".running_mean" };

/* Appends NAME.TAIL, or NAME alone, to the memory of names. */
static const char *add_name(char **end, const char *name, const char *tail) {
    char *start = *end;
    *end += sprintf(start, "%s%s%s", name, tail != NULL && *name != 0 ? "." : "",
                    tail != NULL ? tail : "") +
            1;
    return start;
}

static wf_status add_block(wf_ctx *ctx, wf_graph *graph, int l, wf_block_kind kind, int coef,
                           const char *module, char **names) {
    const wf_layer *layer = &graph->layers[l];
    int src = layer->from[0];
    if (kind != WF_BLOCK_WEIGHT) {
        src = graph->n_groups++;
        graph->groups[src] = (wf_group){.kind = WF_GROUP_BIAS + (kind - WF_BLOCK_BIAS),
                                        .n = 1,
                                        .layer = l + 1,
                                        .orbit = -1,
                                        .units = src,
                                        .height = 1,
                                        .width = 1,
                                        .sum_height = 1,
                                        .sum_width = 1};
    }
    size_t count = (size_t)graph->groups[l + 1].n * (size_t)graph->groups[src].n;
    if (__builtin_mul_overflow(count, (size_t)coef, &count) ||
        count > most_params - graph->n_params)
        return refuse(ctx, graph, l, WF_ERR_USAGE, "more than 2^40 parameters up to here");
    graph->blocks[graph->n_blocks++] = (wf_block){.kind = kind,
                                                  .src = src,
                                                  .dst = l + 1,
                                                  .coef = coef,
                                                  .layer = l,
                                                  .offset = graph->n_params,
                                                  .count = count,
                                                  .name = add_name(names, module, tails[kind])};
    graph->n_params += count;
    return WF_OK;
}

static wf_status add_blocks(wf_ctx *ctx, wf_graph *graph, int l, char **names) {
    const wf_layer *layer = &graph->layers[l];
    const wf_group *source = &graph->groups[layer->from[0]], *group = &graph->groups[l + 1];
    if (layer->op == WF_LAYER_LINEAR || layer->op == WF_LAYER_CONV) {
        int coef = layer->op == WF_LAYER_LINEAR ? source->height * source->width
                                                : layer->window.kernel[0] * layer->window.kernel[1];
        WF_TRY(add_block(ctx, graph, l, WF_BLOCK_WEIGHT, coef, layer->name, names));
        const char *owner = layer->folded_bias ? layer->folded_norm : layer->name;
        if (layer->bias) WF_TRY(add_block(ctx, graph, l, WF_BLOCK_BIAS, 1, owner, names));
    }
    if (layer->norm == WF_NORM_NONE) return WF_OK;
    bool batch = layer->norm == WF_NORM_BATCH;
    int coef = batch ? 1 : group->sum_height * group->sum_width;
    for (int kind = WF_BLOCK_GAMMA; kind <= (batch ? WF_BLOCK_VARIANCE : WF_BLOCK_BETA); kind++)
        WF_TRY(add_block(ctx, graph, l, (wf_block_kind)kind, coef, layer->norm_name, names));
    return WF_OK;
}

static wf_status check_name(wf_ctx *ctx, const wf_graph *graph, int l, const char *name) {
    if (name == NULL) return WF_OK;
    if (strlen(name) > WF_MAX_NAME)
        return refuse(ctx, graph, l, WF_ERR_USAGE, "a name of more than %d characters",
                      WF_MAX_NAME);
    if (strncmp(name, "weft.", 5) == 0)
        return refuse(ctx, graph, l, WF_ERR_USAGE,
                      "the name \"%.60s\" begins with \"weft.\", which files keep for themselves",
                      name);
    return WF_OK;
}

/* Copies the layers; unnamed ones get their names, and layers without parameters lose theirs. */
static wf_status copy_layers(wf_ctx *ctx, wf_graph *graph, const wf_layer *layers, char **end) {
    size_t size = 1;
    for (int l = 0; l < graph->n_layers; l++) {
        graph->layers[l] = layers[l];
        WF_TRY(check_name(ctx, graph, l, layers[l].name));
        WF_TRY(check_name(ctx, graph, l, layers[l].norm_name));
        WF_TRY(check_name(ctx, graph, l, layers[l].folded_norm));
        size_t folded = layers[l].folded_norm != NULL ? strlen(layers[l].folded_norm) : 0;
        size_t name = layers[l].name != NULL ? strlen(layers[l].name) : sizeof "layers.9999";
        size_t norm =
            layers[l].norm_name != NULL ? strlen(layers[l].norm_name) : sizeof "layers.9999.norm";
        size += 3 * (name + longest_tail) + 5 * (norm + longest_tail) + 2 * (folded + longest_tail);
    }
    WF_TRY(wf_alloc(ctx, size, 1, "graph", &graph->names));
    *end = graph->names;
    for (int l = 0; l < graph->n_layers; l++) {
        wf_layer *layer = &graph->layers[l];
        char standard[32];
        snprintf(standard, sizeof standard, "layers.%d", l);
        bool weighted = layer->op == WF_LAYER_LINEAR || layer->op == WF_LAYER_CONV;
        layer->bias = layer->bias && weighted;
        layer->name =
            weighted ? add_name(end, layer->name != NULL ? layer->name : standard, NULL) : NULL;
        strcat(standard, ".norm");
        const char *norm = layer->norm_name != NULL ? layer->norm_name : standard;
        layer->norm_name = layer->norm != WF_NORM_NONE ? add_name(end, norm, NULL) : NULL;
        if (layer->folded_norm != NULL)
            layer->folded_norm = add_name(end, layer->folded_norm, NULL);
        layer->folded_bias = layer->folded_bias && layer->folded_norm != NULL;
    }
    return WF_OK;
}

static int by_block_name(const void *a, const void *b) {
    return strcmp((*(const wf_block *const *)a)->name, (*(const wf_block *const *)b)->name);
}

static wf_status check_block_names(wf_ctx *ctx, const wf_graph *graph) {
    const wf_block **sorted;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *sorted, "graph", &sorted));
    for (int b = 0; b < graph->n_blocks; b++) sorted[b] = &graph->blocks[b];
    qsort(sorted, (size_t)graph->n_blocks, sizeof *sorted, by_block_name);
    wf_status status = WF_OK;
    for (int b = 1; b < graph->n_blocks && status == WF_OK; b++)
        if (strcmp(sorted[b - 1]->name, sorted[b]->name) == 0)
            status = refuse(ctx, graph, sorted[b]->layer, WF_ERR_USAGE,
                            "layer %d also has a tensor \"%.60s\"; give each layer a name",
                            sorted[b - 1]->layer + 1, sorted[b]->name);
    free(sorted);
    return status;
}

/* Weights and bias of a layer that reads the input and whose units are hidden. */
static bool can_fold(const wf_graph *graph, const wf_block *block) {
    for (int g = 1; g <= graph->n_layers; g++)
        if (graph->groups[g].units == 0) return false; /* other layers need the input's nodes */
    const wf_layer *layer = &graph->layers[block->layer];
    return layer->op <= WF_LAYER_CONV && layer->from[0] == 0 && block->kind <= WF_BLOCK_BIAS &&
           graph->groups[block->dst].kind == WF_GROUP_HIDDEN;
}

int wf_graph_fold_rows(const wf_graph *graph) {
    size_t longest = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->kind != WF_BLOCK_WEIGHT || !can_fold(graph, block)) continue;
        size_t row = (size_t)graph->groups[block->src].n * (size_t)block->coef;
        row += graph->layers[block->layer].bias;
        if (row > longest) longest = row;
    }
    return longest < INT_MAX ? (int)longest : INT_MAX; /* no field takes rows of that length */
}

static wf_status build(wf_ctx *ctx, wf_graph *graph, int channels, int height, int width,
                       const wf_layer *layers, unsigned flags) {
    size_t n = (size_t)graph->n_layers;
    char *names;
    WF_TRY(wf_alloc(ctx, n, sizeof *graph->layers, "graph", &graph->layers));
    WF_TRY(wf_alloc(ctx, 6 * n + 1, sizeof *graph->groups, "graph", &graph->groups));
    WF_TRY(wf_alloc(ctx, 6 * n, sizeof *graph->blocks, "graph", &graph->blocks));
    WF_TRY(wf_alloc(ctx, n + 1, sizeof *graph->orbit_start, "graph", &graph->orbit_start));
    WF_TRY(copy_layers(ctx, graph, layers, &names));
    WF_TRY(make_groups(ctx, graph, channels, height, width));
    WF_TRY(make_orbits(ctx, graph));
    for (int l = 0; l < graph->n_layers; l++) WF_TRY(add_blocks(ctx, graph, l, &names));
    if (graph->n_blocks == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "architecture: no layer has parameters");
    WF_TRY(check_block_names(ctx, graph));
    for (int b = 0; b < graph->n_blocks && (flags & WF_GRAPH_FOLD_INPUT); b++)
        graph->blocks[b].folded = can_fold(graph, &graph->blocks[b]);
    return wf__graph_text(ctx, graph, &graph->text);
}

wf_status wf_graph_build(wf_ctx *ctx, int channels, int height, int width, const wf_layer *layers,
                         int n_layers, unsigned flags, wf_graph **out) {
    *out = NULL;
    if (n_layers < 1 || n_layers > WF_MAX_LAYERS)
        return wf_fail(ctx, WF_ERR_USAGE, "architecture: expected 1 to %d layers, found %d",
                       WF_MAX_LAYERS, n_layers);
    wf_graph *graph = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *graph, "graph", &graph));
    graph->n_layers = n_layers;
    wf_status status = build(ctx, graph, channels, height, width, layers, flags);
    if (status == WF_OK) *out = graph;
    else wf_graph_free(graph);
    return status;
}

wf_status wf__draft_build(wf_ctx *ctx, const wf_draft *draft, unsigned flags, wf_graph **out) {
    return wf_graph_build(ctx, draft->channels, draft->height, draft->width, draft->layers,
                          draft->n, flags, out);
}

void wf_graph_free(wf_graph *graph) {
    if (graph == NULL) return;
    free(graph->layers);
    free(graph->groups);
    free(graph->blocks);
    free(graph->orbit_start);
    free(graph->text);
    free(graph->names);
    free(graph);
}
