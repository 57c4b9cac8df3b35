/* net_dump: runs a velocity field of one architecture and the library's AdamW on numbers from a
 * file, for tests/oracle/test_fields.py, which compiles it.
 *     net_dump FIELD ARCH NETWORKS DTYPE STEPS EPS IN OUT [KEY=VALUE...]
 * IN: params, w, t, dv as reals (DTYPE 0 float, 1 double). OUT: params, v, grad, dw before the
 * first AdamW step and after each. The gradient is that of sum dv*v. IN "-": prints the tensors'
 * names, rows, columns and whether they decay instead. */
#include "dump.h"
#include "graph/batch.h"
#include "models/field_kinds.h"

enum { first_setting = 9, most_networks = 64 };

static wf_field *make_field(wf_ctx *ctx, const char *name, const wf_graph *graph, wf_dtype dtype,
                            char **settings, int n) {
    const wf_field_kind *kind = wf_field_find(name);
    if (kind == NULL) die(ctx, name);
    void *options = calloc(1, kind->options_size);
    set_options(ctx, kind->settings(), settings, n, options);
    wf_field *field;
    if (wf_field_create(ctx, kind, options, graph, dtype, &field) != WF_OK) die(ctx, name);
    free(options);
    return field;
}

int main(int argc, char **argv) {
    if (argc < first_setting) return 2;
    int n = atoi(argv[3]), steps = atoi(argv[5]);
    wf_dtype dtype = atoi(argv[4]) ? WF_F64 : WF_F32;
    size_t size = dtype == WF_F64 ? 8 : 4;
    wf_ctx *ctx;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = 2}, &ctx) != WF_OK) return 1;
    const wf_graph *graphs[most_networks];
    wf_graph *graph;
    if (n > most_networks || wf_graph_parse(ctx, argv[2], "relu", 0, &graph) != WF_OK)
        die(ctx, argv[2]);
    for (int i = 0; i < n; i++) graphs[i] = graph;
    wf_field *field =
        make_field(ctx, argv[1], graph, dtype, argv + first_setting, argc - first_setting);
    if (strcmp(argv[7], "-") == 0) {
        print_tensors(field->tensors, field->n_tensors);
        return 0;
    }
    wf_arena arena = {.first = NULL};
    wf_batch batch;
    if (wf_batch_build(ctx, &arena, graphs, n, &batch) != WF_OK) die(ctx, "batch");
    FILE *in = fopen(argv[7], "rb"), *out = fopen(argv[8], "wb");
    if (in == NULL || out == NULL) die(ctx, "files");
    size_t params = field->params, many = batch.n_params;
    char *theta = read_reals(in, params, size), *w = read_reals(in, many, size);
    char *t = read_reals(in, (size_t)n, size), *dv = read_reals(in, many, size);
    fclose(in);
    char *v = calloc(many, size), *grad = calloc(params, size), *dw = calloc(many, size);
    wf_optim *optim =
        make_adamw(ctx, field->tensors, field->n_tensors, params, dtype, atof(argv[6]));
    if (v == NULL || grad == NULL || dw == NULL) return 1;
    bool written = true;
    for (int step = 0; step <= steps; step++) {
        if (step > 0)
            wf_optim_apply(ctx, optim, (size_t)step - 1, 1, wf_optim_norm(ctx, optim, grad), grad,
                           theta);
        wf_field_input input = {.batch = &batch, .w = w, .t = t, .keep = true};
        if (wf_field_forward(ctx, field, theta, &input, v) != WF_OK) die(ctx, "forward");
        if (wf_field_backward(ctx, field, dv, grad, dw) != WF_OK) die(ctx, "backward");
        written = written && fwrite(theta, size, params, out) == params &&
                  fwrite(v, size, many, out) == many && fwrite(grad, size, params, out) == params &&
                  fwrite(dw, size, many, out) == many;
    }
    return fclose(out) == 0 && written ? 0 : 1;
}
