#include "flow/stock.h"

#include "base/pool.h"
#include "base/random.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- loading ---------------------------------------------------------------------------------- */

/* A hash that tells collections apart; not a safeguard against intent. */
static uint64_t hash_words(uint64_t hash, const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Networks of the collection itself that are kept for validation. */
static size_t set_aside(const wf_source *source, const wf_fit_desc *fit) {
    return source->held_out != NULL ? 0 : fit->set_aside;
}

static size_t used_networks(const wf_source *source, const wf_fit_desc *fit) {
    size_t count = wf_zoo_count(source->zoo) - set_aside(source, fit);
    return fit->limit > 0 && fit->limit < count ? fit->limit : count;
}

wf_status wf_stock_graph(wf_ctx *ctx, const wf_field *field, const wf_graph *graph,
                         wf_graph **out) {
    return wf_graph_fold(ctx, graph, field->folds ? WF_GRAPH_FOLD_INPUT : 0, out);
}

wf_status wf__one_architecture(wf_ctx *ctx, const char *name, const wf_source *sources, int n) {
    const wf_graph *first = wf_zoo_graph(sources[0].zoo);
    for (int i = 1; i < n; i++)
        if (!wf_graph_equal(first, wf_zoo_graph(sources[i].zoo)))
            return wf_fail(ctx, WF_ERR_SHAPE,
                           "%s has networks of %s, %s of %s; %s takes one architecture",
                           wf_zoo_path(sources[0].zoo), first->text, wf_zoo_path(sources[i].zoo),
                           wf_zoo_graph(sources[i].zoo)->text, name);
    return WF_OK;
}

enum { largest_share = 1000 };

static wf_status check_held_out(wf_ctx *ctx, const wf_source *source, const wf_fit_desc *fit) {
    const char *path = wf_zoo_path(source->zoo);
    size_t count = wf_zoo_count(source->zoo), aside = set_aside(source, fit);
    if (aside >= count)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: set_aside = %zu leaves none of its %zu networks to train on", path,
                       aside, count);
    if (source->held_out == NULL) return WF_OK;
    const wf_graph *graph = wf_zoo_graph(source->zoo), *other = wf_zoo_graph(source->held_out);
    if (wf_graph_equal(graph, other)) return WF_OK;
    return wf_fail(ctx, WF_ERR_SHAPE, "%s has networks of %s, its held-out networks %s are of %s",
                   path, graph->text, wf_zoo_path(source->held_out), other->text);
}

static wf_status check_sources(wf_ctx *ctx, const wf_source *sources, int n, int cond_size,
                               const wf_fit_desc *fit) {
    size_t limit = fit->limit;
    if (n < 1) return wf_fail(ctx, WF_ERR_USAGE, "no collection to train on; give at least one");
    for (int i = 0; i < n; i++) {
        const char *path = wf_zoo_path(sources[i].zoo);
        size_t count = wf_zoo_count(sources[i].zoo);
        if (count == 0)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: the collection has no networks", path);
        if (count > UINT32_MAX)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED, "%s: more than %u networks; set a limit", path,
                           UINT32_MAX);
        if (limit > count)
            wf_warn(ctx, "%s: %zu networks asked for, the collection has %zu", path, limit, count);
        WF_TRY(check_held_out(ctx, &sources[i], fit));
        if ((sources[i].cond != NULL) != (cond_size > 0))
            return wf_fail(ctx, WF_ERR_USAGE,
                           cond_size > 0 ? "%s: no condition, but the field expects %d numbers"
                                         : "%s: a condition, but the field has none (%d numbers)",
                           path, cond_size);
        if (sources[i].share < 0 || sources[i].share > largest_share)
            return wf_fail(ctx, WF_ERR_USAGE, "%s: a share of %d; it goes from 1 to %d", path,
                           sources[i].share, largest_share);
    }
    return WF_OK;
}

