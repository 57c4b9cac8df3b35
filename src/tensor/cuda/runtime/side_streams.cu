/* side_streams: streams beside the main one. */
#include "tensor/cuda/runtime/side_streams.cuh"
#include "tensor/cuda/runtime/runtime.cuh"

#include <assert.h>

namespace wf_gpu {
namespace {

side_stream &side_of(int id) { return here().sides->of[id]; }

bool make_event(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess;
}

bool side_ready(side_stream &side) {
    cudaEvent_t &forked = here().sides->forked;
    if (forked == NULL && !make_event(&forked)) return false;
    stream_priority priority = &side >= &side_of(for_weights) ? stream_may_wait : stream_is_short;
    if (side.stream == NULL && !make_stream(&side.stream, priority)) return false;
    cudaEvent_t event;
    if (side.spare.empty()) {
        if (!make_event(&event)) return false;
        side.spare.push_back(event);
    }
    return true;
}

bool conflicts(const side_launch &launch, const std::vector<range> &reads,
               const std::vector<range> &writes) {
    for (const range &r : reads)
        if (meets(launch.writes, r)) return true;
    for (const range &r : writes)
        if (meets(launch.writes, r) || meets(launch.reads, r)) return true;
    return false;
}

/* The number of launches up to the last one that the new launch must not overtake. */
size_t in_the_way(const side_stream &side, const std::vector<range> &reads,
                  const std::vector<range> &writes) {
    size_t count = side.launches.size();
    while (count > 0 && !conflicts(side.launches[count - 1], reads, writes)) count--;
    return count;
}

/* The main stream waits for the first `count` launches, which are then forgotten. */
void settle(side_stream &side, size_t count) {
    if (count == 0) return;
    cudaStreamWaitEvent(stream(), side.launches[count - 1].done, 0);
    plain_next(stream());
    for (size_t k = 0; k < count; k++) side.spare.push_back(side.launches[k].done);
    side.launches.erase(side.launches.begin(), side.launches.begin() + (long)count);
}

} // namespace

side_streams::~side_streams() {
    for (side_stream &side : of) {
        for (side_launch &launch : side.launches) side.spare.push_back(launch.done);
        for (cudaEvent_t event : side.spare) cudaEventDestroy(event);
        if (side.stream != NULL) cudaStreamDestroy(side.stream);
    }
    if (forked != NULL) cudaEventDestroy(forked);
}

int side_for(const std::vector<range> &reads, const std::vector<range> &writes) {
    int idle = for_graphs;
    for (int k = for_weights; k-- > for_graphs;) {
        if (in_the_way(side_of(k), reads, writes) > 0) return k;
        if (side_of(k).launches.empty()) idle = k;
    }
    return idle;
}

void rejoin(side_id id) { settle(side_of(id), side_of(id).launches.size()); }

void lend_scratch(side_id id) { side_of(id).has_scratch = true; }

void rejoin_scratch() {
    for (int k = 0; k < n_sides; k++) {
        if (side_of(k).has_scratch) rejoin((side_id)k);
        side_of(k).has_scratch = false;
    }
}

launch_scope::launch_scope(int side, const std::vector<range> &reads,
                           const std::vector<range> &writes)
    : where(side) {
    assert(here().side == NULL); /* scopes are not nested */
    if (where != on_main && !side_ready(side_of(where))) where = on_main;
    for (int k = 0; k < n_sides; k++) {
        size_t count = k == where ? 0 : in_the_way(side_of(k), reads, writes);
        if (count == 0) continue;
        if (where == on_main) settle(side_of(k), count);
        else cudaStreamWaitEvent(side_of(where).stream, side_of(k).launches[count - 1].done, 0);
    }
    if (where == on_main) return;
    side_stream &own = side_of(where);
    cudaEventRecord(here().sides->forked, stream());
    cudaStreamWaitEvent(own.stream, here().sides->forked, 0);
    plain_next(own.stream);
    own.launches.push_back(side_launch{own.spare.back(), reads, writes});
    own.spare.pop_back();
    use_stream(own.stream);
}

launch_scope::~launch_scope() {
    use_stream(NULL);
    if (where != on_main)
        cudaEventRecord(side_of(where).launches.back().done, side_of(where).stream);
}

} // namespace wf_gpu
