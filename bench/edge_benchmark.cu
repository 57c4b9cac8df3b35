/* edge_benchmark: whether the second design of the edge kernels reaches its rates, on synthetic
 * tiles (edge_tiles.cuh) of width 64: forward (edge_forward.cuh) and both halves of backward
 * (edge_backward.cuh), each in three stages on top of one another. Stage 3 of backward is stage 2
 * with another way to one product.
 *
 *     edge_benchmark                 every stage checked on 40 tiles, then those that are right
 *                                    timed on 5,120 (on the emulated device: checked)
 *     edge_benchmark check [STAGE]   the checks alone
 * A check compares every output with sums in double, by the norm of the difference. Times are the
 * median of replays over three sets of tiles, together larger than L2. "cyc" is cycles of one
 * multiprocessor an edge at 1.75 GHz, whatever the clock is. At or below `go` a stage is as fast as
 * the design needs it; above `stop` the design has failed there. */
#include "edge_backward.cuh"
#include "edge_forward.cuh"
#include "tile_checks.cuh"

using namespace edge;

enum kind { forward_edges, update_edges, message_edges };
struct stage {
    const char *name;
    kind of;
    int number;
    double go, stop;
    const char *if_stopped;
};
static const stage stages[] = {
    {"F0", forward_edges, 0, 20, 25, "shapes, descriptors"},
    {"F1", forward_edges, 1, 26, 33, "four groups of 120 registers"},
    {"F2", forward_edges, 2, 31, 40, "copies, residual"},
    {"Z0", update_edges, 0, 32, 42, "shared memory"},
    {"M0", message_edges, 0, 26, 34, "shared memory"},
    {"Z1", update_edges, 1, 42, 54, "units, slopes"},
    {"M1", message_edges, 1, 34, 44, "units, slopes"},
    {"Z2", update_edges, 2, 46, 60, "fused form"},
    {"M2", message_edges, 2, 42, 54, "fused form"},
    {"Z3", update_edges, 3, 46, 60, "as Z2"},
    {"M3", message_edges, 3, 42, 54, "as M2"},
};

/* --- the problem ------------------------------------------------------------------------------ */
/* Values of two graphs; larger problems repeat them. */
enum { known_graphs = 2, known_tiles = known_graphs * graph_tiles, hidden = 2 * half_hidden };
struct problem {
    std::vector<double> w1 = draws(hidden * width, 0.25), w2 = draws(width * half_hidden, 0.25);
    std::vector<double> c2 = draws(width, 1);
    std::vector<double> scale = draws(known_graphs * width, 0.5); /* 1 is added */
    std::vector<double> shift = draws(known_graphs * width, 0.5);
    std::vector<double> gate = draws(known_graphs * width, 0.5); /* 1 is added */
    std::vector<double> e = draws(known_tiles * rows_of_tile * width, 1.75);
    std::vector<double> stats = draws(known_tiles * rows_of_tile * 2, 0.5); /* 1: + 1.5 */
    std::vector<double> table_a = draws(known_graphs * graph_runs * 8 * hidden, 1);
    std::vector<double> table_b = draws(known_graphs * graph_b * 8 * hidden, 1);
    std::vector<double> back_a = draws(known_graphs * graph_runs * 8 * half_hidden, 1); /* dF */
    std::vector<double> back_b = draws(known_graphs * graph_b * 8 * half_hidden, 1);    /* dR */
    std::vector<double> de = draws(known_tiles * rows_of_tile * width, 1);
    std::vector<double> deb = draws(known_tiles * rows_of_tile * width, 1); /* M: what Z left */
};

/* What a tile gives; empty where its kind has no such output. */
struct result {
    std::vector<double> rows, stats; /* (64, 64); (64, 2) */
    std::vector<double> sums[2];     /* (128, 8) towards a and b */
    std::vector<double> weights, part, scale;
};

