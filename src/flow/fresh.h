/* fresh: networks that are trained while a flow is fitted to them.
 *
 * The networks of a source are a pool of 16 slices. Network k of a source is the one with index
 * WF_FRESH_FIRST + k of its settings; slice c has networks c * slice .. (c + 1) * slice - 1. The
 * pool begins with slices 0 to 15, and each renewal replaces the oldest slice by the next one. So
 * the pool is a function of the number of renewals, and a resumed run makes it again.
 *
 * P1  Indices of fresh networks are the upper half of all indices, those of collections the lower
 *     half: no network of a collection is ever in a pool.
 * P2  A network that diverges is left out: its place has the next finite network of its slice.
 * P3  Normalisation and principal axes are those of the first pool; checkpoints keep them. */
#pragma once

#include "flow/training_set.h"
#include "zoo/zoo_engine.h"

enum { WF_FRESH_SLICES = 16 };

typedef struct wf_fresh_source {
    const wf_graph *graph; /* as the collection has it */
    wf_zoo_desc desc;
    wf_zoo_chain chain;
    wf_zoo_plan plan;
    size_t slice;  /* networks */
    bool declined; /* the GPU cannot train them */
} wf_fresh_source;

typedef struct wf_fresh_pool {
    wf_training_set *set;
    wf_fresh_source *sources; /* (set->n_sources); NULL: nothing is fresh */
    uint32_t *index;          /* (networks of the largest pool) */
    uint8_t *state;
    size_t renewals;     /* made so far, over all pieces of the run */
    size_t slices;       /* networks of one slice of every source together */
    double network_time; /* seconds a network took when the pool was filled */
    size_t diverged;     /* networks of this process that were left out */
    bool warned;
} wf_fresh_pool;

/* Networks of a pool that is to have `wanted`: whole slices. */
size_t wf_fresh_pool_size(size_t wanted);

/* Does nothing without fresh sources. Sources and their data are borrowed. */
wf_status wf_fresh_pool_create(wf_ctx *ctx, const wf_source *sources, wf_training_set *set,
                               wf_fresh_pool *out);
void wf_fresh_pool_free(wf_fresh_pool *pool);

/* Trains the pool as it is after so many renewals, into the families' weights, as they come from
 * training. */
wf_status wf_fresh_pool_fill(wf_ctx *ctx, wf_fresh_pool *pool, size_t renewals);
/* The next renewal: the new slices, normalised and rotated. *place: the slice's place in every
 * pool. After an interruption the pool is of no further use. */
wf_status wf_fresh_pool_renew(wf_ctx *ctx, wf_fresh_pool *pool, int *place);
/* Networks made for the pool so far, over all pieces of the run. */
size_t wf_fresh_pool_made(const wf_fresh_pool *pool);
