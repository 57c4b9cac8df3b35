/* sane: SANE as two generators, which share the autoencoder and differ in where latents come from.
 *
 * sane-kde   a draw is the whole latent of one anchor plus noise. The authors fit a kernel density
 *            to each coordinate (or token) and sample all of them with one seed, so that all use
 *            the same anchor, and the same noise. `kernel` says how far that goes; "coordinate" is
 *            what their code does.
 * sane-gauss normal latents.
 * Draw k: stream (seed, k, WF_RNG_SAMPLE, 0) chooses the anchor, (seed, k, WF_RNG_SAMPLE, 1) is
 * noise. */
#include "base/random.h"
#include "flow/flow_config.h"
#include "generators/generators.h"
#include "generators/sane_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME(constant, text) text,
#define ENUM(type, values) static const char *const type##_names[] = {values NULL};
#include "generators/sane.def"
static const wf_setting rows[] = {
#define SETTING(...) WF_SETTING_ROW(wf_sane_options, "model", "field.", __VA_ARGS__)
#include "generators/sane.def"
    {0}};
static const wf_setting *settings(void) { return rows; }

enum { most_anchors = 1000, at_once = 16 /* samples */ };

typedef struct sane {
    wf_sane_model model;
    wf_net_place decoder;
    wf_phase phase; /* of a generator that samples */
    wf_phase_file file;
    wf_norm norm;
    size_t numbers;    /* in the latent of a network */
    size_t n_anchors;  /* sane-kde */
    float *anchors;    /* (n_anchors, numbers) */
    float *mean, *std; /* (numbers) of latents, sane-gauss */
} sane;

static bool is_kde(const wf_generator_kind *kind) { return kind == &wf__sane_kde_kind; }

/* --- the model -------------------------------------------------------------------------------- */

static wf_status set_up(wf_ctx *ctx, sane *s, const wf_sane_options *o, const wf_graph *graph) {
    WF_TRY(wf_settings_check(ctx, rows, o));
    if (o->width % 2 != 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "model.width is %d; give an even number: positions take half of it each",
                       o->width);
    WF_TRY(wf_layer_check_heads(ctx, o->width, o->heads));
    s->model = (wf_sane_model){.options = *o, .graph = graph, .decoder = &s->decoder};
    WF_TRY(wf_sane_tokens_create(ctx, graph, o->token, &s->model.tokens));
    s->numbers = (size_t)s->model.tokens.count * (size_t)o->latent;
    return WF_OK;
}

static void tear_down(sane *s) {
    wf_phase_free(&s->phase);
    wf_phase_file_close(&s->file);
    wf_sane_tokens_free(&s->model.tokens);
    wf_norm_free(&s->norm);
    free(s->model.perm);
    free(s->model.flat);
    free(s->anchors);
    free(s->mean);
    free(s->std);
    free(s);
}

static wf_status params(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                        const wf_graph *graph, int cond_size, size_t *out) {
    (void)kind, (void)cond_size;
    sane *s;
    WF_TRY(wf_alloc(ctx, 1, sizeof *s, "sane", &s));
    wf_status status = set_up(ctx, s, options, graph);
    wf_sane_phase(options, &s->phase);
    if (status == WF_OK) status = wf_phase_declare(ctx, &s->phase, &s->model);
    *out = s->phase.list.total;
    tear_down(s);
    return status;
}

/* --- fit -------------------------------------------------------------------------------------- */

static wf_status count_anchors(wf_ctx *ctx, const wf_generator_kind *kind,
                               const wf_generator_fit_desc *desc, size_t networks, size_t *out) {
    const wf_sane_options *o = desc->options;
    const char *path = wf_zoo_path(desc->sources[0].zoo);
    *out = o->anchors > 0 ? o->anchors : networks < most_anchors ? networks : most_anchors;
    if (*out > networks)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: model.anchors is %zu, but %zu networks are fitted; lower it", path,
                       o->anchors, networks);
    if (*out < 2)
        return wf_fail(
            ctx, WF_ERR_INPUT,
            "%s: %zu network%s; %s takes latents of two or more, of hundreds to be of use", path,
            networks, networks == 1 ? "" : "s", kind->name);
    return WF_OK;
}

static size_t least(const void *options) {
    size_t anchors = ((const wf_sane_options *)options)->anchors;
    return anchors > 2 ? anchors : 2;
}

static wf_tensor *encode_walk(wf_net *net, const void *model, int networks,
                              wf_tensor *const in[WF_PHASE_INPUTS]) {
    return wf_sane_encode(net, model, networks, in[0]);
}

static wf_tensor *decode_walk(wf_net *net, const void *model, int networks,
                              wf_tensor *const in[WF_PHASE_INPUTS]) {
    return wf_sane_decode(net, model, networks, in[0]);
}