/* Hidden values of a tile: h = x / 2, y and its slope; columns first .. first + count - 1. */
struct hidden_values {
    std::vector<double> eb, h, y, slope;
};
static hidden_values hidden_of(const problem &p, int tile, int number, int first, int count) {
    hidden_values out;
    int graph = tile / graph_tiles;
    out.eb.resize(rows_of_tile * width);
    for (int row = 0; row < rows_of_tile; row++)
        for (int k = 0; k < width; k++)
            out.eb[(size_t)(row * width + k)] =
                p.e[(size_t)((tile * rows_of_tile + row) * width + k)] *
                    (1 + p.scale[(size_t)(graph * width + k)]) +
                p.shift[(size_t)(graph * width + k)];
    for (int row = 0; row < rows_of_tile; row++)
        for (int n = first; n < first + count; n++) {
            double x = p.table_a[(size_t)((run_of(tile) * 8 + row % 8) * hidden + n)] +
                       p.table_b[(size_t)((b_of(tile) * 8 + row / 8) * hidden + n)];
            for (int k = 0; k < width; k++)
                x += out.eb[(size_t)(row * width + k)] * p.w1[(size_t)(n * width + k)];
            double slope, y = unit(x, &slope);
            out.h.push_back(x / 2);
            out.y.push_back(number > 0 ? y : x / 2);
            out.slope.push_back(number > 0 ? slope : 1);
        }
    return out;
}
/* Sums of (64, 128) values towards a and b. */
static void add_sums(result &out, const std::vector<double> &values, int pitch) {
    for (int end = 0; end < 2; end++) {
        out.sums[end].assign(half_hidden * 8, 0.0);
        for (int row = 0; row < rows_of_tile; row++)
            for (int n = 0; n < half_hidden; n++)
                out.sums[end][(size_t)(n * 8 + (end == 0 ? row % 8 : row / 8))] +=
                    values[(size_t)(row * pitch + n)];
    }
}

static result forward_reference(const problem &p, int tile, int number) {
    hidden_values v = hidden_of(p, tile, number, 0, hidden);
    result out;
    int graph = tile / graph_tiles;
    add_sums(out, v.y, hidden);
    for (int row = 0; row < rows_of_tile; row++) {
        std::vector<double> x(width);
        const double *stats = &p.stats[(size_t)((tile * rows_of_tile + row) * 2)];
        double mean = 0, variance = 0;
        for (int n = 0; n < width; n++) {
            double sum = 0;
            for (int k = 0; k < half_hidden; k++)
                sum += p.w2[(size_t)(n * half_hidden + k)] *
                       v.y[(size_t)(row * hidden + half_hidden + k)];
            double e = stats[0] +
                       (stats[1] + 1.5) * p.e[(size_t)((tile * rows_of_tile + row) * width + n)];
            x[(size_t)n] = number < 2 ? sum
                                      : e + (1 + p.gate[(size_t)(graph * width + n)]) *
                                                (sum + p.c2[(size_t)n]);
            mean += x[(size_t)n] / width;
        }
        for (double value : x) variance += (value - mean) * (value - mean) / width;
        for (double value : x)
            out.rows.push_back(number < 2 ? value : (value - mean) / sqrt(variance + 1e-6));
        out.stats.push_back(mean), out.stats.push_back(sqrt(variance + 1e-6));
    }
    return out;
}

/* The norm backward of a row: deb (doubled) becomes de. */
static void norm_reference(const problem &p, int tile, int row, double *x,
                           std::vector<double> &sum) {
    size_t at = (size_t)((tile * rows_of_tile + row) * width);
    const double *scale = &p.scale[(size_t)(tile / graph_tiles * width)];
    double mean = 0, along = 0, rho = 1 / (p.stats[at / width * 2 + 1] + 1.5);
    for (int k = 0; k < width; k++) {
        x[k] = 2 * (x[k] + p.deb[at + (size_t)k]);
        sum[(size_t)k] += x[k] * p.e[at + (size_t)k];
        x[k] *= 1 + scale[k];
        mean += x[k] / width, along += x[k] * p.e[at + (size_t)k] / width;
    }
    for (int k = 0; k < width; k++)
        x[k] = p.de[at + (size_t)k] + rho * (x[k] - mean - p.e[at + (size_t)k] * along);
}

