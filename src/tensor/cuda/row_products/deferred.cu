/* deferred: gathers operations into chains and jobs. */
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/sequence_split.cuh"
#include "tensor/cuda/row_products/gradient_sums.cuh"
#include "tensor/cuda/fp32/row_sums.cuh"
#include "tensor/cuda/row_products/many_rows.cuh"
#include "tensor/cuda/runtime/runtime.cuh"

#include <algorithm>
#include <vector>

namespace wf_gpu {
namespace {

/* --- what is waiting -------------------------------------------------------------------------------------------- */
struct pending_sum {
    sum_job job;
    std::vector<range> sources;
    range target;
};
struct pending_weight {
    weight_job job;
    range sources[2], targets[2];
};
struct known_bounds {
    const uint32_t *map;
    int rows, targets;
    int *bounds;
};

enum { most_chains = 4 };
} // namespace

/* What is waiting on a device. */
struct deferred_work {
    std::vector<open_chain> chains;
    std::vector<pending_sum> sums;
    std::vector<pending_weight> weights;
    std::vector<range> zeros;
    std::vector<known_bounds> bounds;
    /* Of jobs and of the parts of deep sums; given back when the queue is finished, and reused in the stream's order. */
    wf_arena work_arena;
    explicit deferred_work(const wf_arena_source *memory) : work_arena() {
        work_arena.source = memory;
    }
    ~deferred_work() { wf_arena_free(&work_arena); }
};
deferred_work *make_deferred(const wf_arena_source *memory) { return new deferred_work(memory); }
void free_deferred(deferred_work *work) { delete work; }

namespace {

deferred_work &waiting() { return *here().deferred; }

/* --- launching -------------------------------------------------------------------------------------------------- */
void launch_chain(size_t index) {
    open_chain head = waiting().chains[index], deep = {}, tail = {};
    waiting().chains.erase(waiting().chains.begin() + (long)index);
    std::vector<range> reads = head.rows;
    reads.insert(reads.end(), head.tables.begin(), head.tables.end());
    bool few = few_rows(head.c.rows);
    launch_scope scope(few ? side_for(reads, head.writes) : (int)on_main, reads, head.writes);
    if (few) {
        split_deep(head, deep, &waiting().work_arena);
        split_tail(head, tail);
    } else {
        std::vector<chain> steps = split_steps(head);
        for (const chain &c : steps)
            if (c.step[0].kind == chain_product) wide_launch(c);
            else rows_launch(c);
        if (!steps.empty()) return;
    }
    for (open_chain *part : {&deep, &head, &tail}) {
        finish_steps(*part);
        chain_launch(part->c);
    }
}

/* Those on a side first: what is launched on the main stream before them would have to be done before them. */
void launch_chains() {
    for (size_t k = waiting().chains.size(); k-- > 0;)
        if (few_rows(waiting().chains[k].c.rows)) launch_chain(k);
    while (!waiting().chains.empty()) launch_chain(0);
}

void launch_writers(const range &r) {
    for (size_t k = waiting().chains.size(); k-- > 0;)
        if (meets(waiting().chains[k].writes, r)) launch_chain(k);
}
bool being_written(const range &r) {
    for (const open_chain &chain : waiting().chains)
        if (meets(chain.writes, r)) return true;
    return false;
}

bool targets_meet(const pending_sum &a, const pending_sum &b) {
    const char *first = (const char *)a.job.to.data, *second = (const char *)b.job.to.data;
    return first < second + b.job.cols * sizeof(float) &&
           second < first + a.job.cols * sizeof(float);
}

/* The sums that are marked, and all others whose sources stand. Two that add to the same place go one behind the other. */
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
        reads.insert(reads.end(), sum.sources.begin(), sum.sources.end());
        if (sum.job.bounds != NULL)
            reads.push_back(rows_of((const float *)sum.job.bounds, sum.job.targets, 2));
        writes.push_back(sum.target);
    }
    launch_scope scope(side_for(reads, writes), reads, writes);
    sum_jobs batch = {};
    size_t first = 0;
    for (size_t k = 0; k < now.size(); k++) {
        bool again = batch.count == most_sum_jobs;
        for (size_t j = first; j < k; j++) again |= targets_meet(now[j], now[k]);
        if (again) {
            run_sum_jobs(&batch);
            batch.count = 0;
            first = k;
        }
        batch.job[batch.count++] = now[k].job;
    }
    run_sum_jobs(&batch);
}

