/* optim_cpu: AdamW, Muon and EMA on chunks of flat arrays.
 *
 * Muon orthogonalises the momentum of each matrix with the quintic Newton-Schulz iteration
 *     X <- a X + b (X X') X + c (X X')^2 X,      (a, b, c) = (3.4445, -4.7750, 2.0315),
 * five times from X = G / ||G||. The matrix is kept tall, Y (n, r) with n >= r, so that all three
 * products have the same form, a row-major right factor and a left factor read element by element:
 *     A (r, r) = Y'Y     Q (r, r) = b A + c A A     Y <- a Y + Y Q
 * n and r are padded with zeros, which stay zero. */
#include "base/variant.h"
#include "nn/optim_kernels.h"

#include <stdbool.h>
#include <string.h>

enum {
    tile_rows = WF_LANES == 16 ? 8 : 4, /* accumulators: tile_rows x 2 vectors */
    newton_schulz_iterations = 5
};

static double sum_squares(const void *x_, size_t n) {
    const real *x = x_;
    double lane[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) lane[0] += (double)x[i] * (double)x[i];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

static void ema_follow(real *restrict ema, const real *restrict p, size_t n, double decay) {
    real d = (real)decay, rest = (real)(1 - decay);
    for (size_t i = 0; i < n; i++) ema[i] = d * ema[i] + rest * p[i];
}

/* torch.optim.AdamW: decay first, then m / (sqrt(v) / sqrt(correct2) + eps) times rate /
 * correct1. */
static void adamw(void *p_, const void *g_, void *m_, void *v_, void *ema, size_t n,
                  const wf_adamw_args *args) {
    real *restrict p = p_, *restrict m = m_, *restrict v = v_;
    const real *restrict g = g_;
    real beta1 = (real)args->beta1, rest1 = (real)(1 - args->beta1);
    real beta2 = (real)args->beta2, rest2 = (real)(1 - args->beta2);
    real scale = (real)args->grad_scale, keep = (real)args->keep, eps = (real)args->eps;
    real rate = (real)(args->rate / args->correct1);
    real root = (real)(1 / sqrt(args->correct2));
    for (size_t i = 0; i < n; i++) {
        real gradient = scale * g[i];
        m[i] = beta1 * m[i] + rest1 * gradient;
        v[i] = beta2 * v[i] + rest2 * gradient * gradient;
        p[i] = keep * p[i] - rate * m[i] / (r_sqrt(v[i]) * root + eps);
    }
    if (ema != NULL) ema_follow(ema, p, n, args->ema);
}

static inline vreal load(const real *x) { return *(const vreal_u *)x; }
static inline void store(real *x, vreal value) { *(vreal_u *)x = value; }

static inline __attribute__((always_inline)) void product_tile(const wf_product *x, size_t i0,
                                                               size_t j0, int vectors) {
    vreal sum[tile_rows][2];
    for (int i = 0; i < tile_rows; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = (vreal){0};
    const real *left = (const real *)x->left + i0 * x->row, *right = (const real *)x->right + j0;
    const real *d = x->d;
    real alpha = (real)x->alpha, beta = (real)x->beta;
    for (size_t k = 0; k < x->depth; k++) {
        vreal b[2];
        for (int v = 0; v < vectors; v++) b[v] = load(right + k * x->n + (size_t)v * WF_LANES);
        for (int i = 0; i < tile_rows; i++) {
            real a = left[(size_t)i * x->row + k * x->step];
            for (int v = 0; v < vectors; v++) sum[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < tile_rows; i++)
        for (int v = 0; v < vectors; v++) {
            size_t place = (i0 + (size_t)i) * x->n + j0 + (size_t)v * WF_LANES;
            vreal value = alpha * sum[i][v];
            if (d != NULL) value += beta * load(d + place);
            store((real *)x->c + place, value);
        }
}

static void multiply(const wf_product *x) {
    for (size_t i = 0; i < x->m; i += tile_rows) {
        size_t j = 0;
        for (; j + 2 * WF_LANES <= x->n; j += 2 * WF_LANES) product_tile(x, i, j, 2);
        if (j < x->n) product_tile(x, i, j, 1);
    }
}

static size_t padded(int n, int multiple) {
    return ((size_t)n + (size_t)multiple - 1) / (size_t)multiple * (size_t)multiple;
}

/* The regions of a Muon scratch: y and z (n, r), a and q (r, r). */
typedef struct muon_work {
    size_t n, r;
    bool transposed; /* the matrix has more columns than rows: y holds its transpose */
    real *y, *z, *a, *q;
} muon_work;

static muon_work muon_cut(int rows, int cols, void *scratch) {
    muon_work w = {.transposed = rows < cols, .y = scratch};
    w.n = padded(w.transposed ? cols : rows, WF_MUON_PAD_LONG);
    w.r = padded(w.transposed ? rows : cols, WF_MUON_PAD_SHORT);
    w.z = w.y + w.n * w.r;
    w.a = w.z + w.n * w.r;
    w.q = w.a + w.r * w.r;
    return w;
}

static inline size_t muon_place(const muon_work *w, int i, int j) {
    return w->transposed ? (size_t)j * w->r + (size_t)i : (size_t)i * w->r + (size_t)j;
}

/* From y = G (any scale) to the orthogonalised matrix in y. */
static void orthogonalise(muon_work *w) {
    real scale = (real)(1 / (sqrt(sum_squares(w->y, w->n * w->r)) + 1e-7));
    for (size_t i = 0; i < w->n * w->r; i++) w->y[i] *= scale;
    for (int i = 0; i < newton_schulz_iterations; i++) {
        wf_product gram = {w->a, w->y, 1, w->r, w->y, w->r, w->r, w->n, 1, 0, NULL};
        wf_product poly = {w->q, w->a, w->r, 1, w->a, w->r, w->r, w->r, 2.0315, -4.7750, w->a};
        wf_product next = {w->z, w->y, w->r, 1, w->q, w->n, w->r, w->r, 1, 3.4445, w->y};
        multiply(&gram);
        multiply(&poly);
        multiply(&next);
        real *kept = w->y;
        w->y = w->z;
        w->z = kept;
    }
}

static void newton_schulz(const void *x_, void *out_, int rows, int cols, void *scratch) {
    const real *x = x_;
    real *out = out_;
    muon_work w = muon_cut(rows, cols, scratch);
    memset(w.y, 0, w.n * w.r * sizeof(real));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) w.y[muon_place(&w, i, j)] = x[(size_t)i * cols + j];
    orthogonalise(&w);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) out[(size_t)i * cols + j] = w.y[muon_place(&w, i, j)];
}

/* m <- momentum m + g; the direction is the Newton-Schulz matrix of g + momentum m (Nesterov's
 * form). */
static void muon(void *p_, const void *g_, void *m_, void *ema, int rows, int cols,
                 const wf_muon_args *args, void *scratch) {
    real *p = p_, *m = m_;
    const real *g = g_;
    muon_work w = muon_cut(rows, cols, scratch);
    real momentum = (real)args->momentum, scale = (real)args->grad_scale;
    memset(w.y, 0, w.n * w.r * sizeof(real));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            size_t at = (size_t)i * cols + j;
            real gradient = scale * g[at];
            m[at] = momentum * m[at] + gradient;
            w.y[muon_place(&w, i, j)] = gradient + momentum * m[at];
        }
    orthogonalise(&w);
    real keep = (real)args->keep, rate = (real)args->rate;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            size_t at = (size_t)i * cols + j;
            p[at] = keep * p[at] - rate * w.y[muon_place(&w, i, j)];
        }
    if (ema != NULL) ema_follow(ema, p, (size_t)rows * cols, args->ema);
}

const wf_optim_kernels WF_FN(wf_optim_kernels) = {sum_squares, adamw, muon, newton_schulz,
                                                  multiply};
