/* field_dump: runs a velocity field and the library's AdamW on numbers from a file, for
 * tests/oracle/test_gmn.py, which compiles it.
 *     field_dump layout node edge time blocks messages encoder activation cond cond_size fold_rows
 *                dtype steps eps IN OUT ARCH...
 * IN: params, w, t, cond, drop, dv as reals (dtype 0 float, 1 double). OUT: params, v, grad, dw
 * before the first AdamW step and after each of `steps`, then the 5 * edge / 2 frozen Fourier
 * frequencies as doubles, drawn here from their documented address. The gradient is that of sum
 * dv*v. IN "-": prints the tensors' names, rows, columns and whether they decay instead. A leading
 * '*' folds an ARCH. */
#include "base/random.h"
#include "graph/batch.h"
#include "models/field_kinds.h"
#include "nn/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { first_arch = 17, most_tensors = 1024 };

static int die(wf_ctx *ctx, const char *what) {
    fprintf(stderr, "field_dump: %s: %s\n", what, wf_last_error(ctx));
    return 1;
}

static char *read_reals(FILE *file, size_t count, size_t size) {
    char *out = calloc(count + 1, size);
    if (out == NULL || fread(out, size, count, file) != count) {
        fprintf(stderr, "field_dump: the input is too short\n");
        exit(1);
    }
    return out;
}

/* The optimiser a trainer would make, with constants that test_gmn.py has too. */
static wf_optim *make_adamw(wf_ctx *ctx, const wf_field *field, wf_dtype dtype, double eps) {
    wf_optim_desc desc = {
        .lr = 3e-3, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = eps, .dtype = dtype};
    int n = field->n_tensors;
    const wf_field_tensor *from = field->tensors;
    static wf_optim_tensor to[most_tensors];
    if (n > most_tensors) return NULL;
    for (int i = 0; i < n; i++)
        to[i] = (wf_optim_tensor){from[i].offset, from[i].rows, from[i].cols, from[i].matrix,
                                  from[i].decay};
    wf_optim *optim;
    wf_status status = wf_optim_create(ctx, &desc, to, n, field->params, &optim);
    return status == WF_OK ? optim : NULL;
}

int main(int argc, char **argv) {
    if (argc <= first_arch) return 2;
    int value[13];
    for (int i = 0; i < 13; i++) value[i] = atoi(argv[1 + i]);
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = (wf_layout)value[0];
    desc.node = value[1], desc.edge = value[2], desc.time = value[3], desc.blocks = value[4];
    desc.messages = (wf_messages)value[5];
    desc.encoder = (wf_encoder)value[6];
    desc.activation = (wf_field_act)value[7];
    desc.cond = (wf_cond_kind)value[8];
    desc.cond_size = value[9];
    desc.fold_rows = value[10];
    wf_dtype dtype = value[11] ? WF_F64 : WF_F32;
    size_t size = value[11] ? 8 : 4;
    wf_ctx *ctx;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = 2}, &ctx) != WF_OK) return 1;
    wf_graph *graphs[64];
    int n = argc - first_arch;
    for (int i = 0; i < n && i < 64; i++) {
        const char *arch = argv[first_arch + i];
        bool fold = arch[0] == '*';
        if (wf_graph_parse(ctx, arch + fold, "relu", fold ? WF_GRAPH_FOLD_INPUT : 0, &graphs[i]) !=
            WF_OK)
            return die(ctx, arch);
    }
    if (wf__field_gmn.adapt(ctx, &desc, (const wf_graph *const *)graphs, n, desc.cond_size) !=
        WF_OK)
        return die(ctx, "adapt");
    wf_field *field;
    if (wf_field_create(ctx, &wf__field_gmn, &desc, NULL, dtype, &field) != WF_OK)
        return die(ctx, "create");
    if (strcmp(argv[15], "-") == 0) {
        const wf_field_tensor *tensors = field->tensors;
        for (int i = 0; i < field->n_tensors; i++)
            printf("%s %d %d %d\n", tensors[i].name, tensors[i].rows, tensors[i].cols,
                   tensors[i].decay);
        return 0;
    }
    wf_arena arena = {.first = NULL};
    wf_batch batch;
    if (wf_batch_build(ctx, &arena, (const wf_graph *const *)graphs, n, &batch) != WF_OK)
        return die(ctx, "batch");
    FILE *in = fopen(argv[15], "rb");
    if (in == NULL) return 1;
    size_t params = field->params;
    char *theta = read_reals(in, params, size), *w = read_reals(in, batch.n_params, size);
    char *t = read_reals(in, (size_t)n, size);
    char *cond = read_reals(in, (size_t)n * (size_t)desc.cond_size, size);
    char *drop = read_reals(in, (size_t)n, size), *dv = read_reals(in, batch.n_params, size);
    fclose(in);
    uint8_t flags[64];
    for (int i = 0; i < n; i++)
        flags[i] = size == 8 ? ((double *)drop)[i] != 0 : ((float *)drop)[i] != 0;
    char *v = calloc(batch.n_params, size), *grad = calloc(params, size);
    char *dw = calloc(batch.n_params, size);
    if (v == NULL || grad == NULL || dw == NULL) return 1;
    bool conditional = desc.cond != WF_COND_NONE;
    wf_optim *optim = make_adamw(ctx, field, dtype, atof(argv[14]));
    FILE *out = fopen(argv[16], "wb");
    if (out == NULL || optim == NULL) return 1;
    bool written = true;
    for (int step = 0; step <= value[12]; step++) {
        if (step > 0)
            wf_optim_apply(ctx, optim, (size_t)step - 1, 1, wf_optim_norm(ctx, optim, grad), grad,
                           theta);
        wf_field_input input = {.batch = &batch, .w = w, .t = t, .keep = true};
        if (conditional) input.cond = cond, input.drop = flags;
        if (wf_field_forward(ctx, field, theta, &input, v) != WF_OK) return die(ctx, "forward");
        if (wf_field_backward(ctx, field, dv, grad, dw) != WF_OK) return die(ctx, "backward");
        written = written && fwrite(theta, size, params, out) == params &&
                  fwrite(v, size, batch.n_params, out) == batch.n_params &&
                  fwrite(grad, size, params, out) == params &&
                  fwrite(dw, size, batch.n_params, out) == batch.n_params;
    }
    wf_rng rng = wf_rng_at(desc.seed, 0, WF_RNG_FOURIER, 0);
    for (size_t i = 0; i < 5 * (size_t)(desc.edge / 2); i++) {
        float deviate;
        wf_rng_normals_from(&rng, i, &deviate, 1);
        double frequency = size == 8 ? 3.0 * deviate : (float)(3.0 * deviate);
        written = written && fwrite(&frequency, sizeof frequency, 1, out) == 1;
    }
    return fclose(out) == 0 && written ? 0 : 1;
}