void launch_weights() {
    std::vector<pending_weight> now;
    now.swap(waiting().weights);
    std::vector<range> reads, writes;
    for (const pending_weight &w : now)
        for (int k = 0; k < 2; k++) {
            launch_writers(w.sources[k]);
            reads.push_back(w.sources[k]);
            writes.push_back(w.targets[k]);
        }
    if (now.empty()) return;
    launch_scope scope(for_weights, reads, writes);
    weight_jobs batch = {};
    for (const pending_weight &w : now) batch.job[batch.count++] = w.job;
    run_weight_jobs(&batch);
}

/* The sums that write into r, or read it when `sources`. */
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

/* --- zeros ------------------------------------------------------------------------------------------------------ */
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
/* All of r is about to be written: true when it would have been zero, which then need not be done. */
bool claim_zero(const range &r) {
    for (size_t k = 0; k < waiting().zeros.size(); k++)
        if (waiting().zeros[k].begin == r.begin &&
            waiting().zeros[k].end <= r.end + WF_PAD * sizeof(float)) { /* slack behind a tensor */
            waiting().zeros.erase(waiting().zeros.begin() + (long)k);
            return true;
        }
    settle_zeros(r);
    return false;
}

/* --- joining a chain -------------------------------------------------------------------------------------------- */
/* What an operation reads by its own row, reads across rows, and writes. */
struct footprint {
    std::vector<range> rows, tables, writes;
    void read(const wf_tensor *t) {
        if (t != NULL) rows.push_back(data_range(t));
    }
    void look(const wf_tensor *t) {
        if (t != NULL) tables.push_back(data_range(t));
    }
};

/* Matrices of the same height are the same or apart, unless memory was given back and taken again. */
bool clashes(const std::vector<range> &mine, const range &r) {
    for (const range &other : mine)
        if (meet(other, r) && other.begin != r.begin) return true;
    return false;
}
bool depends(const open_chain &chain, const footprint &f, bool same) {
    for (const range &r : f.writes) {
        if (meets(chain.tables, r)) return true;
        if (same ? clashes(chain.rows, r) || clashes(chain.writes, r)
                 : meets(chain.rows, r) || meets(chain.writes, r))
            return true;
    }
    for (const range &r : f.tables)
        if (meets(chain.writes, r)) return true;
    for (const range &r : f.rows)
        if (same ? clashes(chain.writes, r) : meets(chain.writes, r)) return true;
    return false;
}

/* The open chain of this height, with room for `steps` more and for new slots of `columns` (slot_pitch), and nothing in the
 * way of f. What has to wait for a chain of graphs begins a chain of its own: the steps before it need not wait. */
open_chain &join(int rows, int steps, int columns, const footprint &f) {
    int most_used = chain_most_slots() - chain_rows * columns;
    bool waits = false;
    for (const range &r : f.rows) settle_sums(r, false), settle_zeros(r);
    for (const range &r : f.tables) settle_sums(r, false), settle_zeros(r);
    for (const range &r : f.writes) settle_sums(r, true), settle_weights(r);
    for (size_t k = waiting().chains.size(); k-- > 0;) {
        bool same = waiting().chains[k].c.rows == rows;
        bool full = same && (waiting().chains[k].c.count + steps > chain_steps ||
                             (columns > 0 && place_slots(waiting().chains[k].slots) > most_used));
        if (!full && !depends(waiting().chains[k], f, same)) continue;
        waits |= !same && few_rows(waiting().chains[k].c.rows) && !few_rows(rows);
        launch_chain(k);
    }
    for (size_t k = waiting().chains.size(); waits && k-- > 0;)
        if (waiting().chains[k].c.rows == rows) launch_chain(k);
    open_chain *found = NULL;
    for (open_chain &chain : waiting().chains)
        if (chain.c.rows == rows) found = &chain;
    if (found == NULL) {
        if (waiting().chains.size() == most_chains) launch_chain(0);
        waiting().chains.push_back(open_chain{});
        found = &waiting().chains.back();
        found->c.rows = rows;
    }
    found->rows.insert(found->rows.end(), f.rows.begin(), f.rows.end());
    found->tables.insert(found->tables.end(), f.tables.begin(), f.tables.end());
    found->writes.insert(found->writes.end(), f.writes.begin(), f.writes.end());
    return *found;
}

