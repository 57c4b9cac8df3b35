#include "flow/ode.h"

#include "base/pool.h"

#include <math.h>
#include <string.h>

static const wf_ode_table tables[] = {
#define X(id, method, ...) {.name = #id, .solver = method, __VA_ARGS__},
#include "flow/ode_tables.def"
#undef X
};

const wf_ode_table *wf_ode_table_of(wf_solver solver) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (tables[i].solver == solver) return &tables[i];
    return NULL;
}

/* Step control of dopri5: next = step * clamp(safety * ratio^(-1/5), shrink, grow). */
static const double safety = 0.9, shrink = 0.2, grow = 10;

/* --- states in host memory -------------------------------------------------------------------- */

/* What the rows of one pass share. */
typedef struct row_pass {
    size_t dim;
    const double *y, *x, *weight, *h;
    double *const *k;
    int n;
    double atol, rtol;
    double *out;
} row_pass;

static bool row_finite(const double *y, size_t n) {
    double sum = 0; /* 0 * x is NaN exactly when x is not finite */
    for (size_t i = 0; i < n; i++) sum += 0 * y[i];
    return sum == 0;
}

static void combine_row(void *arg, size_t row, int worker) {
    const row_pass *p = arg;
    (void)worker;
    size_t start = row * p->dim;
    double *out = p->out + start;
    memcpy(out, p->y + start, p->dim * sizeof *out);
    for (int j = 0; j < p->n; j++) {
        double weight = p->h[row] * p->weight[j];
        if (weight == 0) continue;
        const double *k = p->k[j] + start;
        for (size_t i = 0; i < p->dim; i++) out[i] += weight * k[i];
    }
}

static wf_status host_combine(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim,
                              const double *y, double *const *k, const double *weight, int n,
                              const double *h, double *out) {
    (void)ops;
    row_pass p = {.dim = dim, .y = y, .k = k, .weight = weight, .n = n, .h = h, .out = out};
    wf_parallel(ctx, (size_t)rows, combine_row, &p);
    return WF_OK;
}

static wf_status host_norms(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim,
                            const double *x, const double *y, double atol, double rtol,
                            double *out) {
    (void)ops, (void)ctx;
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t i = (size_t)r * dim; i < (size_t)(r + 1) * dim; i++) {
            double scaled = x[i] / (atol + rtol * fabs(y[i]));
            sum += scaled * scaled;
        }
        out[r] = sqrt(sum / (double)dim);
    }
    return WF_OK;
}

static void error_row(void *arg, size_t row, int worker) {
    const row_pass *p = arg;
    (void)worker;
    size_t start = row * p->dim;
    double sum = 0;
    for (size_t i = start; i < start + p->dim; i++) {
        double error = 0;
        for (int j = 0; j < p->n; j++) error += p->weight[j] * p->k[j][i];
        double size = fmax(fabs(p->y[i]), fabs(p->x[i]));
        double scaled = p->h[row] * error / (p->atol + p->rtol * size);
        sum += scaled * scaled;
    }
    bool finite = isfinite(sum) && row_finite(p->x + start, p->dim);
    p->out[row] = finite ? sqrt(sum / (double)p->dim) : NAN;
}

static wf_status host_errors(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim,
                             const double *y, const double *next, double *const *k,
                             const double *weight, int n, const double *h, double atol, double rtol,
                             double *out) {
    (void)ops;
    row_pass p = {dim, y, next, weight, h, k, n, atol, rtol, out};
    wf_parallel(ctx, (size_t)rows, error_row, &p);
    return WF_OK;
}

static wf_status host_subtract(const wf_ode_ops *ops, wf_ctx *ctx, size_t count, double *x,
                               const double *y) {
    (void)ops, (void)ctx;
    for (size_t i = 0; i < count; i++) x[i] -= y[i];
    return WF_OK;
}

static wf_status host_find_bad(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim,
                               const double *y, int *out) {
    (void)ops, (void)ctx;
    *out = -1;
    for (int r = 0; r < rows && *out < 0; r++)
        if (!row_finite(y + (size_t)r * dim, dim)) *out = r;
    return WF_OK;
}

static wf_status host_copy(const wf_ode_ops *ops, wf_ctx *ctx, double *to, const double *from,
                           size_t count) {
    (void)ops, (void)ctx;
    memcpy(to, from, count * sizeof *to);
    return WF_OK;
}

static const wf_ode_ops host_ops = {.check_every = 1,
                                    .combine = host_combine,
                                    .norms = host_norms,
                                    .errors = host_errors,
                                    .subtract = host_subtract,
                                    .find_bad = host_find_bad,
                                    .copy = host_copy};

/* --- the solve -------------------------------------------------------------------------------- */

/* One attempt of all systems that are still under way. Row r belongs to system which[r]; a system
 * that reaches t1 leaves and the last row takes its place. Arrays are (rows, dim) or (rows). */
