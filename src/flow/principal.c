#include "flow/principal.h"

#include "base/isa.h"
#include "base/pool.h"
#include "flow/eigen.h"
#include "nn/optim_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    tile_rows = 256,
    strip = 16,          /* columns of the covariance that a thread computes at a time */
    tiles_at_once = 64,  /* that are rotated between two checks of the clock */
    most_rows = 1 << 17, /* used at most */
    rows_per_number = 4, /* needed at least */
};
static const double ridge = 1e-6; /* least variance of an axis, relative to the mean variance */

/* --- rows of a collection --------------------------------------------------------------------- */

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

/* tile (tile_rows, padded) = rows minus mean, zeros after them. Row n of the tile is row
 * (first + n) * total / used of the collection. */
static void fill_tile(const collection_rows *rows, size_t first, size_t n, size_t used,
                      const float *mean, float *tile) {
    memset(tile, 0, tile_rows * rows->padded * sizeof *tile);
    for (size_t r = 0; r < n; r++) {
        const float *row = row_at(rows, (first + r) * rows->total / used);
        float *to = tile + r * rows->padded;
        for (size_t j = 0; j < rows->width; j++) to[j] = mean == NULL ? row[j] : row[j] - mean[j];
    }
}

/* --- progress --------------------------------------------------------------------------------- */

/* In 1e9 operations. */
static double row_work(const collection_rows *rows, size_t n) {
    return 2e-9 * (double)n * (double)rows->padded * (double)rows->padded;
}
static double eigen_work(size_t width) {
    return 8e-9 * (double)width * (double)width * (double)width;
}
static size_t used_rows(size_t total) { return total < most_rows ? total : most_rows; }

double wf_principal_work(const wf_graph *graph, size_t count, bool fit) {
    collection_rows rows = rows_of(graph, NULL, count);
    double work = row_work(&rows, rows.total);
    return fit ? work + row_work(&rows, used_rows(rows.total)) + eigen_work(rows.width) : work;
}

/* Adds to the work done; `task` may be NULL. */
static wf_status go_on(wf_ctx *ctx, wf_principal_task *task, double work) {
    if (task != NULL) {
        task->done += work;
        wf_meter_update(&task->meter, task->done, "%s", "");
    }
    if (!wf_interrupted(ctx)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted at the principal axes");
}

/* --- the axes --------------------------------------------------------------------------------- */

typedef struct covariance {
    collection_rows rows;
    size_t used;
    const float *mean;
    double *sums; /* (padded, padded) */
    float *tile;  /* (tile_rows, padded) */
    float *grams; /* (threads, strip, padded) */
    wf_optim_kernels kernels;
} covariance;

static void find_mean(const covariance *c, float *mean) {
    size_t w = c->rows.width;
    for (size_t r = 0; r < c->used; r++) {
        const float *row = row_at(&c->rows, r * c->rows.total / c->used);
        for (size_t j = 0; j < w; j++) c->sums[j] += (double)row[j];
    }
    for (size_t j = 0; j < w; j++) {
        mean[j] = (float)(c->sums[j] / (double)c->used);
        c->sums[j] = 0;
    }
}

/* Rows of the covariance: columns of the tile times the tile. */
static void add_strip(void *arg, size_t index, int worker) {
    const covariance *c = arg;
    size_t p = c->rows.padded, first = index * strip;
    float *gram = c->grams + (size_t)worker * strip * p;
    c->kernels.multiply(
        &(wf_product){gram, c->tile + first, 1, p, c->tile, strip, p, tile_rows, 1, 0, NULL});
    for (size_t i = 0; i < strip * p; i++) c->sums[first * p + i] += (double)gram[i];
}

/* out (width, width). Returns the least variance that an axis may have. */
static double finish_covariance(const covariance *c, double *out) {
    size_t w = c->rows.width, p = c->rows.padded;
    double trace = 0;
    for (size_t i = 0; i < w; i++)
        for (size_t j = 0; j < w; j++) {
            /* Entries (i, j) and (j, i) differ by the order of their sums: take the mean. */
            out[i * w + j] = (c->sums[i * p + j] + c->sums[j * p + i]) / (2 * (double)c->used);
            if (i == j) trace += out[i * w + j];
        }
    return ridge * (trace / (double)w) + 1e-12;
}

static wf_status alloc_covariance(wf_ctx *ctx, covariance *c) {
    size_t p = c->rows.padded, threads = (size_t)wf_ctx_threads(ctx);
    const char *what = "principal axes";
    WF_TRY(wf_alloc(ctx, p * p, sizeof *c->sums, what, &c->sums));
    WF_TRY(wf_alloc(ctx, tile_rows * p, sizeof *c->tile, what, &c->tile));
    return wf_alloc(ctx, threads * strip * p, sizeof *c->grams, what, &c->grams);
}

static wf_status add_products(wf_ctx *ctx, covariance *c, wf_principal_task *task) {
    for (size_t r = 0; r < c->used; r += tile_rows) {
        size_t n = c->used - r < tile_rows ? c->used - r : tile_rows;
        fill_tile(&c->rows, r, n, c->used, c->mean, c->tile);
        wf_parallel(ctx, c->rows.padded / strip, add_strip, c);
        WF_TRY(go_on(ctx, task, row_work(&c->rows, n)));
    }
    return WF_OK;
}

static wf_status fit(wf_ctx *ctx, covariance *c, wf_principal_task *task, wf_principal *out) {
    size_t w = c->rows.width;
    double *vectors = NULL, *values = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, w * w, sizeof *vectors, "principal axes", &vectors), done);
    WF_TRY_GOTO(wf_alloc(ctx, w, sizeof *values, "principal axes", &values), done);
    WF_TRY_GOTO(alloc_covariance(ctx, c), done);
    find_mean(c, out->mean);
    c->mean = out->mean;
    WF_TRY_GOTO(add_products(ctx, c, task), done);
    double least = finish_covariance(c, vectors);
    WF_TRY_GOTO(wf_eigen(ctx, vectors, (int)w, values, task == NULL ? NULL : &task->meter,
                         task == NULL ? 0 : task->done, eigen_work(w)),
                done);
    WF_TRY_GOTO(go_on(ctx, task, eigen_work(w)), done);
    for (size_t k = 0; k < w; k++) out->variance[k] = (float)fmax(values[k], least);
    for (size_t i = 0; i < w * w; i++) out->axes[i] = (float)vectors[i];
