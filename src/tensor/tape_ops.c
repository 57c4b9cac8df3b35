/* tape_ops: the constructors of all operations. Each checks shapes, makes the outputs and runs.
 * After a failure of the tape, inputs may be NULL and nothing is done. */
#include "tensor/tape.h"

#include <assert.h>

static bool any_wants(const wf_op *op) {
    for (int i = 0; i < WF_OP_INPUTS; i++)
        if (op->in[i] != NULL && op->in[i]->wants) return true;
    return false;
}

static wf_tensor *output(wf_tape *tape, const wf_op *op, int rows, int cols) {
    return wf_tape_tensor(tape, rows, cols, any_wants(op));
}

/* The output of an operation that continues `stream`: without keep the same tensor, else new data
 * that shares the gradient of the stream. */
static wf_tensor *continued(wf_tape *tape, const wf_op *op, wf_tensor *stream) {
    if (!tape->keep) return stream;
    wf_tensor *tensor = output(tape, op, stream->rows, stream->cols);
    if (tensor != NULL) tensor->shares = stream->shares != NULL ? stream->shares : stream;
    return tensor;
}

/* Runs an operation with one new output. */
static wf_tensor *made(wf_tape *tape, wf_op *op, int rows, int cols) {
    op->out[0] = output(tape, op, rows, cols);
    wf_tape_run(tape, op);
    return op->out[0];
}

/* Runs an operation that continues `stream`. */
static wf_tensor *made_on(wf_tape *tape, wf_op *op, wf_tensor *stream) {
    op->out[0] = continued(tape, op, stream);
    wf_tape_run(tape, op);
    return op->out[0];
}

wf_tensor *wf_linear(wf_tape *tape, const wf_linear_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_linear, .scale = desc->scale, .map = desc->map};
    for (int k = 0; k < 4; k++) {
        op.in[2 * k] = desc->x[k];
        op.in[2 * k + 1] = desc->weight[k];
        assert(desc->x[k] == NULL ||
               (desc->x[k]->cols == desc->weight[k]->cols && desc->x[k]->rows == desc->x[0]->rows &&
                desc->weight[k]->rows == desc->weight[0]->rows));
    }
    op.in[8] = desc->bias;
    op.in[9] = desc->table;
    return made(tape, &op, desc->x[0]->rows, desc->weight[0]->rows);
}

wf_tensor *wf_activation_op(wf_tape *tape, wf_tensor *x, wf_tape_act act) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_activation, .in = {x}, .act = (int)act};
    return made(tape, &op, x->rows, x->cols);
}

wf_tensor *wf_norm_op(wf_tape *tape, wf_tensor *x, wf_tensor *modulation, int column,
                      const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(modulation == NULL || column + 2 * x->cols <= modulation->cols);
    wf_op op = {.kind = WF_OP_norm, .in = {x, modulation}, .column = column, .map = map};
    return made(tape, &op, x->rows, x->cols);
}

wf_tensor *wf_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation, int column,
                       const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->rows == r->rows && x->cols == r->cols);
    wf_op op = {.kind = WF_OP_residual, .in = {x, r, modulation}, .column = column, .map = map};
    return made_on(tape, &op, x);
}

wf_tensor *wf_mean_op(wf_tape *tape, wf_tensor *x, int graphs, const uint32_t *start) {
    if (tape->failed) return NULL;
    return made(tape, &(wf_op){.kind = WF_OP_mean, .in = {x}, .start = start}, graphs, x->cols);
}

wf_tensor *wf_gather(wf_tape *tape, wf_tensor *table, int rows, const uint32_t *map) {
    if (tape->failed) return NULL;
    return made(tape, &(wf_op){.kind = WF_OP_gather, .in = {table}, .map = map}, rows, table->cols);
}

wf_tensor *wf_insert(wf_tape *tape, wf_tensor *x, wf_tensor *rows, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->cols == rows->cols);
    return made_on(tape, &(wf_op){.kind = WF_OP_insert, .in = {x, rows}, .map = map}, x);
}

wf_tensor *wf_time_features(wf_tape *tape, wf_tensor *t, int width, double frequency) {
    if (tape->failed) return NULL;
    assert(width % 2 == 0);
    wf_op op = {.kind = WF_OP_time_features, .in = {t}, .value = frequency};
    return made(tape, &op, t->rows, width);
}