/* "moons,spirals"; the caller frees it. NULL when out of memory. */
static char *test_names(const wf_zoo *zoo) {
    size_t size = 1;
    for (int t = 0; wf_zoo_test(zoo, t) != NULL; t++) size += strlen(wf_zoo_test(zoo, t)) + 1;
    char *text = malloc(size);
    if (text == NULL) return NULL;
    wf_text list = wf_text_start(text, size);
    for (int t = 0; wf_zoo_test(zoo, t) != NULL; t++)
        wf_text_add(&list, "%s%s", t > 0 ? "," : "", wf_zoo_test(zoo, t));
    return text;
}

static wf_status name_source(wf_ctx *ctx, const wf_source *from, wf_stock_source *source) {
    const char *data = wf_zoo_meta(from->zoo, "weft.data");
    source->path = strdup(wf_zoo_path(from->zoo));
    source->task = strdup(from->task != NULL ? from->task : "");
    source->tests = test_names(from->zoo);
    source->data = strdup(data != NULL ? data : "");
    if (source->path != NULL && source->task != NULL && source->tests != NULL &&
        source->data != NULL)
        return WF_OK;
    return wf_fail(ctx, WF_ERR_MEMORY, "sources: out of memory");
}

/* Gives every source its stock and its range there. */
static wf_status assign_sources(wf_ctx *ctx, const wf_source *sources, int n, const wf_field *field,
                                const wf_fit_desc *fit, wf_stocks *out) {
    bool apart = fit->normalise && fit->normalise_by == WF_NORMALISE_BY_COLLECTION;
    for (int i = 0; i < n; i++) {
        const wf_graph *graph = wf_zoo_graph(sources[i].zoo);
        int stock = apart ? out->n_stocks : 0;
        while (stock < out->n_stocks && !wf_graph_equal(out->stocks[stock].graph, graph)) stock++;
        if (stock == WF_MAX_STOCKS)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "more than %d architectures, or collections normalised by themselves",
                           WF_MAX_STOCKS);
        if (stock == out->n_stocks) {
            WF_TRY(wf_stock_graph(ctx, field, graph, &out->stocks[stock].graph));
            out->n_stocks++;
        }
        wf_stock_source *source = &out->sources[i];
        source->stock = stock;
        source->share = sources[i].share > 0 ? sources[i].share : 1;
        source->first = out->stocks[stock].count;
        source->count = used_networks(&sources[i], fit);
        out->stocks[stock].count += source->count;
        WF_TRY(name_source(ctx, &sources[i], source));
    }
    for (int i = 0; i < n; i++) { /* behind all networks that are fitted */
        wf_stock_source *source = &out->sources[i];
        wf_stock *stock = &out->stocks[source->stock];
        source->held_out_first = stock->count + stock->held_out;
        source->held_out_count = sources[i].held_out != NULL ? wf_zoo_count(sources[i].held_out)
                                                             : set_aside(&sources[i], fit);
        stock->held_out += source->held_out_count;
    }
    return WF_OK;
}

/* Networks from .. from + count - 1 of a collection to weights (count, n_params). */
static wf_status load_networks(wf_ctx *ctx, const wf_zoo *zoo, size_t from, size_t count,
                               float *weights) {
    size_t n = wf_zoo_graph(zoo)->n_params;
    for (size_t k = 0; k < count; k++) {
        float *w = weights + k * n;
        wf_zoo_get(zoo, from + k, w);
        for (size_t i = 0; i < n; i++)
            if (!isfinite(w[i]))
                return wf_fail(ctx, WF_ERR_INPUT,
                               "%s: network %zu has values that are not finite; leave it out",
                               wf_zoo_path(zoo), from + k);
    }
    return WF_OK;
}

static wf_status load_source(wf_ctx *ctx, const wf_source *from, wf_stock_source *source,
                             wf_stock *stock) {
    size_t n = stock->graph->n_params;
    float *fitted = stock->weights + source->first * n;
    float *held_out = stock->weights + source->held_out_first * n;
    WF_TRY(load_networks(ctx, from->zoo, 0, source->count, fitted));
    source->hash = hash_words(0xCBF29CE484222325u, fitted, source->count * n);
    bool own = from->held_out == NULL; /* set aside: the last ones of the collection */
    return load_networks(ctx, own ? from->zoo : from->held_out,
                         own ? wf_zoo_count(from->zoo) - source->held_out_count : 0,
                         source->held_out_count, held_out);
}

