/* fake_nccl: NCCL's calls for emulated devices of processes on one host. Device memory is host
 * memory there, so ranks exchange it through shared memory, in tasks of the stream; sums are in the
 * order of ranks. The unique id is the name of the shared memory. */
#include "nccl.h"

#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace {

const size_t room = (size_t)64 << 20; /* of each rank; pages that nobody touches cost nothing */
enum { longest_wait_s = 60, most_ranks = 16 };

struct meeting {
    std::atomic<int> arrived, round;
};

} // namespace

struct fake_nccl_comm {
    int rank, size;
    meeting *here;
    char *slots;
};

namespace {

size_t whole(int size) { return 4096 + (size_t)size * room; }

/* A rank that does not come is lost; weft's own watch ends the others before this does. */
void meet(fake_nccl_comm *c) {
    int round = c->here->round.load();
    if (c->here->arrived.fetch_add(1) + 1 == c->size) {
        c->here->arrived.store(0);
        c->here->round.store(round + 1);
        return;
    }
    time_t start = time(NULL);
    while (c->here->round.load() == round) {
        struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
        if (time(NULL) - start > longest_wait_s) {
            fprintf(stderr, "fake_nccl: rank %d waits for ever\n", c->rank);
            _exit(70);
        }
    }
}

char *slot(const fake_nccl_comm *c, int rank) { return c->slots + (size_t)rank * room; }

template <class T> void add_all(fake_nccl_comm *c, T *numbers, size_t n) {
    memcpy(slot(c, c->rank), numbers, n * sizeof *numbers);
    meet(c);
    for (size_t i = 0; i < n; i++) {
        T sum = ((const T *)slot(c, 0))[i];
        for (int r = 1; r < c->size; r++) sum += ((const T *)slot(c, r))[i];
        numbers[i] = sum;
    }
    meet(c);
}

size_t bytes_of(ncclDataType_t type) { return type == ncclInt8 ? 1 : type == ncclFloat32 ? 4 : 8; }

} // namespace

ncclResult_t ncclGetVersion(int *version) {
    *version = 10203;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSystemError       ? "no shared memory"
           : result == ncclInvalidArgument ? "invalid argument"
                                           : "no error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/weft_fake_nccl.%d.%d", (int)getpid(), count++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    if (getenv("WEFT_FAKE_NCCL_FAILS") != NULL && rank == size - 1) return ncclSystemError;
    if (size > most_ranks) return ncclInvalidArgument;
    int fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)whole(size)) != 0) return ncclSystemError;
    void *memory = mmap(NULL, whole(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) return ncclSystemError;
    *comm = new fake_nccl_comm{rank, size, (meeting *)memory, (char *)memory + 4096};
    if (getenv("WEFT_FAKE_NCCL_FAILS") == NULL) meet(*comm);
    shm_unlink(id.internal); /* all have it; a second unlink finds nothing */
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    munmap(comm->here, whole(comm->size));
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { return ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
    if (from != to || n * bytes_of(type) > room) return ncclInvalidArgument;
    emulated::enqueue(stream, [=] {
        if (type == ncclFloat64) add_all(comm, (double *)to, n);
        else add_all(comm, (float *)to, n);
    });
    return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = n * bytes_of(type);
    if (bytes > room) return ncclInvalidArgument;
    emulated::enqueue(stream, [=] {
        if (comm->rank == root) memcpy(slot(comm, root), from, bytes);
        meet(comm);
        if (comm->rank != root) memcpy(to, slot(comm, root), bytes);
        meet(comm);
    });
    return ncclSuccess;
}
