#include "flow/principal.h"

#include "base/isa.h"
#include "base/pool.h"
#include "flow/eigen.h"
#include "nn/optim_kernels.h"

#include <stdlib.h>
#include <string.h>

enum {
    tile_rows = 256,
    shares = 16,         /* of the rows; constant, so that sums do not depend on threads */
    most_rows = 1 << 17, /* looked at */
    rows_per_number = 4, /* that there must be */
    most_sweeps = 60
};
static const double ridge = 1e-6; /* of the mean variance: keeps constant numbers apart */

/* --- rows of a collection ------------------------------------------------------------------------------ */

/* The block that feeds on the inputs: rows over them. */
static const wf_block *first_layer(const wf_graph *graph) {
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].kind == WF_BLOCK_WEIGHT &&
            graph->groups[graph->blocks[b].src].kind == WF_GROUP_INPUT)
            return &graph->blocks[b];
    return NULL;
}

typedef struct collection_rows {
    const wf_graph *graph;
    float *weights;
    size_t first, each, total; /* first parameter of a network's rows, rows of a network, of all */
    size_t width, padded;      /* padded: as the products want it */
} collection_rows;

static collection_rows rows_of(const wf_graph *graph, const float *weights, size_t count) {
    const wf_block *block = first_layer(graph);
    size_t width = (size_t)wf_principal_width(graph);
    return (collection_rows){.graph = graph,
                             .weights = (float *)weights,
                             .first = block->offset,
                             .each = block->count / width,
                             .total = count * (block->count / width),
                             .width = width,
                             .padded = (width + 15) / 16 * 16};
}

static float *row_at(const collection_rows *rows, size_t index) {
    return rows->weights + index / rows->each * rows->graph->n_params + rows->first +
           index % rows->each * rows->width;
}

/* tile (tile_rows, padded) = rows minus mean, zeros behind them. The n-th row of the tile is row (first + n) * total / used. */
static void fill_tile(const collection_rows *rows, size_t first, size_t n, size_t used,
                      const float *mean, float *tile) {
    memset(tile, 0, tile_rows * rows->padded * sizeof *tile);
    for (size_t r = 0; r < n; r++) {
        const float *row = row_at(rows, (first + r) * rows->total / used);
        float *to = tile + r * rows->padded;
        for (size_t j = 0; j < rows->width; j++) to[j] = mean == NULL ? row[j] : row[j] - mean[j];
    }
}

typedef struct covariance {
    collection_rows rows;
    size_t used;
    const float *mean;
    double *sums; /* (shares, width), then (shares, padded, padded) */
    float *tiles; /* (threads, tile_rows, padded) */
    float *grams; /* (threads, padded, padded) */
    wf_optim_kernels kernels;
} covariance;

static void add_rows(void *arg, size_t share, int worker) {
    const covariance *c = arg;
    (void)worker;
    double *sum = c->sums + share * c->rows.width;
    for (size_t r = share * c->used / shares; r < (share + 1) * c->used / shares; r++) {
        const float *row = row_at(&c->rows, r * c->rows.total / c->used);
        for (size_t j = 0; j < c->rows.width; j++) sum[j] += (double)row[j];
    }
}

static void add_products(void *arg, size_t share, int worker) {
    const covariance *c = arg;
    size_t p = c->rows.padded, end = (share + 1) * c->used / shares;
    float *tile = c->tiles + (size_t)worker * tile_rows * p;
    float *gram = c->grams + (size_t)worker * p * p;
    double *sum = c->sums + share * p * p;
    for (size_t r = share * c->used / shares; r < end; r += tile_rows) {
        fill_tile(&c->rows, r, end - r < tile_rows ? end - r : tile_rows, c->used, c->mean, tile);
        c->kernels.product(&(wf_product_args){gram, tile, 1, p, tile, p, p, tile_rows});
        for (size_t i = 0; i < p * p; i++) sum[i] += (double)gram[i];
    }
}

/* out (width, width) from the shares' sums. */
static void add_shares(const covariance *c, double *out) {
    size_t w = c->rows.width, p = c->rows.padded;
    double trace = 0;
    for (size_t i = 0; i < w; i++)
        for (size_t j = 0; j < w; j++) {
            double sum = 0;
            for (size_t s = 0; s < shares; s++) sum += c->sums[(s * p + i) * p + j];
            out[i * w + j] = sum / (double)c->used;
            if (i == j) trace += out[i * w + j];
        }
    for (size_t i = 0; i < w; i++) out[i * w + i] += ridge * (trace / (double)w) + 1e-12;
}

static wf_status alloc_covariance(wf_ctx *ctx, covariance *c) {
    size_t p = c->rows.padded, threads = (size_t)wf_ctx_threads(ctx);
    const char *what = "principal axes";
    WF_TRY(wf_alloc(ctx, shares * p * p, sizeof *c->sums, what, &c->sums));
    WF_TRY(wf_alloc(ctx, threads * tile_rows * p, sizeof *c->tiles, what, &c->tiles));
    return wf_alloc(ctx, threads * p * p, sizeof *c->grams, what, &c->grams);
}

static void find_mean(wf_ctx *ctx, covariance *c, float *mean) {
    size_t w = c->rows.width, p = c->rows.padded;
    wf_parallel(ctx, shares, add_rows, c);
    for (size_t j = 0; j < w; j++) {
        double sum = 0;
        for (size_t s = 0; s < shares; s++) sum += c->sums[s * w + j];
        mean[j] = (float)(sum / (double)c->used);
    }
    memset(c->sums, 0, shares * p * p * sizeof *c->sums);
    c->mean = mean;
}

