/* match: what the plain and the fast weight matching share: the order of visits and the starts. */
#pragma once

#include "base/status.h"
#include "weft/align.h"

/* A matching is kept as `from`, orbits one after another as in a permutation: b's unit
 * from[start + place] stands at a's place. wf_graph_permute wants the inverse, unit -> place. */
void wf__match_to_perm(const wf_graph *graph, const uint32_t *from, uint32_t *perm);

/* Where a restart begins: 0 the identity, others uniform permutations of stream (seed, restart,
 * UINT32_MAX). */
void wf__match_start(const wf_graph *graph, uint64_t seed, uint32_t restart, uint32_t *from);

/* The order in which sweep `sweep` visits the orbits: order[n_orbits]. */
void wf__match_order(const wf_graph *graph, uint64_t seed, uint32_t restart, uint32_t sweep,
                     uint32_t *order);

/* Whether `pairs` pairs are to be matched on the GPU; warns when one was asked for and these
 * networks do not fit there. */
wf_status wf__match_on_gpu(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           double pairs, bool *out);

wf_status wf__match_check(wf_ctx *ctx, const wf_match_desc *desc);

/* Nodes of an orbit. */
int wf__orbit_size(const wf_graph *graph, int orbit);

/* Running statistics move with their units, but do not take part in the matching. */
static inline bool wf__block_matched(const wf_graph *graph, int block) {
    return wf_block_trained(&graph->blocks[block]);
}

/* Whether a block joins the orbit to itself. Its gain is not linear in the assignment. */
bool wf__orbit_has_loop(const wf_graph *graph, int orbit);

/* A block seen from one of its ends: entry (unit of that end, unit of the other end, k) is
 * w[offset + unit*unit_step + other*other_step + k]. */
typedef struct wf_block_side {
    int n, n_other, coef;
    int orbit, other_orbit; /* -1: fixed nodes */
    size_t offset, unit_step, other_step;
} wf_block_side;
enum { WF_SIDE_DST, WF_SIDE_SRC, WF_SIDES };
wf_block_side wf__block_side(const wf_graph *graph, int block, int side);
