#include "generators/cuda/phase_draws.cuh"

#include "flow/cuda/run_memory.cuh"
#include "flow/cuda/update_graph.cuh"
#include "models/cuda/field_program.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "generators/cuda/phase_cuda.h"
#include "tensor/cuda/backend_cuda.h"
}

namespace {

/* --- a network of a phase, recorded ----------------------------------------------------------- */

struct terms_of_loss {
    const float *term[2];
    double weight[2];
};

/* terms[i] = weight of the term in the loss times its value. */
__global__ void weigh_terms(terms_of_loss loss, double *terms) {
    int i = threadIdx.x;
    terms[i] = loss.term[i] == NULL ? 0 : loss.weight[i] * (double)*loss.term[i];
}

/* The arrays that a network is recorded with; device memory. */
struct network_arrays {
    const float *weights;
    float *statistics;
    const uint32_t *update; /* of dropout; NULL: the network that samples */
};

struct network_program {
    wf_gpu::recorded_program run;
    wf_tape tape;
    wf_net net;
    int networks, inputs;
    wf_phase_shape shape[WF_PHASE_INPUTS];
    float *in[WF_PHASE_INPUTS]; /* rows padded as a tape's, zeros behind them */
    wf_phase_walk *walk;        /* an evaluation's; its result: */
    const float *result;
    int rows, cols, ld;
    terms_of_loss loss;        /* a phase's */
    wf_tensor *term[2];        /* of the recording */
    std::vector<float> staged; /* host: what is copied, with its padding */
};

cudaStream_t stream(const network_program *p) { return p->run.device->stream; }

size_t input_ld(const network_program *p, int i) { return (size_t)wf_pad(p->shape[i].cols); }
size_t input_size(const network_program *p, int i) {
    return (size_t)p->shape[i].rows * input_ld(p, i);
}

/* A program on its device, with inputs of zeros. */
wf_status open_network(wf_ctx *ctx, network_program *p, int networks, const wf_phase_shape *shape,
                       int inputs, bool fast) {
    p->run.tape = &p->tape;
    p->networks = networks;
    p->inputs = inputs;
    WF_TRY(wf_gpu::open_program(ctx, &p->run, fast));
    for (int i = 0; i < inputs; i++) {
        p->shape[i] = shape[i];
        size_t bytes = (input_size(p, i) + WF_PAD) * sizeof(float);
        p->in[i] = (float *)wf_arena_alloc(&p->run.own, bytes);
        if (p->in[i] == NULL)
            return wf_fail(ctx, WF_ERR_MEMORY, "no GPU memory for a batch; use smaller batches");
        WF_CUDA_TRY(ctx, cudaMemsetAsync(p->in[i], 0, bytes, stream(p)));
    }
    return WF_OK;
}

void start_network(network_program *p, const wf_phase *phase, const network_arrays &arrays,
                   bool keep, wf_tensor *in[WF_PHASE_INPUTS]) {
    wf_dropout_key key = {0, arrays.update, 0}; /* no phase has dropout */
    wf_tape_start(&p->tape, p->run.backend, WF_F32, keep);
    wf_net_start(&p->net, &p->tape, &phase->list, arrays.weights,
                 arrays.update != NULL ? &key : NULL);
    p->net.buffers = (wf_params *)&phase->buffers;
    p->net.statistics = arrays.statistics;
    for (int i = 0; i < p->inputs; i++) {
        in[i] = wf_tape_view(&p->tape, p->in[i], NULL, p->shape[i].rows, p->shape[i].cols);
        if (in[i] != NULL) in[i]->ld = (int)input_ld(p, i);
    }
}

/* slopes: the weights of the terms in device memory, 64 floats apart, for a program with a
 * gradient. */
wf_status record_loss(wf_ctx *ctx, network_program *p, const wf_phase *phase, const void *model,
                      const network_arrays &arrays, float *slopes, float *grad) {
    auto forward = [&] {
        wf_tensor *in[WF_PHASE_INPUTS] = {};
        start_network(p, phase, arrays, grad != NULL, in);
        wf_phase_loss loss = {};
        if (!p->tape.failed) loss = phase->loss(&p->net, model, p->networks, in);
        for (int i = 0; i < 2; i++) {
            p->term[i] = loss.term[i];
            p->loss.term[i] = loss.term[i] == NULL ? NULL : (const float *)loss.term[i]->data;
            p->loss.weight[i] = loss.weight[i];
        }
    };
    auto backward = [&] {
        for (int i = 0; i < 2; i++)
            if (p->term[i] != NULL) p->term[i]->grad = slopes + 64 * i, p->term[i]->grad_set = true;
        wf_net_backward(&p->net, grad);
    };
    return wf_gpu::record_program(ctx, &p->run, grad != NULL, forward, backward);
}

wf_status record_walk(wf_ctx *ctx, network_program *p, const wf_phase *phase, const void *model,
                      const network_arrays &arrays, wf_phase_walk *walk) {
    p->walk = walk;
    auto forward = [&] {
        wf_tensor *in[WF_PHASE_INPUTS] = {};
        start_network(p, phase, arrays, false, in);
        const wf_tensor *out = p->tape.failed ? NULL : walk(&p->net, model, p->networks, in);
        if (out == NULL) return;
        p->result = (const float *)out->data;
        p->rows = out->rows, p->cols = out->cols, p->ld = out->ld;
    };
    return wf_gpu::record_program(ctx, &p->run, false, forward, [] {});
}

/* in: host memory without padding, the rows of `some` of the program's networks. */
wf_status upload_inputs(wf_ctx *ctx, network_program *p, const float *const *in, int some) {
    for (int i = 0; i < p->inputs; i++) {
        size_t ld = input_ld(p, i), cols = (size_t)p->shape[i].cols;
        size_t rows = (size_t)(p->shape[i].rows / p->networks * some);
        p->staged.assign(rows * ld, 0);
        for (size_t r = 0; r < rows; r++)
            memcpy(p->staged.data() + r * ld, in[i] + r * cols, cols * sizeof(float));
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(p->in[i], p->staged.data(), rows * ld * sizeof(float),
                                         cudaMemcpyHostToDevice, stream(p)));
        WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(p)));
    }
    return WF_OK;
}

