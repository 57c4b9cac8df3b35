/* zoo_info_units: see the header.
 *
 * A node's forward hash is the sum, over its incoming edges, of a mixture of (block, weight bits, hash of the source);
 * fixed nodes start from their place, hidden ones from their group alone. Sums modulo 2^64 do not depend on the order of
 * terms, so relabelling a hidden group permutes its hashes and changes no other. The backward hash starts from the
 * forward one and does the same along outgoing edges; it tells apart units with equal inputs and different uses. */
#include "zoo/zoo_info_units.h"

#include <stdlib.h>
#include <string.h>

/* Finaliser of splitmix64: every bit of the input reaches every bit of the output. */
static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t edge_hash(int block, float weight, int coefficient, uint64_t node) {
    return mix(node + mix((uint64_t)bits_of(weight) << 32 | (uint64_t)block << 16 |
                          (uint64_t)(coefficient + 1)));
}

wf_status wf_units_create(wf_ctx *ctx, const wf_graph *graph, wf_units *out) {
    *out = (wf_units){.graph = graph};
    size_t nodes = 0;
    wf_status status =
        wf_alloc(ctx, (size_t)graph->n_groups, sizeof *out->start, "node groups", &out->start);
    for (int g = 0; status == WF_OK && g < graph->n_groups; g++) {
        out->start[g] = nodes;
        nodes += (size_t)graph->groups[g].n;
    }
    if (status == WF_OK)
        status = wf_alloc(ctx, nodes, sizeof *out->forward, "node hashes", &out->forward);
    if (status == WF_OK)
        status = wf_alloc(ctx, nodes, sizeof *out->backward, "node hashes", &out->backward);
    if (status == WF_OK)
        status = wf_alloc(ctx, nodes, sizeof *out->order, "node order", &out->order);
    if (status != WF_OK) wf_units_free(out);
    return status;
}

void wf_units_free(wf_units *units) {
    free(units->start);
    free(units->forward);
    free(units->backward);
    free(units->order);
    *units = (wf_units){0};
}

uint64_t wf_exact_hash(const float *w, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += mix((uint64_t)bits_of(w[i]) << 32 ^ mix(i + 1));
    return sum;
}

/* Blocks stand in layer order: all edges into a group come before those out of it. */
static void hash_forward(wf_units *units, const float *w) {
    const wf_graph *graph = units->graph;
    for (int g = 0; g < graph->n_groups; g++)
        for (int i = 0; i < graph->groups[g].n; i++)
            units->forward[units->start[g] + (size_t)i] =
                mix((uint64_t)g << 32 | (graph->groups[g].orbit < 0 ? (uint64_t)i + 1 : 0));
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        const float *entry = w + block->offset;
        const uint64_t *from = units->forward + units->start[block->src];
        uint64_t *to = units->forward + units->start[block->dst];
        for (int i = 0; i < graph->groups[block->dst].n; i++)
            for (int j = 0; j < graph->groups[block->src].n; j++)
                for (int k = 0; k < block->coef; k++) to[i] += edge_hash(b, *entry++, k, from[j]);
    }
}

static void hash_backward(wf_units *units, const float *w) {
    const wf_graph *graph = units->graph;
    for (int g = 0; g < graph->n_groups; g++)
        for (int i = 0; i < graph->groups[g].n; i++)
            units->backward[units->start[g] + (size_t)i] =
                units->forward[units->start[g] + (size_t)i];
    for (int b = graph->n_blocks; b-- > 0;) {
        const wf_block *block = &graph->blocks[b];
        const float *entry = w + block->offset;
        const uint64_t *from = units->backward + units->start[block->dst];
        uint64_t *to = units->backward + units->start[block->src];
        for (int i = 0; i < graph->groups[block->dst].n; i++)
            for (int j = 0; j < graph->groups[block->src].n; j++)
                for (int k = 0; k < block->coef; k++) to[j] += edge_hash(b, *entry++, k, from[i]);
    }
}

