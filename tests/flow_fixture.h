/* What the flow's unit tests share: a folder of their own, collections, and short runs of the toy
 * field. */
#ifndef FLOW_FIXTURE_H
#define FLOW_FIXTURE_H

#include "flow/flow_fit.h"
#include "folder_fixture.h"
#include "toy_field.h"

/* A collection whose blocks have means and spreads of their own. */
static inline wf_zoo *make_zoo_with(wf_ctx *ctx, const char *arch, const char *activation,
                                    size_t count, uint32_t salt) {
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, arch, activation, 0, &graph));
    float *weights = calloc(count * graph->n_params, sizeof *weights);
    for (size_t k = 0; k < count; k++) {
        float *w = weights + k * graph->n_params;
        wf_rng rng = wf_rng_at(77, (uint32_t)k, WF_RNG_TEST, salt);
        wf_rng_normals(&rng, w, graph->n_params);
        for (int b = 0; b < graph->n_blocks; b++)
            for (size_t i = 0; i < graph->blocks[b].count; i++) {
                float *x = &w[graph->blocks[b].offset + i];
                *x = (float)b + (0.5f + (float)b) * *x;
            }
    }
    char name[64];
    snprintf(name, sizeof name, "zoo_%s_%zu_%u.safetensors", arch, count, salt);
    const char *path = in_folder(name);
    assert_ok(ctx, wf_zoo_write(ctx, path, graph, weights, count, NULL));
    wf_zoo *zoo;
    assert_ok(ctx, wf_zoo_open(ctx, path, &zoo));
    free(weights);
    wf_graph_free(graph);
    return zoo;
}

static inline wf_zoo *make_zoo(wf_ctx *ctx, const char *arch, size_t count, uint32_t salt) {
    return make_zoo_with(ctx, arch, "relu", count, salt);
}

/* The learning rate in the last line of a run's log. */
static inline double last_rate(wf_ctx *ctx, const char *path) {
    char name[300], *text, *last = NULL;
    size_t size;
    snprintf(name, sizeof name, "%s.log.jsonl", path);
    assert_ok(ctx, wf_read_file(ctx, name, 1 << 24, &text, &size));
    for (char *at = text; (at = strstr(at, "\"lr\":")) != NULL;) last = at += 5;
    assert_non_null(last);
    double rate = strtod(last, NULL);
    free(text);
    return rate;
}

static inline wf_fit_desc quick_fit(void) {
    wf_fit_desc fit = wf_fit_desc_default();
    fit.updates = 60;
    fit.batch = 8;
    fit.log_every = 7;
    fit.ema = 0.9;
    fit.lr = 0.01;
    fit.save_seconds = 1e9;
    return fit;
}

static inline wf_field_desc plain_field(int cond_size) {
    wf_field_desc field = {.layout = WF_LAYOUT_LEAN,
                           .node = 8,
                           .edge = 8,
                           .time = 8,
                           .time_frequency = 1000,
                           .blocks = 1,
                           .max_coef = 1,
                           .seed = 3};
    field.cond = cond_size > 0 ? WF_COND_LINEAR : WF_COND_NONE;
    field.cond_size = cond_size;
    return field;
}

#endif
