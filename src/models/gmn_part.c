/* gmn_part: the network itself, as operations on one tape. docs/method.md has the formulas in the
 * same order. */
#include "models/gmn_part.h"

#include "models/edge_bundles.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct network {
    gmn_part *part;
    const gmn_inputs *in;
    const gmn_layout *layout;
    const wf_field_desc *desc;
    wf_tape *tape;
    const wf_part *view;
    const uint32_t *identity; /* 0, 1, 2 ...: graph rows to graph rows */
    wf_tape_act act;
    size_t size;              /* of a real */
    const void *presence;     /* [N] 1 where a node has messages, else 0: the bias after a mean */
    wf_tensor *partials;      /* of all blocks; NULL: none (wf_lean_nodes_take_partials) */
    wf_tensor *h, *e, *u, *s; /* streams, and SiLU of the time and condition embedding */
} network;

static const void *at(const network *n, const void *base, size_t index) {
    return (const char *)base + index * n->size;
}
static void *at_mut(const network *n, void *base, size_t index) {
    return (char *)base + index * n->size;
}
static void put(const network *n, void *base, size_t index, double value) {
    if (n->in->dtype == WF_F64) ((double *)base)[index] = value;
    else ((float *)base)[index] = (float)value;
}
static double get(const network *n, const void *base, size_t index) {
    return n->in->dtype == WF_F64 ? ((const double *)base)[index] : ((const float *)base)[index];
}

/* --- parameters as tensors -------------------------------------------------------------------- */
static wf_tensor *shaped(network *n, int index, int rows, int cols) {
    if (index < 0) return NULL;
    const wf_field_tensor *info = &n->layout->tensors[index];
    assert((size_t)rows * (size_t)cols == (size_t)info->rows * (size_t)info->cols);
    const void *data = at(n, n->in->params, info->offset);
    void *grad = n->in->keep ? at_mut(n, n->part->grad, info->offset) : NULL;
    const void *panels = at(n, n->in->panels, n->in->panel_offset[index]);
    const void *panels_t = at(n, panels, wf_panel_size(info->rows, info->cols));
    return wf_tape_weight(n->tape, data, grad, rows, cols, panels, panels_t);
}
static wf_tensor *weight(network *n, int index) {
    if (index < 0) return NULL;
    return shaped(n, index, n->layout->tensors[index].rows, n->layout->tensors[index].cols);
}
static wf_tensor *row_vector(network *n, int index) {
    return shaped(n, index, 1, n->layout->tensors[index].rows * n->layout->tensors[index].cols);
}

static wf_tensor *affine(network *n, const gmn_affine *a, wf_tensor *x) {
    return wf_linear(n->tape, &(wf_linear_desc){.x = {x},
                                                .weight = {weight(n, a->weight[0])},
                                                .bias = weight(n, a->bias)});
}
static wf_tensor *product(network *n, int index, wf_tensor *x) {
    return wf_linear(n->tape, &(wf_linear_desc){.x = {x}, .weight = {weight(n, index)}});
}
static wf_tensor *activate(network *n, wf_tensor *x) {
    return wf_activation_op(n->tape, x, n->act);
}

/* --- indices of the part ---------------------------------------------------------------------- */
static uint32_t *local_starts(network *n, const size_t *start, int first, int count) {
    size_t bytes = ((size_t)count + 1) * sizeof(uint32_t);
    uint32_t *out = wf_tape_host(n->tape, bytes);
    for (int i = 0; out != NULL && i <= count; i++)
        out[i] = (uint32_t)(start[first + i] - start[first]);
    return wf_tape_upload(n->tape, out, bytes);
}

static void build_edges(network *n, wf_part *view) {
    size_t bytes = (size_t)view->n_edges * sizeof(uint32_t);
    uint32_t *dst = wf_tape_host(n->tape, bytes), *src = wf_tape_host(n->tape, bytes);
    uint32_t *graph = wf_tape_host(n->tape, bytes), *role = wf_tape_host(n->tape, bytes);
    if (n->tape->failed) return;
    uint32_t first_graph = (uint32_t)n->part->first_graph;
    for (int b = 0; b < view->n_blocks; b++) {
        const wf_batch_block *block = &view->blocks[b];
        size_t edge = block->edge0 - view->first_edge;
        for (int i = 0; i < block->n_dst; i++)
            for (int j = 0; j < block->n_src; j++, edge++) {
                dst[edge] = (uint32_t)(block->dst0 - view->first_node) + (uint32_t)i;
                src[edge] = (uint32_t)(block->src0 - view->first_node) + (uint32_t)j;
                graph[edge] = (uint32_t)block->graph - first_graph;
                role[edge] = (uint32_t)block->role;
            }
    }
    view->edge_dst = wf_tape_upload(n->tape, dst, bytes);
    view->edge_src = wf_tape_upload(n->tape, src, bytes);
    view->edge_graph = wf_tape_upload(n->tape, graph, bytes);
    view->edge_role = wf_tape_upload(n->tape, role, bytes);
}

