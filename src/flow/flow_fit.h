/* flow_fit: the trainer, for any field. */
#pragma once

#include "flow/checkpoint.h"
#include "flow/draw.h"

/* wf_flow_fit with a field of another kind; options is its own struct. */
wf_status wf_flow_fit_with(wf_ctx *ctx, const wf_source *sources, int n_sources,
                           const wf_field_kind *kind, const void *options, const wf_fit_desc *desc,
                           const char *path, wf_flow **out);

/* Where `part` of the work ("fitting") runs: on the GPU when one is asked for and the field has a
 * program for it; else on the CPU, with a warning. */
wf_status wf__field_device(wf_ctx *ctx, const wf_field *field, const char *part, bool *on_gpu);
