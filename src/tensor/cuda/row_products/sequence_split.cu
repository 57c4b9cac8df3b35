/* sequence_split: preparing row sequences for launch. */
#include "tensor/cuda/row_products/sequence_split.cuh"

#include <algorithm>

namespace wf_gpu {

int place_kept(std::vector<kept_operand> &kept) {
    std::vector<kept_operand *> order;
    for (kept_operand &s : kept) order.push_back(&s);
    std::stable_sort(order.begin(), order.end(), [](const kept_operand *a, const kept_operand *b) {
        return a->size > b->size;
    });
    int all = 0;
    for (size_t k = 0; k < order.size(); k++) {
        kept_operand &s = *order[k];
        s.at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t j = 0; j < k; j++) {
                const kept_operand &o = *order[j];
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

bool reads_matrix(const open_sequence &sequence, const row_op &s, const float *matrix) {
    if (s.x == matrix || s.other == matrix) return true;
    for (int j = 0; j < s.n_terms; j++) {
        const product_term &term = s.terms[j];
        if ((term.kept < 0 ? term.x : sequence.kept[(size_t)term.kept].matrix) == matrix)
            return true;
    }
    return false;
}

/* Whether s reads a result of `of`. */
bool reads_result(const open_sequence &sequence, const row_op &s, const row_op &of) {
    return reads_matrix(sequence, s, of.out) ||
           (of.raw != NULL && reads_matrix(sequence, s, of.raw));
}

/* Whether the order of two products matters. */
bool tied(const open_sequence &sequence, const row_op &a, const row_op &b) {
    return a.out == b.out || reads_result(sequence, a, b) || reads_result(sequence, b, a);
}

/* The first operation of a tail of independent products. */
int first_apart(const open_sequence &sequence) {
    const row_op *step = sequence.c.ops;
    int first = sequence.c.count;
    while (first > 0) {
        const row_op &s = step[first - 1];
        if (s.kind != row_product || s.kept >= 0 || s.add) break;
        bool bound = false;
        for (int k = first; k < sequence.c.count; k++) bound |= tied(sequence, s, step[k]);
        if (bound) break;
        first--;
    }
    return first;
}

/* Whether an operation is a plain backward product over many columns, of matrices that are complete
 * before the sequence begins. */
bool is_deep(const row_sequence &c, int index) {
    enum { many_columns = 1024 };
    const row_op &s = c.ops[index];
    if (s.kind != row_product || !s.transposed || s.after != row_load || s.n_terms < 2)
        return false;
    int columns = 0;
    for (int p = 0; p < s.n_terms; p++) {
        columns += s.terms[p].k;
        if (s.terms[p].kept >= 0) return false;
        for (int k = 0; k < index; k++)
            if (c.ops[k].out == s.terms[p].x) return false;
    }
    return columns >= many_columns;
}

bool lies_in_fours(const row_op &s) {
    return s.cols % 4 == 0 && in_fours(s.bias, 0) && in_fours(s.table, s.ld_table) &&
           in_fours(s.gate, s.ld_gate) && in_fours(s.x, s.ldx);
}

/* Makes a product read its left operands from memory. False: it cannot read one of them there. */
bool from_memory(const open_sequence &sequence, row_op &s) {
    s.kept = -1;
    for (int j = 0; j < s.n_terms; j++) {
        product_term &term = s.terms[j];
        if (term.kept >= 0) {
            const kept_operand &source = sequence.kept[(size_t)term.kept];
            term.x = source.matrix, term.ldx = source.ld;
            term.kept = -1;
        }
        if (!in_whole_rows(term.x, term.ldx)) return false;
    }
    s.aligned = lies_in_fours(s);
    return true;
}

/* Whether s may be launched together with the operations of c. */
bool goes_with(const open_sequence &sequence, const row_sequence &c, const row_op &s) {
    bool product = s.kind == row_product;
    if (product != (c.ops[0].kind == row_product)) return false;
    for (int k = 0; product && k < c.count; k++)
        if (c.ops[k].transposed != s.transposed || tied(sequence, c.ops[k], s)) return false;
    return true;
}

/* Makes room for `more` operations in place of the one at index; the last of them keeps its
 * result. */
void make_room(open_sequence &sequence, int index, int more) {
    for (int k = sequence.c.count; k-- > index + 1;)
        sequence.c.ops[k + more - 1] = sequence.c.ops[k];
    sequence.c.count += more - 1;
    for (kept_operand &s : sequence.kept) {
        if (s.first >= index) s.first += more - 1;
        if (s.last >= index) s.last += more - 1;
    }
}

} // namespace

void finish_ops(open_sequence &sequence) {
    row_sequence &c = sequence.c;
    std::vector<kept_operand> &kept = sequence.kept;
    c.kept_elements = place_kept(kept);
    for (int k = 0; k < c.count; k++) {
        row_op &s = c.ops[k];
        if (s.kept >= 0) s.kept = kept[(size_t)s.kept].at;
        for (int j = 0; j < s.n_terms; j++)
            if (s.terms[j].kept >= 0) s.terms[j].kept = kept[(size_t)s.terms[j].kept].at;
        s.aligned = lies_in_fours(s);
    }
}

void split_deep(open_sequence &sequence, open_sequence &parts, wf_arena *arena) {
    parts.c.rows = sequence.c.rows;
    parts.c.apart = true;
    for (int k = 0; k < sequence.c.count; k++) {
        const row_op whole = sequence.c.ops[k];
        int sums = (whole.n_terms + 1) / 2; /* operations that add two terms each */
        if (!is_deep(sequence.c, k) || sequence.c.count + sums - 1 > most_row_ops ||
            parts.c.count + whole.n_terms > most_row_ops)
            continue;
        int ld = wf_pad(whole.cols);
        size_t size = (size_t)sequence.c.rows * (size_t)ld;
        float *products = scratch(arena, (size_t)whole.n_terms * size);
        if (products == NULL) return;
        make_room(sequence, k, sums);
        for (int p = 0; p < whole.n_terms; p++) {
            row_op &s = parts.c.ops[parts.c.count++] = whole;
            s.terms[0] = whole.terms[p];
            s.n_terms = 1;
            s.out = products + (size_t)p * size, s.ld_out = ld;
            s.add = false;
            s.kept = -1;
        }
        for (int p = 0; p < whole.n_terms; p += 2, k++) {
            bool two = p + 1 < whole.n_terms;
            row_op &s = sequence.c.ops[k] = row_op{};
            s.kind = two ? row_residual : row_load;
            s.cols = whole.cols;
            s.x = products + (size_t)p * size, s.ldx = ld;
            if (two) s.other = s.x + size, s.ld_other = ld;
            s.out = whole.out, s.ld_out = whole.ld_out;
            s.add = p > 0 || whole.add;
            s.kept = p + 2 >= whole.n_terms ? whole.kept : -1;
        }
        k--;
    }
}

void split_tail(open_sequence &sequence, open_sequence &tail) {
    enum { fewest = 4 };
    int first = first_apart(sequence), products = sequence.c.count - first;
    if (products < fewest || products + 4 > most_row_ops) return;
    tail.c.rows = sequence.c.rows;
    tail.c.apart = true;
    std::vector<int> loaded(sequence.kept.size(), -1);
    for (int k = first; k < sequence.c.count; k++)
        for (int j = 0; j < sequence.c.ops[k].n_terms; j++) {
            int from = sequence.c.ops[k].terms[j].kept;
            if (from < 0 || loaded[(size_t)from] >= 0) continue;
            const kept_operand &source = sequence.kept[(size_t)from];
            if (in_whole_rows(source.matrix, source.ld)) continue;
            loaded[(size_t)from] = (int)tail.kept.size();
            row_op &s = tail.c.ops[tail.c.count];
            s.kind = row_load;
            s.cols = source.cols;
            s.x = source.matrix, s.ldx = source.ld;
            s.kept = loaded[(size_t)from];
            tail.kept.push_back(source);
            tail.kept.back().first = tail.c.count++;
            tail.kept.back().last = most_row_ops;
        }
    for (int k = 0; k < products; k++) {
        row_op &s = tail.c.ops[tail.c.count++] = sequence.c.ops[first + k];
        for (int j = 0; j < s.n_terms; j++) {
            product_term &term = s.terms[j];
            if (term.kept < 0) continue;
            const kept_operand &source = sequence.kept[(size_t)term.kept];
            term.x = source.matrix, term.ldx = source.ld;
            term.kept = loaded[(size_t)term.kept];
        }
    }
    sequence.c.count = first;
}

std::vector<row_sequence> split_by_op(const open_sequence &sequence) {
    std::vector<row_sequence> all;
    for (int k = 0; k < sequence.c.count; k++) {
        row_op s = sequence.c.ops[k];
        if (s.kind == row_load && s.out == NULL) continue; /* loads a kept operand only */
        if (!from_memory(sequence, s)) return {};
        if (all.empty() || !goes_with(sequence, all.back(), s)) {
            all.push_back(row_sequence{});
            all.back().rows = sequence.c.rows;
        }
        all.back().ops[all.back().count++] = s;
    }
    return all;
}

} // namespace wf_gpu