typedef struct solve {
    wf_ctx *ctx;
    const wf_ode_problem *problem;
    const wf_ode_desc *desc;
    const wf_ode_table *table;
    const wf_ode_ops *ops;
    wf_ode_stats *stats;
    size_t dim;
    int rows;
    int *which;
    double *t, *h; /* where each row stands, the step it tries */
    double *at;    /* times of one evaluation */
    double *next;  /* the step the controller proposes */
    double *ratio; /* error over tolerance; NaN when not finite */
    bool *last;    /* this step ends at t1 */
    size_t *evaluations;
    double *y, *stage_y; /* these and k: as ops has it */
    double *k[WF_ODE_MAX_STAGES];
} solve;

static wf_status solve_alloc(solve *s, wf_arena *arena, wf_arena *states) {
    size_t rows = (size_t)s->rows, state = rows * s->dim * sizeof(double);
    bool ok = (s->which = wf_arena_alloc(arena, rows * sizeof *s->which)) != NULL;
    double **vectors[] = {&s->t, &s->h, &s->at, &s->next, &s->ratio};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        ok = ok && (*vectors[i] = wf_arena_zalloc(arena, rows * sizeof(double))) != NULL;
    ok = ok && (s->last = wf_arena_zalloc(arena, rows * sizeof *s->last)) != NULL;
    ok = ok && (s->evaluations = wf_arena_zalloc(arena, rows * sizeof(size_t))) != NULL;
    ok = ok && (s->y = wf_arena_alloc(states, state)) != NULL;
    ok = ok && (s->stage_y = wf_arena_alloc(states, state)) != NULL;
    for (int i = 0; i < s->table->stages; i++)
        ok = ok && (s->k[i] = wf_arena_alloc(states, state)) != NULL;
    if (!ok)
        return wf_fail(s->ctx, WF_ERR_MEMORY,
                       "out of memory for the solver's states (%d systems of %zu numbers); "
                       "take fewer networks at a time",
                       s->rows, s->dim);
    return WF_OK;
}

/* "network 17: <what> at t = 0.4123 (step 1.2e-07, 2006 evaluations); <how to mend it>" */
static wf_status fail_row(const solve *s, int row, wf_status status, const char *what,
                          const char *mend) {
    const wf_ode_problem *problem = s->problem;
    return wf_fail(s->ctx, status, "%s %zu: %s at t = %.6g (step %.3g, %zu evaluations); %s",
                   problem->label, problem->first + (size_t)s->which[row], what, s->t[row],
                   s->h[row], s->evaluations[row], mend);
}

static wf_status evaluate(solve *s, const double *at, const double *y, double *dy) {
    for (int r = 0; r < s->rows; r++) s->evaluations[r]++;
    s->stats->evaluations += (size_t)s->rows;
    return s->problem->fn(s->problem->arg, s->rows, s->which, at, y, dy);
}

/* stage_y of all rows: y + h * (combination of the stages so far); `stages` means the new state. */
static wf_status combine(solve *s, int stage) {
    const double *weights = stage == s->table->stages ? s->table->b : s->table->a[stage];
    return s->ops->combine(s->ops, s->ctx, s->rows, s->dim, s->y, s->k, weights, stage, s->h,
                           s->stage_y);
}

/* Stages `from` .. stages-1. A method with fsal leaves the new state in stage_y. */
static wf_status run_stages(solve *s, int from) {
    for (int stage = from; stage < s->table->stages; stage++) {
        WF_TRY(combine(s, stage));
        for (int r = 0; r < s->rows; r++)
            s->at[r] = s->table->c[stage] == 1 && s->last[r]
                           ? s->problem->t1
                           : s->t[r] + s->table->c[stage] * s->h[r];
        WF_TRY(evaluate(s, s->at, s->stage_y, s->k[stage]));
    }
    return WF_OK;
}

static void report(const solve *s, const double *time) {
    const wf_ode_problem *problem = s->problem;
    if (problem->meter == NULL) return;
    double left = 0;
    for (int r = 0; r < s->rows; r++) left += (problem->t1 - time[r]) / (problem->t1 - problem->t0);
    wf_meter_update(problem->meter,
                    problem->meter_done + problem->meter_share * (problem->systems - left), "%s",
                    "");
}

static wf_status check_interrupt(const solve *s) {
    if (!wf_interrupted(s->ctx)) return WF_OK;
    return wf_fail(s->ctx, WF_ERR_INTERRUPTED, "interrupted while integrating");
}

/* --- fixed steps ------------------------------------------------------------------------------ */

static wf_status check_finite(const solve *s) {
    int bad;
    WF_TRY(s->ops->find_bad(s->ops, s->ctx, s->rows, s->dim, s->y, &bad));
    if (bad < 0) return WF_OK;
    return fail_row(s, bad, WF_ERR_DIVERGED, "the state is no longer finite",
                    "take more steps, or train the flow longer or with a lower rate");
}

