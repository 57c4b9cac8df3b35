/* ops_case: one case per operation of tensor/ops.def and fused.def, on any backend, for tests. An
 * operation without a case here does not compile. */
#ifndef WF_OPS_CASE_H
#define WF_OPS_CASE_H

#include "base/random.h"
#include "tensor/cuda/backend_cuda.h"
#include "models/edge_bundles.h"
#include "tensor/tape.h"
#include "wf_test.h"

enum { most_inputs = 16, most_blocks = 8 };

typedef struct setup {
    wf_tape tape;
    wf_dtype dtype;
    int size;     /* the width under test */
    int group;    /* units of the graphs' groups */
    int variant;  /* which options the case takes */
    bool rounded; /* inputs and gradients of outputs are numbers of bf16 */
    uint32_t stream;
    wf_tensor *input[most_inputs];
    int n_inputs;
    wf_batch_block blocks[most_blocks];
    wf_batch_fold fold;
    wf_part part;
} setup;

static double get(const setup *s, const void *x, size_t i) {
    return s->dtype == WF_F64 ? ((const double *)x)[i] : ((const float *)x)[i];
}
static void put(const setup *s, void *x, size_t i, double value) {
    if (s->dtype == WF_F64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

/* Data may lie in a backend's own memory. Copies to it do not wait for kernels: settle() before,
 * where they may be using it. */
static inline void settle(const setup *s) {
    if (s->tape.backend->upload != NULL)
        assert_true(wf_cuda_download(s->tape.backend->device, NULL, NULL, 0));
}
static inline void copy_in(setup *s, void *to, const void *from, size_t bytes) {
    if (s->tape.backend->upload == NULL) memcpy(to, from, bytes);
    else s->tape.backend->upload(s->tape.backend, to, from, bytes);
}
/* A copy of n values, as doubles; the caller frees it. */
static inline double *copy_out(const setup *s, const void *from, size_t n) {
    double *out = malloc((n + 1) * sizeof *out);
    void *bytes = malloc((n + 1) * s->tape.size);
    if (s->tape.backend->upload == NULL) memcpy(bytes, from, n * s->tape.size);
    else assert_true(wf_cuda_download(s->tape.backend->device, bytes, from, n * s->tape.size));
    for (size_t i = 0; i < n; i++) out[i] = get(s, bytes, i);
    free(bytes);
    return out;
}

/* The same deviates, exact in float, for both types; divided by `scale`, around `middle`. */
static void fill_around(setup *s, wf_tensor *x, void *data, double scale, double middle) {
    size_t total = (size_t)x->rows * (size_t)x->ld;
    void *host = malloc((total + 1) * s->tape.size);
    float *values = malloc(((size_t)x->cols + 1) * sizeof *values);
    wf_rng rng = wf_rng_at(7, s->stream++, WF_RNG_TEST, (uint32_t)s->size);
    for (int r = 0; r < x->rows; r++) {
        wf_rng_normals_from(&rng, (size_t)r * (size_t)x->cols, values, (size_t)x->cols);
        for (int c = 0; c < x->ld; c++) {
            double value = c < x->cols ? (float)(middle + values[c] / scale) : 0;
            put(s, host, (size_t)(r * x->ld + c), s->rounded ? round_bf16(value) : value);
        }
    }
    free(values);
    copy_in(s, data, host, total * s->tape.size);
    free(host);
}
static void fill(setup *s, wf_tensor *x, void *data, double scale) {
    fill_around(s, x, data, scale, 0);
}

static wf_tensor *keep(setup *s, wf_tensor *x) {
    assert_non_null(x);
    s->input[s->n_inputs++] = x;
    return x;
}
static wf_tensor *rows(setup *s, int count, int cols) {
    wf_tensor *x = wf_tape_tensor(&s->tape, count, cols, true);
    fill(s, x, x->data, 1);
    return keep(s, x);
}
/* A caller's array: weights, biases, tables, flat parameters. */
static wf_tensor *flat(setup *s, int count, int cols) {
    size_t bytes = (size_t)count * (size_t)cols * s->tape.size;
    void *data = wf_tape_alloc(&s->tape, bytes), *grad = wf_tape_alloc(&s->tape, bytes);
    wf_tape_zero(&s->tape, grad, bytes);
    wf_tensor shape = {.rows = count, .cols = cols, .ld = cols};
    fill(s, &shape, data, sqrt(cols));
    return keep(s, wf_tape_weight(&s->tape, data, grad, count, cols, NULL, NULL));
}

/* Indices of the host's, and the same where the kernels read them. */
static uint32_t *indices(setup *s, int count, uint32_t below) {
    uint32_t *out = wf_tape_host(&s->tape, (size_t)(count + 1) * sizeof *out);
    for (int i = 0; i < count; i++) out[i] = (uint32_t)(i * 7 + 3) % below;
    return out;
}

static uint32_t *placed(setup *s, uint32_t *host, int count) {
    return wf_tape_upload(&s->tape, host, (size_t)count * sizeof *host);
}
static uint32_t *some_indices(setup *s, int count, uint32_t below) {
    return placed(s, indices(s, count, below), count);
}

static void add_block(setup *s, int graph, int n_src, int n_dst, size_t src0, size_t dst0,
                      int coef) {
    s->blocks[s->part.n_blocks++] = (wf_batch_block){.graph = graph,
                                                     .n_src = n_src,
                                                     .n_dst = n_dst,
                                                     .coef = coef,
                                                     .src0 = src0,
                                                     .dst0 = dst0,
                                                     .edge0 = (size_t)s->part.n_edges + 5,
                                                     .param0 = s->part.n_params + 2};
    s->part.n_edges += n_src * n_dst;
    s->part.n_params += (size_t)(n_src * n_dst * coef);
}

/* Two graphs: 3 -> group with a bias node, and group -> 2; places in the batch do not start at
 * zero. `coef` of the last block. A fold of 3 rows of group + 1 sits on the first graph's
 * inputs. */
static const wf_part *graphs(setup *s, int coef) {
    int n = s->group;
    wf_part *part = &s->part;
    part->first_edge = 5, part->first_param = 2, part->first_node = 0;
    add_block(s, 0, 3, n, 0, 3, 1);
    add_block(s, 0, 1, n, (size_t)(3 + n), 3, 1);
    add_block(s, 1, n, 2, (size_t)(4 + n), (size_t)(4 + 2 * n), coef);
    part->n_graphs = 2;
    part->n_nodes = 6 + 2 * n;
    int processors = s->tape.backend->processors;
    if (processors > 0) wf_bundles_build(&s->tape, part, s->blocks, 0, processors);
    part->blocks = wf_tape_upload(&s->tape, s->blocks, (size_t)part->n_blocks * sizeof *s->blocks);
    uint32_t *dst = indices(s, part->n_edges, 1), *src = indices(s, part->n_edges, 1);
    uint32_t *graph = indices(s, part->n_edges, 1);
    uint32_t *node_graph = indices(s, part->n_nodes, 1);
    for (int k = 4 + n; k < part->n_nodes; k++) node_graph[k] = 1;
    void *degree = wf_tape_host(&s->tape, (size_t)part->n_nodes * s->tape.size);
    for (int k = 0; k < part->n_nodes; k++) put(s, degree, (size_t)k, 0);
    for (int b = 0, edge = 0; b < part->n_blocks; b++)
        for (int i = 0; i < s->blocks[b].n_dst; i++)
            for (int j = 0; j < s->blocks[b].n_src; j++, edge++) {
                dst[edge] = (uint32_t)s->blocks[b].dst0 + (uint32_t)i;
                src[edge] = (uint32_t)s->blocks[b].src0 + (uint32_t)j;
                graph[edge] = (uint32_t)s->blocks[b].graph;
                put(s, degree, dst[edge], get(s, degree, dst[edge]) + 1);
                put(s, degree, src[edge], get(s, degree, src[edge]) + 1);
            }
    uint32_t *starts = indices(s, 3, 1);
    starts[0] = 0, starts[1] = (uint32_t)(4 * n), starts[2] = (uint32_t)part->n_edges;
    part->edge_dst = placed(s, dst, part->n_edges);
    part->edge_src = placed(s, src, part->n_edges);
    part->edge_graph = placed(s, graph, part->n_edges);
    part->node_graph = placed(s, node_graph, part->n_nodes);
    uint32_t *node_start = indices(s, 3, 1);
    node_start[0] = 0, node_start[1] = (uint32_t)(4 + n), node_start[2] = (uint32_t)part->n_nodes;
    part->node_start = placed(s, node_start, 3);
    part->edge_start = placed(s, starts, 3);
    part->degree = wf_tape_upload(&s->tape, degree, (size_t)part->n_nodes * s->tape.size);
    s->fold = (wf_batch_fold){.n_dst = 3,
                              .n_src = n,
                              .has_bias = true,
                              .weight0 = part->n_params + 2,
                              .bias0 = part->n_params + 2 + (size_t)(3 * n)};
    part->folds = wf_tape_upload(&s->tape, &s->fold, sizeof s->fold);
    part->n_folds = 1;
    part->n_fold_rows = 3;
    part->n_params += (size_t)(3 * n + 3);
    return part;
}

/* --- one case per operation: builds inputs and records the operation -------------------------- */
static void build_linear(setup *s) {
    int n = s->size, count = s->group > 100 ? 40 * s->group : 9;
    wf_linear_desc desc = {.x = {rows(s, count, n)}, .weight = {flat(s, n + 2, n)}};
    if (s->variant > 2) /* read where it lies */
        desc.weight[0]->panels = desc.weight[0]->panels_t = NULL;
    if (s->variant > 0) {
        desc.x[1] = rows(s, count, 1);
        desc.weight[1] = flat(s, n + 2, 1);
        desc.bias = flat(s, n + 2, 1);
    }
    if (s->variant == 2) {
        void *scale = wf_tape_host(&s->tape, (size_t)count * s->tape.size);
        for (int i = 0; i < count; i++) put(s, scale, (size_t)i, (float)(0.5 + i % 9));
        desc.scale = wf_tape_upload(&s->tape, scale, (size_t)count * s->tape.size);
        desc.table = rows(s, 4, n + 2);
        desc.map = some_indices(s, count, 4);
    }
    wf_linear(&s->tape, &desc);
}
/* Away from zero, where some units have a kink. */
static void build_activation(setup *s) {
    wf_tensor *x = rows(s, 5, s->size);
    if (s->variant == WF_TAPE_ACT_RELU || s->variant == WF_TAPE_ACT_LEAKY_RELU)
        fill_around(s, x, x->data, 8, s->size % 2 ? 1 : -1);
    wf_activation_op(&s->tape, x, (wf_tape_act)s->variant);
}
static void build_norm(setup *s) {
    int count = s->group > 100 ? 21 * s->group : 6, column = s->variant == 2 ? 4 : 2;
    wf_tensor *x = rows(s, count, s->size);
    wf_tensor *modulation = s->variant ? rows(s, 3, 2 * s->size + column + 1) : NULL;
    wf_norm_op(&s->tape, x, modulation, column, some_indices(s, count, 3));
}
static void build_residual(setup *s) {
    wf_tensor *x = rows(s, 6, s->size), *branch = rows(s, 6, s->size);
    wf_tensor *modulation = s->variant ? rows(s, 3, s->size + 3) : NULL;
    wf_residual(&s->tape, x, branch, modulation, 2, some_indices(s, 6, 3));
}
static void build_mean(setup *s) {
    uint32_t *start = indices(s, 4, 1);
    start[0] = 0, start[1] = 4, start[2] = 4, start[3] = 7;
    wf_mean_op(&s->tape, rows(s, 7, s->size), 3, placed(s, start, 4));
}
static void build_gather(setup *s) {
    wf_gather(&s->tape, s->variant ? flat(s, 4, s->size) : rows(s, 4, s->size), 9,
              s->variant > 1 ? NULL : some_indices(s, 9, 4));
}
static void build_insert(setup *s) {
    wf_tensor *x = rows(s, 8, s->size), *add = rows(s, 3, s->size);
    uint32_t *map = indices(s, 3, 1);
    map[0] = 5, map[1] = 0, map[2] = 7;
    wf_insert(&s->tape, x, add, placed(s, map, 3));
}
static void build_time_features(setup *s) {
    wf_tensor *t = wf_tape_blank(&s->tape, 4, 1);
    for (int r = 0; r < 4; r++) put(s, t->data, (size_t)(r * t->ld), (float)(0.1 + 0.25 * r));
    wf_time_features(&s->tape, wf_tape_filled(&s->tape, t), 2 * s->size,
                     s->variant == 0 ? 1000 : 30);
}
static void build_null_rows(setup *s) {
    static const uint8_t flags[5] = {0, 1, 0, 0, 1};
    wf_tensor *x = rows(s, 5, s->size), *null = flat(s, 1, s->size);
    wf_null_rows(&s->tape, x, null,
                 s->variant ? NULL : wf_tape_upload(&s->tape, flags, sizeof flags));
}
static void build_logit(setup *s) {
    wf_tensor *a = flat(s, 1, s->size + 1), *m = flat(s, s->size + 1, s->size);
    wf_logit(&s->tape, a, m);
}
static wf_tensor *parameters(setup *s, const wf_part *part) {
    return flat(s, (int)part->n_params, 1);
}
static void build_edge_features(setup *s) {
    const wf_part *part = graphs(s, 4);
    bool fourier = s->variant == WF_CODE_FOURIER;
    int width = fourier ? 2 * s->size : s->size;
    wf_edge_features_desc desc = {.code = (wf_value_code)s->variant, .width = width};
    desc.w = parameters(s, part);
    desc.a = flat(s, s->size, 1);
    desc.kernel_a[0] = flat(s, s->size, 4);
    if (fourier) {
        desc.a->wants = desc.kernel_a[0]->wants = false; /* frozen */
    } else {
        desc.b = flat(s, s->size, 1);
        desc.kernel_b[0] = flat(s, s->size, 1);
    }
    wf_edge_features(&s->tape, part, &desc);
}
static void build_fold_pack(setup *s) {
    const wf_part *part = graphs(s, 1);
    wf_fold_pack(&s->tape, part, parameters(s, part), s->group + 1 + s->variant);
}
static void build_velocity(setup *s) {
    const wf_part *part = graphs(s, s->variant ? 4 : 1);
    wf_tensor *single = rows(s, part->n_edges, 1);
    wf_tensor *kernel[WF_KERNELS] = {s->variant ? rows(s, part->n_edges, 4) : NULL};
    wf_tensor *fold = rows(s, 3, s->group + 1);
    void *v = wf_tape_alloc(&s->tape, part->n_params * s->tape.size);
    wf_tape_zero(&s->tape, v, part->n_params * s->tape.size);
    void *dv = wf_tape_alloc(&s->tape, part->n_params * s->tape.size);
    wf_velocity(&s->tape, part, single, kernel, fold,
                wf_tape_view(&s->tape, v, dv, (int)part->n_params, 1));
}

/* Variants 0..5: the three sums with either unit; 6: a last block, whose sums nobody wants; 7: the
 * same with 64 messages, whole panels that are left out. Variants from 8 on have the alignment and
 * the widths that fused kernels ask for; 14: most units are far from zero, where a tanh that is not
 * quite one would give GELU large slopes. 15 and 16: attention, with 64 messages and with logits
 * around 40 towards dst and -40 towards src, whose exponentials no float of 16 bits would hold. */
static void build_lean_edges(setup *s) {
    const wf_part *part = graphs(s, 1);
    bool aligned = s->variant >= 8;
    int de = s->size, messages = s->variant > 6 ? 64 : 2 * (s->size % 5 + 1);
    bool far = s->variant == 14;
    bool large = s->variant == 16 && de >= 32; /* few messages would leave one all the weight */
    if (aligned && (s->variant < 12 || far || s->variant == 16)) messages = 2 * de;
    int hidden = messages + 2 * de;
    wf_lean_desc desc = {.column = aligned ? 4 : 1, .messages = messages};
    desc.sum = far ? WF_SUM_PLAIN : s->variant > 14 ? WF_SUM_ATTENTION : (wf_sum)(s->variant % 3);
    desc.act = far || s->variant % 8 < 3 ? WF_TAPE_ACT_GELU : WF_TAPE_ACT_SILU;
    desc.sums = aligned ? s->variant != 10 : s->variant < 6;
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 3 * de + 5);
    desc.ad = rows(s, part->n_nodes, hidden);
    desc.as = rows(s, part->n_nodes, hidden);
    if (far) fill(s, desc.ad, desc.ad->data, 1.0 / 20);
    if (large) fill_around(s, desc.ad, desc.ad->data, 1, 3); /* and so are messages */
    desc.w1 = flat(s, hidden, de);
    desc.w2 = flat(s, de, 2 * de);
    desc.c2 = flat(s, de, 1);
    if (desc.sum == WF_SUM_ATTENTION) {
        desc.vf = rows(s, 1, messages);
        desc.vb = rows(s, 1, messages);
        if (aligned) { /* logits of order 1, or around it */
            double middle = large ? 40.0 / 3 / messages : 0;
            fill_around(s, desc.vf, desc.vf->data, sqrt(messages), middle);
            fill_around(s, desc.vb, desc.vb->data, sqrt(messages), -middle);
        }
    }
    wf_lean_edges(&s->tape, part, &desc);
}
/* Widths in whole sixteens take shapes and places that fused kernels know. */
static bool round_size(const setup *s) { return s->size % 16 == 0; }

/* Variants 0..5: the three sums with either unit; 6: attention with logits around 40 where messages
 * are many (build_lean_edges). */
static void build_lstar_messages(setup *s) {
    const wf_part *part = graphs(s, 1);
    int de = s->size, hidden = round_size(s) ? 2 * s->size : 2 * (s->size % 5 + 1);
    bool last = s->variant == 6, large = last && hidden >= 64;
    wf_lstar_messages_desc desc = {.column = round_size(s) ? 4 : 1};
    desc.sum = last ? WF_SUM_ATTENTION : (wf_sum)(s->variant % 3);
    desc.act = last || s->variant < 3 ? WF_TAPE_ACT_SILU : WF_TAPE_ACT_GELU;
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 2 * de + 5);
    desc.ai = rows(s, part->n_nodes, hidden);
    desc.aj = rows(s, part->n_nodes, hidden);
    desc.me = flat(s, hidden, de);
    desc.m2 = flat(s, hidden, hidden);
    desc.b2 = flat(s, hidden, 1);
    if (large) fill_around(s, desc.b2, desc.b2->data, 1, 3); /* and so are messages */
    if (desc.sum == WF_SUM_ATTENTION) {
        desc.v = rows(s, 1, hidden);
        /* logits of order 1, or around 40 */
        fill_around(s, desc.v, desc.v->data, sqrt(hidden), large ? 40.0 / 3 / hidden : 0);
    }
    wf_lstar_messages(&s->tape, part, &desc);
}
static void build_lstar_edges(setup *s) {
    const wf_part *part = graphs(s, 1);
    int de = s->size, hidden = 2 * de;
    wf_lstar_edges_desc desc = {.column = round_size(s) ? 4 : 1,
                                .act = s->variant ? WF_TAPE_ACT_GELU : WF_TAPE_ACT_SILU};
    desc.e = rows(s, part->n_edges, de);
    desc.modulation = rows(s, 2, 2 * de + 5);
    desc.ci = rows(s, part->n_nodes, hidden);
    desc.cj = rows(s, part->n_nodes, hidden);
    desc.ee = flat(s, hidden, de);
    desc.e2 = flat(s, hidden, hidden);
    desc.c2 = flat(s, hidden, 1);
    desc.e3 = flat(s, de, hidden);
    desc.c3 = flat(s, de, 1);
    wf_lstar_edges(&s->tape, part, &desc);
}