static result backward_reference(const problem &p, int tile, int number, bool message) {
    hidden_values v = hidden_of(p, tile, number, message ? 0 : half_hidden, half_hidden);
    const double *w1 = &p.w1[message ? 0 : half_hidden * width];
    const double *gate = &p.gate[(size_t)(tile / graph_tiles * width)];
    std::vector<double> dx(rows_of_tile * half_hidden);
    result out;
    out.rows.resize(rows_of_tile * width), out.scale.resize(width);
    out.weights.resize(width * half_hidden), out.part.resize(width * half_hidden);
    for (int row = 0; row < rows_of_tile; row++) {
        const double *de = &p.de[(size_t)((tile * rows_of_tile + row) * width)];
        for (int n = 0; n < half_hidden; n++) {
            size_t at = (size_t)(row * half_hidden + n);
            double g = 0;
            if (message)
                g = p.back_a[(size_t)((run_of(tile) * 8 + row % 8) * half_hidden + n)] +
                    p.back_b[(size_t)((b_of(tile) * 8 + row / 8) * half_hidden + n)];
            else
                for (int k = 0; k < width; k++)
                    g += (1 + gate[k]) * de[k] * p.w2[(size_t)(k * half_hidden + n)];
            dx[at] = message && number == 0 ? g + v.h[at] : g * v.slope[at];
            for (int k = 0; k < width; k++) {
                out.rows[(size_t)(row * width + k)] += dx[at] * w1[n * width + k] / 2;
                out.weights[(size_t)(k * half_hidden + n)] +=
                    v.eb[(size_t)(row * width + k)] * dx[at];
                out.part[(size_t)(k * half_hidden + n)] += de[k] * v.y[at];
            }
        }
        if (message && number >= 2)
            norm_reference(p, tile, row, &out.rows[(size_t)(row * width)], out.scale);
    }
    add_sums(out, dx, half_hidden);
    return out;
}

