/* edge_bundles: builds the tables of edge_bundles.h on the host and uploads them.
 *
 * First come all bundles in the order of graphs, blocks and nodes, with their segments; then the
 * places of segments in lists; then the lists of partial sums, which follow the first order. */
#include "models/edge_bundles.h"

#include <assert.h>

static_assert(sizeof(wf_bundle) == 32, "kernels load a bundle as two times 16 bytes");

/* A table: pairs of a segment at most, lists of a task, tasks for each multiprocessor at most. */
typedef struct cut_shape {
    int segment, lists, tasks;
} cut_shape;
static const cut_shape shapes[WF_CUTS] = {[WF_CUT_SHORT] = {2, WF_GROUP_WARPS, 4},
                                          [WF_CUT_GROUP] = {8, 1, 2},
                                          [WF_CUT_LONG_4] = {5, WF_GROUP_WARPS, 4},
                                          [WF_CUT_LONG_3] = {7, WF_GROUP_WARPS, 3}};

/* --- bundles in order ------------------------------------------------------------------------- */
typedef struct builder {
    const wf_part *part;
    const wf_batch_block *blocks;
    int first_graph;
    wf_bundle *bundles; /* in order; NULL: only counts */
    int n_bundles;
    int segment; /* pairs at most */
} builder;

/* The nodes a of a block's bundles: a contiguous range at one end. */
typedef struct axis {
    size_t a0;
    int count;
    bool from_a;
} axis;

static int bundles_of(int count) { return (count + WF_BUNDLE - 1) / WF_BUNDLE; }

static axis axis_of(const wf_batch_block *block) {
    if ((size_t)bundles_of(block->n_src) * (size_t)block->n_dst <
        (size_t)bundles_of(block->n_dst) * (size_t)block->n_src)
        return (axis){block->src0, block->n_src, true};
    return (axis){block->dst0, block->n_dst, false};
}

static bool same_axis(axis x, axis y) {
    return x.a0 == y.a0 && x.count == y.count && x.from_a == y.from_a;
}

static void put(builder *b, wf_bundle bundle) {
    if (b->bundles != NULL) b->bundles[b->n_bundles] = bundle;
    b->n_bundles++;
}

/* The bundles of one block over nodes at .. at + 7 of its axis, one for each node of the other
 * end. */
static void put_range(builder *b, const wf_batch_block *block, axis a, int at, float inv_edges) {
    int others = a.from_a ? block->n_dst : block->n_src;
    int across = a.from_a ? block->n_src : 1, along = a.from_a ? 1 : block->n_src;
    size_t b0 = a.from_a ? block->dst0 : block->src0;
    int left = a.count - at;
    for (int j = 0; j < others; j++)
        put(b, (wf_bundle){.first = (int32_t)(block->edge0 - b->part->first_edge) + j * across +
                                    at * along,
                           .stride = along,
                           .a0 = (int32_t)(a.a0 - b->part->first_node) + at,
                           .b = (int32_t)(b0 - b->part->first_node) + j,
                           .graph = block->graph - b->first_graph,
                           .count = (uint8_t)(left < WF_BUNDLE ? left : WF_BUNDLE),
                           .from_a = a.from_a,
                           .inv_edges = inv_edges});
}

/* Bundles over the same nodes, from `first` to the end: padded to whole pairs, cut into
 * segments. */
static void close_range(builder *b, int first) {
    if (b->n_bundles % 2 != 0) {
        wf_bundle padding = {.count = 0};
        if (b->bundles != NULL) padding = b->bundles[b->n_bundles - 1];
        padding.count = 0;
        put(b, padding);
    }
    int pairs = (b->n_bundles - first) / 2;
    for (int p = 0; b->bundles != NULL && p < pairs; p++)
        for (int k = 0; k < 2; k++) {
            wf_bundle *bundle = &b->bundles[first + 2 * p + k];
            bundle->begins = p % b->segment == 0;
            bundle->ends = (p + 1) % b->segment == 0 || p + 1 == pairs;
        }
}

/* Blocks of one graph. Blocks over the same nodes (a layer and its bias) go together, and so do
 * their sums. */
