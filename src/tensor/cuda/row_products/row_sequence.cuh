/* row_sequence: a list of operations on matrices with the same number of rows.
 *
 * A row of a result depends on the same row of earlier results and on rows of tables that were
 * complete before the launch. Few rows go through all operations in one launch (few_rows.cu), many
 * rows operation by operation (many_rows.cu). Results are written to memory in float, as the tape
 * needs them. In one launch a result that a later product takes as its left operand is also kept in
 * shared memory as bf16: a kept operand. Products read their other left operands from memory.
 *
 *   load             out (+)= x; out NULL: x is only kept
 *   norm             out = LN(x), modulated by shift and scale at table[map] unless table is NULL
 *   norm_back        out (+)= gradient by `other`, the norm's input; x is the gradient of its
 *                    output; stats = mean and 1 / deviation
 *   activation       out = f(x)
 *   activation_back  out (+)= x * f'(other)
 *   residual         out (+)= x + (1 + table[map]) * other; table NULL: x + other
 *   residual_back    out (+)= (1 + table[map]) * x
 *   mean_back        out (+)= x[g] / rows of g, for the graph g of the row by `start`
 *   product          v = sum of left operands times weights [+ out, when `add`] + scale * bias
 *                    + table[map], then depending on `after`:
 *                        row_load             out = v
 *                        row_activation       raw = v, out = f(v)
 *                        row_residual         raw = v, out = x + (1 + gate[gate_map]) * v
 *                        row_activation_back  out (+)= v * f'(other); `add` belongs to this sum
 * raw NULL: v is not stored. Columns after the last are zero (C3). */
#pragma once

#include "tensor/cuda/runtime/op_kernels.cuh"

#include <cuda_bf16.h>

namespace wf_gpu {

enum row_op_kind {
    row_load,
    row_norm,
    row_norm_back,
    row_activation,
    row_activation_back,
    row_residual,
    row_residual_back,
    row_mean_back,
    row_product
};

/* A left operand of k columns times a weight: (n, k) with rows `ld` apart, or (k, n) for a
 * transposed operation. Weights are bf16 copies with rows padded to 16 by zeros. kept: the
 * operand's place in shared memory; -1: it is in memory at x, rows ldx apart, padded to 16. */
struct product_term {
    const __nv_bfloat16 *w;
    const float *x;
    int ld, k, kept, ldx;
};

enum { most_row_ops = 14, most_terms = 4, widest_norm = 512 };

struct row_op {
    int kind, after, act, cols;
    int kept; /* first element of the result's kept copy; -1: none */
    int n_terms, graphs;
    bool transposed, add;
    bool aligned; /* bias, table, gate and x can be read 16 bytes at a time */
    product_term terms[most_terms];
    const float *x, *other, *table, *gate, *bias, *scale;
    float *out, *raw, *stats;
    int ldx, ld_other, ld_table, ld_gate, ld_out, ld_raw;
    const uint32_t *map, *gate_map, *start;
};

struct row_sequence {
    int rows, count;
    int kept_elements; /* of shared memory */
    bool apart;        /* products are independent: blocks may divide their columns */
    row_op ops[most_row_ops];
};

/* Rows of a block. A kept operand of c columns takes sequence_rows * kept_pitch(c) elements. Its
 * 16-byte words are permuted within each row so that eight rows of a column are in different
 * banks. */
enum { sequence_rows = 16 };
__host__ __device__ inline int kept_pitch(int cols) { return (cols + 63) / 64 * 64; }
/* Elements that all kept operands together may have on this device. */
int most_kept_elements();
/* Few rows are those of graphs, not of nodes. Such a sequence is bound by latency and leaves the
 * device free for other work. */
enum { few_rows_most = 2048 };
inline bool few_rows(int rows) { return rows <= few_rows_most; }

/* All operations in one launch. */
void start_sequence(const row_sequence &c);

/* to (rows, columns padded to 16) = w (rows, cols), which is not padded. */
struct weight_copy {
    const float *w;
    __nv_bfloat16 *to;
    int rows, cols;
};
void pack_weight(const weight_copy &copy);
/* A list in device memory; no copy has more than pack_rows rows. */
enum { pack_rows = 32 };
void pack_weights(const weight_copy *copies, int count);

} // namespace wf_gpu
