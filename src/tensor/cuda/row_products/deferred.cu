/* deferred: row sequences, weight gradients, table sums and memsets that wait, and when they are
 * launched. */
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/pending.cuh"
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
} // namespace

bool cancel_zero_of(const range &r) {
    for (size_t k = 0; k < waiting().zeros.size(); k++)
        if (waiting().zeros[k].begin == r.begin &&
            /* padding after a tensor */
            waiting().zeros[k].end <= r.end + WF_PAD * sizeof(float)) {
            waiting().zeros.erase(waiting().zeros.begin() + (long)k);
            return true;
        }
    settle_zeros(r);
    return false;
}

namespace {
/* --- joining a sequence ----------------------------------------------------------------------- */
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

} // namespace
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

namespace {
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

} // namespace

bool by_spans(const table_sum &entry) {
    enum { many_rows = 16384 };
    return entry.map != NULL && entry.rows / entry.targets > many_rows && entry.stats == NULL &&
           !entry.half_x;
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

/* Takes scratch, and launches what has been collected once there are enough of them. */
static bool keep_weight(weight_gradient entry, const range (&sources)[2],
                        const range (&targets)[2]) {
    size_t count = weight_gradient_scratch(&entry);
    entry.partial = scratch(&waiting().scratch_arena, count);
    if (entry.partial == NULL) return false;
    entry.bias_partial =
        entry.partial + (size_t)entry.slices * (size_t)entry.m * (size_t)wf_pad(entry.n);
    waiting().weights.push_back(
        pending_weight{entry, {sources[0], sources[1]}, {targets[0], targets[1]}});
    if (waiting().weights.size() == most_weight_gradients) launch_weights();
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
    return keep_weight(entry, {grad_range(y), data_range(x)}, targets);
}

bool add_weight_of(weight_gradient entry, const range (&sources)[2], const wf_tensor *weight,
                   const wf_tensor *bias) {
    range none = {NULL, NULL};
    range targets[2] = {wanted(weight) ? grad_range(weight) : none,
                        wanted(bias) ? grad_range(bias) : none};
    entry.weight = wanted(weight) ? grad_of(weight) : NULL;
    entry.bias = wanted(bias) ? grad_of(bias) : NULL;
    if (entry.weight == NULL && entry.bias == NULL) return true;
    for (const range &target : targets) settle_zeros(target);
    return keep_weight(entry, sources, targets);
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

wf_arena *deferred_scratch() { return &waiting().scratch_arena; }

void launch_users(const range &target) {
    settle_sums(target, true);
    settle_weights(target);
    for (size_t k = waiting().sequences.size(); k-- > 0;)
        if (meets(waiting().sequences[k].rows, target) ||
            meets(waiting().sequences[k].tables, target))
            launch_open(k);
}

size_t deferred_bytes() { return wf_arena_capacity(&waiting().scratch_arena); }

} // namespace wf_gpu