wf_tensor *wf_null_rows(wf_tape *tape, wf_tensor *x, wf_tensor *null, const uint8_t *flags) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_null_rows, .in = {x, null}, .flags = flags};
    return made(tape, &op, x->rows, x->cols);
}

wf_tensor *wf_logit(wf_tape *tape, wf_tensor *a, wf_tensor *m) {
    if (tape->failed) return NULL;
    assert(a->cols == m->rows);
    return made(tape, &(wf_op){.kind = WF_OP_logit, .in = {a, m}}, 1, m->cols);
}

wf_tensor *wf_edge_features(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_features,
                .in = {desc->w, desc->a, desc->b},
                .mode = (int)desc->code,
                .part = part};
    for (int k = 0; k < WF_KERNELS; k++) {
        op.in[3 + 2 * k] = desc->kernel_a[k];
        op.in[4 + 2 * k] = desc->kernel_b[k];
    }
    return made(tape, &op, part->n_edges, desc->width);
}

static bool fuses(const wf_tape *tape, wf_op *op) {
    op->backend = tape->backend;
    return tape->backend->fuses != NULL && tape->backend->fuses(op);
}

wf_tensor *wf_edge_encoder(wf_tape *tape, const wf_part *part, const wf_edge_features_desc *desc,
                           wf_tensor *weight, wf_tensor *table, const uint32_t *map) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_encoder,
                .in = {desc->w, desc->a, desc->b, weight, table},
                .mode = (int)desc->code,
                .map = map,
                .part = part};
    if (desc->kernel_a[0] != NULL || !fuses(tape, &op)) {
        wf_tensor *code = wf_edge_features(tape, part, desc);
        return wf_linear(
            tape, &(wf_linear_desc){.x = {code}, .weight = {weight}, .table = table, .map = map});
    }
    return made(tape, &op, part->n_edges, weight->rows);
}

wf_tensor *wf_edge_readout(wf_tape *tape, const wf_edge_readout_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_edge_readout,
                .in = {desc->e, desc->weight, desc->bias, desc->last_weight, desc->last_bias},
                .act = (int)desc->act};
    if (!fuses(tape, &op)) {
        wf_tensor *x = wf_norm_op(tape, desc->e, NULL, 0, NULL);
        x = wf_linear(tape,
                      &(wf_linear_desc){.x = {x}, .weight = {desc->weight}, .bias = desc->bias});
        x = wf_activation_op(tape, x, desc->act);
        return wf_linear(
            tape,
            &(wf_linear_desc){.x = {x}, .weight = {desc->last_weight}, .bias = desc->last_bias});
    }
    return made(tape, &op, desc->e->rows, desc->last_weight->rows);
}

wf_tensor *wf_fold_pack(wf_tape *tape, const wf_part *part, wf_tensor *w, int columns) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_fold_pack, .in = {w}, .part = part};
    return made(tape, &op, part->n_fold_rows, columns);
}

void wf_velocity(wf_tape *tape, const wf_part *part, wf_tensor *single,
                 wf_tensor *const kernel[WF_KERNELS], wf_tensor *fold, wf_tensor *v) {
    if (tape->failed) return;
    wf_op op = {.kind = WF_OP_velocity, .in = {fold, single}, .out = {v}, .part = part};
    for (int k = 0; k < WF_KERNELS; k++) op.in[2 + k] = kernel[k];
    wf_tape_run(tape, &op);
}

