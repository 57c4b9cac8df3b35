/* tape: records whole-layer operations as they run, and walks them backwards.
 *
 *     wf_tape_start(&tape, dtype, true);
 *     wf_tensor *y = wf_linear(&tape, &(wf_linear_desc){.x = {h}, .weight = {W}, .bias = b});
 *     wf_tape_grad(&tape, y)[...] = dy;  wf_tape_backward(&tape);
 *
 * Everything lives in the tape's arenas: start resets them, so that after the first step nothing is
 * allocated. Data lies in the backend's memory, the records of operations in the host's. Out of
 * memory is sticky: constructors then return NULL and do nothing, and wf_tape_status() says so;
 * check it once at the end. Without `keep` nothing is recorded, residual operations work in place,
 * and the caller may rewind the arena between layers. */
#pragma once

#include "tensor/tensor.h"

/* Gradients that backward has done with, oldest first. */
enum { WF_TAPE_SPARES = 128 };
typedef struct wf_tape_spare {
    void *data;
    size_t bytes;
} wf_tape_spare;

/* The caller's gradients become complete in stages while backward runs. */
enum { WF_TAPE_STAGES = 4 };
typedef struct wf_tape_stages {
    int count; /* 0: none are told */
    /* The stage of a gradient that the caller gave memory; -1: of none. */
    int (*of)(const void *user, const void *grad);
    /* No operation that is still to run adds to gradients of this stage, nor of those before it.
     * Called once for each stage, in their order. */
    void (*over)(void *user, int stage);
    void *user;
} wf_tape_stages;

typedef struct wf_tape {
    const wf_backend *backend;
    wf_arena arena; /* data and scratch */
    /* of the host's tables in the backend's memory; never used again before the next start */
    wf_arena uploads;
    wf_arena records; /* tensors and operations, host memory */
    wf_op *last;
    size_t size; /* of a real */
    bool keep, failed;
    bool keep_gradients; /* backward does not use the memory of gradients again */
    /* Set after wf_tape_start. shapes: tensors have no data, and nothing runs; a model is walked
     * for its parameters. ctx: whose threads operations on the CPU may use; NULL: one thread.
     * watched: once this context is interrupted, no more operations run, as after a failure, and
     * what was computed must not be used; NULL: none is watched. */
    bool shapes;
    wf_ctx *ctx;
    const wf_ctx *watched;
    wf_tape_stages stages; /* stays over starts */
    wf_tape_spare spare[WF_TAPE_SPARES];
    int spares;
} wf_tape;

void wf_tape_start(wf_tape *tape, const wf_backend *backend, wf_dtype dtype, bool keep);
void wf_tape_free(wf_tape *tape);
/* Uninitialised memory of the backend's; NULL after or on failure. */
void *wf_tape_alloc(wf_tape *tape, size_t bytes);
/* The same of the host's, and its content in the backend's memory (the same place when that is the
 * host's). */
void *wf_tape_host(wf_tape *tape, size_t bytes);
void *wf_tape_upload(wf_tape *tape, const void *host, size_t bytes);
void wf_tape_zero(const wf_tape *tape, void *data, size_t bytes);
/* Empties the tape and leaves its arenas as large as the most they held. */
void wf_tape_tighten(wf_tape *tape);
size_t wf_tape_bytes(const wf_tape *tape); /* of the backend's memory */
/* Gives back what was allocated since, but for uploads. */
typedef struct wf_tape_mark {
    wf_arena_mark data, records;
} wf_tape_mark;
wf_tape_mark wf_tape_here(const wf_tape *tape);
void wf_tape_rewind(wf_tape *tape, wf_tape_mark mark);
/* A tensor to be filled by the host, all zero; wf_tape_filled hands it to the backend. */
wf_tensor *wf_tape_blank(wf_tape *tape, int rows, int cols);
wf_tensor *wf_tape_filled(wf_tape *tape, wf_tensor *tensor);
wf_tensor *wf_tape_tensor(wf_tape *tape, int rows, int cols, bool wants);
/* Rows of the caller's, which have no padding: a copy where kernels need one, on a backend with its
 * own memory a view. */
wf_tensor *wf_tape_rows(wf_tape *tape, const void *rows, int count, int cols);
/* A view of caller's memory without padding; grad NULL: none wanted. */
wf_tensor *wf_tape_view(wf_tape *tape, void *data, void *grad, int rows, int cols);
/* A weight matrix or vector: a view, packed here unless panels are given. */
wf_tensor *wf_tape_weight(wf_tape *tape, const void *data, void *grad, int rows, int cols,
                          const void *panels, const void *panels_t);
