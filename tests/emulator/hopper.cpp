/* hopper: mbarriers with byte counts, bulk copies, clusters and wgmma of sm_90a.
 *
 * A bulk copy keeps what its source held when it was issued. It lands later, when the scheduler
 * says so: soon, or, one copy of four, not before all threads wait. What is found, each with a
 * sentence:
 *   H1  the source of a copy, or an operand of wgmma in shared memory, that changed before it was
 *       read; a store (by PTX) into what a copy still reads or writes; a load from what it writes
 *   H2  a copy that lands in a later phase of its mbarrier than that in which it was issued: the
 *       phase did not expect its bytes; bytes that no phase expected
 *   H3  threads that wait for ever, with the arrivals and bytes that are missing
 *   H4  shared memory written by ordinary stores (by PTX) that wgmma or a bulk copy reads before
 *       the writer has called fence.proxy.async
 *   H5  shared memory of a block that has ended; a block that ends while a copy of its shared
 *       memory is in flight; a thread that ends with products that nobody waited for
 *   H6  wgmma without wgmma.fence; warps of a warpgroup that do not all issue it
 *   H7  an mbarrier that was not initialised; misaligned copies
 * Plain C++ stores and loads are not seen one by one. They meet the NaNs of M4, M7 and M8, and H1
 * sees what a store has changed. */
#include <stdio.h>
#include <algorithm>
#include <deque>

#include "fibers.h"

using namespace emulated;

/* --- shared memory ---------------------------------------------------------------------------- */
namespace {

struct mbarrier {
    uint64_t magic : 8, phase : 8, count : 12, missing : 12;
    int64_t bytes : 24; /* expected and not yet landed */
};
static_assert(sizeof(mbarrier) == 8, "the size of a real one");
enum { initialised = 0x5b, most_bytes = (1 << 20) - 1 };

struct flight {
    unsigned char *to;
    const unsigned char *from;
    std::vector<unsigned char> kept;
    mbarrier *signal; /* NULL: of a bulk group */
    unsigned phase;   /* of signal at the time of issue */
    fiber *owner;
    int group;
    bool read; /* the source may change */
    bool slow; /* lands when all threads wait, not before */
};
std::deque<flight> flights;
std::vector<mbarrier *> created; /* of the cluster's blocks */

enum { granule = 16 };
fiber *unfenced_writer[most_cluster * shared_window / granule];

bool in_shared(const void *p) {
    return (const unsigned char *)p >= cluster_shared[0] &&
           (const unsigned char *)p < cluster_shared[most_cluster];
}
size_t place_of(const void *p) { return (size_t)((const unsigned char *)p - cluster_shared[0]); }
block &block_of(const void *p) { return blocks[place_of(p) / shared_window]; }
bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes &&
           (const char *)b < (const char *)a + a_bytes;
}

void check_fenced(const void *p, size_t bytes, const char *reader) {
    for (size_t k = place_of(p) / granule; k <= (place_of(p) + bytes - 1) / granule; k++)
        if (unfenced_writer[k] != NULL)
            fail("%s reads byte %zu of shared memory, which thread %u wrote without "
                 "fence.proxy.async",
                 reader, k * granule % shared_window, unfenced_writer[k]->index.x);
}

/* A range of the cluster's shared memory. */
void check_range(const void *p, size_t bytes) {
    size_t rank = place_of(p) / shared_window, offset = place_of(p) % shared_window;
    if (rank >= (size_t)cluster_size || offset + bytes > shared_size)
        fail("byte %zu of %zu of shared memory", offset, shared_size);
    if (blocks[rank].live == 0) fail("shared memory of block %zu, which has ended", rank);
}

} // namespace

void emulated::check_shared_access(const void *p, int bytes) {
    check_range(p, (size_t)bytes);
    for (const flight &f : flights)
        if (overlap(p, (size_t)bytes, f.to, f.kept.size()))
            fail("touches byte %zu of shared memory, which a bulk copy is writing",
                 place_of(p) % shared_window);
}