static void build_nodes(network *n, const wf_batch *batch, wf_part *view) {
    size_t nodes = (size_t)view->n_nodes;
    size_t indices = nodes * sizeof(uint32_t), reals = nodes * n->size;
    size_t folds = (size_t)view->n_fold_rows * sizeof(uint32_t);
    size_t graphs = (size_t)view->n_graphs * sizeof(uint32_t);
    uint32_t *graph = wf_tape_host(n->tape, indices);
    void *degree = wf_tape_host(n->tape, reals), *presence = wf_tape_host(n->tape, reals);
    uint32_t *fold_node = wf_tape_host(n->tape, folds);
    uint32_t *identity = wf_tape_host(n->tape, graphs);
    if (n->tape->failed) return;
    for (size_t i = 0; i < nodes; i++) {
        graph[i] = batch->node_graph[view->first_node + i] - (uint32_t)n->part->first_graph;
        put(n, degree, i, batch->degree[view->first_node + i]);
        put(n, presence, i, batch->degree[view->first_node + i] > 0 ? 1 : 0);
    }
    for (int f = 0, row = 0; f < view->n_folds; f++)
        for (int i = 0; i < view->folds[f].n_dst; i++)
            fold_node[row++] = (uint32_t)(view->folds[f].dst0 - view->first_node) + (uint32_t)i;
    for (int g = 0; g < view->n_graphs; g++) identity[g] = (uint32_t)g;
    view->node_graph = wf_tape_upload(n->tape, graph, indices);
    view->node_role = wf_tape_upload(n->tape, batch->node_role + view->first_node, indices);
    view->degree = wf_tape_upload(n->tape, degree, reals);
    view->fold_node = wf_tape_upload(n->tape, fold_node, folds);
    n->presence = wf_tape_upload(n->tape, presence, reals);
    n->identity = wf_tape_upload(n->tape, identity, graphs);
}

static const wf_batch_block *part_blocks(const network *n) {
    return n->in->batch->blocks + n->in->batch->block_start[n->part->first_graph];
}

static void build_view(network *n) {
    const wf_batch *batch = n->in->batch;
    int first = n->part->first_graph, last = n->part->last_graph;
    wf_part *view = &n->part->view;
    *view = (wf_part){.n_graphs = last - first,
                      .n_nodes = (int)(batch->node_start[last] - batch->node_start[first]),
                      .n_edges = (int)(batch->edge_start[last] - batch->edge_start[first]),
                      .n_params = batch->param_start[last] - batch->param_start[first],
                      .blocks = part_blocks(n),
                      .n_blocks = (int)(batch->block_start[last] - batch->block_start[first]),
                      .first_node = batch->node_start[first],
                      .first_edge = batch->edge_start[first],
                      .first_param = batch->param_start[first]};
    for (int f = 0; f < batch->n_folds; f++) {
        if (batch->folds[f].graph < first || batch->folds[f].graph >= last) continue;
        if (view->n_folds++ == 0) view->folds = &batch->folds[f];
        view->n_fold_rows += batch->folds[f].n_dst;
    }
    view->node_start = local_starts(n, batch->node_start, first, view->n_graphs);
    view->edge_start = local_starts(n, batch->edge_start, first, view->n_graphs);
    build_nodes(n, batch, view);
    build_edges(n, view);
    int processors = n->tape->backend->processors;
    if (processors > 0) wf_bundles_build(n->tape, view, view->blocks, first, processors);
    view->blocks =
        wf_tape_upload(n->tape, view->blocks, (size_t)view->n_blocks * sizeof *view->blocks);
    if (view->n_folds > 0)
        view->folds =
            wf_tape_upload(n->tape, view->folds, (size_t)view->n_folds * sizeof *view->folds);
    n->view = view;
}

