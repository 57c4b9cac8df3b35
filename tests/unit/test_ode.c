/* Solvers on equations with known solutions: order, error, evaluations, independence of the batch,
 * failures. */

#include "ctx_fixture.h"
#include "flow/ode.h"

/* System i of `swing`: y' = y r cos(r t), y(0) = 1, so y = exp(sin(r t)); a second coordinate with
 * -r. */
typedef struct swing {
    double rate[8];
    double low, high; /* times asked for */
    int largest;      /* rows in one call */
} swing;

static wf_status swing_fn(void *arg, int n, const int *which, const double *t, const double *y,
                          double *dy) {
    swing *s = arg;
    if (n > s->largest) s->largest = n;
    for (int i = 0; i < n; i++) {
        double r = s->rate[which[i]];
        s->low = fmin(s->low, t[i]);
        s->high = fmax(s->high, t[i]);
        dy[2 * i] = y[2 * i] * r * cos(r * t[i]);
        dy[2 * i + 1] = -y[2 * i + 1] * r * cos(r * t[i]);
    }
    return WF_OK;
}

/* Rotation with friction: x' = -a x - b y, y' = b x - a y; from (1, 0) to exp(-a t) (cos bt, sin
 * bt). */
static wf_status spiral_fn(void *arg, int n, const int *which, const double *t, const double *y,
                           double *dy) {
    (void)arg, (void)which, (void)t;
    double a = 0.5, b = 12;
    for (int i = 0; i < n; i++) {
        dy[2 * i] = -a * y[2 * i] - b * y[2 * i + 1];
        dy[2 * i + 1] = b * y[2 * i] - a * y[2 * i + 1];
    }
    return WF_OK;
}

static wf_status explode_fn(void *arg, int n, const int *which, const double *t, const double *y,
                            double *dy) {
    (void)arg, (void)t;
    for (int i = 0; i < n; i++) dy[i] = which[i] == 2 ? y[i] * y[i] : 0;
    return WF_OK;
}

static wf_status broken_fn(void *arg, int n, const int *which, const double *t, const double *y,
                           double *dy) {
    (void)arg, (void)which, (void)y;
    for (int i = 0; i < n; i++) dy[i] = t[i] > 0.5 ? NAN : 1;
    return WF_OK;
}

static wf_ode_desc plain_desc(wf_solver solver) {
    return (wf_ode_desc){.solver = solver,
                         .steps = 100,
                         .rtol = 1e-5,
                         .atol = 1e-5,
                         .min_step = 1e-7,
                         .max_step = 1,
                         .max_evaluations = 20000};
}

static double swing_error(const wf_ode_desc *desc, double rate) {
    wf_arena arena = {0};
    swing s = {.rate = {rate}};
    wf_ode_problem problem = {
        .systems = 1, .dim = 2, .t1 = 1, .fn = swing_fn, .arg = &s, .label = "system"};
    wf_ode_stats stats = {0};
    double y[2] = {1, 1};
    assert_ok(ctx, wf_ode_solve(ctx, &arena, &problem, desc, y, &stats));
    wf_arena_free(&arena);
    return hypot(y[0] - exp(sin(rate)), y[1] - exp(-sin(rate)));
}

static void tables_are_consistent(void **state) {
    (void)state;
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_DOPRI5; solver++) {
        const wf_ode_table *table = wf_ode_table_of((wf_solver)solver);
        assert_non_null(table);
        double weights = 0, errors = 0;
        for (int i = 0; i < table->stages; i++) {
            double row = 0;
            for (int j = 0; j < i; j++) row += table->a[i][j];
            assert_close(row, table->c[i], 1e-14);
            weights += table->b[i];
            errors += table->e[i];
        }
        assert_close(weights, 1, 1e-14);
        assert_close(errors, 0, 1e-14);
        if (table->fsal)
            for (int j = 0; j < table->stages; j++)
                assert_true(table->a[table->stages - 1][j] == table->b[j]);
    }
}

static void fixed_steps_show_their_order(void **state) {
    (void)state;
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_RK4; solver++) {
        wf_ode_desc desc = plain_desc((wf_solver)solver);
        double last = 0;
        for (int steps = 40; steps <= 160; steps *= 2) {
            desc.steps = steps;
            double error = swing_error(&desc, 3);
            if (last > 0)
                assert_close(log2(last / error), wf_ode_table_of(desc.solver)->order, 0.1);
            last = error;
        }
    }
}

