/* partial_sums: adds the partial sums that edge kernels leave (models/edge_bundles.h), per node and
 * per graph.
 *
 *   edge kernel          bundle i -> row i; segment s -> rows n_bundles + 8s + 0..7
 *                        of partials (wf_partial_rows(table), ld)
 *   node_partial_sums    to[n] = [to[n] +] sum of n's rows in list order [/ degree]
 *   graph_segment_sums   to[g] = [to[g] +] sum of the rows of g's segments in order [/ edges]
 * Rows of padding and of lanes without an edge are in no list: they need not be written. */
#pragma once

#include "tensor/cuda/runtime/op_kernels.cuh"

extern "C" {
#include "models/edge_bundles.h"
}

namespace wf_gpu {

/* Which partial sums of a node: of edges where it is the destination, the source, or both in this
 * order. */
enum partial_ends { partials_as_dst = 1, partials_as_src = 2, partials_of_both = 3 };

/* ld, ld_to and the addresses are multiples of 4 reals; cols is any. Columns cols .. ld_to-1 are
 * left alone, unless `set`, which writes zeros there (T1). */
struct partial_sum_args {
    const wf_part *part;
    const float *partials;
    int ld, cols;
    int ends;            /* partial_ends, for sums of nodes */
    const float *degree; /* divisor for sums of nodes; NULL: none */
    bool mean;           /* sums of graphs: divide by the graph's edges */
    float *to;
    int ld_to;
    bool set;                  /* overwrite; else add */
    const wf_bundle_table *of; /* NULL: part->bundles[WF_CUT_SHORT] */
};
void node_partial_sums(const partial_sum_args &step);
/* Here partials are (n_segments, ld): one row a segment. */
void graph_segment_sums(const partial_sum_args &step);

/* The same for partial sums in bf16, with one or two targets in one launch. cols is a multiple of
 * 8; to is 16-byte aligned. */
struct half_sum_target {
    const uint16_t *partials;
    float *to; /* NULL: no such target */
    int ends;  /* partial_ends */
    bool set;  /* overwrite; else add */
};
struct half_sum_args {
    const wf_part *part;
    half_sum_target of[2];
    int cols, ld_to;
    const float *degree;          /* divisor; NULL: none */
    const wf_bundle_table *table; /* NULL: part->bundles[WF_CUT_SHORT] */
};
/* graph: sums of segments (graph_segment_sums) in the same launch. */
void node_half_sums(const half_sum_args &step, const partial_sum_args *graph = NULL);

/* Partial sums with weights exp(logit - top), in fp32; tops[row] = (top, the largest logit; the sum
 * of weights). Combines those of a node into sums with softmax weights over all of them: as dst to
 * to[0], as src to to[1] (NULL: also to to[0]). saved (2, N): the largest logit, the sum of
 * weights; zeros for a node without partial sums. cols is a multiple of 4. graph: as above. */
struct softmax_sum_args {
    const wf_part *part;
    const float *partials;
    const float2 *tops;
    float *to[2];
    int cols, ld_to;
    float *saved;
    const wf_bundle_table *table;
};
void node_softmax_sums(const softmax_sum_args &step, const partial_sum_args &graph);

} // namespace wf_gpu
