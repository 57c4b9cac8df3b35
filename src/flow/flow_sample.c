/* flow_sample: networks from a flow.
 *
 * Network k starts at noise of stream (seed, k, WF_RNG_SAMPLE) in normalised space, is integrated
 * from t = 0 to 1, then refined: each cycle moves it back to t*, w <- t* w + (1 - t*) s eps with
 * fresh eps of stream (seed, k, WF_RNG_REFINE, cycle), and integrates again. The guided velocity is
 * null + g (conditional - null). A network depends on its index alone, never on the batch or the
 * call it is made in. */
#include "base/comm.h"
#include "base/digest.h"
#include "base/random.h"
#include "flow/cuda/sample_cuda.h"
#include "flow/flow_fit.h"
#include "flow/ode.h"
#include "weft/align.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    batch_at_most = 256,
    batch_bytes = 256 << 20 /* activations that the field may hold for one batch */
};

typedef struct sampler {
    wf_ctx *ctx;
    wf_flow *flow;
    const wf_graph *graph;
    wf_norm norm;
    const wf_principal *principal; /* the family's, or one that does nothing */
    wf_axes axes;
    const wf_sample_desc *desc;
    wf_path path;
    bool want_cond, want_null; /* which velocities the guided one needs */
    bool on_gpu, fast;
    wf_sample_cuda *gpu; /* the flow's */
    wf_batch shape;      /* of `batch` networks; its first m are a batch of m */
    int batch;
    int folds_each;
    float *x, *t, *f, *f_null;
    float *cond; /* (batch, K), or NULL */
    uint8_t *drop;
    double *y; /* (batch, n_params); on the GPU: its memory */
    double *own_y;
    float *flat; /* (2, batch, n_params): networks and noise in float, for matching and output */
    wf_arena arena;
    wf_ode_stats stats;
    wf_meter meter;
} sampler;

/* The first m networks of the sampler's batch, all of one architecture, are a batch themselves. */
static wf_batch batch_of_first(const sampler *s, int m) {
    wf_batch view = s->shape;
    view.n_graphs = m;
    view.n_nodes = view.node_start[m];
    view.n_edges = view.edge_start[m];
    view.n_params = view.param_start[m];
    view.n_blocks = view.block_start[m];
    view.n_folds = s->folds_each * m;
    return view;
}

static wf_status run_field(sampler *s, const wf_batch *shape, bool null, float *out) {
    wf_field_input input = {
        .batch = shape, .w = s->x, .t = s->t, .cond = s->cond, .drop = null ? s->drop : NULL};
    return wf_field_forward(s->ctx, s->flow->field, s->flow->params, &input, out);
}

/* dy (n, n_params) = velocity of n networks. */
static wf_status velocity_fn(void *arg, int n, const int *which, const double *t, const double *y,
                             double *dy) {
    sampler *s = arg;
    (void)which;
    size_t p = s->graph->n_params;
    wf_batch shape = batch_of_first(s, n);
    for (int r = 0; r < n; r++) {
        wf_path_scales scale = wf_path_at(&s->path, 1, t[r]);
        const double *from = y + (size_t)r * p;
        float *x = s->x + (size_t)r * p;
        s->t[r] = (float)t[r];
        for (uint32_t i = 0; i < p; i++)
            x[i] = wf_axes_at(&s->axes, &s->path, scale, t[r], i).in * (float)from[i];
    }
    if (s->want_cond) WF_TRY(run_field(s, &shape, false, s->f));
    if (s->want_null) WF_TRY(run_field(s, &shape, true, s->want_cond ? s->f_null : s->f));
    if (s->want_cond && s->want_null) {
        float g = (float)s->desc->guidance;
        for (size_t i = 0; i < (size_t)n * p; i++)
            s->f[i] = s->f_null[i] + g * (s->f[i] - s->f_null[i]);
    }
    for (int r = 0; r < n; r++) {
        wf_path_scales others = wf_path_at(&s->path, 1, t[r]);
        size_t first = (size_t)r * p;
        for (uint32_t i = 0; i < p; i++) {
            wf_path_scales scale = wf_axes_at(&s->axes, &s->path, others, t[r], i);
            dy[first + i] =
                (double)scale.skip * y[first + i] + (double)(scale.out * s->f[first + i]);
        }
    }
    return WF_OK;
}