/* --- embeddings of time and condition --------------------------------------------------------- */
static wf_tensor *embed_condition(network *n) {
    const gmn_layout *layout = n->layout;
    int size = n->desc->cond_size, first = n->part->first_graph;
    const void *rows = at(n, n->in->cond, (size_t)first * (size_t)size);
    wf_tensor *code =
        affine(n, &layout->cond[0], wf_tape_rows(n->tape, rows, n->view->n_graphs, size));
    if (n->desc->cond == WF_COND_MLP) {
        code = wf_activation_op(n->tape, code, WF_TAPE_ACT_SILU);
        code = affine(n, &layout->cond[1], code);
    }
    const uint8_t *drop = n->in->drop == NULL ? NULL : n->in->drop + first;
    return wf_null_rows(n->tape, code, row_vector(n, layout->cond_null), drop);
}

static void embed_time(network *n) {
    const gmn_layout *layout = n->layout;
    wf_tensor *t =
        wf_tape_rows(n->tape, at(n, n->in->t, (size_t)n->part->first_graph), n->view->n_graphs, 1);
    wf_tensor *z = affine(n, &layout->time[0],
                          wf_time_features(n->tape, t, n->desc->time, n->desc->time_frequency));
    z = affine(n, &layout->time[1], wf_activation_op(n->tape, z, WF_TAPE_ACT_SILU));
    if (n->desc->cond == WF_COND_LINEAR) {
        z = wf_residual(n->tape, z, embed_condition(n), NULL, 0, NULL);
    } else if (n->desc->cond == WF_COND_MLP) {
        const gmn_affine *fuse = &layout->fuse;
        wf_tensor *code = embed_condition(n);
        z = wf_linear(n->tape, &(wf_linear_desc){.x = {z, code},
                                                 .weight = {weight(n, fuse->weight[0]),
                                                            weight(n, fuse->weight[1])},
                                                 .bias = weight(n, fuse->bias)});
    }
    n->s = wf_activation_op(n->tape, z, WF_TAPE_ACT_SILU);
}

/* --- encoders --------------------------------------------------------------------------------- */
/* sin(a x + b) of a few integers per role. */
static wf_tensor *sine_code(network *n, const gmn_affine *a, wf_tensor *x) {
    return wf_activation_op(n->tape, affine(n, a, x), WF_TAPE_ACT_SINE);
}

static void encode_nodes(network *n) {
    const wf_batch *batch = n->in->batch;
    const gmn_layout *layout = n->layout;
    int roles = batch->n_node_roles;
    wf_tensor *layer = wf_tape_blank(n->tape, roles, 1), *order = wf_tape_blank(n->tape, roles, 1);
    size_t bytes = (size_t)roles * sizeof(uint32_t);
    uint32_t *type = wf_tape_host(n->tape, bytes);
    if (n->tape->failed) return;
    for (int r = 0; r < roles; r++) {
        put(n, layer->data, (size_t)r * (size_t)layer->ld, batch->node_roles[r].layer);
        put(n, order->data, (size_t)r * (size_t)order->ld, batch->node_roles[r].order);
        type[r] = (uint32_t)batch->node_roles[r].type;
    }
    type = wf_tape_upload(n->tape, type, bytes);
    const gmn_affine *projection = &layout->node_projection;
    wf_linear_desc desc = {.x = {sine_code(n, &layout->node_layer, wf_tape_filled(n->tape, layer)),
                                 sine_code(n, &layout->node_order, wf_tape_filled(n->tape, order)),
                                 wf_gather(n->tape, weight(n, layout->node_type), roles, type)},
                           .bias = weight(n, projection->bias)};
    for (int k = 0; k < 3; k++) desc.weight[k] = weight(n, projection->weight[k]);
    wf_tensor *codes = wf_linear(n->tape, &desc);
    n->h = wf_gather(n->tape, codes, n->view->n_nodes, n->view->node_role);
    if (n->view->n_fold_rows == 0) return;
    n->part->fold_rows = wf_fold_pack(n->tape, n->view, n->part->w, n->desc->fold_rows);
    wf_tensor *fold = affine(n, &layout->fold_encoder, n->part->fold_rows);
    n->h = wf_insert(n->tape, n->h, fold, n->view->fold_node);
}

/* Offsets of the frozen frequencies, in rows of de/2. */
enum { fourier_value = 0, fourier_layer = 1, fourier_position = 2, fourier_kernel = 5 };
size_t wf__gmn_fourier_size(const wf_field_desc *desc) {
    int kernels[WF_KERNELS], rows = fourier_kernel + desc->max_coef;
    for (int k = wf__gmn_kernels(desc, kernels) - 1; k > 0; k--) rows += kernels[k];
    return (size_t)(desc->edge / 2) * (size_t)rows;
}

