/* emulator: runs grids of threads one block after another, and launches in the order of their
 * streams (cuda_runtime.h).
 *
 * A thread is a fiber with a stack of its own. It is entered once by makecontext, then left and
 * resumed by longjmp, which asks the system for nothing. Threads that wait are not ready; whoever
 * completes what they wait for makes them so. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <map>
#include <mutex>

#include "fibers.h"

/* --- order ------------------------------------------------------------------------------------ */
namespace {

int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

const uint32_t seed = (uint32_t)setting("WEFT_EMULATOR_SEED", 0);
uint64_t random_state = seed;
const char *kernel_name = "no kernel";

} // namespace

uint32_t emulated::random_below(uint32_t n) {
    if (seed == 0) return 0;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) * n >> 31);
}
using emulated::random_below;

template <class T> static void shuffle(std::vector<T> &list) {
    for (size_t k = 0; k < list.size(); k++)
        std::swap(list[k], list[k + random_below((uint32_t)(list.size() - k))]);
}

dim3 blockDim, gridDim;
namespace emulated {

thread *self;
dim3 block_index;
alignas(1024) unsigned char cluster_shared[most_cluster][shared_window];
unsigned char *dynamic_shared = cluster_shared[0];
block blocks[most_cluster];
int cluster_size = 1;
size_t shared_size;

void fail(const char *format, ...) {
    va_list list;
    fprintf(stderr, "emulator: %s", kernel_name);
    if (self != NULL)
        fprintf(stderr, ", block (%u, %u, %u) thread (%u, %u)", block_index.x, block_index.y,
                block_index.z, self->index.x, self->index.y);
    fprintf(stderr, ": ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    abort();
}

} // namespace emulated

/* --- fibers ----------------------------------------------------------------------------------- */
namespace {

using namespace emulated;

enum { stack_bytes = 128 << 10, page = 4096 };
fiber *fibers;
std::vector<fiber *> polling; /* an mbarrier, a bulk copy, the cluster's barrier */
jmp_buf home;
const std::function<void()> *body;

void wake(fiber *f) { f->of->warps[f->warp].ready |= 1u << f->lane; }
void wake_all(std::vector<fiber *> &list) {
    for (fiber *f : list) wake(f);
    list.clear();
}

void complete_warp(warp &w) {
    if (w.live == 0 || w.arrived != w.live) return;
    if (w.finish != NULL) w.finish(w.meetings[w.round % 2]);
    w.round++;
    w.ready |= w.arrived;
    w.arrived = 0;
}
void complete_barrier(barrier &b) {
    if (b.arrived < b.count) return;
    b.arrived = 0;
    wake_all(b.waiting);
}
void complete_block(block &b) {
    b.barriers[0].count = b.live;
    if (b.live == 0 || b.barriers[0].arrived < b.live) return;
    b.any_result = b.any_value;
    b.any_value = false;
    complete_barrier(b.barriers[0]);
}

/* A fiber's life: the threads of its place in one block after another. */
void live() {
    for (;;) {
        (*body)();
        fiber *f = me();
        block &b = *f->of;
        b.warps[f->warp].live &= ~(1u << f->lane);
        b.live--;
        thread_ends();
        complete_warp(b.warps[f->warp]);
        complete_block(b);
        if (b.live == 0) block_ended(b);
        emulated::pause("the next block");
    }
}

void resume(fiber *f) {
    self = f;
    block_index = f->of->index;
    dynamic_shared = f->of->shared;
    if (_setjmp(home) != 0) return;
    if (f->entered) _longjmp(f->where, 1);
    f->entered = true;
    setcontext(&f->start);
}

/* The first `count` of them, as many as a launch has needed so far. */
void make_fibers(int count) {
    static char *stacks;
    static int made;
    if (fibers == NULL) {
        fibers = new fiber[most_fibers]();
        stacks = (char *)mmap(NULL, (size_t)most_fibers * stack_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) fail("no memory for stacks");
    }
    for (; made < count; made++) {
        char *stack = stacks + (size_t)made * stack_bytes;
        mprotect(stack, page, PROT_NONE); /* one that overflows stops here */
        getcontext(&fibers[made].start);
        fibers[made].start.uc_stack.ss_sp = stack;
        fibers[made].start.uc_stack.ss_size = stack_bytes;
        makecontext(&fibers[made].start, live, 0);
    }
}

void start_block(block &b, int rank, dim3 index, int threads) {
    b.index = index, b.rank = rank, b.live = threads;
    b.shared = cluster_shared[rank];
    b.any_value = false;
    for (int k = 0; k < (threads + warp_lanes - 1) / warp_lanes; k++) {
        warp &w = b.warps[k];
        w.live = w.ready = w.arrived = 0, w.round = 0;
        w.fenced = false, w.issued = w.committed = 0;
    }
    for (int k = 0; k < threads; k++) {
        fiber &f = fibers[rank * threads + k];
        unsigned x = blockDim.x, y = blockDim.y, at = (unsigned)k;
        f.index = dim3(at % x, at / x % y, at / x / y);
        f.of = &b, f.lane = k % warp_lanes, f.warp = k / warp_lanes;
        f.groups.clear();
        f.bulk_groups = 0, f.at_cluster = false;
        f.unfenced.clear();
        b.warps[f.warp].live |= 1u << f.lane;
        wake(&f);
    }
    for (barrier &each : b.barriers) each.arrived = each.count = 0, each.waiting.clear();
    memset(b.shared, 0xff, shared_size);
}

/* One of the ready lanes. */
fiber *pick(warp &w, int threads) {
    uint32_t turn = random_below(warp_lanes);
    uint32_t turned = turn == 0 ? w.ready : w.ready >> turn | w.ready << (warp_lanes - turn);
    int lane = (int)((turn + (uint32_t)__builtin_ctz(turned)) % warp_lanes);
    w.ready &= ~(1u << lane);
    int rank = (int)(((char *)&w - (char *)blocks) / (ptrdiff_t)sizeof(block));
    return &fibers[rank * threads + (&w - blocks[rank].warps) * warp_lanes + lane];
}

int live_threads() {
    int sum = 0;
    for (int k = 0; k < cluster_size; k++) sum += blocks[k].live;
    return sum;
}

void report_hang(int threads) {
    for (int k = 0; k < threads * cluster_size; k++) {
        fiber &f = fibers[k];
        if (f.of->warps[f.warp].live >> f.lane & 1) {
            self = &f, block_index = f.of->index;
            fail("waits for ever for %s, and %d threads in all", f.waits, live_threads());
        }
    }
}

/* The first warp of a shuffled order that can run goes on as far as it can, so that some are far
 * ahead of others. Bulk copies land in between, at the latest when all threads wait. */
void run_cluster(int threads) {
    enum { keeps_order = 200, lands = 16 };
    std::vector<warp *> order;
    for (int k = 0; k < cluster_size; k++)
        for (int w = 0; w * warp_lanes < threads; w++) order.push_back(&blocks[k].warps[w]);
    shuffle(order);
    while (live_threads() > 0) {
        if (random_below(keeps_order) == keeps_order - 1) shuffle(order);
        auto first = std::find_if(order.begin(), order.end(), [](warp *w) { return w->ready; });
        bool none = first == order.end();
        if ((none || random_below(lands) == lands - 1) && land_a_copy(none)) continue;
        if (none) report_hang(threads);
        else resume(pick(**first, threads));
    }
    while (land_a_copy(true)) continue;
    self = NULL;
}

} // namespace

namespace emulated {

void pause(const char *reason) {
    fiber *f = me();
    f->waits = reason;
    if (_setjmp(f->where) == 0) _longjmp(home, 1);
}
void poll(const char *reason) {
    polling.push_back(me());
    pause(reason);
}
void wake_polling() { wake_all(polling); }

const meeting &meet(const char *name, finish_fn *finish, const uint32_t *words, int count) {
    fiber *f = me();
    warp &w = my_warp();
    meeting &m = w.meetings[w.round % 2];
    if (w.arrived == 0) {
        w.name = name, w.finish = finish;
        if (w.live != UINT32_MAX) memset(&m.in, 0, sizeof m.in);
    }
    if (w.name != name && strcmp(w.name, name) != 0)
        fail("%s, while other lanes of the warp are in %s", name, w.name);
    for (int k = 0; k < count; k++) m.in[f->lane][k] = words[k];
    w.arrived |= 1u << f->lane;
    if (w.arrived == w.live) {
        complete_warp(w);
        w.ready &= ~(1u << f->lane); /* it goes on */
    } else {
        pause(name);
    }
    return m;
}

void arrive_at(int id, int count, bool wait) {
    if (id < 1 || id >= n_barriers) fail("barrier %d", id);
    barrier &b = me()->of->barriers[id];
    if (b.arrived > 0 && b.count != count)
        fail("%d threads at barrier %d, others said %d", count, id, b.count);
    b.count = count;
    b.arrived++;
    if (wait && b.arrived < count) {
        b.waiting.push_back(me());
        pause("a barrier");
    } else {
        complete_barrier(b);
    }
}

bool sync_threads(bool value) {
    block &b = *me()->of;
    b.any_value |= value;
    b.barriers[0].arrived++;
    b.barriers[0].waiting.push_back(me());
    complete_block(b);
    pause("__syncthreads");
    return b.any_result;
}

void *shared_at(uint32_t address, int bytes) {
    int64_t offset = (int64_t)address - first_address;
    unsigned char *p = (unsigned char *)((uintptr_t)dynamic_shared + (uintptr_t)offset);
    if (address % (uint32_t)bytes != 0) fail("%d bytes at %u in shared memory", bytes, address);
    if (p >= cluster_shared[0] && p < cluster_shared[most_cluster]) check_shared_access(p, bytes);
    return p; /* of dynamic shared memory or of another variable */
}

/* --- grids ------------------------------------------------------------------------------------ */
static std::map<const void *, int> allowed;

void allow_shared(const void *kernel, int bytes) { allowed[kernel] = bytes; }
int shared_allowed(const void *kernel) {
    enum { always = 48 << 10 };
    return std::max(allowed[kernel], (int)always);
}

void check_shared(const char *name, const void *kernel, size_t bytes) {
    kernel_name = name;
    if ((size_t)shared_allowed(kernel) < bytes)
        fail("%zu bytes of shared memory, allowed are %d", bytes, shared_allowed(kernel));
}

void run_grid(const char *name, dim3 grid, dim3 block, unsigned cluster, size_t bytes,
              const std::function<void()> &thread) {
    uint32_t count = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;
    kernel_name = name;
    if (count == 0 || threads == 0 || threads > most_threads)
        fail("%u blocks of %u threads", count, threads);
    if (cluster == 0 || cluster > most_cluster || grid.x % cluster != 0 ||
        cluster * threads > most_fibers)
        fail("clusters of %u in a grid of %u, blocks of %u threads", cluster, grid.x, threads);
    gridDim = grid, blockDim = block;
    shared_size = bytes;
    cluster_size = (int)cluster;
    body = &thread;
    make_fibers((int)(cluster * threads));
    uint32_t clusters = count / cluster, first = random_below(clusters), back = random_below(2);
    for (uint32_t k = 0; k < clusters; k++) {
        uint32_t at = (first + (back ? clusters - k : k)) % clusters * cluster;
        for (uint32_t rank = 0; rank < cluster; rank++, at++)
            start_block(blocks[rank], (int)rank,
                        dim3(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y),
                        (int)threads);
        start_cluster();
        run_cluster((int)threads);
    }
    cluster_size = 1;
    dynamic_shared = cluster_shared[0];
    kernel_name = "no kernel";
}

} // namespace emulated

/* --- instructions ----------------------------------------------------------------------------- */
namespace ptx {

using emulated::fail;

static void carry_out(const std::vector<copy> &group) {
    for (const copy &c : group) {
        memcpy(c.to, c.from, (size_t)c.there);
        memset((char *)c.to + c.there, 0, (size_t)(16 - c.there));
    }
}
/* The last group is open. */
static std::vector<std::vector<copy>> &groups() {
    if (me()->groups.empty()) me()->groups.resize(1);
    return me()->groups;
}

void cp_async_cg_shared_global(uint32_t to, const void *from, int size, int there) {
    if (size != 16 || (uintptr_t)from % 16 != 0) fail("a copy of %d bytes from %p", size, from);
    copy one = {shared_at(to, 16), from, there};
    if (random_below(2) != 0) carry_out({one});
    else groups().back().push_back(one);
}
void cp_async_commit_group() { groups().emplace_back(); }
void cp_async_wait_group(int left) {
    auto &all = groups();
    while ((int)all.size() > left + 1) {
        carry_out(all.front());
        all.erase(all.begin());
    }
}
void cp_async_wait_all() {
    for (const auto &group : groups()) carry_out(group);
    groups().clear();
}

static uint16_t element(const meeting &m, int matrix, int row, int column) {
    return ((const uint16_t *)shared_at(m.in[8 * matrix + row][0], 16))[column];
}
template <bool turned> static void load_matrices(meeting &m) {
    for (int lane = 0; lane < warp_lanes; lane++)
        for (int k = 0; k < 4; k++) {
            int row = lane / 4, column = lane % 4 * 2;
            uint16_t low = turned ? element(m, k, column, row) : element(m, k, row, column);
            uint16_t high =
                turned ? element(m, k, column + 1, row) : element(m, k, row, column + 1);
            m.out[lane][k] = (uint32_t)high << 16 | low;
        }
}
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,
                                              uint32_t address) {
    const auto &out = emulated::meet("ldmatrix", load_matrices<false>, &address, 1).out[laneid()];
    a = out[0], b = out[1], c = out[2], d = out[3];
}
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                    uint32_t &d, uint32_t address) {
    const auto &out =
        emulated::meet("ldmatrix.trans", load_matrices<true>, &address, 1).out[laneid()];
    a = out[0], b = out[1], c = out[2], d = out[3];
}