/* --- setting up ------------------------------------------------------------------------------- */

static wf_status check_condition(wf_ctx *ctx, const sampler *s, const float *cond) {
    bool has = s->flow->field->cond_size > 0, null = s->flow->fit.cond_drop > 0;
    if (!has && cond != NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "a condition is given, but the flow has none");
    if (!has && s->desc->guidance != 1)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "guidance is %g, but the flow has no conditions; leave it at 1",
                       s->desc->guidance);
    if (s->want_null && !null)
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "%s needs the flow's null condition, which was never trained (cond_drop = 0)",
            cond == NULL ? "sampling without a condition" : "guidance other than 1");
    for (int k = 0; cond != NULL && k < s->flow->field->cond_size; k++)
        if (!isfinite(cond[k]))
            return wf_fail(ctx, WF_ERR_USAGE, "number %d of the condition is not finite", k);
    return WF_OK;
}

/* No family has the blocks of `graph`. */
static wf_status refuse_layers(wf_ctx *ctx, const wf_graph *graph, const wf_graph *like) {
    for (int b = 0; b < graph->n_blocks && graph->n_blocks == like->n_blocks; b++) {
        const wf_block *found = &graph->blocks[b], *expected = &like->blocks[b];
        if (found->kind == expected->kind && found->coef != expected->coef)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                           "%s: layer %d: expected %d numbers between two units, as in the flow's "
                           "networks (%s), found %d; keep kernels and image sizes",
                           graph->text, found->layer + 1, expected->coef, like->text, found->coef);
        if (found->kind != expected->kind) break;
    }
    return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                   "%s: the flow was fitted to networks with other layers (%s ...), so there is "
                   "no normalisation for its blocks; keep the number of layers and biases",
                   graph->text, like->text);
}

static wf_status choose_norm(wf_ctx *ctx, sampler *s, const float *cond) {
    static const wf_principal none;
    s->norm = (wf_norm){0};
    s->principal = &none;
    s->axes = wf_principal_axes(&none, s->graph);
    if (!s->flow->fit.normalise) return WF_OK;
    const wf_family *family = wf_training_set_match(&s->flow->set, s->graph, cond);
    if (family == NULL) return refuse_layers(ctx, s->graph, s->flow->set.families[0].graph);
    WF_TRY(wf_family_norm(ctx, family, s->graph, &s->norm));
    if (!s->flow->fit.principal) return WF_OK;
    if (wf_principal_width(s->graph) != family->principal.width)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "%s: the flow knows first layers by the principal axes of %d inputs (%s); "
                       "keep the inputs",
                       s->graph->text, family->principal.width, family->graph->text);
    s->principal = &family->principal;
    s->axes = wf_principal_axes(s->principal, s->graph);
    return WF_OK;
}

static int choose_batch(const sampler *s, size_t n) {
    size_t batch = s->desc->batch;
    if (batch == 0 && s->on_gpu) batch = batch_at_most;
    if (batch == 0) {
        const wf_field *field = s->flow->field;
        size_t each = field->kind->bytes != NULL ? field->kind->bytes(field, s->graph) : 0;
        batch = (size_t)batch_bytes / (each + 1);
        if (batch > batch_at_most) batch = batch_at_most;
        if (batch < 1) batch = 1;
    }
    if (batch > n) batch = n;
    return batch > 1 << 20 ? 1 << 20 : (int)batch;
}

