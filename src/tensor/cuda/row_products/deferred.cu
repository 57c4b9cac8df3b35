/* deferred: gathers operations into row sequences, weight gradients and table sums. */
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/sequence_split.cuh"
#include "tensor/cuda/row_products/gradient_sums.cuh"
#include "tensor/cuda/fp32/row_sums.cuh"
#include "tensor/cuda/row_products/many_rows.cuh"
#include "tensor/cuda/runtime/runtime.cuh"

#include <assert.h>
#include <vector>

namespace wf_gpu {
namespace {

/* --- what is waiting -------------------------------------------------------------------------- */
struct pending_sum {
    table_sum entry;
    std::vector<range> sources;
    range target;
};
struct pending_weight {
    weight_gradient entry;
    range sources[2], targets[2];
};
struct known_bounds {
    const uint32_t *map;
    int rows, targets;
    int *bounds;
};

enum { most_open = 4 };
} // namespace

/* What is waiting on a device. */
struct deferred_work {
    std::vector<open_sequence> sequences;
    std::vector<pending_sum> sums;
    std::vector<pending_weight> weights;
    std::vector<range> zeros;
    std::vector<known_bounds> bounds;
    /* Scratch of weight gradients, table sums and split products. It is given back when everything
     * has been launched; later work reuses it in the order of the stream. */
    wf_arena scratch_arena;
    explicit deferred_work(const wf_arena_source *memory) : scratch_arena() {
        scratch_arena.source = memory;
    }
    ~deferred_work() { wf_arena_free(&scratch_arena); }
};
deferred_work *make_deferred(const wf_arena_source *memory) { return new deferred_work(memory); }
void free_deferred(deferred_work *work) { delete work; }

namespace {

deferred_work &waiting() { return *here().deferred; }

/* --- launching -------------------------------------------------------------------------------- */
void launch_open(size_t index) {
    open_sequence head = waiting().sequences[index], deep = {}, tail = {};
    waiting().sequences.erase(waiting().sequences.begin() + (long)index);
    std::vector<range> reads = head.rows;
    reads.insert(reads.end(), head.tables.begin(), head.tables.end());
    bool few = few_rows(head.c.rows);
    launch_scope scope(few ? side_for(reads, head.writes) : (int)on_main, reads, head.writes);
    if (few) {
        split_deep(head, deep, &waiting().scratch_arena);
        split_tail(head, tail);
    } else {
        std::vector<row_sequence> launches = split_by_op(head);
        for (const row_sequence &c : launches)
            if (c.ops[0].kind == row_product) start_products(c);
            else start_row_ops(c);
        if (!launches.empty()) return;
    }
    for (open_sequence *part : {&deep, &head, &tail}) {
        finish_ops(*part);
        start_sequence(part->c);
    }
}

/* Sequences for side streams go first. A side stream waits for everything that the main stream has
 * been given so far. */
void launch_all_open() {
    for (size_t k = waiting().sequences.size(); k-- > 0;)
        if (few_rows(waiting().sequences[k].c.rows)) launch_open(k);
    while (!waiting().sequences.empty()) launch_open(0);
}

void launch_writers(const range &r) {
    for (size_t k = waiting().sequences.size(); k-- > 0;)
        if (meets(waiting().sequences[k].writes, r)) launch_open(k);
}
bool being_written(const range &r) {
    for (const open_sequence &sequence : waiting().sequences)
        if (meets(sequence.writes, r)) return true;
    return false;
}

bool targets_meet(const pending_sum &a, const pending_sum &b) {
    const char *first = (const char *)a.entry.to.data, *second = (const char *)b.entry.to.data;
    return first < second + b.entry.cols * sizeof(float) &&
           second < first + a.entry.cols * sizeof(float);
}

/* Launches the marked sums, and all others whose sources are complete. Two sums that add to the
 * same place run one after the other. */
void launch_sums(std::vector<bool> marked) {
    for (size_t k = 0; k < waiting().sums.size(); k++)
        if (marked[k])
            for (const range &source : waiting().sums[k].sources) launch_writers(source);
    for (size_t k = 0; k < waiting().sums.size(); k++)
        if (!marked[k]) {
            marked[k] = !being_written(waiting().sums[k].target);
            for (const range &source : waiting().sums[k].sources)
                if (being_written(source)) marked[k] = false;
        }
    std::vector<pending_sum> rest, now;
    for (size_t k = 0; k < waiting().sums.size(); k++)
        (marked[k] ? now : rest).push_back(waiting().sums[k]);
    waiting().sums = rest;
    if (now.empty()) return;
    std::vector<range> reads, writes;
    for (const pending_sum &sum : now) {
        for (const range &source : sum.sources) assert(!being_written(source)); /* Q1 */
        reads.insert(reads.end(), sum.sources.begin(), sum.sources.end());
        if (sum.entry.bounds != NULL)
            reads.push_back(rows_of((const float *)sum.entry.bounds, sum.entry.targets, 2));
        writes.push_back(sum.target);
    }
    launch_scope scope(side_for(reads, writes), reads, writes);
    table_sums batch = {};
    size_t first = 0;
    for (size_t k = 0; k < now.size(); k++) {
        bool again = batch.count == most_table_sums;
        for (size_t j = first; j < k; j++) again |= targets_meet(now[j], now[k]);
        if (again) {
            launch_table_sums(&batch);
            batch.count = 0;
            first = k;
        }
        batch.of[batch.count++] = now[k].entry;
    }
    launch_table_sums(&batch);
}

void launch_weights() {
    std::vector<pending_weight> now;
    now.swap(waiting().weights);
    std::vector<range> reads, writes;
    for (const pending_weight &w : now)
        for (int k = 0; k < 2; k++) {
            launch_writers(w.sources[k]);
            assert(!being_written(w.sources[k])); /* Q1 */
            reads.push_back(w.sources[k]);
            writes.push_back(w.targets[k]);
        }
    if (now.empty()) return;
    launch_scope scope(for_weights, reads, writes);
    weight_gradients batch = {};
    for (const pending_weight &w : now) batch.of[batch.count++] = w.entry;
    launch_weight_gradients(&batch);
}

/* Launches the sums that write into r and, with `sources`, those that read it. */
void settle_sums(const range &r, bool sources) {
    std::vector<bool> marked(waiting().sums.size(), false);
    bool any = false;
    for (size_t k = 0; k < waiting().sums.size(); k++) {
        marked[k] =
            meet(waiting().sums[k].target, r) || (sources && meets(waiting().sums[k].sources, r));
        any |= marked[k];
    }
    if (any) launch_sums(marked);
}

void settle_weights(const range &r) {
    for (const pending_weight &w : waiting().weights)
        if (meet(w.sources[0], r) || meet(w.sources[1], r)) {
            launch_weights();
            return;
        }
}

/* --- zeros ------------------------------------------------------------------------------------ */
void zero_now(size_t index) {
    range r = waiting().zeros[index];
    waiting().zeros.erase(waiting().zeros.begin() + (long)index);
    launch_scope scope(on_main, {}, {r});
    start_zero((void *)r.begin, (size_t)(r.end - r.begin));
}
void settle_zeros(const range &r) {
    for (size_t k = waiting().zeros.size(); k-- > 0;)
        if (meet(waiting().zeros[k], r)) zero_now(k);
}
/* The caller is about to overwrite all of r. If a memset of r is pending, cancels it and returns
 * true. */
bool cancel_zero_of(const range &r) {
    for (size_t k = 0; k < waiting().zeros.size(); k++)
        if (waiting().zeros[k].begin == r.begin &&
            /* padding behind a tensor */
            waiting().zeros[k].end <= r.end + WF_PAD * sizeof(float)) {
            waiting().zeros.erase(waiting().zeros.begin() + (long)k);
            return true;
        }
    settle_zeros(r);
    return false;
}

/* --- joining a sequence ----------------------------------------------------------------------- */
/* The memory of an operation: what it reads in its own row, what it reads in any row, what it
 * writes. */
struct footprint {
    std::vector<range> rows, tables, writes;
    void read(const wf_tensor *t) {
        if (t != NULL) rows.push_back(data_range(t));
    }
    void look(const wf_tensor *t) {
        if (t != NULL) tables.push_back(data_range(t));
    }
};

/* Two matrices with the same number of rows are the same or do not overlap, unless memory was given
 * back and taken again. */
bool clashes(const std::vector<range> &mine, const range &r) {
    for (const range &other : mine)
        if (meet(other, r) && other.begin != r.begin) return true;
    return false;
}
bool depends(const open_sequence &sequence, const footprint &f, bool same) {
    for (const range &r : f.writes) {
        if (meets(sequence.tables, r)) return true;
        if (same ? clashes(sequence.rows, r) || clashes(sequence.writes, r)
                 : meets(sequence.rows, r) || meets(sequence.writes, r))
            return true;
    }
    for (const range &r : f.tables)
        if (meets(sequence.writes, r)) return true;
    for (const range &r : f.rows)
        if (same ? clashes(sequence.writes, r) : meets(sequence.writes, r)) return true;
    return false;
}

/* The open sequence for this number of rows, with room for `ops` more operations and for kept
 * operands of `columns` (kept_pitch). Whatever f depends on is launched first. An operation on
 * nodes that waits for a sequence of graphs starts a new sequence, so that the operations before it
 * need not wait. */
open_sequence &join(int rows, int ops, int columns, const footprint &f) {
    int most_used = most_kept_elements() - sequence_rows * columns;
    bool waits = false;
    for (const range &r : f.rows) settle_sums(r, false), settle_zeros(r);
    for (const range &r : f.tables) settle_sums(r, false), settle_zeros(r);
    for (const range &r : f.writes) settle_sums(r, true), settle_weights(r);
    for (size_t k = waiting().sequences.size(); k-- > 0;) {
        bool same = waiting().sequences[k].c.rows == rows;
        bool full = same && (waiting().sequences[k].c.count + ops > most_row_ops ||
                             (columns > 0 && place_kept(waiting().sequences[k].kept) > most_used));
        if (!full && !depends(waiting().sequences[k], f, same)) continue;
        waits |= !same && few_rows(waiting().sequences[k].c.rows) && !few_rows(rows);
        launch_open(k);
    }
    for (size_t k = waiting().sequences.size(); waits && k-- > 0;)
        if (waiting().sequences[k].c.rows == rows) launch_open(k);
    open_sequence *found = NULL;
    for (open_sequence &sequence : waiting().sequences)
        if (sequence.c.rows == rows) found = &sequence;
    if (found == NULL) {
        if (waiting().sequences.size() == most_open) launch_open(0);
        waiting().sequences.push_back(open_sequence{});
        found = &waiting().sequences.back();
        found->c.rows = rows;
    }
    found->rows.insert(found->rows.end(), f.rows.begin(), f.rows.end());
    found->tables.insert(found->tables.end(), f.tables.begin(), f.tables.end());
    found->writes.insert(found->writes.end(), f.writes.begin(), f.writes.end());
    return *found;
}

row_op &add_op(open_sequence &sequence, int kind, int cols) {
    row_op &s = sequence.c.ops[sequence.c.count++];
    s = row_op{};
    s.kind = kind;
    s.cols = cols;
    s.kept = -1;
    return s;
}

/* The matrix gets new values: kept copies of the old ones are out of date. */
void written(open_sequence &sequence, const float *matrix) {
    for (kept_operand &s : sequence.kept)
        if (s.matrix == matrix) s.current = false;
}

/* The matrix as left operand of the next product: the index of its kept copy, or -1 if the product
 * reads it from memory. There may be a copy already, or the operation that writes the matrix keeps
 * one. Otherwise a row_load makes one if the product cannot read the matrix or reads it often. */
int operand(open_sequence &sequence, const float *matrix, int ld, int cols, bool often) {
    for (size_t k = sequence.kept.size(); k-- > 0;)
        if (sequence.kept[k].matrix == matrix && sequence.kept[k].current) return (int)k;
    int first = sequence.c.count;
    for (int k = sequence.c.count; k-- > 0;) {
        row_op &s = sequence.c.ops[k];
        if (s.out != matrix) continue;
        if (s.cols == cols && s.kept < 0) first = k;
        break;
    }
    if (first == sequence.c.count) {
        if (!often && in_whole_rows(matrix, ld)) return -1;
        row_op &s = add_op(sequence, row_load, cols);
        s.x = matrix;
        s.ldx = ld;
    }
    int index = (int)sequence.kept.size();
    sequence.c.ops[first].kept = index;
    int size = sequence_rows * kept_pitch(cols);
    sequence.kept.push_back(kept_operand{matrix, ld, cols, size, first, first, true, 0});
    return index;
}

struct factor {
    const float *x;
    int ld;
    const wf_tensor *weight;
    int k;
};

void add_part(open_sequence &sequence, row_op &s, const factor &f, int held) {
    if (held >= 0) sequence.kept[(size_t)held].last = sequence.c.count - 1;
    s.terms[s.n_terms++] = product_term{
        (const __nv_bfloat16 *)f.weight->panels, f.x, wf_pad(f.weight->cols), f.k, held, f.ld};
}

/* Appends out = [out +] sum of factors. The caller completes the operation. */
row_op &add_product(open_sequence &sequence, const factor *factors, int count, bool transposed,
                    int cols) {
    enum { many_columns = 128 };
    int held[most_terms];
    for (int k = 0; k < count; k++)
        held[k] = operand(sequence, factors[k].x, factors[k].ld, factors[k].k, cols > many_columns);
    row_op &s = add_op(sequence, row_product, cols);
    s.transposed = transposed;
    for (int k = 0; k < count; k++) add_part(sequence, s, factors[k], held[k]);
    return s;
}

/* The last operation, if it is a backward product into this gradient and can take one more term
 * from memory; else NULL. */
row_op *adding_up(open_sequence &sequence, const float *gradient, const factor &f) {
    if (sequence.c.count == 0 || !in_whole_rows(f.x, f.ld)) return NULL;
    row_op &s = sequence.c.ops[sequence.c.count - 1];
    bool plain = s.kind == row_product && s.transposed && s.after == row_load && s.kept < 0;
    return plain && s.out == gradient && s.n_terms < most_terms ? &s : NULL;
}

/* The last operation, if it is a product that wrote this matrix and does nothing else; else
 * NULL. */
row_op *just_multiplied(open_sequence &sequence, const float *matrix) {
    if (sequence.c.count == 0) return NULL;
    row_op &s = sequence.c.ops[sequence.c.count - 1];
    bool plain = s.kind == row_product && s.after == row_load && s.kept < 0;
    return plain && s.out == matrix ? &s : NULL;
}

/* --- weight gradients and table sums ---------------------------------------------------------- */
int *bounds_of(const uint32_t *map, int rows, int targets) {
    for (const known_bounds &k : waiting().bounds)
        if (k.map == map && k.rows == rows && k.targets == targets) return k.bounds;
    int *found = (int *)wf_arena_alloc(&waiting().scratch_arena, 2 * (size_t)targets * sizeof(int));
    if (found == NULL) return NULL;
    std::vector<range> written = {rows_of((const float *)found, targets, 2)};
    launch_scope scope(side_for({}, written), {}, written);
    find_bounds(map, rows, targets, found);
    waiting().bounds.push_back(known_bounds{map, rows, targets, found});
    return found;
}

void launch_all_sums() { launch_sums(std::vector<bool>(waiting().sums.size(), true)); }

/* A sum of very many rows into few targets is launched at once, in spans (fp32/row_sums.cuh). */
bool by_spans(const table_sum &entry) {
    enum { many_rows = 16384 };
    return entry.map != NULL && entry.rows / entry.targets > many_rows && entry.stats == NULL;
}

bool add_sum(table_sum entry, const std::vector<range> &sources) {
    range target = columns_of(entry.to.data, entry.targets, entry.to.ld, entry.cols);
    for (const pending_sum &sum : waiting().sums)
        if (sum.entry.to.set && meet(sum.target, target)) {
            /* the pending sum overwrites its target, so it goes first */
            settle_sums(target, false);
            break;
        }
    if (!entry.to.set) settle_zeros(target);
    for (const range &r : sources) settle_zeros(r);
    launch_writers(target);
    if (by_spans(entry)) {
        for (const range &r : sources) launch_writers(r);
        settle_sums(target, false);
        launch_scope scope(on_main, sources, {target});
        return sum_mapped(entry.x, entry.y, entry.ldx, entry.rows, entry.cols, entry.map,
                          entry.targets, entry.to, &waiting().scratch_arena);
    }
    if (entry.map != NULL &&
        (entry.bounds = bounds_of(entry.map, entry.rows, entry.targets)) == NULL)
        return false;
    waiting().sums.push_back(pending_sum{entry, sources, target});
    return true;
}

bool add_weight(const wf_op *op, const wf_tensor *x, const wf_tensor *weight,
                const wf_tensor *bias) {
    const wf_tensor *y = op->out[0];
    weight_gradient entry = {};
    entry.dy = grad_of(y), entry.ldy = y->ld, entry.rows = y->rows, entry.m = y->cols;
    entry.x = data_of(x), entry.ldx = x->ld, entry.n = x->cols;
    entry.weight = weight == NULL ? NULL : grad_of(weight);
    entry.bias = bias == NULL ? NULL : grad_of(bias);
    entry.scale = (const float *)op->scale;
    range none = {NULL, NULL};
    range targets[2] = {weight == NULL ? none : grad_range(weight),
                        bias == NULL ? none : grad_range(bias)};
    settle_zeros(grad_range(y));
    for (const range &target : targets) settle_zeros(target);
    if (!in_whole_rows(entry.x, entry.ldx)) {
        launch_writers(grad_range(y));
        launch_writers(data_range(x));
        launch_scope scope(on_main, {grad_range(y), data_range(x)}, {targets[0], targets[1]});
        if (weight != NULL &&
            !weight_product(entry.weight, entry.dy, entry.ldy, entry.x, entry.ldx, entry.rows,
                            entry.m, entry.n, &waiting().scratch_arena))
            return false;
        return bias == NULL ||
               sum_rows(entry.dy, entry.scale, entry.ldy, entry.rows, entry.m,
                        sum_target{entry.bias, 0, false, false}, &waiting().scratch_arena);
    }
    size_t count = weight_gradient_scratch(&entry);
    entry.partial = scratch(&waiting().scratch_arena, count);
    if (entry.partial == NULL) return false;
    entry.bias_partial =
        entry.partial + (size_t)entry.slices * (size_t)entry.m * (size_t)wf_pad(entry.n);
    waiting().weights.push_back(
        pending_weight{entry, {grad_range(y), data_range(x)}, {targets[0], targets[1]}});
    if (waiting().weights.size() == most_weight_gradients) launch_weights();
    return true;
}

/* --- operations, forward ---------------------------------------------------------------------- */
/* The left operands of a product may all be in shared memory at once: x forward, dy backward. */
bool linear_fits(const wf_op *op) {
    int columns = 0, back = kept_pitch(op->out[0]->cols);
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        if (op->in[2 * k + 1]->panels == NULL) return false;
        columns += kept_pitch(op->in[2 * k]->cols);
    }
    return sequence_rows * (columns > back ? columns : back) <= most_kept_elements();
}

void defer_linear(const wf_op *op) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    footprint f;
    factor factors[4];
    int count = 0, columns = 0;
    for (; count < 4 && op->in[2 * count] != NULL; count++) {
        const wf_tensor *x = op->in[2 * count];
        f.read(x);
        columns += kept_pitch(x->cols);
        factors[count] = factor{data_of(x), x->ld, op->in[2 * count + 1], x->cols};
    }
    f.look(table);
    f.writes.push_back(data_range(y));
    open_sequence &sequence = join(y->rows, count + 1, columns, f);
    row_op &s = add_product(sequence, factors, count, false, y->cols);
    s.out = data_of(y), s.ld_out = y->ld;
    if (bias != NULL) s.bias = data_of(bias), s.scale = (const float *)op->scale;
    if (table != NULL) s.table = data_of(table), s.ld_table = table->ld, s.map = op->map;
    written(sequence, s.out);
}