wf_lean_out wf_lean_edges(wf_tape *tape, const wf_part *part, const wf_lean_desc *desc) {
    wf_lean_out out = {NULL, NULL, NULL, NULL};
    if (tape->failed) return out;
    wf_op op = {.kind = WF_OP_lean_edges,
                .in = {desc->e, desc->modulation, desc->ad, desc->as, desc->w1, desc->w2, desc->c2,
                       desc->vf, desc->vb, desc->partials},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    assert(desc->w1->rows == desc->messages + 2 * desc->e->cols);
    out.e = op.out[0] = continued(tape, &op, desc->e);
    out.mean = op.out[1] = output(tape, &op, part->n_graphs, desc->e->cols);
    if (desc->sums) {
        out.to_dst = op.out[2] = output(tape, &op, part->n_nodes, desc->messages);
        out.to_src = op.out[3] = output(tape, &op, part->n_nodes, desc->messages);
        op.saved = wf_tape_alloc(tape, 2 * (size_t)part->n_nodes * tape->size);
    }
    wf_tape_run(tape, &op);
    return out;
}

bool wf_lean_nodes_take_partials(const wf_tape *tape, const wf_part *part, const wf_lean_desc *desc,
                                 wf_tensor *h) {
    if (tape->failed) return false;
    wf_op op = {.kind = WF_OP_lean_edges,
                .in = {desc->e, desc->modulation, h, NULL, desc->w1, desc->w2, desc->c2, desc->vf,
                       desc->vb},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    return fuses(tape, &op);
}

static wf_node_tables_out composed_tables(wf_tape *tape, const wf_part *part,
                                          const wf_node_tables_desc *desc) {
    wf_node_tables_out out = {NULL, NULL, NULL, NULL};
    out.hb = wf_norm_op(tape, desc->h, desc->modulation, desc->column, part->node_graph);
    if (desc->mean) out.mean = wf_mean_op(tape, out.hb, part->n_graphs, part->node_start);
    out.i = wf_linear(tape, &(wf_linear_desc){.x = {out.hb},
                                              .weight = {desc->first},
                                              .table = desc->graph,
                                              .map = part->node_graph});
    out.j = wf_linear(tape, &(wf_linear_desc){.x = {out.hb}, .weight = {desc->second}});
    return out;
}

wf_node_tables_out wf_node_tables(wf_tape *tape, const wf_part *part,
                                  const wf_node_tables_desc *desc) {
    wf_node_tables_out out = {NULL, NULL, NULL, NULL};
    if (tape->failed) return out;
    wf_op op = {
        .kind = WF_OP_node_tables,
        .in = {desc->h, desc->modulation, desc->first, desc->second, desc->graph, desc->partials},
        .column = desc->column,
        .map = part->node_graph,
        .start = part->node_start,
        .part = part};
    if (!fuses(tape, &op)) return composed_tables(tape, part, desc);
    int hidden = desc->first->rows;
    out.hb = op.out[0] = output(tape, &op, part->n_nodes, desc->h->cols);
    out.i = op.out[1] = output(tape, &op, part->n_nodes, hidden);
    out.j = op.out[2] = output(tape, &op, part->n_nodes, hidden);
    if (desc->mean) out.mean = op.out[3] = output(tape, &op, part->n_graphs, desc->h->cols);
    wf_tape_run(tape, &op);
    return out;
}

static wf_tensor *composed_nodes(wf_tape *tape, const wf_part *part,
                                 const wf_lean_nodes_desc *desc) {
    wf_tensor *f =
        wf_linear(tape, &(wf_linear_desc){.x = {desc->to_dst}, .weight = {desc->forward}});
    wf_tensor *b =
        wf_linear(tape, &(wf_linear_desc){.x = {desc->to_src}, .weight = {desc->backward}});
    wf_tensor *x = wf_linear(tape, &(wf_linear_desc){.x = {desc->hb, f, b},
                                                     .weight = {desc->w_h, desc->w_f, desc->w_b},
                                                     .table = desc->table,
                                                     .map = part->node_graph});
    x = wf_activation_op(tape, x, desc->act);
    x = wf_linear(tape, &(wf_linear_desc){.x = {x}, .weight = {desc->w}, .bias = desc->c});
    return wf_residual(tape, desc->h, x, desc->modulation, desc->column, part->node_graph);
}

wf_tensor *wf_lean_nodes(wf_tape *tape, const wf_part *part, const wf_lean_nodes_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_lean_nodes,
                .in = {desc->h, desc->hb, desc->to_dst, desc->to_src, desc->forward, desc->backward,
                       desc->w_h, desc->w_f, desc->w_b, desc->table, desc->w, desc->c,
                       desc->modulation, desc->partials},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .map = part->node_graph,
                .part = part};
    if (!fuses(tape, &op)) return composed_nodes(tape, part, desc);
    /* Of a node and column: messages, activations and slopes (twice as many), the branch, and
     * gradients of the branch and of messages; all in two bytes but the branch. */
    enum { kept_bytes = 2 * 2 + 4 + 4 + 4 + 2 + 2 * 2 };
    if (tape->keep)
        op.saved = wf_tape_alloc(tape, (size_t)desc->h->rows * (size_t)desc->h->cols * kept_bytes);
    return made_on(tape, &op, desc->h);
}

wf_lstar_messages_out wf_lstar_messages(wf_tape *tape, const wf_part *part,
                                        const wf_lstar_messages_desc *desc) {
    wf_lstar_messages_out out = {NULL, NULL};
    if (tape->failed) return out;
    wf_op op = {.kind = WF_OP_lstar_messages,
                .in = {desc->e, desc->modulation, desc->ai, desc->aj, desc->me, desc->m2, desc->b2,
                       desc->v},
                .mode = (int)desc->sum,
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    out.sum = op.out[0] = output(tape, &op, part->n_nodes, desc->m2->rows);
    out.mean = op.out[1] = output(tape, &op, part->n_graphs, desc->e->cols);
    op.saved = wf_tape_alloc(tape, 2 * (size_t)part->n_nodes * tape->size);
    wf_tape_run(tape, &op);
    return out;
}

wf_tensor *wf_lstar_edges(wf_tape *tape, const wf_part *part, const wf_lstar_edges_desc *desc) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_lstar_edges,
                .in = {desc->e, desc->modulation, desc->ci, desc->cj, desc->ee, desc->e2, desc->c2,
                       desc->e3, desc->c3},
                .act = (int)desc->act,
                .column = desc->column,
                .part = part};
    return made_on(tape, &op, desc->e);
}

