/* ops_edges: between flat parameters w, v (P) and features of edges and folded rows. Formulas:
 * tape.h. */
#include "tensor/cpu/kernels.h"

/* First edge and parameter of a block, local to the part. */
static size_t block_edge(const wf_part *part, int block) {
    return part->blocks[block].edge0 - part->first_edge;
}
static size_t block_param(const wf_part *part, int block) {
    return part->blocks[block].param0 - part->first_param;
}
static size_t block_edges(const wf_part *part, int block) {
    return (size_t)part->blocks[block].n_src * (size_t)part->blocks[block].n_dst;
}

/* The matrix A of edges with `coef` coefficients; its bias stands after it. */
static wf_tensor *const *code_of(const wf_op *op, int coef) {
    int k = 1;
    while (coef != 1 && (k == 1 || op->in[k]->cols != coef)) k += 2;
    return &op->in[k];
}

/* The readout of edges with `coef` coefficients. */
static const wf_tensor *readout_of(const wf_op *op, int coef) {
    int k = 1;
    while (coef != 1 && (k == 1 || op->in[k] == NULL || op->in[k]->cols != coef)) k++;
    return op->in[k];
}

#define two_pi ((real)6.283185307179586)

/* x = A value + b, into out. A (width, coef) row-major. */
static void affine(const wf_tensor *a, const wf_tensor *b, const real *value, int coef, real *out,
                   int width) {
    const real *matrix = a->data, *bias = b == NULL ? NULL : b->data;
    if (coef == 1) {
        if (bias == NULL)
            for (int c = 0; c < width; c++) out[c] = matrix[c] * value[0];
        else
            for (int c = 0; c < width; c++) out[c] = matrix[c] * value[0] + bias[c];
        return;
    }
    for (int c = 0; c < width; c++)
        out[c] = (bias == NULL ? 0 : bias[c]) + row_dot(matrix + (size_t)c * coef, value, coef);
}

bool WF_FN(wf_edge_features_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_part *part = op->part;
    const wf_tensor *y = op->out[0];
    int half = y->cols / 2;
    for (int block = 0; block < part->n_blocks; block++) {
        int coef = part->blocks[block].coef;
        const wf_tensor *a = code_of(op, coef)[0], *b = code_of(op, coef)[1];
        const real *w = (const real *)op->in[0]->data + block_param(part, block);
        real *out = row_of(y, block_edge(part, block));
        for (size_t r = 0; r < block_edges(part, block); r++, out += y->ld, w += coef) {
            if (op->mode == WF_CODE_FOURIER) {
                affine(a, NULL, w, coef, out, half);
                for (int c = 0; c < half; c++) {
                    /* Whole turns are taken off first: the phase may be hundreds of radians. */
                    real phase = two_pi * (out[c] - (real)floor((double)out[c]));
                    out[c] = r_sin(phase);
                    out[half + c] = r_cos(phase);
                }
            } else {
                affine(a, b, w, coef, out, y->cols);
                if (op->mode == WF_CODE_SINE)
                    for (int c = 0; c < y->cols; c++) out[c] = r_sin(out[c]);
            }
            for (int c = y->cols; c < y->ld; c++) out[c] = 0;
        }
    }
    return true;
}

/* g: gradient by A w + b (before scaling by 2 pi for Fourier). */
static void affine_backward(const wf_tensor *a, const wf_tensor *b, const real *value, real *dvalue,
                            int coef, const real *g, int width) {
    if (wanted(b)) row_add(b->grad, g, width);
    if (coef == 1) {
        if (wanted(a)) row_add_scaled(a->grad, value[0], g, width);
        if (dvalue != NULL) dvalue[0] += row_dot(g, a->data, width);
        return;
    }
    for (int c = 0; c < width; c++) {
        if (wanted(a)) row_add_scaled((real *)a->grad + (size_t)c * coef, g[c], value, coef);
        if (dvalue != NULL)
            row_add_scaled(dvalue, g[c], (const real *)a->data + (size_t)c * coef, coef);
    }
}