/* [sin(2 pi f.x), cos(2 pi f.x)] of the rows of x. */
static wf_tensor *fourier_code(network *n, int first, wf_tensor *x) {
    int half = n->desc->edge / 2;
    wf_tensor *y = wf_tape_blank(n->tape, x->rows, n->desc->edge);
    for (int r = 0; y != NULL && r < x->rows; r++)
        for (int i = 0; i < half; i++) {
            double turns = 0;
            for (int k = 0; k < x->cols; k++)
                turns += get(n, x->data, (size_t)r * (size_t)x->ld + (size_t)k) *
                         get(n, n->in->fourier,
                             (size_t)(first * half) + (size_t)i * (size_t)x->cols + (size_t)k);
            double phase = 2 * 3.141592653589793 * (turns - floor(turns));
            put(n, y->data, (size_t)r * (size_t)y->ld + (size_t)i, sin(phase));
            put(n, y->data, (size_t)r * (size_t)y->ld + (size_t)(half + i), cos(phase));
        }
    return wf_tape_filled(n->tape, y);
}

/* The code of an edge's parameters, of width de. */
static bool value_code(network *n, wf_edge_features_desc *out) {
    const gmn_layout *layout = n->layout;
    int half = n->desc->edge / 2;
    wf_edge_features_desc desc = {.width = n->desc->edge, .w = n->part->w};
    if (n->desc->encoder == WF_ENCODER_FOURIER) {
        desc.code = WF_CODE_FOURIER;
        void *frequencies =
            wf_tape_upload(n->tape, n->in->fourier, wf__gmn_fourier_size(n->desc) * n->size);
        if (frequencies == NULL) return false;
        desc.a = wf_tape_view(n->tape, frequencies, NULL, half, 1);
        size_t first = (size_t)(fourier_kernel * half);
        for (int k = 0; k < layout->n_kernels; k++) {
            desc.kernel_a[k] = wf_tape_view(n->tape, at_mut(n, frequencies, first), NULL, half,
                                            layout->kernels[k]);
            first += (size_t)(half * layout->kernels[k]);
        }
    } else {
        desc.code = n->desc->encoder == WF_ENCODER_SINE ? WF_CODE_SINE : WF_CODE_LINEAR;
        desc.a = weight(n, layout->edge_value.weight[0]);
        desc.b = weight(n, layout->edge_value.bias);
        for (int k = 0; k < layout->n_kernels; k++) {
            desc.kernel_a[k] = weight(n, layout->edge_kernel[k].weight[0]);
            desc.kernel_b[k] = weight(n, layout->edge_kernel[k].bias);
        }
    }
    *out = desc;
    return true;
}

/* Codes of the edges' roles. An edge of a kernel carries all its coefficients, so its position in
 * the kernel is "none": -1. */
static wf_tensor *encode_roles(network *n) {
    const wf_batch *batch = n->in->batch;
    const gmn_layout *layout = n->layout;
    int roles = batch->n_edge_roles;
    wf_tensor *layer = wf_tape_blank(n->tape, roles, 1),
              *position = wf_tape_blank(n->tape, roles, GMN_POSITION);
    size_t bytes = (size_t)roles * sizeof(uint32_t);
    uint32_t *type = wf_tape_host(n->tape, bytes);
    if (n->tape->failed) return NULL;
    for (int r = 0; r < roles; r++) {
        put(n, layer->data, (size_t)r * (size_t)layer->ld, batch->edge_roles[r].layer);
        for (int k = 0; k < GMN_POSITION; k++)
            put(n, position->data, (size_t)(r * position->ld + k), -1);
        type[r] = (uint32_t)batch->edge_roles[r].type;
    }
    type = wf_tape_upload(n->tape, type, bytes);
    bool fourier = n->desc->encoder == WF_ENCODER_FOURIER;
    const gmn_affine *projection = &layout->edge_projection;
    wf_linear_desc roles_desc = {
        .x = {fourier ? fourier_code(n, fourier_layer, layer)
                      : sine_code(n, &layout->edge_layer, wf_tape_filled(n->tape, layer)),
              wf_gather(n->tape, weight(n, layout->edge_type), roles, type),
              fourier ? fourier_code(n, fourier_position, position)
                      : sine_code(n, &layout->edge_position, wf_tape_filled(n->tape, position))},
        .bias = weight(n, projection->bias)};
    for (int k = 0; k < 3; k++) roles_desc.weight[k] = weight(n, projection->weight[k + 1]);
    return wf_linear(n->tape, &roles_desc);
}