chain_step &add_step(open_chain &chain, int kind, int cols) {
    chain_step &s = chain.c.step[chain.c.count++];
    s = chain_step{};
    s.kind = kind;
    s.cols = cols;
    s.slot = -1;
    return s;
}

/* The matrix gets new values: slots with the old ones are stale. */
void written(open_chain &chain, const float *matrix) {
    for (slot &s : chain.slots)
        if (s.matrix == matrix) s.current = false;
}

/* The matrix as the left operand of the product that comes next: index of its slot, or -1, when it is read from memory. It
 * is there, or the step that wrote it keeps it, or it is loaded when it cannot be read by the product, or often. */
int operand(open_chain &chain, const float *matrix, int ld, int cols, bool often) {
    for (size_t k = chain.slots.size(); k-- > 0;)
        if (chain.slots[k].matrix == matrix && chain.slots[k].current) return (int)k;
    int first = chain.c.count;
    for (int k = chain.c.count; k-- > 0;) {
        chain_step &s = chain.c.step[k];
        if (s.out != matrix) continue;
        if (s.cols == cols && s.slot < 0) first = k;
        break;
    }
    if (first == chain.c.count) {
        if (!often && in_whole_rows(matrix, ld)) return -1;
        chain_step &s = add_step(chain, chain_load, cols);
        s.x = matrix;
        s.ldx = ld;
    }
    int index = (int)chain.slots.size();
    chain.c.step[first].slot = index;
    int size = chain_rows * slot_pitch(cols);
    chain.slots.push_back(slot{matrix, ld, cols, size, first, first, true, 0});
    return index;
}

struct factor {
    const float *x;
    int ld;
    const wf_tensor *weight;
    int k;
};

void add_part(open_chain &chain, chain_step &s, const factor &f, int held) {
    if (held >= 0) chain.slots[(size_t)held].last = chain.c.count - 1;
    s.part[s.parts++] = chain_part{
        (const __nv_bfloat16 *)f.weight->panels, f.x, wf_pad(f.weight->cols), f.k, held, f.ld};
}

/* out = [out +] sum of factors, as a step that is not yet finished. */
chain_step &add_product(open_chain &chain, const factor *factors, int count, bool transposed,
                        int cols) {
    enum { many_columns = 128 };
    int held[chain_parts];
    for (int k = 0; k < count; k++)
        held[k] = operand(chain, factors[k].x, factors[k].ld, factors[k].k, cols > many_columns);
    chain_step &s = add_step(chain, chain_product, cols);
    s.transposed = transposed;
    for (int k = 0; k < count; k++) add_part(chain, s, factors[k], held[k]);
    return s;
}

/* The last step, when it is a product backward into this gradient that can take one more part, read from memory. */
chain_step *adding_up(open_chain &chain, const float *gradient, const factor &f) {
    if (chain.c.count == 0 || !in_whole_rows(f.x, f.ld)) return NULL;
    chain_step &s = chain.c.step[chain.c.count - 1];
    bool plain = s.kind == chain_product && s.transposed && s.after == chain_load && s.slot < 0;
    return plain && s.out == gradient && s.parts < chain_parts ? &s : NULL;
}

