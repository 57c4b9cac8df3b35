/* net_kernels: any described network (graph/graph.h) trained from its first update to its last, and
 * judged.
 *
 * A batch is cut into tiles of NET_TILE examples. One layer makes, for each tile,
 *   sums    linear or convolution (net_tiles.h; a linear layer is a convolution with one tap for
 *           each place of its source), add, pass
 *   norm    batch norm: over the whole batch, so all its tiles are kept; layer norm: of each
 *           example
 *   act     in place; slope beside it unless it follows from the result
 *   pool    to values of their own
 * and backward the same in turn. Networks without a batch norm carry one tile after another through
 * all layers; with one, all tiles go through a layer together (a wave).
 *
 * Parameters, gradient and moments are flat, in the order of the graph. Running statistics are part
 * of the weights and no optimiser touches them.
 * I1  The last tile of a batch may have fewer examples. The other lanes hold zeros as inputs,
 *     and their gradient of the loss is zero, so they add nothing; norms leave them out.
 * I2  All sums run in a fixed order: the bits depend on the network's own data and on nothing else.
 */
#include "zoo/cpu/net_tiles.h"
#include "zoo/cpu/zoo_course.h"

#include <stdlib.h>

/* Values of a group or of a layer's sums, one piece for each tile of a wave. */
typedef struct net_values {
    real *at; /* NULL: not kept */
    size_t
        /* reals from place to place: units * NET_TILE, and a tile more where caches want it */
        place;
    size_t tile; /* reals of a tile */
} net_values;

typedef struct net_layer {
    const wf_layer *layer;
    const wf_group *from, *other, *to; /* other: NULL unless it adds */
    wf_window window;                  /* of a convolution; the whole image for a linear layer */
    real *weight, *bias, *gamma, *beta, *mean, *variance; /* NULL where it has none */
    real *forward_pack;                                   /* (taps, n_src, n_dst) */
    real *back_pack; /* (taps, n_dst, n_src); NULL where the input is not asked for its gradient */
    net_values sums; /* after norm and activation */
    net_values normal; /* (z - mean) / deviation */
    net_values slope;
    real *
        /* batch norm: [2 n] mean and 1 / deviation; layer norm: [wave][NET_TILE] 1 / deviation */
        moments;
} net_layer;

typedef struct network {
    const wf_zoo_plan *plan;
    int n_layers, wave; /* tiles that go through a layer together */
    size_t n_params;
    net_layer *layers;
    net_values
        *values; /* [n_layers + 1] of groups after pooling; without a pooling the layer's sums */
    net_values *gradients; /* [n_layers + 1] the same */
    bool *reached;         /* [n_layers + 1] a gradient has been written there in this wave */
    real *weight, *gradient, *first_moment, *second_moment; /* flat */
    net_values delta; /* gradient of the sums of the layer at hand */
    net_tap *taps;    /* of the place at hand */
    uint32_t *words, *order;
    int *rows;       /* [wave] examples of each tile */
    int32_t *labels; /* [wave][NET_TILE] */
} network;

static size_t places(const wf_group *group) { return (size_t)group->height * (size_t)group->width; }
static size_t sum_places(const wf_group *group) {
    return (size_t)group->sum_height * (size_t)group->sum_width;
}
static size_t taps_of(const net_layer *l) {
    return (size_t)l->window.kernel[0] * (size_t)l->window.kernel[1];
}
static bool is_weighted(const net_layer *l) { return l->layer->op <= WF_LAYER_CONV; }
static bool pools(const net_layer *l) { return l->layer->pool != WF_POOL_NONE; }

/* --- memory ----------------------------------------------------------------------------------- */

/* An odd number of cache lines from place to place: neighbours then lie in different sets. */
static net_values carve_values(carver *from, int wave, int units, size_t n_places) {
    size_t place = ((size_t)units | 1) * NET_TILE, tile = place * n_places;
    return (net_values){carve(from, (size_t)wave * tile, sizeof(real)), place, tile};
}

static real *block_of(const network *net, int l, wf_block_kind kind) {
    const wf_graph *graph = net->plan->graph;
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == l && graph->blocks[b].kind == kind)
            return net->weight + graph->blocks[b].offset;
    return NULL;
}

static void find_parameters(network *net, int index) {
    net_layer *l = &net->layers[index];
    l->weight = block_of(net, index, WF_BLOCK_WEIGHT);
    l->bias = block_of(net, index, WF_BLOCK_BIAS);
    l->gamma = block_of(net, index, WF_BLOCK_GAMMA);
    l->beta = block_of(net, index, WF_BLOCK_BETA);
    l->mean = block_of(net, index, WF_BLOCK_MEAN);
    l->variance = block_of(net, index, WF_BLOCK_VARIANCE);
}

