#include "flow/cuda/run_memory.cuh"

#include <stdlib.h>
#include <string.h>

#include "flow/cuda/updates_cuda.h"

namespace wf_gpu {

wf_status run_memory::take(wf_ctx *ctx, cudaStream_t stream, size_t bytes, const void *from,
                           void *place) {
    void *there = NULL;
    if (cudaMalloc(&there, bytes + 16) != cudaSuccess) {
        cudaGetLastError();
        return wf_fail(
            ctx, WF_ERR_MEMORY,
            "training: no GPU memory (%zu bytes); use smaller batches or a smaller model", bytes);
    }
    memory.push_back(there);
    memcpy(place, &there, sizeof there);
    if (from != NULL) {
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(there, from, bytes, cudaMemcpyHostToDevice, stream));
        WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream));
    }
    return WF_OK;
}

wf_status run_memory::pin(wf_ctx *ctx, void *host, size_t bytes) {
    cudaError_t error = cudaHostRegister(host, bytes, cudaHostRegisterDefault);
    if (error == cudaErrorHostMemoryAlreadyRegistered) {
        cudaGetLastError();
        return WF_OK;
    }
    WF_CUDA_TRY(ctx, error);
    registered.push_back(host);
    return WF_OK;
}

void run_memory::give_back() {
    for (void *host : registered) cudaHostUnregister(host);
    for (void *there : memory) cudaFree(there);
    registered.clear();
    memory.clear();
}

bool networks_fit(size_t bytes) {
    size_t left = 0, all = 0;
    const char *stream_them = getenv("WEFT_STREAM_COLLECTION");
    if (stream_them != NULL && strcmp(stream_them, "1") == 0) return false;
    return cudaMemGetInfo(&left, &all) == cudaSuccess && bytes <= left / 2;
}

} // namespace wf_gpu

namespace {

/* An array that checkpoints have. */
struct saved_array {
    float *live, *kept, *host; /* device, device, host */
    size_t bytes;
};

} // namespace

struct wf_updates_cuda {
    wf_cuda_device *device; /* held */
    wf_optim_cuda *optim;
    wf_gpu::run_memory memory;
    std::vector<saved_array> saved;
    float *statistics, *host_statistics;
    size_t statistics_bytes;
    cudaStream_t copying;
    cudaEvent_t boundary, copied, done[WF_UPDATES_AHEAD];
    size_t next;
};

namespace {

cudaStream_t stream(const wf_updates_cuda *u) { return u->device->stream; }

wf_status make_optimiser(wf_ctx *ctx, wf_updates_cuda *u, const wf_updates_cuda_desc *desc) {
    std::vector<wf_optim_tensor> tensors;
    for (int i = 0; i < desc->n_tensors; i++) {
        const wf_field_tensor *t = &desc->tensors[i];
        tensors.push_back({t->offset, t->rows, t->cols, t->matrix, t->decay});
    }
    wf_optim_cuda_desc optim = {};
    optim.optim = desc->optim;
    optim.schedule = desc->schedule;
    optim.tensors = tensors.data();
    optim.n_tensors = desc->n_tensors;
    optim.params = desc->params;
    optim.fast = desc->fast;
    optim.best = desc->best;
    optim.ranks = desc->ranks;
    WF_TRY(wf__optim_cuda_create(ctx, &optim, &u->optim));
    WF_TRY(wf__optim_cuda_start(ctx, u->optim, desc->update, desc->best_loss));
    return wf__optim_cuda_pace(ctx, u->optim, &desc->pace);
}

/* Uploads the state of the fit, and makes room to keep a boundary's state while it is copied
 * out. */
wf_status upload_state(wf_ctx *ctx, wf_updates_cuda *u, const wf_updates_cuda_desc *desc) {
    wf_optim_cuda_arrays live = wf__optim_cuda_arrays(u->optim);
    const wf_fit_arrays *host = desc->arrays;
    size_t bytes = desc->params * sizeof(float);
    u->host_statistics = desc->statistics;
    u->statistics_bytes = desc->n_statistics * sizeof(float);
    if (u->statistics_bytes > 0)
        WF_TRY(u->memory.take(ctx, stream(u), u->statistics_bytes, NULL, &u->statistics));
    const saved_array all[] = {{live.params, NULL, host->weights, bytes},
                               {live.ema, NULL, host->ema, bytes},
                               {live.best, NULL, host->best, bytes},
                               {live.first, NULL, host->first, bytes},
                               {live.second, NULL, host->second, bytes},
                               {u->statistics, NULL, desc->statistics, u->statistics_bytes}};
    for (saved_array array : all) {
        if (array.live == NULL) continue;
        WF_TRY(u->memory.pin(ctx, array.host, array.bytes));
        WF_TRY(u->memory.take(ctx, stream(u), array.bytes, NULL, &array.kept));
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(array.live, array.host, array.bytes,
                                         cudaMemcpyHostToDevice, stream(u)));
        u->saved.push_back(array);
    }
    return WF_OK;
}