void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d) {
    const uint32_t words[] = {a, b, c, d, address};
    const meeting &m = emulated::meet("stmatrix", NULL, words, 5);
    uint16_t *to = (uint16_t *)shared_to(address, 16); /* its row */
    for (int k = 0; k < 8; k++)
        to[k] = (uint16_t)(m.in[laneid() % 8 * 4 + k / 2][laneid() / 8] >> 16 * (k % 2));
}

void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t address, uint32_t a, uint32_t b,
                                                    uint32_t c, uint32_t d) {
    const uint32_t words[] = {a, b, c, d, address};
    const meeting &m = emulated::meet("stmatrix.trans", NULL, words, 5);
    uint16_t *to = (uint16_t *)shared_to(address, 16); /* its column */
    int column = laneid() % 8;
    for (int k = 0; k < 8; k++)
        to[k] = (uint16_t)(m.in[4 * k + column / 2][laneid() / 8] >> 16 * (column % 2));
}

static void turn_matrix(meeting &m) {
    auto at = [&](int row, int column) {
        return m.in[4 * row + column / 2][0] >> 16 * (column % 2) & 0xffff;
    };
    for (int lane = 0; lane < warp_lanes; lane++)
        m.out[lane][0] = at(lane % 4 * 2 + 1, lane / 4) << 16 | at(lane % 4 * 2, lane / 4);
}
void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t &to, uint32_t x) {
    to = emulated::meet("movmatrix", turn_matrix, &x, 1).out[laneid()][0];
}