/* --- sequences -------------------------------------------------------------------------------- */
/* Sequences of so many tokens: more than two blocks of queries where groups are large. */
static int case_tokens(const setup *s) {
    return s->group > 70 ? 140 : s->group > 30 ? s->group * 2 - 1 : s->group;
}

static void build_layer_norm(setup *s) {
    wf_tensor *x = rows(s, 7, s->size);
    wf_layer_norm(&s->tape, x, s->variant > 0 ? flat(s, 1, s->size) : NULL,
                  s->variant > 1 ? flat(s, 1, s->size) : NULL, 1e-5);
}
static void build_gated_residual(setup *s) {
    wf_tensor *x = rows(s, 6, s->size), *branch = rows(s, 6, s->size);
    wf_tensor *modulation = rows(s, 3, s->size + 3);
    wf_gated_residual(&s->tape, x, branch, modulation, 2, some_indices(s, 6, 3));
}
/* Variants: one head and more; the last has large logits. */
static void build_attention(setup *s) {
    int heads = s->variant + 1, tokens = case_tokens(s);
    wf_tensor *qkv = rows(s, 2 * tokens, 3 * heads * s->size);
    if (s->variant == 2) fill(s, qkv, qkv->data, 0.5);
    wf_attention(&s->tape, qkv, heads, tokens);
}
/* Variants: values, gains in some columns. */
static void build_dropout(setup *s) {
    uint32_t *update = indices(s, 1, 1);
    *update = 11;
    wf_dropout_key key = {.seed = 5, .update = placed(s, update, 1), .row = 3};
    wf_tensor *x = rows(s, 6, s->size);
    if (s->variant == 0) wf_dropout(&s->tape, x, 0.3, 2, &key);
    else wf_dropout_gains(&s->tape, x, 0.3, 2, &key, some_indices(s, x->cols, 2));
}
static void build_add_table(setup *s) {
    wf_tensor *x = rows(s, 9, s->size + 3), *table = flat(s, 4, s->size);
    wf_add_table(&s->tape, x, table, s->variant, some_indices(s, 9, 4));
}
static void build_add_column(setup *s) {
    wf_tensor *x = rows(s, 6, s->size);
    wf_add_column(&s->tape, x, rows(s, 6, 1));
}
static void build_concat(setup *s) {
    wf_tensor *x[3] = {rows(s, 5, s->size), rows(s, 5, 2), rows(s, 5, s->size + 1)};
    wf_concat(&s->tape, x, 3);
}
/* Three tokens of `size` values; a map in another order, with gaps. */
static const uint32_t *token_map(setup *s, int columns) {
    if (s->variant == 0) return NULL;
    uint32_t *map = indices(s, 3 * s->size, 1);
    for (int i = 0; i < 3 * s->size; i++) {
        int from = 3 * s->size - 1 - i;
        map[i] = from < columns && i % 5 != 2 ? (uint32_t)from : WF_NO_VALUE;
    }
    return placed(s, map, 3 * s->size);
}
static void build_to_tokens(setup *s) {
    int columns = 2 * s->size + 1;
    wf_to_tokens(&s->tape, rows(s, 4, columns), 3, s->size, token_map(s, columns));
}
static void build_from_tokens(setup *s) {
    int columns = 2 * s->size + 1;
    wf_from_tokens(&s->tape, rows(s, 12, s->size), 3, columns, token_map(s, columns), NULL);
}

