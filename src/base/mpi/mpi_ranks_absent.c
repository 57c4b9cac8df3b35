/* mpi_ranks_absent: builds without MPI. wf__mpi_join fails, so nothing else is ever called. */
#include "base/mpi/mpi_ranks.h"

#include <stdio.h>

const char *wf__mpi_description(void) { return "none"; }

wf_status wf__mpi_join(wf_comm *comm, char sentence[WF_COMM_SENTENCE]) {
    (void)comm;
    snprintf(sentence, WF_COMM_SENTENCE,
             "started by mpirun or srun as one of several, but this build has no MPI: install an "
             "MPI with its compiler (Debian: libopenmpi-dev) and build again, or set WEFT_MPI=off "
             "to run every copy by itself");
    return WF_ERR_UNSUPPORTED;
}

void wf__mpi_leave(wf_comm *comm) { (void)comm; }

void wf__mpi_tell_failure(wf_comm *comm, wf_status status, const char *sentence) {
    (void)comm, (void)status, (void)sentence;
}

bool wf__mpi_barrier(wf_comm *comm) {
    (void)comm;
    return false;
}

bool wf__mpi_broadcast(wf_comm *comm, void *bytes, size_t count, int root) {
    (void)comm, (void)bytes, (void)count, (void)root;
    return false;
}

bool wf__mpi_gather(wf_comm *comm, void *bytes, const size_t *start) {
    (void)comm, (void)bytes, (void)start;
    return false;
}

bool wf__mpi_device_sum(wf_comm *comm, void *numbers, size_t n, bool doubles) {
    (void)comm, (void)numbers, (void)n, (void)doubles;
    return false;
}

bool wf__mpi_device_gather(wf_comm *comm, void *bytes, const size_t *start) {
    (void)comm, (void)bytes, (void)start;
    return false;
}

bool wf__mpi_sum_in_order(wf_comm *comm, const wf_ordered_sum *sum) {
    (void)comm, (void)sum;
    return false;
}
