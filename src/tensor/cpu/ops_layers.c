/* ops_layers: operations of networks over rows of tokens: affine layer norm, dropout, positions,
 * concatenation, tokens. Formulas: tape.h. */
#include "tensor/cpu/product.h"
#include "weft/rng.h"

/* --- layer norm with affine part -------------------------------------------------------------- */
static void layer_norm_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    const real *weight = op->in[1] != NULL ? op->in[1]->data : NULL;
    const real *bias = op->in[2] != NULL ? op->in[2]->data : NULL;
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r), mean;
        norm_row_by(row_of(x, r), x->cols, y->ld, (real)op->value, out, &mean);
        for (int c = 0; weight != NULL && c < x->cols; c++) out[c] *= weight[c];
        if (bias != NULL) row_add(out, bias, x->cols);
    }
}

WF_OVER_ROWS(layer_norm_forward, op->in[0], layer_norm_range)

/* Scratch: normalised rows (R, ld), then gradients by them (R, ld). */
static void layer_norm_back_range(const wf_op *op, void *more, int first, int last) {
    const wf_tensor *x = op->in[0], *y = op->out[0];
    const real *weight = op->in[1] != NULL ? op->in[1]->data : NULL;
    size_t ld = (size_t)y->ld, rows = (size_t)y->rows;
    for (int r = first; r < last; r++) {
        real *hat = (real *)more + (size_t)r * ld, *g = hat + rows * ld, mean;
        real rho = norm_row_by(row_of(x, r), x->cols, y->ld, (real)op->value, hat, &mean);
        const real *dy = grad_row(y, r);
        for (int c = 0; c < x->cols; c++) g[c] = weight != NULL ? dy[c] * weight[c] : dy[c];
        if (wanted(x)) norm_row_backward(grad_row(x, r), g, hat, rho, x->cols);
    }
}

static void affine_sums(const wf_op *op, void *more, int first, int last) {
    const wf_tensor *weight = op->in[1], *bias = op->in[2], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) {
        const real *dy = grad_row(y, r), *hat = (const real *)more + (size_t)r * (size_t)y->ld;
        if (wanted(weight)) {
            real *sum = weight->grad;
            for (int c = first; c < last; c++) sum[c] += dy[c] * hat[c];
        }
        if (wanted(bias)) row_add((real *)bias->grad + first, dy + first, last - first);
    }
}

bool WF_FN(wf_layer_norm_backward)(const wf_op *op, wf_arena *arena) {
    const wf_tensor *y = op->out[0];
    real *hat = scratch(arena, 2 * (size_t)y->rows * (size_t)y->ld);
    if (hat == NULL) return false;
    over_rows(op, y->rows, y->ld, layer_norm_back_range, hat);
    if (wanted(op->in[1]) || wanted(op->in[2])) over_columns(op, y->cols, affine_sums, hat);
    return true;
}

/* --- dropout ---------------------------------------------------------------------------------- */
/* out [+]= in where kept, over 1 - p. With op->map the columns that it names are gains, which count
 * from -1 on: forward (not add) they lose 1 + in. */
static inline __attribute__((always_inline)) void drop_row(const wf_op *op, int row, const real *in,
                                                           real *out, int cols, const bool add) {
    const wf_dropout_key *key = &op->key;
    const uint32_t *gains = op->map;
    const uint32_t limit = (uint32_t)(op->value * 16777216.0); /* of 24 bits */
    const real factor = (real)(1 / (1 - op->value));
    for (int first = 0; first < cols; first += 4) {
        uint32_t word[4], counter[4] = {((uint32_t)op->mode << 24) + (uint32_t)first / 4,
                                        *key->update, key->row + (uint32_t)row, WF_RNG_DROPOUT};
        wf_philox(counter, key->seed, word);
        for (int c = first; c < first + 4 && c < cols; c++) {
            bool kept = word[c - first] >> 8 >= limit;
            real value = kept ? in[c] * factor : 0;
            if (gains != NULL && gains[c] == 0) value = in[c];
            else if (gains != NULL && !add) value = kept ? (1 + in[c]) * factor - 1 : -1;
            out[c] = add ? out[c] + value : value;
        }
    }
}

static void dropout_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r);
        drop_row(op, r, row_of(x, r), out, x->cols, false);
        for (int c = x->cols; c < y->ld; c++) out[c] = 0;
    }
}
static void dropout_back_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    for (int r = first; r < last; r++)
        drop_row(op, r, grad_row(op->out[0], r), grad_row(op->in[0], r), op->in[0]->cols, true);
}

bool WF_FN(wf_dropout_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    over_rows(op, op->in[0]->rows, 8 * op->in[0]->ld, dropout_range, NULL);
    return true;
}
bool WF_FN(wf_dropout_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    over_rows(op, op->in[0]->rows, 8 * op->in[0]->ld, dropout_back_range, NULL);
    return true;
}