static void encode_edges(network *n, wf_tensor *codes) {
    wf_edge_features_desc values;
    if (value_code(n, &values))
        n->e = wf_edge_encoder(n->tape, n->view, &values,
                               weight(n, n->layout->edge_projection.weight[0]), codes,
                               n->view->edge_role);
}

/* --- blocks ----------------------------------------------------------------------------------- */
typedef struct block_state {
    const gmn_block_layout *layout;
    gmn_columns columns;
    wf_tensor *modulation, *hb, *ub;
    wf_tensor *node_graph, *edge_graph, *msg_graph; /* graphs' parts of first affines, (B, .) */
    wf_tensor *mean_h, *mean_e;                     /* (B, .) of the modulated nodes and edges */
    bool last;
} block_state;

static wf_sum sum_mode(const network *n) {
    if (n->desc->messages == WF_MESSAGES_MEAN) return WF_SUM_MEAN;
    return n->desc->messages == WF_MESSAGES_ATTENTION ? WF_SUM_ATTENTION : WF_SUM_PLAIN;
}

/* What the graph contributes to a first affine, with its bias: (B, width). */
static wf_tensor *graph_table(network *n, const block_state *b, const gmn_affine *first,
                              int operand) {
    return wf_linear(n->tape, &(wf_linear_desc){.x = {b->ub},
                                                .weight = {weight(n, first->weight[operand])},
                                                .bias = weight(n, first->bias)});
}

/* A first affine over (edge, i, j, global) as two tables of the nodes; the first holds the graph's
 * part. */
static void node_tables(network *n, const block_state *b, const gmn_affine *first, wf_tensor *graph,
                        wf_tensor **table_i, wf_tensor **table_j) {
    *table_i = wf_linear(n->tape, &(wf_linear_desc){.x = {b->hb},
                                                    .weight = {weight(n, first->weight[1])},
                                                    .table = graph,
                                                    .map = n->view->node_graph});
    *table_j = product(n, first->weight[2], b->hb);
}

/* The rest of a branch after its first affine. */
static wf_tensor *branch_tail(network *n, const gmn_affine *layers, int count, wf_tensor *x) {
    for (int k = 1; k < count; k++) x = affine(n, &layers[k], activate(n, x));
    return x;
}

/* h += MLP(hb, messages, ub) of an lstar block. */
static void update_nodes(network *n, const block_state *b, wf_tensor *message) {
    const gmn_affine *first = &b->layout->node[0];
    wf_linear_desc desc = {
        .x = {b->hb, message}, .table = b->node_graph, .map = n->view->node_graph};
    for (int k = 0; k < 2; k++) desc.weight[k] = weight(n, first->weight[k]);
    wf_tensor *x = branch_tail(n, b->layout->node, 3, wf_linear(n->tape, &desc));
    n->h = wf_residual(n->tape, n->h, x, NULL, 0, n->view->node_graph);
}

static void update_global(network *n, const block_state *b, bool lean) {
    const gmn_affine *first = &b->layout->global[0];
    wf_linear_desc desc = {.x = {b->mean_h, b->mean_e, b->ub}, .bias = weight(n, first->bias)};
    for (int k = 0; k < 3; k++) desc.weight[k] = weight(n, first->weight[k]);
    wf_tensor *x = branch_tail(n, b->layout->global, lean ? 2 : 3, wf_linear(n->tape, &desc));
    n->u = wf_residual(n->tape, n->u, x, lean ? b->modulation : NULL,
                       b->columns.global + 2 * n->desc->edge, n->identity);
}

/* Only the decoder of folded rows reads the last block's nodes. */
static bool nodes_wanted(const network *n, const block_state *b) {
    return !b->last || n->view->n_fold_rows > 0;
}

/* The edges of a block, without tables. */
static wf_lean_desc lean_edges(network *n, const block_state *b) {
    const gmn_block_layout *k = b->layout;
    return (wf_lean_desc){.e = n->e,
                          .modulation = b->modulation,
                          .w1 = weight(n, k->edge[0].weight[0]),
                          .w2 = weight(n, k->edge[1].weight[0]),
                          .c2 = weight(n, k->edge[1].bias),
                          .column = b->columns.edge,
                          .messages = 2 * n->desc->edge,
                          .act = n->act,
                          .sum = sum_mode(n),
                          .sums = nodes_wanted(n, b)};
}

