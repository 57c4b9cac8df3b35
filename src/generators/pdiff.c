/* pdiff: P-diff as a generator: an autoencoder of networks, a diffusion model of its latents,
 * ancestral sampling. Noise of network k at step s of the diffusion: stream (seed, k,
 * WF_RNG_SAMPLE, s); the latent that it starts from has the number of steps in place of s. */
#include "base/random.h"
#include "flow/flow_config.h"
#include "generators/generators.h"
#include "generators/pdiff_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const wf_setting rows[] = {
#define SETTING(...) WF_SETTING_ROW(wf_pdiff_options, "model", "field.", __VA_ARGS__)
#include "generators/pdiff.def"
    {0}};
static const wf_setting *settings(void) { return rows; }

/* --- the model -------------------------------------------------------------------------------- */

typedef struct pdiff {
    wf_pdiff_model model;
    wf_net_place decoder;
    double *beta, *kept; /* [diffusion_steps] */
    wf_phase phases[2];  /* of a generator that samples */
    wf_phase_file file;
    wf_norm norm;
    float *latents; /* of the fit's networks */
} pdiff;

static wf_status check_options(wf_ctx *ctx, const wf_pdiff_options *o) {
    WF_TRY(wf_settings_check(ctx, rows, o));
    if (o->channels % 2 != 0)
        return wf_fail(ctx, WF_ERR_USAGE, "model.channels is %d; give an even number", o->channels);
    return wf_layer_check_time(ctx, o->time);
}

static wf_status set_up(wf_ctx *ctx, pdiff *p, const wf_pdiff_options *options,
                        const wf_graph *graph) {
    WF_TRY(check_options(ctx, options));
    if (graph->n_params > INT32_MAX - 64)
        return wf_fail(ctx, WF_ERR_SHAPE, "pdiff: networks of %zu parameters are too large",
                       graph->n_params);
    size_t steps = (size_t)options->diffusion_steps;
    WF_TRY(wf_alloc(ctx, steps, sizeof(double), "diffusion", &p->beta));
    WF_TRY(wf_alloc(ctx, steps, sizeof(double), "diffusion", &p->kept));
    double scale = 1000.0 / (double)steps, product = 1;
    for (size_t s = 0; s < steps; s++) {
        p->beta[s] = scale * (1e-4 + (0.02 - 1e-4) * (double)s / (double)(steps - 1));
        p->kept[s] = product *= 1 - p->beta[s];
    }
    p->model = (wf_pdiff_model){.options = *options,
                                .params = (int)graph->n_params,
                                .padded = ((int)graph->n_params + 63) / 64 * 64,
                                .decoder = &p->decoder,
                                .kept = p->kept};
    return WF_OK;
}

static void tear_down(pdiff *p) {
    for (int i = 0; i < 2; i++) wf_phase_free(&p->phases[i]);
    wf_phase_file_close(&p->file);
    wf_norm_free(&p->norm);
    free(p->beta);
    free(p->kept);
    free(p->latents);
    free(p);
}

static wf_status params(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                        const wf_graph *graph, int cond_size, size_t *out) {
    (void)kind, (void)cond_size;
    pdiff *p;
    WF_TRY(wf_alloc(ctx, 1, sizeof *p, "pdiff", &p));
    wf_status status = set_up(ctx, p, options, graph);
    if (status == WF_OK) wf_pdiff_phases(options, p->phases);
    for (int i = 0; i < 2 && status == WF_OK; i++) {
        status = wf_phase_declare(ctx, &p->phases[i], &p->model);
        *out += p->phases[i].list.total;
    }
    tear_down(p);
    return status;
}

/* --- fit -------------------------------------------------------------------------------------- */

static wf_tensor *encode_walk(wf_net *net, const void *model, int networks,
                              wf_tensor *const in[WF_PHASE_INPUTS]) {
    (void)networks;
    return wf_pdiff_encode(net, model, in[0]);
}

static wf_status run_phases(wf_ctx *ctx, pdiff *p, wf_phase_fit *fit) {
    const wf_family *family = &fit->set.families[0];
    size_t all = family->count + family->held_out;
    WF_TRY(wf_phase_fit_normalise(fit, false, false, &p->norm));
    p->model.networks = family->weights;
    for (int i = 0; i < 2; i++) WF_TRY(wf_phase_declare(ctx, &fit->phases[i], &p->model));
    WF_TRY(wf_phase_fit_open(fit, &p->model));
    WF_TRY(wf_phase_fit_run(fit, 0));
    if (!wf_phase_fit_done(fit)) /* mu of all networks */
        WF_TRY(wf_phase_fit_encode(fit, encode_walk, all, (size_t)p->model.padded,
                                   (size_t)p->model.options.latent, &p->latents));
    p->model.latents = p->latents;
    return wf_phase_fit_run(fit, 1);
}

