/* fit_cuda: device memory of a run, the graphs of its updates, and the host's work between them. */
#include "flow/cuda/batch_cuda.cuh"
#include "base/comm.h"
#include "flow/cuda/run_memory.cuh"
#include "flow/cuda/update_graph.cuh"

#include <stdlib.h>
#include <string.h>
#include <vector>

#include "align/cuda/match_cuda.h"

extern "C" {
#include "flow/cuda/fit_cuda.h"
#include "flow/match_ahead.h"
#include "tensor/cuda/backend_cuda.h"
#include "tensor/tape.h"
}

namespace gpu = wf_batch_gpu;

namespace {

enum { ring = 2 * WF_UPDATES_AHEAD };

/* One composition of a batch (how many networks of which family), and the graph of its update. */
struct composition {
    wf_arena arena;
    wf_batch shape;
    std::vector<int> family; /* of each place */
    gpu::batch batch;
    wf_field_program *program;
    cudaGraphExec_t update;
};

} // namespace

struct wf_fit_cuda {
    wf_cuda_device *device; /* held */
    wf_training_set *set;
    const wf_fit_desc *fit;
    const wf_field *field;
    bool fast;
    wf_device_ranks *ranks; /* NULL: one has the whole batch */
    /* Gradients are added up over ranks stage by stage, beside the backward pass of the next. */
    std::vector<int> stages; /* of each tensor */
    int n_stages;
    cudaStream_t beside;
    cudaEvent_t ready; /* both: NULL without ranks */
    wf_updates_cuda *updates;
    wf_optim_cuda *optim; /* of the updates */
    gpu::batch batch;     /* what all compositions share */
    float *v;
    size_t values; /* largest size in bytes of an array over the parameters of a batch */
    std::vector<composition *> compositions; /* by phase; NULL: not met yet */
    size_t phase_step;
    wf_gpu::run_memory memory;
    std::vector<wf_match_cuda *> matchers; /* by family; NULL: nothing to match */
    uint32_t *relabellings;                /* host */
    wf_match_ahead *ahead;
    size_t matched_until;          /* the update where it ends */
    std::vector<float *> resident; /* weights of each family; NULL: the host's are read */
    composition *last;
    wf_field_program *fixed[2]; /* of the two batches of validation; NULL: not met yet */
};

namespace {

cudaStream_t stream(const wf_fit_cuda *fit) { return fit->device->stream; }

/* --- memory ----------------------------------------------------------------------------------- */
wf_status take(wf_ctx *ctx, wf_fit_cuda *fit, size_t bytes, const void *from, void *place) {
    return fit->memory.take(ctx, stream(fit), bytes, from, place);
}

template <class T>
wf_status take_table(wf_ctx *ctx, wf_fit_cuda *fit, const std::vector<T> &from, void *place) {
    return fit->memory.take_table(ctx, stream(fit), from, place);
}

/* --- the collections -------------------------------------------------------------------------- */
/* Invariant G1. */
bool collections_fit(const wf_training_set *set) {
    size_t bytes = 0;
    for (int s = 0; s < set->n_families; s++)
        bytes += set->families[s].count * set->families[s].graph->n_params * sizeof(float);
    return wf_gpu::networks_fit(bytes);
}

struct uploading {
    wf_ctx *ctx;
    wf_fit_cuda *fit;
    size_t params;
    float *there;
};

/* A wf_zoo_visit. The piece is read anew behind the call, so it waits for the copy. */
wf_status upload_piece(void *user, const float *weights, size_t first, size_t count) {
    const uploading *u = (const uploading *)user;
    wf_ctx *ctx = u->ctx;
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(u->there + first * u->params, weights,
                                     count * u->params * sizeof(float), cudaMemcpyHostToDevice,
                                     stream(u->fit)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(u->fit)));
    return WF_OK;
}

wf_status upload_networks(wf_ctx *ctx, wf_fit_cuda *fit, int family, size_t bytes, float **out) {
    WF_TRY(take(ctx, fit, bytes, NULL, out));
    uploading u = {ctx, fit, fit->set->families[family].graph->n_params, *out};
    return wf_family_each(ctx, fit->set, family, upload_piece, &u);
}

