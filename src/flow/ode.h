/* ode: batched initial value problems, dy/dt = f(t, y) from t0 to t1, by explicit Runge-Kutta
 * methods.
 *
 * All systems of a batch have the same dimension and are independent: with dopri5 each has its own
 * step size and error norm, so its solution does not depend on its neighbours. The methods are
 * tables (ode_tables.def). State and time are double; the field behind f may be float. */
#pragma once

#include "base/arena.h"
#include "weft/flow.h"

enum { WF_ODE_MAX_STAGES = 7 };

typedef struct wf_ode_table {
    const char *name;
    wf_solver solver;
    int stages, order;
    bool fsal, adaptive;
    double c[WF_ODE_MAX_STAGES], a[WF_ODE_MAX_STAGES][WF_ODE_MAX_STAGES];
    double b[WF_ODE_MAX_STAGES], e[WF_ODE_MAX_STAGES];
} wf_ode_table;
const wf_ode_table *wf_ode_table_of(wf_solver solver);

/* dy (n, dim) at times t (n) and states y (n, dim) of n systems; which[i]: the system of row i. */
typedef wf_status wf_ode_fn(void *arg, int n, const int *which, const double *t, const double *y,
                            double *dy);

/* The arithmetic on states, (rows, dim) double each. Arrays over rows are always in host memory. A
 * problem with NULL has its states in host memory too; flow/cuda/ode_cuda.h keeps them on a GPU,
 * where f then reads and writes. */
typedef struct wf_ode_ops wf_ode_ops;
struct wf_ode_ops {
    wf_arena *memory; /* states are taken from here */
    int check_every;  /* fixed steps between looks at whether states are finite */
    void *self;       /* the implementation's */
    /* out = y + h sum_j weight[j] k[j], j < n */
    wf_status (*combine)(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                         double *const *k, const double *weight, int n, const double *h,
                         double *out);
    /* out[r] = RMS of x / (atol + rtol |y|) */
    wf_status (*norms)(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *x,
                       const double *y, double atol, double rtol, double *out);
    /* out[r] = RMS of h sum_j weight[j] k[j] / (atol + rtol max(|y|, |next|)); NaN: it or next is
     * not finite */
    wf_status (*errors)(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                        const double *next, double *const *k, const double *weight, int n,
                        const double *h, double atol, double rtol, double *out);
    /* x -= y */
    wf_status (*subtract)(const wf_ode_ops *ops, wf_ctx *ctx, size_t count, double *x,
                          const double *y);
    /* The first row that is not finite, or -1. */
    wf_status (*find_bad)(const wf_ode_ops *ops, wf_ctx *ctx, int rows, size_t dim, const double *y,
                          int *out);
    wf_status (*copy)(const wf_ode_ops *ops, wf_ctx *ctx, double *to, const double *from,
                      size_t count);
};

typedef struct wf_ode_problem {
    int systems;
    size_t dim;
    double t0, t1; /* t0 < t1; f is never asked outside of them */
    wf_ode_fn *fn;
    void *arg;
    const wf_ode_ops *ops; /* NULL: the CPU's */
    const char *label;     /* what a system is called in sentences: "network" */
    size_t first;          /* number of system 0 there */
    /* Progress of the call this solve is a part of; meter may be NULL. */
    struct wf_meter *meter;
    double meter_done, meter_share; /* units before this solve, units a system is worth */
} wf_ode_problem;

typedef struct wf_ode_desc {
    wf_solver solver;
    int steps; /* fixed-step methods */
    double rtol, atol, min_step, max_step;
    size_t max_evaluations; /* per system */
} wf_ode_desc;

typedef struct wf_ode_stats {
    size_t evaluations; /* summed over systems; every solve adds to it */
    size_t accepted, rejected;
} wf_ode_stats;

/* y (systems, dim): initial states in, final states out. Scratch comes from `arena` and is given
 * back. WF_ERR_SOLVER: a step below min_step or too many evaluations. WF_ERR_DIVERGED: a state that
 * is not finite. WF_ERR_INTERRUPTED, or what f returned. */
wf_status wf_ode_solve(wf_ctx *ctx, wf_arena *arena, const wf_ode_problem *problem,
                       const wf_ode_desc *desc, double *y, wf_ode_stats *stats);
