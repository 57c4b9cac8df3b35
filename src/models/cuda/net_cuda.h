/* net_cuda: fields of models/net_field.h on a GPU, as programs (field_program.cuh). */
#pragma once

#include "models/net_field.h"

WF_BEGIN_C

/* As wf_field_kind.record (models/field.h). The model must outlive the program. */
wf_status wf__net_cuda_create(wf_ctx *ctx, const wf_field *field, const wf_net_model *model,
                              const wf_field_program_desc *desc, wf_field_program **out);

WF_END_C