/* Memory for the partial sums of one block's edges, in either direction. */
static void make_partials(network *n, const block_state *b) {
    wf_lean_desc desc = lean_edges(n, b);
    if (n->tape->failed || !desc.sums ||
        !wf_lean_nodes_take_partials(n->tape, n->view, &desc, n->h))
        return;
    size_t most = 0;
    for (int cut = 0; cut < WF_CUTS; cut++) {
        int columns = desc.messages + (cut == WF_CUT_GROUP ? 2 * n->desc->edge : 0);
        size_t reals = wf_partial_rows(n->view->bundles[cut]) * (size_t)columns / 2;
        if (reals > most) most = reals; /* two columns in bf16 are one */
    }
    enum { row = 1 << 12 };
    n->partials = wf_tape_tensor(n->tape, (int)(most / row) + 1, row, false);
}

static void lean_block(network *n, block_state *b) {
    const gmn_block_layout *k = b->layout;
    bool attention = n->desc->messages == WF_MESSAGES_ATTENTION, nodes = nodes_wanted(n, b);
    wf_tensor *forward = weight(n, k->forward), *backward = weight(n, k->backward);
    wf_lean_desc desc = lean_edges(n, b);
    if (nodes) desc.partials = n->partials;
    wf_node_tables_out tables =
        wf_node_tables(n->tape, n->view,
                       &(wf_node_tables_desc){.h = n->h,
                                              .modulation = b->modulation,
                                              .first = weight(n, k->edge[0].weight[1]),
                                              .second = weight(n, k->edge[0].weight[2]),
                                              .graph = b->edge_graph,
                                              .partials = desc.partials,
                                              .column = b->columns.node,
                                              .mean = !b->last});
    b->hb = tables.hb, b->mean_h = tables.mean;
    desc.ad = tables.i, desc.as = tables.j;
    if (attention && nodes) {
        wf_tensor *a = row_vector(n, k->logit.weight[0]);
        desc.vf = wf_logit(n->tape, a, forward);
        desc.vb = wf_logit(n->tape, a, backward);
    }
    if (n->tape->failed) return;
    wf_lean_out out = wf_lean_edges(n->tape, n->view, &desc);
    n->e = out.e;
    b->mean_e = out.mean;
    if (nodes)
        n->h = wf_lean_nodes(n->tape, n->view,
                             &(wf_lean_nodes_desc){.h = n->h,
                                                   .hb = b->hb,
                                                   .to_dst = out.to_dst,
                                                   .to_src = out.to_src,
                                                   .forward = forward,
                                                   .backward = backward,
                                                   .w_h = weight(n, k->node[0].weight[0]),
                                                   .w_f = weight(n, k->node[0].weight[1]),
                                                   .w_b = weight(n, k->node[0].weight[2]),
                                                   .table = b->node_graph,
                                                   .w = weight(n, k->node[1].weight[0]),
                                                   .c = weight(n, k->node[1].bias),
                                                   .modulation = b->modulation,
                                                   .partials = desc.partials,
                                                   .sum = desc.sum,
                                                   .column = b->columns.node + 2 * n->desc->node,
                                                   .act = n->act});
    if (!b->last) update_global(n, b, true);
}

/* Messages of an lstar block into the nodes. */
static void lstar_messages(network *n, block_state *b, wf_lstar_messages_desc *desc) {
    const gmn_block_layout *k = b->layout;
    wf_tensor *m3 = weight(n, k->msg[2].weight[0]);
    if (desc->sum == WF_SUM_ATTENTION)
        desc->v = wf_logit(n->tape, row_vector(n, k->logit.weight[0]), m3);
    if (n->tape->failed) return;
    wf_lstar_messages_out out = wf_lstar_messages(n->tape, n->view, desc);
    b->mean_e = out.mean;
    /* The last affine of the message MLP stands after the sum: its bias once per message. */
    wf_tensor *message =
        wf_linear(n->tape, &(wf_linear_desc){.x = {out.sum},
                                             .weight = {m3},
                                             .bias = weight(n, k->msg[2].bias),
                                             .scale = desc->sum == WF_SUM_PLAIN ? n->view->degree
                                                                                : n->presence});
    update_nodes(n, b, message);
}

