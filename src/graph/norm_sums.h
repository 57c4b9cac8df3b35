/* norm_sums: wf_norm_fit in steps, for networks that are not in memory together. Sums are in
 * double, block by block, over the networks in order, so the bits do not depend on how many
 * networks a call has. */
#pragma once

#include "weft/graph.h"

/* sums [n_blocks] += values of weights (count, n_params); with mean [n_blocks] the squares of their
 * distances from it. */
void wf__norm_add(const wf_graph *graph, const float *weights, size_t count, const double *mean,
                  double *sums);
/* Sums over `count` networks to means, in place. */
void wf__norm_means(const wf_graph *graph, size_t count, double *sums);
/* WF_ERR_INPUT: a block holds values that are not finite. */
wf_status wf__norm_finish(wf_ctx *ctx, const wf_graph *graph, size_t count, const double *mean,
                          const double *squares, wf_norm *out);
