/* row_ops: operations on rows of nodes and graphs: linear, activation, layer norm, residual with
 * both kinds of gates, means, gathers. Formulas: tape.h. The bf16 backend defers most of them
 * (row_products/deferred.cu). */
#include "base/vmath.h"
#include "tensor/cuda/fp32/row_sums.cuh"

namespace wf_gpu {

/* --- linear ----------------------------------------------------------------------------------- */
bool linear_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        bool last = k == 3 || op->in[2 * k + 2] == NULL;
        into_linear to = {data_of(y), y->ld, k > 0, NULL, NULL, NULL, 0, NULL};
        if (last && bias != NULL) {
            to.bias = data_of(bias);
            to.scale = (const float *)op->scale;
        }
        if (last && table != NULL) {
            to.table = data_of(table);
            to.ld_table = table->ld;
            to.map = op->map;
        }
        forward_product(
            operands{data_of(x), x->ld, data_of(weight), weight->ld, y->rows, y->cols, x->cols},
            to);
    }
    return launched();
}

bool linear_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0], *bias = op->in[8], *table = op->in[9];
    const float *dy = grad_of(y);
    for (int k = 0; k < 4 && op->in[2 * k] != NULL; k++) {
        const wf_tensor *x = op->in[2 * k], *weight = op->in[2 * k + 1];
        if (wanted(x))
            input_product(
                operands{dy, y->ld, data_of(weight), weight->ld, y->rows, x->cols, y->cols},
                into_linear{grad_of(x), x->ld, true, NULL, NULL, NULL, 0, NULL});
        if (wanted(weight) && !weight_product(grad_of(weight), dy, y->ld, data_of(x), x->ld,
                                              y->rows, y->cols, x->cols, arena))
            return false;
    }
    if (wanted(bias) && !sum_rows(dy, (const float *)op->scale, y->ld, y->rows, y->cols,
                                  sum_target{grad_of(bias), 0, false, false}, arena))
        return false;
    if (wanted(table) && !sum_mapped(dy, NULL, y->ld, y->rows, y->cols, op->map, table->rows,
                                     sum_target{grad_of(table), table->ld, false, false}, arena))
        return false;
    return launched();
}

/* --- activations and layer norm --------------------------------------------------------------- */
namespace {
__device__ float other_activation(int act, float x, float *slope) {
    float value, e;
    switch (act) {
    case WF_TAPE_ACT_SINE: sincosf(x, &value, slope); return value;
    case WF_TAPE_ACT_GELU_ERF:
        value = wf_normal_cdff(x, &e);
        *slope = value + x * e * 0.3989422804014327f; /* 1 / sqrt(2 pi) */
        return x * value;
    case WF_TAPE_ACT_RELU: *slope = x > 0 ? 1.0f : 0.0f; return fmaxf(x, 0);
    case WF_TAPE_ACT_LEAKY_RELU: *slope = x > 0 ? 1.0f : 0.01f; return x * *slope;
    case WF_TAPE_ACT_ELU: *slope = expf(fminf(x, 0)); return x > 0 ? x : *slope - 1;
    default: /* softplus: max(x, 0) + ln(1 + e^-|x|) */
        e = expf(-fabsf(x));
        *slope = (x < 0 ? e : 1) / (1 + e);
        return fmaxf(x, 0) + logf(1 + e);
    }
}
struct activation_element {
    int act;
    const float *x, *dy;
    float *out; /* y, or dx when dy is given */
    int cols, ld;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        float slope, value;
        if (act == WF_TAPE_ACT_SILU || act == WF_TAPE_ACT_GELU)
            value = accurate_activation(act, x[at], &slope);
        else value = other_activation(act, x[at], &slope);
        if (col >= cols) value = 0; /* softplus(0) is not zero */
        if (dy == NULL) out[at] = value;
        else out[at] += dy[at] * slope;
    }
};
} // namespace

bool activation_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    each(activation_element{op->act, data_of(x), NULL, data_of(y), x->cols, x->ld}, x->rows, x->ld);
    return launched();
}

bool activation_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    each(activation_element{op->act, data_of(x), grad_of(y), grad_of(x), x->cols, x->ld}, x->rows,
         x->ld);
    return launched();
}

