/* partial_sums: adds the slots that edge kernels leave behind (models/edge_bundles.h), per node and per graph.
 *
 *   edge kernel:  octet o -> row o;  run r -> rows n_octets + 8r + 0..7          slots (wf_octets_slots(o), ld)
 *   node_slot_sums:   to[n] = [to[n] +] sum of n's rows in list order [/ degree]
 *   graph_run_sums:   to[g] = [to[g] +] sum of the rows of g's runs in order [/ edges]
 * Rows of padding and of lanes without an edge are not in any list: they may be left unwritten. */
#ifndef WF_MODELS_CUDA_GMN_EDGES_PARTIAL_SUMS_CUH
#define WF_MODELS_CUDA_GMN_EDGES_PARTIAL_SUMS_CUH

#include "tensor/cuda/runtime/op_kernels.cuh"

extern "C" {
#include "models/edge_bundles.h"
}

namespace wf_gpu {

/* Which of a node's slots: of edges where it is the destination, the source, or both in this order. */
enum slot_ends { slots_as_dst = 1, slots_as_src = 2, slots_of_both = 3 };

/* ld, ld_to and the addresses: multiples of 4 reals; cols any. Columns cols .. ld_to-1 are left alone (added to nothing)
 * unless `set`, which writes zeros there (T1). */
struct slot_sum_step {
    const wf_part *part;
    const float *slots;
    int ld, cols;
    int ends;            /* slot_ends; of node sums */
    const float *degree; /* of node sums: divide by it; NULL: no */
    bool mean;           /* of graph sums: divide by the graph's edges */
    float *to;
    int ld_to;
    bool set;            /* overwrite; else add */
    const wf_octets *of; /* whose slots; NULL: part->octets */
};
void node_slot_sums(const slot_sum_step &step);
/* slots (n_runs, ld) here: one row a run. */
void graph_run_sums(const slot_sum_step &step);

/* The same for slots in bf16, one or two targets in one launch. cols: of the slots, whole eights; to: 16-byte aligned. */
struct half_sum_target {
    const uint16_t *slots;
    float *to; /* NULL: left out */
    int ends;  /* slot_ends */
    bool set;  /* overwrite; else add */
};
struct half_sum_step {
    const wf_part *part;
    half_sum_target of[2];
    int cols, ld_to;
    const float *degree;    /* divide by it; NULL: no */
    const wf_octets *table; /* whose slots; NULL: part->octets */
};
/* graph: sums of runs (graph_run_sums) in the same launch. */
void node_half_sums(const half_sum_step &step, const slot_sum_step *graph = NULL);

/* Slots of sums by weights exp(logit - top), in fp32; tops[slot] = (top, the largest logit; the sum of weights). Joins those of a
 * node into sums by softmax weights over all of them: as dst to to[0], as src to to[1] (NULL: to[0] too). saved (2, N): the largest
 * logit, the sum of weights; a node without slots has zeros. cols: whole fours. graph: as above. */
struct softmax_sum_step {
    const wf_part *part;
    const float *slots;
    const float2 *tops;
    float *to[2];
    int cols, ld_to;
    float *saved;
    const wf_octets *table;
};
void node_softmax_sums(const softmax_sum_step &step, const slot_sum_step &graph);

} // namespace wf_gpu
#endif