/* A tensor that wants no gradient. */
static wf_tensor *frozen(wf_tensor *x) {
    x->wants = false;
    return x;
}
/* The running statistics are not zero, and variances are positive. Variant 1: training. */
static void build_batch_norm(setup *s) {
    int count = s->group > 100 ? 3 * s->group : 7;
    wf_tensor *x = rows(s, count, s->size), *weight = flat(s, 1, s->size);
    wf_tensor *bias = flat(s, 1, s->size), *running = frozen(flat(s, 2, s->size));
    fill_around(s, running, running->data, 10, 1);
    wf_batch_norm(&s->tape, x, weight, bias, running, s->variant == 1, 1e-5);
}
/* Kernel, stride, padding, output padding, of pdiff's layers and others. */
static const wf_conv1d_desc conv_cases[] = {
    {.kernel = 7, .stride = 2, .padding = 3, .output_padding = 1},
    {.kernel = 3, .stride = 1, .padding = 1},
    {.kernel = 2, .stride = 3},
    {.kernel = 1, .stride = 1}};
static void build_conv1d(setup *s) {
    wf_conv1d_desc desc = conv_cases[s->variant];
    desc.length = case_tokens(s) + 1;
    int out = s->size % 5 + 1;
    wf_tensor *x = rows(s, 2 * desc.length, s->size);
    wf_tensor *weight = flat(s, out, desc.kernel * s->size);
    wf_conv1d(&s->tape, x, weight, s->variant ? flat(s, 1, out) : NULL, &desc);
}
static void build_conv1d_transposed(setup *s) {
    wf_conv1d_desc desc = conv_cases[s->variant];
    desc.length = case_tokens(s) + 1;
    int out = s->size % 5 + 1;
    wf_tensor *x = rows(s, 2 * desc.length, s->size);
    wf_tensor *weight = flat(s, s->size, desc.kernel * out);
    wf_conv1d_transposed(&s->tape, x, weight, s->variant ? flat(s, 1, out) : NULL, &desc);
}
static void build_mse(setup *s) {
    wf_tensor *x = rows(s, 6, s->size), *target = frozen(rows(s, 6, s->size));
    wf_mse(&s->tape, x, target, s->variant ? frozen(rows(s, 6, s->size)) : NULL);
}
static void build_nt_xent(setup *s) {
    wf_nt_xent(&s->tape, rows(s, 2 * (s->group % 12 + 1), s->size), s->variant ? 0.1 : 0.7);
}

