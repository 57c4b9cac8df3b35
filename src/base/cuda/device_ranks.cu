#include "base/cuda/device_ranks.h"

#include "base/cuda/device.cuh"
#include "base/nccl/nccl_ranks.h"

extern "C" {
#include "base/mpi/mpi_ranks.h"
}

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace {

/* A call through host memory; lives as long as the ranks, because captured graphs come back. */
struct host_call {
    wf_comm *comm;
    void *memory;
    size_t n; /* numbers of a sum */
    bool doubles;
    std::vector<size_t> start; /* of a gather; empty: a sum */
};

} // namespace

struct wf_device_ranks {
    wf_comm *comm;
    int rank, size;
    void *nccl;                    /* NULL: through host memory */
    std::map<size_t, void *> room; /* pinned, by size: calls of one stream do not overlap */
    std::vector<host_call *> calls;
};

namespace {

/* Host and bus id: the same for two ranks that share a GPU. */
struct place {
    char host[64], bus[32];
};

/* The first two ranks that share a GPU; false: none do. */
bool find_sharing(const std::vector<place> &all, int *a, int *b) {
    for (size_t i = 0; i < all.size(); i++)
        for (size_t k = 0; k < i; k++)
            if (memcmp(&all[i], &all[k], sizeof all[i]) == 0) {
                *a = (int)k, *b = (int)i;
                return true;
            }
    return false;
}

wf_status gather_all(wf_ctx *ctx, void *rows, size_t bytes, int size) {
    std::vector<size_t> start;
    for (int r = 0; r <= size; r++) start.push_back((size_t)r * bytes);
    return wf_gather_bytes(ctx, rows, start.data());
}

wf_status find_places(wf_ctx *ctx, const wf_device_ranks *ranks, std::vector<place> *out) {
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    out->assign((size_t)ranks->size, place());
    place *own = &(*out)[(size_t)ranks->rank];
    snprintf(own->host, sizeof own->host, "%s", wf_comm_host(ranks->comm, ranks->rank));
    WF_CUDA_TRY(ctx, cudaDeviceGetPCIBusId(own->bus, sizeof own->bus, device->number));
    return gather_all(ctx, out->data(), sizeof(place), ranks->size);
}

/* All ranks open NCCL, or none keeps it. */
wf_status open_nccl(wf_ctx *ctx, wf_device_ranks *ranks) {
    char id[WF_NCCL_ID] = {0};
    const char *why = ranks->rank == 0 ? wf__nccl_name(id) : NULL;
    bool named = why == NULL;
    WF_TRY(wf_ctx_decide(ctx, &named));
    if (named) {
        WF_TRY(wf_broadcast(ctx, id, sizeof id));
        why = wf__nccl_open(id, ranks->rank, ranks->size, &ranks->nccl);
    }
    std::vector<uint8_t> well((size_t)ranks->size);
    well[(size_t)ranks->rank] = named && why == NULL;
    WF_TRY(gather_all(ctx, well.data(), 1, ranks->size));
    for (int r = 0; r < ranks->size; r++) {
        if (well[(size_t)r]) continue;
        wf__nccl_close(ranks->nccl);
        ranks->nccl = NULL;
        wf_warn(ctx, "NCCL did not start on %s (%s): gradients go through host memory and MPI",
                wf_rank_name(ranks->comm, r), why != NULL ? why : "another rank says why");
        return WF_OK;
    }
    return WF_OK;
}

wf_status choose(wf_ctx *ctx, wf_device_ranks *ranks) {
    std::vector<place> places;
    WF_TRY(find_places(ctx, ranks, &places));
    const char *setting = getenv("WEFT_NCCL");
    bool wanted = setting == NULL || strcmp(setting, "off") != 0;
    WF_TRY(wf_ctx_decide(ctx, &wanted));
    int a, b;
    if (!wanted) return WF_OK;
    if (!wf__nccl_present()) {
        wf_warn(ctx, "this build has no NCCL: gradients go through host memory and MPI");
        return WF_OK;
    }
    if (find_sharing(places, &a, &b)) {
        wf_warn(ctx,
                "ranks %d and %d share a GPU on %s, which NCCL refuses: gradients go through host "
                "memory and MPI; start one rank for each GPU",
                a, b, places[(size_t)a].host);
        return WF_OK;
    }
    return open_nccl(ctx, ranks);
}

/* One rank uses NCCL only when it is told to, to time and test it on one GPU. */
wf_status open_alone(wf_ctx *ctx, wf_device_ranks *ranks) {
    char id[WF_NCCL_ID];
    const char *why = wf__nccl_name(id);
    if (why == NULL) why = wf__nccl_open(id, 0, 1, &ranks->nccl);
    return why == NULL ? WF_OK : wf_fail(ctx, WF_ERR_UNSUPPORTED, "WEFT_NCCL=on: %s", why);
}

/* Runs on a thread of the CUDA driver, which may not call CUDA. The thread that waits for the
 * update finds a failure of the ranks. */
void CUDART_CB exchange(void *call_) {
    const host_call *call = (const host_call *)call_;
    if (call->start.empty()) wf__mpi_device_sum(call->comm, call->memory, call->n, call->doubles);
    else wf__mpi_device_gather(call->comm, call->memory, call->start.data());
}

/* Ranges of bytes, one behind the other in pinned memory. */
wf_status through_host(wf_ctx *ctx, wf_device_ranks *ranks, void *there,
                       const std::vector<wf_range> &bytes, const host_call &what,
                       cudaStream_t stream) {
    size_t total = 0, at = 0;
    for (const wf_range &r : bytes) total += r.last - r.first;
    void *&memory = ranks->room[total];
    if (memory == NULL) WF_CUDA_TRY(ctx, cudaHostAlloc(&memory, total + 1, cudaHostAllocDefault));
    host_call *call = new host_call(what);
    ranks->calls.push_back(call);
    call->comm = ranks->comm;
    call->memory = memory;
    for (const wf_range &r : bytes) {
        WF_CUDA_TRY(ctx, cudaMemcpyAsync((char *)memory + at, (char *)there + r.first,
                                         r.last - r.first, cudaMemcpyDeviceToHost, stream));
        at += r.last - r.first;
    }
    WF_CUDA_TRY(ctx, cudaLaunchHostFunc(stream, exchange, call));
    at = 0;
    for (const wf_range &r : bytes) {
        WF_CUDA_TRY(ctx, cudaMemcpyAsync((char *)there + r.first, (char *)memory + at,
                                         r.last - r.first, cudaMemcpyHostToDevice, stream));
        at += r.last - r.first;
    }
    return WF_OK;
}

wf_status nccl_status(wf_ctx *ctx, const char *why) {
    return why == NULL ? WF_OK : wf_fail(ctx, WF_ERR_FAILED, "NCCL: %s", why);
}

} // namespace