void defer_activation(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.read(x);
    f.writes.push_back(data_range(y));
    open_sequence &sequence = join(y->rows, 1, 0, f);
    row_op *last = just_multiplied(sequence, data_of(x));
    if (last != NULL) {
        last->after = row_activation;
        last->raw = data_of(x), last->ld_raw = x->ld;
    } else {
        last = &add_op(sequence, row_activation, x->cols);
        last->x = data_of(x), last->ldx = x->ld;
    }
    last->act = op->act;
    last->out = data_of(y), last->ld_out = y->ld;
    written(sequence, last->out);
}

void defer_norm(const wf_op *op) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    footprint f;
    f.read(x);
    f.look(modulation);
    f.writes.push_back(data_range(y));
    open_sequence &sequence = join(y->rows, 1, 0, f);
    row_op &s = add_op(sequence, row_norm, x->cols);
    s.x = data_of(x), s.ldx = x->ld;
    if (modulation != NULL)
        s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld, s.map = op->map;
    s.out = data_of(y), s.ld_out = y->ld;
    written(sequence, s.out);
}

void defer_residual(const wf_op *op) {
    const wf_tensor *x = op->in[0], *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    footprint f;
    f.read(x);
    f.read(branch);
    f.look(modulation);
    f.writes.push_back(data_range(y));
    open_sequence &sequence = join(y->rows, 1, 0, f);
    const float *gate = modulation == NULL ? NULL : data_of(modulation) + op->column;
    int ld_gate = modulation == NULL ? 0 : modulation->ld;
    row_op *last = just_multiplied(sequence, data_of(branch));
    if (last != NULL) {
        last->after = row_residual;
        last->raw = data_of(branch), last->ld_raw = branch->ld;
        last->gate = gate, last->ld_gate = ld_gate, last->gate_map = op->map;
    } else {
        last = &add_op(sequence, row_residual, x->cols);
        last->other = data_of(branch), last->ld_other = branch->ld;
        last->table = gate, last->ld_table = ld_gate, last->map = op->map;
    }
    last->x = data_of(x), last->ldx = x->ld;
    last->out = data_of(y), last->ld_out = y->ld;
    written(sequence, last->out);
}