void *ptx::shared_to(uint32_t address, int bytes) {
    void *p = shared_at(address, bytes);
    if (!in_shared(p)) return p;
    for (const flight &f : flights)
        if (!f.read && overlap(p, (size_t)bytes, f.from, f.kept.size()))
            fail("writes byte %zu of shared memory, which a bulk copy has not read yet",
                 place_of(p) % shared_window);
    fiber *&writer = unfenced_writer[place_of(p) / granule];
    if (writer != me()) {
        writer = me();
        me()->unfenced.push_back((uint32_t)(place_of(p) / granule));
    }
    return p;
}

static void forget_writes(fiber *f) {
    for (uint32_t k : f->unfenced)
        if (unfenced_writer[k] == f) unfenced_writer[k] = NULL;
    f->unfenced.clear();
}
void ptx::fence_proxy_async_shared_cta() { forget_writes(me()); }

/* --- mbarriers -------------------------------------------------------------------------------- */
static mbarrier *barrier_at(uint32_t address) {
    mbarrier *b = (mbarrier *)shared_at(address, 8);
    if (b->magic != initialised) fail("an mbarrier at %u that was not initialised", address);
    return b;
}
static void complete_phase(mbarrier *b) {
    if (b->missing > 0 || b->bytes != 0) return;
    b->missing = b->count;
    b->phase++;
    wake_polling();
}

namespace ptx {

void mbarrier_init_shared_b64(uint32_t barrier, int count) {
    if (count < 1 || count > most_threads) fail("an mbarrier of %d arrivals", count);
    mbarrier *b = (mbarrier *)shared_at(barrier, 8);
    *b = {initialised, 0, (uint64_t)count, (uint64_t)count, 0};
    if (in_shared(b)) created.push_back(b);
}
static void arrive(uint32_t barrier, uint32_t bytes) {
    mbarrier *b = barrier_at(barrier);
    if (b->missing == 0) fail("an arrival too many at an mbarrier");
    if (bytes + (uint32_t)abs((int)b->bytes) > most_bytes) fail("%u bytes expected", bytes);
    b->bytes += bytes;
    b->missing--;
    complete_phase(b);
}
void mbarrier_arrive_shared_b64(uint64_t &state, uint32_t barrier) {
    state = barrier_at(barrier)->phase;
    arrive(barrier, 0);
}
void mbarrier_arrive_expect_tx_shared_cta_b64(uint64_t &state, uint32_t barrier, uint32_t bytes) {
    state = barrier_at(barrier)->phase;
    arrive(barrier, bytes);
}
void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(uint32_t barrier, uint32_t bytes) {
    barrier_at(barrier)->bytes += bytes;
}
void mbarrier_test_wait_parity_shared_b64(bool &done, uint32_t barrier, uint32_t parity) {
    const mbarrier *b = barrier_at(barrier);
    if ((b->phase & 1u) == parity) {
        char text[96];
        snprintf(text, sizeof text, "an mbarrier (phase %u, %u arrivals and %d bytes missing)",
                 (unsigned)b->phase, (unsigned)b->missing, (int)b->bytes);
        poll(text);
    }
    done = (b->phase & 1u) != parity;
}
void cp_async_mbarrier_arrive_noinc_shared_b64(uint32_t barrier) {
    cp_async_wait_all();
    arrive(barrier, 0);
}

} // namespace ptx