/* `rows` rows of a matrix on the device, without their padding. */
bool fetch_rows(network_program *p, const float *from, size_t rows, size_t cols, size_t ld,
                float *out) {
    p->staged.resize(rows * ld);
    if (!wf_cuda_download(p->run.device, p->staged.data(), from, rows * ld * sizeof(float)))
        return false;
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * cols, p->staged.data() + r * ld, cols * sizeof(float));
    return true;
}

wf_status gpu_failed(wf_ctx *ctx, const char *what) {
    return wf_fail(ctx, WF_ERR_FAILED, "%s: the GPU reports a failure", what);
}

} // namespace

/* --- updates ---------------------------------------------------------------------------------- */

struct wf_phase_cuda {
    wf_cuda_device *device; /* held */
    wf_gpu::run_memory memory;
    wf_updates_cuda *updates;
    wf_phase_gpu::draws draws;
    network_program train, judge;
    double *terms; /* of the update, then of the validation */
    cudaGraphExec_t update;
};

namespace {

cudaStream_t stream(const wf_phase_cuda *p) { return p->device->stream; }

wf_status make_updates(wf_ctx *ctx, wf_phase_cuda *p, const wf_phase_cuda_desc *desc) {
    wf_updates_cuda_desc own = {};
    own.tensors = desc->phase->list.tensors;
    own.n_tensors = desc->phase->list.count;
    own.params = desc->phase->list.total;
    own.optim = desc->optim;
    own.schedule = desc->schedule;
    own.arrays = desc->arrays;
    own.statistics = desc->phase->statistics;
    own.n_statistics = desc->phase->buffers.total;
    own.update = desc->made;
    own.best_loss = WF_NO_LOSS;
    own.fast = desc->fast;
    return wf__updates_cuda_create(ctx, &own, &p->updates);
}

wf_status upload_draws(wf_ctx *ctx, wf_phase_cuda *p, const wf_phase_draw &from) {
    wf_phase_gpu::draws *d = &p->draws;
    size_t bytes = (size_t)d->count * d->width * sizeof(float);
    if (wf_gpu::networks_fit(bytes))
        WF_TRY(p->memory.take(ctx, stream(p), bytes, from.rows, &d->rows));
    else {
        WF_TRY(p->memory.pin(ctx, (void *)from.rows, bytes));
        d->rows = from.rows;
    }
    if (from.law == WF_PHASE_DIFFUSED) {
        std::vector<float> signal, spread; /* as ddpm_fill rounds them */
        for (uint32_t s = 0; s < from.steps; s++) {
            signal.push_back((float)sqrt(from.kept[s]));
            spread.push_back((float)sqrt(1 - from.kept[s]));
        }
        WF_TRY(p->memory.take_table(ctx, stream(p), signal, &d->signal));
        WF_TRY(p->memory.take_table(ctx, stream(p), spread, &d->spread));
    }
    if (from.law == WF_PHASE_VIEWS) {
        std::vector<wf_batch_gpu::relabel> blocks = wf_batch_gpu::relabel_blocks(from.graph);
        d->n_blocks = (int)blocks.size();
        WF_TRY(p->memory.take_table(ctx, stream(p), blocks, &d->blocks));
        size_t table = (size_t)d->relabellings * d->units * sizeof(uint32_t);
        WF_TRY(p->memory.take(ctx, stream(p), table, from.from, &d->from));
    }
    return WF_OK;
}

wf_status make_draws(wf_ctx *ctx, wf_phase_cuda *p, const wf_phase_cuda_desc *desc) {
    wf_phase_gpu::draws *d = &p->draws;
    wf_phase_draw from = {};
    WF_TRY(desc->phase->draw(ctx, desc->model, &from));
    *(wf_phase_draw *)d = from;
    d->update = wf__optim_cuda_update(wf__updates_cuda_optim(p->updates));
    d->first = (uint32_t)desc->first;
    d->places = (uint32_t)desc->fit->batch;
    d->count = (uint32_t)desc->count;
    d->seed = desc->fit->seed;
    for (int i = 0; i < p->train.inputs; i++) {
        d->in[i] = p->train.in[i];
        d->ld[i] = (uint32_t)input_ld(&p->train, i);
    }
    wf_status status = upload_draws(ctx, p, from);
    free(from.from);
    return status;
}

wf_status make_networks(wf_ctx *ctx, wf_phase_cuda *p, const wf_phase_cuda_desc *desc) {
    const wf_phase *phase = desc->phase;
    wf_optim_cuda *optim = wf__updates_cuda_optim(p->updates);
    wf_optim_cuda_arrays live = wf__optim_cuda_arrays(optim);
    float *statistics = wf__updates_cuda_statistics(p->updates), *slopes;
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int batch = (int)desc->fit->batch;
    int inputs = phase->shapes(desc->model, batch, shape);
    WF_TRY(open_network(ctx, &p->train, batch, shape, inputs, desc->fast));
    WF_TRY(p->memory.take(ctx, stream(p), 4 * sizeof *p->terms, NULL, &p->terms));
    std::vector<float> weights(128);
    WF_TRY(p->memory.take_table(ctx, stream(p), weights, &slopes));
    network_arrays training = {live.params, statistics, wf__optim_cuda_update(optim)};
    WF_TRY(record_loss(ctx, &p->train, phase, desc->model, training, slopes, live.grad));
    for (size_t i = 0; i < 2; i++) weights[64 * i] = (float)p->train.loss.weight[i];
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(slopes, weights.data(), weights.size() * sizeof(float),
                                     cudaMemcpyHostToDevice, stream(p)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(p)));
    WF_TRY(wf__updates_cuda_reset(ctx, p->updates));
    if (desc->judged == 0) return WF_OK;
    phase->shapes(desc->model, desc->judged, shape);
    WF_TRY(open_network(ctx, &p->judge, desc->judged, shape, inputs, desc->fast));
    network_arrays sampling = {live.ema != NULL ? live.ema : live.params, statistics, NULL};
    return record_loss(ctx, &p->judge, phase, desc->model, sampling, NULL, NULL);
}