static wf_status normalise_stock(wf_ctx *ctx, wf_stock *stock) {
    WF_TRY(wf_norm_fit(ctx, stock->graph, stock->weights, stock->count, &stock->norm));
    size_t n = stock->graph->n_params;
    for (size_t k = 0; k < stock->count + stock->held_out; k++) {
        float *w = stock->weights + k * n;
        wf_norm_apply(&stock->norm, stock->graph, w, w);
    }
    return WF_OK;
}

/* Loss weights: 1 for every parameter, or such that all layers contribute equally. */
static wf_status share_loss(wf_ctx *ctx, wf_loss_by by, wf_stock *stock) {
    const wf_graph *graph = stock->graph;
    int layers = 0; /* with parameters */
    for (int b = 0; b < graph->n_blocks; b++)
        layers += b == 0 || graph->blocks[b].layer != graph->blocks[b - 1].layer;
    WF_TRY(
        wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *stock->shares, "training", &stock->shares));
    for (int b = 0; b < graph->n_blocks; b++) {
        size_t layer = 0;
        for (int other = 0; other < graph->n_blocks; other++)
            if (graph->blocks[other].layer == graph->blocks[b].layer)
                layer += graph->blocks[other].count;
        double alike = (double)graph->n_params / ((double)layers * (double)layer);
        stock->shares[b] =
            (wf_loss_share){(uint32_t)(graph->blocks[b].offset + graph->blocks[b].count),
                            by == WF_LOSS_BY_LAYERS ? (float)alike : 1};
    }
    return WF_OK;
}

wf_status wf_stocks_turn(wf_ctx *ctx, const wf_fit_desc *fit, wf_stocks *stocks) {
    if (!fit->principal) return WF_OK;
    double all = 0;
    for (int s = 0; s < stocks->n_stocks; s++) {
        const wf_stock *stock = &stocks->stocks[s];
        all += wf_principal_work(stock->graph, stock->count, stock->principal.width == 0) +
               wf_principal_work(stock->graph, stock->held_out, false);
    }
    wf_principal_task task = {.meter = wf_meter_start(ctx, "principal axes", "GFLOP", all)};
    for (int s = 0; s < stocks->n_stocks; s++) {
        wf_stock *stock = &stocks->stocks[s];
        if (stock->principal.width == 0)
            WF_TRY(wf_principal_fit(ctx, stock->graph, stock->weights, stock->count, &task,
                                    &stock->principal));
        WF_TRY(wf_principal_apply(ctx, &stock->principal, stock->graph, stock->weights,
                                  stock->count + stock->held_out, &task));
    }
    wf_meter_end(&task.meter, task.done, "%s", "");
    return WF_OK;
}

/* A source of share s appears in the first s passes over the sources, so that its turns lie
 * apart. */
static wf_status deal_turns(wf_ctx *ctx, wf_stocks *out) {
    int most = 1, all = 0;
    for (int i = 0; i < out->n_sources; i++) {
        all += out->sources[i].share;
        if (out->sources[i].share > most) most = out->sources[i].share;
    }
    if (most == 1) return WF_OK;
    WF_TRY(wf_alloc(ctx, (size_t)all, sizeof *out->turns, "turns", &out->turns));
    for (int round = 0; round < most; round++)
        for (int i = 0; i < out->n_sources; i++)
            if (out->sources[i].share > round) out->turns[out->n_turns++] = (uint32_t)i;
    return WF_OK;
}

