/* stock: the networks a flow is fitted to, in normalised space, and how a batch is drawn from them.
 *
 * A stock holds all collections of one architecture; they share its group normalisation. With
 * normalise_by = collection every collection has a stock of its own. A source is one collection: a
 * range of a stock, a condition, and the name of its task.
 *
 * The places of all batches, one after another, go round the sources: a source of share s appears s
 * times per round. So there are few different compositions of a batch, and the GPU records each
 * once. The network of a place is drawn uniformly from its source, by stream (seed, place,
 * WF_RNG_BATCH, update). Then the places are ordered by stock, so that networks of one architecture
 * are neighbours. */
#ifndef WF_FLOW_STOCK_H
#define WF_FLOW_STOCK_H

#include "align/matcher.h"
#include "flow/objective.h"
#include "flow/principal.h"
#include "weft/flow.h"

typedef struct wf_stock {
    wf_graph *graph;        /* owned */
    wf_norm norm;           /* n = 0 without normalisation */
    wf_principal principal; /* width 0: the first layer's rows are as they are */
    wf_loss_share *shares;  /* weights of its parameters in the loss */
    size_t count;           /* networks that are fitted */
    size_t held_out;        /* networks behind them, for validation alone */
    float *weights; /* (count + held_out, n_params), normalised; NULL in a flow that only samples */
} wf_stock;

typedef struct wf_stock_source {
    int stock, share;
    size_t first, count;                   /* its networks in the stock */
    size_t held_out_first, held_out_count; /* and its held-out ones */
    char *path;                            /* of the collection */
    char *task;                            /* "" without a name */
    char *tests;                           /* names of its test sets, joined by commas */
    char *data;    /* fingerprint of the data it was trained on; "" where it does not say */
    uint64_t hash; /* of its used networks and its condition */
} wf_stock_source;

/* A file may claim any number, and the description of each takes a few thousand bytes. */
enum { WF_MAX_STOCKS = 16384 };

typedef struct wf_stocks {
    int n_stocks, n_sources, cond_size;
    wf_stock *stocks;
    wf_stock_source *sources;
    float *cond; /* (n_sources, cond_size); NULL without conditions */
    uint32_t
        *turns; /* (n_turns) the source of each turn of a round; NULL: one turn for each source */
    int n_turns;
} wf_stocks;

/* field says how long conditions are and whether it takes first layers folded; fit has limit and
 * normalisation. */
wf_status wf_stocks_load(wf_ctx *ctx, const wf_source *sources, int n_sources,
                         const wf_field *field, const wf_fit_desc *fit, wf_stocks *out);
/* With fit->principal: rotates the networks onto their principal axes. Axes that stocks have
 * already are kept, so that a continued run goes on along its own: where variances are nearly
 * equal, another machine may find other axes. */
wf_status wf_stocks_turn(wf_ctx *ctx, const wf_fit_desc *fit, wf_stocks *stocks);
void wf_stocks_free(wf_stocks *stocks);

/* WF_ERR_SHAPE unless all collections have one architecture, which the generator `name` needs. */
wf_status wf__one_architecture(wf_ctx *ctx, const char *name, const wf_source *sources, int n);

/* A copy of `graph` as the field takes it: the first layer on its nodes where the field folds. */
wf_status wf_stock_graph(wf_ctx *ctx, const wf_field *field, const wf_graph *graph, wf_graph **out);

/* The stock whose normalisation serves `graph`: the same architecture, else one with the same kinds
 * of blocks, preferring equal inputs and outputs, then the nearest condition (cond may be NULL).
 * NULL when no stock has such blocks. */
const wf_stock *wf_stocks_match(const wf_stocks *stocks, const wf_graph *graph, const float *cond);
/* The stock's normalisation for networks of `graph`, which has blocks of the same kinds. Where the
 * fan-in of a layer differs, mean and standard deviation scale with 1/sqrt(fan-in), as initial
 * weights do and trained ones nearly. */
wf_status wf_stock_norm(wf_ctx *ctx, const wf_stock *stock, const wf_graph *graph, wf_norm *out);
/* Squared distance of a source's condition from cond; 0 without conditions. */
double wf_stocks_distance(const wf_stocks *stocks, int source, const float *cond);

static inline int wf_draw_turns(const wf_stocks *stocks) {
    return stocks->turns != NULL ? stocks->n_turns : stocks->n_sources;
}
static inline uint32_t wf_turn_source(const wf_stocks *stocks, uint32_t turn) {
    return stocks->turns != NULL ? stocks->turns[turn] : turn;
}
/* The source of place b, before ordering. */
static inline uint32_t wf_draw_source(const wf_stocks *stocks, int batch, size_t update, int b) {
    uint64_t turn = (uint64_t)update * (uint64_t)batch + (uint64_t)b;
    return wf_turn_source(stocks, (uint32_t)(turn % (uint64_t)wf_draw_turns(stocks)));
}
/* source: of each place before ordering. order[place] = the place before ordering. */
void wf_draw_order(const wf_stocks *stocks, int batch, const uint32_t *source, uint32_t *order);

enum { WF_DRAW_ARRAYS = 5 }; /* of a batch's parameters: w0, w1, wt, x, f */
/* The buffers of a training batch and the stream addresses that fill them. */
typedef struct wf_draw {
    const wf_stocks *stocks;
    int batch;
    uint64_t seed;
    double source_std, cond_drop;
    uint32_t noise_table;
    wf_time_law time_law;
    wf_matcher **matchers; /* (n_stocks); NULL with the independent coupling */
    wf_flow_batch flow;
    wf_batch shape;
    wf_arena shape_arena; /* the shape, made anew for every update when there are several stocks */
    bool shape_fixed;
    const wf_graph **graphs; /* (batch) */
    uint32_t *source, *network, *order;
    /* A draw for validation goes round these sources alone, whatever their shares; NULL: it is one
     * of training batches. held_out: it takes their held-out networks, one after another. */
    const uint32_t *only;
    int n_only;
    bool held_out;
} wf_draw;

wf_status wf_draw_create(wf_ctx *ctx, const wf_stocks *stocks, const wf_fit_desc *desc,
                         wf_draw *out);
void wf_draw_free(wf_draw *draw);
/* Fills draw->flow: w0, w1, t, cond, drop of update `update`. */
wf_status wf_draw_batch(wf_ctx *ctx, wf_draw *draw, size_t update);
/* For the matched coupling: only the relabellings of that update's noise, `from` (batch, units) in
 * the order of places. units: hidden units of the largest architecture. */
wf_status wf_draw_relabellings(wf_ctx *ctx, wf_draw *draw, size_t update, uint32_t *from,
                               size_t units);

#endif
