/* attention_cpu: multi-head self-attention without a mask.
 *
 * One sequence and head after another, T tokens of width d, with queries in blocks of 48, so that a
 * block's logits (48, T) stay in the second-level cache and the (T, T) matrix is never stored:
 *   forward   S = Q K' / sqrt(d), P = softmax(S), O = P V; of each row the logarithm of its sum
 *             of exponentials is kept
 *   backward  P = exp(S - log sum), dV += P' dO, dS = P (dO V' - dO.O) / sqrt(d), dQ = dS K, dK
 *             += dS' Q
 * Blocks run in order, so the sums over queries have the same bits for any number of threads. */
#include "tensor/cpu/kernels.h"
#include "weft/base.h"

enum { query_block = 48 };

typedef struct attention_work {
    const wf_op *op;
    real *scratch;
    size_t each;                             /* reals of a worker */
    int tokens, heads, width, padded, pitch; /* of a head, padded; tokens padded */
} attention_work;

static attention_work work_of(const wf_op *op) {
    attention_work w = {.op = op, .tokens = op->tokens, .heads = op->heads};
    w.width = op->out[0]->cols / op->heads;
    w.padded = wf_pad(w.width);
    w.pitch = wf_pad(w.tokens);
    return w;
}

static bool run_heads(attention_work *w, wf_arena *arena, size_t each, wf_chunk_fn *fn) {
    int sequences = w->op->out[0]->rows / w->tokens;
    int workers = w->op->ctx == NULL ? 1 : wf_ctx_threads(w->op->ctx);
    w->each = each + WF_PAD;
    w->scratch = scratch(arena, w->each * (size_t)workers);
    if (w->scratch == NULL) return false;
    wf_parallel(w->op->ctx, (size_t)sequences * (size_t)w->heads, fn, w);
    return true;
}

/* Row `row` of queries (part 0), keys (1) or values (2) of a head. */
static const real *part_row(const attention_work *w, int part, size_t row, int head) {
    return row_of(w->op->in[0], row) + part * w->op->out[0]->cols + head * w->width;
}

/* Largest of n values. */
static real row_max(const real *x, int n) {
    vreal most = {0};
    most += x[0];
    each_vector(i, n) {
        vreal v = load(x + i);
        __typeof__(v > most) larger = v > most; /* all bits of a lane, or none */
        most = (vreal)((larger & (__typeof__(larger))v) | (~larger & (__typeof__(larger))most));
    }
    real max = most[0];
    for (int lane = 1; lane < WF_LANES; lane++) max = most[lane] > max ? most[lane] : max;
    each_rest(i, n) max = x[i] > max ? x[i] : max;
    return max;
}

/* x = exp(factor * x - shift), and the sum. */
static real row_exp(real *x, int n, real factor, real shift) {
    vreal total = {0};
    each_vector(i, n) {
        vreal v = act_exp(load(x + i) * factor - shift);
        store(x + i, v);
        total += v;
    }
    real sum = vector_sum(total);
    each_rest(i, n) {
        x[i] = r_exp(x[i] * factor - shift);
        sum += x[i];
    }
    return sum;
}

static void head_forward(void *arg, size_t chunk, int worker) {
    const attention_work *w = arg;
    const int tokens = w->tokens, width = w->width, pitch = w->pitch, padded = w->padded;
    const int ld = w->op->in[0]->ld, head = (int)(chunk % (size_t)w->heads);
    const size_t row0 = chunk / (size_t)w->heads * (size_t)tokens;
    const real factor = 1 / r_sqrt((real)width);
    real *keys = w->scratch + (size_t)worker * w->each;
    real *values = keys + (size_t)width * (size_t)pitch;
    real *logits = values + (size_t)tokens * (size_t)padded;
    real *result = logits + (size_t)query_block * (size_t)pitch;
    real *saved = (real *)w->op->saved + chunk * (size_t)tokens;
    WF_FN(wf_pack_panels)(part_row(w, 1, row0, head), 1, ld, width, tokens, keys);
    WF_FN(wf_pack_panels)(part_row(w, 2, row0, head), ld, 1, tokens, width, values);
    for (int first = 0; first < tokens; first += query_block) {
        int rows = tokens - first < query_block ? tokens - first : query_block;
        gemm_packed(logits, pitch, part_row(w, 0, row0 + (size_t)first, head), ld, keys, rows,
                    width, tokens, false);
        for (int i = 0; i < rows; i++) {
            real *row = logits + (size_t)i * (size_t)pitch, most = factor * row_max(row, tokens);
            real sum = row_exp(row, tokens, factor, most);
            saved[first + i] = most + r_log(sum);
            sum = 1 / sum;
            each_vector(c, tokens) store(row + c, load(row + c) * sum);
            each_rest(c, tokens) row[c] *= sum;
        }
        gemm_packed(result, padded, logits, pitch, values, rows, tokens, width, false);
        for (int i = 0; i < rows; i++)
            memcpy(row_of(w->op->out[0], row0 + (size_t)(first + i)) + head * width,
                   result + (size_t)i * (size_t)padded, (size_t)width * sizeof(real));
    }
}