/* Widths that fused kernels have, beside the odd ones that are composed. */
static int codec_width(const setup *s) { return s->size > 100 ? 128 : s->size; }
static void build_edge_encoder(setup *s) {
    const wf_part *part = graphs(s, 1);
    int n = codec_width(s);
    wf_edge_features_desc desc = {.code = s->variant ? WF_CODE_LINEAR : WF_CODE_SINE, .width = n};
    desc.w = parameters(s, part);
    desc.a = flat(s, n, 1);
    desc.b = flat(s, n, 1);
    wf_tensor *weight = flat(s, n, n), *table = rows(s, 3, n);
    uint32_t *role = indices(s, part->n_edges, 1);
    for (int k = 0; k < part->n_edges; k++) role[k] = (uint32_t)(k / 5 % 3);
    wf_edge_encoder(&s->tape, part, &desc, weight, table, placed(s, role, part->n_edges));
}
static void build_edge_readout(setup *s) {
    int n = codec_width(s), edges = (s->group > 100 ? 60 : 4) * s->group + 3;
    wf_edge_readout_desc desc = {.e = rows(s, edges, n),
                                 .weight = flat(s, n, n),
                                 .bias = flat(s, n, 1),
                                 .last_weight = flat(s, 1 + s->variant / 2, n),
                                 .last_bias = flat(s, 1 + s->variant / 2, 1),
                                 .act = s->variant % 2 ? WF_TAPE_ACT_SILU : WF_TAPE_ACT_GELU};
    wf_edge_readout(&s->tape, &desc);
}

