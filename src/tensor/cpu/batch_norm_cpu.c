/* batch_norm_cpu: batch norm of columns over all rows.
 *
 * Rows are cut into chunks by their number alone; partial sums of chunks are added in order, so
 * that bits do not depend on threads and sums over hundreds of thousands of rows stay exact.
 * Variances are sums of squares about the mean, in a second pass. */
#include "tensor/cpu/kernels.h"

enum { chunk_rows = 512 };
#define momentum ((real)0.1)

struct pass;
typedef void pass_fn(const struct pass *p, int first, int last, real *a, real *b);
typedef struct pass {
    const wf_op *op;
    pass_fn *fn;
    const real *mean, *rho; /* [C] */
    const real *sum[2];     /* backward: sums of dy and of dy * hat */
    real *partial;          /* (chunks, 2, C), zero; NULL: no sums */
} pass;

static int chunks_of(const wf_tensor *x) { return (x->rows + chunk_rows - 1) / chunk_rows; }

static void pass_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    const pass *p = arg;
    const wf_tensor *x = p->op->in[0];
    int first = (int)chunk * chunk_rows, cols = x->cols;
    int last = first + chunk_rows < x->rows ? first + chunk_rows : x->rows;
    real *a = p->partial == NULL ? NULL : p->partial + chunk * 2 * (size_t)cols;
    p->fn(p, first, last, a, a == NULL ? NULL : a + cols);
}

/* Runs fn over all rows; with sums: out[0..1] (C each) = the sums of all chunks. */
static bool run_pass(pass *p, wf_arena *arena, pass_fn *fn, real *out) {
    const wf_tensor *x = p->op->in[0];
    wf_arena_mark mark = wf_arena_here(arena);
    int chunks = chunks_of(x);
    size_t two = 2 * (size_t)x->cols;
    p->fn = fn;
    p->partial = NULL;
    if (out != NULL) {
        p->partial = zeroed_scratch(arena, (size_t)chunks * two);
        if (p->partial == NULL) return false;
    }
    wf_parallel(p->op->ctx, (size_t)chunks, pass_chunk, p);
    if (out != NULL) {
        memset(out, 0, two * sizeof(real));
        for (int c = 0; c < chunks; c++) row_add(out, p->partial + (size_t)c * two, (int)two);
    }
    wf_arena_rewind(arena, mark);
    return true;
}

static void add_rows(const pass *p, int first, int last, real *a, real *b) {
    (void)b;
    const wf_tensor *x = p->op->in[0];
    for (int r = first; r < last; r++) row_add(a, row_of(x, r), x->cols);
}
static void add_squares(const pass *p, int first, int last, real *restrict a, real *b) {
    (void)b;
    const wf_tensor *x = p->op->in[0];
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r);
        for (int c = 0; c < x->cols; c++) a[c] += (in[c] - p->mean[c]) * (in[c] - p->mean[c]);
    }
}
static void normalise(const pass *p, int first, int last, real *a, real *b) {
    (void)a, (void)b;
    const wf_tensor *x = p->op->in[0], *y = p->op->out[0];
    const real *weight = p->op->in[1]->data, *bias = p->op->in[2]->data;
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r);
        real *restrict out = row_of(y, r);
        for (int c = 0; c < x->cols; c++)
            out[c] = (in[c] - p->mean[c]) * p->rho[c] * weight[c] + bias[c];
        for (int c = x->cols; c < y->ld; c++) out[c] = 0;
    }
}

/* saved: mean and rho (C each) of what was used. */
bool WF_FN(wf_batch_norm_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0];
    real *mean = op->saved, *rho = mean + x->cols, *running = op->in[3]->data;
    const real rows = (real)x->rows;
    pass p = {.op = op, .mean = mean, .rho = rho};
    real *sums = scratch(arena, 2 * (size_t)x->cols);
    if (sums == NULL) return false;
    if (!op->mode) {
        memcpy(mean, running, 2 * (size_t)x->cols * sizeof(real));
    } else {
        if (!run_pass(&p, arena, add_rows, sums)) return false;
        for (int c = 0; c < x->cols; c++) mean[c] = sums[c] / rows;
        if (!run_pass(&p, arena, add_squares, sums)) return false;
        for (int c = 0; c < x->cols; c++) {
            real *old = running + x->cols + c;
            rho[c] = sums[c] / rows;
            running[c] += momentum * (mean[c] - running[c]);
            *old += momentum * ((x->rows > 1 ? sums[c] / (rows - 1) : rho[c]) - *old);
        }
    }
    for (int c = 0; c < x->cols; c++) rho[c] = 1 / r_sqrt(rho[c] + (real)op->value);
    return run_pass(&p, arena, normalise, NULL);
}

static void add_gradients(const pass *p, int first, int last, real *restrict a, real *restrict b) {
    const wf_tensor *x = p->op->in[0];
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r), *dy = grad_row(p->op->out[0], r);
        for (int c = 0; c < x->cols; c++) {
            a[c] += dy[c];
            b[c] += dy[c] * (in[c] - p->mean[c]) * p->rho[c];
        }
    }
}
static void input_gradients(const pass *p, int first, int last, real *a, real *b) {
    (void)a, (void)b;
    const wf_tensor *x = p->op->in[0];
    const real *weight = p->op->in[1]->data, share = 1 / (real)x->rows;
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r), *dy = grad_row(p->op->out[0], r);
        real *restrict dx = grad_row(x, r);
        if (!p->op->mode) {
            for (int c = 0; c < x->cols; c++) dx[c] += p->rho[c] * weight[c] * dy[c];
            continue;
        }
        for (int c = 0; c < x->cols; c++) {
            real hat = (in[c] - p->mean[c]) * p->rho[c];
            dx[c] +=
                p->rho[c] * weight[c] * (dy[c] - share * p->sum[0][c] - hat * share * p->sum[1][c]);
        }
    }
}

bool WF_FN(wf_batch_norm_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *weight = op->in[1], *bias = op->in[2];
    const real *mean = op->saved;
    pass p = {.op = op, .mean = mean, .rho = mean + x->cols};
    real *sums = scratch(arena, 2 * (size_t)x->cols);
    if (sums == NULL || !run_pass(&p, arena, add_gradients, sums)) return false;
    p.sum[0] = sums, p.sum[1] = sums + x->cols;
    if (wanted(bias)) row_add(bias->grad, p.sum[0], x->cols);
    if (wanted(weight)) row_add(weight->grad, p.sum[1], x->cols);
    return !wanted(x) || run_pass(&p, arena, input_gradients, NULL);
}
