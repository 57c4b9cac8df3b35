/* The part of NCCL that weft uses, for the emulated device: fake_nccl.cpp. */
#ifndef EMULATED_NCCL_H
#define EMULATED_NCCL_H

#include <cuda_runtime.h>

typedef struct fake_nccl_comm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum { ncclSuccess, ncclSystemError, ncclInvalidArgument } ncclResult_t;
typedef enum { ncclInt8, ncclFloat32, ncclFloat64 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;

extern "C" {
ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
}
#endif