done:
    free(vectors);
    free(values);
    free(c->sums);
    free(c->tile);
    free(c->grams);
    return status;
}

wf_status wf_principal_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                           wf_principal_task *task, wf_principal *out) {
    *out = (wf_principal){0};
    int width = wf_principal_width(graph);
    covariance c = {.rows = rows_of(graph, weights, count),
                    .kernels = WF_PICK_F32(wf_optim_kernels)};
    c.used = used_rows(c.rows.total);
    if (c.rows.total < (size_t)rows_per_number * (size_t)width)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "principal axes of %d inputs need %d rows, and %zu networks of %s have %zu; "
                       "use more networks, or principal = no",
                       width, rows_per_number * width, count, graph->text, c.rows.total);
    WF_TRY(wf_principal_create(ctx, width, out));
    wf_status status = fit(ctx, &c, task, out);
    if (status != WF_OK) wf_principal_free(out);
    return status;
}

/* --- onto the axes and back ------------------------------------------------------------------- */

typedef struct rotating {
    collection_rows rows;
    size_t first;                 /* row of the first tile */
    const float *before, *behind; /* subtracted before, added after; NULL: nothing */
    float *matrix;                /* (padded, padded): row times matrix */
    float *tiles;                 /* (threads, 2, tile_rows, padded) */
    wf_optim_kernels kernels;
} rotating;

static void rotate_rows(void *arg, size_t chunk, int worker) {
    const rotating *t = arg;
    size_t p = t->rows.padded, first = t->first + chunk * tile_rows;
    size_t n = t->rows.total - first < tile_rows ? t->rows.total - first : tile_rows;
    float *tile = t->tiles + (size_t)worker * 2 * tile_rows * p, *rotated = tile + tile_rows * p;
    fill_tile(&t->rows, first, n, t->rows.total, t->before, tile);
    t->kernels.multiply(&(wf_product){rotated, tile, p, 1, t->matrix, tile_rows, p, p, 1, 0, NULL});
    for (size_t r = 0; r < n; r++) {
        float *row = row_at(&t->rows, first + r);
        const float *from = rotated + r * p;
        for (size_t j = 0; j < t->rows.width; j++)
            row[j] = t->behind == NULL ? from[j] : from[j] + t->behind[j];
    }
}

static wf_status rotate_tiles(wf_ctx *ctx, rotating *t, wf_principal_task *task) {
    size_t total = t->rows.total, at_once = (size_t)tiles_at_once * tile_rows;
    for (t->first = 0; t->first < total; t->first += at_once) {
        size_t n = total - t->first < at_once ? total - t->first : at_once;
        wf_parallel(ctx, (n + tile_rows - 1) / tile_rows, rotate_rows, t);
        WF_TRY(go_on(ctx, task, row_work(&t->rows, n)));
    }
    return WF_OK;
}

static wf_status rotate(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                        float *weights, size_t count, bool back, wf_principal_task *task) {
    if (principal->width == 0 || count == 0) return WF_OK;
    rotating t = {.rows = rows_of(graph, weights, count),
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
    status = rotate_tiles(ctx, &t, task);
done:
    free(t.matrix);
    free(t.tiles);
    return status;
}

wf_status wf_principal_apply(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                             float *weights, size_t count, wf_principal_task *task) {
    return rotate(ctx, principal, graph, weights, count, false, task);
}

wf_status wf_principal_invert(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                              float *weights, size_t count) {
    return rotate(ctx, principal, graph, weights, count, true, NULL);
}

/* --- the object ------------------------------------------------------------------------------- */

int wf_principal_width(const wf_graph *graph) {
    const wf_block *block = first_layer(graph);
    return graph->groups[block->src].n * block->coef;
}

wf_status wf_principal_create(wf_ctx *ctx, int width, wf_principal *out) {
    size_t w = (size_t)width;
    *out = (wf_principal){0};
    WF_TRY(wf_alloc(ctx, 2 * w + w * w, sizeof(float), "principal axes", &out->memory));
    out->width = width;
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
