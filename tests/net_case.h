/* net_case: fields of models/net_field.h on a batch of equal architectures, with random values
 * everywhere. */
#ifndef NET_CASE_H
#define NET_CASE_H

#include "base/random.h"
#include "graph/batch.h"
#include "models/field_kinds.h"
#include "wf_test.h"

enum { most_networks = 16 };

typedef struct field_case {
    const char *field, *arch;
    const char *settings[5][2]; /* key, value */
} field_case;

/* A field on a batch of `networks` equal architectures, with random values everywhere. */
typedef struct net_case {
    wf_ctx *ctx;
    wf_graph *graph;
    wf_field *field;
    wf_arena arena;
    wf_batch batch;
    size_t params, many;
    wf_dtype dtype;
    void *theta, *w, *t, *v, *dv, *grad, *dw;
} net_case;

static inline double get(const net_case *s, const void *x, size_t i) {
    return s->dtype == WF_F64 ? ((const double *)x)[i] : ((const float *)x)[i];
}
static inline void put(const net_case *s, void *x, size_t i, double value) {
    if (s->dtype == WF_F64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

static inline void *numbers(const net_case *s, size_t count, uint32_t stream, double scale) {
    void *out = calloc(count, sizeof(double));
    wf_rng rng = wf_rng_at(3, stream, WF_RNG_TEST, 0);
    wf_fill_normals(s->dtype, out, count, &rng, scale);
    return out;
}

static inline wf_field *make_field(wf_ctx *ctx, const field_case *c, const wf_graph *graph,
                                   wf_dtype dtype) {
    const wf_field_kind *kind = wf_field_find(c->field);
    assert_non_null(kind);
    void *options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    for (int i = 0; i < 5 && c->settings[i][0] != NULL; i++)
        assert_int_equal(
            wf_settings_set(ctx, kind->settings(), c->settings[i][0], c->settings[i][1], options),
            WF_OK);
    wf_field *field;
    wf_status status = wf_field_create(ctx, kind, options, graph, dtype, &field);
    if (status != WF_OK) fail_msg("%s: %s", c->field, wf_last_error(ctx));
    free(options);
    return field;
}

static inline void open_case(net_case *s, const field_case *c, wf_dtype dtype, int threads,
                             int networks) {
    *s = (net_case){.dtype = dtype};
    assert_int_equal(wf_ctx_create(&(wf_ctx_desc){.threads = threads}, &s->ctx), WF_OK);
    assert_int_equal(wf_graph_parse(s->ctx, c->arch, "relu", 0, &s->graph), WF_OK);
    const wf_graph *graphs[most_networks];
    for (int i = 0; i < networks; i++) graphs[i] = s->graph;
    assert_int_equal(wf_batch_build(s->ctx, &s->arena, graphs, networks, &s->batch), WF_OK);
    s->field = make_field(s->ctx, c, s->graph, dtype);
    s->params = s->field->params, s->many = s->batch.n_params;
    s->theta = numbers(s, s->params, 1, 0.2);
    s->w = numbers(s, s->many, 2, 1);
    s->t = numbers(s, (size_t)networks, 3, 0.3);
    s->dv = numbers(s, s->many, 4, 1);
    s->v = calloc(s->many, sizeof(double));
    s->grad = calloc(s->params, sizeof(double));
    s->dw = calloc(s->many, sizeof(double));
}
static inline void close_case(net_case *s) {
    void *arrays[] = {s->theta, s->w, s->t, s->v, s->dv, s->grad, s->dw};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    wf_field_free(s->field);
    wf_graph_free(s->graph);
    wf_arena_free(&s->arena);
    wf_ctx_free(s->ctx);
}

/* Random parts such as dropout are drawn from these. */
static const uint64_t net_seed = 4;
static const uint32_t net_update = 2;

static inline void run_forward(net_case *s, bool keep, bool training) {
    wf_field_input input = {.batch = &s->batch,
                            .w = s->w,
                            .t = s->t,
                            .keep = keep,
                            .training = training,
                            .seed = net_seed,
                            .update = net_update};
    assert_ok(s->ctx, wf_field_forward(s->ctx, s->field, s->theta, &input, s->v));
}

/* Fields of a few parameters, whose gradients are compared with differences and with a GPU's. */
static const field_case small_fields[] = {
    {"mlp", "3-5-2", {{"width", "9"}, {"blocks", "2"}, {"time", "6"}}},
    {"dwf", "3-5-2", {{"width", "9"}, {"time", "5"}, {"dropout", "0.3"}}},
    {"dit",
     "3-5-2",
     {{"width", "6"}, {"blocks", "2"}, {"heads", "2"}, {"token", "5"}, {"time", "6"}}},
};

#endif