/* --- positions -------------------------------------------------------------------------------- */
static void add_table_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *table = op->in[1], *y = op->out[0];
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r);
        if (y->data != x->data) memcpy(out, row_of(x, r), (size_t)y->ld * sizeof(real));
        row_add(out + op->column, row_of(table, op->map[r]), table->cols);
    }
}
static void add_table_sums(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *table = op->in[1], *y = op->out[0];
    for (int r = 0; r < y->rows; r++)
        row_add(grad_row(table, op->map[r]) + first, grad_row(y, r) + op->column + first,
                last - first);
}

WF_OVER_ROWS(add_table_forward, op->in[0], add_table_range)
bool WF_FN(wf_add_table_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    if (wanted(op->in[1])) over_columns(op, op->in[1]->cols, add_table_sums, NULL);
    return true;
}

static void add_column_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *s = op->in[1], *y = op->out[0];
    for (int r = first; r < last; r++) {
        const real *in = row_of(x, r), value = row_of(s, r)[0];
        real *out = row_of(y, r);
        for (int c = 0; c < x->cols; c++) out[c] = in[c] + value;
        for (int c = x->cols; c < y->ld; c++) out[c] = 0;
    }
}
static void add_column_back_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *x = op->in[0], *s = op->in[1], *y = op->out[0];
    for (int r = first; r < last; r++) {
        if (wanted(x)) row_add(grad_row(x, r), grad_row(y, r), x->cols);
        if (wanted(s)) grad_row(s, r)[0] += row_sum(grad_row(y, r), x->cols);
    }
}

WF_OVER_ROWS(add_column_forward, op->in[0], add_column_range)
WF_OVER_ROWS(add_column_backward, op->in[0], add_column_back_range)

/* --- concatenation ---------------------------------------------------------------------------- */
static void concat_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    const wf_tensor *y = op->out[0];
    for (int r = first; r < last; r++) {
        real *out = row_of(y, r);
        for (int k = 0; k < WF_OP_INPUTS && op->in[k] != NULL; out += op->in[k++]->cols)
            memcpy(out, row_of(op->in[k], r), (size_t)op->in[k]->cols * sizeof(real));
        memset(out, 0, (size_t)(y->ld - y->cols) * sizeof(real));
    }
}
static void concat_back_range(const wf_op *op, void *more, int first, int last) {
    (void)more;
    for (int r = first; r < last; r++) {
        const real *dy = grad_row(op->out[0], r);
        for (int k = 0; k < WF_OP_INPUTS && op->in[k] != NULL; dy += op->in[k++]->cols)
            if (wanted(op->in[k])) row_add(grad_row(op->in[k], r), dy, op->in[k]->cols);
    }
}

WF_OVER_ROWS(concat_forward, op->out[0], concat_range)
WF_OVER_ROWS(concat_backward, op->out[0], concat_back_range)

/* --- tokens ----------------------------------------------------------------------------------- */
/* The tokens of sequence b and its flat row, from = of either. Each value is set or added: to a
 * token, or to the flat row. */
typedef struct token_view {
    const wf_tensor *flat, *tokens;
    bool gradients, to_flat, add;
} token_view;

static void move_tokens(const wf_op *op, void *more, int first, int last) {
    const token_view *v = more;
    const wf_tensor *tokens = v->tokens;
    int width = tokens->cols, columns = v->flat->cols;
    for (int b = first; b < last; b++) {
        real *flat = v->gradients ? grad_row(v->flat, b) : row_of(v->flat, b);
        for (int k = 0; k < op->tokens; k++) {
            size_t row = (size_t)b * (size_t)op->tokens + (size_t)k;
            real *token = v->gradients ? grad_row(tokens, row) : row_of(tokens, row);
            for (int c = 0; c < width; c++) {
                size_t i = (size_t)k * (size_t)width + (size_t)c;
                size_t at = op->map != NULL ? op->map[i] : i;
                bool none = at >= (size_t)columns;
                if (!v->to_flat) token[c] = (v->add ? token[c] : 0) + (none ? 0 : flat[at]);
                else if (!none) flat[at] = (v->add ? flat[at] : 0) + token[c];
            }
        }
    }
}

bool WF_FN(wf_to_tokens_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    if (y->ld > y->cols)
        for (int r = 0; r < y->rows; r++)
            memset(row_of(y, r) + y->cols, 0, (size_t)(y->ld - y->cols) * sizeof(real));
    over_rows(op, x->rows, x->cols, move_tokens, &(token_view){x, y, false, false, false});
    return true;
}
bool WF_FN(wf_to_tokens_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    if (!wanted(x)) return true; /* an input whose gradient is not wanted */
    over_rows(op, x->rows, x->cols, move_tokens, &(token_view){x, y, true, true, true});
    return true;
}

bool WF_FN(wf_from_tokens_forward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    for (int r = 0; r < y->rows; r++) memset(row_of(y, r), 0, (size_t)y->ld * sizeof(real));
    over_rows(op, y->rows, y->cols, move_tokens, &(token_view){y, x, false, true, false});
    return true;
}
bool WF_FN(wf_from_tokens_backward)(const wf_op *op, wf_arena *arena) {
    (void)arena;
    const wf_tensor *x = op->in[0], *y = op->out[0];
    over_rows(op, y->rows, y->cols, move_tokens, &(token_view){y, x, true, false, true});
    return true;
}
