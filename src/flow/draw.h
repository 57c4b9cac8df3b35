/* draw: the networks, noise and times of a batch.
 *
 * The places of all batches, one after another, go round the sources: a source of weight s appears
 * s times per round. So there are few different compositions of a batch, and the GPU records each
 * once. The network of a place is drawn uniformly from its source, by stream (seed, place,
 * WF_RNG_BATCH, update), or in epochs (wf_epoch_place, WF_RNG_EPOCH). Then the places are ordered
 * by family, so that networks of one architecture are neighbours. */
#pragma once

#include "align/matcher.h"
#include "flow/training_set.h"

static inline int wf_round_length(const wf_training_set *set) {
    return set->round != NULL ? set->round_length : set->n_sources;
}
static inline uint32_t wf_round_source(const wf_training_set *set, uint32_t place) {
    return set->round != NULL ? set->round[place] : place;
}
/* The source of place b, before ordering. */
static inline uint32_t wf_draw_source(const wf_training_set *set, int batch, size_t update, int b) {
    uint64_t place = (uint64_t)update * (uint64_t)batch + (uint64_t)b;
    return wf_round_source(set, (uint32_t)(place % (uint64_t)wf_round_length(set)));
}
/* source: of each place before ordering. order[place] = the place before ordering. */
void wf_draw_order(const wf_training_set *set, int batch, const uint32_t *source, uint32_t *order);

enum { WF_DRAW_ARRAYS = 5 }; /* of a batch's parameters: w0, w1, wt, x, f */
/* The buffers of a training batch and the stream addresses that fill them. */
typedef struct wf_draw {
    const wf_training_set *set;
    int batch;
    uint64_t seed;
    double source_std, cond_drop;
    uint32_t noise_table;
    bool relabel; /* networks are copies with their hidden units in a random order, */
    bool signs;   /* with the signs of some flipped */
    bool epochs;  /* networks and vectors of the noise table are gone through in epochs */
    wf_time_law time_law;
    wf_matcher **matchers; /* (n_families); NULL with the independent coupling */
    wf_flow_batch flow;
    wf_batch shape;
    /* the shape, made anew for every update when there are several families */
    wf_arena shape_arena;
    bool shape_fixed;
    const wf_graph **graphs; /* (batch) */
    uint32_t *source, *network, *order;
    uint32_t *units; /* (threads, most_units) of copies: where units come from */
    size_t most_units;
    /* A draw for validation goes round these sources alone, whatever their weights; NULL: it is one
     * of training batches. held_out: it takes their held-out networks, one after another. */
    const uint32_t *only;
    int n_only;
    bool held_out;
    wf_split split; /* of several ranks; flow.split points to it then */
} wf_draw;

wf_status wf_draw_create(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                         wf_draw *out);
void wf_draw_free(wf_draw *draw);
/* In a context of several ranks: from now on each draws its own networks of a batch alone. */
void wf_draw_split(const wf_ctx *ctx, wf_draw *draw, wf_field *field);
/* Fills draw->flow: w0, w1, t, cond, drop of update `update`. */
wf_status wf_draw_batch(wf_ctx *ctx, wf_draw *draw, size_t update);
/* For the matched coupling: only the relabellings of that update's noise, `from` (batch, units) in
 * the order of places. units: hidden units of the largest architecture. */
wf_status wf_draw_relabellings(wf_ctx *ctx, wf_draw *draw, size_t update, uint32_t *from,
                               size_t units);
