/* edge_params: from flat parameters w, v (P) to features of edges and folded rows, and back.
 * Formulas: tape.h.
 *
 * The parameters of an edge (the first one, and how many coefficients) are found in the sorted
 * table of blocks, once per operation and edge. All passes are bound by bandwidth and
 * latency. */
#include "tensor/cuda/fp32/row_sums.cuh"

namespace wf_gpu {
namespace {

struct edge_place {
    int param, coef;
};

struct place_finder {
    const wf_batch_block *blocks;
    int count;
    size_t first_edge, first_param;
    __device__ edge_place operator()(int edge) const {
        size_t at = first_edge + (size_t)edge;
        int low = 0, high = count;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (blocks[middle].edge0 <= at) low = middle;
            else high = middle;
        }
        const wf_batch_block &block = blocks[low];
        size_t param = block.param0 - first_param + (at - block.edge0) * (size_t)block.coef;
        return edge_place{(int)param, block.coef};
    }
};
place_finder finder_of(const wf_part *part) {
    return place_finder{part->blocks, part->n_blocks, part->first_edge, part->first_param};
}
struct find_place {
    place_finder find;
    edge_place *places;
    __device__ void operator()(int edge, int) const { places[edge] = find(edge); }
};

edge_place *places_of(const wf_part *part, wf_arena *arena) {
    edge_place *places =
        (edge_place *)wf_arena_alloc(arena, ((size_t)part->n_edges + 1) * sizeof *places);
    if (places != NULL) each(find_place{finder_of(part), places}, part->n_edges, 1);
    return places;
}

enum { sizes = 1 + WF_KERNELS }; /* of edges: single values, then kernels */

/* Which of the sizes an edge of `coef` coefficients has; sizes[0] is 1. */
__device__ int size_of(const int coefs[sizes], int coef) {
    int which = 0;
    for (int k = 1; k < sizes; k++)
        if (coef > 1 && coefs[k] == coef) which = k;
    return which;
}

/* A w + b for single values and for kernels. */
struct value_code {
    const float *a[sizes], *b[sizes];
    int coefs[sizes];
    const float *w;
    const edge_place *places;

