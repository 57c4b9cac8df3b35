/* layer_costs: how much an error in a layer's weights costs.
 *
 * The cost of a layer is the mean squared change of the logits, less their mean over the outputs,
 * when the layer's parameters get noise of half their standard deviation. Inputs are standard
 * normal, so no data are needed. It is a mean over the first networks of a collection and has the
 * same value in every run that is fitted to it. */
#pragma once

#include "base/status.h"
#include "weft/graph.h"
#include "weft/zoo.h"

/* cost (graph->n_blocks): that of each block's layer. graph: the zoo's, or it with its first layer
 * folded. WF_ERR_INPUT: no layer moves the outputs. */
wf_status wf_layer_costs(wf_ctx *ctx, const wf_zoo *zoo, const wf_graph *graph, double *cost);
