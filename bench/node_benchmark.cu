/* node_benchmark: whether the nodes of a lean block are fast as one kernel forward
 * (node_forward.cuh) and one backward (node_backward.cuh), on synthetic nodes and slots in the
 * order of 64-16-8-10 at width 64.
 *
 *     node_benchmark          every stage checked on 13 tiles, then those that are right timed on
 *                             416, 256 networks (on the emulated device: checked)
 *     node_benchmark check    the checks alone
 * Stages: N forward; NK forward with what backward needs kept; NB backward. A check compares every
 * output with sums in double, by the norm of the difference. Times are the median of replays over
 * three sets of nodes, together larger than L2. At or below `go` a stage is as fast as the design
 * needs it. Above `stop`, half of what today's launches take for the same work (107 us forward, 129
 * backward), it is not worth porting. */
#include "node_backward.cuh"
#include "tile_checks.cuh"

using namespace edge;

enum stage { forward_only, forward_kept, backward, stages };
static const struct {
    const char *name;
    int go, stop; /* us */
} stage_of[stages] = {{"N", 20, 53}, {"NK", 20, 53}, {"NB", 32, 64}};

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
    /* In the checks the last has more slots than a warp has lanes. */
    if (graphs == known_graphs) out.back() = {out.back().x, 2, 39, 80};
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
    std::vector<double> half_slots[2] = {draws(known_graphs * graph_slots * hidden * 8, 1),
                                         draws(known_graphs *graph_slots *hidden * 8, 1)};
    std::vector<double> g = draws(known_nodes * width, 1), dh = draws(known_nodes * width, 1);
    std::vector<double> q = draws(known_nodes * width, 1);
    std::vector<double> slope = draws(known_nodes * hidden, 1);
    /* Number k of a graph's rows. */
    double of(int graph, int k) const {
        double x = row[(size_t)(graph * node::row_floats + k)];
        return k >= node::row_gate && k < node::row_shift ? 1 + x : x;
    }
};

/* Sums of the slots of F (way 0) or R of a node: (128). */
static std::vector<double> slot_sums(const std::vector<double> &slots, int node, int way) {
    static const std::vector<int4> groups = groups_of(known_graphs);
    static const std::vector<int> list = list_of(known_graphs);
    std::vector<double> out(hidden);
    int4 of = groups[(size_t)(node / 8)];
    for (int i = way ? of.z : of.y; i < (way ? of.w : of.z); i++)
        for (int k = 0; k < hidden; k++)
            out[(size_t)k] += slots[(size_t)((list[(size_t)i] * hidden + k) * 8 + node % 8)];
    return out;
}