/* Rows side by side, so that one output has them all. Variant 1: of the last block. */
static void build_node_tables(setup *s) {
    const wf_part *part = graphs(s, 1);
    int n = s->size, hidden = (s->variant ? 2 : 4) * n;
    wf_node_tables_desc desc = {.h = rows(s, part->n_nodes, n),
                                .modulation = rows(s, 2, 2 * n + 5),
                                .first = flat(s, hidden, n),
                                .second = flat(s, hidden, n),
                                .graph = rows(s, 2, hidden),
                                .column = 4,
                                .mean = s->variant == 0};
    wf_node_tables_out out = wf_node_tables(&s->tape, part, &desc);
    wf_tensor *all[4] = {out.hb, out.i, out.j};
    if (desc.mean) all[3] = wf_gather(&s->tape, out.mean, part->n_nodes, part->node_graph);
    wf_concat(&s->tape, all, desc.mean ? 4 : 3);
}
static void build_lean_nodes(setup *s) {
    const wf_part *part = graphs(s, 1);
    int n = s->size, nodes = part->n_nodes;
    wf_lean_nodes_desc desc = {.h = rows(s, nodes, n),
                               .hb = rows(s, nodes, n),
                               .to_dst = rows(s, nodes, 2 * n),
                               .to_src = rows(s, nodes, 2 * n),
                               .forward = flat(s, n, 2 * n),
                               .backward = flat(s, n, 2 * n),
                               .w_h = flat(s, 2 * n, n),
                               .w_f = flat(s, 2 * n, n),
                               .w_b = flat(s, 2 * n, n),
                               .table = rows(s, 2, 2 * n),
                               .w = flat(s, n, 2 * n),
                               .c = flat(s, n, 1),
                               .modulation = rows(s, 2, n + 5),
                               .column = 4,
                               .act = s->variant ? WF_TAPE_ACT_SILU : WF_TAPE_ACT_GELU};
    wf_lean_nodes(&s->tape, part, &desc);
}

