/* sides_cuda: two streams beside the main one. */
#include "tensor/cuda/sides_cuda.cuh"

namespace wf_gpu {
namespace {

struct side_stream {
    cudaStream_t stream;
    cudaEvent_t done;
    bool busy;
    std::vector<range> reads, writes;
};
side_stream sides[n_sides];
cudaEvent_t forked;

bool sides_ready() {
    if (forked != NULL) return true;
    for (side_stream &side : sides)
        if (cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking) != cudaSuccess ||
            cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming) != cudaSuccess)
            return false;
    return cudaEventCreateWithFlags(&forked, cudaEventDisableTiming) == cudaSuccess;
}

void wait_for(side_stream &side, cudaStream_t waiter) {
    cudaEventRecord(side.done, side.stream);
    cudaStreamWaitEvent(waiter, side.done, 0);
}

bool conflicts(const side_stream &side, const std::vector<range> &reads,
               const std::vector<range> &writes) {
    for (const range &r : reads)
        if (meets(side.writes, r)) return true;
    for (const range &r : writes)
        if (meets(side.writes, r) || meets(side.reads, r)) return true;
    return false;
}

} // namespace

void rejoin(side_id id) {
    side_stream &side = sides[id];
    if (side.busy) wait_for(side, stream());
    side.busy = false;
    side.reads.clear();
    side.writes.clear();
}

launch_scope::launch_scope(int where, const std::vector<range> &reads,
                           const std::vector<range> &writes) {
    if (where != on_main && !sides_ready()) where = on_main;
    for (int k = 0; k < n_sides; k++) {
        if (k == where || !sides[k].busy || !conflicts(sides[k], reads, writes)) continue;
        if (where == on_main) rejoin((side_id)k);
        else wait_for(sides[k], sides[where].stream);
    }
    if (where == on_main) return;
    side_stream &side = sides[where];
    cudaEventRecord(forked, stream());
    cudaStreamWaitEvent(side.stream, forked, 0);
    side.busy = true;
    side.reads.insert(side.reads.end(), reads.begin(), reads.end());
    side.writes.insert(side.writes.end(), writes.begin(), writes.end());
    use_stream(side.stream);
}

} // namespace wf_gpu
