#include "base/nccl/nccl_ranks.h"

static const char absent[] = "this build has no NCCL";

const char *wf__nccl_description(void) { return "none"; }
bool wf__nccl_present(void) { return false; }

const char *wf__nccl_name(char id[WF_NCCL_ID]) {
    (void)id;
    return absent;
}

const char *wf__nccl_open(const char id[WF_NCCL_ID], int rank, int size, void **out) {
    (void)id, (void)rank, (void)size, (void)out;
    return absent;
}

void wf__nccl_close(void *comm) { (void)comm; }

const char *wf__nccl_sum(void *comm, void *numbers, size_t n, bool doubles, void *stream) {
    (void)comm, (void)numbers, (void)n, (void)doubles, (void)stream;
    return absent;
}

const char *wf__nccl_sum_ranges(void *comm, float *numbers, const wf_range *ranges, size_t n_ranges,
                                void *stream) {
    (void)comm, (void)numbers, (void)ranges, (void)n_ranges, (void)stream;
    return absent;
}

const char *wf__nccl_gather(void *comm, int size, void *bytes, const size_t *start, void *stream) {
    (void)comm, (void)size, (void)bytes, (void)start, (void)stream;
    return absent;
}
