/* zoo_info_units: what the hidden units of one network say: hashes that do not depend on their
 * order, a canonical order, units that cannot matter. Works on any graph of groups and blocks. */
#pragma once

#include "base/status.h"
#include "weft/graph.h"

/* Scratch memory for one thread: a hash for each node, forwards and backwards, and an order of
 * the nodes of a group. */
typedef struct wf_units {
    const wf_graph *graph;
    size_t *start; /* first node of each group; groups with the same units share theirs */
    uint64_t *forward, *backward, *before;
    uint32_t *order;
    size_t nodes;
} wf_units;
wf_status wf_units_create(wf_ctx *ctx, const wf_graph *graph, wf_units *out);
void wf_units_free(wf_units *units);

/* Equal for equal bits. */
uint64_t wf_exact_hash(const float *w, size_t n);
/* Equal for networks that differ only in the order of hidden units. */
uint64_t wf_orderless_hash(wf_units *units, const float *w);
/* The network with each hidden group in a canonical order. Networks that differ only in the order
 * of units give the same bits, unless two units have the same hash: then the results may differ,
 * and the pair is not found. */
wf_status wf_canonical(wf_ctx *ctx, wf_units *units, const float *w, float *out);

/* Hidden units that cannot change the output, whatever the input:
 *   all outgoing weights are zero; or the unit itself is always zero, because
 *   all incoming weights are zero and the activation of its bias is zero, or
 *   relu, fed by relu units alone, no incoming weight and no bias above zero. */
size_t wf_dead_units(const wf_graph *graph, const float *w);