/* --- bulk copies ------------------------------------------------------------------------------ */
static void issue(void *to, const void *from, uint32_t bytes, mbarrier *signal) {
    if (bytes == 0 || bytes % 16 != 0 || (uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        fail("a bulk copy of %u bytes from %p to %p", bytes, from, to);
    for (const void *p : {(const void *)to, from})
        if (in_shared(p)) check_range(p, bytes);
    if (in_shared(from)) {
        check_fenced(from, bytes, "a bulk copy");
        check_shared_access(from, (int)bytes);
    }
    for (const flight &f : flights)
        if (overlap(to, bytes, f.to, f.kept.size()) ||
            (!f.read && overlap(to, bytes, f.from, f.kept.size())))
            fail("a bulk copy into what another one has in flight");
    const unsigned char *source = (const unsigned char *)from;
    flights.push_back({(unsigned char *)to, source,
                       std::vector<unsigned char>(source, source + bytes), signal,
                       signal != NULL ? (unsigned)signal->phase : 0, me(), me()->bulk_groups, false,
                       random_below(4) == 0});
    memset(to, 0xff, bytes);
}

/* A copy to global memory first reads its source; its bytes arrive later. */
bool emulated::land_a_copy(bool all_wait) {
    std::vector<size_t> can;
    for (size_t k = 0; k < flights.size(); k++)
        if (all_wait || !flights[k].slow) can.push_back(k);
    if (can.empty()) return false;
    size_t at = can[random_below((uint32_t)can.size())];
    flight &f = flights[at];
    self = f.owner, block_index = f.owner->of->index, dynamic_shared = f.owner->of->shared;
    if (!f.read && memcmp(f.from, f.kept.data(), f.kept.size()) != 0)
        fail("the source of a bulk copy was overwritten before it was read");
    bool arrives = f.read || f.signal != NULL || random_below(2) != 0;
    f.read = true;
    wake_polling();
    if (!arrives) return true;
    if (f.signal != NULL && block_of(f.signal).live == 0)
        fail("a bulk copy lands in a block that has ended");
    memcpy(f.to, f.kept.data(), f.kept.size());
    mbarrier *signal = f.signal;
    unsigned phase = f.phase;
    int bytes = (int)f.kept.size();
    flights.erase(flights.begin() + (ptrdiff_t)at);
    if (signal == NULL) return true;
    if (signal->phase != phase)
        fail("%d bytes land in phase %u of an mbarrier, issued in phase %u, which did not expect "
             "them",
             bytes, (unsigned)signal->phase, phase);
    signal->bytes -= bytes;
    complete_phase(signal);
    return true;
}

namespace ptx {

void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void *from,
                                                                    uint32_t bytes,
                                                                    uint32_t barrier) {
    issue((char *)shared_at(to, 16), from, bytes, barrier_at(barrier));
}
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, uint16_t ranks) {
    ptrdiff_t own = me()->of->rank;
    for (int rank = 0; rank < most_cluster; rank++) {
        if (!(ranks >> rank & 1)) continue;
        if (rank >= cluster_size) fail("block %d of a cluster of %d", rank, cluster_size);
        uint32_t there = (uint32_t)((rank - own) * (ptrdiff_t)shared_window);
        issue(shared_at(to + there, 16), from, bytes, barrier_at(barrier + there));
    }
}
void cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(uint32_t to, uint32_t from,
                                                                        uint32_t bytes,
                                                                        uint32_t barrier) {
    issue(shared_at(to, 16), shared_at(from, 16), bytes, barrier_at(barrier));
}
void cp_async_bulk_global_shared_cta_bulk_group(const void *to, uint32_t from, uint32_t bytes) {
    issue((void *)to, shared_at(from, 16), bytes, NULL);
}
void cp_async_bulk_commit_group() { me()->bulk_groups++; }
static void wait_bulk(int left, bool read_only) {
    auto missing = [&](const flight &f) {
        return f.signal == NULL && f.owner == me() && f.group < me()->bulk_groups - left &&
               !(read_only && f.read);
    };
    while (std::any_of(flights.begin(), flights.end(), missing)) poll("a bulk copy");
}
void cp_async_bulk_wait_group(int left) { wait_bulk(left, false); }
void cp_async_bulk_wait_group_read(int left) { wait_bulk(left, true); }

} // namespace ptx

/* --- clusters --------------------------------------------------------------------------------- */
static uint32_t cluster_phase;
static int cluster_arrived;

static void complete_cluster() {
    int live = 0;
    for (int k = 0; k < cluster_size; k++) live += blocks[k].live;
    if (cluster_arrived == 0 || cluster_arrived < live) return;
    cluster_arrived = 0;
    cluster_phase++;
    wake_polling();
}