bool WF_FN(wf_edge_features_backward)(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_tensor *w = op->in[0], *y = op->out[0];
    int half = y->cols / 2;
    real *g = scratch(arena, (size_t)y->ld), *x = scratch(arena, (size_t)y->ld);
    if (g == NULL || x == NULL) return false;
    for (int block = 0; block < part->n_blocks; block++) {
        int coef = part->blocks[block].coef;
        const wf_tensor *a = code_of(op, coef)[0], *b = code_of(op, coef)[1];
        size_t first = block_param(part, block), edge = block_edge(part, block);
        for (size_t r = 0; r < block_edges(part, block); r++) {
            const real *value = (const real *)w->data + first + r * (size_t)coef;
            real *dvalue = wanted(w) ? (real *)w->grad + first + r * (size_t)coef : NULL;
            const real *dy = grad_row(y, edge + r), *out = row_of(y, edge + r);
            if (op->mode == WF_CODE_FOURIER) {
                if (dvalue == NULL) continue;
                for (int c = 0; c < half; c++)
                    g[c] = two_pi * (dy[c] * out[half + c] - dy[half + c] * out[c]);
                affine_backward(a, NULL, value, dvalue, coef, g, half);
            } else if (op->mode == WF_CODE_SINE) {
                affine(a, b, value, coef, x, y->cols);
                for (int c = 0; c < y->cols; c++) g[c] = dy[c] * r_cos(x[c]);
                affine_backward(a, b, value, dvalue, coef, g, y->cols);
            } else {
                affine_backward(a, b, value, dvalue, coef, dy, y->cols);
            }
        }
    }
    return true;
}

/* Calls copy(flat parameters, row of the fold matrix, count) for the weights and for the bias of
 * every folded row. */
typedef void fold_copy(real *flat, real *row, size_t count);

static void each_fold_row(const wf_part *part, real *flat, real *rows, int ld, fold_copy *copy) {
    for (int f = 0; f < part->n_folds; f++) {
        const wf_batch_fold *fold = &part->folds[f];
        for (int i = 0; i < fold->n_dst; i++, rows += ld) {
            size_t weights = fold->weight0 - part->first_param + (size_t)i * (size_t)fold->n_src;
            copy(flat + weights, rows, (size_t)fold->n_src);
            if (fold->has_bias)
                copy(flat + fold->bias0 - part->first_param + i, rows + fold->n_src, 1);
        }
    }
}
static void flat_to_row(real *flat, real *row, size_t count) {
    memcpy(row, flat, count * sizeof(real));
}
static void row_to_flat(real *flat, real *row, size_t count) {
    memcpy(flat, row, count * sizeof(real));
}
static void add_row_to_flat(real *flat, real *row, size_t count) { row_add(flat, row, (int)count); }
static void add_flat_to_row(real *flat, real *row, size_t count) { row_add(row, flat, (int)count); }

bool WF_FN(wf_fold_pack_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *y = op->out[0];
    memset(y->data, 0, (size_t)y->rows * (size_t)y->ld * sizeof(real));
    each_fold_row(op->part, op->in[0]->data, y->data, y->ld, flat_to_row);
    return true;
}

bool WF_FN(wf_fold_pack_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *w = op->in[0], *y = op->out[0];
    if (wanted(w)) each_fold_row(op->part, w->grad, y->grad, y->ld, add_row_to_flat);
    return true;
}

bool WF_FN(wf_velocity_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_part *part = op->part;
    const wf_tensor *fold = op->in[0];
    for (int block = 0; block < part->n_blocks; block++) {
        int coef = part->blocks[block].coef;
        const wf_tensor *readout = readout_of(op, coef);
        real *v = (real *)op->out[0]->data + block_param(part, block);
        const real *row = row_of(readout, block_edge(part, block));
        for (size_t r = 0; r < block_edges(part, block); r++, row += readout->ld, v += coef)
            memcpy(v, row, (size_t)coef * sizeof(real));
    }
    if (fold != NULL) each_fold_row(part, op->out[0]->data, fold->data, fold->ld, row_to_flat);
    return true;
}

bool WF_FN(wf_velocity_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_part *part = op->part;
    const wf_tensor *fold = op->in[0];
    for (int block = 0; block < part->n_blocks; block++) {
        int coef = part->blocks[block].coef;
        const wf_tensor *readout = readout_of(op, coef);
        if (!wanted(readout)) continue;
        const real *dv = (const real *)op->out[0]->grad + block_param(part, block);
        real *row = grad_row(readout, block_edge(part, block));
        for (size_t r = 0; r < block_edges(part, block); r++, row += readout->ld, dv += coef)
            row_add(row, dv, coef);
    }
    if (wanted(fold)) each_fold_row(part, op->out[0]->grad, fold->grad, fold->ld, add_flat_to_row);
    return true;
}