bool WF_FN(wf_attention_forward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0];
    attention_work w = work_of(op);
    size_t each = (size_t)w.width * (size_t)w.pitch + (size_t)w.tokens * (size_t)w.padded +
                  query_block * (size_t)(w.pitch + w.padded);
    for (int r = 0; r < y->rows && y->ld > y->cols; r++)
        memset(row_of(y, r) + y->cols, 0, (size_t)(y->ld - y->cols) * sizeof(real));
    return run_heads(&w, arena, each, head_forward);
}

/* Rows of `width` values into rows of `padded`, the rest zero. */
static void copy_rows(real *to, int padded, const real *from, int ld, int rows, int width) {
    for (int i = 0; i < rows; i++) {
        memcpy(to + (ptrdiff_t)i * padded, from + (ptrdiff_t)i * ld, (size_t)width * sizeof(real));
        for (int c = width; c < padded; c++) to[(ptrdiff_t)i * padded + c] = 0;
    }
}

static void head_backward(void *arg, size_t chunk, int worker) {
    const attention_work *w = arg;
    const wf_tensor *in = w->op->in[0], *out = w->op->out[0];
    const int tokens = w->tokens, width = w->width, pitch = w->pitch, padded = w->padded;
    const int head = (int)(chunk % (size_t)w->heads), column = head * width;
    const size_t row0 = chunk / (size_t)w->heads * (size_t)tokens;
    const real factor = 1 / r_sqrt((real)width);
    const real *saved = (const real *)w->op->saved + chunk * (size_t)tokens;
    real *next = w->scratch + (size_t)worker * w->each;
#define TAKE(count) (next += (count), next - (count))
    real *keys_t = TAKE((size_t)width * (size_t)pitch),
         *values_t = TAKE((size_t)width * (size_t)pitch);
    real *keys = TAKE((size_t)tokens * (size_t)padded);
    real *dkeys = TAKE((size_t)tokens * (size_t)padded);
    real *dvalues = TAKE((size_t)tokens * (size_t)padded);
    real *logits = TAKE((size_t)query_block * (size_t)pitch);
    real *slopes = TAKE((size_t)query_block * (size_t)pitch);
    real *query = TAKE((size_t)query_block * (size_t)padded);
    real *dout = TAKE((size_t)query_block * (size_t)padded);
    real *dquery = TAKE((size_t)query_block * (size_t)padded);
#undef TAKE
    WF_FN(wf_pack_panels)(part_row(w, 1, row0, head), 1, in->ld, width, tokens, keys_t);
    WF_FN(wf_pack_panels)(part_row(w, 2, row0, head), 1, in->ld, width, tokens, values_t);
    WF_FN(wf_pack_panels)(part_row(w, 1, row0, head), in->ld, 1, tokens, width, keys);
    memset(dkeys, 0, 2 * (size_t)tokens * (size_t)padded * sizeof(real)); /* and dvalues */
    for (int first = 0; first < tokens; first += query_block) {
        int rows = tokens - first < query_block ? tokens - first : query_block;
        size_t row = row0 + (size_t)first;
        copy_rows(query, padded, part_row(w, 0, row, head), in->ld, rows, width);
        copy_rows(dout, padded, grad_row(out, row) + column, out->ld, rows, width);
        gemm_packed(logits, pitch, query, padded, keys_t, rows, width, tokens, false);
        gemm_packed(slopes, pitch, dout, padded, values_t, rows, width, tokens, false);
        for (int i = 0; i < rows; i++) {
            real *p = logits + (size_t)i * (size_t)pitch,
                 *slope = slopes + (size_t)i * (size_t)pitch;
            real along = row_dot(dout + (size_t)i * (size_t)padded,
                                 row_of(out, row + (size_t)i) + column, width);
            row_exp(p, tokens, factor, saved[first + i]);
            each_vector(c, tokens)
                store(slope + c, load(p + c) * (load(slope + c) - along) * factor);
            each_rest(c, tokens) slope[c] = p[c] * (slope[c] - along) * factor;
        }
        gemm_transposed(dvalues, padded, logits, pitch, dout, padded, tokens, rows, width);
        gemm_transposed(dkeys, padded, slopes, pitch, query, padded, tokens, rows, width);
        gemm_packed(dquery, padded, slopes, pitch, keys, rows, tokens, width, false);
        for (int i = 0; i < rows; i++)
            row_add(grad_row(in, row + (size_t)i) + column, dquery + (size_t)i * (size_t)padded,
                    width);
    }
    for (int t = 0; t < tokens; t++) {
        real *grad = grad_row(in, row0 + (size_t)t) + column;
        row_add(grad + out->cols, dkeys + (size_t)t * (size_t)padded, width);
        row_add(grad + 2 * out->cols, dvalues + (size_t)t * (size_t)padded, width);
    }
}

bool WF_FN(wf_attention_backward)(const wf_op *op, wf_arena *arena) {
    attention_work w = work_of(op);
    size_t pitch = (size_t)w.pitch, padded = (size_t)w.padded;
    return run_heads(&w, arena,
                     2 * (size_t)w.width * pitch + 3 * (size_t)w.tokens * padded +
                         query_block * (2 * pitch + 3 * padded),
                     head_backward);
}
