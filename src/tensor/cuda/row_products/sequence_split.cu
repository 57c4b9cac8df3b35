/* sequence_split: chains while they are put together. */
#include "tensor/cuda/row_products/sequence_split.cuh"

#include <algorithm>

namespace wf_gpu {

int place_slots(std::vector<slot> &slots) {
    std::vector<slot *> order;
    for (slot &s : slots) order.push_back(&s);
    std::stable_sort(order.begin(), order.end(),
                     [](const slot *a, const slot *b) { return a->size > b->size; });
    int all = 0;
    for (size_t k = 0; k < order.size(); k++) {
        slot &s = *order[k];
        s.at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t j = 0; j < k; j++) {
                const slot &o = *order[j];
                bool at_once = o.first <= s.last && s.first <= o.last;
                if (at_once && o.at < s.at + s.size && s.at < o.at + o.size) {
                    s.at = o.at + o.size;
                    moved = true;
                }
            }
        }
        if (s.at + s.size > all) all = s.at + s.size;
    }
    return all;
}

namespace {

bool in_fours(const float *data, int ld) { return (uintptr_t)data % 16 == 0 && ld % 4 == 0; }

bool reads_matrix(const open_chain &chain, const chain_step &s, const float *matrix) {
    if (s.x == matrix || s.other == matrix) return true;
    for (int j = 0; j < s.parts; j++) {
        const chain_part &part = s.part[j];
        if ((part.slot < 0 ? part.x : chain.slots[(size_t)part.slot].matrix) == matrix) return true;
    }
    return false;
}

/* Whether a step reads what another writes. */
bool reads_result(const open_chain &chain, const chain_step &s, const chain_step &of) {
    return reads_matrix(chain, s, of.out) || (of.raw != NULL && reads_matrix(chain, s, of.raw));
}

/* Whether it matters which of two products comes first. */
bool tied(const open_chain &chain, const chain_step &a, const chain_step &b) {
    return a.out == b.out || reads_result(chain, a, b) || reads_result(chain, b, a);
}

/* First step of a tail of products that have nothing to do with each other: blocks of few rows may then take one each. */
int first_apart(const open_chain &chain) {
    const chain_step *step = chain.c.step;
    int first = chain.c.count;
    while (first > 0) {
        const chain_step &s = step[first - 1];
        if (s.kind != chain_product || s.slot >= 0 || s.add) break;
        bool bound = false;
        for (int k = first; k < chain.c.count; k++) bound |= tied(chain, s, step[k]);
        if (bound) break;
        first--;
    }
    return first;
}

/* A plain sum of products backward, over many columns of matrices that stand before the chain begins. */
bool is_deep(const chain &c, int index) {
    enum { many_columns = 1024 };
    const chain_step &s = c.step[index];
    if (s.kind != chain_product || !s.transposed || s.after != chain_load || s.parts < 2)
        return false;
    int columns = 0;
    for (int p = 0; p < s.parts; p++) {
        columns += s.part[p].k;
        if (s.part[p].slot >= 0) return false;
        for (int k = 0; k < index; k++)
            if (c.step[k].out == s.part[p].x) return false;
    }
    return columns >= many_columns;
}

bool lies_in_fours(const chain_step &s) {
    return s.cols % 4 == 0 && in_fours(s.bias, 0) && in_fours(s.table, s.ld_table) &&
           in_fours(s.gate, s.ld_gate) && in_fours(s.x, s.ldx);
}

/* The step with its left operands in memory, where they lie too; false when a product cannot read one there. */
bool without_slots(const open_chain &chain, chain_step &s) {
    s.slot = -1;
    for (int j = 0; j < s.parts; j++) {
        chain_part &part = s.part[j];
        if (part.slot >= 0) {
            const slot &source = chain.slots[(size_t)part.slot];
            part.x = source.matrix, part.ldx = source.ld;
            part.slot = -1;
        }
        if (!in_whole_rows(part.x, part.ldx)) return false;
    }
    s.aligned = lies_in_fours(s);
    return true;
}

/* Whether a step may be launched together with those of c. */
bool goes_with(const open_chain &chain, const wf_gpu::chain &c, const chain_step &s) {
    bool product = s.kind == chain_product;
    if (product != (c.step[0].kind == chain_product)) return false;
    for (int k = 0; product && k < c.count; k++)
        if (c.step[k].transposed != s.transposed || tied(chain, c.step[k], s)) return false;
    return true;
}

/* Room for `more` steps in place of the one at index; the last of them has its slot. */
void make_room(open_chain &chain, int index, int more) {
    for (int k = chain.c.count; k-- > index + 1;) chain.c.step[k + more - 1] = chain.c.step[k];
    chain.c.count += more - 1;
    for (slot &s : chain.slots) {
        if (s.first >= index) s.first += more - 1;
        if (s.last >= index) s.last += more - 1;
    }
}

} // namespace

