#include "generators/cuda/phase_cuda.h"
#include "generators/phase_fit.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

wf_status wf_phase_eval_open(wf_ctx *ctx, wf_phase *phase, const void *model, size_t most,
                             bool on_gpu, bool fast, wf_phase_eval *out) {
    *out = (wf_phase_eval){.ctx = ctx, .phase = phase, .model = model, .most = (int)most};
    return on_gpu ? wf__eval_cuda_open(ctx, phase, fast, &out->gpu) : WF_OK;
}

void wf_phase_eval_close(wf_phase_eval *eval) {
    wf__eval_cuda_close(eval->gpu);
    wf_tape_free(&eval->tape);
    *eval = (wf_phase_eval){0};
}

static wf_status run_on_cpu(wf_phase_eval *e, wf_phase_walk *walk, int networks,
                            const wf_phase_shape *shape, int inputs, const float *const *in,
                            float *out) {
    wf_net net;
    wf_tensor *x[WF_PHASE_INPUTS] = {0};
    wf_phase_start(e->ctx, e->phase, false, &e->tape, &net);
    for (int i = 0; i < inputs; i++)
        x[i] = wf_phase_input(&net, networks * shape[i].rows, shape[i].cols, in[i]);
    const wf_tensor *y = e->tape.failed ? NULL : walk(&net, e->model, networks, x);
    if (wf_interrupted(e->ctx)) return wf_fail(e->ctx, WF_ERR_INTERRUPTED, "interrupted");
    if (e->tape.failed || y == NULL)
        return wf_fail(e->ctx, WF_ERR_MEMORY, "%s: no memory for the activations of a batch",
                       e->phase->name);
    size_t cols = (size_t)y->cols;
    for (size_t r = 0; r < (size_t)y->rows; r++)
        memcpy(out + r * cols, (const float *)y->data + r * (size_t)y->ld, cols * sizeof(float));
    return WF_OK;
}

wf_status wf_phase_eval_run(wf_phase_eval *e, wf_phase_walk *walk, size_t networks,
                            const wf_phase_shape *shape, int inputs, const float *const *in,
                            float *out) {
    assert(networks >= 1 && networks <= (size_t)e->most);
    if (e->gpu == NULL) return run_on_cpu(e, walk, (int)networks, shape, inputs, in, out);
    if (wf_interrupted(e->ctx)) return wf_fail(e->ctx, WF_ERR_INTERRUPTED, "interrupted");
    wf_phase_shape all[WF_PHASE_INPUTS];
    for (int i = 0; i < inputs; i++)
        all[i] = (wf_phase_shape){e->most * shape[i].rows, shape[i].cols};
    return wf__eval_cuda_run(e->ctx, e->gpu, e->model, walk, e->most, all, inputs, in, out,
                             (int)networks);
}

wf_status wf_phase_fit_encode(wf_phase_fit *fit, wf_phase_walk *walk, size_t count, size_t padded,
                              size_t numbers, float **out) {
    enum { at_once = 16 };
    const wf_family *family = &fit->set.families[0];
    size_t each = family->graph->n_params;
    wf_phase_shape shape = {1, (int)padded};
    wf_phase_eval eval = {0};
    float *in = NULL;
    wf_status status;
    WF_TRY(wf_alloc(fit->ctx, count * numbers, sizeof(float), "latents", out));
    WF_TRY_GOTO(wf_alloc(fit->ctx, at_once * padded, sizeof(float), "networks", &in), done);
    WF_TRY_GOTO(wf_phase_eval_open(fit->ctx, &fit->phases[0], fit->model, at_once, fit->on_gpu,
                                   false, &eval),
                done);
    wf_meter meter = wf_meter_start(fit->ctx, "encoding networks", "networks", (double)count);
    for (size_t first = 0; first < count && status == WF_OK; first += at_once) {
        size_t some = count - first < at_once ? count - first : at_once;
        for (size_t k = 0; k < some; k++)
            memcpy(in + k * padded, family->weights + (first + k) * each, each * sizeof(float));
        status = wf_phase_eval_run(&eval, walk, some, &shape, 1, (const float *[]){in},
                                   *out + first * numbers);
        wf_meter_update(&meter, (double)(first + some), "%s", "");
    }
    wf_meter_end(&meter, (double)count, "%s", "");
done:
    wf_phase_eval_close(&eval);
    free(in);
    return status;
}