static void carve_layer(carver *from, network *net, int index) {
    const wf_graph *graph = net->plan->graph;
    net_layer plain, *l = from->base == NULL ? &plain : &net->layers[index];
    const wf_layer *layer = &graph->layers[index];
    *l = (net_layer){.layer = layer,
                     .from = &graph->groups[layer->from[0]],
                     .to = &graph->groups[index + 1],
                     .window = layer->window};
    if (layer->op == WF_LAYER_ADD) l->other = &graph->groups[layer->from[1]];
    if (layer->op == WF_LAYER_LINEAR)
        l->window = (wf_window){{l->from->height, l->from->width}, {1, 1}, {0, 0}};
    int n = l->to->n, wave = net->wave;
    if (is_weighted(l)) {
        size_t pack = taps_of(l) * (size_t)l->from->n * (size_t)n;
        l->forward_pack = carve(from, pack, sizeof(real));
        if (layer->from[0] > 0) l->back_pack = carve(from, pack, sizeof(real));
    }
    l->sums = carve_values(from, wave, n, sum_places(l->to));
    if (layer->norm != WF_NORM_NONE) {
        l->normal = carve_values(from, wave, n, sum_places(l->to));
        size_t moments = layer->norm == WF_NORM_BATCH ? 2 * (size_t)n : (size_t)wave * NET_TILE;
        l->moments = carve(from, moments, sizeof(real));
    }
    if (has_slope(layer->activation)) l->slope = carve_values(from, wave, n, sum_places(l->to));
    net_values values = l->sums;
    if (pools(l)) values = carve_values(from, wave, n, places(l->to));
    net_values gradients = carve_values(from, wave, n, places(l->to));
    if (from->base == NULL) return;
    net->values[index + 1] = values;
    net->gradients[index + 1] = gradients;
    find_parameters(net, index);
}

static bool has_batch_norm(const wf_graph *graph) {
    for (int l = 0; l < graph->n_layers; l++)
        if (graph->layers[l].norm == WF_NORM_BATCH) return true;
    return false;
}

static int tiles_of(int examples) { return (examples + NET_TILE - 1) / NET_TILE; }

/* Gives every array of `net` its place behind base; with base NULL only counts. Returns the
 * bytes. */
static size_t lay_out(const wf_zoo_plan *plan, void *base, network *net) {
    const wf_graph *graph = plan->graph;
    int n_layers = graph->n_layers;
    size_t groups = (size_t)n_layers + 1, largest = 0, most_taps = 0;
    size_t batch =
        (size_t)plan->desc->batch < plan->train.n ? (size_t)plan->desc->batch : plan->train.n;
    *net = (network){.plan = plan,
                     .n_layers = n_layers,
                     .wave = has_batch_norm(graph) ? tiles_of((int)batch) : 1,
                     .n_params = graph->n_params};
    carver from = {base, 0};
    net->layers = carve(&from, (size_t)n_layers, sizeof *net->layers);
    net->values = carve(&from, groups, sizeof *net->values);
    net->gradients = carve(&from, groups, sizeof *net->gradients);
    net->reached = carve(&from, groups, sizeof *net->reached);
    net->rows = carve(&from, (size_t)net->wave, sizeof *net->rows);
    net->labels = carve(&from, (size_t)net->wave * NET_TILE, sizeof *net->labels);
    net->weight = carve(&from, net->n_params, sizeof(real));
    net->gradient = carve(&from, net->n_params, sizeof(real));
    net->first_moment = carve(&from, net->n_params, sizeof(real));
    net->second_moment = carve(&from, net->n_params, sizeof(real));
    net_values input = carve_values(&from, net->wave, graph->groups[0].n, places(graph->groups));
    if (base != NULL) {
        net->values[0] = input;
        net->gradients[0] = (net_values){0};
    }
    for (int l = 0; l < n_layers; l++) {
        const wf_group *source = &graph->groups[graph->layers[l].from[0]],
                       *to = &graph->groups[l + 1];
        size_t sums = ((size_t)to->n | 1) * NET_TILE * sum_places(to);
        size_t taps = graph->layers[l].op == WF_LAYER_LINEAR ? places(source)
                      : graph->layers[l].op == WF_LAYER_CONV
                          ? (size_t)graph->layers[l].window.kernel[0] *
                                (size_t)graph->layers[l].window.kernel[1]
                          : 0;
        if (sums > largest) largest = sums;
        if (taps > most_taps) most_taps = taps;
        carve_layer(&from, net, l);
    }
    net->delta.at = carve(&from, (size_t)net->wave * largest, sizeof(real));
    net->taps = carve(&from, most_taps, sizeof *net->taps);
    net->words = carve(&from, 4 * word_blocks, sizeof *net->words);
    net->order = carve(&from, plan->train.n, sizeof *net->order);
    return from.used;
}

static void network_start(network *net, const wf_zoo_plan *plan, const real *w, void *scratch) {
    lay_out(plan, scratch, net);
    memcpy(net->weight, w, net->n_params * sizeof *w);
    clear(net->first_moment, net->n_params);
    clear(net->second_moment, net->n_params);
}

/* The matrices of each tap, and their transposes. */
static void pack_weights(network *net) {
    for (int i = 0; i < net->n_layers; i++) {
        const net_layer *l = &net->layers[i];
        if (!is_weighted(l)) continue;
        size_t taps = taps_of(l), n_src = (size_t)l->from->n, n_dst = (size_t)l->to->n;
        const real *w = l->weight;
        for (size_t o = 0; o < n_dst; o++)
            for (size_t u = 0; u < n_src; u++)
                for (size_t t = 0; t < taps; t++, w++) {
                    l->forward_pack[(t * n_src + u) * n_dst + o] = *w;
                    if (l->back_pack != NULL) l->back_pack[(t * n_dst + o) * n_src + u] = *w;
                }
    }
}