static wf_status build_shape(sampler *s) {
    const wf_graph **graphs;
    WF_TRY(wf_alloc(s->ctx, (size_t)s->batch, sizeof *graphs, "sampling", &graphs));
    for (int r = 0; r < s->batch; r++) graphs[r] = s->graph;
    wf_arena_reset(&s->arena);
    wf_status status = wf_batch_build(s->ctx, &s->arena, graphs, s->batch, &s->shape);
    free(graphs);
    return status;
}

static wf_status alloc_cpu(sampler *s, const float *cond) {
    wf_ctx *ctx = s->ctx;
    size_t rows = (size_t)s->batch, all = rows * s->graph->n_params;
    size_t k = (size_t)s->flow->field->cond_size;
    const char *what = "sampling";
    s->folds_each = s->shape.n_folds / s->batch;
    WF_TRY(wf_alloc(ctx, all, sizeof(float), what, &s->x));
    WF_TRY(wf_alloc(ctx, all, sizeof(float), what, &s->f));
    WF_TRY(wf_alloc(ctx, rows, sizeof(float), what, &s->t));
    WF_TRY(wf_alloc(ctx, all, sizeof(double), what, &s->own_y));
    s->y = s->own_y;
    if (s->want_cond && s->want_null) WF_TRY(wf_alloc(ctx, all, sizeof(float), what, &s->f_null));
    if (k == 0) return WF_OK;
    WF_TRY(wf_alloc(ctx, rows * k, sizeof(float), what, &s->cond));
    WF_TRY(wf_alloc(ctx, rows, 1, what, &s->drop));
    memset(s->drop, 1, rows);
    for (size_t r = 0; cond != NULL && r < rows; r++)
        memcpy(s->cond + r * k, cond, k * sizeof(float));
    return WF_OK;
}

/* Reuses the flow's sampler of the last call where it serves this one too. */
static wf_status open_gpu(sampler *s) {
    wf_flow *flow = s->flow;
    if (wf__sample_cuda_serves(flow->gpu, s->graph, s->batch, s->fast)) return WF_OK;
    wf__sample_cuda_free(flow->gpu);
    flow->gpu = NULL;
    WF_TRY(build_shape(s));
    wf_sample_cuda_desc desc = {.field = flow->field,
                                .params = flow->params,
                                .graph = s->graph,
                                .shape = &s->shape,
                                .batch = s->batch,
                                .cond_size = flow->field->cond_size,
                                .fast = s->fast};
    return wf__sample_cuda_create(s->ctx, &desc, &flow->gpu);
}

static wf_status alloc_gpu(sampler *s, const float *cond) {
    wf_status status = open_gpu(s);
    while (status == WF_ERR_MEMORY && s->desc->batch == 0 && s->batch > 1) {
        s->batch = (s->batch + 1) / 2;
        status = open_gpu(s);
    }
    if (status != WF_OK) return status;
    s->gpu = s->flow->gpu;
    s->y = wf__sample_cuda_states(s->gpu);
    wf_sample_cuda_call call = {.path = s->path,
                                .axes = s->axes,
                                .cond = cond,
                                .want_cond = s->want_cond,
                                .want_null = s->want_null,
                                .guidance = (float)s->desc->guidance,
                                .seed = s->desc->seed};
    return wf__sample_cuda_begin(s->ctx, s->gpu, &call);
}

static wf_status sampler_alloc(sampler *s, const float *cond) {
    if (s->on_gpu) WF_TRY(alloc_gpu(s, cond));
    else {
        WF_TRY(build_shape(s));
        WF_TRY(alloc_cpu(s, cond));
    }
    return wf_alloc(s->ctx, 2 * (size_t)s->batch * s->graph->n_params, sizeof(float), "sampling",
                    &s->flat);
}

static void sampler_free(sampler *s) {
    void *memory[] = {s->x, s->f, s->f_null, s->t, s->own_y, s->flat, s->cond, s->drop};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    wf_norm_free(&s->norm);
    wf_arena_free(&s->arena);
}