wf_status upload_families(wf_ctx *ctx, wf_fit_cuda *fit) {
    const wf_training_set *set = fit->set;
    bool resident = collections_fit(set);
    if (!resident) WF_TRY(wf_training_set_keep(ctx, fit->set));
    std::vector<gpu::family> there;
    for (int s = 0; s < set->n_families; s++) {
        const wf_family *family = &set->families[s];
        gpu::family k = {};
        size_t bytes = family->count * family->graph->n_params * sizeof(float);
        float *there_weights = NULL;
        if (resident) WF_TRY(upload_networks(ctx, fit, s, bytes, &there_weights));
        fit->resident.push_back(there_weights);
        if (resident) k.weights = there_weights;
        else {
            WF_TRY(fit->memory.pin(ctx, family->weights, bytes));
            k.weights = family->weights;
        }
        k.params = (uint32_t)family->graph->n_params;
        std::vector<gpu::relabel> blocks = gpu::relabel_blocks(family->graph);
        WF_TRY(take_table(ctx, fit, blocks, &k.blocks));
        k.n_blocks = (int)blocks.size();
        WF_TRY(take(ctx, fit, (size_t)family->graph->n_blocks * sizeof *k.loss_weights,
                    family->loss_weights, &k.loss_weights));
        k.axes = wf_principal_axes(&family->principal, family->graph);
        if (k.axes.count > 0)
            WF_TRY(take(ctx, fit, k.axes.width * sizeof(float), family->principal.variance,
                        &k.axes.variance));
        there.push_back(k);
    }
    std::vector<gpu::source> sources;
    std::vector<float> conds;
    size_t size = (size_t)set->cond_size;
    for (int place = 0; place < wf_round_length(set); place++) {
        uint32_t i = wf_round_source(set, (uint32_t)place);
        sources.push_back({set->sources[i].family, (uint32_t)set->sources[i].first,
                           (uint32_t)set->sources[i].count});
        if (set->cond != NULL)
            conds.insert(conds.end(), set->cond + i * size, set->cond + (i + 1) * size);
    }
    WF_TRY(take_table(ctx, fit, there, &fit->batch.families));
    WF_TRY(take_table(ctx, fit, sources, &fit->batch.sources));
    if (set->cond != NULL) WF_TRY(take_table(ctx, fit, conds, &fit->batch.conds));
    return WF_OK;
}

/* Buffers of a batch, large enough for every composition. */
wf_status make_buffers(wf_ctx *ctx, wf_fit_cuda *fit) {
    gpu::batch *b = &fit->batch;
    size_t largest = 0;
    for (int s = 0; s < fit->set->n_families; s++)
        if (fit->set->families[s].graph->n_params > largest)
            largest = fit->set->families[s].graph->n_params;
    size_t networks = (size_t)(b->own > 0 ? b->own : 1);
    size_t values = networks * largest * sizeof(float), all = (size_t)b->networks;
    if (networks * largest > INT32_MAX)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "training: %zu networks of %zu parameters are too many for one batch",
                       networks, largest);
    fit->values = values;
    b->slices = (int)((largest + gpu::slice - 1) / gpu::slice);
    WF_TRY(take(ctx, fit, values, NULL, &b->x));
    WF_TRY(take(ctx, fit, values, NULL, &b->wt));
    WF_TRY(take(ctx, fit, values, NULL, &b->target));
    WF_TRY(take(ctx, fit, values, NULL, &fit->v));
    WF_TRY(take(ctx, fit, values, NULL, &b->df));
    b->f = fit->v;
    WF_TRY(take(ctx, fit, networks * sizeof(float), NULL, &b->t));
    WF_TRY(take(ctx, fit, networks * sizeof *b->scale, NULL, &b->scale));
    WF_TRY(take(ctx, fit, networks * sizeof *b->axes, NULL, &b->axes));
    WF_TRY(take(ctx, fit, networks * sizeof *b->loss_weights, NULL, &b->loss_weights));
    WF_TRY(take(ctx, fit, networks * (size_t)b->cond_size * sizeof(float), NULL, &b->cond));
    WF_TRY(take(ctx, fit, networks, NULL, &b->drop));
    /* Recording the field runs it once on these arrays, so they must hold numbers. */
    for (float *values_of : {b->x, b->df})
        WF_CUDA_TRY(ctx, cudaMemsetAsync(values_of, 0, values, stream(fit)));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(b->t, 0, networks * sizeof(float), stream(fit)));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(b->cond, 0, networks * (size_t)b->cond_size * sizeof(float),
                                     stream(fit)));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(b->drop, 0, networks, stream(fit)));
    return take(ctx, fit, all * (size_t)b->slices * sizeof(double), NULL, &b->terms);
}