static void put_selector(bytes &to, size_t tile, bool half) {
    for (int n = 0; n < 16; n++)
        for (int row = 0; row < rows_of_tile; row++) {
            bool one = n < 8 ? row % 8 == n : row / 8 == n - 8;
            put(to, element_at(tile, n, row), !one ? 0 : half ? bits_half(1) : bits_bf16(1));
        }
}
static bytes forward_weights(const problem &p) {
    bytes out(forward::weight_bytes);
    for (int k = 0; k < 4; k++)
        put_tile(out, (size_t)(forward::w1 + k * tile_bytes), &p.w1[(size_t)(k * 64 * width)], 64,
                 width, true, 0.5);
    for (int k = 0; k < 2; k++)
        put_tile(out, (size_t)(forward::w2 + k * tile_bytes), &p.w2[(size_t)(k * 64)], 64,
                 half_hidden, true, 1);
    put_selector(out, forward::selector, true);
    for (int k = 0; k < width; k++) {
        float x = (float)p.c2[(size_t)k];
        memcpy(&out[(size_t)(forward::c2 + lane_order(k) * 4)], &x, 4);
    }
    return out;
}
template <bool Message> static bytes backward_weights_of(const problem &p) {
    bytes out(back<Message>::weight_bytes);
    for (int k = 0; k < 2; k++) {
        size_t first = (size_t)((Message ? 0 : half_hidden) + k * 64) * width;
        put_tile(out, (size_t)(back<Message>::w1 + k * tile_bytes), &p.w1[first], 64, width, false,
                 0.5);
        if (!Message)
            put_tile(out, (size_t)(back<Message>::w2 + k * tile_bytes), &p.w2[(size_t)(k * 64)], 64,
                     half_hidden, false, 1);
    }
    put_selector(out, back<Message>::selector, false);
    return out;
}
static bytes images_of(const problem &p) {
    bytes out((size_t)known_tiles * image_bytes);
    for (int tile = 0; tile < known_tiles; tile++) {
        size_t at = (size_t)tile * image_bytes, from = (size_t)(tile * rows_of_tile);
        put_tile(out, at, &p.e[from * width], rows_of_tile, width, true, 1);
        for (size_t row = 0; row < rows_of_tile; row++) {
            const double *stats = &p.stats[(from + row) * 2];
            float both[2] = {(float)stats[0], (float)(stats[1] + 1.5)};
            memcpy(&out[at + tile_bytes + row * 8], both, 8);
        }
    }
    return out;
}
static bytes modulation_of(const problem &p) {
    bytes out((size_t)known_graphs * modulation_bytes);
    for (int k = 0; k < known_graphs * width; k++) {
        size_t at = (size_t)(k / width * modulation_bytes), place = (size_t)lane_order(k % width);
        float gate = (float)(1 + p.gate[(size_t)k]);
        put(out, at + place * 2, bits_half(1 + p.scale[(size_t)k]));
        put(out, at + 128 + place * 2, bits_half(p.shift[(size_t)k]));
        memcpy(&out[at + 256 + place * 4], &gate, 4);
    }
    return out;
}
static bytes tiles_of(const std::vector<double> &values) {
    bytes out((size_t)known_tiles * tile_bytes);
    for (size_t k = 0; k < known_tiles; k++)
        put_tile(out, k * tile_bytes, &values[k * rows_of_tile * width], rows_of_tile, width, false,
                 1);
    return out;
}
/* Columns first .. first + 64 atoms - 1 of rows by eights. */
static bytes panels_of(const std::vector<double> &values, int pitch, int first, int atoms,
                       double by) {
    size_t octets = values.size() / (size_t)(8 * pitch);
    bytes out(octets * (size_t)(atoms * atom_bytes));
    for (size_t k = 0; k < octets; k++)
        for (int atom = 0; atom < atoms; atom++)
            put_tile(out, (k * (size_t)atoms + (size_t)atom) * atom_bytes,
                     &values[k * 8 * (size_t)pitch + (size_t)(first + 64 * atom)], 8, pitch, false,
                     by);
    return out;
}

/* Parts to blocks, the longest first, each to the block with the fewest tiles. */
struct dealt {
    std::vector<int> list, first;
    dealing host() const { return {list.data(), first.data()}; }
};
static dealt deal_parts(int graphs, int blocks) {
    std::vector<std::vector<int>> of((size_t)blocks);
    std::vector<int> tiles((size_t)blocks);
    for (int longest = 8; longest >= 4; longest -= 4)
        for (int part = 0; part < graphs * graph_parts; part++) {
            if (part_tiles(part) != longest) continue;
            size_t least = (size_t)(std::min_element(tiles.begin(), tiles.end()) - tiles.begin());
            of[least].push_back(part);
            tiles[least] += longest;
        }
    dealt out;
    for (const std::vector<int> &parts : of) {
        out.first.push_back((int)out.list.size());
        out.list.insert(out.list.end(), parts.begin(), parts.end());
    }
    out.first.push_back((int)out.list.size());
    return out;
}

