/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "generators/cuda/phase_cuda.h"

wf_status wf__phase_cuda_create(wf_ctx *ctx, const wf_phase_cuda_desc *desc, wf_phase_cuda **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__phase_cuda_free(wf_phase_cuda *phase) {}
wf_updates_cuda *wf__phase_cuda_updates(const wf_phase_cuda *phase) { return NULL; }
wf_status wf__phase_cuda_enqueue(wf_ctx *ctx, wf_phase_cuda *phase) { return wf_cuda_absent(ctx); }
wf_status wf__phase_cuda_judge(wf_ctx *ctx, wf_phase_cuda *phase, float *const in[WF_PHASE_INPUTS],
                               double *loss) {
    return wf_cuda_absent(ctx);
}
wf_status wf__phase_cuda_inputs(wf_ctx *ctx, wf_phase_cuda *phase,
                                float *const in[WF_PHASE_INPUTS]) {
    return wf_cuda_absent(ctx);
}
wf_status wf__eval_cuda_open(wf_ctx *ctx, const wf_phase *phase, bool fast, wf_eval_cuda **out) {
    *out = NULL;
    return wf_cuda_absent(ctx);
}
void wf__eval_cuda_close(wf_eval_cuda *eval) {}
wf_status wf__eval_cuda_run(wf_ctx *ctx, wf_eval_cuda *eval, const void *model, wf_phase_walk *walk,
                            int networks, const wf_phase_shape *shape, int inputs,
                            const float *const *in, float *out, int some) {
    return wf_cuda_absent(ctx);
}
