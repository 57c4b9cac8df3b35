/* principal: the rows of a first layer along their principal axes.
 *
 * The incoming weights of a unit in a first layer are a row over the inputs. Inputs keep their
 * places, so the rows of all networks of a collection follow one distribution, with covariance
 * C = A' diag(l) A. For images a few dozen axes carry nearly all variance; the others keep that of
 * the initial weights. x = A (w - mean) keeps distances and isotropic noise, has uncorrelated
 * coordinates, and variances l that flow/path.h takes into account. */
#pragma once

#include "base/status.h"
#include "flow/path.h"
#include "weft/graph.h"

typedef struct wf_principal {
    int width;              /* numbers in a row; 0: rows stay as they are */
    float *mean, *variance; /* (width), variances falling */
    float *axes;            /* (width, width): row k is axis k */
    float *memory;          /* of all three */
} wf_principal;

/* Allocates the arrays; their contents are not set. */
wf_status wf_principal_create(wf_ctx *ctx, int width, wf_principal *out);
void wf_principal_free(wf_principal *principal);

/* Progress of finding axes and of rotating rows, in 1e9 operations. Functions take NULL for
 * none. */
typedef struct wf_principal_task {
    wf_meter meter;
    double done;
} wf_principal_task;
/* Operations, in 1e9, to rotate so many networks; with `fit` also to find the axes. */
double wf_principal_work(const wf_graph *graph, size_t count, bool fit);

/* Finds the axes of weights (count, n_params). WF_ERR_INPUT: too few rows to estimate them. */
wf_status wf_principal_fit(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                           wf_principal_task *task, wf_principal *out);
/* In place, onto the axes and back. Both do nothing where width is 0. After an interruption some
 * rows are rotated and some are not. */
wf_status wf_principal_apply(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                             float *weights, size_t count, wf_principal_task *task);
wf_status wf_principal_invert(wf_ctx *ctx, const wf_principal *principal, const wf_graph *graph,
                              float *weights, size_t count);

/* How long the rows of graph's first layer are. */
int wf_principal_width(const wf_graph *graph);
/* Which parameters of a network lie along the axes; the variances are borrowed. */
wf_axes wf_principal_axes(const wf_principal *principal, const wf_graph *graph);
