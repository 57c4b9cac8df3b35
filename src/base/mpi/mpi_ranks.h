/* mpi_ranks: processes started together by mpirun or srun. mpi_ranks_mpi.c uses an MPI
 * library; mpi_ranks_absent.c stands in for it in builds without. Waiting calls return false when
 * the communicator has failed meanwhile. */
#pragma once

#include "base/comm.h"

/* For `weft version`: "Open MPI 4.1.4", or "none". */
const char *wf__mpi_description(void);
/* Fills comm->rank, size, local_rank and host; starts the thread that watches the other ranks. */
wf_status wf__mpi_join(wf_comm *comm, char sentence[WF_COMM_SENTENCE]);
/* Waits for all ranks, then ends MPI. */
void wf__mpi_leave(wf_comm *comm);
/* This rank has failed, or wants all to stop. */
void wf__mpi_tell_failure(wf_comm *comm, wf_status status, const char *sentence);

bool wf__mpi_barrier(wf_comm *comm);
bool wf__mpi_broadcast(wf_comm *comm, void *bytes, size_t count, int root);
bool wf__mpi_gather(wf_comm *comm, void *bytes, const size_t *start);
/* Sums and gathers of what GPUs have in host memory (base/cuda/device_ranks.h). They go over a
 * communicator of their own, because they come from threads of the CUDA driver, beside the calls
 * above. */
bool wf__mpi_device_sum(wf_comm *comm, void *numbers, size_t n, bool doubles);
bool wf__mpi_device_gather(wf_comm *comm, void *bytes, const size_t *start);
/* comm->running has room for all numbers. */
bool wf__mpi_sum_in_order(wf_comm *comm, const wf_ordered_sum *sum);

/* Did a launcher start this process as one of several? From the environment; WEFT_MPI=on|off
 * overrides it. */
bool wf__launched(void);
