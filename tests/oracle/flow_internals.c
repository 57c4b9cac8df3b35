/* Solvers, optimisers and the zoo engine in double as a small shared library for the Python oracles
 * (flow_internals.py builds it). */
#include "flow/ode.h"
#include "nn/optim.h"
#include "zoo/zoo_engine.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* stats: evaluations, accepted, rejected. */
EXPORT int oracle_ode(int solver, int steps, double tolerance, int systems, size_t dim, double t0,
                      double t1, wf_ode_fn *fn, double *y, size_t stats[3]) {
    wf_ctx *ctx;
    wf_arena arena = {0};
    if (wf_ctx_create(NULL, &ctx) != WF_OK) return WF_ERR_MEMORY;
    wf_ode_problem problem = {
        .systems = systems, .dim = dim, .t0 = t0, .t1 = t1, .fn = fn, .label = "system"};
    wf_ode_desc desc = {.solver = (wf_solver)solver,
                        .steps = steps,
                        .rtol = tolerance,
                        .atol = tolerance,
                        .min_step = 1e-12,
                        .max_step = t1 - t0,
                        .max_evaluations = 1000000};
    wf_ode_stats count = {0};
    wf_status status = wf_ode_solve(ctx, &arena, &problem, &desc, y, &count);
    stats[0] = count.evaluations;
    stats[1] = count.accepted;
    stats[2] = count.rejected;
    wf_arena_free(&arena);
    wf_ctx_free(ctx);
    return status;
}

/* `updates` updates of params with gradients grads (updates, params), rates times factors
 * (updates). Arrays are of desc->dtype; ema may be NULL. */
EXPORT int oracle_optim(const wf_optim_desc *desc, const wf_optim_tensor *tensors, int n_tensors,
                        size_t params, int updates, const void *grads, const double *factors,
                        void *weights, void *ema) {
    wf_ctx *ctx;
    wf_optim *optim = NULL;
    size_t size = params * (desc->dtype == WF_F64 ? sizeof(double) : sizeof(float));
    if (wf_ctx_create(NULL, &ctx) != WF_OK) return WF_ERR_MEMORY;
    wf_status status = wf_optim_create(ctx, desc, tensors, n_tensors, params, &optim);
    if (status == WF_OK && ema != NULL) memcpy(wf_optim_ema(optim), weights, size);
    for (int i = 0; status == WF_OK && i < updates; i++) {
        const void *grad = (const char *)grads + (size_t)i * size;
        wf_optim_apply(ctx, optim, (size_t)i, factors[i], wf_optim_norm(ctx, optim, grad), grad,
                       weights);
    }
    if (status == WF_OK && ema != NULL) memcpy(ema, wf_optim_ema(optim), size);
    wf_optim_free(optim);
    wf_ctx_free(ctx);
    return status;
}

/* wf_zoo_train_from with weights and arithmetic in double. */
EXPORT int oracle_zoo_f64(const wf_graph *graph, const wf_dataset *data, const wf_zoo_desc *desc,
                          double *weights) {
    wf_ctx *ctx;
    if (wf_ctx_create(NULL, &ctx) != WF_OK) return WF_ERR_MEMORY;
    wf_status status = wf_zoo_train_from_f64(ctx, graph, data, desc, weights);
    wf_ctx_free(ctx);
    return status;
}