bool defer_mean(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    range target = data_range(y);
    settle_sums(target, true);
    settle_weights(target);
    for (size_t k = waiting().sequences.size(); k-- > 0;)
        if (meets(waiting().sequences[k].rows, target) ||
            meets(waiting().sequences[k].tables, target))
            launch_open(k);
    table_sum entry = {};
    entry.x = data_of(x), entry.ldx = x->ld, entry.rows = x->rows, entry.cols = x->cols;
    entry.start = op->start, entry.targets = y->rows;
    entry.to = sum_target{data_of(y), y->ld, true, true};
    return add_sum(entry, {data_range(x)});
}

/* --- operations, backward --------------------------------------------------------------------- */
/* The operation adds to the gradient of t, or sets it if `fresh`. */
void into_gradient(open_sequence &sequence, row_op &s, const wf_tensor *t, bool fresh) {
    s.out = grad_of(t), s.ld_out = t->ld;
    s.add = !fresh;
    written(sequence, s.out);
}

bool defer_linear_back(const wf_op *op) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    bool biased = wanted(bias);
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (wanted(x)) {
            footprint f;
            f.rows.push_back(grad_range(y));
            f.writes.push_back(grad_range(x));
            open_sequence &sequence = join(y->rows, 2, kept_pitch(y->cols), f);
            factor dy = {grad_of(y), y->ld, weight, y->cols};
            row_op *sum = adding_up(sequence, grad_of(x), dy);
            if (sum != NULL) {
                add_part(sequence, *sum, dy, operand(sequence, dy.x, dy.ld, dy.k, false));
            } else {
                bool fresh = cancel_zero_of(grad_range(x));
                into_gradient(sequence, add_product(sequence, &dy, 1, true, x->cols), x, fresh);
            }
        }
        if ((wanted(weight) || biased) &&
            !add_weight(op, x, wanted(weight) ? weight : NULL, biased ? bias : NULL))
            return false;
        biased = false;
    }
    if (!wanted(table)) return true;
    table_sum entry = {};
    entry.x = grad_of(y), entry.ldx = y->ld, entry.rows = y->rows, entry.cols = y->cols;
    entry.map = op->map, entry.targets = table->rows;
    bool fresh =
        /* span sums do not write the padding */
        !by_spans(entry) && cancel_zero_of(grad_range(table));
    entry.to = sum_target{grad_of(table), table->ld, fresh, false};
    return add_sum(entry, {grad_range(y)});
}

