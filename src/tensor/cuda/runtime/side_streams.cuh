/* side_streams: ranges of memory, and streams that run beside the main stream.
 *
 * Row sequences of few rows, table sums and small operations of the encoders run on the first
 * streams, weight gradients on for_weights. for_partial_sums adds up the partial sums that an edge
 * kernel left in its scratch. The scratch may be reused before that is done: an operation that
 * takes it waits for the stream (run_in_bf16 in backend_cuda.cu), and a tensor in that memory is
 * found by its range. A launch on a side stream begins after everything that the main stream has so
 * far. Later work that touches its memory waits for that launch, not for launches after it. In a
 * capture side streams become branches of the graph; all of them must be rejoined before it
 * ends. */
#pragma once

#include "tensor/cuda/runtime/op_kernels.cuh"

#include <vector>

namespace wf_gpu {

struct range {
    const char *begin, *end;
};
inline bool meet(const range &a, const range &b) { return a.begin < b.end && b.begin < a.end; }
inline bool meets(const std::vector<range> &all, const range &r) {
    for (const range &other : all)
        if (meet(other, r)) return true;
    return false;
}
inline range rows_of(const float *data, int rows, int ld) {
    return range{(const char *)data, (const char *)(data + (size_t)rows * (size_t)ld)};
}
/* `cols` of each row; rows are `ld` apart */
inline range columns_of(const float *data, int rows, int ld, int cols) {
    if (rows == 0) return range{(const char *)data, (const char *)data};
    return range{(const char *)data, (const char *)(data + (size_t)(rows - 1) * (size_t)ld + cols)};
}
inline range data_range(const wf_tensor *t) { return rows_of(data_of(t), t->rows, t->ld); }
inline range grad_range(const wf_tensor *t) { return rows_of(grad_of(t), t->rows, t->ld); }

/* The streams before for_weights are equivalent: side_for chooses one. */
enum side_id { on_main = -1, for_graphs, for_weights = 6, for_partial_sums, n_sides };

/* The launches of one scope, for which the main stream has not waited yet. */
struct side_launch {
    cudaEvent_t done;
    std::vector<range> reads, writes;
};
struct side_stream {
    cudaStream_t stream;
    std::vector<side_launch> launches; /* in order */
    std::vector<cudaEvent_t> spare;    /* events to be used again */
    bool has_scratch;                  /* see lend_scratch */
};
/* The side streams of a device. */
struct side_streams {
    side_stream of[n_sides] = {};
    cudaEvent_t forked = NULL;
    ~side_streams();
};

/* While it lives, launches go to this stream, after everything that these reads and writes depend
 * on. */
struct launch_scope {
    int where;
    launch_scope(int where, const std::vector<range> &reads, const std::vector<range> &writes);
    launch_scope(const launch_scope &) = delete;
    ~launch_scope();
};
/* A stream before for_weights: one that such a launch would have to wait for, else an idle one. */
int side_for(const std::vector<range> &reads, const std::vector<range> &writes);
/* The main stream waits for everything on a side stream. */
void rejoin(side_id side);
/* The last launch on this stream works in scratch of an operation that has returned. rejoin_scratch
 * waits for such launches, before the next operation that takes scratch or whose writes are not
 * known. */
void lend_scratch(side_id side);
void rejoin_scratch();

} // namespace wf_gpu