/* The last step, when it is a product that has just given this matrix and nothing else. */
chain_step *just_multiplied(open_chain &chain, const float *matrix) {
    if (chain.c.count == 0) return NULL;
    chain_step &s = chain.c.step[chain.c.count - 1];
    bool plain = s.kind == chain_product && s.after == chain_load && s.slot < 0;
    return plain && s.out == matrix ? &s : NULL;
}

/* --- jobs ------------------------------------------------------------------------------------------------------- */
int *bounds_of(const uint32_t *map, int rows, int targets) {
    for (const known_bounds &k : waiting().bounds)
        if (k.map == map && k.rows == rows && k.targets == targets) return k.bounds;
    int *found = (int *)wf_arena_alloc(&waiting().work_arena, 2 * (size_t)targets * sizeof(int));
    if (found == NULL) return NULL;
    std::vector<range> written = {rows_of((const float *)found, targets, 2)};
    launch_scope scope(side_for({}, written), {}, written);
    find_bounds(map, rows, targets, found);
    waiting().bounds.push_back(known_bounds{map, rows, targets, found});
    return found;
}

void launch_all_sums() { launch_sums(std::vector<bool>(waiting().sums.size(), true)); }

/* Few targets of very many rows each are summed at once, in spans. */
bool by_spans(const sum_job &job) {
    enum { many_rows = 16384 };
    return job.map != NULL && job.rows / job.targets > many_rows && job.stats == NULL;
}

bool add_sum(sum_job job, const std::vector<range> &sources) {
    range target = columns_of(job.to.data, job.targets, job.to.ld, job.cols);
    for (const pending_sum &sum : waiting().sums)
        if (sum.job.to.set && meet(sum.target, target)) {
            settle_sums(target, false); /* what it sets must be there first */
            break;
        }
    if (!job.to.set) settle_zeros(target);
    for (const range &r : sources) settle_zeros(r);
    launch_writers(target);
    if (by_spans(job)) {
        for (const range &r : sources) launch_writers(r);
        settle_sums(target, false);
        launch_scope scope(on_main, sources, {target});
        return sum_mapped(job.x, job.y, job.ldx, job.rows, job.cols, job.map, job.targets, job.to,
                          &waiting().work_arena);
    }
    if (job.map != NULL && (job.bounds = bounds_of(job.map, job.rows, job.targets)) == NULL)
        return false;
    waiting().sums.push_back(pending_sum{job, sources, target});
    return true;
}

bool add_weight(const wf_op *op, const wf_tensor *x, const wf_tensor *weight,
                const wf_tensor *bias) {
    const wf_tensor *y = op->out[0];
    weight_job job = {};
    job.dy = grad_of(y), job.ldy = y->ld, job.rows = y->rows, job.m = y->cols;
    job.x = data_of(x), job.ldx = x->ld, job.n = x->cols;
    job.weight = weight == NULL ? NULL : grad_of(weight);
    job.bias = bias == NULL ? NULL : grad_of(bias);
    job.scale = (const float *)op->scale;
    range none = {NULL, NULL};
    range targets[2] = {weight == NULL ? none : grad_range(weight),
                        bias == NULL ? none : grad_range(bias)};
    settle_zeros(grad_range(y));
    for (const range &target : targets) settle_zeros(target);
    if (!in_whole_rows(job.x, job.ldx)) {
        launch_writers(grad_range(y));
        launch_writers(data_range(x));
        launch_scope scope(on_main, {grad_range(y), data_range(x)}, {targets[0], targets[1]});
        if (weight != NULL && !weight_product(job.weight, job.dy, job.ldy, job.x, job.ldx, job.rows,
                                              job.m, job.n, &waiting().work_arena))
            return false;
        return bias == NULL ||
               sum_rows(job.dy, job.scale, job.ldy, job.rows, job.m,
                        sum_target{job.bias, 0, false, false}, &waiting().work_arena);
    }
    size_t count = weight_job_scratch(&job);
    job.partial = scratch(&waiting().work_arena, count);
    if (job.partial == NULL) return false;
    job.bias_partial = job.partial + (size_t)job.chunks * (size_t)job.m * (size_t)wf_pad(job.n);
    waiting().weights.push_back(
        pending_weight{job, {grad_range(y), data_range(x)}, {targets[0], targets[1]}});
    if (waiting().weights.size() == most_weight_jobs) launch_weights();
    return true;
}