void defer_activation_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.read(x);
    f.rows.push_back(grad_range(y));
    f.writes.push_back(grad_range(x));
    open_sequence &sequence = join(y->rows, 1, 0, f);
    bool fresh = cancel_zero_of(grad_range(x));
    /* Nothing else reads the gradient of an activation's output, so it is not stored. */
    row_op *last = just_multiplied(sequence, grad_of(y));
    if (last != NULL && !last->add) {
        last->after = row_activation_back;
    } else {
        last = &add_op(sequence, row_activation_back, x->cols);
        last->x = grad_of(y), last->ldx = y->ld;
    }
    last->act = op->act;
    last->other = data_of(x), last->ld_other = x->ld;
    into_gradient(sequence, *last, x, fresh);
}

bool defer_norm_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    footprint f;
    f.read(x);
    f.look(modulation);
    f.rows.push_back(grad_range(y));
    if (wanted(x)) f.writes.push_back(grad_range(x));
    float *stats = NULL;
    if (wanted(modulation)) {
        stats = scratch(&waiting().scratch_arena, 2 * (size_t)x->rows);
        if (stats == NULL) return false;
        f.writes.push_back(rows_of(stats, x->rows, 2));
    }
    open_sequence &sequence = join(y->rows, 1, 0, f);
    bool fresh = wanted(x) && cancel_zero_of(grad_range(x));
    row_op &s = add_op(sequence, row_norm_back, x->cols);
    s.x = grad_of(y), s.ldx = y->ld;
    s.other = data_of(x), s.ld_other = x->ld;
    s.stats = stats;
    if (modulation != NULL)
        s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld, s.map = op->map;
    if (wanted(x)) into_gradient(sequence, s, x, fresh);
    if (!wanted(modulation)) return true;
    table_sum entry = {};
    entry.x = grad_of(y), entry.ldx = y->ld, entry.rows = y->rows, entry.cols = y->cols;
    entry.map = op->map, entry.targets = modulation->rows;
    entry.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    if (!add_sum(entry, {grad_range(y)})) return false;
    entry.y = data_of(x), entry.ldy = x->ld, entry.stats = stats;
    entry.to.data += x->cols;
    return add_sum(entry, {grad_range(y), data_range(x), rows_of(stats, x->rows, 2)});
}

