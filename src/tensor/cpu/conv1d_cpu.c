/* conv1d_cpu: convolutions of sequences and their transposes, with channels along the rows.
 *
 * Both join a long side (B * P positions, c channels) and a short side (B * R windows, m channels)
 * by a weight (m, K * c): window i of a sequence is positions i * stride - padding .. + K - 1. As
 * rows lie one after another, a window is K * c values in a row, and the windows are a matrix with
 * rows stride * c apart: no copy of it is needed, only one of its positions with zeros round them.
 *   gather    short (R, m) = windows W'      forward; gradient by the input of a transpose
 *   scatter   long += windows of short W     the other two
 *   gradient  dW += short' windows           of both
 * Rows are summed in order and sequences one after another: the same bits for any number of
 * threads. */
#include "tensor/cpu/product.h"
#include "weft/base.h"

enum { tile_rows = 96, few_channels = 3 };

typedef struct conv_work {
    wf_ctx *ctx;
    const real *weight, *panels;
    real *weight_grad, *long_side, *short_side; /* data or gradients */
    int ld_long, ld_short;
    int sequences, positions, windows; /* B, P, R */
    int channels, outputs;             /* c, m */
    int kernel, stride, padding;
    bool add;      /* gather adds to the short side */
    real *scratch; /* a worker's, `each` apart */
    size_t each;
} conv_work;

static int window_width(const conv_work *w) { return w->kernel * w->channels; }
static size_t worker_count(const conv_work *w) {
    return w->ctx == NULL ? 1 : (size_t)wf_ctx_threads(w->ctx);
}
static int least(int a, int b) { return a < b ? a : b; }

/* Positions first .. of a sequence, `count` of them, without the padding of rows; zeros where there
 * are none. */
static void copy_positions(const conv_work *w, int sequence, int first, int count, real *out) {
    size_t c = (size_t)w->channels;
    for (int i = 0; i < count; i++, out += c) {
        int at = first + i;
        if (at < 0 || at >= w->positions) {
            memset(out, 0, c * sizeof(real));
            continue;
        }
        size_t row = (size_t)sequence * (size_t)w->positions + (size_t)at;
        memcpy(out, w->long_side + row * (size_t)w->ld_long, c * sizeof(real));
    }
}

static int tiles_of(const conv_work *w) { return (w->windows + tile_rows - 1) / tile_rows; }

/* --- gather ----------------------------------------------------------------------------------- */
static void gather_chunk(void *arg, size_t chunk, int worker) {
    const conv_work *w = arg;
    int tiles = tiles_of(w), sequence = (int)chunk / tiles, first = (int)chunk % tiles * tile_rows;
    int rows = least(tile_rows, w->windows - first), width = window_width(w);
    int apart = w->stride * w->channels;
    real *values = w->scratch + (size_t)worker * w->each;
    real *out = w->short_side +
                ((size_t)sequence * (size_t)w->windows + (size_t)first) * (size_t)w->ld_short;
    copy_positions(w, sequence, first * w->stride - w->padding, (rows - 1) * w->stride + w->kernel,
                   values);
    if (w->outputs <= few_channels) {
        for (int i = 0; i < rows; i++)
            for (int o = 0; o < w->outputs; o++) {
                real sum = row_dot(values + (size_t)i * (size_t)apart,
                                   w->weight + (size_t)o * (size_t)width, width);
                real *to = out + (size_t)i * (size_t)w->ld_short + o;
                *to = w->add ? *to + sum : sum;
            }
        return;
    }
    for (int k0 = 0; k0 < width; k0 += product_depth) {
        gemm_args args = {out,
                          w->ld_short,
                          values + k0,
                          apart,
                          1,
                          w->panels,
                          0,
                          (ptrdiff_t)gemm_panel * width,
                          k0,
                          rows,
                          least(product_depth, width - k0),
                          w->outputs,
                          w->add || k0 > 0};
        WF_FN(wf_gemm)(&args);
    }
}

/* The short side must have whole vectors a row. */
static bool gather(conv_work *w, wf_arena *arena) {
    wf_arena_mark mark = wf_arena_here(arena);
    int width = window_width(w);
    w->each = (size_t)(tile_rows * w->stride + w->kernel) * (size_t)w->channels + WF_PAD;
    w->scratch = scratch(arena, w->each * worker_count(w));
    real *panels = scratch(arena, wf_panel_size(width, w->outputs));
    if (w->scratch == NULL || panels == NULL) return false;
    WF_FN(wf_pack_panels)(w->weight, 1, width, width, w->outputs, panels);
    w->panels = panels;
    wf_parallel(w->ctx, (size_t)w->sequences * (size_t)tiles_of(w), gather_chunk, w);
    wf_arena_rewind(arena, mark);
    return true;
}

/* --- scatter ---------------------------------------------------------------------------------- */
/* A sequence a chunk: windows overlap. */
static void scatter_chunk(void *arg, size_t chunk, int worker) {
    const conv_work *w = arg;
    int width = window_width(w), ld = wf_pad(width), sequence = (int)chunk;
    real *tile = w->scratch + (size_t)worker * w->each;
    for (int first = 0; first < w->windows; first += tile_rows) {
        int rows = least(tile_rows, w->windows - first);
        const real *in = w->short_side + ((size_t)sequence * (size_t)w->windows + (size_t)first) *
                                             (size_t)w->ld_short;
        gemm_packed(tile, ld, in, w->ld_short, w->panels, rows, w->outputs, width, false);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < w->kernel; j++) {
                int at = (first + i) * w->stride - w->padding + j;
                if (at < 0 || at >= w->positions) continue;
                size_t row = (size_t)sequence * (size_t)w->positions + (size_t)at;
                row_add(w->long_side + row * (size_t)w->ld_long,
                        tile + (size_t)i * (size_t)ld + (size_t)j * (size_t)w->channels,
                        w->channels);
            }
    }
}

