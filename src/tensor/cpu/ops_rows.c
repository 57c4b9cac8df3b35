/* ops_rows: operations on rows of nodes and graphs: linear, activation, layer norm, residual,
 * means, gathers. Formulas: tape.h. */
#include "tensor/cpu/product.h"

static void add_bias(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    const real *scale = op->scale;
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r);
        if (bias != NULL) row_add_scaled(out, scale == NULL ? 1 : scale[r], bias->data, y->cols);
        if (table != NULL) row_add(out, row_of(table, op->map[r]), table->ld);
    }
}

bool WF_FN(wf_linear_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0];
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (weight->cols == 1) {
            const real *w = weight->data;
            for (int r = 0; r < y->rows; r++) {
                real *out = row_of(y, r);
                if (k == 0) memset(out, 0, (size_t)y->ld * sizeof(real));
                row_add_scaled(out, row_of(x, r)[0], w, y->cols);
            }
        } else if (weight->panels_t != NULL) {
            gemm_packed(y->data, y->ld, x->data, x->ld, weight->panels_t, y->rows, x->cols, y->cols,
                        k > 0);
        } else if (!WF_FN(wf_product_by_weight)(op->ctx, arena, y->data, y->ld, x->data, x->ld,
                                                weight->data, weight->ld, y->rows, x->cols, y->cols,
                                                k > 0)) {
            return false;
        }
    }
    if (op->in[8] != NULL || op->in[9] != NULL) over_rows(op, y->rows, y->ld, add_bias, NULL);
    return true;
}

/* Gradients of a weight that is read where it lies, and of its input. */
static void plain_gradients(const wf_op *op, const wf_tensor *x, const wf_tensor *weight) {
    const wf_tensor *y = op->out[0];
    if (wanted(x)) {
        product_args input = {x->grad,    x->ld,   y->grad, y->ld,   1,   weight->data,
                              weight->ld, y->rows, y->cols, x->cols, true};
        WF_FN(wf_product)(op->ctx, &input);
    }
    if (wanted(weight)) {
        product_args own = {weight->grad, weight->ld, y->grad, 1,       y->ld, x->data,
                            x->ld,        y->cols,    y->rows, x->cols, true};
        WF_FN(wf_product)(op->ctx, &own);
    }
}

/* Gradients of bias and table, columns first .. last-1. */
static void sum_bias(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    const real *scale = op->scale;
    int width = last - first;
    for (int r = 0; r < y->rows; r++) {
        const real *dy = grad_row(y, r) + first;
        if (wanted(bias))
            row_add_scaled((real *)bias->grad + first, scale == NULL ? 1 : scale[r], dy, width);
        if (wanted(table)) row_add(grad_row(table, op->map[r]) + first, dy, width);
    }
}

bool WF_FN(wf_linear_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0];
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (weight->cols > 1 && weight->panels == NULL) {
            plain_gradients(op, x, weight);
            continue;
        }
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
    if (wanted(op->in[8]) || wanted(op->in[9])) over_columns(op, y->cols, sum_bias, NULL);
    return true;
}

/* Rows have whole vectors (T1), and both units are zero at zero. */
static inline __attribute__((always_inline)) void act_forward(const int act, const real *x, real *y,
                                                              size_t count) {
    for (size_t i = 0; i < count; i += WF_LANES)
        store(y + i, act_vector(act, false, load(x + i), NULL));
}

static inline __attribute__((always_inline)) void
act_backward(const int act, const real *x, const real *dy, real *dx, size_t count) {
    for (size_t i = 0; i < count; i += WF_LANES) {
        vreal slope;
        act_vector(act, true, load(x + i), &slope);
        store(dx + i, load(dx + i) + load(dy + i) * slope);
    }
}

