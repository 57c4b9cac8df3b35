/* node_benchmark: whether the nodes of a lean block, forward, are fast as one kernel
 * (node_forward.cuh), on synthetic nodes and slots in the order of 64-16-8-10 at width 64.
 *
 *     node_benchmark          the kernel checked on 13 tiles, then timed on 416, 256 networks (on
 *                             the emulated device: checked)
 *     node_benchmark check    the check alone
 * The check compares every output with sums in double, by the norm of the difference. The time is
 * the median of replays over three sets of nodes, together larger than L2. At or below `go` the
 * kernel is as fast as the design needs it. Above `stop`, half of the 107 us that today's launches
 * take for the same work, it is not worth porting. */
#include "node_forward.cuh"
#include "tile_checks.cuh"

using namespace edge;

enum { go_us = 20, stop_us = 53 };
enum { graph_groups = 13, known_graphs = 8, hidden = half_hidden, outputs = 512 };
enum { known_groups = known_graphs * graph_groups, known_nodes = 8 * known_groups };

/* Slots of a group of nodes: F, R. The layers have 64, 16, 8 and 10 units. The edges of the first
 * leave a slot of F for each class of tiles, and one of R for each run. */
static void slots_of_group(int group, int out[2]) {
    int place = group % graph_groups;
    out[0] = place < 8 ? 0 : place < 10 ? 3 : place == 10 ? 2 : 1;
    out[1] = place < 8 ? 2 : place < 10 ? 1 : place == 10 ? 2 : 0;
}
enum { graph_slots = 8 * 2 + 2 * 4 + 4 + 2 };
static std::vector<int4> groups_of(int graphs) {
    std::vector<int4> out;
    int next = 0;
    for (int group = 0; group < graphs * graph_groups; group++) {
        int count[2];
        slots_of_group(group, count);
        out.push_back({group / graph_groups, next, next + count[0], next + count[0] + count[1]});
        next += count[0] + count[1];
    }
    return out;
}
/* A graph's slots from the last to the first: not the order of memory. */
static std::vector<int> list_of(int graphs) {
    std::vector<int> out;
    for (int k = 0; k < graphs * graph_slots; k++)
        out.push_back(k / graph_slots * graph_slots + graph_slots - 1 - k % graph_slots);
    return out;
}

/* Values of some graphs; larger problems repeat them. */
struct problem {
    std::vector<double> wh = draws(hidden * width, 0.25), wf = draws(hidden * hidden, 0.25);
    std::vector<double> wb = draws(hidden * hidden, 0.25), w2 = draws(width * hidden, 0.25);
    std::vector<double> wt = draws(outputs * width, 0.25), c2 = draws(width, 1);
    std::vector<double> row =
        draws(known_graphs * node::row_floats, 0.5); /* 1 + 0.5 x: gate, scale */
    std::vector<double> h = draws(known_nodes * width, 1.75), hb = draws(known_nodes * width, 1.75);
    std::vector<double> slots = draws(known_graphs * graph_slots * hidden * 8, 1);
    /* Number k of a graph's rows. */
    double of(int graph, int k) const {
        double x = row[(size_t)(graph * node::row_floats + k)];
        return k >= node::row_gate && k < node::row_shift ? 1 + x : x;
    }
};