bool defer_residual_back(const wf_op *op) {
    const wf_tensor *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    if (wanted(branch)) {
        footprint f;
        f.rows.push_back(grad_range(y));
        f.look(modulation);
        f.writes.push_back(grad_range(branch));
        open_sequence &sequence = join(y->rows, 1, 0, f);
        bool fresh = cancel_zero_of(grad_range(branch));
        row_op &s = add_op(sequence, row_residual_back, y->cols);
        s.x = grad_of(y), s.ldx = y->ld;
        if (modulation != NULL)
            s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld,
            s.map = op->map;
        into_gradient(sequence, s, branch, fresh);
    }
    if (!wanted(modulation)) return true;
    table_sum entry = {};
    entry.x = grad_of(y), entry.ldx = y->ld, entry.rows = y->rows, entry.cols = y->cols;
    entry.y = data_of(branch), entry.ldy = branch->ld;
    entry.map = op->map, entry.targets = modulation->rows;
    entry.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    return add_sum(entry, {grad_range(y), data_range(branch)});
}

void defer_mean_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.tables.push_back(grad_range(y));
    f.writes.push_back(grad_range(x));
    open_sequence &sequence = join(x->rows, 1, 0, f);
    bool fresh = cancel_zero_of(grad_range(x));
    row_op &s = add_op(sequence, row_mean_back, x->cols);
    s.x = grad_of(y), s.ldx = y->ld;
    s.start = op->start, s.graphs = y->rows;
    into_gradient(sequence, s, x, fresh);
}