/* Operands and outputs of all kinds for so many graphs. */
struct device_memory {
    forward_args f;
    backward_args z, m;
    int graphs, blocks;
    dealt parts;
};
static device_memory make_memory(const problem &p, int graphs, int blocks) {
    device_memory d = {};
    int times = graphs / known_graphs;
    size_t tiles = (size_t)(graphs * graph_tiles), runs = (size_t)(graphs * graph_runs);
    size_t matrix = (size_t)width * half_hidden * 4, slot = (size_t)slot_words * 4;
    d.graphs = graphs, d.blocks = blocks, d.parts = deal_parts(graphs, blocks);
    dealing deal = {(const int *)upload(of_ints(d.parts.list), 1),
                    (const int *)upload(of_ints(d.parts.first), 1)};
    unsigned char *images = upload(images_of(p), times);
    unsigned char *modulation = upload(modulation_of(p), times);
    unsigned char *de = upload(tiles_of(p.de), times);
    uint32_t *b_slots = (uint32_t *)take(tiles * slot);
    uint32_t *a_slots = (uint32_t *)take(runs * forward::groups * slot);
    float *kept = (float *)take((size_t)(blocks * forward::groups) * width * rows_of_tile * 4);
    unsigned char *out = (unsigned char *)take(tiles * image_bytes);
    d.f = {upload(forward_weights(p), 1),
           images,
           modulation,
           upload(panels_of(p.table_a, hidden, 0, 4, 0.5), times),
           upload(panels_of(p.table_b, hidden, 0, 4, 0.5), times),
           out,
           b_slots,
           a_slots,
           kept,
           deal};
    d.z.images = images, d.z.modulation = modulation, d.z.de = de, d.z.out = out, d.z.kept = kept;
    d.z.b_slots = b_slots, d.z.a_slots = a_slots, d.z.deal = deal;
    d.z.weight_sums = (float *)take((size_t)blocks * matrix);
    d.z.part_sums = (float *)take((size_t)(graphs * graph_parts + blocks) * matrix);
    d.z.scale_sums = (float *)take((size_t)(graphs * graph_parts * 8) * width * 4);
    d.m = d.z;
    d.z.weights = upload(backward_weights_of<false>(p), 1);
    d.m.weights = upload(backward_weights_of<true>(p), 1);
    d.m.deb = upload(tiles_of(p.deb), times);
    d.z.panels[0] = upload(panels_of(p.table_a, hidden, half_hidden, 2, 0.5), times);
    d.z.panels[1] = upload(panels_of(p.table_b, hidden, half_hidden, 2, 0.5), times);
    d.m.panels[0] = upload(panels_of(p.table_a, hidden, 0, 2, 0.5), times);
    d.m.panels[1] = upload(panels_of(p.table_b, hidden, 0, 2, 0.5), times);
    d.m.panels[2] = upload(panels_of(p.back_a, half_hidden, 0, 2, 1), times);
    d.m.panels[3] = upload(panels_of(p.back_b, half_hidden, 0, 2, 1), times);
    return d;
}

template <int Number> static void launch_number(const device_memory &d, kind of) {
    if (of == forward_edges) /* which has no stage 3 */
        start(forward_kernel < Number < 3 ? Number : 2 >, d.blocks, forward::threads,
              forward::bytes, d.f);
    else if (of == update_edges)
        start(backward_kernel<Number, false>, d.blocks, back<false>::threads, back<false>::bytes,
              d.z);
    else
        start(backward_kernel<Number, true>, d.blocks, back<true>::threads, back<true>::bytes, d.m);
}
static void launch_stage(const device_memory &d, const stage &s) {
    if (s.number == 0) launch_number<0>(d, s.of);
    else if (s.number == 1) launch_number<1>(d, s.of);
    else if (s.number == 2) launch_number<2>(d, s.of);
    else launch_number<3>(d, s.of);
}

/* --- checks ----------------------------------------------------------------------------------- */
/* A tile of a group, and the tile it has worked on: its own, before stage 2 the group's first. */
struct work {
    place at;
    int block, group, source;
};
template <int Groups> static std::vector<work> work_of(const device_memory &d, bool resident) {
    std::vector<work> out;
    for (int block = 0; block < d.blocks; block++)
        for (int group = 0; group < Groups; group++) {
            int source = -1;
            each_tile<Groups>(d.parts.host(), block, group, [&](const place &at) {
                if (source < 0 || !resident) source = at.tile;
                out.push_back({at, block, group, source});
            });
        }
    return out;
}

