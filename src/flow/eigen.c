#include "flow/eigen.h"

#include "base/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { most_sweeps = 60 };
static const double orthogonal = 1e-11; /* cosine of two rows that count as such */

typedef struct tournament {
    double *rows;
    int n, players, round; /* players: n, or n + 1 with one who waits */
    bool *turned;          /* (players / 2) */
} tournament;

static int player(const tournament *t, int seat) {
    return seat == 0 ? 0 : 1 + (seat - 1 + t->round) % (t->players - 1);
}

typedef struct products {
    double aa, bb, ab;
} products;

static products multiply_rows(const double *a, const double *b, int n) {
    enum { lanes = 4 };
    double aa[lanes] = {0}, bb[lanes] = {0}, ab[lanes] = {0};
    int i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int k = 0; k < lanes; k++) {
            aa[k] += a[i + k] * a[i + k];
            bb[k] += b[i + k] * b[i + k];
            ab[k] += a[i + k] * b[i + k];
        }
    for (; i < n; i++) aa[0] += a[i] * a[i], bb[0] += b[i] * b[i], ab[0] += a[i] * b[i];
    return (products){(aa[0] + aa[1]) + (aa[2] + aa[3]), (bb[0] + bb[1]) + (bb[2] + bb[3]),
                      (ab[0] + ab[1]) + (ab[2] + ab[3])};
}

static void meet(void *arg, size_t pair, int worker) {
    const tournament *t = arg;
    (void)worker;
    int first = player(t, (int)pair), second = player(t, t->players - 1 - (int)pair);
    t->turned[pair] = false;
    if (first >= t->n || second >= t->n) return;
    double *a = t->rows + (size_t)first * (size_t)t->n,
           *b = t->rows + (size_t)second * (size_t)t->n;
    products p = multiply_rows(a, b, t->n);
    if (fabs(p.ab) <= orthogonal * sqrt(p.aa * p.bb)) return;
    double zeta = (p.bb - p.aa) / (2 * p.ab);
    double tangent = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
    for (int i = 0; i < t->n; i++) {
        double x = a[i], y = b[i];
        a[i] = cosine * x - sine * y;
        b[i] = sine * x + cosine * y;
    }
    t->turned[pair] = true;
}

static wf_status make_orthogonal(wf_ctx *ctx, tournament *t) {
    for (int sweep = 0; sweep < most_sweeps; sweep++) {
        bool any = false;
        for (t->round = 0; t->round < t->players - 1; t->round++) {
            wf_parallel(ctx, (size_t)t->players / 2, meet, t);
            for (int pair = 0; pair < t->players / 2; pair++) any = any || t->turned[pair];
        }
        if (!any) return WF_OK;
        if (wf_interrupted(ctx)) return wf_fail(ctx, WF_ERR_INTERRUPTED, "principal axes: stopped");
    }
    return wf_fail(ctx, WF_ERR_FAILED, "principal axes: no eigenmatrix after %d sweeps",
                   most_sweeps);
}

typedef struct ranked {
    double value;
    int row;
} ranked;

static int larger_first(const void *a_, const void *b_) {
    const ranked *a = a_, *b = b_;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->row - b->row;
}

wf_status wf_eigen(wf_ctx *ctx, double *matrix, int n, double *values) {
    size_t size = (size_t)n;
    tournament t = {matrix, n, n + n % 2, 0, NULL};
    double *sorted = NULL;
    ranked *order = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, size / 2 + 1, sizeof *t.turned, "principal axes", &t.turned), done);
    WF_TRY_GOTO(wf_alloc(ctx, size * size, sizeof *sorted, "principal axes", &sorted), done);
    WF_TRY_GOTO(wf_alloc(ctx, size, sizeof *order, "principal axes", &order), done);
    if (n > 1) WF_TRY_GOTO(make_orthogonal(ctx, &t), done);
    for (int i = 0; i < n; i++) {
        const double *row = matrix + (size_t)i * size;
        order[i] = (ranked){sqrt(multiply_rows(row, row, n).aa), i};
    }
    qsort(order, size, sizeof *order, larger_first);
    for (size_t k = 0; k < size; k++) {
        values[k] = order[k].value;
        const double *row = matrix + (size_t)order[k].row * size;
        for (size_t j = 0; j < size; j++) sorted[k * size + j] = row[j] / order[k].value;
    }
    memcpy(matrix, sorted, size * size * sizeof *sorted);
done:
    free(t.turned);
    free(sorted);
    free(order);
    return status;
}