typedef void build_fn(setup *s);
static build_fn *const builders[] = {
#define X(name, tolerance) build_##name,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
};
static inline int variants_of(wf_op_kind kind) {
    switch (kind) {
    case WF_OP_lean_edges: return 17;
    case WF_OP_lstar_messages: return 7;
    case WF_OP_activation: return WF_TAPE_ACT_COUNT;
    case WF_OP_linear:
    case WF_OP_conv1d:
    case WF_OP_conv1d_transposed: return 4;
    case WF_OP_attention:
    case WF_OP_layer_norm:
    case WF_OP_edge_readout:
    case WF_OP_gather:
    case WF_OP_norm:
    case WF_OP_edge_features: return 3;
    case WF_OP_dropout:
    case WF_OP_add_table:
    case WF_OP_batch_norm:
    case WF_OP_mse:
    case WF_OP_nt_xent:
    case WF_OP_to_tokens:
    case WF_OP_from_tokens:
    case WF_OP_residual:
    case WF_OP_null_rows:
    case WF_OP_time_features:
    case WF_OP_fold_pack:
    case WF_OP_velocity:
    case WF_OP_edge_encoder:
    case WF_OP_node_tables:
    case WF_OP_lean_nodes:
    case WF_OP_lstar_edges: return 2;
    default: return 1;
    }
}

