#include "base/nccl/nccl_ranks.h"

#include <nccl.h>
#include <stdio.h>
#include <string.h>

namespace {

const char *told(ncclResult_t result) {
    return result == ncclSuccess ? NULL : ncclGetErrorString(result);
}

} // namespace

extern "C" const char *wf__nccl_description(void) {
    static thread_local char text[32];
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "does not answer";
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

extern "C" bool wf__nccl_present(void) { return true; }

extern "C" const char *wf__nccl_name(char id[WF_NCCL_ID]) {
    static_assert(sizeof(ncclUniqueId) == WF_NCCL_ID, "NCCL's unique id has another size");
    ncclUniqueId name;
    ncclResult_t result = ncclGetUniqueId(&name);
    if (result == ncclSuccess) memcpy(id, &name, sizeof name);
    return told(result);
}

extern "C" const char *wf__nccl_open(const char id[WF_NCCL_ID], int rank, int size, void **out) {
    ncclUniqueId name;
    ncclComm_t comm = NULL;
    memcpy(&name, id, sizeof name);
    ncclResult_t result = ncclCommInitRank(&comm, size, name, rank);
    *out = result == ncclSuccess ? comm : NULL;
    return told(result);
}

extern "C" void wf__nccl_close(void *comm) {
    if (comm != NULL) ncclCommDestroy((ncclComm_t)comm);
}

extern "C" const char *wf__nccl_sum(void *comm, void *numbers, size_t n, bool doubles,
                                    void *stream) {
    return told(ncclAllReduce(numbers, numbers, n, doubles ? ncclFloat64 : ncclFloat32, ncclSum,
                              (ncclComm_t)comm, (cudaStream_t)stream));
}

extern "C" const char *wf__nccl_sum_ranges(void *comm, float *numbers, const wf_range *ranges,
                                           size_t n_ranges, void *stream) {
    ncclResult_t result = ncclGroupStart();
    for (size_t k = 0; k < n_ranges && result == ncclSuccess; k++)
        result = ncclAllReduce(numbers + ranges[k].first, numbers + ranges[k].first,
                               ranges[k].last - ranges[k].first, ncclFloat32, ncclSum,
                               (ncclComm_t)comm, (cudaStream_t)stream);
    ncclResult_t ended = ncclGroupEnd();
    return told(result != ncclSuccess ? result : ended);
}

extern "C" const char *wf__nccl_gather(void *comm, int size, void *bytes, const size_t *start,
                                       void *stream) {
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < size && result == ncclSuccess; r++) {
        char *part = (char *)bytes + start[r];
        if (start[r + 1] > start[r])
            result = ncclBroadcast(part, part, start[r + 1] - start[r], ncclInt8, r,
                                   (ncclComm_t)comm, (cudaStream_t)stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return told(result != ncclSuccess ? result : ended);
}
