/* net_backward: the loss of net_kernels.c and the gradients of all parameters. */
#pragma once

#include "zoo/cpu/net_forward.h"

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