/* What names of cases call a variant; a number where there is no better word. */
static inline const char *variant_name(wf_op_kind kind, int variant) {
    static const char *const lean[] = {"sum-gelu",
                                       "mean-gelu",
                                       "attention-gelu",
                                       "sum-silu",
                                       "mean-silu",
                                       "attention-silu",
                                       "last",
                                       "last-64",
                                       "fused-attention",
                                       "fused-sum",
                                       "fused-last",
                                       "fused-attention-silu",
                                       "fused-sum-silu-64",
                                       "fused-mean-silu-64",
                                       "fused-saturated",
                                       "fused-attention-silu-64",
                                       "fused-large-logits"};
    static const char *const messages[] = {"sum-silu",    "mean-silu", "attention-silu",
                                           "sum-gelu",    "mean-gelu", "attention-gelu",
                                           "large-logits"};
    static const char *const numbers[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    assert_true(variant < variants_of(kind));
    if (kind == WF_OP_lean_edges) return lean[variant];
    if (kind == WF_OP_lstar_messages) return messages[variant];
    assert_true(variant < (int)(sizeof numbers / sizeof *numbers));
    return numbers[variant];
}

/* --- running a case --------------------------------------------------------------------------- */
/* In the memory of the last case of `s`, whose kernels are done: taking memory of a GPU is slow. */
static void start_again(setup *s, const wf_backend *backend, wf_dtype dtype, wf_op_kind kind,
                        int size, int group, int variant) {
    *s = (setup){.tape = s->tape,
                 .dtype = dtype,
                 .size = size,
                 .group = group,
                 .variant = variant,
                 .rounded = s->rounded};
    wf_tape_start(&s->tape, backend, dtype, true);
    builders[kind](s);
    assert_false(s->tape.failed);
    assert_non_null(s->tape.last);
    if (kind >= WF_OP_edge_encoder)
        return; /* it may be composed of others: the last one's outputs are its own */
    assert_int_equal(s->tape.last->kind, kind);
    assert_null(s->tape.last->previous);
}
static inline void start(setup *s, const wf_backend *backend, wf_dtype dtype, wf_op_kind kind,
                         int size, int group, int variant) {
    *s = (setup){.rounded = false};
    start_again(s, backend, dtype, kind, size, group, variant);
}

/* Random gradients of all outputs; copies in doubles, for the loss sum dy*y. */
static inline double *seed_gradients(setup *s, size_t *count) {
    const wf_op *op = s->tape.last;
    double *copy = NULL;
    *count = 0;
    for (int i = 0; i < WF_OP_OUTPUTS; i++) {
        wf_tensor *out = op->out[i];
        if (out == NULL) continue;
        void *grad = wf_tape_grad(&s->tape, out);
        settle(s);
        fill(s, out, grad, 1);
        size_t n = (size_t)out->rows * (size_t)out->ld;
        double *values = copy_out(s, grad, n);
        copy = realloc(copy, (*count + n) * sizeof *copy);
        memcpy(copy + *count, values, n * sizeof *copy);
        *count += n;
        free(values);
    }
    return copy;
}

#endif
