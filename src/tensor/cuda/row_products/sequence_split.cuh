/* sequence_split: row sequences under construction, and how they are cut into launches.
 *
 * Many rows fill the device at every operation, so these are launched one after the other
 * (many_rows.cu); results pass through L2. Few rows are few blocks, and the run time of a sequence
 * is that of one block, whose products run one after the other. Independent products at the end,
 * and the terms of a long product, become sequences of their own whose products are divided among
 * blocks. */
#pragma once

#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/runtime/side_streams.cuh"

namespace wf_gpu {

/* A matrix kept in shared memory during operations first .. last. Operations name it by its index
 * until the sequence is launched. */
struct kept_operand {
    const float *matrix;
    int ld, cols;
    int size, first, last;
    bool current; /* same values as in memory */
    int at;
};

struct open_sequence {
    row_sequence c;
    std::vector<kept_operand> kept;
    std::vector<range> rows, tables, writes; /* read in the own row, read in any row, written */
};

inline bool in_whole_rows(const float *data, int ld) {
    return (uintptr_t)data % 16 == 0 && ld % 16 == 0;
}
/* Chooses places in shared memory: largest first, each as low as possible beside those that live at
 * the same time. Returns the elements that all take together. */
int place_kept(std::vector<kept_operand> &kept);
/* Replaces indices of kept operands by places and sets the alignment flags. Then it can be
 * launched. */
void finish_ops(open_sequence &sequence);

/* Splits products over many columns of k into partial products, one for each term. These go to
 * `parts`, which is launched first; the sequence then adds them in order. Without scratch nothing
 * is split. Partial products are rounded, so the last bits of such a gradient depend on whether its
 * rows were few. */
void split_deep(open_sequence &sequence, open_sequence &parts, wf_arena *arena);
/* Moves a tail of four or more independent products to `tail`, to be launched after the sequence;
 * it reads its operands from memory. */
void split_tail(open_sequence &sequence, open_sequence &tail);

/* Cuts a sequence of many rows into launches: of independent products, or of other operations.
 * Empty: a product cannot read its left operand from memory. */
std::vector<row_sequence> split_by_op(const open_sequence &sequence);

} // namespace wf_gpu