wf_tensor *wf_layer_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         double eps) {
    if (tape->failed) return NULL;
    wf_op op = {.kind = WF_OP_layer_norm, .in = {x, weight, bias}, .value = eps};
    return made(tape, &op, x->rows, x->cols);
}

wf_tensor *wf_gated_residual(wf_tape *tape, wf_tensor *x, wf_tensor *r, wf_tensor *modulation,
                             int column, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(x->rows == r->rows && x->cols == r->cols && column + x->cols <= modulation->cols);
    wf_op op = {
        .kind = WF_OP_gated_residual, .in = {x, r, modulation}, .column = column, .map = map};
    return made_on(tape, &op, x);
}

wf_tensor *wf_attention(wf_tape *tape, wf_tensor *qkv, int heads, int tokens) {
    if (tape->failed) return NULL;
    assert(qkv->cols % (3 * heads) == 0 && qkv->rows % tokens == 0);
    wf_op op = {.kind = WF_OP_attention, .in = {qkv}, .heads = heads, .tokens = tokens};
    /* the logarithm of each row's sum of exponentials */
    op.saved = wf_tape_alloc(tape, (size_t)qkv->rows * (size_t)heads * tape->size);
    return made(tape, &op, qkv->rows, qkv->cols / 3);
}

wf_tensor *wf_dropout_gains(wf_tape *tape, wf_tensor *x, double p, int site,
                            const wf_dropout_key *key, const uint32_t *gains) {
    if (tape->failed || key == NULL) return tape->failed ? NULL : x;
    assert(p >= 0 && p < 1 && site >= 0 && site < 256);
    wf_op op = {
        .kind = WF_OP_dropout, .in = {x}, .value = p, .mode = site, .key = *key, .map = gains};
    return made(tape, &op, x->rows, x->cols);
}

wf_tensor *wf_dropout(wf_tape *tape, wf_tensor *x, double p, int site, const wf_dropout_key *key) {
    return wf_dropout_gains(tape, x, p, site, key, NULL);
}

wf_tensor *wf_add_table(wf_tape *tape, wf_tensor *x, wf_tensor *table, int column,
                        const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(column + table->cols <= x->cols);
    wf_op op = {.kind = WF_OP_add_table, .in = {x, table}, .column = column, .map = map};
    return made_on(tape, &op, x);
}

wf_tensor *wf_add_column(wf_tape *tape, wf_tensor *x, wf_tensor *s) {
    if (tape->failed) return NULL;
    assert(s->cols == 1 && s->rows == x->rows);
    return made(tape, &(wf_op){.kind = WF_OP_add_column, .in = {x, s}}, x->rows, x->cols);
}

