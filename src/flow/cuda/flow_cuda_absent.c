/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "flow/cuda/fit_cuda.h"
#include "flow/cuda/ode_cuda.h"
#include "flow/cuda/sample_cuda.h"

ABSENT(wf__fit_cuda_create, const wf_fit_cuda_desc *desc, wf_fit_cuda **out)
void wf__fit_cuda_free(wf_fit_cuda *fit) {}
ABSENT(wf__fit_cuda_enqueue, wf_fit_cuda *fit)
ABSENT(wf__fit_cuda_renew, wf_fit_cuda *fit, int family, size_t first, size_t count)
ABSENT(wf__fit_cuda_match_until, wf_fit_cuda *fit, size_t end)
ABSENT(wf__fit_cuda_pace, wf_fit_cuda *fit, const wf_pace *pace)
ABSENT(wf__fit_cuda_record, wf_fit_cuda *fit, size_t update, wf_update_record *out)
wf_updates_cuda *wf__fit_cuda_updates(const wf_fit_cuda *fit) { return NULL; }
ABSENT(wf__fit_cuda_forward, wf_fit_cuda *fit, int which, const wf_flow_batch *batch)
ABSENT(wf__fit_cuda_batch, wf_fit_cuda *fit, float *x, float *target, float *t)

ABSENT(wf__updates_cuda_record, wf_updates_cuda *updates, size_t update, wf_update_record *out)
ABSENT(wf__updates_cuda_copy, wf_updates_cuda *updates)
ABSENT(wf__updates_cuda_copied, wf_updates_cuda *updates, bool wait, bool *out)

ABSENT(wf__sample_cuda_create, const wf_sample_cuda_desc *desc, wf_sample_cuda **out)
void wf__sample_cuda_free(wf_sample_cuda *sample) {}
bool wf__sample_cuda_serves(const wf_sample_cuda *sample, const wf_graph *graph, int batch,
                            bool fast) {
    return false;
}
ABSENT(wf__sample_cuda_begin, wf_sample_cuda *sample, const wf_sample_cuda_call *call)
double *wf__sample_cuda_states(wf_sample_cuda *sample) { return NULL; }
const wf_ode_ops *wf__sample_cuda_ops(const wf_sample_cuda *sample) { return NULL; }
wf_status wf__sample_cuda_velocity(void *arg, int n, const int *which, const double *t,
                                   const double *y, double *dy) {
    return WF_ERR_UNSUPPORTED;
}
ABSENT(wf__sample_cuda_noise, wf_sample_cuda *sample, size_t first, int n)
ABSENT(wf__sample_cuda_corrupt, wf_sample_cuda *sample, size_t first, int n, uint32_t cycle,
       double t, const wf_match_desc *match)
ABSENT(wf__sample_cuda_fetch, wf_sample_cuda *sample, int n, float *out)

ABSENT(wf__row_ring_open, size_t bytes, wf_row_ring *out)
void wf__row_ring_close(wf_row_ring *ring) {}
ABSENT(wf__row_ring_up, wf_row_ring *ring, const void *data, size_t bytes, void *out)
wf_ode_ops wf__ode_cuda_ops(wf_arena *memory, wf_row_ring *ring) {
    return (wf_ode_ops){.memory = memory, .self = ring};
}