/* Mean and deviation of each coordinate over the anchors. */
static wf_status measure_latents(wf_ctx *ctx, sane *s) {
    WF_TRY(wf_alloc(ctx, s->numbers, sizeof(float), "latents", &s->mean));
    WF_TRY(wf_alloc(ctx, s->numbers, sizeof(float), "latents", &s->std));
    double n = (double)s->n_anchors;
    for (size_t i = 0; i < s->numbers; i++) {
        double sum = 0, squares = 0;
        for (size_t k = 0; k < s->n_anchors; k++) sum += s->anchors[k * s->numbers + i];
        for (size_t k = 0; k < s->n_anchors; k++) {
            double d = s->anchors[k * s->numbers + i] - sum / n;
            squares += d * d;
        }
        s->mean[i] = (float)(sum / n);
        s->std[i] = (float)sqrt(squares / n);
    }
    return WF_OK;
}

static wf_status keep_latents(wf_ctx *ctx, sane *s, wf_phase_fit *fit) {
    WF_TRY(wf_phase_fit_encode(fit, encode_walk, s->n_anchors, s->model.graph->n_params, s->numbers,
                               &s->anchors));
    if (is_kde(fit->kind)) {
        fit->extra[fit->n_extra++] =
            (wf_phase_extra){"anchors", s->n_anchors, s->numbers, s->anchors};
    } else {
        WF_TRY(measure_latents(ctx, s));
        fit->extra[fit->n_extra++] = (wf_phase_extra){"latent.mean", s->numbers, 0, s->mean};
        fit->extra[fit->n_extra++] = (wf_phase_extra){"latent.std", s->numbers, 0, s->std};
    }
    return wf_phase_fit_save(fit);
}

static wf_status run_phase(wf_ctx *ctx, sane *s, wf_phase_fit *fit) {
    const wf_graph *graph = s->model.graph;
    WF_TRY(wf_alloc(ctx, wf_graph_perm_size(graph) + 1, sizeof(uint32_t), "relabelling",
                    &s->model.perm));
    WF_TRY(wf_alloc(ctx, graph->n_params, sizeof(float), "noise", &s->model.flat));
    WF_TRY(wf_phase_fit_normalise(fit, true, true, &s->norm));
    s->model.networks = fit->set.families[0].weights;
    WF_TRY(wf_phase_declare(ctx, &fit->phases[0], &s->model));
    WF_TRY(wf_phase_fit_open(fit, &s->model));
    WF_TRY(wf_phase_fit_run(fit, 0));
    return keep_latents(ctx, s, fit);
}

static wf_status fit_sane(wf_ctx *ctx, const wf_generator_kind *kind,
                          const wf_generator_fit_desc *desc) {
    sane *s;
    wf_phase_fit fit = {.n_phases = 1};
    wf_status status;
    WF_TRY(wf_alloc(ctx, 1, sizeof *s, "sane", &s));
    wf_sane_phase(desc->options, &fit.phases[0]);
    fit.phases[0].updates = desc->train->updates, fit.phases[0].lr = desc->train->lr;
    WF_TRY_GOTO(set_up(ctx, s, desc->options, wf_zoo_graph(desc->sources[0].zoo)), done);
    WF_TRY_GOTO(wf_phase_fit_load(&fit, ctx, kind, desc), done);
    s->model.graph = fit.set.families[0].graph;
    WF_TRY_GOTO(count_anchors(ctx, kind, desc, fit.set.families[0].count, &s->n_anchors), done);
    status = run_phase(ctx, s, &fit);
done:
    wf_phase_fit_free(&fit);
    tear_down(s);
    return status;
}

/* --- samples ---------------------------------------------------------------------------------- */

static wf_status read_latents(wf_ctx *ctx, const wf_generator_kind *kind, sane *s) {
    const wf_st_file *file = s->file.file;
    const char *path = s->file.path, *needed = is_kde(kind) ? "anchors" : "latent.mean";
    const wf_st_tensor *anchors = wf_st_find(file, needed);
    if (anchors == NULL)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: its fit broke off; the same command goes on with it",
                       path);
    if (!is_kde(kind)) {
        WF_TRY(wf_alloc(ctx, s->numbers, sizeof(float), "latents", &s->mean));
        WF_TRY(wf_alloc(ctx, s->numbers, sizeof(float), "latents", &s->std));
        WF_TRY(wf_file_tensor(ctx, path, file, needed, s->numbers, s->mean));
        return wf_file_tensor(ctx, path, file, "latent.std", s->numbers, s->std);
    }
    s->n_anchors = anchors->count / s->numbers;
    if (s->n_anchors < 1 || s->n_anchors > UINT32_MAX)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: tensor \"anchors\" holds no latent of a network",
                       path);
    WF_TRY(wf_alloc(ctx, s->n_anchors * s->numbers, sizeof(float), "latents", &s->anchors));
    return wf_file_tensor(ctx, path, file, needed, s->n_anchors * s->numbers, s->anchors);
}