/* Sums towards nodes; every slot of a tile, and those of a that have tiles. */
static bool check_slots(const stage &s, const device_memory &d, const std::vector<work> &list,
                        const std::vector<result> &results, int shares) {
    size_t tiles = (size_t)(d.graphs * graph_tiles), runs = (size_t)(d.graphs * graph_runs);
    auto b = download<uint32_t>(d.f.b_slots, tiles * slot_words);
    auto a = download<uint32_t>(d.f.a_slots, runs * (size_t)shares * slot_words);
    std::vector<std::vector<double>> wanted(runs * (size_t)shares);
    comparison to_b = {s.name, "sums towards b"}, to_a = {s.name, "sums towards a"};
    for (const work &w : list) {
        const result &r = results[(size_t)w.source];
        auto &sum = wanted[(size_t)(run_of(w.at.tile) * shares + (shares > 1 ? w.at.share : 0))];
        sum.resize(half_hidden * 8);
        for (size_t k = 0; k < half_hidden * 8; k++) {
            to_b.add(slot_value(b, (size_t)w.at.tile, k), r.sums[1][k]);
            sum[k] += r.sums[0][k];
        }
    }
    for (size_t slot = 0; slot < wanted.size(); slot++)
        for (size_t k = 0; k < wanted[slot].size(); k++)
            to_a.add(slot_value(a, slot, k), wanted[slot][k]);
    return to_b.passes() & to_a.passes();
}

/* Rows: in the images that left, or of the last tile of each group. */
static bool check_rows(const stage &s, const device_memory &d, const std::vector<work> &list,
                       const std::vector<result> &results, int groups) {
    size_t tiles = (size_t)(d.graphs * graph_tiles), matrix = (size_t)rows_of_tile * width;
    size_t pitch = s.of == forward_edges ? (size_t)image_bytes : (size_t)tile_bytes;
    auto out = download<unsigned char>(d.f.out, tiles * pitch);
    auto kept = download<float>(d.f.kept, (size_t)(d.blocks * groups) * matrix);
    comparison rows = {s.name, "rows"}, stats = {s.name, "means and deviations"};
    stats.norm = 1;
    for (const work &w : list) {
        const result &r = results[(size_t)w.source];
        size_t from = (size_t)w.at.tile * pitch, worker = (size_t)(w.block * groups + w.group);
        for (size_t k = 0; k < matrix; k++) {
            uint16_t bits;
            memcpy(&bits, &out[element_at(from, (int)(k / width), (int)(k % width))], 2);
            double is = s.of == forward_edges ? of_half(bits) : of_bf16(bits);
            rows.add(s.number < 2 ? (double)kept[worker * matrix + k] : is, r.rows[k]);
        }
        for (size_t k = 0; s.number >= 2 && k < r.stats.size(); k++) {
            float is;
            memcpy(&is, &out[from + tile_bytes + k * 4], 4);
            stats.add(is, r.stats[k]);
        }
    }
    return rows.passes() & stats.passes();
}

/* Weight sums of blocks, those of parts, and those of scales. */
static bool check_weights(const stage &s, const device_memory &d, const std::vector<work> &list,
                          const std::vector<result> &results) {
    size_t matrix = (size_t)width * half_hidden, parts = (size_t)(d.graphs * graph_parts);
    bool message = s.of == message_edges, whole = s.number >= 2;
    auto weights = download<float>(d.z.weight_sums, (size_t)d.blocks * matrix);
    auto part = download<float>(d.z.part_sums, (parts + (size_t)d.blocks) * matrix);
    auto scale = download<float>(d.z.scale_sums, parts * 8 * width);
    std::vector<double> sums((size_t)d.blocks * matrix), part_sums(parts * matrix + sums.size());
    std::vector<double> scales(parts * 2 * width);
    for (const work &w : list) {
        const result &r = results[(size_t)w.source];
        size_t to = (size_t)(whole ? w.at.part : w.block) * matrix;
        for (size_t k = 0; k < matrix; k++) {
            sums[(size_t)w.block * matrix + k] += r.weights[k];
            part_sums[to + k] += r.part[k];
        }
        for (size_t k = 0; k < width; k++)
            scales[(size_t)(w.at.part * 2 + w.group) * width + k] += r.scale[k];
    }
    comparison by_block = {s.name, "weight sums"}, by_part = {s.name, "sums of de' y'"};
    comparison by_scale = {s.name, "sums of deb e^"};
    by_part.norm = by_scale.norm = 1e-30;
    for (size_t k = 0; k < sums.size(); k++) by_block.add(weights[k], sums[k]);
    size_t count = (whole ? parts : (size_t)d.blocks) * matrix;
    for (size_t k = 0; !message && k < count; k++) by_part.add(part[k], part_sums[k]);
    for (size_t k = 0; message && whole && k < scales.size(); k++) {
        double is = 0;
        size_t column = (size_t)lane_order((int)(k % width));
        for (size_t warp = 0; warp < 4; warp++)
            is += scale[(k / width * 4 + warp) * width + column];
        by_scale.add(is, scales[k]);
    }
    return by_block.passes() & by_part.passes() & by_scale.passes();
}

