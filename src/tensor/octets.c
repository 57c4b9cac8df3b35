/* octets: builds the tables of tensor/octets.h on the host and hands them to the backend. */
#include "tensor/octets.h"

#include <assert.h>

static_assert(sizeof(wf_octet) == 32, "kernels load an octet as two times 16 bytes");

typedef struct builder {
    const wf_part *part;
    const wf_batch_block *blocks;
    int first_graph;
    wf_octet *octets; /* NULL: only counts */
    int n_octets;
} builder;

/* The nodes a block's octets run over: a contiguous range at one end. */
typedef struct axis {
    size_t a0;
    int count;
    bool from_a;
} axis;

static int octets_of(int count) { return (count + WF_OCTET - 1) / WF_OCTET; }

static axis axis_of(const wf_batch_block *block) {
    if ((size_t)octets_of(block->n_src) * (size_t)block->n_dst <
        (size_t)octets_of(block->n_dst) * (size_t)block->n_src)
        return (axis){block->src0, block->n_src, true};
    return (axis){block->dst0, block->n_dst, false};
}

static bool same_axis(axis x, axis y) {
    return x.a0 == y.a0 && x.count == y.count && x.from_a == y.from_a;
}

static void put(builder *b, wf_octet octet) {
    if (b->octets != NULL) b->octets[b->n_octets] = octet;
    b->n_octets++;
}

/* The octets of one block over nodes at .. at + 7 of its axis, one for each node of the other end. */
static void put_range(builder *b, const wf_batch_block *block, axis a, int at, float share) {
    int others = a.from_a ? block->n_dst : block->n_src;
    int across = a.from_a ? block->n_src : 1, along = a.from_a ? 1 : block->n_src;
    size_t b0 = a.from_a ? block->dst0 : block->src0;
    int left = a.count - at;
    for (int j = 0; j < others; j++)
        put(b, (wf_octet){.first = (int32_t)(block->edge0 - b->part->first_edge) + j * across +
                                   at * along,
                          .stride = along,
                          .a0 = (int32_t)(a.a0 - b->part->first_node) + at,
                          .b = (int32_t)(b0 - b->part->first_node) + j,
                          .graph = block->graph - b->first_graph,
                          .count = (uint8_t)(left < WF_OCTET ? left : WF_OCTET),
                          .from_a = a.from_a,
                          .share = share});
}

/* Blocks of one graph. Those over the same nodes (a layer and its bias) go together, so that their sums do. */
static void put_graph(builder *b, int first, int last) {
    size_t edges = 0;
    for (int k = first; k < last; k++)
        edges += (size_t)b->blocks[k].n_src * (size_t)b->blocks[k].n_dst;
    for (int k = first; k < last; k++) {
        axis a = axis_of(&b->blocks[k]);
        bool seen = false;
        for (int other = first; other < k; other++)
            seen |= same_axis(a, axis_of(&b->blocks[other]));
        for (int at = 0; !seen && at < a.count; at += WF_OCTET) {
            for (int other = k; other < last; other++)
                if (same_axis(a, axis_of(&b->blocks[other])))
                    put_range(b, &b->blocks[other], a, at, 1 / (float)edges);
            if (b->n_octets % 2 == 0) continue;
            wf_octet padding = {.count = 0};
            if (b->octets != NULL) padding = b->octets[b->n_octets - 1];
            padding.count = 0;
            put(b, padding);
        }
    }
}

static void put_all(builder *b) {
    int n = b->part->n_blocks;
    b->n_octets = 0;
    for (int first = 0, last; first < n; first = last) {
        for (last = first; last < n && b->blocks[last].graph == b->blocks[first].graph;) last++;
        put_graph(b, first, last);
    }
}

/* --- runs ------------------------------------------------------------------------------------------------- */
static bool same_run(const wf_octet *x, const wf_octet *y) {
    return x->graph == y->graph && x->a0 == y->a0 && x->count == y->count && x->from_a == y->from_a;
}

/* Numbers the runs of the first `pairs` pairs and marks where they begin and end; returns how many. */
static int mark_runs(wf_octet *octets, int pairs, int steps) {
    int runs = 0;
    for (int p = 0; p < pairs; p++) {
        wf_octet *pair = &octets[2 * p];
        bool begins = p % steps == 0 || !same_run(pair, pair - 2);
        bool ends = (p + 1) % steps == 0 || p + 1 == pairs || !same_run(pair, pair + 2);
        runs += begins;
        for (int k = 0; k < 2; k++) {
            pair[k].begins = begins;
            pair[k].ends = ends;
            pair[k].run = runs - 1;
        }
    }
    return runs;
}

