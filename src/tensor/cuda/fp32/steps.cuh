/* steps: what the CUDA operations are made of. Each step is one or two launches on the backend's stream.
 *
 * Matrices are row-major, rows `ld` apart. Outputs of a step are aligned to 16 bytes and padded to 4 columns, inputs need
 * not be (weights are views into the flat parameters). A step that takes scratch returns false when there is none.
 * each_kernel and warps_kernel are a thread an element, a warp a row, and bound by bandwidth or, when small, by the launch: measured
 * times are with the operations that use them (row_ops.cu, edge_params.cu, lean_attention.cu). */
#ifndef WF_TENSOR_CUDA_FP32_STEPS_CUH
#define WF_TENSOR_CUDA_FP32_STEPS_CUH

extern "C" {
#include "tensor/cuda/backend_cuda.h"
#include "tensor/tensor.h"
}
#include "tensor/cuda/runtime/launch.cuh"

namespace wf_gpu {

#define X(name, tolerance)                                                                         \
    bool name##_forward(const wf_op *op, wf_arena *arena);                                         \
    bool name##_backward(const wf_op *op, wf_arena *arena);
#include "tensor/ops.def"
#undef X

/* True when nothing has gone wrong so far. */
inline bool launched() { return cudaPeekAtLastError() == cudaSuccess; }

inline float *data_of(const wf_tensor *tensor) { return (float *)tensor->data; }
inline float *grad_of(const wf_tensor *tensor) { return (float *)tensor->grad; }
inline bool wanted(const wf_tensor *tensor) { return tensor != NULL && tensor->wants; }
inline float *scratch(wf_arena *arena, size_t count) {
    return (float *)wf_arena_alloc(arena, count * sizeof(float));
}
/* (rows, pad(cols)) of scratch. */
inline float *scratch_rows(wf_arena *arena, int rows, int cols) {
    return scratch(arena, (size_t)rows * (size_t)wf_pad(cols));
}

/* --- products -------------------------------------------------------------------------------------------- */
/* A (m, k) and B, row-major. */
struct operands {
    const float *a;
    int lda;
    const float *b;
    int ldb;
    int m, n, k;
};

/* c = [c +] x + scale[r] * bias + table[map[r]]; absent parts NULL. */
struct into_linear {
    float *c;
    int ldc;
    bool add;
    const float *bias, *scale, *table;
    int ld_table;
    const uint32_t *map;
};
/* y = unit(x + a[index_a[r]] + b[index_b[r]]), index NULL: row 0; slope: unit', or NULL. */
struct into_unit {
    int unit;
    float *y, *slope;
    int ld;
    const float *a;
    int lda;
    const uint32_t *index_a;
    const float *b;
    int ldb;
    const uint32_t *index_b;
};
/* out = in + (1 + gate[graph[r]]) * (x + bias); gate NULL: in + x + bias. in may be out. */
struct into_residual {
    const float *in;
    float *out;
    int ld;
    const float *bias, *gate;
    int ld_gate;
    const uint32_t *graph;
};
/* c *= x */
struct into_product {
    float *c;
    int ldc;
};

/* x = A B' for B (n, k): the forward direction of a weight (n, k). */
void forward_product(const operands &o, const into_linear &to);
void forward_product(const operands &o, const into_unit &to);
void forward_product(const operands &o, const into_residual &to);
/* x = A B for B (k, n): the gradient by a layer's input. */
void input_product(const operands &o, const into_linear &to);
void input_product(const operands &o, const into_product &to);
/* w (m, n) += A' B for A (rows, m), B (rows, n); w has no padding. */
bool weight_product(float *w, const float *a, int lda, const float *b, int ldb, int rows, int m,
                    int n, wf_arena *arena);

/* --- sums over rows ---------------------------------------------------------------------------------------- */
struct sum_target {
    float *data;
    int ld;
    bool set;  /* overwrite; else add */
    bool mean; /* divide by the number of rows */
};
/* target[0] from all rows of factor[r] * x[r]; factor may be NULL. */
bool sum_rows(const float *x, const float *factor, int ld, int rows, int cols, const sum_target &to,
              wf_arena *arena);
/* target[t] from the rows start[t] .. start[t+1]-1 of x * y; y may be NULL. */
bool sum_ranges(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *start,
                int targets, const sum_target &to, wf_arena *arena);
/* target[t] from the rows with map[r] == t; y may be NULL. */
bool sum_mapped(const float *x, const float *y, int ld, int rows, int cols, const uint32_t *map,
                int targets, const sum_target &to, wf_arena *arena);

/* --- layer norm -------------------------------------------------------------------------------------------- */
/* hat = LN(x), y = hat * (1 + scale[map[r]]) + shift[map[r]]; shift at modulation, scale `cols` behind it.
 * hat, rho, y may be NULL; modulation NULL: y = hat. */
struct norm_step {
    const float *x;
    int rows, cols, ld; /* of x, y and hat */
    const float *modulation;
    int ld_modulation;
    const uint32_t *map;
    float *y, *hat, *rho;
};
void norm_rows(const norm_step &step);
/* dy (+= share of the gradient of a mean over the graph's rows, stored back), then dx += the gradient by x, and those of
 * the modulation are left to the caller: sums of dy and of dy * hat. */
struct norm_back_step {
    float *dy;
    const float *hat, *rho;
    int rows, cols, ld;
    const float *modulation;
    int ld_modulation;
    const uint32_t *map;
    const float *mean_grad; /* (B, ld_mean) or NULL */
    int ld_mean;
    const uint32_t *start;
    float *dx; /* NULL: not wanted */
    int ld_dx;
};
void norm_rows_backward(const norm_back_step &step);

/* --- edges ------------------------------------------------------------------------------------------------- */
/* y = unit(p + a[index_a] + b[index_b]), slope. */
void table_units(const float *p, int rows, int cols, const into_unit &to);

/* For every node: `in` summed over the edges that enter it, `out` over those that leave it, to_in and to_out set or added
 * to (equal ones: one sum). Weights per edge may be NULL; degree not NULL: the sums are divided by it. */
struct node_sum_step {
    const wf_part *part;
    const float *in, *out;
    int ld, cols;
    const float *weight_in, *weight_out;
    const float *degree;
    float *to_in, *to_out;
    int ld_to;
    bool add;
};
void node_sums(const node_sum_step &step);

/* Attention. A direction: messages y (E, ld), the vector v of their logits, who receives them. */
struct direction {
    const float *y;
    int ld, cols;
    const float *v;
    const uint32_t *receiver;
    float *weight, *dlogit; /* [E] */
};
/* Softmax over all messages entering a node; `in` goes to dst, `out` to src. Saves max and total [N] each. */
void softmax_weights(const wf_part *part, const direction &in, const direction &out, float *saved);
/* weight and dlogit of a direction again, for backward: d = weight * (dsum[receiver].y - along[receiver]). */
void softmax_backward(const wf_part *part, const direction &d, const float *saved,
                      const float *dsum, int ld_dsum, const float *along);
/* along[n] = [along[n] +] a[n].b[n] */
void row_products(const float *a, const float *b, int ld, int rows, int cols, float *along,
                  bool add);

/* slope *= sum over directions of weight[r] * dsum[receiver[r]] + dlogit[r] * v; weight NULL: 1, or 1 / degree. */
struct pull {
    const float *dsum;
    const uint32_t *receiver;
    const float *weight, *dlogit, *v, *degree;
};
void pull_messages(float *slope, int rows, int ld, const pull *pulls, int count, int ld_dsum);

/* out = (1 + gate[graph[r]]) * x */
void gate_rows(const float *x, float *out, int rows, int cols, int ld, const float *gate,
               int ld_gate, const uint32_t *graph);
/* out += x, whole rows */
void add_rows(float *out, const float *x, size_t count);

/* --- inside kernels ------------------------------------------------------------------------------------------ */
#ifdef __CUDACC__
enum { threads_each = 256 };

inline unsigned blocks_for(size_t count, size_t each) {
    return (unsigned)((count + each - 1) / each);
}

/* f(row, col) for all of (rows, cols), neighbouring threads along a row. */
template <class F> __global__ void each_kernel(F f, int rows, int cols) {
    follow();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (row < rows && col < cols) f(row, col);
}
template <class F> void each(F f, int rows, int cols) {
    if (rows <= 0 || cols <= 0) return;
    unsigned across = 1;
    while (across < (unsigned)cols && across < threads_each) across *= 2;
    dim3 block(across, threads_each / across);
    dim3 grid(blocks_for((size_t)rows, block.y), blocks_for((size_t)cols, across));
    start_kernel(each_kernel<F>, grid, block, 0, f, rows, cols);
}

/* f(row, lane) with a warp for every row. */
template <class F> __global__ void warps_kernel(F f, int rows) {
    follow();
    int row = (int)((size_t)blockIdx.x * (threads_each / 32) + threadIdx.x / 32);
    if (row < rows) f(row, (int)(threadIdx.x % 32));
}
template <class F> void each_warp(F f, int rows) {
    if (rows > 0)
        start_kernel(warps_kernel<F>, blocks_for((size_t)rows, threads_each / 32), threads_each, 0,
                     f, rows);
}

/* The same tree in every lane: all have the sum. */
__device__ inline float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ inline float warp_dot(const float *x, const float *y, int cols, int lane) {
    float sum = 0;
    for (int c = lane; c < cols; c += 32) sum += x[c] * y[c];
    return warp_sum(sum);
}

/* tanh-GELU is x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), SiLU x * sigmoid(x). */
__device__ inline float smooth_unit(int unit, float x, float *slope) {
    const float linear = 1.5957691216057308f, cubic = 0.07135481627260025f;
    float square = x * x;
    bool gelu = unit == WF_UNIT_GELU;
    float inner = gelu ? x * (linear + cubic * square) : x;
    float inner_slope = gelu ? linear + 3 * cubic * square : 1;
    float s = __fdividef(1, 1 + expf(-inner)); /* within 2 ulp; 0 behind overflow */
    *slope = s + x * s * (1 - s) * inner_slope;
    return x * s;
}
#endif

} // namespace wf_gpu
#endif