namespace ptx {

int cluster_ctarank() { return me()->of->rank; }
int cluster_nctarank() { return cluster_size; }

void barrier_cluster_arrive_release_aligned() {
    if (me()->at_cluster) fail("arrives twice at the cluster's barrier");
    me()->at_cluster = true;
    me()->cluster_phase = cluster_phase;
    cluster_arrived++;
    complete_cluster();
}
void barrier_cluster_wait_acquire_aligned() {
    if (!me()->at_cluster) fail("waits at the cluster's barrier, where it did not arrive");
    while (cluster_phase == me()->cluster_phase) poll("the cluster's barrier");
    me()->at_cluster = false;
}
void mapa_shared_cluster_u32(uint32_t &to, uint32_t address, uint32_t rank) {
    if ((int)rank >= cluster_size) fail("block %u of a cluster of %d", rank, cluster_size);
    to = address + (rank - (uint32_t)me()->of->rank) * (uint32_t)shared_window;
}
void mbarrier_arrive_release_cluster_shared_cluster_b64(uint64_t &, uint32_t barrier) {
    arrive(barrier, 0);
}
/* A store that reports its bytes to an mbarrier beside them. */
void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(uint32_t to, uint32_t x, uint32_t y,
                                                               uint32_t z, uint32_t w,
                                                               uint32_t barrier) {
    uint4 value = {x, y, z, w};
    void *target = shared_at(to, 16);
    issue(target, &value, sizeof value, barrier_at(barrier));
    flights.back().read = true; /* a register */
}

} // namespace ptx

/* --- begin and end ---------------------------------------------------------------------------- */
void emulated::start_cluster() {
    cluster_arrived = 0;
    flights.clear();
    created.clear();
}
void emulated::thread_ends() {
    if (!my_warp().products.empty()) fail("ends with products that nobody waited for");
    forget_writes(me());
    complete_cluster();
}
void emulated::block_ended(block &b) {
    for (const flight &f : flights)
        if ((!f.read && in_shared(f.from) && &block_of(f.from) == &b) ||
            (in_shared(f.to) && &block_of(f.to) == &b))
            fail("the block ends while a bulk copy of its shared memory is in flight");
    for (const mbarrier *m : created)
        if (&block_of(m) == &b && m->magic == initialised && m->bytes < 0)
            fail("%d bytes came to an mbarrier that did not expect them", -(int)m->bytes);
}

/* --- wgmma ------------------------------------------------------------------------------------ */
/* Address of an element of an operand: 128-byte swizzle, the only one known here. Without
 * transposition k runs along 128-byte rows, 8 rows of mn are an atom, atoms are `stride` apart.
 * Transposed, 64 of mn run along a row, 8 rows of k are an atom; atoms are `stride` apart along k
 * and `leading` along mn. */
