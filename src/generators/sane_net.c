#include "generators/sane_net.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- tokens ----------------------------------------------------------------------------------- */

static size_t row_length(const wf_graph *graph, const wf_block *block) {
    return block->count / (size_t)graph->groups[block->dst].n;
}

/* Units of a layer with parameters, and the numbers that belong to each; blocks of a layer stand
 * next to each other. *next: the first block of the next layer. */
static int layer_units(const wf_graph *graph, int first, int *next, size_t *length) {
    int units = graph->groups[graph->blocks[first].dst].n;
    *length = 0;
    for (*next = first;
         *next < graph->n_blocks && graph->blocks[*next].layer == graph->blocks[first].layer;
         ++*next)
        *length += row_length(graph, &graph->blocks[*next]);
    return units;
}

/* Counts tokens, and with `out` set describes them. width 0: that of the longest row. */
static void walk_units(const wf_graph *graph, size_t width, size_t *count, size_t *longest,
                       wf_sane_tokens *out) {
    uint32_t unit = 0, layer = 0;
    *count = *longest = 0;
    for (int first = 0, next; first < graph->n_blocks; first = next, layer++) {
        size_t length;
        int units = layer_units(graph, first, &next, &length);
        size_t pieces = width == 0 ? 1 : (length + width - 1) / width;
        if (length > *longest) *longest = length;
        for (int u = 0; u < units; u++, unit++, *count += pieces) {
            if (out == NULL) continue;
            uint32_t *to = out->map + *count * width;
            for (int b = first; b < next; b++) {
                const wf_block *block = &graph->blocks[b];
                size_t n = row_length(graph, block), from = block->offset + (size_t)u * n;
                for (size_t i = 0; i < n; i++) *to++ = (uint32_t)(from + i);
            }
            for (size_t i = length; i < pieces * width; i++) *to++ = WF_NO_VALUE;
            for (size_t k = 0; k < pieces; k++) {
                uint32_t *position = out->position + *count + k;
                position[0] = unit;
                position[out->count] = layer;
                position[2 * (size_t)out->count] = (uint32_t)u;
            }
        }
        if (out != NULL && units > out->rows[2]) out->rows[2] = units;
    }
    if (out != NULL) out->rows[0] = (int)unit, out->rows[1] = (int)layer;
}

wf_status wf_sane_tokens_create(wf_ctx *ctx, const wf_graph *graph, int width,
                                wf_sane_tokens *out) {
    *out = (wf_sane_tokens){0};
    size_t count, longest;
    walk_units(graph, 0, &count, &longest, NULL);
    size_t own = width > 0 ? (size_t)width : longest;
    if (own > longest)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "model.token is %zu; the longest row of %s has %zu numbers: give at most so "
                       "many, or 0",
                       own, graph->text, longest);
    walk_units(graph, own, &count, &longest, NULL);
    if (graph->n_params > INT32_MAX || own > INT32_MAX / count)
        return wf_fail(ctx, WF_ERR_SHAPE, "networks of %s are too large for tokens of %zu numbers",
                       graph->text, own);
    out->count = (int)count, out->width = (int)own;
    WF_TRY(wf_alloc(ctx, count * own, sizeof *out->map, "tokens", &out->map));
    WF_TRY(wf_alloc(ctx, 3 * count, sizeof *out->position, "tokens", &out->position));
    walk_units(graph, own, &count, &longest, out);
    return WF_OK;
}

void wf_sane_tokens_free(wf_sane_tokens *tokens) {
    free(tokens->map);
    free(tokens->position);
    *tokens = (wf_sane_tokens){0};
}

/* --- the network ------------------------------------------------------------------------------ */

static const wf_layer_options narrow = {.init = WF_INIT_NORMAL, .std = 0.02};

/* The three tables are the first parameters, so that a decoder alone finds them. */
typedef struct tables {
    wf_tensor *table[3];
} tables;

static tables take_tables(wf_net *net, const wf_sane_model *model) {
    static const char *const names[] = {"positions.index", "positions.layer", "positions.channel"};
    tables t;
    for (int i = 0; i < 3; i++)
        t.table[i] =
            wf_layer_table(net, names[i], model->tokens.rows[i], model->options.width / 2, 0.02);
    return t;
}

static wf_tensor *add_positions(wf_net *net, const wf_sane_model *model, int networks, wf_tensor *x,
                                const tables *t) {
    size_t count = (size_t)model->tokens.count, rows = (size_t)networks * count;
    for (int i = 0; i < 3; i++) {
        uint32_t *map = wf_tape_host(net->tape, rows * sizeof *map);
        for (size_t r = 0; map != NULL && r < rows; r++)
            map[r] = model->tokens.position[(size_t)i * count + r % count];
        const uint32_t *there =
            map == NULL ? NULL : wf_tape_upload(net->tape, map, rows * sizeof *map);
        x = wf_add_table(net->tape, x, t->table[i], i < 2 ? 0 : model->options.width / 2, there);
    }
    return x;
}