/* Zeroed gradient of a tensor, to be filled before backward. */
void *wf_tape_grad(wf_tape *tape, wf_tensor *tensor);
bool wf_tape_backward(wf_tape *tape); /* false: out of memory */
/* The backward of one operation alone, whose tensors have their gradients. */
bool wf_tape_backward_of(wf_tape *tape, const wf_op *op);
/* Runs an operation whose outputs are allocated, and records it for backward. */
void wf_tape_run(wf_tape *tape, wf_op *op);
/* Floating-point operations of the matrix products that forward and backward of the recorded
 * operations execute. */
double wf_tape_flops(const wf_tape *tape);

/* The caller's matrix as a weight is a wf_tape_weight, whose panels are read often, or a plain
 * wf_tape_view, which is read where it lies: right for large weights that change with every
 * step. */

/* y (R, out) = sum_k x_k (R, in_k) W_k' + scale[r] * bias + table[map[r]].  Absent parts are NULL;
 * scale NULL means 1. */
typedef struct wf_linear_desc {
    wf_tensor *x[4], *weight[4];
    wf_tensor *bias;
    const void *scale;
    wf_tensor *table;
    const uint32_t *map;
} wf_linear_desc;
wf_tensor *wf_linear(wf_tape *tape, const wf_linear_desc *desc);

wf_tensor *wf_activation_op(wf_tape *tape, wf_tensor *x, wf_tape_act act);

/* y = LN(x) * (1 + scale[g]) + shift[g], g = map[row]; shift and scale are columns column.., column
 * + D.. of modulation (B, .). modulation NULL: y = LN(x). eps 1e-6, no affine. */
wf_tensor *wf_norm_op(wf_tape *tape, wf_tensor *x, wf_tensor *modulation, int column,
                      const uint32_t *map);

/* y = x + (1 + gate[g]) * r, gate in columns column.. of modulation; modulation NULL: y = x + r.
 * Continues x. */
wf_tensor *wf_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation, int column,
                       const uint32_t *map);

/* (N, D) -> (B, D): mean over each graph's rows start[b] .. start[b+1]-1; zero for none. */
wf_tensor *wf_mean_op(wf_tape *tape, wf_tensor *x, int graphs, const uint32_t *start);
/* y[r] = table[map[r]], r < rows; map NULL: row 0 everywhere. */
wf_tensor *wf_gather(wf_tape *tape, wf_tensor *table, int rows, const uint32_t *map);
/* y = x, y[map[r]] += rows[r]; no row twice. Continues x. */
wf_tensor *wf_insert(wf_tape *tape, wf_tensor *x, wf_tensor *rows, const uint32_t *map);
/* The top frequency of time codes where nothing else is asked for. */
#define WF_TIME_FREQUENCY 1000.0
/* t (B, 1) -> (B, width): cos then sin of frequency * t * 10000^(-i/(width/2)). */
wf_tensor *wf_time_features(wf_tape *tape, wf_tensor *t, int width, double frequency);
/* y[b] = flags[b] ? null : x[b]; null (1, D). */
wf_tensor *wf_null_rows(wf_tape *tape, wf_tensor *x, wf_tensor *null, const uint8_t *flags);
/* (1, H) = a (1, D) M (D, H): the attention logit a.(M y) as a vector against y. */
wf_tensor *wf_logit(wf_tape *tape, wf_tensor *a, wf_tensor *m);

/* Code of the parameters of each edge, w (P) -> (E, D). A (D, 1), b (D) for single values; kernel_A
 * (D, c), kernel_b (D) for edges of c coefficients, one pair for each c (NULL after the last).
 * Fourier: A (D/2, .), no bias. */
typedef struct wf_edge_features_desc {
    wf_value_code code;
    int width;
    wf_tensor *w, *a, *b, *kernel_a[WF_KERNELS], *kernel_b[WF_KERNELS];
} wf_edge_features_desc;
wf_tensor *wf_edge_features(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc);
/* y = linear of these features: (E, out) = weight code + table[map]. */
wf_tensor *wf_edge_encoder(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc,
                           wf_tensor *weight, wf_tensor *table, const uint32_t *map);
/* (E, out) = last.weight act(first.weight LN(e) + first.bias) + last.bias. */
typedef struct wf_edge_readout_desc {
    wf_tensor *e, *weight, *bias, *last_weight, *last_bias;
    wf_tape_act act;
} wf_edge_readout_desc;
wf_tensor *wf_edge_readout(wf_tape *tape, const wf_edge_readout_desc *desc);
/* w (P) -> (fold rows, columns): weights of a row, then its bias. A shorter row is followed by
 * zeros. */
wf_tensor *wf_fold_pack(wf_tape *tape, const wf_part *part, wf_tensor *w, int columns);
/* v (P) from edge readouts (E, 1), (E, c) for each size c of kernels, and fold rows, each NULL when
 * there are none. v is the caller's. */