/* --- operations, forward ---------------------------------------------------------------------------------------- */
/* Left operands of a product are in shared memory at once, at most: x forward, dy backward. */
bool linear_fits(const wf_op *op) {
    int columns = 0, back = slot_pitch(op->out[0]->cols);
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        if (op->in[2 * k + 1]->panels == NULL) return false;
        columns += slot_pitch(op->in[2 * k]->cols);
    }
    return chain_rows * (columns > back ? columns : back) <= chain_most_slots();
}

void queue_linear(const wf_op *op) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    footprint f;
    factor factors[4];
    int count = 0, columns = 0;
    for (; count < 4 && op->in[2 * count] != NULL; count++) {
        const wf_tensor *x = op->in[2 * count];
        f.read(x);
        columns += slot_pitch(x->cols);
        factors[count] = factor{data_of(x), x->ld, op->in[2 * count + 1], x->cols};
    }
    f.look(table);
    f.writes.push_back(data_range(y));
    open_chain &chain = join(y->rows, count + 1, columns, f);
    chain_step &s = add_product(chain, factors, count, false, y->cols);
    s.out = data_of(y), s.ld_out = y->ld;
    if (bias != NULL) s.bias = data_of(bias), s.scale = (const float *)op->scale;
    if (table != NULL) s.table = data_of(table), s.ld_table = table->ld, s.map = op->map;
    written(chain, s.out);
}

void queue_activation(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.read(x);
    f.writes.push_back(data_range(y));
    open_chain &chain = join(y->rows, 1, 0, f);
    chain_step *last = just_multiplied(chain, data_of(x));
    if (last != NULL) {
        last->after = chain_unit;
        last->raw = data_of(x), last->ld_raw = x->ld;
    } else {
        last = &add_step(chain, chain_unit, x->cols);
        last->x = data_of(x), last->ldx = x->ld;
    }
    last->unit = op->unit;
    last->out = data_of(y), last->ld_out = y->ld;
    written(chain, last->out);
}

void queue_norm(const wf_op *op) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    footprint f;
    f.read(x);
    f.look(modulation);
    f.writes.push_back(data_range(y));
    open_chain &chain = join(y->rows, 1, 0, f);
    chain_step &s = add_step(chain, chain_norm, x->cols);
    s.x = data_of(x), s.ldx = x->ld;
    if (modulation != NULL)
        s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld, s.map = op->map;
    s.out = data_of(y), s.ld_out = y->ld;
    written(chain, s.out);
}

void queue_residual(const wf_op *op) {
    const wf_tensor *x = op->in[0], *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    footprint f;
    f.read(x);
    f.read(branch);
    f.look(modulation);
    f.writes.push_back(data_range(y));
    open_chain &chain = join(y->rows, 1, 0, f);
    const float *gate = modulation == NULL ? NULL : data_of(modulation) + op->column;
    int ld_gate = modulation == NULL ? 0 : modulation->ld;
    chain_step *last = just_multiplied(chain, data_of(branch));
    if (last != NULL) {
        last->after = chain_residual;
        last->raw = data_of(branch), last->ld_raw = branch->ld;
        last->gate = gate, last->ld_gate = ld_gate, last->gate_map = op->map;
    } else {
        last = &add_step(chain, chain_residual, x->cols);
        last->other = data_of(branch), last->ld_other = branch->ld;
        last->table = gate, last->ld_table = ld_gate, last->map = op->map;
    }
    last->x = data_of(x), last->ldx = x->ld;
    last->out = data_of(y), last->ld_out = y->ld;
    written(chain, last->out);
}