static void lstar_block(network *n, block_state *b) {
    const gmn_block_layout *k = b->layout;
    wf_lstar_messages_desc messages = {.e = n->e,
                                       .modulation = b->modulation,
                                       .me = weight(n, k->msg[0].weight[0]),
                                       .m2 = weight(n, k->msg[1].weight[0]),
                                       .b2 = weight(n, k->msg[1].bias),
                                       .column = b->columns.edge,
                                       .act = n->act,
                                       .sum = sum_mode(n)};
    wf_lstar_edges_desc edges = {.e = n->e,
                                 .modulation = b->modulation,
                                 .ee = weight(n, k->edge[0].weight[0]),
                                 .e2 = weight(n, k->edge[1].weight[0]),
                                 .c2 = weight(n, k->edge[1].bias),
                                 .e3 = weight(n, k->edge[2].weight[0]),
                                 .c3 = weight(n, k->edge[2].bias),
                                 .column = b->columns.edge,
                                 .act = n->act};
    bool nodes = nodes_wanted(n, b);
    b->hb = wf_norm_op(n->tape, n->h, b->modulation, b->columns.node, n->view->node_graph);
    if (!b->last) b->mean_h = wf_mean_op(n->tape, b->hb, n->view->n_graphs, n->view->node_start);
    if (nodes) node_tables(n, b, &k->msg[0], b->msg_graph, &messages.ai, &messages.aj);
    node_tables(n, b, &k->edge[0], b->edge_graph, &edges.ci, &edges.cj);
    if (nodes) lstar_messages(n, b, &messages);
    if (n->tape->failed) return;
    n->e = wf_lstar_edges(n->tape, n->view, &edges);
    if (!b->last) update_global(n, b, false);
}

/* Which columns of a block's modulation are scales. */
static const uint32_t *scale_columns(network *n) {
    gmn_columns columns = wf__gmn_columns(n->desc);
    const int first[3] = {columns.node, columns.edge, columns.global};
    const int width[3] = {n->desc->node, n->desc->edge, n->desc->edge};
    size_t bytes = (size_t)columns.width * sizeof(uint32_t);
    uint32_t *out = wf_tape_host(n->tape, bytes);
    if (out == NULL) return NULL;
    memset(out, 0, bytes);
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < width[k]; c++) out[first[k] + width[k] + c] = 1;
    return wf_tape_upload(n->tape, out, bytes);
}

/* Shifts, scales and gates of all blocks. Dropout is here: LN(x) (1 + scale) without its factor is
 * a channel that the block does not see. A row belongs to a network, so the channel is missing in
 * all of its nodes or edges, and relabelled hidden units still relabel the velocity. */
static wf_tensor **modulations(network *n) {
    int blocks = n->desc->blocks;
    wf_tensor **out = wf_tape_host(n->tape, (size_t)blocks * sizeof *out);
    bool drops = n->desc->dropout > 0 && n->in->dropout.update != NULL;
    wf_dropout_key key = n->in->dropout;
    key.row += (uint32_t)n->part->first_graph;
    const uint32_t *scales = drops ? scale_columns(n) : NULL;
    for (int k = 0; out != NULL && k < blocks; k++) {
        out[k] = affine(n, &n->layout->blocks[k].adaln, n->s);
        if (drops) out[k] = wf_dropout_gains(n->tape, out[k], n->desc->dropout, k, &key, scales);
    }
    return out;
}

static block_state block_of(const network *n, int index, wf_tensor *modulation) {
    return (block_state){.layout = &n->layout->blocks[index],
                         .columns = wf__gmn_columns(n->desc),
                         .modulation = modulation,
                         .last = index + 1 == n->desc->blocks};
}

static void run_block(network *n, int index, wf_tensor *modulation) {
    block_state b = block_of(n, index, modulation);
    bool lean = n->desc->layout == WF_LAYOUT_LEAN, nodes = nodes_wanted(n, &b);
    b.ub = wf_norm_op(n->tape, n->u, b.modulation, b.columns.global, n->identity);
    if (nodes) b.node_graph = graph_table(n, &b, &b.layout->node[0], lean ? 3 : 2);
    if (nodes && !lean) b.msg_graph = graph_table(n, &b, &b.layout->msg[0], 3);
    b.edge_graph = graph_table(n, &b, &b.layout->edge[0], 3);
    if (lean) lean_block(n, &b);
    else lstar_block(n, &b);
}

