/* flow_generator: a generator kind for each field that the library has. */
#include "flow/flow_fit.h"
#include "generators/generators.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const wf_field_kind *field_of(const wf_generator_kind *kind) { return kind->model; }

/* A copy of the options, completed from what is fitted; free(*out). */
static wf_status adapt(wf_ctx *ctx, const wf_field_kind *field, const void *options,
                       const wf_graph *const *graphs, int n, int cond_size, void **out) {
    WF_TRY(wf_alloc(ctx, 1, field->options_size, "options", out));
    memcpy(*out, options, field->options_size);
    wf_status status = field->adapt == NULL ? WF_OK : field->adapt(ctx, *out, graphs, n, cond_size);
    if (status == WF_OK) return WF_OK;
    free(*out);
    return status;
}

static wf_status fit_flow(wf_ctx *ctx, const wf_generator_kind *kind,
                          const wf_generator_fit_desc *desc) {
    const wf_graph **graphs;
    void *options;
    WF_TRY(wf_alloc(ctx, (size_t)desc->n_sources, sizeof *graphs, "flow", &graphs));
    for (int i = 0; i < desc->n_sources; i++) graphs[i] = wf_zoo_graph(desc->sources[i].zoo);
    wf_status status = adapt(ctx, field_of(kind), desc->options, graphs, desc->n_sources,
                             desc->cond_size, &options);
    if (status == WF_OK) {
        status = wf_flow_fit_with(ctx, desc->sources, desc->n_sources, field_of(kind), options,
                                  desc->train, desc->path, NULL);
        free(options);
    }
    free(graphs);
    return status;
}

static wf_status open_flow(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_open_desc *desc, void **self) {
    wf_flow *flow;
    WF_TRY(wf_flow_open_with(ctx, desc->path, field_of(kind), &flow));
    *self = flow;
    return WF_OK;
}

static wf_status sample_flow(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    return wf_flow_sample(ctx, self, request->graph, request->cond, request->n, request->sample,
                          request->weights, request->direct, request->stats);
}

static void free_flow(void *self) { wf_flow_free(self); }

static const wf_graph *graph_of_flow(const void *self) { return wf_flow_source_at(self, 0).graph; }

static wf_flow *flow_itself(void *self) { return self; }

/* A field as it would be fitted, without parameters; *own: its options. Both are the caller's. */
static wf_status make_field(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                            const wf_graph *graph, int cond_size, void **own, wf_field **out) {
    WF_TRY(adapt(ctx, field_of(kind), options, &graph, 1, cond_size, own));
    wf_status status = wf_field_create(ctx, field_of(kind), *own, graph, WF_F32, out);
    if (status != WF_OK) free(*own);
    return status;
}

static wf_status flow_params(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                             const wf_graph *graph, int cond_size, size_t *out) {
    void *own;
    wf_field *field;
    WF_TRY(make_field(ctx, kind, options, graph, cond_size, &own, &field));
    *out = field->params;
    wf_field_free(field);
    free(own);
    return WF_OK;
}

static wf_status flow_tensors(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                              const wf_graph *graph, int cond_size, wf_generator_visit *visit,
                              void *user) {
    void *own;
    wf_field *field;
    WF_TRY(make_field(ctx, kind, options, graph, cond_size, &own, &field));
    for (int i = 0; i < field->n_tensors; i++) {
        const wf_field_tensor *t = &field->tensors[i];
        visit(user, t->name, t->rows, t->cols, t->matrix, t->decay);
    }
    wf_field_free(field);
    free(own);
    return WF_OK;
}

enum { most_flows = 64 };
static wf_generator_kind flows[most_flows + 1];

static void make_flows(void) {
    for (int i = 0; wf__field_kinds[i] != NULL && i < most_flows; i++) {
        const wf_field_kind *field = wf__field_kinds[i];
        flows[i] = (wf_generator_kind){
            .name = field->name,
            .about = field->about,
            .traits = field->traits | WF_GENERATOR_REFINES |
                      (field->record != NULL ? (unsigned)WF_GENERATOR_ON_GPU : 0),
            .settings = field->settings,
            .options_size = field->options_size,
            .model = field,
            .fit = fit_flow,
            .open = open_flow,
            .sample = sample_flow,
            .free = free_flow,
            .graph = graph_of_flow,
            .flow = flow_itself,
            .params = flow_params,
            .tensors = flow_tensors};
    }
}

const wf_generator_kind *wf__flow_kinds(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_flows);
    return flows;
}
