/* layer_ops: operations of networks over rows of tokens: affine layer norm, dropout, positions,
 * concatenation, tokens, losses. Formulas: tape.h. All are bound by bandwidth or, when small, by
 * the launch; not measured yet. */
#include "tensor/cuda/fp32/row_sums.cuh"
#include "weft/rng.h"

namespace wf_gpu {
namespace {

/* --- layer norm with affine part -------------------------------------------------------------- */
/* hat (R, ld) and rho [R], or y = hat * weight + bias. */
struct affine_norm_row {
    const float *x, *weight, *bias;
    int cols, ld;
    float eps;
    float *y, *hat, *rho;
    __device__ void operator()(int row, int lane) const {
        const float *in = x + (size_t)row * ld;
        float sum = 0, square = 0;
        for (int c = lane; c < cols; c += 32) sum += in[c];
        float mean = warp_sum(sum) / (float)cols;
        for (int c = lane; c < cols; c += 32) square += (in[c] - mean) * (in[c] - mean);
        float factor = 1 / sqrtf(warp_sum(square) / (float)cols + eps);
        if (rho != NULL && lane == 0) rho[row] = factor;
        for (int c = lane; c < ld; c += 32) {
            float value = c < cols ? (in[c] - mean) * factor : 0;
            if (hat != NULL) hat[(size_t)row * ld + c] = value;
            if (c < cols && weight != NULL) value *= weight[c];
            if (c < cols && bias != NULL) value += bias[c];
            if (y != NULL) y[(size_t)row * ld + c] = value;
        }
    }
};
/* dx += rho * (g - mean(g) - hat * mean(g * hat)), g = dy * weight */
struct affine_norm_back_row {
    const float *dy, *weight, *hat, *rho;
    int cols, ld;
    float *dx;
    __device__ void operator()(int row, int lane) const {
        const float *g = dy + (size_t)row * ld, *h = hat + (size_t)row * ld;
        float sum = 0, dot = 0;
        for (int c = lane; c < cols; c += 32) {
            float value = weight != NULL ? g[c] * weight[c] : g[c];
            sum += value;
            dot += value * h[c];
        }
        float mean = warp_sum(sum) / (float)cols, along = warp_sum(dot) / (float)cols;
        for (int c = lane; c < cols; c += 32) {
            float value = weight != NULL ? g[c] * weight[c] : g[c];
            dx[(size_t)row * ld + c] += rho[row] * (value - mean - h[c] * along);
        }
    }
};
const float *optional_data(const wf_tensor *x) { return x == NULL ? NULL : data_of(x); }

} // namespace

bool layer_norm_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    each_warp(affine_norm_row{data_of(x), optional_data(op->in[1]), optional_data(op->in[2]),
                              x->cols, x->ld, (float)op->value, data_of(y), NULL, NULL},
              x->rows);
    return launched();
}

bool layer_norm_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *weight = op->in[1], *bias = op->in[2], *y = op->out[0];
    float *hat = scratch_rows(arena, x->rows, x->cols), *rho = scratch(arena, (size_t)x->rows);
    if (hat == NULL || rho == NULL) return false;
    each_warp(
        affine_norm_row{data_of(x), NULL, NULL, x->cols, x->ld, (float)op->value, NULL, hat, rho},
        x->rows);
    if (wanted(x))
        each_warp(affine_norm_back_row{grad_of(y), optional_data(weight), hat, rho, x->cols, x->ld,
                                       grad_of(x)},
                  x->rows);
    if (wanted(weight) && !sum_mapped(grad_of(y), hat, y->ld, y->rows, y->cols, NULL, 1,
                                      sum_target{grad_of(weight), 0, false, false}, arena))
        return false;
    if (wanted(bias) && !sum_rows(grad_of(y), NULL, y->ld, y->rows, y->cols,
                                  sum_target{grad_of(bias), 0, false, false}, arena))
        return false;
    return launched();
}

