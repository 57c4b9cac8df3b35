/* net_forward: the forward pass of net_kernels.c, layer by layer. */
#pragma once

#include "zoo/cpu/net_memory.h"

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
