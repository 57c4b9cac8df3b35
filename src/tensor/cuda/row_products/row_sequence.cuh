/* row_sequence: a chain of steps on the rows of one height.
 *
 * Each step's row depends on the same row of what the steps before it gave, and on rows of tables that were finished before
 * the launch. Few rows go through all steps in one launch (few_rows.cu), many step by step (many_rows.cu). Results lie in float
 * in memory, as the tape wants them. In one launch those that a later product of the chain takes as its left operand are kept
 * as bf16 in shared memory too, in a slot. Other left operands are read from memory by the product itself.
 *
 *   load           out (+)= x; out NULL: for its slot alone
 *   norm           out = LN(x) modulated: shift and scale at table[map], NULL: plain
 *   norm_back      out (+)= the gradient by `other` (the norm's input) of x, the norm's gradient; stats = mean, 1/deviation
 *   unit           out = unit(x)
 *   unit_back      out (+)= x * unit'(other)
 *   residual       out (+)= x + (1 + table[map]) * other;  table NULL: x + other
 *   residual_back  out (+)= (1 + table[map]) * x
 *   mean_back      out (+)= x[g] / rows of g, for the graph g of the row by `start`
 *   product        v = sum of left operands times weights [+ out, when `add`] + scale * bias + table[map], then by `after`:
 *                      chain_load      out = v
 *                      chain_unit      raw = v, out = unit(v)
 *                      chain_residual  raw = v, out = x + (1 + gate[gate_map]) * v
 *                      chain_unit_back out (+)= v * unit'(other), and `add` is of this sum
 * raw NULL: not kept. Columns behind the last are zero (C3). */
#ifndef WF_TENSOR_CUDA_ROW_PRODUCTS_ROW_SEQUENCE_CUH
#define WF_TENSOR_CUDA_ROW_PRODUCTS_ROW_SEQUENCE_CUH

#include "tensor/cuda/runtime/op_kernels.cuh"

#include <cuda_bf16.h>

namespace wf_gpu {

enum chain_kind {
    chain_load,
    chain_norm,
    chain_norm_back,
    chain_unit,
    chain_unit_back,
    chain_residual,
    chain_residual_back,
    chain_mean_back,
    chain_product
};

/* A left operand of k columns times a weight: (n, k) rows of `ld`, or (k, n) when the step is transposed. Weights are copies
 * in bf16 whose rows are padded with zeros to 16. The operand lies in a slot, or, slot < 0, in memory: rows of ldx, whole
 * sixteens. */
struct chain_part {
    const __nv_bfloat16 *w;
    const float *x;
    int ld, k, slot, ldx;
};

enum { chain_steps = 14, chain_parts = 4, chain_norm_columns = 512 };

struct chain_step {
    int kind, after, unit, cols;
    int slot; /* first element of the result's place in shared memory, -1: nowhere */
    int parts, graphs;
    bool transposed, add;
    bool aligned; /* bias, table, gate and x lie in whole fours */
    chain_part part[chain_parts];
    const float *x, *other, *table, *gate, *bias, *scale;
    float *out, *raw, *stats;
    int ldx, ld_other, ld_table, ld_gate, ld_out, ld_raw;
    const uint32_t *map, *gate_map, *start;
};

struct chain {
    int rows, count;
    int slots;  /* elements of shared memory for the slots */
    bool apart; /* products do not depend on each other: blocks may take some columns of one each */
    chain_step step[chain_steps];
};

/* Rows of a team of warps. A slot of c columns takes chain_rows * slot_pitch(c) elements: lines of 128 bytes, whose sixteenths of a
 * row are exchanged so that eight rows of a column lie in different banks. */
enum { chain_rows = 16 };
__host__ __device__ inline int slot_pitch(int cols) { return (cols + 63) / 64 * 64; }
/* Elements that all slots together may take on this device. */
int chain_most_slots();
/* Rows of graphs, not of nodes: for such chains time is latency, and other work can go on beside them. */
enum { few_rows_most = 2048 };
inline bool few_rows(int rows) { return rows <= few_rows_most; }

/* All steps in one launch. */
void chain_launch(const chain &c);

/* to (rows, padded to 16) = w (rows, cols), which has no padding. */
struct pack_job {
    const float *w;
    __nv_bfloat16 *to;
    int rows, cols;
};
void chain_pack(const pack_job &job);
/* Many, from a list in device memory, none of more than pack_rows rows. */
enum { pack_rows = 32 };
void chain_pack_all(const pack_job *jobs, int count);

} // namespace wf_gpu
#endif
