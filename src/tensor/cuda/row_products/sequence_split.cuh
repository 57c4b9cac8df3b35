/* sequence_split: chains while they are put together, and how they are launched: step by step, or in one or few launches.
 *
 * Many rows fill the device at every step (many_rows.cu), and what a step hands on to the next passes through L2.
 * Few rows are few blocks, and a chain's time is that of one block: its products one behind the other. A tail of products that
 * have nothing to do with each other, and the parts of a deep sum of products, become chains of their own, whose products
 * blocks take one each (`apart`). */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_SEQUENCE_SPLIT_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_SEQUENCE_SPLIT_CUH

#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {

/* A matrix in shared memory during steps first .. last. Steps name slots by index until the chain is launched. */
struct slot {
    const float *matrix;
    int ld, cols;
    int size, first, last;
    bool current; /* holds what memory holds */
    int at;
};

struct open_chain {
    chain c;
    std::vector<slot> slots;
    std::vector<range> rows, tables, writes; /* read by row, read across rows, written */
};

inline bool in_whole_rows(const float *data, int ld) {
    return (uintptr_t)data % 16 == 0 && ld % 16 == 0;
}
/* Places for the slots: largest first, each as low as those it meets in time allow. Returns what they take together. */
int place_slots(std::vector<slot> &slots);
/* Slots by place instead of index, and what lies in whole fours: ready to be launched. */
void finish_steps(open_chain &chain);

/* Of sums of products over many columns, their parts go to `parts`, to be launched before the chain, which then only adds them
 * up, in order. They lie in scratch; without it nothing is split. Each part is rounded: the last bits of such a gradient depend
 * on whether its rows were few. */
void split_deep(open_chain &chain, open_chain &parts, wf_arena *arena);
/* A tail of four products or more goes to `tail`, to be launched behind the chain; it reads from memory what they multiply. */
void split_tail(open_chain &chain, open_chain &tail);

/* A chain of many rows as launches one behind the other, of products that are not tied to each other or of steps between them;
 * none when a product cannot read its left operand from memory. */
std::vector<chain> split_steps(const open_chain &chain);

} // namespace wf_gpu
#endif
