#include "flow/eigen.h"

#include "base/pool.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { chunk_rows = 16, strip_columns = 64, most_steps = 50 /* of QR for an eigenvalue */ };
static const double reflecting_share = 0.3; /* of the time */

typedef struct decomposition {
    size_t n;
    double *matrix;            /* (n, n), then in row k from column k + 1 on: reflection k */
    double *vectors;           /* (n, n) */
    double *diagonal, *beside; /* (n) T; beside[k] is element (k, k + 1) */
    double *beta, *product;    /* (n) H_k = I - beta u u'; and q */
    double *cosine, *sine;     /* (n) of the rotations of rows k and k + 1 in a QR step */
    size_t low, high;          /* rows of that step; low: a reflection's number too */
    wf_meter *meter;
    double done, share;
} decomposition;

static double dot(const double *a, const double *b, size_t n) {
    enum { lanes = 4 };
    double sum[lanes] = {0};
    size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (size_t k = 0; k < lanes; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static wf_status go_on(wf_ctx *ctx, decomposition *d, double part) {
    if (d->meter != NULL) wf_meter_update(d->meter, d->done + part * d->share, "%s", "");
    if (!wf_interrupted(ctx)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted at the principal axes");
}

/* --- tridiagonal ------------------------------------------------------------------------------ */

static size_t chunk_end(const decomposition *d, size_t first) {
    return first + chunk_rows < d->n ? first + chunk_rows : d->n;
}

static void multiply_rows(void *arg, size_t chunk, int worker) {
    const decomposition *d = arg;
    (void)worker;
    size_t from = d->low + 1, first = from + chunk * chunk_rows;
    const double *u = d->matrix + d->low * d->n + from;
    for (size_t i = first; i < chunk_end(d, first); i++)
        d->product[i] = d->beta[d->low] * dot(d->matrix + i * d->n + from, u, d->n - from);
}

static void update_rows(void *arg, size_t chunk, int worker) {
    const decomposition *d = arg;
    (void)worker;
    size_t from = d->low + 1, first = from + chunk * chunk_rows;
    const double *u = d->matrix + d->low * d->n, *q = d->product;
    for (size_t i = first; i < chunk_end(d, first); i++) {
        double *row = d->matrix + i * d->n;
        for (size_t j = from; j < d->n; j++) row[j] -= u[i] * q[j] + q[i] * u[j];
    }
}

/* u from row k right of the diagonal, so that H_k leaves `beside` and zeros there; then H B H of
 * the rest of the matrix. */
static void reflect(wf_ctx *ctx, decomposition *d, size_t k) {
    size_t n = d->n, from = k + 1, chunks = (n - from + chunk_rows - 1) / chunk_rows;
    double *u = d->matrix + k * n + from, *q = d->product + from;
    double norm = sqrt(dot(u, u, n - from));
    d->diagonal[k] = d->matrix[k * n + k];
    d->beside[k] = u[0] > 0 ? -norm : norm;
    u[0] -= d->beside[k];
    double squares = dot(u, u, n - from);
    d->beta[k] = squares > 0 ? 2 / squares : 0;
    if (squares == 0) return;
    d->low = k;
    wf_parallel(ctx, chunks, multiply_rows, d);
    double along = 0.5 * d->beta[k] * dot(u, q, n - from);
    for (size_t i = 0; i < n - from; i++) q[i] -= along * u[i];
    wf_parallel(ctx, chunks, update_rows, d);
}

/* Row i of Q' = H_(n-3) ... H_0: that of the identity times one reflection after the other. */
static void reflect_row(void *arg, size_t i, int worker) {
    const decomposition *d = arg;
    (void)worker;
    size_t n = d->n, reflections = n > 2 ? n - 2 : 0;
    double *row = d->vectors + i * n;
    row[i] = 1;
    /* Reflections from i on leave row i alone. */
    for (size_t k = i < reflections ? i : reflections; k-- > 0;) {
        const double *u = d->matrix + k * n;
        double along = d->beta[k] * dot(row + k + 1, u + k + 1, n - k - 1);
        for (size_t j = k + 1; j < n; j++) row[j] -= along * u[j];
    }
}

static wf_status make_tridiagonal(wf_ctx *ctx, decomposition *d) {
    size_t n = d->n;
    for (size_t k = 0; k + 2 < n; k++) {
        reflect(ctx, d, k);
        WF_TRY(go_on(ctx, d, reflecting_share * (double)k / (double)n));
    }
    for (size_t k = n > 1 ? n - 2 : 0; k < n; k++) d->diagonal[k] = d->matrix[k * n + k];
    if (n > 1) d->beside[n - 2] = d->matrix[(n - 2) * n + n - 1];
    wf_parallel(ctx, n, reflect_row, d);
    return WF_OK;
}

/* --- diagonal --------------------------------------------------------------------------------- */

static void rotate_strip(void *arg, size_t strip, int worker) {
    const decomposition *d = arg;
    (void)worker;
    size_t first = strip * strip_columns;
    size_t end = first + strip_columns < d->n ? first + strip_columns : d->n;
    for (size_t k = d->low; k < d->high; k++) {
        double *a = d->vectors + k * d->n, *b = a + d->n;
        double cosine = d->cosine[k], sine = d->sine[k];
        for (size_t j = first; j < end; j++) {
            double x = a[j], y = b[j];
            a[j] = cosine * x + sine * y;
            b[j] = cosine * y - sine * x;
        }
    }
}

/* The eigenvalue of the last two rows that is nearer to the last element. */
static double shift_of(const decomposition *d) {
    double last = d->diagonal[d->high], beside = d->beside[d->high - 1];
    double half = (d->diagonal[d->high - 1] - last) / 2;
    double root = hypot(half, beside);
    return last - beside * beside / (half < 0 ? half - root : half + root);
}

/* One implicit QR step of rows low .. high, whose elements beside the diagonal are not zero: the
 * shift makes a bulge, and rotations chase it down. */
static void make_step(wf_ctx *ctx, decomposition *d) {
    double *diagonal = d->diagonal, *beside = d->beside;
    double x = diagonal[d->low] - shift_of(d), bulge = beside[d->low];
    for (size_t k = d->low; k < d->high; k++) {
        double length = hypot(x, bulge), c = length > 0 ? x / length : 1;
        double s = length > 0 ? bulge / length : 0;
        if (k > d->low) beside[k - 1] = length;
        double a = diagonal[k], b = diagonal[k + 1], between = beside[k];
        diagonal[k] = c * c * a + 2 * c * s * between + s * s * b;
        diagonal[k + 1] = s * s * a - 2 * c * s * between + c * c * b;
        beside[k] = c * s * (b - a) + (c * c - s * s) * between;
        x = beside[k];
        if (k + 1 < d->high) {
            bulge = s * beside[k + 1];
            beside[k + 1] *= c;
        }
        d->cosine[k] = c;
        d->sine[k] = s;
    }
    wf_parallel(ctx, (d->n + strip_columns - 1) / strip_columns, rotate_strip, d);
}

static wf_status make_diagonal(wf_ctx *ctx, decomposition *d) {
    size_t n = d->n, steps = 0;
    double largest = 0;
    for (size_t k = 0; k < n; k++)
        largest = fmax(largest, fabs(d->diagonal[k]) + (k + 1 < n ? fabs(d->beside[k]) : 0));
    double zero = DBL_EPSILON * largest;
    for (d->high = n - 1; d->high > 0;) {
        if (fabs(d->beside[d->high - 1]) <= zero) {
            d->high--;
            continue;
        }
        for (d->low = d->high - 1; d->low > 0 && fabs(d->beside[d->low - 1]) > zero;) d->low--;
        if (steps++ == most_steps * n)
            return wf_fail(ctx, WF_ERR_FAILED,
                           "principal axes: no eigenvectors of %zu numbers after %zu steps", n,
                           steps);
        make_step(ctx, d);
        double found = 1 - (double)d->high / (double)n;
        WF_TRY(go_on(ctx, d, reflecting_share + (1 - reflecting_share) * found));
    }
    return WF_OK;
}

/* --- both ------------------------------------------------------------------------------------- */

typedef struct ranked {
    double value;
    size_t row;
} ranked;

static int larger_first(const void *a_, const void *b_) {
    const ranked *a = a_, *b = b_;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->row < b->row ? -1 : 1;
}

/* The vectors into the matrix in the order of their values. */
static void sort(const decomposition *d, ranked *order, double *values) {
    size_t n = d->n;
    for (size_t k = 0; k < n; k++) order[k] = (ranked){d->diagonal[k], k};
    qsort(order, n, sizeof *order, larger_first);
    for (size_t k = 0; k < n; k++) {
        const double *from = d->vectors + order[k].row * n;
        double largest = 0;
        for (size_t j = 0; j < n; j++)
            if (fabs(from[j]) > fabs(largest)) largest = from[j];
        values[k] = order[k].value;
        for (size_t j = 0; j < n; j++) d->matrix[k * n + j] = largest < 0 ? -from[j] : from[j];
    }
}

wf_status wf_eigen(wf_ctx *ctx, double *matrix, int size, double *values, wf_meter *meter,
                   double done, double share) {
    size_t n = (size_t)size;
    decomposition d = {.n = n, .matrix = matrix, .meter = meter, .done = done, .share = share};
    double *numbers = NULL,
           **arrays[] = {&d.diagonal, &d.beside, &d.beta, &d.product, &d.cosine, &d.sine};
    enum { n_arrays = sizeof arrays / sizeof *arrays };
    ranked *order = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, n * n, sizeof *d.vectors, "principal axes", &d.vectors), done);
    WF_TRY_GOTO(wf_alloc(ctx, n_arrays * n, sizeof *numbers, "principal axes", &numbers), done);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *order, "principal axes", &order), done);
    for (size_t i = 0; i < n_arrays; i++) *arrays[i] = numbers + i * n;
    WF_TRY_GOTO(make_tridiagonal(ctx, &d), done);
    WF_TRY_GOTO(make_diagonal(ctx, &d), done);
    sort(&d, order, values);
done:
    free(d.vectors);
    free(numbers);
    free(order);
    return status;
}