/* --- compositions ----------------------------------------------------------------------------- */
size_t greatest_divisor(size_t a, size_t b) { return b == 0 ? a : greatest_divisor(b, a % b); }

/* With one family there is one composition: the kernel tells sources apart that differ in their
 * condition alone. */
void count_phases(wf_fit_cuda *fit) {
    size_t length = (size_t)wf_round_length(fit->set);
    fit->phase_step = greatest_divisor((size_t)fit->batch.networks, length);
    size_t phases = fit->set->n_families == 1 ? 1 : length / fit->phase_step;
    fit->compositions.assign(phases, (composition *)NULL);
}

size_t phase_of(const wf_fit_cuda *fit, size_t update) {
    size_t first = update * (size_t)fit->batch.networks % (size_t)wf_round_length(fit->set);
    return fit->compositions.size() == 1 ? 0 : first / fit->phase_step;
}

wf_status build_shape(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, composition *c) {
    const wf_training_set *set = fit->set;
    int networks = fit->batch.networks;
    std::vector<uint32_t> source((size_t)networks), order((size_t)networks), start;
    std::vector<const wf_graph *> graphs;
    for (int b = 0; b < networks; b++) source[(size_t)b] = wf_draw_source(set, networks, update, b);
    wf_draw_order(set, networks, source.data(), order.data());
    c->batch = fit->batch;
    int own = c->batch.own;
    if (own == 0) return WF_OK;
    order.assign(order.begin() + c->batch.first, order.begin() + c->batch.first + own);
    for (uint32_t drawn : order) {
        c->family.push_back(set->sources[source[drawn]].family);
        graphs.push_back(set->families[c->family.back()].graph);
    }
    WF_TRY(wf_batch_build(ctx, &c->arena, graphs.data(), own, &c->shape));
    for (int k = 0; k <= own; k++) start.push_back((uint32_t)c->shape.param_start[k]);
    WF_TRY(take_table(ctx, fit, order, &c->batch.drawn));
    return take_table(ctx, fit, start, &c->batch.param_start);
}

/* Networks of one family are neighbours in the batch and are matched together. */
wf_status record_matching(wf_ctx *ctx, wf_fit_cuda *fit, composition *c) {
    int networks = c->batch.own;
    for (int first = 0, end; first < networks; first = end) {
        int family = c->family[(size_t)first];
        for (end = first + 1; end < networks && c->family[(size_t)end] == family;) end++;
        size_t start = c->shape.param_start[first];
        size_t count = c->shape.param_start[end] - start;
        float *w0 = c->batch.w0 + start, *w1 = c->batch.w1 + start, *to = c->batch.matched + start;
        if (fit->matchers[(size_t)family] != NULL)
            WF_TRY(wf_match_cuda_run(ctx, fit->matchers[(size_t)family], w1, 1, w0,
                                     (size_t)(end - first), to, stream(fit)));
        else
            WF_CUDA_TRY(ctx, cudaMemcpyAsync(to, w0, count * sizeof(float),
                                             cudaMemcpyDeviceToDevice, stream(fit)));
    }
    gpu::interpolate(c->batch, stream(fit));
    return WF_OK;
}

/* Gradient and loss of this rank's networks. */
wf_status record_own(wf_ctx *ctx, wf_fit_cuda *fit, composition *c) {
    gpu::draw(c->batch, stream(fit));
    if (c->batch.w0 != NULL) WF_TRY(record_matching(ctx, fit, c));
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_TRY(wf_field_program_forward(ctx, c->program));
    gpu::compare(c->batch, stream(fit));
    WF_CUDA_TRY(ctx, cudaGetLastError());
    return fit->ranks == NULL ? wf_field_program_backward(ctx, c->program) : WF_OK;
}

wf_status wait_for(wf_ctx *ctx, wf_fit_cuda *fit, cudaStream_t first, cudaStream_t then) {
    WF_CUDA_TRY(ctx, cudaEventRecord(fit->ready, first));
    WF_CUDA_TRY(ctx, cudaStreamWaitEvent(then, fit->ready, 0));
    return WF_OK;
}

