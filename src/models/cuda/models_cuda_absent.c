/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "models/cuda/gmn_cuda.h"
#include "models/cuda/net_cuda.h"

ABSENT(wf_field_program_forward, wf_field_program *program)
ABSENT(wf_field_program_backward, wf_field_program *program)
ABSENT(wf_field_program_backward_stage, wf_field_program *program, int stage)
size_t wf_field_program_bytes(const wf_field_program *program) { return 0; }
void wf_field_program_free(wf_field_program *program) {}

ABSENT(wf__gmn_cuda_create, const gmn_cuda_desc *own, const wf_field_program_desc *desc,
       wf_field_program **out)
void wf__gmn_cuda_cache_free(gmn_cuda_cache *cache) {}
double wf__gmn_cuda_cache_flops(const gmn_cuda_cache *cache) { return 0; }
ABSENT(wf__gmn_cuda_field_forward, gmn_cuda_cache *cache, const gmn_cuda_desc *own,
       const float *params, const wf_field_input *input, float *v)
ABSENT(wf__gmn_cuda_field_backward, gmn_cuda_cache *cache, const float *dv, float *grad, float *dw)

ABSENT(wf__net_cuda_create, const wf_field *field, const wf_net_model *model,
       const wf_field_program_desc *desc, wf_field_program **out)
