/* ops_rows: operations on rows of nodes and graphs: linear, units, layer norm, residual, means, gathers. Formulas: tape.h. */
#include "tensor/cpu/kernels.h"

bool WF_FN(wf_linear_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (weight->cols == 1) {
            const real *w = weight->data;
            for (int r = 0; r < y->rows; r++) {
                real *out = row_of(y, r);
                if (k == 0) memset(out, 0, (size_t)y->ld * sizeof(real));
                row_add_scaled(out, row_of(x, r)[0], w, y->cols);
            }
        } else {
            gemm_packed(y->data, y->ld, x->data, x->ld, weight->panels_t, y->rows, x->cols, y->cols,
                        k > 0);
        }
    }
    const real *scale = op->scale;
    for (int r = 0; r < y->rows; r++) {
        real *out = row_of(y, r);
        if (bias != NULL) row_add_scaled(out, scale == NULL ? 1 : scale[r], bias->data, y->cols);
        if (table != NULL) row_add(out, row_of(table, op->map[r]), y->ld);
    }
    return true;
}

bool WF_FN(wf_linear_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (wanted(x)) {
            if (weight->cols == 1) {
                for (int r = 0; r < y->rows; r++)
                    grad_row(x, r)[0] += row_dot(grad_row(y, r), weight->data, y->cols);
            } else {
                gemm_packed(x->grad, x->ld, y->grad, y->ld, weight->panels, y->rows, y->cols,
                            x->cols, true);
            }
        }
        if (!wanted(weight)) continue;
        if (weight->cols == 1) {
            for (int r = 0; r < y->rows; r++)
                row_add_scaled(weight->grad, row_of(x, r)[0], grad_row(y, r), y->cols);
        } else if (!weight_gradient(weight, y->grad, y->ld, x->data, x->ld, y->rows, arena)) {
            return false;
        }
    }
    const real *scale = op->scale;
    for (int r = 0; r < y->rows; r++) {
        if (wanted(bias))
            row_add_scaled(bias->grad, scale == NULL ? 1 : scale[r], grad_row(y, r), y->cols);
        if (wanted(table)) row_add(grad_row(table, op->map[r]), grad_row(y, r), y->ld);
    }
    return true;
}

/* Rows have whole vectors (T1), and both units are zero at zero. */
static inline __attribute__((always_inline)) void unit_forward(const int unit, const real *x,
                                                               real *y, size_t count) {
    for (size_t i = 0; i < count; i += WF_LANES)
        store(y + i, unit_vector(unit, false, load(x + i), NULL));
}

static inline __attribute__((always_inline)) void
unit_backward(const int unit, const real *x, const real *dy, real *dx, size_t count) {
    for (size_t i = 0; i < count; i += WF_LANES) {
        vreal slope;
        unit_vector(unit, true, load(x + i), &slope);
        store(dx + i, load(dx + i) + load(dy + i) * slope);
    }
}

bool WF_FN(wf_activation_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const real *restrict x = op->in[0]->data;
    real *restrict y = op->out[0]->data;
    size_t count = (size_t)op->in[0]->rows * (size_t)op->in[0]->ld;
    if (op->unit == WF_UNIT_SINE)
        for (size_t i = 0; i < count; i++) y[i] = r_sin(x[i]);
    else if (op->unit == WF_UNIT_SILU) unit_forward(WF_UNIT_SILU, x, y, count);
    else unit_forward(WF_UNIT_GELU, x, y, count);
    return true;
}

bool WF_FN(wf_activation_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const real *restrict x = op->in[0]->data, *restrict dy = op->out[0]->grad;
    real *restrict dx = op->in[0]->grad;
    size_t count = (size_t)op->in[0]->rows * (size_t)op->in[0]->ld;
    if (op->unit == WF_UNIT_SINE)
        for (size_t i = 0; i < count; i++) dx[i] += dy[i] * r_cos(x[i]);
    else if (op->unit == WF_UNIT_SILU) unit_backward(WF_UNIT_SILU, x, dy, dx, count);
    else unit_backward(WF_UNIT_GELU, x, dy, dx, count);
    return true;
}

