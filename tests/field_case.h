/* field_case: a velocity field over a batch of described networks with random values in ALL
 * parameters, for tests. */
#ifndef WF_FIELD_CASE_H
#define WF_FIELD_CASE_H

#include "base/arena.h"
#include "base/random.h"
#include "graph/batch.h"
#include "models/field_kinds.h"
#include "wf_test.h"

enum { case_most = 64 };

typedef struct field_case {
    wf_ctx *ctx;
    wf_arena arena;
    wf_field_desc desc;
    wf_dtype dtype;
    bool fast; /* on a GPU: in bf16 */
    wf_graph *graphs[case_most];
    int n;
    wf_batch batch;
    wf_field *field;
    void *params, *w, *t, *cond, *v, *dv, *grad, *dw;
    uint8_t drop[case_most];
} field_case;

static inline size_t case_size(const field_case *c) { return c->dtype == WF_F64 ? 8 : 4; }
static inline double case_get(const field_case *c, const void *x, size_t i) {
    return c->dtype == WF_F64 ? ((const double *)x)[i] : ((const float *)x)[i];
}
static inline void case_put(const field_case *c, void *x, size_t i, double value) {
    if (c->dtype == WF_F64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

/* Deviates are the same for both types. */
static inline void *case_random(const field_case *c, size_t count, uint32_t stream, double std) {
    void *out = calloc(count + 1, case_size(c));
    wf_rng rng = wf_rng_at(11, stream, WF_RNG_TEST, 0);
    float *values = malloc((count + 1) * sizeof *values);
    wf_rng_normals(&rng, values, count);
    for (size_t i = 0; i < count; i++) case_put(c, out, i, (float)(std * values[i]));
    free(values);
    return out;
}

/* The field's parameters, scaled by fan-in so that activations stay of order one. */
static inline void case_random_params(field_case *c) {
    int count = c->field->n_tensors;
    const wf_field_tensor *tensors = c->field->tensors;
    c->params = case_random(c, c->field->params, 1, 1);
    for (int k = 0; k < count; k++) {
        double scale = tensors[k].cols > 1 ? 1 / sqrt(tensors[k].cols) : 0.3;
        for (size_t i = 0; i < (size_t)tensors[k].rows * (size_t)tensors[k].cols; i++) {
            size_t at = tensors[k].offset + i;
            case_put(c, c->params, at, (float)(scale * case_get(c, c->params, at)));
        }
    }
}

/* archs: NULL-terminated; a leading '*' folds the first layer. */
static inline field_case case_open(wf_field_desc desc, wf_dtype dtype, const char *const *archs) {
    field_case c = {.ctx = test_ctx(), .desc = desc, .dtype = dtype};
    for (; archs[c.n] != NULL; c.n++) {
        bool fold = archs[c.n][0] == '*';
        assert_ok(c.ctx, wf_graph_parse(c.ctx, archs[c.n] + fold, "relu",
                                        fold ? WF_GRAPH_FOLD_INPUT : 0, &c.graphs[c.n]));
    }
    assert_ok(c.ctx,
              wf_batch_build(c.ctx, &c.arena, (const wf_graph *const *)c.graphs, c.n, &c.batch));
    assert_ok(c.ctx, wf_field_create(c.ctx, &wf__field_gmn, &desc, NULL, dtype, &c.field));
    case_random_params(&c);
    size_t params = c.field->params, p = c.batch.n_params;
    c.w = case_random(&c, p, 2, 1);
    c.dv = case_random(&c, p, 3, 1);
    c.cond = case_random(&c, (size_t)c.n * (size_t)(desc.cond_size + 1), 4, 1);
    c.t = calloc((size_t)c.n, case_size(&c));
    for (int i = 0; i < c.n; i++) {
        case_put(&c, c.t, (size_t)i, (float)((i + 0.37) / c.n));
        c.drop[i] = i % 3 == 1;
    }
    c.v = calloc(p, case_size(&c));
    c.dw = calloc(p, case_size(&c));
    c.grad = calloc(params, case_size(&c));
    return c;
}

static inline void case_forward(field_case *c, bool keep) {
    wf_field_input input = {
        .batch = &c->batch, .w = c->w, .t = c->t, .keep = keep, .fast = c->fast};
    if (c->field->cond_size > 0) input.cond = c->cond, input.drop = c->drop;
    if (c->desc.dropout > 0) input.training = true, input.seed = 4, input.update = 2;
    assert_ok(c->ctx, wf_field_forward(c->ctx, c->field, c->params, &input, c->v));
}
static inline void case_backward(field_case *c) {
    assert_ok(c->ctx, wf_field_backward(c->ctx, c->field, c->dv, c->grad, c->dw));
}
/* sum dv * v */
static inline double case_loss(field_case *c) {
    case_forward(c, false);
    double sum = 0;
    for (size_t i = 0; i < c->batch.n_params; i++)
        sum += case_get(c, c->v, i) * case_get(c, c->dv, i);
    return sum;
}

static inline double case_norm(const field_case *c, const void *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += case_get(c, x, i) * case_get(c, x, i);
    return sqrt(sum);
}

static inline void case_close(field_case *c) {
    for (int i = 0; i < c->n; i++) wf_graph_free(c->graphs[i]);
    wf_field_free(c->field);
    wf_arena_free(&c->arena);
    void *all[] = {c->params, c->w, c->t, c->cond, c->v, c->dv, c->grad, c->dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    wf_ctx_free(c->ctx);
}

/* place[i]: where parameter i of the whole batch goes under random relabellings of each network. */
static inline size_t *random_relabelling(const field_case *c, uint32_t stream) {
    size_t *place = calloc(c->batch.n_params, sizeof *place);
    for (int k = 0; k < c->n; k++) {
        const wf_graph *graph = c->graphs[k];
        size_t first = c->batch.param_start[k], n = graph->n_params;
        uint32_t *perm = calloc(wf_graph_perm_size(graph) + 1, sizeof *perm);
        wf_rng rng = wf_rng_at(23, stream + (uint32_t)k, WF_RNG_TEST, 0);
        for (int o = 0; o < graph->n_orbits; o++) {
            size_t start = wf_graph_perm_start(graph, o);
            size_t end = o + 1 < graph->n_orbits ? wf_graph_perm_start(graph, o + 1)
                                                 : wf_graph_perm_size(graph);
            wf_rng_shuffle(&rng, perm + start, (uint32_t)(end - start));
        }
        float *index = calloc(n, sizeof *index), *moved = calloc(n, sizeof *moved);
        for (size_t i = 0; i < n; i++) index[i] = (float)i;
        wf_graph_permute(graph, perm, index, moved);
        for (size_t i = 0; i < n; i++) place[first + (size_t)moved[i]] = first + i;
        free(index);
        free(moved);
        free(perm);
    }
    return place;
}

/* ||v(Pw) - P v(w)|| / ||v||; must_move: the relabelling must move something. */
static inline double equivariance_error(field_case *c, uint32_t stream, bool must_move) {
    size_t n = c->batch.n_params, *place = random_relabelling(c, stream);
    case_forward(c, false);
    assert_true(case_norm(c, c->v, n) > 1e-2);
    double *before = calloc(n, sizeof *before), *w = calloc(n, sizeof *w);
    size_t moved = 0;
    for (size_t i = 0; i < n; i++) {
        before[i] = case_get(c, c->v, i);
        w[i] = case_get(c, c->w, i);
        moved += place[i] != i;
    }
    assert_true(moved > 0 || !must_move);
    for (size_t i = 0; i < n; i++) case_put(c, c->w, place[i], w[i]);
    case_forward(c, false);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double gap = case_get(c, c->v, place[i]) - before[i];
        difference += gap * gap;
        norm += before[i] * before[i];
    }
    free(before);
    free(w);
    free(place);
    return sqrt(difference / norm);
}

#endif