/* Lane l holds of a (l / 4 and + 8, l % 4 * 2 .. and + 8), of b (l % 4 * 2 .. and + 8, l / 4). */
template <bool Half> static float value(uint32_t word, int which) {
    uint32_t bits = word >> 16 * which;
    return Half ? of_half((uint16_t)bits) : emulated::of_bits<float>(bits << 16);
}
template <bool Half> static void multiply(meeting &m) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < warp_lanes; lane++)
        for (int k = 0; k < 2; k++) {
            int row = lane / 4, column = lane % 4 * 2 + k;
            for (int j = 0; j < 4; j++)
                a[row + j % 2 * 8][column + j / 2 * 8] = value<Half>(m.in[lane][j], k);
            for (int j = 0; j < 2; j++) b[column + 8 * j][row] = value<Half>(m.in[lane][4 + j], k);
        }
    for (int row = 0; row < 16; row++) {
        float sum[8] = {0};
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++) sum[column] += a[row][k] * b[k][column];
        for (int column = 0; column < 8; column++)
            m.out[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2] =
                emulated::bits_of(sum[column]);
    }
}
#define EMULATED_MMA_BODY(half)                                                                    \
    {                                                                                              \
        const uint32_t words[] = {a0, a1, a2, a3, b0, b1};                                         \
        const auto &out = emulated::meet("mma", multiply<half>, words, 6).out[laneid()];           \
        d0 = c0 + emulated::of_bits<float>(out[0]), d1 = c1 + emulated::of_bits<float>(out[1]);    \
        d2 = c2 + emulated::of_bits<float>(out[2]), d3 = c3 + emulated::of_bits<float>(out[3]);    \
    }