static bool check_stage(const problem &p, const stage &s, int blocks) {
    device_memory d = make_memory(p, known_graphs, blocks);
    std::vector<result> results;
    for (int tile = 0; tile < known_tiles; tile++)
        results.push_back(s.of == forward_edges
                              ? forward_reference(p, tile, s.number)
                              : backward_reference(p, tile, s.number, s.of == message_edges));
    launch_stage(d, s);
    check(cudaStreamSynchronize(stream), s.name);
    bool ahead = s.of == forward_edges, right = true;
    auto list = ahead ? work_of<forward::groups>(d, s.number < 2) : work_of<2>(d, s.number < 2);
    right &= check_slots(s, d, list, results, ahead ? (int)forward::groups : 1);
    right &= check_rows(s, d, list, results, ahead ? (int)forward::groups : 2);
    if (!ahead) right &= check_weights(s, d, list, results);
    give_all();
    printf("%s %s\n", right ? "ok" : "FAILED", s.name);
    return right;
}

/* --- times ------------------------------------------------------------------------------------ */
#ifndef WF_EMULATOR_CUDA_RUNTIME_H
enum { timed_graphs = 256, sets = 3 };

static void time_stages(const problem &p, int blocks, const std::vector<bool> &right) {
    std::vector<device_memory> d;
    for (int k = 0; k < sets; k++) d.push_back(make_memory(p, timed_graphs, blocks));
    double edges = (double)timed_graphs * graph_tiles * rows_of_tile;
    printf("%d tiles, %d blocks\nstage      us    cyc   go  stop  verdict\n",
           timed_graphs * graph_tiles, blocks);
    for (const stage &s : stages) {
        if (!right[(size_t)(&s - stages)]) continue;
        double us = median_us(4 * sets, [&](int i) { launch_stage(d[(size_t)(i % sets)], s); });
        double cycles = us * 1750 * blocks / edges;
        printf("%-5s %7.1f %6.1f %4.0f %5.0f  %s%s\n", s.name, us, cycles, s.go, s.stop,
               cycles <= s.go     ? "go"
               : cycles <= s.stop ? "between"
                                  : "STOP: ",
               cycles <= s.stop ? "" : s.if_stopped);
        fflush(stdout);
    }
    give_all();
}
#else
static void time_stages(const problem &, int, const std::vector<bool> &) {
} /* the emulated device has no times */
#endif

int main(int argc, char **argv) {
    bool only_checks = argc > 1 && strcmp(argv[1], "check") == 0, found = argc < 3, wrong = false;
    std::vector<bool> right;
    int blocks;
    for (const stage &s : stages) found |= argc == 3 && strcmp(argv[2], s.name) == 0;
    if ((argc > 1 && !only_checks) || argc > 3 || !found) {
        fprintf(stderr,
                "usage: edge_benchmark [check [F0 | F1 | F2 | Z0 | M0 | Z1 | M1 | Z2 | M2 | Z3 | "
                "M3]]\n");
        return 2;
    }
    check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "no GPU");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    problem p;
    for (const stage &s : stages)
        if (argc < 3 || strcmp(argv[2], s.name) == 0) {
            right.push_back(check_stage(p, s, 2));
            wrong |= !right.back();
        }
    if (wrong) printf("a stage is wrong: its time would say nothing\n");
    if (!only_checks) time_stages(p, blocks, right);
    return wrong;
}