extern "C" wf_status wf_device_ranks_open(wf_ctx *ctx, wf_device_ranks **out) {
    *out = NULL;
    const char *setting = getenv("WEFT_NCCL");
    bool alone = wf_ctx_ranks(ctx) == 1;
    if (alone && (setting == NULL || strcmp(setting, "on") != 0)) return WF_OK;
    return wf_gpu::without_exceptions(ctx, "ranks", [&] {
        wf_device_ranks *ranks = new wf_device_ranks();
        ranks->comm = wf__ctx_comm(ctx);
        ranks->rank = wf_ctx_rank(ctx), ranks->size = wf_ctx_ranks(ctx);
        wf_status status = alone ? open_alone(ctx, ranks) : choose(ctx, ranks);
        if (status == WF_OK) *out = ranks;
        else wf_device_ranks_close(ranks);
        return status;
    });
}

extern "C" void wf_device_ranks_close(wf_device_ranks *ranks) {
    if (ranks == NULL) return;
    wf__nccl_close(ranks->nccl);
    for (auto &room : ranks->room) cudaFreeHost(room.second);
    for (host_call *call : ranks->calls) delete call;
    delete ranks;
}

extern "C" wf_status wf_device_ranks_sum(wf_ctx *ctx, wf_device_ranks *ranks, void *numbers,
                                         size_t n, bool doubles, void *stream) {
    if (ranks->nccl != NULL)
        return nccl_status(ctx, wf__nccl_sum(ranks->nccl, numbers, n, doubles, stream));
    return wf_gpu::without_exceptions(ctx, "ranks", [&] {
        host_call what = {};
        what.n = n, what.doubles = doubles;
        size_t bytes = n * (doubles ? sizeof(double) : sizeof(float));
        return through_host(ctx, ranks, numbers, {wf_range{0, bytes}}, what, (cudaStream_t)stream);
    });
}

extern "C" wf_status wf_device_ranks_sum_ranges(wf_ctx *ctx, wf_device_ranks *ranks, float *numbers,
                                                const wf_range *ranges, size_t n_ranges,
                                                void *stream) {
    if (ranks->nccl != NULL)
        return nccl_status(ctx,
                           wf__nccl_sum_ranges(ranks->nccl, numbers, ranges, n_ranges, stream));
    return wf_gpu::without_exceptions(ctx, "ranks", [&] {
        host_call what = {};
        std::vector<wf_range> bytes(ranges, ranges + n_ranges);
        for (wf_range &r : bytes) {
            what.n += r.last - r.first;
            r.first *= sizeof *numbers, r.last *= sizeof *numbers;
        }
        return through_host(ctx, ranks, numbers, bytes, what, (cudaStream_t)stream);
    });
}

extern "C" wf_status wf_device_ranks_gather(wf_ctx *ctx, wf_device_ranks *ranks, void *bytes,
                                            const size_t *start, void *stream) {
    if (ranks->nccl != NULL)
        return nccl_status(ctx, wf__nccl_gather(ranks->nccl, ranks->size, bytes, start, stream));
    return wf_gpu::without_exceptions(ctx, "ranks", [&] {
        host_call what = {};
        what.start.assign(start, start + ranks->size + 1);
        return through_host(ctx, ranks, bytes, {wf_range{0, start[ranks->size]}}, what,
                            (cudaStream_t)stream);
    });
}
