/* velocity: what the flow asks of a velocity network, whichever it is.
 *
 * Trainer, samplers and checkpoints see this table alone: a graph metanetwork (models/field.h), and
 * later the MLP, DiT and DWF baselines, are implementations of it. Parameters are one flat array of
 * the caller's. */
#ifndef WF_FLOW_VELOCITY_H
#define WF_FLOW_VELOCITY_H

#include "models/field.h"

typedef struct wf_velocity {
    void *self;
    size_t params;
    const wf_field_tensor *tensors; /* tile the flat array in order */
    int n_tensors;
    const wf_field *field; /* the field behind it, for loops on a GPU; NULL: it has none */
    bool equivariant;      /* under relabelling of hidden units; the matched coupling needs it */
    void (*init)(const void *self, uint64_t seed, float *params);
    /* As wf_field_forward and wf_field_backward, in float. */
    wf_status (*forward)(wf_ctx *ctx, void *self, const float *params, const wf_batch *batch,
                         const float *w, const float *t, const float *cond, const uint8_t *drop,
                         bool keep, float *v);
    wf_status (*backward)(wf_ctx *ctx, void *self, const float *dv, float *grad);
    void (*free)(void *self);
} wf_velocity;

/* Makes the network of a description; `arg` is the caller's. params: how many parameters it must have, as a file
 * says, or 0. A maker compares before it allocates anything of that size: a file may lie about its widths. */
typedef wf_status wf_velocity_maker(wf_ctx *ctx, void *arg, const wf_field_desc *desc,
                                    size_t params, wf_velocity *out);

/* The graph metanetwork of `desc`; arg is not used. */
wf_velocity_maker wf_velocity_gmn;
static inline void wf_velocity_free(wf_velocity *velocity) {
    if (velocity->free != NULL) velocity->free(velocity->self);
    *velocity = (wf_velocity){0};
}

#endif
