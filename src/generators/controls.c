/* controls: generators that know nothing of the distribution. A generated network must beat them.
 *
 * They take training networks in the order of a shuffle of the collection, stream (seed, round,
 * WF_RNG_CONTROL, 1); when all have been used, the next round has another shuffle. Noise of network
 * k: stream (seed, k, WF_RNG_CONTROL, 2). The second collection of pairs is shuffled by stream
 * (seed, round, WF_RNG_CONTROL, 3). */
#include "base/random.h"
#include "base/status.h"
#include "generators/generators.h"
#include "weft/align.h"
#include "zoo/zoo_file.h"
#include "zoo/zoo_pieces.h"

#include <math.h>
#include <stdlib.h>

enum { step_seed = 0, step_order = 1, step_noise = 2, step_second = 3 };

wf_status wf_control_random(wf_ctx *ctx, const wf_graph *graph, size_t n, uint64_t seed,
                            float *weights) {
    if (n > UINT32_MAX) return wf_fail(ctx, WF_ERR_USAGE, "at most %u networks", UINT32_MAX);
    /* Not the collection's seed, which would give the weights that its training began with. */
    wf_rng rng = wf_rng_at(seed, 0, WF_RNG_CONTROL, step_seed);
    uint64_t high = wf_rng_u32(&rng), own = high << 32 | wf_rng_u32(&rng);
    for (size_t k = 0; k < n; k++)
        wf_zoo_init(graph, own, (uint32_t)k, weights + k * graph->n_params);
    return WF_OK;
}

/* picks[0 .. n-1]: places in the collection, in rounds of whole tuples of `tuple` different
 * networks. step: of the shuffle's stream. */
static wf_status pick_networks(wf_ctx *ctx, const wf_zoo *zoo, size_t tuple, size_t n,
                               uint64_t seed, uint32_t step, uint32_t **picks) {
    size_t count = wf_zoo_count(zoo);
    *picks = NULL;
    if (count < tuple || count > UINT32_MAX)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: %zu networks; this control needs %zu or more",
                       wf_zoo_path(zoo), count, tuple);
    uint32_t *order;
    WF_TRY(wf_alloc(ctx, count, sizeof *order, "control", &order));
    wf_status status = wf_alloc(ctx, n, sizeof **picks, "control", picks);
    size_t round_size = count / tuple * tuple;
    for (size_t i = 0; status == WF_OK && i < n; i++) {
        if (i % round_size == 0) {
            wf_rng rng = wf_rng_at(seed, (uint32_t)(i / round_size), WF_RNG_CONTROL, step);
            wf_rng_shuffle(&rng, order, (uint32_t)count);
        }
        (*picks)[i] = order[i % round_size];
    }
    free(order);
    return status;
}

static wf_status fit_norm(wf_ctx *ctx, const wf_zoo *zoo, wf_norm *norm) {
    const wf_zoo_span all = {zoo, 0, wf_zoo_count(zoo)};
    WF_TRY(wf_zoo_verify(ctx, zoo));
    return wf__zoo_norm(ctx, wf_zoo_graph(zoo), &all, 1, norm);
}

wf_status wf_control_perturb(wf_ctx *ctx, const wf_zoo *zoo, double sigma, size_t n, uint64_t seed,
                             float *weights) {
    if (!(sigma >= 0) || !isfinite(sigma))
        return wf_fail(ctx, WF_ERR_USAGE, "sigma of the perturbation is %g; give 0 or more", sigma);
    const wf_graph *graph = wf_zoo_graph(zoo);
    size_t p = graph->n_params;
    uint32_t *picks = NULL;
    float *noise = NULL;
    wf_norm norm = {0};
    wf_status status;
    WF_TRY_GOTO(pick_networks(ctx, zoo, 1, n, seed, step_order, &picks), done);
    WF_TRY_GOTO(fit_norm(ctx, zoo, &norm), done);
    WF_TRY_GOTO(wf_alloc(ctx, p, sizeof *noise, "control", &noise), done);
    for (size_t k = 0; k < n; k++) {
        float *w = weights + k * p;
        wf_rng rng = wf_rng_at(seed, (uint32_t)k, WF_RNG_CONTROL, step_noise);
        wf_rng_normals(&rng, noise, p);
        wf_zoo_get(zoo, picks[k], w);
        wf_norm_apply(&norm, graph, w, w);
        for (size_t i = 0; i < p; i++) w[i] += (float)sigma * noise[i];
        wf_norm_invert(&norm, graph, w, w);
    }
done:
    wf_norm_free(&norm);
    free(picks);
    free(noise);
    return status;
}

wf_status wf_control_average(wf_ctx *ctx, const wf_zoo *zoo, bool matched, size_t n, uint64_t seed,
                             float *weights) {
    const wf_graph *graph = wf_zoo_graph(zoo);
    size_t p = graph->n_params;
    uint32_t *picks = NULL;
    float *partners = NULL;
    wf_status status;
    WF_TRY_GOTO(pick_networks(ctx, zoo, 2, 2 * n, seed, step_order, &picks), done);
    WF_TRY_GOTO(wf_alloc(ctx, n * p, sizeof *partners, "control", &partners), done);
    for (size_t k = 0; k < n; k++) {
        wf_zoo_get(zoo, picks[2 * k], weights + k * p);
        wf_zoo_get(zoo, picks[2 * k + 1], partners + k * p);
    }
    if (matched && graph->n_orbits > 0) {
        wf_match_desc match = wf_match_desc_default();
        match.seed = seed;
        WF_TRY_GOTO(wf_match_pairs(ctx, graph, weights, partners, n, &match), done);
    }
    for (size_t i = 0; i < n * p; i++) weights[i] = 0.5f * (weights[i] + partners[i]);
done:
    free(picks);
    free(partners);
    return status;
}