/* The last affine map of each branch starts smaller the more blocks there are. */
static wf_tensor *run_blocks(wf_net *net, const wf_sane_model *model, const char *part,
                             wf_tensor *x) {
    const wf_sane_options *o = &model->options;
    const wf_layer_options first = {
        .init = WF_INIT_NORMAL, .std = 0.02, .no_bias = true, .matrix = true};
    wf_layer_options last = first;
    last.std = 0.02 / sqrt(2.0 * o->blocks);
    for (int k = 0; k < o->blocks; k++) {
        wf_net_scope(net, "%s.blocks.%d.", part, k);
        wf_tensor *y = wf_layer_layer_norm(net, "norm1", x, false, 1e-5);
        y = wf_layer_attention(net, "attention", y, o->heads, model->tokens.count, first, last);
        x = wf_residual(net->tape, x, y, NULL, 0, NULL);
        y = wf_layer_layer_norm(net, "norm2", x, false, 1e-5);
        y = wf_layer_linear(net, "mlp.0", y, 4 * o->width, first);
        y = wf_activation_op(net->tape, y, WF_TAPE_ACT_GELU_ERF);
        y = wf_layer_linear(net, "mlp.2", y, o->width, last);
        x = wf_residual(net->tape, x, y, NULL, 0, NULL);
    }
    wf_net_scope(net, NULL);
    return x;
}

static const uint32_t *token_map(wf_net *net, const wf_sane_model *model) {
    const wf_sane_tokens *t = &model->tokens;
    return wf_tape_upload(net->tape, t->map, (size_t)t->count * (size_t)t->width * sizeof *t->map);
}

static wf_tensor *encode(wf_net *net, const wf_sane_model *model, int networks, const tables *t,
                         wf_tensor *x) {
    const wf_sane_tokens *tokens = &model->tokens;
    x = wf_to_tokens(net->tape, x, tokens->count, tokens->width, token_map(net, model));
    x = wf_layer_linear(net, "encoder.in", x, model->options.width, narrow);
    x = add_positions(net, model, networks, x, t);
    x = run_blocks(net, model, "encoder", x);
    return wf_layer_linear(net, "encoder.out", x, model->options.latent, narrow);
}

static wf_tensor *decode(wf_net *net, const wf_sane_model *model, int networks, const tables *t,
                         wf_tensor *z) {
    const wf_sane_tokens *tokens = &model->tokens;
    wf_tensor *x = wf_layer_linear(net, "decoder.in", z, model->options.width, narrow);
    x = add_positions(net, model, networks, x, t);
    x = run_blocks(net, model, "decoder", x);
    x = wf_layer_linear(net, "decoder.out", x, tokens->width, narrow);
    return wf_from_tokens(net->tape, x, tokens->count, (int)model->graph->n_params,
                          token_map(net, model), NULL);
}

wf_tensor *wf_sane_encode(wf_net *net, const wf_sane_model *model, int networks, wf_tensor *x) {
    tables t = take_tables(net, model);
    return encode(net, model, networks, &t, x);
}

wf_tensor *wf_sane_decode(wf_net *net, const wf_sane_model *model, int networks, wf_tensor *z) {
    tables t = take_tables(net, model);
    wf_net_go(net, *model->decoder);
    return decode(net, model, networks, &t, z);
}

/* (B, 30) */
static wf_tensor *project(wf_net *net, const wf_sane_model *model, wf_tensor *z) {
    const wf_layer_options no_bias = {.init = WF_INIT_TORCH, .no_bias = true};
    enum { width = 30 };
    int count = model->tokens.count;
    wf_tensor *h = wf_from_tokens(net->tape, z, count, count * model->options.latent, NULL, NULL);
    h = wf_layer_linear(net, "head.0", h, width, no_bias);
    h = wf_activation_op(net->tape, wf_layer_layer_norm(net, "head.1", h, true, 1e-5),
                         WF_TAPE_ACT_RELU);
    h = wf_layer_linear(net, "head.3", h, width, no_bias);
    return wf_activation_op(net->tape, wf_layer_layer_norm(net, "head.4", h, true, 1e-5),
                            WF_TAPE_ACT_RELU);
}

/* --- the phase: two views of each network, the first ones before the second ones -------------- */

static int shapes(const void *self, int n, wf_phase_shape out[WF_PHASE_INPUTS]) {
    const wf_sane_model *model = self;
    out[0] = (wf_phase_shape){2 * n, (int)model->graph->n_params};
    return 1;
}

