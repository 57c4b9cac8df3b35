/* edge_bundles: builds the tables of models/edge_bundles.h on the host and hands them to the backend.
 *
 * First all octets in the order of graphs, blocks and nodes, with their runs; then the places of runs in strands; then the
 * lists of slots, which follow the first order. */
#include "models/edge_bundles.h"

#include <assert.h>

static_assert(sizeof(wf_octet) == 32, "kernels load an octet as two times 16 bytes");

typedef struct builder {
    const wf_part *part;
    const wf_batch_block *blocks;
    int first_graph;
    wf_octet *octets; /* in order; NULL: only counts */
    int n_octets;
    int run; /* pairs of a run at most */
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

/* Pairs over the same nodes, from octet `first` to the end: padded to whole pairs, cut into runs. */
static void close_range(builder *b, int first) {
    if (b->n_octets % 2 != 0) {
        wf_octet padding = {.count = 0};
        if (b->octets != NULL) padding = b->octets[b->n_octets - 1];
        padding.count = 0;
        put(b, padding);
    }
    int pairs = (b->n_octets - first) / 2;
    for (int p = 0; b->octets != NULL && p < pairs; p++)
        for (int k = 0; k < 2; k++) {
            wf_octet *octet = &b->octets[first + 2 * p + k];
            octet->begins = p % b->run == 0;
            octet->ends = (p + 1) % b->run == 0 || p + 1 == pairs;
        }
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
            int start = b->n_octets;
            for (int other = k; other < last; other++)
                if (same_axis(a, axis_of(&b->blocks[other])))
                    put_range(b, &b->blocks[other], a, at, 1 / (float)edges);
            close_range(b, start);
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

/* How a table is cut: pairs of a run, strands of a chunk, chunks at most. */
typedef struct shape {
    int run, strands, chunks;
} shape;

/* --- strands --------------------------------------------------------------------------------------------------- */
typedef struct run {
    int pair, length; /* in order */
    int place;        /* its first pair's in the strands */
} run;

static int count_runs(const wf_octet *octets, int pairs) {
    int runs = 0;
    for (int p = 0; p < pairs; p++) runs += octets[2 * p].begins;
    return runs;
}

static void list_runs(const wf_octet *octets, int pairs, run *runs) {
    for (int p = 0; p < pairs; p++) {
        if (octets[2 * p].begins) *runs++ = (run){.pair = p};
        runs[-1].length++;
    }
}

/* The longest run of at most `room` pairs that has no place yet, of each length in order; n_runs: none. */
static int next_run(const run *runs, int n_runs, int next[WF_OCTET_LINE_RUN + 1], int room) {
    for (int length = room < WF_OCTET_LINE_RUN ? room : WF_OCTET_LINE_RUN; length > 0; length--) {
        int *at = &next[length];
        while (*at < n_runs && runs[*at].length != length) ++*at;
        if (*at < n_runs) return (*at)++;
    }
    return n_runs;
}

/* Fills chunks with runs, dealt to their strands in turn, so that warps read the rows of the same nodes at the same time;
 * returns how many chunks. */
static int fill_chunks(run *runs, int n_runs, int strands, int steps) {
    int next[WF_OCTET_LINE_RUN + 1] = {0}, left = n_runs, chunks = 0;
    for (; left > 0; chunks++) {
        int used[WF_OCTET_WARPS] = {0};
        for (;;) {
            int strand = 0;
            for (int k = 1; k < strands; k++)
                if (used[k] < used[strand]) strand = k;
            if (used[strand] >= steps) break;
            int r = next_run(runs, n_runs, next, steps - used[strand]);
            if (r == n_runs) {
                used[strand] = steps;
            } else {
                runs[r].place = (chunks * strands + strand) * steps + used[strand];
                used[strand] += runs[r].length;
                left--;
            }
        }
    }
    return chunks;
}

/* The shortest strands that do not make more chunks than wanted. */
static void choose_strands(wf_octets *o, const shape *cut, run *runs, int pairs) {
    int most = cut->chunks * cut->strands;
    o->steps = (pairs + most - 1) / most;
    if (o->steps < cut->run) o->steps = cut->run;
    while ((o->n_chunks = fill_chunks(runs, o->n_runs, cut->strands, o->steps)) > cut->chunks)
        o->steps++;
    o->n_octets = 2 * o->steps * cut->strands * o->n_chunks;
}

static void place_octets(const wf_octets *o, const run *runs, wf_octet *octets, wf_octet *to) {
    for (int k = 0; k < o->n_octets; k++) {
        to[k] = octets[0];
        to[k].count = to[k].begins = to[k].ends = 0;
    }
    for (int r = 0; r < o->n_runs; r++)
        for (int k = 0; k < 2 * runs[r].length; k++) {
            octets[2 * runs[r].pair + k].run = r;
            to[2 * runs[r].place + k] = octets[2 * runs[r].pair + k];
        }
}

/* --- who adds which slots --------------------------------------------------------------------------------------- */
/* Calls for every slot that holds something, in order: its row, its node, whether the node is the edges' source. */
typedef void slot_fn(void *of, uint32_t row, int node, bool source);

static void each_slot(const wf_octets *o, const run *runs, const wf_octet *octets, slot_fn *visit,
                      void *of) {
    for (int r = 0; r < o->n_runs; r++) {
        const wf_octet *first = &octets[2 * runs[r].pair];
        for (int k = 0; k < 2 * runs[r].length; k++)
            if (first[k].count > 0)
                visit(of, (uint32_t)(2 * runs[r].place + k), first[k].b, !first[k].from_a);
        for (int i = 0; i < first->count; i++)
            visit(of, (uint32_t)(o->n_octets + WF_OCTET * r + i), first->a0 + i, first->from_a);
    }
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

static void build_lists(wf_tape *tape, wf_octets *o, const run *runs, const wf_octet *octets,
                        int nodes) {
    size_t n = 2 * (size_t)nodes, start_bytes = (n + 1) * sizeof(uint32_t);
    lists l = {.start = wf_tape_host(tape, start_bytes)};
    if (l.start == NULL) return;
    for (size_t k = 0; k <= n; k++) l.start[k] = 0;
    each_slot(o, runs, octets, count_slot, &l);
    for (size_t k = 0; k < n; k++) l.start[k + 1] += l.start[k];
    size_t row_bytes = (size_t)l.start[n] * sizeof(uint32_t);
    l.rows = wf_tape_host(tape, row_bytes);
    if (l.rows == NULL) return;
    each_slot(o, runs, octets, put_slot, &l);
    for (size_t k = n; k > 0; k--) l.start[k] = l.start[k - 1];
    l.start[0] = 0;
    o->slot_start = wf_tape_upload(tape, l.start, start_bytes);
    o->slots = wf_tape_upload(tape, l.rows, row_bytes);
}

static void build_graph_runs(wf_tape *tape, wf_octets *o, const run *runs, const wf_octet *octets,
                             int graphs) {
    size_t bytes = ((size_t)graphs + 1) * sizeof(uint32_t);
    uint32_t *start = wf_tape_host(tape, bytes);
    if (start == NULL) return;
    for (int g = 0; g <= graphs; g++) start[g] = 0;
    for (int r = 0; r < o->n_runs; r++) start[octets[2 * runs[r].pair].graph + 1]++;
    for (int g = 0; g < graphs; g++) start[g + 1] += start[g];
    o->graph_runs = wf_tape_upload(tape, start, bytes);
}

static const wf_octets *build(wf_tape *tape, const wf_part *part, const wf_batch_block *blocks,
                              int first_graph, const shape *cut) {
    builder b = {.part = part, .blocks = blocks, .first_graph = first_graph, .run = cut->run};
    wf_octets *o = wf_tape_host(tape, sizeof *o);
    put_all(&b);
    int pairs = b.n_octets / 2;
    b.octets = wf_tape_host(tape, (size_t)b.n_octets * sizeof *b.octets);
    if (b.octets == NULL) return NULL;
    put_all(&b);
    *o = (wf_octets){.n_runs = count_runs(b.octets, pairs)};
    run *runs = wf_tape_host(tape, (size_t)o->n_runs * sizeof *runs);
    if (runs == NULL) return NULL;
    list_runs(b.octets, pairs, runs);
    choose_strands(o, cut, runs, pairs);
    size_t bytes = (size_t)o->n_octets * sizeof(wf_octet);
    wf_octet *placed = wf_tape_host(tape, bytes);
    if (placed == NULL) return NULL;
    place_octets(o, runs, b.octets, placed);
    build_lists(tape, o, runs, b.octets, part->n_nodes);
    build_graph_runs(tape, o, runs, b.octets, part->n_graphs);
    o->octets = wf_tape_upload(tape, placed, bytes);
    return tape->failed ? NULL : o;
}

void wf_octets_build(wf_tape *tape, wf_part *part, const wf_batch_block *blocks, int first_graph,
                     int processors) {
    const shape strands = {WF_OCTET_RUN, WF_OCTET_WARPS, WF_OCTET_CHUNKS * processors};
    const shape lines = {WF_OCTET_LINE_RUN, 1, WF_OCTET_LINES * processors};
    const shape long_strands[2] = {
        {WF_OCTET_STRAND_RUN_OF_4, WF_OCTET_WARPS, WF_OCTET_CHUNKS * processors},
        {WF_OCTET_STRAND_RUN_OF_3, WF_OCTET_WARPS, WF_OCTET_STRANDS_OF_3 * processors}};
    part->octets = build(tape, part, blocks, first_graph, &strands);
    part->lines = build(tape, part, blocks, first_graph, &lines);
    for (int k = 0; k < 2; k++)
        part->strands[k] = build(tape, part, blocks, first_graph, &long_strands[k]);
}