void wf_velocity(wf_tape *tape, const wf_part *part, wf_tensor *single,
                 wf_tensor *const kernel[WF_KERNELS], wf_tensor *fold, wf_tensor *v);

/* Edges of a lean block. e (E, de), modulation (B, .): shift, scale, gate at column; ad, as (N, 2mo
 * + 2de) with bias and global part in ad; w1 (2mo + 2de, de), w2 (de, 2de), c2 (de); vf, vb (1,
 * 2mo): attention, else NULL.
 *   eb = LN(e) modulated     [m | z] = act(w1 eb + ad[dst] + as[src])
 *   e' = e + (1 + gate) * (w2 z + c2)    mean = mean eb
 *   to_dst = sum m over edges in, to_src = sum m over edges out
 * sums = false: to_dst and to_src are not wanted (last block). partials: see
 * wf_lean_nodes_take_partials. */
typedef struct wf_lean_desc {
    wf_tensor *e, *modulation, *ad, *as, *w1, *w2, *c2, *vf, *vb, *partials;
    int column, messages;
    wf_tape_act act;
    wf_sum sum;
    bool sums;
} wf_lean_desc;
typedef struct wf_lean_out {
    wf_tensor *e, *to_dst, *to_src, *mean;
} wf_lean_out;
wf_lean_out wf_lean_edges(wf_tape *tape, const wf_part *part, const wf_lean_desc *desc);
/* Whether the backend's kernels for the nodes of a lean block add up the partial sums that those of
 * its edges leave. desc: without tables; h: the nodes. All three operations of a block are then
 * given the same memory for these, `partials`, which blocks share (models/edge_bundles.h says how
 * much they take). With partials, data of hb, to_dst and to_src and gradients of ad and as are
 * the kernels' own, and no other operation may read them. */
bool wf_lean_nodes_take_partials(const wf_tape *tape, const wf_part *part, const wf_lean_desc *desc,
                                 wf_tensor *h);

/* What the nodes of a lean block are for its edges. h (N, dn), modulation (B, .): shift, scale at
 * column; first, second (H, dn), graph (B, H).
 *   hb = LN(h) modulated   i = hb first' + graph[g]   j = hb second'   mean = mean hb of each graph
 * mean = false: not wanted (last block). */
typedef struct wf_node_tables_desc {
    wf_tensor *h, *modulation, *first, *second, *graph, *partials;
    int column;
    bool mean;
} wf_node_tables_desc;
typedef struct wf_node_tables_out {
    wf_tensor *hb, *i, *j, *mean;
} wf_node_tables_out;
wf_node_tables_out wf_node_tables(wf_tape *tape, const wf_part *part,
                                  const wf_node_tables_desc *desc);

/* Nodes of a lean block. to_dst, to_src (N, 2mo): those of the edges; forward, backward (dn, 2mo),
 * w_h, w_f, w_b (2dn, dn), table (B, 2dn), w (dn, 2dn), c (dn); modulation: gate at column.
 *   x = hb w_h' + (to_dst forward') w_f' + (to_src backward') w_b' + table[g]
 *   h' = h + (1 + gate) (act(x) w' + c)
 * Continues h. */
typedef struct wf_lean_nodes_desc {
    wf_tensor *h, *hb, *to_dst, *to_src, *forward, *backward, *w_h, *w_f, *w_b, *table, *w, *c,
        *modulation, *partials;
    int column;
    wf_tape_act act;
    wf_sum sum; /* of the edges, with partials */
} wf_lean_nodes_desc;
wf_tensor *wf_lean_nodes(wf_tape *tape, const wf_part *part, const wf_lean_nodes_desc *desc);

/* Messages of an lstar block, both directions through one MLP whose last affine stands after the
 * sum.
 *   x1 = me eb + ai[receiver] + aj[sender]   y2 = act(m2 act(x1) + b2)
 *   S (N, H) = sum y2 over all messages entering
 * mean (B, de) = mean eb. v (1, H): attention, else NULL. */
typedef struct wf_lstar_messages_desc {
    wf_tensor *e, *modulation, *ai, *aj, *me, *m2, *b2, *v;
    int column;
    wf_tape_act act;
    wf_sum sum;
} wf_lstar_messages_desc;
typedef struct wf_lstar_messages_out {
    wf_tensor *sum, *mean;
} wf_lstar_messages_out;
wf_lstar_messages_out wf_lstar_messages(wf_tape *tape, const wf_part *part,
                                        const wf_lstar_messages_desc *desc);

/* Edge update of an lstar block: e' = e + e3 act(e2 act(ee eb + ci[dst] + cj[src]) + c2) + c3.
 * Continues e. */