/* --- one batch -------------------------------------------------------------------------------- */

/* Work of a refinement cycle relative to the first integration; an estimate where it has Euler
 * steps of its own. */
static double cycle_cost(const wf_sample_desc *desc) {
    return desc->refine_steps > 0 ? (double)desc->refine_steps / desc->steps : 1 - desc->refine_t;
}

/* How much of a network's work is its first integration. */
static double direct_share(const wf_sample_desc *desc) {
    return 1 / (1 + desc->refine_cycles * cycle_cost(desc));
}

/* From t = 0, or from t* in a cycle of refinement. */
static wf_status integrate(sampler *s, size_t first, int n, double from, double done,
                           double share) {
    const wf_sample_desc *desc = s->desc;
    bool jumps = from > 0 && desc->refine_steps > 0;
    /* Fixed steps keep their size: from t* there are fewer of them. */
    int steps = jumps ? desc->refine_steps : (int)ceil(desc->steps * (1 - from) - 1e-9);
    wf_ode_desc ode = {.solver = jumps ? WF_SOLVER_EULER : desc->solver,
                       .steps = steps < 1 ? 1 : steps,
                       .rtol = desc->rtol,
                       .atol = desc->atol,
                       .min_step = desc->min_step,
                       .max_step = desc->max_step,
                       .max_evaluations = desc->max_evaluations};
    wf_ode_problem problem = {.systems = n,
                              .dim = s->graph->n_params,
                              .t0 = from,
                              .t1 = 1,
                              .fn = s->on_gpu ? wf__sample_cuda_velocity : velocity_fn,
                              .arg = s->on_gpu ? (void *)s->gpu : (void *)s,
                              .ops = s->on_gpu ? wf__sample_cuda_ops(s->gpu) : NULL,
                              .label = "network",
                              .first = first,
                              .meter = &s->meter,
                              .meter_done = done,
                              .meter_share = share};
    return wf_ode_solve(s->ctx, &s->arena, &problem, &ode, s->y, &s->stats);
}

static void draw_noise(const sampler *s, size_t first, int n, wf_purpose purpose, uint32_t step,
                       float *out) {
    size_t p = s->graph->n_params;
    for (int r = 0; r < n; r++) {
        wf_rng rng = wf_rng_at(s->desc->seed, (uint32_t)(first + (size_t)r), purpose, step);
        wf_rng_normals(&rng, out + (size_t)r * p, p);
    }
    for (size_t i = 0; i < (size_t)n * p; i++) out[i] *= (float)s->path.source_std;
}

static wf_status start_states(sampler *s, size_t first, int n) {
    if (s->on_gpu) return wf__sample_cuda_noise(s->ctx, s->gpu, first, n);
    draw_noise(s, first, n, WF_RNG_SAMPLE, 0, s->flat);
    for (size_t i = 0; i < (size_t)n * s->graph->n_params; i++) s->y[i] = (double)s->flat[i];
    return WF_OK;
}

/* Back on the networks' own scale. */
static wf_status write_networks(sampler *s, int n, float *out) {
    size_t p = s->graph->n_params;
    if (s->on_gpu) WF_TRY(wf__sample_cuda_fetch(s->ctx, s->gpu, n, s->flat));
    else
        for (size_t i = 0; i < (size_t)n * p; i++) s->flat[i] = (float)s->y[i];
    WF_TRY(wf_principal_invert(s->ctx, s->principal, s->graph, s->flat, (size_t)n));
    for (int r = 0; r < n; r++)
        wf_norm_invert(&s->norm, s->graph, s->flat + (size_t)r * p, out + (size_t)r * p);
    return WF_OK;
}

