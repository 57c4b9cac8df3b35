/* net_cuda: fields of models/net_field.h on a GPU, as programs (field_program.cuh). */
#ifndef WF_MODELS_CUDA_NET_CUDA_H
#define WF_MODELS_CUDA_NET_CUDA_H

#include "models/net_field.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As wf_field_kind.record (models/field.h). The model must outlive the program. */
wf_status wf__net_cuda_create(wf_ctx *ctx, const wf_field *field, const wf_net_model *model,
                              const wf_field_program_desc *desc, wf_field_program **out);

#ifdef __cplusplus
}
#endif
#endif
