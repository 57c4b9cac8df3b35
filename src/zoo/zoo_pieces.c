#include "zoo/zoo_pieces.h"

#include "base/pool.h"
#include "graph/norm_sums.h"
#include "zoo/zoo_file.h"

#include <stdlib.h>

enum { kept_megabytes = 64, networks_in_a_chunk = 64 };

static size_t kept_bytes(void) {
    const char *text = getenv("WEFT_KEEP_MB");
    char *end = NULL;
    double megabytes = text != NULL ? strtod(text, &end) : kept_megabytes;
    if (text != NULL && (end == text || !(megabytes >= 0 && megabytes < 1e12)))
        megabytes = kept_megabytes;
    return (size_t)(megabytes * 1e6);
}

bool wf__zoo_keeps(size_t count, size_t n_params) {
    return count <= kept_bytes() / (n_params * sizeof(float));
}

typedef struct piece {
    const wf_zoo *zoo;
    size_t first, count;
    float *weights;
} piece;

static void read_chunk(void *piece_, size_t chunk, int worker) {
    (void)worker;
    const piece *p = piece_;
    size_t n_params = wf_zoo_graph(p->zoo)->n_params;
    size_t i = chunk * networks_in_a_chunk, end = i + networks_in_a_chunk;
    for (; i < end && i < p->count; i++)
        wf_zoo_get(p->zoo, p->first + i, p->weights + i * n_params);
}

static wf_status visit_all(wf_ctx *ctx, piece *p, size_t end, size_t most, wf_meter *meter,
                           wf_zoo_visit *visit, void *user) {
    size_t begin = p->first;
    for (; p->first < end; p->first += p->count) {
        p->count = end - p->first < most ? end - p->first : most;
        size_t chunks = (p->count + networks_in_a_chunk - 1) / networks_in_a_chunk;
        if (!wf_parallel_stoppable(ctx, chunks, read_chunk, p))
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading networks");
        wf__zoo_give_back(p->zoo, p->first, p->count);
        WF_TRY(visit(user, p->weights, p->first, p->count));
        if (meter != NULL) wf_meter_update(meter, (double)(p->first + p->count - begin), NULL);
    }
    return WF_OK;
}

wf_status wf__zoo_each(wf_ctx *ctx, const wf_zoo *zoo, size_t first, size_t count, const char *what,
                       wf_zoo_visit *visit, void *user) {
    if (count == 0) return WF_OK;
    size_t each = wf_zoo_graph(zoo)->n_params * sizeof(float), most = kept_bytes() / each;
    if (most == 0) most = 1;
    if (most >= count) {
        most = count;
        what = NULL; /* one piece is read at once */
    }
    piece p = {.zoo = zoo, .first = first};
    WF_TRY(wf_alloc_raw(ctx, most, each, "networks of a collection", &p.weights));
    wf_meter meter;
    if (what != NULL) meter = wf_meter_start(ctx, what, "networks", (double)count);
    wf_status status =
        visit_all(ctx, &p, first + count, most, what != NULL ? &meter : NULL, visit, user);
    if (what != NULL && status == WF_OK) wf_meter_end(&meter, (double)count, NULL);
    free(p.weights);
    return status;
}

typedef struct sums {
    const wf_graph *graph;
    const double *mean;
    double *sums; /* [n_blocks] */
} sums;

static wf_status add_piece(void *sums_, const float *weights, size_t first, size_t count) {
    (void)first;
    const sums *s = sums_;
    wf__norm_add(s->graph, weights, count, s->mean, s->sums);
    return WF_OK;
}

wf_status wf__zoo_norm(wf_ctx *ctx, const wf_graph *graph, const wf_zoo_span *spans, int n,
                       wf_norm *out) {
    *out = (wf_norm){0};
    size_t blocks = (size_t)graph->n_blocks, count = 0;
    double *both;
    WF_TRY(wf_alloc(ctx, 2 * blocks, sizeof *both, "normalisation", &both));
    for (int i = 0; i < n; i++) count += spans[i].count;
    sums s = {graph, NULL, both};
    wf_status status = WF_OK;
    for (int pass = 0; pass < 2 && status == WF_OK; pass++) {
        for (int i = 0; i < n && status == WF_OK; i++)
            status =
                wf__zoo_each(ctx, spans[i].zoo, spans[i].first, spans[i].count,
                             pass == 0 ? "mean of networks" : "spread of networks", add_piece, &s);
        if (pass == 0) wf__norm_means(graph, count, both);
        s = (sums){graph, both, both + blocks};
    }
    if (status == WF_OK) status = wf__norm_finish(ctx, graph, count, both, both + blocks, out);
    free(both);
    return status;
}