/* The ranges of the flat array that a stage completes. */
std::vector<wf_range> ranges_of(const wf_fit_cuda *fit, int stage) {
    std::vector<wf_range> out;
    for (int i = 0; i < fit->field->n_tensors; i++) {
        const wf_field_tensor *tensor = &fit->field->tensors[i];
        size_t behind = tensor->offset + (size_t)tensor->rows * (size_t)tensor->cols;
        if (fit->stages[(size_t)i] != stage) continue;
        if (!out.empty() && out.back().last == tensor->offset) out.back().last = behind;
        else out.push_back(wf_range{tensor->offset, behind});
    }
    return out;
}

/* The backward pass, and the sums over ranks of gradient and loss terms. */
wf_status record_sums(wf_ctx *ctx, wf_fit_cuda *fit, composition *c, float *grad, size_t terms) {
    for (int stage = 0; stage < fit->n_stages; stage++) {
        if (c->program != NULL) WF_TRY(wf_field_program_backward_stage(ctx, c->program, stage));
        WF_TRY(wait_for(ctx, fit, stream(fit), fit->beside));
        std::vector<wf_range> ranges = ranges_of(fit, stage);
        WF_TRY(wf_device_ranks_sum_ranges(ctx, fit->ranks, grad, ranges.data(), ranges.size(),
                                          fit->beside));
    }
    WF_TRY(wait_for(ctx, fit, fit->beside, stream(fit)));
    return wf_device_ranks_sum(ctx, fit->ranks, c->batch.terms, terms, true, stream(fit));
}

wf_status record_update(wf_ctx *ctx, wf_fit_cuda *fit, composition *c) {
    size_t terms = (size_t)c->batch.networks * (size_t)c->batch.slices;
    float *grad = wf__optim_cuda_arrays(fit->optim).grad;
    if (fit->ranks != NULL) /* zeros for other ranks' networks: their sum is then one process's */
        WF_CUDA_TRY(ctx, cudaMemsetAsync(c->batch.terms, 0, terms * sizeof(double), stream(fit)));
    if (c->program != NULL) WF_TRY(record_own(ctx, fit, c));
    else WF_CUDA_TRY(ctx, cudaMemsetAsync(grad, 0, fit->field->params * sizeof *grad, stream(fit)));
    if (fit->ranks != NULL) WF_TRY(record_sums(ctx, fit, c, grad, terms));
    return wf__optim_cuda_apply(ctx, fit->optim, c->batch.terms, (int)terms);
}

wf_status build_composition(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, composition *c) {
    WF_TRY(build_shape(ctx, fit, update, c));
    wf_optim_cuda_arrays arrays = wf__optim_cuda_arrays(fit->optim);
    wf_field_program_desc desc = {};
    desc.batch = &c->shape;
    desc.keep = true;
    desc.fast = fit->fast;
    desc.seed = fit->fit->seed;
    desc.first = (uint32_t)c->batch.first;
    desc.n_stages = fit->n_stages;
    desc.stages = fit->stages.data();
    desc.lent.params = arrays.params;
    desc.lent.grad = arrays.grad;
    desc.lent.w = fit->batch.x;
    desc.lent.t = fit->batch.t;
    desc.lent.cond = fit->batch.cond;
    desc.lent.drop = fit->batch.drop;
    desc.lent.v = fit->v;
    desc.lent.dv = fit->batch.df;
    desc.lent.update = fit->batch.update;
    if (c->batch.own > 0) WF_TRY(wf_field_program_create(ctx, fit->field, &desc, &c->program));
    return wf_gpu::capture_update(
        ctx, fit->device, [&] { return record_update(ctx, fit, c); }, &c->update);
}

wf_status composition_of(wf_ctx *ctx, wf_fit_cuda *fit, size_t update, composition **out) {
    composition **place = &fit->compositions[phase_of(fit, update)];
    *out = *place;
    if (*place != NULL) return WF_OK;
    return wf_gpu::without_exceptions(ctx, "training", [&] {
        *out = *place = new composition();
        return build_composition(ctx, fit, update, *place);
    });
}

void composition_free(composition *c) {
    if (c == NULL) return;
    if (c->update != NULL) cudaGraphExecDestroy(c->update);
    wf_field_program_free(c->program);
    wf_arena_free(&c->arena);
    delete c;
}