wf_status build(wf_ctx *ctx, const wf_updates_cuda_desc *desc, wf_updates_cuda *u) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    u->device = wf_cuda_hold(device);
    u->next = desc->update;
    WF_CUDA_TRY(ctx, cudaStreamCreateWithFlags(&u->copying, cudaStreamNonBlocking));
    unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    WF_CUDA_TRY(ctx, cudaEventCreateWithFlags(&u->boundary, flags));
    WF_CUDA_TRY(ctx, cudaEventCreateWithFlags(&u->copied, flags));
    for (cudaEvent_t &event : u->done) WF_CUDA_TRY(ctx, cudaEventCreateWithFlags(&event, flags));
    WF_TRY(make_optimiser(ctx, u, desc));
    return upload_state(ctx, u, desc);
}

} // namespace

extern "C" wf_status wf__updates_cuda_create(wf_ctx *ctx, const wf_updates_cuda_desc *desc,
                                             wf_updates_cuda **out) {
    return wf_gpu::create(ctx, "training", wf__updates_cuda_free, out,
                          [&](wf_updates_cuda *u) { return build(ctx, desc, u); });
}

extern "C" void wf__updates_cuda_free(wf_updates_cuda *u) {
    if (u == NULL) return;
    if (u->device != NULL) cudaStreamSynchronize(stream(u));
    if (u->copying != NULL) cudaStreamSynchronize(u->copying);
    wf__optim_cuda_free(u->optim);
    u->memory.give_back();
    for (cudaEvent_t event : u->done)
        if (event != NULL) cudaEventDestroy(event);
    if (u->boundary != NULL) cudaEventDestroy(u->boundary);
    if (u->copied != NULL) cudaEventDestroy(u->copied);
    if (u->copying != NULL) cudaStreamDestroy(u->copying);
    wf_cuda_release(u->device);
    delete u;
}

extern "C" wf_optim_cuda *wf__updates_cuda_optim(const wf_updates_cuda *u) { return u->optim; }
extern "C" float *wf__updates_cuda_statistics(const wf_updates_cuda *u) { return u->statistics; }
extern "C" size_t wf__updates_cuda_next(const wf_updates_cuda *u) { return u->next; }

extern "C" wf_status wf__updates_cuda_reset(wf_ctx *ctx, wf_updates_cuda *u) {
    if (u->statistics_bytes == 0) return WF_OK;
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(u->statistics, u->host_statistics, u->statistics_bytes,
                                     cudaMemcpyHostToDevice, stream(u)));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(stream(u)));
    return WF_OK;
}

extern "C" wf_status wf__updates_cuda_launch(wf_ctx *ctx, wf_updates_cuda *u, void *graph) {
    WF_CUDA_TRY(ctx, cudaGraphLaunch((cudaGraphExec_t)graph, stream(u)));
    WF_CUDA_TRY(ctx, cudaEventRecord(u->done[u->next % WF_UPDATES_AHEAD], stream(u)));
    u->next++;
    return WF_OK;
}

extern "C" wf_status wf__updates_cuda_record(wf_ctx *ctx, wf_updates_cuda *u, size_t update,
                                             wf_update_record *out) {
    WF_CUDA_TRY(ctx, cudaEventSynchronize(u->done[update % WF_UPDATES_AHEAD]));
    size_t ring;
    const volatile wf_update_record *record = wf__optim_cuda_records(u->optim, &ring);
    record += update % ring;
    out->loss = record->loss;
    out->norm = record->norm;
    out->factor = record->factor;
    out->update = record->update;
    out->made = record->made;
    return WF_OK;
}

extern "C" wf_status wf__updates_cuda_copy(wf_ctx *ctx, wf_updates_cuda *u) {
    for (const saved_array &array : u->saved)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(array.kept, array.live, array.bytes,
                                         cudaMemcpyDeviceToDevice, stream(u)));
    WF_CUDA_TRY(ctx, cudaEventRecord(u->boundary, stream(u)));
    WF_CUDA_TRY(ctx, cudaStreamWaitEvent(u->copying, u->boundary, 0));
    for (const saved_array &array : u->saved)
        WF_CUDA_TRY(ctx, cudaMemcpyAsync(array.host, array.kept, array.bytes,
                                         cudaMemcpyDeviceToHost, u->copying));
    WF_CUDA_TRY(ctx, cudaEventRecord(u->copied, u->copying));
    return WF_OK;
}

extern "C" wf_status wf__updates_cuda_copied(wf_ctx *ctx, wf_updates_cuda *u, bool wait,
                                             bool *out) {
    if (wait) WF_CUDA_TRY(ctx, cudaEventSynchronize(u->copied));
    cudaError_t error = cudaEventQuery(u->copied);
    *out = error == cudaSuccess;
    if (error != cudaErrorNotReady) WF_CUDA_TRY(ctx, error);
    return WF_OK;
}