static wf_status corrupt(sampler *s, size_t first, int n, uint32_t cycle) {
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = s->flow->fit.match_sweeps;
    match.seed = s->flow->fit.seed;
    double t = s->desc->refine_t;
    if (s->on_gpu)
        return wf__sample_cuda_corrupt(s->ctx, s->gpu, first, n, cycle, t,
                                       s->desc->refine_matched ? &match : NULL);
    size_t all = (size_t)n * s->graph->n_params;
    float *w = s->flat, *eps = s->flat + (size_t)s->batch * s->graph->n_params;
    for (size_t i = 0; i < all; i++) w[i] = (float)s->y[i];
    draw_noise(s, first, n, WF_RNG_REFINE, cycle, eps);
    bool may_match = wf_field_equivariant(s->flow->field) && s->graph->n_orbits > 0;
    if (s->desc->refine_matched && may_match)
        WF_TRY(wf_match_pairs(s->ctx, s->graph, w, eps, (size_t)n, &match));
    for (size_t i = 0; i < all; i++) s->y[i] = t * s->y[i] + (1 - t) * (double)eps[i];
    return WF_OK;
}

/* Networks first .. first+n-1; `done` of all networks were made before. */
static wf_status sample_batch(sampler *s, size_t first, int n, size_t done, float *weights,
                              float *direct) {
    double share = direct_share(s->desc);
    WF_TRY(start_states(s, first, n));
    WF_TRY(integrate(s, first, n, 0, (double)done, share));
    if (direct != NULL) WF_TRY(write_networks(s, n, direct));
    double cycle_share = share * cycle_cost(s->desc);
    for (int cycle = 0; cycle < s->desc->refine_cycles; cycle++) {
        WF_TRY(corrupt(s, first, n, (uint32_t)cycle));
        WF_TRY(integrate(s, first, n, s->desc->refine_t,
                         (double)done + n * (share + cycle * cycle_share), cycle_share));
    }
    return write_networks(s, n, weights);
}

static wf_status sample_all(sampler *s, size_t n, float *weights, float *direct) {
    size_t p = s->graph->n_params;
    for (size_t done = 0; done < n;) {
        int part = n - done < (size_t)s->batch ? (int)(n - done) : s->batch;
        WF_TRY(sample_batch(s, s->desc->first + done, part, done, weights + done * p,
                            direct == NULL ? NULL : direct + done * p));
        done += (size_t)part;
    }
    return WF_OK;
}

static sampler start_sampler(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph, const float *cond,
                             const wf_sample_desc *desc) {
    bool conditional = flow->field->cond_size > 0;
    return (sampler){.ctx = ctx,
                     .flow = flow,
                     .graph = graph,
                     .desc = desc,
                     .path = {flow->fit.precondition, flow->fit.source_std, flow->fit.path_noise},
                     .want_cond = !conditional || (cond != NULL && desc->guidance != 0),
                     .want_null = conditional && (cond == NULL || desc->guidance != 1)};
}

/* wf_flow_sample with a graph as the field takes it. */
static wf_status sample(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph, const float *cond,
                        size_t n, const wf_sample_desc *desc, float *weights, float *direct,
                        wf_sample_stats *stats) {
    wf_sample_desc defaults = wf_sample_desc_default();
    if (desc == NULL) desc = &defaults;
    if (stats != NULL) *stats = (wf_sample_stats){0};
    WF_TRY(wf_sample_check(ctx, desc));
    if (n > UINT32_MAX - (desc->first < UINT32_MAX ? desc->first : UINT32_MAX))
        return wf_fail(ctx, WF_ERR_USAGE, "network indices end at %u", UINT32_MAX);
    if (n == 0) return WF_OK;
    double started = wf_seconds();
    sampler s = start_sampler(ctx, flow, graph, cond, desc);
    WF_TRY(check_condition(ctx, &s, cond));
    WF_TRY(wf__field_device(ctx, flow->field, "sampling", &s.on_gpu));
    WF_TRY(wf_choose_precision(ctx, desc->precision, s.on_gpu, desc->solver != WF_SOLVER_DOPRI5,
                               &s.fast));
    s.batch = choose_batch(&s, n);
    s.meter = wf_meter_start(ctx, "sampling networks", "networks", (double)n);
    wf_status status = choose_norm(ctx, &s, cond);
    if (status == WF_OK) status = sampler_alloc(&s, cond);
    if (status == WF_OK) status = sample_all(&s, n, weights, direct);
    if (status == WF_OK) wf_meter_end(&s.meter, (double)n, "%s", "");
    if (stats != NULL)
        *stats = (wf_sample_stats){(double)s.stats.evaluations / (double)n, s.stats.accepted,
                                   s.stats.rejected, wf_seconds() - started};
    sampler_free(&s);
    return status;
}

