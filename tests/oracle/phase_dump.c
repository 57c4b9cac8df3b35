/* phase_dump: runs a phase of a generator and the library's AdamW on numbers from a file, for
 * tests/oracle/test_phases.py, which compiles it.
 *     phase_dump PHASE ARCH NETWORKS DTYPE STEPS EPS IN OUT [KEY=VALUE...]
 * PHASE: vae, ddpm (of pdiff) or autoencoder (of SANE). IN: params, then the phase's inputs, as
 * reals (DTYPE 0 float, 1 double). OUT: params, both terms of the loss, grad before the first AdamW
 * step and after each; then both terms of the network that samples, and its running statistics. IN
 * "-": prints the tensors' names, rows, columns and whether they decay, and "input" rows columns 0,
 * instead. */
#include "dump.h"
#include "generators/generators.h"
#include "generators/pdiff_net.h"
#include "generators/sane_net.h"

enum { first_setting = 9 };

typedef struct dump {
    wf_ctx *ctx;
    wf_graph *graph;
    wf_phase phase;
    wf_pdiff_model pdiff;
    wf_sane_model sane;
    wf_net_place decoder;
    const void *model;
} dump;

static void open_phase(dump *d, const char *name, char **settings, int n) {
    bool vae = strcmp(name, "vae") == 0;
    if (vae || strcmp(name, "ddpm") == 0) {
        wf_phase both[2];
        set_options(d->ctx, wf__pdiff_kind.settings(), settings, n, &d->pdiff.options);
        wf_pdiff_phases(&d->pdiff.options, both);
        d->phase = both[vae ? 0 : 1];
        d->pdiff.params = (int)d->graph->n_params;
        d->pdiff.padded = (d->pdiff.params + 63) / 64 * 64;
        d->pdiff.decoder = &d->decoder;
        d->model = &d->pdiff;
    } else {
        set_options(d->ctx, wf__sane_kde_kind.settings(), settings, n, &d->sane.options);
        wf_sane_phase(&d->sane.options, &d->phase);
        d->sane.graph = d->graph;
        d->sane.decoder = &d->decoder;
        if (wf_sane_tokens_create(d->ctx, d->graph, d->sane.options.token, &d->sane.tokens) !=
            WF_OK)
            die(d->ctx, "tokens");
        d->model = &d->sane;
    }
    if (wf_phase_declare(d->ctx, &d->phase, d->model) != WF_OK) die(d->ctx, "declare");
}

/* Both terms of the loss; with grad also the gradient, and the statistics move. */
static void evaluate(dump *d, wf_dtype dtype, int n, const char *theta, char *const in[],
                     char *statistics, double loss[2], char *grad) {
    static wf_tape tape;
    static const uint32_t update;
    const wf_dropout_key key = {.update = &update};
    wf_net net;
    wf_phase_shape shape[WF_PHASE_INPUTS];
    wf_tensor *tensors[WF_PHASE_INPUTS] = {0};
    wf_tape_start(&tape, wf_backend_cpu(dtype), dtype, grad != NULL);
    tape.ctx = d->ctx;
    wf_net_start(&net, &tape, &d->phase.list, theta, grad != NULL ? &key : NULL);
    net.buffers = &d->phase.buffers;
    net.statistics = statistics;
    int inputs = d->phase.shapes(d->model, n, shape);
    for (int i = 0; i < inputs; i++)
        tensors[i] = wf_tape_rows(&tape, in[i], shape[i].rows, shape[i].cols);
    wf_phase_loss made = d->phase.loss(&net, d->model, n, tensors);
    for (int i = 0; i < 2; i++) {
        if (made.term[i] == NULL) continue;
        const void *value = made.term[i]->data;
        loss[i] = dtype == WF_F64 ? *(const double *)value : *(const float *)value;
        if (grad == NULL) continue;
        void *slope = wf_tape_grad(&tape, made.term[i]);
        if (dtype == WF_F64) *(double *)slope = made.weight[i];
        else *(float *)slope = (float)made.weight[i];
    }
    if (tape.failed || (grad != NULL && !wf_net_backward(&net, grad))) die(d->ctx, "evaluate");
}

static bool put_losses(FILE *out, wf_dtype dtype, const double loss[2]) {
    float single[] = {(float)loss[0], (float)loss[1]};
    return dtype == WF_F64 ? fwrite(loss, 8, 2, out) == 2 : fwrite(single, 4, 2, out) == 2;
}

int main(int argc, char **argv) {
    if (argc < first_setting) return 2;
    int n = atoi(argv[3]), steps = atoi(argv[5]);
    wf_dtype dtype = atoi(argv[4]) ? WF_F64 : WF_F32;
    size_t size = dtype == WF_F64 ? 8 : 4;
    static dump d;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = 2}, &d.ctx) != WF_OK) return 1;
    if (wf_graph_parse(d.ctx, argv[2], "relu", 0, &d.graph) != WF_OK) die(d.ctx, argv[2]);
    open_phase(&d, argv[1], argv + first_setting, argc - first_setting);
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int inputs = d.phase.shapes(d.model, n, shape);
    if (strcmp(argv[7], "-") == 0) {
        print_tensors(d.phase.list.tensors, d.phase.list.count);
        for (int i = 0; i < inputs; i++) printf("input %d %d 0\n", shape[i].rows, shape[i].cols);
        return 0;
    }
    FILE *in = fopen(argv[7], "rb"), *out = fopen(argv[8], "wb");
    if (in == NULL || out == NULL) die(d.ctx, "files");
    size_t params = d.phase.list.total, buffers = d.phase.buffers.total;
    char *theta = read_reals(in, params, size), *values[WF_PHASE_INPUTS];
    for (int i = 0; i < inputs; i++)
        values[i] = read_reals(in, (size_t)shape[i].rows * (size_t)shape[i].cols, size);
    fclose(in);
    char *grad = calloc(params, size), *statistics = calloc(buffers + 1, size);
    if (grad == NULL || statistics == NULL) return 1;
    wf_params_init(d.phase.buffers.tensors, d.phase.buffers.count, dtype, 0, statistics);
    wf_optim *optim =
        make_adamw(d.ctx, d.phase.list.tensors, d.phase.list.count, params, dtype, atof(argv[6]));
    bool written = true;
    double loss[2] = {0};
    for (int step = 0; step <= steps; step++) {
        if (step > 0)
            wf_optim_apply(d.ctx, optim, (size_t)step - 1, 1, wf_optim_norm(d.ctx, optim, grad),
                           grad, theta);
        evaluate(&d, dtype, n, theta, values, statistics, loss, grad);
        written = written && fwrite(theta, size, params, out) == params &&
                  put_losses(out, dtype, loss) && fwrite(grad, size, params, out) == params;
    }
    evaluate(&d, dtype, n, theta, values, statistics, loss, NULL);
    written = written && put_losses(out, dtype, loss) &&
              fwrite(statistics, size, buffers, out) == buffers;
    return fclose(out) == 0 && written ? 0 : 1;
}