/* The gradient of a small table is a table sum. */
bool defer_gather_back(const wf_op *op) {
    const wf_tensor *table = op->in[0], *y = op->out[0];
    table_sum entry = {};
    entry.x = grad_of(y), entry.ldx = y->ld, entry.rows = y->rows, entry.cols = y->cols;
    entry.map = op->map, entry.targets = op->map == NULL ? 1 : table->rows;
    entry.to = sum_target{grad_of(table), table->ld, false, false};
    return add_sum(entry, {grad_range(y)});
}

enum { most_gathered = 1024 };

bool taken_up(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_linear: return linear_fits(op);
    case WF_OP_activation: return op->act == WF_TAPE_ACT_SILU || op->act == WF_TAPE_ACT_GELU;
    case WF_OP_norm: return op->in[0]->cols <= widest_norm;
    case WF_OP_residual:
    case WF_OP_mean: return true;
    default: return false;
    }
}

} // namespace

static deferral answer(bool taken) { return taken ? deferred : no_memory; }
static const deferral taken = deferred;

deferral defer_forward(const wf_op *op) {
    if (!taken_up(op) || op->out[0]->rows == 0) return declined;
    switch (op->kind) {
    case WF_OP_linear: return defer_linear(op), taken;
    case WF_OP_activation: return defer_activation(op), taken;
    case WF_OP_norm: return defer_norm(op), taken;
    case WF_OP_residual: return defer_residual(op), taken;
    default: return answer(defer_mean(op));
    }
}