bool queue_mean(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    range target = data_range(y);
    settle_sums(target, true);
    settle_weights(target);
    for (size_t k = waiting().chains.size(); k-- > 0;)
        if (meets(waiting().chains[k].rows, target) || meets(waiting().chains[k].tables, target))
            launch_chain(k);
    sum_job job = {};
    job.x = data_of(x), job.ldx = x->ld, job.rows = x->rows, job.cols = x->cols;
    job.start = op->start, job.targets = y->rows;
    job.to = sum_target{data_of(y), y->ld, true, true};
    return add_sum(job, {data_range(x)});
}

/* --- operations, backward --------------------------------------------------------------------------------------- */
/* Where a step adds to the gradient of a tensor. */
void into_gradient(open_chain &chain, chain_step &s, const wf_tensor *t, bool fresh) {
    s.out = grad_of(t), s.ld_out = t->ld;
    s.add = !fresh;
    written(chain, s.out);
}

bool queue_linear_back(const wf_op *op) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    bool biased = wanted(bias);
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (wanted(x)) {
            footprint f;
            f.rows.push_back(grad_range(y));
            f.writes.push_back(grad_range(x));
            open_chain &chain = join(y->rows, 2, slot_pitch(y->cols), f);
            factor dy = {grad_of(y), y->ld, weight, y->cols};
            chain_step *sum = adding_up(chain, grad_of(x), dy);
            if (sum != NULL) {
                add_part(chain, *sum, dy, operand(chain, dy.x, dy.ld, dy.k, false));
            } else {
                bool fresh = claim_zero(grad_range(x));
                into_gradient(chain, add_product(chain, &dy, 1, true, x->cols), x, fresh);
            }
        }
        if ((wanted(weight) || biased) &&
            !add_weight(op, x, wanted(weight) ? weight : NULL, biased ? bias : NULL))
            return false;
        biased = false;
    }
    if (!wanted(table)) return true;
    sum_job job = {};
    job.x = grad_of(y), job.ldx = y->ld, job.rows = y->rows, job.cols = y->cols;
    job.map = op->map, job.targets = table->rows;
    bool fresh = !by_spans(job) && claim_zero(grad_range(table)); /* spans leave padding alone */
    job.to = sum_target{grad_of(table), table->ld, fresh, false};
    return add_sum(job, {grad_range(y)});
}

void queue_activation_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.read(x);
    f.rows.push_back(grad_range(y));
    f.writes.push_back(grad_range(x));
    open_chain &chain = join(y->rows, 1, 0, f);
    bool fresh = claim_zero(grad_range(x));
    /* Nobody else reads the gradient of a unit's output, so it need not be stored. */
    chain_step *last = just_multiplied(chain, grad_of(y));
    if (last != NULL && !last->add) {
        last->after = chain_unit_back;
    } else {
        last = &add_step(chain, chain_unit_back, x->cols);
        last->x = grad_of(y), last->ldx = y->ld;
    }
    last->unit = op->unit;
    last->other = data_of(x), last->ld_other = x->ld;
    into_gradient(chain, *last, x, fresh);
}

bool queue_norm_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    footprint f;
    f.read(x);
    f.look(modulation);
    f.rows.push_back(grad_range(y));
    if (wanted(x)) f.writes.push_back(grad_range(x));
    float *stats = NULL;
    if (wanted(modulation)) {
        stats = scratch(&waiting().work_arena, 2 * (size_t)x->rows);
        if (stats == NULL) return false;
        f.writes.push_back(rows_of(stats, x->rows, 2));
    }
    open_chain &chain = join(y->rows, 1, 0, f);
    bool fresh = wanted(x) && claim_zero(grad_range(x));
    chain_step &s = add_step(chain, chain_norm_back, x->cols);
    s.x = grad_of(y), s.ldx = y->ld;
    s.other = data_of(x), s.ld_other = x->ld;
    s.stats = stats;
    if (modulation != NULL)
        s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld, s.map = op->map;
    if (wanted(x)) into_gradient(chain, s, x, fresh);
    if (!wanted(modulation)) return true;
    sum_job job = {};
    job.x = grad_of(y), job.ldx = y->ld, job.rows = y->rows, job.cols = y->cols;
    job.map = op->map, job.targets = modulation->rows;
    job.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    if (!add_sum(job, {grad_range(y)})) return false;
    job.y = data_of(x), job.ldy = x->ld, job.stats = stats;
    job.to.data += x->cols;
    return add_sum(job, {grad_range(y), data_range(x), rows_of(stats, x->rows, 2)});
}