/* The units that are not smooth_unit's: value and slope. */
static inline __attribute__((always_inline)) real other_act(const int act, real x, real *slope) {
    real bell, value;
    switch (act) {
    case WF_TAPE_ACT_SINE: *slope = r_cos(x); return r_sin(x);
    case WF_TAPE_ACT_GELU_ERF:
        value = r_normal_cdf(x, &bell);
        *slope = value + x * bell * (real)0.3989422804014327; /* 1 / sqrt(2 pi) */
        return x * value;
    case WF_TAPE_ACT_RELU: *slope = x > 0; return x > 0 ? x : 0;
    case WF_TAPE_ACT_LEAKY_RELU: *slope = x > 0 ? 1 : (real)0.01; return x * *slope;
    case WF_TAPE_ACT_ELU:
        value = r_exp(x < 0 ? x : 0);
        *slope = value;
        return x > 0 ? x : value - 1;
    default: /* softplus: max(x, 0) + ln(1 + e^-|x|) */
        value = r_exp(x < 0 ? x : -x);
        *slope = (x < 0 ? value : 1) / (1 + value);
        return (x > 0 ? x : 0) + r_log(1 + value);
    }
}

static inline __attribute__((always_inline)) void
other_forward(const int act, const real *restrict x, real *restrict y, size_t count) {
    real slope;
    for (size_t i = 0; i < count; i++) y[i] = other_act(act, x[i], &slope);
}
static inline __attribute__((always_inline)) void other_backward(const int act,
                                                                 const real *restrict x,
                                                                 const real *restrict dy,
                                                                 real *restrict dx, size_t count) {
    for (size_t i = 0; i < count; i++) {
        real slope;
        other_act(act, x[i], &slope);
        dx[i] += dy[i] * slope;
    }
}

static void activation_rows(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *in = op->in[0], *out = op->out[0];
    const real *x = row_of(in, first);
    real *y = row_of(out, first);
    size_t count = (size_t)(last - first) * (size_t)in->ld;
    switch (op->act) {
    case WF_TAPE_ACT_SILU: act_forward(WF_TAPE_ACT_SILU, x, y, count); break;
    case WF_TAPE_ACT_GELU: act_forward(WF_TAPE_ACT_GELU, x, y, count); break;
    case WF_TAPE_ACT_SINE: other_forward(WF_TAPE_ACT_SINE, x, y, count); break;
    case WF_TAPE_ACT_GELU_ERF: other_forward(WF_TAPE_ACT_GELU_ERF, x, y, count); break;
    case WF_TAPE_ACT_RELU: other_forward(WF_TAPE_ACT_RELU, x, y, count); break;
    case WF_TAPE_ACT_LEAKY_RELU: other_forward(WF_TAPE_ACT_LEAKY_RELU, x, y, count); break;
    case WF_TAPE_ACT_ELU: other_forward(WF_TAPE_ACT_ELU, x, y, count); break;
    default:
        other_forward(WF_TAPE_ACT_SOFTPLUS, x, y, count);
        for (int r = first; r < last; r++) /* softplus of the padding is not zero */
            memset(row_of(out, r) + out->cols, 0, (size_t)(out->ld - out->cols) * sizeof(real));
    }
}

WF_OVER_ROWS(activation_forward, op->in[0], activation_rows)

/* Gradients of the padding are zero. */
static void activation_back_rows(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *in = op->in[0];
    const real *x = row_of(in, first), *dy = grad_row(op->out[0], first);
    real *dx = grad_row(in, first);
    size_t count = (size_t)(last - first) * (size_t)in->ld;
    switch (op->act) {
    case WF_TAPE_ACT_SILU: act_backward(WF_TAPE_ACT_SILU, x, dy, dx, count); break;
    case WF_TAPE_ACT_GELU: act_backward(WF_TAPE_ACT_GELU, x, dy, dx, count); break;
    case WF_TAPE_ACT_SINE: other_backward(WF_TAPE_ACT_SINE, x, dy, dx, count); break;
    case WF_TAPE_ACT_GELU_ERF: other_backward(WF_TAPE_ACT_GELU_ERF, x, dy, dx, count); break;
    case WF_TAPE_ACT_RELU: other_backward(WF_TAPE_ACT_RELU, x, dy, dx, count); break;
    case WF_TAPE_ACT_LEAKY_RELU: other_backward(WF_TAPE_ACT_LEAKY_RELU, x, dy, dx, count); break;
    case WF_TAPE_ACT_ELU: other_backward(WF_TAPE_ACT_ELU, x, dy, dx, count); break;
    default: other_backward(WF_TAPE_ACT_SOFTPLUS, x, dy, dx, count);
    }
}

