/* ops_losses: losses, one number (1, 1) each. Formulas: tape.h. They are sums in double. */
#include "tensor/cpu/kernels.h"

static void set_loss(const wf_op *op, double value) {
    real *out = op->out[0]->data;
    memset(out, 0, (size_t)op->out[0]->ld * sizeof(real));
    out[0] = (real)value;
}

/* --- mean squared error ----------------------------------------------------------------------- */
static const real *mask_row(const wf_op *op, int row) {
    return op->in[2] != NULL ? row_of(op->in[2], row) : NULL;
}

bool WF_FN(wf_mse_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *target = op->in[1];
    double sum = 0;
    for (int r = 0; r < x->rows; r++) {
        const real *in = row_of(x, r), *to = row_of(target, r), *mask = mask_row(op, r);
        real squares = 0;
        for (int c = 0; c < x->cols; c++) {
            real d = (mask != NULL ? mask[c] * in[c] : in[c]) - to[c];
            squares += d * d;
        }
        sum += (double)squares;
    }
    set_loss(op, sum / ((double)x->rows * x->cols));
    return true;
}

bool WF_FN(wf_mse_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *target = op->in[1];
    if (!wanted(x)) return true;
    real factor = ((const real *)op->out[0]->grad)[0] * (real)(2 / ((double)x->rows * x->cols));
    for (int r = 0; r < x->rows; r++) {
        const real *in = row_of(x, r), *to = row_of(target, r), *mask = mask_row(op, r);
        real *restrict dx = grad_row(x, r);
        if (mask == NULL)
            for (int c = 0; c < x->cols; c++) dx[c] += factor * (in[c] - to[c]);
        else
            for (int c = 0; c < x->cols; c++) dx[c] += factor * mask[c] * (mask[c] * in[c] - to[c]);
    }
    return true;
}

/* --- NT-Xent ---------------------------------------------------------------------------------- */
/* Rows of length 1, (n, D), and the factors that made them. */
static void unit_rows(const wf_tensor *z, real *unit, real *factor) {
    for (int i = 0; i < z->rows; i++) {
        const real *in = row_of(z, i);
        real *out = unit + (size_t)i * (size_t)z->cols, square = row_dot(in, in, z->cols);
        /* as in PyTorch, a row shorter than 1e-8 is divided by that */
        factor[i] = 1 / r_sqrt(square > (real)1e-16 ? square : (real)1e-16);
        for (int c = 0; c < z->cols; c++) out[c] = in[c] * factor[i];
    }
}

/* p (n) = softmax of row i's similarities to all others over the temperature; returns the row's
 * loss. */
static double similarities(const wf_op *op, const real *unit, int i, real *p) {
    const wf_tensor *z = op->in[0];
    int n = z->rows, partner = (i + n / 2) % n;
    real most = 0, scale = (real)(1 / op->value), sum = 0;
    for (int j = 0; j < n; j++) {
        p[j] = scale * row_dot(unit + (size_t)i * (size_t)z->cols,
                               unit + (size_t)j * (size_t)z->cols, z->cols);
        if (j != i && (p[j] > most || j == (i == 0))) most = p[j];
    }
    real own = p[partner];
    for (int j = 0; j < n; j++) sum += p[j] = j == i ? 0 : r_exp(p[j] - most);
    for (int j = 0; j < n; j++) p[j] /= sum;
    return (double)(most + r_log(sum)) - (double)own;
}

bool WF_FN(wf_nt_xent_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *z = op->in[0];
    size_t n = (size_t)z->rows;
    real *unit = scratch(arena, n * (size_t)z->cols), *factor = scratch(arena, n);
    real *p = scratch(arena, n);
    if (unit == NULL || factor == NULL || p == NULL) return false;
    unit_rows(z, unit, factor);
    double sum = 0;
    for (int i = 0; i < z->rows; i++) sum += similarities(op, unit, i, p);
    set_loss(op, sum / z->rows);
    return true;
}

/* Similarity (i, j) has gradient g_ij = (p_ij - [j is i's partner]) / (n temperature); both rows i
 * and j see it. */
bool WF_FN(wf_nt_xent_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *z = op->in[0];
    int n = z->rows, cols = z->cols;
    size_t values = (size_t)n * (size_t)cols;
    real *unit = scratch(arena, values), *factor = scratch(arena, (size_t)n);
    real *p = scratch(arena, (size_t)n), *by_unit = zeroed_scratch(arena, values);
    if (unit == NULL || factor == NULL || p == NULL || by_unit == NULL) return false;
    real share = ((const real *)op->out[0]->grad)[0] * (real)(1 / (op->value * n));
    unit_rows(z, unit, factor);
    for (int i = 0; i < n; i++) {
        similarities(op, unit, i, p);
        p[(i + n / 2) % n] -= 1;
        real *own = by_unit + (size_t)i * (size_t)cols;
        for (int j = 0; j < n; j++) {
            if (j == i) continue;
            row_add_scaled(own, share * p[j], unit + (size_t)j * (size_t)cols, cols);
            row_add_scaled(by_unit + (size_t)j * (size_t)cols, share * p[j],
                           unit + (size_t)i * (size_t)cols, cols);
        }
    }
    for (int i = 0; i < n; i++) {
        const real *u = unit + (size_t)i * (size_t)cols, *g = by_unit + (size_t)i * (size_t)cols;
        real along = row_dot(u, g, cols), *dz = grad_row(z, i);
        for (int c = 0; c < cols; c++) dz[c] += factor[i] * (g[c] - along * u[c]);
    }
    return true;
}