static wf_status fit_pdiff(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_fit_desc *desc) {
    const wf_pdiff_options *o = desc->options;
    pdiff *p;
    wf_phase_fit fit = {.n_phases = 2};
    wf_status status;
    WF_TRY(wf_alloc(ctx, 1, sizeof *p, "pdiff", &p));
    wf_pdiff_phases(o, fit.phases);
    fit.phases[0].updates = o->vae_updates, fit.phases[0].lr = o->vae_lr;
    fit.phases[1].updates = desc->train->updates, fit.phases[1].lr = desc->train->lr;
    WF_TRY_GOTO(set_up(ctx, p, o, wf_zoo_graph(desc->sources[0].zoo)), done);
    WF_TRY_GOTO(wf_phase_fit_load(&fit, ctx, kind, desc), done);
    status = run_phases(ctx, p, &fit);
done:
    wf_phase_fit_free(&fit);
    tear_down(p);
    return status;
}

/* --- samples ---------------------------------------------------------------------------------- */

static wf_status open_pdiff(wf_ctx *ctx, const wf_generator_kind *kind,
                            const wf_generator_open_desc *desc, void **self) {
    wf_pdiff_options options;
    pdiff *p;
    wf_status status;
    WF_TRY(wf_alloc(ctx, 1, sizeof *p, "pdiff", &p));
    WF_TRY_GOTO(wf_phase_file_open(ctx, desc->path, kind, &options, &p->file), fail);
    WF_TRY_GOTO(wf_blame_file(ctx, desc->path, set_up(ctx, p, &options, p->file.graph)), fail);
    wf_pdiff_phases(&options, p->phases);
    for (int i = 0; i < 2; i++) WF_TRY_GOTO(wf_phase_declare(ctx, &p->phases[i], &p->model), fail);
    WF_TRY_GOTO(wf_phase_file_read(ctx, &p->file, p->phases, 2), fail);
    WF_TRY_GOTO(wf_phase_file_norm(ctx, &p->file, &p->norm), fail);
    *self = p;
    return WF_OK;
fail:
    tear_down(p);
    return status;
}

/* One step towards the data: z at `step` becomes that of the step before, given the noise in it. */
static void step_back(const pdiff *p, int step, const float *noise, uint64_t seed, uint32_t first,
                      size_t n, float *z, float *fresh) {
    size_t latent = (size_t)p->model.options.latent;
    double beta = p->beta[step], kept = p->kept[step], before = step > 0 ? p->kept[step - 1] : 1;
    float share = (float)(beta / sqrt(1 - kept)), scale = (float)(1 / sqrt(1 - beta));
    float spread = (float)sqrt(beta * (1 - before) / (1 - kept));
    for (size_t k = 0; k < n; k++) {
        const float *in_it = noise + k * latent;
        float *x = z + k * latent;
        for (size_t i = 0; i < latent; i++) x[i] = scale * (x[i] - share * in_it[i]);
        if (step == 0) continue;
        wf_rng rng = wf_rng_at(seed, first + (uint32_t)k, WF_RNG_SAMPLE, (uint32_t)step);
        wf_rng_normals(&rng, fresh, latent);
        for (size_t i = 0; i < latent; i++) x[i] += spread * fresh[i];
    }
}

/* What a call of sample needs. */
typedef struct sampling {
    wf_phase_eval denoise, decode;
    float *z, *t, *noise, *fresh, *made;
    wf_meter meter;
    double done; /* steps of all networks */
} sampling;

static wf_tensor *denoise_walk(wf_net *net, const void *model, int networks,
                               wf_tensor *const in[WF_PHASE_INPUTS]) {
    (void)networks;
    return wf_pdiff_noise(net, model, in[0], in[1]);
}

static wf_tensor *decode_walk(wf_net *net, const void *model, int networks,
                              wf_tensor *const in[WF_PHASE_INPUTS]) {
    (void)networks;
    wf_net_go(net, *((const wf_pdiff_model *)model)->decoder);
    return wf_pdiff_decode(net, model, in[0]);
}

