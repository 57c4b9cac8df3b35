/* Bundle tables on the host: every edge once with both ends right, and the sums that kernels and
 * partial lists make of them, against sums over the edges themselves. */
#include "models/edge_bundles.h"
#include "wf_test.h"

enum { most_blocks = 2048, processors = 132 };

typedef struct parts {
    wf_tape tape;
    wf_part part;
    wf_batch_block blocks[most_blocks];
    int *dst, *src, *graph; /* of every edge */
} parts;

enum { first_graph = 3, first_edge = 11, first_node = 7 };

static void add_block(parts *p, int graph, int n_src, int n_dst, int src0, int dst0) {
    wf_part *part = &p->part;
    assert_true(part->n_blocks < most_blocks);
    p->blocks[part->n_blocks++] = (wf_batch_block){.graph = first_graph + graph,
                                                   .n_src = n_src,
                                                   .n_dst = n_dst,
                                                   .src0 = (size_t)(first_node + src0),
                                                   .dst0 = (size_t)(first_node + dst0),
                                                   .edge0 = (size_t)(first_edge + part->n_edges)};
    int edges = part->n_edges + n_src * n_dst;
    p->dst = realloc(p->dst, (size_t)(edges + 1) * sizeof *p->dst);
    p->src = realloc(p->src, (size_t)(edges + 1) * sizeof *p->src);
    p->graph = realloc(p->graph, (size_t)(edges + 1) * sizeof *p->graph);
    for (int i = 0; i < n_dst; i++)
        for (int j = 0; j < n_src; j++) {
            p->dst[part->n_edges] = dst0 + i;
            p->src[part->n_edges] = src0 + j;
            p->graph[part->n_edges++] = graph;
        }
}

/* A chain of layers, each with a bias node after its units; `folded`: the first layer's weights
 * are no edges. */
static void add_network(parts *p, const int *widths, int layers, bool folded) {
    int graph = p->part.n_graphs++, source = p->part.n_nodes;
    p->part.n_nodes += widths[0];
    for (int l = 1; l < layers; l++) {
        int units = p->part.n_nodes, bias = units + widths[l];
        p->part.n_nodes += widths[l] + 1;
        if (!folded || l > 1) {
            add_block(p, graph, widths[l - 1], widths[l], source, units);
            add_block(p, graph, 1, widths[l], bias, units);
        }
        source = units;
    }
}

static void open_parts(parts *p) {
    *p = (parts){.part = {.first_edge = first_edge, .first_node = first_node}};
    wf_tape_start(&p->tape, wf_backend_cpu(WF_F32), WF_F32, false);
}

static void close_parts(parts *p) {
    wf_tape_free(&p->tape);
    free(p->dst);
    free(p->src);
    free(p->graph);
}

/* Small whole numbers, so that sums are exact in any order. */
static int value_of(int edge) { return (edge * 37 + 11) % 101 - 50; }

static void check_cover(const parts *p, const wf_bundle_table *o) {
    int *seen = calloc((size_t)p->part.n_edges + 1, sizeof *seen);
    int *size = calloc((size_t)p->part.n_graphs + 1, sizeof *size);
    for (int e = 0; e < p->part.n_edges; e++) size[p->graph[e]]++;
    for (int k = 0; k < o->n_bundles; k++) {
        const wf_bundle *bundle = &o->bundles[k], *pair = &o->bundles[k / 2 * 2];
        assert_true(bundle->count <= WF_BUNDLE);
        assert_true(bundle->first >= 0 && bundle->first < p->part.n_edges);
        assert_true(bundle->a0 >= 0 && bundle->a0 < p->part.n_nodes);
        assert_true(bundle->b >= 0 && bundle->b < p->part.n_nodes);
        assert_true(bundle->graph >= 0 && bundle->graph < p->part.n_graphs);
        assert_int_equal(bundle->a0, pair->a0);
        assert_int_equal(bundle->from_a, pair->from_a);
        assert_int_equal(bundle->graph, pair->graph);
        assert_int_equal(bundle->segment, pair->segment);
        assert_true(bundle->count == pair->count || bundle->count == 0);
        for (int i = 0; i < bundle->count; i++) {
            int edge = bundle->first + i * bundle->stride;
            assert_true(edge >= 0 && edge < p->part.n_edges);
            seen[edge]++;
            assert_int_equal(p->graph[edge], bundle->graph);
            assert_int_equal(bundle->from_a ? p->src[edge] : p->dst[edge], bundle->a0 + i);
            assert_int_equal(bundle->from_a ? p->dst[edge] : p->src[edge], bundle->b);
            assert_true(bundle->inv_edges == 1 / (float)size[bundle->graph]);
        }
    }
    for (int e = 0; e < p->part.n_edges; e++) assert_int_equal(seen[e], 1);
    free(seen);
    free(size);
}