static bool scatter(conv_work *w, wf_arena *arena) {
    wf_arena_mark mark = wf_arena_here(arena);
    int width = window_width(w);
    w->each = (size_t)tile_rows * (size_t)wf_pad(width);
    w->scratch = scratch(arena, w->each * worker_count(w));
    real *panels = scratch(arena, wf_panel_size(w->outputs, width));
    if (w->scratch == NULL || panels == NULL) return false;
    WF_FN(wf_pack_panels)(w->weight, width, 1, w->outputs, width, panels);
    w->panels = panels;
    wf_parallel(w->ctx, (size_t)w->sequences, scatter_chunk, w);
    wf_arena_rewind(arena, mark);
    return true;
}

/* --- gradient of the weight ------------------------------------------------------------------- */
static bool weight_sums(const conv_work *w, wf_arena *arena) {
    wf_arena_mark mark = wf_arena_here(arena);
    int count = (w->windows - 1) * w->stride + w->kernel;
    real *values = scratch(arena, (size_t)count * (size_t)w->channels);
    if (values == NULL) return false;
    for (int s = 0; s < w->sequences; s++) {
        copy_positions(w, s, -w->padding, count, values);
        product_args args = {w->weight_grad,
                             window_width(w),
                             w->short_side + (size_t)s * (size_t)w->windows * (size_t)w->ld_short,
                             1,
                             w->ld_short,
                             values,
                             w->stride * w->channels,
                             w->outputs,
                             w->windows,
                             window_width(w),
                             true};
        WF_FN(wf_product)(w->ctx, &args);
    }
    wf_arena_rewind(arena, mark);
    return true;
}

/* --- operations ------------------------------------------------------------------------------- */
static void add_bias(const wf_op *op, void *more, int first, int last) {
    (void)more;
    for (int r = first; r < last; r++)
        row_add(row_of(op->out[0], r), op->in[2]->data, op->out[0]->cols);
}
static void sum_bias(const wf_op *op, void *more, int first, int last) {
    (void)more;
    for (int r = 0; r < op->out[0]->rows; r++)
        row_add((real *)op->in[2]->grad + first, grad_row(op->out[0], r) + first, last - first);
}
static void bias_forward(const wf_op *op) {
    if (op->in[2] != NULL) over_rows(op, op->out[0]->rows, op->out[0]->ld, add_bias, NULL);
}
static void bias_backward(const wf_op *op) {
    if (wanted(op->in[2])) over_columns(op, op->out[0]->cols, sum_bias, NULL);
}

/* big: tensor of the long side, small: of the short one. */
static conv_work work_of(const wf_op *op, const wf_tensor *big, const wf_tensor *small) {
    conv_work w = {.ctx = op->ctx,
                   .weight = op->in[1]->data,
                   .weight_grad = op->in[1]->grad,
                   .ld_long = big->ld,
                   .ld_short = small->ld,
                   .sequences = op->in[0]->rows / op->conv.length,
                   .channels = big->cols,
                   .outputs = small->cols,
                   .kernel = op->conv.kernel,
                   .stride = op->conv.stride,
                   .padding = op->conv.padding};
    w.positions = w.sequences > 0 ? big->rows / w.sequences : 0;
    w.windows = w.sequences > 0 ? small->rows / w.sequences : 0;
    return w;
}

static void zero_padding(const wf_tensor *x) {
    for (int r = 0; r < x->rows && x->ld > x->cols; r++)
        memset(row_of(x, r) + x->cols, 0, (size_t)(x->ld - x->cols) * sizeof(real));
}

bool WF_FN(wf_conv1d_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    conv_work w = work_of(op, x, y);
    w.long_side = x->data, w.short_side = y->data;
    zero_padding(y);
    if (!gather(&w, arena)) return false;
    bias_forward(op);
    return true;
}

bool WF_FN(wf_conv1d_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    conv_work w = work_of(op, x, y);
    w.short_side = y->grad;
    w.long_side = x->grad;
    if (wanted(x) && !scatter(&w, arena)) return false;
    w.long_side = x->data;
    if (wanted(op->in[1]) && !weight_sums(&w, arena)) return false;
    bias_backward(op);
    return true;
}

bool WF_FN(wf_conv1d_transposed_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    conv_work w = work_of(op, y, x);
    w.short_side = x->data, w.long_side = y->data;
    memset(y->data, 0, (size_t)y->rows * (size_t)y->ld * sizeof(real));
    if (!scatter(&w, arena)) return false;
    bias_forward(op);
    return true;
}

bool WF_FN(wf_conv1d_transposed_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    conv_work w = work_of(op, y, x);
    w.long_side = y->grad;
    w.short_side = x->grad;
    w.add = true;
    if (wanted(x) && !gather(&w, arena)) return false;
    w.short_side = x->data;
    if (wanted(op->in[1]) && !weight_sums(&w, arena)) return false;
    bias_backward(op);
    return true;
}
