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

/* One attempt of all systems that are still under way. Row r belongs to system which[r]; a system
 * that reaches t1 leaves and the last row takes its place. Arrays are (rows, dim) or (rows). */
typedef struct solve {
    wf_ctx *ctx;
    const wf_ode_problem *problem;
    const wf_ode_desc *desc;
    const wf_ode_table *table;
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
    double *y, *stage_y;
    double *k[WF_ODE_MAX_STAGES];
    int stage; /* of the evaluation being prepared; `stages` means the new state */
} solve;

static wf_status solve_alloc(solve *s, wf_arena *arena) {
    size_t rows = (size_t)s->rows, state = rows * s->dim * sizeof(double);
    bool ok = (s->which = wf_arena_alloc(arena, rows * sizeof *s->which)) != NULL;
    double **vectors[] = {&s->t, &s->h, &s->at, &s->next, &s->ratio};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        ok = ok && (*vectors[i] = wf_arena_zalloc(arena, rows * sizeof(double))) != NULL;
    ok = ok && (s->last = wf_arena_zalloc(arena, rows * sizeof *s->last)) != NULL;
    ok = ok && (s->evaluations = wf_arena_zalloc(arena, rows * sizeof(size_t))) != NULL;
    ok = ok && (s->y = wf_arena_alloc(arena, state)) != NULL;
    ok = ok && (s->stage_y = wf_arena_alloc(arena, state)) != NULL;
    for (int i = 0; i < s->table->stages; i++)
        ok = ok && (s->k[i] = wf_arena_alloc(arena, state)) != NULL;
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

/* stage_y of one row: y + h * (combination of the stages so far). */
static void combine_row(void *arg, size_t row, int worker) {
    const solve *s = arg;
    (void)worker;
    const wf_ode_table *table = s->table;
    bool final = s->stage == table->stages;
    const double *weights = final ? table->b : table->a[s->stage];
    size_t start = row * s->dim;
    double *out = s->stage_y + start;
    memcpy(out, s->y + start, s->dim * sizeof *out);
    for (int j = 0; j < s->stage; j++) {
        double weight = s->h[row] * weights[j];
        if (weight == 0) continue;
        const double *k = s->k[j] + start;
        for (size_t i = 0; i < s->dim; i++) out[i] += weight * k[i];
    }
}

static void combine(solve *s, int stage) {
    s->stage = stage;
    wf_parallel(s->ctx, (size_t)s->rows, combine_row, s);
}

/* Stages `from` .. stages-1. A method with fsal leaves the new state in stage_y. */
static wf_status run_stages(solve *s, int from) {
    for (int stage = from; stage < s->table->stages; stage++) {
        combine(s, stage);
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

/* --- fixed steps -------------------------------------------------------------------------------- */

static bool row_finite(const double *y, size_t n) {
    double sum = 0; /* 0 * x is NaN exactly when x is not finite */
    for (size_t i = 0; i < n; i++) sum += 0 * y[i];
    return sum == 0;
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
        double span = problem->t1 - problem->t0;
        double from = problem->t0 + span * step / s->desc->steps;
        double to = problem->t0 + span * (step + 1) / s->desc->steps;
        if (step + 1 == s->desc->steps) to = problem->t1;
        for (int r = 0; r < s->rows; r++) {
            s->t[r] = from;
            s->h[r] = to - from;
            s->last[r] = step + 1 == s->desc->steps;
        }
        WF_TRY(run_stages(s, 0));
        combine(s, s->table->stages);
        double *kept = s->y;
        s->y = s->stage_y;
        s->stage_y = kept;
        for (int r = 0; r < s->rows; r++)
            if (!row_finite(s->y + (size_t)r * s->dim, s->dim))
                return fail_row(s, r, WF_ERR_DIVERGED, "the state is no longer finite",
                                "take more steps, or train the flow longer or with a lower rate");
        report(s, s->t);
    }
    s->stats->accepted += (size_t)s->rows * (size_t)s->desc->steps;
    return WF_OK;
}

/* --- dopri5 ------------------------------------------------------------------------------------- */

/* RMS of x / (atol + rtol |y|) over one row. */
static double scaled_norm(const solve *s, int row, const double *x) {
    const double *y = s->y + (size_t)row * s->dim;
    double sum = 0;
    for (size_t i = 0; i < s->dim; i++) {
        double scaled = x[(size_t)row * s->dim + i] / (s->desc->atol + s->desc->rtol * fabs(y[i]));
        sum += scaled * scaled;
    }
    return sqrt(sum / (double)s->dim);
}

/* First step after Hairer, Norsett and Wanner, II.4: k[0] = f(t0, y0), one Euler probe. */
static wf_status choose_first_steps(solve *s) {
    const wf_ode_problem *problem = s->problem;
    for (int r = 0; r < s->rows; r++) s->at[r] = s->t[r] = problem->t0;
    WF_TRY(evaluate(s, s->at, s->y, s->k[0]));
    for (int r = 0; r < s->rows; r++) {
        double d0 = scaled_norm(s, r, s->y), d1 = scaled_norm(s, r, s->k[0]);
        if (!isfinite(d0) || !isfinite(d1))
            return fail_row(s, r, WF_ERR_DIVERGED, "the state or its velocity is not finite",
                            "train the flow longer or with a lower rate");
        double h0 = d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : 0.01 * d0 / d1;
        s->h[r] = fmin(h0, problem->t1 - problem->t0);
        s->next[r] = d1;
        s->at[r] = problem->t0 + s->h[r];
        size_t start = (size_t)r * s->dim;
        for (size_t i = 0; i < s->dim; i++)
            s->stage_y[start + i] = s->y[start + i] + s->h[r] * s->k[0][start + i];
    }
    WF_TRY(evaluate(s, s->at, s->stage_y, s->k[1]));
    for (int r = 0; r < s->rows; r++) {
        size_t start = (size_t)r * s->dim;
        for (size_t i = start; i < start + s->dim; i++) s->k[1][i] -= s->k[0][i];
        double h0 = s->h[r], d1 = s->next[r], d2 = scaled_norm(s, r, s->k[1]) / h0;
        double h1 = d1 <= 1e-15 && d2 <= 1e-15 ? fmax(1e-6, h0 * 1e-3)
                                               : pow(0.01 / fmax(d1, d2), 1.0 / s->table->order);
        double h = fmin(100 * h0, h1);
        s->next[r] = fmax(h, s->desc->min_step);
    }
    return WF_OK;
}

/* ratio[row] = RMS of error / (atol + rtol max(|y|, |new y|)). */
static void error_row(void *arg, size_t row, int worker) {
    const solve *s = arg;
    (void)worker;
    size_t start = row * s->dim;
    double sum = 0;
    for (size_t i = start; i < start + s->dim; i++) {
        double error = 0;
        for (int j = 0; j < s->table->stages; j++) error += s->table->e[j] * s->k[j][i];
        double size = fmax(fabs(s->y[i]), fabs(s->stage_y[i]));
        double scaled = s->h[row] * error / (s->desc->atol + s->desc->rtol * size);
        sum += scaled * scaled;
    }
    bool finite = isfinite(sum) && row_finite(s->stage_y + start, s->dim);
    s->ratio[row] = finite ? sqrt(sum / (double)s->dim) : NAN;
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

static void accept_row(solve *s, int r) {
    size_t start = (size_t)r * s->dim, bytes = s->dim * sizeof(double);
    s->stats->accepted++;
    s->t[r] = s->last[r] ? s->problem->t1 : s->t[r] + s->h[r];
    memcpy(s->y + start, s->stage_y + start, bytes);
    memcpy(s->k[0] + start, s->k[s->table->stages - 1] + start, bytes);
    double factor =
        s->ratio[r] == 0 ? grow : fmin(grow, safety * pow(s->ratio[r], -1.0 / s->table->order));
    s->next[r] = s->h[r] * fmax(factor, 1);
}

/* Row r is done: its state goes to `out`, the last row takes its place. */
static void retire_row(solve *s, int r, double *out) {
    size_t bytes = s->dim * sizeof(double), start = (size_t)r * s->dim;
    memcpy(out + (size_t)s->which[r] * s->dim, s->y + start, bytes);
    int end = --s->rows;
    if (r == end) return;
    memcpy(s->y + start, s->y + (size_t)end * s->dim, bytes);
    memcpy(s->k[0] + start, s->k[0] + (size_t)end * s->dim, bytes);
    s->which[r] = s->which[end];
    s->t[r] = s->t[end];
    s->next[r] = s->next[end];
    s->evaluations[r] = s->evaluations[end];
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
        wf_parallel(s->ctx, (size_t)s->rows, error_row, s);
        for (int r = 0; r < s->rows; r++) {
            if (s->ratio[r] <= 1) accept_row(s, r);
            else WF_TRY(reject_row(s, r));
        }
        report(s, s->t);
        for (int r = s->rows - 1; r >= 0; r--)
            if (s->t[r] >= s->problem->t1) retire_row(s, r, out);
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
               .stats = stats,
               .dim = problem->dim,
               .rows = problem->systems};
    wf_arena_mark mark = wf_arena_here(arena);
    wf_status status = solve_alloc(&s, arena);
    if (status == WF_OK) {
        size_t bytes = (size_t)s.rows * s.dim * sizeof *y;
        for (int r = 0; r < s.rows; r++) s.which[r] = r;
        memcpy(s.y, y, bytes);
        if (s.table->adaptive) {
            status = solve_adaptive(&s, y);
        } else {
            status = solve_fixed(&s);
            if (status == WF_OK) memcpy(y, s.y, bytes);
        }
    }
    wf_arena_rewind(arena, mark);
    return status;
}