static wf_status fit(wf_ctx *ctx, covariance *c, wf_principal *out) {
    size_t w = c->rows.width;
    double *vectors = NULL, *values = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, w * w, sizeof *vectors, "principal axes", &vectors), done);
    WF_TRY_GOTO(wf_alloc(ctx, w, sizeof *values, "principal axes", &values), done);
    WF_TRY_GOTO(alloc_covariance(ctx, c), done);
    find_mean(ctx, c, out->mean);
    wf_parallel(ctx, shares, add_products, c);
    add_shares(c, vectors);
    WF_TRY_GOTO(wf_eigen(ctx, vectors, (int)w, values), done);
    for (size_t k = 0; k < w; k++) out->variance[k] = (float)values[k];
    for (size_t i = 0; i < w * w; i++) out->axes[i] = (float)vectors[i];
done:
    free(vectors);
    free(values);
    free(c->sums);
    free(c->tiles);
    free(c->grams);
    return status;
}

wf_status wf_principal_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                           wf_principal *out) {
    *out = (wf_principal){0};
    int width = wf_principal_width(graph);
    covariance c = {.rows = rows_of(graph, weights, count),
                    .kernels = WF_PICK_F32(wf_optim_kernels)};
    c.used = c.rows.total < most_rows ? c.rows.total : most_rows;
    if (c.rows.total < (size_t)rows_per_number * (size_t)width)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "principal axes of %d inputs need %d rows, and %zu networks of %s have %zu; "
                       "use more networks, or principal = no",
                       width, rows_per_number * width, count, graph->text, c.rows.total);
    WF_TRY(wf_principal_create(ctx, width, out));
    wf_status status = fit(ctx, &c, out);
    if (status != WF_OK) wf_principal_free(out);
    return status;
}

/* --- onto the axes and back ------------------------------------------------------------------------------- */

typedef struct turning {
    collection_rows rows;
    const float *before, *behind; /* subtracted before, added behind; NULL: nothing */
    float *matrix;                /* (padded, padded): row times matrix */
    float *tiles;                 /* (threads, 2, tile_rows, padded) */
    wf_optim_kernels kernels;
} turning;

static void turn_rows(void *arg, size_t chunk, int worker) {
    const turning *t = arg;
    size_t p = t->rows.padded, first = chunk * tile_rows;
    size_t n = t->rows.total - first < tile_rows ? t->rows.total - first : tile_rows;
    float *tile = t->tiles + (size_t)worker * 2 * tile_rows * p, *turned = tile + tile_rows * p;
    fill_tile(&t->rows, first, n, t->rows.total, t->before, tile);
    t->kernels.product(&(wf_product_args){turned, tile, p, 1, t->matrix, tile_rows, p, p});
    for (size_t r = 0; r < n; r++) {
        float *row = row_at(&t->rows, first + r);
        const float *from = turned + r * p;
        for (size_t j = 0; j < t->rows.width; j++)
            row[j] = t->behind == NULL ? from[j] : from[j] + t->behind[j];
    }
}

static wf_status turn(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                      float *weights, size_t count, bool back) {
    if (principal->width == 0 || count == 0) return WF_OK;
    turning t = {.rows = rows_of(graph, weights, count),
                 .before = back ? NULL : principal->mean,
                 .behind = back ? principal->mean : NULL,
                 .kernels = WF_PICK_F32(wf_optim_kernels)};
    size_t w = t.rows.width, p = t.rows.padded, threads = (size_t)wf_ctx_threads(ctx);
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, p * p, sizeof(float), "principal axes", &t.matrix), done);
    WF_TRY_GOTO(
        wf_alloc(ctx, threads * 2 * tile_rows * p, sizeof(float), "principal axes", &t.tiles),
        done);
    for (size_t k = 0; k < w; k++)
        for (size_t j = 0; j < w; j++)
            t.matrix[back ? k * p + j : j * p + k] = principal->axes[k * w + j];
    wf_parallel(ctx, (t.rows.total + tile_rows - 1) / tile_rows, turn_rows, &t);
done:
    free(t.matrix);
    free(t.tiles);
    return status;
}

wf_status wf_principal_apply(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                             float *weights, size_t count) {
    return turn(ctx, principal, graph, weights, count, false);
}

wf_status wf_principal_invert(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                              float *weights, size_t count) {
    return turn(ctx, principal, graph, weights, count, true);
}

/* --- the object --------------------------------------------------------------------------------------------- */

int wf_principal_width(const wf_graph *graph) {
    const wf_block *block = first_layer(graph);
    return graph->groups[block->src].n * block->coef;
}

wf_status wf_principal_create(wf_ctx *ctx, int width, wf_principal *out) {
    size_t w = (size_t)width;
    *out = (wf_principal){.width = width};
    WF_TRY(wf_alloc(ctx, 2 * w + w * w, sizeof(float), "principal axes", &out->memory));
    out->mean = out->memory;
    out->variance = out->mean + w;
    out->axes = out->variance + w;
    return WF_OK;
}

void wf_principal_free(wf_principal *principal) {
    free(principal->memory);
    *principal = (wf_principal){0};
}

wf_axes wf_principal_axes(const wf_principal *principal, const wf_graph *graph) {
    if (principal->width == 0) return (wf_axes){.width = 1};
    const wf_block *block = first_layer(graph);
    return (wf_axes){(uint32_t)block->offset, (uint32_t)block->count, (uint32_t)principal->width,
                     principal->variance};
}