/* What a kernel leaves: sums of bundles, of segments towards a, and of segments as a whole. Partial
 * sums nobody writes stay `unset`. */
enum { unset = 1 << 28 };

static void leave_partials(const wf_bundle_table *o, int *partials, int *segments) {
    for (size_t k = 0; k < wf_partial_rows(o); k++) partials[k] = unset;
    for (int list = 0; list < o->n_bundles / 2 / o->list_length; list++) {
        int towards_a[WF_BUNDLE] = {0}, all = 0;
        bool open = false;
        for (int t = 0; t < o->list_length; t++) {
            const wf_bundle *pair = &o->bundles[2 * (list * o->list_length + t)];
            if (pair->begins) {
                assert_false(open);
                open = true;
                memset(towards_a, 0, sizeof towards_a);
                all = 0;
            }
            for (int k = 0; k < 2; k++) {
                if (pair[k].count > 0) partials[pair + k - o->bundles] = 0;
                for (int i = 0; i < pair[k].count; i++) {
                    assert_true(open);
                    int value = value_of(pair[k].first + i * pair[k].stride);
                    towards_a[i] += value;
                    all += value;
                    partials[pair + k - o->bundles] += value;
                }
            }
            if (!pair->ends) continue;
            assert_true(open);
            open = false;
            assert_in_range(pair->segment, 0, o->n_segments - 1);
            for (int i = 0; i < pair->count; i++)
                partials[o->n_bundles + WF_BUNDLE * pair->segment + i] = towards_a[i];
            segments[pair->segment] = all;
        }
        assert_false(open);
    }
}

static int list_sum(const wf_bundle_table *o, const int *partials, int list) {
    int sum = 0;
    for (uint32_t k = o->partial_start[list]; k < o->partial_start[list + 1]; k++) {
        assert_true(partials[o->partials[k]] != unset);
        sum += partials[o->partials[k]];
    }
    return sum;
}

static void check_sums(const parts *p, const wf_bundle_table *o) {
    int nodes = p->part.n_nodes, graphs = p->part.n_graphs;
    int *partials = malloc((wf_partial_rows(o) + 1) * sizeof *partials);
    int *segments = malloc((size_t)(o->n_segments + 1) * sizeof *segments);
    int *want = calloc((size_t)(2 * nodes + graphs), sizeof *want);
    leave_partials(o, partials, segments);
    for (int e = 0; e < p->part.n_edges; e++) {
        want[2 * p->dst[e]] += value_of(e);
        want[2 * p->src[e] + 1] += value_of(e);
        want[2 * nodes + p->graph[e]] += value_of(e);
    }
    for (int k = 0; k < 2 * nodes; k++) assert_int_equal(list_sum(o, partials, k), want[k]);
    size_t written = 0;
    for (size_t k = 0; k < wf_partial_rows(o); k++) written += partials[k] != unset;
    assert_int_equal(o->partial_start[2 * nodes], written); /* each partial in one list */
    assert_int_equal(o->graph_segments[0], 0);
    assert_int_equal(o->graph_segments[graphs], o->n_segments);
    for (int g = 0; g < graphs; g++) {
        int sum = 0;
        for (uint32_t r = o->graph_segments[g]; r < o->graph_segments[g + 1]; r++)
            sum += segments[r];
        assert_int_equal(sum, want[2 * nodes + g]);
    }
    free(partials);
    free(segments);
    free(want);
}

static const wf_bundle_table *check(parts *p) {
    /* Of a task, and for each multiprocessor at most: edge_bundles.h. */
    static const int lists[WF_CUTS] = {4, 1, 4, 4}, tasks[WF_CUTS] = {4, 2, 4, 3};
    wf_bundles_build(&p->tape, &p->part, p->blocks, first_graph, processors);
    assert_false(p->tape.failed);
    for (int cut = 0; cut < WF_CUTS; cut++) {
        const wf_bundle_table *t = p->part.bundles[cut];
        assert_non_null(t);
        assert_int_equal(t->n_bundles, 2 * lists[cut] * t->list_length * t->n_tasks);
        assert_true(t->n_tasks <= tasks[cut] * processors);
        check_cover(p, t);
        check_sums(p, t);
    }
    return p->part.bundles[WF_CUT_SHORT];
}

static void test_widths(void **state) {
    (void)state;
    static const int widths[] = {1, 3, 7, 8, 9, 16, 33};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t j = 0; j < sizeof widths / sizeof *widths; j++) {
            parts p;
            open_parts(&p);
            add_network(&p, (int[]){widths[i], widths[j], 5}, 3, false);
            check(&p);
            close_parts(&p);
        }
}