wf_status record_update(wf_ctx *ctx, wf_phase_cuda *p) {
    wf_phase_gpu::draw(p->draws, stream(p));
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_TRY(wf_gpu::run_forward(ctx, &p->train.run));
    weigh_terms<<<1, 2, 0, stream(p)>>>(p->train.loss, p->terms);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    WF_TRY(wf_gpu::run_backward(ctx, &p->train.run));
    return wf__optim_cuda_apply(ctx, wf__updates_cuda_optim(p->updates), p->terms, 2);
}

wf_status build(wf_ctx *ctx, const wf_phase_cuda_desc *desc, wf_phase_cuda *p) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    p->device = wf_cuda_hold(device);
    WF_TRY(make_updates(ctx, p, desc));
    WF_TRY(make_networks(ctx, p, desc));
    WF_TRY(make_draws(ctx, p, desc));
    return wf_gpu::capture_update(
        ctx, device, [&] { return record_update(ctx, p); }, &p->update);
}

} // namespace

extern "C" wf_status wf__phase_cuda_create(wf_ctx *ctx, const wf_phase_cuda_desc *desc,
                                           wf_phase_cuda **out) {
    return wf_gpu::create(ctx, "training", wf__phase_cuda_free, out,
                          [&](wf_phase_cuda *p) { return build(ctx, desc, p); });
}

extern "C" void wf__phase_cuda_free(wf_phase_cuda *p) {
    if (p == NULL) return;
    if (p->device != NULL) cudaStreamSynchronize(stream(p));
    if (p->update != NULL) cudaGraphExecDestroy(p->update);
    wf_gpu::close_program(&p->train.run);
    wf_gpu::close_program(&p->judge.run);
    wf__updates_cuda_free(p->updates);
    p->memory.give_back();
    wf_cuda_release(p->device);
    delete p;
}

extern "C" wf_updates_cuda *wf__phase_cuda_updates(const wf_phase_cuda *p) { return p->updates; }