/* --- readout ---------------------------------------------------------------------------------- */
static wf_tensor *readout(network *n, const gmn_affine layers[2]) {
    return wf_edge_readout(n->tape,
                           &(wf_edge_readout_desc){.e = n->e,
                                                   .weight = weight(n, layers[0].weight[0]),
                                                   .bias = weight(n, layers[0].bias),
                                                   .last_weight = weight(n, layers[1].weight[0]),
                                                   .last_bias = weight(n, layers[1].bias),
                                                   .act = n->act});
}

static bool has_edges(const network *n, int coef) {
    const wf_batch_block *blocks = part_blocks(n); /* the view's may lie in a backend's memory */
    for (int b = 0; b < n->view->n_blocks; b++)
        if (blocks[b].coef == coef) return true;
    return false;
}

static void read_out(network *n) {
    const gmn_layout *layout = n->layout;
    wf_tensor *kernels[WF_KERNELS] = {NULL};
    wf_tensor *singles = has_edges(n, 1) ? readout(n, layout->readout) : NULL;
    for (int k = 0; k < layout->n_kernels; k++)
        if (has_edges(n, layout->kernels[k])) kernels[k] = readout(n, layout->kernel_readout[k]);
    wf_tensor *fold = NULL;
    if (n->view->n_fold_rows > 0) {
        fold = wf_gather(n->tape, n->h, n->view->n_fold_rows, n->view->fold_node);
        fold = affine(n, &layout->fold_decoder, wf_norm_op(n->tape, fold, NULL, 0, NULL));
    }
    wf_velocity(n->tape, n->view, singles, kernels, fold, n->part->v);
}

void wf__gmn_part_forward(gmn_part *part, const gmn_inputs *in) {
    network n = {.part = part,
                 .in = in,
                 .layout = in->layout,
                 .desc = &in->layout->desc,
                 .tape = &part->tape,
                 .size = in->dtype == WF_F64 ? sizeof(double) : sizeof(float)};
    bool gelu = n.desc->activation == WF_FIELD_ACT_GELU ||
                (n.desc->activation == WF_FIELD_ACT_DEFAULT && n.desc->layout == WF_LAYOUT_LEAN);
    n.act = gelu ? WF_TAPE_ACT_GELU : WF_TAPE_ACT_SILU;
    wf_tape_start(&part->tape, in->backend, in->dtype, in->keep);
    part->tape.watched = in->watched;
    build_view(&n);
    if (part->tape.failed) return;
    size_t first = part->view.first_param;
    int params = (int)part->view.n_params;
    part->fold_rows = NULL;
    part->w = wf_tape_view(&part->tape, (void *)at(&n, in->w, first), NULL, params, 1);
    part->v = wf_tape_view(&part->tape, at_mut(&n, in->v, first), NULL, params, 1);
    if (part->tape.failed) return;
    part->w->wants = in->keep; /* whether it is really wanted is known when backward is called */
    embed_time(&n);
    n.u = wf_gather(&part->tape, row_vector(&n, n.layout->global_start), part->view.n_graphs, NULL);
    encode_nodes(&n);
    wf_tensor *codes = encode_roles(&n), **modulation = modulations(&n);
    encode_edges(&n, codes);
    if (!part->tape.failed && n.desc->layout == WF_LAYOUT_LEAN) {
        block_state of_first = block_of(&n, 0, modulation[0]);
        make_partials(&n, &of_first);
    }
    for (int k = 0; k < n.desc->blocks && !part->tape.failed; k++) {
        wf_tape_mark mark = wf_tape_here(&part->tape);
        run_block(&n, k, modulation[k]);
        if (!in->keep) wf_tape_rewind(&part->tape, mark);
    }
    if (!part->tape.failed) read_out(&n);
}

void wf__gmn_part_backward(gmn_part *part, const gmn_inputs *in, const void *dv, void *dw) {
    size_t size = in->dtype == WF_F64 ? sizeof(double) : sizeof(float);
    size_t first = part->view.first_param * size;
    wf_tape_zero(&part->tape, part->grad, in->layout->params * size);
    part->w->wants = dw != NULL;
    if (part->fold_rows != NULL) part->fold_rows->wants = dw != NULL;
    part->w->grad = dw == NULL ? NULL : (char *)dw + first;
    part->w->grad_set = dw != NULL;
    if (dw != NULL) wf_tape_zero(&part->tape, part->w->grad, part->view.n_params * size);
    part->v->grad = (char *)dv + first; /* read only */
    part->v->grad_set = true;
    wf_tape_backward(&part->tape);
}