static wf_status load_all(wf_ctx *ctx, const wf_source *sources, const wf_field *field,
                          const wf_fit_desc *fit, wf_stocks *out) {
    WF_TRY(assign_sources(ctx, sources, out->n_sources, field, fit, out));
    WF_TRY(deal_turns(ctx, out));
    for (int s = 0; s < out->n_stocks; s++) {
        wf_stock *stock = &out->stocks[s];
        WF_TRY(wf_alloc(ctx, (stock->count + stock->held_out) * stock->graph->n_params,
                        sizeof(float), "networks to train on", &stock->weights));
        WF_TRY(share_loss(ctx, fit->loss_by, stock));
    }
    for (int i = 0; i < out->n_sources; i++) {
        wf_stock_source *source = &out->sources[i];
        WF_TRY(load_source(ctx, &sources[i], source, &out->stocks[source->stock]));
        if (out->cond == NULL) continue;
        float *cond = out->cond + (size_t)i * (size_t)out->cond_size;
        memcpy(cond, sources[i].cond, (size_t)out->cond_size * sizeof *cond);
        source->hash = hash_words(source->hash, cond, (size_t)out->cond_size);
    }
    for (int s = 0; fit->normalise && s < out->n_stocks; s++)
        WF_TRY(normalise_stock(ctx, &out->stocks[s]));
    return WF_OK;
}

wf_status wf_stocks_load(wf_ctx *ctx, const wf_source *sources, int n_sources,
                         const wf_field *field, const wf_fit_desc *fit, wf_stocks *out) {
    int cond_size = field->cond_size;
    *out = (wf_stocks){.n_sources = n_sources, .cond_size = cond_size};
    WF_TRY(check_sources(ctx, sources, n_sources, cond_size, fit));
    size_t n = (size_t)n_sources;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *out->stocks, "stocks", &out->stocks), fail);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *out->sources, "sources", &out->sources), fail);
    if (cond_size > 0)
        WF_TRY_GOTO(wf_alloc(ctx, n * (size_t)cond_size, sizeof(float), "conditions", &out->cond),
                    fail);
    WF_TRY_GOTO(load_all(ctx, sources, field, fit, out), fail);
    return WF_OK;
fail:
    wf_stocks_free(out);
    return status;
}

void wf_stocks_free(wf_stocks *stocks) {
    for (int s = 0; stocks->stocks != NULL && s < stocks->n_stocks; s++) {
        wf_graph_free(stocks->stocks[s].graph);
        wf_norm_free(&stocks->stocks[s].norm);
        wf_principal_free(&stocks->stocks[s].principal);
        free(stocks->stocks[s].shares);
        free(stocks->stocks[s].weights);
    }
    for (int i = 0; stocks->sources != NULL && i < stocks->n_sources; i++) {
        wf_stock_source *source = &stocks->sources[i];
        free(source->path);
        free(source->task);
        free(source->tests);
        free(source->data);
    }
    free(stocks->stocks);
    free(stocks->sources);
    free(stocks->cond);
    free(stocks->turns);
    *stocks = (wf_stocks){0};
}

/* --- which normalisation ---------------------------------------------------------------------- */

static bool same_blocks(const wf_graph *a, const wf_graph *b) {
    if (a->n_blocks != b->n_blocks) return false;
    for (int i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].kind != b->blocks[i].kind || a->blocks[i].coef != b->blocks[i].coef)
            return false;
    return true;
}

double wf_stocks_distance(const wf_stocks *stocks, int source, const float *cond) {
    if (cond == NULL || stocks->cond == NULL) return 0;
    double sum = 0;
    for (int k = 0; k < stocks->cond_size; k++) {
        double d = (double)cond[k] -
                   (double)stocks->cond[(size_t)source * (size_t)stocks->cond_size + (size_t)k];
        sum += d * d;
    }
    return sum;
}