uint64_t wf_orderless_hash(wf_units *units, const float *w) {
    const wf_graph *graph = units->graph;
    hash_forward(units, w);
    uint64_t sum = 0;
    for (int g = 0; g < graph->n_groups; g++)
        for (int i = 0; i < graph->groups[g].n; i++)
            sum += mix(units->forward[units->start[g] + (size_t)i]);
    return sum;
}

static int by_hash(const void *a_, const void *b_, void *hashes) {
    uint32_t a = *(const uint32_t *)a_, b = *(const uint32_t *)b_;
    const uint64_t *hash = hashes;
    if (hash[a] != hash[b]) return hash[a] < hash[b] ? -1 : 1;
    return (a > b) - (a < b);
}

wf_status wf_canonical(wf_ctx *ctx, wf_units *units, const float *w, float *out) {
    const wf_graph *graph = units->graph;
    uint32_t *perm = NULL;
    WF_TRY(wf_alloc(ctx, wf_graph_perm_size(graph), sizeof *perm, "permutation", &perm));
    hash_forward(units, w);
    hash_backward(units, w);
    for (int g = 0; g < graph->n_groups; g++) {
        if (graph->groups[g].orbit < 0) continue;
        uint32_t n = (uint32_t)graph->groups[g].n;
        for (uint32_t u = 0; u < n; u++) units->order[u] = u;
        qsort_r(units->order, n, sizeof *units->order, by_hash, units->backward + units->start[g]);
        uint32_t *place = perm + wf_graph_perm_start(graph, graph->groups[g].orbit);
        for (uint32_t rank = 0; rank < n; rank++) place[units->order[rank]] = rank;
    }
    wf_graph_permute(graph, perm, w, out);
    free(perm);
    return WF_OK;
}

/* --- dead units ------------------------------------------------------------------------------- */

typedef enum sign_test { all_zero, none_positive } sign_test;

static bool entries_are(const float *entry, size_t count, size_t stride, sign_test test) {
    for (size_t i = 0; i < count; i++) {
        float value = entry[i * stride];
        if (test == all_zero ? value != 0 : !(value <= 0)) return false; /* NaN is neither */
    }
    return true;
}

static bool outgoing_zero(const wf_graph *graph, const float *w, int group, int unit) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->src != group) continue;
        size_t row = (size_t)graph->groups[group].n * (size_t)block->coef;
        for (int k = 0; k < block->coef; k++)
            if (!entries_are(w + block->offset + (size_t)(unit * block->coef + k),
                             (size_t)graph->groups[block->dst].n, row, all_zero))
                return false;
    }
    return true;
}

/* Weights and bias that keep the unit at zero, given that its inputs are not negative or that all weights are zero. */
static bool always_zero(const wf_graph *graph, const float *w, int group, int unit) {
    bool relu = graph->activation == WF_ACT_RELU;
    if (graph->activation == WF_ACT_SIGMOID) return false;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->dst != group) continue;
        bool weight = block->kind == WF_BLOCK_WEIGHT;
        bool from_relu = relu && graph->groups[block->src].kind == WF_GROUP_HIDDEN;
        sign_test test = (weight ? from_relu : relu) ? none_positive : all_zero;
        size_t row = (size_t)graph->groups[block->src].n * (size_t)block->coef;
        if (!entries_are(w + block->offset + (size_t)unit * row, row, 1, test)) return false;
    }
    return true;
}

size_t wf_dead_units(const wf_graph *graph, const float *w) {
    size_t dead = 0;
    for (int g = 0; g < graph->n_groups; g++)
        for (int u = 0; graph->groups[g].kind == WF_GROUP_HIDDEN && u < graph->groups[g].n; u++)
            dead += outgoing_zero(graph, w, g, u) || always_zero(graph, w, g, u);
    return dead;
}
