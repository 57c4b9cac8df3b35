/* training_set: the networks a flow is fitted to, in normalised space.
 *
 * A family holds all collections of one architecture; they share its group normalisation. With
 * normalise_by = collection every collection is a family of its own. A source is one collection: a
 * range of a family, a condition, and the name of its task. draw.h draws batches from it. */
#pragma once

#include "flow/objective.h"
#include "flow/principal.h"
#include "zoo/zoo_pieces.h"
#include "weft/flow.h"

typedef struct wf_family {
    wf_graph *graph;              /* owned */
    wf_norm norm;                 /* n = 0 without normalisation */
    wf_principal principal;       /* width 0: the first layer's rows are as they are */
    wf_loss_weight *loss_weights; /* weights of its parameters in the loss */
    size_t count;                 /* networks that are fitted */
    size_t held_out;              /* networks after them, for validation alone */
    /* (count + held_out, n_params), normalised. NULL in a flow that only samples, and where they
     * are read from their collections when they are drawn (streams). */
    float *weights;
} wf_family;

typedef struct wf_training_source {
    int family;
    const wf_zoo *zoo;                     /* borrowed; NULL in a flow that only samples */
    const wf_zoo *held_out;                /* of the held-out ones: the same, or another */
    size_t held_out_from;                  /* their first one there */
    int draw_weight;                       /* relative sampling weight: places in a round */
    size_t first, count;                   /* its networks in the family */
    size_t held_out_first, held_out_count; /* and its held-out ones */
    char *path;                            /* of the collection */
    char *task;                            /* "" without a name */
    char *tests;                           /* names of its test sets, joined by commas */
    char scale[WF_SETTING_BUFFER];         /* of the data its networks read; "": not known */
    char *classes;                         /* of that data, in order; "": not said */
    char *data;    /* fingerprint of the data it was trained on; "" where it does not say */
    uint64_t hash; /* of its used networks and its condition */
} wf_training_source;

/* A file may claim any number, and the description of each takes a few thousand bytes. */
enum { WF_MAX_FAMILIES = 16384 };

typedef struct wf_training_set {
    int n_families, n_sources, cond_size;
    /* Networks stay in their files: they are more than WEFT_KEEP_MB says, and neither fresh nor
     * rotated onto principal axes. */
    bool streams;
    bool fresh; /* fitted networks are trained meanwhile (fresh.h); held-out ones are loaded */
    wf_family *families;
    wf_training_source *sources;
    float *cond;     /* (n_sources, cond_size); NULL without conditions */
    uint32_t *round; /* (round_length) the source of each place; NULL: each source has one place */
    int round_length;
} wf_training_set;

/* field says how long conditions are and whether it takes first layers folded; fit has limit and
 * normalisation. */
wf_status wf_training_set_load(wf_ctx *ctx, const wf_source *sources, int n_sources,
                               const wf_field *field, const wf_fit_desc *fit, wf_training_set *out);
/* Reads networks that were left in their files into memory. */
wf_status wf_training_set_keep(wf_ctx *ctx, wf_training_set *set);
/* Network `index` of a source, or of its held-out ones, in normalised space: w (n_params). Threads
 * may call it side by side. */
void wf_source_network(const wf_training_set *set, const wf_training_source *source, bool held_out,
                       size_t index, float *w);
/* Hands the networks that a family is fitted to, normalised, to `visit`, piece by piece. */
wf_status wf_family_each(wf_ctx *ctx, const wf_training_set *set, int family, wf_zoo_visit *visit,
                         void *user);
/* Normalises all networks where the fit does. A normalisation that a family has already is kept.
 * Loading has done it, but for fresh networks, which come later. */
wf_status wf_training_set_normalise(wf_ctx *ctx, const wf_fit_desc *fit, wf_training_set *set);
/* Networks as they come from training (count, n_params) to the family's normalised space. */
wf_status wf_family_transform(wf_ctx *ctx, const wf_family *family, float *weights, size_t count);
/* With fit->principal: rotates the networks onto their principal axes. Axes that the set has
 * already are kept, so that a continued run goes on along its own: where variances are nearly
 * equal, another machine may find other axes. */
wf_status wf_training_set_rotate(wf_ctx *ctx, const wf_fit_desc *fit, wf_training_set *set);
void wf_training_set_free(wf_training_set *set);

/* WF_ERR_SHAPE unless all collections have one architecture, which the generator `name` needs. */
wf_status wf__one_architecture(wf_ctx *ctx, const char *name, const wf_source *sources, int n);

/* A copy of `graph` as the field takes it: the first layer on its nodes where the field folds. */
wf_status wf_family_graph(wf_ctx *ctx, const wf_field *field, const wf_graph *graph,
                          wf_graph **out);

/* The family whose normalisation serves `graph`: the same architecture, else one with the same
 * kinds of blocks, preferring equal inputs and outputs, then the nearest condition (cond may be
 * NULL). NULL when no family has such blocks. */
const wf_family *wf_training_set_match(const wf_training_set *set, const wf_graph *graph,
                                       const float *cond);
/* The family's normalisation for networks of `graph`, which has blocks of the same kinds. Where the
 * fan-in of a layer differs, mean and standard deviation scale with 1/sqrt(fan-in), as initial
 * weights do and trained ones nearly. */
wf_status wf_family_norm(wf_ctx *ctx, const wf_family *family, const wf_graph *graph, wf_norm *out);
/* Squared distance of a source's condition from cond; 0 without conditions. */
double wf_training_set_distance(const wf_training_set *set, int source, const float *cond);
