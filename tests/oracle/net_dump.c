/* net_dump: runs a velocity field of one architecture and the library's AdamW on numbers from a file, for tests/oracle/test_fields.py,
 * which compiles it.
 *     net_dump FIELD ARCH NETWORKS DTYPE STEPS EPS IN OUT [KEY=VALUE...]
 * IN: params, w, t, dv as reals (DTYPE 0 float, 1 double). OUT: params, v, grad, dw before the first AdamW step and behind each. The
 * gradient is that of sum dv*v. IN "-": prints the tensors' names, rows, columns and whether they decay instead. */
#include "graph/batch.h"
#include "models/field_kinds.h"
#include "nn/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { first_setting = 9, most_tensors = 1024, most_networks = 64 };

static void die(wf_ctx *ctx, const char *what) {
    fprintf(stderr, "net_dump: %s: %s\n", what, wf_last_error(ctx));
    exit(1);
}

static char *read_reals(FILE *file, size_t count, size_t size) {
    char *out = calloc(count + 1, size);
    if (out == NULL || fread(out, size, count, file) != count) {
        fprintf(stderr, "net_dump: the input is too short\n");
        exit(1);
    }
    return out;
}

/* The optimiser a trainer would make, with constants that test_fields.py has too. */
static wf_optim *make_adamw(wf_ctx *ctx, const wf_field *field, double eps) {
    wf_optim_desc desc = {.lr = 3e-3,
                          .weight_decay = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = eps,
                          .dtype = field->dtype};
    static wf_optim_tensor to[most_tensors];
    if (field->n_tensors > most_tensors) die(ctx, "too many tensors");
    for (int i = 0; i < field->n_tensors; i++) {
        const wf_field_tensor *from = &field->tensors[i];
        to[i] = (wf_optim_tensor){from->offset, from->rows, from->cols, from->matrix, from->decay};
    }
    wf_optim *optim;
    if (wf_optim_create(ctx, &desc, to, field->n_tensors, field->params, &optim) != WF_OK)
        die(ctx, "optimiser");
    return optim;
}

static wf_field *make_field(wf_ctx *ctx, const char *name, const wf_graph *graph, wf_dtype dtype,
                            char **settings, int n) {
    const wf_field_kind *kind = wf_field_find(name);
    if (kind == NULL) die(ctx, name);
    void *options = calloc(1, kind->options_size);
    wf_settings_default(kind->settings(), options);
    for (int i = 0; i < n; i++) {
        char *value = strchr(settings[i], '=');
        if (value == NULL) die(ctx, settings[i]);
        *value = '\0';
        if (wf_settings_set(ctx, kind->settings(), settings[i], value + 1, options) != WF_OK)
            die(ctx, settings[i]);
    }
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
        for (int i = 0; i < field->n_tensors; i++)
            printf("%s %d %d %d\n", field->tensors[i].name, field->tensors[i].rows,
                   field->tensors[i].cols, field->tensors[i].decay);
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
    wf_optim *optim = make_adamw(ctx, field, atof(argv[6]));
    if (v == NULL || grad == NULL || dw == NULL) return 1;
    bool written = true;
    for (int step = 0; step <= steps; step++) {
        if (step > 0)
            wf_optim_step(ctx, optim, (size_t)step - 1, 1, wf_optim_norm(ctx, optim, grad), grad,
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