static void put_graph(builder *b, int first, int last) {
    size_t edges = 0;
    for (int k = first; k < last; k++)
        edges += (size_t)b->blocks[k].n_src * (size_t)b->blocks[k].n_dst;
    for (int k = first; k < last; k++) {
        axis a = axis_of(&b->blocks[k]);
        bool seen = false;
        for (int other = first; other < k; other++)
            seen |= same_axis(a, axis_of(&b->blocks[other]));
        for (int at = 0; !seen && at < a.count; at += WF_BUNDLE) {
            int start = b->n_bundles;
            for (int other = k; other < last; other++)
                if (same_axis(a, axis_of(&b->blocks[other])))
                    put_range(b, &b->blocks[other], a, at, 1 / (float)edges);
            close_range(b, start);
        }
    }
}

static void put_all(builder *b) {
    int n = b->part->n_blocks;
    b->n_bundles = 0;
    for (int first = 0, last; first < n; first = last) {
        for (last = first; last < n && b->blocks[last].graph == b->blocks[first].graph;) last++;
        put_graph(b, first, last);
    }
}

/* --- lists ------------------------------------------------------------------------------------ */
typedef struct segment {
    int pair, length; /* in order */
    int place;        /* of its first pair in the lists */
} segment;

static int count_segments(const wf_bundle *bundles, int pairs) {
    int count = 0;
    for (int p = 0; p < pairs; p++) count += bundles[2 * p].begins;
    return count;
}

static void list_segments(const wf_bundle *bundles, int pairs, segment *segments) {
    for (int p = 0; p < pairs; p++) {
        if (bundles[2 * p].begins) *segments++ = (segment){.pair = p};
        segments[-1].length++;
    }
}

/* The longest segment of at most `room` pairs that has no place yet, of each length in order; n:
 * none. */
static int next_segment(const segment *segments, int n, int next[WF_LONGEST_SEGMENT + 1],
                        int room) {
    for (int length = room < WF_LONGEST_SEGMENT ? room : WF_LONGEST_SEGMENT; length > 0; length--) {
        int *at = &next[length];
        while (*at < n && segments[*at].length != length) ++*at;
        if (*at < n) return (*at)++;
    }
    return n;
}

/* Fills tasks with segments, each into the shortest list of the task; returns how many tasks. */
static int fill_tasks(segment *segments, int n, int lists, int list_length) {
    int next[WF_LONGEST_SEGMENT + 1] = {0}, left = n, tasks = 0;
    for (; left > 0; tasks++) {
        int used[WF_GROUP_WARPS] = {0};
        for (;;) {
            int list = 0;
            for (int k = 1; k < lists; k++)
                if (used[k] < used[list]) list = k;
            if (used[list] >= list_length) break;
            int s = next_segment(segments, n, next, list_length - used[list]);
            if (s == n) {
                used[list] = list_length;
            } else {
                segments[s].place = (tasks * lists + list) * list_length + used[list];
                used[list] += segments[s].length;
                left--;
            }
        }
    }
    return tasks;
}

/* The shortest lists that do not make more tasks than wanted. */
static void choose_lists(wf_bundle_table *t, const cut_shape *cut, int most_tasks,
                         segment *segments, int pairs) {
    int most = most_tasks * cut->lists;
    t->list_length = (pairs + most - 1) / most;
    if (t->list_length < cut->segment) t->list_length = cut->segment;
    while ((t->n_tasks = fill_tasks(segments, t->n_segments, cut->lists, t->list_length)) >
           most_tasks)
        t->list_length++;
    t->n_bundles = 2 * t->list_length * cut->lists * t->n_tasks;
}

static void place_bundles(const wf_bundle_table *t, const segment *segments, wf_bundle *bundles,
                          wf_bundle *to) {
    for (int k = 0; k < t->n_bundles; k++) {
        to[k] = bundles[0];
        to[k].count = to[k].begins = to[k].ends = 0;
    }
    for (int s = 0; s < t->n_segments; s++)
        for (int k = 0; k < 2 * segments[s].length; k++) {
            bundles[2 * segments[s].pair + k].segment = s;
            to[2 * segments[s].place + k] = bundles[2 * segments[s].pair + k];
        }
}

/* --- which partial sums a node adds ----------------------------------------------------------- */
/* Calls for every partial sum, in order: its row, its node, whether the node is the edges'
 * source. */
typedef void partial_fn(void *of, uint32_t row, int node, bool source);

