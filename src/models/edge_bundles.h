/* edge_bundles: the edges of a part in groups of eight, for kernels that keep an edge in registers.
 *
 * A bundle is up to 8 edges with one end in common, node b; their other ends are consecutive nodes
 * a:
 *     edge k = row first + k*stride, between nodes a0 + k and b,  k < count
 * The rows of edges stay where they are. Blocks are dense and dst-major, so a bundle whose a is the
 * source has stride 1, and one whose a is the destination has stride n_src. Each block takes the
 * direction that needs fewer bundles.
 *
 * Pair: two bundles of the same graph, a0 and direction, so both have rows of the same nodes a. A
 * warp works on a pair at a time: 16 rows. The second bundle may be padding (count 0); its other
 * fields are valid, so kernels load them without a test. Four pairs are a tile of 64 rows. Segment:
 * consecutive pairs over the same nodes a, cut by the graph alone. A warp adds up a segment towards
 * its nodes a, from the pair that `begins` to the one that `ends`. List: whole segments that one
 * warp takes, `list_length` pairs (padding at the end). Task: what a warpgroup takes at a time, a
 * list for each of its four warps. Segments are given to the warps alternately, so that they work
 * on the same nodes a at the same time. List 4t + w belongs to warp w of task t, which takes at its
 * step s
 *     pair p = (4t + w) * list_length + s,   bundles 2p and 2p + 1
 *
 * A part has several tables, which differ in the length of segments and the number of tasks
 * (wf_cut):
 *     WF_CUT_SHORT   segments of 2 pairs; 4 tasks a multiprocessor
 *     WF_CUT_GROUP   segments of 8 pairs; 2 tasks a multiprocessor. For kernels whose warpgroup
 *                    sums towards a as a whole: a task has one list, and the warpgroup takes the
 *                    pairs p = t * list_length + 4s + 0..3 at step s, one a warp
 *     WF_CUT_LONG_4  segments of 5 pairs; 4 tasks a multiprocessor. Few segments stay short: a
 *                    layer of 64 inputs and a bias has 33 pairs
 *     WF_CUT_LONG_3  segments of 7 pairs; 3 tasks a multiprocessor
 *
 * Sums over edges leave a kernel as partial sums, rows of one buffer (wf_partial_rows(t), width):
 *     row i                   sum over bundle i, towards its b
 *     row n_bundles + 8s + k  sum over segment s, towards its node a0 + k
 * partials[partial_start[2n] .. partial_start[2n+1]) are the rows of node n as destination, from
 * there to partial_start[2n+2] those as source, in the order of the graph. Sums over the edges of a
 * graph leave as one row per segment; segments graph_segments[g] .. graph_segments[g+1] belong to
 * graph g. Adding in the order of these lists gives the same bits every time, and a graph the same
 * bits whatever its neighbours in the batch and the number of multiprocessors. */
#pragma once

#include "tensor/tape.h"

enum {
    WF_BUNDLE = 8,      /* edges */
    WF_GROUP_WARPS = 4, /* of a warpgroup */
    WF_LONGEST_SEGMENT = 8
};

typedef struct wf_bundle {
    int32_t first, stride; /* rows of the edge stream */
    int32_t a0, b;         /* nodes */
    int32_t graph;
    int32_t segment;
    uint8_t count;        /* edges; 0: padding */
    uint8_t from_a;       /* 1: a is the source and b the destination; 0: the other way round */
    uint8_t begins, ends; /* the first, the last pair of its segment; 0 in padding pairs */
    float inv_edges;      /* 1 / edges of the graph */
} wf_bundle;              /* 32 bytes: two 16-byte loads */

typedef struct wf_bundle_table {
    int n_bundles; /* of all lists, padding included */
    int n_tasks, list_length, n_segments;
    const wf_bundle *bundles;      /* these four in the backend's memory */
    const uint32_t *partial_start; /* [2 * n_nodes + 1] */
    const uint32_t *partials;
    const uint32_t *graph_segments; /* [n_graphs + 1] */
} wf_bundle_table;

static inline size_t wf_partial_rows(const wf_bundle_table *table) {
    return (size_t)table->n_bundles + (size_t)table->n_segments * WF_BUNDLE;
}

/* Sets part->bundles, which live as long as the tape's records. blocks: the host's copy of
 * part->blocks; n_nodes, n_graphs, n_blocks and first_* of the part are set. first_graph: what the
 * blocks call the part's first graph. processors: multiprocessors of the device. Failure is the
 * tape's. */
void wf_bundles_build(wf_tape *tape, wf_part *part, const wf_batch_block *blocks, int first_graph,
                      int processors);