static wf_status solve_fixed(solve *s) {
    const wf_ode_problem *problem = s->problem;
    size_t need = (size_t)s->desc->steps * (size_t)s->table->stages;
    if (need > s->desc->max_evaluations)
        return wf_fail(s->ctx, WF_ERR_SOLVER,
                       "%d steps of %s take %zu evaluations, more than max_evaluations = %zu; "
                       "take fewer steps or raise it",
                       s->desc->steps, s->table->name, need, s->desc->max_evaluations);
    for (int step = 0; step < s->desc->steps; step++) {
        WF_TRY(check_interrupt(s));
        bool last = step + 1 == s->desc->steps;
        double span = problem->t1 - problem->t0;
        double from = problem->t0 + span * step / s->desc->steps;
        double to = last ? problem->t1 : problem->t0 + span * (step + 1) / s->desc->steps;
        for (int r = 0; r < s->rows; r++) {
            s->t[r] = from;
            s->h[r] = to - from;
            s->last[r] = last;
        }
        WF_TRY(run_stages(s, 0));
        WF_TRY(combine(s, s->table->stages));
        double *kept = s->y;
        s->y = s->stage_y;
        s->stage_y = kept;
        if (last || (step + 1) % s->ops->check_every == 0) WF_TRY(check_finite(s));
        report(s, s->t);
    }
    s->stats->accepted += (size_t)s->rows * (size_t)s->desc->steps;
    return WF_OK;
}

/* --- dopri5 ----------------------------------------------------------------------------------- */

/* First step after Hairer, Norsett and Wanner, II.4: k[0] = f(t0, y0), one Euler probe. */
static wf_status choose_first_steps(solve *s) {
    const wf_ode_problem *problem = s->problem;
    const wf_ode_ops *ops = s->ops;
    double atol = s->desc->atol, rtol = s->desc->rtol;
    double *d0 = s->ratio, *d1 = s->next,
           *d2 = s->ratio; /* before they have a meaning of their own */
    for (int r = 0; r < s->rows; r++) s->at[r] = s->t[r] = problem->t0;
    WF_TRY(evaluate(s, s->at, s->y, s->k[0]));
    WF_TRY(ops->norms(ops, s->ctx, s->rows, s->dim, s->y, s->y, atol, rtol, d0));
    WF_TRY(ops->norms(ops, s->ctx, s->rows, s->dim, s->k[0], s->y, atol, rtol, d1));
    for (int r = 0; r < s->rows; r++) {
        if (!isfinite(d0[r]) || !isfinite(d1[r]))
            return fail_row(s, r, WF_ERR_DIVERGED, "the state or its velocity is not finite",
                            "train the flow longer or with a lower rate");
        double h0 = d0[r] < 1e-5 || d1[r] < 1e-5 ? 1e-6 : 0.01 * d0[r] / d1[r];
        s->h[r] = fmin(h0, problem->t1 - problem->t0);
        s->at[r] = problem->t0 + s->h[r];
    }
    const double one = 1;
    WF_TRY(ops->combine(ops, s->ctx, s->rows, s->dim, s->y, s->k, &one, 1, s->h, s->stage_y));
    WF_TRY(evaluate(s, s->at, s->stage_y, s->k[1]));
    WF_TRY(ops->subtract(ops, s->ctx, (size_t)s->rows * s->dim, s->k[1], s->k[0]));
    WF_TRY(ops->norms(ops, s->ctx, s->rows, s->dim, s->k[1], s->y, atol, rtol, d2));
    for (int r = 0; r < s->rows; r++) {
        double h0 = s->h[r], change = d2[r] / h0;
        double h1 = d1[r] <= 1e-15 && change <= 1e-15
                        ? fmax(1e-6, h0 * 1e-3)
                        : pow(0.01 / fmax(d1[r], change), 1.0 / s->table->order);
        s->next[r] = fmax(fmin(100 * h0, h1), s->desc->min_step);
    }
    return WF_OK;
}

static void start_attempts(solve *s) {
    double end = s->problem->t1;
    for (int r = 0; r < s->rows; r++) {
        s->h[r] = fmin(s->next[r], s->desc->max_step);
        /* A remainder of rounding size would be a step of its own. */
        s->last[r] = s->t[r] + s->h[r] * (1 + 1e-9) >= end;
        if (s->last[r]) s->h[r] = end - s->t[r];
    }
}

