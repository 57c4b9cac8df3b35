/* chain_cuda: a chain of steps on the rows of one height, in one launch.
 *
 * Each step's row depends on the same row of what the steps before it gave, and on rows of tables that were finished before
 * the launch. A block takes a tile of rows through all steps. Results lie in float in memory, as the tape wants them; those
 * that a later product of the chain takes as its left operand are kept as bf16 in shared memory too, in a slot.
 *
 *   load           slot = x
 *   norm           out = LN(x) modulated: shift and scale at table[map], NULL: plain
 *   norm_back      out (+)= the gradient by `other` (the norm's input) of x, the norm's gradient; stats = mean, 1/deviation
 *   unit           out = unit(x)
 *   unit_back      out (+)= x * unit'(other)
 *   residual       out = x + (1 + table[map]) * other;  table NULL: x + other
 *   residual_back  out (+)= (1 + table[map]) * x
 *   mean_back      out (+)= x[g] / rows of g, for the graph g of the row by `start`
 *   product        v = sum of slots times weights [+ out, when `add`] + scale * bias + table[map], then by `after`:
 *                      chain_load      out = v
 *                      chain_unit      raw = v, out = unit(v)
 *                      chain_residual  raw = v, out = x + (1 + gate[gate_map]) * v
 *                      chain_unit_back out (+)= v * unit'(other), and `add` is of this sum
 * raw NULL: not kept. Columns behind the last are zero (C3). */
#ifndef WF_TENSOR_CUDA_CHAIN_CUDA_CUH
#define WF_TENSOR_CUDA_CHAIN_CUDA_CUH

#include "tensor/cuda/steps_cuda.cuh"

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

/* A slot (columns k) times a weight: (n, k) rows of `ld`, or (k, n) when the step is transposed. Copies in bf16 whose rows
 * are padded with zeros to 16. */
struct chain_part {
    const __nv_bfloat16 *w;
    int ld, k, slot;
};

enum { chain_steps = 14, chain_parts = 4 };

struct chain_step {
    int kind, after, unit, cols;
    int slot; /* first element of the result's place in shared memory, -1: nowhere */
    int parts, graphs;
    bool transposed, add;
    bool aligned; /* what is read beside tensors, or x of a load, lies in whole fours */
    chain_part part[chain_parts];
    const float *x, *other, *table, *gate, *bias, *scale;
    float *out, *raw, *stats;
    int ldx, ld_other, ld_table, ld_gate, ld_out, ld_raw;
    const uint32_t *map, *gate_map, *start;
};

struct chain {
    int rows, count;
    int slots;  /* elements of shared memory for slots, of one tile */
    bool apart; /* products are of loaded matrices alone: blocks may take one each */
    chain_step step[chain_steps];
};

/* Rows of a tile; a slot of c columns takes tile * slot_pitch(c) elements. */
inline int chain_tile(int rows) { return rows <= 2048 ? 16 : 64; }
__host__ __device__ inline int slot_pitch(int cols) { return (cols + 15) / 16 * 16 + 8; }
/* Elements that all slots together may take, beside the ring of weights. */
enum { chain_most_slots = 86 * 1024 };

/* Tiles of weights that a product takes, and how many a chain may have. */
enum { chain_most_tiles = 128 };
inline int product_tiles(int k, int n) { return (k + 63) / 64 * ((n + 63) / 64); }
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
