/* edge_bundles: the edges of a part in groups of eight rows, for kernels that keep an edge's whole way in registers.
 *
 * An octet is up to 8 edges that share one end, node b, and run over consecutive nodes a at the other end:
 *     edge k = row first + k*stride, between nodes a0 + k and b,  k < count
 * Rows stay where they are. Blocks are dense and dst-major, so octets whose a is the source have stride 1, those whose a
 * is the destination stride n_src; each block takes the direction that needs fewer octets.
 *
 * Two octets are a pair: the same graph, a0 and direction, so both count rows of the same a (the second one may be
 * padding, count 0; all its other fields are valid, so loads need no test). 16 rows a warp, four warps a tile of 64 rows.
 * A run is up to 2 pairs over the same a, cut by the graph alone; it is the unit of sums towards a, which may stay in the
 * warp from the pair that `begins` to the one that `ends`. Whole runs, as they fit, make strands of `steps` pairs (padding
 * at the end), dealt to the warps of a chunk in turn, so that they work on the same nodes a at a time; strand 4c + w is
 * warp w of chunk c. Warp w of the warpgroup that works on chunk c takes at step t
 *     pair p = (4c + w) * steps + t,   octets 2p and 2p + 1
 * That is part->octets. part->lines are the same for kernels whose warpgroup sums towards a as a whole: a chunk is one
 * strand, at step t of it the warpgroup takes the pairs p = c * steps + 4t + 0..3, one a warp (behind the strand's last:
 * none). Runs are longer, so there are fewer slots. They are cut for two warpgroups a multiprocessor.
 * part->strands are like part->octets, with longer runs; [0] is cut for four warpgroups a multiprocessor, [1] for three.
 *
 * Sums over edges leave the kernel as slots, rows of one buffer (wf_octets_slots(o), width):
 *     row o                 sum over octet o, towards its b
 *     row n_octets + 8r+k   sum over run r, towards its node a0 + k
 * slots[slot_start[2n] .. slot_start[2n+1]) are the rows of node n as destination, from there to slot_start[2n+2] those as
 * source, in the graph's order. Sums over a graph's edges leave as one row per run; runs graph_runs[g] .. graph_runs[g+1]
 * are graph g's. Whoever adds in the order of the lists gets the same bits every time, and for a graph the same bits
 * whatever its neighbours in the batch and whatever the number of multiprocessors. */
#ifndef WF_MODELS_EDGE_BUNDLES_H
#define WF_MODELS_EDGE_BUNDLES_H

#include "tensor/tape.h"

enum {
    WF_OCTET = 8,
    WF_OCTET_WARPS = 4,
    WF_OCTET_RUN = 2,
    /* Chunks a part is cut into at most, for each multiprocessor: four warpgroups, or two that take two chunks. */
    WF_OCTET_CHUNKS = 4,
    /* Of lines: pairs of a run. Chunks of lines and of strands at most: two and three warpgroups a multiprocessor. */
    WF_OCTET_LINE_RUN = 8,
    WF_OCTET_LINES = 2,
    WF_OCTET_STRANDS_OF_3 = 3,
    /* Of strands: pairs of a run, so that few strands stay short: a layer of 64 inputs and a bias is 33 pairs. */
    WF_OCTET_STRAND_RUN_OF_4 = 5,
    WF_OCTET_STRAND_RUN_OF_3 = 7
};

typedef struct wf_octet {
    int32_t first, stride; /* rows of the edge stream */
    int32_t a0, b;         /* nodes */
    int32_t graph;
    int32_t run;
    uint8_t count;        /* edges; 0: padding */
    uint8_t from_a;       /* 1: a is the source and b the destination; 0: the other way round */
    uint8_t begins, ends; /* the first, the last pair of its run; 0 in padding pairs */
    float share;          /* 1 / edges of the graph */
} wf_octet;               /* 32 bytes: two 16-byte loads */

typedef struct wf_octets {
    int n_octets; /* 2 * steps * strands, padding included */
    int n_chunks, steps, n_runs;
    const wf_octet *octets;     /* these four in the backend's memory */
    const uint32_t *slot_start; /* [2 * n_nodes + 1] */
    const uint32_t *slots;
    const uint32_t *graph_runs; /* [n_graphs + 1] */
} wf_octets;

static inline size_t wf_octets_slots(const wf_octets *octets) {
    return (size_t)octets->n_octets + (size_t)octets->n_runs * WF_OCTET;
}

/* Sets part->octets and part->lines, which live as long as the tape's records. blocks: the host's copy of part->blocks; n_nodes,
 * n_graphs, n_blocks and first_* of the part are set. first_graph: what the blocks call the part's first graph.
 * processors: multiprocessors of the device. Failure is the tape's. */
void wf_octets_build(wf_tape *tape, wf_part *part, const wf_batch_block *blocks, int first_graph,
                     int processors);

#endif