/* Relabelling `index` of those that copies are made with: stream (seed, index, WF_RNG_VIEW,
 * orbit). */
static void relabelling(const wf_sane_model *model, uint32_t index, uint32_t *perm) {
    const wf_graph *graph = model->graph;
    for (int o = 0; o < graph->n_orbits; o++) {
        size_t start = graph->orbit_start[o];
        wf_rng rng = wf_rng_at(model->options.seed, index, WF_RNG_VIEW, (uint32_t)o);
        wf_rng_shuffle(&rng, perm + start, (uint32_t)(graph->orbit_start[o + 1] - start));
    }
}

/* The relabellings of a network's copies are the first ones of a permutation of all that is its
 * own. */
static void second_view(const wf_sane_model *model, uint32_t network, wf_rng *choice, float *out) {
    uint32_t all = (uint32_t)model->options.relabellings, copies = (uint32_t)model->options.copies;
    uint32_t copy = wf_rng_below(choice, copies < all ? copies : all);
    wf_rng own = wf_rng_at(model->options.seed, network, WF_RNG_VIEW, UINT32_MAX);
    relabelling(model, wf_rng_permuted(&own, all, copy), model->perm);
    wf_graph_permute(model->graph, model->perm, model->networks + network * model->graph->n_params,
                     out);
}

static void fill(const void *self, const wf_phase_batch *batch, float *const in[WF_PHASE_INPUTS]) {
    const wf_sane_model *model = self;
    size_t p = model->graph->n_params, n = (size_t)batch->n;
    for (size_t b = 0; b < 2 * n; b++) {
        uint32_t network = batch->networks[b % n], place = (uint32_t)b;
        float *view = in[0] + b * p;
        wf_rng choice = wf_rng_at(batch->seed, place, WF_RNG_BATCH, batch->update);
        if (b < n) memcpy(view, model->networks + network * p, p * sizeof *view);
        else second_view(model, network, &choice, view);
        wf_rng rng = wf_rng_at(batch->seed, place, WF_RNG_NOISE, batch->update);
        wf_rng_normals(&rng, model->flat, p);
        for (size_t i = 0; i < p; i++)
            view[i] *= 1 + (float)model->options.view_noise * model->flat[i];
    }
}

static wf_phase_loss loss(wf_net *net, const void *self, int n,
                          wf_tensor *const in[WF_PHASE_INPUTS]) {
    const wf_sane_model *model = self;
    tables t = take_tables(net, model);
    wf_tensor *z = encode(net, model, 2 * n, &t, in[0]);
    wf_tensor *heads = project(net, model, z);
    if (net->declares) *model->decoder = wf_net_here(net);
    wf_tensor *made = decode(net, model, 2 * n, &t, z);
    /* The mean goes over entries of tokens, of which those after rows are zero on both sides. */
    double entries = (double)model->tokens.count * model->tokens.width;
    double share = (1 - model->options.contrast) * (double)model->graph->n_params / entries;
    return (wf_phase_loss){{wf_nt_xent(net->tape, heads, model->options.temperature),
                            wf_mse(net->tape, made, in[0], NULL)},
                           {model->options.contrast, share}};
}

/* All relabellings, the other way round: `relabelling` says where each unit goes. */
static wf_status draw(wf_ctx *ctx, const void *self, wf_phase_draw *out) {
    const wf_sane_model *model = self;
    const wf_graph *graph = model->graph;
    size_t units = wf_graph_perm_size(graph), all = (size_t)model->options.relabellings;
    *out = (wf_phase_draw){.law = WF_PHASE_VIEWS,
                           .rows = model->networks,
                           .width = (uint32_t)graph->n_params,
                           .noise = (float)model->options.view_noise,
                           .graph = graph,
                           .view_seed = model->options.seed,
                           .copies = (uint32_t)model->options.copies,
                           .relabellings = (uint32_t)all,
                           .units = (uint32_t)units};
    WF_TRY(wf_alloc(ctx, all * units + 1, sizeof *out->from, "relabellings", &out->from));
    for (size_t k = 0; k < all; k++) {
        uint32_t *from = out->from + k * units;
        relabelling(model, (uint32_t)k, model->perm);
        for (int o = 0; o < graph->n_orbits; o++) {
            size_t start = graph->orbit_start[o], n = graph->orbit_start[o + 1] - start;
            for (size_t u = 0; u < n; u++) from[start + model->perm[start + u]] = (uint32_t)u;
        }
    }
    return WF_OK;
}

void wf_sane_phase(const wf_sane_options *options, wf_phase *phase) {
    *phase = (wf_phase){.name = "autoencoder",
                        .doing = "training the autoencoder",
                        .shapes = shapes,
                        .fill = fill,
                        .loss = loss,
                        .draw = draw,
                        .seed = options->seed};
}