const wf_stock *wf_stocks_match(const wf_stocks *stocks, const wf_graph *graph, const float *cond) {
    const wf_stock *best = NULL;
    int best_rank = 0;
    double best_distance = 0;
    for (int i = 0; i < stocks->n_sources; i++) {
        const wf_stock *stock = &stocks->stocks[stocks->sources[i].stock];
        if (!same_blocks(stock->graph, graph)) continue;
        bool ends =
            stock->graph->inputs == graph->inputs && stock->graph->outputs == graph->outputs;
        int rank = wf_graph_equal(stock->graph, graph) ? 3 : ends ? 2 : 1;
        double distance = wf_stocks_distance(stocks, i, cond);
        if (rank < best_rank || (rank == best_rank && distance >= best_distance)) continue;
        best = stock;
        best_rank = rank;
        best_distance = distance;
    }
    return best;
}

/* Units that feed the layer of a block; a bias belongs to the layer's weights. What a norm layer
 * has does not depend on them. */
static int fan_in(const wf_graph *graph, int block) {
    if (graph->blocks[block].kind > WF_BLOCK_BIAS) return 1;
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == graph->blocks[block].layer &&
            graph->blocks[b].kind == WF_BLOCK_WEIGHT)
            return graph->groups[graph->blocks[b].src].n;
    return 1;
}

wf_status wf_stock_norm(wf_ctx *ctx, const wf_stock *stock, const wf_graph *graph, wf_norm *out) {
    WF_TRY(wf_norm_create(ctx, stock->norm.n, out));
    for (int b = 0; b < out->n; b++) {
        int seen = fan_in(stock->graph, b), wanted = fan_in(graph, b);
        float scale = seen == wanted ? 1 : (float)sqrt((double)seen / (double)wanted);
        out->mean[b] = stock->norm.mean[b] * scale;
        out->std[b] = stock->norm.std[b] * scale;
    }
    return WF_OK;
}

/* --- drawing ---------------------------------------------------------------------------------- */

static size_t largest_network(const wf_stocks *stocks) {
    size_t largest = 0;
    for (int s = 0; s < stocks->n_stocks; s++)
        if (stocks->stocks[s].graph->n_params > largest)
            largest = stocks->stocks[s].graph->n_params;
    return largest;
}

static wf_status draw_alloc(wf_ctx *ctx, wf_draw *draw) {
    size_t batch = (size_t)draw->batch, cond = (size_t)draw->stocks->cond_size;
    size_t all = batch * largest_network(draw->stocks);
    const char *what = "training batch";
    wf_flow_batch *flow = &draw->flow;
    float **arrays[] = {&flow->w0, &flow->w1, &flow->wt, &flow->x, &flow->f};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        WF_TRY(wf_alloc(ctx, all, sizeof(float), what, arrays[i]));
    WF_TRY(wf_alloc(ctx, batch, sizeof(float), what, &flow->t));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->scale, what, &flow->scale));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->axes, what, &flow->axes));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->shares, what, &flow->shares));
    WF_TRY(wf_alloc(ctx, batch, sizeof(double), what, &flow->loss));
    if (cond > 0) {
        WF_TRY(wf_alloc(ctx, batch * cond, sizeof(float), what, &flow->cond));
        WF_TRY(wf_alloc(ctx, batch, 1, what, &flow->drop));
    }
    WF_TRY(wf_alloc(ctx, batch, sizeof *draw->graphs, what, &draw->graphs));
    WF_TRY(wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->source));
    WF_TRY(wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->network));
    return wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->order);
}

/* One matcher for each architecture that has hidden units. */
static wf_status open_matchers(wf_ctx *ctx, wf_draw *draw, const wf_fit_desc *desc) {
    const wf_stocks *stocks = draw->stocks;
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = desc->match_sweeps;
    match.seed = desc->seed;
    WF_TRY(wf_alloc(ctx, (size_t)stocks->n_stocks, sizeof *draw->matchers, "matching",
                    &draw->matchers));
    for (int s = 0; s < stocks->n_stocks; s++)
        if (stocks->stocks[s].graph->n_orbits > 0)
            WF_TRY(wf__matcher_open(ctx, stocks->stocks[s].graph, &match, &draw->matchers[s]));
    return WF_OK;
}