/* Sums of all ranks, each of which has made `own` networks. */
static wf_status add_stats(wf_ctx *ctx, size_t own, size_t n, wf_sample_stats *stats) {
    size_t ranks = (size_t)wf_ctx_ranks(ctx);
    double(*each)[3];
    WF_TRY(wf_alloc(ctx, ranks, sizeof *each, "sampling", &each));
    double *mine = each[wf_ctx_rank(ctx)];
    mine[0] = rint(stats->evaluations * (double)own);
    mine[1] = (double)stats->accepted, mine[2] = (double)stats->rejected;
    wf_status status = wf_gather_rows(ctx, each, sizeof *each, ranks);
    double sum[3] = {0};
    for (size_t r = 0; r < ranks; r++)
        for (int k = 0; k < 3; k++) sum[k] += each[r][k];
    stats->evaluations = sum[0] / (double)n;
    stats->accepted = (size_t)sum[1], stats->rejected = (size_t)sum[2];
    free(each);
    return status;
}

/* Each rank makes a share of the networks; all get all. */
static wf_status sample_together(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph,
                                 const float *cond, size_t n, const wf_sample_desc *desc,
                                 float *weights, float *direct, wf_sample_stats *stats) {
    char digits[WF_DIGEST_DIGITS + 1] = "";
    wf_digest digest;
    wf_sample_desc mine = desc != NULL ? *desc : wf_sample_desc_default();
    wf_sample_stats counted = {0};
    wf_range own = wf_share(ctx, n);
    size_t p = graph->n_params, row = p * sizeof(float);
    WF_TRY(wf_digest_start(ctx, &digest));
    wf_digest_add(&digest, flow->params, flow->field->params * sizeof(float));
    wf_digest_end(&digest, digits);
    WF_TRY(wf_same(ctx, "the flow's file", digits));
    mine.first += own.first;
    wf_status status =
        sample(ctx, flow, graph, cond, own.last - own.first, &mine, weights + own.first * p,
               direct == NULL ? NULL : direct + own.first * p, &counted);
    WF_TRY(wf_agree_rows(ctx, status, weights, row, n));
    WF_TRY(wf_gather_rows(ctx, direct, row, n));
    WF_TRY(add_stats(ctx, own.last - own.first, n, &counted));
    if (stats != NULL) *stats = counted;
    return WF_OK;
}

wf_status wf_flow_sample(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph, const float *cond,
                         size_t n, const wf_sample_desc *desc, float *weights, float *direct,
                         wf_sample_stats *stats) {
    wf_graph *own;
    WF_TRY(wf_family_graph(ctx, flow->field, graph, &own));
    bool together = wf_ctx_ranks(ctx) > 1 && n > 0;
    wf_status status = together
                           ? sample_together(ctx, flow, own, cond, n, desc, weights, direct, stats)
                           : sample(ctx, flow, own, cond, n, desc, weights, direct, stats);
    wf_graph_free(own);
    return status;
}

/* --- the velocity itself ---------------------------------------------------------------------- */

/* Networks first .. first+m-1 of a call: into the flow's space, their velocity, and out again. The
 * way out is affine, so a velocity is the difference of two points. */