bool WF_FN(wf_norm_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    int cols = x->cols;
    for (int r = 0; r < x->rows; r++) {
        real *out = row_of(y, r);
        norm_row(row_of(x, r), cols, y->ld, out);
        if (modulation == NULL) continue;
        const real *shift = row_of(modulation, op->map[r]) + op->column, *scale = shift + cols;
        for (int c = 0; c < cols; c++) out[c] = out[c] * (1 + scale[c]) + shift[c];
    }
    return true;
}

bool WF_FN(wf_norm_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    int cols = x->cols;
    real *hat = scratch(arena, (size_t)y->ld), *g = scratch(arena, (size_t)y->ld);
    if (hat == NULL || g == NULL) return false;
    for (int r = 0; r < x->rows; r++) {
        const real *dy = grad_row(y, r);
        real rho = norm_row(row_of(x, r), cols, y->ld, hat);
        if (modulation != NULL) {
            const real *scale = row_of(modulation, op->map[r]) + op->column + cols;
            for (int c = 0; c < cols; c++) g[c] = dy[c] * (1 + scale[c]);
            if (wanted(modulation)) {
                real *dshift = grad_row(modulation, op->map[r]) + op->column;
                real *dscale = dshift + cols;
                for (int c = 0; c < cols; c++) dshift[c] += dy[c];
                for (int c = 0; c < cols; c++) dscale[c] += dy[c] * hat[c];
            }
        } else {
            memcpy(g, dy, (size_t)cols * sizeof(real));
        }
        if (wanted(x)) norm_row_backward(grad_row(x, r), g, hat, rho, cols);
    }
    return true;
}

bool WF_FN(wf_residual_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    for (int r = 0; r < x->rows; r++) {
        const real *in = row_of(x, r), *add = row_of(branch, r);
        real *out = row_of(y, r);
        if (modulation == NULL) {
            for (int c = 0; c < x->ld; c++) out[c] = in[c] + add[c];
            continue;
        }
        const real *gate = row_of(modulation, op->map[r]) + op->column;
        for (int c = 0; c < x->cols; c++) out[c] = in[c] + (1 + gate[c]) * add[c];
        for (int c = x->cols; c < x->ld; c++) out[c] = 0;
    }
    return true;
}

/* The stream's own gradient is the output's (T3): nothing to do for x. */
bool WF_FN(wf_residual_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) {
        const real *dy = grad_row(y, r);
        if (modulation == NULL) {
            if (wanted(branch)) row_add(grad_row(branch, r), dy, y->ld);
            continue;
        }
        const real *gate = row_of(modulation, op->map[r]) + op->column;
        const real *add = row_of(branch, r);
        if (wanted(branch)) {
            real *dbranch = grad_row(branch, r);
            for (int c = 0; c < y->cols; c++) dbranch[c] += (1 + gate[c]) * dy[c];
        }
        if (wanted(modulation)) {
            real *dgate = grad_row(modulation, op->map[r]) + op->column;
            for (int c = 0; c < y->cols; c++) dgate[c] += dy[c] * add[c];
        }
    }
    return true;
}

bool WF_FN(wf_mean_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    for (int g = 0; g < y->rows; g++) {
        real *out = row_of(y, g);
        int rows = (int)(op->start[g + 1] - op->start[g]);
        memset(out, 0, (size_t)y->ld * sizeof(real));
        column_sums(out, row_of(x, op->start[g]), rows, x->ld, x->ld);
        for (int c = 0; c < y->ld && rows > 0; c++) out[c] /= (real)rows;
    }
    return true;
}