static const uint16_t *operand_at(uint64_t descriptor, bool turned, int mn, int k) {
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1)
        fail("a descriptor of another swizzle: %llx", (unsigned long long)descriptor);
    uint32_t at = turned ? start + (uint32_t)(mn / 64) * leading + (uint32_t)(k / 8) * stride +
                               (uint32_t)(k % 8 * 128 + mn % 64 * 2)
                         : start + (uint32_t)(mn / 8) * stride + (uint32_t)(mn % 8 * 128 + k * 2);
    at ^= (at >> 7 & 7) << 4;
    return (const uint16_t *)((unsigned char *)shared_at(first_address + at / 16 * 16, 16) +
                              at % 16);
}
static float element_of(const void *p, bool half) {
    uint16_t bits = *(const uint16_t *)p;
    return half ? ptx::of_half(bits) : of_bits<float>((uint32_t)bits << 16);
}
static std::vector<float> read_operand(const product &p, bool is_b, int first, int count) {
    std::vector<float> out((size_t)count * 16);
    for (int mn = 0; mn < count; mn++)
        for (int k = 0; k < 16; k++) {
            const uint16_t *at =
                operand_at(is_b ? p.b_at : p.a_at, is_b ? p.turned_b : p.turned_a, first + mn, k);
            check_fenced(at, 2, "wgmma");
            out[(size_t)(is_b ? k * count + mn : mn * 16 + k)] = element_of(at, p.half);
        }
    return out;
}
static void read_operands(product &p) {
    p.b_seen = read_operand(p, true, 0, p.n);
    if (!p.a_in_registers) {
        p.a_seen = read_operand(p, false, me()->warp % 4 * 16, 16);
        return;
    }
    p.a_seen.resize(16 * 16);
    for (int lane = 0; lane < warp_lanes; lane++)
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 2; k++) {
                uint16_t bits = (uint16_t)(p.lanes[(size_t)lane].a[j] >> 16 * k);
                int row = lane / 4 + j % 2 * 8, column = lane % 4 * 2 + k + j / 2 * 8;
                p.a_seen[(size_t)(row * 16 + column)] = element_of(&bits, p.half);
            }
}
static void carry_out(product &p) {
    std::vector<float> a = p.a_seen, b = p.b_seen;
    read_operands(p);
    if (memcmp(a.data(), p.a_seen.data(), a.size() * 4) != 0 ||
        memcmp(b.data(), p.b_seen.data(), b.size() * 4) != 0)
        fail("an operand of wgmma was overwritten before the product was waited for");
    std::vector<float> sum((size_t)p.n);
    for (int row = 0; row < 16; row++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < p.n; n++) sum[(size_t)n] += a[row * 16 + k] * b[k * p.n + n];
        for (int n = 0; n < p.n; n++) {
            float *to =
                p.lanes[(size_t)(row % 8 * 4 + n % 8 / 2)].acc[n / 8 * 4 + row / 8 * 2 + n % 2];
            *to = (p.added ? *to : 0) + sum[(size_t)n];
        }
    }
}
/* Accumulators of pending products are NaN; w.held has what they were. */
static void hide(warp &w, const product &p) {
    for (int lane = 0; lane < warp_lanes; lane++)
        for (int k = 0; k < p.n / 2; k++) {
            float *at = p.lanes[(size_t)lane].acc[k];
            if (bits_of(*at) == 0xffffffffu) continue; /* hidden, or was never written */
            w.held.push_back({at, *at});
            *at = of_bits<float>(0xffffffffu);
        }
}
static const product_form *next_product; /* of the lane that arrives last */
static void accept_product(meeting &) {
    warp &w = my_warp();
    if (w.live != UINT32_MAX) fail("wgmma of a warp that has lost lanes");
    if (!w.fenced) fail("wgmma without wgmma.fence before it");
    w.products.emplace_back();
    product &p = w.products.back();
    (product_form &)p = *next_product;
    for (int lane = 0; lane < warp_lanes; lane++) p.lanes.push_back(me()[lane - me()->lane].part);
    p.group = w.committed;
    read_operands(p);
    hide(w, p);
    w.issued++;
    wake_polling();
}
void ptx::issue_product(const product_form &form, const product_part &part) {
    me()->part = part;
    next_product = &form;
    uint32_t words[4] = {(uint32_t)form.b_at, (uint32_t)(form.b_at >> 32), (uint32_t)form.a_at,
                         (uint32_t)form.added};
    const meeting &m = meet("wgmma", accept_product, words, 4);
    for (int k = 0; k < 4; k++)
        if (m.in[laneid()][k] != m.in[0][k]) fail("lanes name different operands of wgmma");
}

/* Products of the groups before it end. */
static int stop_group;
static void end_products(meeting &) {
    warp &w = my_warp();
    for (auto &[at, value] : w.held) *at = value;
    w.held.clear();
    while (!w.products.empty() && w.products.front().group < stop_group) {
        carry_out(w.products.front());
        w.products.erase(w.products.begin());
    }
    for (const product &p : w.products) hide(w, p);
    w.fenced = false;
}

namespace ptx {

void wgmma_fence_sync_aligned() {
    meet(
        "wgmma.fence", [](meeting &) { my_warp().fenced = true; }, NULL, 0);
}
void wgmma_commit_group_sync_aligned() {
    meet(
        "wgmma.commit_group", [](meeting &) { my_warp().committed++; }, NULL, 0);
}
void wgmma_wait_group_sync_aligned(int left) {
    const warp *group = &me()->of->warps[me()->warp / 4 * 4];
    for (int k = 0; k < 4; k++)
        while (group[k].issued < my_warp().issued)
            poll("wgmma of the other warps of its warpgroup");
    stop_group = my_warp().committed - left;
    meet("wgmma.wait_group", end_products, NULL, 0);
}

} // namespace ptx
