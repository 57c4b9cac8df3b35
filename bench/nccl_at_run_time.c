/* nccl_at_run_time: the calls of NCCL that weft makes, from the libnccl.so.2 that is found when the
 * first one is made. Linked in place of the library, which is too large to carry to a machine with
 * a GPU (bench/cuda_check.sh); PyTorch brings one. Types are as in nccl.h, whose enumerations are
 * ints and whose unique id is 128 bytes. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

enum { system_error = 2 };
typedef struct unique_id {
    char internal[128];
} unique_id;

static void *find(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libnccl.so.2", RTLD_NOW);
    void *call = library != NULL ? dlsym(library, name) : NULL;
    if (call == NULL) fprintf(stderr, "%s: %s\n", name, dlerror());
    return call;
}

#define CALL(name, types, values)                                                                  \
    int name types;                                                                                \
    int name types {                                                                               \
        static int(*call) types;                                                                   \
        if (call == NULL) call = (int(*) types)find(#name);                                        \
        return call != NULL ? call values : system_error;                                          \
    }
CALL(ncclGetVersion, (int *version), (version))
CALL(ncclGetUniqueId, (unique_id * id), (id))
CALL(ncclCommInitRank, (void **comm, int size, unique_id id, int rank), (comm, size, id, rank))
CALL(ncclCommDestroy, (void *comm), (comm))
CALL(ncclGroupStart, (void), ())
CALL(ncclGroupEnd, (void), ())
CALL(ncclAllReduce,
     (const void *from, void *to, size_t n, int type, int operation, void *comm, void *stream),
     (from, to, n, type, operation, comm, stream))
CALL(ncclBroadcast,
     (const void *from, void *to, size_t n, int type, int root, void *comm, void *stream),
     (from, to, n, type, root, comm, stream))

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) {
    const char *(*call)(int) = (const char *(*)(int))find("ncclGetErrorString");
    return call != NULL ? call(result) : "libnccl.so.2 is not found; LD_LIBRARY_PATH says where";
}