struct result {
    std::vector<double> h, hb, tables; /* (nodes, 64) twice, (nodes, 512) */
};
static result reference(const problem &p) {
    std::vector<int4> groups = groups_of(known_graphs);
    std::vector<int> list = list_of(known_graphs);
    result out;
    for (int n = 0; n < known_nodes; n++) {
        int4 of = groups[(size_t)(n / 8)];
        std::vector<double> sums[2], y;
        for (int k = 0; k < hidden; k++)
            for (int way = 0; way < 2; way++) {
                double sum = 0;
                for (int i = way ? of.z : of.y; i < (way ? of.w : of.z); i++)
                    sum += p.slots[(size_t)((list[(size_t)i] * hidden + k) * 8 + n % 8)];
                sums[way].push_back(sum);
            }
        for (int m = 0; m < hidden; m++) {
            double slope, x = p.of(of.x, node::row_x + m);
            for (int k = 0; k < width; k++)
                x += p.wh[(size_t)(m * width + k)] * p.hb[(size_t)(n * width + k)];
            for (int k = 0; k < hidden; k++)
                x += p.wf[(size_t)(m * hidden + k)] * sums[0][(size_t)k] +
                     p.wb[(size_t)(m * hidden + k)] * sums[1][(size_t)k];
            y.push_back(unit(x, &slope));
        }
        std::vector<double> h(width), hb(width);
        double mean = 0, variance = 0;
        for (int m = 0; m < width; m++) {
            double sum = p.c2[(size_t)m];
            for (int k = 0; k < hidden; k++) sum += p.w2[(size_t)(m * hidden + k)] * y[(size_t)k];
            h[(size_t)m] = p.h[(size_t)(n * width + m)] + p.of(of.x, node::row_gate + m) * sum;
            mean += h[(size_t)m] / width;
        }
        for (double x : h) variance += (x - mean) * (x - mean) / width;
        for (int m = 0; m < width; m++)
            hb[(size_t)m] =
                (h[(size_t)m] - mean) / sqrt(variance + 1e-6) * p.of(of.x, node::row_scale + m) +
                p.of(of.x, node::row_shift + m);
        for (int m = 0; m < outputs; m++) {
            double sum = m < 4 * width ? p.of(of.x, node::row_ad + m) : 0;
            for (int k = 0; k < width; k++) sum += p.wt[(size_t)(m * width + k)] * hb[(size_t)k];
            out.tables.push_back(sum / 2);
        }
        out.h.insert(out.h.end(), h.begin(), h.end());
        out.hb.insert(out.hb.end(), hb.begin(), hb.end());
    }
    return out;
}

/* --- memory ----------------------------------------------------------------------------------- */
/* (rows, 64 strips) times `by`: rows of 64 columns, then of the next 64. */
static void put_strips(bytes &to, size_t at, const std::vector<double> &from, int rows, int strips,
                       bool half, double by) {
    for (int k = 0; k < strips; k++)
        put_tile(to, at + (size_t)(k * rows * 128), &from[(size_t)(k * width)], rows,
                 strips * width, half, by);
}
static bytes weights_of(const problem &p) {
    bytes out(node::weight_bytes);
    put_strips(out, node::wh, p.wh, hidden, 1, true, 0.5);
    put_strips(out, node::wf, p.wf, hidden, 2, false, 0.5);
    put_strips(out, node::wb, p.wb, hidden, 2, false, 0.5);
    put_strips(out, node::w2, p.w2, width, 2, true, 1);
    put_strips(out, node::wt, p.wt, outputs, 1, true, 0.5);
    for (int k = 0; k < width; k++) {
        float x = (float)p.c2[(size_t)k];
        memcpy(&out[(size_t)(node::c2 + lane_order(k) * 4)], &x, 4);
    }
    return out;
}
static bytes of_floats(const std::vector<float> &list) {
    return bytes((const unsigned char *)list.data(),
                 (const unsigned char *)(list.data() + list.size()));
}
static bytes rows_of(const problem &p) {
    std::vector<float> out((size_t)(known_graphs * node::row_floats));
    for (int graph = 0; graph < known_graphs; graph++)
        for (int k = 0; k < node::row_floats; k++)
            out[(size_t)(graph * node::row_floats + k / width * width + lane_order(k % width))] =
                (float)(p.of(graph, k) * (k < node::row_gate ? 0.5 : 1));
    return of_floats(out);
}
static bytes slot_words_of(const std::vector<double> &values) {
    bytes out(values.size() * 2);
    for (size_t k = 0; k < values.size(); k++) put(out, 2 * k, bits_bf16(values[k]));
    return out;
}
static node_args make_memory(const problem &p, int graphs) {
    int times = graphs / known_graphs;
    std::vector<int4> groups = groups_of(graphs);
    bytes hb((size_t)(known_nodes * width * 2));
    put_strips(hb, 0, p.hb, known_nodes, 1, true, 1);
    size_t nodes = (size_t)(graphs * graph_groups * 8);
    node_args d = {};
    d.weights = upload(weights_of(p), 1), d.hb = upload(hb, times);
    d.h = (const float *)upload(of_floats(std::vector<float>(p.h.begin(), p.h.end())), times);
    d.groups = (const int4 *)upload(
        bytes((unsigned char *)groups.data(), (unsigned char *)(groups.data() + groups.size())), 1);
    d.list = (const int *)upload(of_ints(list_of(graphs)), 1);
    d.slots = (const uint32_t *)upload(slot_words_of(p.slots), times);
    d.rows = (const float *)upload(rows_of(p), times);
    d.h_out = (float *)take(nodes * width * 4);
    d.hb_out = (unsigned char *)take(nodes * width * 2);
    d.panels = (unsigned char *)take(nodes * outputs * 2);
    d.tiles = graphs * graph_groups / 8;
    return d;
}
static void launch(const node_args &d, int most_blocks) {
    int blocks = (d.tiles + node::groups - 1) / node::groups;
    start(node_kernel, std::min(blocks, most_blocks), node::threads, node::bytes, d);
}