struct result {
    std::vector<double> h, hb, tables;        /* (nodes, 64) twice, (nodes, 512) */
    std::vector<double> sums[2], y, slope, q; /* (nodes, 128), and q (nodes, 64) */
};
static result reference(const problem &p) {
    result out;
    for (int n = 0; n < known_nodes; n++) {
        int graph = n / 8 / graph_groups;
        std::vector<double> sums[2] = {slot_sums(p.slots, n, 0), slot_sums(p.slots, n, 1)}, y;
        for (int m = 0; m < hidden; m++) {
            double slope, x = p.of(graph, node::row_x + m);
            for (int k = 0; k < width; k++)
                x += p.wh[(size_t)(m * width + k)] * p.hb[(size_t)(n * width + k)];
            for (int k = 0; k < hidden; k++)
                x += p.wf[(size_t)(m * hidden + k)] * sums[0][(size_t)k] +
                     p.wb[(size_t)(m * hidden + k)] * sums[1][(size_t)k];
            y.push_back(unit(x, &slope));
            out.slope.push_back(slope);
        }
        std::vector<double> h(width), hb(width);
        double mean = 0, variance = 0;
        for (int m = 0; m < width; m++) {
            double sum = p.c2[(size_t)m];
            for (int k = 0; k < hidden; k++) sum += p.w2[(size_t)(m * hidden + k)] * y[(size_t)k];
            h[(size_t)m] = p.h[(size_t)(n * width + m)] + p.of(graph, node::row_gate + m) * sum;
            out.q.push_back(sum);
            mean += h[(size_t)m] / width;
        }
        for (double x : h) variance += (x - mean) * (x - mean) / width;
        for (int m = 0; m < width; m++)
            hb[(size_t)m] =
                (h[(size_t)m] - mean) / sqrt(variance + 1e-6) * p.of(graph, node::row_scale + m) +
                p.of(graph, node::row_shift + m);
        for (int m = 0; m < outputs; m++) {
            double sum = m < 4 * width ? p.of(graph, node::row_ad + m) : 0;
            for (int k = 0; k < width; k++) sum += p.wt[(size_t)(m * width + k)] * hb[(size_t)k];
            out.tables.push_back(sum / 2);
        }
        for (int way = 0; way < 2; way++)
            out.sums[way].insert(out.sums[way].end(), sums[way].begin(), sums[way].end());
        out.y.insert(out.y.end(), y.begin(), y.end());
        out.h.insert(out.h.end(), h.begin(), h.end());
        out.hb.insert(out.hb.end(), hb.begin(), hb.end());
    }
    return out;
}