wf_status wf_draw_create(wf_ctx *ctx, const wf_stocks *stocks, const wf_fit_desc *desc,
                         wf_draw *out) {
    *out = (wf_draw){.stocks = stocks,
                     .batch = (int)desc->batch,
                     .seed = desc->seed,
                     .source_std = desc->source_std,
                     .cond_drop = desc->cond_drop,
                     .noise_table = (uint32_t)desc->noise_table,
                     .time_law = desc->time_law,
                     .shape_fixed = stocks->n_stocks == 1};
    out->flow.shape = &out->shape;
    wf_status status = draw_alloc(ctx, out);
    if (status == WF_OK && desc->coupling == WF_COUPLING_MATCHED)
        status = open_matchers(ctx, out, desc);
    if (status == WF_OK && out->shape_fixed) {
        for (int b = 0; b < out->batch; b++) out->graphs[b] = stocks->stocks[0].graph;
        status = wf_batch_build(ctx, &out->shape_arena, out->graphs, out->batch, &out->shape);
    }
    if (status != WF_OK) wf_draw_free(out);
    return status;
}

void wf_draw_free(wf_draw *draw) {
    for (int s = 0; draw->matchers != NULL && s < draw->stocks->n_stocks; s++)
        wf__matcher_close(draw->matchers[s]);
    wf_flow_batch *flow = &draw->flow;
    void *memory[] = {
        flow->w0,     flow->w1,     flow->wt,      flow->x,     flow->f,       flow->t,
        flow->scale,  flow->loss,   flow->cond,    flow->drop,  flow->axes,    (void *)flow->shares,
        draw->graphs, draw->source, draw->network, draw->order, draw->matchers};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    wf_arena_free(&draw->shape_arena);
    *draw = (wf_draw){0};
}

void wf_draw_order(const wf_stocks *stocks, int batch, const uint32_t *source, uint32_t *order) {
    int place = 0;
    for (int s = 0; s < stocks->n_stocks; s++)
        for (int b = 0; b < batch; b++)
            if (stocks->sources[source[b]].stock == s) order[place++] = (uint32_t)b;
}

static void choose_networks(wf_draw *draw, uint32_t update) {
    const wf_stocks *stocks = draw->stocks;
    for (int b = 0; b < draw->batch; b++) {
        wf_rng rng = wf_rng_at(draw->seed, (uint32_t)b, WF_RNG_BATCH, update);
        draw->source[b] = draw->only != NULL ? draw->only[b % draw->n_only]
                                             : wf_draw_source(stocks, draw->batch, update, b);
        const wf_stock_source *source = &stocks->sources[draw->source[b]];
        draw->network[b] = draw->held_out
                               ? (uint32_t)((size_t)(b / draw->n_only) % source->held_out_count)
                               : wf_rng_below(&rng, (uint32_t)source->count);
    }
    wf_draw_order(stocks, draw->batch, draw->source, draw->order);
}

static int place_stock(const wf_draw *draw, int place) {
    return draw->stocks->sources[draw->source[draw->order[place]]].stock;
}

typedef struct fill_call {
    wf_draw *draw;
    uint32_t update;
} fill_call;

static float draw_time(const wf_draw *draw, wf_rng *rng) {
    if (draw->time_law == WF_TIME_UNIFORM) return wf_rng_uniform(rng);
    if (draw->time_law == WF_TIME_LATE) return fmaxf(wf_rng_uniform(rng), wf_rng_uniform(rng));
    uint32_t a = wf_rng_u32(rng), b = wf_rng_u32(rng);
    float deviate, other;
    wf_box_muller(a, b, &deviate, &other);
    return 1 / (1 + wf_expf(-deviate));
}

/* Vector k of a fixed noise table is stream (seed, k, WF_RNG_NOISE, last step), which no update
 * uses. So the table needs no memory. */
static void draw_noise(const wf_draw *draw, wf_rng *choice, uint32_t place, uint32_t update,
                       float *out, size_t n) {
    wf_rng rng = wf_rng_at(draw->seed, place, WF_RNG_NOISE, update);
    if (draw->noise_table > 0)
        rng = wf_rng_at(draw->seed, wf_rng_below(choice, draw->noise_table), WF_RNG_NOISE,
                        UINT32_MAX);
    wf_rng_normals(&rng, out, n);
}