wf_status wf_control_pairs(wf_ctx *ctx, const wf_zoo *a, const wf_zoo *b, int sweeps, size_t n,
                           uint64_t seed, float *from, float *to) {
    const wf_graph *graph = wf_zoo_graph(a);
    size_t p = graph->n_params;
    if (!wf_graph_equal(graph, wf_zoo_graph(b)))
        return wf_fail(ctx, WF_ERR_SHAPE,
                       "%s has networks of %s, %s of %s; pairs need one architecture",
                       wf_zoo_path(a), graph->text, wf_zoo_path(b), wf_zoo_graph(b)->text);
    if (sweeps < 0) return wf_fail(ctx, WF_ERR_USAGE, "%d sweeps; give 0 or more", sweeps);
    uint32_t *first = NULL, *second = NULL;
    wf_status status;
    WF_TRY_GOTO(pick_networks(ctx, a, 1, n, seed, step_order, &first), done);
    WF_TRY_GOTO(pick_networks(ctx, b, 1, n, seed, step_second, &second), done);
    for (size_t k = 0; k < n; k++) {
        wf_zoo_get(a, first[k], from + k * p);
        wf_zoo_get(b, second[k], to + k * p);
    }
    if (sweeps > 0 && graph->n_orbits > 0) {
        wf_match_desc match = wf_match_desc_default();
        match.seed = seed;
        match.sweeps = sweeps;
        WF_TRY_GOTO(wf_match_pairs(ctx, graph, from, to, n, &match), done);
    }
done:
    free(first);
    free(second);
    return status;
}

/* --- as generators ---------------------------------------------------------------------------- */

typedef struct perturbation_options {
    double sigma;
} perturbation_options;

/* Controls learn nothing: an open one holds its collection only. */
static wf_status open_control(wf_ctx *ctx, const wf_generator_kind *kind,
                              const wf_generator_open_desc *desc, void **self) {
    (void)ctx, (void)kind;
    *self = (void *)(uintptr_t)desc->zoo;
    return WF_OK;
}

static const wf_graph *graph_of_collection(const void *self) { return wf_zoo_graph(self); }

static wf_status sample_random(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    (void)self;
    return wf_control_random(ctx, request->graph, request->n, request->sample->seed,
                             request->weights);
}

static const wf_setting perturbation_rows[] = {WF_SETTING_ROW(
    perturbation_options, "model", "field.", REAL, sigma, "sigma", "0.05", FROM(0, 1e6), TRAINING,
    CONFIG, "noise in standard deviations of each group"){0}};

static const wf_setting *perturbation_settings(void) { return perturbation_rows; }

typedef struct perturbation {
    const wf_zoo *zoo;
    double sigma;
} perturbation;

static wf_status open_perturbation(wf_ctx *ctx, const wf_generator_kind *kind,
                                   const wf_generator_open_desc *desc, void **self) {
    const perturbation_options *options = desc->options;
    (void)kind;
    perturbation *p;
    WF_TRY(wf_alloc(ctx, 1, sizeof *p, "control", &p));
    *p = (perturbation){desc->zoo, options->sigma};
    *self = p;
    return WF_OK;
}

static const wf_graph *graph_of_perturbation(const void *self) {
    return wf_zoo_graph(((const perturbation *)self)->zoo);
}

static wf_status sample_perturbation(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    const perturbation *p = self;
    return wf_control_perturb(ctx, p->zoo, p->sigma, request->n, request->sample->seed,
                              request->weights);
}

static wf_status sample_average(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    return wf_control_average(ctx, self, false, request->n, request->sample->seed,
                              request->weights);
}

static wf_status sample_matched(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    return wf_control_average(ctx, self, true, request->n, request->sample->seed, request->weights);
}

const wf_generator_kind wf__control_kinds[] = {
    {.name = "random",
     .about = "control: fresh initial weights",
     .traits = WF_GENERATOR_ANY_ARCHITECTURE,
     .open = open_control,
     .sample = sample_random},
    {.name = "perturbation",
     .about = "control: training networks with noise; perturbation-0.25: of 0.25 deviations",
     .traits = WF_GENERATOR_KEEPS_COLLECTION,
     .settings = perturbation_settings,
     .options_size = sizeof(perturbation_options),
     .parameter = "sigma",
     .variants = "0.05,0.10,0.25,0.50",
     .open = open_perturbation,
     .sample = sample_perturbation,
     .free = free,
     .graph = graph_of_perturbation},
    {.name = "average",
     .about = "control: means of pairs of training networks",
     .traits = WF_GENERATOR_KEEPS_COLLECTION,
     .open = open_control,
     .sample = sample_average,
     .graph = graph_of_collection},
    {.name = "average-matched",
     .about = "control: means of pairs whose hidden units are matched first",
     .traits = WF_GENERATOR_KEEPS_COLLECTION,
     .open = open_control,
     .sample = sample_matched,
     .graph = graph_of_collection},
    {.name = NULL},
};