bool norm_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    norm_args step = {data_of(x), x->rows, x->cols,    x->ld, NULL,
                      0,          op->map, data_of(y), NULL,  NULL};
    if (modulation != NULL) {
        step.modulation = data_of(modulation) + op->column;
        step.ld_modulation = modulation->ld;
    }
    norm_rows(step);
    return launched();
}

bool norm_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *modulation = op->in[1], *y = op->out[0];
    float *hat = scratch_rows(arena, x->rows, x->cols), *rho = scratch(arena, (size_t)x->rows);
    if (hat == NULL || rho == NULL) return false;
    norm_rows(norm_args{data_of(x), x->rows, x->cols, x->ld, NULL, 0, NULL, NULL, hat, rho});
    norm_back_args step = {grad_of(y),
                           hat,
                           rho,
                           x->rows,
                           x->cols,
                           x->ld,
                           NULL,
                           0,
                           op->map,
                           NULL,
                           0,
                           NULL,
                           wanted(x) ? grad_of(x) : NULL,
                           x->ld};
    if (modulation != NULL) {
        step.modulation = data_of(modulation) + op->column;
        step.ld_modulation = modulation->ld;
    }
    norm_rows_backward(step);
    if (wanted(modulation)) {
        sum_target shift = {grad_of(modulation) + op->column, modulation->ld, false, false};
        sum_target scale = shift;
        scale.data += x->cols;
        if (!sum_mapped(grad_of(y), NULL, y->ld, y->rows, y->cols, op->map, modulation->rows, shift,
                        arena) ||
            !sum_mapped(grad_of(y), hat, y->ld, y->rows, y->cols, op->map, modulation->rows, scale,
                        arena))
            return false;
    }
    return launched();
}

/* --- residual --------------------------------------------------------------------------------- */
namespace {
/* The factor of a branch: base + its gate, or 1 without gates. */
struct branch_gate {
    const float *gate;
    int ld;
    const uint32_t *map;
    float base;
    __device__ float at(int row, int col) const {
        return gate == NULL ? 1 : base + gate[(size_t)map[row] * ld + col];
    }
};
/* y = x + factor * branch */
struct residual_element {
    const float *x, *branch;
    float *y;
    int ld;
    branch_gate factor;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        y[at] = x[at] + factor.at(row, col) * branch[at];
    }
};
/* dbranch += factor * dy */
struct residual_back_element {
    const float *dy;
    float *dbranch;
    int ld;
    branch_gate factor;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        dbranch[at] += factor.at(row, col) * dy[at];
    }
};
struct pad_element {
    float *out;
    int cols, ld;
    __device__ void operator()(int row, int col) const { out[(size_t)row * ld + cols + col] = 0; }
};
} // namespace

void zero_padding(const wf_tensor *x) {
    each(pad_element{data_of(x), x->cols, x->ld}, x->rows, x->ld - x->cols);
}

namespace {
/* base: 1, or 0 for plain gates. */
branch_gate gate_of(const wf_op *op, float base) {
    const wf_tensor *modulation = op->in[2];
    if (modulation == NULL) return branch_gate{NULL, 0, NULL, base};
    return branch_gate{data_of(modulation) + op->column, modulation->ld, op->map, base};
}

bool add_branch(const wf_op *op, float base) {
    const wf_tensor *x = op->in[0], *branch = op->in[1], *y = op->out[0];
    each(residual_element{data_of(x), data_of(branch), data_of(y), x->ld, gate_of(op, base)},
         x->rows, x->cols);
    zero_padding(y);
    return launched();
}

/* The stream's own gradient is the output's (T3). */
bool add_branch_back(const wf_op *op, wf_arena *arena, float base) {
    const wf_tensor *branch = op->in[1], *modulation = op->in[2], *y = op->out[0];
    if (wanted(branch))
        each(residual_back_element{grad_of(y), grad_of(branch), y->ld, gate_of(op, base)}, y->rows,
             y->cols);
    if (wanted(modulation) &&
        !sum_mapped(grad_of(y), data_of(branch), y->ld, y->rows, y->cols, op->map, modulation->rows,
                    sum_target{grad_of(modulation) + op->column, modulation->ld, false, false},
                    arena))
        return false;
    return launched();
}
} // namespace

bool residual_forward(const wf_op *op, wf_arena *) { return add_branch(op, 1); }
bool residual_backward(const wf_op *op, wf_arena *arena) { return add_branch_back(op, arena, 1); }
bool gated_residual_forward(const wf_op *op, wf_arena *) { return add_branch(op, 0); }
bool gated_residual_backward(const wf_op *op, wf_arena *arena) {
    return add_branch_back(op, arena, 0);
}

