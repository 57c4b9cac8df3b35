/* flow_fit: the trainer, for any velocity network. */
#ifndef WF_FLOW_FIT_H
#define WF_FLOW_FIT_H

#include "flow/checkpoint.h"

/* wf_flow_fit with the network that `maker` makes. */
wf_status wf_flow_fit_with(wf_ctx *ctx, const wf_source *sources, int n_sources,
                           const wf_field_desc *field, const wf_fit_desc *desc, const char *path,
                           wf_velocity_maker *maker, void *arg, wf_flow **out);

#endif