deferral defer_backward(const wf_op *op) {
    bool gathered = op->kind == WF_OP_gather && wanted(op->in[0]) &&
                    op->in[0]->rows <= most_gathered && few_rows(op->out[0]->rows);
    if (!(taken_up(op) || gathered) || op->out[0]->rows == 0) return declined;
    switch (op->kind) {
    case WF_OP_gather: return answer(defer_gather_back(op));
    case WF_OP_linear: return answer(defer_linear_back(op));
    case WF_OP_activation: return defer_activation_back(op), taken;
    case WF_OP_norm: return answer(defer_norm_back(op));
    case WF_OP_residual: return answer(defer_residual_back(op));
    default: return defer_mean_back(op), taken;
    }
}

bool cancel_zero(const wf_tensor *t) { return cancel_zero_of(grad_range(t)); }

bool runs_beside(const wf_op *op, bool backward) {
    switch (op->kind) {
    case WF_OP_activation: return true;
    case WF_OP_time_features:
    case WF_OP_null_rows:
    case WF_OP_gather: return !backward;
    default: return false;
    }
}

launch_scope beside_scope(const wf_op *op, bool backward) {
    std::vector<range> reads, writes;
    const wf_tensor *out = op->out[0];
    if (backward) reads.push_back(grad_range(out));
    else writes.push_back(data_range(out));
    for (int i = 0; i < WF_OP_INPUTS; i++) {
        const wf_tensor *in = op->in[i];
        if (in == NULL) continue;
        reads.push_back(data_range(in));
        if (backward && in->grad != NULL) writes.push_back(grad_range(in));
    }
    for (size_t k = waiting().sequences.size(); k-- > 0;) {
        const open_sequence &sequence = waiting().sequences[k];
        bool tied = false;
        for (const range &r : reads) tied |= meets(sequence.writes, r);
        for (const range &r : writes)
            tied |=
                meets(sequence.writes, r) || meets(sequence.rows, r) || meets(sequence.tables, r);
        if (tied) launch_open(k);
    }
    for (const range &r : reads) settle_sums(r, false), settle_zeros(r);
    for (const range &r : writes) settle_sums(r, true), settle_weights(r), settle_zeros(r);
    /* As in launch_before. */
    for (int k = for_graphs; !backward && !wanted(out) && k < for_weights; k++) rejoin((side_id)k);
    return launch_scope(side_for(reads, writes), reads, writes);
}