bool queue_residual_back(const wf_op *op) {
    const wf_tensor *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    if (wanted(branch)) {
        footprint f;
        f.rows.push_back(grad_range(y));
        f.look(modulation);
        f.writes.push_back(grad_range(branch));
        open_chain &chain = join(y->rows, 1, 0, f);
        bool fresh = claim_zero(grad_range(branch));
        chain_step &s = add_step(chain, chain_residual_back, y->cols);
        s.x = grad_of(y), s.ldx = y->ld;
        if (modulation != NULL)
            s.table = data_of(modulation) + op->column, s.ld_table = modulation->ld,
            s.map = op->map;
        into_gradient(chain, s, branch, fresh);
    }
    if (!wanted(modulation)) return true;
    sum_job job = {};
    job.x = grad_of(y), job.ldx = y->ld, job.rows = y->rows, job.cols = y->cols;
    job.y = data_of(branch), job.ldy = branch->ld;
    job.map = op->map, job.targets = modulation->rows;
    job.to = sum_target{grad_of(modulation) + op->column, modulation->ld, false, false};
    return add_sum(job, {grad_range(y), data_range(branch)});
}

void queue_mean_back(const wf_op *op) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    footprint f;
    f.tables.push_back(grad_range(y));
    f.writes.push_back(grad_range(x));
    open_chain &chain = join(x->rows, 1, 0, f);
    bool fresh = claim_zero(grad_range(x));
    chain_step &s = add_step(chain, chain_mean_back, x->cols);
    s.x = grad_of(y), s.ldx = y->ld;
    s.start = op->start, s.graphs = y->rows;
    into_gradient(chain, s, x, fresh);
}

/* Sums towards a table of few rows, like those of others. */
bool queue_gather_back(const wf_op *op) {
    const wf_tensor *table = op->in[0], *y = op->out[0];
    sum_job job = {};
    job.x = grad_of(y), job.ldx = y->ld, job.rows = y->rows, job.cols = y->cols;
    job.map = op->map, job.targets = op->map == NULL ? 1 : table->rows;
    job.to = sum_target{grad_of(table), table->ld, false, false};
    return add_sum(job, {grad_range(y)});
}

enum { most_gathered = 1024 };

bool taken_up(const wf_op *op) {
    switch (op->kind) {
    case WF_OP_linear: return linear_fits(op);
    case WF_OP_activation: return op->unit == WF_UNIT_SILU || op->unit == WF_UNIT_GELU;
    case WF_OP_norm: return op->in[0]->cols <= chain_norm_columns;
    case WF_OP_residual:
    case WF_OP_mean: return true;
    default: return false;
    }
}

} // namespace

static queue_answer answer(bool taken) { return taken ? queue_taken : queue_no_memory; }
static const queue_answer taken = queue_taken;

queue_answer queue_forward(const wf_op *op) {
    if (!taken_up(op) || op->out[0]->rows == 0) return queue_declined;
    switch (op->kind) {
    case WF_OP_linear: return queue_linear(op), taken;
    case WF_OP_activation: return queue_activation(op), taken;
    case WF_OP_norm: return queue_norm(op), taken;
    case WF_OP_residual: return queue_residual(op), taken;
    default: return answer(queue_mean(op));
    }
}