static wf_status velocity_batch(sampler *s, const float *weights, const float *t, int m,
                                bool normalised, double *dy, float *out) {
    size_t p = s->graph->n_params, all = (size_t)m * p;
    float *from = s->flat, *to = s->flat + (size_t)s->batch * p;
    double times[batch_at_most];
    for (int r = 0; r < m; r++) {
        times[r] = (double)t[r];
        if (normalised) memcpy(from + (size_t)r * p, weights + (size_t)r * p, p * sizeof *from);
        else wf_norm_apply(&s->norm, s->graph, weights + (size_t)r * p, from + (size_t)r * p);
    }
    if (!normalised)
        WF_TRY(wf_principal_apply(s->ctx, s->principal, s->graph, from, (size_t)m, NULL));
    for (size_t i = 0; i < all; i++) s->y[i] = (double)from[i];
    WF_TRY(velocity_fn(s, m, NULL, times, s->y, dy));
    for (size_t i = 0; i < all; i++) to[i] = (float)dy[i];
    if (normalised) {
        memcpy(out, to, all * sizeof *out);
        return WF_OK;
    }
    if (s->principal->width > 0) {
        for (size_t i = 0; i < all; i++) to[i] += from[i];
        WF_TRY(wf_principal_invert(s->ctx, s->principal, s->graph, to, (size_t)m));
        WF_TRY(wf_principal_invert(s->ctx, s->principal, s->graph, from, (size_t)m));
        for (size_t i = 0; i < all; i++) to[i] -= from[i];
    }
    for (int b = 0; b < s->graph->n_blocks; b++) {
        const wf_block *block = &s->graph->blocks[b];
        float std = s->norm.n > 0 ? s->norm.std[b] : 1;
        for (int r = 0; r < m; r++)
            for (size_t i = 0; i < block->count; i++) {
                size_t at = (size_t)r * p + block->offset + i;
                out[at] = std * to[at];
            }
    }
    return WF_OK;
}

static wf_status velocities(sampler *s, const float *weights, const float *t, size_t n,
                            const float *cond, bool normalised, float *out) {
    size_t p = s->graph->n_params;
    double *dy = NULL;
    WF_TRY(check_condition(s->ctx, s, cond));
    WF_TRY(choose_norm(s->ctx, s, cond));
    WF_TRY(sampler_alloc(s, cond));
    WF_TRY(wf_alloc(s->ctx, (size_t)s->batch * p, sizeof *dy, "velocity", &dy));
    wf_status status = WF_OK;
    for (size_t done = 0; done < n && status == WF_OK;) {
        int m = n - done < (size_t)s->batch ? (int)(n - done) : s->batch;
        status = velocity_batch(s, weights + done * p, t + done, m, normalised, dy, out + done * p);
        done += (size_t)m;
    }
    free(dy);
    return status;
}

wf_status wf_flow_velocity(wf_ctx *ctx, wf_flow *flow, const wf_graph *graph, const float *weights,
                           const float *t, size_t n, const float *cond, double guidance,
                           bool normalised, float *velocity) {
    wf_sample_desc desc = wf_sample_desc_default();
    desc.guidance = guidance;
    for (size_t r = 0; r < n; r++)
        if (!(t[r] >= 0 && t[r] <= 1))
            return wf_fail(ctx, WF_ERR_USAGE, "time %zu is %g; it goes from 0 to 1", r,
                           (double)t[r]);
    if (n == 0) return WF_OK;
    wf_graph *own;
    WF_TRY(wf_family_graph(ctx, flow->field, graph, &own));
    sampler s = start_sampler(ctx, flow, own, cond, &desc);
    s.batch = choose_batch(&s, n);
    wf_status status = velocities(&s, weights, t, n, cond, normalised, velocity);
    sampler_free(&s);
    wf_graph_free(own);
    return status;
}