/* --- dropout ---------------------------------------------------------------------------------- */
namespace {
/* Four neighbouring columns, which one block of random numbers decides about; they are set, or
 * added to. */
struct dropout_four {
    wf_dropout_key key;
    uint32_t site, limit;
    float factor;
    const float *in;
    float *out;
    int cols, ld;
    bool add;
    const uint32_t *gains; /* columns that are gains (tape.h), or NULL */
    __device__ void operator()(int row, int four) const {
        uint32_t word[4], counter[4] = {(site << 24) + (uint32_t)four, *key.update,
                                        key.row + (uint32_t)row, WF_RNG_DROPOUT};
        wf_philox(counter, key.seed, word);
        for (int i = 0; i < 4 && 4 * four + i < ld; i++) {
            size_t at = (size_t)row * ld + 4 * four + i;
            bool kept = 4 * four + i < cols && word[i] >> 8 >= limit;
            float value = kept ? in[at] * factor : 0;
            if (gains != NULL && 4 * four + i < cols) {
                if (gains[4 * four + i] == 0) value = in[at];
                else if (!add) value = kept ? (1 + in[at]) * factor - 1 : -1;
            }
            out[at] = add ? out[at] + value : value;
        }
    }
};
void drop(const wf_op *op, const float *in, float *out, bool add) {
    const wf_tensor *x = op->in[0];
    dropout_four four = {op->key,
                         (uint32_t)op->mode,
                         (uint32_t)(op->value * 16777216.0),
                         (float)(1 / (1 - op->value)),
                         in,
                         out,
                         x->cols,
                         x->ld,
                         add,
                         op->map};
    each(four, x->rows, (x->ld + 3) / 4);
}
} // namespace

bool dropout_forward(const wf_op *op, wf_arena *) {
    drop(op, data_of(op->in[0]), data_of(op->out[0]), false);
    return launched();
}
bool dropout_backward(const wf_op *op, wf_arena *) {
    drop(op, grad_of(op->out[0]), grad_of(op->in[0]), true);
    return launched();
}

/* --- positions -------------------------------------------------------------------------------- */
namespace {
struct add_table_element {
    const float *x, *table;
    float *y;
    int ld, ld_table, first, count; /* columns that the table has */
    const uint32_t *map;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        int own = col - first;
        bool inside = own >= 0 && own < count;
        y[at] = x[at] + (inside ? table[(size_t)map[row] * ld_table + own] : 0);
    }
};
struct add_column_element {
    const float *x, *s;
    float *y;
    int cols, ld, ld_s;
    __device__ void operator()(int row, int col) const {
        size_t at = (size_t)row * ld + col;
        y[at] = col < cols ? x[at] + s[(size_t)row * ld_s] : 0;
    }
};
struct add_column_back_row {
    const float *dy;
    float *dx, *ds;
    int cols, ld, ld_s;
    __device__ void operator()(int row, int lane) const {
        const float *in = dy + (size_t)row * ld;
        float sum = 0;
        for (int c = lane; c < cols; c += 32) {
            sum += in[c];
            if (dx != NULL) dx[(size_t)row * ld + c] += in[c];
        }
        sum = warp_sum(sum);
        if (ds != NULL && lane == 0) ds[(size_t)row * ld_s] += sum;
    }
};
} // namespace

bool add_table_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *table = op->in[1], *y = op->out[0];
    each(add_table_element{data_of(x), data_of(table), data_of(y), x->ld, table->ld, op->column,
                           table->cols, op->map},
         x->rows, x->ld);
    return launched();
}
bool add_table_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *table = op->in[1], *y = op->out[0];
    return (!wanted(table) ||
            sum_mapped(grad_of(y) + op->column, NULL, y->ld, y->rows, table->cols, op->map,
                       table->rows, sum_target{grad_of(table), table->ld, false, false}, arena)) &&
           launched();
}

bool add_column_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *s = op->in[1];
    each(add_column_element{data_of(x), data_of(s), data_of(op->out[0]), x->cols, x->ld, s->ld},
         x->rows, x->ld);
    return launched();
}
bool add_column_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0], *s = op->in[1];
    each_warp(add_column_back_row{grad_of(op->out[0]), wanted(x) ? grad_of(x) : NULL,
                                  wanted(s) ? grad_of(s) : NULL, x->cols, x->ld, s->ld},
              x->rows);
    return launched();
}

/* --- concatenation and tokens ----------------------------------------------------------------- */
namespace {
/* to[r][to_first + c] = or += from[r][from_first + c] */
struct columns_element {
    const float *from;
    float *to;
    int ld_from, ld_to;
    bool add;
    __device__ void operator()(int row, int col) const {
        float *place = to + (size_t)row * ld_to + col;
        float value = from[(size_t)row * ld_from + col];
        *place = add ? *place + value : value;
    }
};

/* Value `col` of all tokens of sequence `row`: token[k][c] and flat[at], either from the other. */
struct token_element {
    float *flat, *tokens;
    int columns, ld_flat, count, width, ld_tokens;
    const uint32_t *map;
    bool to_flat, add;
    __device__ void operator()(int row, int col) const {
        size_t at = map != NULL ? map[col] : (size_t)col;
        float *token = tokens + ((size_t)row * count + col / width) * ld_tokens + col % width;
        bool none = at >= (size_t)columns;
        if (none && to_flat) return;
        float *place = to_flat ? flat + (size_t)row * ld_flat + at : token;
        float value = to_flat ? *token : none ? 0 : flat[(size_t)row * ld_flat + at];
        *place = add ? *place + value : value;
    }
};
void move_tokens(const wf_op *op, const wf_tensor *flat, const wf_tensor *tokens, bool gradients,
                 bool to_flat, bool add) {
    token_element element = {gradients ? grad_of(flat) : data_of(flat),
                             gradients ? grad_of(tokens) : data_of(tokens),
                             flat->cols,
                             flat->ld,
                             op->tokens,
                             tokens->cols,
                             tokens->ld,
                             op->map,
                             to_flat,
                             add};
    each(element, flat->rows, op->tokens * tokens->cols);
}
} // namespace

