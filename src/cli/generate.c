/* generate: networks out of a flow into a collection file that says where they come from. */
#include "cli/pipeline.h"

#include <stdlib.h>

static const char *solver_name(wf_solver solver) {
    static const char *const names[] = {"euler", "heun", "rk4", "dopri5"};
    return names[solver];
}

static wf_status write_networks(cli_app *app, const cli_generate *what, const char *path,
                                const float *weights, int cycles, const wf_sample_stats *stats) {
    char updates[32], seed[32], evaluations[32], refine[48], first[32];
    snprintf(updates, sizeof updates, "%zu", wf_flow_updates(what->flow));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)what->sample.seed);
    snprintf(first, sizeof first, "%zu", what->sample.first);
    snprintf(evaluations, sizeof evaluations, "%.6g", stats->evaluations);
    snprintf(refine, sizeof refine, "%g,%d", what->sample.refine_t, cycles);
    wf_zoo_extra extra = {.n_meta = 7,
                          .meta = {{"weft.generator", "flow"},
                                   {"weft.flow", what->flow_path},
                                   {"weft.flow.updates", updates},
                                   {"weft.sample.seed", seed},
                                   {"weft.sample.first", first},
                                   {"weft.sample.solver", solver_name(what->sample.solver)},
                                   {"weft.sample.refine", refine}}};
    if (cycles > 0 || what->sample.refine_cycles == 0) {
        extra.meta[extra.n_meta][0] = "weft.sample.evaluations";
        extra.meta[extra.n_meta++][1] = evaluations;
    }
    return wf_zoo_write(app->ctx, path, what->graph, weights, what->n, &extra);
}

wf_status cli_generate_networks(cli_app *app, const cli_generate *what, wf_sample_stats *stats) {
    wf_sample_stats own = {0};
    if (stats == NULL) stats = &own;
    size_t each = what->graph->n_params;
    float *weights = calloc(what->n, each * sizeof *weights);
    float *direct = what->direct_path != NULL ? calloc(what->n, each * sizeof *direct) : NULL;
    wf_status status = WF_OK;
    if (weights == NULL || (what->direct_path != NULL && direct == NULL))
        status = cli_fail(app, WF_ERR_MEMORY, "%zu networks of %zu parameters do not fit in memory",
                          what->n, each);
    if (status == WF_OK)
        status = wf_flow_sample(app->ctx, what->flow, what->graph, what->cond, what->n,
                                &what->sample, weights, direct, stats);
    if (status == WF_OK && direct != NULL)
        status = write_networks(app, what, what->direct_path, direct, 0, stats);
    if (status == WF_OK)
        status = write_networks(app, what, what->path, weights, what->sample.refine_cycles, stats);
    free(weights);
    free(direct);
    return status;
}