static void dopri5_keeps_its_tolerance(void **state) {
    (void)state;
    wf_arena arena = {0};
    for (double tolerance = 1e-4; tolerance > 1e-10; tolerance *= 0.1) {
        wf_ode_desc desc = plain_desc(WF_SOLVER_DOPRI5);
        desc.rtol = desc.atol = tolerance;
        double error = swing_error(&desc, 5);
        if (error > 10 * tolerance) fail_msg("swing: error %g at tolerance %g", error, tolerance);
        wf_ode_problem problem = {
            .systems = 1, .dim = 2, .t1 = 1, .fn = spiral_fn, .label = "system"};
        wf_ode_stats stats = {0};
        double y[2] = {1, 0};
        assert_ok(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats));
        error = hypot(y[0] - exp(-0.5) * cos(12), y[1] - exp(-0.5) * sin(12));
        if (error > 10 * tolerance) fail_msg("spiral: error %g at tolerance %g", error, tolerance);
        assert_true(stats.evaluations == 2 + 6 * (stats.accepted + stats.rejected));
    }
    wf_arena_free(&arena);
}

/* Systems of different stiffness side by side give the bits they give alone, and finished ones are
 * not evaluated. */
static void systems_do_not_depend_on_their_batch(void **state) {
    (void)state;
    wf_arena arena = {0};
    swing s = {.rate = {0.1, 20, 3, 7, 0, 50, 1, 2}, .low = 1};
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_DOPRI5; solver++) {
        wf_ode_desc desc = plain_desc((wf_solver)solver);
        wf_ode_problem problem = {.systems = 8,
                                  .dim = 2,
                                  .t0 = 0.25,
                                  .t1 = 1,
                                  .fn = swing_fn,
                                  .arg = &s,
                                  .label = "system"};
        double y[16];
        for (int i = 0; i < 16; i++) y[i] = 1 + i;
        wf_ode_stats together = {0}, alone = {0};
        assert_ok(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &together));
        for (int i = 0; i < 8; i++) {
            swing one = {.rate = {s.rate[i]}};
            problem.systems = 1;
            problem.arg = &one;
            double single[2] = {1 + 2 * i, 2 + 2 * i};
            assert_ok(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, single, &alone));
            assert_memory_equal(single, y + 2 * i, sizeof single);
        }
        assert_true(together.evaluations == alone.evaluations);
        assert_true(together.accepted == alone.accepted && together.rejected == alone.rejected);
    }
    assert_true(s.low >= 0.25 && s.high <= 1);
    assert_int_equal(s.largest, 8);
    wf_arena_free(&arena);
}

static void failures_explain_themselves(void **state) {
    (void)state;
    wf_arena arena = {0};
    wf_ode_stats stats = {0};
    wf_ode_desc desc = plain_desc(WF_SOLVER_DOPRI5);
    /* y' = y^2 from 2 has no solution beyond t = 1/2. */
    wf_ode_problem problem = {
        .systems = 4, .dim = 1, .t1 = 1, .fn = explode_fn, .label = "network", .first = 10};
    double y[4] = {2, 2, 2, 2};
    desc.min_step = 1e-4;
    assert_fails(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats), WF_ERR_SOLVER,
                 "network 12: dopri5 needs a step below min_step at t = 0.4");
    desc.min_step = 1e-12;
    desc.max_evaluations = 100;
    assert_fails(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats), WF_ERR_SOLVER,
                 "network 12: dopri5 has used up max_evaluations");
    desc = plain_desc(WF_SOLVER_RK4);
    desc.max_evaluations = 399;
    assert_fails(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats), WF_ERR_SOLVER,
                 "take 400 evaluations");
    problem.fn = broken_fn;
    for (int solver = WF_SOLVER_EULER; solver <= WF_SOLVER_DOPRI5; solver++) {
        desc = plain_desc((wf_solver)solver);
        assert_fails(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats), WF_ERR_DIVERGED,
                     "no longer finite at t = 0.");
    }
    wf_interrupt(ctx);
    assert_fails(ctx, wf_ode_solve(ctx, &arena, &problem, &desc, y, &stats), WF_ERR_INTERRUPTED,
                 "interrupted");
    wf_interrupt_clear(ctx);
    wf_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_consistent),
        cmocka_unit_test(fixed_steps_show_their_order),
        cmocka_unit_test(dopri5_keeps_its_tolerance),
        cmocka_unit_test(systems_do_not_depend_on_their_batch),
        cmocka_unit_test(failures_explain_themselves),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