/* --- means, gathers, inserts ------------------------------------------------------------------ */
bool mean_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    zero_padding(y);
    return sum_ranges(data_of(x), NULL, x->ld, x->rows, x->cols, op->start, y->rows,
                      sum_target{data_of(y), y->ld, true, true}, arena) &&
           launched();
}

namespace {
/* A block for a graph. */
__global__ void mean_back_kernel(float *dx, const float *dy, int cols, int ld,
                                 const uint32_t *start) {
    wait_for_previous();
    uint32_t first = start[blockIdx.x], rows = start[blockIdx.x + 1] - first;
    for (uint32_t at = threadIdx.x; at < rows * (uint32_t)cols; at += blockDim.x) {
        uint32_t row = at / (uint32_t)cols, col = at % (uint32_t)cols;
        dx[(size_t)(first + row) * ld + col] += dy[(size_t)blockIdx.x * ld + col] / (float)rows;
    }
}

struct gather_element {
    const float *table;
    int ld_table;
    const uint32_t *map;
    float *y;
    int cols, ld;
    __device__ void operator()(int row, int col) const {
        size_t from = map == NULL ? 0 : (size_t)map[row] * ld_table;
        y[(size_t)row * ld + col] = col < cols ? table[from + col] : 0;
    }
};
/* to[to_map[r]] += from[from_map[r]]; no target row occurs twice */
struct add_element {
    float *to;
    const float *from;
    const uint32_t *to_map, *from_map;
    int ld_to, ld_from;
    __device__ void operator()(int row, int col) const {
        size_t i = to_map == NULL ? (size_t)row : to_map[row];
        size_t j = from_map == NULL ? (size_t)row : from_map[row];
        to[i * ld_to + col] += from[j * ld_from + col];
    }
};
} // namespace

bool mean_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    start_kernel(mean_back_kernel, (unsigned)y->rows, threads_each, 0, grad_of(x), grad_of(y),
                 x->cols, x->ld, op->start);
    return launched();
}

bool gather_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *table = op->in[0], *y = op->out[0];
    each(gather_element{data_of(table), table->ld, op->map, data_of(y), y->cols, y->ld}, y->rows,
         y->ld);
    return launched();
}

namespace {
/* Few rows into a large table. The block of the first row of each target adds up all rows of that
 * target, in order. It finds them by reading the whole map: rows^2 reads, from the caches. */
enum { scatter_threads = 128, scatter_rows = 32768 };
__global__ void __launch_bounds__(scatter_threads)
    scatter_kernel(float *to, int ld_to, const float *x, int ld, const uint32_t *map, int rows,
                   int cols) {
    wait_for_previous();
    int row = (int)blockIdx.x;
    uint32_t target = map[row];
    bool earlier = false, later = false;
    for (int r = (int)threadIdx.x; r < rows; r += scatter_threads)
        if (map[r] == target) earlier |= r<row, later |= r> row;
    if (__syncthreads_or(earlier)) return;
    later = __syncthreads_or(later);
    for (int col = (int)threadIdx.x; col < cols; col += scatter_threads) {
        float sum = x[(size_t)row * ld + col];
        for (int r = row + 1; later && r < rows; r++)
            if (map[r] == target) sum += x[(size_t)r * ld + col];
        to[(size_t)target * ld_to + col] += sum;
    }
}
} // namespace

bool gather_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *table = op->in[0], *y = op->out[0];
    if (op->map != NULL && y->rows > 0 && y->rows <= table->rows && y->rows <= scatter_rows) {
        start_kernel(scatter_kernel, (unsigned)y->rows, scatter_threads, 0, grad_of(table),
                     table->ld, grad_of(y), y->ld, op->map, y->rows, y->cols);
        return launched();
    }
    return sum_mapped(grad_of(y), NULL, y->ld, y->rows, y->cols, op->map,
                      op->map == NULL ? 1 : table->rows,
                      sum_target{grad_of(table), table->ld, false, false}, arena) &&
           launched();
}

bool insert_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *rows = op->in[1], *y = op->out[0];
    if (y->data != x->data)
        start_copy(y->data, x->data, (size_t)x->rows * (size_t)x->ld * sizeof(float));
    each(add_element{data_of(y), data_of(rows), op->map, NULL, y->ld, rows->ld}, rows->rows,
         rows->cols);
    return launched();
}

