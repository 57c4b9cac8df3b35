/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "nn/cuda/optim_cuda.h"

ABSENT(wf__optim_cuda_create, const wf_optim_cuda_desc *desc, wf_optim_cuda **out)
void wf__optim_cuda_free(wf_optim_cuda *optim) {}
wf_optim_cuda_arrays wf__optim_cuda_arrays(const wf_optim_cuda *optim) {
    return (wf_optim_cuda_arrays){0};
}
ABSENT(wf__optim_cuda_start, wf_optim_cuda *optim, size_t update, double best_loss)
ABSENT(wf__optim_cuda_pace, wf_optim_cuda *optim, const wf_pace *pace)
const uint32_t *wf__optim_cuda_update(const wf_optim_cuda *optim) { return NULL; }
ABSENT(wf__optim_cuda_apply, wf_optim_cuda *optim, const double *terms, int n_terms)
const volatile wf_update_record *wf__optim_cuda_records(const wf_optim_cuda *optim, size_t *ring) {
    *ring = 0;
    return NULL;
}