queue_answer queue_backward(const wf_op *op) {
    bool gathered = op->kind == WF_OP_gather && wanted(op->in[0]) &&
                    op->in[0]->rows <= most_gathered && few_rows(op->out[0]->rows);
    if (!(taken_up(op) || gathered) || op->out[0]->rows == 0) return queue_declined;
    switch (op->kind) {
    case WF_OP_gather: return answer(queue_gather_back(op));
    case WF_OP_linear: return answer(queue_linear_back(op));
    case WF_OP_activation: return queue_activation_back(op), taken;
    case WF_OP_norm: return answer(queue_norm_back(op));
    case WF_OP_residual: return answer(queue_residual_back(op));
    default: return queue_mean_back(op), taken;
    }
}

bool queue_claim(const wf_tensor *t) { return claim_zero(grad_range(t)); }

bool runs_beside(const wf_op *op, bool backward) {
    switch (op->kind) {
    case WF_OP_activation: return true;
    case WF_OP_time_features:
    case WF_OP_null_rows:
    case WF_OP_gather: return !backward;
    default: return false;
    }
}

launch_scope queue_beside(const wf_op *op, bool backward) {
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
    for (size_t k = waiting().chains.size(); k-- > 0;) {
        const open_chain &chain = waiting().chains[k];
        bool tied = false;
        for (const range &r : reads) tied |= meets(chain.writes, r);
        for (const range &r : writes)
            tied |= meets(chain.writes, r) || meets(chain.rows, r) || meets(chain.tables, r);
        if (tied) launch_chain(k);
    }
    for (const range &r : reads) settle_sums(r, false), settle_zeros(r);
    for (const range &r : writes) settle_sums(r, true), settle_weights(r), settle_zeros(r);
    /* As in queue_before. */
    for (int k = for_graphs; !backward && !wanted(out) && k < for_weights; k++) rejoin((side_id)k);
    return launch_scope(side_for(reads, writes), reads, writes);
}

void queue_before(const wf_op *op, bool backward, unsigned claims) {
    launch_chains();
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
        if ((claims >> i & 1) == 0) settle_zeros(grad_range(in));
        /* Adding to what a sum will add to may come first; adding to what it will set, or overwriting what it reads, may not. */
        for (const pending_sum &s : waiting().sums)
            if (meets(s.sources, grad_range(in)) ||
                (s.job.to.set && meet(s.target, grad_range(in)))) {
                launch_all_sums();
                break;
            }
        settle_weights(grad_range(in));
        writes.push_back(grad_range(in));
    }
    launch_scope scope(on_main, reads, writes);
    /* Where nothing is kept, scratch of the operation may be memory that a chain of graphs still reads. */
    for (int k = for_graphs; !backward && !wanted(op->out[0]) && k < for_weights; k++)
        rejoin((side_id)k);
}

void queue_zero(void *data, size_t bytes) {
    range r = {(const char *)data, (const char *)data + bytes};
    for (size_t k = waiting().chains.size(); k-- > 0;)
        if (meets(waiting().chains[k].writes, r) || meets(waiting().chains[k].rows, r) ||
            meets(waiting().chains[k].tables, r))
            launch_chain(k);
    settle_sums(r, true);
    settle_weights(r);
    settle_zeros(r);
    if (bytes > 0) waiting().zeros.push_back(r);
}

void queue_finish() {
    launch_chains();
    launch_all_sums();
    launch_weights();
    while (!waiting().zeros.empty()) zero_now(waiting().zeros.size() - 1);
    for (int k = 0; k < n_sides; k++) rejoin((side_id)k);
    waiting().bounds.clear();
    wf_arena_reset(&waiting().work_arena);
    plain_next(); /* what comes next may be another capture */
}

void queue_discard() {
    for (int k = 0; k < n_sides; k++) rejoin((side_id)k);
    waiting().chains.clear();
    waiting().sums.clear();
    waiting().weights.clear();
    waiting().zeros.clear();
    waiting().bounds.clear();
    wf_arena_reset(&waiting().work_arena);
    plain_next(); /* what comes next may be another capture */
}

size_t queue_bytes() { return wf_arena_capacity(&waiting().work_arena); }

} // namespace wf_gpu