bool WF_FN(wf_mean_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    for (int g = 0; g < y->rows; g++) {
        int rows = (int)(op->start[g + 1] - op->start[g]);
        for (int r = 0; r < rows; r++)
            row_add_scaled(grad_row(x, op->start[g] + (size_t)r), 1 / (real)rows, grad_row(y, g),
                           y->ld);
    }
    return true;
}

bool WF_FN(wf_gather_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *table = op->in[0], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) {
        real *out = row_of(y, r);
        memcpy(out, row_of(table, op->map == NULL ? 0 : op->map[r]),
               (size_t)y->cols * sizeof(real));
        for (int c = y->cols; c < y->ld; c++) out[c] = 0;
    }
    return true;
}

bool WF_FN(wf_gather_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *table = op->in[0], *y = op->out[0];
    for (int r = 0; r < y->rows; r++)
        row_add(grad_row(table, op->map == NULL ? 0 : op->map[r]), grad_row(y, r), y->cols);
    return true;
}

bool WF_FN(wf_insert_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *rows = op->in[1], *y = op->out[0];
    if (y->data != x->data)
        memcpy(y->data, x->data, (size_t)x->rows * (size_t)x->ld * sizeof(real));
    for (int r = 0; r < rows->rows; r++) row_add(row_of(y, op->map[r]), row_of(rows, r), y->ld);
    return true;
}

bool WF_FN(wf_insert_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *rows = op->in[1], *y = op->out[0];
    if (!wanted(rows)) return true;
    for (int r = 0; r < rows->rows; r++) row_add(grad_row(rows, r), grad_row(y, op->map[r]), y->ld);
    return true;
}

bool WF_FN(wf_time_features_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *t = op->in[0], *y = op->out[0];
    int half = y->cols / 2;
    for (int r = 0; r < y->rows; r++) {
        real *out = row_of(y, r);
        memset(out, 0, (size_t)y->ld * sizeof(real));
        for (int i = 0; i < half; i++) {
            /* The frequency in double: 1000 t is large and its phase matters. */
            double phase =
                1000.0 * (double)row_of(t, r)[0] * exp(-log(10000.0) * (double)i / (double)half);
            out[i] = (real)cos(phase);
            out[half + i] = (real)sin(phase);
        }
    }
    return true;
}

/* t is data. */
bool WF_FN(wf_time_features_backward)(const wf_op *op, wf_arena *arena) {
    (void)op, (void)arena;
    return true;
}

bool WF_FN(wf_null_rows_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *null = op->in[1], *y = op->out[0];
    memcpy(y->data, x->data, (size_t)x->rows * (size_t)x->ld * sizeof(real));
    for (int r = 0; r < y->rows; r++)
        if (op->flags != NULL && op->flags[r])
            memcpy(row_of(y, r), null->data, (size_t)y->cols * sizeof(real));
    return true;
}

bool WF_FN(wf_null_rows_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *null = op->in[1], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) {
        const wf_tensor *source = op->flags != NULL && op->flags[r] ? null : x;
        if (wanted(source))
            row_add(grad_row(source, source == null ? 0 : r), grad_row(y, r), y->cols);
    }
    return true;
}

bool WF_FN(wf_logit_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *a = op->in[0], *m = op->in[1], *y = op->out[0];
    memset(y->data, 0, (size_t)y->ld * sizeof(real));
    for (int k = 0; k < m->rows; k++)
        row_add_scaled(y->data, ((const real *)a->data)[k], row_of(m, k), m->cols);
    return true;
}

bool WF_FN(wf_logit_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *a = op->in[0], *m = op->in[1], *y = op->out[0];
    for (int k = 0; k < m->rows; k++) {
        if (wanted(a)) ((real *)a->grad)[k] += row_dot(y->grad, row_of(m, k), m->cols);
        if (wanted(m)) row_add_scaled(grad_row(m, k), ((const real *)a->data)[k], y->grad, m->cols);
    }
    return true;
}