    __device__ float operator()(int edge, int c) const {
        edge_place place = places[edge];
        int which = size_of(coefs, place.coef);
        float sum = b[which] == NULL ? 0 : b[which][c];
        const float *matrix = a[which] + (size_t)c * place.coef, *value = w + place.param;
        for (int k = 0; k < place.coef; k++) sum += matrix[k] * value[k];
        return sum;
    }
};
value_code code_of(const wf_op *op, const edge_place *places) {
    value_code code = {};
    code.w = data_of(op->in[0]);
    code.places = places;
    for (int k = 0; k < sizes; k++) {
        const wf_tensor *a = op->in[1 + 2 * k], *b = op->in[2 + 2 * k];
        code.coefs[k] = a == NULL ? 0 : a->cols;
        code.a[k] = a == NULL ? NULL : data_of(a);
        code.b[k] = b == NULL ? NULL : data_of(b);
    }
    return code;
}

struct feature_element {
    value_code code;
    int mode, cols, ld;
    float *y;
    __device__ void operator()(int edge, int col) const {
        float value = 0;
        if (col < cols) {
            int half = cols / 2;
            bool fourier = mode == WF_CODE_FOURIER;
            value = code(edge, fourier ? col % half : col);
            if (mode == WF_CODE_SINE) value = sinf(value);
            if (fourier) {
                /* Subtracts whole periods first: the phase may be hundreds of radians. */
                float phase = 6.283185307179586f * (value - floorf(value));
                value = col < half ? sinf(phase) : cosf(phase);
            }
        }
        y[(size_t)edge * ld + col] = value;
    }
};

/* g = gradient by A w + b */
struct feature_back_element {
    value_code code;
    int mode, width, ld;
    const float *y, *dy;
    float *g;
    __device__ void operator()(int edge, int col) const {
        size_t at = (size_t)edge * ld + col;
        float slope = dy[at];
        if (mode == WF_CODE_SINE) slope *= cosf(code(edge, col));
        if (mode == WF_CODE_FOURIER)
            slope = 6.283185307179586f * (dy[at] * y[at + width] - dy[at + width] * y[at]);
        g[at] = slope;
    }
};

/* dw[k] += g . A[:, k] */
struct value_back_row {
    value_code code;
    const float *g;
    int width, ld;
    float *dw;
    __device__ void operator()(int edge, int lane) const {
        edge_place place = code.places[edge];
        const float *matrix = code.a[size_of(code.coefs, place.coef)];
        for (int k = 0; k < place.coef; k++) {
            float sum = 0;
            for (int c = lane; c < width; c += 32)
                sum += g[(size_t)edge * ld + c] * matrix[(size_t)c * place.coef + k];
            sum = warp_sum(sum);
            if (lane == 0) dw[place.param + k] += sum;
        }
    }
};

/* g, or g times coefficient k, of the edges with `coef` coefficients. */
struct code_value {
    const float *g, *w;
    const edge_place *places;
    int ld, k, coef;
    __device__ float operator()(int edge, int col) const {
        edge_place place = places[edge];
        if (place.coef != coef) return 0;
        float value = g[(size_t)edge * ld + col];
        return k < 0 ? value : value * w[place.param + k];
    }
};

/* column k of a gradient (width, coef) += sums [width] */
struct column_add {
    float *grad;
    const float *sums;
    int coef, k;
    __device__ void operator()(int row, int) const { grad[(size_t)row * coef + k] += sums[row]; }
};

bool code_gradient(const wf_tensor *a, const wf_tensor *b, code_value value, int edges, int width,
                   wf_arena *arena) {
    if (wanted(b)) {
        value.k = -1;
        if (!sum_values_mapped(value, edges, width, NULL, 1,
                               sum_target{grad_of(b), 0, false, false}, arena))
            return false;
    }
    if (!wanted(a)) return true;
    float *sums = scratch(arena, (size_t)width);
    if (sums == NULL) return false;
    for (int k = 0; k < a->cols; k++) {
        value.k = k;
        if (!sum_values_mapped(value, edges, width, NULL, 1, sum_target{sums, 0, true, false},
                               arena))
            return false;
        each(column_add{grad_of(a), sums, a->cols, k}, width, 1);
    }
    return true;
}

} // namespace

bool edge_features_forward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_tensor *y = op->out[0];
    edge_place *places = places_of(part, arena);
    if (places == NULL) return false;
    each(feature_element{code_of(op, places), op->mode, y->cols, y->ld, data_of(y)}, y->rows,
         y->ld);
    return launched();
}

bool edge_features_backward(const wf_op *op, wf_arena *arena) {
    const wf_part *part = op->part;
    const wf_tensor *w = op->in[0], *y = op->out[0];
    bool fourier = op->mode == WF_CODE_FOURIER;
    int width = fourier ? y->cols / 2 : y->cols;
    edge_place *places = places_of(part, arena);
    float *g = scratch_rows(arena, y->rows, y->cols);
    if (places == NULL || g == NULL) return false;
    value_code code = code_of(op, places);
    each(feature_back_element{code, op->mode, width, y->ld, data_of(y), grad_of(y), g}, y->rows,
         width);
    if (wanted(w)) each_warp(value_back_row{code, g, width, y->ld, grad_of(w)}, y->rows);
    if (fourier) return launched();
    code_value value = {g, data_of(w), places, y->ld, -1, 0};
    for (int k = 1; k < 1 + 2 * sizes && op->in[k] != NULL; k += 2) {
        value.coef = op->in[k]->cols;
        if (!code_gradient(op->in[k], op->in[k + 1], value, y->rows, width, arena)) return false;
    }
    return launched();
}