WF_OVER_ROWS(activation_backward, op->in[0], activation_back_rows)

static void norm_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    int cols = x->cols;
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r);
        norm_row(row_of(x, r), cols, y->ld, out);
        if (modulation == NULL) continue;
        const real *shift = row_of(modulation, op->map[r]) + op->column, *scale = shift + cols;
        for (int c = 0; c < cols; c++) out[c] = out[c] * (1 + scale[c]) + shift[c];
    }
}

WF_OVER_ROWS(norm_forward, op->in[0], norm_range)

/* Scratch of a row: the normalised row and the gradient by it. */
static void norm_back_range(const wf_op *op, void *more, int first, int last) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    int cols = x->cols;
    for (int r = first; r < last; r++) {
        real *hat = (real *)more + (op->ctx == NULL ? 0 : (size_t)r * 2 * (size_t)y->ld);
        real *g = hat + y->ld;
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
}

bool WF_FN(wf_norm_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    size_t rows = op->ctx == NULL ? 1 : (size_t)x->rows;
    real *two = scratch(arena, 2 * rows * (size_t)y->ld);
    if (two == NULL) return false;
    if (wanted(op->in[1])) over_groups(op, x->rows, x->ld, norm_back_range, two);
    else over_rows(op, x->rows, x->ld, norm_back_range, two);
    return true;
}

/* residual: y = x + (1 + gate) r; gated_residual: y = x + gate r. */
static real residual_base(const wf_op *op) { return op->kind == WF_OP_residual ? 1 : 0; }

static void residual_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const real one = residual_base(op);
    const wf_tensor *x = op->in[0], *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r), *add = row_of(branch, r);
        real *out = row_of(y, r);
        if (modulation == NULL) {
            for (int c = 0; c < x->ld; c++) out[c] = in[c] + add[c];
            continue;
        }
        const real *gate = row_of(modulation, op->map[r]) + op->column;
        for (int c = 0; c < x->cols; c++) out[c] = in[c] + (one + gate[c]) * add[c];
        for (int c = x->cols; c < x->ld; c++) out[c] = 0;
    }
}

/* The stream's own gradient is the output's (T3): nothing to do for x. */
static void residual_back_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const real one = residual_base(op);
    const wf_tensor *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    for (int r = first; r < last; r++) {
        const real *dy = grad_row(y, r);
        if (modulation == NULL) {
            if (wanted(branch)) row_add(grad_row(branch, r), dy, y->ld);
            continue;
        }
        const real *gate = row_of(modulation, op->map[r]) + op->column;
        const real *add = row_of(branch, r);
        if (wanted(branch)) {
            real *dbranch = grad_row(branch, r);
            for (int c = 0; c < y->cols; c++) dbranch[c] += (one + gate[c]) * dy[c];
        }
        if (wanted(modulation)) {
            real *dgate = grad_row(modulation, op->map[r]) + op->column;
            for (int c = 0; c < y->cols; c++) dgate[c] += dy[c] * add[c];
        }
    }
}

static bool residual_back(const wf_op *op) {
    const wf_tensor *y = op->out[0];
    if (wanted(op->in[2])) over_groups(op, y->rows, y->ld, residual_back_range, NULL);
    else over_rows(op, y->rows, y->ld, residual_back_range, NULL);
    return true;
}

WF_OVER_ROWS(residual_forward, op->in[0], residual_range)
WF_OVER_ROWS(gated_residual_forward, op->in[0], residual_range)
bool WF_FN(wf_residual_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    return residual_back(op);
}
bool WF_FN(wf_gated_residual_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    return residual_back(op);
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
            /* In double: the phase may be large. */
            double phase =
                op->value * (double)row_of(t, r)[0] * exp(-log(10000.0) * (double)i / (double)half);
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