// clang-format off
EMULATED_MMA(bf16) EMULATED_MMA_BODY(false)
EMULATED_MMA(f16) EMULATED_MMA_BODY(true)
// clang-format on

} // namespace ptx

/* --- streams ---------------------------------------------------------------------------------- */
/* Tasks after others: of the device, in the order in which they were given (places never change,
 * those before `base` are done), or of a graph. A stream's tips are the tasks its next one has to
 * come after. */
struct emulated_task {
    std::function<void()> run;
    std::vector<size_t> after;
    cudaStream_t stream;
    bool done;
};
struct emulated_graph {
    std::vector<emulated_task> tasks;
    cudaStream_t origin;
    std::vector<size_t> tips;
};
struct emulated_stream {
    std::vector<size_t> tips;
    emulated_graph *capture;
    int device;
};
struct emulated_event {
    std::vector<size_t> tips;
    emulated_graph *capture;
    int device;
};

namespace {

std::vector<emulated_task> pending;
size_t base;
std::vector<cudaStream_t> streams;
std::map<const char *, size_t> device_memory;
std::map<const char *, size_t> pinned_memory;
thread_local int current; /* device of a host thread */

/* Host threads come in one at a time; launches of all of them run on the thread that waits. */
std::recursive_mutex entry;
struct one_call {
    std::lock_guard<std::recursive_mutex> guard;
    one_call() : guard(entry) {}
};

bool is_inside(const std::map<const char *, size_t> &memory, const void *p) {
    auto next = memory.upper_bound((const char *)p);
    if (next == memory.begin()) return false;
    --next;
    return (const char *)p < next->first + next->second;
}
bool on_device(const void *p) { return is_inside(device_memory, p); }

bool is_done(size_t task) { return task < base || pending[task - base].done; }

size_t add(cudaStream_t stream, std::vector<size_t> after, std::function<void()> run) {
    pending.push_back({run, after, stream, false});
    return base + pending.size() - 1;
}

/* A task that may run: the first of the streams in a shuffled order, or any. */
emulated_task &choose(const std::vector<cudaStream_t> &order) {
    std::vector<emulated_task *> able;
    for (emulated_task &t : pending)
        if (!t.done && std::all_of(t.after.begin(), t.after.end(), is_done)) able.push_back(&t);
    if (random_below(4) == 3) return *able[random_below((uint32_t)able.size())];
    for (cudaStream_t s : order)
        for (emulated_task *t : able)
            if (t->stream == s) return *t;
    return *able[0];
}

/* Runs launches until these are done; others may or may not have run then. */
void settle(const std::vector<size_t> &tasks) {
    std::vector<cudaStream_t> order = streams;
    shuffle(order);
    while (!std::all_of(tasks.begin(), tasks.end(), is_done)) {
        emulated_task &task = choose(order);
        task.run();
        task.done = true;
        task.run = NULL;
    }
    if (std::all_of(pending.begin(), pending.end(), [](auto &t) { return t.done; })) {
        base += pending.size();
        pending.clear();
    }
}
void settle_all() {
    for (cudaStream_t s : streams)
        if (s->capture == NULL) settle(s->tips);
}

/* What comes later than both. */
void join(std::vector<size_t> &tips, const std::vector<size_t> &others) {
    for (size_t t : others)
        if (std::find(tips.begin(), tips.end(), t) == tips.end()) tips.push_back(t);
}

bool all_joined(const emulated_graph &graph) {
    std::vector<bool> reached(graph.tasks.size());
    for (size_t t : graph.tips) reached[t] = true;
    for (size_t k = graph.tasks.size(); k-- > 0;)
        for (size_t t : graph.tasks[k].after)
            if (reached[k]) reached[t] = true;
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

} // namespace

void emulated::enqueue(cudaStream_t stream, std::function<void()> task) {
    one_call guard;
    if (stream == NULL) { /* the default stream waits for all others */
        settle_all();
        task();
        return;
    }
    if (stream->device != current)
        fail("a launch on a stream of device %d, while the thread's is %d", stream->device,
             current);
    if (stream->capture == NULL) {
        stream->tips = {add(stream, stream->tips, task)};
    } else {
        stream->capture->tasks.push_back({task, stream->tips, stream, false});
        stream->tips = {stream->capture->tasks.size() - 1};
    }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    one_call guard;
    *stream = new emulated_stream{{}, NULL, current};
    streams.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    one_call guard;
    if (stream->capture != NULL) emulated::fail("cudaStreamDestroy in a capture");
    settle(stream->tips);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    one_call guard;
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    one_call guard;
    if (stream == NULL) {
        settle_all();
        return cudaSuccess;
    }
    if (stream->capture != NULL) emulated::fail("cudaStreamSynchronize in a capture");
    settle(stream->tips);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    one_call guard;
    *event = new emulated_event{{}, NULL, current};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    one_call guard;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    one_call guard;
    if (event->device != stream->device) emulated::fail("an event of another device");
    event->tips = stream->tips;
    event->capture = stream->capture;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    one_call guard;
    if (event->capture != NULL) emulated::fail("cudaEventSynchronize in a capture");
    settle(event->tips);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
/* Waiting for an event of a capture takes the stream into it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    one_call guard;
    if (event->capture != NULL && stream->capture == NULL) {
        stream->capture = event->capture;
        stream->tips.clear();
    }
    if (event->capture != stream->capture) emulated::fail("a capture waits for what is not in it");
    join(stream->tips, event->tips);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int) {
    one_call guard;
    settle(stream->tips);
    stream->capture = new emulated_graph{{}, stream, {}};
    stream->tips.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    one_call guard;
    *graph = stream->capture;
    (*graph)->tips = stream->tips;
    for (cudaStream_t s : streams)
        if (s->capture == *graph) s->capture = NULL, s->tips.clear();
    return all_joined(**graph) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    one_call guard;
    *status = stream->capture != NULL ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                        unsigned long long *, cudaGraph_t *graph,
                                        const cudaGraphNode_t **after, size_t *n) {
    one_call guard;
    *graph = stream->capture;
    *after = stream->tips.data();
    *n = stream->tips.size();
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *after,
                                                size_t n, unsigned) {
    one_call guard;
    stream->tips.assign(after, after + n);
    return cudaSuccess;
}
/* The child's tasks, and one after them that stands for the node. */
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                       const cudaGraphNode_t *after, size_t n, cudaGraph_t child) {
    one_call guard;
    std::vector<size_t> before(after, after + n);
    size_t first = graph->tasks.size();
    auto placed = [&](std::vector<size_t> places) {
        for (size_t &t : places) t += first;
        return places.empty() ? before : places;
    };
    for (const emulated_task &t : child->tasks)
        graph->tasks.push_back(
            {t.run, placed(t.after), t.stream == child->origin ? graph->origin : t.stream, false});
    graph->tasks.push_back({[] {}, placed(child->tips), graph->origin, false});
    *node = graph->tasks.size() - 1;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned) {
    one_call guard;
    *out = new emulated_graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    one_call guard;
    size_t first = base + pending.size();
    auto placed = [&](std::vector<size_t> places) {
        for (size_t &t : places) t += first;
        if (places.empty()) places = stream->tips;
        return places;
    };
    for (const emulated_task &t : graph->tasks)
        add(t.stream == graph->origin ? stream : t.stream, placed(t.after), t.run);
    stream->tips = placed(graph->tips);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    one_call guard;
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    one_call guard;
    delete graph;
    return cudaSuccess;
}

/* --- memory ----------------------------------------------------------------------------------- */
cudaError_t cudaMalloc(void **memory, size_t bytes) {
    one_call guard;
    enum { alignment = 256 };
    *memory = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (*memory == NULL) return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, bytes);
    device_memory[(const char *)*memory] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    one_call guard;
    settle_all(); /* as the driver does */
    device_memory.erase((const char *)memory);
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *left = (size_t)1 << 29, *all = (size_t)1 << 30;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    one_call guard;
    *memory = calloc(bytes + 1, 1);
    if (*memory == NULL) return cudaErrorMemoryAllocation;
    pinned_memory[(const char *)*memory] = bytes + 1;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *memory) {
    one_call guard;
    settle_all();
    pinned_memory.erase((const char *)memory);
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    one_call guard;
    emulated::enqueue(stream, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*call)(void *), void *argument) {
    one_call guard;
    emulated::enqueue(stream, [=] { call(argument); });
    return cudaSuccess;
}
/* Pageable memory: what goes to the device is read at once, and what comes from it is waited for.
 * Pinned memory is read and written when the stream comes to it. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    one_call guard;
    bool to_device = on_device(to), from_device = on_device(from);
    if ((kind == cudaMemcpyHostToDevice && (from_device || !to_device)) ||
        (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) ||
        (kind == cudaMemcpyDeviceToDevice && !(to_device && from_device)))
        return cudaErrorInvalidValue;
    if (from_device || is_inside(pinned_memory, from)) {
        emulated::enqueue(stream, [=] { memmove(to, from, bytes); });
        if (!to_device && !is_inside(pinned_memory, to)) return cudaStreamSynchronize(stream);
    } else {
        std::vector<char> kept((const char *)from, (const char *)from + bytes);
        emulated::enqueue(stream, [=] { memcpy(to, kept.data(), bytes); });
    }
    return cudaSuccess;
}

/* --- the device ------------------------------------------------------------------------------- */
cudaError_t cudaGetDeviceCount(int *count) {
    *count = setting("WEFT_EMULATOR_DEVICES", 1);
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    int count;
    cudaGetDeviceCount(&count);
    if (device < 0 || device >= count) return cudaErrorInvalidValue;
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMultiProcessorCount ? setting("WEFT_EMULATOR_PROCESSORS", 8)
                                                         : (int)emulated::most_shared;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, (size_t)size, "emulated:%d", device);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    snprintf(properties->name, sizeof properties->name, "emulated device");
    properties->totalGlobalMem = (size_t)1 << 30;
    return cudaDeviceGetAttribute(&properties->multiProcessorCount, cudaDevAttrMultiProcessorCount,
                                  device);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) {
    static const char *const texts[] = {"no error",      "out of memory",
                                        "invalid value", "a stream of the capture was not joined",
                                        "not ready",     "host memory was registered before"};
    return texts[error];
}
