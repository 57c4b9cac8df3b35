/* zoo_info_units: see the header.
 *
 * A node's forward hash is the sum, over its incoming edges, of a mixture of (block, weight
 * bits, hash of the source). Fixed nodes start from their place, hidden ones from their group
 * alone; blocks are taken in flat order. Sums modulo 2^64 do not depend on the order of terms,
 * so relabelling an orbit permutes its hashes and changes no other. The backward hash starts
 * from the forward one and does the same along outgoing edges: it tells apart units with equal
 * inputs and different uses. */
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
    wf_status status =
        wf_alloc(ctx, (size_t)graph->n_groups, sizeof *out->start, "node groups", &out->start);
    for (int g = 0; status == WF_OK && g < graph->n_groups; g++) {
        bool own = graph->groups[g].units == g;
        out->start[g] = own ? out->nodes : out->start[graph->groups[g].units];
        if (own) out->nodes += (size_t)graph->groups[g].n;
    }
    if (status == WF_OK)
        status = wf_alloc(ctx, out->nodes, sizeof *out->forward, "node hashes", &out->forward);
    if (status == WF_OK)
        status = wf_alloc(ctx, out->nodes, sizeof *out->backward, "node hashes", &out->backward);
    if (status == WF_OK)
        status = wf_alloc(ctx, out->nodes, sizeof *out->before, "node hashes", &out->before);
    if (status == WF_OK)
        status = wf_alloc(ctx, out->nodes, sizeof *out->order, "node order", &out->order);
    if (status != WF_OK) wf_units_free(out);
    return status;
}

void wf_units_free(wf_units *units) {
    free(units->start);
    free(units->forward);
    free(units->backward);
    free(units->before);
    free(units->order);
    *units = (wf_units){0};
}

uint64_t wf_exact_hash(const float *w, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += mix((uint64_t)bits_of(w[i]) << 32 ^ mix(i + 1));
    return sum;
}

/* Adds to the hashes of one end of a block what the other end sends along its edges. The senders'
 * hashes are kept apart: a block may join a group to itself. */
static void hash_block(wf_units *units, const float *w, int b, uint64_t *hash, bool forwards) {
    const wf_graph *graph = units->graph;
    const wf_block *block = &graph->blocks[b];
    const float *entry = w + block->offset;
    int n_dst = graph->groups[block->dst].n, n_src = graph->groups[block->src].n;
    uint64_t *dst = hash + units->start[block->dst], *src = hash + units->start[block->src];
    memcpy(units->before, forwards ? src : dst,
           (size_t)(forwards ? n_src : n_dst) * sizeof *units->before);
    for (int i = 0; i < n_dst; i++)
        for (int j = 0; j < n_src; j++)
            for (int k = 0; k < block->coef; k++) {
                uint64_t *to = forwards ? &dst[i] : &src[j];
                *to += edge_hash(b, *entry++, k, units->before[forwards ? j : i]);
            }
}

static void hash_forward(wf_units *units, const float *w) {
    const wf_graph *graph = units->graph;
    for (int g = 0; g < graph->n_groups; g++)
        for (int i = 0; graph->groups[g].units == g && i < graph->groups[g].n; i++)
            units->forward[units->start[g] + (size_t)i] =
                mix((uint64_t)g << 32 | (graph->groups[g].orbit < 0 ? (uint64_t)i + 1 : 0));
    for (int b = 0; b < graph->n_blocks; b++) hash_block(units, w, b, units->forward, true);
}

static void hash_backward(wf_units *units, const float *w) {
    memcpy(units->backward, units->forward, units->nodes * sizeof *units->backward);
    for (int b = units->graph->n_blocks; b-- > 0;) hash_block(units, w, b, units->backward, false);
}

uint64_t wf_orderless_hash(wf_units *units, const float *w) {
    hash_forward(units, w);
    uint64_t sum = 0;
    for (size_t i = 0; i < units->nodes; i++) sum += mix(units->forward[i]);
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
        if (graph->groups[g].orbit < 0 || graph->groups[g].units != g) continue;
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

/* Whether a layer that has these units normalises over all units: then each one matters. */
static bool mixes_units(const wf_graph *graph, int units) {
    for (int l = 0; l < graph->n_layers; l++)
        if (graph->layers[l].norm == WF_NORM_LAYER && graph->groups[l + 1].units == units)
            return true;
    return false;
}

static bool outgoing_zero(const wf_graph *graph, const float *w, int group, int unit) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (graph->groups[block->src].units != group) continue;
        size_t row = (size_t)graph->groups[group].n * (size_t)block->coef;
        for (int k = 0; k < block->coef; k++)
            if (!entries_are(w + block->offset + (size_t)(unit * block->coef + k),
                             (size_t)graph->groups[block->dst].n, row, all_zero))
                return false;
    }
    return true;
}

static wf_activation activation_of(const wf_graph *graph, int group) {
    return group >= 1 && group <= graph->n_layers ? graph->layers[group - 1].activation
                                                  : WF_ACT_IDENTITY;
}

/* Weights and bias that keep the unit at zero, given that its inputs are not negative or that all
 * weights are zero. Not used for units that a norm or a residual connection changes. */
static bool always_zero(const wf_graph *graph, const float *w, int group, int unit) {
    wf_activation own = activation_of(graph, group);
    if (own == WF_ACT_SIGMOID || graph->layers[group - 1].norm != WF_NORM_NONE) return false;
    for (int g = group + 1; g <= graph->n_layers; g++)
        if (graph->groups[g].units == group) return false;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->dst != group) continue;
        bool one_sided = own == WF_ACT_RELU && (block->kind != WF_BLOCK_WEIGHT ||
                                                activation_of(graph, block->src) == WF_ACT_RELU);
        size_t row = (size_t)graph->groups[block->src].n * (size_t)block->coef;
        if (!entries_are(w + block->offset + (size_t)unit * row, row, 1,
                         one_sided ? none_positive : all_zero))
            return false;
    }
    return true;
}

size_t wf_dead_units(const wf_graph *graph, const float *w) {
    size_t dead = 0;
    for (int g = 1; g <= graph->n_layers; g++) {
        const wf_group *group = &graph->groups[g];
        if (group->orbit < 0 || group->units != g || mixes_units(graph, g)) continue;
        for (int u = 0; u < group->n; u++)
            dead += outgoing_zero(graph, w, g, u) || always_zero(graph, w, g, u);
    }
    return dead;
}