bool insert_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *rows = op->in[1], *y = op->out[0];
    if (wanted(rows))
        each(add_element{grad_of(rows), grad_of(y), NULL, op->map, rows->ld, y->ld}, rows->rows,
             rows->cols);
    return launched();
}

/* --- time, conditions, logits ----------------------------------------------------------------- */
namespace {
/* In double: the phase may be large. */
struct time_element {
    double frequency;
    const float *t;
    int ld_t;
    float *y;
    int cols, ld;
    __device__ void operator()(int row, int col) const {
        int half = cols / 2, i = col % half;
        double value = 0;
        if (col < cols) {
            double phase =
                frequency * (double)t[(size_t)row * ld_t] * exp(-log(10000.0) * i / (double)half);
            value = col < half ? cos(phase) : sin(phase);
        }
        y[(size_t)row * ld + col] = (float)value;
    }
};

struct null_element {
    const float *x, *null;
    const uint8_t *flags;
    float *y;
    int cols, ld;
    __device__ void operator()(int row, int col) const {
        bool dropped = flags != NULL && flags[row];
        float value = col >= cols ? 0 : dropped ? null[col] : x[(size_t)row * ld + col];
        y[(size_t)row * ld + col] = value;
    }
};
struct null_back_element {
    float *dx;
    const float *dy;
    const uint8_t *flags;
    int ld;
    __device__ void operator()(int row, int col) const {
        if (flags == NULL || !flags[row]) dx[(size_t)row * ld + col] += dy[(size_t)row * ld + col];
    }
};
struct flagged_value {
    const float *x;
    const uint8_t *flags;
    int ld;
    __device__ float operator()(int row, int col) const {
        return flags[row] ? x[(size_t)row * ld + col] : 0;
    }
};

struct logit_column {
    const float *a, *m;
    float *y;
    int rows, cols, ld_m;
    __device__ void operator()(int, int col) const {
        float sum = 0;
        for (int k = 0; k < rows && col < cols; k++) sum += a[k] * m[(size_t)k * ld_m + col];
        y[col] = sum;
    }
};
struct logit_back_row {
    const float *dy, *a, *m;
    float *da, *dm;
    int cols, ld_m;
    __device__ void operator()(int row, int lane) const {
        if (da != NULL) {
            float dot = warp_dot(dy, m + (size_t)row * ld_m, cols, lane);
            if (lane == 0) da[row] += dot;
        }
        for (int c = lane; dm != NULL && c < cols; c += 32)
            dm[(size_t)row * ld_m + c] += a[row] * dy[c];
    }
};
} // namespace

bool time_features_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *t = op->in[0], *y = op->out[0];
    each(time_element{op->value, data_of(t), t->ld, data_of(y), y->cols, y->ld}, y->rows, y->ld);
    return launched();
}

/* t is data. */
bool time_features_backward(const wf_op *, wf_arena *) { return true; }

bool null_rows_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *null = op->in[1], *y = op->out[0];
    each(null_element{data_of(x), data_of(null), op->flags, data_of(y), y->cols, y->ld}, y->rows,
         y->ld);
    return launched();
}

bool null_rows_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *null = op->in[1], *y = op->out[0];
    if (wanted(x))
        each(null_back_element{grad_of(x), grad_of(y), op->flags, y->ld}, y->rows, y->cols);
    if (wanted(null) && op->flags != NULL &&
        !sum_values_mapped(flagged_value{grad_of(y), op->flags, y->ld}, y->rows, y->cols, NULL, 1,
                           sum_target{grad_of(null), 0, false, false}, arena))
        return false;
    return launched();
}

bool logit_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *a = op->in[0], *m = op->in[1], *y = op->out[0];
    each(logit_column{data_of(a), data_of(m), data_of(y), m->rows, m->cols, m->ld}, 1, y->ld);
    return launched();
}

bool logit_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *a = op->in[0], *m = op->in[1], *y = op->out[0];
    each_warp(logit_back_row{grad_of(y), data_of(a), data_of(m), wanted(a) ? grad_of(a) : NULL,
                             wanted(m) ? grad_of(m) : NULL, m->cols, m->ld},
              m->rows);
    return launched();
}

} // namespace wf_gpu