struct back_result {
    std::vector<double> dh, dq, g, dx, panels; /* (nodes, 64) three times, 128, 256 */
    std::vector<double> sums;                  /* (groups, 3, 64): gate, scale, shift */
};
/* of h', which the problem's h stands for. */
static back_result back_reference(const problem &p) {
    back_result out;
    out.sums.resize((size_t)(known_groups * 3 * width));
    for (int n = 0; n < known_nodes; n++) {
        int graph = n / 8 / graph_groups;
        const double *h = &p.h[(size_t)(n * width)];
        double *sums = &out.sums[(size_t)(n / 8 * 3 * width)];
        std::vector<double> tables, dhb(width), hat(width), dq(width), dx(hidden);
        for (int part = 0; part < 4; part++) {
            std::vector<double> more = slot_sums(p.half_slots[part % 2], n, part / 2);
            tables.insert(tables.end(), more.begin(), more.end());
        }
        double mean = 0, variance = 0, mean_g = 0, along = 0;
        for (int m = 0; m < width; m++) mean += h[m] / width;
        for (int m = 0; m < width; m++) variance += (h[m] - mean) * (h[m] - mean) / width;
        double rho = 1 / sqrt(variance + 1e-6);
        for (int m = 0; m < width; m++) {
            double sum = p.g[(size_t)(n * width + m)];
            for (int k = 0; k < outputs; k++)
                sum += p.wt[(size_t)(k * width + m)] * tables[(size_t)k];
            hat[(size_t)m] = (h[m] - mean) * rho;
            sums[2 * width + m] += sum, sums[width + m] += sum * hat[(size_t)m];
            dhb[(size_t)m] = sum * p.of(graph, node::row_scale + m);
            mean_g += dhb[(size_t)m] / width, along += dhb[(size_t)m] * hat[(size_t)m] / width;
        }
        for (int m = 0; m < width; m++) {
            size_t at = (size_t)(n * width + m);
            double dh = p.dh[at] + rho * (dhb[(size_t)m] - mean_g - hat[(size_t)m] * along);
            sums[m] += dh * p.q[at];
            out.dh.push_back(dh);
            dq[(size_t)m] = dh * p.of(graph, node::row_gate + m);
        }
        for (int k = 0; k < hidden; k++) {
            for (int m = 0; m < width; m++)
                dx[(size_t)k] += p.w2[(size_t)(m * hidden + k)] * dq[(size_t)m];
            dx[(size_t)k] *= p.slope[(size_t)(n * hidden + k)];
        }
        for (int m = 0; m < width; m++) {
            double sum = 0;
            for (int k = 0; k < hidden; k++) sum += p.wh[(size_t)(k * width + m)] * dx[(size_t)k];
            out.g.push_back(sum);
        }
        for (int m = 0; m < 2 * hidden; m++) {
            const std::vector<double> &w = m < hidden ? p.wf : p.wb;
            double sum = 0;
            for (int k = 0; k < hidden; k++)
                sum += w[(size_t)(k * hidden + m % hidden)] * dx[(size_t)k];
            out.panels.push_back(sum);
        }
        out.dq.insert(out.dq.end(), dq.begin(), dq.end());
        out.dx.insert(out.dx.end(), dx.begin(), dx.end());
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
static bytes weights_of(const problem &p, bool back) {
    bytes out(node::weight_bytes);
    bool half = !back;
    double by = back ? 1 : 0.5;
    put_strips(out, node::wh, p.wh, hidden, 1, half, by);
    put_strips(out, node::wf, p.wf, hidden, 2, false, by);
    put_strips(out, node::wb, p.wb, hidden, 2, false, by);
    put_strips(out, node::w2, p.w2, width, 2, half, 1);
    put_strips(out, node::wt, p.wt, outputs, 1, half, by);
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
/* Where element (node, k) of 64 strips is in lane order: fragments, then lanes, then words. */
static size_t lane_place(int node, int k, int strips) {
    int row = node % 16, lane = row % 8 * 4 + k % 8 / 2, word = k % 16 / 8 * 2 + row / 8;
    size_t fragment = (size_t)(node / 64 * 4 * strips + k / 16);
    size_t thread = (size_t)(node % 64 / 16 * 32 + lane);
    return ((fragment * group_threads + thread) * 4 + (size_t)word) * 4 + (size_t)(k % 2 * 2);
}
static bytes in_lane_order(const std::vector<double> &values, int strips, bool half) {
    bytes out(values.size() * 2);
    int pitch = width * strips;
    for (size_t k = 0; k < values.size(); k++)
        put(out, lane_place((int)k / pitch, (int)k % pitch, strips),
            half ? bits_half(values[k]) : bits_bf16(values[k]));
    return out;
}

struct device_memory {
    node_args forward;
    node_back_args back;
};
static device_memory make_memory(const problem &p, int graphs) {
    int times = graphs / known_graphs;
    std::vector<int4> groups = groups_of(graphs);
    bytes hb((size_t)(known_nodes * width * 2));
    put_strips(hb, 0, p.hb, known_nodes, 1, true, 1);
    size_t nodes = (size_t)(graphs * graph_groups * 8);
    device_memory d = {};
    node_args &f = d.forward;
    node_back_args &b = d.back;
    f.weights = upload(weights_of(p, false), 1), f.hb = upload(hb, times);
    f.h = (const float *)upload(of_floats(std::vector<float>(p.h.begin(), p.h.end())), times);
    f.octets = (const int4 *)upload(
        bytes((unsigned char *)groups.data(), (unsigned char *)(groups.data() + groups.size())), 1);
    f.list = (const int *)upload(of_ints(list_of(graphs)), 1);
    f.slots = (const uint32_t *)upload(slot_words_of(p.slots), times);
    f.rows = (const float *)upload(rows_of(p), times);
    f.h_out = (float *)take(nodes * width * 4);
    f.hb_out = (unsigned char *)take(nodes * width * 2);
    f.panels = (unsigned char *)take(nodes * outputs * 2);
    f.sums = (uint32_t *)take(nodes * 2 * hidden * 2);
    f.y = (unsigned char *)take(nodes * hidden * 2);
    f.slopes = (uint4 *)take(nodes * hidden * 2);
    f.q = (uint4 *)take(nodes * width * 2);
    f.tiles = b.tiles = graphs * graph_groups / 8;
    b.weights = upload(weights_of(p, true), 1);
    b.octets = f.octets, b.list = f.list, b.rows = f.rows, b.h = f.h;
    for (int k = 0; k < 2; k++)
        b.half_slots[k] = (const uint32_t *)upload(slot_words_of(p.half_slots[k]), times);
    b.dh = (const float *)upload(of_floats(std::vector<float>(p.dh.begin(), p.dh.end())), times);
    b.g = (const uint4 *)upload(in_lane_order(p.g, 1, false), times);
    b.q = (const uint4 *)upload(in_lane_order(p.q, 1, false), times);
    b.slopes = (const uint4 *)upload(in_lane_order(p.slope, 2, true), times);
    b.dh_out = (float *)take(nodes * width * 4);
    b.g_out = (uint4 *)take(nodes * width * 2);
    b.dq = (unsigned char *)take(nodes * width * 2);
    b.dx = (unsigned char *)take(nodes * hidden * 2);
    b.panels = (unsigned char *)take(nodes * 2 * hidden * 2);
    b.sums = (float *)take(nodes / 8 * 3 * width * 4);
    return d;
}
static void launch(const device_memory &d, stage of) {
    int blocks = (d.forward.tiles + node::groups - 1) / node::groups;
    if (of == forward_only)
        start(node_kernel<false>, blocks, node::threads, node::bytes, d.forward);
    else if (of == forward_kept)
        start(node_kernel<true>, blocks, node::threads, node::bytes, d.forward);
    else start(node_back_kernel, blocks, node::threads, node::bytes, d.back);
}

/* --- checks ----------------------------------------------------------------------------------- */
typedef std::vector<double> values;
static uint16_t bits_at(const bytes &from, size_t at) {
    uint16_t bits;
    memcpy(&bits, &from[at], 2);
    return bits;
}
static bool check_floats(const char *stage, const char *name, const float *from,
                         const values &wanted) {
    auto is = download<float>(from, wanted.size());
    comparison all = {stage, name};
    for (size_t k = 0; k < wanted.size(); k++) all.add(is[k], wanted[k]);
    return all.passes();
}
/* In bf16 or fp16, (rows, columns); place(row, column): where its two bytes are. */
template <class F>
static bool check_words(const char *stage, const char *name, const void *from, const values &wanted,
                        int columns, bool half, F place) {
    auto is = download<unsigned char>(from, 2 * wanted.size());
    comparison all = {stage, name};
    for (size_t k = 0; k < wanted.size(); k++) {
        uint16_t bits = bits_at(is, place((int)k / columns, (int)k % columns));
        all.add(half ? of_half(bits) : of_bf16(bits), wanted[k]);
    }
    return all.passes();
}
static size_t tile_place(int node, int k) { return element_at(0, node, k); }
/* Of 128 columns: two tiles, one after the other. */
static size_t two_tiles_place(int node, int k) {
    return element_at((size_t)((node / 64 * 2 + k / width) * tile_bytes), node % 64, k % width);
}

static bool check_forward(const problem &p, bool kept) {
    node_args d = make_memory(p, known_graphs).forward;
    const char *name = stage_of[kept].name;
    result wanted = reference(p);
    device_memory all = {};
    all.forward = d;
    launch(all, kept ? forward_kept : forward_only);
    auto panel = [](int node, int k) {
        return element_at((size_t)(node / 8 * node::panel_bytes + k / width * atom_bytes), node % 8,
                          k % width);
    };
    bool right = check_floats(name, "h'", d.h_out, wanted.h);
    right &= check_words(name, "hb'", d.hb_out, wanted.hb, width, true, tile_place);
    right &= check_words(name, "tables", d.panels, wanted.tables, outputs, false, panel);
    if (!kept) return right;
    values both(2 * wanted.sums[0].size()); /* of each group, F and R: as slots, (128, 8) */
    for (size_t k = 0; k < wanted.sums[0].size(); k++)
        for (size_t way = 0; way < 2; way++)
            both[((k / hidden / 8 * 2 + way) * hidden + k % hidden) * 8 + k / hidden % 8] =
                wanted.sums[way][k];
    auto as_it_is = [](int k, int) { return (size_t)k * 2; };
    auto lanes = [](int node, int k) { return lane_place(node, k, 1); };
    auto two_lanes = [](int node, int k) { return lane_place(node, k, 2); };
    right &= check_words(name, "sums", d.sums, both, 1, false, as_it_is);
    right &= check_words(name, "y", d.y, wanted.y, hidden, false, two_tiles_place);
    right &= check_words(name, "slopes", d.slopes, wanted.slope, hidden, true, two_lanes);
    return right & check_words(name, "q", d.q, wanted.q, width, false, lanes);
}

static bool check_backward(const problem &p) {
    node_back_args d = make_memory(p, known_graphs).back;
    const char *name = stage_of[backward].name;
    back_result wanted = back_reference(p);
    device_memory all = {};
    all.back = d, all.forward.tiles = d.tiles;
    launch(all, backward);
    auto panel = [](int node, int k) {
        return element_at((size_t)(node / 8 * node::back_panel_bytes + k / width * atom_bytes),
                          node % 8, k % width);
    };
    auto lanes = [](int node, int k) { return lane_place(node, k, 1); };
    values sums(wanted.sums.size()); /* in lane order */
    for (size_t k = 0; k < sums.size(); k++)
        sums[k / width * width + (size_t)lane_order((int)(k % width))] = wanted.sums[k];
    bool right = check_floats(name, "dh'", d.dh_out, wanted.dh);
    right &= check_floats(name, "sums for gate, scale and shift", d.sums, sums);
    right &= check_words(name, "dq", d.dq, wanted.dq, width, false, tile_place);
    right &= check_words(name, "dx", d.dx, wanted.dx, hidden, false, two_tiles_place);
    right &= check_words(name, "g", d.g_out, wanted.g, width, false, lanes);
    return right &
           check_words(name, "dF and dR", d.panels, wanted.panels, 2 * hidden, false, panel);
}

static bool check_stage(const problem &p, stage of) {
    bool right = of == backward ? check_backward(p) : check_forward(p, of == forward_kept);
    give_all();
    printf("%s %s\n", right ? "ok" : "FAILED", stage_of[of].name);
    return right;
}

#ifndef WF_EMULATOR_CUDA_RUNTIME_H
static void time_stages(const problem &p, const bool (&right)[stages]) {
    enum { timed_graphs = 256, sets = 3 };
    std::vector<device_memory> d;
    for (int k = 0; k < sets; k++) d.push_back(make_memory(p, timed_graphs));
    printf("%d tiles\nstage      us   go  stop  verdict\n", d[0].forward.tiles);
    for (int k = 0; k < stages; k++) {
        if (!right[k]) continue;
        int go = stage_of[k].go, stop = stage_of[k].stop;
        double us = median_us(4 * sets, [&](int i) { launch(d[(size_t)(i % sets)], (stage)k); });
        printf("%-5s %7.1f %4d %5d  %s\n", stage_of[k].name, us, go, stop,
               us <= go     ? "go"
               : us <= stop ? "between"
                            : "STOP: not worth porting");
        fflush(stdout);
    }
    give_all();
}
#else
static void time_stages(const problem &, const bool (&)[stages]) {
} /* the emulated device has no times */
#endif

int main(int argc, char **argv) {
    bool only_checks = argc == 2 && strcmp(argv[1], "check") == 0, wrong = false;
    bool right[stages];
    if (argc > 1 && !only_checks) {
        fprintf(stderr, "usage: node_benchmark [check]\n");
        return 2;
    }
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    problem p;
    for (int k = 0; k < stages; k++) wrong |= !(right[k] = check_stage(p, (stage)k));
    if (wrong) printf("a stage is wrong: its time would say nothing\n");
    if (!only_checks) time_stages(p, right);
    return wrong;
}