void launch_before(const wf_op *op, bool backward, unsigned overwrites) {
    launch_all_open();
    std::vector<range> reads, writes;
    for (int i = 0; i < WF_OP_OUTPUTS; i++) {
        const wf_tensor *out = op->out[i];
        if (out == NULL) continue;
        settle_sums(data_range(out), !backward);
        settle_zeros(data_range(out));
        if (!backward) settle_weights(data_range(out));
        (backward ? reads : writes).push_back(data_range(out));
        if (out->grad == NULL) continue;
        settle_sums(grad_range(out), false);
        settle_zeros(grad_range(out));
        reads.push_back(grad_range(out));
    }
    for (int i = 0; i < WF_OP_INPUTS; i++) {
        const wf_tensor *in = op->in[i];
        if (in == NULL) continue;
        settle_sums(data_range(in), false);
        reads.push_back(data_range(in));
        if (!backward || in->grad == NULL) continue;
        if ((overwrites >> i & 1) == 0) settle_zeros(grad_range(in));
        /* The kernel may add to a gradient before a pending sum adds to it too. It must not run
         * before a sum that sets the gradient, nor overwrite what a sum reads. */
        for (const pending_sum &s : waiting().sums)
            if (meets(s.sources, grad_range(in)) ||
                (s.entry.to.set && meet(s.target, grad_range(in)))) {
                launch_all_sums();
                break;
            }
        settle_weights(grad_range(in));
        writes.push_back(grad_range(in));
    }
    launch_scope scope(on_main, reads, writes);
    /* Without keep, the scratch of this operation may be memory that a sequence of graphs still
     * reads. */
    for (int k = for_graphs; !backward && !wanted(op->out[0]) && k < for_weights; k++)
        rejoin((side_id)k);
}

void defer_zero(void *data, size_t bytes) {
    range r = {(const char *)data, (const char *)data + bytes};
    for (size_t k = waiting().sequences.size(); k-- > 0;)
        if (meets(waiting().sequences[k].writes, r) || meets(waiting().sequences[k].rows, r) ||
            meets(waiting().sequences[k].tables, r))
            launch_open(k);
    settle_sums(r, true);
    settle_weights(r);
    settle_zeros(r);
    if (bytes > 0) waiting().zeros.push_back(r);
}

void launch_deferred() {
    launch_all_open();
    launch_all_sums();
    launch_weights();
    while (!waiting().zeros.empty()) zero_now(waiting().zeros.size() - 1);
    for (int k = 0; k < n_sides; k++) rejoin((side_id)k);
    assert(waiting().sequences.empty() && waiting().sums.empty() && waiting().weights.empty());
    waiting().bounds.clear();
    wf_arena_reset(&waiting().scratch_arena);
    plain_next(); /* the next launch may belong to another capture */
}

void drop_deferred() {
    for (int k = 0; k < n_sides; k++) rejoin((side_id)k);
    waiting().sequences.clear();
    waiting().sums.clear();
    waiting().weights.clear();
    waiting().zeros.clear();
    waiting().bounds.clear();
    wf_arena_reset(&waiting().scratch_arena);
    plain_next(); /* the next launch may belong to another capture */
}

size_t deferred_bytes() { return wf_arena_capacity(&waiting().scratch_arena); }

} // namespace wf_gpu