static real *tile_of(const net_values *values, int tile) {
    return values->at + (size_t)tile * values->tile;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Taps of one output place that fall on the source. */
static int find_taps(const network *net, const net_layer *l, const net_values *source, int tile,
                     int row, int column) {
    const wf_window *window = &l->window;
    size_t matrix = (size_t)l->from->n * (size_t)l->to->n;
    int n = 0;
    for (int i = 0; i < window->kernel[0]; i++)
        for (int j = 0; j < window->kernel[1]; j++) {
            int y = row * window->stride[0] - window->padding[0] + i;
            int x = column * window->stride[1] - window->padding[1] + j;
            if (y < 0 || y >= l->from->height || x < 0 || x >= l->from->width) continue;
            size_t place = (size_t)y * (size_t)l->from->width + (size_t)x;
            net->taps[n++] =
                (net_tap){tile_of(source, tile) + place * source->place,
                          l->forward_pack + (size_t)(i * window->kernel[1] + j) * matrix};
        }
    return n;
}

static void convolve(const network *net, const net_layer *l, int tile) {
    const net_values *source = &net->values[l->layer->from[0]];
    gather g = {.taps = net->taps, .depth = l->from->n, .n_out = l->to->n, .init = l->bias};
    g.out = tile_of(&l->sums, tile);
    for (int row = 0; row < l->to->sum_height; row++)
        for (int column = 0; column < l->to->sum_width; column++, g.out += l->sums.place) {
            g.n_taps = find_taps(net, l, source, tile, row, column);
            gather_run(&g);
        }
}

static void combine(const network *net, const net_layer *l, int tile) {
    const net_values *a = &net->values[l->layer->from[0]];
    const net_values *b = l->other != NULL ? &net->values[l->layer->from[1]] : NULL;
    size_t n = (size_t)l->to->n * NET_TILE;
    for (size_t p = 0; p < sum_places(l->to); p++) {
        real *out = tile_of(&l->sums, tile) + p * l->sums.place;
        const real *x = tile_of(a, tile) + p * a->place;
        memcpy(out, x, n * sizeof *out);
        if (b == NULL) continue;
        x = tile_of(b, tile) + p * b->place;
        for (size_t i = 0; i < n; i++) out[i] += x[i];
    }
}

static real sum_of(const real *values, int n) {
    real sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

/* Mean and 1 / deviation of one unit over all examples and places of a wave; running statistics
 * follow with momentum 0.1, the variance unbiased, as in PyTorch. */
static void fit_unit(const network *net, net_layer *l, int unit, int n_tiles) {
    size_t all = sum_places(l->to), shift = (size_t)unit * NET_TILE;
    double sum = 0, squares = 0, n = 0;
    for (int t = 0; t < n_tiles; t++) {
        const real *x = tile_of(&l->sums, t) + shift;
        for (size_t p = 0; p < all; p++) sum += sum_of(x + p * l->sums.place, net->rows[t]);
        n += (double)all * net->rows[t];
    }
    double mean = sum / n;
    for (int t = 0; t < n_tiles; t++) {
        const real *x = tile_of(&l->sums, t) + shift;
        for (size_t p = 0; p < all; p++)
            for (int e = 0; e < net->rows[t]; e++) {
                double d = x[p * l->sums.place + (size_t)e] - mean;
                squares += d * d;
            }
    }
    double variance = squares / n;
    l->moments[unit] = (real)mean;
    l->moments[l->to->n + unit] = (real)(1 / sqrt(variance + l->layer->eps));
    double unbiased = n > 1 ? squares / (n - 1) : variance;
    l->mean[unit] = (real)(0.9 * l->mean[unit] + 0.1 * mean);
    l->variance[unit] = (real)(0.9 * l->variance[unit] + 0.1 * unbiased);
}

static void batch_norm(const network *net, net_layer *l, int n_tiles, bool training) {
    for (int unit = 0; unit < l->to->n; unit++) {
        if (training) fit_unit(net, l, unit, n_tiles);
        real mean = training ? l->moments[unit] : l->mean[unit];
        real scale = training ? l->moments[l->to->n + unit]
                              : (real)(1 / sqrt((double)l->variance[unit] + l->layer->eps));
        for (int t = 0; t < n_tiles; t++)
            for (size_t p = 0; p < sum_places(l->to); p++) {
                size_t at = p * l->sums.place + (size_t)unit * NET_TILE;
                real *x = tile_of(&l->sums, t) + at, *normal = tile_of(&l->normal, t) + at;
                for (int e = 0; e < NET_TILE; e++) {
                    normal[e] = (x[e] - mean) * scale;
                    x[e] = normal[e] * l->gamma[unit] + l->beta[unit];
                }
            }
    }
}

/* Over all values of an example; gamma and beta have one entry for each. */
static void layer_norm(const net_layer *l, int tile) {
    size_t all = sum_places(l->to), n = (size_t)l->to->n;
    real *x = tile_of(&l->sums, tile), *normal = tile_of(&l->normal, tile);
    real *scale = l->moments + (size_t)tile * NET_TILE;
    double sum[NET_TILE] = {0}, squares[NET_TILE] = {0};
    for (size_t p = 0; p < all; p++)
        for (size_t i = 0; i < n * NET_TILE; i++) sum[i % NET_TILE] += x[p * l->sums.place + i];
    for (int e = 0; e < NET_TILE; e++) sum[e] /= (double)(n * all);
    for (size_t p = 0; p < all; p++)
        for (size_t i = 0; i < n * NET_TILE; i++) {
            double d = x[p * l->sums.place + i] - sum[i % NET_TILE];
            squares[i % NET_TILE] += d * d;
        }
    for (int e = 0; e < NET_TILE; e++)
        scale[e] = (real)(1 / sqrt(squares[e] / (double)(n * all) + l->layer->eps));
    for (size_t p = 0; p < all; p++)
        for (size_t u = 0; u < n; u++)
            for (size_t e = 0; e < NET_TILE; e++) {
                size_t at = p * l->sums.place + u * NET_TILE + e;
                normal[at] = (real)(x[at] - sum[e]) * scale[e];
                x[at] = normal[at] * l->gamma[u * all + p] + l->beta[u * all + p];
            }
}

static void activate_layer(const net_layer *l, int tile) {
    if (l->layer->activation == WF_ACT_IDENTITY) return;
    size_t n = (size_t)l->to->n * NET_TILE;
    for (size_t p = 0; p < sum_places(l->to); p++) {
        real *x = tile_of(&l->sums, tile) + p * l->sums.place;
        if (l->layer->activation == WF_ACT_RELU)
            for (size_t i = 0; i < n; i++) x[i] = x[i] > 0 ? x[i] : 0;
        else activate(l->layer->activation, x, tile_of(&l->slope, tile) + p * l->slope.place, n);
    }
}

/* The places of a pooling window that lie in the image, as offsets in sums. */
typedef struct pool_window {
    int top, bottom, left, right;
} pool_window;

static pool_window window_at(const net_layer *l, int row, int column) {
    const wf_window *window = &l->layer->pool_window;
    if (l->layer->pool == WF_POOL_GLOBAL)
        return (pool_window){0, l->to->sum_height, 0, l->to->sum_width};
    int top = row * window->stride[0] - window->padding[0];
    int left = column * window->stride[1] - window->padding[1];
    int bottom = top + window->kernel[0], right = left + window->kernel[1];
    return (pool_window){top > 0 ? top : 0, bottom < l->to->sum_height ? bottom : l->to->sum_height,
                         left > 0 ? left : 0, right < l->to->sum_width ? right : l->to->sum_width};
}

/* Of an average: 1 / the places of the window, padding included. */
static real pool_share(const net_layer *l) {
    const wf_window *window = &l->layer->pool_window;
    if (l->layer->pool == WF_POOL_GLOBAL) return 1 / (real)sum_places(l->to);
    return 1 / (real)(window->kernel[0] * window->kernel[1]);
}

static void pool_place(const net_layer *l, pool_window window, const real *sums, real *out) {
    size_t n = (size_t)l->to->n * NET_TILE;
    bool maximum = l->layer->pool == WF_POOL_MAX;
    for (size_t i = 0; i < n; i++) out[i] = maximum ? -(real)INFINITY : 0;
    for (int y = window.top; y < window.bottom; y++)
        for (int x = window.left; x < window.right; x++) {
            const real *from = sums + (size_t)(y * l->to->sum_width + x) * l->sums.place;
            if (maximum)
                for (size_t i = 0; i < n; i++) out[i] = from[i] > out[i] ? from[i] : out[i];
            else
                for (size_t i = 0; i < n; i++) out[i] += from[i];
        }
    real share = pool_share(l);
    for (size_t i = 0; i < n && !maximum; i++) out[i] *= share;
}

static void pool(const net_layer *l, const net_values *to, int tile) {
    real *out = tile_of(to, tile);
    for (int row = 0; row < l->to->height; row++)
        for (int column = 0; column < l->to->width; column++, out += to->place)
            pool_place(l, window_at(l, row, column), tile_of(&l->sums, tile), out);
}

/* All layers, the first n_tiles tiles of the wave together. */
static void forward(network *net, int n_tiles, bool training) {
    for (int i = 0; i < net->n_layers; i++) {
        net_layer *l = &net->layers[i];
        for (int t = 0; t < n_tiles; t++) (is_weighted(l) ? convolve : combine)(net, l, t);
        if (l->layer->norm == WF_NORM_BATCH) batch_norm(net, l, n_tiles, training);
        for (int t = 0; t < n_tiles; t++) {
            if (l->layer->norm == WF_NORM_LAYER) layer_norm(l, t);
            activate_layer(l, t);
            if (pools(l)) pool(l, &net->values[i + 1], t);
        }
    }
}

/* --- loss ------------------------------------------------------------------------------------- */

/* Gradient of the mean cross-entropy at the logits of one tile; `scale` is 1/batch. */
static void loss_gradient(network *net, int tile, real scale) {
    const int32_t *labels = net->labels + tile * NET_TILE;
    const real *z = tile_of(&net->values[net->n_layers], tile);
    real *d = tile_of(&net->gradients[net->n_layers], tile);
    int classes = net->layers[net->n_layers - 1].to->n;
    const real smoothing = (real)net->plan->desc->label_smoothing;
    for (int e = 0; e < NET_TILE; e++) {
        if (e >= net->rows[tile]) {
            for (int c = 0; c < classes; c++) d[c * NET_TILE + e] = 0;
            continue;
        }
        real largest = z[e], total = 0;
        for (int c = 1; c < classes; c++)
            if (z[c * NET_TILE + e] > largest) largest = z[c * NET_TILE + e];
        for (int c = 0; c < classes; c++) {
            d[c * NET_TILE + e] = r_exp(z[c * NET_TILE + e] - largest);
            total += d[c * NET_TILE + e];
        }
        for (int c = 0; c < classes; c++)
            d[c * NET_TILE + e] = scale * (d[c * NET_TILE + e] / total - smoothing / (real)classes -
                                           (c == labels[e] ? 1 - smoothing : 0));
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* The first of equal ones takes the gradient of a maximum, as in PyTorch. */
static void unpool_place(const net_layer *l, pool_window window, const real *sums,
                         const real *values, real *d_values, real *delta) {
    size_t n = (size_t)l->to->n * NET_TILE;
    bool maximum = l->layer->pool == WF_POOL_MAX;
    real share = pool_share(l);
    for (int y = window.top; y < window.bottom; y++)
        for (int x = window.left; x < window.right; x++) {
            size_t at = (size_t)(y * l->to->sum_width + x) * l->sums.place;
            const real *from = sums + at;
            real *to = delta + at;
            if (!maximum)
                for (size_t i = 0; i < n; i++) to[i] += share * d_values[i];
            else
                for (size_t i = 0; i < n; i++) {
                    bool here = from[i] == values[i];
                    to[i] += here ? d_values[i] : 0;
                    d_values[i] = here ? 0 : d_values[i]; /* given away */
                }
        }
}

/* From the gradient of a group's values to that of the layer's sums, through pooling and
 * activation. */
static void undo_pool(const network *net, int index, int tile) {
    const net_layer *l = &net->layers[index];
    const net_values *values = &net->values[index + 1], *d = &net->gradients[index + 1];
    real *delta = tile_of(&net->delta, tile), *d_value = tile_of(d, tile);
    if (!pools(l)) {
        memcpy(delta, d_value, d->tile * sizeof *delta);
        return;
    }
    const real *value = tile_of(values, tile);
    clear(delta, l->sums.tile);
    for (int row = 0; row < l->to->height; row++)
        for (int column = 0; column < l->to->width;
             column++, value += values->place, d_value += d->place)
            unpool_place(l, window_at(l, row, column), tile_of(&l->sums, tile), value, d_value,
                         delta);
}

static void undo_activation(const network *net, const net_layer *l, int tile) {
    size_t n = (size_t)l->to->n * NET_TILE;
    if (l->layer->activation == WF_ACT_IDENTITY) return;
    for (size_t p = 0; p < sum_places(l->to); p++) {
        real *delta = tile_of(&net->delta, tile) + p * l->sums.place;
        const real *value = tile_of(&l->sums, tile) + p * l->sums.place;
        if (l->layer->activation == WF_ACT_RELU)
            for (size_t i = 0; i < n; i++) delta[i] = value[i] > 0 ? delta[i] : 0;
        else {
            const real *slope = tile_of(&l->slope, tile) + p * l->slope.place;
            for (size_t i = 0; i < n; i++) delta[i] *= slope[i];
        }
    }
}

static real *gradient_of(const network *net, const real *parameter) {
    return net->gradient + (parameter - net->weight);
}

/* delta <- gamma scale / n (n delta - sum delta - normal sum(delta normal)), over the whole
 * batch. */
static void undo_batch_norm(const network *net, net_layer *l, int n_tiles) {
    size_t all = sum_places(l->to), place = l->sums.place;
    double n = 0;
    for (int t = 0; t < n_tiles; t++) n += (double)all * net->rows[t];
    for (int unit = 0; unit < l->to->n; unit++) {
        double sum = 0, along = 0;
        size_t shift = (size_t)unit * NET_TILE;
        for (int t = 0; t < n_tiles; t++)
            for (size_t p = 0; p < all; p++) {
                const real *d = tile_of(&net->delta, t) + p * place + shift;
                const real *normal = tile_of(&l->normal, t) + p * place + shift;
                real part = 0, with = 0;
                for (int e = 0; e < net->rows[t]; e++) {
                    part += d[e];
                    with += d[e] * normal[e];
                }
                sum += part;
                along += with;
            }
        gradient_of(net, l->beta)[unit] += (real)sum;
        gradient_of(net, l->gamma)[unit] += (real)along;
        real scale = l->gamma[unit] * l->moments[l->to->n + unit];
        real mean = (real)(sum / n), slant = (real)(along / n);
        for (int t = 0; t < n_tiles; t++)
            for (size_t p = 0; p < all; p++) {
                real *d = tile_of(&net->delta, t) + p * place + shift;
                const real *normal = tile_of(&l->normal, t) + p * place + shift;
                for (int e = 0; e < NET_TILE; e++)
                    d[e] = e < net->rows[t] ? scale * (d[e] - mean - normal[e] * slant) : 0;
            }
    }
}

/* The same for each example; lanes without one have delta 0 and keep it. */
static void undo_layer_norm(const network *net, const net_layer *l, int tile) {
    size_t all = sum_places(l->to), n = (size_t)l->to->n, place = l->sums.place;
    real *d = tile_of(&net->delta, tile), *scale = l->moments + (size_t)tile * NET_TILE;
    const real *normal = tile_of(&l->normal, tile);
    real *d_gamma = gradient_of(net, l->gamma), *d_beta = gradient_of(net, l->beta);
    double sum[NET_TILE] = {0}, along[NET_TILE] = {0};
    for (size_t p = 0; p < all; p++)
        for (size_t u = 0; u < n; u++) {
            real part = 0, with = 0;
            for (size_t e = 0; e < NET_TILE; e++) {
                size_t at = p * place + u * NET_TILE + e;
                part += d[at];
                with += d[at] * normal[at];
                d[at] *= l->gamma[u * all + p];
                sum[e] += d[at];
                along[e] += d[at] * normal[at];
            }
            d_beta[u * all + p] += part;
            d_gamma[u * all + p] += with;
        }
    double count = (double)(n * all);
    for (size_t p = 0; p < all; p++)
        for (size_t i = 0; i < n * NET_TILE; i++) {
            size_t at = p * place + i, e = i % NET_TILE;
            d[at] =
                scale[e] * (d[at] - (real)(sum[e] / count) - normal[at] * (real)(along[e] / count));
        }
}

/* First and last + 1 of the output positions along one side whose tap `k` falls on the source. */
static void tap_range(const net_layer *l, int side, int k, int size, int sums, int *first,
                      int *end) {
    int stride = l->window.stride[side], shift = k - l->window.padding[side];
    *first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    int last = size - 1 - shift; /* position * stride <= last */
    *end = last < 0 ? 0 : last / stride + 1;
    if (*end > sums) *end = sums;
}

static void weight_gradient(const network *net, const net_layer *l, int tile) {
    const net_values *source = &net->values[l->layer->from[0]];
    const wf_window *window = &l->window;
    real *gradient = gradient_of(net, l->weight);
    size_t x_width = (size_t)l->from->width, d_width = (size_t)l->to->sum_width;
    for (int i = 0; i < window->kernel[0]; i++)
        for (int j = 0; j < window->kernel[1]; j++) {
            int top, bottom, left, right;
            tap_range(l, 0, i, l->from->height, l->to->sum_height, &top, &bottom);
            tap_range(l, 1, j, l->from->width, l->to->sum_width, &left, &right);
            if (top >= bottom || left >= right) continue;
            size_t y = (size_t)(top * window->stride[0] - window->padding[0] + i);
            size_t x = (size_t)(left * window->stride[1] - window->padding[1] + j);
            weight_sums s = {.x = tile_of(source, tile) + (y * x_width + x) * source->place,
                             .d = tile_of(&net->delta, tile) +
                                  ((size_t)top * d_width + (size_t)left) * l->sums.place,
                             .rows = bottom - top,
                             .columns = right - left,
                             .x_row = (size_t)window->stride[0] * x_width * source->place,
                             .x_step = (size_t)window->stride[1] * source->place,
                             .d_row = d_width * l->sums.place,
                             .d_step = l->sums.place,
                             .n_src = l->from->n,
                             .n_dst = l->to->n,
                             .gradient = gradient + i * window->kernel[1] + j,
                             .coef = taps_of(l)};
            weights_run(&s);
        }
}

static void bias_gradient(const network *net, const net_layer *l, int tile) {
    real *gradient = gradient_of(net, l->bias);
    for (size_t p = 0; p < sum_places(l->to); p++)
        for (int u = 0; u < l->to->n; u++)
            gradient[u] +=
                sum_of(tile_of(&net->delta, tile) + p * l->sums.place + u * NET_TILE, NET_TILE);
}

/* Output places, with their taps, that a source place has gone into. */
static int find_back_taps(const network *net, const net_layer *l, int tile, int row, int column) {
    const wf_window *window = &l->window;
    size_t matrix = (size_t)l->from->n * (size_t)l->to->n;
    int n = 0;
    for (int i = 0; i < window->kernel[0]; i++)
        for (int j = 0; j < window->kernel[1]; j++) {
            int y = row + window->padding[0] - i, x = column + window->padding[1] - j;
            if (y < 0 || x < 0 || y % window->stride[0] != 0 || x % window->stride[1] != 0)
                continue;
            y /= window->stride[0];
            x /= window->stride[1];
            if (y >= l->to->sum_height || x >= l->to->sum_width) continue;
            size_t place = (size_t)y * (size_t)l->to->sum_width + (size_t)x;
            net->taps[n++] = (net_tap){tile_of(&net->delta, tile) + place * l->sums.place,
                                       l->back_pack + (size_t)(i * window->kernel[1] + j) * matrix};
        }
    return n;
}

static void input_gradient(const network *net, const net_layer *l, int tile, bool add) {
    const net_values *to = &net->gradients[l->layer->from[0]];
    gather g = {.taps = net->taps, .depth = l->to->n, .n_out = l->from->n, .add = add};
    g.out = tile_of(to, tile);
    for (int row = 0; row < l->from->height; row++)
        for (int column = 0; column < l->from->width; column++, g.out += to->place) {
            g.n_taps = find_back_taps(net, l, tile, row, column);
            gather_run(&g);
        }
}

/* What an add or pass hands on to one of its inputs. */
static void hand_back(const network *net, const net_layer *l, int group, int tile, bool add) {
    const net_values *to = &net->gradients[group];
    size_t n = (size_t)l->to->n * NET_TILE;
    for (size_t p = 0; p < sum_places(l->to); p++) {
        const real *delta = tile_of(&net->delta, tile) + p * l->sums.place;
        real *out = tile_of(to, tile) + p * to->place;
        for (size_t i = 0; i < n; i++) out[i] = add ? out[i] + delta[i] : delta[i];
    }
}

static void backward_layer(network *net, int index, int n_tiles) {
    net_layer *l = &net->layers[index];
    net->delta.place = l->sums.place;
    net->delta.tile = l->sums.tile;
    for (int t = 0; t < n_tiles; t++) {
        undo_pool(net, index, t);
        undo_activation(net, l, t);
        if (l->layer->norm == WF_NORM_LAYER) undo_layer_norm(net, l, t);
    }
    if (l->layer->norm == WF_NORM_BATCH) undo_batch_norm(net, l, n_tiles);
    for (int k = 0; k < (l->other != NULL ? 2 : 1); k++) {
        int group = l->layer->from[k];
        for (int t = 0; t < n_tiles; t++) {
            if (is_weighted(l)) weight_gradient(net, l, t);
            if (l->bias != NULL) bias_gradient(net, l, t);
            if (group == 0) continue;
            if (is_weighted(l)) input_gradient(net, l, t, net->reached[group]);
            else hand_back(net, l, group, t, net->reached[group]);
        }
        net->reached[group] = true;
    }
}

/* --- batches ---------------------------------------------------------------------------------- */

/* How an example is changed: numbers from (seed, network, WF_RNG_AUGMENT, epoch), block
 * `example`. */
typedef struct change {
    bool flip;
    int down, right; /* pixels that the window moves from the image's own place */
} change;

static change change_of(const wf_zoo_plan *plan, uint32_t index, uint32_t epoch, uint32_t example) {
    const uint32_t counter[4] = {example, epoch, index, WF_RNG_AUGMENT};
    const uint32_t span = 2 * (uint32_t)plan->desc->crop + 1;
    uint32_t word[4];
    wf_philox(counter, plan->desc->seed, word);
    return (change){plan->desc->flip && (word[0] & 1) != 0,
                    (int)((uint64_t)word[1] * span >> 32) - plan->desc->crop,
                    (int)((uint64_t)word[2] * span >> 32) - plan->desc->crop};
}

/* Position i of a side of n pixels, reflected at both ends without repeating them. */
static int reflected(int i, int n) {
    if (i < 0) i = -i;
    return i < n ? i : 2 * (n - 1) - i;
}

/* Lane `lane` of a tile of inputs; `how` NULL: the example as it is. Plain inputs that are images
 * in the data are one place with a unit for each pixel. */
static void load_example(network *net, int tile, int lane, const real *x, const change *how) {
    const wf_group *input = &net->plan->graph->groups[0];
    const net_values *to = &net->values[0];
    real *out = tile_of(to, tile) + lane;
    size_t inner = places(input);
    if (how == NULL) {
        for (size_t u = 0; u < (size_t)input->n; u++)
            for (size_t p = 0; p < inner; p++) out[p * to->place + u * NET_TILE] = x[u * inner + p];
        return;
    }
    const int *image = net->plan->image;
    size_t at = 0;
    for (int c = 0; c < image[0]; c++, x += image[1] * image[2])
        for (int row = 0; row < image[1]; row++) {
            const real *line = x + reflected(row + how->down, image[1]) * image[2];
            for (int column = 0; column < image[2]; column++, at++) {
                int from = how->flip ? image[2] - 1 - column : column;
                size_t unit = at / inner, place = at % inner;
                out[place * to->place + unit * NET_TILE] =
                    line[reflected(from + how->right, image[2])];
            }
        }
}

static void clear_lanes(network *net, int tile, int first) {
    const wf_group *input = &net->plan->graph->groups[0];
    const net_values *to = &net->values[0];
    for (size_t p = 0; p < places(input) && first < NET_TILE; p++)
        for (int u = 0; u < input->n; u++)
            clear(tile_of(to, tile) + p * to->place + u * NET_TILE + first,
                  (size_t)(NET_TILE - first));
}

typedef struct training {
    network net;
    uint32_t index;
} training;

/* The next tiles of a batch, at most a wave, into the lanes; *count examples. */
static int load_wave(training *t, const uint32_t *order, int left, uint32_t epoch, int *count) {
    network *net = &t->net;
    const wf_zoo_plan *plan = net->plan;
    const real *x = plan->train.x;
    bool changed = plan->desc->flip || plan->desc->crop > 0;
    size_t inputs = (size_t)plan->graph->inputs;
    int n_tiles = tiles_of(left) < net->wave ? tiles_of(left) : net->wave;
    *count = left < n_tiles * NET_TILE ? left : n_tiles * NET_TILE;
    for (int e = 0; e < *count; e++) {
        change how = {0};
        if (changed) how = change_of(plan, t->index, epoch, order[e]);
        net->labels[e] = plan->train.y[order[e]];
        load_example(net, e / NET_TILE, e % NET_TILE, x + order[e] * inputs, changed ? &how : NULL);
    }
    for (int tile = 0; tile < n_tiles; tile++) {
        int rest = *count - tile * NET_TILE;
        net->rows[tile] = rest < NET_TILE ? rest : NET_TILE;
        clear_lanes(net, tile, net->rows[tile]);
    }
    return n_tiles;
}

static bool batch_gradient(void *training_, const uint32_t *order, int batch, uint32_t epoch,
                           const wf_zoo_watch *watch) {
    training *t = training_;
    network *net = &t->net;
    const real scale = 1 / (real)batch;
    pack_weights(net);
    clear(net->gradient, net->n_params);
    for (int first = 0, count; first < batch; first += count) {
        if (watch->pause(watch->user, false)) return false;
        int n_tiles = load_wave(t, order + first, batch - first, epoch, &count);
        forward(net, n_tiles, true);
        for (int tile = 0; tile < n_tiles; tile++) loss_gradient(net, tile, scale);
        for (int g = 0; g <= net->n_layers; g++) net->reached[g] = false;
        for (int l = net->n_layers - 1; l >= 0; l--) backward_layer(net, l, n_tiles);
    }
    return true;
}

/* --- what the driver calls -------------------------------------------------------------------- */

static size_t scratch_bytes(const wf_zoo_plan *plan) {
    network net;
    return lay_out(plan, NULL, &net);
}

/* Every block but the running statistics. */
static void update_all(void *training_, update_numbers now) {
    network *net = &((training *)training_)->net;
    const wf_graph *graph = net->plan->graph;
    for (int b = 0; b < graph->n_blocks; b++) {
        size_t at = graph->blocks[b].offset;
        if (!wf_block_trained(&graph->blocks[b])) continue;
        trained_reals all = {graph->blocks[b].count, net->weight + at, net->first_moment + at,
                             net->second_moment + at, net->gradient + at};
        update_reals(net->plan->desc, now, &all);
    }
}

static bool is_finite(const void *training_) {
    const network *net = &((const training *)training_)->net;
    return all_finite(net->weight, net->n_params);
}

static wf_zoo_state train(const wf_zoo_plan *plan, const wf_zoo_task *task, void *w,
                          wf_zoo_progress *progress, const wf_zoo_watch *watch, void *scratch) {
    training t = {.index = task->index};
    network *net = &t.net;
    network_start(net, plan, w, scratch);
    size_t bytes = net->n_params * sizeof(real);
    if (progress->updates > 0) {
        memcpy(net->first_moment, progress->first, bytes);
        memcpy(net->second_moment, progress->second, bytes);
    }
    course run = {.plan = plan,
                  .task = task,
                  .watch = watch,
                  .words = net->words,
                  .order = net->order,
                  .net = &t,
                  .gradient = batch_gradient,
                  .update = update_all,
                  .finite = is_finite};
    course_start(&run, progress->updates);
    wf_zoo_state state = course_run(&run);
    memcpy(w, net->weight, bytes);
    if (state == WF_ZOO_WAITING) {
        memcpy(progress->first, net->first_moment, bytes);
        memcpy(progress->second, net->second_moment, bytes);
    }
    if (state != WF_ZOO_DIVERGED) progress->updates = run.rates.done;
    return state;
}

/* The most likely class of an example; of equal ones the first. */
static int predicted(const real *logits, int classes) {
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (logits[c * NET_TILE] > logits[best * NET_TILE]) best = c;
    return best;
}

static bool judge(const wf_zoo_plan *plan, const void *w, uint8_t *errors, size_t *wrong,
                  const wf_zoo_watch *watch, void *scratch) {
    network net;
    network_start(&net, plan, w, scratch);
    pack_weights(&net);
    const real *x = plan->test.x;
    size_t inputs = (size_t)plan->graph->inputs, n = plan->test.n;
    *wrong = 0;
    for (size_t byte = 0; byte < (n + 7) / 8; byte++) errors[byte] = 0;
    for (size_t first = 0; first < n; first += NET_TILE) {
        if (watch->pause(watch->user, false)) return false;
        net.rows[0] = n - first < NET_TILE ? (int)(n - first) : NET_TILE;
        for (int e = 0; e < net.rows[0]; e++)
            load_example(&net, 0, e, x + (first + (size_t)e) * inputs, NULL);
        clear_lanes(&net, 0, net.rows[0]);
        forward(&net, 1, false);
        for (int e = 0; e < net.rows[0]; e++) {
            size_t at = first + (size_t)e;
            const real *logits = tile_of(&net.values[net.n_layers], 0) + e;
            if (predicted(logits, plan->graph->outputs) == plan->test.y[at]) continue;
            errors[at / 8] |= (uint8_t)(1u << at % 8);
            ++*wrong;
        }
    }
    return true;
}

const wf_zoo_kernels WF_FN(wf_net_kernels) = {sizeof(real), scratch_bytes, train, judge};
