/* draw_parts: what kernels that draw batches share: deviates of a stream, and relabelled hidden
 * units. Files that include this are compiled without contraction of multiply and add, so numbers
 * have the bits of the CPU's. */
#pragma once

#include <vector>

extern "C" {
#include "base/random.h"
#include "weft/graph.h"
}

namespace wf_batch_gpu {

/* Deviates 4 * block .. 4 * block + 3 of the stream (seed, network, purpose, step). */
static __device__ inline void four_deviates(uint64_t seed, uint32_t network, uint32_t purpose,
                                            uint32_t step, uint32_t block, float out[4]) {
    uint32_t counter[4] = {block, step, network, purpose}, word[4];
    wf_philox(counter, seed, word);
    wf_box_muller(word[0], word[1], &out[0], &out[1]);
    wf_box_muller(word[2], word[3], &out[2], &out[3]);
}

/* One of them. */
static __device__ inline float deviate(uint64_t seed, uint32_t network, uint32_t purpose,
                                       uint32_t step, uint32_t index) {
    uint32_t counter[4] = {index / 4, step, network, purpose}, word[4];
    wf_philox(counter, seed, word);
    int pair = index % 4 / 2 * 2;
    float x, y;
    wf_box_muller(pair ? word[2] : word[0], pair ? word[3] : word[1], &x, &y);
    return index % 2 ? y : x;
}

/* A parameter block as a relabelling sees it. */
struct relabel {
    uint32_t offset, count;
    int n_src, coef;
    int dst, src; /* first unit of either end's orbit in a relabelling; -1: nodes that stay */
};

static inline std::vector<relabel> relabel_blocks(const wf_graph *graph) {
    std::vector<relabel> out;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        int dst = graph->groups[block->dst].orbit, src = graph->groups[block->src].orbit;
        out.push_back({(uint32_t)block->offset, (uint32_t)block->count, graph->groups[block->src].n,
                       block->coef, dst < 0 ? -1 : (int)wf_graph_perm_start(graph, dst),
                       src < 0 ? -1 : (int)wf_graph_perm_start(graph, src)});
    }
    return out;
}

/* In from[u]: unit u has its signs flipped where it comes to. */
static const uint32_t flipped_unit = 1u << 31;

/* Index of the parameter that comes to place i where unit u of an orbit comes from from[u].
 * flipped: whether its sign changes; NULL: no unit is flipped. */
static __device__ inline uint32_t relabelled(const relabel *blocks, int n_blocks,
                                             const uint32_t *from, uint32_t i,
                                             bool *flipped = NULL) {
    int low = 0, high = n_blocks - 1; /* the block that holds i */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (blocks[middle].offset <= i) low = middle;
        else high = middle - 1;
    }
    relabel k = blocks[low];
    uint32_t edge = (i - k.offset) / (uint32_t)k.coef, rest = (i - k.offset) % (uint32_t)k.coef;
    uint32_t dst = edge / (uint32_t)k.n_src, src = edge % (uint32_t)k.n_src;
    if (k.dst >= 0) dst = from[k.dst + dst];
    if (k.src >= 0) src = from[k.src + src];
    if (flipped != NULL) {
        *flipped = ((dst ^ src) & flipped_unit) != 0;
        dst &= ~flipped_unit, src &= ~flipped_unit;
    }
    return k.offset + (dst * (uint32_t)k.n_src + src) * (uint32_t)k.coef + rest;
}

} // namespace wf_batch_gpu