/* --- folded rows ------------------------------------------------------------------------------ */
namespace {
enum fold_mode { fold_take, fold_put, fold_take_add, fold_put_add };

/* Blocks (fold, .) divide the rows of a fold. The first row of a fold is the sum of the rows before
 * it. */
__global__ void fold_kernel(const wf_batch_fold *folds, size_t first_param, float *flat,
                            float *rows, int ld, int mode) {
    wait_for_previous();
    __shared__ int before[threads_each / 32];
    int first = 0;
    for (int f = (int)threadIdx.x; f < (int)blockIdx.x; f += threads_each) first += folds[f].n_dst;
    first = __reduce_add_sync(0xffffffffu, first);
    if (threadIdx.x % 32 == 0) before[threadIdx.x / 32] = first;
    __syncthreads();
    first = 0;
    for (int i = 0; i < threads_each / 32; i++) first += before[i];
    const wf_batch_fold fold = folds[blockIdx.x];
    int width = fold.n_src + (fold.has_bias ? 1 : 0);
    for (int i = (int)blockIdx.y; i < fold.n_dst; i += (int)gridDim.y)
#pragma unroll 4
        for (int c = (int)threadIdx.x; c < width; c += threads_each) {
            size_t place =
                c < fold.n_src ? fold.weight0 + (size_t)i * fold.n_src + c : fold.bias0 + (size_t)i;
            float *parameter = flat + (place - first_param);
            float *element = rows + (size_t)(first + i) * ld + c;
            if (mode == fold_take) *element = *parameter;
            else if (mode == fold_put) *parameter = *element;
            else if (mode == fold_take_add) *element += *parameter;
            else *parameter += *element;
        }
}

void each_fold(const wf_part *part, float *flat, float *rows, int ld, fold_mode mode) {
    enum { blocks_a_fold = 16 };
    if (part->n_folds > 0)
        start_kernel(fold_kernel, dim3((unsigned)part->n_folds, blocks_a_fold), threads_each, 0,
                     part->folds, part->first_param, flat, rows, ld, mode);
}

/* v[param + k] = readout[edge][k], or the gradients of the readouts += dv */
struct velocity_edge {
    float *rows[sizes];
    int ld[sizes], coefs[sizes];
    place_finder find;
    float *v;
    const float *dv;
    __device__ void operator()(int edge, int) const {
        edge_place place = find(edge);
        int which = size_of(coefs, place.coef);
        if (rows[which] == NULL) return;
        float *row = rows[which] + (size_t)edge * ld[which];
        for (int k = 0; k < place.coef; k++) {
            if (v != NULL) v[place.param + k] = row[k];
            else row[k] += dv[place.param + k];
        }
    }
};

void add_readout(velocity_edge *edge, int k, const wf_tensor *readout, float *rows) {
    edge->rows[k] = rows;
    edge->ld[k] = readout->ld;
    edge->coefs[k] = readout->cols;
}
} // namespace

bool fold_pack_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0];
    start_zero(y->data, (size_t)y->rows * (size_t)y->ld * sizeof(float));
    each_fold(op->part, data_of(op->in[0]), data_of(y), y->ld, fold_take);
    return launched();
}

bool fold_pack_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *w = op->in[0], *y = op->out[0];
    if (wanted(w)) each_fold(op->part, grad_of(w), grad_of(y), y->ld, fold_put_add);
    return launched();
}

bool velocity_forward(const wf_op *op, wf_arena *) {
    velocity_edge edge = {};
    edge.find = finder_of(op->part);
    edge.v = data_of(op->out[0]);
    for (int k = 0; k < sizes; k++)
        if (op->in[1 + k] != NULL) add_readout(&edge, k, op->in[1 + k], data_of(op->in[1 + k]));
    each(edge, op->part->n_edges, 1);
    const wf_tensor *fold = op->in[0];
    if (fold != NULL) each_fold(op->part, data_of(op->out[0]), data_of(fold), fold->ld, fold_put);
    return launched();
}

bool velocity_backward(const wf_op *op, wf_arena *) {
    velocity_edge edge = {};
    edge.find = finder_of(op->part);
    edge.dv = grad_of(op->out[0]);
    for (int k = 0; k < sizes; k++)
        if (wanted(op->in[1 + k])) add_readout(&edge, k, op->in[1 + k], grad_of(op->in[1 + k]));
    each(edge, op->part->n_edges, 1);
    const wf_tensor *fold = op->in[0];
    if (wanted(fold))
        each_fold(op->part, grad_of(op->out[0]), grad_of(fold), fold->ld, fold_take_add);
    return launched();
}

} // namespace wf_gpu