static void fill_place(void *arg, size_t place, int worker) {
    const fill_call *call = arg;
    (void)worker;
    wf_draw *draw = call->draw;
    const wf_stocks *stocks = draw->stocks;
    wf_flow_batch *flow = &draw->flow;
    uint32_t drawn = draw->order[place], source = draw->source[drawn], b = (uint32_t)place;
    const wf_stock_source *from = &stocks->sources[source];
    const wf_stock *stock = &stocks->stocks[from->stock];
    size_t n = stock->graph->n_params, start = draw->shape.param_start[place];
    size_t first = draw->held_out ? from->held_out_first : from->first;
    memcpy(flow->w1 + start, stock->weights + (first + draw->network[drawn]) * n,
           n * sizeof(float));
    wf_rng rng = wf_rng_at(draw->seed, b, WF_RNG_TIME, call->update);
    flow->t[place] = draw_time(draw, &rng);
    flow->axes[place] = wf_principal_axes(&stock->principal, stock->graph);
    flow->shares[place] = stock->shares;
    draw_noise(draw, &rng, b, call->update, flow->w0 + start, n);
    if (draw->source_std != 1)
        for (size_t i = start; i < start + n; i++) flow->w0[i] *= (float)draw->source_std;
    if (flow->cond == NULL) return;
    size_t k = (size_t)stocks->cond_size;
    memcpy(flow->cond + place * k, stocks->cond + source * k, k * sizeof(float));
    rng = wf_rng_at(draw->seed, b, WF_RNG_DROP, call->update);
    flow->drop[place] = wf_rng_uniform(&rng) < draw->cond_drop;
}

/* Matches the noise of each stock's networks, which are neighbours, to their targets. With `from`
 * only the relabellings are wanted. */
static wf_status match_noise(wf_ctx *ctx, wf_draw *draw, uint32_t *from, size_t units) {
    for (int first = 0, to; first < draw->batch; first = to) {
        int stock = place_stock(draw, first);
        for (to = first + 1; to < draw->batch && place_stock(draw, to) == stock;) to++;
        wf_matcher *matcher = draw->matchers[stock];
        if (matcher == NULL) continue;
        size_t start = draw->shape.param_start[first], count = (size_t)(to - first);
        const float *w1 = draw->flow.w1 + start;
        float *w0 = draw->flow.w0 + start;
        if (from == NULL) WF_TRY(wf__matcher_run(ctx, matcher, w1, 1, w0, count));
        else
            WF_TRY(wf__matcher_find(ctx, matcher, w1, 1, w0, count, from + (size_t)first * units,
                                    units));
    }
    return WF_OK;
}

static wf_status fill_batch(wf_ctx *ctx, wf_draw *draw, size_t update) {
    choose_networks(draw, (uint32_t)update);
    if (!draw->shape_fixed) {
        for (int b = 0; b < draw->batch; b++)
            draw->graphs[b] = draw->stocks->stocks[place_stock(draw, b)].graph;
        wf_arena_reset(&draw->shape_arena);
        WF_TRY(wf_batch_build(ctx, &draw->shape_arena, draw->graphs, draw->batch, &draw->shape));
    }
    fill_call call = {draw, (uint32_t)update};
    wf_parallel(ctx, (size_t)draw->batch, fill_place, &call);
    return WF_OK;
}

wf_status wf_draw_batch(wf_ctx *ctx, wf_draw *draw, size_t update) {
    WF_TRY(fill_batch(ctx, draw, update));
    return draw->matchers != NULL ? match_noise(ctx, draw, NULL, 0) : WF_OK;
}

wf_status wf_draw_relabellings(wf_ctx *ctx, wf_draw *draw, size_t update, uint32_t *from,
                               size_t units) {
    WF_TRY(fill_batch(ctx, draw, update));
    return match_noise(ctx, draw, from, units);
}