wf_tensor *wf_concat(wf_tape *tape, wf_tensor *const *x, int count) {
    if (tape->failed) return NULL;
    assert(count > 0 && count <= WF_OP_INPUTS);
    wf_op op = {.kind = WF_OP_concat};
    int cols = 0;
    for (int k = 0; k < count; k++) {
        assert(x[k]->rows == x[0]->rows);
        op.in[k] = x[k];
        cols += x[k]->cols;
    }
    return made(tape, &op, x[0]->rows, cols);
}

wf_tensor *wf_to_tokens(wf_tape *tape, wf_tensor *x, int tokens, int width, const uint32_t *map) {
    if (tape->failed) return NULL;
    assert(map != NULL || (size_t)tokens * (size_t)width >= (size_t)x->cols);
    wf_op op = {.kind = WF_OP_to_tokens, .in = {x}, .tokens = tokens, .map = map};
    return made(tape, &op, x->rows * tokens, width);
}

wf_tensor *wf_from_tokens(wf_tape *tape, wf_tensor *x, int tokens, int columns, const uint32_t *map,
                          wf_tensor *out) {
    if (tape->failed) return NULL;
    assert(x->rows % tokens == 0);
    assert(out == NULL || (out->rows == x->rows / tokens && out->cols == columns));
    wf_op op = {.kind = WF_OP_from_tokens, .in = {x}, .tokens = tokens, .map = map};
    op.out[0] = out != NULL ? out : output(tape, &op, x->rows / tokens, columns);
    wf_tape_run(tape, &op);
    return op.out[0];
}

wf_tensor *wf_batch_norm(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                         wf_tensor *running, bool training, double eps) {
    if (tape->failed) return NULL;
    assert(running->rows * running->cols == 2 * x->cols);
    wf_op op = {
        .kind = WF_OP_batch_norm, .in = {x, weight, bias, running}, .mode = training, .value = eps};
    op.saved = wf_tape_alloc(tape, 2 * (size_t)x->cols * tape->size);
    return made(tape, &op, x->rows, x->cols);
}

static wf_tensor *convolve(wf_tape *tape, wf_op *op, int length, int columns) {
    const wf_conv1d_desc *d = &op->conv;
    assert(op->in[0]->rows % d->length == 0 && d->stride > 0 && d->padding < d->kernel);
    return made(tape, op, op->in[0]->rows / d->length * length, columns);
}

wf_tensor *wf_conv1d(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                     const wf_conv1d_desc *d) {
    if (tape->failed) return NULL;
    assert(weight->cols == d->kernel * x->cols && d->length + 2 * d->padding >= d->kernel);
    wf_op op = {.kind = WF_OP_conv1d, .in = {x, weight, bias}, .conv = *d};
    int windows = (d->length + 2 * d->padding - d->kernel) / d->stride + 1;
    return convolve(tape, &op, windows, weight->rows);
}

wf_tensor *wf_conv1d_transposed(wf_tape *tape, wf_tensor *x, wf_tensor *weight, wf_tensor *bias,
                                const wf_conv1d_desc *d) {
    if (tape->failed) return NULL;
    assert(weight->rows == x->cols && weight->cols % d->kernel == 0);
    wf_op op = {.kind = WF_OP_conv1d_transposed, .in = {x, weight, bias}, .conv = *d};
    int positions = (d->length - 1) * d->stride - 2 * d->padding + d->kernel + d->output_padding;
    return convolve(tape, &op, positions, weight->cols / d->kernel);
}

wf_tensor *wf_mse(wf_tape *tape, wf_tensor *x, wf_tensor *target, wf_tensor *mask) {
    if (tape->failed) return NULL;
    assert(x->rows == target->rows && x->cols == target->cols);
    assert(mask == NULL || (x->rows == mask->rows && x->cols == mask->cols));
    return made(tape, &(wf_op){.kind = WF_OP_mse, .in = {x, target, mask}}, 1, 1);
}

wf_tensor *wf_nt_xent(wf_tape *tape, wf_tensor *z, double temperature) {
    if (tape->failed) return NULL;
    assert(z->rows >= 2 && z->rows % 2 == 0);
    return made(tape, &(wf_op){.kind = WF_OP_nt_xent, .in = {z}, .value = temperature}, 1, 1);
}