static bool check_nodes(const problem &p) {
    node_args d = make_memory(p, known_graphs);
    result wanted = reference(p);
    launch(d, 3); /* 13 tiles: each group has several */
    auto h = download<float>(d.h_out, wanted.h.size());
    auto hb = download<unsigned char>(d.hb_out, 2 * wanted.hb.size());
    auto panels = download<unsigned char>(d.panels, 2 * wanted.tables.size());
    comparison of_h = {"N", "h'"}, of_hb = {"N", "hb'"}, ad = {"N", "ad"}, as = {"N", "as"};
    for (int n = 0; n < known_nodes; n++) {
        for (int k = 0; k < width; k++) {
            uint16_t bits;
            memcpy(&bits, &hb[element_at(0, n, k)], 2);
            of_h.add(h[(size_t)(n * width + k)], wanted.h[(size_t)(n * width + k)]);
            of_hb.add(of_half(bits), wanted.hb[(size_t)(n * width + k)]);
        }
        for (int k = 0; k < outputs; k++) {
            size_t atom = (size_t)(n / 8 * node::panel_bytes + k / width * atom_bytes);
            uint16_t bits;
            memcpy(&bits, &panels[element_at(atom, n % 8, k % width)], 2);
            (k < 4 * width ? ad : as).add(of_bf16(bits), wanted.tables[(size_t)(n * outputs + k)]);
        }
    }
    bool right = of_h.passes() & of_hb.passes() & ad.passes() & as.passes();
    give_all();
    printf("%s N\n", right ? "ok" : "FAILED");
    return right;
}

#ifndef WF_EMULATOR_CUDA_RUNTIME_H
static void time_nodes(const problem &p, int blocks) {
    enum { timed_graphs = 256, sets = 3 };
    std::vector<node_args> d;
    for (int k = 0; k < sets; k++) d.push_back(make_memory(p, timed_graphs));
    double us = median_us(4 * sets, [&](int i) { launch(d[(size_t)(i % sets)], blocks); });
    printf("%d tiles, %d blocks\nstage      us   go  stop  verdict\nN     %7.1f %4d %5d  %s\n",
           d[0].tiles, std::min(blocks, d[0].tiles / 2), us, (int)go_us, (int)stop_us,
           us <= go_us     ? "go"
           : us <= stop_us ? "between"
                           : "STOP: not worth porting");
    give_all();
}
#else
static void time_nodes(const problem &, int) {} /* the emulated device has no times */
#endif

int main(int argc, char **argv) {
    bool only_check = argc == 2 && strcmp(argv[1], "check") == 0;
    int blocks;
    if (argc > 1 && !only_check) {
        fprintf(stderr, "usage: node_benchmark [check]\n");
        return 2;
    }
    check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "no GPU");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    problem p;
    bool right = check_nodes(p);
    if (!right) printf("the kernel is wrong: its time would say nothing\n");
    else if (!only_check) time_nodes(p, blocks);
    return !right;
}