/* --- setting up ------------------------------------------------------------------------------- */
wf_status make_updates(wf_ctx *ctx, wf_fit_cuda *fit, const wf_fit_cuda_desc *desc) {
    wf_updates_cuda_desc own = {};
    own.tensors = desc->field->tensors;
    own.n_tensors = desc->field->n_tensors;
    own.params = desc->field->params;
    own.optim = desc->optim;
    own.schedule = desc->schedule;
    own.arrays = desc->arrays;
    own.update = desc->update;
    own.pace = desc->pace;
    own.best_loss = desc->best_loss;
    own.best = desc->fit->kept == WF_KEPT_BEST;
    own.fast = desc->fast;
    own.ranks = fit->ranks;
    WF_TRY(wf__updates_cuda_create(ctx, &own, &fit->updates));
    fit->optim = wf__updates_cuda_optim(fit->updates);
    return WF_OK;
}

/* Invariant G2. For tests and timing, WEFT_MATCH_ON_HOST=1 leaves matching to host threads and 0 to
 * the GPU. */
bool matched_on_gpu(wf_ctx *ctx, const wf_training_set *set, const wf_match_desc *desc) {
    enum { few_families = 4, many_threads = 8 };
    const char *host = getenv("WEFT_MATCH_ON_HOST");
    bool chosen = host != NULL && host[0] != '\0';
    if (chosen ? strcmp(host, "1") == 0
               : set->n_families > few_families && wf_ctx_threads(ctx) >= many_threads)
        return false;
    for (int s = 0; s < set->n_families; s++) {
        const wf_graph *graph = set->families[s].graph;
        if (graph->n_orbits > 0 && !wf_match_cuda_fits(graph, desc)) return false;
    }
    return true;
}

wf_status open_matchers(wf_ctx *ctx, wf_fit_cuda *fit, const wf_match_desc *desc, size_t values) {
    for (int s = 0; s < fit->set->n_families; s++) {
        const wf_graph *graph = fit->set->families[s].graph;
        fit->matchers.push_back(NULL);
        if (graph->n_orbits > 0)
            WF_TRY(wf_match_cuda_open(ctx, graph, desc, (size_t)fit->batch.networks,
                                      &fit->matchers.back()));
    }
    WF_TRY(take(ctx, fit, values, NULL, &fit->batch.w0));
    WF_TRY(take(ctx, fit, values, NULL, &fit->batch.w1));
    return take(ctx, fit, values, NULL, &fit->batch.matched);
}

wf_status start_matching(wf_ctx *ctx, wf_fit_cuda *fit, size_t update) {
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = fit->fit->match_sweeps;
    match.seed = fit->fit->seed;
    if (matched_on_gpu(ctx, fit->set, &match)) return open_matchers(ctx, fit, &match, fit->values);
    size_t units = wf_match_units(fit->set);
    size_t bytes = (size_t)ring * (size_t)fit->batch.networks * units * sizeof(uint32_t);
    WF_CUDA_TRY(ctx, cudaHostAlloc((void **)&fit->relabellings, bytes, cudaHostAllocMapped));
    WF_CUDA_TRY(ctx,
                cudaHostGetDevicePointer((void **)&fit->batch.relabelling, fit->relabellings, 0));
    fit->batch.ring = ring;
    fit->batch.units = (uint32_t)units;
    fit->matched_until = fit->fit->updates;
    return wf_match_ahead_start(ctx, fit->set, fit->fit, update, fit->matched_until,
                                fit->relabellings, ring, &fit->ahead);
}

void set_constants(gpu::batch *b, const wf_fit_cuda_desc *desc, const wf_optim_cuda *optim) {
    const wf_fit_desc *fit = desc->fit;
    b->update = wf__optim_cuda_update(optim);
    b->networks = (int)fit->batch;
    b->round_length = wf_round_length(desc->set);
    b->cond_size = desc->set->cond_size;
    b->seed = fit->seed;
    b->source_std = (float)fit->source_std;
    b->path_noise = (float)desc->path.path_noise;
    b->path = desc->path;
    b->cond_drop = fit->cond_drop;
    b->noise_table = (uint32_t)fit->noise_table;
    b->epochs = fit->epochs;
    b->relabel = fit->relabel;
    b->signs = fit->signs;
    b->most_units = fit->relabel || fit->signs ? (uint32_t)wf_match_units(desc->set) : 0;
    b->time_law = (int)fit->time_law;
}