typedef struct wf_lstar_edges_desc {
    wf_tensor *e, *modulation, *ci, *cj, *ee, *e2, *c2, *e3, *c3;
    int column;
    wf_tape_act act;
} wf_lstar_edges_desc;
wf_tensor *wf_lstar_edges(wf_tape *tape, const wf_part *part, const wf_lstar_edges_desc *desc);

/* --- sequences: rows are the tokens of B sequences, those of one sequence one after another --- */
/* y = LN(x) * weight + bias; weight, bias (1, D), either may be NULL. */
wf_tensor *wf_layer_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         double eps);
/* y = x + gate[g] * r, g = map[row], gate in columns column.. of modulation (B, .). Continues x. */
wf_tensor *wf_gated_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation,
                             int column, const uint32_t *map);
/* Self-attention of `heads` heads without a mask. qkv (B * tokens, 3D): queries, keys, values of D
 * columns each, heads one after another in them; y (B * tokens, D) = softmax(q k' / sqrt(D /
 * heads)) v in each head. */
wf_tensor *wf_attention(wf_tape *tape, wf_tensor *qkv, int heads, int tokens);
/* y = x / (1 - p) where kept, else 0; each value is kept with probability 1 - p. key NULL: y is x.
 * site: 0..255, another one for each dropout of a model. */
wf_tensor *wf_dropout(wf_tape *tape, wf_tensor *x, double p, int site, const wf_dropout_key *key);
/* The same of gains, which enter elsewhere as 1 + x: y = (1 + x) / (1 - p) - 1 where kept, else -1,
 * in the columns c with gains[c] != 0 (uploaded); the others stay. */
wf_tensor *wf_dropout_gains(wf_tape *tape, wf_tensor *x, double p, int site,
                            const wf_dropout_key *key, const uint32_t *gains);
/* y = x, y[r][column..] += table[map[r]]: learned positions. Continues x. */
wf_tensor *wf_add_table(wf_tape *tape, wf_tensor *x, wf_tensor *table, int column,
                        const uint32_t *map);
/* y[r][c] = x[r][c] + s[r]; s (R, 1). */
wf_tensor *wf_add_column(wf_tape *tape, wf_tensor *x, wf_tensor *s);
/* y = [x0 | x1 | ...], `count` of them (at most WF_OP_INPUTS) with as many rows each. */
wf_tensor *wf_concat(wf_tape *tape, wf_tensor *const *x, int count);
/* x (B, D) -> (B * tokens, width): value c of token k is x[map[k * width + c]], zero for
 * WF_NO_VALUE. map NULL: x cut into pieces of `width` values, zeros after the last. No column of x
 * is in the map twice. */
wf_tensor *wf_to_tokens(wf_tape *tape, wf_tensor *x, int tokens, int width, const uint32_t *map);
/* The other way: x (B * tokens, width) -> (B, columns); a column that no token has is zero. out: a
 * (B, columns) view of the caller's, or NULL for a new tensor. With one token this copies rows. */
wf_tensor *wf_from_tokens(wf_tape *tape, wf_tensor *x, int tokens, int columns, const uint32_t *map,
                          wf_tensor *out);

/* y = (x - mean) / sqrt(variance + eps) * weight + bias for each column. training: of all rows, and
 * running (2, C), means then variances, moves towards them by a tenth, the variance with R - 1;
 * else mean and variance are those of `running`. weight, bias (1, C). */
wf_tensor *wf_batch_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         wf_tensor *running, bool training, double eps);
/* Sequences (B * length, C) -> (B * windows, out): row i of a sequence sees its positions i *
 * stride - padding .. + kernel - 1. weight (out, kernel * C): the values of one position after
 * another; bias (1, out) or NULL. windows = (length + 2 padding - kernel) / stride + 1. */
wf_tensor *wf_conv1d(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                     const wf_conv1d_desc *desc);
/* The transpose of such a map: (B * length, C) -> (B * positions, out), positions = (length - 1)
 * stride - 2 padding + kernel + output_padding. weight (C, kernel * out). */
wf_tensor *wf_conv1d_transposed(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                                const wf_conv1d_desc *desc);

/* --- losses: (1, 1); the caller sets their gradient to the weight of the loss ----------------- */
/* Mean over all entries of (mask * x - target)^2; mask NULL: 1. Gradient by x alone. */
wf_tensor *wf_mse(wf_tape *tape, wf_tensor *x, wf_tensor *target, wf_tensor *mask);
/* NT-Xent of two views, z (2n, D): rows i and i + n belong together. s_ij = cosine of rows i and j
 * / temperature; mean over i of ln(sum over j != i of e^s_ij) - s_i,partner. */
wf_tensor *wf_nt_xent(wf_tape *tape, wf_tensor *z, double temperature);