static void each_partial(const wf_bundle_table *t, const segment *segments,
                         const wf_bundle *bundles, partial_fn *visit, void *of) {
    for (int s = 0; s < t->n_segments; s++) {
        const wf_bundle *first = &bundles[2 * segments[s].pair];
        for (int k = 0; k < 2 * segments[s].length; k++)
            if (first[k].count > 0)
                visit(of, (uint32_t)(2 * segments[s].place + k), first[k].b, !first[k].from_a);
        for (int i = 0; i < first->count; i++)
            visit(of, (uint32_t)(t->n_bundles + WF_BUNDLE * s + i), first->a0 + i, first->from_a);
    }
}

typedef struct row_lists {
    uint32_t *start, *rows;
} row_lists;

static void count_partial(void *of, uint32_t row, int node, bool source) {
    (void)row;
    ((row_lists *)of)->start[2 * node + source + 1]++;
}

/* start[k] is where list k goes on; afterwards it is where list k + 1 begins. */
static void put_partial(void *of, uint32_t row, int node, bool source) {
    row_lists *l = of;
    l->rows[l->start[2 * node + source]++] = row;
}

static void build_partials(wf_tape *tape, wf_bundle_table *t, const segment *segments,
                           const wf_bundle *bundles, int nodes) {
    size_t n = 2 * (size_t)nodes, start_bytes = (n + 1) * sizeof(uint32_t);
    row_lists l = {.start = wf_tape_host(tape, start_bytes)};
    if (l.start == NULL) return;
    for (size_t k = 0; k <= n; k++) l.start[k] = 0;
    each_partial(t, segments, bundles, count_partial, &l);
    for (size_t k = 0; k < n; k++) l.start[k + 1] += l.start[k];
    size_t row_bytes = (size_t)l.start[n] * sizeof(uint32_t);
    l.rows = wf_tape_host(tape, row_bytes);
    if (l.rows == NULL) return;
    each_partial(t, segments, bundles, put_partial, &l);
    for (size_t k = n; k > 0; k--) l.start[k] = l.start[k - 1];
    l.start[0] = 0;
    t->partial_start = wf_tape_upload(tape, l.start, start_bytes);
    t->partials = wf_tape_upload(tape, l.rows, row_bytes);
}

static void build_graph_segments(wf_tape *tape, wf_bundle_table *t, const segment *segments,
                                 const wf_bundle *bundles, int graphs) {
    size_t bytes = ((size_t)graphs + 1) * sizeof(uint32_t);
    uint32_t *start = wf_tape_host(tape, bytes);
    if (start == NULL) return;
    for (int g = 0; g <= graphs; g++) start[g] = 0;
    for (int s = 0; s < t->n_segments; s++) start[bundles[2 * segments[s].pair].graph + 1]++;
    for (int g = 0; g < graphs; g++) start[g + 1] += start[g];
    t->graph_segments = wf_tape_upload(tape, start, bytes);
}

static const wf_bundle_table *build(wf_tape *tape, const wf_part *part,
                                    const wf_batch_block *blocks, int first_graph,
                                    const cut_shape *cut, int processors) {
    builder b = {
        .part = part, .blocks = blocks, .first_graph = first_graph, .segment = cut->segment};
    wf_bundle_table *t = wf_tape_host(tape, sizeof *t);
    put_all(&b);
    int pairs = b.n_bundles / 2;
    b.bundles = wf_tape_host(tape, (size_t)b.n_bundles * sizeof *b.bundles);
    if (b.bundles == NULL) return NULL;
    put_all(&b);
    *t = (wf_bundle_table){.n_segments = count_segments(b.bundles, pairs)};
    segment *segments = wf_tape_host(tape, (size_t)t->n_segments * sizeof *segments);
    if (segments == NULL) return NULL;
    list_segments(b.bundles, pairs, segments);
    choose_lists(t, cut, cut->tasks * processors, segments, pairs);
    size_t bytes = (size_t)t->n_bundles * sizeof(wf_bundle);
    wf_bundle *placed = wf_tape_host(tape, bytes);
    if (placed == NULL) return NULL;
    place_bundles(t, segments, b.bundles, placed);
    build_partials(tape, t, segments, b.bundles, part->n_nodes);
    build_graph_segments(tape, t, segments, b.bundles, part->n_graphs);
    t->bundles = wf_tape_upload(tape, placed, bytes);
    return tape->failed ? NULL : t;
}

void wf_bundles_build(wf_tape *tape, wf_part *part, const wf_batch_block *blocks, int first_graph,
                      int processors) {
    assert(processors > 0);
    for (int cut = 0; cut < WF_CUTS; cut++)
        part->bundles[cut] = build(tape, part, blocks, first_graph, &shapes[cut], processors);
}