wf_status open_ranks(wf_ctx *ctx, wf_fit_cuda *fit) {
    WF_TRY(wf_device_ranks_open(ctx, &fit->ranks));
    if (fit->ranks == NULL) return WF_OK;
    fit->stages.resize((size_t)fit->field->n_tensors);
    fit->n_stages = wf_params_stages(fit->field->tensors, fit->field->n_tensors, WF_TAPE_STAGES,
                                     fit->stages.data());
    WF_CUDA_TRY(ctx, cudaEventCreateWithFlags(&fit->ready, cudaEventDisableTiming));
    if (!wf_gpu::make_stream(&fit->beside, wf_gpu::stream_is_short))
        return wf_fail(ctx, WF_ERR_FAILED, "GPU: no stream for the ranks' sums");
    return WF_OK;
}

wf_status build(wf_ctx *ctx, const wf_fit_cuda_desc *desc, wf_fit_cuda *fit) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    fit->device = wf_cuda_hold(device);
    fit->set = desc->set;
    fit->fit = desc->fit;
    fit->field = desc->field;
    fit->fast = desc->fast;
    WF_TRY(open_ranks(ctx, fit));
    WF_TRY(make_updates(ctx, fit, desc));
    set_constants(&fit->batch, desc, fit->optim);
    wf_range own = wf_share(ctx, desc->fit->batch);
    fit->batch.first = (int)own.first;
    fit->batch.own = (int)(own.last - own.first);
    WF_TRY(upload_families(ctx, fit));
    WF_TRY(make_buffers(ctx, fit));
    if (desc->fit->coupling == WF_COUPLING_MATCHED) WF_TRY(start_matching(ctx, fit, desc->update));
    count_phases(fit);
    composition *first;
    return composition_of(ctx, fit, desc->update, &first);
}

} // namespace

extern "C" wf_status wf__fit_cuda_create(wf_ctx *ctx, const wf_fit_cuda_desc *desc,
                                         wf_fit_cuda **out) {
    return wf_gpu::create(ctx, "training", wf__fit_cuda_free, out,
                          [&](wf_fit_cuda *fit) { return build(ctx, desc, fit); });
}

extern "C" void wf__fit_cuda_free(wf_fit_cuda *fit) {
    if (fit == NULL) return;
    if (fit->device != NULL) cudaStreamSynchronize(stream(fit));
    wf_match_ahead_stop(fit->ahead);
    for (composition *c : fit->compositions) composition_free(c);
    for (wf_field_program *program : fit->fixed) wf_field_program_free(program);
    for (wf_match_cuda *matcher : fit->matchers) wf_match_cuda_close(matcher);
    wf__updates_cuda_free(fit->updates);
    wf_device_ranks_close(fit->ranks);
    if (fit->beside != NULL) cudaStreamDestroy(fit->beside);
    if (fit->ready != NULL) cudaEventDestroy(fit->ready);
    fit->memory.give_back();
    if (fit->relabellings != NULL) cudaFreeHost(fit->relabellings);
    wf_cuda_release(fit->device);
    delete fit;
}

extern "C" wf_updates_cuda *wf__fit_cuda_updates(const wf_fit_cuda *fit) { return fit->updates; }

extern "C" wf_status wf__fit_cuda_enqueue(wf_ctx *ctx, wf_fit_cuda *fit) {
    composition *c;
    size_t next = wf__updates_cuda_next(fit->updates);
    WF_TRY(composition_of(ctx, fit, next, &c));
    if (fit->ahead != NULL) WF_TRY(wf_match_ahead_wait(ctx, fit->ahead, next));
    WF_TRY(wf__updates_cuda_launch(ctx, fit->updates, c->update));
    fit->last = c;
    return WF_OK;
}

extern "C" wf_status wf__fit_cuda_renew(wf_ctx *ctx, wf_fit_cuda *fit, int family, size_t first,
                                        size_t count) {
    const wf_family *from = &fit->set->families[family];
    size_t n = from->graph->n_params;
    float *there = fit->resident[(size_t)family];
    if (there == NULL) return WF_OK; /* the device reads the host's */
    WF_CUDA_TRY(ctx,
                cudaMemcpyAsync(there + first * n, from->weights + first * n,
                                count * n * sizeof(float), cudaMemcpyHostToDevice, stream(fit)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(fit)));
    return WF_OK;
}