bool concat_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0];
    int column = 0;
    for (int k = 0; k < WF_OP_INPUTS && op->in[k] != NULL; column += op->in[k++]->cols)
        each(columns_element{data_of(op->in[k]), data_of(y) + column, op->in[k]->ld, y->ld, false},
             y->rows, op->in[k]->cols);
    zero_padding(y);
    return launched();
}
bool concat_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0];
    int column = 0;
    for (int k = 0; k < WF_OP_INPUTS && op->in[k] != NULL; column += op->in[k++]->cols)
        if (wanted(op->in[k]))
            each(columns_element{grad_of(y) + column, grad_of(op->in[k]), y->ld, op->in[k]->ld,
                                 true},
                 y->rows, op->in[k]->cols);
    return launched();
}

bool to_tokens_forward(const wf_op *op, wf_arena *) {
    move_tokens(op, op->in[0], op->out[0], false, false, false);
    zero_padding(op->out[0]);
    return launched();
}
bool to_tokens_backward(const wf_op *op, wf_arena *) {
    if (!wanted(op->in[0])) return true; /* an input whose gradient is not wanted */
    move_tokens(op, op->in[0], op->out[0], true, true, true);
    return launched();
}
bool from_tokens_forward(const wf_op *op, wf_arena *) {
    const wf_tensor *y = op->out[0];
    start_zero(y->data, (size_t)y->rows * (size_t)y->ld * sizeof(float));
    move_tokens(op, y, op->in[0], false, true, false);
    return launched();
}
bool from_tokens_backward(const wf_op *op, wf_arena *) {
    move_tokens(op, op->out[0], op->in[0], true, false, true);
    return launched();
}

/* --- losses ----------------------------------------------------------------------------------- */
namespace {
/* squares[r] = sum over the row of (mask x - target)^2, or dx += its gradient */
struct squares_row {
    const float *x, *target, *mask, *dloss;
    float *squares, *dx;
    int cols, ld, ld_target, ld_mask;
    float factor;
    __device__ void operator()(int row, int lane) const {
        float sum = 0;
        for (int c = lane; c < cols; c += 32) {
            float m = mask != NULL ? mask[(size_t)row * ld_mask + c] : 1;
            float d = m * x[(size_t)row * ld + c] - target[(size_t)row * ld_target + c];
            if (dx != NULL) dx[(size_t)row * ld + c] += factor * *dloss * m * d;
            sum += d * d;
        }
        sum = warp_sum(sum);
        if (dx == NULL && lane == 0) squares[row] = sum;
    }
};
/* The sum of `count` values over `over`, in one block and in the same order always. */
__global__ void mean_kernel(const float *values, int count, double over, float *out, int ld) {
    wait_for_previous();
    __shared__ double shares[threads_each];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += threads_each) sum += (double)values[i];
    shares[threadIdx.x] = sum;
    __syncthreads();
    for (int step = threads_each / 2; step > 0; step /= 2) {
        if ((int)threadIdx.x < step) shares[threadIdx.x] += shares[threadIdx.x + step];
        __syncthreads();
    }
    for (int c = (int)threadIdx.x; c < ld; c += threads_each)
        out[c] = c == 0 ? (float)(shares[0] / over) : 0;
}
void store_mean(const float *values, int count, double over, const wf_tensor *out) {
    start_kernel(mean_kernel, 1, threads_each, 0, values, count, over, data_of(out), out->ld);
}
squares_row squares_of(const wf_op *op) {
    const wf_tensor *x = op->in[0], *target = op->in[1], *mask = op->in[2];
    return squares_row{
        data_of(x), data_of(target), optional_data(mask),         NULL, NULL, NULL, x->cols,
        x->ld,      target->ld,      mask == NULL ? 0 : mask->ld, 0};
}

/* NT-Xent, a warp a row: similarities to all other rows, in turn. Views are few: a few hundred rows
 * of some tens of columns. */
struct nt_xent {
    const float *z;
    int rows, cols, ld;
    float scale; /* 1 / temperature */

