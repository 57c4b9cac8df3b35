/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "generators/cuda/phase_cuda.h"

ABSENT(wf__phase_cuda_create, const wf_phase_cuda_desc *desc, wf_phase_cuda **out)
void wf__phase_cuda_free(wf_phase_cuda *phase) {}
wf_updates_cuda *wf__phase_cuda_updates(const wf_phase_cuda *phase) { return NULL; }
ABSENT(wf__phase_cuda_enqueue, wf_phase_cuda *phase)
ABSENT(wf__phase_cuda_judge, wf_phase_cuda *phase, float *const in[WF_PHASE_INPUTS], double *loss)
ABSENT(wf__phase_cuda_inputs, wf_phase_cuda *phase, float *const in[WF_PHASE_INPUTS])
ABSENT(wf__eval_cuda_open, const wf_phase *phase, bool fast, wf_eval_cuda **out)
void wf__eval_cuda_close(wf_eval_cuda *eval) {}
ABSENT(wf__eval_cuda_run, wf_eval_cuda *eval, const void *model, wf_phase_walk *walk, int networks,
       const wf_phase_shape *shape, int inputs, const float *const *in, float *out, int some)