extern "C" wf_status wf__phase_cuda_enqueue(wf_ctx *ctx, wf_phase_cuda *p) {
    return wf__updates_cuda_launch(ctx, p->updates, p->update);
}

extern "C" wf_status wf__phase_cuda_judge(wf_ctx *ctx, wf_phase_cuda *p,
                                          float *const in[WF_PHASE_INPUTS], double *loss) {
    double terms[2];
    wf_status status = wf_gpu::without_exceptions(
        ctx, "validation", [&] { return upload_inputs(ctx, &p->judge, in, p->judge.networks); });
    WF_TRY(status);
    WF_TRY(wf_gpu::run_forward(ctx, &p->judge.run));
    weigh_terms<<<1, 2, 0, stream(p)>>>(p->judge.loss, p->terms + 2);
    WF_CUDA_TRY(ctx, cudaGetLastError());
    if (!wf_cuda_download(p->device, terms, p->terms + 2, sizeof terms))
        return gpu_failed(ctx, "validation");
    *loss = terms[0] + terms[1];
    return WF_OK;
}

extern "C" wf_status wf__phase_cuda_inputs(wf_ctx *ctx, wf_phase_cuda *p,
                                           float *const in[WF_PHASE_INPUTS]) {
    network_program *t = &p->train;
    return wf_gpu::without_exceptions(ctx, "training", [&] {
        for (int i = 0; i < t->inputs; i++)
            if (!fetch_rows(t, t->in[i], (size_t)t->shape[i].rows, (size_t)t->shape[i].cols,
                            input_ld(t, i), in[i]))
                return gpu_failed(ctx, "training");
        return WF_OK;
    });
}

/* --- evaluations ------------------------------------------------------------------------------ */

struct wf_eval_cuda {
    wf_cuda_device *device; /* held */
    const wf_phase *phase;
    bool fast;
    wf_gpu::run_memory memory;
    network_arrays arrays;
    std::vector<network_program *> programs;
};

namespace {

wf_status build_eval(wf_ctx *ctx, const wf_phase *phase, bool fast, wf_eval_cuda *e) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    e->device = wf_cuda_hold(device);
    e->phase = phase;
    e->fast = fast;
    const float *weights = phase->ema != NULL ? phase->ema : phase->weights;
    WF_TRY(e->memory.take(ctx, device->stream, phase->list.total * sizeof(float), weights,
                          &e->arrays.weights));
    return e->memory.take(ctx, device->stream, phase->buffers.total * sizeof(float),
                          phase->statistics, &e->arrays.statistics);
}

wf_status find_program(wf_ctx *ctx, wf_eval_cuda *e, const void *model, wf_phase_walk *walk,
                       int networks, const wf_phase_shape *shape, int inputs,
                       network_program **out) {
    for (network_program *p : e->programs)
        if (p->walk == walk && p->networks == networks) {
            *out = p;
            return WF_OK;
        }
    network_program *p = new network_program();
    e->programs.push_back(p);
    *out = p;
    WF_TRY(open_network(ctx, p, networks, shape, inputs, e->fast));
    return record_walk(ctx, p, e->phase, model, e->arrays, walk);
}

} // namespace

extern "C" wf_status wf__eval_cuda_open(wf_ctx *ctx, const wf_phase *phase, bool fast,
                                        wf_eval_cuda **out) {
    return wf_gpu::create(ctx, phase->name, wf__eval_cuda_close, out,
                          [&](wf_eval_cuda *e) { return build_eval(ctx, phase, fast, e); });
}

extern "C" void wf__eval_cuda_close(wf_eval_cuda *e) {
    if (e == NULL) return;
    for (network_program *p : e->programs) {
        wf_gpu::close_program(&p->run);
        delete p;
    }
    e->memory.give_back();
    wf_cuda_release(e->device);
    delete e;
}

extern "C" wf_status wf__eval_cuda_run(wf_ctx *ctx, wf_eval_cuda *e, const void *model,
                                       wf_phase_walk *walk, int networks,
                                       const wf_phase_shape *shape, int inputs,
                                       const float *const *in, float *out, int some) {
    return wf_gpu::without_exceptions(ctx, e->phase->name, [&]() -> wf_status {
        network_program *p;
        WF_TRY(find_program(ctx, e, model, walk, networks, shape, inputs, &p));
        WF_TRY(upload_inputs(ctx, p, in, some));
        WF_TRY(wf_gpu::run_forward(ctx, &p->run));
        size_t rows = (size_t)(p->rows / networks * some);
        if (!fetch_rows(p, p->result, rows, (size_t)p->cols, (size_t)p->ld, out))
            return gpu_failed(ctx, e->phase->name);
        return WF_OK;
    });
}
