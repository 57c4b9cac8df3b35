/* defer_ops: operations of the tape as operations of row sequences, weight gradients and table sums
 * (deferred.cuh). */
#include "tensor/cuda/row_products/deferred.cuh"
#include "tensor/cuda/row_products/pending.cuh"

namespace wf_gpu {
namespace {

/* --- operations of a sequence ----------------------------------------------------------------- */
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
    launch_users(target);
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
        stats = scratch(deferred_scratch(), 2 * (size_t)x->rows);
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

} // namespace wf_gpu