static wf_status diffuse(pdiff *p, sampling *s, uint64_t seed, uint32_t first, size_t n) {
    size_t latent = (size_t)p->model.options.latent;
    int steps = p->model.options.diffusion_steps;
    const wf_phase_shape shape[] = {{1, (int)latent}, {1, 1}};
    for (size_t k = 0; k < n; k++) {
        wf_rng rng = wf_rng_at(seed, first + (uint32_t)k, WF_RNG_SAMPLE, (uint32_t)steps);
        wf_rng_normals(&rng, s->z + k * latent, latent);
    }
    for (int step = steps - 1; step >= 0; step--) {
        for (size_t k = 0; k < n; k++) s->t[k] = (float)step / (float)steps;
        WF_TRY(wf_phase_eval_run(&s->denoise, denoise_walk, n, shape, 2,
                                 (const float *[]){s->z, s->t}, s->noise));
        step_back(p, step, s->noise, seed, first, n, s->z, s->fresh);
        s->done += (double)n;
        wf_meter_update(&s->meter, s->done, "%s", "");
    }
    return WF_OK;
}

static wf_status decode(pdiff *p, sampling *s, size_t n, float *weights) {
    size_t each = (size_t)p->model.params, padded = (size_t)p->model.padded;
    wf_phase_shape shape = {1, p->model.options.latent};
    WF_TRY(
        wf_phase_eval_run(&s->decode, decode_walk, n, &shape, 1, (const float *[]){s->z}, s->made));
    for (size_t k = 0; k < n; k++)
        wf_norm_invert(&p->norm, p->file.graph, s->made + k * padded, weights + k * each);
    return WF_OK;
}

static wf_status sampling_open(wf_ctx *ctx, pdiff *p, const wf_sample_desc *desc, size_t *at_once,
                               sampling *s) {
    size_t latent = (size_t)p->model.options.latent, padded = (size_t)p->model.padded;
    bool on_gpu, fast;
    WF_TRY(wf_use_cuda(ctx, &on_gpu));
    WF_TRY(wf_choose_precision(ctx, desc->precision, on_gpu, true, &fast));
    *at_once = desc->batch > 0 ? desc->batch : on_gpu ? 128 : 32;
    WF_TRY(wf_phase_eval_open(ctx, &p->phases[1], &p->model, *at_once, on_gpu, fast, &s->denoise));
    WF_TRY(wf_phase_eval_open(ctx, &p->phases[0], &p->model, *at_once, on_gpu, fast, &s->decode));
    WF_TRY(wf_alloc(ctx, *at_once * latent, sizeof(float), "latents", &s->z));
    WF_TRY(wf_alloc(ctx, *at_once * latent, sizeof(float), "noise", &s->noise));
    WF_TRY(wf_alloc(ctx, *at_once * padded, sizeof(float), "networks", &s->made));
    WF_TRY(wf_alloc(ctx, *at_once, sizeof(float), "steps", &s->t));
    return wf_alloc(ctx, latent, sizeof(float), "noise", &s->fresh);
}

static void sampling_close(sampling *s) {
    wf_phase_eval_close(&s->denoise);
    wf_phase_eval_close(&s->decode);
    free(s->z);
    free(s->noise);
    free(s->made);
    free(s->t);
    free(s->fresh);
}

static wf_status sample(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    pdiff *p = self;
    size_t at_once;
    double start = wf_seconds(), steps = p->model.options.diffusion_steps;
    sampling s = {0};
    wf_status status = sampling_open(ctx, p, request->sample, &at_once, &s);
    s.meter = wf_meter_start(ctx, "sampling networks", "steps", steps * (double)request->n);
    for (size_t first = 0; first < request->n && status == WF_OK; first += at_once) {
        size_t n = request->n - first < at_once ? request->n - first : at_once;
        uint32_t index = (uint32_t)(request->sample->first + first);
        status = diffuse(p, &s, request->sample->seed, index, n);
        if (status == WF_OK)
            status = decode(p, &s, n, request->weights + first * (size_t)p->model.params);
    }
    wf_meter_end(&s.meter, s.done, "%s", "");
    request->stats->evaluations = steps;
    request->stats->seconds = wf_seconds() - start;
    sampling_close(&s);
    return status;
}

static void free_pdiff(void *self) { tear_down(self); }

static const wf_graph *graph_of(const void *self) { return ((const pdiff *)self)->file.graph; }

const wf_generator_kind wf__pdiff_kind = {
    .name = "pdiff",
    .traits = WF_GENERATOR_ON_GPU,
    .about = "P-diff: diffusion of the latents of a convolutional autoencoder; one architecture",
    .settings = settings,
    .options_size = sizeof(wf_pdiff_options),
    .fit = fit_pdiff,
    .open = open_pdiff,
    .sample = sample,
    .free = free_pdiff,
    .graph = graph_of,
    .params = params};
