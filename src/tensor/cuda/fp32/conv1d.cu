/* conv1d: convolutions of sequences and their transposes, by the products of matrix_ops.cuh.
 *
 * As on the CPU (cpu/conv1d_cpu.c) both join a long side (B * P positions, c channels) and a short
 * side (B * R windows, m channels) by a weight (m, K * c), and windows are rows stride * c apart of
 * a copy of the positions with zeros round them. In the copy a sequence takes R' * stride
 * positions, enough for its last window. Then the windows of all sequences are equally far apart:
 * R' a sequence, of which the first R are used.
 *   gather    all windows W' to scratch, the R used ones copied (+ bias)
 *   scatter   short W to scratch, then each position adds up the windows that it is in; so many
 *             sequences at a time
 *   gradient  weight_product of the windows with the short side, zero in windows that are not used
 * Bytes: scratch of about K / stride times the long side, written and read once. Not measured
 * yet. */
#include "tensor/cuda/fp32/row_sums.cuh"

namespace wf_gpu {
namespace {

enum : size_t { most_scattered = (size_t)1 << 26 }; /* floats of scratch */

struct conv_shape {
    int sequences, positions, windows; /* B, P, R */
    int places;                        /* R' */
    int channels, outputs;             /* c, m */
    int kernel, stride, padding;
    __host__ __device__ int width() const { return kernel * channels; }
};

/* big: tensor of the long side, small: of the short one. */
conv_shape shape_of(const wf_op *op, const wf_tensor *big, const wf_tensor *small) {
    const wf_conv1d_desc *d = &op->conv;
    conv_shape s = {};
    s.sequences = op->in[0]->rows / d->length;
    s.positions = s.sequences > 0 ? big->rows / s.sequences : 0;
    s.windows = s.sequences > 0 ? small->rows / s.sequences : 0;
    s.channels = big->cols, s.outputs = small->cols;
    s.kernel = d->kernel, s.stride = d->stride, s.padding = d->padding;
    s.places = ((s.windows - 1) * s.stride + s.kernel + s.stride - 1) / s.stride;
    return s;
}

/* Row: a position of the copy; the last ones, after all sequences, are zero. */
struct spread_element {
    conv_shape s;
    const float *from;
    int ld;
    float *to;
    __device__ void operator()(int row, int c) const {
        int each = s.places * s.stride, sequence = row / each, at = row % each - s.padding;
        bool there = sequence < s.sequences && at >= 0 && at < s.positions;
        size_t source = ((size_t)sequence * s.positions + (there ? at : 0)) * ld + c;
        to[(size_t)row * s.channels + c] = there ? from[source] : 0;
    }
};
float *spread(const conv_shape &s, const float *from, int ld, wf_arena *arena) {
    int rows = s.sequences * s.places * s.stride + s.kernel;
    float *to = scratch(arena, (size_t)rows * (size_t)s.channels + 4);
    if (to != NULL) each(spread_element{s, from, ld, to}, rows, s.channels);
    return to;
}

/* The windows that are used: y = or += x + bias. */
struct collect_element {
    conv_shape s;
    const float *x, *bias;
    int ld_x;
    float *y;
    int ld;
    bool add;
    __device__ void operator()(int row, int c) const {
        float value = 0;
        if (c < s.outputs) {
            size_t place = (size_t)(row / s.windows) * s.places + row % s.windows;
            value = x[place * ld_x + c] + (bias != NULL ? bias[c] : 0);
        }
        float *out = y + (size_t)row * ld + c;
        *out = add ? *out + value : value;
    }
};
bool gather(const conv_shape &s, const float *from, int ld_from, const wf_tensor *weight,
            const wf_tensor *bias, float *to, int ld_to, bool add, wf_arena *arena) {
    float *positions = spread(s, from, ld_from, arena);
    int places = s.sequences * s.places, ld = wf_pad(s.outputs);
    float *sums = scratch_rows(arena, places, s.outputs);
    if (positions == NULL || sums == NULL) return false;
    forward_product(operands{positions, s.stride * s.channels, data_of(weight), weight->ld, places,
                             s.outputs, s.width()},
                    into_linear{sums, ld, false, NULL, NULL, NULL, 0, NULL});
    each(collect_element{s, sums, bias == NULL ? NULL : data_of(bias), ld, to, ld_to, add},
         s.sequences * s.windows, ld_to);
    return true;
}

/* Row: a position of some sequences. Windows that it is in, the last one first: in the order of
 * taps. */
struct scatter_element {
    conv_shape s;
    const float *x, *bias; /* (windows, ld_x); bias NULL: none */
    int ld_x;
    float *y;
    int ld;
    bool add;
    __device__ void operator()(int row, int c) const {
        float sum = 0;
        if (c < s.channels) {
            int sequence = row / s.positions, at = row % s.positions + s.padding;
            for (int tap = 0; tap < s.kernel; tap++) {
                int window = (at - tap) / s.stride;
                if (at - tap < 0 || (at - tap) % s.stride != 0 || window >= s.windows) continue;
                sum += x[((size_t)sequence * s.windows + window) * ld_x + tap * s.channels + c];
            }
            if (bias != NULL) sum += bias[c];
        }
        float *out = y + (size_t)row * ld + c;
        *out = add ? *out + sum : sum;
    }
};
bool scatter(const conv_shape &s, const float *from, int ld_from, const wf_tensor *weight,
             const wf_tensor *bias, float *to, int ld_to, bool add, wf_arena *arena) {
    int ld = wf_pad(s.width());
    size_t one = (size_t)s.windows * (size_t)ld;
    int some = one >= most_scattered ? 1 : (int)(most_scattered / one);
    if (some > s.sequences) some = s.sequences;
    float *tiles = scratch(arena, (size_t)some * one);
    if (tiles == NULL) return false;
    for (int first = 0; first < s.sequences; first += some) {
        int count = s.sequences - first < some ? s.sequences - first : some;
        input_product(operands{from + (size_t)first * (size_t)s.windows * (size_t)ld_from, ld_from,
                               data_of(weight), weight->ld, count * s.windows, s.width(),
                               s.outputs},
                      into_linear{tiles, ld, false, NULL, NULL, NULL, 0, NULL});
        each(scatter_element{s, tiles, bias == NULL ? NULL : data_of(bias), ld,
                             to + (size_t)first * (size_t)s.positions * (size_t)ld_to, ld_to, add},
             count * s.positions, ld_to);
    }
    return true;
}

/* The short side with zeros in windows that are not used. */
struct widen_element {
    conv_shape s;
    const float *from;
    int ld;
    float *to;
    int ld_to;
    __device__ void operator()(int row, int c) const {
        int window = row % s.places;
        bool meant = window < s.windows && c < s.outputs;
        size_t source = ((size_t)(row / s.places) * s.windows + (meant ? window : 0)) * ld + c;
        to[(size_t)row * ld_to + c] = meant ? from[source] : 0;
    }
};
bool weight_gradient(const conv_shape &s, const float *big, int ld_big, const float *small,
                     int ld_small, const wf_tensor *weight, wf_arena *arena) {
    float *positions = spread(s, big, ld_big, arena);
    int places = s.sequences * s.places, ld = wf_pad(s.outputs);
    float *wide = scratch_rows(arena, places, s.outputs);
    if (positions == NULL || wide == NULL) return false;
    each(widen_element{s, small, ld_small, wide, ld}, places, ld);
    return weight_product(grad_of(weight), wide, ld, positions, s.stride * s.channels, places,
                          s.outputs, s.width(), arena);
}

bool bias_gradient(const wf_tensor *bias, const wf_tensor *y, wf_arena *arena) {
    return !wanted(bias) || sum_rows(grad_of(y), NULL, y->ld, y->rows, y->cols,
                                     sum_target{grad_of(bias), 0, false, false}, arena);
}

/* transposed: the output is the long side. */
bool backward(const wf_op *op, bool transposed, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *weight = op->in[1], *y = op->out[0];
    conv_shape s = transposed ? shape_of(op, y, x) : shape_of(op, x, y);
    if (wanted(x)) {
        wf_arena_mark mark = wf_arena_here(arena);
        if (!(transposed ? gather : scatter)(s, grad_of(y), y->ld, weight, NULL, grad_of(x), x->ld,
                                             true, arena))
            return false;
        wf_arena_rewind(arena, mark);
    }
    const float *big = transposed ? grad_of(y) : data_of(x);
    const float *small = transposed ? data_of(x) : grad_of(y);
    if (wanted(weight) && !weight_gradient(s, big, transposed ? y->ld : x->ld, small,
                                           transposed ? x->ld : y->ld, weight, arena))
        return false;
    return bias_gradient(op->in[2], y, arena) && launched();
}

} // namespace

bool conv1d_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    return gather(shape_of(op, x, y), data_of(x), x->ld, op->in[1], op->in[2], data_of(y), y->ld,
                  false, arena) &&
           launched();
}

bool conv1d_backward(const wf_op *op, wf_arena *arena) { return backward(op, false, arena); }

bool conv1d_transposed_forward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    return scatter(shape_of(op, y, x), data_of(x), x->ld, op->in[1], op->in[2], data_of(y), y->ld,
                   false, arena) &&
           launched();
}

bool conv1d_transposed_backward(const wf_op *op, wf_arena *arena) {
    return backward(op, true, arena);
}

} // namespace wf_gpu