static wf_status reject_row(solve *s, int r) {
    bool finite = !isnan(s->ratio[r]);
    double factor =
        finite ? fmax(safety * pow(s->ratio[r], -1.0 / s->table->order), shrink) : shrink;
    s->stats->rejected++;
    s->next[r] = s->h[r] * factor;
    if (s->h[r] <= s->desc->min_step) {
        if (!finite)
            return fail_row(s, r, WF_ERR_DIVERGED, "the state is no longer finite",
                            "train the flow longer or with a lower rate");
        return fail_row(s, r, WF_ERR_SOLVER, "dopri5 needs a step below min_step",
                        "loosen rtol and atol, lower min_step, or use a fixed-step solver");
    }
    s->next[r] = fmax(s->next[r], s->desc->min_step);
    return WF_OK;
}

static wf_status accept_row(solve *s, int r) {
    size_t start = (size_t)r * s->dim;
    s->stats->accepted++;
    s->t[r] = s->last[r] ? s->problem->t1 : s->t[r] + s->h[r];
    WF_TRY(s->ops->copy(s->ops, s->ctx, s->y + start, s->stage_y + start, s->dim));
    WF_TRY(
        s->ops->copy(s->ops, s->ctx, s->k[0] + start, s->k[s->table->stages - 1] + start, s->dim));
    double factor =
        s->ratio[r] == 0 ? grow : fmin(grow, safety * pow(s->ratio[r], -1.0 / s->table->order));
    s->next[r] = s->h[r] * fmax(factor, 1);
    return WF_OK;
}

/* Row r is done: its state goes to `out`, the last row takes its place. */
static wf_status retire_row(solve *s, int r, double *out) {
    const wf_ode_ops *ops = s->ops;
    size_t start = (size_t)r * s->dim;
    WF_TRY(ops->copy(ops, s->ctx, out + (size_t)s->which[r] * s->dim, s->y + start, s->dim));
    int end = --s->rows;
    if (r == end) return WF_OK;
    WF_TRY(ops->copy(ops, s->ctx, s->y + start, s->y + (size_t)end * s->dim, s->dim));
    WF_TRY(ops->copy(ops, s->ctx, s->k[0] + start, s->k[0] + (size_t)end * s->dim, s->dim));
    s->which[r] = s->which[end];
    s->t[r] = s->t[end];
    s->next[r] = s->next[end];
    s->evaluations[r] = s->evaluations[end];
    return WF_OK;
}

static wf_status solve_adaptive(solve *s, double *out) {
    WF_TRY(choose_first_steps(s));
    while (s->rows > 0) {
        WF_TRY(check_interrupt(s));
        start_attempts(s);
        for (int r = 0; r < s->rows; r++)
            if (s->evaluations[r] + (size_t)s->table->stages - 1 > s->desc->max_evaluations)
                return fail_row(s, r, WF_ERR_SOLVER, "dopri5 has used up max_evaluations",
                                "loosen rtol and atol, raise max_evaluations, or use a fixed-step "
                                "solver");
        WF_TRY(run_stages(s, 1));
        WF_TRY(s->ops->errors(s->ops, s->ctx, s->rows, s->dim, s->y, s->stage_y, s->k, s->table->e,
                              s->table->stages, s->h, s->desc->atol, s->desc->rtol, s->ratio));
        for (int r = 0; r < s->rows; r++)
            WF_TRY(s->ratio[r] <= 1 ? accept_row(s, r) : reject_row(s, r));
        report(s, s->t);
        for (int r = s->rows - 1; r >= 0; r--)
            if (s->t[r] >= s->problem->t1) WF_TRY(retire_row(s, r, out));
    }
    return WF_OK;
}

wf_status wf_ode_solve(wf_ctx *ctx, wf_arena *arena, const wf_ode_problem *problem,
                       const wf_ode_desc *desc, double *y, wf_ode_stats *stats) {
    if (problem->systems == 0) return WF_OK;
    solve s = {.ctx = ctx,
               .problem = problem,
               .desc = desc,
               .table = wf_ode_table_of(desc->solver),
               .ops = problem->ops == NULL ? &host_ops : problem->ops,
               .stats = stats,
               .dim = problem->dim,
               .rows = problem->systems};
    wf_arena *states = s.ops->memory == NULL ? arena : s.ops->memory;
    wf_arena_mark mark = wf_arena_here(arena), states_mark = wf_arena_here(states);
    wf_status status = solve_alloc(&s, arena, states);
    size_t numbers = (size_t)s.rows * s.dim;
    if (status == WF_OK) {
        for (int r = 0; r < s.rows; r++) s.which[r] = r;
        status = s.ops->copy(s.ops, ctx, s.y, y, numbers);
    }
    if (status == WF_OK) status = s.table->adaptive ? solve_adaptive(&s, y) : solve_fixed(&s);
    if (status == WF_OK && !s.table->adaptive) status = s.ops->copy(s.ops, ctx, y, s.y, numbers);
    wf_arena_rewind(states, states_mark);
    wf_arena_rewind(arena, mark);
    return status;
}