static wf_status open_sane(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_open_desc *desc, void **self) {
    wf_sane_options options;
    sane *s;
    wf_status status;
    WF_TRY(wf_alloc(ctx, 1, sizeof *s, "sane", &s));
    WF_TRY_GOTO(wf_phase_file_open(ctx, desc->path, kind, &options, &s->file), fail);
    WF_TRY_GOTO(wf_blame_file(ctx, desc->path, set_up(ctx, s, &options, s->file.graph)), fail);
    wf_sane_phase(&options, &s->phase);
    WF_TRY_GOTO(wf_phase_declare(ctx, &s->phase, &s->model), fail);
    WF_TRY_GOTO(wf_phase_file_read(ctx, &s->file, &s->phase, 1), fail);
    WF_TRY_GOTO(wf_phase_file_norm(ctx, &s->file, &s->norm), fail);
    WF_TRY_GOTO(read_latents(ctx, kind, s), fail);
    *self = s;
    return WF_OK;
fail:
    tear_down(s);
    return status;
}

/* The latent of draw `index`. */
static void draw_latent(const sane *s, uint64_t seed, uint32_t index, float *z) {
    const wf_sane_options *o = &s->model.options;
    wf_rng choice = wf_rng_at(seed, index, WF_RNG_SAMPLE, 0);
    wf_rng noise = wf_rng_at(seed, index, WF_RNG_SAMPLE, 1);
    wf_rng_normals(&noise, z, s->numbers);
    if (s->anchors == NULL) {
        bool fitted = o->prior == WF_SANE_PRIOR_FITTED;
        for (size_t i = 0; i < s->numbers; i++)
            z[i] = fitted ? s->mean[i] + s->std[i] * z[i] : (float)o->prior_std * z[i];
        return;
    }
    const float *anchor = s->anchors + wf_rng_below(&choice, (uint32_t)s->n_anchors) * s->numbers;
    /* The first deviates are shared by the rest, which is overwritten from the end. */
    size_t shared = o->kernel == WF_SANE_KERNEL_JOINT   ? s->numbers
                    : o->kernel == WF_SANE_KERNEL_TOKEN ? (size_t)o->latent
                                                        : 1;
    for (size_t i = s->numbers; i-- > 0;) z[i] = anchor[i] + (float)o->bandwidth * z[i % shared];
}

static wf_status sample(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    sane *s = self;
    const wf_sample_desc *desc = request->sample;
    size_t batch = desc->batch > 0 ? desc->batch : at_once, p = s->file.graph->n_params;
    wf_phase_shape shape = {s->model.tokens.count, s->model.options.latent};
    double start = wf_seconds();
    bool on_gpu, fast;
    float *z = NULL;
    wf_phase_eval eval = {0};
    wf_status status;
    WF_TRY(wf_use_cuda(ctx, &on_gpu));
    WF_TRY(wf_choose_precision(ctx, desc->precision, on_gpu, true, &fast));
    WF_TRY_GOTO(wf_alloc(ctx, batch * s->numbers, sizeof(float), "latents", &z), done);
    WF_TRY_GOTO(wf_phase_eval_open(ctx, &s->phase, &s->model, batch, on_gpu, fast, &eval), done);
    wf_meter meter = wf_meter_start(ctx, "sampling networks", "networks", (double)request->n);
    for (size_t first = 0; first < request->n && status == WF_OK; first += batch) {
        size_t n = request->n - first < batch ? request->n - first : batch;
        float *made = request->weights + first * p;
        for (size_t k = 0; k < n; k++)
            draw_latent(s, desc->seed, (uint32_t)(desc->first + first + k), z + k * s->numbers);
        status = wf_phase_eval_run(&eval, decode_walk, n, &shape, 1, (const float *[]){z}, made);
        for (size_t k = 0; k < n && status == WF_OK; k++)
            wf_norm_invert(&s->norm, s->file.graph, made + k * p, made + k * p);
        wf_meter_update(&meter, (double)(first + n), "%s", "");
    }
    wf_meter_end(&meter, (double)request->n, "%s", "");
    request->stats->evaluations = 1;
    request->stats->seconds = wf_seconds() - start;
done:
    wf_phase_eval_close(&eval);
    free(z);
    return status;
}

static void free_sane(void *self) { tear_down(self); }

static const wf_graph *graph_of(const void *self) { return ((const sane *)self)->file.graph; }

/* clang-format off */
#define SHARED                                                                                     \
    .traits = WF_GENERATOR_WANTS_ALIGNED | WF_GENERATOR_ON_GPU, .settings = settings,              \
    .options_size = sizeof(wf_sane_options), .fit = fit_sane, .open = open_sane,                   \
    .sample = sample, .free = free_sane, .graph = graph_of, .least = least, .params = params
/* clang-format on */

const wf_generator_kind wf__sane_kde_kind = {
    .name = "sane-kde",
    .about =
        "SANE: latents of a token autoencoder near those of trained networks; one architecture",
    SHARED};
const wf_generator_kind wf__sane_gauss_kind = {
    .name = "sane-gauss",
    .about = "SANE: normal latents of a token autoencoder; one architecture",
    SHARED};
