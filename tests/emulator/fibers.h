/* fibers: the threads, warps and blocks that run on the emulated device. emulator.cpp runs them,
 * hopper.cpp has the instructions that only sm_90a knows.
 *
 * The blocks of a cluster run side by side, every thread a fiber. Their shared memory is one array,
 * a window for each block, so that a block reaches its neighbour's by pointer arithmetic. A block
 * outside a cluster is a cluster of one. */
#ifndef WF_EMULATOR_FIBERS_H
#define WF_EMULATOR_FIBERS_H

#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#include "ptx.h"

namespace emulated {

enum {
    most_cluster = 8,
    most_threads = 1024,
    most_fibers = 4096, /* of a cluster */
    n_barriers = 16,
    shared_window = 256 << 10
};

/* 16 bytes by cp.async, of which `there` are read. */
struct copy {
    void *to;
    const void *from;
    int there;
};

struct block;
struct fiber : thread {
    block *of;
    int warp;
    bool entered;
    ucontext_t start;
    jmp_buf where;
    const char *waits; /* for what; it stays while the fiber waits */
    std::vector<std::vector<copy>> groups;
    int bulk_groups;        /* of bulk copies, committed */
    bool at_cluster;        /* arrived at the cluster's barrier, has not waited */
    uint32_t cluster_phase; /* when it arrived */
    product_part part;
    std::vector<uint32_t> unfenced; /* granules written by ordinary stores, see hopper.cpp */
};

/* wgmma of one warp: its 16 rows of the 64. Runs when it is waited for. */
struct product : product_form {
    int group;
    std::vector<product_part> lanes;
    std::vector<float> a_seen, b_seen; /* operands at the time of issue */
};

struct warp {
    uint32_t live, ready, arrived; /* lanes */
    const char *name;              /* of what those that arrived are in */
    finish_fn *finish;
    int round;
    meeting meetings[2]; /* who is slow still reads the last one */
    bool fenced;         /* wgmma.fence since the last wait */
    int issued, committed;
    std::vector<product> products;
    std::vector<std::pair<float *, float>> held; /* what pending products' accumulators had */
};

struct barrier {
    int arrived, count;
    std::vector<fiber *> waiting;
};

struct block {
    dim3 index;
    int rank, live;
    unsigned char *shared;
    bool any_value, any_result; /* of __syncthreads_or */
    warp warps[most_threads / warp_lanes];
    barrier barriers[n_barriers];
};

extern block blocks[most_cluster];
extern int cluster_size;
extern size_t shared_size; /* of dynamic shared memory, in bytes */
extern unsigned char cluster_shared[most_cluster][shared_window];

inline fiber *me() { return (fiber *)self; }
inline warp &my_warp() { return me()->of->warps[me()->warp]; }

/* Random where the seed is not 0, else 0. */
uint32_t random_below(uint32_t n);

/* Leaves the fiber until somebody wakes it. */
void pause(const char *reason);
/* The same, until a barrier in memory, a bulk copy or the cluster's barrier has moved on. */
void poll(const char *reason);
void wake_polling();

/* --- hopper.cpp, for the scheduler ------------------------------------------------------------ */
void start_cluster();
bool land_a_copy(bool all_wait); /* false: there is none that may land */
void check_shared_access(const void *p, int bytes);
void thread_ends(); /* before it leaves */
void block_ended(block &b);

} // namespace emulated
#endif