void finish_steps(open_chain &chain) {
    wf_gpu::chain &c = chain.c;
    std::vector<slot> &slots = chain.slots;
    c.slots = place_slots(slots);
    for (int k = 0; k < c.count; k++) {
        chain_step &s = c.step[k];
        if (s.slot >= 0) s.slot = slots[(size_t)s.slot].at;
        for (int j = 0; j < s.parts; j++)
            if (s.part[j].slot >= 0) s.part[j].slot = slots[(size_t)s.part[j].slot].at;
        s.aligned = lies_in_fours(s);
    }
}

void split_deep(open_chain &chain, open_chain &parts, wf_arena *arena) {
    parts.c.rows = chain.c.rows;
    parts.c.apart = true;
    for (int k = 0; k < chain.c.count; k++) {
        const chain_step whole = chain.c.step[k];
        int sums = (whole.parts + 1) / 2; /* steps of two parts each */
        if (!is_deep(chain.c, k) || chain.c.count + sums - 1 > chain_steps ||
            parts.c.count + whole.parts > chain_steps)
            continue;
        int ld = wf_pad(whole.cols);
        size_t size = (size_t)chain.c.rows * (size_t)ld;
        float *products = scratch(arena, (size_t)whole.parts * size);
        if (products == NULL) return;
        make_room(chain, k, sums);
        for (int p = 0; p < whole.parts; p++) {
            chain_step &s = parts.c.step[parts.c.count++] = whole;
            s.part[0] = whole.part[p];
            s.parts = 1;
            s.out = products + (size_t)p * size, s.ld_out = ld;
            s.add = false;
            s.slot = -1;
        }
        for (int p = 0; p < whole.parts; p += 2, k++) {
            bool two = p + 1 < whole.parts;
            chain_step &s = chain.c.step[k] = chain_step{};
            s.kind = two ? chain_residual : chain_load;
            s.cols = whole.cols;
            s.x = products + (size_t)p * size, s.ldx = ld;
            if (two) s.other = s.x + size, s.ld_other = ld;
            s.out = whole.out, s.ld_out = whole.ld_out;
            s.add = p > 0 || whole.add;
            s.slot = p + 2 >= whole.parts ? whole.slot : -1;
        }
        k--;
    }
}

void split_tail(open_chain &chain, open_chain &tail) {
    enum { fewest = 4 };
    int first = first_apart(chain), products = chain.c.count - first;
    if (products < fewest || products + 4 > chain_steps) return;
    tail.c.rows = chain.c.rows;
    tail.c.apart = true;
    std::vector<int> loaded(chain.slots.size(), -1);
    for (int k = first; k < chain.c.count; k++)
        for (int j = 0; j < chain.c.step[k].parts; j++) {
            int from = chain.c.step[k].part[j].slot;
            if (from < 0 || loaded[(size_t)from] >= 0) continue;
            const slot &source = chain.slots[(size_t)from];
            if (in_whole_rows(source.matrix, source.ld)) continue;
            loaded[(size_t)from] = (int)tail.slots.size();
            chain_step &s = tail.c.step[tail.c.count];
            s.kind = chain_load;
            s.cols = source.cols;
            s.x = source.matrix, s.ldx = source.ld;
            s.slot = loaded[(size_t)from];
            tail.slots.push_back(source);
            tail.slots.back().first = tail.c.count++;
            tail.slots.back().last = chain_steps;
        }
    for (int k = 0; k < products; k++) {
        chain_step &s = tail.c.step[tail.c.count++] = chain.c.step[first + k];
        for (int j = 0; j < s.parts; j++) {
            chain_part &part = s.part[j];
            if (part.slot < 0) continue;
            const slot &source = chain.slots[(size_t)part.slot];
            part.x = source.matrix, part.ldx = source.ld;
            part.slot = loaded[(size_t)part.slot];
        }
    }
    chain.c.count = first;
}

std::vector<chain> split_steps(const open_chain &chain) {
    std::vector<wf_gpu::chain> all;
    for (int k = 0; k < chain.c.count; k++) {
        chain_step s = chain.c.step[k];
        if (s.kind == chain_load && s.out == NULL) continue; /* for a slot alone */
        if (!without_slots(chain, s)) return {};
        if (all.empty() || !goes_with(chain, all.back(), s)) {
            all.push_back(wf_gpu::chain{});
            all.back().rows = chain.c.rows;
        }
        all.back().step[all.back().count++] = s;
    }
    return all;
}

} // namespace wf_gpu