    __device__ float norm(int row, int lane) const {
        const float *x = z + (size_t)row * ld;
        return 1 / sqrtf(fmaxf(warp_dot(x, x, cols, lane), 1e-16f));
    }
    __device__ float similarity(int i, int j, int lane, const float *factor) const {
        return scale * factor[i] * factor[j] *
               warp_dot(z + (size_t)i * ld, z + (size_t)j * ld, cols, lane);
    }
    __device__ int partner(int i) const { return (i + rows / 2) % rows; }
};
struct nt_xent_norms : nt_xent {
    float *factor;
    __device__ void operator()(int row, int lane) const {
        float value = norm(row, lane);
        if (lane == 0) factor[row] = value;
    }
};
/* loss[i], and log_sum[i] of the exponentials. */
struct nt_xent_row : nt_xent {
    const float *factor;
    float *loss, *log_sum;
    __device__ void operator()(int i, int lane) const {
        float most = -INFINITY, sum = 0, own = 0;
        for (int j = 0; j < rows; j++) {
            float s = similarity(i, j, lane, factor);
            if (j == partner(i)) own = s;
            if (j == i) continue;
            float next = fmaxf(most, s);
            sum = sum * expf(most - next) + expf(s - next);
            most = next;
        }
        if (lane == 0) {
            log_sum[i] = most + logf(sum);
            loss[i] = most + logf(sum) - own;
        }
    }
};
/* dz[i]: the gradient by its unit vector is the sum over j of (g_ij + g_ji) u_j, g_ij = p_ij - [j
 * is i's partner]. */
struct nt_xent_back_row : nt_xent {
    const float *factor, *log_sum, *dloss;
    float *dz;
    __device__ void operator()(int i, int lane) const {
        float along = 0, share = scale * *dloss / (float)rows;
        const float *own = z + (size_t)i * ld;
        float *out = dz + (size_t)i * ld;
        for (int j = 0; j < rows; j++) {
            if (j == i) continue;
            float s = similarity(i, j, lane, factor);
            float g = expf(s - log_sum[i]) + expf(s - log_sum[j]) - (j == partner(i) ? 2 : 0);
            float weight = share * g * factor[i] * factor[j];
            for (int c = lane; c < cols; c += 32) out[c] += weight * z[(size_t)j * ld + c];
            along += share * g * s / scale;
        }
        for (int c = lane; c < cols; c += 32) out[c] -= along * factor[i] * factor[i] * own[c];
    }
};
nt_xent views_of(const wf_op *op) {
    const wf_tensor *z = op->in[0];
    return nt_xent{data_of(z), z->rows, z->cols, z->ld, (float)(1 / op->value)};
}
/* Factors, losses and sums of all rows, in scratch; false: none left. */
bool nt_xent_rows(const wf_op *op, wf_arena *arena, nt_xent_row *out) {
    int n = op->in[0]->rows;
    float *factor = scratch(arena, (size_t)n);
    *out = nt_xent_row{views_of(op), factor, scratch(arena, (size_t)n), scratch(arena, (size_t)n)};
    if (factor == NULL || out->loss == NULL || out->log_sum == NULL) return false;
    each_warp(nt_xent_norms{views_of(op), factor}, n);
    each_warp(*out, n);
    return true;
}
} // namespace

bool mse_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0];
    squares_row rows = squares_of(op);
    rows.squares = scratch(arena, (size_t)x->rows);
    if (rows.squares == NULL) return false;
    each_warp(rows, x->rows);
    store_mean(rows.squares, x->rows, (double)x->rows * x->cols, op->out[0]);
    return launched();
}
bool mse_backward(const wf_op *op, wf_arena *) {
    const wf_tensor *x = op->in[0];
    squares_row rows = squares_of(op);
    rows.dloss = grad_of(op->out[0]);
    rows.factor = (float)(2 / ((double)x->rows * x->cols));
    rows.dx = grad_of(x);
    if (wanted(x)) each_warp(rows, x->rows);
    return launched();
}

bool nt_xent_forward(const wf_op *op, wf_arena *arena) {
    int n = op->in[0]->rows;
    nt_xent_row rows;
    if (!nt_xent_rows(op, arena, &rows)) return false;
    store_mean(rows.loss, n, n, op->out[0]);
    return launched();
}
bool nt_xent_backward(const wf_op *op, wf_arena *arena) {
    nt_xent_row rows;
    if (!nt_xent_rows(op, arena, &rows)) return false;
    each_warp(nt_xent_back_row{views_of(op), rows.factor, rows.log_sum, grad_of(op->out[0]),
                               grad_of(op->in[0])},
              op->in[0]->rows);
    return launched();
}

} // namespace wf_gpu