extern "C" wf_status wf__fit_cuda_pace(wf_ctx *ctx, wf_fit_cuda *fit, const wf_pace *pace) {
    return wf__optim_cuda_pace(ctx, fit->optim, pace);
}

extern "C" wf_status wf__fit_cuda_match_until(wf_ctx *ctx, wf_fit_cuda *fit, size_t end) {
    if (fit->ahead == NULL || end == fit->matched_until) return WF_OK;
    wf_match_ahead_stop(fit->ahead);
    fit->ahead = NULL;
    fit->matched_until = end;
    return wf_match_ahead_start(ctx, fit->set, fit->fit, wf__updates_cuda_next(fit->updates), end,
                                fit->relabellings, ring, &fit->ahead);
}

extern "C" wf_status wf__fit_cuda_record(wf_ctx *ctx, wf_fit_cuda *fit, size_t update,
                                         wf_update_record *out) {
    WF_TRY(wf__updates_cuda_record(ctx, fit->updates, update, out));
    if (fit->ahead != NULL) wf_match_ahead_release(fit->ahead, update + 1);
    return WF_OK;
}

namespace {

wf_status build_fixed(wf_ctx *ctx, wf_fit_cuda *fit, const wf_flow_batch *batch,
                      wf_field_program **out) {
    wf_optim_cuda_arrays arrays = wf__optim_cuda_arrays(fit->optim);
    wf_field_program_desc desc = {};
    desc.batch = batch->shape;
    desc.fast = fit->fast;
    desc.lent.params = arrays.ema != NULL ? arrays.ema : arrays.params;
    WF_TRY(wf_field_program_create(ctx, fit->field, &desc, out));
    return WF_OK;
}

wf_status upload_fixed(wf_ctx *ctx, wf_fit_cuda *fit, const wf_flow_batch *batch,
                       const wf_field_program *program) {
    const wf_field_buffers *to = &program->buffers;
    size_t n = (size_t)batch->shape->n_graphs, cond = (size_t)fit->field->cond_size;
    auto upload = [&](void *there, const void *here, size_t bytes) {
        return cudaMemcpyAsync(there, here, bytes, cudaMemcpyHostToDevice, stream(fit));
    };
    WF_CUDA_TRY(ctx, upload(to->w, batch->x, batch->shape->n_params * sizeof(float)));
    WF_CUDA_TRY(ctx, upload(to->t, batch->t, n * sizeof(float)));
    if (cond > 0) WF_CUDA_TRY(ctx, upload(to->cond, batch->cond, n * cond * sizeof(float)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(fit)));
    return WF_OK;
}

} // namespace

extern "C" wf_status wf__fit_cuda_forward(wf_ctx *ctx, wf_fit_cuda *fit, int which,
                                          const wf_flow_batch *batch) {
    wf_field_program **program = &fit->fixed[which];
    if (*program == NULL) WF_TRY(build_fixed(ctx, fit, batch, program));
    WF_TRY(upload_fixed(ctx, fit, batch, *program));
    WF_TRY(wf_field_program_forward(ctx, *program));
    if (wf_cuda_download(fit->device, batch->f, (*program)->buffers.v,
                         batch->shape->n_params * sizeof(float)))
        return WF_OK;
    return wf_fail(ctx, WF_ERR_FAILED, "validation: the GPU reports a failure");
}

extern "C" wf_status wf__fit_cuda_batch(wf_ctx *ctx, wf_fit_cuda *fit, float *x, float *target,
                                        float *t) {
    size_t bytes = fit->last->shape.n_params * sizeof(float);
    const gpu::batch *b = &fit->last->batch;
    bool ok = (x == NULL || wf_cuda_download(fit->device, x, b->x, bytes)) &&
              (target == NULL || wf_cuda_download(fit->device, target, b->target, bytes)) &&
              (t == NULL || wf_cuda_download(fit->device, t, b->t, (size_t)b->own * sizeof(float)));
    return ok ? WF_OK : wf_fail(ctx, WF_ERR_FAILED, "training: the GPU reports a failure");
}