/* --- who adds which slots ----------------------------------------------------------------------------------- */
/* Calls for every slot that holds something: its row, its node, and whether the node is the edges' source. */
typedef void slot_fn(void *of, uint32_t row, int node, bool source);

static void each_slot(const wf_octets *o, const wf_octet *octets, slot_fn *visit, void *of) {
    for (int k = 0; k < o->n_octets; k++)
        if (octets[k].count > 0) visit(of, (uint32_t)k, octets[k].b, !octets[k].from_a);
    for (int k = 0; k < o->n_octets; k += 2)
        for (int i = 0; octets[k].ends && i < octets[k].count; i++)
            visit(of, (uint32_t)(o->n_octets + WF_OCTET * octets[k].run + i), octets[k].a0 + i,
                  octets[k].from_a);
}

typedef struct lists {
    uint32_t *start, *rows;
} lists;

static void count_slot(void *of, uint32_t row, int node, bool source) {
    (void)row;
    ((lists *)of)->start[2 * node + source + 1]++;
}

/* start[k] is where list k goes on; afterwards it is where list k + 1 begins. */
static void put_slot(void *of, uint32_t row, int node, bool source) {
    lists *l = of;
    l->rows[l->start[2 * node + source]++] = row;
}

static void build_lists(wf_tape *tape, wf_octets *o, const wf_octet *octets, int nodes) {
    size_t n = 2 * (size_t)nodes, start_bytes = (n + 1) * sizeof(uint32_t);
    lists l = {.start = wf_tape_host(tape, start_bytes)};
    if (l.start == NULL) return;
    for (size_t k = 0; k <= n; k++) l.start[k] = 0;
    each_slot(o, octets, count_slot, &l);
    for (size_t k = 0; k < n; k++) l.start[k + 1] += l.start[k];
    size_t row_bytes = (size_t)l.start[n] * sizeof(uint32_t);
    l.rows = wf_tape_host(tape, row_bytes);
    if (l.rows == NULL) return;
    each_slot(o, octets, put_slot, &l);
    for (size_t k = n; k > 0; k--) l.start[k] = l.start[k - 1];
    l.start[0] = 0;
    o->slot_start = wf_tape_upload(tape, l.start, start_bytes);
    o->slots = wf_tape_upload(tape, l.rows, row_bytes);
}

static void build_graph_runs(wf_tape *tape, wf_octets *o, const wf_octet *octets, int graphs) {
    size_t bytes = ((size_t)graphs + 1) * sizeof(uint32_t);
    uint32_t *start = wf_tape_host(tape, bytes);
    if (start == NULL) return;
    for (int g = 0; g <= graphs; g++) start[g] = 0;
    for (int k = 0; k < o->n_octets; k += 2)
        if (octets[k].ends) start[octets[k].graph + 1]++;
    for (int g = 0; g < graphs; g++) start[g + 1] += start[g];
    o->graph_runs = wf_tape_upload(tape, start, bytes);
}

void wf_octets_build(wf_tape *tape, wf_part *part, const wf_batch_block *blocks, int first_graph) {
    builder b = {.part = part, .blocks = blocks, .first_graph = first_graph};
    wf_octets *o = wf_tape_host(tape, sizeof *o);
    if (o == NULL) return;
    put_all(&b);
    int pairs = b.n_octets / 2, strands = WF_OCTET_CHUNKS * WF_OCTET_WARPS;
    int steps = pairs > strands ? (pairs + strands - 1) / strands : 1;
    int chunk = steps * WF_OCTET_WARPS;
    *o = (wf_octets){.steps = steps, .n_chunks = (pairs + chunk - 1) / chunk};
    o->n_octets = 2 * chunk * o->n_chunks;
    size_t bytes = (size_t)o->n_octets * sizeof *b.octets;
    b.octets = wf_tape_host(tape, bytes);
    if (b.octets == NULL) return;
    put_all(&b);
    for (int k = 2 * pairs; k < o->n_octets; k++) {
        b.octets[k] = b.octets[2 * pairs - 1];
        b.octets[k].count = 0;
    }
    o->n_runs = mark_runs(b.octets, pairs, steps);
    build_lists(tape, o, b.octets, part->n_nodes);
    build_graph_runs(tape, o, b.octets, part->n_graphs);
    o->octets = wf_tape_upload(tape, b.octets, bytes);
    if (!tape->failed) part->octets = o;
}
