/* side_streams: ranges of memory, and streams beside the main one.
 *
 * Chains of few rows, sums and the encoders' small operations run on the first, weight gradients on the last but one; on the last
 * what adds up the parts that an edge kernel left in its scratch. That scratch is given back meanwhile: who takes it as scratch
 * again waits for the side (run_bf16 in backend_cuda.cu), who gets it as a tensor meets its range. Each launch on a side begins
 * behind what the main stream has so far; whoever touches what it reads or writes waits for that launch, not for those behind it.
 * Under capture they become branches of the graph; all must have been rejoined when it ends. */
#ifndef WF_TENSOR_CUDA_RUNTIME_SIDE_STREAMS_CUH
#define WF_TENSOR_CUDA_RUNTIME_SIDE_STREAMS_CUH

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
/* `cols` of each row, which are `ld` apart */
inline range columns_of(const float *data, int rows, int ld, int cols) {
    if (rows == 0) return range{(const char *)data, (const char *)data};
    return range{(const char *)data, (const char *)(data + (size_t)(rows - 1) * (size_t)ld + cols)};
}
inline range data_range(const wf_tensor *t) { return rows_of(data_of(t), t->rows, t->ld); }
inline range grad_range(const wf_tensor *t) { return rows_of(grad_of(t), t->rows, t->ld); }

/* Those before for_weights are alike: side_for chooses among them. */
enum side_id { on_main = -1, for_graphs, for_weights = 6, for_parts, n_sides };

/* Launches of one scope, for which the main stream has not waited. */
struct side_launch {
    cudaEvent_t done;
    std::vector<range> reads, writes;
};
struct side_stream {
    cudaStream_t stream;
    std::vector<side_launch> launches; /* in order */
    std::vector<cudaEvent_t> spare;    /* events of those that were waited for */
    bool has_scratch;                  /* see lend_scratch */
};
/* Those of a device. */
struct side_streams {
    side_stream of[n_sides] = {};
    cudaEvent_t forked = NULL;
    ~side_streams();
};

/* While it lives, launches go to a stream on which these reads and writes are in order. */
struct launch_scope {
    int where;
    launch_scope(int where, const std::vector<range> &reads, const std::vector<range> &writes);
    launch_scope(const launch_scope &) = delete;
    ~launch_scope();
};
/* The side before for_weights that such launches would have to wait for, or one that has nothing to do. */
int side_for(const std::vector<range> &reads, const std::vector<range> &writes);
/* The main stream waits for all of a side. */
void rejoin(side_id side);
/* What was last launched on a side works in the scratch of an operation that has returned: rejoin_scratch waits for it,
 * before the next operation that takes scratch or does not say what it writes. */
void lend_scratch(side_id side);
void rejoin_scratch();

} // namespace wf_gpu
#endif