static void test_mixed(void **state) {
    (void)state;
    parts p;
    open_parts(&p);
    add_network(&p, (int[]){64, 16, 8, 10}, 4, false);
    add_network(&p, (int[]){1, 1, 1}, 3, false);
    add_network(&p, (int[]){784, 32, 32, 10}, 4, true); /* folded: its first layer has no edges */
    p.part.n_graphs++;                                  /* a graph without edges */
    p.part.n_nodes += 2;
    add_network(&p, (int[]){9, 33, 7, 3}, 4, false);
    add_network(&p, (int[]){4, 16, 3}, 3, false);
    check(&p);
    close_parts(&p);
}

/* Lists of many segments of all lengths. */
static void test_long_lists(void **state) {
    (void)state;
    parts p;
    open_parts(&p);
    for (int k = 0; k < 5; k++) add_network(&p, (int[]){330 + k, 90, 33}, 3, false);
    const wf_bundle_table *o = check(&p);
    assert_true(o->list_length > 2);                                   /* longer than a segment */
    assert_true(o->n_bundles <= p.part.n_edges / WF_BUNDLE * 11 / 10); /* hardly any padding */
    close_parts(&p);
}

/* Lists of a graph name the same bundles and segments of it in the same order wherever it stands in
 * a batch. */
static void test_neighbours(void **state) {
    (void)state;
    parts alone, batch;
    const int widths[] = {70, 33, 9, 10};
    open_parts(&alone);
    add_network(&alone, widths, 4, false);
    check(&alone);
    open_parts(&batch);
    for (int k = 0; k < 7; k++) add_network(&batch, (int[]){40 + k, 90, 3}, 3, false);
    int first = batch.part.n_nodes, graph = batch.part.n_graphs, edge = batch.part.n_edges;
    add_network(&batch, widths, 4, false);
    check(&batch);
    const wf_bundle_table *x = alone.part.bundles[WF_CUT_SHORT],
                          *y = batch.part.bundles[WF_CUT_SHORT];
    int first_segment = (int)y->graph_segments[graph];
    for (int list = 0; list < 2 * alone.part.n_nodes; list++) {
        uint32_t at = y->partial_start[2 * first + list], count = x->partial_start[list + 1];
        assert_int_equal(y->partial_start[2 * first + list + 1] - at,
                         count - x->partial_start[list]);
        for (uint32_t k = x->partial_start[list]; k < count; k++, at++) {
            int r = (int)x->partials[k] - x->n_bundles, s = (int)y->partials[at] - y->n_bundles;
            assert_int_equal(r >= 0, s >= 0);
            if (r >= 0) {
                assert_int_equal(s - r, WF_BUNDLE * first_segment);
            } else {
                const wf_bundle *p = &x->bundles[x->partials[k]], *q = &y->bundles[y->partials[at]];
                assert_int_equal(q->first - p->first, edge);
                assert_int_equal(q->segment - p->segment, first_segment);
                assert_int_equal(q->begins, p->begins);
            }
        }
    }
    close_parts(&alone);
    close_parts(&batch);
}

/* Lengths of lists for the batches of the benchmarks: hardly more than their pairs divided by all
 * lists. */
static void test_packing(void **state) {
    (void)state;
    static const struct {
        int widths[4];
        bool folded;
        int copies, length, long_4, long_3;
    } cases[] = {{{64, 16, 8, 10}, false, 256, 10, 10, 14},  /* 82 pairs a network: 9.9, 13.3 */
                 {{784, 32, 32, 10}, true, 256, 11, 12, 15}, /* 90: 10.9, 14.5 */
                 {{64, 16, 8, 10}, false, 100, 4, 5, 7}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        parts p;
        open_parts(&p);
        for (int i = 0; i < cases[k].copies; i++)
            add_network(&p, cases[k].widths, 4, cases[k].folded);
        assert_int_equal(check(&p)->list_length, cases[k].length);
        assert_int_equal(p.part.bundles[WF_CUT_LONG_4]->list_length, cases[k].long_4);
        assert_int_equal(p.part.bundles[WF_CUT_LONG_3]->list_length, cases[k].long_3);
        close_parts(&p);
    }
}

static void test_nothing(void **state) {
    (void)state;
    parts p;
    open_parts(&p);
    p.part.n_graphs = 2;
    p.part.n_nodes = 3;
    const wf_bundle_table *o = check(&p);
    assert_int_equal(o->n_tasks, 0);
    close_parts(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths),     cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_long_lists), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_packing),    cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
